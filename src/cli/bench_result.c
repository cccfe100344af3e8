/* bench_result.c - from run folders to a comparison: reading, pairing, printing, writing.
 *
 *   A   run_1  run_2  run_3  run_4
 *   B   run_1  run_2   broken          pairs (1,1) (2,2); the others are left out and listed
 *
 * Each run belongs to the side whose path or command it came from. Runs with the same path below their side are a pair; if no two have the
 * same, the k-th run of A and the k-th run of B are, in the order of the paths. A run that cannot be compared is left out together with
 * its partner. The pairs have a meaning for a test only if their runs were made in turns: by `bench ab`, or by their timestamps. */
#include "cli/bench_impl.h"

#include "core/fs.h"
#include "core/progress.h"
#include "core/table.h"
#include "report/read/benches.h"

#include <unistd.h>

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
                y.data ? y.data : "?", a->set->run[m->base].name, x.data ? x.data : "?");
        ls_str_fini(&x);
        ls_str_fini(&y);
    }
    if (a->n_mismatch > 12) fprintf(stderr, "not comparable: %d more differences\n", a->n_mismatch - 12);
}

/* Adds the runs that the session made of a side. */
static ls_status add_side(const bench_session *s, const ls_bench_side *side, ls_run_set *set)
{
    for (int turn = 1; turn <= s->bench.repeat && !side->left_out; turn++) {
        char path[4352];
        snprintf(path, sizeof path, "%.4000s/%s/run_%d", s->out, side->name, turn);
        LS_TRY(ls_run_set_add(set, path));
    }
    return LS_OK;
}

static void print_notes(const ls_run_set *set)
{
    for (int i = 0; i < set->notes.n; i++) fprintf(stderr, "note: %s\n", set->notes.text[i]);
}

/* A profiled run is no benchmark. Returns how many there were; each is listed on stderr. */
static int drop_profiled(ls_run_set *set)
{
    int n = 0;
    for (int i = 0; i < set->n; i++) {
        if (set->run[i].profiled) {
            fprintf(stderr, "not compared: %s was profiled, so it is no benchmark\n", set->run[i].dir);
            ls_run_fini(&set->run[i]);
        } else set->run[n++] = set->run[i];
    }
    const int dropped = set->n - n;
    set->n = n;
    return dropped;
}

/* Sorts and compares the runs of a set; prints mismatches to stderr. LS_E_FORMAT if no run can be compared. */
static ls_status compare(const bench_session *s, bool weak, bool precisions, ls_run_set *set, ls_analysis *a)
{
    bool any = false;
    const int n_profiled = drop_profiled(set);
    ls_run_set_sort(set);
    for (int i = 0; i < set->n; i++) any = any || (set->run[i].metrics && set->run[i].world > 0);
    if (!any && n_profiled)
        return ls_fail(LS_E_FORMAT, "no run to compare: %d %s profiled, and a profiled run is no benchmark", n_profiled,
                       n_profiled == 1 ? "was" : "were");
    if (!any)
        return ls_fail(LS_E_FORMAT, "no run to compare%s%s", set->notes.n ? ": " : "",
                       set->notes.n ? set->notes.text[0] : "");
    const ls_compare_opts how = {
        .allow_mismatch = s->o.allow_mismatch, .weak = weak, .precisions = precisions, .steady = true};
    LS_TRY(ls_analyse(set, &how, a));
    say_mismatches(a);
    if (a->several_commits) fprintf(stderr, "note: the runs come from more than one commit\n");
    return LS_OK;
}

ls_status cli_bench_read(const bench_session *s, const ls_opt_list *paths, bool weak, ls_run_set *set, ls_analysis *a)
{
    set->warm = (int)s->o.warmup;
    for (int i = 0; i < paths->n; i++) LS_TRY(ls_run_set_add(set, paths->word[i]));
    for (int i = 0; i < s->bench.n_side && !paths->n; i++) LS_TRY(add_side(s, &s->bench.side[i], set));
    print_notes(set);
    return compare(s, weak, false, set, a);
}

/* --- pairs --- */

enum { NONE = -1 };

/* Why a run cannot be compared; NULL: it can. */
static const char *trouble(const ls_run *r)
{
    if (!r->metrics) return "its training_metrics.json is missing or broken";
    if (r->profiled) return "it was profiled, so it is no benchmark";
    if (!(r->world > 0)) return "its training_metrics.json does not say hardware.world_size";
    if (!r->n_step) return r->tokens_per_sec > 0 ? NULL : "it has neither a metrics.jsonl nor the speed of its epochs";
    if (r->changed)
        return "it was resumed with other workers, layout, batch, precision or device, so it is no benchmark";
    if (r->n_step <= ls_run_first(r)) return "no step is left after the warm-up (--warmup)";
    if (!(r->tokens_per_update / r->step_time > 0)) return "tokens or times of its steps are missing";
    return NULL;
}

static const char partner_words[] = "its partner is left out";

/* Of the runs that are left out, the first that has a reason of its own. */
static const char *first_reason(const ls_notes *left_out)
{
    for (int i = 0; i < left_out->n; i++)
        if (!ls_ends_in(left_out->text[i], partner_words)) return left_out->text[i];
    return left_out->n ? left_out->text[0] : "";
}

/* Fills p with the folders of the pairs that can be compared. Runs that are left out get the partner NONE. */
static void select_pairs(const ls_run_set *set, int n_a, int *partner, bench_pairs *p)
{
    for (int i = 0; i < set->n; i++) {
        const ls_run *r = &set->run[i], *other = partner[i] == NONE ? NULL : &set->run[partner[i]];
        const char *why = trouble(r);
        if (!why && !other) why = "the other side has no run to pair it with";
        if (!why && trouble(other)) why = partner_words;
        if (!why && i < n_a) p->pair[p->n++] = (bench_pair){.dir = {r->dir, other->dir}};
        if (!why) continue;
        ls_notes_add(&p->left_out, "%s: %s", r->dir, why);
        fprintf(stderr, "skipped: %s: %s\n", r->dir, why);
    }
    for (int i = 0; i < set->n; i++)
        if (partner[i] != NONE && !set->run[i].n_step && !trouble(&set->run[i]) && !trouble(&set->run[partner[i]]))
            p->whole = true;
    for (int i = 0; i < set->n; i++) {
        const int k = partner[i];
        if (k != NONE && (trouble(&set->run[i]) || trouble(&set->run[k]))) partner[i] = partner[k] = NONE;
    }
}

static void remove_unpaired(ls_run_set *set, const int *partner)
{
    int n = 0;
    for (int i = 0; i < set->n; i++) {
        if (partner[i] == NONE) ls_run_fini(&set->run[i]);
        else set->run[n++] = set->run[i];
    }
    set->n = n;
}

/* The runs of the pairs, which the comparison has sorted by their number of workers. */
static void find_runs(const ls_run_set *set, bench_pairs *p)
{
    for (int k = 0; k < p->n; k++)
        for (int side = 0; side < 2; side++)
            for (int i = 0; i < set->n; i++)
                if (set->run[i].dir == p->pair[k].dir[side]) p->pair[k].run[side] = &set->run[i];
}

/* The end of the path of a folder, and the length of the path before it. */
static const char *last_part(const char *path, size_t *before)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    *before = n;
    while (*before && path[*before - 1] != '/') --*before;
    return path + *before;
}

/* The runs listed for a side in ab_report.json are in the folder `path`, whose name is a part of their paths. */
static bool lists_folder(const json_t *report, const char *side, const char *path)
{
    const json_t *own = json_object_get(report, side);
    const char *run = json_string_value(json_array_get(json_object_get(own, "runs"), 0));
    char part[512];
    size_t before;
    const char *name = last_part(path, &before);
    snprintf(part, sizeof part, "/%.*s/", (int)strcspn(name, "/"), name);
    return run && json_object_get(own, "flags") && strstr(run, part);
}

/* The folders are the two sides of a `bench ab` that compared precisions. */
static bool of_precisions(const ls_opt_list *paths)
{
    size_t n[2];
    char dir[4096];
    json_t *report = NULL;
    for (int k = 0; k < 2; k++) (void)last_part(paths->word[k], &n[k]);
    if (n[0] != n[1] || strncmp(paths->word[0], paths->word[1], n[0]) || n[0] >= sizeof dir) return false;
    snprintf(dir, sizeof dir, "%.*s", (int)n[0], paths->word[0]);
    const ls_path file = ls_path_of(n[0] ? dir : ".", "ab_report.json");
    if (!ls_fs_exists(file.text)) return false;
    if (ls_json_load(file.text, &report) != LS_OK) ls_err_clear();
    const bool yes = ls_compares_precisions(report) &&
                     ((lists_folder(report, "a", paths->word[0]) && lists_folder(report, "b", paths->word[1])) ||
                      (lists_folder(report, "a", paths->word[1]) && lists_folder(report, "b", paths->word[0])));
    json_decref(report);
    return yes;
}

ls_status cli_bench_read_pairs(const bench_session *s, const ls_opt_list *paths, ls_run_set *set, ls_analysis *a,
                               bench_pairs *p)
{
    int end[2];
    set->warm = (int)s->o.warmup;
    for (int k = 0; k < 2; k++) {
        LS_TRY(paths->n ? ls_run_set_add(set, paths->word[k]) : add_side(s, &s->bench.side[k], set));
        end[k] = set->n;
    }
    print_notes(set);
    for (int k = 0; k < 2; k++)
        if (end[k] == (k ? end[0] : 0))
            return ls_fail(LS_E_FORMAT, "%s: no run to compare", paths->n ? paths->word[k] : s->bench.side[k].name);
    int *partner = ls_alloc((size_t)set->n * sizeof *partner);
    const ls_run **list = ls_alloc((size_t)set->n * sizeof *list);
    p->pair = ls_alloc((size_t)set->n * sizeof *p->pair);
    ls_status st = partner && list && p->pair ? LS_OK : ls_nomem((size_t)set->n * sizeof *p->pair, "pairs");
    if (st == LS_OK) {
        for (int i = 0; i < set->n; i++) partner[i] = NONE, list[i] = &set->run[i];
        ls_pair_up(list, end[0], list + end[0], set->n - end[0], partner);
        for (int i = 0; i < end[0]; i++)
            if (partner[i] != NONE) partner[partner[i] += end[0]] = i;
        select_pairs(set, end[0], partner, p);
        remove_unpaired(set, partner);
        bool precisions = s->precisions;
        if (paths->n) precisions = of_precisions(paths);
        if (p->n) st = compare(s, false, precisions, set, a);
        else
            st = ls_fail(LS_E_FORMAT, "no pair of runs to compare%s%s", p->left_out.n ? ": " : "",
                         first_reason(&p->left_out));
        find_runs(set, p);
        for (int i = 0; i < p->n && st == LS_OK; i++) list[i] = p->pair[i].run[0], list[p->n + i] = p->pair[i].run[1];
        p->in_turns = st == LS_OK && ls_in_turns(list, list + p->n, p->n);
    }
    ls_free(partner);
    ls_free(list);
    return st;
}

void cli_bench_pairs_fini(bench_pairs *p)
{
    ls_free(p->pair);
    ls_notes_fini(&p->left_out);
    *p = (bench_pairs){0};
}

/* --- the result --- */

ls_status cli_bench_verdict(const ls_analysis *a, const char *file)
{
    if (a->comparable && !a->n_mismatch) return LS_OK;
    if (a->comparable) {
        fprintf(stderr, "note: the runs are not comparable; the result is marked mismatch_allowed\n");
        return LS_OK;
    }
    fprintf(stderr,
            "lockstep: invalid comparison: the runs are not comparable; see %s (--allow_mismatch compares them)\n",
            file);
    return cli_negative(); /* as the scaling study's runner */
}

void cli_bench_protocol(const void *session, ls_jsonw *w)
{
    const bench_session *s = session;
    if (!s->bench.n_side) return; /* existing runs */
    int threads = s->bench.side[0].threads;
    for (int i = 1; i < s->bench.n_side; i++)
        if (!s->bench.side[i].left_out && s->bench.side[i].threads != threads) threads = 0;
    ls_jsonw_members(w, LS_KV("repeat", s->o.repeat), LS_KV("order", "in turns, every second turn backwards"),
                     LS_KV("cores", s->cores), LS_KV("load_average_at_start", s->load));
    ls_jsonw_key(w, "threads_per_worker");
    if (threads > 0) ls_jsonw_int(w, threads);
    else ls_jsonw_null(w); /* all cores of a worker, or the sides differ */
    ls_jsonw_put_bool(w, "oversubscribed", cli_bench_crowded(s) != NULL);
    ls_jsonw_put_open(w, "commands", '{');
    for (int i = 0; i < s->bench.n_side; i++) {
        ls_str line = {0};
        if (s->bench.side[i].left_out) continue;
        (void)cli_bench_command(s, &s->bench.side[i], 1, &line);
        ls_jsonw_put_str(w, s->bench.side[i].name, line.data);
        ls_str_fini(&line);
    }
    ls_jsonw_close(w);
}

ls_status cli_bench_publish(const bench_session *s, const ls_analysis *a, const char *file, const ls_str *json,
                            const ls_str *table)
{
    const ls_str *shown = s->o.json ? json : table;
    if (json->failed || table->failed) return ls_nomem(json->len, file);
    ls_str wrapped = {0};
    const int columns = s->o.json ? 0 : ls_terminal_columns(STDOUT_FILENO);
    if (columns) ls_progress_wrap(shown->data ? shown->data : "", columns, &wrapped);
    const char *lines = wrapped.data && !wrapped.failed ? wrapped.data : shown->data;
    if (s->o.json || a->comparable) printf("%s%s", lines ? lines : "", s->o.json ? "\n" : "");
    ls_str_fini(&wrapped);
    fflush(stdout);
    if (!s->bench.n_side && !s->o.out) return cli_bench_verdict(a, "the lines above, or --json");
    char *path = ls_path_join(s->out, file);
    ls_status st = path ? ls_fs_write(path, json->data, json->len) : ls_nomem(strlen(s->out), "a path");
    if (st == LS_OK) fprintf(stderr, "Wrote %s\n", path);
    if (st == LS_OK) st = cli_bench_verdict(a, path);
    ls_free(path);
    return st;
}

void cli_bench_waterfall(const ls_analysis *a, ls_str *out)
{
    static const struct {
        int part;
        const char *head;
    } col[] = {{LS_SPLIT_FORWARD, "compute"}, {LS_SPLIT_OPTIMIZER, "optimizer"},  {LS_SPLIT_EXPOSED, "exposed"},
               {LS_SPLIT_BUBBLE, "bubble"},   {LS_SPLIT_STRAGGLER, "stragglers"}, {LS_SPLIT_INPUT, "input"},
               {LS_SPLIT_OTHER, "other"}};
    ls_table t = {.n_col = 4 + CLI_COUNT(col)};
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        const ls_waterfall *w = &g->waterfall;
        double sum = w->useful;
        if (!w->known) continue;
        if (!t.n) {
            ls_str_add(
                out, "\nTime of a step in % (useful is the efficiency; the others are lost time,\nnegative: gained)\n");
            ls_table_cell(&t, "setting");
            ls_table_cell(&t, "workers");
            ls_table_cell(&t, "useful");
            for (size_t k = 0; k < CLI_COUNT(col); k++) ls_table_cell(&t, "%s", col[k].head);
            ls_table_cell(&t, "sum");
        }
        ls_table_cell(&t, "%s", g->short_name);
        ls_table_cell(&t, "%d", g->world);
        ls_table_cell(&t, "%.1f", 100 * w->useful);
        for (size_t k = 0; k < CLI_COUNT(col); k++) {
            const double x = w->lost[col[k].part];
            sum += x;
            ls_table_cell(&t, w->split || col[k].part == LS_SPLIT_OTHER ? "%.1f" : "-", 100 * x);
        }
        ls_table_cell(&t, "%.1f", 100 * sum);
    }
    ls_table_print(&t, out);
}
