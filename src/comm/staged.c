/* staged.c - collectives on device memory over any communicator of host memory, through pinned memory that peers read in place.
 *
 *   lane to the host     in(0) in(1) in(2) in(3) …
 *   inner communicator         sum(0) sum(1) sum(2) …
 *   lane to the device                out(0) out(1) …
 *
 * A request's thread waits for the mark of its post, then takes it in chunks through SLOTS slots: while one chunk is summed by the inner
 * communicator (its own thread), the next is in transit to the host and the one before in transit back. A slot holds a chunk of every
 * part, so sums happen in place there. The request is done when the last chunk is in device memory.
 *
 * Invariants
 *   1. the size of a chunk follows from the request alone: every worker posts the same inner requests in the same order;
 *   2. the thread of a kind (collectives, sends, receives) is the only one that posts on that lane of the inner communicator; a split
 *      first waits until all is done;
 *   3. copies are queued when nothing holds them back any more: communicators share two lanes of the device, and none can block another;
 *   4. staging memory is reserved with the communicator and pinned at its first use; then nothing is allocated;
 *   5. a device failure aborts the run, with this worker's rank in the message. */
#include "comm/comm_impl.h"

#include "core/clock.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SLOTS     4
#define ROOM      ((int64_t)4 << 20)   /* bytes of a slot                     */
#define ROOM_PAIR ((int64_t)1 << 20)   /* of a send's or a receive's          */
#define CHUNK_MIN ((int64_t)256 << 10) /* bytes; smaller requests are not cut */
#define CHUNKS    4                    /* at least so many of larger ones     */

enum { TO_HOST, TO_DEVICE }; /* ways of a copy */
static const char *const way_words[] = {"to the host", "to the device"};

/* What all communicators of a worker share. */
typedef struct station {
    const ls_device *dev;
    int rank;    /* in messages */
    int lane[2]; /* of the device, by way; 0: not open */
    atomic_int users;
} station;

typedef struct staged {
    station *at;
    char *memory[N_LANE];
    bool pinned[N_LANE];
} staged;

typedef struct slot {
    ls_mark copy[2][2]; /* by way: begin and end of its copies; 0: none */
    ls_ticket t;
} slot;

/* A request in flight. */
typedef struct job {
    ls_comm *c;
    staged *s;
    comm_req *r;
    int lane, parts;
    int64_t e, n, chunk; /* bytes of an element; elements of a part, of a part's chunk */
    char *memory;
    int64_t room;
    slot slot[SLOTS];
} job;

static size_t nbytes_of(int lane)
{
    return (size_t)(SLOTS * (lane == LANE_COLL ? ROOM : ROOM_PAIR));
}

/* ---- copies ---- */

/* Elements [from, from + n) of a view to or from a slot, queued; host memory is copied at once. */
static ls_status move(job *j, int way, ls_view v, int64_t from, char *here, int64_t n)
{
    const ls_device *d = j->s->at->dev;
    char *there = (char *)v.data + from * j->e, *src = way == TO_HOST ? there : here,
         *dst = way == TO_HOST ? here : there;
    const size_t nbytes = (size_t)(n * j->e);
    if (!nbytes) return LS_OK;
    if (!d->owns(d->ctx, there)) {
        memcpy(dst, src, nbytes);
        return LS_OK;
    }
    j->r->staged += (int64_t)nbytes;
    return d->copy(d->ctx, j->s->at->lane[way], dst, src, nbytes, 0, NULL);
}

static int64_t n_of(const job *j, int64_t k)
{
    const int64_t left = j->n - k * j->chunk;
    return left < j->chunk ? left : j->chunk;
}

static char *slot_of(const job *j, int64_t k, int part)
{
    return j->memory + k % SLOTS * j->room + part * j->chunk * j->e;
}

static bool offers(const job *j) /* has something that others need */
{
    const comm_req *r = j->r;
    return r->kind != LS_COLL_RECV && (r->kind != LS_COLL_BROADCAST || j->c->rank == r->peer);
}

static bool takes_back(const job *j)
{
    const comm_req *r = j->r;
    if (r->kind == LS_COLL_REDUCE) return j->c->rank == r->peer;
    return r->kind != LS_COLL_SEND && (r->kind != LS_COLL_BROADCAST || j->c->rank != r->peer);
}

static ls_status queue_in(job *j, int64_t k)
{
    const comm_req *r = j->r;
    const int64_t at = k * j->chunk, n = n_of(j, k);
    if (r->kind == LS_COLL_ALL_GATHER) return move(j, TO_HOST, r->in, at, slot_of(j, k, j->c->rank), n);
    for (int p = 0; p < j->parts; p++) LS_TRY(move(j, TO_HOST, r->in, p * r->stride + at, slot_of(j, k, p), n));
    return LS_OK;
}

static ls_status queue_out(job *j, int64_t k)
{
    const comm_req *r = j->r;
    const int64_t at = k * j->chunk, n = n_of(j, k);
    if (r->kind == LS_COLL_REDUCE_SCATTER) return move(j, TO_DEVICE, r->out, at, slot_of(j, k, j->c->rank), n);
    for (int p = 0; p < j->parts; p++) {
        const char *here = (const char *)r->out.data + p * r->stride * j->e;
        if (r->kind == LS_COLL_ALL_GATHER && p == j->c->rank && here == r->in.data) continue;
        LS_TRY(move(j, TO_DEVICE, r->out, p * r->stride + at, slot_of(j, k, p), n));
    }
    return LS_OK;
}

/* Copies between two marks of their lane. */
static ls_status between(job *j, int64_t k, int way)
{
    const station *at = j->s->at;
    ls_mark *m = j->slot[k % SLOTS].copy[way];
    LS_TRY(comm_lane_mark(at->dev, at->lane[way], 0, &m[0]));
    LS_TRY(way == TO_HOST ? queue_in(j, k) : queue_out(j, k));
    return comm_lane_mark(at->dev, at->lane[way], 0, &m[1]);
}

/* Waits until the copies between two marks have ended, and books their time. */
static ls_status arrived(job *j, int64_t k, int way)
{
    const ls_device *d = j->s->at->dev;
    ls_mark *m = j->slot[k % SLOTS].copy[way];
    double begin = 0, seconds = 0;
    if (!m[1]) return LS_OK;
    LS_TRY(d->wait(d->ctx, m[1]));
    LS_TRY(comm_between(d, m[0], m[1], &begin, &seconds));
    m[0] = m[1] = 0;
    if (isnan(seconds)) return LS_OK;
    j->r->staged_seconds += seconds;
    const ls_trace_span span = {.kind = LS_SPAN_COLL,
                                .name = way_words[way],
                                .label = (uint16_t)j->r->label,
                                .seq = j->r->seq,
                                .site = j->r->site};
    pthread_mutex_lock(&j->c->lock);
    comm_device_span(j->c, j->c->trace_device[way], begin, seconds, span);
    pthread_mutex_unlock(&j->c->lock);
    return LS_OK;
}

/* ---- a request ---- */

static ls_status post_inner(job *j, int64_t k)
{
    const comm_req *r = j->r;
    ls_comm *c = j->c->inner;
    const int64_t n = n_of(j, k), all = n * j->parts;
    const ls_dtype dt = r->in.data ? r->in.dt : r->out.dt;
    const ls_view whole = {slot_of(j, k, 0), all, dt}, mine = {slot_of(j, k, c->rank), n, dt};
    comm_req part = {.kind = r->kind, .in = whole, .out = whole, .stride = j->chunk, .peer = r->peer, .site = r->site};
    switch (r->kind) {
    case LS_COLL_REDUCE_SCATTER: part.out = mine; break;
    case LS_COLL_ALL_GATHER: part.in = mine; break;
    case LS_COLL_SEND: part.out = (ls_view){0}; break;
    case LS_COLL_RECV: part.in = (ls_view){0}; break;
    default: break;
    }
    return comm_post(c, &part, &j->slot[k % SLOTS].t);
}

static ls_status take(job *j, int64_t k)
{
    LS_TRY(arrived(j, k, TO_DEVICE)); /* the slot's last user */
    return offers(j) ? between(j, k, TO_HOST) : LS_OK;
}

static ls_status pass(job *j, int64_t k)
{
    LS_TRY(arrived(j, k, TO_HOST));
    return post_inner(j, k);
}

static ls_status give_back(job *j, int64_t k)
{
    LS_TRY(comm_await(j->c->inner, j->slot[k % SLOTS].t));
    return takes_back(j) ? between(j, k, TO_DEVICE) : LS_OK;
}

static ls_status chunks(job *j)
{
    const int64_t K = (j->n + j->chunk - 1) / j->chunk;
    for (int64_t k = 0; k < K + 2; k++) {
        if (k < K) LS_TRY(take(j, k));
        if (k >= 1 && k - 1 < K) LS_TRY(pass(j, k - 1));
        if (k >= 2) LS_TRY(give_back(j, k - 2));
    }
    for (int64_t k = K > SLOTS ? K - SLOTS : 0; k < K; k++) LS_TRY(arrived(j, k, TO_DEVICE));
    return LS_OK;
}

/* Parts of so many elements each are cut alike on every worker. */
static int64_t chunk_of(int64_t n, int64_t nbytes, int64_t room)
{
    const int64_t all = n * nbytes;
    int64_t want = all / CHUNKS;
    if (want < CHUNK_MIN) want = CHUNK_MIN;
    if (want > room) want = room;
    const int64_t chunk = want / nbytes / 64 * 64; /* aligned parts, if there is room for them */
    return chunk ? chunk : want / nbytes ? want / nbytes : 1;
}

static ls_status pin(staged *s, int lane)
{
    const ls_device *d = s->at->dev;
    if (s->pinned[lane]) return LS_OK;
    LS_TRY(d->pin(d->ctx, s->memory[lane], nbytes_of(lane)));
    s->pinned[lane] = true;
    return LS_OK;
}

static ls_status stage(ls_comm *c, comm_req *r)
{
    staged *s = c->impl;
    const ls_device *d = s->at->dev;
    const bool parted = r->kind == LS_COLL_REDUCE_SCATTER || r->kind == LS_COLL_ALL_GATHER;
    const ls_view v = r->in.data ? r->in : r->out;
    job j = {.c = c, .s = s, .r = r, .lane = comm_lane_of(r->kind), .parts = parted ? c->size : 1};
    j.e = (int64_t)ls_dtype_nbytes(v.dt);
    j.n = parted && r->out.n < r->in.n ? r->out.n : v.n;
    j.room = j.lane == LANE_COLL ? ROOM : ROOM_PAIR;
    j.chunk = chunk_of(j.n, j.parts * j.e, j.room);
    j.memory = s->memory[j.lane];
    const ls_comm_stat before = ls_comm_label_stats(c->inner, r->kind, 0);
    LS_TRY(d->wait(d->ctx, r->ready));
    r->began = ls_now();
    LS_TRY(pin(s, j.lane));
    ls_status st = chunks(&j);
    for (int i = 0; i < 2 * SLOTS && st != LS_OK; i++) { /* nothing may write here when this is gone */
        const ls_mark end = j.slot[i / 2].copy[i % 2][1];
        if (end) (void)d->wait(d->ctx, end);
    }
    r->moved = comm_formula_bytes(c, r);
    r->wire = ls_comm_label_stats(c->inner, r->kind, 0).wire - before.wire;
    return st;
}

static ls_status run(ls_comm *c, comm_req *r)
{
    staged *s = c->impl;
    char words[400], why[300];
    if (!r->device) return comm_forward(c->inner, r);
    const ls_status st = stage(c, r);
    if (st == LS_OK || st == LS_E_COMM) return st;
    snprintf(why, sizeof why, "%s", ls_err_words());
    snprintf(words, sizeof words, "rank %d, %s at %s: %s", s->at->rank, ls_coll_word(r->kind), r->site, why);
    ls_comm_abort(c->inner, words); /* the others wait for this worker */
    return ls_fail(st, "%s", words);
}

/* With one rank (self, dry) nothing is sent: the rank's own part is copied to its place, and no rank waits for it. */
static ls_status run_alone(ls_comm *c, comm_req *r)
{
    staged *s = c->impl;
    const ls_device *d = s->at->dev;
    const char *from;
    char *to;
    ls_mark done = 0;
    if (!r->device || r->kind == LS_COLL_SEND || r->kind == LS_COLL_RECV) return comm_forward(c->inner, r);
    if (c->size > 1) r->moved = comm_formula_bytes(c, r);
    const size_t nbytes = comm_own_part(c, r, &to, &from);
    if (!nbytes) return LS_OK;
    LS_TRY(d->copy(d->ctx, s->at->lane[TO_DEVICE], to, from, nbytes, r->ready, &done));
    return d->hold(d->ctx, done);
}

/* ---- making and ending ---- */

static void leave(station *at)
{
    if (atomic_fetch_sub(&at->users, 1) > 1) return;
    for (int way = 0; way < 2; way++)
        if (at->lane[way]) at->dev->lane_close(at->dev->ctx, at->lane[way]);
    ls_free(at);
}

static void destroy(ls_comm *c)
{
    staged *s = c->impl;
    for (int k = 0; k < N_LANE; k++)
        if (s->pinned[k]) s->at->dev->unpin(s->at->dev->ctx, s->memory[k]);
    ls_comm_destroy(&c->inner);
    leave(s->at);
}

static ls_status over(ls_comm *inner, station *at, ls_comm **out);

static ls_status over_part(ls_comm *c, ls_comm *part, ls_comm **out)
{
    return over(part, ((staged *)c->impl)->at, out);
}

static const comm_ops staged_ops = {.name = "staged",
                                    .run = run,
                                    .over = over_part,
                                    .inner_row = "host",
                                    .device_row = {"to the host", "to the device"},
                                    .destroy = destroy};
static const comm_ops alone_ops = {
    .name = "staged", .inline_run = true, .run = run_alone, .over = over_part, .destroy = destroy};

static const char *name_of(const ls_comm *inner)
{
    const char *name = ls_comm_name(inner);
    if (!strcmp(name, "local")) return "local, staged";
    if (!strcmp(name, "mpi")) return "mpi, staged";
    if (!strcmp(name, "tcp")) return "tcp, staged";
    return inner->ops->inline_run ? name : "staged"; /* names of backends are literals */
}

/* Takes inner when it succeeds. */
static ls_status over(ls_comm *inner, station *at, ls_comm **out)
{
    const bool alone = inner->ops->inline_run;
    ls_comm *c = NULL;
    LS_TRY(comm_create(alone ? &alone_ops : &staged_ops, inner->rank, inner->size, sizeof(staged), &c));
    staged *s = c->impl;
    ls_status st = LS_OK;
    s->at = at;
    atomic_fetch_add(&at->users, 1);
    for (int k = 0; k < N_LANE && !alone && st == LS_OK; k++) {
        s->memory[k] = ls_comm_alloc(inner, nbytes_of(k));
        if (!s->memory[k]) st = ls_nomem(nbytes_of(k), "the staging buffers");
    }
    comm_over(c, inner, name_of(inner));
    if (st == LS_OK) st = comm_device_open(c, at->dev);
    if (st != LS_OK) {
        c->inner = NULL; /* still the caller's */
        ls_comm_destroy(&c);
        return st;
    }
    *out = c;
    return LS_OK;
}

ls_status ls_comm_staged(ls_comm *inner, const ls_device *dev, ls_comm **out)
{
    station *at = ls_alloc(sizeof *at);
    if (!at) return ls_nomem(sizeof *at, "a communicator");
    *at = (station){.dev = dev, .rank = inner->rank};
    atomic_init(&at->users, 1);
    ls_status st = dev->lane_open(dev->ctx, &at->lane[TO_HOST]);
    if (st == LS_OK) st = dev->lane_open(dev->ctx, &at->lane[TO_DEVICE]);
    if (st == LS_OK) st = over(inner, at, out);
    leave(at);
    return st;
}

void comm_unstage(ls_comm **c)
{
    (*c)->inner = NULL;
    ls_comm_destroy(c);
}
