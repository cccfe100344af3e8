/* cmd_prepare.c - `lockstep prepare`: text and JSON lines to token files and a tokenizer. */
#include "cli/commands.h"
#include "core/argv.h"
#include "core/fs.h"
#include "core/progress.h"
#include "core/stop.h"
#include "data/bpe_train.h"
#include "data/prepare.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct options {
    ls_prepare_opts p;
    ls_opt_list input, val_input;
    const char *task, *tokenizer, *vocab_dir, *vocab_url, *format, *bad_utf8;
    int64_t vocab_size, train_mb, threads, files;
    double journal_seconds;
    bool json, quiet, text_key_given;
} options;

static const ls_opt table[] = {
    CLI_CHOICE("task", task, "lm|translate", "lm",
               "lm: text to continue; translate: pairs of sentences (prepare --task translate --help)",
               "Input and output", CLI_COMMON),
    CLI_LIST(
        "input", input, "PATH...",
        "the same as PATH... without the option: files (one document per .txt, .md or .rst file or .jsonl line; plain, .gz or .zst), folders of them, or - for standard input",
        CLI_COMMON),
    CLI_LIST("val_input", val_input, "PATH...", "input files for validation", CLI_COMMON),
    CLI_STR(
        "out", p.out_dir, "DIR", NULL,
        "output folder for train.bin, val.bin, tokenizer.json and meta.json; they replace older ones when all are complete, and other files in it are kept",
        CLI_COMMON),
    CLI_INT_IN(0, 1e15, "shard_tokens", p.shard_tokens, "N", "0",
               "write the training tokens to files of N tokens, train_000.bin, train_001.bin, ...; 0 = train.bin",
               CLI_COMMON),
    CLI_SWITCH("llmc", p.llmc, "write token files with the header of llm.c; train reads both forms"),
    CLI_STR(
        "tokenizer", tokenizer, "gpt2|bytes|train|PATH", "gpt2",
        "vocabulary: gpt2, bytes (257 ids), train (trained on the input), a tokenizer.json, or a folder with one or "
        "with vocab.json and merges.txt",
        "Tokens", CLI_COMMON),
    CLI_STR("vocab_dir", vocab_dir, "DIR", NULL,
            "gpt2: folder with vocab.bpe and encoder.json, or with tokenizer.json [the cache, else downloaded]",
            CLI_COMMON),
    CLI_STR("vocab_url", vocab_url, "URL", NULL,
            "gpt2: download the two files from URL (also LOCKSTEP_VOCAB_URL); their SHA-256 is checked"),
    CLI_INT_IN(257, 65536, "vocab_size", vocab_size, "N", "8192",
               "train: vocabulary size, including 256 bytes and end-of-text; at most 65536", CLI_COMMON),
    CLI_POSITIVE("min_frequency", p.train_min_count, "N", "2", "train: merge only pairs that occur at least N times"),
    CLI_INT_IN(0, INT32_MAX, "train_mb", train_mb, "N", "1024", "train: use only the first N MiB of text; 0 = all"),
    CLI_REAL_IN(
        0, 1, "val_fraction", p.val_fraction, "X", "0.05",
        "use every (1/X)-th document for validation; if these have less than half or more than twice the fraction X of the tokens, or there are too few documents, split at a token; 0 = no validation",
        "Documents", CLI_COMMON),
    CLI_STR("text_key", p.text_key, "KEY", "text", "key of the text in a JSON line", CLI_COMMON),
    CLI_INT_IN(0, 1e15, "min_chars", p.min_chars, "N", "0", "drop documents with fewer than N characters"),
    CLI_INT_IN(0, 1e15, "max_chars", p.max_chars, "N", "0", "drop documents with more than N characters; 0 = no limit"),
    CLI_SWITCH(
        "dedup", p.dedup,
        "drop documents that equal an earlier one, by a 64-bit hash; needs 11 to 21 bytes of memory per document, 32 while its table grows",
        CLI_COMMON),
    CLI_CHOICE(
        "format", format, "auto|txt|lines|jsonl", "auto",
        "what a document is: txt: a file; lines (or --lines): a line of text; jsonl: a line of JSON; auto: txt or jsonl by file name",
        CLI_COMMON),
    {.name = "lines", .of = "format", .value = "lines"},
    CLI_CHOICE("invalid_utf8", bad_utf8, "error|replace|keep", "error",
               "bytes that are not UTF-8: reject the file, replace them by U+FFFD, or encode them unchanged"),
    CLI_INT_IN(0, 1e18, "limit_docs", p.limit_docs, "N", "0",
               "use only the first N documents of the input, before any is dropped; 0 = all"),
    CLI_INT_IN(0, 1e18, "limit_val_docs", p.limit_val_docs, "N", "0",
               "use only the first N documents of --val_input; 0 = all"),
    CLI_INT_IN(0, 1024, "threads", threads, "N", "0", "CPU threads; 0 = all cores; the output does not depend on it",
               "Execution", CLI_COMMON),
    CLI_INT_IN(
        0, 1024, "files_at_once", files, "N", "0",
        "read at most N input files at the same time; 0 = as many as keep the threads busy. Tokens of files that are "
        "read ahead wait in the folder of --out; 1 needs no space for them"),
    CLI_SWITCH(
        "resume", p.resume,
        "continue a run of the same command that was killed or stopped; the files are the same, byte for byte. A complete folder is left as it is unless an input has changed",
        CLI_COMMON),
    CLI_REAL_IN(0, 1e9, "journal_seconds", journal_seconds, "S", "10",
                "record the progress for --resume every S seconds"),
    CLI_SWITCH("json", json, "print the summary as one JSON object", CLI_COMMON),
    CLI_SWITCH("quiet", quiet, "print no progress on stderr", CLI_COMMON),
};

static const cli_page page = {table, CLI_COUNT(table), "prepare PATH... --out DIR [OPTIONS]",
                              "Convert text to token files: the tokens of each document, followed by <|endoftext|>, as "
                              "unsigned 16-bit integers."};

/* ---- progress ---- */

static void show_progress(void *ctx, const ls_prepare_progress *p)
{
    char done[32], total[32];
    ls_progress_line l = {0};
    (void)ctx;
    if (!ls_progress_due(0)) return;
    ls_human_bytes(done, (double)p->done);
    if (p->total > 0)
        ls_progress_add(&l, 0, "%s: %s of %s (%.0f%%)", p->phase, done, ls_human_bytes(total, (double)p->total),
                        100 * (double)p->done / (double)p->total);
    else ls_progress_add(&l, 0, "%s: %s", p->phase, done);
    const double own = (double)(p->done - p->done_start);
    if (p->total > 0 && own > 0)
        ls_progress_add(&l, 1, "eta %s", ls_human_time(total, p->seconds * (double)(p->total - p->done) / own));
    ls_human_bytes(done, p->seconds > 0 ? (double)p->text_bytes / p->seconds : 0);
    ls_progress_add(&l, 2, "%s/s of text", done);
    ls_progress_add(&l, 3, "%lld tokens", (long long)p->n_token);
    ls_progress_show(&l);
}

/* ---- inputs ---- */

static ls_status list_inputs(ls_inputs *list, const ls_opt_list *words, const char *format)
{
    const ls_text_format f = !strcmp(format, "txt")     ? LS_TEXT_PLAIN
                             : !strcmp(format, "jsonl") ? LS_TEXT_JSONL
                             : !strcmp(format, "lines") ? LS_TEXT_LINES
                                                        : LS_TEXT_AUTO;
    for (int i = 0; i < words->n; i++) LS_TRY(ls_inputs_add(list, words->word[i], f));
    return LS_OK;
}

#define MAX_NAMED 20

static void note_skipped(const ls_inputs *list)
{
    if (!list->n_skipped) return;
    fprintf(stderr, "note: %zu file%s in folders skipped, of other types or a README:", list->n_skipped,
            list->n_skipped == 1 ? "" : "s");
    for (size_t i = 0; i < list->n_skipped && i < MAX_NAMED; i++)
        fprintf(stderr, "%s %s", i ? "," : "", list->skipped[i]);
    if (list->n_skipped > MAX_NAMED) fprintf(stderr, " and %zu more (--json lists all)", list->n_skipped - MAX_NAMED);
    fprintf(stderr, "\n");
}

/* Pipes and standard input cannot be read again. */
static bool is_repeatable(const ls_inputs *list)
{
    for (size_t i = 0; i < list->n; i++) {
        struct stat sb;
        if (!strcmp(list->item[i].path, "-") || stat(list->item[i].path, &sb) || !S_ISREG(sb.st_mode)) return false;
    }
    return true;
}

/* Training reads the corpus twice: standard input is copied to a file without a name first. */
static ls_status spool_stdin(ls_inputs *list, int *fd)
{
    size_t i = 0;
    while (i < list->n && strcmp(list->item[i].path, "-")) i++;
    if (i == list->n) return LS_OK;
    const char *dir = getenv("TMPDIR");
    char *name = ls_asprintf("%s/lockstep-stdin-XXXXXX", dir && *dir ? dir : "/tmp");
    char *buf = ls_alloc(1 << 20);
    ls_status st = name && buf ? LS_OK : ls_nomem(1 << 20, "a copy of standard input");
    if (st == LS_OK && (*fd = mkstemp(name)) < 0) st = ls_fail(LS_E_IO, "cannot write %s: %s", name, strerror(errno));
    if (st == LS_OK) unlink(name);
    while (st == LS_OK) {
        ssize_t n = read(STDIN_FILENO, buf, 1 << 20), at = 0;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) st = ls_fail(LS_E_IO, "cannot read standard input: %s", strerror(errno));
        if (n <= 0) break;
        while (at < n && st == LS_OK) {
            ssize_t k = write(*fd, buf + at, (size_t)(n - at));
            if (k < 0 && errno == EINTR) continue;
            if (k <= 0) st = ls_fail(LS_E_IO, "cannot write a copy of standard input: %s", strerror(errno));
            else at += k;
        }
        list->item[i].nbytes = (list->item[i].nbytes < 0 ? 0 : list->item[i].nbytes) + n;
    }
    list->item[i].fd = *fd;
    ls_free(name);
    ls_free(buf);
    return st;
}

/* ---- options ---- */

static ls_status check(const options *o, const unsigned char *given)
{
    bool trains = !strcmp(o->tokenizer, "train"), gpt2 = !strcmp(o->tokenizer, "gpt2");
    if (!o->input.n)
        return ls_fail(LS_E_ARG, "the input is missing; give the text files to prepare (--help lists the options)");
    if (!o->p.out_dir || !*o->p.out_dir)
        return ls_fail(LS_E_ARG, "--out is missing; give a folder for the token files");
    if (!(o->p.val_fraction >= 0 && o->p.val_fraction < 1))
        return ls_fail(LS_E_ARG, "--val_fraction %g: must be at least 0 and less than 1", o->p.val_fraction);
    if (o->val_input.n && cli_given(&page, given, "val_fraction") && o->p.val_fraction > 0)
        return ls_fail(LS_E_ARG, "--val_input and --val_fraction cannot be combined; leave one out");
    if (o->p.max_chars && o->p.max_chars < o->p.min_chars)
        return ls_fail(LS_E_ARG, "--max_chars %lld is less than --min_chars %lld: no document can be kept",
                       (long long)o->p.max_chars, (long long)o->p.min_chars);
    if (o->p.shard_tokens && o->p.shard_tokens < 1024)
        return ls_fail(LS_E_ARG, "--shard_tokens %lld: must be 0 (one file) or at least 1024",
                       (long long)o->p.shard_tokens);
    if (o->files > 1 && (o->p.limit_docs || o->p.limit_val_docs))
        return ls_fail(LS_E_ARG,
                       "--files_at_once %lld: files are read one after the other with --limit_docs and "
                       "--limit_val_docs; leave it out",
                       (long long)o->files);
    if (o->p.limit_val_docs && !o->val_input.n) return ls_fail(LS_E_ARG, "--limit_val_docs needs --val_input");
    if (trains && (o->vocab_size < LS_BPE_MIN_VOCAB || o->vocab_size > 65536))
        return ls_fail(LS_E_ARG,
                       "--vocab_size %lld: must be %d (bytes and end-of-text) to 65536 (token files have 16 bits)",
                       (long long)o->vocab_size, LS_BPE_MIN_VOCAB);
    if (!trains && (cli_given(&page, given, "vocab_size") || cli_given(&page, given, "min_frequency") ||
                    cli_given(&page, given, "train_mb")))
        return ls_fail(LS_E_ARG, "--vocab_size, --min_frequency and --train_mb need --tokenizer train");
    if (!gpt2 && (cli_given(&page, given, "vocab_dir") || cli_given(&page, given, "vocab_url")))
        return ls_fail(LS_E_ARG,
                       "--vocab_dir and --vocab_url need --tokenizer gpt2; for another folder use --tokenizer DIR");
    return LS_OK;
}

static ls_status find_tokenizer(const options *o, ls_tokenizer **out)
{
    const char *url = o->vocab_url ? o->vocab_url : getenv("LOCKSTEP_VOCAB_URL");
    if (!strcmp(o->tokenizer, "train")) return LS_OK;
    if (!strcmp(o->tokenizer, "bytes")) return ls_tokenizer_bytes(out);
    if (!strcmp(o->tokenizer, "gpt2")) return ls_gpt2_find(o->vocab_dir, url && *url ? url : NULL, out);
    if (!ls_fs_exists(o->tokenizer))
        return ls_fail(LS_E_ARG, "--tokenizer %s: not gpt2, bytes or train, and no such file or folder", o->tokenizer);
    return ls_tokenizer_load(o->tokenizer, out);
}

/* Without options that change no file: a resumed run writes the same meta.json. */
static char *command_line(int argc, char **argv)
{
    ls_str s = {0};
    char **word = ls_alloc((size_t)(argc + 1) * sizeof *word);
    int n = 0;
    if (!word) return NULL;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--resume") && strcmp(argv[i], "--json") && strcmp(argv[i], "--quiet")) word[n++] = argv[i];
    ls_str_add(&s, "lockstep prepare ");
    ls_argv_show(&(ls_argv){.word = word, .n = n}, &s);
    ls_free(word);
    if (s.failed) ls_str_fini(&s);
    return s.data;
}

/* ---- the summary ---- */

static void print_part(ls_jsonw *w, const char *name, int64_t tokens, int64_t docs, const char *sha)
{
    ls_jsonw_put_open(w, name, '{');
    ls_jsonw_members(w, LS_KV("tokens", tokens), LS_KV("documents", docs), LS_KV("sha256", sha[0] ? sha : NULL));
    ls_jsonw_close(w);
}

static ls_status print_json(const options *o, const ls_inputs *train, const ls_prepare_result *r)
{
    cli_json j;
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("out", o->p.out_dir), LS_KV("tokenizer", o->tokenizer), LS_KV("vocab_size", r->n_vocab));
    print_part(w, "train", r->train_token, r->train_doc, r->train_sha256);
    print_part(w, "val", r->val_token, r->val_doc, r->val_sha256);
    ls_jsonw_members(w, LS_KV("val_is_tail_of_stream", r->val_is_tail), LS_KV("text_bytes", r->text_bytes),
                     LS_KV("seconds", r->seconds), LS_KV("encode_seconds", r->encode_seconds),
                     LS_KV("train_vocab_seconds", r->train_seconds), LS_KV("train_files", r->train_files),
                     LS_KV("resumed", r->resumed));
    ls_jsonw_put_open(w, "dropped", '{');
    ls_jsonw_members(w, LS_KV("too_short", r->n_short), LS_KV("too_long", r->n_long),
                     LS_KV("duplicates", r->n_duplicate));
    ls_jsonw_close(w);
    ls_jsonw_put_open(w, "skipped_files", '[');
    for (size_t i = 0; i < train->n_skipped; i++) ls_jsonw_str(w, train->skipped[i]);
    ls_jsonw_close(w);
    return cli_json_end(&j);
}

static void note_small_vocabulary(const options *o, const ls_prepare_result *r)
{
    if (strcmp(o->tokenizer, "train") != 0 || r->n_vocab >= o->vocab_size) return;
    fprintf(
        stderr,
        "note: --vocab_size %lld: the text yields only %d ids, because no other pair of tokens occurs %lld or more times (--min_frequency)\n",
        (long long)o->vocab_size, r->n_vocab, (long long)o->p.train_min_count);
}

static ls_status print_summary(const options *o, const ls_inputs *train, const ls_prepare_result *r)
{
    note_small_vocabulary(o, r);
    if (o->json) return print_json(o, train, r);
    char bytes[32], rate[32], shards[64] = "";
    const int64_t n_dropped = r->n_short + r->n_long + r->n_duplicate;
    double s = r->encode_seconds;
    if (o->p.shard_tokens) snprintf(shards, sizeof shards, "_000.bin ... (%d files)", r->train_files);
    printf("train  %12lld tokens  %lld document%s  %s/train%s\n", (long long)r->train_token, (long long)r->train_doc,
           r->train_doc == 1 ? "" : "s", o->p.out_dir, *shards ? shards : ".bin");
    if (!r->val_token) printf("val    none\n");
    else if (r->val_is_tail)
        printf("val    %12lld tokens  %s%g %% of the tokens%s  %s/val.bin\n", (long long)r->val_token,
               r->val_doc ? "" : "the last ", 100 * o->p.val_fraction,
               r->val_doc ? ", split at a token because documents differ in size" : "", o->p.out_dir);
    else
        printf("val    %12lld tokens  %lld document%s  %s/val.bin\n", (long long)r->val_token, (long long)r->val_doc,
               r->val_doc == 1 ? "" : "s", o->p.out_dir);
    printf("vocab  %12d ids     %d merges  %s/tokenizer.json\n", r->n_vocab, r->n_merge, o->p.out_dir);
    if (n_dropped)
        printf("drop   %12lld documents: %lld too short, %lld too long, %lld duplicates\n", (long long)n_dropped,
               (long long)r->n_short, (long long)r->n_long, (long long)r->n_duplicate);
    printf("text   %s, ", ls_human_bytes(bytes, (double)r->text_bytes));
    if (!n_dropped) /* the bytes are those of all documents, the tokens of those kept */
        printf("%.3f bytes per token, ", (double)r->text_bytes / (double)(r->train_token + r->val_token));
    if (r->resumed) printf("the rest of it encoded in %.2f s after a resume", s);
    else printf("encoded in %.2f s (%s/s)", s, ls_human_bytes(rate, (double)r->text_bytes / s));
    if (!strcmp(o->tokenizer, "train") && !r->resumed) printf(", vocabulary trained in %.2f s", r->train_seconds);
    printf("\n");
    return LS_OK;
}

static ls_status print_complete(const options *o, const ls_inputs *train, const ls_prepare_result *r)
{
    if (o->json) return print_json(o, train, r);
    printf("%s is complete: this command made it, and its inputs have not changed since; nothing to do\n",
           o->p.out_dir);
    return LS_OK;
}

static bool has_json_lines(const ls_inputs *list)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->item[i].format == LS_TEXT_JSONL) return true;
    return false;
}

static ls_status prepare(options *o, const char *command)
{
    ls_inputs train = {0}, val = {0};
    ls_tokenizer *tok = NULL;
    int spool = -1;
    ls_prepare_result r;
    ls_status st;
    LS_TRY_GOTO(st, done, list_inputs(&train, &o->input, o->format));
    LS_TRY_GOTO(st, done, list_inputs(&val, &o->val_input, o->format));
    if (o->text_key_given && !has_json_lines(&train) && !has_json_lines(&val)) {
        st = ls_fail(LS_E_ARG, "--text_key is only for JSON lines (.jsonl), but no input has them; leave it out");
        goto done;
    }
    LS_TRY_GOTO(st, done, find_tokenizer(o, &tok));
    const bool repeatable = is_repeatable(&train) && is_repeatable(&val);
    if (o->p.resume && !repeatable) {
        st = ls_fail(LS_E_ARG, "--resume needs input files that can be read again, not standard input or pipes");
        goto done;
    }
    if (!tok) LS_TRY_GOTO(st, done, spool_stdin(&train, &spool));
    if (!o->quiet) note_skipped(&train);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    ls_prepare_opts *p = &o->p;
    p->train = &train;
    p->val = &val;
    p->tok = tok;
    p->train_vocab = (int)o->vocab_size;
    p->train_bytes = o->train_mb << 20;
    p->bad_utf8 = !strcmp(o->bad_utf8, "replace") ? LS_BAD_UTF8_REPLACE
                  : !strcmp(o->bad_utf8, "keep")  ? LS_BAD_UTF8_KEEP
                                                  : LS_BAD_UTF8_ERROR;
    if (o->val_input.n) p->val_fraction = 0;
    p->threads = (int)(o->threads ? o->threads : cores > 0 ? cores : 1);
    p->files = (int)o->files;
    p->command = command;
    p->journal_seconds = repeatable ? o->journal_seconds : -1;
    p->progress = o->quiet ? NULL : show_progress;
    if (p->resume && ls_prepare_complete(p, o->tokenizer, &r)) {
        st = print_complete(o, &train, &r);
        goto done;
    }
    ls_stop_install();
    ls_progress_open();
    st = ls_prepare(p, &r);
    ls_progress_end(false);
    if (st == LS_OK) st = print_summary(o, &train, &r);
done:
    ls_inputs_fini(&train);
    ls_inputs_fini(&val);
    ls_tokenizer_destroy(&tok);
    if (spool >= 0) close(spool);
    return st;
}

ls_status cmd_prepare(int argc, char **argv)
{
    options o = {0};
    unsigned char given[CLI_COUNT(table)] = {0};
    char *command = command_line(argc, argv); /* parsing moves arguments */
    ls_status st = LS_OK;
    if (cli_task_is(argc, argv, "translate")) {
        st = cli_prepare_pairs(argc, argv, command);
    } else {
        ls_opt_list words = {0};
        st = cli_parse(&page, &o, argc, argv, &words, given);
        if (st == LS_OK && words.n && o.input.n)
            st = ls_fail(LS_E_ARG, "'%s': give the inputs either after --input or without it, not both ways",
                         words.word[0]);
        if (words.n) o.input = words;
        if (st == LS_OK) st = check(&o, given);
        o.text_key_given = cli_given(&page, given, "text_key");
        if (st == LS_OK) st = prepare(&o, command);
    }
    ls_free(command);
    return st;
}
