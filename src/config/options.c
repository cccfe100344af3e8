#include "config/options.h"

#include <stddef.h>
#include <string.h>

/* clang-format off */
#define TEXT_OF(x)  TEXT_OF2(x)
#define TEXT_OF2(x) #x
#define AT(field) offsetof(ls_train_options, field)
#define ROW(name_, kind_, field, arg_, def_, ...) {.name = name_, .kind = kind_, .offset = AT(field), .arg = arg_, .def = def_, .help = __VA_ARGS__}

/* Spelt as R1 (docs/REFERENCES.md) spells them where it has them; - and _ are alike. */
const ls_opt ls_train_opts[] = {
    ROW("data", LS_OPT_STR, data, "DIR", NULL, "folder of `lockstep prepare`: train.bin, val.bin, tokenizer.json",
        .section = "Data and run folder"),
    ROW("train_data_path", LS_OPT_STR, train_data_path, "FILE", NULL, "training ids, uint16 (instead of --data)"),
    ROW("val_data_path", LS_OPT_STR, val_data_path, "FILE", NULL, "validation ids; without them there is no validation"),
    ROW("checkpoint_path", LS_OPT_STR, checkpoint_path, "DIR", "checkpoint/optimized", "run folder: metrics, logs, checkpoints"),
    ROW("deepspeed_config", LS_OPT_STR, deepspeed_config, "FILE", NULL, "DeepSpeed JSON; the command line wins over it"),
    ROW("run_type", LS_OPT_CHOICE, run_type, "baseline|optimized", NULL,
        "recorded; without --model and --variant it also selects variant r1, the reference trainer's model"),

    ROW("model", LS_OPT_STR, model, "NAME|PATH", NULL,
        "gpt2, gpt2-medium, gpt2-large, gpt2-xl, tiny, or a Hugging Face config.json or its folder [gpt2]", .section = "Model"),
    ROW("variant", LS_OPT_CHOICE, variant, "hf|r1", NULL,
        "hf: tied head, tanh GELU; r1: own head, erf GELU, no dropout after attention [hf]"),
    ROW("init_from", LS_OPT_STR, init_from, "DIR", NULL, "start from the weights of a Hugging Face folder or a checkpoint"),
    ROW("num_layers", LS_OPT_INT, num_layers, "N", NULL, "blocks [of the model]"),
    ROW("num_heads", LS_OPT_INT, num_heads, "N", NULL, "attention heads [of the model]"),
    ROW("embedding_size", LS_OPT_INT, embedding_size, "N", NULL, "width [of the model]"),
    ROW("max_position_embeddings", LS_OPT_INT, max_position_embeddings, "N", NULL, "positions [of the model]"),
    ROW("vocab_size", LS_OPT_INT, vocab_size, "N", NULL, "ids [of the model; tiny: of the data's tokenizer]"),
    ROW("dropout", LS_OPT_REAL, dropout, "P", NULL, "one rate for every place [of the model, 0.1]"),

    ROW("seq_length", LS_OPT_INT, seq_length, "N", "512", "ids in a sequence, at most the model's positions",
        .section = "Batch and length"),
    ROW("micro_batch_size_per_gpu", LS_OPT_INT, micro_batch_size_per_gpu, "N", NULL, "sequences in a micro-batch, over the JSON"),
    ROW("train_micro_batch_size_per_gpu", LS_OPT_INT, train_micro_batch_size_per_gpu, "N", "4", "the same, below the JSON"),
    ROW("grad_accum_steps", LS_OPT_INT, grad_accum_steps, "N", NULL, "micro-batches in an optimizer step [JSON, else 1]"),
    ROW("global_batch_size", LS_OPT_INT, global_batch_size, "N", NULL,
        "sequences in an optimizer step over all workers; derives --grad_accum_steps"),
    ROW("enforce_global_batch_size", LS_OPT_INT, enforce_global_batch_size, "N", NULL, "fail unless the global batch is N"),
    ROW("epochs", LS_OPT_INT, epochs, "N", "1", "passes over the training data"),
    ROW("max_steps", LS_OPT_INT, max_steps, "N", NULL,
        "stop after N optimizer steps in all; without --epochs as many epochs as that takes"),
    ROW("max_train_steps", LS_OPT_INT, max_train_steps, "N", NULL, "at most N micro steps an epoch and worker"),
    ROW("max_val_steps", LS_OPT_INT, max_val_steps, "N", NULL, "at most N validation batches; 0 = none"),
    ROW("eval_every", LS_OPT_INT, eval_every, "N", "0", "validate every N optimizer steps too; 0 = at the end of an epoch only"),

    ROW("lr", LS_OPT_REAL, lr, "RATE", NULL, "learning rate (peak) [JSON, else 3e-4]", .section = "Optimizer"),
    ROW("lr_schedule", LS_OPT_CHOICE, lr_schedule, "constant|cosine|WarmupLR|WarmupDecayLR|WarmupCosineLR", NULL,
        "over the JSON's [JSON, else cosine]"),
    ROW("warmup_steps", LS_OPT_INT, warmup_steps, "N", NULL, "updates of warm-up [JSON, else a tenth of the run, at most 1000]"),
    ROW("min_lr_ratio", LS_OPT_REAL, min_lr_ratio, "R", NULL, "floor of cosine, as a part of --lr [JSON, else 0.1]"),
    ROW("betas", LS_OPT_LIST, betas, "B1 B2", NULL, "AdamW's, as `0.9 0.95` or `0.9,0.95` [JSON, else 0.9 0.95]"),
    ROW("eps", LS_OPT_REAL, eps, "E", NULL, "AdamW's [JSON, else 1e-8]"),
    ROW("weight_decay", LS_OPT_REAL, weight_decay, "W", NULL, "decoupled from the gradient [JSON, else 0.1]"),
    ROW("decay", LS_OPT_CHOICE, decay, "all|matrices", "all",
        "what it falls on: every tensor, as torch and DeepSpeed do, or not the biases and norms"),
    ROW("clip", LS_OPT_REAL, clip, "NORM", NULL, "global gradient norm; 0 = off [JSON, else 1.0]"),

    ROW("n", LS_OPT_INT, n, "N", "1", "workers on this machine (also -n N)", .section = "Machine"),
    ROW("device", LS_OPT_STR, device, "auto|cpu|cuda[:N]", "auto",
        "where to compute; cuda: a GPU for each worker, cuda:N: the N-th for all; auto: cuda where there is a GPU, else cpu"),
    ROW("compute", LS_OPT_CHOICE, compute, "cpu|cpu-ref", "cpu", "kernels of the CPU: fast, or the readable reference"),
    ROW("precision", LS_OPT_CHOICE, precision, "fp32|bf16|fp16", NULL,
        "over the JSON's fp16 and bf16 blocks; 16 bits need a GPU, and fp32 master weights stay [JSON, else fp32 on "
        "the CPU, bf16 on a GPU]"),
    ROW("tf32", LS_OPT_SWITCH, tf32, NULL, NULL, "with --precision fp32 on a GPU: matrix products in TF32"),
    ROW("stochastic_rounding", LS_OPT_SWITCH, stochastic_rounding, NULL, NULL,
        "with --precision bf16: weights are rounded up or down by chance, a function of seed, step and element"),
    ROW("threads", LS_OPT_INT, threads, "N", "0", "0 = all cores; the number does not change a bit of the result"),
    ROW("strategy", LS_OPT_CHOICE, strategy, "single|dp|ddp|zero1|zero2|zero3", NULL,
        "how workers share the model [single; ddp with several workers]"),
    ROW("bucket", LS_OPT_INT, bucket, "N", NULL,
        "elements of a gradient bucket [JSON: reduce_bucket_size, else " TEXT_OF(LS_BUCKET) "; on GPUs " TEXT_OF(LS_BUCKET_GPU) "]"),
    ROW("gather_bucket", LS_OPT_INT, gather_bucket, "N", TEXT_OF(LS_GATHER_BUCKET),
        "zero1, zero2: elements of a parameter bucket (JSON: allgather_bucket_size)"),
    ROW("prefetch_bucket", LS_OPT_INT, prefetch_bucket, "N", TEXT_OF(LS_PREFETCH_BUCKET),
        "zero3: elements gathered ahead of use; 0 = none (JSON: stage3_prefetch_bucket_size)"),
    ROW("comm", LS_OPT_CHOICE, comm, "auto|local|mpi|nccl", "auto", "how workers talk; nccl: between GPUs"),
    ROW("nccl_proof", LS_OPT_CHOICE, nccl_proof, "off|log|full", "log",
        "over NCCL: keep its log, nvidia-smi and ibstat in the run folder; full: its topology too"),
    ROW("comm_timeout", LS_OPT_REAL, comm_timeout, "SECONDS", NULL,
        "a collective that takes longer ends the run with a table of who is where; 0 = no limit [20 slowest steps, at least 30 s]"),
    ROW("pp", LS_OPT_INT, pp, "P", "1", "pipeline stages"),
    ROW("schedule", LS_OPT_STR, schedule, "NAME|FILE", NULL,
        "pipeline schedule: naive, gpipe, 1f1b, interleaved, zb or a file [1f1b]"),
    ROW("interleave", LS_OPT_INT, interleave, "V", "1", "parts of the model on each stage, with --schedule interleaved"),
    ROW("stages", LS_OPT_STR, stages, "A-B,C-D,...", NULL,
        "units of each part, by hand (0 is embed); or `measured` [equal in cost, by a model of it]"),
    ROW("tp", LS_OPT_INT, tp, "T", "1", "workers a layer is split over"),
    ROW("sequence_parallel", LS_OPT_SWITCH, sequence_parallel, NULL, NULL,
        "with --tp: norms and residuals by rows, a part on each worker"),
    ROW("seed", LS_OPT_INT, seed, "N", "1337", "of weights, sample order and dropout"),
    ROW("recompute", LS_OPT_SWITCH, recompute, NULL, NULL, "keep only block inputs and compute activations again in backward"),
    ROW("deterministic", LS_OPT_SWITCH, deterministic, NULL, NULL, "same bits every time (the default)"),
    ROW("no_deterministic", LS_OPT_SWITCH, no_deterministic, NULL, NULL, "allow layouts that cannot follow the order of one worker's sums, and on GPUs kernels and sums without one"),

    ROW("save_every", LS_OPT_INT, save_every, "N", "0", "checkpoint step-N every N optimizer steps; 0 = at the end of an epoch only",
        .section = "Checkpoints"),
    ROW("keep_last", LS_OPT_INT, keep_last, "K", "0", "keep the K newest step-N checkpoints; 0 = all"),
    ROW("resume", LS_OPT_SWITCH, resume, NULL, NULL, "go on from the newest checkpoint of the run folder, bit for bit; without it, those found there move to earlier-<k>/"),

    ROW("steps_per_print", LS_OPT_INT, steps_per_print, "N", "10", "micro steps between log lines", .section = "Output"),
    ROW("print_config", LS_OPT_SWITCH, print_config, NULL, NULL, "print every setting, its value and its source, and stop"),
    ROW("json", LS_OPT_SWITCH, json, NULL, NULL, "results (and --print_config) as JSON on stdout"),
    ROW("timing_warmup_steps", LS_OPT_INT, timing_warmup_steps, "N", "5", "micro steps before the first timed one"),
    ROW("timing_sample_every", LS_OPT_INT, timing_sample_every, "N", "50", "time every N-th micro step"),
    ROW("profile_mode", LS_OPT_SWITCH, profile_mode, NULL, NULL, "no progress and no step lines (also PROFILE_MODE=1)"),
    ROW("profile", LS_OPT_SWITCH, profile, NULL, NULL, "trace every worker into profiles/trace.json (also `lockstep profile -- train ...`)"),
    ROW("profile_spans", LS_OPT_INT, profile_spans, "N", "131072", "spans that a traced worker keeps: the newest"),
    ROW("cluster", LS_OPT_STR, cluster, "NAME", NULL, "hardware.cluster of the metrics [SLURM_CLUSTER_NAME]"),
    ROW("quiet_nccl_monitor", LS_OPT_SWITCH, quiet_nccl_monitor, NULL, NULL, "recorded in the metrics"),
    ROW("local_rank", LS_OPT_INT, local_rank, "N", "-1", "from a launcher; LOCAL_RANK wins"),
    ROW("num_workers", LS_OPT_INT, num_workers, "N", NULL, "accepted; data is mapped into memory and needs no loader processes"),

    /* Old flags of R1 (docs/REFERENCES.md): taken, without effect, with a warning. */
    ROW("gradient_accumulation_steps", LS_OPT_INT, old_gradient_accumulation_steps, "N", NULL, NULL),
    ROW("learning_rate", LS_OPT_REAL, old_learning_rate, "R", NULL, NULL),
    ROW("gradient_clipping", LS_OPT_REAL, old_gradient_clipping, "R", NULL, NULL),
    ROW("pipeline_stages", LS_OPT_INT, old_pipeline_stages, "N", NULL, NULL),
    ROW("use_flash_attention", LS_OPT_SWITCH, old_use_flash_attention, NULL, NULL, NULL),
};
/* clang-format on */
const size_t ls_train_n_opts = sizeof ls_train_opts / sizeof ls_train_opts[0];
_Static_assert(sizeof ls_train_opts / sizeof ls_train_opts[0] <= LS_TRAIN_OPTION_MAX, "raise LS_TRAIN_OPTION_MAX");

ls_status ls_train_options_parse(int argc, char **argv, ls_train_options *o)
{
    *o = (ls_train_options){0};
    LS_TRY(ls_opt_defaults(ls_train_opts, ls_train_n_opts, o));
    LS_TRY(ls_opt_parse(ls_train_opts, ls_train_n_opts, o, o->given, argc, argv, NULL, &o->help));
    return LS_OK;
}

bool ls_train_given(const ls_train_options *o, const char *name)
{
    size_t i = 0;
    while (i < ls_train_n_opts && strcmp(ls_train_opts[i].name, name)) i++;
    LS_ASSERT(i < ls_train_n_opts);
    return o->given[i];
}

void ls_train_options_warnings(const ls_train_options *o, ls_str *out)
{
    static const struct {
        const char *name, *instead;
    } old[] = {
        {"gradient_accumulation_steps", "use --grad_accum_steps"},
        {"learning_rate", "use --lr"},
        {"gradient_clipping", "use --clip"},
        {"pipeline_stages", "pipelines are asked for with --pp"},
        {"use_flash_attention", "attention never holds the whole matrix here"},
        {"num_workers", "data is mapped into memory"},
    };
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++)
        if (ls_train_given(o, old[i].name)) ls_str_addf(out, "--%s has no effect; %s\n", old[i].name, old[i].instead);
}

void ls_train_options_help(ls_str *out)
{
    ls_str options = {0};
    ls_opt_help(ls_train_opts, ls_train_n_opts, &options);
    ls_str_add(out, "usage: lockstep train --data DIR [options]\n"
                    "       lockstep train --train_data_path FILE [--val_data_path FILE] [options]\n\n"
                    "Trains a GPT-2 and writes metrics, logs and checkpoints into the run folder.\n\n");
    if (options.data) ls_str_add(out, options.data);
    out->failed |= options.failed;
    ls_str_fini(&options);
    ls_str_add(
        out,
        "\nEnvironment:\n"
        "  RANK, LOCAL_RANK, WORLD_SIZE    identity under a launcher like torchrun (one host; mpirun and srun: any "
        "number)\n"
        "  LS_PLUGIN_DIR                   where lockstep_mpi.so and lockstep_cuda.so are [beside the program]\n"
        "  LS_DEVICE                       --device of every command that is not given one [auto]\n"
        "  PROFILE_MODE=1                  as --profile_mode\n"
        "  DIST_DEBUG=1                    collectives around an epoch's steps, by worker, on stdout and in "
        "rank_logs/\n"
        "  GIT_COMMIT, EC2_INSTANCE_TYPE, SLURM_*  recorded in the run's files\n"
        "  LS_LOG=info,train=debug         what is logged to stderr\n"
        "\nSignals:\n"
        "  SIGTERM, SIGINT    stop after the current step, save a checkpoint, exit with 143;\n"
        "                     before the first step: exit at once, nothing is saved\n"
        "  a second one       exit at once without saving (143; SIGINT: 130), if it\n"
        "                     comes at least half a second after the first\n"
        "  A run that does not react ends by itself with exit code 4 when it makes no\n"
        "  progress for as long as a collective may take (at least 30 s).\n"
        "\nExamples:\n"
        "  lockstep prepare --input text.txt --out data/mine --tokenizer train --vocab-size 4096\n"
        "  lockstep train --data data/mine --model tiny --seq-length 256 --micro-batch-size-per-gpu 8 --max-steps 500\n"
        "  lockstep train --run_type baseline --train_data_path train.bin --val_data_path val.bin \\\n"
        "      --deepspeed_config deepspeed_config.json --precision fp32 --print_config\n");
}
