/* emu.h - a CUDA device in plain C++17: replaces the CUDA headers in kernel files that are compiled with -DLS_EMU.
 *
 * Every CUDA thread is a fiber; the threads of a block meet at barriers, those of a warp in shuffles and votes; blocks run one after the
 * other. Nothing runs at the same time, so `__shared__` is `static` and an atomic is a plain operation.
 *
 * What it finds that a device may not show
 *   - a barrier or a warp collective that not all threads reach: it stops and prints the kernel, the block and the position of each thread
 *   - reads of unwritten shared memory: LS_SHARED and dynamic shared memory are NaN bytes when a block begins
 *   - accesses outside of shared and device memory, with AddressSanitizer; vector accesses that are not aligned
 *   - a missing barrier: LS_EMU_ORDER=<number> shuffles the order in which threads run (several numbers should give equal results)
 *   - a missing cp_async_wait: asynchronous copies happen as late as they may; the same for Hopper's copies and products (hopper.h)
 *   - a launch that a device would refuse: block and grid limits, more than 48 KiB of shared memory that was not requested, or more than the
 *     emulated card has (static and dynamic together)
 *   - what the emulated card (LS_EMU_GPU) does not have: instructions (emu_needs) and types of the libraries
 *
 * A collective with a mask needs every lane of the mask, as in CUDA; blocks should consist of whole warps. */
#ifndef LS_EMU_EMU_H
#define LS_EMU_EMU_H

#include "fake_cuda/runtime.h"
#include "fake_cuda/types.h"

#include <functional>
#include <stdlib.h>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__    static
#define __shared__      static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __grid_constant__

static constexpr int warpSize = 32;
/* The running thread's coordinates. One kernel runs at a time in a process, so these are plain variables. */
extern uint3 emu_tid, emu_bid;
extern dim3 emu_bdim, emu_gdim;
#define threadIdx emu_tid
#define blockIdx  emu_bid
#define blockDim  emu_bdim
#define gridDim   emu_gdim

/* ---- launching ---- */
typedef std::function<void()> emu_body;
cudaError_t emu_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t smem, cudaStream_t s,
                       emu_body body);
cudaError_t emu_func_attribute(const void *kernel, cudaFuncAttribute what, int value);

/* 75: the emulated card is a 7.5 (LS_EMU_GPU). */
int emu_capability(void);
/* What the running kernel is compiled for: LS_EMU_CODE, or the card's. emu_needs stops the program at an instruction that needs more. */
extern int emu_arch;
void emu_needs(int arch, const char *instruction);

struct cudaFuncAttributes {
    int maxThreadsPerBlock, ptxVersion, binaryVersion;
};
cudaError_t emu_func_code(
    cudaFuncAttributes *a); /* LS_EMU_CODE: the architecture of the code; none: there is none for the card */
template <class F> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, F *)
{
    a->maxThreadsPerBlock = 1024;
    return emu_func_code(a);
}
template <class F> static inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute what, int value)
{
    return emu_func_attribute(reinterpret_cast<const void *>(kernel), what, value);
}

/* ---- collectives ---- */
/* Waits for n threads at barrier id (n 0: all of the block); returns the number of threads that passed pred. */
int emu_barrier(int id, int n, bool pred);
/* Every lane of mask gives n bytes, and gets those of all 32 (row i: of lane i; lanes outside mask: undefined). The rows are a copy
 * of the warp: valid until the next warp collective of this lane. `what` names the collective in messages; it must be the same in all lanes. */
const void *emu_warp_exchange(const void *mine, size_t n, unsigned mask, const char *what);

/* The product of small matrices: the operands of a lane as numbers (each lane converts its own, once). Adds the lane's four elements. */
template <int PER_WORD> struct emu_operands {
    float a[4][PER_WORD], b[2][PER_WORD];
};
template <int PER_WORD> void emu_mma(float d[4], const emu_operands<PER_WORD> &mine, const char *what);
struct emu_quads { /* of m8n8k4 */
    float a[4], b[4];
};
void emu_mma_quads(float d[8], const emu_quads &mine, bool rows);
unsigned emu_lane(void);
void emu_check_aligned(const void *p, size_t n); /* stops if it is not aligned */
[[noreturn]] void emu_stop(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

template <class T> static inline const T *emu_gather(T v, unsigned mask, const char *what)
{
    return static_cast<const T *>(emu_warp_exchange(&v, sizeof v, mask, what));
}

static inline void __syncthreads()
{
    emu_barrier(0, 0, false);
}
static inline int __syncthreads_or(int p)
{
    return emu_barrier(0, 0, p != 0) > 0;
}
static inline int __syncthreads_and(int p)
{
    return emu_barrier(0, 0, p == 0) == 0;
}
static inline int __syncthreads_count(int p)
{
    return emu_barrier(0, 0, p != 0);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emu_gather<char>(0, mask, "__syncwarp");
}

template <class T> static inline T __shfl_sync(unsigned mask, T v, int src, int width = 32)
{
    const int lane = (int)emu_lane(), first = lane & ~(width - 1);
    return emu_gather(v, mask, "__shfl_sync")[first + (src & (width - 1))];
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32)
{
    const int lane = (int)emu_lane(), from = lane ^ x, past = (lane & ~(width - 1)) + width;
    return emu_gather(v, mask, "__shfl_xor_sync")[from < past ? from : lane];
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32)
{
    const int lane = (int)emu_lane(), from = lane - (int)d;
    return emu_gather(v, mask, "__shfl_up_sync")[from >= (lane & ~(width - 1)) ? from : lane];
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32)
{
    const int lane = (int)emu_lane(), from = lane + (int)d;
    return emu_gather(v, mask, "__shfl_down_sync")[from < (lane & ~(width - 1)) + width ? from : lane];
}
static inline unsigned __ballot_sync(unsigned mask, int p)
{
    const int *all = emu_gather<int>(p != 0, mask, "__ballot_sync");
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1 && all[i]) votes |= 1u << i;
    return votes;
}
static inline int __any_sync(unsigned mask, int p)
{
    return __ballot_sync(mask, p) != 0;
}
static inline int __all_sync(unsigned mask, int p)
{
    return __ballot_sync(mask, p) == mask;
}
#define EMU_REDUCE(name, T, expr)                     \
    static inline T name(unsigned mask, T v)          \
    {                                                 \
        const T *all = emu_gather<T>(v, mask, #name); \
        bool first = true;                            \
        T a = 0;                                      \
        for (unsigned i = 0; i < 32; i++) {           \
            if (!(mask >> i & 1)) continue;           \
            const T b = all[i];                       \
            a = first ? b : (T)(expr);                \
            first = false;                            \
        }                                             \
        return a;                                     \
    }
EMU_REDUCE(__reduce_add_sync, int, a + b)
EMU_REDUCE(__reduce_add_sync, unsigned, a + b)
EMU_REDUCE(__reduce_max_sync, int, a > b ? a : b)
EMU_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
EMU_REDUCE(__reduce_min_sync, int, a < b ? a : b)
EMU_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
EMU_REDUCE(__reduce_or_sync, unsigned, a | b)
EMU_REDUCE(__reduce_and_sync, unsigned, a &b)
#undef EMU_REDUCE
static inline unsigned __activemask()
{
    return 1u << emu_lane();
} /* as on the device, nothing more is guaranteed */

/* ---- shared memory ---- */
uint64_t emu_block_serial(void); /* a different number for every block that ever ran  */
void *emu_dynamic_shared(void);  /* exactly as many bytes as the launch requested     */
void emu_static_shared(
    size_t nbytes); /* the block has so many bytes more: stops where the launch has no room for them */

/* The storage of LS_SHARED: NaN bytes until the block writes it. */
template <class T> struct emu_shared {
    alignas(16) unsigned char bytes[sizeof(T)];
    uint64_t block = 0;
    T &get()
    {
        if (block != emu_block_serial()) {
            memset(bytes, 0xff, sizeof bytes);
            emu_static_shared(sizeof bytes);
            block = emu_block_serial();
        }
        return *reinterpret_cast<T *>(bytes);
    }
};

/* ---- asynchronous copies: done when they are waited for, or never ---- */
void emu_cp_async(void *dst, const void *src, size_t nbytes, size_t nread); /* bytes after nread become 0 */
void emu_cp_async_commit(void);
void emu_cp_async_wait(int pending); /* until at most this number of groups is pending */

/* ---- atomics and memory ---- */
template <class T> static inline T atomicAdd(T *p, std::common_type_t<T> v)
{
    const T old = *p;
    *p = (T)(old + v);
    return old;
}
template <class T> static inline T atomicMax(T *p, std::common_type_t<T> v)
{
    const T old = *p;
    if (v > old) *p = v;
    return old;
}
template <class T> static inline T __ldcs(const T *p)
{
    emu_check_aligned(p, sizeof(T));
    return *p;
}
template <class T> static inline void __stcs(T *p, std::common_type_t<T> v)
{
    emu_check_aligned(p, sizeof(T));
    *p = v;
}

/* ---- numbers ---- */
static inline float __uint_as_float(unsigned x)
{
    return emu_bits<float>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return emu_bits<unsigned>(x);
}
/* Byte i of the result is byte (selector >> 4i) & 7 of x (0 to 3) and y (4 to 7). */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned z = 0;
    for (int i = 0; i < 4; i++) z |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return z;
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}

#endif
