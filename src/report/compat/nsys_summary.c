/* nsys_summary.c - profile_summary.json from the rows of all stats files, with the order of keys of docs/FORMATS.md. */
#include "report/compat/nsys.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "report/read/keys.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define NVTX "NVTX Range Summary"
#define OSRT "OS Runtime Summary"

typedef struct stats_file {
    const char *name;
    ls_nsys_rows nvtx, osrt;
} stats_file;

static void put_top5(ls_jsonw *w, const char *key, const char *kind, const ls_nsys_rows *rows)
{
    ls_jsonw_put_open(w, key, '[');
    for (size_t i = 0; i < rows->n && i < 5; i++) {
        const ls_nsys_row *r = &rows->row[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "kind", kind);
        ls_jsonw_put_str(w, "name", r->name);
        ls_jsonw_put_real(w, "time_percent", r->percent);
        ls_jsonw_put_str(w, "total_time", r->total);
        ls_jsonw_put_str(w, "raw", r->raw);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void put_bottleneck(ls_jsonw *w, const ls_nsys_rows *nvtx)
{
    const ls_nsys_row *hit = NULL;
    for (size_t i = 0; i < nvtx->n && !hit; i++)
        if (nvtx->row[i].percent > 20.0 && strcasestr(nvtx->row[i].name, "allreduce_gradients")) hit = &nvtx->row[i];
    ls_jsonw_put_open(w, "likely_bottleneck", '{');
    ls_jsonw_put_bool(w, "allreduce_gradients_over_20pct", hit != NULL);
    if (hit) {
        ls_jsonw_put_open(w, "matched", '{');
        ls_jsonw_put_str(w, "name", hit->name);
        ls_jsonw_put_real(w, "time_percent", hit->percent);
        ls_jsonw_put_str(w, "total_time", hit->total);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static bool is_report(const char *name)
{
    size_t n = strlen(name);
    return !strncmp(name, "nsys_", 5) &&
           ((n > 9 && !strcmp(name + n - 9, ".nsys-rep")) || (n > 6 && !strcmp(name + n - 6, ".qdrep")));
}

/* nsys_<digits>_<host>.nsys-rep: the host, or NULL. */
static char *host_of(const char *name)
{
    const char *p = name + 5, *dot = strrchr(name, '.');
    size_t digits = strspn(p, "0123456789");
    if (!digits || p[digits] != '_' || dot <= p + digits + 1) return NULL;
    return ls_strndup(p + digits + 1, (size_t)(dot - (p + digits + 1)));
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void put_hosts(ls_jsonw *w, const char *text, char **names, size_t n)
{
    size_t k = 0;
    ls_jsonw_key(w, "hosts");
    for (const char *p = text ? text : ""; *p;) {
        size_t len = strcspn(p, "\n");
        char *host = strspn(p, " \t\r\v\f") < len ? ls_strndup(p, len) : NULL;
        if (host && !k++) ls_jsonw_open(w, '[');
        if (host) ls_jsonw_str(w, host);
        ls_free(host);
        p += len + (p[len] == '\n');
    }
    if (!k) {
        char **hosts = ls_alloc((n + 1) * sizeof *hosts);
        size_t n_host = 0;
        for (size_t i = 0; hosts && i < n; i++)
            if (is_report(names[i]) && (hosts[n_host] = host_of(names[i]))) n_host++;
        if (n_host) qsort(hosts, n_host, sizeof *hosts, by_bytes);
        for (size_t i = 0; i < n_host; i++) {
            if (i && !strcmp(hosts[i], hosts[i - 1])) continue;
            if (!k++) ls_jsonw_open(w, '[');
            ls_jsonw_str(w, hosts[i]);
        }
        for (size_t i = 0; i < n_host; i++) ls_free(hosts[i]);
        ls_free(hosts);
    }
    if (k) ls_jsonw_close(w);
    else ls_jsonw_null(w);
}

static void put_reports(ls_jsonw *w, char **names, size_t n)
{
    size_t k = 0, only = 0;
    for (size_t i = 0; i < n; i++)
        if (is_report(names[i])) k++, only = i;
    ls_jsonw_key(w, "nsys_report");
    if (k == 1) {
        ls_jsonw_str(w, names[only]);
        return;
    }
    ls_jsonw_open(w, '[');
    for (size_t i = 0; i < n; i++)
        if (is_report(names[i])) ls_jsonw_str(w, names[i]);
    ls_jsonw_close(w);
}

/* The first of two values that exists, unchanged. */
static void put_either(ls_jsonw *w, const char *key, const report_doc *a, const char *path_a, const report_doc *b,
                       const char *path_b)
{
    const json_t *v = path_a ? report_get(a, path_a) : NULL;
    ls_jsonw_key(w, key);
    ls_jsonw_value(w, v ? v : report_get(b, path_b));
}

static void put_identity(ls_jsonw *w, const char *run_dir, const report_doc *tm, const report_doc *lm, char **names,
                         size_t n)
{
    char now[24], absolute[PATH_MAX];
    ls_utc_stamp(now);
    ls_jsonw_put_str(w, "generated_at_utc", now);
    ls_jsonw_put_str(w, "run_dir", realpath(run_dir, absolute) ? absolute : run_dir);
    put_either(w, "slurm_job_id", lm, "slurm.job_id", tm, "scheduler.job_id");
    const char *hosts = report_str(lm, "slurm.hosts");
    put_hosts(w, hosts ? hosts : report_str(lm, "hosts"), names, n);
    put_either(w, "world_size", lm, "world_size", tm, "hardware.world_size");
    put_either(w, "gpu", tm, NULL, tm, "hardware.gpu_name");
    put_either(w, "cuda", tm, NULL, tm, "env.cuda_version");
    put_either(w, "torch", tm, NULL, tm, "env.torch_version");
    put_either(w, "deepspeed", tm, NULL, tm, "env.deepspeed_version");
    put_either(w, "seq_length", tm, NULL, tm, "training_config.seq_len");
    put_either(w, "micro_batch_size_per_gpu", tm, NULL, tm, "training_config.micro_batch_size_per_gpu");
    put_either(w, "grad_accum_steps", tm, NULL, tm, "training_config.grad_accum_steps");
    put_either(w, "tokens_per_sec", tm, NULL, tm, "summary.mean_tokens_per_sec_global");
    put_either(w, "total_wall_time_sec", tm, NULL, tm, "summary.total_wall_time_sec");
}

static ls_status read_stats(const char *profiles, stats_file *f, ls_nsys_rows *nvtx, ls_nsys_rows *osrt)
{
    char *path = ls_path_join(profiles, f->name), *text = NULL;
    size_t n = 0;
    if (!path) return ls_nomem(strlen(profiles), "a path");
    ls_status st = ls_fs_read(path, &text, &n);
    if (st == LS_OK) st = ls_nsys_parse(text, n, NVTX, &f->nvtx);
    if (st == LS_OK) st = ls_nsys_parse(text, n, OSRT, &f->osrt);
    if (st == LS_OK) st = ls_nsys_parse(text, n, NVTX, nvtx);
    if (st == LS_OK) st = ls_nsys_parse(text, n, OSRT, osrt);
    ls_nsys_rank(&f->nvtx);
    ls_nsys_rank(&f->osrt);
    ls_free(text);
    ls_free(path);
    return st;
}

static bool is_stats(const char *name)
{
    size_t n = strlen(name);
    return !strncmp(name, "nsys_stats_", 11) && n >= 15 && !strcmp(name + n - 4, ".txt");
}

ls_status ls_nsys_summary_text(const char *run_dir, ls_str *out, size_t *n_file)
{
    char **names = NULL, *profiles = ls_path_join(run_dir, "profiles");
    size_t n = 0, n_stats = 0;
    stats_file *file = NULL;
    ls_nsys_rows nvtx = {0}, osrt = {0};
    json_t *tm = NULL, *lm = NULL;
    ls_status st = LS_OK;
    if (!profiles) return ls_nomem(strlen(run_dir), "a path");
    if (ls_fs_is_dir(profiles)) LS_TRY_GOTO(st, done, ls_fs_list(profiles, &names, &n));
    file = ls_alloc((n + 1) * sizeof *file);
    if (!file) {
        st = ls_nomem(n * sizeof *file, "a list of files");
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_stats(names[i])) continue;
        file[n_stats].name = names[i];
        LS_TRY_GOTO(st, done, read_stats(profiles, &file[n_stats++], &nvtx, &osrt));
    }
    *n_file = n_stats;
    if (!n_stats) goto done;
    ls_nsys_rank(&nvtx);
    ls_nsys_rank(&osrt);
    LS_TRY_GOTO(st, done, report_load(run_dir, "training_metrics.json", NULL, &tm));
    LS_TRY_GOTO(st, done, report_load(run_dir, "launcher_metadata.json", NULL, &lm));
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    put_identity(&w, run_dir, &(report_doc){.root = tm, .file = "training_metrics.json"},
                 &(report_doc){.root = lm, .file = "launcher_metadata.json"}, names, n);
    put_reports(&w, names, n);
    ls_jsonw_put_open(&w, "inputs", '[');
    for (size_t i = 0; i < n_stats; i++) ls_jsonw_str(&w, file[i].name);
    ls_jsonw_close(&w);
    put_top5(&w, "nvtx_top5", "nvtx", &nvtx);
    put_top5(&w, "osrt_top5", "osrt", &osrt);
    put_bottleneck(&w, &nvtx);
    ls_jsonw_put_open(&w, "per_file", '{');
    for (size_t i = 0; i < n_stats; i++) {
        ls_jsonw_put_open(&w, file[i].name, '{');
        put_top5(&w, "nvtx_top5", "nvtx", &file[i].nvtx);
        put_top5(&w, "osrt_top5", "osrt", &file[i].osrt);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    if (out->failed) st = ls_nomem(out->cap, "a profile summary");
done:
    for (size_t i = 0; i < n_stats; i++) {
        ls_nsys_rows_fini(&file[i].nvtx);
        ls_nsys_rows_fini(&file[i].osrt);
    }
    ls_nsys_rows_fini(&nvtx);
    ls_nsys_rows_fini(&osrt);
    ls_free(file);
    ls_fs_list_free(names, n);
    ls_free(profiles);
    json_decref(tm);
    json_decref(lm);
    return st;
}
