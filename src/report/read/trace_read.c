#include "report/read/trace_read.h"

#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ls_status add(trace_table *t, const char *name, double us, int64_t bytes)
{
    int i = 0;
    while (i < t->n && strncmp(t->row[i].name, name, TRACE_NAME - 1)) i++;
    if (i == t->n) {
        if (!ls_grow(&t->row, t->n, &t->cap, sizeof *t->row)) return ls_nomem(sizeof *t->row, "a trace's summary");
        snprintf(t->row[t->n++].name, TRACE_NAME, "%s", name);
    }
    t->row[i].calls++;
    t->row[i].us += us;
    t->row[i].bytes += bytes;
    return LS_OK;
}

const trace_row *trace_find(const trace_table *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->row[i].name, name)) return &t->row[i];
    return NULL;
}

static ls_status rank_of(trace_facts *f, int64_t pid, trace_rank **out)
{
    if (pid < 0 || pid >= TRACE_MAX_RANK) return ls_fail(LS_E_FORMAT, "pid %lld is no rank", (long long)pid);
    if (pid >= f->cap_rank) {
        int cap = f->cap_rank ? f->cap_rank : 8;
        while (cap <= pid) cap *= 2;
        trace_rank *rank = ls_realloc(f->rank, (size_t)cap * sizeof *rank);
        if (!rank) return ls_nomem((size_t)cap * sizeof *rank, "a trace's summary");
        memset(rank + f->cap_rank, 0, (size_t)(cap - f->cap_rank) * sizeof *rank);
        f->rank = rank;
        f->cap_rank = cap;
    }
    if (pid >= f->n_rank) f->n_rank = (int)pid + 1;
    *out = &f->rank[pid];
    return LS_OK;
}

static int64_t int_of(const json_t *args, const char *key)
{
    return json_integer_value(json_object_get(args, key)); /* 0 where it is none */
}

static void add_facts(trace_rank *r, const json_t *args)
{
    const char *host = json_string_value(json_object_get(args, "host"));
    const json_t *fixes = json_object_get(args, "clock_fixes");
    snprintf(r->host, sizeof r->host, "%s", host ? host : "");
    r->dropped = int_of(args, "dropped");
    for (size_t i = 0; i < json_array_size(fixes); i++) {
        const json_t *fix = json_array_get(fixes, i);
        const int64_t error = int_of(fix, "error_ns");
        r->clock_offset_ns = int_of(fix, "offset_ns");
        r->clock_error_ns = error > r->clock_error_ns ? error : r->clock_error_ns;
    }
}

/* "forward h.3 linear_fwd" -> "linear_fwd" */
static const char *operation(const char *place)
{
    const char *blank = strrchr(place, ' ');
    return blank ? blank + 1 : place;
}

/* The time of a kernel or a copy, under what it ran for. */
static ls_status add_device_op(trace_facts *f, const char *name, double us, const json_t *args)
{
    const char *place = json_string_value(json_object_get(args, "for"));
    if (place && strcmp(place, name)) place = operation(place); /* equal: a unit's time as a whole */
    return add(&f->table[TRACE_DEVICE_OP], place ? place : "(unknown)", us, int_of(args, "bytes"));
}

/* --- the parts of steps: the spans of a row are sorted by their begin, and nested --- */

/* The time from r->now on belongs to the innermost span that is open. */
static void advance(trace_rank *r, double to)
{
    while (r->n_open) {
        const double end = r->open[r->n_open - 1].end, until = end < to ? end : to;
        int k = r->n_open - 1;
        while (k && r->open[k].part < 0) k--; /* the first is a step */
        if (until > r->now) r->part[r->open[k].part] += until - r->now, r->now = until;
        if (end > to) return;
        r->n_open--;
    }
}

static int part_of(const char *name, const char *cat)
{
    if (!strcmp(cat, "step")) return TRACE_PART_REST;
    if (!strcmp(cat, "wait")) return TRACE_PART_WAIT;
    if (!strcmp(cat, "pipeline")) return *name == 'F' ? TRACE_PART_FORWARD : TRACE_PART_BACKWARD;
    if (!strncmp(name, "train/", 6)) name += 6;
    return !strncmp(name, "forward", 7) || !strcmp(name, "loss") ? TRACE_PART_FORWARD
           : !strncmp(name, "backward", 8)                       ? TRACE_PART_BACKWARD
           : !strcmp(name, "optimizer_step")                     ? TRACE_PART_OPTIMIZER
           : !strcmp(name, "dataload")                           ? TRACE_PART_INPUT
                                                                 : -1;
}

/* Us of a span that lie in steps. */
static double in_steps(const trace_rank *r, double begin, double end)
{
    int lo = 0, hi = r->n_step;
    double sum = 0;
    while (lo < hi) { /* the first step that ends after begin */
        const int mid = (lo + hi) / 2;
        if (r->step[mid].end > begin) hi = mid;
        else lo = mid + 1;
    }
    for (; lo < r->n_step && r->step[lo].begin < end; lo++)
        sum += fmin(end, r->step[lo].end) - fmax(begin, r->step[lo].begin);
    return sum;
}

static ls_status add_part(trace_rank *r, const char *name, const char *cat, double begin, double us)
{
    static const char *const main_row[] = {"step", "wait", "unit", "phase", "pipeline"};
    const bool step = !strcmp(cat, "step");
    bool ours = false;
    if (!strcmp(cat, "collective")) r->coll_in_steps += in_steps(r, begin, begin + us);
    for (size_t i = 0; i < sizeof main_row / sizeof *main_row; i++) ours = ours || !strcmp(cat, main_row[i]);
    if (!ours) return LS_OK;
    r->pipeline = r->pipeline || !strcmp(cat, "pipeline");
    advance(r, begin);
    if (step && r->dropped && !r->cut) { /* spans inside the first step that was kept may be lost */
        r->cut = true;
        return LS_OK;
    }
    if (step) {
        if (!ls_grow(&r->step, r->n_step, &r->cap_step, sizeof *r->step)) return ls_nomem(sizeof *r->step, "steps");
        r->step[r->n_step++] = (trace_span){begin, begin + us};
        r->n_open = 0;
    }
    if (!(step || r->n_open) || r->n_open == sizeof r->open / sizeof *r->open) return LS_OK;
    if (step) r->now = begin;
    r->open[r->n_open].end = begin + us;
    r->open[r->n_open++].part = part_of(name, cat);
    return LS_OK;
}

static ls_status add_span(trace_facts *f, trace_rank *r, const char *name, const char *cat, double us,
                          const json_t *args)
{
    static const struct {
        const char *cat;
        int us, table; /* -1: none */
    } known[] = {{"step", TRACE_US_STEP, -1},
                 {"phase", -1, TRACE_PHASE},
                 {"pipeline", -1, TRACE_PHASE},
                 {"unit", TRACE_US_UNIT, TRACE_UNIT},
                 {"collective", TRACE_US_COLL, TRACE_COLL},
                 {"wait", TRACE_US_WAIT, TRACE_WAIT},
                 {"kernel", TRACE_US_KERNEL, TRACE_KERNEL},
                 {"copy", TRACE_US_COPY, TRACE_KERNEL},
                 {"checkpoint", TRACE_US_CKPT, -1}};
    const size_t n = sizeof known / sizeof *known;
    size_t k = 0;
    while (k < n && strcmp(known[k].cat, cat)) k++;
    r->spans++;
    if (k == n) return LS_OK;
    int kind = known[k].us;
    const int table = known[k].table;
    if (kind == TRACE_US_STEP) r->steps++;
    if (table == TRACE_PHASE && !strcmp(name, "train/dataload")) kind = TRACE_US_INPUT;
    if (table == TRACE_PHASE && !strcmp(name, "train/optimizer_step")) kind = TRACE_US_OPTIMIZER;
    if (kind >= 0) r->us[kind] += us;
    if (!strcmp(cat, "pipeline")) name = *name == 'F' ? "train/forward" : "train/backward"; /* its phases are actions */
    if (table == TRACE_WAIT && !strncmp(name, "wait ", 5)) name += 5;
    if (table == TRACE_KERNEL) LS_TRY(add_device_op(f, name, us, args));
    return table < 0 ? LS_OK : add(&f->table[table], name, us, int_of(args, "bytes"));
}

static ls_status add_event(trace_facts *f, const json_t *e)
{
    const char *name = json_string_value(json_object_get(e, "name")), *ph = json_string_value(json_object_get(e, "ph"));
    const char *cat = json_string_value(json_object_get(e, "cat"));
    const json_t *pid = json_object_get(e, "pid"), *args = json_object_get(e, "args"), *dur = json_object_get(e, "dur"),
                 *ts = json_object_get(e, "ts");
    trace_rank *r;
    if (!name || !ph || !json_is_integer(pid)) return ls_fail(LS_E_FORMAT, "an event without name, ph or pid");
    LS_TRY(rank_of(f, json_integer_value(pid), &r));
    if (!strcmp(ph, "M") && !strcmp(name, "lockstep_rank")) add_facts(r, args);
    if (strcmp(ph, "X") || !cat) return LS_OK;
    const double us = json_number_value(dur);
    if (!json_is_number(dur) || !(us >= 0) || !isfinite(us))
        return ls_fail(LS_E_FORMAT, "a span without a length (dur)");
    if (json_is_number(ts)) LS_TRY(add_part(r, name, cat, json_number_value(ts), us));
    return add_span(f, r, name, cat, us, args);
}

static ls_status add_line(trace_facts *f, const char *text, size_t n)
{
    json_t *e = NULL;
    while (n && strchr(", \r\t", text[n - 1])) n--;
    if (!n || *text != '{' || text[n - 1] != '}') return LS_OK; /* the first and the last line */
    LS_TRY(ls_json_parse(text, n, "an event", &e));
    ls_status st = add_event(f, e);
    json_decref(e);
    return st;
}

static int by_time(const void *a, const void *b)
{
    const trace_row *x = a, *y = b;
    if (x->us != y->us) return x->us > y->us ? -1 : 1;
    return strcmp(x->name, y->name);
}

ls_status trace_read_text(const char *text, size_t n, const char *path, trace_facts *out)
{
    const char *at = text, *end = at + n;
    ls_status st = LS_OK;
    for (long long line = 1; at < end && st == LS_OK; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        st = add_line(out, at, (size_t)(stop - at));
        if (st == LS_E_FORMAT) {
            char words[256];
            snprintf(words, sizeof words, "%s", ls_err_words());
            st = ls_fail(LS_E_FORMAT, "%s, line %lld: %s", path, line, words);
        }
        at = newline ? stop + 1 : end;
    }
    for (int i = 0; i < out->n_rank; i++) advance(&out->rank[i], INFINITY);
    if (st == LS_OK && !out->n_rank) st = ls_fail(LS_E_FORMAT, "%s has no event; it is not a trace of lockstep", path);
    for (int i = 0; i < TRACE_N_TABLE; i++)
        if (out->table[i].n) qsort(out->table[i].row, (size_t)out->table[i].n, sizeof(trace_row), by_time);
    return st;
}

ls_status trace_read(const char *path, trace_facts *out)
{
    ls_fs_map map;
    LS_TRY(ls_fs_map_open(&map, path));
    ls_status st = trace_read_text(map.data, map.n, path, out);
    ls_fs_map_close(&map);
    return st;
}

void trace_facts_fini(trace_facts *f)
{
    for (int i = 0; i < f->n_rank; i++) ls_free(f->rank[i].step);
    ls_free(f->rank);
    for (int i = 0; i < TRACE_N_TABLE; i++) ls_free(f->table[i].row);
    *f = (trace_facts){0};
}
