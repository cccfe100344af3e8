/* decide.h - how the norm of the gradient decides about an update, in one place for hosts and devices: every operation here is rounded once,
 * so that all of them get the same bits.
 *
 *   unit     block sums (sumsq) are added in LS_NORM_TURNS sums, block k to sum k % TURNS; then these in order. The sums do not depend on
 *            each other, so that the additions can overlap
 *   squares  the units in order
 *   norm     sqrt(squares) / loss scale;  factor of the gradient: min(1, clip / (norm + 1e-6)) / loss scale */
#ifndef LS_COMPUTE_DECIDE_H
#define LS_COMPUTE_DECIDE_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__ /* kernels use these, too */
#define LS_DECIDE_FN static __host__ __device__ __forceinline__
#else
#define LS_DECIDE_FN static inline
#endif

enum { LS_NORM_TURNS = 8 };

/* Adds n blocks, of which the first is number `first` of its unit. */
static inline void ls_norm_add(double turn[LS_NORM_TURNS], int64_t first, const double *x, int64_t n)
{
    int64_t i = 0;
    for (; i < n && (first + i) % LS_NORM_TURNS; i++) turn[(first + i) % LS_NORM_TURNS] += x[i];
    for (; i + LS_NORM_TURNS <= n; i += LS_NORM_TURNS)
        for (int k = 0; k < LS_NORM_TURNS; k++) turn[k] += x[i + k];
    for (; i < n; i++) turn[(first + i) % LS_NORM_TURNS] += x[i];
}

LS_DECIDE_FN double ls_norm_unit(const double turn[LS_NORM_TURNS])
{
    double sum = 0;
    for (int k = 0; k < LS_NORM_TURNS; k++) sum += turn[k];
    return sum;
}

/* unscale: 1 / loss scale. */
LS_DECIDE_FN double ls_norm_of(double squares, double unscale)
{
#ifdef __CUDA_ARCH__
    return __dmul_rn(sqrt(squares), unscale); /* never fused with the addition below */
#else
    return sqrt(squares) * unscale;
#endif
}

/* clip: the largest norm; 0: any. */
LS_DECIDE_FN double ls_grad_factor(double norm, double clip, double unscale)
{
    return (clip > 0 ? fmin(1.0, clip / (norm + 1e-6)) : 1.0) * unscale;
}

#endif
