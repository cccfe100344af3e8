/* softmax.cu - softmax cross-entropy of rows of logits, with the gradient in place.
 *
 *   loss = log(sum exp x) - x[target]        dx = (exp(x) / sum exp x - [target]) dloss
 *
 * Bytes   4 rows*ld (16-bit types): read once, written once. 50304 columns of bf16 are 98 KiB, so two rows fit into
 *         shared memory: while a block works on one, the next is in flight (cp.async), and reading never stops. A
 *         thread copies, sums and writes the same packs, so the one barrier of a row is that of the two sums.
 *         GPT-2's own vocabulary, whole or cut, is softmax_held.cuh's, with half the instructions.
 * Numbers   everything in units of log 2: with m = max * log2(e) rounded, sum 2^(x log2(e) - m) and log2(sum) + m
 *         belong together, whatever m's rounding. About 11 instructions an element.
 * Order   a thread's elements, lanes, warps. V and ld decide it, and whether a row fits. */
#include "compute/cuda/kernels/softmax_held.cuh"

namespace {

#define THREADS 1024
#define WARPS   (THREADS / 32)
/* The packs of a row that this thread has, from global to shared memory. */
template <class T> LS_DEVICE void fetch(T *to, const job<T> &a, int64_t r, int n_read)
{
    constexpr int N = whole<T>;
    for (int p = threadIdx.x; p < n_read; p += THREADS) cp_async16(to + p * N, a.logits + r * a.ld + p * N);
}

/* max and sum over a block, of 2^x: every thread has s = sum of 2^(x - m) over its own elements (m -inf: it has none).
 * room is not used again before the next barrier but one. */
LS_DEVICE void join_block(float &m, float &s, float2 *room)
{
    const float top = warp_max(m);
    s = warp_sum(m == -INFINITY ? 0.0f : s * ex2(m - top));
    if (lane_id() == 0) room[warp_id()] = make_float2(top, s);
    __syncthreads();
    const float2 v = room[lane_id()]; /* as many warps as lanes */
    m = warp_max(v.x);
    s = warp_sum(v.x == -INFINITY ? 0.0f : v.y * ex2(v.x - m));
}

/* ROWS_KEPT rows in shared memory, 2 or 1; N elements are taken at once. 0: none is kept. */
template <class T, int N, int ROWS_KEPT, int WHAT>
__global__ void __launch_bounds__(THREADS) softmax_rows(const job<T> a)
{
    T *kept = LS_SHARED_DYNAMIC(T);
    LS_SHARED(float2, room, [2][WARPS]);
    LS_SHARED(float, right, [2]);
    const int n_pack = a.ld / N, n_read = ceil_div(a.V, N);
    const float dloss = a.at ? (float)a.at->dloss : a.dloss;
    if (ROWS_KEPT > 0 && blockIdx.x < a.rows) fetch(kept, a, blockIdx.x, n_read);
    if (ROWS_KEPT > 0) cp_async_commit();
    int turn = 0;
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x, turn ^= 1) {
        T *out = a.logits + r * a.ld;
        const int32_t id = a.target[r];
        const int target = target_column(a, id);
        T *x = ROWS_KEPT > 0 ? kept + (ROWS_KEPT > 1 ? (int64_t)turn * a.ld : 0) : out;
        if (ROWS_KEPT > 1) { /* the thread is done with what it overwrites */
            if (r + gridDim.x < a.rows) fetch(kept + (int64_t)(turn ^ 1) * a.ld, a, r + gridDim.x, n_read);
            cp_async_commit();
            cp_async_wait<1>();
        } else if (ROWS_KEPT > 0) {
            cp_async_wait<0>();
        }
        if (N > 1 && a.V % N != 0 && (n_read - 1) % THREADS == (int)threadIdx.x) hide_beside<N>(x, n_read - 1, a.V);

        float top = -INFINITY, sum = 0;
#pragma unroll 4
        for (int p = threadIdx.x; p < n_read; p += THREADS) {
            float f[N];
            widen(f, vec_load<N>(x + p * N));
#pragma unroll
            for (int i = 0; i < N; i++) top = fmaxf(top, f[i]);
        }
        top *= LOG2_E;
        const float from = top == -INFINITY ? 0.0f : top;
#pragma unroll 4
        for (int p = threadIdx.x; p < n_read; p += THREADS) {
            float f[N];
            widen(f, vec_load<N>(x + p * N));
#pragma unroll
            for (int i = 0; i < N; i++) sum += ex2(fmaf(f[i], LOG2_E, -from));
        }
        const bool mine = target >= 0 && target / N % THREADS == (int)threadIdx.x;
        const float x_target = mine ? to_float(x[target]) : 0.0f;
        if (mine) right[turn] = x_target;
        join_block(top, sum, room[turn]);
        if (threadIdx.x == 0) put_row<WHAT>(a, r, id, top, sum, target >= 0 ? (double)right[turn] : 0.0);
        if (WHAT == GRAD) {
            const float scale = dloss / sum;
#pragma unroll 4
            for (int p = threadIdx.x; p < n_pack; p += THREADS) {
                vec<T, N> d = vec_zero<T, N>();
                if (p < n_read && id >= 0) {
                    float f[N];
                    widen(f, vec_load<N>(x + p * N));
#pragma unroll
                    for (int i = 0; i < N; i++) f[i] = ex2(fmaf(f[i], LOG2_E, -top)) * scale;
                    d = vec_of<T>(f);
                }
                vec_store<N>(out + p * N, d);
            }
            if (mine) {
                compiler_fence(); /* after the pack, whose type is another */
                out[target] = from_float<T>(ex2(fmaf(x_target, LOG2_E, -top)) * scale - dloss);
            }
        }
        if (ROWS_KEPT == 1) {
            if (r + gridDim.x < a.rows) fetch(kept, a, r + gridDim.x, n_read);
            cp_async_commit();
        }
    }
    if (ROWS_KEPT > 0) cp_async_wait<0>();
}

/* ---- a vocabulary that is cut: everything is known but lse ---- */

/* all[r][0] of part 0 becomes log2 of the whole sum. */
__global__ void __launch_bounds__(256)
    join_parts(double *all, double *row_loss, const int32_t *target, int64_t rows, int n_part)
{
    const int64_t r = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (r >= rows) return;
    double top = all[3 * r], sum = 0, right = 0;
    for (int k = 1; k < n_part; k++) top = fmax(top, all[3 * (k * rows + r)]);
    for (int k = 0; k < n_part; k++) {
        const double *p = all + 3 * (k * rows + r);
        sum += p[1] * exp(p[0] - top);
        right += p[2];
    }
    const double lse = top + log(sum);
    row_loss[r] = target[r] < 0 ? 0.0 : lse - right;
    all[3 * r] = lse / LN_2;
}

template <class T, int N> __global__ void __launch_bounds__(256) softmax_grad(const job<T> a, const double *lse)
{
    const int64_t r = blockIdx.x;
    const float dloss = a.at ? (float)a.at->dloss : a.dloss, from = (float)lse[3 * r];
    const int64_t wanted = a.target[r] - a.first;
    const bool counts = a.target[r] >= 0;
    for (int j = ((int)blockIdx.y * 256 + (int)threadIdx.x) * N; j < a.ld; j += (int)gridDim.y * 256 * N) {
        T *x = a.logits + r * a.ld + j;
        float f[N];
        widen(f, j < a.V ? vec_load<N>(x) : vec_zero<T, N>());
#pragma unroll
        for (int i = 0; i < N; i++) {
            f[i] = ex2(fmaf(f[i], LOG2_E, -from)) * dloss;
            if (j + i == wanted) f[i] -= dloss;
            if (j + i >= a.V || !counts) f[i] = 0;
        }
        vec_store<N>(x, vec_of<T>(f));
    }
}

/* ---- launching ---- */

template <class T> job<T> job_of(const cu_softmax *s, double *out)
{
    return {(T *)s->logits, out, s->target, s->rows, s->first, (int)s->V, (int)s->ld, (float)s->dloss, s->at};
}

template <class T> bool whole_packs(const cu_softmax *s)
{
    return s->ld % whole<T> == 0 && aligned16(s->logits);
}

/* kept: rows in shared memory. */
template <class T> int start(void *stream, void (*kernel)(job<T>), int threads, int kept, const job<T> &a, int blocks)
{
    const size_t smem = (size_t)(kept * a.ld) * sizeof(T);
    const int e = smem > 32768 ? LS_ALLOW_SHARED(kernel, smem) : 0;
    return e ? e : LS_LAUNCH(kernel, (unsigned)(a.rows < blocks ? a.rows : blocks), threads, smem, stream, a);
}

/* Whether softmax_held of K packs a thread does it: 50304 columns have 13, halves and quarters of them 7 and 4. */
template <int K> bool holds(const cu_softmax *s)
{
    const int64_t packs = s->ld / 8;
    return ceil_div<int64_t>(s->V, 8) > (K - 1) * HELD_THREADS && packs <= K * HELD_THREADS && s->rows < INT32_MAX / 2;
}

template <class T, int WHAT> int pick(void *stream, const cu_softmax *s, double *out)
{
    constexpr int N = whole<T>;
    const job<T> a = job_of<T>(s, out);
    int device = 0, blocks = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (!e) e = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
    if (e) return (int)e;
    const int64_t row = s->ld * (int64_t)sizeof(T), room = cu_shared() - 2048; /* beside the kernel's own arrays */
    if (!whole_packs<T>(s) || row > room)
        return start<T>(stream, softmax_rows<T, 1, 0, WHAT>, THREADS, 0, a, 2 * blocks);
    if constexpr (N == 8) {
        if (holds<13>(s) && 2 * row <= room)
            return start<T>(stream, softmax_held<T, 13, WHAT>, HELD_THREADS, 2, a, blocks);
        if (holds<7>(s) && 2 * row <= room)
            return start<T>(stream, softmax_held<T, 7, WHAT>, HELD_THREADS, 2, a, blocks);
        if (holds<4>(s) && 4 * row <= room)
            return start<T>(stream, softmax_held<T, 4, WHAT>, HELD_THREADS, 2, a, 2 * blocks);
    }
    if (2 * row <= room) return start<T>(stream, softmax_rows<T, N, 2, WHAT>, THREADS, 2, a, blocks);
    return start<T>(stream, softmax_rows<T, N, 1, WHAT>, THREADS, 1, a, blocks);
}

} // namespace

extern "C" int cu_softmax_loss(void *stream, ls_dtype dt, const cu_softmax *a)
{
    if (a->rows <= 0) return 0;
    LS_DISPATCH(dt, T,
                { return a->grad ? pick<T, GRAD>(stream, a, a->row_loss) : pick<T, LOSS>(stream, a, a->row_loss); });
}

extern "C" int cu_softmax_parts(void *stream, ls_dtype dt, const cu_softmax *a, double *part)
{
    if (a->rows <= 0) return 0;
    LS_DISPATCH(dt, T, return (pick<T, PARTS>(stream, a, part)));
}

extern "C" int cu_softmax_join(void *stream, ls_dtype dt, const cu_softmax *a, double *all, int n_part)
{
    if (a->rows <= 0) return 0;
    const int e = LS_LAUNCH(join_parts, (unsigned)ceil_div<int64_t>(a->rows, 256), 256, 0, stream, all, a->row_loss,
                            a->target, a->rows, n_part);
    if (e || !a->grad) return e;
    LS_DISPATCH(dt, T, {
        const job<T> j = job_of<T>(a, nullptr);
        const int64_t n = whole_packs<T>(a) ? whole<T> : 1, wide = ceil_div<int64_t>(a->ld, 256 * n * 4);
        const dim3 grid((unsigned)a->rows, (unsigned)wide);
        return LS_LAUNCH((n > 1 ? softmax_grad<T, whole<T>> : softmax_grad<T, 1>), grid, 256, 0, stream, j, all);
    });
}
