/* safetensors.h - the weight file format, read without trust and written as a stream.
 *
 *   8 bytes       length of the header, little-endian
 *   header        JSON: {"__metadata__": {...}, "<name>": {"dtype", "shape", "data_offsets": [from, to]}, ...}, padded with
 *                 blanks to a multiple of 8
 *   data          the tensors, back to back
 *
 * Reading checks everything before it hands out a pointer: the length, the JSON, each dtype and shape against its offsets
 * (without overflow), and that the tensors cover the data from end to end with no overlap and no hole. */
#ifndef LS_CKPT_SAFETENSORS_H
#define LS_CKPT_SAFETENSORS_H

#include "core/buf.h"
#include "core/err.h"
#include "core/fs.h"
#include "core/json.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_ST_MAX_DIM    8
#define LS_ST_MAX_HEADER ((uint64_t)100 << 20) /* what the format's own library accepts */

typedef struct ls_st_tensor {
    const char *name; /* borrowed from the header (reader) or the caller (writer) */
    ls_dtype dt;
    int n_dim;
    int64_t dim[LS_ST_MAX_DIM];
    const void *data; /* not aligned when read */
    size_t nbytes;
    bool other_dtype;    /* reader: a type we have no name for (BOOL, F8, ...); dt means nothing then */
    const char *dt_word; /* reader: as in the file                               */
} ls_st_tensor;

typedef struct ls_st_file {
    char *path;
    ls_fs_map map;
    json_t *header;
    size_t data_at; /* byte of the file at which tensor data begins */
    int64_t n;
    ls_st_tensor *tensor; /* in the order of their data; empty ones by header order among equals */
} ls_st_file;

/* Maps and checks the file. LS_E_IO, LS_E_FORMAT (the words name file, tensor and the numbers), LS_E_NOMEM. */
ls_status ls_st_open(ls_st_file *f, const char *path);
/* The same over bytes in memory, borrowed; for tests and fuzzing. */
ls_status ls_st_open_bytes(ls_st_file *f, const void *data, size_t n, const char *what);
void ls_st_close(ls_st_file *f); /* takes a zeroed or closed one */
const ls_st_tensor *ls_st_find(const ls_st_file *f, const char *name);

/* Elements of a tensor; 1 for a scalar. */
int64_t ls_st_n(const ls_st_tensor *t);
/* "(2, 3)" */
char *ls_st_shape(const ls_st_tensor *t, char buf[96]);
/* Copies t into dst of type dt (F32, F64, BF16 or F16), converting from any of them, by way of float into the 16-bit ones. False: some
 * other source type. */
bool ls_st_copy(const ls_st_tensor *t, void *dst, ls_dtype dt);
/* The same for its elements [first, first + n) alone, each less `less`. */
bool ls_st_copy_part(const ls_st_tensor *t, int64_t first, int64_t n, double less, void *dst, ls_dtype dt);

/* ---- writing ---- */

/* A plain file being written, hashed as it goes by blocks of LS_SUM_BLOCK bytes. The name may be temporary in a folder of its
 * own; making the folder whole is the caller's. */
#define LS_SUM_BLOCK ((size_t)1 << 20)

typedef struct ls_sum_out ls_sum_out;

typedef struct ls_sum {
    int64_t nbytes;
    uint64_t hash;   /* ls_sum_root of the blocks    */
    uint64_t *block; /* XXH3 of each block, ls_free  */
    int64_t n_block;
} ls_sum;

/* One hash for the file: XXH3 of its blocks' hashes, so that blocks can be hashed by many and in any order. */
uint64_t ls_sum_root(const uint64_t *block, int64_t n);

/* A fresh file with room for `expect` bytes, reserved at once so that a full disk is told at the start (0: not known). */
ls_status ls_sum_create(const char *path, int64_t expect, int *out);

ls_status ls_sum_open(ls_sum_out **out, const char *path, int64_t expect);
ls_status ls_sum_add(ls_sum_out *o, const void *data, size_t n);
ls_status ls_sum_commit(ls_sum_out **o, ls_sum *sum); /* syncs, closes; destroys o also on failure */
void ls_sum_abort(ls_sum_out **o);                    /* takes NULL; the file stays for the caller to remove */
void ls_sum_fini(ls_sum *s);

/* The first bytes of a file of these tensors, in the order given (data is not looked at): length, JSON, blanks. *nbytes:
 * of the whole file. A failed append shows in out. */
void ls_st_header(const ls_st_tensor *t, int64_t n, ls_str *out, int64_t *nbytes);

/* Writes the tensors in the order given, straight from their data. Equal arguments give equal bytes. */
ls_status ls_st_write(const char *path, const ls_st_tensor *t, int64_t n, ls_sum *sum);

#endif
