/* The files of a run: their exact text, the order of keys compared with files in the form of the ZeRO scaling study
 * (docs/REFERENCES.md), markers, the step log and a resume, identity, sampling and percentiles. */
#include "train/trainer.h"
#include "core/mem.h"
#include "assert_text.h"
#include "test_folder.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *dir;

static void clean_environment(void)
{
    const char *const names[] = {
        "SLURM_JOB_ID", "SLURM_NODELIST",       "SLURM_JOB_NODELIST", "SLURM_HOSTS",         "SLURM_NNODES",
        "SLURM_PROCID", "SLURM_LOCALID",        "SLURM_GPUS",         "SLURM_JOB_PARTITION", "EC2_INSTANCE_TYPE",
        "GIT_COMMIT",   "CUDA_VISIBLE_DEVICES", "MASTER_ADDR",        "MASTER_PORT"};
    for (size_t i = 0; i < N_OF(names); i++) unsetenv(names[i]);
}

static int set_up(void **state)
{
    (void)state;
    clean_environment();
    dir = test_dir();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_dir_close(dir);
    return 0;
}

static ls_run_identity id;
static ls_train_config cfg;
static ls_epoch_metrics epoch[2];
static ls_trainer trainer;
static ls_run_end run;

#define WORDS(s) ((char *)(uintptr_t)(s))

/* A finished run with fixed numbers. */
static void fill(void)
{
    id = (ls_run_identity){.run_id = "20260128T012344Z-72baa608",
                           .timestamp_utc = "2026-01-28T01:23:44Z",
                           .git_commit = "unknown",
                           .hostname = "h\xc3\xb6st",
                           .os = "Linux-6.1-aarch64-with-glibc2.36",
                           .command_line = WORDS("lockstep train --data d")};
    cfg = (ls_train_config){.run_dir = dir,
                            .train_path = WORDS("d/train.small.bin"),
                            .model_from = WORDS("tiny"),
                            .world_size = 1,
                            .seq_len = 256,
                            .micro_batch = 2,
                            .grad_accum = 2,
                            .global_batch = 4,
                            .epochs = 2,
                            .train_seqs = 30,
                            .val_seqs = 5,
                            .optimizer = "AdamW",
                            .precision = "fp32",
                            .precision_label = "fp32",
                            .device = "cpu",
                            .compute = "cpu",
                            .strategy = "single",
                            .seed = 1337,
                            .deterministic = true,
                            .total_steps = 14,
                            .deepspeed_path = WORDS("ds.json"),
                            .deepspeed_sha256 = "00ff",
                            .fp16_given = true,
                            .zero_given = true,
                            .zero_stage = 1};
    assert_int_equal(ls_model_config_preset("tiny", &cfg.model), LS_OK);
    cfg.lr = (ls_lr_schedule){.kind = LS_LR_COSINE, .base = 1e-5};
    epoch[0] = (ls_epoch_metrics){.epoch_idx = 1,
                                  .wall_time = 10.0,
                                  .train_loss = 5.25,
                                  .micro_steps = 15,
                                  .grad_accum = 2,
                                  .tokens = 7680,
                                  .has_val = true,
                                  .val_loss = 4.5,
                                  .n_sample = 3,
                                  .step = {0.25, 0.2, 0.5},
                                  .dataload = {.mean = 8.757201820270906e-05},
                                  .updates_applied = 7,
                                  .sequences_dropped = 2,
                                  .n_update = 7,
                                  .update = {1.0, 1.0, 1.5},
                                  .grad_norm_max = 3.0,
                                  .grad_norm_last = 1.5,
                                  .peak_rss_bytes = 123456789};
    epoch[1] = (ls_epoch_metrics){.epoch_idx = 2,
                                  .wall_time = 5.0,
                                  .train_loss = 5.0,
                                  .micro_steps = 14,
                                  .grad_accum = 2,
                                  .tokens = 7168,
                                  .updates_applied = 7,
                                  .sequences_dropped = 2};
    trainer = (ls_trainer){.cfg = &cfg, .state = {.done = epoch, .epoch = 2}, .plan = {.total = 1000}};
    run = (ls_run_end){.id = &id, .total_wall_time = 16.5, .utc = "2026-01-28T01:24:14Z", .compute_words = "cpu"};
}

static const char golden[] = "{\n"
                             "  \"schema_version\": \"2.0\",\n"
                             "  \"run_id\": \"20260128T012344Z-72baa608\",\n"
                             "  \"timestamp_utc\": \"2026-01-28T01:23:44Z\",\n"
                             "  \"git_commit\": \"unknown\",\n"
                             "  \"command_line\": \"lockstep train --data d\",\n"
                             "  \"env\": {\n"
                             "    \"python_version\": \"none\",\n"
                             "    \"torch_version\": \"none\",\n"
                             "    \"transformers_version\": \"none\",\n"
                             "    \"deepspeed_version\": \"none\",\n"
                             "    \"cuda_version\": \"none\"\n"
                             "  },\n"
                             "  \"host\": {\n"
                             "    \"hostname\": \"h\\u00f6st\",\n"
                             "    \"os\": \"Linux-6.1-aarch64-with-glibc2.36\"\n"
                             "  },\n"
                             "  \"hardware\": {\n"
                             "    \"gpu_name\": \"none\",\n"
                             "    \"gpu_count_visible\": 0,\n"
                             "    \"world_size\": 1,\n"
                             "    \"cuda_version\": \"none\"\n"
                             "  },\n"
                             "  \"training_config\": {\n"
                             "    \"model_name\": \"gpt2\",\n"
                             "    \"model_size\": \"n_layer=4, n_head=4, n_embd=128\",\n"
                             "    \"seq_len\": 256,\n"
                             "    \"epochs\": 2,\n"
                             "    \"micro_batch_size_per_gpu\": 2,\n"
                             "    \"grad_accum_steps\": 2,\n"
                             "    \"global_batch_size\": 4,\n"
                             "    \"lr\": 1e-05,\n"
                             "    \"optimizer\": \"AdamW\",\n"
                             "    \"precision\": \"fp32\",\n"
                             "    \"deepspeed_enabled\": false,\n"
                             "    \"zero_stage\": 0,\n"
                             "    \"dataset_name\": \"train.small\",\n"
                             "    \"dataset_subset_sizes\": {\n"
                             "      \"train\": 30,\n"
                             "      \"val\": 5\n"
                             "    }\n"
                             "  },\n"
                             "  \"deepspeed_config\": {\n"
                             "    \"path\": \"ds.json\",\n"
                             "    \"sha256\": \"00ff\",\n"
                             "    \"selected\": {\n"
                             "      \"fp16_enabled\": false,\n"
                             "      \"wall_clock_breakdown\": null\n"
                             "    }\n"
                             "  },\n"
                             "  \"schema_notes\": {\n"
                             "    \"steps\": \"Deprecated: the same number as micro_steps.\"\n"
                             "  },\n"
                             "  \"epochs\": [\n"
                             "    {\n"
                             "      \"epoch_idx\": 1,\n"
                             "      \"epoch_wall_time_sec\": 10.0,\n"
                             "      \"steps\": 15,\n"
                             "      \"micro_steps\": 15,\n"
                             "      \"optimizer_steps\": 8,\n"
                             "      \"tokens_processed_global\": 7680,\n"
                             "      \"tokens_per_sec_global\": 768.0,\n"
                             "      \"train_loss_avg_global\": 5.25,\n"
                             "      \"val_loss_avg_global\": 4.5,\n"
                             "      \"max_cuda_mem_allocated_bytes_rank0\": 0,\n"
                             "      \"max_cuda_mem_reserved_bytes_rank0\": 0,\n"
                             "      \"step_time_mean_sec\": 0.25,\n"
                             "      \"step_time_p50_sec\": 0.2,\n"
                             "      \"step_time_p95_sec\": 0.5,\n"
                             "      \"dataload_time_mean_sec\": 8.757201820270906e-05,\n"
                             "      \"updates_applied\": 7,\n"
                             "      \"updates_skipped\": 0,\n"
                             "      \"sequences_dropped\": 2,\n"
                             "      \"update_time_mean_sec\": 1.0,\n"
                             "      \"update_time_p50_sec\": 1.0,\n"
                             "      \"update_time_p95_sec\": 1.5,\n"
                             "      \"grad_norm_max\": 3.0,\n"
                             "      \"grad_norm_last\": 1.5,\n"
                             "      \"peak_rss_bytes_rank0\": 123456789\n"
                             "    },\n"
                             "    {\n"
                             "      \"epoch_idx\": 2,\n"
                             "      \"epoch_wall_time_sec\": 5.0,\n"
                             "      \"steps\": 14,\n"
                             "      \"micro_steps\": 14,\n"
                             "      \"optimizer_steps\": 7,\n"
                             "      \"tokens_processed_global\": 7168,\n"
                             "      \"tokens_per_sec_global\": 1433.6,\n"
                             "      \"train_loss_avg_global\": 5.0,\n"
                             "      \"val_loss_avg_global\": null,\n"
                             "      \"max_cuda_mem_allocated_bytes_rank0\": 0,\n"
                             "      \"max_cuda_mem_reserved_bytes_rank0\": 0,\n"
                             "      \"step_time_mean_sec\": null,\n"
                             "      \"step_time_p50_sec\": null,\n"
                             "      \"step_time_p95_sec\": null,\n"
                             "      \"dataload_time_mean_sec\": null,\n"
                             "      \"updates_applied\": 7,\n"
                             "      \"updates_skipped\": 0,\n"
                             "      \"sequences_dropped\": 2,\n"
                             "      \"update_time_mean_sec\": null,\n"
                             "      \"update_time_p50_sec\": null,\n"
                             "      \"update_time_p95_sec\": null,\n"
                             "      \"grad_norm_max\": 0.0,\n"
                             "      \"grad_norm_last\": 0.0,\n"
                             "      \"peak_rss_bytes_rank0\": 0\n"
                             "    }\n"
                             "  ],\n"
                             "  \"summary\": {\n"
                             "    \"total_wall_time_sec\": 16.5,\n"
                             "    \"best_val_loss\": 4.5,\n"
                             "    \"mean_tokens_per_sec_global\": 1100.8\n"
                             "  },\n"
                             "  \"shutdown\": {\n"
                             "    \"destroy_process_group_called\": false,\n"
                             "    \"quiet_nccl_monitor\": false\n"
                             "  },\n"
                             "  \"completion\": {\n"
                             "    \"run_complete_file\": \"RUN_COMPLETE.txt\",\n"
                             "    \"printed_marker\": true,\n"
                             "    \"timestamp_utc\": \"2026-01-28T01:24:14Z\"\n"
                             "  },\n"
                             "  \"lockstep\": {\n"
                             "    \"version\": \"" LS_VERSION "\",\n"
                             "    \"commit\": \"unknown\",\n"
                             "    \"model\": \"tiny\",\n"
                             "    \"variant\": \"hf\",\n"
                             "    \"parameters\": 859008,\n"
                             "    \"vocab_size\": 257,\n"
                             "    \"device\": \"cpu\",\n"
                             "    \"compute\": \"cpu\",\n"
                             "    \"backend\": \"cpu\",\n"
                             "    \"strategy\": \"single\",\n"
                             "    \"precision\": \"fp32\",\n"
                             "    \"deterministic\": true,\n"
                             "    \"recompute\": false,\n"
                             "    \"seed\": 1337,\n"
                             "    \"total_steps\": 14,\n"
                             "    \"lr_schedule\": \"cosine\",\n"
                             "    \"planned_bytes\": 1000,\n"
                             "    \"resumed_from_step\": 0,\n"
                             "    \"bucket\": 0,\n"
                             "    \"gather_bucket\": 0,\n"
                             "    \"prefetch_bucket\": 0\n"
                             "  }\n"
                             "}";

static void training_metrics_have_the_exact_text(void **state)
{
    (void)state;
    ls_str s = {0};
    fill();
    ls_training_metrics_text(&trainer, &run, &s);
    assert_string_equal(s.data, golden);
    ls_str_fini(&s);

    cfg.engine = true; /* with the engine the ZeRO stage is written, null if the JSON has none */
    ls_training_metrics_text(&trainer, &run, &s);
    assert_non_null(strstr(s.data, "\"zero_stage\": 1,\n    \"dataset_name\""));
    assert_non_null(strstr(s.data, "\"wall_clock_breakdown\": null,\n      \"zero_stage\": 1\n"));
    ls_str_fini(&s);
    cfg.zero_given = false;
    cfg.deepspeed_path = NULL;
    trainer.state.epoch = 0;
    ls_training_metrics_text(&trainer, &run, &s);
    assert_non_null(strstr(s.data, "\"zero_stage\": null,\n    \"dataset_name\""));
    assert_non_null(strstr(s.data, "\"path\": \"none\",\n    \"sha256\": \"unknown\""));
    assert_non_null(strstr(s.data, "\"epochs\": []"));
    assert_non_null(strstr(s.data, "\"best_val_loss\": null,\n    \"mean_tokens_per_sec_global\": null"));
    ls_str_fini(&s);
}

static void metrics_record_the_scheduler_or_instance(void **state)
{
    (void)state;
    ls_str s = {0};
    fill();
    setenv("EC2_INSTANCE_TYPE", "g4dn.12xlarge", 1);
    ls_training_metrics_text(&trainer, &run, &s);
    assert_non_null(strstr(s.data, "\"cuda_version\": \"none\",\n    \"instance_type\": \"g4dn.12xlarge\"\n"));
    assert_null(strstr(s.data, "\"scheduler\""));
    ls_str_fini(&s);
    setenv("SLURM_JOB_ID", "17776175", 1);
    setenv("SLURM_NODELIST", "gn-[0013-0014]", 1);
    setenv("SLURM_NNODES", "2", 1);
    setenv("SLURM_GPUS", "", 1); /* empty: not written */
    setenv("SLURM_JOB_PARTITION", "gpu4_short", 1);
    cfg.cluster = "Big";
    ls_training_metrics_text(&trainer, &run, &s);
    assert_null(strstr(s.data, "instance_type"));
    assert_non_null(strstr(s.data, "\"cluster\": \"Big\""));
    assert_non_null(
        strstr(s.data, "  \"scheduler\": {\n    \"type\": \"slurm\",\n    \"job_id\": \"17776175\",\n    \"nodelist\": "
                       "\"gn-[0013-0014]\",\n    \"nnodes\": \"2\",\n    \"partition\": \"gpu4_short\"\n  }"));
    ls_str_fini(&s);
    clean_environment();
}

static void launcher_metadata_records_the_environment(void **state)
{
    (void)state;
    ls_str s = {0};
    json_t *j = NULL;
    fill();
    setenv("GIT_COMMIT", "abc", 1);
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_JOB_NODELIST", "n[1-2]", 1);
    setenv("SLURM_HOSTS", "n1\nn2", 1);
    setenv("MASTER_PORT", "42907", 1);
    setenv("NCCL_LOGS", "0", 1);
    setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 1);
    ls_launcher_metadata_text(&trainer, &run, &s);
    assert_int_equal(ls_json_parse(s.data, s.len, "launcher", &j), LS_OK);
    const char *const keys[] = {"checkpoint_path", "rank0_host", "world_size", "git_commit",
                                "slurm",           "env",        "nccl_env"};
    size_t i = 0;
    const char *key;
    json_t *value;
    json_object_foreach(j, key, value) assert_string_equal(key, keys[i++]);
    assert_int_equal(i, N_OF(keys));
    assert_string_equal(json_string_value(json_object_get(j, "git_commit")), "abc");
    assert_non_null(
        strstr(s.data,
               "\"slurm\": {\n    \"job_id\": \"7\",\n    \"nodelist\": \"n[1-2]\",\n    \"hosts\": \"n1\\nn2\"\n  }"));
    assert_non_null(strstr(s.data, "\"env\": {\n    \"MASTER_PORT\": \"42907\"\n  }"));
    const json_t *nccl = json_object_get(j, "nccl_env");
    assert_string_equal(json_string_value(json_object_get(nccl, "NCCL_LOGS")), "0");
    assert_string_equal(json_string_value(json_object_get(nccl, "TORCH_NCCL_ASYNC_ERROR_HANDLING")), "1");
    json_decref(j);
    ls_str_fini(&s);
    unsetenv("NCCL_LOGS");
    unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
    clean_environment();
}

/* Keys that both objects have are in the order of the ZeRO scaling study (docs/REFERENCES.md). Keys that only the study
 * has must be optional in docs/FORMATS.md. */
static void same_order(const json_t *ours, const json_t *theirs, const char *const *may_lack, const char *where)
{
    const char *key;
    json_t *value;
    json_t *common = json_array();
    json_object_foreach((json_t *)(uintptr_t)ours, key, value)
    {
        if (json_object_get(theirs, key)) json_array_append_new(common, json_string(key));
    }
    size_t i = 0;
    json_object_foreach((json_t *)(uintptr_t)theirs, key, value)
    {
        const json_t *mine = json_object_get(ours, key);
        if (!mine) {
            bool allowed = false;
            for (const char *const *p = may_lack; *p; p++) allowed |= !strcmp(*p, key);
            if (!allowed) fail_msg("%s: key '%s' is missing", where, key);
            continue;
        }
        assert_string_equal(json_string_value(json_array_get(common, i++)), key);
        if (json_is_object(value)) same_order(mine, value, may_lack, key);
        bool same_type = json_typeof(mine) == json_typeof(value) || json_is_null(mine) || json_is_null(value) ||
                         (json_is_boolean(mine) && json_is_boolean(value));
        if (!same_type) fail_msg("%s.%s has another type than in the file of the scaling study", where, key);
    }
    json_decref(common);
}

static const ls_device device;
static const ls_device_info gpu = {.count = 8,
                                   .name = "NVIDIA H200",
                                   .cudnn = "9.14.0",
                                   .driver = "580.1",
                                   .api = "CUDA 13.0",
                                   .total = 150000000000,
                                   .multiprocessors = 132,
                                   .capability = 90};

/* The keys that a run on GPUs adds, and their positions. */
static void gpu_runs_add_keys_in_place(void **state)
{
    (void)state;
    const ls_loss_scale_config zero = {
        .rule = LS_SCALE_ZERO, .initial = 65536, .min = 1, .window = 1000, .hysteresis = 2};
    ls_worker_facts facts[2] = {{.device_bytes = 5e9}, {.device_bytes = 6e9}};
    ls_str s = {0};
    fill();
    cfg.device = "cuda";
    cfg.precision = "fp16";
    cfg.precision_label = "fp16_deepspeed";
    trainer.compute.device = &device;
    trainer.device = gpu;
    trainer.state.scale = ls_loss_scale_init(&zero);
    trainer.state.scale.scale = 32768;
    run.worker = facts;
    epoch[0].updates_skipped = 2;
    epoch[0].cuda_bytes = 5000000000;
    epoch[0].cuda_bytes_global = 6000000000;
    ls_training_metrics_text(&trainer, &run, &s);
    assert_null(strstr(s.data, "bytes_global")); /* one worker has no process group */
    ls_str_fini(&s);
    run.nccl = "2.28.3";
    cfg.world_size = 2;
    ls_training_metrics_text(&trainer, &run, &s);
    static const char *const parts[] = {
        "\"deepspeed_version\": \"none\",\n    \"cuda_version\": \"13.0\"\n",
        "\"gpu_name\": \"NVIDIA H200\",\n    \"gpu_count_visible\": 8,\n    \"world_size\": 2,\n    \"cuda_version\": \"13.0\"\n",
        "\"precision\": \"fp16_deepspeed\"",
        "\"max_cuda_mem_allocated_bytes_rank0\": 5000000000,\n      \"max_cuda_mem_reserved_bytes_rank0\": 5000000000,\n",
        "\"dataload_time_mean_sec\": 8.757201820270906e-05,\n      \"max_cuda_mem_allocated_bytes_global\": 6000000000,\n"
        "      \"max_cuda_mem_reserved_bytes_global\": 6000000000,\n      \"updates_applied\": 7,\n      \"updates_skipped\": 2,",
        "\"gpu\": {\n      \"name\": \"NVIDIA H200\",\n      \"index\": 0,\n      \"capability\": \"9.0\",",
        "\"cudnn_version\": \"9.14.0\",\n      \"nccl_version\": \"2.28.3\"\n",
        "\"loss_scale\": {\n      \"rule\": \"zero\",\n      \"initial\": 65536.0,\n      \"last\": 32768.0,\n"
        "      \"updates_skipped\": 2\n",
        "\"device\": 6000000000",
    };
    for (size_t i = 0; i < N_OF(parts); i++) assert_contains(s.data, parts[i]);
    ls_str_fini(&s);
}

static void keys_have_the_order_of_r1(void **state)
{
    (void)state;
    const char *base = LS_SOURCE_DIR "/tests/data/reference";
    const char *const lack[] = {"cluster", NULL};
    const char *const files[] = {"training_metrics_slurm.json", "training_metrics_1gpu.json"};
    setenv("SLURM_JOB_ID", "1", 1);
    setenv("SLURM_NODELIST", "n", 1);
    setenv("SLURM_NNODES", "1", 1);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_LOCALID", "0", 1);
    setenv("SLURM_JOB_PARTITION", "p", 1);
    setenv("SLURM_HOSTS", "n", 1);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    setenv("MASTER_ADDR", "n", 1);
    setenv("MASTER_PORT", "1", 1);
    fill();
    cfg.engine = true;
    cfg.world_size = 2;
    trainer.compute.device = &device;
    trainer.device = gpu;
    ls_str s = {0};
    json_t *ours = NULL, *theirs = NULL;
    ls_training_metrics_text(&trainer, &run, &s);
    assert_int_equal(ls_json_parse(s.data, s.len, "ours", &ours), LS_OK);
    for (size_t i = 0; i < N_OF(files); i++) {
        char *path = ls_path_join(base, files[i]);
        assert_int_equal(ls_json_load(path, &theirs), LS_OK);
        ls_free(path);
        same_order(ours, theirs, lack, files[i]);
        same_order(json_array_get(json_object_get(ours, "epochs"), 0),
                   json_array_get(json_object_get(theirs, "epochs"), 0), lack, "epoch");
        json_decref(theirs);
    }
    json_decref(ours);
    ls_str_fini(&s);
    const char *const nccl[] = {"NCCL_LOGS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", NULL};
    ls_launcher_metadata_text(&trainer, &run, &s);
    assert_int_equal(ls_json_parse(s.data, s.len, "ours", &ours), LS_OK);
    char *path = ls_path_join(base, "launcher_metadata.json");
    assert_int_equal(ls_json_load(path, &theirs), LS_OK);
    same_order(ours, theirs, nccl, "launcher");
    ls_free(path);
    json_decref(ours);
    json_decref(theirs);
    ls_str_fini(&s);
    clean_environment();
}

static void files_are_written_before_their_markers(void **state)
{
    (void)state;
    ls_str m = {0}, s = {0};
    char want[1024], *text;
    const char *path = test_path(dir, "training_metrics.json", NULL);
    size_t n;
    regex_t re;
    fill();
    assert_int_equal(ls_artifacts_write(&trainer, &run, &m), LS_OK);
    ls_exit_marker(0, &m);
    snprintf(want, sizeof want,
             "[Rank 0] LAUNCHER_METADATA_WRITE_DONE path=%s/launcher_metadata.json\n"
             "[Rank 0] METRICS_WRITE_DONE path=%s/training_metrics.json\n"
             "[Rank 0] RUN_COMPLETE checkpoint_path=%s world_size=1 tokens_per_sec=1100.8 total_wall_time_sec=16.5\n"
             "[Rank 0] EXITING cleanly\n",
             dir, dir, dir);
    assert_string_equal(m.data, want);
    ls_str_fini(&m);
    assert_int_equal(ls_fs_read(path, &text, &n), LS_OK);
    assert_string_equal(text, golden); /* no trailing newline */
    ls_free(text);
    assert_int_equal(ls_fs_read(test_path(dir, "RUN_COMPLETE.txt", NULL), &text, &n), LS_OK);
    assert_int_equal(text[n - 1], '\n');
    text[n - 1] = '\0';
    assert_int_equal(
        regcomp(
            &re,
            "^\\[Rank 0\\] RUN_COMPLETE checkpoint_path=(.*) world_size=([0-9]+) tokens_per_sec=([^ ]+) total_wall_time_sec=([^ ]+) timestamp_utc=2026-01-28T01:24:14Z$",
            REG_EXTENDED),
        0);
    assert_int_equal(regexec(&re, text, 0, NULL, 0), 0);
    regfree(&re);
    ls_free(text);
    trainer.state.epoch = 0;
    ls_run_complete_text(&trainer, &run, false, &s);
    assert_non_null(strstr(s.data, "tokens_per_sec=None total_wall_time_sec=None"));
    ls_str_fini(&s);

    /* The start of a new run in the same folder removes the files that mark a finished run. */
    assert_int_equal(ls_artifacts_begin(dir), LS_OK);
    assert_false(ls_fs_exists(test_path(dir, "RUN_COMPLETE.txt", NULL)));
    assert_false(ls_fs_exists(path));
    assert_true(ls_fs_exists(test_path(dir, "launcher_metadata.json", NULL)));
    cfg.run_dir = WORDS("/proc/nowhere");
    assert_int_equal(ls_artifacts_write(&trainer, &run, &m), LS_E_IO);
    assert_int_equal(m.len, 0); /* no marker for a file that was not written */
    ls_str_fini(&m);
}

static int count_lines(const char *path, char **text)
{
    size_t n;
    int lines = 0;
    assert_int_equal(ls_fs_read(path, text, &n), LS_OK);
    for (size_t i = 0; i < n; i++) lines += (*text)[i] == '\n';
    return lines;
}

static void the_step_log_survives_a_resume(void **state)
{
    (void)state;
    char *text;
    const char *path = test_path(dir, "metrics.jsonl", NULL);
    ls_metrics_log l = {0};
    assert_int_equal(ls_metrics_log_close(&l), LS_OK); /* a log that was never opened */
    assert_int_equal(ls_metrics_log_open(&l, dir, 0), LS_OK);
    fill();
    trainer.state.epoch = 0;
    ls_step_result r = {.loss = 10.825, .lr = 2.5e-5, .grad_norm = NAN, .t_total = 0.5};
    ls_event e = {.kind = LS_ON_STEP_LOG, .step = &r};
    int64_t *step = &trainer.state.step;
    int64_t before = ls_mem_count();
    for (*step = 1; *step <= 10; ++*step) assert_int_equal(ls_metrics_log_add(&l, &trainer, &e), LS_OK);
    assert_int_equal(ls_mem_count(), before);       /* nothing allocated */
    assert_int_equal(count_lines(path, &text), 10); /* visible before close */
    assert_int_equal(
        strncmp(
            text,
            "{\"step\": 1, \"epoch\": 1, \"loss\": 10.825, \"lr\": 2.5e-05, \"grad_norm\": null, \"tokens\": 1024, ",
            80),
        0);
    assert_null(strstr(text, "val_loss"));
    ls_free(text);
    assert_int_equal(ls_metrics_log_close(&l), LS_OK);
    assert_int_equal(ls_metrics_log_close(&l), LS_OK);

    FILE *f = fopen(path, "a"); /* killed in the middle of a line */
    assert_non_null(f);
    fputs("{\"step\": 11, \"ep", f);
    fclose(f);
    assert_int_equal(ls_metrics_log_open(&l, dir, 11), LS_OK);
    assert_int_equal(count_lines(path, &text), 10);
    assert_null(strstr(text, "\"step\": 11"));
    ls_free(text);
    *step = 11;
    e.n_val = 1;
    e.val_loss = 3.0;
    r.loss_scale = 512;
    r.skipped = true;
    assert_int_equal(ls_metrics_log_add(&l, &trainer, &e), LS_OK);
    assert_int_equal(ls_metrics_log_close(&l), LS_OK);
    assert_int_equal(count_lines(path, &text), 11);
    assert_non_null(strstr(text, "\"val_loss\": 3.0"));
    assert_non_null(strstr(text, "\"grad_norm\": null, \"loss_scale\": 512.0, \"skipped\": true, "));
    assert_true(strstr(text, "loss_scale") > strstr(text, "\"step\": 11,")); /* the other lines have none */
    ls_free(text);

    assert_int_equal(ls_metrics_log_open(&l, dir, 7), LS_OK); /* resumed from step 7 */
    assert_int_equal(count_lines(path, &text), 7);
    assert_non_null(strstr(text, "{\"step\": 7,"));
    assert_null(strstr(text, "{\"step\": 8,"));
    ls_free(text);
    assert_int_equal(ls_metrics_log_close(&l), LS_OK);
    static const char damaged[] = "{\"step\": 1}\n\1{\"st\n[]\n{\"step\": 2}\n{\"step\": 3}\n\1\n{\"step\": 2}\n";
    assert_int_equal(ls_fs_write(path, damaged, sizeof damaged - 1), LS_OK);
    assert_int_equal(ls_metrics_log_open(&l, dir, 2), LS_OK); /* the lines after a damaged one stay */
    assert_int_equal(count_lines(path, &text), 4);
    assert_memory_equal(text, damaged, strlen(text));
    ls_free(text);
    assert_int_equal(ls_metrics_log_close(&l), LS_OK);
    assert_int_equal(ls_metrics_log_open(&l, dir, 0), LS_OK); /* a new run */
    assert_int_equal(count_lines(path, &text), 0);
    ls_free(text);
    assert_int_equal(ls_metrics_log_close(&l), LS_OK);
    assert_int_equal(ls_metrics_log_open(&l, "/proc/nowhere", 0), LS_E_IO);
}

static void the_commit_is_read_from_git_files(void **state)
{
    (void)state;
    const char *a = "0123456789abcdef0123456789abcdef01234567", *b = "89abcdef0123456789abcdef0123456789abcdef";
    char commit[80], sub[128], text[256];
    snprintf(text, sizeof text, "%s\n", a);
    test_write(dir, ".git/HEAD", text); /* detached */
    test_write(dir, "deep/er/x", "");
    snprintf(sub, sizeof sub, "%s/deep/er", dir);
    assert_true(ls_git_head(sub, commit));
    assert_string_equal(commit, a);
    test_write(dir, ".git/HEAD", "ref: refs/heads/main\n");
    snprintf(text, sizeof text, "# pack-refs\n%s refs/heads/main2\n%s refs/heads/main\n^%s\n", a, b, a);
    test_write(dir, ".git/packed-refs", text);
    assert_true(ls_git_head(dir, commit));
    assert_string_equal(commit, b);
    snprintf(text, sizeof text, "%s\n", a);
    test_write(dir, ".git/refs/heads/main", text); /* a loose reference is newer */
    assert_true(ls_git_head(dir, commit));
    assert_string_equal(commit, a);
    /* a linked working tree */
    test_write(dir, ".git/worktrees/w/HEAD", "ref: refs/heads/main\n");
    test_write(dir, ".git/worktrees/w/commondir", "../..\n");
    test_write(dir, "w/.git", "gitdir: ../.git/worktrees/w\n");
    snprintf(sub, sizeof sub, "%s/w", dir);
    assert_true(ls_git_head(sub, commit));
    assert_string_equal(commit, a);
    test_write(dir, ".git/HEAD", "ref: refs/heads/gone\n");
    assert_false(ls_git_head(dir, commit));
    test_write(dir, ".git/HEAD", "nonsense\n");
    assert_false(ls_git_head(dir, commit));
    assert_false(ls_git_head("/nonexistent", commit));
}

static void switches_of_the_environment_are_recorded(void **state)
{
    (void)state;
    char *env[] = {WORDS("NCCL_PROTO=a b\nc"), WORDS("LS_SIMD="),          WORDS("PATH=/bin"),
                   WORDS("NCCL_ALGO=Ring"),    WORDS("LS_GEMM_FP32=1"),    WORDS("NCCL_DEBUG=INFO"),
                   WORDS("LS_GEMM=blas"),      WORDS("LS_GEMM_OTHER=1"),   WORDS("NCCL_NET_PLUGIN=x"),
                   WORDS("LS_PLUGIN_DIR=/x"),  WORDS("NCCL_TOPO_FILE=/t"), NULL};
    ls_str s = {0};
    ls_run_environment(env, &s);
    assert_string_equal(s.data, "LS_GEMM=blas LS_GEMM_FP32=1 NCCL_ALGO=Ring NCCL_PROTO=a_b_c");
    ls_str_fini(&s);
    ls_run_environment(&env[11], &s);
    assert_null(s.data);

    fill();
    id.built = "89abcdef0123456789abcdef0123456789abcdef-dirty";
    id.environment = WORDS("LS_CUDA_GRAPHS=0 NCCL_ALGO=Ring");
    snprintf(trainer.train_sum, sizeof trainer.train_sum, "sha256:00ff");
    snprintf(trainer.val_sum, sizeof trainer.val_sum, "xxh3:11");
    ls_training_metrics_text(&trainer, &run, &s);
    assert_non_null(strstr(s.data, "\"commit\": \"89abcdef0123456789abcdef0123456789abcdef-dirty\",\n"
                                   "    \"train_data\": \"sha256:00ff\",\n    \"val_data\": \"xxh3:11\",\n"
                                   "    \"environment\": \"LS_CUDA_GRAPHS=0 NCCL_ALGO=Ring\",\n"));
    ls_str_fini(&s);
}

static void every_run_has_its_own_identity(void **state)
{
    (void)state;
    char *argv[] = {WORDS("--model"), WORDS("a b")};
    ls_run_identity one, two;
    regex_t re;
    int64_t live = ls_mem_live();
    setenv("GIT_COMMIT", "cafe", 1);
    assert_int_equal(ls_run_identity_capture(&one, "lockstep train", 2, argv, "c0ffee-dirty"), LS_OK);
    assert_int_equal(ls_run_identity_capture(&two, "lockstep", 0, NULL, NULL), LS_OK);
    assert_int_equal(regcomp(&re, "^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$", REG_EXTENDED | REG_NOSUB), 0);
    assert_int_equal(regexec(&re, one.run_id, 0, NULL, 0), 0);
    regfree(&re);
    assert_string_not_equal(one.run_id, two.run_id);
    assert_string_equal(one.command_line, "lockstep train --model a b");
    assert_string_equal(two.command_line, "lockstep");
    assert_string_equal(one.git_commit, "cafe");
    assert_string_equal(one.built, "c0ffee-dirty");
    assert_null(two.built);
    assert_int_equal(strlen(one.timestamp_utc), 20);
    assert_int_equal(strncmp(one.os, "Linux-", 6), 0);
    assert_non_null(strstr(one.os, "-with-glibc2."));
    assert_true(one.hostname[0] != 0);
    unsetenv("GIT_COMMIT");
    ls_run_identity_fini(&one);
    ls_run_identity_fini(&two);
    assert_int_equal(ls_mem_live(), live);
}

static void sampling_and_percentiles_are_exact(void **state)
{
    (void)state;
    int n80 = 0, n300 = 0;
    for (int64_t s = 0; s < 300; s++) {
        n80 += s < 80 && ls_step_sampled(s, 5, 50);
        n300 += ls_step_sampled(s, 5, 50);
    }
    assert_int_equal(n80, 1); /* s = 50 */
    assert_int_equal(n300, 5);
    assert_true(ls_step_sampled(0, 0, 1) && !ls_step_sampled(4, 5, 1) && ls_step_sampled(5, 5, 1));
    double x[] = {4, 1, 3, 2};
    ls_stats st = ls_stats_of(x, 4);
    assert_true(st.mean == 2.5 && st.p50 == 2.5);
    assert_true(fabs(st.p95 - 3.85) < 1e-12); /* position 0.95 * 3 = 2.85 */
    double one[] = {7};
    st = ls_stats_of(one, 1);
    assert_true(st.mean == 7 && st.p50 == 7 && st.p95 == 7);
    st = ls_stats_of(NULL, 0);
    assert_true(st.mean == 0);
    assert_true(ls_percentile(x, 4, 0) == 1 && ls_percentile(x, 4, 1) == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(training_metrics_have_the_exact_text),
        T(metrics_record_the_scheduler_or_instance),
        T(launcher_metadata_records_the_environment),
        T(keys_have_the_order_of_r1),
        T(gpu_runs_add_keys_in_place),
        T(files_are_written_before_their_markers),
        T(the_step_log_survives_a_resume),
        T(the_commit_is_read_from_git_files),
        T(switches_of_the_environment_are_recorded),
        T(every_run_has_its_own_identity),
        T(sampling_and_percentiles_are_exact),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
