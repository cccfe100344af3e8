/* types.h - CUDA's vector types, bfloat16 and half in plain C++, with the conversions and the arithmetic that kernels here use. Every
 * operation on 16-bit numbers is computed in float and rounded to nearest even, as the device does. */
#ifndef LS_EMU_TYPES_H
#define LS_EMU_TYPES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EMU_VECTOR(T, name)                                         \
    struct name##1                                                  \
    {                                                               \
        T x;                                                        \
    };                                                              \
    struct alignas(2 * sizeof(T)) name##2                           \
    {                                                               \
        T x, y;                                                     \
    };                                                              \
    struct name##3                                                  \
    {                                                               \
        T x, y, z;                                                  \
    };                                                              \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 \
    {                                                               \
        T x, y, z, w;                                               \
    };                                                              \
    static inline name##2 make_##name##2(T x, T y)                  \
    {                                                               \
        return {x, y};                                              \
    }                                                               \
    static inline name##3 make_##name##3(T x, T y, T z)             \
    {                                                               \
        return {x, y, z};                                           \
    }                                                               \
    static inline name##4 make_##name##4(T x, T y, T z, T w)        \
    {                                                               \
        return {x, y, z, w};                                        \
    }
EMU_VECTOR(signed char, char)
EMU_VECTOR(unsigned char, uchar)
EMU_VECTOR(short, short)
EMU_VECTOR(unsigned short, ushort)
EMU_VECTOR(int, int)
EMU_VECTOR(unsigned, uint)
EMU_VECTOR(long long, longlong)
EMU_VECTOR(unsigned long long, ulonglong)
EMU_VECTOR(float, float)
EMU_VECTOR(double, double)
#undef EMU_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    operator uint3() const { return {x, y, z}; }
};

template <class To, class From> static inline To emu_bits(From f)
{
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To t;
    memcpy(&t, &f, sizeof t);
    return t;
}

static inline uint16_t emu_to_bf16(float f)
{
    const uint32_t u = emu_bits<uint32_t>(f);
    if (f != f) return 0x7fff;
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline float emu_of_bf16(uint16_t h)
{
    return emu_bits<float>((uint32_t)h << 16);
}

static inline uint16_t emu_to_half(float f)
{
    const uint32_t u = emu_bits<uint32_t>(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return 0x7fff;
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or more */
    if (a < 0x38800000) {                                  /* below the normal numbers: a multiple of 2^-24 */
        const float steps = rintf(emu_bits<float>(a) * 16777216.0f);
        return (uint16_t)(sign | (uint32_t)steps);
    }
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13));
}

static inline float emu_of_half(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff;
    if (e == 31) return emu_bits<float>(sign | 0x7f800000 | m << 13);
    if (e) return emu_bits<float>(sign | (e + 112) << 23 | m << 13);
    const float small = (float)m * 0x1p-24f;
    return sign ? -small : small;
}

#define EMU_NARROW(name, to, of)                    \
    struct alignas(2) name {                        \
        uint16_t bits;                              \
        name() = default;                           \
        name(float f) : bits(to(f)) {}              \
        name(double f) : bits(to((float)f)) {}      \
        name(int f) : bits(to((float)f)) {}         \
        operator float() const { return of(bits); } \
    };                                              \
    static inline name operator+(name a, name b)    \
    {                                               \
        return name((float)a + (float)b);           \
    }                                               \
    static inline name operator-(name a, name b)    \
    {                                               \
        return name((float)a - (float)b);           \
    }                                               \
    static inline name operator*(name a, name b)    \
    {                                               \
        return name((float)a * (float)b);           \
    }                                               \
    static inline name operator/(name a, name b)    \
    {                                               \
        return name((float)a / (float)b);           \
    }                                               \
    static inline name operator-(name a)            \
    {                                               \
        a.bits ^= 0x8000;                           \
        return a;                                   \
    }                                               \
    static inline name &operator+=(name &a, name b) \
    {                                               \
        return a = a + b;                           \
    }                                               \
    static inline bool operator<(name a, name b)    \
    {                                               \
        return (float)a < (float)b;                 \
    }                                               \
    static inline bool operator>(name a, name b)    \
    {                                               \
        return (float)a > (float)b;                 \
    }                                               \
    struct alignas(4) name##2                       \
    {                                               \
        name x, y;                                  \
    };
EMU_NARROW(__nv_bfloat16, emu_to_bf16, emu_of_bf16)
EMU_NARROW(__half, emu_to_half, emu_of_half)
#undef EMU_NARROW
/* CUDA's names for the pairs */
typedef __half half;

static inline float __bfloat162float(__nv_bfloat16 h)
{
    return (float)h;
}
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return f;
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {a, b};
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    return emu_bits<__nv_bfloat16>(u);
}
static inline float __half2float(__half h)
{
    return (float)h;
}
static inline __half __float2half_rn(float f)
{
    return f;
}
static inline __half2 __floats2half2_rn(float a, float b)
{
    return {a, b};
}
static inline float2 __half22float2(__half2 h)
{
    return {h.x, h.y};
}
static inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return {fmaxf(a.x, b.x), fmaxf(a.y, b.y)};
}
static inline __half2 __hmax2(__half2 a, __half2 b)
{
    return {fmaxf(a.x, b.x), fmaxf(a.y, b.y)};
}

#endif
