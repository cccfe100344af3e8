/* bench_scaling.c - `lockstep bench scaling` and `lockstep bench strategies`. */
#include "cli/bench_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct options {
    bench_opts o; /* first: the common rows' offsets are of it */
    const char *layout, *layouts;
    bool weak;
    int64_t epochs, seq_len;
    const char *dataset_mode, *deepspeed_config;
    bool in_place; /* --no_use_slurm_tmpdir of R1's runner: it is always so here */
} options;

static const ls_opt scaling_table[] = {
    BENCH_ROWS("1,2,4", "3"),
    {"gpus", LS_OPT_STR, BENCH_AT(n), "LIST", NULL, NULL, NULL},
    {"layout", LS_OPT_STR, offsetof(options, layout), "LAYOUT", NULL,
     "layout for several workers: dp, ddp, zero1, zero2, zero3, pp[-SCHEDULE], tp, or a hybrid such as ddp+pp2-1f1b "
     "[from the train options or their DeepSpeed JSON, else ddp]",
     "Scaling"},
    {"weak", LS_OPT_SWITCH, offsetof(options, weak), NULL, NULL,
     "weak scaling: constant batch per worker [constant global batch]", NULL},
    {"epochs", LS_OPT_INT, offsetof(options, epochs), "N", NULL, "same as in train", "Options of the reference runner"},
    {"seq_len", LS_OPT_INT, offsetof(options, seq_len), "N", NULL, "same as --seq_length of train", NULL},
    {"dataset_mode", LS_OPT_CHOICE, offsetof(options, dataset_mode), "small|full", NULL,
     "use train_small.bin and val_small.bin, or train.bin and val.bin, of the current folder", NULL},
    {"deepspeed_config", LS_OPT_STR, offsetof(options, deepspeed_config), "FILE", NULL, "same as in train", NULL},
    {"no_use_slurm_tmpdir", LS_OPT_SWITCH, offsetof(options, in_place), NULL, NULL, NULL, NULL},
};
enum { N_SCALING = sizeof scaling_table / sizeof scaling_table[0] };

static const char scaling_help[] =
    "Train the same work on several numbers of workers, --repeat times in turns, and measure how the speed scales. The "
    "result (scaling_report.json) has means, 95 % confidence intervals, every repeat, and the lost time by "
    "cause.\n\nThe global batch is constant (by gradient accumulation) and every worker has the same number of threads "
    "(cores / largest number of workers). The first --warmup steps are excluded. Runs that are not comparable are "
    "rejected, and the fields that differ are listed. With RUN_DIRs or metrics files, existing runs are compared.\n\n"
    "  lockstep bench scaling -n 1,2,4 -- --data data --model tiny \\\n      --seq_length 128 "
    "--micro_batch_size_per_gpu 2\n  lockstep bench scaling --weak --layout zero2 --out runs/weak \\\n      -- --data "
    "data --model gpt2 --seq_length 512\n"
    "  lockstep bench scaling runs/mine";

static const ls_opt strategies_table[] = {
    BENCH_ROWS("1,2,4", "3"),
    {"layouts", LS_OPT_STR, offsetof(options, layouts), "LIST",
     "dp,ddp,zero1,zero2,zero3,pp-naive,pp-gpipe,pp-1f1b,pp-interleaved,pp-zb,tp,ddp+pp2-1f1b,ddp+tp2",
     "layouts to compare; a layout that is not possible is skipped, with the reason [dp, ddp, zero1, zero2, zero3, pp "
     "with every schedule, tp, ddp+pp2-1f1b, ddp+tp2]",
     "Strategies"},
};
enum { N_STRATEGIES = sizeof strategies_table / sizeof strategies_table[0] };

static const char strategies_help[] =
    "Train the same work under every layout and number of workers, --repeat times in turns, and compare six metrics "
    "with 95 % confidence intervals: communication overhead (waits), throughput, training time, CPU utilisation, "
    "memory of the worker that needs most, and scalability. A single worker is the baseline. strategies_report.json is "
    "written next to the runs.\n\n  lockstep bench strategies -n 1,2 --layouts ddp,zero2,pp-1f1b \\\n      -- --data "
    "data --model tiny --seq_length 128";

/* Flags of R1's runner (docs/REFERENCES.md), as train options. */
static ls_status reference_flags(const options *x, ls_argv *w)
{
    if (x->epochs) {
        LS_TRY(ls_argv_add(w, "--epochs"));
        LS_TRY(ls_argv_addf(w, "%lld", (long long)x->epochs));
    }
    if (x->seq_len) {
        LS_TRY(ls_argv_add(w, "--seq_length"));
        LS_TRY(ls_argv_addf(w, "%lld", (long long)x->seq_len));
    }
    if (x->deepspeed_config) {
        LS_TRY(ls_argv_add(w, "--deepspeed_config"));
        LS_TRY(ls_argv_add(w, x->deepspeed_config));
    }
    if (!x->dataset_mode) return LS_OK;
    const char *tail = !strcmp(x->dataset_mode, "small") ? "_small" : "";
    LS_TRY(ls_argv_add(w, "--train_data_path"));
    LS_TRY(ls_argv_addf(w, "train%s.bin", tail));
    LS_TRY(ls_argv_add(w, "--val_data_path"));
    return ls_argv_addf(w, "val%s.bin", tail);
}

/* Sequences of a step on n workers. Without --global_batch_size: what one worker has, times the most workers (weak: times n). */
static int64_t global_for(const bench_session *s, bool weak, int n)
{
    if (weak) return s->one * n;
    return s->global ? s->global : s->one * s->most;
}

static ls_status scaling_sides(bench_session *s, const options *x)
{
    const char *several = x->layout ? x->layout : s->layout[0] ? s->layout : "ddp";
    for (int i = 0; i < s->n_worker; i++) {
        const int n = s->worker[i];
        const char *layout = n == 1 ? "single" : several;
        LS_TRY(cli_bench_side(s, layout, n, layout, NULL, global_for(s, x->weak, n), false));
    }
    return LS_OK;
}

static ls_status strategy_sides(bench_session *s, const char *layouts)
{
    bool one = false;
    for (int i = 0; i < s->n_worker; i++) one = one || s->worker[i] == 1;
    if (one) LS_TRY(cli_bench_side(s, "single", 1, "single", NULL, global_for(s, false, 1), false));
    for (int i = 0; i < s->n_worker; i++)
        for (const char *p = layouts; *p && s->worker[i] > 1;) {
            char word[80];
            const size_t n = strcspn(p, ",");
            ls_layout l;
            if (n >= sizeof word) return ls_fail(LS_E_ARG, "--layouts: '%.30s...' is too long", p);
            memcpy(word, p, n);
            word[n] = '\0';
            LS_TRY(ls_layout_parse(word, &l));
            LS_TRY(cli_bench_side(s, word, s->worker[i], word, NULL, global_for(s, false, s->worker[i]), true));
            p += n + (p[n] == ',');
        }
    s->bench.go_on = true;
    return LS_OK;
}

static void print_scaling(const ls_analysis *a)
{
    if (!a->n_group) return;
    printf("%-16s workers runs accumulation      tokens/s    95 %%   speed-up    95 %%  efficiency\n", "setting");
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        const json_t *c = json_object_get(g->first->metrics, "training_config");
        char half[24] = "-", up[24] = "-", up_half[24] = "-", eff[24] = "-";
        if (g->tokens.half >= 0) snprintf(half, sizeof half, "%.1f %%", 100 * g->tokens.half / g->tokens.mean);
        if (!isnan(g->speedup.mean)) snprintf(up, sizeof up, "%.3f", g->speedup.mean);
        if (g->speedup.half >= 0) snprintf(up_half, sizeof up_half, "%.3f", g->speedup.half);
        if (!isnan(g->efficiency.mean)) snprintf(eff, sizeof eff, "%.1f %%", 100 * g->efficiency.mean);
        printf("%-16s %7d %4d %12d %13.1f %7s %10s %7s %11s\n", g->short_name, g->world, g->n_run,
               (int)json_integer_value(json_object_get(c, "grad_accum_steps")), g->tokens.mean, half, up, up_half, eff);
    }
    if (a->steady) {
        bool repeats = false, within = false;
        for (int i = 0; i < a->n_group; i++) {
            repeats = repeats || a->group[i].n_run > 1;
            within = within || a->group[i].tokens.within;
        }
        printf("(steps after a warm-up of %d; %s)\n", a->set->run[a->baseline].n_warm,
               repeats && within ? "intervals over repeats; for single runs, over their steps"
               : repeats         ? "intervals over repeats"
               : within          ? "intervals over the steps of a run; use --repeat 2 or more for intervals over runs"
                                 : "no intervals without repeats");
        return;
    }
    const ls_run *few = NULL;
    for (int i = 0; i < a->set->n && !few; i++)
        if (a->set->run[i].n_step && a->set->run[i].n_step <= a->set->run[i].n_warm) few = &a->set->run[i];
    if (few)
        printf("(whole epochs: %s has %d steps, none after a warm-up of %d)\n", few->name, few->n_step, few->n_warm);
    else printf("(whole epochs: not all runs have a metrics.jsonl, so warm-up cannot be excluded)\n");
}

static ls_status finish_scaling(const bench_session *s, const options *x, const ls_opt_list *paths)
{
    ls_run_set set = {0};
    ls_analysis a = {0};
    ls_str text = {0};
    ls_status st = LS_OK;
    char file[4352];
    LS_TRY_GOTO(st, done, cli_bench_read(s, paths, x->weak, &set, &a));
    ls_scaling_text(&a, NULL, cli_bench_protocol, s, &text);
    if (s->o.json) puts(text.data ? text.data : "");
    else if (a.comparable) print_scaling(&a), cli_bench_print_waterfall(&a);
    fflush(stdout);
    snprintf(file, sizeof file, "%.4096s/scaling_report.json", s->out);
    if (s->bench.n_side || s->o.out) LS_TRY_GOTO(st, done, cli_bench_write(s->out, "scaling_report.json", &text));
    else snprintf(file, sizeof file, "the lines above, or --json");
    st = cli_bench_verdict(&a, file);
    if (st == LS_OK && s->bench.n_side)
        fprintf(stderr, "To write a report page: lockstep report %s --out %s/report\n", s->out, s->out);
done:
    ls_str_fini(&text);
    ls_analysis_fini(&a);
    ls_run_set_fini(&set);
    return st;
}

static void put_left_out(const void *ctx, ls_jsonw *w)
{
    const bench_session *s = ctx;
    for (int i = 0; i < s->bench.n_side; i++) {
        if (!s->bench.side[i].left_out) continue;
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "setting", s->bench.side[i].name);
        ls_jsonw_put_str(w, "why", s->bench.side[i].left_out);
        ls_jsonw_close(w);
    }
}

static ls_status finish_strategies(const bench_session *s, const options *x, const ls_opt_list *paths)
{
    ls_run_set set = {0};
    ls_analysis a = {0};
    ls_str text = {0}, table = {0};
    ls_status st = LS_OK;
    (void)x;
    LS_TRY_GOTO(st, done, cli_bench_read(s, paths, false, &set, &a));
    LS_TRY_GOTO(st, done, ls_strategies_text(&a, cli_bench_protocol, put_left_out, s, &text));
    LS_TRY_GOTO(st, done, ls_strategies_table(&a, &table));
    if (s->o.json) {
        puts(text.data ? text.data : "");
    } else if (a.comparable) {
        fputs(table.data ? table.data : "", stdout);
        cli_bench_print_waterfall(&a);
    }
    fflush(stdout);
    if (s->bench.n_side || s->o.out) LS_TRY_GOTO(st, done, cli_bench_write(s->out, "strategies_report.json", &text));
    st = cli_bench_verdict(&a, "the lines above");
    for (int i = 0; i < s->bench.n_side && st == LS_OK; i++) {
        const ls_bench_side *side = &s->bench.side[i];
        if (side->failed != LS_OK && side->failed != LS_E_CONFIG && side->failed != LS_E_UNSUPPORTED)
            st = ls_fail(side->failed, "%s", side->left_out);
    }
    if (st == LS_OK && s->bench.n_side)
        fprintf(stderr, "To write a report page: lockstep report %s --out %s/report\n", s->out, s->out);
done:
    ls_str_fini(&text);
    ls_str_fini(&table);
    ls_analysis_fini(&a);
    ls_run_set_fini(&set);
    return st;
}

typedef struct kind {
    const ls_opt *table;
    size_t n_opt;
    const char *usage, *help;
    bool strategies;
} kind;

static ls_status run(bench_session *s, options *x, const kind *k, int argc, char **argv)
{
    ls_opt_list paths = {0};
    bool help = false, cut = false;
    int n = 0;
    LS_TRY(cli_bench_cut(argc, argv, &s->given, &n, &cut));
    LS_TRY(ls_opt_defaults(k->table, k->n_opt, x));
    LS_TRY(ls_opt_parse(k->table, k->n_opt, x, NULL, n, argv, &paths, &help));
    if (help) {
        cli_help(k->usage, k->help, k->table, k->n_opt);
        return LS_OK;
    }
    LS_TRY(reference_flags(x, &s->given));
    if (paths.n && s->given.n)
        return ls_fail(LS_E_ARG, "%s: existing runs are compared without train options; leave out everything after --",
                       paths.word[0]);
    if (!paths.n && !cut && !s->given.n)
        return ls_fail(LS_E_ARG, "train options are missing; add them after --, such as: -- --data data --model tiny "
                                 "(or give run folders to compare)");
    s->o = x->o;
    LS_TRY(cli_bench_begin(s));
    if (s->own_strategy && (k->strategies || x->layout))
        return ls_fail(LS_E_ARG, "--strategy %s in the train options contradicts --layout%s; leave one out", s->layout,
                       k->strategies ? "s" : "");
    if (!paths.n) {
        /* one worker says how large a micro-batch is; a dry look at it costs nothing */
        LS_TRY(cli_bench_learn(s));
        LS_TRY(k->strategies ? strategy_sides(s, x->layouts) : scaling_sides(s, x));
        LS_TRY(cli_bench_go(s));
        if (s->o.dry_run) return LS_OK;
    }
    return k->strategies ? finish_strategies(s, x, &paths) : finish_scaling(s, x, &paths);
}

ls_status cli_bench_scaling(int argc, char **argv)
{
    const kind k = {scaling_table, N_SCALING,
                    "bench scaling [OPTIONS] -- TRAIN OPTIONS\n       lockstep bench scaling RUN_DIR...", scaling_help,
                    false};
    options x = {0};
    bench_session s = {0};
    ls_status st = run(&s, &x, &k, argc, argv);
    cli_bench_end(&s);
    return st;
}

ls_status cli_bench_strategies(int argc, char **argv)
{
    const kind k = {strategies_table, N_STRATEGIES,
                    "bench strategies [OPTIONS] -- TRAIN OPTIONS\n       lockstep bench strategies RUN_DIR...",
                    strategies_help, true};
    options x = {0};
    bench_session s = {0};
    ls_status st = run(&s, &x, &k, argc, argv);
    cli_bench_end(&s);
    return st;
}
