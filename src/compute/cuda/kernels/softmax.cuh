/* softmax.cuh - what the kernels of a row of logits share: softmax.cu, softmax_held.cuh. */
#ifndef LS_CUDA_KERNELS_SOFTMAX_CUH
#define LS_CUDA_KERNELS_SOFTMAX_CUH

#include "compute/cuda/kernels/vec.cuh"

#define LOG2_E 1.44269504088896340736f
#define LN_2   0.69314718055994530942

namespace {

enum { LOSS, GRAD, PARTS };

template <class T> struct job {
    T *logits;
    double *out; /* (rows) losses, or (rows, 3) parts */
    const int32_t *target;
    int64_t rows, first;
    int V, ld;
    float dloss;
    const ls_pass_head *at;
};

/* The column of a target, -1 if it is not here. */
template <class T> LS_DEVICE int target_column(const job<T> &a, int32_t id)
{
    const int64_t wanted = id >= 0 ? id - a.first : -1;
    return wanted >= 0 && wanted < a.V ? (int)wanted : -1;
}

/* What a row has for the caller: sum of 2^x below `top`, and the target's logit, 0 if it is not here. */
template <int WHAT, class T>
LS_DEVICE void put_row(const job<T> &a, int64_t r, int32_t id, float top, float sum, double at_target)
{
    if (WHAT == PARTS) {
        a.out[3 * r] = (double)top * LN_2;
        a.out[3 * r + 1] = (double)sum;
        a.out[3 * r + 2] = at_target;
    } else {
        a.out[r] = id < 0 ? 0.0 : ((double)top + (double)log2f(sum)) * LN_2 - at_target;
    }
}

/* Numbers beside the vocabulary, in a row's last pack (number p), become -inf; for the thread that has it. */
template <int N, class T> LS_DEVICE void hide_beside(T *x, int p, int V)
{
    float f[N];
    widen(f, vec_load<N>(x + p * N));
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = p * N + i < V ? f[i] : -INFINITY;
    vec_store<N>(x + p * N, vec_of<T>(f));
}

/* Stores in front of it stay there. */
LS_DEVICE void compiler_fence()
{
    asm volatile("" ::: "memory");
}

} // namespace

#endif
