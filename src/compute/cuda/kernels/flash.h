/* flash.h - our own causal attention: O(T) memory, no atomics, any T and head sizes up to 128. Layouts as in compute.h.
 *
 *   forward            s_ij = scale q_i.k_j (j <= i),  p = softmax(s),  y_i = sum_j drop(p_ij) v_j,  lse_i = log sum_j exp(s_ij)
 *   backward           delta_i = dy_i.y_i,  dp_ij = drop'(dy_i.v_j),  ds_ij = p_ij (dp_ij - delta_i),  p_ij = exp(s_ij - lse_i)
 *                      dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i,  dv_j = sum_i drop(p_ij) dy_i
 *
 * Backward is two kernels, each of which owns what it writes: one has rows of queries (delta, dq), the other rows of keys (dk, dv). Both make
 * p again: seven products in place of five, and every sum has one order. */
#ifndef LS_CUDA_FLASH_H
#define LS_CUDA_FLASH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_FLASH_D_MAX 128

typedef struct flash_job {
    const void *qkv; /* (B,T,3,H,D)                              */
    void *y;         /* (B,T,H,D)                                */
    float *lse;      /* (B,H,T)                                  */
    const void *dy;  /* (B,T,H,D)                                */
    void *dqkv;      /* (B,T,3,H,D)                              */
    float *delta;    /* (B,H,T) working space of backward        */
    int B, T, H, D;
    float scale;        /* 1/sqrt(D)                                */
    float scale2;       /* … times log2(e)                          */
    float keep;         /* 1/(1-p)                                  */
    uint32_t threshold; /* p 2^32, rounded up; 0: no dropout        */
    int head, n_head;   /* of the whole model                       */
    uint64_t key;
    const void *at; /* ls_pass_head on the device, or NULL      */
    uint32_t unit, site;
} flash_job;

/* cudaError_t of the launches; stream is a cudaStream_t. T >= 1, D <= LS_FLASH_D_MAX, arrays 16-byte aligned. */
int flash_fwd_bf16(const flash_job *j, void *stream);
int flash_fwd_f16(const flash_job *j, void *stream);
int flash_fwd_f32(const flash_job *j, int tf32,
                  void *stream); /* tf32: one product in place of three that make up a float's */
int flash_bwd_bf16(const flash_job *j, void *stream);
int flash_bwd_f16(const flash_job *j, void *stream);
int flash_bwd_f32(const flash_job *j, int tf32, void *stream);
int flash_bwd_tf32(const flash_job *j, void *stream); /* its half of that */

#ifdef __cplusplus
}
#endif

#endif
