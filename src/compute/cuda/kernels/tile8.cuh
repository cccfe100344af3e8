/* tile8.cuh - a tile of 128 x 128 elements of one byte that a block of 256 threads transposes through shared memory.
 *
 * A thread has 8 columns of 4 neighbouring rows, twice. The 4 rows of a column are one word of the transposed tile; then a thread writes 16 rows
 * of a column. Pieces of 16 rows are permuted by an exclusive or: lanes that write have different columns and meet in a bank two at a time, lanes
 * that read do not meet. */
#ifndef LS_CUDA_KERNELS_TILE8_CUH
#define LS_CUDA_KERNELS_TILE8_CUH

#include "compute/cuda/kernels/fp8.cuh"
#include "compute/cuda/scratch.h"

#define TILE    CU_QUANTIZE_TILE
#define PACK    8 /* columns of a thread               */
#define ROWS    4 /* neighbouring rows of a thread     */
#define GROUPS  (TILE / PACK)
#define THREADS 256
#define TURNS   (TILE * TILE / (THREADS * PACK * ROWS))
#define STEP    (TILE / TURNS) /* rows of all threads in a turn     */
#define WORDS   (TILE / ROWS)  /* of a column of the transposed tile */

/* Words of the transposed tile: column c begins at c * WORDS, and its word w (4 rows) is w ^ mix(c) further. */
LS_DEVICE unsigned mix(unsigned c)
{
    return 4 * (c / PACK % (WORDS / 4));
}

/* What the thread at (group, place) has of turn t: word[h][r] is columns 4h … 4h+3 of its row r. */
LS_DEVICE void tile_put(uint32_t *turned, uint32_t (&word)[PACK / 4][ROWS], unsigned group, unsigned place, int t)
{
    uint32_t *const w = turned + group * PACK * WORDS + ((t * (STEP / ROWS) + place) ^ mix(group * PACK));
#pragma unroll
    for (int h = 0; h < PACK / 4; h++) {
        turn4(word[h]);
#pragma unroll
        for (int i = 0; i < 4; i++) w[(4 * h + i) * WORDS] = word[h][i];
    }
}

/* The tile whose first element is (top, left) of an (R,N) array, into the transposed array `to` (N,R). */
LS_DEVICE void tile_write(uint8_t *to, const uint32_t *turned, int64_t top, int64_t left, int64_t R, int64_t N)
{
    const unsigned piece = threadIdx.x % (TILE / 16), first = threadIdx.x / (TILE / 16);
    constexpr int APART = THREADS / (TILE / 16); /* columns of all threads in a turn */
    if (top + piece * 16 >= R) return;
    uint8_t *q = to + (left + first) * R + top + piece * 16;
#pragma unroll
    for (unsigned c = first; c < TILE; c += APART, q += APART * R)
        if (left + c < N)
            *reinterpret_cast<uint4 *>(q) =
                *reinterpret_cast<const uint4 *>(turned + c * WORDS + ((4 * piece) ^ mix(c)));
}

#endif
