/* cublaslt.c - matrix products with cuBLASLt: the description of a product, the algorithms that the library proposes, and the call.
 *
 * Row-major products as the library's column-major ones: an (M,N) row-major matrix is an (N,M) column-major one, so
 *     out = op(a) op(b)      is asked for as      out' = op(b)' op(a)',   A = b, B = a, m = N, n = M, k = K
 * and a matrix is transposed for the library exactly where it is for us. A bias of N is then one of the library's rows (EPILOGUE_BIAS), and
 * sums of op(b) over K are the gradient of a bias "of A" (BGRADA).
 *
 * Fused      bias; GELU with its argument kept; GELU's slope; `add` as beta = 1 (in place or not); sums. What the library refuses for a
 *            shape (its heuristic proposes nothing) is made by kernels after the product, and where it offers both, the faster of the two
 *            ways is taken: its GELU epilogues are not always kernels of one pass. */
#include "compute/cuda/gemm_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- names ------------------------------------------------------------------------------------------------------- */

ls_status gemm_lt_fail(cublasStatus_t e, const cu_product *p, const char *what)
{
    return ls_fail(e == CUBLAS_STATUS_ALLOC_FAILED ? LS_E_NOMEM : LS_E_DEVICE,
                   "cuBLASLt, %s of a product M %lld, N %lld, K %lld in %s: %s", what, (long long)p->M, (long long)p->N,
                   (long long)p->K, p->fp8.on ? "fp8" : ls_dtype_word(p->dt), cublasLtGetStatusString(e));
}

/* ---- a product as the library sees it ---------------------------------------------------------------------------- */

typedef struct lt_call {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t a, b, d; /* C has the layout of D */
    void *out;
    const void *add; /* NULL: beta = 0 */
} lt_call;

static cudaDataType_t lt_type(ls_dtype dt)
{
    return dt == LS_BF16 ? CUDA_R_16BF : dt == LS_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static cudaDataType_t lt_fp8_type(ls_fp8 form)
{
    return form == LS_E5M2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

static cublasLtEpilogue_t lt_epilogue(const cu_product *p, uint32_t fused)
{
    const bool bias = (fused & GEMM_BIAS) != 0;
    if (fused & GEMM_SUMS) return CUBLASLT_EPILOGUE_BGRADA;
    if (fused & GEMM_GELU) {
        if (p->epilogue == CU_DGELU) return CUBLASLT_EPILOGUE_DGELU;
        return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    }
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Whether the product itself goes to aux, and GELU from there to out. */
static bool through_aux(const cu_product *p, uint32_t fused)
{
    return p->epilogue == CU_GELU && !(fused & GEMM_GELU);
}

static cublasStatus_t set(lt_call *c, cublasLtMatmulDescAttributes_t what, const void *value, size_t nbytes)
{
    return cublasLtMatmulDescSetAttribute(&c->op, what, value, nbytes);
}

/* The library's A is our b. Fast: Hopper's tensor cores keep about 14 bits of a sum while they add up K; otherwise their sums are added in
 * fp32 at short intervals, which costs time. */
static cublasStatus_t lt_describe_fp8(const cu_fp8 *f, lt_call *c)
{
    const int8_t fast = f->fast;
    cublasStatus_t e = set(c, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &f->b_factor, sizeof f->b_factor);
    if (!e) e = set(c, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &f->a_factor, sizeof f->a_factor);
    if (!e) e = set(c, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    return e;
}

/* sums: where the sums go if they are fused. */
static cublasStatus_t lt_describe(const cu_gemm *g, const cu_product *p, uint32_t fused, float *sums, lt_call *c)
{
    const cublasLtEpilogue_t epilogue = lt_epilogue(p, fused);
    const cublasComputeType_t compute = p->dt == LS_F32 && g->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const cudaDataType_t dt = lt_type(p->dt), in_a = p->fp8.on ? lt_fp8_type(p->fp8.a_form) : dt,
                         in_b = p->fp8.on ? lt_fp8_type(p->fp8.b_form) : dt;
    const bool aside = through_aux(p, fused);
    const cublasOperation_t opa = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N, opb = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t K = (uint64_t)p->K, M = (uint64_t)p->M, N = (uint64_t)p->N;
    const int64_t aux_ld = p->N;
    cublasStatus_t e = cublasLtMatmulDescInit(&c->op, compute, CUDA_R_32F);
    if (!e) e = set(c, CUBLASLT_MATMUL_DESC_TRANSA, &opa, sizeof opa);
    if (!e) e = set(c, CUBLASLT_MATMUL_DESC_TRANSB, &opb, sizeof opb);
    if (!e) e = set(c, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    /* bias, its gradient and aux have the result's type, which is the library's default */
    if (!e && fused & GEMM_BIAS) e = set(c, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
    if (!e && fused & GEMM_SUMS) e = set(c, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &sums, sizeof sums);
    if (!e && fused & GEMM_GELU) {
        e = set(c, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->aux, sizeof p->aux);
        if (!e) e = set(c, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld);
    }
    if (!e && p->fp8.on) e = lt_describe_fp8(&p->fp8, c);
    if (!e) e = cublasLtMatrixLayoutInit(&c->a, in_b, p->tb ? K : N, p->tb ? N : K, p->ldb);
    if (!e) e = cublasLtMatrixLayoutInit(&c->b, in_a, p->ta ? M : K, p->ta ? K : M, p->lda);
    if (!e) e = cublasLtMatrixLayoutInit(&c->d, aside ? dt : lt_type(p->out_dt), N, M, aside ? aux_ld : p->ldo);
    c->out = aside ? p->aux : p->out;
    c->add = fused & GEMM_ADD ? p->add : NULL;
    return e;
}

/* ---- what can be fused -------------------------------------------------------------------------------------------- */

bool gemm_aligned(const void *x)
{
    return ((uintptr_t)x & 15) == 0;
}

static uint32_t wanted(const cu_product *p)
{
    return (p->bias ? GEMM_BIAS : 0u) | (p->epilogue != CU_PLAIN ? GEMM_GELU : 0u) | (p->add ? GEMM_ADD : 0u) |
           (p->b_sums ? GEMM_SUMS : 0u);
}

/* The library adds before it does GELU, wants one type for bias and result, and has one epilogue at a time beside the bias. */
static uint32_t possible(const cu_product *p)
{
    uint32_t f = wanted(p);
    if (p->out_dt != p->dt) f &= ~(uint32_t)(GEMM_BIAS | GEMM_GELU);
    if (p->epilogue == CU_DGELU && p->bias) f &= ~(uint32_t)(GEMM_BIAS | GEMM_GELU);
    if (p->epilogue == CU_GELU && p->bias && !(f & GEMM_BIAS)) f &= ~(uint32_t)GEMM_GELU;
    if (p->epilogue != CU_PLAIN) f &= ~(uint32_t)GEMM_ADD;
    if (p->N % 8 || !gemm_aligned(p->aux)) f &= ~(uint32_t)GEMM_GELU;
    if (p->out_dt != LS_F32 || f & (GEMM_BIAS | GEMM_GELU)) f &= ~(uint32_t)GEMM_SUMS;
    return f;
}

int gemm_variants(const cu_gemm *g, const cu_product *p, uint32_t sets[GEMM_MOST_VARIANTS])
{
    const uint32_t all = possible(p) & ~(uint32_t)GEMM_ADD; /* with and without it the choice is the same */
    int n = 0;
    if (g->only >= 0) {
        sets[0] = all & (uint32_t)g->only;
        return 1;
    }
    sets[n++] = all;
    if (all & (GEMM_SUMS | GEMM_GELU)) sets[n++] = all & GEMM_BIAS;
    if (all & GEMM_BIAS) sets[n++] = 0;
    return n;
}

/* ---- what the library proposes ------------------------------------------------------------------------------------ */

/* Only where neither strides nor alignment depend on the rows. */
bool gemm_few_rows(const cu_product *p)
{
    return p->M <= LS_FEW_ROWS && !p->ta && !p->b_sums && !p->fp8.on;
}

/* Sums cut over K are added in order, in float; and the result may share memory with the addend. */
static bool orderly(const cu_gemm *g, const cu_product *p, const cublasLtMatmulAlgo_t *algo)
{
    const bool apart = p->add && p->add != p->out && possible(p) & GEMM_ADD;
    uint32_t scheme = 0;
    int32_t beside = 0;
    size_t n = 0;
    if (apart && (cublasLtMatmulAlgoCapGetAttribute(algo, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT, &beside,
                                                    sizeof beside, &n) ||
                  !beside))
        return false;
    if (cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &n))
        return false;
    if (scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) return true;
    return scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE && p->out_dt == LS_F32 && !g->deterministic;
}

/* Bytes that x, and rows `ld` elements apart from it on, are multiples of: 16, more than that nothing asks for, or one element; the key knows
 * no more. */
static uint32_t least(const void *x, int64_t ld, ls_dtype dt)
{
    const size_t size = ls_dtype_nbytes(dt);
    return gemm_aligned(x) && (size_t)ld * size % 16 == 0 ? 16 : (uint32_t)size;
}

static cublasStatus_t prefer(const cu_gemm *g, const cu_product *p, cublasLtMatmulPreferenceOpaque_t *pref)
{
    const uint64_t room = CU_GEMM_LIBRARY_NBYTES;
    const bool few = gemm_few_rows(p); /* any row may be a product of its own */
    const uint32_t schemes =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
        (g->deterministic || p->out_dt != LS_F32 ? 0u : (uint32_t)CUBLASLT_REDUCTION_SCHEME_INPLACE);
    const uint32_t a = least(p->a, few ? p->lda : 0, p->dt), b = least(p->b, 0, p->dt);
    const bool even =
        gemm_aligned(p->out) && gemm_aligned(p->add) && gemm_aligned(p->aux); /* aux: the result may go through it */
    const uint32_t to = even ? least(p->out, few ? p->ldo : 0, p->out_dt) : (uint32_t)ls_dtype_nbytes(p->out_dt);
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t nbytes;
    } wish[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room},
                {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof b},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof a},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &to, sizeof to},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &to, sizeof to}};
    cublasStatus_t e = cublasLtMatmulPreferenceInit(pref);
    for (size_t i = 0; !e && i < sizeof wish / sizeof wish[0]; i++)
        e = cublasLtMatmulPreferenceSetAttribute(pref, wish[i].what, wish[i].value, wish[i].nbytes);
    return e;
}

/* Whether the library supports this algorithm for p (cublasLtMatmulAlgoCheck). */
static bool accepts(cu_gemm *g, const cu_product *p, uint32_t fused, const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t r;
    lt_call c;
    if (lt_describe(g, p, fused, p->b_sums, &c)) return false;
    return !cublasLtMatmulAlgoCheck(g->lt, &c.op, &c.a, &c.b, &c.d, &c.d, algo, &r) &&
           r.workspaceSize <= CU_GEMM_LIBRARY_NBYTES && orderly(g, p, algo);
}

static bool accepts_few(cu_gemm *g, const cu_product *p, uint32_t fused, const cublasLtMatmulAlgo_t *algo)
{
    cu_product q = *p;
    bool ok = true;
    for (q.M = 1; ok && q.M <= LS_FEW_ROWS; q.M++) ok = accepts(g, &q, fused, algo);
    return ok;
}

/* Proposals for p as it is; few: of them those that are for every number of few rows. */
static int ask(cu_gemm *g, const cu_product *p, uint32_t fused, bool few, cu_gemm_choice *out, int most)
{
    cublasLtMatmulHeuristicResult_t found[GEMM_MOST_ALGOS];
    cublasLtMatmulPreferenceOpaque_t pref;
    lt_call c;
    int n_found = 0, n = 0;
    if (lt_describe(g, p, fused, p->b_sums, &c) || prefer(g, p, &pref) ||
        cublasLtMatmulAlgoGetHeuristic(g->lt, &c.op, &c.a, &c.b, &c.d, &c.d, &pref, GEMM_MOST_ALGOS, found, &n_found))
        return 0;
    for (int i = 0; i < n_found && n < most; i++) {
        if (found[i].state || !orderly(g, p, &found[i].algo)) continue;
        if (few && !accepts_few(g, p, fused, &found[i].algo)) continue;
        out[n] = (cu_gemm_choice){.workspace = found[i].workspaceSize, .fused = fused};
        memcpy(out[n].algo, &found[i].algo, sizeof out[n].algo);
        n++;
    }
    return n;
}

int gemm_propose(cu_gemm *g, const cu_product *p, uint32_t fused, bool rows, cu_gemm_choice *out, int most)
{
    cu_product q = *p;
    int n = 0;
    if (rows) {
        q.M = 1;
        n = ask(g, &q, fused, false, out, most);
        for (int i = 0; i < n; i++) out[i].fused |= GEMM_ROWS;
        return n;
    }
    if (!gemm_few_rows(p)) return ask(g, p, fused, false, out, most);
    for (q.M = LS_FEW_ROWS; !n && q.M > 0; q.M--) n = ask(g, &q, fused, true, out, most);
    return n;
}

bool gemm_takes(cu_gemm *g, const cu_product *p, const cu_gemm_choice *choice)
{
    const bool rows = (choice->fused & GEMM_ROWS) != 0;
    const uint32_t fused = choice->fused & ~(uint32_t)GEMM_ROWS;
    cublasLtMatmulAlgo_t algo;
    cu_product q = *p;
    memcpy(&algo, choice->algo, sizeof algo);
    if (fused & ~possible(p) || (rows && !gemm_few_rows(p))) return false;
    if (gemm_few_rows(p) && !rows) return accepts_few(g, p, fused, &algo);
    if (rows) q.M = 1;
    return accepts(g, &q, fused, &algo);
}

/* ---- carrying out ------------------------------------------------------------------------------------------------- */

ls_status gemm_issue_sums(cu_gemm *g, const cu_product *p, void *workspace)
{
    if (p->tb || p->ldb != p->N) return ls_fail(LS_E_INTERNAL, "column sums of b need b dense and not transposed");
    int64_t rows = p->K; /* at a time */
    while (rows > 1 && cu_sums_nbytes(rows, p->N) > CU_GEMM_SIDE_NBYTES) rows = (rows + 1) / 2;
    for (int64_t k = 0; k < p->K; k += rows) {
        const int64_t n = p->K - k < rows ? p->K - k : rows;
        const void *from = (const char *)p->b + (size_t)(k * p->N) * ls_dtype_nbytes(p->dt);
        CU_TRY(
            cu_column_sums(g->stream, p->dt, p->b_sums, from, n, p->N, p->b_sums_add || k > 0, gemm_side(workspace)));
    }
    return LS_OK;
}

/* What follows the product: bias, GELU, add, sums, as far as they were not fused. */
static ls_status issue_rest(cu_gemm *g, const cu_product *p, uint32_t fused, bool sums_aside, void *workspace)
{
    const uint32_t rest = wanted(p) & ~fused;
    const int64_t n = p->M * p->N;
    const bool aside = through_aux(p, fused);
    if (rest & GEMM_BIAS)
        CU_TRY(cu_gemm_bias(g->stream, aside ? p->dt : p->out_dt, aside ? p->aux : p->out, p->dt, p->bias, p->M, p->N,
                            aside ? p->N : p->ldo));
    if (rest & GEMM_GELU && p->epilogue == CU_GELU)
        CU_TRY(cu_gelu_fwd(g->stream, p->dt, p->out, p->aux, n, LS_GELU_TANH));
    if (rest & GEMM_GELU && p->epilogue == CU_DGELU)
        CU_TRY(cu_gelu_bwd(g->stream, p->dt, p->out, p->out, p->aux, n, LS_GELU_TANH));
    if (rest & GEMM_ADD) CU_TRY(cu_add(g->stream, p->out_dt, p->out, p->out, p->add, n));
    if (rest & GEMM_SUMS) LS_TRY(gemm_issue_sums(g, p, workspace));
    if (sums_aside) CU_TRY(cu_add(g->stream, LS_F32, p->b_sums, p->b_sums, gemm_side(workspace), p->N));
    return LS_OK;
}

/* The library's part of p. */
static cublasStatus_t start(cu_gemm *g, const cu_product *p, uint32_t fused, float *sums, const cu_gemm_choice *choice,
                            void *workspace)
{
    const float one = 1, zero = 0;
    cublasLtMatmulAlgo_t algo;
    lt_call c;
    memcpy(&algo, choice->algo, sizeof algo);
    const cublasStatus_t e = lt_describe(g, p, fused, sums, &c);
    if (e) return e;
    return cublasLtMatmul(g->lt, &c.op, &one, p->b, &c.a, p->a, &c.b, c.add ? &one : &zero, c.add ? c.add : c.out, &c.d,
                          c.out, &c.d, &algo, workspace, CU_GEMM_LIBRARY_NBYTES, g->stream);
}

/* Not this algorithm; nothing was queued. */
static bool refused(cublasStatus_t e)
{
    return e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_INVALID_VALUE;
}

static const void *row_at(const void *x, int64_t n, ls_dtype dt)
{
    return x ? (const char *)x + (size_t)n * ls_dtype_nbytes(dt) : NULL;
}

static cublasStatus_t start_rows(cu_gemm *g, const cu_product *p, uint32_t fused, const cu_gemm_choice *choice,
                                 void *workspace)
{
    for (int64_t m = 0; m < p->M; m++) {
        cu_product q = *p;
        q.M = 1;
        q.a = row_at(p->a, m * p->lda, p->dt);
        q.out = (void *)(uintptr_t)row_at(p->out, m * p->ldo, p->out_dt);
        q.add = row_at(p->add, m * p->ldo, p->out_dt);
        q.aux = (void *)(uintptr_t)row_at(p->aux, m * p->N, p->dt);
        const cublasStatus_t e = start(g, &q, fused, NULL, choice, workspace);
        if (e) return m ? CUBLAS_STATUS_EXECUTION_FAILED : e; /* some are queued: nobody may try again */
    }
    return CUBLAS_STATUS_SUCCESS;
}

bool gemm_starts_alone(cu_gemm *g, const cu_product *p, const cu_gemm_choice *choice, void *workspace)
{
    cu_product q = *p;
    const size_t nbytes = (size_t)p->N * ls_dtype_nbytes(p->out_dt);
    if (!gemm_few_rows(p) || p->M == 1 || nbytes > CU_GEMM_SIDE_NBYTES) return true;
    q.M = 1;
    q.add = NULL;
    q.out = gemm_side(workspace); /* aux is made again with the product */
    return !start(g, &q, choice->fused, NULL, choice, workspace);
}

ls_status gemm_issue(cu_gemm *g, const cu_product *p, const cu_gemm_choice *choice, void *workspace, bool *no)
{
    const uint32_t fused = choice->fused | (possible(p) & GEMM_ADD);
    const bool sums_aside = fused & GEMM_SUMS && p->b_sums_add, rows = (fused & GEMM_ROWS) != 0;
    float *sums = sums_aside ? gemm_side(workspace) : p->b_sums;
    cublasStatus_t e = rows ? CUBLAS_STATUS_NOT_SUPPORTED : start(g, p, fused, sums, choice, workspace);
    if (refused(e) && gemm_few_rows(p)) e = start_rows(g, p, fused, choice, workspace);
    if (no) *no = refused(e);
    if (e) return gemm_lt_fail(e, p, "the start");
    return issue_rest(g, p, fused, sums_aside, workspace);
}
