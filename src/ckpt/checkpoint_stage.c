/* checkpoint_stage.c - copies between device memory and files.
 *
 *   out   copies run in a separate copy queue during operations, one chunk ahead of hashing and writing:
 *           mark (the trainer's thread)   copy 0 → | copy 1 → | copy 2 → | …
 *                                                  | write 0  | write 1  | …
 *   in    chunks are assembled in host memory and copied one by one
 *
 * A shard may have many short spans; spans that are adjacent in memory are copied together, even if they are apart in the file. */
#include "ckpt/checkpoint_impl.h"

#include "core/deadline.h"
#include "core/mem.h"

#include <string.h>

#define CHUNK ((size_t)4 << 20)

ls_status ckpt_stage_open(ckpt_stage *s, const ls_compute *c)
{
    const ls_device *d = c->device;
    *s = (ckpt_stage){0};
    if (!d) return LS_OK;
    LS_TRY(d->lane_open(d->ctx, &s->lane));
    s->device = d;
    void *both = NULL;
    ls_status st = d->alloc_host(d->ctx, 2 * CHUNK, &both);
    s->buf[0] = both;
    s->buf[1] = s->buf[0] + (both ? CHUNK : 0);
    if (st != LS_OK) ckpt_stage_close(s);
    return st;
}

void ckpt_stage_close(ckpt_stage *s)
{
    const ls_device *d = s->device;
    if (!d) return;
    if (s->buf[0]) d->release_host(d->ctx, s->buf[0]);
    d->lane_close(d->ctx, s->lane);
    *s = (ckpt_stage){0};
}

ls_status ckpt_stage_mark(ckpt_stage *s)
{
    return s->device ? s->device->mark(s->device->ctx, &s->ready) : LS_OK;
}

bool ckpt_on_device(const ls_compute *c, const void *p)
{
    return c->device && c->device->owns(c->device->ctx, p);
}

/* ---- out ---- */

/* A position in the bytes of a part: never at the end of a span. */
typedef struct cursor {
    int span;
    size_t off;
} cursor;

/* Moves on by n bytes, at most to the end of the span; returns how many they were. */
static size_t advance(const ckpt_part *p, cursor *c, size_t n)
{
    const size_t left = p->span[c->span].nbytes - c->off, k = n < left ? n : left;
    *c = k < left ? (cursor){c->span, c->off + k} : (cursor){c->span + 1, 0};
    return k;
}

/* One copy. n == 0: there is nothing to copy. */
typedef struct chunk {
    size_t n;
    ls_mark there;
} chunk;

/* Copies from `next` on, as far as spans are in device memory and adjacent; `next` becomes the position after it. */
static ls_status fetch(ckpt_stage *s, const ckpt_part *p, cursor *next, int which, chunk *c)
{
    const ls_device *d = s->device;
    const ls_mark after = s->ready;
    const char *begin = next->span < p->n ? (const char *)p->span[next->span].data + next->off : NULL;
    c->n = 0;
    while (next->span < p->n && p->span[next->span].device && c->n < CHUNK &&
           (const char *)p->span[next->span].data + next->off == begin + c->n)
        c->n += advance(p, next, CHUNK - c->n);
    if (!c->n) return LS_OK;
    s->ready = 0; /* the copy queue is ordered: the first copy waits for all */
    return d->copy(d->ctx, s->lane, s->buf[which], begin, c->n, after, &c->there);
}

/* n bytes of host memory that does not change. */
static ls_status put_chunk(const char *data, size_t n, int64_t at, ckpt_room_fn *room, void *ctx)
{
    while (n) {
        size_t k = n;
        char *to;
        LS_TRY(room(ctx, at, &k, &to));
        memcpy(to, data, k);
        data += k;
        at += (int64_t)k;
        n -= k;
    }
    return LS_OK;
}

/* Spans from *i on while they are in device memory. */
static ls_status put_device(ckpt_stage *s, const ckpt_part *p, int *i, ckpt_room_fn *room, void *ctx)
{
    cursor at = {*i, 0}, next = at;
    chunk c[2];
    LS_TRY(fetch(s, p, &next, 0, &c[0]));
    for (int which = 0; c[which].n; which = !which) {
        LS_TRY(fetch(s, p, &next, !which, &c[!which]));
        LS_TRY(s->device->wait(s->device->ctx, c[which].there));
        for (size_t done = 0; done < c[which].n;) {
            const int64_t to = p->span[at.span].at + (int64_t)at.off;
            const char *data = s->buf[which] + done;
            const size_t k = advance(p, &at, c[which].n - done);
            LS_TRY(put_chunk(data, k, to, room, ctx));
            done += k;
        }
    }
    *i = at.span;
    return LS_OK;
}

void ckpt_stage_lock(const ckpt_stage *s)
{
    if (s->reading) pthread_mutex_lock(s->reading);
}

void ckpt_stage_unlock(const ckpt_stage *s)
{
    if (s->reading) pthread_mutex_unlock(s->reading);
}

/* `room` may write to a disk: the span may refer to a copy afterwards. */
static ls_status put_host(const ckpt_stage *s, ckpt_span *x, ckpt_room_fn *room, void *ctx)
{
    while (x->nbytes) {
        size_t n = x->nbytes;
        char *to;
        LS_TRY(room(ctx, x->at, &n, &to));
        ckpt_stage_lock(s);
        memcpy(to, x->data, n);
        x->data = (const char *)x->data + n;
        x->at += (int64_t)n;
        x->nbytes -= n;
        ckpt_stage_unlock(s);
    }
    return LS_OK;
}

ls_status ckpt_stage_put(ckpt_stage *s, ckpt_part *p, ckpt_room_fn *room, void *ctx)
{
    for (int i = 0; i < p->n;) {
        if (p->span[i].device) LS_TRY(put_device(s, p, &i, room, ctx));
        else LS_TRY(put_host(s, &p->span[i++], room, ctx));
    }
    return LS_OK;
}

/* Copies adjacent spans of device memory from *i on. */
static ls_status take_device(ckpt_stage *s, ckpt_part *p, int *i, char **room, ls_mark *last)
{
    const char *const begin = p->span[*i].data;
    const ls_mark after = s->ready;
    size_t n = 0;
    for (; *i < p->n && p->span[*i].device && (const char *)p->span[*i].data == begin + n; (*i)++) {
        ckpt_span *x = &p->span[*i];
        x->data = *room + n;
        x->device = false;
        n += x->nbytes;
    }
    char *to = *room;
    *room += n;
    s->ready = 0;
    return s->device->copy(s->device->ctx, s->lane, to, begin, n, after, last);
}

static bool within(const ls_str *s, const void *p)
{
    return (uintptr_t)p >= (uintptr_t)s->data && (uintptr_t)p < (uintptr_t)s->data + s->len;
}

ls_status ckpt_stage_take(ckpt_stage *s, ckpt_part *p, const ls_str *head, char **room)
{
    ls_mark last = 0;
    for (int i = 0; i < p->n;) {
        ckpt_span *x = &p->span[i];
        if (x->device) {
            LS_TRY(take_device(s, p, &i, room, &last));
            continue;
        }
        i++;
        if (!x->nbytes || within(head, x->data)) continue;
        memcpy(*room, x->data, x->nbytes);
        x->data = *room;
        *room += x->nbytes;
        ls_deadline_tick();
    }
    return last ? s->device->wait(s->device->ctx, last) : LS_OK; /* the copies are in order */
}

/* ---- in ---- */

ls_status ckpt_fill_open(ckpt_fill *f, const ls_compute *c)
{
    *f = (ckpt_fill){.compute = c};
    if (!c->device) return LS_OK;
    void *buf = NULL;
    LS_TRY(c->device->alloc_host(c->device->ctx, CHUNK, &buf));
    f->buf = buf;
    return LS_OK;
}

static ls_status flush(ckpt_fill *f)
{
    if (f->n) LS_TRY(ls_compute_write(f->compute, f->to, f->buf, f->n));
    f->n = 0;
    return LS_OK;
}

ls_status ckpt_fill_next(ckpt_fill *f, void *to, size_t nbytes, void **room, size_t *n)
{
    if (!f->buf || !ckpt_on_device(f->compute, to)) {
        *room = to;
        *n = nbytes;
        return LS_OK;
    }
    if (f->n == CHUNK || (f->n && f->to + f->n != (char *)to)) LS_TRY(flush(f));
    if (!f->n) f->to = to;
    *room = f->buf + f->n;
    *n = nbytes < CHUNK - f->n ? nbytes : CHUNK - f->n;
    f->n += *n;
    return LS_OK;
}

ls_status ckpt_fill_close(ckpt_fill *f, ls_status st)
{
    if (!f->buf) return st;
    if (st == LS_OK) st = flush(f);
    f->compute->device->release_host(f->compute->device->ctx, f->buf);
    f->buf = NULL;
    return st;
}
