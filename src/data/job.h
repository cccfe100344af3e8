/* job.h - processes the blocks of a corpus on several threads: encodes them to tokens or counts their words. */
#ifndef LS_DATA_JOB_H
#define LS_DATA_JOB_H

#include "data/bpe_train.h"
#include "data/corpus.h"

typedef enum ls_bad_utf8 {
    LS_BAD_UTF8_ERROR,
    LS_BAD_UTF8_REPLACE, /* by U+FFFD */
    LS_BAD_UTF8_KEEP,    /* bytes as they are */
} ls_bad_utf8;

typedef struct data_job_rules {
    const ls_tokenizer *tok; /* NULL: count words */
    const char *text_key;
    ls_bad_utf8 bad_utf8;
    int64_t min_chars, max_chars; /* JSON lines outside are not encoded; max 0: no limit */
    bool dedup;                   /* hash the documents */
} data_job_rules;

/* A document that ends in the block. chars and hash are of JSON lines only, and of the text before invalid UTF-8 is replaced: the caller
 * computes them for plain text, whose documents have many blocks. */
typedef struct data_doc {
    size_t end;    /* token count at its end */
    int64_t chars; /* Unicode characters; with limits only */
    uint64_t hash; /* with dedup only */
} data_doc;

bool data_length_ok(const data_job_rules *rules, int64_t chars);
int64_t data_count_chars(const unsigned char *p, size_t n);

typedef struct data_job {
    ls_text_block block;
    ls_words words;  /* counting */
    ls_ids ids;      /* encoding: of the whole block, with end-of-text after each document that ends in it */
    uint16_t *token; /* the same, in the type of the token file */
    size_t cap_token;
    data_doc *doc; /* documents that end in the block */
    size_t n_doc, cap_doc;
    int64_t n_text_byte; /* of documents, after unpacking JSON */
    ls_str text, fixed;
    ls_status st;
    ls_err_kept error;
    bool done;
} data_job;

void data_job_fini(data_job *j);

/* Fills the results from j->block, on any thread with its own encoder. A failure is stored in j->st and j->error and reported in the order
 * of the jobs. A job that has failed before (its block could not be read) stays as it is. */
void data_job_run(data_job *j, const data_job_rules *rules, ls_encoder *e);
void data_job_end(data_job *j, ls_status st); /* stores st and, for a failure, this thread's error */

/* Consumes one finished job; called in order on the thread of the caller. */
typedef ls_status (*data_take)(void *ctx, const data_job *j, const ls_blocks *at);

/* Runs on `threads` threads: the calling one reads blocks, consumes results and processes blocks when it would wait; the others process
 * blocks. The result does not depend on their number: the first error in the order of the corpus is reported. LS_E_STOPPED after a stop request (core/stop.h). */
ls_status data_pipeline_run(ls_blocks *blocks, const data_job_rules *rules, int threads, data_take take, void *ctx);

#endif
