/* job.h - processes the blocks of a corpus on several threads: encodes them to tokens or counts their words.
 *
 * Unpacking a compressed file is the work of one thread at a time, so several files are read at the same time when one is not enough for
 * all threads. Results are consumed in the order of the corpus; those of later files wait in temporary files (data/spill.h), so memory
 * is bounded. */
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
    int64_t min_chars, max_chars; /* lines outside are not encoded; max 0: no limit */
    bool dedup;                   /* hash the documents */
} data_job_rules;

/* A document that ends in the block. chars and hash are of lines only, and of the text before invalid UTF-8 is replaced: the caller
 * computes them for plain text, whose documents have many blocks. */
typedef struct data_doc {
    size_t end;    /* token count at its end */
    int64_t chars; /* Unicode characters; with limits only */
    uint64_t hash; /* with dedup only */
} data_doc;

/* Whether documents may be dropped, so that their characters or hashes are needed. */
bool data_drops_docs(const data_job_rules *rules);
bool data_length_ok(const data_job_rules *rules, int64_t chars);
int64_t data_count_chars(const unsigned char *p, size_t n);

typedef enum data_job_state { DATA_JOB_FREE, DATA_JOB_BUSY, DATA_JOB_DONE } data_job_state;

typedef struct data_job {
    ls_text_block block;
    ls_words words;  /* counting */
    ls_ids ids;      /* encoding: of the whole block, with end-of-text after each document that ends in it */
    uint16_t *token; /* the same, in the type of the token file */
    size_t n_token, cap_token;
    data_doc *doc; /* documents that end in the block */
    size_t n_doc, cap_doc;
    int64_t n_text_byte; /* of documents, after unpacking JSON */
    ls_str text, fixed;
    ls_status st;
    ls_err_kept error;
    data_job_state state;
    uint64_t lane, seq; /* block number seq of a lane (worker_pool.c) */
} data_job;

void data_job_fini(data_job *j);

/* Fills the results from j->block, on any thread with its own encoder. A failure is stored in j->st and j->error and reported in the order
 * of the jobs. A job that has failed before (its block could not be read) stays as it is. */
void data_job_run(data_job *j, const data_job_rules *rules, ls_encoder *e);
void data_job_end(data_job *j, ls_status st); /* stores st and, for a failure, this thread's error */

/* Consumes one finished job; called in the order of the corpus on the thread of the caller. taken: bytes of the input files that were read
 * so far, also of those that are read ahead. */
typedef ls_status (*data_take)(void *ctx, const data_job *j, int64_t taken);

typedef struct data_pipeline {
    int threads; /* the calling one consumes results and processes blocks when it would wait; the others process blocks */
    int files;   /* read at the same time, at most; 0: as many as keep the threads busy; 1: no temporary files */
    const char *dir; /* for temporary files */
    data_take take;
    void *ctx;
} data_pipeline;

/* Processes the blocks from the position of `blocks` to their end; afterwards that is the position after the last block that was consumed.
 * The result does not depend on the threads and files: the first error in the order of the corpus is reported. LS_E_STOPPED after a stop
 * request (core/stop.h). With limits or to count words, files are read one after the other. */
ls_status data_pipeline_run(const data_pipeline *how, ls_blocks *blocks, const data_job_rules *rules);

#endif
