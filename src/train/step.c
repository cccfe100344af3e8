/* step.c - one optimizer step, and validation.
 *
 *   for each micro-batch   data → forward (loss and the classifier's gradient) → backward, gradients summed in the tree
 *   fold the tied embedding → norm over fixed blocks → clip → AdamW on every unit
 *
 * The leaves of a step are the micro-batches of all workers; the samples of leaf g of step s are positions (s*G + g)*B … of the
 * epoch. Losses are added in the order of leaves, so a run reports the same numbers on any number of workers. */
#include "train/trainer.h"

#include "core/clock.h"
#include "core/rng.h"
#include "core/stop.h"

#include <math.h>

/* One worker can stop before any unit; several stop where all of them look (agree_to_stop). */
static ls_status look_for_stop(void *ctx, int u, ls_pass pass)
{
    const ls_trainer *t = ctx;
    (void)u, (void)pass;
    return ls_comm_size(t->comm) == 1 && ls_stop_requested() ? ls_fail(LS_E_STOPPED, "signal %d", ls_stop_signal())
                                                             : LS_OK;
}

static ls_status agree_to_stop(ls_trainer *t)
{
    int stop = 0;
    if (ls_comm_size(t->comm) == 1) return LS_OK;
    LS_TRY(ls_agree(t->comm, ls_stop_requested(), LS_SITE, &stop));
    return stop ? ls_fail(LS_E_STOPPED, "a worker was asked to stop") : LS_OK;
}

static ls_status grad_ready(void *ctx, int u)
{
    return ls_strategy_grad_ready(((ls_trainer *)ctx)->strategy, u);
}

/* Everyone gets everyone's (loss, rows) pairs, n of each worker, and adds them in the order of leaves: one sum on any layout. */
static ls_status sum_losses(ls_trainer *t, double *pairs, int64_t n, double *loss, double *counted)
{
    const int64_t W = ls_comm_size(t->comm), r = ls_comm_rank(t->comm);
    LS_TRY(ls_all_gather(t->comm, (ls_view){pairs, 2 * n * W, LS_F64}, (ls_view){pairs + 2 * n * r, 2 * n, LS_F64},
                         LS_SITE, NULL));
    *loss = *counted = 0;
    for (int64_t i = 0; i < n * W; i++) {
        *loss += pairs[2 * i];
        *counted += pairs[2 * i + 1];
    }
    return LS_OK;
}

/* Sum of squares of n elements: block sums in order. Not finite when an element is not. */
static ls_status sum_squares(ls_trainer *t, const void *x, int64_t n, double *sum)
{
    LS_TRY(t->compute.ops->sumsq(&t->compute, t->norm_block, x, n, LS_NORM_BLOCK));
    for (int64_t i = 0; i < (n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK; i++) *sum += t->norm_block[i];
    return LS_OK;
}

/* Names the first tensor with a NaN or infinity, parameters before gradients. */
static ls_status numbers_failed(ls_trainer *t, const char *what, double value, bool gradients)
{
    ls_model *m = t->model;
    for (int pass = 0; pass < (gradients ? 2 : 1); pass++) {
        for (int u = 0; u < m->n_unit; u++) {
            const ls_unit *unit = &m->unit[u];
            for (int k = 0; k < unit->n_tensor; k++) {
                const ls_tensor *x = &unit->tensor[k];
                double sum = 0;
                LS_TRY(sum_squares(t, ls_at(&t->compute, pass ? unit->grad : unit->param, x->offset), x->n, &sum));
                if (isfinite(sum)) continue;
                return ls_fail(
                    LS_E_NUMERIC,
                    "step %lld: %s is %g; %s %s holds a NaN or an infinity (a lower --lr, warm-up or --clip may help)",
                    (long long)t->state.step + 1, what, value, pass ? "the gradient of" : "the parameter", x->name);
            }
        }
    }
    return ls_fail(LS_E_NUMERIC,
                   "step %lld: %s is %g, while every parameter%s is finite (a lower --lr, warm-up or --clip may help)",
                   (long long)t->state.step + 1, what, value, gradients ? " and gradient" : "");
}

static ls_status optimizer_pass(ls_trainer *t, double lr, double grad_scale)
{
    const ls_train_config *c = t->cfg;
    const double k = (double)(t->state.step + 1);
    ls_adamw h = {.lr = lr,
                  .beta1 = c->beta1,
                  .beta2 = c->beta2,
                  .eps = c->eps,
                  .weight_decay = c->weight_decay,
                  .bias1 = 1,
                  .bias2 = 1,
                  .grad_scale = grad_scale,
                  .coupled = c->coupled};
    if (c->bias_correction) {
        h.bias1 = 1 - pow(c->beta1, k);
        h.bias2 = 1 - pow(c->beta2, k);
    }
    for (int u = 0; u < t->model->n_unit; u++) {
        ls_unit *unit = &t->model->unit[u];
        for (int i = 0; i < unit->n_tensor; i++) {
            const ls_tensor *x = &unit->tensor[i];
            h.weight_decay = c->decay_matrices_only && !x->matrix ? 0 : c->weight_decay;
            LS_TRY(t->compute.ops->adamw(
                &t->compute, ls_at(&t->compute, unit->param, x->offset), ls_at(&t->compute, unit->grad, x->offset),
                ls_at(&t->compute, unit->m, x->offset), ls_at(&t->compute, unit->v, x->offset), x->n, &h));
        }
    }
    return LS_OK;
}

ls_status ls_trainer_step(ls_trainer *t, ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    ls_run_state *s = &t->state;
    const ls_hooks hooks = {.ctx = t, .acquire = look_for_stop, .grad_ready = grad_ready};
    const int64_t B = c->micro_batch, T = c->seq_len, M = c->grad_accum, G = M * ls_comm_size(t->comm);
    const bool updates = ls_strategy_updates(t->strategy);
    const double begin = ls_now();
    *r = (ls_step_result){0};
    LS_TRY(agree_to_stop(t));

    for (int m = 0; m < M; m++) {
        const int64_t micro = s->epoch_step * M + m, leaf = ls_strategy_leaf(t->strategy, m);
        const double t0 = ls_now();
        LS_TRY(ls_tokens_batch(&t->train, c->seed, s->epoch, (s->epoch_step * G + leaf) * B, B, t->ids, t->target));
        const double t1 = ls_now();
        ls_micro mb = {.ids = t->ids,
                       .target = t->target,
                       .B = B,
                       .T = T,
                       .train = true,
                       .dloss = 1.0 / (double)(B * T * G),
                       .drop_key = ls_rng_key(c->seed, LS_RNG_DROPOUT, (uint64_t)s->step, (uint64_t)leaf)};
        ls_strategy_begin(t->strategy, m);
        LS_TRY(ls_walk_fwd(t->model, t->acts, &mb, &hooks, 0, t->model->n_unit));
        const double t2 = ls_now();
        if (!isfinite(mb.loss_sum)) return numbers_failed(t, "the loss", mb.loss_sum, false);
        LS_TRY(ls_walk_bwd(t->model, t->acts, &mb, &hooks, 0, t->model->n_unit));
        const double t3 = ls_now();
        t->leaf_loss[2 * leaf] = mb.loss_sum;
        t->leaf_loss[2 * leaf + 1] = (double)mb.n_counted;
        r->t_data += t1 - t0;
        r->t_forward += t2 - t1;
        r->t_backward += t3 - t2;
        if (ls_step_sampled(micro, c->timing_warmup_steps, c->timing_sample_every)) {
            t->sample_data[t->n_sample] = t1 - t0;
            t->sample_step[t->n_sample++] = t3 - t1;
        }
    }
    const double t4 = ls_now();
    double loss_sum = 0, counted = 0, squares = 0;
    LS_TRY(sum_losses(t, t->leaf_loss, M, &loss_sum, &counted));
    LS_TRY(ls_strategy_step_due(t->strategy));
    for (int u = 0; updates && u < t->model->n_unit; u++)
        LS_TRY(sum_squares(t, t->model->unit[u].grad, t->model->unit[u].n_pad, &squares));
    r->grad_norm = sqrt(squares);
    r->loss = counted > 0 ? loss_sum / counted : 0;
    r->t_reduce = ls_now() - t4;
    if (!isfinite(r->grad_norm)) return numbers_failed(t, "the gradient norm", r->grad_norm, true);

    const double t5 = ls_now();
    LS_TRY(ls_ckpt_wait(t->writer)); /* it reads the parameters that we are about to change */
    const double t6 = ls_now();
    r->t_wait = t6 - t5;
    r->lr = ls_lr_at(&c->lr, s->step + 1);
    const double scale = c->clip > 0 ? fmin(1.0, c->clip / (r->grad_norm + 1e-6)) : 1.0;
    if (updates) LS_TRY(optimizer_pass(t, r->lr, scale));
    LS_TRY(ls_strategy_step_done(t->strategy));
    r->t_optimizer = ls_now() - t6;
    /* a sampled micro step that ends an update includes it */
    if (ls_step_sampled(s->epoch_step * M + M - 1, c->timing_warmup_steps, c->timing_sample_every))
        t->sample_step[t->n_sample - 1] += r->t_reduce + r->t_optimizer;

    s->step++;
    s->epoch_step++;
    s->loss_sum += loss_sum;
    s->tokens += B * T * G;
    r->t_total = ls_now() - begin;
    return LS_OK;
}

/* File order; worker r takes the batches r, r + W, …; the last partial batch is dropped. */
ls_status ls_trainer_validate(ls_trainer *t, double *loss, int64_t *n_batch)
{
    const ls_train_config *c = t->cfg;
    const int64_t B = c->micro_batch, W = ls_comm_size(t->comm), rank = ls_comm_rank(t->comm);
    const ls_hooks hooks = {.ctx = t, .acquire = look_for_stop};
    int64_t n = t->val.n_seq / B;
    if (c->max_val_steps >= 0 && n > c->max_val_steps * W) n = c->max_val_steps * W;
    const int64_t turns = (n + W - 1) / W;
    LS_TRY(agree_to_stop(t));
    for (int64_t k = 0; k < turns; k++) {
        double *pair = t->val_loss + 2 * (rank * turns + k);
        const int64_t i = k * W + rank;
        pair[0] = pair[1] = 0;
        if (i >= n) continue;
        for (int64_t b = 0; b < B; b++)
            LS_TRY(ls_tokens_sequence(&t->val, i * B + b, t->ids + b * c->seq_len, t->target + b * c->seq_len));
        ls_micro mb = {.ids = t->ids, .target = t->target, .B = B, .T = c->seq_len};
        LS_TRY(ls_walk_fwd(t->model, t->acts, &mb, &hooks, 0, t->model->n_unit));
        pair[0] = mb.loss_sum;
        pair[1] = (double)mb.n_counted;
    }
    *n_batch = n;
    *loss = 0;
    if (!turns) return LS_OK;
    LS_TRY(ls_all_gather(t->comm, (ls_view){t->val_loss, 2 * turns * W, LS_F64},
                         (ls_view){t->val_loss + 2 * rank * turns, 2 * turns, LS_F64}, LS_SITE, NULL));
    double sum = 0, counted = 0; /* in the order of batches, as one worker adds them */
    for (int64_t i = 0; i < n; i++) {
        const double *pair = t->val_loss + 2 * (i % W * turns + i / W);
        sum += pair[0];
        counted += pair[1];
    }
    *loss = counted > 0 ? sum / counted : 0;
    return LS_OK;
}
