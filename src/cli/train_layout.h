/* train_layout.h - the layout of a run on another number of workers, with the same bits.
 *
 * The micro-batch, the global batch and the tensor-parallel size stay as they are, so every layout computes the same bits (docs/ARCHITECTURE.md). The
 * pipeline stays, too, if the number of workers allows it; else the planner chooses the number of stages. */
#ifndef LS_CLI_TRAIN_LAYOUT_H
#define LS_CLI_TRAIN_LAYOUT_H

#include "config/resolve.h"

/* The configuration of o->n workers, if their layout is possible. */
typedef ls_status train_configure(void *ctx, const ls_train_options *o, ls_train_config *c);

typedef struct train_layout {
    train_configure *configure;
    void *ctx;
    ls_train_options o; /* of the run */
    int micro_batch, pp, tp;
    int64_t global_batch;
} train_layout;

/* Remembers what must stay as it is in the run of these options. */
ls_status train_layout_open(train_layout *l, const ls_train_options *o, train_configure *configure, void *ctx);
/* After LS_E_CONFIG of train_layout_open: remembers the same from options.json of the run that is resumed. False: the layout was typed, or the
 * options are not those of a run folder. */
bool train_layout_resume(train_layout *l, const ls_train_options *o);
/* The options of n workers. LS_E_CONFIG with the reason if there is no such layout. */
ls_status train_layout_fit(const train_layout *l, int n, ls_train_options *out);
/* The largest possible number of workers from `most` down to `least`; LS_E_COMM if there is none. */
ls_status train_layout_most(const train_layout *l, int most, int least, ls_train_options *out);
/* The same after a loss, for a run of `now` workers. False: there is none, as one line says; *out stays as it is and the run starts again with
 * `now` workers. */
bool train_layout_without(const train_layout *l, int now, int most, int least, ls_train_options *out);

#endif
