/* fast.c - the fast CPU backend: its table, the size of its working space, its one line for people.
 *
 * Scratch, by operation (they never overlap in time, so the largest counts):
 *   linear, logits   packed panels of the matrix product | partial column sums
 *   classifier       packed panels | (FAST_LOGIT_ROWS, V) logits | their rows in every part of a vocabulary that is cut
 *   layernorm_bwd    partial dw, db
 *   attention        one head's blocks, for each thread
 *   linear_packed    the rows as its kernels read them (packed.h); a packed classifier: those | the logits */
#include "compute/cpu/cpu_impl.h"
#include "compute/cpu/fast_impl.h"
#include "compute/cpu/gemm.h"
#include "compute/cpu/packed.h"
#include "compute/cpu/simd.h"
#include "core/minmax.h"

#include <stdio.h>
#include <string.h>
#include <stdlib.h>

#define X(op) .op = fast_##op,
const ls_compute_ops ls_compute_cpu = {.name = "cpu", .dtype = LS_F32, .wide = LS_F32, COMPUTE_OPS(X)};
#undef X

size_t fast_gemm_scratch(int n_thread)
{
    return (gemm_scratch(gemm_pick(NULL), n_thread) + 63) & ~(size_t)63;
}

size_t cpu_fast_scratch(const ls_compute *c, const ls_compute_shapes *s)
{
    int64_t R = s->B * s->T, D = s->H > 0 ? s->C / s->H : 0, N = LS_MAX(3 * s->C, s->ffn);
    int64_t rows = R < FAST_LOGIT_ROWS ? R : FAST_LOGIT_ROWS;
    int64_t after_gemm = rows * fast_logit_ld(s->V);
    if (s->n_part > 1) after_gemm += s->n_part * rows * (int64_t)(sizeof(cpu_row) / sizeof(float));
    int64_t alone = D > 0 ? c->n_thread * LS_MAX(simd_attn_floats(s->T, D, s->backward), s->T + 16) : 0;
    if (s->backward) {
        after_gemm = LS_MAX(after_gemm, fast_blocks(R) * N);
        alone = LS_MAX(alone, fast_blocks(R) * 2 * s->C);
    }
    size_t with_gemm = fast_gemm_scratch(c->n_thread) + (size_t)after_gemm * sizeof(float);
    size_t without = (size_t)alone * sizeof(float);
    size_t packed = s->packed ? packed_scratch(LS_MAX(s->C, s->ffn)) + (size_t)after_gemm * sizeof(float) : 0;
    return LS_MAX(packed, LS_MAX(with_gemm, without));
}

void cpu_fast_describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS])
{
    (void)c;
    snprintf(buf, LS_COMPUTE_WORDS, "cpu: %s vectors, %s matmul", simd_pick()->name, gemm_name(gemm_pick(NULL)));
}

static void add_name(char *list, size_t size, const char *name)
{
    size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s", n ? ", " : "", name);
}

ls_status cpu_fast_check(void)
{
    const char *gemm = getenv("LS_GEMM"), *simd = getenv("LS_SIMD");
    char have[160] = "";
    bool usable, found = false;
    if (gemm && *gemm && !gemm_pick(gemm)) {
        for (int i = 0; gemm_list(i, &usable); i++)
            if (usable) add_name(have, sizeof have, gemm_name(gemm_list(i, NULL)));
        return ls_fail(LS_E_ARG, "LS_GEMM=%s: this CPU has %s", gemm, have);
    }
    if (!simd || !*simd) return LS_OK;
    for (int i = 0; simd_list(i, &usable); i++) {
        if (!usable) continue;
        found = found || strcmp(simd, simd_list(i, &usable)->name) == 0;
        add_name(have, sizeof have, simd_list(i, &usable)->name);
    }
    return found ? LS_OK : ls_fail(LS_E_ARG, "LS_SIMD=%s: this CPU has %s", simd, have);
}
