/* The trainer: nothing is allocated after the first step, the planned memory is allocated, a stop keeps the state of the last step, and
 * the error for a NaN names its step and tensor. */
#include "cmocka_all.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/stop.h"
#include "test_argv.h"
#include "test_folder.h"
#include "train/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *dir;

static int make_data(void **state)
{
    (void)state;
    dir = test_dir();
    unsigned char bytes[2 * 4000];
    for (int i = 0; i < 4000; i++) {
        bytes[2 * i] = (unsigned char)(ls_rng_u64(3, (uint64_t)i) % 200 * (i % 3 == 0) + 20);
        bytes[2 * i + 1] = 0;
    }
    assert_int_equal(ls_fs_write(test_path(dir, "train.bin", NULL), bytes, sizeof bytes), LS_OK);
    assert_int_equal(ls_fs_write(test_path(dir, "val.bin", NULL), bytes, 2 * 500), LS_OK);
    return 0;
}

static int remove_data(void **state)
{
    (void)state;
    test_dir_close(dir);
    return 0;
}

typedef struct run {
    ls_train_options o;
    ls_train_config c;
    ls_trainer *t;
    ls_run_identity id;
} run;

/* `extra`: arguments of a command line, separated by single blanks. scale: a loss scale (the CPU needs none), or NULL. */
static void open_scaled(run *r, const char *extra, const ls_loss_scale_config *scale)
{
    static char text[1024];
    static char *argv[TEST_ARGV_MAX];
    memset(r, 0, sizeof *r);
    snprintf(text, sizeof text,
             "--data %s --checkpoint_path %s/run --model tiny --seq_length 32 --micro_batch_size_per_gpu 2 %s", dir,
             dir, extra);
    const int argc = test_argv(text, argv);
    ls_train_paths paths = {0};
    assert_int_equal(ls_run_identity_capture(&r->id, "lockstep train", argc, argv, NULL), LS_OK);
    assert_int_equal(ls_train_options_parse(argc, argv, &r->o), LS_OK);
    assert_int_equal(ls_train_find_paths(&r->o, &paths), LS_OK);
    if (ls_train_resolve(&r->o, NULL, &paths, &(ls_train_facts){.data_eos_id = -1}, &r->c) != LS_OK)
        fail_msg("%s", ls_err_words());
    ls_train_paths_fini(&paths);
    if (scale) r->c.loss_scale = *scale;
    if (ls_trainer_create(&r->t, &r->c, NULL, &(ls_train_io){0}) != LS_OK) fail_msg("%s", ls_err_words());
}

static void open_run(run *r, const char *extra)
{
    open_scaled(r, extra, NULL);
}

static void close_run(run *r)
{
    ls_trainer_destroy(&r->t);
    ls_train_config_fini(&r->c);
    ls_run_identity_fini(&r->id);
}

static void nothing_is_allocated_after_step_1(void **state)
{
    (void)state;
    static const char *const how[] = {"--grad_accum_steps 1", "--grad_accum_steps 5 --dropout 0.1",
                                      "--grad_accum_steps 2 --recompute"};
    for (size_t i = 0; i < N_OF(how); i++) {
        run r;
        ls_step_result s;
        open_run(&r, how[i]);
        assert_int_equal(ls_trainer_step(r.t, &s), LS_OK);
        int64_t count = ls_mem_count();
        double val;
        int64_t n_batch;
        for (int k = 0; k < 3; k++) assert_int_equal(ls_trainer_step(r.t, &s), LS_OK);
        assert_int_equal(ls_trainer_validate(r.t, &val, &n_batch), LS_OK);
        assert_true(n_batch > 0);
        assert_int_equal(ls_mem_count(), count);
        close_run(&r);
    }
}

static void planned_bytes_are_the_allocated_bytes(void **state)
{
    (void)state;
    run r;
    open_run(&r, "--grad_accum_steps 4");
    int64_t sum = 0;
    for (int p = 0; p < LS_N_PART; p++) sum += ls_plan_part_bytes(&r.t->plan, (ls_part)p);
    assert_true(sum >= r.t->plan.total);
    const int64_t held = ls_mem_live_bytes(), total = r.t->plan.total;
    ls_plan_fini(&r.t->plan); /* frees the arena and its small table */
    const int64_t freed = held - ls_mem_live_bytes();
    print_message("planned %lld bytes, freed %lld with the plan's table\n", (long long)total, (long long)freed);
    assert_true(freed >= total && freed - total < 64 * 1024);
    close_run(&r);
    assert_int_equal(ls_mem_live(), 0);
}

static void a_stop_keeps_the_last_step(void **state)
{
    (void)state;
    run r;
    ls_step_result s;
    open_run(&r, "--grad_accum_steps 2");
    for (int i = 0; i < 2; i++) assert_int_equal(ls_trainer_step(r.t, &s), LS_OK);
    const size_t n = (size_t)r.t->model->unit[1].n * sizeof(float);
    void *before = ls_alloc(n);
    assert_non_null(before);
    memcpy(before, r.t->model->unit[1].param, n);
    ls_stop_raise(SIGTERM);
    assert_int_equal(ls_trainer_step(r.t, &s), LS_E_STOPPED);
    ls_stop_raise(0);
    assert_int_equal(r.t->state.step, 2);
    assert_memory_equal(before, r.t->model->unit[1].param, n);
    ls_free(before);
    close_run(&r);
}

static void a_nan_names_step_and_tensor(void **state)
{
    (void)state;
    run r;
    ls_step_result s;
    open_run(&r, "");
    assert_int_equal(ls_trainer_step(r.t, &s), LS_OK);
    int u;
    const ls_tensor *x = ls_model_find(r.t->model, "h.1.mlp.c_fc.weight", &u);
    assert_non_null(x);
    ((float *)r.t->model->unit[u].param)[x->offset + 7] = NAN;
    assert_int_equal(ls_trainer_step(r.t, &s), LS_E_NUMERIC);
    assert_non_null(strstr(ls_err_words(), "step 2"));
    assert_non_null(strstr(ls_err_words(), "transformer.h.1.mlp.c_fc.weight"));
    close_run(&r);
}

/* One step from the same weights with both rules: matrices get the same bits, and weights of layer norms (1) differ by lr * decay. */
static void decay_of_matrices_spares_other_tensors(void **state)
{
    (void)state;
    run all, some;
    ls_step_result s;
    open_run(&all, "--weight_decay 0.5 --decay all --lr 0.01 --lr_schedule constant --warmup_steps 0");
    assert_int_equal(ls_trainer_step(all.t, &s), LS_OK);
    open_run(&some, "--weight_decay 0.5 --decay matrices --lr 0.01 --lr_schedule constant --warmup_steps 0");
    assert_int_equal(ls_trainer_step(some.t, &s), LS_OK);
    for (int u = 0; u < all.t->model->n_unit; u++) {
        for (int k = 0; k < all.t->model->unit[u].n_tensor; k++) {
            const ls_tensor *t = &all.t->model->unit[u].tensor[k];
            const float *a = (float *)all.t->model->unit[u].param + t->offset,
                        *b = (float *)some.t->model->unit[u].param + t->offset;
            if (t->matrix) assert_memory_equal(a, b, (size_t)t->n * 4);
            else if (strstr(t->name, "ln_1.weight"))
                for (int64_t i = 0; i < t->n; i++) assert_true(fabs((double)b[i] - (double)a[i] - 0.01 * 0.5) < 1e-6);
        }
    }
    close_run(&all);
    close_run(&some);
}

static void same_weights(const run *a, const run *b)
{
    for (int u = 0; u < a->t->model->n_unit; u++)
        assert_memory_equal(a->t->model->unit[u].param, b->t->model->unit[u].param,
                            (size_t)a->t->model->unit[u].n * sizeof(float));
}

/* Scaling a sum by a power of two and back changes no bit. */
static void a_loss_scale_changes_no_bit(void **state)
{
    (void)state;
    const ls_loss_scale_config scale = {.rule = LS_SCALE_ZERO, .initial = 1024, .min = 1, .window = 2, .hysteresis = 2};
    run a, b;
    open_run(&a, "--grad_accum_steps 3");
    open_scaled(&b, "--grad_accum_steps 3", &scale);
    for (int i = 0; i < 6; i++) {
        ls_step_result x, y;
        assert_int_equal(ls_trainer_step(a.t, &x), LS_OK);
        assert_int_equal(ls_trainer_step(b.t, &y), LS_OK);
        assert_true(x.loss == y.loss && x.grad_norm == y.grad_norm && x.lr == y.lr && !y.skipped);
        assert_true(x.loss_scale == 0 && y.loss_scale == 1024 * (i < 3 ? 1 : i < 5 ? 2 : 4));
    }
    same_weights(&a, &b);
    close_run(&a);
    close_run(&b);
}

static void steps_with_overflow_are_skipped(void **state)
{
    (void)state;
    /* far beyond a float: down to about 2^120 every gradient overflows */
    const ls_loss_scale_config scale = {
        .rule = LS_SCALE_ZERO, .initial = 0x1p140, .min = 1, .window = 4, .hysteresis = 2};
    run a, b;
    ls_step_result s;
    open_scaled(&a, "", &scale);
    const size_t n = (size_t)a.t->model->unit[0].n * sizeof(float);
    void *before = ls_alloc(n);
    assert_non_null(before);
    memcpy(before, a.t->model->unit[0].param, n);
    int skipped = 0;
    for (;; skipped++) {
        assert_int_equal(ls_trainer_step(a.t, &s), LS_OK);
        assert_true(s.loss_scale ==
                    ldexp(0x1p140, skipped ? 1 - skipped : 0)); /* the first overflow uses up the hysteresis */
        if (!s.skipped) break;
        assert_memory_equal(before, a.t->model->unit[0].param, n);
        assert_true(s.lr == ls_lr_at(&a.c.lr, 1) && isfinite(s.loss));
        assert_int_equal(a.t->state.skipped, skipped + 1);
        assert_int_equal(a.t->state.step, skipped + 1);
    }
    print_message("%d steps skipped\n", skipped);
    assert_true(skipped > 8 && skipped < 40);
    assert_true(s.lr == ls_lr_at(&a.c.lr, 1) && isfinite(s.grad_norm) && s.grad_norm > 0);
    assert_memory_not_equal(before, a.t->model->unit[0].param, n);
    assert_int_equal(ls_next_update(&a.t->state), 2);

    /* after a resume, the scale and Adam's count of updates continue */
    char name[32];
    snprintf(name, sizeof name, "step-%lld", (long long)a.t->state.step);
    assert_int_equal(ls_trainer_save(a.t, name), LS_OK);
    assert_int_equal(ls_ckpt_wait(a.t->writer), LS_OK);
    open_scaled(&b, "--resume", &scale);
    assert_memory_equal(&a.t->state.scale, &b.t->state.scale, sizeof b.t->state.scale);
    for (int i = 0; i < 12; i++) { /* the scale grows after steps without overflow, and overflows again */
        ls_step_result x;
        assert_int_equal(ls_trainer_step(a.t, &s), LS_OK);
        assert_int_equal(ls_trainer_step(b.t, &x), LS_OK);
        assert_true(s.loss == x.loss && s.lr == x.lr && s.skipped == x.skipped && s.loss_scale == x.loss_scale);
    }
    assert_true(a.t->state.skipped > skipped && a.t->state.skipped == b.t->state.skipped);
    same_weights(&a, &b);
    close_run(&b);
    close_run(&a);
    ls_free(before);

    const ls_loss_scale_config least = {
        .rule = LS_SCALE_ZERO, .initial = 0x1p140, .min = 0x1p140, .window = 4, .hysteresis = 1};
    open_scaled(&a, "", &least);
    assert_int_equal(ls_trainer_step(a.t, &s), LS_E_NUMERIC);
    assert_non_null(strstr(ls_err_words(), "smallest loss scale"));
    close_run(&a);
    assert_int_equal(ls_fs_remove_tree(test_path(dir, "run", NULL)), LS_OK);
}

static void only_real_loss_spikes_are_reported(void **state)
{
    (void)state;
    ls_spread s = {0};
    int reported = 0;
    for (int i = 0; i < 400; i++) { /* a falling loss with noise has no spike */
        const double x = 3 + 4 * exp(-i / 60.0) + 0.05 * ls_rng_normal(5, (uint64_t)i);
        reported += ls_spread_add(&s, LS_LOSS_MARGIN, x);
    }
    assert_int_equal(reported, 0);
    assert_false(ls_spread_add(&s, LS_LOSS_MARGIN, 3.3));
    assert_true(ls_spread_add(&s, LS_LOSS_MARGIN, 5.0));
    assert_false(ls_spread_add(&s, LS_LOSS_MARGIN, 3.0));
    s = (ls_spread){0};
    for (int i = 0; i < 49; i++)
        assert_false(ls_spread_add(&s, LS_LOSS_MARGIN, i == 30 ? 100 : 1)); /* too few losses to judge */
}

static void keep_event(void *ctx, const char *text)
{
    ls_str_add(ctx, text);
}

static void only_a_norm_of_three_times_the_mean_is_reported(void **state)
{
    (void)state;
    ls_spread s = {.mean = 0.61, .var = 1e-4, .n = 60};
    assert_false(ls_spread_add(&s, LS_NORM_MARGIN, 1.03));
    s = (ls_spread){.mean = 0.61, .var = 1e-4, .n = 60};
    assert_true(ls_spread_add(&s, LS_NORM_MARGIN, 2.5));
    ls_str seen = {0};
    run r;
    open_run(&r, "--max_steps 1 --save_every 0");
    r.t->io.event = keep_event;
    r.t->io.ctx = &seen;
    r.t->state.norm_spread = (ls_spread){.mean = 0.015625, .n = 60};
    assert_int_equal(ls_trainer_run(r.t, &r.id), LS_OK);
    assert_non_null(strstr(seen.data, "step 1  warning: gradient norm "));
    assert_non_null(strstr(seen.data, " (recent mean 0.01562)\n"));
    assert_int_equal(r.t->state.n_spike, 1);
    ls_str_fini(&seen);
    close_run(&r);
    assert_int_equal(ls_fs_remove_tree(test_path(dir, "run", NULL)), LS_OK);
}

static void the_loss_falls_and_artifacts_exist(void **state)
{
    (void)state;
    run r;
    open_run(&r, "--max-steps 70 --lr 3e-3 --epochs 9 --grad_accum_steps 2");
    if (ls_trainer_run(r.t, &r.id) != LS_OK) fail_msg("%s", ls_err_words());
    const ls_epoch_metrics *e = r.t->state.done;
    assert_true(r.t->state.epoch >= 2);
    assert_true(e[0].train_loss > e[r.t->state.epoch - 1].train_loss + 0.5);
    static const char *const files[] = {"training_metrics.json", "RUN_COMPLETE.txt", "launcher_metadata.json",
                                        "metrics.jsonl", "epoch-1"};
    for (size_t i = 0; i < N_OF(files); i++) {
        const char *path = test_path(dir, "run", files[i]);
        if (!ls_fs_exists(path)) fail_msg("%s is missing", path);
    }
    close_run(&r);
}

static void a_resume_without_checkpoint_keeps_the_metrics(void **state)
{
    (void)state;
    static const char line[] = "{\"step\": 1, \"loss\": 5.0}\n";
    run r;
    char extra[600];
    const char *path = test_path(dir, "killed/metrics.jsonl", NULL);
    assert_int_equal(ls_fs_write(path, line, sizeof line - 1), LS_OK);
    snprintf(extra, sizeof extra, "--checkpoint_path %s/killed --resume --max_steps 1", dir);
    open_run(&r, extra);
    if (ls_trainer_run(r.t, &r.id) != LS_OK) fail_msg("%s", ls_err_words());
    close_run(&r);
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(ls_fs_read(test_path(dir, "killed/earlier-1/metrics.jsonl", NULL), &text, &n), LS_OK);
    assert_string_equal(text, line);
    ls_free(text);
}

static void a_run_is_not_completed_by_a_lower_limit(void **state)
{
    (void)state;
    run r;
    char extra[600];
    snprintf(extra, sizeof extra, "--checkpoint_path %s/cut --max_steps 3", dir);
    open_run(&r, extra);
    if (ls_trainer_run(r.t, &r.id) != LS_OK) fail_msg("%s", ls_err_words());
    assert_int_equal(r.t->state.step, 3);
    r.c.resume = true;
    r.c.total_steps = r.c.max_steps = 2;
    assert_int_equal(ls_trainer_load(r.t), LS_OK); /* complete: nothing is left to do */
    assert_int_equal(ls_fs_remove_tree(test_path(dir, "cut/RUN_COMPLETE.txt", NULL)), LS_OK);
    assert_int_equal(ls_trainer_load(r.t), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "is at step 3; --max_steps 2 is below it; use 3 or more"));
    r.c.max_steps = 0;
    assert_int_equal(ls_trainer_load(r.t), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "raise --epochs"));
    r.c.total_steps = r.c.max_steps = 3;
    assert_int_equal(ls_trainer_load(r.t), LS_OK);
    close_run(&r);
}

/* Records one letter per event. A wrong nesting depth fails the test. */
typedef struct seen {
    char text[256];
    size_t n;
    int depth, n_phase;
    ls_event_kind fail_on;
    double off; /* the largest difference between the parts of a step and its time */
} seen;

static ls_status note_event(void *ctx, ls_trainer *t, const ls_event *e)
{
    static const char letter[] = {
        [LS_ON_RUN_BEGIN] = 'R',   [LS_ON_RUN_READY] = 'r',        [LS_ON_RUN_END] = 'X',
        [LS_ON_EPOCH_BEGIN] = 'E', [LS_ON_EPOCH_TRAINED] = 't',    [LS_ON_EPOCH_END] = 'e',
        [LS_ON_STEP_BEGIN] = 'S',  [LS_ON_STEP_END] = 's',         [LS_ON_STEP_LOG] = 'l',
        [LS_ON_VALIDATED] = 'v',   [LS_ON_CHECKPOINT_BEGIN] = 'C', [LS_ON_CHECKPOINT_END] = 'c',
        [LS_ON_SAVED] = 'w',       [LS_ON_SHUTDOWN_BEGIN] = 'D',   [LS_ON_SHUTDOWN_END] = 'd'};
    seen *x = ctx;
    (void)t;
    if (e->kind == x->fail_on) return ls_fail(LS_E_IO, "an observer failed");
    if (e->kind == LS_ON_PHASE_BEGIN) x->depth++, x->n_phase++;
    else if (e->kind == LS_ON_PHASE_END) assert_true(x->depth-- > 0);
    else if (x->n + 1 < sizeof x->text) x->text[x->n++] = letter[e->kind];
    if (e->kind != LS_ON_STEP_END) return LS_OK;
    const ls_step_split *p = &e->step->split;
    const double sum = p->input + p->forward + p->backward + p->comm_exposed + p->optimizer + p->other;
    x->off = fmax(x->off, fabs(sum - e->step->t_total));
    assert_true(e->step->t_total > 0 && x->depth == 0);
    return LS_OK;
}

static void an_observer_sees_a_run_in_order(void **state)
{
    (void)state;
    run r;
    seen x = {.fail_on = (ls_event_kind)-1};
    open_run(&r, "--max-steps 4 --epochs 2 --grad_accum_steps 2 --save_every 2 --eval_every 3");
    r.t->observer = (ls_observer){note_event, &x};
    if (ls_trainer_run(r.t, &r.id) != LS_OK) fail_msg("%s", ls_err_words());
    close_run(&r);
    assert_string_equal(x.text, "RrESslSslCcSwslvSsltevCcwXDd");
    /* phases of a step: start, 2 x (input, read, pass, forward, loss, backward), reduce, norm, squares, wait, update, numbers; 2 x 2 of validation */
    assert_int_equal(x.n_phase, 4 * (1 + 2 * 6 + 6) + 2 * 2);
    assert_true(x.off < 1e-9);
}

static void an_observer_that_fails_ends_the_step(void **state)
{
    (void)state;
    run r;
    seen x = {.fail_on = LS_ON_STEP_END};
    ls_step_result s;
    open_run(&r, "");
    r.t->observer = (ls_observer){note_event, &x};
    assert_int_equal(ls_trainer_step(r.t, &s), LS_E_IO);
    close_run(&r);
}

/* Each allocation of ls_trainer_create fails once: the status is LS_E_NOMEM, and nothing leaks. */
static void a_failed_allocation_leaks_nothing(void **state)
{
    (void)state;
    run r;
    open_run(&r, "");
    ls_trainer_destroy(&r.t);
    int64_t live = ls_mem_live(), failed = 0;
    for (int64_t k = 0;; k++) {
        ls_trainer *t = NULL;
        ls_mem_fail_at(k);
        ls_status st = ls_trainer_create(&t, &r.c, NULL, &(ls_train_io){0});
        ls_mem_fail_at(-1);
        if (st == LS_OK) {
            ls_trainer_destroy(&t);
            break;
        }
        failed++;
        assert_int_equal(st, LS_E_NOMEM);
        assert_null(t);
        assert_int_equal(ls_mem_live(), live);
    }
    print_message("%lld allocations failed, one at a time\n", (long long)failed);
    assert_true(failed > 10);
    close_run(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_allocated_after_step_1),
                                       cmocka_unit_test(planned_bytes_are_the_allocated_bytes),
                                       cmocka_unit_test(a_stop_keeps_the_last_step),
                                       cmocka_unit_test(a_nan_names_step_and_tensor),
                                       cmocka_unit_test(decay_of_matrices_spares_other_tensors),
                                       cmocka_unit_test(a_loss_scale_changes_no_bit),
                                       cmocka_unit_test(steps_with_overflow_are_skipped),
                                       cmocka_unit_test(only_real_loss_spikes_are_reported),
                                       cmocka_unit_test(a_resume_without_checkpoint_keeps_the_metrics),
                                       cmocka_unit_test(a_run_is_not_completed_by_a_lower_limit),
                                       cmocka_unit_test(only_a_norm_of_three_times_the_mean_is_reported),
                                       cmocka_unit_test(the_loss_falls_and_artifacts_exist),
                                       cmocka_unit_test(an_observer_sees_a_run_in_order),
                                       cmocka_unit_test(an_observer_that_fails_ends_the_step),
                                       cmocka_unit_test(a_failed_allocation_leaks_nothing)};
    return cmocka_run_group_tests(tests, make_data, remove_data);
}
