/* tree.c - sums over ranks in the one tree: split at the largest power of two below the number, left + right.
 *
 *   n = 5    ((0+1) + (2+3)) + 4
 *
 * Elements are taken in blocks that stay in the first-level cache, so each source is read once. 16-bit reals are summed in float and rounded
 * once, at the root of the tree: partial sums that leave a worker are float. */
#include "comm/comm_impl.h"

#include "core/half.h"

#define BLOCK 1024

#define SAME(x) (x)

#define TREE(name, type, from, load)                                                      \
    static void name(type *out, const void *const *src, int n_src, int64_t at, int64_t n) \
    {                                                                                     \
        const from *a = (const from *)src[0] + at;                                        \
        if (n_src == 1) {                                                                 \
            if ((const void *)out == (const void *)a) return;                             \
            for (int64_t i = 0; i < n; i++) out[i] = load(a[i]);                          \
            return;                                                                       \
        }                                                                                 \
        if (n_src == 2) {                                                                 \
            const from *b = (const from *)src[1] + at;                                    \
            for (int64_t i = 0; i < n; i++) out[i] = load(a[i]) + load(b[i]);             \
            return;                                                                       \
        }                                                                                 \
        int left = 1;                                                                     \
        while (left * 2 < n_src) left *= 2;                                               \
        type l[BLOCK], r[BLOCK];                                                          \
        name(l, src, left, at, n);                                                        \
        name(r, src + left, n_src - left, at, n);                                         \
        for (int64_t i = 0; i < n; i++) out[i] = l[i] + r[i];                             \
    }

TREE(tree_f32, float, float, SAME)
TREE(tree_f64, double, double, SAME)
TREE(tree_i64, int64_t, int64_t, SAME)
TREE(tree_bf16, float, uint16_t, ls_from_bf16)
TREE(tree_f16, float, uint16_t, ls_from_f16)

ls_dtype comm_sum_type(ls_dtype dt)
{
    return dt == LS_BF16 || dt == LS_F16 ? LS_F32 : dt;
}

static void narrow(uint16_t *out, const float *x, int64_t n, ls_dtype dt)
{
    if (dt == LS_BF16)
        for (int64_t i = 0; i < n; i++) out[i] = ls_to_bf16(x[i]);
    else
        for (int64_t i = 0; i < n; i++) out[i] = ls_to_f16(x[i]);
}

/* A block of float or 16-bit sources, to float or 16 bits. */
static void real_block(void *out, ls_dtype out_dt, const void *const *src, int n_src, int64_t at, int64_t n,
                       ls_dtype dt)
{
    float wide[BLOCK], *sum = out_dt == LS_F32 ? (float *)out + at : wide;
    switch (dt) {
    case LS_BF16: tree_bf16(sum, src, n_src, at, n); break;
    case LS_F16: tree_f16(sum, src, n_src, at, n); break;
    default: tree_f32(sum, src, n_src, at, n); break;
    }
    if (out_dt != LS_F32) narrow((uint16_t *)out + at, wide, n, out_dt);
}

void comm_tree_sum(void *out, ls_dtype out_dt, const void *const *src, int n_src, int64_t n, ls_dtype dt)
{
    LS_ASSERT(out_dt == dt || comm_sum_type(out_dt) == comm_sum_type(dt));
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t k = n - at < BLOCK ? n - at : BLOCK;
        switch (dt) {
        case LS_F32:
        case LS_BF16:
        case LS_F16: real_block(out, out_dt, src, n_src, at, k, dt); break;
        case LS_F64: tree_f64((double *)out + at, src, n_src, at, k); break;
        case LS_I64: tree_i64((int64_t *)out + at, src, n_src, at, k); break;
        default: LS_ASSERT(dt == LS_F32); /* no other type is summed */
        }
    }
}
