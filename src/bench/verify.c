#include "bench/verify.h"

#include "bench/jobs.h"
#include "comm/launch.h"
#include "core/argv.h"
#include "core/clock.h"
#include "core/deadline.h"
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
#include <sys/wait.h>

#define SEQ       64
#define N_TOKEN   40000
#define VAL_TOKEN 2000

/* Results of rank 0 of a layout, in memory shared with the parent. */
typedef struct outcome {
    int64_t n; /* elements of all units                 */
    double loss[LS_VERIFY_MAX_STEP];
    double norm[LS_VERIFY_MAX_STEP];
    ls_status st;                 /* of the layout                         */
    char failed[LS_VERIFY_WORDS]; /* error message                         */
    char comm[16];                /* name of the communicator; "": unknown */
    ls_verify_how how;            /* once the trainer exists               */
    float data[];                 /* n gradients, then n weights           */
} outcome;

/* A layout of the list; judge: index of the reference layout, which is before it; -1: this is a reference. */
typedef struct entry {
    ls_verify_shape s;
    int judge, n_micro, steps;
    double dropout;
    bool unclipped;
    outcome *out; /* of a reference */
    bool done;
    ls_verify_row row;
} entry;

typedef struct list {
    const ls_verify_opts *o;
    const char *dir;
    int most; /* workers */
    entry *at;
    int n, room;
    outcome *other[LS_JOBS_MOST]; /* of the running layouts, by slot */
    void (*row)(void *, const ls_verify_row *);
    void *ctx;
    int n_row, n_bad, n_printed; /* n_printed: entries whose rows are printed */
    int n_layout;                /* rows of all entries: those without the references */
} list;

/* One run of a layout. */
typedef struct task {
    const list *v;
    const entry *e;
    outcome *out;
} task;

/* The configuration of a layout, from a command line, which the configuration borrows from. Buckets are small, so that units are split. */
static ls_status resolve(const task *t, ls_argv *w, ls_train_config *c)
{
    const ls_verify_opts *o = t->v->o;
    const ls_verify_shape *s = &t->e->s;
    ls_train_options options;
    ls_train_paths paths = {0};
    ls_str line = {0};
    ls_str_addf(
        &line,
        "--model tiny --seq_length %d --micro_batch_size_per_gpu 1 --grad_accum_steps %d --n %d --tp %d --pp %d --strategy %s --dropout %g --seed %llu --lr 1e-3 --max_steps 100",
        SEQ, t->e->n_micro, s->world, s->tp, s->pp, s->strategy, t->e->dropout, (unsigned long long)o->seed);
    if (!strncmp(s->strategy, "zero", 4) || !strcmp(s->strategy, "ddp")) ls_str_add(&line, " --bucket 49999");
    if (!strcmp(s->strategy, "zero3")) ls_str_add(&line, " --prefetch_bucket 9999");
    else if (!strncmp(s->strategy, "zero", 4)) ls_str_add(&line, " --gather_bucket 29999");
    if (o->device) ls_str_addf(&line, " --device '%s'", o->device);
    if (o->precision) ls_str_addf(&line, " --precision '%s'", o->precision);
    if (o->fp8_format) ls_str_addf(&line, " --fp8_format %s", o->fp8_format);
    if (o->fp8_history) ls_str_addf(&line, " --fp8_amax_history_len %lld", (long long)o->fp8_history);
    if (o->fp8_margin >= 0) ls_str_addf(&line, " --fp8_margin %lld", (long long)o->fp8_margin);
    if (o->comm_name && s->world > 1) ls_str_addf(&line, " --comm '%s'", o->comm_name);
    if (o->offload && !strncmp(s->strategy, "zero", 4)) ls_str_addf(&line, " --offload_optimizer %s", o->offload);
    if (s->by_rows) ls_str_add(&line, " --sequence_parallel");
    if (t->e->unclipped) ls_str_add(&line, " --clip 0");
    if (s->pp > 1) ls_str_addf(&line, " --schedule %s --interleave %d", s->schedule, s->interleave);
    ls_status st = line.failed ? ls_nomem(line.cap, "a command line") : ls_argv_split(w, line.data);
    ls_str_fini(&line);
    LS_TRY(st);
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_argv_add(w, i ? "--checkpoint_path" : "--data"));
        LS_TRY(ls_argv_add(w, t->v->dir));
    }
    LS_TRY(ls_train_options_parse(w->n, w->word, &options));
    LS_TRY(ls_train_find_paths(&options, &paths));
    st = ls_train_resolve(&options, NULL, &paths, &(ls_train_facts){.world_size = s->world, .data_eos_id = -1}, c);
    ls_train_paths_fini(&paths);
    c->nccl_proof = "off"; /* nothing is kept of these runs */
    return st;
}

/* The local elements of a unit, at their positions in the whole model. */
static void put_unit(const ls_unit *u, const float *from, float *to)
{
    bool everywhere;
    for (int64_t i = 0, n, whole; i < u->n; i += n) {
        n = ls_unit_run(u, i, &whole, &everywhere);
        memcpy(to + whole, from + i, (size_t)n * sizeof *to);
    }
}

/* Assembles unit u from the shards of one replica (`mine` is the local one) at `to` (NULL: not on this worker). Collective over the shards. */
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

/* Gathers gradients and weights of all units on rank 0. Collective. */
static ls_status keep(ls_trainer *t, outcome *out, bool judge)
{
    ls_model *shard[LS_VERIFY_MAX_TP] = {0}; /* tables */
    const ls_model *m = t->model;
    ls_status st = LS_OK;
    LS_ASSERT(m->shard.size <= LS_VERIFY_MAX_TP);
    for (int p = 0; p < m->shard.size && st == LS_OK; p++)
        st = ls_model_create_shard(&shard[p], &m->cfg, &t->compute,
                                   ls_strategy_pad(t->cfg->strategy, t->cfg->one_state, ls_comm_size(t->dp)),
                                   (ls_shard){.rank = p, .size = m->shard.size});
    if (st == LS_OK) st = keep_units(t, shard, out, judge);
    for (int p = 0; p < m->shard.size; p++) ls_model_destroy(&shard[p]);
    return st;
}

static ls_status steps(const task *k, ls_comm *comm)
{
    ls_train_config c = {0};
    ls_argv words = {0};
    ls_trainer *t = NULL;
    ls_step_result r;
    outcome *out = k->out;
    ls_status st = resolve(k, &words, &c);
    if (st == LS_OK) {
        c.threads = 1;
        st = ls_trainer_create(&t, &c, comm, &(ls_train_io){0});
    }
    if (comm) st = ls_comm_agree(comm, st, LS_SITE);
    const bool judge = !comm || ls_comm_rank(comm) == 0;
    if (t && judge) { /* "local, staged" is local */
        const char *name = t->comm ? ls_comm_name(t->comm) : "self";
        snprintf(out->comm, sizeof out->comm, "%.*s", (int)strcspn(name, ","), name);
        snprintf(out->how.device, sizeof out->how.device, "%s", c.device);
        snprintf(out->how.precision, sizeof out->how.precision, "%s", c.precision);
        (void)ls_compute_describe(&t->compute, out->how.compute);
    }
    for (int i = 0; i < k->e->steps && st == LS_OK; i++) {
        st = ls_trainer_step(t, &r);
        if (st == LS_OK && judge) out->loss[i] = r.loss, out->norm[i] = r.grad_norm;
    }
    if (st == LS_OK) st = keep(t, out, judge);
    if (st == LS_OK && comm) st = ls_barrier(comm, LS_SITE);
    if (st != LS_OK) snprintf(out->failed, sizeof out->failed, "%s", ls_err_words());
    const int d = ls_deadline_arm(LS_COMM_CLOSE_TIME, ls_status_exit_code(LS_E_DEVICE), "closing a layout in verify");
    ls_trainer_destroy(&t);
    ls_deadline_disarm(d);
    ls_train_config_fini(&c);
    ls_argv_fini(&words);
    return st;
}

static ls_status worker(void *ctx, ls_comm *comm, int n_core)
{
    (void)n_core;
    return steps(ctx, comm);
}

static ls_status stopped(void)
{
    const int signal = ls_stop_signal();
    if (!signal) return ls_fail(LS_E_STOPPED, "stopped by a signal to another worker");
    return ls_fail(LS_E_STOPPED, "stopped by signal %d", signal);
}

/* Uses as many workers of the launcher as the layout has; the others wait. Rank 0 is always one of them and gets the results. */
static ls_status run_together(const task *t)
{
    ls_comm *all = t->v->o->comm, *group = NULL;
    const bool member = ls_comm_rank(all) < t->e->s.world;
    ls_status st = ls_comm_split(all, member, 0, &group); /* one per layout: its memory is freed with it */
    if (st == LS_OK && member) st = steps(t, t->e->s.world == 1 ? NULL : group);
    ls_comm_destroy(&group);
    if (st == LS_OK && ls_stop_requested()) st = stopped();
    return ls_comm_agree(all, st, LS_SITE);
}

static bool on_device(const ls_verify_opts *o)
{
    return o->device && strncmp(o->device, "cpu", 3) != 0;
}

static bool in_16_bits(const ls_verify_opts *o)
{
    return strcmp(ls_precision_choose(o->precision, on_device(o)), "fp32") != 0;
}

double ls_verify_loss_limit(const ls_verify_opts *o)
{
    return in_16_bits(o) ? LS_VERIFY_LOSS_16 : LS_VERIFY_LOSS;
}

double ls_verify_grad_limit(const ls_verify_opts *o)
{
    if (o->precision && !strcmp(o->precision, "fp8")) return LS_VERIFY_GRAD_8;
    return in_16_bits(o) ? LS_VERIFY_GRAD_16 : LS_VERIFY_GRAD;
}

static void clear(outcome *out)
{
    *out = (outcome){.n = out->n, .st = LS_E_COMM};              /* until the result is known */
    memset(out->data, 0xff, 2 * (size_t)out->n * sizeof(float)); /* NaNs: missing results compare as different */
}

/* Runs in a separate process: a single CPU worker is this process; on a device a worker is always a child, whose last lines are kept. */
static ls_status run_alone(task *t)
{
    const int world = t->e->s.world;
    if (world == 1 && !on_device(t->v->o)) return steps(t, NULL);
    const ls_status st = ls_launch_local(
        &(ls_launch){.n = world, .arena_nbytes = (size_t)1 << 32, .pin = false, .body = worker, .ctx = t});
    return st != LS_OK && t->out->failed[0] ? ls_fail(st, "%s", t->out->failed) : st; /* the message of the worker */
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

/* Masks of random pairs (data/loader.h): some are longer than a sequence, some have no target in it. */
static ls_status make_masks(const char *dir, uint64_t seed)
{
    unsigned char *mask = ls_alloc(N_TOKEN);
    if (!mask) return ls_nomem(N_TOKEN, "test data");
    const uint64_t key = ls_rng_key(seed, LS_RNG_TEST, 1, 0);
    for (int64_t i = 0, k = 0; i < N_TOKEN; k++) {
        const int64_t source = 1 + (int64_t)(ls_rng_u64(key, (uint64_t)(2 * k)) % (SEQ + 4)); /* already 0 */
        const int64_t target = 1 + (int64_t)(ls_rng_u64(key, (uint64_t)(2 * k + 1)) % SEQ);
        for (int64_t j = i + source; j < i + source + target && j < N_TOKEN; j++) mask[j] = 1;
        i += source + target;
    }
    mask[N_TOKEN - 1] = mask[VAL_TOKEN - 1] = 1;
    ls_status st = ls_fs_write(ls_path_of(dir, "train.mask").text, mask, N_TOKEN);
    if (st == LS_OK) st = ls_fs_write(ls_path_of(dir, "val.mask").text, mask, VAL_TOKEN);
    ls_free(mask);
    return st;
}

static ls_status make_data(const char *dir, uint64_t seed, bool pairs)
{
    static const char *const name[] = {"train.bin", "val.bin"};
    unsigned char *bytes = ls_alloc(2 * N_TOKEN);
    if (!bytes) return ls_nomem(2 * N_TOKEN, "test data");
    const uint64_t key = ls_rng_key(seed, LS_RNG_TEST, 0, 0);
    for (int64_t i = 0; i < N_TOKEN; i++)
        bytes[2 * i] = (unsigned char)(ls_rng_u64(key, (uint64_t)(i / 3)) % 200 + (uint64_t)(i % 3));
    ls_status st = LS_OK;
    for (int k = 0; k < 2 && st == LS_OK; k++)
        st = ls_fs_write(ls_path_of(dir, name[k]).text, bytes, 2 * (k ? VAL_TOKEN : N_TOKEN));
    ls_free(bytes);
    if (st == LS_OK && pairs) st = make_masks(dir, seed);
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

/* ---- the layouts ---- */

static ls_status put(list *v, entry e)
{
    if (!ls_grow(&v->at, v->n, &v->room, sizeof e)) return ls_nomem(sizeof e, "the list of layouts");
    v->at[v->n++] = e;
    return LS_OK;
}

/* A reference: one worker with all micro-batches of a step; `judge` is its index. */
static ls_status put_judge(list *v, int n_micro, int n_step, double dropout, int *judge)
{
    *judge = v->n;
    return put(v, (entry){.s = {"single", 1, 1, 1, 1, NULL, false},
                          .judge = -1,
                          .n_micro = n_micro,
                          .steps = n_step,
                          .dropout = dropout});
}

/* The step of the reference in another layout, on more workers. */
static ls_status put_layout(list *v, int judge, ls_verify_shape shape)
{
    entry e = v->at[judge];
    e.s = shape;
    e.judge = judge;
    e.n_micro /= shape.world / shape.tp / shape.pp;
    return put(v, e);
}

/* Strategies: of one replica, then of several. */
static const char *const strategy[] = {"single", "ddp", "zero1", "zero2", "zero3"};

/* Layouts without tensor parallelism, which must match bit for bit. */
static ls_status replicas(list *v)
{
    int judge;
    for (int accum = 1; accum <= 4; accum *= 2)
        for (int drop = 0; drop < 2; drop++) {
            LS_TRY(put_judge(v, v->most * accum, v->o->steps, drop ? 0.1 : 0, &judge));
            for (int s = 0; s < 5; s++)
                for (int i = 0; i < v->o->n_world; i++)
                    LS_TRY(put_layout(v, judge,
                                      (ls_verify_shape){s ? strategy[s] : "dp", v->o->world[i], 1, 1, 1, NULL, false}));
        }
    return LS_OK;
}

/* Pipelines, which must match bit for bit, too: 2 and 4 stages under every schedule, with every strategy among their replicas. */
static ls_status pipelines(list *v)
{
    static const char *const schedule[] = {"naive", "gpipe", "1f1b", "interleaved", "zb"};
    int judge;
    if (v->most == 1) return LS_OK;
    LS_TRY(put_judge(v, 2 * v->most, v->o->steps, 0.1, &judge));
    for (int pp = 2; pp <= 4; pp *= 2)
        for (int i = 0; i < v->o->n_world; i++)
            for (int k = 0; k < 5 && v->o->world[i] % pp == 0; k++) {
                const bool inter = k == 3, several = v->o->world[i] > pp;
                if (inter && pp == 4) continue; /* 6 units are too few for 8 parts */
                /* one replica has no strategy; several have all of them */
                for (int s = several; s < (several ? 5 : 1); s++)
                    LS_TRY(put_layout(
                        v, judge,
                        (ls_verify_shape){strategy[s], v->o->world[i], pp, inter ? 2 : 1, 1, schedule[k], false}));
            }
    return LS_OK;
}

/* One number of workers of which tp split each layer: under every strategy of their replicas, and in a pipeline; by rows alone and under
 * zero3. */
static ls_status shards_of(list *v, int judge, int world, int tp)
{
    const bool several = world > tp;
    for (int s = several; s < (several ? 5 : 1); s++) {
        LS_TRY(put_layout(v, judge, (ls_verify_shape){strategy[s], world, 1, 1, tp, NULL, false}));
        if (s == 0 || s == 4) LS_TRY(put_layout(v, judge, (ls_verify_shape){strategy[s], world, 1, 1, tp, NULL, true}));
    }
    for (int pp = 2; pp <= 4; pp *= 2)
        if (world % (tp * pp) == 0)
            LS_TRY(put_layout(
                v, judge, (ls_verify_shape){world > tp * pp ? "zero2" : "single", world, pp, 1, tp, "1f1b", false}));
    return LS_OK;
}

/* Without clipping an offloaded optimizer updates units during the backward pass (parallel/offload_early.c): the strategies that allow
 * it, with one and two micro-batches, and in pipelines with a whole and with a split backward pass. */
static ls_status unclipped(list *v)
{
    static const char *const schedule[] = {"1f1b", "interleaved", "zb"};
    int judge;
    if (!v->o->offload || !strcmp(v->o->offload, "none") || (v->o->precision && !strcmp(v->o->precision, "fp16")))
        return LS_OK;
    for (int accum = 1; accum <= 2; accum++) {
        LS_TRY(put_judge(v, v->most * accum, v->o->steps, 0.1, &judge));
        v->at[judge].unclipped = true;
        for (int i = 0; i < v->o->n_world; i++) {
            const int n = v->o->world[i];
            for (int s = 2; s < 5; s++)
                LS_TRY(put_layout(v, judge, (ls_verify_shape){strategy[s], n, 1, 1, 1, NULL, false}));
            for (int k = 0; k < 3 && accum == 2 && n > 1; k++)
                LS_TRY(put_layout(v, judge,
                                  (ls_verify_shape){strategy[2 + k], n, 2, k == 1 ? 2 : 1, 1, schedule[k], false}));
        }
    }
    return LS_OK;
}

/* Tensor parallelism over 2 and 4 workers, which must match within limits. */
static ls_status shards(list *v)
{
    int judge;
    for (int drop = 0; drop < 2 && v->most > 1; drop++) {
        LS_TRY(put_judge(v, v->most, LS_VERIFY_TP_STEPS, drop ? 0.1 : 0, &judge));
        for (int tp = 2; tp <= LS_VERIFY_MAX_TP; tp *= 2)
            for (int i = 0; i < v->o->n_world; i++)
                if (v->o->world[i] % tp == 0) LS_TRY(shards_of(v, judge, v->o->world[i], tp));
    }
    return LS_OK;
}

/* ---- running them ---- */

static task task_of(const list *v, int k, int slot)
{
    return (task){v, &v->at[k], v->at[k].judge < 0 ? v->at[k].out : v->other[slot]};
}

static const char *comm_of(const list *v, const entry *e, const outcome *out)
{
    static const char *const known[] = {"local", "mpi", "tcp", "nccl"};
    if (e->s.world == 1) return "self";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(out->comm, known[i])) return known[i];
    if (v->o->comm_name && strcmp(v->o->comm_name, "auto") != 0) return v->o->comm_name;
    return v->o->comm ? ls_comm_name(v->o->comm) : "local";
}

static void print_ready(list *v)
{
    for (; v->n_printed < v->n && v->at[v->n_printed].done; v->n_printed++)
        if (v->at[v->n_printed].judge >= 0) v->row(v->ctx, &v->at[v->n_printed].row);
}

/* Entry k has ended with this status and message. A failed reference ends the command. */
static ls_status settle(list *v, int k, int slot, ls_status st, const char *words, double seconds)
{
    entry *e = &v->at[k];
    e->done = true;
    if (st == LS_E_UNSUPPORTED || st == LS_E_CONFIG || st == LS_E_ARG)
        return ls_fail(st, "%s", words); /* the options are rejected; the numbers are not compared */
    if (st != LS_OK && ls_stop_requested()) return stopped();
    if (e->judge < 0) {
        if (st != LS_OK)
            return ls_fail(st, "one worker with %d micro-batch%s: %s", e->n_micro, e->n_micro == 1 ? "" : "es", words);
        print_ready(v);
        return LS_OK;
    }
    ls_verify_row *r = &e->row;
    const outcome *out = v->other[slot];
    *r = (ls_verify_row){.s = e->s,
                         .comm = comm_of(v, e, out),
                         .how = &v->at[e->judge].out->how,
                         .n_micro = e->n_micro,
                         .dropout = e->dropout,
                         .unclipped = e->unclipped,
                         .seconds = seconds,
                         .of = v->n_layout};
    if (st == LS_OK) compare(r, out, v->at[e->judge].out, e->steps);
    else snprintf(r->words, sizeof r->words, "%s", words);
    r->within = r->ran && r->loss_error <= ls_verify_loss_limit(v->o) && r->grad_error <= ls_verify_grad_limit(v->o);
    v->n_bad += !(e->s.tp > 1 ? r->within : r->identical);
    v->n_row++;
    print_ready(v);
    return LS_OK;
}

static bool job_ready(void *ctx, int k)
{
    const list *v = ctx;
    return v->at[k].judge < 0 || v->at[v->at[k].judge].done;
}

static void job_body(void *ctx, int k, int slot)
{
    task t = task_of(ctx, k, slot);
    clear(t.out);
    const ls_status st = run_alone(&t);
    if (st != LS_OK && !t.out->failed[0]) snprintf(t.out->failed, sizeof t.out->failed, "%s", ls_err_words());
    t.out->st = st;
}

static ls_status job_ended(void *ctx, int k, int slot, const ls_job_end *e)
{
    list *v = ctx;
    const outcome *out = task_of(v, k, slot).out;
    char words[LS_VERIFY_WORDS] = "";
    ls_status st = out->st;
    if (!e->in_time) {
        st = LS_E_COMM;
        snprintf(words, sizeof words, "timed out after %g s", v->o->limit);
    } else if (WIFSIGNALED(e->status)) {
        st = LS_E_COMM;
        snprintf(words, sizeof words, "the process was killed by signal %d (%s)", WTERMSIG(e->status),
                 strsignal(WTERMSIG(e->status)));
    } else snprintf(words, sizeof words, "%s", out->failed[0] ? out->failed : ls_status_words(st));
    return settle(v, k, slot, st, words, e->seconds);
}

/* The workers of the launcher run one layout after the other; rank 0 compares. */
static ls_status run_in_turn(list *v)
{
    const bool judge = ls_comm_rank(v->o->comm) == 0;
    for (int k = 0; k < v->n; k++) {
        const task t = task_of(v, k, 0);
        clear(t.out);
        const double begin = ls_now();
        const ls_status st = run_together(&t);
        if (st == LS_E_STOPPED) return stopped(); /* on all workers: they agreed, whoever got the signal */
        if (judge || (v->at[k].judge < 0 && st != LS_OK))
            LS_TRY(settle(v, k, 0, st, t.out->failed[0] ? t.out->failed : ls_err_words(), ls_now() - begin));
        if (st == LS_E_COMM) return st; /* the workers cannot continue together */
    }
    return LS_OK;
}

static ls_status make_outcomes(list *v, int n_slot, int64_t n)
{
    bool ok = true;
    for (int s = 0; s < n_slot && ok; s++) ok = (v->other[s] = share(n));
    for (int k = 0; k < v->n && ok; k++)
        if (v->at[k].judge < 0) ok = (v->at[k].out = share(n));
    return ok ? LS_OK : ls_nomem(2 * (size_t)n * sizeof(float), "results of a layout");
}

static ls_status run_list(list *v)
{
    const ls_verify_opts *o = v->o;
    const int n_slot = o->comm ? 1 : o->jobs;
    ls_model_config cfg;
    LS_TRY(ls_model_config_preset("tiny", &cfg));
    for (int i = 0; i < o->n_world; i++) v->most = o->world[i] > v->most ? o->world[i] : v->most;
    if (!o->only_tp) LS_TRY(replicas(v));
    if (!o->only_tp) LS_TRY(pipelines(v));
    if (!o->only_tp) LS_TRY(unclipped(v));
    LS_TRY(shards(v));
    for (int k = 0; k < v->n; k++) v->n_layout += v->at[k].judge >= 0;
    LS_TRY(make_outcomes(v, n_slot, ls_model_n_param(&cfg)));
    LS_TRY(make_data(v->dir, o->seed, o->pairs));
    if (o->comm) LS_TRY(run_in_turn(v));
    else
        LS_TRY(ls_jobs_run(&(ls_jobs){.n = v->n,
                                      .at_once = n_slot,
                                      .limit = o->limit,
                                      .ready = job_ready,
                                      .body = job_body,
                                      .ended = job_ended,
                                      .ctx = v}));
    if (v->n_bad) return ls_fail(LS_E_NUMERIC, "%d of %d layouts do not match a single worker", v->n_bad, v->n_row);
    return LS_OK;
}

static void list_fini(list *v)
{
    for (int s = 0; s < LS_JOBS_MOST; s++) unshare(v->other[s]);
    for (int k = 0; k < v->n; k++)
        if (v->at[k].judge < 0) unshare(v->at[k].out);
    ls_free(v->at);
}

ls_status ls_verify(const ls_verify_opts *o, void (*row)(void *ctx, const ls_verify_row *r), void *ctx)
{
    char dir[256];
    const char *tmp = getenv("TMPDIR");
    list v = {.o = o, .dir = dir, .most = 1, .row = row, .ctx = ctx};
    snprintf(dir, sizeof dir, "%s/lockstep-verify-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    LS_ASSERT(o->steps >= 1 && o->steps <= LS_VERIFY_MAX_STEP);
    LS_ASSERT(o->jobs >= 1 && o->jobs <= LS_JOBS_MOST);
    ls_stop_install(); /* before the folder exists: a signal removes it */
    if (!mkdtemp(dir)) return ls_fail(LS_E_IO, "cannot create a folder in %s", tmp ? tmp : "/tmp");
    ls_status st = run_list(&v);
    if (o->comm && st != LS_E_COMM) st = ls_comm_agree(o->comm, st, LS_SITE);
    list_fini(&v);
    (void)ls_fs_remove_tree(dir);
    return st;
}
