/* device.c - core/device.h on CUDA: blocks of memory, pinned memory, lanes as streams of their own, copies between marks. */
#include "compute/cuda/cuda_impl.h"

#include "compute/cuda/kernels/kernels.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ls_status cu_device_enter(const cu_device *d)
{
    return CU_STATUS(cudaSetDevice(d->index));
}

/* ---- what there is ---- */

static ls_status device_info(void *ctx, ls_device_info *out) /* also of a device that cannot be used */
{
    const cu_device *d = ctx;
    struct cudaDeviceProp p;
    size_t left = 0, total = 0;
    int driver = 0, api = 0, code = 0;
    bool ptx = false;
    LS_TRY(cu_device_enter(d));
    CU_TRY(cudaGetDeviceProperties(&p, d->index));
    CU_TRY(cudaMemGetInfo(&left, &total));
    CU_TRY(cudaDriverGetVersion(&driver));
    CU_TRY(cudaRuntimeGetVersion(&api));
    int count = 0;
    CU_TRY(cudaGetDeviceCount(&count));
    (void)cu_code(&code, &ptx);
    *out = (ls_device_info){.index = d->index,
                            .count = count,
                            .total = (int64_t)total,
                            .free = (int64_t)left,
                            .multiprocessors = p.multiProcessorCount,
                            .capability = 10 * p.major + p.minor,
                            .code = code,
                            .ptx = ptx};
    snprintf(out->name, sizeof out->name, "%.95s", p.name);
    if (cudaDeviceGetPCIBusId(out->bus, (int)sizeof out->bus, d->index)) {
        (void)cudaGetLastError();
        out->bus[0] = '\0';
    }
    snprintf(out->cudnn, sizeof out->cudnn, "%s", d->cudnn);
    snprintf(out->driver, sizeof out->driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    snprintf(out->api, sizeof out->api, "CUDA %d.%d", api / 1000, api % 1000 / 10);
    return LS_OK;
}

/* ---- memory ---- */

static ls_status keep_block(cu_device *d, void *p, size_t nbytes)
{
    ls_status st = LS_OK;
    pthread_mutex_lock(&d->lock);
    if (d->n_block == d->cap_block) {
        const int cap = d->cap_block ? 2 * d->cap_block : 16;
        struct cu_block *more = ls_realloc(d->block, (size_t)cap * sizeof *more);
        if (more) d->block = more, d->cap_block = cap;
        else st = ls_nomem((size_t)cap * sizeof *more, "the list of device memory");
    }
    if (st == LS_OK) d->block[d->n_block++] = (struct cu_block){p, nbytes};
    pthread_mutex_unlock(&d->lock);
    return st;
}

static bool drop_block(cu_device *d, const void *p)
{
    bool found = false;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->n_block && !found; i++) {
        if (d->block[i].p != p) continue;
        d->block[i] = d->block[--d->n_block];
        found = true;
    }
    pthread_mutex_unlock(&d->lock);
    return found;
}

static bool device_owns(void *ctx, const void *p)
{
    cu_device *d = ctx;
    bool found = false;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->n_block && !found; i++)
        found = (const char *)p >= d->block[i].p && (const char *)p < d->block[i].p + d->block[i].nbytes;
    pthread_mutex_unlock(&d->lock);
    return found;
}

static ls_status no_room(const cu_device *d, size_t nbytes)
{
    size_t left = 0, total = 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&left, &total);
    return ls_fail(LS_E_NOMEM, "device %d: cannot allocate %.0f MiB; %.0f of its %.0f MiB are free", d->index,
                   (double)nbytes / 1048576, (double)left / 1048576, (double)total / 1048576);
}

static ls_status clear(const cu_device *d, void *p, size_t nbytes)
{
    CU_TRY(cudaMemsetAsync(p, 0, nbytes, d->lane[0].stream));
    return CU_STATUS(cudaStreamSynchronize(d->lane[0].stream));
}

static ls_status device_alloc(void *ctx, size_t nbytes, void **out)
{
    cu_device *d = ctx;
    void *p = NULL;
    LS_TRY(cu_device_enter(d));
    const int code = (int)cudaMalloc(&p, nbytes ? nbytes : 1);
    if (code == cudaErrorMemoryAllocation) return no_room(d, nbytes);
    CU_TRY(code);
    ls_status st = clear(d, p, nbytes ? nbytes : 1);
    if (st == LS_OK) st = keep_block(d, p, nbytes ? nbytes : 1);
    if (st != LS_OK) (void)cudaFree(p);
    else *out = p;
    return st;
}

static void device_release(void *ctx, void *p)
{
    cu_device *d = ctx;
    if (!p || !drop_block(d, p)) return;
    (void)cudaSetDevice(d->index);
    (void)cudaFree(p);
}

static ls_status device_alloc_host(void *ctx, size_t nbytes, void **out)
{
    cu_device *d = ctx;
    void *p = NULL;
    LS_TRY(cu_device_enter(d));
    const int code = (int)cudaHostAlloc(&p, nbytes ? nbytes : 1, cudaHostAllocPortable | cudaHostAllocMapped);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return ls_nomem(nbytes, "pinned host memory");
    }
    CU_TRY(code);
    memset(p, 0, nbytes ? nbytes : 1);
    *out = p;
    return LS_OK;
}

static void device_release_host(void *ctx, void *p)
{
    const cu_device *d = ctx;
    if (!p) return;
    (void)cudaSetDevice(d->index);
    (void)cudaFreeHost(p);
}

static ls_status device_pin(void *ctx, void *host, size_t nbytes)
{
    const cu_device *d = ctx;
    LS_TRY(cu_device_enter(d));
    const int code = (int)cudaHostRegister(host, nbytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (code != cudaErrorMemoryAllocation) return CU_STATUS(code);
    (void)cudaGetLastError();
    return ls_nomem(nbytes, "pinned host memory");
}

static void device_unpin(void *ctx, void *host)
{
    const cu_device *d = ctx;
    if (!host) return;
    (void)cudaSetDevice(d->index);
    if (cudaHostUnregister(host) != cudaSuccess) (void)cudaGetLastError();
}

/* ---- the queue of operations ---- */

static ls_status device_mark(void *ctx, ls_mark *out)
{
    cu_device *d = ctx;
    LS_TRY(cu_device_enter(d));
    LS_TRY(cu_region_enter(&d->regions));
    const ls_status st = cu_mark_put(&d->marks, d->stream, out);
    cu_region_leave(&d->regions);
    return st;
}

static ls_status device_hold(void *ctx, ls_mark m)
{
    cu_device *d = ctx;
    if (!m) return LS_OK;
    LS_TRY(cu_device_enter(d));
    LS_TRY(cu_region_enter(&d->regions));
    const ls_status st = cu_mark_hold(&d->marks, d->stream, m);
    cu_region_leave(&d->regions);
    return st;
}

static ls_status device_sync(void *ctx)
{
    ls_mark now;
    LS_TRY(device_mark(ctx, &now)); /* others may go on queueing while this one waits */
    return cu_mark_wait(ctx, now);
}

/* ---- lanes ---- */

static ls_status make_lane(cu_device *d, int i)
{
    int least = 0, greatest = 0;
    if (!d->lane[i].stream) {
        CU_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        CU_TRY(cudaStreamCreateWithPriority(&d->lane[i].stream, cudaStreamNonBlocking, greatest));
    }
    d->lane[i].open = true;
    return LS_OK;
}

static ls_status device_lane_open(void *ctx, int *lane)
{
    cu_device *d = ctx;
    LS_TRY(cu_device_enter(d));
    ls_status st = LS_OK;
    int i = 1;
    pthread_mutex_lock(&d->lock);
    while (i < LS_DEVICE_LANES && d->lane[i].open) i++;
    if (i < LS_DEVICE_LANES) st = make_lane(d, i);
    pthread_mutex_unlock(&d->lock);
    if (i == LS_DEVICE_LANES)
        return ls_fail(LS_E_UNSUPPORTED, "all %d copy queues of the device are in use", LS_DEVICE_LANES);
    if (st == LS_OK) *lane = i;
    return st;
}

static void device_lane_close(void *ctx, int lane)
{
    cu_device *d = ctx;
    if (lane < 1 || lane >= LS_DEVICE_LANES) return;
    pthread_mutex_lock(&d->lock);
    d->lane[lane].open = false; /* the stream stays, for the next */
    pthread_mutex_unlock(&d->lock);
}

static ls_status device_copy(void *ctx, int lane, void *dst, const void *src, size_t nbytes, ls_mark after,
                             ls_mark *done)
{
    cu_device *d = ctx;
    const cudaStream_t s = d->lane[lane].stream;
    LS_TRY(cu_device_enter(d));
    if (after) LS_TRY(cu_mark_hold(&d->marks, s, after));
    if (nbytes) CU_TRY(cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDefault, s));
    return done ? cu_mark_put(&d->marks, s, done) : LS_OK;
}

static ls_status device_add(void *ctx, int lane, void *y, const void *a, const void *b, int64_t n, int dtype)
{
    const cu_device *d = ctx;
    LS_TRY(cu_device_enter(d));
    return CU_STATUS(cu_add(d->lane[lane].stream, (ls_dtype)dtype, y, a, b, n));
}

static void *device_lane_stream(void *ctx, int lane)
{
    const cu_device *d = ctx;
    return lane < 0 ? d->stream : d->lane[lane].stream; /* -1: the operations' */
}

static const ls_device functions = {
    .info = device_info,
    .alloc = device_alloc,
    .release = device_release,
    .alloc_host = device_alloc_host,
    .release_host = device_release_host,
    .pin = device_pin,
    .unpin = device_unpin,
    .owns = device_owns,
    .mark = device_mark,
    .hold = device_hold,
    .wait = cu_mark_wait,
    .test = cu_mark_test,
    .seconds = cu_mark_seconds,
    .sync = device_sync,
    .lane_open = device_lane_open,
    .lane_close = device_lane_close,
    .copy = device_copy,
    .add = device_add,
    .lane_stream = device_lane_stream,
};

/* ---- opening ---- */

static ls_status choose(cu_device *d, const ls_compute_open_opts *o, ls_device_info *out)
{
    char words[300];
    const int n = cuda_count(words, sizeof words);
    if (n < 1) return ls_fail(LS_E_UNSUPPORTED, "%s", words);
    if (o->device >= n)
        return ls_fail(LS_E_UNSUPPORTED, "CUDA device %d does not exist: there %s %d, numbered from 0", o->device,
                       n == 1 ? "is" : "are", n);
    d->index = o->device >= 0 ? o->device : o->local_rank % n;
    LS_TRY(cu_device_enter(d));
    LS_TRY(device_info(d, out));
    return cuda_why_unusable(out->capability, words, sizeof words)
               ? ls_fail(LS_E_UNSUPPORTED, "%s %s", out->name, words)
               : LS_OK;
}

ls_status cu_device_look(const ls_compute_open_opts *o, ls_device_info *out)
{
    cu_device d = {0};
    return choose(&d, o, out);
}

/* The device has 8 queues unless the variable is set before CUDA starts. Streams that share one wait for each other: with few of them a
 * message that waits for its peer stops the one that the peer waits for. Operations, lanes and NCCL's own streams are more than 8. A value
 * below 8, which other trainers want, is raised (train/trainer.c tells the user). */
static void enough_queues(void)
{
    const char *set = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (!set || strtol(set, NULL, 10) < 8) (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16", 1);
}

static ls_status open_all(cu_device *d, const ls_compute_open_opts *o)
{
    ls_device_info found;
    enough_queues();
    LS_TRY(choose(d, o, &found));
    CU_TRY(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    LS_TRY(make_lane(d, 0));
    LS_TRY(cu_marks_open(&d->marks, d->stream));
    LS_TRY(cu_regions_open(&d->regions, d->stream));
    d->table = functions;
    d->table.ctx = d;
    return LS_OK;
}

ls_status cu_device_open(cu_device **out, const ls_compute_open_opts *o)
{
    cu_device *d = ls_alloc(sizeof *d);
    if (!d) return ls_nomem(sizeof *d, "a device");
    pthread_mutex_init(&d->lock, NULL);
    const ls_status st = open_all(d, o);
    if (st != LS_OK) {
        cu_device_close(&d);
        return st;
    }
    *out = d;
    return LS_OK;
}

void cu_device_close(cu_device **d)
{
    cu_device *x = *d;
    if (!x) return;
    (void)cudaSetDevice(x->index);
    if (x->stream) (void)cudaStreamSynchronize(x->stream);
    cu_regions_close(&x->regions);
    cu_marks_close(&x->marks);
    for (int i = 0; i < LS_DEVICE_LANES; i++)
        if (x->lane[i].stream) (void)cudaStreamDestroy(x->lane[i].stream);
    if (x->stream) (void)cudaStreamDestroy(x->stream);
    for (int i = 0; i < x->n_block; i++) (void)cudaFree(x->block[i].p);
    ls_free(x->block);
    pthread_mutex_destroy(&x->lock);
    ls_free(x);
    *d = NULL;
}
