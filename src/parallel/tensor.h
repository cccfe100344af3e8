/* tensor.h - tensor parallelism: each of T workers has some heads, MLP columns and ids (ls_shard); all-reduce points join them.
 *
 *          x --norm--+- c_attn, heads of 0 - c_proj rows of 0 -+         +- c_fc columns of 0 - mlp.c_proj rows of 0 -+
 *     (the same      +- c_attn, heads of 1 - c_proj rows of 1 -+ sum - … +- c_fc columns of 1 - mlp.c_proj rows of 1 -+ sum - …
 *      everywhere)   +- …                                      +  +x     +- …                                         +  +r
 *
 * In the backward pass the gradient of a norm's output is a sum over the workers. The embedding is a sum, too (one worker has the row,
 * the others 0). Logits are never gathered: for each row the workers exchange (largest, sum of exponentials, target's logit).
 *
 *   R rows of a micro-batch, C channels, L blocks, P parameters, S those that are replicated (norms, positions, biases after a sum)
 *   held         S + (P - S)/T parameters, gradients and moments likewise, then sharded by the data-parallel strategy
 *   activations  qkv, attention, fc and logits: 1/T; x, r and the norms' outputs: whole
 *   sent         per micro-batch: all_reduce (4L + 2) R C elements (6L + 2 with recompute; forward only 2L + 1),
 *                               all_gather 3 R T doubles
 *                per step: all_reduce of n_unit doubles, for the norm of the gradient
 *
 * With --sequence_parallel every sum becomes a reduce_scatter, after which a worker has R/T rows of x, r and the norms, and before
 * the next product an all_gather:
 *   activations  x and r: 1/T, too
 *   sent         per micro-batch: reduce_scatter (4L + 2) R C, all_gather (6L + 2) R C (two in a block's backward gather norms' outputs
 *                               again), all_reduce (4L + 2) C (gradients of norms), all_gather 3 R T doubles;
 *                               recompute adds 2L R C to each of the first two
 *
 * Invariants
 *   1. the result of a sum has the same bits on every worker, so that replicated parameters stay equal without communication (with
 *      --stochastic_rounding the master weights do; an element is then rounded by its place in the shard);
 *   2. initial weights and dropout masks are those of the whole model (keyed by global head, row and channel): T only changes
 *      rounding;
 *   3. the norm of the gradient counts an element once: for replicated elements, that of rank 0. Blocks in order within a unit, then the
 *      workers of the group in the collective's tree, then units in order. */
#ifndef LS_PARALLEL_TENSOR_H
#define LS_PARALLEL_TENSOR_H

#include "comm/comm.h"
#include "model/model.h"

/* Connects the model's all-reduce points to comm; rank r has shard r. Activations must be in memory from ls_comm_alloc. comm must
 * outlive the model's passes. */
void ls_tensor_join(ls_model *m, ls_comm *comm);

/* Subtracts replicated elements that another worker of the group counts from the sums of squares of blocks (out[i]: LS_NORM_BLOCK
 * elements) of unit u's gradient; grad points to elements first … first + n - 1. first is a multiple of LS_NORM_BLOCK. work: one double
 * in host memory. */
ls_status ls_tensor_count_once(const ls_model *m, int u, const void *grad, int64_t first, int64_t n, double *out,
                               double *work);

/* Maps ranges of a shard's flat buffers to ranges of the whole model's, without padding. save: replicated elements only on rank 0.
 * Returns their number; `to` (NULL: only count) has room for them. */
int64_t ls_tensor_pieces(const ls_model *m, const ls_piece *from, int n_from, bool save, ls_piece *to);

#endif
