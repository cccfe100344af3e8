/* bench_scaling.c - `lockstep bench scaling` and `lockstep bench strategies`. */
#include "cli/bench_impl.h"

#include "core/fs.h"
#include "core/table.h"

#include <math.h>

typedef struct options {
    bench_session s;
    bool strategies; /* the benchmark */
    const char *layout, *layouts;
    bool weak;
    int64_t epochs, seq_len;
    const char *dataset_mode, *deepspeed_config, *precision;
    bool tmpdir, no_tmpdir; /* --use_slurm_tmpdir, --no_use_slurm_tmpdir */
} options;

static const ls_opt scaling_table[] = {
    BENCH_ROWS("1,2,4", "3"),
    CLI_ALIAS("gpus", "n"),
    CLI_STR(
        "layout", layout, "LAYOUT", NULL,
        "layout for several workers: dp, ddp, zero1, zero2, zero3, pp[-SCHEDULE], tp, or a hybrid such as ddp+pp2-1f1b [from the train options or their DeepSpeed JSON, else ddp]",
        "Scaling"),
    CLI_SWITCH("weak", weak, "weak scaling: constant batch per worker [constant global batch]"),
    CLI_INT_IN(1, 1000000, "epochs", epochs, "N", NULL, "same as in train", "Options of the reference runner"),
    CLI_INT_IN(1, INT32_MAX, "seq_len", seq_len, "N", NULL, "same as --seq_length of train"),
    CLI_CHOICE("dataset_mode", dataset_mode, "small|full", NULL,
               "use train_small.bin and val_small.bin, or train.bin and val.bin, of the current folder"),
    CLI_STR("deepspeed_config", deepspeed_config, "FILE", NULL, "same as in train"),
    CLI_STR("precision", precision, "TYPE", NULL, "same as in train"),
    CLI_SWITCH(
        "use_slurm_tmpdir", tmpdir,
        "make runs in $SLURM_TMPDIR, if it is set, and copy each to --out when it ends [on without train options, else off]"),
    CLI_SWITCH("no_use_slurm_tmpdir", no_tmpdir, "make runs in --out"),
};

static const cli_page scaling_page = {
    scaling_table, CLI_COUNT(scaling_table),
    "bench scaling [OPTIONS] -- TRAIN OPTIONS\n       lockstep bench scaling RUN_DIR...",
    "Train the same work on several numbers of workers, --repeat times in turns, and measure how the speed scales. The result (scaling_report.json) has means, 95 % confidence intervals, every repeat, and the lost time by cause.\n\nThe global batch is constant (by gradient accumulation) and every worker has the same number of threads "
    "(cores / largest number of workers). The first --warmup steps are excluded. With options of the reference runner and without train options, or without any in a folder that has src/deepspeed_config.json, its defaults, model, validation, folder names and files are used. Runs that are not comparable are rejected, and the fields that differ are listed. With RUN_DIRs or metrics files, existing runs are compared.\n\n"
    "  lockstep bench scaling -n 1,2,4 -- --data data --model tiny \\\n      --seq_length 128 --micro_batch_size_per_gpu 2\n  lockstep bench scaling --weak --layout zero2 --out runs/weak \\\n      -- --data data --model gpt2 --seq_length 512\n"
    "  lockstep bench scaling runs/mine\n  lockstep bench scaling --gpus 1,2,4 --dataset_mode small"};

static const ls_opt strategies_table[] = {
    BENCH_ROWS("1,2,4", "3"),
    CLI_STR(
        "layouts", layouts, "LIST",
        "dp,ddp,zero1,zero2,zero3,pp-naive,pp-gpipe,pp-1f1b,pp-interleaved,pp-zb,tp,ddp+pp2-1f1b,ddp+tp2",
        "layouts to compare; a layout that is not possible is skipped, with the reason [dp, ddp, zero1, zero2, zero3, pp with every schedule, tp, ddp+pp2-1f1b, ddp+tp2]",
        "Strategies"),
};

static const cli_page strategies_page = {
    strategies_table, CLI_COUNT(strategies_table),
    "bench strategies [OPTIONS] -- TRAIN OPTIONS\n       lockstep bench strategies RUN_DIR...",
    "Train the same work under every layout and number of workers, --repeat times in turns, and compare six metrics with 95 % confidence intervals: communication overhead (waits), throughput, training time, CPU utilisation, memory of the worker that needs most, and scalability. A single worker is the baseline. strategies_report.json is "
    "written next to the runs.\n\n  lockstep bench strategies -n 1,2 --layouts ddp,zero2,pp-1f1b \\\n      -- --data data --model tiny --seq_length 128"};

/* Flags of the scaling study's runner (docs/REFERENCES.md), as train options. */
static ls_status reference_flags(const options *x, ls_argv *w)
{
    if (x->epochs) LS_TRY(cli_bench_flag(w, "epochs", x->epochs));
    if (x->seq_len) LS_TRY(cli_bench_flag(w, "seq_length", x->seq_len));
    if (x->deepspeed_config) {
        LS_TRY(ls_argv_add(w, "--deepspeed_config"));
        LS_TRY(ls_argv_add(w, x->deepspeed_config));
    }
    if (x->precision) {
        LS_TRY(ls_argv_add(w, "--precision"));
        LS_TRY(ls_argv_add(w, x->precision));
    }
    if (!x->dataset_mode) return LS_OK;
    const char *tail = !strcmp(x->dataset_mode, "small") ? "_small" : "";
    LS_TRY(ls_argv_add(w, "--train_data_path"));
    LS_TRY(ls_argv_addf(w, "train%s.bin", tail));
    LS_TRY(ls_argv_add(w, "--val_data_path"));
    return ls_argv_addf(w, "val%s.bin", tail);
}

static const char reference_config[] = "src/deepspeed_config.json";

/* A command line of the scaling study's runner, which has neither train options nor run folders: one of its own
 * options, or none but those that both have, in the folder of the scaling study. */
static bool is_reference(const unsigned char *given)
{
    static const char *const own[] = {"out_dir",          "gpus",
                                      "epochs",           "seq_len",
                                      "dataset_mode",     "deepspeed_config",
                                      "use_slurm_tmpdir", "no_use_slurm_tmpdir"};
    static const char *const both[] = {"repeat", "dry_run", "allow_mismatch", "precision"};
    size_t n = 0, n_both = 0;
    for (size_t i = 0; i < CLI_COUNT(own); i++)
        if (cli_given(&scaling_page, given, own[i])) return true;
    for (size_t i = 0; i < CLI_COUNT(both); i++) n_both += cli_given(&scaling_page, given, both[i]);
    for (size_t i = 0; i < scaling_page.n; i++) n += given[i] != 0;
    return n == n_both && ls_fs_exists(reference_config);
}

/* The defaults of the scaling study's runner, and its model. */
static ls_status as_reference(options *x, const unsigned char *given)
{
    bench_session *s = &x->s;
    s->reference = is_reference(given);
    if (!s->reference) return LS_OK;
    if (!cli_given(&scaling_page, given, "repeat")) s->o.repeat = 1;
    if (!x->epochs) x->epochs = 1;
    if (!x->seq_len) x->seq_len = 512;
    if (!x->dataset_mode) x->dataset_mode = "small";
    if (!x->deepspeed_config) x->deepspeed_config = reference_config;
    LS_TRY(ls_argv_add(&s->given, "--run_type"));
    return ls_argv_add(&s->given, "optimized");
}

static ls_status find_scratch(options *x)
{
    const char *tmp = getenv("SLURM_TMPDIR");
    if (x->tmpdir && x->no_tmpdir)
        return ls_fail(LS_E_ARG, "--use_slurm_tmpdir and --no_use_slurm_tmpdir contradict each other; leave one out");
    if (!tmp || !*tmp || x->no_tmpdir || !(x->tmpdir || x->s.reference)) return LS_OK;
    snprintf(x->s.scratch, sizeof x->s.scratch, "%.4000s/scaling_runs", tmp);
    return LS_OK;
}

/* Sequences of a step on n workers. Without --global_batch_size: what one worker has, times the most workers (weak: times n). */
static int64_t global_for(const bench_session *s, bool weak, int n)
{
    if (weak) return s->one * n;
    return s->global ? s->global : s->one * s->most;
}

static ls_status scaling_sides(options *x)
{
    bench_session *s = &x->s;
    const char *several = x->layout ? x->layout : s->layout[0] ? s->layout : "ddp";
    for (int i = 0; i < s->n_worker; i++) {
        const int n = s->worker[i];
        const char *layout = n == 1 ? "single" : several;
        const char *name = !s->reference ? layout : n == 1 ? "baseline" : "deepspeed"; /* folders of that runner */
        LS_TRY(cli_bench_side(s, name, n, layout, NULL, global_for(s, x->weak, n), false));
    }
    return LS_OK;
}

static ls_status strategy_sides(options *x)
{
    bench_session *s = &x->s;
    bool one = false;
    for (int i = 0; i < s->n_worker; i++) one = one || s->worker[i] == 1;
    if (one) LS_TRY(cli_bench_side(s, "single", 1, "single", NULL, global_for(s, false, 1), false));
    for (int i = 0; i < s->n_worker; i++)
        for (const char *p = x->layouts; *p && s->worker[i] > 1;) {
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

static void scaling_text(const ls_analysis *a, ls_str *out)
{
    if (!a->n_group) return;
    static const char *const head[] = {"setting", "workers",  "runs", "accumulation", "tokens/s",
                                       "95 %",    "speed-up", "95 %", "efficiency"};
    ls_table t = {.n_col = 9};
    for (int k = 0; k < t.n_col; k++) ls_table_cell(&t, "%s", head[k]);
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        const json_t *c = json_object_get(g->first->metrics, "training_config");
        ls_table_cell(&t, "%s", g->short_name);
        ls_table_cell(&t, "%d", g->world);
        ls_table_cell(&t, "%d", g->n_run);
        ls_table_cell(&t, "%d", (int)json_integer_value(json_object_get(c, "grad_accum_steps")));
        ls_table_cell(&t, isnan(g->tokens.mean) ? "-" : "%.1f", g->tokens.mean);
        ls_table_cell(&t, g->tokens.half >= 0 ? "%.1f %%" : "-", 100 * g->tokens.half / g->tokens.mean);
        ls_table_cell(&t, isnan(g->speedup.mean) ? "-" : "%.3f", g->speedup.mean);
        if (g->over_base.low > 0) ls_table_cell(&t, "%.3f to %.3f", g->over_base.low, g->over_base.high);
        else ls_table_cell(&t, "-");
        ls_table_cell(&t, isnan(g->efficiency.mean) ? "-" : "%.1f %%", 100 * g->efficiency.mean);
    }
    ls_table_print(&t, out);
    const size_t before = out->len;
    ls_winner_words(a, out);
    if (out->len > before) ls_str_addc(out, '\n');
    if (a->steady) {
        bool repeats = false, within = false;
        for (int i = 0; i < a->n_group; i++) {
            repeats = repeats || a->group[i].n_run > 1;
            within = within || a->group[i].tokens.within;
        }
        ls_str_addf(out, "(steps after a warm-up of %d; %s)\n", a->set->run[a->baseline].n_warm,
                    repeats && within ? "intervals over repeats; for single runs, over their steps"
                    : repeats         ? "intervals over repeats"
                    : within          ? "intervals over the steps of a run; use --repeat 3 or more to compare settings"
                                      : "no intervals without repeats");
        return;
    }
    const ls_run *few = NULL;
    for (int i = 0; i < a->set->n && !few; i++)
        if (a->set->run[i].n_step && a->set->run[i].n_step <= ls_run_first(&a->set->run[i])) few = &a->set->run[i];
    if (few)
        ls_str_addf(out, "(whole epochs: %s has %d steps, none after a warm-up of %d)\n", few->name,
                    few->n_step - few->n_before, few->n_warm);
    else ls_str_addf(out, "(whole epochs: not all runs have a metrics.jsonl, so warm-up cannot be excluded)\n");
}

static void put_left_out(const void *ctx, ls_jsonw *w)
{
    const bench_session *s = ctx;
    for (int i = 0; i < s->bench.n_side; i++) {
        if (!s->bench.side[i].left_out) continue;
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("setting", s->bench.side[i].name), LS_KV("why", s->bench.side[i].left_out));
        ls_jsonw_close(w);
    }
}

/* The result as JSON and, if the runs are comparable, as a table. */
static ls_status compose(const options *x, const ls_analysis *a, ls_str *json, ls_str *table)
{
    if (x->strategies) LS_TRY(ls_strategies_text(a, cli_bench_protocol, put_left_out, &x->s, json));
    else ls_scaling_text(a, NULL, cli_bench_protocol, &x->s, json);
    if (!a->comparable) return LS_OK;
    if (x->strategies) LS_TRY(ls_strategies_table(a, table));
    else scaling_text(a, table);
    cli_bench_waterfall(a, table);
    return LS_OK;
}

static ls_status finish(const options *x, const ls_opt_list *paths)
{
    const bench_session *s = &x->s;
    ls_run_set set = {0};
    ls_analysis a = {0};
    ls_str json = {0}, table = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, cli_bench_read(s, paths, x->weak, &set, &a));
    LS_TRY_GOTO(st, done, compose(x, &a, &json, &table));
    st = cli_bench_publish(s, &a, x->strategies ? "strategies_report.json" : "scaling_report.json", &json, &table);
    for (int i = 0; i < s->bench.n_side && st == LS_OK; i++) {
        const ls_bench_side *side = &s->bench.side[i];
        if (side->failed != LS_OK && side->failed != LS_E_CONFIG && side->failed != LS_E_UNSUPPORTED)
            st = ls_fail(side->failed, "%s", side->left_out);
    }
    if (st == LS_OK) cli_bench_next(s);
done:
    ls_str_fini(&json);
    ls_str_fini(&table);
    ls_analysis_fini(&a);
    ls_run_set_fini(&set);
    return st;
}

static ls_status run(options *x, int argc, char **argv)
{
    bench_session *s = &x->s;
    ls_opt_list paths = {0};
    bool cut;
    unsigned char given[CLI_COUNT(scaling_table)] = {0};
    LS_TRY(cli_bench_parse(x->strategies ? &strategies_page : &scaling_page, x, s, argc, argv, &paths, &cut, given));
    bool preset;
    LS_TRY(cli_bench_preset(&s->given, &preset));
    if (!x->strategies && cli_given(&scaling_page, given, "gpus")) s->o.n_flag = "--gpus";
    if (!x->strategies && !cut && !paths.n) LS_TRY(as_reference(x, given));
    LS_TRY(find_scratch(x));
    LS_TRY(reference_flags(x, &s->given));
    if (paths.n && s->given.n)
        return ls_fail(LS_E_ARG, "%s: existing runs are compared without train options; leave out everything after --",
                       paths.word[0]);
    if (!paths.n && !cut && !s->given.n)
        return ls_fail(
            LS_E_ARG,
            "train options are missing; add them after --, such as: -- --data data --model tiny (or give run folders to compare%s)",
            x->strategies ? "" : ", or run it where src/deepspeed_config.json is, as the reference runner");
    LS_TRY(cli_bench_begin(s));
    if (s->own_strategy && (x->strategies || x->layout))
        return ls_fail(LS_E_ARG, "--strategy %s in the train options contradicts --layout%s; leave one out", s->layout,
                       x->strategies ? "s" : "");
    if (!paths.n) {
        LS_TRY(cli_bench_learn(s));
        LS_TRY(x->strategies ? strategy_sides(x) : scaling_sides(x));
        LS_TRY(cli_bench_go(s));
        if (s->o.dry_run) return LS_OK;
    }
    return finish(x, &paths);
}

ls_status cli_bench_scaling(int argc, char **argv)
{
    options x = {0};
    const ls_status st = run(&x, argc, argv);
    cli_bench_end(&x.s);
    return st;
}

ls_status cli_bench_strategies(int argc, char **argv)
{
    options x = {.strategies = true, .s.by_device = true};
    const ls_status st = run(&x, argc, argv);
    cli_bench_end(&x.s);
    return st;
}
