/* point.h - launchers of the kernels on single elements. Arguments as in compute.h; they return a cudaError_t
 * (0: queued). */
#ifndef LS_CUDA_KERNELS_POINT_H
#define LS_CUDA_KERNELS_POINT_H

#include "compute/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

int cu_gelu_fwd(void *stream, ls_dtype dt, void *y, const void *x, int64_t n, ls_gelu kind);
int cu_gelu_bwd(void *stream, ls_dtype dt, void *dx, const void *dy, const void *x, int64_t n, ls_gelu kind);
int cu_add_fwd(void *stream, ls_dtype dt, void *y, const void *x, const void *delta, int64_t n, ls_drop drop);
int cu_drop_bwd(void *stream, ls_dtype dt, void *dx, const void *dy, int64_t n, ls_drop drop);

/* y = a + b of any type; 16-bit sums are made in float and rounded once. */
int cu_add(void *stream, ls_dtype dt, void *y, const void *a, const void *b, int64_t n);
int cu_zero(void *stream, void *y, size_t nbytes);
int cu_copy(void *stream, void *y, const void *x, size_t nbytes);

#ifdef __cplusplus
}
#endif
#endif
