/* train_start.h - from the command line of `train` to its options: text that is prepared first, a run that is resumed, sizes that are chosen, a run folder.
 *
 *   parse     the command line; `--resume RUN` becomes --resume --checkpoint_path RUN
 *   source    --resume RUN: the options of the run; TEXT must exist
 *   data      a new run without a folder: runs/<date>-<name>; TEXT: prepared in the run folder
 *   choose    without --model: what config/auto.h chooses; --minutes: the steps that fit into the time
 *   again     the same with the speed of the first steps of the run, where the trial was wrong
 *
 * What is added comes before the typed words, which override it (a preset, config/options.h). */
#ifndef LS_CLI_TRAIN_START_H
#define LS_CLI_TRAIN_START_H

#include "cli/commands.h"
#include "config/auto.h"
#include "config/resolve.h"

typedef struct train_start {
    ls_train_options o; /* borrows from the lists below */
    ls_train_preset preset;
    ls_argv typed, added, all;
    char **moved;     /* what parsing reorders */
    double begin;     /* of the process        */
    const char *run;  /* of --resume RUN, else NULL */
    bool from_run;    /* `added` is from the folder of a run */
    bool made_folder; /* this command has created the run folder */
    /* the choice */
    ls_auto_facts facts;        /* vocab 0: of the steps alone */
    ls_train_options base;      /* without it; its texts are not read */
    int n_added, size, threads; /* words before it; of the ladder; fewer than there are cores, else 0 */
    ls_auto_check *check;       /* shared with the workers; NULL: no time was measured */
} train_start;

ls_status train_start_parse(train_start *s, int argc, char **argv);
ls_status train_start_source(train_start *s, const ls_start_env *e);
ls_status train_start_data(train_start *s, const ls_start_env *e);
/* *more: several workers instead of one, and the device is to be chosen again. */
ls_status train_start_workers(train_start *s, const ls_start_env *e, const ls_device_choice *d, bool *more);
ls_status train_start_choose(train_start *s, const ls_start_env *e, const ls_ds_config *ds, const ls_device_choice *d);
/* After a run whose check has found another speed: discards it and chooses again. */
ls_status train_start_again(train_start *s);
/* failed: removes a run folder that this command has created and in which no run began. */
void train_start_fini(train_start *s, bool failed);

/* The paths of the data and the facts of its tokenizer. */
ls_status train_start_facts(const ls_train_options *o, ls_train_paths *paths, ls_train_facts *facts);

/* A session for checkpoints of the run, as it computed: --compute and --tf32 of an earlier run may have been left out. */
ls_status train_end_session(ls_session_opts *how, const ls_device_choice *d, const char *precision,
                            const ls_train_options *o);
/* --summary: prints the loss curve, a sample and the next commands of a run that is complete. */
ls_status train_end_summary(const ls_train_options *o, const ls_device_choice *d);

#endif
