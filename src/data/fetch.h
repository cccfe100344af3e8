/* fetch.h - downloads a file over HTTP, continues after interruptions, checks its size and SHA-256; and the data sets.
 *
 *   FILE.part   what has arrived; a later call continues it with a range request, or starts again if the server has no ranges
 *   FILE        complete and checked */
#ifndef LS_DATA_FETCH_H
#define LS_DATA_FETCH_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ls_fetch_opts {
    const char *url, *path;
    const unsigned char *packed; /* not NULL: npacked bytes of zstd, which are unpacked instead of a download */
    size_t npacked;
    const char *sha256; /* NULL: not known */
    int64_t nbytes;     /* -1: not known   */
    int64_t max_bytes;  /* if it is not known; 0: no limit */
    int retries;        /* attempts in a row that bring nothing, after the first */
    void (*progress)(void *ctx, int64_t done, int64_t total, double bytes_per_sec); /* may be NULL; total -1: unknown */
    void *progress_ctx;
} ls_fetch_opts;

typedef struct ls_fetch_result {
    char sha256[65];
    int64_t nbytes;
    int64_t fetched; /* bytes that came in this call */
    int n_broken;    /* connections that broke */
    bool had_it;     /* the file existed and is right */
} ls_fetch_result;

/* LS_E_IO: cannot be downloaded or written; LS_E_FORMAT: another size or checksum (bytes of an answer with another size are not kept, and
 * FILE.part is removed if it is complete with another checksum; a FILE of the user stays);
 * LS_E_STOPPED after a stop request. */
ls_status ls_fetch(const ls_fetch_opts *o, ls_fetch_result *r);

/* ---- data sets ---- */

#define LS_DATASET_FILES 3

typedef struct ls_dataset_file {
    const char *name, *url, *sha256; /* url NULL: it comes with the program */
    int64_t nbytes;
    const unsigned char *packed;
    const size_t *npacked;
} ls_dataset_file;

typedef struct ls_dataset {
    const char *name, *what;
    const char *by_hand; /* not NULL: it cannot be downloaded without an account or a choice; where to get it */
    const char *next;    /* what to do with the files */
    int n_file;
    ls_dataset_file file[LS_DATASET_FILES];
} ls_dataset;

extern const ls_dataset ls_datasets[];
extern const size_t ls_n_dataset;

#endif
