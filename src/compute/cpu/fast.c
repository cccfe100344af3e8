/* fast.c - the fast CPU backend: its table, the size of its working space, its one line for people.
 *
 * Scratch, by operation (they never overlap in time, so the largest counts):
 *   linear, logits   packed panels of the matrix product | partial column sums
 *   classifier       packed panels | (fast_logit_rows, V) logits | their rows in every part of a vocabulary that is cut
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

const gemm_kernel *fast_kernel(const ls_compute *c)
{
    return c->impl ? c->impl : gemm_pick(false, NULL);
}

size_t fast_gemm_scratch(const ls_compute *c)
{
    return (gemm_scratch(fast_kernel(c), c->n_most) + 63) & ~(size_t)63;
}

int64_t fast_logit_rows(const ls_compute *c, int64_t R, int64_t n_part)
{
    /* parts of a vocabulary exchange rows of every chunk, and may have other CPUs: 512 for all of them */
    return LS_MIN(R, n_part < 2 ? gemm_logit_rows(fast_kernel(c)) : 512);
}

/* Floats of one thread's attention. */
static int64_t attn_floats(const ls_compute *c, const ls_compute_shapes *s, int64_t D)
{
    const gemm_kernel *k = fast_kernel(c);
    return gemm_is_bf16(k) ? fast_attn_bf16_floats(k, s->T, D, s->backward) : simd_attn_floats(s->T, D, s->backward);
}

size_t cpu_fast_scratch(const ls_compute *c, const ls_compute_shapes *s)
{
    int64_t R = s->B * s->T, D = s->H > 0 ? s->C / s->H : 0, N = LS_MAX(3 * s->C, s->ffn);
    int64_t rows = fast_logit_rows(c, R, s->n_part);
    int64_t after_gemm = rows * fast_logit_ld(s->V);
    if (s->n_part > 1) after_gemm += s->n_part * rows * (int64_t)(sizeof(cpu_row) / sizeof(float));
    int64_t alone = D > 0 ? c->n_most * LS_MAX(attn_floats(c, s, D), s->T + 16) : 0;
    if (s->backward) {
        after_gemm = LS_MAX(after_gemm, fast_blocks(R) * N);
        alone = LS_MAX(alone, fast_blocks(R) * 2 * s->C);
    }
    size_t with_gemm = fast_gemm_scratch(c) + (size_t)after_gemm * sizeof(float);
    size_t without = (size_t)alone * sizeof(float);
    size_t packed = s->packed ? packed_scratch(c, LS_MAX(s->C, s->ffn)) + (size_t)after_gemm * sizeof(float) : 0;
    return LS_MAX(packed, LS_MAX(with_gemm, without));
}

void cpu_fast_describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS])
{
    const gemm_kernel *k = fast_kernel(c);
    snprintf(buf, LS_COMPUTE_WORDS, "cpu: %s vectors, %s matmul%s", simd_pick()->name, gemm_name(k),
             !gemm_is_emulated(k)                ? ""
             : gemm_is_emulated(gemm_best(true)) ? " (slow: this CPU has no bf16 instructions)"
                                                 : " (slow: LS_GEMM names an emulated kernel)");
}

const char *ls_compute_kernel(const char *described, char name[LS_KERNEL_NAME])
{
    const char *end = strstr(described, " matmul"), *at = end;
    while (at && at > described && at[-1] != ' ') at--;
    snprintf(name, LS_KERNEL_NAME, "%.*s", at ? (int)(end - at) : 0, at ? at : "");
    return name;
}

static void add_name(char *list, size_t size, const char *name)
{
    size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s", n ? ", " : "", name);
}

static void add_kernels(char *list, size_t size, bool bf16)
{
    bool usable;
    const gemm_kernel *k;
    for (int i = 0; (k = gemm_list(i, &usable)); i++) /* of kernels with one name the first is used */
        if (usable && gemm_is_bf16(k) == bf16 && gemm_pick(bf16, gemm_name(k)) == k) add_name(list, size, gemm_name(k));
}

/* LS_GEMM, which names no kernel of this type. */
static ls_status refuse_kernel(const char *name, bool bf16)
{
    char fp32[240] = "", half[240] = "";
    add_kernels(fp32, sizeof fp32, false);
    add_kernels(half, sizeof half, true);
    if (gemm_pick(!bf16, name))
        return ls_fail(LS_E_ARG, "LS_GEMM=%s: this CPU has %s for %s; that kernel is for --precision %s", name,
                       bf16 ? half : fp32, bf16 ? "bf16" : "fp32", bf16 ? "fp32" : "bf16");
    return ls_fail(
        LS_E_ARG,
        "LS_GEMM=%.40s names no kernel: this CPU has %s for fp32 and %s for bf16; unset it, or use one of these", name,
        fp32, half);
}

static ls_status check_simd(const char *name)
{
    char have[240] = "";
    bool usable;
    for (int i = 0; simd_list(i, &usable); i++) {
        if (!usable) continue;
        if (strcmp(name, simd_list(i, &usable)->name) == 0) return LS_OK;
        add_name(have, sizeof have, simd_list(i, &usable)->name);
    }
    return ls_fail(LS_E_ARG, "LS_SIMD=%.40s names no kernels: this CPU has %s; unset it, or use one of these", name,
                   have);
}

ls_status cpu_fast_check(bool bf16)
{
    const char *gemm = getenv("LS_GEMM"), *simd = getenv("LS_SIMD");
    if (simd && *simd) LS_TRY(check_simd(simd)); /* first: it is the same for every type */
    return gemm && *gemm && !gemm_pick(bf16, gemm) ? refuse_kernel(gemm, bf16) : LS_OK;
}

const void *cpu_fast_bf16(void)
{
    return gemm_pick(true, NULL);
}

const void *cpu_fast_named(bool bf16, const char *kernel)
{
    const gemm_kernel *k, *emulated = NULL;
    const size_t n = strlen(kernel);
    for (int i = 0; (k = gemm_list(i, NULL)); i++) {
        if (gemm_is_bf16(k) != bf16 || strncmp(gemm_name(k), kernel, n)) continue;
        if (!gemm_name(k)[n]) return k;
        if (n && !strcmp(gemm_name(k) + n, "-emulated")) emulated = k;
    }
    return emulated;
}

static ls_cpu_bf16 describe_bf16(const gemm_kernel *k)
{
    if (!k) return (ls_cpu_bf16){NULL, false, false};
    return (ls_cpu_bf16){gemm_name(k), !gemm_is_emulated(k), gemm_takes_panels(k)};
}

ls_cpu_bf16 ls_compute_cpu_bf16(void)
{
    return describe_bf16(gemm_best(true));
}

ls_cpu_bf16 ls_compute_cpu_bf16_used(void)
{
    return describe_bf16(gemm_pick(true, NULL));
}
