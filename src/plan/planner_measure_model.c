/* planner_measure_model.c - the small model that is timed: planned, allocated and initialized as in the trainer, on CPU or GPU. */
#include "plan/planner_measure_impl.h"

#include "core/mem.h"
#include "core/rng.h"
#include "parallel/tensor.h"

static ls_status acquire(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_acquire(((planner_bench *)ctx)->parts.strategy, u, pass);
}

void planner_bench_close(planner_bench *b)
{
    if (b->compute.ops) (void)ls_compute_sync(&b->compute);
    ls_acts_destroy(&b->split);
    ls_run_parts_fini(&b->parts);
    ls_comm_destroy(&b->tensor);
    ls_comm_destroy(&b->self);
}

/* The rank of this worker, and the workers that share its layers. */
static ls_status groups(planner_bench *b, int shards, ls_run_groups *g)
{
    const int rank = ls_comm_rank(b->comm);
    LS_TRY(ls_comm_self(&b->self));
    if (shards > 1) LS_TRY(ls_comm_split(b->comm, rank / shards, rank % shards, &b->tensor));
    *g = (ls_run_groups){.at.at[LS_AXIS_TP] = rank % shards, .dp = b->self, .tp = b->tensor};
    return LS_OK;
}

static ls_status plan_bench(planner_bench *b, const ls_run_groups *g)
{
    ls_run_parts *p = &b->parts;
    const int64_t R = (int64_t)b->cfg.micro_batch * b->cfg.seq_len;
    const ls_acts_opts two = {.B = b->cfg.micro_batch,
                              .T = b->cfg.seq_len,
                              .train = true,
                              .pipe = true,
                              .split = true,
                              .keep_gelu = b->compute.device != NULL};
    LS_TRY(ls_run_plan(&b->cfg, &b->compute, g, 0, p));
    if (b->tensor) ls_tensor_join(p->model, b->tensor);
    LS_TRY(ls_acts_plan(&b->split, p->model, &two, &p->plan));
    b->d_row = ls_plan_add(&p->plan, LS_PART_ACT, R * b->cfg.model.n_embd * 4, LS_PLAN_ALWAYS, "d x");
    return ls_plan_layout(&p->plan);
}

/* As in the trainer: with several workers, memory is readable by peers. */
static ls_status take_memory(planner_bench *b)
{
    ls_plan *p = &b->parts.plan;
    p->n_copy = ls_comm_size(b->comm);
    LS_TRY(ls_plan_alloc(p, p->n_copy > 1));
    if (p->n_copy == 1) return LS_OK;
    void *memory = ls_comm_alloc(b->comm, (size_t)ls_plan_host_bytes(p));
    return memory ? ls_plan_take(p, memory) : ls_nomem(ls_plan_host_bytes(p), "the memory plan");
}

/* Random weights, also on a device: a device that multiplies zeros draws less power and runs faster. */
static ls_status fill(planner_bench *b)
{
    ls_run_parts *p = &b->parts;
    if (!b->compute.device) {
        ls_model_init(p->model, 1);
        return LS_OK;
    }
    ls_piece *piece = ls_alloc(3 * (size_t)p->model->n_unit * sizeof *piece);
    if (!piece) return ls_nomem(3 * (size_t)p->model->n_unit * sizeof *piece, "the parts of the model");
    const int n = ls_strategy_pieces(p->strategy, false, piece);
    ls_status st = LS_OK;
    for (int i = 0; i < n && st == LS_OK; i++)
        if (piece[i].what == LS_FLAT_PARAM) st = ls_model_init_piece(p->model, 1, &piece[i]);
    ls_free(piece);
    return st == LS_OK ? ls_strategy_publish(p->strategy) : st;
}

static ls_status make_input(planner_bench *b)
{
    ls_run_parts *p = &b->parts;
    const uint64_t R = (uint64_t)b->cfg.micro_batch * (uint64_t)b->cfg.seq_len, V = (uint64_t)b->cfg.model.vocab_size;
    int32_t *ids, *target;
    LS_TRY(ls_input_open(&p->input, 0, &ids, &target));
    for (uint64_t i = 0; i < R; i++) {
        ids[i] = (int32_t)(ls_rng_u64(1, i) % V);
        target[i] = (int32_t)(ls_rng_u64(2, i) % V);
    }
    b->mb = (ls_micro){.B = b->cfg.micro_batch,
                       .T = b->cfg.seq_len,
                       .train = true,
                       .loss = b->compute.device ? ls_plan_at(&p->plan, p->row.leaf_loss) : NULL,
                       .dloss = 1.0 / (double)R,
                       .drop_key = 7};
    return ls_input_send(&p->input, 0, &b->mb);
}

static ls_status bind(planner_bench *b)
{
    ls_run_parts *p = &b->parts;
    ls_strategy_bind(p->strategy, &p->plan);
    ls_acts_bind(b->split, p->model, &p->plan);
    ls_acts_bind(p->acts, p->model, &p->plan);
    b->split->da = ls_plan_at(&p->plan, b->d_row);
    ls_input_bind(&p->input, &p->plan);
    LS_TRY(make_input(b));
    LS_TRY(fill(b));
    ls_strategy_begin(p->strategy, 0);
    b->hooks = (ls_hooks){.ctx = b, .acquire = acquire};
    return LS_OK;
}

ls_status planner_bench_open(planner_bench *b, const ls_measure_opts *o, int micro, int shards, ls_comm *comm,
                             const ls_compute *compute)
{
    static uint64_t serial;
    ls_run_groups g;
    *b = (planner_bench){.comm = comm, .fastest = o->fastest, .serial = ++serial, .parts.stages = &b->stages};
    b->compute = *compute;
    b->cfg =
        (ls_train_config){.model = o->model,
                          .world_size = shards,
                          .seq_len = o->seq_len,
                          .micro_batch = micro,
                          .grad_accum = 1,
                          .global_batch = micro,
                          .compute = o->cuda ? "cuda" : "cpu",
                          .device = o->cuda ? "cuda" : "cpu",
                          .dtype = o->dtype,
                          .strategy = "single",
                          .mesh = {.n = {[LS_AXIS_DP] = 1, [LS_AXIS_PP] = 1, [LS_AXIS_TP] = shards}, .world = shards},
                          .interleave = 1,
                          .bucket = 1,
                          .gather_bucket = 1,
                          .deterministic = !o->no_deterministic};
    if (b->cfg.model.n_layer > PLANNER_LAYERS) b->cfg.model.n_layer = PLANNER_LAYERS;
    LS_TRY(groups(b, shards, &g));
    LS_TRY(plan_bench(b, &g));
    LS_TRY(take_memory(b));
    return bind(b);
}
