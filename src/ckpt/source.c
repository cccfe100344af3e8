/* source.c - what an option such as --checkpoint or --init_from can name: a checkpoint, a run folder, a Hugging Face folder, a model file
 * of llm.c, or a model in the Hugging Face cache. */
#include "ckpt/checkpoint_impl.h"
#include "ckpt/llmc.h"

#include "core/mem.h"

#include <string.h>

ls_status ls_ckpt_resolve(const char *option, const char *path, char **out)
{
    char config[PATH_MAX], *found = NULL;
    LS_TRY(ls_path_in(config, path, CKPT_CONFIG));
    if (!ls_fs_exists(path)) return ckpt_hub_find(option, path, out);
    if (!ls_fs_exists(config) || ls_ckpt_is(path)) LS_TRY(ls_fs_no_links(path)); /* not a folder of Hugging Face */
    if (ls_fs_exists(config) || ls_ckpt_is(path) || ls_llmc_is(path)) {
        found = ls_strdup(path);
        if (!found) return ls_nomem(strlen(path), "a path");
    } else LS_TRY(ls_ckpt_latest(path, &found));
    const size_t n = strlen(path);
    if (!found)
        return ls_fail(LS_E_IO, "%s %s: %s", option, path,
                       ls_fs_is_dir(path)
                           ? "no checkpoint found: the folder has neither config.json nor a step-N or epoch-N folder"
                       : n > 5 && !strcmp(path + n - 5, ".gguf")
                           ? "GGUF files are written, not read; use the checkpoint that was exported"
                           : "neither a folder nor a model file of llm.c");
    *out = found;
    return LS_OK;
}

ls_status ls_ckpt_config(const char *path, ls_model_config *out)
{
    return ls_llmc_is(path) ? ls_llmc_config(path, out) : ls_model_config_load(path, out);
}

ls_status ls_ckpt_folder(const char *path, char dir[PATH_MAX])
{
    char name[PATH_MAX];
    if (ls_fs_is_file(path)) return ckpt_split_path(path, dir, name);
    if (strlen(path) >= PATH_MAX) return ls_fail(LS_E_IO, "path too long: %.200s...", path);
    memcpy(dir, path, strlen(path) + 1);
    return LS_OK;
}

ls_status ls_ckpt_tokenizer(const char *path, char file[PATH_MAX])
{
    char dir[PATH_MAX];
    LS_TRY(ls_ckpt_folder(path, dir));
    LS_TRY(ls_path_in(file, dir, CKPT_TOKENIZER));
    if (ls_fs_exists(file)) return LS_OK;
    *file = '\0';
    if (ls_fs_exists(ls_path_of(dir, CKPT_VOCAB).text) && ls_fs_exists(ls_path_of(dir, CKPT_MERGES).text))
        memcpy(file, dir, PATH_MAX);
    return LS_OK;
}
