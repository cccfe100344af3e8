/* cmd_convert.c - `lockstep export` and `lockstep import`: between checkpoints and plain Hugging Face folders. */
#include "cli/commands.h"
#include "ckpt/checkpoint.h"
#include "ckpt/hf.h"

typedef struct options {
    const char *from, *out, *variant;
    bool force;
} options;

#define FORCE_ROW                                        \
    CLI_ROW(SWITCH, 0, 0, "force", force, NULL, "false", \
            "replace the folder if it exists; it may contain only files of a checkpoint or an export")

static const ls_opt export_table[] = {
    CLI_STR("checkpoint", from, "DIR", NULL, "checkpoint, or run folder (uses its newest checkpoint)", "Input"),
    CLI_STR("out", out, "DIR", NULL, "folder to write", "Output"),
    FORCE_ROW,
};

static const cli_page export_page = {
    export_table, CLI_COUNT(export_table), "export --checkpoint DIR --out DIR [--force]",
    "Verify the checksums of a checkpoint and write config.json, generation_config.json, model.safetensors and tokenizer.json."};

ls_status cmd_export(int argc, char **argv)
{
    options o = {0};
    LS_TRY(cli_parse(&export_page, &o, argc, argv, NULL, NULL));
    if (!o.from || !o.out) return ls_fail(LS_E_ARG, "export needs --checkpoint DIR and --out DIR");
    char *path = NULL;
    LS_TRY(ls_ckpt_resolve("--checkpoint", o.from, &path));
    const ls_status st = ls_hf_export(path, o.out, o.force);
    if (st == LS_OK) printf("exported %s to %s\n", path, o.out);
    ls_free(path);
    return st;
}

static const ls_opt import_table[] = {
    CLI_STR("from", from, "DIR", NULL, "Hugging Face GPT-2 folder with single or sharded safetensors", "Input"),
    CLI_CHOICE("variant", variant, "hf|r1", NULL, "model variant, if config.json does not name it"),
    CLI_STR("out", out, "DIR", NULL, "checkpoint folder to write", "Output"),
    FORCE_ROW,
};

static const cli_page import_page = {
    import_table, CLI_COUNT(import_table), "import --from DIR --out DIR [--variant hf|r1] [--force]",
    "Read model.safetensors or the shards of model.safetensors.index.json (F32, F16, BF16 or F64), check every name and shape, and write an fp32 checkpoint. `train --init_from` can also read such folders directly."};

ls_status cmd_import(int argc, char **argv)
{
    options o = {0};
    LS_TRY(cli_parse(&import_page, &o, argc, argv, NULL, NULL));
    if (!o.from || !o.out) return ls_fail(LS_E_ARG, "import needs --from DIR and --out DIR");
    LS_TRY(ls_hf_import(o.from, o.out, o.variant, o.force));
    printf("imported %s to %s\n", o.from, o.out);
    return LS_OK;
}
