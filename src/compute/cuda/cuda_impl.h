/* cuda_impl.h - what the host files of the CUDA backend share.
 *
 *   plugin.c   the edge: the table that the program finds      errors.c   failures as text
 *   cuda.c     opens and closes a backend, sizes its scratch    ops.c, classifier.c   the operations
 *   device.c   memory, lanes, copies                            marks.c    points in queues
 *   region.c   rows of operations that come again, as graphs */
#ifndef LS_CUDA_IMPL_H
#define LS_CUDA_IMPL_H

#include "compute/compute.h"
#include "compute/cuda/attention.h"
#include <cuda_runtime_api.h>
#include "compute/cuda/gemm.h"
#include "compute/cuda/scratch.h"

#include <pthread.h>

/* ---- errors.c ---- */

/* The failure of `what` ("cudaMalloc") as text; LS_OK for 0. */
ls_status cuda_said(int code, const char *what, const char *file, int line);
#define CU_STATUS(call) cuda_said((int)(call), #call, __FILE__, __LINE__)
#define CU_TRY(call)                                  \
    do {                                              \
        const ls_status cu_try_st_ = CU_STATUS(call); \
        if (cu_try_st_ != LS_OK) return cu_try_st_;   \
    } while (0)
/* Number of devices; if 0, `words` receives the reason. */
int cuda_count(char *words, size_t room);
int cuda_probe(char *words, size_t room); /* of compute/plugin.h */
/* Whether the current device, of this capability, cannot be used; `words`: why, and what to type, after its name. */
bool cuda_why_unusable(int capability, char *words, size_t room);

/* ---- region.c ---- */

typedef struct cu_regions {
    cudaStream_t stream;
    pthread_mutex_t queue; /* recursive; held by the thread that records */
    bool off, recording;
    int depth; /* of regions that have begun and not ended */
    struct cu_region *now, *all;
    int n;
    uint64_t turn;
    int64_t n_recorded, n_launched, n_cut;
} cu_regions;

ls_status cu_regions_open(cu_regions *r, cudaStream_t stream);
void cu_regions_close(cu_regions *r);
ls_status cu_region_begin(cu_regions *r, uint64_t name, bool *queued);
ls_status cu_region_end(cu_regions *r);
/* Before anything is done with the stream that a recording cannot hold (a wait, an event): this thread's recording is cut here - what it
 * has so far is queued, the rest of the region goes to the stream directly, now and always - and that of another thread is waited for.
 * Then the stream is this thread's until cu_region_leave. */
ls_status cu_region_enter(cu_regions *r);
void cu_region_leave(cu_regions *r);

/* ---- device.c, marks.c ---- */

/* Points in streams, numbered from 1 on, in a ring of events: when a place is used again its old mark has passed. */
typedef struct cu_marks {
    bool open;
    pthread_mutex_t lock;
    uint64_t turn;
    cudaEvent_t base;
    double base_at;
    int n, next;                 /* slots that exist; the one that takes the next mark */
    struct cu_mark_slot **block; /* of slots */
} cu_marks;

typedef struct cu_device {
    int index;
    char cudnn[16];      /* for those who ask the device; cuda.c knows */
    cudaStream_t stream; /* the queue of operations */
    cu_marks marks;
    cu_regions regions;
    pthread_mutex_t lock; /* of what follows */
    struct {
        cudaStream_t stream;
        bool open;
    } lane[LS_DEVICE_LANES];
    struct cu_block { /* of device memory */
        char *p;
        size_t nbytes;
    } * block;
    int n_block, cap_block;
    ls_device table;
} cu_device;

/* Chooses the device of opts->device or opts->local_rank, and makes its stream. */
ls_status cu_device_open(cu_device **out, const ls_compute_open_opts *o);
/* What cu_device_open would take, without its streams and marks. The context stays: for a process that ends. */
ls_status cu_device_look(const ls_compute_open_opts *o, ls_device_info *out);
void cu_device_close(cu_device **d);
ls_status cu_device_enter(const cu_device *d); /* threads have a current device each */

ls_status cu_marks_open(cu_marks *k, cudaStream_t stream); /* `stream`: where the clock begins */
void cu_marks_close(cu_marks *k);
ls_status cu_mark_put(cu_marks *k, cudaStream_t s, ls_mark *out);
ls_status cu_mark_hold(cu_marks *k, cudaStream_t s, ls_mark m);
/* Of ls_device; ctx is a cu_device. */
ls_status cu_mark_wait(void *ctx, ls_mark m);
bool cu_mark_test(void *ctx, ls_mark m);
ls_status cu_mark_seconds(void *ctx, ls_mark m, double *at);

/* ---- cuda.c ---- */

typedef struct cuda {
    cu_device *device;
    cudaStream_t stream;
    cu_gemm *gemm;
    cu_attention *attention;
    ls_compute_ops ops;
    bool stochastic, tf32;
} cuda;

static inline cuda *cuda_of(const ls_compute *c)
{
    return (cuda *)c->impl;
}

ls_status cuda_open(const ls_compute_open_opts *o, ls_compute *c);
void cuda_close(ls_compute *c);
size_t cuda_scratch(const ls_compute *c, const ls_compute_shapes *s);
void cuda_describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS]);

/* The scratch that the caller lends: the products' workspace, then that of the operation that runs, both aligned to 256 bytes. */
static inline void *cuda_workspace(const ls_compute *c)
{
    return (char *)c->scratch + (cu_bytes_up((uintptr_t)c->scratch) - (uintptr_t)c->scratch);
}
static inline void *cuda_room(const ls_compute *c)
{
    return (char *)cuda_workspace(c) + CU_GEMM_NBYTES;
}

/* ---- ops.c, classifier.c ---- */

extern const ls_compute_ops cuda_ops; /* but for the type */
ls_status cuda_classifier(ls_compute *c, const ls_classifier *a);
bool cuda_adds_alike(const ls_compute *c, const ls_compute_shapes *s);
size_t cuda_ops_scratch(const cuda *x, const ls_compute_shapes *s);
size_t cuda_classifier_scratch(const cuda *x, const ls_compute_shapes *s);
ls_status cuda_product(ls_compute *c, cu_product p);

#endif
