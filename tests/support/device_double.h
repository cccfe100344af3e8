/* device_double.h - a simulated device in host memory: queues that run later, on their own threads, with delays. Operations that are not
 * ordered by marks give wrong results here, ThreadSanitizer reports where, and no GPU is needed.
 *
 *   device_double *d = double_open(seed);  d->table is its ls_device; double_call(d, fn, arg) queues an operation
 *   d->nap_us         the largest random delay of an operation
 *   d->ns_per_byte    the time of a copy
 *   d->fail_copy_at   the n-th next copy fails: the device is lost */
#ifndef LS_TESTS_DEVICE_DOUBLE_H
#define LS_TESTS_DEVICE_DOUBLE_H

#include "core/buf.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/rng.h"
#include "fake_nccl/stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DOUBLE_MARKS   (1 << 17)
#define DOUBLE_BLOCKS  64
#define DOUBLE_COMPUTE LS_DEVICE_LANES /* the queue of operations */

typedef struct double_op {
    enum { DOUBLE_COPY, DOUBLE_ADD, DOUBLE_WAIT, DOUBLE_MARK, DOUBLE_CALL } type;
    void *y;
    const void *a, *b;
    size_t n;
    ls_mark mark;
    void (*call)(void *);
    void *arg;
    struct double_op *next;
} double_op;

typedef struct double_queue {
    fake_stream stream; /* first: a stream is a queue */
    struct device_double *d;
    pthread_t thread;
    bool open, running;
    double_op *first, **last;
    uint64_t turn;
} double_queue;

typedef struct device_double {
    ls_device table;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    double_queue queue[LS_DEVICE_LANES + 1];
    double *passed; /* by mark: the time it was reached; 0: not yet */
    ls_mark n_mark;
    struct {
        char *p;
        size_t n;
    } block[DOUBLE_BLOCKS];
    int n_pinned;
    bool stop;
    int index;
    uint64_t seed;
    int nap_us;
    double ns_per_byte;
    int64_t fail_copy_at; /* -1: never */
    int64_t n_copied;     /* bytes     */
} device_double;

static inline void double_sleep(double seconds)
{
    if (seconds > 0) usleep((useconds_t)(seconds * 1e6));
}

static inline void double_run(double_queue *q, const double_op *op)
{
    device_double *d = q->d;
    if (d->nap_us && op->type != DOUBLE_MARK)
        double_sleep(1e-6 * (double)(ls_rng_u64(d->seed + (uint64_t)(q - d->queue), q->turn++) % (uint64_t)d->nap_us));
    if (op->type == DOUBLE_COPY) {
        double_sleep(d->ns_per_byte * 1e-9 * (double)op->n);
        memcpy(op->y, op->a, op->n);
    } else if (op->type == DOUBLE_ADD) {
        const float *a = op->a, *b = op->b;
        for (size_t i = 0; i < op->n; i++) ((float *)op->y)[i] = a[i] + b[i];
    } else if (op->type == DOUBLE_CALL) op->call(op->arg);
}

static inline void *double_main(void *arg)
{
    double_queue *q = arg;
    device_double *d = q->d;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!q->first && !d->stop) pthread_cond_wait(&d->changed, &d->lock);
        double_op *op = q->first;
        if (!op) break;
        q->first = op->next;
        if (!q->first) q->last = &q->first;
        if (op->type == DOUBLE_WAIT)
            while (d->passed[op->mark] == 0 && !d->stop) pthread_cond_wait(&d->changed, &d->lock);
        else {
            pthread_mutex_unlock(&d->lock);
            double_run(q, op);
            pthread_mutex_lock(&d->lock);
        }
        if (op->type == DOUBLE_MARK) {
            d->passed[op->mark] = ls_now();
            pthread_cond_broadcast(&d->changed);
        }
        free(op);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* With the lock held. */
static inline void double_put(device_double *d, int queue, double_op what)
{
    double_queue *q = &d->queue[queue];
    double_op *op = malloc(sizeof *op);
    *op = what;
    op->next = NULL;
    if (!q->running) {
        q->last = &q->first;
        q->running = !pthread_create(&q->thread, NULL, double_main, q);
    }
    *q->last = op;
    q->last = &op->next;
    pthread_cond_broadcast(&d->changed);
}

static inline ls_mark double_put_mark(device_double *d, int queue)
{
    const ls_mark m = ++d->n_mark;
    if (m >= DOUBLE_MARKS) abort();
    double_put(d, queue, (double_op){.type = DOUBLE_MARK, .mark = m});
    return m;
}

static inline void double_call(device_double *d, void (*call)(void *), void *arg)
{
    pthread_mutex_lock(&d->lock);
    double_put(d, DOUBLE_COMPUTE, (double_op){.type = DOUBLE_CALL, .call = call, .arg = arg});
    pthread_mutex_unlock(&d->lock);
}

static inline void double_stream_queue(fake_stream *s, void (*call)(void *), void *arg)
{
    double_queue *q = (double_queue *)(void *)s;
    pthread_mutex_lock(&q->d->lock);
    double_put(q->d, (int)(q - q->d->queue), (double_op){.type = DOUBLE_CALL, .call = call, .arg = arg});
    pthread_mutex_unlock(&q->d->lock);
}

static inline ls_status double_info(void *ctx, ls_device_info *out)
{
    device_double *d = ctx;
    *out = (ls_device_info){.name = "a double", .index = d->index};
    return LS_OK;
}

static inline ls_status double_alloc(void *ctx, size_t nbytes, void **out)
{
    device_double *d = ctx;
    char *p = calloc(1, nbytes ? nbytes : 1);
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < DOUBLE_BLOCKS && p; i++)
        if (!d->block[i].p) {
            d->block[i].p = p;
            d->block[i].n = nbytes;
            *out = p;
            p = NULL;
        }
    pthread_mutex_unlock(&d->lock);
    free(p);
    return LS_OK;
}

static inline ls_status double_alloc_host(void *ctx, size_t nbytes, void **out)
{
    (void)ctx;
    *out = calloc(1, nbytes ? nbytes : 1);
    return LS_OK;
}

static inline void double_release(void *ctx, void *p)
{
    device_double *d = ctx;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < DOUBLE_BLOCKS && p; i++)
        if (d->block[i].p == p) d->block[i].p = NULL;
    pthread_mutex_unlock(&d->lock);
    free(p);
}

static inline bool double_owns(void *ctx, const void *p)
{
    device_double *d = ctx;
    bool mine = false;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < DOUBLE_BLOCKS && !mine; i++)
        mine = d->block[i].p && (const char *)p >= d->block[i].p && (const char *)p < d->block[i].p + d->block[i].n;
    pthread_mutex_unlock(&d->lock);
    return mine;
}

static inline ls_status double_pin(void *ctx, void *host, size_t nbytes)
{
    device_double *d = ctx;
    (void)host, (void)nbytes;
    pthread_mutex_lock(&d->lock);
    d->n_pinned++;
    pthread_mutex_unlock(&d->lock);
    return LS_OK;
}

static inline void double_unpin(void *ctx, void *host)
{
    device_double *d = ctx;
    (void)host;
    pthread_mutex_lock(&d->lock);
    d->n_pinned--;
    pthread_mutex_unlock(&d->lock);
}

static inline ls_status double_mark(void *ctx, ls_mark *out)
{
    device_double *d = ctx;
    pthread_mutex_lock(&d->lock);
    *out = double_put_mark(d, DOUBLE_COMPUTE);
    pthread_mutex_unlock(&d->lock);
    return LS_OK;
}

static inline ls_status double_hold(void *ctx, ls_mark m)
{
    device_double *d = ctx;
    if (!m) return LS_OK;
    pthread_mutex_lock(&d->lock);
    double_put(d, DOUBLE_COMPUTE, (double_op){.type = DOUBLE_WAIT, .mark = m});
    pthread_mutex_unlock(&d->lock);
    return LS_OK;
}

static inline ls_status double_wait(void *ctx, ls_mark m)
{
    device_double *d = ctx;
    pthread_mutex_lock(&d->lock);
    while (m && d->passed[m] == 0) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return LS_OK;
}

static inline bool double_test(void *ctx, ls_mark m)
{
    device_double *d = ctx;
    pthread_mutex_lock(&d->lock);
    const bool passed = !m || d->passed[m] > 0;
    pthread_mutex_unlock(&d->lock);
    return passed;
}

static inline ls_status double_seconds(void *ctx, ls_mark m, double *at)
{
    device_double *d = ctx;
    (void)double_wait(ctx, m);
    pthread_mutex_lock(&d->lock);
    *at = d->passed[m] - 1000; /* the device's clock is not the host's */
    pthread_mutex_unlock(&d->lock);
    return LS_OK;
}

static inline ls_status double_sync(void *ctx)
{
    ls_mark m = 0;
    (void)double_mark(ctx, &m);
    return double_wait(ctx, m);
}

static inline ls_status double_lane_open(void *ctx, int *lane)
{
    device_double *d = ctx;
    int k = 1;
    pthread_mutex_lock(&d->lock);
    while (k < LS_DEVICE_LANES && d->queue[k].open) k++;
    if (k < LS_DEVICE_LANES) d->queue[k].open = true;
    pthread_mutex_unlock(&d->lock);
    if (k == LS_DEVICE_LANES) return ls_fail(LS_E_DEVICE, "no lane is left");
    *lane = k;
    return LS_OK;
}

static inline void double_lane_close(void *ctx, int lane)
{
    device_double *d = ctx;
    pthread_mutex_lock(&d->lock);
    d->queue[lane].open = false;
    pthread_mutex_unlock(&d->lock);
}

static inline ls_status double_copy(void *ctx, int lane, void *dst, const void *src, size_t nbytes, ls_mark after,
                                    ls_mark *done)
{
    device_double *d = ctx;
    ls_status st = LS_OK;
    pthread_mutex_lock(&d->lock);
    if (nbytes && d->fail_copy_at >= 0 && d->fail_copy_at-- == 0) st = LS_E_DEVICE;
    if (st == LS_OK) {
        if (after) double_put(d, lane, (double_op){.type = DOUBLE_WAIT, .mark = after});
        if (nbytes) double_put(d, lane, (double_op){.type = DOUBLE_COPY, .y = dst, .a = src, .n = nbytes});
        if (done) *done = double_put_mark(d, lane);
        d->n_copied += (int64_t)nbytes;
    }
    pthread_mutex_unlock(&d->lock);
    return st == LS_OK ? LS_OK : ls_fail(st, "the device is lost");
}

static inline ls_status double_add(void *ctx, int lane, void *y, const void *a, const void *b, int64_t n, int dtype)
{
    device_double *d = ctx;
    if (dtype != LS_F32) return ls_fail(LS_E_UNSUPPORTED, "sums of F32 alone");
    pthread_mutex_lock(&d->lock);
    double_put(d, lane, (double_op){.type = DOUBLE_ADD, .y = y, .a = a, .b = b, .n = (size_t)n});
    pthread_mutex_unlock(&d->lock);
    return LS_OK;
}

static inline void *double_lane_stream(void *ctx, int lane)
{
    return &((device_double *)ctx)->queue[lane].stream;
}

static inline device_double *double_open(uint64_t seed)
{
    device_double *d = calloc(1, sizeof *d);
    d->passed = calloc(DOUBLE_MARKS, sizeof *d->passed);
    d->seed = seed;
    d->fail_copy_at = -1;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    for (int k = 0; k <= LS_DEVICE_LANES; k++) d->queue[k].d = d, d->queue[k].stream.queue = double_stream_queue;
    d->table = (ls_device){.ctx = d,
                           .info = double_info,
                           .alloc = double_alloc,
                           .release = double_release,
                           .alloc_host = double_alloc_host,
                           .release_host = double_release,
                           .pin = double_pin,
                           .unpin = double_unpin,
                           .owns = double_owns,
                           .mark = double_mark,
                           .hold = double_hold,
                           .wait = double_wait,
                           .test = double_test,
                           .seconds = double_seconds,
                           .sync = double_sync,
                           .lane_open = double_lane_open,
                           .lane_close = double_lane_close,
                           .copy = double_copy,
                           .add = double_add,
                           .lane_stream = double_lane_stream};
    return d;
}

/* Runs all queued operations first, releases waits for marks that are never reached, and frees all memory. */
static inline void double_close(device_double *d)
{
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (int k = 0; k <= LS_DEVICE_LANES; k++)
        if (d->queue[k].running) pthread_join(d->queue[k].thread, NULL);
    for (int i = 0; i < DOUBLE_BLOCKS; i++) free(d->block[i].p);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d->passed);
    free(d);
}

#endif
