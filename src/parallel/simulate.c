/* simulate.c - walks each list as far as it goes; times follow from what each action waits for, so the order of the ranks does not matter. */
#include "parallel/simulate.h"

#include "core/mem.h"
#include "core/stat.h"
#include "core/str.h"
#include "parallel/schedule_text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages of one (source, direction); the destination follows from them. */
typedef struct channel {
    double *arrive, *taken; /* [n_cell], by number of the message */
    int n_sent, n_taken;
    double free; /* when the link can carry the next one */
} channel;

typedef struct world {
    const ls_schedule *s;
    const ls_pipe_costs *costs;
    int mailbox;
    channel *channel; /* [2 * n_stage]: activations, gradients */
    int *at;          /* [n_stage]: the next action            */
    double *now;
} world;

static double duration(const world *w, int r, const ls_action *a)
{
    if (!ls_pipe_computes(a->kind))
        return a->kind == LS_PIPE_REDUCE ? w->costs->reduce : a->kind == LS_PIPE_STEP ? w->costs->step : 0;
    if (w->costs->action) return w->costs->action[r][a - w->s->rank[r].action];
    const ls_part_cost *c = ls_pipe_cost(w->costs, ls_pipe_part(w->s, r, a->chunk));
    return (a->kind == LS_PIPE_FWD ? c->fwd : 0) +
           (a->kind == LS_PIPE_BWD || a->kind == LS_PIPE_BWD_IN ? c->bwd_in : 0) +
           (a->kind == LS_PIPE_BWD || a->kind == LS_PIPE_BWD_W ? c->bwd_w : 0);
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Carries out rank r's next action; false when it has to wait for another rank. */
static bool carry_out(world *w, int r, const ls_action *a, ls_span *span)
{
    span->begin = w->now[r];
    if (ls_pipe_sends(a->kind)) {
        channel *c = &w->channel[2 * r + (a->kind == LS_PIPE_SEND_GRAD)];
        const int wait_for = c->n_sent - w->mailbox;
        if (w->mailbox && wait_for >= 0) {
            if (wait_for >= c->n_taken) return false;
            w->now[r] = later(w->now[r], c->taken[wait_for]);
        }
        c->free = later(w->now[r], c->free) + w->costs->transfer;
        c->arrive[c->n_sent++] = c->free + w->costs->latency;
    } else if (ls_pipe_receives(a->kind)) {
        channel *c = &w->channel[2 * a->peer + (a->kind == LS_PIPE_RECV_GRAD)];
        if (c->n_taken >= c->n_sent) return false;
        w->now[r] = later(w->now[r], c->arrive[c->n_taken]);
        c->taken[c->n_taken++] = w->now[r];
    } else {
        w->now[r] += duration(w, r, a);
    }
    span->end = w->now[r];
    return true;
}

ls_status ls_sim_deadlock(const ls_schedule *s, const int *at, int mailbox, const bool *buffer)
{
    ls_str t = {0};
    int n = 0;
    for (int r = 0; r < s->n_stage && n < 6; r++) {
        if (at[r] == s->rank[r].n_action) continue;
        const ls_action *a = &s->rank[r].action[at[r]];
        char where[LS_WHERE];
        ls_str_addf(&t, "%s%s waits ", n++ ? "; " : "", ls_action_where(s, r, at[r], where));
        if (buffer && buffer[r])
            ls_str_addf(&t, "until rank %d receives the gradient that was sent from the same buffer",
                        (r + s->n_stage - 1) % s->n_stage);
        else ls_str_addf(&t, "%s rank %d", ls_pipe_sends(a->kind) ? "for a free slot at" : "for", a->peer);
    }
    char places[48] = "";
    if (mailbox) snprintf(places, sizeof places, " with mailboxes of %d", mailbox);
    ls_status st = ls_fail(LS_E_CONFIG, "schedule %s: deadlock%s: %s", s->name, places, t.data ? t.data : "?");
    ls_str_fini(&t);
    return st;
}

static ls_status walk(world *w, ls_span *span)
{
    const ls_schedule *s = w->s;
    for (bool moved = true; moved;) {
        moved = false;
        ls_span *of_rank = span;
        for (int r = 0; r < s->n_stage; of_rank += s->rank[r].n_action, r++) {
            const ls_rank_list *l = &s->rank[r];
            for (; w->at[r] < l->n_action; w->at[r]++) {
                ls_span *sp = &of_rank[w->at[r]];
                if (!carry_out(w, r, &l->action[w->at[r]], sp)) break;
                sp->rank = r;
                sp->action = w->at[r];
                moved = true;
            }
        }
    }
    for (int r = 0; r < s->n_stage; r++)
        if (w->at[r] < s->rank[r].n_action) return ls_sim_deadlock(s, w->at, w->mailbox, NULL);
    return LS_OK;
}

/* ---- what the times say ---- */

static double peak_of(const world *w, int r)
{
    const ls_schedule *s = w->s;
    double held = 0, peak = 0;
    for (int i = 0; i < s->rank[r].n_action; i++) {
        const ls_action *a = &s->rank[r].action[i];
        if (a->chunk < 0) continue;
        const double act = ls_pipe_cost(w->costs, ls_pipe_part(s, r, a->chunk))->act;
        if (a->kind == LS_PIPE_RECV_ACT || (a->kind == LS_PIPE_FWD && ls_pipe_prev(s, r, a->chunk) < 0)) held += act;
        peak = later(peak, held);
        if (a->kind == LS_PIPE_BWD || a->kind == LS_PIPE_BWD_W) held -= act;
    }
    return peak;
}

static void sum_up(const world *w, ls_sim *r)
{
    const ls_schedule *s = w->s;
    double busy = 0, spans = 0;
    const ls_span *sp = r->span;
    for (int k = 0; k < s->n_stage; k++) {
        ls_sim_rank *me = &r->rank[k];
        bool any = false;
        for (int i = 0; i < s->rank[k].n_action; i++, sp++) {
            r->makespan = later(r->makespan, sp->end);
            if (!ls_pipe_computes(s->rank[k].action[i].kind)) continue;
            if (!any) me->first = sp->begin;
            any = true;
            me->last = sp->end;
            me->busy += sp->end - sp->begin;
        }
        me->peak = peak_of(w, k);
        busy += me->busy;
        spans += me->last - me->first;
    }
    r->bubble = r->makespan > 0 ? 1 - busy / (s->n_stage * r->makespan) : 0;
    r->inner = spans > 0 ? 1 - busy / spans : 0;
}

ls_status ls_simulate(ls_sim *out, const ls_schedule *s, const ls_pipe_costs *costs, int mailbox)
{
    world w = {.s = s, .costs = costs ? costs : &ls_pipe_equal, .mailbox = mailbox};
    const size_t p = (size_t)s->n_stage, n_cell = (size_t)s->n_micro * (size_t)s->n_chunk;
    ls_sim r = {0};
    for (int k = 0; k < s->n_stage; k++) r.n_span += s->rank[k].n_action;
    double *times = ls_alloc((4 * p * n_cell + p) * sizeof *times);
    w.channel = ls_alloc(2 * p * sizeof *w.channel);
    w.at = ls_alloc(p * sizeof *w.at);
    r.span = ls_alloc((size_t)r.n_span * sizeof *r.span);
    r.rank = ls_alloc(p * sizeof *r.rank);
    ls_status st = LS_OK;
    if (!times || !w.channel || !w.at || !r.span || !r.rank) {
        st = ls_nomem((4 * p * n_cell + p) * sizeof *times, "the simulation of a schedule");
        goto done;
    }
    for (size_t k = 0; k < 2 * p; k++)
        w.channel[k] = (channel){.arrive = times + 2 * k * n_cell, .taken = times + (2 * k + 1) * n_cell};
    w.now = times + 4 * p * n_cell;
    LS_TRY_GOTO(st, done, walk(&w, r.span));
    sum_up(&w, &r);
    *out = r;
    r = (ls_sim){0};
done:
    ls_sim_fini(&r);
    ls_free(times);
    ls_free(w.channel);
    ls_free(w.at);
    return st;
}

void ls_sim_fini(ls_sim *r)
{
    ls_free(r->rank);
    ls_free(r->span);
    *r = (ls_sim){0};
}

/* Between two changes `at work` ranks compute, and each of them sees the others wait. */
ls_status ls_sim_waiting(const ls_sim *r, const ls_schedule *s, double *share)
{
    double *begin = ls_alloc(2 * (size_t)r->n_span * sizeof *begin), *end = begin + r->n_span;
    double work = 0, seen = 0, now = 0;
    int n = 0, at_work = 0;
    if (!begin) return ls_nomem(2 * (size_t)r->n_span * sizeof *begin, "the simulation of a schedule");
    for (int i = 0; i < r->n_span; i++) {
        const ls_span *sp = &r->span[i];
        if (!ls_pipe_computes(s->rank[sp->rank].action[sp->action].kind)) continue;
        begin[n] = sp->begin;
        end[n++] = sp->end;
    }
    qsort(begin, (size_t)n, sizeof *begin, ls_by_value);
    qsort(end, (size_t)n, sizeof *end, ls_by_value);
    for (int i = 0, k = 0; k < n;) {
        const bool starts = i < n && begin[i] <= end[k];
        const double next = starts ? begin[i] : end[k];
        work += at_work * (next - now);
        seen += at_work * (s->n_stage - at_work) * (next - now);
        at_work += starts ? 1 : -1;
        now = next;
        if (starts) i++;
        else k++;
    }
    *share = work > 0 ? seen / work / s->n_stage : 0;
    ls_free(begin);
    return LS_OK;
}
