#include "infer/session.h"

#include "core/fs.h"
#include "core/half.h"
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

static ls_status load_weights(ls_session *s)
{
    if (ls_ckpt_is(s->path)) return ls_ckpt_load(s->model, s->path, false, NULL, 0, NULL, NULL, NULL);
    return ls_hf_load(s->model, s->path, NULL, 0, NULL);
}

/* How many ids to draft: see LS_SPECULATE_AUTO. */
static int resolve_speculation(const ls_session *s, const ls_session_opts *o, int64_t cache)
{
    int64_t nbytes = 0;
    for (int u = 0; u < s->model->n_unit; u++) nbytes += s->model->unit[u].n * 4;
    if (!cache || o->B != 1 || s->compute.device) return 0;
    if (o->speculate != LS_SPECULATE_AUTO) return o->speculate;
    return nbytes > (64 << 20) && strcmp(o->compute, "cpu") == 0 ? 4 : 0;
}

/* Plans, allocates and assigns all memory. */
static ls_status make_memory(ls_session *s, const ls_session_opts *o)
{
    const ls_model_config *cfg = &s->model->cfg;
    const bool device = s->compute.device != NULL;
    const int64_t T = LS_MIN(o->T, cfg->n_ctx), cache = LS_MIN(o->cache_len, cfg->n_ctx);
    const int64_t esize = (int64_t)ls_dtype_nbytes(s->compute.ops->dtype);
    const int U = s->model->n_unit;
    ls_plan *plan = &s->plan;
    int out = 0, out_host = 0;
    plan->device = s->compute.device;
    for (int u = 0; u < U; u++) /* rows 0 … U-1 */
        ls_plan_add(plan, LS_PART_PARAM, s->model->unit[u].n_pad * esize, LS_PLAN_ALWAYS, "unit %d", u);
    LS_TRY(ls_acts_plan(&s->acts, s->model, &(ls_acts_opts){.B = o->B, .T = T, .cache_len = cache}, plan));
    LS_TRY(ls_input_plan(&s->input, &s->compute, o->B * T, 1, plan));
    s->speculate = s->ahead = resolve_speculation(s, o, cache);
    const int64_t n_logits = cache ? (o->B + s->speculate) * cfg->vocab_size : 0;
    const int columns =
        ls_plan_add_host(plan, LS_PART_WORK, cache ? o->B * T * (int64_t)sizeof(int32_t) : 0, "columns");
    const int loss = ls_plan_add_host(plan, LS_PART_WORK, sizeof(double), "loss");
    const int logits = ls_plan_add_host(plan, LS_PART_WORK, n_logits * (device ? 4 : esize), "logits");
    if (device) {
        out = ls_plan_add(plan, LS_PART_WORK, n_logits * esize, LS_PLAN_ALWAYS, "logits");
        out_host = ls_plan_add_host(plan, LS_PART_WORK, n_logits * esize, "logits of the device");
    }
    if (s->speculate) LS_TRY(ls_draft_plan(&s->draft, s->model, plan));
    LS_TRY(ls_plan_layout(plan));
    LS_TRY(ls_plan_alloc(plan, false));

    for (int u = 0; u < U; u++) s->model->unit[u].param = ls_plan_at(plan, u);
    ls_acts_bind(s->acts, s->model, plan);
    ls_input_bind(&s->input, plan);
    s->loss = ls_plan_at(plan, loss);
    s->columns = ls_plan_at(plan, columns);
    s->logits = ls_plan_at(plan, logits);
    if (device) {
        s->out = ls_plan_at(plan, out);
        s->out_host = ls_plan_at(plan, out_host);
    }
    if (s->draft) ls_draft_bind(s->draft, plan);
    return ls_input_open(&s->input, 0, &s->ids, &s->target);
}

ls_status ls_session_where(ls_session_opts *o, const ls_device_choice *d, const char *precision, const char *compute,
                           bool tf32)
{
    const bool cuda = d->cuda;
    char no_gpu[LS_DEVICE_WORDS];
    o->device = d->index;
    o->dtype = ls_precision_dtype(ls_precision_choose(precision, cuda));
    o->compute = cuda ? "cuda" : compute;
    o->tf32 = tf32;
    if (!cuda && o->dtype == LS_F16)
        return ls_fail(LS_E_UNSUPPORTED, "--precision %s: the CPU supports only fp32 and bf16; use one of them; %s",
                       precision, ls_device_no_gpu(d, no_gpu));
    if (cuda && strcmp(compute, "cpu"))
        return ls_fail(LS_E_CONFIG, "--compute %s is a CPU backend, but --device is %s; remove one of them", compute,
                       d->asked);
    if (tf32 && (!cuda || o->dtype != LS_F32))
        return ls_fail(LS_E_CONFIG, "--tf32 needs a GPU and fp32: --device cuda --precision fp32");
    return LS_OK;
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
    LS_TRY(make_memory(s, o));
    s->n_choice = s->tokenizer ? LS_MIN(cfg.vocab_size, ls_tokenizer_n_vocab(s->tokenizer)) : cfg.vocab_size;
    ls_info("infer", "weights from %s; %d tokens are drafted ahead", s->path, s->speculate);
    LS_TRY(load_weights(s));
    return s->draft ? ls_draft_fill(s->draft, s->model) : LS_OK;
}

ls_status ls_session_open(ls_session *s, const ls_session_opts *o)
{
    *s = (ls_session){0};
    ls_status st = set_up(s, o);
    if (st != LS_OK) ls_session_close(s);
    return st;
}

void ls_session_close(ls_session *s)
{
    ls_tokenizer_destroy(&s->tokenizer);
    ls_draft_destroy(&s->draft);
    ls_acts_destroy(&s->acts);
    ls_model_destroy(&s->model);
    ls_input_fini(&s->input);
    ls_plan_fini(&s->plan);
    if (s->compute.ops) ls_compute_close(&s->compute);
    ls_free(s->path);
    *s = (ls_session){0};
}

ls_status ls_session_loss(ls_session *s, int64_t B, int64_t T, double *sum, int64_t *counted)
{
    ls_micro mb = {.B = B, .T = T, .loss = s->loss};
    LS_TRY(ls_input_send(&s->input, 0, &mb));
    LS_TRY(ls_walk(s->model, s->acts, &mb, NULL, LS_FWD, 0, s->model->n_unit));
    LS_TRY(ls_input_used(&s->input, 0));
    LS_TRY(ls_compute_sync(&s->compute));
    *sum = *s->loss;
    *counted = mb.n_counted;
    return LS_OK;
}

/* Runs n columns of B rows through the cache from pos. A device reads the ids from device memory. */
static ls_status pass(ls_session *s, const int32_t *ids, int64_t B, int64_t n, int64_t pos, const ls_draft *draft,
                      ls_micro *mb)
{
    *mb = (ls_micro){.ids = ids, .B = B, .T = n, .pos = pos, .draft = draft};
    if (!s->compute.device) return ls_walk(s->model, s->acts, mb, NULL, LS_FWD, 0, s->model->n_unit);
    int32_t *room, *target;
    LS_TRY(ls_input_open(&s->input, 0, &room, &target));
    memcpy(room, ids, (size_t)(B * n) * sizeof *ids);
    LS_TRY(ls_input_send(&s->input, 0, mb));
    mb->target = NULL;
    LS_TRY(ls_walk(s->model, s->acts, mb, NULL, LS_FWD, 0, s->model->n_unit));
    return ls_input_used(&s->input, 0);
}

/* Copies the logits of the last column, or of all tokens of the pass, to host memory as floats. */
static ls_status copy_logits(ls_session *s, const ls_micro *mb, bool last_only)
{
    if (!s->compute.device) return ls_model_logits(s->model, s->acts, mb, last_only, s->logits);
    const ls_dtype dt = s->compute.ops->dtype;
    const int64_t n = mb->B * (last_only ? 1 : mb->T) * s->model->cfg.vocab_size;
    LS_TRY(ls_model_logits(s->model, s->acts, mb, last_only, s->out));
    LS_TRY(ls_compute_read(&s->compute, s->out_host, s->out, (size_t)n * ls_dtype_nbytes(dt)));
    const uint16_t *half = s->out_host;
    if (dt == LS_F32) memcpy(s->logits, s->out_host, (size_t)n * sizeof(float));
    else
        for (int64_t i = 0; i < n; i++) s->logits[i] = dt == LS_F16 ? ls_from_f16(half[i]) : ls_from_bf16(half[i]);
    return LS_OK;
}

/* The same; damaged weights give values that are not finite, of which no id can be chosen. */
static ls_status logits(ls_session *s, const ls_micro *mb, bool last_only)
{
    const int64_t n = mb->B * (last_only ? 1 : mb->T) * s->model->cfg.vocab_size;
    LS_TRY(copy_logits(s, mb, last_only));
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(s->logits[i]))
            return ls_fail(LS_E_NUMERIC, "%s: the model computes values that are not finite; its weights are damaged",
                           s->path);
    return LS_OK;
}

ls_status ls_session_feed(ls_session *s, const int32_t *ids, int64_t n, int64_t pos)
{
    LS_ASSERT(n > 0 && pos + n <= s->acts->cache_len);
    for (int64_t done = 0; done < n;) {
        int64_t k = n - done < s->acts->T ? n - done : s->acts->T;
        ls_micro mb;
        LS_TRY(pass(s, ids + done, 1, k, pos + done, NULL, &mb));
        done += k;
        if (done == n) LS_TRY(logits(s, &mb, true));
    }
    return LS_OK;
}

ls_status ls_session_feed_rows(ls_session *s, const int32_t *ids, int64_t B, int64_t n, int64_t pos)
{
    LS_ASSERT(n > 0 && B <= s->acts->B && pos + n <= s->acts->cache_len);
    for (int64_t done = 0; done < n;) {
        const int64_t k = LS_MIN(n - done, s->acts->T);
        ls_micro mb;
        for (int64_t b = 0; b < B; b++) /* the columns of this pass, side by side */
            memcpy(s->columns + b * k, ids + b * n + done, (size_t)k * sizeof *ids);
        LS_TRY(pass(s, s->columns, B, k, pos + done, NULL, &mb));
        done += k;
        if (done == n) LS_TRY(logits(s, &mb, true));
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
        ls_micro mb;
        LS_TRY(pass(s, ids + n - 1 + j, 1, 1, n - 1 + j, s->draft, &mb));
        LS_TRY(logits(s, &mb, true));
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
    const int V = s->model->cfg.vocab_size;
    const int64_t first = *n;
    LS_ASSERT(first > 0 && first < limit && limit <= s->acts->cache_len + 1);
    int k = 0;
    if (s->speculate && s->rest > 0) s->rest--;
    else if (s->speculate) k = s->ahead < limit - first - 1 ? s->ahead : (int)(limit - first - 1);
    LS_TRY(draft(s, how, ids, first, k, work));
    ls_micro mb;
    LS_TRY(pass(s, ids + first - 1, 1, k + 1, first - 1, NULL, &mb));
    LS_TRY(logits(s, &mb, false));
    int right = 0;
    for (bool same = true; same; right += same) {
        const int32_t id =
            ls_sample(how, s->logits + (int64_t)right * V, s->n_choice, how->first + first + right, work);
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

int32_t ls_sample(const ls_sampling *p, const float *logits, int V, int64_t pos, ls_sample_work *work)
{
    const int best = first_best(logits, V);
    if (p->temperature == 0 || p->top_k == 1) return best;

    /* Only what top_k, or a logit within reach of the best (e^-30 is less than 1e-13 of it), can be drawn. */
    const double t = p->temperature;
    const int most = p->top_k > 0 && p->top_k < V ? (int)p->top_k : V;
    int n = 0;
    for (int i = 0; i < V; i++) {
        if (n == most && logits[i] <= work[0].logit) continue; /* on ties keep the lower id */
        if (!(((double)logits[i] - (double)logits[best]) / t > -30)) continue;
        const bool full = n == most;
        work[full ? 0 : n++] = (ls_sample_work){logits[i], i};
        if (full) sift(work, n, 0);
        else if (n == most && most < V)
            for (int h = n / 2 - 1; h >= 0; h--) sift(work, n, h);
    }
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
        if (u < 0) return work[i].id;
    }
    return work[n - 1].id;
}
