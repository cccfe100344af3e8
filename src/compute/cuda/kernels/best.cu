/* best.cu - what a choice of an id needs to know of a row of logits: the k largest of the first n, and log(sum of e^logit) of all V.
 *
 * A block for each row. `largest` reads the row once: the largest logit, its lowest id, the sum. Of k > 1 logits, `several` finds the k-th by
 * its key, 64 bits: the logit as an integer of the same order, then the complement of the id, so that no two keys are equal. Eleven bits at a
 * time, from the top: a histogram of the keys that agree so far, in which the digit of the k-th key is looked up. Then all keys from it on are
 * written, in the order in which threads arrive. */
#include "compute/cuda/gpu.cuh"
#include "compute/cuda/kernels/kernels.h"

namespace {

#define THREADS 1024
#define WARPS   (THREADS / 32)
#define UNROLL  8
#define DIGIT   11
#define BINS    (1 << DIGIT)

/* The largest of some logits, with the lowest id of equal ones; the largest of all, the sum of e^(logit - top), 0 or NaN. */
struct part {
    float value, top, sum, bad;
    int id;
};

LS_DEVICE void join(part &a, const part &b)
{
    if (b.value > a.value || (b.value == a.value && b.id < a.id)) a.value = b.value, a.id = b.id;
    const float top = b.top > a.top ? b.top : a.top;
    const float mine = a.top > -INFINITY ? expf(a.top - top) : 0.0f,
                other = b.top > -INFINITY ? expf(b.top - top) : 0.0f;
    a.sum = a.sum * mine + b.sum * other;
    a.top = top;
    a.bad += b.bad;
}

LS_DEVICE part shuffle(const part &a, int d)
{
    part b;
    b.value = __shfl_xor_sync(0xffffffffu, a.value, d);
    b.top = __shfl_xor_sync(0xffffffffu, a.top, d);
    b.sum = __shfl_xor_sync(0xffffffffu, a.sum, d);
    b.bad = __shfl_xor_sync(0xffffffffu, a.bad, d);
    b.id = __shfl_xor_sync(0xffffffffu, a.id, d);
    return b;
}

/* best: NULL if k logits are found by `several`. */
template <class T>
__global__ void __launch_bounds__(THREADS) largest(ls_best *best, float *log_sum, const T *logits, int V, int n)
{
    LS_SHARED(part, of_warp, [WARPS]);
    const T *row = logits + (int64_t)blockIdx.x * V;
    part p = {-INFINITY, -INFINITY, 0, 0, 0x7fffffff};
    for (int i0 = (int)threadIdx.x; i0 < V; i0 += UNROLL * THREADS) {
        float x[UNROLL], top = p.top;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) x[u] = i0 + u * THREADS < V ? to_float(row[i0 + u * THREADS]) : -INFINITY;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int i = i0 + u * THREADS;
            if (i < V) p.bad += 0 * x[u];
            if (i < n && x[u] > p.value) p.value = x[u], p.id = i;
            top = x[u] > top ? x[u] : top;
        }
        if (!(top > -INFINITY)) continue; /* nothing that is finite: bad is NaN */
        p.sum *= p.top > -INFINITY ? expf(p.top - top) : 0.0f;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) p.sum += expf(x[u] - top);
        p.top = top;
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) join(p, shuffle(p, d));
    if (lane_id() == 0) of_warp[warp_id()] = p;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < WARPS; w++) join(p, of_warp[w]);
    if (best) best[blockIdx.x].logit = p.value, best[blockIdx.x].id = p.id;
    log_sum[blockIdx.x] = p.top + logf(p.sum) + p.bad;
}

LS_DEVICE uint64_t key_of(float x, int id)
{
    const uint32_t u = __float_as_uint(x + 0.0f); /* -0 becomes 0: they are equal */
    return (uint64_t)(u & 0x80000000u ? ~u : u | 0x80000000u) << 32 | (uint32_t)~id;
}

template <class T>
__global__ void __launch_bounds__(THREADS) several(ls_best *best, const T *logits, int V, int n, int k)
{
    LS_SHARED(int, count, [BINS]);
    LS_SHARED(
        int,
        state, [3]); /* the digit of the k-th key; how many keys of that digit are wanted; how many have been written */
    const T *row = logits + (int64_t)blockIdx.x * V;
    const int tid = (int)threadIdx.x;
    uint64_t from = 0; /* the k-th key, as far as it is known */
    int want = k, shift = 64;
    bool known = k >= n;
    while (!known && shift > 0) {
        const int width = shift < DIGIT ? shift : DIGIT;
        const uint64_t above = shift == 64 ? 0 : ~(uint64_t)0 << shift; /* bits that agree */
        shift -= width;
        for (int i = tid; i < BINS; i += THREADS) count[i] = 0;
        __syncthreads();
        for (int i = tid; i < n; i += THREADS) {
            const uint64_t key = key_of(to_float(row[i]), i);
            if ((key & above) == from) atomicAdd(&count[(int)(key >> shift) & ((1 << width) - 1)], 1);
        }
        __syncthreads();
        if (tid < 32) { /* from the last bin down: each lane BINS / 32 of them */
            const int first = BINS - 1 - tid * (BINS / 32);
            int mine = 0, before = 0;
            for (int i = 0; i < BINS / 32; i++) mine += count[first - i];
            for (int lane = 0; lane < 31; lane++) {
                const int x = __shfl_sync(0xffffffffu, mine, lane);
                if (lane < tid) before += x;
            }
            if (before < want && want <= before + mine)
                for (int i = 0; i < BINS / 32; i++) {
                    const int here = count[first - i];
                    if (before < want && want <= before + here) state[0] = first - i, state[1] = want - before;
                    before += here;
                }
        }
        __syncthreads();
        from |= (uint64_t)state[0] << shift;
        want = state[1];
        known = want == count[state[0]]; /* all of that digit are wanted */
        __syncthreads();
    }
    if (tid == 0) state[2] = 0;
    __syncthreads();
    for (int i = tid; i < n; i += THREADS) {
        const float x = to_float(row[i]);
        if (key_of(x, i) < from) continue;
        ls_best *to = best + (int64_t)blockIdx.x * k + atomicAdd(&state[2], 1);
        to->logit = x, to->id = i;
    }
}

template <class T>
int run(void *stream, ls_best *out, float *log_sum, const T *logits, int64_t R, int64_t V, int64_t n, int64_t k)
{
    const int e = LS_LAUNCH(largest<T>, (unsigned)R, THREADS, 0, stream, k == 1 ? out : (ls_best *)nullptr, log_sum,
                            logits, (int)V, (int)n);
    if (e || k == 1) return e;
    return LS_LAUNCH(several<T>, (unsigned)R, THREADS, 0, stream, out, logits, (int)V, (int)n, (int)k);
}

} // namespace

extern "C" int cu_best(void *stream, ls_dtype dt, ls_best *out, float *log_sum, const void *logits, int64_t R,
                       int64_t V, int64_t n, int64_t k)
{
    if (R <= 0) return 0;
    if (V > INT32_MAX / 2 || n < 1 || n > V || k < 1 || k > n || k > LS_BEST_MOST) return (int)cudaErrorInvalidValue;
    LS_DISPATCH(dt, T, return run<T>(stream, out, log_sum, (const T *)logits, R, V, n, k));
}
