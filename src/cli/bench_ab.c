/* bench_ab.c - `lockstep bench ab`: two settings in turns, the difference with its interval, a verdict, and what changed inside. */
#include "cli/bench_impl.h"

#include "bench/ab.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    bench_opts o; /* first: the common rows' offsets are of it */
    const char *a, *b, *by;
} options;

static const ls_opt table[] = {
    BENCH_ROWS("2", "8"),
    {"pairs", LS_OPT_INT, BENCH_AT(repeat), "N", NULL, "same as --repeat", NULL},
    {"a", LS_OPT_STR, offsetof(options, a), "\"FLAGS\"", NULL, "train options of setting A, added to the common ones",
     "Settings"},
    {"b", LS_OPT_STR, offsetof(options, b), "\"FLAGS\"", NULL, "train options of setting B", NULL},
    {"by", LS_OPT_CHOICE, offsetof(options, by), "mean|median", "mean",
     "speed of a run: from its mean or its median step (the median is robust against outliers)", NULL},
};
enum { N_OPT = sizeof table / sizeof table[0] };

static const char help_text[] =
    "Train setting A and setting B in turns (A B B A ...), --repeat pairs, and compare neighbouring runs. Print the "
    "difference with its 95 % confidence interval, a verdict on B (better, worse, or no difference shown; a difference "
    "needs a 99 % interval that excludes zero), and what changed: collective calls, bytes, waits, the parts of a step. "
    "ab_report.json is written next to the runs.\n\n  lockstep bench ab -n 2 --a \"--bucket 100000\" --b \"--bucket "
    "6553600\" \\\n      -- --data data --model tiny --seq_length 128\n"
    "  lockstep bench ab runs/x/2gpu_a runs/x/2gpu_b";

/* --- facts of a run --- */

enum {
    FACT_STEP,
    FACT_SPLIT,
    FACT_CALLS = FACT_SPLIT + LS_N_SPLIT,
    FACT_BYTES,
    FACT_BUSY,
    FACT_MEMORY,
    FACT_CPU,
    N_FACT
};

static const struct {
    const char *key, *words;
    double scale; /* for people */
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
    [FACT_CALLS] = {"collective_calls_per_step", "collective calls per step, rank 0", 1},
    [FACT_BYTES] = {"bytes_moved_per_step", "MiB moved per step, rank 0", 1 / 1048576.0},
    [FACT_BUSY] = {"collective_busy_sec", "collectives busy per step, ms", 1e3},
    [FACT_MEMORY] = {"planned_bytes", "planned memory, MiB", 1 / 1048576.0},
    [FACT_CPU] = {"cpu_utilisation", "CPU utilisation, %", 100},
};

static double fact_of(const ls_run *r, int f)
{
    double sum = 0;
    if (f == FACT_STEP) return r->step_time;
    if (f < FACT_CALLS) return r->split[f - FACT_SPLIT];
    if (f == FACT_MEMORY) return r->planned_bytes;
    if (f == FACT_CPU) return r->cpu_utilisation;
    for (int i = 0; i < r->n_coll; i++)
        sum += f == FACT_CALLS ? r->coll[i].calls : f == FACT_BYTES ? r->coll[i].nbytes : r->coll[i].busy;
    return r->n_comm_step > 0 ? sum / r->n_comm_step : NAN;
}

static double median_step(const ls_run *r)
{
    const int n = r->n_step - r->n_warm;
    double *x = n > 0 ? ls_alloc((size_t)n * sizeof *x) : NULL;
    if (!x) return NAN;
    for (int i = 0; i < n; i++) x[i] = r->step[r->n_warm + i].time;
    qsort(x, (size_t)n, sizeof *x, ls_by_value);
    const double m = ls_median(x, n);
    ls_free(x);
    return m;
}

/* A side, for people: its own options, or the folder it was read from. */
typedef struct side_name {
    ls_argv words;
    const char *folder; /* NULL: it was run here */
} side_name;

typedef struct outcome {
    int n; /* pairs */
    double *rate[2];
    ls_ab test;
    ls_estimate speed[2], side[2][N_FACT], diff[N_FACT];
    bool same_loss;
} outcome;

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
            const ls_run *r = &set->run[p->run[i][s]];
            out->rate[s][i] = r->tokens_per_update / (median ? median_step(r) : r->step_time);
        }
        out->speed[s] = ls_estimate_of(out->rate[s], n);
    }
    out->test = ls_ab_compare(out->rate[0], out->rate[1], n);
    for (int f = 0; f < N_FACT; f++) {
        for (int i = 0; i < n; i++) {
            for (int s = 0; s < 2; s++) v[s][i] = fact_of(&set->run[p->run[i][s]], f);
            d[i] = v[1][i] - v[0][i];
        }
        for (int s = 0; s < 2; s++) out->side[s][f] = ls_estimate_of(v[s], n);
        out->diff[f] = ls_estimate_of(d, n);
    }
    out->same_loss = true;
    for (int i = 1; i < set->n; i++) out->same_loss = out->same_loss && ls_same_losses(&set->run[0], &set->run[i]);
    return LS_OK;
}

/* --- telling --- */

static bool shown(const ls_estimate *d)
{
    return fabs(d->mean) > 0 && (d->half >= 0 ? fabs(d->mean) > d->half : false);
}

/* The parts of a step whose difference is beyond its interval and no trifle, largest first: "exposed communication -1.20 ms, …". */
static void why(const outcome *o, ls_str *out)
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
    static const int counts[] = {FACT_CALLS, FACT_BYTES};
    for (int i = 0; i < 2; i++) {
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

static void say_name(const side_name *name, ls_str *out)
{
    if (name->folder) ls_str_add(out, name->folder);
    else if (name->words.n) ls_argv_show(&name->words, out);
    else ls_str_add(out, "(the common options)");
}

static void print_outcome(const outcome *o, const options *x, const side_name *name)
{
    const ls_ab *t = &o->test;
    for (int s = 0; s < 2; s++) {
        ls_str line = {0};
        say_name(&name[s], &line);
        printf("%c  %12.1f tokens/s", "AB"[s], o -> speed[s].mean);
        if (o->speed[s].half >= 0) printf(" \xc2\xb1 %.1f", o->speed[s].half);
        printf("  %s\n", line.data ? line.data : "");
        ls_str_fini(&line);
    }
    printf("\n%-34s %12s %12s %12s %12s\n", "means", "A", "B", "B - A", "95 %");
    for (int f = 0; f < N_FACT; f++) {
        const double a = o->side[0][f].mean, b = o->side[1][f].mean, k = fact[f].scale;
        if ((isnan(a) && isnan(b)) || (!(fabs(a) > 0) && !(fabs(b) > 0))) continue;
        if (isnan(a) || isnan(b)) { /* one side does not record it */
            char number[24];
            snprintf(number, sizeof number, "%.3f", k * (isnan(a) ? b : a));
            printf("%-34s %12s %12s %12s\n", fact[f].words, isnan(a) ? "-" : number, isnan(b) ? "-" : number, "-");
            continue;
        }
        printf("%-34s %12.3f %12.3f %+12.3f", fact[f].words, k * a, k * b, k * o->diff[f].mean);
        if (o->diff[f].half >= 0) printf(" \xc2\xb1%11.3f%s\n", k * o->diff[f].half, shown(&o->diff[f]) ? " *" : "");
        else printf("\n");
    }
    printf("\nB compared with A: %s", ls_ab_words(t->verdict));
    if (t->n > 1)
        printf(": %+.2f %% tokens/s (95 %%: %+.2f to %+.2f %%, p = %.2g, %d pairs, by the %s step)\n", 100 * t->change,
               100 * t->low, 100 * t->high, t->p, t->n, x->by);
    else printf(" (one pair is not enough; use --repeat 2 or more)\n");
    if (t->n > 1 && t->verdict == LS_AB_NONE) {
        if (t->visible < 1)
            printf("A difference of %.1f %% would be detected with 80 %% probability; ", 100 * t->visible);
        else printf("The noise hides any change below 2x; ");
        printf("%d pairs are needed to detect 5 %%.\n", ls_ab_pairs_for(t->noise, 0.05));
    }
    if (t->verdict != LS_AB_NONE) {
        ls_str s = {0};
        why(o, &s);
        printf("What changed: %s.\n", s.data ? s.data : "");
        ls_str_fini(&s);
    }
    printf("Losses of all runs: %s.\n", o->same_loss ? "identical" : "not identical");
}

static void put(ls_jsonw *w, const char *key, const ls_estimate *e)
{
    ls_jsonw_put_open(w, key, '{');
    ls_jsonw_put_real(w, "mean", e->mean);
    ls_jsonw_put_real(w, "half95", e->half);
    ls_jsonw_close(w);
}

static void outcome_text(const outcome *o, const bench_session *s, const options *x, const ls_analysis *a,
                         const bench_pairs *p, const side_name *name, ls_str *out)
{
    ls_jsonw w;
    ls_str line = {0};
    const ls_ab *t = &o->test;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "status", !a->comparable ? "invalid_comparison" : a->n_mismatch ? "mismatch_allowed" : "ok");
    ls_jsonw_put_str(&w, "verdict", ls_ab_words(t->verdict));
    ls_jsonw_put_open(&w, "difference", '{');
    ls_jsonw_put_real(&w, "change", t->change);
    ls_jsonw_put_real(&w, "low95", t->low);
    ls_jsonw_put_real(&w, "high95", t->high);
    ls_jsonw_put_real(&w, "p", t->p);
    ls_jsonw_put_real(&w, "confidence_of_verdict", LS_AB_CONFIDENCE);
    ls_jsonw_put_int(&w, "pairs", t->n);
    ls_jsonw_put_real(&w, "noise", t->noise);
    ls_jsonw_put_real(&w, "visible", t->visible);
    ls_jsonw_close(&w);
    for (int k = 0; k < 2; k++) {
        ls_str_fini(&line);
        ls_argv_show(&name[k].words, &line);
        ls_jsonw_put_open(&w, k ? "b" : "a", '{');
        if (name[k].folder) ls_jsonw_put_str(&w, "folder", name[k].folder);
        else ls_jsonw_put_str(&w, "flags", line.data ? line.data : "");
        put(&w, "tokens_per_sec", &o->speed[k]);
        ls_jsonw_put_open(&w, "tokens_per_sec_repeats", '[');
        for (int i = 0; i < o->n; i++) ls_jsonw_real(&w, o->rate[k][i]);
        ls_jsonw_close(&w);
        ls_jsonw_put_open(&w, "runs", '[');
        for (int i = 0; i < p->n; i++) ls_jsonw_str(&w, a->set->run[p->run[i][k]].dir);
        ls_jsonw_close(&w);
        ls_jsonw_close(&w);
    }
    ls_jsonw_put_open(&w, "left_out", '[');
    for (int i = 0; i < p->left_out.n; i++) ls_jsonw_str(&w, p->left_out.text[i]);
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "mechanism", '{');
    for (int f = 0; f < N_FACT; f++) {
        if (isnan(o->side[0][f].mean) && isnan(o->side[1][f].mean)) continue;
        ls_jsonw_put_open(&w, fact[f].key, '{');
        ls_jsonw_put_real(&w, "a", o->side[0][f].mean);
        ls_jsonw_put_real(&w, "b", o->side[1][f].mean);
        put(&w, "difference", &o->diff[f]);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_str_fini(&line);
    why(o, &line);
    ls_jsonw_put_str(&w, "words", line.data);
    ls_str_fini(&line);
    ls_jsonw_put_bool(&w, "same_losses", o->same_loss);
    ls_jsonw_put_open(&w, "protocol", '{');
    ls_jsonw_put_str(&w, "by", x->by);
    ls_jsonw_put_int(&w, "warmup_steps_excluded", a->set->n ? a->set->run[0].n_warm : 0);
    cli_bench_protocol(s, &w);
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
}

static ls_status finish(const bench_session *s, const options *x, const ls_opt_list *paths, const side_name *name)
{
    ls_run_set set = {0};
    ls_analysis a = {0};
    outcome o = {0};
    bench_pairs p = {0};
    ls_str text = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, cli_bench_read_pairs(s, paths, &set, &a, &p));
    if (a.several_commits) {
        st =
            ls_fail(LS_E_CONFIG, "the runs come from several commits; two settings can only be compared at one commit");
        goto done;
    }
    if (!a.comparable && a.n_mismatch) {
        st = cli_bench_verdict(&a, "the lines above");
        goto done;
    }
    LS_TRY_GOTO(st, done, measure(&set, &p, !strcmp(x->by, "median"), &o));
    outcome_text(&o, s, x, &a, &p, name, &text);
    if (s->o.json) puts(text.data ? text.data : "");
    else print_outcome(&o, x, name);
    fflush(stdout);
    if (s->bench.n_side || s->o.out) LS_TRY_GOTO(st, done, cli_bench_write(s->out, "ab_report.json", &text));
    st = cli_bench_verdict(&a, "ab_report.json");
done:
    ls_free(o.rate[0]);
    cli_bench_pairs_fini(&p);
    ls_str_fini(&text);
    ls_analysis_fini(&a);
    ls_run_set_fini(&set);
    return st;
}

/* What a side's own options say of it: workers (0: the benchmark's). What is the benchmark's to say is refused. */
static ls_status own_options(side_name *name, const char *flags, int *workers)
{
    ls_train_options o = {0};
    ls_argv copy = {0}; /* parsing moves words */
    LS_TRY(ls_argv_split(&name->words, flags));
    ls_status st = ls_argv_add_all(&copy, &name->words);
    if (st == LS_OK) st = ls_train_options_parse(copy.n, copy.word, &o);
    if (st == LS_OK) st = cli_bench_refuse(&o, true);
    if (st == LS_OK && ls_train_given(&o, "n")) {
        if (o.n < 1 || o.n > 1024) st = ls_fail(LS_E_ARG, "%s: -n must be 1 to 1024", flags);
        *workers = (int)o.n;
    }
    ls_argv_fini(&copy);
    return st;
}

static ls_status run(bench_session *s, options *x, side_name *name, int argc, char **argv)
{
    ls_opt_list paths = {0};
    bool help = false, cut = false;
    int n = 0, own[2] = {0, 0};
    LS_TRY(cli_bench_cut(argc, argv, &s->given, &n, &cut));
    LS_TRY(ls_opt_defaults(table, N_OPT, x));
    LS_TRY(ls_opt_parse(table, N_OPT, x, NULL, n, argv, &paths, &help));
    if (help) {
        cli_help(
            "bench ab --a \"FLAGS\" --b \"FLAGS\" [OPTIONS] -- TRAIN OPTIONS\n       lockstep bench ab DIR_A DIR_B",
            help_text, table, N_OPT);
        return LS_OK;
    }
    s->o = x->o;
    if (paths.n && (s->given.n || x->a || x->b))
        return ls_fail(LS_E_ARG, "%s: existing runs are compared without --a, --b and train options; leave them out",
                       paths.word[0]);
    if (paths.n && paths.n != 2)
        return ls_fail(LS_E_ARG, "bench ab needs two folders, DIR_A and DIR_B; %d %s given", paths.n,
                       paths.n == 1 ? "is" : "are");
    if (!paths.n && (!x->a || !x->b))
        return ls_fail(LS_E_ARG, "bench ab needs --a \"FLAGS\" and --b \"FLAGS\" (use \"\" for no flags)");
    for (int k = 0; k < 2 && !paths.n; k++) LS_TRY(own_options(&name[k], k ? x->b : x->a, &own[k]));
    s->most = own[0] > own[1] ? own[0] : own[1]; /* threads are cores / most workers, of either side */
    LS_TRY(cli_bench_begin(s));
    for (int k = 0; k < 2 && paths.n; k++) name[k].folder = paths.word[k];
    if (paths.n) return finish(s, x, &paths, name);
    if (s->n_worker != 1)
        return ls_fail(LS_E_ARG, "-n %s: must be one number; put a different -n for each setting inside --a or --b",
                       s->o.n);
    for (int k = 0; k < 2; k++)
        LS_TRY(cli_bench_side(s, k ? "b" : "a", own[k] ? own[k] : s->worker[0], NULL, &name[k].words, 0, false));
    LS_TRY(cli_bench_go(s));
    return s->o.dry_run ? LS_OK : finish(s, x, &paths, name);
}

ls_status cli_bench_ab(int argc, char **argv)
{
    options x = {0};
    bench_session s = {0};
    side_name name[2] = {{{0}, NULL}, {{0}, NULL}};
    ls_status st = run(&s, &x, name, argc, argv);
    for (int k = 0; k < 2; k++) ls_argv_fini(&name[k].words);
    cli_bench_end(&s);
    return st;
}
