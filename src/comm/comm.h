/* comm.h - collectives: asynchronous, in one order, measured.
 *
 * A communicator is a group of workers, ranks 0 … size-1. Every worker posts the same collectives in the same order. A post
 * returns a ticket at once; a progress thread carries it out while the caller computes; ls_wait returns when this worker's
 * result is there and its buffers are its own again.
 *
 *   ls_all_reduce(c, x, SITE, &t)          x on every worker = sum over workers
 *   ls_reduce_scatter(c, out, in, …)       out on rank r = sum of part r of every in;         in.n = size * out.n
 *   ls_all_gather(c, out, in, …)           out = the ins of all ranks side by side;           out.n = size * in.n
 *   ls_reduce / ls_broadcast(c, x, root)   sum at root / copy from root
 *
 * Invariants
 *   1. sums follow one binary tree over the ranks: split at the largest power of two below their number, left + right
 *      (parallel/gradtree.h has the same shape over micro-batches, so the two compose);
 *   2. each request has a sequence number and a call site; every wait has a limit and ends in a table of who is where;
 *   3. `in` and `out` of a pending request belong to the communicator;
 *   4. large buffers (over LS_COMM_SMALL bytes) come from ls_comm_alloc, so that peers on the host read them in place;
 *   5. sums of 16-bit reals (BF16, F16) are made in float over the tree and rounded once.
 *
 * Backends: self (one worker), local (workers of one host over shared memory), mpi (shared memory inside a host, MPI between hosts),
 * dry (moves nothing, counts; with a clock it tells the time that a step would take).
 *
 * Device memory (core/device.h) is taken by communicators made over one of these: staged (through pinned memory of the host) and nccl. A
 * request is then carried out after what was queued on the device before the post; behind ls_wait, what is queued next finds the result.
 * The views of a request are device memory on every worker, or on none. */
#ifndef LS_COMM_COMM_H
#define LS_COMM_COMM_H

#include "core/buf.h"
#include "core/device.h"
#include "core/err.h"
#include "core/str.h"
#include "core/trace.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_COMM_SMALL 4096 /* bytes that may lie anywhere */

#define LS_COLL_LIST(X)                         \
    X(LS_COLL_ALL_REDUCE, "all_reduce")         \
    X(LS_COLL_REDUCE_SCATTER, "reduce_scatter") \
    X(LS_COLL_ALL_GATHER, "all_gather")         \
    X(LS_COLL_BROADCAST, "broadcast")           \
    X(LS_COLL_REDUCE, "reduce")                 \
    X(LS_COLL_SEND, "send")                     \
    X(LS_COLL_RECV, "recv")                     \
    X(LS_COLL_BARRIER, "barrier")               \
    X(LS_COLL_AGREE, "agree")

typedef enum ls_coll {
#define X(kind, word) kind,
    LS_COLL_LIST(X)
#undef X
        LS_N_COLL
} ls_coll;

const char *ls_coll_word(ls_coll kind);

typedef struct ls_comm ls_comm;
typedef uint64_t ls_ticket; /* 0: nothing to wait for */

#define LS_SITE_STR2(x) #x
#define LS_SITE_STR(x)  LS_SITE_STR2(x)
#define LS_SITE         __FILE__ ":" LS_SITE_STR(__LINE__)

int ls_comm_rank(const ls_comm *c);
int ls_comm_size(const ls_comm *c);
const char *ls_comm_name(const ls_comm *c); /* "self", "local", … */
const char *ls_comm_library(
    const ls_comm *c); /* version of the library that moves device memory: "2.28.3"; NULL: none */

/* Where this worker is: among those of its host, and how many hosts there are. */
typedef struct ls_comm_place {
    int local_rank, local_size, n_host;
} ls_comm_place;
ls_comm_place ls_comm_where(const ls_comm *c);
/* The host of a rank, and its place there; borrowed. */
const char *ls_comm_host(const ls_comm *c, int rank, int *local_rank);

/* ---- posts; t may be NULL: then the call waits ---- */
ls_status ls_all_reduce(ls_comm *c, ls_view x, const char *site, ls_ticket *t);
ls_status ls_reduce_scatter(ls_comm *c, ls_view out, ls_view in, const char *site,
                            ls_ticket *t); /* out may be part r of in */
ls_status ls_all_gather(ls_comm *c, ls_view out, ls_view in, const char *site,
                        ls_ticket *t); /* in may be part r of out */
/* The same where the parts of the large buffer do not lie side by side: part p begins at element p * stride. */
ls_status ls_reduce_scatter_apart(ls_comm *c, ls_view out, ls_view in, int64_t stride, const char *site, ls_ticket *t);
ls_status ls_all_gather_apart(ls_comm *c, ls_view out, int64_t stride, ls_view in, const char *site, ls_ticket *t);
ls_status ls_broadcast(ls_comm *c, ls_view x, int root, const char *site, ls_ticket *t);
ls_status ls_reduce(ls_comm *c, ls_view x, int root, const char *site, ls_ticket *t); /* other ranks' x is unchanged */
ls_status ls_send(ls_comm *c, ls_view x, int to, const char *site, ls_ticket *t);
ls_status ls_recv(ls_comm *c, ls_view x, int from, const char *site, ls_ticket *t);
ls_status ls_barrier(ls_comm *c, const char *site);

/* The largest of all workers' values (a status, a flag). Collective over c. */
ls_status ls_agree(ls_comm *c, int mine, const char *site, int *worst);
/* The worst status of all: a failure of any worker fails all of them; its own words stay with the one that had it. */
ls_status ls_comm_agree(ls_comm *c, ls_status mine, const char *site);

/* Waits for one ticket; the time spent counts as exposed. Later tickets of the same lane may still be running. */
ls_status ls_wait(ls_comm *c, ls_ticket t);
bool ls_test(const ls_comm *c, ls_ticket t);

/* A new communicator of the workers that gave the same color, ranked by (key, old rank). Collective over c. */
ls_status ls_comm_split(ls_comm *c, int color, int key, ls_comm **out);

/* Memory that peers on the host can read in place; zeroed, 64-byte aligned, freed with the communicator that made it. */
void *ls_comm_alloc(ls_comm *c, size_t nbytes);

/* Device memory that it takes at its first sum, beside the caller's buffers and what a library takes for itself. */
size_t ls_comm_device_nbytes(const ls_comm *c);

/* Seconds a wait may last before the table and the stacks; 0 = no limit. May change while requests are under way. A communicator shares
 * it with those split from it (and outlives them). */
void ls_comm_set_limit(ls_comm *c, double seconds);
/* A step took so long: from the first one on the limit is 20 times the slowest of the last eight, at least 30 s - unless
 * ls_comm_set_limit has said otherwise. */
void ls_comm_expect(ls_comm *c, double step_seconds);
/* This worker cannot go on: everyone who waits, on any host, returns LS_E_COMM with these words (the first ones, if several do it). */
void ls_comm_abort(ls_comm *c, const char *words);
/* Whether this worker is the one of its host that prints what ended the run: the first one that asks, and always the same. */
bool ls_comm_should_tell(ls_comm *c);
/* Waits until nothing that was posted touches its buffers any more, whether it ended well or not: they may be freed after it. */
void ls_comm_quiet(ls_comm *c);
void ls_comm_destroy(ls_comm **c);
/* At the end of a program: ls_comm_destroy within LS_COMM_CLOSE_TIME seconds. If it does not return, a warning is printed and the
 * process ends with the exit code of `st`, the status of its work. */
#define LS_COMM_CLOSE_TIME 20.0
void ls_comm_close(ls_comm **c, ls_status st);

/* ---- what was measured ---- */
typedef struct ls_comm_stat {
    int64_t calls;
    int64_t elements;      /* of the whole buffer, as the strategies' laws count them                     */
    int64_t payload;       /* bytes of these elements                                                     */
    int64_t timed;         /* of them: of requests whose time is in `busy` (on a device not all may be)   */
    int64_t bytes;         /* this worker moved: read from peers or written to them                       */
    int64_t wire;          /* of them this worker sent to another host (comm/net.c has the formulas)      */
    double busy;           /* seconds from the start of a request to its end                              */
    double exposed;        /* seconds that callers waited; of device memory: that the device's queue did  */
    int64_t staged;        /* bytes copied between device and host, both ways                             */
    double staged_seconds; /* that these copies took (most of them beside each other and the messages) */
} ls_comm_stat;
ls_comm_stat ls_comm_stats(const ls_comm *c, ls_coll kind);
/* What is posted from now on is counted under this label, too: a strategy's buckets. 0 (at first): everything that is none. */
#define LS_COMM_LABELS 512 /* larger ones share the last */
void ls_comm_label(ls_comm *c, int label);
ls_comm_stat ls_comm_label_stats(const ls_comm *c, ls_coll kind, int label);
double ls_comm_exposed(const ls_comm *c); /* seconds waited, over all kinds */
/* Of them, those that callers waited on the host, and those that the device's queue stood still between two times of its clock. The times
 * of the last some thousand waits are kept. */
double ls_comm_exposed_host(const ls_comm *c);
double ls_comm_exposed_between(const ls_comm *c, double from, double to);
/* Requests and waits on device memory whose times were not read in time: they are missing from `busy` or `exposed`. */
int64_t ls_comm_untimed(const ls_comm *c);
void ls_comm_stats_reset(ls_comm *c);
/* What is posted and what is waited for while held counts nowhere: a trainer's statistics are of its steps. At first nothing is held. */
void ls_comm_hold_stats(ls_comm *c, bool held);
/* nccl-tests' bus bandwidth: bytes of the buffer / time * factor (2(n-1)/n for all_reduce, (n-1)/n for scatter and gather, 1). */
double ls_comm_busbw(ls_coll kind, int size, double nbytes, double seconds);

/* What is carried out from now on is recorded, in lanes of the trace that begin with `name`; the waits for it in the waiting thread's
 * lane. t NULL: no longer. LS_E_NOMEM. */
ls_status ls_comm_trace(ls_comm *c, ls_trace *t, const char *name);

/* ---- making communicators ---- */
ls_status ls_comm_self(ls_comm **out);
/* Rank `rank` of `size`, alone: moves nothing, counts everything. */
ls_status ls_comm_dry(int rank, int size, ls_comm **out);

/* Device memory over `inner`, which it owns from now on, and so does what is split from it (comm/staged.c has how). Host memory goes to
 * inner as it is. LS_E_NOMEM. */
ls_status ls_comm_staged(ls_comm *inner, const ls_device *dev, ls_comm **out);
/* Pinned host memory of a staged communicator that is used for collectives, for sends, for receives of device memory. */
size_t ls_comm_staged_nbytes(bool collectives, bool sends, bool receives);

/* Time that is told, not measured: what runs over dry communicators with one clock takes the seconds that it would take. A request ends
 * `seconds` after it was posted or the one before it in its lane has ended; a wait sets `now` to that end. Who computes moves `now`, too.
 * Buffers are not looked at: they need no memory behind them. */
typedef struct ls_dry_clock {
    double now;
    double busy, waited; /* seconds of all requests; seconds that `now` was moved by waits */
    double (*seconds)(void *ctx, const ls_comm *c, ls_coll kind, int64_t n, ls_dtype dt); /* n elements of the whole */
    void *ctx;
} ls_dry_clock;
ls_status ls_comm_dry_clocked(int rank, int size, ls_dry_clock *clock, ls_comm **out);

/* Shared state of the workers of one host, made before they start (memory that forked workers share). arena_nbytes: address
 * space for each worker's ls_comm_alloc; it costs nothing until it is touched. */
typedef struct ls_local_world ls_local_world;
ls_status ls_local_world_create(int size, size_t arena_nbytes, ls_local_world **out);
/* The same for workers that somebody else started: in a file that they all can open (a memfd), of this size from now on. */
ls_status ls_local_world_format(int fd, int size, size_t arena_nbytes, ls_local_world **out);
ls_status ls_local_world_open(int fd, ls_local_world **out);
void ls_local_world_destroy(ls_local_world **w);
/* This process is rank `rank` and answers when it is asked for its stack (core/stack.h); it ends by itself. When the run is aborted and
 * the process is still there 8 s later, it is ended with exit code 4 (core/deadline.h), until ls_local_world_destroy. */
void ls_local_world_join(ls_local_world *w, int rank);
void ls_local_world_leave(ls_local_world *w, int rank);
ls_status ls_comm_local(ls_local_world *w, int rank, ls_comm **out);
/* A worker is gone: everyone who waits returns LS_E_COMM with these words. false: another abort was first. */
bool ls_local_world_abort(ls_local_world *w, int rank, const char *words);

#endif
