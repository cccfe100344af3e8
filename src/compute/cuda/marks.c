/* marks.c - points in streams: numbered events in a ring that grows.
 *
 *   mark    turn << SLOT_BITS | slot      turn: how often marks were put, so no two marks are equal
 *   slot    one event; it takes a new mark when its old one has passed
 *
 * If the next slot has a mark that has not passed, the ring grows: waiting could deadlock, because the calling thread may be the one that
 * has to queue the work before the mark. Only with N_SLOT pending marks the caller waits, and it does not hold the lock then. The lock is
 * never held during a CUDA call that queues work: such a call blocks while the stream is full, and the watchdog of the communicators, which
 * ends a run that hangs, needs the lock to read marks.
 *
 * A mark that is no longer in its slot has passed; its time is not known any more (NAN), which the caller counts. The ring has RING slots
 * before the first is used again, so that the times of a step can be read at its end. Milliseconds from a first event, as a float, are exact
 * for a few seconds only: now and then an event that has passed becomes the one to count from. */
#include "compute/cuda/cuda_impl.h"

#include "core/mem.h"

#include <math.h>

#define SLOT_BITS 16
#define N_SLOT    (1 << SLOT_BITS)
#define RING      16384 /* slots before one is used again */
#define BLOCK     1024  /* slots are allocated by so many */
#define FRESH     4.0   /* seconds: the float's steps are then below 0.3 us */

typedef struct cu_mark_slot {
    cudaEvent_t event;
    ls_mark mark; /* 0: none                     */
    double at;    /* seconds, when known; else NAN */
    bool busy;    /* a thread records its event   */
} slot;

ls_status cu_marks_open(cu_marks *k, cudaStream_t stream)
{
    pthread_mutex_init(&k->lock, NULL);
    k->open = true;
    const size_t nbytes = N_SLOT / BLOCK * sizeof *k->block;
    k->block = ls_alloc(nbytes);
    if (!k->block) return ls_nomem(nbytes, "the marks of a device");
    CU_TRY(cudaEventCreateWithFlags(&k->base, cudaEventDefault));
    CU_TRY(cudaEventRecord(k->base, stream));
    return CU_STATUS(cudaEventSynchronize(k->base));
}

static slot *slot_at(const cu_marks *k, int i)
{
    return &k->block[i / BLOCK][i % BLOCK];
}

void cu_marks_close(cu_marks *k)
{
    if (!k->open) return;
    for (int i = 0; i < k->n; i++)
        if (slot_at(k, i)->event) (void)cudaEventDestroy(slot_at(k, i)->event);
    if (k->base) (void)cudaEventDestroy(k->base);
    for (int i = 0; i < k->n / BLOCK; i++) ls_free(k->block[i]);
    ls_free(k->block);
    pthread_mutex_destroy(&k->lock);
}

/* The slot of a mark that is in the ring, else NULL. The lock is held. */
static slot *find(cu_marks *k, ls_mark m)
{
    const int i = (int)(m & (N_SLOT - 1));
    if (!m || i >= k->n) return NULL;
    slot *s = slot_at(k, i);
    return s->mark == m ? s : NULL;
}

static ls_status grow(cu_marks *k)
{
    slot **b = &k->block[k->n / BLOCK];
    *b = ls_alloc(BLOCK * sizeof **b);
    if (!*b) return ls_nomem(BLOCK * sizeof **b, "the marks of a device");
    k->next = k->n;
    k->n += BLOCK;
    return LS_OK;
}

static bool free_now(const slot *s)
{
    return !s->busy && (!s->mark || !isnan(s->at) || cudaEventQuery(s->event) != cudaErrorNotReady);
}

/* Waits for the event of a full ring without the lock; the slot may be taken by another thread meanwhile. */
static ls_status wait_for_room(cu_marks *k, const slot *s)
{
    const cudaEvent_t e = s->event;
    pthread_mutex_unlock(&k->lock);
    const int code = (int)cudaEventSynchronize(e);
    pthread_mutex_lock(&k->lock);
    return cuda_said(code, "cudaEventSynchronize", __FILE__, __LINE__);
}

/* The slot for a new mark. The lock is held. */
static ls_status take(cu_marks *k, slot **out)
{
    if (k->next == k->n && k->n < RING) LS_TRY(grow(k));
    for (;;) {
        if (k->next >= k->n) k->next = 0;
        slot *s = slot_at(k, k->next);
        if (free_now(s)) {
            *out = s;
            return LS_OK;
        }
        if (k->n < N_SLOT) LS_TRY(grow(k));
        else if (s->busy) k->next++;
        else LS_TRY(wait_for_room(k, s));
    }
}

/* A slot for this thread alone, until it is given its mark. */
static ls_status reserve(cu_marks *k, slot **out, ls_mark *mark)
{
    pthread_mutex_lock(&k->lock);
    const ls_status st = take(k, out);
    if (st == LS_OK) {
        *mark = ++k->turn << SLOT_BITS | (ls_mark)k->next++;
        (*out)->busy = true;
        (*out)->mark = 0;
    }
    pthread_mutex_unlock(&k->lock);
    return st;
}

static ls_status record(slot *s, cudaStream_t stream)
{
    if (!s->event) CU_TRY(cudaEventCreateWithFlags(&s->event, cudaEventDefault));
    return CU_STATUS(cudaEventRecord(s->event, stream));
}

ls_status cu_mark_put(cu_marks *k, cudaStream_t stream, ls_mark *out)
{
    slot *s;
    ls_mark mark;
    LS_TRY(reserve(k, &s, &mark));
    const ls_status st = record(s, stream);
    pthread_mutex_lock(&k->lock);
    s->busy = false;
    s->at = NAN;
    s->mark = st == LS_OK ? mark : 0;
    pthread_mutex_unlock(&k->lock);
    *out = st == LS_OK ? mark : 0;
    return st;
}

/* The event to wait for, or NULL: it has passed. Were its slot used again between this and the wait, the mark would have passed, and
 * the wait only last longer. */
static cudaEvent_t event_of(cu_marks *k, ls_mark m)
{
    pthread_mutex_lock(&k->lock);
    const slot *s = find(k, m);
    const cudaEvent_t e = s && isnan(s->at) ? s->event : NULL;
    pthread_mutex_unlock(&k->lock);
    return e;
}

ls_status cu_mark_hold(cu_marks *k, cudaStream_t stream, ls_mark m)
{
    const cudaEvent_t e = event_of(k, m);
    return e ? CU_STATUS(cudaStreamWaitEvent(stream, e, 0)) : LS_OK;
}

ls_status cu_mark_wait(void *ctx, ls_mark m)
{
    cu_device *d = ctx;
    LS_TRY(cu_device_enter(d));
    const cudaEvent_t e = event_of(&d->marks, m);
    return e ? CU_STATUS(cudaEventSynchronize(e)) : LS_OK;
}

bool cu_mark_test(void *ctx, ls_mark m)
{
    cu_device *d = ctx;
    if (cudaSetDevice(d->index) != cudaSuccess) return true;
    const cudaEvent_t e = event_of(&d->marks, m);
    return !e || cudaEventQuery(e) != cudaErrorNotReady; /* a failure shows at the next wait */
}

static ls_status read_clock(cu_marks *k, ls_mark m, double *at)
{
    slot *s = find(k, m);
    float ms = 0;
    *at = NAN;
    if (!s) return LS_OK; /* its slot has another mark: when it passed is not known any more */
    if (isnan(s->at)) {
        CU_TRY(cudaEventSynchronize(s->event));
        CU_TRY(cudaEventElapsedTime(&ms, k->base, s->event));
        s->at = k->base_at + (double)ms * 1e-3;
        if ((double)ms > FRESH * 1e3) { /* count from here on */
            const cudaEvent_t old = k->base;
            k->base = s->event;
            k->base_at = s->at;
            s->event = old;
        }
    }
    *at = s->at;
    return LS_OK;
}

ls_status cu_mark_seconds(void *ctx, ls_mark m, double *at)
{
    cu_marks *k = &((cu_device *)ctx)->marks;
    LS_TRY(cu_mark_wait(ctx, m));
    pthread_mutex_lock(&k->lock);
    const ls_status st = read_clock(k, m, at);
    pthread_mutex_unlock(&k->lock);
    return st;
}
