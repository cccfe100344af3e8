/* options.h - the command line of `lockstep train` as one table (core/opt.h): the scaling study's flags
 * (docs/REFERENCES.md), its old ones, ours.
 *
 * A row's value is what was typed or its default; `given` says which. Nothing is interpreted here: config/resolve.h
 * puts the options, the DeepSpeed JSON, the model file and the environment together. Strings are borrowed from argv. */
#ifndef LS_CONFIG_OPTIONS_H
#define LS_CONFIG_OPTIONS_H

#include "core/err.h"
#include "core/opt.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_TRAIN_OPTION_MAX 320

enum { LS_GIVEN_TYPED = 1, LS_GIVEN_PRESET };

/* A command line that a preset has changed (config/preset.h): its first n_default words are options that nobody typed. */
typedef struct ls_train_preset {
    const char *name; /* "r2", "r3"; "auto": config/auto.h; "run": the options of a run folder */
    int n_default;
} ls_train_preset;

/* Elements of a bucket unless asked otherwise: gradients, parameters that are gathered, parameters ahead of use. */
#define LS_BUCKET     1048576
#define LS_BUCKET_GPU 6553600 /* the same on GPUs, where each request launches kernels */
/* The same with --share_optimizer: nothing overlaps these sums, and all workers wait for each other at every bucket. */
#define LS_BUCKET_SHARED   67108864
#define LS_GATHER_BUCKET   6553600
#define LS_PREFETCH_BUCKET 6553600

typedef struct ls_train_options {
    /* data and run folder */
    const char *preset, *task, *data, *train_data_path, *val_data_path, *checkpoint_path, *run_type, *deepspeed_config,
        *deepspeed_folder, *workdir;
    bool lines, dedup; /* these three: of texts, as for prepare */
    int64_t limit_docs;
    /* model */
    const char *model, *variant, *init_from;
    int64_t vocab_size, embedding_size, num_layers, num_heads, max_position_embeddings, seq_length;
    double dropout;
    /* batch and length */
    int64_t train_micro_batch_size_per_gpu, micro_batch_size_per_gpu, grad_accum_steps, global_batch_size;
    int64_t enforce_global_batch_size, epochs, max_steps, max_train_steps, max_val_steps, eval_every;
    double minutes;
    bool eval_on_start;
    /* optimizer */
    double lr, weight_decay, eps, clip, min_lr_ratio, min_lr, adam_beta1, adam_beta2;
    ls_opt_list betas;
    const char *lr_schedule, *lr_scheduler_type, *decay;
    int64_t warmup_steps;
    /* machine */
    const char *device, *precision, *strategy, *comm, *nccl_proof, *schedule, *compute, *stages;
    int64_t n, pp, tp, interleave, threads, seed, bucket, gather_bucket, prefetch_bucket;
    double comm_timeout;
    const char *offload_optimizer;
    bool share_optimizer;
    bool recompute, deterministic, no_deterministic, sequence_parallel, tf32, stochastic_rounding;
    const char *fp8_format;
    int64_t fp8_amax_history_len, fp8_margin;
    /* checkpoints */
    int64_t save_every, keep_last, save_memory_every;
    double mtbf, keep_hours;
    int64_t audit;
    const char *audit_depth;
    const char *save_failures;
    bool save_async, no_save_verify, resume;
    /* failures */
    int64_t max_restarts, hot_spare, attempt;
    const char *elastic;
    /* output */
    int64_t steps_per_print, timing_warmup_steps, timing_sample_every, profile_spans;
    bool profile, profile_mode, quiet_nccl_monitor, print_config, json, verify_data, summary;
    bool reference_output, verbose;
    ls_opt_page help;
    const char *cluster, *tensorboard;
    const char *serve, *serve_address; /* serve: NULL, "" or a port */
    /* launcher and loader */
    int64_t local_rank, num_workers, old_pipeline_stages;
    bool old_use_flash_attention; /* accepted, no effect, a warning */

    ls_opt_list inputs; /* words that are no options: text, or a data folder */

    unsigned char given[LS_TRAIN_OPTION_MAX]; /* by row of ls_train_opts: 0, or who gave the option */
} ls_train_options;

extern const ls_opt ls_train_opts[];
extern const size_t ls_train_n_opts;

/* Sets the defaults, then parses the words after `train`, all of which are options. --help and its forms set o->help. LS_E_ARG; if --preset accepts an unknown option, the
 * message names the preset. */
ls_status ls_train_options_parse(int argc, char **argv, ls_train_options *o);
/* The same for words of a preset; words that are no options go to o->inputs. */
ls_status ls_train_options_parse_preset(const ls_train_preset *p, int argc, char **argv, ls_train_options *o);

/* Whether the option with this name (as in the table), or another spelling of it, was on the command line. An unknown name asserts. */
bool ls_train_given(const ls_train_options *o, const char *name);
/* Whether its value is a default of o->preset. */
bool ls_train_by_preset(const ls_train_options *o, const char *name);
/* Whether --bf16, --fp16 or --fp8, the name of this precision, was typed as false. */
bool ls_train_off(const ls_train_options *o, const char *precision);

/* Sets an integer option as if it had been typed. */
void ls_train_put(ls_train_options *o, const char *name, int64_t value);
/* Makes an option one that was not given, with its default. */
void ls_train_forget(ls_train_options *o, const char *name);

/* One line for each old or inert flag that was given ("--num_workers has no effect; ..."), appended with '\n'.
 * --run_type: the scaling study's old flags, too. */
void ls_train_options_warnings(const ls_train_options *o, ls_str *out);

#define LS_TRAIN_USAGE                               \
    "lockstep train TEXT|DIR [OPTIONS]\n"            \
    "       lockstep train --resume RUN [OPTIONS]\n" \
    "       lockstep train --train_data_path FILE [--val_data_path FILE] [OPTIONS]"
/* The text of --help: usage, examples, options by section; of --help_all also environment and signals. */
void ls_train_options_help(ls_opt_page page, ls_str *out);

#endif
