/* trace.c - recording: a ring of spans for each thread. */
#include "core/trace_impl.h"

#include "core/mem.h"
#include "core/nvtx.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

_Thread_local ls_lane *ls_trace_here_;
_Thread_local ls_trace_place ls_trace_unit;

int64_t ls_trace_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void ls_trace_push_(ls_lane *l, const ls_trace_span *s)
{
    const uint64_t n = atomic_load_explicit(&l->n, memory_order_relaxed); /* this thread alone changes it */
    l->span[n & (l->cap - 1)] = *s;
    atomic_store_explicit(&l->n, n + 1, memory_order_release);
}

void ls_trace_end_(int64_t begin, const ls_trace_span *s)
{
    ls_trace_span whole = *s;
    if (!ls_trace_here_) return; /* it left its lane in between */
    whole.begin = begin;
    whole.end = ls_trace_now();
    ls_trace_push_(ls_trace_here_, &whole);
}

bool ls_unit_ranges_(void)
{
    return ls_nvtx_on();
}

void ls_unit_range_push_(const ls_trace_span *s)
{
    char words[64];
    ls_nvtx_push(ls_span_words(s, words));
}

void ls_unit_end(int64_t begin, const ls_trace_span *s)
{
    if (begin) ls_trace_end_(begin, s);
    if (ls_nvtx_on()) ls_nvtx_pop();
    ls_trace_unit = (ls_trace_place){0};
}

const char *ls_span_words(const ls_trace_span *s, char buf[64])
{
    static const char *const before[] = {
#define X(kind, category, words) words,
        LS_SPAN_LIST(X)
#undef X
    };
    if (s->index) snprintf(buf, 64, "%s%.30s.%d", before[s->kind], s->name, s->index - 1);
    else snprintf(buf, 64, "%s%.40s", before[s->kind], s->name);
    return buf;
}

void ls_trace_enter(ls_lane *l)
{
    ls_trace_here_ = l;
}

ls_status ls_trace_create(ls_trace **out, int rank)
{
    ls_trace *t = ls_alloc(sizeof *t);
    if (!t) return ls_nomem(sizeof *t, "a trace");
    t->rank = rank;
    t->tail = &t->lane;
    t->base = ls_trace_now();
    *out = t;
    return LS_OK;
}

void ls_trace_destroy(ls_trace **tp)
{
    ls_trace *t = *tp;
    if (!t) return;
    for (ls_lane *l = t->lane, *next; l; l = next) {
        next = l->next;
        ls_free(l->span);
        ls_free(l);
    }
    for (trace_text *x = t->text, *next; x; x = next) {
        next = x->next;
        ls_free(x);
    }
    ls_free(t);
    *tp = NULL;
}

ls_status ls_trace_lane(ls_trace *t, const char *name, int64_t n_span, ls_lane **out)
{
    uint64_t cap = 2 * TRACE_SLACK;
    while (cap < (uint64_t)n_span) cap *= 2;
    ls_lane *l = ls_alloc(sizeof *l);
    ls_trace_span *span = ls_alloc(cap * sizeof *span);
    if (!l || !span) {
        ls_free(l);
        ls_free(span);
        return ls_nomem(cap * sizeof *span, "a lane of the trace");
    }
    snprintf(l->name, sizeof l->name, "%s", name);
    l->cap = cap;
    l->span = span;
    atomic_init(&l->n, 0);
    *t->tail = l;
    t->tail = &l->next;
    t->n_lane++;
    *out = l;
    return LS_OK;
}

const char *ls_trace_text(ls_trace *t, const char *text)
{
    const size_t n = strlen(text) + 1;
    trace_text *x = ls_alloc(sizeof *x + n);
    if (!x) return NULL;
    memcpy(x->text, text, n);
    x->next = t->text;
    t->text = x;
    return x->text;
}

ls_status ls_trace_lane_again(ls_trace *t, const char *name, int64_t n_span, ls_lane **out)
{
    for (*out = t->lane; *out; *out = (*out)->next)
        if (!strcmp((*out)->name, name)) return LS_OK;
    return ls_trace_lane(t, name, n_span, out);
}

void ls_trace_set_base(ls_trace *t, int64_t base)
{
    t->base = base;
}

void ls_trace_clock(ls_trace *t, int64_t at, int64_t offset, int64_t error)
{
    t->fix[t->n_fix > 0] = (trace_fix){at, offset, error};
    if (t->n_fix < 2) t->n_fix++;
}

void trace_range(const ls_lane *l, uint64_t *first, uint64_t *end)
{
    *end = atomic_load_explicit(&l->n, memory_order_acquire);
    *first = *end > l->cap ? *end - l->cap + TRACE_SLACK : 0;
}

int64_t ls_trace_dropped(const ls_trace *t)
{
    uint64_t sum = 0, first, end;
    for (const ls_lane *l = t->lane; l; l = l->next) {
        trace_range(l, &first, &end);
        sum += first;
    }
    return (int64_t)sum;
}

int64_t ls_trace_spans(const ls_trace *t)
{
    uint64_t sum = 0, first, end;
    for (const ls_lane *l = t->lane; l; l = l->next) {
        trace_range(l, &first, &end);
        sum += end - first;
    }
    return (int64_t)sum;
}
