/* protocol.h - the fixed-work protocol: several settings (sides), each run `repeat` times by this program's own `train`, in turns.
 *
 *   turn 1   side 1, side 2, … side n        a slow drift of the machine (heat, neighbours) falls on all sides alike:
 *   turn 2   side n, … side 2, side 1        odd turns go forth, even ones back (of two sides: A B B A)
 *
 * Run folders are <out>/<side>/run_<turn>, as R1 (docs/REFERENCES.md) lays them out (train.log and stderr.log inside); a folder with
 * RUN_COMPLETE.txt is finished. A stop (SIGINT, SIGTERM) ends the run under way and leaves the finished ones, and `resume` takes them
 * up: a finished folder of another command is refused, an unfinished one is done again. Checkpoints are removed from finished folders
 * unless `keep_checkpoints`. */
#ifndef LS_BENCH_PROTOCOL_H
#define LS_BENCH_PROTOCOL_H

#include "config/layout.h"

#include <stdint.h>

typedef struct ls_bench_side {
    char name[96]; /* its folder: "2gpu_ddp" */
    int workers;
    ls_argv words;                                 /* behind `train`, without --checkpoint_path                     */
    int64_t micro_batch, grad_accum, global_batch; /* as `train` resolves them; set by ls_bench_check            */
    int64_t steps;                                 /* optimizer steps that the words allow at most, 0: no limit; so */
    int threads;                                   /* of a worker, 0: all its cores; so                             */
    char *left_out;                                /* NULL, or why it is not run (any more)                         */
    ls_status failed;                              /* of a run that was begun; LS_OK: none */
    int n_done;                                    /* finished runs, and the seconds of those that were run here    */
    double seconds;
    int n_timed;
} ls_bench_side;

typedef enum ls_bench_event {
    LS_BENCH_BEGIN,
    LS_BENCH_TICK,
    LS_BENCH_DONE,
    LS_BENCH_REUSED,
    LS_BENCH_FAILED
} ls_bench_event;

typedef struct ls_bench_progress {
    ls_bench_event event;
    int run, n_run, turn; /* from 1 */
    const ls_bench_side *side;
    double seconds, left;  /* of this run; until all are done, NaN: not known yet */
    double tokens_per_sec; /* DONE, REUSED */
} ls_bench_progress;

typedef struct ls_bench {
    const char *program, *out;
    int repeat;
    bool resume, keep_checkpoints;
    bool go_on; /* a side that fails is left out with its reason, and the others go on */
    ls_bench_side *side;
    int n_side, cap_side;
    void (*progress)(void *ctx, const ls_bench_progress *p);
    void *ctx;
} ls_bench;

/* Adds an empty side. Borrowed until the next one. NULL: no memory. */
ls_bench_side *ls_bench_add(ls_bench *b, const char *name, int workers);
/* Asks `train --print_config` what the side's words come to. What `train` refuses is refused here, with its words. */
ls_status ls_bench_check(const ls_bench *b, ls_bench_side *s);
/* The command of a run, for people and for machines. */
ls_status ls_bench_command(const ls_bench *b, const ls_bench_side *s, int turn, ls_argv *out);
/* Runs everything. LS_E_STOPPED: how to go on is in the words. */
ls_status ls_bench_run(ls_bench *b);
void ls_bench_fini(ls_bench *b);

#endif
