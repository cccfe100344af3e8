/* device.h - memory that only a device's operations touch, and the order of work on it.
 *
 * A backend that computes on a device queues its operations: they run in the order of the calls, and later. Whoever moves data between
 * that memory and the host (collectives staged through the host, checkpoints, inputs, losses) goes through this table; a backend of the
 * host's own memory has none (NULL).
 *
 *   mark     a point in a queue: everything that was queued there before it
 *   lane     a queue of copies beside the queue of operations, so that the two overlap
 *
 *   mark(&ready); copy(lane, pinned, x, n, ready, &there); … wait(there)          to the host, after what was queued so far
 *   copy(lane, x, pinned, n, 0, &there); hold(there)                              to the device, before what is queued next
 *
 * Every member may be called from any thread. Failures of queued work show at the next wait, hold or sync. */
#ifndef LS_CORE_DEVICE_H
#define LS_CORE_DEVICE_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t ls_mark; /* 0: nothing to wait for */

#define LS_DEVICE_LANES 32 /* lane 0: inputs and reads of the trainer; others by lane_open */

typedef struct ls_device_info {
    char name[96];                   /* "NVIDIA H200"                               */
    char driver[32], api[32];        /* versions, as words                         */
    char bus[24];                    /* where it is plugged in, "0000:1B:00.0"; "": it does not say */
    char cudnn[16];                  /* version of its library for attention; "": not in use */
    int index, count;                /* among the devices of this process           */
    int64_t total, free;             /* bytes                                       */
    int multiprocessors, capability; /* 90 = 9.0                            */
    bool shared;                     /* other processes of this run may use it, too */
} ls_device_info;

typedef struct ls_device {
    void *ctx;
    ls_status (*info)(void *ctx, ls_device_info *out);

    ls_status (*alloc)(void *ctx, size_t nbytes, void **out); /* zeroed; LS_E_NOMEM says what there is */
    void (*release)(void *ctx, void *p);
    ls_status (*alloc_host)(void *ctx, size_t nbytes,
                            void **out); /* zeroed host memory that operations and copies reach at its address */
    void (*release_host)(void *ctx, void *p);
    ls_status (*pin)(void *ctx, void *host, size_t nbytes); /* makes somebody else's host memory such memory */
    void (*unpin)(void *ctx, void *host);
    bool (*owns)(void *ctx, const void *p); /* p lies in memory of alloc */

    ls_status (*mark)(void *ctx, ls_mark *out);             /* of the queue of operations                          */
    ls_status (*hold)(void *ctx, ls_mark m);                /* operations that are queued from now on wait for it  */
    ls_status (*wait)(void *ctx, ls_mark m);                /* the calling thread waits                            */
    bool (*test)(void *ctx, ls_mark m);                     /* it has passed                                       */
    ls_status (*seconds)(void *ctx, ls_mark m, double *at); /* when it passed, on the device's clock; waits. NAN: not
                                                             * known any more, too many marks were put since  */
    ls_status (*sync)(void *ctx);                           /* waits for every operation that was queued           */

    ls_status (*lane_open)(void *ctx, int *lane);
    void (*lane_close)(void *ctx, int lane);
    /* nbytes from src to dst, either of which is device memory, after `after`; done (or NULL) is a mark behind it. 0 bytes: the lane
     * waits for `after`, and done (or NULL) is a mark of the lane. */
    ls_status (*copy)(void *ctx, int lane, void *dst, const void *src, size_t nbytes, ls_mark after, ls_mark *done);

    /* y = a + b, elementwise on the device, in this lane after what it holds; for sums of staged or received parts. LS_F32 (bf16 sums are
     * made in float and rounded once). */
    ls_status (*add)(void *ctx, int lane, void *y, const void *a, const void *b, int64_t n, int dtype);
    void *(*lane_stream)(void *ctx,
                         int lane); /* the backend's own handle (cudaStream_t), for a library that queues work itself */
} ls_device;

#endif
