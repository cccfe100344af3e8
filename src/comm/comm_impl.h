/* comm_impl.h - what a backend fills, and what comm.c does for all of them: order, threads, tickets, measuring. */
#ifndef LS_COMM_COMM_IMPL_H
#define LS_COMM_COMM_IMPL_H

#include "comm/comm.h"
#include "core/device.h"
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
    bool held; /* not counted */
    int team;  /* threads of the caller that may carry it out together; 0: one thread, of the lane */
    const char *site;
    uint64_t seq;  /* in its lane, from 1               */
    int64_t moved; /* out: bytes                        */
    int64_t wire;  /* out: bytes sent to other hosts    */
    /* a communicator over device memory (comm_device.c) */
    bool device;           /* a view is device memory                                                         */
    ls_mark ready;         /* what was queued before the post                                                 */
    ls_mark from, after;   /* out: it runs on the device between these marks; 0: it is done when run returns  */
    double began;          /* out: when waiting for `ready` was over; 0: at once                              */
    int64_t staged;        /* out: bytes copied between device and host                                       */
    double staged_seconds; /* out                                                                             */
} comm_req;

/* Sends and receives have lanes of their own, so that a send can wait for its receiver while collectives go on. */
enum { LANE_COLL, LANE_SEND, LANE_RECV, N_LANE };
#define LANE_RING        (LS_COMM_PENDING + 1)
#define COMM_TRACE_SPANS 16384 /* of each row of a trace */

/* Where a worker is in the collectives of a communicator that the device carries out, for its peers; in shared memory. Numbers are those of
 * comm_req.seq. */
typedef struct comm_note {
    _Atomic uint64_t queued, begun, done;
    _Atomic double since; /* of the newest that is queued */
    _Atomic int kind;
    _Atomic char site[56];
    atomic_bool failed; /* it could not join the device's group: nobody need wait for it there */
} comm_note;

typedef struct comm_position { /* the same as values, which go to other hosts as well */
    uint64_t queued, begun, done;
    double ago; /* seconds */
    int kind;
    char site[57];
} comm_position;
comm_position comm_note_read(comm_note *n);

/* What a rank on another host said when it was asked where it is. */
typedef struct comm_answer {
    enum { COMM_NOT_ASKED, COMM_SILENT, COMM_LEFT, COMM_ANSWERED } how; /* LEFT: it no longer has the communicator */
    comm_position at;
} comm_answer;

typedef struct comm_ops {
    const char *name;
    bool inline_run; /* requests are carried out by the caller: nothing to overlap */
    bool here;       /* a request that its caller waits for is carried out by it, not by the lane */
    ls_status (*run)(ls_comm *c, comm_req *r);
    ls_status (*check)(ls_comm *c); /* (optional) whether what is in flight on the device will end well */
    ls_status (*split)(ls_comm *c, int color, int key, ls_comm **out);
    void *(*alloc)(ls_comm *c, size_t nbytes);
    ls_status (*reserve)(ls_comm *c);             /* (optional) allocates device_nbytes */
    void (*abort)(ls_comm *c, const char *words); /* (optional) ends everyone's waits */
    /* (optional) Asks the ranks on other hosts where they are, for some seconds: out[p] of every rank p of c. Returns a rank of the world
     * that does not answer, in c or not; -1: none. */
    int (*ask)(ls_comm *c, comm_answer *out);
    /* A communicator over another one, c->inner, has no split; alloc and abort are those of inner if they are NULL. */
    /* One like c over `part`, which it takes if it succeeds. */
    ls_status (*over)(ls_comm *c, ls_comm *part, ls_comm **out);
    const char *inner_row;          /* its name in a trace, after that of c                          */
    const char *device_row[N_LANE]; /* and of what the device does for c; NULL: no more (trace_device) */
    void (*destroy)(ls_comm *c);
} comm_ops;

static inline int comm_lane_of(ls_coll kind)
{
    return kind == LS_COLL_SEND ? LANE_SEND : kind == LS_COLL_RECV ? LANE_RECV : LANE_COLL;
}

static inline bool comm_sums(ls_coll kind)
{
    return kind == LS_COLL_ALL_REDUCE || kind == LS_COLL_REDUCE_SCATTER || kind == LS_COLL_REDUCE;
}

typedef struct comm_lane {
    ls_comm *c;
    pthread_t thread;
    bool running;
    bool stop;
    bool here;             /* the newest request is carried out by the thread that posted it */
    uint64_t posted, done; /* sequence numbers                  */
    ls_status failed;      /* first failure; sticks             */
    char words[2048];
    comm_req *ring;           /* LANE_RING; NULL where the caller carries out requests */
    ls_mark after[LANE_RING]; /* of those that are done: where the device has the result */
    ls_mark newest;           /* of them                                                 */
    double *end;              /* with a clock: of the newest LANE_RING requests */
} comm_lane;

/* A stretch of the device's time whose end may not have come yet. */
typedef struct comm_time {
    ls_mark from, to;
    int kind, lane; /* lane -1: somebody waited; else a request of this lane was in flight */
    bool held;      /* not counted */
    int64_t payload;
    ls_trace_span span;
} comm_time;
#define COMM_TIMES 4096

typedef struct comm_stretch { /* of the device's clock */
    double begin, end;
} comm_stretch;

typedef struct comm_limit {
    _Atomic double seconds;
    bool fixed;     /* somebody has set it      */
    double slow[8]; /* seconds of the last steps */
    uint64_t n_step;
} comm_limit;

typedef struct comm_host {
    int64_t local_rank;
    char name[56];
} comm_host;

struct ls_comm {
    const comm_ops *ops;
    ls_comm *inner; /* that it is made over, and owns; NULL: none */
    int rank, size;
    ls_comm_place place;
    ls_local_world *world; /* memory that its workers of this host share, and this worker's rank there; NULL: none */
    int world_rank;
    comm_limit own_limit, *limit; /* those split from a communicator share its limit */
    comm_host *hosts;             /* of every rank, in memory of c or inner; NULL: this one, in the order of ranks */
    char hostname[64];
    void *impl;
    _Atomic(comm_note *) note; /* of the communicator over device memory that is made over this one; NULL: none */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    comm_lane lane[N_LANE];
    int team;                      /* of ls_comm_team */
    int label;                     /* of the next posts */
    ls_comm_stat *stat[LS_N_COLL]; /* by label, up to the largest that was posted: comm_count */
    size_t n_stat[LS_N_COLL];
    bool held;          /* what comes now is counted in `aside` */
    ls_comm_stat aside; /* and nobody looks there               */
    bool failed;        /* of ls_comm_failed */
    int last_worst;
    ls_lane *trace[N_LANE]; /* where lanes record what they do; NULL: nowhere */
    const char *name;       /* NULL: that of its ops */
    const char *library;    /* its version; NULL: none */
    size_t device_nbytes;   /* of ls_comm_device_nbytes */
    /* over device memory */
    const ls_device *dev;          /* NULL: host memory only               */
    ls_lane *trace_device[N_LANE]; /* what the device did; under `lock`    */
    double clock;                  /* the host's clock minus the device's  */
    comm_time *time;               /* COMM_TIMES; the oldest is at n_timed */
    uint64_t n_time, n_timed;
    int64_t n_untimed;            /* stretches whose time was lost                     */
    double exposed, exposed_host; /* of all kinds and labels; of them, on the host */
    comm_stretch *stood;          /* COMM_TIMES: when the queue of operations waited, the newest at n_stood - 1 */
    uint64_t n_stood;
    ls_dry_clock *told; /* of a dry one that tells the time; else NULL    */
};

/* c->impl: zeroed memory of the backend, freed with c. */
ls_status comm_create(const comm_ops *ops, int rank, int size, size_t impl_nbytes, ls_comm **out);

/* Where a request of this kind and label is counted; it was posted. With the lock held. */
static inline ls_comm_stat *comm_count(ls_comm *c, bool held, int kind, int label)
{
    return held ? &c->aside : &c->stat[kind][label];
}

/* A request, a wait and a look by the clock (self.c). */
void comm_clock_post(ls_comm *c, comm_lane *l, const comm_req *r);
void comm_clock_wait(ls_comm *c, comm_lane *l, uint64_t seq);
bool comm_clock_test(const ls_comm *c, const comm_lane *l, uint64_t seq);

/* The r-th of n equal parts of the cores this process may use, their number; 1, of all of them, when there are fewer than workers. */
int comm_take_cores(int r, int n, const int *share, bool pin); /* share: cores of each, or NULL: equal parts */

/* The id of the running kernel; where there is none, the name of the host. */
void comm_kernel_id(char *out, size_t room);

/* ls_comm_close with another limit. */
void comm_close_within(ls_comm **c, ls_status st, double seconds);

/* The part that a worker moves without the others, from one of its buffers to the other: bytes, 0: nothing. */
size_t comm_own_part(const ls_comm *c, const comm_req *r, char **to, const char **from);

/* Bytes that each worker moves by the formulas of the strategies (self.c). */
int64_t comm_formula_bytes(const ls_comm *c, const comm_req *r);

/* out = sum of n sources of type dt in the tree; out may be one of the sources. Its type is dt, or another one of float and 16-bit reals. */
void comm_tree_sum(void *out, ls_dtype out_dt, const void *const *src, int n_src, int64_t n, ls_dtype dt);
ls_dtype comm_sum_type(ls_dtype dt); /* of partial sums: float for 16-bit reals, else dt */

/* Posts a request (kind, in, out, stride, peer, value, site); t == NULL: waits. */
ls_status comm_post(ls_comm *c, comm_req *r, ls_ticket *t);
/* Waits for a ticket as ls_wait does; nobody's exposed time, no trace. */
ls_status comm_await(ls_comm *c, ls_ticket t);
/* A request of another communicator's lane, again: posts it on c and waits; its results and counts go into r. */
ls_status comm_forward(ls_comm *c, comm_req *r);
/* Makes c one over `inner`, with its place, hosts and limit. */
void comm_over(ls_comm *c, ls_comm *inner, const char *name);
void comm_unstage(ls_comm **c); /* ends a staged communicator that has not been used, not its inner one */
/* Whether the run of c's workers has been aborted, and the message. */
bool comm_aborted(const ls_comm *c, char *words, size_t room);

/* ---- comm_device.c: communicators over device memory ---- */
ls_status comm_device_open(ls_comm *c, const ls_device *dev);
ls_status comm_device_trace(ls_comm *c, ls_trace *t, const char *name); /* its part of ls_comm_trace */
ls_status comm_device_post(ls_comm *c, comm_req *r);                    /* before it is queued */
/* The compute queue holds for `after` (0: nothing); `idle`: a mark from when the caller began to wait (0: it did not). */
ls_status comm_device_wait(ls_comm *c, ls_mark idle, ls_mark after, int kind, int label);
/* With the lock held: notes a stretch, and books those that are over. */
void comm_device_note(ls_comm *c, comm_time t);
void comm_device_settle(ls_comm *c);
/* After a failure: until nothing in flight touches anybody's buffers (or some seconds have passed: a device may hang). */
void comm_device_quiet(const ls_device *dev, ls_mark m);
/* A mark of a lane, after `after` and what the lane holds; out NULL: the lane only waits for `after`. */
ls_status comm_lane_mark(const ls_device *dev, int lane, ls_mark after, ls_mark *out);
/* Seconds between two marks that have passed, or will: waits. NAN: one of the times is not known any more. */
ls_status comm_between(const ls_device *dev, ls_mark from, ls_mark to, double *begin, double *seconds);
void comm_device_span(ls_comm *c, ls_lane *lane, double begin, double seconds, ls_trace_span what);

#endif
