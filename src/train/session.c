#include "train/session.h"

#include "core/fs.h"
#include "core/mem.h"
#include "core/rng.h"
#include "train/checkpoint.h"
#include "train/hf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ls_status open_tokenizer(ls_session *s)
{
    char *path = ls_path_join(s->path, "tokenizer.json");
    if (!path) return ls_nomem(256, "a path");
    ls_status st = LS_OK;
    if (!ls_fs_exists(path))
        st = ls_fail(LS_E_IO, "%s has no tokenizer.json: copy the one that made its data there", s->path);
    else st = ls_tokenizer_load(path, &s->tokenizer);
    ls_free(path);
    return st;
}

static ls_status load_weights(ls_session *s)
{
    if (ls_ckpt_is(s->path)) return ls_ckpt_load(s->model, s->path, false, NULL, NULL);
    return ls_hf_load(s->model, s->path);
}

static ls_status set_up(ls_session *s, const ls_session_opts *o)
{
    ls_model_config cfg;
    LS_TRY(ls_ckpt_resolve(o->checkpoint, &s->path));
    LS_TRY(ls_model_config_load(s->path, &cfg));
    if (o->tokenizer) LS_TRY(open_tokenizer(s));
    LS_TRY(ls_compute_open(&s->compute, o->compute, LS_F32, o->threads));
    LS_TRY(ls_model_create(&s->model, &cfg, &s->compute, 1));

    const int64_t T = o->T < cfg.n_ctx ? o->T : cfg.n_ctx, cache = o->cache_len < cfg.n_ctx ? o->cache_len : cfg.n_ctx;
    const int64_t esize = (int64_t)ls_dtype_nbytes(s->compute.ops->dtype);
    const int U = s->model->n_unit;
    int *row = ls_alloc((size_t)U * sizeof *row);
    if (!row) return ls_nomem((size_t)U * sizeof *row, "the memory plan");
    for (int u = 0; u < U; u++)
        row[u] = ls_plan_add(&s->plan, LS_PART_PARAM, s->model->unit[u].n_pad * esize, LS_PLAN_ALWAYS, "unit %d", u);
    ls_status st = ls_acts_plan(&s->acts, s->model, &(ls_acts_opts){.B = o->B, .T = T, .cache_len = cache}, &s->plan);
    int ids = ls_plan_add(&s->plan, LS_PART_WORK, o->B * T * 4, LS_PLAN_ALWAYS, "ids");
    int target = ls_plan_add(&s->plan, LS_PART_WORK, o->B * T * 4, LS_PLAN_ALWAYS, "targets");
    int logits =
        ls_plan_add(&s->plan, LS_PART_WORK, cache ? o->B * cfg.vocab_size * esize : 0, LS_PLAN_ALWAYS, "logits");
    if (st == LS_OK) st = ls_plan_layout(&s->plan);
    if (st == LS_OK) st = ls_plan_alloc(&s->plan, false);
    if (st == LS_OK) {
        for (int u = 0; u < U; u++) s->model->unit[u].param = ls_plan_at(&s->plan, row[u]);
        ls_acts_bind(s->acts, s->model, &s->plan);
        s->ids = ls_plan_at(&s->plan, ids);
        s->target = ls_plan_at(&s->plan, target);
        s->logits = ls_plan_at(&s->plan, logits);
        st = load_weights(s);
    }
    ls_free(row);
    return st;
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
    ls_acts_destroy(&s->acts);
    ls_model_destroy(&s->model);
    ls_plan_fini(&s->plan);
    ls_free(s->path);
    *s = (ls_session){0};
}

ls_status ls_session_feed(ls_session *s, const int32_t *ids, int64_t n, int64_t pos)
{
    LS_ASSERT(n > 0 && pos + n <= s->acts->cache_len);
    for (int64_t done = 0; done < n;) {
        int64_t k = n - done < s->acts->T ? n - done : s->acts->T;
        ls_micro mb = {.ids = ids + done, .B = 1, .T = k, .pos = pos + done};
        LS_TRY(ls_walk_fwd(s->model, s->acts, &mb, NULL, 0, s->model->n_unit));
        done += k;
        if (done == n) LS_TRY(ls_model_logits(s->model, s->acts, &mb, true, s->logits));
    }
    return LS_OK;
}

static int by_logit(const void *a, const void *b)
{
    const ls_sample_work *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id); /* equal ones: the lower id first, so that the choice is a function */
}

int32_t ls_sample(const ls_sampling *p, const float *logits, int V, int64_t pos, ls_sample_work *work)
{
    int best = 0;
    for (int i = 1; i < V; i++)
        if (logits[i] > logits[best]) best = i;
    if (p->temperature == 0 || p->top_k == 1) return best;

    /* Only what top_k, or a logit within reach of the best (e^-30 is less than 1e-13 of it), can be drawn. */
    const double t = p->temperature;
    int n = 0;
    for (int i = 0; i < V; i++)
        if (((double)logits[i] - (double)logits[best]) / t > -30) work[n++] = (ls_sample_work){logits[i], i};
    qsort(work, (size_t)n, sizeof *work, by_logit);
    if (p->top_k > 0 && p->top_k < n) n = (int)p->top_k;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp(((double)work[i].logit - (double)work[0].logit) / t);
    if (p->top_p < 1) { /* the smallest head whose probability reaches top_p */
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
