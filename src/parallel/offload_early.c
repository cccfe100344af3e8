/* offload_early.c - what an offloaded optimizer does while the backward pass goes on.
 *
 * The gradient of a unit is complete when it is summed over micro-batches and workers: during the backward pass of the last micro-batch,
 * last unit first. What can begin then depends on opts.overlap:
 *
 *   false   clipping or a loss scale: whether and how a unit is updated depends on the whole gradient. The gradient is copied to the
 *           host, so that offload.c finds it there. Host memory: 4P/N bytes more.
 *   true    nothing depends on it: a thread updates the unit. When the backward pass is over, the GPU takes units from the other end.
 *
 *   GPU        | … B5 | B4 | B3 | B2 | B1 | B0 | norm | update 0 | update 1 |
 *   down, up          | g5 | g4    | p5, g3       | p4, g2
 *   thread                 | update 5      | update 4      | update 3  | update 2 |
 *
 * Invariants
 *   1. the parameters of a unit are not used any more in a step once its gradient is complete. A tied embedding is complete when both of
 *      its gradients are, at the end;
 *   2. gradients in device memory are only read: the norm is computed from them afterwards, as without offload;
 *   3. the queue of operations belongs to the calling thread; the other one waits for marks and copies;
 *   4. the first update commits the step: if it fails then, the state of the run is that of no step, and is never saved. */
#include "parallel/parallel_impl.h"

#include "core/cores.h"
#include "core/log.h"
#include "core/mem.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

enum { SLOTS = LS_OFFLOAD_SLOTS };

typedef struct summed { /* a unit whose gradient is complete */
    int unit;
    ls_own own;
    ls_mark mark; /* with it; 0: it is already */
} summed;

typedef struct ls_early {
    ls_strategy *s;
    const ls_device *d;
    ls_hyper_fn *hyper;
    void *ctx;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running, quit;
    /* with the lock */
    summed *queue;      /* [first, last): not taken */
    int first, last;    /* the thread takes from the front, the GPU from the back */
    int busy, done;     /* units that the thread has taken; that it has updated */
    ls_status st;       /* of the thread */
    ls_err_kept failed; /* its message */
    /* the thread's: units whose gradients are copied or being copied, oldest first */
    summed held[SLOTS];
    ls_mark copied[SLOTS];
    int slot, n_held;
} early;

/* ---- the thread ---- */

static bool take(early *e, bool front, summed *out)
{
    pthread_mutex_lock(&e->lock);
    const bool any = e->first < e->last;
    if (any) *out = front ? e->queue[e->first++] : e->queue[--e->last];
    e->busy += any && front;
    pthread_mutex_unlock(&e->lock);
    return any;
}

/* Begins to copy gradients where there is room for them. */
static ls_status fetch(void *ctx)
{
    early *e = ctx;
    summed x;
    while (e->n_held < SLOTS && take(e, true, &x)) {
        const int k = (e->slot + e->n_held) % SLOTS;
        e->held[k] = x;
        e->n_held++;
        LS_TRY(e->d->copy(e->d->ctx, e->s->off.down, e->s->off.grad[k], x.own.grad, (size_t)x.own.n * sizeof(float),
                          x.mark, &e->copied[k]));
    }
    return LS_OK;
}

static ls_status update_oldest(early *e)
{
    const int k = e->slot;
    const summed *x = &e->held[k];
    ls_adamw h;
    e->hyper(e->ctx, x->unit, &x->own, &h);
    LS_TRY(e->d->wait(e->d->ctx, e->copied[k]));
    LS_TRY(parallel_offload_on_cpu(e->s, &x->own, &h, e->s->off.grad[k], k, fetch, e));
    e->slot = (k + 1) % SLOTS;
    e->n_held--;
    pthread_mutex_lock(&e->lock);
    e->busy--;
    e->done++;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return LS_OK;
}

/* The GPU may have taken the last one. */
static ls_status update_next(early *e)
{
    LS_TRY(fetch(e));
    return e->n_held ? update_oldest(e) : LS_OK;
}

static void *update_units(void *arg)
{
    early *e = arg;
    ls_cores_roam();
    pthread_mutex_lock(&e->lock);
    while (!e->quit && e->st == LS_OK) {
        if (e->first == e->last && !e->busy) {
            pthread_cond_wait(&e->changed, &e->lock);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        const ls_status st = update_next(e);
        pthread_mutex_lock(&e->lock);
        if (st != LS_OK) ls_err_keep(&e->failed);
        e->st = st;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

static ls_status start(ls_strategy *s)
{
    const size_t room = (size_t)s->model->n_unit * sizeof(summed);
    sigset_t all, before; /* the trainer handles signals, not this thread */
    early *e = ls_alloc(sizeof *e);
    if (!e) return ls_nomem(sizeof *e, "the update of an offloaded optimizer");
    *e = (early){.s = s, .d = s->model->compute->device, .queue = ls_alloc(room)};
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    s->off.early = e;
    if (!e->queue) return ls_nomem(room, "the update of an offloaded optimizer");
    if (!ls_compute_adamw_host_same()) return LS_OK; /* the GPU updates all units */
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const int rc = pthread_create(&e->thread, NULL, update_units, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    e->running = !rc;
    return rc ? ls_fail(LS_E_NOMEM, "cannot start the thread that updates parameters: %s", strerror(rc)) : LS_OK;
}

void parallel_early_close(ls_strategy *s)
{
    early *e = s->off.early;
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    e->quit = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (e->running) pthread_join(e->thread, NULL);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    ls_free(e->queue);
    ls_free(e);
    s->off.early = NULL;
}

/* ---- the backward pass ---- */

ls_status ls_strategy_step_begin(ls_strategy *s, ls_hyper_fn *hyper, void *ctx)
{
    if (!s->opts.offload) return LS_OK;
    LS_TRY(parallel_offload_lanes(s));
    if (s->opts.overlap && !s->off.early) LS_TRY(start(s));
    if (s->opts.overlap) {
        early *e = s->off.early;
        pthread_mutex_lock(&e->lock);
        e->first = e->last; /* of a step that failed */
        while (e->busy && e->st == LS_OK) pthread_cond_wait(&e->changed, &e->lock);
        e->hyper = hyper;
        e->ctx = ctx;
        e->first = e->last = e->done = 0;
        pthread_mutex_unlock(&e->lock);
    }
    for (int u = 0; u < s->model->n_unit; u++) s->unit[u].copied = 0;
    s->off.posted = s->off.ready = s->model->n_unit;
    s->off.begun = !ls_gradtree_seals(s->tree); /* sealed: the update copies; a copy that waits has no hash */
    return LS_OK;
}

static ls_status add(ls_strategy *s, int u, ls_ticket ticket)
{
    const ls_device *d = s->model->compute->device;
    summed x = {.unit = u, .own = ls_strategy_own(s, u)};
    if (!x.own.n) return LS_OK;
    if (!ticket || !ls_test(s->comm, ticket)) LS_TRY(d->mark(d->ctx, &x.mark));
    if (!s->opts.overlap) {
        LS_TRY(d->copy(d->ctx, s->off.down, s->unit[u].host, x.own.grad, (size_t)x.own.n * sizeof(float), x.mark,
                       &s->unit[u].copied));
        s->off.last = s->unit[u].copied;
        return LS_OK;
    }
    early *e = s->off.early;
    pthread_mutex_lock(&e->lock);
    LS_ASSERT(e->last < s->model->n_unit);
    e->queue[e->last++] = x;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return LS_OK;
}

ls_status parallel_early_ready(ls_strategy *s, int u, ls_ticket ticket)
{
    return u == 0 && s->model->cfg.tied ? LS_OK : add(s, u, ticket);
}

ls_status parallel_early_tied(ls_strategy *s)
{
    return s->model->cfg.tied ? add(s, 0, 0) : LS_OK;
}

/* Whether a sum has arrived in device memory; wait: returns when it has. A mark would come after all that is queued. */
static ls_status arrived(ls_strategy *s, ls_ticket ticket, bool wait, bool *yes)
{
    const struct timespec moment = {0, 50000};
    if (wait) LS_TRY(ls_wait(s->comm, ticket));
    while (!(*yes = ls_test(s->comm, ticket)) && wait) nanosleep(&moment, NULL);
    return LS_OK;
}

/* Gradients of zero2 and zero3: their places are given back where they always are, in the same order on every worker. */
static ls_status look_at_flights(ls_strategy *s, bool wait)
{
    for (int i = 0; i < s->n_flight && s->flight[i].posted; i++) {
        bool here = true;
        if (s->flight[i].summed) continue;
        LS_TRY(arrived(s, s->flight[i].ticket, wait, &here));
        if (!here) return LS_OK;
        LS_TRY(parallel_flight_sum(s, &s->flight[i]));
    }
    return LS_OK;
}

ls_status parallel_early_look(ls_strategy *s, bool wait)
{
    if (parallel_cuts(s, LS_SHARD_GRAD)) return look_at_flights(s, wait);
    for (int u = s->off.ready - 1; u >= s->off.posted; u--) {
        bool here = true;
        if (ls_strategy_here(s, u)) LS_TRY(arrived(s, s->unit[u].reduced, wait, &here));
        if (!here) return LS_OK;
        s->off.ready = u;
        if (ls_strategy_here(s, u)) LS_TRY(parallel_early_ready(s, u, s->unit[u].reduced));
    }
    return LS_OK;
}

/* ---- the end of a step ---- */

static ls_status thread_done(early *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->st == LS_OK && (e->first < e->last || e->busy)) pthread_cond_wait(&e->changed, &e->lock);
    const ls_status st = e->st;
    pthread_mutex_unlock(&e->lock);
    if (st != LS_OK) ls_err_restore(&e->failed);
    return st;
}

ls_status parallel_early_finish(ls_strategy *s)
{
    early *e = s->off.early;
    ls_mark queued[SLOTS] = {0};
    int n = 0;
    for (summed x; take(e, false, &x); n++) {
        ls_adamw h;
        LS_TRY(e->d->wait(e->d->ctx, queued[n % SLOTS])); /* so that the thread gets some, too */
        e->hyper(e->ctx, x.unit, &x.own, &h);
        LS_TRY(parallel_offload_on_gpu(s, &x.own, &h));
        LS_TRY(e->d->mark(e->d->ctx, &queued[n % SLOTS]));
    }
    LS_TRY(thread_done(e));
    for (int i = 0; i < SLOTS; i++) {
        LS_TRY(e->d->wait(e->d->ctx, queued[i])); /* the state in host memory is that of the finished step */
        LS_TRY(e->d->hold(e->d->ctx, s->off.sent[i]));
    }
    ls_debug("parallel",
             "optimizer in host memory: %d units updated by the CPU from the backward pass on, %d by the GPU", e->done,
             n);
    return LS_OK;
}

ls_status parallel_early_done(ls_strategy *s)
{
    const ls_device *d = s->model->compute->device;
    s->off.begun = false;
    return d->hold(d->ctx, s->off.last); /* copies of gradients that the GPU used may be pending */
}
