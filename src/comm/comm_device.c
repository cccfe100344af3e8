/* comm_device.c - requests on device memory: their place in the device's order, and time measured on its clock.
 *
 *   compute queue   … op op │ready                op op │idle ~~ hold ~~│end  op …        exposed = end - idle
 *   request                 └► from ═══ work ═══ after ────────────────┘                 busy    = after - from
 *
 * The caller runs ahead of the device: what it waits for says nothing. What counts is how long the queue of operations waited for a
 * request: two marks, one when the caller began to wait and one after the hold. They are read later, when both have passed. */
#include "comm/comm_impl.h"

#include "core/clock.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define QUIET 30.0 /* seconds for kernels to end, aborted ones at the latest */

static bool owned(const ls_device *d, ls_view v)
{
    return v.data && v.n && d->owns(d->ctx, v.data);
}

ls_status comm_device_open(ls_comm *c, const ls_device *dev)
{
    c->time = ls_alloc(COMM_TIMES * sizeof *c->time);
    c->stood = ls_alloc(COMM_TIMES * sizeof *c->stood);
    if (!c->time || !c->stood) return ls_nomem(COMM_TIMES * sizeof *c->time, "a communicator");
    c->dev = dev;
    return LS_OK;
}

ls_status comm_device_trace(ls_comm *c, ls_trace *t, const char *name)
{
    const ls_device *d = c->dev;
    ls_lane *lane[N_LANE] = {0};
    ls_mark now = 0;
    double there = 0;
    char text[64] = "";
    for (int k = 0; t && k < N_LANE && c->ops->device_row[k]; k++) {
        snprintf(text, sizeof text, "%.24s %s", name, c->ops->device_row[k]);
        LS_TRY(ls_trace_lane(t, text, COMM_TRACE_SPANS, &lane[k]));
    }
    if (t) snprintf(text, sizeof text, "%.24s %s", name, c->ops->inner_row);
    LS_TRY(ls_comm_trace(c->inner, t, text));
    LS_TRY(comm_lane_mark(d, 0, 0, &now));
    LS_TRY(d->wait(d->ctx, now));
    const double here = ls_now();
    LS_TRY(d->seconds(d->ctx, now, &there));
    pthread_mutex_lock(&c->lock);
    c->clock = here - there;
    memcpy(c->trace_device, lane, sizeof lane);
    pthread_mutex_unlock(&c->lock);
    return LS_OK;
}

ls_status comm_device_post(ls_comm *c, comm_req *r)
{
    r->device = owned(c->dev, r->in) || owned(c->dev, r->out);
    return r->device ? c->dev->mark(c->dev->ctx, &r->ready) : LS_OK;
}

ls_status comm_lane_mark(const ls_device *dev, int lane, ls_mark after, ls_mark *out)
{
    return dev->copy(dev->ctx, lane, NULL, NULL, 0, after, out);
}

ls_status comm_between(const ls_device *dev, ls_mark from, ls_mark to, double *begin, double *seconds)
{
    double end = 0;
    LS_TRY(dev->seconds(dev->ctx, from, begin));
    LS_TRY(dev->seconds(dev->ctx, to, &end));
    *seconds = isnan(end - *begin) ? (double)NAN : fmax(end - *begin, 0);
    return LS_OK;
}

void comm_device_span(ls_comm *c, ls_lane *lane, double begin, double seconds, ls_trace_span what)
{
    if (!lane) return;
    what.begin = (int64_t)((begin + c->clock) * 1e9);
    what.end = what.begin + (int64_t)(seconds * 1e9);
    ls_trace_push_(lane, &what);
}

static void book(ls_comm *c, const comm_time *t)
{
    double begin = 0, seconds = 0;
    if (comm_between(c->dev, t->from, t->to, &begin, &seconds) != LS_OK) {
        ls_err_clear(); /* a failure of the device is reported where its work is waited for */
        return;
    }
    ls_comm_stat *s = t->held ? &c->aside : &c->stat[t->kind][t->span.label];
    if (isnan(seconds)) {
        c->n_untimed += !t->held;
        return;
    }
    if (t->lane < 0) {
        s->exposed += seconds;
        if (t->held) return;
        c->exposed += seconds;
        c->stood[c->n_stood++ % COMM_TIMES] = (comm_stretch){begin, begin + seconds};
        return;
    }
    s->busy += seconds;
    s->timed += t->payload;
    comm_device_span(c, c->trace_device[t->lane], begin, seconds, t->span);
}

void comm_device_settle(ls_comm *c)
{
    while (c->n_timed < c->n_time) {
        const comm_time *t = &c->time[c->n_timed % COMM_TIMES];
        if (!c->dev->test(c->dev->ctx, t->to)) return;
        book(c, t);
        c->n_timed++;
    }
}

void comm_device_note(ls_comm *c, comm_time t)
{
    comm_device_settle(c);
    if (c->n_time - c->n_timed == COMM_TIMES) { /* the caller is far ahead of the device */
        c->n_untimed += !c->time[c->n_timed % COMM_TIMES].held;
        c->n_timed++;
    }
    c->time[c->n_time++ % COMM_TIMES] = t;
}

double ls_comm_exposed_between(const ls_comm *c, double from, double to)
{
    ls_comm *m = (ls_comm *)(uintptr_t)c; /* the lock is not part of what c means */
    double sum = 0;
    if (!c->stood) return 0;
    pthread_mutex_lock(&m->lock);
    comm_device_settle(m);
    for (uint64_t i = c->n_stood; i > 0 && c->n_stood - i < COMM_TIMES; i--) {
        const comm_stretch *s = &c->stood[(i - 1) % COMM_TIMES];
        if (s->end <= from) break;
        sum += fmax(0, fmin(s->end, to) - fmax(s->begin, from));
    }
    pthread_mutex_unlock(&m->lock);
    return sum;
}

void comm_device_quiet(const ls_device *dev, ls_mark m)
{
    for (const double end = ls_now() + QUIET; m && !dev->test(dev->ctx, m) && ls_now() < end;)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

ls_status comm_device_wait(ls_comm *c, ls_mark idle, ls_mark after, int kind, int label)
{
    const ls_device *d = c->dev;
    ls_mark end = 0;
    if (after && d->test(d->ctx, after)) after = 0;
    if (!idle && !after) return LS_OK;
    if (!idle) LS_TRY(d->mark(d->ctx, &idle));
    if (after) LS_TRY(d->hold(d->ctx, after));
    LS_TRY(d->mark(d->ctx, &end));
    pthread_mutex_lock(&c->lock);
    comm_device_note(
        c,
        (comm_time){.from = idle, .to = end, .kind = kind, .lane = -1, .held = c->held, .span.label = (uint16_t)label});
    pthread_mutex_unlock(&c->lock);
    return LS_OK;
}

comm_position comm_note_read(comm_note *n)
{
    comm_position p = {
        .queued = atomic_load(&n->queued), .begun = atomic_load(&n->begun), .done = atomic_load(&n->done)};
    p.ago = ls_now() - atomic_load(&n->since);
    p.kind = atomic_load(&n->kind);
    for (size_t i = 0; i < sizeof n->site; i++) p.site[i] = atomic_load_explicit(&n->site[i], memory_order_relaxed);
    return p;
}
