/* cmd_export.c - `lockstep export`: a checkpoint as a plain Hugging Face folder. */
#include "cli/commands.h"
#include "core/mem.h"
#include "ckpt/checkpoint.h"
#include "ckpt/hf.h"

#include <stdio.h>

typedef struct options {
    const char *checkpoint, *out;
    bool force;
} options;

static const ls_opt table[] = {
    {"checkpoint", LS_OPT_STR, offsetof(options, checkpoint), "DIR", NULL,
     "checkpoint, or run folder (uses its newest checkpoint)", "Input"},
    {"out", LS_OPT_STR, offsetof(options, out), "DIR", NULL, "folder to write", "Output"},
    {"force", LS_OPT_SWITCH, offsetof(options, force), NULL, "false", "replace the folder if it exists", NULL},
};
#define N_OPT (sizeof table / sizeof table[0])

ls_status cmd_export(int argc, char **argv)
{
    options o = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(table, N_OPT, &o));
    LS_TRY(ls_opt_parse(table, N_OPT, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("export --checkpoint DIR --out DIR",
                 "Verify the checksums of a checkpoint and write config.json, generation_config.json, "
                 "model.safetensors and tokenizer.json.",
                 table, N_OPT);
        return LS_OK;
    }
    if (!o.checkpoint || !o.out) return ls_fail(LS_E_ARG, "export needs --checkpoint DIR and --out DIR");
    char *path = NULL;
    LS_TRY(ls_ckpt_resolve(o.checkpoint, &path));
    ls_status st = ls_hf_export(path, o.out, o.force);
    if (st == LS_OK) printf("exported %s to %s\n", path, o.out);
    ls_free(path);
    LS_TRY(st);
    return LS_OK;
}
