#include "infer/session.h"

#include "core/fs.h"
#include "core/half.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/rng.h"
#include "ckpt/checkpoint.h"
#include "ckpt/hf.h"
#include "config/resolve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ls_status open_tokenizer(ls_session *s)
{
    char from[PATH_MAX];
    LS_TRY(ls_ckpt_tokenizer(s->path, from));
    if (!*from)
        return ls_fail(
            LS_E_IO,
            "%s has neither tokenizer.json nor vocab.json + merges.txt; copy those that its training data was made with",
            s->path);
    return ls_tokenizer_load(from, &s->tokenizer);
}

static ls_status load_weights(ls_model *m, const char *path)
{
    if (ls_ckpt_is(path)) return ls_ckpt_load(m, path, false, NULL, 0, NULL, NULL, NULL);
    return ls_hf_load(m, path, NULL, 0, NULL);
}

/* The weights in fp32 in host memory, for as long as a device's packed copies are made of them: those that the CPU would have. */
static ls_status pack_for_device(ls_session *s)
{
    ls_compute cpu = {0};
    ls_model *m = NULL;
    ls_plan plan = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, ls_compute_open(&cpu, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 0));
    LS_TRY_GOTO(st, done, ls_model_create(&m, &s->model->cfg, &cpu, 1));
    for (int u = 0; u < m->n_unit; u++)
        ls_plan_add(&plan, LS_PART_PARAM, m->unit[u].n_pad * (int64_t)sizeof(float), LS_PLAN_ALWAYS, "unit %d", u);
    LS_TRY_GOTO(st, done, ls_plan_layout(&plan));
    LS_TRY_GOTO(st, done, ls_plan_alloc(&plan, false));
    for (int u = 0; u < m->n_unit; u++) m->unit[u].param = ls_plan_at(&plan, u);
    LS_TRY_GOTO(st, done, load_weights(m, s->path));
    LS_TRY_GOTO(st, done, ls_packed_send(s->packed, &s->compute, m));
done:
    ls_model_destroy(&m);
    ls_plan_fini(&plan);
    if (cpu.ops) ls_compute_close(&cpu);
    return st;
}

/* How many ids to draft: see LS_SPECULATE_AUTO. */
static int resolve_speculation(const ls_session *s, const ls_session_opts *o, int64_t cache)
{
    int64_t nbytes = 0;
    for (int u = 0; u < s->model->n_unit; u++) nbytes += s->model->unit[u].n * (o->weights == LS_PACK_BF16 ? 2 : 4);
    if (!cache || o->B != 1 || s->compute.device || o->weights == LS_PACK_INT8) return 0;
    if (o->speculate != LS_SPECULATE_AUTO) return o->speculate;
    return !o->weights && nbytes > (64 << 20) && strcmp(o->compute, "cpu") == 0 ? 4 : 0;
}

/* Columns of one pass. A device is fast with many rows, of which memory for some thousands is small beside the weights. */
static int64_t columns_of(const ls_session *s, const ls_session_opts *o)
{
    enum { ROWS = 16384, LEAST = 128, MOST = 1024 };
    if (o->T) return o->T;
    return s->compute.device ? LS_MAX(LS_MIN(ROWS / o->B, MOST), LEAST) : LEAST;
}

/* Plans, allocates and assigns all memory. */
static ls_status make_memory(ls_session *s, const ls_session_opts *o)
{
    const ls_model_config *cfg = &s->model->cfg;
    const bool device = s->compute.device != NULL;
    const int64_t cache = LS_MIN(o->cache_len, cfg->n_ctx);
    const int64_t T = LS_MIN(columns_of(s, o), cache ? cache : cfg->n_ctx);
    const int64_t esize = (int64_t)ls_dtype_nbytes(s->compute.ops->dtype);
    const int U = s->model->n_unit;
    ls_plan *plan = &s->plan;
    int out = 0, out_host = 0;
    plan->device = s->compute.device;
    for (int u = 0; u < U; u++) /* rows 0 … U-1 */
        ls_plan_add(plan, LS_PART_PARAM, s->model->unit[u].n_pad * esize, LS_PLAN_ALWAYS, "unit %d", u);
    s->speculate = s->ahead = resolve_speculation(s, o, cache);
    const ls_acts_opts acts = {.B = o->B, .T = T, .cache_len = cache, .packed = o->weights || s->speculate};
    LS_TRY(ls_acts_plan(&s->acts, s->model, &acts, plan));
    LS_TRY(ls_input_plan(&s->input, &s->compute, o->B * T, 1, plan));
    const int64_t n_logits = cache ? (o->B + s->speculate) * cfg->vocab_size : 0;
    const int columns =
        ls_plan_add_host(plan, LS_PART_WORK, cache ? o->B * T * (int64_t)sizeof(int32_t) : 0, "columns");
    const int loss = ls_plan_add_host(plan, LS_PART_WORK, sizeof(double), "loss");
    s->n_best = cache && s->compute.ops->best ? LS_MIN(o->n_best, s->n_choice) : 0;
    const int logits = ls_plan_add_host(plan, LS_PART_WORK, s->n_best ? 0 : n_logits * (device ? 4 : esize), "logits");
    const int best = ls_plan_add_host(plan, LS_PART_WORK, o->B * s->n_best * (int64_t)sizeof *s->best, "best ids");
    const int log_sum =
        ls_plan_add_host(plan, LS_PART_WORK, s->n_best ? o->B * (int64_t)sizeof *s->log_sum : 0, "sums of logits");
    if (device) {
        out = ls_plan_add(plan, LS_PART_WORK, n_logits * esize, LS_PLAN_ALWAYS, "logits");
        out_host = ls_plan_add_host(plan, LS_PART_WORK, s->n_best ? 0 : n_logits * esize, "logits of the device");
    }
    if (o->weights) LS_TRY(ls_packed_plan(&s->packed, s->model, o->weights, plan));
    if (s->speculate) LS_TRY(ls_packed_plan(&s->draft, s->model, LS_PACK_INT8, plan));
    LS_TRY(ls_plan_layout(plan));
    LS_TRY(ls_plan_alloc(plan, false));

    for (int u = 0; u < U; u++) s->model->unit[u].param = ls_plan_at(plan, u);
    ls_acts_bind(s->acts, s->model, plan);
    ls_input_bind(&s->input, plan);
    s->loss = ls_plan_at(plan, loss);
    s->columns = ls_plan_at(plan, columns);
    s->logits = ls_plan_at(plan, logits);
    s->best = ls_plan_at(plan, best);
    s->log_sum = ls_plan_at(plan, log_sum);
    if (device) {
        s->out = ls_plan_at(plan, out);
        s->out_host = ls_plan_at(plan, out_host);
    }
    if (s->packed) ls_packed_bind(s->packed, plan);
    if (s->draft) ls_packed_bind(s->draft, plan);
    return ls_input_open(&s->input, 0, &s->ids, &s->target);
}

/* --precision bf16 on the CPU: a kernel that multiplies bf16 copies reads them unless --weights says otherwise. Other copies are not
 * multiplied in bf16, and auto then means fp32. */
static ls_status choose_copies(ls_session_opts *o, const char *asked, const char *weights)
{
    const ls_cpu_bf16 cpu = ls_compute_cpu_bf16_used();
    const bool int8 = weights && !strcmp(weights, "int8");
    if (o->dtype != LS_BF16 || (weights && !strcmp(weights, "fp32"))) return LS_OK;
    if (cpu.copies && !int8) o->weights = LS_PACK_BF16;
    else if (weights && !strcmp(asked, "auto")) o->dtype = LS_F32;
    else if (int8)
        return ls_fail(
            LS_E_CONFIG,
            "--weights int8: the CPU multiplies these weights as 8-bit integers, so --precision %s cannot be used; leave "
            "--precision out, or use a GPU (--device cuda)",
            asked);
    else if (weights)
        return ls_fail(
            LS_E_CONFIG,
            "--weights bf16: with --precision bf16 it needs a CPU with AMX, but the kernel of this run is %s; leave "
            "--weights out, or --precision (then products are computed in fp32)",
            cpu.kernel ? cpu.kernel : "not one for bf16 (LS_GEMM)");
    return LS_OK;
}

/* A GPU has its weights in the type in which it computes, or in int8, which it multiplies with 16-bit numbers. */
static ls_status choose_weights(ls_session_opts *o, const ls_device_choice *d, const char *precision,
                                const char *weights)
{
    if (!weights) return LS_OK;
    const bool int8 = !strcmp(weights, "int8");
    if (d->cuda && int8 && o->dtype == LS_F32)
        return ls_fail(LS_E_CONFIG, "--weights int8: on a GPU it needs --precision bf16 or fp16, but --precision is %s",
                       precision);
    if (d->cuda && !int8 && strcmp(weights, precision))
        return ls_fail(
            LS_E_CONFIG,
            "--weights %s: on a GPU the weights are int8 or have the type of --precision, which is %s; leave "
            "--weights out, or use --device cpu",
            weights, precision);
    if (int8) o->weights = LS_PACK_INT8;
    else if (!strcmp(weights, "bf16")) o->weights = LS_PACK_BF16;
    return LS_OK;
}

ls_status ls_session_where(ls_session_opts *o, const ls_device_choice *d, const char *precision, const char *compute,
                           bool tf32, const char *weights)
{
    const bool cuda = d->cuda;
    char no_gpu[LS_DEVICE_WORDS];
    o->device = d->index;
    o->compute = cuda ? "cuda" : compute;
    const char *chosen = ls_precision_of_backend(precision, o->compute, d->card);
    o->dtype = ls_precision_dtype(chosen);
    o->tf32 = tf32;
    if (!cuda && o->dtype == LS_F16)
        return ls_fail(LS_E_UNSUPPORTED, "--precision %s: the CPU supports only fp32 and bf16; use one of them; %s",
                       precision, ls_device_no_gpu(d, no_gpu));
    if (!cuda && o->dtype == LS_BF16 && strcmp(compute, "cpu"))
        return ls_fail(LS_E_UNSUPPORTED, "--compute %s: it supports only fp32; use --compute cpu or --precision fp32",
                       compute);
    if (cuda && strcmp(compute, "cpu"))
        return ls_fail(LS_E_CONFIG, "--compute %s is a CPU backend, but --device is %s; remove one of them", compute,
                       d->asked);
    if (tf32 && (!cuda || o->dtype != LS_F32))
        return ls_fail(LS_E_CONFIG, "--tf32 needs a GPU and fp32: --device cuda --precision fp32");
    if (cuda) LS_TRY(ls_precision_check("--precision bf16", chosen, d));
    if (tf32) LS_TRY(ls_precision_check_tf32(d));
    if (!cuda && !strcmp(compute, "cpu")) LS_TRY(choose_copies(o, precision, weights));
    return choose_weights(o, d, chosen, weights);
}

const char *ls_session_weights(const ls_session *s, int64_t *nbytes)
{
    const ls_dtype dt = s->compute.ops->dtype;
    if (s->packed) {
        *nbytes = s->packed->nbytes;
        return s->packed->form == LS_PACK_INT8 ? "int8" : "bf16";
    }
    *nbytes = ls_model_matrix_elements(s->model) * (int64_t)ls_dtype_nbytes(dt);
    return dt == LS_BF16 ? "bf16" : dt == LS_F16 ? "fp16" : "fp32";
}

static ls_status set_up(ls_session *s, const ls_session_opts *o)
{
    ls_model_config cfg;
    LS_ASSERT(o->speculate >= LS_SPECULATE_AUTO && o->speculate <= LS_SPECULATE_MAX);
    LS_TRY(ls_ckpt_resolve("--checkpoint", o->checkpoint, &s->path));
    LS_TRY(ls_ckpt_config(s->path, &cfg));
    if (o->tokenizer) LS_TRY(open_tokenizer(s));
    if (o->opened) s->compute = *o->opened;
    const ls_compute_open_opts how = {.dtype = o->dtype, .device = o->device, .tf32 = o->tf32, .deterministic = true};
    if (!o->opened) LS_TRY(ls_compute_open(&s->compute, o->compute, &how, o->threads));
    LS_TRY(ls_model_create(&s->model, &cfg, &s->compute, 1));
    s->n_choice = s->tokenizer ? LS_MIN(cfg.vocab_size, ls_tokenizer_n_vocab(s->tokenizer)) : cfg.vocab_size;
    LS_TRY(make_memory(s, o));
    ls_info("infer", "weights from %s; %d tokens are drafted ahead", s->path, s->speculate);
    LS_TRY(load_weights(s->model, s->path));
    if (s->packed) LS_TRY(s->compute.device ? pack_for_device(s) : ls_packed_fill(s->packed, s->model));
    return s->draft ? ls_packed_fill(s->draft, s->model) : LS_OK;
}

void ls_session_close(ls_session *s)
{
    ls_tokenizer_destroy(&s->tokenizer);
    ls_packed_destroy(&s->packed);
    ls_packed_destroy(&s->draft);
    ls_acts_destroy(&s->acts);
    ls_model_destroy(&s->model);
    ls_input_fini(&s->input);
    ls_plan_fini(&s->plan);
    if (s->compute.ops) ls_compute_close(&s->compute);
    ls_free(s->path);
    *s = (ls_session){0};
}

/* The copies for a pass over n columns of B rows. With many rows a device makes bf16 products faster with the matrices themselves: the same
 * weights, but another order of sums, so that a text may depend on the batch it is in. */
static const ls_packed *copies(const ls_session *s, const ls_packed *weights, int64_t B, int64_t n)
{
    enum { FEW = 32 };
    const bool many = s->compute.device && (n > 1 || B > FEW);
    return many && weights && weights->form == LS_PACK_BF16 ? NULL : weights;
}

ls_status ls_session_loss(ls_session *s, int64_t B, int64_t T, double *sum, int64_t *counted)
{
    ls_micro mb = {.B = B, .T = T, .loss = s->loss, .packed = copies(s, s->packed, B, T)};
    LS_TRY(ls_input_send(&s->input, 0, &mb));
    LS_TRY(ls_walk(s->model, s->acts, &mb, NULL, LS_FWD, 0, s->model->n_unit));
    LS_TRY(ls_input_used(&s->input, 0));
    LS_TRY(ls_compute_sync(&s->compute));
    *sum = *s->loss;
    *counted = mb.n_counted;
    return LS_OK;
}

/* What the host needs of the logits of a pass. */
typedef enum wanted { NOTHING, LAST_COLUMN, ALL_COLUMNS } wanted;

static int64_t rows_of(const ls_micro *mb, wanted want)
{
    return mb->B * (want == ALL_COLUMNS ? mb->T : 1);
}

static ls_status not_finite(const ls_session *s)
{
    return ls_fail(LS_E_NUMERIC,
                   "%s: the model computes values that are not finite: the weights are damaged; use another checkpoint",
                   s->path);
}

/* The operations of a pass. */
static ls_status compute(ls_session *s, ls_micro *mb, wanted want)
{
    ls_compute *c = &s->compute;
    LS_TRY(ls_walk(s->model, s->acts, mb, NULL, LS_FWD, 0, s->model->n_unit));
    if (want == NOTHING) return LS_OK;
    LS_TRY(ls_model_logits(s->model, s->acts, mb, want == LAST_COLUMN, c->device ? s->out : s->logits));
    if (!s->n_best) return LS_OK;
    return c->ops->best(c, s->best, s->log_sum, s->out, rows_of(mb, want), s->model->cfg.vocab_size, s->n_choice,
                        s->n_best);
}

/* A pass over one column: only its ids and its position differ from those of the last one, so that it is recorded with the transfer of both. */
static ls_status recorded(ls_session *s, ls_micro *mb)
{
    ls_compute *c = &s->compute;
    const struct {
        const void *acts, *packed;
        int64_t B, n_best, n_choice;
    } all = {s->acts, mb->packed, mb->B, s->n_best, s->n_choice};
    bool queued = false;
    ls_input_fill(&s->input, 0, mb);
    LS_TRY(c->ops->region_begin(c, ls_xxh64(&all, sizeof all), &queued));
    if (queued) return LS_OK;
    ls_status st = ls_input_copy(&s->input, 0, mb);
    if (st == LS_OK) st = compute(s, mb, LAST_COLUMN);
    const ls_status end = c->ops->region_end(c);
    return st != LS_OK ? st : end;
}

/* Queues a pass. A device reads the ids from device memory. */
static ls_status queue(ls_session *s, ls_micro *mb, wanted want)
{
    if (!s->compute.device) return compute(s, mb, want);
    const int32_t *ids = mb->ids;
    int32_t *room, *target;
    LS_TRY(ls_input_open(&s->input, 0, &room, &target));
    memcpy(room, ids, (size_t)(mb->B * mb->T) * sizeof *ids);
    if (mb->T == 1 && want != NOTHING && s->compute.ops->region_begin) return recorded(s, mb);
    LS_TRY(ls_input_send(&s->input, 0, mb));
    mb->target = NULL;
    LS_TRY(compute(s, mb, want));
    return ls_input_used(&s->input, 0);
}

/* Copies n logits of a device to host memory as floats. */
static ls_status copy_logits(ls_session *s, int64_t n)
{
    const ls_dtype dt = s->compute.ops->dtype;
    LS_TRY(ls_compute_read(&s->compute, s->out_host, s->out, (size_t)n * ls_dtype_nbytes(dt)));
    const uint16_t *half = s->out_host;
    if (dt == LS_F32) memcpy(s->logits, s->out_host, (size_t)n * sizeof(float));
    else
        for (int64_t i = 0; i < n; i++) s->logits[i] = dt == LS_F16 ? ls_from_f16(half[i]) : ls_from_bf16(half[i]);
    return LS_OK;
}

/* Runs n columns of B rows through the cache from pos. Damaged weights give logits that are not finite, of which no id can be chosen. */
static ls_status pass(ls_session *s, const int32_t *ids, int64_t B, int64_t n, int64_t pos, const ls_packed *weights,
                      wanted want)
{
    ls_micro mb = {.ids = ids, .B = B, .T = n, .pos = pos, .packed = copies(s, weights, B, n)};
    LS_TRY(queue(s, &mb, want));
    if (want == NOTHING) return LS_OK;
    const int64_t rows = rows_of(&mb, want), n_logit = rows * s->model->cfg.vocab_size;
    if (s->n_best) {
        LS_TRY(ls_compute_sync(&s->compute));
        for (int64_t r = 0; r < rows; r++)
            if (!isfinite(s->log_sum[r])) return not_finite(s);
        return LS_OK;
    }
    if (s->compute.device) LS_TRY(copy_logits(s, n_logit));
    int bad = 0;
    for (int64_t i = 0; i < n_logit; i++) bad |= (ls_bits_of(s->logits[i]) & 0x7f800000u) == 0x7f800000u;
    return bad ? not_finite(s) : LS_OK;
}

/* A device: chooses algorithms and records the pass over one column (compute.h, region_begin), so that the first token is as fast as the
 * others. What it writes to the cache is overwritten before it is read. */
static ls_status warm_up(ls_session *s)
{
    for (int64_t i = 0; i < s->acts->B; i++) s->columns[i] = 0;
    for (int time = 0; time < 3; time++) LS_TRY(pass(s, s->columns, s->acts->B, 1, 0, s->packed, LAST_COLUMN));
    return LS_OK;
}

ls_status ls_session_open(ls_session *s, const ls_session_opts *o)
{
    *s = (ls_session){0};
    ls_status st = set_up(s, o);
    if (st == LS_OK && s->compute.ops->region_begin && s->acts->cache_len) st = warm_up(s);
    if (st != LS_OK) ls_session_close(s);
    return st;
}

ls_status ls_session_feed(ls_session *s, const int32_t *ids, int64_t n, int64_t pos)
{
    LS_ASSERT(n > 0 && pos + n <= s->acts->cache_len);
    for (int64_t done = 0, k; done < n; done += k) {
        k = LS_MIN(n - done, s->acts->T);
        LS_TRY(pass(s, ids + done, 1, k, pos + done, s->packed, done + k == n ? LAST_COLUMN : NOTHING));
    }
    return LS_OK;
}

ls_status ls_session_feed_rows(ls_session *s, const int32_t *ids, int64_t B, int64_t n, int64_t pos)
{
    LS_ASSERT(n > 0 && B <= s->acts->B && pos + n <= s->acts->cache_len);
    for (int64_t done = 0, k; done < n; done += k) {
        k = LS_MIN(n - done, s->acts->T);
        for (int64_t b = 0; b < B; b++) /* the columns of this pass, side by side */
            memcpy(s->columns + b * k, ids + b * n + done, (size_t)k * sizeof *ids);
        LS_TRY(pass(s, s->columns, B, k, pos + done, s->packed, done + k == n ? LAST_COLUMN : NOTHING));
    }
    return LS_OK;
}

int64_t ls_session_window(const ls_session *s, int64_t end)
{
    const int64_t most = s->acts->cache_len, drop = most - most / 2;
    return end <= most ? 0 : (end - most + drop - 1) / drop * drop;
}

/* Drafts k tokens after ids[0..n). */
static ls_status draft(ls_session *s, const ls_sampling *how, int32_t *ids, int64_t n, int k, ls_sample_work *work)
{
    for (int j = 0; j < k; j++) {
        LS_TRY(pass(s, ids + n - 1 + j, 1, 1, n - 1 + j, s->draft, LAST_COLUMN));
        ids[n + j] = ls_sample(how, s->logits, s->n_choice, how->first + n + j, work);
    }
    return LS_OK;
}

/* Draft length: one more if all k were accepted, half if fewer than half were; after a failed draft of 1, 16 tokens without drafts. */
static void adapt(ls_session *s, int k, int right)
{
    s->drafted += k;
    s->accepted += right;
    if (right == k && k == s->ahead && s->ahead < s->speculate) s->ahead++;
    else if (2 * right < k) s->ahead = s->ahead > 1 ? s->ahead / 2 : 1;
    if (k == 1 && right == 0) s->rest = 16;
}

ls_status ls_session_extend(ls_session *s, const ls_sampling *how, int32_t *ids, int64_t *n, int64_t limit,
                            ls_sample_work *work)
{
    const int64_t first = *n;
    LS_ASSERT(first > 0 && first < limit && limit <= s->acts->cache_len + 1);
    int k = 0;
    if (s->speculate && s->rest > 0) s->rest--;
    else if (s->speculate) k = s->ahead < limit - first - 1 ? s->ahead : (int)(limit - first - 1);
    LS_TRY(draft(s, how, ids, first, k, work));
    LS_TRY(pass(s, ids + first - 1, 1, k + 1, first - 1, s->packed, ALL_COLUMNS));
    int right = 0;
    for (bool same = true; same; right += same) {
        const int32_t id = ls_session_sample(s, how, right, how->first + first + right, work, NULL);
        same = right < k && ids[first + right] == id;
        ids[first + right] = id;
    }
    *n = first + right + 1;
    if (k) adapt(s, k, right);
    return LS_OK;
}

static int by_logit(const void *a, const void *b)
{
    const ls_sample_work *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id); /* ties: the lower id first, so that the result is unique */
}

/* Index of the maximum, the lowest on ties: finds the maximum in eight lanes, then its index. */
static int first_best(const float *x, int n)
{
    float top[8];
    for (int l = 0; l < 8; l++) top[l] = x[0];
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
    for (; i < n; i++) top[0] = x[i] > top[0] ? x[i] : top[0];
    for (int l = 1; l < 8; l++) top[0] = top[l] > top[0] ? top[l] : top[0];
    for (i = 0; i < n; i++)
        if (x[i] == top[0]) return i;
    return 0;
}

/* A heap of the best logits with the worst at the root, so that one comparison rejects most tokens. */
static void sift(ls_sample_work *heap, int n, int at)
{
    for (int child = 2 * at + 1; child < n; at = child, child = 2 * at + 1) {
        if (child + 1 < n && by_logit(&heap[child + 1], &heap[child]) > 0) child++;
        if (by_logit(&heap[at], &heap[child]) >= 0) return;
        const ls_sample_work x = heap[at];
        heap[at] = heap[child];
        heap[child] = x;
    }
}

/* Whether a logit is within reach of the best: e^-30 is less than 1e-13 of it. */
static bool in_reach(const ls_sampling *p, float logit, float best)
{
    return ((double)logit - (double)best) / p->temperature > -30;
}

/* Draws one of the n candidates in work. */
static ls_best draw(const ls_sampling *p, int n, int64_t pos, ls_sample_work *work)
{
    const double t = p->temperature;
    qsort(work, (size_t)n, sizeof *work, by_logit);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp(((double)work[i].logit - (double)work[0].logit) / t);
    if (p->top_p < 1) { /* the smallest set whose probability reaches top_p */
        double head = 0;
        int k = 0;
        while (k < n && (k == 0 || head < p->top_p * sum))
            head += exp(((double)work[k++].logit - (double)work[0].logit) / t);
        n = k;
        sum = head;
    }
    double u = ls_rng_uniform(ls_rng_key(p->seed, LS_RNG_SAMPLE, 0, 0), (uint64_t)pos) * sum;
    for (int i = 0; i < n; i++) {
        u -= exp(((double)work[i].logit - (double)work[0].logit) / t);
        if (u < 0) return work[i];
    }
    return work[n - 1];
}

int64_t ls_sampling_best(const ls_sampling *p)
{
    if (p->temperature == 0 || p->top_k == 1) return 1;
    return p->top_k > 0 && p->top_k <= LS_BEST_MOST ? p->top_k : 0;
}

int32_t ls_sample(const ls_sampling *p, const float *logits, int V, int64_t pos, ls_sample_work *work)
{
    const int best = first_best(logits, V);
    if (p->temperature == 0 || p->top_k == 1) return best;

    /* Only what top_k, or a logit within reach of the best, can be drawn. */
    const int most = p->top_k > 0 && p->top_k < V ? (int)p->top_k : V;
    int n = 0;
    for (int i = 0; i < V; i++) {
        if (n == most && logits[i] <= work[0].logit) continue; /* on ties keep the lower id */
        if (!in_reach(p, logits[i], logits[best])) continue;
        const bool full = n == most;
        work[full ? 0 : n++] = (ls_sample_work){logits[i], i};
        if (full) sift(work, n, 0);
        else if (n == most && most < V)
            for (int h = n / 2 - 1; h >= 0; h--) sift(work, n, h);
    }
    return draw(p, n, pos, work).id;
}

/* ls_sample for the ids that top_k leaves. */
static ls_best sample_best(const ls_sampling *p, const ls_best *best, int64_t n_best, int64_t pos, ls_sample_work *work)
{
    ls_best top = best[0];
    int n = 0;
    for (int64_t i = 1; i < n_best; i++)
        if (by_logit(&best[i], &top) < 0) top = best[i];
    if (p->temperature == 0 || p->top_k == 1) return top;
    for (int64_t i = 0; i < n_best; i++)
        if (in_reach(p, best[i].logit, top.logit)) work[n++] = best[i];
    return draw(p, n, pos, work);
}

int32_t ls_session_sample(const ls_session *s, const ls_sampling *how, int64_t row, int64_t pos, ls_sample_work *work,
                          float *logit)
{
    ls_best x;
    if (s->n_best) {
        LS_ASSERT(LS_MIN(ls_sampling_best(how), s->n_choice) == s->n_best);
        x = sample_best(how, s->best + row * s->n_best, s->n_best, pos, work);
    } else {
        const float *logits = s->logits + row * s->model->cfg.vocab_size;
        x.id = ls_sample(how, logits, s->n_choice, pos, work);
        x.logit = logits[x.id];
    }
    if (logit) *logit = x.logit;
    return x.id;
}
