/* vec.cuh - N neighbours of a type, moved in one access and computed with in float. N is 16 bytes' worth of them (whole<T>), 4, or 1 where
 * an address or a length does not allow more. */
#ifndef LS_CUDA_KERNELS_VEC_CUH
#define LS_CUDA_KERNELS_VEC_CUH

#include "compute/cuda/gpu.cuh"

template <class T> constexpr int whole = 16 / (int)sizeof(T);

template <class T, int N> struct alignas(N * sizeof(T)) vec {
    T x[N];
};

/* The plain word of so many bytes. */
template <int NBYTES> struct word_of;
template <> struct word_of<2> {
    typedef unsigned short type;
};
template <> struct word_of<4> {
    typedef unsigned type;
};
template <> struct word_of<8> {
    typedef uint2 type;
};
template <> struct word_of<16> {
    typedef uint4 type;
};

/* once: nobody reads it again soon. */
template <int N, bool once = false, class T> LS_DEVICE vec<T, N> vec_load(const T *p)
{
    typedef typename word_of<(int)sizeof(T) * N>::type word;
#ifdef LS_EMU
    emu_check_aligned(p, sizeof(word));
#endif
    const word *from = reinterpret_cast<const word *>(p);
    const word u = once ? __ldcs(from) : *from;
    vec<T, N> v;
    memcpy(&v, &u, sizeof v);
    return v;
}

template <int N, bool once = false, class T> LS_DEVICE void vec_store(T *p, const vec<T, N> &v)
{
    typedef typename word_of<(int)sizeof(T) * N>::type word;
#ifdef LS_EMU
    emu_check_aligned(p, sizeof(word));
#endif
    word u;
    memcpy(&u, &v, sizeof u);
    if (once) __stcs(reinterpret_cast<word *>(p), u);
    else *reinterpret_cast<word *>(p) = u;
}

template <class T, int N> LS_DEVICE vec<T, N> vec_zero()
{
    vec<T, N> v;
#pragma unroll
    for (int i = 0; i < N; i++) v.x[i] = from_float<T>(0.0f);
    return v;
}

template <int N, class T> LS_DEVICE void widen(float (&f)[N], const vec<T, N> &v)
{
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = to_float(v.x[i]);
}

template <class T, int N> LS_DEVICE vec<T, N> vec_of(const float (&f)[N])
{
    vec<T, N> v;
#pragma unroll
    for (int i = 0; i < N; i++) v.x[i] = from_float<T>(f[i]);
    return v;
}

/* Dropout of elements first … first+N-1. */
template <int N> LS_DEVICE void drop_all(float (&f)[N], const drop_arg &d, uint64_t key, int64_t first)
{
    if (!d.on) return;
#pragma unroll
    for (int i = 0; i < N; i++) f[i] *= drop_factor(d, key, (uint32_t)(first + i));
}

/* On the host: whether all of up to six addresses (NULL does) allow 16-byte accesses. */
static inline bool aligned16(const void *a, const void *b = nullptr, const void *c = nullptr, const void *d = nullptr,
                             const void *e = nullptr, const void *f = nullptr)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e | (uintptr_t)f) & 15) == 0;
}

#endif
