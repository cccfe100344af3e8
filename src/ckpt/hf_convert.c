/* hf_convert.c - converts checkpoints to Hugging Face folders and back, for the commands `export` and `import`. */
#include "ckpt/hf.h"

#include "core/mem.h"
#include "ckpt/checkpoint_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "a/b/" -> "a", "b"; "b" -> ".", "b". */
static ls_status split_path(const char *path, char **dir, char **name)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    char *own = ls_strndup(path, n);
    if (!own) return ls_nomem(n, "a path");
    char *slash = strrchr(own, '/');
    *name = ls_strdup(slash ? slash + 1 : own);
    if (slash) *slash = '\0';
    *dir = ls_strdup(!slash ? "." : *own ? own : "/");
    ls_free(own);
    if (*dir && *name) return LS_OK;
    ls_free(*dir);
    ls_free(*name);
    *dir = *name = NULL;
    return ls_nomem(n, "a path");
}

ls_status ls_hf_export(const char *checkpoint, const char *out, bool replace)
{
    static const char *const part[] = {CKPT_CONFIG, CKPT_GEN, CKPT_TOKENIZER, CKPT_MODEL};
    ckpt_sums sums = {.n = 0};
    char *dir = NULL, *name = NULL, *tmp = NULL;
    int lock = -1;
    ls_status st;
    if (!replace && ls_fs_exists(out)) return ls_fail(LS_E_ARG, "%s exists; choose another folder or add --force", out);
    LS_TRY(ls_ckpt_verify(checkpoint, false));
    LS_TRY(split_path(out, &dir, &name));
    if (!ckpt_name_ok(name)) {
        st = ls_fail(LS_E_ARG, "%s is not a valid name for an output folder", out);
        goto done;
    }
    LS_TRY_GOTO(st, done, ckpt_tmp_open(dir, name, &tmp, &lock));
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        char *src = ls_path_join(checkpoint, part[i]);
        st = src ? LS_OK : ls_nomem(strlen(checkpoint), "a path");
        if (st == LS_OK && (ls_fs_exists(src) || !strcmp(part[i], CKPT_MODEL)))
            st = ckpt_put_file(&sums, tmp, part[i], src);
        ls_free(src);
        if (st != LS_OK) goto done;
    }
    LS_TRY_GOTO(st, done, ckpt_publish(dir, tmp, name, false));
done:
    if (st != LS_OK && tmp) ckpt_remove_quietly(tmp);
    if (lock >= 0) close(lock);
    ckpt_sums_fini(&sums);
    ls_free(tmp);
    ls_free(dir);
    ls_free(name);
    return st;
}

/* One block for all parameters; ls_free unit[0].param. */
static ls_status take_params(ls_model *m)
{
    const size_t elem = ls_dtype_nbytes(m->compute->ops->wide);
    size_t nbytes = 0;
    for (int u = 0; u < m->n_unit; u++) nbytes += ((size_t)m->unit[u].n_pad * elem + 63) / 64 * 64;
    char *p = ls_alloc(nbytes);
    if (!p) return ls_nomem(nbytes, "the model's parameters");
    for (int u = 0; u < m->n_unit; u++) {
        m->unit[u].param = p;
        p += ((size_t)m->unit[u].n_pad * elem + 63) / 64 * 64;
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
        return ls_fail(LS_E_CONFIG, "%s was trained with %s GELU; variant %s uses %s GELU and would give other numbers",
                       from, cfg->gelu == LS_GELU_ERF ? "erf" : "tanh", word,
                       asked.gelu == LS_GELU_ERF ? "erf" : "tanh");
    *cfg = asked;
    return LS_OK;
}

ls_status ls_hf_import(const char *from, const char *out, const char *variant, bool replace)
{
    ls_compute compute;
    ls_model_config cfg;
    ls_model *m = NULL;
    char *dir = NULL, *name = NULL, *tokenizer = NULL;
    ls_status st;
    if (!replace && ls_fs_exists(out)) return ls_fail(LS_E_ARG, "%s exists; choose another folder or add --force", out);
    LS_TRY(ls_model_config_load(from, &cfg));
    if (variant) LS_TRY(apply_variant(&cfg, variant, from));
    LS_TRY(
        ls_compute_open(&compute, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F32}, 1)); /* only its type is used */
    LS_TRY(ls_model_create(&m, &cfg, &compute, 1));
    LS_TRY_GOTO(st, done, take_params(m));
    LS_TRY_GOTO(st, done, ls_hf_load(m, from, NULL, 0, NULL));
    LS_TRY_GOTO(st, done, split_path(out, &dir, &name));
    tokenizer = ls_path_join(from, CKPT_TOKENIZER);
    if (!tokenizer) {
        st = ls_nomem(strlen(from), "a path");
        goto done;
    }
    const ls_ckpt_job job = {
        .model = m, .dir = dir, .name = name, .tokenizer_path = ls_fs_exists(tokenizer) ? tokenizer : NULL};
    LS_TRY_GOTO(st, done, ls_ckpt_save(&job));
done:
    ls_free(m->unit[0].param);
    ls_model_destroy(&m);
    ls_free(dir);
    ls_free(name);
    ls_free(tokenizer);
    return st;
}
