/* point.cuh - one kernel for everything that makes an element from elements of the same number.
 *
 * An operation is a struct of addresses with
 *     auto prepare() const;                                              once per thread: what `make` gets besides
 *     template <int N> struct in;                                        what N neighbours need
 *     template <int N> in<N> load(int64_t at) const;                     reads them, …
 *     template <int N> void make(int64_t at, const in<N> &, const auto &prepared) const;     … computes, and writes
 * The struct is not changed: it stays where the arguments of a kernel are.
 * A thread has POINT_TURNS packs, all read before the first is written, so that enough bytes are in flight; outputs may
 * overlap inputs. */
#ifndef LS_CUDA_KERNELS_POINT_CUH
#define LS_CUDA_KERNELS_POINT_CUH

#include "compute/cuda/kernels/vec.cuh"

#define POINT_THREADS 256
#define POINT_TURNS   4

/* Block number `block` of an operation on n elements. */
template <int N, class Op> LS_DEVICE void point_block(const Op &op, int64_t n, int64_t block)
{
    const auto prepared = op.prepare();
    const int64_t n_pack = n / N, first = block * POINT_THREADS * POINT_TURNS + threadIdx.x;
    typename Op::template in<N> v[POINT_TURNS];
#pragma unroll
    for (int k = 0; k < POINT_TURNS; k++)
        if (first + k * POINT_THREADS < n_pack) v[k] = op.template load<N>((first + k * POINT_THREADS) * N);
#pragma unroll
    for (int k = 0; k < POINT_TURNS; k++)
        if (first + k * POINT_THREADS < n_pack) op.template make<N>((first + k * POINT_THREADS) * N, v[k], prepared);
    if (N > 1 && block == 0 && threadIdx.x < n % N) {
        const int64_t at = n_pack * N + threadIdx.x;
        op.template make<1>(at, op.template load<1>(at), prepared);
    }
}

template <class Op, int N> __global__ void __launch_bounds__(POINT_THREADS) point_packs(const Op op, int64_t n)
{
    point_block<N>(op, n, blockIdx.x);
}

/* Blocks that n packs take. */
static inline int64_t point_blocks(int64_t n_pack)
{
    return n_pack ? ceil_div<int64_t>(n_pack, POINT_THREADS * POINT_TURNS) : 1;
}

/* N: elements of a pack, if the addresses allow it. */
template <int N, class Op> static int point_start(void *stream, const Op &op, int64_t n, bool aligned)
{
    if (n <= 0) return 0;
    const int64_t n_pack = aligned ? n / N : n;
    const unsigned blocks = (unsigned)point_blocks(n_pack);
    return LS_LAUNCH((aligned ? point_packs<Op, N> : point_packs<Op, 1>), blocks, POINT_THREADS, 0, stream, op, n);
}

/* The operation y = f(x[0], …, x[INPUTS-1]) on arrays of one type. F has
 *     void prepare();                                                    once per thread
 *     template <int N> void all(float (&v)[INPUTS][N], int64_t at);      the result of v, which is x from `at` on, to v[0] */
template <class T, int INPUTS, class F> struct elements {
    T *y;
    const T *x[INPUTS];
    F f;
    __device__ F prepare() const
    {
        F g = f;
        g.prepare();
        return g;
    }
    template <int N> struct in {
        vec<T, N> x[INPUTS];
    };
    template <int N> __device__ in<N> load(int64_t at) const
    {
        in<N> v;
#pragma unroll
        for (int k = 0; k < INPUTS; k++) v.x[k] = vec_load<N>(x[k] + at);
        return v;
    }
    template <int N> __device__ void make(int64_t at, const in<N> &from, const F &g) const
    {
        float v[INPUTS][N];
#pragma unroll
        for (int k = 0; k < INPUTS; k++) widen(v[k], from.x[k]);
        g.all(v, at);
        vec_store<N>(y + at, vec_of<T>(v[0]));
    }
};

template <class T, int INPUTS, class F>
static int elements_start(void *stream, void *y, const void *const (&x)[INPUTS], int64_t n, const F &f)
{
    elements<T, INPUTS, F> op = {(T *)y, {}, f};
    bool aligned = aligned16(y);
    for (int k = 0; k < INPUTS; k++) op.x[k] = (const T *)x[k], aligned = aligned && aligned16(x[k]);
    return point_start<whole<T>>(stream, op, n, aligned);
}

#endif
