/* pipe_zb.c - zero bubble: backward in two parts, so that weight gradients, which nobody waits for, fill the gaps (Qi et al., 2023).
 *
 *   0  F0 F1 F2 .. .. I0 W0 F3 I1 W1 I2 W2 I3 W3        3 stages, 4 micro-batches: I makes the gradient of the input,
 *   1  .. F0 F1 .. I0 F2 I1 W0 F3 I2 W1 I3 W2 W3        W that of the weights
 *   2  .. .. F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
 *
 * Two orders are made, and the one that takes less time under the given costs is kept (by hand if equal and live is p):
 *   by hand   "H1": 1f1b's forwards and input gradients; the weight gradients of rank r come r micro-batches later. At most p activations,
 *             as 1f1b. Where f >= i = w and m >= p its time is (p-1) f + m (f + i + w): the last rank cannot begin before (p-1) f and is
 *             never idle, so no order of these stages is shorter when the step waits for all ranks.
 *   greedy    the rank that can begin first takes an input gradient, else a forward while it holds fewer than `live` activations, else a
 *             weight gradient. With live = 2p-1 ("H2") and m >= 2p-1 no rank waits between its first and its last action: the bubble is
 *             zero where ranks need not wait for each other at the step.
 *
 *   bubble of the whole: (p-1)/(3m+p-1) with equal costs, a third of 1f1b's: below 2 % from m = 17p on */
#include "parallel/schedule.h"

#include "core/mem.h"
#include "parallel/simulate.h"

static void by_hand(ls_schedule *s)
{
    for (int r = 0; r < s->n_stage; r++) {
        const int n = s->n_micro, ahead = s->n_stage - 1 - r, warm = ahead < n ? ahead : n;
        int w = 0;
        for (int m = 0; m < warm; m++) ls_schedule_emit(s, r, LS_PIPE_FWD, m, 0);
        for (int m = 0; m < n; m++) {
            if (warm + m < n) ls_schedule_emit(s, r, LS_PIPE_FWD, warm + m, 0);
            ls_schedule_emit(s, r, LS_PIPE_BWD_IN, m, 0);
            if (m >= r) ls_schedule_emit(s, r, LS_PIPE_BWD_W, w++, 0);
        }
        while (w < n) ls_schedule_emit(s, r, LS_PIPE_BWD_W, w++, 0);
    }
}

/* ---- greedy ---- */

typedef struct rank_state {
    double now;
    int n_fwd, n_in, n_w; /* done so far                                   */
    double *fwd, *in;     /* [n_micro]: when each was done and has arrived */
} rank_state;

typedef struct choice {
    double start;
    ls_pipe_kind kind;
} choice;

/* What rank r would do next, and when; false when it can do nothing yet. Earlier first; at the same time input
 * gradients, then forwards, then weight gradients. */
static bool choose(const ls_schedule *s, const rank_state *state, int r, int live, double hop, choice *out)
{
    const rank_state *me = &state[r];
    const int last = s->n_stage - 1;
    bool any = false;
    if (me->n_in < me->n_fwd && (r == last || me->n_in < state[r + 1].n_in)) {
        const double there = r == last ? me->fwd[me->n_in] : state[r + 1].in[me->n_in] + hop;
        *out = (choice){there > me->now ? there : me->now, LS_PIPE_BWD_IN};
        any = true;
    }
    if (me->n_fwd < s->n_micro && me->n_fwd - me->n_w < live && (r == 0 || me->n_fwd < state[r - 1].n_fwd)) {
        const double there = r == 0 ? 0 : state[r - 1].fwd[me->n_fwd] + hop;
        const double start = there > me->now ? there : me->now;
        if (!any || start < out->start) *out = (choice){start, LS_PIPE_FWD};
        any = true;
    }
    if (me->n_w < me->n_in && (!any || me->now < out->start)) {
        *out = (choice){me->now, LS_PIPE_BWD_W};
        any = true;
    }
    return any;
}

static void act(ls_schedule *s, rank_state *me, int r, choice c, const ls_part_cost *cost)
{
    const bool fwd = c.kind == LS_PIPE_FWD, in = c.kind == LS_PIPE_BWD_IN;
    int *n = fwd ? &me->n_fwd : in ? &me->n_in : &me->n_w;
    me->now = c.start + (fwd ? cost->fwd : in ? cost->bwd_in : cost->bwd_w);
    if (fwd) me->fwd[*n] = me->now;
    if (in) me->in[*n] = me->now;
    ls_schedule_emit(s, r, c.kind, (*n)++, 0);
}

static ls_status greedy(ls_schedule *s, int live, const ls_pipe_costs *costs)
{
    const int p = s->n_stage, n = s->n_micro;
    rank_state *state = ls_alloc((size_t)p * sizeof *state);
    double *times = ls_alloc((size_t)p * (size_t)n * 2 * sizeof *times);
    if (!state || !times) {
        ls_free(state);
        ls_free(times);
        return ls_nomem((size_t)p * (size_t)n * 2 * sizeof *times, "a zero-bubble schedule");
    }
    for (int r = 0; r < p; r++)
        state[r] = (rank_state){.fwd = times + (size_t)2 * r * n, .in = times + (size_t)(2 * r + 1) * n};
    for (;;) {
        choice best = {0}, c;
        int who = -1;
        for (int r = 0; r < p; r++)
            if (choose(s, state, r, live, costs->latency + costs->transfer, &c) && (who < 0 || c.start < best.start)) {
                best = c;
                who = r;
            }
        if (who < 0) break; /* all is done: while a micro-batch is in flight, its furthest rank can go on */
        act(s, &state[who], who, best, ls_pipe_cost(costs, who));
    }
    ls_free(state);
    ls_free(times);
    return LS_OK;
}

/* ---- the better of the two ---- */

static ls_status emit(ls_schedule *s, bool hand, int live, const ls_pipe_costs *costs)
{
    if (!hand) return greedy(s, live, costs);
    by_hand(s);
    return LS_OK;
}

static ls_status time_of(const ls_schedule *like, bool hand, int live, const ls_pipe_costs *costs, double *makespan)
{
    ls_schedule *s = NULL;
    ls_sim sim = {0};
    LS_TRY(ls_schedule_empty(&s, like->name, like->n_stage, like->n_micro, 1));
    ls_status st = emit(s, hand, live, costs);
    if (st == LS_OK) st = ls_schedule_finish(s);
    if (st == LS_OK) st = ls_simulate(&sim, s, costs, 0);
    *makespan = sim.makespan;
    ls_sim_fini(&sim);
    ls_schedule_destroy(&s);
    return st;
}

ls_status ls_pipe_zb(ls_schedule *s, const ls_pipe_opts *o)
{
    const ls_pipe_costs *costs = o->costs ? o->costs : &ls_pipe_equal;
    const int live = o->live ? o->live : s->n_stage;
    bool hand = live >= s->n_stage || live >= s->n_micro;
    if (hand) {
        double by_hand_takes = 0, greedy_takes = 0;
        LS_TRY(time_of(s, true, live, costs, &by_hand_takes));
        LS_TRY(time_of(s, false, live, costs, &greedy_takes));
        hand = by_hand_takes < greedy_takes || (by_hand_takes <= greedy_takes && live <= s->n_stage);
    }
    return emit(s, hand, live, costs);
}
