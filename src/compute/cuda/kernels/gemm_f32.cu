/* gemm_f32.cu - products of float matrices on tensor cores, with the accuracy of float.
 *
 *   out (M,N) = epilogue( op(a) op(b) + bias ) + add         as in gemm.h
 *
 * Products   x = hi + lo, each of TF32's 11 bits: hi is x rounded, lo the rest, of which the tensor core takes 11 bits; |x - hi - lo| <= 2^-23 |x|.
 *            a b = lo hi + hi lo + hi hi; lo lo is below a float's last bit and left out.
 * Sums       A tensor core cuts sums off where a float operation rounds to nearest: over a long K the error grows with K, and has one sign. It
 *            therefore sums RUN steps of 8 only, from zero, and what it has is added to the sum in registers by a float addition (decision 24).
 * Order      The sum of an element is made in one order, by K and the number of shares alone: not by M, N, the tile, or what else runs.
 * Shares     K may be cut into shares, for results with few tiles: partial sums go to memory and are added in the order of K.
 *
 * A block has WARPS_N x 2 warps and a tile of 128 x 32 WARPS_N; a warp has 64 x 32 of it. Three stages of 32 along K are in flight.
 *
 * Tiles in shared memory, chunks of 16 bytes, chunk c of row r at place
 *   ALONG_K    (row, k): 32 k a row           c ^ (r/4 % 8)       eight rows that are 4 apart are in different banks (ldmatrix)
 *   otherwise  (k, row): all rows of the tile c ^ 2 (k % 4)       two neighbouring chunks of four k are in different banks (16-byte loads)
 * so that in both cases lane g = lane/4 has rows 4g … 4g+3 of 32: row 4g + n is row g of the n-th fragment of 8. The result inherits that: a lane
 * has 8 neighbours of a row, and stores them 4 at a time. */
#include "compute/cuda/kernels/gelu.cuh"
#include "compute/cuda/kernels/gemm_f32.h"
#include "compute/cuda/kernels/mma.cuh"

namespace {

constexpr int BM = 128, BK = CU_F32_BLOCK_K, STAGES = 3, STEPS = BK / 8, RUN = CU_F32_RUN / 8;
static_assert(BM == CU_F32_BLOCK_M && STEPS % RUN == 0, "runs are whole in a stage");

#define FOLD_THREADS 256

/* ---- global to shared memory ------------------------------------------------------------------------------------- */

LS_DEVICE int nbytes_of(int left) /* of 4 elements those that are left, in bytes */
{
    return left >= 4 ? 16 : left > 0 ? left * 4 : 0;
}

/* Rows first … first+ROWS-1 of n, k0 … k0+BK-1 of K; zeros outside. x (n,K) ALONG_K, else (K,n), ld apart. */
template <bool ALONG_K, int ROWS, int THREADS>
LS_DEVICE void load_tile(char *to, const float *x, int64_t ld, int first, int n, int k0, int K)
{
    constexpr int ACROSS = ALONG_K ? BK / 4 : ROWS / 4, DOWN = ALONG_K ? ROWS : BK, EACH = ACROSS * DOWN / THREADS;
    static_assert(THREADS % ACROSS == 0 && ACROSS * DOWN % THREADS == 0, "every thread has as many");
    const int c = (int)threadIdx.x % ACROSS, r0 = (int)threadIdx.x / ACROSS;
    const int row0 = ALONG_K ? first : k0, rows = ALONG_K ? n : K;
    const int col = (ALONG_K ? k0 : first) + 4 * c, nbytes = nbytes_of((ALONG_K ? K : n) - col);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int r = r0 + i * (THREADS / ACROSS), place = c ^ (ALONG_K ? r / 4 % 8 : 2 * (r % 4));
        const bool there = row0 + r < rows && nbytes > 0;
        cp_async16_part(to + r * (ACROSS * 16) + place * 16, there ? x + (row0 + r) * ld + col : x, there ? nbytes : 0);
    }
}

/* ---- shared memory to fragments ---------------------------------------------------------------------------------- */

/* Four A of 16 rows: rows g and g+8 of the i-th are rows 4g + 2(i%2) and 4g + 2(i%2) + 1 of the i/2-th 32. */
template <bool ALONG_K> LS_DEVICE void load_a(uint32_t (&a)[4][4], const char *tile, int row0, int step, int lane)
{
    if constexpr (ALONG_K) {
        const int r = row0 + 4 * (lane & 7) + (lane >> 3 & 1), c = (2 * step + (lane >> 4)) ^ (lane & 7);
        const saddr at = shared_address(tile) + (r * (BK * 4) + c * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) ldmatrix4(a[i], at + (32 * (i >> 1) + 2 * (i & 1)) * (BK * 4));
    } else {
        const int g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = (row0 / 4 + 8 * half + g) ^ (2 * t);
                const uint4 v = *(const uint4 *)(tile + (8 * step + t + 4 * e) * (BM * 4) + c * 16);
                a[2 * half][2 * e] = v.x, a[2 * half][2 * e + 1] = v.y;
                a[2 * half + 1][2 * e] = v.z, a[2 * half + 1][2 * e + 1] = v.w;
            }
    }
}

/* Four B of 8 columns: column g of the j-th is row 4g + j of the tile. */
template <bool ALONG_K, int ROWS>
LS_DEVICE void load_b(uint32_t (&b)[4][2], const char *tile, int row0, int step, int lane)
{
    if constexpr (ALONG_K) {
        const int r = row0 + 4 * (lane & 7) + (lane >> 4), c = (2 * step + (lane >> 3 & 1)) ^ (lane & 7);
        const saddr at = shared_address(tile) + (r * (BK * 4) + c * 16);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            uint32_t f[4];
            ldmatrix4(f, at + j * (BK * 4));
            b[j][0] = f[0], b[j][1] = f[1], b[j + 1][0] = f[2], b[j + 1][1] = f[3];
        }
    } else {
        const int g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int c = (row0 / 4 + g) ^ (2 * t);
            const uint4 v = *(const uint4 *)(tile + (8 * step + t + 4 * e) * (ROWS * 4) + c * 16);
            b[0][e] = v.x, b[1][e] = v.y, b[2][e] = v.z, b[3][e] = v.w;
        }
    }
}

/* hi: the nearest number of 11 bits, lo: the rest, of which mma_tf32 takes 11 bits of 12. Whatever becomes of a NaN in hi, lo is one. */
template <int N> LS_DEVICE void split(uint32_t (&hi)[N], uint32_t (&lo)[N], const uint32_t (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        hi[i] = (x[i] + 0x1000u) & 0xffffe000u;
        lo[i] = __float_as_uint(__uint_as_float(x[i]) - __uint_as_float(hi[i]));
    }
}

/* ---- a warp's products -------------------------------------------------------------------------------------------- */

typedef float sums_t[4][4][4]; /* 16 rows, 8 columns, a lane's elements */

LS_DEVICE void zero(sums_t &d)
{
#pragma unroll
    for (int n = 0; n < 64; n++) d[n / 16][n / 4 % 4][n % 4] = 0;
}

LS_DEVICE void step_products(sums_t &run, const uint32_t (&a)[4][4], const uint32_t (&b)[4][2])
{
    uint32_t bh[4][2], bl[4][2];
#pragma unroll
    for (int j = 0; j < 4; j++) split(bh[j], bl[j], b[j]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t ah[4], al[4];
        split(ah, al, a[i]);
#pragma unroll
        for (int j = 0; j < 4; j++) mma_tf32(run[i][j], al, bh[j]);
#pragma unroll
        for (int j = 0; j < 4; j++) mma_tf32(run[i][j], ah, bl[j]);
#pragma unroll
        for (int j = 0; j < 4; j++) mma_tf32(run[i][j], ah, bh[j]);
    }
}

/* The runs of a stage. They are not unrolled: two that overlap need more registers than there are. */
template <bool A_K, bool B_K, int BN>
LS_DEVICE void stage_products(sums_t &sum, const char *ta, const char *tb, int row0, int col0, int lane)
{
#pragma unroll 1
    for (int first = 0; first < STEPS; first += RUN) {
        uint32_t a[2][4][4], b[2][4][2];
        sums_t run;
        zero(run);
        load_a<A_K>(a[0], ta, row0, first, lane);
        load_b<B_K, BN>(b[0], tb, col0, first, lane);
#pragma unroll
        for (int s = 0; s < RUN; s++) {
            if (s + 1 < RUN) {
                load_a<A_K>(a[(s + 1) & 1], ta, row0, first + s + 1, lane);
                load_b<B_K, BN>(b[(s + 1) & 1], tb, col0, first + s + 1, lane);
            }
            step_products(run, a[s & 1], b[s & 1]);
        }
#pragma unroll
        for (int n = 0; n < 64; n++) sum[n / 16][n / 4 % 4][n % 4] += run[n / 16][n / 4 % 4][n % 4];
    }
}

/* ---- what follows the product ------------------------------------------------------------------------------------- */

/* N neighbours of a row of the result. */
template <int N> LS_DEVICE void finish(const cu_f32_job &j, int64_t row, int64_t col, float (&v)[N])
{
    float x[N];
    if (j.bias) {
        widen(x, vec_load<N>(j.bias + col));
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += x[i];
    }
    if (j.gelu == CU_F32_GELU) {
        vec_store<N>(j.aux + row * j.N + col, vec_of<float>(v));
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = gelu_value<LS_GELU_TANH>(v[i]);
    }
    if (j.gelu == CU_F32_DGELU) {
        widen(x, vec_load<N>(j.aux + row * j.N + col));
#pragma unroll
        for (int i = 0; i < N; i++) v[i] *= gelu_slope<LS_GELU_TANH>(x[i]);
    }
    if (j.add) {
        widen(x, vec_load<N>(j.add + row * j.ldo + col));
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += x[i];
    }
    vec_store<N>(j.out + row * j.ldo + col, vec_of<float>(v));
}

LS_DEVICE void finish4(const cu_f32_job &j, int64_t row, int64_t col, float (&v)[4])
{
    if (j.packs && col + 4 <= j.N) {
        finish(j, row, col, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float one[1] = {v[i]};
        if (col + i < j.N) finish(j, row, col + i, one);
    }
}

/* ---- kernels ------------------------------------------------------------------------------------------------------ */

/* Groups of 8 tiles along M, N fast inside: blocks that run together share rows of both operands in the second-level cache. */
LS_DEVICE void tile_of(const cu_f32_job &j, int bn, int &m, int &n)
{
    const int tiles_m = (j.M + BM - 1) / BM, tiles_n = (j.N + bn - 1) / bn, block = (int)blockIdx.x;
    const int first = block / (8 * tiles_n) * 8, group = tiles_m - first < 8 ? tiles_m - first : 8;
    const int in = block - first * tiles_n;
    m = first + in % group;
    n = in / group;
}

template <bool A_K, bool B_K, int WARPS_N>
__global__ void __launch_bounds__(WARPS_N * 64, WARPS_N == 2 ? 2 : 1) product(const cu_f32_job j)
{
    constexpr int BN = 32 * WARPS_N, THREADS = WARPS_N * 64, A_NBYTES = BM * BK * 4, STAGE = A_NBYTES + BN * BK * 4;
    char *mem = LS_SHARED_DYNAMIC(char);
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    const int row0 = warp % 2 * 64, col0 = warp / 2 * 32;
    int m, n;
    tile_of(j, BN, m, n);
    const int k_first = (int)blockIdx.y * j.share * BK, k_last = k_first + j.share * BK;
    const int n_stage = ((k_last < j.K ? k_last : j.K) - k_first + BK - 1) / BK;
    sums_t sum;
    zero(sum);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_stage) {
            load_tile<A_K, BM, THREADS>(mem + s * STAGE, j.a, j.lda, m * BM, j.M, k_first + s * BK, j.K);
            load_tile<B_K, BN, THREADS>(mem + s * STAGE + A_NBYTES, j.b, j.ldb, n * BN, j.N, k_first + s * BK, j.K);
        }
        cp_async_commit();
    }
#pragma unroll 1
    for (int s = 0; s < n_stage; s++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); /* stage s has arrived, and all have read stage s-1 */
        if (s + STAGES - 1 < n_stage) {
            char *to = mem + (s + STAGES - 1) % STAGES * STAGE;
            const int k0 = k_first + (s + STAGES - 1) * BK;
            load_tile<A_K, BM, THREADS>(to, j.a, j.lda, m * BM, j.M, k0, j.K);
            load_tile<B_K, BN, THREADS>(to + A_NBYTES, j.b, j.ldb, n * BN, j.N, k0, j.K);
        }
        cp_async_commit();
        const char *from = mem + s % STAGES * STAGE;
        stage_products<A_K, B_K, BN>(sum, from, from + A_NBYTES, row0, col0, lane);
    }
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int64_t row = (int64_t)m * BM + row0 + 32 * (i >> 1) + 4 * g + 2 * (i & 1) + h;
            if (row >= j.M) continue;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int64_t col = (int64_t)n * BN + col0 + 8 * t + 4 * e;
                float v[4] = {sum[i][0][2 * h + e], sum[i][1][2 * h + e], sum[i][2][2 * h + e], sum[i][3][2 * h + e]};
                if (col >= j.N) continue;
                if (j.part)
                    vec_store<4>(j.part + ((int64_t)blockIdx.y * j.M + row) * j.part_ld + col, vec_of<float>(v));
                else finish4(j, row, col, v);
            }
        }
}

/* The shares, in their order, and what follows. */
__global__ void __launch_bounds__(FOLD_THREADS) fold_shares(const cu_f32_job j, int shares)
{
    const int64_t i = ((int64_t)blockIdx.x * FOLD_THREADS + threadIdx.x) * 4, all = (int64_t)j.M * j.part_ld;
    float v[4], x[4];
    if (i >= all) return;
    widen(v, vec_load<4>(j.part + i));
    for (int s = 1; s < shares; s++) {
        widen(x, vec_load<4>(j.part + s * all + i));
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] += x[k];
    }
    finish4(j, i / j.part_ld, i % j.part_ld, v);
}

template <bool A_K, bool B_K, int WARPS_N> int start(void *stream, const cu_f32_job &j, int shares)
{
    constexpr int BN = 32 * WARPS_N, NBYTES = STAGES * (BM + BN) * BK * 4;
    const dim3 grid((unsigned)(ceil_div(j.M, BM) * ceil_div(j.N, BN)), (unsigned)shares);
    const int e = LS_ALLOW_SHARED((product<A_K, B_K, WARPS_N>), NBYTES);
    return e ? e : LS_LAUNCH((product<A_K, B_K, WARPS_N>), grid, WARPS_N * 64, NBYTES, stream, j);
}

template <int WARPS_N> int start_as(void *stream, const cu_f32_job &j, bool ta, bool tb, int shares)
{
    if (ta)
        return tb ? start<false, true, WARPS_N>(stream, j, shares) : start<false, false, WARPS_N>(stream, j, shares);
    return tb ? start<true, true, WARPS_N>(stream, j, shares) : start<true, false, WARPS_N>(stream, j, shares);
}

} // namespace

extern "C" int cu_gemm_f32(void *stream, const cu_f32_job *given, bool ta, bool tb, int shares, int tile_n)
{
    cu_f32_job j = *given;
    if (j.M <= 0 || j.N <= 0 || shares < 1 || (shares > 1) != (j.part != NULL)) return (int)cudaErrorInvalidValue;
    j.share = ceil_div(ceil_div(j.K, BK), shares);
    j.part_ld = (j.N + 3) / 4 * 4;
    j.packs = j.ldo % 4 == 0 && (!j.aux || j.N % 4 == 0) && aligned16(j.out, j.bias, j.add, j.aux);
    if (ceil_div(j.K, j.share * BK) != shares) return (int)cudaErrorInvalidValue; /* one would have nothing */
    const int e = tile_n == 64 ? start_as<2>(stream, j, ta, tb, shares) : start_as<4>(stream, j, ta, tb, shares);
    if (e || shares == 1) return e;
    const unsigned blocks = (unsigned)ceil_div<int64_t>((int64_t)j.M * j.part_ld, FOLD_THREADS * 4);
    return LS_LAUNCH(fold_shares, blocks, FOLD_THREADS, 0, stream, j, shares);
}
