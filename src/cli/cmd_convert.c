/* cmd_convert.c - `lockstep export` and `lockstep import`: between checkpoints and the files of other programs. */
#include "cli/commands.h"
#include "ckpt/checkpoint.h"
#include "ckpt/export.h"
#include "ckpt/hf.h"
#include "core/fs.h"
#include "data/tokenizer.h"

#include <unistd.h>

typedef struct options {
    const char *from, *out, *variant, *to, *dtype, *shard_size;
    bool force;
} options;

#define FORCE_ROW                                        \
    CLI_ROW(SWITCH, 0, 0, "force", force, NULL, "false", \
            "replace the output if it exists; a folder may contain only files of a checkpoint or an export")

static const ls_opt export_table[] = {
    CLI_STR("checkpoint", from, "DIR", NULL,
            "checkpoint, run folder (uses its newest checkpoint), Hugging Face folder or model file of llm.c, or the "
            "name of a model in the Hugging Face cache",
            "Input"),
    CLI_STR("out", out, "PATH", NULL, "folder to write (hf), or file to write (gguf, llmc)", "Output"),
    CLI_CHOICE(
        "to", to, "hf|gguf|llmc", "hf",
        "hf: a folder for transformers; gguf: a file for llama.cpp, which Lockstep does not read; llmc: a model file "
        "of llm.c, with the tokenizer beside it"),
    CLI_CHOICE("dtype", dtype, "fp32|bf16|fp16", "fp32", "number format of the weights; llmc has no fp16"),
    CLI_STR("shard_size", shard_size, "SIZE", NULL,
            "hf: divide the weights into files of at most this size, such as 500MB or 2GB [one file]"),
    {.name = "max_shard_size", .kind = LS_OPT_STR, .offset = offsetof(options, shard_size)},
    FORCE_ROW,
};

static const cli_page export_page = {
    export_table, CLI_COUNT(export_table), "export [--checkpoint] DIR [--out] PATH [OPTIONS]",
    "Verify the checksums of a checkpoint and write its weights for another program. hf: config.json, generation_config.json, the tokenizer and model.safetensors (or shards and their index). gguf: one file with the vocabulary. llmc: one .bin file in fp32 or bf16, and the tokenizer in its folder."};

/* "500MB", "2GB", "1048576": decimal units as those of transformers, or KiB, MiB, GiB. */
static ls_status parse_size(const char *text, int64_t *out)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9}, {"KiB", 1024.0},
                 {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"", 1}};
    const size_t n = strspn(text, "0123456789.");
    char number[32];
    double x = 0;
    snprintf(number, sizeof number, "%.*s", (int)(n < 31 ? n : 31), text);
    for (size_t i = 0; i < CLI_COUNT(units); i++) {
        if (strcmp(text + n, units[i].unit) || !ls_parse_f64(number, &x)) continue;
        x *= units[i].factor;
        if (!(x >= 1 && x < 9e15)) break;
        *out = (int64_t)x;
        return LS_OK;
    }
    return ls_fail(LS_E_ARG, "--shard_size %s: must be a size such as 500MB, 2GB or 1GiB", text);
}

/* ---- the vocabulary of a GGUF file ---- */

static void token(const void *ctx, int i, ls_str *out)
{
    ls_tokenizer_form(ctx, i, out);
}

static bool special(const void *ctx, int i)
{
    return ls_tokenizer_special(ctx, i).data != NULL;
}

static void merge(const void *ctx, int r, ls_str *out)
{
    ls_tokenizer_merge_form(ctx, r, out);
}

static ls_status export_gguf(const ls_export_opts *o)
{
    ls_export_opts how = *o;
    char from[4096];
    ls_tokenizer *t = NULL;
    LS_TRY(ls_ckpt_tokenizer(o->from, from));
    if (!*from)
        return ls_fail(
            LS_E_IO,
            "%s has neither tokenizer.json nor vocab.json + merges.txt, and a GGUF file needs the vocabulary; copy those that its training data was made with",
            o->from);
    LS_TRY(ls_tokenizer_load(from, &t));
    const ls_export_vocab vocab = {.ctx = t,
                                   .n_token = ls_tokenizer_n_vocab(t),
                                   .n_merge = ls_tokenizer_n_merge(t),
                                   .eot = ls_tokenizer_eot(t),
                                   .token = token,
                                   .special = special,
                                   .merge = merge};
    how.vocab = &vocab;
    const ls_status st = ls_export(&how);
    ls_tokenizer_destroy(&t);
    return st;
}

/* The folder of a model file has its tokenizer, which the file has not: generate and eval look for it there. */
static ls_status export_llmc(const ls_export_opts *o)
{
    static const char *const name[] = {"tokenizer.json", "vocab.json", "merges.txt"};
    char from[PATH_MAX], out[PATH_MAX];
    LS_TRY(ls_ckpt_folder(o->from, from));
    snprintf(out, sizeof out, "%.*s", (int)(ls_path_base(o->out) - o->out), o->out);
    LS_TRY(ls_export(o));
    ls_status st = LS_OK;
    for (size_t i = 0; i < CLI_COUNT(name) && st == LS_OK; i++)
        if (ls_fs_exists(ls_path_of(from, name[i]).text))
            st = cli_copy_file(from, *out ? out : ".", name[i], o->replace);
    if (st != LS_OK && !o->replace) (void)unlink(o->out); /* it did not exist before */
    return st;
}

static void print_done(const char *verb, const char *from, const char *to)
{
    ls_str s = {0};
    ls_str_addf(&s, "%s %s to %s\n", verb, from, to);
    cli_say(stdout, LS_COLOUR_NONE, s.data ? s.data : "");
    ls_str_fini(&s);
}

ls_status cmd_export(int argc, char **argv)
{
    options o = {0};
    ls_opt_list rest = {0};
    LS_TRY(cli_parse(&export_page, &o, argc, argv, &rest, NULL));
    LS_TRY(cli_take_words(&rest, "export takes a checkpoint and an output", &o.from, &o.out));
    if (!o.from || !o.out) return ls_fail(LS_E_ARG, "export needs --checkpoint DIR and --out PATH");
    if (!strcmp(o.to, "hf") && (ls_ends_in(o.out, ".gguf") || ls_ends_in(o.out, ".bin")))
        return ls_fail(LS_E_ARG, "--out %s would be a Hugging Face folder; add --to %s, or choose another name", o.out,
                       ls_ends_in(o.out, ".gguf") ? "gguf" : "llmc");
    ls_export_opts how = {.kind = !strcmp(o.to, "hf")     ? LS_EXPORT_HF
                                  : !strcmp(o.to, "gguf") ? LS_EXPORT_GGUF
                                                          : LS_EXPORT_LLMC,
                          .out = o.out,
                          .dtype = ls_precision_dtype(o.dtype),
                          .replace = o.force};
    if (o.shard_size && how.kind != LS_EXPORT_HF)
        return ls_fail(LS_E_ARG, "--shard_size has no meaning with --to %s; leave it out", o.to);
    if (o.shard_size) LS_TRY(parse_size(o.shard_size, &how.shard_nbytes));
    char *path = NULL;
    LS_TRY(ls_ckpt_resolve("--checkpoint", o.from, &path));
    how.from = path;
    const ls_status st = how.kind == LS_EXPORT_GGUF   ? export_gguf(&how)
                         : how.kind == LS_EXPORT_LLMC ? export_llmc(&how)
                                                      : ls_export(&how);
    if (st == LS_OK) print_done("exported", path, o.out);
    ls_free(path);
    return st;
}

static const ls_opt import_table[] = {
    CLI_STR("from", from, "PATH", NULL,
            "Hugging Face GPT-2 folder with single or sharded safetensors, model file of llm.c (.bin), or the name of "
            "a model in the Hugging Face cache, such as gpt2",
            "Input"),
    CLI_CHOICE("variant", variant, "hf|r1", NULL, "model variant, if config.json does not name it"),
    CLI_STR("out", out, "DIR", NULL, "checkpoint folder to write", "Output"),
    FORCE_ROW,
};

static const cli_page import_page = {
    import_table, CLI_COUNT(import_table), "import [--from] PATH [--out] DIR [--variant hf|r1] [--force]",
    "Read model.safetensors or the shards of model.safetensors.index.json (F32, F16, BF16 or F64), or a model file of llm.c (fp32 or bf16), check every name and shape, and write an fp32 checkpoint with the tokenizer of the folder (tokenizer.json, or vocab.json and merges.txt). `train --init_from` can also read them directly."};

ls_status cmd_import(int argc, char **argv)
{
    options o = {0};
    ls_opt_list rest = {0};
    LS_TRY(cli_parse(&import_page, &o, argc, argv, &rest, NULL));
    LS_TRY(cli_take_words(&rest, "import takes a model and an output folder", &o.from, &o.out));
    if (!o.from || !o.out) return ls_fail(LS_E_ARG, "import needs --from PATH and --out DIR");
    char *path = NULL;
    LS_TRY(ls_ckpt_resolve("--from", o.from, &path));
    const ls_status st = ls_hf_import(path, o.out, o.variant, o.force);
    if (st == LS_OK) print_done("imported", path, o.out);
    ls_free(path);
    return st;
}
