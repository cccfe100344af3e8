/* optim.h - launchers of the optimizer's kernels over flat ranges. Arguments as in compute.h; they return a cudaError_t
 * (0: queued). */
#ifndef LS_CUDA_KERNELS_OPTIM_H
#define LS_CUDA_KERNELS_OPTIM_H

#include "compute/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a float becomes a parameter: NULL or on == false, to the nearest; else up or down by the distance, with random
 * bits named by (key, first + i): LS_BF16 alone, LS_F32 has nothing to round, LS_F16 is refused
 * (cudaErrorNotSupported). */
typedef struct cu_rounding {
    bool on;
    uint64_t key;
    int64_t first; /* the number of element 0 */
} cu_rounding;

/* dt LS_F32: p is not written (it is master). gains: compute.h; NULL: none. */
int cu_adamw(void *stream, ls_dtype dt, void *p, float *master, const float *g, float *m, float *v, int64_t n,
             const ls_adamw *h, const cu_rounding *round);
int cu_narrow(void *stream, ls_dtype dt, void *p, const float *x, int64_t n, const ls_gains *gains,
              const cu_rounding *round);

/* block_sum is in memory of the host that the device reaches. */
int cu_sumsq(void *stream, double *block_sum, const float *x, int64_t n, int64_t block);
int cu_sum(void *stream, double *out, const double *x, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
