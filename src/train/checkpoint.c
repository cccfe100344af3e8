/* checkpoint.c - one checkpoint folder: what goes in, and what comes out again. */
#include "train/checkpoint_impl.h"

#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FORMAT "lockstep-checkpoint"

/* ---- saving ---- */

static ls_sum *next_sum(ckpt_sums *sums, const char *name)
{
    LS_ASSERT(sums->n < CKPT_MAX_FILE);
    sums->name[sums->n] = name;
    sums->sum[sums->n] = (ls_sum){0};
    return &sums->sum[sums->n++];
}

static ls_status put_at(const char *path, const void *data, size_t n, ls_sum *sum)
{
    ls_sum_out *o = NULL;
    ls_status st;
    LS_TRY(ls_sum_open(&o, path, (int64_t)n));
    LS_TRY_GOTO(st, done, ls_sum_add(o, data, n));
    LS_TRY_GOTO(st, done, ls_sum_commit(&o, sum));
done:
    ls_sum_abort(&o);
    return st;
}

ls_status ckpt_put(ckpt_sums *sums, const char *dir, const char *name, const void *data, size_t n)
{
    char *path = ls_path_join(dir, name);
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = put_at(path, data, n, next_sum(sums, name));
    ls_free(path);
    return st;
}

ls_status ckpt_put_file(ckpt_sums *sums, const char *dir, const char *name, const char *src)
{
    ls_fs_map map;
    LS_TRY(ls_fs_map_open(&map, src));
    ls_status st = ckpt_put(sums, dir, name, map.data, map.n);
    ls_fs_map_close(&map);
    return st;
}

static ls_status put_text(ckpt_sums *sums, const char *dir, const char *name, ls_str *text)
{
    ls_status st = text->failed ? ls_nomem(text->cap, name) : ckpt_put(sums, dir, name, text->data, text->len);
    ls_str_fini(text);
    return st;
}

static ls_st_tensor entry_of(const ls_model *m, const ls_tensor *t, const void *base, const char *name)
{
    ls_st_tensor e = {
        .name = name, .dt = m->compute->ops->dtype, .n_dim = t->n_dim, .data = ls_at(m->compute, base, t->offset)};
    for (int d = 0; d < t->n_dim; d++) e.dim[d] = t->dim[d];
    return e;
}

static ls_status put_model(const ls_model *m, const char *dir, ckpt_sums *sums)
{
    int n = hf_n_tensor(m), k = 0;
    ls_st_tensor *e = ls_alloc((size_t)n * sizeof *e);
    char *path = ls_path_join(dir, CKPT_MODEL);
    ls_status st = e && path ? LS_OK : ls_nomem((size_t)n * sizeof *e, "the tensor table of a checkpoint");
    for (int u = 0; u < m->n_unit && st == LS_OK; u++)
        for (int i = 0; i < m->unit[u].n_tensor; i++) {
            const ls_tensor *t = &m->unit[u].tensor[i];
            e[k++] = entry_of(m, t, m->unit[u].param, t->name);
        }
    if (st == LS_OK) st = ls_st_write(path, e, n, next_sum(sums, CKPT_MODEL));
    ls_free(path);
    ls_free(e);
    return st;
}

typedef char moment_name[72]; /* "m/" and the tensor's */

static ls_status put_moments(const ls_model *m, const char *dir, ckpt_sums *sums)
{
    int n = hf_n_tensor(m), k = 0;
    size_t nbytes = (size_t)n * 2 * (sizeof(ls_st_tensor) + sizeof(moment_name));
    ls_st_tensor *e = ls_alloc(nbytes);
    char *path = ls_path_join(dir, CKPT_OPTIMIZER);
    ls_status st = e && path ? LS_OK : ls_nomem(nbytes, "the tensor table of a checkpoint");
    moment_name *name = e ? (moment_name *)(void *)(e + 2 * (size_t)n) : NULL;
    for (int which = 0; which < 2 && st == LS_OK; which++)
        for (int u = 0; u < m->n_unit; u++)
            for (int i = 0; i < m->unit[u].n_tensor; i++, k++) {
                const ls_tensor *t = &m->unit[u].tensor[i];
                snprintf(name[k], sizeof name[k], "%c/%s", "mv"[which], t -> name);
                e[k] = entry_of(m, t, which ? m->unit[u].v : m->unit[u].m, name[k]);
            }
    if (st == LS_OK) st = ls_st_write(path, e, k, next_sum(sums, CKPT_OPTIMIZER));
    ls_free(path);
    ls_free(e);
    return st;
}

static ls_status put_small(const ls_ckpt_job *job, const json_t *state, const char *dir, ckpt_sums *sums)
{
    const ls_model_config *c = &job->model->cfg;
    ls_str s = {0};
    ls_jsonw w;
    ls_model_config_write(c, &s);
    LS_TRY(put_text(sums, dir, CKPT_CONFIG, &s));

    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_bool(&w, "_from_model_config", 1);
    if (c->eos_id >= 0) {
        ls_jsonw_put_int(&w, "bos_token_id", c->eos_id);
        ls_jsonw_put_int(&w, "eos_token_id", c->eos_id);
    }
    ls_jsonw_close(&w);
    LS_TRY(put_text(sums, dir, CKPT_GEN, &s));
    if (job->tokenizer_path) LS_TRY(ckpt_put_file(sums, dir, CKPT_TOKENIZER, job->tokenizer_path));

    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "format", FORMAT);
    ls_jsonw_put_int(&w, "version", LS_CKPT_VERSION);
    ls_jsonw_put_int(&w, "step", job->step);
    ls_jsonw_put_str(&w, "dtype", ls_dtype_word(job->model->compute->ops->dtype));
    ls_jsonw_put_bool(&w, "optimizer", job->optimizer);
    ls_jsonw_key(&w, "trainer");
    ls_jsonw_value(&w, state);
    ls_jsonw_close(&w);
    LS_TRY(put_text(sums, dir, CKPT_STATE, &s));
    return LS_OK;
}

static ls_status write_folder(const ls_ckpt_job *job, const json_t *state, const char *dir)
{
    ckpt_sums sums = {.n = 0}, own = {.n = 0};
    ls_str s = {0};
    ls_status st;
    LS_TRY_GOTO(st, done, put_small(job, state, dir, &sums)); /* the small ones first: they fail early */
    LS_TRY_GOTO(st, done, put_model(job->model, dir, &sums));
    if (job->optimizer) LS_TRY_GOTO(st, done, put_moments(job->model, dir, &sums));
    ckpt_sums_text(&sums, &s);
    LS_TRY_GOTO(st, done, put_text(&own, dir, CKPT_SUMS, &s));
done:
    ckpt_sums_fini(&sums);
    ckpt_sums_fini(&own);
    return st;
}

static int depth_of(const json_t *v, int limit)
{
    int deepest = 0, d;
    const char *key;
    json_t *item;
    size_t i;
    if (limit <= 0) return 1;
    if (json_is_array(v)) {
        json_array_foreach(v, i, item) if ((d = depth_of(item, limit - 1)) > deepest) deepest = d;
    } else if (json_is_object(v)) {
        json_object_foreach((json_t *)(uintptr_t)v, key, item) if ((d = depth_of(item, limit - 1)) > deepest) deepest =
            d;
    }
    return deepest + 1;
}

static ls_status check_job(const ls_ckpt_job *job, json_t **state)
{
    const char *text = job->state_json ? job->state_json : "{}";
    if (!ckpt_name_ok(job->name))
        return ls_fail(LS_E_ARG, "\"%s\" cannot be the name of a checkpoint: a plain name like step-40 is needed",
                       job->name);
    for (int u = 0; u < job->model->n_unit; u++) {
        const ls_unit *x = &job->model->unit[u];
        if (!x->param || (job->optimizer && (!x->m || !x->v)))
            return ls_fail(LS_E_ARG, "checkpoint %s: unit %d of the model has no %s", job->name, u,
                           x->param ? "moments" : "parameters");
    }
    LS_TRY(ls_json_parse(text, strlen(text), "the trainer's state", state));
    if (json_is_object(*state) && depth_of(*state, 24) < 24) return LS_OK; /* the JSON writer nests 30 deep */
    json_decref(*state);
    *state = NULL;
    return ls_fail(LS_E_ARG, "the trainer's state must be a JSON object, nested less than 24 deep");
}

ls_status ls_ckpt_save(const ls_ckpt_job *job)
{
    json_t *state = NULL;
    char *tmp = NULL;
    int lock = -1;
    ls_status st;
    LS_TRY_GOTO(st, done, check_job(job, &state));
    LS_TRY_GOTO(st, done, ckpt_tmp_open(job->dir, job->name, &tmp, &lock));
    LS_TRY_GOTO(st, done, write_folder(job, state, tmp));
    LS_TRY_GOTO(st, done, ckpt_publish(job->dir, tmp, job->name));
    ckpt_prune(job->dir, job->name, job->step, job->keep_last);
done:
    if (st != LS_OK && tmp) ckpt_remove_quietly(tmp);
    if (lock >= 0) close(lock);
    ls_free(tmp);
    json_decref(state);
    return st;
}

/* ---- loading ---- */

typedef struct head {
    int64_t step;
    bool optimizer;
    json_t *root; /* owned */
} head;

static ls_status read_state(const char *dir, head *h)
{
    *h = (head){.root = NULL};
    char *path = ls_path_join(dir, CKPT_STATE);
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = ls_fs_exists(path) ? ls_json_load(path, &h->root) : ls_fail(LS_E_FORMAT, "%s is missing", path);
    if (st == LS_OK) {
        const char *format = json_string_value(json_object_get(h->root, "format"));
        const json_t *version = json_object_get(h->root, "version"), *step = json_object_get(h->root, "step");
        if (!format || strcmp(format, FORMAT) || !json_is_integer(version) || !json_is_integer(step) ||
            json_integer_value(step) < 0 || !json_is_object(json_object_get(h->root, "trainer")))
            st = ls_fail(LS_E_FORMAT,
                         "%s is not a trainer state of lockstep (format, version, step or trainer is missing)", path);
        else if (json_integer_value(version) > LS_CKPT_VERSION)
            st = ls_fail(LS_E_UNSUPPORTED,
                         "%s has version %lld, this program reads up to %d: use the newer program that wrote it", path,
                         (long long)json_integer_value(version), LS_CKPT_VERSION);
        h->step = json_integer_value(step);
        h->optimizer = json_is_true(json_object_get(h->root, "optimizer"));
    }
    ls_free(path);
    if (st != LS_OK) {
        json_decref(h->root);
        h->root = NULL;
    }
    return st;
}

static ls_status trainer_text(const head *h, char **out)
{
    ls_str s = {0};
    ls_jsonw w;
    if (depth_of(json_object_get(h->root, "trainer"), 24) >= 24)
        return ls_fail(LS_E_FORMAT, "the trainer's state is nested too deep");
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_value(&w, json_object_get(h->root, "trainer"));
    if (s.failed) {
        ls_str_fini(&s);
        return ls_nomem(s.cap, "the trainer's state");
    }
    *out = s.data;
    return LS_OK;
}

ls_status ls_ckpt_state(const char *path, char **state_json, int64_t *step)
{
    head h;
    LS_TRY(read_state(path, &h));
    ls_status st = state_json ? trainer_text(&h, state_json) : LS_OK;
    if (st == LS_OK && step) *step = h.step;
    json_decref(h.root);
    return st;
}

static bool not_optimizer(const char *name)
{
    return strcmp(name, CKPT_OPTIMIZER) != 0;
}

ls_status ls_ckpt_verify(const char *path, bool optimizer)
{
    LS_TRY(ckpt_sums_verify(path, optimizer ? NULL : not_optimizer));
    return LS_OK;
}

/* The failure again, with the way out. */
static ls_status tell_older(ls_status st, const char *path)
{
    int64_t step = -1;
    char words[2048];
    if (st != LS_E_FORMAT && st != LS_E_IO) return st;
    snprintf(words, sizeof words, "%s", ls_err_words());
    if (ls_ckpt_state(path, NULL, &step) != LS_OK) step = -1;
    char *older = ckpt_older_whole(path, step);
    st = older ? ls_fail(st, "checkpoint %s: %s; %s is whole, and the newest that is", path, words, older)
               : ls_fail(st, "checkpoint %s: %s; no older checkpoint beside it is whole", path, words);
    ls_free(older);
    return st;
}

static ls_status same_architecture(const char *dir, const ls_model *m)
{
    const ls_model_config *have = &m->cfg;
    ls_model_config saved;
    LS_TRY(ls_model_config_load(dir, &saved));
    const struct {
        const char *what;
        long long saved, have;
    } row[] = {
        {"layers", saved.n_layer, have->n_layer},
        {"heads", saved.n_head, have->n_head},
        {"channels", saved.n_embd, have->n_embd},
        {"positions", saved.n_ctx, have->n_ctx},
        {"ids in its vocabulary", saved.vocab_size, have->vocab_size},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].saved != row[i].have)
            return ls_fail(LS_E_CONFIG, "%s holds a model with %lld %s, this model has %lld", dir, row[i].saved,
                           row[i].what, row[i].have);
    if (saved.tied != have->tied)
        return ls_fail(LS_E_CONFIG, "%s holds a model with %s head, this model's is %s", dir,
                       saved.tied ? "a tied" : "an untied", have->tied ? "tied" : "untied");
    if (saved.gelu != have->gelu)
        return ls_fail(LS_E_CONFIG, "%s holds a model with the %s GELU, this model has the %s one", dir,
                       saved.gelu == LS_GELU_ERF ? "erf" : "tanh", have->gelu == LS_GELU_ERF ? "erf" : "tanh");
    if (saved.variant != have->variant)
        return ls_fail(LS_E_CONFIG, "%s holds a model of variant %s, this model is %s", dir,
                       ls_variant_word(saved.variant), ls_variant_word(have->variant));
    if (saved.ln_eps != have->ln_eps)
        return ls_fail(LS_E_CONFIG, "%s holds a model with layer norm epsilon %g, this model has %g", dir, saved.ln_eps,
                       have->ln_eps);
    return LS_OK;
}

/* Moments of every tensor, in the order of put_moments; src has room for 2 n. */
static ls_status bind_moments(const ls_st_file *f, const ls_model *m, const ls_st_tensor **src)
{
    int k = 0, n = hf_n_tensor(m);
    moment_name name;
    for (int which = 0; which < 2; which++)
        for (int u = 0; u < m->n_unit; u++)
            for (int i = 0; i < m->unit[u].n_tensor; i++, k++) {
                const ls_tensor *t = &m->unit[u].tensor[i];
                snprintf(name, sizeof name, "%c/%s", "mv"[which], t -> name);
                src[k] = ls_st_find(f, name);
                if (!src[k]) return ls_fail(LS_E_FORMAT, "%s holds no tensor %s", f->path, name);
                LS_TRY(hf_check_shape(f->path, src[k], t));
            }
    if (f->n != 2 * (int64_t)n)
        return ls_fail(LS_E_FORMAT, "%s holds %lld tensors, the model has %d moments", f->path, (long long)f->n, 2 * n);
    return LS_OK;
}

/* Bit for bit is a promise: a resumed run must not pass through another type. */
static ls_status same_type(const ls_st_tensor *const *src, int n, const ls_model *m, const char *dir)
{
    ls_dtype dt = m->compute->ops->dtype;
    for (int i = 0; i < n; i++)
        if (src[i]->other_dtype || src[i]->dt != dt)
            return ls_fail(LS_E_CONFIG, "%s holds %s as %s, this run computes in %s and could not continue bit for bit",
                           dir, src[i]->name, src[i]->dt_word, ls_dtype_word(dt));
    return LS_OK;
}

static void copy_moments(const ls_st_tensor *const *src, ls_model *m)
{
    int k = 0;
    for (int which = 0; which < 2; which++)
        for (int u = 0; u < m->n_unit; u++) {
            ls_unit *x = &m->unit[u];
            void *base = which ? x->v : x->m;
            for (int i = 0; i < x->n_tensor; i++, k++)
                (void)ls_st_copy(src[k], ls_at(m->compute, base, x->tensor[i].offset), m->compute->ops->dtype);
            memset(ls_at(m->compute, base, x->n), 0,
                   (size_t)(x->n_pad - x->n) * ls_dtype_nbytes(m->compute->ops->dtype));
        }
}

static ls_status load_whole(ls_model *m, const char *path, bool optimizer, char **state_json, int64_t *step)
{
    hf_set set = {0};
    ls_st_file opt = {.map = {"", 0}};
    const ls_st_tensor **moment = NULL;
    char *opt_path = NULL, *text = NULL;
    head h;
    int n = hf_n_tensor(m);
    ls_status st;
    LS_TRY(read_state(path, &h));
    LS_TRY_GOTO(st, done, same_architecture(path, m));
    LS_TRY_GOTO(st, done, hf_open(&set, m, path));
    if (optimizer) {
        if (!h.optimizer) {
            st = ls_fail(LS_E_CONFIG,
                         "%s holds weights without optimizer state: it can start a run (--init-from), not resume one",
                         path);
            goto done;
        }
        opt_path = ls_path_join(path, CKPT_OPTIMIZER);
        moment = ls_alloc((size_t)n * 2 * sizeof *moment);
        if (!opt_path || !moment) {
            st = ls_nomem((size_t)n * 2 * sizeof *moment, "the tensor table of a checkpoint");
            goto done;
        }
        LS_TRY_GOTO(st, done, ls_st_open(&opt, opt_path));
        LS_TRY_GOTO(st, done, bind_moments(&opt, m, moment));
        LS_TRY_GOTO(st, done, same_type(set.src, n, m, path));
        LS_TRY_GOTO(st, done, same_type(moment, 2 * n, m, path));
    }
    if (state_json) LS_TRY_GOTO(st, done, trainer_text(&h, &text));

    hf_copy(&set, m); /* from here on nothing can fail */
    if (optimizer) copy_moments(moment, m);
    if (state_json) *state_json = text;
    if (step) *step = h.step;
done:
    hf_close(&set);
    ls_st_close(&opt);
    ls_free(moment);
    ls_free(opt_path);
    json_decref(h.root);
    return st;
}

ls_status ls_ckpt_load(ls_model *m, const char *path, bool optimizer, char **state_json, int64_t *step)
{
    if (!ls_fs_is_dir(path)) return ls_fail(LS_E_IO, "cannot read the checkpoint %s: no such folder", path);
    if (!ls_ckpt_is(path))
        return ls_fail(LS_E_FORMAT,
                       "%s is not a checkpoint of lockstep (no " CKPT_SUMS "); --init-from reads Hugging Face folders",
                       path);
    ls_status st = ls_ckpt_verify(path, optimizer);
    if (st != LS_OK) return tell_older(st, path);
    LS_TRY(load_whole(m, path, optimizer, state_json, step));
    return LS_OK;
}
