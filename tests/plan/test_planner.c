/* The planner: its memory and collectives equal those of a run on every rank, cluster files load as they were written, and presets
 * agree with the runs that they were fitted on and with others. (For GPUs: test_plugin_cuda_plan.c.) */
#include "assert_text.h"
#include "plan_checks.h"
#include "test_argv.h"
#include "token_files.h"
#include "plan/planner_impl.h"
#include "plan/planner_measure.h"
#include "comm/launch.h"
#include "core/fs.h"
#include "core/mem.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[256];

static int make_data(void **state)
{
    (void)state;
    return token_files_make(dir, "ls_planner");
}

static int remove_data(void **state)
{
    (void)state;
    return ls_fs_remove_tree(dir) != LS_OK;
}

/* ---- memory and collectives, compared with the trainer ---- */

typedef struct layout_case {
    int workers;
    const char *words;
} layout_case;

static const ls_cluster toy = {.name = "toy",
                               .hosts = 1,
                               .devices = 64,
                               .memory = 1LL << 40,
                               .wire_bytes = 4,
                               .update_bytes = 28,
                               .matmul = 1e11,
                               .bandwidth = 1e10,
                               .inside = {1e-5, 1e9}};

static ls_status worker(void *ctx, ls_comm *comm, int n_core)
{
    const layout_case *lc = ctx;
    static char text[1024];
    static char *argv[TEST_ARGV_MAX];
    snprintf(text, sizeof text, "--data %s --checkpoint_path %s/run --model tiny --seq_length 32 -n %d %s", dir, dir,
             lc->workers, lc->words);
    const int argc = test_argv(text, argv);
    ls_train_options o;
    ls_train_paths paths = {0};
    ls_train_config c = {0};
    ls_trainer *t = NULL;
    ls_plan_memory memory;
    LS_TRY(ls_train_options_parse(argc, argv, &o));
    LS_TRY(ls_train_find_paths(&o, &paths));
    LS_TRY(ls_train_resolve(&o, NULL, &paths, &(ls_train_facts){.world_size = lc->workers, .data_eos_id = -1}, &c));
    c.threads = n_core;
    LS_TRY(ls_trainer_create(&t, &c, comm, &(ls_train_io){0}));
    LS_TRY(ls_planner_memory(t->cfg, NULL, (ls_worker_cpu){.threads = t->compute.n_thread}, ls_comm_rank(t->comm),
                             t->val.n_seq, &memory));
    LS_TRY(plan_same_memory("on the CPU", &memory, &t->plan));
    LS_TRY(plan_same_collectives(t, &toy));
    ls_trainer_destroy(&t);
    ls_train_config_fini(&c);
    ls_train_paths_fini(&paths);
    return LS_OK;
}

static void report(void *ctx, int rank, ls_status st)
{
    const layout_case *lc = ctx;
    if (st != LS_OK && st != LS_E_COMM)
        fprintf(stderr, "rank %d of %d, %s: %s\n", rank, lc->workers, lc->words, ls_err_words());
}

static void planned_memory_and_collectives_match_a_run(void **state)
{
    (void)state;
    static const layout_case all[] = {
        {1, "--micro_batch_size_per_gpu 2 --grad_accum_steps 3"},
        {1, "--micro_batch_size_per_gpu 3 --recompute --variant r1"},
        {2, "--strategy dp --micro_batch_size_per_gpu 2 --grad_accum_steps 2"},
        {2, "--strategy ddp --micro_batch_size_per_gpu 2 --grad_accum_steps 4"},
        {2, "--strategy ddp --micro_batch_size_per_gpu 1 --bucket 100000"},
        {2, "--strategy ddp --micro_batch_size_per_gpu 1 --bucket 100000 --share_optimizer"},
        {2, "--strategy zero1 --micro_batch_size_per_gpu 2 --grad_accum_steps 2 --bucket 70000 --gather_bucket 50000"},
        {2, "--strategy zero2 --micro_batch_size_per_gpu 2 --grad_accum_steps 3"},
        {2, "--strategy zero2 --micro_batch_size_per_gpu 2 --bucket 100000"},
        {2, "--strategy zero3 --micro_batch_size_per_gpu 2 --grad_accum_steps 2"},
        {2, "--strategy zero3 --micro_batch_size_per_gpu 2 --prefetch_bucket 0 --variant r1"},
        {3, "--strategy zero1 --micro_batch_size_per_gpu 1"},
        {3, "--strategy zero3 --micro_batch_size_per_gpu 1"},
        {2, "--pp 2 --schedule naive --micro_batch_size_per_gpu 1 --grad_accum_steps 2"},
        {2, "--pp 2 --schedule gpipe --micro_batch_size_per_gpu 2 --grad_accum_steps 4"},
        {2, "--pp 2 --schedule zb --micro_batch_size_per_gpu 1 --grad_accum_steps 4"},
        {2, "--pp 2 --schedule interleaved --interleave 2 --micro_batch_size_per_gpu 1 --grad_accum_steps 4"},
        {3, "--pp 3 --schedule 1f1b --micro_batch_size_per_gpu 2 --grad_accum_steps 4 --recompute"},
        {2, "--tp 2 --micro_batch_size_per_gpu 2 --grad_accum_steps 2"},
        {4, "--tp 2 --strategy zero3 --micro_batch_size_per_gpu 2 --variant r1"},
        {4, "--tp 2 --pp 2 --micro_batch_size_per_gpu 2 --grad_accum_steps 2 --sequence_parallel"},
        {4, "--pp 2 --strategy dp --micro_batch_size_per_gpu 1 --grad_accum_steps 2"},
        {4, "--pp 2 --strategy ddp --micro_batch_size_per_gpu 1 --grad_accum_steps 2"},
        {4, "--pp 2 --strategy zero1 --micro_batch_size_per_gpu 1 --grad_accum_steps 2 --variant r1"},
        {4, "--pp 2 --strategy zero2 --micro_batch_size_per_gpu 1 --grad_accum_steps 2 --schedule gpipe --variant r1"},
        {4, "--pp 2 --strategy zero3 --micro_batch_size_per_gpu 1 --grad_accum_steps 2 --stages 0-2,3-5"},
    };
    for (size_t i = 0; i < N_OF(all); i++) {
        const ls_launch l = {.n = all[i].workers,
                             .arena_nbytes = (size_t)256 << 20,
                             .body = worker,
                             .report = report,
                             .ctx = (void *)(uintptr_t)&all[i]};
        if (ls_launch_local(&l) != LS_OK) fail_msg("%d workers: %s", all[i].workers, all[i].words);
    }
    print_message("%zu layouts: all parts of memory and all buckets of all ranks are equal\n", N_OF(all));
}

/* ---- prediction ---- */

/* Tokens/s that the scaling study published for one node of V100 and one of T4 (docs/REFERENCES.md#the-zero-scaling-study): micro-batches of 4 x 512
 * in fp16; its global batch on T4 grows with the cards. */
static const struct published {
    const char *cluster;
    int gpus;
    int64_t batch;
    double tokens_per_sec, within; /* fitted: 0.5 % */
} published[] = {{"v100", 1, 16, 29600.05, 0.005},
                 {"v100", 2, 16, 57289.31, 0.005},
                 {"v100", 4, 16, 100791.44, 0.1},
                 {"t4", 1, 16, 12914.9, 0.005},
                 {"t4", 4, 64, 44854, 0.1}};

static double published_row(const struct published *row)
{
    ls_cluster cl;
    ls_prediction p;
    ls_planner_query q = {.global_batch = row->batch,
                          .seq_len = 512,
                          .workers = row->gpus,
                          .bucket = 500000000,
                          .cuda = true,
                          .dtype = LS_F16};
    assert_true(ls_cluster_preset(row->cluster, &cl));
    cl.wire_bytes = 2; /* that program sends gradients in fp16, ours in fp32 */
    assert_int_equal(ls_model_config_preset("gpt2", &q.model), LS_OK);
    ls_model_config_set_variant(&q.model, LS_VARIANT_R1);
    const ls_train_config c =
        ls_planner_config(&q, row->gpus > 1 ? "zero1" : "single", (ls_mesh){{row->gpus, 1, 1}, row->gpus}, NULL, 1, 4);
    assert_int_equal(ls_planner_predict(&cl, &c, &p), LS_OK);
    return p.tokens_per_sec;
}

/* Layouts of an elastic run on CPUs are ranked by such a machine: every layout has a time of CPUs, and one more stage than there are micro-batches for
 * is slower. */
static void a_machine_of_cpus_ranks_layouts(void **state)
{
    (void)state;
    ls_cluster cl;
    ls_prediction ddp, full, empty;
    ls_planner_query q = {.global_batch = 8, .seq_len = 128, .workers = 2, .bucket = 500000000, .dtype = LS_F32};
    assert_int_equal(ls_model_config_preset("gpt2", &q.model), LS_OK);
    ls_cluster_cpu(2, &cl);
    ls_train_config c = ls_planner_config(&q, "ddp", (ls_mesh){{2, 1, 1}, 2}, NULL, 1, 1);
    assert_int_equal(ls_planner_predict(&cl, &c, &ddp), LS_OK);
    c = ls_planner_config(&q, "ddp", (ls_mesh){{1, 2, 1}, 2}, "1f1b", 1, 1);
    assert_int_equal(ls_planner_predict(&cl, &c, &full), LS_OK);
    c = ls_planner_config(&q, "ddp", (ls_mesh){{1, 2, 1}, 2}, "1f1b", 1,
                          8); /* one micro-batch: a stage waits for the other */
    assert_int_equal(ls_planner_predict(&cl, &c, &empty), LS_OK);
    assert_true(ddp.step > 1 && ddp.step < 1000); /* not a GPU: 8e11 operations */
    assert_true(full.step > 1 && empty.step > 1.3 * full.step);
    ls_cluster_fini(&cl);
}

static void fits_on_published_runs_predict_four_cards(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(published); i++) {
        const double got = published_row(&published[i]), off = got / published[i].tokens_per_sec - 1;
        print_message("%d x %s: predicted %.0f, published %.0f (%+.1f %%)\n", published[i].gpus, published[i].cluster,
                      got, published[i].tokens_per_sec, 100 * off);
        assert_true(fabs(off) < published[i].within);
    }
}

/* Tokens/s of one H200: the least and the most that were measured, --no_deterministic and without dropout (docs/results/gpu_h200_2026-11-15.md), and
 * with one order of sums or with dropout, which always has one (plan_h200_2026-11-16.md). The preset's 16-bit rates were measured, fp32's were
 * fitted, and so was the cost of dropout, on rows 9, 10 and 12 (planner_presets.c). */
static const struct h200_case {
    const char *model;
    int64_t batch;
    int micro, seq_len;
    ls_dtype dtype;
    bool recompute;
    double least, most;
    bool ordered, dropout;
} h200[] = {
    {"gpt2", 64, 64, 1024, LS_BF16, false, 585143, 606014, false, false},
    {"gpt2", 16, 16, 512, LS_BF16, false, 527643, 542495, false, false},
    {"gpt2", 16, 4, 512, LS_BF16, false, 433654, 437700, false, false},
    {"gpt2-xl", 8, 8, 1024, LS_BF16, false, 49200, 49498, false, false},
    {"gpt2", 16, 4, 512, LS_F16, false, 428651, 430298, false, false},
    {"gpt2-xl", 8, 8, 1024, LS_BF16, true, 38200, 38200, false, false},
    {"gpt2", 16, 16, 1024, LS_F32, false, 96633, 96633, false, false},
    {"gpt2", 64, 64, 1024, LS_BF16, false, 605362, 605776, true, false},
    {"gpt2", 64, 64, 1024, LS_BF16, false, 546323, 547273, true, true},
    {"gpt2", 16, 16, 512, LS_BF16, false, 519677, 521136, true, true},
    {"gpt2", 16, 4, 512, LS_BF16, false, 458294, 459659, true, false},
    {"gpt2", 16, 4, 512, LS_BF16, false, 426996, 427491, true, true},
    {"gpt2-xl", 8, 8, 1024, LS_BF16, false, 44909, 45172, true, true},
    {"gpt2", 16, 16, 1024, LS_F32, false, 90992, 91022, true, true},
};

static void h200_predictions_are_within_ten_percent(void **state)
{
    (void)state;
    ls_cluster cl;
    assert_true(ls_cluster_preset("h200", &cl));
    for (size_t i = 0; i < N_OF(h200); i++) {
        const struct h200_case *k = &h200[i];
        ls_planner_query q = {.global_batch = k->batch,
                              .seq_len = k->seq_len,
                              .workers = 1,
                              .cuda = true,
                              .dtype = k->dtype,
                              .recompute = k->recompute,
                              .no_deterministic = !k->ordered};
        ls_planned l = {0};
        assert_int_equal(ls_model_config_preset(k->model, &q.model), LS_OK);
        if (!k->dropout) q.model.embd_pdrop = q.model.attn_pdrop = q.model.resid_pdrop = 0;
        l.cfg = ls_planner_config(&q, "single", (ls_mesh){{1, 1, 1}, 1}, NULL, 1, k->micro);
        assert_int_equal(ls_planner_predict(&cl, &l.cfg, &l.time), LS_OK);
        const double off = fmax(fabs(l.time.tokens_per_sec / k->least - 1), fabs(l.time.tokens_per_sec / k->most - 1));
        print_message("%s %d x %lld T%d %s%s%s%s: predicted %.0f, measured %.0f to %.0f tokens/s\n", k->model, k->micro,
                      (long long)(k->batch / k->micro), k->seq_len, ls_precision_word(k->dtype),
                      k->recompute ? " recompute" : "", k->ordered ? " one order" : "", k->dropout ? " dropout" : "",
                      l.time.tokens_per_sec, k->least, k->most);
        assert_true(off < 0.10);
    }
}

/* What a cluster does not know is left out of the plan, or refused where it was given; a file with both rates has its price. */
static void settings_without_a_rate_are_left_out_or_refused(void **state)
{
    (void)state;
    ls_cluster cl = toy;
    ls_prediction without, ordered, with;
    ls_planner_query q = {.global_batch = 8, .seq_len = 512, .workers = 1, .cuda = true, .dtype = LS_F32}, given;
    assert_int_equal(ls_model_config_preset("gpt2", &q.model), LS_OK);
    given = q;
    given.dropout_given = true;
    assert_int_equal(ls_planner_settle(&cl, &given), LS_E_UNSUPPORTED);
    assert_words("no times with dropout in fp32; plan with --dropout 0");
    given = q;
    assert_int_equal(ls_planner_settle(&cl, &given), LS_OK);
    assert_true(given.no_deterministic && given.order_unknown && given.dropout_unknown && given.dropout_given);
    assert_true(given.model.attn_pdrop == 0 && given.model.resid_pdrop == 0);
    cl.rates[0] = (ls_cluster_rates){.matmul = 1e11, .attention = 1e11, .ordered = 5e10, .dropout = 2.5e10};
    assert_int_equal(ls_planner_settle(&cl, &q), LS_OK);
    assert_true(q.model.attn_pdrop > 0 && !q.no_deterministic && !q.dropout_given);
    ls_train_config c = ls_planner_config(&q, "single", (ls_mesh){{1, 1, 1}, 1}, NULL, 1, 8);
    assert_int_equal(ls_planner_predict(&cl, &c, &with), LS_OK);
    c.model.embd_pdrop = c.model.attn_pdrop = c.model.resid_pdrop = 0;
    assert_int_equal(ls_planner_predict(&cl, &c, &ordered), LS_OK);
    c.deterministic = false;
    assert_int_equal(ls_planner_predict(&cl, &c, &without), LS_OK);
    const double attention = 3.5 * 2 * 768.0 * 12 * 8 * 512 * 512, bytes = 7 * 4.0 * 768 * 12 * 8 * 512;
    assert_true(fabs(ordered.step - without.step - attention * (1 / 5e10 - 1 / 1e11)) < 1e-6);
    assert_true(fabs(with.step - without.step - attention * (1 / 2.5e10 - 1 / 1e11) - bytes / toy.bandwidth) < 1e-6);
    /* units that were measured without dropout are converted by the same rates */
    ls_cluster_units u = {.workers = 1,
                          .threads = 1,
                          .tp = 1,
                          .n_embd = 768,
                          .n_head = 12,
                          .vocab = q.model.vocab_size,
                          .B = 8,
                          .T = 512};
    for (int k = 0; k < LS_N_UNIT_TIME; k++) u.sec[k] = 1;
    assert_int_equal(ls_cluster_add_units(&cl, &u), LS_OK);
    assert_true(ls_cluster_unit(&cl, 1, 1, LS_F32, &c.model, false, 8, 512, LS_TIME_BLOCK_FWD) == 1);
    assert_true(ls_cluster_unit(&cl, 1, 1, LS_F32, &q.model, true, 8, 512, LS_TIME_BLOCK_FWD) > 1.1);
    assert_true(ls_cluster_knows_dropout(&cl, LS_F32, false) && ls_cluster_knows_dropout(&cl, LS_F32, true));
    ls_cluster_fini(&cl);
    ls_err_clear();
}

/* GPT-2 XL, B8 T1024 on an H200 with its optimizer in host memory: 0.653 s per step, and updates of 435 to 532 ms beside 150 ms of the rest
 * (docs/results/offload_h200_2026-11-16.md). The preset's bandwidths were fitted on the update. */
static void an_offloaded_update_is_predicted_within_fifteen_percent(void **state)
{
    (void)state;
    ls_cluster cl;
    ls_planner_query q = {.global_batch = 8, .seq_len = 1024, .workers = 1, .cuda = true, .dtype = LS_BF16};
    ls_prediction with, without, overlapped, scaled;
    assert_true(ls_cluster_preset("h200", &cl));
    assert_int_equal(ls_model_config_preset("gpt2-xl", &q.model), LS_OK);
    ls_train_config c = ls_planner_config(&q, "single", (ls_mesh){{1, 1, 1}, 1}, NULL, 1, 8);
    assert_int_equal(ls_planner_predict(&cl, &c, &without), LS_OK);
    c.offload = true;
    assert_int_equal(ls_planner_predict(&cl, &c, &with), LS_OK);
    print_message("predicted %.3f s, of which the update %.3f s\n", with.step, with.optimizer);
    assert_true(fabs(with.step / 0.653 - 1) < 0.15 && with.optimizer > 0.85 * 0.435 && with.optimizer < 1.15 * 0.532);
    assert_true(with.forward == without.forward && with.backward == without.backward);
    c.clip = 0; /* the CPU begins during the backward pass, and hides less than all of it */
    assert_int_equal(ls_planner_predict(&cl, &c, &overlapped), LS_OK);
    assert_true(overlapped.step < with.step && overlapped.step > with.step - with.backward);
    c.loss_scale.rule = LS_SCALE_FIXED; /* it has to wait for an overflow */
    assert_int_equal(ls_planner_predict(&cl, &c, &scaled), LS_OK);
    assert_true(scaled.step == with.step);
    cl.bus = 0;
    assert_int_equal(ls_planner_predict(&cl, &c, &scaled), LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "bus_bandwidth"));
    ls_err_clear();
}

static void totals_follow_from_the_predicted_speed(void **state)
{
    (void)state;
    ls_cluster cl;
    ls_planner_query q = {
        .global_batch = 64, .seq_len = 1024, .workers = 4, .cuda = true, .dtype = LS_BF16, .tokens = 3.6e9};
    ls_planned l = {.time.tokens_per_sec = 1e6};
    assert_true(ls_cluster_preset("h200", &cl));
    assert_int_equal(ls_model_config_preset("gpt2", &q.model), LS_OK);
    l.cfg = ls_planner_config(&q, "ddp", (ls_mesh){{4, 1, 1}, 4}, NULL, 1, 16);
    ls_plan_totals t = ls_planner_totals(&cl, &q, &l);
    assert_true(fabs(t.seconds - 3600) < 1e-6 && fabs(t.kwh - 4 * 0.7) < 1e-9); /* one hour of 4 x 700 W */
    const double flops = 6 * (12.0 * 12 * 768 * 768 + 50257.0 * 768) + 12.0 * 12 * 768 * 1024;
    assert_true(fabs(t.mfu - 1e6 * flops / (4 * 989.5e12)) < 1e-9);
    cl.power = 0; /* not known: the results are NaN */
    cl.rates[1].peak = 0;
    t = ls_planner_totals(&cl, &q, &l);
    assert_true(isnan(t.kwh) && isnan(t.mfu) && t.seconds > 0);
    q.price = 2.5;
    q.mtbf = 10 * 3600;
    q.checkpoint_bandwidth = 1e9;
    q.restart = 60;
    l.time.step = 0.065536;
    t = ls_planner_totals(&cl, &q, &l);
    const ls_failures f = ls_planner_failures(&cl, &q, &l);
    assert_true(f.hosts == 1 && fabs(f.checkpoint - 12e-9 * (double)ls_model_n_param(&q.model)) < 1e-9);
    assert_true(t.seconds == 3600 && fabs(t.elapsed * ls_goodput_best(&f).goodput - 3600) < 1e-6);
    assert_true(t.elapsed > 3600 && fabs(t.cost - 4 * 2.5 * t.elapsed / 3600) < 1e-9);
    q.tokens = 0;
    assert_true(isnan(ls_planner_totals(&cl, &q, &l).seconds));
}

static void presets_know_their_precisions(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double share,
            memory; /* of the GB in the name; what a driver reports is 1 to 2 % less, with ECC in GDDR6 up to 9 % */
        int capability;
    } of[] = {{"t4", 0.90, 16, 75},       {"l4", 0.90, 24, 89},       {"a10g", 0.90, 24, 86},
              {"v100", 0.98, 16, 70},     {"v100-32", 0.98, 32, 70},  {"a100", 0.98, 80, 80},
              {"a100-40", 0.98, 40, 80},  {"h100", 0.98, 80, 90},     {"h200", 0.98, 141, 90},
              {"b200", 0.98, 180, 100},   {"rtx-3090", 0.98, 24, 86}, {"rtx-4090", 0.98, 24, 89},
              {"rtx-5090", 0.97, 32, 120}};
    ls_cluster cl;
    size_t listed = 1;
    for (const char *p = LS_CLUSTER_PRESETS; *p; p++) listed += *p == ',';
    assert_int_equal(listed, N_OF(of));
    for (size_t i = 0; i < N_OF(of); i++) {
        assert_true(ls_cluster_preset(of[i].name, &cl));
        assert_non_null(strstr(LS_CLUSTER_PRESETS, of[i].name));
        assert_non_null(strstr(cl.source, "data sheet"));
        assert_true(cl.power > 0 && cl.inside.bandwidth > cl.between.bandwidth && cl.bus > 0 && cl.host_memory > 0);
        const double share = (double)cl.memory / (of[i].memory * (1 << 30));
        assert_true(share < 0.995 && share > of[i].share);
        assert_true(ls_cluster_peak(&cl, LS_F16) > ls_cluster_peak(&cl, LS_F32));
        for (int k = 0; k < LS_N_PRECISION; k++) {
            const ls_cluster_rates *r = &cl.rates[k];
            assert_true(r->matmul <= r->peak && r->ordered <= r->attention && r->dropout <= r->ordered);
            assert_true((r->dropout > 0) == (r->matmul > 0));
        }
        assert_int_equal(cl.capability, of[i].capability);
        const bool bf16 = ls_card_of(cl.capability)->bf16;
        assert_int_equal(ls_cluster_default_precision(&cl), bf16 ? LS_BF16 : LS_F16);
        assert_int_equal(ls_cluster_auto_precision(&cl), bf16 ? LS_BF16 : LS_F16);
        assert_int_equal(ls_cluster_check_precision(&cl, LS_BF16), bf16 ? LS_OK : LS_E_UNSUPPORTED);
        if (!bf16) assert_non_null(strstr(ls_err_words(), "have no bf16 products; use --precision fp16"));
        ls_err_clear();
    }
    assert_true(ls_cluster_preset_of("NVIDIA H200", &cl) && !strcmp(cl.name, "h200"));
    assert_true(ls_cluster_preset_of("NVIDIA A100-SXM4-80GB", &cl) && !strcmp(cl.name, "a100"));
    static const char *const card[][2] = {{"NVIDIA A100-SXM4-40GB", "a100-40"},
                                          {"Tesla V100-SXM2-32GB", "v100-32"},
                                          {"NVIDIA GeForce RTX 4090", "rtx-4090"},
                                          {"NVIDIA GeForce RTX 5090", "rtx-5090"},
                                          {"NVIDIA A10G", "a10g"},
                                          {"Tesla T4", "t4"}};
    static const char *const none[] = {"the emulated device", "NVIDIA T400", "NVIDIA L40S", "NVIDIA GeForce GTX 1080"};
    for (size_t i = 0; i < N_OF(card); i++)
        assert_true(ls_cluster_preset_of(card[i][0], &cl) && !strcmp(cl.name, card[i][1]));
    for (size_t i = 0; i < N_OF(none); i++) assert_false(ls_cluster_preset_of(none[i], &cl));
    cl = toy;
    cl.cpu = true;
    assert_int_equal(ls_cluster_check_precision(&cl, LS_F16), LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "CPUs, which compute in fp32 and bf16 (its file has times in: fp32)"));
    ls_err_clear();
}

#define SHARED "ddp, one state"

static ls_prediction predict_toy(const char *strategy, int dp, int pp, const char *schedule, int64_t batch, int micro)
{
    const bool shared = !strcmp(strategy, SHARED);
    ls_prediction p;
    ls_planner_query q = {.global_batch = batch, .seq_len = 128, .workers = dp * pp};
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    ls_train_config c =
        ls_planner_config(&q, shared ? "ddp" : strategy, (ls_mesh){{dp, pp, 1}, dp * pp}, schedule, 1, micro);
    c.one_state = shared;
    assert_int_equal(ls_planner_predict(&toy, &c, &p), LS_OK);
    const double sum = p.forward + p.backward + p.exposed + p.optimizer + p.other;
    assert_true(fabs(sum / p.step - 1) < 1e-9); /* the parts add up to the step */
    return p;
}

/* Settings that a query does not give have the defaults of train. */
static void the_planner_uses_the_trainers_defaults(void **state)
{
    (void)state;
    ls_train_options o;
    ls_planner_query q = {.global_batch = 8, .seq_len = 128, .workers = 2};
    assert_int_equal(ls_train_options_parse(0, NULL, &o), LS_OK);
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    const ls_train_config c = ls_planner_config(&q, "zero2", (ls_mesh){{2, 1, 1}, 2}, NULL, 1, 4);
    assert_int_equal(c.bucket, LS_BUCKET);
    assert_int_equal(c.gather_bucket, o.gather_bucket);
    assert_int_equal(c.prefetch_bucket, o.prefetch_bucket);
}

static void predictions_order_strategies_as_expected(void **state)
{
    (void)state;
    const double one = predict_toy("single", 1, 1, NULL, 16, 4).step;
    const ls_prediction ddp = predict_toy("ddp", 4, 1, NULL, 64, 4), dp = predict_toy("dp", 4, 1, NULL, 64, 4),
                        zero1 = predict_toy("zero1", 4, 1, NULL, 64, 4),
                        one_state = predict_toy(SHARED, 4, 1, NULL, 64, 4);
    assert_true(ddp.step > one);           /* equal work per worker, plus all-reduce     */
    assert_true(ddp.step < dp.step);       /* ddp hides part of the communication        */
    assert_true(ddp.exposed < dp.exposed); /* and has no broadcast                       */
    assert_true(zero1.optimizer < ddp.optimizer / 3.5);
    assert_true(one_state.optimizer == zero1.optimizer);
    assert_true(one_state.step < zero1.step && one_state.exposed > 0); /* nothing is gathered, nothing hidden */
    const double naive = predict_toy("single", 1, 3, "naive", 16, 1).bubble,
                 gpipe = predict_toy("single", 1, 3, "gpipe", 16, 1).bubble,
                 zb = predict_toy("single", 1, 3, "zb", 16, 1).bubble;
    assert_true(naive > 0.6 && gpipe < naive && zb <= gpipe);
    const double slow = predict_toy("ddp", 2, 1, NULL, 8, 4).step;
    ls_cluster far = toy;
    far.inside.bandwidth /= 100;
    ls_prediction p;
    ls_planner_query q = {.global_batch = 8, .seq_len = 128, .workers = 2};
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    const ls_train_config c = ls_planner_config(&q, "ddp", (ls_mesh){{2, 1, 1}, 2}, NULL, 1, 4);
    assert_int_equal(ls_planner_predict(&far, &c, &p), LS_OK);
    assert_true(p.step > 2 * slow);
}

/* A prediction for workers of which the fraction `apart` of the time is not random, and which take the fraction `beside` of their time
 * while every second worker waits. */
static ls_prediction on_workers(const char *strategy, ls_mesh mesh, const char *schedule, int64_t batch, double apart,
                                double beside)
{
    ls_cluster c = toy;
    ls_prediction p;
    ls_planner_query q = {.global_batch = batch, .seq_len = 128, .workers = mesh.world};
    ls_cluster_passes pass = ls_cluster_pass(&toy, mesh.world, LS_F32);
    pass.apart = apart;
    pass.beside = beside;
    assert_int_equal(ls_cluster_add_passes(&c, &pass), LS_OK);
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    const ls_train_config cfg = ls_planner_config(&q, strategy, mesh, schedule, 1, 4);
    assert_int_equal(ls_planner_predict(&c, &cfg, &p), LS_OK);
    ls_cluster_fini(&c);
    return p;
}

static double forward_of(const char *strategy, double apart, int64_t batch)
{
    return on_workers(strategy, (ls_mesh){{4, 1, 1}, 4}, NULL, batch, apart, 1).forward;
}

static void rare_synchronization_averages_out_random_delays(void **state)
{
    (void)state;
    static const char *const seldom[] = {"dp", "ddp", "zero1"}, *const often[] = {"zero2", "zero3"};
    for (size_t i = 0; i < N_OF(seldom); i++) {
        const double four = forward_of(seldom[i], 0.75, 64) / forward_of(seldom[i], 1, 64); /* micro-batches */
        assert_true(fabs(four - (0.75 + 0.25 / 2)) < 1e-9);
        assert_true(fabs(forward_of(seldom[i], 0.75, 16) / forward_of(seldom[i], 1, 16) - 1) <
                    1e-9); /* one micro-batch: they synchronize after each */
    }
    for (size_t i = 0; i < N_OF(often); i++) assert_true(forward_of(often[i], 0.75, 64) == forward_of(often[i], 1, 64));
    const ls_mesh stages = {{2, 2, 1}, 4}; /* replicas of a stage also synchronize once per step */
    const double four = on_workers("ddp", stages, "1f1b", 32, 0.75, 1).forward;
    assert_true(fabs(four / on_workers("ddp", stages, "1f1b", 32, 1, 1).forward - (0.75 + 0.25 / 2)) < 1e-9);
}

/* With the naive schedule one stage works and the other waits. With a bubble b of two stages, the other one waits during b / (1 - b) of
 * the time in which a stage works. */
static void a_stage_is_faster_while_others_wait(void **state)
{
    (void)state;
    const ls_mesh two = {{1, 2, 1}, 2};
    const double naive = on_workers("single", two, "naive", 16, 1, 0.8).forward;
    assert_true(fabs(naive / on_workers("single", two, "naive", 16, 1, 1).forward - 0.8) < 1e-3);
    const ls_prediction as_is = on_workers("single", two, "gpipe", 16, 1, 1),
                        gains = on_workers("single", two, "gpipe", 16, 1, 0.8);
    const double seen = as_is.bubble / (1 - as_is.bubble);
    assert_true(as_is.bubble > 0.1 && as_is.bubble < 0.5);
    assert_true(fabs(gains.forward / as_is.forward - (1 - 0.2 * seen)) < 2e-3); /* except for the time of messages */
    const ls_mesh replicas = {{2, 1, 1}, 2};
    assert_true(on_workers("ddp", replicas, NULL, 16, 1, 0.8).step == on_workers("ddp", replicas, NULL, 16, 1, 1).step);
}

/* Two shards take the measured time, including their all-reduce. For more shards only the divided part of the work gets smaller. */
static void predictions_use_the_measured_shards(void **state)
{
    (void)state;
    ls_cluster c = toy;
    ls_planner_query q = {.global_batch = 4, .seq_len = 32, .workers = 2};
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    ls_cluster_units u = {.workers = 2,
                          .threads = 1,
                          .tp = 1,
                          .n_embd = q.model.n_embd,
                          .n_head = q.model.n_head,
                          .vocab = q.model.vocab_size,
                          .dropout = q.model.attn_pdrop > 0,
                          .B = 4,
                          .T = 32,
                          .sec = {1, 1, 1, 1, 1, 1, 1, 1}};
    ls_prediction p;
    assert_int_equal(ls_cluster_add_units(&c, &u), LS_OK);
    u.tp = 2;
    for (int k = 0; k < LS_N_UNIT_TIME; k++) u.sec[k] = 0.75; /* half of the work is divided */
    assert_int_equal(ls_cluster_add_units(&c, &u), LS_OK);
    ls_train_config cfg = ls_planner_config(&q, "single", (ls_mesh){{1, 1, 2}, 2}, NULL, 1, 4);
    assert_int_equal(ls_planner_predict(&c, &cfg, &p), LS_OK);
    const double passes = 2 * (q.model.n_layer + 2);
    assert_true(fabs(p.forward + p.backward + p.exposed - 0.75 * passes) < 1e-3);
    assert_true(p.exposed > 0 && p.exposed < 0.1);
    cfg = ls_planner_config(&q, "single", (ls_mesh){{1, 1, 4}, 4}, NULL, 1, 4);
    assert_int_equal(ls_planner_predict(&c, &cfg, &p), LS_OK);
    assert_true(fabs(p.forward + p.backward - (0.5 + 0.5 / 4) * passes) < 0.01 * passes);
    assert_true(ls_cluster_unit(&toy, 2, 2, LS_F32, &q.model, true, 4, 32, LS_TIME_BLOCK_FWD) <
                0);                                                   /* none was measured */
    for (int k = 0; k < LS_N_UNIT_TIME; k++) c.units[1].sec[k] = 1.5; /* slower than one worker: still as measured */
    cfg = ls_planner_config(&q, "single", (ls_mesh){{1, 1, 2}, 2}, NULL, 1, 4);
    assert_int_equal(ls_planner_predict(&c, &cfg, &p), LS_OK);
    assert_true(fabs(p.forward + p.backward + p.exposed - 1.5 * passes) < 1e-3);
    ls_cluster_fini(&c);
}

/* ---- more workers than devices ---- */

static ls_status predict_on(const ls_cluster *cl, const char *strategy, ls_mesh mesh, const char *schedule,
                            int64_t batch, int micro, int threads, ls_prediction *p)
{
    ls_planner_query q = {.global_batch = batch, .seq_len = 128, .workers = mesh.world};
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    ls_train_config c = ls_planner_config(&q, strategy, mesh, schedule, 1, micro);
    c.threads = threads;
    return ls_planner_predict(cl, &c, p);
}

static void more_workers_than_cores_are_slower(void **state)
{
    (void)state;
    ls_cluster host = toy;
    host.cpu = true;
    host.devices = 2;
    ls_prediction two, eight;
    assert_int_equal(predict_on(&host, "ddp", (ls_mesh){{2, 1, 1}, 2}, NULL, 16, 8, 0, &two), LS_OK);
    assert_int_equal(predict_on(&host, "ddp", (ls_mesh){{8, 1, 1}, 8}, NULL, 16, 2, 0, &eight), LS_OK);
    print_message("2 workers %.0f tokens/s, 8 workers %.0f\n", two.tokens_per_sec, eight.tokens_per_sec);
    assert_true(eight.forward >
                0.99 * two.forward); /* four times the workers, each with a quarter of the batch: the same time */
    assert_true(eight.tokens_per_sec < two.tokens_per_sec);
    assert_true(eight.comm > two.comm && eight.optimizer > 3.9 * two.optimizer);
    ls_cluster_units u = {
        .workers = 8, .threads = 1, .tp = 1, .n_embd = 128, .n_head = 4, .vocab = 257, .B = 4, .T = 32};
    for (int k = 0; k < LS_N_UNIT_TIME; k++) u.sec[k] = 1;
    assert_int_equal(ls_cluster_add_units(&host, &u), LS_OK); /* measured with 8 workers: no factor is added */
    assert_true(ls_cluster_crowd(&host, 8).slower == 1 && ls_cluster_crowd(&host, 16).slower == 2);
    ls_cluster_fini(&host);
}

static void a_gpu_keeps_memory_for_its_context(void **state)
{
    (void)state;
    ls_planner_query q = {.global_batch = 4, .seq_len = 64, .workers = 1, .cuda = true, .dtype = LS_F32};
    ls_planner_result r;
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    assert_int_equal(ls_planner_search(&toy, &q, &r), LS_OK);
    int64_t most = 0;
    for (int i = 0; i < r.n; i++) {
        assert_true(r.layout[i].fits && !r.layout[i].host_bytes);
        most = r.layout[i].worst.total > most ? r.layout[i].worst.total : most;
    }
    ls_planner_result_fini(&r);
    for (int less = 0; less < 2; less++) {
        q.memory = most + ls_planner_reserve(&q) - less;
        assert_int_equal(ls_planner_search(&toy, &q, &r), LS_OK);
        assert_int_equal(r.n_fit == r.n, !less);
        ls_planner_result_fini(&r);
    }
}

static void all_workers_of_a_host_need_memory(void **state)
{
    (void)state;
    ls_cluster host = toy;
    ls_planner_query q = {.global_batch = 8, .seq_len = 64, .workers = 8, .max_tp = 1, .strategy = "ddp"};
    ls_planner_result r;
    host.cpu = true;
    host.devices = 2;
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    assert_int_equal(ls_planner_search(&host, &q, &r), LS_OK);
    assert_true(r.n_fit > 0);
    int64_t most = 0, sum = 0;
    const int fit = r.n_fit;
    for (int i = 0; i < r.n; i++) {
        assert_int_equal(r.layout[i].host_bytes, 8 * r.layout[i].worst.total);
        if (most < r.layout[i].host_bytes) most = r.layout[i].host_bytes;
        sum += r.layout[i].worst.total;
    }
    ls_planner_result_fini(&r);
    q.memory = most - 1;
    q.val_seqs = 100000; /* their losses need memory too */
    assert_int_equal(ls_planner_search(&host, &q, &r), LS_OK);
    assert_true(r.n_fit < fit);
    for (int i = 0; i < r.n; i++) sum -= r.layout[i].worst.total;
    assert_true(sum < -100000);
    ls_planner_result_fini(&r);
}

static void several_hosts_need_a_link_between_them(void **state)
{
    (void)state;
    ls_cluster two = toy;
    ls_prediction near, far;
    const ls_mesh cut = {{1, 2, 4}, 8}, replicas = {{8, 1, 1}, 8};
    two.hosts = 2;
    two.devices = 4;
    assert_int_equal(predict_on(&two, "ddp", replicas, NULL, 8, 1, 0, &far), LS_E_FORMAT);
    assert_non_null(strstr(ls_err_words(), "link_between_hosts"));
    two.between = (ls_link){
        10e-3, 1e6}; /* 4 shards of a stage fill a host: every message between stages goes to the other host */
    assert_int_equal(predict_on(&toy, "single", cut, "1f1b", 16, 2, 0, &near), LS_OK);
    assert_int_equal(predict_on(&two, "single", cut, "1f1b", 16, 2, 0, &far), LS_OK);
    const double message = 10e-3 + 2.0 * 128 * 128 * 4 / 1e6;
    print_message("step on one host %.4f s, on two hosts %.4f s, message %.4f s\n", near.step, far.step, message);
    assert_true(far.step > near.step + 8 * message); /* at least one message per micro-batch */
    two.inside = (ls_link){0};
    assert_int_equal(predict_on(&two, "ddp", (ls_mesh){{4, 1, 1}, 4}, NULL, 8, 1, 0, &far), LS_E_FORMAT);
    assert_non_null(strstr(ls_err_words(), "link_inside_host"));
    ls_err_clear();
}

/* A worker with half of the cores takes the time that was measured with two workers. */
static void fewer_threads_take_proportionally_longer(void **state)
{
    (void)state;
    ls_cluster host = toy;
    ls_cluster_units u = {
        .threads = 1, .tp = 1, .n_embd = 128, .n_head = 4, .vocab = 257, .dropout = true, .B = 4, .T = 128};
    ls_prediction all, one;
    host.cpu = true;
    host.devices = 4;
    for (u.workers = 1; u.workers <= 4; u.workers *= 2) {
        for (int k = 0; k < LS_N_UNIT_TIME; k++) u.sec[k] = u.workers;
        assert_int_equal(ls_cluster_add_units(&host, &u), LS_OK);
    }
    assert_int_equal(predict_on(&host, "single", (ls_mesh){{1, 1, 1}, 1}, NULL, 4, 4, 0, &all), LS_OK);
    for (int n = 1; n <= 4; n++) {
        assert_int_equal(predict_on(&host, "single", (ls_mesh){{1, 1, 1}, 1}, NULL, 4, 4, n, &one), LS_OK);
        assert_true(fabs(one.forward / all.forward - 4.0 / n) < 1e-9);
    }
    host.n_units = 1; /* only one measurement: in proportion to the threads */
    assert_int_equal(predict_on(&host, "single", (ls_mesh){{1, 1, 1}, 1}, NULL, 4, 4, 2, &one), LS_OK);
    assert_true(fabs(one.forward / all.forward - 2) < 1e-9);
    ls_cluster_fini(&host);
}

static void an_empty_search_gives_a_reason(void **state)
{
    (void)state;
    ls_planner_query q = {.global_batch = 2053, .seq_len = 64, .workers = 1};
    ls_planner_result r;
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    assert_int_equal(ls_planner_search(&toy, &q, &r), LS_OK);
    assert_true(r.n == 0 && strstr(r.bad[0], "2053 sequences per replica are not a product"));
    ls_planner_result_fini(&r);
    q.global_batch = 4;
    q.strategy = "ddp";
    assert_int_equal(ls_planner_search(&toy, &q, &r), LS_OK);
    assert_true(r.n == 0 && strstr(r.bad[0], "strategy ddp needs at least 2 replicas"));
    ls_planner_result_fini(&r);
}

static void rows_far_above_the_median_are_dropped(void **state)
{
    (void)state;
    const double row[] = {1, 0, 1.1, 0, 1.2, 0, 2.3, 0, 2.5, 0, 90, 0}; /* median: the fourth */
    assert_int_equal(ls_measure_rows(row, 2, 6, false), 5);
    assert_int_equal(ls_measure_rows(row, 2, 3, false), 3);
    assert_int_equal(ls_measure_rows(row, 2, 1, false), 1);
    assert_int_equal(ls_measure_rows(row, 2, 6, true), 1);
}

static void the_search_ranks_layouts_that_fit(void **state)
{
    (void)state;
    ls_planner_query q = {.global_batch = 12, .seq_len = 64, .workers = 4, .memory = 20 << 20};
    ls_planner_result r;
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    assert_int_equal(ls_planner_search(&toy, &q, &r), LS_OK);
    print_message("%d fit, %d do not fit, %d are impossible: %s\n", r.n_fit, r.n - r.n_fit, r.n_bad, r.bad[0]);
    assert_true(r.n_fit > 5 && r.n_fit < r.n && r.n_bad > 0);
    for (int i = 0; i < r.n; i++) {
        const ls_planned *l = &r.layout[i];
        assert_int_equal(l->fits, i < r.n_fit);
        assert_int_equal(l->fits, l->worst.total <= q.memory);
        assert_int_equal(l->cfg.micro_batch * l->cfg.grad_accum * l->cfg.mesh.n[LS_AXIS_DP], 12);
        if (l->fits && i) assert_true(l->time.step >= r.layout[i - 1].time.step);
        if (!l->fits) assert_non_null(strstr(l->why, "needs "));
    }
    ls_planner_result_fini(&r);
    q.global_batch = 6; /* 6 sequences for 4 replicas */
    assert_int_equal(ls_planner_search(&toy, &q, &r), LS_OK);
    assert_non_null(strstr(r.bad[0], "the global batch of 6 sequences is not a multiple of 4"));
    ls_planner_result_fini(&r);
}

/* ---- cluster files ---- */

static void write_to(char path[300], const char *text)
{
    snprintf(path, 300, "%s/cluster.json", dir);
    assert_int_equal(ls_fs_write(path, text, strlen(text)), LS_OK);
}

/* Planned for a kernel by its name, whatever this CPU has: amx-bf16 computes 2048 rows of logits at a time, the others 512. */
static void memory_is_that_of_the_kernel_of_the_cluster(void **state)
{
    (void)state;
    static const char *const kernel[] = {"amx-bf16-emulated", "amx-bf16",       "bfmmla",
                                         "bfmmla-emulated",   "no such kernel", ""};
    enum { N = sizeof kernel / sizeof kernel[0] };
    ls_cluster cl = toy;
    const ls_cluster_units u = {1, 2, 1, 128, 4, 257, true, LS_BF16, "amx-bf16", 4, 32, {1, 2, 3, 4, 5, 6, 7, 8}};
    ls_planner_query q = {.global_batch = 32, .seq_len = 128, .workers = 1, .dtype = LS_BF16};
    ls_plan_memory m[N], of_cluster;
    cl.cpu = true;
    assert_int_equal(ls_cluster_add_units(&cl, &u), LS_OK);
    assert_int_equal(ls_model_config_preset("tiny", &q.model), LS_OK);
    const ls_train_config c = ls_planner_config(&q, "single", (ls_mesh){{1, 1, 1}, 1}, NULL, 1, 32);
    for (int i = 0; i < N; i++)
        assert_int_equal(ls_planner_memory(&c, NULL, (ls_worker_cpu){2, kernel[i]}, 0, 0, &m[i]), LS_OK);
    assert_true(m[0].total == m[1].total && m[2].total == m[3].total && m[4].total == m[5].total);
    assert_true(m[1].part[LS_PART_WORK] - m[2].part[LS_PART_WORK] > 1024 * 257 * 4);
    assert_int_equal(ls_planner_memory(&c, NULL, ls_planner_cpu(&cl, &c, 0), 0, 0, &of_cluster), LS_OK);
    ls_worker_cpu cpu = ls_planner_cpu(&cl, &c, 0);
    assert_string_equal(cpu.kernel, "amx-bf16");
    assert_int_equal(ls_planner_memory(&c, NULL, (ls_worker_cpu){cpu.threads, "amx-bf16-emulated"}, 0, 0, &m[0]),
                     LS_OK);
    assert_true(of_cluster.total == m[0].total);
    assert_int_equal(ls_cluster_auto_precision(&cl), LS_BF16); /* an emulated kernel is slower than fp32 */
    snprintf(cl.units[0].kernel, sizeof cl.units[0].kernel, "amx-bf16-emulated");
    assert_int_equal(ls_cluster_auto_precision(&cl), LS_F32);
    ls_cluster_fini(&cl);
}

static void cluster_files_load_as_written(void **state)
{
    (void)state;
    ls_cluster c = toy, back;
    char path[300];
    const ls_cluster_units u = {2, 3, 1, 128, 4, 257, true, LS_F32, "neon", 4, 32, {1, 2, 3, 4, 5, 6, 7, 8}},
                           shard = {2, 3, 2, 128, 4, 257, true, LS_F32, "", 4, 32, {9, 9, 9, 9, 9, 9, 9, 9}};
    const ls_cluster_passes p = {2, LS_F32, 1e-9, 2e-9, 3e-9, 1e-9, 4e-9, 5e-9, 0.5, 1e-5, 0.875, 0.75};
    const ls_cluster_curve v = {LS_COLL_ALL_REDUCE, 2, 2, {1024, 1048576}, {1e-5, 1e-3}};
    assert_int_equal(ls_cluster_add_units(&c, &u), LS_OK);
    assert_int_equal(ls_cluster_add_units(&c, &shard), LS_OK);
    assert_int_equal(ls_cluster_add_passes(&c, &p), LS_OK);
    assert_int_equal(ls_cluster_add_curve(&c, &v), LS_OK);
    ls_str a = {0}, b = {0};
    ls_cluster_text(&c, &a);
    write_to(path, a.data);
    if (ls_cluster_load(path, &back) != LS_OK) fail_msg("%s", ls_err_words());
    ls_cluster_text(&back, &b);
    assert_string_equal(a.data, b.data);
    assert_string_equal(ls_cluster_kernel(&back, LS_F32), "neon");
    assert_string_equal(ls_cluster_kernel(&back, LS_BF16), "");
    assert_true(ls_cluster_pass(&back, 2, LS_F32).offload == 4e-9 && ls_cluster_pass(&back, 2, LS_F32).on_host == 5e-9);
    ls_model_config m;
    assert_int_equal(ls_model_config_preset("tiny", &m), LS_OK);
    assert_true(fabs(ls_cluster_unit(&back, 2, 1, LS_F32, &m, true, 4, 32, LS_TIME_BLOCK_FWD) - 3) < 1e-9);
    assert_true(fabs(ls_cluster_unit(&back, 2, 1, LS_F32, &m, true, 8, 32, LS_TIME_BLOCK_W) - 12) <
                1e-9); /* twice the work */
    assert_true(fabs(ls_cluster_collective(&back, LS_COLL_ALL_REDUCE, (ls_coll_group){2, 1, false}, 2 * 1048576) -
                     2e-3) < 1e-12);
    assert_true(fabs(ls_cluster_collective(&back, LS_COLL_BROADCAST, (ls_coll_group){2, 1, false}, 1e9) - 1.00001) <
                1e-9);
    ls_str_fini(&a);
    ls_str_fini(&b);
    ls_cluster_fini(&c);
    ls_cluster_fini(&back);
}

#define FILE_HEAD \
    "{\"format\":\"lockstep-cluster 1\",\"memory_bytes\":1e9,\"matmul_flops\":1e11,\"memory_bandwidth\":1e10"
#define TWO FILE_HEAD ",\"devices_per_host\":2,"
#define UNITS(B)                                                                                      \
    TWO "\"units\":[{\"workers\":1,\"n_embd\":128,\"n_head\":4,\"vocab_size\":257,\"micro_batch\":" B \
        ",\"seq_length\":32"
#define CURVE(w) TWO "\"collectives\":[{\"kind\":\"send\",\"workers\":" w ",\"bytes\":[8],\"seconds\":"

static void wrong_cluster_files_name_the_key(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } all[] = {
        {"[]", "one JSON object"},
        {"{}", "format is missing"},
        {"{\"format\":\"x\"}", "format is 'x'; this program reads"},
        {"{\"format\":\"lockstep-cluster 1\"}", "devices_per_host is missing"},
        {"{\"format\":\"lockstep-cluster 1\",\"devices_per_host\":2,\"memory_bytes\":1e9}",
         "add either units, or matmul_flops"},
        {"{\"format\":\"lockstep-cluster 1\",\"devices_per_host\":0,\"memory_bytes\":1e9}", "must be at least 1"},
        {"{\"format\":\"lockstep-cluster 1\",\"devices_per_host\":2,\"memory_bytes\":1e9,\"units\":[{\"workers\":1}]}",
         "units[0].n_embd is missing"},
        {"{\"format\":\"lockstep-cluster 1\",\"devices_per_host\":2,\"memory_bytes\":1e9,\"passes\":[{\"workers\":1,"
         "\"adamw\":1,\"sum_of_squares\":1,\"add\":1,\"overlap\":0,\"beside\":2}]}",
         "passes[0].beside is above 1"},
        {"{\"format\":\"lockstep-cluster "
         "1\",\"devices_per_host\":2,\"memory_bytes\":1e9,\"collectives\":[{\"kind\":\"x\"}]}",
         "collectives[0].kind is not a collective"},
        {TWO "\"overlap\":5}", "overlap is above 1; it is a fraction"},
        {CURVE("1") "[1]}]}", "collectives[0].workers is 1; a collective needs at least 2"},
        {CURVE("2") "[\"a\"]}]}", "collectives[0].seconds must be numbers above 0"},
        {CURVE("2") "[null]}]}", "collectives[0].seconds must be numbers above 0"},
        {CURVE("2") "[true]}]}", "collectives[0].seconds must be numbers above 0"},
        {CURVE("2") "[0]}]}", "collectives[0].seconds must be numbers above 0"},
        {UNITS("1") ",\"embed_forward\":0}]}", "units[0].embed_forward is 0"},
        {UNITS("1e29") "}]}", "units[0].micro_batch is 1e+29; it must be at most"},
        {UNITS("1.5") "}]}", "units[0].micro_batch is not a whole number"},
        {FILE_HEAD ",\"devices_per_host\":2147483647}", "devices_per_host is 2.14748e+09; it must be at most 65536"},
        {TWO "\"hosts\":70000}", "hosts is 70000; it must be at most 65536"},
        {"{\"format\":\"lockstep-cluster 1\",\"devices_per_host\":2,\"memory_bytes\":1e29}", "memory_bytes is 1e+29"},
    };
    ls_cluster c;
    char path[300];
    for (size_t i = 0; i < N_OF(all); i++) {
        write_to(path, all[i].text);
        assert_int_equal(ls_cluster_load(path, &c), LS_E_FORMAT);
        assert_words(all[i].words);
    }
    assert_int_equal(ls_cluster_open("v10", &c), LS_E_ARG);
}

static void measuring_a_machine_gives_all_times(void **state)
{
    (void)state;
    ls_measure_opts o = {
        .seq_len = 32, .micro = {1, 2}, .n_micro = 2, .workers = {1, 2}, .n_workers = 2, .seconds = 0.5};
    ls_cluster c;
    assert_int_equal(ls_model_config_preset("tiny", &o.model), LS_OK);
    if (ls_planner_measure(&o, &c) != LS_OK) fail_msg("%s", ls_err_words());
    assert_int_equal(c.n_passes, 2);
    assert_true(c.n_units >= 2 && c.n_curve == 6 && c.memory > 0);
    for (int i = 0; i < c.n_passes; i++) {
        assert_true(c.passes[i].apart > 0.2 && c.passes[i].apart <= 1);
        assert_true(c.passes[i].beside > 0.2 && c.passes[i].beside <= 1);
    }
    assert_true(ls_cluster_unit(&c, 2, 2, LS_F32, &o.model, true, 1, 32, LS_TIME_BLOCK_FWD) > 0);
    for (int i = 0; i < c.n_units; i++)
        for (int k = 0; k < LS_N_UNIT_TIME; k++) assert_true(c.units[i].sec[k] > 0);
    for (int i = 0; i < c.n_curve; i++)
        for (int k = 0; k < c.curve[i].n; k++) assert_true(c.curve[i].sec[k] > 0);
    ls_cluster_fini(&c);
}

static void no_memory_is_leaked(void **state)
{
    (void)state;
    assert_int_equal(ls_mem_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            measuring_a_machine_gives_all_times), /* forks workers that use threads: before anything else computes */
        cmocka_unit_test(planned_memory_and_collectives_match_a_run),
        cmocka_unit_test(a_machine_of_cpus_ranks_layouts),
        cmocka_unit_test(fits_on_published_runs_predict_four_cards),
        cmocka_unit_test(h200_predictions_are_within_ten_percent),
        cmocka_unit_test(settings_without_a_rate_are_left_out_or_refused),
        cmocka_unit_test(an_offloaded_update_is_predicted_within_fifteen_percent),
        cmocka_unit_test(totals_follow_from_the_predicted_speed),
        cmocka_unit_test(presets_know_their_precisions),
        cmocka_unit_test(the_planner_uses_the_trainers_defaults),
        cmocka_unit_test(rare_synchronization_averages_out_random_delays),
        cmocka_unit_test(a_stage_is_faster_while_others_wait),
        cmocka_unit_test(predictions_use_the_measured_shards),
        cmocka_unit_test(more_workers_than_cores_are_slower),
        cmocka_unit_test(a_gpu_keeps_memory_for_its_context),
        cmocka_unit_test(all_workers_of_a_host_need_memory),
        cmocka_unit_test(several_hosts_need_a_link_between_them),
        cmocka_unit_test(fewer_threads_take_proportionally_longer),
        cmocka_unit_test(an_empty_search_gives_a_reason),
        cmocka_unit_test(rows_far_above_the_median_are_dropped),
        cmocka_unit_test(predictions_order_strategies_as_expected),
        cmocka_unit_test(the_search_ranks_layouts_that_fit),
        cmocka_unit_test(memory_is_that_of_the_kernel_of_the_cluster),
        cmocka_unit_test(cluster_files_load_as_written),
        cmocka_unit_test(wrong_cluster_files_name_the_key),
        cmocka_unit_test(no_memory_is_leaked),
    };
    return cmocka_run_group_tests(tests, make_data, remove_data);
}
