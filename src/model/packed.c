/* packed.c - the packed copies of matrices that passes of inference read (ls_packed). */
#include "model/model_impl.h"

#include "core/mem.h"
#include "core/minmax.h"

/* The matrices of a block that have a copy. */
static const int matrix_tensor[] = {BLOCK_QKV_W, BLOCK_PROJ_W, BLOCK_FC_W, BLOCK_OUT_W};
enum { N_MATRIX = sizeof matrix_tensor / sizeof *matrix_tensor };

static const char *const form_name[] = {[LS_PACK_BF16] = "bf16", [LS_PACK_INT8] = "int8"};

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

int64_t ls_model_matrix_elements(const ls_model *m)
{
    int64_t n = 0;
    for (int i = 0; i <= m->cfg.n_layer * N_MATRIX; i++) n += matrix_at(m, i).K * matrix_at(m, i).N;
    return n;
}

const void *model_packed_matrix(const ls_packed *d, int unit, int weight)
{
    int k = 0;
    while (matrix_tensor[k] != weight) k++;
    return d->q[(unit - 1) * N_MATRIX + k];
}

ls_status ls_packed_plan(ls_packed **out, const ls_model *m, ls_pack form, ls_plan *plan)
{
    const int n = m->cfg.n_layer * N_MATRIX + 1;
    const size_t nbytes = sizeof(ls_packed) + (size_t)n * sizeof(void *);
    ls_packed *d = ls_alloc(nbytes);
    if (!d) return ls_nomem(nbytes, "the table of packed weights");
    d->form = form;
    d->n = n;
    d->row = plan->n_row;
    for (int i = 0; i < n; i++) {
        const matrix x = matrix_at(m, i);
        const int64_t bytes = ls_packed_nbytes(form, x.K, x.N);
        d->nbytes += bytes;
        ls_plan_add(plan, LS_PART_WORK, bytes, LS_PLAN_ALWAYS, "unit %d %s matrix %d", 1 + i / N_MATRIX,
                    form_name[form], i % N_MATRIX);
    }
    *out = d;
    return LS_OK;
}

void ls_packed_bind(ls_packed *d, const ls_plan *plan)
{
    for (int i = 0; i < d->n; i++) d->q[i] = ls_plan_at(plan, d->row + i);
}

ls_status ls_packed_fill(ls_packed *d, const ls_model *m)
{
    for (int i = 0; i < d->n; i++) {
        const matrix x = matrix_at(m, i);
        const void *w = model_param(m, &m->unit[x.unit], x.tensor);
        LS_TRY(m->compute->ops->pack(m->compute, d->form, d->q[i], w, x.K, x.N, x.by_column));
    }
    return LS_OK;
}

ls_status ls_packed_send(ls_packed *d, const ls_compute *to, const ls_model *m)
{
    int64_t most = 0;
    for (int i = 0; i < d->n; i++) most = LS_MAX(most, ls_packed_nbytes(d->form, matrix_at(m, i).K, matrix_at(m, i).N));
    void *room = ls_alloc((size_t)most);
    ls_status st = room ? LS_OK : ls_nomem((size_t)most, "a packed matrix");
    for (int i = 0; st == LS_OK && i < d->n; i++) {
        const matrix x = matrix_at(m, i);
        const void *w = model_param(m, &m->unit[x.unit], x.tensor);
        st = m->compute->ops->pack(m->compute, d->form, room, w, x.K, x.N, x.by_column);
        if (st == LS_OK) st = ls_compute_write(to, d->q[i], room, (size_t)ls_packed_nbytes(d->form, x.K, x.N));
    }
    ls_free(room);
    return st;
}

void ls_packed_destroy(ls_packed **d)
{
    ls_free(*d);
    *d = NULL;
}
