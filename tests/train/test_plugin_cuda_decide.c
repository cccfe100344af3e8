/* A number that is not finite leaves weights and moments as they were, although the update is queued before the host has read it: on the CPU
 * and on the emulated device, in every precision; loss scaling skips the step, otherwise the run ends and the error names the tensor. */
#include "cmocka_all.h"
#include "comm/launch.h"
#include "core/fs.h"
#include "core/mem.h"
#include "test_argv.h"
#include "token_files.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[256];

static int make_data(void **state)
{
    (void)state;
    return token_files_make_emulated(dir, "ls_decide");
}

static int remove_data(void **state)
{
    (void)state;
    return ls_fs_remove_tree(dir) != LS_OK;
}

typedef enum wrong { NOTHING, GRADIENT, LOSS, OPERAND, OPERAND_NAN } wrong;

typedef struct run {
    ls_train_options o;
    ls_train_config c;
    ls_trainer *t;
    wrong what;
} run;

/* After the reduction: what the norm and the decision read. */
static ls_status spoil(void *ctx, ls_trainer *t, const ls_event *e)
{
    const run *r = ctx;
    const float nan_ = NAN, inf = INFINITY;
    if (e->kind != LS_ON_PHASE_END || e->phase != LS_PHASE_REDUCE || r->what == NOTHING) return LS_OK;
    LS_TRY(ls_compute_sync(&t->compute));
    if (r->what == LOSS) t->micro_loss[2] = INFINITY;
    if (r->what == OPERAND || r->what == OPERAND_NAN)
        LS_TRY(ls_compute_write(&t->compute, t->model->fp8->amax + 3, r->what == OPERAND ? &inf : &nan_, sizeof inf));
    if (r->what == GRADIENT)
        LS_TRY(ls_compute_write(&t->compute, ls_at_wide(&t->compute, ls_strategy_own(t->strategy, 1).grad, 5), &nan_,
                                sizeof nan_));
    return LS_OK;
}

static ls_status try_open(run *r, ls_comm *comm, const char *extra)
{
    static char text[1024];
    static char *argv[TEST_ARGV_MAX];
    memset(r, 0, sizeof *r);
    snprintf(text, sizeof text,
             "--data %s --checkpoint_path %s/run --model tiny --num_layers 1 --num_heads 1 --embedding_size 16 "
             "--seq_length 16 --micro_batch_size_per_gpu 1 --gradient_accumulation_steps 2 --threads 1 %s",
             dir, dir, extra);
    const int argc = test_argv(text, argv);
    ls_train_paths paths = {0};
    const ls_train_facts facts = {.world_size = comm ? ls_comm_size(comm) : 1, .data_eos_id = -1};
    LS_TRY(ls_train_options_parse(argc, argv, &r->o));
    LS_TRY(ls_train_find_paths(&r->o, &paths));
    LS_TRY(ls_train_resolve(&r->o, NULL, &paths, &facts, &r->c));
    ls_train_paths_fini(&paths);
    LS_TRY(ls_trainer_create(&r->t, &r->c, comm, &(ls_train_io){0}));
    r->t->observer = (ls_observer){.see = spoil, .ctx = r};
    return LS_OK;
}

static void open_run(run *r, const char *extra)
{
    if (try_open(r, NULL, extra) != LS_OK) fail_msg("%s", ls_err_words());
}

static void close_run(run *r)
{
    ls_trainer_destroy(&r->t);
    ls_train_config_fini(&r->c);
}

/* Parameters, master weights and moments. */
static char *state_of(const run *r, size_t *nbytes)
{
    const ls_trainer *t = r->t;
    const size_t narrow = ls_dtype_nbytes(t->compute.ops->dtype), wide = ls_dtype_nbytes(t->compute.ops->wide);
    *nbytes = 0;
    for (int u = 0; u < t->model->n_unit; u++) *nbytes += (size_t)t->model->unit[u].n_pad * (narrow + 3 * wide);
    char *all = ls_alloc(*nbytes), *to = all;
    assert_non_null(all);
    for (int u = 0; u < t->model->n_unit; u++) {
        const ls_own o = ls_strategy_own(t->strategy, u);
        const void *const part[] = {o.param, o.master, o.m, o.v};
        for (int k = 0; k < 4; k++) {
            const size_t n = (size_t)o.n * (k ? wide : narrow);
            assert_int_equal(ls_compute_read(&t->compute, to, part[k], n), LS_OK);
            to += n;
        }
    }
    return all;
}

/* One good step, then a bad one. message NULL: it is skipped. */
static void check(const char *options, wrong what, const char *message)
{
    run r;
    ls_step_result s;
    size_t n;
    print_message("%s: %d\n", options, (int)what);
    open_run(&r, options);
    char *fresh = state_of(&r, &n);
    if (ls_trainer_step(r.t, &s) != LS_OK) fail_msg("%s", ls_err_words());
    char *before = state_of(&r, &n);
    assert_true(!s.skipped && memcmp(fresh, before, n)); /* a good step does update */
    r.what = what;
    const ls_status st = ls_trainer_step(r.t, &s);
    char *after = state_of(&r, &n);
    assert_memory_equal(before, after, n);
    if (message) {
        assert_int_equal(st, LS_E_NUMERIC);
        if (!strstr(ls_err_words(), message)) fail_msg("%s", ls_err_words());
        assert_int_equal(r.t->state.step, 1);
    } else {
        assert_int_equal(st, LS_OK);
        assert_true(s.skipped && r.t->state.skipped == 1);
        r.what = NOTHING;
        assert_int_equal(ls_trainer_step(r.t, &s), LS_OK);
        ls_free(after);
        after = state_of(&r, &n);
        assert_true(!s.skipped && memcmp(before, after, n));
    }
    ls_free(fresh);
    ls_free(before);
    ls_free(after);
    close_run(&r);
}

static const char gradient[] = "step 2: the gradient norm is NaN; the gradient of transformer.h.0.";

static void a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    check("--device cpu", GRADIENT, gradient);
    check("--device cuda --precision fp32", GRADIENT, gradient);
    check("--device cuda --precision bf16", GRADIENT, gradient);
    check("--device cuda --precision bf16 --clip 0 --strategy zero3", GRADIENT, gradient);
    check("--device cuda --precision bf16 --offload_optimizer cpu", GRADIENT, gradient);
    check("--device cuda --precision fp16", GRADIENT, NULL);
}

static void other_numbers_that_are_not_finite_change_nothing(void **state)
{
    (void)state;
    check("--device cpu", LOSS, "step 2: the loss is infinite, while every parameter is finite");
    check("--device cuda --precision bf16", LOSS, "step 2: the loss is infinite, while every parameter is finite");
    check("--device cuda --precision fp16", LOSS, NULL);
    check("--device cuda --precision fp8", OPERAND, "step 2: an operand of a product in fp8 is infinite");
}

static ls_status one_of_two(void *ctx, ls_comm *comm, int n_core)
{
    run r;
    ls_step_result s;
    (void)n_core;
    LS_TRY(try_open(&r, comm, "--device cuda --precision fp8"));
    LS_TRY(ls_trainer_step(r.t, &s));
    r.what = ls_comm_rank(comm) == *(const int *)ctx ? OPERAND_NAN : NOTHING;
    const ls_status st = ls_trainer_step(r.t, &s);
    const bool found = st == LS_E_NUMERIC && strstr(ls_err_words(), "step 2: an operand of a product in fp8 is NaN");
    close_run(&r);
    return found ? LS_OK : ls_fail(LS_E_NUMERIC, "status %d: %s", (int)st, ls_err_words());
}

static void report(void *ctx, int rank, ls_status st)
{
    if (st != LS_OK) fprintf(stderr, "NaN on rank %d, rank %d: %s\n", *(const int *)ctx, rank, ls_err_words());
}

/* A comparison with NaN is false: the maximum over the workers must not lose it. */
static void an_operand_of_any_worker_ends_the_run(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        const ls_launch l = {
            .n = 2, .arena_nbytes = (size_t)1 << 30, .body = one_of_two, .report = report, .ctx = &rank};
        if (ls_launch_local(&l) != LS_OK) fail_msg("%s", ls_err_words());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_operand_of_any_worker_ends_the_run),
                                       cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
                                       cmocka_unit_test(other_numbers_that_are_not_finite_change_nothing)};
    return cmocka_run_group_tests(tests, make_data, remove_data);
}
