/* A libnvidia-ml.so for tests: two GPUs whose values are functions of time, so that the results of a sampler are known.
 *
 *   FAKE_NVML_REFUSE   comma-separated: busy power energy memory clock heat slowed init: those calls fail
 *   power is 300 W on GPU 0 and 500 W on GPU 1, energy its integral since the library started; memory is 10 GiB and grows by 1 GiB per
 *   second; the clock is 1755 MHz, limited by the power cap and by heat. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

typedef struct gpu {
    const char *uuid, *bus, *name;
    double watts;
} gpu;

static gpu gpus[2] = {{"GPU-aaaa0000-1111-2222-3333-444455556666", "00000000:1B:00.0", "Fake H200", 300},
                      {"GPU-bbbb0000-1111-2222-3333-444455556666", "00000000:3D:00.0", "Fake H200 NVL", 500}};
static double begin;

enum { NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool refused(const char *word)
{
    const char *list = getenv("FAKE_NVML_REFUSE");
    return list && strstr(list, word);
}

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int rc);
int nvmlSystemGetDriverVersion(char *out, unsigned n);
int nvmlSystemGetCudaDriverVersion_v2(int *out);
int nvmlDeviceGetCount_v2(unsigned *out);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, gpu **out);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, gpu **out);
int nvmlDeviceGetUUID(gpu *g, char *out, unsigned n);
int nvmlDeviceGetName(gpu *g, char *out, unsigned n);
int nvmlDeviceGetPciInfo_v3(gpu *g, void *out);
int nvmlDeviceGetCudaComputeCapability(gpu *g, int *major, int *minor);
int nvmlDeviceGetUtilizationRates(gpu *g, unsigned out[2]);
int nvmlDeviceGetMemoryInfo(gpu *g, unsigned long long out[3]);
int nvmlDeviceGetPowerUsage(gpu *g, unsigned *out);
int nvmlDeviceGetEnforcedPowerLimit(gpu *g, unsigned *out);
int nvmlDeviceGetTotalEnergyConsumption(gpu *g, unsigned long long *out);
int nvmlDeviceGetClockInfo(gpu *g, int kind, unsigned *out);
int nvmlDeviceGetMaxClockInfo(gpu *g, int kind, unsigned *out);
int nvmlDeviceGetTemperature(gpu *g, int sensor, unsigned *out);
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu *g, unsigned long long *out); /* only the old name */

int nvmlInit_v2(void)
{
    begin = now();
    return refused("init") ? DRIVER_NOT_LOADED : 0;
}

int nvmlShutdown(void)
{
    return 0;
}

const char *nvmlErrorString(int rc)
{
    return rc == NOT_SUPPORTED       ? "Not Supported"
           : rc == NO_PERMISSION     ? "Insufficient Permissions"
           : rc == NOT_FOUND         ? "Not Found"
           : rc == DRIVER_NOT_LOADED ? "Driver Not Loaded"
                                     : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned n)
{
    snprintf(out, n, "580.65.06");
    return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    *out = 13000;
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, gpu **out)
{
    if (i > 1) return NOT_FOUND;
    *out = &gpus[i];
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, gpu **out)
{
    for (int i = 0; i < 2; i++)
        if (!strcasecmp(gpus[i].bus + (strlen(bus) == 12 ? 4 : 0), bus)) return *out = &gpus[i], 0;
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(gpu *g, char *out, unsigned n)
{
    snprintf(out, n, "%s", g->uuid);
    return 0;
}

int nvmlDeviceGetName(gpu *g, char *out, unsigned n)
{
    snprintf(out, n, "%s", g->name);
    return 0;
}

int nvmlDeviceGetPciInfo_v3(gpu *g, void *out)
{
    memset(out, 0, 68);
    snprintf((char *)out + 36, 32, "%s", g->bus);
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(gpu *g, int *major, int *minor)
{
    (void)g;
    *major = 9;
    *minor = 0;
    return 0;
}

int nvmlDeviceGetUtilizationRates(gpu *g, unsigned out[2])
{
    if (refused("busy")) return NOT_SUPPORTED;
    out[0] = g == gpus ? 87 : 40;
    out[1] = 30;
    return 0;
}

int nvmlDeviceGetMemoryInfo(gpu *g, unsigned long long out[3])
{
    (void)g;
    if (refused("memory")) return NO_PERMISSION;
    out[0] = 141ull << 30;
    out[2] = (10ull << 30) + (unsigned long long)((now() - begin) * 1073741824.0);
    out[1] = out[0] - out[2];
    return 0;
}

int nvmlDeviceGetPowerUsage(gpu *g, unsigned *out)
{
    if (refused("power")) return NOT_SUPPORTED;
    *out = (unsigned)(g->watts * 1000);
    return 0;
}

int nvmlDeviceGetEnforcedPowerLimit(gpu *g, unsigned *out)
{
    (void)g;
    *out = 700000;
    return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(gpu *g, unsigned long long *out)
{
    if (refused("energy")) return NOT_SUPPORTED;
    *out = (unsigned long long)((now() - begin) * g->watts * 1000);
    return 0;
}

int nvmlDeviceGetClockInfo(gpu *g, int kind, unsigned *out)
{
    (void)g;
    if (refused("clock")) return NOT_SUPPORTED;
    *out = kind == 1 ? 1755 : 3201;
    return 0;
}

int nvmlDeviceGetMaxClockInfo(gpu *g, int kind, unsigned *out)
{
    (void)g;
    *out = kind == 1 ? 1980 : 3201;
    return 0;
}

int nvmlDeviceGetTemperature(gpu *g, int sensor, unsigned *out)
{
    (void)g;
    (void)sensor;
    if (refused("heat")) return NOT_SUPPORTED;
    *out = 61;
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(gpu *g, unsigned long long *out)
{
    (void)g;
    if (refused("slowed")) return NOT_SUPPORTED;
    *out = 0x4 | 0x20;
    return 0;
}
