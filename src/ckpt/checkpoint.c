/* checkpoint.c - reads a checkpoint: the state of the trainer, and the weights after all checks. */
#include "ckpt/checkpoint_impl.h"

#include "core/log.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- trainer_state.json ---- */

typedef struct head {
    int64_t step;
    bool optimizer;
    json_t *root; /* owned */
} head;

static ls_status read_state(const char *dir, head *h)
{
    char path[PATH_MAX];
    *h = (head){.root = NULL};
    LS_TRY(ls_path_in(path, dir, CKPT_STATE));
    if (!ls_fs_exists(path)) return ls_fail(LS_E_FORMAT, "%s is missing", path);
    LS_TRY(ls_json_load(path, &h->root));
    const char *format = json_string_value(json_object_get(h->root, "format"));
    const json_t *version = json_object_get(h->root, "version"), *step = json_object_get(h->root, "step");
    ls_status st = LS_OK;
    if (!format || strcmp(format, CKPT_FORMAT) || !json_is_integer(version) || !json_is_integer(step) ||
        json_integer_value(step) < 0 || !json_is_object(json_object_get(h->root, "trainer")))
        st =
            ls_fail(LS_E_FORMAT, "%s: not a lockstep trainer state: format, version, step or trainer is missing", path);
    else if (json_integer_value(version) > LS_CKPT_VERSION)
        st = ls_fail(LS_E_UNSUPPORTED,
                     "%s: version %lld is too new; this program reads up to %d; use the program that wrote it", path,
                     (long long)json_integer_value(version), LS_CKPT_VERSION);
    h->step = json_integer_value(step);
    h->optimizer = json_is_true(json_object_get(h->root, "optimizer"));
    if (st == LS_OK) return LS_OK;
    json_decref(h->root);
    h->root = NULL;
    return st;
}

static ls_status trainer_text(const head *h, char **out)
{
    ls_str s = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_value(&w, json_object_get(h->root, "trainer"));
    if (s.failed) {
        ls_str_fini(&s);
        return ls_nomem(s.cap, "the trainer state");
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

char *ls_ckpt_timings(const char *path)
{
    char *text = NULL;
    size_t n;
    const ls_path file = ls_path_of(path, CKPT_TIMINGS);
    if (!ls_fs_exists(file.text)) return NULL;
    if (ls_fs_read(file.text, &text, &n) == LS_OK) return text;
    ls_err_clear();
    return NULL;
}

/* ---- comparing ---- */

ls_status ls_ckpt_verify(const char *path, bool optimizer)
{
    return ckpt_sums_verify(path, optimizer, 0, 1);
}

ls_status ckpt_tell_older(ls_status st, const char *path)
{
    int64_t step = -1;
    char words[2048];
    if (st != LS_E_FORMAT && st != LS_E_IO) return st;
    snprintf(words, sizeof words, "%s", ls_err_words());
    if (ls_ckpt_state(path, NULL, &step) != LS_OK) step = -1;
    char *older = ckpt_older_whole(path, step);
    st = older
             ? ls_fail(st, "%s; the newest complete checkpoint is %s: remove %s to resume from it", words, older, path)
             : ls_fail(st, "%s; there is no older complete checkpoint: restore %s from a copy, or start a new run",
                       words, path);
    ls_free(older);
    return st;
}

static ls_status same_architecture(const char *dir, const ls_model *m)
{
    const ls_model_config *have = &m->cfg;
    ls_model_config saved;
    LS_TRY(ls_model_config_load(dir, &saved));
    const struct {
        const char *what, *option;
        long long saved, have;
    } row[] = {
        {"layers", "num_layers", saved.n_layer, have->n_layer},
        {"heads", "num_heads", saved.n_head, have->n_head},
        {"channels", "embedding_size", saved.n_embd, have->n_embd},
        {"positions", "max_position_embeddings", saved.n_ctx, have->n_ctx},
        {"tokens in the vocabulary", "vocab_size", saved.vocab_size, have->vocab_size},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].saved != row[i].have)
            return ls_fail(
                LS_E_CONFIG,
                "%s has a model with %lld %s; this model has %lld; use --%s %lld or another --checkpoint_path", dir,
                row[i].saved, row[i].what, row[i].have, row[i].option, row[i].saved);
    if (saved.tied != have->tied)
        return ls_fail(LS_E_CONFIG, "%s has a model with %s head; the head of this model is %s", dir,
                       saved.tied ? "a tied" : "an untied", have->tied ? "tied" : "untied");
    if (saved.gelu != have->gelu)
        return ls_fail(LS_E_CONFIG, "%s has a model with %s GELU; this model uses %s GELU", dir,
                       saved.gelu == LS_GELU_ERF ? "erf" : "tanh", have->gelu == LS_GELU_ERF ? "erf" : "tanh");
    if (saved.variant != have->variant)
        return ls_fail(
            LS_E_CONFIG,
            "%s has a model of variant %s; the variant of this model is %s; use --variant %s or another --checkpoint_path",
            dir, ls_variant_word(saved.variant), ls_variant_word(have->variant), ls_variant_word(saved.variant));
    if (saved.ln_eps != have->ln_eps)
        return ls_fail(LS_E_CONFIG, "%s has a model with layer norm epsilon %g; this model has %g", dir, saved.ln_eps,
                       have->ln_eps);
    return LS_OK;
}

/* Moments of every tensor, all of m, then all of v; src has room for 2 n. */
static ls_status bind_moments(const ls_st_file *f, const ls_model *m, const ls_st_tensor **src)
{
    int k = 0, n = hf_n_tensor(m);
    char name[CKPT_MOMENT_NAME];
    for (int which = 0; which < 2; which++)
        for (int u = 0; u < m->n_unit; u++)
            for (int i = 0; i < m->unit[u].n_tensor; i++, k++) {
                const ls_tensor *t = &m->unit[u].tensor[i];
                snprintf(name, sizeof name, "%c/%s", "mv"[which], t -> name);
                src[k] = ls_st_find(f, name);
                if (!src[k]) return ls_fail(LS_E_FORMAT, "%s: tensor %s is missing", f->path, name);
                LS_TRY(hf_check_shape(f->path, src[k], t));
            }
    if (f->n != 2 * (int64_t)n)
        return ls_fail(LS_E_FORMAT, "%s has %lld tensors; the optimizer state of this model has %d", f->path,
                       (long long)f->n, 2 * n);
    return LS_OK;
}

/* A resumed run continues bit for bit, so values must not be converted to another type. */
static ls_status same_type(const ls_st_tensor *const *src, int n, const ls_model *m, const char *dir)
{
    ls_dtype dt = m->compute->ops->wide;
    for (int i = 0; i < n; i++)
        if (src[i]->other_dtype || src[i]->dt != dt)
            return ls_fail(LS_E_CONFIG, "%s stores %s as %s; this run uses %s and cannot continue bit for bit", dir,
                           src[i]->name, src[i]->dt_word, ls_dtype_word(dt));
    return LS_OK;
}

/* ---- loading ---- */

/* An open checkpoint folder that matches a model. */
typedef struct source {
    head h;
    hf_set set;
    ls_st_file opt;
    const ls_st_tensor **moment; /* all of m, then all of v */
    char *text;                  /* state of the trainer    */
} source;

static void source_close(source *s)
{
    hf_close(&s->set);
    ls_st_close(&s->opt);
    ls_free(s->moment);
    ls_free(s->text);
    json_decref(s->h.root);
}

static ls_status open_moments(source *s, const ls_model *m, const char *path)
{
    const int n = hf_n_tensor(m);
    if (!s->h.optimizer)
        return ls_fail(LS_E_CONFIG, "%s has no optimizer state; use --init_from to start a run from its weights", path);
    char file[PATH_MAX];
    LS_TRY(ls_path_in(file, path, CKPT_OPTIMIZER));
    s->moment = ls_alloc((size_t)n * 2 * sizeof *s->moment);
    if (!s->moment) return ls_nomem((size_t)n * 2 * sizeof *s->moment, "the tensor table of a checkpoint");
    LS_TRY(ls_st_open(&s->opt, file));
    LS_TRY(bind_moments(&s->opt, m, s->moment));
    LS_TRY(same_type(s->set.src, n, m, path));
    return same_type(s->moment, 2 * n, m, path);
}

/* Call source_close even after a failure. */
static ls_status source_open(source *s, const ls_model *m, const char *path, bool optimizer)
{
    *s = (source){.opt = {.map = {"", 0}}};
    LS_TRY(read_state(path, &s->h));
    LS_TRY(same_architecture(path, m));
    LS_TRY(hf_open(&s->set, m, path));
    if (optimizer) LS_TRY(open_moments(s, m, path));
    return trainer_text(&s->h, &s->text);
}

static ls_status check_folder(const char *path)
{
    if (!ls_fs_is_dir(path)) return ls_fail(LS_E_IO, "cannot read the checkpoint %s: no such folder", path);
    if (ls_ckpt_is(path)) return LS_OK;
    return ls_fail(LS_E_FORMAT,
                   "%s is not a lockstep checkpoint: it has no " CKPT_SUMS "; use --init_from for Hugging Face folders",
                   path);
}

ls_status ls_ckpt_load(const ls_model *m, const char *path, bool optimizer, const ls_piece *piece, int n_piece,
                       ls_comm *comm, char **state_json, int64_t *step)
{
    source s;
    ls_comm *team = ckpt_team(comm);
    ls_status st = ckpt_check_pieces(m, piece, n_piece, optimizer);
    if (st == LS_OK) st = check_folder(path);
    LS_TRY(ckpt_agree(team, st, LS_SITE));
    st = ckpt_sums_verify(path, optimizer, ckpt_rank(team), ckpt_size(team));
    st = ckpt_agree(team, st, LS_SITE);
    if (st != LS_OK)
        return ckpt_follow(team, ckpt_rank(team) ? st : ckpt_tell_older(st, path),
                           LS_SITE); /* rank 0 looks for other checkpoints */

    ls_debug("checkpoint", "checksums of %s match", path);
    st = ckpt_agree(team, source_open(&s, m, path, optimizer), LS_SITE);
    if (st == LS_OK) st = hf_compare(&s.set, m, team);
    if (st == LS_OK) { /* from here on only device copies can fail */
        st = hf_fill(s.set.src, m, LS_FLAT_PARAM, piece, n_piece);
        if (st == LS_OK && optimizer) st = hf_fill(s.moment, m, LS_FLAT_M, piece, n_piece);
        if (st == LS_OK && optimizer) st = hf_fill(s.moment + hf_n_tensor(m), m, LS_FLAT_V, piece, n_piece);
        if (m->compute->device) st = ckpt_agree(team, st, LS_SITE);
    }
    if (st == LS_OK) {
        if (state_json) {
            *state_json = s.text;
            s.text = NULL;
        }
        if (step) *step = s.h.step;
        ls_info("checkpoint", "loaded %s: step %lld, %s optimizer state", path, (long long)s.h.step,
                optimizer ? "with" : "without");
    }
    source_close(&s);
    return st;
}
