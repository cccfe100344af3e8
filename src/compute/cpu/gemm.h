/* gemm.h - matrix products for the CPU backend, with fp32 results.
 *
 *   C (M,N) = op(A) op(B) + beta C,   beta 0 or 1,   op = as stored or transposed,   row-major with leading dimensions
 *
 * The bits of C depend on the operands, the shapes and the kernel alone: every element is a sum over k in one order (blocks
 * of a fixed kc, inside a block ascending), whatever the number of threads. Kernels:
 *
 *   neon      fp32, 128-bit                      avx2, avx512   fp32
 *   amx       fp32 results from three bf16 parts of each operand (six products), AMX tiles
 *   blas      CBLAS, called on fixed tiles from our own threads
 *   plain     C loops, for anything else
 *
 *   bfmmla, avx512-bf16, amx-bf16   fp32 operands are rounded to bf16 (nearest even) while they are packed; sums are fp32
 *   ...-emulated                    the same with the arithmetic of the instructions, on any CPU (gemm_bf16_emulate.h)
 */
#ifndef LS_COMPUTE_CPU_GEMM_H
#define LS_COMPUTE_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gemm_kernel gemm_kernel;

/* The kernel of that name for operands in bf16 or fp32; NULL: the one named by the environment variable LS_GEMM, else the best of this CPU.
 * NULL if the name is unknown, is one of the other type, or the CPU lacks it. */
const gemm_kernel *gemm_pick(bool bf16, const char *name);
/* The best kernel of this CPU, whatever LS_GEMM says. */
const gemm_kernel *gemm_best(bool bf16);
const char *gemm_name(const gemm_kernel *k);
bool gemm_is_bf16(const gemm_kernel *k);
bool gemm_is_emulated(const gemm_kernel *k);
/* i-th kernel compiled into this program (usable here or not), NULL past the end; usable tells which work on this CPU. */
const gemm_kernel *gemm_list(int i, bool *usable);

typedef struct gemm_args {
    bool ta, tb; /* A stored (K,M) when ta, B stored (N,K) when tb */
    int64_t M, N, K;
    const float *A, *B;
    int64_t lda, ldb, ldc;
    float *C;
    const float *bias; /* (N) added once to every row, or NULL */
    bool acc;          /* beta = 1 */
    void *
        keep; /* (optional) gemm_keep_nbytes bytes, 64-byte aligned, for all of packed B; kernels without panels ignore it */
    bool kept; /* packed B is in it, from a product with the same B, tb, N, K, kernel and n_thread */
} gemm_args;

/* Bytes of scratch (packed panels) that gemm_run needs at most for shapes up to these with n_thread threads. */
size_t gemm_scratch(const gemm_kernel *k, int n_thread);

/* Bytes of gemm_args.keep. */
size_t gemm_keep_nbytes(const gemm_kernel *k, int n_thread, int64_t N, int64_t K);

/* Uses n_thread OpenMP threads; call from serial code. scratch is 64-byte aligned. */
void gemm_run(const gemm_kernel *k, const gemm_args *a, int n_thread, void *scratch);

/* FLOP/s of the kernel's multiply instruction on registers alone, on n_thread threads at once; 0: not known for this kernel. Takes 0.2 s. */
double gemm_peak(const gemm_kernel *k, int n_thread);

/* The CBLAS used by the kernel `blas`, for benchmarks and doctor: its name and version, and how many threads of its own it uses
 * when called directly (gemm_run sets 1). */
const char *gemm_blas_describe(void);
void gemm_blas_threads(int n_thread);

/* The products of one training step of GPT-2 on R = B*T rows: four linear layers in each of L blocks (forward, gradient of the
 * input, gradient of the weights), and the classifier in chunks of rows. Attention's own small products are not among them. */
typedef struct gemm_shape {
    const char *what;
    bool ta, tb, acc;
    int64_t M, N, K;
    int64_t count; /* calls in a step */
} gemm_shape;

enum { GEMM_STEP_SHAPES = 15 };
void gemm_step_shapes(gemm_shape out[GEMM_STEP_SHAPES], int64_t R, int64_t C, int64_t L, int64_t V, int64_t chunk);

#endif
