#include "train/burn.h"

#include "core/clock.h"
#include "core/hash.h"
#include "core/inject.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/stop.h"
#include "train/plan_run.h"

#include <math.h>
#include <string.h>

enum { SEED = 20, MOST_RESULTS = 16 };

typedef struct burn {
    ls_compute compute;
    ls_train_config cfg;
    ls_comm *self;
    ls_stages stages;
    ls_run_parts parts;
    ls_piece *piece; /* parameters and moments */
    int n_piece, step;
    double *loss;
    uint64_t *hash; /* with a device in pinned memory */
} burn;

/* A hash that rounds have given. */
typedef struct outcome {
    uint64_t hash;
    int64_t n, first;
    double loss[LS_BURN_STEPS];
} outcome;

static ls_train_config config_of(bool large)
{
    ls_train_config c = {.micro_batch = large ? 8 : 2,
                         .seq_len = large ? 512 : 64,
                         .grad_accum = 1,
                         .mesh = {{1, 1, 1}, 1},
                         .strategy = "single",
                         .bucket = 1 << 20,
                         .gather_bucket = 1 << 20,
                         .deterministic = true,
                         .max_val_steps = 0,
                         .seed = SEED};
    c.model = (ls_model_config){.name = "burn",
                                .n_layer = large ? 4 : 2,
                                .n_head = large ? 12 : 4,
                                .n_embd = large ? 768 : 128,
                                .n_ctx = c.seq_len,
                                .vocab_size = large ? 4096 : 512,
                                .embd_pdrop = 0.1,
                                .attn_pdrop = 0.1,
                                .resid_pdrop = 0.1,
                                .ln_eps = 1e-5,
                                .init_range = 0.02,
                                .eos_id = -1};
    ls_model_config_set_variant(&c.model, LS_VARIANT_HF);
    return c;
}

static ls_status make_hash(burn *b)
{
    const ls_device *d = b->compute.device;
    void *p = NULL;
    if (d) LS_TRY(d->alloc_host(d->ctx, sizeof *b->hash, &p));
    else p = ls_alloc(sizeof *b->hash);
    b->hash = p;
    return p ? LS_OK : ls_nomem(sizeof *b->hash, "a hash");
}

static ls_status set_up(burn *b, const ls_burn_opts *o)
{
    ls_run_parts *p = &b->parts;
    ls_device_info info = {0};
    LS_TRY(ls_compute_open(&b->compute, o->compute, &o->open, o->threads));
    if (b->compute.device) LS_TRY(b->compute.device->info(b->compute.device->ctx, &info));
    b->cfg = config_of(o->large && info.multiprocessors >= 16);
    LS_TRY(ls_comm_self(&b->self));
    p->stages = &b->stages;
    LS_TRY(ls_run_plan(&b->cfg, &b->compute, &(ls_run_groups){.dp = b->self}, 0, p));
    LS_TRY(ls_plan_layout(&p->plan));
    LS_TRY(ls_plan_alloc(&p->plan, false));
    LS_TRY(ls_strategy_bind(p->strategy, &p->plan));
    ls_acts_bind(p->acts, p->model, &p->plan);
    ls_input_bind(&p->input, &p->plan);
    b->loss = ls_plan_at(&p->plan, p->row.micro_loss);
    const size_t n = 3 * (size_t)p->model->n_unit;
    b->piece = ls_alloc(n * sizeof *b->piece);
    if (!b->piece) return ls_nomem(n * sizeof *b->piece, "the rounds");
    LS_TRY(make_hash(b));
    b->n_piece = ls_strategy_pieces(p->strategy, false, b->piece);
    return LS_OK;
}

static void tear_down(burn *b)
{
    const ls_device *d = b->compute.device;
    ls_free(b->piece);
    if (d) d->release_host(d->ctx, b->hash);
    else ls_free(b->hash);
    ls_run_parts_fini(&b->parts);
    ls_comm_destroy(&b->self);
    ls_compute_close(&b->compute);
}

static size_t piece_bytes(const burn *b, const ls_piece *p)
{
    return (size_t)p->n * ls_dtype_nbytes(b->compute.ops->wide);
}

/* The initial weights, and moments of 0. */
static ls_status start_again(burn *b)
{
    for (int i = 0; i < b->n_piece; i++) {
        const ls_piece *p = &b->piece[i];
        if (p->what == LS_FLAT_PARAM) LS_TRY(ls_model_init_piece(b->parts.model, SEED, p));
        else LS_TRY(b->compute.ops->zero(&b->compute, p->data, piece_bytes(b, p)));
    }
    LS_TRY(ls_strategy_publish(b->parts.strategy, SEED, 0));
    for (int i = 0; i < b->n_piece && ls_inject_on && !b->compute.device; i++)
        if (b->piece[i].what == LS_FLAT_PARAM)
            ls_inject_flip(LS_FLIP_PARAM, b->piece[i].unit, b->piece[i].data, b->piece[i].n, sizeof(float));
    return LS_OK;
}

static ls_status acquire(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_acquire(ctx, u, pass);
}

static ls_status grad_ready(void *ctx, int u)
{
    return ls_strategy_grad_ready(ctx, u);
}

static void hyper(void *ctx, int u, const ls_own *o, ls_adamw *h)
{
    const burn *b = ctx;
    const double k = b->step + 1;
    *h = (ls_adamw){.lr = 1e-3,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .eps = 1e-8,
                    .weight_decay = 0.1,
                    .bias1 = 1 - pow(0.9, k),
                    .bias2 = 1 - pow(0.95, k),
                    .grad_scale = 1,
                    .gains = ls_unit_gains(&b->parts.model->unit[u], o->first, o->n),
                    .round = ls_strategy_rounding(SEED, b->step + 1, u, o->first)};
}

static ls_status one_step(burn *b)
{
    ls_run_parts *p = &b->parts;
    const int64_t B = b->cfg.micro_batch, T = b->cfg.seq_len;
    const ls_hooks hooks = {.ctx = p->strategy, .acquire = acquire, .grad_ready = grad_ready};
    const uint64_t key = ls_rng_key(SEED, LS_RNG_TEST, (uint64_t)b->step, 0);
    ls_micro mb = {.B = B, .T = T, .train = true, .dloss = 1.0 / (double)(B * T), .drop_key = key, .loss = b->loss};
    int32_t *ids, *target;
    LS_TRY(ls_input_open(&p->input, 0, &ids, &target));
    for (int64_t i = 0; i < B * T; i++) {
        ids[i] = (int32_t)(ls_rng_u64(key, (uint64_t)i) % (uint64_t)b->cfg.model.vocab_size);
        target[i] = (int32_t)(ls_rng_u64(key, (uint64_t)(i + 1)) % (uint64_t)b->cfg.model.vocab_size);
    }
    LS_TRY(ls_input_send(&p->input, 0, &mb));
    ls_strategy_begin(p->strategy, 0);
    LS_TRY(ls_walk(p->model, p->acts, &mb, &hooks, LS_FWD, 0, p->model->n_unit));
    LS_TRY(ls_walk(p->model, p->acts, &mb, &hooks, LS_BWD, 0, p->model->n_unit));
    LS_TRY(ls_input_used(&p->input, 0));
    LS_TRY(ls_strategy_step_due(p->strategy));
    LS_TRY(ls_strategy_update(p->strategy, hyper, b));
    LS_TRY(ls_strategy_step_done(p->strategy));
    return ls_compute_sync(&b->compute);
}

static ls_status one_round(burn *b, outcome *out)
{
    LS_TRY(start_again(b));
    for (b->step = 0; b->step < LS_BURN_STEPS; b->step++) {
        LS_TRY(one_step(b));
        out->loss[b->step] = *b->loss / (b->cfg.micro_batch * b->cfg.seq_len);
    }
    *b->hash = ls_xxh64(out->loss, sizeof out->loss);
    for (int i = 0; i < b->n_piece; i++)
        LS_TRY(ls_compute_hash(&b->compute, b->hash, b->piece[i].data, piece_bytes(b, &b->piece[i]), true));
    LS_TRY(ls_compute_sync(&b->compute));
    out->hash = *b->hash;
    return LS_OK;
}

/* Counts a round among those with the same hash; the last place is for all hashes that have none. */
static void count(outcome *all, int *n, const outcome *round, int64_t number)
{
    int i = 0;
    while (i < *n && all[i].hash != round->hash) i++;
    if (i == *n && *n < MOST_RESULTS) all[(*n)++] = (outcome){.hash = round->hash, .first = number};
    if (i == MOST_RESULTS) i--;
    all[i].n++;
    memcpy(all[i].loss, round->loss, sizeof round->loss);
}

static void sum_up(const outcome *all, int n, ls_burn_result *r)
{
    int most = 0;
    for (int i = 1; i < n; i++)
        if (all[i].n > all[most].n) most = i;
    r->hash = all[most].hash;
    memcpy(r->loss, all[most].loss, sizeof r->loss);
    r->n_wrong = r->n_round - all[most].n;
    for (int i = 0; i < n; i++)
        if (i != most && (!r->first_wrong || all[i].first < r->first_wrong)) r->first_wrong = all[i].first;
}

static ls_status rounds(burn *b, const ls_burn_opts *o, ls_burn_result *r)
{
    outcome all[MOST_RESULTS] = {0};
    int n = 0;
    const double begin = ls_now();
    *r = (ls_burn_result){0};
    while (r->n_round < (o->seconds > 0 ? 2 : 1) || ls_now() - begin < o->seconds) {
        outcome round = {0};
        if (ls_stop_requested()) return ls_fail(LS_E_STOPPED, "stopped after %lld rounds", (long long)r->n_round);
        r->n_round++;
        ls_inject_step(r->n_round);
        LS_TRY(one_round(b, &round));
        count(all, &n, &round, r->n_round);
        if (o->tick) o->tick(o->ctx, r->n_round, ls_now() - begin);
    }
    sum_up(all, n, r);
    return LS_OK;
}

ls_status ls_burn(const ls_burn_opts *o, ls_burn_result *r)
{
    burn b = {0};
    ls_status st = set_up(&b, o);
    if (st == LS_OK) st = rounds(&b, o, r);
    tear_down(&b);
    return st;
}
