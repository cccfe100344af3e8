#include "config/options.h"
#include "config/preset.h"
#include "core/fs.h"
#include "model/fp8.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
#define TEXT_OF(x)  TEXT_OF2(x)
#define TEXT_OF2(x) #x
#define AT(field) offsetof(ls_train_options, field)
#define ROW(name_, kind_, field, arg_, def_, ...) {.name = name_, .kind = kind_, .offset = AT(field), .arg = arg_, .def = def_, .help = __VA_ARGS__}
#define IN(lo_, hi_) .lo = lo_, .hi = hi_
#define COMMON       .common = true /* on the first help page */
#define OTHER(name_, same_, instead_) {.name = name_, .arg = same_, .instead = instead_}
#define YES "true|1|yes"
#define NO  "false|0|no"

/* Spelt as the ZeRO scaling study (docs/REFERENCES.md) spells them where it has them; - and _ are alike. */
const ls_opt ls_train_opts[] = {
    ROW("data", LS_OPT_STR, data, "DIR[:W],...", NULL,
        "folder written by `lockstep prepare` (train.bin or shards, val.bin, tokenizer.json); several with weights (a:0.7,b:0.3) or a blend file: samples from all, in these proportions",
        .section = "Data and run folder", COMMON),
    ROW("train_data_path", LS_OPT_STR, train_data_path, "FILE", NULL, "training tokens as uint16 (instead of --data); 'train_*.bin': shards"),
    ROW("val_data_path", LS_OPT_STR, val_data_path, "FILE", NULL, "validation tokens as uint16 [no validation]"),
    ROW("verify_data", LS_OPT_SWITCH, verify_data, NULL, NULL,
        "compare every byte of the token files with the checksums of meta.json, instead of samples of files above 16 MiB"),
    ROW("lines", LS_OPT_SWITCH, lines, NULL, NULL, "texts: each line is a document, not each file"),
    ROW("limit_docs", LS_OPT_INT, limit_docs, "N", "0", "texts: use only the first N documents; 0 = all", IN(0, 1e18)),
    ROW("dedup", LS_OPT_SWITCH, dedup, NULL, NULL, "texts: drop documents that equal an earlier one"),
    ROW("preset", LS_OPT_CHOICE, preset, "r2|r3", NULL,
        "accept the flags of another trainer, with its defaults (docs/REFERENCES.md): r2: --framework dp|ddp|deepspeed, --num_gpus, ...; r3: --world_size, --model_parallel_mode, ... [none]"),
    ROW("task", LS_OPT_CHOICE, task, "lm|translate", "lm",
        "translate: data of `prepare --task translate`; BLEU of each epoch; takes the flags of the translation study (docs/REFERENCES.md)"),
    ROW("workdir", LS_OPT_STR, workdir, "DIR", NULL, "translate: folder for results and translations of each epoch [workdir in the run folder]"),
    ROW("checkpoint_path", LS_OPT_STR, checkpoint_path, "DIR", "checkpoint/optimized", "run folder for metrics, logs and checkpoints [runs/DATE-NAME; with --run_type, --deepspeed_config, --preset or under a launcher: checkpoint/optimized]", COMMON),
    ROW("deepspeed_config", LS_OPT_STR, deepspeed_config, "FILE", NULL, "DeepSpeed configuration in JSON; options on the command line override it", COMMON),
    ROW("run_type", LS_OPT_CHOICE, run_type, "baseline|optimized", NULL,
        "recorded in the metrics; without --model and --variant it also selects variant r1, the model of the reference trainer"),

    ROW("model", LS_OPT_STR, model, "NAME|PATH", NULL,
        "gpt2, gpt2-medium, gpt2-large, gpt2-xl, tiny, a Hugging Face config.json or the folder that contains one [sizes chosen for the text; with --run_type, --deepspeed_config, --preset or under a launcher: gpt2]", .section = "Model", COMMON),
    ROW("variant", LS_OPT_CHOICE, variant, "hf|r1", NULL,
        "hf: tied output layer, tanh GELU; r1: separate output layer, erf GELU, no dropout after attention [hf]"),
    ROW("init_from", LS_OPT_STR, init_from, "DIR", NULL,
        "load initial weights: a Hugging Face folder, a checkpoint, a model file of llm.c, or the name of a model in the Hugging Face cache, such as gpt2", COMMON),
    ROW("num_layers", LS_OPT_INT, num_layers, "N", NULL, "number of transformer blocks [from the model]", IN(1, INT32_MAX)),
    ROW("num_heads", LS_OPT_INT, num_heads, "N", NULL, "number of attention heads [from the model]", IN(1, INT32_MAX)),
    ROW("embedding_size", LS_OPT_INT, embedding_size, "N", NULL, "embedding width [from the model]", IN(1, INT32_MAX)),
    ROW("max_position_embeddings", LS_OPT_INT, max_position_embeddings, "N", NULL, "number of positions [from the model]", IN(1, INT32_MAX)),
    ROW("vocab_size", LS_OPT_INT, vocab_size, "N", NULL, "vocabulary size [from the model; tiny: from the tokenizer of the data]", IN(1, INT32_MAX)),
    ROW("dropout", LS_OPT_REAL, dropout, "P", NULL, "dropout rate, the same everywhere [from the model, 0.1]", IN(0, 1)),

    ROW("seq_length", LS_OPT_INT, seq_length, "N", "512",
        "tokens per sequence, at most the number of positions [512; fewer if the model has fewer positions: tiny 256]",
        .section = "Batch and length", IN(1, INT32_MAX), COMMON),
    ROW("micro_batch_size_per_gpu", LS_OPT_INT, micro_batch_size_per_gpu, "N", NULL, "sequences per micro-batch; overrides the JSON", IN(1, INT32_MAX), COMMON),
    ROW("train_micro_batch_size_per_gpu", LS_OPT_INT, train_micro_batch_size_per_gpu, "N", "4", "sequences per micro-batch if the JSON has none", IN(1, INT32_MAX)),
    ROW("grad_accum_steps", LS_OPT_INT, grad_accum_steps, "N", NULL, "micro-batches per optimizer step and worker [1; with a JSON: its value or DeepSpeed's default]", IN(1, INT32_MAX), COMMON),
    ROW("global_batch_size", LS_OPT_INT, global_batch_size, "N", NULL,
        "sequences per optimizer step over all workers; sets --grad_accum_steps", IN(1, INT32_MAX)),
    ROW("enforce_global_batch_size", LS_OPT_INT, enforce_global_batch_size, "N", NULL, "fail unless the global batch size is N", IN(1, INT32_MAX)),
    ROW("epochs", LS_OPT_INT, epochs, "N", "1", "passes over the training data", IN(1, 1000000), COMMON),
    ROW("max_steps", LS_OPT_INT, max_steps, "N", NULL,
        "stop after N optimizer steps in total; without --epochs, run as many epochs as needed", IN(1, 1e15), COMMON),
    ROW("minutes", LS_OPT_REAL, minutes, "M", "4",
        "time budget: sets --max_steps from a short trial on this machine; without --model it also sets the size of the model", IN(0, 1e7), COMMON),
    ROW("max_train_steps", LS_OPT_INT, max_train_steps, "N", NULL, "run at most N micro-batches per epoch and worker [no limit]", IN(1, 1e15)),
    ROW("max_val_steps", LS_OPT_INT, max_val_steps, "N", NULL, "validate with at most N batches per replica; 0 = no validation [no limit]", IN(0, 1e15)),
    ROW("eval_every", LS_OPT_INT, eval_every, "N", "0", "also validate every N optimizer steps; 0 = only at the end of each epoch [0; without --model: a tenth of the steps]", IN(0, 1e15), COMMON),
    ROW("eval_on_start", LS_OPT_SWITCH, eval_on_start, NULL, NULL, "also validate before the first step"),

    ROW("lr", LS_OPT_REAL, lr, "RATE", NULL, "peak learning rate [3e-4; without --model: chosen with the sizes; with a JSON: its value or DeepSpeed's default]", .section = "Optimizer", IN(0, 1e6), COMMON),
    ROW("lr_schedule", LS_OPT_CHOICE, lr_schedule, "constant|cosine|linear|WarmupLR|WarmupDecayLR|WarmupCosineLR", NULL,
        "learning rate schedule; overrides the JSON [cosine; with a JSON: its value or DeepSpeed's default]"),
    ROW("warmup_steps", LS_OPT_INT, warmup_steps, "N", NULL, "optimizer steps of learning rate warm-up [10 % of the run, at most 1000; with a JSON: its value or DeepSpeed's default]", IN(0, 1e15), COMMON),
    ROW("min_lr_ratio", LS_OPT_REAL, min_lr_ratio, "R", NULL, "lowest learning rate of cosine and linear, as a fraction of --lr [0.1; with a JSON: its value or DeepSpeed's default]", IN(0, 1)),
    ROW("min_lr", LS_OPT_REAL, min_lr, "RATE", NULL, "the same as a learning rate, at most --lr", IN(0, 1e6)),
    ROW("lr_scheduler_type", LS_OPT_CHOICE, lr_scheduler_type, "linear|cosine|constant|constant_with_warmup", NULL,
        "schedule of the Hugging Face Trainer, step by step: no warm-up unless --warmup_steps is given, linear and cosine end at 0, and updates are counted from 0"),
    ROW("betas", LS_OPT_LIST, betas, "B1 B2", NULL, "AdamW betas, as `0.9 0.95` or `0.9,0.95` [0.9 0.95; with a JSON: its value or DeepSpeed's default]"),
    ROW("adam_beta1", LS_OPT_REAL, adam_beta1, "B", NULL, "the first of --betas alone", IN(0, 1)),
    ROW("adam_beta2", LS_OPT_REAL, adam_beta2, "B", NULL, "the second of --betas alone", IN(0, 1)),
    ROW("eps", LS_OPT_REAL, eps, "E", NULL, "AdamW epsilon [1e-8; with a JSON: its value or DeepSpeed's default]", IN(0, 1e6)),
    ROW("weight_decay", LS_OPT_REAL, weight_decay, "W", NULL, "decoupled weight decay [0.1; with a JSON: its value or DeepSpeed's default]", IN(0, 1e6)),
    ROW("decay", LS_OPT_CHOICE, decay, "all|matrices", "all",
        "tensors that are decayed: all (as in PyTorch and DeepSpeed), or only matrices (no biases and norms)"),
    ROW("clip", LS_OPT_REAL, clip, "NORM", NULL, "clip the global gradient norm; 0 = off [1.0; with a JSON: its value or DeepSpeed's default]", IN(0, 1e30)),

    ROW("n", LS_OPT_INT, n, "N", "1", "number of workers on this machine; -n N is the same", .section = "Machine", IN(1, 65536), COMMON),
    ROW("device", LS_OPT_STR, device, "auto|cpu|cuda[:N]", "auto",
        "compute device; cuda: one GPU per worker; cuda:N: GPU N for all workers; auto: cuda if a GPU is available, else cpu; LS_DEVICE names another default", COMMON),
    ROW("compute", LS_OPT_CHOICE, compute, "cpu|cpu-ref", "cpu", "CPU kernels: optimized (cpu) or plain reference loops (cpu-ref)"),
    ROW("precision", LS_OPT_CHOICE, precision, "fp32|bf16|fp16|fp8|auto", NULL,
        "number format of training; overrides fp16, bf16 and fp8 of the JSON; bf16, fp16 and fp8 keep fp32 master weights; fp16 and fp8 need a GPU; fp8: bf16, and linear layers of blocks with 8-bit operands; auto: bf16 on a GPU or a CPU with bf16 instructions, else fp32; with --resume, if auto or not given: the precision of the run that is resumed [JSON; fp32 if the JSON names no precision, as in DeepSpeed; without a JSON, or if it has \"auto\": bf16 on a GPU, fp32 on the CPU]", COMMON),
    ROW("tf32", LS_OPT_SWITCH, tf32, NULL, NULL, "use TF32 for matrix products (with --precision fp32 on a GPU)"),
    ROW("fp8_format", LS_OPT_CHOICE, fp8_format, "e4m3|hybrid", "e4m3", "with --precision fp8: the format of gradients: e4m3, or e5m2 (hybrid); activations and weights have e4m3", .any_case = true),
    ROW("fp8_amax_history_len", LS_OPT_INT, fp8_amax_history_len, "N", "16", "with --precision fp8: the number of steps whose largest magnitudes decide a scale", IN(1, LS_FP8_HISTORY)),
    ROW("fp8_margin", LS_OPT_INT, fp8_margin, "N", "0", "with --precision fp8: divide scales by 2^N", IN(0, LS_FP8_MARGIN)),
    ROW("stochastic_rounding", LS_OPT_SWITCH, stochastic_rounding, NULL, NULL,
        "round bf16 weights stochastically (--precision bf16 or fp8, on a GPU); the result depends only on seed, step and element (with --tp: its place in the shard)"),
    ROW("threads", LS_OPT_INT, threads, "N", "0", "CPU threads per worker; 0 = share all cores; the result does not depend on it", IN(0, 4096)),
    ROW("strategy", LS_OPT_CHOICE, strategy, "single|dp|ddp|zero1|zero2|zero3", NULL,
        "data-parallel strategy [single; ddp with several workers]", COMMON),
    ROW("bucket", LS_OPT_INT, bucket, "N", NULL,
        "gradient bucket size in elements [JSON: reduce_bucket_size, else " TEXT_OF(LS_BUCKET) "; on GPUs " TEXT_OF(LS_BUCKET_GPU) "; with --share_optimizer " TEXT_OF(LS_BUCKET_SHARED) "]", IN(1, 1e15)),
    ROW("gather_bucket", LS_OPT_INT, gather_bucket, "N", TEXT_OF(LS_GATHER_BUCKET),
        "zero1, zero2: parameter bucket size in elements (JSON: allgather_bucket_size)", IN(1, 1e15)),
    ROW("prefetch_bucket", LS_OPT_INT, prefetch_bucket, "N", TEXT_OF(LS_PREFETCH_BUCKET),
        "zero3: parameter elements to prefetch; 0 = none (JSON: stage3_prefetch_bucket_size)", IN(0, 1e15)),
    ROW("offload_optimizer", LS_OPT_CHOICE, offload_optimizer, "none|cpu", NULL,
        "cpu: keep moments and fp32 master weights in pinned host memory and update them there; for single and zero1 to zero3; the result has the same bits; with --clip 0 units are updated during the backward pass [JSON: offload_optimizer.device, else none]"),
    ROW("share_optimizer", LS_OPT_SWITCH, share_optimizer, NULL, NULL,
        "ddp with CPU workers of one host: they share one copy of the parameters and one optimizer state, and each updates a part of them, which needs less memory and bandwidth; the result has the same bits; not with --audit"),
    ROW("comm", LS_OPT_CHOICE, comm, "auto|local|mpi|tcp|nccl", "auto", "communication backend; nccl: between GPUs"),
    ROW("nccl_proof", LS_OPT_CHOICE, nccl_proof, "off|log|full", "log",
        "if the run uses NCCL, save its diagnostics in the run folder; log: the NCCL log and the output of nvidia-smi and ibstat; full: also the topology file; off: nothing"),
    ROW("comm_timeout", LS_OPT_REAL, comm_timeout, "SECONDS", NULL,
        "abort if a collective takes longer, with a table of the position of each rank; also the limit of the start-up of workers that meet over TCP or a local socket; 0 = no limit [20 times the slowest step, at least 30 s; start-up 120 s]", IN(0, 1e9)),
    ROW("pp", LS_OPT_INT, pp, "P", "1", "number of pipeline stages", IN(1, 65536), COMMON),
    ROW("schedule", LS_OPT_STR, schedule, "NAME|FILE", NULL,
        "pipeline schedule: naive, gpipe, 1f1b, interleaved, zb, or a file (docs/SCHEDULES.md) [1f1b; interleaved with --interleave 2 or more]"),
    ROW("interleave", LS_OPT_INT, interleave, "V", "1", "model chunks per stage (schedule interleaved, or a schedule file)", IN(1, 64)),
    ROW("stages", LS_OPT_STR, stages, "A-B,C-D,...", NULL,
        "units of each stage (0 is the embedding), or `measured` to measure and balance [balanced by estimated cost]"),
    ROW("tp", LS_OPT_INT, tp, "T", "1", "tensor-parallel workers per layer", IN(1, 65536), COMMON),
    ROW("sequence_parallel", LS_OPT_SWITCH, sequence_parallel, NULL, NULL,
        "with --tp: also split norms and residuals, by sequence position"),
    ROW("seed", LS_OPT_INT, seed, "N", "1337", "random seed of weights, sample order and dropout", IN(0, 9e18), COMMON),
    ROW("recompute", LS_OPT_SWITCH, recompute, NULL, NULL, "keep only the inputs of blocks and recompute activations in the backward pass", COMMON),
    ROW("deterministic", LS_OPT_SWITCH, deterministic, NULL, NULL, "make every run give the same bits (the default)"),
    ROW("no_deterministic", LS_OPT_SWITCH, no_deterministic, NULL, NULL, "allow layouts, sums of micro-batches and GPU kernels whose order varies; needs less memory with accumulation"),

    ROW("save_every", LS_OPT_INT, save_every, "N|auto", "0", "save a checkpoint every N optimizer steps; 0 = only at the end of each epoch; auto = the interval that loses least time, from the measured cost of a save and --mtbf [0; without --model: a quarter of the steps]",
        .section = "Checkpoints", .word = "auto", IN(0, 1e15), COMMON),
    ROW("mtbf", LS_OPT_REAL, mtbf, "HOURS", "6300", "with --save_every auto: mean time between failures of a host", IN(0.001, 1e9)),
    ROW("keep_last", LS_OPT_INT, keep_last, "K", "0", "keep only the K newest step-N checkpoints; 0 = all", IN(0, INT32_MAX)),
    ROW("keep_hours", LS_OPT_REAL, keep_hours, "H", "0", "with --keep_last: also keep step-N checkpoints that are younger than H hours", IN(0, 1e6)),
    ROW("save_async", LS_OPT_SWITCH, save_async, NULL, NULL,
        "do not wait for the disk: what is not written when the next update begins is copied to memory (in the plan) and written during later steps; saves that are due while the last one is still being written are left out"),
    ROW("save_memory_every", LS_OPT_INT, save_memory_every, "K", "0",
        "every K optimizer steps write a checkpoint to the memory of every host (/dev/shm), which a restart after a failure reads: at most K finished steps are repeated (more while --save_async writes the checkpoint of an epoch); it is removed at the end of the run; 0 = never", IN(0, 1e15)),
    ROW("save_failures", LS_OPT_CHOICE, save_failures, "warn|stop", NULL,
        "when a checkpoint cannot be written: warn and go on with training (metrics.jsonl must be writable), or stop; the last checkpoint of a run is tried again for 8 s in both cases, then the run fails [stop; warn with --max_restarts]"),
    ROW("no_save_verify", LS_OPT_SWITCH, no_save_verify, NULL, NULL, "do not read checkpoints back after they are written"),
    ROW("resume", LS_OPT_SWITCH, resume, "[RUN]", NULL,
        "continue from the newest checkpoint of a run, bit for bit; --resume RUN alone takes the options from the run folder (options typed here override them; --max_restarts, --elastic and --hot_spare must be typed again), --resume without RUN continues in --checkpoint_path; without --resume, files of an earlier run are moved to earlier-<k>/", COMMON),
    ROW("audit", LS_OPT_INT, audit, "K", "0",
        "every K steps, look for silent corruption: hashes of parameters and optimizer state are compared over time and over replicas, and each replica repeats micro-batches of another one (--audit_depth); before each checkpoint, replicas compare their state; 0 = off", IN(0, 1e15)),
    ROW("audit_depth", LS_OPT_CHOICE, audit_depth, "micro|step", "micro",
        "what is repeated in an audit: one micro-batch per replica (an error in the passes of the others is not found), or all micro-batches of the step; `--audit 1 --audit_depth step` repeats everything, before each update"),

    ROW("max_restarts", LS_OPT_INT, max_restarts, "N", "0",
        "after a failure (a worker died or hangs, a device, the network or a disk failed) continue from the newest whole checkpoint, with the same result; wait 0.5 s before the first restart and twice as long before each further one (at most 30 s); give up after N restarts without a new checkpoint; 0 = never restart [0; 3 with --elastic or --hot_spare]", .section = "Failures", IN(0, 1000000), COMMON),
    ROW("elastic", LS_OPT_STR, elastic, "MIN:MAX", NULL,
        "with -n: after a lost worker continue with fewer, at least MIN; `lockstep resize RUN N` changes the number, up to MAX (not of runs of launch, which follow their hosts); the result has the same bits [no]"),
    ROW("hot_spare", LS_OPT_INT, hot_spare, "N", "0",
        "with -n: replace up to N lost workers before --elastic uses fewer; on GPUs N more devices are kept free and replace the device of a lost worker", IN(0, 64)),

    ROW("steps_per_print", LS_OPT_INT, steps_per_print, "N", "10", "print one line every N micro-batches [on a terminal a status line; in files the steps 1, 2, 5, 10, ... and one line every 10 to 60 s; lines of the ZeRO scaling study: 10]", .section = "Output", IN(1, 1e15)),
    ROW("reference_output", LS_OPT_SWITCH, reference_output, NULL, NULL,
        "print the lines of the ZeRO scaling study on stdout (docs/FORMATS.md); --run_type does, too"),
    ROW("verbose", LS_OPT_SWITCH, verbose, NULL, NULL, "print the memory plan as a table"),
    ROW("print_config", LS_OPT_SWITCH, print_config, NULL, NULL, "print every setting with its value and its source, and exit", COMMON),
    ROW("summary", LS_OPT_SWITCH, summary, NULL, NULL, "at the end of the run print its loss curve, a sample of text and the next commands"),
    ROW("json", LS_OPT_SWITCH, json, NULL, NULL, "print training_metrics.json on stdout at the end of the run and all other output on stderr; with --print_config: the settings as JSON"),
    ROW("timing_warmup_steps", LS_OPT_INT, timing_warmup_steps, "N", "5", "micro-batches before the first one that is timed", IN(0, 1e15)),
    ROW("timing_sample_every", LS_OPT_INT, timing_sample_every, "N", "50", "time every N-th micro-batch", IN(1, 1e15)),
    ROW("profile_mode", LS_OPT_SWITCH, profile_mode, NULL, NULL, "print no progress and no step lines (also PROFILE_MODE=1)"),
    ROW("profile", LS_OPT_SWITCH, profile, NULL, NULL, "write a trace of every worker to profiles/trace.json (also `lockstep profile -- train ...`)"),
    ROW("profile_spans", LS_OPT_INT, profile_spans, "N", "131072", "spans kept per traced worker (the newest)", IN(1, 1 << 24)),
    ROW("tensorboard", LS_OPT_STR, tensorboard, "DIR", NULL,
        "write loss, learning rate and other series as TensorBoard event files to DIR (JSON: tensorboard) [none]"),
    ROW("serve", LS_OPT_MAYBE, serve, "[PORT]", NULL,
        "show the run on a page of http://127.0.0.1:PORT/ while it trains, with Prometheus metrics at /metrics (docs/LIVE.md) [no; port: 7007 or the next free one]"),
    ROW("serve_address", LS_OPT_STR, serve_address, "ADDRESS", NULL,
        "with --serve: listen on this address instead of 127.0.0.1; other machines then need the token that is printed"),
    ROW("cluster", LS_OPT_STR, cluster, "NAME", NULL, "cluster name for the metrics (hardware.cluster) [SLURM_CLUSTER_NAME]"),
    ROW("quiet_nccl_monitor", LS_OPT_SWITCH, quiet_nccl_monitor, NULL, NULL,
        "accepted for compatibility, no effect: only recorded in the metrics (shutdown.quiet_nccl_monitor)"),
    ROW("local_rank", LS_OPT_INT, local_rank, "N", "-1", "accepted for compatibility, no effect: the launcher sets LOCAL_RANK [none]", IN(-1, 65536)),
    ROW("num_workers", LS_OPT_INT, num_workers, "N", NULL, "accepted for compatibility, no effect: data is memory-mapped", IN(0, 65536)),

    /* Names of other trainers: nanoGPT, nanochat, the Hugging Face Trainer, DeepSpeed, Megatron-LM. The first three are also old
     * flags of the scaling study. */
    {.name = "gradient_accumulation_steps", .of = "grad_accum_steps"},
    {.name = "learning_rate", .of = "lr"},
    {.name = "gradient_clipping", .of = "clip"},
    {.name = "batch_size", .of = "micro_batch_size_per_gpu"},
    {.name = "micro_batch_size", .of = "micro_batch_size_per_gpu"},
    {.name = "per_device_train_batch_size", .of = "micro_batch_size_per_gpu"},
    {.name = "device_batch_size", .of = "micro_batch_size_per_gpu"},
    {.name = "train_batch_size", .of = "global_batch_size"},
    {.name = "block_size", .of = "seq_length"},
    {.name = "seq_len", .of = "seq_length"},
    {.name = "max_seq_len", .of = "seq_length"},
    {.name = "max_seq_length", .of = "seq_length"},
    {.name = "out_dir", .of = "checkpoint_path"},
    {.name = "output_dir", .of = "checkpoint_path"},
    {.name = "deepspeed", .of = "deepspeed_config"},
    {.name = "model_name_or_path", .of = "init_from"},
    {.name = "n_layer", .of = "num_layers"},
    {.name = "num_hidden_layers", .of = "num_layers"},
    {.name = "n_head", .of = "num_heads"},
    {.name = "num_attention_heads", .of = "num_heads"},
    {.name = "n_embd", .of = "embedding_size"},
    {.name = "hidden_size", .of = "embedding_size"},
    {.name = "n_positions", .of = "max_position_embeddings"},
    {.name = "max_iters", .of = "max_steps"},
    {.name = "train_iters", .of = "max_steps"},
    {.name = "num_iterations", .of = "max_steps"},
    {.name = "num_train_epochs", .of = "epochs"},
    {.name = "eval_interval", .of = "eval_every"},
    {.name = "eval_steps", .of = "eval_every"},
    {.name = "eval_iters", .of = "max_val_steps"},
    {.name = "save_interval", .of = "save_every"},
    {.name = "save_steps", .of = "save_every"},
    {.name = "save_total_limit", .of = "keep_last"},
    {.name = "warmup_iters", .of = "warmup_steps"},
    {.name = "beta1", .of = "adam_beta1"},
    {.name = "beta2", .of = "adam_beta2"},
    {.name = "adam_epsilon", .of = "eps"},
    {.name = "grad_clip", .of = "clip"},
    {.name = "clip_grad", .of = "clip"},
    {.name = "max_grad_norm", .of = "clip"},
    {.name = "world_size", .of = "n"},
    {.name = "bf16", .of = "precision", .value = "bf16"},
    {.name = "fp16", .of = "precision", .value = "fp16"},
    {.name = "fp8", .of = "precision", .value = "fp8"},
    {.name = "gradient_checkpointing", .of = "recompute"},
    {.name = "activation_checkpointing", .of = "recompute"},
    {.name = "pipeline_model_parallel_size", .of = "pp"},
    {.name = "tensor_model_parallel_size", .of = "tp"},

    ROW("attempt", LS_OPT_INT, attempt, "N", "1", NULL, IN(1, INT32_MAX)), /* of a supervisor: continues what an earlier attempt began */
    ROW("deepspeed_folder", LS_OPT_STR, deepspeed_folder, "DIR", NULL, NULL), /* of options.json: relative folders of the JSON begin here */
    /* old flags of the scaling study without effect there */
    ROW("pipeline_stages", LS_OPT_INT, old_pipeline_stages, "N", NULL, NULL, IN(1, 65536)),
    ROW("use_flash_attention", LS_OPT_SWITCH, old_use_flash_attention, NULL, NULL, NULL),

    /* Names of other programs that mean something else here, or nothing, and what replaces them. First nanoGPT, then nanochat,
     * llm.c, the Hugging Face Trainer, launchers, Megatron-LM. */
    OTHER("always_save_checkpoint", NULL, "use --save_every N, which does not depend on the loss; --keep_last K keeps the newest"),
    OTHER("backend", NULL, "use --comm auto, local, mpi, tcp or nccl"),
    OTHER("bias", YES, "leave it out: layers of GPT-2 have biases"),
    OTHER("ckpt_path", NULL, "use --resume RUN to continue a run, or --init_from DIR for its weights alone"),
    OTHER("compile", NO, "leave it out: kernels are compiled before the run"),
    OTHER("torch_compile", NO, "leave it out: kernels are compiled before the run"),
    OTHER("dataset", NULL, "use --data DIR (of `lockstep prepare`), or give text files: lockstep train book.txt"),
    OTHER("dataset_name", NULL, "use --data DIR (of `lockstep prepare`), or give text files: lockstep train book.txt"),
    OTHER("decay_lr", NULL, "leave it out: the learning rate falls as --lr_schedule says, which is constant if it must not"),
    OTHER("dtype", NULL, "use --precision bf16, fp16, fp8 or fp32"),
    OTHER("eval_only", NO, "use `lockstep eval --checkpoint RUN --data DIR`"),
    OTHER("log_interval", NULL, "use --steps_per_print N, which counts micro-batches"),
    OTHER("lr_decay_iters", NULL, "use --max_steps N: the learning rate falls until the end of the run"),
    OTHER("lr_decay_steps", NULL, "use --max_steps N: the learning rate falls until the end of the run"),
    OTHER("start", NULL, "use `lockstep generate RUN --prompt TEXT` after training"),
    OTHER("num_samples", NULL, "use `lockstep generate RUN --num_samples N` after training"),
    OTHER("max_new_tokens", NULL, "use `lockstep generate RUN --max_new_tokens N` after training"),
    OTHER("wandb", NO, "use --tensorboard DIR, or --serve for a web page"),
    OTHER("wandb_log", NO, "use --tensorboard DIR, or --serve for a web page"),
    OTHER("wandb_*", NULL, "leave it out; --tensorboard DIR writes curves, --serve shows them on a web page"),
    OTHER("top_k", NULL, "use `lockstep generate RUN --top_k K` after training"),
    OTHER("run", "dummy", "leave it out: it names a run of wandb; --checkpoint_path DIR names the folder"),
    OTHER("context_length", NULL, "use --seq_length N"),
    OTHER("depth", NULL, "use --num_layers N, with --embedding_size (64 N in nanochat) and --num_heads"),
    OTHER("aspect_ratio", NULL, "use --embedding_size N: the ratio times --num_layers"),
    OTHER("matrix_lr", NULL, "use --lr RATE, for all weights: the optimizer is AdamW, not Muon"),
    OTHER("device_type", NULL, "use --device cpu or cuda"),
    OTHER("total_batch_size", NULL, "use --global_batch_size N, in sequences: the tokens divided by --seq_length"),
    OTHER("i", NULL, "use --train_data_path FILE (token files of llm.c are read), or --data DIR"),
    OTHER("j", NULL, "use --val_data_path FILE, or --data DIR, which has both"),
    OTHER("e", NULL, "use --init_from FILE (model files of llm.c are read), or --model NAME"),
    OTHER("o", NULL, "use --checkpoint_path DIR"),
    OTHER("b", NULL, "use --micro_batch_size_per_gpu N"),
    OTHER("t", NULL, "use --seq_length N"),
    OTHER("d", NULL, "use --global_batch_size N, in sequences: the tokens divided by --seq_length"),
    OTHER("x", NULL, "use --max_steps N"),
    OTHER("k", NULL, "use --lr_schedule cosine, linear or constant"),
    OTHER("l", NULL, "use --lr RATE"),
    OTHER("u", NULL, "use --warmup_steps N"),
    OTHER("q", NULL, "use --min_lr_ratio R"),
    OTHER("c", NULL, "use --weight_decay W"),
    OTHER("v", NULL, "use --eval_every N"),
    OTHER("m", NULL, "use --max_val_steps N"),
    OTHER("s", NULL, "use --summary for a sample at the end, or `lockstep generate RUN`"),
    OTHER("g", NULL, "use `lockstep generate RUN --max_new_tokens N` after training"),
    OTHER("a", NO, "leave it out: use a text of one batch to overfit it"),
    OTHER("f", NULL, "use --tf32, with --precision fp32"),
    OTHER("w", YES, "leave it out: fp32 master weights are always kept"),
    OTHER("z", NULL, "use --strategy zero1, zero2 or zero3"),
    OTHER("r", NO, "use --recompute"),
    OTHER("y", NO, "use --resume RUN"),
    OTHER("nk", NULL, "use --keep_last K"),
    OTHER("sl", "0", "leave it out: no step is skipped because of its loss"),
    OTHER("sg", "0", "leave it out: no step is skipped because of its gradient; --clip limits the norm"),
    OTHER("ge", NULL, "leave it out: the kernels decide what they fuse"),
    OTHER("pi", NULL, "use --comm auto, local, mpi, tcp or nccl"),
    OTHER("pn", NULL, "use -n N, the number of workers on this machine"),
    OTHER("fsdp", NULL, "use --strategy zero3 for full_shard, zero2 for shard_grad_op, ddp for no_shard"),
    OTHER("push_to_hub", NO, "leave it out: upload the folder of a checkpoint, RUN/epoch-N, which transformers reads"),
    OTHER("per_device_eval_batch_size", NULL, "use --micro_batch_size_per_gpu N, also the batch of validation"),
    OTHER("bf16_full_eval", NULL, "use --precision; validation computes in the same precision"),
    OTHER("fp16_full_eval", NULL, "use --precision; validation computes in the same precision"),
    OTHER("torch_dtype", NULL, "use --precision bf16, fp16, fp8 or fp32"),
    OTHER("mixed_precision", NULL, "use --precision bf16, fp16, fp8 or fp32"),
    OTHER("fp8_amax_compute_algo", NULL, "use --fp8_amax_history_len 1 for most_recent; max is the rule of longer histories"),
    OTHER("logging_steps", NULL, "use --steps_per_print N, which counts micro-batches"),
    OTHER("logging_dir", NULL, "use --tensorboard DIR"),
    OTHER("report_to", "none", "use --tensorboard DIR, or --serve for a web page"),
    OTHER("resume_from_checkpoint", NULL, "use --resume RUN, with the folder of the run"),
    OTHER("warmup_ratio", NULL, "use --warmup_steps N, the ratio times the steps of the run"),
    OTHER("do_train", YES, "use `lockstep eval` to evaluate without training"),
    OTHER("do_eval", NULL, "leave it out: validation is at the end of each epoch; --max_val_steps 0: none"),
    OTHER("eval_strategy", NULL, "leave it out: validation is at the end of each epoch; --eval_every N: more often"),
    OTHER("evaluation_strategy", NULL, "leave it out: validation is at the end of each epoch; --eval_every N: more often"),
    OTHER("save_strategy", NULL, "leave it out: a checkpoint is saved at the end of each epoch; --save_every N: more often"),
    OTHER("overwrite_output_dir", NO, "leave it out: give a new --checkpoint_path, or --resume RUN"),
    OTHER("dataloader_num_workers", NULL, "leave it out: data is memory-mapped"),
    OTHER("optim", NULL, "leave it out: the optimizer is AdamW"),
    OTHER("train_file", NULL, "use --data DIR (of `lockstep prepare`), or give text files: lockstep train book.txt"),
    OTHER("validation_file", NULL, "use `lockstep prepare TEXT --val_input FILE --out DIR`, then --data DIR"),
    OTHER("tokenizer_name", NULL, "use `lockstep prepare TEXT --tokenizer DIR --out DIR`, then --data DIR"),
    OTHER("nproc_per_node", NULL, "use -n N, the number of workers on this machine"),
    OTHER("num_processes", NULL, "use -n N, the number of workers on this machine"),
    OTHER("num_gpus", NULL, "use -n N, the number of workers on this machine"),
    OTHER("nnodes", NULL, "use `lockstep launch --hosts A,B -n N -- train ...`"),
    OTHER("num_nodes", NULL, "use `lockstep launch --hosts A,B -n N -- train ...`"),
    OTHER("node_rank", NULL, "use `lockstep launch --hosts A,B -n N -- train ...`, which numbers the hosts"),
    OTHER("master_addr", NULL, "use `lockstep launch --hosts A,B -n N -- train ...`, or set MASTER_ADDR"),
    OTHER("master_port", NULL, "use `lockstep launch --master_port PORT ... -- train ...`, or set MASTER_PORT"),
    OTHER("rdzv_*", NULL, "use `lockstep launch --hosts A,B -n N -- train ...`, or start the workers with `torchrun --no_python`"),
    OTHER("standalone", YES, "use -n N, the number of workers on this machine"),
    OTHER("hostfile", NULL, "use `lockstep launch --hostfile FILE -n N -- train ...`"),
    OTHER("include", NULL, "use `lockstep launch --hosts A:2,B:2 -- train ...`; CUDA_VISIBLE_DEVICES chooses GPUs"),
    OTHER("exclude", NULL, "use `lockstep launch --hosts A:2,B:2 -- train ...`; CUDA_VISIBLE_DEVICES chooses GPUs"),
    OTHER("zero_stage", NULL, "use --strategy zero1, zero2 or zero3"),
    OTHER("n_epochs", NULL, "use --epochs N"),
    OTHER("model_max_length", NULL, "use --seq_length N"),
    OTHER("ffn_hidden_size", NULL, "leave it out: the hidden layer of GPT-2 is 4 times as wide as the embedding"),
    OTHER("use_fp16", NO, "use --precision fp16"),
    OTHER("data_path", NULL, "use --data DIR (of `lockstep prepare`), or --train_data_path FILE"),
    OTHER("model_path", NULL, "use --init_from DIR"),
    OTHER("padded_vocab_size", NULL, "use --vocab_size N"),
    OTHER("tensorboard_dir", NULL, "use --tensorboard DIR"),
    OTHER("tensorboard_logs_path", NULL, "use --tensorboard DIR"),
    OTHER("vocab_file", NULL, "use `lockstep prepare TEXT --vocab_dir DIR --out DIR`, then --data DIR"),
    OTHER("merge_file", NULL, "use `lockstep prepare TEXT --vocab_dir DIR --out DIR`, then --data DIR"),
    OTHER("lr_decay_style", NULL, "use --lr_schedule cosine, linear or constant"),
    OTHER("init_method_std", "0.02", "leave it out: weights are drawn with 0.02, as in GPT-2"),
};
/* clang-format on */
const size_t ls_train_n_opts = sizeof ls_train_opts / sizeof ls_train_opts[0];
_Static_assert(sizeof ls_train_opts / sizeof ls_train_opts[0] <= LS_TRAIN_OPTION_MAX, "raise LS_TRAIN_OPTION_MAX");

static size_t row_of(const char *name)
{
    const size_t i = ls_opt_row(ls_train_opts, ls_train_n_opts, name);
    LS_ASSERT(i < ls_train_n_opts);
    return i;
}

/* "unknown option --x ...": the preset that has it, and the options that contain its name. */
static ls_status explain_unknown(ls_status st)
{
    static const char start[] = "unknown option --";
    char name[64], hint[192] = "";
    const char *words = ls_err_words();
    if (st != LS_E_ARG || strncmp(words, start, sizeof start - 1) != 0) return st;
    words += sizeof start - 1;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(words, "; "), words);
    const bool r2 = ls_train_preset_has("r2", name);
    if (ls_opt_row(ls_train_opts, ls_train_n_opts, name) < ls_train_n_opts) return st;
    if (!r2 && !ls_train_preset_has("r3", name)) return st;
    const char *names = strstr(words, "; did you mean ");
    if (names && strstr(names, name)) snprintf(hint, sizeof hint, "%.*s?", (int)strcspn(names, "?"), names);
    return ls_fail(LS_E_ARG,
                   "unknown option --%s; only the command lines of --preset %s have it (docs/REFERENCES.md)%s", name,
                   r2 ? "r2" : "r3", hint);
}

/* One setting has several options: the one that is typed overrides the others of a preset or of the run that is resumed. */
static void override(ls_train_options *o)
{
    static const char *const pair[][2] = {
        {"deterministic", "no_deterministic"},
        {"no_deterministic", "deterministic"},
        {"lr_schedule", "lr_scheduler_type"},
        {"lr_scheduler_type", "lr_schedule"},
        {"min_lr", "min_lr_ratio"},
        {"min_lr_ratio", "min_lr"},
        {"betas", "adam_beta1"},
        {"betas", "adam_beta2"},
    };
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++)
        if (o->given[row_of(pair[i][0])] == LS_GIVEN_TYPED && ls_train_by_preset(o, pair[i][1]))
            ls_train_forget(o, pair[i][1]);
}

/* nanoGPT's two values, unless they are folders. */
static ls_status check_init_from(ls_train_options *o)
{
    if (!o->init_from || !ls_one_of("scratch|resume", o->init_from, false) || ls_fs_exists(o->init_from)) return LS_OK;
    if (!strcmp(o->init_from, "resume"))
        return ls_fail(LS_E_ARG, "--init_from resume: use --resume RUN, with the folder of the run");
    ls_train_forget(o, "init_from");
    return LS_OK;
}

/* DeepSpeed's `--deepspeed --deepspeed_config FILE`: the switch is the last of the *argc words then, and no longer counted. */
static void drop_deepspeed_switch(int *argc, char **argv)
{
    static const char config[] = "--deepspeed_config";
    int at = -1;
    bool file = false;
    for (int i = 0; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        if (!strcmp(argv[i], "--deepspeed") && (i + 1 == *argc || argv[i + 1][0] == '-')) at = i;
        file = file || !strncmp(argv[i], config, sizeof config - 1);
    }
    if (at < 0 || !file) return;
    char *word = argv[at];
    memmove(argv + at, argv + at + 1, (size_t)(--*argc - at) * sizeof *argv);
    argv[*argc] = word;
}

/* inputs: words that are no options go to o->inputs; else they are refused. */
static ls_status parse(const ls_train_preset *p, int argc, char **argv, bool inputs, ls_train_options *o)
{
    unsigned char typed[LS_TRAIN_OPTION_MAX] = {0};
    *o = (ls_train_options){0};
    LS_TRY(ls_opt_defaults(ls_train_opts, ls_train_n_opts, o));
    LS_TRY(ls_opt_parse(ls_train_opts, ls_train_n_opts, o, o->given, p->n_default, argv, NULL, NULL));
    if (p->n_default) argv += p->n_default;
    argc -= p->n_default;
    drop_deepspeed_switch(&argc, argv);
    LS_TRY(explain_unknown(
        ls_opt_parse(ls_train_opts, ls_train_n_opts, o, typed, argc, argv, inputs ? &o->inputs : NULL, &o->help)));
    for (size_t i = 0; i < ls_train_n_opts; i++)
        o->given[i] = typed[i] ? LS_GIVEN_TYPED : o->given[i] ? LS_GIVEN_PRESET : 0;
    override(o);
    if (p->name) o->preset = p->name;
    LS_TRY(check_init_from(o));
    /* The scaling study accepted --pipeline_stages without effect; elsewhere it is --pp */
    if (!o->run_type && ls_train_given(o, "pipeline_stages") && !ls_train_given(o, "pp")) {
        o->pp = o->old_pipeline_stages;
        o->given[row_of("pp")] = LS_GIVEN_TYPED;
    }
    return LS_OK;
}

ls_status ls_train_options_parse_preset(const ls_train_preset *p, int argc, char **argv, ls_train_options *o)
{
    return parse(p, argc, argv, true, o);
}

ls_status ls_train_options_parse(int argc, char **argv, ls_train_options *o)
{
    return parse(&(ls_train_preset){0}, argc, argv, false, o);
}

void ls_train_forget(ls_train_options *o, const char *name)
{
    const size_t i = row_of(name);
    static const ls_train_options none = {0};
    const size_t size[] = {[LS_OPT_SWITCH] = sizeof(bool),         [LS_OPT_INT] = sizeof(int64_t),
                           [LS_OPT_REAL] = sizeof(double),         [LS_OPT_STR] = sizeof(const char *),
                           [LS_OPT_CHOICE] = sizeof(const char *), [LS_OPT_LIST] = sizeof(ls_opt_list),
                           [LS_OPT_WORDS] = sizeof(ls_opt_words),  [LS_OPT_MAYBE] = sizeof(const char *)};
    memcpy((char *)o + ls_train_opts[i].offset, (const char *)&none + ls_train_opts[i].offset,
           size[ls_train_opts[i].kind]);
    const ls_status st = ls_opt_defaults(&ls_train_opts[i], 1, o);
    LS_ASSERT(st == LS_OK);
    o->given[i] = 0;
}

void ls_train_put(ls_train_options *o, const char *name, int64_t value)
{
    const size_t i = row_of(name);
    LS_ASSERT(ls_train_opts[i].kind == LS_OPT_INT);
    memcpy((char *)o + ls_train_opts[i].offset, &value, sizeof value);
    o->given[i] = LS_GIVEN_TYPED;
}

bool ls_train_given(const ls_train_options *o, const char *name)
{
    return o->given[row_of(name)];
}

bool ls_train_off(const ls_train_options *o, const char *precision)
{
    const size_t i = ls_opt_row(ls_train_opts, ls_train_n_opts, precision);
    if (i == ls_train_n_opts || o->given[i] != LS_GIVEN_TYPED) return false;
    return o->given[row_of("precision")] != LS_GIVEN_TYPED || strcmp(o->precision, precision) != 0;
}

bool ls_train_by_preset(const ls_train_options *o, const char *name)
{
    return o->given[row_of(name)] == LS_GIVEN_PRESET;
}

void ls_train_options_warnings(const ls_train_options *o, ls_str *out)
{
    static const struct {
        const char *name, *instead;
    } old[] = {
        {"use_flash_attention", "attention is always computed without storing the whole score matrix"},
        {"num_workers", "data is memory-mapped"},
        /* the last one only with --run_type */
        {"pipeline_stages", "the ZeRO scaling study ignores it, too (use --pp for a pipeline)"},
    };
    const size_t n = sizeof old / sizeof old[0] - !o->run_type;
    for (size_t i = 0; i < n; i++)
        if (ls_train_given(o, old[i].name)) ls_str_addf(out, "--%s has no effect; %s\n", old[i].name, old[i].instead);
    static const char *const renamed[] = {"gradient_accumulation_steps", "learning_rate", "gradient_clipping"};
    for (size_t i = 0; o->run_type && i < sizeof renamed / sizeof *renamed; i++)
        if (ls_train_given(o, renamed[i]))
            ls_str_addf(out, "--%s is an old flag of the ZeRO scaling study; it is used as --%s\n", renamed[i],
                        ls_train_opts[row_of(renamed[i])].of);
}

void ls_train_options_help(ls_opt_page page, ls_str *out)
{
    ls_str_add(out, "usage: " LS_TRAIN_USAGE "\n\n"
                    "Train a GPT-2 model and write metrics, logs and checkpoints to the run folder.\n"
                    "TEXT: text files or a folder of them (as `lockstep prepare` takes them); DIR: a\n"
                    "folder that prepare has written, the same as --data DIR. Without --model, sizes\n"
                    "and learning rate are chosen for the text, the machine and --minutes; options\n"
                    "override what is chosen. The run folder is then runs/DATE-NAME.\n"
                    "The default of an option is in brackets; \"JSON\" is the --deepspeed_config.\n"
                    "In names of options, - and _ are equal.\n\n"
                    "  lockstep train book.txt --minutes 10\n"
                    "  lockstep train --resume runs/2026-01-31-book\n"
                    "  lockstep train --data data/mine --model tiny --seq_length 256 \\\n"
                    "      --micro_batch_size_per_gpu 8 --max_steps 500\n");
    if (page == LS_OPT_ALL_PAGES)
        ls_str_add(out, "  lockstep train --run_type baseline --train_data_path train.bin \\\n"
                        "      --val_data_path val.bin --deepspeed_config deepspeed_config.json \\\n"
                        "      --precision fp32 --print_config\n");
    ls_opt_help(ls_train_opts, ls_train_n_opts, page, out);
    if (page != LS_OPT_ALL_PAGES) return;
    ls_str_add(out, "\nEnvironment:\n"
                    "  RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT\n"
                    "                            set by launchers such as lockstep launch and\n"
                    "                            torchrun, on one or several hosts; mpirun and srun\n"
                    "                            set their own\n"
                    "  LOCKSTEP_TOKEN            secret of a run on several hosts: only workers that\n"
                    "                            know it may join [lockstep launch makes one]\n"
                    "  LS_PLUGIN_DIR             folder of lockstep_mpi.so, lockstep_cuda.so and\n"
                    "                            lockstep_nccl.so [folder of the program, else\n"
                    "                            lib/lockstep beside it]\n"
                    "  LS_DEVICE                 default of --device [auto]\n"
                    "  LS_LOG=info,train=debug   log lines on stderr (docs/LOGGING.md) [warn]\n"
                    "  PROFILE_MODE=1            same as --profile_mode\n"
                    "  DIST_DEBUG=1              log the collectives around each epoch, per worker,\n"
                    "                            on stdout and in rank_logs/\n"
                    "  GIT_COMMIT, EC2_INSTANCE_TYPE, SLURM_*\n"
                    "                            recorded in the files of the run\n"
                    "\nSignals:\n"
                    "  SIGTERM, SIGINT           finish the current step, save a checkpoint and exit\n"
                    "                            with code 143; before the first step, exit at once\n"
                    "                            without saving\n"
                    "  second signal             if it comes at least 0.5 s after the first, exit at\n"
                    "                            once without saving (143; SIGINT: 130)\n"
                    "  A run that makes no progress for as long as a collective may take (at least\n"
                    "  30 s) exits with code 4.\n");
}
