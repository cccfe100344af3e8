/* attention_cached.h - attention of a few new positions to a cache of keys and values, for generation (compute.h). Returns a cudaError_t. */
#ifndef LS_CUDA_KERNELS_ATTENTION_CACHED_H
#define LS_CUDA_KERNELS_ATTENTION_CACHED_H

#include "compute/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

int cu_attention_cached(void *stream, ls_dtype dt, void *y, void *kcache, void *vcache, const void *qkv, int64_t B,
                        int64_t Tq, int64_t pos, int64_t Tmax, int64_t H, int64_t D);

#ifdef __cplusplus
}
#endif
#endif
