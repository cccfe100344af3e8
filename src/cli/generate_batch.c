/* generate_batch.c - `lockstep generate --prompts FILE`: one prompt per line, several at a time. Texts are printed in the order of the file,
 * after a few batches each, so that a long file can be followed and a signal loses little. */
#include "cli/generate_impl.h"
#include "core/clock.h"
#include "core/minmax.h"
#include "core/stop.h"
#include "data/lines.h"
#include "data/unicode.h"
#include "infer/decode.h"

#include <unistd.h>

#define BATCHES 4 /* between two outputs; prompts are sorted by length among them */

typedef struct prompt_set {
    char **line;
    size_t n, cap, longest; /* longest: bytes of a line */
    int64_t n_sample;
    ls_decode_item *item; /* the samples of the first prompt, of the second, ... */
    ls_ids ids;           /* of all prompts, one after the other */
    int64_t n_new;
    double seconds;
} prompt_set;

static int64_t n_item(const prompt_set *p)
{
    return (int64_t)p->n * p->n_sample;
}

static void prompts_fini(prompt_set *p)
{
    for (size_t i = 0; i < p->n; i++) ls_free(p->line[i]);
    for (int64_t i = 0; p->item && i < n_item(p); i++) ls_ids_fini(&p->item[i].text);
    ls_free(p->line);
    ls_free(p->item);
    ls_ids_fini(&p->ids);
}

static ls_status read_prompts(const char *path, prompt_set *p)
{
    ls_lines in = {0};
    ls_substr line;
    bool end = false;
    size_t total = 0;
    ls_status st = ls_lines_open(&in, path);
    while (st == LS_OK) {
        LS_TRY_GOTO(st, done, ls_lines_next(&in, &line, &end));
        if (end) break;
        LS_TRY_GOTO(st, done, ls_reserve(&p->line, &p->cap, p->n + 1, sizeof *p->line, "the prompts"));
        total += line.n;
        if (total > GENERATE_PROMPTS_MOST) {
            st = ls_fail(LS_E_FORMAT, "--prompts %s: line %lld: the prompts are too large: the limit is 1 GiB", path,
                         (long long)in.line);
            break;
        }
        LS_TRY_GOTO(st, done, generate_check_bytes("--prompts", path, in.line, line.data, line.n));
        p->longest = LS_MAX(p->longest, line.n);
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
    p->item = ls_alloc((size_t)n_item(p) * sizeof *p->item);
    if (!p->item) return ls_nomem((size_t)n_item(p) * sizeof *p->item, "the prompts");
    ls_decode_item *x = p->item;
    for (size_t i = 0; i < p->n; i++) {
        const size_t before = p->ids.n;
        LS_TRY(generate_encode(s, p->line[i], strlen(p->line[i]), &p->ids));
        for (int64_t k = 0; k < p->n_sample; k++, x++)
            *x = (ls_decode_item){.n_prompt = (int64_t)(p->ids.n - before), .seed = (uint64_t)k};
    }
    const int32_t *at = p->ids.id; /* set last: the list moves while it grows */
    for (int64_t i = 0; i < n_item(p); i++) {
        p->item[i].prompt = at;
        if ((i + 1) % p->n_sample == 0) at += p->item[i].n_prompt;
    }
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

static void write_line(const ls_decode_item *x, const char *prompt, ls_substr text, ls_jsonw *w)
{
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("prompt", prompt), LS_KV("sample", (int64_t)x->seed), LS_KV("text", text));
    ls_jsonw_put_open(w, "ids", '[');
    for (size_t i = 0; i < x->text.n; i++) ls_jsonw_int(w, x->text.id[i]);
    ls_jsonw_close(w);
    ls_jsonw_members(w, LS_KV("finish_reason", x->stopped ? "stop" : "length"), LS_KV("prompt_tokens", x->n_prompt),
                     LS_KV("new_tokens", (int64_t)x->text.n), LS_KV("logprob", x->log_p));
    ls_jsonw_close(w);
}

/* The text of a prompt without the stop text that ended it. */
static ls_status print_one(const generate_options *o, const ls_session *s, const prompt_set *p, int64_t i)
{
    const ls_decode_item *x = &p->item[i];
    const ls_stops stops = generate_stops(o);
    const char *prompt = p->line[i / p->n_sample];
    ls_str raw = {0}, text = {0}, out = {0};
    ls_status st = ls_tokenizer_decode(s->tokenizer, x->text.id, x->text.n, &raw);
    if (st == LS_OK)
        data_utf8_replace(raw.data, ls_stops_find(&stops, (ls_substr){raw.len ? raw.data : "", raw.len}, 0), false,
                          &text);
    if (text.failed) st = ls_nomem(raw.len, "the text");
    const ls_substr body = {text.len ? text.data : "", text.len};
    if (st == LS_OK && o->json) {
        ls_jsonw w;
        ls_jsonw_init(&w, &out, 0);
        write_line(x, prompt, body, &w);
        ls_str_addc(&out, '\n');
        st = cli_print(&out);
    } else if (st == LS_OK) {
        printf("%s--- %lld", i ? "\n" : "", (long long)(i / p->n_sample) + 1);
        if (p->n_sample > 1) printf(", sample %lld", (long long)x->seed + 1);
        printf(" ---\n%s", prompt);
        fwrite(body.data, 1, body.n, stdout);
        putchar('\n');
    }
    ls_str_fini(&raw);
    ls_str_fini(&text);
    return st;
}

static ls_status decode_all(const generate_options *o, ls_session *s, prompt_set *p)
{
    const ls_sampling sampling = generate_sampling(o, 0);
    ending end = {s, generate_stops(o)};
    ls_decode_opts how = {.beam = 1,
                          .max_new = o->max_new,
                          .stop = o->no_stop ? -1 : ls_tokenizer_eot(s->tokenizer),
                          .sampling = &sampling,
                          .ends = o->stop.n ? ends : NULL,
                          .ends_ctx = &end};
    const int64_t n = n_item(p), step = s->acts->B * BATCHES;
    for (int64_t at = 0; at < n; at += step) {
        const int64_t k = LS_MIN(step, n - at);
        const double begin = ls_now();
        how.max_len = 0;
        for (int64_t i = 0; i < k; i++) how.max_len = LS_MAX(how.max_len, p->item[at + i].n_prompt + o->max_new - 1);
        LS_TRY(ls_decode(s, &how, p->item + at, k));
        p->seconds += ls_now() - begin;
        for (int64_t i = at; i < at + k; i++) {
            p->n_new += (int64_t)p->item[i].text.n;
            LS_TRY(print_one(o, s, p, i));
        }
        fflush(stdout);
        if (isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO) && n > step)
            fprintf(stderr, "\r\033[K%lld/%lld texts%s", (long long)at + k, (long long)n,
                    at + k == n ? "\r\033[K" : "");
    }
    return LS_OK;
}

static void print_stats(const ls_session *s, const ls_session_opts *how, const prompt_set *p)
{
    const double rest = p->seconds - s->prompt_seconds;
    fprintf(stderr,
            "%zu prompt%s in batches of %lld, %lld prompt tokens in %.3f s (%.1f tokens/s), %lld new tokens in %.3f s "
            "(%.1f tokens/s): in all %.1f tokens/s\n",
            p->n, p->n == 1 ? "" : "s", (long long)s->acts->B, (long long)s->n_prompt, s->prompt_seconds,
            generate_rate(s->n_prompt, s->prompt_seconds), (long long)p->n_new, rest, generate_rate(p->n_new, rest),
            generate_rate(p->n_new, p->seconds));
    generate_print_weights(s, how);
}

ls_status generate_many(const generate_options *o, ls_session_opts *how)
{
    prompt_set p = {.n_sample = o->n_sample};
    ls_session s = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, read_prompts(o->prompts, &p));
    how->B = LS_MIN(o->batch, n_item(&p));
    how->cache_len = LS_MIN(how->cache_len, (int64_t)p.longest + 1 + o->max_new); /* a token has at least one byte */
    LS_TRY_GOTO(st, done, ls_session_open(&s, how));
    LS_TRY_GOTO(st, done, encode_prompts(&s, &p));
    LS_TRY_GOTO(st, done, decode_all(o, &s, &p));
    if (o->stats) print_stats(&s, how, &p);
done:
    ls_session_close(&s);
    prompts_fini(&p);
    return st;
}
