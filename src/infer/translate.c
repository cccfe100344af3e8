#include "infer/translate.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "data/unicode.h"

#include <string.h>

#define COLUMNS 64 /* of one pass over the prompts */

void ls_translation_set_fini(ls_translation_set *set)
{
    for (size_t i = 0; i < set->n; i++) {
        ls_free(set->item[i].src);
        ls_free(set->item[i].tgt);
        ls_free(set->item[i].gen);
    }
    ls_free(set->item);
    *set = (ls_translation_set){0};
}

ls_status ls_translation_set_add(ls_translation_set *set, ls_substr src, ls_substr tgt)
{
    if (src.n && memchr(src.data, '\0', src.n))
        return ls_fail(LS_E_FORMAT, "sentence %zu contains a NUL character", set->n + 1);
    LS_TRY(ls_reserve(&set->item, &set->cap, set->n + 1, sizeof *set->item, "the sentences"));
    ls_translation *x = &set->item[set->n];
    *x = (ls_translation){.src = ls_strndup(src.n ? src.data : "", src.n)};
    if (tgt.data) x->tgt = ls_strndup(tgt.data, tgt.n);
    if (!x->src || (tgt.data && !x->tgt)) {
        ls_free(x->src);
        ls_free(x->tgt);
        return ls_nomem(src.n + tgt.n, "a sentence");
    }
    set->n++;
    return LS_OK;
}

ls_status ls_translation_set_read(ls_translation_set *set, const char *const *path, int n_path, const ls_langs *langs,
                                  int64_t limit)
{
    ls_pairs in = {0};
    ls_substr src, tgt;
    bool end = false;
    ls_status st = ls_pairs_open(&in, path, n_path, langs);
    in.keep_empty = true; /* sentence k stays sentence k */
    while (st == LS_OK && !(limit && in.n == limit)) {
        st = ls_pairs_next(&in, &src, &tgt, &end);
        if (st != LS_OK || end) break;
        if (!tgt.data) tgt.data = ""; /* an empty reference is one */
        st = ls_translation_set_add(set, src, tgt);
    }
    ls_pairs_close(&in);
    if (st == LS_OK && !set->n) st = ls_fail(LS_E_FORMAT, "%s has no pairs", path[0]);
    return st;
}

ls_status ls_translate_open(ls_session *s, ls_session_opts how, const ls_translate_opts *o, ls_langs *langs)
{
    how.B = o->batch * o->beam;
    how.T = COLUMNS;
    how.cache_len = o->max_len ? o->max_len : INT32_MAX;
    how.tokenizer = true;
    LS_TRY(ls_session_open(s, &how));
    ls_status st = ls_langs_of(langs, s->tokenizer, s->path);
    const int n_ctx = s->model->cfg.n_ctx, V = s->model->cfg.vocab_size;
    if (st == LS_OK && o->max_len > n_ctx)
        st = ls_fail(LS_E_CONFIG, "--max_length %lld: the model has only %d positions", (long long)o->max_len, n_ctx);
    if (st == LS_OK && ls_tokenizer_n_vocab(s->tokenizer) > V)
        st = ls_fail(LS_E_FORMAT, "%s: tokenizer.json has %d tokens, but the vocabulary of the model has %d", s->path,
                     ls_tokenizer_n_vocab(s->tokenizer), V);
    if (st != LS_OK) ls_session_close(s);
    return st;
}

ls_status ls_translation_text(const ls_tokenizer *t, const ls_ids *ids, char **out)
{
    ls_str raw = {0}, good = {0};
    ls_status st = ls_tokenizer_decode(t, ids->id, ids->n, &raw);
    if (st == LS_OK) data_utf8_replace(raw.data, raw.len, true, &good);
    *out = st == LS_OK && !good.failed ? ls_strdup(good.data ? good.data : "") : NULL;
    if (st == LS_OK && !*out) st = ls_nomem(raw.len, "a translation");
    ls_str_fini(&raw);
    ls_str_fini(&good);
    return st;
}

/* The search stores ids of the model, of which a tokenizer may have fewer. */
static void drop_unknown(ls_ids *ids, int n_vocab)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++)
        if (ids->id[i] < n_vocab) ids->id[n++] = ids->id[i];
    ids->n = n;
}

static ls_status keep_result(const ls_session *s, ls_decode_item *x, ls_translation *t, ls_translation_set *set)
{
    set->n_token += (int64_t)x->text.n + x->stopped;
    set->n_cut += !x->stopped;
    drop_unknown(&x->text, ls_tokenizer_n_vocab(s->tokenizer));
    ls_free(t->gen);
    t->gen = NULL;
    LS_TRY(ls_translation_text(s->tokenizer, &x->text, &t->gen));
    if (!t->tgt) return LS_OK;
    const ls_substr gen = {t->gen, strlen(t->gen)}, ref = {t->tgt, strlen(t->tgt)};
    LS_TRY(ls_bleu_add(&set->bleu, gen, ref));
    return ls_chrf_add(&set->chrf, gen, ref);
}

/* Encodes the sources one after the other; prompt i is ids[at[i], at[i+1]). */
static ls_status encode(const ls_session *s, const ls_translation_set *set, ls_ids *ids, size_t *at)
{
    ls_encoder *e = NULL;
    LS_TRY(ls_encoder_create(s->tokenizer, &e));
    ls_status st = LS_OK;
    for (size_t i = 0; i < set->n && st == LS_OK; i++) {
        st = ls_pair_encode_source(e, (ls_substr){set->item[i].src, strlen(set->item[i].src)}, ids);
        at[i + 1] = ids->n;
    }
    ls_encoder_destroy(&e);
    return st;
}

static ls_status search(ls_session *s, const ls_translate_opts *o, ls_translation_set *set, const ls_ids *ids,
                        const size_t *at, ls_decode_item *item)
{
    const ls_decode_opts how = {.beam = o->beam,
                                .length_penalty = o->length_penalty,
                                .max_len = s->acts->cache_len,
                                .stop = LS_EOS_TGT,
                                .progress = o->progress,
                                .progress_ctx = o->progress_ctx};
    for (size_t i = 0; i < set->n; i++) {
        item[i].prompt = ids->id + at[i];
        item[i].n_prompt = (int64_t)(at[i + 1] - at[i]);
    }
    const double begin = ls_now();
    LS_TRY(ls_decode(s, &how, item, (int64_t)set->n));
    set->seconds = ls_now() - begin;
    for (size_t i = 0; i < set->n; i++) LS_TRY(keep_result(s, &item[i], &set->item[i], set));
    ls_info("infer", "%zu sentences translated in %.2f s, beam %d", set->n, set->seconds, o->beam);
    return LS_OK;
}

ls_status ls_translate(ls_session *s, const ls_translate_opts *o, ls_translation_set *set)
{
    ls_ids ids = {0};
    size_t *at = ls_alloc((set->n + 1) * sizeof *at);
    ls_decode_item *item = ls_alloc(set->n * sizeof *item);
    ls_status st = at && item ? LS_OK : ls_nomem(set->n * sizeof *item, "the sentences");
    set->n_token = set->n_cut = 0;
    set->bleu = (ls_bleu){0};
    set->chrf = (ls_chrf){0};
    if (st == LS_OK) st = encode(s, set, &ids, at);
    if (st == LS_OK) st = search(s, o, set, &ids, at, item);
    for (size_t i = 0; item && i < set->n; i++) ls_ids_fini(&item[i].text);
    ls_ids_fini(&ids);
    ls_free(item);
    ls_free(at);
    return st;
}
