/* gemm_f32.h - the launcher of float products on tensor cores (gemm_f32.cu). */
#ifndef LS_CUDA_KERNELS_GEMM_F32_H
#define LS_CUDA_KERNELS_GEMM_F32_H

#include <stdbool.h>
#include <stdint.h>

#define CU_F32_BLOCK_M 192
#define CU_F32_BLOCK_N 128
#define CU_F32_BLOCK_K 32 /* a share of K is a multiple of it                   */

/* Along K, what a tensor core sums by itself in a share of that length (decision 24). */
static inline int cu_f32_run(int64_t share)
{
    return share < 4096 ? 16 : share < 24576 ? 32 : 64;
}

enum { CU_F32_PLAIN, CU_F32_GELU, CU_F32_DGELU };

typedef struct cu_f32_job {
    const float *a, *b; /* aligned to 16 bytes, lda and ldb multiples of 4       */
    float *out;         /* (M,N), ldo apart                                      */
    const float *bias;  /* (N) or NULL                                           */
    const float *add;   /* as out, may be out; NULL                              */
    float *aux;         /* (M,N) dense; NULL without gelu                        */
    float *part;        /* shares x M x (N up to a multiple of 4); NULL: 1 share */
    int64_t lda, ldb, ldo;
    int M, N, K, gelu;
    int shares;                             /* of K, none of them empty */
    int stages, share, run, part_ld, packs; /* set by the launcher      */
} cu_f32_job;

#ifdef __cplusplus
extern "C" {
#endif

/* Hopper only: cu_gemm_f32_works. Returns a cudaError_t. */
int cu_gemm_f32(void *stream, const cu_f32_job *job, bool ta, bool tb);
bool cu_gemm_f32_works(void); /* compiled for this device */

#ifdef __cplusplus
}
#endif
#endif
