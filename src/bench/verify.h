/* verify.h - checks every layout against a single worker: a small model, a few steps, compared bit by bit.
 *
 * For each number of micro-batches per step, with and without dropout, a single worker is the reference. Every other layout distributes
 * the same micro-batches over its workers. Compared are the losses of all steps, and the summed gradients and the weights of the last
 * step. Tensor parallelism changes the order of sums: there errors must stay within LS_VERIFY_LOSS and LS_VERIFY_GRAD. */
#ifndef LS_BENCH_VERIFY_H
#define LS_BENCH_VERIFY_H

#include "comm/comm.h"
#include "compute/compute.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_VERIFY_MAX_WORLD 16
#define LS_VERIFY_MAX_TP    4    /* workers that a layer is split over: tiny has four heads          */
#define LS_VERIFY_LOSS      1e-5 /* relative, of every step                                         */
#define LS_VERIFY_GRAD      1e-4 /* of the last step's, against the largest element                 */
#define LS_VERIFY_LOSS_16   5e-3 /* the same where the operations compute in 16 bits                */
#define LS_VERIFY_GRAD_16   5e-2
#define LS_VERIFY_GRAD_8    5e-1 /* fp8: another rounding of an input is another code, 1/8 to 1/4 away         */
#define LS_VERIFY_TP_STEPS  20   /* of layouts with split layers, however many the others take      */
#define LS_VERIFY_MAX_STEP  64
#define LS_VERIFY_WORDS     1024 /* of an error message */

typedef struct ls_verify_opts {
    int world[LS_VERIFY_MAX_WORLD]; /* numbers of workers; each divides the largest */
    int n_world;
    int steps; /* 1 to LS_VERIFY_MAX_STEP */
    uint64_t seed;
    ls_comm *comm; /* workers of a launcher, each of which calls ls_verify; NULL: fork workers */
    bool only_tp;  /* only layouts with tensor parallelism */
    bool pairs;    /* data of the translation task: the loss counts the targets of pairs */
    int jobs;      /* layouts that run at the same time, 1 to LS_JOBS_MOST; with `comm`: 1 */
    double limit;  /* time limit of a layout in seconds; not used with `comm`, whose collectives have a limit */
    const char *device, *precision, *comm_name; /* as in train (comm_name: --comm); NULL: defaults */
    const char *offload;                        /* --offload_optimizer of layouts with zero1 to zero3; NULL: none */
    const char *fp8_format;                     /* NULL: the default */
    int64_t fp8_history, fp8_margin;            /* 0 and -1: the default */
} ls_verify_opts;

/* One layout. */
typedef struct ls_verify_shape {
    const char *strategy;
    int world, pp, interleave, tp;
    const char *schedule; /* of a pipeline, else NULL */
    bool by_rows;         /* --sequence_parallel      */
} ls_verify_shape;

/* What a layout computed with. */
typedef struct ls_verify_how {
    char device[8], precision[8];   /* "cpu", "cuda"; "fp32", "bf16", ...: never "auto" */
    char compute[LS_COMPUTE_WORDS]; /* ls_compute_describe: with the matmul kernel      */
} ls_verify_how;

/* The limits for tensor parallelism. */
double ls_verify_loss_limit(const ls_verify_opts *o);
double ls_verify_grad_limit(const ls_verify_opts *o);

typedef struct ls_verify_row {
    ls_verify_shape s;
    const char *comm;
    const ls_verify_how *how; /* of the single worker; until ls_verify returns */
    int n_micro;              /* of each replica */
    double dropout;
    bool unclipped; /* --clip 0: an offloaded optimizer overlaps the backward pass */
    bool ran;       /* false: `words` has the reason */
    bool identical;
    bool within;                                 /* the errors are within the limits for tensor parallelism */
    double loss_error, grad_error, weight_error; /* largest relative differences; 0 when identical */
    char words[LS_VERIFY_WORDS];
    double seconds;
    int of; /* layouts of this command; rows are fewer if it is stopped */
} ls_verify_row;

/* Calls row for each layout in order (with `comm`: on rank 0 only). LS_E_NUMERIC if a layout does not match the reference, LS_E_COMM if
 * workers failed. */
ls_status ls_verify(const ls_verify_opts *o, void (*row)(void *ctx, const ls_verify_row *r), void *ctx);

#endif
