/* nccl_watch.c - a watchdog thread: ensures that requests in flight between GPUs end. Callers do not wait for them, and a kernel that waits
 * for a peer that has exited waits forever.
 *
 *   every 10 ms   has the run been given up on the host (a worker died)?  does NCCL report an error?  has the oldest request of a lane
 *                 been in flight for longer than the limit?
 *   then          the groups are aborted, so that kernels end and the device's queue goes on; the other workers are notified; every wait
 *                 from then on fails with the same message.
 *
 * Workers note in shared memory which collective they have queued, begun and done: who is late is named. Workers on other hosts are asked
 * over boot, whose transport answers while they hang; one that does not answer is named first. */
#include "comm/nccl_impl.h"

#include "comm/local_impl.h"
#include "core/clock.h"
#include "core/deadline.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOOK       10000000L /* ns between looks */
#define GRACE      1.0       /* seconds for the worker that saw a peer die to report it */
#define ABORT_TIME 10.0      /* seconds for groups to be aborted */

/* ---- notes ---- */

typedef struct where {
    int64_t world, rank, offset, label;
} where;

/* The one that c is made over in the end, which has the transport. */
static ls_comm *lowest(ls_comm *c)
{
    while (c->inner) c = c->inner;
    return c;
}

ls_status nccl_share_notes(nccl_comm *m)
{
    ls_comm *c = m->self->inner;
    where mine = {.rank = c->world_rank, .label = m->w->rank}, *all = NULL;
    if (c->world) {
        mine.world = (int64_t)c->world->id;
        mine.offset = (char *)m->note - local_arena(c->world, c->world_rank);
    }
    LS_TRY(ls_comm_gather(c, &mine, sizeof mine, LS_SITE, &all));
    for (int p = 0; p < c->size; p++) {
        m->label[p] = (int)all[p].label;
        if (c->world && all[p].world == mine.world)
            m->notes[p] = (comm_note *)(void *)(local_arena(c->world, (int)all[p].rank) + all[p].offset);
    }
    m->notes[c->rank] = m->note;
    atomic_store(&lowest(c)->note, m->note);
    return LS_OK;
}

void nccl_note_request(nccl_comm *m, const comm_req *r)
{
    if (comm_lane_of(r->kind) != LANE_COLL) return;
    atomic_store(&m->note->kind, (int)r->kind);
    atomic_store(&m->note->since, ls_now());
    for (size_t i = 0; i < sizeof m->note->site; i++) { /* peers may be reading it */
        const char c = r->site[strlen(r->site) < i ? strlen(r->site) : i];
        atomic_store_explicit(&m->note->site[i], c, memory_order_relaxed);
        if (!c) break;
    }
    atomic_store(&m->note->queued, r->seq);
}

/* With the communicator's lock held: drops the requests of a lane that the device has done, notes that the next one has begun. */
static void retire(nccl_comm *m, int lane)
{
    const ls_device *d = m->w->dev;
    nccl_queue *q = &m->queue[lane];
    for (; q->first < q->end; q->first++, q->begun = 0) {
        const nccl_under_way *u = &q->at[q->first % NCCL_RING];
        if (q->begun == 0 && d->test(d->ctx, u->from)) {
            q->begun = ls_now();
            if (lane == LANE_COLL) atomic_store(&m->note->begun, u->seq);
        }
        if (!d->test(d->ctx, u->after)) return;
        if (lane == LANE_COLL) atomic_store(&m->note->done, u->seq);
    }
}

void nccl_under(nccl_comm *m, const comm_req *r, int lane)
{
    nccl_queue *q = &m->queue[lane];
    pthread_mutex_lock(&m->self->lock);
    if (q->end - q->first == NCCL_RING) retire(m, lane); /* the watch has not looked for long */
    LS_ASSERT(q->end - q->first < NCCL_RING);            /* nccl_pace */
    q->at[q->end++ % NCCL_RING] = (nccl_under_way){r->from, r->after, r->kind, r->peer, r->seq, r->site};
    pthread_mutex_unlock(&m->self->lock);
}

typedef struct scene {
    const nccl_comm *m;
    const nccl_under_way *u;
    const comm_answer *answer; /* of the ranks on other hosts; NULL: they cannot be asked */
} scene;

/* Where rank p is, as a line of the table. */
static local_state line_of(void *ctx, int p, ls_str *out)
{
    const scene *s = ctx;
    const nccl_comm *m = s->m;
    const uint64_t seq = s->u->seq;
    const comm_answer *a = s->answer ? &s->answer[p] : &(comm_answer){COMM_NOT_ASKED, {0}};
    int local_rank = 0;
    const char *host = ls_comm_host(m->self, p, &local_rank);
    if (!m->notes[p] && a->how != COMM_ANSWERED) {
        ls_str_addf(out, "\n  rank %d on %s %s", m->label[p], host,
                    a->how == COMM_SILENT ? "does not answer"
                    : a->how == COMM_LEFT ? "no longer has this communicator"
                                          : "cannot be asked where it is");
        return a->how == COMM_SILENT ? LOCAL_SILENT : LOCAL_OTHER;
    }
    const comm_position at = m->notes[p] ? comm_note_read(m->notes[p]) : a->at;
    const bool late = at.queued < seq || (at.begun < seq && at.done < seq);
    ls_str_addf(out, "\n  rank %d on %s %s", m->label[p], host,
                at.queued < seq  ? "is late: it has not posted this"
                : late           ? "is late: its device has not reached this"
                : at.done >= seq ? "has completed this"
                                 : "is waiting in it");
    if (at.queued)
        ls_str_addf(out, " (its latest is #%llu, %s at %s, %.1f s ago)", (unsigned long long)at.queued,
                    ls_coll_word((ls_coll)at.kind), ls_short_path(at.site), at.ago);
    return late ? LOCAL_LATE : LOCAL_OTHER;
}

void nccl_hang(nccl_comm *m, const nccl_under_way *u, double waited, char *words, size_t room)
{
    const bool message = u->kind == LS_COLL_SEND || u->kind == LS_COLL_RECV;
    ls_comm *boot = lowest(m->self->inner);
    comm_answer *answer = boot->ops->ask ? ls_alloc((size_t)m->self->size * sizeof *answer) : NULL;
    const int silent = answer ? boot->ops->ask(boot, answer) : -1;
    scene s = {m, u, answer};
    char who[128];
    ls_str table = {0};
    const int suspect = message ? u->peer : local_table(&table, m->self->size, line_of, &s);
    local_name_culprit(who, sizeof who, m->self->world, silent, suspect < 0 ? -1 : m->label[suspect]);
    snprintf(words, room, "no progress for %.1f s in %s #%llu at %s%s%s", waited, ls_coll_word(u->kind),
             (unsigned long long)u->seq, ls_short_path(u->site), who, table.data ? table.data : "");
    ls_str_fini(&table);
    ls_free(answer);
}

/* ---- the watch ---- */

/* A lane's oldest request: how long it has been in flight. */
static double oldest(nccl_comm *m, int lane, nccl_under_way *u)
{
    nccl_queue *q = &m->queue[lane];
    double waited = 0;
    pthread_mutex_lock(&m->self->lock);
    retire(m, lane);
    if (q->first < q->end) {
        *u = q->at[q->first % NCCL_RING];
        if (q->begun > 0) waited = ls_now() - q->begun;
    }
    pthread_mutex_unlock(&m->self->lock);
    return waited;
}

static int check_groups(nccl_comm *m, int lane, void **bad)
{
    int code = 0;
    if (pthread_mutex_trylock(&m->lock[lane])) return 0; /* its thread looks itself */
    for (int p = 0; p < nccl_n_group(m, lane) && !code; p++)
        if (m->group[lane][p]) code = m->w->t->check(*bad = m->group[lane][p]);
    pthread_mutex_unlock(&m->lock[lane]);
    return code;
}

/* Whether something is wrong with m, as text. With the world's lock held. `heard`: a peer may have ended. */
static bool look(nccl_comm *m, char *words, size_t room, bool *heard)
{
    const double limit = atomic_load(&m->self->limit->seconds);
    *heard = false;
    if (comm_aborted(m->self->inner, words, room)) return true;
    for (int lane = 0; lane < N_LANE; lane++) {
        nccl_under_way u = {0};
        void *bad = NULL;
        const double waited = oldest(m, lane, &u);
        const int code = check_groups(m, lane, &bad);
        if (code) {
            char why[400];
            m->w->t->words(bad, code, why, sizeof why);
            if (u.site) /* else nothing is in flight in this lane */
                snprintf(words, room, "rank %d, %s #%llu at %s: %s", m->w->rank, ls_coll_word(u.kind),
                         (unsigned long long)u.seq, ls_short_path(u.site), why);
            else snprintf(words, room, "rank %d: %s", m->w->rank, why);
            *heard = true;
            return true;
        }
        if (limit > 0 && waited > limit) {
            nccl_hang(m, &u, waited, words, room);
            return true;
        }
    }
    return false;
}

void nccl_abort_groups(nccl_comm *m)
{
    const ls_nccl *t = m->w->t;
    for (int lane = 0; lane < N_LANE; lane++) {
        pthread_mutex_lock(&m->lock[lane]);
        for (int p = 0; p < nccl_n_group(m, lane); p++) {
            if (m->group[lane][p]) t->abort(m->group[lane][p]);
            m->group[lane][p] = NULL;
        }
        pthread_mutex_unlock(&m->lock[lane]);
    }
}

void nccl_stop(nccl_world *w, ls_status st, const char *words, bool heard)
{
    char told[2048];
    bool known = false;
    pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->stopped) && w->first) {
        const double end = ls_now() + (heard ? GRACE : 0);
        while (!(known = comm_aborted(w->first->self->inner, told, sizeof told)) && ls_now() < end)
            nanosleep(&(struct timespec){0, LOOK}, NULL);
        snprintf(w->words, sizeof w->words, "%s", known ? told : words);
        w->status = known ? LS_E_COMM : st;
        atomic_store(&w->stopped, true);
        if (!known) ls_comm_abort(w->first->self->inner, w->words);
        /* NCCL may wait for its own kernels, and these for a device that does not answer */
        const int limit = ls_deadline_arm(ABORT_TIME, ls_status_exit_code(LS_E_COMM), "aborting NCCL's communicators");
        for (nccl_comm *m = w->first; m; m = m->next) nccl_abort_groups(m);
        ls_deadline_disarm(limit);
    }
    pthread_mutex_unlock(&w->lock);
}

/* This process was stopped: what is in flight was not waited for in that time. With the world's lock held. */
static void forgive(nccl_world *w, double seconds)
{
    for (nccl_comm *m = w->first; m; m = m->next) {
        pthread_mutex_lock(&m->self->lock);
        for (int lane = 0; lane < N_LANE; lane++)
            if (m->queue[lane].begun > 0) m->queue[lane].begun += seconds;
        pthread_mutex_unlock(&m->self->lock);
    }
}

static void *watch_main(void *arg)
{
    nccl_world *w = arg;
    char words[2048] = "";
    bool bad = false, heard = false;
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK;
        if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
        const double before = ls_now();
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
        const double gap = ls_now() - before;
        if (gap > LS_WAIT_GAP) forgive(w, gap);
        if (w->closing || atomic_load(&w->stopped)) continue;
        for (nccl_comm *m = w->first; m && !bad; m = m->next) bad = look(m, words, sizeof words, &heard);
        if (!bad) continue;
        pthread_mutex_unlock(&w->lock);
        nccl_stop(w, LS_E_COMM, words, heard);
        pthread_mutex_lock(&w->lock);
        bad = false;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

ls_status nccl_watch_start(nccl_world *w)
{
    w->watching = !pthread_create(&w->watch, NULL, watch_main, w);
    return w->watching ? LS_OK : ls_fail(LS_E_COMM, "cannot start the NCCL watchdog thread");
}

void nccl_watch_stop(nccl_world *w)
{
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->watching) pthread_join(w->watch, NULL);
}

void nccl_watch_enter(nccl_comm *m)
{
    pthread_mutex_lock(&m->w->lock);
    m->next = m->w->first;
    m->w->first = m;
    pthread_mutex_unlock(&m->w->lock);
}

void nccl_watch_leave(nccl_comm *m)
{
    pthread_mutex_lock(&m->w->lock);
    nccl_comm **at = &m->w->first;
    while (*at && *at != m) at = &(*at)->next;
    if (*at) *at = m->next;
    pthread_mutex_unlock(&m->w->lock);
}
