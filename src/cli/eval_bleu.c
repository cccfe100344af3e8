/* eval_bleu.c - `lockstep eval --task bleu`: BLEU and chrF of a file of translations against a file of references. */
#include "cli/eval_impl.h"
#include "data/lines.h"

typedef struct scores {
    ls_bleu bleu;
    ls_chrf chrf;
    int64_t n;
} scores;

static ls_status score_lines(ls_lines *hyp, ls_lines *ref, scores *s)
{
    for (;;) {
        ls_substr h, r;
        bool end_h, end_r;
        LS_TRY(ls_lines_next(hyp, &h, &end_h));
        LS_TRY(ls_lines_next(ref, &r, &end_r));
        if (end_h && end_r) break;
        if (end_h || end_r)
            return ls_fail(LS_E_FORMAT, "%s ends after line %lld, but %s goes on; both need one line per sentence",
                           end_h ? hyp->path : ref->path, (long long)(end_h ? hyp : ref)->line,
                           end_h ? ref->path : hyp->path);
        LS_TRY(ls_bleu_add(&s->bleu, h, r));
        LS_TRY(ls_chrf_add(&s->chrf, h, r));
        s->n++;
    }
    return s->n ? LS_OK : ls_fail(LS_E_FORMAT, "%s and %s have no lines", hyp->path, ref->path);
}

static ls_status print(const options *o, const scores *s)
{
    cli_json j;
    if (!o->json) {
        cli_scores_print(&s->bleu, &s->chrf, s->n);
        return LS_OK;
    }
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("hyp", o->hyp), LS_KV("ref", o->ref));
    cli_scores_json(&s->bleu, &s->chrf, s->n, w);
    return cli_json_end(&j);
}

ls_status eval_bleu(const options *o)
{
    ls_lines hyp = {0}, ref = {0};
    scores s = {0};
    ls_status st;
    if (!o->hyp || !o->ref) return ls_fail(LS_E_ARG, "eval --task bleu needs --hyp FILE and --ref FILE");
    LS_TRY_GOTO(st, done, ls_lines_open(&hyp, o->hyp));
    LS_TRY_GOTO(st, done, ls_lines_open(&ref, o->ref));
    hyp.keep_mark = ref.keep_mark = true; /* as sacrebleu */
    LS_TRY_GOTO(st, done, score_lines(&hyp, &ref, &s));
    st = print(o, &s);
done:
    ls_lines_close(&hyp);
    ls_lines_close(&ref);
    return st;
}
