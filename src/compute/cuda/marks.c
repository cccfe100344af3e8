/* marks.c - points in streams: a ring of events.
 *
 * Mark m is record m of event m % RING. A place is used again only when its old mark has passed (whoever wants it, waits), so a mark
 * that is no longer in the ring has passed, and every question about it but one has that answer; `seconds` of it is too late.
 *
 * The clock: milliseconds from a first event, as a float, are exact for a few seconds only; so now and then an event that has passed
 * becomes the one to count from. */
#include "compute/cuda/cuda_impl.h"

#include "core/mem.h"

#include <math.h>

#define RING  4096
#define FRESH 4.0 /* seconds: the float's steps are then below 0.3 us */

typedef struct place {
    cudaEvent_t event;
    ls_mark mark;
    double at; /* seconds, when known; else NAN */
} place;

struct cu_marks {
    pthread_mutex_t lock;
    ls_mark last;
    cudaEvent_t base;
    double base_at;
    place ring[RING];
};

static ls_status open_all(cu_marks *k, cudaStream_t stream)
{
    CU_TRY(cudaEventCreateWithFlags(&k->base, cudaEventDefault));
    CU_TRY(cudaEventRecord(k->base, stream));
    CU_TRY(cudaEventSynchronize(k->base));
    return LS_OK;
}

ls_status cu_marks_open(cu_marks **out, cudaStream_t stream)
{
    cu_marks *k = ls_alloc(sizeof *k);
    if (!k) return ls_nomem(sizeof *k, "the marks of a device");
    pthread_mutex_init(&k->lock, NULL);
    const ls_status st = open_all(k, stream);
    if (st != LS_OK) {
        cu_marks_close(&k);
        return st;
    }
    *out = k;
    return LS_OK;
}

void cu_marks_close(cu_marks **k)
{
    if (!*k) return;
    for (int i = 0; i < RING; i++)
        if ((*k)->ring[i].event) (void)cudaEventDestroy((*k)->ring[i].event);
    if ((*k)->base) (void)cudaEventDestroy((*k)->base);
    pthread_mutex_destroy(&(*k)->lock);
    ls_free(*k);
    *k = NULL;
}

/* The place of a mark that is in the ring, else NULL. The lock is held. */
static place *find(cu_marks *k, ls_mark m)
{
    place *p = &k->ring[m % RING];
    return m && p->mark == m ? p : NULL;
}

static ls_status put(cu_marks *k, cudaStream_t s, ls_mark *out)
{
    place *p = &k->ring[(k->last + 1) % RING];
    if (!p->event) CU_TRY(cudaEventCreateWithFlags(&p->event, cudaEventDefault));
    if (p->mark && isnan(p->at)) CU_TRY(cudaEventSynchronize(p->event));
    CU_TRY(cudaEventRecord(p->event, s));
    p->mark = ++k->last;
    p->at = NAN;
    *out = p->mark;
    return LS_OK;
}

ls_status cu_mark_put(cu_marks *k, cudaStream_t s, ls_mark *out)
{
    pthread_mutex_lock(&k->lock);
    const ls_status st = put(k, s, out);
    pthread_mutex_unlock(&k->lock);
    return st;
}

ls_status cu_mark_hold(cu_marks *k, cudaStream_t s, ls_mark m)
{
    int code = cudaSuccess;
    pthread_mutex_lock(&k->lock);
    const place *p = find(k, m);
    if (p && isnan(p->at)) code = (int)cudaStreamWaitEvent(s, p->event, 0);
    pthread_mutex_unlock(&k->lock);
    CU_TRY(code);
    return LS_OK;
}

/* The event to wait for, or NULL: it has passed. Were its place used again between this and the wait, the mark would have passed, and
 * the wait only last longer. */
static cudaEvent_t event_of(cu_marks *k, ls_mark m)
{
    pthread_mutex_lock(&k->lock);
    const place *p = find(k, m);
    const cudaEvent_t e = p && isnan(p->at) ? p->event : NULL;
    pthread_mutex_unlock(&k->lock);
    return e;
}

ls_status cu_mark_wait(cu_marks *k, ls_mark m)
{
    const cudaEvent_t e = event_of(k, m);
    if (e) CU_TRY(cudaEventSynchronize(e));
    return LS_OK;
}

bool cu_mark_test(cu_marks *k, ls_mark m)
{
    const cudaEvent_t e = event_of(k, m);
    return !e || cudaEventQuery(e) != cudaErrorNotReady; /* a failure shows at the next wait */
}

static ls_status read_clock(cu_marks *k, ls_mark m, double *at)
{
    place *p = find(k, m);
    float ms = 0;
    if (!p) return ls_fail(LS_E_ARG, "mark %llu is too old: its time is no longer known", (unsigned long long)m);
    if (isnan(p->at)) {
        CU_TRY(cudaEventSynchronize(p->event));
        CU_TRY(cudaEventElapsedTime(&ms, k->base, p->event));
        p->at = k->base_at + (double)ms * 1e-3;
        if ((double)ms > FRESH * 1e3) { /* count from here on */
            const cudaEvent_t old = k->base;
            k->base = p->event;
            k->base_at = p->at;
            p->event = old;
        }
    }
    *at = p->at;
    return LS_OK;
}

ls_status cu_mark_seconds(cu_marks *k, ls_mark m, double *at)
{
    LS_TRY(cu_mark_wait(k, m));
    pthread_mutex_lock(&k->lock);
    const ls_status st = read_clock(k, m, at);
    pthread_mutex_unlock(&k->lock);
    return st;
}
