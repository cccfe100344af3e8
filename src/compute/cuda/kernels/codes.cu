/* codes.cu - numbers in 8 bits (compute.h, ls_quantize) whose two forms are not made together: the codes of a range, and their transposed copy.
 * Parameters that are sharded need this: a worker rounds its part of a matrix, and transposes the matrix that it has gathered.
 *
 * Bytes   codes: 2 read, 1 written per element; a copy: 1 read, 1 written.
 * Tiles   of a copy: tile8.cuh. */
#include "compute/cuda/kernels/tile8.cuh"
#include "compute/cuda/kernels/vec.cuh"

namespace {

/* ---- a range ---- */

#define EACH 16 /* elements of a thread */

template <bool E5M2>
__global__ void __launch_bounds__(THREADS)
    code_range(const bf16 *x, uint8_t *q, const float *scale, unsigned *amax, int64_t n)
{
    LS_SHARED(unsigned, largest, [THREADS / 32]);
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH;
    const float s = scale ? *scale : 1.0f;
    unsigned most = 0;
    if (at < n) {
        uint32_t word[EACH / 4];
#pragma unroll
        for (int k = 0; k < EACH / 8; k++) {
            float f[8];
            widen(f, vec_load<8>(x + at + 8 * k));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                most = larger(most, f[i]);
                f[i] *= s;
            }
            word[2 * k] = code4<E5M2>(f[0], f[1], f[2], f[3]);
            word[2 * k + 1] = code4<E5M2>(f[4], f[5], f[6], f[7]);
        }
        if (q) *reinterpret_cast<uint4 *>(q + at) = make_uint4(word[0], word[1], word[2], word[3]);
    }
    most = warp_max(most);
    if (lane_id() == 0) largest[warp_id()] = most;
    __syncthreads();
    if (!amax || threadIdx.x > 0) return;
    for (int k = 1; k < THREADS / 32; k++) most = largest[k] > most ? largest[k] : most;
    raise(amax, most);
}

/* ---- a transposed copy ---- */

__global__ void __launch_bounds__(THREADS) turn_tiles(uint8_t *to, const uint8_t *from, int64_t R, int64_t N)
{
    LS_SHARED(uint32_t, turned, [TILE * WORDS]);
    const unsigned group = threadIdx.x % GROUPS, place = threadIdx.x / GROUPS;
    const int64_t left = (int64_t)blockIdx.x * TILE, top = (int64_t)blockIdx.y * TILE;
    const int64_t row = top + place * ROWS, column = left + group * PACK;
    uint2 x[TURNS][ROWS];
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        const bool inside = column < N && row + t * STEP < R; /* 4 rows are, or are not */
        const uint8_t *p = from + (row + t * STEP) * N + column;
#pragma unroll
        for (int r = 0; r < ROWS; r++, p += N)
            x[t][r] = inside ? *reinterpret_cast<const uint2 *>(p) : make_uint2(0, 0);
    }
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        uint32_t word[PACK / 4][ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) word[0][r] = x[t][r].x, word[1][r] = x[t][r].y;
        tile_put(turned, word, group, place, t);
    }
    __syncthreads();
    tile_write(to, turned, top, left, R, N);
}

} // namespace

extern "C" int cu_quantize_range(void *stream, const ls_quantize *q)
{
    const bool alone = !q->pre && !q->qt && !q->sums;
    if (!alone || q->N % EACH || !aligned16(q->x, q->q)) return (int)cudaErrorInvalidValue;
    const dim3 grid((unsigned)ceil_div<int64_t>(q->N, THREADS * EACH));
    unsigned *amax = (unsigned *)(void *)q->amax;
    const bf16 *x = (const bf16 *)q->x;
    uint8_t *to = (uint8_t *)q->q;
    if (q->form == LS_E5M2) return LS_LAUNCH((code_range<true>), grid, THREADS, 0, stream, x, to, q->scale, amax, q->N);
    return LS_LAUNCH((code_range<false>), grid, THREADS, 0, stream, x, to, q->scale, amax, q->N);
}

extern "C" int cu_turn8(void *stream, void *to, const void *from, int64_t R, int64_t N)
{
    if (R % 16 || N % 16 || !aligned16(to, from)) return (int)cudaErrorInvalidValue;
    const dim3 grid((unsigned)ceil_div<int64_t>(N, TILE), (unsigned)ceil_div<int64_t>(R, TILE));
    return LS_LAUNCH(turn_tiles, grid, THREADS, 0, stream, (uint8_t *)to, (const uint8_t *)from, R, N);
}
