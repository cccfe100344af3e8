/* planner.h - which layout of a model over a cluster's workers fits, and which is fastest.
 *
 *   memory      the very plan that the run allocates, made over dry communicators: equal byte for byte (train/plan_run.h)
 *   time        the strategy and the walk of the run, over a clock that is told the cluster's seconds: posts and waits are the code's
 *               own (planner_step.c); the actions of a pipeline are simulated (parallel/simulate.h)
 *   search      every (strategy, dp, pp, tp, schedule, micro-batch) of so many workers
 *
 * A layout is a ls_train_config: what is ranked is what `lockstep train` would be given. */
#ifndef LS_PLAN_PLANNER_H
#define LS_PLAN_PLANNER_H

#include "plan/cluster_file.h"
#include "core/plan.h"
#include "config/resolve.h"

typedef struct ls_plan_memory {
    int64_t part[LS_N_PART]; /* rows of each part, shared places or not */
    int64_t total;           /* the allocation; on a GPU of its memory  */
} ls_plan_memory;

/* Seconds of one step of the slowest worker; the parts add up to `step`. */
typedef struct ls_prediction {
    double step;
    double forward, backward; /* computing, with what hidden collectives take from it                   */
    double exposed;           /* waiting for collectives (and, in a pipeline, neighbours: its bubble)     */
    double optimizer;
    double other;
    double bubble; /* of the pipeline: idle share of forward and backward, 0 without    */
    double tokens_per_sec;
    double comm; /* seconds that collectives take, hidden or not                      */
    int64_t calls[LS_N_COLL], elements[LS_N_COLL]; /* of rank 0's data-parallel group, a step         */
} ls_prediction;

typedef struct ls_planned {
    ls_train_config cfg; /* owns nothing          */
    ls_plan_memory worst;
    int worst_rank;
    int64_t host_bytes; /* of all workers of a host */
    int64_t comm_bytes; /* of a GPU, beside the plan: what sums in one order over NCCL work in */
    bool fits;
    char why[240]; /* it does not          */
    ls_prediction time;
} ls_planned;

typedef struct ls_planner_query {
    ls_model_config model;
    int64_t global_batch;
    int seq_len, workers;
    int64_t memory;                  /* 0: the cluster's           */
    int64_t bucket;                  /* of gradients; 0: the trainer's default */
    int64_t val_seqs;                /* sequences of validation data            */
    const char *data;                /* the folder they and the vocabulary are of; NULL: the command leaves it open */
    const char *from;                /* --model as it was given; NULL: the model's name */
    bool vocab_given, dropout_given; /* with --vocab_size, --dropout        */
    int max_tp;                      /* 0: no limit                */
    const char *strategy;            /* NULL: all                  */
    bool recompute;
    bool cuda; /* GPUs compute; else cores, in fp32 */
    ls_dtype dtype;
    bool precision_given, no_deterministic;
    double tokens;   /* of a whole training, for its hours and energy; 0: not asked for */
    ls_compute *gpu; /* open, of the cluster's kind: it knows cuDNN's working space; NULL: formulas (compute/sizes.c) */
} ls_planner_query;

/* What a whole training takes; below 0: not known. */
typedef struct ls_plan_totals {
    double mfu;          /* of the makers' peak                                           */
    double seconds, kwh; /* for q->tokens; energy by the power limit of every device       */
} ls_plan_totals;

typedef struct ls_planner_result {
    ls_planned *layout; /* those that fit, fastest first; then the others, least memory first */
    int n, n_fit;
    int n_bad; /* combinations that cannot be, whatever the memory, with examples of why */
    char bad[6][240];
} ls_planner_result;

ls_plan_totals ls_planner_totals(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l);

/* A configuration of the trainer's defaults for this layout. pp 1: schedule NULL. */
ls_train_config ls_planner_config(const ls_planner_query *q, const char *strategy, ls_mesh mesh, const char *schedule,
                                  int interleave, int micro_batch);

/* On cores: shares them out among the stages of a pipeline, as `train -n` does. */
void ls_planner_share(const ls_cluster *cl, ls_train_config *c);
/* Threads of worker `rank`, as the launcher gives them. */
int ls_planner_threads(const ls_cluster *cl, const ls_train_config *c, int rank);

/* What worker `rank` will allocate; of a GPU, which need not be there, without cuDNN's working space (compute/sizes.c). LS_E_CONFIG for a
 * layout that cannot be, with the arithmetic. */
ls_status ls_planner_memory(const ls_train_config *c, int threads, int rank, int64_t val_seqs, ls_plan_memory *out);
/* The same with a backend that is open: cuDNN's working space counts, too. */
ls_status ls_planner_memory_on(const ls_train_config *c, ls_compute *compute, int rank, int64_t val_seqs,
                               ls_plan_memory *out);
ls_status ls_planner_predict(const ls_cluster *cl, const ls_train_config *c, ls_prediction *out);

ls_status ls_planner_search(const ls_cluster *cl, const ls_planner_query *q, ls_planner_result *out);
void ls_planner_result_fini(ls_planner_result *r);

/* "8 workers share 2 cores …", or "" where none do. */
void ls_crowd_words(const ls_cluster *cl, int world, char buf[128]);
/* "zero2 dp 4 pp 2 (1f1b), 4 x 2" */
void ls_planned_words(const ls_train_config *c, char buf[96]);
/* The first `top` layouts (0: all), the reasons, and the command that runs the best one. */
void ls_planner_text(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int top, ls_str *out);
void ls_planner_json(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int top, ls_str *out);

#endif
