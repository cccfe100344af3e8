/* cmd_generate.c - `lockstep generate`: text from a prompt, streamed as it is made. */
#include "cli/generate_impl.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/minmax.h"
#include "core/stop.h"
#include "data/unicode.h"

typedef generate_options options; /* of the rows below */

static const ls_opt table[] = {
    CLI_CHOICE("task", task, "lm|translate", "lm",
               "lm: continue a text; translate: translate sentences (generate --task translate --help)", "Input"),
    CLI_STR(
        "checkpoint", checkpoint, "DIR", NULL,
        "checkpoint, run folder (uses its newest checkpoint), Hugging Face folder, model file of llm.c, or the name of "
        "a model in the Hugging Face cache, such as gpt2"),
    CLI_STR("prompt", prompt, "TEXT", NULL, "text to continue [start after <|endoftext|>]", .text = true),
    CLI_STR("prompt_file", prompt_file, "FILE", NULL, "read the prompt from a file"),
    CLI_STR("prompts", prompts, "FILE", NULL,
            "continue each line of a file (plain, .gz or .zst; - for standard input), in batches"),
    CLI_INT_IN(1, 65536, "batch", batch, "N", "8", "prompts of --prompts that are computed together"),
    CLI_POSITIVE("max_new_tokens", max_new, "N", "128",
                 "generate at most N tokens; beyond the positions of the model, the oldest half of the text is dropped "
                 "and the rest computed again"),
    CLI_ROW(WORDS, 0, 0, "stop", stop, "TEXT", NULL, "end before this text; can be given several times", .text = true),
    CLI_POSITIVE("num_samples", n_sample, "N", "1", "number of texts; the seed increases by 1 for each"),
    CLI_SWITCH("greedy", greedy, "always take the most likely token (temperature 0)", "Sampling"),
    CLI_REAL_IN(0, 1e6, "temperature", temperature, "X", "0.8", "sampling temperature; 0 = greedy"),
    CLI_INT_IN(0, INT32_MAX, "top_k", top_k, "N", "50", "sample from the N most likely tokens; 0 = all"),
    CLI_REAL_IN(0, 1, "top_p", top_p, "X", "1", "sample from the most likely tokens with total probability X"),
    CLI_INT_IN(0, 9e18, "seed", seed, "N", "0", "random seed; the same seed gives the same text"),
    CLI_SWITCH("no_stop", no_stop, "continue after <|endoftext|>"),
    CLI_INT_IN(
        LS_SPECULATE_AUTO, LS_SPECULATE_MAX, "speculate", speculate, "N", "-1",
        "draft N tokens (0 to 8) with int8 weights and verify them in one pass; the text does not change; -1 = 4 if the weights are fp32 and larger than 64 MiB, else 0"),
    CLI_INT_IN(0, 4096, "threads", on.threads, "N", "0", "CPU threads; 0 = all cores"),
    CLI_DEVICE_ROWS_OF(
        "number format of matrix products. CPU: bf16 speeds up batches of --prompts and, with AMX, reading prompts; for the new tokens of a single prompt --weights bf16 or int8 is faster; auto: fp32 on the CPU, bf16 on a GPU; fp16 needs a GPU [fp32 on the CPU, bf16 on a GPU]"),
    CLI_COMPUTE_ROW,
    CLI_WEIGHTS_ROW,
    CLI_SWITCH("stats", stats, "print tokens/s of prompt and text, weights, precision and accepted drafts on stderr",
               "Output"),
    CLI_SWITCH("json", json, "print one JSON object instead of text (--prompts: one per line of output)"),
    /* names of nanoGPT's sample.py */
    CLI_ALIAS("out_dir", "checkpoint"),
    {.name = "start", .instead = "use --prompt TEXT, or --prompt_file FILE"},
    {.name = "init_from", .instead = "use --checkpoint: a run folder, or gpt2 for the model in the Hugging Face cache"},
    {.name = "dtype", .instead = "use --precision fp32, bf16 or fp16"},
    {.name = "compile", .arg = "false|0|no", .instead = "leave it out: kernels are compiled before the run"},
};

static const cli_page page = {table, CLI_COUNT(table), "generate [--checkpoint] DIR [[--prompt] TEXT] [OPTIONS]",
                              "Generate text with a trained model. Output is streamed."};

typedef struct text {
    int32_t *id; /* prompt, then what was made */
    int64_t n_prompt, n;
    const char *prompt;
    ls_str made;               /* the new ids as text, up to the stop text that ended it */
    size_t n_shown;            /* bytes of it that were printed */
    const char *stop, *reason; /* why it ended: for people, and as other programs call it */
    double prompt_seconds, seconds;
    int64_t drafted, accepted;
} text;

/* Prints the text up to byte `end`. */
static ls_status show_up_to(text *t, size_t end)
{
    ls_str whole = {0};
    data_utf8_replace(t->made.data + t->n_shown, end - t->n_shown, false, &whole);
    t->n_shown = end;
    const ls_status st = whole.failed ? ls_nomem(whole.len, "the text") : LS_OK;
    if (st == LS_OK && whole.len) fwrite(whole.data, 1, whole.len, stdout);
    ls_str_fini(&whole);
    return st;
}

/* Adds the text of the last id, or ends it before a stop text. Prints what cannot become a part of one, in whole characters: a token may end
 * inside one. */
static ls_status show(const ls_session *s, const options *o, text *t, bool *ended)
{
    const ls_stops stops = generate_stops(o);
    const size_t before = t->made.len;
    LS_TRY(ls_tokenizer_decode(s->tokenizer, t->id + t->n - 1, 1, &t->made));
    const size_t at = ls_stops_find(&stops, (ls_substr){t->made.data, t->made.len}, before);
    *ended = at < t->made.len;
    t->made.len = at;
    t->made.data[at] = '\0';
    if (o->json) return LS_OK;
    const size_t end = at - ls_stops_pending(&stops, (ls_substr){t->made.data, at});
    LS_TRY(show_up_to(t, *ended ? at : t->n_shown + data_utf8_whole(t->made.data + t->n_shown, end - t->n_shown)));
    fflush(stdout);
    return LS_OK;
}

/* Adds at least one id after the `made` first ones; beyond the positions of the model the window moves. */
static ls_status extend(ls_session *s, ls_sampling *how, int32_t *id, int64_t *made, int64_t limit,
                        ls_sample_work *work)
{
    const int64_t first = ls_session_window(s, *made);
    if (first != how->first && *made - 1 > first) LS_TRY(ls_session_feed(s, id + first, *made - 1 - first, 0));
    how->first = first;
    int64_t n = *made - first;
    LS_TRY(ls_session_extend(s, how, id + first, &n, LS_MIN(limit - first, s->acts->cache_len + 1), work));
    *made = first + n;
    return LS_OK;
}

static ls_status make_text(ls_session *s, const options *o, int64_t sample, text *t, ls_sample_work *work)
{
    ls_sampling how = generate_sampling(o, sample);
    const int eot = ls_tokenizer_eot(s->tokenizer);
    const int64_t limit = t->n_prompt + o->max_new, drafted = s->drafted, accepted = s->accepted;
    double begin = ls_now();
    bool ended = false;
    t->n = t->n_prompt;
    t->made.len = t->n_shown = 0;
    t->stop = "max_new_tokens";
    t->reason = "length";
    how.first = ls_session_window(s, t->n_prompt);
    LS_TRY(ls_session_feed(s, t->id + how.first, t->n_prompt - how.first, 0));
    t->prompt_seconds = ls_now() - begin;
    begin = ls_now();
    t->id[t->n] = ls_session_sample(s, &how, 0, t->n, work, NULL);
    for (int64_t made = t->n + 1; t->n < limit && !ended;) { /* ids after t->n are generated but not printed yet */
        if (t->n == made) LS_TRY(extend(s, &how, t->id, &made, limit, work));
        if (t->id[t->n] == eot && !o->no_stop) {
            t->stop = "end of text";
            t->reason = "stop";
            break;
        }
        t->n++;
        LS_TRY(show(s, o, t, &ended));
        if (ended) {
            t->stop = "stop text";
            t->reason = "stop";
        } else if (ls_stop_requested()) {
            t->stop = t->reason = "signal";
            break;
        }
    }
    if (!o->json && t->made.len > t->n_shown) LS_TRY(show_up_to(t, t->made.len));
    t->seconds = ls_now() - begin;
    t->drafted = s->drafted - drafted;
    t->accepted = s->accepted - accepted;
    return LS_OK;
}

static void write_json(ls_jsonw *w, const text *t)
{
    ls_str whole = {0};
    data_utf8_replace(t->made.data, t->made.len, false, &whole);
    w->out->failed |= whole.failed;
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("prompt", t->prompt), LS_KV("text", ((ls_substr){whole.data, whole.len})));
    ls_str_fini(&whole);
    ls_jsonw_put_open(w, "ids", '[');
    for (int64_t i = t->n_prompt; i < t->n; i++) ls_jsonw_int(w, t->id[i]);
    ls_jsonw_close(w);
    ls_jsonw_members(w, LS_KV("stop", t->stop), LS_KV("finish_reason", t->reason), LS_KV("prompt_tokens", t->n_prompt),
                     LS_KV("prompt_seconds", t->prompt_seconds), LS_KV("seconds", t->seconds),
                     LS_KV("drafted", t->drafted), LS_KV("accepted", t->accepted),
                     LS_KV("prompt_tokens_per_sec", generate_rate(t->n_prompt, t->prompt_seconds)),
                     LS_KV("new_tokens_per_sec", generate_rate(t->n - t->n_prompt, t->seconds)),
                     LS_KV("tokens_per_sec", generate_rate(t->n - t->n_prompt, t->prompt_seconds + t->seconds)));
    ls_jsonw_close(w);
}

ls_status generate_encode(const ls_session *s, const char *prompt, size_t n, ls_ids *ids)
{
    const size_t before = ids->n;
    LS_TRY(ls_tokenizer_encode(s->tokenizer, prompt, n, ids));
    if (ids->n == before) {
        const int eot = ls_tokenizer_eot(s->tokenizer);
        if (eot < 0)
            return ls_fail(LS_E_ARG, "the prompt is empty and the tokenizer has no <|endoftext|>; give --prompt");
        LS_TRY(ls_ids_push(ids, eot));
    }
    for (size_t i = before; i < ids->n; i++)
        if (ids->id[i] >= s->model->cfg.vocab_size)
            return ls_fail(LS_E_FORMAT, "%s: the tokenizer produced token %d, but the vocabulary of the model has %d",
                           s->path, ids->id[i], s->model->cfg.vocab_size);
    return LS_OK;
}

ls_status generate_check_bytes(const char *option, const char *path, int64_t line, const char *bytes, size_t n)
{
    const char *nul = n ? memchr(bytes, '\0', n) : NULL, *begin = bytes;
    if (!nul) return LS_OK;
    for (const char *at = bytes; at < nul; at++)
        if (*at == '\n') line++, begin = at + 1;
    return ls_fail(LS_E_FORMAT, "%s %s: line %lld: byte %lld is NUL, but prompts are text in UTF-8; remove it", option,
                   path, (long long)line, (long long)(nul - begin) + 1);
}

ls_sampling generate_sampling(const options *o, int64_t sample)
{
    return (ls_sampling){.temperature = o->greedy ? 0 : o->temperature,
                         .top_k = o->top_k,
                         .top_p = o->top_p,
                         .seed = (uint64_t)(o->seed + sample)};
}

ls_stops generate_stops(const options *o)
{
    return (ls_stops){o->stop.word, o->stop.n};
}

double generate_rate(int64_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

void generate_print_weights(const ls_session *s, const ls_session_opts *how)
{
    int64_t nbytes;
    const char *name = ls_session_weights(s, &nbytes);
    fprintf(stderr, "weights: %s%s, %.1f MB", name, s->packed && s->compute.device ? " (a copy)" : "",
            (double)nbytes / 1e6);
    if (s->draft) fprintf(stderr, "; drafts: int8, %.1f MB", (double)s->draft->nbytes / 1e6);
    fputc('\n', stderr);
    const bool rounded = s->packed && s->packed->form == LS_PACK_INT8 && !s->compute.device;
    fprintf(stderr, "precision: %s%s\n", cli_precision_word(how),
            rounded ? "; products with the weights: 8-bit integers" : "");
}

static void print_stats(const text *t)
{
    const long long n_new = t->n - t->n_prompt, n_prompt = t->n_prompt;
    fflush(stdout); /* the text and this line may go to the same terminal */
    fprintf(stderr,
            "%lld prompt token%s in %.3f s (%.1f tokens/s), %lld new in %.3f s (%.1f tokens/s): in all %.1f tokens/s",
            n_prompt, n_prompt == 1 ? "" : "s", t->prompt_seconds, generate_rate(n_prompt, t->prompt_seconds), n_new,
            t->seconds, generate_rate(n_new, t->seconds), generate_rate(n_new, t->prompt_seconds + t->seconds));
    if (t->drafted) fprintf(stderr, ", %lld of %lld drafts accepted", (long long)t->accepted, (long long)t->drafted);
    if (!strcmp(t->stop, "max_new_tokens")) fprintf(stderr, "; stopped at --max_new_tokens\n");
    else fprintf(stderr, "; stopped: %s\n", t->stop);
}

static ls_status make_samples(ls_session *s, const options *o, text *t, ls_sample_work *work, ls_jsonw *w)
{
    for (int64_t i = 0; i < o->n_sample && !ls_stop_requested(); i++) {
        if (!o->json && o->n_sample > 1) printf("%s--- %lld ---\n", i ? "\n" : "", (long long)i + 1);
        if (!o->json && o->prompt) fputs(o->prompt, stdout);
        const ls_status st = make_text(s, o, i, t, work);
        if (!o->json && (st == LS_OK || o->prompt || t->n_shown)) putchar('\n');
        if (st != LS_OK) fflush(stdout); /* the message follows the text */
        LS_TRY(st);
        if (o->json) write_json(w, t);
        if (o->stats) print_stats(t);
    }
    if (!ls_stop_requested()) return LS_OK;
    ls_stop_ended_with(128 + ls_stop_signal());
    return ls_fail(LS_E_STOPPED, "the text ends at signal %d", ls_stop_signal());
}

static ls_status continue_prompt(ls_session *s, const options *o, const ls_session_opts *how, const char *prompt,
                                 size_t n)
{
    ls_ids ids = {0};
    text t = {.prompt = prompt};
    cli_json j;
    ls_jsonw *w = cli_json_begin(&j);
    ls_sample_work *work = ls_alloc((size_t)s->model->cfg.vocab_size * sizeof *work);
    ls_status st = work ? LS_OK : ls_nomem((size_t)s->model->cfg.vocab_size * sizeof *work, "sampling");
    if (st == LS_OK) LS_TRY_GOTO(st, done, generate_encode(s, prompt, n, &ids));
    else goto done;
    t.n_prompt = (int64_t)ids.n;
    if (t.n_prompt > s->acts->cache_len)
        fprintf(stderr,
                "note: the prompt has %lld tokens and the model %lld positions; it reads the newest %lld tokens\n",
                (long long)t.n_prompt, (long long)s->acts->cache_len,
                (long long)(t.n_prompt - ls_session_window(s, t.n_prompt)));
    LS_TRY_GOTO(st, done, ls_reserve(&ids.id, &ids.cap, ids.n + (size_t)o->max_new, sizeof *ids.id, "the text"));
    t.id = ids.id;
    ls_jsonw_put_str(w, "checkpoint", s->path);
    cli_session_json(s, how, w);
    ls_jsonw_put_open(w, "samples", '[');
    st = make_samples(s, o, &t, work, w);
    if (o->stats && (st == LS_OK || st == LS_E_STOPPED)) generate_print_weights(s, how);
    if (st != LS_OK) goto done;
    ls_jsonw_close(w);
    if (o->json) st = cli_json_end(&j);
done:
    ls_str_fini(&j.text);
    ls_str_fini(&t.made);
    ls_free(work);
    ls_ids_fini(&ids);
    return st;
}

static ls_status generate(const options *o, const ls_session_opts *how)
{
    ls_session s = {0};
    char *file = NULL;
    size_t n = o->prompt ? strlen(o->prompt) : 0;
    if (o->prompt_file) LS_TRY(ls_fs_read_most(o->prompt_file, GENERATE_PROMPT_MOST, &file, &n));
    ls_status st = file ? generate_check_bytes("--prompt_file", o->prompt_file, 1, file, n) : LS_OK;
    ls_stop_set_mode(LS_STOP_NOW); /* until the first text there is nothing to finish */
    if (st == LS_OK) st = ls_session_open(&s, how);
    ls_stop_set_mode(LS_STOP_ASK);
    if (st == LS_OK) st = continue_prompt(&s, o, how, file ? file : o->prompt ? o->prompt : "", n);
    ls_session_close(&s);
    ls_free(file);
    return st;
}

static ls_status check(const options *o, const unsigned char *given)
{
    if (!o->checkpoint) return ls_fail(LS_E_ARG, "generate needs a checkpoint or a run folder");
    const char *const from[] = {o->prompt ? "--prompt" : NULL, o->prompt_file ? "--prompt_file" : NULL,
                                o->prompts ? "--prompts" : NULL};
    for (int i = 0; i < 2; i++)
        for (int k = i + 1; k < 3; k++)
            if (from[i] && from[k])
                return ls_fail(LS_E_ARG, "%s and %s cannot be combined; leave one out", from[i], from[k]);
    if (!o->prompts && cli_given(&page, given, "batch"))
        return ls_fail(LS_E_ARG, "--batch has no meaning without --prompts; leave it out");
    if (o->prompts && o->speculate > 0)
        return ls_fail(LS_E_ARG, "--speculate is for one prompt at a time; leave it out with --prompts");
    if (o->speculate > 0 && o->on.weights && !strcmp(o->on.weights, "int8"))
        return ls_fail(LS_E_ARG,
                       "--speculate and --weights int8 cannot be combined: drafts have int8 weights, too; leave "
                       "one out");
    for (int i = 0; i < o->stop.n; i++)
        if (!*o->stop.word[i]) return ls_fail(LS_E_ARG, "--stop: the text is empty");
    if (!(o->top_p > 0)) return ls_fail(LS_E_ARG, "--top_p %g: must be more than 0 and at most 1", o->top_p);
    static const char *const sampling[] = {"temperature", "top_k", "top_p"};
    for (size_t i = 0; i < CLI_COUNT(sampling); i++)
        if (o->greedy && cli_given(&page, given, sampling[i]))
            return ls_fail(LS_E_ARG, "--greedy and --%s cannot be combined; leave one out", sampling[i]);
    return LS_OK;
}

ls_status cmd_generate(int argc, char **argv)
{
    options o = {0};
    ls_opt_list rest = {0};
    if (cli_task_is(argc, argv, "translate")) return cli_generate_pairs(argc, argv);
    unsigned char given[CLI_COUNT(table)] = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, &rest, given));
    LS_TRY(cli_take_words(&rest, GENERATE_WORDS, &o.checkpoint, &o.prompt));
    LS_TRY(check(&o, given));
    ls_session_opts how = {
        .checkpoint = o.checkpoint, .B = 1, .cache_len = INT32_MAX, .speculate = (int)o.speculate, .tokenizer = true};
    ls_device_choice device;
    /* auto is fp32 on the CPU for batches, too: a prompt is computed in the same precision alone and in a batch */
    if (o.on.precision && !strcmp(o.on.precision, "auto")) o.on.precision = NULL;
    LS_TRY(cli_choose_device(&o.on, o.speculate > 0 ? "--speculate" : NULL, &how, &device));
    if (o.speculate > 0 && !strcmp(how.compute, "cuda"))
        return ls_fail(LS_E_CONFIG, "--speculate %lld: only supported on the CPU, but --device is %s; leave it out",
                       (long long)o.speculate, device.asked);
    const ls_sampling sampling = generate_sampling(&o, 0);
    how.n_best = ls_sampling_best(&sampling);
    ls_stop_install();
    cli_print_session(&device, &how);
    return o.prompts ? generate_many(&o, &how) : generate(&o, &how);
}
