/* tree.c - sums over ranks in the one tree: split at the largest power of two below the number, left + right.
 *
 *   n = 5    ((0+1) + (2+3)) + 4
 *
 * Elements are taken in blocks that stay in the first-level cache, so each source is read once. */
#include "comm/comm_impl.h"

#include <string.h>

#define BLOCK 1024

#define TREE(type, name)                                                                                           \
    static void name(type *out, const void *const *src, int n_src, int64_t at, int64_t n)                          \
    {                                                                                                              \
        if (n_src == 1) {                                                                                          \
            if (out != (const type *)src[0] + at) memcpy(out, (const type *)src[0] + at, (size_t)n * sizeof *out); \
            return;                                                                                                \
        }                                                                                                          \
        if (n_src == 2) {                                                                                          \
            const type *a = (const type *)src[0] + at, *b = (const type *)src[1] + at;                             \
            for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];                                                  \
            return;                                                                                                \
        }                                                                                                          \
        int left = 1;                                                                                              \
        while (left * 2 < n_src) left *= 2;                                                                        \
        type a[BLOCK], b[BLOCK];                                                                                   \
        name(a, src, left, at, n);                                                                                 \
        name(b, src + left, n_src - left, at, n);                                                                  \
        for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];                                                      \
    }

TREE(float, tree_f32)
TREE(double, tree_f64)
TREE(int64_t, tree_i64)

void comm_tree_sum(void *out, const void *const *src, int n_src, int64_t n, ls_dtype dt)
{
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t k = n - at < BLOCK ? n - at : BLOCK;
        switch (dt) {
        case LS_F32: tree_f32((float *)out + at, src, n_src, at, k); break;
        case LS_F64: tree_f64((double *)out + at, src, n_src, at, k); break;
        case LS_I64: tree_i64((int64_t *)out + at, src, n_src, at, k); break;
        default: LS_ASSERT(dt == LS_F32 || dt == LS_F64 || dt == LS_I64);
        }
    }
}
