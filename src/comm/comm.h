/* comm.h - asynchronous collectives with a fixed summation order and built-in timing.
 *
 * A communicator is a group of workers, ranks 0 … size-1. Every worker posts the same collectives in the same order. A post
 * returns a ticket immediately; a progress thread executes the request while the caller computes; ls_wait returns when this
 * worker's result is available and its buffers may be used again.
 *
 *   ls_all_reduce(c, x, SITE, &t)          x on every worker = sum over workers
 *   ls_reduce_scatter(c, out, in, …)       out on rank r = sum of part r of every in;         in.n = size * out.n
 *   ls_all_gather(c, out, in, …)           out = the ins of all ranks side by side;           out.n = size * in.n
 *   ls_reduce / ls_broadcast(c, x, root)   sum at root / copy from root
 *
 * Invariants
 *   1. sums follow one binary tree over the ranks: split at the largest power of two below their number, left + right
 *      (parallel/gradtree.h uses the same tree over micro-batches, so the two compose);
 *   2. each request has a sequence number and a call site; every wait has a time limit; when it expires, a table shows the position of each rank;
 *   3. the caller must not touch `in` and `out` of a pending request;
 *   4. buffers larger than LS_COMM_SMALL bytes come from ls_comm_alloc, so that peers on the host can read them in place;
 *   5. sums of BF16 and F16 are computed in float over the tree and rounded once.
 *
 * Backends: self (one worker), local (workers of one host over shared memory), mpi and tcp (shared memory inside a host, messages
 * between hosts), dry (moves no data, counts requests; with a clock it predicts the time of a step).
 *
 * Two communicators on top of these take device memory (core/device.h): staged (through pinned host memory) and nccl. A request then runs
 * after the operations that were queued on the device before the post, and operations queued after ls_wait see its result. The buffers of
 * a request are in device memory on all workers, or on none. */
#ifndef LS_COMM_COMM_H
#define LS_COMM_COMM_H

#include "core/buf.h"
#include "core/device.h"
#include "core/err.h"
#include "core/str.h"
#include "core/trace.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_COMM_SMALL   4096 /* buffers up to this many bytes may be anywhere */
#define LS_COMM_PENDING 255  /* collectives, sends or receives in flight; a further post waits until one is done */

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

/* The position of this worker on its host, and the number of hosts. */
typedef struct ls_comm_place {
    int local_rank, local_size, n_host;
} ls_comm_place;
ls_comm_place ls_comm_where(const ls_comm *c);
/* The host name of a rank, and its local rank there; owned by c. */
const char *ls_comm_host(const ls_comm *c, int rank, int *local_rank);
/* A number of the machine that this process runs on, for comparing: that of its running kernel, in every container on it. LOCKSTEP_HOST_ID
 * replaces it (tests). Names of hosts may be equal on different machines. */
int64_t ls_comm_machine(void);

/* ---- requests; with t == NULL the call waits for completion ---- */
ls_status ls_all_reduce(ls_comm *c, ls_view x, const char *site, ls_ticket *t);
ls_status ls_reduce_scatter(ls_comm *c, ls_view out, ls_view in, const char *site,
                            ls_ticket *t); /* out may be part r of in */
ls_status ls_all_gather(ls_comm *c, ls_view out, ls_view in, const char *site,
                        ls_ticket *t); /* in may be part r of out */
/* The same for a large buffer whose parts are not contiguous: part p begins at element p * stride. */
ls_status ls_reduce_scatter_apart(ls_comm *c, ls_view out, ls_view in, int64_t stride, const char *site, ls_ticket *t);
ls_status ls_all_gather_apart(ls_comm *c, ls_view out, int64_t stride, ls_view in, const char *site, ls_ticket *t);
ls_status ls_broadcast(ls_comm *c, ls_view x, int root, const char *site, ls_ticket *t);
ls_status ls_reduce(ls_comm *c, ls_view x, int root, const char *site, ls_ticket *t); /* other ranks' x is unchanged */
ls_status ls_send(ls_comm *c, ls_view x, int to, const char *site, ls_ticket *t);
ls_status ls_recv(ls_comm *c, ls_view x, int from, const char *site, ls_ticket *t);
ls_status ls_barrier(ls_comm *c, const char *site);

/* *worst = the maximum over all workers of `mine` (a status, a flag). Collective over c. */
ls_status ls_agree(ls_comm *c, int mine, const char *site, int *worst);
/* The worst status of all workers: if one fails, all fail. A failed worker keeps its status and its message. The message of all but the
 * first worker with the worst status is marked as a peer's (ls_err_is_peers), so that a failure that all find is printed once. */
ls_status ls_comm_agree(ls_comm *c, ls_status mine, const char *site);

/* Waits for one ticket; the time counts as exposed communication. Later requests of the same lane may still be in flight. */
ls_status ls_wait(ls_comm *c, ls_ticket t);
bool ls_test(const ls_comm *c, ls_ticket t);

/* A new communicator of the workers with the same color, ranked by (key, old rank). Collective over c. */
ls_status ls_comm_split(ls_comm *c, int color, int key, ls_comm **out);

/* Memory that peers on the host can read in place: zeroed, 64-byte aligned, freed with the communicator. NULL if out of memory. */
void *ls_comm_alloc(ls_comm *c, size_t nbytes);

/* *out = the address, in this process, of what rank 0 calls `mine`, from its ls_comm_alloc: one buffer that all ranks use. The caller's own `mine`
 * where there is one rank, or a communicator that only counts (dry). LS_E_COMM: not all ranks are on one host. Collective over c. */
ls_status ls_comm_common(ls_comm *c, void *mine, const char *site, void **out);

/* The caller computes with n threads (OpenMP), which are idle while it waits for a request: in shared memory they carry it out together. */
void ls_comm_team(ls_comm *c, int n);

/* *all (a pointer to a pointer) = `mine` of every rank, nbytes each, a multiple of 8 and small; in memory of ls_comm_alloc. Collective over c. */
ls_status ls_comm_gather(ls_comm *c, const void *mine, size_t nbytes, const char *site, void *all);

/* Device memory that c allocates at its first sum, not counting the caller's buffers and the library's own memory; reserve allocates it
 * now, so that no step can fail for want of it. */
size_t ls_comm_device_nbytes(const ls_comm *c);
ls_status ls_comm_reserve(ls_comm *c);

/* Time limit of a wait in seconds; when it expires, the position of each rank and all stack traces are printed. 0 = no limit. May change
 * while requests are pending. Communicators split from c share its limit, and c must outlive them. */
void ls_comm_set_limit(ls_comm *c, double seconds);
/* The limit of the start of a run, for which ls_comm_set_limit was not called; 0: the usual one again. */
#define LS_START_LIMIT 120.0
void ls_comm_start_limit(ls_comm *c, double seconds);
/* Reports the duration of a step: the limit becomes 20 times the slowest of the last eight steps, at least 30 s, unless
 * ls_comm_set_limit was called. */
void ls_comm_expect(ls_comm *c, double step_seconds);
/* Aborts the run: all waiting workers, on all hosts, return LS_E_COMM with this message (that of the first abort, if there are several). */
void ls_comm_abort(ls_comm *c, const char *words);
/* This worker has failed, and its peers may not know yet: ls_comm_destroy of c does not wait for them. */
void ls_comm_failed(ls_comm *c);
/* Whether this worker prints the reason of the abort: true for one worker per host, the first that asks. */
bool ls_comm_should_tell(ls_comm *c);
/* Waits until no posted request uses its buffers any more, failed or not; the buffers may then be freed. */
void ls_comm_quiet(ls_comm *c);
void ls_comm_destroy(ls_comm **c);
/* At the end of a program: ls_comm_destroy within LS_COMM_CLOSE_TIME seconds. If it does not return, a warning is printed and the
 * process ends with the exit code of `st`, the status of its work. */
#define LS_COMM_CLOSE_TIME 20.0
void ls_comm_close(ls_comm **c, ls_status st);

/* ---- statistics ---- */
typedef struct ls_comm_stat {
    int64_t calls;
    int64_t elements;      /* of the whole buffer                                                         */
    int64_t payload;       /* bytes of these elements                                                     */
    int64_t timed;         /* payload of the requests whose time is in `busy` (on a device, not always all) */
    int64_t bytes;         /* that this worker read from peers or wrote to them                           */
    int64_t wire;          /* bytes that this worker sent to other hosts (formulas: comm/net.c)           */
    double busy;           /* seconds from the start of a request to its end                              */
    double exposed;        /* seconds that callers waited; with device memory: that the device was idle   */
    int64_t staged;        /* bytes copied between device and host, both ways                             */
    double staged_seconds; /* duration of these copies (mostly overlapped)                            */
} ls_comm_stat;
ls_comm_stat ls_comm_stats(const ls_comm *c, ls_coll kind);
/* Counts later requests under this label, too (buckets of a strategy). 0, the initial label: everything else. */
#define LS_COMM_LABELS 512 /* larger ones share the last */
void ls_comm_label(ls_comm *c, int label);
ls_comm_stat ls_comm_label_stats(const ls_comm *c, ls_coll kind, int label);
double ls_comm_exposed(const ls_comm *c); /* seconds waited, over all kinds */
/* The part of it that callers waited on the host, and the part that the device was idle between two times of its clock. Only the last few
 * thousand waits are kept. */
double ls_comm_exposed_host(const ls_comm *c);
double ls_comm_exposed_between(const ls_comm *c, double from, double to);
/* Requests and waits on device memory whose times were lost: they are missing from `busy` or `exposed`. */
int64_t ls_comm_untimed(const ls_comm *c);
void ls_comm_stats_reset(ls_comm *c);
/* While held, requests and waits are not counted, so that the statistics cover training steps only. Initially false. */
void ls_comm_hold_stats(ls_comm *c, bool held);
/* nccl-tests' bus bandwidth: bytes of the buffer / time * factor (2(n-1)/n for all_reduce, (n-1)/n for scatter and gather, 1). */
double ls_comm_busbw(ls_coll kind, int size, double nbytes, double seconds);

/* Records later requests in rows of the trace whose names begin with `name`, and waits in the row of the waiting thread. NULL stops
 * recording. LS_E_NOMEM. */
ls_status ls_comm_trace(ls_comm *c, ls_trace *t, const char *name);

/* ---- constructors ---- */
ls_status ls_comm_self(ls_comm **out);
/* Rank `rank` of `size` without peers: moves no data, counts all requests. */
ls_status ls_comm_dry(int rank, int size, ls_comm **out);

/* Device memory over `inner` (see comm/staged.c); takes ownership of inner. Host memory is passed to inner. Communicators split from it are
 * staged, too. LS_E_NOMEM. */
ls_status ls_comm_staged(ls_comm *inner, const ls_device *dev, ls_comm **out);

/* Simulated time for dry communicators that share one clock. A request ends `seconds` after it was posted or after the previous request of
 * its lane has ended, whichever is later; a wait advances `now` to that end. The caller advances `now` by its computing time. Buffers are
 * not accessed and may be NULL. */
typedef struct ls_dry_clock {
    double now;
    double busy, waited; /* seconds of all requests; seconds that `now` was moved by waits */
    double (*seconds)(void *ctx, const ls_comm *c, ls_coll kind, int64_t n,
                      ls_dtype dt); /* n: elements of the whole buffer */
    void *ctx;
} ls_dry_clock;
ls_status ls_comm_dry_clocked(int rank, int size, ls_dry_clock *clock, ls_comm **out);

/* Shared state of the workers of one host, created before they are forked. arena_nbytes: address space for each worker's
 * ls_comm_alloc; the pages of a block of 2 MiB or more are allocated with it, others on first use. */
typedef struct ls_local_world ls_local_world;
ls_status ls_local_world_create(int size, size_t arena_nbytes, ls_local_world **out);
/* The same for workers started by an external launcher, in a file that all of them can open (a memfd); sets its size. */
ls_status ls_local_world_format(int fd, int size, size_t arena_nbytes, ls_local_world **out);
/* Maps what rank 0 of `size` workers has formatted. LS_E_COMM: it is another user's, or a number in it is not what that function writes. */
ls_status ls_local_world_open(int fd, int size, ls_local_world **out);
void ls_local_world_destroy(ls_local_world **w);
/* Registers this process as rank `rank`, which prints its stack trace on request (core/stack.h). If the run is aborted and the process
 * has not exited 8 s later, it exits with code 4 (core/deadline.h), until ls_local_world_destroy. */
void ls_local_world_join(ls_local_world *w, int rank);
void ls_local_world_leave(ls_local_world *w, int rank);
ls_status ls_comm_local(ls_local_world *w, int rank, ls_comm **out);
/* A worker exited: all waiting workers return LS_E_COMM with this message. Returns false if the run was already aborted. */
bool ls_local_world_abort(ls_local_world *w, int rank, const char *words);

#endif
