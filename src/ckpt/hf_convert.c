/* hf_convert.c - converts a Hugging Face folder or a model file of llm.c to a checkpoint, for the command `import`. */
#include "ckpt/hf.h"

#include "core/mem.h"
#include "ckpt/checkpoint_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The absolute path without links; the end of it need not exist. */
static ls_status real_path(const char *path, char real[PATH_MAX])
{
    char head[PATH_MAX], parent[PATH_MAX], name[PATH_MAX];
    if (realpath(path, real)) return LS_OK;
    LS_TRY(ckpt_split_path(path, head, name));
    if (!strcmp(head, path)) return ls_fail(LS_E_IO, "cannot find the folder %s: %s", path, strerror(errno));
    LS_TRY(real_path(head, parent));
    return ls_path_in(real, parent, "%s", name);
}

/* Whether `path` is `folder` or lies in it; both are real paths. */
static bool within(const char *path, const char *folder)
{
    const size_t n = strlen(folder);
    return !strncmp(path, folder, n) && (!path[n] || path[n] == '/' || folder[n - 1] == '/');
}

/* A file of a checkpoint or an export. */
static bool is_ours(const char *name)
{
    static const char *const ours[] = {CKPT_CONFIG, CKPT_GEN,   CKPT_TOKENIZER, CKPT_VOCAB, CKPT_MERGES,
                                       CKPT_MODEL,  CKPT_INDEX, CKPT_OPTIMIZER, CKPT_STATE, CKPT_SUMS};
    int k, n, end = 0;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (!strcmp(ours[i], name)) return true;
    return sscanf(name, CKPT_SHARD "%n", &k, &n, &end) == 2 && end && !name[end];
}

/* The folder may be replaced: it has no files but those of a checkpoint or an export. */
static ls_status check_replaceable(const char *out)
{
    char **names;
    size_t n;
    if (!ls_fs_is_dir(out)) return ls_fail(LS_E_ARG, "%s is not a folder; choose another --out", out);
    LS_TRY(ls_fs_list(out, &names, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++)
        if (!is_ours(names[i]))
            st = ls_fail(
                LS_E_ARG,
                "--force replaces only the folder of a checkpoint or an export, but %s also has %s; choose another --out",
                out, names[i]);
    ls_fs_list_free(names, n);
    return st;
}

ls_status ckpt_open_output(const char *source, const char *out, bool replace, char dir[PATH_MAX], char name[PATH_MAX])
{
    char from[PATH_MAX], to[PATH_MAX];
    if (!replace && ls_fs_exists(out)) return ls_fail(LS_E_ARG, "%s exists; choose another folder or add --force", out);
    LS_TRY(real_path(source, from));
    LS_TRY(real_path(out, to));
    if (within(from, to) || within(to, from))
        return ls_fail(LS_E_ARG, "--out %s %s the source %s; choose another --out", out,
                       !strcmp(from, to)  ? "is"
                       : within(from, to) ? "contains"
                                          : "is inside",
                       source);
    if (ls_fs_exists(out)) LS_TRY(check_replaceable(out));
    LS_TRY(ckpt_split_path(out, dir, name));
    return ckpt_name_ok(name) ? LS_OK : ls_fail(LS_E_ARG, "%s is not a valid name for an output folder", out);
}

static ls_status take_params(ls_model *m)
{
    for (int u = 0; u < m->n_unit; u++) {
        const size_t nbytes = (size_t)m->unit[u].n_pad * ls_dtype_nbytes(m->compute->ops->wide);
        m->unit[u].param = ls_alloc(nbytes);
        if (!m->unit[u].param) return ls_nomem(nbytes, "the model's parameters");
    }
    return LS_OK;
}

static ls_status apply_variant(ls_model_config *cfg, const char *word, const char *from)
{
    ls_variant v;
    ls_model_config asked = *cfg;
    LS_TRY(ls_variant_parse(word, &v));
    ls_model_config_set_variant(&asked, v);
    if (asked.gelu != cfg->gelu)
        return ls_fail(
            LS_E_CONFIG,
            "%s was trained with %s GELU; variant %s uses %s GELU and would give other results; use --variant %s", from,
            cfg->gelu == LS_GELU_ERF ? "erf" : "tanh", word, asked.gelu == LS_GELU_ERF ? "erf" : "tanh",
            v == LS_VARIANT_R1 ? "hf" : "r1");
    *cfg = asked;
    return LS_OK;
}

ls_status ls_hf_import(const char *from, const char *out, const char *variant, bool replace)
{
    ls_compute compute;
    ls_model_config cfg;
    ls_model *m = NULL;
    char dir[PATH_MAX], name[PATH_MAX], tokenizer[PATH_MAX];
    LS_TRY(ckpt_open_output(from, out, replace, dir, name));
    LS_TRY(ls_ckpt_tokenizer(from, tokenizer));
    LS_TRY(ls_ckpt_config(from, &cfg));
    if (variant) LS_TRY(apply_variant(&cfg, variant, from));
    LS_TRY(
        ls_compute_open(&compute, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F32}, 1)); /* only its type is used */
    LS_TRY(ls_model_create(&m, &cfg, &compute, 1));
    ls_status st = take_params(m);
    if (st == LS_OK) st = ls_hf_load(m, from, NULL, 0, NULL);
    const ls_ckpt_job job = {.model = m, .dir = dir, .name = name, .tokenizer_path = *tokenizer ? tokenizer : NULL};
    if (st == LS_OK) st = ls_ckpt_save(&job);
    for (int u = 0; u < m->n_unit; u++) ls_free(m->unit[u].param);
    ls_model_destroy(&m);
    return st;
}
