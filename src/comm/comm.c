/* comm.c - what is the same for every backend: requests are checked, queued in order, carried out by a thread for each lane, measured.
 *
 *   caller      post ─► ring ─► wait ─────────────► (exposed time)
 *   lane               run(1) run(2) run(3) …         (busy time)
 *
 * A request that its caller waits for is carried out by the caller where the backend allows it (`here`), when the lane has done those before it.
 * A failed request fails its lane for good: nothing after it could match the peers any more. */
#include "comm/local_impl.h"

#include "core/clock.h"
#include "core/cores.h"
#include "core/deadline.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/stop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *ls_coll_word(ls_coll kind)
{
    static const char *const word[] = {
#define X(k, text) text,
        LS_COLL_LIST(X)
#undef X
    };
    return (unsigned)kind < LS_N_COLL ? word[kind] : "?";
}

#define RANKS       (1 << 16) /* more than a communicator has */
#define USUAL_LIMIT 600.0     /* seconds, until the time of a step is known */

static ls_ticket ticket_of(int lane, uint64_t seq)
{
    return seq << 2 | (uint64_t)lane;
}

/* Room to count requests of this kind and label. */
static ls_status reserve_count(ls_comm *c, int kind, int label)
{
    return ls_reserve(&c->stat[kind], &c->n_stat[kind], (size_t)label + 1, sizeof **c->stat,
                      "the counters of a communicator");
}

/* With peers: all that requests need, so that none can fail on one worker for want of memory while the others wait for it. */
static ls_status reserve_requests(ls_comm *c)
{
    for (int k = 0; k < LS_N_COLL; k++) LS_TRY(reserve_count(c, k, LS_COMM_LABELS - 1));
    for (int k = 0; k < N_LANE; k++) {
        c->lane[k].ring = ls_alloc(LANE_RING * sizeof *c->lane[k].ring);
        if (!c->lane[k].ring) return ls_nomem(LANE_RING * sizeof *c->lane[k].ring, "the requests of a communicator");
    }
    return LS_OK;
}

static void free_requests(ls_comm *c)
{
    for (int k = 0; k < N_LANE; k++) ls_free(c->lane[k].ring);
    for (int k = 0; k < LS_N_COLL; k++) ls_free(c->stat[k]);
}

ls_status comm_create(const comm_ops *ops, int rank, int size, size_t impl_nbytes, ls_comm **out)
{
    ls_comm *c = ls_alloc(sizeof *c);
    void *impl = ls_alloc(impl_nbytes);
    if (!c || !impl) {
        ls_free(c);
        ls_free(impl);
        return ls_nomem(sizeof *c + impl_nbytes, "a communicator");
    }
    const ls_status st = ops->inline_run ? LS_OK : reserve_requests(c);
    if (st != LS_OK) {
        free_requests(c);
        ls_free(c);
        ls_free(impl);
        return st;
    }
    c->ops = ops;
    c->rank = rank;
    c->size = size;
    c->impl = impl;
    c->place = (ls_comm_place){.local_rank = rank, .local_size = size, .n_host = 1};
    atomic_init(&c->own_limit.seconds, USUAL_LIMIT);
    c->limit = &c->own_limit;
    for (int k = 0; k < N_LANE; k++) c->lane[k].c = c;
    gethostname(c->hostname, sizeof c->hostname - 1);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    *out = c;
    return LS_OK;
}

int ls_comm_rank(const ls_comm *c)
{
    return c->rank;
}
int ls_comm_size(const ls_comm *c)
{
    return c->size;
}
const char *ls_comm_name(const ls_comm *c)
{
    return c->name ? c->name : c->ops->name;
}
const char *ls_comm_library(const ls_comm *c)
{
    return c->library;
}
ls_comm_place ls_comm_where(const ls_comm *c)
{
    return c->place;
}
void ls_comm_set_limit(ls_comm *c, double seconds)
{
    c->limit->fixed = true;
    atomic_store(&c->limit->seconds, seconds);
    ls_stop_expect(seconds);
}
void ls_comm_start_limit(ls_comm *c, double seconds)
{
    if (!c->limit->fixed) atomic_store(&c->limit->seconds, seconds > 0 ? seconds : USUAL_LIMIT);
}
void ls_comm_expect(ls_comm *c, double step_seconds)
{
    comm_limit *l = c->limit;
    double slowest = 0;
    if (l->fixed) return;
    l->slow[l->n_step++ % 8] = step_seconds;
    for (int i = 0; i < 8; i++) slowest = l->slow[i] > slowest ? l->slow[i] : slowest;
    atomic_store(&l->seconds, slowest * 20 > 30 ? slowest * 20 : 30);
    ls_stop_expect(slowest * 20);
}
const char *ls_comm_host(const ls_comm *c, int rank, int *local_rank)
{
    *local_rank = c->hosts ? (int)c->hosts[rank].local_rank : rank;
    return c->hosts ? c->hosts[rank].name : c->hostname;
}

void comm_kernel_id(char *out, size_t room)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    const bool known = f && fgets(out, (int)room, f);
    if (f) fclose(f);
    if (known) out[strcspn(out, "\n")] = '\0';
    else if (gethostname(out, room)) snprintf(out, room, "?");
    out[room - 1] = '\0';
}

int64_t ls_comm_machine(void)
{
    const char *set = getenv("LOCKSTEP_HOST_ID");
    char text[80] = "";
    if (set && *set) snprintf(text, sizeof text, "=%.60s", set);
    else comm_kernel_id(text, sizeof text);
    return (int64_t)ls_xxh64(text, strlen(text));
}

void *ls_comm_alloc(ls_comm *c, size_t nbytes)
{
    return c->ops->alloc ? c->ops->alloc(c, nbytes) : ls_comm_alloc(c->inner, nbytes);
}

ls_status ls_comm_common(ls_comm *c, void *mine, const char *site, void **out)
{
    int64_t at[2] = {0, 0}; /* whose arena, where in it */
    *out = mine;
    if (c->size == 1 || !c->world) return LS_OK; /* no world: the planner's, whose collectives only count */
    if (c->place.n_host > 1)
        return ls_fail(LS_E_COMM, "%s: workers of %d hosts have no memory in common", site, c->place.n_host);
    if (c->rank == 0) {
        at[0] = c->world_rank;
        at[1] = (char *)mine - local_arena(c->world, c->world_rank);
    }
    LS_TRY(ls_broadcast(c, (ls_view){at, 2, LS_I64}, 0, site, NULL));
    *out = local_arena(c->world, (int)at[0]) + at[1];
    return LS_OK;
}

void ls_comm_team(ls_comm *c, int n)
{
    c->team = n;
}

size_t ls_comm_device_nbytes(const ls_comm *c)
{
    return c->device_nbytes;
}
ls_status ls_comm_reserve(ls_comm *c)
{
    return c->ops->reserve ? c->ops->reserve(c) : LS_OK;
}

/* Carries out one request and books it; called with the lock not held. */
static ls_status run_one(ls_comm *c, comm_req *r)
{
    const int64_t traced = c->ops->inline_run ? 0 : ls_span_begin(); /* alone nothing moves */
    const double begin = ls_now();
    ls_status st = c->ops->run(c, r);
    if (st == LS_OK) ls_deadline_tick();
    const double busy = r->from ? 0 : ls_now() - (r->began > 0 ? r->began : begin);
    const ls_trace_span span = {.kind = LS_SPAN_COLL,
                                .name = ls_coll_word(r->kind),
                                .label = (uint16_t)r->label,
                                .seq = r->seq,
                                .bytes = r->moved,
                                .site = r->site};
    ls_span_end(r->from ? 0 : traced, span);
    pthread_mutex_lock(&c->lock);
    ls_comm_stat *s = comm_count(c, r->held, r->kind, r->label);
    s->calls++;
    const ls_view *whole = r->in.n > r->out.n ? &r->in : &r->out;
    s->elements += whole->n;
    const int64_t payload = whole->n * (int64_t)ls_dtype_nbytes(whole->dt);
    s->payload += payload;
    s->timed += r->from ? 0 : payload;
    s->bytes += r->moved;
    s->wire += r->wire;
    s->busy += busy;
    s->staged += r->staged;
    s->staged_seconds += r->staged_seconds;
    if (r->from && st == LS_OK)
        comm_device_note(c, (comm_time){.from = r->from,
                                        .to = r->after,
                                        .kind = r->kind,
                                        .lane = comm_lane_of(r->kind),
                                        .held = r->held,
                                        .payload = payload,
                                        .span = span});
    if (r->kind == LS_COLL_AGREE) c->last_worst = r->value;
    pthread_mutex_unlock(&c->lock);
    return st;
}

static void *lane_main(void *arg)
{
    comm_lane *l = arg;
    ls_comm *c = l->c;
    ls_cores_roam();
    ls_cores_prompt();
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (l->here || (!l->stop && l->done == l->posted)) pthread_cond_wait(&c->changed, &c->lock);
        if (l->done == l->posted) break;                 /* asked to stop, and nothing is left */
        comm_req r = l->ring[(l->done + 1) % LANE_RING]; /* its own: who waits looks at the ring's */
        ls_status st = l->failed;
        if (st == LS_OK) {
            ls_trace_enter(c->trace[l - c->lane]);
            pthread_mutex_unlock(&c->lock);
            st = run_one(c, &r);
            pthread_mutex_lock(&c->lock);
            if (st != LS_OK) {
                l->failed = st;
                snprintf(l->words, sizeof l->words, "%s", ls_err_words());
            }
        }
        l->done++;
        l->after[l->done % LANE_RING] = r.after;
        if (r.after) l->newest = r.after;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* A request that its caller waits for: no other thread has to wake up for it, and the caller's team helps. */
static ls_status run_here(ls_comm *c, comm_lane *l, comm_req *r)
{
    const int64_t traced = ls_span_begin();
    const double begin = ls_now();
    pthread_mutex_lock(&c->lock);
    while (l->done < l->posted) pthread_cond_wait(&c->changed, &c->lock);
    r->seq = ++l->posted;
    r->team = c->team;
    l->here = true;
    ls_status st = l->failed;
    ls_lane *const caller = ls_trace_enter(c->trace[l - c->lane]);
    pthread_mutex_unlock(&c->lock);
    if (st != LS_OK) st = ls_fail(st, "%s", l->words);
    else st = run_one(c, r);
    ls_trace_enter(caller);
    pthread_mutex_lock(&c->lock);
    if (st != LS_OK && l->failed == LS_OK) {
        l->failed = st;
        snprintf(l->words, sizeof l->words, "%s", ls_err_words());
    }
    l->done++;
    l->after[l->done % LANE_RING] = 0;
    l->here = false;
    const double waited = ls_now() - begin;
    comm_count(c, r->held, r->kind, r->label)->exposed += waited;
    if (!r->held) c->exposed += waited, c->exposed_host += waited;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    const ls_trace_span span = {.kind = LS_SPAN_WAIT,
                                .name = ls_coll_word(r->kind),
                                .label = (uint16_t)r->label,
                                .seq = r->seq,
                                .site = r->site};
    ls_span_end(traced, span);
    return st;
}

static ls_status start_lane(comm_lane *l)
{
    if (pthread_create(&l->thread, NULL, lane_main, l)) return ls_fail(LS_E_COMM, "cannot start a progress thread");
    l->running = true;
    return LS_OK;
}

ls_status comm_post(ls_comm *c, comm_req *r, ls_ticket *t)
{
    const int k = comm_lane_of(r->kind);
    comm_lane *l = &c->lane[k];
    r->label = c->label;
    r->held = c->held;
    r->site = ls_short_path(r->site);
    ls_log(LS_LOG_TRACE, "comm", "%s of %lld elements, %d ranks, at %s", ls_coll_word(r->kind),
           (long long)(r->in.n ? r->in.n : r->out.n), c->size, r->site);
    pthread_mutex_lock(&c->lock);
    const ls_status room = reserve_count(c, r->kind, r->label);
    pthread_mutex_unlock(&c->lock);
    LS_TRY(room);
    if (c->told) {
        r->seq = ++l->posted;
        comm_clock_post(c, l, r);
        if (t) *t = ticket_of(k, r->seq);
        else comm_clock_wait(c, l, r->seq);
        return LS_OK;
    }
    if (c->dev) LS_TRY(comm_device_post(c, r));
    if (c->ops->inline_run) {
        r->seq = ++l->posted;
        l->done = l->posted;
        if (t) *t = 0;
        return run_one(c, r);
    }
    if (!t && c->ops->here && !c->dev) return run_here(c, l, r);
    if (!l->running) LS_TRY(start_lane(l));
    pthread_mutex_lock(&c->lock);
    while (l->posted - l->done >= LS_COMM_PENDING) pthread_cond_wait(&c->changed, &c->lock);
    r->seq = ++l->posted;
    l->ring[r->seq % LANE_RING] = *r;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    const ls_ticket mine = ticket_of(k, r->seq);
    if (!t) return ls_wait(c, mine);
    *t = mine;
    return LS_OK;
}

/* Everything ls_wait does but waiting in the device's order. `quiet`: nobody's exposed time. */
static ls_status wait_done(ls_comm *c, ls_ticket t, bool quiet, comm_time *what, ls_mark *idle)
{
    comm_lane *l = &c->lane[t & 3];
    const uint64_t seq = t >> 2;
    ls_status marked = LS_OK;
    if (c->told) {
        *what = (comm_time){0};
        comm_clock_wait(c, l, seq);
        return LS_OK;
    }
    pthread_mutex_lock(&c->lock);
    const comm_req *r = &l->ring[seq % LANE_RING]; /* the ring may turn while we wait */
    const ls_trace_span span = {
        .kind = LS_SPAN_WAIT, .name = ls_coll_word(r->kind), .label = (uint16_t)r->label, .seq = seq, .site = r->site};
    *what = (comm_time){.kind = r->kind, .span = span};
    if (l->done < seq) {
        const bool device = r->device;
        const int64_t traced = quiet ? 0 : ls_span_begin();
        const double begin = ls_now();
        if (device && !quiet) { /* it may wait for room in a stream: the watch needs the lock meanwhile */
            pthread_mutex_unlock(&c->lock);
            marked = c->dev->mark(c->dev->ctx, idle);
            pthread_mutex_lock(&c->lock);
        }
        while (l->done < seq) pthread_cond_wait(&c->changed, &c->lock);
        if (!quiet && !device) {
            const double waited = ls_now() - begin;
            comm_count(c, c->held, what->kind, span.label)->exposed += waited;
            if (!c->held) c->exposed += waited, c->exposed_host += waited;
        }
        ls_span_end(traced, span);
    }
    what->to = l->done - seq < LANE_RING ? l->after[seq % LANE_RING] : l->newest;
    const ls_status st = l->failed;
    pthread_mutex_unlock(&c->lock);
    if (st != LS_OK) return ls_fail(st, "%s", l->words);
    return marked;
}

ls_status ls_wait(ls_comm *c, ls_ticket t)
{
    comm_time what;
    ls_mark idle = 0;
    if (!t) return LS_OK;
    LS_TRY(wait_done(c, t, false, &what, &idle));
    const ls_status st = what.to && c->ops->check ? c->ops->check(c) : LS_OK;
    if (st != LS_OK) {
        comm_device_quiet(c->dev, what.to); /* the caller may free its buffers now */
        return st;
    }
    return idle || what.to ? comm_device_wait(c, idle, what.to, what.kind, what.span.label) : LS_OK;
}

ls_status comm_await(ls_comm *c, ls_ticket t)
{
    comm_time what;
    ls_mark idle = 0;
    return t ? wait_done(c, t, true, &what, &idle) : LS_OK;
}

/* Waits until every collective that was posted is done. */
static ls_status drain(ls_comm *c)
{
    pthread_mutex_lock(&c->lock);
    const ls_ticket last = ticket_of(LANE_COLL, c->lane[LANE_COLL].posted);
    pthread_mutex_unlock(&c->lock);
    return comm_await(c, last >> 2 && !c->ops->inline_run ? last : 0);
}

bool ls_test(const ls_comm *c, ls_ticket t)
{
    if (!t) return true;
    if (c->told) return comm_clock_test(c, &c->lane[t & 3], t >> 2);
    ls_comm *m = (ls_comm *)(uintptr_t)c; /* the lock is not part of what c means */
    pthread_mutex_lock(&m->lock);
    const comm_lane *l = &c->lane[t & 3];
    const uint64_t seq = t >> 2;
    const bool done = l->done >= seq;
    const ls_mark after = !done ? 0 : l->done - seq < LANE_RING ? l->after[seq % LANE_RING] : l->newest;
    pthread_mutex_unlock(&m->lock);
    return done && (!after || c->dev->test(c->dev->ctx, after));
}

static ls_status check_sum_type(ls_view x)
{
    if (x.dt == LS_F32 || x.dt == LS_F64 || x.dt == LS_BF16 || x.dt == LS_F16 || x.dt == LS_I64) return LS_OK;
    return ls_fail(LS_E_UNSUPPORTED, "cannot sum elements of type %s; supported are F32, F64, BF16, F16 and I64",
                   ls_dtype_word(x.dt));
}

static ls_status check_peer(const ls_comm *c, int peer, const char *what)
{
    if (peer >= 0 && peer < c->size) return LS_OK;
    return ls_fail(LS_E_ARG, "%s %d: no such rank; ranks are 0 to %d", what, peer, c->size - 1);
}

ls_status ls_all_reduce(ls_comm *c, ls_view x, const char *site, ls_ticket *t)
{
    LS_TRY(check_sum_type(x));
    return comm_post(c, &(comm_req){.kind = LS_COLL_ALL_REDUCE, .in = x, .out = x, .site = site}, t);
}

ls_status ls_reduce_scatter_apart(ls_comm *c, ls_view out, ls_view in, int64_t stride, const char *site, ls_ticket *t)
{
    LS_TRY(check_sum_type(in));
    LS_ASSERT(in.n == out.n * c->size && in.dt == out.dt && stride >= out.n);
    return comm_post(
        c, &(comm_req){.kind = LS_COLL_REDUCE_SCATTER, .in = in, .out = out, .stride = stride, .site = site}, t);
}

ls_status ls_all_gather_apart(ls_comm *c, ls_view out, int64_t stride, ls_view in, const char *site, ls_ticket *t)
{
    LS_ASSERT(out.n == in.n * c->size && in.dt == out.dt && stride >= in.n);
    return comm_post(c, &(comm_req){.kind = LS_COLL_ALL_GATHER, .in = in, .out = out, .stride = stride, .site = site},
                     t);
}

ls_status ls_reduce_scatter(ls_comm *c, ls_view out, ls_view in, const char *site, ls_ticket *t)
{
    return ls_reduce_scatter_apart(c, out, in, out.n, site, t);
}

ls_status ls_all_gather(ls_comm *c, ls_view out, ls_view in, const char *site, ls_ticket *t)
{
    return ls_all_gather_apart(c, out, in.n, in, site, t);
}

ls_status ls_broadcast(ls_comm *c, ls_view x, int root, const char *site, ls_ticket *t)
{
    LS_TRY(check_peer(c, root, "broadcast from rank"));
    return comm_post(c, &(comm_req){.kind = LS_COLL_BROADCAST, .in = x, .out = x, .peer = root, .site = site}, t);
}

ls_status ls_reduce(ls_comm *c, ls_view x, int root, const char *site, ls_ticket *t)
{
    LS_TRY(check_sum_type(x));
    LS_TRY(check_peer(c, root, "reduce to rank"));
    return comm_post(c, &(comm_req){.kind = LS_COLL_REDUCE, .in = x, .out = x, .peer = root, .site = site}, t);
}

ls_status ls_send(ls_comm *c, ls_view x, int to, const char *site, ls_ticket *t)
{
    LS_TRY(check_peer(c, to, "send to rank"));
    return comm_post(c, &(comm_req){.kind = LS_COLL_SEND, .in = x, .peer = to, .site = site}, t);
}

ls_status ls_recv(ls_comm *c, ls_view x, int from, const char *site, ls_ticket *t)
{
    LS_TRY(check_peer(c, from, "receive from rank"));
    return comm_post(c, &(comm_req){.kind = LS_COLL_RECV, .out = x, .peer = from, .site = site}, t);
}

ls_status ls_barrier(ls_comm *c, const char *site)
{
    return comm_post(c, &(comm_req){.kind = LS_COLL_BARRIER, .site = site}, NULL);
}

ls_status ls_agree(ls_comm *c, int mine, const char *site, int *worst)
{
    LS_TRY(comm_post(c, &(comm_req){.kind = LS_COLL_AGREE, .value = mine, .site = site}, NULL));
    pthread_mutex_lock(&c->lock);
    *worst = c->last_worst;
    pthread_mutex_unlock(&c->lock);
    return LS_OK;
}

ls_status ls_comm_agree(ls_comm *c, ls_status mine, const char *site)
{
    int worst = 0;
    ls_err_kept own;
    ls_err_keep(&own);
    /* the worst status, and the lowest rank that has it; not one that has it from a peer, which keeps the right to print it */
    const int rank = own.of_peer ? RANKS - 1 : c->rank;
    const ls_status st = ls_agree(c, mine == LS_OK ? 0 : (int)mine * RANKS + RANKS - 1 - rank, site, &worst);
    const int first = RANKS - 1 - worst % RANKS;
    if (mine != LS_OK) { /* keep its own message */
        ls_err_restore(&own);
        if (st == LS_OK && first != c->rank) ls_err_set_peers();
        return mine;
    }
    LS_TRY(st);
    if (!worst) return LS_OK;
    const ls_status theirs = (ls_status)(worst / RANKS);
    (void)ls_fail(theirs, "rank %d failed: %s", first, ls_status_words(theirs));
    ls_err_set_peers();
    return theirs;
}

ls_status ls_comm_gather(ls_comm *c, const void *mine, size_t nbytes, const char *site, void *all)
{
    const int64_t n = (int64_t)(nbytes / sizeof(int64_t));
    const size_t total = (size_t)c->size * nbytes;
    void *p = ls_comm_alloc(c, total);
    LS_ASSERT(nbytes % sizeof(int64_t) == 0 && nbytes <= LS_COMM_SMALL);
    LS_TRY(ls_comm_agree(c, p ? LS_OK : ls_nomem(total, "values of all ranks"), site));
    const ls_view in = {(void *)(uintptr_t)mine, n, LS_I64};
    LS_TRY(ls_all_gather(c, (ls_view){p, n * c->size, LS_I64}, in, site, NULL));
    memcpy(all, &p, sizeof p); /* any pointer to objects has the representation of void * */
    return LS_OK;
}

ls_status comm_forward(ls_comm *c, comm_req *r)
{
    const ls_comm_stat before = ls_comm_label_stats(c, r->kind, 0);
    comm_req again = {.kind = r->kind,
                      .in = r->in,
                      .out = r->out,
                      .stride = r->stride,
                      .peer = r->peer,
                      .value = r->value,
                      .site = r->site};
    ls_ticket t = 0;
    LS_TRY(comm_post(c, &again, &t));
    LS_TRY(comm_await(c, t));
    const ls_comm_stat after = ls_comm_label_stats(c, r->kind, 0);
    r->moved += after.bytes - before.bytes;
    r->wire += after.wire - before.wire;
    if (r->kind == LS_COLL_AGREE) {
        pthread_mutex_lock(&c->lock);
        r->value = c->last_worst;
        pthread_mutex_unlock(&c->lock);
    }
    return LS_OK;
}

void comm_over(ls_comm *c, ls_comm *inner, const char *name)
{
    c->inner = inner;
    c->name = name;
    c->place = inner->place;
    c->world = inner->world;
    c->world_rank = inner->world_rank;
    c->limit = inner->limit;
    c->hosts = inner->hosts;
    memcpy(c->hostname, inner->hostname, sizeof c->hostname);
}

ls_status ls_comm_split(ls_comm *c, int color, int key, ls_comm **out)
{
    ls_comm *part = NULL;
    if (c->ops->split) return c->ops->split(c, color, key, out);
    LS_TRY(drain(c));
    LS_TRY(ls_comm_split(c->inner, color, key, &part));
    const ls_status mine = c->ops->over(c, part, out), st = ls_comm_agree(c->inner, mine, LS_SITE);
    if (mine != LS_OK) ls_comm_destroy(&part);
    else if (st != LS_OK) ls_comm_destroy(out);
    return st;
}

void ls_comm_abort(ls_comm *c, const char *words)
{
    if (c->ops->abort) c->ops->abort(c, words);
    else if (c->inner) ls_comm_abort(c->inner, words);
}

void ls_comm_failed(ls_comm *c)
{
    c->failed = true;
}

void ls_comm_quiet(ls_comm *c)
{
    if (!c || c->ops->inline_run || c->told) return;
    for (int k = 0; k < N_LANE; k++) {
        comm_lane *l = &c->lane[k];
        if (!l->running) continue;
        pthread_mutex_lock(&c->lock);
        while (l->done < l->posted) pthread_cond_wait(&c->changed, &c->lock);
        const ls_mark newest = l->newest;
        pthread_mutex_unlock(&c->lock);
        if (newest) comm_device_quiet(c->dev, newest);
    }
}

void ls_comm_destroy(ls_comm **cp)
{
    ls_comm *c = *cp;
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    for (int k = 0; k < N_LANE; k++) c->lane[k].stop = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    for (int k = 0; k < N_LANE; k++)
        if (c->lane[k].running) pthread_join(c->lane[k].thread, NULL);
    if (c->ops->destroy) c->ops->destroy(c);
    ls_free(c->impl);
    ls_free(c->lane[0].end); /* of all lanes */
    free_requests(c);
    ls_free(c->time);
    ls_free(c->stood);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    ls_free(c);
    *cp = NULL;
}

void comm_close_within(ls_comm **c, ls_status st, double seconds)
{
    const int d = ls_deadline_arm(seconds, ls_status_exit_code(st), "the work is %s, but closing the communicator",
                                  st == LS_OK ? "complete" : "over");
    ls_comm_destroy(c);
    ls_deadline_disarm(d);
}

void ls_comm_close(ls_comm **c, ls_status st)
{
    comm_close_within(c, st, LS_COMM_CLOSE_TIME);
}

static void add_stat(ls_comm_stat *sum, const ls_comm_stat *s)
{
    sum->calls += s->calls;
    sum->elements += s->elements;
    sum->payload += s->payload;
    sum->timed += s->timed;
    sum->bytes += s->bytes;
    sum->wire += s->wire;
    sum->busy += s->busy;
    sum->exposed += s->exposed;
    sum->staged += s->staged;
    sum->staged_seconds += s->staged_seconds;
}

/* Locks c, which the lock is no part of, and books what the device has done. */
static ls_comm *lock_settled(const ls_comm *c)
{
    ls_comm *m = (ls_comm *)(uintptr_t)c;
    pthread_mutex_lock(&m->lock);
    comm_device_settle(m);
    return m;
}

ls_comm_stat ls_comm_label_stats(const ls_comm *c, ls_coll kind, int label)
{
    ls_comm *m = lock_settled(c);
    ls_comm_stat s = {0};
    if ((size_t)label < c->n_stat[kind]) s = c->stat[kind][label];
    pthread_mutex_unlock(&m->lock);
    return s;
}

ls_comm_stat ls_comm_stats(const ls_comm *c, ls_coll kind)
{
    ls_comm *m = lock_settled(c);
    ls_comm_stat sum = {0};
    for (size_t k = 0; k < c->n_stat[kind]; k++) add_stat(&sum, &c->stat[kind][k]);
    pthread_mutex_unlock(&m->lock);
    return sum;
}

double ls_comm_exposed(const ls_comm *c)
{
    ls_comm *m = lock_settled(c);
    const double sum = c->exposed;
    pthread_mutex_unlock(&m->lock);
    return sum;
}

double ls_comm_exposed_host(const ls_comm *c)
{
    ls_comm *m = lock_settled(c);
    const double sum = c->exposed_host;
    pthread_mutex_unlock(&m->lock);
    return sum;
}

int64_t ls_comm_untimed(const ls_comm *c)
{
    ls_comm *m = lock_settled(c);
    const int64_t n = c->n_untimed;
    pthread_mutex_unlock(&m->lock);
    return n;
}

void ls_comm_label(ls_comm *c, int label)
{
    LS_ASSERT(label >= 0);
    c->label = label < LS_COMM_LABELS ? label : LS_COMM_LABELS - 1;
}

void ls_comm_hold_stats(ls_comm *c, bool held)
{
    pthread_mutex_lock(&c->lock);
    c->held = held;
    pthread_mutex_unlock(&c->lock);
}

void ls_comm_stats_reset(ls_comm *c)
{
    pthread_mutex_lock(&c->lock);
    comm_device_settle(c);
    for (int k = 0; k < LS_N_COLL; k++)
        if (c->stat[k]) memset(c->stat[k], 0, c->n_stat[k] * sizeof *c->stat[k]);
    c->exposed = c->exposed_host = 0;
    c->n_untimed = 0;
    pthread_mutex_unlock(&c->lock);
}

ls_status ls_comm_trace(ls_comm *c, ls_trace *t, const char *name)
{
    static const char *const word[N_LANE] = {"collectives", "send", "receive"};
    ls_lane *lane[N_LANE] = {0};
    for (int k = 0; t && k < N_LANE; k++) {
        char text[48];
        snprintf(text, sizeof text, "%s %s", name, word[k]);
        LS_TRY(ls_trace_lane(t, text, COMM_TRACE_SPANS, &lane[k]));
    }
    if (c->inner && !c->ops->inline_run) LS_TRY(comm_device_trace(c, t, name));
    pthread_mutex_lock(&c->lock);
    memcpy(c->trace, lane, sizeof lane);
    pthread_mutex_unlock(&c->lock);
    return LS_OK;
}

double ls_comm_busbw(ls_coll kind, int size, double nbytes, double seconds)
{
    const double n = size;
    double factor = 1;
    if (kind == LS_COLL_ALL_REDUCE) factor = 2 * (n - 1) / n;
    else if (kind == LS_COLL_REDUCE_SCATTER || kind == LS_COLL_ALL_GATHER) factor = (n - 1) / n;
    return seconds > 0 ? nbytes / seconds * factor : 0;
}
