/* resolve_model.c - which model: preset, file or the folder of --init_from, changed by size flags, variant, dropout and the data's
 * vocabulary. */
#include "config/resolve_impl.h"
#include "core/fs.h"
#include "core/mem.h"
#include "ckpt/checkpoint.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct size_flag {
    const char *flag, *setting;
    int64_t value;
    int *field;
} size_flag;

/* The sizes a checkpoint fixes. */
static ls_status same_shape(const ls_model_config *a, const char *a_is, const ls_model_config *b, const char *b_is)
{
    const struct {
        const char *name;
        int a, b;
    } size[] = {{"n_layer", a->n_layer, b->n_layer},
                {"n_head", a->n_head, b->n_head},
                {"n_embd", a->n_embd, b->n_embd},
                {"n_positions", a->n_ctx, b->n_ctx},
                {"vocab_size", a->vocab_size, b->vocab_size},
                {"tied head", a->tied, b->tied}};
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++)
        if (size[i].a != size[i].b)
            return ls_fail(
                LS_E_CONFIG,
                "%s has %s %d, but %s has %d; leave --model and the size options out to use the sizes of the weights",
                a_is, size[i].name, size[i].a, b_is, size[i].b);
    return LS_OK;
}

ls_status ls_train_fit_vocabulary(ls_model_config *m, int ids, bool follows)
{
    if (follows && ids) m->vocab_size = ids;
    if (ids <= m->vocab_size) return LS_OK;
    return ls_fail(LS_E_CONFIG,
                   "the tokenizer of the data has %d tokens, but the vocabulary of the model %d; use --vocab_size %d, "
                   "or prepare the data with the tokenizer of the model",
                   ids, m->vocab_size, ids);
}

static ls_status pick_vocabulary(const ls_train_options *o, const ls_train_facts *facts, bool follows_data,
                                 ls_train_config *c, ls_source *source, const char **detail)
{
    ls_model_config *m = &c->model;
    const int data = facts->data_vocab_size;
    const bool follows = follows_data && !ls_train_given(o, "vocab_size");
    if (follows && data) {
        *source = LS_FROM_DATA;
        *detail = "tokenizer.json";
    }
    LS_TRY(ls_train_fit_vocabulary(m, data, follows));
    if (data) m->eos_id = facts->data_eos_id;
    if (m->eos_id >= m->vocab_size) m->eos_id = -1;
    return LS_OK;
}

ls_status train_resolve_model(const ls_train_options *o, const ls_train_facts *facts, ls_train_config *c)
{
    ls_model_config *m = &c->model;
    ls_source from = o->model ? LS_FROM_CLI : LS_FROM_DEFAULT;
    const char *name = o->model ? o->model : "gpt2";
    char detail[80] = "";
    if (o->model) snprintf(detail, sizeof detail, "--model %.60s", o->model);
    ls_model_config weights;
    if (o->init_from) {
        LS_TRY(ls_ckpt_resolve(o->init_from, &c->init_from));
        LS_TRY(ls_model_config_load(c->init_from, &weights));
    }
    if (o->init_from && !o->model) {
        *m = weights;
        from = LS_FROM_MODEL;
        snprintf(detail, sizeof detail, "config.json of --init_from");
    } else {
        LS_TRY(ls_model_config_named(name, m));
        if (o->model && !ls_model_config_is_preset(name)) from = LS_FROM_MODEL;
    }
    LS_TRY(train_copy(&c->model_from, o->init_from && !o->model ? o->init_from : name));

    ls_source v_from = from;
    const char *v_detail = detail;
    ls_variant v = m->variant;
    if (o->variant) {
        LS_TRY(ls_variant_parse(o->variant, &v));
        v_from = LS_FROM_CLI, v_detail = "--variant";
    } else if (o->run_type && !o->model && !o->init_from) {
        v = LS_VARIANT_R1; /* R1's command line (docs/REFERENCES.md) asks for its model */
        v_from = LS_FROM_RULE, v_detail = "--run_type without --model";
    }
    if (o->init_from && v != weights.variant)
        return ls_fail(
            LS_E_CONFIG,
            "%s has variant %s, not %s; the variant of existing weights cannot be changed; leave --variant out",
            o->init_from, ls_variant_word(weights.variant), ls_variant_word(v));
    if (v != m->variant) ls_model_config_set_variant(m, v);

    train_put_text(c, "model", c->model_from, from, detail);
    train_put_text(c, "variant", ls_variant_word(m->variant), v_from, v_detail);
    ls_source vocab_from = from;
    const char *vocab_detail = detail;
    const size_flag flags[] = {{"num_layers", "n_layer", o->num_layers, &m->n_layer},
                               {"num_heads", "n_head", o->num_heads, &m->n_head},
                               {"embedding_size", "n_embd", o->embedding_size, &m->n_embd},
                               {"max_position_embeddings", "n_positions", o->max_position_embeddings, &m->n_ctx},
                               {"vocab_size", "vocab_size", o->vocab_size, &m->vocab_size}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        bool given = ls_train_given(o, flags[i].flag);
        char where[40];
        snprintf(where, sizeof where, "--%s", flags[i].flag);
        if (given && (flags[i].value < 1 || flags[i].value > INT_MAX))
            return ls_fail(LS_E_CONFIG, "%s %lld: must be at least 1", where, (long long)flags[i].value);
        if (given) *flags[i].field = (int)flags[i].value;
        if (given && flags[i].field == &m->vocab_size) vocab_from = LS_FROM_CLI, vocab_detail = "--vocab_size";
        else if (flags[i].field != &m->vocab_size)
            train_put_int(c, flags[i].setting, *flags[i].field, given ? LS_FROM_CLI : from, given ? where : detail);
    }
    if (o->init_from) LS_TRY(same_shape(&weights, o->init_from, m, "the command line"));
    LS_TRY(pick_vocabulary(o, facts, !o->init_from && !strcmp(name, "tiny"), c, &vocab_from, &vocab_detail));
    train_put_int(c, "vocab_size", m->vocab_size, vocab_from, vocab_detail);
    train_put_text(c, "activation", m->gelu == LS_GELU_TANH ? "gelu_new" : "gelu", v_from, v_detail);
    train_put_bool(c, "tied_head", m->tied, v_from, v_detail);
    bool drop = ls_train_given(o, "dropout");
    if (drop) m->embd_pdrop = m->attn_pdrop = m->resid_pdrop = o->dropout;
    train_put_real(c, "embd_pdrop", m->embd_pdrop, drop ? LS_FROM_CLI : from, drop ? "--dropout" : detail);
    train_put_real(c, "attn_pdrop", m->attn_pdrop, drop ? LS_FROM_CLI : from, drop ? "--dropout" : detail);
    train_put_real(c, "resid_pdrop", m->resid_pdrop, drop ? LS_FROM_CLI : from, drop ? "--dropout" : detail);
    LS_TRY(ls_model_config_check(m));
    train_put_int(c, "parameters", ls_model_n_param(m), LS_FROM_RULE,
                  m->tied ? "counted, head tied" : "counted, head of its own");
    train_put_text(c, "init_from", c->init_from, o->init_from ? LS_FROM_CLI : LS_FROM_DEFAULT,
                   o->init_from ? "--init_from" : "");
    return LS_OK;
}
