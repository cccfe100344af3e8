/* The planner for GPUs, on the emulated device: planned bytes equal those of a run in every precision and on every rank, scratch sizes
 * without a device equal those of the device, and the file of a measured device gives predictions. */
/* ls-test: long */
#include "cmocka_all.h"
#include "plan_checks.h"
#include "test_argv.h"
#include "token_files.h"
#include "plan/planner.h"
#include "plan/planner_measure.h"
#include "comm/launch.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/rng.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[256];

static int make_data(void **state)
{
    (void)state;
    return token_files_make_emulated(dir, "ls_plan_gpu");
}

static int remove_data(void **state)
{
    (void)state;
    return ls_fs_remove_tree(dir) != LS_OK;
}

/* ---- memory, compared with the trainer ---- */

typedef struct layout_case {
    int workers;
    const char *precision, *words;
    bool steps;
} layout_case;

static ls_status same_memory(ls_trainer *t)
{
    ls_plan_memory m;
    const int rank = ls_comm_rank(t->comm);
    LS_TRY(ls_planner_memory(t->cfg, NULL, (ls_worker_cpu){0}, rank, t->val.n_seq, &m));
    LS_TRY(plan_same_memory("without a device", &m, &t->plan));
    LS_TRY(ls_planner_memory(t->cfg, &t->compute, (ls_worker_cpu){0}, rank, t->val.n_seq, &m));
    return plan_same_memory("with the device", &m, &t->plan);
}

static ls_status worker(void *ctx, ls_comm *comm, int n_core)
{
    const layout_case *lc = ctx;
    static char text[1024];
    static char *argv[TEST_ARGV_MAX];
    snprintf(
        text, sizeof text,
        "--data %s --checkpoint_path %s/run --model tiny --num_layers 2 --num_heads 2 --embedding_size 64 --seq_length %d -n %d --device cuda --precision %s %s",
        dir, dir, lc->steps ? 8 : 32, lc->workers, lc->precision, lc->words);
    const int argc = test_argv(text, argv);
    ls_train_options o;
    ls_train_paths paths = {0};
    ls_train_config c = {0};
    ls_trainer *t = NULL;
    LS_TRY(ls_train_options_parse(argc, argv, &o));
    LS_TRY(ls_train_find_paths(&o, &paths));
    LS_TRY(ls_train_resolve(&o, NULL, &paths, &(ls_train_facts){.world_size = lc->workers, .data_eos_id = -1}, &c));
    c.threads = n_core;
    LS_TRY(ls_trainer_create(&t, &c, comm, &(ls_train_io){0}));
    LS_TRY(same_memory(t));
    ls_cluster cluster;
    if (lc->steps && !ls_cluster_preset("h200", &cluster)) return ls_fail(LS_E_CONFIG, "the preset h200 is missing");
    if (lc->steps) LS_TRY(plan_same_collectives(t, &cluster));
    LS_TRY(ls_barrier(t->dp, LS_SITE)); /* after the parameter gathers that were posted */
    ls_trainer_destroy(&t);
    ls_train_config_fini(&c);
    ls_train_paths_fini(&paths);
    return LS_OK;
}

static void report(void *ctx, int rank, ls_status st)
{
    const layout_case *lc = ctx;
    if (st != LS_OK)
        fprintf(stderr, "rank %d of %d, %s %s: %s\n", rank, lc->workers, lc->precision, lc->words, ls_err_words());
}

static void planned_memory_is_what_is_allocated(void **state)
{
    (void)state;
    static const char *const precision[] = {"bf16", "fp16", "fp32"};
    static const struct {
        int workers;
        const char *words;
    } layout[] = {
        {1, "--micro_batch_size_per_gpu 2 --grad_accum_steps 3"},
        {1, "--micro_batch_size_per_gpu 3 --recompute --variant r1 --no_deterministic"},
        {2, "--strategy dp --micro_batch_size_per_gpu 2 --grad_accum_steps 2"},
        {2, "--strategy ddp --micro_batch_size_per_gpu 1 --bucket 25000"},
        {2, "--strategy zero1 --micro_batch_size_per_gpu 2 --grad_accum_steps 2 --bucket 17000 --gather_bucket 12000"},
        {2, "--strategy zero2 --micro_batch_size_per_gpu 2 --grad_accum_steps 3"},
        {2, "--strategy zero3 --micro_batch_size_per_gpu 2 --grad_accum_steps 2"},
        {2, "--pp 2 --schedule 1f1b --micro_batch_size_per_gpu 1 --grad_accum_steps 2"},
        {2, "--pp 2 --schedule zb --micro_batch_size_per_gpu 1 --grad_accum_steps 4"},
        {2, "--tp 2 --micro_batch_size_per_gpu 2 --grad_accum_steps 2"},
        {4, "--strategy ddp --micro_batch_size_per_gpu 1"},
        {4, "--strategy zero1 --micro_batch_size_per_gpu 1 --grad_accum_steps 2"},
        {4, "--strategy zero2 --micro_batch_size_per_gpu 1"},
        {4, "--strategy zero3 --micro_batch_size_per_gpu 1 --grad_accum_steps 2"},
        {4, "--pp 2 --strategy zero1 --micro_batch_size_per_gpu 1 --grad_accum_steps 2 --variant r1"},
        {4, "--tp 2 --strategy zero3 --micro_batch_size_per_gpu 2 --variant r1"},
        {4, "--tp 2 --pp 2 --micro_batch_size_per_gpu 2 --grad_accum_steps 2 --sequence_parallel"},
    };
    const size_t all[] = {1, 3, 5}, some[] = {2, 5, 7}, *step = getenv("LS_TEST_ALL") ? all : some;
    int n = 0;
    for (size_t p = 0; p < N_OF(precision); p++)
        for (size_t i = p; i < N_OF(layout); i += step[p], n++) { /* more layouts in bf16 than in the other types */
            layout_case lc = {layout[i].workers, precision[p], layout[i].words, false};
            const ls_launch l = {
                .n = lc.workers, .arena_nbytes = (size_t)256 << 20, .body = worker, .report = report, .ctx = &lc};
            if (ls_launch_local(&l) != LS_OK) fail_msg("%d workers, %s: %s", lc.workers, lc.precision, lc.words);
        }
    print_message("%d layouts: all parts of memory of all ranks are equal\n", n);
}

static void predicted_collectives_are_those_sent(void **state)
{
    (void)state;
    static const layout_case all[] = {
        {2, "bf16", "--strategy ddp --micro_batch_size_per_gpu 1 --grad_accum_steps 2", true},
        {2, "bf16", "--strategy zero1 --micro_batch_size_per_gpu 1", true},
        {2, "fp16", "--strategy zero2 --micro_batch_size_per_gpu 1", true},
        {2, "bf16", "--strategy zero3 --micro_batch_size_per_gpu 1", true},
    };
    for (size_t i = 0; i < N_OF(all); i++) {
        const ls_launch l = {.n = all[i].workers,
                             .arena_nbytes = (size_t)256 << 20,
                             .body = worker,
                             .report = report,
                             .ctx = (void *)(uintptr_t)&all[i]};
        if (ls_launch_local(&l) != LS_OK) fail_msg("%s: %s", all[i].precision, all[i].words);
    }
}

/* For any shape, sizes that are computed without a GPU equal those of the backend. */
static ls_status sizes_are_the_devices(void *ctx, ls_comm *comm, int n_core)
{
    static const ls_dtype all[] = {LS_F32, LS_BF16, LS_F16};
    (void)ctx, (void)comm, (void)n_core;
    for (size_t d = 0; d < N_OF(all); d++) {
        ls_compute device, sizes;
        LS_TRY(ls_compute_open(&device, "cuda", &(ls_compute_open_opts){.dtype = all[d], .deterministic = true}, 1));
        LS_TRY(ls_compute_open_sizes(&sizes, all[d]));
        for (uint64_t i = 0; i < 400; i++) {
            const uint64_t r = ls_rng_u64(11, i);
            const int64_t H = 1 + (int64_t)(r % 25), C = H * (int64_t)(8 << (r >> 8 & 3));
            const ls_compute_shapes s = {.B = 1 + (int64_t)(r >> 12 & 63),
                                         .T = 1 + (int64_t)(r >> 20 & 1023),
                                         .C = C,
                                         .H = H,
                                         .V = i % 7 ? 1 + (int64_t)(r >> 32 & 65535) : 0,
                                         .ffn = i % 5 ? 4 * C : 0,
                                         .backward = i % 3 > 0,
                                         .n_part = 1 + (int)(r >> 50 & 3)};
            const size_t a = ls_compute_scratch(&device, &s), b = ls_compute_scratch(&sizes, &s);
            if (a != b)
                return ls_fail(
                    LS_E_CONFIG,
                    "%s B %lld T %lld C %lld V %lld: the device needs %zu bytes, %zu were computed without it",
                    ls_dtype_word(all[d]), (long long)s.B, (long long)s.T, (long long)C, (long long)s.V, a, b);
            if (s.V && device.ops->adds_alike(&device, &s) != sizes.ops->adds_alike(&sizes, &s))
                return ls_fail(LS_E_CONFIG, "adds_alike differs");
        }
        ls_compute_close(&sizes);
        ls_compute_close(&device);
    }
    return LS_OK;
}

static void scratch_sizes_equal_those_of_the_device(void **state)
{
    (void)state;
    layout_case lc = {1, "", "", false};
    const ls_launch l = {.n = 1, .body = sizes_are_the_devices, .report = report, .ctx = &lc};
    assert_int_equal(ls_launch_local(&l), LS_OK);
}

/* A small model on the device: all times are measured, the file reads back unchanged, and the search uses it. */
static void a_measured_device_gives_predictions(void **state)
{
    (void)state;
    ls_measure_opts o = {.seq_len = 8,
                         .micro = {1},
                         .n_micro = 1,
                         .workers = {1, 2},
                         .n_workers = 2,
                         .seconds = 0.2,
                         .cuda = true,
                         .device = -1,
                         .dtype = LS_BF16};
    ls_cluster c, back;
    assert_int_equal(ls_model_config_preset("tiny", &o.model), LS_OK);
    o.model.n_layer = 1;
    o.model.n_embd = 32;
    o.model.n_head = 2;
    o.model.vocab_size = 40;
    o.model.eos_id = -1;
    if (ls_planner_measure(&o, &c) != LS_OK) fail_msg("%s", ls_err_words());
    print_message("%s\n", c.source);
    assert_false(c.cpu);
    assert_non_null(strstr(c.source, "1 x emulated device, up to 2 workers share a GPU, bf16"));
    assert_int_equal(c.devices, 2);
    assert_int_equal(c.n_units, 3); /* one worker, two workers, two shards */
    assert_int_equal(c.n_passes, 2);
    assert_int_equal(c.n_curve, 6);
    for (int i = 0; i < c.n_units; i++) {
        assert_int_equal(c.units[i].dtype, LS_BF16);
        for (int k = 0; k < LS_N_UNIT_TIME; k++) assert_true(c.units[i].sec[k] > 0);
    }
    for (int i = 0; i < c.n_passes; i++) {
        assert_int_equal(c.passes[i].dtype, LS_BF16);
        assert_true(c.passes[i].adamw > 0 && c.passes[i].sumsq > 0 && c.passes[i].add > 0 && c.passes[i].step >= 0);
    }
    assert_true(c.rates[1].matmul > 0 && c.rates[1].attention > 0 && c.bandwidth > 0 && c.ramp > 0);
    assert_true(c.rates[0].matmul == 0 && c.rates[1].peak == 0 && c.power == 0); /* not measured: not set */
    assert_int_equal(ls_cluster_default_precision(&c), LS_BF16);
    assert_int_equal(ls_cluster_check_precision(&c, LS_F32), LS_E_UNSUPPORTED);
    ls_err_clear();
    ls_str text = {0}, again = {0};
    char path[300];
    ls_cluster_text(&c, &text);
    snprintf(path, sizeof path, "%s/gpu.json", dir);
    assert_int_equal(ls_fs_write(path, text.data, text.len), LS_OK);
    if (ls_cluster_load(path, &back) != LS_OK) fail_msg("%s", ls_err_words());
    ls_cluster_text(&back, &again);
    assert_string_equal(text.data, again.data);
    ls_planner_query q = {
        .model = o.model, .global_batch = 4, .seq_len = 8, .workers = 2, .cuda = true, .dtype = LS_BF16};
    ls_planner_result r;
    assert_int_equal(ls_planner_search(&back, &q, &r), LS_OK);
    assert_true(r.n_fit > 0 && r.layout[0].time.tokens_per_sec > 0);
    ls_planner_result_fini(&r);
    const ls_train_config one = ls_planner_config(&q, "single", (ls_mesh){{1, 1, 1}, 1}, NULL, 1, 1);
    ls_prediction p;
    assert_int_equal(ls_planner_predict(&back, &one, &p), LS_OK);
    const double *u = c.units[0].sec; /* 4 micro-batches of the measured size */
    assert_true(fabs(p.forward / (4 * (u[LS_TIME_EMBED_FWD] + u[LS_TIME_BLOCK_FWD] + u[LS_TIME_HEAD_FWD])) - 1) < 1e-9);
    ls_str_fini(&text);
    ls_str_fini(&again);
    ls_cluster_fini(&c);
    ls_cluster_fini(&back);
}

/* The ZeRO scaling study's step on one T4: set up and allocated as planned, in the memory that its driver reports. No step is computed. */
static void the_studys_model_fits_a_t4(void **state)
{
    (void)state;
    static const unsigned char ids[2 * (16 * 512 + 1)];
    char path[300];
    layout_case lc = {1, "fp16",
                      "--model gpt2 --variant r1 --num_layers 12 --num_heads 12 --embedding_size 768 --seq_length 512 "
                      "--micro_batch_size_per_gpu 4 --grad_accum_steps 4",
                      false};
    const ls_launch l = {.n = 1, .arena_nbytes = (size_t)256 << 20, .body = worker, .report = report, .ctx = &lc};
    snprintf(path, sizeof path, "%s/train.bin", dir);
    assert_int_equal(ls_fs_write(path, ids, sizeof ids), LS_OK);
    assert_int_equal(setenv("LS_EMU_GPU", "t4", 1), 0);
    const ls_status st = ls_launch_local(&l);
    assert_int_equal(unsetenv("LS_EMU_GPU"), 0);
    assert_int_equal(st, LS_OK);
}

static void no_memory_is_leaked(void **state)
{
    (void)state;
    assert_int_equal(ls_mem_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_measured_device_gives_predictions),
        cmocka_unit_test(planned_memory_is_what_is_allocated),
        cmocka_unit_test(predicted_collectives_are_those_sent),
        cmocka_unit_test(scratch_sizes_equal_those_of_the_device),
        cmocka_unit_test(the_studys_model_fits_a_t4),
        cmocka_unit_test(no_memory_is_leaked),
    };
    return cmocka_run_group_tests(tests, make_data, remove_data);
}
