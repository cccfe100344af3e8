/* cmd_eval.c - `lockstep eval`: mean loss and perplexity of a checkpoint on a token file; other tasks are in eval_*.c. */
#include "cli/eval_impl.h"
#include "ckpt/checkpoint.h"
#include "config/run_options.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/progress.h"
#include "data/loader.h"
#include "data/meta.h"

#include <math.h>
#include <unistd.h>

static const ls_opt table[] = {
    CLI_CHOICE("task", task, "lm|translate|bleu", "lm",
               "lm: loss and perplexity of a checkpoint; translate: BLEU and chrF of its translations, as sacrebleu "
               "computes them; bleu: the same of translations in a file",
               "Input"),
    CLI_STR(
        "checkpoint", checkpoint, "DIR", NULL,
        "checkpoint, run folder (uses its newest checkpoint), Hugging Face folder, model file of llm.c, or the name of "
        "a model in the Hugging Face cache"),
    CLI_STR("data", data, "PATH", NULL,
            "token file, or a folder written by prepare (uses its val.bin); translate: pairs as .tsv or .jsonl, or a "
            "folder of prepare --task translate (uses its test.jsonl, else val.jsonl) [of a run folder: its data]"),
    CLI_STR("hyp", hyp, "FILE", NULL, "bleu: translations, one per line (plain, .gz or .zst; - for standard input)"),
    CLI_ROW(WORDS, 0, 0, "ref", ref, "FILE", NULL,
            "bleu: references, one per line; can be given again, for several of each sentence"),
    CLI_INT_IN(0, INT32_MAX, "seq_length", seq_length, "N", "0",
               "tokens per sequence; 0 = as in training, or the number of positions of a model of other origin",
               "Execution"),
    CLI_POSITIVE("micro_batch_size", micro_batch, "N", "4", "sequences per batch"),
    CLI_INT_IN(-1, 1e15, "max_steps", max_steps, "N", "-1", "evaluate at most N batches; -1 = the whole file"),
    CLI_INT_IN(0, 4096, "threads", on.threads, "N", "0", "CPU threads; 0 = all cores"),
    CLI_DEVICE_ROWS,
    CLI_COMPUTE_ROW,
    CLI_WEIGHTS_ROW,
    CLI_SEARCH_ROWS,
    CLI_INT_IN(0, INT32_MAX, "limit", limit, "N", "0", "translate: use only the first N pairs; 0 = all"),
    CLI_STR("out", out, "FILE", NULL, "translate: write the pairs and their translations as JSON"),
    CLI_SWITCH("json", json, "print one JSON object instead of lines"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "eval [--checkpoint] DIR [--data PATH] [OPTIONS]",
    "Compute the mean cross-entropy per token and the perplexity over all complete sequences of the file (of "
    "pairs: over their targets). With --task translate, translate pairs and compute BLEU and chrF; with --task bleu "
    "--hyp FILE --ref FILE, score translations of any origin."};

typedef struct result {
    double loss, seconds;
    int64_t tokens, sequences;
} result;

/* Sequences in file order; the last batch may be smaller, so that every sequence counts. */
static ls_status evaluate(ls_session *s, const ls_tokens *data, const options *o, result *r)
{
    const int64_t S = data->seq_len, B = o->micro_batch;
    int64_t n_seq = data->n_seq;
    if (o->max_steps >= 0 && n_seq > o->max_steps * B) n_seq = o->max_steps * B;
    const double begin = ls_now();
    double sum = 0;
    ls_progress_open();
    for (int64_t k = 0; k < n_seq; k += B) {
        const int64_t b = n_seq - k < B ? n_seq - k : B;
        for (int64_t i = 0; i < b; i++) LS_TRY(ls_tokens_sequence(data, k + i, s->ids + i * S, s->target + i * S));
        double loss;
        int64_t counted;
        LS_TRY(ls_session_loss(s, b, S, &loss, &counted));
        sum += loss;
        r->tokens += counted;
        r->sequences += b;
        if (ls_progress_due(0)) {
            ls_progress_line l = {0};
            ls_progress_add(&l, 0, "%lld/%lld sequences", (long long)r->sequences, (long long)n_seq);
            if (r->tokens) ls_progress_add(&l, 1, "loss %.4f", sum / (double)r->tokens);
            ls_progress_show(&l);
        }
    }
    ls_progress_end(false);
    r->loss = r->tokens ? sum / (double)r->tokens : NAN;
    r->seconds = ls_now() - begin;
    if (r->tokens && !isfinite(r->loss))
        return ls_fail(LS_E_NUMERIC, "%s: the loss is %s: the weights are damaged; use another checkpoint", s->path,
                       isnan(r->loss) ? "not a number" : "infinite");
    return LS_OK;
}

void eval_print_session(const ls_session *s, const ls_session_opts *how)
{
    int64_t nbytes;
    const char *precision = cli_precision_word(how);
    if (s->packed) printf("weights %s\n", ls_session_weights(s, &nbytes));
    if (strcmp(precision, "fp32")) printf("precision %s\n", precision);
}

static ls_status print(const options *o, const ls_session_opts *how, const ls_session *s, const char *data,
                       const result *r)
{
    const double perplexity = exp(r->loss), rate = (double)r->tokens / r->seconds;
    cli_json j;
    if (!o->json) {
        eval_print_session(s, how);
        printf("loss %.6f\nperplexity %.4f\ntokens %lld\ntokens/s %.1f\n", r->loss, perplexity, (long long)r->tokens,
               rate);
        return LS_OK;
    }
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("checkpoint", s->path), LS_KV("data", data));
    cli_session_json(s, how, w);
    ls_jsonw_members(w, LS_KV("loss", r->loss), LS_KV("perplexity", perplexity), LS_KV("tokens", r->tokens),
                     LS_KV("sequences", r->sequences), LS_KV("seconds", r->seconds), LS_KV("tokens_per_sec", rate));
    return cli_json_end(&j);
}

/* The length of the sequences that a checkpoint of `train` was trained with; `otherwise` for other folders. */
static int trained_length(const char *checkpoint, int otherwise)
{
    char *text = NULL;
    json_t *state = NULL;
    int64_t n = 0;
    if (ls_ckpt_is(checkpoint) && ls_ckpt_state(checkpoint, &text, NULL) == LS_OK &&
        ls_json_parse(text, strlen(text), checkpoint, &state) == LS_OK)
        n = json_integer_value(ls_json_at(state, "run.seq_len"));
    ls_err_clear();
    json_decref(state);
    ls_free(text);
    return n >= 1 && n <= otherwise ? (int)n : otherwise;
}

/* The ids of one vocabulary mean nothing in another: that of the data must be the checkpoint's, whatever the form of its files. */
static ls_status check_tokenizer(const char *checkpoint, int n_model, const char *data)
{
    char of[2][PATH_MAX], dir[PATH_MAX];
    ls_str text[2] = {{0}, {0}};
    int n[2] = {0, 0};
    ls_status st = LS_OK;
    snprintf(dir, sizeof dir, "%.*s", (int)(ls_path_base(data) - data), data);
    LS_TRY(ls_ckpt_tokenizer(*dir ? dir : ".", of[0]));
    LS_TRY(ls_ckpt_tokenizer(checkpoint, of[1]));
    if (!*of[0] != !*of[1])
        fprintf(stderr, "note: %s has no tokenizer; only that all ids of the data are below %d is checked\n",
                *of[0] ? checkpoint : data, n_model);
    for (int k = 0; k < 2 && st == LS_OK && *of[0] && *of[1]; k++) {
        ls_tokenizer *t = NULL;
        st = ls_tokenizer_load(of[k], &t);
        if (st == LS_OK) st = ls_tokenizer_to_json(t, &text[k]);
        if (st == LS_OK) n[k] = ls_tokenizer_n_vocab(t);
        ls_tokenizer_destroy(&t);
    }
    if (st == LS_OK && n[1] && strcmp(text[0].data, text[1].data) != 0)
        st = ls_fail(LS_E_CONFIG,
                     "%s is from another tokenizer (%d ids) than %s (%d ids); prepare its text again with "
                     "`lockstep prepare TEXT --tokenizer %s --out DIR`",
                     data, n[0], checkpoint, n[1], ls_quoted(of[1]).text);
    ls_str_fini(&text[0]);
    ls_str_fini(&text[1]);
    return st;
}

static ls_status open_and_evaluate(const options *o, const ls_session_opts *how, const char *path)
{
    ls_session s = {0};
    ls_tokens data = {0};
    result r = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, ls_session_open(&s, how));
    const int n_ctx = s.model->cfg.n_ctx;
    if (o->seq_length > n_ctx) {
        st =
            ls_fail(LS_E_CONFIG, "--seq_length %lld: the model has only %d positions", (long long)o->seq_length, n_ctx);
        goto done;
    }
    const int S = o->seq_length ? (int)o->seq_length : trained_length(s.path, n_ctx);
    LS_TRY_GOTO(st, done, ls_data_check(path, false));
    LS_TRY_GOTO(st, done, check_tokenizer(s.path, s.model->cfg.vocab_size, path));
    LS_TRY_GOTO(st, done, ls_tokens_open(&data, path, S, s.model->cfg.vocab_size));
    LS_TRY_GOTO(st, done, evaluate(&s, &data, o, &r));
    if (!r.tokens) {
        st = ls_fail(LS_E_FORMAT,
                     "%s: none of the %lld sequences has a target within %d tokens: there is no loss; use a longer "
                     "--seq_length, or other data",
                     path, (long long)r.sequences, S + 1);
        goto done;
    }
    st = print(o, how, &s, path, &r);
done:
    ls_tokens_close(&data);
    ls_session_close(&s);
    return st;
}

/* Options that only some tasks have. */
static ls_status check(const options *o, const unsigned char *given)
{
    static const struct {
        const char *name;
        bool lm, translate, bleu;
    } of[] = {
        {"checkpoint", true, true, false}, {"data", true, true, false},        {"hyp", false, false, true},
        {"ref", false, false, true},       {"seq_length", true, false, false}, {"micro_batch_size", true, false, false},
        {"max_steps", true, false, false}, {"threads", true, true, false},     {"device", true, true, false},
        {"precision", true, true, false},  {"tf32", true, true, false},        {"compute", true, true, false},
        {"weights", true, true, false},    {"beam", false, true, false},       {"length_penalty", false, true, false},
        {"batch", false, true, false},     {"max_length", false, true, false}, {"limit", false, true, false},
        {"out", false, true, false}};
    const char t = o->task[0];
    for (size_t i = 0; i < CLI_COUNT(of); i++)
        if (cli_given(&page, given, of[i].name) && !(t == 'l' ? of[i].lm : t == 't' ? of[i].translate : of[i].bleu))
            return ls_fail(LS_E_ARG, "--%s has no meaning with --task %s; leave it out", of[i].name, o->task);
    if (t != 'b' && !o->checkpoint)
        return ls_fail(LS_E_ARG, "eval needs a run folder, or --checkpoint DIR and --data PATH");
    if (!o->max_steps || o->max_steps < -1)
        return ls_fail(LS_E_ARG, "--max_steps %lld: must be at least 1, or -1 for the whole file",
                       (long long)o->max_steps);
    return LS_OK;
}

/* The data of the run that the checkpoint is of: its validation tokens, or the folder with its pairs. */
static ls_status data_of_run(const options *o, char path[PATH_MAX])
{
    char run[PATH_MAX], *found = NULL;
    ls_argv words = {0};
    ls_train_options of_run;
    ls_train_paths paths = {0};
    if (!ls_fs_exists(o->checkpoint)) LS_TRY(ls_ckpt_resolve("--checkpoint", o->checkpoint, &found));
    ls_free(found);
    ls_status st = ls_path_in(run, o->checkpoint, "%s", "");
    if (st == LS_OK && !ls_fs_exists(ls_path_of(run, LS_RUN_OPTIONS).text)) st = ls_path_in(run, o->checkpoint, "..");
    if (st == LS_OK && !ls_fs_exists(ls_path_of(run, LS_RUN_OPTIONS).text))
        return ls_fail(LS_E_ARG, "%s is not of a run folder, whose data are known; add --data PATH", o->checkpoint);
    if (st == LS_OK) st = ls_run_options_read(run, false, &words);
    if (st == LS_OK) st = ls_train_options_parse(words.n, words.word, &of_run);
    if (st == LS_OK && !strcmp(o->task, "translate")) snprintf(path, PATH_MAX, "%s", of_run.data ? of_run.data : "");
    else if (st == LS_OK) st = ls_train_find_paths(&of_run, &paths);
    if (paths.val) snprintf(path, PATH_MAX, "%s", paths.val);
    if (st == LS_OK && !*path)
        st = ls_fail(LS_E_ARG, "the run of %s has no validation data; add --data PATH", o->checkpoint);
    ls_train_paths_fini(&paths);
    ls_argv_fini(&words);
    return st;
}

ls_status cmd_eval(int argc, char **argv)
{
    options o = {0};
    ls_opt_list rest = {0};
    unsigned char given[CLI_COUNT(table)] = {0};
    char known[PATH_MAX] = "";
    LS_TRY(cli_parse(&page, &o, argc, argv, &rest, given));
    LS_TRY(cli_take_words(&rest, "eval takes a checkpoint or a run folder", &o.checkpoint, NULL));
    LS_TRY(check(&o, given));
    if (!strcmp(o.task, "bleu")) return eval_bleu(&o);
    if (!o.data) {
        LS_TRY(data_of_run(&o, known));
        o.data = known;
        fprintf(stderr, "data: %s\n", known);
    }
    if (!strcmp(o.task, "translate")) return eval_translate(&o);

    ls_session_opts how = {
        .checkpoint = o.checkpoint, .B = o.micro_batch, .T = o.seq_length ? o.seq_length : INT32_MAX};
    ls_device_choice device;
    LS_TRY(cli_choose_device(&o.on, NULL, &how, &device));
    char *path = ls_fs_is_dir(o.data) ? ls_path_join(o.data, "val.bin") : ls_strdup(o.data);
    if (!path) return ls_nomem(256, "a path");
    cli_print_session(&device, &how);
    const ls_status st = open_and_evaluate(&o, &how, path);
    ls_free(path);
    return st;
}
