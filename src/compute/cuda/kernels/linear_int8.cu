/* linear_int8.cu - y (R,N) = x (R,K) w + b, where w is in int8 with a scale for 64 numbers along K (compute/cpu/packed.h), x in 16 bits.
 *
 *   y[r][n] = b[n] + sum over groups g of  scale[g][n] * (sum over the group of x[r][k] q[k][n])
 *
 * For few rows, where reading w limits: 1.06 bytes per weight. The tensor cores multiply (mma.cuh, w as A: 16 columns of it in a product with
 * 8 rows of x), so that 64 rows cost no more than one. q is exact in bf16 and f16, products and sums are float.
 *
 * A block makes 32 columns, two panels of w, of up to 64 rows; its warps take groups in turn, and their parts are added in order. With
 * r = lane / 4 and q = lane % 4 a lane reads, of the group, columns 4r … 4r+3 and k = 16q+4i … 16q+4i+3 for i = 0 … 3, 16 bytes each: they
 * are its part of two A for each i (c = 0: columns 4r and 4r+1 as rows r and r+8; c = 1: 4r+2 and 4r+3), whose 16 numbers along K are those of the
 * four q. In B the lane's part is row r of x, k = 16q … 16q+15, 32 bytes in one piece.
 *
 * The order of a row's sum depends on K alone (compute.h, invariant 4). */
#include "compute/cpu/packed.h"
#include "compute/cuda/kernels/mma.cuh"

namespace {

#define MOST_WARPS 12
#define COLUMNS    32

template <class T> struct job {
    T *y;
    const T *x, *b;
    const q8_group *w;
    int64_t R, K, N, ldy;
    int n_group, n_panel;
    bool even; /* rows of x can be read 16 bytes at a time */
};

/* Four numbers q as two words of two. */
template <class T> LS_DEVICE void convert(uint32_t to[2], uint32_t w)
{
    float f[4];
    w ^= PACKED_FLIP ^ 0x80 ? 0x80808080u : 0u; /* q + 128 */
#pragma unroll
    for (int j = 0; j < 4; j++) /* the byte as the last bits of 2^23 + byte */
        f[j] = __uint_as_float(0x4b000000u | (w >> (8 * j) & 0xff)) - 8388736.0f;
    to[0] = narrow2(f[0], f[1], T());
    to[1] = narrow2(f[2], f[3], T());
}

/* 16 numbers of a row of x from k on, as eight words. */
template <class T> LS_DEVICE void load_row(uint32_t to[8], const job<T> &a, int64_t row, int64_t k)
{
    const T *x = a.x + row * a.K + k;
    if (a.even && k + 16 <= a.K) {
        const vec<T, 8> lo = vec_load<8>(x), hi = vec_load<8>(x + 8);
        memcpy(to, &lo, 16);
        memcpy(to + 4, &hi, 16);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        to[j] = narrow2(k + 2 * j < a.K ? to_float(x[2 * j]) : 0.0f,
                        k + 2 * j + 1 < a.K ? to_float(x[2 * j + 1]) : 0.0f, T());
}

template <class T, int TILES> __global__ void __launch_bounds__(32 * MOST_WARPS) product(const job<T> a)
{
    LS_SHARED(float, part, [MOST_WARPS][8][COLUMNS]);
    const int lane = lane_id(), warp = warp_id(), n_warp = (int)(blockDim.x / 32), r = lane / 4, q = lane % 4;
    const int64_t row0 = (int64_t)blockIdx.y * (8 * TILES), column0 = (int64_t)blockIdx.x * COLUMNS;
    int panel = (int)blockIdx.x * 2 + r / 4;
    if (panel >= a.n_panel) panel = a.n_panel - 1; /* columns that nobody wants */
    const q8_group *w = a.w + (int64_t)panel * a.n_group;
    float sum[TILES][2][4] = {};
    for (int g = warp; g < a.n_group; g += n_warp) {
        uint4 raw[4];
        uint32_t A[4][2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) raw[i] = *reinterpret_cast<const uint4 *>(w[g].w[4 * q + i][4 * (r % 4)]);
        const float4 scale = *reinterpret_cast<const float4 *>(w[g].scale + 4 * (r % 4));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t column[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
            for (int j = 0; j < 4; j++) { /* column 4r + j: k, k+1 and k+2, k+3 */
                uint32_t two[2];
                convert<T>(two, column[j]);
                A[i][j / 2][j % 2] = two[0];
                A[i][j / 2][j % 2 + 2] = two[1];
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            uint32_t B[8];
            float d[2][4] = {};
            const int64_t row = row0 + 8 * t + r;
            load_row(B, a, row < a.R ? row : a.R - 1, (int64_t)g * PACKED_GROUP + 16 * q);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < 2; c++) mma(d[c], A[i][c], B + 2 * i, T());
#pragma unroll
            for (int e = 0; e < 2;
                 e++) { /* d: rows r (0, 1) and r+8 (2, 3), which are columns 4r + 2c and 4r + 2c + 1 */
                sum[t][0][e] += scale.x * d[0][e];
                sum[t][0][2 + e] += scale.y * d[0][2 + e];
                sum[t][1][e] += scale.z * d[1][e];
                sum[t][1][2 + e] += scale.w * d[1][2 + e];
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (row0 + 8 * t >= a.R) break;
        if (t) __syncthreads(); /* the last tile has been read */
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) part[warp][2 * q + e % 2][4 * r + 2 * c + e / 2] = sum[t][c][e];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < 8 * COLUMNS; i += (int)blockDim.x) {
            const int64_t row = row0 + 8 * t + i / COLUMNS, n = column0 + i % COLUMNS;
            if (row >= a.R || n >= a.N) continue;
            float y = 0;
            for (int k = 0; k < n_warp; k++) y += part[k][i / COLUMNS][i % COLUMNS];
            if (a.b) y += to_float(a.b[n]);
            a.y[row * a.ldy + n] = from_float<T>(y);
        }
    }
}

template <class T> int run(void *stream, const job<T> &a)
{
    const int warps = a.n_group < MOST_WARPS ? a.n_group : MOST_WARPS; /* K alone decides */
    const int tiles = a.R <= 8 ? 1 : a.R <= 16 ? 2 : a.R <= 32 ? 4 : 8;
    const dim3 grid((unsigned)ceil_div(a.n_panel, 2), (unsigned)ceil_div<int64_t>(a.R, 8 * tiles));
    void (*f)(job<T>) = tiles == 1   ? product<T, 1>
                        : tiles == 2 ? product<T, 2>
                        : tiles == 4 ? product<T, 4>
                                     : product<T, 8>;
    return LS_LAUNCH(f, grid, (unsigned)(32 * warps), 0, stream, a);
}

template <class T>
int linear(void *stream, void *y, int64_t ldy, const void *x, const void *w, const void *b, int64_t R, int64_t K,
           int64_t N)
{
    job<T> a = {(T *)y, (const T *)x, (const T *)b, (const q8_group *)w, R, K, N, ldy, 0, 0, false};
    a.n_group = (int)packed_groups(K);
    a.n_panel = (int)packed_panels(N);
    a.even = K % 8 == 0 && aligned16(x);
    return run(stream, a);
}

} // namespace

extern "C" int cu_linear_int8(void *stream, ls_dtype dt, void *y, int64_t ldy, const void *x, const void *w,
                              const void *b, int64_t R, int64_t K, int64_t N)
{
    if (R <= 0 || N <= 0 || K <= 0) return 0;
    if (ceil_div<int64_t>(R, 64) > 65535) return (int)cudaErrorInvalidValue;
    if (dt == LS_BF16) return linear<bf16>(stream, y, ldy, x, w, b, R, K, N);
    if (dt == LS_F16) return linear<f16>(stream, y, ldy, x, w, b, R, K, N);
    return (int)cudaErrorInvalidValue;
}
