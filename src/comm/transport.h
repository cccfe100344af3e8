/* transport.h - messages between processes, as a plugin offers them: plain C, no symbol of ours is needed to build one.
 *
 * A transport has one thread that makes all calls of its library. Any thread posts operations; they are started in the order of
 * posting, so messages of one (sender, receiver, tag) arrive in order. Nothing here blocks but wait. */
#ifndef LS_COMM_TRANSPORT_H
#define LS_COMM_TRANSPORT_H

#include "core/plugin.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define LS_TRANSPORT_ABI    1
#define LS_TRANSPORT_SYMBOL "ls_transport_plugin" /* const ls_plugin_head *ls_transport_plugin(void) */

typedef struct ls_net_op {
    void *buf; /* of the transport until it is done */
    int nbytes, peer, tag;
    bool send;                             /* else receive; peer -1: from anyone                             */
    void (*on_done)(struct ls_net_op *op); /* (optional) on the transport's thread; may post, may free op    */
    void *ctx;                             /* of on_done                                                     */
    int got, from;                         /* out, of a receive: bytes and sender                            */
    bool failed;                           /* out; a receive from anyone: `from` is a rank that was lost, or -1      */
    _Atomic bool done;                     /* out; not set when there is an on_done                          */
    struct ls_net_op *next;                /* the transport's                                                */
} ls_net_op;

typedef struct ls_net_info {
    int rank, size;
    const int *host; /* number of each rank's host, hosts counted from 0 in the order of their first ranks */
} ls_net_info;

typedef struct ls_transport {
    ls_plugin_head head; /* its version may be called before start */
    /* 0, or another number and a message. Once in a process. Collective over the job. */
    int (*start)(void **net, ls_net_info *info, char *words, size_t room);
    void (*post)(void *net, ls_net_op *op);
    /* true when all n are done; false after `seconds`. */
    bool (*wait)(void *net, ls_net_op *const *op, int n, double seconds);
    void (*trouble)(void *net, char *words, size_t room); /* of the last failed operation */
    /* clean: everyone stops, nothing is in flight but receives from anyone. Otherwise sends get a moment to leave. */
    void (*stop)(void *net, bool clean);
} ls_transport;

/* For the wait of a transport: `finished` (CLOCK_MONOTONIC) is signalled under `lock` after operations are done. */
static inline bool ls_net_wait(pthread_mutex_t *lock, pthread_cond_t *finished, ls_net_op *const *op, int n,
                               double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const int64_t ns = t.tv_nsec + (int64_t)(seconds * 1e9);
    t = (struct timespec){t.tv_sec + ns / 1000000000, ns % 1000000000};
    int i = 0;
    pthread_mutex_lock(lock);
    for (int late = 0;;) {
        while (i < n && atomic_load_explicit(&op[i]->done, memory_order_acquire)) i++;
        if (i == n || late == ETIMEDOUT) break;
        late = pthread_cond_timedwait(finished, lock, &t);
    }
    pthread_mutex_unlock(lock);
    return i == n;
}

#endif
