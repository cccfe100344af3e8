#include "parallel/tensor.h"

#include "parallel/strategy.h"

static ls_status sum(void *ctx, ls_view x, uint64_t *ticket)
{
    return ls_all_reduce(ctx, x, LS_SITE, ticket);
}

static ls_view part_of(const ls_comm *c, ls_view x)
{
    const int64_t n = x.n / ls_comm_size(c);
    return (ls_view){(char *)x.data + (size_t)(n * ls_comm_rank(c)) * ls_dtype_nbytes(x.dt), n, x.dt};
}

static ls_status sum_part(void *ctx, ls_view x, uint64_t *ticket)
{
    return ls_reduce_scatter(ctx, part_of(ctx, x), x, LS_SITE, ticket);
}

static ls_status share(void *ctx, ls_view x, uint64_t *ticket)
{
    return ls_all_gather(ctx, x, part_of(ctx, x), LS_SITE, ticket);
}

static ls_status wait(void *ctx, uint64_t ticket)
{
    return ls_wait(ctx, ticket);
}

static ls_status gather(void *ctx, double *x, int64_t n)
{
    const int64_t T = ls_comm_size(ctx), r = ls_comm_rank(ctx);
    return ls_all_gather(ctx, (ls_view){x, n * T, LS_F64}, (ls_view){x + n * r, n, LS_F64}, LS_SITE, NULL);
}

void ls_tensor_join(ls_model *m, ls_comm *comm)
{
    LS_ASSERT(ls_comm_size(comm) == m->shard.size && ls_comm_rank(comm) == m->shard.rank);
    m->tp = (ls_tp_ops){.ctx = comm,
                        .all_reduce = sum,
                        .reduce_scatter = sum_part,
                        .all_gather = share,
                        .wait = wait,
                        .gather = gather};
}

/* The sum of elements from … to-1 that no other shard has. */
static ls_status own_squares(const ls_model *m, const ls_unit *unit, const void *grad, int64_t first, int64_t from,
                             int64_t to, double *out, double *part)
{
    *out = 0;
    for (int k = 0; k < unit->n_tensor; k++) {
        const ls_tensor_range r = ls_tensor_within(&unit->tensor[k], from, to - from);
        if (unit->tensor[k].everywhere || r.from >= r.to) continue;
        LS_TRY(m->compute->ops->sumsq(m->compute, part, ls_at_wide(m->compute, grad, r.from - first), r.to - r.from,
                                      LS_NORM_BLOCK));
        LS_TRY(ls_compute_sync(m->compute));
        *out += *part;
    }
    return LS_OK;
}

ls_status ls_tensor_count_once(const ls_model *m, int u, const void *grad, int64_t first, int64_t n, double *out,
                               double *work)
{
    const ls_unit *unit = &m->unit[u];
    int64_t done = 0; /* blocks */
    for (int k = 0; m->shard.rank && k < unit->n_tensor; k++) {
        const ls_tensor_range r = ls_tensor_within(&unit->tensor[k], first, n);
        if (!unit->tensor[k].everywhere || r.from >= r.to) continue;
        const int64_t b0 = (r.from - first) / LS_NORM_BLOCK, b1 = (r.to - first + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
        for (int64_t b = b0 > done ? b0 : done; b < b1; b++) {
            const int64_t from = first + b * LS_NORM_BLOCK;
            LS_TRY(own_squares(m, unit, grad, first, from, from + LS_NORM_BLOCK, &out[b], work));
        }
        done = b1;
    }
    return LS_OK;
}

int64_t ls_tensor_pieces(const ls_model *m, const ls_piece *from, int n_from, bool save, ls_piece *to)
{
    int64_t n = 0;
    for (int k = 0; k < n_from; k++) {
        const ls_piece *p = &from[k];
        const ls_unit *u = &m->unit[p->unit];
        const int64_t end = p->first + p->n < u->n ? p->first + p->n : u->n;
        ls_piece run = {.n = 0};
        for (int64_t i = p->first, len, whole; i < end; i += len) {
            bool everywhere;
            len = ls_unit_run(u, i, &whole, &everywhere);
            if (len > end - i) len = end - i;
            if (save && everywhere && m->shard.rank) continue;
            void *data = ls_at_wide(m->compute, p->data, i - p->first);
            const bool goes_on = run.n && run.first + run.n == whole && ls_at_wide(m->compute, run.data, run.n) == data;
            if (goes_on) run.n += len;
            else {
                run = (ls_piece){p->what, p->unit, whole, len, data};
                n++;
            }
            if (to) to[n - 1] = run;
        }
    }
    return n;
}
