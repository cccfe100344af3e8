/* gemm_tune.c - the fastest of the algorithms that the library proposes for a product, by running them.
 *
 * Candidates are the library's proposals for each set of fused operations. A candidate is timed together with the kernels that it needs
 * for what it does not fuse. All candidates run in each round, so that a change of the GPU's clock affects all of them. The first round
 * loads kernels and is not counted; candidates that are much slower than the best are dropped; the rest are ranked by their median time.
 * Before each run, other data replaces the content of the L2 cache (50 MB). Results are written to the output of the product (it is
 * computed again afterwards); if the product adds to its output, they are written to temporary memory; if there is none, nothing is timed.
 *
 * In deterministic mode the chosen algorithm must also pass two checks (gemm.c): two runs give the same bits, and adding to the output
 * gives the bits of a separate addition. */
#include "compute/cuda/gemm_impl.h"
#include "core/mem.h"

enum { TURNS = 8, MOST = GEMM_MOST_ALGOS * GEMM_MOST_VARIANTS };
#define ENOUGH_MS 400.0f /* of measured time, after three counted rounds */

typedef struct candidate {
    cu_gemm_choice choice;
    cudaEvent_t from, to;
    float ms[TURNS]; /* of counted rounds                      */
    int n_turn;
    bool slow;    /* is not timed any more; chosen only if no faster one passes the checks */
    bool refused; /* failed, or did not pass the checks         */
} candidate;

typedef struct field {
    candidate c[MOST];
    int n;
    cu_product p;  /* the product; its output may be overwritten     */
    void *scratch; /* temporary memory for its results, or NULL      */
} field;

static ls_status add_candidates(cu_gemm *g, field *f, void *workspace)
{
    uint32_t sets[GEMM_MOST_VARIANTS];
    cu_gemm_choice found[GEMM_MOST_ALGOS];
    const int n_set = gemm_variants(g, &f->p, sets);
    for (int s = 0; s < n_set; s++) {
        if (s == 2 && f->n) break; /* a separate kernel for the bias: only if no algorithm fuses it */
        const int n = gemm_propose(g, &f->p, sets[s], false, found, GEMM_MOST_ALGOS);
        for (int i = 0; i < n; i++)
            if (gemm_starts_alone(g, &f->p, &found[i], workspace)) f->c[f->n++].choice = found[i];
    }
    for (int i = 0; i < f->n; i++) {
        CU_TRY(cudaEventCreate(&f->c[i].from));
        CU_TRY(cudaEventCreate(&f->c[i].to));
    }
    return LS_OK;
}

/* One round of the remaining candidates. */
static ls_status turn(cu_gemm *g, field *f, int t, void *workspace, float *spent)
{
    for (int i = 0; i < f->n; i++) {
        candidate *c = &f->c[i];
        if (c->slow || c->refused) continue;
        CU_TRY(cudaMemsetAsync(workspace, 0, CU_GEMM_LIBRARY_NBYTES, g->stream));
        CU_TRY(cudaEventRecord(c->from, g->stream));
        if (gemm_issue(g, &f->p, &c->choice, workspace, NULL) != LS_OK)
            c->refused = true; /* although it was proposed */
        CU_TRY(cudaEventRecord(c->to, g->stream));
    }
    CU_TRY(cudaStreamSynchronize(g->stream));
    for (int i = 0; i < f->n; i++) {
        candidate *c = &f->c[i];
        if (c->slow || c->refused) continue;
        CU_TRY(cudaEventElapsedTime(&c->ms[t], c->from, c->to));
        *spent += c->ms[t];
        c->n_turn = t + 1;
    }
    return LS_OK;
}

static float best_of(const candidate *c)
{
    float best = c->ms[0];
    for (int t = 1; t < c->n_turn; t++)
        if (c->ms[t] < best) best = c->ms[t];
    return best;
}

static void drop_slow(field *f, float factor)
{
    float best = -1;
    for (int i = 0; i < f->n; i++) {
        if (f->c[i].refused) continue;
        const float ms = best_of(&f->c[i]);
        if (best < 0 || ms < best) best = ms;
    }
    for (int i = 0; i < f->n; i++)
        if (best_of(&f->c[i]) > factor * best) f->c[i].slow = true;
}

static float median(float *x, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && x[k] < x[k - 1]; k--) {
            const float t = x[k];
            x[k] = x[k - 1];
            x[k - 1] = t;
        }
    return n % 2 ? x[n / 2] : 0.5f * (x[n / 2 - 1] + x[n / 2]);
}

static ls_status race(cu_gemm *g, field *f, void *workspace)
{
    float spent = 0, unused = 0;
    int n = 0; /* counted rounds */
    LS_TRY(turn(g, f, 0, workspace, &unused));
    while (n < TURNS - 1 && (n < 3 || spent < ENOUGH_MS)) {
        LS_TRY(turn(g, f, n++, workspace, &spent));
        if (n == 1) drop_slow(f, 1.4f);
        if (n == 3) drop_slow(f, 1.1f);
    }
    for (int i = 0; i < f->n; i++) {
        const float usec = f->c[i].refused ? 0 : median(f->c[i].ms, f->c[i].n_turn) * 1e3f;
        f->c[i].choice.usec = usec > 0.01f ? usec : 0.01f;
    }
    return LS_OK;
}

static ls_status print_of(cu_gemm *g, const cu_product *p, float factor, void *workspace, uint64_t *print)
{
    uint64_t *there = gemm_side(workspace);
    CU_TRY(cu_fingerprint(g->stream, p->out_dt, there, p->out, factor, p->M, p->N, p->ldo));
    CU_TRY(cudaMemcpyAsync(print, there, sizeof *print, cudaMemcpyDeviceToHost, g->stream));
    return CU_STATUS(cudaStreamSynchronize(g->stream));
}

static ls_status check_bits(cu_gemm *g, const field *f, const candidate *c, void *workspace, bool *ok)
{
    cu_product p = f->p;
    uint64_t first, again;
    p.add = NULL;
    LS_TRY(gemm_issue(g, &p, &c->choice, workspace, NULL));
    LS_TRY(print_of(g, &p, 1, workspace, &first));
    LS_TRY(gemm_issue(g, &p, &c->choice, workspace, NULL));
    LS_TRY(print_of(g, &p, 1, workspace, &again));
    *ok = first == again;
    if (!*ok || p.out_dt != LS_F32 || p.bias || p.epilogue != CU_PLAIN) return LS_OK;
    LS_TRY(print_of(g, &p, 2, workspace, &first));
    p.add = p.out; /* the product onto itself: exactly twice it */
    LS_TRY(gemm_issue(g, &p, &c->choice, workspace, NULL));
    LS_TRY(print_of(g, &p, 1, workspace, &again));
    *ok = first == again;
    return LS_OK;
}

static bool before(const candidate *a, const candidate *b)
{
    return a->slow != b->slow ? b->slow : a->choice.usec < b->choice.usec;
}

static ls_status choose_best(cu_gemm *g, field *f, void *workspace, cu_gemm_choice *best, bool *found)
{
    for (;;) {
        candidate *c = NULL;
        bool ok = true;
        for (int i = 0; i < f->n; i++)
            if (!f->c[i].refused && (!c || before(&f->c[i], c))) c = &f->c[i];
        if (!c) return LS_OK;
        if (g->deterministic) LS_TRY(check_bits(g, f, c, workspace, &ok));
        if (ok) {
            *best = c->choice;
            *found = true;
            return LS_OK;
        }
        c->refused = true;
    }
}

/* Temporary memory for the results of a product that adds to its output; false: not enough memory. */
static bool make_room(cu_gemm *g, field *f)
{
    cu_product *p = &f->p;
    const bool in_place = p->add && p->add == p->out;
    const size_t nbytes = ((size_t)(p->M * p->ldo) * ls_dtype_nbytes(p->out_dt) + 255) & ~(size_t)255;
    const size_t out = in_place ? nbytes : 0, sums = p->b_sums_add ? (size_t)p->N * sizeof(float) : 0;
    if (!out && !sums) return true;
    if (cudaMalloc(&f->scratch, out + sums)) {
        (void)cudaGetLastError();
        f->scratch = NULL;
        return false;
    }
    if (cudaMemsetAsync(f->scratch, 0, out + sums, g->stream)) return false;
    if (out) p->out = f->scratch, p->add = f->scratch;
    if (sums) p->b_sums = (float *)(void *)((char *)f->scratch + out), p->b_sums_add = false;
    return true;
}

ls_status gemm_tune(cu_gemm *g, const cu_product *p, void *workspace, cu_gemm_choice *best, bool *found)
{
    ls_status st = LS_OK;
    field *f = ls_alloc(sizeof *f);
    *found = false;
    if (!f) return ls_nomem(sizeof *f, "measuring products");
    f->p = *p;
    if (make_room(g, f)) {
        LS_TRY_GOTO(st, done, add_candidates(g, f, workspace));
        if (f->n) LS_TRY_GOTO(st, done, race(g, f, workspace));
        LS_TRY_GOTO(st, done, choose_best(g, f, workspace, best, found));
    }
done:
    for (int i = 0; i < f->n; i++) {
        if (f->c[i].from) cudaEventDestroy(f->c[i].from);
        if (f->c[i].to) cudaEventDestroy(f->c[i].to);
    }
    if (f->scratch) cudaFree(f->scratch);
    ls_free(f);
    return st;
}
