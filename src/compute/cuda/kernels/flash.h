/* flash.h - our own causal attention: O(T) memory, no atomics, any T and head sizes up to 128. Layouts as in compute.h.
 *
 *   forward            s_ij = scale q_i.k_j (j <= i),  p = softmax(s),  y_i = sum_j drop(p_ij) v_j,  lse_i = log sum_j exp(s_ij)
 *   backward           delta_i = dy_i.y_i,  dp_ij = drop'(dy_i.v_j),  ds_ij = p_ij (dp_ij - delta_i),  p_ij = exp(s_ij - lse_i)
 *                      dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i,  dv_j = sum_i drop(p_ij) dy_i
 *
 * Backward is two kernels, each of which owns what it writes: one has rows of queries (delta, dq), the other rows of keys (dk, dv). Both make
 * p again: seven products in place of five, and every sum has one order.
 *
 * Three families of cards (mma.cuh; card.h, `mma`) have the same equations and tiles of the same order. Their products sum in another order, so bits
 * are equal within a family: 80 (8.0 and later), 75 (f16: products of 8 along K) and 70 (f16: of 4). Before 8.0 float uses no tensor cores,
 * also where TF32 was asked for, and bf16 is cudaErrorNotSupported. */
#ifndef LS_CUDA_FLASH_H
#define LS_CUDA_FLASH_H

#include "compute/cuda/attention.h"

#define LS_FLASH_D_MAX 128

#ifdef __cplusplus
extern "C" {
#endif

/* cudaError_t of the launches; stream is a cudaStream_t. T >= 1, D <= LS_FLASH_D_MAX, arrays 16-byte aligned; backward's scratch is delta,
 * (B,H,T) floats. tf32: use one TF32 product instead of the three that emulate fp32, from 8.0 on. */
int flash_fwd_16bit(const cu_attention_job *j, ls_dtype dt, void *stream);
int flash_fwd_f32(const cu_attention_job *j, bool tf32, void *stream);
/* Forward of T new positions with the keys and values of a cache, which already has theirs (cu_attention_job.cache). */
int flash_fwd_cached(const cu_attention_job *j, ls_dtype dt, bool tf32, void *stream);
int flash_bwd_16bit(const cu_attention_job *j, ls_dtype dt, void *stream);
int flash_bwd_f32(const cu_attention_job *j, bool tf32, void *stream);
int flash_bwd_tf32(const cu_attention_job *j, void *stream); /* its half of that */

/* Backward by Hopper's own instructions (flash_bwd_wgmma.cu): D = 64, 16 bits, scratch of cu_flash_nbytes. warpgroups: 2 or 3 per block, which
 * changes the time alone (with dropout always 2). works: the card has wgmma and the code was compiled for it (90a). */
bool flash_wgmma_works(void);
int flash_bwd_wgmma(const cu_attention_job *j, ls_dtype dt, int warpgroups, void *stream);

#ifdef __cplusplus
}
#endif
#endif
