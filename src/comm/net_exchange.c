/* net_exchange.c - large requests between teams. Every kind is the same three steps on the parts of the buffer, a part an owner:
 *
 *                     contributions from   combined by its owner   result to
 *   all_reduce        everyone             sum in the tree         everyone
 *   reduce_scatter    everyone             sum                     -
 *   all_gather        the owner            copy                    everyone
 *   reduce            everyone             sum                     the root's team      (two teams: the root's owns everything)
 *   broadcast         the root's team      copy                    everyone else        (the root's owns nothing)
 *
 * Rank (h, l) does this for its own slice l with its counterparts (j, l): its contribution is the team's sub-tree, summed in shared
 * memory, and what it receives it writes into the buffers of its team. Parts are cut into chunks, and three of them are in flight:
 *
 *   give(k+2)      sum the team's chunk, send it to its owner
 *   combine(k+1)   wait for the others' contributions, sum them in the tree, send the result
 *   deliver(k)     wait for results, copy them to the team
 *
 * Invariants
 *   1. L is a power of two and teams are consecutive, so the tree over ranks is the tree over teams of trees over their ranks;
 *   2. a result is received into memory only after the sends from it have ended (combine waits for give);
 *   3. rank l alone reads and writes slice l of the team's buffers;
 *   4. a sum of 16-bit reals is rounded once: contributions that are sums already travel as float. */
#include "comm/net_impl.h"

#include "core/mem.h"

#include <string.h>

#define DEPTH 3

typedef struct exchange {
    ls_comm *c;
    comm_req *r;
    net_comm *m;
    int root_team, root_l;
    int64_t e, chunk; /* bytes of an element, elements of a chunk */
    ls_dtype given;   /* type of contributions: float for 16-bit reals of which a team has made a sum */
    int64_t e_given;
    char *dst[MAX_RANK]; /* where results go, this rank's first      */
    int n_dst;
    int n_op[DEPTH][2]; /* give and combine: operations in flight   */
} exchange;

typedef struct part {
    int64_t src, dst, n; /* elements */
} part;

static bool contributes(const exchange *x, int team, int owner)
{
    if (x->r->kind == LS_COLL_ALL_GATHER) return team == owner;
    return x->r->kind != LS_COLL_BROADCAST || team == x->root_team;
}

static bool receives(const exchange *x, int team, int owner)
{
    if (team == owner) return false;
    switch (x->r->kind) {
    case LS_COLL_REDUCE_SCATTER: return false;
    case LS_COLL_REDUCE: return team == x->root_team;
    case LS_COLL_BROADCAST: return team != x->root_team;
    default: return true;
    }
}

/* What team o owns of this rank's slice. */
static part part_of(const exchange *x, int o)
{
    const net_comm *m = x->m;
    const comm_req *r = x->r;
    if (r->kind == LS_COLL_REDUCE_SCATTER) return (part){((int64_t)o * m->L + m->l) * r->stride, 0, r->out.n};
    if (r->kind == LS_COLL_ALL_GATHER) return (part){0, ((int64_t)o * m->L + m->l) * r->stride, r->in.n};
    int64_t n_owner = m->H, k = o;
    if (r->kind == LS_COLL_REDUCE && m->H == 2) {
        if (o != x->root_team) return (part){0};
        n_owner = 1, k = 0;
    } else if (r->kind == LS_COLL_BROADCAST) {
        if (o == x->root_team) return (part){0};
        n_owner--;
        k -= o > x->root_team;
    }
    const int64_t first = r->in.n * m->l / m->L, len = r->in.n * (m->l + 1) / m->L - first;
    const int64_t at = first + len * k / n_owner;
    return (part){at, at, first + len * (k + 1) / n_owner - at};
}

/* Chunk k of it. */
static part chunk_of(const exchange *x, int o, int64_t k)
{
    part p = part_of(x, o);
    const int64_t at = k * x->chunk;
    if (at >= p.n) return (part){0};
    return (part){p.src + at, p.dst + at, p.n - at < x->chunk ? p.n - at : x->chunk};
}

/* Scratch: DEPTH x H chunks to give, as many to receive, DEPTH results, one sum. */
static char *scratch(const exchange *x, int which, int64_t k, int team)
{
    const net_comm *m = x->m;
    const int64_t at =
        which < 2 ? (which * DEPTH + k % DEPTH) * m->H + team : 2 * DEPTH * m->H + (which == 2 ? k % DEPTH : DEPTH);
    return m->scratch + at * m->chunk_nbytes;
}
enum { TO_GIVE, TAKEN, RESULT, MINE };

/* This team's contribution to chunk p: in place where nothing has to be added, else the team's sum, in `sum`. */
static char *contribution(const exchange *x, part p, char *sum)
{
    net_comm *m = x->m;
    ls_comm *team = m->team;
    if (x->r->kind == LS_COLL_ALL_GATHER) return (char *)x->r->in.data + p.src * x->e;
    if (x->r->kind == LS_COLL_BROADCAST) return (char *)(uintptr_t)local_in(team, x->r, x->root_l) + p.src * x->e;
    if (m->L == 1) return (char *)x->r->in.data + p.src * x->e;
    const void *src[MAX_RANK];
    for (int q = 0; q < m->L; q++) src[q] = local_in(team, x->r, q) + p.src * x->e;
    comm_tree_sum(sum, x->given, src, m->L, p.n, x->r->in.dt);
    return sum;
}

static ls_net_op *new_op(exchange *x, int64_t k, int stage)
{
    const int turn = (int)(k % DEPTH);
    return &x->m->op[(turn * 2 + stage) * 2 * x->m->H + x->n_op[turn][stage]++];
}

static ls_status wait_stage(exchange *x, int64_t k, int stage)
{
    const int turn = (int)(k % DEPTH), n = x->n_op[turn][stage];
    for (int i = 0; i < n; i++) x->m->list[i] = &x->m->op[(turn * 2 + stage) * 2 * x->m->H + i];
    x->n_op[turn][stage] = 0;
    return net_wait(x->c, x->r, x->m->list, n);
}

static void send(exchange *x, int64_t k, int stage, const char *p, int64_t n, int team, int tag)
{
    const net_comm *m = x->m;
    const int64_t nbytes = n * (stage ? x->e : x->e_given);
    net_post(x->m, new_op(x, k, stage), true, (void *)(uintptr_t)p, nbytes, team * m->L + m->l, tag);
    x->r->wire += nbytes;
}

static void receive(exchange *x, int64_t k, int stage, char *p, int64_t n, int team, int tag)
{
    const net_comm *m = x->m;
    net_post(x->m, new_op(x, k, stage), false, p, n * (stage ? x->e : x->e_given), team * m->L + m->l, tag);
}

static char *result_at(const exchange *x, part p, int64_t k)
{
    return x->n_dst ? x->dst[0] + p.dst * x->e : scratch(x, RESULT, k, 0);
}

static void give(exchange *x, int64_t k)
{
    const net_comm *m = x->m;
    const part own = chunk_of(x, m->h, k);
    for (int j = 0; j < m->H && own.n; j++)
        if (j != m->h && contributes(x, j, m->h))
            receive(x, k, 0, comm_sums(x->r->kind) ? scratch(x, TAKEN, k, j) : result_at(x, own, k), own.n, j,
                    TAG_GIVE);
    for (int i = 1; i < m->H; i++) { /* each begins with its neighbour, so that not all send to the same one */
        const int o = (m->h + i) % m->H;
        const part p = chunk_of(x, o, k);
        if (p.n && contributes(x, m->h, o))
            send(x, k, 0, contribution(x, p, scratch(x, TO_GIVE, k, o)), p.n, o, TAG_GIVE);
    }
}

static void to_team(const exchange *x, part p)
{
    for (int q = 1; q < x->n_dst; q++) memcpy(x->dst[q] + p.dst * x->e, x->dst[0] + p.dst * x->e, (size_t)(p.n * x->e));
}

static ls_status combine(exchange *x, int64_t k)
{
    const net_comm *m = x->m;
    const part own = chunk_of(x, m->h, k);
    LS_TRY(wait_stage(x, k, 0));
    for (int i = 1; i < m->H; i++) {
        const int o = (m->h + i) % m->H;
        const part p = chunk_of(x, o, k);
        if (p.n && receives(x, m->h, o)) receive(x, k, 1, x->dst[0] + p.dst * x->e, p.n, o, TAG_RESULT);
    }
    if (!own.n) return LS_OK;
    char *to = result_at(x, own, k);
    if (contributes(x, m->h, m->h)) {
        char *mine = contribution(x, own, scratch(x, MINE, 0, 0));
        if (comm_sums(x->r->kind)) {
            for (int j = 0; j < m->H; j++) m->src[j] = j == m->h ? mine : scratch(x, TAKEN, k, j);
            comm_tree_sum(to, x->r->in.dt, m->src, m->H, own.n, x->given);
        } else if (to != mine) memcpy(to, mine, (size_t)(own.n * x->e));
    }
    for (int i = 1; i < m->H; i++) {
        const int j = (m->h + i) % m->H;
        if (receives(x, j, m->h)) send(x, k, 1, to, own.n, j, TAG_RESULT);
    }
    to_team(x, own);
    return LS_OK;
}

static ls_status deliver(exchange *x, int64_t k)
{
    const net_comm *m = x->m;
    LS_TRY(wait_stage(x, k, 1));
    for (int o = 0; o < m->H; o++) {
        const part p = chunk_of(x, o, k);
        if (p.n && receives(x, m->h, o)) to_team(x, p);
    }
    return LS_OK;
}

static void find_results(exchange *x)
{
    net_comm *m = x->m;
    const ls_coll kind = x->r->kind;
    if (kind == LS_COLL_REDUCE) {
        if (m->h == x->root_team) x->dst[x->n_dst++] = local_out(m->team, x->r, x->root_l);
        return;
    }
    x->dst[x->n_dst++] = x->r->out.data;
    if (kind == LS_COLL_REDUCE_SCATTER) return;
    for (int i = 1; i < m->L; i++) x->dst[x->n_dst++] = local_out(m->team, x->r, (m->l + i) % m->L);
}

static ls_status make_scratch(net_comm *m)
{
    if (m->scratch) return LS_OK;
    m->chunk_nbytes = (int64_t)48 << 20;
    m->chunk_nbytes /= 2 * DEPTH * m->H;
    if (m->chunk_nbytes > 512 << 10) m->chunk_nbytes = 512 << 10;
    m->chunk_nbytes = m->chunk_nbytes / 16384 * 16384;
    if (m->chunk_nbytes < 16384) m->chunk_nbytes = 16384;
    const size_t nbytes = (size_t)((2 * DEPTH * m->H + DEPTH + 1) * m->chunk_nbytes);
    m->scratch = ls_alloc(nbytes);
    return m->scratch ? LS_OK : ls_nomem(nbytes, "messages between hosts");
}

ls_status net_exchange(ls_comm *c, comm_req *r)
{
    net_comm *m = c->impl;
    exchange x = {.c = c, .r = r, .m = m, .e = (int64_t)ls_dtype_nbytes(r->in.dt)};
    if (r->kind == LS_COLL_REDUCE || r->kind == LS_COLL_BROADCAST) {
        x.root_team = r->peer / m->L;
        x.root_l = r->peer % m->L;
    }
    x.given = comm_sums(r->kind) && m->L > 1 ? comm_sum_type(r->in.dt) : r->in.dt;
    x.e_given = (int64_t)ls_dtype_nbytes(x.given);
    LS_TRY(make_scratch(m));
    x.chunk = m->chunk_nbytes / x.e_given;
    find_results(&x);
    if (r->kind == LS_COLL_BROADCAST && m->h == x.root_team && m->l != x.root_l)
        memcpy(r->out.data, local_in(m->team, r, x.root_l), (size_t)(r->in.n * x.e));
    int64_t longest = 0;
    for (int o = 0; o < m->H; o++) {
        const part p = part_of(&x, o);
        if (p.n > longest) longest = p.n;
    }
    const int64_t n = (longest + x.chunk - 1) / x.chunk;
    for (int64_t k = 0; k < n + DEPTH - 1; k++) {
        if (k < n) give(&x, k);
        if (k >= 1 && k - 1 < n) LS_TRY(combine(&x, k - 1));
        if (k >= 2 && k - 2 < n) LS_TRY(deliver(&x, k - 2));
    }
    return LS_OK;
}
