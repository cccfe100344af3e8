/* The pipeline executor compared with one worker. A pipelined forward gives the same losses for every batch and micro-batch size, also
 * if the last micro-batch is smaller (the table of the translation study, docs/REFERENCES.md). A pipelined step gives
 * the same gradients bit for bit, with every schedule and cut. Stages are threads of this process. */
#include "cmocka_all.h"
#include "core/mem.h"
#include "model_fixture.h"
#include "parallel/pipe_exec.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#define LEN      6
#define MAX_ROW  64
#define MAX_PART 8

typedef struct job {
    /* set by the test */
    const char *schedule;
    int n_stage, n_micro, n_chunk;
    int64_t B, rows; /* sequences of a micro-batch; of the whole batch */
    bool backward, recompute;
    const ls_stages *stages;
    const ls_model_config *cfg;
    ls_local_world *world;
    /* set by the stages */
    double pair[MAX_ROW][2];
    float *grad[MAX_PART + 2]; /* by unit */
} job;

typedef struct stage {
    job *j;
    int rank;
    ls_status st;
    char words[300];
} stage;

/* Token and target of row r (a sequence) of the batch. */
static void fill_row(int64_t r, const ls_model_config *c, int32_t *ids, int32_t *target)
{
    for (int64_t i = 0; i < LEN; i++) {
        const uint64_t x = ls_rng_u64(11, (uint64_t)(r * LEN + i));
        ids[i] = (int32_t)(x % (uint64_t)c->vocab_size);
        target[i] = (int32_t)((x >> 20) % (uint64_t)c->vocab_size);
    }
}

static int64_t piece_rows(const job *j, int micro)
{
    const int64_t left = j->rows - micro * j->B;
    return left < j->B ? left : j->B;
}

static ls_status load(void *ctx, int micro, int32_t *ids, int32_t *target, ls_micro *mb)
{
    const job *j = ctx;
    int32_t a[LEN], b[LEN];
    mb->B = piece_rows(j, micro);
    mb->dloss = 1.0 / (double)(j->rows * LEN);
    mb->drop_key = 1000 + (uint64_t)micro;
    for (int64_t r = 0; r < mb->B; r++) {
        fill_row(micro * j->B + r, j->cfg, a, b);
        if (ids) memcpy(ids + r * LEN, a, sizeof a);
        if (target) memcpy(target + r * LEN, b, sizeof b);
    }
    return LS_OK;
}

static ls_status on_acquire(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_acquire(ctx, u, pass);
}

static ls_status on_ready(void *ctx, int u)
{
    return ls_strategy_grad_ready(ctx, u);
}

static ls_status run_stage(stage *s)
{
    job *j = s->j;
    ls_compute compute;
    ls_comm *all = NULL, *acts = NULL, *grads = NULL, *self = NULL;
    ls_model *m = NULL;
    ls_strategy *strategy = NULL;
    ls_schedule *sch = NULL;
    ls_pipe *pipe = NULL;
    ls_plan plan = {0};
    unsigned char role[32];
    LS_TRY(ls_comm_local(j->world, s->rank, &all));
    LS_TRY(ls_comm_self(&self));
    LS_TRY(ls_comm_split(all, 0, s->rank, &acts));
    LS_TRY(ls_comm_split(all, 0, s->rank, &grads));
    LS_TRY(ls_compute_open(&compute, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F32}, 1));
    LS_TRY(ls_model_create(&m, j->cfg, &compute, 64));
    LS_TRY(ls_schedule_create(&sch, j->schedule, &(ls_pipe_opts){j->n_stage, j->n_micro, j->n_chunk, 0, NULL}));
    ls_pipe_roles(j->stages, j->cfg->tied, s->rank, role);
    LS_TRY(ls_strategy_create(&strategy, "single", m, self,
                              &(ls_strategy_opts){.n_micro = j->n_micro,
                                                  .bucket = 1000,
                                                  .gather_bucket = 1000,
                                                  .deterministic = true,
                                                  .role = role,
                                                  .pipe = all},
                              &plan));
    LS_TRY(ls_pipe_create(&pipe,
                          &(ls_pipe_setup){.model = m,
                                           .schedule = sch,
                                           .stages = j->stages,
                                           .acts = acts,
                                           .grads = grads,
                                           .B = j->B,
                                           .T = LEN,
                                           .recompute = j->recompute},
                          &plan));
    LS_TRY(ls_plan_layout(&plan));
    void *memory = ls_comm_alloc(all, (size_t)plan.total);
    if (!memory) return ls_nomem((size_t)plan.total, "a stage");
    ls_plan_take(&plan, memory);
    assert_int_equal(ls_strategy_bind(strategy, &plan), LS_OK);
    ls_pipe_bind(pipe, &plan);
    ls_piece piece[96];
    const int n = ls_strategy_pieces(strategy, false, piece);
    for (int i = 0; i < n; i++)
        if (piece[i].what == LS_FLAT_PARAM) ls_model_init_piece(m, 5, &piece[i]);
    const ls_hooks h = {.ctx = strategy, .acquire = on_acquire, .grad_ready = on_ready};
    double pair[MAX_ROW][2];
    if (j->backward) {
        for (int k = 0; k < 2; k++) { /* the second step must not depend on memory that the first one wrote */
            LS_TRY(ls_pipe_step(pipe, strategy, &h, load, j, pair));
            LS_TRY(ls_strategy_step_due(strategy));
        }
        for (int u = 0; u < m->n_unit; u++)
            if (ls_strategy_here(strategy, u))
                memcpy(j->grad[u], ls_strategy_own(strategy, u).grad, (size_t)m->unit[u].n * sizeof(float));
    } else LS_TRY(ls_pipe_forward(pipe, strategy, &h, j->n_micro, load, j, pair));
    if (ls_strategy_here(strategy, m->n_unit - 1)) memcpy(j->pair, pair, sizeof pair);
    LS_TRY(ls_barrier(all, LS_SITE));
    ls_pipe_destroy(&pipe);
    ls_strategy_destroy(&strategy);
    ls_schedule_destroy(&sch);
    ls_model_destroy(&m);
    ls_plan_fini(&plan);
    ls_comm_destroy(&acts);
    ls_comm_destroy(&grads);
    ls_comm_destroy(&self);
    ls_comm_destroy(&all);
    return LS_OK;
}

static void *stage_main(void *arg)
{
    stage *s = arg;
    s->st = run_stage(s);
    if (s->st != LS_OK) snprintf(s->words, sizeof s->words, "%s", ls_err_words());
    return NULL;
}

static void run(job *j)
{
    pthread_t thread[MAX_PART];
    stage s[MAX_PART];
    assert_int_equal(ls_local_world_create(j->n_stage, (size_t)64 << 20, &j->world), LS_OK);
    for (int r = 0; r < j->n_stage; r++) {
        s[r] = (stage){.j = j, .rank = r};
        assert_int_equal(pthread_create(&thread[r], NULL, stage_main, &s[r]), 0);
    }
    for (int r = 0; r < j->n_stage; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < j->n_stage; r++)
        if (s[r].st != LS_OK) fail_msg("stage %d: %s", r, s[r].words);
    ls_local_world_destroy(&j->world);
}

static ls_stages cut(const ls_model_config *cfg, int n_stage, int n_chunk)
{
    ls_part_cost cost[16];
    ls_stages st;
    ls_stages_model(cfg, 1, LEN, cost);
    assert_int_equal(ls_stages_balance(&st, cost, cfg->n_layer + 2, n_stage, n_chunk, NULL), LS_OK);
    return st;
}

static void a_pipelined_forward_gives_the_same_losses(void **state)
{
    (void)state;
    const int64_t rows[] = {1, 16, 32, 64}, split[] = {1, 2, 4, 8, 16};
    ls_model_config cfg = small_config(LS_VARIANT_HF, 0);
    const ls_stages st = cut(&cfg, 2, 1);
    for (size_t a = 0; a < 4; a++) {
        fixture one;
        double whole = 0;
        assert_int_equal(fixture_open(&one, &cfg, "cpu-ref", LS_F32, 1, rows[a], LEN, 1, false, 64), LS_OK);
        for (int64_t r = 0; r < rows[a]; r++) fill_row(r, &cfg, one.ids + r * LEN, one.target + r * LEN);
        ls_micro mb = {.ids = one.ids, .target = one.target, .B = rows[a], .T = LEN};
        assert_int_equal(ls_walk(one.model, one.acts, &mb, NULL, LS_FWD, 0, one.model->n_unit), LS_OK);
        whole = mb.loss_sum;
        for (size_t b = 0; b < 5; b++) {
            static job j;
            j = (job){.schedule = "gpipe",
                      .n_stage = 2,
                      .n_chunk = 1,
                      .n_micro = (int)((rows[a] + split[b] - 1) / split[b]),
                      .B = split[b],
                      .rows = rows[a],
                      .stages = &st,
                      .cfg = &cfg};
            run(&j);
            double sum = 0, counted = 0;
            for (int k = 0; k < j.n_micro; k++) {
                ls_micro part = {.ids = one.ids + k * split[b] * LEN,
                                 .target = one.target + k * split[b] * LEN,
                                 .B = piece_rows(&j, k),
                                 .T = LEN};
                assert_int_equal(ls_walk(one.model, one.acts, &part, NULL, LS_FWD, 0, one.model->n_unit), LS_OK);
                assert_true(part.loss_sum == j.pair[k][0]); /* bit for bit */
                sum += j.pair[k][0];
                counted += j.pair[k][1];
            }
            assert_true(counted == (double)(rows[a] * LEN));
            assert_true(fabs(sum - whole) <= 1e-5 * fabs(whole) + 1e-8);
        }
        fixture_close(&one);
    }
}

static void check_step(const ls_model_config *cfg, const char *schedule, int n_stage, int n_chunk, int n_micro,
                       bool recompute)
{
    static job j;
    const ls_stages st = cut(cfg, n_stage, n_chunk);
    fixture one;
    assert_int_equal(fixture_open(&one, cfg, "cpu-ref", LS_F32, 1, 2, LEN, n_micro, false, 64), LS_OK);
    j = (job){.schedule = schedule,
              .n_stage = n_stage,
              .n_chunk = n_chunk,
              .n_micro = n_micro,
              .B = 2,
              .rows = 2 * n_micro,
              .backward = true,
              .recompute = recompute,
              .stages = &st,
              .cfg = cfg};
    for (int u = 0; u < one.model->n_unit; u++) j.grad[u] = ls_alloc((size_t)one.model->unit[u].n * sizeof(float));
    run(&j);
    for (int k = 0; k < n_micro; k++) {
        ls_micro mb = {.ids = one.ids, .target = one.target, .T = LEN, .train = true};
        const ls_hooks h = {.ctx = one.tree, .grad_ready = fixture_ready};
        ls_gradtree_begin(one.tree, k);
        assert_int_equal(load(&j, k, one.ids, one.target, &mb), LS_OK);
        assert_int_equal(ls_walk(one.model, one.acts, &mb, NULL, LS_FWD, 0, one.model->n_unit), LS_OK);
        assert_int_equal(ls_walk(one.model, one.acts, &mb, &h, LS_BWD, 0, one.model->n_unit), LS_OK);
        assert_true(mb.loss_sum == j.pair[k][0]);
    }
    assert_int_equal(fixture_fold_tied(one.model), LS_OK);
    for (int u = 0; u < one.model->n_unit; u++) {
        if (memcmp(j.grad[u], one.model->unit[u].grad, (size_t)one.model->unit[u].n * sizeof(float)))
            fail_msg("%s, %d stages x %d, %d micro-batches: the gradient of unit %d differs", schedule, n_stage,
                     n_chunk, n_micro, u);
        ls_free(j.grad[u]);
    }
    fixture_close(&one);
}

static void a_pipelined_step_gives_the_same_gradients(void **state)
{
    (void)state;
    const char *const name[] = {"naive", "gpipe", "1f1b", "zb"};
    for (int tied = 0; tied < 2; tied++) {
        ls_model_config cfg = small_config(tied ? LS_VARIANT_HF : LS_VARIANT_R1, 0.1);
        cfg.n_layer = 6;
        for (int P = 2; P <= 8; P += 2)
            for (int M = 1; M <= 8; M = M * 2 + (M == 2)) /* 1, 2, 5 */
                for (int k = 0; k < 4; k++) check_step(&cfg, name[k], P, 1, M, false);
        check_step(&cfg, "1f1b", 3, 1, 4, true);
        check_step(&cfg, "interleaved", 2, 2, 4, false);
        check_step(&cfg, "interleaved", 2, 4, 4, true);
        check_step(&cfg, "interleaved", 4, 2, 8, false);
        check_step(&cfg, "interleaved", 3, 2, 4, false);
    }
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(a_pipelined_forward_gives_the_same_losses),
                                   cmocka_unit_test(a_pipelined_step_gives_the_same_gradients)};
    return cmocka_run_group_tests(t, NULL, NULL);
}
