/* decide.cu - the norm of the gradient from the sums of its blocks, and what it decides about the update (compute/decide.h), so that the device need
 * not wait for the host.
 *
 *   unit_sums   a block per unit: a tile of block sums at a time goes to shared memory, where LS_NORM_TURNS threads add every
 *               LS_NORM_TURNS-th of them, in order. The next tile is read to registers meanwhile.
 *   decide      one warp: looks for numbers that are not finite, adds the units, and writes the decision to both places
 *
 * Order   that of ls_norm_add: it decides the bits of a run. The longest chain is n / (LS_NORM_BLOCK * LS_NORM_TURNS) additions, of the
 *         largest unit; all units run at the same time. */
#include "compute/cuda/gpu.cuh"
#include "compute/cuda/kernels/kernels.h"
#include "compute/decide.h"

namespace {

#define THREADS 256
#define EACH    8 /* block sums of a thread in a tile */
#define TILE    (THREADS * EACH)
#define UNITS   128 /* of one launch: their sizes are its arguments */

struct sizes {
    int64_t first[UNITS + 1]; /* block where unit i begins */
};

__global__ void __launch_bounds__(THREADS) unit_sums(double *unit_sum, const double *block_sum, const sizes s)
{
    LS_SHARED(double, tile, [TILE]);
    const double *x = block_sum + s.first[blockIdx.x];
    const int64_t n = s.first[blockIdx.x + 1] - s.first[blockIdx.x];
    double next[EACH], sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int64_t i = k * THREADS + threadIdx.x;
        next[k] = i < n ? x[i] : 0;
    }
    for (int64_t from = 0; from < n; from += TILE) {
#pragma unroll
        for (int k = 0; k < EACH; k++) tile[k * THREADS + threadIdx.x] = next[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int64_t i = from + TILE + k * THREADS + threadIdx.x;
            next[k] = i < n ? x[i] : 0;
        }
        const int end = n - from < TILE ? (int)(n - from) : TILE;
        if (threadIdx.x < LS_NORM_TURNS) {
#pragma unroll 16
            for (int i = threadIdx.x; i < end; i += LS_NORM_TURNS) sum += tile[i];
        }
        __syncthreads();
    }
    if (threadIdx.x < LS_NORM_TURNS) tile[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) unit_sum[blockIdx.x] = ls_norm_unit(tile);
}

LS_DEVICE bool finite(double x)
{
    return fabs(x) <= 1.7976931348623157e308;
}

__global__ void __launch_bounds__(32) decide(ls_decide a, const double *unit_sum)
{
    LS_SHARED(double, sums, [32]);
    const int lane = threadIdx.x;
    int bad = 0;
    double squares = 0;
    for (int i = lane; i < a.n_loss; i += 32) bad |= !finite(a.loss[2 * i]);
    for (int i = lane; i < a.n_amax; i += 32) bad |= !finite((double)a.amax[i]);
    bad = __any_sync(0xffffffffu, bad);
    for (int from = 0; from < a.n_unit; from += 32) {
        const int n = a.n_unit - from < 32 ? a.n_unit - from : 32;
        __syncwarp();
        sums[lane] = lane < n ? unit_sum[from + lane] : 0;
        __syncwarp();
        for (int i = 0; i < n; i++) squares += sums[i];
    }
    if (lane) return;
    const double norm = ls_norm_of(squares, a.unscale);
    ls_decision d = {squares, ls_grad_factor(norm, a.clip, a.unscale), !bad && finite(norm)};
    *a.out = d;
    *a.host = d;
}

} // namespace

extern "C" int cu_decide(void *stream, const ls_decide *a, void *scratch)
{
    double *unit_sum = (double *)scratch;
    int64_t at = 0;
    for (int u = 0; u < a->n_unit; u += UNITS) {
        const int n = a->n_unit - u < UNITS ? a->n_unit - u : UNITS;
        sizes s = {};
        s.first[0] = at;
        for (int i = 0; i < n; i++) s.first[i + 1] = at += a->n_block[u + i];
        const int code = LS_LAUNCH(unit_sums, (unsigned)n, THREADS, 0, stream, unit_sum + u, a->block_sum, s);
        if (code) return code;
    }
    return LS_LAUNCH(decide, 1, 32, 0, stream, *a, unit_sum);
}
