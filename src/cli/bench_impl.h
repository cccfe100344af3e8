/* bench_impl.h - shared by the benchmarks that train: options, the commands of the runs, progress, the result.
 *
 *   lockstep bench scaling [BENCH OPTIONS] -- [TRAIN OPTIONS]       runs, then compares
 *   lockstep bench scaling RUN_DIR…                                 compares existing runs
 *
 * bench/ runs and tests, report/ reads and compares; this code combines them. */
#ifndef LS_CLI_BENCH_IMPL_H
#define LS_CLI_BENCH_IMPL_H

#include "bench/protocol.h"
#include "cli/commands.h"
#include "report/compare/analysis.h"
#include "config/options.h"

enum { BENCH_MAX_N = 16 };

typedef struct bench_opts {
    const char *n, *out;
    const char *n_flag; /* that gave n, for messages; NULL: -n */
    int64_t repeat, steps, warmup;
    bool resume, dry_run, allow_mismatch, keep_checkpoints, json;
} bench_opts;

typedef struct bench_session {
    bench_opts o;
    ls_argv given; /* the train options, as given */
    ls_argv base;  /* the same, followed by our defaults */
    int worker[BENCH_MAX_N], n_worker, most;
    int64_t micro, one; /* sequences of a micro-batch, and of a step on one worker */
    int64_t global;     /* global batch of the train options; 0: not given */
    int64_t enforce;    /* --enforce_global_batch_size of the train options; 0: not given */
    char layout[16];    /* of the train options (--strategy) or their DeepSpeed JSON; "": none */
    bool own_strategy;  /* layout is from --strategy */
    bool precisions;    /* --a or --b has --precision or --tf32: a difference of these is what is compared */
    bool own_workers;   /* the train options may have -n */
    bool by_device;     /* folders are 2cpu_ddp on a CPU; the runner of the scaling study writes 2gpu_ everywhere */
    bool on_cpu;        /* one worker; set by cli_bench_learn */
    int cores;
    double
        load; /* runnable processes of the machine at the start; NaN: unknown. A busy machine gives wide confidence intervals */
    char program[4096], out[4096];
    ls_bench bench;
    bool reference; /* started with the command line of the scaling study's runner: its folders, defaults and files */
    char scratch[4096]; /* where runs are made; "": in --out */
} bench_session;

/* Rows of the option table of a structure `options` with the member `bench_session s`. */
#define BENCH_ROWS(n_default, repeat_default)                                                                          \
    CLI_STR("n", s.o.n, "LIST", n_default, "numbers of workers", "Settings"),                                          \
        CLI_INT_IN(1, 1000, "repeat", s.o.repeat, "N", repeat_default, "runs per setting; the settings run in turns"), \
        CLI_POSITIVE("steps", s.o.steps, "N", "30",                                                                    \
                     "optimizer steps per run, unless the train options have --max_steps or --epochs"),                \
        CLI_POSITIVE("warmup", s.o.warmup, "N", "5", "warm-up steps to exclude"),                                      \
        CLI_STR("out", s.o.out, "DIR", NULL, "output folder for runs and results [runs/<time>]", "Runs"),              \
        CLI_ALIAS("out_dir", "out"),                                                                                   \
        CLI_SWITCH("resume", s.o.resume, "keep the finished runs of --out and run the rest"),                          \
        CLI_SWITCH("dry_run", s.o.dry_run, "print the commands without running them"),                                 \
        CLI_SWITCH("keep_checkpoints", s.o.keep_checkpoints, "keep the checkpoints of finished runs"),                 \
        CLI_SWITCH("allow_mismatch", s.o.allow_mismatch, "compare runs that are not comparable, and mark the result"), \
        CLI_SWITCH("json", s.o.json, "print the result as JSON on stdout instead of the table")

/* Parses the arguments before "--" into options; those after it are the train options (s->given). *cut: there is a "--". given: as in
 * cli_parse, may be NULL. */
ls_status cli_bench_parse(const cli_page *p, void *options, bench_session *s, int argc, char **argv, ls_opt_list *paths,
                          bool *cut, unsigned char *given);
/* Replaces --preset and the flags of its trainer among train options by flags of ours; *found: there was one. */
ls_status cli_bench_preset(ls_argv *given, bool *found);
/* Appends "--name value". */
ls_status cli_bench_flag(ls_argv *w, const char *name, int64_t value);
/* Parses train options. Rejects those that the benchmark sets itself; own_workers: -n is allowed. */
ls_status cli_bench_train_options(const ls_argv *words, bool own_workers, ls_train_options *o);
/* From the options and the train options to a session without sides. */
ls_status cli_bench_begin(bench_session *s);
/* Sets s->base from s->given, for the sides that are added from now on. */
ls_status cli_bench_base(bench_session *s);
/* Sets micro and one from the train options on one worker. Fails if they cannot work there. */
ls_status cli_bench_learn(bench_session *s);
/* Adds <workers>gpu_<name> (by_device: or cpu_): the base, `layout` (may be NULL), the further arguments, and gradient accumulation such that a step has
 * `global` sequences (0: as the arguments say). What cannot work is LS_E_CONFIG or, with `or_leave_out`, a side that is skipped with
 * the reason. */
ls_status cli_bench_side(bench_session *s, const char *name, int workers, const char *layout, const ls_argv *more,
                         int64_t global, bool or_leave_out);
/* The side with the most threads, if it has more threads than the machine has cores; else NULL. */
const ls_bench_side *cli_bench_crowded(const bench_session *s);
/* Runnable processes of the machine; NaN: unknown. */
double cli_bench_load(void);
/* Prints a note with what to expect if more than half of the cores are busy. */
void cli_bench_note_busy(double load, int cores, const char *expect);
/* Appends the command line of a run. */
ls_status cli_bench_command(const bench_session *s, const ls_bench_side *side, int turn, ls_str *out);
/* Prints the commands (--dry_run), or runs them with progress on stderr. */
ls_status cli_bench_go(bench_session *s);
void cli_bench_next(const bench_session *s); /* prints the command that makes a page of the runs */
void cli_bench_end(bench_session *s);

typedef struct bench_pair { /* of A and B */
    const char *dir[2];
    const ls_run *run[2];
} bench_pair;
typedef struct bench_pairs {
    bench_pair *pair;
    int n;
    bool whole;        /* speeds are of whole epochs: a run has no metrics.jsonl */
    bool in_turns;     /* the two runs of a pair were made one after the other, so that a paired test is valid */
    ls_notes left_out; /* "DIR: why", one per run */
} bench_pairs;
/* Reads side A and side B (of the session, or paths 0 and 1), pairs their runs and compares those that have a partner; the others are
 * listed on stderr. LS_E_FORMAT without a pair. */
ls_status cli_bench_read_pairs(const bench_session *s, const ls_opt_list *paths, ls_run_set *set, ls_analysis *a,
                               bench_pairs *p);
void cli_bench_pairs_fini(bench_pairs *p);
/* Settings in which the sides differ: {"gpu": {"a": ["V100"], "b": ["A100"]}}; a list has the values of all runs of a side. */
json_t *cli_bench_differences(const bench_pairs *p);
void cli_bench_difference_words(const json_t *all, ls_str *out);

/* Reads the runs of the sides of the session (or of paths) and compares them. */
ls_status cli_bench_read(const bench_session *s, const ls_opt_list *paths, bool weak, ls_run_set *set, ls_analysis *a);
/* Prints the result (json with --json, else the table) and writes it to `file` in --out. Returns the verdict. */
ls_status cli_bench_publish(const bench_session *s, const ls_analysis *a, const char *file, const ls_str *json,
                            const ls_str *table);
/* LS_OK if the runs were compared; else prints the reason, which is in `file`, and returns exit code 1, as the scaling
 * study does. */
ls_status cli_bench_verdict(const ls_analysis *a, const char *file);
void cli_bench_protocol(const void *session, ls_jsonw *w); /* members of `protocol` */
void cli_bench_waterfall(const ls_analysis *a, ls_str *out);

cli_main cli_bench_scaling, cli_bench_strategies, cli_bench_ab, cli_bench_comm, cli_bench_gemm, cli_bench_r3;

#endif
