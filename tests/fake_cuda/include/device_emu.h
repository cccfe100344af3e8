/* device_emu.h - launching and PTX (compute/cuda/gpu.cuh, kernels/mma.cuh) for the emulated device. For products of small matrices the lanes of
 * a warp exchange their operands, and each computes its own part. */
#ifndef LS_DEVICE_EMU_H
#define LS_DEVICE_EMU_H

#include "fake_cuda/emu.h"

template <class... P, class... A>
static inline int ls_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, void *stream,
                            A... args)
{
    std::tuple<P...> all(static_cast<P>(args)...);
    return (int)emu_launch(name, reinterpret_cast<const void *>(kernel), grid, block, smem, (cudaStream_t)stream,
                           [kernel, all] { std::apply(kernel, all); });
}
#define LS_SHARED(type, name, dims)                   \
    typedef type name##_shared_t dims;                \
    static emu_shared<name##_shared_t> name##_shared; \
    name##_shared_t &name = name##_shared.get()
#define LS_SHARED_DYNAMIC(type)   ((type *)emu_dynamic_shared())
#define LS_ARCH                   emu_arch
#define LS_BUILT_FOR(from, below) true /* all in one program: the launch decides */

static inline float ex2(float x)
{
    return exp2f(x);
}

static inline float rcp(float x)
{
    return 1.0f / x;
}

static inline void async16(void *dst, const void *src, int nbytes)
{
    emu_needs(80, "cp.async");
    emu_cp_async(dst, src, 16, (size_t)nbytes);
}

static inline void async_commit()
{
    emu_cp_async_commit();
}

template <int PENDING> static inline void async_wait()
{
    emu_cp_async_wait(PENDING);
}

/* ---- kernels/mma.cuh ---- */

typedef char *saddr; /* an address in shared memory */

static inline saddr shared_address(const void *p)
{
    return (char *)(uintptr_t)p;
}

/* Lane l's register i: two 16-bit elements of row l/4 of matrix i, from column 2(l%4) on; transposed, of column l/4 from row 2(l%4) on. */
static inline void emu_ldmatrix(uint32_t r[4], saddr row, bool across, const char *what)
{
    emu_needs(75, what);
    emu_check_aligned(row, 16);
    const saddr *rows = (const saddr *)emu_warp_exchange(&row, sizeof row, 0xffffffffu, what);
    const unsigned lane = emu_lane(), g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (unsigned e = 0; e < 2; e++) {
            const unsigned y = across ? 2 * t + e : g, x = across ? g : 2 * t + e;
            memcpy(&pair[e], rows[8 * i + y] + 2 * x, 2);
        }
        r[i] = (uint32_t)pair[1] << 16 | pair[0];
    }
    __syncwarp(); /* a lane may write there only when all have read, as on the device */
}

static inline void load_matrix4(uint32_t r[4], saddr row)
{
    emu_ldmatrix(r, row, false, "ldmatrix");
}

static inline void ldmatrix4_t(uint32_t r[4], saddr row)
{
    emu_ldmatrix(r, row, true, "ldmatrix.trans");
}

static inline uint32_t lds32(saddr at)
{
    emu_check_aligned(at, 4);
    uint32_t x;
    memcpy(&x, at, 4);
    return x;
}

static inline void lds64(uint32_t x[2], saddr at)
{
    emu_check_aligned(at, 8);
    memcpy(x, at, 8);
}

static inline void lds128(uint32_t x[4], saddr at)
{
    emu_check_aligned(at, 16);
    memcpy(x, at, 16);
}

static inline void sts32(saddr at, uint32_t x)
{
    emu_check_aligned(at, 4);
    memcpy(at, &x, 4);
}

static inline float emu_part(uint32_t pair, int e, bf16)
{
    return emu_of_bf16((uint16_t)(pair >> 16 * e));
}

static inline float emu_part(uint32_t pair, int e, f16)
{
    return emu_of_half((uint16_t)(pair >> 16 * e));
}

template <class E> static inline void emu_mma16(float d[4], const uint32_t a[4], const uint32_t b[2], const char *what)
{
    emu_needs(80, what);
    emu_operands<2> mine;
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < 4; i++) mine.a[i][e] = emu_part(a[i], e, E());
        for (int i = 0; i < 2; i++) mine.b[i][e] = emu_part(b[i], e, E());
    }
    emu_mma(d, mine, what);
}

static inline void mma16(float d[4], const uint32_t a[4], const uint32_t b[2], bf16)
{
    emu_mma16<bf16>(d, a, b, "mma.m16n8k16 bf16");
}

static inline void mma16(float d[4], const uint32_t a[4], const uint32_t b[2], f16)
{
    emu_mma16<f16>(d, a, b, "mma.m16n8k16 f16");
}

static inline void mma8(float d[4], const uint32_t a[2], uint32_t b)
{
    emu_needs(75, "mma.m16n8k8 f16");
    emu_operands<2> mine = {};
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < 2; i++) mine.a[i][e] = emu_part(a[i], e, f16());
        mine.b[0][e] = emu_part(b, e, f16());
    }
    emu_mma(d, mine, "mma.m16n8k8 f16");
}

template <bool ROWS> static inline void mma_quads(float d[8], const uint32_t a[2], const uint32_t b[2])
{
    emu_quads mine;
    for (int k = 0; k < 4; k++)
        mine.a[k] = emu_part(a[k / 2], k % 2, f16()), mine.b[k] = emu_part(b[k / 2], k % 2, f16());
    emu_mma_quads(d, mine, ROWS);
}

static inline void mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emu_needs(80, "mma tf32");
    emu_operands<1> mine;
    for (int i = 0; i < 4; i++) mine.a[i][0] = __uint_as_float(a[i] & 0xffffe000u);
    for (int i = 0; i < 2; i++) mine.b[i][0] = __uint_as_float(b[i] & 0xffffe000u);
    emu_mma(d, mine, "mma tf32");
}

static inline uint32_t to_tf32(float x)
{
    return (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
}

static inline int block_again()
{
    return (int)blockIdx.x;
}

static inline int thread_again()
{
    return (int)threadIdx.x;
}

static inline void async4(saddr to, const void *from, bool there)
{
    emu_needs(80, "cp.async");
    emu_cp_async(to, from, 4, there ? 4 : 0);
}

#endif
