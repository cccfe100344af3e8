/* hf_convert.c - converts checkpoints to Hugging Face folders and back, for the commands `export` and `import`. */
#include "ckpt/hf.h"

#include "core/mem.h"
#include "ckpt/checkpoint_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* The folder may be replaced: it has no files but those of a checkpoint or an export. */
static ls_status check_replaceable(const char *out)
{
    static const char *const ours[] = {CKPT_CONFIG, CKPT_GEN,       CKPT_TOKENIZER, CKPT_MODEL,
                                       CKPT_INDEX,  CKPT_OPTIMIZER, CKPT_STATE,     CKPT_SUMS};
    char **names;
    size_t n;
    if (!ls_fs_is_dir(out)) return ls_fail(LS_E_ARG, "%s is not a folder; choose another --out", out);
    LS_TRY(ls_fs_list(out, &names, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        size_t k = 0;
        while (k < sizeof ours / sizeof ours[0] && strcmp(ours[k], names[i])) k++;
        if (k == sizeof ours / sizeof ours[0])
            st = ls_fail(
                LS_E_ARG,
                "--force replaces only the folder of a checkpoint or an export, but %s also has %s; choose another --out",
                out, names[i]);
    }
    ls_fs_list_free(names, n);
    return st;
}

/* The folder and the name of an output folder: apart from the source, and existing only with `replace`. */
static ls_status open_output(const char *source, const char *out, bool replace, char dir[PATH_MAX], char name[PATH_MAX])
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
    return ckpt_split_path(out, dir, name);
}

static ls_status copy_file(const char *from_dir, const char *to_dir, const char *name, bool optional)
{
    char from[PATH_MAX], to[PATH_MAX];
    ls_fs_map map;
    LS_TRY(ls_path_in(from, from_dir, "%s", name));
    LS_TRY(ls_path_in(to, to_dir, "%s", name));
    if (optional && !ls_fs_exists(from)) return LS_OK;
    LS_TRY(ls_fs_map_open(&map, from));
    const ls_status st = ckpt_file_put(to, map.data, map.n);
    ls_fs_map_close(&map);
    return st;
}

ls_status ls_hf_export(const char *checkpoint, const char *out, bool replace)
{
    char dir[PATH_MAX], name[PATH_MAX], tmp[PATH_MAX];
    int lock = -1;
    LS_TRY(open_output(checkpoint, out, replace, dir, name));
    LS_TRY(ls_ckpt_verify(checkpoint, false));
    if (!ckpt_name_ok(name)) return ls_fail(LS_E_ARG, "%s is not a valid name for an output folder", out);
    LS_TRY(ckpt_tmp_open(dir, name, tmp, &lock));
    ls_status st = copy_file(checkpoint, tmp, CKPT_CONFIG, true);
    if (st == LS_OK) st = copy_file(checkpoint, tmp, CKPT_GEN, true);
    if (st == LS_OK) st = copy_file(checkpoint, tmp, CKPT_TOKENIZER, true);
    if (st == LS_OK) st = copy_file(checkpoint, tmp, CKPT_MODEL, false);
    if (st == LS_OK) st = ckpt_publish(dir, tmp, name);
    if (st != LS_OK) ckpt_remove_quietly(tmp);
    close(lock);
    return st == LS_OK ? ls_ckpt_clean(dir) : st; /* removes the folder that was replaced */
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
    LS_TRY(open_output(from, out, replace, dir, name));
    LS_TRY(ls_path_in(tokenizer, from, CKPT_TOKENIZER));
    LS_TRY(ls_model_config_load(from, &cfg));
    if (variant) LS_TRY(apply_variant(&cfg, variant, from));
    LS_TRY(
        ls_compute_open(&compute, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F32}, 1)); /* only its type is used */
    LS_TRY(ls_model_create(&m, &cfg, &compute, 1));
    ls_status st = take_params(m);
    if (st == LS_OK) st = ls_hf_load(m, from, NULL, 0, NULL);
    const ls_ckpt_job job = {
        .model = m, .dir = dir, .name = name, .tokenizer_path = ls_fs_exists(tokenizer) ? tokenizer : NULL};
    if (st == LS_OK) st = ls_ckpt_save(&job);
    for (int u = 0; u < m->n_unit; u++) ls_free(m->unit[u].param);
    ls_model_destroy(&m);
    return st;
}
