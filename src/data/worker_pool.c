/* worker_pool.c - a ring of jobs:  ... taken | done, working, waiting | free ...
 *                                       ^first              ^work  ^last
 * Jobs enter at `last`, workers take them at `work`, the caller consumes them at `first`; all three only increase. */
#include "data/job.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/stop.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define AHEAD_BYTES ((size_t)32 << 20) /* text in the ring, beyond the first job */

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t can_work, is_done;
    data_job *job;
    size_t n_job;
    uint64_t first, work, last;
    bool quit;
    const data_job_rules *rules;
} pool;

typedef struct worker {
    pthread_t thread;
    pool *p;
    ls_encoder *encoder;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    pool *p = w->p;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->quit && p->work == p->last) pthread_cond_wait(&p->can_work, &p->lock);
        if (p->quit) break;
        data_job *j = &p->job[p->work++ % p->n_job];
        pthread_mutex_unlock(&p->lock);
        data_job_run(j, p->rules, w->encoder);
        pthread_mutex_lock(&p->lock);
        j->done = true;
        pthread_cond_signal(&p->is_done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Reads the next block into the job at `last`. If that fails the job has failed: the jobs before it come first. */
static void read_job(pool *p, ls_blocks *blocks, bool *end)
{
    data_job *j = &p->job[p->last % p->n_job];
    if (j->block.cap > 4 * LS_BLOCK_BYTES) { /* left from a very long line */
        ls_free(j->block.text);
        j->block.text = NULL;
        j->block.cap = 0;
    }
    const ls_status st = ls_blocks_next(blocks, &j->block, end);
    if (st == LS_OK && *end) return;
    data_job_end(j, st);
    if (st != LS_OK) *end = true;
    pthread_mutex_lock(&p->lock);
    j->done = false;
    p->last++;
    pthread_cond_signal(&p->can_work);
    pthread_mutex_unlock(&p->lock);
}

/* Returns when the job is done; processes waiting jobs meanwhile. */
static void wait_for(pool *p, const data_job *j, ls_encoder *own)
{
    pthread_mutex_lock(&p->lock);
    while (!j->done) {
        if (p->work == p->last) {
            pthread_cond_wait(&p->is_done, &p->lock);
            continue;
        }
        data_job *next = &p->job[p->work++ % p->n_job];
        pthread_mutex_unlock(&p->lock);
        data_job_run(next, p->rules, own);
        pthread_mutex_lock(&p->lock);
        next->done = true;
    }
    pthread_mutex_unlock(&p->lock);
}

/* CPU time of this thread: what it does beside processing jobs limits the use of more threads. */
static double own_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Reads ahead as far as the ring and the bytes allow, then takes one job. */
static ls_status drive(pool *p, ls_blocks *blocks, ls_encoder *own, data_take take, void *ctx)
{
    size_t ahead = 0;
    double reading = 0, taking = 0;
    const double start = own_seconds();
    for (bool end = false; !end || p->first < p->last;) {
        if (ls_stop_requested()) return ls_fail(LS_E_STOPPED, "stopped; no file was written");
        while (!end && p->last - p->first < p->n_job && (p->last == p->first || ahead < AHEAD_BYTES)) {
            const uint64_t last = p->last;
            const double before = own_seconds();
            read_job(p, blocks, &end);
            reading += own_seconds() - before;
            if (p->last > last) ahead += p->job[last % p->n_job].block.n;
        }
        if (p->first == p->last) break;
        data_job *j = &p->job[p->first++ % p->n_job];
        ahead -= j->block.n;
        wait_for(p, j, own);
        if (j->st != LS_OK) {
            ls_err_restore(&j->error);
            return j->st;
        }
        const double before = own_seconds();
        LS_TRY(take(ctx, j, blocks));
        taking += own_seconds() - before;
    }
    ls_debug("data", "CPU seconds of the first thread: %.2f reading, %.2f writing, %.2f in all", reading, taking,
             own_seconds() - start);
    return LS_OK;
}

ls_status data_pipeline_run(ls_blocks *blocks, const data_job_rules *rules, int threads, data_take take, void *ctx)
{
    pool p = {.rules = rules, .n_job = 2 * (size_t)threads + 2};
    int started = 0;
    ls_status st = LS_OK;
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.can_work, NULL);
    pthread_cond_init(&p.is_done, NULL);
    p.job = ls_alloc(p.n_job * sizeof *p.job);
    worker *w = ls_alloc((size_t)threads * sizeof *w);
    if (!p.job || !w) {
        st = ls_nomem(p.n_job * sizeof *p.job, "the worker pool");
        goto done;
    }
    for (int i = 0; i < threads && rules->tok; i++) LS_TRY_GOTO(st, done, ls_encoder_create(rules->tok, &w[i].encoder));
    for (; started < threads - 1; started++) { /* the last encoder is that of this thread */
        w[started].p = &p;
        int rc = pthread_create(&w[started].thread, NULL, work, &w[started]);
        if (rc) {
            st = ls_fail(LS_E_NOMEM, "cannot start thread %d of %d: %s", started + 1, threads, strerror(rc));
            goto done;
        }
    }
    LS_TRY_GOTO(st, done, drive(&p, blocks, w[threads - 1].encoder, take, ctx));
done:
    pthread_mutex_lock(&p.lock);
    p.quit = true;
    pthread_cond_broadcast(&p.can_work);
    pthread_mutex_unlock(&p.lock);
    for (int i = 0; i < started; i++) pthread_join(w[i].thread, NULL);
    for (int i = 0; w && i < threads; i++) ls_encoder_destroy(&w[i].encoder);
    for (size_t i = 0; p.job && i < p.n_job; i++) data_job_fini(&p.job[i]);
    ls_free(p.job);
    ls_free(w);
    pthread_mutex_destroy(&p.lock);
    pthread_cond_destroy(&p.can_work);
    pthread_cond_destroy(&p.is_done);
    return st;
}
