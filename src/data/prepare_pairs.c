#include "data/prepare_pairs.h"
#include "data/bpe_train.h"
#include "data/meta.h"
#include "data/stage.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/stop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WORD_BYTES ((size_t)16 << 20) /* of different words in training */
#define MAX_VOCAB  65536

enum { IDS, MASK, TEXTS, N_FILE };

static const char *const part_name[] = {"train", "val", "test"}, *const ending[] = {"bin", "mask", "jsonl"};
/* which files a part has */
static const bool wanted[LS_N_PAIR_PART][N_FILE] = {{true, true, false}, {true, true, true}, {false, false, true}};

typedef struct part {
    ls_fs_out out[N_FILE];
    bool open[N_FILE];
    int64_t pairs, tokens, targets, empty, longest;
} part;

typedef struct run {
    const ls_prepare_pairs_opts *o;
    data_stage stage;
    part part[LS_N_PAIR_PART];
    ls_encoder *e;
    ls_ids ids;
    uint16_t *token;
    unsigned char *mask;
    size_t cap_token, cap_mask;
    ls_str text;
} run;

typedef ls_status (*take_pair)(run *r, ls_pair_part p, ls_substr src, ls_substr tgt);

/* Calls take for each pair of an input; a fraction of the training pairs goes to validation. */
static ls_status each_pair(run *r, ls_pair_part which, const char *phase, take_pair take)
{
    const ls_prepare_pairs_opts *o = r->o;
    const double f = which == LS_PAIR_TRAIN && !o->n_input[LS_PAIR_VAL] ? o->val_fraction : 0;
    ls_pairs in = {0};
    ls_substr src, tgt;
    bool end = false;
    ls_status st = ls_pairs_open(&in, o->input[which], o->n_input[which], o->langs);
    in.keep_empty = which == LS_PAIR_TEST; /* line k of the file is sentence k */
    while (st == LS_OK && !(o->limit[which] && in.n == o->limit[which])) {
        if (ls_stop_requested()) st = ls_fail(LS_E_STOPPED, "signal %d", ls_stop_signal());
        if (st == LS_OK) st = ls_pairs_next(&in, &src, &tgt, &end);
        if (st != LS_OK || end) break;
        const bool val = floor((double)in.n * f) > floor((double)(in.n - 1) * f);
        st = take(r, val ? LS_PAIR_VAL : which, src, tgt);
        if (o->progress && in.n % 1024 == 0) o->progress(o->progress_ctx, phase, in.n);
    }
    r->part[which].empty = in.n_empty;
    ls_pairs_close(&in);
    return st;
}

/* ---- the vocabulary ---- */

typedef struct counting {
    run r; /* first: take gets its address */
    ls_words words;
} counting;

static ls_status count_pair(run *r, ls_pair_part p, ls_substr src, ls_substr tgt)
{
    counting *c = (counting *)r;
    if (p != LS_PAIR_TRAIN) return LS_OK;
    LS_TRY(ls_words_add_text(&c->words, (const unsigned char *)src.data, src.n));
    return ls_words_add_text(&c->words, (const unsigned char *)tgt.data, tgt.n);
}

static ls_status train_vocab(const ls_prepare_pairs_opts *o, ls_tokenizer **out)
{
    counting c = {.r = {.o = o}, .words = {.max_bytes = WORD_BYTES}};
    char src[LS_LANG_MAX + 8], tgt[LS_LANG_MAX + 8];
    const char *const special[] = {src, tgt, "<pad>"};
    snprintf(src, sizeof src, "<eos_%s>", o->langs->src);
    snprintf(tgt, sizeof tgt, "<eos_%s>", o->langs->tgt);
    ls_status st = each_pair(&c.r, LS_PAIR_TRAIN, "counting words", count_pair);
    if (st == LS_OK) st = ls_bpe_train_special(&c.words, special, 3, o->vocab_size, o->min_count, out);
    ls_words_fini(&c.words);
    return st;
}

static ls_status check_tokenizer(const ls_prepare_pairs_opts *o, const ls_tokenizer *tok)
{
    ls_langs l;
    LS_TRY(ls_langs_of(&l, tok, "--tokenizer"));
    if (strcmp(l.src, o->langs->src) != 0 || strcmp(l.tgt, o->langs->tgt) != 0)
        return ls_fail(LS_E_CONFIG,
                       "--tokenizer: it translates %s to %s, but the data %s to %s; give --src_lang %s "
                       "--tgt_lang %s if the data is right",
                       l.src, l.tgt, o->langs->src, o->langs->tgt, l.src, l.tgt);
    if (ls_tokenizer_n_vocab(tok) > MAX_VOCAB)
        return ls_fail(LS_E_CONFIG, "a vocabulary of %d tokens does not fit the 16-bit token files (at most %d)",
                       ls_tokenizer_n_vocab(tok), MAX_VOCAB);
    return LS_OK;
}

/* ---- encoding ---- */

static ls_status open_part(run *r, ls_pair_part p)
{
    part *x = &r->part[p];
    for (int f = 0; f < N_FILE; f++) {
        char path[PATH_MAX];
        if (!wanted[p][f]) continue;
        LS_TRY(ls_path_in(path, r->stage.out, "%s.%s", part_name[p], ending[f]));
        if (f == TEXTS && !r->stage.pairs && ls_fs_exists(path))
            return ls_fail(
                LS_E_IO, "%s exists, but `prepare --task translate` did not write it; move it or choose another --out",
                path);
        LS_TRY(ls_path_in(path, r->stage.dir, "%s.%s", part_name[p], ending[f]));
        LS_TRY(ls_fs_out_open(&x->out[f], path));
        x->open[f] = true;
    }
    return LS_OK;
}

static ls_status write_ids(run *r, part *x, size_t n_src)
{
    const size_t n = r->ids.n;
    LS_TRY(ls_reserve(&r->token, &r->cap_token, n, sizeof *r->token, "a pair"));
    LS_TRY(ls_reserve(&r->mask, &r->cap_mask, n, 1, "a pair"));
    for (size_t i = 0; i < n; i++) {
        r->token[i] = (uint16_t)r->ids.id[i];
        r->mask[i] = i >= n_src;
    }
    LS_TRY(ls_fs_out_append(&x->out[IDS], r->token, n * sizeof *r->token));
    return ls_fs_out_append(&x->out[MASK], r->mask, n);
}

static ls_status write_text(run *r, part *x, ls_substr src, ls_substr tgt)
{
    char *copy[2] = {ls_strndup(src.data ? src.data : "", src.n), ls_strndup(tgt.data ? tgt.data : "", tgt.n)};
    ls_jsonw w;
    r->text.len = 0;
    ls_jsonw_init(&w, &r->text, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, r->o->langs->src, copy[0]);
    ls_jsonw_put_str(&w, r->o->langs->tgt, copy[1]);
    ls_jsonw_close(&w);
    ls_str_addc(&r->text, '\n');
    const ls_status st = !copy[0] || !copy[1] || r->text.failed
                             ? ls_nomem(src.n + tgt.n, "a pair")
                             : ls_fs_out_append(&x->out[TEXTS], r->text.data, r->text.len);
    ls_free(copy[0]);
    ls_free(copy[1]);
    return st;
}

static ls_status encode_pair(run *r, ls_pair_part p, ls_substr src, ls_substr tgt)
{
    part *x = &r->part[p];
    r->ids.n = 0;
    LS_TRY(ls_pair_encode_source(r->e, src, &r->ids));
    const size_t n_src = r->ids.n;
    LS_TRY(ls_pair_encode_target(r->e, tgt, &r->ids));
    if (wanted[p][IDS]) LS_TRY(write_ids(r, x, n_src));
    if (wanted[p][TEXTS]) LS_TRY(write_text(r, x, src, tgt));
    const int64_t n = (int64_t)r->ids.n;
    x->pairs++;
    x->tokens += n;
    x->targets += n - (int64_t)n_src;
    if (n > x->longest) x->longest = n;
    return LS_OK;
}

static ls_status encode_all(run *r, const ls_tokenizer *tok)
{
    const ls_prepare_pairs_opts *o = r->o;
    LS_TRY(ls_encoder_create(tok, &r->e));
    LS_TRY(open_part(r, LS_PAIR_TRAIN));
    if (o->n_input[LS_PAIR_VAL] || o->val_fraction > 0) LS_TRY(open_part(r, LS_PAIR_VAL));
    if (o->n_input[LS_PAIR_TEST]) LS_TRY(open_part(r, LS_PAIR_TEST));
    for (int p = 0; p < LS_N_PAIR_PART; p++) {
        if (!o->n_input[p]) continue;
        const int64_t before = r->part[p].pairs;
        LS_TRY(each_pair(r, (ls_pair_part)p, "encoding", encode_pair));
        if (r->part[p].pairs == before)
            return ls_fail(LS_E_FORMAT, "%s: %s", o->input[p][0],
                           p ? "no pairs" : "no pairs, or --val_fraction leaves none for training");
    }
    return LS_OK;
}

/* ---- the files ---- */

static ls_status put_sums(ls_jsonw *w, const run *r, int p, int f, const char *sha_key, const char *sample_key)
{
    char path[PATH_MAX], sha[65], sample[17];
    ls_fs_map m;
    LS_TRY(ls_path_in(path, r->stage.dir, "%s.%s", part_name[p], ending[f]));
    LS_TRY(data_file_sha256(path, sha));
    LS_TRY(ls_fs_map_open(&m, path));
    data_sample_hex(m.data, m.n, sample);
    ls_fs_map_close(&m);
    ls_jsonw_put_str(w, sha_key, sha);
    ls_jsonw_put_str(w, sample_key, sample);
    return LS_OK;
}

static ls_status meta_part(ls_jsonw *w, const run *r, const ls_prepare_pairs_result *res, int p)
{
    if (!res->pairs[p]) return LS_OK;
    ls_jsonw_put_open(w, part_name[p], '{');
    ls_jsonw_members(w, LS_KV("pairs", res->pairs[p]), LS_KV("tokens", res->tokens[p]),
                     LS_KV("target_tokens", res->targets[p]));
    if (wanted[p][IDS]) LS_TRY(put_sums(w, r, p, IDS, "sha256", "xxh3_sample"));
    if (wanted[p][MASK]) LS_TRY(put_sums(w, r, p, MASK, "mask_sha256", "mask_xxh3_sample"));
    ls_jsonw_close(w);
    return LS_OK;
}

static ls_status write_meta(const run *r, const ls_prepare_pairs_result *res)
{
    const ls_prepare_pairs_opts *o = r->o;
    ls_str s = {0};
    ls_jsonw w;
    char sha[65];
    LS_TRY(data_file_sha256(ls_path_of(r->stage.dir, "tokenizer.json").text, sha));
    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("format", "lockstep-pairs-1"), LS_KV("dtype", "uint16"),
                     LS_KV("vocab_size", res->n_vocab), LS_KV("src_lang", (const char *)o->langs->src),
                     LS_KV("tgt_lang", (const char *)o->langs->tgt));
    ls_status st = LS_OK;
    for (int p = 0; p < LS_N_PAIR_PART && st == LS_OK; p++) st = meta_part(&w, r, res, p);
    ls_jsonw_members(&w, LS_KV("longest_pair", res->longest), LS_KV("tokenizer_sha256", (const char *)sha),
                     LS_KV("command", o->command), LS_KV("version", LS_VERSION));
    ls_jsonw_close(&w);
    ls_str_addc(&s, '\n');
    if (st == LS_OK && s.failed) st = ls_nomem(s.len, "meta.json");
    if (st == LS_OK) st = ls_fs_write(ls_path_of(r->stage.dir, "meta.json").text, s.data, s.len);
    ls_str_fini(&s);
    return st;
}

/* A part without pairs has no files. */
static ls_status finish_part(part *x)
{
    for (int f = 0; f < N_FILE && x->pairs; f++) {
        if (!x->open[f]) continue;
        x->open[f] = false;
        LS_TRY(ls_fs_out_commit(&x->out[f]));
    }
    return LS_OK;
}

static ls_status finish(run *r, const ls_tokenizer *tok, ls_prepare_pairs_result *res)
{
    char path[PATH_MAX];
    res->n_vocab = ls_tokenizer_n_vocab(tok);
    res->n_merge = ls_tokenizer_n_merge(tok);
    res->longest = r->part[LS_PAIR_TRAIN].longest;
    for (int p = 0; p < LS_N_PAIR_PART; p++) {
        res->pairs[p] = r->part[p].pairs;
        res->tokens[p] = r->part[p].tokens;
        res->targets[p] = r->part[p].targets;
        res->empty[p] = r->part[p].empty;
    }
    LS_TRY(ls_path_in(path, r->stage.dir, "tokenizer.json"));
    LS_TRY(ls_tokenizer_save(tok, path));
    for (int p = 0; p < LS_N_PAIR_PART; p++) LS_TRY(finish_part(&r->part[p]));
    return write_meta(r, res);
}

static void close_files(run *r)
{
    for (int p = 0; p < LS_N_PAIR_PART; p++)
        for (int f = 0; f < N_FILE; f++) {
            if (r->part[p].open[f]) ls_fs_out_abort(&r->part[p].out[f]);
            r->part[p].open[f] = false;
        }
}

static void fini(run *r)
{
    close_files(r);
    ls_encoder_destroy(&r->e);
    ls_ids_fini(&r->ids);
    ls_free(r->token);
    ls_free(r->mask);
    ls_str_fini(&r->text);
}

ls_status ls_prepare_pairs(const ls_prepare_pairs_opts *o, ls_prepare_pairs_result *result)
{
    run r = {.o = o, .stage.lock = -1};
    ls_prepare_pairs_result res = {0};
    ls_tokenizer *trained = NULL;
    const double start = ls_now();
    bool complete = false;
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, data_stage_open(&r.stage, o->out_dir, false));
    if (!o->tok) LS_TRY_GOTO(st, done, train_vocab(o, &trained));
    const ls_tokenizer *tok = o->tok ? o->tok : trained;
    LS_TRY_GOTO(st, done, check_tokenizer(o, tok));
    LS_TRY_GOTO(st, done, encode_all(&r, tok));
    LS_TRY_GOTO(st, done, finish(&r, tok, &res));
    close_files(&r); /* of parts without pairs */
    complete = true;
    LS_TRY_GOTO(st, done, data_stage_commit(&r.stage));
    res.seconds = ls_now() - start;
    *result = res;
done:
    fini(&r);
    data_stage_close(&r.stage, complete && st != LS_OK);
    ls_tokenizer_destroy(&trained);
    return st;
}
