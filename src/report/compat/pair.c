/* pair.c - R1's pair of charts (docs/REFERENCES.md). */
#include "core/fs.h"
#include "report/chart/chart.h"
#include "report/page/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void pair_label(const ls_run *r, const char *what, char buf[96])
{
    report_doc d = {r->metrics, "", NULL};
    const char *gpu = report_str(&d, "hardware.gpu_name");
    if (!r->world) snprintf(buf, 96, "%s", what);
    else
        snprintf(buf, 96, "%d \xc3\x97 %.40s, %.30s", r->world, gpu && strcmp(gpu, "none") ? gpu : "worker",
                 r->strategy);
}

static double last_epoch(const ls_run *r, const char *key, double otherwise)
{
    const json_t *epochs = json_object_get(r->metrics, "epochs");
    size_t n = json_array_size(epochs);
    double x = n ? report_num(&(report_doc){json_array_get(epochs, n - 1), "", NULL}, key) : NAN;
    return isnan(x) ? otherwise : x;
}

ls_status ls_report_pair(const char *baseline, const char *optimized, const char *out, ls_str *words)
{
    ls_run_set set = {0};
    ls_status st = LS_OK;
    report_pen pen = {.there = true};
    char title[96] = "Training time";
    ls_chart chart[2] = {
        ls_chart_bars(LS_CHART_BARS, "training_time_comparison", title, "seconds of the last epoch", "s", 1, 1),
        ls_chart_bars(LS_CHART_BARS, "training_throughput_comparison", "Training throughput", "tokens per second",
                      "tokens/s", 1, 0)};
    LS_TRY_GOTO(st, done, ls_run_set_add(&set, baseline));
    LS_TRY_GOTO(st, done, ls_run_set_add(&set, optimized));
    if (set.n != 2 || !set.run[0].metrics || !set.run[1].metrics) {
        ls_str_add(words, "no charts:\n");
        for (int i = 0; i < set.notes.n; i++) ls_str_addf(words, "  %s\n", set.notes.text[i]);
        goto done;
    }
    double time[2], rate[2];
    for (int i = 0; i < 2; i++) {
        char label[96];
        pair_label(&set.run[i], i ? "optimized" : "baseline", label);
        time[i] = last_epoch(&set.run[i], "epoch_wall_time_sec", set.run[i].epoch_time);
        rate[i] = last_epoch(&set.run[i], "tokens_per_sec_global", set.run[i].tokens_per_sec);
        for (int k = 0; k < 2; k++) {
            ls_series *s = i ? chart[k].series : ls_chart_series(&chart[k], "run");
            ls_chart_point(
                &chart[k], s,
                (ls_point){.x = ls_chart_category(&chart[k], label), .y = k ? rate[i] : time[i], .lo = NAN, .hi = NAN});
        }
    }
    if (time[0] > 0 && !isnan(time[1])) {
        snprintf(title, sizeof title, "Training time: %.0f %% less", 100 * (time[0] - time[1]) / time[0]);
        ls_str_addf(words, "%s\n", title);
    }
    LS_TRY_GOTO(st, done, ls_fs_mkdirs(out));
    for (int k = 0; k < 2; k++) {
        if (ls_chart_empty(&chart[k])) continue;
        const int before = pen.n_png;
        LS_TRY_GOTO(st, done, report_write_chart(&chart[k], out, &pen));
        ls_str_addf(words, "Wrote %s/%s.%s\n", out, chart[k].file, pen.n_png > before ? "png" : "svg");
    }
    if (!pen.there) ls_str_add(words, "gnuplot is not installed: charts are SVG files only\n");
    report_pen_words(&pen, words);
    if (pen.n_failed) ls_str_addc(words, '\n');
done:
    for (int k = 0; k < 2; k++) ls_chart_fini(&chart[k]);
    ls_run_set_fini(&set);
    return st;
}
