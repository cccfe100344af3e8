/* buf.h - element types and plain views. A view borrows n elements; it owns nothing. */
#ifndef LS_CORE_BUF_H
#define LS_CORE_BUF_H

#include <stddef.h>
#include <stdint.h>

/* clang-format off */
/*        name        bytes   word of safetensors and of our files */
#define LS_DTYPE_LIST(X)      \
    X(LS_F32,  4, "F32")      \
    X(LS_F64,  8, "F64")      \
    X(LS_BF16, 2, "BF16")     \
    X(LS_F16,  2, "F16")      \
    X(LS_I64,  8, "I64")      \
    X(LS_I32,  4, "I32")      \
    X(LS_U16,  2, "U16")      \
    X(LS_U8,   1, "U8")
/* clang-format on */

typedef enum ls_dtype {
#define X(name, nbytes, word) name,
    LS_DTYPE_LIST(X)
#undef X
} ls_dtype;

static inline size_t ls_dtype_nbytes(ls_dtype dt)
{
    switch (dt) {
#define X(name, nbytes, word) \
    case name: return nbytes;
        LS_DTYPE_LIST(X)
#undef X
    }
    return 0;
}

static inline const char *ls_dtype_word(ls_dtype dt)
{
    switch (dt) {
#define X(name, nbytes, word) \
    case name: return word;
        LS_DTYPE_LIST(X)
#undef X
    }
    return "?";
}

typedef struct ls_view {
    void *data;
    int64_t n;
    ls_dtype dt;
} ls_view;

#endif
