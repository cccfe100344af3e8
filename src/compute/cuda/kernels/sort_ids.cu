/* sort_ids.cu - token positions by id, stable; every step has one outcome.
 *
 * Few positions (COUNTED_MOST): one launch, where each position counts those that come before it. R^2 comparisons are
 * less than the launches of anything cleverer: 2048 positions take a microsecond beside the launch.
 * More: a radix sort of 8 bits a pass.
 *
 *   count   each tile of 2048 positions: how many of each digit                         hist (tiles, 256)
 *   place   where a tile's digits begin: the digits below it everywhere, and equal ones in earlier tiles; inside the
 *           tile a position's place is after its warp's and the warps' before it (ballots find those with the same digit)
 *
 * Bytes   24R a pass; ids below 65536 take two passes: four launches of a few microseconds, no look from the host. */
#include "compute/cuda/kernels/vec.cuh"

namespace {

#define DIGITS  CU_SORT_DIGITS
#define THREADS 256 /* one digit each, too */
#define WARPS   (THREADS / 32)
#define TURNS   8
#define TILE    (THREADS * TURNS)

typedef struct range {
    const int32_t *ids; /* the first pass reads these, */
    int64_t first, V;
    const int32_t *key, *pos; /* later ones these          */
    int R, shift;
} range;

LS_DEVICE int first_key(const range &a, int i)
{
    const int64_t id = a.ids[i] - a.first;
    return (int)(id >= 0 && id < a.V ? id : a.V);
}

LS_DEVICE int key_at(const range &a, int i)
{
    return a.key ? a.key[i] : first_key(a, i);
}

/* ---- few positions ---- */

#define COUNTED_MOST 8192
#define COUNTED_BITS 13 /* of a position */
#define TOGETHER     16 /* threads of a position */

__global__ void __launch_bounds__(THREADS) count_before(int32_t *key, int32_t *pos, const range a)
{
    int32_t *all = LS_SHARED_DYNAMIC(int32_t); /* id, position: 31 bits, and no two are equal */
    const int n = ceil_div(a.R, 4 * TOGETHER) * 4 * TOGETHER;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += THREADS) all[i] = i < a.R ? first_key(a, i) << COUNTED_BITS | i : INT32_MAX;
    __syncthreads();
    const int i = ((int)blockIdx.x * THREADS + (int)threadIdx.x) / TOGETHER, part = (int)threadIdx.x % TOGETHER;
    const int mine = all[i < a.R ? i : 0];
    int sum = 0, odd = 0;
#pragma unroll 4
    for (int j = part * 4; j < n; j += 4 * TOGETHER) {
        const int4 four = *reinterpret_cast<const int4 *>(all + j);
        sum += (four.x - mine) >> 31; /* -1 if it is smaller */
        odd += (four.y - mine) >> 31;
        sum += (four.z - mine) >> 31;
        odd += (four.w - mine) >> 31;
    }
    sum += odd;
#pragma unroll
    for (int d = TOGETHER / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (i >= a.R || part > 0) return;
    key[-sum] = mine >> COUNTED_BITS;
    pos[-sum] = i;
}

/* ---- many ---- */

__global__ void __launch_bounds__(THREADS) count_digits(int *hist, const range a)
{
    LS_SHARED(int, count, [DIGITS]);
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < TURNS; k++) {
        const int i = (int)blockIdx.x * TILE + k * THREADS + (int)threadIdx.x;
        if (i < a.R)
            atomicAdd(&count[key_at(a, i) >> a.shift & (DIGITS - 1)], 1); /* whole numbers: any order gives this sum */
    }
    __syncthreads();
    hist[blockIdx.x * DIGITS + threadIdx.x] = count[threadIdx.x];
}

/* The sum over threads before this one; room: WARPS numbers. */
LS_DEVICE int before(int v, int *room)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = v;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) room[warp] = sum;
    __syncthreads();
    for (int k = 0; k < warp; k++) sum += room[k];
    return sum - v;
}

__global__ void __launch_bounds__(THREADS) place_digits(int32_t *key, int32_t *pos, const int *hist, const range a)
{
    LS_SHARED(int, base, [DIGITS]);
    LS_SHARED(int, taken, [WARPS][DIGITS]);
    LS_SHARED(int, room, [WARPS]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int earlier = 0, all = 0;
#pragma unroll 8
    for (int t = 0; t < (int)gridDim.x; t++) {
        const int c = hist[t * DIGITS + threadIdx.x];
        if (t < (int)blockIdx.x) earlier += c;
        all += c;
    }
    base[threadIdx.x] = before(all, room) + earlier;
    for (int k = 0; k < WARPS; k++) taken[k][threadIdx.x] = 0;
    __syncthreads();

    /* a warp has TURNS * 32 neighbours */
    int k[TURNS], p[TURNS], rank[TURNS];
#pragma unroll
    for (int u = 0; u < TURNS; u++) {
        const int i = (int)blockIdx.x * TILE + (warp * TURNS + u) * 32 + lane;
        const bool here = i < a.R;
        k[u] = here ? key_at(a, i) : 0;
        p[u] = here ? (a.pos ? a.pos[i] : i) : -1;
        const int digit = k[u] >> a.shift & (DIGITS - 1);
        unsigned same = __ballot_sync(0xffffffffu, here);
#pragma unroll
        for (int bit = 1; bit < DIGITS; bit *= 2) {
            const unsigned has = __ballot_sync(0xffffffffu, digit & bit);
            same &= digit & bit ? has : ~has;
        }
        const int lower = __popc(same & ((1u << lane) - 1u));
        rank[u] = taken[warp][digit] + lower;
        __syncwarp();
        if (here && lower == 0) taken[warp][digit] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    int sum = base[threadIdx.x];
    for (int w = 0; w < WARPS; w++) {
        const int c = taken[w][threadIdx.x];
        taken[w][threadIdx.x] = sum;
        sum += c;
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < TURNS; u++) {
        if (p[u] < 0) continue;
        const int to = taken[warp][k[u] >> a.shift & (DIGITS - 1)] + rank[u];
        key[to] = k[u];
        pos[to] = p[u];
    }
}

static_assert(TILE == CU_SORT_TILE, "scratch.h");

} // namespace

extern "C" int cu_sort_ids(void *stream, int32_t *key, int32_t *pos, const int32_t *ids, int64_t first, int64_t V,
                           int64_t R, void *scratch)
{
    if (R <= 0) return 0;
    if (R > INT32_MAX / 2 || V > INT32_MAX - 1) return (int)cudaErrorInvalidValue;
    range a = {ids, first, V, nullptr, nullptr, (int)R, 0};
    if (R <= COUNTED_MOST && V < 1 << (31 - COUNTED_BITS)) /* V is a key, too */
        return LS_LAUNCH(count_before, (unsigned)ceil_div<int64_t>(R * TOGETHER, THREADS), THREADS,
                         (size_t)ceil_div<int64_t>(R, 4 * TOGETHER) * 4 * TOGETHER * sizeof(uint32_t), stream, key, pos,
                         a);
    int32_t *key2 = (int32_t *)scratch, *pos2 = key2 + cu_padded(R), *hist = pos2 + cu_padded(R);
    const unsigned tiles = (unsigned)ceil_div<int64_t>(R, TILE);
    int passes = 1;
    while (passes < 4 && V >> (8 * passes)) passes++;
    for (int i = 0; i < passes; i++, a.shift += 8) {
        int32_t *k = (passes - i) % 2 ? key : key2,
                *p = (passes - i) % 2 ? pos : pos2; /* the last pass writes key, pos */
        int e = LS_LAUNCH(count_digits, tiles, THREADS, 0, stream, hist, a);
        if (!e) e = LS_LAUNCH(place_digits, tiles, THREADS, 0, stream, k, p, hist, a);
        if (e) return e;
        a.key = k, a.pos = p;
    }
    return 0;
}
