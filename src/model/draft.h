/* draft.h - the model's matrices once more in int8, for passes that guess ahead.
 *
 * A pass with ls_micro.draft set reads these instead of the model's own (norms, biases and the embedding stay as they are): a
 * quarter of the bytes, and logits that are close, not equal. Nothing that leaves the program may come from such a pass alone. */
#ifndef LS_MODEL_DRAFT_H
#define LS_MODEL_DRAFT_H

#include "model/model.h"

typedef struct ls_draft {
    int n;    /* matrices: four a block, then the classifier's */
    int *row; /* their plan rows                               */
    void **q; /* their int8 copies                             */
} ls_draft;

/* Adds the rows to the plan; bind takes the addresses once the plan is allocated. */
ls_status ls_draft_plan(ls_draft **out, const ls_model *m, ls_plan *plan);
void ls_draft_bind(ls_draft *d, const ls_plan *plan);
/* Copies the weights as they are now. */
ls_status ls_draft_fill(ls_draft *d, const ls_model *m);
void ls_draft_destroy(ls_draft **d);

#endif
