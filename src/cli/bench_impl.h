/* bench_impl.h - shared by the benchmarks that train: options, the commands of the runs, progress, the result.
 *
 *   lockstep bench scaling [BENCH OPTIONS] -- [TRAIN OPTIONS]       runs, then compares
 *   lockstep bench scaling RUN_DIR…                                 compares existing runs
 *
 * bench/ knows how to run and to test, report/ how to read and to compare; they meet here. */
#ifndef LS_CLI_BENCH_IMPL_H
#define LS_CLI_BENCH_IMPL_H

#include "bench/protocol.h"
#include "cli/commands.h"
#include "report/compare/analysis.h"
#include "config/options.h"

#include <stddef.h>

enum { BENCH_MAX_N = 16 };

typedef struct bench_opts {
    const char *n, *out;
    int64_t repeat, steps, warmup;
    bool resume, dry_run, allow_mismatch, keep_checkpoints, json;
} bench_opts;

/* Rows of the option table of a structure that begins with bench_opts. */
#define BENCH_AT(field) offsetof(bench_opts, field)
#define BENCH_ROWS(n_default, repeat_default)                                                                         \
    {"n", LS_OPT_STR, BENCH_AT(n), "LIST", n_default, "numbers of workers", "Settings"},                              \
        {"repeat", LS_OPT_INT, BENCH_AT(repeat), "N", repeat_default, "runs per setting; the settings run in turns",  \
         NULL},                                                                                                       \
        {"steps", LS_OPT_INT, BENCH_AT(steps),                                                                        \
         "N",     "30",       "optimizer steps per run, unless the train options have --max_steps or --epochs",       \
         NULL},                                                                                                       \
        {"warmup", LS_OPT_INT, BENCH_AT(warmup), "N", "5", "warm-up steps to exclude", NULL},                         \
        {"out", LS_OPT_STR, BENCH_AT(out), "DIR", NULL, "output folder for runs and results [runs/<time>]", "Runs"},  \
        {"out_dir", LS_OPT_STR, BENCH_AT(out), "DIR", NULL, NULL, NULL},                                              \
        {"resume", LS_OPT_SWITCH, BENCH_AT(resume), NULL, NULL, "keep the finished runs of --out and run the rest",   \
         NULL},                                                                                                       \
        {"dry-run", LS_OPT_SWITCH, BENCH_AT(dry_run), NULL, NULL, "print the commands without running them", NULL},   \
        {"keep-checkpoints",                                                                                          \
         LS_OPT_SWITCH,                                                                                               \
         BENCH_AT(keep_checkpoints),                                                                                  \
         NULL,                                                                                                        \
         NULL,                                                                                                        \
         "keep the checkpoints of finished runs",                                                                     \
         NULL},                                                                                                       \
        {"allow-mismatch",                                                                                            \
         LS_OPT_SWITCH,                                                                                               \
         BENCH_AT(allow_mismatch),                                                                                    \
         NULL,                                                                                                        \
         NULL,                                                                                                        \
         "compare runs that are not comparable, and mark the result",                                                 \
         NULL},                                                                                                       \
    {                                                                                                                 \
        "json", LS_OPT_SWITCH, BENCH_AT(json), NULL, NULL, "print the result as JSON on stdout instead of the table", \
            NULL                                                                                                      \
    }

typedef struct bench_session {
    bench_opts o;
    ls_argv given; /* the train options, as given */
    ls_argv base;  /* the same, followed by our defaults */
    int worker[BENCH_MAX_N], n_worker, most;
    int64_t micro, one; /* sequences of a micro-batch, and of a step on one worker */
    int64_t global;     /* of all, when the train options say it; else 0 */
    int64_t enforce;    /* --enforce_global_batch_size of the train options; 0: not given */
    char layout[16];    /* that the train options (--strategy) or their DeepSpeed JSON ask for; "": none */
    bool own_strategy;  /* it is --strategy's */
    int cores;
    double load; /* runnable processes of the machine when we began: a busy one means wide intervals; NaN: not known */
    char program[4096], out[4096];
    ls_bench bench;
    bool tty;
} bench_session;

/* Splits argv at "--": the arguments after it go to *train. Returns the number of arguments before it. */
ls_status cli_bench_cut(int argc, char **argv, ls_argv *train, int *n_before, bool *cut);
/* Refuses train options that are the benchmark's to say; own_workers: -n is not among them. */
ls_status cli_bench_refuse(const ls_train_options *o, bool own_workers);
/* From options and train words to a session without sides. */
ls_status cli_bench_begin(bench_session *s);
/* Fills micro and one: what the train options come to on one worker. What cannot work there is refused. */
ls_status cli_bench_learn(bench_session *s);
/* Adds <workers>gpu_<name>: the base, `layout` (may be NULL), the further arguments, accumulation such that a step has `global` sequences
 * (0: as the words say). What cannot work is LS_E_CONFIG, or with `or_leave_out` a side that is left out with the reason. */
ls_status cli_bench_side(bench_session *s, const char *name, int workers, const char *layout, const ls_argv *more,
                         int64_t global, bool or_leave_out);
/* The side with most threads, where those outnumber the cores; else NULL. */
const ls_bench_side *cli_bench_crowded(const bench_session *s);
/* Prints the commands (--dry-run), or runs them with progress on stderr. */
ls_status cli_bench_go(bench_session *s);
void cli_bench_end(bench_session *s);

/* Adds the runs at a path that somebody gave, or those that the session made of a side. */
ls_status cli_bench_add_path(ls_run_set *set, const char *path);
ls_status cli_bench_add_side(const bench_session *s, const ls_bench_side *side, ls_run_set *set);
/* Sorts and compares the runs of a set; mismatches go to stderr. Not one run that can be compared is LS_E_FORMAT. */
ls_status cli_bench_compare(const bench_session *s, bool weak, ls_run_set *set, ls_analysis *a);
void cli_bench_notes(const ls_run_set *set); /* to stderr */

/* Runs of two sides, beside each other: run[i][0] is A's and run[i][1] B's, indices into the set. */
typedef struct bench_pairs {
    int (*run)[2], n;
    ls_notes left_out; /* "DIR: why", a run each */
} bench_pairs;
/* Reads side A and side B (of the session, or paths 0 and 1), pairs their runs and compares those that have a partner; the others are
 * named on stderr. LS_E_FORMAT without a pair. */
ls_status cli_bench_read_pairs(const bench_session *s, const ls_opt_list *paths, ls_run_set *set, ls_analysis *a,
                               bench_pairs *p);
void cli_bench_pairs_fini(bench_pairs *p);

/* Reads the runs of the session's sides (or of paths) and compares them. */
ls_status cli_bench_read(const bench_session *s, const ls_opt_list *paths, bool weak, ls_run_set *set, ls_analysis *a);
/* Called after the result is written: lists runs that are not comparable and returns exit code 1, as R1 does. */
ls_status cli_bench_verdict(const ls_analysis *a, const char *file);
void cli_bench_protocol(const void *session, ls_jsonw *w);                        /* members of `protocol` */
ls_status cli_bench_write(const char *dir, const char *file, const ls_str *text); /* with a line on stderr */
void cli_bench_print_waterfall(const ls_analysis *a);

ls_status cli_bench_scaling(int argc, char **argv);
ls_status cli_bench_strategies(int argc, char **argv);
ls_status cli_bench_ab(int argc, char **argv);
ls_status cli_bench_comm(int argc, char **argv);
ls_status cli_bench_gemm(int argc, char **argv);

#endif
