/* resolve_model.c - which model: preset, file or the folder of --init_from, changed by size flags, variant, dropout and the data's
 * vocabulary. */
#include "config/resolve_impl.h"
#include "core/argv.h"
#include "core/fs.h"
#include "core/mem.h"
#include "ckpt/checkpoint.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

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
    return ls_fail(
        LS_E_CONFIG,
        "the tokenizer of the data has %d tokens, but the vocabulary of the model %d; use --vocab_size %d, or prepare the data with the tokenizer of the model",
        ids, m->vocab_size, ids);
}

/* The sizes of the model: those of the options where given. */
static ls_status resolve_sizes(const ls_train_options *o, train_origin model, ls_train_config *c)
{
    ls_model_config *m = &c->model;
    const struct {
        const char *flag, *setting;
        int64_t value;
        int *field;
    } size[] = {{"--num_layers", "n_layer", o->num_layers, &m->n_layer},
                {"--num_heads", "n_head", o->num_heads, &m->n_head},
                {"--embedding_size", "n_embd", o->embedding_size, &m->n_embd},
                {"--max_position_embeddings", "n_positions", o->max_position_embeddings, &m->n_ctx},
                {"--vocab_size", "vocab_size", o->vocab_size, &m->vocab_size}};
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
        const train_origin from = train_from(o, size[i].flag, NULL);
        const bool given = from.source == LS_FROM_CLI;
        if (given) *size[i].field = (int)size[i].value;
        train_put_int(c, size[i].setting, *size[i].field, given ? from : model);
    }
    return LS_OK;
}

/* The vocabulary and end of text of the data, where it has a tokenizer. follows: the model takes the vocabulary of the data. */
static ls_status resolve_vocabulary(const ls_train_facts *facts, bool follows, ls_train_config *c)
{
    ls_model_config *m = &c->model;
    const int data = facts->data_vocab_size;
    if (c->init_from && data > m->vocab_size)
        return ls_fail(
            LS_E_CONFIG,
            "the tokenizer of the data has %d tokens, but the vocabulary of %s %d; prepare the data with the tokenizer of the weights: `lockstep prepare TEXT --tokenizer %s --out DIR`",
            data, c->init_from, m->vocab_size, ls_quoted(c->init_from).text);
    if (c->init_from && data && data < m->vocab_size)
        ls_str_addf(&c->notes, "%d id%s of the model %s never used: it has %d, the tokenizer of the data %d\n",
                    m->vocab_size - data, m->vocab_size - data == 1 ? "" : "s",
                    m->vocab_size - data == 1 ? "is" : "are", m->vocab_size, data);
    LS_TRY(ls_train_fit_vocabulary(m, data, follows));
    if (follows && data) train_put_int(c, "vocab_size", m->vocab_size, (train_origin){LS_FROM_DATA, "tokenizer.json"});
    if (data) m->eos_id = facts->data_eos_id;
    if (m->eos_id >= m->vocab_size) m->eos_id = -1;
    return LS_OK;
}

/* A preset, a config.json, a folder with one, or a run folder: the model of its checkpoints. */
static ls_status named_model(const char *name, ls_model_config *out)
{
    char *checkpoint = NULL;
    const bool run = ls_fs_is_dir(name) && !ls_fs_exists(ls_path_of(name, "config.json").text);
    if (run && !ls_model_config_is_preset(name)) LS_TRY(ls_ckpt_any(name, &checkpoint));
    const ls_status st = ls_model_config_named(checkpoint ? checkpoint : name, out);
    ls_free(checkpoint);
    return st;
}

/* Preset, file or the folder of --init_from, whose configuration is `weights`. detail: room for the origin's. */
static ls_status find_model(const ls_train_options *o, ls_model_config *weights, char detail[80], train_origin *from,
                            ls_train_config *c)
{
    const char *name = o->model ? o->model : "gpt2";
    *from = (train_origin){o->model ? LS_FROM_CLI : LS_FROM_DEFAULT, detail};
    if (o->model) snprintf(detail, 80, "--model %.60s", o->model);
    if (o->init_from) {
        LS_TRY(ls_ckpt_resolve("--init_from", o->init_from, &c->init_from));
        LS_TRY(ls_ckpt_config(c->init_from, weights));
    }
    if (o->init_from && !o->model) {
        c->model = *weights;
        *from = (train_origin){LS_FROM_MODEL, "config.json of --init_from"};
        return train_copy(&c->model_from, o->init_from);
    }
    LS_TRY(named_model(name, &c->model));
    if (o->model && !ls_model_config_is_preset(name)) from->source = LS_FROM_MODEL;
    return train_copy(&c->model_from, name);
}

ls_status train_resolve_model(const ls_train_options *o, const ls_train_facts *facts, ls_train_config *c)
{
    ls_model_config *m = &c->model, weights;
    char detail[80] = "";
    train_origin from;
    LS_TRY(find_model(o, &weights, detail, &from, c));

    train_origin v_from = from;
    ls_variant v = m->variant;
    if (o->variant) {
        LS_TRY(ls_variant_parse(o->variant, &v));
        v_from = train_from(o, "--variant", NULL);
    } else if (o->run_type && !o->model && !o->init_from) {
        v = LS_VARIANT_R1; /* the scaling study's command line (docs/REFERENCES.md) asks for its model */
        v_from = train_rule("--run_type without --model");
    }
    if (o->init_from && v != weights.variant)
        return ls_fail(
            LS_E_CONFIG,
            "%s has variant %s, not %s; the variant of existing weights cannot be changed; leave --variant out",
            o->init_from, ls_variant_word(weights.variant), ls_variant_word(v));
    if (v != m->variant) ls_model_config_set_variant(m, v);
    train_put_text(c, "model", c->model_from, from);
    train_put_text(c, "variant", ls_variant_word(m->variant), v_from);
    LS_TRY(resolve_sizes(o, from, c));
    /* tiny has the vocabulary of the weights or of the data */
    const bool open = o->model && !strcmp(o->model, "tiny") && !ls_train_given(o, "vocab_size");
    if (o->init_from && open) {
        m->vocab_size = weights.vocab_size;
        train_put_int(c, "vocab_size", m->vocab_size, (train_origin){LS_FROM_MODEL, "config.json of --init_from"});
    }
    if (o->init_from) LS_TRY(same_shape(&weights, o->init_from, m, "the command line"));
    LS_TRY(resolve_vocabulary(facts, open && !o->init_from, c));
    train_put_text(c, "activation", m->gelu == LS_GELU_TANH ? "gelu_new" : "gelu", v_from);
    train_put_bool(c, "tied_head", m->tied, v_from);
    train_origin drop = train_from(o, "--dropout", NULL);
    if (drop.source == LS_FROM_CLI && !(o->dropout < 1))
        return ls_fail(LS_E_ARG, "--dropout %g: must be at least 0 and less than 1", o->dropout);
    if (drop.source == LS_FROM_CLI) m->embd_pdrop = m->attn_pdrop = m->resid_pdrop = o->dropout;
    else drop = from;
    train_put_real(c, "embd_pdrop", m->embd_pdrop, drop);
    train_put_real(c, "attn_pdrop", m->attn_pdrop, drop);
    train_put_real(c, "resid_pdrop", m->resid_pdrop, drop);
    LS_TRY(ls_model_config_check(m));
    train_put_int(c, "parameters", ls_model_n_param(m),
                  train_rule(m->tied ? "counted, head tied" : "counted, head of its own"));
    train_put_text(c, "init_from", c->init_from, train_from(o, "--init_from", NULL));
    return LS_OK;
}

ls_status ls_train_model_json(const ls_train_options *o, const ls_train_facts *facts, ls_str *out)
{
    ls_train_config c = {0};
    const ls_status st = train_resolve_model(o, facts, &c);
    if (st == LS_OK) ls_model_config_write(&c.model, out);
    ls_train_config_fini(&c);
    return st == LS_OK && out->failed ? ls_nomem(out->len, "a config.json") : st;
}
