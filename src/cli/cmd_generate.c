/* cmd_generate.c - `lockstep generate`: text from a prompt, streamed as it is made. */
#include "cli/commands.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/stop.h"

typedef struct options {
    const char *task, *checkpoint, *prompt, *prompt_file;
    cli_device on;
    int64_t max_new, n_sample, top_k, seed, speculate;
    double temperature, top_p;
    bool json, no_stop, stats, greedy;
} options;

static const ls_opt table[] = {
    CLI_CHOICE("task", task, "lm|translate", "lm",
               "lm: continue a text; translate: translate sentences (generate --task translate --help)", "Input"),
    CLI_STR("checkpoint", checkpoint, "DIR", NULL,
            "checkpoint, Hugging Face folder, or run folder (uses its newest checkpoint)"),
    CLI_STR("prompt", prompt, "TEXT", NULL, "text to continue [start after <|endoftext|>]"),
    CLI_STR("prompt-file", prompt_file, "FILE", NULL, "read the prompt from a file"),
    CLI_POSITIVE("max-new-tokens", max_new, "N", "128", "generate at most N tokens"),
    CLI_POSITIVE("num-samples", n_sample, "N", "1", "number of texts; the seed increases by 1 for each"),
    CLI_SWITCH("greedy", greedy, "always take the most likely token (temperature 0)", "Sampling"),
    CLI_REAL_IN(0, 1e6, "temperature", temperature, "X", "0.8", "sampling temperature; 0 = greedy"),
    CLI_INT_IN(0, INT32_MAX, "top-k", top_k, "N", "50", "sample from the N most likely tokens; 0 = all"),
    CLI_REAL_IN(0, 1, "top-p", top_p, "X", "1", "sample from the most likely tokens with total probability X"),
    CLI_INT_IN(0, 9e18, "seed", seed, "N", "0", "random seed; the same seed gives the same text"),
    CLI_SWITCH("no-stop", no_stop, "continue after <|endoftext|>"),
    CLI_INT_IN(
        LS_SPECULATE_AUTO, LS_SPECULATE_MAX, "speculate", speculate, "N", "-1",
        "draft N tokens (0 to 8) with int8 weights and verify them in one pass; the text does not change; -1 = 4 if the weights are larger than 64 MiB, else 0"),
    CLI_INT_IN(0, 4096, "threads", on.threads, "N", "0", "CPU threads; 0 = all cores"),
    CLI_DEVICE_ROWS,
    CLI_COMPUTE_ROW,
    CLI_SWITCH("stats", stats, "print tokens/s on stderr", "Output"),
    CLI_SWITCH("json", json, "print one JSON object instead of text"),
};

static const cli_page page = {table, CLI_COUNT(table), "generate --checkpoint DIR [--prompt TEXT] [OPTIONS]",
                              "Generate text with a trained model. Output is streamed."};

typedef struct text {
    int32_t *id; /* prompt, then what was made */
    int64_t n_prompt, n;
    const char *stop; /* why it ended */
    double prompt_seconds, seconds;
    int64_t drafted, accepted;
} text;

/* Bytes of `s` from `from` on that are whole UTF-8 characters: a token may end inside one. */
static size_t whole_characters(const ls_str *s, size_t from)
{
    size_t end = s->len;
    for (size_t back = 1; back <= 3 && from + back <= s->len; back++) {
        unsigned char c = (unsigned char)s->data[s->len - back];
        if (c < 0x80) break;
        if (c >= 0xc0) {
            size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
            if (need > back) end = s->len - back;
            break;
        }
    }
    return end;
}

static ls_status stream(const ls_session *s, const text *t, int64_t first, ls_str *shown, size_t *n_shown, bool last)
{
    LS_TRY(ls_tokenizer_decode(s->tokenizer, t->id + first, (size_t)(t->n - first), shown));
    if (!shown->len) return LS_OK;
    size_t end = last ? shown->len : whole_characters(shown, *n_shown);
    fwrite(shown->data + *n_shown, 1, end - *n_shown, stdout);
    fflush(stdout);
    *n_shown = end;
    return LS_OK;
}

static ls_status make_text(ls_session *s, const options *o, int64_t sample, text *t, ls_sample_work *work,
                           int64_t limit)
{
    const ls_sampling how = {.temperature = o->greedy ? 0 : o->temperature,
                             .top_k = o->top_k,
                             .top_p = o->top_p,
                             .seed = (uint64_t)(o->seed + sample)};
    const int eot = ls_tokenizer_eot(s->tokenizer), V = s->model->cfg.vocab_size;
    ls_str shown = {0};
    size_t n_shown = 0;
    ls_status st = LS_OK;
    double begin = ls_now();
    const int64_t drafted = s->drafted, accepted = s->accepted;
    t->n = t->n_prompt;
    t->stop = limit < t->n_prompt + o->max_new ? "context full" : "max-new-tokens";
    LS_TRY_GOTO(st, done, ls_session_feed(s, t->id, t->n_prompt, 0));
    t->prompt_seconds = ls_now() - begin;
    begin = ls_now();
    t->id[t->n] = ls_sample(&how, s->logits, V, t->n, work);
    for (int64_t made = t->n + 1;;) { /* ids after t->n are generated but not printed yet */
        if (t->id[t->n] == eot && !o->no_stop) {
            t->stop = "end of text";
            break;
        }
        t->n++;
        if (!o->json) LS_TRY_GOTO(st, done, stream(s, t, t->n - 1, &shown, &n_shown, false));
        if (ls_stop_requested()) {
            t->stop = "signal";
            break;
        }
        if (t->n == limit) break;
        if (t->n == made) LS_TRY_GOTO(st, done, ls_session_extend(s, &how, t->id, &made, limit, work));
    }
    if (!o->json) LS_TRY_GOTO(st, done, stream(s, t, t->n, &shown, &n_shown, true));
    t->seconds = ls_now() - begin;
    t->drafted = s->drafted - drafted;
    t->accepted = s->accepted - accepted;
done:
    ls_str_fini(&shown);
    return st;
}

static ls_status write_json(ls_jsonw *w, const ls_session *s, const text *t)
{
    ls_str body = {0};
    ls_status st = ls_tokenizer_decode(s->tokenizer, t->id + t->n_prompt, (size_t)(t->n - t->n_prompt), &body);
    ls_jsonw_open(w, '{');
    ls_jsonw_put_str(w, "text", body.data ? body.data : "");
    ls_jsonw_put_open(w, "ids", '[');
    for (int64_t i = t->n_prompt; i < t->n; i++) ls_jsonw_int(w, t->id[i]);
    ls_jsonw_close(w);
    ls_jsonw_members(w, LS_KV("stop", t->stop), LS_KV("prompt_tokens", t->n_prompt),
                     LS_KV("prompt_seconds", t->prompt_seconds), LS_KV("seconds", t->seconds),
                     LS_KV("drafted", t->drafted), LS_KV("accepted", t->accepted),
                     LS_KV("tokens_per_sec", (double)(t->n - t->n_prompt) / (t->prompt_seconds + t->seconds)));
    ls_jsonw_close(w);
    ls_str_fini(&body);
    return st;
}

/* The prompt's ids; an empty prompt starts after an end-of-text token, as documents do. */
static ls_status read_prompt(ls_session *s, const options *o, ls_ids *ids)
{
    char *file = NULL;
    size_t n = o->prompt ? strlen(o->prompt) : 0;
    const char *prompt = o->prompt ? o->prompt : "";
    if (o->prompt_file) {
        LS_TRY(ls_fs_read(o->prompt_file, &file, &n));
        prompt = file;
    }
    ls_status st = ls_tokenizer_encode(s->tokenizer, prompt, n, ids);
    ls_free(file);
    LS_TRY(st);
    if (ids->n) return LS_OK;
    int eot = ls_tokenizer_eot(s->tokenizer);
    if (eot < 0) return ls_fail(LS_E_ARG, "the prompt is empty and the tokenizer has no <|endoftext|>; give --prompt");
    return ls_ids_push(ids, eot);
}

/* Refuses a prompt that the model cannot continue. */
static ls_status check_prompt(const ls_session *s, const ls_ids *ids)
{
    const int64_t room = s->acts->cache_len;
    if ((int64_t)ids->n >= room)
        return ls_fail(
            LS_E_ARG,
            "the prompt has %zu tokens and the model %lld positions; shorten the prompt to leave room for at least one token",
            ids->n, (long long)room);
    for (size_t i = 0; i < ids->n; i++)
        if (ids->id[i] >= s->model->cfg.vocab_size)
            return ls_fail(LS_E_FORMAT, "%s: tokenizer.json produced token %d, but the vocabulary of the model has %d",
                           s->path, ids->id[i], s->model->cfg.vocab_size);
    return LS_OK;
}

static void print_stats(const text *t)
{
    const long long n_new = t->n - t->n_prompt, n_prompt = t->n_prompt;
    fprintf(stderr, "%lld prompt token%s in %.3f s, %lld new in %.3f s: %.1f tokens/s", n_prompt,
            n_prompt == 1 ? "" : "s", t->prompt_seconds, n_new, t->seconds,
            (double)n_new / (t->prompt_seconds + t->seconds));
    if (t->drafted) fprintf(stderr, ", %lld of %lld drafts accepted", (long long)t->accepted, (long long)t->drafted);
    if (!strcmp(t->stop, "max-new-tokens")) fprintf(stderr, "; stopped at --max-new-tokens\n");
    else fprintf(stderr, "; stopped: %s\n", t->stop);
}

static ls_status make_samples(ls_session *s, const options *o, text *t, ls_sample_work *work, int64_t limit,
                              ls_jsonw *w)
{
    for (int64_t i = 0; i < o->n_sample && !ls_stop_requested(); i++) {
        if (!o->json && o->n_sample > 1) printf("%s--- %lld ---\n", i ? "\n" : "", (long long)i + 1);
        if (!o->json && o->prompt) fputs(o->prompt, stdout);
        LS_TRY(make_text(s, o, i, t, work, limit));
        if (o->json) LS_TRY(write_json(w, s, t));
        else putchar('\n');
        if (!o->stats) continue;
        print_stats(t);
    }
    return LS_OK;
}

static ls_status generate(ls_session *s, const options *o)
{
    ls_ids ids = {0};
    text t = {0};
    ls_sample_work *work = NULL;
    cli_json j;
    ls_jsonw *w = cli_json_begin(&j);
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, read_prompt(s, o, &ids));
    LS_TRY_GOTO(st, done, check_prompt(s, &ids));
    const int64_t room = s->acts->cache_len, wanted = (int64_t)ids.n + o->max_new,
                  limit = wanted < room ? wanted : room;
    t.n_prompt = (int64_t)ids.n;
    t.id = ls_alloc((size_t)limit * sizeof *t.id);
    work = ls_alloc((size_t)s->model->cfg.vocab_size * sizeof *work);
    if (!t.id || !work) {
        st = ls_nomem((size_t)s->model->cfg.vocab_size * sizeof *work, "sampling");
        goto done;
    }
    memcpy(t.id, ids.id, ids.n * sizeof *t.id);
    ls_jsonw_put_str(w, "checkpoint", s->path);
    ls_jsonw_put_open(w, "samples", '[');
    LS_TRY_GOTO(st, done, make_samples(s, o, &t, work, limit, w));
    ls_jsonw_close(w);
    if (o->json) st = cli_json_end(&j);
done:
    ls_str_fini(&j.text);
    ls_free(work);
    ls_free(t.id);
    ls_ids_fini(&ids);
    return st;
}

static ls_status check(const options *o, const unsigned char *given)
{
    if (!o->checkpoint) return ls_fail(LS_E_ARG, "generate needs --checkpoint DIR");
    if (o->prompt && o->prompt_file)
        return ls_fail(LS_E_ARG, "--prompt and --prompt-file cannot be combined; leave one out");
    if (!(o->top_p > 0)) return ls_fail(LS_E_ARG, "--top-p %g: must be more than 0 and at most 1", o->top_p);
    static const char *const sampling[] = {"temperature", "top-k", "top-p"};
    for (size_t i = 0; i < CLI_COUNT(sampling); i++)
        if (o->greedy && cli_given(&page, given, sampling[i]))
            return ls_fail(LS_E_ARG, "--greedy and --%s cannot be combined; leave one out", sampling[i]);
    return LS_OK;
}

ls_status cmd_generate(int argc, char **argv)
{
    options o = {0};
    if (cli_task_is(argc, argv, "translate")) return cli_generate_pairs(argc, argv);
    unsigned char given[CLI_COUNT(table)] = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, NULL, given));
    LS_TRY(check(&o, given));
    ls_session s = {0};
    ls_session_opts how = {.checkpoint = o.checkpoint,
                           .B = 1,
                           .T = 128,
                           .cache_len = INT32_MAX,
                           .speculate = (int)o.speculate,
                           .tokenizer = true};
    ls_device_choice device;
    LS_TRY(cli_choose_device(&o.on, o.speculate > 0 ? "--speculate" : NULL, &how, &device));
    if (o.speculate > 0 && !strcmp(how.compute, "cuda"))
        return ls_fail(LS_E_CONFIG, "--speculate %lld: only supported on the CPU, but --device is %s; leave it out",
                       (long long)o.speculate, device.asked);
    ls_stop_install();
    cli_print_device(&device);
    LS_TRY(ls_session_open(&s, &how));
    const ls_status st = generate(&s, &o);
    ls_session_close(&s);
    return st;
}
