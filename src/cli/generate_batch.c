/* generate_batch.c - `lockstep generate --prompts FILE`: one prompt per line, several at a time. */
#include "cli/generate_impl.h"
#include "core/clock.h"
#include "core/minmax.h"
#include "core/stop.h"
#include "data/lines.h"
#include "infer/decode.h"

#include <unistd.h>

typedef struct prompt_set {
    char **line;
    size_t n, cap;
    ls_decode_item *item;
    ls_ids ids; /* of all prompts, one after the other */
    int64_t n_new;
    double seconds;
} prompt_set;

static void prompts_fini(prompt_set *p)
{
    for (size_t i = 0; i < p->n; i++) {
        ls_free(p->line[i]);
        if (p->item) ls_ids_fini(&p->item[i].text);
    }
    ls_free(p->line);
    ls_free(p->item);
    ls_ids_fini(&p->ids);
}

static ls_status read_prompts(const char *path, prompt_set *p)
{
    ls_lines in = {0};
    ls_substr line;
    bool end = false;
    ls_status st = ls_lines_open(&in, path);
    while (st == LS_OK) {
        LS_TRY_GOTO(st, done, ls_lines_next(&in, &line, &end));
        if (end) break;
        LS_TRY_GOTO(st, done, ls_reserve(&p->line, &p->cap, p->n + 1, sizeof *p->line, "the prompts"));
        p->line[p->n] = ls_strndup(line.data, line.n);
        if (!p->line[p->n]) st = ls_nomem(line.n, "a prompt");
        else p->n++;
    }
    if (st == LS_OK && !p->n) st = ls_fail(LS_E_FORMAT, "--prompts %s: the file is empty", path);
done:
    ls_lines_close(&in);
    return st;
}

static ls_status encode_prompts(const ls_session *s, prompt_set *p)
{
    p->item = ls_alloc(p->n * sizeof *p->item);
    if (!p->item) return ls_nomem(p->n * sizeof *p->item, "the prompts");
    for (size_t i = 0; i < p->n; i++) {
        const size_t before = p->ids.n;
        LS_TRY(generate_encode(s, p->line[i], strlen(p->line[i]), &p->ids));
        p->item[i].n_prompt = (int64_t)(p->ids.n - before);
    }
    const int32_t *at = p->ids.id; /* set last: the list moves while it grows */
    for (size_t i = 0; i < p->n; at += p->item[i++].n_prompt) p->item[i].prompt = at;
    return LS_OK;
}

typedef struct ending {
    const ls_session *s;
    ls_stops stops;
} ending;

static ls_status ends(void *ctx, const ls_ids *text, bool *end)
{
    const ending *x = ctx;
    return ls_stops_ends(&x->stops, x->s->tokenizer, text, end);
}

static void show_progress(void *ctx, int64_t done, int64_t n)
{
    (void)ctx;
    fprintf(stderr, "\r\033[K%lld/%lld prompts%s", (long long)done, (long long)n, done == n ? "\r\033[K" : "");
}

static void write_line(const ls_decode_item *x, const char *prompt, const char *text, int64_t sample, ls_jsonw *w)
{
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("prompt", prompt), LS_KV("sample", sample), LS_KV("text", text));
    ls_jsonw_put_open(w, "ids", '[');
    for (size_t i = 0; i < x->text.n; i++) ls_jsonw_int(w, x->text.id[i]);
    ls_jsonw_close(w);
    ls_jsonw_members(w, LS_KV("finish_reason", x->stopped ? "stop" : "length"), LS_KV("prompt_tokens", x->n_prompt),
                     LS_KV("new_tokens", (int64_t)x->text.n), LS_KV("logprob", x->log_p));
    ls_jsonw_close(w);
}

/* The text of a prompt without the stop text that ended it. */
static ls_status print_one(const generate_options *o, const ls_session *s, const prompt_set *p, size_t i,
                           int64_t sample)
{
    const ls_decode_item *x = &p->item[i];
    const ls_stops stops = generate_stops(o);
    ls_str text = {0}, out = {0};
    ls_status st = ls_tokenizer_decode(s->tokenizer, x->text.id, x->text.n, &text);
    if (st == LS_OK && text.data) text.data[ls_stops_find(&stops, (ls_substr){text.data, text.len}, 0)] = '\0';
    const char *body = text.data ? text.data : "";
    if (st == LS_OK && o->json) {
        ls_jsonw w;
        ls_jsonw_init(&w, &out, 0);
        write_line(x, p->line[i], body, sample, &w);
        ls_str_addc(&out, '\n');
        st = cli_print(&out);
    } else if (st == LS_OK) {
        printf("%s--- %zu", i || sample ? "\n" : "", i + 1);
        if (o->n_sample > 1) printf(", sample %lld", (long long)sample + 1);
        printf(" ---\n%s%s\n", p->line[i], body);
    }
    ls_str_fini(&text);
    return st;
}

static ls_status decode_all(const generate_options *o, ls_session *s, prompt_set *p)
{
    ending end = {s, generate_stops(o)};
    ls_decode_opts how = {.beam = 1,
                          .max_new = o->max_new,
                          .stop = o->no_stop ? -1 : ls_tokenizer_eot(s->tokenizer),
                          .ends = o->stop.n ? ends : NULL,
                          .ends_ctx = &end,
                          .progress = isatty(STDERR_FILENO) ? show_progress : NULL};
    for (size_t i = 0; i < p->n; i++) how.max_len = LS_MAX(how.max_len, p->item[i].n_prompt + o->max_new - 1);
    for (int64_t k = 0; k < o->n_sample; k++) {
        const ls_sampling sampling = generate_sampling(o, k);
        const double begin = ls_now();
        how.sampling = &sampling;
        LS_TRY(ls_decode(s, &how, p->item, (int64_t)p->n));
        p->seconds += ls_now() - begin;
        for (size_t i = 0; i < p->n; i++) {
            p->n_new += (int64_t)p->item[i].text.n;
            LS_TRY(print_one(o, s, p, i, k));
        }
    }
    return LS_OK;
}

ls_status generate_many(const generate_options *o, ls_session_opts *how)
{
    prompt_set p = {0};
    ls_session s = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, read_prompts(o->prompts, &p));
    how->B = LS_MIN(o->batch, (int64_t)p.n);
    LS_TRY_GOTO(st, done, ls_session_open(&s, how));
    LS_TRY_GOTO(st, done, encode_prompts(&s, &p));
    LS_TRY_GOTO(st, done, decode_all(o, &s, &p));
    fflush(stdout);
    if (o->stats)
        fprintf(stderr, "%zu prompt%s in batches of %lld, %lld new tokens in %.3f s: %.1f tokens/s\n", p.n,
                p.n == 1 ? "" : "s", (long long)how->B, (long long)p.n_new, p.seconds,
                p.seconds > 0 ? (double)p.n_new / p.seconds : 0);
done:
    ls_session_close(&s);
    prompts_fini(&p);
    return st;
}
