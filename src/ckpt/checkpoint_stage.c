/* checkpoint_stage.c - copies between device memory and files.
 *
 *   out   copies run in a separate copy queue during operations, one chunk ahead of hashing and writing:
 *           mark (the trainer's thread)   copy 0 → | copy 1 → | copy 2 → | …
 *                                                  | write 0  | write 1  | …
 *   in    chunks are assembled in host memory and copied one by one
 *
 * A shard may have many short spans; spans that are adjacent in memory are copied together, even if they are apart in the file. */
#include "ckpt/checkpoint_impl.h"

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

/* Bytes of one copy: from byte `off` of a span, and of the following spans while they are adjacent. */
typedef struct chunk {
    int span;
    size_t off, n;
    ls_mark there;
} chunk;

static bool chunk_at(const ckpt_part *p, int span, size_t off, chunk *c)
{
    if (span < p->n && off == p->span[span].nbytes) span++, off = 0;
    if (span == p->n || !p->span[span].device) return false;
    const char *end = (const char *)p->span[span].data + p->span[span].nbytes;
    *c = (chunk){.span = span, .off = off, .n = p->span[span].nbytes - off};
    for (int i = span + 1; i < p->n && c->n < CHUNK && p->span[i].device && p->span[i].data == end; i++) {
        end += p->span[i].nbytes;
        c->n += p->span[i].nbytes;
    }
    if (c->n > CHUNK) c->n = CHUNK;
    return true;
}

static ls_status fetch(ckpt_stage *s, const ckpt_part *p, chunk *c, int which)
{
    const ls_device *d = s->device;
    const ls_mark after = s->ready;
    s->ready = 0; /* the copy queue is ordered: the first copy waits for all */
    return d->copy(d->ctx, s->lane, s->buf[which], (const char *)p->span[c->span].data + c->off, c->n, after,
                   &c->there);
}

/* Passes a chunk on, span by span; *c becomes the position after it. */
static ls_status put_chunk(const ckpt_part *p, chunk *c, const char *data, ckpt_put_fn *put, void *ctx)
{
    while (c->n) {
        const ckpt_span *x = &p->span[c->span];
        const size_t k = c->n < x->nbytes - c->off ? c->n : x->nbytes - c->off;
        LS_TRY(put(ctx, x->at + (int64_t)c->off, data, k));
        data += k;
        c->n -= k;
        c->off += k;
        if (c->n) c->span++, c->off = 0;
    }
    return LS_OK;
}

/* Spans from *i on while they are in device memory. */
static ls_status put_device(ckpt_stage *s, const ckpt_part *p, int *i, ckpt_put_fn *put, void *ctx)
{
    chunk at, next;
    int which = 0;
    bool more = chunk_at(p, *i, 0, &at);
    if (more) LS_TRY(fetch(s, p, &at, which));
    while (more) {
        chunk end = at; /* where this one ends, the next begins */
        for (size_t left = at.n; left;) {
            const size_t k = p->span[end.span].nbytes - end.off;
            if (left <= k) end.off += left, left = 0;
            else left -= k, end.span++, end.off = 0;
        }
        more = chunk_at(p, end.span, end.off, &next);
        if (more) LS_TRY(fetch(s, p, &next, !which));
        LS_TRY(s->device->wait(s->device->ctx, at.there));
        LS_TRY(put_chunk(p, &at, s->buf[which], put, ctx));
        *i = end.span + 1;
        at = next;
        which = !which;
    }
    return LS_OK;
}

ls_status ckpt_stage_put(ckpt_stage *s, const ckpt_part *p, ckpt_put_fn *put, void *ctx)
{
    for (int i = 0; i < p->n;) {
        const ckpt_span *x = &p->span[i];
        if (x->device) LS_TRY(put_device(s, p, &i, put, ctx));
        else {
            LS_TRY(put(ctx, x->at, x->data, x->nbytes));
            i++;
        }
    }
    return LS_OK;
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
