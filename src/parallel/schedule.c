/* schedule.c - what all schedules share: the table of them, messages by one rule, buffers by number. */
#include "parallel/schedule.h"

#include "core/mem.h"
#include "core/str.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    ls_status (*emit)(ls_schedule *s, const ls_pipe_opts *o);
} builtin[] = {{"naive", ls_pipe_naive},
               {"gpipe", ls_pipe_gpipe},
               {"1f1b", ls_pipe_1f1b},
               {"interleaved", ls_pipe_interleaved},
               {"zb", ls_pipe_zb}};
#define N_BUILTIN (sizeof builtin / sizeof builtin[0])

const char ls_schedule_names[] = "naive, gpipe, 1f1b, interleaved, zb";
const ls_pipe_costs ls_pipe_equal = {.each = {1, 1, 1, 1}};

const ls_pipe_name ls_pipe_names[LS_N_PIPE + 1] = {
#define X(kind, token, words) {token, words},
    LS_PIPE_LIST(X)
#undef X
        {"?", "?"}};

int ls_pipe_next(const ls_schedule *s, int rank, int chunk)
{
    const int g = ls_pipe_part(s, rank, chunk) + 1;
    return g < s->n_stage * s->n_chunk ? g % s->n_stage : -1;
}

int ls_pipe_prev(const ls_schedule *s, int rank, int chunk)
{
    const int g = ls_pipe_part(s, rank, chunk) - 1;
    return g >= 0 ? g % s->n_stage : -1;
}

/* ---- making and ending ---- */

ls_status ls_schedule_empty(ls_schedule **out, const char *name, int n_stage, int n_micro, int n_chunk)
{
    if (n_stage < 1 || n_stage > LS_PIPE_MAX_STAGE || n_chunk < 1 || n_chunk > LS_PIPE_MAX_CHUNK || n_micro < 1)
        return ls_fail(
            LS_E_CONFIG,
            "a pipeline of %d stages x %d chunks with %d micro-batches is not supported; use 1 to %d stages, 1 to %d chunks and 1 or more micro-batches",
            n_stage, n_chunk, n_micro, LS_PIPE_MAX_STAGE, LS_PIPE_MAX_CHUNK);
    const int64_t cells = (int64_t)n_stage * n_chunk * n_micro;
    if (cells > LS_PIPE_MAX_CELL)
        return ls_fail(LS_E_CONFIG, "%d stages x %d chunks x %d micro-batches = %lld is too large; the limit is %d",
                       n_stage, n_chunk, n_micro, (long long)cells, LS_PIPE_MAX_CELL);
    if (n_stage == 1 && n_chunk > 1)
        return ls_fail(LS_E_CONFIG, "%d chunks on one stage: interleaving needs pp=2 or more", n_chunk);
    ls_schedule *s = ls_alloc(sizeof *s);
    if (!s) return ls_nomem(sizeof *s, "a schedule");
    *s = (ls_schedule){.n_stage = n_stage, .n_micro = n_micro, .n_chunk = n_chunk};
    snprintf(s->name, sizeof s->name, "%s", name);
    s->rank = ls_alloc((size_t)n_stage * sizeof *s->rank);
    s->failed = !s->rank;
    for (int r = 0; !s->failed && r < n_stage; r++) {
        s->rank[r].peak = ls_alloc(2 * (size_t)n_chunk * sizeof(int));
        s->failed = !s->rank[r].peak;
        s->rank[r].grad_peak = s->failed ? NULL : s->rank[r].peak + n_chunk;
    }
    if (s->failed) {
        ls_schedule_destroy(&s);
        return ls_nomem((size_t)n_stage * sizeof(ls_rank_list), "a schedule");
    }
    *out = s;
    return LS_OK;
}

void ls_schedule_destroy(ls_schedule **sp)
{
    ls_schedule *s = *sp;
    if (!s) return;
    for (int r = 0; s->rank && r < s->n_stage; r++) {
        ls_free(s->rank[r].action);
        ls_free(s->rank[r].peak); /* and grad_peak */
    }
    ls_free(s->rank);
    ls_free(s);
    *sp = NULL;
}

void ls_schedule_put(ls_schedule *s, int rank, ls_action a)
{
    ls_rank_list *l = &s->rank[rank];
    if (!s->failed)
        s->failed = ls_reserve(&l->action, &l->cap, (size_t)l->n_action + 1, sizeof a, "a schedule") != LS_OK;
    if (!s->failed) l->action[l->n_action++] = a;
}

void ls_schedule_emit(ls_schedule *s, int rank, ls_pipe_kind kind, int micro, int chunk)
{
    ls_schedule_put(s, rank, (ls_action){kind, micro, chunk, .peer = -1, .slot = -1, .grad_slot = -1});
}

static size_t find_builtin(const char *name)
{
    size_t i = 0;
    while (i < N_BUILTIN && strcmp(name, builtin[i].name)) i++;
    return i;
}

bool ls_schedule_is_builtin(const char *name)
{
    return find_builtin(name) < N_BUILTIN;
}

ls_status ls_schedule_unknown(const char *name)
{
    const char *names[N_BUILTIN];
    for (size_t i = 0; i < N_BUILTIN; i++) names[i] = builtin[i].name;
    const char *near = ls_nearest_word(name, names, N_BUILTIN);
    return ls_fail(LS_E_ARG, "--schedule %s: neither a schedule (%s) nor a file%s%s%s", name, ls_schedule_names,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

ls_status ls_schedule_create(ls_schedule **out, const char *name, const ls_pipe_opts *o)
{
    const size_t which = find_builtin(name);
    if (which == N_BUILTIN) return ls_schedule_unknown(name);
    ls_status (*const emit)(ls_schedule *, const ls_pipe_opts *) = builtin[which].emit;
    if (emit != ls_pipe_interleaved && o->n_chunk > 1)
        return ls_fail(LS_E_CONFIG, "%s supports one chunk per stage (got %d); use interleaved", name, o->n_chunk);
    if (emit == ls_pipe_interleaved && o->n_chunk < 2)
        return ls_fail(LS_E_CONFIG, "interleaved needs 2 or more chunks per stage; for one chunk use 1f1b");
    if (o->live < 0 || (o->live && emit != ls_pipe_zb))
        return ls_fail(LS_E_CONFIG, "--live %d: only the schedule zb takes this limit, and it must be 1 or more",
                       o->live);
    ls_schedule *s = NULL;
    LS_TRY(ls_schedule_empty(&s, name, o->n_stage, o->n_micro, o->n_chunk));
    ls_status st = emit(s, o);
    if (st == LS_OK) st = ls_schedule_finish(s);
    if (st == LS_OK) *out = s;
    else ls_schedule_destroy(&s);
    return st;
}

/* ---- messages ---- */

static void put_message(ls_schedule *s, int rank, ls_pipe_kind kind, const ls_action *of, int peer)
{
    if (peer >= 0) ls_schedule_put(s, rank, (ls_action){kind, of->micro, of->chunk, peer, -1, -1, .line = of->line});
}

/* Rank r's list again, with messages around its computing actions. */
static ls_status surround(ls_schedule *s, int r)
{
    ls_rank_list *l = &s->rank[r];
    ls_action *bare = l->action;
    const int n_bare = l->n_action;
    int *left = ls_alloc((size_t)s->n_chunk * sizeof *left); /* weight gradients to come */
    if (!left) return ls_nomem((size_t)s->n_chunk * sizeof *left, "a schedule");
    for (int c = 0; c < s->n_chunk; c++) left[c] = s->n_micro;
    l->action = NULL;
    l->n_action = 0;
    l->cap = 0;
    for (int i = 0; i < n_bare; i++) {
        const ls_action *a = &bare[i];
        const int next = ls_pipe_next(s, r, a->chunk), prev = ls_pipe_prev(s, r, a->chunk);
        const bool back = a->kind == LS_PIPE_BWD || a->kind == LS_PIPE_BWD_IN;
        if (a->kind == LS_PIPE_FWD) put_message(s, r, LS_PIPE_RECV_ACT, a, prev);
        if (back) put_message(s, r, LS_PIPE_RECV_GRAD, a, next);
        ls_schedule_put(s, r, *a);
        if (a->kind == LS_PIPE_FWD) put_message(s, r, LS_PIPE_SEND_ACT, a, next);
        if (back) put_message(s, r, LS_PIPE_SEND_GRAD, a, prev);
        if ((a->kind == LS_PIPE_BWD || a->kind == LS_PIPE_BWD_W) && --left[a->chunk] == 0)
            ls_schedule_emit(s, r, LS_PIPE_REDUCE, -1, a->chunk);
    }
    ls_schedule_emit(s, r, LS_PIPE_STEP, -1, -1);
    ls_free(left);
    ls_free(bare);
    return s->failed ? ls_nomem((size_t)n_bare * 3 * sizeof *bare, "a schedule") : LS_OK;
}

ls_status ls_schedule_finish(ls_schedule *s)
{
    s->added = true;
    for (int r = 0; r < s->n_stage; r++) LS_TRY(surround(s, r));
    return ls_schedule_slots(s, false);
}

/* ---- buffers ---- */

/* One kind of buffer on one rank: in use by (micro, chunk) from the first to the last action that touches it, numbered lowest free first,
 * so that no more numbers are used than are in use at once. */
typedef struct pool {
    int *last;   /* [n_chunk * n_micro]: action number        */
    int *number; /* [n_chunk * n_micro]: -1 before first used */
    unsigned char *used;
} pool;

static bool touches(ls_pipe_kind k, bool grads)
{
    if (grads) return k < LS_PIPE_REDUCE && k != LS_PIPE_FWD && k != LS_PIPE_RECV_ACT && k != LS_PIPE_SEND_ACT;
    return k < LS_PIPE_REDUCE && k != LS_PIPE_RECV_GRAD && k != LS_PIPE_SEND_GRAD;
}

/* apart: one that is sent keeps its number. Returns the largest number in use at once over all chunks. */
static int number_pool(const ls_schedule *s, ls_rank_list *l, pool *p, bool grads, bool apart)
{
    const int n = s->n_chunk * s->n_micro;
    int *peak = grads ? l->grad_peak : l->peak, most = 0, alive = 0;
    for (int k = 0; k < n; k++) p->number[k] = -1;
    memset(p->used, 0, (size_t)n);
    memset(peak, 0, (size_t)s->n_chunk * sizeof *peak);
    for (int i = 0; i < l->n_action; i++)
        if (touches(l->action[i].kind, grads)) p->last[l->action[i].chunk * s->n_micro + l->action[i].micro] = i;
    for (int i = 0; i < l->n_action; i++) {
        ls_action *a = &l->action[i];
        int *slot = grads ? &a->grad_slot : &a->slot;
        *slot = -1;
        a->frees &= grads ? ~LS_FREES_GRAD : ~LS_FREES_SLOT;
        if (!touches(a->kind, grads)) continue;
        const int k = a->chunk * s->n_micro + a->micro;
        unsigned char *used = p->used + (size_t)a->chunk * s->n_micro;
        if (p->number[k] < 0) {
            int free_one = 0;
            while (used[free_one]) free_one++; /* at most n_micro are alive */
            used[free_one] = 1;
            p->number[k] = free_one;
            if (free_one >= peak[a->chunk]) peak[a->chunk] = free_one + 1;
            if (++alive > most) most = alive;
        }
        *slot = p->number[k];
        if (p->last[k] == i) {
            a->frees |= grads ? LS_FREES_GRAD : LS_FREES_SLOT;
            used[p->number[k]] = apart && ls_pipe_prev(s, (int)(l - s->rank), a->chunk) >= 0;
            alive--;
        }
    }
    return most;
}

ls_status ls_schedule_slots(ls_schedule *s, bool apart)
{
    const size_t n = (size_t)s->n_chunk * (size_t)s->n_micro, nbytes = n * (2 * sizeof(int) + 1);
    int *table = s->failed ? NULL : ls_alloc(nbytes);
    if (!table) return ls_nomem(nbytes, "the buffers of a schedule");
    pool p = {table, table + n, (unsigned char *)(table + 2 * n)};
    for (int r = 0; r < s->n_stage; r++) {
        s->rank[r].peak_all = number_pool(s, &s->rank[r], &p, false, false);
        number_pool(s, &s->rank[r], &p, true, apart);
    }
    ls_free(table);
    return LS_OK;
}
