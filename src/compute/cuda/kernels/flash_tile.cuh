/* flash_tile.cuh - what the attention kernels share: tiles of rows in shared memory, their parts as operands, dropout, the order of blocks.
 *
 * A tile is rows of one head, DP >= D elements each, the rest zeros; chunk c (16 bytes) of row r is at place c ^ (r % 8) of its row, so that
 * eight rows of one chunk are in different banks. Four warps a block; a warp has MT times 16 rows of its own, sums in registers.
 *
 * MM is the products' face (mma_kind): type and family. A block takes at most 64 KiB of shared memory before 8.0 (a T4's), and 99 KiB from there
 * on (an L4's); two blocks per multiprocessor leave 255 registers to a thread, on every card. */
#ifndef LS_CUDA_FLASH_TILE_CUH
#define LS_CUDA_FLASH_TILE_CUH

#include "flash.h"
#include "mma.cuh"

#ifdef LS_EMU
#define FLASH_PART [[gnu::noinline]] static /* once for all the kernels that have it: they compile sooner */
#else
#define FLASH_PART static __device__ __forceinline__
#endif

#define FLASH_WARPS 4 /* of a block; backward of wide floats before 8.0 has 2 */
#define FLASH_LOG2E 1.4426950408889634f

struct flash_job {               /* a kernel's argument */
    const void *qkv;             /* (B,T,3,H,D)                              */
    void *y;                     /* (B,T,H,D)                                */
    float *lse;                  /* (B,H,T)                                  */
    const void *dy;              /* (B,T,H,D)                                */
    void *dqkv;                  /* (B,T,3,H,D)                              */
    float *delta;                /* (B,H,T) working space of backward        */
    const void *kcache, *vcache; /* (B,H,Tmax,D), or NULL          */
    int B, T, H, D;
    int Tmax, pos;      /* of the caches; at->pos, if there is `at` */
    float scale;        /* 1/sqrt(D)                                */
    float scale2;       /* … times log2(e)                          */
    float keep;         /* 1/(1-p)                                  */
    uint32_t threshold; /* p 2^32, rounded up; 0: no dropout        */
    int head, n_head;   /* of the whole model                       */
    uint64_t key;
    const void *at; /* ls_pass_head on the device, or NULL      */
    uint32_t unit, site;
};

/* Where a lane's row of an ldmatrix is: `row` bytes in, chunk `x` of it once the step along the row is folded in by ^. */
struct lane_at {
    int row, x;
};

template <class E, int DP> struct flash_tile {
    static const int ROW = DP * (int)sizeof(E), CHUNKS = ROW / 16, EACH = 16 / (int)sizeof(E);

    static __device__ __forceinline__ int chunk(int r, int c) { return r * ROW + ((c ^ (r & 7)) << 4); }

    static __device__ __forceinline__ lane_at lane_for(int r, int c)
    {
        lane_at l = {r * ROW, (c ^ (r & 7)) << 4};
        return l;
    }
};

/* Parts of tiles as operands. lane_a: for an A; or, transposed, a B of rows along K. lane_b: for two B, whose columns are the tile's rows.
 * load_bt: two B of 8 columns each from column n0 on, whose K rows begin at tile row k0. */
template <class MM, int DP, bool QUADS = MM::QUADS> struct flash_operands {
    typedef typename MM::E E;
    typedef flash_tile<E, DP> tl;
    static __device__ __forceinline__ lane_at lane_a(int lane) { return tl::lane_for(lane & 15, lane >> 4); }
    static __device__ __forceinline__ lane_at lane_b(int lane)
    {
        return tl::lane_for((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
    }

    static __device__ __forceinline__ void load(uint32_t f[4], saddr t, lane_at l, int row, int step)
    {
        ldmatrix4(f, t + (row * tl::ROW + l.row + ((step * 32) ^ l.x)));
    }

    static __device__ __forceinline__ void load_bt(uint32_t b[4], saddr t, lane_at l, int k0, int n0, int lane)
    {
        if constexpr (sizeof(E) == sizeof(float)) { /* rows in from_sums' order */
            int g = lane >> 2, r = k0 + 2 * (lane & 3);
#pragma unroll
            for (int i = 0; i < 4; i++)
                b[i] = lds32(t + (tl::chunk(r + (i & 1), n0 / 4 + (i & 2) + (g >> 2)) + (g & 3) * 4));
        } else {
            ldmatrix4_t(b, t + (k0 * tl::ROW + l.row + ((n0 * 2) ^ l.x)));
        }
    }
};

template <class MM, int DP> struct flash_operands<MM, DP, true> {
    typedef flash_tile<typename MM::E, DP> tl;
    static __device__ __forceinline__ lane_at lane_a(int lane)
    {
        return tl::lane_for((lane & 3) + (lane >> 4) * 4 + (lane >> 2 & 1) * 8, 0);
    }
    static __device__ __forceinline__ lane_at lane_b(int lane)
    {
        return tl::lane_for((lane & 3) + (lane >> 4) * 4 + (lane >> 3 & 1) * 8, 0);
    }

    static __device__ __forceinline__ void load(uint32_t f[8], saddr t, lane_at l, int row, int step)
    {
        lds128(f, t + (row * tl::ROW + l.row + ((step * 32) ^ l.x)));
        lds128(f + 4, t + (row * tl::ROW + l.row + ((step * 32 + 16) ^ l.x)));
    }

    static __device__ __forceinline__ void load_bt(uint32_t b[8], saddr t, lane_at, int k0, int n0, int lane)
    {
#pragma unroll
        for (int s = 0; s < 4; s++)
            lds64(b + 2 * s, t + (tl::chunk(k0 + 4 * s + (lane & 3), n0 / 8 + (lane >> 3 & 1)) + (lane >> 4) * 8));
    }
};

/* Elements before row `row` of rows that are `ld` apart. */
static __device__ __forceinline__ int64_t flash_before(int row, int ld)
{
    return (int64_t)((uint64_t)(uint32_t)row * (uint32_t)ld);
}

/* Rows first … first+ROWS-1 of a head, `ld` elements apart, into a tile; rows from T on and elements from D on are 0. */
template <class E, int DP, bool EXACT, int ROWS, int WARPS = FLASH_WARPS>
FLASH_PART void flash_load(char *mem, int tile, const E *x, int ld, int first, int T, int D)
{
    typedef flash_tile<E, DP> tl;
    const int STEP = 32 * WARPS / tl::CHUNKS, r0 = (int)threadIdx.x / tl::CHUNKS, c = (int)threadIdx.x % tl::CHUNKS;
    const E *from = x + flash_before(first + r0, ld) + c * tl::EACH;
#pragma unroll
    for (int n = 0; n < ROWS / STEP; n++, from += STEP * ld) {
        const int r = r0 + n * STEP, place = tl::chunk(r, c);
        if (EXACT || D % tl::EACH == 0) {
            cp_async16(mem + tile + place, from, first + r < T && (EXACT || c * tl::EACH < D));
        } else {
            E *put = (E *)(mem + tile + place);
            for (int e = 0; e < tl::EACH; e++)
                put[e] = first + r < T && c * tl::EACH + e < D ? from[e] : from_float<E>(0);
        }
    }
}

template <class E> LS_DEVICE void flash_put(char *at, float x, float y)
{
    if constexpr (sizeof(E) == sizeof(float)) *(float2 *)at = make_float2(x, y);
    else *(uint32_t *)at = narrow2(x, y, E());
}

/* A warp's sums, each row times its factor, to its rows of those from `first` on; through its own rows of a tile, so that stores are whole lines. */
template <class MM, int DP, bool EXACT, int MT>
FLASH_PART void flash_store(char *tile, const float (*d)[DP / 8][4], const float (*factor)[2], typename MM::E *x,
                            int ld, int first, int T, int D)
{
    typedef typename MM::E E;
    typedef flash_tile<E, DP> tl;
    const int thread = thread_again(), lane = thread & 31, row0 = thread / 32 * 16 * MT;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < DP / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int r = row0 + m * 16 + h * MM::STEP + MM::row(lane),
                    byte = (MM::tile(n) + MM::col(lane)) * (int)sizeof(E);
                flash_put<E>(tile + tl::chunk(r, byte >> 4) + (byte & 15), d[m][n][2 * h] * factor[m][h],
                             d[m][n][2 * h + 1] * factor[m][h]);
            }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < MT * 16 * tl::CHUNKS / 32; n++) {
        int at = lane + n * 32, r = row0 + at / tl::CHUNKS, c = at % tl::CHUNKS, i = first + r;
        const char *from = tile + tl::chunk(r, c);
        E *to = x + flash_before(i, ld) + c * tl::EACH;
        if (i >= T) continue;
        if (EXACT || (D % tl::EACH == 0 && c * tl::EACH < D)) *(uint4 *)to = *(const uint4 *)from;
        else
#pragma unroll 1
            for (int e = 0; e < tl::EACH; e++)
                if (c * tl::EACH + e < D) to[e] = ((const E *)from)[e];
    }
}

template <int M, int N> LS_DEVICE void flash_zero(float (&d)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) d[m][n][0] = d[m][n][1] = d[m][n][2] = d[m][n][3] = 0;
}

/* ---- which rows of which head ---------------------------------------------------------------------------------- */

struct flash_place {
    int b, h, tile;
};

/* Blocks go over groups of heads that fit into the second-level cache together; inside one, over the tiles with the most work first. `long_last`:
 * these are the last (rows of queries), else the first (rows of keys). */
#define FLASH_GROUP 32

static __device__ __forceinline__ flash_place flash_where(const flash_job &j, int block, int n_tile, bool long_last,
                                                          int in_group = FLASH_GROUP)
{
    const int n_head = j.B * j.H;
    const int group = block / (in_group * n_tile), first = group * in_group;
    const int heads = n_head - first < in_group ? n_head - first : in_group;
    const int in = block - first * n_tile, bh = first + in % heads, tile = in / heads;
    flash_place p = {bh / j.H, bh % j.H, long_last ? n_tile - 1 - tile : tile};
    return p;
}

static __device__ __forceinline__ int64_t flash_row(const flash_job &j, flash_place p) /* of lse and delta */
{
    return ((int64_t)p.b * j.H + p.h) * j.T;
}

/* ---- dropout: ls_rng_u32 of ((b*H+h)*T+i)*T+j, taken apart ------------------------------------------------------ */

struct flash_drop {
    uint32_t low, high, threshold, rows, T;
};

static __device__ __forceinline__ flash_drop flash_drop_of(const flash_job &j, flash_place p)
{
    uint64_t key = j.key;
    if (j.at) {
        const uint64_t seed = ((const ls_pass_head *)j.at)->drop_key;
        key = ls_rng_key(seed, LS_RNG_DROPOUT, j.unit, j.site);
    }
    uint32_t T = (uint32_t)j.T, heads = (uint32_t)(j.n_head ? j.n_head : j.H),
             h = (uint32_t)(j.n_head ? j.head + p.h : p.h);
    flash_drop d = {(uint32_t)key, (uint32_t)(key >> 32), j.threshold, ((uint32_t)p.b * heads + h) * T, T};
    return d;
}

/* What is mixed for element (i,j); di rows and dj columns further it is flash_step more. */
static __device__ __forceinline__ uint32_t flash_start(const flash_drop &d, int i, int j)
{
    return ((d.rows + (uint32_t)i) * d.T + (uint32_t)j) * 0x9e3779b9u + d.low;
}

static __device__ __forceinline__ uint32_t flash_step(const flash_drop &d, int di, int dj)
{
    return (uint32_t)di * (d.T * 0x9e3779b9u) + (uint32_t)dj * 0x9e3779b9u;
}

static __device__ __forceinline__ bool flash_kept_at(const flash_drop &d, uint32_t z)
{
    z = (z ^ (z >> 16)) * 0x85ebca6bu;
    z = (z ^ (z >> 13) ^ d.high) * 0xc2b2ae35u;
    return (z ^ (z >> 16)) >= d.threshold;
}

static __device__ __forceinline__ bool flash_kept(const flash_drop &d, int i, int j)
{
    return flash_kept_at(d, flash_start(d, i, j));
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

static inline flash_job flash_job_of(const cu_attention_job *j)
{
    const double root = sqrt((double)j->D);
    const drop_arg drop = drop_of(j->drop);
    flash_job f = {};
    f.qkv = j->qkv, f.y = j->y, f.lse = j->lse, f.dy = j->dy, f.dqkv = j->dqkv, f.delta = (float *)j->scratch;
    f.B = (int)j->B, f.T = (int)j->T, f.H = (int)j->H, f.D = (int)j->D;
    f.scale = (float)(1.0 / root), f.scale2 = (float)(1.4426950408889634 / root);
    f.keep = drop.scale, f.threshold = drop.threshold, f.head = (int)drop.head, f.n_head = (int)drop.n_head;
    f.key = drop.key, f.at = drop.at, f.unit = drop.unit, f.site = drop.site;
    if (!j->cache.k) return f;
    f.kcache = j->cache.k, f.vcache = j->cache.v, f.Tmax = (int)j->cache.Tmax, f.pos = (int)j->cache.pos;
    f.at = j->cache.at;
    return f;
}

template <class K>
static int flash_launch(K *kernel, int rows, int warps, int nbytes, void *stream, const cu_attention_job *j)
{
    const int n_block = (int)(j->B * j->H * ceil_div<int64_t>(j->T, rows)), e = LS_ALLOW_SHARED(kernel, nbytes);
    return e ? e : LS_LAUNCH(kernel, n_block, 32 * warps, nbytes, stream, flash_job_of(j));
}

/* Calls Pass<MM, DP, EXACT, DROP>::launch for D and the dropout of j. */
template <template <class, int, bool, bool> class Pass, class MM, int DP>
static int flash_for_width(const cu_attention_job *j, void *stream)
{
    if constexpr (!(sizeof(typename MM::E) == 4 && DP == 128)) { /* that is rare: no code of its own */
        if (j->D == DP && j->drop.p > 0) return Pass<MM, DP, true, true>::launch(j, stream);
        if (j->D == DP) return Pass<MM, DP, true, false>::launch(j, stream);
    }
    return Pass<MM, DP, false, true>::launch(j, stream); /* a threshold of 0 drops nothing */
}

template <template <class, int, bool, bool> class Pass, class MM>
static int flash_for_kind(const cu_attention_job *j, void *stream)
{
    return j->D <= 64 ? flash_for_width<Pass, MM, 64>(j, stream) : flash_for_width<Pass, MM, 128>(j, stream);
}

/* The family of the card. Before 8.0 there is no bf16, and float has one kind, which takes the place of TF32, too. */
template <template <class, int, bool, bool> class Pass, class E, int PASSES>
static int flash_for(const cu_attention_job *j, void *stream)
{
    const ls_card *card = cu_card();
    if (!card) return (int)cudaErrorNoKernelImageForDevice;
    if (card->mma >= 80) return flash_for_kind<Pass, mma_kind<80, E, PASSES>>(j, stream);
    if constexpr (std::is_same<E, f16>::value)
        return card->mma >= 75 ? flash_for_kind<Pass, mma_kind<75, f16, 1>>(j, stream)
                               : flash_for_kind<Pass, mma_kind<70, f16, 1>>(j, stream);
    if constexpr (std::is_same<E, float>::value && PASSES == 3)
        return flash_for_kind<Pass, mma_kind<70, float, 3>>(j, stream);
    return (int)cudaErrorNotSupported;
}

/* Whether a float's product may be one of TF32. */
static inline bool flash_tf32(bool wanted)
{
    const ls_card *card = cu_card();
    return wanted && card && card->mma >= 80;
}

#endif
