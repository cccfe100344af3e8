/* wgmma.cuh - what only Hopper has (compiled for sm_90a): products by a warpgroup, copies of tiles by the copy engine, barriers in shared memory.
 *
 * Tile           64 rows of 64 16-bit elements, 128 bytes per row; chunk c (16 bytes) of row r is at place c ^ (r % 8) of its row, as the copy
 *                engine's 128-byte swizzle puts it. 8192 bytes, aligned to 1024. The same as flash_tile's with DP = 64.
 * Float tile     rows of 32 floats, swizzled in the same way.
 * Product        D (64,64) += A (64,16) B (16,64), four warps whose first is a multiple of four. D is in registers: warp w of the four has rows
 *                16w … 16w+15 in the layout of mma.cuh, d[n] for columns 8n … 8n+7. A is in registers (as mma.cuh) or in a tile, B in a tile.
 * In flight      A product is done after wgmma_commit and wgmma_wait. Until then D, A's registers and the tiles must not change, and D must not be
 *                read. wgmma_fence comes before the first product and after every change of its registers by other instructions.
 * Copies         tile_load is complete when the barrier that it names is: the barrier counts arrivals and bytes. Nothing but the copy engine
 *                writes the tiles that products read; where other instructions used a tile before, proxy_fence comes before the arrival that
 *                lets the copy engine have it again. */
#ifndef LS_CUDA_WGMMA_CUH
#define LS_CUDA_WGMMA_CUH

#include "mma.cuh"

#define WG_THREADS 128
#define WG_ROWS    64
#define WG_TILE    (WG_ROWS * 128)

#ifdef LS_EMU
#include <wgmma_emu.h>
#else

#ifdef __CUDA_ARCH_FEAT_SM90_ALL /* compiled for 90a */
#define WG_COMPILED 1
#else
#define WG_COMPILED 0
#endif

#if CUDART_VERSION < 12000 /* does not know Hopper; used for code of 7.0, which CUDA 13 cannot make */
struct tensor_map {
    char none;
};
static inline int tensor_map_of(tensor_map *, const void *, int, int64_t, int64_t, int64_t, int64_t, int)
{
    return (int)cudaErrorNotSupported;
}
#else
#include <cudaTypedefs.h>

typedef CUtensorMap tensor_map;

/* (B,T,columns) of elements of 2 or 4 bytes, whose bits are copied as they are; rows are ld elements apart. A part is 128 bytes of `rows` rows;
 * outside of the array it is 0. cudaError_t. */
static inline int tensor_map_of(tensor_map *m, const void *x, int nbytes, int64_t columns, int64_t ld, int64_t T,
                                int64_t B, int rows)
{
    void *found = NULL;
    cudaDriverEntryPointQueryResult how;
#if CUDART_VERSION >= 12050
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &how);
#else
    cudaError_t e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &how);
#endif
    if (e != cudaSuccess) return (int)e;
    if (!found || how != cudaDriverEntryPointSuccess) return (int)cudaErrorNotSupported;
    const cuuint64_t size[3] = {(cuuint64_t)columns, (cuuint64_t)T, (cuuint64_t)B};
    const cuuint64_t step[2] = {(cuuint64_t)(ld * nbytes), (cuuint64_t)(ld * T * nbytes)};
    const cuuint32_t box[3] = {128 / (cuuint32_t)nbytes, (cuuint32_t)rows, 1}, each[3] = {1, 1, 1};
    const CUresult r = ((PFN_cuTensorMapEncodeTiled_v12000)found)(
        m, nbytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_UINT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, (void *)x, size, step, box,
        each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : (int)cudaErrorInvalidValue;
}
#endif

LS_DEVICE uint32_t shared_offset(saddr at) /* as descriptors have it */
{
    return at;
}

LS_DEVICE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

LS_DEVICE void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* The compiler takes these sums for changed here: it neither reads them before nor keeps copies. */
template <int N> LS_DEVICE void wgmma_changed(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++) asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

/* Until at most PENDING groups are in flight; done: the sums of the others. */
template <int PENDING, class... D> LS_DEVICE void wgmma_wait(D &...done)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    (wgmma_changed(done), ...);
}

#define WG_FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define WG_SUMS    WG_FOUR(0), WG_FOUR(1), WG_FOUR(2), WG_FOUR(3), WG_FOUR(4), WG_FOUR(5), WG_FOUR(6), WG_FOUR(7)
#define WG_SUMS_PTX                                                                                                   \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
    "%30,%31}"
#define WG_TILES(type)                                                                       \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"                            \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " WG_SUMS_PTX \
                 ", %32, %33, add, 1, 1, 0, 0;\n}"                                           \
                 : WG_SUMS                                                                   \
                 : "l"(a), "l"(b), "n"(ADD)                                                  \
                 : "memory")
#define WG_REGISTERS(type)                                                                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " WG_SUMS_PTX \
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                     \
                 : WG_SUMS                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                        \
                 : "memory")

/* A: 64 rows of a tile, B: the 64 rows of another as columns; 16 elements along both. !ADD: D is the product alone. */
template <class E, bool ADD> LS_DEVICE void wgmma_tiles(float (&d)[8][4], uint64_t a, uint64_t b)
{
    if constexpr (std::is_same<E, bf16>::value) WG_TILES("bf16");
    else WG_TILES("f16");
}

/* A: registers, B: 16 rows of a tile as they are. */
template <class E> LS_DEVICE void wgmma_registers(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b)
{
    if constexpr (std::is_same<E, bf16>::value) WG_REGISTERS("bf16");
    else WG_REGISTERS("f16");
}

/* D (64,128), bf16. A: registers, B: the 128 rows of a tile as columns, 16 elements along them. !add: D is the product alone. */
LS_DEVICE void wgmma_wide(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,"
                 "%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,"
                 "%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                 " {%64,%65,%66,%67}, %68, add, 1, 1, 0;\n}"
                 : WG_SUMS, WG_FOUR(8), WG_FOUR(9), WG_FOUR(10), WG_FOUR(11), WG_FOUR(12), WG_FOUR(13), WG_FOUR(14),
                   WG_FOUR(15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)
                 : "memory");
}

#undef WG_FOUR
#undef WG_SUMS
#undef WG_SUMS_PTX
#undef WG_TILES
#undef WG_REGISTERS

/* One thread; then a fence and __syncthreads. */
LS_DEVICE void mbar_init(saddr bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

LS_DEVICE void mbar_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

LS_DEVICE void mbar_arrive(saddr bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

LS_DEVICE void mbar_arrive_expect(saddr bar, int nbytes) /* arrives; the phase also needs so many bytes of copies */
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(nbytes) : "memory");
}

/* Until the phase of that parity is complete: the first has 0. Of a new barrier parity 1 is complete. */
LS_DEVICE void mbar_wait(saddr bar, int parity)
{
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!done);
}

/* The part of m from `row` of sequence b and `column` on, into a tile. One thread. */
LS_DEVICE void tile_load(saddr tile, const tensor_map *m, int column, int row, int b, saddr bar)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4}], [%5];" ::
            "r"(tile),
        "l"(m), "r"(column), "r"(row), "r"(b), "r"(bar)
        : "memory");
}

/* Plain bytes, a multiple of 16, both addresses aligned to 16. */
LS_DEVICE void bytes_load(saddr to, const void *from, int nbytes, saddr bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(nbytes), "r"(bar)
                 : "memory");
}

LS_DEVICE void proxy_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The barrier of so many threads; id 0 is __syncthreads's. */
LS_DEVICE void threads_meet(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* Registers per thread of the calling warpgroup. */
template <int N> LS_DEVICE void registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> LS_DEVICE void registers_less()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif

/* Rows x of 16-bit elements, ld from one to the next, T per sequence, B sequences: parts of 64 rows and 64 columns, rows from T on are 0. */
static inline int tensor_map_rows(tensor_map *m, const void *x, int64_t columns, int64_t ld, int64_t T, int64_t B)
{
    return tensor_map_of(m, x, 2, columns, ld, T, B, WG_ROWS);
}

/* (rows,columns) of float, ld apart: parts of 32 columns and `box` rows. */
static inline int tensor_map_floats(tensor_map *m, const void *x, int64_t columns, int64_t ld, int64_t rows, int box)
{
    return tensor_map_of(m, x, 4, columns, ld, rows, 1, box);
}

/* A tile as an operand, from a chunk (wgmma_tiles, + WG_CHUNK) or a row (wgmma_registers, + WG_ROWS_16) of it on: groups of 8 rows are 1024 bytes
 * apart, the swizzle is that of 128 bytes. */
#define WG_CHUNK   2u   /* 16 elements along rows, in units of 16 bytes */
#define WG_ROWS_16 128u /* 16 rows                                      */

LS_DEVICE uint64_t wgmma_operand(saddr tile)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 / 16) << 32 | (uint64_t)1 << 16 | (shared_offset(tile) & 0x3ffff) >> 4;
}

/* The warpgroup's number, in a way from which the compiler knows that it is the same in all lanes: operands made from it are in uniform registers. */
LS_DEVICE int warpgroup_index()
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / WG_THREADS, 0);
}

/* One arrival of the warp, when all its lanes are done with what the barrier is about. */
LS_DEVICE void mbar_arrive_warp(saddr bar)
{
    __syncwarp();
    if ((thread_again() & 31) == 0) mbar_arrive(bar);
}

#endif
