/* zero3.c - parameters, gradients and moments sharded: a unit is gathered before its use and dropped after it.
 *
 *   P parameters, E those of embed, B those of all blocks, G = P + E (tied; else G = P), N workers, M micro-batches each; fp32
 *   bytes held   16P/N (and 4E/N, the tied embedding's second gradient), the units that are gathered (two neighbouring uses, and
 *                stage3_prefetch_bucket_size elements ahead), gradients in flight as in zero2
 *   sent / step  M (all_gather(P + B, and E once more when tied) + reduce_scatter(G))  elements
 * (A backward pass in two halves gathers a block twice: all_gather(P + 2B).)
 * In fp8 (model/fp8.h) training passes gather blocks as codes, one byte per element, and not for the second half of a backward pass; their biases
 * and norms are gathered once per step, in bf16.
 * The head needs embed's tokens when tied; embed's backward needs no parameters; head's stay from its forward to its backward.
 * Invariants
 *   1. a gathered unit is never written to; step_done drops all of them, as they are old then;
 *   2. what is needed now is posted before what is needed next;
 *   3. a unit is gathered in the form that the pass needs. */
#include "parallel/parallel_impl.h"

typedef struct use {
    int u; /* -1: none known */
    ls_pass pass;
} use;

/* The current pass computes with codes of u. */
static bool coded(const ls_strategy *s, int u)
{
    return (s->micro >= 0 || s->rehearsed >= 0) && ls_fp8_coded(s->model, u);
}

/* The units whose parameters a use needs. In fp8, gradients of weights are products of activations that were kept. */
static int needs(const ls_strategy *s, use x, int unit[2])
{
    const bool head = x.u == s->model->n_unit - 1;
    int n = 0;
    if (x.u < 0 || !ls_strategy_here(s, x.u) || (x.u == 0 && x.pass != LS_FWD)) return 0;
    if (x.pass == LS_BWD_W && coded(s, x.u)) return 0;
    unit[n++] = x.u;
    if (head && x.pass == LS_FWD && s->model->cfg.tied) unit[n++] = 0;
    return n;
}

static bool needed(const ls_strategy *s, use x, int u)
{
    int unit[2];
    const int n = needs(s, x, unit);
    for (int i = 0; i < n; i++)
        if (unit[i] == u) return true;
    return false;
}

static use after(const ls_strategy *s, use x)
{
    const int head = s->model->n_unit - 1;
    if (x.pass == LS_FWD && x.u < head) return (use){x.u + 1, LS_FWD};
    if (x.pass == LS_FWD) return s->micro < 0 ? (use){-1, LS_FWD} : (use){head, LS_BWD};
    return (use){x.u - 1, x.pass};
}

static int64_t elements(const ls_strategy *s, use x)
{
    int unit[2];
    int64_t sum = 0;
    const int n = needs(s, x, unit);
    for (int i = 0; i < n; i++) sum += s->model->unit[unit[i]].n_pad;
    return sum;
}

int64_t parallel_fetch_capacity(const ls_strategy *s)
{
    const int U = s->model->n_unit;
    int64_t most = 0, total = 0;
    for (int u = 0; u < U; u++) {
        const use x = {u, LS_FWD};
        const int64_t two = elements(s, x) + (u + 1 < U ? elements(s, (use){u + 1, LS_FWD}) : 0);
        if (two > most) most = two;
        total += elements(s, x);
    }
    /* whole blocks, so that units at either end of the window are aligned: kernels for arrays that are not have another order of sums */
    const int64_t asked = (s->opts.prefetch_bucket + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK * LS_NORM_BLOCK;
    const int64_t ahead = asked < total ? asked : total;
    return most + ahead < total ? most + ahead : total;
}

static ls_status drop(ls_strategy *s, int u)
{
    if (s->unit[u].held < 0) return LS_OK;
    LS_TRY(parallel_arrived(s, u));
    ls_window_give(&s->params, s->unit[u].held);
    s->unit[u].held = -1;
    return LS_OK;
}

/* Elements of the window that u takes: whole blocks. */
static int64_t room_of(const ls_strategy *s, int u)
{
    const int64_t n = s->model->unit[u].n_pad;
    const int64_t e = (int64_t)ls_dtype_nbytes(s->model->compute->ops->dtype) * LS_NORM_BLOCK;
    return coded(s, u) ? (n + e - 1) / e * LS_NORM_BLOCK : n;
}

/* Once per step: the codes of this worker's parts; biases and norms of all parts. */
static ls_status encode(ls_strategy *s)
{
    const ls_fp8_parts *p = &s->model->fp8->parts;
    ls_ticket there = 0;
    if (p->fresh) return LS_OK;
    for (int u = 0; u < s->model->n_unit; u++)
        if (ls_fp8_coded(s->model, u)) LS_TRY(ls_fp8_encode(s->model, u, s->unit[u].part));
    ls_comm_label(s->comm, 0);
    LS_TRY(ls_all_gather(s->comm, parallel_param(s, p->packed, 0, p->n_packed * p->cut.n),
                         parallel_param(s, p->packed, p->n_packed * p->cut.mine, p->n_packed), LS_SITE, &there));
    LS_TRY(ls_wait(s->comm, there));
    return ls_fp8_unpack(s->model);
}

static ls_status gather(ls_strategy *s, int u)
{
    ls_unit *unit = &s->model->unit[u];
    const int64_t part = unit->n_pad / ls_comm_size(s->comm);
    ls_view all = parallel_param(s, unit->param, 0, unit->n_pad), mine = parallel_param(s, s->unit[u].part, 0, part);
    unit->vector = NULL;
    if (coded(s, u)) {
        LS_TRY(encode(s));
        all = (ls_view){unit->param, unit->n_pad, LS_U8};
        mine = (ls_view){s->model->fp8->parts.code[u], part, LS_U8};
        unit->vector = s->model->fp8->parts.vector[u];
    }
    ls_comm_label(s->comm, u + 1);
    return ls_all_gather(s->comm, all, mine, LS_SITE, &s->unit[u].gather);
}

/* Posts the gather of u unless it is here or in flight; false: there is no room. */
static ls_status fetch(ls_strategy *s, int u, bool *room)
{
    ls_unit *unit = &s->model->unit[u];
    *room = true;
    if (s->unit[u].held >= 0 && coded(s, u) != (unit->vector != NULL)) LS_TRY(drop(s, u));
    if (s->unit[u].held >= 0) return LS_OK;
    s->unit[u].held = ls_window_take(&s->params, room_of(s, u), u == s->model->n_unit - 1); /* the head's stay longer */
    *room = s->unit[u].held >= 0;
    if (!*room) return LS_OK;
    LS_ASSERT(s->unit[u].held % LS_NORM_BLOCK == 0);
    unit->param = ls_at(s->model->compute, s->params_at, s->unit[u].held);
    return gather(s, u);
}

static ls_status fetch_now(ls_strategy *s, use now, int u)
{
    bool room;
    LS_TRY(fetch(s, u, &room));
    if (room) return LS_OK;
    for (int k = 0; k < s->model->n_unit; k++) /* what was fetched ahead is in the way */
        if (!needed(s, now, k)) LS_TRY(drop(s, k));
    LS_TRY(fetch(s, u, &room));
    LS_ASSERT(room);
    return LS_OK;
}

static ls_status fetch_ahead(ls_strategy *s, use now)
{
    int64_t n = 0;
    use x = now;
    while (n < s->opts.prefetch_bucket) {
        x = after(s, x);
        if (x.u < 0 || !ls_strategy_here(s, x.u)) return LS_OK;
        int unit[2];
        const int k = needs(s, x, unit);
        for (int i = 0; i < k; i++) {
            bool room;
            LS_TRY(fetch(s, unit[i], &room));
            if (!room) return LS_OK;
        }
        n += elements(s, x);
    }
    return LS_OK;
}

static ls_status acquire(ls_strategy *s, int u, ls_pass pass)
{
    const use now = {u, pass};
    int unit[2];
    const int n = needs(s, now, unit);
    for (int i = 0; i < n; i++) LS_TRY(fetch_now(s, now, unit[i]));
    LS_TRY(fetch_ahead(s, now));
    for (int i = 0; i < n; i++) LS_TRY(parallel_arrived(s, unit[i]));
    return LS_OK;
}

static ls_status release(ls_strategy *s, int u, ls_pass pass)
{
    const use now = {u, pass}, next = after(s, now);
    int unit[2];
    const int n = needs(s, now, unit);
    for (int i = 0; i < n; i++)
        if (!needed(s, next, unit[i])) LS_TRY(drop(s, unit[i]));
    return LS_OK;
}

static ls_status forget(ls_strategy *s)
{
    for (int u = 0; u < s->model->n_unit; u++) LS_TRY(drop(s, u));
    return LS_OK;
}

const ls_strategy_ops ls_strategy_zero3 = {.name = "zero3",
                                           .parts = LS_SHARD_OPT | LS_SHARD_GRAD | LS_SHARD_PARAM,
                                           .acquire = acquire,
                                           .release = release,
                                           .grad_begin = parallel_flight_begin,
                                           .grad_ready = parallel_flight_ready,
                                           .step_due = parallel_flight_land_all,
                                           .step_done = forget};
