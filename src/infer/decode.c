#include "infer/decode.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An unfinished text: it occupies one row of the batch. */
typedef struct hypothesis {
    ls_ids text;
    double log_p;
} hypothesis;

/* A continuation of an unfinished text by one id. */
typedef struct candidate {
    double log_p;
    int row; /* of the text it continues, within its prompt */
    int32_t id;
} candidate;

/* The search for one prompt. */
typedef struct search {
    ls_decode_item *item;
    hypothesis *row;    /* beam */
    int n_row;          /* unfinished texts; 0: the search has ended */
    double log_sum;     /* greedy: log of the sum of exponentials of the logits */
    double best, worst; /* scores of the finished texts; best is item->text */
    int n_finished;
} search;

typedef struct batch {
    ls_session *s;
    const ls_decode_opts *o;
    search *search;
    int64_t n, column; /* prompts, the longest first; columns that have been read */
    int32_t *ids;      /* (rows, columns of a pass)  */
    int64_t base;      /* column of position 0 of the cache */
    candidate *best;   /* 2 * beam                   */
    hypothesis *next;  /* beam                       */
    ls_sample_work *work;
} batch;

static double score_of(const ls_decode_opts *o, double log_p, size_t length)
{
    return log_p / pow((double)length, o->length_penalty);
}

/* The text ends: keeps it if it is the best so far. length: with the id that ended it. */
static ls_status finish(batch *b, search *x, const ls_ids *text, double log_p, bool stopped)
{
    const double score = score_of(b->o, log_p, text->n + stopped);
    x->worst = x->n_finished++ ? fmin(x->worst, score) : score;
    if (x->n_finished > 1 && score <= x->best) return LS_OK;
    ls_ids *out = &x->item->text;
    x->best = score;
    x->item->log_p = log_p;
    x->item->stopped = stopped;
    LS_TRY(ls_reserve(&out->id, &out->cap, text->n, sizeof *out->id, "a text"));
    if (text->n) memcpy(out->id, text->id, text->n * sizeof *out->id);
    out->n = text->n;
    return LS_OK;
}

/* ---- one choice ---- */

static int by_rank(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->log_p != y->log_p) return x->log_p < y->log_p ? 1 : -1;
    if (x->row != y->row) return x->row - y->row;
    return (x->id > y->id) - (x->id < y->id);
}

/* Adds the continuations of one text to the sorted list of the `most` best. */
static void rank_row(const float *logits, int V, int row, double log_p, candidate *list, int most, int *n)
{
    float top = logits[0];
    double sum = 0;
    for (int i = 1; i < V; i++) top = logits[i] > top ? logits[i] : top;
    for (int i = 0; i < V; i++) sum += exp((double)(logits[i] - top));
    const double base = log_p - (double)top - log(sum);
    for (int i = 0; i < V; i++) {
        const candidate c = {base + (double)logits[i], row, i};
        if (*n == most && by_rank(&c, &list[most - 1]) >= 0) continue;
        int at = *n < most ? (*n)++ : most - 1;
        for (; at > 0 && by_rank(&c, &list[at - 1]) < 0; at--) list[at] = list[at - 1];
        list[at] = c;
    }
}

static ls_status copy_text(const ls_ids *from, ls_ids *to)
{
    LS_TRY(ls_reserve(&to->id, &to->cap, from->n + 1, sizeof *to->id, "a text"));
    if (from->n) memcpy(to->id, from->id, from->n * sizeof *to->id);
    to->n = from->n;
    return LS_OK;
}

/* Puts the chosen continuations into rows: the first one of a row stays in it, others take rows whose texts have ended. */
static ls_status place(batch *b, search *x, const candidate *chosen, int n, int64_t first_row)
{
    const int K = b->o->beam;
    int row_of[LS_BEAM_MAX];
    bool taken[LS_BEAM_MAX] = {false};
    const bool same = x->n_row == 1 && K > 1 && !x->row[0].text.n; /* all rows have the prompt alone */
    for (int i = 0; i < n; i++) {
        row_of[i] = taken[chosen[i].row] ? -1 : chosen[i].row;
        taken[chosen[i].row] = true;
    }
    for (int i = 0, free = 0; i < n; i++) {
        LS_TRY(copy_text(&x->row[chosen[i].row].text, &b->next[i].text));
        LS_TRY(ls_ids_push(&b->next[i].text, chosen[i].id));
        b->next[i].log_p = chosen[i].log_p;
        if (row_of[i] >= 0) continue;
        while (taken[free]) free++;
        taken[row_of[i] = free] = true;
        if (!same)
            LS_TRY(ls_acts_copy_cache(b->s->model, b->s->acts, first_row + chosen[i].row, first_row + free, b->column));
    }
    for (int i = 0; i < n; i++) {
        const hypothesis old = x->row[row_of[i]];
        x->row[row_of[i]] = b->next[i];
        b->next[i] = old;
    }
    return LS_OK;
}

/* Whether no unfinished text can become better than the worst of K finished ones, if its score only decreases from now on. */
static bool settled(const batch *b, const search *x)
{
    if (x->n_finished < b->o->beam) return false;
    double best = -INFINITY;
    for (int k = 0; k < x->n_row; k++) best = fmax(best, score_of(b->o, x->row[k].log_p, x->row[k].text.n));
    return x->worst >= best;
}

/* One id for each unfinished text of a prompt, from the logits of its rows. */
static ls_status choose_beam(batch *b, search *x, int64_t first_row)
{
    const int K = b->o->beam, V = b->s->model->cfg.vocab_size;
    candidate chosen[LS_BEAM_MAX];
    int n = 0, n_chosen = 0;
    for (int k = 0; k < x->n_row; k++)
        rank_row(b->s->logits + (first_row + k) * V, V, k, x->row[k].log_p, b->best, 2 * K, &n);
    for (int i = 0; i < n && n_chosen < K; i++) {
        const candidate *c = &b->best[i];
        if (c->id != b->o->stop) chosen[n_chosen++] = *c;
        else if (i < K) LS_TRY(finish(b, x, &x->row[c->row].text, c->log_p, true)); /* not one that K others beat */
    }
    LS_TRY(place(b, x, chosen, n_chosen, first_row));
    x->n_row = n_chosen;
    if (settled(b, x)) x->n_row = 0;
    return LS_OK;
}

/* log p of an id is its logit less this. */
static double log_sum_of(const float *logits, int V)
{
    float top = logits[0];
    double sum = 0;
    for (int i = 1; i < V; i++) top = logits[i] > top ? logits[i] : top;
    for (int i = 0; i < V; i++) sum += exp((double)(logits[i] - top));
    return (double)top + log(sum);
}

/* One id for the text of a prompt: the most likely one, or one drawn at random. */
static ls_status choose_one(batch *b, search *x, int64_t row)
{
    const ls_decode_opts *o = b->o;
    ls_sampling how = o->sampling ? *o->sampling : (ls_sampling){.temperature = 0};
    hypothesis *h = &x->row[0];
    bool end = false;
    float logit;
    how.seed += x->item->seed;
    const int32_t id = ls_session_sample(b->s, &how, row, b->column, b->work, &logit);
    h->log_p += (double)logit - x->log_sum;
    if (id == o->stop) {
        x->n_row = 0;
        return finish(b, x, &h->text, h->log_p, true);
    }
    LS_TRY(ls_ids_push(&h->text, id));
    if (o->ends) LS_TRY(o->ends(o->ends_ctx, &h->text, &end));
    if (!end && (!o->max_new || (int64_t)h->text.n < o->max_new)) return LS_OK;
    x->n_row = 0;
    return finish(b, x, &h->text, h->log_p, end);
}

/* ---- a batch ---- */

/* The id of a row at the current column: of its prompt, else of its text; rows that have ended repeat an id that nobody reads. */
static int32_t id_at(const search *x, int k, int64_t column)
{
    if (column < x->item->n_prompt) return x->item->prompt[column];
    const ls_ids *text = &x->row[k].text;
    const int64_t i = column - x->item->n_prompt;
    return k < x->n_row && i < (int64_t)text->n ? text->id[i] : x->item->prompt[0];
}

/* Whether a prompt has been read and its text has not ended. */
static bool makes_text(const batch *b, const search *x)
{
    return x->n_row && b->column >= x->item->n_prompt;
}

/* Where the next choice is: after one column if a text is being made, else at the end of the shortest prompt that is left. Then all texts
 * before it have ended; they have the last rows, which are dropped. */
static int64_t next_choice(batch *b)
{
    for (int64_t i = 0; i < b->n; i++)
        if (makes_text(b, &b->search[i])) return b->column + 1;
    while (!b->search[b->n - 1].n_row) b->n--;
    return b->search[b->n - 1].item->n_prompt;
}

/* Runs columns up to `end` of all rows, from the first one that the cache does not have. */
static ls_status feed(batch *b, int64_t end)
{
    const int64_t base = ls_session_window(b->s, end), first = base == b->base ? b->column : base;
    const int64_t n = end - first, K = b->o->beam;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t k = 0; k < K; k++)
            for (int64_t t = 0; t < n; t++) b->ids[(i * K + k) * n + t] = id_at(&b->search[i], (int)k, first + t);
    LS_TRY(ls_session_feed_rows(b->s, b->ids, b->n * K, n, first - base));
    b->column = end;
    b->base = base;
    return LS_OK;
}

/* Reads columns up to `end`. The time of a pass with ids of prompts and of texts is divided in proportion to them. */
static ls_status feed_timed(batch *b, int64_t end)
{
    const double begin = ls_now();
    int64_t n_prompt = 0, n_text = 0;
    for (int64_t i = 0; i < b->n; i++) {
        const search *x = &b->search[i];
        if (makes_text(b, x)) n_text++;
        else if (x->n_row) n_prompt += end - b->column;
    }
    LS_TRY(feed(b, end));
    b->s->n_prompt += n_prompt;
    b->s->prompt_seconds += (ls_now() - begin) * (double)n_prompt / (double)(n_prompt + n_text);
    return LS_OK;
}

static ls_status choose(batch *b, bool *any)
{
    const int K = b->o->beam, V = b->s->model->cfg.vocab_size;
    *any = false;
#pragma omp parallel for num_threads(b->s->compute.n_thread) schedule(static) if (K == 1 && b->n > 1)
    for (int64_t i = 0; i < (K == 1 ? b->n : 0); i++)
        if (makes_text(b, &b->search[i]))
            b->search[i].log_sum = b->s->n_best ? (double)b->s->log_sum[i] : log_sum_of(b->s->logits + i * V, V);
    for (int64_t i = 0; i < b->n; i++) {
        search *x = &b->search[i];
        if (makes_text(b, x)) LS_TRY(K == 1 ? choose_one(b, x, i) : choose_beam(b, x, i * K));
        *any = *any || x->n_row;
    }
    return LS_OK;
}

static ls_status run_batch(batch *b)
{
    bool any = true;
    b->base = 0;
    for (b->column = 0; any && b->column < b->o->max_len;) {
        if (ls_stop_requested()) return ls_fail(LS_E_STOPPED, "signal %d", ls_stop_signal());
        LS_TRY(feed_timed(b, next_choice(b)));
        LS_TRY(choose(b, &any));
    }
    for (int64_t i = 0; i < b->n; i++) /* texts that reached the limit */
        for (int k = 0; k < b->search[i].n_row; k++)
            LS_TRY(finish(b, &b->search[i], &b->search[i].row[k].text, b->search[i].row[k].log_p, false));
    return LS_OK;
}

static void begin(batch *b, search *x, ls_decode_item *item)
{
    hypothesis *row = x->row;
    for (int k = 0; k < b->o->beam; k++) {
        row[k].text.n = 0;
        row[k].log_p = 0;
    }
    item->text.n = 0;
    item->stopped = false;
    item->log_p = 0;
    *x = (search){.item = item, .row = row, .n_row = item->n_prompt > b->o->max_len ? 0 : 1};
}

static int by_length(const void *a, const void *b)
{
    const ls_decode_item *const *x = a, *const *y = b;
    if ((*x)->n_prompt != (*y)->n_prompt) return (*x)->n_prompt < (*y)->n_prompt ? -1 : 1;
    return (*x > *y) - (*x < *y);
}

static ls_status run_all(batch *b, ls_decode_item **order, int64_t n)
{
    const int64_t most = b->s->acts->B / b->o->beam;
    int64_t usable = n;
    while (usable && order[usable - 1]->n_prompt > b->o->max_len) { /* the longest are last */
        order[usable - 1]->text.n = 0;
        usable--;
    }
    for (int64_t at = 0; at < usable;) {
        b->n = LS_MIN(most, usable - at);
        at += b->n;
        for (int64_t i = 0; i < b->n; i++) begin(b, &b->search[i], order[at - 1 - i]);
        LS_TRY(run_batch(b));
        if (b->o->progress) b->o->progress(b->o->progress_ctx, at, n);
    }
    return LS_OK;
}

static void batch_fini(batch *b, int64_t n_search)
{
    for (int64_t i = 0; b->search && i < n_search; i++) {
        for (int k = 0; b->search[i].row && k < b->o->beam; k++) ls_ids_fini(&b->search[i].row[k].text);
        ls_free(b->search[i].row);
    }
    for (int k = 0; b->next && k < b->o->beam; k++) ls_ids_fini(&b->next[k].text);
    ls_free(b->search);
    ls_free(b->next);
    ls_free(b->best);
    ls_free(b->ids);
    ls_free(b->work);
}

ls_status ls_decode(ls_session *s, const ls_decode_opts *o, ls_decode_item *item, int64_t n)
{
    const int64_t n_search = s->acts->B / o->beam;
    const int64_t columns = LS_MIN(o->max_len, s->acts->cache_len); /* of one pass */
    LS_ASSERT(o->beam >= 1 && o->beam <= LS_BEAM_MAX && n_search > 0);
    LS_ASSERT(o->beam == 1 || (o->max_len <= s->acts->cache_len && !o->sampling && !o->ends && !o->max_new));
    LS_ASSERT(o->beam < s->model->cfg.vocab_size); /* so that all rows are in use after the first choice */
    batch b = {.s = s, .o = o};
    ls_decode_item **order = ls_alloc((size_t)n * sizeof *order);
    b.search = ls_alloc((size_t)n_search * sizeof *b.search);
    b.next = ls_alloc((size_t)o->beam * sizeof *b.next);
    b.best = ls_alloc(2 * (size_t)o->beam * sizeof *b.best);
    b.ids = ls_alloc((size_t)(s->acts->B * columns) * sizeof *b.ids);
    b.work = ls_alloc((size_t)s->model->cfg.vocab_size * sizeof *b.work);
    bool ok = order && b.search && b.next && b.best && b.ids && b.work;
    for (int64_t i = 0; ok && i < n_search; i++)
        ok = (b.search[i].row = ls_alloc((size_t)o->beam * sizeof *b.search[i].row));
    ls_status st = ok ? LS_OK : ls_nomem((size_t)(s->acts->B * columns) * sizeof *b.ids, "a search");
    for (int64_t i = 0; ok && i < n; i++) order[i] = &item[i];
    if (ok) qsort(order, (size_t)n, sizeof *order, by_length);
    if (st == LS_OK) st = run_all(&b, order, n);
    batch_fini(&b, n_search);
    ls_free(order);
    return st;
}
