/* vec.cuh - N neighbours of a type, moved in one access and computed with in float. N is 16 bytes' worth of them (whole<T>), or 1 where an
 * address or a length does not allow that. */
#ifndef LS_CUDA_KERNELS_VEC_CUH
#define LS_CUDA_KERNELS_VEC_CUH

#include "compute/cuda/gpu.cuh"

template <class T> constexpr int whole = 16 / (int)sizeof(T);

template <class T, int N> struct alignas(N * sizeof(T)) vec {
    T x[N];
};

template <int N, class T> __device__ inline vec<T, N> vec_load(const T *p)
{
    return *reinterpret_cast<const vec<T, N> *>(p);
}

template <int N, class T> __device__ inline void vec_store(T *p, const vec<T, N> &v)
{
    *reinterpret_cast<vec<T, N> *>(p) = v;
}

template <class T, int N> __device__ inline vec<T, N> vec_zero()
{
    vec<T, N> v;
#pragma unroll
    for (int i = 0; i < N; i++) v.x[i] = from_f32<T>(0.0f);
    return v;
}

/* Both at once, for kernels that read every element one time. */
template <int N, class T> __device__ inline void load_f32(float (&f)[N], const T *p)
{
    const vec<T, N> v = vec_load<N>(p);
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = to_f32(v.x[i]);
}

template <int N, class T> __device__ inline vec<T, N> vec_of(const float (&f)[N])
{
    vec<T, N> v;
#pragma unroll
    for (int i = 0; i < N; i++) v.x[i] = from_f32<T>(f[i]);
    return v;
}

/* On the host: whether all of up to six addresses (NULL is) allow 16-byte accesses, … */
static inline bool aligned16(const void *a, const void *b = nullptr, const void *c = nullptr, const void *d = nullptr,
                             const void *e = nullptr, const void *f = nullptr)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e | (uintptr_t)f) & 15) == 0;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#endif
