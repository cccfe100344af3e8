/* generate_pairs.c - `lockstep generate --task translate`: one translation per line of input. */
#include "cli/generate_impl.h"
#include "cli/translation.h"
#include "core/stop.h"

typedef struct options {
    const char *task, *checkpoint, *prompt, *prompt_file;
    cli_device on;
    cli_search search;
    bool json, stats;
} options;

static const ls_opt table[] = {
    CLI_CHOICE("task", task, "translate", NULL, "this page; generate --help describes other texts", "Input"),
    CLI_STR("checkpoint", checkpoint, "DIR", NULL,
            "checkpoint of the translation task, or run folder (uses its newest checkpoint)"),
    CLI_STR("prompt", prompt, "TEXT", NULL, "sentence to translate", .text = true),
    CLI_STR("prompt_file", prompt_file, "FILE", "-",
            "sentences to translate, one per line (plain, .gz or .zst; - for standard input)"),
    CLI_SEARCH_ROWS,
    CLI_INT_IN(0, 4096, "threads", on.threads, "N", "0", "CPU threads; 0 = all cores", "Execution"),
    CLI_DEVICE_ROWS,
    CLI_COMPUTE_ROW,
    CLI_WEIGHTS_ROW,
    CLI_SWITCH("stats", stats, "print tokens/s, weights and precision on stderr", "Output"),
    CLI_SWITCH("json", json, "print one JSON object instead of lines"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "generate --task translate DIR [TEXT] [OPTIONS]",
    "Translate sentences with a trained model: one line of output per line of input. Line breaks in a "
    "translation are printed as blanks; --json keeps them."};

static ls_status read_lines(const char *path, ls_translation_set *set)
{
    ls_lines in = {0};
    ls_substr line;
    bool end = false;
    ls_status st = ls_lines_open(&in, path);
    while (st == LS_OK) {
        st = ls_lines_next(&in, &line, &end);
        if (st != LS_OK || end) break;
        st = ls_translation_set_add(set, line, (ls_substr){0});
    }
    ls_lines_close(&in);
    return st;
}

/* One line whatever the text has: line breaks in it become blanks. */
static void print_line(const char *text)
{
    for (; *text; text++) putchar(*text == '\n' || *text == '\r' ? ' ' : *text);
    putchar('\n');
}

static ls_status print(const options *o, const ls_session_opts *how, const ls_session *s, const ls_langs *langs,
                       const ls_translation_set *set)
{
    cli_json j;
    if (o->stats) {
        fprintf(stderr, "%zu sentences, %lld new tokens in %.3f s: %.1f tokens/s\n", set->n, (long long)set->n_token,
                set->seconds, set->seconds > 0 ? (double)set->n_token / set->seconds : 0);
        generate_print_weights(s, how);
    }
    if (!o->json) {
        for (size_t i = 0; i < set->n; i++) print_line(set->item[i].gen);
        return LS_OK;
    }
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("checkpoint", s->path), LS_KV("src_lang", (const char *)langs->src),
                     LS_KV("tgt_lang", (const char *)langs->tgt));
    cli_session_json(s, how, w);
    ls_jsonw_put_open(w, "translations", '[');
    for (size_t i = 0; i < set->n; i++) {
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("src", set->item[i].src), LS_KV("gen", set->item[i].gen));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    ls_jsonw_members(w, LS_KV("generated_tokens", set->n_token), LS_KV("seconds", set->seconds));
    return cli_json_end(&j);
}

ls_status cli_generate_pairs(int argc, char **argv)
{
    options o = {0};
    ls_opt_list rest = {0};
    unsigned char given[CLI_COUNT(table)] = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, &rest, given));
    LS_TRY(cli_take_words(&rest, GENERATE_WORDS, &o.checkpoint, &o.prompt));
    if (!o.checkpoint) return ls_fail(LS_E_ARG, "generate needs a checkpoint or a run folder");
    if (o.prompt && cli_given(&page, given, "prompt_file"))
        return ls_fail(LS_E_ARG, "--prompt and --prompt_file cannot be combined; leave one out");
    LS_TRY(cli_search_check(&o.search));
    const ls_translate_opts how = cli_search_opts(&o.search, !o.json);
    ls_session_opts open = {.checkpoint = o.checkpoint};
    ls_device_choice device;
    ls_session s = {0};
    ls_langs langs;
    ls_translation_set set = {0};
    LS_TRY(cli_choose_device(&o.on, NULL, &open, &device));
    cli_print_session(&device, &open);
    ls_stop_install();
    LS_TRY(ls_translate_open(&s, open, &how, &langs));
    ls_status st = o.prompt ? ls_translation_set_add(&set, (ls_substr){o.prompt, strlen(o.prompt)}, (ls_substr){0})
                            : read_lines(o.prompt_file, &set);
    if (st == LS_OK && set.n) st = ls_translate(&s, &how, &set);
    if (st == LS_OK) st = print(&o, &open, &s, &langs, &set);
    ls_translation_set_fini(&set);
    ls_session_close(&s);
    return st;
}
