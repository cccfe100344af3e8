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
        snprintf(
            words, room,
            "the NVIDIA driver is too old: it supports CUDA %s, this plugin was built with %s; install driver %s or "
            "newer, or build with CUDA %d",
            has, wants, CUDART_VERSION >= 13000 ? "580" : "525", driver / 1000);
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
                          "this plugin has no code for this device; `lockstep doctor` prints how to build it");
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

bool cuda_why_unusable(int capability, char *words, size_t room)
{
    char build[120], card[16];
    int arch;
    bool ptx;
    const int code = cu_code(&arch, &ptx), major = capability / 10, minor = capability % 10;
    snprintf(card, sizeof card, "%d%s", capability, ls_card_of(capability) && ls_card_of(capability)->wgmma ? "a" : "");
    snprintf(build, sizeof build, "build it: LS_CUDA_ARCH=%s ./run build", card);
    if (CUDART_VERSION >= 13000 && capability < 75)
        snprintf(build, sizeof build,
                 "CUDA 13 has none; build it with CUDA 12: ./run clean; PATH=/usr/local/cuda-12/bin:$PATH ./run build");
    if (!ls_card_of(capability))
        snprintf(words, room, "is not supported (compute capability %d.%d, Lockstep needs 7.0)", major, minor);
    else if (code == cudaErrorNoKernelImageForDevice)
        snprintf(words, room, "cannot be used: lockstep_cuda.so has no code for compute capability %d.%d; %s", major,
                 minor, build);
    else if (code)
        snprintf(words, room, "cannot be used: the driver cannot load the code of lockstep_cuda.so (%s, error %d); %s",
                 cudaGetErrorString((cudaError_t)code), code, build);
    else return false;
    return true;
}

/* "": the device does not answer. Returns whether it can be used. */
static bool describe(int i, char *text, size_t room)
{
    struct cudaDeviceProp p;
    char why[300];
    int arch;
    bool ptx;
    text[0] = '\0';
    if (cudaSetDevice(i) != cudaSuccess || cudaGetDeviceProperties(&p, i) != cudaSuccess) return false;
    const int n = snprintf(text, room, "%.80s, %.0f GiB, %d multiprocessors, capability %d.%d", p.name,
                           (double)p.totalGlobalMem / 1073741824, p.multiProcessorCount, p.major, p.minor);
    const bool runs = !cuda_why_unusable(10 * p.major + p.minor, why, sizeof why) && !cu_code(&arch, &ptx);
    const ls_card *card = cu_card();
    if (!runs || !card) snprintf(text + n, room - (size_t)n, ", %s", why);
    else
        snprintf(text + n, room - (size_t)n, ", fp32%s fp16%s%s, kernels of %s, %s %d.%d",
                 card->mma >= 80 ? " tf32" : "", card->bf16 ? " bf16" : "", card->fp8 ? " fp8" : "", card->name,
                 ptx ? "PTX of" : "native code of", arch / 10, arch % 10);
    return runs;
}

/* Neighbours of one kind together: "devices 0 to 7: NVIDIA H200, …". */
int cuda_probe(char *words, size_t room)
{
    const int n = cuda_count(words, room);
    char kind[440] = "", next[440];
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
