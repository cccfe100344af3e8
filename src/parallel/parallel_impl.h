/* parallel_impl.h - shared by the ZeRO strategies: sharding, gathering after an update, gradients in flight. */
#ifndef LS_PARALLEL_PARALLEL_IMPL_H
#define LS_PARALLEL_PARALLEL_IMPL_H

#include "parallel/strategy.h"

static inline bool parallel_cuts(const ls_strategy *s, unsigned part)
{
    return (s->ops->parts & part) != 0;
}

static inline bool parallel_present(const ls_strategy *s, int u)
{
    return s->unit[u].role != LS_ROLE_AWAY;
}

/* Elements of one worker's shard of n. */
static inline int64_t parallel_part(const ls_strategy *s, int64_t n)
{
    return n / ls_comm_size(s->comm);
}

/* n elements of gradients, or of parameters, starting at `at`. */
static inline ls_view parallel_grad(const ls_strategy *s, const void *x, int64_t at, int64_t n)
{
    return (ls_view){ls_at_wide(s->model->compute, x, at), n, s->model->compute->ops->wide};
}
static inline ls_view parallel_param(const ls_strategy *s, const void *x, int64_t at, int64_t n)
{
    return (ls_view){ls_at(s->model->compute, x, at), n, s->model->compute->ops->dtype};
}

/* Seals of sums (ls_strategy_seal): the elements of unit u that are this worker's after the reduction, in ls_gradtree_sum; read: all that it
 * has before the reduction. */
ls_status parallel_sum_kept(ls_strategy *s, int u);
ls_status parallel_sum_read(ls_strategy *s, int u);
ls_status parallel_local_read(ls_strategy *s, int u);
/* In an audited step whose seals have `waits`, before n elements of unit u at x are reduced: they are hashed, wait until every worker has come so far, and are hashed again. The
 * reduction itself then waits for nobody. Collective. */
ls_status parallel_meet(ls_strategy *s, int u, const void *x, int64_t n);

/* Posts the reduce_scatter of n elements at x, in buckets; this worker's shard goes to out. */
ls_status parallel_scatter(ls_strategy *s, void *x, int64_t n, void *out);
/* The same for the gradient of unit u, in place (zero1 and ddp with one state). */
ls_status parallel_scatter_post(ls_strategy *s, int u);

/* all_gather of a whole unit after this worker updated its shard (zero1, zero2), and the wait before its use. */
ls_status parallel_gather_post(ls_strategy *s, int u);
ls_status parallel_gather_wait(ls_strategy *s, int u, ls_pass pass);
ls_status parallel_arrived(ls_strategy *s, int u); /* waits for the pending gather of u, if there is one */

/* Gradients that are reduced as soon as they are ready (zero2, zero3): several are in flight, oldest first. */
int64_t parallel_flight_capacity(const ls_strategy *s);
ls_status parallel_flight_begin(ls_strategy *s, int u);
ls_status parallel_flight_ready(ls_strategy *s, int u);
ls_status parallel_flight_land_all(ls_strategy *s);

/* Whether parameters are copies of master weights: they have another type, or the weights are in host memory. */
static inline bool parallel_masters(const ls_strategy *s)
{
    return ls_compute_mixed(s->model->compute) || s->opts.offload;
}

/* The state in host memory (offload.c). n_largest: elements of the largest unit that this worker updates. */
void parallel_offload_plan(ls_strategy *s, int64_t n_largest, ls_plan *plan);
void parallel_offload_bind(ls_strategy *s, const ls_plan *plan);
void parallel_offload_close(ls_strategy *s);
ls_status parallel_offload_update(ls_strategy *s, ls_hyper_fn *hyper, void *ctx);
ls_status parallel_offload_lanes(ls_strategy *s); /* opens them */
/* A unit that the GPU updates in host memory: queued. */
ls_status parallel_offload_on_gpu(ls_strategy *s, const ls_own *o, const ls_adamw *h);
/* A unit that the CPU updates with the gradient g, which is in host memory; its parameters are copied to the device from slot k.
 * between: called after each slice. */
ls_status parallel_offload_on_cpu(ls_strategy *s, const ls_own *o, const ls_adamw *whole, const float *g, int k,
                                  ls_status (*between)(void *ctx), void *ctx);

/* During the backward pass (offload_early.c). ready: the sum of u's gradient is complete with `ticket`, or with what is queued on the
 * device. look: finds units whose sums are complete; wait: until all are. */
ls_status parallel_early_ready(ls_strategy *s, int u, ls_ticket ticket);
ls_status parallel_early_tied(ls_strategy *s); /* both gradients of a tied embedding are added, too */
ls_status parallel_early_look(ls_strategy *s, bool wait);
ls_status parallel_early_finish(ls_strategy *s); /* updates what is left; the update is complete then */
ls_status parallel_early_done(ls_strategy *s);   /* the end of a step, with or without an update */
void parallel_early_close(ls_strategy *s);
/* Gradients in flight: adds the part of one to the tree. */
ls_status parallel_flight_sum(ls_strategy *s, ls_flight *f);

/* zero3's window of gathered parameters. */
int64_t parallel_fetch_capacity(const ls_strategy *s);

#endif
