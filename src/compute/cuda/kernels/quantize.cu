/* quantize.cu - operands of products in 8 bits (compute.h, ls_quantize): v times a scale, as it is and transposed, in one pass over memory,
 * with the largest magnitude of v and its column sums.
 *
 * Bytes   of an element 2 read (4 with GELU's slope), 1 written for each of q and qt; and 4N per 128 rows for the partial column sums.
 * Tiles   tile8.cuh; all elements of a thread are read before the first is used (with GELU's slope: those of each turn).
 * Order   column sums: 8 rows of a thread, then the 16 threads of a tile, then tiles (cu_fold); R alone decides it. A maximum has no order. */
#include "compute/cuda/kernels/gelu.cuh"
#include "compute/cuda/kernels/tile8.cuh"
#include "compute/cuda/kernels/vec.cuh"

namespace {

struct quantize_arg {
    const bf16 *x, *pre;
    uint8_t *q, *qt;
    const float *scale;
    unsigned *amax;
    float *part;
    int64_t R, N;
};

/* What a value is made of; turns that are read ahead, and blocks of a multiprocessor. */
struct plain {
    enum { X = 1, PRE = 0, AHEAD = TURNS, BLOCKS = 4 };
    static __device__ __forceinline__ float of(float x, float) { return x; }
};
template <ls_gelu KIND> struct activated {
    enum { X = 0, PRE = 1, AHEAD = TURNS, BLOCKS = KIND == LS_GELU_ERF ? 3 : 4 };
    static __device__ __forceinline__ float of(float, float pre) { return gelu_value<KIND>(pre); }
};
template <ls_gelu KIND> struct sloped {
    enum { X = 1, PRE = 1, AHEAD = 1, BLOCKS = 3 };
    static __device__ __forceinline__ float of(float x, float pre) { return x * gelu_slope<KIND>(pre); }
};

/* Four rows of a thread, N apart; 0 outside. */
template <bool READ> LS_DEVICE void load_rows(vec<bf16, PACK> (&x)[ROWS], const bf16 *from, int64_t N, bool inside)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++, from += N) x[r] = READ && inside ? vec_load<PACK>(from) : vec_zero<bf16, PACK>();
}

template <class V, bool E5M2, bool SUMS>
__global__ void __launch_bounds__(THREADS, V::BLOCKS - (SUMS && !V::PRE)) quantize_tiles(const quantize_arg a)
{
    LS_SHARED(uint32_t, turned, [TILE * WORDS]);
    LS_SHARED(float, sums, [SUMS ? STEP / ROWS : 1][TILE]);
    LS_SHARED(unsigned, largest, [THREADS / 32]);
    const unsigned group = threadIdx.x % GROUPS, place = threadIdx.x / GROUPS;
    const int64_t left = (int64_t)blockIdx.x * TILE, top = (int64_t)blockIdx.y * TILE;
    const int64_t row = top + place * ROWS, column = left + group * PACK, at = row * a.N + column;
    bool inside[TURNS]; /* 4 rows are, or are not */
    vec<bf16, PACK> x[V::AHEAD][ROWS], pre[V::AHEAD][ROWS];
    float sum[PACK];
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < PACK; i++) sum[i] = 0;
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        inside[t] = column < a.N && row + t * STEP < a.R;
        if (t >= V::AHEAD) continue;
        load_rows<V::X>(x[t], a.x + at + t * STEP * a.N, a.N, inside[t]);
        load_rows<V::PRE>(pre[t], a.pre + at + t * STEP * a.N, a.N, inside[t]);
    }
    const float scale = a.scale ? *a.scale : 1.0f;
#pragma unroll(V::AHEAD)
    for (int t = 0; t < TURNS; t++) {
        const int k = t % V::AHEAD;
        if (t >= V::AHEAD) {
            load_rows<V::X>(x[k], a.x + at + t * STEP * a.N, a.N, inside[t]);
            load_rows<V::PRE>(pre[k], a.pre + at + t * STEP * a.N, a.N, inside[t]);
        }
        uint32_t word[PACK / 4][ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float f[PACK], g[PACK];
            widen(f, x[k][r]);
            widen(g, pre[k][r]);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                f[i] = V::of(f[i], g[i]); /* 0 outside */
                if (SUMS) sum[i] += f[i];
                most = larger(most, f[i]);
                f[i] *= scale;
            }
            word[0][r] = code4<E5M2>(f[0], f[1], f[2], f[3]);
            word[1][r] = code4<E5M2>(f[4], f[5], f[6], f[7]);
        }
        if (a.q && inside[t]) {
            uint8_t *q = a.q + at + t * STEP * a.N;
#pragma unroll
            for (int r = 0; r < ROWS; r++, q += a.N) *reinterpret_cast<uint2 *>(q) = make_uint2(word[0][r], word[1][r]);
        }
        tile_put(turned, word, group, place, t);
    }
    if (SUMS) {
#pragma unroll
        for (int i = 0; i < PACK; i += 4)
            *reinterpret_cast<float4 *>(&sums[place][group * PACK + i]) =
                make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    }
    most = warp_max(most);
    if (lane_id() == 0) largest[warp_id()] = most;
    __syncthreads();
    if (a.qt) tile_write(a.qt, turned, top, left, a.R, a.N);
    const unsigned c = threadIdx.x;
    if (SUMS && c < TILE && left + c < a.N) {
        float s = 0;
#pragma unroll
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
    if (a.part) return LS_LAUNCH((quantize_tiles<V, E5M2, true>), grid, THREADS, 0, stream, a);
    return LS_LAUNCH((quantize_tiles<V, E5M2, false>), grid, THREADS, 0, stream, a);
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
    if (q->R == 1) return cu_quantize_range(stream, q);
    if (q->R % 16 || q->N % 16 || !aligned16(q->x, q->pre, q->q, q->qt)) return (int)cudaErrorInvalidValue;
    const int e = !q->pre                  ? start_form<plain>(stream, a, q->form)
                  : q->kind == LS_GELU_ERF ? start_gelu<LS_GELU_ERF>(stream, a, q->form)
                                           : start_gelu<LS_GELU_TANH>(stream, a, q->form);
    if (e || !q->sums) return e;
    return cu_fold(stream, q->sums, nullptr, q->N, a.part, ceil_div<int64_t>(q->R, TILE), q->N, q->acc);
}
