#include "core/fs.h"
#include "core/mem.h"
#include "report/compat/profile_summary.h"

#include <math.h>
#include <string.h>

#define TRACE "trace.json"

/* ---- as nsys reports it ---- */

static double sum_of(const trace_table *t)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++) sum += t->row[i].us;
    return sum;
}

/* Phases as rows of nsys: shares of the sum over all phases, in percent, rounded to a tenth. */
static ls_status rows_of(const trace_table *t, ls_nsys_rows *out)
{
    const double sum = sum_of(t);
    for (int i = 0; i < t->n; i++) {
        const trace_row *r = &t->row[i];
        const double percent = sum > 0 ? round(1000 * r->us / sum) / 10 : 0;
        const long long ns = llround(r->us * 1e3);
        char *total = ls_asprintf("%lld ns", ns);
        LS_TRY(ls_nsys_add(out,
                           (ls_nsys_row){.percent = percent,
                                         .name = ls_asprintf(":%s", r->name),
                                         .total = total,
                                         .raw = ls_asprintf("%9.1f  %15lld  %9lld  %15.1f  PushPop  :%s", percent, ns,
                                                            (long long)r->calls,
                                                            r->calls ? (double)ns / (double)r->calls : 0.0, r->name)}));
        if (!total) return ls_nomem(32, "a row of a summary");
    }
    return LS_OK;
}

static json_t *hosts_of(const trace_facts *f)
{
    json_t *list = json_array();
    for (int r = 0; r < f->n_rank; r++) {
        bool seen = f->rank[r].host[0] == '\0';
        for (int k = 0; k < r; k++) seen = seen || !strcmp(f->rank[k].host, f->rank[r].host);
        if (!seen) json_array_append_new(list, json_string_nocheck(f->rank[r].host));
    }
    return list;
}

/* ---- ours ---- */

static void put_ranks(ls_jsonw *w, const trace_facts *f)
{
    static const char *const key[TRACE_N_US] = {
        [TRACE_US_STEP] = "steps_sec",        [TRACE_US_UNIT] = "units_sec",
        [TRACE_US_INPUT] = "input_sec",       [TRACE_US_OPTIMIZER] = "optimizer_sec",
        [TRACE_US_WAIT] = "waited_sec",       [TRACE_US_COLL] = "collectives_busy_sec",
        [TRACE_US_CKPT] = "checkpoint_sec",   [TRACE_US_KERNEL] = "device_kernels_sec",
        [TRACE_US_COPY] = "device_copies_sec"};
    ls_jsonw_put_open(w, "per_rank", '[');
    for (int r = 0; r < f->n_rank; r++) {
        const trace_rank *k = &f->rank[r];
        const bool device = k->us[TRACE_US_KERNEL] > 0 || k->us[TRACE_US_COPY] > 0;
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("rank", r), LS_KV("host", k->host), LS_KV("spans", k->spans),
                         LS_KV("dropped_spans", k->dropped), LS_KV("clock_offset_ns", k->clock_offset_ns),
                         LS_KV("clock_error_ns", k->clock_error_ns), LS_KV("steps", k->steps));
        for (int i = 0; i < (device ? TRACE_N_US : TRACE_US_KERNEL); i++) ls_jsonw_put_real(w, key[i], k->us[i] / 1e6);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void put_collectives(ls_jsonw *w, const trace_table *coll, const trace_table *waits)
{
    ls_jsonw_put_open(w, "collectives", '[');
    for (int i = 0; i < coll->n; i++) {
        const trace_row *r = &coll->row[i], *wait = trace_find(waits, r->name);
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("name", r->name), LS_KV("calls", r->calls), LS_KV("bytes_moved", r->bytes),
                         LS_KV("busy_sec", r->us / 1e6), LS_KV("waits", wait ? wait->calls : 0),
                         LS_KV("waited_sec", wait ? wait->us / 1e6 : 0));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

/* Of a device, shares are of all kernels and copies; how long it was busy is less where streams overlap. */
static void put_table(ls_jsonw *w, const char *key, const trace_table *t, bool device)
{
    const double sum = sum_of(t);
    ls_jsonw_put_open(w, key, '[');
    for (int i = 0; i < t->n; i++) {
        const trace_row *r = &t->row[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("name", r->name), LS_KV("calls", r->calls), LS_KV("total_sec", r->us / 1e6),
                         LS_KV("mean_sec", r->us / 1e6 / (double)r->calls));
        if (device) ls_jsonw_put_real(w, "share", sum > 0 ? r->us / sum : 0);
        if (device && r->bytes) ls_jsonw_put_int(w, "bytes", r->bytes);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void put_ours(ls_jsonw *w, const trace_facts *f)
{
    int64_t spans = 0, dropped = 0, error = 0;
    for (int r = 0; r < f->n_rank; r++) {
        spans += f->rank[r].spans;
        dropped += f->rank[r].dropped;
        error = f->rank[r].clock_error_ns > error ? f->rank[r].clock_error_ns : error;
    }
    ls_jsonw_put_open(w, "lockstep", '{');
    ls_jsonw_members(w, LS_KV("trace", TRACE), LS_KV("ranks", f->n_rank), LS_KV("spans", spans),
                     LS_KV("dropped_spans", dropped), LS_KV("clock_error_ns", error));
    put_ranks(w, f);
    put_collectives(w, &f->table[TRACE_COLL], &f->table[TRACE_WAIT]);
    put_table(w, "units", &f->table[TRACE_UNIT], false);
    if (f->table[TRACE_KERNEL].n) {
        put_table(w, "device_operations", &f->table[TRACE_DEVICE_OP], true);
        put_table(w, "device_kernels", &f->table[TRACE_KERNEL], true);
    }
    ls_jsonw_close(w);
}

ls_status ls_trace_summary_text(const char *run_dir, ls_str *out, ls_str *table)
{
    trace_facts f = {0};
    profile_file file = {.name = TRACE};
    profile_summary p = {.file = &file, .n_file = 1, .nvtx = &file.nvtx, .osrt = &file.osrt};
    ls_jsonw w;
    ls_status st;
    LS_TRY_GOTO(st, done, trace_read(ls_path_of(run_dir, "profiles/" TRACE).text, &f));
    LS_TRY_GOTO(st, done, profile_summary_begin(&p, run_dir));
    LS_TRY_GOTO(st, done, rows_of(&f.table[TRACE_PHASE], &file.nvtx));
    p.hosts = hosts_of(&f);
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    profile_summary_put(&p, &w);
    put_ours(&w, &f);
    ls_jsonw_close(&w);
    if (table) profile_table(&f, table);
    if (out->failed || (table && table->failed)) st = ls_nomem(out->cap, "a profile summary");
done:
    ls_nsys_rows_fini(&file.nvtx);
    profile_summary_fini(&p);
    trace_facts_fini(&f);
    return st;
}
