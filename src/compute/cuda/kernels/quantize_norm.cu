/* quantize_norm.cu - the output of a layer norm as an operand in 8 bits (compute.h, ls_quantize_norm): as it is and transposed, with its largest
 * magnitude. The norm's output itself is not written. Bits are those of cu_layernorm_fwd and then cu_quantize: a row is computed by the same
 * functions (norm.cuh) in the same layout, and rounded to bf16 first.
 *
 * Bytes   of an element 2 read and 1 written for each of q and qt; 4 more with a residual sum before the norm.
 * Shape   a block has 64 neighbouring rows of all columns, or 32 or 16 where rows are few or wide. Groups of W warps take one row after the other, and
 *         read the next one ahead. Gains and biases are in shared memory in fp32, and the codes of all rows stay there, too. Then a thread takes 4
 *         columns of 16 rows, and writes 16 bytes of each column.
 * Banks   a row begins at bank 0. It is permuted, word by word, by an exclusive or with a number of the row's, so that the lanes of a warp, which have
 *         different columns and rows, read different banks. It is even: pairs of words, as rows are written, stay together. */
#include "compute/cuda/kernels/fp8.cuh"
#include "compute/cuda/kernels/norm.cuh"

namespace {

#define PIECE 16 /* rows of a thread that transposes */

struct job {
    uint8_t *q, *qt;
    bf16 *res;
    float *mean, *rstd;
    unsigned *amax;
    const float *scale;
    const bf16 *x, *delta, *w, *b;
    int64_t R;
    int C, rows, stride; /* rows of a block; words of a row in shared memory */
    unsigned far;        /* of mix */
    float eps;
    drop_arg drop;
};

/* The permutation of row r of a block; far: 512 / rows. */
LS_DEVICE unsigned mix(unsigned r, unsigned far)
{
    return r / PIECE * far ^ 2 * (r / 4 % 4);
}

template <int NP, int W, bool ADD>
__global__ void __launch_bounds__(NORM_THREADS, W > 1     ? 2
                                                : NP <= 3 ? 4
                                                          : 3) norm_codes(const job a)
{
    constexpr int N = whole<bf16>, LANES = 32 * W, G = NORM_THREADS / LANES, ALL = NP * LANES;
    uint32_t *codes = LS_SHARED_DYNAMIC(uint32_t); /* (rows, stride) */
    LS_SHARED(float, room, [2][NORM_WARPS]);
    LS_SHARED(unsigned, largest, [NORM_WARPS]);
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, n_pack = a.C / N;
    const int64_t top = (int64_t)blockIdx.x * a.rows;
    const float inv = 1.0f / (float)a.C, scale = *a.scale;
    const uint64_t key = drop_key(a.drop);
    unsigned most = 0;
    /* gains and biases in fp32: the first and the second half of each pack, so that lanes read side by side */
    float4 *const gains = (float4 *)(codes + a.rows * a.stride); /* (2, 2, ALL) */
    for (int p = (int)threadIdx.x; p < ALL; p += NORM_THREADS) {
        float w[N], b[N];
        widen_gains(w, p < n_pack ? vec_load<N>(a.w + p * N) : vec_zero<bf16, N>());
        widen(b, p < n_pack ? vec_load<N>(a.b + p * N) : vec_zero<bf16, N>());
#pragma unroll
        for (int h = 0; h < 2; h++) {
            gains[h * ALL + p] = make_float4(w[4 * h], w[4 * h + 1], w[4 * h + 2], w[4 * h + 3]);
            gains[(2 + h) * ALL + p] = make_float4(b[4 * h], b[4 * h + 1], b[4 * h + 2], b[4 * h + 3]);
        }
    }
    vec<bf16, N> x[NP];
    if (!ADD) norm_load<W>(x, a.x + (top + group) * a.C, top + group < a.R, lane, n_pack);
    __syncthreads();
    for (int at = group; at < a.rows; at += G) {
        const int64_t r = top + at;
        const bool live = r < a.R;
        if (ADD) {
            vec<bf16, N> d[NP];
            norm_load<W>(x, a.x + r * a.C, live, lane, n_pack);
            norm_load<W>(d, a.delta + r * a.C, live, lane, n_pack);
            norm_add<W>(x, d, a.res, r * a.C, a.drop, key, live, lane, n_pack);
        }
        float f[NP][N];
#pragma unroll
        for (int k = 0; k < NP; k++) widen(f[k], x[k]);
        if (!ADD) norm_load<W>(x, a.x + (r + G) * a.C, at + G < a.rows && r + G < a.R, lane, n_pack); /* the next row */
        const norm_stats s = norm_stats_of<W, N>(f, inv, a.eps, lane, n_pack, room);
        if (!live) continue;
        if (lane == 0) {
            a.mean[r] = s.mean;
            a.rstd[r] = s.rstd;
        }
        uint8_t *const q = a.q + r * a.C + lane * N;
        uint32_t *const to = codes + at * a.stride + (2 * lane ^ mix(at, a.far));
#pragma unroll
        for (int k = 0; k < NP; k++) {
            float y[N];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float4 w = gains[h * ALL + k * LANES + lane], b = gains[(2 + h) * ALL + k * LANES + lane];
                y[4 * h] = fmaf((f[k][4 * h] - s.mean) * s.rstd, w.x, b.x);
                y[4 * h + 1] = fmaf((f[k][4 * h + 1] - s.mean) * s.rstd, w.y, b.y);
                y[4 * h + 2] = fmaf((f[k][4 * h + 2] - s.mean) * s.rstd, w.z, b.z);
                y[4 * h + 3] = fmaf((f[k][4 * h + 3] - s.mean) * s.rstd, w.w, b.w);
            }
            widen(y, vec_of<bf16>(y));
            if (k == NP - 1 && lane + k * LANES >= n_pack) continue; /* every layout fills the packs before */
#pragma unroll
            for (int i = 0; i < N; i++) {
                most = larger(most, y[i]);
                y[i] *= scale;
            }
            const uint2 code = make_uint2(code4<false>(y[0], y[1], y[2], y[3]), code4<false>(y[4], y[5], y[6], y[7]));
            *reinterpret_cast<uint2 *>(q + k * LANES * N) = code;
            *reinterpret_cast<uint2 *>(to + 2 * k * LANES) = code;
        }
    }
    most = warp_max(most);
    if (lane_id() == 0) largest[warp_id()] = most;
    __syncthreads();
    const unsigned pieces = (unsigned)a.rows / PIECE, piece = threadIdx.x % pieces * PIECE;
    if (top + piece < a.R) {
        for (unsigned c = threadIdx.x / pieces; c < (unsigned)a.C / 4; c += NORM_THREADS / pieces) {
            uint32_t column[4][PIECE / 4];
#pragma unroll
            for (int k = 0; k < PIECE / 4; k++) {
                const unsigned r = piece + 4 * k;
                const uint32_t *from = codes + r * a.stride + (c ^ mix(r, a.far));
                uint32_t word[4] = {from[0], from[a.stride], from[2 * a.stride], from[3 * a.stride]};
                turn4(word);
#pragma unroll
                for (int i = 0; i < 4; i++) column[i][k] = word[i];
            }
            uint8_t *const qt = a.qt + 4 * c * a.R + top + piece;
#pragma unroll
            for (int i = 0; i < 4; i++)
                *reinterpret_cast<uint4 *>(qt + i * a.R) =
                    make_uint4(column[i][0], column[i][1], column[i][2], column[i][3]);
        }
    }
    if (threadIdx.x > 0) return;
    for (int k = 1; k < NORM_WARPS; k++) most = largest[k] > most ? largest[k] : most;
    raise(a.amax, most);
}

/* Codes; gains and biases of columns, of whole packs of all lanes. */
size_t shared_nbytes(const job &a, int columns)
{
    return (size_t)(a.rows * a.stride) * sizeof(uint32_t) + 2 * (size_t)columns * sizeof(float);
}

template <bool ADD> struct start {
    const ls_quantize *q;
    job a;
    void *stream;
    template <int NP, int W> int rows() const
    {
        const size_t smem = shared_nbytes(a, 32 * W * NP * whole<bf16>);
        const int e = smem > 32768 ? LS_ALLOW_SHARED((norm_codes<NP, W, ADD>), smem) : 0;
        const unsigned blocks = (unsigned)ceil_div<int64_t>(a.R, a.rows);
        return e ? e : LS_LAUNCH((norm_codes<NP, W, ADD>), blocks, NORM_THREADS, smem, stream, a);
    }
    int any() const /* the norm's output is written, and read again */
    {
        const ls_quantize_norm *n = q->norm;
        const int e = cu_layernorm_fwd(stream, LS_BF16, n->res, n->y, (float *)n->mean, (float *)n->rstd, q->x,
                                       n->delta, n->w, n->b, q->R, q->N, n->eps, n->drop);
        ls_quantize plain = *q;
        plain.x = n->y, plain.norm = nullptr;
        return e ? e : cu_quantize(stream, &plain, nullptr);
    }
};

#define MULTIPROCESSORS 132         /* of an H200                */
#define SHARED_MOST     (110 << 10) /* bytes: two blocks fit     */

/* Rows of a block: as many as leave enough blocks, and fit into shared memory. */
void set_rows(job *a)
{
    a->rows = a->R >= 2 * MULTIPROCESSORS * 64 ? 64 : a->R >= MULTIPROCESSORS * 32 ? 32 : 16;
    if (a->rows == 64 && shared_nbytes(*a, a->C) > SHARED_MOST) a->rows = 32;
    while (a->rows > 16 && shared_nbytes(*a, a->C) > (size_t)cu_shared()) a->rows /= 2;
    a->far = (unsigned)(32 * PIECE / a->rows);
}

} // namespace

extern "C" int cu_quantize_norm(void *stream, const ls_quantize *q)
{
    const ls_quantize_norm *n = q->norm;
    if (q->R % 16 || q->N % 16 || q->pre || q->sums || q->form != LS_E4M3 || !q->q || !q->qt || !aligned16(q->q, q->qt))
        return (int)cudaErrorInvalidValue;
    const bool aligned = aligned16(n->y, q->x, n->w, n->b, n->res, n->delta);
    job a = {(uint8_t *)q->q,
             (uint8_t *)q->qt,
             (bf16 *)n->res,
             (float *)n->mean,
             (float *)n->rstd,
             (unsigned *)(void *)q->amax,
             q->scale,
             (const bf16 *)q->x,
             (const bf16 *)n->delta,
             (const bf16 *)n->w,
             (const bf16 *)n->b,
             q->R,
             (int)q->N,
             0,
             (int)(32 * ceil_div<int64_t>(q->N, 128)),
             0,
             (float)n->eps,
             drop_of(n->drop)};
    set_rows(&a);
    if (n->delta) return norm_pick<bf16>(q->N, aligned, start<true>{q, a, stream});
    return norm_pick<bf16>(q->N, aligned, start<false>{q, a, stream});
}
