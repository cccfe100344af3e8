/* sink.h - writes the token files of one part ("train", "val"): one file, or shards of a fixed number of tokens.
 *
 * Everything after a mark can be dropped again: a document that turns out to be a duplicate, and what a killed process wrote after its
 * last journal entry. */
#ifndef LS_DATA_SINK_H
#define LS_DATA_SINK_H

#include "core/err.h"
#include "core/hash.h"
#include "core/json.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct data_mark {
    int64_t n_token, n_doc;
    size_t n_done;   /* finished files */
    int64_t in_file; /* tokens of the current one */
    ls_sha256 sha;   /* of the current one */
} data_mark;

typedef struct data_token_file {
    int64_t n_token;
    char sha256[65];
} data_token_file;

typedef struct data_sink {
    char *dir;
    const char *part;
    int64_t shard_tokens; /* 0: one file */
    int fd;
    bool open;
    data_mark at;
    data_token_file *done;
    size_t cap;
    uint16_t *buf; /* not yet written */
    size_t n_buf;
    int64_t sync_at; /* bytes of the current file that the disk was asked to write */
} data_sink;

/* Starts with an empty file, or, with saved, as data_sink_save has written it: the files are compared with it and cut to it, LS_E_FORMAT if
 * they differ. data_sink_close releases it and takes a zeroed one. LS_E_IO, LS_E_NOMEM. */
ls_status data_sink_open(data_sink *s, const char *dir, const char *part, int64_t shard_tokens, const json_t *saved);
void data_sink_close(data_sink *s);
ls_status data_sink_add(data_sink *s, const uint16_t *token, size_t n);
ls_status data_sink_flush(data_sink *s);
/* The position now; what was added is written. */
ls_status data_sink_mark(data_sink *s, data_mark *m);
/* Drops what was added after the mark. */
ls_status data_sink_rewind(data_sink *s, const data_mark *m);
/* The mark after the first n_token tokens, from the files; n_doc is that of now. */
ls_status data_sink_mark_at(data_sink *s, int64_t n_token, data_mark *m);
/* Appends the tokens from n_token on to another sink. */
ls_status data_sink_copy_tail(data_sink *s, int64_t n_token, data_sink *to);
/* Writes and syncs everything; done[0, at.n_done) are the files. */
ls_status data_sink_finish(data_sink *s);
/* After data_sink_finish: gives each file the header of llm.c. LS_E_CONFIG if a file has more tokens than it can state. */
ls_status data_sink_add_headers(data_sink *s);
void data_sink_file_name(const data_sink *s, size_t k, char name[64]);

/* A position as a member of a JSON object. */
void data_sink_save(const data_sink *s, const data_mark *m, ls_jsonw *w);

#endif
