/* score_tool.c - BLEU and chrF of many small corpora, for a comparison with sacrebleu.
 *
 *   oracle_score_tool FILE
 *
 * Each line of FILE is a JSON object {"hyp": [text, ...], "ref": [text, ...]}. Prints one line for each: the BLEU score, its four precisions
 * and brevity penalty, and the chrF score, then the two signatures. */
#include "core/json.h"
#include "core/mem.h"
#include "data/lines.h"
#include "score/score.h"

#include <stdio.h>

static ls_substr text_at(const json_t *list, size_t i)
{
    const json_t *x = json_array_get(list, i);
    return (ls_substr){json_string_value(x), json_string_length(x)};
}

static ls_status score_set(const json_t *hyp, const json_t *ref)
{
    ls_bleu bleu = {0};
    ls_chrf chrf = {0};
    for (size_t i = 0; i < json_array_size(hyp); i++) {
        LS_TRY(ls_bleu_add(&bleu, text_at(hyp, i), text_at(ref, i)));
        LS_TRY(ls_chrf_add(&chrf, text_at(hyp, i), text_at(ref, i)));
    }
    const ls_bleu_result b = ls_bleu_of(&bleu);
    printf("%.17g %.17g %.17g %.17g %.17g %.17g %.17g\n", b.score, b.precision[0], b.precision[1], b.precision[2],
           b.precision[3], b.brevity, ls_chrf_of(&chrf));
    return LS_OK;
}

static ls_status run(const char *path)
{
    ls_lines lines = {0};
    ls_status st = ls_lines_open(&lines, path);
    for (bool end = false; st == LS_OK;) {
        ls_substr t;
        json_t *set = NULL;
        st = ls_lines_next(&lines, &t, &end);
        if (end) break;
        if (st == LS_OK) st = ls_json_parse(t.data, t.n, path, &set);
        if (st == LS_OK) st = score_set(json_object_get(set, "hyp"), json_object_get(set, "ref"));
        json_decref(set);
    }
    ls_lines_close(&lines);
    puts(LS_BLEU_SIGNATURE "\n" LS_CHRF_SIGNATURE);
    return st;
}

int main(int argc, char **argv)
{
    const ls_status st = argc == 2 ? run(argv[1]) : ls_fail(LS_E_ARG, "usage: %s FILE", argv[0]);
    if (st != LS_OK) fprintf(stderr, "%s: %s\n", ls_status_words(st), ls_err_words());
    return ls_status_exit_code(st);
}
