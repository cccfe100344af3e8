/* region.c - rows of operations that come again, as CUDA graphs.
 *
 *   seen the 1st time   directly: libraries choose and measure their algorithms
 *        the 2nd        recorded from the stream (nothing runs), made a graph, and that is launched
 *        then           launched: one call in place of hundreds
 *
 * A recording is this thread's alone: a mark or a wait for the stream by another thread waits until it is over (cu_region_enter), one
 * by this thread cuts it. The table keeps the MOST regions used last.
 *
 * LS_CUDA_GRAPHS=0: everything directly. */
#include "compute/cuda/cuda_impl.h"

#include "core/mem.h"

#include <stdlib.h>

#define MOST 2048

typedef struct cu_region {
    uint64_t name, used;
    enum { NEW, SEEN, GRAPH, DIRECT } state; /* DIRECT: it cannot be recorded */
    cudaGraphExec_t exec;
} region;

ls_status cu_regions_open(cu_regions *r, cudaStream_t stream)
{
    const char *text = getenv("LS_CUDA_GRAPHS");
    *r = (cu_regions){.stream = stream, .off = text && text[0] == '0', .all = ls_alloc(MOST * sizeof *r->all)};
    if (!r->all) return ls_nomem(MOST * sizeof *r->all, "the table of CUDA graphs");
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&r->queue, &kind);
    pthread_mutexattr_destroy(&kind);
    return LS_OK;
}

void cu_regions_close(cu_regions *r)
{
    if (!r->all) return;
    for (int i = 0; i < r->n; i++)
        if (r->all[i].exec) (void)cudaGraphExecDestroy(r->all[i].exec);
    pthread_mutex_destroy(&r->queue);
    ls_free(r->all);
}

/* The region of this name; a new one in place of the one that was not used for longest, when there are too many. */
static ls_status look_up(cu_regions *r, uint64_t name, region **out)
{
    region *oldest = r->all;
    for (int i = 0; i < r->n; i++) {
        region *e = &r->all[i];
        if (e->name == name) {
            e->used = ++r->turn;
            *out = e;
            return LS_OK;
        }
        if (e->used < oldest->used) oldest = e;
    }
    region *e = r->n < MOST ? &r->all[r->n++] : oldest;
    if (e->exec) {
        CU_TRY(cudaStreamSynchronize(r->stream)); /* it may be running */
        CU_TRY(cudaGraphExecDestroy(e->exec));
    }
    *e = (region){.name = name, .used = ++r->turn, .state = NEW};
    *out = e;
    return LS_OK;
}

/* Ends the recording, and queues it. */
static ls_status finish(cu_regions *r, region *e, bool keep)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    r->recording = false;
    e->state = DIRECT;
    int code = (int)cudaStreamEndCapture(r->stream, &graph);
    if (code == cudaSuccess) code = (int)cudaGraphInstantiateWithFlags(&exec, graph, 0);
    if (code == cudaSuccess) code = (int)cudaGraphLaunch(exec, r->stream);
    if (graph) (void)cudaGraphDestroy(graph);
    pthread_mutex_unlock(&r->queue);
    if (code != cudaSuccess) {
        if (exec) (void)cudaGraphExecDestroy(exec);
        (void)cudaGetLastError();
        return ls_fail(LS_E_DEVICE, "CUDA graph capture failed: %s (error %d); LS_CUDA_GRAPHS=0 disables graphs",
                       cudaGetErrorString((cudaError_t)code), code);
    }
    r->n_recorded++;
    if (keep) {
        e->exec = exec;
        e->state = GRAPH;
        return LS_OK;
    }
    r->n_cut++;
    CU_TRY(cudaStreamSynchronize(r->stream));
    CU_TRY(cudaGraphExecDestroy(exec));
    return LS_OK;
}

ls_status cu_region_begin(cu_regions *r, uint64_t name, bool *queued)
{
    *queued = false;
    if (r->off || r->depth++) return LS_OK; /* inside another: a part of it */
    region *e;
    const ls_status st = look_up(r, name, &e);
    if (st != LS_OK) {
        r->depth--;
        return st;
    }
    r->now = e;
    if (e->state == GRAPH) {
        r->depth--;
        CU_TRY(cudaGraphLaunch(e->exec, r->stream));
        r->n_launched++;
        *queued = true;
        return LS_OK;
    }
    if (e->state != SEEN) return LS_OK; /* region_end makes a NEW one SEEN */
    pthread_mutex_lock(&r->queue);
    /* relaxed: libraries may do what they like while they queue, and so may other threads */
    if (cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
        (void)cudaGetLastError();
        e->state = DIRECT;
        pthread_mutex_unlock(&r->queue);
        return LS_OK;
    }
    r->recording = true;
    return LS_OK;
}

ls_status cu_region_end(cu_regions *r)
{
    if (r->off || --r->depth) return LS_OK;
    region *e = r->now;
    r->now = NULL;
    if (e->state == NEW) e->state = SEEN;
    return r->recording ? finish(r, e, true) : LS_OK;
}

ls_status cu_region_enter(cu_regions *r)
{
    pthread_mutex_lock(&r->queue);
    if (!r->recording) return LS_OK; /* were it another thread's, that one would hold the lock */
    const ls_status st = finish(r, r->now, false);
    if (st != LS_OK) pthread_mutex_unlock(&r->queue);
    return st;
}

void cu_region_leave(cu_regions *r)
{
    pthread_mutex_unlock(&r->queue);
}
