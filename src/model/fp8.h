/* fp8.h - products of the blocks' linear layers with operands in 8 bits (--precision fp8): formats, scales, copies of the weights.
 *
 *   forward    y  = x W       x, W in e4m3
 *   backward   dx = dy W^T    dy in e5m2, or e4m3
 *              dW = x^T dy    x as it was rounded in forward
 *
 * Everything else, and every pass that does not train, computes in bf16. An operand is stored as v * scale. Its scale is constant during a step
 * and follows from the history: the largest magnitude of the operand in each of the last steps, on all workers. So the scale is a function of
 * state that is saved, equal on all workers and for any number of them. A model without a history (new, or trained in another precision)
 * computes one step in bf16, which records the magnitudes; so does one with an operand that was 0 in the whole history.
 *
 * Products need both operands along the summed dimension, so each operand has a transposed copy, too: those of the weights are made once per
 * step (`stale`), those of activations with the operand.
 *
 * Parameters that are sharded and gathered for each use (`cut`) are gathered as codes, one byte per element in the layout of the flat buffer. Once per
 * step each worker rounds its part; scales are those of whole matrices and rounding works on single elements, so the codes are those of one worker.
 * W is the gathered code itself, W^T is made before a forward pass. Tensors of one dimension (biases, norms) stay in bf16 on every worker: they are
 * gathered once per step. Passes that do not train, and the step that records, need bf16. */
#ifndef LS_MODEL_FP8_H
#define LS_MODEL_FP8_H

#include "compute/compute.h"
#include "core/plan.h"

#define LS_FP8_LAYERS  4 /* linear layers of a block */
#define LS_FP8_HISTORY 1024
#define LS_FP8_MARGIN  16

typedef enum ls_fp8_operand { LS_FP8_X, LS_FP8_W, LS_FP8_DY, LS_N_FP8_OPERAND } ls_fp8_operand;

typedef struct ls_fp8_opts {
    bool on;
    bool e4m3;   /* dy in e4m3; else in e5m2 */
    int history; /* steps, 1 … LS_FP8_HISTORY */
    int margin;  /* scales are divided by 2^margin, 0 … LS_FP8_MARGIN */
} ls_fp8_opts;

/* The word of --fp8_format. */
static inline const char *ls_fp8_format_word(const ls_fp8_opts *o)
{
    return o->e4m3 ? "e4m3" : "hybrid";
}

typedef struct ls_fp8_history {
    int n;            /* operands of the model: LS_FP8_LAYERS * LS_N_FP8_OPERAND per block */
    int length, used; /* steps: room, recorded */
    float *amax;      /* (length, n), the newest step first */
} ls_fp8_history;

/* The largest power of two that keeps amax * scale * 2^margin within the format; 1 for 0. amax is finite. */
float ls_fp8_scale(float amax, ls_fp8 form, int margin);
/* An operand that was 0 in all steps has no scale: its number is returned, and the history is emptied, so that the next step records. Else -1. */
int ls_fp8_settle(ls_fp8_history *h);
/* Adds a step; the oldest is dropped. Then settles. */
int ls_fp8_push(ls_fp8_history *h, const float *amax);
/* The name of operand i of the history: "the gradient of the fc of block 3". */
void ls_fp8_name(int i, char *text, size_t size);

enum { LS_FP8_APART = 4 }; /* cuBLASLt reads factors at multiples of 16 bytes only */

struct ls_model;

/* The parts of a unit's flat buffers, and the one of this worker. n = 0: parameters are not sharded. */
typedef struct ls_fp8_cut {
    int n, mine;
} ls_fp8_cut;

/* What parameters that are cut need. Elements are those of bf16. */
typedef struct ls_fp8_parts {
    ls_fp8_cut cut;
    bool fresh;    /* the members below are those of the parameters */
    void **code;   /* of each unit: the codes of this worker's part; NULL: not a block, or not here */
    void **vector; /* of each unit: its tensors of one dimension, side by side, or NULL */
    void *packed;  /* n_packed elements of each part: its share of these tensors, of all units */
    int64_t n_packed;
    int *code_row, *vector_row, packed_row;
} ls_fp8_parts;

typedef struct ls_fp8_state {
    ls_fp8_opts opts;
    ls_fp8_history history;
    ls_fp8_parts parts;
    bool *stale; /* of each unit: its copies are not those of its parameters */
    void **
        weights; /* of each unit: for each layer W (K,N), then W^T (N,K); cut: W^T, of all units; NULL: the unit is not here */
    int *row, number; /* plan rows: of weights, of the numbers */
    /* on the device, history.n each */
    float *amax;           /* of this step, on this worker */
    float *scale, *factor; /* factor = 1/scale; LS_FP8_APART numbers from one to the next */
    float *host;           /* copies of the three */
} ls_fp8_state;

/* Makes m->fp8 and its rows of the plan; here: whether each unit is on this worker, NULL: all are. R: rows of a micro-batch. LS_E_CONFIG if a
 * size is not a multiple of 16. ls_model_destroy frees it. */
ls_status ls_fp8_create(struct ls_model *m, const ls_fp8_opts *o, int64_t R, ls_fp8_cut cut, const bool *here,
                        ls_plan *plan);
void ls_fp8_bind(struct ls_model *m, const ls_plan *plan);
void ls_fp8_destroy(ls_fp8_state **f);

/* Sets the scales of the history on the device, and the magnitudes to 0, before operations that are queued later. The passes that are queued
 * must be complete; an update need not be. */
ls_status ls_fp8_set(const struct ls_model *m);
/* At the begin of a step: the parameters have changed. */
void ls_fp8_begin_step(const struct ls_model *m);
/* Whether a training pass needs the parameters of unit u as codes. The strategy then sets unit[u].param to the codes and unit[u].vector to
 * parts.vector[u]. */
bool ls_fp8_coded(const struct ls_model *m, int u);
/* Once per step (!parts.fresh), for each unit that is coded: fills parts.code[u] from this worker's part of the parameters, and its share of
 * `packed`. When the others' shares have arrived: fills parts.vector. */
ls_status ls_fp8_encode(const struct ls_model *m, int u, const void *part);
ls_status ls_fp8_unpack(const struct ls_model *m);
/* Reads the magnitudes of this step on this worker: history.n numbers. Its passes must be complete. */
ls_status ls_fp8_read(const struct ls_model *m, float *amax);

#endif
