/* gpu.cuh - what every kernel file includes: launching, number types, reductions in one order, dropout.
 *
 * Compiled by nvcc, or by a C++17 compiler with -DLS_EMU against the emulated device (tests/fake_cuda, whose headers have the names of CUDA's).
 * Rules for kernel files:
 *   - launch with LS_LAUNCH(kernel, grid, block, smem_bytes, stream, args...): an int, 0 when it was queued; kernels with commas in their
 *     template arguments are put in parentheses: LS_LAUNCH((k<T, 4>), ...)
 *   - shared arrays: LS_SHARED(float, tile, [32][33]);  dynamic: float *x = LS_SHARED_DYNAMIC(float); with smem_bytes above 48 KiB
 *     call LS_ALLOW_SHARED(kernel, bytes) first
 *   - device code outside kernels: `static __device__ __forceinline__`
 *   - PTX only in small functions here, in mma.cuh and in wgmma.cuh; tests/fake_cuda/include (device_emu.h, wgmma_emu.h) has each of them, too
 *   - blocks are whole warps; every thread reaches every barrier, every lane of a mask its collective; no float atomics.
 * Launchers are extern "C", take `void *stream` and return int (cudaError_t). */
#ifndef LS_CUDA_GPU_CUH
#define LS_CUDA_GPU_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "compute/compute.h"
#include "core/rng.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#define LS_DEVICE      static __device__ __forceinline__
#define LS_HOST_DEVICE static __host__ __device__ __forceinline__

typedef __nv_bfloat16 bf16;
typedef __half f16;

/* ---- launching, and PTX ---- */

#ifdef LS_EMU
#include <device_emu.h> /* the same functions for the emulated device */
#else
#ifdef __CUDA_ARCH__
#define LS_ARCH      \
    (__CUDA_ARCH__ / \
     10) /* what this code is compiled for: 75. Instructions that it does not have are in branches that test it */
#else
#define LS_ARCH 0 /* the host's half */
#endif
#define LS_BUILT_FOR(from, below)   (LS_ARCH >= (from) && LS_ARCH < (below)) /* code for others need not be compiled */
template <class... P, class... A>
static inline int ls_launch(const char *, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, void *stream,
                            A... args)
{
    kernel<<<grid, block, smem, (cudaStream_t)stream>>>(static_cast<P>(args)...);
    return (int)cudaGetLastError();
}
#define LS_SHARED(type, name, dims) __shared__ __align__(16) type name dims
extern __shared__ __align__(128) unsigned char ls_shared_dynamic[];
#define LS_SHARED_DYNAMIC(type)     ((type *)ls_shared_dynamic)

LS_DEVICE float ex2(float x) /* 2^x, 2 ulp; 2^-inf = 0 */
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

LS_DEVICE float rcp(float x) /* 1 / x, 1 ulp; of infinity 0 */
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

LS_DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

LS_DEVICE void async16(void *dst, const void *src, int nbytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(dst)), "l"(src), "r"(nbytes)
                 : "memory");
}

LS_DEVICE void async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> LS_DEVICE void async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

LS_DEVICE void emu_check_aligned(const void *, size_t) {} /* the emulated device stops where an address is not */
#endif

/* Stores in front of it stay there, and loads after it. */
LS_DEVICE void compiler_fence()
{
    asm volatile("" ::: "memory");
}

/* 16 bytes from global to shared memory, from 8.0 on asynchronously; complete after cp_async_wait and a barrier. !take: 16 bytes of 0. */
LS_DEVICE void cp_async16(void *dst, const void *src, bool take = true)
{
    if (LS_ARCH >= 80) return async16(dst, src, take ? 16 : 0);
    *(uint4 *)dst = take ? *(const uint4 *)src : make_uint4(0, 0, 0, 0);
}

LS_DEVICE void cp_async_commit()
{
    if (LS_ARCH >= 80) async_commit();
}

template <int PENDING> LS_DEVICE void cp_async_wait() /* until at most PENDING groups are in flight */
{
    if (LS_ARCH >= 80) async_wait<PENDING>();
    else compiler_fence();
}

#define LS_LAUNCH(kernel, grid, block, smem, stream, ...) \
    ls_launch(#kernel, (kernel), (grid), (block), (size_t)(smem), (void *)(stream), __VA_ARGS__)
#define LS_ALLOW_SHARED(kernel, nbytes) \
    ((int)cudaFuncSetAttribute((kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(nbytes)))

/* The statements, which return, with T being the type of dt: LS_DISPATCH(dt, T, return LS_LAUNCH(gelu<T>, ...)). The function
 * ends here: other types are cudaErrorInvalidValue. */
#define LS_DISPATCH(dt, T, ...)                 \
    switch (dt) {                               \
    case LS_F32: {                              \
        typedef float T;                        \
        __VA_ARGS__;                            \
    }                                           \
    case LS_BF16: {                             \
        typedef bf16 T;                         \
        __VA_ARGS__;                            \
    }                                           \
    case LS_F16: {                              \
        typedef f16 T;                          \
        __VA_ARGS__;                            \
    }                                           \
    default: return (int)cudaErrorInvalidValue; \
    }

/* ---- numbers ---- */

template <class I> static __host__ __device__ constexpr inline I ceil_div(I a, I b)
{
    return (a + b - 1) / b;
}

template <class T> LS_HOST_DEVICE float to_float(T x)
{
    if constexpr (std::is_same<T, bf16>::value) return __bfloat162float(x);
    else if constexpr (std::is_same<T, f16>::value) return __half2float(x);
    else return x;
}

/* Rounds to nearest even. */
template <class T> LS_HOST_DEVICE T from_float(float x)
{
    if constexpr (std::is_same<T, bf16>::value) return __float2bfloat16_rn(x);
    else if constexpr (std::is_same<T, f16>::value) return __float2half_rn(x);
    else return x;
}

/* ---- reductions: one order, fixed by the block's shape ---- */

template <class T> LS_DEVICE T warp_sum(T x) /* all 32 lanes get it */
{
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

template <class T> LS_DEVICE T warp_max(T x)
{
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        const T other = __shfl_xor_sync(0xffffffffu, x, d);
        x = other > x ? other : x;
    }
    return x;
}

LS_DEVICE int lane_id()
{
    return (int)(threadIdx.x & 31);
} /* of blocks with blockDim.x a multiple of 32 */
LS_DEVICE int warp_id()
{
    return (int)(threadIdx.x >> 5);
}

/* ---- dropout ---- */

/* A kernel's argument, made on the host: drop_arg d = drop_of(drop).  In the kernel: const uint64_t key = drop_key(d) once per thread, then
 * x * drop_factor(d, key, i). `i` is the element's index in the whole array (d.first is not added here). */
struct drop_arg {
    uint64_t key;
    const ls_pass_head *at;
    int64_t first, head, n_head;
    uint32_t unit, site, threshold;
    float scale;
    int on;
};

static inline drop_arg drop_of(const ls_drop &d)
{
    drop_arg a = {};
    a.scale = 1.0f;
    a.first = d.first;
    a.head = d.head;
    a.n_head = d.n_head;
    if (!(d.p > 0)) return a;
    a.on = 1;
    a.key = d.key;
    a.at = d.at;
    a.unit = d.unit;
    a.site = d.site;
    a.threshold = (uint32_t)ceil((double)d.p * 4294967296.0);
    a.scale = (float)(1.0 / (1.0 - (double)d.p));
    return a;
}

LS_DEVICE uint64_t drop_key(const drop_arg &d)
{
    if (!d.on || !d.at) return d.key;
    return ls_rng_key(d.at->drop_key, LS_RNG_DROPOUT, d.unit, d.site);
}

/* 0 or 1/(1-p); 1 where dropout is off. */
LS_DEVICE float drop_factor(const drop_arg &d, uint64_t key, uint32_t i)
{
    if (!d.on) return 1.0f;
    return ls_rng_u32(key, i) >= d.threshold ? d.scale : 0.0f;
}

#endif
