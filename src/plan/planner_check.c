#include "plan/planner_check.h"

#include "plan/planner_measure.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/stat.h"
#include "run/jsonl.h"
#include "run/metrics.h"
#include "config/run_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIP 2 /* steps that warm up */

/* ---- reading ---- */

static ls_status number(const char *file, const json_t *root, const char *path, int64_t *to)
{
    const json_t *v = ls_json_at(root, path);
    if (!json_is_number(v)) return ls_fail(LS_E_FORMAT, "%s: %s is missing or not a number", file, path);
    *to = (int64_t)json_number_value(v);
    return LS_OK;
}

/* The options of the run, whatever command continued it last. They borrow r->words. */
static ls_status read_options(ls_run_record *r)
{
    const ls_path file = ls_path_of(r->dir, LS_RUN_OPTIONS);
    if (!ls_fs_exists(file.text))
        return ls_fail(LS_E_IO, "%s does not exist: the run is of an older version, and cannot be planned", file.text);
    LS_TRY(ls_run_options_read(r->dir, true, &r->words));
    const ls_train_preset run = {"run", r->words.n};
    const ls_status st = ls_train_options_parse_preset(&run, r->words.n, r->words.word, &r->options);
    return st == LS_OK || st == LS_E_NOMEM ? st : ls_run_options_damaged(r->dir);
}

/* What `auto` was then, whatever it is here. */
static ls_status read_choices(const char *file, const json_t *root, ls_run_record *r)
{
    const char *device = json_string_value(ls_json_at(root, "lockstep.device")),
               *precision = json_string_value(ls_json_at(root, "lockstep.precision")),
               *compute = json_string_value(ls_json_at(root, "lockstep.compute"));
    if (device && !strncmp(device, "cuda", 4) && strncmp(r->options.device, "cuda", 4)) r->options.device = "cuda";
    if (device && !strcmp(device, "cpu")) r->options.device = "cpu";
    r->options.precision = ls_precision_named(precision);
    if (!r->options.precision) return ls_fail(LS_E_FORMAT, "%s: lockstep.precision is missing or unknown", file);
    snprintf(r->compute, sizeof r->compute, "%s", compute ? compute : "");
    ls_compute_kernel(r->compute, r->kernel);
    return LS_OK;
}

static ls_status resolve(const char *file, const json_t *root, ls_run_record *r)
{
    int64_t world = 0, vocab = 0;
    char none[] = "-";
    LS_TRY(number(file, root, "hardware.world_size", &world));
    LS_TRY(number(file, root, "lockstep.vocab_size", &vocab));
    LS_TRY(number(file, root, "training_config.dataset_subset_sizes.val", &r->val_seqs));
    LS_TRY(read_options(r));
    LS_TRY(read_choices(file, root, r));
    ls_ds_config ds = {0};
    const char *json = r->options.deepspeed_config;
    if (json) LS_TRY(ls_ds_config_load(json, &ds));
    const ls_train_paths paths = {.train = none, .val = r->val_seqs ? none : NULL};
    const ls_train_facts facts = {.world_size = (int)world, .data_eos_id = -1};
    ls_status st = ls_train_resolve(&r->options, json ? &ds : NULL, &paths, &facts, &r->cfg);
    ls_ds_config_fini(&ds);
    LS_TRY(st);
    r->cfg.model.vocab_size = (int)vocab;
    r->cfg.one_state =
        json_is_true(ls_json_at(root, "lockstep.shared_optimizer")); /* absent in runs of older versions */
    return LS_OK;
}

/* --stages measured: the stage boundaries of the run, as a value of --stages. */
static ls_status read_cut(const char *file, const json_t *root, ls_run_record *r)
{
    const json_t *stages = ls_json_at(root, "lockstep.pipeline.per_stage");
    const size_t P = json_array_size(stages), V = json_array_size(json_object_get(json_array_get(stages, 0), "units"));
    if (!r->cfg.stages || strcmp(r->cfg.stages, "measured")) return LS_OK;
    ls_str s = {0};
    for (size_t g = 0; g < P * V; g++) {
        const json_t *units = json_object_get(json_array_get(stages, g % P), "units");
        const char *run = json_string_value(json_array_get(units, g / P));
        ls_str_addf(&s, "%s%s", g ? "," : "", run ? run : "?");
    }
    const bool known = s.data && !s.failed && s.len < sizeof r->cut;
    snprintf(r->cut, sizeof r->cut, "%s", known ? s.data : "");
    ls_str_fini(&s);
    if (!known) return ls_fail(LS_E_FORMAT, "%s: lockstep.pipeline.per_stage has no units", file);
    r->cfg.stages = r->cut;
    return LS_OK;
}

static ls_status read_memory(const char *file, const json_t *root, ls_run_record *r)
{
    const json_t *all = ls_json_at(root, "lockstep.memory.per_rank");
    const int W = r->cfg.world_size;
    if ((int)json_array_size(all) != W)
        return ls_fail(LS_E_FORMAT, "%s: lockstep.memory.per_rank has %zu entries; the run had %d workers", file,
                       json_array_size(all), W);
    r->memory = ls_alloc((size_t)W * sizeof *r->memory);
    if (!r->memory) return ls_nomem((size_t)W * sizeof *r->memory, "the memory of each worker");
    for (int k = 0; k < W; k++) {
        const json_t *one = json_array_get(all, (size_t)k);
        for (int p = 0; p < LS_N_PART; p++) LS_TRY(number(file, one, ls_part_word((ls_part)p), &r->memory[k].part[p]));
        LS_TRY(number(file, one, "planned", &r->memory[k].total));
        r->memory[k].comm = -1;
        if (json_object_get(one, "comm")) LS_TRY(number(file, one, "comm", &r->memory[k].comm));
    }
    return LS_OK;
}

enum { N_COLUMN = 6 };
static const ls_row_key column[N_COLUMN] = {LS_ROW_STEP_TIME,    LS_ROW_FORWARD,   LS_ROW_BACKWARD,
                                            LS_ROW_COMM_EXPOSED, LS_ROW_OPTIMIZER, LS_ROW_OTHER};

/* One line of metrics.jsonl. null is NaN: not known for this step. */
static ls_status read_step(const char *path, const ls_jsonl *l, double x[N_COLUMN])
{
    const long long line = l->number;
    ls_metrics_row row;
    if (!l->row) return ls_fail(LS_E_FORMAT, "%s:%lld: the line is not JSON", path, line);
    (void)ls_metrics_read(l->row, &row);
    for (int k = 0; k < N_COLUMN; k++) {
        const char *key = ls_row_name[column[k]];
        x[k] = row.x[column[k]];
        if (!ls_metrics_has(&row, column[k]) || (k == 0 && isnan(x[k])))
            return ls_fail(LS_E_FORMAT, "%s:%lld: %s is missing or not a number", path, line, key);
        if (k == 0 && !(x[k] > 0))
            return ls_fail(LS_E_FORMAT, "%s:%lld: %s is %g; it must be above 0", path, line, key, x[k]);
    }
    return LS_OK;
}

/* Mean times of a step, without those that warm up and those that ls_measure_rows leaves out. */
static ls_status read_steps(ls_run_record *r, bool fastest)
{
    const ls_path path = ls_path_of(r->dir, "metrics.jsonl");
    ls_jsonl l;
    int cap = 0, rows = 0;
    double(*x)[N_COLUMN] = NULL, mean[N_COLUMN] = {0};
    ls_status st = LS_OK;
    LS_TRY(ls_jsonl_open(&l, path.text, LS_FS_TEXT_MOST));
    while (st == LS_OK && ls_jsonl_next(&l)) {
        if (!ls_grow(&x, rows, &cap, sizeof *x)) st = ls_nomem(sizeof *x, "the steps of a run");
        else st = read_step(path.text, &l, x[rows++]);
    }
    ls_jsonl_fini(&l);
    const int skip = rows > 3 * SKIP ? SKIP : 0, m = rows - skip;
    if (st == LS_OK && m < 1) st = ls_fail(LS_E_FORMAT, "%s contains no step", path.text);
    if (st == LS_OK) {
        qsort(x + skip, (size_t)m, sizeof *x, ls_by_value);
        const int count = ls_measure_rows(x[skip], N_COLUMN, m, fastest);
        for (int i = 0; i < count; i++)
            for (int k = 0; k < N_COLUMN; k++) mean[k] += x[skip + i][k] / count;
        r->seen = (ls_prediction){.step = mean[0],
                                  .forward = mean[1],
                                  .backward = mean[2],
                                  .exposed = mean[3],
                                  .optimizer = mean[4],
                                  .other = mean[0] - mean[1] - mean[2] - mean[3] - mean[4],
                                  .tokens_per_sec = (double)(r->cfg.global_batch * r->cfg.seq_len) / mean[0]};
        r->n_step = m;
    }
    ls_free(x);
    return st;
}

ls_status ls_run_record_load(const char *dir, bool fastest, ls_run_record *r)
{
    char path[600];
    json_t *root = NULL;
    *r = (ls_run_record){0};
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    snprintf(path, sizeof path, "%s/training_metrics.json", r->dir);
    LS_TRY(ls_fs_no_links(dir));
    LS_TRY(ls_json_load(path, &root));
    ls_status st = resolve(path, root, r);
    if (st == LS_OK) st = read_cut(path, root, r);
    if (st == LS_OK) st = read_memory(path, root, r);
    if (st == LS_OK) st = read_steps(r, fastest);
    const json_t *bubble = ls_json_at(root, "lockstep.pipeline.bubble_measured");
    r->pipeline = json_is_number(bubble);
    r->seen.bubble = json_number_value(bubble);
    json_decref(root);
    if (st != LS_OK) ls_run_record_fini(r);
    return st;
}

void ls_run_record_fini(ls_run_record *r)
{
    ls_train_config_fini(&r->cfg);
    ls_argv_fini(&r->words);
    ls_free(r->memory);
    *r = (ls_run_record){0};
}

/* ---- comparison ---- */

typedef struct line {
    const char *what;
    double predicted, measured;
} line;

static void put_totals(ls_jsonw *w, const char *key, const ls_plan_memory *m, int n)
{
    ls_jsonw_put_open(w, key, '[');
    for (int k = 0; k < n; k++) ls_jsonw_int(w, m[k].total);
    ls_jsonw_close(w);
}

static void times_text(const line *l, int n, ls_str *out)
{
    for (int i = 0; i < n; i++) {
        ls_str_addf(out, "  %-22s %14.6g ", l[i].what, l[i].predicted);
        if (isnan(l[i].measured)) ls_str_addf(out, "%14s", "unknown");
        else ls_str_addf(out, "%14.6g", l[i].measured);
        if (l[i].measured > 0) ls_str_addf(out, "  %+7.1f %%", 100 * (l[i].predicted / l[i].measured - 1));
        ls_str_addc(out, '\n');
    }
}

static int memory_text(const ls_run_record *r, const ls_plan_memory *plan, ls_str *out)
{
    int unlike = 0;
    ls_str_add(out, "memory, bytes               planned      allocated\n");
    for (int k = 0; k < r->cfg.world_size; k++)
        for (int p = 0; p < LS_N_PART + 2; p++) {
            const ls_plan_memory *x = &plan[k], *y = &r->memory[k];
            const int64_t a = p < LS_N_PART    ? x->part[p]
                              : p == LS_N_PART ? x->total
                                               : x->comm,
                          b = p < LS_N_PART    ? y->part[p]
                              : p == LS_N_PART ? y->total
                                               : y->comm;
            const char *word = p < LS_N_PART ? ls_part_word((ls_part)p) : p == LS_N_PART ? "total" : "NCCL's sums";
            unlike += a != b;
            if ((!a && !b) || b < 0) continue;
            if (k && a == b && p != LS_N_PART) continue; /* every worker's total, rank 0's parts, and what differs */
            ls_str_addf(out, "  rank %-3d %-13s %14lld %14lld  %s\n", k, word, (long long)a, (long long)b,
                        a == b ? "equal" : "NOT EQUAL");
        }
    return unlike;
}

static void as_json(const ls_cluster *cl, const ls_run_record *r, const ls_plan_memory *plan, const line *l, int n,
                    ls_str *out)
{
    ls_jsonw w;
    const bool equal = !memcmp(plan, r->memory, (size_t)r->cfg.world_size * sizeof *plan);
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("run", r->dir), LS_KV("cluster", cl->name), LS_KV("device", r->cfg.device),
                     LS_KV("precision", r->cfg.precision), LS_KV("strategy", r->cfg.strategy),
                     LS_KV("workers", r->cfg.world_size), LS_KV("pp", r->cfg.mesh.n[LS_AXIS_PP]),
                     LS_KV("tp", r->cfg.mesh.n[LS_AXIS_TP]), LS_KV("schedule", r->cfg.schedule),
                     LS_KV("micro_batch", r->cfg.micro_batch), LS_KV("grad_accum", r->cfg.grad_accum),
                     LS_KV("memory_equal", equal));
    put_totals(&w, "memory_planned", plan, r->cfg.world_size);
    put_totals(&w, "memory_allocated", r->memory, r->cfg.world_size);
    for (int side = 0; side < 2; side++) {
        ls_jsonw_put_open(&w, side ? "measured" : "predicted", '{');
        for (int i = 0; i < n; i++) ls_jsonw_put_real(&w, l[i].what, side ? l[i].measured : l[i].predicted);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_str_addc(out, '\n');
}

/* The GPU of this machine reports the cuDNN workspace; without a GPU the plan does not include it. */
static bool open_gpu(const ls_train_config *c, ls_compute *out)
{
    ls_compute_open_opts o = ls_train_compute_opts(c);
    if (strcmp(c->device, "cuda")) return false;
    o.device = -1;
    o.local_rank = 0;
    if (ls_compute_open(out, "cuda", &o, 1) == LS_OK) return true;
    ls_err_clear();
    return false;
}

/* Worker `rank` of the run: with its kernel, if it recorded one. */
static ls_worker_cpu cpu_of(const ls_cluster *cl, const ls_run_record *r, const ls_train_config *c, int rank)
{
    ls_worker_cpu cpu = ls_planner_cpu(cl, c, rank);
    if (r->kernel[0]) cpu.kernel = r->kernel;
    return cpu;
}

/* What the sizes depend on besides the options: of the run, and of this plan. */
static void why_unlike(const ls_run_record *r, ls_worker_cpu cpu, int unlike, bool gpu_here, ls_str *out)
{
    char words[LS_COMPUTE_WORDS] = "", kernel[LS_KERNEL_NAME];
    ls_compute c;
    ls_str_addf(out, "  %d numbers differ: ", unlike);
    if (!strcmp(r->cfg.device, "cuda")) {
        ls_str_addf(out, "the run used another build, or cuDNN's working space differs (%s)\n",
                    gpu_here ? "here it is that of this machine's GPU" : "without a GPU it is not planned");
        return;
    }
    if (ls_compute_open_cpu_sizes(&c, r->cfg.dtype, cpu.kernel, cpu.threads) == LS_OK) ls_compute_describe(&c, words);
    ls_err_clear();
    ls_str_addf(out,
                "the run has \"%s\", this plan the sizes of %s matmul with %d thread%s per worker; if these are the "
                "same, the run used another build\n",
                r->compute, ls_compute_kernel(words, kernel), cpu.threads, cpu.threads == 1 ? "" : "s");
}

ls_status ls_planner_check(const ls_cluster *cl, const ls_run_record *r, bool json, ls_str *out, double *worst)
{
    ls_train_config c = r->cfg; /* borrows what the record owns */
    ls_prediction t;
    char words[96];
    ls_planner_share(cl, &c);
    LS_TRY(ls_planner_predict(cl, &c, &t));
    ls_plan_memory *plan = ls_alloc((size_t)c.world_size * sizeof *plan);
    if (!plan) return ls_nomem((size_t)c.world_size * sizeof *plan, "the plans");
    ls_status st = LS_OK;
    ls_compute gpu;
    const bool here = open_gpu(&c, &gpu);
    for (int k = 0; k < c.world_size && st == LS_OK; k++)
        st = ls_planner_memory(&c, here ? &gpu : NULL, cpu_of(cl, r, &c, k), k, r->val_seqs, &plan[k]);
    for (int k = 0; k < c.world_size; k++)
        plan[k].comm = r->memory[k].comm < 0 ? -1 : ls_planner_comm_bytes(&c); /* not over NCCL: none */
    if (here) ls_compute_close(&gpu);
    const line l[] = {{"tokens/s", t.tokens_per_sec, r->seen.tokens_per_sec},
                      {"step", t.step, r->seen.step},
                      {"forward", t.forward, r->seen.forward},
                      {"backward", t.backward, r->seen.backward},
                      {"exposed communication", t.exposed, r->seen.exposed},
                      {"optimizer", t.optimizer, r->seen.optimizer},
                      {"other", t.other, r->seen.other},
                      {"bubble", t.bubble, r->seen.bubble}};
    const int n = (int)(sizeof l / sizeof l[0]) - !r->pipeline;
    ls_planned_words(&c, words);
    if (st == LS_OK && json) as_json(cl, r, plan, l, n, out);
    if (st == LS_OK && !json) {
        char crowd[128];
        ls_crowd_words(cl, c.world_size, crowd);
        ls_str_addf(out, "%s: %s, %d steps; cluster %s\n%s%s\n", r->dir, words, r->n_step, cl->name, crowd,
                    crowd[0] ? "\n" : "");
        const int unlike = memory_text(r, plan, out);
        if (unlike) why_unlike(r, cpu_of(cl, r, &c, 0), unlike, here, out);
        ls_str_addf(out, "\n%-26s predicted       measured  difference\n",
                    r->pipeline ? "times, s" : "times of rank 0, s");
        times_text(l, n, out);
        if (r->pipeline)
            ls_str_add(out, "  tokens/s, step and bubble are those of all stages, the other times those of rank 0\n");
    }
    if (st == LS_OK) *worst = fabs(t.tokens_per_sec / r->seen.tokens_per_sec - 1);
    ls_free(plan);
    return st;
}
