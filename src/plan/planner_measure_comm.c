/* planner_measure_comm.c - times collectives of several sizes, and messages. */
#include "plan/planner_measure_impl.h"

#include "core/clock.h"

ls_status planner_collective(ls_comm *c, ls_coll kind, planner_buffers *b, int64_t nbytes, ls_ticket *t)
{
    const int64_t W = ls_comm_size(c), r = ls_comm_rank(c), part = nbytes / 4 / W, n = part * W;
    if (b->at + nbytes > PLANNER_BUFFER) b->at = 0;
    char *x = b->whole + b->at;
    b->at += nbytes;
    const ls_view all = {x, n, LS_F32};
    switch (kind) {
    case LS_COLL_ALL_REDUCE: return ls_all_reduce(c, all, LS_SITE, t);
    case LS_COLL_REDUCE_SCATTER: return ls_reduce_scatter(c, (ls_view){b->part, part, LS_F32}, all, LS_SITE, t);
    case LS_COLL_ALL_GATHER: /* from elsewhere, as zero3's: a worker's own part is copied, too */
        return ls_all_gather(c, all, (ls_view){b->part, part, LS_F32}, LS_SITE, t);
    case LS_COLL_BROADCAST: return ls_broadcast(c, all, 0, LS_SITE, t);
    case LS_COLL_REDUCE: return ls_reduce(c, all, 0, LS_SITE, t);
    default: break;
    }
    if (r % 2 == 0) return r + 1 < W ? ls_send(c, all, (int)r + 1, LS_SITE, t) : LS_OK;
    return ls_recv(c, all, (int)r - 1, LS_SITE, t);
}

/* A message as in a pipeline, where the receiver has waited long enough to sleep. Seconds from the send to the end of the receive. */
static ls_status one_message(ls_comm *c, planner_buffers *b, int64_t nbytes, double *sec)
{
    const int W = ls_comm_size(c), r = ls_comm_rank(c);
    double mine = 0, all[64];
    LS_TRY(ls_barrier(c, LS_SITE));
    for (double begin = ls_now(); r % 2 == 0 && ls_now() - begin < 500e-6;) {}
    if (r % 2 == 0) mine = ls_now();
    LS_TRY(planner_collective(c, LS_COLL_SEND, b, nbytes, NULL));
    LS_TRY(ls_compute_sync(b->compute));
    if (r % 2) mine = ls_now();
    LS_TRY(ls_all_gather(c, (ls_view){all, W, LS_F64}, (ls_view){&mine, 1, LS_F64}, LS_SITE, NULL));
    *sec = 0;
    const int pairs = W / 2;
    for (int k = 0; k + 1 < W; k += 2) *sec += (all[k + 1] - all[k]) / pairs;
    return LS_OK;
}

ls_status planner_curve(ls_comm *c, ls_coll kind, planner_buffers *b, double seconds, bool fastest, ls_cluster_curve *v)
{
    static const int64_t size[] = {512, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20};
    enum { N = sizeof size / sizeof size[0] };
    *v = (ls_cluster_curve){.kind = kind, .workers = ls_comm_size(c)};
    for (int i = 0; i < N; i++) {
        double rep[PLANNER_REPS], begin = ls_now();
        int n = -1;
        bool enough = false;
        for (; n < PLANNER_REPS && !enough; n++) {
            double sec;
            LS_TRY(ls_barrier(c, LS_SITE));
            const double t = ls_now();
            if (kind == LS_COLL_SEND) {
                LS_TRY(one_message(c, b, size[i], &sec));
            } else {
                LS_TRY(planner_collective(c, kind, b, size[i], NULL));
                LS_TRY(ls_compute_sync(b->compute)); /* a GPU's queue waits, not this thread */
                sec = ls_now() - t;
            }
            if (n >= 0) rep[n] = sec;
            LS_TRY(planner_enough(c, n >= 4 && ls_now() - begin > seconds / N, &enough));
        }
        v->bytes[i] = (double)size[i];
        v->sec[i] = planner_mean(rep, n, fastest);
        LS_TRY(planner_over_workers(c, &v->sec[i], 1));
    }
    v->n = N;
    return LS_OK;
}
