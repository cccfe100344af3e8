/* report_fixture.h - invented texts of the files of a run, for tests of reading and reporting. */
#ifndef LS_TESTS_REPORT_FIXTURE_H
#define LS_TESTS_REPORT_FIXTURE_H

#include "core/str.h"
#include "report/page/content.h"

#include <stdio.h>
#include <string.h>

typedef struct made_run {
    int world;
    double tokens_per_sec, epoch_time;
    const char *strategy; /* NULL: a run of the ZeRO scaling study (docs/REFERENCES.md), without the key `lockstep` */
    const char *precision, *ours; /* ours: more members of `lockstep`, with a leading comma */
    int global_batch;
} made_run;

/* training_metrics.json */
static inline void made_metrics(const made_run *r, ls_str *out)
{
    ls_str_addf(
        out,
        "{\"schema_version\": \"2.0\", \"run_id\": \"x\", \"timestamp_utc\": \"2026-01-01T00:00:00Z\", \"git_commit\": "
        "\"unknown\",\"command_line\": \"train\", \"env\": {\"torch_version\": \"2\"}, \"host\": {\"hostname\": \"h\", \"os\": "
        "\"Linux\"},\"hardware\": {\"gpu_name\": \"none\", \"world_size\": %d}, \"training_config\": {\"model_size\": "
        "\"n_layer=2\",\"seq_len\": 64, \"epochs\": 1, \"micro_batch_size_per_gpu\": 2, \"grad_accum_steps\": 1, \"global_batch_size\": %d,\"precision\": \"%s\", \"zero_stage\": %d, \"dataset_name\": \"t\", \"dataset_subset_sizes\": {\"train\": 10, "
        "\"val\": 2}},\"deepspeed_config\": {\"path\": \"none\", \"sha256\": \"unknown\"}, \"epochs\": [{\"epoch_idx\": 1,"
        "\"epoch_wall_time_sec\": %.17g, \"optimizer_steps\": 20, \"tokens_per_sec_global\": %.17g, \"train_loss_avg_global\": 2.5,\"val_loss_avg_global\": 2.25}], \"summary\": {\"total_wall_time_sec\": %.17g, \"best_val_loss\": 2.25,"
        "\"mean_tokens_per_sec_global\": %.17g}",
        r->world, r->global_batch ? r->global_batch : 16, r->precision ? r->precision : "fp32", r->world > 1,
        r->epoch_time, r->tokens_per_sec, r->epoch_time + 1, r->tokens_per_sec);
    if (r->strategy) ls_str_addf(out, ", \"lockstep\": {\"strategy\": \"%s\"%s}", r->strategy, r->ours ? r->ours : "");
    ls_str_add(out, "}");
}

/* metrics.jsonl: parts are forward, backward, exposed, optimizer in seconds */
static inline void made_steps(int n, double forward, double backward, double exposed, double optimizer, ls_str *out)
{
    for (int i = 1; i <= n; i++)
        ls_str_addf(
            out,
            "{\"step\": %d, \"loss\": %.17g, \"step_time_sec\": %.17g, \"forward_sec\": %.17g, \"backward_sec\": %.17g,"
            "\"comm_exposed_sec\": %.17g, \"optimizer_sec\": %.17g, \"tokens_per_sec\": 1.0, \"tflops\": 0.5}\n",
            i, 5.0 - i * 0.01, forward + backward + exposed + optimizer, forward, backward, exposed, optimizer);
}

/* Appends a run to a set, as if read from a folder. */
static inline ls_status add_made(ls_run_set *s, const char *dir, const ls_str *metrics, const ls_str *steps)
{
    ls_run_texts t = {.warm = s->warm};
    if (metrics) t.file[LS_RUN_METRICS] = (ls_text){metrics->data, metrics->len};
    if (steps) t.file[LS_RUN_STEPS] = (ls_text){steps->data, steps->len};
    LS_TRY(ls_run_read_texts(&t, dir, &s->notes, &s->run[s->n]));
    s->n++;
    return LS_OK;
}

/* The page as HTML and as Markdown. */
static inline void report_page(const ls_analysis *a, ls_str *html, ls_str *markdown)
{
    ls_doc d = {0};
    ls_report_doc(a, NULL, &d);
    ls_doc_html(&d, html);
    ls_doc_markdown(&d, "charts", markdown);
    if (d.failed) html->failed = markdown->failed = true;
    ls_doc_fini(&d);
}

#endif
