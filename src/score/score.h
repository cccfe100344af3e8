/* score.h - BLEU and chrF of a corpus, with one or more references per sentence, as sacrebleu computes them with its defaults.
 *
 *   BLEU   13a tokens, case kept, orders 1-4, clipped counts summed over the corpus; the j-th order without a match gets the precision
 *          1 / (2^j total) ("exp" smoothing); 0 if nothing matches or an order has no n-gram (no effective order)
 *   chrF   characters without whitespace, orders 1-6, beta 2; orders that one side does not have are left out of the average
 *
 * Several references: of BLEU, an n-gram may match as often as the reference that has it most often, and the length is that of the closest
 * reference, the shorter of two; of chrF, the reference with the best score of the sentence counts.
 *
 * Texts are UTF-8. A byte that begins no character counts as one character. Zero-initialise a count, add each sentence, then ask for the
 * result. */
#ifndef LS_SCORE_SCORE_H
#define LS_SCORE_SCORE_H

#include "core/err.h"
#include "core/str.h"

#include <stddef.h>
#include <stdint.h>

#define LS_BLEU_ORDER 4
#define LS_CHRF_ORDER 6
/* The version is that of the release whose results these are; the definitions are the same in all releases since 2.0. */
#define LS_BLEU_DEFINITION "case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
#define LS_CHRF_DEFINITION "case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"
#define LS_BLEU_SIGNATURE  "nrefs:1|" LS_BLEU_DEFINITION
#define LS_CHRF_SIGNATURE  "nrefs:1|" LS_CHRF_DEFINITION

typedef struct ls_bleu {
    int64_t hyp_len, ref_len; /* tokens */
    int64_t match[LS_BLEU_ORDER], total[LS_BLEU_ORDER];
} ls_bleu;

typedef struct ls_bleu_result {
    double score, brevity; /* score: 0 to 100 */
    double precision[LS_BLEU_ORDER];
} ls_bleu_result;

typedef struct ls_chrf {
    int64_t hyp[LS_CHRF_ORDER], ref[LS_CHRF_ORDER], match[LS_CHRF_ORDER];
} ls_chrf;

/* n references, at least one. LS_E_NOMEM. */
ls_status ls_bleu_add_refs(ls_bleu *b, ls_substr hyp, const ls_substr *ref, int n);
ls_status ls_chrf_add_refs(ls_chrf *c, ls_substr hyp, const ls_substr *ref, int n);

ls_status ls_bleu_add(ls_bleu *b, ls_substr hyp, ls_substr ref);
ls_bleu_result ls_bleu_of(const ls_bleu *b);

ls_status ls_chrf_add(ls_chrf *c, ls_substr hyp, ls_substr ref);
double ls_chrf_of(const ls_chrf *c); /* 0 to 100 */

/* The 13a tokens of a line, separated by single blanks, replace *out. */
void ls_tokenize_13a(ls_substr line, ls_str *out);

#endif
