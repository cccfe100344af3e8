/* attention.h - causal attention on a stream: cuDNN where it has a plan for the shape, else our own kernels (kernels/flash_*.cu), which also
 * are what cuDNN is checked against. Layouts as in compute.h: qkv (B,T,3,H,D), y (B,T,H,D), lse (B,H,T) in float. */
#ifndef LS_CUDA_ATTENTION_H
#define LS_CUDA_ATTENTION_H

#include "compute/compute.h"

typedef struct cu_attention cu_attention;

typedef struct cu_attention_job {
    void *y, *dqkv;       /* out of forward, of backward                 */
    float *lse;           /* out of forward, in of backward              */
    const void *qkv, *dy; /* y is an input of backward                   */
    int64_t B, T, H, D;
    ls_drop drop;
    void *scratch; /* cu_attention_scratch bytes                  */
    struct {
        const void *k, *v;      /* (B,H,Tmax,D) */
        int64_t Tmax, pos;      /* pos: of the first of the T positions, or at->pos */
        const ls_pass_head *at; /* or NULL      */
    } cache;                    /* of flash_fwd_cached alone */
} cu_attention_job;

/* kind: NULL or "auto", "cudnn", "flash", or two of them with a comma for forward and backward; LS_ATTENTION says it where kind does not. */
/* tf32: LS_F32's products in TF32, about three times as fast; off, they have a float's accuracy. */
ls_status cu_attention_open(cu_attention **out, void *stream, ls_dtype dt, bool deterministic, bool tf32,
                            const char *kind);
void cu_attention_close(cu_attention **a);
/* Also makes cuDNN's plans of the shape. Shapes that were not asked for run, too: by cuDNN when its plan needs no more scratch than was given
 * out here, and the first time is slow. */
size_t cu_attention_scratch(cu_attention *a, int64_t B, int64_t T, int64_t H, int64_t D, bool backward);
ls_status cu_attention_run(cu_attention *a, bool backward, const cu_attention_job *j);
/* cuDNN's version, "9.14.0"; "" where our kernels do it all. */
void cu_attention_version(const cu_attention *a, char *words, size_t room);
void cu_attention_describe(const cu_attention *a, char *words, size_t room);

/* ---- cudnn.c: attention by cuDNN's own fused operations. The library is looked for when it is opened ---- */

typedef struct cu_sdpa cu_sdpa;

/* LS_E_UNSUPPORTED: there is no such library, it is too old, or it has none for this type. *version: 91400 is 9.14.0. */
ls_status cu_sdpa_open(cu_sdpa **out, void *stream, ls_dtype dt, bool deterministic, int *version);
void cu_sdpa_close(cu_sdpa *s);

/* Builds the plan of this shape, once; plans stay. *nbytes: the scratch it works in. A failure is kept, too, and reported again. */
ls_status cu_sdpa_plan(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D, size_t *nbytes);
/* Without dropout; the plan exists. */
ls_status cu_sdpa_run(cu_sdpa *s, bool backward, const cu_attention_job *j);

#endif
