/* gemm_f32.c - float products on the tensor cores of Hopper GPUs (kernels/gemm_f32.cu) in place of the library's.
 * LS_GEMM_FP32=library turns it off.
 *
 * Which products   Those of float matrices that are not to be made in TF32, of more than a few rows, with operands that the copy engine can
 *                  read (aligned to 16 bytes). All others are the library's. It depends on the shape and on alignment alone, and so does
 *                  the number of shares: every worker computes a product in the same way, without a measurement and without a file.
 * Shares           An estimate of the time decides: the blocks of a GPU with 132 multiprocessors (H200; others use the same shares, so that
 *                  results do not depend on it), each a number of stages, and the addition of partial sums. The constants are close to an
 *                  H200's times. */
#include "compute/cuda/gemm_impl.h"
#include "compute/cuda/kernels/gemm_f32.h"

#include <stdlib.h>
#include <string.h>

enum { PROCESSORS = 132, MOST_SHARES = 32, MOST_SIDE = 1 << 30 };

#define STAGE_US     1.8 /* 192 x 128 x 32 */
#define BLOCK_STAGES 3.0 /* what an item costs beside its stages: its end */
#define BYTES_PER_US 3.5e6
#define LAUNCH_US    3.0

ls_status gemm_f32_open(cu_gemm *g, int capability)
{
    const char *how = getenv("LS_GEMM_FP32");
    const bool works = cu_gemm_f32_works();
    if (how && !*how) how = NULL;
#ifdef LS_EMU
    if (!how) how = "library"; /* an emulated tile takes long: tests that mean it ask for it */
#endif
    if (!how) {
        g->tensor = works && !g->tf32;
        return LS_OK;
    }
    if (!strcmp(how, "library")) return LS_OK;
    if (strcmp(how, "tensor")) return ls_fail(LS_E_CONFIG, "LS_GEMM_FP32=%s is not known; use library or tensor", how);
    if (g->tf32)
        return ls_fail(LS_E_CONFIG,
                       "LS_GEMM_FP32=tensor computes in fp32, but --tf32 asks for TF32; leave one of them out");
    if (!works)
        return ls_fail(LS_E_UNSUPPORTED,
                       "LS_GEMM_FP32=tensor needs a Hopper GPU (compute capability 9.0; this one has %d.%d) and a "
                       "build for it (LS_CUDA_ARCH with 90a)",
                       capability / 10, capability % 10);
    g->tensor = true;
    return LS_OK;
}

bool gemm_f32_takes(const cu_gemm *g, const cu_product *p)
{
    return g->tensor && !g->tf32 && p->dt == LS_F32 && p->out_dt == LS_F32 && !gemm_few_rows(p) && p->K > 0 &&
           p->M < MOST_SIDE && p->N < MOST_SIDE && p->K < MOST_SIDE && gemm_aligned(p->a) && gemm_aligned(p->b) &&
           p->lda % 4 == 0 && p->ldb % 4 == 0;
}

static size_t part_nbytes(const cu_product *p, int64_t shares)
{
    return (size_t)(shares * p->M * ((p->N + 3) / 4 * 4)) * sizeof(float);
}

/* Of so many shares with whole stages those that have any. */
static int64_t not_empty(int64_t stages, int64_t shares)
{
    const int64_t each = (stages + shares - 1) / shares;
    return (stages + each - 1) / each;
}

int gemm_f32_shares(const cu_product *p)
{
    const int64_t tiles = cu_pieces(p->M, CU_F32_BLOCK_M) * cu_pieces(p->N, CU_F32_BLOCK_N);
    const int64_t stages = cu_pieces(p->K, CU_F32_BLOCK_K);
    double best = 0;
    int64_t chosen = 1;
    for (int64_t s = 1; s <= MOST_SHARES && (s == 1 || part_nbytes(p, s) <= CU_GEMM_LIBRARY_NBYTES); s++) {
        if (not_empty(stages, s) != s) continue;
        const int64_t rounds = (tiles * s + PROCESSORS - 1) / PROCESSORS, each = (stages + s - 1) / s;
        double usec = (double)rounds * ((double)each + BLOCK_STAGES) * STAGE_US;
        if (s > 1) usec += LAUNCH_US + 2 * (double)part_nbytes(p, s) / BYTES_PER_US;
        if (s > 1 && usec >= best) continue;
        best = usec;
        chosen = s;
    }
    return (int)chosen;
}

ls_status gemm_f32_issue(cu_gemm *g, const cu_product *p, void *workspace)
{
    const int shares = gemm_f32_shares(p);
    const cu_f32_job j = {.a = p->a,
                          .b = p->b,
                          .out = p->out,
                          .bias = p->bias,
                          .add = p->add,
                          .aux = p->epilogue == CU_PLAIN ? NULL : p->aux,
                          .part = shares > 1 ? workspace : NULL,
                          .lda = p->lda,
                          .ldb = p->ldb,
                          .ldo = p->ldo,
                          .M = (int)p->M,
                          .N = (int)p->N,
                          .K = (int)p->K,
                          .shares = shares,
                          .gelu = p->epilogue == CU_GELU    ? CU_F32_GELU
                                  : p->epilogue == CU_DGELU ? CU_F32_DGELU
                                                            : CU_F32_PLAIN};
    CU_TRY(cu_gemm_f32(g->stream, &j, p->ta, p->tb));
    g->n_tensor++;
    return p->b_sums ? gemm_issue_sums(g, p, workspace) : LS_OK;
}
