/* cuda.c - opens the backend: a device and its stream, the libraries' handles on it, and a table of operations for the type asked for. */
#include "compute/cuda/cuda_impl.h"

#include "compute/cuda/kernels/kernels.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/str.h"

#include <stdio.h>
#include <stdlib.h>

#define MOST_MIB (1 << 20) /* of LS_CLASSIFIER_MIB */

/* Before the device is opened: a value that means nothing would be taken for the default. LS_ATTENTION and LS_FLASH_WGMMA: attention.c. */
static ls_status check_environment(void)
{
    static const struct {
        const char *name, *values, *words;
    } row[] = {{"LS_CUDA_GRAPHS", "0|1", "0 or 1"},
               {"LS_GEMM_TUNE", "0|1|again", "0, 1 or again"},
               {"LS_CUPTI", "graph|off", "graph or off"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *text = getenv(row[i].name);
        if (text && *text && !ls_one_of(row[i].values, text, false))
            return ls_fail(LS_E_CONFIG, "%s=%.40s is not known; use %s", row[i].name, text, row[i].words);
    }
    const char *text = getenv("LS_CLASSIFIER_MIB");
    int64_t mib = 0;
    if (text && *text && (!ls_parse_i64(text, &mib) || mib < 1 || mib > MOST_MIB))
        return ls_fail(LS_E_CONFIG, "LS_CLASSIFIER_MIB=%.40s must be a whole number from 1 to %d", text, MOST_MIB);
    return LS_OK;
}

/* What the card does not have (compute/card.h). */
static ls_status check_card(cuda *x, const ls_compute_open_opts *o)
{
    const ls_card *card = cu_card();
    const bool no_bf16 = o->dtype == LS_BF16 && !card->bf16, no_tf32 = o->dtype == LS_F32 && o->tf32 && card->mma < 80;
    ls_device_info info = {0};
    LS_TRY(x->device->table.info(x->device, &info));
    if (no_bf16 || no_tf32)
        return ls_fail(LS_E_UNSUPPORTED, "%s (compute capability %d.%d, code of %d.%d) does not multiply in %s; use %s",
                       info.name, info.capability / 10, info.capability % 10, info.code / 10, info.code % 10,
                       no_bf16 ? "bf16" : "TF32", no_bf16 ? "fp16 or fp32" : "fp32 without --tf32");
    if (!card->fp8 || o->dtype != LS_BF16) x->ops.quantize = NULL, x->ops.turn8 = NULL, x->ops.product8 = NULL;
    return LS_OK;
}

static ls_status open_all(cuda *x, const ls_compute_open_opts *o)
{
    LS_TRY(cu_device_open(&x->device, o));
    LS_TRY(check_card(x, o));
    x->stream = x->device->stream;
    x->tf32 = o->tf32;
    LS_TRY(cu_gemm_open(&x->gemm, x->stream, o->tf32, o->deterministic));
    LS_TRY(cu_attention_open(&x->attention, x->stream, o->dtype, o->deterministic, o->tf32, NULL));
    cu_attention_version(x->attention, x->device->cudnn, sizeof x->device->cudnn);
    return LS_OK;
}

static void close_all(cuda *x)
{
    if (x->device) (void)x->device->table.sync(x->device);
    cu_attention_close(&x->attention);
    cu_gemm_close(&x->gemm);
    cu_device_close(&x->device);
    ls_free(x);
}

ls_status cuda_open(const ls_compute_open_opts *o, ls_compute *c)
{
    if (o->dtype != LS_F32 && o->dtype != LS_BF16 && o->dtype != LS_F16)
        return ls_fail(LS_E_UNSUPPORTED, "cuda does not support the type %s; use F32, BF16 or F16",
                       ls_dtype_word(o->dtype));
    LS_TRY(check_environment());
    cuda *x = ls_alloc(sizeof *x);
    if (!x) return ls_nomem(sizeof *x, "the CUDA backend");
    x->stochastic = o->stochastic && o->dtype == LS_BF16;
    x->ops = cuda_ops;
    x->ops.dtype = o->dtype;
    const ls_status st = open_all(x, o);
    if (st != LS_OK) {
        close_all(x);
        return st;
    }
    *c = (ls_compute){.ops = &x->ops, .n_thread = 1, .device = &x->device->table, .impl = x};
    return LS_OK;
}

void cuda_close(ls_compute *c)
{
    if (c->impl) close_all(cuda_of(c));
    *c = (ls_compute){0};
}

size_t cuda_scratch(const ls_compute *c, const ls_compute_shapes *s)
{
    return cu_scratch_nbytes(LS_MAX(cuda_ops_scratch(cuda_of(c), s), cuda_classifier_scratch(cuda_of(c), s)));
}

void cuda_describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS])
{
    const cuda *x = cuda_of(c);
    char gemm[96] = "", attention[288] = "";
    ls_device_info info = {0};
    cu_gemm_describe(x->gemm, x->ops.dtype, gemm, sizeof gemm);
    cu_attention_describe(x->attention, attention, sizeof attention);
    if (x->device->table.info(x->device, &info) != LS_OK) snprintf(info.name, sizeof info.name, "?");
    snprintf(buf, LS_COMPUTE_WORDS, "cuda: %.40s (%d), %s, %s, %s", info.name, info.index, ls_dtype_word(x->ops.dtype),
             gemm, attention);
}
