/* protocol.h - the fixed-work protocol: runs several settings (sides) `repeat` times each with `train`, in alternating order.
 *
 *   turn 1   side 1, side 2, … side n        a slow drift of the machine (heat, other users) affects all sides equally:
 *   turn 2   side n, … side 2, side 1        odd turns forward, even turns backward (two sides: A B B A)
 *
 * Run folders are <out>/<side>/run_<turn>, the layout of the ZeRO scaling study (docs/REFERENCES.md), with train.log
 * and stderr.log; a folder with RUN_COMPLETE.txt is finished. A stop (SIGINT, SIGTERM) ends the current run and keeps
 * the finished ones. `resume` reuses them: it rejects a finished folder of another command and repeats an unfinished
 * one. Checkpoints are removed from finished folders unless `keep_checkpoints` is set. */
#ifndef LS_BENCH_PROTOCOL_H
#define LS_BENCH_PROTOCOL_H

#include "config/layout.h"

#include <stdint.h>

typedef struct ls_bench_side {
    char name[96]; /* its folder: "2gpu_ddp" */
    bool on_cpu;   /* set by ls_bench_check */
    int workers;
    ls_argv words;                                    /* arguments of `train`, without --checkpoint_path*/
    int64_t micro_batch, grad_accum, global_batch;    /* as `train` resolves them; set by ls_bench_check            */
    int64_t steps;                                    /* maximum optimizer steps, 0: no limit; set by ls_bench_check */
    int64_t epochs, seq_len, n_layer, n_head, n_embd; /* set by ls_bench_check */
    char precision[8];                                /* "bf16"; set by ls_bench_check */
    char *data;                                       /* the training data; set by ls_bench_check */
    int threads;                                      /* per worker, 0: all cores; set by ls_bench_check*/
    char *left_out;                                   /* NULL, or the reason why it is skipped*/
    ls_status failed;                                 /* status of a failed run; LS_OK: none failed */
    int n_done; /* finished runs; `seconds` is the time of the n_timed runs made now*/
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
    double seconds, left;  /* elapsed in this run; estimated until the end, NaN: unknown */
    double tokens_per_sec; /* DONE, REUSED */
} ls_bench_progress;

typedef struct ls_bench {
    const char *program, *out;
    int repeat;
    bool resume, keep_checkpoints;
    const char
        *scratch; /* NULL, or where runs are made; each is copied to `out` when it has ended, replacing an old copy */
    bool
        gpus_visible; /* set CUDA_VISIBLE_DEVICES=0,...,N-1 for a run on N workers, unless it is set, as that runner does */
    bool go_on;       /* skip a side that fails and continue with the others */
    ls_bench_side *side;
    int n_side, cap_side;
    void (*progress)(void *ctx, const ls_bench_progress *p);
    void *ctx;
} ls_bench;

/* Adds an empty side; the pointer is valid until the next call. NULL if out of memory. */
ls_bench_side *ls_bench_add(ls_bench *b, const char *name, int workers);
/* Runs `train --print_config` with the arguments of the side. If `train` rejects them, fails with its message. */
ls_status ls_bench_check(const ls_bench *b, ls_bench_side *s);
/* The command line of a run. */
ls_status ls_bench_command(const ls_bench *b, const ls_bench_side *s, int turn, ls_argv *out);
/* Runs everything. LS_E_STOPPED: the message explains how to continue. */
ls_status ls_bench_run(ls_bench *b);
void ls_bench_fini(ls_bench *b);

#endif
