/* generate_impl.h - the options of `lockstep generate`, and what its two ways (one prompt, a file of prompts) share. */
#ifndef LS_CLI_GENERATE_IMPL_H
#define LS_CLI_GENERATE_IMPL_H

#include "cli/commands.h"
#include "infer/stops.h"

typedef struct generate_options {
    const char *task, *checkpoint, *prompt, *prompt_file, *prompts;
    cli_device on;
    int64_t max_new, n_sample, top_k, seed, speculate, batch;
    double temperature, top_p;
    ls_opt_words stop;
    bool json, no_stop, stats, greedy;
} generate_options;

#define GENERATE_WORDS        "generate takes a checkpoint and a prompt; quote a prompt with blanks"
#define GENERATE_PROMPT_MOST  ((size_t)16 << 20) /* bytes of --prompt_file */
#define GENERATE_PROMPTS_MOST ((size_t)1 << 30)  /* of all lines of --prompts */

/* How sample number `sample` of a prompt is drawn. */
ls_sampling generate_sampling(const generate_options *o, int64_t sample);
ls_stops generate_stops(const generate_options *o);
/* Appends the ids of a prompt; an empty one starts after an end-of-text token, as documents do. Checks that the model has them. */
ls_status generate_encode(const ls_session *s, const char *prompt, size_t n, ls_ids *ids);

/* LS_E_FORMAT if one of the bytes, which begin with that line of the file, is NUL. */
ls_status generate_check_bytes(const char *option, const char *path, int64_t line, const char *bytes, size_t n);

double generate_rate(int64_t n, double seconds); /* 0 if no time was measured */
/* --stats: the weights in use and their bytes, and those of drafts; the precision of products. */
void generate_print_weights(const ls_session *s, const ls_session_opts *how);

/* --prompts: one text (or several) for each line of a file, in batches. how: checkpoint and device. */
ls_status generate_many(const generate_options *o, ls_session_opts *how);

#endif
