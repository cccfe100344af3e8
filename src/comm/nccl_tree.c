/* nccl_tree.c - sums between GPUs in the one tree (comm/tree.c), of sends, receives and additions. F32.
 *
 * A chunk is W parts, part p being rank p's to finish. Where W is a power of two, recursive halving with the nearest partner first:
 *
 *   round k    partner = rank ^ 2^k: it gets the parts that agree with its rank in bits 0 … k, this rank keeps its own and adds
 *              what came: (lower rank's) + (higher rank's)
 *
 * so round k adds neighbouring sub-trees of 2^k ranks, and most bytes go to the nearest GPU. Any other W: every part goes to its rank at once,
 * which adds what came in the tree. Then all_reduce gathers the chunk, reduce sends its parts to the root.
 *
 *   messages   x(0,0) x(1,0) x(2,0)+x(0,1) x(3,0)+x(1,1) …          round k of chunk c at step c + 2k, gathered at c + 2 rounds
 *   sums              +(0,0) +(1,0)        +(2,0)+(0,1)  …          beside the next step's messages
 *
 * Invariants
 *   1. the messages of a step wait for the sums of two steps before, its sums for its messages;
 *   2. the scratch of a chunk (W parts) is used again 2 rounds + 1 chunks later: its last message was queued one step before;
 *   3. the input is not written, save by all_reduce, whose parts hold the partial sums. */
#include "comm/nccl_impl.h"
#include "comm/start.h"

/* A chunk takes one kernel for its messages in every round, so it must be worth a launch: at 100 GB/s, 8 MiB take 80 us. */
#define CHUNK     ((int64_t)16 << 20) /* bytes at most, of all parts */
#define CHUNK_MIN ((int64_t)8 << 20)
#define CHUNKS    2 /* at least so many where they are not smaller */

typedef struct tree {
    nccl_try *t;
    comm_req *r;
    nccl_comm *m;
    void *g;
    int W, me, rounds;
    bool halves;
    int64_t len, n_chunk; /* elements of a part's chunk, at most */
    int code;             /* first failure of a call that queues messages */
} tree;

typedef struct piece {
    int64_t at, n; /* elements, in the input */
} piece;

static bool power_of_two(int n)
{
    return (n & (n - 1)) == 0;
}

static int rounds_of(int W)
{
    int k = 0;
    while (power_of_two(W) && 1 << k < W) k++;
    return k ? k : 1;
}

size_t ls_comm_nccl_nbytes(int size)
{
    return size < 2 ? 0 : (size_t)((2 * rounds_of(size) + 1) * CHUNK);
}

static piece piece_of(const tree *t, int64_t c, int p)
{
    const comm_req *r = t->r;
    if (r->kind == LS_COLL_REDUCE_SCATTER) {
        const int64_t at = c * t->len, left = r->out.n - at;
        return (piece){p * r->stride + at, left < t->len ? left : t->len};
    }
    const int64_t first = c * t->len * t->W, left = r->in.n - first, n = left < t->len * t->W ? left : t->len * t->W;
    const int64_t at = n * p / t->W;
    return (piece){first + at, n * (p + 1) / t->W - at};
}

/* Scratch of a chunk: what came in the first half (by part, or by sender), partial sums in the other. */
static float *scratch(const tree *t, int64_t c, int slot)
{
    const int64_t room = CHUNK / 4;
    return (float *)(void *)t->m->scratch + c % (2 * t->rounds + 1) * room + slot * t->len;
}

static float *input(const tree *t, int64_t c, int p)
{
    return (float *)t->r->in.data + piece_of(t, c, p).at;
}

static float *came(const tree *t, int64_t c, int p)
{
    return scratch(t, c, t->halves ? p >> 1 : p);
}

/* Where the sum of part p is after round k. */
static float *sum_at(const tree *t, int64_t c, int p, int k)
{
    const comm_req *r = t->r;
    const bool last = k == t->rounds - 1;
    if (k < 0 || r->kind == LS_COLL_ALL_REDUCE) return input(t, c, p);
    if (last && r->kind == LS_COLL_REDUCE_SCATTER) return (float *)r->out.data + c * t->len;
    if (last && r->kind == LS_COLL_REDUCE && t->me == r->peer) return input(t, c, p);
    return scratch(t, c, t->halves ? t->W / 2 + (p >> 1) : t->me);
}

static void send(tree *t, const float *p, int64_t n, int to)
{
    nccl_world *w = t->m->w;
    if (t->code || !n) return;
    t->code = w->t->send(t->g, p, (size_t)n * 4, to, w->dev->lane_stream(w->dev->ctx, t->m->lane[LANE_COLL]));
}

static void receive(tree *t, float *p, int64_t n, int from)
{
    nccl_world *w = t->m->w;
    if (t->code || !n) return;
    t->code = w->t->recv(t->g, p, (size_t)n * 4, from, w->dev->lane_stream(w->dev->ctx, t->m->lane[LANE_COLL]));
}

static bool keeps(int rank, int p, int k) /* part p after round k */
{
    return ((rank ^ p) & ((2 << k) - 1)) == 0;
}

static void exchange(tree *t, int64_t c, int k)
{
    const int partner = t->me ^ 1 << k;
    for (int p = 0; p < t->W; p++) {
        const int64_t n = piece_of(t, c, p).n;
        if (!t->halves && p != t->me) {
            send(t, input(t, c, p), n, p);
            receive(t, came(t, c, p), piece_of(t, c, t->me).n, p);
        }
        if (t->halves && keeps(partner, p, k)) send(t, sum_at(t, c, p, k - 1), n, partner);
        if (t->halves && keeps(t->me, p, k)) receive(t, came(t, c, p), n, partner);
    }
}

static ls_status add(tree *t, float *y, const float *a, const float *b, int64_t n)
{
    const ls_device *d = t->m->w->dev;
    return n ? d->add(d->ctx, t->m->adds, y, a, b, n, LS_F32) : LS_OK;
}

/* The sub-tree of ranks first … first + n - 1 over this rank's part; `to`: where its root goes, NULL: into what came. */
static ls_status add_ranks(tree *t, int64_t c, int first, int n, float *to, const float **sum)
{
    const float *a = NULL, *b = NULL;
    if (n == 1) {
        *sum = first == t->me ? input(t, c, first) : came(t, c, first);
        return LS_OK;
    }
    int left = 1;
    while (left * 2 < n) left *= 2;
    LS_TRY(add_ranks(t, c, first, left, NULL, &a));
    LS_TRY(add_ranks(t, c, first + left, n - left, NULL, &b));
    float *y = to ? to : (float *)(uintptr_t)(a == input(t, c, t->me) ? b : a);
    *sum = y;
    return add(t, y, a, b, piece_of(t, c, t->me).n);
}

static ls_status sums(tree *t, int64_t c, int k)
{
    const float *sum;
    if (!t->halves) return add_ranks(t, c, 0, t->W, sum_at(t, c, t->me, k), &sum);
    const bool lower = t->me < (t->me ^ 1 << k);
    for (int p = 0; p < t->W; p++) {
        if (!keeps(t->me, p, k)) continue;
        const float *mine = sum_at(t, c, p, k - 1), *theirs = came(t, c, p);
        LS_TRY(add(t, sum_at(t, c, p, k), lower ? mine : theirs, lower ? theirs : mine, piece_of(t, c, p).n));
    }
    return LS_OK;
}

static void gather(tree *t, int64_t c)
{
    const comm_req *r = t->r;
    nccl_world *w = t->m->w;
    const piece mine = piece_of(t, c, t->me);
    const float *sum = sum_at(t, c, t->me, t->rounds - 1);
    if (r->kind == LS_COLL_REDUCE && t->me != r->peer) send(t, sum, mine.n, r->peer);
    if (r->kind == LS_COLL_ALL_REDUCE && piece_of(t, c, 0).n == t->len) { /* the smallest: all are equal */
        if (!t->code)
            t->code = w->t->all_gather(t->g, input(t, c, 0), sum, (size_t)t->len * 4,
                                       w->dev->lane_stream(w->dev->ctx, t->m->lane[LANE_COLL]));
        return;
    }
    for (int p = 0; p < t->W; p++) {
        if (p == t->me) continue;
        if (r->kind == LS_COLL_ALL_REDUCE) send(t, sum, mine.n, p);
        if (r->kind == LS_COLL_ALL_REDUCE || (r->kind == LS_COLL_REDUCE && t->me == r->peer))
            receive(t, input(t, c, p), piece_of(t, c, p).n, p);
    }
}

/* Queues what step s sends and receives; the result of the plugin. */
static int messages(tree *t, int64_t s)
{
    nccl_world *w = t->m->w;
    const int64_t done = s - 2 * t->rounds;
    const bool gathers = done >= 0 && done < t->n_chunk && t->r->kind != LS_COLL_REDUCE_SCATTER;
    bool moves = false;
    for (int k = 0; k < t->rounds; k++) moves = moves || (s - 2 * k >= 0 && s - 2 * k < t->n_chunk);
    for (int phase = 0; phase < 2 && !t->code; phase++) {
        if (!(phase ? moves : gathers)) continue;
        t->code = w->t->begin(t->g);
        if (t->code) return t->code;
        if (!phase) gather(t, done);
        for (int k = 0; k < t->rounds && phase; k++)
            if (s - 2 * k >= 0 && s - 2 * k < t->n_chunk) exchange(t, s - 2 * k, k);
        const int code = w->t->end(t->g, nccl_poll(t->t));
        if (!t->code) t->code = code;
    }
    return t->code;
}

static ls_status steps(tree *t)
{
    nccl_comm *m = t->m;
    const ls_device *d = m->w->dev;
    ls_mark added[2] = {0}, moved = 0;
    for (int64_t s = 0; s < t->n_chunk + 2 * t->rounds; s++) {
        LS_TRY(comm_lane_mark(d, m->lane[LANE_COLL], added[s % 2], NULL));
        LS_TRY(nccl_status(t->t, t->g, messages(t, s)));
        LS_TRY(comm_lane_mark(d, m->lane[LANE_COLL], 0, &moved));
        LS_TRY(comm_lane_mark(d, m->adds, moved, NULL));
        for (int k = 0; k < t->rounds; k++)
            if (s - 2 * k >= 0 && s - 2 * k < t->n_chunk) LS_TRY(sums(t, s - 2 * k, k));
        LS_TRY(comm_lane_mark(d, m->adds, 0, &added[s % 2]));
        LS_TRY(nccl_pace(t->t, t->r, moved));
    }
    return LS_OK;
}

ls_status nccl_tree_reserve(nccl_comm *m)
{
    const ls_device *d = m->w->dev;
    return m->scratch ? LS_OK : d->alloc(d->ctx, ls_comm_nccl_nbytes(m->self->size), (void **)&m->scratch);
}

ls_status nccl_tree(nccl_try *t, comm_req *r, void *g)
{
    nccl_comm *m = t->c->impl;
    const ls_device *d = m->w->dev;
    const int W = t->c->size;
    tree x = {.t = t, .r = r, .m = m, .g = g, .W = W, .me = t->c->rank, .halves = power_of_two(W)};
    if (!m->adds) LS_TRY(d->lane_open(d->ctx, &m->adds));
    LS_TRY(nccl_tree_reserve(m));
    x.rounds = rounds_of(W);
    int64_t want = r->in.n * 4 / CHUNKS;
    if (want < CHUNK_MIN) want = CHUNK_MIN;
    if (want > CHUNK) want = CHUNK;
    x.len = want / 4 / W / 64 * 64;
    if (!x.len) x.len = 1;
    const int64_t n = r->kind == LS_COLL_REDUCE_SCATTER ? r->out.n : (r->in.n + W - 1) / W;
    x.n_chunk = (n + x.len - 1) / x.len;
    return steps(&x);
}
