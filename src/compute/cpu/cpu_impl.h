/* cpu_impl.h - what the CPU backends share: their tables, the size of their working space, and dropout's arithmetic. */
#ifndef LS_COMPUTE_CPU_CPU_IMPL_H
#define LS_COMPUTE_CPU_CPU_IMPL_H

#include "compute/compute.h"

#include <math.h>

extern const ls_compute_ops ls_compute_ref_f32, ls_compute_ref_f64, ls_compute_cpu;

size_t cpu_ref_scratch(const ls_compute *c, const ls_compute_shapes *s);
size_t cpu_fast_scratch(const ls_compute *c, const ls_compute_shapes *s);
void cpu_fast_describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS]);
/* LS_E_ARG when LS_GEMM or LS_SIMD names a kernel that this CPU does not have (for this type of operands); the message lists those it has. */
ls_status cpu_fast_check(bool bf16);
/* impl of a backend opened for bf16. */
const void *cpu_fast_bf16(void);
/* impl for sizes: the kernel of this name, usable here or not; else its emulated form, whose sizes are the same; else NULL. */
const void *cpu_fast_named(bool bf16, const char *kernel);

/* The operation `hash` of host memory, for any backend. */
ls_status cpu_hash(const ls_compute *c, uint64_t *out, const void *x, size_t nbytes, bool more);

/* The operation `decide`, for any backend whose memory is the host's. */
ls_status cpu_decide(const ls_decide *a);

/* Element i survives iff its 32 random bits are >= this: the smallest integer that is not below p * 2^32. */
static inline uint32_t drop_threshold(ls_drop d)
{
    return (uint32_t)ceil((double)d.p * 4294967296.0);
}

/* What a part of the vocabulary knows of a row of logits: the largest, the sum of exponentials of their distances to it, and the
 * target's (0: it is elsewhere). */
typedef struct cpu_row {
    double top, sum, right;
} cpu_row;
#define CPU_ROW_N 3 /* doubles */

static inline int cpu_n_part(int n_part)
{
    return n_part > 1 ? n_part : 1;
}

/* The same of the whole row, from its parts in order; rows of one part are `step` from those of the next. */
static inline cpu_row cpu_join_row(const cpu_row *part, int n_part, int64_t step)
{
    cpu_row row = part[0];
    if (n_part == 1) return row;
    for (int k = 1; k < n_part; k++) row.top = fmax(row.top, part[k * step].top);
    row.sum = row.right = 0;
    for (int k = 0; k < n_part; k++) {
        row.sum += part[k * step].sum * exp(part[k * step].top - row.top);
        row.right += part[k * step].right;
    }
    return row;
}

/* The row of an id in a table that begins with row `first` and has V of them; -1: it is elsewhere. */
static inline int64_t cpu_id(int32_t id, int64_t first, int64_t V)
{
    const int64_t row = id - first;
    return row >= 0 && row < V ? row : -1;
}

/* Element i is not decayed. */
static inline bool cpu_plain(const ls_adamw *h, int64_t i)
{
    for (int k = 0; k < h->n_plain; k++)
        if (i >= h->plain[k][0] && i < h->plain[k][1]) return true;
    return false;
}

/* What a survivor is multiplied by. */
static inline double drop_scale(ls_drop d)
{
    return 1.0 / (1.0 - (double)d.p);
}

#endif
