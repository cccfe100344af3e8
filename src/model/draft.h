/* draft.h - int8 copies of the model's matrices, for speculative passes of generation.
 *
 * A pass with ls_micro.draft set reads these instead of the model's matrices (norms, biases and the embedding stay
 * as they are): a quarter of the bytes, and logits that are close but not equal. The output of the program never
 * comes from such a pass alone. */
#ifndef LS_MODEL_DRAFT_H
#define LS_MODEL_DRAFT_H

#include "model/model.h"

typedef struct ls_draft {
    int n;     /* matrices: four per block, then the classifier's */
    int row;   /* plan row of the first; the others follow        */
    void *q[]; /* their int8 copies                               */
} ls_draft;

/* Adds the rows to the plan; bind sets the addresses once the plan is allocated. */
ls_status ls_draft_plan(ls_draft **out, const ls_model *m, ls_plan *plan);
void ls_draft_bind(ls_draft *d, const ls_plan *plan);
/* Quantizes the current weights. */
ls_status ls_draft_fill(ls_draft *d, const ls_model *m);
void ls_draft_destroy(ls_draft **d);

#endif
