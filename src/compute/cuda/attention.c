/* attention.c - who computes attention: cuDNN where it has a plan for the shape and there is no dropout (its masks are its own), else our kernels.
 *
 * Forward and backward choose by themselves: lse means the same to both. A choice depends on the shape, the type and whether there is dropout,
 * never on what ran before. */
#include "compute/cuda/attention.h"

#include "compute/cuda/kernels/flash.h"
#include "compute/cuda/scratch.h"
#include "compute/cuda/sdpa.h"
#include "core/err.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

typedef enum choice { AUTO, CUDNN, FLASH } choice;

struct cu_attention {
    void *stream;
    ls_dtype dt;
    bool deterministic, tf32;
    choice want[2]; /* of forward, of backward */
    cu_sdpa *sdpa;  /* NULL: there is none     */
    char why[192];  /* … and why               */
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

ls_status cu_attention_open(cu_attention **out, void *stream, ls_dtype dt, bool deterministic, const char *kind)
{
    const char *env = getenv("LS_ATTENTION");
    if (!kind || !strcmp(kind, "auto")) kind = env && *env ? env : "auto";
    if (dt != LS_F32 && dt != LS_BF16 && dt != LS_F16)
        return ls_fail(LS_E_UNSUPPORTED, "attention does not support %s on the device; use F32, BF16 or F16",
                       ls_dtype_word(dt));
    cu_attention *a = ls_alloc(sizeof *a);
    if (!a) return ls_nomem(sizeof *a, "attention");
    a->stream = stream, a->dt = dt, a->deterministic = deterministic;
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, fail, choose(a->want, kind));
    if (a->want[0] == FLASH && a->want[1] == FLASH) {
        snprintf(a->why, sizeof a->why, "not requested");
    } else {
        st = cu_sdpa_open(&a->sdpa, stream, dt, deterministic);
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
    if (!*a) return;
    cu_sdpa_close(&(*a)->sdpa);
    ls_free(*a);
    *a = NULL;
}

void cu_attention_tf32(cu_attention *a, bool on)
{
    a->tf32 = on;
}

static size_t flash_scratch(int64_t B, int64_t T, int64_t H, bool backward)
{
    return cu_flash_nbytes(B, T, H, backward);
}

/* cuDNN's backward with one order of sums holds the T x T matrix of every head: only where it was asked for. */
static bool by_flash(const cu_attention *a, bool backward)
{
    return a->want[backward] == FLASH || (backward && a->deterministic && a->want[backward] == AUTO);
}

/* Whether cuDNN takes this one; why not when it was asked for. */
static ls_status by_sdpa(const cu_attention *a, bool backward, const cu_attention_job *j, bool *yes)
{
    *yes = false;
    if (!a->sdpa || by_flash(a, backward) || j->drop.p > 0) return LS_OK;
    const ls_status st = cu_sdpa_ready(a->sdpa, backward, j->B, j->T, j->H, j->D);
    if (st != LS_OK && a->want[backward] == CUDNN) return st;
    if (st != LS_OK) ls_err_clear();
    *yes = st == LS_OK;
    return LS_OK;
}

size_t cu_attention_scratch(const cu_attention *a, int64_t B, int64_t T, int64_t H, int64_t D, bool backward)
{
    size_t most = 0;
    for (int pass = 0; pass <= (backward ? 1 : 0); pass++) {
        size_t n = flash_scratch(B, T, H, pass != 0); /* always: dropout may be asked for */
        if (n > most) most = n;
        if (!a->sdpa || by_flash(a, pass != 0)) continue;
        if (cu_sdpa_plan(a->sdpa, pass != 0, B, T, H, D, &n) != LS_OK)
            ls_err_clear(); /* told again when it is to run */
        else if (n > most) most = n;
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
    const bool drop = j->drop.p > 0;
    flash_job f = {.qkv = j->qkv,
                   .y = j->y,
                   .lse = j->lse,
                   .dy = j->dy,
                   .dqkv = j->dqkv,
                   .delta = j->scratch,
                   .B = (int)j->B,
                   .T = (int)j->T,
                   .H = (int)j->H,
                   .D = (int)j->D,
                   .scale = (float)(1.0 / sqrt((double)j->D)),
                   .scale2 = (float)(1.4426950408889634 / sqrt((double)j->D)),
                   .keep = drop ? (float)(1.0 / (1.0 - (double)j->drop.p)) : 1.0f,
                   .threshold = drop ? (uint32_t)ceil((double)j->drop.p * 4294967296.0) : 0,
                   .head = (int)j->drop.head,
                   .n_head = (int)j->drop.n_head,
                   .key = j->drop.key,
                   .at = j->drop.at,
                   .unit = j->drop.unit,
                   .site = j->drop.site};
    int e = 0;
    if (j->dt == LS_BF16) e = backward ? flash_bwd_bf16(&f, a->stream) : flash_fwd_bf16(&f, a->stream);
    else if (j->dt == LS_F16) e = backward ? flash_bwd_f16(&f, a->stream) : flash_fwd_f16(&f, a->stream);
    else e = backward ? flash_bwd_f32(&f, a->tf32, a->stream) : flash_fwd_f32(&f, a->tf32, a->stream);
    if (e)
        return ls_fail(LS_E_DEVICE, "attention %s (B %lld T %lld H %lld D %lld): %s", backward ? "backward" : "forward",
                       (long long)j->B, (long long)j->T, (long long)j->H, (long long)j->D,
                       cudaGetErrorString((cudaError_t)e));
    return LS_OK;
}

static ls_status run(cu_attention *a, bool backward, const cu_attention_job *j)
{
    bool yes;
    LS_TRY(by_sdpa(a, backward, j, &yes));
    if (yes) LS_TRY(cu_sdpa_run(a->sdpa, backward, j));
    else LS_TRY(run_flash(a, backward, j));
    return LS_OK;
}

ls_status cu_attention_fwd(cu_attention *a, const cu_attention_job *j)
{
    LS_TRY(run(a, false, j));
    return LS_OK;
}

ls_status cu_attention_bwd(cu_attention *a, const cu_attention_job *j)
{
    LS_TRY(run(a, true, j));
    return LS_OK;
}

void cu_attention_version(const cu_attention *a, char *words, size_t room)
{
    const int v = a->sdpa ? cu_sdpa_version(a->sdpa) : 0;
    *words = '\0';
    if (v) snprintf(words, room, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

void cu_attention_describe(const cu_attention *a, char *words, size_t room)
{
    static const char *const how[] = {"cuDNN where possible", "cuDNN", "flash"};
    const choice fwd = a->want[0], bwd = by_flash(a, true) ? FLASH : a->want[1];
    char lib[256], version[16];
    if (a->sdpa) {
        cu_attention_version(a, version, sizeof version);
        snprintf(lib, sizeof lib, "cuDNN %s%s", version, a->deterministic ? ", deterministic" : "");
    } else {
        snprintf(lib, sizeof lib, "no cuDNN: %s", a->why);
    }
    if (!a->sdpa) snprintf(words, room, "flash%s (%s)", a->dt == LS_F32 ? a->tf32 ? ", TF32" : ", 3xTF32" : "", lib);
    else if (fwd == bwd) snprintf(words, room, "%s (%s)", how[fwd], lib);
    else snprintf(words, room, "forward %s, backward %s (%s)", how[fwd], how[bwd], lib);
}
