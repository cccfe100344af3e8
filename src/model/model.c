/* model.c - the list of units: the tensors of each, their layout in the flat buffers, their initial values. */
#include "model/model_impl.h"

#include "core/log.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* How a tensor is split into shards: not at all, by rows, by columns, or by the columns of each of q, k and v. A
 * bias is one row. */
typedef enum cut { EVERYWHERE, BY_ROW, BY_COLUMN, BY_QKV } cut;

typedef struct blueprint {
    ls_unit *u;
    const ls_model_config *c;
    ls_shard shard;
    char prefix[32]; /* of the names of its tensors */
} blueprint;

static int64_t range_begin(int64_t n, ls_shard s, int rank)
{
    return n * rank / s.size;
}

static void add_tensor(const blueprint *d, cut how, int64_t rows, int64_t cols, ls_init init, double scale,
                       const char *layer, const char *part)
{
    ls_unit *u = d->u;
    LS_ASSERT(u->n_tensor < LS_UNIT_MAX_TENSOR);
    const int64_t lines = cols ? rows : 1, width = cols ? cols : rows; /* of the whole tensor; a vector is one line */
    const int parts = how == BY_QKV ? 3 : 1;
    const int64_t here = how < BY_COLUMN ? width : width / d->shard.size;
    const int64_t from = how == BY_ROW ? range_begin(lines, d->shard, d->shard.rank) : 0,
                  to = how == BY_ROW ? range_begin(lines, d->shard, d->shard.rank + 1) : lines;
    const bool split = how >= BY_COLUMN && d->shard.size > 1; /* else one run is the whole tensor */
    ls_tensor *t = &u->tensor[u->n_tensor++];
    *t = (ls_tensor){.offset = u->n,
                     .n = (to - from) * here,
                     .n_dim = cols ? 2 : 1,
                     .dim = {cols ? to - from : here, cols ? here : 0},
                     .whole_offset = u->n_whole,
                     .whole_dim = {rows, cols},
                     .first = split ? here / parts * d->shard.rank : from * width,
                     .run = split ? here / parts : (to - from) * here,
                     .per_line = split ? parts : 1,
                     .run_stride = width / parts,
                     .line_stride = width,
                     .everywhere = how == EVERYWHERE,
                     .matrix = cols != 0,
                     .init = init,
                     .init_scale = scale};
    snprintf(t->name, sizeof t->name, "%s%s.%s", d->prefix, layer, part);
    u->n += t->n;
    u->n_whole += lines * width;
}

ls_gains ls_unit_gains(const ls_unit *u, int64_t first, int64_t n)
{
    ls_gains g = {0};
    for (int i = 0; i < u->n_tensor; i++) {
        const ls_tensor *t = &u->tensor[i];
        const ls_tensor_range r = ls_tensor_within(t, first, n);
        if (!ls_tensor_gain(t) || r.from >= r.to) continue;
        LS_ASSERT(g.n < LS_MOST_GAINS);
        g.at[g.n][0] = r.from - first;
        g.at[g.n++][1] = r.to - first;
    }
    return g;
}

/* A linear layer with bias, split by its input (by rows: the shards' results are added, then the bias) or by its
 * output. hf: normal weights, zero bias; r1: both uniform in +-1/sqrt(in), torch's default. */
static void add_linear(const blueprint *d, cut how, int64_t in, int64_t out, double std, const char *layer)
{
    const cut bias = how == BY_ROW ? EVERYWHERE : how;
    const bool r1 = d->c->variant == LS_VARIANT_R1;
    const double half = 1.0 / sqrt((double)in);
    add_tensor(d, how, in, out, r1 ? LS_INIT_UNIFORM : LS_INIT_NORMAL, r1 ? half : std, layer, "weight");
    add_tensor(d, bias, out, 0, r1 ? LS_INIT_UNIFORM : LS_INIT_ZERO, r1 ? half : 0, layer, "bias");
}

static void add_norm(const blueprint *d, const char *layer)
{
    add_tensor(d, EVERYWHERE, d->c->n_embd, 0, LS_INIT_ONE, 0, layer, "weight");
    add_tensor(d, EVERYWHERE, d->c->n_embd, 0, LS_INIT_ZERO, 0, layer, "bias");
}

static void describe_unit(blueprint *d, int index)
{
    ls_unit *u = d->u;
    const ls_model_config *c = d->c;
    const int64_t C = c->n_embd, V = c->vocab_size;
    const bool r1 = c->variant == LS_VARIANT_R1;
    u->layer = -1;
    snprintf(d->prefix, sizeof d->prefix, "transformer.");
    if (index == 0) {
        u->kind = LS_UNIT_EMBED;
        const double std = r1 ? 1.0 : c->init_range;
        add_tensor(d, BY_ROW, V, C, LS_INIT_NORMAL, std, "wte", "weight");
        add_tensor(d, EVERYWHERE, c->n_ctx, C, LS_INIT_NORMAL, std, "wpe", "weight");
    } else if (index <= c->n_layer) {
        u->kind = LS_UNIT_BLOCK;
        u->layer = index - 1;
        snprintf(d->prefix, sizeof d->prefix, "transformer.h.%d.", u->layer);
        const double std = c->init_range,
                     residual = std / sqrt(2.0 * c->n_layer); /* 2 L projections are added to the residual stream */
        add_norm(d, "ln_1");
        add_linear(d, BY_QKV, C, 3 * C, std, "attn.c_attn");
        add_linear(d, BY_ROW, C, C, residual, "attn.c_proj");
        add_norm(d, "ln_2");
        add_linear(d, BY_COLUMN, C, 4 * C, std, "mlp.c_fc");
        add_linear(d, BY_ROW, 4 * C, C, residual, "mlp.c_proj");
    } else {
        u->kind = LS_UNIT_HEAD;
        add_norm(d, "ln_f");
        d->prefix[0] = '\0';
        if (!c->tied)
            add_tensor(d, BY_ROW, V, C, r1 ? LS_INIT_UNIFORM : LS_INIT_NORMAL,
                       r1 ? 1.0 / sqrt((double)C) : c->init_range, "lm_head", "weight");
    }
}

ls_status ls_shard_check(const ls_model_config *cfg, int size)
{
    if (size < 1 || cfg->n_head % size)
        return ls_fail(LS_E_CONFIG, "cannot split %d heads over tp %d; --tp must divide the number of heads",
                       cfg->n_head, size);
    if (cfg->vocab_size < size)
        return ls_fail(LS_E_CONFIG, "cannot split %d vocabulary ids over tp %d; every worker needs at least one id",
                       cfg->vocab_size, size);
    return LS_OK;
}

ls_status ls_model_create(ls_model **out, const ls_model_config *cfg, ls_compute *compute, int64_t pad_to)
{
    return ls_model_create_shard(out, cfg, compute, pad_to, (ls_shard){.size = 1});
}

ls_status ls_model_create_shard(ls_model **out, const ls_model_config *cfg, ls_compute *compute, int64_t pad_to,
                                ls_shard shard)
{
    if (!shard.size) shard.size = 1;
    shard.rows = shard.rows && shard.size > 1;
    if (shard.size > 1) LS_TRY(ls_shard_check(cfg, shard.size));
    ls_model *m = ls_alloc(sizeof *m);
    if (!m) return ls_nomem(sizeof *m, "the model's table");
    *m = (ls_model){.cfg = *cfg, .compute = compute, .shard = shard, .n_unit = cfg->n_layer + 2};
    ls_debug("model", "%s: %d layers, %d heads, width %d, vocabulary %d; tensor-parallel shard %d of %d", cfg->name,
             (int)cfg->n_layer, (int)cfg->n_head, (int)cfg->n_embd, (int)cfg->vocab_size, shard.rank, shard.size);
    m->unit = ls_alloc((size_t)m->n_unit * sizeof *m->unit);
    if (!m->unit) {
        ls_free(m);
        return ls_nomem((size_t)cfg->n_layer * sizeof *m->unit, "the model's table");
    }
    for (int i = 0; i < m->n_unit; i++) {
        ls_unit *u = &m->unit[i];
        describe_unit(&(blueprint){.u = u, .c = cfg, .shard = shard}, i);
        u->n_pad = (u->n + pad_to - 1) / pad_to * pad_to;
        u->n_grad = u->n_pad;
        if (u->kind == LS_UNIT_HEAD && cfg->tied) u->n_grad += m->unit[0].n_pad;
    }
    *out = m;
    return LS_OK;
}

int64_t ls_model_stream(const ls_model *m, int64_t R)
{
    return model_rows(m, R) * m->cfg.n_embd;
}

int64_t ls_tensor_run(const ls_tensor *t, int64_t i, int64_t *whole)
{
    const int64_t k = i / t->run, j = i % t->run;
    *whole = t->first + k / t->per_line * t->line_stride + k % t->per_line * t->run_stride + j;
    return t->run - j;
}

int64_t ls_unit_run(const ls_unit *u, int64_t i, int64_t *whole, bool *everywhere)
{
    for (int k = 0; k < u->n_tensor; k++) {
        const ls_tensor *t = &u->tensor[k];
        if (i < t->offset || i >= t->offset + t->n) continue;
        const int64_t n = ls_tensor_run(t, i - t->offset, whole);
        *whole += t->whole_offset;
        *everywhere = t->everywhere;
        return n;
    }
    return 0;
}

void ls_model_destroy(ls_model **m)
{
    if (!*m) return;
    ls_fp8_destroy(&(*m)->fp8);
    ls_free((*m)->unit);
    ls_free(*m);
    *m = NULL;
}

const ls_tensor *ls_model_find(const ls_model *m, const char *name, int *unit)
{
    static const char prefix[] = "transformer.";
    const size_t skip = sizeof prefix - 1;
    for (int i = 0; i < m->n_unit; i++) {
        for (int k = 0; k < m->unit[i].n_tensor; k++) {
            const ls_tensor *t = &m->unit[i].tensor[k];
            if (strcmp(t->name, name) && (strncmp(t->name, prefix, skip) || strcmp(t->name + skip, name))) continue;
            if (unit) *unit = i;
            return t;
        }
    }
    return NULL;
}

static void store(ls_dtype dt, void *base, int64_t i, double x)
{
    if (dt == LS_F64) ((double *)base)[i] = x;
    else ((float *)base)[i] = (float)x;
}

/* Elements [from, to) of the whole tensor t; data is where element `from` goes. */
static void init_run(ls_dtype dt, void *data, const ls_tensor *t, int64_t from, int64_t to, uint64_t key)
{
    const double s = t->init_scale;
    switch (t->init) {
    case LS_INIT_ZERO:
    case LS_INIT_ONE:
        for (int64_t i = from; i < to; i++) store(dt, data, i - from, t->init == LS_INIT_ONE);
        break;
    case LS_INIT_UNIFORM:
        for (int64_t i = from; i < to; i++) store(dt, data, i - from, s * (2 * ls_rng_uniform(key, (uint64_t)i) - 1));
        break;
    case LS_INIT_NORMAL: /* two elements at a time */
        for (int64_t j = from / 2; j < (to + 1) / 2; j++) {
            double pair[2];
            ls_rng_normal2(key, (uint64_t)j, pair);
            if (2 * j >= from) store(dt, data, 2 * j - from, s * pair[0]);
            if (2 * j + 1 >= from && 2 * j + 1 < to) store(dt, data, 2 * j + 1 - from, s * pair[1]);
        }
        break;
    }
}

/* Elements [from, to) of this shard's tensor t, by all threads; data is where element `from` goes. */
static void init_range(const ls_compute *c, void *data, const ls_tensor *t, int64_t from, int64_t to, uint64_t key)
{
    enum { STEP = 8192 };
#pragma omp parallel for schedule(static) num_threads(c->n_thread)
    for (int64_t begin = from; begin < to; begin += STEP) {
        const int64_t end = begin + STEP < to ? begin + STEP : to;
        for (int64_t i = begin, n, whole; i < end; i += n) {
            n = ls_tensor_run(t, i, &whole);
            if (n > end - i) n = end - i;
            init_run(c->ops->wide, ls_at_wide(c, data, i - from), t, whole, whole + n, key);
        }
    }
}

static void init_here(ls_model *m, uint64_t seed, const ls_piece *p)
{
    const ls_unit *u = &m->unit[p->unit];
    const int64_t end = p->first + p->n;
    LS_ASSERT(p->what == LS_FLAT_PARAM && p->first >= 0 && end <= u->n_pad);
    for (int k = 0; k < u->n_tensor; k++) {
        const ls_tensor *t = &u->tensor[k];
        const ls_tensor_range r = ls_tensor_within(t, p->first, p->n);
        if (r.from >= r.to) continue;
        init_range(m->compute, ls_at_wide(m->compute, p->data, r.from - p->first), t, r.from - t->offset,
                   r.to - t->offset, ls_rng_key(seed, LS_RNG_INIT, (uint64_t)p->unit, (uint64_t)k));
    }
    for (int64_t i = u->n > p->first ? u->n : p->first; i < end; i++)
        store(m->compute->ops->wide, p->data, i - p->first, 0);
}

ls_status ls_model_init_piece(ls_model *m, uint64_t seed, const ls_piece *p)
{
    enum { CHUNK = 1 << 22 };
    const ls_compute *c = m->compute;
    const size_t size = ls_dtype_nbytes(c->ops->wide);
    if (!c->device) {
        init_here(m, seed, p);
        return LS_OK;
    }
    void *host = ls_alloc((size_t)(p->n < CHUNK ? p->n : CHUNK) * size);
    if (!host) return ls_nomem(CHUNK * size, "initial weights");
    ls_status st = LS_OK;
    for (int64_t at = 0; at < p->n && st == LS_OK; at += CHUNK) {
        const int64_t n = p->n - at < CHUNK ? p->n - at : CHUNK;
        init_here(m, seed, &(ls_piece){p->what, p->unit, p->first + at, n, host});
        st = ls_compute_write(c, ls_at_wide(c, p->data, at), host, (size_t)n * size);
    }
    ls_free(host);
    return st;
}

void ls_model_init(ls_model *m, uint64_t seed)
{
    LS_ASSERT(!m->compute->device && !ls_compute_mixed(m->compute));
    for (int i = 0; i < m->n_unit; i++)
        init_here(m, seed, &(ls_piece){LS_FLAT_PARAM, i, 0, m->unit[i].n_pad, m->unit[i].param});
}
