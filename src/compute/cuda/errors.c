/* errors.c - CUDA's failures as one line each: what happened, where it showed, what would help. */
#include "compute/cuda/cuda_impl.h"
#include "compute/cuda/kernels/kernels.h"

#include <stdio.h>
#include <string.h>

static bool is_lost(int code)
{
    switch (code) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown: return true;
    default: return false;
    }
}

static bool is_absent(int code)
{
    return code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver;
}

static void version(int v, char *text, size_t room)
{
    snprintf(text, room, "%d.%d", v / 1000, v % 1000 / 10);
}

/* Why there is no usable device, after cudaGetDeviceCount gave `code`. */
static void no_device(int code, char *words, size_t room)
{
    char has[16], wants[16];
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    version(driver, has, sizeof has);
    version(CUDART_VERSION, wants, sizeof wants);
    if (!is_absent(code))
        snprintf(words, room, "cannot initialize the CUDA driver: %s", cudaGetErrorString((cudaError_t)code));
    else if (!driver) snprintf(words, room, "no CUDA device: no NVIDIA driver is loaded");
    else if (code == cudaErrorInsufficientDriver)
        snprintf(words, room, "the NVIDIA driver is too old: it supports CUDA %s, this plugin was built with %s", has,
                 wants);
    else snprintf(words, room, "no CUDA device: the driver (CUDA %s) finds none; check CUDA_VISIBLE_DEVICES", has);
}

/* The function's name alone. */
static void name_of(const char *what, char *name, size_t room)
{
    const size_t n = strcspn(what, "(");
    snprintf(name, room, "%.*s", (int)(n < 80 ? n : 80), what);
}

ls_status cuda_said(int code, const char *what, const char *file, int line)
{
    char name[96], words[200];
    if (code == cudaSuccess) return LS_OK;
    (void)cudaGetLastError(); /* reported once */
    name_of(what, name, sizeof name);
    const char *text = cudaGetErrorString((cudaError_t)code);
    if (code == cudaErrorMemoryAllocation) {
        size_t left = 0, total = 0;
        (void)cudaMemGetInfo(&left, &total);
        return ls_fail_at(LS_E_NOMEM, file, line, "%s: out of device memory (%.0f of %.0f MiB are free)", name,
                          (double)left / 1048576, (double)total / 1048576);
    }
    if (is_absent(code)) {
        no_device(code, words, sizeof words);
        return ls_fail_at(LS_E_UNSUPPORTED, file, line, "%s", words);
    }
    if (code == cudaErrorNoKernelImageForDevice)
        return ls_fail_at(LS_E_UNSUPPORTED, file, line,
                          "this plugin has no code for this device; build it with -DLS_CUDA_ARCH=<compute capability>");
    if (is_lost(code))
        return ls_fail_at(
            LS_E_DEVICE, file, line,
            "the device is no longer usable (%s, error %d, reported by %s): an earlier operation or the hardware failed; run compute-sanitizer to find the operation, and check dmesg for hardware errors",
            text, code, name);
    return ls_fail_at(LS_E_DEVICE, file, line, "%s: %s (CUDA error %d)", name, text, code);
}

int cuda_count(char *words, size_t room)
{
    int n = 0;
    const int code = (int)cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    words[0] = '\0';
    if (code == cudaSuccess && n > 0) return n;
    no_device(code ? code : cudaErrorNoDevice, words, room);
    return 0;
}

/* "": the device does not answer. Returns whether the plugin has code for it. */
static bool describe(int i, char *text, size_t room)
{
    struct cudaDeviceProp p;
    text[0] = '\0';
    if (cudaSetDevice(i) != cudaSuccess || cudaGetDeviceProperties(&p, i) != cudaSuccess) return false;
    int arch;
    const bool runs = cu_code(&arch) == cudaSuccess;
    snprintf(text, room, "%.80s, %.0f GiB, %d multiprocessors, capability %d.%d%s", p.name,
             (double)p.totalGlobalMem / 1073741824, p.multiProcessorCount, p.major, p.minor,
             runs ? "" : " (this plugin has no code for it: -DLS_CUDA_ARCH)");
    return runs;
}

/* Neighbours of one kind together: "devices 0 to 7: NVIDIA H200, …". */
int cuda_probe(char *words, size_t room)
{
    const int n = cuda_count(words, room);
    char kind[240] = "", next[240];
    int usable = 0, first = 0;
    for (int i = 0; i <= n; i++) {
        next[0] = '\0';
        if (i < n) usable += describe(i, next, sizeof next);
        if (!strcmp(kind, next)) continue;
        const size_t at = strlen(words);
        if (kind[0] && first == i - 1) snprintf(words + at, room - at, "%sdevice %d: %s", at ? "; " : "", first, kind);
        else if (kind[0]) snprintf(words + at, room - at, "%sdevices %d to %d: %s", at ? "; " : "", first, i - 1, kind);
        memcpy(kind, next, sizeof kind);
        first = i;
    }
    return usable;
}
