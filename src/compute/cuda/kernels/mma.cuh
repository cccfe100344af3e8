/* mma.cuh - products of small matrices, one warp each, as functions, for every family of cards (card.h, `mma`).
 *
 *   D (16,8) += A (16,K) B (K,8)       K = 16 for bf16 and f16, 8 for float; sums in float
 *
 *   80   tensor cores: bf16, f16 (m16n8k16), float as products of TF32
 *   75   f16 in two steps along K (m16n8k8); float by float operations, one after the other (k, k+4 of each 8)
 *   70   f16 by four products of 8x8x4 at once (m8n8k4, `quads` below), or, through mma(), by float operations; float as 75
 *
 * A lane's part, g = lane / 4, t = lane % 4:   A  rows g, g+8      B  column g       D  d[0..1] = (g, 2t..2t+1), d[2..3] = (g+8, 2t..2t+1)
 * A matrix in shared memory is rows of 16-byte chunks; an ldmatrix takes four 8-row matrices of one chunk each, lane l naming row l%8 of matrix
 * l/8. With K as above a product's A is two chunks wide for every type.
 *
 * Quads   lanes 4i … 4i+3 and 16 more, i < 4, are a group; group i makes rows 8 (i%2) … and columns 8 (i/2) … of D (16,16). A lane's part: A  row
 *         8 (i%2) + 4 (lane/16) + lane%4, all K      B  column 8 (i/2) + 4 (lane/16) + lane%4, all K; or, of rows along K, K 4s + lane%4 and four
 *         columns from 8 (i/2) + 4 (lane/16) on      D  rows r and r+2, r = 8 (i%2) + 4 (lane/16) + lane%2, columns c, c+1, c+4, c+5, c = 8 (i/2) + (lane & 2) */
#ifndef LS_CUDA_MMA_CUH
#define LS_CUDA_MMA_CUH

#include "compute/cuda/kernels/vec.cuh"

#ifndef LS_EMU
typedef uint32_t saddr; /* an address in shared memory */

LS_DEVICE void load_matrix4(uint32_t r[4], saddr row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row));
}

LS_DEVICE void ldmatrix4_t(uint32_t r[4], saddr row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row));
}

LS_DEVICE uint32_t lds32(saddr at)
{
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at));
    return x;
}

LS_DEVICE void lds64(uint32_t x[2], saddr at)
{
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(at));
}

LS_DEVICE void lds128(uint32_t x[4], saddr at)
{
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at));
}

#define MMA(shape_and_types)                                                                         \
    asm("mma.sync.aligned." shape_and_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

LS_DEVICE void mma16(float d[4], const uint32_t a[4], const uint32_t b[2], bf16)
{
    MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}

LS_DEVICE void mma16(float d[4], const uint32_t a[4], const uint32_t b[2], f16)
{
    MMA("m16n8k16.row.col.f32.f16.f16.f32");
}

LS_DEVICE void mma8(float d[4], const uint32_t a[2], uint32_t b) /* of K only 8 */
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* Of K only 4. ROWS: B's are rows along K. */
template <bool ROWS> LS_DEVICE void mma_quads(float d[8], const uint32_t a[2], const uint32_t b[2])
{
#define QUADS(order)                                                                                           \
    asm("mma.sync.aligned.m8n8k4.row." order ".f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}," \
        " {%0,%1,%2,%3,%4,%5,%6,%7};"                                                                          \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])       \
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]))
    if (ROWS) QUADS("row");
    else QUADS("col");
}

/* bits of floats of which 10 of the mantissa's count */
LS_DEVICE void mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}

LS_DEVICE uint32_t to_tf32(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

/* blockIdx.x and threadIdx.x, read anew: what is made from them again need not wait in registers meanwhile. */
LS_DEVICE int block_again()
{
    int x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}

LS_DEVICE int thread_again()
{
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

LS_DEVICE void async4(saddr to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

LS_DEVICE void sts32(saddr at, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

#endif

/* ---- the same where an instruction does not exist ---------------------------------------------------------------- */

/* As cp_async16, 4 bytes. */
LS_DEVICE void cp_async4(saddr to, const void *from, bool there)
{
    if (LS_ARCH >= 80) async4(to, from, there);
    else sts32(to, there ? *(const uint32_t *)from : 0);
}

LS_DEVICE void ldmatrix4(uint32_t r[4], saddr row)
{
    if (LS_ARCH >= 75) return load_matrix4(r, row);
    const int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 4; i++) r[i] = lds32(__shfl_sync(0xffffffffu, row, 8 * i + lane / 4) + lane % 4 * 4);
}

LS_DEVICE float mul_add(uint32_t x, uint32_t y, float sum, float)
{
    return fmaf(__uint_as_float(x), __uint_as_float(y), sum);
}

LS_DEVICE float mul_add(uint32_t x, uint32_t y, float sum, f16)
{
    const float2 p = widen2(x, f16()), q = widen2(y, f16());
    return fmaf(p.y, q.y, fmaf(p.x, q.x, sum));
}

/* N products with one A, by float operations: lanes give each other their parts. The loop stays one: unrolled it takes the compiler minutes. */
template <class E, int N> LS_DEVICE void mma_plain(float (*d)[4], const uint32_t a[4], const uint32_t *b)
{
    const int lane = (int)threadIdx.x & 31, g = lane & ~3, t = (lane & 3) * 8;
#pragma unroll 1
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
            const uint32_t upper = __shfl_sync(0xffffffffu, a[2 * w], g + k),
                           lower = __shfl_sync(0xffffffffu, a[2 * w + 1], g + k);
#pragma unroll
            for (int n = 0; n < N; n++) {
                const uint32_t left = __shfl_sync(0xffffffffu, b[2 * n + w], t + k),
                               right = __shfl_sync(0xffffffffu, b[2 * n + w], t + 4 + k);
                d[n][0] = mul_add(upper, left, d[n][0], E()), d[n][1] = mul_add(upper, right, d[n][1], E());
                d[n][2] = mul_add(lower, left, d[n][2], E()), d[n][3] = mul_add(lower, right, d[n][3], E());
            }
        }
}

LS_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2], f16)
{
    if (LS_ARCH >= 80) mma16(d, a, b, f16());
    else if (LS_ARCH >= 75) mma8(d, a, b[0]), mma8(d, a + 2, b[1]);
    else mma_plain<f16, 1>((float(*)[4])d, a, b);
}

LS_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2],
                   bf16) /* from 8.0 on; before, no launcher takes bf16 */
{
    if (LS_ARCH >= 80) mma16(d, a, b, bf16());
}

/* ---- one face for families and types --------------------------------------------------------------------------- */

/* Which lanes have what of D: rows row(lane) and STEP more, and columns tile(n) + col(lane), and one more, of sum n. A row's lanes
 * differ in bits MATE and MATE2 of their numbers. A, B: registers of an A, and of two B, which are 16 columns. */
struct mma_lanes {
    static const bool QUADS = false;
    static const int A = 4, B = 4, STEP = 8, MATE = 1, MATE2 = 2;
    static __device__ __forceinline__ int row(int lane) { return lane >> 2; }
    static __device__ __forceinline__ int col(int lane) { return 2 * (lane & 3); }
    static __device__ __forceinline__ constexpr int tile(int n) { return n * 8; }
};

struct mma_quads_lanes {
    static const bool QUADS = true;
    static const int A = 8, B = 8, STEP = 2, MATE = 2, MATE2 = 8;
    static __device__ __forceinline__ int row(int lane) { return (lane & 1) + (lane >> 4) * 4 + (lane >> 2 & 1) * 8; }
    static __device__ __forceinline__ int col(int lane) { return (lane & 2) + (lane >> 3 & 1) * 8; }
    static __device__ __forceinline__ constexpr int tile(int n) { return n / 2 * 16 + n % 2 * 4; }
};

/* PASSES of TF32: 3 make a float's product, 1 is TF32 itself. COMPILED: this code is for cards of the family; kernels of others are empty.
 * products: D of 16 columns; ROWS: B came as rows along K (flash_operands::load_bt). from_sums: A from sums of K neighbouring columns. */
template <int MMA_FAMILY, class T, int PASSES> struct mma_kind : mma_lanes {
    typedef T E;
    static const int FAMILY = MMA_FAMILY, K = 16;
    static const bool COMPILED = FAMILY == 80 ? LS_BUILT_FOR(80, 1000) : LS_BUILT_FOR(75, 80);
    template <bool ROWS>
    static __device__ __forceinline__ void products(float (*d)[4], const uint32_t a[4], const uint32_t b[4])
    {
        mma(d[0], a, b, E());
        mma(d[1], a, b + 2, E());
    }
    static __device__ __forceinline__ void from_sums(uint32_t a[4], const float (*d)[4])
    {
        a[0] = narrow2(d[0][0], d[0][1], E()), a[1] = narrow2(d[0][2], d[0][3], E());
        a[2] = narrow2(d[1][0], d[1][1], E()), a[3] = narrow2(d[1][2], d[1][3], E());
    }
};

/* float where tensor cores have TF32, and float operations where not (70: also on 7.5) */
template <int MMA_FAMILY, int PASSES> struct mma_kind<MMA_FAMILY, float, PASSES> : mma_lanes {
    typedef float E;
    static const int FAMILY = MMA_FAMILY, K = 8;
    static const bool COMPILED = FAMILY == 80 ? LS_BUILT_FOR(80, 1000) : LS_BUILT_FOR(70, 80);
    template <bool ROWS>
    static __device__ __forceinline__ void products(float (*d)[4], const uint32_t a[4], const uint32_t b[4])
    {
        if constexpr (FAMILY == 80) product(d[0], a, b), product(d[1], a, b + 2);
        else mma_plain<float, 2>(d, a, b);
    }
    /* x = hi + lo, each of TF32's bits: lo*lo is below a float's last bit and left out. A tensor core cuts sums off, so it sums 8 along K only, and
     * a float addition adds them to d (decision 24). */
    static __device__ __forceinline__ void product(float d[4], const uint32_t a[4], const uint32_t b[2])
    {
        uint32_t ah[4], bh[2];
#pragma unroll
        for (int i = 0; i < 4; i++) ah[i] = to_tf32(__uint_as_float(a[i]));
#pragma unroll
        for (int i = 0; i < 2; i++) bh[i] = to_tf32(__uint_as_float(b[i]));
        if (PASSES == 3) {
            uint32_t al[4], bl[2];
            float run[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < 4; i++) al[i] = to_tf32(__uint_as_float(a[i]) - __uint_as_float(ah[i]));
#pragma unroll
            for (int i = 0; i < 2; i++) bl[i] = to_tf32(__uint_as_float(b[i]) - __uint_as_float(bh[i]));
            mma_tf32(run, al, bh);
            mma_tf32(run, ah, bl);
            mma_tf32(run, ah, bh);
#pragma unroll
            for (int i = 0; i < 4; i++) d[i] += run[i];
        } else {
            mma_tf32(d, ah, bh);
        }
    }
    /* Columns 2t and 2t+1 stand for t and t+4: B's rows are taken in the same order (load_bt). */
    static __device__ __forceinline__ void from_sums(uint32_t a[4], const float (*d)[4])
    {
        a[0] = __float_as_uint(d[0][0]), a[1] = __float_as_uint(d[0][2]);
        a[2] = __float_as_uint(d[0][1]), a[3] = __float_as_uint(d[0][3]);
    }
};

template <int PASSES> struct mma_kind<70, f16, PASSES> : mma_quads_lanes {
    typedef f16 E;
    static const int FAMILY = 70, K = 16;
    static const bool COMPILED = LS_BUILT_FOR(70, 75);
    template <bool ROWS>
    static __device__ __forceinline__ void products(float (*d)[4], const uint32_t a[8], const uint32_t b[8])
    {
#pragma unroll
        for (int s = 0; s < 4; s++) mma_quads<ROWS>(&d[0][0], a + 2 * s, b + 2 * s);
    }
    /* Two lanes have the halves of each four columns of two rows: each takes one row. Then both groups of a row get the other's columns. */
    static __device__ __forceinline__ void from_sums(uint32_t a[8], const float (*d)[4])
    {
        const int lane = (int)threadIdx.x & 31, second = lane >> 1 & 1, right = lane >> 3 & 1;
        uint32_t own[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t r0 = narrow2(d[i][0], d[i][1], f16()), r2 = narrow2(d[i][2], d[i][3], f16());
            const uint32_t got = __shfl_xor_sync(0xffffffffu, second ? r0 : r2, 2), mine = second ? r2 : r0;
            own[2 * i] = second ? got : mine, own[2 * i + 1] = second ? mine : got;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t other = __shfl_xor_sync(0xffffffffu, own[i], 8);
            a[i] = right ? other : own[i], a[4 + i] = right ? own[i] : other;
        }
    }
};

#endif
