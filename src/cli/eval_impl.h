/* eval_impl.h - the options of `lockstep eval`, whose tasks are in files of their own. */
#ifndef LS_CLI_EVAL_IMPL_H
#define LS_CLI_EVAL_IMPL_H

#include "cli/commands.h"
#include "score/score.h"

typedef struct options {
    const char *task, *checkpoint, *data, *hyp, *ref;
    cli_device on;
    int64_t seq_length, micro_batch, max_steps;
    bool json;
} options;

/* Counts of both scores, and of sentences. */
typedef struct eval_scores {
    ls_bleu bleu;
    ls_chrf chrf;
    int64_t n;
} eval_scores;

ls_status eval_scores_add(eval_scores *s, ls_substr hyp, ls_substr ref);
/* As members of an open JSON object; as lines on stdout. */
void eval_scores_json(const eval_scores *s, ls_jsonw *w);
void eval_scores_print(const eval_scores *s);

ls_status eval_bleu(const options *o); /* --task bleu */

#endif
