#include "model/fp8.h"

#include "core/mem.h"
#include "core/minmax.h"
#include "model/layers_fp8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- scales ---- */

float ls_fp8_scale(float amax, ls_fp8 form, int margin)
{
    int e = 0;
    if (!(amax > 0)) return 1;
    const float f = frexpf(amax, &e);                      /* amax = f 2^e, 1/2 <= f < 1 */
    const int top = form == LS_E5M2 ? 16 : 9;              /* the largest number is 7/8 2^top */
    const int k = top - e - (f > 0.875f) - margin;         /* the scale is 2^k */
    return ldexpf(1, k < -120 ? -120 : k > 120 ? 120 : k); /* its inverse is a number, too */
}

static float largest(const ls_fp8_history *h, int i)
{
    float most = 0;
    for (int s = 0; s < h->used; s++) most = fmaxf(most, h->amax[s * h->n + i]);
    return most;
}

int ls_fp8_settle(ls_fp8_history *h)
{
    for (int i = 0; i < h->n; i++)
        if (!(largest(h, i) > 0)) {
            h->used = 0;
            return i;
        }
    return -1;
}

int ls_fp8_push(ls_fp8_history *h, const float *amax)
{
    const size_t step = (size_t)h->n * sizeof *h->amax;
    if (h->used < h->length) h->used++;
    memmove(h->amax + h->n, h->amax, (size_t)(h->used - 1) * step);
    memcpy(h->amax, amax, step);
    return ls_fp8_settle(h);
}

void ls_fp8_name(int i, char *text, size_t size)
{
    static const char *const layer[LS_FP8_LAYERS] = {"qkv", "attention projection", "fc", "fc projection"};
    static const char *const operand[LS_N_FP8_OPERAND] = {"input", "weight", "gradient"};
    snprintf(text, size, "the %s of the %s of block %d", operand[i % LS_N_FP8_OPERAND],
             layer[i / LS_N_FP8_OPERAND % LS_FP8_LAYERS], i / (LS_FP8_LAYERS * LS_N_FP8_OPERAND));
}

/* ---- making ---- */

static int64_t matrix_elements(const ls_unit *u)
{
    int64_t n = 0;
    for (int k = 0; k < LS_FP8_LAYERS; k++) n += u->tensor[model_fp8_weight(k)].n;
    return n;
}

static int64_t vector_elements(const ls_unit *u)
{
    return u->n - matrix_elements(u);
}

static ls_status check_sizes(const ls_model *m, int64_t R)
{
    if (R % 16)
        return ls_fail(
            LS_E_CONFIG,
            "--precision fp8 needs micro-batches whose number of tokens is a multiple of 16, but it is %lld; "
            "change --micro_batch_size_per_gpu or --seq_length",
            (long long)R);
    if (model_width(m) % 16)
        return ls_fail(LS_E_CONFIG,
                       "--precision fp8 needs a width per tensor-parallel worker that is a multiple of 16, but it is "
                       "%d / %d; change --tp or the model",
                       m->cfg.n_embd, m->shard.size);
    return LS_OK;
}

/* On the device, n each: magnitudes, scales, factors. */
static size_t numbers(size_t n)
{
    return (2 + LS_FP8_APART) * n;
}

static ls_status take(ls_model *m, const ls_fp8_opts *o)
{
    const size_t U = (size_t)m->n_unit, n = (size_t)m->cfg.n_layer * LS_FP8_LAYERS * LS_N_FP8_OPERAND;
    ls_fp8_state *f = ls_alloc(sizeof *f);
    if (!f) return ls_nomem(sizeof *f, "the scales of fp8");
    m->fp8 = f;
    f->opts = *o;
    f->history = (ls_fp8_history){.n = (int)n, .length = o->history};
    f->history.amax = ls_alloc(n * (size_t)o->history * sizeof(float));
    f->stale = ls_alloc(U * sizeof *f->stale);
    f->weights = ls_alloc(U * sizeof *f->weights);
    f->row = ls_alloc(U * sizeof *f->row);
    f->host = ls_alloc(numbers(n) * sizeof *f->host);
    ls_fp8_parts *p = &f->parts;
    p->code = ls_alloc(U * sizeof *p->code);
    p->vector = ls_alloc(U * sizeof *p->vector);
    p->code_row = ls_alloc(U * sizeof *p->code_row);
    p->vector_row = ls_alloc(U * sizeof *p->vector_row);
    if (f->history.amax && f->stale && f->weights && f->row && f->host && p->code && p->vector && p->code_row &&
        p->vector_row)
        return LS_OK;
    ls_fp8_destroy(&m->fp8);
    return ls_nomem(n * (size_t)o->history * sizeof(float), "the scales of fp8");
}

/* The elements of part k of unit u. */
typedef struct range {
    int64_t first, n;
} range;

static range part_of(const ls_model *m, int u, int k)
{
    const int64_t n = m->unit[u].n_pad / m->fp8->parts.cut.n;
    return (range){n * k, n};
}

/* The elements of u's tensors of one dimension that are in part k, counted among these: they are contiguous there. */
static range vectors_in(const ls_model *m, int u, int k)
{
    const range part = part_of(m, u, k);
    range r = {0};
    for (int i = 0; i < m->unit[u].n_tensor; i++) {
        const ls_tensor *t = &m->unit[u].tensor[i];
        const int64_t from = LS_MAX(0, LS_MIN(part.first - t->offset, t->n)),
                      to = LS_MAX(0, LS_MIN(part.first + part.n - t->offset, t->n));
        if (t->matrix) continue;
        r.first += from;
        r.n += to - from;
    }
    return r;
}

static bool is_here(const ls_fp8_state *f, int u)
{
    return f->row[u] >= 0;
}

/* Where the elements of unit u are among those of part k in `packed`. */
static int64_t packed_before(const ls_model *m, int u, int k)
{
    int64_t n = 0;
    for (int i = 0; i < u; i++)
        if (is_here(m->fp8, i)) n += vectors_in(m, i, k).n;
    return n;
}

static void plan_parts(ls_model *m, ls_plan *plan)
{
    ls_fp8_parts *p = &m->fp8->parts;
    const int64_t e = (int64_t)ls_dtype_nbytes(m->compute->ops->dtype), line = 64;
    for (int u = 0; u < m->n_unit; u++) {
        if (!is_here(m->fp8, u)) continue;
        p->code_row[u] =
            ls_plan_add(plan, LS_PART_WORK, part_of(m, u, 0).n, LS_PLAN_ALWAYS, "unit %d fp8 codes of a part", u);
        p->vector_row[u] = ls_plan_add(plan, LS_PART_WORK, vector_elements(&m->unit[u]) * e, LS_PLAN_ALWAYS,
                                       "unit %d biases and norms", u);
    }
    for (int k = 0; k < p->cut.n; k++) p->n_packed = LS_MAX(p->n_packed, packed_before(m, m->n_unit, k));
    p->n_packed = (p->n_packed + line - 1) / line * line;
    p->packed_row =
        ls_plan_add(plan, LS_PART_BUCKET, p->n_packed * p->cut.n * e, LS_PLAN_ALWAYS, "biases and norms of all parts");
}

ls_status ls_fp8_create(ls_model *m, const ls_fp8_opts *o, int64_t R, ls_fp8_cut cut, const bool *here, ls_plan *plan)
{
    int shared = -1; /* row of all blocks, with a cut */
    LS_TRY(check_sizes(m, R));
    LS_TRY(take(m, o));
    ls_fp8_state *f = m->fp8;
    f->parts.cut = cut;
    for (int u = 0; u < m->n_unit; u++) {
        f->row[u] = f->parts.code_row[u] = f->parts.vector_row[u] = -1;
        if (m->unit[u].kind != LS_UNIT_BLOCK || (here && !here[u])) continue;
        if (!cut.n || shared < 0)
            shared = ls_plan_add(plan, LS_PART_WORK, matrix_elements(&m->unit[u]) * (cut.n ? 1 : 2), LS_PLAN_ALWAYS,
                                 "unit %d fp8 matrices", u);
        f->row[u] = shared;
    }
    f->number = ls_plan_add(plan, LS_PART_WORK, (int64_t)(numbers((size_t)f->history.n) * sizeof(float)),
                            LS_PLAN_ALWAYS, "fp8 scales");
    f->parts.packed_row = -1;
    if (cut.n) plan_parts(m, plan);
    return LS_OK;
}

static void *row_at(const ls_plan *plan, int row)
{
    return row < 0 ? NULL : ls_plan_at(plan, row);
}

void ls_fp8_bind(ls_model *m, const ls_plan *plan)
{
    ls_fp8_state *f = m->fp8;
    for (int u = 0; u < m->n_unit; u++) {
        f->weights[u] = row_at(plan, f->row[u]);
        f->parts.code[u] = row_at(plan, f->parts.code_row[u]);
        f->parts.vector[u] = row_at(plan, f->parts.vector_row[u]);
    }
    f->parts.packed = row_at(plan, f->parts.packed_row);
    f->amax = ls_plan_at(plan, f->number);
    f->scale = f->amax + f->history.n;
    f->factor = f->scale + f->history.n;
}

void ls_fp8_destroy(ls_fp8_state **fp)
{
    ls_fp8_state *f = *fp;
    if (!f) return;
    ls_free(f->history.amax);
    ls_free(f->stale);
    ls_free(f->weights);
    ls_free(f->row);
    ls_free(f->parts.code);
    ls_free(f->parts.vector);
    ls_free(f->parts.code_row);
    ls_free(f->parts.vector_row);
    ls_free(f->host);
    ls_free(f);
    *fp = NULL;
}

/* ---- steps ---- */

/* On a device: beside what is queued, which is not waited for. */
static ls_status copy_now(const ls_compute *c, void *to, const void *from, size_t nbytes)
{
    const ls_device *d = c->device;
    ls_mark there;
    if (!d) return ls_compute_read(c, to, from, nbytes);
    LS_TRY(d->copy(d->ctx, 0, to, from, nbytes, 0, &there));
    return d->wait(d->ctx, there);
}

ls_status ls_fp8_set(const ls_model *m)
{
    const ls_fp8_state *f = m->fp8;
    const int n = f->history.n;
    for (int i = 0; i < n; i++) {
        const ls_fp8 form = model_fp8_form(f, (ls_fp8_operand)(i % LS_N_FP8_OPERAND));
        f->host[i] = 0;
        f->host[n + i] = ls_fp8_scale(largest(&f->history, i), form, f->opts.margin);
        f->host[2 * n + LS_FP8_APART * i] = 1 / f->host[n + i];
    }
    return copy_now(m->compute, f->amax, f->host, numbers((size_t)n) * sizeof *f->host);
}

void ls_fp8_begin_step(const ls_model *m)
{
    for (int u = 0; u < m->n_unit; u++) m->fp8->stale[u] = true;
    m->fp8->parts.fresh = false;
}

ls_status ls_fp8_read(const ls_model *m, float *amax)
{
    return copy_now(m->compute, amax, m->fp8->amax, (size_t)m->fp8->history.n * sizeof *amax);
}

/* ---- parameters that are gathered as codes ---- */

bool ls_fp8_coded(const ls_model *m, int u)
{
    return m->fp8 && m->fp8->parts.cut.n && m->fp8->history.used && is_here(m->fp8, u);
}

/* The place of unit u's elements of part k. */
static void *packed_at(const ls_model *m, int u, int k)
{
    const ls_fp8_parts *p = &m->fp8->parts;
    return ls_at(m->compute, p->packed, p->n_packed * k + packed_before(m, u, k));
}

ls_status ls_fp8_encode(const ls_model *m, int u, const void *part)
{
    const ls_fp8_state *f = m->fp8;
    const range mine = part_of(m, u, f->parts.cut.mine);
    char *to = packed_at(m, u, f->parts.cut.mine);
    for (int i = 0; i < m->unit[u].n_tensor; i++) {
        const ls_tensor *t = &m->unit[u].tensor[i];
        const ls_tensor_range r = ls_tensor_within(t, mine.first, mine.n);
        if (r.from >= r.to) continue;
        const int64_t at = r.from - mine.first, n = r.to - r.from;
        if (t->matrix) {
            LS_TRY(model_fp8_code(m, u, i, (char *)f->parts.code[u] + at, ls_at(m->compute, part, at), n));
            continue;
        }
        LS_TRY(model_copy(m, to, ls_at(m->compute, part, at), n));
        to = ls_at(m->compute, to, n);
    }
    return LS_OK;
}

ls_status ls_fp8_unpack(const ls_model *m)
{
    ls_fp8_parts *p = &m->fp8->parts;
    for (int u = 0; u < m->n_unit; u++)
        for (int k = 0; k < p->cut.n && is_here(m->fp8, u); k++) {
            const range r = vectors_in(m, u, k);
            if (!r.n) continue;
            LS_TRY(model_copy(m, ls_at(m->compute, p->vector[u], r.first), packed_at(m, u, k), r.n));
        }
    p->fresh = true;
    return LS_OK;
}
