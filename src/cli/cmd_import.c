/* cmd_import.c - `lockstep import`: a Hugging Face folder as a checkpoint to start from. */
#include "cli/commands.h"
#include "ckpt/hf.h"

#include <stdio.h>

typedef struct options {
    const char *from, *out, *variant;
    bool force;
} options;

static const ls_opt table[] = {
    {"from", LS_OPT_STR, offsetof(options, from), "DIR", NULL,
     "Hugging Face GPT-2 folder with single or sharded safetensors", "Input"},
    {"variant", LS_OPT_CHOICE, offsetof(options, variant), "hf|r1", NULL,
     "model variant, if config.json does not name it", NULL},
    {"out", LS_OPT_STR, offsetof(options, out), "DIR", NULL, "checkpoint folder to write", "Output"},
    {"force", LS_OPT_SWITCH, offsetof(options, force), NULL, "false", "replace the folder if it exists", NULL},
};
#define N_OPT (sizeof table / sizeof table[0])

ls_status cmd_import(int argc, char **argv)
{
    options o = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(table, N_OPT, &o));
    LS_TRY(ls_opt_parse(table, N_OPT, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help(
            "import --from DIR --out DIR",
            "Read model.safetensors or the shards of model.safetensors.index.json (F32, F16, BF16 or F64), check every "
            "name and shape, and write an fp32 checkpoint. `train --init-from` can also read such folders directly.",
            table, N_OPT);
        return LS_OK;
    }
    if (!o.from || !o.out) return ls_fail(LS_E_ARG, "import needs --from DIR and --out DIR");
    LS_TRY(ls_hf_import(o.from, o.out, o.variant, o.force));
    printf("imported %s to %s\n", o.from, o.out);
    return LS_OK;
}
