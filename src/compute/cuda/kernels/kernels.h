/* kernels.h - launchers of the kernels, but attention's (flash.h). Arguments as in compute.h; dt is the type of activations and parameters,
 * statistics and gradients of parameters are float. They return a cudaError_t (0: queued). Scratch: scratch.h tells how much, 16-byte aligned. */
#ifndef LS_CUDA_KERNELS_H
#define LS_CUDA_KERNELS_H

#include "compute/card.h"
#include "compute/compute.h"
#include "compute/cuda/scratch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether this build holds code for the current device: 0, or why a kernel could not be loaded. *arch: of that code, 75 for PTX of 7.5; 0: none.
 * *ptx: the driver compiled it. */
int cu_code(int *arch, bool *ptx);
/* What the current device can do with that code; NULL: there is none, or the card is not supported. */
const ls_card *cu_card(void);
/* Bytes of shared memory that a block may have: the least of the card's and of that of the code's architecture. 0: no card. */
int cu_shared(void);

/* ---- single elements (gelu.cu, add.cu) ---- */

int cu_gelu_fwd(void *stream, ls_dtype dt, void *y, const void *x, int64_t n, ls_gelu kind);
int cu_gelu_bwd(void *stream, ls_dtype dt, void *dx, const void *dy, const void *x, int64_t n, ls_gelu kind);
int cu_add_fwd(void *stream, ls_dtype dt, void *y, const void *x, const void *delta, int64_t n, ls_drop drop);
int cu_drop_bwd(void *stream, ls_dtype dt, void *dx, const void *dy, int64_t n, ls_drop drop);
/* y = a + b of any type; 16-bit sums are made in float and rounded once. */
int cu_add(void *stream, ls_dtype dt, void *y, const void *a, const void *b, int64_t n);
int cu_zero(void *stream, void *y, size_t nbytes);
int cu_copy(void *stream, void *y, const void *x, size_t nbytes);

/* ---- embedding (embed_fwd.cu, embed_bwd.cu, sort_ids.cu) ---- */

int cu_embed_fwd(void *stream, ls_dtype dt, void *y, const int32_t *ids, int64_t first, int64_t V, const void *wte,
                 const void *wpe, int64_t B, int64_t T, int64_t C, ls_drop drop);
int cu_embed_bwd(void *stream, ls_dtype dt, float *dwte, float *dwpe, const void *dy, const int32_t *ids, int64_t first,
                 int64_t B, int64_t T, int64_t C, int64_t V, int64_t P, ls_drop drop, bool acc, void *scratch);
/* key (R) = ids - first, those outside 0 … V-1 as V, in ascending order; pos (R) = where they stood, in ascending order
 * among equals. */
int cu_sort_ids(void *stream, int32_t *key, int32_t *pos, const int32_t *ids, int64_t first, int64_t V, int64_t R,
                void *scratch);

/* ---- layer normalisation (layernorm_fwd.cu, layernorm_bwd.cu), sums over rows (column_sums.cu) ---- */

/* delta NULL: no sum before the norm, res and drop are not used. */
int cu_layernorm_fwd(void *stream, ls_dtype dt, void *res, void *y, float *mean, float *rstd, const void *x,
                     const void *delta, const void *w, const void *b, int64_t R, int64_t C, double eps, ls_drop drop);
int cu_layernorm_again(void *stream, ls_dtype dt, void *y, const void *x, const float *mean, const float *rstd,
                       const void *w, const void *b, int64_t R, int64_t C);
int cu_layernorm_bwd(void *stream, ls_dtype dt, void *dx, float *dw, float *db, const void *dy, const void *dres,
                     const void *x, const void *w, const float *mean, const float *rstd, int64_t R, int64_t C, bool acc,
                     void *scratch);
/* sums (N) = the column sums of x (R,N), added to with acc: a bias gradient that no product makes. */
int cu_column_sums(void *stream, ls_dtype dt, float *sums, const void *x, int64_t R, int64_t N, bool acc,
                   void *scratch);
/* out[j] (+)= the sum of part[i*n + j] over i < rows, for j < n; from column `cut` on they go to out2[j - cut]. */
int cu_fold(void *stream, float *out, float *out2, int64_t cut, const float *part, int64_t rows, int64_t n, bool acc);

/* ---- attention of new positions to a cache of keys and values, for generation (attention_cached.cu) ---- */

/* alike, pos, at: as in compute.h; tf32: as in flash.h */
int cu_attention_cached(void *stream, ls_dtype dt, void *y, void *kcache, void *vcache, const void *qkv, int64_t B,
                        int64_t Tq, int64_t pos, const ls_pass_head *at, int64_t Tmax, int64_t H, int64_t D, bool alike,
                        bool tf32);

/* ---- products with packed matrices, for generation (linear_packed.cu) ---- */

/* y (R,N), rows ldy apart (0: N), = x (R,K) w + b; then GELU of it, or added to `add` (R,N), which may be y. w as compute/cpu/packed.h lays it out.
 * Types: LS_PACK_BF16 with LS_BF16, LS_PACK_INT8 with LS_BF16 and LS_F16. */
typedef struct cu_packed {
    void *y;
    const void *x, *w, *b, *add; /* b, add: may be NULL */
    ls_pack form;
    bool gelu;
    ls_gelu kind;
    int64_t R, K, N, ldy;
} cu_packed;

int cu_linear_packed(void *stream, ls_dtype dt, const cu_packed *p);

/* ---- the largest of rows of logits (best.cu) ---- */

/* compute.h, best. out and log_sum are in memory of the host that the device reaches. */
int cu_best(void *stream, ls_dtype dt, ls_best *out, float *log_sum, const void *logits, int64_t R, int64_t V,
            int64_t n, int64_t k);

/* ---- what follows a product that the library does not finish, and the fingerprint that judges one (gemm_bias.cu) ---- */

/* out (M,N), rows ld apart, += bias (N). out_dt is dt or LS_F32. */
int cu_gemm_bias(void *stream, ls_dtype out_dt, void *out, ls_dtype dt, const void *bias, int64_t M, int64_t N,
                 int64_t ld);
/* *print (device) = a number that two matrices (M,N), rows ld apart, have in common if and (almost) only if factor * x has equal bits. */
int cu_fingerprint(void *stream, ls_dtype dt, uint64_t *print, const void *x, float factor, int64_t M, int64_t N,
                   int64_t ld);

/* ---- operands of products in 8 bits (quantize.cu) ---- */

/* dt is LS_BF16. scratch: cu_quantize_nbytes, for the column sums. */
int cu_quantize(void *stream, const ls_quantize *q, void *scratch);
/* With q->norm (quantize_norm.cu); cu_quantize calls it. */
int cu_quantize_norm(void *stream, const ls_quantize *q);
/* A range, R = 1 (codes.cu); cu_quantize calls it. And the transposed copy of codes. */
int cu_quantize_range(void *stream, const ls_quantize *q);
int cu_turn8(void *stream, void *to, const void *from, int64_t R, int64_t N);

/* ---- cross-entropy of rows of logits, and its gradient over them (softmax.cu) ---- */

/* ld a multiple of 16 bytes' worth of elements and logits aligned to 16 bytes: each row is read once and written once,
 * if it fits into shared memory (cu_shared; half of it is better); else it is read three times. */
typedef struct cu_softmax {
    void *logits;          /* (rows, ld) in; with grad, dlogits out, columns V … ld-1 of it 0          */
    double *row_loss;      /* (rows) out                                                               */
    const int32_t *target; /* (rows) ids of the whole vocabulary; < 0: loss and gradient are 0         */
    int64_t rows, V, ld;
    int64_t first; /* id of column 0                                                           */
    double dloss;  /* with `at`, at->dloss is read instead                                     */
    const ls_pass_head *at;
    bool grad;
} cu_softmax;

int cu_softmax_loss(void *stream, ls_dtype dt, const cu_softmax *a);
/* A vocabulary that is cut over workers: what is known here of every row goes to part (rows, 3): the largest logit, the
 * sum of exponentials below it, the target's logit or 0. Then, with everyone's (n_part, rows, 3) in order, the losses
 * and the gradient here. `all` is used up. */
int cu_softmax_parts(void *stream, ls_dtype dt, const cu_softmax *a, double *part);
int cu_softmax_join(void *stream, ls_dtype dt, const cu_softmax *a, double *all, int n_part);

/* ---- the optimizer's, over flat ranges (adamw.cu, sums.cu, decide.cu) ---- */

/* dt LS_F32: p is not written (it is master). gains: compute.h; NULL: none. round: NULL, parameters are rounded to the nearest; else up or
 * down by the distance, with random bits (LS_BF16 alone: LS_F32 has nothing to round, LS_F16 is refused with cudaErrorNotSupported). */
int cu_adamw(void *stream, ls_dtype dt, void *p, float *master, const float *g, float *m, float *v, int64_t n,
             const ls_adamw *h, const ls_rounding *round);
/* stochastic: h.round of each job is used. */
int cu_adamw_many(void *stream, ls_dtype dt, const ls_adamw_job *job, int n_job, bool stochastic);
int cu_narrow(void *stream, ls_dtype dt, void *p, const float *x, int64_t n, const ls_gains *gains,
              const ls_rounding *round);
/* block_sum is in memory of the device, or of the host that the device reaches. */
int cu_sumsq(void *stream, double *block_sum, const float *x, int64_t n, int64_t block);
int cu_sumsq_many(void *stream, double *block_sum, const void *const *x, const int64_t *n, int n_range, int64_t block);
int cu_sum(void *stream, double *out, const double *x, int64_t n);
/* The sums of the units, then what they decide (compute/decide.h). scratch: a double per unit. */
int cu_decide(void *stream, const ls_decide *a, void *scratch);

/* ---- the hash of an array at any address (hash.cu) ---- */

/* out is in memory of the host that the device reaches. scratch: CU_HASH_BLOCKS words of 8 bytes. */
int cu_hash(void *stream, uint64_t *out, const void *x, size_t nbytes, bool more, void *scratch);

#ifdef __cplusplus
}
#endif
#endif
