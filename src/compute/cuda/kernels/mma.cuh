/* mma.cuh - the tensor cores' products of small matrices, one warp each, as functions.
 *
 *   D (16,8) += A (16,K) B (K,8)       K = 16 for bf16 and f16, 8 for float (TF32); sums in float
 *
 * A lane's part, g = lane / 4, t = lane % 4:   A  rows g, g+8      B  column g       D  d[0..1] = (g, 2t..2t+1), d[2..3] = (g+8, 2t..2t+1)
 * A matrix in shared memory is rows of 16-byte chunks; an ldmatrix takes four 8-row matrices of one chunk each, lane l naming row l%8 of matrix
 * l/8. With K as above a product's A is two chunks wide for every type. */
#ifndef LS_CUDA_MMA_CUH
#define LS_CUDA_MMA_CUH

#include "compute/cuda/kernels/vec.cuh"

#ifndef LS_EMU
typedef uint32_t saddr; /* an address in shared memory */

LS_DEVICE void ldmatrix4(uint32_t r[4], saddr row)
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

#define MMA(shape_and_types)                                                                         \
    asm("mma.sync.aligned." shape_and_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

LS_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2], bf16)
{
    MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}

LS_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2], f16)
{
    MMA("m16n8k16.row.col.f32.f16.f16.f32");
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

/* As cp_async16, 4 bytes. */
LS_DEVICE void cp_async4(saddr to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

#endif

/* ---- one face for the three types ------------------------------------------------------------------------------ */

/* tiles of 8 columns of a sum that make one A, registers of it from them; PASSES of TF32: 3 make a float's product, 1 is TF32 itself */
template <class E, int PASSES> struct mma_kind {
    static const int K = 16;
    static __device__ __forceinline__ void product(float d[4], const uint32_t a[4], const uint32_t b[2])
    {
        mma(d, a, b, E());
    }
    /* A from sums of 16 neighbouring columns */
    static __device__ __forceinline__ void from_sums(uint32_t a[4], const float (*d)[4])
    {
        a[0] = narrow2(d[0][0], d[0][1], E()), a[1] = narrow2(d[0][2], d[0][3], E());
        a[2] = narrow2(d[1][0], d[1][1], E()), a[3] = narrow2(d[1][2], d[1][3], E());
    }
};

template <int PASSES> struct mma_kind<float, PASSES> {
    static const int K = 8;
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

#endif
