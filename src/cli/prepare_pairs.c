/* prepare_pairs.c - `lockstep prepare --task translate`: a parallel corpus to token files with masks and a tokenizer. */
#include "cli/commands.h"
#include "core/fs.h"
#include "core/progress.h"
#include "core/stop.h"
#include "data/prepare_pairs.h"

typedef struct options {
    const char *task, *src_lang, *tgt_lang, *tokenizer;
    ls_opt_list input[LS_N_PAIR_PART];
    int64_t vocab_size;
    ls_prepare_pairs_opts p;
    bool json, quiet;
} options;

static const ls_opt table[] = {
    CLI_CHOICE("task", task, "translate", NULL, "this page; prepare --help describes plain text", "Input and output"),
    CLI_LIST(
        "input", input[LS_PAIR_TRAIN], "PATH...",
        "the same as PATH... without the option: training pairs: .tsv files (source TAB target), .jsonl files with the keys src and tgt or the names of the "
        "languages (also inside an object translation), or two text files with equal lines, the source first (plain, .gz or .zst)"),
    CLI_LIST("val_input", input[LS_PAIR_VAL], "PATH...", "validation pairs, in the same forms"),
    CLI_LIST("test_input", input[LS_PAIR_TEST], "PATH...", "test pairs, for BLEU; their text is kept in test.jsonl"),
    CLI_STR("out", p.out_dir, "DIR", NULL, "output folder for train.bin, train.mask, val.bin and so on"),
    CLI_STR("src_lang", src_lang, "NAME", NULL,
            "source language, part of its end token <eos_NAME> [ending of the text file, else src]", "Tokens"),
    CLI_STR("tgt_lang", tgt_lang, "NAME", NULL, "target language [ending of the text file, else tgt]"),
    CLI_STR("tokenizer", tokenizer, "train|PATH", "train",
            "vocabulary: trained on both languages, or the tokenizer.json of an earlier run"),
    CLI_INT_IN(257, 65536, "vocab_size", vocab_size, "N", "8192",
               "vocabulary size, including 256 bytes and three special tokens; at most 65536"),
    CLI_POSITIVE("min_frequency", p.min_count, "N", "2", "merge only pairs of tokens that occur at least N times"),
    CLI_REAL_IN(0, 1, "val_fraction", p.val_fraction, "X", "0.05",
                "use every (1/X)-th training pair for validation; 0 = no validation", "Pairs"),
    CLI_INT_IN(0, 1e18, "limit_train", p.limit[LS_PAIR_TRAIN], "N", "0",
               "use only the first N pairs of --input; 0 = all"),
    CLI_INT_IN(0, 1e18, "limit_val", p.limit[LS_PAIR_VAL], "N", "0",
               "use only the first N pairs of --val_input; 0 = all"),
    CLI_INT_IN(0, 1e18, "limit_test", p.limit[LS_PAIR_TEST], "N", "0",
               "use only the first N pairs of --test_input; 0 = all"),
    CLI_SWITCH("json", json, "print the summary as one JSON object", "Output"),
    CLI_SWITCH("quiet", quiet, "print no progress on stderr"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "prepare --task translate PATH... --out DIR [OPTIONS]",
    "Convert pairs of sentences to token files: source, end token, target, end token, and a mask that limits the loss "
    "to the target."};

static ls_status check(const options *o, const unsigned char *given)
{
    const bool trains = !strcmp(o->tokenizer, "train");
    if (!o->input[LS_PAIR_TRAIN].n) return ls_fail(LS_E_ARG, "--input is missing; give the training pairs");
    if (!o->p.out_dir || !*o->p.out_dir)
        return ls_fail(LS_E_ARG, "--out is missing; give a folder for the token files");
    if (!(o->p.val_fraction >= 0 && o->p.val_fraction < 1))
        return ls_fail(LS_E_ARG, "--val_fraction %g: must be at least 0 and less than 1", o->p.val_fraction);
    if (o->input[LS_PAIR_VAL].n && cli_given(&page, given, "val_fraction") && o->p.val_fraction > 0)
        return ls_fail(LS_E_ARG, "--val_input and --val_fraction cannot be combined; leave one out");
    for (int p = LS_PAIR_VAL; p < LS_N_PAIR_PART; p++)
        if (o->p.limit[p] && !o->input[p].n)
            return ls_fail(LS_E_ARG, "--limit_%s needs --%s_input", p == LS_PAIR_VAL ? "val" : "test",
                           p == LS_PAIR_VAL ? "val" : "test");
    if (trains && (o->vocab_size < 259 || o->vocab_size > 65536))
        return ls_fail(LS_E_ARG,
                       "--vocab_size %lld: must be 259 (bytes and special tokens) to 65536 (token files have 16 bits)",
                       (long long)o->vocab_size);
    if (!trains && (cli_given(&page, given, "vocab_size") || cli_given(&page, given, "min_frequency")))
        return ls_fail(LS_E_ARG, "--vocab_size and --min_frequency need --tokenizer train");
    return LS_OK;
}

static void show_progress(void *ctx, const char *phase, int64_t pairs)
{
    ls_progress_line l = {0};
    (void)ctx;
    if (!ls_progress_due(0)) return;
    ls_progress_add(&l, 0, "%s: %lld pairs", phase, (long long)pairs);
    ls_progress_show(&l);
}

static ls_status print(const options *o, const ls_prepare_pairs_result *r)
{
    static const char *const name[] = {"train", "val", "test"};
    cli_json j;
    if (!o->json) {
        for (int p = 0; p < LS_N_PAIR_PART; p++)
            if (r->pairs[p])
                printf("%-6s %10lld pair%s  %lld tokens, %lld of them targets\n", name[p], (long long)r->pairs[p],
                       r->pairs[p] == 1 ? " " : "s", (long long)r->tokens[p], (long long)r->targets[p]);
        for (int p = 0; p < LS_N_PAIR_PART; p++)
            if (r->empty[p])
                printf("empty  %10lld pair%s  of %s without text, %s\n", (long long)r->empty[p],
                       r->empty[p] == 1 ? " " : "s", name[p],
                       p == LS_PAIR_TEST ? "kept: line k stays sentence k" : "dropped");
        if (!r->pairs[LS_PAIR_VAL])
            printf("val    none%s; --val_input FILE gives them%s\n",
                   o->p.val_fraction > 0 ? ": too few pairs for --val_fraction" : "",
                   r->pairs[LS_PAIR_TEST] ? "" : ", or --test_input; without both, train computes no BLEU");
        printf("vocab  %10d ids    %d merges, <eos_%s> and <eos_%s>\n", r->n_vocab, r->n_merge, o->p.langs->src,
               o->p.langs->tgt);
        printf("longest training pair: %lld tokens; --seq_length %lld keeps all of it\n", (long long)r->longest,
               (long long)r->longest - 1);
        return LS_OK;
    }
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("out", o->p.out_dir), LS_KV("src_lang", (const char *)o->p.langs->src),
                     LS_KV("tgt_lang", (const char *)o->p.langs->tgt), LS_KV("vocab_size", r->n_vocab));
    for (int p = 0; p < LS_N_PAIR_PART; p++) {
        ls_jsonw_put_open(w, name[p], '{');
        ls_jsonw_members(w, LS_KV("pairs", r->pairs[p]), LS_KV("tokens", r->tokens[p]),
                         LS_KV("target_tokens", r->targets[p]), LS_KV("empty_pairs", r->empty[p]));
        ls_jsonw_close(w);
    }
    ls_jsonw_members(w, LS_KV("longest_pair", r->longest), LS_KV("seconds", r->seconds));
    return cli_json_end(&j);
}

ls_status cli_prepare_pairs(int argc, char **argv, const char *command)
{
    options o = {0};
    unsigned char given[CLI_COUNT(table)] = {0};
    ls_langs langs;
    ls_tokenizer *tok = NULL;
    ls_prepare_pairs_result r;
    ls_opt_list words = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, &words, given));
    if (words.n && o.input[LS_PAIR_TRAIN].n)
        return ls_fail(LS_E_ARG, "'%s': give the inputs either after --input or without it, not both ways",
                       words.word[0]);
    if (words.n) o.input[LS_PAIR_TRAIN] = words;
    LS_TRY(check(&o, given));
    for (int p = 0; p < LS_N_PAIR_PART; p++) {
        o.p.input[p] = o.input[p].word;
        o.p.n_input[p] = o.input[p].n;
    }
    LS_TRY(ls_langs_choose(&langs, o.src_lang, o.tgt_lang, o.p.input[0], o.p.n_input[0]));
    if (strcmp(o.tokenizer, "train") != 0) LS_TRY(ls_tokenizer_load(o.tokenizer, &tok));
    o.p.langs = &langs;
    o.p.tok = tok;
    o.p.vocab_size = (int)o.vocab_size;
    o.p.command = command;
    o.p.progress = o.quiet ? NULL : show_progress;
    ls_stop_install();
    ls_progress_open();
    ls_status st = ls_prepare_pairs(&o.p, &r);
    ls_progress_end(false);
    if (st == LS_OK) st = print(&o, &r);
    ls_tokenizer_destroy(&tok);
    return st;
}
