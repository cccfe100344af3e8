#include "bench/verify.h"

#include "comm/launch.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/stop.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SEQ      64
#define N_TOKEN  40000
#define MAX_STEP 64

/* What rank 0 of a layout leaves behind, in memory that its parent shares. */
typedef struct outcome {
    int64_t n; /* elements of all units                 */
    double loss[MAX_STEP];
    double norm[MAX_STEP];
    char failed[200]; /* words of a failure                    */
    float data[];     /* n gradients, then n weights           */
} outcome;

typedef struct layout {
    const ls_verify_opts *o;
    const char *dir;
    ls_verify_shape s;
    int n_micro; /* of each replica */
    int steps;
    double dropout;
    outcome *out;
} layout;

static ls_status resolve(const layout *l, ls_train_config *c)
{
    char data[300], world[16], tp[16], pp[16], chunks[16], micro[16], drop[32], seed[32];
    snprintf(data, sizeof data, "%s", l->dir);
    snprintf(world, sizeof world, "%d", l->s.world);
    snprintf(tp, sizeof tp, "%d", l->s.tp);
    snprintf(pp, sizeof pp, "%d", l->s.pp);
    snprintf(chunks, sizeof chunks, "%d", l->s.interleave);
    snprintf(micro, sizeof micro, "%d", l->n_micro);
    snprintf(drop, sizeof drop, "%g", l->dropout);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)l->o->seed);
    char *argv[] = {"--data",
                    data,
                    "--model",
                    "tiny",
                    "--seq_length",
                    "64",
                    "--micro_batch_size_per_gpu",
                    "1",
                    "--grad_accum_steps",
                    micro,
                    "--n",
                    world,
                    "--tp",
                    tp,
                    "--pp",
                    pp,
                    "--strategy",
                    (char *)(uintptr_t)l->s.strategy,
                    "--dropout",
                    drop,
                    "--seed",
                    seed,
                    "--lr",
                    "1e-3",
                    "--bucket", /* small, so that units are cut */
                    "50000",
                    "--gather_bucket",
                    "30000",
                    "--prefetch_bucket",
                    "100000",
                    "--checkpoint_path",
                    data,
                    "--max_steps",
                    "100",
                    NULL,
                    NULL,
                    NULL,
                    NULL,
                    NULL,
                    NULL,
                    NULL,
                    NULL,
                    NULL};
    int argc = (int)(sizeof argv / sizeof argv[0]) - 9;
    if (l->o->device) {
        argv[argc++] = "--device";
        argv[argc++] = (char *)(uintptr_t)l->o->device;
    }
    if (l->o->precision) {
        argv[argc++] = "--precision";
        argv[argc++] = (char *)(uintptr_t)l->o->precision;
    }
    if (l->s.by_rows) argv[argc++] = "--sequence_parallel";
    if (l->s.pp > 1) {
        argv[argc++] = "--schedule";
        argv[argc++] = (char *)(uintptr_t)l->s.schedule;
        argv[argc++] = "--interleave";
        argv[argc++] = chunks;
    }
    ls_train_options o;
    ls_train_paths paths = {0};
    LS_TRY(ls_train_options_parse(argc, argv, &o));
    LS_TRY(ls_train_find_paths(&o, &paths));
    ls_status st =
        ls_train_resolve(&o, NULL, &paths, &(ls_train_facts){.world_size = l->s.world, .data_eos_id = -1}, c);
    ls_train_paths_fini(&paths);
    c->nccl_proof = "off"; /* nothing is kept of these runs */
    return st;
}

/* A unit's elements that are here, at their places in the whole model. */
static void put_unit(const ls_unit *u, const float *from, float *to)
{
    bool everywhere;
    for (int64_t i = 0, n, whole; i < u->n; i += n) {
        n = ls_unit_run(u, i, &whole, &everywhere);
        memcpy(to + whole, from + i, (size_t)n * sizeof *to);
    }
}

/* Puts unit u of the shards of one replica, of which `mine` is here, together at `to` (NULL: not here). Collective over the shards. */
static ls_status put_shards(ls_trainer *t, ls_model *const *shard, int u, const void *mine, void *scratch, float *to)
{
    if (!t->tp) {
        if (to) put_unit(&t->model->unit[u], mine, to);
        return LS_OK;
    }
    for (int p = 0; p < t->model->shard.size; p++) {
        LS_ASSERT(shard[p]);
        const ls_unit *x = &shard[p]->unit[u];
        if (p == t->model->shard.rank && mine) memcpy(scratch, mine, (size_t)x->n * sizeof(float));
        LS_TRY(ls_broadcast(t->tp, (ls_view){scratch, x->n, LS_F32}, p, LS_SITE, NULL));
        if (to) put_unit(x, scratch, to);
    }
    return LS_OK;
}

static ls_status keep_units(ls_trainer *t, ls_model *const *shard, outcome *out, bool judge)
{
    const ls_model *m = t->model;
    int64_t at = 0, largest = 0;
    for (int p = 0; p < m->shard.size; p++)
        for (int u = 0; u < m->n_unit; u++)
            largest = shard[p]->unit[u].n_pad > largest ? shard[p]->unit[u].n_pad : largest;
    float *scratch = ls_comm_alloc(t->comm, 2 * (size_t)largest * sizeof *scratch);
    if (!scratch) return ls_nomem(2 * (size_t)largest * sizeof *scratch, "a unit");
    for (int u = 0; u < m->n_unit; u++) {
        LS_ASSERT(at + m->unit[u].n_whole <= out->n);
        for (int grad = 0; grad < 2; grad++) {
            const void *mine = NULL;
            LS_TRY(ls_trainer_whole(t, u, grad, scratch, &mine));
            LS_TRY(
                put_shards(t, shard, u, mine, scratch + largest, judge ? out->data + (grad ? 0 : out->n) + at : NULL));
        }
        at += m->unit[u].n_whole;
    }
    return LS_OK;
}

/* Gradients and weights of all units, whole, at the judge's. Collective. */
static ls_status keep(ls_trainer *t, outcome *out, bool judge)
{
    ls_model *shard[LS_VERIFY_MAX_TP] = {0}; /* tables */
    const ls_model *m = t->model;
    ls_status st = LS_OK;
    LS_ASSERT(m->shard.size <= LS_VERIFY_MAX_TP);
    for (int p = 0; p < m->shard.size && st == LS_OK; p++)
        st = ls_model_create_shard(&shard[p], &m->cfg, &t->compute,
                                   ls_strategy_pad(t->cfg->strategy, ls_comm_size(t->dp)),
                                   (ls_shard){.rank = p, .size = m->shard.size});
    if (st == LS_OK) st = keep_units(t, shard, out, judge);
    for (int p = 0; p < m->shard.size; p++) ls_model_destroy(&shard[p]);
    return st;
}

static ls_status steps(const layout *l, ls_comm *comm, int threads)
{
    ls_train_config c = {0};
    ls_trainer *t = NULL;
    ls_step_result r;
    ls_status st = resolve(l, &c);
    if (st == LS_OK) {
        c.threads = threads;
        st = ls_trainer_create(&t, &c, comm, &(ls_train_io){0});
    }
    if (comm) st = ls_comm_agree(comm, st, LS_SITE);
    const bool judge = !comm || ls_comm_rank(comm) == 0;
    for (int k = 0; k < l->steps && st == LS_OK; k++) {
        st = ls_trainer_step(t, &r);
        if (st == LS_OK && judge) {
            l->out->loss[k] = r.loss;
            l->out->norm[k] = r.grad_norm;
        }
    }
    if (st == LS_OK) st = keep(t, l->out, judge);
    if (st == LS_OK && comm) st = ls_barrier(comm, LS_SITE);
    if (st != LS_OK) snprintf(l->out->failed, sizeof l->out->failed, "%.190s", ls_err_words());
    ls_trainer_destroy(&t);
    ls_train_config_fini(&c);
    return st;
}

static ls_status worker(void *ctx, ls_comm *comm, int n_core)
{
    (void)n_core;
    return steps(ctx, comm, 1);
}

/* The first l->s.world of the workers that are there; the others wait. Results reach rank 0, which is always one of them. */
static ls_status run_together(layout *l)
{
    ls_comm *all = l->o->comm, *group = NULL;
    const bool member = ls_comm_rank(all) < l->s.world;
    ls_status st = ls_comm_split(all, member, 0, &group); /* one for each layout: its memory ends with it */
    if (st == LS_OK && member) st = steps(l, l->s.world == 1 ? NULL : group, 1);
    ls_comm_destroy(&group);
    return ls_comm_agree(all, st, LS_SITE);
}

static bool on_device(const ls_verify_opts *o)
{
    return o->device && strncmp(o->device, "cpu", 3) != 0;
}

static bool in_16_bits(const ls_verify_opts *o)
{
    return on_device(o) && (!o->precision || strcmp(o->precision, "fp32") != 0);
}

double ls_verify_loss_limit(const ls_verify_opts *o)
{
    return in_16_bits(o) ? LS_VERIFY_LOSS_16 : LS_VERIFY_LOSS;
}

double ls_verify_grad_limit(const ls_verify_opts *o)
{
    return in_16_bits(o) ? LS_VERIFY_GRAD_16 : LS_VERIFY_GRAD;
}

static ls_status run_layout(layout *l)
{
    memset(l->out->loss, 0, sizeof l->out->loss);
    memset(l->out->norm, 0, sizeof l->out->norm);
    l->out->failed[0] = '\0';
    memset(l->out->data, 0xff, 2 * (size_t)l->out->n * sizeof(float)); /* NaNs: what was not written differs */
    if (l->o->comm) return run_together(l);
    /* a device that this process has opened is lost to the workers it forks later: there, one worker is a process, too */
    if (l->s.world == 1 && !on_device(l->o)) return steps(l, NULL, 1);
    const ls_status st = ls_launch_local(
        &(ls_launch){.n = l->s.world, .arena_nbytes = (size_t)1 << 32, .pin = false, .body = worker, .ctx = l});
    return st != LS_OK && l->out->failed[0] ? ls_fail(st, "%s", l->out->failed) : st; /* a worker's own words */
}

static double largest_difference(const float *a, const float *b, int64_t n)
{
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        scale = fmax(scale, fabs((double)b[i]));
    }
    return worst / fmax(scale, 1e-30);
}

static void compare(ls_verify_row *r, const outcome *a, const outcome *judge, int n_step)
{
    const size_t nbytes = (size_t)judge->n * sizeof(float);
    r->ran = true;
    r->identical = !memcmp(a->loss, judge->loss, (size_t)n_step * sizeof *a->loss) &&
                   !memcmp(a->norm, judge->norm, (size_t)n_step * sizeof *a->norm) &&
                   !memcmp(a->data, judge->data, 2 * nbytes);
    if (r->identical) return;
    for (int k = 0; k < n_step; k++) {
        const double error = fabs(a->loss[k] - judge->loss[k]) / fabs(judge->loss[k]);
        r->loss_error = isfinite(error) ? fmax(r->loss_error, error) : INFINITY;
    }
    r->grad_error = largest_difference(a->data, judge->data, judge->n);
    r->weight_error = largest_difference(a->data + a->n, judge->data + judge->n, judge->n);
    snprintf(r->words, sizeof r->words, "loss %.1e, gradients %.1e, weights %.1e", r->loss_error, r->grad_error,
             r->weight_error);
}

static ls_status make_data(const char *dir, uint64_t seed)
{
    static const char *const name[] = {"train.bin", "val.bin"};
    unsigned char *bytes = ls_alloc(2 * N_TOKEN);
    if (!bytes) return ls_nomem(2 * N_TOKEN, "test data");
    const uint64_t key = ls_rng_key(seed, LS_RNG_TEST, 0, 0);
    for (int64_t i = 0; i < N_TOKEN; i++)
        bytes[2 * i] = (unsigned char)(ls_rng_u64(key, (uint64_t)(i / 3)) % 200 + (uint64_t)(i % 3));
    ls_status st = LS_OK;
    for (int k = 0; k < 2 && st == LS_OK; k++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%s", dir, name[k]);
        st = ls_fs_write(path, bytes, k ? 2 * 2000 : 2 * N_TOKEN);
    }
    ls_free(bytes);
    return st;
}

static outcome *share(int64_t n)
{
    const size_t nbytes = sizeof(outcome) + 2 * (size_t)n * sizeof(float);
    outcome *o = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (o == MAP_FAILED) return NULL;
    o->n = n;
    return o;
}

static void unshare(outcome *o)
{
    if (o) munmap(o, sizeof *o + 2 * (size_t)o->n * sizeof(float));
}

/* One worker with all leaves of a step. */
static layout judge_of(const ls_verify_opts *o, const char *dir, int n_leaf, int steps, double dropout, outcome *out)
{
    return (layout){.o = o,
                    .dir = dir,
                    .s = {.strategy = "single", .world = 1, .pp = 1, .interleave = 1, .tp = 1},
                    .n_micro = n_leaf,
                    .steps = steps,
                    .dropout = dropout,
                    .out = out};
}

typedef struct table {
    void (*row)(void *, const ls_verify_row *);
    void *ctx;
    int n_row, n_bad;
} table;

/* The judge's step in another shape, on more workers. */
static ls_status hold_against(table *t, const layout *judge, ls_verify_shape shape, outcome *other)
{
    layout l = *judge;
    ls_comm *there = l.o->comm;
    l.s = shape;
    l.n_micro = judge->n_micro / (shape.world / shape.tp / shape.pp);
    l.out = other;
    ls_verify_row r = {.s = shape,
                       .comm = shape.world == 1 ? "self"
                               : there          ? ls_comm_name(there)
                                                : "local",
                       .n_micro = l.n_micro,
                       .dropout = l.dropout};
    const double begin = ls_now();
    ls_status st = run_layout(&l);
    r.seconds = ls_now() - begin;
    if (there && ls_comm_rank(there)) return st;
    if (st == LS_OK) compare(&r, other, judge->out, l.steps);
    else snprintf(r.words, sizeof r.words, "%.190s", other->failed[0] ? other->failed : ls_err_words());
    r.within = r.ran && r.loss_error <= ls_verify_loss_limit(l.o) && r.grad_error <= ls_verify_grad_limit(l.o);
    t->n_bad += !(shape.tp > 1 ? r.within : r.identical);
    t->n_row++;
    t->row(t->ctx, &r);
    if (ls_stop_requested()) return ls_fail(LS_E_STOPPED, "signal %d", ls_stop_signal());
    return st == LS_E_COMM && there ? st : LS_OK; /* the workers cannot go on together */
}

/* Layouts of whole models, which promise identity. */
static ls_status replicas(const ls_verify_opts *o, const char *dir, int most, outcome *judge, outcome *other, table *t)
{
    static const char *const strategy[] = {"dp", "ddp", "zero1", "zero2", "zero3"};
    for (int accum = 1; accum <= 4; accum *= 2) {
        for (int drop = 0; drop < 2; drop++) {
            layout one = judge_of(o, dir, most * accum, o->steps, drop ? 0.1 : 0, judge);
            LS_TRY(run_layout(&one));
            for (int s = 0; s < 5; s++)
                for (int i = 0; i < o->n_world; i++)
                    if (most % o->world[i] == 0)
                        LS_TRY(hold_against(t, &one, (ls_verify_shape){strategy[s], o->world[i], 1, 1, 1, NULL, false},
                                            other));
        }
    }
    return LS_OK;
}

/* Pipelines, which promise identity, too: 2 and 4 stages under every schedule, with every strategy among their replicas. */
static ls_status pipelines(const ls_verify_opts *o, const char *dir, int most, outcome *judge, outcome *other, table *t)
{
    static const char *const schedule[] = {"naive", "gpipe", "1f1b", "interleaved", "zb"}, *const strategy[] = {
                                                                                               "single", "ddp", "zero1",
                                                                                               "zero2", "zero3"};
    if (most == 1) return LS_OK;
    layout one = judge_of(o, dir, 2 * most, o->steps, 0.1, judge);
    LS_TRY(run_layout(&one));
    for (int pp = 2; pp <= 4; pp *= 2) {
        for (int i = 0; i < o->n_world; i++) {
            const int world = o->world[i];
            if (most % world || world % pp) continue;
            for (int k = 0; k < 5; k++) {
                const bool inter = k == 3;
                if (inter && pp == 4) continue; /* 6 units are too few for 8 parts */
                for (int s = 0; s < 5; s++)
                    if (s ? world > pp : world == pp) /* one replica has no strategy; several have all the others */
                        LS_TRY(hold_against(
                            t, &one, (ls_verify_shape){strategy[s], world, pp, inter ? 2 : 1, 1, schedule[k], false},
                            other));
            }
        }
    }
    return LS_OK;
}

/* Split layers, which promise closeness: tp 2 and 4, alone and under every strategy of their replicas, and in a pipeline; by rows alone and
 * under zero3. */
static ls_status shards(const ls_verify_opts *o, const char *dir, int most, outcome *judge, outcome *other, table *t)
{
    static const char *const strategy[] = {"single", "ddp", "zero1", "zero2", "zero3"};
    for (int drop = 0; drop < 2 && most > 1; drop++) {
        layout one = judge_of(o, dir, most, LS_VERIFY_TP_STEPS, drop ? 0.1 : 0, judge);
        LS_TRY(run_layout(&one));
        for (int tp = 2; tp <= LS_VERIFY_MAX_TP; tp *= 2) {
            for (int i = 0; i < o->n_world; i++) {
                const int world = o->world[i];
                if (most % world || world % tp) continue;
                for (int s = 0; s < 5; s++) {
                    if (s ? world == tp : world > tp) continue;
                    LS_TRY(hold_against(t, &one, (ls_verify_shape){strategy[s], world, 1, 1, tp, NULL, false}, other));
                    if (s == 0 || s == 4)
                        LS_TRY(
                            hold_against(t, &one, (ls_verify_shape){strategy[s], world, 1, 1, tp, NULL, true}, other));
                }
                for (int pp = 2; pp <= 4; pp *= 2)
                    if (world % (tp * pp) == 0)
                        LS_TRY(hold_against(
                            t, &one,
                            (ls_verify_shape){world > tp * pp ? "zero2" : "single", world, pp, 1, tp, "1f1b", false},
                            other));
            }
        }
    }
    return LS_OK;
}

static ls_status all_layouts(const ls_verify_opts *o, const char *dir, outcome *judge, outcome *other,
                             void (*row)(void *, const ls_verify_row *), void *ctx)
{
    table t = {.row = row, .ctx = ctx};
    int most = 1;
    for (int i = 0; i < o->n_world; i++) most = o->world[i] > most ? o->world[i] : most;
    if (!o->only_tp) LS_TRY(replicas(o, dir, most, judge, other, &t));
    if (!o->only_tp) LS_TRY(pipelines(o, dir, most, judge, other, &t));
    LS_TRY(shards(o, dir, most, judge, other, &t));
    if (t.n_bad)
        return ls_fail(LS_E_NUMERIC, "%d of %d layouts do not compute the step of one worker", t.n_bad, t.n_row);
    return LS_OK;
}

ls_status ls_verify(const ls_verify_opts *o, void (*row)(void *ctx, const ls_verify_row *r), void *ctx)
{
    char dir[256];
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/lockstep-verify-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (o->steps < 1 || o->steps > MAX_STEP)
        return ls_fail(LS_E_ARG, "verify runs 1 to %d steps, not %d", MAX_STEP, o->steps);
    if (!mkdtemp(dir)) return ls_fail(LS_E_IO, "cannot make a folder in %s", tmp ? tmp : "/tmp");
    ls_model_config cfg;
    ls_status st = ls_model_config_preset("tiny", &cfg);
    outcome *judge = NULL, *other = NULL;
    if (st == LS_OK) {
        judge = share(ls_model_n_param(&cfg));
        other = share(ls_model_n_param(&cfg));
        if (!judge || !other) st = ls_nomem(1 << 24, "results of the layouts");
    }
    if (st == LS_OK) st = make_data(dir, o->seed);
    if (st == LS_OK) st = all_layouts(o, dir, judge, other, row, ctx);
    if (o->comm && st != LS_E_COMM) st = ls_comm_agree(o->comm, st, LS_SITE);
    unshare(judge);
    unshare(other);
    (void)ls_fs_remove_tree(dir);
    return st;
}
