/* nccl.c - the plugin `nccl`: the only file that knows NCCL (2.19 or later).
 *
 * Communicators are non-blocking: a call that would block (meeting the others, connecting to a peer at its first message) returns
 * ncclInProgress, and the group is asked until it is done or the caller gives up. A GPU that is never heard of again can so be left. */
#include "comm/nccl_plugin.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(ncclUniqueId) == sizeof(ls_nccl_id), "an id is NCCL's");

typedef struct group {
    ncclComm_t comm;
    int device;
} group;

static void version(char *text, size_t room)
{
    int v = 0;
    if (ncclGetVersion(&v) != ncclSuccess) snprintf(text, room, "NCCL of unknown version");
    else snprintf(text, room, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

static int gpu(int device, char *text, size_t room)
{
    return cudaDeviceGetPCIBusId(text, (int)room, device) == cudaSuccess ? 0 : (int)ncclUnhandledCudaError;
}

static int make_id(ls_nccl_id *out)
{
    return (int)ncclGetUniqueId((ncclUniqueId *)(void *)out);
}

/* Until the group has done what it was asked for. */
static int settle(group *g, ls_nccl_poll poll)
{
    for (int turn = 0;; turn++) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(g->comm, &state);
        if (asked != ncclSuccess) return (int)asked;
        if (state != ncclInProgress) return (int)state;
        if (turn < 200) sched_yield();
        else {
            if (poll.give_up && poll.give_up(poll.ctx)) return LS_NCCL_GAVE_UP;
            nanosleep(&(struct timespec){0, turn < 2000 ? 20000 : 1000000}, NULL);
        }
    }
}

static int join_group(void **out, int device, const ls_nccl_id *id, int rank, int size, int max_blocks,
                      ls_nccl_poll poll)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId theirs;
    group *g = calloc(1, sizeof *g);
    if (!g) return (int)ncclSystemError;
    g->device = device;
    config.blocking = 0;
    if (max_blocks > 0) config.maxCTAs = max_blocks;
    memcpy(&theirs, id, sizeof theirs);
    int code = cudaSetDevice(device) == cudaSuccess ? 0 : (int)ncclUnhandledCudaError;
    if (!code) code = (int)ncclCommInitRankConfig(&g->comm, size, theirs, rank, &config);
    if (code == (int)ncclInProgress || code == (int)ncclSuccess) code = settle(g, poll);
    if (code) {
        if (g->comm) ncclCommAbort(g->comm);
        free(g);
        return code;
    }
    *out = g;
    return 0;
}

static int begin(void *gp)
{
    const group *g = gp;
    if (cudaSetDevice(g->device) != cudaSuccess) return (int)ncclUnhandledCudaError; /* it belongs to the thread */
    return (int)ncclGroupStart();
}

static int end(void *gp, ls_nccl_poll poll)
{
    const ncclResult_t r = ncclGroupEnd();
    return r == ncclSuccess || r == ncclInProgress ? settle(gp, poll) : (int)r;
}

/* Inside a group calls are only noted: what they return says whether their arguments are right. */
static int noted(ncclResult_t r)
{
    return r == ncclInProgress ? 0 : (int)r;
}

static int send_bytes(void *g, const void *p, size_t nbytes, int peer, void *stream)
{
    return noted(ncclSend(p, nbytes, ncclUint8, peer, ((group *)g)->comm, stream));
}

static int recv_bytes(void *g, void *p, size_t nbytes, int peer, void *stream)
{
    return noted(ncclRecv(p, nbytes, ncclUint8, peer, ((group *)g)->comm, stream));
}

static int all_gather(void *g, void *all, const void *mine, size_t nbytes, void *stream)
{
    return noted(ncclAllGather(mine, all, nbytes, ncclUint8, ((group *)g)->comm, stream));
}

static int broadcast(void *g, void *p, size_t nbytes, int root, void *stream)
{
    return noted(ncclBroadcast(p, p, nbytes, ncclUint8, root, ((group *)g)->comm, stream));
}

static ncclDataType_t type_of(ls_dtype dt)
{
    switch (dt) {
    case LS_F64: return ncclFloat64;
    case LS_BF16: return ncclBfloat16;
    case LS_F16: return ncclFloat16;
    case LS_I64: return ncclInt64;
    default: return ncclFloat32;
    }
}

static int all_reduce(void *g, void *x, size_t n, ls_dtype dt, void *stream)
{
    return noted(ncclAllReduce(x, x, n, type_of(dt), ncclSum, ((group *)g)->comm, stream));
}

static int reduce_scatter(void *g, void *part, const void *all, size_t n, ls_dtype dt, void *stream)
{
    return noted(ncclReduceScatter(all, part, n, type_of(dt), ncclSum, ((group *)g)->comm, stream));
}

static int reduce(void *g, void *out, const void *in, size_t n, ls_dtype dt, int root, void *stream)
{
    return noted(ncclReduce(in, out, n, type_of(dt), ncclSum, root, ((group *)g)->comm, stream));
}

static int check(void *g)
{
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(((group *)g)->comm, &state);
    if (asked != ncclSuccess) return (int)asked;
    return noted(state);
}

static void words(void *g, int code, char *text, size_t room)
{
    const char *more = g ? ncclGetLastError(((group *)g)->comm) : ncclGetLastError(NULL);
    snprintf(text, room, "NCCL: %s%s%.200s", ncclGetErrorString((ncclResult_t)code), more && *more ? ": " : "",
             more ? more : "");
    text[strcspn(text, "\n")] = '\0';
}

static void abort_group(void *gp)
{
    group *g = gp;
    cudaSetDevice(g->device);
    ncclCommAbort(g->comm);
    free(g);
}

static void close_group(void *gp, ls_nccl_poll poll)
{
    group *g = gp;
    cudaSetDevice(g->device);
    const ncclResult_t r = ncclCommFinalize(g->comm);
    const bool clean = (r == ncclSuccess || r == ncclInProgress) && !settle(g, poll);
    if (clean) ncclCommDestroy(g->comm);
    else ncclCommAbort(g->comm);
    free(g);
}

const ls_plugin_head *ls_nccl_plugin(void);

const ls_plugin_head *ls_nccl_plugin(void)
{
    static const ls_nccl t = {.head = {LS_NCCL_ABI, "nccl", version},
                              .gpu = gpu,
                              .id = make_id,
                              .join = join_group,
                              .begin = begin,
                              .end = end,
                              .send = send_bytes,
                              .recv = recv_bytes,
                              .all_gather = all_gather,
                              .broadcast = broadcast,
                              .all_reduce = all_reduce,
                              .reduce_scatter = reduce_scatter,
                              .reduce = reduce,
                              .check = check,
                              .words = words,
                              .abort = abort_group,
                              .close = close_group};
    return &t.head;
}
