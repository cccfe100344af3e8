/* fake_nccl.c - a stand-in for libnccl between threads of one process, with NCCL's rules as the plugin must obey them:
 *
 *   - calls of a non-blocking communicator return ncclInProgress; nothing is queued before the communicator was asked often enough;
 *   - what is between group start and end is one operation: its sends and receives wait for each other and for nobody before;
 *   - operations run later, in the order of their stream, and block that stream until their peers' have come;
 *   - messages of a pair match in order and must be of equal size, collectives in order and of one kind and size: else the test aborts;
 *   - sums are made in an order of their own (from the last rank down), so that who uses them for the tree is found out;
 *   - an abort ends what this rank has under way, and only that. */
#include <nccl.h>

#include "../../src/core/half.h"
#include "stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_W 16
#define DEEP  8

enum { SEND, RECV, GATHER, BROADCAST, ALL_REDUCE, REDUCE_SCATTER, REDUCE };

typedef struct op {
    int type, peer;
    const void *in;
    void *out;
    size_t n;
    ncclDataType_t dt;
    ncclComm_t comm;
    fake_stream *stream;
    bool taken; /* of a send */
    struct op *next, *next_letter;
} op;

typedef struct meeting { /* of a collective */
    const op *from[MAX_W];
    int came, left;
} meeting;

typedef struct world {
    uint64_t id;
    int size, joined, refs;
    op *mail[MAX_W][MAX_W]; /* letters from a rank to another */
    meeting at[DEEP];
    struct world *next;
} world;

struct ncclComm {
    world *w;
    int rank, refs, polls;
    bool aborted;
    uint64_t n_coll;
    op *pending; /* noted, not queued yet */
};

typedef struct bundle {
    op *first;
    ncclComm_t comm;
} bundle;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static world *worlds;
static uint64_t n_id, n_turn;
static op *abandoned; /* operations that were aborted: peers may still look at them */
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

cudaError_t cudaSetDevice(int device)
{
    return device >= 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device)
{
    snprintf(text, (size_t)room, "0000:%02x:00.0", (unsigned)device);
    return cudaSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
    const char *set = getenv("FAKE_NCCL_VERSION"); /* as NCCL counts: 23007 is 2.30.7 */
    *version = set ? atoi(set) : 22803;
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
    pthread_mutex_lock(&lock);
    const uint64_t mine = ++n_id;
    pthread_mutex_unlock(&lock);
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &mine, sizeof mine);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    uint64_t name;
    memcpy(&name, id.internal, sizeof name);
    need(config->blocking == 0, "the plugin asks for communicators that do not block");
    need(name && rank >= 0 && rank < nranks && nranks <= MAX_W, "a rank of a world that has an id");
    if (atomic_load(&refusing)) return ncclInvalidUsage;
    ncclComm_t c = calloc(1, sizeof *c);
    pthread_mutex_lock(&lock);
    world *w = worlds;
    while (w && w->id != name) w = w->next;
    if (!w) {
        w = calloc(1, sizeof *w);
        w->id = name;
        w->size = nranks;
        w->next = worlds;
        worlds = w;
    }
    need(w->size == nranks, "all members name the same size");
    w->joined++;
    w->refs++;
    c->w = w;
    c->rank = rank;
    c->refs = 1;
    pthread_mutex_unlock(&lock);
    *comm = c;
    return ncclInProgress;
}

/* With the lock held. */
static void unref(ncclComm_t c)
{
    if (--c->refs) return;
    world *w = c->w;
    if (!--w->refs) {
        world **at = &worlds;
        while (*at != w) at = &(*at)->next;
        *at = w->next;
        free(w);
    }
    free(c);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    (void)comm;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    pthread_mutex_lock(&lock);
    need(!c->pending, "nothing is under way when a communicator is destroyed");
    unref(c);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    pthread_mutex_lock(&lock);
    c->aborted = true;
    while (c->pending) {
        op *o = c->pending;
        c->pending = o->next;
        free(o);
    }
    pthread_cond_broadcast(&changed);
    unref(c);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* ---- what runs on a stream; with the lock held ---- */

static bool wait_or_end(ncclComm_t c)
{
    if (!c->aborted) pthread_cond_wait(&changed, &lock);
    return !c->aborted;
}

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
        else need(false, "a type that is summed");
    }
}

/* What this rank gets of a collective, into fresh memory; the number of bytes. */
static size_t result_of(const op *o, const meeting *m, char **out)
{
    const int W = o->comm->w->size, me = o->comm->rank;
    const size_t nbytes = o->n * width(o->dt);
    if (o->type == GATHER) {
        *out = malloc(nbytes * (size_t)W + 1);
        for (int p = 0; p < W; p++) memcpy(*out + (size_t)p * nbytes, m->from[p]->in, nbytes);
        return nbytes * (size_t)W;
    }
    if (o->type == REDUCE && me != o->peer) return 0;
    *out = malloc(nbytes + 1);
    if (o->type == BROADCAST) {
        memcpy(*out, m->from[o->peer]->in, nbytes);
        return nbytes;
    }
    const size_t at = o->type == REDUCE_SCATTER ? (size_t)me * nbytes : 0;
    memcpy(*out, (const char *)m->from[W - 1]->in + at, nbytes);
    for (int p = W - 2; p >= 0; p--) add(*out, (const char *)m->from[p]->in + at, o->n, o->dt);
    return nbytes;
}

static bool collective(op *o)
{
    ncclComm_t c = o->comm;
    meeting *m = &c->w->at[c->n_coll++ % DEEP];
    char *result = NULL;
    m->from[c->rank] = o;
    m->came++;
    for (int p = 0; p < c->w->size; p++)
        if (m->from[p])
            need(m->from[p]->type == o->type && m->from[p]->n == o->n && m->from[p]->dt == o->dt &&
                     m->from[p]->peer == o->peer,
                 "collectives come in one order");
    pthread_cond_broadcast(&changed);
    while (m->came < c->w->size)
        if (!wait_or_end(c)) return false;
    const size_t nbytes = result_of(o, m, &result);
    m->left++;
    pthread_cond_broadcast(&changed);
    while (m->left && m->left < c->w->size) /* everyone has read */
        if (!wait_or_end(c)) {
            free(result);
            return false;
        }
    if (nbytes) memcpy(o->out, result, nbytes);
    free(result);
    if (++m->left == 2 * c->w->size) *m = (meeting){0};
    return true;
}

static bool receive(op *o)
{
    ncclComm_t c = o->comm;
    op **box = &c->w->mail[o->peer][c->rank];
    while (!*box)
        if (!wait_or_end(c)) return false;
    op *letter = *box;
    need(letter->n * width(letter->dt) == o->n * width(o->dt), "a message is as long as its receiver expects");
    memcpy(o->out, letter->in, o->n * width(o->dt));
    *box = letter->next_letter;
    letter->taken = true;
    pthread_cond_broadcast(&changed);
    return true;
}

static void take_back(op *o)
{
    op **at = &o->comm->w->mail[o->comm->rank][o->peer];
    while (*at && *at != o) at = &(*at)->next_letter;
    if (*at) *at = o->next_letter;
}

static void run_bundle(void *arg)
{
    bundle b = *(bundle *)arg;
    free(arg);
    pthread_mutex_lock(&lock);
    bool on = !b.comm->aborted;
    for (op *o = b.first; o && on; o = o->next) {
        if (o->type != SEND) continue;
        op **at = &o->comm->w->mail[o->comm->rank][o->peer];
        while (*at) at = &(*at)->next_letter;
        *at = o;
    }
    pthread_cond_broadcast(&changed);
    for (op *o = b.first; o && on; o = o->next)
        if (o->type == RECV) on = receive(o);
        else if (o->type != SEND) on = collective(o);
    for (op *o = b.first; o; o = o->next) {
        while (o->type == SEND && on && !o->taken) on = wait_or_end(b.comm);
        if (o->type == SEND && !o->taken) take_back(o);
    }
    while (b.first) {
        op *o = b.first;
        b.first = o->next;
        if (on) free(o);
        else o->next = abandoned, abandoned = o;
    }
    unref(b.comm);
    pthread_mutex_unlock(&lock);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    bundle *b = NULL;
    fake_stream *stream = NULL;
    pthread_mutex_lock(&lock);
    *state = ncclSuccess;
    if (c->w->joined < c->w->size) *state = ncclInProgress;
    else if (c->rank == atomic_load(&failing)) *state = ncclRemoteError;
    else if (c->pending && c->polls-- > 0) *state = ncclInProgress;
    else if (c->pending) {
        b = malloc(sizeof *b);
        *b = (bundle){c->pending, c};
        stream = c->pending->stream;
        c->pending = NULL;
        c->refs++;
    }
    pthread_mutex_unlock(&lock);
    if (b) stream->queue(stream, run_bundle, b);
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
    need(depth == 1, "groups are not nested here");
    depth--;
    op *first = noted;
    noted = NULL;
    if (!first) return ncclSuccess;
    pthread_mutex_lock(&lock);
    ncclComm_t c = first->comm;
    for (op *o = first; o; o = o->next)
        need(o->comm == c && o->stream == first->stream, "a group is of one communicator");
    need(!c->pending, "the last operation was waited for before the next");
    c->pending = first;
    c->polls = (int)(n_turn++ % 4);
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

static ncclResult_t note(op what)
{
    op *o = malloc(sizeof *o);
    need(depth == 1, "every call is in a group");
    need(what.peer >= 0 && what.peer < what.comm->w->size, "a peer of this world");
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
