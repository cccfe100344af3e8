/* resolve.h - command line + DeepSpeed JSON + model file + environment + data -> one configuration, each value with its source.
 *
 * Precedence: command line, then JSON, then model file, then default. What does not exist (16-bit compute on the CPU ...) is refused
 * here with LS_E_UNSUPPORTED, one line; what cannot work is LS_E_CONFIG with the arithmetic. After ls_train_config_fit the configuration is const.
 *
 *   ls_train_options_parse -> ls_ds_config_load -> ls_train_find_paths -> (open data, learn facts) -> ls_train_resolve
 *   -> ls_train_config_fit (data sizes -> steps) -> train */
#ifndef LS_CONFIG_RESOLVE_H
#define LS_CONFIG_RESOLVE_H

#include "compute/compute.h"
#include "model/config.h"
#include "model/fp8.h"
#include "parallel/mesh.h"
#include "config/device_choice.h"
#include "config/dsconfig.h"
#include "config/loss_scale.h"
#include "config/lr.h"
#include "config/options.h"

typedef enum ls_source {
    LS_FROM_DEFAULT,
    LS_FROM_CLI,
    LS_FROM_JSON,
    LS_FROM_DEEPSPEED, /* a key that the JSON does not have */
    LS_FROM_MODEL,
    LS_FROM_ENV,
    LS_FROM_DATA,
    LS_FROM_RULE,
    LS_FROM_R2, /* defaults of --preset r2, r3 */
    LS_FROM_R3,
    LS_FROM_AUTO, /* chosen for the data (config/auto.h)     */
    LS_FROM_RUN   /* options.json of the run that is resumed */
} ls_source;

typedef struct ls_setting {
    const char *name; /* static */
    char *text;       /* the value; NULL: none */
    bool quoted;      /* in JSON: text, not a number or a boolean */
    ls_source source;
    char detail[LS_DEVICE_WORDS]; /* "--lr", "optimizer.params.lr", "config.json", "RANK", "B*A*W" ... */
} ls_setting;

/* How the steps of a run folder were computed, by its options.json (config/run_options.h); NULL: not known. Texts are static. */
typedef struct ls_run_computed {
    const char *precision, *device; /* "bf16", "cuda" */
    const char *fp8_format;         /* not NULL: its steps were computed in fp8, with the settings below */
    int fp8_history, fp8_margin;
    bool tf32, stochastic;          /* of a GPU */
    char kernels[LS_COMPUTE_WORDS]; /* of a CPU (ls_compute_cpu_family); "": not known */
    /* why all this is not known of a run that has steps; "": it is known, or the run is of an earlier version */
    char lost[1024];
    bool damaged; /* the file exists: its precision is not guessed, either */
} ls_run_computed;

/* What the caller knows about the world and the data; zero means not known. */
typedef struct ls_train_facts {
    int world_size;      /* workers of this run; 0 or 1 = one                                                */
    int data_vocab_size; /* of the tokenizer beside the data, 0 when there is none                           */
    int data_eos_id;     /* its <|endoftext|>, -1 when there is none; read only when data_vocab_size > 0     */
    bool several_hosts;  /* workers are on more than one                                                     */
    const ls_device_choice *device; /* what was chosen for --device; NULL: as --device stands, and auto is the CPU */
    ls_run_computed before;         /* of the run that is resumed or restarted                               */
} ls_train_facts;

#define LS_MAX_STAGE_THREAD 64

typedef struct ls_train_config {
    ls_model_config model;
    char *model_from;            /* preset or path                                                    */
    char *train_path, *val_path; /* files, shards or blends (data/sources.h); val_path NULL: no validation */
    char *tokenizer_path;        /* NULL when there is none beside the data                           */
    char *run_dir;               /* --checkpoint_path as given                                        */
    char *init_from;             /* NULL: fresh weights                                               */
    char *deepspeed_path;        /* NULL without                                                      */
    char deepspeed_sha256[65];
    ls_str deepspeed_text; /* its bytes */
    bool resume;
    ls_run_computed before;      /* as in the facts */
    bool restart;                /* continues an attempt of the same run, whose files are not those of an earlier run */
    bool lock_held;              /* run.lock, by a parent process */
    struct ls_auto_check *check; /* the steps may be chosen again (config/auto.h); NULL: not */

    int world_size, rank, local_rank;
    int seq_len, micro_batch, grad_accum; /* S, B, A                                                           */
    int64_t global_batch;                 /* B*A*W sequences                                                   */
    int64_t epochs;
    bool epochs_auto;               /* as many as max_steps takes: fit fills epochs                       */
    int64_t max_steps;              /* optimizer steps of the whole run, 0 = no limit                    */
    int64_t max_train_steps;        /* micro steps per epoch, -1 = no limit                              */
    int64_t max_val_steps;          /* validation batches per replica, -1 = no limit, 0 = none           */
    int64_t eval_every, save_every; /* optimizer steps, 0 = at epoch ends only; save_every -1: chosen    */
    double mtbf;                    /* hours between failures of a host                                  */
    int64_t keep_last;              /* 0 = all                                                           */
    int64_t audit;                  /* steps between audits, 0 = none (train/audit.h)                    */
    bool audit_step;                /* an audit repeats the whole step, not one micro-batch              */
    double keep_hours;              /* younger ones are kept, too                                        */
    int64_t save_memory_every;      /* to memory, 0 = never                                              */
    bool save_async;                /* checkpoints are written from a copy                               */
    bool save_warn;                 /* a checkpoint that cannot be written does not stop the run         */
    bool save_verify;               /* they are read back                                                */
    bool eval_on_start;             /* validate before step 1 */
    ls_str options;                 /* options.json (config/run_options.h) */

    /* filled by ls_train_config_fit */
    int64_t train_seqs, val_seqs;
    int64_t steps_per_epoch; /* optimizer steps in a full epoch                                   */
    int64_t total_steps;     /* optimizer steps of the whole run                                  */
    int64_t dropped_seqs;    /* of an epoch: the last partial global batch, never seen that epoch */

    char optimizer[16]; /* "Adam", "AdamW"                                                   */
    double beta1, beta2, eps, weight_decay;
    bool bias_correction, coupled;
    bool decay_matrices_only; /* --decay matrices: biases, norms are not decayed; default: every tensor, as DeepSpeed */
    ls_lr_schedule lr;        /* lr.base is the optimizer's rate                                   */
    bool warmup_auto;         /* warm-up length is chosen by fit (default schedule)                */
    bool lr_by_length;        /* learning rates depend on total_steps; set by fit                  */
    double clip;              /* 0 = off                                                           */

    const char *precision;              /* "fp32", "bf16", "fp16", "fp8"                                     */
    bool precision_open;                /* neither an option nor a section of the JSON names it              */
    const char *precision_why;          /* why --precision auto chose it; NULL: it was not auto               */
    const char *precision_label;        /* training_config.precision of the metrics file                     */
    const char *device, *compute;       /* "cpu", "cuda"; "cpu", "cpu-ref", "cuda"                            */
    int device_index;                   /* of "cuda"; -1: by the local rank, round robin                      */
    char device_words[LS_DEVICE_WORDS]; /* which, and why it was chosen (ls_device_choice)              */
    ls_dtype dtype;        /* as precision says: of parameters and activations; on the CPU, of products' operands */
    bool tf32, stochastic; /* fp32 products in TF32; master weights are rounded stochastically   */
    ls_fp8_opts fp8;       /* dtype is LS_BF16                                                   */
    ls_loss_scale_config loss_scale;
    const char *strategy, *comm;   /* comm: "auto", "local", "mpi", "tcp", "nccl"                               */
    ls_mesh mesh;                  /* dp x pp x tp workers                                      */
    bool sequence_parallel;        /* what lies between split layers is cut by rows             */
    const char *schedule, *stages; /* of a pipeline; stages NULL: equal in cost                  */
    int interleave;
    int stage_thread[LS_MAX_STAGE_THREAD];          /* of each stage, when cores are shared out by cost; [0] 0: alike */
    int64_t bucket, gather_bucket, prefetch_bucket; /* elements: of gradients, of parameters, gathered ahead     */
    int threads;            /* 0 = all cores                                                     */
    int threads_asked;      /* --threads; 0: a worker's part of the cores                        */
    const char *nccl_proof; /* "off", "log", "full": what is kept of a run over NCCL (nccl_proof.h)              */
    double comm_timeout;    /* longest time of a collective in seconds; 0 = no limit, -1 = follows the time of steps */
    uint64_t seed;
    bool recompute, deterministic;
    bool offload;   /* the optimizer's state is in host memory; never on the CPU */
    bool one_state; /* ddp: the workers share one state of the optimizer (parallel/ddp.c); CPU workers of one host */

    const char *run_type; /* "baseline", "optimized", NULL                                     */
    bool engine;          /* the scaling study's rule: optimized, or a distributed environment     */
    int zero_stage;       /* of the JSON; with one worker the same computation                 */
    bool zero_given, fp16_given, fp16_enabled, wall_clock_given, wall_clock_breakdown;
    int64_t steps_per_print, timing_warmup_steps, timing_sample_every;
    int64_t ds_steps_per_print;      /* steps between the lines of DeepSpeed; 0 = none */
    char *tensorboard, *csv_monitor; /* folders, NULL: none */
    bool profile, profile_mode, quiet_nccl_monitor, json, print_config;
    bool reference_output, verbose; /* the scaling study's lines on stdout; the memory plan as a table */
    int64_t print_every;            /* micro-batches between lines; 0: at growing intervals (core/progress.h) */
    bool verify_data;               /* compare every byte of the token files with meta.json */
    bool dist_debug;                /* DIST_DEBUG=1: the collectives of an epoch in rank_logs/         */
    int64_t profile_spans;          /* of a worker's main lane, kept by --profile                      */
    const char *cluster;            /* hardware.cluster, NULL = absent                                   */

    ls_str notes; /* lines to print at the start: keys without effect, ZeRO on one worker ... */
    ls_setting *setting;
    int n_setting;
    bool incomplete; /* no memory for a setting */
} ls_train_config;

/* Paths of the data from --data or --train_data_path/--val_data_path (train and val: as data/sources.h), and tokenizer.json beside
 * them; absent ones NULL. The strings are ls_free'd by the caller. LS_E_ARG when there is no training data named, LS_E_IO when a named
 * file is missing, LS_E_CONFIG when the folders of a blend have different tokenizers. */
typedef struct ls_train_paths {
    char *train, *val, *tokenizer;
} ls_train_paths;
/* The vocabulary of a model for data of `ids` ids (0: not known): the data's where the model follows it, else one that is large enough. */
ls_status ls_train_fit_vocabulary(ls_model_config *m, int ids, bool follows);
ls_status ls_train_find_paths(const ls_train_options *o, ls_train_paths *out);
void ls_train_paths_fini(ls_train_paths *p);

/* --precision as given, or the choice of `auto` (bf16 where the device has it, fp16 on a GPU without) and of NULL (the same on a GPU, fp32 on the
 * CPU). The GPU is not known here: it has bf16. */
const char *ls_precision_choose(const char *asked, bool cuda);
/* The same for a backend, "cuda" or one of --compute: `auto` is fp32 if it has only that. card: of the GPU, NULL: not known. */
const char *ls_precision_of_backend(const char *asked, const char *compute, const ls_card *card);
/* LS_E_UNSUPPORTED: the GPU of d does not multiply in this precision. who: what asks for it, begins the message ("--precision bf16"). */
ls_status ls_precision_check(const char *who, const char *precision, const ls_device_choice *d);
/* The same for --tf32. */
ls_status ls_precision_check_tf32(const ls_device_choice *d);
/* "fp32", "bf16", "fp16", "fp8" of --precision; fp8 is LS_BF16, as all but the operands of products are. */
ls_dtype ls_precision_dtype(const char *precision);
/* Our own text of one of these words, which is never freed; NULL: the word is no precision, or NULL. */
const char *ls_precision_named(const char *word);
/* How a run opens its backend, c->compute; local_rank must be set. */
ls_compute_open_opts ls_train_compute_opts(const ls_train_config *c);

/* Reads RANK, LOCAL_RANK, WORLD_SIZE, PROFILE_MODE from the environment. ds may be NULL. */
ls_status ls_train_resolve(const ls_train_options *given, const ls_ds_config *ds, const ls_train_paths *paths,
                           const ls_train_facts *facts, ls_train_config *out);

/* What ls_train_resolve refuses of device, precision and communication, which depends on neither data nor model. */
ls_status ls_train_check_device(const ls_train_options *given, const ls_ds_config *ds, const ls_train_facts *facts);

/* Appends the model of these options alone, as its config.json. */
ls_status ls_train_model_json(const ls_train_options *o, const ls_train_facts *facts, ls_str *out);

/* Data sizes in sequences of S ids -> steps, the schedule's length and its warm-up. LS_E_CONFIG when not one step is possible. */
ls_status ls_train_config_fit(ls_train_config *c, int64_t train_seqs, int64_t val_seqs);
/* Batches of so many validation sequences: whole ones. If there is not one, the sequences are one batch with others that do not count. */
static inline int64_t ls_train_val_batches(const ls_train_config *c, int64_t seqs)
{
    return seqs && seqs < c->micro_batch ? 1 : seqs / c->micro_batch;
}

void ls_train_config_fini(ls_train_config *c);

/* --print_config: a table (setting, value, source) or {"setting": {"value": ..., "source": ..., "from": ...}, ...}. */
void ls_train_config_table(const ls_train_config *c, ls_str *out);
void ls_train_config_json(const ls_train_config *c, ls_str *out);
/* The settings that must be the same on every worker, for ls_comm_compare. */
void ls_train_config_common(const ls_train_config *c, ls_str *out);

#endif
