/* flash_bwd_wgmma.cu - attention backward on Hopper for bf16 and f16, head size 64; flash.h says what it computes, decision 25 why like this.
 *
 *   sides      two kernels, as in flash_bwd.cuh: rows of queries make dq (and, for the other, lse and delta), rows of keys make dk and dv
 *   block      one per multiprocessor, which takes items (one head's WGS x 64 rows) one after the other: WGS warpgroups with 64 rows each, and one
 *              whose first thread asks the copy engine for tiles. It asks for the next item's while this one's are computed
 *   shared     own[2]: the item's rows, each warpgroup's in tiles of its own | ring: tiles of the other side that pass | barriers
 *   order      a warpgroup takes the tiles that pass from first to last, so a sum has one order. Warpgroups do not wait for each other: one makes p
 *              while another's products are in flight
 *   moves      as flash_bwd.cuh, with WGS x 64 own rows for each tile that passes
 *   makes      7 x B x H x T x T x D / 2 products and sums
 *
 * Rows from T on: the copy engine makes them 0, and so are lse and delta. Queries among them add nothing, keys are not stored. */
#include "flash_tile.cuh"
#include "wgmma.cuh"

template <int WGS, bool KEYS> struct bwd_shared {
    static const int THREADS = (WGS + 1) * WG_THREADS;
    static const int ARRAYS = KEYS ? 2 : 3; /* of an item: k, v; or q, dy, y */
    static const int STAGES = KEYS ? 6 : 4, ARRAY = WGS * WG_TILE, OWN = ARRAYS * ARRAY;
    static const int STAT = KEYS ? 2 * WG_ROWS * 4 : 0; /* lse log2(e) and delta of a tile of queries */
    static const int RING = 2 * OWN, STATS = RING + STAGES * 2 * WG_TILE, BARS = STATS + STAGES * STAT;
    static const int OWN_FULL = BARS, OWN_FREE = BARS + 16, FULL = BARS + 32, FREE = FULL + 8 * STAGES;
    static const int NBYTES = FREE + 8 * STAGES + 1024; /* and what aligns the first tile */
};

struct bwd_item {
    flash_place p;
    int first;    /* tile of the first warpgroup; below 0 it has none */
    int from, to; /* tiles that pass: from … to-1 */
};

template <int WGS, bool KEYS> static __device__ __forceinline__ bwd_item bwd_item_of(const flash_job &j, int index)
{
    const int n = ceil_div(j.T, WG_ROWS), n_item = ceil_div(n, WGS);
    bwd_item it;
    it.p = flash_where(j, index, n_item, !KEYS, ((int)gridDim.x + 1) / 2);
    it.first = KEYS ? it.p.tile * WGS : n - (n_item - it.p.tile) * WGS;
    it.from = KEYS ? it.first : 0, it.to = KEYS ? n : it.first + WGS;
    return it;
}

template <int WGS> static __host__ __device__ __forceinline__ int bwd_n_item(const flash_job &j)
{
    return j.B * j.H * ceil_div(ceil_div(j.T, WG_ROWS), WGS);
}

/* The n-th item of this block, -1 after the last. Items are in the order of their work inside a group of half as many heads as there are blocks, and
 * every other round of blocks is reversed: all blocks have nearly the same work, and the heads in use fit into the second-level cache. */
template <int WGS> static __device__ __forceinline__ int bwd_nth(const flash_job &j, int n)
{
    const int index = n * (int)gridDim.x + (n & 1 ? (int)gridDim.x - 1 - block_again() : block_again());
    return index < bwd_n_item<WGS>(j) ? index : -1;
}

struct bwd_ring {
    int at, phase;
    template <int STAGES> __device__ __forceinline__ void next()
    {
        if (++at == STAGES) at = 0, phase ^= 1;
    }
};

/* ---- loading ------------------------------------------------------------------------------------------------------- */

template <int WGS, bool KEYS>
FLASH_PART void bwd_load(saddr mem, const tensor_map *qkv, const tensor_map *dy, const tensor_map *y,
                         const flash_job &j)
{
    typedef bwd_shared<WGS, KEYS> sh;
    const int C = j.H * 64, n_tile = ceil_div(j.T, WG_ROWS);
    bwd_ring r = {0, 0};
#pragma unroll 1
    for (int n = 0, x; (x = bwd_nth<WGS>(j, n)) >= 0; n++) {
        const bwd_item it = bwd_item_of<WGS, KEYS>(j, x);
        const int lo = it.first < 0 ? -it.first : 0, hi = n_tile - it.first < WGS ? n_tile - it.first : WGS;
        const int head = it.p.h * 64, b = it.p.b;
        const saddr own = mem + (n & 1) * sh::OWN, own_full = mem + (sh::OWN_FULL + (n & 1) * 8);
        mbar_wait(mem + (sh::OWN_FREE + (n & 1) * 8), (n >> 1 & 1) ^ 1);
        mbar_arrive_expect(own_full, (hi - lo) * sh::ARRAYS * WG_TILE);
#pragma unroll 1
        for (int w = lo; w < hi; w++) {
            const int row = (it.first + w) * WG_ROWS;
            const saddr to = own + w * WG_TILE;
            if (KEYS) {
                tile_load(to, qkv, C + head, row, b, own_full);
                tile_load(to + sh::ARRAY, qkv, 2 * C + head, row, b, own_full);
            } else {
                tile_load(to, qkv, head, row, b, own_full);
                tile_load(to + sh::ARRAY, dy, head, row, b, own_full);
                tile_load(to + 2 * sh::ARRAY, y, head, row, b, own_full);
            }
        }
#pragma unroll 1
        for (int tile = it.from; tile < it.to; tile++, r.next<sh::STAGES>()) {
            const saddr to = mem + (sh::RING + r.at * 2 * WG_TILE), full = mem + (sh::FULL + r.at * 8);
            mbar_wait(mem + (sh::FREE + r.at * 8), r.phase ^ 1);
            mbar_arrive_expect(full, 2 * WG_TILE + sh::STAT);
            if (KEYS) {
                const float *stat = j.delta + ((int64_t)(b * j.H + it.p.h) * n_tile + tile) * (2 * WG_ROWS);
                tile_load(to, qkv, head, tile * WG_ROWS, b, full);
                tile_load(to + WG_TILE, dy, head, tile * WG_ROWS, b, full);
                bytes_load(mem + (sh::STATS + r.at * sh::STAT), stat, sh::STAT, full);
            } else {
                tile_load(to, qkv, C + head, tile * WG_ROWS, b, full);
                tile_load(to + WG_TILE, qkv, 2 * C + head, tile * WG_ROWS, b, full);
            }
        }
    }
}

/* ---- what both sides have in common ------------------------------------------------------------------------------ */

/* D = A B', both tiles. */
template <class E> LS_DEVICE void bwd_product(float (&d)[8][4], uint64_t a, uint64_t b)
{
    wgmma_tiles<E, false>(d, a, b);
#pragma unroll
    for (unsigned c = 1; c < 4; c++) wgmma_tiles<E, true>(d, a + c * WG_CHUNK, b + c * WG_CHUNK);
    wgmma_commit();
}

/* D += A B: A from sums, as numbers of 16 bits. */
template <class E> LS_DEVICE void bwd_add(float (&d)[8][4], const uint32_t (&a)[4][4], uint64_t b)
{
#pragma unroll
    for (unsigned c = 0; c < 4; c++) wgmma_registers<E>(d, a[c], b + c * WG_ROWS_16);
    wgmma_commit();
}

template <class E> LS_DEVICE void bwd_narrow(uint32_t (&a)[4][4], const float (&s)[8][4])
{
#pragma unroll
    for (int c = 0; c < 4; c++) mma_kind<80, E, 1>::from_sums(a[c], &s[2 * c]);
}

/* Where a lane's sums are in a tile: row(e) and column(n, e). */
struct bwd_lane {
    int g, t; /* g: with the warp's first row */
    __device__ __forceinline__ bwd_lane()
    {
        const int thread = thread_again() % WG_THREADS;
        g = thread / 32 * 16 + (thread & 31) / 4, t = thread & 3;
    }
    __device__ __forceinline__ int row(int e) const { return g + (e >> 1) * 8; }
    __device__ __forceinline__ int column(int n, int e) const { return n * 8 + 2 * t + (e & 1); }
};

/* Scores of keys after the query, on the diagonal: p becomes 0. */
template <bool KEYS> LS_DEVICE void bwd_mask(float (&s)[8][4], bwd_lane l)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (KEYS ? l.row(e) > l.column(n, e) : l.column(n, e) > l.row(e)) s[n][e] = -INFINITY;
}

/* ---- queries ------------------------------------------------------------------------------------------------------- */

/* delta of a lane's two rows from the warp's 16 rows of dy and y: eight lanes per row, as dq_delta. */
template <class E> FLASH_PART void bwd_delta(float (&delta)[2], const char *dy, const char *y)
{
    typedef flash_tile<E, 64> tl;
    const int lane = (int)threadIdx.x & 31, row0 = (int)threadIdx.x % WG_THREADS / 32 * 16, g = lane >> 2;
    float sum[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int at = tl::chunk(row0 + n * 4 + lane / 8, lane % 8);
        float a[8], b[8];
        widen(a, vec_load<8>((const E *)(dy + at)));
        widen(b, vec_load<8>((const E *)(y + at)));
        sum[n] = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) sum[n] = fmaf(a[e], b[e], sum[n]);
#pragma unroll
        for (int d = 4; d; d /= 2) sum[n] += __shfl_xor_sync(0xffffffffu, sum[n], d);
        sum[n] = __shfl_sync(0xffffffffu, sum[n], (g & 3) * 8);
    }
    delta[0] = g < 4 ? sum[0] : sum[1];
    delta[1] = g < 4 ? sum[2] : sum[3];
}

template <class E, bool DROP>
FLASH_PART void bwd_queries_tile(float (&dq)[8][4], const float (&lse2)[2], const float (&delta)[2], uint64_t q,
                                 uint64_t dy, uint64_t k, uint64_t v, bool diagonal, int row0, int column0,
                                 const flash_job &j, const flash_drop &drop)
{
    const bwd_lane l;
    float s[8][4], dp[8][4];
    uint32_t a[4][4];
    const uint32_t first = DROP ? flash_start(drop, row0 + l.row(0), column0 + l.column(0, 0)) : 0;
    wgmma_fence();
    bwd_product<E>(s, q, k);
    bwd_product<E>(dp, dy, v);
    wgmma_wait<1>(s);
    if (diagonal) bwd_mask<false>(s, l);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] = ex2(fmaf(s[n][e], j.scale2, -lse2[e >> 1]));
    wgmma_wait<0>(dp);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float d = dp[n][e];
            if (DROP) d = flash_kept_at(drop, first + flash_step(drop, e / 2 * 8, n * 8 + e % 2)) ? d * j.keep : 0;
            s[n][e] *= d - delta[e >> 1];
        }
    bwd_narrow<E>(a, s);
    wgmma_fence();
    bwd_add<E>(dq, a, k);
    wgmma_wait<0>(dq);
}

template <class E, int WGS, bool DROP> FLASH_PART void bwd_queries(char *base, saddr mem, const flash_job &j)
{
    typedef bwd_shared<WGS, false> sh;
    const int T = j.T, C = j.H * 64, n_tile = ceil_div(T, WG_ROWS), wg = warpgroup_index();
    const bwd_lane l;
    bwd_ring r = {0, 0};
#pragma unroll 1
    for (int n = 0, x; (x = bwd_nth<WGS>(j, n)) >= 0; n++) {
        const bwd_item it = bwd_item_of<WGS, false>(j, x);
        const int tile = it.first + wg, own = (n & 1) * sh::OWN + wg * WG_TILE;
        const bool live = tile >= 0; /* the first item may have fewer rows */
        const uint64_t q = wgmma_operand(mem + own), dy = wgmma_operand(mem + (own + sh::ARRAY));
        flash_drop drop = {0, 0, 0, 0, 0};
        if (DROP) drop = flash_drop_of(j, it.p);
        float dq[1][8][4], lse2[2], delta[2] = {0, 0};
        flash_zero(dq);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = tile * WG_ROWS + l.row(2 * h);
            lse2[h] = live && i < T ? j.lse[flash_row(j, it.p) + i] * FLASH_LOG2E : 0;
        }
        mbar_wait(mem + (sh::OWN_FULL + (n & 1) * 8), n >> 1 & 1);
        if (live) bwd_delta<E>(delta, base + own + sh::ARRAY, base + own + 2 * sh::ARRAY);
#pragma unroll 1
        for (int c = it.from; c < it.to; c++, r.next<sh::STAGES>()) {
            const saddr pass = mem + (sh::RING + r.at * 2 * WG_TILE);
            mbar_wait(mem + (sh::FULL + r.at * 8), r.phase);
            if (live && c <= tile)
                bwd_queries_tile<E, DROP>(dq[0], lse2, delta, q, dy, wgmma_operand(pass), wgmma_operand(pass + WG_TILE),
                                          c == tile, tile * WG_ROWS, c * WG_ROWS, j, drop);
            mbar_arrive_warp(mem + (sh::FREE + r.at * 8));
        }
        if (live) {
            const float factor[1][2] = {{j.scale, j.scale}};
            float *stat = j.delta + ((int64_t)(it.p.b * j.H + it.p.h) * n_tile + tile) * (2 * WG_ROWS);
            if (l.t == 0)
#pragma unroll
                for (int h = 0; h < 2; h++) stat[l.row(2 * h)] = lse2[h], stat[WG_ROWS + l.row(2 * h)] = delta[h];
            threads_meet(1 + wg, WG_THREADS); /* all four warps' products are done with q, whose place the store uses */
            flash_store<mma_kind<80, E, 1>, 64, true, 1>(base + (n & 1) * sh::OWN, dq, factor,
                                                         (E *)j.dqkv + flash_before(it.p.b * T, 3 * C) + it.p.h * 64,
                                                         3 * C, it.first * WG_ROWS, T, 64);
        }
        proxy_fence();
        mbar_arrive_warp(mem + (sh::OWN_FREE + (n & 1) * 8));
    }
}

/* ---- keys and values ----------------------------------------------------------------------------------------------- */

/* s and dp have keys as rows and queries as columns. stat: lse log2(e) of the queries, then delta. */
template <class E, bool DROP>
FLASH_PART void bwd_keys_tile(float (&dk)[8][4], float (&dv)[8][4], const float *stat, uint64_t k, uint64_t v,
                              uint64_t q, uint64_t dy, bool diagonal, int row0, int column0, const flash_job &j,
                              const flash_drop &drop)
{
    const bwd_lane l;
    float s[8][4], dp[8][4];
    uint32_t p[4][4], ds[4][4];
    const uint32_t first = DROP ? flash_start(drop, column0 + l.column(0, 0), row0 + l.row(0)) : 0;
    wgmma_fence();
    bwd_product<E>(s, k, q);
    bwd_product<E>(dp, v, dy);
    wgmma_wait<1>(s);
    if (diagonal) bwd_mask<true>(s, l);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 lse2 = *(const float2 *)(stat + l.column(n, 0));
        float kept[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            kept[e] = s[n][e] = ex2(fmaf(s[n][e], j.scale2, -(e & 1 ? lse2.y : lse2.x)));
            if (DROP && !flash_kept_at(drop, first + flash_step(drop, n * 8 + e % 2, e / 2 * 8)))
                kept[e] = 0,
                s[n][e] = -s[n][e]; /* the sign, which p does not need, notes it; `keep` is a factor at the end */
        }
        p[n / 2][n % 2 * 2] = narrow2(kept[0], kept[1], E()), p[n / 2][n % 2 * 2 + 1] = narrow2(kept[2], kept[3], E());
    }
    wgmma_fence();
    bwd_add<E>(dv, p, dy);
    wgmma_wait<1>(dp);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 delta = *(const float2 *)(stat + WG_ROWS + l.column(n, 0));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float d = dp[n][e];
            if (DROP) d = __float_as_uint(s[n][e]) >> 31 ? 0 : d * j.keep;
            dp[n][e] = (DROP ? fabsf(s[n][e]) : s[n][e]) * (d - (e & 1 ? delta.y : delta.x));
        }
    }
    bwd_narrow<E>(ds, dp);
    wgmma_fence();
    bwd_add<E>(dk, ds, q);
    wgmma_wait<0>(dk, dv);
}

template <class E, int WGS, bool DROP> FLASH_PART void bwd_keys(char *base, saddr mem, const flash_job &j)
{
    typedef bwd_shared<WGS, true> sh;
    const int T = j.T, C = j.H * 64, n_tile = ceil_div(T, WG_ROWS), wg = warpgroup_index();
    bwd_ring r = {0, 0};
#pragma unroll 1
    for (int n = 0, x; (x = bwd_nth<WGS>(j, n)) >= 0; n++) {
        const bwd_item it = bwd_item_of<WGS, true>(j, x);
        const int tile = it.first + wg, own = (n & 1) * sh::OWN + wg * WG_TILE;
        const bool live = tile < n_tile; /* the last item may have fewer rows */
        const uint64_t k = wgmma_operand(mem + own), v = wgmma_operand(mem + (own + sh::ARRAY));
        flash_drop drop = {0, 0, 0, 0, 0};
        if (DROP) drop = flash_drop_of(j, it.p);
        float dk[1][8][4], dv[1][8][4];
        flash_zero(dk);
        flash_zero(dv);
        mbar_wait(mem + (sh::OWN_FULL + (n & 1) * 8), n >> 1 & 1);
#pragma unroll 1
        for (int c = it.from; c < it.to; c++, r.next<sh::STAGES>()) {
            const saddr pass = mem + (sh::RING + r.at * 2 * WG_TILE);
            mbar_wait(mem + (sh::FULL + r.at * 8), r.phase);
            if (live && c >= tile)
                bwd_keys_tile<E, DROP>(dk[0], dv[0], (const float *)(base + sh::STATS + r.at * sh::STAT), k, v,
                                       wgmma_operand(pass), wgmma_operand(pass + WG_TILE), c == tile, tile * WG_ROWS,
                                       c * WG_ROWS, j, drop);
            mbar_arrive_warp(mem + (sh::FREE + r.at * 8));
        }
        if (live) {
            const float scale[1][2] = {{j.scale, j.scale}}, keep = DROP ? j.keep : 1.0f, keeps[1][2] = {{keep, keep}};
            const bwd_item at = bwd_item_of<WGS, true>(j, bwd_nth<WGS>(j, n)); /* it, which was not kept */
            E *to = (E *)j.dqkv + flash_before(at.p.b * T, 3 * C) + at.p.h * 64;
            char *from = base + (n & 1) * sh::OWN;
            threads_meet(1 + wg,
                         WG_THREADS); /* all four warps' products are done with k and v, whose places the stores use */
            flash_store<mma_kind<80, E, 1>, 64, true, 1>(from, dk, scale, to + C, 3 * C, at.first * WG_ROWS, T, 64);
            flash_store<mma_kind<80, E, 1>, 64, true, 1>(from + sh::ARRAY, dv, keeps, to + 2 * C, 3 * C,
                                                         at.first * WG_ROWS, T, 64);
        }
        proxy_fence();
        mbar_arrive_warp(mem + (sh::OWN_FREE + (n & 1) * 8));
    }
}

/* ---- kernels --------------------------------------------------------------------------------------------------------- */

template <class E, int WGS, bool DROP, bool KEYS>
FLASH_PART void bwd_block(const tensor_map *qkv, const tensor_map *dy, const tensor_map *y, const flash_job &j)
{
    typedef bwd_shared<WGS, KEYS> sh;
    char *const dynamic = LS_SHARED_DYNAMIC(char);
    char *const base = dynamic + (-shared_offset(shared_address(dynamic)) & 1023);
    const saddr mem = shared_address(base);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++)
            mbar_init(mem + (sh::OWN_FULL + i * 8), 1), mbar_init(mem + (sh::OWN_FREE + i * 8), WGS * 4);
        for (int i = 0; i < sh::STAGES; i++)
            mbar_init(mem + (sh::FULL + i * 8), 1), mbar_init(mem + (sh::FREE + i * 8), WGS * 4);
        mbar_init_fence();
    }
    __syncthreads();
    if ((int)threadIdx.x >= WGS * WG_THREADS) {
        registers_less<24>();
        if ((int)threadIdx.x == WGS * WG_THREADS) bwd_load<WGS, KEYS>(mem, qkv, dy, y, j);
    } else {
        registers_more<WGS == 2 ? 240 : 160>();
        if constexpr (KEYS) bwd_keys<E, WGS, DROP>(base, mem, j);
        else bwd_queries<E, WGS, DROP>(base, mem, j);
    }
}

/* Where wgmma is not compiled in, the kernel is empty and may not have its number of threads, which flash_wgmma_works sees. */
template <class E, int WGS, bool DROP, bool KEYS>
__global__ void __launch_bounds__(WG_COMPILED ? (WGS + 1) * WG_THREADS : 32, 1)
    flash_wgmma(const __grid_constant__ tensor_map qkv, const __grid_constant__ tensor_map dy,
                const __grid_constant__ tensor_map y, const __grid_constant__ flash_job j)
{
    if constexpr (WG_COMPILED && WGS > 0) bwd_block<E, WGS, DROP, KEYS>(&qkv, &dy, &y, j);
}

template <class K>
static int bwd_launch(K *kernel, int threads, int nbytes, int n_item, const tensor_map (&map)[3], const flash_job &f,
                      void *stream)
{
    int device, n = 1, e = (int)cudaGetDevice(&device);
    if (!e) e = (int)cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    if (!e) e = LS_ALLOW_SHARED(kernel, nbytes);
    return e ? e : LS_LAUNCH(kernel, n_item < n ? n_item : n, threads, nbytes, stream, map[0], map[1], map[2], f);
}

template <class E, int WGS, bool DROP> static int bwd_both(const cu_attention_job *j, void *stream)
{
    typedef bwd_shared<WGS, false> queries;
    typedef bwd_shared<WGS, true> keys;
    const flash_job f = flash_job_of(j);
    const int64_t C = j->H * 64;
    tensor_map map[3];
    int e = tensor_map_rows(&map[0], j->qkv, 3 * C, 3 * C, j->T, j->B);
    if (!e) e = tensor_map_rows(&map[1], j->dy, C, C, j->T, j->B);
    if (!e) e = tensor_map_rows(&map[2], j->y, C, C, j->T, j->B);
    if (!e)
        e = bwd_launch(flash_wgmma<E, WGS, DROP, false>, queries::THREADS, queries::NBYTES, bwd_n_item<WGS>(f), map, f,
                       stream);
    if (!e)
        e = bwd_launch(flash_wgmma<E, WGS, DROP, true>, keys::THREADS, keys::NBYTES, bwd_n_item<WGS>(f), map, f,
                       stream);
    return e;
}

/* Dropout needs more registers than a block of three warpgroups has. */
template <class E> static int bwd_for(const cu_attention_job *j, int warpgroups, void *stream)
{
    if (j->drop.p > 0) return bwd_both<E, 2, true>(j, stream);
    return warpgroups == 2 ? bwd_both<E, 2, false>(j, stream) : bwd_both<E, 3, false>(j, stream);
}

int flash_bwd_wgmma(const cu_attention_job *j, ls_dtype dt, int warpgroups, void *stream)
{
    if (j->D != 64 || (dt != LS_BF16 && dt != LS_F16)) return (int)cudaErrorInvalidValue;
    return dt == LS_BF16 ? bwd_for<bf16>(j, warpgroups, stream) : bwd_for<f16>(j, warpgroups, stream);
}

bool flash_wgmma_works(void)
{
    cudaFuncAttributes a;
    const ls_card *card = cu_card();
    if (!card || !card->wgmma) return false;
    if (cudaFuncGetAttributes(&a, flash_wgmma<bf16, 3, false, true>) == cudaSuccess)
        return a.maxThreadsPerBlock >= 4 * WG_THREADS;
    (void)cudaGetLastError();
    return false;
}
