#include "score/score_impl.h"
#include "core/mem.h"

/* The characters of a text without white space; returns their number. */
static size_t characters(ls_substr t, uint32_t *out)
{
    size_t n = 0;
    for (size_t i = 0, k; i < t.n; i += k) {
        k = score_char(t.data + i, t.n - i, &out[n]);
        n += !score_is_space(out[n]);
    }
    return n;
}

static ls_status count(ls_substr hyp, ls_substr ref, ls_chrf *c)
{
    uint32_t *h = ls_alloc((hyp.n + ref.n + 2) * sizeof *h), *r = h ? h + hyp.n + 1 : NULL;
    if (!h) return ls_nomem((hyp.n + ref.n) * sizeof *h, "the characters of a sentence");
    const size_t nh = characters(hyp, h), nr = characters(ref, r);
    const ls_status st = score_match(h, nh, r, &nr, 1, LS_CHRF_ORDER, c->match);
    for (int k = 0; k < LS_CHRF_ORDER && st == LS_OK; k++) {
        const int64_t in_ref = score_count(nr, k + 1);
        c->ref[k] += in_ref;
        c->hyp[k] += in_ref ? score_count(nh, k + 1) : 0;
    }
    ls_free(h);
    return st;
}

double ls_chrf_of(const ls_chrf *c)
{
    const double factor = 2 * 2; /* beta squared: recall counts twice */
    double precision = 0, recall = 0;
    int n = 0;
    for (int k = 0; k < LS_CHRF_ORDER; k++) {
        if (!c->hyp[k] || !c->ref[k]) continue;
        precision += (double)c->match[k] / (double)c->hyp[k];
        recall += (double)c->match[k] / (double)c->ref[k];
        n++;
    }
    if (!n || precision + recall == 0) return 0;
    precision /= n;
    recall /= n;
    return 100 * (1 + factor) * precision * recall / (factor * precision + recall);
}

ls_status ls_chrf_add_refs(ls_chrf *c, ls_substr hyp, const ls_substr *ref, int n)
{
    ls_chrf best = {0};
    double most = -1;
    for (int i = 0; i < n; i++) {
        ls_chrf one = {0};
        LS_TRY(count(hyp, ref[i], &one));
        if (ls_chrf_of(&one) > most) best = one, most = ls_chrf_of(&one);
    }
    for (int k = 0; k < LS_CHRF_ORDER; k++) {
        c->hyp[k] += best.hyp[k];
        c->ref[k] += best.ref[k];
        c->match[k] += best.match[k];
    }
    return LS_OK;
}

ls_status ls_chrf_add(ls_chrf *c, ls_substr hyp, ls_substr ref)
{
    return ls_chrf_add_refs(c, hyp, &ref, 1);
}
