/* bench_session.c - from options and train words to runs, and from run folders to a comparison. */
#include "cli/bench_impl.h"

#include "bench/child.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/stop.h"
#include "train/options.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* --- words --- */

ls_status bench_cut(int argc, char **argv, ls_argv *train, int *n_before, bool *cut)
{
    int at = 0;
    while (at < argc && strcmp(argv[at], "--") != 0) at++;
    *n_before = at;
    *cut = at < argc;
    for (int i = at + 1; i < argc; i++) LS_TRY(ls_argv_add(train, argv[i]));
    return LS_OK;
}

static ls_status parse_workers(bench_session *s)
{
    for (const char *p = s->o.n; *p;) {
        char word[16];
        const size_t n = strcspn(p, ",");
        int64_t v;
        snprintf(word, sizeof word, "%.*s", (int)(n < 15 ? n : 15), p);
        if (!ls_parse_i64(word, &v) || v < 1 || v > 1024 || s->n_worker == BENCH_MAX_N)
            return ls_fail(LS_E_ARG, "-n %s: up to %d numbers from 1 to 1024, such as 1,2,4", s->o.n, BENCH_MAX_N);
        for (int i = 0; i < s->n_worker; i++)
            if (s->worker[i] == v) return ls_fail(LS_E_ARG, "-n %s: %d comes twice", s->o.n, (int)v);
        s->worker[s->n_worker++] = (int)v;
        s->most = v > s->most ? (int)v : s->most;
        p += n + (p[n] == ',');
    }
    return s->n_worker ? LS_OK : ls_fail(LS_E_ARG, "-n needs at least one number of workers");
}

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

static ls_status refuse(const ls_train_options *o)
{
    static const struct {
        const char *name, *why;
    } ours[] = {
        {"n", "workers are given to bench: -n"},
        {"checkpoint_path", "every run gets a folder of its own below --out"},
        {"resume", "runs begin anew; bench --resume keeps finished ones"},
        {"print_config", "bench --dry-run prints the commands"},
        {"json", "bench --json prints the result"},
    };
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (ls_train_given(o, ours[i].name))
            return ls_fail(LS_E_ARG, "--%s is not for the train options of a benchmark: %s", ours[i].name, ours[i].why);
    return LS_OK;
}

static ls_status with_defaults(bench_session *s, const ls_train_options *o)
{
    ls_argv *b = &s->base;
    LS_TRY(ls_argv_add_all(b, &s->given));
    if (!ls_train_given(o, "max_steps") && !ls_train_given(o, "epochs") && !ls_train_given(o, "max_train_steps")) {
        if (s->o.warmup >= s->o.steps)
            return ls_fail(LS_E_ARG, "--warmup %lld leaves nothing of --steps %lld", (long long)s->o.warmup,
                           (long long)s->o.steps);
        LS_TRY(ls_argv_add(b, "--max_steps"));
        LS_TRY(ls_argv_addf(b, "%lld", (long long)s->o.steps));
    }
    if (!ls_train_given(o, "max_val_steps")) {
        LS_TRY(ls_argv_add(b, "--max_val_steps"));
        LS_TRY(ls_argv_add(b, "0"));
    }
    if (ls_train_given(o, "threads")) return LS_OK;
    s->threads = s->cores / s->most > 1 ? s->cores / s->most : 1; /* a worker is the same everywhere */
    LS_TRY(ls_argv_add(b, "--threads"));
    return ls_argv_addf(b, "%d", s->threads);
}

ls_status bench_begin(bench_session *s)
{
    ls_train_options o = {0};
    ls_argv copy = {0}; /* parsing moves words */
    char stamp[24];
    if (s->o.repeat < 1 || s->o.repeat > 1000 || s->o.steps < 1 || s->o.warmup < 1)
        return ls_fail(
            LS_E_ARG,
            "--repeat is 1 to 1000, --steps and --warmup are at least 1 (the first step touches fresh memory)");
    LS_TRY(parse_workers(s));
    LS_TRY(ls_program_path(s->program));
    s->cores = cores();
    s->tty = isatty(STDERR_FILENO);
    ls_utc_compact(stamp);
    if (s->o.out) snprintf(s->out, sizeof s->out, "%s", s->o.out);
    else snprintf(s->out, sizeof s->out, "runs/%s", stamp);
    LS_TRY(ls_argv_add_all(&copy, &s->given));
    ls_status st = ls_train_options_parse(copy.n, copy.word, &o);
    if (st == LS_OK && o.help) st = ls_fail(LS_E_ARG, "the train options are explained by lockstep train --help");
    if (st == LS_OK) st = refuse(&o);
    if (st == LS_OK) st = with_defaults(s, &o);
    if (st == LS_OK && ls_train_given(&o, "global_batch_size")) s->global = o.global_batch_size;
    ls_argv_fini(&copy);
    LS_TRY(st);
    s->bench = (ls_bench){.program = s->program,
                          .out = s->out,
                          .repeat = (int)s->o.repeat,
                          .resume = s->o.resume,
                          .keep_checkpoints = s->o.keep_checkpoints};
    return LS_OK;
}

ls_status bench_learn(bench_session *s)
{
    ls_bench_side one = {.name = "one worker", .workers = 1};
    ls_status st = ls_argv_add_all(&one.words, &s->base);
    if (st == LS_OK) st = ls_bench_check(&s->bench, &one);
    ls_argv_fini(&one.words);
    LS_TRY(st);
    s->micro = one.micro_batch;
    s->one = one.micro_batch * one.grad_accum;
    return LS_OK;
}

static ls_status accumulate(bench_session *s, ls_bench_side *side, int dp, int64_t global)
{
    const int64_t each = s->micro * dp;
    if (global % each)
        return ls_fail(LS_E_CONFIG,
                       "%s: a step of %lld sequences is no multiple of micro batch %lld x %d replicas; %lld would be",
                       side->name, (long long)global, (long long)s->micro, dp, (long long)((global / each + 1) * each));
    LS_TRY(ls_argv_add(&side->words, "--grad_accum_steps"));
    LS_TRY(ls_argv_addf(&side->words, "%lld", (long long)(global / each)));
    LS_TRY(ls_argv_add(&side->words, "--enforce_global_batch_size"));
    return ls_argv_addf(&side->words, "%lld", (long long)global);
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
    if (global) LS_TRY(accumulate(s, side, ls_layout_dp(&l, side->workers), global));
    return ls_bench_check(&s->bench, side);
}

ls_status bench_side(bench_session *s, const char *name, int workers, const char *layout, const ls_argv *more,
                     int64_t global, bool or_leave_out)
{
    char folder[96];
    snprintf(folder, sizeof folder, "%dgpu_%.80s", workers, name);
    ls_bench_side *side = ls_bench_add(&s->bench, folder, workers);
    if (!side) return ls_nomem(sizeof *side, "a side");
    ls_status st = fill_side(s, side, layout, more, global);
    if (st == LS_OK || !or_leave_out || (st != LS_E_CONFIG && st != LS_E_UNSUPPORTED)) return st;
    const char *words = ls_err_words();
    const size_t n = strlen(folder);
    if (!strncmp(words, folder, n) && words[n] == ':') words += n + 2; /* its name stands before it anyway */
    side->left_out = ls_strdup(words);
    ls_err_clear();
    return side->left_out ? LS_OK : ls_nomem(64, "words");
}

/* --- running --- */

static void on_progress(void *ctx, const ls_bench_progress *p)
{
    const bench_session *s = ctx;
    char left[32], rate[48] = "";
    if (p->tokens_per_sec > 0) snprintf(rate, sizeof rate, ", %.1f tokens/s", p->tokens_per_sec);
    if (p->left > 0) ls_human_time(left, p->left);
    else snprintf(left, sizeof left, "?");
    if (s->tty) fputs("\r\033[K", stderr);
    switch (p->event) {
    case LS_BENCH_BEGIN:
    case LS_BENCH_TICK:
        if (s->tty)
            fprintf(stderr, "[%d/%d] %s run_%d  %.0f s, about %s left", p->run, p->n_run, p->side->name, p->turn,
                    p->seconds, left);
        break;
    case LS_BENCH_DONE:
        fprintf(stderr, "[%d/%d] %s run_%d  %.1f s%s", p->run, p->n_run, p->side->name, p->turn, p->seconds, rate);
        if (p->run < p->n_run) fprintf(stderr, ", about %s left", left);
        fputc('\n', stderr);
        break;
    case LS_BENCH_REUSED:
        fprintf(stderr, "[%d/%d] %s run_%d  is there%s\n", p->run, p->n_run, p->side->name, p->turn, rate);
        break;
    case LS_BENCH_FAILED:
        fprintf(stderr, "[%d/%d] %s run_%d  left out: %s\n", p->run, p->n_run, p->side->name, p->turn,
                p->side->left_out);
        break;
    }
    fflush(stderr);
}

static void say_plan(const bench_session *s)
{
    const ls_bench *b = &s->bench;
    for (int i = 0; i < b->n_side; i++)
        if (b->side[i].left_out) fprintf(stderr, "left out: %s: %s\n", b->side[i].name, b->side[i].left_out);
    if (s->threads * s->most > s->cores)
        fprintf(stderr,
                "note: %d workers of %d thread%s share %d cores: expect no more than %d times the speed of one\n",
                s->most, s->threads, s->threads == 1 ? "" : "s", s->cores, s->cores / s->threads);
}

static ls_status print_commands(const bench_session *s)
{
    const ls_bench *b = &s->bench;
    for (int turn = 1; turn <= b->repeat; turn++)
        for (int k = 0; k < b->n_side; k++) {
            const ls_bench_side *side = &b->side[turn % 2 ? k : b->n_side - 1 - k];
            ls_argv w = {0};
            ls_str line = {0};
            if (side->left_out) continue;
            ls_status st = ls_bench_command(b, side, turn, &w);
            if (st == LS_OK) ls_argv_show(&w, &line);
            if (st == LS_OK) printf("DRY RUN: %s\n", line.data ? line.data : "");
            ls_argv_fini(&w);
            ls_str_fini(&line);
            LS_TRY(st);
        }
    return LS_OK;
}

ls_status bench_go(bench_session *s)
{
    s->bench.progress = on_progress;
    s->bench.ctx = s;
    say_plan(s);
    if (s->o.dry_run) return print_commands(s);
    ls_stop_install();
    return ls_bench_run(&s->bench);
}

void bench_end(bench_session *s)
{
    ls_bench_fini(&s->bench);
    ls_argv_fini(&s->given);
    ls_argv_fini(&s->base);
}

/* --- results --- */

static void say_mismatches(const ls_analysis *a)
{
    for (int i = 0; i < a->n_mismatch && i < 12; i++) {
        const ls_mismatch *m = &a->mismatch[i];
        ls_str x = {0}, y = {0};
        ls_jsonw w;
        ls_jsonw_init(&w, &x, 0);
        ls_jsonw_value(&w, m->baseline);
        ls_jsonw_init(&w, &y, 0);
        ls_jsonw_value(&w, m->other);
        fprintf(stderr, "unlike: %s: %s is %s, but %s has %s\n", a->set->run[m->run].name, m->field,
                y.data ? y.data : "?", a->set->run[a->baseline].name, x.data ? x.data : "?");
        ls_str_fini(&x);
        ls_str_fini(&y);
    }
    if (a->n_mismatch > 12) fprintf(stderr, "unlike: and %d more\n", a->n_mismatch - 12);
}

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

/* A folder of metrics files that has no run folders in it: each file is a run. */
static ls_status add_path(ls_run_set *set, const char *path)
{
    char **name = NULL, *inside = NULL;
    size_t n = 0;
    bool files = false, folders = false;
    ls_status st = LS_OK;
    if (!ls_fs_is_dir(path)) return ls_run_set_add(set, path);
    LS_TRY(ls_fs_list(path, &name, &n));
    for (int pass = 0; pass < 2 && st == LS_OK; pass++)
        for (size_t i = 0; i < n && st == LS_OK; i++) {
            if (!(inside = ls_path_join(path, name[i]))) st = ls_nomem(strlen(path), "a path");
            else if (!pass) {
                folders = folders || ls_fs_is_dir(inside) || !strcmp(name[i], "training_metrics.json");
                files = files || ends_in(name[i], ".json");
            } else if (files && !folders && ends_in(name[i], ".json") && !ends_in(name[i], "_report.json")) {
                st = ls_run_set_add(set, inside);
            }
            ls_free(inside);
        }
    ls_fs_list_free(name, n);
    return st == LS_OK && (folders || !files) ? ls_run_set_add(set, path) : st;
}

ls_status bench_read(const bench_session *s, const ls_opt_list *paths, bool weak, ls_run_set *set, ls_analysis *a)
{
    set->warm = (int)s->o.warmup;
    for (int i = 0; i < paths->n; i++) LS_TRY(add_path(set, paths->word[i]));
    for (int i = 0; i < s->bench.n_side && !paths->n; i++)
        for (int turn = 1; turn <= s->bench.repeat && !s->bench.side[i].left_out; turn++) {
            char path[4352];
            snprintf(path, sizeof path, "%.4000s/%s/run_%d", s->out, s->bench.side[i].name, turn);
            LS_TRY(ls_run_set_add(set, path));
        }
    ls_run_set_sort(set);
    for (int i = 0; i < set->notes.n; i++) fprintf(stderr, "note: %s\n", set->notes.text[i]);
    if (!set->n)
        return ls_fail(LS_E_FORMAT, "there is no run to compare%s%s", paths->n ? " in " : "",
                       paths->n ? paths->word[0] : "");
    LS_TRY(ls_analyse_with(set, &(ls_compare_opts){.allow_mismatch = s->o.allow_mismatch, .weak = weak, .steady = true},
                           a));
    say_mismatches(a);
    if (a->several_commits) fprintf(stderr, "note: the runs come from more than one commit\n");
    return LS_OK;
}

ls_status bench_verdict(const ls_analysis *a, const char *file)
{
    if (a->comparable && !a->n_mismatch) return LS_OK;
    if (a->comparable) {
        fprintf(stderr,
                "note: the runs are not alike and were compared all the same: the result is marked mismatch_allowed\n");
        return LS_OK;
    }
    fprintf(stderr, "lockstep: invalid_comparison: the runs are not alike, see %s (--allow-mismatch compares them)\n",
            file);
    ls_err_clear();
    return LS_E_NUMERIC; /* exit code 1, as the reference's runner; everything has been said */
}

void bench_protocol(const void *session, ls_jsonw *w)
{
    const bench_session *s = session;
    if (!s->bench.n_side) return; /* folders that somebody else made */
    ls_jsonw_put_int(w, "repeat", s->o.repeat);
    ls_jsonw_put_str(w, "order", "in turns, every second turn backwards");
    ls_jsonw_put_int(w, "cores", s->cores);
    ls_jsonw_key(w, "threads_per_worker");
    if (s->threads) ls_jsonw_int(w, s->threads);
    else ls_jsonw_null(w);
    ls_jsonw_put_bool(w, "oversubscribed", s->threads * s->most > s->cores);
    ls_jsonw_put_open(w, "commands", '{');
    for (int i = 0; i < s->bench.n_side; i++) {
        ls_argv words = {0};
        ls_str line = {0};
        if (s->bench.side[i].left_out) continue;
        if (ls_bench_command(&s->bench, &s->bench.side[i], 1, &words) == LS_OK) ls_argv_show(&words, &line);
        ls_jsonw_put_str(w, s->bench.side[i].name, line.data);
        ls_argv_fini(&words);
        ls_str_fini(&line);
    }
    ls_jsonw_close(w);
}

ls_status bench_write(const char *dir, const char *file, const ls_str *text)
{
    char *path = ls_path_join(dir, file);
    if (!path || text->failed) {
        ls_free(path);
        return ls_nomem(text->len, file);
    }
    ls_status st = ls_fs_write(path, text->data ? text->data : "", text->len);
    if (st == LS_OK) fprintf(stderr, "Wrote %s\n", path);
    ls_free(path);
    return st;
}

void bench_print_waterfall(const ls_analysis *a)
{
    static const struct {
        int part;
        const char *head;
    } col[] = {{LS_SPLIT_FORWARD, "compute"}, {LS_SPLIT_OPTIMIZER, "optimizer"},  {LS_SPLIT_EXPOSED, "exposed comm"},
               {LS_SPLIT_BUBBLE, "bubble"},   {LS_SPLIT_STRAGGLER, "stragglers"}, {LS_SPLIT_INPUT, "input"},
               {LS_SPLIT_OTHER, "other"}};
    const int n = sizeof col / sizeof col[0];
    bool head = false;
    int wide = 7;
    for (int i = 0; i < a->n_group; i++)
        wide = (int)strlen(a->group[i].short_name) > wide ? (int)strlen(a->group[i].short_name) : wide;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        const ls_waterfall *w = &g->waterfall;
        double sum = w->useful;
        if (!w->known) continue;
        if (!head) {
            printf("\nWhere a step's time went, %% of it (useful is the efficiency; the rest was lost to the part "
                   "named, below 0 is a "
                   "gain)\n%-*s workers   useful",
                   wide, "setting");
            for (int k = 0; k < n; k++) printf(" %12s", col[k].head);
            printf("    sum\n");
            head = true;
        }
        printf("%-*s %7d %8.1f", wide, g->short_name, g->world, 100 * w->useful);
        for (int k = 0; k < n; k++) {
            const double x = w->lost[col[k].part];
            sum += x;
            if (w->split || col[k].part == LS_SPLIT_OTHER) printf(" %12.1f", 100 * x);
            else printf(" %12s", "-");
        }
        printf(" %6.1f\n", 100 * sum);
    }
}
