/* prepare.h - converts a text corpus to token files: train.bin (or shards), val.bin, tokenizer.json, meta.json.
 *
 * Token files are unsigned 16-bit ids, little-endian, without a header. Every document is followed by the end-of-text id.
 * Documents are dropped if they are too short or too long (in Unicode characters) or equal an earlier one, also one of the training inputs
 * if they are validation inputs. Document k below is the k-th that is kept.
 * Validation data:
 *   with validation inputs: all their documents;
 *   else, with a fraction f: document k (from 0) if floor((k + 1) f) > floor(k f), that is every (1/f)-th document;
 *   with fewer than 1/f documents: the last floor(n f) of the n tokens, so that a single long text works too.
 * The files depend only on the corpus and the settings, not on the number of threads, and not on whether the work was interrupted and
 * resumed. The output folder is replaced as a whole (data/stage.h). */
#ifndef LS_DATA_PREPARE_H
#define LS_DATA_PREPARE_H

#include "data/job.h"

typedef struct ls_prepare_progress {
    const char *phase;   /* "counting words", "training", "encoding"                    */
    int64_t done, total; /* bytes of the input files; total -1 when unknown            */
    int64_t done_start;  /* done by an earlier process, which this one continues       */
    int64_t text_bytes;  /* of this process */
    int64_t n_token;
    double seconds; /* of this phase and process */
} ls_prepare_progress;

typedef struct ls_prepare_opts {
    const ls_inputs *train;
    const ls_inputs *val;    /* NULL or empty: use the fraction                        */
    const ls_tokenizer *tok; /* NULL: train one on the training inputs                 */
    int train_vocab;         /* its size, including bytes and end-of-text*/
    int64_t train_min_count;
    int64_t train_bytes; /* use only the first bytes of text; 0: all*/
    const char *text_key;
    ls_bad_utf8 bad_utf8;
    double val_fraction;
    int64_t limit_docs, limit_val_docs; /* first documents only, before any is dropped; 0: all */
    int64_t min_chars, max_chars;       /* of a document; max 0: no limit */
    bool dedup;                         /* drop documents that equal an earlier one (data/seen.h) */
    int64_t shard_tokens;               /* tokens of a training file; 0: one file */
    bool llmc;                          /* token files have the header of llm.c */
    bool resume;                        /* continue unfinished work in the same folder, if there is any */
    double journal_seconds; /* between entries of the journal; below 0: none (inputs that cannot be read again) */
    int threads;
    int files; /* input files read at the same time, at most; 0: as many as keep the threads busy */
    const char *out_dir;
    const char *command;                                       /* for meta.json; may be NULL */
    void (*progress)(void *ctx, const ls_prepare_progress *p); /* may be NULL; called often */
    void *progress_ctx;
} ls_prepare_opts;

typedef struct ls_prepare_result {
    int64_t train_token, val_token, train_doc, val_doc;
    int64_t text_bytes;                   /* of all documents */
    int64_t n_short, n_long, n_duplicate; /* documents dropped */
    int n_vocab, n_merge, train_files;
    bool resumed;                                  /* earlier work was continued */
    bool val_is_tail;                              /* whole documents do not give val_fraction: split at a token */
    char train_sha256[65], val_sha256[65];         /* "": shards, no validation */
    double seconds, train_seconds, encode_seconds; /* total; training of the vocabulary; encoding */
} ls_prepare_result;

/* LS_E_CONFIG (a vocabulary beyond 16 bits, one without end-of-text, other settings than those of the work to resume), LS_E_FORMAT (bad
 * text, an empty corpus), LS_E_IO, LS_E_NOMEM, LS_E_STOPPED. On failure none of the files is touched. */
ls_status ls_prepare(const ls_prepare_opts *o, ls_prepare_result *result);

/* Whether out_dir has all files of the same command and version, undamaged, newer than every input and than `tokenizer` (a file or folder;
 * other names are ignored), and there is no unfinished work. The result is then read from meta.json. */
bool ls_prepare_complete(const ls_prepare_opts *o, const char *tokenizer, ls_prepare_result *result);

#endif
