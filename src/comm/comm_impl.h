/* comm_impl.h - what a backend fills, and what comm.c does for all of them: order, threads, tickets, measuring. */
#ifndef LS_COMM_COMM_IMPL_H
#define LS_COMM_COMM_IMPL_H

#include "comm/comm.h"
#include "core/trace.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct comm_req {
    ls_coll kind;
    ls_view in, out;
    int64_t stride; /* elements from one rank's part to the next in the large buffer of a scatter or gather */
    int label;
    int peer;  /* root, or the other side of a send */
    int value; /* of an agree: in mine, out worst   */
    bool copy; /* small: peers read a copy of `in`, which may be written before they have */
    const char *site;
    uint64_t seq;  /* in its lane, from 1               */
    int64_t moved; /* out: bytes                        */
    int64_t wire;  /* out: bytes sent to other hosts    */
} comm_req;

typedef struct comm_ops {
    const char *name;
    bool inline_run; /* requests are carried out by the caller: nothing to overlap */
    ls_status (*run)(ls_comm *c, comm_req *r);
    ls_status (*split)(ls_comm *c, int color, int key, ls_comm **out);
    void *(*alloc)(ls_comm *c, size_t nbytes);
    void (*abort)(ls_comm *c, const char *words); /* (optional) ends everyone's waits */
    void (*destroy)(ls_comm *c);
} comm_ops;

/* Sends and receives have lanes of their own, so that a send can wait for its receiver while collectives go on. */
enum { LANE_COLL, LANE_SEND, LANE_RECV, N_LANE };
#define LANE_RING 256

typedef struct comm_lane {
    pthread_t thread;
    bool running;
    bool stop;
    uint64_t posted, done; /* sequence numbers                  */
    ls_status failed;      /* first failure; sticks             */
    char words[2048];
    comm_req ring[LANE_RING];
    double *end; /* with a clock: of the newest LANE_RING requests */
} comm_lane;

typedef struct comm_limit {
    _Atomic double seconds;
    bool fixed;     /* somebody has set it      */
    double slow[8]; /* seconds of the last steps */
    uint64_t n_step;
} comm_limit;

struct ls_comm {
    const comm_ops *ops;
    int rank, size;
    ls_comm_place place;
    ls_local_world *world; /* memory that its workers of this host share, and this worker's rank there; NULL: none */
    int world_rank;
    comm_limit own_limit, *limit; /* those split from a communicator share its limit */
    struct comm_host *hosts;      /* of every rank; NULL: all on this host, in the order of their ranks */
    char hostname[64];
    void *impl;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    comm_lane lane[N_LANE];
    int label; /* of the next posts */
    ls_comm_stat stat[LS_N_COLL][LS_COMM_LABELS];
    int last_worst;
    ls_lane *trace[N_LANE]; /* where lanes record what they do; NULL: nowhere */
    ls_dry_clock *clock;    /* of a dry one that tells the time; else NULL    */
};

typedef struct comm_host {
    int64_t local_rank;
    char name[56];
} comm_host;

ls_status comm_create(const comm_ops *ops, int rank, int size, void *impl, ls_comm **out);

/* A request, a wait and a look by the clock (dry_clock.c). */
void comm_clock_post(ls_comm *c, comm_lane *l, const comm_req *r);
void comm_clock_wait(ls_comm *c, comm_lane *l, uint64_t seq);
bool comm_clock_test(const ls_comm *c, const comm_lane *l, uint64_t seq);

/* The r-th of n equal parts of the cores this process may use, their number; 1, of all of them, when there are fewer than workers. */
int comm_take_cores(int r, int n, const int *share, bool pin); /* share: cores of each, or NULL: equal parts */

/* Bytes that each worker moves by the law of the strategies (self.c has the formulas). */
int64_t comm_law_bytes(const ls_comm *c, const comm_req *r);

/* out = sum of n sources in the tree; any out may be one of the sources. */
void comm_tree_sum(void *out, const void *const *src, int n_src, int64_t n, ls_dtype dt);

#endif
