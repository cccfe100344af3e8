/* softmax.h - launchers of the classifier's kernels: cross-entropy of rows of logits, and its gradient over them. They
 * return a cudaError_t (0: queued). The products around them are the caller's (compute.h, ls_classifier; gemm.h). */
#ifndef LS_CUDA_KERNELS_SOFTMAX_H
#define LS_CUDA_KERNELS_SOFTMAX_H

#include "compute/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ld a multiple of 16 bytes' worth of elements and logits aligned to 16 bytes: each row is read once and written once,
 * if it fits into shared memory (227 KiB on H200; half of it is better); else it is read three times. */
typedef struct cu_softmax {
    void *logits;          /* (rows, ld) in; with grad, dlogits out, columns V … ld-1 of it 0          */
    double *row_loss;      /* (rows) out                                                               */
    const int32_t *target; /* (rows) ids of the whole vocabulary; < 0: loss and gradient are 0         */
    int64_t rows, V, ld;
    int64_t first; /* id of column 0                                                           */
    double dloss;  /* with `at`, at->dloss is read instead                                     */
    const ls_pass_head *at;
    bool grad;
} cu_softmax;

int cu_softmax_loss(void *stream, ls_dtype dt, const cu_softmax *a);

/* A vocabulary that is cut over workers: what is known here of every row goes to part (rows, 3): the largest logit, the
 * sum of exponentials below it, the target's logit or 0. Then, with everyone's (n_part, rows, 3) in order, the losses
 * and the gradient here. `all` is used up. */
int cu_softmax_parts(void *stream, ls_dtype dt, const cu_softmax *a, double *part);
int cu_softmax_join(void *stream, ls_dtype dt, const cu_softmax *a, double *all, int n_part);

#ifdef __cplusplus
}
#endif
#endif
