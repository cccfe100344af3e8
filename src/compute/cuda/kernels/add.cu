/* add.cu - sums, dropout, and moving bytes.
 *
 *   add_fwd   y = x + drop(delta)      6n bytes (16-bit types)
 *   drop_bwd  dx = drop'(dy)           4n
 *   add       y = a + b                12n in float
 * The mask of dropout is made again from its key (core/rng.h) wherever it is needed. */
#include "compute/cuda/kernels/point.cuh"

namespace {

struct sum {
    __device__ void prepare() {}
    template <int N> __device__ void all(float (&v)[2][N], int64_t) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) v[0][i] += v[1][i];
    }
};

struct dropout {
    drop_arg drop;
    uint64_t key;
    __device__ void prepare() { key = drop_key(drop); }
    template <int N> __device__ void all(float (&v)[1][N], int64_t at) const
    {
        drop_all(v[0], drop, key, drop.first + at);
    }
};

/* Not `elements`: in this form the product and the sum become one fma. */
template <class T> struct sum_drop {
    T *y;
    const T *x, *delta;
    drop_arg drop;
    __device__ uint64_t prepare() const { return drop_key(drop); }
    template <int N> struct in {
        vec<T, N> x, delta;
    };
    template <int N> __device__ in<N> load(int64_t at) const { return {vec_load<N>(x + at), vec_load<N>(delta + at)}; }
    template <int N> __device__ void make(int64_t at, const in<N> &v, uint64_t key) const
    {
        float f[N], x_[N];
        widen(f, v.delta);
        widen(x_, v.x);
        drop_all(f, drop, key, drop.first + at);
#pragma unroll
        for (int i = 0; i < N; i++) f[i] += x_[i];
        vec_store<N>(y + at, vec_of<T>(f));
    }
};

} // namespace

extern "C" int cu_add(void *stream, ls_dtype dt, void *y, const void *a, const void *b, int64_t n)
{
    LS_DISPATCH(dt, T, return elements_start<T>(stream, y, {a, b}, n, sum()));
}

extern "C" int cu_add_fwd(void *stream, ls_dtype dt, void *y, const void *x, const void *delta, int64_t n, ls_drop drop)
{
    if (drop.p <= 0) return cu_add(stream, dt, y, x, delta, n);
    LS_DISPATCH(dt, T, {
        const sum_drop<T> op = {(T *)y, (const T *)x, (const T *)delta, drop_of(drop)};
        return point_start<whole<T>>(stream, op, n, aligned16(y, x, delta));
    });
}

extern "C" int cu_drop_bwd(void *stream, ls_dtype dt, void *dx, const void *dy, int64_t n, ls_drop drop)
{
    if (drop.p <= 0) return dx == dy ? 0 : cu_copy(stream, dx, dy, (size_t)n * ls_dtype_nbytes(dt));
    LS_DISPATCH(dt, T, return elements_start<T>(stream, dx, {dy}, n, dropout{drop_of(drop), 0}));
}

extern "C" int cu_zero(void *stream, void *y, size_t nbytes)
{
    return nbytes ? (int)cudaMemsetAsync(y, 0, nbytes, (cudaStream_t)stream) : 0;
}

extern "C" int cu_copy(void *stream, void *y, const void *x, size_t nbytes)
{
    if (nbytes == 0 || y == x) return 0;
    return (int)cudaMemcpyAsync(y, x, nbytes, cudaMemcpyDefault, (cudaStream_t)stream);
}
