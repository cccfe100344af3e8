/* bench_session.c - from options and train options to runs. */
#include "cli/bench_impl.h"

#include "bench/child.h"
#include "core/clock.h"
#include "core/cores.h"
#include "core/fs.h"
#include "core/progress.h"
#include "core/stop.h"
#include "config/dsconfig.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* --- options --- */

ls_status cli_bench_preset(ls_argv *given, bool *found)
{
    ls_argv words = {0};
    const ls_status st = cli_preset_words(given->n, given->word, true, &words, NULL);
    *found = st == LS_OK && words.n;
    if (!*found) {
        ls_argv_fini(&words);
        return st;
    }
    ls_argv_fini(given);
    *given = words;
    return LS_OK;
}

ls_status cli_bench_parse(const cli_page *p, void *options, bench_session *s, int argc, char **argv, ls_opt_list *paths,
                          bool *cut, unsigned char *given)
{
    int at = 0;
    while (at < argc && strcmp(argv[at], "--") != 0) at++;
    *cut = at < argc;
    for (int i = at + 1; i < argc; i++) LS_TRY(ls_argv_add(&s->given, argv[i]));
    return cli_parse(p, options, at, argv, paths, given);
}

ls_status cli_bench_flag(ls_argv *w, const char *name, int64_t value)
{
    LS_TRY(ls_argv_addf(w, "--%s", name));
    return ls_argv_addf(w, "%lld", (long long)value);
}

ls_status cli_bench_train_options(const ls_argv *words, bool own_workers, ls_train_options *o)
{
    static const struct {
        const char *name, *why;
    } ours[] = {
        {"n", "give -n to bench instead"}, /* first: a side of ab may have its own */
        {"checkpoint_path", "every run gets its own folder in --out"},
        {"resume", "use --resume of bench to keep finished runs"},
        {"print_config", "bench --dry_run prints the commands"},
        {"json", "bench --json prints the result"},
        {"profile", "a profiled run is no benchmark; use lockstep profile"},
    };
    const size_t nbytes = (size_t)words->n * sizeof(char *);
    char **copy = ls_alloc(nbytes); /* parsing moves arguments */
    if (!copy) return ls_nomem(nbytes, "a command line");
    if (words->n) memcpy(copy, words->word, nbytes);
    const ls_status st = ls_train_options_parse(words->n, copy, o);
    ls_free(copy);
    LS_TRY(st);
    for (size_t i = own_workers; i < CLI_COUNT(ours); i++)
        if (ls_train_given(o, ours[i].name))
            return ls_fail(LS_E_ARG, "--%s is not allowed in the train options of a benchmark; %s", ours[i].name,
                           ours[i].why);
    return LS_OK;
}

static ls_status with_defaults(bench_session *s, const ls_train_options *o)
{
    ls_argv *b = &s->base;
    LS_TRY(ls_argv_add_all(b, &s->given));
    if (!ls_train_given(o, "max_steps") && !ls_train_given(o, "epochs") && !ls_train_given(o, "max_train_steps")) {
        if (s->o.warmup >= s->o.steps)
            return ls_fail(LS_E_ARG, "--warmup %lld leaves no steps to measure of --steps %lld", (long long)s->o.warmup,
                           (long long)s->o.steps);
        LS_TRY(cli_bench_flag(b, "max_steps", s->o.steps));
    }
    if (!ls_train_given(o, "max_val_steps") && !s->reference) LS_TRY(cli_bench_flag(b, "max_val_steps", 0));
    if (!o->reference_output && !o->run_type)
        LS_TRY(ls_argv_add(b, "--reference_output")); /* train.log is that of the scaling study */
    if (ls_train_given(o, "threads")) return LS_OK;
    return cli_bench_flag(b, "threads", s->cores / s->most > 1 ? s->cores / s->most : 1); /* the same in all runs */
}

/* What the train options set for all runs: the global batch and the layout. The command line overrides the JSON. */
static ls_status learn_common(bench_session *s, const ls_train_options *o)
{
    static const char *const stage[] = {"ddp", "zero1", "zero2", "zero3"};
    ls_ds_config ds = {0};
    if (ls_train_given(o, "global_batch_size")) s->global = o->global_batch_size;
    if (ls_train_given(o, "enforce_global_batch_size")) s->enforce = o->enforce_global_batch_size;
    s->own_strategy = o->strategy != NULL;
    if (o->strategy) snprintf(s->layout, sizeof s->layout, "%s", o->strategy);
    if (!o->deepspeed_config) return LS_OK;
    LS_TRY(ls_ds_config_load(o->deepspeed_config, &ds));
    if (!s->global) s->global = ls_ds_int(&ds, "train_batch_size", 0);
    if (!s->layout[0] && ls_ds_get(&ds, "zero_optimization"))
        snprintf(s->layout, sizeof s->layout, "%s", stage[ls_ds_int(&ds, "zero_optimization.stage", 0)]);
    ls_ds_config_fini(&ds);
    return LS_OK;
}

static ls_status parse_workers(bench_session *s)
{
    const char *flag = s->o.n_flag ? s->o.n_flag : "-n";
    LS_TRY(cli_parse_workers(flag, s->o.n, 1024, s->worker, BENCH_MAX_N, &s->n_worker, &s->most));
    for (int i = 0; i < s->n_worker; i++)
        for (int k = 0; k < i; k++)
            if (s->worker[k] == s->worker[i])
                return ls_fail(LS_E_ARG, "%s %s: %d occurs twice", flag, s->o.n, s->worker[i]);
    return LS_OK;
}

ls_status cli_bench_base(bench_session *s)
{
    ls_train_options o = {0};
    ls_argv_fini(&s->base);
    LS_TRY(cli_bench_train_options(&s->given, s->own_workers, &o));
    if (o.help != LS_OPT_NO_PAGE) return ls_fail(LS_E_ARG, "--help in the train options: use lockstep train --help");
    LS_TRY(with_defaults(s, &o));
    return learn_common(s, &o);
}

ls_status cli_bench_begin(bench_session *s)
{
    char stamp[24];
    LS_TRY(parse_workers(s));
    LS_TRY(ls_program_path(s->program));
    s->cores = ls_cores_usable();
    s->load = cli_bench_load();
    ls_utc_compact(stamp);
    if (s->o.out) snprintf(s->out, sizeof s->out, "%s", s->o.out);
    else snprintf(s->out, sizeof s->out, "%s/%s", s->reference ? "checkpoint/scaling_runs" : "runs", stamp);
    LS_TRY(ls_fs_no_links(s->out)); /* runs are kept and resumed in it */
    LS_TRY(cli_bench_base(s));
    s->bench = (ls_bench){.program = s->program,
                          .out = s->out,
                          .repeat = (int)s->o.repeat,
                          .resume = s->o.resume,
                          .scratch = s->scratch[0] ? s->scratch : NULL,
                          .gpus_visible = s->reference,
                          .keep_checkpoints = s->o.keep_checkpoints || s->reference};
    return LS_OK;
}

/* The default model by its name: without one, each run would choose its own (config/auto.h). */
static ls_status name_model(ls_argv *words)
{
    ls_train_options o = {0};
    LS_TRY(cli_bench_train_options(words, true, &o));
    if (o.model || o.init_from || o.run_type || o.deepspeed_config || strcmp(o.task, "lm") != 0) return LS_OK;
    return ls_argv_add(words, "--model=gpt2");
}

ls_status cli_bench_learn(bench_session *s)
{
    ls_bench_side one = {.name = "one worker", .workers = 1};
    ls_status st = ls_argv_add_all(&one.words, &s->base);
    if (s->enforce && !s->global) { /* the enforced size is the batch of all runs */
        s->global = s->enforce;
        if (st == LS_OK) st = cli_bench_flag(&one.words, "global_batch_size", s->enforce);
    }
    if (st == LS_OK) st = name_model(&one.words);
    if (st == LS_OK) st = ls_bench_check(&s->bench, &one);
    ls_argv_fini(&one.words);
    ls_free(one.data);
    LS_TRY(st);
    s->on_cpu = one.on_cpu;
    s->micro = one.micro_batch;
    s->one = one.micro_batch * one.grad_accum;
    return LS_OK;
}

static ls_status accumulate(bench_session *s, ls_bench_side *side, int dp, int64_t global)
{
    const int64_t each = s->micro * dp;
    if (s->enforce && s->enforce != global)
        return ls_fail(LS_E_CONFIG, "%s: --enforce_global_batch_size %lld does not match the step of %lld sequences",
                       side->name, (long long)s->enforce, (long long)global);
    if (global % each)
        return ls_fail(
            LS_E_CONFIG,
            "%s: a step of %lld sequences is not a multiple of micro-batch size %lld x %d replica%s; %lld is",
            side->name, (long long)global, (long long)s->micro, dp, dp == 1 ? "" : "s",
            (long long)((global / each + 1) * each));
    LS_TRY(cli_bench_flag(&side->words, "grad_accum_steps", global / each));
    return cli_bench_flag(&side->words, "enforce_global_batch_size", global);
}

static ls_status fill_side(bench_session *s, ls_bench_side *side, const char *layout, const ls_argv *more,
                           int64_t global)
{
    ls_layout l = {.pp = 1, .tp = 1};
    char why[160];
    LS_TRY(ls_argv_add_all(&side->words, &s->base));
    if (layout) {
        LS_TRY(ls_layout_parse(layout, &l));
        if (!ls_layout_fit(&l, side->workers, why, sizeof why)) return ls_fail(LS_E_CONFIG, "%s: %s", side->name, why);
        LS_TRY(ls_layout_words(&l, side->workers, &side->words));
    } else {
        LS_TRY(ls_argv_add(&side->words, "-n"));
        LS_TRY(ls_argv_addf(&side->words, "%d", side->workers));
    }
    if (more) LS_TRY(ls_argv_add_all(&side->words, more));
    LS_TRY(name_model(&side->words));
    if (global) LS_TRY(accumulate(s, side, ls_layout_dp(&l, side->workers), global));
    LS_TRY(ls_bench_check(&s->bench, side));
    if (s->by_device) side->name[strspn(side->name, "0123456789")] = side->on_cpu ? 'c' : 'g';
    if (side->steps && side->steps <= s->o.warmup)
        return ls_fail(LS_E_ARG,
                       "%s: --warmup %lld leaves no steps to measure of %lld steps (--max_steps, --max_train_steps)",
                       side->name, (long long)s->o.warmup, (long long)side->steps);
    return LS_OK;
}

ls_status cli_bench_side(bench_session *s, const char *name, int workers, const char *layout, const ls_argv *more,
                         int64_t global, bool or_leave_out)
{
    char folder[96];
    snprintf(folder, sizeof folder, "%d%s_%.80s", workers, s->by_device && s->on_cpu ? "cpu" : "gpu", name);
    ls_bench_side *side = ls_bench_add(&s->bench, folder, workers);
    if (!side) return ls_nomem(sizeof *side, "a side");
    ls_status st = fill_side(s, side, layout, more, global);
    if (st == LS_OK || !or_leave_out || (st != LS_E_CONFIG && st != LS_E_UNSUPPORTED)) return st;
    const char *words = ls_err_words();
    const size_t n = strlen(folder);
    if (!strncmp(words, folder, n) && words[n] == ':') words += n + 2; /* the caller prints the name */
    side->left_out = ls_strdup(words);
    ls_err_clear();
    return side->left_out ? LS_OK : ls_nomem(64, "words");
}

/* --- running --- */

static void on_progress(void *ctx, const ls_bench_progress *p)
{
    const bool running = p->event == LS_BENCH_BEGIN || p->event == LS_BENCH_TICK;
    char left[32] = "?", rate[48] = "", run[160];
    (void)ctx;
    if (running && !ls_progress_live()) return; /* files have one line per run */
    if (p->tokens_per_sec > 0) snprintf(rate, sizeof rate, ", %.1f tokens/s", p->tokens_per_sec);
    if (p->left > 0) ls_human_time(left, p->left);
    snprintf(run, sizeof run, "[%d/%d] %.100s run_%d", p->run, p->n_run, p->side->name, p->turn);
    if (running) {
        ls_progress_line l = {0};
        ls_progress_add(&l, 0, "%s", run);
        ls_progress_add(&l, 2, "%.0f s", p->seconds);
        ls_progress_add(&l, 1, "about %s left", left);
        ls_progress_show(&l);
    } else if (p->event == LS_BENCH_REUSED) ls_progress_say("%s  exists%s\n", run, rate);
    else if (p->event == LS_BENCH_FAILED) ls_progress_say("%s  skipped: %s\n", run, p->side->left_out);
    else if (p->run == p->n_run) ls_progress_say("%s  %.1f s%s\n", run, p->seconds, rate);
    else ls_progress_say("%s  %.1f s%s, about %s left\n", run, p->seconds, rate, left);
}

const ls_bench_side *cli_bench_crowded(const bench_session *s)
{
    const ls_bench_side *worst = NULL;
    int64_t most = s->cores;
    for (int i = 0; i < s->bench.n_side; i++) {
        const ls_bench_side *side = &s->bench.side[i];
        const int64_t n = (int64_t)side->workers * (side->threads > 1 ? side->threads : 1);
        if (side->left_out || n <= most) continue;
        most = n;
        worst = side;
    }
    return worst;
}

double cli_bench_load(void)
{
    double load;
    long running = 0;
    int n = 0;
    if (getloadavg(&load, 1) != 1) return NAN;
    for (; n < 5; n++) { /* now: the average remembers what has ended, such as the benchmark before this one */
        FILE *f = fopen("/proc/loadavg", "r");
        long now = 0;
        const bool ok = f && fscanf(f, "%*s %*s %*s %ld/", &now) == 1;
        if (f) fclose(f);
        if (!ok) return load;
        running += now - 1;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return fmin(load, (double)running / n);
}

void cli_bench_note_busy(double load, int cores, const char *expect)
{
    if (load > 0.5 * cores)
        fprintf(stderr, "note: the machine is busy (load %.1f on %d cores); %s\n", load, cores, expect);
}

/* What will be run, and where. */
static void say_work(const bench_session *s)
{
    const ls_bench *b = &s->bench;
    int n = 0;
    int64_t least = 0, most = 0;
    for (int i = 0; i < b->n_side; i++) {
        const ls_bench_side *side = &b->side[i];
        if (side->left_out) continue;
        least = !n || side->steps < least ? side->steps : least;
        most = side->steps > most ? side->steps : most;
        n++;
    }
    fprintf(stderr, "%d setting%s x %d run%s = %d runs", n, n == 1 ? "" : "s", b->repeat, b->repeat == 1 ? "" : "s",
            n * b->repeat);
    if (least > 0 && least == most) fprintf(stderr, " of %lld steps", (long long)most);
    fprintf(stderr, "%s, in %s\n", b->repeat > 1 ? ", in alternating order" : "", s->out);
}

static void say_plan(const bench_session *s)
{
    const ls_bench *b = &s->bench;
    const ls_bench_side *worst = cli_bench_crowded(s);
    if (!s->o.dry_run) say_work(s);
    for (int i = 0; i < b->n_side; i++)
        if (b->side[i].left_out) fprintf(stderr, "skipped: %s: %s\n", b->side[i].name, b->side[i].left_out);
    cli_bench_note_busy(s->load, s->cores, "expect wide confidence intervals");
    if (worst) {
        const int threads = worst->threads > 1 ? worst->threads : 1;
        fprintf(stderr, "note: %d worker%s of %d thread%s share%s %d cores: expect no more than ", worst->workers,
                worst->workers == 1 ? "" : "s", threads, threads == 1 ? "" : "s", worst->workers == 1 ? "s" : "",
                s->cores);
        if (threads < s->cores) fprintf(stderr, "%d times the speed of one\n", s->cores / threads);
        else fprintf(stderr, "the speed of one\n");
    }
}

ls_status cli_bench_command(const bench_session *s, const ls_bench_side *side, int turn, ls_str *out)
{
    ls_argv w = {0};
    const ls_status st = ls_bench_command(&s->bench, side, turn, &w);
    if (st == LS_OK) ls_argv_show(&w, out);
    ls_argv_fini(&w);
    return st;
}

static ls_status print_commands(const bench_session *s)
{
    const ls_bench *b = &s->bench;
    ls_str out = {0};
    ls_status st = LS_OK;
    for (int turn = 1; turn <= b->repeat; turn++)
        for (int k = 0; k < b->n_side && st == LS_OK; k++) {
            const ls_bench_side *side = &b->side[turn % 2 ? k : b->n_side - 1 - k];
            if (side->left_out) continue;
            char run[160];
            snprintf(run, sizeof run, "%s/run_%d", side->name, turn);
            ls_str_add(&out, "DRY RUN: ");
            st = cli_bench_command(s, side, turn, &out);
            ls_str_addc(&out, '\n');
            if (st == LS_OK && s->reference) st = ls_fs_mkdirs(ls_path_of(s->out, run).text); /* as that runner */
        }
    if (st == LS_OK) st = cli_print(&out);
    ls_str_fini(&out);
    return st;
}

ls_status cli_bench_go(bench_session *s)
{
    s->bench.progress = on_progress;
    s->bench.ctx = s;
    say_plan(s);
    if (s->scratch[0])
        fprintf(stderr, "note: runs are made in %s and copied to %s when they end\n", s->scratch, s->out);
    if (s->o.dry_run) return print_commands(s);
    ls_stop_install();
    ls_progress_open();
    const ls_status st = ls_bench_run(&s->bench);
    ls_progress_end(false);
    return st;
}

void cli_bench_next(const bench_session *s)
{
    ls_argv w = {0};
    ls_str line = {0};
    if (!s->bench.n_side) return; /* existing runs */
    if (ls_argv_add(&w, "lockstep") == LS_OK && ls_argv_add(&w, "report") == LS_OK &&
        ls_argv_add(&w, s->out) == LS_OK && ls_argv_add(&w, "--out") == LS_OK &&
        ls_argv_addf(&w, "%s/report", s->out) == LS_OK)
        ls_argv_show(&w, &line);
    if (line.data) fprintf(stderr, "Next: %s   (a page with charts)\n", line.data);
    ls_str_fini(&line);
    ls_argv_fini(&w);
}

void cli_bench_end(bench_session *s)
{
    ls_bench_fini(&s->bench);
    ls_argv_fini(&s->given);
    ls_argv_fini(&s->base);
}
