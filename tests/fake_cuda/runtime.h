/* runtime.h - the part of the CUDA runtime API that this project uses, implemented by the emulator. C and C++; names, values and meaning
 * are those of CUDA, so that host code compiles with either.
 *
 * A strict test of order: streams are LAZY. Operations of a stream run only when a thread waits for them (synchronize, waiting for an event, one
 * operation per query), so that code which forgets to wait sees the old data.
 *
 *   LS_EMU_DEVICES  the number of devices (1; 0: cudaGetDeviceCount returns cudaErrorNoDevice)
 *   LS_EMU_GPU      the card: v100, t4, a100, l4, h100 (k80: one that is not supported); not set: 9.0 with 8 GiB
 *   LS_EMU_CODE     the architecture of the program's code, 75 for PTX of 7.5; not set: that of the card. Newer than the card: there is none
 *   LS_EMU_MEMORY   bytes of memory per device (those of the card)
 *   LS_EMU_ORDER    a number: threads and blocks run in a shuffled order, so that races show
 *   LS_EMU_PROTECT  1: device memory is accessible only to operations; an access of the host is a SIGSEGV
 *   LS_EMU_EAGER    1: streams are not lazy (to debug)
 *   LS_EMU_FAIL     NAME:N: the N-th call of this function in a process fails (cudaErrorUnknown)
 *   LS_EMU_DEPTH    operations that a stream can hold (0: any number): a call that queues one more waits for room, as in CUDA after about 1,000
 *   LS_EMU_QUEUES   hardware queues of a device (CUDA_DEVICE_MAX_CONNECTIONS; 0: one for each stream). Streams are assigned in turn: a
 *                   waiting kernel delays what is queued later in any stream of its queue
 *   LS_EMU_SYNC     calls that wait until the device is idle, besides cudaFree, cudaFreeHost, cudaHostUnregister and
 *                   cudaDeviceSynchronize, which always wait. CUDA sometimes waits in all of these: cudaMalloc, cudaHostAlloc,
 *                   cudaHostRegister, cudaGraphInstantiateWithFlags, cudaGraphExecDestroy, launch (the first of a kernel: its code is loaded
 *                   then), join (of a library's group); all */
#ifndef LS_EMU_RUNTIME_H
#define LS_EMU_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorECCUncorrectable = 214,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorHardwareStackError = 714,
    cudaErrorIllegalInstruction = 715,
    cudaErrorMisalignedAddress = 716,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnmatched = 903,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorCapturedEvent = 907,
    cudaErrorStreamCaptureWrongThread = 908,
    cudaErrorUnknown = 999
} cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated
};

#define cudaStreamDefault              0u
#define cudaStreamNonBlocking          1u
#define cudaEventDefault               0u
#define cudaEventBlockingSync          1u
#define cudaEventDisableTiming         2u
#define cudaEventRecordDefault         0u
#define cudaEventRecordExternal        1u
#define cudaEventWaitDefault           0u
#define cudaEventWaitExternal          1u
#define cudaHostAllocDefault           0u
#define cudaHostAllocPortable          1u
#define cudaHostAllocMapped            2u
#define cudaHostRegisterDefault        0u
#define cudaHostRegisterPortable       1u
#define cudaHostRegisterMapped         2u
#define cudaDeviceScheduleSpin         1u
#define cudaDeviceScheduleYield        2u
#define cudaDeviceScheduleBlockingSync 4u
#define CUDART_VERSION                 13000

typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_graph_exec *cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void *);

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, l2CacheSize, warpSize, maxThreadsPerBlock, canMapHostMemory, integrated;
};
struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};

const char *cudaGetErrorString(cudaError_t e);
const char *cudaGetErrorName(cudaError_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device);
cudaError_t cudaDriverGetVersion(int *v);
cudaError_t cudaRuntimeGetVersion(int *v);
cudaError_t cudaMemGetInfo(size_t *nfree, size_t *total);

cudaError_t cudaMalloc(void **p, size_t nbytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **p, size_t nbytes);
cudaError_t cudaHostAlloc(void **p, size_t nbytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t nbytes, unsigned flags);
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p);

cudaError_t cudaMemcpy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemset(void *p, int byte, size_t nbytes);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t nbytes, cudaStream_t s);

cudaError_t cudaStreamCreate(cudaStream_t *s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg);

cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphGetNodes(cudaGraph_t g, void **nodes, size_t *n); /* nodes: NULL, for the number only */

/* ---- for libraries that put kernels of their own on streams (tests/fake_nccl finds these with dlsym) ---- */
#define EMU_SHOWN __attribute__((visibility("default")))
/* A kernel that waits for other processes: its function is called in the turn of its stream until it returns nonzero, with the lock of the emulator held. The
 * stream, and those of the same hardware queue, wait until then; the host does not. */
EMU_SHOWN cudaError_t emu_stream_poll(cudaStream_t s, int (*over)(void *), void *arg);
EMU_SHOWN void emu_sync_point(const char *name); /* LS_EMU_SYNC */
EMU_SHOWN int emu_holds(const void *p,
                        size_t nbytes);  /* whether these bytes are in one allocation that the device can access */
EMU_SHOWN void emu_break(cudaError_t e); /* see below */

/* ---- for tests ---- */
/* The call `name` ("cudaMalloc") returns `e` once, after `after` successful calls. */
void emu_fail(const char *name, cudaError_t e, int after);
/* The device is lost: every call returns `e` from now on; cudaSuccess repairs it. */
void emu_break(cudaError_t e);
typedef struct emu_counts {
    int allocations, pinned, streams, events, graphs; /* that exist now          */
    int64_t launches, graph_launches, waiting;        /* so far; operations queued */
} emu_counts;
emu_counts emu_count(void);

#ifdef __cplusplus
}
#endif
#endif
