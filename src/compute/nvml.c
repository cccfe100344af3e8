#include "compute/nvml.h"

#include "core/mem.h"
#include "core/str.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the library's side: types and numbers of its ABI ---- */

typedef void *handle;
enum { CLOCK_SM = 1, CLOCK_MEM = 2, SENSOR_GPU = 0 };

typedef struct utilization {
    unsigned gpu, memory;
} utilization;

typedef struct memory {
    unsigned long long total, free, used;
} memory;

typedef struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci;

/* name in our table, symbol, type. Those with two names got the second one later. */
#define CALLS(X)                                                                               \
    X(init, "nvmlInit_v2", int (*)(void))                                                      \
    X(shutdown, "nvmlShutdown", int (*)(void))                                                 \
    X(words, "nvmlErrorString", const char *(*)(int))                                          \
    X(driver, "nvmlSystemGetDriverVersion", int (*)(char *, unsigned))                         \
    X(count, "nvmlDeviceGetCount_v2", int (*)(unsigned *))                                     \
    X(by_index, "nvmlDeviceGetHandleByIndex_v2", int (*)(unsigned, handle *))                  \
    X(by_bus, "nvmlDeviceGetHandleByPciBusId_v2", int (*)(const char *, handle *))             \
    X(uuid, "nvmlDeviceGetUUID", int (*)(handle, char *, unsigned))                            \
    X(name, "nvmlDeviceGetName", int (*)(handle, char *, unsigned))                            \
    X(pci, "nvmlDeviceGetPciInfo_v3", int (*)(handle, pci *))                                  \
    X(capability, "nvmlDeviceGetCudaComputeCapability", int (*)(handle, int *, int *))         \
    X(utilization, "nvmlDeviceGetUtilizationRates", int (*)(handle, utilization *))            \
    X(memory, "nvmlDeviceGetMemoryInfo", int (*)(handle, memory *))                            \
    X(power, "nvmlDeviceGetPowerUsage", int (*)(handle, unsigned *))                           \
    X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", int (*)(handle, unsigned *))             \
    X(energy, "nvmlDeviceGetTotalEnergyConsumption", int (*)(handle, unsigned long long *))    \
    X(clock, "nvmlDeviceGetClockInfo", int (*)(handle, int, unsigned *))                       \
    X(clock_max, "nvmlDeviceGetMaxClockInfo", int (*)(handle, int, unsigned *))                \
    X(temperature, "nvmlDeviceGetTemperature", int (*)(handle, int, unsigned *))               \
    X(slowed, "nvmlDeviceGetCurrentClocksEventReasons", int (*)(handle, unsigned long long *)) \
    X(slowed_before, "nvmlDeviceGetCurrentClocksThrottleReasons", int (*)(handle, unsigned long long *))

typedef struct calls {
#define X(member, symbol, type) __typeof__((type)0) member;
    CALLS(X)
#undef X
} calls;

/* Values that may be refused; the order of `asked`. */
enum { V_BUSY, V_MEMORY, V_POWER, V_ENERGY, V_SM, V_MEM, V_HEAT, V_SLOWED, V_LIMIT, N_VALUE };
static const char *const value_word[N_VALUE] = {"utilisation", "memory",          "power",
                                                "energy",      "SM clock",        "memory clock",
                                                "temperature", "clock's reasons", "power limit"};

struct ls_nvml {
    void *library;
    calls f;
    handle gpu;
    bool refused[N_VALUE];
    ls_str reasons;
};

static const char *error_words(const calls *f, int rc)
{
    const char *w = f->words ? f->words(rc) : NULL;
    return w ? w : "?";
}

static ls_status open_library(void **library, calls *f)
{
    const char *path = getenv("LS_NVML");
    if (!path || !*path) path = "libnvidia-ml.so.1";
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) return ls_fail(LS_E_UNSUPPORTED, "cannot load NVML: %s", dlerror());
    memset(f, 0, sizeof *f);
#define X(member, symbol, type)                                                     \
    do {                                                                            \
        void *p_ = dlsym(lib, symbol);                                              \
        memcpy(&f->member, &p_, sizeof p_); /* ISO C has no cast between the two */ \
    } while (0);
    CALLS(X)
#undef X
    if (!f->init || !f->shutdown || !f->count || !f->by_index) {
        dlclose(lib);
        return ls_fail(LS_E_UNSUPPORTED, "%s is not a supported NVML (nvmlInit_v2 or a device function is missing)",
                       path);
    }
    const int rc = f->init();
    if (rc) {
        ls_status st = ls_fail(LS_E_UNSUPPORTED, "cannot initialize NVML: %s (%d)", error_words(f, rc), rc);
        dlclose(lib);
        return st;
    }
    *library = lib;
    return LS_OK;
}

/* ---- which GPU ---- */

static bool all_digits(const char *s)
{
    return *s && !s[strspn(s, "0123456789")];
}

/* Entry `index` of CUDA_VISIBLE_DEVICES; false: the variable does not say. */
static bool visible_entry(int index, char out[96])
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) return false;
    for (int i = 0; *list; i++) {
        const size_t n = strcspn(list, ",");
        if (i == index) {
            while (*list == ' ') list++;
            snprintf(out, 96, "%.*s", (int)strcspn(list, ", "), list);
            return out[0] != '\0';
        }
        list += n + (list[n] == ',');
    }
    return false;
}

static ls_status by_uuid(const calls *f, const char *start, handle *out)
{
    unsigned n = 0;
    int hits = 0;
    if (f->count(&n) || !f->uuid) return ls_fail(LS_E_UNSUPPORTED, "NVML lists no UUIDs");
    for (unsigned i = 0; i < n; i++) {
        handle h;
        char uuid[96] = "";
        if (f->by_index(i, &h) || f->uuid(h, uuid, sizeof uuid)) continue;
        if (strncasecmp(uuid, start, strlen(start)) != 0) continue;
        *out = h;
        hits++;
    }
    if (hits == 1) return LS_OK;
    return ls_fail(LS_E_UNSUPPORTED, "%d of the %u GPUs of this machine have a UUID that begins with %s", hits, n,
                   start);
}

static ls_status find_gpu(const calls *f, const char *which, handle *out)
{
    char entry[96];
    if (!which) which = "0";
    if (all_digits(which) && visible_entry((int)strtol(which, NULL, 10), entry)) which = entry;
    if (!strncasecmp(which, "GPU-", 4)) return by_uuid(f, which, out);
    int rc = -1;
    if (all_digits(which)) rc = f->by_index((unsigned)strtoul(which, NULL, 10), out);
    else if (f->by_bus) rc = f->by_bus(which, out);
    if (rc) return ls_fail(LS_E_UNSUPPORTED, "NVML does not find GPU %s: %s", which, error_words(f, rc));
    return LS_OK;
}

ls_status ls_nvml_open(ls_nvml **out, const char *which)
{
    ls_nvml *n = ls_alloc(sizeof *n);
    if (!n) return ls_nomem(sizeof *n, "NVML");
    ls_status st = open_library(&n->library, &n->f);
    if (st == LS_OK) st = find_gpu(&n->f, which, &n->gpu);
    if (st == LS_OK) *out = n;
    else ls_nvml_close(&n);
    return st;
}

void ls_nvml_close(ls_nvml **np)
{
    ls_nvml *n = *np;
    if (!n) return;
    if (n->library) {
        n->f.shutdown();
        dlclose(n->library);
    }
    ls_str_fini(&n->reasons);
    ls_free(n);
    *np = NULL;
}

/* ---- values ---- */

/* Notes why a value is missing, the first time. rc -1: the library has no such call. */
static bool given(ls_nvml *n, int value, int rc)
{
    if (rc == 0) return true;
    if (n->refused[value]) return false;
    n->refused[value] = true;
    ls_str_addf(&n->reasons, "%s%s: %s", n->reasons.len ? ", " : "", value_word[value],
                rc == -1 ? "not in this library" : error_words(&n->f, rc));
    return false;
}

const char *ls_nvml_refused(const ls_nvml *n)
{
    return n->reasons.data ? n->reasons.data : "";
}

/* Calls the library for a value of this GPU; whether it was given. */
#define READ(n, value, call, ...) given(n, value, (n)->f.call ? (n)->f.call((n)->gpu, __VA_ARGS__) : -1)

void ls_nvml_read(ls_nvml *n, ls_gpu_now *out)
{
    utilization u = {0};
    memory m = {0};
    unsigned long long mj = 0, bits = 0;
    unsigned mw = 0, sm = 0, mem = 0, heat = 0;
    if (!n->f.slowed) n->f.slowed = n->f.slowed_before;
    out->power = READ(n, V_POWER, power, &mw) ? mw * 1e-3 : NAN;
    out->sm_mhz = READ(n, V_SM, clock, CLOCK_SM, &sm) ? (double)sm : NAN;
    out->mem_mhz = READ(n, V_MEM, clock, CLOCK_MEM, &mem) ? (double)mem : NAN;
    out->busy = READ(n, V_BUSY, utilization, &u) ? u.gpu / 100.0 : NAN;
    out->energy = READ(n, V_ENERGY, energy, &mj) ? (double)mj * 1e-3 : NAN;
    out->used = READ(n, V_MEMORY, memory, &m) ? (double)m.used : NAN;
    out->celsius = READ(n, V_HEAT, temperature, SENSOR_GPU, &heat) ? (double)heat : NAN;
    out->slowed = READ(n, V_SLOWED, slowed, &bits) ? bits : 0;
}

void ls_nvml_facts(ls_nvml *n, ls_gpu_facts *out)
{
    const calls *f = &n->f;
    unsigned sm = 0, mw = 0;
    int major = 0, minor = 0;
    memory m = {0};
    pci where = {0};
    *out = (ls_gpu_facts){.total = NAN, .sm_mhz_max = NAN};
    out->power_limit = READ(n, V_LIMIT, power_limit, &mw) ? mw * 1e-3 : NAN;
    if (f->name && f->name(n->gpu, out->name, sizeof out->name)) out->name[0] = '\0';
    if (f->uuid && f->uuid(n->gpu, out->uuid, sizeof out->uuid)) out->uuid[0] = '\0';
    if (f->driver && f->driver(out->driver, sizeof out->driver)) out->driver[0] = '\0';
    if (f->pci && !f->pci(n->gpu, &where)) snprintf(out->bus, sizeof out->bus, "%s", where.bus_id);
    if (f->memory && !f->memory(n->gpu, &m)) out->total = (double)m.total;
    if (f->clock_max && !f->clock_max(n->gpu, CLOCK_SM, &sm)) out->sm_mhz_max = sm;
    if (f->capability && !f->capability(n->gpu, &major, &minor)) out->capability = 10 * major + minor;
}

const char *ls_gpu_slowed_words(uint64_t bits, char buf[160])
{
    static const char *const word[] = {"idle", "clock set",       "power cap",   "hardware slow-down", "sync boost",
                                       "heat", "heat (hardware)", "power brake", "display clock"}; /* bits 0 … 8 */
    size_t n = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < sizeof word / sizeof word[0]; i++)
        if (bits >> i & 1 && n < 160) n += (size_t)snprintf(buf + n, 160 - n, "%s%s", n ? ", " : "", word[i]);
    return buf[0] ? buf : "none";
}
