/* gemm_bf16_amx.c - bf16 products on AMX tiles.
 *
 * A panel holds 32 rows of A or 32 columns of B as chunks of 32 steps of K, 2 KiB each, two tiles of 1 KiB:
 *
 *        the first 16 | the last 16         tile of A: 16 rows x 32 k;  of B: 16 pairs of k x 16 columns x 2
 *
 * A bf16 copy of B (packed.h) has the same tiles, those of 16 columns after those of the 16 before.
 *
 * Four tiles hold 32 x 32 of C, over all of kb: they begin with C where it is added to, and are stored into it. A chunk is 4 tile products
 * (64 cycles) and 4 tile loads (32 cycles of two load ports). C is fp32 and comes from the third cache or from memory, which costs more than
 * the panels of A do: kc = 1024 makes most products of GPT-2 touch C once, although a panel of A (64 KiB) is larger than the first cache. While
 * a tile of C is computed, its right neighbour is fetched.
 *
 * A thread packs A itself, into two panels of its own: the one that is multiplied, and the next one, of which a unit (16 x 32) is packed every few
 * chunks. Tiles leave the vector units idle, so this costs little, and only B is packed by all threads before a barrier. It needs blocks of C of
 * many columns (cut_n). Measured on 16 cores of a Xeon with AMX (docs/results/bf16_16core_2026-11-17.md), together: the products of a step of GPT-2
 * 124M take 0.90 of the time that they took with A packed by all and narrow blocks; most of it comes from the blocks.
 *
 * Invariants: as in gemm_amx.c, and
 *   1. at the edges of C the tiles go through tmp: the same operations on every element as inside;
 *   2. C is added to by the tiles themselves, so blocks of K are one running sum.
 *
 * With GEMM_EMULATE (gemm_bf16_amx_emulated.c) the tiles are memory and the instructions those of gemm_bf16_emulate.h. */
#include "compute/cpu/gemm_bf16_pairs.h"

enum {
    W = 32,      /* rows or columns of a panel */
    TILE = 1024, /* bytes                      */
    CHUNK_NBYTES = 2 * TILE,
    MT = 256,
    NT = 512, /* block of C                 */
    KC = 1024,
    PANEL = W * KC * 2 /* bytes                      */
};

#ifdef GEMM_EMULATE
static _Thread_local _Alignas(64) uint32_t tile[8][256];

static void emu_tile_load(int t, const char *from, int64_t stride)
{
    for (int i = 0; i < 16; i++) memcpy(tile[t] + 16 * i, from + i * stride, 64);
}

static void emu_tile_store(int t, char *to, int64_t stride)
{
    for (int i = 0; i < 16; i++) memcpy(to + i * stride, tile[t] + 16 * i, 64);
}
#define tile_zero(t)             memset(tile[t], 0, TILE)
#define tile_load(t, p, stride)  emu_tile_load(t, p, stride)
#define tile_store(t, p, stride) emu_tile_store(t, p, stride)
#define tile_dp(c, a, b)         emu_tdpbf16((float *)(void *)tile[c], tile[a], tile[b])
#else
#define tile_zero(t)             _tile_zero(t)
#define tile_load(t, p, stride)  _tile_loadd(t, p, stride)
#define tile_store(t, p, stride) _tile_stored(t, p, stride)
#define tile_dp(c, a, b)         _tile_dpbf16ps(c, a, b)
#endif

static void pack_a(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    const pairs_layout l = {.w = W, .by_row = true, .whole = true, .unit = TILE, .stride = 64};
    if (k_contig) pack_pairs(dst, panel, src, ld, true, w, kb, l);
    else pack_pairs(dst, panel, src, ld, false, w, kb, l);
}

/* From the left: y may be where x is. */
static void narrow(uint16_t *y, const float *x, int64_t n, float by)
{
    for (int64_t i = 0; i < n; i += 32) {
        const int64_t len = LS_MIN(n - i, 32);
        float rest[32] = {0};
        if (len < 32) memcpy(rest, x + i, (size_t)len * sizeof *x);
        const float *from = len < 32 ? rest : x + i;
        const vf lo = *(const vf_at *)from * by, hi = *(const vf_at *)(from + 16) * by;
        vh w;
        words_of(&w, &lo, &hi);
        memcpy(y + i, &w, (size_t)len * sizeof *y);
    }
}

static void pack_b(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    const pairs_layout l = {.w = W, .whole = true, .unit = TILE, .stride = 64};
    if (k_contig) pack_pairs(dst, panel, src, ld, true, w, kb, l);
    else pack_pairs(dst, panel, src, ld, false, w, kb, l);
}

/* ---- A, packed while the panel before it is multiplied ---- */

typedef struct packer {
    gemm_rows from;
    char *to;
    int64_t done, n_unit; /* units of 16 rows x 32 steps */
    int64_t debt, n_turn; /* n_unit of them are spread over n_turn calls */
} packer;

#define UNIT_FN(name, contig, is_half)                                                                                 \
    static __attribute__((noinline)) void name(char *to, const char *from, int64_t ld, int64_t room, int64_t kb)       \
    {                                                                                                                  \
        const pairs_layout l = {.w = W, .by_row = true, .half = (is_half), .whole = true, .unit = TILE, .stride = 64}; \
        pack_unit(to, from, ld, contig, LS_MIN(room, 16), room, kb, l);                                                \
    }
UNIT_FN(unit_of_rows, true, false)
UNIT_FN(unit_of_columns, false, false)
UNIT_FN(half_unit_of_rows, true, true)
UNIT_FN(half_unit_of_columns, false, true)

static void pack_next(packer *p)
{
    const gemm_rows *r = &p->from;
    const int64_t k = p->done / 2 * CHUNK, i = p->done % 2 * 16, nbytes = r->half ? 2 : 4;
    if (i >= r->w) { /* up to 16 rows: micro_low reads the first ones only */
        p->done++;
        return;
    }
    const int64_t room = LS_MIN(r->w, W) - i, kb = LS_MIN(r->kb - k, CHUNK);
    const char *from = (const char *)r->at + (r->k_contig ? i * r->ld + k : k * r->ld + i) * nbytes;
    char *to = p->to + p->done++ * TILE;
    if (r->k_contig) (r->half ? half_unit_of_rows : unit_of_rows)(to, from, r->ld, room, kb);
    else (r->half ? half_unit_of_columns : unit_of_columns)(to, from, r->ld, room, kb);
}

/* What is packed with one chunk; p NULL: nothing. */
GEMM_INLINE void pack_turn(packer *p)
{
    if (!p) return;
    for (p->debt += p->n_unit; p->debt >= p->n_turn; p->debt -= p->n_turn) pack_next(p);
}

static packer packer_of(gemm_rows from, char *to, int64_t n_turn)
{
    return (packer){.from = from, .to = to, .n_unit = 2 * gemm_ceil_div(from.kb, CHUNK), .n_turn = n_turn};
}

/* ---- products ---- */

/* The tiles of B: those of the first 16 columns, and those of the last 16 `half` bytes further; `step` bytes from one chunk to the next. */
typedef struct tiles_b {
    const char *at;
    int64_t half, step;
} tiles_b;

/* 32 x 32 of C, rows `stride` bytes apart, = or += n_chunk chunks of a panel of A and one of B. next: the tile that follows, fetched meanwhile, or
 * NULL. p: what is packed meanwhile, or NULL */
static void micro(int64_t n_chunk, const char *a, tiles_b from, char *c, int64_t stride, bool add, const char *next,
                  packer *p)
{
    const char *b = from.at;
    char *below = c + 16 * stride;
    if (add) {
        tile_load(0, c, stride);
        tile_load(1, c + 64, stride);
        tile_load(2, below, stride);
        tile_load(3, below + 64, stride);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    const int64_t each = (W + n_chunk - 1) / n_chunk;
    int64_t row = 0;
    for (int64_t k = 0; k < n_chunk; k++, a += CHUNK_NBYTES, b += from.step) {
        if (next)
            for (int64_t end = LS_MIN(row + each, W); row < end; row++) {
                __builtin_prefetch(next + row * stride, 1);
                __builtin_prefetch(next + row * stride + 64, 1);
            }
        pack_turn(p);
        tile_load(4, a, 64);
        tile_load(6, b, 64);
        tile_dp(0, 4, 6);
        tile_load(7, b + from.half, 64);
        tile_dp(1, 4, 7);
        tile_load(5, a + TILE, 64);
        tile_dp(2, 5, 6);
        tile_dp(3, 5, 7);
    }
    tile_store(0, c, stride);
    tile_store(1, c + 64, stride);
    tile_store(2, below, stride);
    tile_store(3, below + 64, stride);
}

/* Copies (m,n) floats between two places with rows of their own length. */
static void copy_rows(float *to, int64_t ld_to, const float *from, int64_t ld_from, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++) memcpy(to + i * ld_to, from + i * ld_from, (size_t)n * sizeof *to);
}

static void add_bias(float *c, int64_t ldc, const float *bias, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++, c += ldc)
        for (int64_t j = 0; j < n; j++) c[j] += bias[j];
}

/* The same for up to 16 rows, with half of the tiles. C is in the thread's own memory. */
static void micro_low(int64_t n_chunk, const char *a, tiles_b from, char *c, int64_t stride, bool add, packer *p)
{
    const char *b = from.at;
    if (add) {
        tile_load(0, c, stride);
        tile_load(1, c + 64, stride);
    } else {
        tile_zero(0);
        tile_zero(1);
    }
    for (int64_t k = 0; k < n_chunk; k++, a += CHUNK_NBYTES, b += from.step) {
        pack_turn(p);
        tile_load(4, a, 64);
        tile_load(6, b, 64);
        tile_dp(0, 4, 6);
        tile_load(7, b + from.half, 64);
        tile_dp(1, 4, 7);
    }
    tile_store(0, c, stride);
    tile_store(1, c + 64, stride);
}

/* A row of micro-tiles: a panel of A and all panels of B. */
static void row_of_tiles(const gemm_block *b, const char *pa, int64_t i, packer *p)
{
    const int64_t n_chunk = gemm_ceil_div(b->kb, CHUNK);
    const char *pb = b->pb;
    for (int64_t j = 0; j < b->n; j += W, pb += b->b_panel) {
        const int64_t m = LS_MIN(b->m - i, W), n = LS_MIN(b->n - j, W);
        float *c = b->c + i * b->ldc + j;
        /* a copy in panels of 16 columns ends after the last column */
        const tiles_b from =
            b->b_half ? (tiles_b){pb, n > 16 ? (int64_t)b->b_half : 0, TILE} : (tiles_b){pb, TILE, CHUNK_NBYTES};
        if (m == W && n == W) {
            micro(n_chunk, pa, from, (char *)c, b->ldc * (int64_t)sizeof *c, b->add,
                  b->n - j >= 2 * W ? (const char *)(c + W) : NULL, p);
        } else {
            if (b->add) {
                memset(b->tmp, 0, W * W * sizeof *b->tmp);
                copy_rows(b->tmp, W, c, b->ldc, m, n);
            }
            if (m > 16) micro(n_chunk, pa, from, (char *)b->tmp, W * (int64_t)sizeof *c, b->add, NULL, p);
            else micro_low(n_chunk, pa, from, (char *)b->tmp, W * (int64_t)sizeof *c, b->add, p);
            copy_rows(c, b->ldc, b->tmp, W, m, n);
        }
        if (b->bias) add_bias(c, b->ldc, b->bias + j, m, n);
    }
}

/* Rows of b from i on; from the end on, the rows that come after it. */
static gemm_rows rows_from(const gemm_block *b, int64_t i)
{
    if (i >= b->m) return b->next;
    gemm_rows r = b->rows;
    r.at = (const char *)r.at + (r.k_contig ? i * r.ld : i) * (r.half ? 2 : 4);
    r.w -= i;
    return r;
}

static void block(const gemm_block *b)
{
    if (b->pa) {
        const char *pa = b->pa;
        for (int64_t i = 0; i < b->m; i += W, pa += b->a_panel) row_of_tiles(b, pa, i, NULL);
        return;
    }
    char *own = (char *)(b->tmp + W * W);
    for (int64_t i = 0; i < b->m; i += W) {
        char *pa = own + b->ahead->half * PANEL, *other = own + !b->ahead->half * PANEL;
        if (!b->ahead->ready) {
            packer now = packer_of(rows_from(b, i), pa, 1);
            while (now.done < now.n_unit) pack_next(&now);
        }
        const gemm_rows next = rows_from(b, i + W);
        packer p = packer_of(next, other, gemm_ceil_div(b->n, W) * gemm_ceil_div(b->kb, CHUNK));
        row_of_tiles(b, pa, i, next.at ? &p : NULL);
        b->ahead->ready = next.at != NULL;
        b->ahead->half = !b->ahead->half;
    }
}

#ifndef GEMM_EMULATE
static double spin(int64_t n)
{
    gemm_amx_enter();
    for (int64_t k = 0; k < n; k++) {
        tile_dp(0, 4, 6);
        tile_dp(1, 4, 7);
        tile_dp(2, 5, 6);
        tile_dp(3, 5, 7);
    }
    gemm_amx_leave();
    return (double)n * 4 * 16 * 16 * CHUNK * 2;
}
#endif

const gemm_kernel GEMM_BF16_KERNEL(amx) = {
    .name = "amx-bf16" GEMM_BF16_SUFFIX,
    .bf16 = true,
    .runs_on = true,
#ifdef GEMM_EMULATE
    .emulated = true,
#else
    .usable = gemm_amx_usable,
    .enter = gemm_amx_enter,
    .leave = gemm_amx_leave,
    .spin = spin,
#endif
    .mr = W,
    .nr = W,
    .kc = KC,
    .turn = 3,
    .k_round = CHUNK,
    .elem_nbytes = 2,
    .mt = MT,
    .nt = NT,
    .cut_n = 32, /* A is packed again for every block of columns */
    .tmp_nbytes = W * W * sizeof(float) + 2 * PANEL,
    .pack_group = 1,
    .pack_a = pack_a,
    .packs_a = true,
    .takes_panels = true,
    .logit_rows = 2048,
    .narrow = narrow,
    .pack_b = pack_b,
    .block = block,
};
