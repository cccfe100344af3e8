/* hub.c - finds a model of the Hugging Face hub in the cache of this machine. The network is not used.
 *
 *   <cache>/models--<owner>--<name>/refs/main               the commit
 *   <cache>/models--<owner>--<name>/snapshots/<commit>/     its files
 *
 * <cache>: HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. */
#include "ckpt/checkpoint_impl.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

static ls_status cache_folder(char path[PATH_MAX])
{
    static const struct {
        const char *variable, *below;
    } at[] = {{"HF_HUB_CACHE", "."},
              {"HF_HOME", "hub"},
              {"XDG_CACHE_HOME", "huggingface/hub"},
              {"HOME", ".cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        const char *value = getenv(at[i].variable);
        if (!value || !*value) continue;
        if (i) return ls_path_in(path, value, "%s", at[i].below);
        const size_t n = strlen(value);
        if (n >= PATH_MAX) break;
        memcpy(path, value, n + 1);
        return LS_OK;
    }
    return ls_fail(LS_E_IO, "the Hugging Face cache: set HF_HUB_CACHE, HF_HOME or HOME");
}

/* "name" or "owner/name", as the hub allows them. */
static bool is_name(const char *text)
{
    const char *slash = strchr(text, '/');
    const size_t n = strlen(text);
    if (!n || n > 96 || text[0] == '.' || text[0] == '/' || text[n - 1] == '/' || (slash && strchr(slash + 1, '/')))
        return false;
    for (const char *p = text; *p; p++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/", *p)) return false;
    return true;
}

/* Models with a short name, which the hub keeps with their owner, too. */
static const char *owner_of(const char *name)
{
    static const char *const known[][2] = {{"gpt2", "openai-community"},
                                           {"gpt2-medium", "openai-community"},
                                           {"gpt2-large", "openai-community"},
                                           {"gpt2-xl", "openai-community"},
                                           {"distilgpt2", "distilbert"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i][0], name)) return known[i][1];
    return NULL;
}

/* The snapshot that refs/main names, or the only one; "" if there is none with a config.json. */
static ls_status snapshot_of(const char *model, char path[PATH_MAX])
{
    char ref[PATH_MAX], all[PATH_MAX], **names = NULL, *text = NULL, *commit = NULL;
    size_t n = 0, n_name = 0;
    *path = '\0';
    LS_TRY(ls_path_in(ref, model, "refs/main"));
    LS_TRY(ls_path_in(all, model, "snapshots"));
    if (!ls_fs_is_dir(all)) return LS_OK;
    if (ls_fs_is_file(ref)) {
        LS_TRY(ls_fs_read_most(ref, LS_FS_TEXT_MOST, &text, &n));
        text[strcspn(text, " \t\r\n")] = '\0';
        commit = text;
    } else {
        LS_TRY(ls_fs_list(all, &names, &n_name));
        commit = n_name == 1 ? names[0] : NULL;
    }
    ls_status st = LS_OK;
    if (commit && ckpt_name_ok(commit)) st = ls_path_in(path, all, "%s", commit);
    if (st != LS_OK || !ls_fs_exists(ls_path_of(path, CKPT_CONFIG).text)) *path = '\0';
    ls_fs_list_free(names, n_name);
    ls_free(text);
    return st;
}

static ls_status look_in(const char *cache, const char *owner, const char *name, char path[PATH_MAX])
{
    char model[PATH_MAX], file[256] = "models--";
    const size_t n = strlen(file);
    snprintf(file + n, sizeof file - n, "%s%s%s", owner ? owner : "", owner ? "/" : "", name);
    for (char *p = strchr(file, '/'); p; p = strchr(p, '/')) { /* a '/' becomes "--" */
        memmove(p + 2, p + 1, strlen(p));
        memcpy(p, "--", 2);
    }
    LS_TRY(ls_path_in(model, cache, "%s", file));
    return snapshot_of(model, path);
}

ls_status ckpt_hub_find(const char *option, const char *name, char **out)
{
    char cache[PATH_MAX], path[PATH_MAX] = "";
    const char *slash = strchr(name, '/'), *base = slash ? slash + 1 : name, *owner = owner_of(base);
    if (!is_name(name)) return ls_fail(LS_E_IO, "%s %s: no such folder", option, name);
    if (slash && owner && (strncmp(name, owner, strlen(owner)) || strlen(owner) != (size_t)(slash - name)))
        owner = NULL; /* the same name of another owner */
    LS_TRY(cache_folder(cache));
    LS_TRY(look_in(cache, NULL, name, path));
    if (!*path && owner) LS_TRY(look_in(cache, slash ? NULL : owner, base, path)); /* the other form of its name */
    if (*path) {
        *out = ls_strdup(path);
        return *out ? LS_OK : ls_nomem(strlen(path), "a path");
    }
    if (!owner)
        return ls_fail(LS_E_IO, "%s %s: no such folder, and no model of this name in the Hugging Face cache %s", option,
                       name, cache);
    return ls_fail(
        LS_E_IO,
        "%s %s: no such folder, and no model of this name in the Hugging Face cache %s; download config.json, "
        "model.safetensors, vocab.json and merges.txt of https://huggingface.co/%s/%s into a folder and give its path, "
        "or fill the cache: hf download %s/%s",
        option, name, cache, owner, base, owner, base);
}
