/* validate.c - the mean loss over the validation sequences. */
#include "train/train_impl.h"

#include "core/clock.h"
#include "core/inject.h"
#include "core/log.h"

#include <math.h>

#define PART_MS 1000 /* about the time of a part, between which several workers look for a request to stop */

/* The validation batch of this replica in turn k: in the order of the file, replica r takes the batches r, r + W, … In the last turn some
 * replicas have none left; they compute the last batch again without counting it, since parameters may have to be gathered from all. */
typedef struct val_turn {
    ls_trainer *t;
    int64_t n;     /* batches in all                    */
    int64_t first; /* turn of this part, which k adds to */
} val_turn;

static ls_status load_val(void *ctx, int k, int32_t *ids, int32_t *target, ls_micro *mb)
{
    const val_turn *v = ctx;
    ls_trainer *t = v->t;
    const int64_t B = t->cfg->micro_batch, T = t->cfg->seq_len;
    const int64_t i = (v->first + k) * ls_comm_size(t->dp) + ls_comm_rank(t->dp), batch = i < v->n ? i : v->n - 1;
    (void)mb;
    if (!ids && !target) return LS_OK;
    for (int64_t b = 0; b < B; b++) {
        const int64_t s = batch * B + b, last = t->val.n_seq - 1;
        int32_t *to = (target ? target : t->target) + b * T;
        LS_TRY(ls_tokens_sequence(&t->val, s < last ? s : last, (ids ? ids : t->ids) + b * T, to));
        for (int64_t p = 0; s > last && p < T; p++) to[p] = -1; /* fills the only batch and does not count */
    }
    return LS_OK;
}

static ls_status forward_one(val_turn *v, int k, const ls_hooks *hooks, double pair[2])
{
    ls_trainer *t = v->t;
    const int slot = k % t->input.n_slot;
    ls_micro mb = {.B = t->cfg->micro_batch, .T = t->cfg->seq_len, .loss = &pair[0]};
    int32_t *ids, *target;
    LS_TRY(ls_input_open(&t->input, slot, &ids, &target));
    LS_TRY(load_val(v, k, ids, target, &mb));
    LS_TRY(ls_input_send(&t->input, slot, &mb));
    LS_TRY(ls_walk(t->model, t->acts, &mb, hooks, LS_FWD, 0, t->model->n_unit));
    LS_TRY(ls_input_used(&t->input, slot));
    pair[1] = (double)mb.n_counted;
    return LS_OK;
}

static ls_status forward_part(val_turn *v, int64_t n, double (*pair)[2])
{
    ls_trainer *t = v->t;
    const ls_hooks hooks = {.ctx = t, .acquire = train_acquire, .release = train_release};
    if (t->pipe) return ls_pipe_forward(t->pipe, t->strategy, &hooks, (int)n, load_val, v, pair);
    for (int k = 0; k < n; k++) LS_TRY(forward_one(v, k, &hooks, pair[k]));
    return LS_OK;
}

/* Turns of the next part after one of `n` turns that took `ms`; `left` at most. */
static int64_t next_part(int64_t n, int ms, int64_t left)
{
    int64_t next = 2 * n;
    if (ms > 0 && n * PART_MS / ms < next) next = n * PART_MS / ms;
    if (next < 1) next = 1;
    return next < left ? next : left;
}

/* All workers choose the next part from the time of the slowest, so they stop at the same turn. Results do not depend on the parts. */
static ls_status forward(val_turn *v, int64_t turns, double (*pair)[2])
{
    ls_trainer *t = v->t;
    LS_TRY(ls_phase_begin(t, LS_PHASE_VAL_FORWARD, -1));
    ls_strategy_begin(t->strategy, -1);
    int ms = 0;
    for (int64_t n = 0; v->first < turns; v->first += n) {
        LS_TRY(train_agree_to_stop(t, ms, &ms));
        train_show_validation(t, v->first, turns);
        n = next_part(n, ms, turns - v->first);
        const double begin = ls_now();
        LS_TRY(forward_part(v, n, pair + v->first));
        ms = (int)fmin(1e3 * (ls_now() - begin), 1e9);
    }
    LS_TRY(ls_compute_sync(&t->compute));
    return ls_phase_end(t, LS_PHASE_VAL_FORWARD, -1);
}

static ls_status validate(ls_trainer *t, double *loss, int64_t *n_batch)
{
    const ls_train_config *c = t->cfg;
    const int64_t W = ls_comm_size(t->dp);
    int64_t n = ls_train_val_batches(c, t->val.n_seq);
    if (c->max_val_steps >= 0 && n > c->max_val_steps * W) n = c->max_val_steps * W;
    const int64_t turns = (n + W - 1) / W;
    double sum[2];
    if (ls_inject_on) ls_inject_phase(LS_FAULT_VALIDATE);
    LS_TRY(forward(&(val_turn){t, n, 0}, turns, (double(*)[2])(t->val_loss + 2 * ls_comm_rank(t->dp) * turns)));
    *n_batch = n;
    *loss = 0;
    if (!turns) return LS_OK;
    LS_TRY(ls_phase_begin(t, LS_PHASE_VAL_LOSS, -1));
    LS_TRY(train_sum_losses(t, t->val_loss, turns, n, true, sum));
    *loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
    ls_debug("train", "validation: loss %.4f over %lld batches", *loss, (long long)n);
    return ls_phase_end(t, LS_PHASE_VAL_LOSS, -1);
}

ls_status ls_trainer_validate(ls_trainer *t, double *loss, int64_t *n_batch)
{
    return train_own_failure(t, validate(t, loss, n_batch));
}
