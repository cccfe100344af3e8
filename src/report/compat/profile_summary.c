#include "report/compat/profile_summary.h"
#include "core/clock.h"
#include "report/read/keys.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

ls_status profile_summary_begin(profile_summary *p, const char *run_dir)
{
    p->run_dir = run_dir;
    p->reports = json_array();
    LS_TRY(report_load(run_dir, "training_metrics.json", NULL, &p->metrics));
    return report_load(run_dir, "launcher_metadata.json", NULL, &p->launcher);
}

void profile_summary_fini(profile_summary *p)
{
    json_decref(p->metrics);
    json_decref(p->launcher);
    json_decref(p->hosts);
    json_decref(p->reports);
}

/* Which run: its files' values as they are; the launcher's come first. */
static void put_identity(const profile_summary *p, ls_jsonw *w)
{
    static const struct {
        const char *key, *launcher, *metrics;
    } from[] = {{"slurm_job_id", "slurm.job_id", "scheduler.job_id"},
                {"hosts", NULL, NULL},
                {"world_size", "world_size", "hardware.world_size"},
                {"gpu", NULL, "hardware.gpu_name"},
                {"cuda", NULL, "env.cuda_version"},
                {"torch", NULL, "env.torch_version"},
                {"deepspeed", NULL, "env.deepspeed_version"},
                {"seq_length", NULL, "training_config.seq_len"},
                {"micro_batch_size_per_gpu", NULL, "training_config.micro_batch_size_per_gpu"},
                {"grad_accum_steps", NULL, "training_config.grad_accum_steps"},
                {"tokens_per_sec", NULL, "summary.mean_tokens_per_sec_global"},
                {"total_wall_time_sec", NULL, "summary.total_wall_time_sec"}};
    const report_doc launcher = {.root = p->launcher}, metrics = {.root = p->metrics};
    char now[24], absolute[PATH_MAX];
    ls_utc_stamp(now);
    ls_jsonw_members(w, LS_KV("generated_at_utc", now),
                     LS_KV("run_dir", realpath(p->run_dir, absolute) ? absolute : p->run_dir));
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        const json_t *v = from[i].launcher ? report_get(&launcher, from[i].launcher) : NULL;
        if (!v) v = from[i].metrics ? report_get(&metrics, from[i].metrics) : p->hosts;
        ls_jsonw_put_value(w, from[i].key, v);
    }
}

static void put_top5(ls_jsonw *w, const char *kind, const ls_nsys_rows *rows)
{
    ls_jsonw_put_open(w, !strcmp(kind, "nvtx") ? "nvtx_top5" : "osrt_top5", '[');
    for (int i = 0; i < rows->n && i < 5; i++) {
        const ls_nsys_row *r = &rows->row[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("kind", kind), LS_KV("name", r->name), LS_KV("time_percent", r->percent),
                         LS_KV("total_time", r->total), LS_KV("raw", r->raw));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void put_bottleneck(ls_jsonw *w, const ls_nsys_rows *nvtx)
{
    const ls_nsys_row *hit = NULL;
    for (int i = 0; i < nvtx->n && !hit; i++)
        if (nvtx->row[i].percent > 20.0 && strcasestr(nvtx->row[i].name, "allreduce_gradients")) hit = &nvtx->row[i];
    ls_jsonw_put_open(w, "likely_bottleneck", '{');
    ls_jsonw_put_bool(w, "allreduce_gradients_over_20pct", hit != NULL);
    if (hit) {
        ls_jsonw_put_open(w, "matched", '{');
        ls_jsonw_members(w, LS_KV("name", hit->name), LS_KV("time_percent", hit->percent),
                         LS_KV("total_time", hit->total));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

void profile_summary_put(const profile_summary *p, ls_jsonw *w)
{
    const json_t *only = json_array_size(p->reports) == 1 ? json_array_get(p->reports, 0) : NULL;
    put_identity(p, w);
    ls_jsonw_put_value(w, "nsys_report", only ? only : p->reports);
    ls_jsonw_put_open(w, "inputs", '[');
    for (int i = 0; i < p->n_file; i++) ls_jsonw_str(w, p->file[i].name);
    ls_jsonw_close(w);
    put_top5(w, "nvtx", p->nvtx);
    put_top5(w, "osrt", p->osrt);
    put_bottleneck(w, p->nvtx);
    if (p->n_again) ls_jsonw_put_int(w, "rows_counted_once", p->n_again);
    ls_jsonw_put_open(w, "per_file", '{');
    for (int i = 0; i < p->n_file; i++) {
        ls_jsonw_put_open(w, p->file[i].name, '{');
        put_top5(w, "nvtx", &p->file[i].nvtx);
        put_top5(w, "osrt", &p->file[i].osrt);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}
