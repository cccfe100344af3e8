/* embed_bwd.cu - gradients of the embedding's two tables: every element a sum in one order, without float atomics.
 *
 *   dwte[v] (+)= sum of drop'(dy[r]) over the positions r of token v
 *   dwpe[t] (+)= sum over the batch of drop'(dy[b,t])
 *
 *   sorted   | the the the … the | a a a | of … of |     positions by token (sort_ids.cu), ascending in a token's list
 *   pieces   |--32--|--32--|--7--|-3-|--32--|-9-|        cut from its list's beginning: a sum depends on its list alone
 *   windows  |----32----|----32----|----32----| …        a block sums the pieces that begin in its window: 63 positions
 *                                                        at most, however often a token comes
 * Short lists (one piece) go to the table at once. Pieces of longer ones go to scratch, at most two a window (one of
 * 32, one shorter), and join_pieces adds them in order.
 *
 * Bytes   2RC twice (16-bit types), 8 bytes per element of every row of dwte that occurs (12 with acc: it is read, too),
 *         4PC. Without acc the whole of dwte is cleared first: 4VC. */
#include "compute/cuda/kernels/vec.cuh"

namespace {

#define PIECE CU_EMBED_PIECE /* the lanes of a warp: masks below are of two windows */
#define AHEAD 4              /* rows in flight */
#define FEW   8192           /* positions; a window of fewer is cut in PARTS, that the rows in flight are many */
#define PARTS 8

template <class E> struct job {
    float *dwte, *part; /* (V,C); (windows, 2, C) */
    const E *dy;
    const int32_t *key, *pos;
    int R, C;
    int64_t V;
    bool acc;
    drop_arg drop;
};

/* The number of the highest bit of m, which is not 0; and of the lowest. */
LS_DEVICE int top_bit(uint64_t m)
{
    return 63 - __clzll((long long)m);
}
LS_DEVICE int low_bit(uint64_t m)
{
    return __ffsll((long long)m) - 1;
}

/* First i with key[i] >= k, all lanes of a warp together: 32 probes per turn. */
LS_DEVICE int lower_bound(const int32_t *key, int end, int k)
{
    int lo = 0, hi = end;
    while (lo < hi) {
        const int step = (hi - lo + 31) / 32, i = lo + (int)(threadIdx.x % 32) * step;
        const int below = __popc(__ballot_sync(0xffffffffu, i < hi && key[i] < k));
        const int from = lo;
        lo = below ? from + (below - 1) * step + 1 : from;
        hi = from + below * step < hi ? from + below * step : hi;
    }
    return lo;
}

template <class E, int N> __global__ void __launch_bounds__(256) sum_pieces(const job<E> a)
{
    constexpr int M = N > 1 ? 4 : 1; /* floats of a pack */
    LS_SHARED(int32_t, key, [2 * PIECE]);
    LS_SHARED(int32_t, pos, [2 * PIECE]);
    LS_SHARED(uint32_t, head, [2]);
    LS_SHARED(uint32_t, start, [2]); /* bit i: a list, a piece begins at position i of the window or the next */
    const int e0 = (int)blockIdx.x * PIECE, n = a.R - e0 < 2 * PIECE ? a.R - e0 : 2 * PIECE;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        key[i] = a.key[e0 + i];
        pos[i] = a.pos[e0 + i];
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const int lane = (int)threadIdx.x;
        const bool inside = e0 > 0 && a.key[e0 - 1] == key[0];
        const int s0 = inside ? lower_bound(a.key, e0, key[0]) : e0;
        for (int h = 0; h < 2; h++) {
            const int i = h * PIECE + lane;
            const bool new_list = i < n && (i > 0 ? key[i] != key[i - 1] : !inside);
            const uint32_t mask = __ballot_sync(0xffffffffu, new_list);
            if (lane == 0) head[h] = mask;
        }
        __syncwarp();
        const uint64_t heads = (uint64_t)head[1] << 32 | head[0];
        for (int h = 0; h < 2; h++) {
            const int i = h * PIECE + lane;
            const uint64_t upto = heads & (~0ull >> (63 - i));
            const int first = upto ? e0 + top_bit(upto) : s0;
            const uint32_t mask = __ballot_sync(0xffffffffu, i < n && (e0 + i - first) % PIECE == 0);
            if (lane == 0) start[h] = mask;
        }
    }
    __syncthreads();
    /* of the window's pieces, those that begin in this block's part of it; they end where the next begins */
    const int part = PIECE / (int)gridDim.z, lo = (int)blockIdx.z * part;
    const uint64_t heads = (uint64_t)head[1] << 32 | head[0], starts = (uint64_t)start[1] << 32 | start[0];
    const uint64_t from_lo = starts >> lo << lo, beyond = starts >> (lo + part) << (lo + part);
    const int begin = from_lo ? low_bit(from_lo) : n, end = beyond ? low_bit(beyond) : n;
    if (begin >= lo + part || begin >= end) return;
    const uint64_t drop = drop_key(a.drop);
    const int j = ((int)blockIdx.y * (int)blockDim.x + (int)threadIdx.x) * N;
    if (j >= a.C) return;

    float sum[N];
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = 0;
    for (int i = begin; i < end; i += AHEAD) {
        vec<E, N> row[AHEAD];
        vec<float, M> old[AHEAD][N / M];
        float *to[AHEAD]; /* where the piece that ends here goes; NULL: none does, or it is nobody's */
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int at = i + u;
            to[u] = nullptr;
#pragma unroll
            for (int k = 0; k < N / M; k++) old[u][k] = vec_zero<float, M>();
            if (at >= end) continue;
            row[u] = vec_load<N>(a.dy + (int64_t)pos[at] * a.C + j);
            if (at + 1 != end && !(starts >> (at + 1) & 1)) continue;
            if (key[at] >= a.V) continue;
            const int first = top_bit(starts & (~0ull >> (63 - at)));
            const bool alone = (heads >> first & 1) && !(first + PIECE < n && key[first + PIECE] == key[first]);
            to[u] = alone ? a.dwte + (int64_t)key[at] * a.C + j
                          : a.part + (2 * (int64_t)blockIdx.x + (at + 1 - first < PIECE)) * a.C + j;
            if (alone && a.acc)
#pragma unroll
                for (int k = 0; k < N; k += M) old[u][k / M] = vec_load<M>(to[u] + k);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int at = i + u;
            if (at >= end) continue;
            float f[N];
            widen(f, row[u]);
            drop_all(f, a.drop, drop, (int64_t)pos[at] * a.C + j);
#pragma unroll
            for (int k = 0; k < N; k++) sum[k] += f[k];
            if (at + 1 != end && !(starts >> (at + 1) & 1)) continue;
            if (to[u])
#pragma unroll
                for (int k = 0; k < N; k += M) {
                    float v[M];
                    widen(v, old[u][k / M]);
#pragma unroll
                    for (int q = 0; q < M; q++) v[q] += sum[k + q];
                    vec_store<M>(to[u] + k, vec_of<float>(v));
                }
#pragma unroll
            for (int k = 0; k < N; k++) sum[k] = 0;
        }
    }
}

/* Lists of several pieces; at most one begins in a window, as its first piece fills 32 positions. */
template <int N>
__global__ void __launch_bounds__(256)
    join_pieces(float *dwte, const float *part, const int32_t *key, int R, int C, int64_t V, bool acc)
{
    LS_SHARED(int, first_of, [1]);
    LS_SHARED(int, counts, [8]);
    const int e0 = (int)blockIdx.x * PIECE, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp == 0) {
        const int e = e0 + lane;
        const bool begins = e + PIECE < R && key[e + PIECE] == key[e] && (e == 0 || key[e - 1] != key[e]) && key[e] < V;
        const uint32_t mask = __ballot_sync(0xffffffffu, begins);
        if (lane == 0) first_of[0] = mask ? e0 + __ffs((int)mask) - 1 : -1;
    }
    __syncthreads();
    const int first = first_of[0];
    if (first < 0) return;
    const int token = key[first];
    int pieces = 0, found;
    do { /* how many begin with this token; it is one row of them */
        const int64_t e = first + (int64_t)(pieces + (int)threadIdx.x) * PIECE;
        const uint32_t mask = __ballot_sync(0xffffffffu, e < R && key[e] == token);
        if (lane == 0) counts[warp] = __popc(mask);
        __syncthreads();
        found = 0;
        for (int w = 0; w < (int)blockDim.x / 32; w++) found += counts[w];
        pieces += found;
        __syncthreads();
    } while (found == (int)blockDim.x);
    const int j = ((int)blockIdx.y * (int)blockDim.x + (int)threadIdx.x) * N;
    if (j >= C) return;
    const int last = first + (pieces - 1) * PIECE;
    const bool full = last + PIECE - 1 < R && key[last + PIECE - 1] == token;
    float sum[N], v[N];
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = 0;
#pragma unroll 8
    for (int q = 0; q < pieces; q++) {
        const int64_t slot = 2 * ((int64_t)blockIdx.x + q) + (q == pieces - 1 && !full);
        widen(v, vec_load<N>(part + slot * C + j));
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += v[i];
    }
    float *to = dwte + (int64_t)token * C + j;
    if (acc) {
        widen(v, vec_load<N>(to));
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += v[i];
    }
    vec_store<N>(to, vec_of<float>(sum));
}

template <class E, int N>
__global__ void __launch_bounds__(256)
    sum_batch(float *dwpe, const E *dy, int64_t B, int64_t T, int C, bool acc, const drop_arg drop)
{
    constexpr int M = N > 1 ? 4 : 1;                                 /* floats of a pack */
    const int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * N; /* element of (T,C) */
    if (i >= T * C) return;
    const uint64_t key = drop_key(drop);
    float sum[N];
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] = 0;
#pragma unroll 8
    for (int64_t b = 0; b < B; b++) {
        float f[N];
        widen(f, vec_load<N>(dy + b * T * C + i));
        drop_all(f, drop, key, b * T * C + i);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += f[k];
    }
#pragma unroll
    for (int k = 0; k < N; k += M) {
        float v[M];
        widen(v, acc ? vec_load<M>(dwpe + i + k) : vec_zero<float, M>());
#pragma unroll
        for (int q = 0; q < M; q++) v[q] = acc ? v[q] + sum[k + q] : sum[k + q];
        vec_store<M>(dwpe + i + k, vec_of<float>(v));
    }
}

/* Threads of a block, and blocks, for n packs of columns. */
unsigned wide(int64_t n)
{
    return (unsigned)(n >= 256 ? 256 : ceil_div<int64_t>(n, 32) * 32);
}

template <class E, int N> int pieces(void *stream, const job<E> &a)
{
    constexpr int M = N > 1 ? 4 : 1; /* floats of a pack, where pieces are joined */
    const unsigned windows = (unsigned)ceil_div<int64_t>(a.R, PIECE), t = wide(ceil_div<int64_t>(a.C, N)),
                   t2 = wide(ceil_div<int64_t>(a.C, M));
    const dim3 grid(windows, (unsigned)ceil_div<int64_t>(a.C, (int64_t)t * N), a.R <= FEW ? PARTS : 1);
    const int e = LS_LAUNCH((sum_pieces<E, N>), grid, t, 0, stream, a);
    if (e) return e;
    return LS_LAUNCH((join_pieces<M>), dim3(windows, (unsigned)ceil_div<int64_t>(a.C, (int64_t)t2 * M)), t2, 0, stream,
                     a.dwte, a.part, a.key, a.R, a.C, a.V, a.acc);
}

} // namespace

extern "C" int cu_embed_bwd(void *stream, ls_dtype dt, float *dwte, float *dwpe, const void *dy, const int32_t *ids,
                            int64_t first, int64_t B, int64_t T, int64_t C, int64_t V, int64_t P, ls_drop drop,
                            bool acc, void *scratch)
{
    const int64_t R = B * T;
    int e = 0;
    if (!acc && dwte) e = (int)cudaMemsetAsync(dwte, 0, (size_t)(V * C) * sizeof(float), (cudaStream_t)stream);
    if (!e && !acc && dwpe && P > T)
        e = (int)cudaMemsetAsync(dwpe + T * C, 0, (size_t)((P - T) * C) * sizeof(float), (cudaStream_t)stream);
    if (e || R <= 0 || C <= 0) return e;
    int32_t *key = (int32_t *)scratch, *pos = key + cu_padded(R);
    float *part = (float *)(pos + cu_padded(R));
    void *room = part + ceil_div<int64_t>(R, PIECE) * 2 * C; /* 16 bytes and more apart where C is a multiple of 2 */
    drop.first = 0;
    if (dwte) e = cu_sort_ids(stream, key, pos, ids, first, V, R, room);
    if (e) return e;
    LS_DISPATCH(dt, E, {
        constexpr int N = whole<E>;
        const bool packs = C % N == 0 && aligned16(dy, dwte, dwpe);
        const job<E> a = {dwte, part, (const E *)dy, key, pos, (int)R, (int)C, V, acc, drop_of(drop)};
        if (dwte) e = packs ? pieces<E, N>(stream, a) : pieces<E, 1>(stream, a);
        if (e || !dwpe) return e;
        return LS_LAUNCH((packs ? sum_batch<E, N> : sum_batch<E, 1>),
                         (unsigned)ceil_div<int64_t>(T * C, 256 * (packs ? N : 1)), 256, 0, stream, dwpe, a.dy, B, T,
                         (int)C, acc, a.drop);
    });
}
