/* eval_bleu.c - `lockstep eval --task bleu`: BLEU and chrF of a file of translations against one or more files of references. */
#include "cli/eval_impl.h"
#include "data/lines.h"

typedef struct scores {
    ls_bleu bleu;
    ls_chrf chrf;
    int64_t n;
    ls_lines hyp, ref[LS_OPT_MAX_WORDS];
    int n_ref;
} scores;

/* The next line of every file; *end: all have ended. */
static ls_status next(scores *s, ls_substr *h, ls_substr *r, bool *end)
{
    LS_TRY(ls_lines_next(&s->hyp, h, end));
    for (int k = 0; k < s->n_ref; k++) {
        ls_lines *ref = &s->ref[k];
        bool end_r;
        LS_TRY(ls_lines_next(ref, &r[k], &end_r));
        if (*end != end_r)
            return ls_fail(LS_E_FORMAT, "%s ends after line %lld, but %s goes on; both need one line per sentence",
                           *end ? s->hyp.path : ref->path, (long long)(*end ? &s->hyp : ref)->line,
                           *end ? ref->path : s->hyp.path);
    }
    return LS_OK;
}

static ls_status score_lines(scores *s)
{
    for (;; s->n++) {
        ls_substr h, r[LS_OPT_MAX_WORDS];
        bool end;
        LS_TRY(next(s, &h, r, &end));
        if (end) break;
        LS_TRY(ls_bleu_add_refs(&s->bleu, h, r, s->n_ref));
        LS_TRY(ls_chrf_add_refs(&s->chrf, h, r, s->n_ref));
    }
    return s->n ? LS_OK : ls_fail(LS_E_FORMAT, "%s and %s have no lines", s->hyp.path, s->ref[0].path);
}

static ls_status print(const options *o, const scores *s)
{
    cli_json j;
    if (!o->json) {
        cli_scores_print(&s->bleu, &s->chrf, s->n, s->n_ref);
        return LS_OK;
    }
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_put_str(w, "hyp", o->hyp);
    if (s->n_ref == 1) ls_jsonw_put_str(w, "ref", o->ref.word[0]);
    else {
        ls_jsonw_put_open(w, "refs", '[');
        for (int k = 0; k < s->n_ref; k++) ls_jsonw_str(w, o->ref.word[k]);
        ls_jsonw_close(w);
    }
    cli_scores_json(&s->bleu, &s->chrf, s->n, s->n_ref, w);
    return cli_json_end(&j);
}

ls_status eval_bleu(const options *o)
{
    scores s = {0};
    ls_status st;
    if (!o->hyp || !o->ref.n) return ls_fail(LS_E_ARG, "eval --task bleu needs --hyp FILE and --ref FILE");
    LS_TRY_GOTO(st, done, ls_lines_open(&s.hyp, o->hyp));
    s.hyp.keep_mark = true; /* as sacrebleu */
    for (; s.n_ref < o->ref.n; s.n_ref++) {
        LS_TRY_GOTO(st, done, ls_lines_open(&s.ref[s.n_ref], o->ref.word[s.n_ref]));
        s.ref[s.n_ref].keep_mark = true;
    }
    LS_TRY_GOTO(st, done, score_lines(&s));
    st = print(o, &s);
done:
    ls_lines_close(&s.hyp);
    for (int k = 0; k < s.n_ref; k++) ls_lines_close(&s.ref[k]);
    return st;
}
