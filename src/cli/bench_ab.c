/* bench_ab.c - `lockstep bench ab`: two settings in turns, the difference with its interval, a verdict, and what changed inside. */
#include "cli/bench_impl.h"

#include "data/sources.h"

#include <math.h>
#include <stdlib.h>

/* The description of a side: its own options, or the folder it was read from. */
typedef struct side_name {
    ls_argv words;
    const char *folder; /* NULL: it was run here */
    ls_argv all;        /* the common options and its own; flags of a preset are replaced by ours */
} side_name;

typedef struct options {
    bench_session s;
    const char *a, *b, *by;
    side_name name[2];
    bool preset; /* a side is defined by a preset: the sides have no options in common */
} options;

static const ls_opt table[] = {
    BENCH_ROWS("2", "8"),
    CLI_INT_IN(1, 1000, "pairs", s.o.repeat, "N", NULL, "same as --repeat"),
    CLI_STR("a", a, "\"FLAGS\"", NULL, "train options of setting A, added to the common ones", "A and B", .text = true),
    CLI_STR("b", b, "\"FLAGS\"", NULL, "train options of setting B", .text = true),
    CLI_CHOICE("by", by, "mean|median", "mean",
               "speed of a run: from its mean or its median step (the median is robust against outliers)"),
};

static const cli_page page = {
    table, CLI_COUNT(table),
    "bench ab --a \"FLAGS\" --b \"FLAGS\" [OPTIONS] -- TRAIN OPTIONS\n       lockstep bench ab DIR_A DIR_B",
    "Train setting A and setting B in turns (A B B A ...), --repeat pairs, and compare neighbouring runs. Existing runs that were not made in turns are compared without pairs (Welch's test). Print the difference with its 95 % confidence interval, a verdict on B (better, worse, or no difference shown; a difference needs a 99 % interval that excludes zero), and what changed: collective calls, bytes, waits, the parts of a step. "
    "ab_report.json is written next to the runs.\n\n  lockstep bench ab -n 2 --a \"--bucket 100000\" --b \"--bucket 6553600\" \\\n      -- --data data --model tiny --seq_length 128\n"
    "  lockstep bench ab runs/x/2cpu_a runs/x/2cpu_b"};

/* --- facts of a run --- */

enum {
    FACT_STEP,
    FACT_SPLIT,
    FACT_EPOCH = FACT_SPLIT + LS_N_SPLIT,
    FACT_WALL,
    FACT_SAMPLED, /* mean, median, 95th percentile */
    FACT_CALLS = FACT_SAMPLED + 3,
    FACT_BYTES,
    FACT_BUSY,
    FACT_MEMORY,
    FACT_PEAK,
    FACT_CPU,
    N_FACT
};

static const struct {
    const char *key, *words;
    double scale; /* of the printed value */
} fact[N_FACT] = {
    [FACT_STEP] = {"step_sec", "step, ms", 1e3},
    [FACT_SPLIT + LS_SPLIT_FORWARD] = {"forward_sec", "  forward, ms", 1e3},
    [FACT_SPLIT + LS_SPLIT_BACKWARD] = {"backward_sec", "  backward, ms", 1e3},
    [FACT_SPLIT + LS_SPLIT_OPTIMIZER] = {"optimizer_sec", "  optimizer, ms", 1e3},
    [FACT_SPLIT + LS_SPLIT_EXPOSED] = {"exposed_comm_sec", "  exposed communication, ms", 1e3},
    [FACT_SPLIT + LS_SPLIT_BUBBLE] = {"bubble_sec", "  pipeline bubble, ms", 1e3},
    [FACT_SPLIT + LS_SPLIT_STRAGGLER] = {"straggler_sec", "  waiting for slower workers, ms", 1e3},
    [FACT_SPLIT + LS_SPLIT_INPUT] = {"input_sec", "  input, ms", 1e3},
    [FACT_SPLIT + LS_SPLIT_OTHER] = {"other_sec", "  other, ms", 1e3},
    [FACT_EPOCH] = {"epoch_sec", "epoch, s", 1},
    [FACT_WALL] = {"wall_sec", "wall time of the run, s", 1},
    [FACT_SAMPLED] = {"sampled_mean_sec", "sampled micro-batches: mean, ms", 1e3},
    [FACT_SAMPLED + 1] = {"sampled_p50_sec", "sampled micro-batches: median, ms", 1e3},
    [FACT_SAMPLED + 2] = {"sampled_p95_sec", "sampled micro-batches: p95, ms", 1e3},
    [FACT_CALLS] = {"collective_calls_per_step", "collective calls per step, rank 0", 1},
    [FACT_BYTES] = {"bytes_moved_per_step", "MiB moved per step, rank 0", 1 / 1048576.0},
    [FACT_BUSY] = {"collective_busy_sec", "collectives busy per step, ms", 1e3},
    [FACT_MEMORY] = {"planned_bytes", "planned memory, MiB", 1 / 1048576.0},
    [FACT_PEAK] = {"peak_bytes", "peak memory of rank 0, MiB", 1 / 1048576.0},
    [FACT_CPU] = {"cpu_utilisation", "CPU utilisation, %", 100},
};

static double fact_of(const ls_run *r, int f)
{
    double sum = 0;
    if (f == FACT_STEP) return r->step_time;
    if (f < FACT_EPOCH) return r->split[f - FACT_SPLIT];
    if (f == FACT_EPOCH) return r->epoch_time;
    if (f == FACT_WALL) return r->wall;
    if (f < FACT_CALLS) return r->sampled[f - FACT_SAMPLED];
    if (f == FACT_PEAK) return r->peak_bytes;
    if (f == FACT_MEMORY) return r->planned_bytes;
    if (f == FACT_CPU) return r->cpu_utilisation;
    if (!r->n_coll && (r->world > 1 || !json_object_get(r->metrics, "lockstep"))) return NAN; /* nobody recorded them */
    for (int i = 0; i < r->n_coll; i++)
        sum += f == FACT_CALLS ? r->coll[i].calls : f == FACT_BYTES ? r->coll[i].nbytes : r->coll[i].busy;
    return r->n_comm_step > 0 ? sum / r->n_comm_step : NAN;
}

static double median_step(const ls_run *r)
{
    const int n = r->n_step - ls_run_first(r);
    double *x = n > 0 ? ls_alloc((size_t)n * sizeof *x) : NULL;
    if (!x) return NAN;
    for (int i = 0; i < n; i++) x[i] = r->step[ls_run_first(r) + i].time;
    qsort(x, (size_t)n, sizeof *x, ls_by_value);
    const double m = ls_median(x, n);
    ls_free(x);
    return m;
}

/* The number in the setting of a run, else `otherwise`. */
static int64_t option_of(const ls_run *r, const char *name, int64_t otherwise)
{
    size_t n;
    const char *value = ls_setting_value(r->setting, name, strlen(name), &n);
    return value ? strtoll(value, NULL, 10) : otherwise;
}

/* Micro-batch s is sampled if it is a multiple of the interval, and has the update if s + 1 is a multiple of the accumulation. */
static bool samples_no_update(const ls_run *r)
{
    const int64_t every = option_of(r, "timing_sample_every", 50), accumulation = option_of(r, "grad_accum_steps", 1);
    return every > 0 && every % 2 == 0 && accumulation % 2 == 0 && r->sampled[0] > 0;
}

typedef struct outcome {
    int n; /* pairs */
    double *rate[2];
    ls_ratio test;
    ls_estimate speed[2], side[2][N_FACT], diff[N_FACT];
    ls_estimate loss[2];      /* of the last epoch */
    bool same_loss, steps;    /* at every step; steps: all runs recorded them */
    bool whole;               /* speeds are of whole epochs */
    bool no_update, commits;  /* no sampled micro-batch has an update; the sides come from several commits */
    bool allowed;             /* the runs are not comparable, and --allow_mismatch was given */
    const char *precision[2]; /* of A and B, if the comparison is one of precisions; else NULL */
    json_t *differs;          /* settings (cli_bench_differences) */
} outcome;

/* The mean step and its difference are those of the tokens/s: the same mean, and the same test. */
static void step_of_speed(const bench_pairs *p, outcome *o)
{
    ls_estimate *a = &o->side[0][FACT_STEP], *b = &o->side[1][FACT_STEP], *d = &o->diff[FACT_STEP];
    if (p->whole) return;
    for (int k = 0; k < 2; k++) o->side[k][FACT_STEP].mean = p->pair[0].run[k]->tokens_per_update / o->speed[k].mean;
    d->mean = b->mean - a->mean;
    d->half = b->mean * o->test.ratio * (1 / o->test.low - 1 / o->test.high) / 2;
}

static ls_status measure(const ls_run_set *set, const bench_pairs *p, bool median, outcome *out)
{
    const int n = p->n;
    double *x = ls_alloc((size_t)n * 5 * sizeof *x);
    if (!x) return ls_nomem((size_t)n * 5 * sizeof *x, "pairs");
    double *v[2] = {x + 2 * n, x + 3 * n}, *d = x + 4 * n;
    out->n = n;
    for (int s = 0; s < 2; s++) {
        out->rate[s] = x + s * n;
        for (int i = 0; i < n; i++) {
            const ls_run *r = p->pair[i].run[s];
            out->rate[s][i] =
                p->whole ? r->tokens_per_sec : r->tokens_per_update / (median ? median_step(r) : r->step_time);
            v[0][i] = r->train_loss;
        }
        out->loss[s] = ls_estimate_of(v[0], n);
        out->speed[s] = ls_geometric_of(out->rate[s], n);
    }
    out->test = ls_ratio_of(out->rate[0], n, out->rate[1], n, p->in_turns || n < 2);
    for (int f = 0; f < N_FACT; f++) {
        for (int i = 0; i < n; i++) {
            for (int s = 0; s < 2; s++) v[s][i] = fact_of(p->pair[i].run[s], f);
            d[i] = v[1][i] - v[0][i];
        }
        for (int s = 0; s < 2; s++) out->side[s][f] = ls_estimate_of(v[s], n);
        out->diff[f] = out->test.paired ? ls_estimate_of(d, n) : ls_welch(&out->side[0][f], &out->side[1][f], NULL);
    }
    step_of_speed(p, out);
    out->same_loss = out->steps = true;
    out->whole = p->whole;
    out->no_update = set->n > 0;
    for (int i = 0; i < set->n; i++) {
        out->same_loss = out->same_loss && ls_same_losses(&set->run[0], &set->run[i]);
        out->steps = out->steps && set->run[i].n_step;
        out->no_update = out->no_update && samples_no_update(&set->run[i]);
    }
    return LS_OK;
}

/* --- telling --- */

static bool shown(const ls_estimate *d)
{
    return fabs(d->mean) > 0 && (d->half >= 0 ? fabs(d->mean) > d->half : false);
}

/* The parts of a step whose difference is beyond its interval and no trifle, largest first: "exposed communication -1.20 ms, …". */
static void changed_parts(const outcome *o, ls_str *out)
{
    bool told[LS_N_SPLIT] = {0};
    int n = 0;
    for (;;) {
        int best = -1;
        for (int k = 0; k < LS_N_SPLIT; k++) {
            const ls_estimate *d = &o->diff[FACT_SPLIT + k];
            if (told[k] || !shown(d) || fabs(d->mean) < 0.02 * fabs(o->diff[FACT_STEP].mean)) continue;
            if (best < 0 || fabs(d->mean) > fabs(o->diff[FACT_SPLIT + best].mean)) best = k;
        }
        if (best < 0 || n == 4) break;
        told[best] = true;
        ls_str_addf(out, "%s%s %+.3f ms", n++ ? ", " : "", ls_split[best].words, 1e3 * o->diff[FACT_SPLIT + best].mean);
    }
    if (!n) ls_str_add(out, "no part of a step differs by more than its confidence interval");
}

/* Without parts of a step: what else differs by more than its interval. */
static void changed_facts(const outcome *o, ls_str *out)
{
    int n = 0;
    for (int f = FACT_EPOCH; f < N_FACT; f++)
        if (shown(&o->diff[f]))
            ls_str_addf(out, "%s%s: %+.3f", n++ ? "; " : "", fact[f].words, fact[f].scale * o->diff[f].mean);
    if (!n) ls_str_add(out, "not known, since the runs did not record the parts of a step");
}

static void why(const outcome *o, ls_str *out)
{
    bool known = false;
    for (int k = 0; k < LS_N_SPLIT; k++) known = known || !isnan(o->diff[FACT_SPLIT + k].mean);
    if (known) changed_parts(o, out);
    else changed_facts(o, out);
    static const int counts[] = {FACT_CALLS, FACT_BYTES};
    for (int i = 0; i < 2 && known; i++) {
        const int f = counts[i];
        if (isnan(o->diff[f].mean)) continue;
        const double a = o->side[0][f].mean, b = o->side[1][f].mean;
        const bool alike = fabs(b - a) <= 1e-9 * fabs(a);
        if (!(a > 0) && !(b > 0)) continue;
        if (alike) ls_str_addf(out, "; %s equal", i ? "bytes" : "calls");
        else if (i && a > 0) ls_str_addf(out, "; bytes %+.1f %%", 100 * (b / a - 1));
        else if (i) ls_str_addf(out, "; MiB moved per step %.2f instead of 0", b / 1048576);
        else ls_str_addf(out, "; collective calls per step %.1f instead of %.1f", b, a);
    }
}

static void print_fact(const outcome *o, int f, ls_str *out)
{
    const double a = o->side[0][f].mean, b = o->side[1][f].mean, k = fact[f].scale;
    if ((isnan(a) && isnan(b)) || (!(fabs(a) > 0) && !(fabs(b) > 0))) return;
    if (isnan(a) || isnan(b)) { /* one side does not record it */
        char number[24];
        snprintf(number, sizeof number, "%.3f", k * (isnan(a) ? b : a));
        ls_str_addf(out, "%-33s %10s %10s %10s\n", fact[f].words, isnan(a) ? "-" : number, isnan(b) ? "-" : number,
                    "-");
        return;
    }
    ls_str_addf(out, "%-33s %10.3f %10.3f %+10.3f", fact[f].words, k * a, k * b, k * o->diff[f].mean);
    if (o->diff[f].half >= 0)
        ls_str_addf(out, " \xc2\xb1%10.3f%s", k * o->diff[f].half, shown(&o->diff[f]) ? " *" : "");
    ls_str_addc(out, '\n');
}

/* What the result cannot show, where runs recorded less than ours do. */
static void claim_words(const outcome *o, ls_str *out)
{
    if (!o->whole) return;
    ls_str_add(
        out,
        "Weaker claim: not every run has a metrics.jsonl, so speeds are those of whole epochs as recorded, start-up and warm-up included, and the parts of a step are not known.\n");
    if (o->no_update)
        ls_str_add(
            out,
            "The sampled micro-batches have no update (even accumulation): their times exclude communication and the optimizer.\n");
    if (o->commits) ls_str_add(out, "The runs come from several commits: the difference may come from the code.\n");
}

static const char *verdict_of(const ls_ratio *t)
{
    return t->shown > 0 ? "better" : t->shown < 0 ? "worse" : "no difference shown";
}

static void outcome_table(const outcome *o, const options *x, ls_str *out)
{
    const ls_ratio *t = &o->test;
    for (int s = 0; s < 2; s++) {
        const side_name *name = &x->name[s];
        ls_str_addf(out, "%c  %12.1f tokens/s", "AB"[s], o -> speed[s].mean);
        if (o->speed[s].half >= 0) ls_str_addf(out, " \xc2\xb1 %.1f", o->speed[s].half);
        ls_str_add(out, "  ");
        if (name->folder) ls_str_add(out, name->folder);
        else if (name->words.n) ls_argv_show(&name->words, out);
        else ls_str_add(out, "(the common options)");
        ls_str_addc(out, '\n');
    }
    ls_str_addf(out, "\n%-33s %10s %10s %10s %11s\n", "means", "A", "B", "B - A", "95 %");
    for (int f = 0; f < N_FACT; f++) print_fact(o, f, out);
    ls_str_addf(out, "\nB compared with A: %s", verdict_of(t));
    if (t->p >= 0)
        ls_str_addf(out, ": %+.2f %% tokens/s (95 %%: %+.2f to %+.2f %%, p = %.2g, %s test, %d %s, %s%s%s)\n",
                    100 * (t->ratio - 1), 100 * (t->low - 1), 100 * (t->high - 1), t->p,
                    t->paired ? "paired" : "unpaired (Welch)", t->n, t->paired ? "pairs" : "runs of each",
                    o->whole ? "of whole epochs" : "by the ", o->whole ? "" : x->by, o->whole ? "" : " step");
    else
        ls_str_addf(
            out, ": %+.2f %% tokens/s in %s no interval (use --repeat %d or more, or folders of several runs)\n",
            100 * (t->ratio - 1), t->n > 1 ? "pairs equal within rounding, too few for this:" : "one pair, which has",
            t->n > 1 ? LS_PLAN_PAIRS : 2);
    if (o->allowed)
        ls_str_add(out, "mismatch_allowed: the runs are not comparable, so the difference includes different work.\n");
    if (!t->paired)
        ls_str_add(
            out,
            "The runs of A and B were not made in turns, so they are no pairs: the speed of the machine may have changed between A and B.\n");
    claim_words(o, out);
    if (!t->shown && !isnan(t->visible)) {
        if (t->visible < 1)
            ls_str_addf(out, "A difference of %.1f %% would be detected with 80 %% probability; ", 100 * t->visible);
        else ls_str_add(out, "The noise hides any change below 2x; ");
        ls_str_addf(out, "%d %s are needed to detect 5 %%.\n", ls_pairs_for(t->noise, 0.05),
                    t->paired ? "pairs" : "runs of each");
    }
    if (t->shown) {
        ls_str_add(out, "What changed: ");
        why(o, out);
        ls_str_add(out, ".\n");
    }
    if (o->precision[0]) ls_str_addf(out, "Precisions are compared: A %s, B %s.\n", o->precision[0], o->precision[1]);
    cli_bench_difference_words(o->differs, out);
    if (o->steps) ls_str_addf(out, "Losses of all runs: %s.\n", o->same_loss ? "identical" : "not identical");
    else
        ls_str_addf(out, "Losses of the last epoch: A %.4f, B %.4f (losses of steps are not recorded).\n",
                    o->loss[0].mean, o->loss[1].mean);
}

static void put(ls_jsonw *w, const char *key, const ls_estimate *e)
{
    ls_jsonw_put_open(w, key, '{');
    ls_jsonw_members(w, LS_KV("mean", e->mean), LS_KV("half95", e->half));
    ls_jsonw_close(w);
}

static void put_side(ls_jsonw *w, const outcome *o, const side_name *name, const bench_pairs *p, int k)
{
    ls_str line = {0};
    ls_argv_show(&name->words, &line);
    ls_jsonw_put_open(w, k ? "b" : "a", '{');
    if (name->folder) ls_jsonw_put_str(w, "folder", name->folder);
    else ls_jsonw_put_str(w, "flags", line.data ? line.data : "");
    put(w, "tokens_per_sec", &o->speed[k]);
    ls_jsonw_put_open(w, "tokens_per_sec_repeats", '[');
    for (int i = 0; i < o->n; i++) ls_jsonw_real(w, o->rate[k][i]);
    ls_jsonw_close(w);
    ls_jsonw_put_open(w, "runs", '[');
    for (int i = 0; i < p->n; i++) ls_jsonw_str(w, p->pair[i].dir[k]);
    ls_jsonw_close(w);
    ls_jsonw_close(w);
    ls_str_fini(&line);
}

static void put_protocol(ls_jsonw *w, const outcome *o, const options *x, const ls_analysis *a)
{
    ls_str claim = {0};
    ls_jsonw_put_open(w, "protocol", '{');
    ls_jsonw_members(w, LS_KV("by", o->whole ? "whole epochs" : x->by),
                     LS_KV("tokens_per_sec_of", o->whole ? "whole epochs" : "steps after the warm-up"));
    if (!o->whole) ls_jsonw_put_int(w, "warmup_steps_excluded", a->set->n ? a->set->run[0].n_warm : 0);
    claim_words(o, &claim);
    if (claim.len) {
        claim.data[claim.len - 1] = '\0'; /* the last newline */
        ls_jsonw_put_str(w, "claim", claim.data);
    }
    ls_str_fini(&claim);
    cli_bench_protocol(&x->s, w);
    ls_jsonw_close(w);
}

static void outcome_json(const outcome *o, const options *x, const ls_analysis *a, const bench_pairs *p, ls_str *out)
{
    ls_jsonw w;
    ls_str line = {0};
    const ls_ratio *t = &o->test;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w,
                     LS_KV("status", !a->comparable  ? "invalid_comparison"
                                     : a->n_mismatch ? "mismatch_allowed"
                                                     : "ok"),
                     LS_KV("verdict", verdict_of(t)));
    ls_jsonw_put_open(&w, "difference", '{');
    ls_jsonw_members(&w, LS_KV("change", t->ratio - 1), LS_KV("low95", t->low - 1), LS_KV("high95", t->high - 1),
                     LS_KV("p", t->p), LS_KV("confidence_of_verdict", 1 - LS_SHOWN_P),
                     LS_KV("test", t->paired ? "paired" : "welch"), LS_KV("pairs", t->n), LS_KV("noise", t->noise),
                     LS_KV("visible", t->visible));
    ls_jsonw_close(&w);
    for (int k = 0; k < 2; k++) put_side(&w, o, &x->name[k], p, k);
    ls_jsonw_put_open(&w, "left_out", '[');
    for (int i = 0; i < p->left_out.n; i++) ls_jsonw_str(&w, p->left_out.text[i]);
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "mechanism", '{');
    for (int f = 0; f < N_FACT; f++) {
        if (isnan(o->side[0][f].mean) && isnan(o->side[1][f].mean)) continue;
        ls_jsonw_put_open(&w, fact[f].key, '{');
        ls_jsonw_members(&w, LS_KV("a", o->side[0][f].mean), LS_KV("b", o->side[1][f].mean));
        put(&w, "difference", &o->diff[f]);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    why(o, &line);
    ls_jsonw_put_str(&w, "words", line.data);
    ls_str_fini(&line);
    ls_jsonw_put_open(&w, "compared", '[');
    if (o->precision[0]) ls_jsonw_str(&w, "precision");
    ls_jsonw_close(&w);
    ls_jsonw_put_value(&w, "different_settings", o->differs);
    ls_jsonw_key(&w, "same_losses");
    if (o->steps) ls_jsonw_bool(&w, o->same_loss);
    else ls_jsonw_null(&w);
    put_protocol(&w, o, x, a);
    ls_jsonw_close(&w);
}

/* The scaling study keeps the configuration of a run in its repository, so its settings are at several commits. */
static bool any_ours(const ls_run_set *set)
{
    for (int i = 0; i < set->n; i++)
        if (json_object_get(set->run[i].metrics, "lockstep")) return true;
    return false;
}

static const char *first_without_steps(const ls_run_set *set)
{
    for (int i = 0; i < set->n; i++)
        if (!set->run[i].n_step) return set->run[i].dir;
    return "a run";
}

static const char *precision_of(const ls_run *r)
{
    const char *word = json_string_value(ls_json_at(r->metrics, "training_config.precision"));
    return word ? word : "unknown";
}

static ls_status finish(const options *x, const ls_opt_list *paths)
{
    ls_run_set set = {0};
    ls_analysis a = {0};
    outcome o = {0};
    bench_pairs p = {0};
    ls_str json = {0}, text = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, cli_bench_read_pairs(&x->s, paths, &set, &a, &p));
    if (a.several_commits && any_ours(&set))
        st =
            ls_fail(LS_E_CONFIG, "the runs come from several commits; two settings can only be compared at one commit");
    else if (p.whole && !strcmp(x->by, "median"))
        st = ls_fail(LS_E_ARG, "--by median needs the steps of every run, and %s has no metrics.jsonl",
                     first_without_steps(&set));
    else if (!a.comparable && a.n_mismatch) st = cli_bench_verdict(&a, "the lines above");
    else st = measure(&set, &p, !strcmp(x->by, "median"), &o);
    if (st != LS_OK) goto done;
    o.commits = a.several_commits;
    o.allowed = a.allowed;
    for (int k = 0; k < 2 && a.other_precision; k++) o.precision[k] = precision_of(p.pair[0].run[k]);
    o.differs = cli_bench_differences(&p);
    outcome_json(&o, x, &a, &p, &json);
    outcome_table(&o, x, &text);
    st = cli_bench_publish(&x->s, &a, "ab_report.json", &json, &text);
    if (st == LS_OK) cli_bench_next(&x->s);
done:
    ls_free(o.rate[0]);
    json_decref(o.differs);
    cli_bench_pairs_fini(&p);
    ls_str_fini(&json);
    ls_str_fini(&text);
    ls_analysis_fini(&a);
    ls_run_set_fini(&set);
    return st;
}

/* Parses the options of a side (--a or --b). *workers is set to its own -n. A preset, of the side or of the common options, takes the flags
 * of its trainer out of both. *precision: the options name one. */
static ls_status own_options(side_name *name, const ls_argv *common, const char *flags, bool *preset, bool *precision,
                             int *workers)
{
    ls_train_options o = {0};
    LS_TRY(ls_argv_split(&name->words, flags));
    LS_TRY(ls_argv_add_all(&name->all, common));
    LS_TRY(ls_argv_add_all(&name->all, &name->words));
    LS_TRY(cli_bench_preset(&name->all, preset));
    LS_TRY(cli_bench_train_options(*preset ? &name->all : &name->words, true, &o));
    *precision = *precision || ls_train_given(&o, "precision") || ls_train_given(&o, "tf32");
    if (!ls_train_given(&o, "n")) return LS_OK;
    if (o.n < 1 || o.n > 1024) return ls_fail(LS_E_ARG, "-n must be 1 to 1024");
    *workers = (int)o.n;
    return LS_OK;
}

static ls_status both_options(options *x, int own[2])
{
    for (int k = 0; k < 2; k++) {
        const char *flags = k ? x->b : x->a;
        bool preset = false;
        const ls_status st = own_options(&x->name[k], &x->s.given, flags, &preset, &x->s.precisions, &own[k]);
        ls_err_kept why;
        x->preset = x->preset || preset;
        if (st == LS_OK) continue;
        ls_err_keep(&why);
        return ls_fail(st, "%s \"%s\": %s", k ? "--b" : "--a", flags, why.words);
    }
    return LS_OK;
}

/* The train options of the session are those of one side. */
static ls_status take_whole(bench_session *s, const side_name *name)
{
    s->own_workers = true;
    ls_argv_fini(&s->given);
    return ls_argv_add_all(&s->given, &name->all);
}

/* The fields that are compared after the runs (report/compare/analysis.c), as far as they are known before. */
static ls_status check_work(const ls_bench_side *a, const ls_bench_side *b)
{
    const struct {
        const char *name;
        int64_t a, b;
    } row[] = {{"seq_length", a->seq_len, b->seq_len},   {"global_batch_size", a->global_batch, b->global_batch},
               {"num_layers", a->n_layer, b->n_layer},   {"num_heads", a->n_head, b->n_head},
               {"embedding_size", a->n_embd, b->n_embd}, {"epochs", a->epochs, b->epochs}};
    for (size_t i = 0; i < CLI_COUNT(row); i++)
        if (row[i].a != row[i].b)
            return ls_fail(LS_E_CONFIG,
                           "A would have --%s %lld and B %lld, so they are not comparable; give both the same "
                           "--%s, or add --allow_mismatch",
                           row[i].name, (long long)row[i].a, (long long)row[i].b, row[i].name);
    char data[2][256];
    ls_sources_name(a->data, data[0], sizeof data[0]);
    ls_sources_name(b->data, data[1], sizeof data[1]);
    if (!strcmp(data[0], data[1])) return LS_OK;
    return ls_fail(LS_E_CONFIG,
                   "A would train on %s and B on %s, so they are not comparable; give both the same --data, or add "
                   "--allow_mismatch",
                   data[0], data[1]);
}

/* Adds the sides. With a preset, each is the whole command line. */
static ls_status add_sides(options *x, const int own[2])
{
    bench_session *s = &x->s;
    for (int k = 0; k < 2; k++) {
        if (x->preset) LS_TRY(take_whole(s, &x->name[k]));
        if (x->preset) LS_TRY(cli_bench_base(s));
        LS_TRY(cli_bench_side(s, k ? "b" : "a", own[k] ? own[k] : s->worker[0], NULL,
                              x->preset ? NULL : &x->name[k].words, 0, false));
    }
    const ls_bench_side *a = &s->bench.side[0], *b = &s->bench.side[1];
    if (a->steps && b->steps && a->steps != b->steps && !s->o.allow_mismatch)
        return ls_fail(
            LS_E_CONFIG,
            "A would train %lld steps and B %lld, so they are not comparable; give both the same --max_steps",
            (long long)a->steps, (long long)b->steps);
    if (!s->precisions && strcmp(a->precision, b->precision) && !s->o.allow_mismatch)
        return ls_fail(
            LS_E_CONFIG,
            "A would train in %s and B in %s, so they are not comparable; to compare precisions, add --precision to --a and --b",
            a->precision, b->precision);
    return s->o.allow_mismatch ? LS_OK : check_work(a, b);
}

static ls_status run(options *x, int argc, char **argv)
{
    bench_session *s = &x->s;
    ls_opt_list paths = {0};
    bool cut;
    s->by_device = true;
    int own[2] = {0, 0};
    LS_TRY(cli_bench_parse(&page, x, s, argc, argv, &paths, &cut, NULL));
    if (paths.n && (s->given.n || x->a || x->b))
        return ls_fail(LS_E_ARG, "%s: existing runs are compared without --a, --b and train options; leave them out",
                       paths.word[0]);
    if (paths.n && paths.n != 2)
        return ls_fail(LS_E_ARG, "bench ab needs two folders, DIR_A and DIR_B; %d %s given", paths.n,
                       paths.n == 1 ? "is" : "are");
    if (!paths.n && (!x->a || !x->b))
        return ls_fail(LS_E_ARG, "bench ab needs --a \"FLAGS\" and --b \"FLAGS\" (use \"\" for no flags)");
    if (!paths.n) LS_TRY(both_options(x, own));
    s->most = own[0] > own[1] ? own[0] : own[1]; /* threads are cores / most workers, of either side */
    if (x->preset) LS_TRY(take_whole(s, &x->name[0]));
    LS_TRY(cli_bench_begin(s));
    for (int k = 0; k < 2 && paths.n; k++) x->name[k].folder = paths.word[k];
    if (paths.n) return finish(x, &paths);
    if (s->n_worker != 1)
        return ls_fail(LS_E_ARG, "-n %s: must be one number; put a different -n for each setting inside --a or --b",
                       s->o.n);
    LS_TRY(add_sides(x, own));
    LS_TRY(cli_bench_go(s));
    return s->o.dry_run ? LS_OK : finish(x, &paths);
}

ls_status cli_bench_ab(int argc, char **argv)
{
    options x = {0};
    const ls_status st = run(&x, argc, argv);
    for (int k = 0; k < 2; k++) {
        ls_argv_fini(&x.name[k].words);
        ls_argv_fini(&x.name[k].all);
    }
    cli_bench_end(&x.s);
    return st;
}
