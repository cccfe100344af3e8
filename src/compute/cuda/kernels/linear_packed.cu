/* linear_packed.cu - y (R,N) = x (R,K) w + b, where w is packed as compute/cpu/packed.h lays it out: in bf16, or in int8 with a scale for 64
 * numbers along K. x is in 16 bits (bf16 for bf16 matrices).
 *
 *   int8:  y[r][n] = b[n] + sum over groups g of  scale[g][n] * (sum over the group of x[r][k] q[k][n])
 *
 * `product`, for few rows, where reading w limits. The tensor cores multiply (mma.cuh, w as A: 16 columns of it in a product with 8 rows of x), so that 64
 * rows cost little more than one. q is exact in bf16 and f16, products and sums are float. A product sums 16 along K: at once from 8.0 on, as two of
 * 8 on 7.5, and one by one on 7.0. Before 8.0 there is no bf16.
 *
 * A block makes a panel of w, 16 columns, of up to 64 rows; its warps take groups of 64 along K in turn, and their parts are added in order. With
 * r = lane / 4 and q = lane % 4 a lane reads, of the group, columns 2r and 2r+1 (rows r and r+8 of A) and k = 16q+4i … 16q+4i+3 for
 * i = 0 … 3: the 16 numbers along K of product i are those of the four q. In B the lane's part is row r of x, k = 16q … 16q+15, 32 bytes
 * in one piece. The group after the one that is multiplied is already being read; w leaves the room in L1 to x, which all blocks read.
 *
 * `product_many`, for prompts, where the products limit: a block makes 64 columns of 128 rows, a warp 32 of 64. Rows of x pass through two places in
 * shared memory, chunk c (16 bytes) of row r at place c ^ (r % 8), so that a warp's lanes read different banks. A warp takes the groups in
 * the order in which `product` adds them: those of its first warp, their sum is added, then those of the second one, and so on.
 *
 * What follows (GELU, or an addition) gets the rounded y and rounds again, as an operation of its own does. The order of a row's sum depends on K
 * alone (compute.h, invariant 4). */
#include "compute/cpu/packed.h"
#include "compute/cuda/kernels/gelu.cuh"
#include "compute/cuda/kernels/mma.cuh"

namespace {

#define MOST_WARPS 16

enum { PLAIN, GELU_TANH, GELU_ERF, ADD };

template <class T> struct job {
    T *y;
    const T *x, *b, *add;
    const void *w;
    int64_t R, K, N, ldy;
    int64_t room; /* bf16: pairs along K from one panel to the next */
    int n_panel, n_group, n_warp, then;
    bool even; /* rows of x can be read 16 bytes at a time */
};

/* What a lane reads of a group of 64 along K: four numbers of two columns, four times. */
template <class T, ls_pack FORM> struct piece;

template <class T> struct piece<T, LS_PACK_INT8> {
    uint2 raw[4];
    float2 scale;
    __device__ __forceinline__ void load(const job<T> &a, int panel, int g, int r, int q)
    {
        const q8_group *w = (const q8_group *)a.w + (int64_t)panel * a.n_group + g;
#pragma unroll
        for (int i = 0; i < 4; i++) raw[i] = __ldcs(reinterpret_cast<const uint2 *>(w->w[4 * q + i][2 * r]));
        scale = __ldcs(reinterpret_cast<const float2 *>(w->scale + 2 * r));
    }
    /* Four numbers q as two words of two. */
    static __device__ __forceinline__ void convert(uint32_t to[2], uint32_t w)
    {
        float f[4];
        w ^= PACKED_FLIP == 0x80 ? 0u : 0x80808080u; /* q + 128 */
#pragma unroll
        for (int j = 0; j < 4; j++) /* the byte as the last bits of 2^23 + byte */
            f[j] = __uint_as_float(0x4b000000u | (w >> (8 * j) & 0xff)) - 8388736.0f;
        to[0] = narrow2(f[0], f[1], T());
        to[1] = narrow2(f[2], f[3], T());
    }
    __device__ __forceinline__ void get(uint32_t A[4], int i) const
    {
        uint32_t one[2], other[2];
        convert(one, raw[i].x);
        convert(other, raw[i].y);
        A[0] = one[0], A[1] = other[0], A[2] = one[1], A[3] = other[1];
    }
    __device__ __forceinline__ void add(float sum[4], const float d[4]) const
    {
        sum[0] += scale.x * d[0], sum[1] += scale.x * d[1];
        sum[2] += scale.y * d[2], sum[3] += scale.y * d[3];
    }
};

template <class T> struct piece<T, LS_PACK_BF16> {
    uint2 raw[8];
    __device__ __forceinline__ void load(const job<T> &a, int panel, int g, int r, int q)
    {
        const int pairs = (int)((a.K + 1) / 2); /* along K */
        const uint32_t *w = (const uint32_t *)a.w + (int64_t)panel * a.room * PACKED_PANEL + 2 * r;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int k = g * (PACKED_GROUP / 2) + 8 * q + i;
            raw[i] = make_uint2(0, 0);
            if (k < pairs) raw[i] = __ldcs(reinterpret_cast<const uint2 *>(w + (int64_t)k * PACKED_PANEL));
        }
    }
    __device__ __forceinline__ void get(uint32_t A[4], int i) const
    {
        A[0] = raw[2 * i].x, A[1] = raw[2 * i].y, A[2] = raw[2 * i + 1].x, A[3] = raw[2 * i + 1].y;
    }
    __device__ __forceinline__ void add(float sum[4], const float d[4]) const
    {
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e] += d[e];
    }
};

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

/* The sum as a number of y, and what follows it. */
template <class T> LS_DEVICE T finish(const job<T> &a, float sum, int64_t row, int64_t n)
{
    const T y = from_float<T>(a.b ? sum + to_float(a.b[n]) : sum);
    if (a.then == ADD) return from_float<T>(to_float(a.add[row * a.N + n]) + to_float(y));
    if (a.then == GELU_TANH) return from_float<T>(gelu_value<LS_GELU_TANH>(to_float(y)));
    if (a.then == GELU_ERF) return from_float<T>(gelu_value<LS_GELU_ERF>(to_float(y)));
    return y;
}

template <class T, ls_pack FORM, int TILES> __global__ void __launch_bounds__(32 * MOST_WARPS) product(const job<T> a)
{
    LS_SHARED(float, part, [MOST_WARPS][8][PACKED_PANEL]);
    const int lane = lane_id(), warp = warp_id(), n_warp = (int)(blockDim.x / 32), r = lane / 4, q = lane % 4;
    const int panel = (int)blockIdx.x;
    const int64_t row0 = (int64_t)blockIdx.y * (8 * TILES);
    float sum[TILES][4] = {};
    piece<T, FORM> next;
    next.load(a, panel, warp, r, q); /* there are at least as many groups as warps */
    for (int g = warp; g < a.n_group; g += n_warp) {
        const piece<T, FORM> now = next;
        if (g + n_warp < a.n_group) next.load(a, panel, g + n_warp, r, q);
        uint32_t A[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) now.get(A[i], i);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            uint32_t B[8];
            float d[4] = {};
            const int64_t row = row0 + 8 * t + r;
            load_row(B, a, row < a.R ? row : a.R - 1, (int64_t)g * PACKED_GROUP + 16 * q);
#pragma unroll
            for (int i = 0; i < 4; i++) mma(d, A[i], B + 2 * i, T());
            now.add(sum[t], d);
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (row0 + 8 * t >= a.R) break;
        if (t) __syncthreads(); /* the last tile has been read */
#pragma unroll
        for (int e = 0; e < 4; e++) part[warp][2 * q + e % 2][2 * r + e / 2] = sum[t][e];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < 8 * PACKED_PANEL; i += (int)blockDim.x) {
            const int64_t row = row0 + 8 * t + i / PACKED_PANEL, n = (int64_t)panel * PACKED_PANEL + i % PACKED_PANEL;
            if (row >= a.R || n >= a.N) continue;
            float y = 0;
            for (int k = 0; k < n_warp; k++) y += part[k][i / PACKED_PANEL][i % PACKED_PANEL];
            a.y[row * a.ldy + n] = finish(a, y, row, n);
        }
    }
}

/* ---- many rows ---- */

enum { MANY_ROWS = 128, MANY_PANELS = 4, MANY_THREADS = 128, ROW_NBYTES = 2 * PACKED_GROUP };

/* Warps of `product`, which decide the order of sums: by K alone. */
static inline int order_warps(int n_group)
{
    return n_group < MOST_WARPS ? n_group : MOST_WARPS;
}

/* Group g of rows row0 … of x into a place in shared memory; zeros beyond the end. */
template <class T> LS_DEVICE void stage_rows(char *to, const job<T> &a, int64_t row0, int g)
{
    for (int i = (int)threadIdx.x; i < MANY_ROWS * 8; i += MANY_THREADS) {
        const int r = i / 8, c = i % 8;
        const int64_t row = row0 + r, k = (int64_t)g * PACKED_GROUP + 8 * c;
        const bool there = row < a.R && k < a.K;
        const T *from = a.x + (there ? row * a.K + k : 0);
        char *at = to + r * ROW_NBYTES + ((c ^ (r & 7)) << 4);
        if (a.even) cp_async16(at, from, there); /* K is a multiple of 8 */
        else
            for (int e = 0; e < 8; e++) ((T *)at)[e] = there && k + e < a.K ? from[e] : from_float<T>(0);
    }
    cp_async_commit();
}

template <class T, ls_pack FORM> __global__ void __launch_bounds__(MANY_THREADS, 2) product_many(const job<T> a)
{
    const int PANELS = MANY_PANELS / 2, TILES = MANY_ROWS / 16; /* of a warp: panels, and tiles of 8 rows */
    LS_SHARED(char, stage, [2][MANY_ROWS * ROW_NBYTES]);
    const int lane = lane_id(), warp = warp_id(), r = lane / 4, q = lane % 4;
    const int n_panel = a.n_panel, panel0 = (int)blockIdx.x * MANY_PANELS + warp % 2 * PANELS;
    const int64_t row0 = (int64_t)blockIdx.y * MANY_ROWS;
    const int first = warp / 2 * 8 * TILES, n_warp = a.n_warp;
    float sum[PANELS][TILES][4] = {}, all[PANELS][TILES][4] = {};
    piece<T, FORM> next[PANELS];
    stage_rows(stage[0], a, row0, 0);
#pragma unroll
    for (int p = 0; p < PANELS; p++) next[p].load(a, panel0 + p < n_panel ? panel0 + p : n_panel - 1, 0, r, q);
    for (int n = 0, w = 0, g = 0; n < a.n_group; n++) {
        const bool ends = g + n_warp >= a.n_group; /* the sum of warp w of `product` */
        const int then = ends ? w + 1 : g + n_warp;
        uint32_t A[PANELS][4][4];
        piece<T, FORM> now[PANELS];
        cp_async_wait<0>();
        __syncthreads(); /* the place of the group before this one has been read, too */
        if (n + 1 < a.n_group) stage_rows(stage[(n + 1) % 2], a, row0, then);
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            now[p] = next[p];
            if (n + 1 < a.n_group) next[p].load(a, panel0 + p < n_panel ? panel0 + p : n_panel - 1, then, r, q);
#pragma unroll
            for (int i = 0; i < 4; i++) now[p].get(A[p][i], i);
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const int row = first + 8 * t + r;
            const char *x = stage[n % 2] + row * ROW_NBYTES;
            uint32_t B[8];
            *(uint4 *)B = *(const uint4 *)(x + ((2 * q ^ (row & 7)) << 4));
            *(uint4 *)(B + 4) = *(const uint4 *)(x + (((2 * q + 1) ^ (row & 7)) << 4));
#pragma unroll
            for (int p = 0; p < PANELS; p++) {
                float d[4] = {};
#pragma unroll
                for (int i = 0; i < 4; i++) mma(d, A[p][i], B + 2 * i, T());
                now[p].add(sum[p][t], d);
                if (!ends) continue;
#pragma unroll
                for (int e = 0; e < 4; e++) all[p][t][e] += sum[p][t][e], sum[p][t][e] = 0;
            }
        }
        if (ends) w++;
        g = then;
    }
#pragma unroll
    for (int p = 0; p < PANELS; p++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t row = row0 + first + 8 * t + 2 * q + e % 2,
                              n = (int64_t)(panel0 + p) * PACKED_PANEL + 2 * r + e / 2;
                if (row < a.R && n < a.N) a.y[row * a.ldy + n] = finish(a, all[p][t][e], row, n);
            }
}

template <class T, ls_pack FORM> int run(void *stream, const job<T> &a)
{
    const int warps = a.n_warp;
    if (a.R >= MANY_ROWS) {
        const dim3 grid((unsigned)ceil_div(a.n_panel, (int)MANY_PANELS), (unsigned)ceil_div<int64_t>(a.R, MANY_ROWS));
        return LS_LAUNCH((product_many<T, FORM>), grid, MANY_THREADS, 0, stream, a);
    }
    const int tiles = a.R <= 8 ? 1 : a.R <= 16 ? 2 : a.R <= 32 ? 4 : 8;
    const dim3 grid((unsigned)a.n_panel, (unsigned)ceil_div<int64_t>(a.R, 8 * tiles));
    void (*f)(job<T>) = tiles == 1   ? product<T, FORM, 1>
                        : tiles == 2 ? product<T, FORM, 2>
                        : tiles == 4 ? product<T, FORM, 4>
                                     : product<T, FORM, 8>;
    return LS_LAUNCH(f, grid, (unsigned)(32 * warps), 0, stream, a);
}

template <class T> job<T> job_of(const cu_packed *p)
{
    job<T> a = {};
    a.y = (T *)p->y, a.x = (const T *)p->x, a.b = (const T *)p->b, a.add = (const T *)p->add, a.w = p->w;
    a.R = p->R, a.K = p->K, a.N = p->N, a.ldy = p->ldy ? p->ldy : p->N;
    a.n_panel = (int)packed_panels(p->N);
    a.room = packed_pairs(p->K);
    a.n_group = (int)packed_groups(p->K);
    a.n_warp = order_warps(a.n_group);
    a.then = p->add ? ADD : !p->gelu ? PLAIN : p->kind == LS_GELU_TANH ? GELU_TANH : GELU_ERF;
    a.even = p->K % 8 == 0 && aligned16(p->x);
    return a;
}

} // namespace

extern "C" int cu_linear_packed(void *stream, ls_dtype dt, const cu_packed *p)
{
    if (p->R <= 0 || p->N <= 0 || p->K <= 0) return 0;
    if (ceil_div<int64_t>(p->R, 64) > 65535) return (int)cudaErrorInvalidValue;
    const ls_card *card = cu_card();
    if (dt == LS_BF16 && !(card && card->bf16)) return (int)cudaErrorNotSupported;
    if (dt == LS_BF16 && p->form == LS_PACK_BF16) return run<bf16, LS_PACK_BF16>(stream, job_of<bf16>(p));
    if (dt == LS_BF16 && p->form == LS_PACK_INT8) return run<bf16, LS_PACK_INT8>(stream, job_of<bf16>(p));
    if (dt == LS_F16 && p->form == LS_PACK_INT8) return run<f16, LS_PACK_INT8>(stream, job_of<f16>(p));
    return (int)cudaErrorInvalidValue;
}
