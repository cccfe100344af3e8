#include "report/compat/trace_summary.h"
#include "report/read/trace_read.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRACE "trace.json"

/* ---- keys that R1 has (docs/REFERENCES.md#nsys) ---- */

static const json_t *at(const json_t *root, const char *a, const char *b)
{
    const json_t *x = json_object_get(root, a);
    return b ? json_object_get(x, b) : x;
}

static void put_either(ls_jsonw *w, const char *key, const json_t *x, const json_t *y)
{
    ls_jsonw_key(w, key);
    if (!x || json_is_null(x)) x = y;
    if (x) ls_jsonw_value(w, x);
    else ls_jsonw_null(w);
}

/* A file of the run folder; one that is missing or cannot be read counts as empty. */
static json_t *load(const char *run_dir, const char *name)
{
    json_t *root = NULL;
    char *path = ls_path_join(run_dir, name);
    if (path && ls_fs_exists(path) && ls_json_load(path, &root) != LS_OK) ls_err_clear();
    ls_free(path);
    return root;
}

static void put_hosts(ls_jsonw *w, const trace_facts *f)
{
    ls_jsonw_put_open(w, "hosts", '[');
    for (int r = 0; r < f->n_rank; r++) {
        bool seen = f->rank[r].host[0] == '\0';
        for (int k = 0; k < r; k++) seen = seen || !strcmp(f->rank[k].host, f->rank[r].host);
        if (!seen) ls_jsonw_str(w, f->rank[r].host);
    }
    ls_jsonw_close(w);
}

static void put_identity(ls_jsonw *w, const char *run_dir, const trace_facts *f)
{
    char now[24], absolute[PATH_MAX];
    json_t *tm = load(run_dir, "training_metrics.json"), *lm = load(run_dir, "launcher_metadata.json");
    ls_utc_stamp(now);
    ls_jsonw_put_str(w, "generated_at_utc", now);
    ls_jsonw_put_str(w, "run_dir", realpath(run_dir, absolute) ? absolute : run_dir);
    put_either(w, "slurm_job_id", at(lm, "slurm", "job_id"), at(tm, "scheduler", "job_id"));
    put_hosts(w, f);
    put_either(w, "world_size", at(lm, "world_size", NULL), at(tm, "hardware", "world_size"));
    put_either(w, "gpu", at(tm, "hardware", "gpu_name"), NULL);
    put_either(w, "cuda", at(tm, "env", "cuda_version"), NULL);
    put_either(w, "torch", at(tm, "env", "torch_version"), NULL);
    put_either(w, "deepspeed", at(tm, "env", "deepspeed_version"), NULL);
    put_either(w, "seq_length", at(tm, "training_config", "seq_len"), NULL);
    put_either(w, "micro_batch_size_per_gpu", at(tm, "training_config", "micro_batch_size_per_gpu"), NULL);
    put_either(w, "grad_accum_steps", at(tm, "training_config", "grad_accum_steps"), NULL);
    put_either(w, "tokens_per_sec", at(tm, "summary", "mean_tokens_per_sec_global"), NULL);
    put_either(w, "total_wall_time_sec", at(tm, "summary", "total_wall_time_sec"), NULL);
    json_decref(tm);
    json_decref(lm);
}

/* As nsys rounds it: a share of the sum over all phases, in percent, to a tenth. */
static double percent(const trace_table *t, const trace_row *r)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++) sum += t->row[i].us;
    return sum > 0 ? round(1000 * r->us / sum) / 10 : 0;
}

static void put_phases(ls_jsonw *w, const trace_table *t)
{
    ls_jsonw_put_open(w, "nvtx_top5", '[');
    for (int i = 0; i < t->n && i < 5; i++) {
        const trace_row *r = &t->row[i];
        char total[40], raw[256];
        const long long ns = llround(r->us * 1e3);
        snprintf(total, sizeof total, "%lld ns", ns);
        snprintf(raw, sizeof raw, "%9.1f  %15lld  %9lld  %15.1f  PushPop  :%s", percent(t, r), ns, (long long)r->calls,
                 r->calls ? (double)ns / (double)r->calls : 0.0, r->name);
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "kind", "nvtx");
        char name[TRACE_NAME + 2];
        snprintf(name, sizeof name, ":%s", r->name);
        ls_jsonw_put_str(w, "name", name);
        ls_jsonw_put_real(w, "time_percent", percent(t, r));
        ls_jsonw_put_str(w, "total_time", total);
        ls_jsonw_put_str(w, "raw", raw);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    ls_jsonw_put_open(w, "osrt_top5", '[');
    ls_jsonw_close(w);
}

static void put_bottleneck(ls_jsonw *w, const trace_table *t)
{
    const trace_row *hit = NULL;
    for (int i = 0; i < t->n && !hit; i++)
        if (strstr(t->row[i].name, "allreduce_gradients") && percent(t, &t->row[i]) > 20.0) hit = &t->row[i];
    ls_jsonw_put_open(w, "likely_bottleneck", '{');
    ls_jsonw_put_bool(w, "allreduce_gradients_over_20pct", hit != NULL);
    if (hit) {
        char total[40], name[TRACE_NAME + 2];
        snprintf(total, sizeof total, "%lld ns", llround(hit->us * 1e3));
        snprintf(name, sizeof name, ":%s", hit->name);
        ls_jsonw_put_open(w, "matched", '{');
        ls_jsonw_put_str(w, "name", name);
        ls_jsonw_put_real(w, "time_percent", percent(t, hit));
        ls_jsonw_put_str(w, "total_time", total);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

/* ---- ours ---- */

static void put_ranks(ls_jsonw *w, const trace_facts *f)
{
    ls_jsonw_put_open(w, "per_rank", '[');
    for (int r = 0; r < f->n_rank; r++) {
        const trace_rank *k = &f->rank[r];
        ls_jsonw_open(w, '{');
        ls_jsonw_put_int(w, "rank", r);
        ls_jsonw_put_str(w, "host", k->host);
        ls_jsonw_put_int(w, "spans", k->spans);
        ls_jsonw_put_int(w, "dropped_spans", k->dropped);
        ls_jsonw_put_int(w, "clock_offset_ns", k->clock_offset_ns);
        ls_jsonw_put_int(w, "clock_error_ns", k->clock_error_ns);
        ls_jsonw_put_int(w, "steps", k->steps);
        ls_jsonw_put_real(w, "steps_sec", k->step_us / 1e6);
        ls_jsonw_put_real(w, "units_sec", k->unit_us / 1e6);
        ls_jsonw_put_real(w, "input_sec", k->input_us / 1e6);
        ls_jsonw_put_real(w, "optimizer_sec", k->optimizer_us / 1e6);
        ls_jsonw_put_real(w, "waited_sec", k->wait_us / 1e6);
        ls_jsonw_put_real(w, "collectives_busy_sec", k->coll_us / 1e6);
        ls_jsonw_put_real(w, "checkpoint_sec", k->ckpt_us / 1e6);
        if (k->kernel_us > 0 || k->copy_us > 0) {
            ls_jsonw_put_real(w, "device_kernels_sec", k->kernel_us / 1e6);
            ls_jsonw_put_real(w, "device_copies_sec", k->copy_us / 1e6);
        }
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static const trace_row *find(const trace_table *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->row[i].name, name)) return &t->row[i];
    return NULL;
}

static void put_collectives(ls_jsonw *w, const trace_facts *f)
{
    ls_jsonw_put_open(w, "collectives", '[');
    for (int i = 0; i < f->coll.n; i++) {
        const trace_row *r = &f->coll.row[i], *wait = find(&f->wait, r->name);
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "name", r->name);
        ls_jsonw_put_int(w, "calls", r->calls);
        ls_jsonw_put_int(w, "bytes_moved", r->bytes);
        ls_jsonw_put_real(w, "busy_sec", r->us / 1e6);
        ls_jsonw_put_int(w, "waits", wait ? wait->calls : 0);
        ls_jsonw_put_real(w, "waited_sec", wait ? wait->us / 1e6 : 0);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void put_units(ls_jsonw *w, const trace_table *t)
{
    ls_jsonw_put_open(w, "units", '[');
    for (int i = 0; i < t->n; i++) {
        const trace_row *r = &t->row[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "name", r->name);
        ls_jsonw_put_int(w, "calls", r->calls);
        ls_jsonw_put_real(w, "total_sec", r->us / 1e6);
        ls_jsonw_put_real(w, "mean_sec", r->us / 1e6 / (double)r->calls);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

/* Shares are of all kernels and copies; how long the device was busy is less where streams overlap. */
static void put_device(ls_jsonw *w, const char *key, const trace_table *t)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++) sum += t->row[i].us;
    ls_jsonw_put_open(w, key, '[');
    for (int i = 0; i < t->n; i++) {
        const trace_row *r = &t->row[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "name", r->name);
        ls_jsonw_put_int(w, "calls", r->calls);
        ls_jsonw_put_real(w, "total_sec", r->us / 1e6);
        ls_jsonw_put_real(w, "mean_sec", r->us / 1e6 / (double)r->calls);
        ls_jsonw_put_real(w, "share", sum > 0 ? r->us / sum : 0);
        if (r->bytes) ls_jsonw_put_int(w, "bytes", r->bytes);
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
    ls_jsonw_put_str(w, "trace", TRACE);
    ls_jsonw_put_int(w, "ranks", f->n_rank);
    ls_jsonw_put_int(w, "spans", spans);
    ls_jsonw_put_int(w, "dropped_spans", dropped);
    ls_jsonw_put_int(w, "clock_error_ns", error);
    put_ranks(w, f);
    put_collectives(w, f);
    put_units(w, &f->unit);
    if (f->kernel.n) {
        put_device(w, "device_operations", &f->device_op);
        put_device(w, "device_kernels", &f->kernel);
    }
    ls_jsonw_close(w);
}

static void write_summary(const char *run_dir, const trace_facts *f, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    put_identity(&w, run_dir, f);
    ls_jsonw_put_open(&w, "nsys_report", '[');
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "inputs", '[');
    ls_jsonw_str(&w, TRACE);
    ls_jsonw_close(&w);
    put_phases(&w, &f->phase);
    put_bottleneck(&w, &f->phase);
    ls_jsonw_put_open(&w, "per_file", '{');
    ls_jsonw_put_open(&w, TRACE, '{');
    put_phases(&w, &f->phase);
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    put_ours(&w, f);
    ls_jsonw_close(&w);
}

ls_status ls_trace_summary_text(const char *run_dir, ls_str *out)
{
    trace_facts f = {0};
    char *path = ls_path_join(run_dir, "profiles/" TRACE);
    if (!path) return ls_nomem(strlen(run_dir), "a path");
    ls_status st = trace_read(path, &f);
    ls_free(path);
    if (st == LS_OK) {
        write_summary(run_dir, &f, out);
        if (out->failed) st = ls_nomem(out->cap, "a profile summary");
    }
    trace_facts_fini(&f);
    return st;
}
