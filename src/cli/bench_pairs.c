/* bench_pairs.c - which run of A is paired with which run of B.
 *
 *   A   run_1  run_2  run_3  run_4
 *   B   run_1  run_2   broken          pairs (1,1) (2,2); the others are left out, with a note
 *
 * 1. A run belongs to the side whose path or command it came from; no sorting moves it over.
 * 2. Runs with the same path below their side are a pair; when no two have the same, the k-th are, in the order of the paths.
 * 3. A run that cannot be compared leaves together with its partner. */
#include "cli/bench_impl.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

typedef struct origin {
    const char *dir;  /* of the run itself: stays the same string wherever the run moves in its set */
    const char *tail; /* its path below its side */
    int side, pair;   /* pair -1: none */
} origin;

static ls_status add_sides(const bench_session *s, const ls_opt_list *paths, ls_run_set *set, int begin[3])
{
    for (int k = 0; k < 2; k++) {
        begin[k] = set->n;
        if (paths->n) LS_TRY(cli_bench_add_path(set, paths->word[k]));
        else LS_TRY(cli_bench_add_side(s, &s->bench.side[k], set));
    }
    begin[2] = set->n;
    return LS_OK;
}

/* What of dir lies below root. */
static const char *below(const char *dir, const char *root)
{
    const size_t n = strlen(root);
    if (strncmp(dir, root, n)) return dir;
    for (dir += n; *dir == '/';) dir++;
    return dir;
}

static void pair_up(origin *o, const int begin[3], int *n_pair)
{
    bool by_name = false;
    *n_pair = 0;
    for (int i = 0; i < begin[1]; i++)
        for (int k = begin[1]; k < begin[2] && o[i].pair < 0; k++)
            if (o[k].pair < 0 && !strcmp(o[i].tail, o[k].tail)) {
                o[i].pair = o[k].pair = (*n_pair)++;
                by_name = true;
            }
    for (int i = 0; !by_name && i < begin[1] && begin[1] + i < begin[2]; i++)
        o[i].pair = o[begin[1] + i].pair = (*n_pair)++;
}

/* Why a run is not compared; NULL: it is. */
static const char *trouble(const ls_run *r)
{
    if (!r->metrics) return "its training_metrics.json is missing or broken";
    if (!(r->world > 0)) return "its training_metrics.json does not say hardware.world_size";
    if (!r->n_step) return "there is no metrics.jsonl with its steps";
    if (r->n_step <= r->n_warm) return "no step is left behind the warm-up (--warmup)";
    if (!(r->tokens_per_update / r->step_time > 0)) return "tokens or times of its steps are missing";
    return NULL;
}

static void leave_out(bench_pairs *p, const ls_run *r, const char *why)
{
    ls_notes_add(&p->left_out, "%s: %s", r->dir, why);
    fprintf(stderr, "skipped: %s: %s\n", r->dir, why);
}

/* Takes the runs without a partner, and pairs with one that is in trouble, out of the set; origins move along. */
static void drop(ls_run_set *set, origin *o, bench_pairs *p)
{
    for (int i = 0; i < set->n; i++) {
        const char *why = trouble(&set->run[i]);
        if (why) leave_out(p, &set->run[i], why);
        else if (o[i].pair < 0) leave_out(p, &set->run[i], "the other side has no run to pair it with");
        else
            for (int k = 0; k < set->n; k++)
                if (k != i && o[k].pair == o[i].pair && trouble(&set->run[k]))
                    leave_out(p, &set->run[i], "its partner is left out");
    }
    for (int i = 0; i < set->n; i++) /* a pair in trouble is none; both ends are marked before anything moves */
        if (o[i].pair >= 0 && trouble(&set->run[i]))
            for (int k = 0, pair = o[i].pair; k < set->n; k++)
                if (o[k].pair == pair) o[k].pair = -1;
    int n = 0;
    for (int i = 0; i < set->n; i++) {
        if (o[i].pair < 0) {
            ls_run_fini(&set->run[i]);
            continue;
        }
        set->run[n] = set->run[i];
        o[n++] = o[i];
    }
    set->n = n;
}

ls_status cli_bench_read_pairs(const bench_session *s, const ls_opt_list *paths, ls_run_set *set, ls_analysis *a,
                               bench_pairs *p)
{
    int begin[3], n_pair;
    set->warm = (int)s->o.warmup;
    LS_TRY(add_sides(s, paths, set, begin));
    cli_bench_notes(set);
    for (int k = 0; k < 2; k++)
        if (begin[k] == begin[k + 1])
            return ls_fail(LS_E_FORMAT, "%s: no run to compare", paths->n ? paths->word[k] : s->bench.side[k].name);
    origin *o = ls_alloc((size_t)(set->n + 1) * sizeof *o);
    if (!o) return ls_nomem((size_t)set->n * sizeof *o, "pairs");
    for (int i = 0; i < set->n; i++) {
        const int side = i >= begin[1];
        char root[4352];
        if (paths->n) snprintf(root, sizeof root, "%s", paths->word[side]);
        else snprintf(root, sizeof root, "%.4000s/%s", s->out, s->bench.side[side].name);
        o[i] = (origin){set->run[i].dir, below(set->run[i].dir, root), side, -1};
    }
    pair_up(o, begin, &n_pair);
    drop(set, o, p);
    ls_status st = LS_OK;
    const int n_run = set->n;
    p->run = ls_alloc((size_t)(n_pair + 1) * sizeof *p->run);
    if (!p->run) st = ls_nomem((size_t)n_pair * sizeof *p->run, "pairs");
    if (st == LS_OK && !n_run)
        st = ls_fail(LS_E_FORMAT, "no pair of runs to compare%s%s", p->left_out.n ? ": " : "",
                     p->left_out.n ? p->left_out.text[0] : "");
    if (st == LS_OK) st = cli_bench_compare(s, false, set, a);
    for (int i = 0; i < n_run && st == LS_OK; i++) { /* the comparison sorts by workers: ask each run who it is */
        int at = 0;
        while (o[at].dir != set->run[i].dir) at++;
        p->run[o[at].pair][o[at].side] = i;
    }
    for (int k = 0; k < n_pair && st == LS_OK; k++) { /* close the gaps of pairs that left */
        bool there = false;
        for (int i = 0; i < n_run; i++) there = there || o[i].pair == k;
        if (!there) continue;
        memmove(p->run[p->n], p->run[k], sizeof p->run[k]);
        p->n++;
    }
    ls_free(o);
    return st;
}

void cli_bench_pairs_fini(bench_pairs *p)
{
    ls_free(p->run);
    ls_notes_fini(&p->left_out);
    *p = (bench_pairs){0};
}
