/* gemm_bias.h - launchers of what follows a product that the library does not finish, and of the fingerprint that judges one. They
 * return a cudaError_t (0: queued). */
#ifndef LS_CUDA_KERNELS_GEMM_BIAS_H
#define LS_CUDA_KERNELS_GEMM_BIAS_H

#include "core/buf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out (M,N), rows ld apart, += bias (N). out_dt is dt or LS_F32. */
int cu_gemm_bias(void *stream, ls_dtype out_dt, void *out, ls_dtype dt, const void *bias, int64_t M, int64_t N,
                 int64_t ld);

/* *print (device) = a number that two matrices (M,N), rows ld apart, have in common if and (almost) only if factor * x has equal bits. */
int cu_fingerprint(void *stream, ls_dtype dt, uint64_t *print, const void *x, float factor, int64_t M, int64_t N,
                   int64_t ld);

#ifdef __cplusplus
}
#endif
#endif
