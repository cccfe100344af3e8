/* sources.h - the token files that a run reads, as text.
 *
 *   FILE                 one token file
 *   DIR/train_*.bin      shards: train_000.bin, train_001.bin, ... in the order of their numbers, read as one stream
 *   A:0.7,B:0.3          a blend of the above with weights; without weights, in proportion to their sizes
 *
 * A blend can also be a file: {"blend": [{"data": "A", "weight": 0.7}, ...]}, with paths from the folder of the file. A text that is the
 * name of an existing file or folder is that one, whatever characters it has. */
#ifndef LS_DATA_SOURCES_H
#define LS_DATA_SOURCES_H

#include "core/err.h"
#include "core/str.h"

#include <stdbool.h>
#include <stddef.h>

#define LS_MAX_SOURCE 256

typedef struct ls_data_source {
    char *path;
    double weight; /* 0: none was given */
} ls_data_source;

typedef struct ls_data_sources {
    ls_data_source *item;
    size_t n, cap;
} ls_data_sources;

/* LS_E_ARG (a weight that is not a positive number, weights for some sources only), LS_E_NOMEM; a blend file also LS_E_IO and
 * LS_E_FORMAT. Whether the paths exist is not checked. */
ls_status ls_sources_parse(const char *text, ls_data_sources *out);
ls_status ls_sources_load(const char *blend_file, ls_data_sources *out);
ls_status ls_sources_add(ls_data_sources *s, const char *path, double weight);
void ls_sources_fini(ls_data_sources *s);
/* The text that ls_sources_parse reads. LS_E_UNSUPPORTED: a path in a blend has a comma. */
ls_status ls_sources_text(const ls_data_sources *s, ls_str *out);
/* The same sources with absolute paths, where they exist. LS_E_ARG, LS_E_NOMEM, LS_E_UNSUPPORTED. */
ls_status ls_sources_absolute(const char *text, ls_str *out);

/* A short name: "train" for data/train.bin and data/train_*.bin, "a+b" (the folders) for a blend. */
void ls_sources_name(const char *text, char *name, size_t nbytes);

bool ls_is_shards(const char *path);                        /* the last part has a * */
bool ls_shards_exist(const char *dir, const char *part);    /* <dir>/<part>_000.bin */
void ls_shard_name(char name[64], const char *part, int k); /* train_000.bin */
/* The files of a pattern; free with ls_fs_list_free. LS_E_IO: none, or a number is missing. */
ls_status ls_shards_list(const char *pattern, char ***paths, size_t *n);

#endif
