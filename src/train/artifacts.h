/* artifacts.h - the files of a run: training_metrics.json, RUN_COMPLETE.txt, launcher_metadata.json, metrics.jsonl, markers.
 *
 * Keys, order and number formats are those of docs/FORMATS.md (schema 2.0); what we add comes after the scaling study's
 * keys, under `lockstep` at the top and inside an epoch. Whole files are written atomically. */
#ifndef LS_TRAIN_ARTIFACTS_H
#define LS_TRAIN_ARTIFACTS_H

#include "comm/comm.h"
#include "core/device.h"
#include "core/err.h"
#include "core/json.h"
#include "core/str.h"
#include "core/plan.h"
#include "config/resolve.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* Program, host and command line of a run; captured once when the trainer has been initialised. */
typedef struct ls_run_identity {
    char run_id[40]; /* 20260128T012344Z-72baa608 */
    char timestamp_utc[24];
    char git_commit
        [80]; /* GIT_COMMIT, else HEAD of the tree that holds the program or the current folder, else "unknown" */
    const char
        *built; /* the commit that the program was built from, "-dirty" if its sources differed; NULL: not known */
    char hostname[256];
    char os[320];       /* Linux-<release>-<machine>-with-glibc2.36 */
    char *command_line; /* program and arguments joined by single blanks */
    char *environment;  /* ls_run_environment; NULL: none is set */
} ls_run_identity;

/* built: static, or NULL. */
ls_status ls_run_identity_capture(ls_run_identity *id, const char *program, int argc, char *const *argv,
                                  const char *built);
void ls_run_identity_fini(ls_run_identity *id);

/* The variables of an environment that can change results or speed, "A=1 B=x" in the order of their names; blanks and control characters
 * of a value become '_'. Empty ones, and those that say only where something is or what is logged, are left out. */
void ls_run_environment(char *const *env, ls_str *out);

/* HEAD of the repository that contains `start` (a folder), found by reading .git; false when there is none. */
bool ls_git_head(const char *start, char commit[80]);

/* Seconds; zeros when nothing was measured. */
typedef struct ls_stats {
    double mean, p50, p95;
} ls_stats;

/* One finished epoch. Times in seconds. */
typedef struct ls_epoch_metrics {
    int64_t epoch_idx; /* from 1 */
    double wall_time, train_loss;
    double loss_sum; /* train_loss * targets, before rounding */
    int64_t targets; /* tokens that count in the loss */
    bool cut;        /* ended at the step limit of the run, not at the end of the data: a resumed run may continue it */
    int64_t micro_steps, grad_accum; /* optimizer_steps is written as ceil(micro_steps / grad_accum) */
    int64_t tokens;
    bool has_val; /* false: null (no validation data). true without a batch (--max_val_steps 0): 0.0, as the study */
    double val_loss;
    int64_t cuda_bytes, cuda_bytes_global; /* of rank 0's device, the most of any worker's; 0 without CUDA  */
    int64_t n_sample;                      /* sampled micro steps; 0: the four times below are null        */
    ls_stats step, dataload;
    /* ours, after the scaling study's keys */
    int64_t updates_applied, updates_skipped, sequences_dropped;
    int64_t n_update; /* timed optimizer steps; 0: null                               */
    ls_stats update;
    double grad_norm_max, grad_norm_last;
    int64_t peak_rss_bytes;
} ls_epoch_metrics;

/* Where a step's time went, in seconds: the parts add up to the step. Waits for other workers are in `comm_exposed` alone, whatever
 * part they fell into. */
enum { LS_N_STEP_SPLIT = 6 };
typedef union ls_step_split {
    struct {
        double input, forward, backward, comm_exposed, optimizer, other;
    };
    double part[LS_N_STEP_SPLIT];
} ls_step_split;

/* What each worker reports at the end of a run. */
typedef struct ls_worker_facts {
    double part_bytes[LS_N_PART]; /* planned memory                              */
    double plan_bytes;
    double host_bytes; /* of a device's run: planned host memory */
    double peak_rss_bytes;
    double cpu_utilisation; /* CPU seconds / (wall seconds * threads)      */
    double exposed;         /* seconds waited for others, in all           */
    double device_bytes;    /* ls_trainer_held_bytes; 0: the CPU           */
    double comm_bytes;      /* ls_trainer_comm_bytes                       */
} ls_worker_facts;

struct ls_trainer;
struct ls_pipe_report;

/* What the files need besides the trainer. */
typedef struct ls_run_end {
    const ls_run_identity *id;
    double total_wall_time;
    char utc[24];
    const char *compute_words;         /* ls_compute_describe                         */
    const char *nccl;                  /* its version; NULL: not in use               */
    const ls_worker_facts *worker;     /* of each; NULL: omitted                      */
    const struct ls_pipe_report *pipe; /* NULL: omitted                               */
} ls_run_end;

/* Text of the files, for tests and for the writers below. */
void ls_training_metrics_text(const struct ls_trainer *t, const ls_run_end *m, ls_str *out);
void ls_launcher_metadata_text(const struct ls_trainer *t, const ls_run_end *m, ls_str *out);
/* stamped: with the timestamp field, for the file; without it, for stdout. No newline. */
void ls_run_complete_text(const struct ls_trainer *t, const ls_run_end *m, bool stamped, ls_str *out);

/* Writes launcher_metadata.json, training_metrics.json, RUN_COMPLETE.txt into cfg->run_dir in this order; appends the stdout
 * markers (each a line) to `markers` as each file is safe. */
ls_status ls_artifacts_write(const struct ls_trainer *t, const ls_run_end *m, ls_str *markers);
/* "[Rank r] EXITING cleanly\n" */
void ls_exit_marker(int rank, ls_str *out);

/* Removes RUN_COMPLETE.txt, training_metrics.json of an earlier run, so that a run that fails is not taken for a finished one. */
ls_status ls_artifacts_begin(const char *run_dir);

/* Sampling and statistics. */
bool ls_step_sampled(int64_t s, int64_t warmup, int64_t every);  /* s >= warmup and s % every == 0 */
double ls_percentile(const double *sorted, int64_t n, double q); /* linear between closest ranks; n > 0 */
ls_stats ls_stats_of(double *x, int64_t n);                      /* sorts x; zeros when n == 0 */

struct ls_event;

/* metrics.jsonl: one line per step, written at once. No allocation after open. */
typedef struct ls_metrics_log {
    int fd;
    char path[PATH_MAX]; /* "": closed */
    ls_str line;
    int64_t dropped,
        dropped_until; /* steps whose lines a resumed run has dropped, which it repeats; when the last one ended, milliseconds */
    double dropped_seconds; /* their times */
} ls_metrics_log;

/* keep_step: lines of steps up to it stay (a resumed run), the rest and a torn last line are dropped, atomically; 0 starts a new
 * file. */
ls_status ls_metrics_log_open(ls_metrics_log *l, const char *run_dir, int64_t keep_step);
/* e: LS_ON_STEP_LOG */
ls_status ls_metrics_log_add(ls_metrics_log *l, const struct ls_trainer *t, const struct ls_event *e);
ls_status ls_metrics_log_close(ls_metrics_log *l); /* takes a zeroed or closed one */

#endif
