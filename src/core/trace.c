/* trace.c - recording, a ring of spans for each thread; and writing: lanes to Chrome's trace format, the parts of all workers to one file. */
#include "core/trace.h"

#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/nvtx.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Spans that are not read at the old end of a full lane: a thread that is still writing (a failed run) overwrites there. */
#define TRACE_SLACK 16

struct ls_lane {
    char name[48];
    uint64_t cap;       /* a power of two                        */
    _Atomic uint64_t n; /* spans recorded; span i is at i % cap  */
    ls_trace_span *span;
    ls_lane *next;
};

typedef struct trace_fix {
    int64_t at, offset, error;
} trace_fix;

typedef struct trace_text {
    struct trace_text *next;
    char text[];
} trace_text;

struct ls_trace {
    int rank, n_lane, n_fix;
    int64_t base;
    trace_fix fix[2]; /* the first and the last */
    ls_lane *lane, **tail;
    trace_text *text;
};

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

int64_t ls_unit_begin(int u, const ls_trace_span *s)
{
    char words[64];
    ls_trace_unit = (ls_trace_place){(uint32_t)s->kind << 12 | ((uint32_t)u + 1), s->index, s->name};
    if (ls_nvtx_on()) ls_nvtx_push(ls_span_words(s, words));
    return ls_span_begin();
}

void ls_unit_end(int64_t begin, const ls_trace_span *s)
{
    if (begin) ls_trace_end_(begin, s);
    if (ls_nvtx_on()) ls_nvtx_pop();
    ls_trace_unit = (ls_trace_place){0};
}

static const struct {
    const char *category, *before_name;
} span_kind[] = {
#define X(kind, category, before) {category, before},
    LS_SPAN_LIST(X)
#undef X
};

const char *ls_span_words(const ls_trace_span *s, char buf[64])
{
    const char *before = span_kind[s->kind].before_name;
    if (s->index) snprintf(buf, 64, "%s%.30s.%d", before, s->name, s->index - 1);
    else snprintf(buf, 64, "%s%.40s", before, s->name);
    return buf;
}

ls_lane *ls_trace_enter(ls_lane *l)
{
    ls_lane *was = ls_trace_here_;
    ls_trace_here_ = l;
    return was;
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
    for (*out = t->lane; *out; *out = (*out)->next)
        if (!strcmp((*out)->name, name)) return LS_OK;
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

void ls_trace_set_base(ls_trace *t, int64_t base)
{
    t->base = base;
}

void ls_trace_clock(ls_trace *t, int64_t at, int64_t offset, int64_t error)
{
    t->fix[t->n_fix > 0] = (trace_fix){at, offset, error};
    if (t->n_fix < 2) t->n_fix++;
}

/* The lane's oldest readable span and one after its newest. */
static void range(const ls_lane *l, uint64_t *first, uint64_t *end)
{
    *end = atomic_load_explicit(&l->n, memory_order_acquire);
    *first = *end > l->cap ? *end - l->cap + TRACE_SLACK : 0;
}

int64_t ls_trace_spans(const ls_trace *t, int64_t *dropped)
{
    uint64_t kept = 0, lost = 0, first, end;
    for (const ls_lane *l = t->lane; l; l = l->next) {
        range(l, &first, &end);
        kept += end - first;
        lost += first;
    }
    if (dropped) *dropped = (int64_t)lost;
    return (int64_t)kept;
}

/* ---- files ----
 *
 *   {"displayTimeUnit": "ms", "traceEvents": [
 *   {"name": "process_name", "ph": "M", "pid": 0, …},
 *   {"name": "forward h.3", "cat": "unit", "ph": "X", "ts": 12.345, "dur": 6.789, "pid": 0, "tid": 1, "args": {…}},
 *   …
 *   ]}
 *
 * One event per line, so that parts are merged and summaries are made without holding a trace in memory. Times are microseconds with
 * three decimals: nanoseconds, exactly, so that what was nested stays nested. */
#define HEAD "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
#define FOOT "\n]}\n"

/* A moment of this worker's clock on rank 0's, counted from the base. */
static int64_t on_one_clock(const ls_trace *t, int64_t at)
{
    int64_t offset = t->n_fix ? t->fix[0].offset : 0;
    if (t->n_fix == 2 && t->fix[1].at > t->fix[0].at) {
        const double part = (double)(at - t->fix[0].at) / (double)(t->fix[1].at - t->fix[0].at);
        offset += (int64_t)(part * (double)(t->fix[1].offset - t->fix[0].offset));
    }
    const int64_t x = at - offset - t->base;
    return x > 0 ? x : 0; /* an estimate may place the first moments before the beginning */
}

static void put_time(ls_str *s, const char *key, int64_t ns)
{
    ls_str_addf(s, ", \"%s\": %" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

typedef struct part { /* a file being written */
    ls_fs_out out;
    ls_str text;
    bool first;
} part;

static ls_status flush(part *p, size_t from)
{
    if (p->text.failed) return ls_nomem(p->text.cap, "a trace");
    if (p->text.len < from) return LS_OK;
    LS_TRY(ls_fs_out_append(&p->out, p->text.data, p->text.len));
    p->text.len = 0;
    return LS_OK;
}

static ls_str *next_line(part *p)
{
    if (!p->first) ls_str_add(&p->text, ",\n");
    p->first = false;
    return &p->text;
}

/* An event that describes the worker or a lane, up to the members of its arguments; end_fact closes it. */
static void begin_fact(ls_jsonw *w, part *p, const ls_trace *t, int tid, const char *what)
{
    ls_jsonw_init(w, next_line(p), 0);
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("name", what), LS_KV("ph", "M"), LS_KV("pid", t->rank), LS_KV("tid", tid));
    ls_jsonw_put_open(w, "args", '{');
}

static void end_fact(ls_jsonw *w)
{
    ls_jsonw_close(w);
    ls_jsonw_close(w);
}

/* The name of a row of the picture and its place: what is "process" or "thread". */
static void put_row(part *p, const ls_trace *t, int tid, const char *what, const char *name, int place)
{
    ls_jsonw w;
    char event[32];
    snprintf(event, sizeof event, "%s_name", what);
    begin_fact(&w, p, t, tid, event);
    ls_jsonw_put_str(&w, "name", name);
    end_fact(&w);
    snprintf(event, sizeof event, "%s_sort_index", what);
    begin_fact(&w, p, t, tid, event);
    ls_jsonw_put_int(&w, "sort_index", place);
    end_fact(&w);
}

/* What a reader must know beside the events: how many are missing, how well the clocks agree. */
static void put_facts(part *p, const ls_trace *t, const char *host)
{
    ls_jsonw w;
    int64_t dropped;
    begin_fact(&w, p, t, 0, "lockstep_rank");
    const int64_t spans = ls_trace_spans(t, &dropped);
    ls_jsonw_members(&w, LS_KV("host", host), LS_KV("spans", spans), LS_KV("dropped", dropped));
    ls_jsonw_put_open(&w, "clock_fixes", '[');
    for (int i = 0; i < t->n_fix; i++) {
        ls_jsonw_open(&w, '{');
        ls_jsonw_members(&w, LS_KV("offset_ns", t->fix[i].offset), LS_KV("error_ns", t->fix[i].error));
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    end_fact(&w);
}

static void put_counter(part *p, const ls_trace *t, const ls_trace_span *s)
{
    char number[32];
    ls_str *o = next_line(p);
    ls_str_addf(o, "{\"name\": \"%s\", \"ph\": \"C\"", s->name);
    put_time(o, "ts", on_one_clock(t, s->begin));
    ls_str_addf(o, ", \"pid\": %d, \"args\": {\"%s\": %s}}", t->rank, s->name, ls_json_real(number, s->value));
}

static void put_span(part *p, const ls_trace *t, int tid, const ls_trace_span *s)
{
    if (s->kind == LS_SPAN_COUNTER) {
        put_counter(p, t, s);
        return;
    }
    ls_str *o = next_line(p);
    const int64_t begin = on_one_clock(t, s->begin), end = on_one_clock(t, s->end);
    const char *comma = "";
    ls_str_addf(o, "{\"name\": \"%s%s", span_kind[s->kind].before_name, s->name);
    if (s->index) ls_str_addf(o, ".%d", s->index - 1);
    ls_str_addf(o, "\", \"cat\": \"%s\", \"ph\": \"X\"", span_kind[s->kind].category);
    put_time(o, "ts", begin);
    put_time(o, "dur", end > begin ? end - begin : 0);
    ls_str_addf(o, ", \"pid\": %d, \"tid\": %d, \"args\": {", t->rank, tid);
    if (s->micro) ls_str_addf(o, "\"micro\": %d", s->micro - 1), comma = ", ";
    if (s->label && s->kind == LS_SPAN_PIPE) ls_str_addf(o, "%s\"chunk\": %d", comma, s->label - 1), comma = ", ";
    else if (s->label) ls_str_addf(o, "%s\"bucket\": %d", comma, s->label), comma = ", ";
    if (s->seq) ls_str_addf(o, "%s\"seq\": %" PRIu64, comma, s->seq), comma = ", ";
    if (s->bytes) ls_str_addf(o, "%s\"bytes\": %" PRId64, comma, s->bytes), comma = ", ";
    const bool device = s->kind == LS_SPAN_KERNEL || s->kind == LS_SPAN_COPY;
    if (s->site)
        ls_str_addf(o, "%s\"%s\": \"%s\"", comma, device ? "for" : "site", device ? s->site : ls_short_path(s->site));
    ls_str_add(o, "}}");
}

/* Spans are in the order of their ends. In the file: of their begins, and the outer one of two that begin together first. */
static int by_begin(const void *a, const void *b)
{
    const ls_trace_span *x = *(const ls_trace_span *const *)a, *y = *(const ls_trace_span *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end > y->end ? -1 : 1;
    return x > y ? -1 : x < y; /* of two empty ones the later recorded is the outer one */
}

static ls_status put_lane(part *p, const ls_trace *t, int tid, const ls_lane *l)
{
    uint64_t first, end;
    range(l, &first, &end);
    if (end == first) return LS_OK; /* a lane that nobody used is not shown */
    const ls_trace_span **order = ls_alloc((size_t)(end - first) * sizeof(ls_trace_span *));
    if (!order) return ls_nomem((size_t)(end - first) * sizeof *order, "a trace");
    for (uint64_t i = first; i < end; i++) order[i - first] = &l->span[i & (l->cap - 1)];
    qsort(order, (size_t)(end - first), sizeof *order, by_begin);
    put_row(p, t, tid, "thread", l->name, tid);
    ls_status st = LS_OK;
    for (uint64_t i = 0; i < end - first && st == LS_OK; i++) {
        put_span(p, t, tid, order[i]);
        st = flush(p, 1 << 20);
    }
    ls_free(order);
    return st;
}

static ls_status put_all(part *p, const ls_trace *t, const char *host)
{
    char name[320];
    int tid = 1;
    snprintf(name, sizeof name, "rank %d (%s)", t->rank, host);
    ls_str_add(&p->text, HEAD);
    put_row(p, t, 0, "process", name, t->rank);
    put_facts(p, t, host);
    for (const ls_lane *l = t->lane; l; l = l->next) LS_TRY(put_lane(p, t, tid++, l));
    ls_str_add(&p->text, FOOT);
    return flush(p, 0);
}

#define PART "trace.rank%d.json"

ls_status ls_trace_write(const ls_trace *t, const char *dir, const char *host)
{
    part p = {.first = true};
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, dir, PART, t->rank));
    LS_TRY(ls_fs_out_open(&p.out, path));
    ls_status st = put_all(&p, t, host);
    if (st == LS_OK) st = ls_fs_out_commit(&p.out);
    else ls_fs_out_abort(&p.out);
    ls_str_fini(&p.text);
    return st;
}

/* Copies the events of a part; the last line has no comma yet. */
static ls_status copy_part(ls_fs_out *out, const char *path, bool first)
{
    ls_fs_map map;
    LS_TRY(ls_fs_map_open(&map, path)); /* pages come and go: nothing is held */
    const size_t edge = strlen(HEAD) + strlen(FOOT);
    ls_status st = LS_OK;
    const char *data = map.data;
    if (map.n < edge || memcmp(data, HEAD, strlen(HEAD)) || memcmp(data + map.n - strlen(FOOT), FOOT, strlen(FOOT)))
        st = ls_fail(LS_E_FORMAT, "%s is not a trace part written by this version of lockstep", path);
    if (st == LS_OK && !first) st = ls_fs_out_append(out, ",\n", 2);
    if (st == LS_OK) st = ls_fs_out_append(out, data + strlen(HEAD), map.n - edge);
    ls_fs_map_close(&map);
    return st;
}

ls_status ls_trace_merge(const char *dir, int n)
{
    ls_fs_out out;
    char path[PATH_MAX];
    LS_TRY(ls_path_in(path, dir, "trace.json"));
    LS_TRY(ls_fs_out_open(&out, path));
    ls_status st = ls_fs_out_append(&out, HEAD, strlen(HEAD));
    for (int r = 0; r < n && st == LS_OK; r++) {
        st = ls_path_in(path, dir, PART, r);
        if (st == LS_OK) st = copy_part(&out, path, r == 0);
    }
    if (st == LS_OK) st = ls_fs_out_append(&out, FOOT, strlen(FOOT));
    if (st != LS_OK) {
        ls_fs_out_abort(&out);
        return st;
    }
    LS_TRY(ls_fs_out_commit(&out));
    for (int r = 0; r < n; r++) {
        LS_TRY(ls_path_in(path, dir, PART, r));
        if (ls_fs_unlink(path, false) && errno != ENOENT)
            st = ls_fail(LS_E_IO, "cannot remove %s: %s", path, ls_fs_why(errno));
    }
    return st;
}
