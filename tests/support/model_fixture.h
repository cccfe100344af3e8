/* model_fixture.h - a small model with memory, for tests of src/model and above. */
#ifndef LS_TESTS_MODEL_FIXTURE_H
#define LS_TESTS_MODEL_FIXTURE_H

#include "core/mem.h"
#include "core/rng.h"
#include "model/model_impl.h"
#include "parallel/gradtree.h"

#include <stdlib.h>

typedef struct fixture {
    ls_compute compute;
    ls_model *model;
    ls_plan plan;
    ls_acts *acts;
    ls_gradtree *tree;
    int32_t *ids, *target;
    int64_t B, T;
} fixture;

static inline ls_model_config small_config(ls_variant variant, double pdrop)
{
    ls_model_config c = {.name = "test",
                         .n_layer = 2,
                         .n_head = 2,
                         .n_embd = 8,
                         .n_ctx = 12,
                         .vocab_size = 19,
                         .ln_eps = 1e-5,
                         .init_range = 0.3,
                         .embd_pdrop = pdrop,
                         .attn_pdrop = pdrop,
                         .resid_pdrop = pdrop,
                         .eos_id = -1};
    ls_model_config_set_variant(&c, variant);
    return c;
}

static ls_gradtree_how fixture_how; /* for models that are opened next */

/* Random ids; every fifth target is not counted. */
static inline void fixture_batch(fixture *f, uint64_t micro)
{
    const uint64_t key = ls_rng_key(77, LS_RNG_TEST, micro, 0);
    const uint64_t V = (uint64_t)f->model->cfg.vocab_size;
    for (int64_t i = 0; i < f->B * f->T; i++) {
        f->ids[i] = (int32_t)(ls_rng_u64(key, (uint64_t)i) % V);
        f->target[i] = i % 5 == 4 ? -1 : (int32_t)(ls_rng_u64(key, (uint64_t)i + 1000) % V);
    }
}

static inline ls_status fixture_open_shard(fixture *f, const ls_model_config *cfg, const char *backend, ls_dtype dt,
                                           int threads, int64_t B, int64_t T, int n_micro, bool recompute, int64_t pad,
                                           ls_shard shard)
{
    *f = (fixture){.B = B, .T = T};
    LS_TRY(ls_compute_open(&f->compute, backend, &(ls_compute_open_opts){.dtype = dt}, threads));
    LS_TRY(ls_model_create_shard(&f->model, cfg, &f->compute, pad, shard));
    const int64_t esize = (int64_t)ls_dtype_nbytes(dt);
    int rows[3][64];
    for (int u = 0; u < f->model->n_unit; u++)
        for (int k = 0; k < 3; k++)
            rows[k][u] = ls_plan_add(&f->plan, k ? LS_PART_OPT : LS_PART_PARAM, f->model->unit[u].n_pad * esize,
                                     LS_PLAN_ALWAYS, "unit %d", u);
    LS_TRY(ls_gradtree_plan(&f->tree, f->model, n_micro, NULL, false, fixture_how, &f->plan));
    LS_TRY(ls_acts_plan(&f->acts, f->model, &(ls_acts_opts){.B = B, .T = T, .train = true, .recompute = recompute},
                        &f->plan));
    int ids = ls_plan_add(&f->plan, LS_PART_WORK, B * T * 4, LS_PLAN_ALWAYS, "ids");
    int target = ls_plan_add(&f->plan, LS_PART_WORK, B * T * 4, LS_PLAN_ALWAYS, "target");
    LS_TRY(ls_plan_layout(&f->plan));
    LS_TRY(ls_plan_alloc(&f->plan, false));
    for (int u = 0; u < f->model->n_unit; u++) {
        f->model->unit[u].param = ls_plan_at(&f->plan, rows[0][u]);
        f->model->unit[u].m = ls_plan_at(&f->plan, rows[1][u]);
        f->model->unit[u].v = ls_plan_at(&f->plan, rows[2][u]);
    }
    ls_gradtree_bind(f->tree, &f->plan);
    ls_acts_bind(f->acts, f->model, &f->plan);
    f->ids = ls_plan_at(&f->plan, ids);
    f->target = ls_plan_at(&f->plan, target);
    ls_model_init(f->model, 5);
    return LS_OK;
}

static inline ls_status fixture_open(fixture *f, const ls_model_config *cfg, const char *backend, ls_dtype dt,
                                     int threads, int64_t B, int64_t T, int n_micro, bool recompute, int64_t pad)
{
    return fixture_open_shard(f, cfg, backend, dt, threads, B, T, n_micro, recompute, pad, (ls_shard){.size = 1});
}

static inline void fixture_close(fixture *f)
{
    ls_gradtree_destroy(&f->tree);
    ls_acts_destroy(&f->acts);
    ls_model_destroy(&f->model);
    ls_plan_fini(&f->plan);
}

/* The grad_ready hook: carries unit u's gradient of this micro-batch; after the last one, grad is the sum. */
static inline ls_status fixture_ready(void *ctx, int u)
{
    ls_gradtree *t = ctx;
    LS_TRY(ls_gradtree_add(t, u, t->micro, t->model->unit[u].grad));
    if (t->micro == t->n_micro - 1) t->model->unit[u].grad = ls_gradtree_sum(t, u);
    return LS_OK;
}

/* Adds head's gradient of a tied token embedding to embed's, as a strategy does. */
static inline ls_status fixture_fold_tied(ls_model *m)
{
    if (!m->cfg.tied) return LS_OK;
    void *dwte = model_grad(m, &m->unit[0], EMBED_WTE);
    return m->compute->ops->add(m->compute, dwte, dwte, model_tied_grad(m), m->unit[0].tensor[EMBED_WTE].n);
}

/* Forward and, with `train`, backward of one of n_micro micro-batches; the loss is the mean over counted rows. */
static inline ls_status fixture_pass(fixture *f, int micro, int n_micro, bool train, double *loss)
{
    fixture_batch(f, (uint64_t)micro);
    int64_t counted = 0;
    for (int64_t i = 0; i < f->B * f->T; i++) counted += f->target[i] >= 0;
    ls_micro mb = {.ids = f->ids,
                   .target = f->target,
                   .B = f->B,
                   .T = f->T,
                   .train = true,
                   .drop_key = 1234 + (uint64_t)micro,
                   .dloss = 1.0 / (double)(counted * n_micro)};
    const ls_hooks h = {.ctx = f->tree, .grad_ready = fixture_ready};
    ls_gradtree_begin(f->tree, micro);
    LS_TRY(ls_walk_fwd(f->model, f->acts, &mb, NULL, 0, f->model->n_unit));
    *loss = mb.loss_sum / (double)counted;
    if (train) LS_TRY(ls_walk_bwd(f->model, f->acts, &mb, &h, 0, f->model->n_unit));
    return LS_OK;
}

#endif
