/* quantize.cu - operands of products in 8 bits (compute.h, ls_quantize): v times a scale, as it is and transposed, in one pass over memory,
 * with the largest magnitude of v and its column sums.
 *
 * Bytes   of an element 2 read (4 with GELU's slope), 1 written for each of q and qt; and 4N per 128 rows for the partial column sums.
 * Tiles   a block has 128 x 128 elements, a thread 8 columns of 4 neighbouring rows, twice, all read before the first is used. The 4 rows of a
 *         column are one word of the transposed tile, which goes through shared memory. The tile is permuted by an exclusive or, so that
 *         the lanes of a warp use different banks in both directions.
 * Order   column sums: 8 rows of a thread, then the 16 threads of a tile, then tiles (cu_fold); R alone decides it. A maximum has no order. */
#include "compute/cuda/kernels/fp8.cuh"
#include "compute/cuda/kernels/gelu.cuh"
#include "compute/cuda/kernels/vec.cuh"

namespace {

#define TILE    CU_QUANTIZE_TILE
#define PACK    8 /* columns of a thread               */
#define ROWS    4 /* neighbouring rows of a thread     */
#define GROUPS  (TILE / PACK)
#define THREADS 256
#define TURNS   (TILE * TILE / (THREADS * PACK * ROWS))
#define STEP    (TILE / TURNS) /* rows of all threads in a turn     */

struct quantize_arg {
    const bf16 *x, *pre;
    uint8_t *q, *qt;
    const float *scale;
    unsigned *amax;
    float *part;
    int64_t R, N;
};

/* What a value is made of. */
struct plain {
    enum { X = 1, PRE = 0 };
    static __device__ __forceinline__ float of(float x, float) { return x; }
};
template <ls_gelu KIND> struct activated {
    enum { X = 0, PRE = 1 };
    static __device__ __forceinline__ float of(float, float pre) { return gelu_value<KIND>(pre); }
};
template <ls_gelu KIND> struct sloped {
    enum { X = 1, PRE = 1 };
    static __device__ __forceinline__ float of(float x, float pre) { return x * gelu_slope<KIND>(pre); }
};

template <class V, bool E5M2> __global__ void __launch_bounds__(THREADS) quantize_tiles(const quantize_arg a)
{
    LS_SHARED(uint32_t, turned, [TILE][TILE / ROWS]);
    LS_SHARED(float, sums, [STEP / ROWS][TILE]);
    LS_SHARED(unsigned, largest, [THREADS / 32]);
    const int group = (int)threadIdx.x % GROUPS, place = (int)threadIdx.x / GROUPS;
    const int64_t left = (int64_t)blockIdx.x * TILE, top = (int64_t)blockIdx.y * TILE, column = left + group * PACK;
    const float scale = a.scale ? *a.scale : 1.0f;
    vec<bf16, PACK> x[TURNS][ROWS], pre[TURNS][ROWS];
    float sum[PACK];
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < PACK; i++) sum[i] = 0;
#pragma unroll
    for (int t = 0; t < TURNS; t++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = top + t * STEP + place * ROWS + r, at = row * a.N + column;
            const bool inside = row < a.R && column < a.N;
            x[t][r] = V::X && inside ? vec_load<PACK>(a.x + at) : vec_zero<bf16, PACK>();
            pre[t][r] = V::PRE && inside ? vec_load<PACK>(a.pre + at) : vec_zero<bf16, PACK>();
        }
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        const int64_t row = top + t * STEP + place * ROWS;
        uint32_t word[PACK / 4][ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float f[PACK], g[PACK];
            widen(f, x[t][r]);
            widen(g, pre[t][r]);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                f[i] = V::of(f[i], g[i]); /* 0 outside */
                sum[i] += f[i];
                most = larger(most, f[i]);
                f[i] *= scale;
            }
#pragma unroll
            for (int k = 0; k < PACK / 4; k++)
                word[k][r] = code4<E5M2>(f[4 * k], f[4 * k + 1], f[4 * k + 2], f[4 * k + 3]);
            if (a.q && row < a.R && column < a.N)
                *reinterpret_cast<uint2 *>(a.q + (row + r) * a.N + column) = make_uint2(word[0][r], word[1][r]);
        }
#pragma unroll
        for (int k = 0; k < PACK / 4; k++) {
            turn4(word[k]);
#pragma unroll
            for (int i = 0; i < 4; i++)
                turned[group * PACK + 4 * k + i][(t * (STEP / ROWS) + place) ^ (2 * group)] = word[k][i];
        }
    }
#pragma unroll
    for (int i = 0; i < PACK; i++) sums[place][group * PACK + i] = sum[i];
    most = warp_max(most);
    if (lane_id() == 0) largest[warp_id()] = most;
    __syncthreads();
    if (a.qt && top + lane_id() * ROWS < a.R) {
#pragma unroll 4
        for (int c = warp_id(); c < TILE; c += THREADS / 32)
            if (left + c < a.N)
                *reinterpret_cast<uint32_t *>(a.qt + (left + c) * a.R + top + lane_id() * ROWS) =
                    turned[c][lane_id() ^ (2 * (c / PACK))];
    }
    const int c = (int)threadIdx.x;
    if (a.part && c < TILE && left + c < a.N) {
        float s = 0;
        for (int k = 0; k < STEP / ROWS; k++) s += sums[k][c];
        a.part[blockIdx.y * a.N + left + c] = s;
    }
    if (!a.amax || c > 0) return;
    for (int k = 1; k < THREADS / 32; k++) most = largest[k] > most ? largest[k] : most;
    raise(a.amax, most);
}

template <class V, bool E5M2> int start(void *stream, const quantize_arg &a)
{
    const dim3 grid((unsigned)ceil_div<int64_t>(a.N, TILE), (unsigned)ceil_div<int64_t>(a.R, TILE));
    return LS_LAUNCH((quantize_tiles<V, E5M2>), grid, THREADS, 0, stream, a);
}

template <class V> int start_form(void *stream, const quantize_arg &a, ls_fp8 form)
{
    return form == LS_E5M2 ? start<V, true>(stream, a) : start<V, false>(stream, a);
}

template <ls_gelu KIND> int start_gelu(void *stream, const quantize_arg &a, ls_fp8 form)
{
    return a.x ? start_form<sloped<KIND>>(stream, a, form) : start_form<activated<KIND>>(stream, a, form);
}

} // namespace

extern "C" int cu_quantize(void *stream, const ls_quantize *q, void *scratch)
{
    quantize_arg a = {(const bf16 *)q->x,
                      (const bf16 *)q->pre,
                      (uint8_t *)q->q,
                      (uint8_t *)q->qt,
                      q->scale,
                      (unsigned *)(void *)q->amax,
                      q->sums ? (float *)scratch : nullptr,
                      q->R,
                      q->N};
    if (q->norm) return cu_quantize_norm(stream, q);
    if (q->R % 16 || q->N % 16 || !aligned16(q->x, q->pre, q->q, q->qt)) return (int)cudaErrorInvalidValue;
    const int e = !q->pre                  ? start_form<plain>(stream, a, q->form)
                  : q->kind == LS_GELU_ERF ? start_gelu<LS_GELU_ERF>(stream, a, q->form)
                                           : start_gelu<LS_GELU_TANH>(stream, a, q->form);
    if (e || !q->sums) return e;
    return cu_fold(stream, q->sums, nullptr, q->N, a.part, ceil_div<int64_t>(q->R, TILE), q->N, q->acc);
}
