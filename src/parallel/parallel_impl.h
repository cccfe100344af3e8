/* parallel_impl.h - what the zero strategies share: cutting, gathering after an update, gradients on their way. */
#ifndef LS_PARALLEL_PARALLEL_IMPL_H
#define LS_PARALLEL_PARALLEL_IMPL_H

#include "parallel/strategy.h"

static inline bool parallel_cuts(const ls_strategy *s, unsigned part)
{
    return (s->ops->parts & part) != 0;
}

static inline bool parallel_here(const ls_strategy *s, int u)
{
    return s->role[u] == LS_ROLE_HERE;
}

static inline bool parallel_present(const ls_strategy *s, int u)
{
    return s->role[u] != LS_ROLE_AWAY;
}

/* Elements of one worker's part of n. */
static inline int64_t parallel_part(const ls_strategy *s, int64_t n)
{
    return n / ls_comm_size(s->comm);
}

/* n elements from `at` on of gradients, of parameters. */
static inline ls_view parallel_grad(const ls_strategy *s, const void *x, int64_t at, int64_t n)
{
    return (ls_view){ls_at_wide(s->model->compute, x, at), n, s->model->compute->ops->wide};
}
static inline ls_view parallel_param(const ls_strategy *s, const void *x, int64_t at, int64_t n)
{
    return (ls_view){ls_at(s->model->compute, x, at), n, s->model->compute->ops->dtype};
}

/* Posts the reduce_scatter of n elements at x, by buckets; this worker's part goes to out. */
ls_status parallel_scatter(ls_strategy *s, void *x, int64_t n, void *out);
/* The same of a unit's whole gradient: its own elements, then the tied ones; parts lie one behind the other at out. */
ls_status parallel_scatter_unit(ls_strategy *s, int u, void *grad, void *out);

/* all_gather of a unit that lies whole and of which this worker changed its part (zero1, zero2), and the wait before its use. */
ls_status parallel_gather_post(ls_strategy *s, int u);
ls_status parallel_gather_wait(ls_strategy *s, int u, ls_pass pass);

/* Gradients that are reduced as soon as they are ready (zero2, zero3): a window of them is in flight, oldest first. */
int64_t parallel_flight_capacity(const ls_strategy *s);
ls_status parallel_flight_begin(ls_strategy *s, int u);
ls_status parallel_flight_ready(ls_strategy *s, int u);
ls_status parallel_flight_land_all(ls_strategy *s);

/* zero3's window of gathered parameters. */
int64_t parallel_fetch_capacity(const ls_strategy *s);

#endif
