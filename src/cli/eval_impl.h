/* eval_impl.h - the options of `lockstep eval`, whose tasks are in files of their own. */
#ifndef LS_CLI_EVAL_IMPL_H
#define LS_CLI_EVAL_IMPL_H

#include "cli/commands.h"
#include "cli/translation.h"

typedef struct options {
    const char *task, *checkpoint, *data, *hyp, *out;
    ls_opt_words ref;
    cli_device on;
    cli_search search;
    int64_t seq_length, micro_batch, max_steps, limit;
    bool json;
} options;

/* One line each for weights that are copies, and for a precision that is not fp32. */
void eval_print_session(const ls_session *s, const ls_session_opts *how);
ls_status eval_bleu(const options *o);      /* --task bleu      */
ls_status eval_translate(const options *o); /* --task translate */

#endif
