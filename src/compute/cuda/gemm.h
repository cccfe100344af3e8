/* gemm.h - products of row-major matrices on a stream, with what can be fused to them.
 *
 *   out (M,N) = epilogue( op(a) op(b) + bias ) + add         a (M,K) or, transposed, (K,M);  b (K,N) or (N,K)
 *
 * gemm.c and cublaslt.c make them with cuBLASLt, algorithms chosen by timing once for a shape and kept (in this process, and in a file of the
 * user's cache folder); float products on Hopper are made by our own kernel (gemm_f32.c); the emulator of the tests implements the library's functions with plain loops (tests/fake_cuda/cublaslt.cpp). */
#ifndef LS_CUDA_GEMM_H
#define LS_CUDA_GEMM_H

#include "compute/compute.h"
#include "core/buf.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct cu_gemm cu_gemm;

typedef enum cu_epilogue {
    CU_PLAIN,
    CU_GELU,  /* aux = the value, out = gelu(aux), tanh form. Both: out is of dt, dense, not aux, not add */
    CU_DGELU, /* out = value * gelu'(aux), tanh form                                                 */
} cu_epilogue;

/* Operands in 8 bits, both along K (a not transposed, b transposed): the products of Hopper. */
typedef struct cu_fp8 {
    bool on;
    ls_fp8 a_form, b_form;
    const float *a_factor, *b_factor; /* on the device */
    bool fast;
} cu_fp8;

typedef struct cu_product {
    void *out;
    const void *a, *b;
    int64_t M, N, K;
    int64_t lda, ldb, ldo; /* elements from one row to the next as they are; 0: dense */
    bool ta, tb;
    ls_dtype dt;      /* of a, b, bias and aux; LS_F32 is TF32 where the handle was opened so */
    cu_fp8 fp8;       /* on: a and b have their own types             */
    ls_dtype out_dt;  /* dt, or LS_F32                                    */
    const void *bias; /* (N) or NULL                                     */
    const void *add;  /* (M,N) of out's type and place, may be out; NULL */
    void *aux;        /* (M,N) dense, of dt                              */
    cu_epilogue epilogue;
    float
        *b_sums; /* (N): sums of b over K (a bias gradient, where b is dy): b dense, not transposed; NULL: not wanted */
    bool b_sums_add; /* added to */
} cu_product;

/* stream: cudaStream_t. workspace: CU_GEMM_NBYTES of device memory (scratch.h). */
ls_status cu_gemm_open(cu_gemm **out, void *stream, bool tf32, bool deterministic);
void cu_gemm_close(cu_gemm **g);
ls_status cu_gemm_run(cu_gemm *g, const cu_product *given, void *workspace);
/* dt: the type of the products to describe. */
void cu_gemm_describe(const cu_gemm *g, ls_dtype dt, char *words, size_t room);

#endif
