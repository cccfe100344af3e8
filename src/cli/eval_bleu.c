/* eval_bleu.c - `lockstep eval --task bleu`: BLEU and chrF of a file of translations against a file of references. */
#include "cli/eval_impl.h"
#include "data/lines.h"

ls_status eval_scores_add(eval_scores *s, ls_substr hyp, ls_substr ref)
{
    LS_TRY(ls_bleu_add(&s->bleu, hyp, ref));
    LS_TRY(ls_chrf_add(&s->chrf, hyp, ref));
    s->n++;
    return LS_OK;
}

void eval_scores_json(const eval_scores *s, ls_jsonw *w)
{
    const ls_bleu_result b = ls_bleu_of(&s->bleu);
    ls_jsonw_members(w, LS_KV("bleu", b.score), LS_KV("chrf", ls_chrf_of(&s->chrf)), LS_KV("sentences", s->n));
    ls_jsonw_put_open(w, "precisions", '[');
    for (int k = 0; k < LS_BLEU_ORDER; k++) ls_jsonw_real(w, b.precision[k]);
    ls_jsonw_close(w);
    ls_jsonw_members(w, LS_KV("brevity_penalty", b.brevity), LS_KV("hyp_tokens", s->bleu.hyp_len),
                     LS_KV("ref_tokens", s->bleu.ref_len), LS_KV("bleu_signature", LS_BLEU_SIGNATURE),
                     LS_KV("chrf_signature", LS_CHRF_SIGNATURE));
}

void eval_scores_print(const eval_scores *s)
{
    const ls_bleu_result b = ls_bleu_of(&s->bleu);
    printf("bleu %.4f\nchrf %.4f\nsentences %lld\n", b.score, ls_chrf_of(&s->chrf), (long long)s->n);
    printf("precisions %.1f/%.1f/%.1f/%.1f\nbrevity penalty %.3f\n", b.precision[0], b.precision[1], b.precision[2],
           b.precision[3], b.brevity);
    printf("tokens %lld, of the references %lld\n", (long long)s->bleu.hyp_len, (long long)s->bleu.ref_len);
    printf("bleu signature %s\nchrf signature %s\n", LS_BLEU_SIGNATURE, LS_CHRF_SIGNATURE);
}

static ls_status score_lines(ls_lines *hyp, ls_lines *ref, eval_scores *s)
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
        LS_TRY(eval_scores_add(s, h, r));
    }
    return s->n ? LS_OK : ls_fail(LS_E_FORMAT, "%s and %s have no lines", hyp->path, ref->path);
}

static ls_status print(const options *o, const eval_scores *s)
{
    cli_json j;
    if (!o->json) {
        eval_scores_print(s);
        return LS_OK;
    }
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("hyp", o->hyp), LS_KV("ref", o->ref));
    eval_scores_json(s, w);
    return cli_json_end(&j);
}

ls_status eval_bleu(const options *o)
{
    ls_lines hyp = {0}, ref = {0};
    eval_scores s = {0};
    ls_status st;
    if (!o->hyp || !o->ref) return ls_fail(LS_E_ARG, "eval --task bleu needs --hyp FILE and --ref FILE");
    LS_TRY_GOTO(st, done, ls_lines_open(&hyp, o->hyp));
    LS_TRY_GOTO(st, done, ls_lines_open(&ref, o->ref));
    LS_TRY_GOTO(st, done, score_lines(&hyp, &ref, &s));
    st = print(o, &s);
done:
    ls_lines_close(&hyp);
    ls_lines_close(&ref);
    return st;
}
