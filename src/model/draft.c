/* draft.c - the int8 copies of matrices that drafts read (ls_draft). */
#include "model/model_impl.h"

#include "core/mem.h"

/* The matrices of a block that have an int8 copy. */
static const int matrix_tensor[] = {BLOCK_QKV_W, BLOCK_PROJ_W, BLOCK_FC_W, BLOCK_OUT_W};
enum { N_MATRIX = sizeof matrix_tensor / sizeof *matrix_tensor };

typedef struct matrix {
    int unit, tensor;
    int64_t K, N;
    bool by_column;
} matrix;

static matrix matrix_at(const ls_model *m, int i)
{
    if (i == m->cfg.n_layer * N_MATRIX)
        return (matrix){m->cfg.tied ? 0 : m->n_unit - 1, m->cfg.tied ? EMBED_WTE : HEAD_W, m->cfg.n_embd,
                        m->cfg.vocab_size, true};
    const int u = 1 + i / N_MATRIX, t = matrix_tensor[i % N_MATRIX];
    return (matrix){u, t, m->unit[u].tensor[t].dim[0], m->unit[u].tensor[t].dim[1], false};
}

const void *model_draft_matrix(const ls_draft *d, int unit, int weight)
{
    int k = 0;
    while (matrix_tensor[k] != weight) k++;
    return d->q[(unit - 1) * N_MATRIX + k];
}

ls_status ls_draft_plan(ls_draft **out, const ls_model *m, ls_plan *plan)
{
    const int n = m->cfg.n_layer * N_MATRIX + 1;
    const size_t nbytes = sizeof(ls_draft) + (size_t)n * sizeof(void *);
    ls_draft *d = ls_alloc(nbytes);
    if (!d) return ls_nomem(nbytes, "the int8 weights' table");
    d->n = n;
    d->row = plan->n_row;
    for (int i = 0; i < n; i++) {
        const matrix x = matrix_at(m, i);
        ls_plan_add(plan, LS_PART_WORK, ls_q8_nbytes(x.K, x.N), LS_PLAN_ALWAYS, "unit %d int8 matrix %d",
                    1 + i / N_MATRIX, i % N_MATRIX);
    }
    *out = d;
    return LS_OK;
}

void ls_draft_bind(ls_draft *d, const ls_plan *plan)
{
    for (int i = 0; i < d->n; i++) d->q[i] = ls_plan_at(plan, d->row + i);
}

ls_status ls_draft_fill(ls_draft *d, const ls_model *m)
{
    for (int i = 0; i < d->n; i++) {
        const matrix x = matrix_at(m, i);
        const void *w = model_param(m, &m->unit[x.unit], x.tensor);
        LS_TRY(m->compute->ops->quantise(m->compute, d->q[i], w, x.K, x.N, x.by_column));
    }
    return LS_OK;
}

void ls_draft_destroy(ls_draft **d)
{
    ls_free(*d);
    *d = NULL;
}
