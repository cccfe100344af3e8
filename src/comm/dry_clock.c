/* dry_clock.c - dry communicators with a clock: requests of a lane one after the other, waits that move the clock.
 *
 *   now       ──post a──post b──────wait a──►─────wait b──►        the caller's time, moved by computing and by waits
 *   lane            |── a ──────────────|── b ──────|              seconds of each, from its post or the end of the one before
 *
 * A lane remembers the ends of its newest LANE_RING requests. As in a run, no more than that are in flight: a post beyond them waits. */
#include "comm/comm_impl.h"

#include "core/mem.h"

static double *end_of(const comm_lane *l, uint64_t seq)
{
    return &l->end[seq % LANE_RING];
}

static void wait_until(ls_dry_clock *k, double end)
{
    if (end <= k->now) return;
    k->waited += end - k->now;
    k->now = end;
}

void comm_clock_post(ls_comm *c, comm_lane *l, const comm_req *r)
{
    ls_dry_clock *k = c->told;
    const int64_t n = r->in.n > r->out.n ? r->in.n : r->out.n;
    const double sec = c->size > 1 ? k->seconds(k->ctx, c, r->kind, n, r->in.n ? r->in.dt : r->out.dt) : 0;
    ls_comm_stat *s = &c->stat[r->kind][r->label];
    if (r->seq >= LANE_RING) wait_until(k, *end_of(l, r->seq + 1)); /* the oldest one's, whose place b takes next */
    const double before = *end_of(l, r->seq - 1);
    *end_of(l, r->seq) = (before > k->now ? before : k->now) + sec;
    k->busy += sec;
    s->calls++;
    s->elements += n;
    s->bytes += comm_law_bytes(c, r);
    s->busy += sec;
}

/* Of requests older than the ring everyone knows that they have ended. */
void comm_clock_wait(ls_comm *c, comm_lane *l, uint64_t seq)
{
    if (seq + LANE_RING > l->posted) wait_until(c->told, *end_of(l, seq));
}

bool comm_clock_test(const ls_comm *c, const comm_lane *l, uint64_t seq)
{
    return seq + LANE_RING <= l->posted || *end_of(l, seq) <= c->told->now;
}

ls_status ls_comm_dry_clocked(int rank, int size, ls_dry_clock *clock, ls_comm **out)
{
    LS_TRY(ls_comm_dry(rank, size, out));
    double *end = ls_alloc(N_LANE * LANE_RING * sizeof *end);
    if (!end) {
        ls_comm_destroy(out);
        return ls_nomem(N_LANE * LANE_RING * sizeof *end, "a communicator's clock");
    }
    for (int i = 0; i < N_LANE; i++) (*out)->lane[i].end = end + (size_t)i * LANE_RING;
    (*out)->told = clock;
    return LS_OK;
}
