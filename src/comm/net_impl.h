/* net_impl.h - shared inside net*.c: workers of several hosts, shared memory inside a host, a transport between hosts.
 *
 *   H teams of L ranks each; rank = h L + l.  A team's memory is one mapping (local_impl.h); rank (h, l) talks to its counterparts
 *   (j, l) of the other teams only. Teams are the hosts where each has the same number of consecutive ranks, 1, 2, 4, 8 …; in any
 *   other layout every rank is a team of its own, and the same code talks to everyone by messages. */
#ifndef LS_COMM_NET_IMPL_H
#define LS_COMM_NET_IMPL_H

#include "comm/local_impl.h"
#include "comm/transport.h"

#define NET_MSG_WORDS 320

enum { TAG_SERVICE = 0, TAG_BOOT = 1, TAG_FIRST = 4 };            /* of the transport                 */
enum { TAG_TALK, TAG_GIVE, TAG_RESULT, TAG_DIRECT, TAGS_OF_ONE }; /* of a communicator, from its base */

typedef struct net_watch net_watch;
typedef struct net_status net_status;

/* One a process: it belongs to the world's communicator. */
typedef struct net_world {
    const ls_transport *t;
    void *net;
    int rank, size, n_host;
    int *host, *local_of; /* by world rank: its host, its rank there */
    ls_local_world *world;
    int local_rank, n_local;
    local_use used; /* of this worker's arena */
    int next_id;
    char hostname[64];
    double start_until, start_limit; /* ls_now() when the start-up must be done; its seconds */
    net_watch *watch;
    pthread_mutex_t lock;  /* of what follows */
    ls_comm *first;        /* communicators of this process */
    struct net_comm *dead; /* those that ended with requests in flight */
    ls_net_op service;
    struct net_msg *inbox;
    net_status *status;     /* by world rank: answers to the question that is open */
    _Atomic int asked;      /* the communicator that it is about */
    pthread_mutex_t asking; /* one question at a time, until its answers have been read */
} net_world;

typedef struct net_comm {
    net_world *w;
    ls_comm *self, *next;
    struct net_comm *next_dead;
    ls_comm *host; /* members on this host: mailboxes, and where each is          */
    ls_comm *team; /* whose memory is shared in collectives: host, or a rank alone */
    bool one_host;
    int *member; /* world ranks */
    int id, tag;
    int H, L, h, l;
    char *talk_out, *talk_in; /* a message to all counterparts, one from each */
    ls_net_op *op;            /* talk: 2 H, exchange: 3 x 4 H                 */
    ls_net_op **list;
    const void **src; /* H */
    char *scratch;    /* of the exchange, made at the first large request */
    int64_t chunk_nbytes;
    ls_net_op direct[2][5]; /* of the send and the receive lane */
} net_comm;

/* Messages between transports' threads: questions where somebody is, answers, and that a worker is gone. */
typedef struct net_msg {
    int type, from, comm, rank;
    int stack;
    local_position at;
    comm_position device; /* of the communicator over device memory that is made over this one; 0: none */
    char host[64];
    char words[NET_MSG_WORDS];
} net_msg;

/* ---- the world ---- */
/* Starts the transport, shares memory with the workers of this host, makes the world's communicator. Collective over the job. */
ls_status net_world_open(const ls_transport *t, size_t arena_nbytes, ls_comm **out);
/* The same over a transport that has started; stops it on failure. The rest of the start-up takes at most `limit` seconds. */
ls_status net_world_over(const ls_transport *t, void *net, const ls_net_info *info, size_t arena_nbytes, double limit,
                         ls_comm **out);
ls_status net_world_comm(net_world *w, ls_comm **out); /* its communicator; closes the world when it is destroyed */
void net_world_stop(net_world *w, bool clean);         /* ends the transport; then nothing comes any more */
void net_world_free(net_world *w);

/* ---- between transports' threads ---- */
ls_status net_service_open(net_world *w);
/* Ends the run: waits on this host and on the others end with this message. */
void net_abort(net_world *w, const char *words);
/* Tells every worker on another host why this one ends. */
void net_tell_abort(net_world *w, const char *words);
ls_status net_hang(void *ctx, const comm_req *r, int peer, double waited); /* peer: a rank of the communicator, or -1 */
int net_ask(ls_comm *c, comm_answer *out);                                 /* comm_ops.ask */

/* ---- a request ---- */
/* Waits for operations of request r; ends with an abort's words or a table. */
ls_status net_wait(ls_comm *c, const comm_req *r, ls_net_op *const *op, int n);
void net_post(net_comm *m, ls_net_op *op, bool send, void *buf, int64_t nbytes, int rank, int tag);

/* A large request, after all have met: between publish and finish. */
ls_status net_exchange(ls_comm *c, comm_req *r);

/* Calls gone() once when a worker of the host ends without having left. */
ls_status net_watch_start(ls_local_world *w, int rank, void (*gone)(void *ctx, int rank, int pid), void *ctx,
                          net_watch **out);
void net_watch_stop(net_watch **wp);

#endif
