/* run_folder.h - the files of a run, read with all checks: ours, or the scaling study's (docs/REFERENCES.md; schema
 * 2.0, the older one of parallel arrays, or the results of epochs that the translation scripts write).
 *
 * Unknown values are NaN, -1 or NULL. A malformed or contradictory value is a line of notes with the file and the key; the rest of
 * the run, and the other runs, are still read. */
#ifndef LS_REPORT_RUN_FOLDER_H
#define LS_REPORT_RUN_FOLDER_H

#include "core/stat.h"
#include "report/read/keys.h"
#include "report/read/run_events.h"
#include "run/metrics.h"

/* Parts of a step. */
enum {
    LS_SPLIT_FORWARD,
    LS_SPLIT_BACKWARD,
    LS_SPLIT_OPTIMIZER,
    LS_SPLIT_EXPOSED,
    LS_SPLIT_BUBBLE,
    LS_SPLIT_STRAGGLER,
    LS_SPLIT_INPUT,
    LS_SPLIT_OTHER,
    LS_N_SPLIT
};
typedef struct ls_split_part {
    const char *key, *words; /* in lockstep.step_split, for people */
    ls_row_key row;          /* in metrics.jsonl */
} ls_split_part;
extern const ls_split_part ls_split[LS_N_SPLIT];

typedef struct ls_run_step {
    int64_t step;
    double loss, val_loss, time, tflop_per_token;
    double at_ms; /* when it ended, milliseconds since 1970; NaN: unknown */
    double part[LS_N_SPLIT];
} ls_run_step;

/* Communicators of a run. */
enum { LS_RUN_COMM_REPLICAS, LS_RUN_COMM_TENSOR, LS_RUN_COMM_ACTS, LS_RUN_COMM_GRADS, LS_N_RUN_COMM };
typedef struct ls_run_comm {
    const char *key, *before, *words; /* below `lockstep`, before the names of its collectives, for people */
} ls_run_comm;
extern const ls_run_comm ls_run_comms[LS_N_RUN_COMM];

typedef struct ls_run_coll { /* one kind of collective, rank 0's, over n_comm_step steps */
    char kind[40];           /* "all_reduce"; of other groups than the replicas': "tensor all_reduce" */
    int comm;                /* its communicator, LS_RUN_COMM_* */
    double calls, nbytes, busy, exposed, busbw;
} ls_run_coll;

typedef struct ls_run_part {
    const char *name;
    double nbytes;
} ls_run_part;

typedef struct ls_run_span { /* one box of a pipeline step */
    bool simulated;          /* in the simulation of the step; else as measured */
    int lane;
    double begin, end;
    const char *kind, *label; /* whole, in ls_run.pipeline */
} ls_run_span;

/* Files of tools and NCCL next to a run, if they exist (ours: docs/GPU.md; the study's have the same names). */
typedef struct ls_run_proof {
    json_t *nccl;        /* nccl/summary.json, lockstep.nccl, or made of NCCL's logs; NULL: nothing is stated */
    bool of_logs;        /* made of the logs */
    char *topo, *ibstat; /* topo.txt and ibstat.txt, for reading; NULL: not there */
    char links[200];     /* between GPUs by topo.txt: "NV18 x 6, SYS x 2"          */
    char ports[400];     /* of ibstat.txt: "mlx5_0 port 1: Active, 100 Gb/s, InfiniBand" */
    char nets[400];      /* of nccl_topo.xml: "mlx5_0 100000 Mb/s"                 */
} ls_run_proof;

#define LS_RUN_MAX_PART 16
#define LS_RUN_MAX_SPAN 4096

typedef struct ls_run {
    char *dir;                            /* the folder, or the metrics file, as given       */
    char *real;                           /* the folder's one name; NULL: a text's           */
    char *name;                           /* short, for people: the last two parts of dir    */
    json_t *metrics, *launcher, *profile; /* NULL: missing                                   */
    ls_run_proof proof;
    ls_interruptions *events;                /* NULL: nothing interrupted it, and no audit ran */
    bool complete;                           /* RUN_COMPLETE.txt exists and fits                */
    int world;                               /* 0: unknown                                     */
    char strategy[128];                      /* "ddp", "zero1", "baseline" ...                  */
    char *setting;                           /* "key value" lines: runs with equal ones are repeats (run_setting.c) */
    int64_t seed;                            /* -1: unknown; the only thing that may differ between repeats */
    bool legacy;                             /* the study's older schema: tokens/s may be those of one rank */
    int n_stated;                            /* workers by that schema's gpus_tested; 0: not stated  */
    bool profiled;                           /* a profiler ran: its speed is no benchmark */
    double tokens_per_sec, wall, epoch_time; /* global tokens/s; seconds                        */
    double train_loss, val_loss;             /* of the last epoch; best                         */
    double n_update, tokens_per_update;
    json_t *n_update_json;            /* n_update as a number of a list of mismatches; NULL: unknown */
    double n_comm_step;               /* that collectives were counted over: those of this process, or all */
    double peak_bytes, planned_bytes; /* both of rank 0 */
    double peak_most;                 /* of the rank with the highest peak; NaN: unknown */
    double cpu_utilisation, gpu_utilisation, tflop_per_token;
    double split[LS_N_SPLIT]; /* mean seconds per step                           */
    bool split_of_steps;      /* of the steps after the warm-up; else of all, as the run recorded them */
    double straggler_share;   /* of the exposed time, waited for slower workers; NaN: unknown */
    double bubble_share; /* of rank 0's waits for its neighbours in a pipeline, the part that is no communication */
    double step_time;    /* mean seconds, warm-up left out                  */
    double step_p95;     /* 95th percentile of the same steps               */
    double sampled
        [3]; /* the study's sampled micro-batches of rank 0: mean, median, 95th percentile; seconds, means over epochs */
    ls_run_step *step;
    int n_step, n_warm; /* the first n_warm steps after n_before are warm-up */
    int n_before;       /* steps before somebody resumed the run last: they may have had other options */
    int64_t resumed;    /* after this step; 0: nobody resumed it            */
    bool started;       /* events.jsonl has a start                         */
    bool changed;       /* resumed with other workers, layout, batch, precision or device: its speed is no benchmark */
    ls_run_coll coll[LS_RUN_MAX_PART];
    int n_coll;
    ls_run_part part[LS_RUN_MAX_PART]; /* memory                                          */
    int n_part;
    double rank_least, rank_most; /* planned bytes by rank; NaN: unknown             */
    int n_rank;
    double *epoch_loss, *epoch_val; /* for runs without metrics.jsonl                  */
    int n_epoch;
    bool translation;  /* translation task: epochs have a BLEU, and perhaps a training time; the first is warm-up */
    bool later_epochs; /* tokens_per_sec and epoch_time are of the epochs after the first (a workdir) */
    double bleu;       /* of the last epoch, mean over ranks; NaN: unknown */
    ls_estimate train_time, rates; /* over epochs after the first: seconds, mean over ranks; tokens/s, sum over ranks */
    json_t *pipeline;              /* pipeline.json, which has the texts of the spans; NULL: there is none */
    ls_run_span *span;
    int n_span, n_lane;
} ls_run;

/* Index of the first step that counts for the speed. */
static inline int ls_run_first(const ls_run *r)
{
    return r->n_before + r->n_warm;
}

/* Files of a run folder, in the order in which they are read. */
enum {
    LS_RUN_METRICS,
    LS_RUN_STEPS,
    LS_RUN_LAUNCHER,
    LS_RUN_COMPLETE,
    LS_RUN_PIPELINE,
    LS_RUN_PROFILE,
    LS_RUN_TOPO,
    LS_RUN_IBSTAT,
    LS_RUN_TOPOLOGY,
    LS_RUN_NCCL,
    LS_RUN_EVENTS,
    LS_N_RUN_FILE
};
extern const char *const ls_run_file[LS_N_RUN_FILE]; /* "training_metrics.json" */

typedef struct ls_text {
    const char *data; /* NULL: there is none */
    size_t n;
} ls_text;

/* The texts of a run's files. */
typedef struct ls_run_texts {
    ls_text file[LS_N_RUN_FILE];
    bool nccl_of_logs; /* the summary of NCCL was made of its logs */
    bool profiled;     /* there are files of a profiler */
    bool traced;       /* there is a trace of ours, of this run or an earlier one in the folder */
    int warm; /* steps of warm-up, and then the parts of a step are means of the steps after them; 0: a rule of ours */
} ls_run_texts;

/* The time of rank 0's collectives on one communicator, seconds per step, over all counted steps. A wait is charged to the
 * collective that was waited for, also if another one delayed it, so hidden time is computed for a communicator as a whole: busy minus
 * waits, at least 0. Exposed are the waits without a pipeline's bubble. NaN: not measured. False: the run has no such communicator. */
typedef struct ls_run_comm_time {
    double busy, exposed, hidden;
} ls_run_comm_time;
bool ls_run_comm_time_of(const ls_run *r, int comm, ls_run_comm_time *out);
/* The value of a key (n_key bytes) in a setting, which has *n bytes; NULL: it has none. */
const char *ls_setting_value(const char *setting, const char *key, size_t n_key, size_t *n);
/* The commit of the program that made a run: the one it was built from where that is recorded (`lockstep.commit`), else `git_commit`. Twelve digits,
 * and "-dirty"; "": not stated, "unknown" is stated. */
void ls_run_commit(const json_t *metrics, char commit[24]);
/* The name of the communicators' backend ("nccl", "local", "mpi"): of the first there is. NULL: none is stated. */
const char *ls_run_backend(const ls_run *r);
bool ls_run_over_nccl(const ls_run *r); /* some communicator is NCCL's */

/* Fails only with LS_E_NOMEM; then *out is unchanged. name is used in notes and on the page. */
ls_status ls_run_read_texts(const ls_run_texts *t, const char *dir, ls_notes *notes, ls_run *out);
void ls_run_fini(ls_run *r);

typedef struct ls_run_set {
    ls_run *run; /* ascending by number of workers, else in the order given */
    int n, cap;
    int n_again; /* runs that were given twice */
    int warm;    /* as in ls_run_texts; set before runs are added */
    bool apart;  /* do not search benchmarks below a path (benches.h); a path without runs is no note then */
    ls_notes notes;
    struct ls_scaling_file {
        char *path;
        json_t *root;
    } * scaling; /* scaling_report.json files that were found */
    int n_scaling, cap_scaling;
} ls_run_set;

bool ls_is_run(const char *dir); /* a folder with files of a run */
/* Adds the runs at path: a run folder, a metrics file, or a folder of such folders and files (at most five deep). A path without any run is
 * a note. LS_E_NOMEM alone. */
ls_status ls_run_set_add(ls_run_set *s, const char *path);
void ls_run_set_sort(ls_run_set *s);
void ls_run_set_fini(ls_run_set *s);

#endif
