/* safetensors.h - reader and writer of the safetensors format; the reader does not trust its input.
 *
 *   8 bytes       length of the header, little-endian
 *   header        JSON: {"__metadata__": {...}, "<name>": {"dtype", "shape", "data_offsets": [from, to]}, ...}, padded with
 *                 blanks to a multiple of 8
 *   data          the tensors without gaps
 *
 * The reader checks everything before it returns a pointer: the length, the JSON, each dtype and shape against its offsets
 * (without overflow), and that the tensors cover the data without overlap or hole. */
#ifndef LS_CKPT_SAFETENSORS_H
#define LS_CKPT_SAFETENSORS_H

#include "core/buf.h"
#include "core/err.h"
#include "core/fs.h"
#include "core/json.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_ST_MAX_DIM    8
#define LS_ST_MAX_HEADER ((uint64_t)100 << 20) /* limit of the reference library */

typedef struct ls_st_tensor {
    const char *name; /* borrowed from the header (reader) or the caller (writer) */
    ls_dtype dt;
    int n_dim;
    int64_t dim[LS_ST_MAX_DIM];
    const void *data; /* not aligned when read */
    size_t nbytes;
    bool other_dtype;    /* reader: a type without an ls_dtype (BOOL, F8, ...); dt is not valid then */
    const char *dt_word; /* reader: as in the file                               */
} ls_st_tensor;

typedef struct ls_st_file {
    char *path;
    ls_fs_map map;
    json_t *header;
    size_t data_at; /* byte of the file at which tensor data begins */
    int64_t n;
    ls_st_tensor *tensor; /* in the order of their data; empty tensors at equal offsets in header order */
} ls_st_file;

/* Maps and checks the file. LS_E_IO, LS_E_FORMAT (the message has file, tensor and numbers), LS_E_NOMEM. */
ls_status ls_st_open(ls_st_file *f, const char *path);
/* The same for bytes in memory (borrowed). */
ls_status ls_st_open_bytes(ls_st_file *f, const void *data, size_t n, const char *what);
void ls_st_close(ls_st_file *f); /* takes a zeroed or closed one */
const ls_st_tensor *ls_st_find(const ls_st_file *f, const char *name);

/* Elements of a tensor; 1 for a scalar. */
int64_t ls_st_n(const ls_st_tensor *t);
bool ls_st_is_float(const ls_st_tensor *t); /* F32, F16, BF16 or F64 */
/* "(2, 3)" */
char *ls_st_shape(const ls_st_tensor *t, char buf[96]);
/* Copies the elements [first, first + n) of t, minus `less`, into dst of type dt (F32, F64, BF16 or F16). t is a float tensor
 * (ls_st_is_float); 16-bit ones are converted through float. */
void ls_st_copy_part(const ls_st_tensor *t, int64_t first, int64_t n, double less, void *dst, ls_dtype dt);

/* Rows [first, first + n) of the transpose of a matrix t: row j of the result is column j of t. */
void ls_st_copy_transposed(const ls_st_tensor *t, int64_t first, int64_t n, void *dst, ls_dtype dt);

/* The header of a file of these tensors in the given order (data is not read): length, JSON, padding. *nbytes: size of the
 * whole file. out->failed is set if out of memory. */
void ls_st_header(const ls_st_tensor *t, int64_t n, ls_str *out, int64_t *nbytes);

#endif
