/* verify.h - does every layout compute the step of one worker? A small model, a few steps, compared bit by bit.
 *
 * For each number of leaves (micro-batches of a step) and with and without dropout, one worker is the judge. Every other layout has
 * the same leaves spread over its workers. Compared are the losses of all steps, the summed gradients of the last and the weights
 * after it. Where layers are split (tp) sums have another order: there the errors must stay within LS_VERIFY_LOSS and LS_VERIFY_GRAD. */
#ifndef LS_BENCH_VERIFY_H
#define LS_BENCH_VERIFY_H

#include "comm/comm.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_VERIFY_MAX_WORLD 16
#define LS_VERIFY_MAX_TP    4    /* workers that a layer is split over: tiny has four heads          */
#define LS_VERIFY_LOSS      1e-5 /* relative, of every step                                         */
#define LS_VERIFY_GRAD      1e-4 /* of the last step's, against the largest element                 */
#define LS_VERIFY_LOSS_16   5e-3 /* the same where the operations compute in 16 bits                */
#define LS_VERIFY_GRAD_16   5e-2
#define LS_VERIFY_TP_STEPS  20 /* of layouts with split layers, however many the others take      */

typedef struct ls_verify_opts {
    int world[LS_VERIFY_MAX_WORLD]; /* numbers of workers */
    int n_world;
    int steps;
    uint64_t seed;
    ls_comm *
        comm; /* workers that are there (a launcher's): every one of them calls ls_verify; NULL: they are forked here */
    bool only_tp; /* leave the layouts of whole models out */
    int jobs;     /* layouts that run at the same time; with `comm`: 1                */
    double limit; /* seconds of a layout, which then fails; not used with `comm`, whose collectives have a limit */
    const char *device, *precision, *comm_name; /* as train has them (comm_name: --comm); NULL: its defaults */
} ls_verify_opts;

/* Who shares the work how. */
typedef struct ls_verify_shape {
    const char *strategy;
    int world, pp, interleave, tp;
    const char *schedule; /* of a pipeline, else NULL */
    bool by_rows;         /* --sequence_parallel      */
} ls_verify_shape;

/* The two limits of split layers. */
double ls_verify_loss_limit(const ls_verify_opts *o);
double ls_verify_grad_limit(const ls_verify_opts *o);

typedef struct ls_verify_row {
    ls_verify_shape s;
    const char *comm;
    int n_micro; /* of each replica */
    double dropout;
    bool ran; /* false: `words` says why not */
    bool identical;
    bool within;                                 /* the errors are small enough for split layers */
    double loss_error, grad_error, weight_error; /* largest relative differences; 0 when identical */
    char words[200];
    double seconds;
} ls_verify_row;

/* Calls row for each layout, in their order; with workers that are there, at rank 0 alone. Returns LS_E_NUMERIC when a layout that promises identity differs (rows tell), LS_E_COMM when
 * workers failed. */
ls_status ls_verify(const ls_verify_opts *o, void (*row)(void *ctx, const ls_verify_row *r), void *ctx);

#endif
