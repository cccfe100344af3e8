/* auto.h - the sizes of a run that the user left out, from the amount of text, the device and a time budget.
 *
 * There is a ladder of model sizes, each with a length, a batch and a learning rate that suit it. The size is the largest that the text and the time
 * can train; the steps are those that fit into the time at a measured speed, unless the text would be read too often. What is chosen becomes options
 * (`--num_layers=4` ...) in front of the command line: typed options override it, and from then on the run is a function of its options.
 *
 *   ls_auto_size (a trial measures) -> ls_auto_choose -> ls_auto_table, ls_auto_words
 * The first steps of the run show whether the trial was right. If not, the run ends and its steps are chosen again, once (ls_auto_check). */
#ifndef LS_CONFIG_AUTO_H
#define LS_CONFIG_AUTO_H

#include "config/options.h"
#include "core/argv.h"

#define LS_AUTO_SIZES  8
#define LS_AUTO_TRIALS 5  /* measurements of a step, at most */
#define LS_AUTO_EPOCHS 16 /* the text is read at most so often */

typedef struct ls_auto_facts {
    int64_t train_tokens, val_tokens; /* val 0: no validation              */
    int vocab;                        /* of the tokenizer of the data      */
    bool cuda;
    int dp, pp;            /* replicas and pipeline stages, at least 1  */
    double seconds;        /* of the whole run; not used if the user gave the steps or epochs  */
    int64_t steps, epochs; /* that the user gave, else 0 */
} ls_auto_facts;

/* The largest size of the ladder (0 is the smallest) that the text supports and that can be trained in the steps that the user gave, or else in the
 * time with `flops` operations per second. */
int ls_auto_size(const ls_auto_facts *f, double flops);
/* The size of the ladder that is nearest to the width that the user gave; -1: none was given. */
int ls_auto_size_given(const ls_train_options *o);
/* Steps of this time that fit into the time of a run. */
int64_t ls_auto_steps(double seconds, double step_seconds);
/* Times of a step, measured one after the other: whether the last one agrees with an earlier one (then the slower of the two is *step_seconds), or all have
 * been made (the median). A job that comes or goes while one is measured does not decide alone. */
bool ls_auto_settled(const double *measured, int n, double *step_seconds);
/* Operations of one training token of that size. */
double ls_auto_flops_per_token(const ls_auto_facts *f, int size);

typedef struct ls_auto_row {
    const char *name; /* of the option; NULL: a line without one */
    char value[24];
    char why[96]; /* "": not in the table */
    bool given;   /* the user gave it     */
} ls_auto_row;

typedef struct ls_auto_choice {
    ls_auto_row row[24];
    int n;
    int64_t layers, heads, width, length, micro, batch, steps; /* with what the user gave; batch in sequences */
    int64_t most;                                              /* steps that the text allows */
    double parameters;
} ls_auto_choice;

/* step_seconds: the measured time of a step; 0: not measured, and without f->steps or f->epochs the steps of the choice are not set. */
void ls_auto_choose(const ls_auto_facts *f, const ls_train_options *o, int size, double step_seconds,
                    ls_auto_choice *out);

/* The first steps of a run, compared with what its steps were chosen from. In memory that workers share; rank 0 writes. */
typedef struct ls_auto_check {
    int64_t step, steps, most; /* after which it is decided, 0: never; of the run; that the text allows */
    double expected, end;      /* seconds of a step; when the time is over, on the clock of ls_now */
    double half[2];            /* seconds of the two halves of the steps 2 to `step` */
    _Atomic double measured;   /* not 0: seconds of a step; the steps are to be chosen again */
} ls_auto_check;

/* Steps that the user gave are never checked, nor are runs that would lose more than a fifth of their steps. The check takes a second at least. */
ls_auto_check ls_auto_check_of(const ls_auto_facts *f, const ls_auto_choice *c, double step_seconds, double end);
/* After each step. Sets k->measured if both halves are slower, or both are faster, by a factor of 1.5, and other steps would be chosen. */
void ls_auto_watch(ls_auto_check *k, int64_t step, double seconds, double now);

/* The options that were chosen, as words. */
ls_status ls_auto_words(const ls_auto_choice *c, ls_argv *out);
/* A row per chosen option: name, value, reason, which is wrapped at words; columns 0: it is not. */
void ls_auto_table(const ls_auto_choice *c, int columns, ls_str *out);

/* A vocabulary for so many bytes of text: about the square root of them. */
int ls_auto_vocab(int64_t text_bytes);

#endif
