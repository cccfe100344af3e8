/* planner_memory.c - the memory plan of a worker that does not run: the rows of the trainer with dry communicators.
 *
 * Permanent rows are at the bottom of the arena and overlap in time with all others: for the total they are one row. */
#include "plan/planner_impl.h"

#include <limits.h>
#include <string.h>

static bool always(const ls_plan_row *r)
{
    return r->first == 0 && r->last == INT32_MAX;
}

static ls_status total_of(const ls_plan *p, int64_t *total)
{
    ls_plan few = {.device = p->device};
    int64_t bottom = 0;
    if (p->total < 0) return ls_fail(LS_E_NOMEM, "cannot allocate the rows of a memory plan");
    for (int i = 0; i < p->n_row; i++)
        if (always(&p->row[i]) && !(p->device && p->row[i].host)) bottom += p->row[i].nbytes;
    ls_plan_add(&few, LS_PART_WORK, bottom, LS_PLAN_ALWAYS, "all permanent rows");
    for (int i = 0; i < p->n_row; i++)
        if (!always(&p->row[i]))
            ls_plan_add(&few, p->row[i].part, p->row[i].nbytes, p->row[i].first, p->row[i].last, "%s", p->row[i].name);
    ls_status st = ls_plan_layout(&few);
    *total = few.total;
    ls_plan_fini(&few);
    return st;
}

static ls_status dry(int rank, int size, ls_dry_clock *clock, ls_comm **out)
{
    return clock ? ls_comm_dry_clocked(rank, size, clock, out) : ls_comm_dry(rank, size, out);
}

ls_status planner_groups(const ls_mesh *mesh, int rank, ls_dry_clock *clock, ls_run_groups *g)
{
    g->at = ls_mesh_coord(mesh, rank);
    const int p = g->at.at[LS_AXIS_PP], P = mesh->n[LS_AXIS_PP], T = mesh->n[LS_AXIS_TP];
    LS_TRY(dry(g->at.at[LS_AXIS_DP], mesh->n[LS_AXIS_DP], clock, &g->dp));
    if (T > 1) LS_TRY(dry(g->at.at[LS_AXIS_TP], T, clock, &g->tp));
    if (P == 1) return LS_OK;
    LS_TRY(dry(p, P, clock, &g->pp));
    LS_TRY(dry(p, P, clock, &g->pp_acts));
    return dry(p, P, clock, &g->pp_grads);
}

void planner_groups_close(ls_run_groups *g)
{
    ls_comm_destroy(&g->dp);
    ls_comm_destroy(&g->tp);
    ls_comm_destroy(&g->pp);
    ls_comm_destroy(&g->pp_acts);
    ls_comm_destroy(&g->pp_grads);
}

ls_status planner_sizes(const ls_train_config *c, int threads, ls_compute *out)
{
    if (!strcmp(c->compute, "cuda")) return ls_compute_open_sizes(out, c->dtype);
    return ls_compute_open(out, c->compute, &(ls_compute_open_opts){.dtype = LS_F32}, threads);
}

ls_status ls_planner_memory(const ls_train_config *c, int threads, int rank, int64_t val_seqs, ls_plan_memory *out)
{
    ls_compute compute;
    *out = (ls_plan_memory){0};
    LS_TRY(planner_sizes(c, threads, &compute));
    return ls_planner_memory_on(c, &compute, rank, val_seqs, out);
}

ls_status ls_planner_memory_on(const ls_train_config *c, ls_compute *compute, int rank, int64_t val_seqs,
                               ls_plan_memory *out)
{
    ls_run_groups g = {0};
    ls_stages stages;
    ls_run_parts parts = {.stages = &stages};
    *out = (ls_plan_memory){0};
    ls_status st = planner_groups(&c->mesh, rank, NULL, &g);
    if (st == LS_OK) st = ls_run_plan(c, compute, &g, val_seqs, &parts);
    if (st == LS_OK) st = total_of(&parts.plan, &out->total);
    for (int p = 0; p < LS_N_PART; p++) out->part[p] = ls_plan_part_bytes(&parts.plan, (ls_part)p);
    ls_run_parts_fini(&parts);
    planner_groups_close(&g);
    return st;
}
