/* gemm_bench.h - speed of the matrix products of a GPT-2 training step: own kernels and the linked CBLAS, or a device (gemm_device.c compares the
 * product "alone" with the operation of a "step").
 *
 * The sides alternate on every shape, so that a busy machine slows all of them equally. So does the multiply instruction alone: some CPUs have
 * several times its speed in the first second, and products must be compared with what it has while they run. "blas-own" is one call of CBLAS with its own
 * threads, as a baseline. */
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
    const char *side[LS_GEMM_MAX_SIDE], *type[LS_GEMM_MAX_SIDE]; /* type: of the operands, "bf16" */
    double best[LS_GEMM_MAX_SIDE], median[LS_GEMM_MAX_SIDE];     /* seconds per call; last row: per step */
    double flop;
    double peak[LS_GEMM_MAX_SIDE]; /* last row: median FLOP/s of the multiply instruction alone; 0: not known */
} ls_gemm_row;

typedef struct ls_gemm_bench {
    int threads, turns;                        /* threads 0: all cores */
    int64_t rows, width, layers, vocab, chunk; /* rows: sequences x tokens; chunk: rows of the classifier at a time */
    const char *const *kernel; /* n_kernel 0: LS_GEMM or the best, in bf16 also that of fp32, and blas-own */
    int n_kernel;
    const char *device; /* NULL: the CPU; "cuda": n_kernel, threads and cpu_time are ignored */
    int index;          /* device index; -1: first available */
    ls_dtype dtype;
    bool typed; /* dtype was asked for by name */
    bool tf32;
    void (*where)(void *ctx, const char *words); /* called once with the description of the device */
    bool cpu_time; /* measure CPU time of one thread instead of wall time, for a busy machine */
    void (*row)(void *ctx, const ls_gemm_row *r); /* called once per shape, then for "step", all products of a step */
    void *ctx;
} ls_gemm_bench;

/* LS_E_ARG: among others if LS_GEMM names no kernel of this type, where n_kernel is 0. LS_E_NOMEM if the matrices do not fit in memory. */
ls_status ls_gemm_bench_run(const ls_gemm_bench *given);
const char *ls_gemm_bench_blas(void); /* which CBLAS */
int ls_gemm_bench_cores(void);

/* inside the folder */
struct gemm_shape;
typedef struct gemm_timer {
    int n_side, warm; /* warm: calls per side before the clock runs */
    const char *side[LS_GEMM_MAX_SIDE], *type[LS_GEMM_MAX_SIDE];
    int64_t vocab;                       /* rows of the classifier, with padding */
    double (*peak)(void *ctx, int side); /* called after the last product; NULL: not known */
    ls_status (*once)(void *ctx, const struct gemm_shape *q, int side, double *seconds);
    void *ctx;
} gemm_timer;
ls_status gemm_bench_rows(const ls_gemm_bench *o, const gemm_timer *t); /* times every shape and calls o->row */
ls_status gemm_bench_device(const ls_gemm_bench *o);                    /* with checked values */

#endif
