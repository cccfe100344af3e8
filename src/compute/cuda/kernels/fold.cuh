/* fold.cuh - the second stage of a sum over rows: partial sums that blocks left in scratch are added in one order. */
#ifndef LS_CUDA_KERNELS_FOLD_CUH
#define LS_CUDA_KERNELS_FOLD_CUH

#include "compute/cuda/kernels/vec.cuh"

/* out[j] (+)= the sum of part[i*n + j] over i < rows, for j < n; from column `cut` on they go to out2[j - cut]. part
 * is in L2. */
int cu_fold(void *stream, float *out, float *out2, int64_t cut, const float *part, int64_t rows, int64_t n, bool acc);

#endif
