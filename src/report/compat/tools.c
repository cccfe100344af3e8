#include "report/compat/tools.h"
#include "core/fs.h"
#include "report/chart/chart.h"
#include "report/read/run_folder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- table --- */

static ls_status must_have(const report_doc *d, const char *path, double *x)
{
    *x = report_num(d, path);
    if (isnan(*x)) return ls_fail(LS_E_FORMAT, "%s: key %s: a number is needed for the table", d->file, path);
    return LS_OK;
}

static ls_status table_row(const char *file, const json_t *root, double *base, ls_str *out)
{
    report_doc d = {root, file, NULL};
    double tokens, wall, world;
    LS_TRY(must_have(&d, "summary.mean_tokens_per_sec_global", &tokens));
    LS_TRY(must_have(&d, "summary.total_wall_time_sec", &wall));
    LS_TRY(must_have(&d, "hardware.world_size", &world));
    if (world < 1) return ls_fail(LS_E_FORMAT, "%s: key hardware.world_size: %g workers", file, world);
    if (isnan(*base)) *base = tokens;
    double speedup = *base != 0 ? tokens / *base : 1.0;
    ls_str_addf(out, "| %.0f | %.2f | %.2f | %.2f | %.2f |\n", world, tokens, wall, speedup, speedup / world);
    return LS_OK;
}

ls_status ls_report_table(const char *gpu1, const char *gpu2, const char *gpu4, ls_str *out)
{
    const char *const file[] = {gpu1, gpu2, gpu4};
    double base = NAN;
    ls_str_add(out, "| GPUs | Tokens/sec (global) | Wall time (s) | Speedup vs 1 GPU | Scaling efficiency |\n"
                    "| --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < 3; i++) {
        json_t *root = NULL;
        LS_TRY(ls_json_load(file[i], &root));
        ls_status st = table_row(file[i], root, &base, out);
        json_decref(root);
        LS_TRY(st);
    }
    return LS_OK;
}

/* --- verifier --- */

/* 1, 2 or 4 from the first part of the path that begins with 1gpu_, 2gpu_ or 4gpu_; 0: unknown. */
static int expected_world(const char *path)
{
    for (const char *p = path; *p;) {
        if ((*p == '1' || *p == '2' || *p == '4') && !strncmp(p + 1, "gpu_", 4)) return *p - '0';
        p += strcspn(p, "/");
        p += *p == '/';
    }
    return 0;
}

static bool has_bytes(const char *dir, const char *name)
{
    const ls_path path = ls_path_of(dir, name);
    int64_t n = 0;
    return ls_fs_exists(path.text) && !ls_fs_is_dir(path.text) && ls_fs_size(path.text, &n) == LS_OK && n > 0;
}

static bool schema_fits(const json_t *root)
{
    static const char *const key[] = {"schema_version",   "run_id", "timestamp_utc", "git_commit",
                                      "command_line",     "env",    "hardware",      "training_config",
                                      "deepspeed_config", "epochs", "summary"};
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
        if (!json_object_get(root, key[i])) return false;
    return json_is_object(root);
}

/* A world_size as Python prints it. */
static void add_world(ls_str *out, const json_t *v)
{
    char buf[32];
    if (json_is_integer(v)) ls_str_addf(out, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v)) ls_str_add(out, ls_json_real(buf, json_real_value(v)));
    else if (json_is_string(v)) ls_str_add(out, json_string_value(v));
    else ls_str_add(out, "None");
}

static ls_status verify_run(const char *dir, ls_str *out, int *n_bad)
{
    const char *status = "ok";
    int expected = expected_world(dir);
    json_t *root = NULL;
    LS_TRY(report_load(dir, "training_metrics.json", NULL, &root));
    const json_t *world = json_object_get(json_object_get(root, "hardware"), "world_size");
    if (!ls_fs_exists(ls_path_of(dir, "training_metrics.json").text)) status = "missing_metrics";
    else if (!has_bytes(dir, "train.log")) status = "missing_log";
    else if (!schema_fits(root)) status = "invalid_schema";
    else if (expected && !(json_is_number(world) && json_number_value(world) == expected))
        status = "world_size_mismatch";
    ls_str_addf(out, "%s\t%s\t", dir, status);
    add_world(out, world);
    if (expected) ls_str_addf(out, "\t%d\n", expected);
    else ls_str_add(out, "\tNone\n");
    *n_bad += strcmp(status, "ok") != 0;
    json_decref(root);
    return LS_OK;
}

static ls_status verify_below(const char *dir, int depth, ls_str *out, int *n_run, int *n_bad)
{
    char **names = NULL;
    size_t n = 0;
    LS_TRY(ls_fs_list(dir, &names, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        const ls_path path = ls_path_of(dir, names[i]);
        if (names[i][0] == '.' || !ls_fs_is_dir(path.text)) continue;
        if (!strncmp(names[i], "run_", 4)) ++*n_run, st = verify_run(path.text, out, n_bad);
        else if (depth < 8) st = verify_below(path.text, depth + 1, out, n_run, n_bad);
    }
    ls_fs_list_free(names, n);
    return st;
}

ls_status ls_report_verify(const char *dir, ls_str *out, int *n_run, int *n_bad)
{
    ls_str rows = {0};
    *n_run = *n_bad = 0;
    ls_status st = verify_below(dir, 0, &rows, n_run, n_bad);
    if (st == LS_OK && *n_run) {
        ls_str_add(out, "run_dir\tstatus\tworld_size\texpected_world_size\n");
        ls_str_addn(out, rows.data, rows.len);
        if (*n_bad) ls_str_addf(out, "Verification failed: %d run(s) invalid.\n", *n_bad);
        else ls_str_add(out, "Verification passed.\n");
    }
    ls_str_fini(&rows);
    return st;
}

/* --- pair of charts --- */

/* The name of a bar, and what its speed is not. */
static int pair_category(ls_chart *c, const ls_run *r, const char *what, const char *note)
{
    report_doc d = {r->metrics, "", NULL};
    const char *gpu = report_str(&d, "hardware.gpu_name");
    if (!r->world) return ls_chart_category(c, "%s%s", what, note);
    return ls_chart_category(c, "%d \xc3\x97 %s, %s%s", r->world, gpu && strcmp(gpu, "none") ? gpu : "worker",
                             r->strategy, note);
}

/* Older files do not record whether tokens/s are of all ranks or of one. tokens/s x seconds are the tokens of a run; if those of the other run
 * are a whole multiple k, both trained on the same data and these are of one of k ranks, those of the other run of all. 1: of all ranks; 0: it cannot be found out. */
static int ranks_of_rate(const ls_run *r, double tokens, double other)
{
    const double k = round(other / tokens), more = round(tokens / other);
    if (!r->legacy || (more >= 1 && fabs(tokens / other - more) < 1e-3 * more)) return 1;
    return k >= 1 && k <= 4096 && fabs(other / tokens - k) < 1e-3 * k ? (int)k : 0;
}

static double last_epoch(const ls_run *r, const char *key, double otherwise)
{
    const json_t *epochs = json_object_get(r->metrics, "epochs");
    size_t n = json_array_size(epochs);
    double x = n ? report_num(&(report_doc){json_array_get(epochs, n - 1), "", NULL}, key) : NAN;
    return isnan(x) ? otherwise : x;
}

/* The bars of run i: its time and its speed, which is grey and marked if it is not of all ranks. */
static void add_pair_bars(const ls_run *r, int i, const double time[2], const double rate[2], ls_chart chart[2],
                          ls_str *words)
{
    const char *what = i ? "optimized" : "baseline";
    const int ranks = ranks_of_rate(r, rate[i] * time[i], rate[!i] * time[!i]);
    for (int k = 0; k < 2; k++) {
        const bool marked = k && ranks != 1;
        const char *note = !marked ? "" : ranks ? ", tokens/s of one rank" : ", tokens/s of one rank or of all";
        ls_series *s = ls_chart_series(&chart[k], "%s", what);
        if (s) s->hue = marked ? 6 : 0;
        ls_chart_point(
            &chart[k], s,
            (ls_point){.x = pair_category(&chart[k], r, what, note), .y = k ? rate[i] : time[i], .lo = NAN, .hi = NAN});
    }
    if (ranks > 1)
        ls_str_addf(words, "%s: %.1f tokens/s are of one of %d ranks: not compared with the total of the other run\n",
                    r->dir, rate[i], ranks);
    else if (!ranks)
        ls_str_addf(words, "%s: it is not recorded whether %.1f tokens/s are of one rank or of all: not compared\n",
                    r->dir, rate[i]);
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
        time[i] = last_epoch(&set.run[i], "epoch_wall_time_sec", set.run[i].epoch_time);
        rate[i] = last_epoch(&set.run[i], "tokens_per_sec_global", set.run[i].tokens_per_sec);
    }
    for (int i = 0; i < 2; i++) add_pair_bars(&set.run[i], i, time, rate, chart, words);
    if (time[0] > 0 && !isnan(time[1])) {
        snprintf(title, sizeof title, "Training time: %.0f %% %s", 100 * fabs(time[0] - time[1]) / time[0],
                 time[1] > time[0] ? "more" : "less");
        ls_str_addf(words, "%s\n", title);
    }
    LS_TRY_GOTO(st, done, ls_fs_mkdirs(out));
    for (int k = 0; k < 2; k++) {
        if (ls_chart_empty(&chart[k])) continue;
        const int before = pen.n_png;
        LS_TRY_GOTO(st, done, report_write_chart(&chart[k], out, &pen));
        ls_str_addf(words, "Wrote %s/%s.%s\n", out, chart[k].file, pen.n_png > before ? "png" : "svg");
    }
    if (!pen.there)
        ls_str_add(words, "rsvg-convert is not installed: charts are SVG files only (package librsvg2-bin)\n");
    report_pen_words(&pen, words);
    if (pen.n_failed) ls_str_addc(words, '\n');
done:
    for (int k = 0; k < 2; k++) ls_chart_fini(&chart[k]);
    ls_run_set_fini(&set);
    return st;
}
