/* vec.cuh - N neighbours of a type, moved in one access and computed with in float. N is 16 bytes' worth of them
 * (whole<T>), 4, or 1 where an address or a length does not allow more. */
#ifndef LS_CUDA_KERNELS_VEC_CUH
#define LS_CUDA_KERNELS_VEC_CUH

#include "compute/cuda/gpu.cuh"
#include "compute/cuda/kernels/kernels.h"

template <class T> constexpr int whole = 16 / (int)sizeof(T);

/* The plain word of 2, 4, 8 or 16 bytes. */
template <class A, class B, bool FIRST> using either = typename std::conditional<FIRST, A, B>::type;
template <int NBYTES>
using word_of = either<either<unsigned short, unsigned, NBYTES == 2>, either<uint2, uint4, NBYTES == 8>, NBYTES <= 4>;

/* As they are in memory, in as few registers: a compiler gives single 16-bit numbers a register each. */
template <class T, int N> struct vec {
    word_of<(int)sizeof(T) * N> u;
};

/* once: nobody reads it again soon. */
template <int N, bool once = false, class T> LS_DEVICE vec<T, N> vec_load(const T *p)
{
    typedef word_of<(int)sizeof(T) * N> word;
    emu_check_aligned(p, sizeof(word));
    const word *from = reinterpret_cast<const word *>(p);
    return {once ? __ldcs(from) : *from};
}

template <int N, bool once = false, class T> LS_DEVICE void vec_store(T *p, const vec<T, N> &v)
{
    typedef word_of<(int)sizeof(T) * N> word;
    emu_check_aligned(p, sizeof(word));
    if (once) __stcs(reinterpret_cast<word *>(p), v.u);
    else *reinterpret_cast<word *>(p) = v.u;
}

template <class T, int N> LS_DEVICE vec<T, N> vec_zero()
{
    vec<T, N> v;
    memset(&v, 0, sizeof v);
    return v;
}

/* The same bits as another type. */
template <class To, class From> LS_DEVICE To bits_as(const From &x)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

/* Two narrow numbers out of, and into, a word; the first is the lower half. */
LS_DEVICE float2 widen2(unsigned u, bf16)
{
    return make_float2(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u));
}
LS_DEVICE float2 widen2(unsigned u, f16)
{
    return __half22float2(bits_as<__half2>(u));
}
LS_DEVICE unsigned narrow2(float a, float b, bf16)
{
    return bits_as<unsigned>(__floats2bfloat162_rn(a, b));
}
LS_DEVICE unsigned narrow2(float a, float b, f16)
{
    return bits_as<unsigned>(__floats2half2_rn(a, b));
}

/* The larger of each two of a word. */
LS_DEVICE unsigned max2(unsigned a, unsigned b, bf16)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800 /* which has no such instruction */
    const float2 x = widen2(a, bf16()), y = widen2(b, bf16());
    return narrow2(fmaxf(x.x, y.x), fmaxf(x.y, y.y), bf16());
#else
    return bits_as<unsigned>(__hmax2(bits_as<__nv_bfloat162>(a), bits_as<__nv_bfloat162>(b)));
#endif
}
LS_DEVICE unsigned max2(unsigned a, unsigned b, f16)
{
    return bits_as<unsigned>(__hmax2(bits_as<__half2>(a), bits_as<__half2>(b)));
}

template <int N, class T> LS_DEVICE void widen(float (&f)[N], const vec<T, N> &v)
{
    if constexpr (sizeof(T) == sizeof(float)) {
        memcpy(f, &v, sizeof f);
    } else if constexpr (N == 1) {
        f[0] = to_float(bits_as<T>(v));
    } else {
        unsigned u[N / 2];
        memcpy(u, &v, sizeof u);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float2 pair = widen2(u[i], T());
            f[2 * i] = pair.x;
            f[2 * i + 1] = pair.y;
        }
    }
}

/* Rounds to nearest even. */
template <class T, int N> LS_DEVICE vec<T, N> vec_of(const float (&f)[N])
{
    if constexpr (sizeof(T) == sizeof(float)) {
        return bits_as<vec<T, N>>(f);
    } else if constexpr (N == 1) {
        return bits_as<vec<T, N>>(from_float<T>(f[0]));
    } else {
        unsigned u[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) u[i] = narrow2(f[2 * i], f[2 * i + 1], T());
        return bits_as<vec<T, N>>(u);
    }
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
