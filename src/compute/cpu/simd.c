/* simd.c - which table of vector kernels this CPU runs. */
#include "compute/cpu/simd.h"

#include "compute/cpu/cpu_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    const simd_ops *ops;
    bool usable;
} entry;

static entry entry_at(int i) /* narrowest first */
{
    switch (i) {
    case 0: return (entry){&simd_generic, true};
#if defined(__aarch64__)
    case 1: return (entry){&simd_neon, true};
#elif defined(__x86_64__)
    case 1: return (entry){&simd_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")};
    case 2:
        return (entry){&simd_avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")};
#endif
    default: return (entry){NULL, false};
    }
}

const simd_ops *simd_list(int i, bool *usable)
{
    entry e = entry_at(i);
    *usable = e.usable;
    return e.ops;
}

const simd_ops *simd_pick(void)
{
    const char *want = getenv("LS_SIMD");
    const simd_ops *best = NULL;
    for (int i = 0; entry_at(i).ops; i++) {
        entry e = entry_at(i);
        if (!e.usable) continue;
        best = e.ops;
        if (want && strcmp(want, e.ops->name) == 0) break;
    }
    return best;
}

simd_drop simd_drop_of(ls_drop d)
{
    if (d.p <= 0) return (simd_drop){.on = false, .scale = 1};
    return (simd_drop){.on = true,
                       .threshold = drop_threshold(d),
                       .key_lo = (uint32_t)d.key,
                       .key_hi = (uint32_t)(d.key >> 32),
                       .scale = (float)drop_scale(d)};
}

/* For the widest tile (NR 32) of any table. Forward: k^T, v; q, o; one block. Backward: k^T, v^T, k, dk, dv; q, dy, dq;
 * two blocks. */
int64_t simd_attn_floats(int64_t T, int64_t D, bool backward)
{
    const int64_t bk = SIMD_ATTN_BLOCK;
    int64_t Tp = (T + bk - 1) / bk * bk, Dp = (D + 31) / 32 * 32;
    return backward ? 5 * Tp * Dp + 3 * bk * Dp + 2 * bk * bk : 2 * Tp * Dp + 2 * bk * Dp + bk * bk;
}
