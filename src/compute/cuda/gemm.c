/* gemm.c - gemm.h: which algorithm of cuBLASLt a product gets (cublaslt.c carries it out, gemm_tune.c measures, gemm_cache.h remembers).
 *
 * Choosing   The first call of a shape measures; the table and the file remember. The key holds everything the choice may depend on: sizes,
 *            strides, transposes, types, what is fused, 16-byte alignment, TF32, determinism. It does not hold `add`: a product that is
 *            added uses the algorithm of the product alone, so that (product, then add) and (product added to) have equal bits.
 *            LS_GEMM_TUNE=0: the library's first proposal, always; =again: what the file says is measured anew (not in deterministic mode:
 *            each worker would find its own). While the stream is captured nothing is measured: what is known is used, else the first
 *            proposal, until a call outside of a capture measures.
 *
 *            On Hopper gemm_f32.c makes most float products itself; none of this is about them.
 *
 * Few rows   Up to LS_FEW_ROWS rows have one key and one algorithm, so that each is computed as one alone is (compute.h, invariant 4): one
 *            that the library takes for every such number of rows. Where it has none (odd sizes), rows are products of their own
 *            (GEMM_ROWS). The library may accept an algorithm and still not start it: one that does not start for one row alone is not
 *            chosen, and a number of rows that it does not start for is made row by row.
 *
 * Determinism (opened so)
 *   1. one shape, one algorithm, on all workers of a host: the first choice for a shape in the file (a first proposal of a capture, too) is
 *      used by all, now and in later runs. Workers that meet a new shape together all measure it, without the lock: a measurement waits for
 *      work queued before it, maybe a collective that waits for a worker that would wait for the lock. Without a writable cache folder
 *      nobody measures. Workers on several hosts need one folder, copies of one file, or LS_GEMM_TUNE=0;
 *   2. no atomics: K is cut only with partial sums kept in float in the workspace and added in order (REDUCTION_SCHEME_COMPUTE_TYPE).
 *      The in-place scheme would add parts to `out` one by one: other bits when `out` was not empty;
 *   3. a candidate is used only if two runs of it give equal bits, and, for float results, if adding gives those of an addition. */
#include "compute/cuda/gemm_impl.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCK_SECONDS 60.0

/* ---- choosing ----------------------------------------------------------------------------------------------------- */

static bool odd(const void *x)
{
    return x && !gemm_aligned(x);
}

static cu_gemm_key key_of(const cu_gemm *g, const cu_product *p)
{
    const uint64_t bits[] = {p->ta,
                             p->tb,
                             p->dt == LS_BF16,
                             p->dt == LS_F16,
                             p->out_dt == LS_F32,
                             p->dt == LS_F32 && g->tf32,
                             g->deterministic,
                             p->bias != NULL,
                             p->epilogue == CU_GELU,
                             p->epilogue == CU_DGELU,
                             p->b_sums != NULL,
                             odd(p->a),
                             odd(p->b),
                             odd(p->out) || odd(p->add),
                             odd(p->aux) || odd(p->bias),
                             g->only >= 0,
                             p->fp8.on,
                             p->fp8.on && p->fp8.a_form == LS_E5M2,
                             p->fp8.on && p->fp8.b_form == LS_E5M2,
                             p->fp8.on && p->fp8.fast};
    cu_gemm_key k = {p->M, p->N, p->K, p->lda, p->ldb, p->ldo, 0};
    if (gemm_few_rows(p)) k.M = LS_FEW_ROWS;
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) k.flags |= bits[i] << i;
    if (g->only >= 0) k.flags |= (uint64_t)g->only << 32;
    return k;
}

/* The first of the proposals that the library starts, by which p is queued. */
static ls_status first_of(cu_gemm *g, const cu_product *p, bool rows, void *workspace, cu_gemm_choice *choice, bool *no)
{
    uint32_t sets[GEMM_MOST_VARIANTS];
    cu_gemm_choice found[GEMM_MOST_ALGOS];
    const int n_set = gemm_variants(g, p, sets);
    *no = true;
    for (int s = 0; s < n_set; s++) {
        const int n = gemm_propose(g, p, sets[s], rows, found, GEMM_MOST_ALGOS);
        for (int i = 0; i < n; i++) {
            if (!gemm_starts_alone(g, p, &found[i], workspace)) continue;
            *choice = found[i];
            const ls_status st = gemm_issue(g, p, choice, workspace, no);
            if (!*no) return st;
        }
    }
    return gemm_lt_fail(CUBLAS_STATUS_NOT_SUPPORTED, p, "every form");
}

/* Without measuring. p has been queued. */
static ls_status first_proposal(cu_gemm *g, const cu_product *p, void *workspace, cu_gemm_choice *choice)
{
    bool no;
    const ls_status st = first_of(g, p, false, workspace, choice, &no);
    if (!no || !gemm_few_rows(p)) return st;
    ls_err_clear();
    LS_TRY(first_of(g, p, true, workspace, choice, &no));
    return LS_OK;
}

/* Reads the choice from the file; false if it has none that this product can use. The lock is held. */
static bool filed(cu_gemm *g, const cu_product *p, const cu_gemm_key *key, cu_gemm_choice *choice)
{
    const cu_gemm_choice *c = g->tune == TUNE_AGAIN ? NULL : cu_gemm_cache_filed(g->cache, key);
    if (!c || !gemm_takes(g, p, c)) return false;
    *choice = *c;
    choice->final = true;
    g->n_found++;
    return true;
}

/* The choice that the file and this process keep. measured: `choice` was. The lock is held. queued: p has been, with this choice. */
static ls_status settle(cu_gemm *g, const cu_product *p, const cu_gemm_key *key, bool measured, bool capturing,
                        void *workspace, cu_gemm_choice *choice, bool *queued)
{
    if (filed(g, p, key, choice))
        return LS_OK; /* maybe by a worker that measured at the same time: the first in the file wins */
    if (measured) {
        choice->final = true;
        LS_TRY(cu_gemm_cache_keep(g->cache, key, choice));
        measured =
            !g->deterministic || cu_gemm_cache_path(g->cache); /* without a file each worker would have its own */
    }
    *(measured ? &g->n_timed : &g->n_proposed) += 1;
    if (measured) return LS_OK;
    LS_TRY(first_proposal(g, p, workspace, choice));
    *queued = true;
    choice->final = g->deterministic || !capturing;
    return g->deterministic ? cu_gemm_cache_keep(g->cache, key, choice) : LS_OK;
}

/* The file's choice, or the fastest by measurement. */
static ls_status look_up(cu_gemm *g, const cu_product *p, const cu_gemm_key *key, bool capturing, void *workspace,
                         cu_gemm_choice *choice, bool *queued)
{
    bool measured = false;
    ls_status st;
    if (!capturing) {
        LS_TRY(cu_gemm_cache_lock(g->cache, LOCK_SECONDS)); /* a file that cannot be locked is given up here */
        const bool known = filed(g, p, key, choice);
        cu_gemm_cache_unlock(g->cache);
        if (known) return LS_OK;
        if (cu_gemm_cache_path(g->cache) || !g->deterministic) LS_TRY(gemm_tune(g, p, workspace, choice, &measured));
        /* the first start of a kernel loads its code, for which CUDA waits until the device is idle: not with the lock held */
        if (!measured) CU_TRY(cudaDeviceSynchronize());
    }
    LS_TRY(cu_gemm_cache_lock(g->cache, LOCK_SECONDS));
    st = settle(g, p, key, measured, capturing, workspace, choice, queued);
    cu_gemm_cache_unlock(g->cache);
    return st;
}

/* queued: p has been, with this choice. */
static ls_status choose(cu_gemm *g, const cu_product *p, const cu_gemm_key *key, const cu_gemm_choice *known,
                        void *workspace, cu_gemm_choice *choice, bool *queued)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    CU_TRY(cudaStreamIsCapturing(g->stream, &capture));
    if (known && capture != cudaStreamCaptureStatusNone) { /* proposed in an earlier capture */
        *choice = *known;
        return LS_OK;
    }
    if (g->tune == TUNE_OFF) {
        LS_TRY(first_proposal(g, p, workspace, choice));
        *queued = true;
        choice->final = true;
        g->n_proposed++;
    } else {
        LS_TRY(look_up(g, p, key, capture != cudaStreamCaptureStatusNone, workspace, choice, queued));
    }
    return cu_gemm_cache_put(g->cache, key, choice);
}

/* ---- the interface ------------------------------------------------------------------------------------------------ */

ls_status cu_gemm_open(cu_gemm **out, void *stream, bool tf32, bool deterministic)
{
    const char *tune = getenv("LS_GEMM_TUNE");
#ifdef LS_EMU
    if (!tune) tune = "0"; /* its times mean nothing, and tests leave no files */
#endif
    struct cudaDeviceProp gpu;
    char name[300];
    int device = 0;
    ls_status st = LS_OK;
    CU_TRY(cudaGetDevice(&device));
    CU_TRY(cudaGetDeviceProperties(&gpu, device));
    cu_gemm *g = ls_alloc(sizeof *g);
    if (!g) return ls_nomem(sizeof *g, "products");
    *g = (cu_gemm){.stream = stream, .tf32 = tf32, .deterministic = deterministic, .tune = TUNE_ON, .only = -1};
    if (tune && !strcmp(tune, "0")) g->tune = TUNE_OFF;
    if (tune && !strcmp(tune, "again") && !deterministic) g->tune = TUNE_AGAIN;
    const cublasStatus_t e = cublasLtCreate(&g->lt);
    if (e) {
        st = ls_fail(LS_E_DEVICE, "cannot initialize cuBLASLt on %s: %s", gpu.name, cublasLtGetStatusString(e));
        goto failed;
    }
    snprintf(name, sizeof name, "%s %d", gpu.name, gpu.multiProcessorCount);
    LS_TRY_GOTO(st, failed, gemm_f32_open(g, 10 * gpu.major + gpu.minor));
    LS_TRY_GOTO(st, failed, cu_gemm_cache_open(&g->cache, name, cublasLtGetVersion(), g->tune != TUNE_OFF));
    *out = g;
    return LS_OK;
failed:
    cu_gemm_close(&g);
    return st;
}

void cu_gemm_close(cu_gemm **g)
{
    if (!*g) return;
    if ((*g)->lt) cublasLtDestroy((*g)->lt);
    cu_gemm_cache_close(&(*g)->cache);
    ls_free(*g);
    *g = NULL;
}

static ls_status check(const cu_product *p)
{
    const bool gelu = p->epilogue != CU_PLAIN;
    if (p->fp8.on && (p->dt != LS_BF16 || p->ta || !p->tb || gelu || p->b_sums || (p->M | p->N | p->K) % 16))
        return ls_fail(LS_E_INTERNAL,
                       "a product in fp8 needs sizes that are multiples of 16, and its operands along K");
    if (gelu && (p->out_dt != p->dt || p->ldo != p->N || !p->aux || p->aux == p->out))
        return ls_fail(LS_E_INTERNAL, "a fused GELU needs a dense result of the inputs' type and an aux buffer");
    if (gelu && p->add && p->add == p->out)
        return ls_fail(LS_E_INTERNAL, "a fused GELU cannot add to its output in place");
    return LS_OK;
}

ls_status cu_gemm_run(cu_gemm *g, const cu_product *given, void *workspace)
{
    cu_product p = *given;
    if (p.M <= 0 || p.N <= 0) return LS_OK;
    if (!p.lda) p.lda = p.ta ? p.M : p.K;
    if (!p.ldb) p.ldb = p.tb ? p.K : p.N;
    if (!p.ldo) p.ldo = p.N;
    LS_TRY(check(&p));
    if (gemm_f32_takes(g, &p)) return gemm_f32_issue(g, &p, workspace);
    const cu_gemm_key key = key_of(g, &p);
    const cu_gemm_choice *known = cu_gemm_cache_find(g->cache, &key);
    bool queued = false;
    if (known && known->final) g->last = *known;
    else LS_TRY(choose(g, &p, &key, known, workspace, &g->last, &queued));
    return queued ? LS_OK : gemm_issue(g, &p, &g->last, workspace, NULL);
}

void cu_gemm_describe(const cu_gemm *g, ls_dtype dt, char *words, size_t room)
{
    const size_t v = cublasLtGetVersion();
    char counts[64] = "";
    if (g->n_timed || g->n_found || g->n_proposed)
        snprintf(counts, sizeof counts, ": %d measured, %d known, %d proposed", g->n_timed, g->n_found, g->n_proposed);
    snprintf(words, room, "%scuBLASLt %zu.%zu.%zu%s%s", g->tensor && dt == LS_F32 ? "6xBF16 kernel, " : "", v / 10000,
             v / 100 % 100, v % 100, g->tf32 ? " TF32" : "", counts);
}
