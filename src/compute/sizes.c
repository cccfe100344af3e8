/* sizes.c - the CUDA backend without a device: what a plan asks it (types, scratch, whether gradients are added in place), by the formulas that
 * the backend itself uses (compute/cuda/scratch.h). Its device takes no memory and has nothing to wait for. */
#include "compute/plugin.h"

#include "compute/cuda/scratch.h"
#include "core/minmax.h"

#include <stdio.h>

static size_t scratch(const ls_compute *c, const ls_compute_shapes *s)
{
    const ls_dtype dt = c->ops->dtype;
    const int64_t R = s->B * s->T, rows = s->V ? cu_logits_rows(dt, R, s->V, s->n_part, CU_LOGITS_BYTES) : 0;
    size_t most = cu_logits_nbytes(dt, rows, s->V, s->n_part);
    if (s->H) most = LS_MAX(most, cu_flash_nbytes(s->B, s->T, s->H, s->backward));
    if (!s->backward) return cu_scratch_nbytes(most);
    most = LS_MAX(most, cu_embed_bwd_nbytes(R, s->C));
    most = LS_MAX(most, cu_norm_bwd_nbytes(R, s->C));
    if (s->fp8) most = LS_MAX(most, cu_quantize_nbytes(R, LS_MAX(s->ffn, 3 * s->C)));
    return cu_scratch_nbytes(LS_MAX(most, cu_sums_nbytes(R, LS_MAX(s->ffn, 3 * s->C))));
}

static bool adds_alike(const ls_compute *c, const ls_compute_shapes *s)
{
    const int64_t R = s->B * s->T;
    return cu_logits_rows(c->ops->dtype, R, s->V, s->n_part, CU_LOGITS_BYTES) >= R;
}

static void describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS])
{
    snprintf(buf, LS_COMPUTE_WORDS, "cuda: sizes in %s, no device", ls_dtype_word(c->ops->dtype));
}

static ls_status none(void *ctx)
{
    (void)ctx;
    return LS_OK;
}

static const ls_device nowhere = {.sync = none};

#define OPS(type)                                                               \
    {                                                                           \
        .name = "cuda", .dtype = type, .wide = LS_F32, .adds_alike = adds_alike \
    }
static const ls_compute_ops ops[] = {OPS(LS_F32), OPS(LS_BF16), OPS(LS_F16)};
#undef OPS

static const ls_compute_plugin sizes = {.scratch = scratch, .describe = describe};

ls_status ls_compute_open_sizes(ls_compute *c, ls_dtype dtype)
{
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (ops[i].dtype != dtype) continue;
        *c = (ls_compute){.ops = &ops[i], .n_thread = 1, .device = &nowhere, .backend = &sizes};
        return LS_OK;
    }
    return ls_fail(LS_E_UNSUPPORTED, "cuda does not support the type %s; use F32, BF16 or F16", ls_dtype_word(dtype));
}
