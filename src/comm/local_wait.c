/* local_wait.c - waiting in shared memory: short spins, then sleep; and the report of a failed wait.
 *
 * Invariants
 *   1. a waiter looks at the abort flag and at its limit at least every 20 ms;
 *   2. the first hang of a host asks every worker for its stack (core/stack.h), later ones only print their table. */
#include "comm/local_impl.h"

#include "core/clock.h"
#include "core/stack.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TABLE_MAX 1500 /* bytes: an error message is cut at 2000 */

local_position local_position_of(const place *at)
{
    local_position p = {.posted = atomic_load(&at->posted), .done = atomic_load(&at->done)};
    p.ago = ls_now() - atomic_load(&at->since);
    p.head = at->slot[p.posted & 1].head;
    return p;
}

bool local_where(ls_str *out, const local_position *p, int label, const char *host, const comm_req *r)
{
    const bool late = p->posted < r->seq || p->done + 1 < r->seq;
    if (!p->posted) ls_str_addf(out, "\n  rank %d on %s has not posted anything", label, host);
    else
        ls_str_addf(out, "\n  rank %d on %s %s #%llu %s at %.*s, %.1f s ago", label, host,
                    late ? "is late: its latest is" : "is in", (unsigned long long)p->posted,
                    ls_coll_word((ls_coll)p->head.kind), SITE_MAX, p->head.site, p->ago);
    return late;
}

void local_ask_stacks(ls_local_world *w)
{
    if (atomic_exchange(&w->reported, 1)) return;
    for (int p = 0; p < w->size; p++) {
        const int pid = atomic_load(&w->pid[p]);
        if (pid && !atomic_load(&w->left[p])) ls_stack_ask(pid);
    }
}

bool local_is_stopped(int pid)
{
    char path[40], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = pid > 0 ? fopen(path, "r") : NULL;
    if (!f) return false;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *name_end = strrchr(text, ')'); /* "pid (name) state …"; the name may have any character */
    return name_end && name_end[1] == ' ' && name_end[2] == 'T';
}

void local_note_stopped(ls_str *out, ls_local_world *w, int rank)
{
    const int pid = atomic_load(&w->pid[rank]);
    if (local_is_stopped(pid)) ls_str_addf(out, " (stopped by SIGSTOP, pid %d)", pid);
}

void local_name_culprit(char *who, size_t room, ls_local_world *w, int silent, int suspect)
{
    for (int p = 0; w && p < w->size; p++) {
        const int pid = atomic_load(&w->pid[p]);
        if (atomic_load(&w->left[p]) || !local_is_stopped(pid)) continue;
        snprintf(who, room, "; rank %d is stopped (SIGSTOP, pid %d)", atomic_load(&w->rank[p]), pid);
        return;
    }
    who[0] = '\0';
    if (silent >= 0)
        snprintf(who, room, "; rank %d does not answer: it is stopped, or its host is not reachable", silent);
    else if (suspect >= 0) snprintf(who, room, "; look at rank %d", suspect);
}

int local_table(ls_str *out, int n, local_state (*line)(void *ctx, int p, ls_str *out), void *ctx)
{
    ls_str text = {0};
    int late = -1, n_left_out = 0;
    for (int state = LOCAL_SILENT; state <= LOCAL_OTHER; state++)
        for (int p = 0; p < n; p++) {
            text.len = 0;
            if ((int)line(ctx, p, &text) != state) continue;
            if (state == LOCAL_LATE && late < 0) late = p;
            if (out->len + text.len < TABLE_MAX) ls_str_addn(out, text.data, text.len);
            else n_left_out++;
        }
    if (n_left_out) ls_str_addf(out, "\n  … and %d more", n_left_out);
    ls_str_fini(&text);
    return late;
}

typedef struct scene {
    const ls_comm *c;
    const comm_req *r;
} scene;

static local_state line_of(void *ctx, int p, ls_str *out)
{
    const scene *s = ctx;
    const local *l = s->c->impl;
    const local_position at = local_position_of(&l->ctl->at[p]);
    const bool late = local_where(out, &at, l->label[p], s->c->hostname, s->r);
    local_note_stopped(out, l->world, l->member[p]);
    return late ? LOCAL_LATE : LOCAL_OTHER;
}

/* The position of each rank, in a table. The suspect is a rank that has not posted this collective, or the other side of a message, which no
 * collective counts. */
static ls_status hang(ls_comm *c, const comm_req *r, double waited)
{
    local *l = c->impl;
    const bool message = r->kind == LS_COLL_SEND || r->kind == LS_COLL_RECV;
    if (l->hang) return l->hang(l->ctx, r, message ? l->label[r->peer] : -1, waited);
    scene s = {c, r};
    char who[128];
    ls_str table = {0};
    const int suspect = message ? r->peer : local_table(&table, c->size, line_of, &s);
    local_name_culprit(who, sizeof who, l->world, -1, suspect < 0 ? -1 : l->label[suspect]);
    local_ask_stacks(l->world);
    const ls_status st =
        ls_fail(LS_E_COMM, "no progress for %.1f s in %s #%llu at %s%s%s", waited, ls_coll_word(r->kind),
                (unsigned long long)r->seq, r->site, who, table.data ? table.data : "");
    ls_str_fini(&table);
    return st;
}

ls_status local_trouble(ls_comm *c, const comm_req *r, double waited)
{
    local *l = c->impl;
    if (atomic_load(&l->world->aborted) > 0)
        return ls_fail(LS_E_COMM, "%s", l->world->abort_words[0] ? l->world->abort_words : "another worker exited");
    const double limit = atomic_load(&l->outer->limit->seconds);
    return limit > 0 && waited > limit ? hang(c, r, waited) : LS_OK;
}

ls_status local_wait_for(ls_comm *c, const comm_req *r, _Atomic uint64_t *word, uint64_t target)
{
    local *l = c->impl;
    for (int i = 0; i < 200; i++)
        if (atomic_load_explicit(word, memory_order_acquire) >= target) return LS_OK;
    for (int i = 0; i < 20; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) >= target) return LS_OK;
        sched_yield();
    }
    ls_waiting waiting = ls_waiting_begin();
    for (;;) {
        const uint32_t seen = atomic_load(&l->ctl->event);
        if (atomic_load_explicit(word, memory_order_acquire) >= target) return LS_OK;
        LS_TRY(local_trouble(c, r, ls_waiting_look(&waiting)));
        atomic_fetch_add(&l->ctl->waiters, 1);
        const struct timespec slice = {0, 20000000};
        syscall(SYS_futex, &l->ctl->event, FUTEX_WAIT, seen, &slice, NULL, 0);
        atomic_fetch_sub(&l->ctl->waiters, 1);
    }
}
