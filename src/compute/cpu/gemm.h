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
/* Whether the kernel adds to C while it multiplies: then K may be cut at multiples of 32 into products that add to each other, with the same bits. */
bool gemm_runs_on(const gemm_kernel *k);
/* Rows of the classifier's products at a time, where one worker has the whole vocabulary. */
int64_t gemm_logit_rows(const gemm_kernel *k);
/* Whether A may be bf16 numbers (gemm_args.A16), which gemm_narrow makes. */
bool gemm_takes_bf16(const gemm_kernel *k);
/* Whether op(B) may be a bf16 copy of packed.h (gemm_args.B_panels), whose panels are multiplied where they are. The bits are those of B. */
bool gemm_takes_panels(const gemm_kernel *k);
/* y = x * by, rounded as the kernel rounds operands. y may be where x is. */
void gemm_narrow(const gemm_kernel *k, uint16_t *y, const float *x, int64_t n, float by);
/* i-th kernel compiled into this program (usable here or not), NULL past the end; usable tells which work on this CPU. */
const gemm_kernel *gemm_list(int i, bool *usable);

typedef struct gemm_args {
    bool ta, tb; /* A stored (K,M) when ta, B stored (N,K) when tb */
    int64_t M, N, K;
    const float *A, *B;
    const uint16_t *A16;  /* bf16 numbers in place of A, or NULL */
    const void *B_panels; /* op(B) as a bf16 copy of packed.h in place of B (gemm_takes_panels), or NULL */
    int64_t lda, ldb, ldc;
    float *C;
    const float *bias; /* (N) added once to every row, or NULL */
    bool acc;          /* beta = 1 */
} gemm_args;

/* Bytes of scratch (packed panels) that gemm_run needs at most for shapes up to these with n_thread threads. */
size_t gemm_scratch(const gemm_kernel *k, int n_thread);

/* Uses n_thread OpenMP threads; call from serial code. scratch is 64-byte aligned. */
void gemm_run(const gemm_kernel *k, const gemm_args *a, int n_thread, void *scratch);

/* Runs the kernel's multiply instruction on registers alone, on n_thread threads at once, for so many seconds; returns its flop. 0 at once: not known
 * for this kernel. A CPU may slow the instruction down after a burst of it. */
double gemm_spin(const gemm_kernel *k, int n_thread, double seconds);

/* The CBLAS used by the kernel `blas`, for benchmarks and doctor: its name and version, and how many threads of its own it uses
 * when called directly (gemm_run sets 1). */
const char *gemm_blas_describe(void);
void gemm_blas_threads(int n_thread);
/* Ends the threads that the library made when it was loaded: idle, they spin for tens of milliseconds, on cores and CPU time that are counted as
 * a run's. A later call of the library makes them again. */
void gemm_blas_rest(void);

/* The products of one training step of GPT-2 on R = B*T rows: four linear layers in each of L blocks (forward, gradient of the
 * input, gradient of the weights), and the classifier in chunks of rows, the last of which may have fewer. Attention's own small products are not
 * among them. */
typedef struct gemm_shape {
    const char *what;
    bool ta, tb, acc;
    int64_t M, N, K;
    int64_t count; /* calls in a step */
} gemm_shape;

enum { GEMM_STEP_SHAPES = 18 }; /* at most: 15 where all chunks are equal */
int gemm_step_shapes(gemm_shape out[GEMM_STEP_SHAPES], int64_t R, int64_t C, int64_t L, int64_t V, int64_t chunk);

#endif
