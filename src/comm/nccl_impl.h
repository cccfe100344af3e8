/* nccl_impl.h - shared inside nccl_*.c: communicators whose device memory moves between GPUs directly, and whose host memory goes over the
 * communicator they were made over (boot, staged).
 *
 *   lane of c         device lane(s)                NCCL group
 *   collectives       one for messages, one for     of everyone; made at the first request
 *                     sums
 *   sends, receives   one each                      one of two for each pair and direction: a send that waits for its receiver
 *                                                   holds up nothing but later sends
 *
 * A send or a receive is queued when both sides are ready: the sender's data is computed, the receiver's buffer is free, and the two have met
 * over boot (decision 17). A kernel that waits for a peer on the device would keep multiprocessors, and whatever synchronises the device on
 * the host (loading a kernel, making a graph, freeing memory) would wait for it and so for the peer: a deadlock when the peer does the same.
 *
 * A request is queued on the device by its lane's thread and is done, for the lane, with the mark after it; ls_wait makes the queue of
 * operations hold for that mark. nccl_watch.c ensures that what is in flight ends. */
#ifndef LS_COMM_NCCL_IMPL_H
#define LS_COMM_NCCL_IMPL_H

#include "comm/comm_impl.h"
#include "comm/nccl_plugin.h"

#define NCCL_AHEAD \
    16 /* pieces of work that a lane queues before the device has done the first of them: streams have less room than requests need */
#define NCCL_RING 64 /* requests that the watch looks at; at most NCCL_AHEAD + 1 of them are not done */

typedef struct nccl_under_way {
    ls_mark from, after;
    ls_coll kind;
    int peer;
    uint64_t seq; /* in the request's lane */
    const char *site;
} nccl_under_way;

typedef struct nccl_queue { /* what the watch looks at, in order; under the communicator's lock */
    nccl_under_way at[NCCL_RING];
    uint64_t first, end;
    double begun; /* when the first one was seen to have begun; 0: not yet */
} nccl_queue;

/* One a worker. */
typedef struct nccl_world {
    const ls_nccl *t;
    const ls_device *dev;
    int device, rank; /* index of the GPU; rank in messages */
    int blocks;       /* of the GPU that the kernels of a group may take; 0: NCCL's choice */
    bool deterministic;
    char version[32];     /* of NCCL; "": it does not say */
    double closing_since; /* when the first communicator was closed; 0: none was */
    atomic_int users;
    pthread_t watch;
    bool watching;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool closing;
    struct nccl_comm *first;
    atomic_bool stopped; /* `words` has the reason, `status` the kind of the first failure */
    ls_status status;
    char words[2048];
} nccl_world;

typedef struct nccl_comm {
    nccl_world *w;
    ls_comm *self; /* self->inner: boot */
    struct nccl_comm *next;
    pthread_mutex_t lock[N_LANE]; /* calls of its groups, and their end */
    void **group[N_LANE];         /* by lane: the group of everyone; the groups of two, by peer. NULL: not met yet */
    int lane[N_LANE], adds;       /* of the device; 0: not open */
    char *scratch;                /* of sums in the tree: device memory (nccl_tree_reserve) */
    nccl_queue queue[N_LANE];     /* under self->lock */
    ls_mark recent[N_LANE][NCCL_AHEAD]; /* of the lane's thread: what it queued last (nccl_pace) */
    uint64_t n_recent[N_LANE];
    comm_note *note, **notes; /* its own, and everyone's (NULL: on another host) */
    int *label;               /* rank in the world, of every rank */
} nccl_comm;

static inline int nccl_n_group(const nccl_comm *m, int lane)
{
    return lane == LANE_COLL ? 1 : m->self->size;
}

/* A request that is being queued: how long that may take, and why it was given up. */
typedef struct nccl_try {
    ls_comm *c;
    const comm_req *r;
    double begin;
    double most;  /* seconds that it may take; 0: the limit of the communicator */
    bool of_peer; /* it was given up because of another rank */
    char words[2048];
} nccl_try;

ls_nccl_poll nccl_poll(nccl_try *t);
/* A result of the plugin as a status, with a message. */
ls_status nccl_status(nccl_try *t, void *group, int code);

/* A piece of work of request r is queued up to mark m. Waits for room: until the device has done all but the last NCCL_AHEAD pieces, the
 * run is aborted, or the request takes longer than the limit. A call that waits for room inside a driver could not be ended. */
ls_status nccl_pace(nccl_try *t, const comm_req *r, ls_mark m);

/* A sum in the tree: queued on the device lanes of collectives. */
ls_status nccl_tree(nccl_try *t, comm_req *r, void *g);
ls_status nccl_tree_reserve(nccl_comm *m); /* its scratch, if there is none yet; with the lock of collectives held */

/* A communicator over boot, which is staged and which it takes when it succeeds. `sharing`: the most ranks on one GPU. Collective over boot. */
ls_status nccl_over(ls_comm *boot, const ls_device *dev, const ls_nccl *plugin, int sharing, bool deterministic,
                    ls_comm **out);

/* ---- nccl_watch.c ---- */
ls_status nccl_watch_start(nccl_world *w);
void nccl_watch_stop(nccl_world *w);
void nccl_watch_enter(nccl_comm *m);
void nccl_watch_leave(nccl_comm *m);
void nccl_note_request(nccl_comm *m, const comm_req *r);    /* it is about to be queued */
void nccl_under(nccl_comm *m, const comm_req *r, int lane); /* it has been queued */
/* The message about a request that has been in flight for too long: the position of each rank, by its rank in the world. */
void nccl_hang(nccl_comm *m, const nccl_under_way *u, double waited, char *words, size_t room);
/* Aborts with this message, or the first one: groups are aborted, other workers are notified. `heard`: a peer's end may be the
 * cause; who saw it die says it better, and is given a second. */
void nccl_stop(nccl_world *w, ls_status st, const char *words, bool heard);
void nccl_abort_groups(nccl_comm *m);
ls_status nccl_share_notes(nccl_comm *m); /* Collective over boot */

#endif
