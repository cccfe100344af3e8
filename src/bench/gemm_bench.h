/* gemm_bench.h - the ceiling: how fast the matrix products of a GPT-2 training step run in our kernels and in the linked CBLAS, or on a
 * device (gemm_device.c: its sides are the product "alone", and as a "step" makes it).
 *
 * The sides take turns on every shape, so that a busy machine slows all of them alike. "blas-own" is CBLAS called once with its own
 * threads: what anybody gets from the library, the floor. */
#ifndef LS_BENCH_GEMM_BENCH_H
#define LS_BENCH_GEMM_BENCH_H

#include "core/buf.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { LS_GEMM_MAX_SIDE = 6, LS_GEMM_MAX_TURN = 64 };

typedef struct ls_gemm_row {
    const char *what, *op;  /* "qkv", "NT"                                                 */
    int64_t M, N, K, count; /* count: calls of this shape in a step                       */
    int n_side;
    const char *side[LS_GEMM_MAX_SIDE];
    double best[LS_GEMM_MAX_SIDE], median[LS_GEMM_MAX_SIDE]; /* seconds of a call; of the last row: of a step */
    double flop;
} ls_gemm_row;

typedef struct ls_gemm_bench {
    int threads, turns;                        /* threads 0: all cores */
    int64_t rows, width, layers, vocab, chunk; /* rows: sequences x tokens; chunk: rows of the classifier at a time */
    const char *const *kernel;                 /* n_kernel 0: the best, and blas-own */
    int n_kernel;
    const char *device; /* NULL: the CPU; "cuda": n_kernel, threads and cpu_time do not matter */
    int index;          /* which one; -1: the first that is free for this process */
    ls_dtype dtype;
    bool tf32;
    void (*where)(void *ctx, const char *words); /* a device: once, what it is */
    bool cpu_time; /* this process's processor time, not the clock's: one thread, on a busy machine */
    void (*row)(void *ctx, const ls_gemm_row *r); /* a shape each, then "step": all products of a step */
    void *ctx;
} ls_gemm_bench;

ls_status ls_gemm_bench_run(const ls_gemm_bench *given);
ls_status ls_gemm_bench_device(const ls_gemm_bench *o); /* of ls_gemm_bench_run, with checked numbers */
const char *ls_gemm_bench_blas(void);                   /* which CBLAS */
int ls_gemm_bench_cores(void);

#endif
