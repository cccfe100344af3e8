#include "compute/kernel_times.h"

#include "compute/named_ops.h"
#include "core/mem.h"
#include "core/plugin.h"

#include <math.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_UNIT = 1 << 16, N_PENDING = 128, SHOWN = 108, N_SHOWN = 1024, EXTRA = 4 };

typedef struct boundary { /* a mark, and for whom everything after it was queued */
    ls_mark mark;
    uint32_t place;
} boundary;

typedef struct shown { /* a name or a place, and the text for it */
    const void *key;
    const char *text;
} shown;

struct ls_kernel_times {
    ls_compute *c;
    compute_named named;
    const ls_kernel_source *source; /* NULL: marks */
    char words[300];
    ls_trace_place *unit; /* by id, those that were seen */
    shown name[N_SHOWN];  /* the source's names, which end with it, and ours */
    ls_kernel_record *record;
    int64_t n, cap, limit, missed;
    bool failed;
    boundary pending[N_PENDING];
    int n_pending;
    double device_zero[2]; /* seconds of the device's clock … */
    int64_t host_zero[2];  /* … and nanoseconds of ours, at begin and end */
};

/* ---- records ---- */

/* What a reader wants of a kernel's name: demangled, without return type and parameters, and letters that JSON takes as they are. */
static void shorten(const char *raw, char out[SHOWN])
{
    union {
        void *object;
        char *(*f)(const char *, char *, size_t *, int *);
    } demangle = {NULL};
    void *cxx = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL); /* there where a plugin needs it; stays */
    if (cxx) demangle.object = dlsym(cxx, "__cxa_demangle");
    int rc = -1;
    char *plain = raw[0] == '_' && raw[1] == 'Z' && demangle.object ? demangle.f(raw, NULL, NULL, &rc) : NULL;
    const char *s = plain && rc == 0 ? plain : raw;
    size_t n = 0;
    if (!strncmp(s, "void ", 5)) s += 5;
    for (int depth = 0; *s && n + 1 < SHOWN; s++) {
        static const char anonymous[] = "(anonymous namespace)::";
        if (!strncmp(s, anonymous, sizeof anonymous - 1)) {
            s += sizeof anonymous - 2;
            continue;
        }
        depth += *s == '<' ? 1 : *s == '>' ? -1 : 0;
        if (*s == '(' && depth == 0) break; /* its parameters */
        out[n++] = *s == '"' || *s == '\\' || *s < ' ' || *s > '~' ? '_' : *s;
    }
    out[n] = '\0';
    free(plain);
}

/* The slot of a key, or a free one; NULL: the table is full. n is a power of two. */
static shown *slot_of(shown *table, uint32_t n, const void *key)
{
    const uint32_t h = (uint32_t)((uintptr_t)key * 0x9E3779B97F4A7C15u >> 40);
    for (uint32_t i = 0; i < n; i++) {
        shown *s = &table[(h + i) & (n - 1)];
        if (s->key == key || !s->key) return s;
    }
    return NULL;
}

static const char *own_name(ls_kernel_times *k, const char *name)
{
    char text[SHOWN];
    shown *s = slot_of(k->name, N_SHOWN, name);
    if (!s) return "other kernels";
    if (s->key) return s->text;
    shorten(name, text);
    s->text = ls_strdup(text[0] ? text : "?");
    if (s->text) s->key = name;
    return s->text ? s->text : "?";
}

static void keep(void *ctx, const ls_kernel_record *r)
{
    ls_kernel_times *k = ctx;
    if (k->n == k->cap) {
        const int64_t cap = k->cap ? 2 * k->cap : 4096;
        ls_kernel_record *more = !k->cap || k->n < k->limit ? ls_realloc(k->record, (size_t)cap * sizeof *more) : NULL;
        if (!more) {
            k->missed++;
            return;
        }
        k->record = more;
        k->cap = cap;
    }
    k->record[k->n] = *r;
    k->record[k->n++].name = own_name(k, r->name);
}

static uint32_t here(ls_kernel_times *k, int op)
{
    const ls_trace_place at = ls_trace_unit;
    if (at.id && at.id < N_UNIT && !k->unit[at.id].id) k->unit[at.id] = at;
    return ls_kernel_place(at.id < N_UNIT ? at.id : 0, (uint32_t)op);
}

static uint32_t enter(void *ctx, int op)
{
    ls_kernel_times *k = ctx;
    return k->source->at(here(k, op));
}

static void leave(void *ctx, uint32_t before)
{
    (void)((ls_kernel_times *)ctx)->source->at(before);
}

/* ---- marks ---- */

static int64_t on_host(const ls_kernel_times *k, double at)
{
    double part = 0;
    if (k->device_zero[1] > k->device_zero[0])
        part = (at - k->device_zero[0]) / (k->device_zero[1] - k->device_zero[0]);
    else return k->host_zero[0] + (int64_t)((at - k->device_zero[0]) * 1e9);
    return k->host_zero[0] + (int64_t)(part * (double)(k->host_zero[1] - k->host_zero[0]));
}

/* The device has nothing to do: now on both clocks. */
static ls_status compare(ls_kernel_times *k, int end)
{
    const ls_device *d = k->c->device;
    ls_mark m = 0;
    LS_TRY(d->sync(d->ctx));
    LS_TRY(d->mark(d->ctx, &m));
    LS_TRY(d->wait(d->ctx, m));
    k->host_zero[end] = ls_trace_now();
    return d->seconds(d->ctx, m, &k->device_zero[end]);
}

/* The first n boundaries become records; their times are kept in device seconds until the end knows the drift. */
static void settle(ls_kernel_times *k, int n)
{
    const ls_device *d = k->c->device;
    for (int i = 0; i < n && i + 1 < k->n_pending; i++) {
        const boundary *a = &k->pending[i], *b = &k->pending[i + 1];
        double from = 0, to = 0;
        if (d->seconds(d->ctx, a->mark, &from) != LS_OK || d->seconds(d->ctx, b->mark, &to) != LS_OK ||
            isnan(to - from)) {
            k->failed = true;
            continue;
        }
        const ls_kernel_record r = {.name = "unit",
                                    .begin = (int64_t)((from - k->device_zero[0]) * 1e9),
                                    .end = (int64_t)((to - k->device_zero[0]) * 1e9),
                                    .place = a->place,
                                    .kind = LS_KERNEL_UNIT};
        if (a->place) keep(k, &r);
    }
    memmove(k->pending, k->pending + n, (size_t)(k->n_pending - n) * sizeof k->pending[0]);
    k->n_pending -= n;
}

static void bound(ls_kernel_times *k, uint32_t place)
{
    const ls_device *d = k->c->device;
    ls_mark m = 0;
    if (k->n_pending && k->pending[k->n_pending - 1].place == place) return;
    if (d->mark(d->ctx, &m) != LS_OK) {
        k->failed = true;
        return;
    }
    if (k->n_pending == N_PENDING) settle(k, N_PENDING / 2);
    k->pending[k->n_pending++] = (boundary){m, place};
}

static uint32_t enter_marked(void *ctx, int op)
{
    ls_kernel_times *k = ctx;
    const uint32_t place = here(k, op), unit = place >> 8;
    bound(k, unit ? ls_kernel_place(unit, 0) : place); /* outside units every operation is its own */
    return 0;
}

static void leave_marked(void *ctx, uint32_t before)
{
    (void)ctx;
    (void)before;
}

/* Device time of the records to ours. */
static void place_marks(ls_kernel_times *k)
{
    for (int64_t i = 0; i < k->n; i++) {
        ls_kernel_record *r = &k->record[i];
        r->begin = on_host(k, k->device_zero[0] + 1e-9 * (double)r->begin);
        r->end = on_host(k, k->device_zero[0] + 1e-9 * (double)r->end);
    }
}

/* ---- begin ---- */

static void destroy(ls_kernel_times **kp)
{
    ls_kernel_times *k = *kp;
    if (!k) return;
    compute_named_end(&k->named, k->c);
    for (int i = 0; i < N_SHOWN; i++) ls_free((void *)(uintptr_t)k->name[i].text);
    ls_free(k->unit);
    ls_free(k->record);
    ls_free(k);
    *kp = NULL;
}

static ls_status begin_marks(ls_kernel_times *k, const char *why)
{
    snprintf(k->words, sizeof k->words,
             "per-unit times from CUDA events, no kernel times, CUDA graphs off (%.160s); a unit's time includes "
             "idle time of the device",
             why);
    k->source = NULL;
    k->named.enter = enter_marked;
    k->named.leave = leave_marked;
    k->named.no_regions = true;
    return compare(k, 0);
}

static ls_status begin(ls_kernel_times **out, ls_compute *c, const ls_kernel_source *source, const char *why,
                       int64_t n_record)
{
    ls_kernel_times *k = ls_alloc(sizeof *k);
    if (!k) return ls_nomem(sizeof *k, "the kernel times");
    k->c = c;
    k->source = source;
    k->limit = n_record;
    k->named = (compute_named){.ctx = k, .enter = enter, .leave = leave};
    k->unit = ls_alloc(N_UNIT * sizeof *k->unit);
    ls_status st = k->unit ? LS_OK : ls_nomem(N_UNIT * sizeof *k->unit, "the kernel times");
    char words[200] = "";
    if (st == LS_OK && source && source->begin(n_record, words, sizeof words))
        snprintf(k->words, sizeof k->words, "kernel times from %s", words);
    else if (st == LS_OK) st = begin_marks(k, source ? words : why);
    if (st == LS_OK) compute_named_begin(&k->named, c);
    else destroy(&k);
    if (st == LS_OK) *out = k;
    return st;
}

ls_status ls_kernel_times_begin_with(ls_kernel_times **out, ls_compute *c, const ls_kernel_source *source,
                                     int64_t n_record)
{
    return begin(out, c, source, "no source was given", n_record);
}

ls_status ls_kernel_times_begin(ls_kernel_times **out, ls_compute *c, const char *plugin, int64_t n_record)
{
    ls_plugin p;
    if (ls_plugin_load(plugin, LS_KERNEL_SYMBOL, &p) != LS_OK) {
        char why[200];
        snprintf(why, sizeof why, "%s", ls_err_words());
        ls_err_clear();
        return begin(out, c, NULL, why, n_record);
    }
    ls_kernel_source_fn source = (ls_kernel_source_fn)p.entry;
    return begin(out, c, source(), "", n_record);
}

const char *ls_kernel_times_words(const ls_kernel_times *k)
{
    return k->words;
}

/* ---- lanes ---- */

/* The trace's own copy of a name. NULL: no memory. */
static const char *show_kernel(shown *table, ls_trace *t, const char *name)
{
    shown *s = slot_of(table, 2 * N_SHOWN, name);
    if (!s) return "other kernels";
    if (!s->key && (s->text = ls_trace_text(t, name))) s->key = name;
    return s->text;
}

/* "forward h.3 linear_fwd" of a place; NULL: unknown. Texts are made once for each. */
static const char *show_place(const ls_kernel_times *k, shown *table, ls_trace *t, uint32_t place)
{
    shown *s = place ? slot_of(table, N_UNIT, (const void *)(uintptr_t)place) : NULL;
    if (!s || s->key) return s ? s->text : NULL;
    char text[128] = "", unit[64];
    const ls_trace_place *u = &k->unit[place >> 8];
    const char *op = compute_named_word((int)(place & 255));
    if (u->id) {
        const ls_trace_span span = {.kind = (uint8_t)(u->id >> 12), .name = u->name, .index = u->index};
        snprintf(text, sizeof text, "%s%s", ls_span_words(&span, unit), *op ? " " : "");
    }
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s", op);
    s->text = ls_trace_text(t, text);
    if (s->text) s->key = (const void *)(uintptr_t)place;
    return s->text;
}

static int by_stream(const void *a, const void *b)
{
    const ls_kernel_record *x = a, *y = b;
    if (x->stream != y->stream) return x->stream < y->stream ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

typedef struct tables {
    shown kernel[2 * N_SHOWN], place[N_UNIT];
} tables;

/* A stream's records, begins in order. Kernels of one stream may overlap (parts of a graph do): what begins before the last one of a lane
 * has ended goes to the next lane; after the last lane its begin is moved. */
static ls_status put_stream(ls_kernel_times *k, ls_trace *t, tables *x, int64_t from, int64_t to)
{
    ls_lane *lane[EXTRA] = {0};
    int64_t last[EXTRA] = {0};
    for (int64_t i = from; i < to; i++) {
        ls_kernel_record *r = &k->record[i];
        int l = 0;
        while (l + 1 < EXTRA && r->begin < last[l]) l++;
        if (!lane[l]) {
            char name[48], more[16] = "";
            if (l) snprintf(more, sizeof more, " (%d)", l + 1);
            if (k->source) snprintf(name, sizeof name, "device stream %u%s", r->stream, more);
            else snprintf(name, sizeof name, "device units%s", more);
            LS_TRY(ls_trace_lane(t, name, to - from, &lane[l]));
        }
        if (r->begin < last[l]) r->begin = last[l];
        if (r->end < r->begin) r->end = r->begin;
        last[l] = r->end;
        const char *place = show_place(k, x->place, t, r->place);
        ls_trace_span s = {.kind =
                               r->kind == LS_KERNEL_COPY || r->kind == LS_KERNEL_FILL ? LS_SPAN_COPY : LS_SPAN_KERNEL,
                           .name = r->kind == LS_KERNEL_UNIT ? place : show_kernel(x->kernel, t, r->name),
                           .site = place,
                           .begin = r->begin,
                           .end = r->end,
                           .bytes = r->bytes,
                           .seq = r->graph};
        if (!s.name) return ls_nomem(SHOWN, "a kernel's name");
        ls_trace_push_(lane[l], &s);
    }
    return LS_OK;
}

static ls_status put_lanes(ls_kernel_times *k, ls_trace *t)
{
    ls_status st = LS_OK;
    tables *x = ls_alloc(sizeof *x);
    if (!x) return ls_nomem(sizeof *x, "the kernel times");
    if (k->n) qsort(k->record, (size_t)k->n, sizeof *k->record, by_stream);
    for (int64_t from = 0, to; from < k->n && st == LS_OK; from = to) {
        for (to = from + 1; to < k->n && k->record[to].stream == k->record[from].stream;) to++;
        st = put_stream(k, t, x, from, to);
    }
    ls_free(x);
    return st;
}

ls_status ls_kernel_times_end(ls_kernel_times **kp, ls_trace *trace, ls_kernel_facts *facts)
{
    ls_kernel_times *k = *kp;
    ls_kernel_facts f = {0};
    ls_status st = LS_OK;
    if (!k) return LS_OK;
    const ls_device *d = k->c->device;
    compute_named_end(&k->named, k->c);
    if (k->source) {
        if (d) st = d->sync(d->ctx);
        k->source->end(keep, k, &f);
        f.dropped += k->missed;
    } else {
        bound(k, 0);
        settle(k, k->n_pending - 1);
        st = compare(k, 1);
        place_marks(k);
        f = (ls_kernel_facts){.seen = k->n + k->missed, .dropped = k->missed, .lost = k->failed};
    }
    if (st == LS_OK && trace) st = put_lanes(k, trace);
    if (facts) *facts = f;
    destroy(kp);
    return st;
}
