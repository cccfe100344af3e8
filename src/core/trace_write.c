/* trace_write.c - lanes to Chrome's trace format, and the parts of all workers to one file.
 *
 *   {"displayTimeUnit": "ms", "traceEvents": [
 *   {"name": "process_name", "ph": "M", "pid": 0, …},
 *   {"name": "forward h.3", "cat": "unit", "ph": "X", "ts": 12.345, "dur": 6.789, "pid": 0, "tid": 1, "args": {…}},
 *   …
 *   {"name": "lockstep", "ph": "M", …}
 *   ]}
 *
 * One event per line, so that parts are merged and summaries are made without holding a trace in memory. Times are microseconds with
 * three decimals: nanoseconds, exactly, so that what was nested stays nested. */
#include "core/trace_impl.h"

#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
#define FOOT "\n]}\n"

static const char *category(ls_span_kind kind)
{
    switch (kind) {
#define X(k, word, before) \
    case k: return word;
        LS_SPAN_LIST(X)
#undef X
    case LS_N_SPAN: break;
    }
    return "?";
}

static const char *before_name(ls_span_kind kind)
{
    switch (kind) {
#define X(k, word, before) \
    case k: return before;
        LS_SPAN_LIST(X)
#undef X
    case LS_N_SPAN: break;
    }
    return "";
}

/* "…/src/train/step.c:70" -> "train/step.c:70" */
static const char *short_site(const char *site)
{
    const char *src = strstr(site, "src/"), *next;
    while (src && (next = strstr(src + 4, "src/"))) src = next;
    return src ? src + 4 : site;
}

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

static void put_name(part *p, const ls_trace *t, int tid, const char *what, const char *name)
{
    ls_jsonw w;
    ls_jsonw_init(&w, next_line(p), 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "name", what);
    ls_jsonw_put_str(&w, "ph", "M");
    ls_jsonw_put_int(&w, "pid", t->rank);
    ls_jsonw_put_int(&w, "tid", tid);
    ls_jsonw_put_open(&w, "args", '{');
    ls_jsonw_put_str(&w, "name", name);
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
}

static void put_order(part *p, const ls_trace *t, int tid, const char *what, int place)
{
    ls_str_addf(next_line(p),
                "{\"name\": \"%s\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"sort_index\": %d}}", what,
                t->rank, tid, place);
}

/* What a reader must know beside the events: how many are missing, how well the clocks agree. */
static void put_facts(part *p, const ls_trace *t, const char *host)
{
    ls_jsonw w;
    ls_jsonw_init(&w, next_line(p), 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "name", "lockstep_rank");
    ls_jsonw_put_str(&w, "ph", "M");
    ls_jsonw_put_int(&w, "pid", t->rank);
    ls_jsonw_put_int(&w, "tid", 0);
    ls_jsonw_put_open(&w, "args", '{');
    ls_jsonw_put_str(&w, "host", host);
    ls_jsonw_put_int(&w, "spans", ls_trace_spans(t));
    ls_jsonw_put_int(&w, "dropped", ls_trace_dropped(t));
    ls_jsonw_put_open(&w, "clock_fixes", '[');
    for (int i = 0; i < t->n_fix; i++) {
        ls_jsonw_open(&w, '{');
        ls_jsonw_put_int(&w, "offset_ns", t->fix[i].offset);
        ls_jsonw_put_int(&w, "error_ns", t->fix[i].error);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
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
    ls_str_addf(o, "{\"name\": \"%s%s", before_name((ls_span_kind)s->kind), s->name);
    if (s->index) ls_str_addf(o, ".%d", s->index - 1);
    ls_str_addf(o, "\", \"cat\": \"%s\", \"ph\": \"X\"", category((ls_span_kind)s->kind));
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
        ls_str_addf(o, "%s\"%s\": \"%s\"", comma, device ? "for" : "site", device ? s->site : short_site(s->site));
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
    trace_range(l, &first, &end);
    if (end == first) return LS_OK; /* a lane that nobody used is not shown */
    const ls_trace_span **order = ls_alloc((size_t)(end - first) * sizeof(ls_trace_span *));
    if (!order) return ls_nomem((size_t)(end - first) * sizeof *order, "a trace");
    for (uint64_t i = first; i < end; i++) order[i - first] = &l->span[i & (l->cap - 1)];
    qsort(order, (size_t)(end - first), sizeof *order, by_begin);
    put_name(p, t, tid, "thread_name", l->name);
    put_order(p, t, tid, "thread_sort_index", tid);
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
    ls_str name = {0};
    int tid = 1;
    ls_str_addf(&name, "rank %d (%s)", t->rank, host);
    ls_str_add(&p->text, HEAD);
    put_name(p, t, 0, "process_name", name.data);
    ls_str_fini(&name);
    put_order(p, t, 0, "process_sort_index", t->rank);
    put_facts(p, t, host);
    for (const ls_lane *l = t->lane; l; l = l->next) LS_TRY(put_lane(p, t, tid++, l));
    ls_str_add(&p->text, FOOT);
    return flush(p, 0);
}

static char *part_path(const char *dir, int rank)
{
    return ls_asprintf("%s/trace.rank%d.json", dir, rank);
}

ls_status ls_trace_write(const ls_trace *t, const char *dir, const char *host)
{
    part p = {.first = true};
    char *path = part_path(dir, t->rank);
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = ls_fs_out_open(&p.out, path);
    ls_free(path);
    LS_TRY(st);
    st = put_all(&p, t, host);
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
    for (size_t at = strlen(HEAD); st == LS_OK && at < map.n - strlen(FOOT);) {
        const size_t left = map.n - strlen(FOOT) - at, n = left < 1 << 20 ? left : 1 << 20;
        st = ls_fs_out_append(out, data + at, n);
        at += n;
    }
    ls_fs_map_close(&map);
    return st;
}

ls_status ls_trace_merge(const char *dir, int n)
{
    ls_fs_out out;
    char *path = ls_path_join(dir, "trace.json");
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = ls_fs_out_open(&out, path);
    ls_free(path);
    LS_TRY(st);
    st = ls_fs_out_append(&out, HEAD, strlen(HEAD));
    for (int r = 0; r < n && st == LS_OK; r++) {
        path = part_path(dir, r);
        st = path ? copy_part(&out, path, r == 0) : ls_nomem(strlen(dir), "a path");
        ls_free(path);
    }
    if (st == LS_OK) st = ls_fs_out_append(&out, FOOT, strlen(FOOT));
    if (st != LS_OK) {
        ls_fs_out_abort(&out);
        return st;
    }
    LS_TRY(ls_fs_out_commit(&out));
    for (int r = 0; r < n; r++) {
        path = part_path(dir, r);
        if (path && unlink(path) && errno != ENOENT) st = ls_fail(LS_E_IO, "remove %s: %s", path, strerror(errno));
        ls_free(path);
    }
    return st;
}
