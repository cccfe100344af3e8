#include "cli/translation.h"
#include "cli/commands.h"
#include "core/fs.h"
#include "core/progress.h"

#include <math.h>

ls_status cli_search_check(const cli_search *o)
{
    if (!isfinite(o->length_penalty))
        return ls_fail(LS_E_ARG, "--length_penalty %g: must be a finite number", o->length_penalty);
    if (o->batch > 65536) return ls_fail(LS_E_ARG, "--batch %lld: at most 65536", (long long)o->batch);
    return LS_OK;
}

static void show_progress(void *ctx, int64_t done, int64_t n)
{
    ls_progress_line l = {0};
    (void)ctx;
    ls_progress_add(&l, 0, "%lld/%lld sentences", (long long)done, (long long)n);
    if (done == n) ls_progress_end(false);
    else if (ls_progress_due(0)) ls_progress_show(&l);
}

ls_translate_opts cli_search_opts(const cli_search *o, bool progress)
{
    if (progress) ls_progress_open();
    return (ls_translate_opts){.beam = (int)o->beam,
                               .length_penalty = o->length_penalty,
                               .batch = o->batch,
                               .max_len = o->max_length,
                               .progress = progress ? show_progress : NULL};
}

void cli_scores_json(const ls_bleu *bleu, const ls_chrf *chrf, int64_t n, int n_ref, ls_jsonw *w)
{
    char of_bleu[100], of_chrf[100];
    snprintf(of_bleu, sizeof of_bleu, "nrefs:%d|%s", n_ref, LS_BLEU_DEFINITION);
    snprintf(of_chrf, sizeof of_chrf, "nrefs:%d|%s", n_ref, LS_CHRF_DEFINITION);
    const ls_bleu_result b = ls_bleu_of(bleu);
    ls_jsonw_members(w, LS_KV("bleu", b.score), LS_KV("chrf", ls_chrf_of(chrf)), LS_KV("sentences", n));
    ls_jsonw_put_open(w, "precisions", '[');
    for (int k = 0; k < LS_BLEU_ORDER; k++) ls_jsonw_real(w, b.precision[k]);
    ls_jsonw_close(w);
    ls_jsonw_members(w, LS_KV("brevity_penalty", b.brevity), LS_KV("hyp_tokens", bleu->hyp_len),
                     LS_KV("ref_tokens", bleu->ref_len), LS_KV("bleu_signature", (const char *)of_bleu),
                     LS_KV("chrf_signature", (const char *)of_chrf));
}

void cli_scores_print(const ls_bleu *bleu, const ls_chrf *chrf, int64_t n, int n_ref)
{
    const ls_bleu_result b = ls_bleu_of(bleu);
    printf("bleu %.4f\nchrf %.4f\nsentences %lld\n", b.score, ls_chrf_of(chrf), (long long)n);
    printf("precisions %.1f/%.1f/%.1f/%.1f\nbrevity penalty %.3f\n", b.precision[0], b.precision[1], b.precision[2],
           b.precision[3], b.brevity);
    printf("words %lld, of the references %lld\n", (long long)bleu->hyp_len, (long long)bleu->ref_len);
    printf("bleu signature nrefs:%d|%s\nchrf signature nrefs:%d|%s\n", n_ref, LS_BLEU_DEFINITION, n_ref,
           LS_CHRF_DEFINITION);
}

ls_status cli_write_translations(const ls_translation_set *set, const ls_langs *langs, const char *path)
{
    ls_str s = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 4);
    ls_jsonw_open(&w, '[');
    for (size_t i = 0; i < set->n; i++) {
        ls_jsonw_open(&w, '{');
        ls_jsonw_put_open(&w, "example", '{');
        ls_jsonw_put_str(&w, langs->src, set->item[i].src);
        ls_jsonw_put_str(&w, langs->tgt, set->item[i].tgt);
        ls_jsonw_close(&w);
        ls_jsonw_put_str(&w, "gen", set->item[i].gen);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    const ls_status st = s.failed ? ls_nomem(s.len, "the translations") : ls_fs_write(path, s.data, s.len);
    ls_str_fini(&s);
    return st;
}

ls_status cli_test_pairs(const char *data, char path[PATH_MAX])
{
    static const char *const name[] = {"test.jsonl", "val.jsonl"};
    if (!ls_fs_is_dir(data)) {
        snprintf(path, PATH_MAX, "%s", data);
        return ls_fs_exists(path) ? LS_OK : ls_fail(LS_E_IO, "%s: no such file or folder", data);
    }
    for (size_t i = 0; i < CLI_COUNT(name); i++) {
        LS_TRY(ls_path_in(path, data, "%s", name[i]));
        if (ls_fs_exists(path)) return LS_OK;
    }
    return ls_fail(LS_E_IO, "%s has neither test.jsonl nor val.jsonl; " LS_NO_PAIRS, data);
}
