/* run_steps.c - metrics.jsonl (one line per step), pipeline.json (boxes of one step), RUN_COMPLETE.txt (one line). */
#include "core/fs.h"
#include "core/mem.h"
#include "core/stat.h"
#include "report/read/run_impl.h"
#include "run/jsonl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Means over the steps after the warm-up, as the step's time is. The recorded split of the run, which is over all steps, counts where the
 * steps have none: ls_run.split_of_steps tells which. */
static void average(ls_run *r)
{
    const int count = r->n_step - r->n_before;
    if (r->n_warm <= 0) r->n_warm = count < 3 ? 0 : count < 50 ? (count + 9) / 10 : 5;
    double part[LS_N_SPLIT] = {0}, time = 0, tflop = 0;
    int n = 0, n_part[LS_N_SPLIT] = {0}, n_tflop = 0;
    bool said = false;
    for (int i = ls_run_first(r); i < r->n_step; i++) {
        const ls_run_step *s = &r->step[i];
        if (!(s->time > 0)) continue;
        time += s->time;
        n++;
        if (isfinite(s->tflop_per_token)) tflop += s->tflop_per_token, n_tflop++;
        for (int k = 0; k < LS_N_SPLIT; k++)
            if (s->part[k] >= 0 || (k == LS_SPLIT_OTHER && !isnan(s->part[k]))) part[k] += s->part[k], n_part[k]++;
    }
    if (n) r->step_time = time / n;
    if (n_tflop) r->tflop_per_token = tflop / n_tflop;
    for (int k = 0; k < LS_N_SPLIT; k++) said = said || n_part[k];
    if (!said) return;
    r->split_of_steps = true;
    double rest = r->step_time;
    for (int k = 0; k < LS_N_SPLIT; k++) r->split[k] = NAN;
    for (int k = 0; k < LS_N_SPLIT; k++) {
        if (!n_part[k]) continue;
        r->split[k] = part[k] / n_part[k]; /* a step whose part is null did not measure it */
        rest -= r->split[k];
    }
    if (isnan(r->split[LS_SPLIT_OTHER])) r->split[LS_SPLIT_OTHER] = rest;
    if (r->split[LS_SPLIT_OTHER] < 0) r->split[LS_SPLIT_OTHER] = 0; /* the difference of two clocks: noise */
}

/* The 95th percentile of the steps after the warm-up, with linear interpolation, as the scaling study has it. */
static ls_status find_p95(ls_run *r)
{
    const int most = r->n_step - ls_run_first(r);
    double *x = most > 0 ? ls_alloc((size_t)most * sizeof *x) : NULL;
    int n = 0;
    if (most <= 0) return LS_OK;
    if (!x) return ls_nomem((size_t)most * sizeof *x, "times of steps");
    for (int i = ls_run_first(r); i < r->n_step; i++)
        if (r->step[i].time > 0) x[n++] = r->step[i].time;
    if (n) {
        qsort(x, (size_t)n, sizeof *x, ls_by_value);
        const double at = 0.95 * (n - 1), low = floor(at);
        const int k = (int)low;
        r->step_p95 = x[k] + (at - low) * (x[k + 1 < n ? k + 1 : k] - x[k]);
    }
    ls_free(x);
    return LS_OK;
}

ls_status run_read_steps(ls_text t, const char *dir, ls_notes *notes, ls_run *r)
{
    int cap = 0, n_bad = 0;
    ls_metrics_row row;
    ls_jsonl l = {.text = t.data, .n = t.n};
    while (ls_jsonl_next(&l)) {
        if (!ls_metrics_read(l.row, &row)) {
            if (l.whole && ++n_bad <= 3) /* a killed run may leave an incomplete last line */
                ls_notes_add(notes, "%s/metrics.jsonl: line %lld is not an object with a key step", dir,
                             (long long)l.number);
            continue;
        }
        if (!ls_grow(&r->step, r->n_step, &cap, sizeof *r->step)) {
            ls_jsonl_fini(&l);
            return ls_nomem(sizeof *r->step, "steps");
        }
        ls_run_step *s = &r->step[r->n_step++];
        *s = (ls_run_step){.step = row.step,
                           .loss = row.x[LS_ROW_LOSS],
                           .val_loss = row.x[LS_ROW_VAL_LOSS],
                           .time = row.x[LS_ROW_STEP_TIME],
                           .tflop_per_token = row.x[LS_ROW_TFLOPS] / row.x[LS_ROW_TOKENS_PER_SEC],
                           .at_ms = row.x[LS_ROW_TIME]};
        for (int i = 0; i < LS_N_SPLIT; i++) s->part[i] = row.x[ls_split[i].row];
        if (isnan(s->part[LS_SPLIT_EXPOSED])) s->part[LS_SPLIT_EXPOSED] = row.x[LS_ROW_REDUCE]; /* its older name */
    }
    ls_jsonl_fini(&l);
    if (n_bad > 3) ls_notes_add(notes, "%s/metrics.jsonl: %d more such lines", dir, n_bad - 3);
    return run_measure_steps(r);
}

ls_status run_measure_steps(ls_run *r)
{
    r->step_time = r->tflop_per_token = r->step_p95 = NAN;
    average(r);
    return find_p95(r);
}

/* --- pipeline.json: a list of {lane, begin, end, kind, label}, or an object that has it as `rows`, and perhaps one as `simulated` --- */

/* Appends the boxes of a list. */
static void read_spans(const json_t *rows, bool simulated, const char *file, ls_notes *notes, ls_run *r)
{
    size_t n_row = json_array_size(rows);
    if (n_row > LS_RUN_MAX_SPAN) {
        ls_notes_add(notes, "%s: %zu rows; the first %d are shown", file, n_row, LS_RUN_MAX_SPAN);
        n_row = LS_RUN_MAX_SPAN;
    }
    for (size_t i = 0; i < n_row; i++) {
        const json_t *row = json_array_get(rows, i);
        double lane = ls_json_real_at(row, "lane"), begin = ls_json_real_at(row, "begin"),
               end = ls_json_real_at(row, "end");
        if (!(lane >= 0 && lane < 256 && begin >= 0 && end >= begin)) {
            ls_notes_add(notes, "%s: row %zu: keys lane (0 to 255), begin and end (begin <= end) were expected", file,
                         i);
            if (i > 2) break;
            continue;
        }
        r->span[r->n_span++] = (ls_run_span){
            simulated, (int)lane, begin, end, ls_json_text_at(row, "kind"), ls_json_text_at(row, "label")};
        if (lane >= r->n_lane) r->n_lane = (int)lane + 1;
    }
}

ls_status run_read_pipeline(ls_text t, const char *dir, ls_notes *notes, ls_run *r)
{
    const ls_path path = ls_path_of(dir, "pipeline.json");
    const char *file = path.text;
    LS_TRY(ls_notes_failure(notes, ls_json_parse(t.data, t.n, file, &r->pipeline)));
    if (!r->pipeline) return LS_OK;
    const json_t *rows = json_is_array(r->pipeline) ? r->pipeline : json_object_get(r->pipeline, "rows"),
                 *simulated = json_object_get(r->pipeline, "simulated");
    if (!json_is_array(rows)) ls_notes_add(notes, "%s: a list of rows was expected", file);
    const size_t n = json_array_size(rows) + json_array_size(simulated);
    r->span = n ? ls_alloc(n * sizeof *r->span) : NULL;
    if (n && !r->span) return ls_nomem(n * sizeof *r->span, "a pipeline's rows");
    read_spans(rows, false, file, notes, r);
    read_spans(simulated, true, file, notes, r);
    return LS_OK;
}

/* --- RUN_COMPLETE.txt --- */

/* The value after the last " key=" of the line, which it cuts off; NULL when there is none. */
static char *cut_value(char *line, const char *key)
{
    char *hit = NULL;
    for (char *p = line; (p = strstr(p, key)); p++) hit = p;
    if (!hit) return NULL;
    *hit = '\0';
    return hit + strlen(key);
}

void run_read_complete(ls_text t, const char *dir, ls_notes *notes, ls_run *r)
{
    static const char begin[] = "[Rank 0] RUN_COMPLETE checkpoint_path=";
    char line[4096], *value[4];
    const char *end = memchr(t.data, '\n', t.n);
    const size_t len = end ? (size_t)(end - t.data) : t.n;
    snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), t.data);
    static const char *const key[] = {" timestamp_utc=", " total_wall_time_sec=", " tokens_per_sec=", " world_size="};
    bool fits = !strncmp(line, begin, sizeof begin - 1);
    for (int i = 0; i < 4 && fits; i++) fits = (value[i] = cut_value(line, key[i])) != NULL;
    if (!fits) {
        ls_notes_add(
            notes,
            "%s/RUN_COMPLETE.txt: not the line of a finished run ([Rank 0] RUN_COMPLETE checkpoint_path=... world_size=... tokens_per_sec=... total_wall_time_sec=... timestamp_utc=...)",
            dir);
        return;
    }
    r->complete = true;
    int64_t world;
    double x;
    if (r->world && (!ls_parse_i64(value[3], &world) || world != r->world))
        ls_notes_add(notes, "%s/RUN_COMPLETE.txt: world_size=%.20s, but training_metrics.json has %d", dir, value[3],
                     r->world);
    const struct {
        const char *key, *value;
        double known;
    } number[] = {{"tokens_per_sec", value[2], r->tokens_per_sec}, {"total_wall_time_sec", value[1], r->wall}};
    for (int i = 0; i < 2; i++)
        if (ls_parse_f64(number[i].value, &x) && !isnan(number[i].known) && x != number[i].known)
            ls_notes_add(notes, "%s/RUN_COMPLETE.txt: %s=%.30s, but training_metrics.json has %.17g", dir,
                         number[i].key, number[i].value, number[i].known);
}
