/* tensor.h - one model over T workers: each has some heads, MLP columns and ids (ls_shard), and they meet at the seams.
 *
 *          x --norm--+- c_attn, heads of 0 - c_proj rows of 0 -+         +- c_fc columns of 0 - mlp.c_proj rows of 0 -+
 *     (the same      +- c_attn, heads of 1 - c_proj rows of 1 -+ sum - … +- c_fc columns of 1 - mlp.c_proj rows of 1 -+ sum - …
 *      everywhere)   +- …                                      +  +x     +- …                                         +  +r
 *
 * Backward meets where forward parts: what flows back into a norm is a sum. The embedding is a sum, too (one worker has the row,
 * the others 0). Logits are never together: of each row the workers exchange (largest, sum of exponentials, target's logit).
 *
 *   R rows of a micro-batch, C channels, L blocks, P parameters, S those that are everywhere (norms, positions, biases behind a sum)
 *   held         S + (P - S)/T parameters, gradients and moments likewise, then cut again by the data-parallel strategy
 *   activations  qkv, attention, fc and logits: 1/T; x, r and the norms' outputs: whole
 *   sent         a micro-batch: all_reduce (4L + 2) R C elements (6L + 2 with recompute; forward alone 2L + 1),
 *                               all_gather 3 R T doubles
 *                a step: all_reduce of n_unit doubles, for the norm of the gradient
 *
 * By rows (--sequence_parallel) every sum becomes a reduce_scatter, after which a worker has R/T rows of x, r and the norms, and before
 * the next product an all_gather:
 *   activations  x and r: 1/T, too
 *   sent         a micro-batch: reduce_scatter (4L + 2) R C, all_gather (6L + 2) R C (two in a block's backward bring norms' outputs
 *                               again), all_reduce (4L + 2) C (gradients of norms), all_gather 3 R T doubles;
 *                               recompute adds 2L R C to each of the first two
 *
 * Invariants
 *   1. what lies behind a sum has the same bits on every worker, so that what is everywhere stays equal without being sent;
 *   2. weights begin as the whole model's, and masks of dropout are the whole model's (keyed by head, row and channel of the whole):
 *      T changes rounding, nothing else;
 *   3. the norm of the gradient counts an element once: of what is everywhere, rank 0's. Blocks in order within a unit, then the
 *      workers of the group in the collective's tree, then units in order. */
#ifndef LS_PARALLEL_TENSOR_H
#define LS_PARALLEL_TENSOR_H

#include "comm/comm.h"
#include "model/model.h"

/* Puts the workers of comm, shard by shard in the order of ranks, behind the model's seams. Activations must lie in memory of
 * comm's world (ls_comm_alloc). comm must outlive the model's passes. */
void ls_tensor_join(ls_model *m, ls_comm *comm);

/* Sums of squares of blocks (out[i]: LS_NORM_BLOCK elements) of unit u's gradient, of which elements first … first + n - 1 lie at
 * grad: takes out of them what another worker of the group counts. first is a multiple of LS_NORM_BLOCK. work: one place of the host. */
ls_status ls_tensor_count_once(const ls_model *m, int u, const void *grad, int64_t first, int64_t n, double *out,
                               double *work);

/* Parts of a shard's flat buffers as parts of the whole model's, without padding. save: what is everywhere is rank 0's alone. Returns
 * how many; `to` (NULL: only count) has room for them. */
int64_t ls_tensor_pieces(const ls_model *m, const ls_piece *from, int n_from, bool save, ls_piece *to);

#endif
