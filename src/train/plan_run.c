#include "train/plan_run.h"

#include "core/mem.h"
#include "core/minmax.h"
#include "parallel/schedule_check.h"
#include "parallel/schedule_text.h"

#include <string.h>

bool ls_run_measures_stages(const ls_train_config *c)
{
    return c->stages && !strcmp(c->stages, "measured");
}

ls_status ls_run_stages(const ls_train_config *c, const ls_part_cost *measured, ls_stages *stages,
                        ls_schedule **schedule)
{
    const int P = c->mesh.n[LS_AXIS_PP], U = c->model.n_layer + 2;
    if (P == 1) return LS_OK;
    ls_part_cost *cost = ls_alloc((size_t)U * sizeof *cost);
    if (!cost) return ls_nomem((size_t)U * sizeof *cost, "the stages");
    ls_stages_model(&c->model, c->micro_batch, c->seq_len, cost);
    if (measured) memcpy(cost, measured, (size_t)U * sizeof *cost);
    const ls_pipe_opts o = {.n_stage = P, .n_micro = c->grad_accum, .n_chunk = c->interleave};
    ls_status st = ls_schedule_is_builtin(c->schedule) ? ls_schedule_create(schedule, c->schedule, &o)
                                                       : ls_schedule_load(schedule, c->schedule, P, c->grad_accum);
    if (st == LS_OK) st = ls_schedule_check(*schedule);
    if (st == LS_OK && c->stages && !ls_run_measures_stages(c))
        st = ls_stages_parse(stages, c->stages, U, P, (*schedule)->n_chunk);
    else if (st == LS_OK)
        st = ls_stages_balance(stages, cost, U, P, (*schedule)->n_chunk, c->stage_thread[0] ? c->stage_thread : NULL);
    if (st == LS_OK) st = ls_pipe_check(*schedule, c->recompute);
    ls_free(cost);
    return st;
}

/* The tables, or those of this worker's shard. */
static ls_status make_model(const ls_train_config *c, ls_compute *compute, const ls_run_groups *g, ls_model **out)
{
    const int64_t pad = ls_strategy_pad(c->strategy, c->one_state, ls_comm_size(g->dp));
    if (!g->tp) return ls_model_create(out, &c->model, compute, pad);
    const ls_shard shard = {.rank = ls_comm_rank(g->tp), .size = ls_comm_size(g->tp), .rows = c->sequence_parallel};
    return ls_model_create_shard(out, &c->model, compute, pad, shard);
}

/* Whether gradients of a step's micro-batches may be added in place. Tensor-parallel layers sum some of them afterwards. */
static bool adds_alike(const ls_train_config *c, const ls_model *m, const ls_run_groups *g)
{
    const ls_compute_ops *ops = m->compute->ops;
    const ls_compute_shapes s = {.B = c->micro_batch,
                                 .T = c->seq_len,
                                 .C = m->cfg.n_embd,
                                 .H = m->cfg.n_head,
                                 .V = m->cfg.vocab_size,
                                 .backward = true,
                                 .n_part = 1};
    return !g->tp && ops->adds_alike && ops->adds_alike(m->compute, &s);
}

static ls_status plan_strategy(const ls_train_config *c, const ls_run_groups *g, ls_run_parts *out)
{
    const size_t U = (size_t)out->model->n_unit;
    unsigned char *role = NULL;
    if (out->schedule) {
        role = ls_alloc(U);
        if (!role) return ls_nomem(U, "the stages");
        ls_pipe_roles(out->stages, c->model.tied, g->at.at[LS_AXIS_PP], role);
    }
    const ls_strategy_opts so = {.n_micro = c->grad_accum,
                                 .bucket = c->bucket,
                                 .gather_bucket = c->gather_bucket,
                                 .prefetch_bucket = c->prefetch_bucket,
                                 .deterministic = c->deterministic,
                                 .offload = c->offload && out->model->compute->device,
                                 .overlap = c->offload && c->clip == 0 && c->loss_scale.rule == LS_SCALE_NONE &&
                                            !c->audit, /* which decides about the update, too */
                                 .stochastic = c->stochastic,
                                 .one_state = c->one_state,
                                 .adds_alike = adds_alike(c, out->model, g),
                                 .role = role,
                                 .pipe = g->pp,
                                 .tensor = g->tp};
    ls_status st = ls_strategy_create(&out->strategy, c->strategy, out->model, g->dp, &so, &out->plan);
    ls_free(role);
    return st;
}

static ls_status plan_acts(const ls_train_config *c, const ls_run_groups *g, ls_run_parts *out)
{
    /* on a device the pass over memory that makes it again costs more than the memory; fp8 does not need it */
    const bool keep_gelu = out->model->compute->device != NULL && !c->fp8.on;
    if (!out->schedule)
        return ls_acts_plan(
            &out->acts, out->model,
            &(ls_acts_opts){
                .B = c->micro_batch, .T = c->seq_len, .train = true, .recompute = c->recompute, .keep_gelu = keep_gelu},
            &out->plan);
    return ls_pipe_create(&out->pipe,
                          &(ls_pipe_setup){.model = out->model,
                                           .schedule = out->schedule,
                                           .stages = out->stages,
                                           .acts = g->pp_acts,
                                           .grads = g->pp_grads,
                                           .B = c->micro_batch,
                                           .T = c->seq_len,
                                           .recompute = c->recompute,
                                           .keep_gelu = keep_gelu},
                          &out->plan);
}

ls_status ls_run_plan_strategy(const ls_train_config *c, ls_compute *compute, const ls_run_groups *g, ls_run_parts *out)
{
    if (!out->schedule) LS_TRY(ls_run_stages(c, NULL, out->stages, &out->schedule));
    if (c->one_state) ls_compute_may_grow(compute, compute->n_own * ls_comm_size(g->dp));
    LS_TRY(make_model(c, compute, g, &out->model));
    return plan_strategy(c, g, out);
}

/* Copies of weights and the numbers of --precision fp8. */
static ls_status plan_fp8(const ls_train_config *c, const ls_run_groups *g, ls_run_parts *out)
{
    const size_t U = (size_t)out->model->n_unit;
    const int64_t R = (int64_t)c->micro_batch * c->seq_len;
    ls_fp8_cut cut = {0};
    if (out->strategy->ops->parts & LS_SHARD_PARAM) cut = (ls_fp8_cut){ls_comm_size(g->dp), ls_comm_rank(g->dp)};
    unsigned char *role = ls_alloc(U);
    bool *here = ls_alloc(U * sizeof *here);
    ls_status st = role && here ? LS_OK : ls_nomem(U, "the stages");
    if (st == LS_OK && out->schedule) ls_pipe_roles(out->stages, c->model.tied, g->at.at[LS_AXIS_PP], role);
    for (size_t u = 0; st == LS_OK && u < U; u++) here[u] = !out->schedule || role[u] == LS_ROLE_HERE;
    if (st == LS_OK) st = ls_fp8_create(out->model, &c->fp8, R, cut, here, &out->plan);
    ls_free(role);
    ls_free(here);
    return st;
}

/* --save_async. */
static ls_status plan_copy(ls_run_parts *out)
{
    const size_t room = 3 * (size_t)out->model->n_unit * sizeof(ls_piece);
    ls_piece *piece = ls_alloc(room);
    if (!piece) return ls_nomem(room, "the parts of the model");
    const int n = ls_strategy_pieces(out->strategy, true, piece);
    out->row.n_copy = 0;
    for (int i = 0; i < n; i++)
        out->row.n_copy += piece[i].n * (int64_t)ls_dtype_nbytes(out->model->compute->ops->wide);
    ls_free(piece);
    out->row.copy = ls_plan_add_host(&out->plan, LS_PART_WORK, out->row.n_copy, "copy for checkpoints");
    return LS_OK;
}

ls_status ls_run_plan(const ls_train_config *c, ls_compute *compute, const ls_run_groups *g, int64_t val_seqs,
                      ls_run_parts *out)
{
    const int64_t R = (int64_t)c->micro_batch * c->seq_len, pair = 2 * (int64_t)sizeof(double);
    const int64_t W = c->mesh.n[LS_AXIS_DP],
                  val_batches = ls_train_val_batches(c, val_seqs); /* equally many for each replica */
    ls_plan *p = &out->plan;
    LS_TRY(ls_run_plan_strategy(c, compute, g, out));
    if (c->fp8.on) LS_TRY(plan_fp8(c, g, out));
    LS_TRY(plan_acts(c, g, out));
    ls_run_rows *r = &out->row;
    /* on a device all micro-batches of a step are in flight at once */
    const int n_slot = out->schedule || !compute->device ? 1 : c->grad_accum;
    p->device = compute->device;
    int64_t blocks = 0; /* of the norm, in the largest unit */
    for (int u = 0; u < out->model->n_unit; u++)
        blocks = LS_MAX(blocks, (out->model->unit[u].n_pad + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK);
    LS_TRY(ls_input_plan(&out->input, compute, R, n_slot, p));
    r->norm = ls_plan_add_host(p, LS_PART_WORK, blocks * (int64_t)sizeof(double), "gradient norm, blocks of one unit");
    r->micro_loss = ls_plan_add_host(p, LS_PART_WORK, (int64_t)c->grad_accum * c->mesh.n[LS_AXIS_DP] * pair, "losses");
    r->val_loss = ls_plan_add_host(p, LS_PART_WORK, (val_batches + W - 1) / W * W * pair, "validation losses");
    r->fp8 = !c->fp8.on ? -1
                        : ls_plan_add_host(p, LS_PART_WORK,
                                           out->model->fp8->history.n * c->mesh.world * (int64_t)sizeof(float),
                                           "fp8 magnitudes of all workers");
    r->copy = -1;
    return c->save_async ? plan_copy(out) : LS_OK;
}

void ls_run_parts_fini(ls_run_parts *p)
{
    ls_input_fini(&p->input);
    ls_strategy_destroy(&p->strategy);
    ls_acts_destroy(&p->acts);
    ls_pipe_destroy(&p->pipe);
    ls_schedule_destroy(&p->schedule);
    ls_model_destroy(&p->model);
    ls_plan_fini(&p->plan);
}
