/* norm.h - launchers of the layer normalisation kernels. Arguments as in compute.h; dt is the type of activations and
 * parameters, statistics and gradients of parameters are float. They return a cudaError_t (0: queued). */
#ifndef LS_CUDA_KERNELS_NORM_H
#define LS_CUDA_KERNELS_NORM_H

#include "compute/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

int cu_layernorm_fwd(void *stream, ls_dtype dt, void *y, float *mean, float *rstd, const void *x, const void *w,
                     const void *b, int64_t R, int64_t C, double eps);
int cu_add_layernorm_fwd(void *stream, ls_dtype dt, void *res, void *y, float *mean, float *rstd, const void *x,
                         const void *delta, const void *w, const void *b, int64_t R, int64_t C, double eps,
                         ls_drop drop);
int cu_layernorm_again(void *stream, ls_dtype dt, void *y, const void *x, const float *mean, const float *rstd,
                       const void *w, const void *b, int64_t R, int64_t C);

/* scratch: cu_layernorm_bwd_scratch bytes, 16-byte aligned. */
size_t cu_layernorm_bwd_scratch(int64_t R, int64_t C);
int cu_layernorm_bwd(void *stream, ls_dtype dt, void *dx, float *dw, float *db, const void *dy, const void *dres,
                     const void *x, const void *w, const float *mean, const float *rstd, int64_t R, int64_t C, bool acc,
                     void *scratch);

/* sums (N) = the column sums of x (R,N), added to with acc: a bias gradient that no product makes. */
size_t cu_column_sums_scratch(int64_t R, int64_t N);
int cu_column_sums(void *stream, ls_dtype dt, float *sums, const void *x, int64_t R, int64_t N, bool acc,
                   void *scratch);

#ifdef __cplusplus
}
#endif
#endif
