/* measure.c - the cost of the units of a model on this machine, to split a pipeline. */
#include "parallel/stages.h"

#include "core/clock.h"
#include "core/rng.h"
#include "model/input.h"
#include "parallel/gradtree.h"

enum { ROUNDS = 3, UNITS = 3 };

typedef struct watch {
    const ls_compute *compute;
    double *loss; /* of the host */
    double begin;
    double best[UNITS][2]; /* forward, backward */
} watch;

static ls_status enter(void *ctx, int u, ls_pass pass)
{
    watch *w = ctx;
    (void)u, (void)pass;
    LS_TRY(ls_compute_sync(w->compute));
    w->begin = ls_now();
    return LS_OK;
}

static ls_status leave(void *ctx, int u, ls_pass pass)
{
    watch *w = ctx;
    LS_TRY(ls_compute_sync(w->compute));
    const double t = ls_now() - w->begin;
    double *best = &w->best[u][pass != LS_FWD];
    if (*best == 0 || t < *best) *best = t;
    return LS_OK;
}

static ls_status passes(ls_model *m, ls_acts *a, ls_gradtree *tree, ls_input *in, int64_t B, int64_t T, watch *w)
{
    const ls_hooks h = {.ctx = w, .acquire = enter, .release = leave};
    int32_t *ids, *target;
    LS_TRY(ls_input_open(in, 0, &ids, &target));
    for (int64_t i = 0; i < B * T; i++)
        ids[i] = target[i] = (int32_t)(ls_rng_u64(1, (uint64_t)i) % (uint64_t)m->cfg.vocab_size);
    for (int k = 0; k < ROUNDS; k++) {
        ls_micro mb = {.B = B, .T = T, .train = true, .dloss = 1.0 / (double)(B * T), .loss = w->loss};
        LS_TRY(ls_input_send(in, 0, &mb));
        ls_gradtree_begin(tree, 0);
        LS_TRY(ls_walk_fwd(m, a, &mb, &h, 0, m->n_unit));
        LS_TRY(ls_walk_bwd(m, a, &mb, &h, 0, m->n_unit));
    }
    return LS_OK;
}

ls_status ls_units_measure(const ls_model_config *c, ls_compute *compute, int64_t B, int64_t T, ls_part_cost *cost)
{
    ls_model_config small = *c;
    ls_model *m = NULL;
    ls_plan plan = {.device = compute->device};
    ls_gradtree *tree = NULL;
    ls_acts *acts = NULL;
    watch w = {.compute = compute};
    void *scratch = compute->scratch;
    int row[UNITS];
    ls_input in = {0};
    ls_status st;
    small.n_layer = 1;
    LS_TRY_GOTO(st, done, ls_model_create(&m, &small, compute, 1));
    const int64_t esize = (int64_t)ls_dtype_nbytes(compute->ops->dtype);
    for (int u = 0; u < UNITS; u++)
        row[u] = ls_plan_add(&plan, LS_PART_PARAM, m->unit[u].n_pad * esize, LS_PLAN_ALWAYS, "unit %d", u);
    LS_TRY_GOTO(st, done, ls_gradtree_plan(&tree, m, 1, NULL, false, LS_GRADTREE_PLAIN, &plan));
    LS_TRY_GOTO(st, done, ls_acts_plan(&acts, m, &(ls_acts_opts){.B = B, .T = T, .train = true}, &plan));
    LS_TRY_GOTO(st, done, ls_input_plan(&in, compute, B * T, 1, &plan));
    const int loss = ls_plan_add_host(&plan, LS_PART_WORK, (int64_t)sizeof(double), "loss");
    LS_TRY_GOTO(st, done, ls_plan_layout(&plan));
    LS_TRY_GOTO(st, done, ls_plan_alloc(&plan, false));
    for (int u = 0; u < UNITS; u++) m->unit[u].param = ls_plan_at(&plan, row[u]);
    ls_gradtree_bind(tree, &plan);
    ls_acts_bind(acts, m, &plan);
    ls_input_bind(&in, &plan);
    w.loss = ls_plan_at(&plan, loss);
    if (!compute->device) ls_model_init(m, 1); /* on a device, parameters of 0 cost the same */
    LS_TRY_GOTO(st, done, passes(m, acts, tree, &in, B, T, &w));
    ls_stages_model(c, B, T, cost);
    for (int u = 0; u < c->n_layer + 2; u++) {
        const int k = u == 0 ? 0 : u <= c->n_layer ? 1 : 2;
        const double fwd = w.best[k][0], bwd = w.best[k][1];
        cost[u].fwd = k == 2 ? 0 : fwd; /* head's forward belongs to its backward (pipe_exec.h) */
        cost[u].bwd_in = k == 2 ? fwd + bwd : k == 1 ? bwd / 2 : 0; /* the halves of a block's backward are alike */
        cost[u].bwd_w = k == 2 ? 0 : bwd - cost[u].bwd_in;
    }
done:
    ls_input_fini(&in);
    ls_acts_destroy(&acts);
    ls_gradtree_destroy(&tree);
    ls_model_destroy(&m);
    ls_plan_fini(&plan);
    compute->scratch = scratch;
    return st;
}
