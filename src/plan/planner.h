/* planner.h - finds the layouts of a model on a cluster that fit, and ranks them by speed.
 *
 *   memory      the plan that the run allocates, computed with dry communicators: equal byte for byte (train/plan_run.h)
 *   time        runs the strategy and the model walk of training on a simulated clock with the times of the cluster (planner_step.c);
 *               pipeline actions are simulated (parallel/simulate.h)
 *   search      every (strategy, dp, pp, tp, schedule, micro-batch) for the number of workers; above 64 GPUs only those that a lower bound
 *               of their time does not exclude from the `top` fastest
 *
 * dp, where one worker updates for all and nothing overlaps, is not a candidate on GPUs of several hosts, unless q->strategy names it. There
 * buckets are as large as the latency of the collectives needs, else they have the defaults of train.
 *
 * A layout is a ls_train_config, as `lockstep train` uses it. */
#ifndef LS_PLAN_PLANNER_H
#define LS_PLAN_PLANNER_H

#include "plan/cluster_file.h"
#include "core/goodput.h"
#include "core/plan.h"
#include "config/resolve.h"

typedef struct ls_plan_memory {
    int64_t part[LS_N_PART]; /* bytes of each part, before memory is shared */
    int64_t total;           /* the allocation (on a GPU: GPU memory)*/
    int64_t host;            /* bytes of host memory: CPU: total; GPU: pinned memory beside it. Not of a recorded run */
    int64_t comm;            /* of a recorded run: GPU memory of the communicators' sums; -1: not recorded */
} ls_plan_memory;

/* Seconds of one step on the slowest worker; the parts add up to `step`. */
typedef struct ls_prediction {
    double step;
    double forward, backward; /* compute, including slowdown by overlapped collectives*/
    double exposed;           /* exposed communication (in a pipeline: also the bubble)*/
    double optimizer;
    double other;
    double bubble; /* idle fraction of forward and backward in a pipeline, else 0*/
    double tokens_per_sec;
    double comm;                                   /* seconds of all collectives, overlapped or exposed*/
    int64_t calls[LS_N_COLL], elements[LS_N_COLL]; /* per step in the data-parallel group of rank 0*/
} ls_prediction;

typedef struct ls_planned {
    ls_train_config cfg; /* owns nothing          */
    ls_plan_memory worst;
    int worst_rank;
    int64_t host_bytes; /* the worker with most, times the workers of a host; 0: GPUs without offload */
    int64_t comm_bytes; /* GPU memory outside the plan: work space of ordered sums over NCCL */
    bool fits;
    char why[240]; /* reason if it does not fit */
    ls_prediction time;
} ls_planned;

typedef struct ls_planner_query {
    ls_model_config model;
    int64_t global_batch;
    int seq_len, workers;
    int64_t memory;                      /* 0: the cluster's           */
    int64_t bucket;                      /* of gradients; 0: the trainer's default */
    int64_t val_seqs;                    /* sequences of validation data            */
    const char *data;                    /* data folder for val_seqs and the vocabulary; NULL: none given */
    const char *from;                    /* value of --model; NULL: use the model name */
    bool batch_chosen;                   /* global_batch is a default */
    bool vocab_given, dropout_given;     /* with --vocab_size, --dropout; the command has it */
    bool dropout_unknown, order_unknown; /* ls_planner_settle chose: no dropout, any order of sums */
    int max_tp;                          /* 0: no limit                */
    int top;                             /* layouts that are needed; 0: all */
    const char *strategy;                /* NULL: all                  */
    bool sketch;                         /* for advice: the fastest that fits; others may be missing */
    bool recompute;
    bool offload; /* --offload_optimizer cpu: only strategies that allow it */
    bool cuda;    /* true: GPUs; false: CPU cores in fp32 */
    ls_dtype dtype;
    bool precision_given, precision_auto, no_deterministic; /* auto: given as the word auto */
    double tokens;                        /* of a whole training run, to report hours and energy; 0: not requested */
    double price;                         /* of a device for one hour, in any currency; 0: not given */
    double mtbf;                          /* mean seconds between failures of a host; 0: no failures */
    double checkpoint_bandwidth, restart; /* bytes/s of the storage; seconds. With mtbf */
    ls_compute *gpu; /* an open backend that reports the cuDNN workspace; NULL: use formulas (compute/sizes.c) */
} ls_planner_query;

/* Totals of a whole training run; NaN: unknown. */
typedef struct ls_plan_totals {
    double mfu;     /* relative to the data sheet peak*/
    double seconds; /* for q->tokens, without failures */
    double elapsed; /* the same, expected with failures (q->mtbf); NaN if goodput is below LS_GOODPUT_LEAST */
    double kwh;     /* of it, at the power limit of every device*/
    double cost;    /* of it, at q->price */
    double goodput; /* with q->mtbf */
} ls_plan_totals;

typedef struct ls_planner_result {
    ls_planned *layout; /* layouts that fit, fastest first, then the others, least memory first */
    int n, n_fit;
    int n_slow; /* layouts that were not evaluated, because a lower bound of their time is above the printed ones */
    bool no_dp; /* GPUs of several hosts: dp is evaluated if it is requested only */
    int n_bad;  /* impossible combinations, with examples of the reasons */
    char bad[6][240];
} ls_planner_result;

/* The failures of a training with this layout (q->mtbf is above 0): a checkpoint has fp32 weights and two moments of every parameter. */
ls_failures ls_planner_failures(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l);
int64_t ls_planner_checkpoint_bytes(const ls_model_config *m);
ls_plan_totals ls_planner_totals(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l);

/* The trainer defaults with this layout. Without a pipeline schedule is NULL. */
ls_train_config ls_planner_config(const ls_planner_query *q, const char *strategy, ls_mesh mesh, const char *schedule,
                                  int interleave, int micro_batch);

/* On CPUs: divides the cores among the pipeline stages, as `train -n` does. */
void ls_planner_share(const ls_cluster *cl, ls_train_config *c);
/* What the sizes of a worker on CPU cores depend on. */
typedef struct ls_worker_cpu {
    int threads;
    const char *kernel; /* of matrix products; NULL or "": that of this CPU */
} ls_worker_cpu;
/* The threads that the launcher gives worker `rank`, and the kernel of the cluster. */
ls_worker_cpu ls_planner_cpu(const ls_cluster *cl, const ls_train_config *c, int rank);

/* Memory that worker `rank` will allocate. gpu: an open backend that reports the cuDNN workspace; NULL: a GPU need not be present, and the
 * cuDNN workspace is not included (compute/sizes.c). LS_E_CONFIG for an impossible layout; the message has the arithmetic. */
ls_status ls_planner_memory(const ls_train_config *c, ls_compute *gpu, ls_worker_cpu cpu, int rank, int64_t val_seqs,
                            ls_plan_memory *out);
/* GPU memory of a worker outside the plan: work space of ordered sums over NCCL (comm/nccl_tree.c), for each group that sums. */
int64_t ls_planner_comm_bytes(const ls_train_config *c);
/* Memory of a GPU that is not available to layouts: about what the CUDA context, the code of the libraries and their own buffers take. */
int64_t ls_planner_reserve(const ls_planner_query *q);
/* Memory, times and command are of the same settings: where the cluster has no times with dropout or with one order of sums, the query becomes
 * one without. LS_E_UNSUPPORTED if --dropout was given. */
ls_status ls_planner_settle(const ls_cluster *cl, ls_planner_query *q);
/* LS_E_UNSUPPORTED: cluster files have no times of what the run computes in. */
ls_status ls_planner_check_times(const ls_train_config *c);
ls_status ls_planner_predict(const ls_cluster *cl, const ls_train_config *c, ls_prediction *out);

ls_status ls_planner_search(const ls_cluster *cl, const ls_planner_query *q, ls_planner_result *out);
void ls_planner_result_fini(ls_planner_result *r);

/* Why the first layout is the fastest, one sentence per line: the parts of its step, and what others lose or need. */
void ls_planner_explain(const ls_planner_result *r, ls_str *out);
/* What to change, one sentence per line: each was predicted as a layout (larger batch, recomputation, fewer or more workers, precision). If nothing
 * fits: the options that make something fit, each with a layout of its own search, the fastest first. Empty if nothing gains. */
void ls_planner_advise(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, ls_str *out);

/* "8 workers share 2 cores …", or "" if no cores are shared. */
void ls_crowd_words(const ls_cluster *cl, int world, char buf[128]);
/* "zero2 dp 4 pp 2 (1f1b), 4 x 2" */
void ls_planned_words(const ls_train_config *c, char buf[96]);
/* The first `top` layouts (0: all), why others do not fit, and the commands for the best one; lines of at most `columns`. */
void ls_planner_text(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int top, int columns,
                     ls_str *out);
void ls_planner_json(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int top, ls_str *out);

#endif
