/* attention.c - who computes attention: cuDNN where it has a plan for the shape and there is no dropout (its masks are its own), else our kernels;
 * backward on Hopper, with heads of 64, our own (decision 25).
 *
 * Forward and backward choose by themselves: lse means the same to both. A choice depends on the shape, the type and whether there is dropout,
 * never on what ran before. */
#include "compute/cuda/attention.h"

#include "compute/cuda/kernels/flash.h"
#include "compute/cuda/kernels/kernels.h"
#include "compute/cuda/scratch.h"
#include "core/err.h"
#include "core/mem.h"
#include "core/minmax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

typedef enum choice { AUTO, CUDNN, FLASH } choice;

struct cu_attention {
    void *stream;
    ls_dtype dt;
    bool deterministic, tf32;
    const ls_card *card; /* the family of our kernels */
    int warpgroups;      /* per block of the backward for Hopper; 1: by the shape, 0: it is not used */
    choice want[2];      /* of forward, of backward */
    cu_sdpa *sdpa;       /* NULL: there is none */
    int sdpa_version;    /* 91400: 9.14.0 */
    size_t sdpa_room;    /* the most scratch that cuDNN was given out */
    char why[192];       /* why there is no cuDNN */
};

/* One word, or two with a comma: of forward and of backward. */
static ls_status choose(choice want[2], const char *kind)
{
    static const char *const word[] = {"auto", "cudnn", "flash"};
    const char *comma = strchr(kind, ',');
    for (int pass = 0; pass < 2; pass++) {
        const char *from = pass && comma ? comma + 1 : kind;
        const size_t n = !pass && comma ? (size_t)(comma - kind) : strlen(from);
        int k = 0;
        while (k < 3 && !(strlen(word[k]) == n && !strncmp(word[k], from, n))) k++;
        if (k == 3)
            return ls_fail(LS_E_CONFIG,
                           "unknown attention '%s'; use auto, cudnn or flash, or two of them as forward,backward",
                           kind);
        want[pass] = (choice)k;
    }
    return LS_OK;
}

/* LS_FLASH_WGMMA: 0, 1 (where the device can, the default) or, to compare them, 2 or 3 warpgroups per block. */
static ls_status choose_wgmma(int *warpgroups, const ls_card *card)
{
    const char *env = getenv("LS_FLASH_WGMMA");
    const bool wanted = env && *env;
    if (wanted && (strlen(env) != 1 || *env < '0' || *env > '3'))
        return ls_fail(LS_E_CONFIG, "LS_FLASH_WGMMA=%s is not known; use 0, 1, 2 or 3", env);
    *warpgroups = wanted ? *env - '0' : flash_wgmma_works();
    if (*warpgroups && !flash_wgmma_works())
        return ls_fail(LS_E_UNSUPPORTED,
                       "LS_FLASH_WGMMA=%s needs a Hopper GPU and a plugin that was compiled for it (LS_CUDA_ARCH=90a); "
                       "this is code for %d.%d (%s)",
                       env, card->capability / 10, card->capability % 10, card->name);
    return LS_OK;
}

/* cuDNN's fused attention begins with the tensor cores of 8.0. */
static ls_status open_sdpa(cu_attention *a)
{
    if (a->card->mma < 80)
        return ls_fail(LS_E_UNSUPPORTED, "cuDNN attention needs compute capability 8.0; this is code for %d.%d",
                       a->card->capability / 10, a->card->capability % 10);
    return cu_sdpa_open(&a->sdpa, a->stream, a->dt, a->deterministic, &a->sdpa_version);
}

ls_status cu_attention_open(cu_attention **out, void *stream, ls_dtype dt, bool deterministic, bool tf32,
                            const char *kind)
{
    const char *env = getenv("LS_ATTENTION");
    if (!kind || !strcmp(kind, "auto")) kind = env && *env ? env : "auto";
    if (dt != LS_F32 && dt != LS_BF16 && dt != LS_F16)
        return ls_fail(LS_E_UNSUPPORTED, "attention does not support %s on the device; use F32, BF16 or F16",
                       ls_dtype_word(dt));
    const ls_card *card = cu_card();
    if (!card) return ls_fail(LS_E_UNSUPPORTED, "attention: this plugin has no code for the device");
    if (dt == LS_BF16 && !card->bf16)
        return ls_fail(LS_E_UNSUPPORTED,
                       "attention in BF16 needs compute capability 8.0 (this is code for %d.%d); use F16",
                       card->capability / 10, card->capability % 10);
    cu_attention *a = ls_alloc(sizeof *a);
    if (!a) return ls_nomem(sizeof *a, "attention");
    *a = (cu_attention){.stream = stream, .dt = dt, .deterministic = deterministic, .tf32 = tf32, .card = card};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, fail, choose(a->want, kind));
    LS_TRY_GOTO(st, fail, choose_wgmma(&a->warpgroups, card));
    if (a->want[0] == FLASH && a->want[1] == FLASH) {
        snprintf(a->why, sizeof a->why, "not requested");
    } else {
        st = open_sdpa(a);
        if (st != LS_OK && (a->want[0] == CUDNN || a->want[1] == CUDNN || st != LS_E_UNSUPPORTED)) goto fail;
        if (st != LS_OK) snprintf(a->why, sizeof a->why, "%s", ls_err_words()), ls_err_clear();
    }
    *out = a;
    return LS_OK;
fail:
    cu_attention_close(&a);
    return st;
}

void cu_attention_close(cu_attention **a)
{
    if (*a && (*a)->sdpa) cu_sdpa_close((*a)->sdpa);
    ls_free(*a);
    *a = NULL;
}

/* Our own backward for Hopper: one head size, 16 bits; all else is done by the kernels for every device. */
static bool by_wgmma(const cu_attention *a, int64_t D)
{
    return a->warpgroups && a->dt != LS_F32 && D == 64;
}

/* On an H200 two are faster at 512 rows, three at 1024 (decision 25); the bits are the same. */
static int warpgroups_of(const cu_attention *a, int64_t T)
{
    return a->warpgroups > 1 ? a->warpgroups : T > 512 ? 3 : 2;
}

/* cuDNN's backward with one order of sums holds the T x T matrix of every head: only where it was asked for. The one for Hopper is
 * faster than cuDNN's in any order. */
static bool by_flash(const cu_attention *a, bool backward, int64_t D)
{
    return !a->sdpa || a->want[backward] == FLASH ||
           (backward && a->want[backward] == AUTO && (a->deterministic || by_wgmma(a, D)));
}

/* LS_E_UNSUPPORTED: cuDNN cannot compute j, or needs more scratch than was ever given out. */
static ls_status try_sdpa(const cu_attention *a, bool backward, const cu_attention_job *j)
{
    size_t n = 0;
    LS_TRY(cu_sdpa_plan(a->sdpa, backward, j->B, j->T, j->H, j->D, &n));
    if (n > a->sdpa_room)
        return ls_fail(LS_E_UNSUPPORTED, "cuDNN attention needs %zu bytes of scratch here, but %zu were reserved", n,
                       a->sdpa_room);
    return LS_OK;
}

size_t cu_attention_scratch(cu_attention *a, int64_t B, int64_t T, int64_t H, int64_t D, bool backward)
{
    size_t most = cu_flash_nbytes(B, T, H, backward), n = 0; /* always: dropout may be asked for */
    for (int pass = 0; pass <= backward; pass++) {
        if (by_flash(a, pass, D)) continue;
        if (cu_sdpa_plan(a->sdpa, pass, B, T, H, D, &n) != LS_OK) ls_err_clear(); /* reported when it is to run */
        else a->sdpa_room = LS_MAX(a->sdpa_room, n), most = LS_MAX(most, n);
    }
    return most;
}

static ls_status run_flash(const cu_attention *a, bool backward, const cu_attention_job *j)
{
    if (j->D < 1 || j->D > LS_FLASH_D_MAX)
        return ls_fail(LS_E_UNSUPPORTED,
                       "attention with head size %lld is not supported on the device; the limit is %d", (long long)j->D,
                       LS_FLASH_D_MAX);
    if (j->B * j->T * j->H < 1) return LS_OK;
    int e = 0;
    if (backward && by_wgmma(a, j->D)) e = flash_bwd_wgmma(j, a->dt, warpgroups_of(a, j->T), a->stream);
    else if (a->dt != LS_F32)
        e = backward ? flash_bwd_16bit(j, a->dt, a->stream) : flash_fwd_16bit(j, a->dt, a->stream);
    else e = backward ? flash_bwd_f32(j, a->tf32, a->stream) : flash_fwd_f32(j, a->tf32, a->stream);
    if (e)
        return ls_fail(LS_E_DEVICE, "attention %s (B %lld T %lld H %lld D %lld): %s", backward ? "backward" : "forward",
                       (long long)j->B, (long long)j->T, (long long)j->H, (long long)j->D,
                       cudaGetErrorString((cudaError_t)e));
    return LS_OK;
}

ls_status cu_attention_run(cu_attention *a, bool backward, const cu_attention_job *j)
{
    if (by_flash(a, backward, j->D) || j->drop.p > 0) return run_flash(a, backward, j);
    const ls_status st = try_sdpa(a, backward, j);
    if (st == LS_OK) return cu_sdpa_run(a->sdpa, backward, j);
    if (a->want[backward] == CUDNN) return st;
    ls_err_clear();
    return run_flash(a, backward, j);
}

void cu_attention_version(const cu_attention *a, char *words, size_t room)
{
    const int v = a->sdpa_version;
    *words = '\0';
    if (v) snprintf(words, room, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

void cu_attention_describe(const cu_attention *a, char *words, size_t room)
{
    static const char *const how[] = {"cuDNN where possible", "cuDNN", "flash"};
    const char *const fwd = how[a->want[0]];
    const char *const bwd = by_flash(a, true, 0) ? how[FLASH] : how[a->want[1]]; /* of any head size */
    const char *const hopper =
        by_wgmma(a, 64) && by_flash(a, true, 64) ? "wgmma for heads of 64, else " : ""; /* of 64 */
    char lib[64], version[16];
    if (!a->sdpa) {
        const bool wide = a->dt == LS_F32, tensor = a->card->mma >= 80;
        snprintf(words, room, "flash%s%s (no cuDNN: %s)",
                 wide                 ? (!tensor   ? ", float operations"
                                         : a->tf32 ? ", TF32"
                                                   : ", 3xTF32")
                 : tensor             ? ""
                 : a->card->mma >= 75 ? ", m16n8k8"
                                      : ", m8n8k4",
                 *hopper ? ", backward with wgmma for heads of 64" : "", a->why);
        return;
    }
    cu_attention_version(a, version, sizeof version);
    snprintf(lib, sizeof lib, "cuDNN %s%s", version, a->deterministic ? ", deterministic" : "");
    if (fwd == bwd && !*hopper) snprintf(words, room, "%s (%s)", fwd, lib);
    else snprintf(words, room, "forward %s, backward %s%s (%s)", fwd, hopper, bwd, lib);
}
