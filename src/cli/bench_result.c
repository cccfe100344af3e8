/* bench_result.c - from run folders to a comparison: reading, refusing, printing, writing. */
#include "cli/bench_impl.h"

#include "core/fs.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

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
        fprintf(stderr, "not comparable: %s: %s is %s, but %s has %s\n", a->set->run[m->run].name, m->field,
                y.data ? y.data : "?", a->set->run[a->baseline].name, x.data ? x.data : "?");
        ls_str_fini(&x);
        ls_str_fini(&y);
    }
    if (a->n_mismatch > 12) fprintf(stderr, "not comparable: %d more differences\n", a->n_mismatch - 12);
}

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

/* A folder of metrics files that has no run folders in it: each file is a run. */
ls_status cli_bench_add_path(ls_run_set *set, const char *path)
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

ls_status cli_bench_add_side(const bench_session *s, const ls_bench_side *side, ls_run_set *set)
{
    for (int turn = 1; turn <= s->bench.repeat && !side->left_out; turn++) {
        char path[4352];
        snprintf(path, sizeof path, "%.4000s/%s/run_%d", s->out, side->name, turn);
        LS_TRY(ls_run_set_add(set, path));
    }
    return LS_OK;
}

void cli_bench_notes(const ls_run_set *set)
{
    for (int i = 0; i < set->notes.n; i++) fprintf(stderr, "note: %s\n", set->notes.text[i]);
}

ls_status cli_bench_compare(const bench_session *s, bool weak, ls_run_set *set, ls_analysis *a)
{
    bool any = false;
    ls_run_set_sort(set);
    for (int i = 0; i < set->n; i++) any = any || (set->run[i].metrics && set->run[i].world > 0);
    if (!any)
        return ls_fail(LS_E_FORMAT, "no run to compare%s%s", set->notes.n ? ": " : "",
                       set->notes.n ? set->notes.text[0] : "");
    LS_TRY(ls_analyse(set, &(ls_compare_opts){.allow_mismatch = s->o.allow_mismatch, .weak = weak, .steady = true}, a));
    say_mismatches(a);
    if (a->several_commits) fprintf(stderr, "note: the runs come from more than one commit\n");
    return LS_OK;
}

ls_status cli_bench_read(const bench_session *s, const ls_opt_list *paths, bool weak, ls_run_set *set, ls_analysis *a)
{
    set->warm = (int)s->o.warmup;
    for (int i = 0; i < paths->n; i++) LS_TRY(cli_bench_add_path(set, paths->word[i]));
    for (int i = 0; i < s->bench.n_side && !paths->n; i++) LS_TRY(cli_bench_add_side(s, &s->bench.side[i], set));
    cli_bench_notes(set);
    return cli_bench_compare(s, weak, set, a);
}

ls_status cli_bench_verdict(const ls_analysis *a, const char *file)
{
    if (a->comparable && !a->n_mismatch) return LS_OK;
    if (a->comparable) {
        fprintf(stderr, "note: the runs are not comparable; the result is marked mismatch_allowed\n");
        return LS_OK;
    }
    fprintf(stderr,
            "lockstep: invalid_comparison: the runs are not comparable, see %s (--allow-mismatch compares them)\n",
            file);
    ls_err_clear();
    return LS_E_NUMERIC; /* exit code 1, as R1's runner; the reasons have been printed */
}

void cli_bench_protocol(const void *session, ls_jsonw *w)
{
    const bench_session *s = session;
    if (!s->bench.n_side) return; /* folders that somebody else made */
    int threads = s->bench.side[0].threads;
    for (int i = 1; i < s->bench.n_side; i++)
        if (!s->bench.side[i].left_out && s->bench.side[i].threads != threads) threads = 0;
    ls_jsonw_put_int(w, "repeat", s->o.repeat);
    ls_jsonw_put_str(w, "order", "in turns, every second turn backwards");
    ls_jsonw_put_int(w, "cores", s->cores);
    ls_jsonw_put_real(w, "load_average_at_start", s->load);
    ls_jsonw_key(w, "threads_per_worker");
    if (threads > 0) ls_jsonw_int(w, threads);
    else ls_jsonw_null(w); /* all cores of a worker, or the sides differ */
    ls_jsonw_put_bool(w, "oversubscribed", cli_bench_crowded(s) != NULL);
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

ls_status cli_bench_write(const char *dir, const char *file, const ls_str *text)
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

void cli_bench_print_waterfall(const ls_analysis *a)
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
            printf("\nTime of a step in %% (useful is the efficiency; the other columns are lost time by cause, "
                   "negative: gained)\n%-*s workers   useful",
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
