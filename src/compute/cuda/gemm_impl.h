/* gemm_impl.h - shared by gemm.c (which algorithm), gemm_tune.c (the fastest), cublaslt.c (a product, as the library's call and what follows it),
 * gemm_f32.c (our own kernel for float), and by the program that checks them on a device. */
#ifndef LS_CUDA_GEMM_IMPL_H
#define LS_CUDA_GEMM_IMPL_H

#include "compute/cuda/cuda_impl.h"
#include "compute/cuda/gemm_cache.h"
#include "compute/cuda/kernels/kernels.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

/* What the library can do inside the product. */
enum {
    GEMM_BIAS = 1,
    GEMM_GELU = 2, /* GELU and the value it is made from, or GELU's slope */
    GEMM_ADD = 4,
    GEMM_SUMS = 8,
    GEMM_ROWS = 16, /* (of a choice for few rows) every row is a product of its own */
};

enum {
    GEMM_MOST_ALGOS = 24,   /* that are asked for */
    GEMM_MOST_VARIANTS = 4, /* of what is fused   */
};

struct cu_gemm {
    cublasLtHandle_t lt;
    cudaStream_t stream;
    cu_gemm_cache *cache;
    bool tf32, deterministic;
    enum { TUNE_OFF, TUNE_ON, TUNE_AGAIN } tune;
    int only;    /* -1, or: fuse exactly this where it is wanted (perf/cuda_gemm) */
    bool tensor; /* float products are made by kernels/gemm_f32.cu */
    int n_timed, n_found, n_proposed, n_tensor;
    cu_gemm_choice last; /* of the last product, for those who ask */
};

/* Fails with the library's message, which names the product `p`. */
ls_status gemm_lt_fail(cublasStatus_t e, const cu_product *p, const char *what);

/* The sets of what the library may be asked to fuse that are to be tried, best first. p: leading dimensions filled in. */
int gemm_variants(const cu_gemm *g, const cu_product *p, uint32_t sets[GEMM_MOST_VARIANTS]);

bool gemm_aligned(const void *x); /* to 16 bytes */
/* Whether p has so few rows that they share an algorithm (compute.h, invariant 4). */
bool gemm_few_rows(const cu_product *p);

/* The library's algorithms for p with `fused` done inside, best guess first; the number. rows: each of few rows is a product of its own. */
int gemm_propose(cu_gemm *g, const cu_product *p, uint32_t fused, bool rows, cu_gemm_choice *out, int most);
/* Whether a choice (of a file) is one that this library takes for p. */
bool gemm_takes(cu_gemm *g, const cu_product *p, const cu_gemm_choice *c);
/* After the library's workspace: sums in flight, partial sums, fingerprints. */
static inline void *gemm_side(void *workspace)
{
    return (char *)workspace + CU_GEMM_LIBRARY_NBYTES;
}
/* Few rows share a choice: whether the library really starts it for one of them alone. Queues that row, into the side workspace. */
bool gemm_starts_alone(cu_gemm *g, const cu_product *p, const cu_gemm_choice *c, void *workspace);
/* Queues p as the choice says, and what the library does not do itself. *no (may be NULL): the library does not start it, and nothing was
 * queued. */
ls_status gemm_issue(cu_gemm *g, const cu_product *p, const cu_gemm_choice *c, void *workspace, bool *no);

/* Queues the sums of b over K, by a kernel of their own. */
ls_status gemm_issue_sums(cu_gemm *g, const cu_product *p, void *workspace);

/* Reads LS_GEMM_FP32. capability: of the device, 90 for 9.0. LS_E_CONFIG, LS_E_UNSUPPORTED. */
ls_status gemm_f32_open(cu_gemm *g, int capability);
/* Whether p is made by our own kernel; then gemm_f32_issue queues it, with what follows. */
bool gemm_f32_takes(const cu_gemm *g, const cu_product *p);
int gemm_f32_shares(const cu_product *p);
ls_status gemm_f32_issue(cu_gemm *g, const cu_product *p, void *workspace);

/* The fastest of all proposals, timed; LS_OK with *found false: there was no room to measure in. */
ls_status gemm_tune(cu_gemm *g, const cu_product *p, void *workspace, cu_gemm_choice *best, bool *found);

#endif
