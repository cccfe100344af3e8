/* fake_transport.h - a transport between threads of one process, so that communicators over several hosts can be tested with sanitizers and
 * without MPI. A send completes when its receive is posted, as for large messages of real libraries. */
#ifndef LS_TESTS_FAKE_TRANSPORT_H
#define LS_TESTS_FAKE_TRANSPORT_H

#include "comm/transport.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAKE_MAX 16

typedef struct fake_world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, host[FAKE_MAX];
    ls_net_op *receive[FAKE_MAX], *send[FAKE_MAX]; /* by receiver, in order of posting; the sender is in `from` */
} fake_world;

typedef struct fake_net {
    fake_world *w;
    int rank;
} fake_net;

static _Thread_local fake_net fake_me; /* set by each thread before it opens a communicator */

static void fake_version(char *text, size_t room)
{
    if (room) text[0] = '\0';
}

static int fake_start(void **net, ls_net_info *info, char *words, size_t room)
{
    fake_net *n = malloc(sizeof *n);
    (void)words, (void)room;
    *n = fake_me;
    *info = (ls_net_info){.rank = n->rank, .size = n->w->size, .host = n->w->host};
    *net = n;
    return 0;
}

static void fake_append(ls_net_op **at, ls_net_op *op)
{
    while (*at) at = &(*at)->next;
    op->next = NULL;
    *at = op;
}

/* Removes the first matching send and receive of rank `to` from their lists. */
static bool fake_match(fake_world *w, int to, ls_net_op **send, ls_net_op **receive)
{
    for (ls_net_op **r = &w->receive[to]; *r; r = &(*r)->next)
        for (ls_net_op **s = &w->send[to]; *s; s = &(*s)->next) {
            if ((*s)->tag != (*r)->tag || ((*r)->peer >= 0 && (*r)->peer != (*s)->from)) continue;
            *send = *s;
            *receive = *r;
            *s = (*s)->next;
            *r = (*r)->next;
            return true;
        }
    return false;
}

static void fake_post(void *net, ls_net_op *op)
{
    fake_net *n = net;
    fake_world *w = n->w;
    ls_net_op *s = NULL, *r = NULL;
    const int to = op->send ? op->peer : n->rank;
    pthread_mutex_lock(&w->lock);
    if (op->send) op->from = n->rank;
    fake_append(op->send ? &w->send[to] : &w->receive[to], op);
    const bool pair = fake_match(w, to, &s, &r);
    if (pair) {
        r->from = s->from;
        r->got = s->nbytes < r->nbytes ? s->nbytes : r->nbytes;
        r->failed = s->nbytes > r->nbytes;
        if (r->got) memcpy(r->buf, s->buf, (size_t)r->got);
        if (!s->on_done) atomic_store(&s->done, true);
        if (!r->on_done) atomic_store(&r->done, true);
        pthread_cond_broadcast(&w->changed);
    }
    void (*call[2])(ls_net_op *) = {pair ? s->on_done : NULL, pair ? r->on_done : NULL};
    pthread_mutex_unlock(&w->lock);
    if (call[0]) call[0](s);
    if (call[1]) call[1](r);
}

static bool fake_wait(void *net, ls_net_op *const *op, int count, double seconds)
{
    fake_net *n = net;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    int i = 0;
    pthread_mutex_lock(&n->w->lock);
    for (int late = 0;;) {
        while (i < count && atomic_load(&op[i]->done)) i++;
        if (i == count || late == ETIMEDOUT) break;
        late = pthread_cond_timedwait(&n->w->changed, &n->w->lock, &t);
    }
    pthread_mutex_unlock(&n->w->lock);
    return i == count;
}

static void fake_trouble(void *net, char *words, size_t room)
{
    (void)net;
    if (room) words[0] = '\0';
}

static void fake_stop(void *net, bool clean)
{
    fake_net *n = net;
    ls_net_op *mine = NULL; /* sends without a receive */
    (void)clean;
    pthread_mutex_lock(&n->w->lock);
    n->w->receive[n->rank] = NULL;
    for (int p = 0; p < n->w->size; p++)
        for (ls_net_op **s = &n->w->send[p]; *s;) {
            ls_net_op *op = *s;
            if (op->from != n->rank) {
                s = &op->next;
                continue;
            }
            *s = op->next;
            op->next = mine;
            mine = op;
        }
    pthread_mutex_unlock(&n->w->lock);
    while (mine) {
        ls_net_op *op = mine;
        mine = op->next;
        if (op->on_done) op->on_done(op);
    }
    free(n);
}

static const ls_transport fake_transport = {.head = {LS_TRANSPORT_ABI, "fake", fake_version},
                                            .start = fake_start,
                                            .post = fake_post,
                                            .wait = fake_wait,
                                            .trouble = fake_trouble,
                                            .stop = fake_stop};

/* The communicator of one thread, over the fake transport. */
static inline ls_status fake_open(fake_world *net, int rank, size_t room, ls_comm **out)
{
    fake_me = (fake_net){net, rank};
    return net_world_open(&fake_transport, room, out);
}

#endif
