/* Greedy and beam search in batches with the cache, compared with a search that computes every text from its start. */
#include "assert_near.h"
#include "core/mem.h"
#include "core/rng.h"
#include "model_fixture.h"
#include "infer/decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 19, N_CTX = 20, N_PROMPT = 11, STOP = 1 };

/* A session over a model in memory with `rows` rows; passes have at most 5 columns. */
typedef struct box {
    fixture f;
    ls_session s;
    double table[V][V]; /* of box_open_table */
    bool tabled;
} box;

static void box_open_variant(box *b, int64_t rows, ls_variant variant)
{
    *b = (box){0};
    ls_model_config cfg = small_config(variant, 0);
    cfg.n_embd = 32;
    cfg.n_ctx = N_CTX;
    assert_int_equal(fixture_open(&b->f, &cfg, "cpu", LS_F32, 1, 1, N_CTX, 1, false, 1), LS_OK);
    ls_session *s = &b->s;
    *s = (ls_session){.compute = b->f.compute, .model = b->f.model, .n_choice = V};
    s->model->compute = &s->compute;
    assert_int_equal(ls_acts_plan(&s->acts, s->model, &(ls_acts_opts){.B = rows, .T = 5, .cache_len = N_CTX}, &s->plan),
                     LS_OK);
    const int logits = ls_plan_add_host(&s->plan, LS_PART_WORK, rows * V * 4, "logits");
    const int columns = ls_plan_add_host(&s->plan, LS_PART_WORK, rows * 5 * 4, "columns");
    assert_int_equal(ls_plan_layout(&s->plan), LS_OK);
    assert_int_equal(ls_plan_alloc(&s->plan, false), LS_OK);
    ls_acts_bind(s->acts, s->model, &s->plan);
    s->logits = ls_plan_at(&s->plan, logits);
    s->columns = ls_plan_at(&s->plan, columns);
}

static void box_open(box *b, int64_t rows)
{
    box_open_variant(b, rows, LS_VARIANT_HF);
}

/* A model whose logits after id i are table[i], random numbers: blocks add nothing, the embedding of i is the unit vector i, which the last
 * norm scales and shifts. The sum of a row of the classifier is 0, so that the shift has no effect. */
static void box_open_table(box *b, int64_t rows, uint64_t seed)
{
    box_open_variant(b, rows, LS_VARIANT_R1);
    const ls_model *m = b->s.model;
    const int C = m->cfg.n_embd;
    for (int u = 0; u < m->n_unit - 1; u++) memset(m->unit[u].param, 0, (size_t)m->unit[u].n * sizeof(float));
    float *wte = model_param(m, &m->unit[0], EMBED_WTE), *w = model_param(m, &m->unit[m->n_unit - 1], HEAD_W);
    const double mean = 1.0 / C, gain = 1 / sqrt(mean * (1 - mean) + m->cfg.ln_eps);
    memset(w, 0, (size_t)(V * C) * sizeof *w);
    for (int i = 0; i < V; i++) {
        wte[i * C + i] = 1;
        for (int j = 0; j < V; j++) {
            const double x = (double)(ls_rng_u64(seed, (uint64_t)(i * V + j)) >> 11) * 0x1p-53;
            b->table[i][j] = 8 * x * x + (j == STOP ? 3 : 0); /* most texts end */
            w[j * C + i] = (float)(b->table[i][j] / gain);
            w[j * C + C - 1] -= w[j * C + i];
        }
    }
    b->tabled = true;
}

static void box_close(box *b)
{
    ls_acts_destroy(&b->s.acts);
    ls_plan_fini(&b->s.plan);
    b->f.model->compute = &b->f.compute;
    fixture_close(&b->f);
}

static void make_prompts(ls_decode_item *item, int32_t ids[N_PROMPT][N_CTX + 2])
{
    static const int length[N_PROMPT] = {3, 1, 7, 7, 12, 2, 19, 20, 21, 5, 3};
    for (int i = 0; i < N_PROMPT; i++) {
        for (int k = 0; k < N_CTX + 2; k++) ids[i][k] = (int32_t)(ls_rng_u64(41, (uint64_t)(100 * i + k)) % V);
        item[i] = (ls_decode_item){.prompt = ids[i], .n_prompt = length[i]};
    }
}

static void compute_logits(box *b, const int32_t *ids, int64_t n, float *logits)
{
    memcpy(b->f.ids, ids, (size_t)n * sizeof *ids);
    ls_micro mb = {.ids = b->f.ids, .B = 1, .T = n};
    assert_int_equal(ls_walk(b->f.model, b->f.acts, &mb, NULL, LS_FWD, 0, b->f.model->n_unit), LS_OK);
    assert_int_equal(ls_model_logits(b->f.model, b->f.acts, &mb, false, logits), LS_OK);
}

/* log p of every id after the n ids, without a cache */
static void next_log_p(box *b, const int32_t *ids, int64_t n, double *log_p)
{
    static float logits[N_CTX * V];
    if (b->tabled)
        for (int i = 0; i < V; i++) logits[(n - 1) * V + i] = (float)b->table[ids[n - 1]][i];
    else compute_logits(b, ids, n, logits);
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp((double)logits[(n - 1) * V + i]);
    for (int i = 0; i < V; i++) log_p[i] = (double)logits[(n - 1) * V + i] - log(sum);
}

typedef struct text {
    int32_t id[N_CTX + 2];
    int n;
    double log_p;
    bool stopped;
} text;

static int by_log_p(const void *a, const void *b)
{
    const text *x = a, *y = b;
    return (x->log_p < y->log_p) - (x->log_p > y->log_p);
}

/* Searches that break a rule of decode.h. */
typedef enum fault { NONE, ENDS_BEHIND_K, LENGTH_PLUS_1, SETTLED_BY_BEST, N_FAULT } fault;

static double score_of(const text *t, double penalty, fault f)
{
    return t->log_p / pow(t->n + (f == LENGTH_PLUS_1), penalty);
}

/* All continuations of all unfinished texts, sorted; the rules of decode.h. */
static text search(box *b, const ls_decode_item *item, int K, double penalty, fault f)
{
    static text live[8], all[8 * V];
    text best = {0};
    double best_score = -INFINITY, worst = INFINITY;
    int n_live = 1, n_done = 0;
    live[0] = (text){0};
    for (int64_t n = item->n_prompt; n <= N_CTX && n_live; n++) {
        int n_all = 0;
        for (int k = 0; k < n_live; k++) {
            int32_t ids[2 * N_CTX];
            double log_p[V];
            memcpy(ids, item->prompt, (size_t)item->n_prompt * sizeof *ids);
            memcpy(ids + item->n_prompt, live[k].id, (size_t)live[k].n * sizeof *ids);
            next_log_p(b, ids, n, log_p);
            for (int i = 0; i < V; i++) {
                text *t = &all[n_all++];
                *t = live[k];
                t->id[t->n++] = i;
                t->log_p += log_p[i];
            }
        }
        qsort(all, (size_t)n_all, sizeof *all, by_log_p);
        n_live = 0;
        for (int i = 0; i < n_all && i < 2 * K && n_live < K; i++) {
            if (all[i].id[all[i].n - 1] != STOP) {
                live[n_live++] = all[i];
                continue;
            }
            if (i >= K && f != ENDS_BEHIND_K) continue;
            const double score = score_of(&all[i], penalty, f);
            n_done++;
            worst = fmin(worst, score);
            if (score <= best_score) continue;
            best_score = score;
            best = all[i];
            best.n--;
            best.stopped = true;
        }
        if (K == 1 && n_done) n_live = 0;
        if (n_live && n_done >= K && (f == SETTLED_BY_BEST ? best_score : worst) >= score_of(&live[0], penalty, f))
            n_live = 0;
    }
    for (int k = 0; k < n_live; k++) {
        const double score = score_of(&live[k], penalty, f);
        if (score <= best_score) continue;
        best_score = score;
        best = live[k];
    }
    return best;
}

static void compare(box *b, int K, double penalty, bool *cut, bool *stopped)
{
    ls_decode_item item[N_PROMPT];
    int32_t ids[N_PROMPT][N_CTX + 2];
    make_prompts(item, ids);
    const ls_decode_opts o = {.beam = K, .length_penalty = penalty, .max_len = N_CTX, .stop = STOP};
    assert_int_equal(ls_decode(&b->s, &o, item, N_PROMPT), LS_OK);
    for (int i = 0; i < N_PROMPT; i++) {
        const text want = item[i].n_prompt > N_CTX ? (text){0} : search(b, &item[i], K, penalty, NONE);
        assert_int_equal(item[i].text.n, want.n);
        assert_int_equal(item[i].stopped, want.stopped);
        if (want.n) assert_memory_equal(item[i].text.id, want.id, (size_t)want.n * sizeof *want.id);
        assert_near(item[i].log_p, want.log_p, 1e-4);
        *cut = *cut || (!want.stopped && want.n);
        *stopped = *stopped || want.stopped;
        ls_ids_fini(&item[i].text);
    }
}

static void batches_find_what_a_search_without_a_cache_finds(void **state)
{
    (void)state;
    static const int rows[] = {1, 3, 8, 24}, beam[] = {1, 2, 3, 5};
    bool cut = false, stopped = false;
    for (size_t r = 0; r < N_OF(rows); r++) {
        box b;
        box_open(&b, rows[r]);
        for (size_t k = 0; k < N_OF(beam); k++)
            for (double penalty = 0; penalty < 2 && beam[k] <= rows[r]; penalty += 0.8)
                compare(&b, beam[k], penalty, &cut, &stopped);
        box_close(&b);
    }
    assert_true(cut && stopped); /* both kinds of end were seen */
}

/* After initialisation all texts are about equally likely, and the rules of the search hardly matter. With these models each of them does:
 * a search that breaks it finds another text for some prompt. */
static void every_rule_of_the_search_is_kept(void **state)
{
    (void)state;
    static const uint64_t seed[] = {2, 5, 74};
    int differ[N_FAULT] = {0};
    for (size_t s = 0; s < N_OF(seed); s++) {
        box b;
        box_open_table(&b, 12, seed[s]);
        for (int K = 2; K < 5; K++)
            for (double penalty = 0.5; penalty < 2; penalty += 1) {
                bool cut = false, stopped = false;
                ls_decode_item item[N_PROMPT];
                int32_t ids[N_PROMPT][N_CTX + 2];
                compare(&b, K, penalty, &cut, &stopped);
                make_prompts(item, ids);
                for (int i = 0; i < N_PROMPT; i++) {
                    if (item[i].n_prompt > N_CTX) continue;
                    const text right = search(&b, &item[i], K, penalty, NONE);
                    for (fault f = NONE + 1; f < N_FAULT; f++) {
                        const text wrong = search(&b, &item[i], K, penalty, f);
                        differ[f] +=
                            wrong.n != right.n || memcmp(wrong.id, right.id, (size_t)right.n * sizeof *right.id) != 0;
                    }
                }
            }
        box_close(&b);
    }
    for (fault f = NONE + 1; f < N_FAULT; f++)
        if (!differ[f]) fail_msg("a search with fault %d finds the same texts", (int)f);
}

static void beam_search_finds_texts_that_are_at_least_as_likely(void **state)
{
    (void)state;
    box b;
    box_open(&b, 16);
    double total[2] = {0};
    for (int k = 0; k < 2; k++) {
        ls_decode_item item[N_PROMPT];
        int32_t ids[N_PROMPT][N_CTX + 2];
        make_prompts(item, ids);
        const ls_decode_opts o = {.beam = k ? 8 : 1, .max_len = N_CTX, .stop = STOP};
        assert_int_equal(ls_decode(&b.s, &o, item, N_PROMPT), LS_OK);
        for (int i = 0; i < N_PROMPT; i++) {
            total[k] += item[i].log_p;
            ls_ids_fini(&item[i].text);
        }
    }
    box_close(&b);
    assert_true(total[1] > total[0]);
}

/* The text of a prompt without a cache: of a text that is longer than the model's positions, the oldest half is dropped whenever they are
 * full. */
static void continue_without_cache(box *b, const ls_decode_item *x, const ls_sampling *how, int n_new, int32_t *made)
{
    int32_t ids[200];
    int64_t n = x->n_prompt, base = 0;
    ls_sample_work work[V];
    float logits[N_CTX * V];
    memcpy(ids, x->prompt, (size_t)n * sizeof *ids);
    for (int k = 0; k < n_new; k++) {
        while (n - base > N_CTX) base += N_CTX / 2;
        compute_logits(b, ids + base, n - base, logits);
        made[k] = ls_sample(how, logits + (n - base - 1) * V, V, n, work);
        ids[n++] = made[k];
    }
}

static void a_text_longer_than_the_context_drops_its_oldest_half(void **state)
{
    (void)state;
    enum { N_NEW = 70 };
    static const ls_sampling how[] = {{.temperature = 0}, {.temperature = 1, .top_p = 1, .seed = 3}};
    box b;
    box_open(&b, 4);
    for (size_t h = 0; h < 2; h++) {
        ls_decode_item item[N_PROMPT];
        int32_t ids[N_PROMPT][N_CTX + 2];
        make_prompts(item, ids);
        const ls_decode_opts o = {
            .beam = 1, .max_len = N_CTX + 1 + N_NEW, .max_new = N_NEW, .stop = -1, .sampling = h ? &how[h] : NULL};
        assert_int_equal(ls_decode(&b.s, &o, item, N_PROMPT), LS_OK);
        for (int i = 0; i < N_PROMPT; i++) {
            int32_t want[N_NEW];
            continue_without_cache(&b, &item[i], &how[h], N_NEW, want);
            assert_int_equal(item[i].text.n, N_NEW);
            assert_false(item[i].stopped);
            assert_memory_equal(item[i].text.id, want, sizeof want);
            ls_ids_fini(&item[i].text);
        }
    }
    box_close(&b);
}

static ls_status ends_after_five(void *ctx, const ls_ids *made, bool *end)
{
    (void)ctx;
    *end = made->n == 5;
    return LS_OK;
}

static void a_text_ends_where_its_caller_decides(void **state)
{
    (void)state;
    box b;
    box_open(&b, 3);
    ls_decode_item item[N_PROMPT];
    int32_t ids[N_PROMPT][N_CTX + 2];
    make_prompts(item, ids);
    const ls_decode_opts o = {.beam = 1, .max_len = 100, .max_new = 9, .stop = -1, .ends = ends_after_five};
    assert_int_equal(ls_decode(&b.s, &o, item, N_PROMPT), LS_OK);
    for (int i = 0; i < N_PROMPT; i++) {
        assert_int_equal(item[i].text.n, 5);
        assert_true(item[i].stopped);
        ls_ids_fini(&item[i].text);
    }
    box_close(&b);
}

/* The passes of a search: calls of the cached attention of the first block, with their rows. */
static struct {
    ls_status (*attention)(ls_compute *, void *, void *, void *, const void *, int64_t, int64_t, int64_t,
                           const ls_pass_head *, int64_t, int64_t, int64_t, bool);
    const void *first; /* its cache */
    int n, n_row;
} passes;

static ls_status count_pass(ls_compute *c, void *y, void *kcache, void *vcache, const void *qkv, int64_t B, int64_t Tq,
                            int64_t pos, const ls_pass_head *at, int64_t Tmax, int64_t H, int64_t D, bool alike)
{
    if (!passes.first) passes.first = kcache;
    if (kcache == passes.first) {
        passes.n++;
        passes.n_row += (int)(B * Tq);
    }
    return passes.attention(c, y, kcache, vcache, qkv, B, Tq, pos, at, Tmax, H, D, alike);
}

/* Prompts of 1, 1, 13 and 18 ids, 3 new ids each: columns 0, 1 and 2 of four rows; 3-7, 8-12, 13 and 14 of two; 15-17, 18 and 19 of one. */
static void the_rest_of_a_longer_prompt_is_read_in_few_passes(void **state)
{
    (void)state;
    static const int length[] = {13, 1, 18, 1};
    box b;
    box_open(&b, 4);
    ls_compute_ops counted = *b.s.compute.ops;
    memset(&passes, 0, sizeof passes);
    passes.attention = counted.attention_cached;
    counted.attention_cached = count_pass;
    b.s.compute.ops = &counted;
    ls_decode_item item[N_PROMPT];
    int32_t ids[N_PROMPT][N_CTX + 2];
    make_prompts(item, ids);
    for (int i = 0; i < 4; i++) item[i].n_prompt = length[i];
    const ls_decode_opts o = {.beam = 1, .max_len = 30, .max_new = 3, .stop = -1};
    assert_int_equal(ls_decode(&b.s, &o, item, 4), LS_OK);
    b.s.compute.ops = b.f.compute.ops;
    assert_int_equal(passes.n, 3 + 4 + 3);
    assert_int_equal(passes.n_row, 3 * 4 + 12 * 2 + 5);
    assert_int_equal(b.s.n_prompt, 13 + 1 + 18 + 1);
    for (int i = 0; i < 4; i++) {
        int32_t want[3];
        continue_without_cache(&b, &item[i], &(ls_sampling){.temperature = 0}, 3, want);
        assert_int_equal(item[i].text.n, 3);
        assert_memory_equal(item[i].text.id, want, sizeof want);
        ls_ids_fini(&item[i].text);
    }
    box_close(&b);
}

static void a_failed_allocation_frees_everything(void **state)
{
    (void)state;
    box b;
    box_open(&b, 6);
    const int64_t live = ls_mem_live();
    int n_failed = 0;
    for (int64_t k = 0;; k++) {
        ls_decode_item item[N_PROMPT];
        int32_t ids[N_PROMPT][N_CTX + 2];
        make_prompts(item, ids);
        ls_mem_fail_at(k);
        const ls_status st =
            ls_decode(&b.s, &(ls_decode_opts){.beam = 3, .max_len = N_CTX, .stop = STOP}, item, N_PROMPT);
        ls_mem_fail_at(-1);
        for (int i = 0; i < N_PROMPT; i++) ls_ids_fini(&item[i].text);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
        n_failed++;
    }
    assert_true(n_failed > 10);
    box_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_find_what_a_search_without_a_cache_finds),
        cmocka_unit_test(every_rule_of_the_search_is_kept),
        cmocka_unit_test(beam_search_finds_texts_that_are_at_least_as_likely),
        cmocka_unit_test(a_text_longer_than_the_context_drops_its_oldest_half),
        cmocka_unit_test(a_text_ends_where_its_caller_decides),
        cmocka_unit_test(the_rest_of_a_longer_prompt_is_read_in_few_passes),
        cmocka_unit_test(a_failed_allocation_frees_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
