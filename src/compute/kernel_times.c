#include "compute/kernel_times.h"

#include "compute/named_ops.h"
#include "core/mem.h"
#include "core/plugin.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_UNIT = 1 << 16, N_PENDING = 128, SHOWN = 108, N_SHOWN = 2048, EXTRA = 4 };

typedef struct boundary { /* a mark, and for whom everything after it was queued */
    ls_mark mark;
    uint32_t place;
} boundary;

typedef struct shown { /* a name or a place, and the trace's text for it */
    const void *key;
    const char *text;
} shown;

typedef struct texts {
    shown name[N_SHOWN], place[N_UNIT];
} texts;

struct ls_kernel_times {
    ls_compute_ops ops; /* first: c->ops points here */
    const ls_compute_ops *inner;
    ls_compute *c;
    const ls_kernel_source *source; /* NULL: marks */
    char words[300];
    ls_trace_place *unit; /* by id, those that were seen */
    ls_trace *trace;      /* of the end; NULL: everything is dropped */
    texts *texts;
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

/* The trace's text for a kernel's name, which ends with the source. NULL: no memory. */
static const char *show_kernel(ls_kernel_times *k, const char *name)
{
    char text[SHOWN];
    shown *s = k->texts ? slot_of(k->texts->name, N_SHOWN, name) : NULL;
    if (!s) return k->texts ? "other kernels" : NULL;
    if (s->key) return s->text;
    shorten(name, text);
    s->text = ls_trace_text(k->trace, text[0] ? text : "?");
    if (s->text) s->key = name;
    return s->text;
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
    if (r->kind != LS_KERNEL_UNIT) k->record[k->n].name = show_kernel(k, r->name);
    k->n++;
}

static uint32_t here(ls_kernel_times *k, int op)
{
    const ls_trace_place at = ls_trace_unit;
    if (at.id && at.id < N_UNIT && !k->unit[at.id].id) k->unit[at.id] = at;
    return ls_kernel_place(at.id < N_UNIT ? at.id : 0, (uint32_t)op);
}

/* ---- marks ---- */

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
        const ls_kernel_record r = {.begin = (int64_t)((from - k->device_zero[0]) * 1e9),
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

/* From nanoseconds since begin on the device's clock to ours; the two may drift apart. */
static void place_marks(ls_kernel_times *k)
{
    const double device = k->device_zero[1] - k->device_zero[0], host = (double)(k->host_zero[1] - k->host_zero[0]);
    const double rate = device > 0 ? 1e-9 * host / device : 1;
    for (int64_t i = 0; i < k->n; i++) {
        ls_kernel_record *r = &k->record[i];
        r->begin = k->host_zero[0] + (int64_t)(rate * (double)r->begin);
        r->end = k->host_zero[0] + (int64_t)(rate * (double)r->end);
    }
}

/* ---- operations, with their names ---- */

enum {
    OP_NONE,
#define X(name, params, args) OP_##name,
    NAMED_OPS(X)
#undef X
};

/* Before an operation is queued; what leave wants back. With marks, a unit is one row; outside units every operation is its own. */
static uint32_t enter(ls_kernel_times *k, int op)
{
    const uint32_t place = here(k, op), unit = place >> 8;
    if (k->source) return k->source->at(place);
    bound(k, unit ? ls_kernel_place(unit, 0) : place);
    return 0;
}

static void leave(ls_kernel_times *k, uint32_t before)
{
    if (k->source) (void)k->source->at(before);
}

static ls_kernel_times *times_of(const ls_compute *c)
{
    return (ls_kernel_times *)(uintptr_t)c->ops;
}

#define X(name, params, args)                         \
    static ls_status named_##name params              \
    {                                                 \
        ls_kernel_times *k_ = times_of(c);            \
        const uint32_t before = enter(k_, OP_##name); \
        const ls_status st = k_->inner->name args;    \
        leave(k_, before);                            \
        return st;                                    \
    }
NAMED_OPS(X)
#undef X

/* A recording that runs again is queued here: for its unit, and no operation in particular. */
static ls_status region_begin(ls_compute *c, uint64_t name, bool *queued)
{
    ls_kernel_times *k = times_of(c);
    const uint32_t before = enter(k, OP_NONE);
    const ls_status st = k->inner->region_begin(c, name, queued);
    leave(k, before);
    return st;
}

/* What is not in the list stays as it is. With marks nothing is recorded to run again: every operation is queued by a call. */
static void wrap(ls_kernel_times *k)
{
    k->inner = k->c->ops;
    k->ops = *k->inner;
#define X(name, params, args) \
    if (k->ops.name) k->ops.name = named_##name;
    NAMED_OPS(X)
#undef X
    if (k->ops.region_begin) k->ops.region_begin = k->source ? region_begin : NULL;
    k->c->ops = &k->ops;
}

static void unwrap(ls_kernel_times *k)
{
    if (k->c->ops == &k->ops) k->c->ops = k->inner;
}

/* "linear_fwd"; op from 1 on. */
static const char *op_word(uint32_t op)
{
    static const char *const word[] = {"",
#define X(name, params, args) #name,
                                       NAMED_OPS(X)
#undef X
    };
    return op < sizeof word / sizeof word[0] ? word[op] : "";
}

/* ---- begin ---- */

static void destroy(ls_kernel_times **kp)
{
    ls_kernel_times *k = *kp;
    if (!k) return;
    unwrap(k);
    ls_free(k->texts);
    ls_free(k->unit);
    ls_free(k->record);
    ls_free(k);
    *kp = NULL;
}

static ls_status begin_marks(ls_kernel_times *k, const char *why)
{
    snprintf(
        k->words, sizeof k->words,
        "per-unit times from CUDA events, no kernel times, CUDA graphs off (%.160s); a unit's time includes idle time of the device",
        why);
    k->source = NULL;
    return compare(k, 0);
}

ls_status ls_kernel_times_begin(ls_kernel_times **out, ls_compute *c, const char *plugin, int64_t n_record)
{
    ls_plugin p;
    char words[200] = "";
    ls_kernel_times *k = ls_alloc(sizeof *k);
    if (!k) return ls_nomem(sizeof *k, "the kernel times");
    *k = (ls_kernel_times){.c = c, .limit = n_record};
    k->unit = ls_alloc(N_UNIT * sizeof *k->unit);
    ls_status st = k->unit ? LS_OK : ls_nomem(N_UNIT * sizeof *k->unit, "the kernel times");
    if (st == LS_OK && ls_plugin_load(plugin, LS_KERNEL_SYMBOL, &p) == LS_OK) {
        k->source = ((ls_kernel_source_fn)p.entry)();
    } else if (st == LS_OK) {
        snprintf(words, sizeof words, "%s", ls_err_words());
        ls_err_clear();
    }
    if (st == LS_OK && k->source && k->source->begin(n_record, words, sizeof words))
        snprintf(k->words, sizeof k->words, "kernel times from %s", words);
    else if (st == LS_OK) st = begin_marks(k, words);
    if (st == LS_OK) {
        wrap(k);
        *out = k;
    } else destroy(&k);
    return st;
}

const char *ls_kernel_times_words(const ls_kernel_times *k)
{
    return k->words;
}

/* ---- lanes ---- */

/* "forward h.3 linear_fwd" of a place; NULL: unknown. Texts are made once for each. */
static const char *show_place(const ls_kernel_times *k, uint32_t place)
{
    shown *s = place ? slot_of(k->texts->place, N_UNIT, (const void *)(uintptr_t)place) : NULL;
    if (!s || s->key) return s ? s->text : NULL;
    char text[128], unit[64] = "";
    const ls_trace_place *u = &k->unit[place >> 8];
    const ls_trace_span span = {.kind = (uint8_t)(u->id >> 12), .name = u->name, .index = u->index};
    const char *op = op_word(place & 255);
    snprintf(text, sizeof text, "%s%s%s", u->id ? ls_span_words(&span, unit) : "", u->id && *op ? " " : "", op);
    s->text = ls_trace_text(k->trace, text);
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

/* A stream's records, begins in order. Kernels of one stream may overlap (parts of a graph do): what begins before the last one of a lane
 * has ended goes to the next lane; after the last lane its begin is moved. */
static ls_status put_stream(ls_kernel_times *k, int64_t from, int64_t to)
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
            LS_TRY(ls_trace_lane(k->trace, name, to - from, &lane[l]));
        }
        if (r->begin < last[l]) r->begin = last[l];
        if (r->end < r->begin) r->end = r->begin;
        last[l] = r->end;
        const char *place = show_place(k, r->place);
        const bool copy = r->kind == LS_KERNEL_COPY || r->kind == LS_KERNEL_FILL;
        ls_trace_span s = {.kind = copy ? LS_SPAN_COPY : LS_SPAN_KERNEL,
                           .name = r->kind == LS_KERNEL_UNIT ? place : r->name,
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

static ls_status put_lanes(ls_kernel_times *k)
{
    if (!k->texts) return ls_nomem(sizeof *k->texts, "the kernel times");
    if (k->n) qsort(k->record, (size_t)k->n, sizeof *k->record, by_stream);
    for (int64_t from = 0, to; from < k->n; from = to) {
        for (to = from + 1; to < k->n && k->record[to].stream == k->record[from].stream;) to++;
        LS_TRY(put_stream(k, from, to));
    }
    return LS_OK;
}

ls_status ls_kernel_times_end(ls_kernel_times **kp, ls_trace *trace, ls_kernel_facts *facts)
{
    ls_kernel_times *k = *kp;
    ls_kernel_facts f = {0};
    ls_status st = LS_OK;
    if (!k) return LS_OK;
    const ls_device *d = k->c->device;
    unwrap(k);
    k->trace = trace;
    k->texts = trace ? ls_alloc(sizeof *k->texts) : NULL;
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
    if (st == LS_OK && trace) st = put_lanes(k);
    if (facts) *facts = f;
    destroy(kp);
    return st;
}
