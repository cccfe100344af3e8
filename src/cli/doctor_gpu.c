/* doctor_gpu.c - the rows of `lockstep doctor` about GPUs. Every library is optional: a missing one is reported with a hint. */
#include "cli/doctor_impl.h"

#include "comm/start.h"
#include "compute/compute.h"
#include "compute/plugin.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "compute/nvml.h"
#include "core/plugin.h"
#include "core/rng.h"
#include "core/str.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLUGIN "cuda"

/* ---- libraries ------------------------------------------------------------------------------------------------------ */

/* A library that is loaded already (by our plugin), else one that can be; NULL: neither. */
static void *library(const char *name)
{
    void *lib = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    return lib ? lib : dlopen(name, RTLD_LAZY | RTLD_LOCAL);
}

typedef union function {
    void *object;
    int (*take_int)(int *);
    int (*init)(unsigned);
    int (*get)(int *, int);
    int (*name)(char *, int, int);
    int (*capability)(int *, int *, int);
    int (*total)(size_t *, int);
    size_t (*version)(void);
} function;

static bool find(void *lib, const char *symbol, function *f)
{
    f->object = lib ? dlsym(lib, symbol) : NULL;
    return f->object != NULL;
}

/* 13000 -> "13.0" */
static const char *cuda_version(int v, char buf[16])
{
    snprintf(buf, 16, "%d.%d", v / 1000, v % 1000 / 10);
    return buf;
}

/* The CUDA runtime that the plugin was built with (0: none is here). Loads the plugin, which brings its libraries. */
static int runtime_version(void)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12"};
    function f;
    ls_plugin p;
    int v = 0;
    if (ls_plugin_load(PLUGIN, LS_COMPUTE_SYMBOL, &p) != LS_OK) ls_err_clear();
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !v; i++)
        if (find(library(names[i]), "cudaRuntimeGetVersion", &f) && f.take_int(&v) != 0) v = 0;
    return v;
}

/* ---- the driver ----------------------------------------------------------------------------------------------------- */

static void explain_init(part *p, int rc)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    switch (rc) {
    case 100:
        doctor_put(p, PART_MISSING, "the NVIDIA driver is installed but finds no GPU (CUDA_VISIBLE_DEVICES %s%s)",
                   visible ? "is " : "is not set", visible ? visible : "");
        doctor_hint(p, visible ? "CUDA_VISIBLE_DEVICES selects the visible GPUs; unset it, or set it to 0"
                               : "nvidia-smi lists GPUs; in a container, pass them in (docker run --gpus all)");
        break;
    case 803:
        doctor_put(p, PART_FAILED,
                   "the driver library and the kernel module have different versions (cuInit returned 803)");
        doctor_hint(p, "the driver was updated while it was loaded; restart the machine, or load the new module");
        break;
    case 802:
        doctor_put(p, PART_FAILED, "the GPUs are not ready (cuInit returned 802)");
        doctor_hint(p, "machines with NVSwitch need the service nvidia-fabricmanager in the version of the driver");
        break;
    case 3:
    case 999:
        doctor_put(p, PART_FAILED, "the NVIDIA driver is installed but does not start (cuInit returned %d)", rc);
        doctor_hint(p,
                    "look for NVRM in dmesg; nvidia-modprobe loads the module; after a suspend, restart the machine");
        break;
    default:
        doctor_put(p, PART_FAILED, "the NVIDIA driver is installed but does not start (cuInit returned %d)", rc);
        doctor_hint(p, "run nvidia-smi for details; the driver may need a restart");
    }
}

static void list_devices(void *lib, int n, ls_str *s)
{
    function get, name, capability, total;
    if (!find(lib, "cuDeviceGet", &get) || !find(lib, "cuDeviceGetName", &name)) return;
    find(lib, "cuDeviceComputeCapability", &capability);
    if (!find(lib, "cuDeviceTotalMem_v2", &total)) total.object = NULL;
    for (int i = 0; i < n && i < 8; i++) {
        char words[128] = "?", room[32];
        int device = 0, major = 0, minor = 0;
        size_t bytes = 0;
        if (get.get(&device, i)) continue;
        name.name(words, (int)sizeof words, device);
        if (capability.object) capability.capability(&major, &minor, device);
        if (total.object) total.total(&bytes, device);
        ls_str_addf(s, "%s%d: %s, capability %d.%d, %s", s->len ? "; " : "", i, words, major, minor,
                    ls_human_bytes(room, (double)bytes));
    }
    if (n > 8) ls_str_addf(s, "; and %d more", n - 8);
}

/* Which driver a runtime's major version wants. */
static const char *driver_for(int runtime)
{
    return runtime >= 13000 ? "580" : "525";
}

void doctor_look_cuda(part *p)
{
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!lib) {
        doctor_put(p, PART_MISSING, "no NVIDIA driver (libcuda.so.1 not found)");
        doctor_hint(
            p, "a machine with an NVIDIA GPU needs the driver package (nvidia-driver); a container gets it from its "
               "host (docker run --gpus all)");
        return;
    }
    function f;
    char a[16], b[16];
    int rc = -1, n = 0, driver = 0;
    const int runtime = runtime_version();
    if (find(lib, "cuDriverGetVersion", &f)) f.take_int(&driver);
    if (find(lib, "cuInit", &f)) rc = f.init(0);
    if (rc == 0 && find(lib, "cuDeviceGetCount", &f)) rc = f.take_int(&n);
    if (rc != 0 || n == 0) {
        explain_init(p, rc ? rc : 100);
        return;
    }
    ls_str s = {0};
    list_devices(lib, n, &s);
    if (runtime / 1000 > driver / 1000) {
        doctor_put(p, PART_FAILED, "the driver supports CUDA up to %s, but this program was built with %s",
                   cuda_version(driver, a), cuda_version(runtime, b));
        doctor_hint(p, "install driver %s or newer, or build with CUDA %d", driver_for(runtime), driver / 1000);
    } else {
        doctor_put(p, PART_OK, "%d GPU%s, driver for CUDA %s: %s", n, n == 1 ? "" : "s", cuda_version(driver, a),
                   s.data ? s.data : "?");
    }
    ls_str_fini(&s); /* the driver stays loaded: it registers handlers that must outlive it */
}

/* ---- our plugin ----------------------------------------------------------------------------------------------------- */

static void one_line(char *s)
{
    size_t n = strlen(s);
    while (n && s[n - 1] == '\n') s[--n] = '\0';
    for (char *c = s; *c; c++)
        if (*c == '\n') *c = ';';
}

void doctor_look_plugin(part *p)
{
    ls_plugin lib;
    char words[500] = "";
    if (ls_plugin_load(PLUGIN, LS_COMPUTE_SYMBOL, &lib) != LS_OK) {
        const bool there = ls_fs_exists(lib.path);
        doctor_put(p, there ? PART_FAILED : PART_MISSING, "%.500s", ls_err_words());
        if (there)
            doctor_hint(p, "a CUDA library is missing or has a different version; install the CUDA runtime, cuBLAS and "
                           "cuDNN, or add their folder to LD_LIBRARY_PATH");
        else doctor_hint(p, "the plugin is built if nvcc is found; install the CUDA toolkit and build again");
        ls_err_clear();
        return;
    }
    const ls_compute_plugin *table = ((ls_compute_plugin_fn)lib.entry)();
    if (!table || table->abi != LS_COMPUTE_ABI) {
        doctor_put(p, PART_FAILED, "%.300s has interface version %d, but this program has %d", lib.path,
                   table ? table->abi : -1, LS_COMPUTE_ABI);
        doctor_hint(p, "build the program and the plugin together");
        return;
    }
    const int n = table->probe ? table->probe(words, sizeof words) : 0;
    one_line(words);
    if (n > 0) doctor_put(p, PART_OK, "%.200s loads; %s", lib.path, words);
    else {
        doctor_put(p, PART_MISSING, "%.200s loads, but there is no device: %.300s", lib.path, words);
        doctor_hint(p, "see the row cuda; not needed for --device cpu");
    }
}

void doctor_look_libraries(part *p)
{
    static const struct {
        const char *word, *file[2], *symbol;
        int thousands; /* 130100 is 13.1.0: how the number is made */
    } row[] = {{"cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}, "cublasLtGetVersion", 10000},
               {"cuDNN", {"libcudnn.so.9", NULL}, "cudnnGetVersion", 10000},
               {"CUPTI", {"libcupti.so.13", "libcupti.so.12"}, "cuptiGetVersion", 10000}};
    char v[16];
    ls_str s = {0};
    int found = 0;
    const int runtime = runtime_version();
    if (runtime) ls_str_addf(&s, "runtime %s", cuda_version(runtime, v)), found++;
    else ls_str_add(&s, "no CUDA runtime");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        void *lib = NULL;
        function f;
        for (int k = 0; k < 2 && !lib && row[i].file[k]; k++) lib = library(row[i].file[k]);
        if (!find(lib, row[i].symbol, &f)) {
            ls_str_addf(&s, ", no %s", row[i].word);
            continue;
        }
        long n = 0;
        uint32_t cupti = 0;
        if (!strcmp(row[i].word, "CUPTI")) {
            f.take_int((int *)&cupti);
            n = cupti;
        } else n = (long)f.version();
        ls_str_addf(&s, ", %s %ld.%ld.%ld", row[i].word, n / row[i].thousands, n % row[i].thousands / 100, n % 100);
        found++;
    }
    doctor_put(p, found == 4 ? PART_OK : PART_MISSING, "%s", s.data ? s.data : "?");
    if (found && found < 4)
        doctor_hint(p, "without cuDNN, attention uses the own kernels; without CUPTI, profiles have no kernel times");
    if (!found) doctor_hint(p, "install the CUDA toolkit; only needed for --device cuda");
    ls_str_fini(&s);
}

void doctor_look_nvml(part *p)
{
    ls_nvml *n = NULL;
    ls_gpu_facts f;
    ls_gpu_now now;
    char total[32], used[32], why[160];
    if (ls_nvml_open(&n, NULL) != LS_OK) {
        doctor_put(p, PART_MISSING, "%.400s", ls_err_words());
        doctor_hint(p, "part of the driver; without it, utilisation, power and energy are not recorded");
        ls_err_clear();
        return;
    }
    ls_nvml_facts(n, &f);
    ls_nvml_read(n, &now);
    doctor_put(p, PART_OK,
               "driver %s; first GPU: %s at %s, %s of %s used, %.0f W of %.0f, SM clock %.0f of %.0f MHz, %.0f C, "
               "processes: %s%s%.150s",
               f.driver, f.name, f.bus, ls_human_bytes(used, now.used), ls_human_bytes(total, f.total), now.power,
               f.power_limit, now.sm_mhz, f.sm_mhz_max, now.celsius, ls_gpu_slowed_words(now.slowed, why),
               *ls_nvml_refused(n) ? "; refused: " : "", ls_nvml_refused(n));
    ls_nvml_close(&n);
}

void doctor_look_nccl(part *p)
{
    function f;
    int v = 0;
    char path[512], words[600];
    if (ls_comm_look("nccl", path, sizeof path, words, sizeof words)) {
        doctor_put(p, PART_OK, "%.200s from %.300s", words, path);
        return;
    }
    void *lib = library("libnccl.so.2");
    if (!lib) {
        doctor_put(p, PART_MISSING, "no libnccl.so.2");
        doctor_hint(p, "NVIDIA's package libnccl2, or PyPI's nvidia-nccl-cu13 with its folder in LD_LIBRARY_PATH; "
                       "without it, GPUs communicate through host memory");
        return;
    }
    if (find(lib, "ncclGetVersion", &f)) f.take_int(&v);
    doctor_put(p, PART_MISSING, "found version %d.%d.%d, but the plugin does not load: %.400s", v / 10000,
               v / 100 % 100, v % 100, words);
    doctor_hint(p, "the plugin is built if nccl.h and the CUDA runtime are found; without it, GPUs communicate through "
                   "host memory");
}

/* ---- trying it ------------------------------------------------------------------------------------------------------ */

enum { R = 64, K = 128, N = 96 };

typedef struct trial {
    ls_compute c;
    void *x, *w, *b, *y; /* where the operations reach them */
} trial;

static uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t v)
{
    const uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static ls_status place(const ls_compute *c, size_t nbytes, void **out)
{
    if (c->device) return c->device->alloc(c->device->ctx, nbytes, out);
    *out = ls_alloc(nbytes);
    return *out ? LS_OK : ls_nomem(nbytes, "the self-test");
}

static void unplace(const ls_compute *c, void *p)
{
    if (!p) return;
    if (c->device) c->device->release(c->device->ctx, p);
    else ls_free(p);
}

/* n elements of key, as numbers that the type has, both here and there. */
static ls_status fill(const ls_compute *c, void *there, float *here, int n, uint64_t key)
{
    const bool narrow = c->ops->dtype == LS_BF16;
    uint16_t half[R * K > K * N ? R * K : K * N];
    for (int i = 0; i < n; i++) {
        const float v = (float)ls_rng_normal(key, (uint64_t)i);
        half[i] = to_bf16(v);
        here[i] = narrow ? from_bf16(half[i]) : v;
    }
    return ls_compute_write(c, there, narrow ? (const void *)half : here, (size_t)n * ls_dtype_nbytes(c->ops->dtype));
}

static ls_status multiply(trial *t, double *worst)
{
    float x[R * K], w[K * N], b[N], y[R * N];
    uint16_t half[R * N];
    ls_compute *c = &t->c;
    const bool narrow = c->ops->dtype == LS_BF16;
    const size_t size = ls_dtype_nbytes(c->ops->dtype);
    const ls_compute_shapes shapes = {.B = 1, .T = R, .C = K, .H = 2, .V = N, .ffn = 4 * K};
    c->scratch_nbytes = ls_compute_scratch(c, &shapes);
    LS_TRY(place(c, c->scratch_nbytes, &c->scratch));
    LS_TRY(place(c, R * K * size, &t->x));
    LS_TRY(place(c, K * N * size, &t->w));
    LS_TRY(place(c, N * size, &t->b));
    LS_TRY(place(c, R * N * size, &t->y));
    LS_TRY(fill(c, t->x, x, R * K, 1));
    LS_TRY(fill(c, t->w, w, K * N, 2));
    LS_TRY(fill(c, t->b, b, N, 3));
    LS_TRY(c->ops->linear_fwd(c, t->y, t->x, t->w, t->b, R, K, N));
    LS_TRY(ls_compute_sync(c));
    LS_TRY(ls_compute_read(c, narrow ? (void *)half : y, t->y, R * N * size));
    *worst = 0;
    for (int r = 0; r < R; r++) {
        for (int j = 0; j < N; j++) {
            double sum = b[j], scale = 0;
            for (int k = 0; k < K; k++) {
                const double term = (double)x[r * K + k] * w[k * N + j];
                sum += term;
                scale += fabs(term);
            }
            const double d = fabs(sum - (narrow ? from_bf16(half[r * N + j]) : y[r * N + j])) / scale;
            if (!(d <= *worst)) *worst = d; /* also when d is not a number */
        }
    }
    return LS_OK;
}

static ls_status try_type(const char *device, ls_dtype dtype, double *worst, char words[LS_COMPUTE_WORDS],
                          ls_device_info *info)
{
    trial t = {0};
    const ls_compute_open_opts o = {.dtype = dtype, .device = -1, .deterministic = true};
    LS_TRY(ls_compute_open(&t.c, device, &o, 0));
    ls_status st = multiply(&t, worst);
    if (st == LS_OK && t.c.device) st = t.c.device->info(t.c.device->ctx, info);
    ls_compute_describe(&t.c, words);
    unplace(&t.c, t.x);
    unplace(&t.c, t.w);
    unplace(&t.c, t.b);
    unplace(&t.c, t.y);
    unplace(&t.c, t.c.scratch);
    ls_compute_close(&t.c);
    return st;
}

void doctor_try_device(part *p, const char *device)
{
    double full = 0, half = 0;
    char words[LS_COMPUTE_WORDS] = "", room[32];
    ls_device_info info = {0};
    const bool gpu = strcmp(device, "cpu") != 0;
    const double begin = ls_now();
    ls_status st = try_type(device, LS_F32, &full, words, &info);
    if (st == LS_OK && gpu) st = try_type(device, LS_BF16, &half, words, &info);
    if (st != LS_OK) {
        doctor_put(p, PART_FAILED, "%s: %.500s", device, ls_err_words());
        doctor_hint(p, st == LS_E_NOMEM ? "other programs use the memory of the device; nvidia-smi lists them"
                                        : "see the rows above for the missing part");
        ls_err_clear();
        return;
    }
    /* Relative to the sum of the terms' sizes: float's own rounding is 1e-7, that of a bf16 result 2^-9. */
    const bool right = full < 1e-6 && half < 4e-3;
    ls_str s = {0};
    if (gpu)
        ls_str_addf(&s, "; %s, %s free; driver %s, API %s", info.name, ls_human_bytes(room, (double)info.free),
                    info.driver, info.api);
    char types[80];
    if (gpu) snprintf(types, sizeof types, "%.1e in fp32 and %.1e in bf16", full, half);
    else snprintf(types, sizeof types, "%.1e in fp32", full);
    doctor_put(p, right ? PART_OK : PART_FAILED, "%s: a product differs from sums in double by %s, in %.2f s%s", words,
               types, ls_now() - begin, s.data ? s.data : "");
    if (!right) doctor_hint(p, "the device computes wrongly: please report this line, with the rows above");
    ls_str_fini(&s);
}
