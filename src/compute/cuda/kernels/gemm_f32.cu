/* gemm_f32.cu - products of float matrices on Hopper's tensor cores, with the accuracy of float.
 *
 *   out (M,N) = epilogue( op(a) op(b) + bias ) + add         as in gemm.h
 *
 * Products   x = x1 + x2 + x3, numbers of bf16, which have 8 bits each: all 24 of a float, exactly. a b = a3 b1 + a1 b3 + a2 b2 + a2 b1 + a1 b2 + a1 b1,
 *            in this order; what is left out is below 2^-25 of it.
 * Sums       A tensor core cuts sums off where a float operation rounds to nearest: over a long K the error grows with K, and has one sign. It
 *            therefore sums a run of 16 only (32 or 64 where K is long), from zero, and what it has is added to the sum in registers by a
 *            float addition (decision 24).
 * Order      The sum of an element is made in one order, by K and the number of shares alone: not by M, N, or what else runs.
 * Shares     K may be cut into shares, for results with few tiles: partial sums go to memory and are added in the order of K.
 *
 * Block      one per multiprocessor, which takes items (a tile of 192 x 128 of one share) one after the other. Three warpgroups with 64 x 128 each make
 *            products; of the fourth, three warps split b and one thread asks the copy engine for tiles.
 * Stage      32 of K. Tiles arrive as they are in memory, floats (wgmma.cuh: float tile): rows of 32 k (ALONG_K), or 32 rows of k for each 32 rows
 *            of the operand. a is split in registers, after it is read as fragments. b is split into three planes, tiles of 128 rows along
 *            K, which two stages share: 32 k each.
 * Order of k The product does not mind the order of a run's 16 k, if both operands have the same one. If a is ALONG_K, k and k+4 are neighbours in
 *            groups of 8, since a lane gets such of it by ldmatrix; otherwise they are in order, which reads a without bank conflicts. */
#include "compute/cuda/kernels/gelu.cuh"
#include "compute/cuda/kernels/gemm_f32.h"
#include "compute/cuda/kernels/wgmma.cuh"

namespace {

constexpr int WGS = 3, BM = WGS * WG_ROWS, BN = 128, BK = CU_F32_BLOCK_K, STAGES = 4, RAWS = 2;
constexpr int THREADS = (WGS + 1) * WG_THREADS, SPLITTERS = 96;
static_assert(BM == CU_F32_BLOCK_M && BN == CU_F32_BLOCK_N && BK == 32 && STAGES % 2 == 0, "as it is written");

constexpr int BOX = 32 * 128; /* 32 rows of a float tile */
constexpr int A_TILE = BM * 128, B_TILE = BN * 128, PLANE = BN * 128;
constexpr int A_AT = STAGES / 2 * 3 * PLANE, B_AT = A_AT + STAGES * A_TILE, BARS = B_AT + RAWS * B_TILE;
constexpr int A_FULL = BARS, A_FREE = A_FULL + 8 * STAGES, P_FULL = A_FREE + 8 * STAGES, P_FREE = P_FULL + 8 * STAGES;
constexpr int B_FULL = P_FREE + 8 * STAGES, B_FREE = B_FULL + 8 * RAWS;
constexpr int NBYTES = B_FREE + 8 * RAWS + 1024; /* and what aligns the first tile */

#define FOLD_THREADS 256

/* ---- items --------------------------------------------------------------------------------------------------------- */

struct item {
    int m, n, share, from, to; /* tile, stages from … to-1 */
};

/* Groups of 8 tiles along M, N fast inside: blocks that run together share rows of both operands in the second-level cache. */
LS_DEVICE bool item_at(const cu_f32_job &j, int index, item &it)
{
    const int tiles_m = ceil_div(j.M, BM), tiles_n = ceil_div(j.N, BN), tiles = tiles_m * tiles_n;
    it.share = index / tiles;
    const int tile = index % tiles, first = tile / (8 * tiles_n) * 8;
    const int group = tiles_m - first < 8 ? tiles_m - first : 8, in = tile - first * tiles_n;
    it.m = first + in % group;
    it.n = in / group;
    it.from = it.share * j.share;
    it.to = it.from + j.share < j.stages ? it.from + j.share : j.stages;
    return it.share < j.shares;
}

template <int N> struct ring {
    int at = 0, phase = 0;
    __device__ __forceinline__ void next()
    {
        if (++at == N) at = 0, phase ^= 1;
    }
};

/* ---- loading and splitting ------------------------------------------------------------------------------------------ */

/* Rows first … first+ROWS-1 of an operand, BK from k on. */
template <bool ALONG_K, int ROWS> LS_DEVICE void load_tile(saddr to, const tensor_map *x, int first, int k, saddr full)
{
    mbar_arrive_expect(full, ROWS * 128);
    if constexpr (ALONG_K) {
        tile_load(to, x, k, first, 0, full);
    } else {
#pragma unroll 1
        for (int i = 0; i < ROWS / 32; i++) tile_load(to + i * BOX, x, first + 32 * i, k, 0, full);
    }
}

template <bool A_K, bool B_K>
LS_DEVICE void load(saddr mem, const tensor_map *a, const tensor_map *b, const cu_f32_job &j)
{
    ring<STAGES> r;
    ring<RAWS> raw;
    item it;
#pragma unroll 1
    for (int i = (int)blockIdx.x; item_at(j, i, it); i += (int)gridDim.x)
#pragma unroll 1
        for (int s = it.from; s < it.to; s++, r.next(), raw.next()) {
            mbar_wait(mem + (A_FREE + 8 * r.at), r.phase ^ 1);
            load_tile<A_K, BM>(mem + (A_AT + r.at * A_TILE), a, it.m * BM, s * BK, mem + (A_FULL + 8 * r.at));
            mbar_wait(mem + (B_FREE + 8 * raw.at), raw.phase ^ 1);
            load_tile<B_K, BN>(mem + (B_AT + raw.at * B_TILE), b, it.n * BN, s * BK, mem + (B_FULL + 8 * raw.at));
        }
}

/* Two numbers as words of two bf16: exact, as long as the last part is not below 2^-133. A NaN is one in all parts, an infinity in two. */
LS_DEVICE void split2(uint32_t (&w)[3], float x, float y)
{
#pragma unroll
    for (int p = 0; p < 3; p++) {
        w[p] = narrow2(x, y, bf16());
        const float2 part = widen2(w[p], bf16());
        x -= part.x, y -= part.y;
    }
}

/* 8 neighbours along K of row n of b, from the tile, in the order that a has them. */
template <bool A_K, bool B_K> LS_DEVICE void load_b(float (&x)[8], const char *tile, int n, int chunk)
{
    float k[8];
    if constexpr (B_K) {
        const char *row = tile + n * 128;
        const float4 lo = *(const float4 *)(row + (((2 * chunk) ^ (n & 7)) << 4));
        const float4 hi = *(const float4 *)(row + (((2 * chunk + 1) ^ (n & 7)) << 4));
        k[0] = lo.x, k[1] = lo.y, k[2] = lo.z, k[3] = lo.w, k[4] = hi.x, k[5] = hi.y, k[6] = hi.z, k[7] = hi.w;
    } else {
        const char *box = tile + n / 32 * BOX + chunk * 8 * 128 + n % 4 * 4;
#pragma unroll
        for (int i = 0; i < 8; i++) k[i] = *(const float *)(box + i * 128 + ((n % 32 / 4 ^ i) << 4));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = k[A_K ? i % 2 * 4 + i / 2 : i];
}

template <bool A_K, bool B_K> LS_DEVICE void split_b(char *base, saddr mem, const cu_f32_job &j)
{
    const int me = (int)threadIdx.x % WG_THREADS;
    int stages = 0;
    item it;
    for (int i = (int)blockIdx.x; item_at(j, i, it); i += (int)gridDim.x) stages += it.to - it.from;
#pragma unroll 1
    for (int s = 0; s < stages; s++) {
        const int at = s % STAGES, raw = s % RAWS;
        const char *from = base + B_AT + raw * B_TILE;
        char *to = base + at / 2 * (3 * PLANE);
        mbar_wait(mem + (B_FULL + 8 * raw), s / RAWS & 1);
        mbar_wait(mem + (P_FREE + 8 * at), (s / STAGES & 1) ^ 1);
#pragma unroll 1
        for (int u = me; u < BN * BK / 8; u += SPLITTERS) {
            const int n = u % BN, c = u / BN;
            float x[8];
            uint32_t w[4][3];
            load_b<A_K, B_K>(x, from, n, c);
#pragma unroll
            for (int e = 0; e < 4; e++) split2(w[e], x[2 * e], x[2 * e + 1]);
            char *place = to + n * 128 + (((at % 2 * 4 + c) ^ (n & 7)) << 4);
#pragma unroll
            for (int p = 0; p < 3; p++) *(uint4 *)(place + p * PLANE) = make_uint4(w[0][p], w[1][p], w[2][p], w[3][p]);
        }
        proxy_fence();
        mbar_arrive_warp(mem + (P_FULL + 8 * at));
        mbar_arrive_warp(mem + (B_FREE + 8 * raw));
    }
}

/* ---- products -------------------------------------------------------------------------------------------------------- */

/* Numbers 2i and 2i+1 become register i of A: rows g, g+8, g, g+8 of the warp's 16. tile: a's. */
template <bool ALONG_K> LS_DEVICE void load_a(float (&x)[8], saddr tile, int row0, int step, int lane)
{
    if constexpr (ALONG_K) {
        const saddr at = tile + ((row0 + (lane & 7)) * 128 + (((4 * step + (lane >> 3)) ^ (lane & 7)) << 4));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t r[4];
            ldmatrix4(r, at + h * 1024);
            x[2 * h] = __uint_as_float(r[0]), x[2 * h + 1] = __uint_as_float(r[1]);
            x[4 + 2 * h] = __uint_as_float(r[2]), x[5 + 2 * h] = __uint_as_float(r[3]);
        }
    } else {
        const int g = lane >> 2, t = lane & 3;
        const saddr box = tile + (row0 / 32 * BOX + (16 * step + 2 * t) * 128 + g % 4 * 4);
#pragma unroll
        for (int i = 0; i < 8; i++) { /* i: the k after, 8 rows on, 8 k on */
            const int c = (row0 % 32 / 4 + g / 4 + (i & 2)) ^ (2 * t + (i & 1));
            x[i] = __uint_as_float(lds32(box + ((i & 1) * 128 + (i >> 2) * 1024 + (c << 4))));
        }
    }
}

typedef float sums_t[16][4]; /* 8 columns, a lane's elements */

/* The six products of 16 along K, smallest first. b: its planes at these k. */
LS_DEVICE void run_products(sums_t &run, const uint32_t (&a)[3][4], uint64_t b, int add)
{
    constexpr uint64_t NEXT = PLANE / 16;
    wgmma_fence();
    wgmma_wide(run, a[2], b, add);
    wgmma_wide(run, a[0], b + 2 * NEXT, 1);
    wgmma_wide(run, a[1], b + NEXT, 1);
    wgmma_wide(run, a[1], b, 1);
    wgmma_wide(run, a[0], b + NEXT, 1);
    wgmma_wide(run, a[0], b, 1);
    wgmma_commit();
}

LS_DEVICE void split_a(uint32_t (&a)[3][4], const float (&x)[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w[3];
        split2(w, x[2 * i], x[2 * i + 1]);
#pragma unroll
        for (int p = 0; p < 3; p++) a[p][i] = w[p];
    }
}

LS_DEVICE void add_to(sums_t &sum, const sums_t &run)
{
#pragma unroll
    for (int n = 0; n < 64; n++) sum[n / 4][n % 4] += run[n / 4][n % 4];
}

/* A stage of a warpgroup. tile: of a; a_free: its barrier. FIRST: nothing is in `run` yet; half: a run ends after 16. */
template <bool A_K, bool FIRST>
LS_DEVICE void stage_products(sums_t &sum, sums_t &run, saddr tile, uint64_t b, int row0, int lane, bool half,
                              saddr a_free)
{
    float x[8];
    uint32_t a[3][4];
    load_a<A_K>(x, tile, row0, 0, lane);
    split_a(a, x);
    run_products(run, a, b, !FIRST);
    load_a<A_K>(x, tile, row0, 1, lane);
    proxy_fence();
    mbar_arrive_warp(a_free);
    wgmma_wait<0>(run);
    if (half) add_to(sum, run);
    split_a(a, x);
    run_products(run, a, b + WG_CHUNK, !half);
    wgmma_wait<0>(run);
}

/* n stages of a warpgroup, G of them to a run; half: two runs to one. */
template <bool A_K, int G>
LS_DEVICE void all_products(sums_t &sum, saddr mem, ring<STAGES> &r, int n, int row0, int lane, bool half)
{
#pragma unroll 1
    for (int s = 0; s < n; s += G) {
        sums_t run;
#pragma unroll
        for (int g = 0; g < G; g++) {
            if (g > 0 && s + g >= n) break;
            const saddr tile = mem + (A_AT + r.at * A_TILE), a_free = mem + (A_FREE + 8 * r.at);
            const uint64_t b = wgmma_operand(mem + r.at / 2 * (3 * PLANE)) + (unsigned)(r.at % 2) * (2 * WG_CHUNK);
            mbar_wait(mem + (A_FULL + 8 * r.at), r.phase);
            mbar_wait(mem + (P_FULL + 8 * r.at), r.phase);
            if (g == 0) stage_products<A_K, true>(sum, run, tile, b, row0, lane, half, a_free);
            else stage_products<A_K, false>(sum, run, tile, b, row0, lane, half, a_free);
            mbar_arrive_warp(mem + (P_FREE + 8 * r.at));
            r.next();
        }
        add_to(sum, run);
    }
}

/* A warpgroup without rows: n stages pass. */
LS_DEVICE void no_products(saddr mem, ring<STAGES> &r, int n)
{
#pragma unroll 1
    for (int s = 0; s < n; s++, r.next()) {
        mbar_wait(mem + (A_FULL + 8 * r.at), r.phase);
        mbar_wait(mem + (P_FULL + 8 * r.at), r.phase);
        mbar_arrive_warp(mem + (A_FREE + 8 * r.at));
        mbar_arrive_warp(mem + (P_FREE + 8 * r.at));
    }
}

/* ---- what follows the product ------------------------------------------------------------------------------------- */

/* E neighbours from x on, of which `left` come before the end of the row: those after it are 0, and not stored. WHOLE: all do, and x is aligned. */
template <bool WHOLE, int E> LS_DEVICE void take(float (&v)[E], const float *x, int left)
{
    if constexpr (WHOLE) {
        widen(v, vec_load<E>(x));
    } else {
#pragma unroll
        for (int e = 0; e < E; e++) v[e] = e < left ? x[e] : 0;
    }
}

template <bool WHOLE, int E> LS_DEVICE void give(float *x, const float (&v)[E], int left)
{
    if constexpr (WHOLE) {
        vec_store<E>(x, vec_of<float>(v));
    } else {
#pragma unroll
        for (int e = 0; e < E; e++)
            if (e < left) x[e] = v[e];
    }
}

#define EACH_PIECE _Pragma("unroll") for (int n = 0; n < P; n++)
#define EACH_OF_IT _Pragma("unroll") for (int e = 0; e < E; e++)

/* P pieces of E neighbours, 8 apart, of a row of the result. All loads of a kind are in flight together. */
template <bool WHOLE, int P, int E> LS_DEVICE void finish(const cu_f32_job &j, int64_t row, int col, float (&v)[P][E])
{
    float x[P][E];
    const int left = j.N - col;
    float *aux = j.aux + row * j.N + col;
    if (j.bias) {
        EACH_PIECE take<WHOLE>(x[n], j.bias + col + 8 * n, left - 8 * n);
        EACH_PIECE EACH_OF_IT v[n][e] += x[n][e];
    }
    if (j.gelu == CU_F32_GELU) {
        EACH_PIECE give<WHOLE>(aux + 8 * n, v[n], left - 8 * n);
        EACH_PIECE EACH_OF_IT v[n][e] = gelu_value<LS_GELU_TANH>(v[n][e]);
    }
    if (j.gelu == CU_F32_DGELU) {
        EACH_PIECE take<WHOLE>(x[n], aux + 8 * n, left - 8 * n);
        EACH_PIECE EACH_OF_IT v[n][e] *= gelu_slope<LS_GELU_TANH>(x[n][e]);
    }
    if (j.add) {
        EACH_PIECE take<WHOLE>(x[n], j.add + row * j.ldo + col + 8 * n, left - 8 * n);
        EACH_PIECE EACH_OF_IT v[n][e] += x[n][e];
    }
    EACH_PIECE give<WHOLE>(j.out + row * j.ldo + col + 8 * n, v[n], left - 8 * n);
}

/* A warpgroup's part of a tile. */
LS_DEVICE void store(const cu_f32_job &j, const item &it, const sums_t &sum, int row0, int lane)
{
    constexpr int P = 16, E = 2;
    const int col = it.n * BN + 2 * (lane & 3);
    const bool whole = j.packs && it.n * BN + BN <= j.N;
#pragma unroll 1
    for (int h = 0; h < 2; h++) {
        const int64_t row = (int64_t)it.m * BM + row0 + (lane >> 2) + 8 * h;
        float v[P][E];
        EACH_PIECE EACH_OF_IT v[n][e] = h ? sum[n][2 + e] : sum[n][e];
        if (row >= j.M) continue;
        if (j.part) {
            float *part = j.part + ((int64_t)it.share * j.M + row) * j.part_ld + col;
            EACH_PIECE if (col + 8 * n < j.N) give<true>(part + 8 * n, v[n], E);
        } else if (whole) {
            finish<true>(j, row, col, v);
        } else {
            finish<false>(j, row, col, v);
        }
    }
}

template <bool A_K> LS_DEVICE void multiply(saddr mem, const cu_f32_job &j)
{
    const int wg = warpgroup_index(), lane = (int)threadIdx.x & 31;
    const int row0 = wg * WG_ROWS + (int)threadIdx.x % WG_THREADS / 32 * 16;
    ring<STAGES> r;
    item it;
#pragma unroll 1
    for (int i = (int)blockIdx.x; item_at(j, i, it); i += (int)gridDim.x) {
        const int n = it.to - it.from;
        if (it.m * BM + wg * WG_ROWS >= j.M) {
            no_products(mem, r, n);
            continue;
        }
        sums_t sum;
#pragma unroll
        for (int e = 0; e < 64; e++) sum[e / 4][e % 4] = 0;
        if (j.run == 64) all_products<A_K, 2>(sum, mem, r, n, row0, lane, false);
        else all_products<A_K, 1>(sum, mem, r, n, row0, lane, j.run == 16);
        store(j, it, sum, row0, lane);
    }
}

/* ---- kernels ------------------------------------------------------------------------------------------------------ */

template <bool A_K, bool B_K> LS_DEVICE void block(const tensor_map *a, const tensor_map *b, const cu_f32_job &j)
{
    char *const dynamic = LS_SHARED_DYNAMIC(char);
    char *const base = dynamic + (-shared_offset(shared_address(dynamic)) & 1023);
    const saddr mem = shared_address(base);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbar_init(mem + (A_FULL + 8 * i), 1), mbar_init(mem + (A_FREE + 8 * i), WGS * 4);
            mbar_init(mem + (P_FULL + 8 * i), SPLITTERS / 32), mbar_init(mem + (P_FREE + 8 * i), WGS * 4);
        }
        for (int i = 0; i < RAWS; i++)
            mbar_init(mem + (B_FULL + 8 * i), 1), mbar_init(mem + (B_FREE + 8 * i), SPLITTERS / 32);
        mbar_init_fence();
    }
    __syncthreads();
    if ((int)threadIdx.x >= WGS * WG_THREADS) {
        registers_less<32>();
        const int me = (int)threadIdx.x - WGS * WG_THREADS;
        if (me < SPLITTERS) split_b<A_K, B_K>(base, mem, j);
        else if (me == SPLITTERS) load<A_K, B_K>(mem, a, b, j);
    } else {
        registers_more<160>();
        multiply<A_K>(mem, j);
    }
}

/* Where wgmma is not compiled in, the kernel is empty and may not have its number of threads, which cu_gemm_f32_works sees. */
template <bool A_K, bool B_K>
__global__ void __launch_bounds__(WG_COMPILED ? THREADS : 32, 1)
    product(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
            const __grid_constant__ cu_f32_job j)
{
    if constexpr (WG_COMPILED && BM > 0) block<A_K, B_K>(&a, &b, j);
}

/* The shares, in their order, and what follows. */
__global__ void __launch_bounds__(FOLD_THREADS) fold_shares(const cu_f32_job j)
{
    const int64_t i = ((int64_t)blockIdx.x * FOLD_THREADS + threadIdx.x) * 4, all = (int64_t)j.M * j.part_ld;
    const int64_t row = i / j.part_ld;
    const int col = (int)(i % j.part_ld);
    float v[1][4], x[4];
    if (i >= all) return;
    widen(v[0], vec_load<4>(j.part + i));
    for (int s = 1; s < j.shares; s++) {
        widen(x, vec_load<4>(j.part + s * all + i));
#pragma unroll
        for (int k = 0; k < 4; k++) v[0][k] += x[k];
    }
    if (j.packs && col + 4 <= j.N) finish<true>(j, row, col, v);
    else finish<false>(j, row, col, v);
}

template <bool A_K, bool B_K> int start(void *stream, const cu_f32_job &j)
{
    tensor_map a, b;
    int device, n = 1, e = (int)cudaGetDevice(&device);
    const int64_t items = ceil_div<int64_t>(j.M, BM) * ceil_div<int64_t>(j.N, BN) * j.shares;
    if (items > INT32_MAX / 2) return (int)cudaErrorInvalidValue;
    if (!e) e = (int)cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    if (!e) e = tensor_map_floats(&a, j.a, A_K ? j.K : j.M, j.lda, A_K ? j.M : j.K, A_K ? BM : 32);
    if (!e) e = tensor_map_floats(&b, j.b, B_K ? j.K : j.N, j.ldb, B_K ? j.N : j.K, B_K ? BN : 32);
    if (!e) e = LS_ALLOW_SHARED((product<A_K, B_K>), NBYTES);
    if (e) return e;
    return LS_LAUNCH((product<A_K, B_K>), (unsigned)(items < n ? items : n), THREADS, NBYTES, stream, a, b, j);
}

} // namespace

extern "C" int cu_gemm_f32(void *stream, const cu_f32_job *given, bool ta, bool tb)
{
    cu_f32_job j = *given;
    if (j.M <= 0 || j.N <= 0 || j.K <= 0 || j.shares < 1 || (j.shares > 1) != (j.part != NULL))
        return (int)cudaErrorInvalidValue;
    j.stages = ceil_div(j.K, BK);
    j.share = ceil_div(j.stages, j.shares);
    j.run = cu_f32_run(j.share * BK);
    j.part_ld = (j.N + 3) / 4 * 4;
    j.packs = j.ldo % 4 == 0 && (!j.aux || j.N % 4 == 0) && aligned16(j.out, j.bias, j.add, j.aux);
    if (ceil_div(j.stages, j.share) != j.shares) return (int)cudaErrorInvalidValue; /* one would have nothing */
    const int e = ta ? (tb ? start<false, true>(stream, j) : start<false, false>(stream, j))
                     : (tb ? start<true, true>(stream, j) : start<true, false>(stream, j));
    if (e || j.shares == 1) return e;
    const unsigned blocks = (unsigned)ceil_div<int64_t>((int64_t)j.M * j.part_ld, FOLD_THREADS * 4);
    return LS_LAUNCH(fold_shares, blocks, FOLD_THREADS, 0, stream, j);
}

extern "C" bool cu_gemm_f32_works(void)
{
    cudaFuncAttributes a;
    const ls_card *card = cu_card();
    if (!card || !card->wgmma) return false;
    if (cudaFuncGetAttributes(&a, product<true, true>) == cudaSuccess) return a.maxThreadsPerBlock >= THREADS;
    (void)cudaGetLastError();
    return false;
}
