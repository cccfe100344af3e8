/* nccl_comm.c - requests over NCCL: which way each goes, and queueing those that go between GPUs.
 *
 *   host memory; sums in the tree of anything but F32        boot (staged)
 *   sums in deterministic mode                               nccl_tree.c
 *   everything else                                          NCCL's own
 *
 * Which way follows from the request alone, so it is the same on every worker. */
#include "comm/nccl_impl.h"
#include "comm/start.h"

#include "core/clock.h"
#include "core/mem.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

/* A kernel of NCCL occupies one multiprocessor per block until all ranks of its group run theirs, so the blocks of all groups that may be in
 * flight must fit on the GPU at the same time, of all ranks that share it. Otherwise the kernels of some ranks wait for multiprocessors that the
 * kernels of the others keep: a deadlock. NCCL's own choice is up to 64 blocks per group, for a GPU that only one rank uses. */
#define PAIR_BLOCKS      8 /* of a group of two, at most */
#define GROUPS_IN_FLIGHT 4 /* of one rank: its data, tensor and world groups, and pairs */

/* Seconds to wait for peers at the end, for all communicators together; then groups are aborted, which does not wait for other ranks. */
#define CLOSE_LIMIT 10.0

/* ---- giving up ---- */

/* A peer on this host that could not join the group, or -1. */
static int who_failed(const nccl_comm *m)
{
    for (int p = 0; p < m->self->size; p++)
        if (m->notes[p] && p != m->self->rank && atomic_load(&m->notes[p]->failed)) return m->label[p];
    return -1;
}

static bool give_up(void *ctx)
{
    nccl_try *t = ctx;
    nccl_comm *m = t->c->impl;
    const double limit = t->most > 0 ? t->most : atomic_load(&t->c->limit->seconds), waited = ls_now() - t->begin;
    if (atomic_load(&m->w->stopped)) return true; /* the message is the world's */
    if (comm_aborted(m->self->inner, t->words, sizeof t->words)) return true;
    const int failed = who_failed(m);
    if (failed >= 0) {
        t->of_peer = true;
        snprintf(t->words, sizeof t->words, "rank %d failed in %s", failed, ls_short_path(t->r->site));
        return true;
    }
    if (limit <= 0 || waited < limit) return false;
    snprintf(t->words, sizeof t->words, "rank %d: the other ranks did not reach %s at %s within %.1f s", m->w->rank,
             ls_coll_word(t->r->kind), ls_short_path(t->r->site), waited);
    return true;
}

ls_nccl_poll nccl_poll(nccl_try *t)
{
    return (ls_nccl_poll){give_up, t};
}

ls_status nccl_status(nccl_try *t, void *group, int code)
{
    nccl_comm *m = t->c->impl;
    char why[400];
    if (!code) return LS_OK;
    if (code == LS_NCCL_GAVE_UP) return ls_fail(LS_E_COMM, "%s", t->words[0] ? t->words : "the run was aborted");
    m->w->t->words(group, code, why, sizeof why);
    return ls_fail(LS_E_COMM, "rank %d, %s #%llu at %s: %s", m->w->rank, ls_coll_word(t->r->kind),
                   (unsigned long long)t->r->seq, ls_short_path(t->r->site), why);
}

/* ---- groups ---- */

static ls_status boot_run(nccl_comm *m, comm_req *r) /* over boot, by this thread */
{
    return m->self->inner->ops->run(m->self->inner, r);
}

/* The group for a request of this kind, met at its first use: its first rank makes the id, which a broadcast or a message over boot takes to the
 * others. With the lane's lock held. */
static ls_status meet_group(nccl_try *t, ls_coll kind, int peer, void **g)
{
    nccl_comm *m = t->c->impl;
    nccl_world *w = m->w;
    const bool pair = comm_lane_of(kind) != LANE_COLL;
    const int rank = pair ? kind == LS_COLL_RECV : t->c->rank; /* of two, the sender is the first */
    void **group = &m->group[comm_lane_of(kind)][pair ? peer : 0], *made = NULL;
    if (!*group) {
        ls_nccl_id id = {0};
        const ls_view v = {&id, sizeof id, LS_U8};
        comm_req tell = {.kind = pair ? kind : LS_COLL_BROADCAST, .peer = pair ? peer : 0, .site = t->r->site};
        if (kind != LS_COLL_RECV) tell.in = v;
        if (kind != LS_COLL_SEND) tell.out = v;
        if (rank == 0) LS_TRY(nccl_status(t, NULL, w->t->id(&id)));
        LS_TRY(boot_run(m, &tell));
        const int size = pair ? 2 : t->c->size;
        const int blocks = pair && (!w->blocks || w->blocks > PAIR_BLOCKS) ? PAIR_BLOCKS : w->blocks;
        LS_TRY(nccl_status(t, NULL, w->t->join(&made, w->device, &id, rank, size, blocks, nccl_poll(t))));
        *group = made;
    }
    *g = *group;
    return LS_OK;
}

/* ---- requests ---- */

static int apart_gather(nccl_comm *m, const comm_req *r, void *g, void *stream)
{
    const ls_nccl *n = m->w->t;
    const ls_comm *c = m->self;
    const size_t nbytes = (size_t)r->in.n * ls_dtype_nbytes(r->in.dt),
                 stride = (size_t)r->stride * ls_dtype_nbytes(r->in.dt);
    int code = 0;
    for (int p = 0; p < c->size && !code; p++) {
        if (p == c->rank) continue;
        code = n->send(g, r->in.data, nbytes, p, stream);
        if (!code) code = n->recv(g, (char *)r->out.data + (size_t)p * stride, nbytes, p, stream);
    }
    return code;
}

static int native(nccl_comm *m, const comm_req *r, void *g, void *stream)
{
    const ls_nccl *n = m->w->t;
    const size_t e = ls_dtype_nbytes(r->kind == LS_COLL_RECV ? r->out.dt : r->in.dt);
    const bool beside = r->stride == (r->in.n < r->out.n ? r->in.n : r->out.n);
    int code = 0;
    switch (r->kind) {
    case LS_COLL_ALL_REDUCE: return n->all_reduce(g, r->out.data, (size_t)r->in.n, r->in.dt, stream);
    case LS_COLL_REDUCE: return n->reduce(g, r->out.data, r->in.data, (size_t)r->in.n, r->in.dt, r->peer, stream);
    case LS_COLL_REDUCE_SCATTER:
        if (beside) return n->reduce_scatter(g, r->out.data, r->in.data, (size_t)r->out.n, r->in.dt, stream);
        for (int p = 0; p < m->self->size && !code; p++)
            code = n->reduce(g, r->out.data, (const char *)r->in.data + (size_t)(p * r->stride) * e, (size_t)r->out.n,
                             r->in.dt, p, stream);
        return code;
    case LS_COLL_ALL_GATHER:
        if (!beside) return apart_gather(m, r, g, stream);
        return n->all_gather(g, r->out.data, r->in.data, (size_t)r->in.n * e, stream);
    case LS_COLL_BROADCAST: return n->broadcast(g, r->out.data, (size_t)r->in.n * e, r->peer, stream);
    case LS_COLL_SEND: return n->send(g, r->in.data, (size_t)r->in.n * e, 1, stream);
    default: return n->recv(g, r->out.data, (size_t)r->out.n * e, 0, stream);
    }
}

/* Its own part of a gather that is apart, or of a world of one. */
static ls_status own_part(nccl_comm *m, const comm_req *r, int lane)
{
    const ls_device *d = m->w->dev;
    const char *from;
    char *to;
    const size_t nbytes = comm_own_part(m->self, r, &to, &from);
    return nbytes ? d->copy(d->ctx, lane, to, from, nbytes, 0, NULL) : LS_OK;
}

static ls_status queue_request(nccl_try *t, comm_req *r, int lane)
{
    nccl_comm *m = t->c->impl;
    const ls_device *d = m->w->dev;
    void *g = NULL, *stream = d->lane_stream(d->ctx, lane);
    if (t->c->size == 1) return own_part(m, r, lane);
    LS_TRY(meet_group(t, r->kind, r->peer, &g));
    if (m->w->deterministic && comm_sums(r->kind)) return nccl_tree(t, r, g);
    if (r->kind == LS_COLL_ALL_GATHER && r->stride != r->in.n) LS_TRY(own_part(m, r, lane));
    int code = m->w->t->begin(g);
    if (!code) {
        code = native(m, r, g, stream);
        const int end = m->w->t->end(g, nccl_poll(t));
        if (!code) code = end;
    }
    return nccl_status(t, g, code);
}

/* Until the device has passed m, or the run has been given up. No lock is held. There is no limit: what the device waits for has one,
 * and a stage of a pipeline may have little to do for long. */
static ls_status passed(nccl_try *t, ls_mark m)
{
    const ls_device *d = ((nccl_comm *)t->c->impl)->w->dev;
    t->most = (double)INFINITY;
    for (int turn = 0; !d->test(d->ctx, m); turn++) {
        if (turn < 200) {
            sched_yield();
            continue;
        }
        if (give_up(t)) return nccl_status(t, NULL, LS_NCCL_GAVE_UP);
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    t->most = 0;
    t->begin = ls_now(); /* the peer's time begins when this side is ready */
    return LS_OK;
}

ls_status nccl_pace(nccl_try *t, const comm_req *r, ls_mark m)
{
    nccl_comm *n = t->c->impl;
    const ls_device *d = n->w->dev;
    const int lane = comm_lane_of(r->kind);
    ls_mark *oldest = &n->recent[lane][n->n_recent[lane]++ % NCCL_AHEAD];
    const ls_mark before = *oldest;
    const double limit = atomic_load(&t->c->limit->seconds);
    double begun = 0;
    *oldest = m;
    t->most = (double)INFINITY;
    for (int turn = 0; before && !d->test(d->ctx, before); turn++) {
        if (turn < 200) {
            sched_yield();
            continue;
        }
        if (give_up(t)) return nccl_status(t, NULL, LS_NCCL_GAVE_UP);
        if (begun == 0 && d->test(d->ctx, r->from)) begun = ls_now();
        if (begun > 0 && limit > 0 && ls_now() - begun > limit) { /* the watch does not know this request yet */
            const nccl_under_way u = {.kind = r->kind, .peer = r->peer, .seq = r->seq, .site = r->site};
            nccl_hang(n, &u, ls_now() - begun, t->words, sizeof t->words);
            return ls_fail(LS_E_COMM, "%s", t->words);
        }
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    t->most = 0;
    return LS_OK;
}

/* A message or its buffer is ready: both sides know it of each other. */
static ls_status meet_peer(nccl_try *t, const comm_req *r)
{
    uint64_t seq = r->seq;
    const ls_view v = {&seq, sizeof seq, LS_U8};
    comm_req tell = {.kind = r->kind, .peer = r->peer, .site = r->site};
    if (r->kind == LS_COLL_SEND) tell.in = v;
    else tell.out = v;
    LS_TRY(passed(t, r->ready));
    return boot_run(t->c->impl, &tell);
}

static ls_status between_marks(nccl_try *t, comm_req *r)
{
    nccl_comm *m = t->c->impl;
    const ls_device *d = m->w->dev;
    int *lane = &m->lane[comm_lane_of(r->kind)];
    if (!*lane) LS_TRY(d->lane_open(d->ctx, lane));
    nccl_note_request(m, r);
    LS_TRY(comm_lane_mark(d, *lane, r->ready, &r->from));
    LS_TRY(queue_request(t, r, *lane));
    LS_TRY(comm_lane_mark(d, *lane, 0, &r->after));
    r->moved = t->c->size > 1 ? comm_formula_bytes(t->c, r) : 0;
    nccl_under(m, r, comm_lane_of(r->kind));
    return nccl_pace(t, r, r->after);
}

static bool between_gpus(const nccl_comm *m, const comm_req *r)
{
    return r->device && !(m->w->deterministic && comm_sums(r->kind) && r->in.dt != LS_F32 && m->self->size > 1);
}

/* Until what a failed request left in its lanes has ended. */
static void quiet(const nccl_comm *m, int k)
{
    const ls_device *d = m->w->dev;
    ls_mark end = 0;
    if (k == LANE_COLL && m->adds && comm_lane_mark(d, m->adds, 0, &end) == LS_OK) comm_device_quiet(d, end);
    if (m->lane[k] && comm_lane_mark(d, m->lane[k], 0, &end) == LS_OK) comm_device_quiet(d, end);
}

static ls_status run(ls_comm *c, comm_req *r)
{
    nccl_comm *m = c->impl;
    nccl_world *w = m->w;
    nccl_try t = {.c = c, .r = r, .begin = ls_now()};
    if (!between_gpus(m, r)) return boot_run(m, r);
    ls_status st = comm_lane_of(r->kind) == LANE_COLL || c->size == 1 ? LS_OK : meet_peer(&t, r);
    pthread_mutex_lock(&m->lock[comm_lane_of(r->kind)]);
    if (st == LS_OK) st = atomic_load(&w->stopped) ? ls_fail(w->status, "%s", w->words) : between_marks(&t, r);
    pthread_mutex_unlock(&m->lock[comm_lane_of(r->kind)]);
    if (st == LS_OK) return LS_OK;
    char words[2048];
    if (st == LS_E_COMM) snprintf(words, sizeof words, "%s", ls_err_words());
    else
        snprintf(words, sizeof words, "rank %d, %s at %s: %.1500s", w->rank, ls_coll_word(r->kind), r->site,
                 ls_err_words());
    nccl_stop(w, st, words, st == LS_E_COMM);
    quiet(m, comm_lane_of(r->kind));
    return ls_fail(w->status, "%s", w->words); /* of the first failure */
}

static ls_status reserve(ls_comm *c)
{
    nccl_comm *m = c->impl;
    pthread_mutex_lock(&m->lock[LANE_COLL]);
    const ls_status st = c->device_nbytes ? nccl_tree_reserve(m) : LS_OK;
    pthread_mutex_unlock(&m->lock[LANE_COLL]);
    return st;
}

static ls_status check(ls_comm *c)
{
    const nccl_world *w = ((nccl_comm *)c->impl)->w;
    return atomic_load(&w->stopped) ? ls_fail(w->status, "%s", w->words) : LS_OK;
}

/* ---- making and ending ---- */

static ls_status over(ls_comm *boot, nccl_world *w, ls_comm **out);

static void abort_all(ls_comm *c, const char *words)
{
    nccl_stop(((nccl_comm *)c->impl)->w, LS_E_COMM, words, false);
}

static void leave(nccl_world *w)
{
    if (atomic_fetch_sub(&w->users, 1) > 1) return;
    nccl_watch_stop(w);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    ls_free(w);
}

/* Closing a group waits for its other ranks, so all ranks close theirs in one order: the group of everyone, then the groups of two by
 * (sender, receiver). After a failure of this rank the others may be anywhere: groups are aborted, which waits for nobody. */
static void close_groups(nccl_comm *m)
{
    const int me = m->self->rank;
    const ls_device *d = m->w->dev;
    const comm_req r = {.kind = LS_COLL_BARRIER, .site = "the end"};
    if (m->self->failed) nccl_abort_groups(m); /* first: it ends the kernels that are waited for next */
    for (int k = 0; k < N_LANE; k++)           /* while the watch still looks */
        if (m->self->lane[k].newest) (void)d->wait(d->ctx, m->self->lane[k].newest);
    if (m->w->closing_since == 0) m->w->closing_since = ls_now();
    nccl_try t = {.c = m->self, .r = &r, .begin = m->w->closing_since, .most = CLOSE_LIMIT};
    nccl_watch_leave(m);
    void **all = m->group[LANE_COLL], **to = m->group[LANE_SEND], **from = m->group[LANE_RECV];
    if (all && all[0]) m->w->t->close(all[0], nccl_poll(&t));
    for (int sender = 0; to && from && sender < m->self->size; sender++)
        for (int receiver = 0; receiver < m->self->size; receiver++) {
            void *pair = sender == me ? to[receiver] : receiver == me ? from[sender] : NULL;
            if (pair) m->w->t->close(pair, nccl_poll(&t));
        }
}

static void destroy(ls_comm *c)
{
    nccl_comm *m = c->impl;
    nccl_world *w = m->w;
    const ls_device *d = w->dev;
    close_groups(m);
    if (m->scratch) d->release(d->ctx, m->scratch);
    for (int k = 0; k < N_LANE; k++) {
        if (m->lane[k]) d->lane_close(d->ctx, m->lane[k]);
        ls_free(m->group[k]);
        pthread_mutex_destroy(&m->lock[k]);
    }
    if (m->adds) d->lane_close(d->ctx, m->adds);
    ls_comm_destroy(&c->inner);
    ls_free(m->notes);
    ls_free(m->label);
    leave(w);
}

static ls_status over_part(ls_comm *c, ls_comm *part, ls_comm **out)
{
    return over(part, ((nccl_comm *)c->impl)->w, out);
}

static const comm_ops nccl_ops = {.name = "nccl",
                                  .run = run,
                                  .reserve = reserve,
                                  .check = check,
                                  .over = over_part,
                                  .abort = abort_all,
                                  .inner_row = "boot",
                                  .device_row = {"device collectives", "device send", "device receive"},
                                  .destroy = destroy};

/* Takes boot when it succeeds. Collective over it. */
static ls_status over(ls_comm *boot, nccl_world *w, ls_comm **out)
{
    ls_comm *c = NULL;
    LS_TRY(comm_create(&nccl_ops, boot->rank, boot->size, sizeof(nccl_comm), &c));
    nccl_comm *m = c->impl;
    const size_t n = (size_t)boot->size;
    atomic_fetch_add(&w->users, 1);
    bool ok = true;
    for (int k = 0; k < N_LANE; k++) {
        pthread_mutex_init(&m->lock[k], NULL);
        ok = (m->group[k] = ls_alloc(n * sizeof(void *))) && ok;
    }
    m->w = w;
    m->self = c;
    c->library = w->version[0] ? w->version : NULL;
    c->device_nbytes = w->deterministic ? ls_comm_nccl_nbytes(c->size) : 0;
    m->notes = ls_alloc(n * sizeof *m->notes);
    m->label = ls_alloc(n * sizeof *m->label);
    m->note = ls_comm_alloc(boot, sizeof *m->note);
    ls_status st = ok && m->notes && m->label && m->note ? LS_OK : ls_nomem(n * 4 * sizeof(void *), "a communicator");
    comm_over(c, boot, NULL);
    if (st == LS_OK) st = comm_device_open(c, w->dev);
    st = ls_comm_agree(boot, st, LS_SITE);
    if (st == LS_OK) st = nccl_share_notes(m);
    if (st == LS_OK) nccl_watch_enter(m);
    if (st != LS_OK) {
        c->inner = NULL; /* still the caller's */
        ls_comm_destroy(&c);
        return st;
    }
    *out = c;
    return LS_OK;
}

/* The first meeting: whatever is wrong with NCCL here is wrong now. A rank that cannot join notifies those on its host, which wait for it in NCCL;
 * on other hosts they wait as long as a start may take. The message is that of a rank that failed by itself. */
static ls_status meet(ls_comm *c)
{
    nccl_comm *m = c->impl;
    const comm_req r = {.kind = LS_COLL_BARRIER, .site = "the start of NCCL"};
    const double limit = atomic_load(&c->limit->seconds);
    nccl_try t = {.c = c, .r = &r, .begin = ls_now(), .most = limit > LS_START_LIMIT ? LS_START_LIMIT : limit};
    void *g = NULL;
    pthread_mutex_lock(&m->lock[LANE_COLL]);
    ls_status st = c->size > 1 ? meet_group(&t, r.kind, 0, &g) : LS_OK;
    pthread_mutex_unlock(&m->lock[LANE_COLL]);
    if (st != LS_OK && !t.of_peer) atomic_store(&m->note->failed, true);
    if (st != LS_OK && t.of_peer) ls_err_set_peers();
    return ls_comm_agree(c->inner, st, LS_SITE);
}

/* Blocks of a group's kernels where `sharing` ranks use each GPU; 0: NCCL's choice. */
static int blocks_of(const ls_device_info *info, int sharing)
{
    const int blocks = info->multiprocessors / (sharing * GROUPS_IN_FLIGHT);
    return sharing == 1 ? 0 : blocks > 0 ? blocks : 1;
}

ls_status nccl_over(ls_comm *boot, const ls_device *dev, const ls_nccl *plugin, int sharing, bool deterministic,
                    ls_comm **out)
{
    ls_device_info info = {0};
    nccl_world *w = ls_alloc(sizeof *w);
    ls_comm *c = NULL;
    if (!w) return ls_nomem(sizeof *w, "a communicator");
    *w = (nccl_world){.t = plugin, .dev = dev, .rank = boot->rank, .deterministic = deterministic};
    char words[64] = "";
    plugin->head.version(words, sizeof words);
    if (sscanf(words, "NCCL %31[0-9.]", w->version) != 1) w->version[0] = '\0';
    atomic_init(&w->users, 1);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    ls_status st = dev->info(dev->ctx, &info);
    w->device = info.index;
    w->blocks = blocks_of(&info, sharing);
    if (st == LS_OK) st = nccl_watch_start(w);
    st = ls_comm_agree(boot, st, LS_SITE);
    if (st == LS_OK) st = over(boot, w, &c);
    if (st == LS_OK) {
        st = meet(c);
        if (st != LS_OK) {
            nccl_abort_groups(c->impl);
            nccl_watch_leave(c->impl);
            c->inner = NULL; /* still the caller's */
            ls_comm_destroy(&c);
        }
    }
    leave(w);
    if (st == LS_OK) *out = c;
    return st;
}
