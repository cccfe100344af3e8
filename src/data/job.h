/* job.h - processes one block: encodes it to tokens or counts its words. Any thread can run it, with its own encoder. */
#ifndef LS_DATA_JOB_H
#define LS_DATA_JOB_H

#include "data/blocks.h"
#include "data/tokenizer.h"
#include "data/words.h"

typedef enum ls_bad_utf8 {
    LS_BAD_UTF8_ERROR,
    LS_BAD_UTF8_REPLACE, /* by U+FFFD */
    LS_BAD_UTF8_KEEP,    /* bytes as they are */
} ls_bad_utf8;

typedef struct data_job_rules {
    const ls_tokenizer *tok; /* NULL: count words */
    const char *text_key;
    ls_bad_utf8 bad_utf8;
} data_job_rules;

typedef struct data_job {
    ls_text_block block;
    ls_words words;  /* counting */
    ls_ids ids;      /* encoding: of the whole block, with end-of-text after each document that ends in it */
    uint16_t *token; /* the same, in the type of the token file */
    size_t cap_token;
    size_t *doc_end; /* token count at the end of each document that ends in the block */
    size_t n_doc, cap_doc;
    int64_t n_text_byte; /* of documents, after unpacking JSON */
    ls_str text, fixed;
    ls_status st;
    char *error; /* error message; owned */
    int state;   /* used by the worker pool */
} data_job;

void data_job_fini(data_job *j);

/* Fills the results from j->block. A failure is stored in j->st and j->error and reported in the order of the jobs. */
void data_job_run(data_job *j, const data_job_rules *rules, ls_encoder *e);

#endif
