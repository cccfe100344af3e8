/* device.h - device memory, copies to and from it, and the order of queued work.
 *
 * A backend that computes on a device queues its operations: they run later, in call order. All transfers between device and host memory
 * (staged collectives, checkpoints, inputs, losses) use this table. A CPU backend has no device (NULL).
 *
 *   mark     a point in a queue, like a CUDA event: it is reached when everything queued before it is complete
 *   lane     a copy queue, separate from the queue of operations, so that copies and computation overlap
 *
 *   mark(&ready); copy(lane, pinned, x, n, ready, &there); … wait(there)          to the host, after the operations queued so far
 *   copy(lane, x, pinned, n, 0, &there); hold(there)                              to the device, before the operations queued next
 *
 * All functions are thread-safe. A failure of queued work is reported by the next wait, hold or sync. */
#ifndef LS_CORE_DEVICE_H
#define LS_CORE_DEVICE_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t ls_mark; /* 0: nothing to wait for */

#define LS_DEVICE_LANES 32 /* lane 0: inputs and reads of the trainer; others by lane_open */

typedef struct ls_device_info {
    char name[96];                   /* "NVIDIA H200"                               */
    char driver[32], api[32];        /* versions, as text                          */
    char bus[24];                    /* PCI bus address, "0000:1B:00.0"; "": unknown */
    char cudnn[16];                  /* version of cuDNN; "": not used */
    int index, count;                /* among the devices of this process           */
    int64_t total, free;             /* bytes                                       */
    int multiprocessors, capability; /* 90 = 9.0                            */
    int code;                        /* the architecture of this program's code for it; 0: none */
    bool ptx;                        /* the driver compiled that code, from PTX                 */
} ls_device_info;

typedef struct ls_device {
    void *ctx;
    ls_status (*info)(void *ctx, ls_device_info *out);

    ls_status (*alloc)(void *ctx, size_t nbytes, void **out); /* zeroed; LS_E_NOMEM reports the free memory */
    void (*release)(void *ctx, void *p);
    ls_status (*alloc_host)(void *ctx, size_t nbytes,
                            void **out); /* zeroed pinned host memory that the device can access */
    void (*release_host)(void *ctx, void *p);
    ls_status (*pin)(void *ctx, void *host, size_t nbytes); /* pins existing host memory */
    void (*unpin)(void *ctx, void *host);
    bool (*owns)(void *ctx, const void *p); /* p points into memory of alloc */

    ls_status (*mark)(void *ctx, ls_mark *out); /* of the queue of operations                          */
    ls_status (*hold)(void *ctx, ls_mark m);    /* operations queued later wait for it                 */
    ls_status (*wait)(void *ctx, ls_mark m);    /* blocks the calling thread                           */
    bool (*test)(void *ctx, ls_mark m);         /* whether it was reached                              */
    ls_status (*seconds)(void *ctx, ls_mark m,
                         double *at); /* time on the device's clock at which it was reached; blocks.
                                                             * NAN: no longer known, too many marks were set since */
    ls_status (*sync)(void *ctx);     /* waits for all queued operations                     */

    ls_status (*lane_open)(void *ctx, int *lane);
    void (*lane_close)(void *ctx, int lane);
    /* Copies nbytes from src to dst after the mark `after`; one of the two is device memory. *done (may be NULL) is a mark after the copy.
     * With 0 bytes the lane only waits for `after`. */
    ls_status (*copy)(void *ctx, int lane, void *dst, const void *src, size_t nbytes, ls_mark after, ls_mark *done);

    /* y = a + b, elementwise on the device, queued in this lane; sums staged or received parts. LS_F32 (bf16 sums are computed in float and
     * rounded once). */
    ls_status (*add)(void *ctx, int lane, void *y, const void *a, const void *b, int64_t n, int dtype);
    void *(*lane_stream)(void *ctx, int lane); /* the native handle (cudaStream_t), for libraries that queue work */
} ls_device;

#endif
