/* gemm.c - the driver: blocks, packing, threads, and the choice of a kernel.
 *
 *   for each jc (columns)                                         B block: kc x nc, packed once, by all threads together
 *     for each pc (steps of K, ascending)                         A block: mc x kc, likewise
 *       for each ic (rows)            pack | barrier | blocks of C, taken from one counter | barrier
 *
 * Where A and B are small beside the scratch, one turn packs and computes several blocks of K: fewer barriers, the same sums.
 *
 * A kernel may pack A itself (packs_a): each thread then packs the rows of its blocks of C, a panel while the one before it is multiplied. Rows are
 * packed once for every block of columns, but the time is hidden, and the panels are in the thread's own cache. Only B is packed and shared
 * by all, and M is not cut.
 *
 * Where op(B) is a packed copy (B_panels), such a kernel multiplies its panels where they are, and nothing is packed together.
 *
 * Packed blocks are shared, so 16 threads pack no more than one; blocks of C are small enough that the last ones leave
 * nobody waiting long, and the A and B panels of one block fit the second cache together.
 *
 * Invariants
 *   1. each element of C is summed over k in blocks of kc, ascending; the first block writes (or adds, when acc), later ones
 *      add, the bias comes last. Blocking in M and N and the choice of the thread touch no element's order;
 *   2. scratch: packed B, packed A, then a private piece for each thread; sizes follow from the kernel and n_thread alone. */
#include "compute/cpu/gemm.h"

#include "compute/cpu/gemm_impl.h"
#include "compute/cpu/packed.h"
#include "core/clock.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Best first, for each type of operands. AMX comes after AVX-512 in fp32 because it was slower where both were measured
 * (docs/decisions/0003): LS_GEMM=amx asks for it. Emulated kernels come last, the one of this architecture before the others. */
static const gemm_kernel *const kernels[] = {
#if defined(__aarch64__)
    &gemm_kernel_neon,
#elif defined(__x86_64__)
    &gemm_kernel_avx512, &gemm_kernel_amx,  &gemm_kernel_avx2,
#endif
    &gemm_kernel_plain, &gemm_kernel_blas,
#if defined(__aarch64__)
    &gemm_bf16_neon,    &gemm_bf16_neon_emulated, &gemm_bf16_avx512_emulated, &gemm_bf16_amx_emulated,
#else
#if defined(__x86_64__)
    &gemm_bf16_amx,
    &gemm_bf16_avx512,
    &gemm_bf16_avx512_emulated_avx2,
#endif
    &gemm_bf16_avx512_emulated,
    &gemm_bf16_amx_emulated,
    &gemm_bf16_neon_emulated,
#endif
};
enum { N_KERNEL = sizeof kernels / sizeof kernels[0] };

static bool usable_here(const gemm_kernel *k)
{
    return !k->usable || k->usable();
}

const gemm_kernel *gemm_list(int i, bool *usable)
{
    if (i < 0 || i >= N_KERNEL) return NULL;
    if (usable) *usable = usable_here(kernels[i]);
    return kernels[i];
}

const char *gemm_name(const gemm_kernel *k)
{
    return k->name;
}

bool gemm_is_bf16(const gemm_kernel *k)
{
    return k->bf16;
}

bool gemm_is_emulated(const gemm_kernel *k)
{
    return k->emulated;
}

bool gemm_runs_on(const gemm_kernel *k)
{
    return k->runs_on;
}

int64_t gemm_logit_rows(const gemm_kernel *k)
{
    return k->logit_rows ? k->logit_rows : 512;
}

bool gemm_takes_bf16(const gemm_kernel *k)
{
    return k->narrow != NULL;
}

bool gemm_takes_panels(const gemm_kernel *k)
{
    return k->takes_panels;
}

void gemm_narrow(const gemm_kernel *k, uint16_t *y, const float *x, int64_t n, float by)
{
    k->narrow(y, x, n, by);
}

static const gemm_kernel *find(bool bf16, const char *name)
{
    for (int i = 0; i < N_KERNEL; i++)
        if (kernels[i]->bf16 == bf16 && (!name || strcmp(name, kernels[i]->name) == 0) && usable_here(kernels[i]))
            return kernels[i];
    return NULL;
}

const gemm_kernel *gemm_pick(bool bf16, const char *name)
{
    if (!name) name = getenv("LS_GEMM");
    return find(bf16, name && *name ? name : NULL);
}

const gemm_kernel *gemm_best(bool bf16)
{
    return find(bf16, NULL);
}

/* What one packed block may hold, and how many blocks of K there is room for. A single thread takes less. */
typedef struct limits {
    int64_t mc, nc, turn;
} limits;

static limits block_limits(const gemm_kernel *k, int n_thread)
{
    int64_t mc = n_thread > 1 ? 2048 : 256, nc = n_thread > 1 ? 3072 : k->elem_nbytes > 4 ? 512 : 1536;
    return (limits){gemm_round_up(mc, k->mr), gemm_round_up(nc, k->nr), LS_MAX(k->turn, 1)};
}

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Bytes of packed A. */
static size_t a_nbytes(const gemm_kernel *k, limits l)
{
    return k->packs_a ? 0 : align64(gemm_packed_nbytes(k, l.turn * l.mc, k->kc));
}

size_t gemm_scratch(const gemm_kernel *k, int n_thread)
{
    if (k->run) return 64;
    if (n_thread < 1) n_thread = 1;
    limits l = block_limits(k, n_thread);
    return align64(gemm_packed_nbytes(k, l.turn * l.nc, k->kc)) + a_nbytes(k, l) + (size_t)n_thread * k->tmp_nbytes;
}

/* One product in flight. Work items of a phase are taken from count[phase & 1]; the counter of the next phase is cleared
 * while nobody can be using it: after the barrier that ended the phase before. */
typedef struct team {
    const gemm_kernel *k;
    const gemm_args *a;
    limits l;
    int n_thread;
    char *pb, *pa, *tmp;
    _Alignas(64) atomic_int_fast64_t count[2];
} team;

/* One thread's place in the sequence of phases. */
typedef struct member {
    team *t;
    int id;
    unsigned phase;
} member;

static int64_t take(member *me)
{
    return atomic_fetch_add_explicit(&me->t->count[me->phase & 1], 1, memory_order_relaxed);
}

static void phase_open(member *me)
{
    if (me->id == 0) atomic_store_explicit(&me->t->count[(me->phase + 1) & 1], 0, memory_order_relaxed);
}

static void phase_close(member *me)
{
    if (me->t->n_thread > 1) {
#pragma omp barrier
    }
    me->phase++;
}

/* How C (m,n) is cut into blocks: few blocks share more, many balance better. */
typedef struct cut {
    int64_t mt, nt, n_m, n_n;
} cut;

static cut cut_blocks(const gemm_kernel *k, int64_t m, int64_t n, int n_thread)
{
    const double narrow = k->cut_n ? k->cut_n : 8;
    cut best = {0};
    double best_cost = 0;
    if (k->packs_a && m <= k->mr) { /* few rows: each thread packs them once, and reads its columns of B once */
        const int64_t nt = gemm_round_up(gemm_ceil_div(n, n_thread), k->nr);
        return (cut){k->mr, nt, 1, gemm_ceil_div(n, nt)};
    }
    for (int dm = 1; dm <= 8; dm *= 2)
        for (int dn = 1; dn <= 8; dn *= 2) {
            cut c = {gemm_round_up(k->mt / dm, k->mr), gemm_round_up(k->nt / dn, k->nr), 0, 0};
            if (n_thread == 1 && dm * dn > 1) continue;
            c.n_m = gemm_ceil_div(m, c.mt);
            c.n_n = gemm_ceil_div(n, c.nt);
            /* even blocks: 2048 rows in blocks of at most 130 are 16 of 128 */
            c.mt = gemm_round_up(gemm_ceil_div(m, c.n_m), k->mr);
            c.nt = gemm_round_up(gemm_ceil_div(n, c.n_n), k->nr);
            double rounds =
                (double)gemm_ceil_div(c.n_m * c.n_n, n_thread) + 0.25; /* a late thread costs part of a block */
            double cost = rounds * (double)(c.mt * c.nt) * (1.0 + 8.0 / (double)c.mt + narrow / (double)c.nt);
            if (best_cost == 0 || cost < best_cost) {
                best = c;
                best_cost = cost;
            }
        }
    return best;
}

typedef struct span {
    int64_t at, n;
} span;

/* Steps of K of one turn: n of them in blocks of kb. Packed block q of A is q * a_block bytes after the first. */
typedef struct k_turn {
    int64_t at, n, kb, n_block;
    size_t a_block, b_block;
} k_turn;

static span turn_block(const k_turn *p, int64_t q)
{
    return (span){p->at + q * p->kb, LS_MIN(p->kb, p->n - q * p->kb)};
}

/* The packing phase: items are groups of panels of each block of K, first those of B (when it is new), then those of A. */
static void pack_phase(member *me, span j, span i, const k_turn *turn, bool new_b)
{
    team *t = me->t;
    const gemm_kernel *k = t->k;
    const gemm_args *a = t->a;
    const int64_t group = k->pack_group ? k->pack_group : 4, group_b = group * k->nr, group_a = group * k->mr;
    const int64_t items_b = new_b ? gemm_ceil_div(j.n, group_b) : 0,
                  items = items_b + (k->packs_a ? 0 : gemm_ceil_div(i.n, group_a));
    LS_ASSERT(items > 0); /* a kernel that packs A itself has one block of rows, for which B is new */
    for (int64_t n = take(me); n < items * turn->n_block; n = take(me)) {
        int64_t q = n / items, it = n % items;
        span p = turn_block(turn, q);
        if (it < items_b) {
            size_t panel = gemm_packed_nbytes(k, k->nr, p.n);
            int64_t at = it * group_b, col = j.at + at;
            const float *src = a->tb ? a->B + col * a->ldb + p.at : a->B + p.at * a->ldb + col;
            k->pack_b(t->pb + (size_t)q * turn->b_block + (size_t)(it * group) * panel, panel, src, a->ldb, a->tb,
                      LS_MIN(j.n - at, group_b), p.n);
        } else {
            size_t panel = gemm_packed_nbytes(k, k->mr, p.n);
            int64_t at = (it - items_b) * group_a, row = i.at + at;
            const int64_t first = a->ta ? p.at * a->lda + row : row * a->lda + p.at, w = LS_MIN(i.n - at, group_a);
            char *to = t->pa + (size_t)q * turn->a_block + (size_t)((it - items_b) * group) * panel;
            if (a->A16) k->pack_a16(to, panel, a->A16 + first, a->lda, !a->ta, w, p.n);
            else k->pack_a(to, panel, a->A + first, a->lda, !a->ta, w, p.n);
        }
    }
}

/* The part of C of one phase, and how it is cut. */
typedef struct area {
    span i, j;
    const k_turn *turn;
    cut c;
} area;

/* A block of C that a thread has taken, and its block of K. */
typedef struct place {
    int64_t row, col, q;
} place;

static bool take_place(member *me, const area *r, place *to)
{
    for (int64_t it = take(me); it < r->c.n_m * r->c.n_n; it = take(me)) {
        *to = (place){it % r->c.n_m * r->c.mt, it / r->c.n_m * r->c.nt, 0};
        if (to->row < r->i.n && to->col < r->j.n) return true; /* rounding blocks up can leave the last one empty */
    }
    return false;
}

static bool next_place(member *me, const area *r, place *at)
{
    return ++at->q < r->turn->n_block || take_place(me, r, at);
}

static gemm_rows rows_at(const gemm_args *a, int64_t row, int64_t w, span p)
{
    const int64_t first = a->ta ? p.at * a->lda + row : row * a->lda + p.at;
    const void *at = a->A16 ? (const void *)(a->A16 + first) : (const void *)(a->A + first);
    return (gemm_rows){.at = at, .ld = a->lda, .w = w, .kb = p.n, .k_contig = !a->ta, .half = a->A16 != NULL};
}

static gemm_block block_at(const member *me, const area *r, place at)
{
    const team *t = me->t;
    const gemm_kernel *k = t->k;
    const gemm_args *a = t->a;
    const span p = turn_block(r->turn, at.q);
    const size_t panel_b = gemm_packed_nbytes(k, k->nr, p.n), panel_a = gemm_packed_nbytes(k, k->mr, p.n);
    const int64_t m = LS_MIN(r->c.mt, r->i.n - at.row);
    const size_t wide = a->B_panels ? (size_t)packed_panel_nbytes(LS_PACK_BF16, a->K) : 0; /* 16 columns */
    return (gemm_block){
        .pa = k->packs_a ? NULL : t->pa + (size_t)at.q * r->turn->a_block + (size_t)(at.row / k->mr) * panel_a,
        .pb = a->B_panels ? (const char *)a->B_panels + (size_t)(at.col / PACKED_PANEL) * wide +
                                (size_t)(p.at / 2 * PACKED_PANEL) * sizeof(uint32_t)
                          : t->pb + (size_t)at.q * r->turn->b_block + (size_t)(at.col / k->nr) * panel_b,
        .a_panel = panel_a,
        .b_panel = a->B_panels ? (size_t)(k->nr / PACKED_PANEL) * wide : panel_b,
        .b_half = wide,
        .m = m,
        .n = LS_MIN(r->c.nt, r->j.n - at.col),
        .kb = p.n,
        .c = a->C + (r->i.at + at.row) * a->ldc + r->j.at + at.col,
        .ldc = a->ldc,
        .bias = p.at + p.n == a->K && a->bias ? a->bias + r->j.at + at.col : NULL,
        .add = a->acc || p.at > 0,
        .tmp = (float *)(void *)(t->tmp + (size_t)me->id * k->tmp_nbytes),
        .rows = k->packs_a ? rows_at(a, r->i.at + at.row, m, p) : (gemm_rows){0},
    };
}

/* The last panel of b alone, after the others have been multiplied. */
static gemm_block last_panel(const team *t, gemm_block b, gemm_ahead *ahead, int64_t row, span p)
{
    const int64_t before = (gemm_ceil_div(b.m, t->k->mr) - 1) * t->k->mr;
    b.ahead = ahead;
    if (!before) return b;
    gemm_block rest = b;
    rest.c += before * b.ldc;
    rest.m -= before;
    rest.rows = rows_at(t->a, row + before, rest.m, p);
    b.m = b.rows.w = before;
    b.next = rest.rows;
    t->k->block(&b);
    return rest;
}

/* A kernel that packs A itself gets the rows that come next, which are taken from the counter as late as possible: with the last panel. */
static void compute_phase(member *me, span j, span i, const k_turn *turn)
{
    const team *t = me->t;
    const area r = {i, j, turn, cut_blocks(t->k, i.n, j.n, t->n_thread)};
    gemm_ahead ahead = {0};
    place at;
    for (bool more = take_place(me, &r, &at); more;) {
        gemm_block b = block_at(me, &r, at);
        if (t->k->packs_a) {
            b = last_panel(t, b, &ahead, i.at + at.row, turn_block(turn, at.q));
            more = next_place(me, &r, &at);
            if (more) b.next = block_at(me, &r, at).rows;
            t->k->block(&b);
        } else {
            t->k->block(&b);
            more = next_place(me, &r, &at);
        }
    }
}

/* Splits n into the fewest equal parts of at most `most` (a multiple of unit). */
static int64_t even_part(int64_t n, int64_t most, int64_t unit)
{
    return gemm_round_up(gemm_ceil_div(n, gemm_ceil_div(n, most)), unit);
}

static void work(team *t, int id)
{
    const gemm_kernel *k = t->k;
    const gemm_args *a = t->a;
    member me = {.t = t, .id = id};
    int64_t nc = even_part(a->N, t->l.nc, k->nr), mc = k->packs_a ? a->M : even_part(a->M, t->l.mc, k->mr);
    int64_t kb = even_part(a->K, k->kc, k->k_round); /* from K alone: it is part of the sum's order */
    int64_t fit = t->l.turn * t->l.nc / gemm_round_up(nc, k->nr);
    if (!k->packs_a) fit = LS_MIN(fit, t->l.turn * t->l.mc / gemm_round_up(mc, k->mr));
    int64_t step = kb * (fit > 1 ? fit : 1);
    if (a->B_panels) { /* nothing is packed by all threads: one phase */
        nc = a->N;
        step = a->K;
    }
    if (k->enter) k->enter();
    for (int64_t jc = 0; jc < a->N; jc += nc)
        for (int64_t pc = 0; pc < a->K; pc += step)
            for (int64_t ic = 0; ic < a->M; ic += mc) {
                span j = {jc, LS_MIN(nc, a->N - jc)}, i = {ic, LS_MIN(mc, a->M - ic)};
                k_turn p = {.at = pc, .n = LS_MIN(step, a->K - pc), .kb = kb};
                p.n_block = gemm_ceil_div(p.n, kb);
                p.a_block = gemm_packed_nbytes(k, gemm_round_up(mc, k->mr), kb);
                p.b_block = gemm_packed_nbytes(k, gemm_round_up(nc, k->nr), kb);
                if (!a->B_panels) {
                    phase_open(&me);
                    pack_phase(&me, j, i, &p, ic == 0);
                    phase_close(&me);
                }
                phase_open(&me);
                compute_phase(&me, j, i, &p);
                phase_close(&me);
            }
    if (k->leave) k->leave();
}

double gemm_spin(const gemm_kernel *k, int n_thread, double seconds)
{
    if (!k->spin) return 0;
    double flop = 0;
    const double begin = ls_now();
#pragma omp parallel num_threads(n_thread) reduction(+ : flop)
    while (ls_now() < begin + seconds) flop += k->spin(1000);
    return flop;
}

static void no_k(const gemm_args *a) /* an empty sum is 0 */
{
    for (int64_t r = 0; r < a->M; r++)
        for (int64_t s = 0; s < a->N; s++) {
            float v = a->acc ? a->C[r * a->ldc + s] : 0.0f;
            a->C[r * a->ldc + s] = a->bias ? v + a->bias[s] : v;
        }
}

void gemm_run(const gemm_kernel *k, const gemm_args *a, int n_thread, void *scratch)
{
    if (a->M <= 0 || a->N <= 0) return;
    if (a->K <= 0) {
        no_k(a);
        return;
    }
    /* below this much work waking threads costs more than it saves; the bits are the same either way */
    const bool small = (double)a->M * (double)a->N * (double)a->K < 5e5;
    if (n_thread < 1 || small) n_thread = 1;
    if (k->run) {
        k->run(a, n_thread);
        return;
    }
    team t = {.k = k, .a = a, .n_thread = n_thread, .l = block_limits(k, n_thread)};
    t.pb = scratch;
    t.pa = t.pb + align64(gemm_packed_nbytes(k, t.l.turn * t.l.nc, k->kc));
    t.tmp = t.pa + a_nbytes(k, t.l);
    if (n_thread == 1) {
        work(&t, 0);
        return;
    }
#pragma omp parallel num_threads(n_thread)
    work(&t, omp_get_thread_num());
}
