#include "train/audit.h"

#include "core/mem.h"
#include "core/minmax.h"
#include "core/rng.h"
#include "train/train_impl.h"

#include <stdio.h>
#include <string.h>

#define RARE 50 /* audits that should cost next to nothing: steps between them */

/* n hashes of each rank. Operations write those of this one: with a device into pinned memory, else where they are in `all`. */
typedef struct hashes {
    uint64_t *all, *mine;
    int64_t n;
} hashes;

struct ls_audit {
    ls_trainer *t;
    int n_unit, n_micro;                            /* units; micro-batches of a replica that are repeated */
    int first;                                      /* the first of them                                   */
    int low;                                        /* backward is repeated from the head down to this unit */
    int64_t step;                                   /* the newest one that was audited                     */
    bool runs;                                      /* the current step is                                 */
    enum { OF_STEP, BEFORE_SAVE, AFTER_SAVE } when; /* of a save: the state after `step`, which was applied */
    int64_t hashed_after;                           /* `then` has the state after this step; -1: of none   */
    hashes then, now;                               /* of states (parallel/audit.h)                        */
    hashes sums;                                    /* likewise: when they were complete, then when read   */
    hashes vote[LS_AUDIT_VOTES];                    /* of passes                                           */
    ls_audit_votes votes;                           /* the same                                            */
    uint64_t *repeats;                              /* where a pass that is repeated writes; NULL: none is */
    int repeated;                                   /* its replica                                         */
    void *pinned;                                   /* with a device                                       */
};

bool ls_audit_runs(const ls_audit *a)
{
    return a && a->runs;
}

bool ls_audit_compares(const ls_audit *a)
{
    return a && (a->runs || a->t->saving.held);
}

int64_t ls_audit_step(const ls_audit *a)
{
    return a->step;
}

const char *ls_audit_unit(const ls_model *m, int u, char buf[32])
{
    const ls_unit *unit = &m->unit[u];
    if (unit->kind == LS_UNIT_BLOCK) snprintf(buf, 32, "block %d", unit->layer);
    else snprintf(buf, 32, "%s", unit->kind == LS_UNIT_EMBED ? "embed" : "head");
    return buf;
}

/* The next n hashes of each rank, from those that *all and *mine have left. */
static hashes take(const ls_audit *a, int64_t n, uint64_t **all, uint64_t **mine)
{
    const ls_comm *c = a->t->comm;
    const hashes h = {.all = *all, .mine = *mine ? *mine : *all + ls_comm_rank(c) * n, .n = n};
    *all += ls_comm_size(c) * n;
    if (*mine) *mine += n;
    return h;
}

ls_status ls_audit_create(ls_audit **out, ls_trainer *t)
{
    const ls_device *d = t->compute.device;
    ls_audit *a = ls_alloc(sizeof *a);
    if (!a) return ls_nomem(sizeof *a, "the audit");
    *a = (ls_audit){
        .t = t, .n_unit = t->model->n_unit, .n_micro = t->cfg->audit_step ? t->cfg->grad_accum : 1, .hashed_after = -1};
    const int64_t n_state = (int64_t)LS_AUDIT_N_STATE * a->n_unit;
    const int64_t n_pass = (int64_t)a->n_micro * ls_audit_n_pass(a->n_unit);
    const int64_t n_sum = 2 * (int64_t)ls_gradtree_n_seal(t->strategy->tree);
    const int64_t nbytes = 8 * (2 * n_state + n_sum + LS_AUDIT_VOTES * n_pass), of_all = ls_comm_size(t->comm) * nbytes;
    uint64_t *all = ls_comm_alloc(t->comm, (size_t)of_all);
    ls_status st = all ? LS_OK : ls_nomem(of_all, "the hashes of audits");
    if (st == LS_OK && d) st = d->alloc_host(d->ctx, (size_t)nbytes, &a->pinned);
    if (st != LS_OK) {
        ls_audit_destroy(&a);
        return st;
    }
    uint64_t *mine = a->pinned;
    a->then = take(a, n_state, &all, &mine);
    a->now = take(a, n_state, &all, &mine);
    a->sums = take(a, n_sum, &all, &mine);
    for (int k = 0; k < LS_AUDIT_VOTES; k++) {
        a->vote[k] = take(a, n_pass, &all, &mine);
        a->votes.hash[k] = a->vote[k].all;
    }
    a->votes.n_unit = a->n_unit;
    a->votes.n_micro = a->n_micro;
    *out = a;
    return LS_OK;
}

void ls_audit_destroy(ls_audit **ap)
{
    ls_audit *a = *ap;
    if (!a) return;
    const ls_device *d = a->t->compute.device;
    if (a->pinned) d->release_host(d->ctx, a->pinned);
    ls_free(a);
    *ap = NULL;
}

/* ---- hashes ---- */

/* Of n elements; with `more`, of *out and of them. On a device it is known after the next gather. */
static ls_status hash(const ls_audit *a, const void *x, int64_t n, ls_dtype dt, uint64_t *out, bool more)
{
    return ls_compute_hash(&a->t->compute, out, x, (size_t)n * ls_dtype_nbytes(dt), more);
}

/* This worker's parameters of unit u as it computes with them: all, or its shard. */
static ls_status hash_params(const ls_audit *a, int u, uint64_t *out)
{
    const ls_trainer *t = a->t;
    const ls_strategy *s = t->strategy;
    const int64_t n = t->model->unit[u].n_pad;
    *out = 0;
    if (s->unit[u].role == LS_ROLE_AWAY) return LS_OK;
    const bool cut = s->ops->parts & LS_SHARD_PARAM;
    return hash(a, cut ? s->unit[u].part : t->model->unit[u].param, cut ? n / ls_comm_size(t->dp) : n,
                t->compute.ops->dtype, out, false);
}

/* Whether tensor-parallel shards have the tensors of a unit at different places in their flat buffers. */
static bool cut_unevenly(const ls_trainer *t, const ls_unit *unit)
{
    return unit->kind != LS_UNIT_BLOCK && t->model->cfg.vocab_size % ls_comm_size(t->tp);
}

/* Of these, what every tensor-parallel shard has. Parts of a unit, and stochastic rounding, depend on the place in the flat buffer. */
static ls_status hash_copies(const ls_audit *a, int u, uint64_t *out)
{
    const ls_trainer *t = a->t;
    const ls_strategy *s = t->strategy;
    const ls_unit *unit = &t->model->unit[u];
    *out = 0;
    if (!t->tp || s->unit[u].role == LS_ROLE_AWAY) return LS_OK;
    const bool cut = s->ops->parts & LS_SHARD_PARAM;
    if ((cut || t->cfg->stochastic) && cut_unevenly(t, unit)) return LS_OK;
    const int64_t n = cut ? unit->n_pad / ls_comm_size(t->dp) : unit->n_pad;
    const int64_t first = cut ? n * ls_comm_rank(t->dp) : 0;
    const void *at = cut ? s->unit[u].part : unit->param;
    for (int k = 0; k < unit->n_tensor; k++) {
        const ls_tensor_range r = ls_tensor_within(&unit->tensor[k], first, n);
        if (!unit->tensor[k].everywhere || r.from >= r.to) continue;
        LS_TRY(hash(a, ls_at(&t->compute, at, r.from - first), r.to - r.from, t->compute.ops->dtype, out, true));
    }
    return LS_OK;
}

static ls_status hash_optimizer(const ls_audit *a, int u, uint64_t *out)
{
    const ls_own o = ls_strategy_own(a->t->strategy, u);
    const ls_dtype wide = a->t->compute.ops->wide;
    *out = 0;
    if (!o.n) return LS_OK;
    LS_TRY(hash(a, o.m, o.n, wide, out, false));
    LS_TRY(hash(a, o.v, o.n, wide, out, true));
    return o.master == o.param ? LS_OK : hash(a, o.master, o.n, wide, out, true);
}

/* h->all is complete on every rank when this returns. */
static ls_status gather(const ls_audit *a, const hashes *h)
{
    ls_comm *c = a->t->comm;
    uint64_t *part = h->all + ls_comm_rank(c) * h->n;
    LS_TRY(ls_compute_sync(&a->t->compute));
    if (part != h->mine) memcpy(part, h->mine, (size_t)h->n * sizeof *part);
    return ls_all_gather(c, (ls_view){h->all, h->n * ls_comm_size(c), LS_I64}, (ls_view){part, h->n, LS_I64}, LS_SITE,
                         NULL);
}

static ls_status hash_state(const ls_audit *a, const hashes *h)
{
    uint64_t *to = h->mine;
    LS_TRY(ls_strategy_settle(a->t->strategy));
    for (int u = 0; u < a->n_unit; u++, to += LS_AUDIT_N_STATE) {
        LS_TRY(hash_copies(a, u, &to[LS_AUDIT_COPIES]));
        LS_TRY(hash_params(a, u, &to[LS_AUDIT_PARAMS]));
        LS_TRY(hash_optimizer(a, u, &to[LS_AUDIT_OPTIMIZER]));
    }
    return gather(a, h);
}

/* Nothing that is queued writes these any more: they were gathered. */
static void clear(const hashes *h)
{
    memset(h->mine, 0, (size_t)h->n * sizeof *h->mine);
}

/* Of micro-batch m of those that are repeated. */
static uint64_t *of_micro(const ls_audit *a, const hashes *h, int m)
{
    return h->mine + (int64_t)m * ls_audit_n_pass(a->n_unit);
}

/* Where the hashes of the current pass go: of a pass that is repeated, of a micro-batch of the step, or nowhere. */
static uint64_t *pass_hashes(const ls_audit *a)
{
    const int m = a->t->strategy->micro - a->first;
    if (a->repeats) return a->repeats;
    if (!a->runs || m < 0 || m >= a->n_micro) return NULL;
    return of_micro(a, &a->vote[0], m);
}

/* Activations say where an error arose, among stages and shards. On a device they are hashed only where they are needed: with usual batches
 * they are several times as large as gradients and state. */
static bool hashes_acts(const ls_audit *a)
{
    return !a->t->compute.device || a->t->pp || a->t->tp;
}

ls_status train_audit_computed(void *ctx, int u, ls_pass pass, const ls_acts *acts)
{
    const ls_trainer *t = ctx;
    const ls_audit *a = t->audit;
    const ls_model *m = t->model;
    const ls_slot *s = &acts->slot[u];
    const int64_t R = acts->B * acts->T, C = m->cfg.n_embd / LS_MAX(m->shard.size, 1), stream = ls_model_stream(m, R);
    const ls_dtype dt = t->compute.ops->dtype;
    uint64_t *to = pass_hashes(a);
    if (!to || !hashes_acts(a)) return LS_OK;
    if (pass == LS_BWD || pass == LS_BWD_IN)
        return u && u >= a->low ? hash(a, acts->da, stream, dt, &to[ls_audit_bwd(a->n_unit, u, LS_AUDIT_DX)], false)
                                : LS_OK;
    if (pass != LS_FWD) return LS_OK;
    to += ls_audit_fwd(u, 0);
    if (m->unit[u].kind == LS_UNIT_HEAD)
        return hash(a, s->x, stream, dt, &to[LS_AUDIT_HEADS], false); /* what it has read */
    if (m->unit[u].kind == LS_UNIT_BLOCK) {
        if (m->shard.rows) LS_TRY(hash(a, s->x, stream, dt, &to[LS_AUDIT_IN], false));
        LS_TRY(hash(a, s->qkv, 3 * R * C, dt, &to[LS_AUDIT_HEADS], false));
        LS_TRY(hash(a, s->atty, R * C, dt, &to[LS_AUDIT_HEADS], true));
        LS_TRY(hash(a, s->res, stream, dt, &to[LS_AUDIT_RESIDUAL], false));
        LS_TRY(hash(a, s->fc, 4 * R * C, dt, &to[LS_AUDIT_MLP], false));
    }
    return hash(a, acts->slot[u + 1].x, stream, dt, &to[LS_AUDIT_OUT], false);
}

/* In the place of the hash that the worker which sent it has: units are of one stage each. */
ls_status train_audit_received(void *ctx, int u, ls_pass pass, const ls_acts *acts)
{
    const ls_trainer *t = ctx;
    const ls_audit *a = t->audit;
    const bool fwd = pass == LS_FWD;
    uint64_t *to = pass_hashes(a);
    if (!to || !hashes_acts(a)) return LS_OK;
    to += fwd ? ls_audit_fwd(u - 1, LS_AUDIT_OUT) : ls_audit_bwd(a->n_unit, u + 1, LS_AUDIT_DX);
    return hash(a, fwd ? acts->slot[u].x : acts->da, ls_model_stream(t->model, acts->B * acts->T),
                t->compute.ops->dtype, to, false);
}

ls_status ls_audit_grad(ls_audit *a, int u)
{
    const ls_unit *unit = &a->t->model->unit[u];
    uint64_t *to = pass_hashes(a);
    if (!to || u < a->low) return LS_OK;
    return hash(a, unit->grad, unit->n_grad, a->t->compute.ops->wide, &to[ls_audit_bwd(a->n_unit, u, LS_AUDIT_DW)],
                false);
}

/* The loss of micro-batch m of this replica, in the place of the head's output. The worker with the head has it. */
static double *loss_of(const ls_audit *a, int m)
{
    const ls_trainer *t = a->t;
    return t->micro_loss + 2 * ((int64_t)ls_comm_rank(t->dp) * t->cfg->grad_accum + m);
}

static void put_loss(const ls_audit *a, uint64_t *to, int m)
{
    const int head = a->n_unit - 1;
    if (ls_strategy_here(a->t->strategy, head))
        memcpy(&to[ls_audit_fwd(head, LS_AUDIT_OUT)], loss_of(a, m), sizeof(uint64_t));
}

/* ---- passes that are repeated ---- */

static ls_status repeated_grad(void *ctx, int u)
{
    return ls_audit_grad(((ls_trainer *)ctx)->audit, u);
}

static ls_status load_repeated(void *ctx, int m, int32_t *ids, int32_t *target, ls_micro *mb)
{
    ls_trainer *t = ctx;
    return train_load_stage(t, ls_strategy_micro_of(t->strategy, t->audit->repeated, m), m, ids, target, mb);
}

static ls_status repeat_micro(ls_audit *a, int m)
{
    ls_trainer *t = a->t;
    const ls_hooks hooks = {.ctx = t,
                            .acquire = train_acquire,
                            .release = train_release,
                            .grad_ready = repeated_grad,
                            .computed = train_audit_computed,
                            .received = train_audit_received,
                            .repeats = true};
    ls_micro mb = {.B = t->cfg->micro_batch, .T = t->cfg->seq_len, .train = true, .loss = loss_of(a, m)};
    const int slot = m % t->input.n_slot;
    ls_strategy_rehearse(t->strategy, m);
    if (t->pipe) return ls_pipe_replay(t->pipe, &hooks, m, load_repeated, t, loss_of(a, m));
    LS_TRY(train_load(t, ls_strategy_micro_of(t->strategy, a->repeated, m), m, slot, &mb));
    LS_TRY(ls_walk(t->model, t->acts, &mb, &hooks, LS_FWD, 0, a->n_unit));
    LS_TRY(ls_walk(t->model, t->acts, &mb, &hooks, LS_BWD, a->low, a->n_unit));
    return ls_input_used(&t->input, slot);
}

/* Vote k: computes the micro-batches of the replica at this one's place + shift[k]. */
static ls_status repeat(ls_audit *a, int k)
{
    ls_trainer *t = a->t;
    const int W = ls_comm_size(t->dp);
    ls_status st = LS_OK;
    clear(&a->vote[k]);
    a->repeated = (ls_comm_rank(t->dp) + a->votes.shift[k]) % W;
    for (int m = 0; m < a->n_micro && st == LS_OK; m++) {
        a->repeats = of_micro(a, &a->vote[k], m);
        st = repeat_micro(a, a->first + m);
        if (st == LS_OK) st = ls_compute_sync(&t->compute);
        if (st == LS_OK) put_loss(a, a->repeats, a->first + m);
    }
    a->repeats = NULL;
    ls_strategy_begin(t->strategy, -1);
    return st;
}

/* Which micro-batch is repeated, and how far the replica that does it is from its own: the same on every worker. A gradient that is added
 * to another in place has no hash of its own. Where the micro-batch is the whole step and audits are rare, half of its backward pass is repeated
 * on average: all of it would be as long as a step, 1 % of 100 of them. */
static void choose(ls_audit *a)
{
    const ls_trainer *t = a->t;
    const uint64_t key = ls_rng_key(t->cfg->seed, LS_RNG_AUDIT, (uint64_t)a->step, 0);
    const int W = ls_comm_size(t->dp), M = t->cfg->grad_accum;
    a->votes.n = 2;
    a->votes.shift[0] = 0;
    a->votes.shift[1] = W > 1 ? 1 + (int)(ls_rng_u64(key, 0) % (uint64_t)(W - 1)) : 0;
    a->first = t->cfg->audit_step ? 0 : (int)(ls_rng_u64(key, 1) % (uint64_t)M);
    while (a->n_micro < M && ls_strategy_adds(t->strategy, a->first)) a->first--;
    const bool whole = M > 1 || t->cfg->audit < RARE || t->cfg->audit_step || t->pipe;
    a->low = whole ? 0 : (int)(ls_rng_u64(key, 2) % (uint64_t)a->n_unit);
}

/* ---- results ---- */

typedef struct where { /* of a rank, for the message */
    char device[64];
} where;

static void list_ranks(const ls_audit *a, ls_str *s, int replica)
{
    const ls_mesh *m = &a->t->cfg->mesh;
    const int inner = m->n[LS_AXIS_PP] * m->n[LS_AXIS_TP], first = replica * inner;
    if (inner == 1) ls_str_addf(s, "rank %d", first);
    else ls_str_addf(s, "ranks %d to %d", first, first + inner - 1);
}

static void tell_unknown(const ls_audit *a, const ls_audit_fault *f, ls_str *s)
{
    if (f->replica >= 0 && f->with != f->replica) {
        list_ranks(a, s, f->replica);
        ls_str_addf(s, " and ");
        list_ranks(a, s, f->with);
        ls_str_addf(s, " compute different bits for one micro-batch");
    } else if (f->replica >= 0) {
        list_ranks(a, s, f->replica);
        ls_str_addf(s, " compute different bits each time for one micro-batch");
    } else {
        ls_str_addf(s, "copies of the same state have different bits");
    }
    ls_str_addf(s, ", and no majority shows which rank is wrong");
}

/* Says what differs, on every worker; LS_E_CORRUPT. */
static ls_status report(ls_audit *a, const ls_audit_fault *f)
{
    static const char *const place[] = {"of", "before the checkpoint of", "after writing the checkpoint of"};
    static const char *const effect[] = {"the step was not applied", "it was not saved",
                                         "the checkpoint was discarded"};
    ls_trainer *t = a->t;
    const ls_device *d = t->compute.device;
    where here = {{0}}, *all = NULL;
    if (d)
        snprintf(here.device, sizeof here.device, ", GPU %d%s%s", t->device.index, t->device.bus[0] ? " " : "",
                 t->device.bus);
    train_save_finish(t);
    /* Every worker knows the result of the audit already. The first that returns from this gather ends the run, so it may fail on the others. */
    if (ls_comm_gather(t->comm, &here, sizeof here, LS_SITE, &all) != LS_OK) ls_err_clear();
    LS_TRY(ls_observe(t, &(ls_event){.kind = LS_ON_AUDIT, .audit = f}));
    ls_str s = {0};
    char unit[32];
    ls_audit_unit(t->model, f->unit, unit);
    if (f->rank < 0 && f->first < 0) {
        tell_unknown(a, f, &s);
        ls_str_addf(&s, " (%s of %s)", f->what == LS_AUDIT_OPT ? "optimizer state" : ls_audit_word(f->what), unit);
    } else {
        int local;
        const char *host = f->rank < 0 ? NULL : ls_comm_host(t->comm, f->rank, &local);
        if (f->rank < 0) ls_str_addf(&s, "one of ranks %d to %d ", f->first, f->last);
        else ls_str_addf(&s, "rank %d (host %s%s) ", f->rank, host ? host : "?", all ? all[f->rank].device : "");
        if (f->at_rest && f->what == LS_AUDIT_GRAD)
            ls_str_addf(&s, "has a sum of gradients of %s that changed in memory before it was used", unit);
        else if (f->at_rest)
            ls_str_addf(&s, "has %s of %s that changed in memory between two updates",
                        f->what == LS_AUDIT_OPT ? "optimizer state" : "parameters", unit);
        else if (f->replica < 0)
            ls_str_addf(&s, "has %s of %s that differ from all other copies of them",
                        f->what == LS_AUDIT_OPT ? "optimizer state" : "parameters", unit);
        else
            ls_str_addf(&s, "has computed %s of %s that no other computation of the same micro-batch gives",
                        f->what == LS_AUDIT_ACT ? "activations" : "a gradient", unit);
    }
    const bool held = a->when == OF_STEP && t->saving.held;
    const ls_status st =
        ls_fail(LS_E_CORRUPT, "audit %s step %lld: %s; %s%s (check the machine: lockstep doctor --burn 10)",
                place[a->when], (long long)a->step, s.data ? s.data : "", effect[a->when],
                held ? ", and the checkpoint before it was discarded" : "");
    ls_str_fini(&s);
    if (ls_comm_rank(t->comm)) ls_err_set_peers();
    return st;
}

static void replicated(const ls_audit *a, bool out[LS_AUDIT_N_STATE])
{
    const ls_strategy_ops *ops = a->t->strategy->ops;
    out[LS_AUDIT_PARAMS] = out[LS_AUDIT_COPIES] = !(ops->parts & LS_SHARD_PARAM);
    out[LS_AUDIT_OPTIMIZER] = !(ops->parts & LS_SHARD_OPT) && !ops->master;
}

static ls_status judge_state(ls_audit *a, const hashes *then, const hashes *now)
{
    bool same[LS_AUDIT_N_STATE];
    ls_audit_fault f;
    replicated(a, same);
    return ls_audit_state(&a->t->cfg->mesh, a->n_unit, then ? then->all : NULL, now->all, same, &f) ? report(a, &f)
                                                                                                    : LS_OK;
}

/* From here to end_sums, sums of gradients are hashed. */
static void begin_sums(const ls_audit *a)
{
    clear(&a->sums);
    const ls_train_config *c = a->t->cfg;
    ls_strategy_seal(a->t->strategy, (ls_seals){.kept = a->sums.mine,
                                                .read = a->sums.mine + a->sums.n / 2,
                                                .waits = c->audit < RARE || c->audit_step});
}

/* The sums are complete and were not used for an update. */
static ls_status end_sums(ls_audit *a)
{
    ls_audit_fault f;
    LS_TRY(ls_strategy_sums_read(a->t->strategy));
    ls_strategy_seal(a->t->strategy, (ls_seals){0});
    LS_TRY(gather(a, &a->sums));
    return ls_audit_sums(&a->t->cfg->mesh, a->n_unit, (int)(a->sums.n / 2), a->sums.all, &f) ? report(a, &f) : LS_OK;
}

/* ---- the points of a step ---- */

static bool due(const ls_audit *a, int64_t step)
{
    return step % a->t->cfg->audit == 0;
}

static ls_status before_passes(ls_audit *a)
{
    if (a->hashed_after != a->t->state.step) LS_TRY(hash_state(a, &a->then));
    LS_TRY(judge_state(a, NULL, &a->then));
    choose(a);
    clear(&a->vote[0]);
    LS_TRY(repeat(a, 1));
    begin_sums(a);
    return LS_OK;
}

ls_status ls_audit_before_passes(ls_audit *a)
{
    ls_trainer *t = a->t;
    a->runs = due(a, t->state.step + 1);
    if (!a->runs) return LS_OK;
    a->step = t->state.step + 1;
    TRAIN_PHASE(t, LS_PHASE_AUDIT, -1, before_passes(a));
    return LS_OK;
}

/* The state did not change since it was hashed: checkpoints of it, for which it is not read any more, are right. */
static ls_status compare_again(ls_audit *a)
{
    LS_TRY(hash_state(a, &a->now));
    LS_TRY(judge_state(a, &a->then, &a->now));
    return train_save_confirm(a->t);
}

/* Memory that has changed explains passes that differ. */
static ls_status decide(ls_audit *a)
{
    ls_audit_fault f;
    ls_audit_votes *v = &a->votes;
    LS_TRY(train_save_release(a->t));
    LS_TRY(compare_again(a));
    LS_TRY(end_sums(a));
    ls_audit_more_votes(&a->t->cfg->mesh, v);
    for (int k = 2; k < v->n; k++) {
        LS_TRY(repeat(a, k));
        LS_TRY(gather(a, &a->vote[k]));
    }
    return ls_audit_passes(&a->t->cfg->mesh, v, &f) ? report(a, &f) : LS_OK; /* votes 0 and 1 still differ */
}

static ls_status after_passes(ls_audit *a)
{
    ls_audit_fault f;
    LS_TRY(ls_compute_sync(&a->t->compute));
    for (int m = 0; m < a->n_micro; m++) put_loss(a, of_micro(a, &a->vote[0], m), a->first + m);
    for (int k = 0; k < 2; k++) LS_TRY(gather(a, &a->vote[k]));
    return ls_audit_passes(&a->t->cfg->mesh, &a->votes, &f) ? decide(a) : LS_OK;
}

ls_status ls_audit_after_passes(ls_audit *a)
{
    if (!a->runs) return LS_OK;
    TRAIN_PHASE(a->t, LS_PHASE_AUDIT, -1, after_passes(a));
    return LS_OK;
}

/* What was confirmed is in place before the update, unless a copy of it is being written. A disk takes its time for that: the state is compared once more. */
static ls_status before_update(ls_audit *a)
{
    const bool held = a->t->saving.held;
    LS_TRY(compare_again(a));
    LS_TRY(train_save_release(a->t));
    if (held && a->runs) LS_TRY(compare_again(a));
    return a->runs ? end_sums(a) : LS_OK;
}

ls_status ls_audit_before_update(ls_audit *a)
{
    ls_trainer *t = a->t;
    if (!ls_audit_compares(a)) return LS_OK;
    a->step = t->state.step + 1;
    TRAIN_PHASE(t, LS_PHASE_AUDIT, -1, before_update(a));
    if (!a->runs) return LS_OK;
    a->runs = false;
    return ls_observe(t, &(ls_event){.kind = LS_ON_AUDIT});
}

ls_status ls_audit_replicas(ls_audit *a)
{
    bool same[LS_AUDIT_N_STATE];
    ls_audit_fault f;
    a->step = a->t->state.step + 1;
    LS_TRY(hash_state(a, &a->now));
    replicated(a, same);
    if (!ls_audit_state(&a->t->cfg->mesh, a->n_unit, NULL, a->now.all, same, &f)) return LS_OK;
    /* a bit that changed in the owner's shard while it was gathered has reached some replicas, perhaps most */
    if (a->t->strategy->ops->parts & LS_SHARD_OPT) f.rank = -1;
    return report(a, &f);
}

ls_status ls_audit_after_update(ls_audit *a)
{
    if (!due(a, a->t->state.step + 1)) return LS_OK;
    LS_TRY(hash_state(a, &a->then));
    a->hashed_after = a->t->state.step;
    return LS_OK;
}

ls_status ls_audit_before_save(ls_audit *a)
{
    a->step = a->t->state.step;
    if (a->hashed_after != a->t->state.step) LS_TRY(hash_state(a, &a->then));
    a->hashed_after = a->t->state.step;
    a->when = BEFORE_SAVE;
    LS_TRY(judge_state(a, NULL, &a->then));
    a->when = OF_STEP;
    return LS_OK;
}

ls_status ls_audit_after_save(ls_audit *a)
{
    a->step = a->t->state.step;
    a->when = AFTER_SAVE;
    LS_TRY(compare_again(a));
    a->when = OF_STEP;
    return LS_OK;
}
