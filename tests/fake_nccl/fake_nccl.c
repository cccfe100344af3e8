/* fake_nccl.c - a fake libnccl between threads and processes of one host, with the rules of NCCL that the plugin must follow:
 *
 *   - calls of a non-blocking communicator return ncclInProgress; an operation is queued only after the state of the communicator was queried several times;
 *   - the calls between group start and end are one operation: its sends and receives wait for each other, not for earlier ones;
 *   - operations run later, in the order of their stream, and block that stream (not the host) until those of their peers run;
 *     a send ends when all of it was received, nothing is buffered;
 *   - messages of a pair match in order and must be of equal size, collectives in order and of the same kind and size; otherwise the test aborts;
 *   - sums are computed in another order (from the last rank down), so that code that expects the order of the tree fails;
 *   - a communicator is finalized and destroyed when all its ranks do it: until then finalize returns ncclInProgress, and destroy blocks;
 *   - an abort ends the operations of this rank that are in flight, and only those. Peers are not notified;
 *   - memory that does not exist when the operation runs is an illegal access: the device is lost;
 *   - a collective runs only where the blocks of all ranks that share a GPU fit on it: at most N_MULTIPROCESSOR. Otherwise it never ends.
 *
 * A rank of a communicator writes to a peer through a pipe in shared memory; the unique id names it. A stream belongs to the test double of a
 * device (stream.h) or to the emulated device (tests/fake_cuda), whichever the process has.
 *
 *   FAKE_NCCL_FAIL=RANK:N     from its N-th group of calls on, the communicators of rank RANK report an error, and its operations in flight
 *                             wait. RANK is the rank in the first communicator that the process joins
 *   FAKE_NCCL_REFUSE=RANK     the rank cannot join the first communicator
 *   FAKE_NCCL_HANG_ABORT=RANK ncclCommAbort of that rank never returns
 *   FAKE_NCCL_SLOW=US         a group of calls is accepted this many microseconds later, so that requests accumulate
 *   FAKE_NCCL_VERSION=NUMBER  the result of ncclGetVersion */
#include <nccl.h>

#include "../../src/core/half.h"
#include "stream.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define MAX_W   16
#define PIPE    ((uint64_t)64 << 10)
#define VERSION 23007

#define N_MULTIPROCESSOR 132
#define BLOCKS           64 /* of a collective, unless the communicator has a maximum */

enum { SEND, RECV, GATHER, BROADCAST, ALL_REDUCE, REDUCE_SCATTER, REDUCE };

/* ---- in shared memory ---- */

typedef struct conduit { /* from one rank to another */
    _Atomic uint64_t head, tail;
    char data[PIPE];
} conduit;

typedef struct board {
    _Atomic int size, joined, finalized;
    _Atomic int blocks[MAX_W], gpu[MAX_W]; /* by rank */
    conduit at[];                          /* by sender, by receiver */
} board;

typedef struct header { /* before every message */
    uint64_t nbytes;
    int32_t type, root, dt, unused;
} header;

/* ---- in this process ---- */

typedef struct op {
    int type, peer;
    const void *in;
    void *out;
    size_t n;
    ncclDataType_t dt;
    ncclComm_t comm;
    void *stream;
    char *from[MAX_W]; /* of a collective: what ranks gave */
    struct op *next;
} op;

typedef struct part { /* a message of an operation, one way */
    bool sends, over;
    int peer;
    header h;
    char *p;
    uint64_t n, done, end; /* bytes with the header; end: of what was written, in the pipe */
    struct part *next;
} part;

struct ncclComm {
    board *b;
    size_t nbytes;
    char name[128]; /* of its memory */
    int rank, size, refs, polls;
    bool aborted, finalized, lost;
    uint64_t n_bundle, n_done; /* queued, and ended: they run in this order in all streams */
    op *pending;               /* recorded, not queued yet */
};

typedef struct bundle {
    op *first;
    part *part, **last;
    ncclComm_t comm;
    uint64_t turn;
    bool begun;
} bundle;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t n_id, n_turn, n_group;
static int first_rank = -1;
static atomic_int failing = -1, refusing;
static _Thread_local int depth;
static _Thread_local op *noted, **noted_end;

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "fake NCCL: %s\n", what);
    abort();
}

void fake_nccl_fail(int rank)
{
    atomic_store(&failing, rank);
}
void fake_nccl_refuse(int refuse)
{
    atomic_store(&refusing, refuse);
}

static void nap(long ns)
{
    nanosleep(&(struct timespec){0, ns}, NULL);
}

/* ---- the emulated device, where the process has one ---- */

typedef struct emulator {
    int (*poll)(void *stream, int (*over)(void *), void *arg);
    void (*sync_point)(const char *name);
    int (*holds)(const void *p, size_t nbytes);
    void (*lose)(int error);
} emulator;

static emulator emu;
static pthread_once_t looked = PTHREAD_ONCE_INIT;

static void look(void)
{
    static const char *const name[] = {"emu_stream_poll", "emu_sync_point", "emu_holds", "emu_break"};
    void *f[4];
    bool all = true;
    for (int i = 0; i < 4; i++) {
        f[i] = dlsym(RTLD_DEFAULT, name[i]);
        all = all && f[i];
    }
    _Static_assert(sizeof f == sizeof emu, "pointers alone");
    if (all) memcpy(&emu, f, sizeof f);
}

static const emulator *emulated(void)
{
    pthread_once(&looked, look);
    return emu.poll ? &emu : NULL;
}

static _Thread_local int gpu_now;

cudaError_t cudaSetDevice(int device)
{
    gpu_now = device;
    return device >= 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device)
{
    snprintf(text, (size_t)room, "0000:%02x:00.0", (unsigned)device);
    return cudaSuccess;
}

/* ---- faults on request ---- */

/* Whether a rank of this process is the one of NAME=RANK[:N]. */
static bool is_named(const char *name, long *n)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (!text || !*text) return false;
    const long rank = strtol(text, &end, 10);
    *n = *end == ':' ? strtol(end + 1, NULL, 10) : 0;
    return rank == first_rank;
}

static bool fails(ncclComm_t c)
{
    long n = 0;
    if (c->rank == atomic_load(&failing)) return true;
    return is_named("FAKE_NCCL_FAIL", &n) && (long)n_group >= n;
}

/* ---- joining and leaving ---- */

ncclResult_t ncclGetVersion(int *version)
{
    const char *text = getenv("FAKE_NCCL_VERSION");
    *version = text && *text ? atoi(text) : VERSION;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclRemoteError    ? "remote process exited or there was a network error"
           : r == ncclInvalidUsage ? "invalid usage"
                                   : "an error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    uint64_t chance = 0;
    if (getrandom(&chance, sizeof chance, 0) != (ssize_t)sizeof chance) return ncclSystemError;
    pthread_mutex_lock(&lock);
    const uint64_t mine = ++n_id;
    pthread_mutex_unlock(&lock);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/lockstep-fake-nccl-%d-%llu-%llx", (int)getpid(),
             (unsigned long long)mine, (unsigned long long)chance);
    return ncclSuccess;
}

static board *open_board(const char *name, size_t nbytes)
{
    const int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    void *p = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0)
        p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (fd >= 0) close(fd);
    return p == MAP_FAILED ? NULL : p;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    need(config->blocking == 0, "communicators are non-blocking");
    need(id.internal[0] == '/' && rank >= 0 && rank < nranks && nranks <= MAX_W,
         "the rank, the number of ranks and the id are valid");
    const char *refused = getenv("FAKE_NCCL_REFUSE");
    if (atomic_load(&refusing)) return ncclInvalidUsage;
    if (refused && *refused && first_rank < 0 && atoi(refused) == rank) return ncclSystemError;
    if (emulated()) emulated()->sync_point("join");
    ncclComm_t c = calloc(1, sizeof *c);
    c->nbytes = sizeof(board) + (size_t)nranks * (size_t)nranks * sizeof(conduit);
    c->b = open_board(id.internal, c->nbytes);
    snprintf(c->name, sizeof c->name, "%s", id.internal);
    c->rank = rank;
    c->size = nranks;
    c->refs = 1;
    if (!c->b) {
        free(c);
        return ncclSystemError;
    }
    int size = 0;
    need(atomic_compare_exchange_strong(&c->b->size, &size, nranks) || size == nranks,
         "all members give the same size");
    atomic_store(&c->b->blocks[rank], config->maxCTAs > 0 ? config->maxCTAs : BLOCKS);
    atomic_store(&c->b->gpu[rank], gpu_now);
    if (atomic_fetch_add(&c->b->joined, 1) + 1 == nranks) shm_unlink(id.internal); /* all ranks have it open */
    pthread_mutex_lock(&lock);
    if (first_rank < 0) first_rank = rank;
    pthread_mutex_unlock(&lock);
    *comm = c;
    return ncclInProgress;
}

/* With the lock held. */
static void unref(ncclComm_t c)
{
    if (--c->refs) return;
    munmap(c->b, c->nbytes);
    free(c);
}

static void free_ops(op *o)
{
    while (o) {
        op *next = o->next;
        for (int p = 0; p < MAX_W; p++) free(o->from[p]);
        free(o);
        o = next;
    }
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    pthread_mutex_lock(&lock);
    need(!c->pending, "no operation is pending when a communicator is finalized");
    if (!c->finalized) atomic_fetch_add(&c->b->finalized, 1);
    c->finalized = true;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

/* Whether all operations of this rank have ended and all ranks have finalized. With the lock held. */
static bool all_left(ncclComm_t c)
{
    return c->n_done == c->n_bundle && atomic_load(&c->b->finalized) == c->size;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    (void)ncclCommFinalize(c);
    pthread_mutex_lock(&lock);
    while (!all_left(c)) {
        pthread_mutex_unlock(&lock);
        nap(200000);
        pthread_mutex_lock(&lock);
    }
    unref(c);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    long ignored = 0;
    while (is_named("FAKE_NCCL_HANG_ABORT", &ignored)) nap(100000000);
    pthread_mutex_lock(&lock);
    c->aborted = true;
    if (atomic_load(&c->b->joined) < c->size) shm_unlink(c->name);
    free_ops(c->pending);
    c->pending = NULL;
    unref(c);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* ---- what runs on a stream; with the lock held ---- */

static size_t width(ncclDataType_t dt)
{
    return dt == ncclUint8 ? 1 : dt == ncclFloat16 || dt == ncclBfloat16 ? 2 : dt == ncclFloat32 ? 4 : 8;
}

static void add(void *y, const void *x, size_t n, ncclDataType_t dt)
{
    for (size_t i = 0; i < n; i++) {
        if (dt == ncclFloat32) ((float *)y)[i] += ((const float *)x)[i];
        else if (dt == ncclFloat64) ((double *)y)[i] += ((const double *)x)[i];
        else if (dt == ncclInt64) ((int64_t *)y)[i] += ((const int64_t *)x)[i];
        else if (dt == ncclBfloat16)
            ((uint16_t *)y)[i] = ls_to_bf16(ls_from_bf16(((uint16_t *)y)[i]) + ls_from_bf16(((const uint16_t *)x)[i]));
        else if (dt == ncclFloat16)
            ((uint16_t *)y)[i] = ls_to_f16(ls_from_f16(((uint16_t *)y)[i]) + ls_from_f16(((const uint16_t *)x)[i]));
        else need(false, "the type can be summed");
    }
}

static void add_part(bundle *b, const op *o, bool sends, int peer, const void *p, size_t nbytes)
{
    part *m = calloc(1, sizeof *m);
    const bool pair = o->type == SEND || o->type == RECV;
    m->sends = sends;
    m->peer = peer;
    m->p = (char *)(uintptr_t)p;
    m->n = sizeof m->h + nbytes;
    m->h = (header){.nbytes = nbytes, .type = pair ? SEND : o->type};
    if (!pair) m->h.root = o->peer, m->h.dt = (int32_t)o->dt;
    *b->last = m;
    b->last = &m->next;
}

/* Elements that a collective reads at its input, of every rank; and that it writes. */
static size_t reads(const op *o)
{
    const bool root = o->comm->rank == o->peer;
    if (o->type == RECV || (o->type == BROADCAST && !root)) return 0;
    return o->type == REDUCE_SCATTER ? o->n * (size_t)o->comm->size : o->n;
}

static size_t writes(const op *o)
{
    if (o->type == SEND || (o->type == REDUCE && o->comm->rank != o->peer)) return 0;
    return o->type == GATHER ? o->n * (size_t)o->comm->size : o->n;
}

/* What a rank sends to another in a collective: a place in its input; NULL: nothing. */
static const char *gives(const op *o, int from, int to)
{
    if (o->type == BROADCAST && from != o->peer) return NULL;
    if (o->type == REDUCE && to != o->peer) return NULL;
    return (const char *)o->in + (o->type == REDUCE_SCATTER ? (size_t)to * o->n * width(o->dt) : 0);
}

/* The parts of an operation; its input is the present content of memory. False: the memory does not belong to the device. */
static bool begin_op(bundle *b, op *o)
{
    const size_t nbytes = o->n * width(o->dt), e = width(o->dt);
    const int me = o->comm->rank;
    const emulator *dev = emulated();
    if (dev && reads(o) && !dev->holds(o->in, reads(o) * e)) return false;
    if (dev && writes(o) && !dev->holds(o->out, writes(o) * e)) return false;
    if (o->type == SEND) add_part(b, o, true, o->peer, o->in, nbytes);
    else if (o->type == RECV) add_part(b, o, false, o->peer, o->out, nbytes);
    else
        for (int p = 0; p < o->comm->size; p++) {
            const char *mine = gives(o, me, p);
            if (mine && p != me) add_part(b, o, true, p, mine, nbytes);
            if (!gives(o, p, me)) continue;
            o->from[p] = malloc(nbytes + 1);
            if (p == me) memcpy(o->from[p], mine, nbytes);
            else add_part(b, o, false, p, o->from[p], nbytes);
        }
    return true;
}

/* Everything has been sent and received. */
static void end_op(const op *o)
{
    const size_t nbytes = o->n * width(o->dt);
    const int W = o->comm->size;
    if (o->type == SEND || o->type == RECV) return;
    if (o->type == GATHER)
        for (int p = 0; p < W; p++) memcpy((char *)o->out + (size_t)p * nbytes, o->from[p], nbytes);
    else if (o->type == BROADCAST) memcpy(o->out, o->from[o->peer], nbytes);
    else if (o->from[0]) {
        for (int p = W - 2; p >= 0; p--) add(o->from[W - 1], o->from[p], o->n, o->dt);
        memcpy(o->out, o->from[W - 1], nbytes);
    }
}

/* Contiguous bytes of a part from `at` on: in its header, then in its memory. */
static char *bytes_at(part *m, uint64_t at, uint64_t *n)
{
    if (at < sizeof m->h) {
        *n = sizeof m->h - at;
        return (char *)&m->h + at;
    }
    *n = m->n - at;
    return m->p + (at - sizeof m->h);
}

static void check_header(const part *m, const header *want)
{
    need(m->h.type == want->type && m->h.root == want->root && m->h.dt == want->dt,
         "collectives have the same order on all ranks");
    need(m->h.nbytes == want->nbytes, "a message is as long as its receiver expects");
}

static bool move_part(ncclComm_t c, part *m)
{
    conduit *q = m->sends ? &c->b->at[c->rank * c->size + m->peer] : &c->b->at[m->peer * c->size + c->rank];
    bool moved = false;
    const header want = m->h;
    while (m->done < m->n) {
        const uint64_t head = atomic_load(&q->head), tail = atomic_load(&q->tail), at = m->sends ? head : tail;
        uint64_t n = 0, room = m->sends ? PIPE - (head - tail) : head - tail;
        char *p = bytes_at(m, m->done, &n);
        if (room > PIPE - at % PIPE) room = PIPE - at % PIPE;
        if (n > room) n = room;
        if (!n) break;
        if (m->sends) memcpy(&q->data[at % PIPE], p, n);
        else memcpy(p, &q->data[at % PIPE], n);
        atomic_fetch_add(m->sends ? &q->head : &q->tail, n);
        m->done += n;
        moved = true;
        if (m->sends) m->end = head + n;
        else if (m->done == sizeof m->h) check_header(m, &want);
    }
    m->over = m->done == m->n && (!m->sends || atomic_load(&q->tail) >= m->end);
    return moved;
}

static void end_bundle(bundle *b)
{
    while (b->part) {
        part *next = b->part->next;
        free(b->part);
        b->part = next;
    }
    free_ops(b->first);
    b->comm->n_done++;
    unref(b->comm);
    free(b);
}

/* Whether the blocks of a collective fit on this rank's GPU together with those of its peers there. */
static bool fits(const bundle *b)
{
    const board *x = b->comm->b;
    int blocks = 0;
    if (b->first->type == SEND || b->first->type == RECV) return true;
    for (int p = 0; p < b->comm->size; p++)
        if (atomic_load(&x->gpu[p]) == atomic_load(&x->gpu[b->comm->rank])) blocks += atomic_load(&x->blocks[p]);
    return blocks <= N_MULTIPROCESSOR;
}

/* 1: it has ended and is freed. */
static int poll_bundle(void *arg)
{
    bundle *b = arg;
    ncclComm_t c = b->comm;
    bool blocked[2][MAX_W] = {{false}}, over = true;
    if (c->aborted) {
        end_bundle(b);
        return 1;
    }
    if (c->n_done != b->turn || fails(c) || !fits(b)) return 0;
    for (op *o = b->begun ? NULL : b->first; o; o = o->next)
        if (!begin_op(b, o)) {
            fprintf(
                stderr,
                "fake NCCL: rank %d of %d: operation %d on memory that the device does not have: %zu elements of %zu bytes, in %p, out %p\n",
                c->rank, c->size, o->type, o->n, width(o->dt), o->in, o->out);
            emulated()->lose(700);
            end_bundle(b);
            return 1;
        }
    b->begun = true;
    for (part *m = b->part; m; m = m->next) {
        bool *first = &blocked[m->sends][m->peer]; /* messages of a pair are sent one after the other */
        if (m->over) continue;
        if (!*first) (void)move_part(c, m);
        *first = *first || m->done < m->n;
        over = over && m->over;
    }
    if (!over) return 0;
    for (const op *o = b->first; o; o = o->next) end_op(o);
    end_bundle(b);
    return 1;
}

static int poll_locked(void *arg)
{
    pthread_mutex_lock(&lock);
    const int over = poll_bundle(arg);
    pthread_mutex_unlock(&lock);
    return over;
}

static void run_bundle(void *arg)
{
    for (long ns = 5000; !poll_locked(arg); nap(ns))
        if (ns < 300000) ns *= 2;
}

/* A stream that accepts no work belongs to a lost device. */
static void queue(bundle *b, void *stream)
{
    fake_stream *s = stream;
    ncclComm_t c = b->comm;
    if (!emulated()) s->queue(s, run_bundle, b);
    else if (emulated()->poll(stream, poll_locked, b)) {
        pthread_mutex_lock(&lock);
        c->lost = true;
        end_bundle(b);
        pthread_mutex_unlock(&lock);
    }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    bundle *b = NULL;
    void *stream = NULL;
    pthread_mutex_lock(&lock);
    *state = ncclSuccess;
    if (atomic_load(&c->b->joined) < c->size) *state = ncclInProgress;
    else if (c->lost) *state = ncclUnhandledCudaError;
    else if (fails(c)) *state = ncclRemoteError;
    else if (c->finalized) *state = all_left(c) ? ncclSuccess : ncclInProgress;
    else if (c->pending && c->polls-- > 0) *state = ncclInProgress;
    else if (c->pending) {
        b = calloc(1, sizeof *b);
        *b = (bundle){.first = c->pending, .comm = c, .turn = c->n_bundle++, .last = &b->part};
        stream = c->pending->stream;
        c->pending = NULL;
        c->refs++;
    }
    pthread_mutex_unlock(&lock);
    if (b) queue(b, stream); /* c exists: the caller uses it */
    return ncclSuccess;
}

/* ---- calls ---- */

ncclResult_t ncclGroupStart(void)
{
    if (!depth++) noted_end = &noted;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    need(depth == 1, "groups are not nested");
    depth--;
    op *first = noted;
    noted = NULL;
    if (!first) return ncclSuccess;
    const char *slow = getenv("FAKE_NCCL_SLOW");
    if (slow && *slow) nap(1000 * atol(slow));
    pthread_mutex_lock(&lock);
    ncclComm_t c = first->comm;
    for (op *o = first; o; o = o->next)
        need(o->comm == c && o->stream == first->stream, "a group uses one communicator and one stream");
    need(!c->pending, "the previous operation was queued before the next one starts");
    need(!c->finalized, "a finalized communicator gets no operation");
    c->pending = first;
    c->polls = (int)(n_turn++ % 4);
    n_group++;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

static ncclResult_t note(op what)
{
    op *o = malloc(sizeof *o);
    need(depth == 1, "every call is in a group");
    need(what.peer >= 0 && what.peer < what.comm->size, "the peer is a rank of the communicator");
    *o = what;
    *noted_end = o;
    noted_end = &o->next;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t dt, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return note((op){.type = SEND, .peer = peer, .in = p, .n = n, .dt = dt, .comm = comm, .stream = stream});
}

ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t dt, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return note((op){.type = RECV, .peer = peer, .out = p, .n = n, .dt = dt, .comm = comm, .stream = stream});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t dt, ncclComm_t comm, cudaStream_t stream)
{
    return note((op){.type = GATHER, .in = in, .out = out, .n = n, .dt = dt, .comm = comm, .stream = stream});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t dt, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return note(
        (op){.type = BROADCAST, .peer = root, .in = in, .out = out, .n = n, .dt = dt, .comm = comm, .stream = stream});
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t dt, ncclRedOp_t how, ncclComm_t comm,
                           cudaStream_t stream)
{
    (void)how;
    return note((op){.type = ALL_REDUCE, .in = in, .out = out, .n = n, .dt = dt, .comm = comm, .stream = stream});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t dt, ncclRedOp_t how, ncclComm_t comm,
                               cudaStream_t stream)
{
    (void)how;
    return note((op){.type = REDUCE_SCATTER, .in = in, .out = out, .n = n, .dt = dt, .comm = comm, .stream = stream});
}

ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t dt, ncclRedOp_t how, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    (void)how;
    return note(
        (op){.type = REDUCE, .peer = root, .in = in, .out = out, .n = n, .dt = dt, .comm = comm, .stream = stream});
}
