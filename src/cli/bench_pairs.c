/* bench_pairs.c - which run of A is paired with which run of B.
 *
 *   A   run_1  run_2  run_3  run_4
 *   B   run_1  run_2   broken          pairs (1,1) (2,2); the others are left out, with a note
 *
 * A run belongs to the side whose path or command it came from. Runs with the same path below their side are a pair; if no two have the
 * same, the k-th run of A and the k-th run of B are, in the order of the paths. A run that cannot be compared is left out together with
 * its partner. */
#include "cli/bench_impl.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

enum { NONE = -1 };

/* The part of dir below its side. */
static const char *below(const bench_session *s, const ls_opt_list *paths, int side, const char *dir)
{
    char root[4352];
    if (paths->n) snprintf(root, sizeof root, "%s", paths->word[side]);
    else snprintf(root, sizeof root, "%.4000s/%s", s->out, s->bench.side[side].name);
    const size_t n = strlen(root);
    return strncmp(dir, root, n) ? dir : dir + n + strspn(dir + n, "/");
}

/* Sets partner[i] to the other run of the pair of run i, or to NONE. The first n_a runs are those of A. */
static void pair_up(const bench_session *s, const ls_opt_list *paths, const ls_run_set *set, int n_a, int *partner)
{
    bool by_name = false;
    for (int i = 0; i < set->n; i++) partner[i] = NONE;
    for (int i = 0; i < n_a; i++)
        for (int k = n_a; k < set->n && partner[i] == NONE; k++)
            if (partner[k] == NONE &&
                !strcmp(below(s, paths, 0, set->run[i].dir), below(s, paths, 1, set->run[k].dir))) {
                partner[i] = k;
                partner[k] = i;
                by_name = true;
            }
    for (int i = 0; !by_name && i < n_a && n_a + i < set->n; i++) {
        partner[i] = n_a + i;
        partner[n_a + i] = i;
    }
}

/* Why a run cannot be compared; NULL: it can. */
static const char *trouble(const ls_run *r)
{
    if (!r->metrics) return "its training_metrics.json is missing or broken";
    if (!(r->world > 0)) return "its training_metrics.json does not say hardware.world_size";
    if (!r->n_step) return "there is no metrics.jsonl with its steps";
    if (r->n_step <= r->n_warm) return "no step is left after the warm-up (--warmup)";
    if (!(r->tokens_per_update / r->step_time > 0)) return "tokens or times of its steps are missing";
    return NULL;
}

/* Fills p with the folders of the pairs that can be compared. Runs that are left out get the partner NONE. */
static void select_pairs(const ls_run_set *set, int n_a, int *partner, bench_pairs *p)
{
    for (int i = 0; i < set->n; i++) {
        const ls_run *r = &set->run[i], *other = partner[i] == NONE ? NULL : &set->run[partner[i]];
        const char *why = trouble(r);
        if (!why && !other) why = "the other side has no run to pair it with";
        if (!why && trouble(other)) why = "its partner is left out";
        if (!why && i < n_a) p->pair[p->n++] = (bench_pair){.dir = {r->dir, other->dir}};
        if (!why) continue;
        ls_notes_add(&p->left_out, "%s: %s", r->dir, why);
        fprintf(stderr, "skipped: %s: %s\n", r->dir, why);
    }
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

ls_status cli_bench_read_pairs(const bench_session *s, const ls_opt_list *paths, ls_run_set *set, ls_analysis *a,
                               bench_pairs *p)
{
    int end[2];
    set->warm = (int)s->o.warmup;
    for (int k = 0; k < 2; k++) {
        LS_TRY(paths->n ? cli_bench_add_path(set, paths->word[k]) : cli_bench_add_side(s, &s->bench.side[k], set));
        end[k] = set->n;
    }
    cli_bench_notes(set);
    for (int k = 0; k < 2; k++)
        if (end[k] == (k ? end[0] : 0))
            return ls_fail(LS_E_FORMAT, "%s: no run to compare", paths->n ? paths->word[k] : s->bench.side[k].name);
    int *partner = ls_alloc((size_t)set->n * sizeof *partner);
    p->pair = ls_alloc((size_t)set->n * sizeof *p->pair);
    ls_status st = partner && p->pair ? LS_OK : ls_nomem((size_t)set->n * sizeof *p->pair, "pairs");
    if (st == LS_OK) {
        pair_up(s, paths, set, end[0], partner);
        select_pairs(set, end[0], partner, p);
        remove_unpaired(set, partner);
        if (p->n) st = cli_bench_compare(s, false, set, a);
        else
            st = ls_fail(LS_E_FORMAT, "no pair of runs to compare%s%s", p->left_out.n ? ": " : "",
                         p->left_out.n ? p->left_out.text[0] : "");
        find_runs(set, p);
    }
    ls_free(partner);
    return st;
}

void cli_bench_pairs_fini(bench_pairs *p)
{
    ls_free(p->pair);
    ls_notes_fini(&p->left_out);
    *p = (bench_pairs){0};
}
