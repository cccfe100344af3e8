/* doctor_gpu.c - the rows of `lockstep doctor` about GPUs. Every library is optional: a missing one is reported with a hint. */
#include "cli/doctor_impl.h"

#include "comm/start.h"
#include "config/resolve.h"
#include "compute/compute.h"
#include "compute/plugin.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/half.h"
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
    static const char
        broken[] = "the NVIDIA driver is installed but does not start",
        nvrm[] = "look for NVRM in dmesg; nvidia-modprobe loads the module; after a suspend, restart the machine";
    static const struct {
        int rc;
        const char *text, *hint;
    } row[] = {{803, "the driver library and the kernel module have different versions",
                "the driver was updated while it was loaded; restart the machine, or load the new module"},
               {802, "the GPUs are not ready",
                "machines with NVSwitch need the service nvidia-fabricmanager in the version of the driver"},
               {3, broken, nvrm},
               {999, broken, nvrm},
               {-1, broken, "run nvidia-smi for details; the driver may need a restart"}};
    size_t i = 0;
    while (i < sizeof row / sizeof row[0] - 1 && row[i].rc != rc) i++;
    doctor_put(p, PART_FAILED, row[i].hint, "%s (cuInit returned %d)", row[i].text, rc);
}

static void explain_no_gpu(part *p)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    doctor_put(p, PART_MISSING,
               visible ? "CUDA_VISIBLE_DEVICES selects the visible GPUs; unset it, or set it to 0"
                       : "nvidia-smi lists GPUs; in a container, pass them in (docker run --gpus all)",
               "the NVIDIA driver is installed but finds no GPU (CUDA_VISIBLE_DEVICES %s%s)",
               visible ? "is " : "is not set", visible ? visible : "");
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

void doctor_look_cuda(part *p)
{
    enum { NO_DEVICE = 100 };
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!lib) {
        doctor_put(
            p, PART_MISSING,
            "a machine with an NVIDIA GPU needs the driver package (nvidia-driver); a container gets it from its host (docker run --gpus all)",
            "no NVIDIA driver (libcuda.so.1 not found)");
        return;
    }
    function f;
    char a[16], b[16], hint[100];
    int rc = -1, n = 0, driver = 0;
    const int runtime = runtime_version();
    if (find(lib, "cuDriverGetVersion", &f)) f.take_int(&driver);
    if (find(lib, "cuInit", &f)) rc = f.init(0);
    if (rc == 0 && find(lib, "cuDeviceGetCount", &f)) rc = f.take_int(&n);
    if (rc == NO_DEVICE || (rc == 0 && n == 0)) {
        explain_no_gpu(p);
        return;
    }
    if (rc != 0) {
        explain_init(p, rc);
        return;
    }
    if (runtime / 1000 > driver / 1000) {
        snprintf(hint, sizeof hint, "install driver %s or newer, or build with CUDA %d",
                 runtime >= 13000 ? "580" : "525", driver / 1000);
        doctor_put(p, PART_FAILED, hint, "the driver supports CUDA up to %s, but this program was built with %s",
                   cuda_version(driver, a), cuda_version(runtime, b));
        return;
    }
    ls_str s = {0};
    list_devices(lib, n, &s);
    doctor_put(p, PART_OK, NULL, "%d GPU%s, driver for CUDA %s: %s", n, n == 1 ? "" : "s", cuda_version(driver, a),
               s.data ? s.data : "?");
    ls_str_fini(&s); /* the driver stays loaded: it registers handlers that must outlive it */
}

/* ---- our plugin ----------------------------------------------------------------------------------------------------- */

void doctor_look_plugin(part *p)
{
    ls_plugin lib;
    char words[500] = "";
    if (ls_plugin_load(PLUGIN, LS_COMPUTE_SYMBOL, &lib) != LS_OK) {
        if (ls_fs_exists(lib.path))
            doctor_put_error(
                p, PART_FAILED,
                "a CUDA library is missing or has a different version; install the CUDA runtime, cuBLAS and cuDNN, or add their folder to LD_LIBRARY_PATH");
        else
            doctor_put_error(p, PART_MISSING,
                             "the plugin is built if nvcc is found; install the CUDA toolkit (nvcc) and build again");
        return;
    }
    const ls_compute_plugin *table = ((ls_compute_plugin_fn)lib.entry)();
    if (!table || table->abi != LS_COMPUTE_ABI) {
        doctor_put(p, PART_FAILED, "build the program and the plugin together",
                   "%.300s has interface version %d, but this program has %d", lib.path, table ? table->abi : -1,
                   LS_COMPUTE_ABI);
        return;
    }
    const int n = table->probe ? table->probe(words, sizeof words) : 0;
    if (n > 0) doctor_put(p, PART_OK, NULL, "%.200s loads; %s", lib.path, words);
    else
        doctor_put(p, PART_MISSING, "see the rows default and cuda; not needed for --device cpu",
                   "%.200s loads, but there is no device that it can use: %.300s", lib.path, words);
}

void doctor_look_libraries(part *p)
{
    static const struct {
        const char *word, *file[2], *symbol;
        bool by_pointer; /* the function writes the version to its argument */
    } row[] = {{"cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}, "cublasLtGetVersion", false},
               {"cuDNN", {"libcudnn.so.9", NULL}, "cudnnGetVersion", false},
               {"CUPTI", {"libcupti.so.13", "libcupti.so.12"}, "cuptiGetVersion", true}};
    char v[16];
    ls_str s = {0};
    int found = 0;
    const int runtime = runtime_version();
    if (runtime) ls_str_addf(&s, "runtime %s", cuda_version(runtime, v)), found++;
    else ls_str_add(&s, "no CUDA runtime");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        void *lib = NULL;
        function f;
        int n = 0;
        for (int k = 0; k < 2 && !lib && row[i].file[k]; k++) lib = library(row[i].file[k]);
        if (!find(lib, row[i].symbol, &f)) {
            ls_str_addf(&s, ", no %s", row[i].word);
            continue;
        }
        if (row[i].by_pointer) f.take_int(&n);
        else n = (int)f.version();
        ls_str_addf(&s, ", %s %d.%d.%d", row[i].word, n / 10000, n % 10000 / 100, n % 100); /* 130100 is 13.1.0 */
        found++;
    }
    doctor_put(p, found == 4 ? PART_OK : PART_MISSING,
               !found ? "install the CUDA toolkit; only needed for --device cuda"
               : found < 4
                   ? "without cuDNN, attention uses the own kernels; without CUPTI, profiles have no kernel times"
                   : NULL,
               "%s", s.data ? s.data : "?");
    ls_str_fini(&s);
}

void doctor_look_nvml(part *p)
{
    ls_nvml *n = NULL;
    ls_gpu_facts f;
    ls_gpu_now now;
    char total[32], used[32], why[160];
    if (ls_nvml_open(&n, NULL) != LS_OK) {
        doctor_put_error(p, PART_MISSING,
                         "part of the driver; without it, utilisation, power and energy are not recorded");
        return;
    }
    ls_nvml_facts(n, &f);
    ls_nvml_read(n, &now);
    doctor_put(
        p, PART_OK, NULL,
        "driver %s; first GPU: %s at %s, %s of %s used, %.0f W of %.0f, SM clock %.0f of %.0f MHz, %.0f C, processes: %s%s%.150s",
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
        doctor_put(p, PART_OK, NULL, "%.200s from %.300s", words, path);
        return;
    }
    void *lib = library("libnccl.so.2");
    if (!lib) {
        doctor_put(
            p, PART_MISSING,
            "NVIDIA's package libnccl2, or PyPI's nvidia-nccl-cu13 with its folder in LD_LIBRARY_PATH; without it, GPUs communicate through host memory",
            "no libnccl.so.2");
        return;
    }
    if (find(lib, "ncclGetVersion", &f)) f.take_int(&v);
    doctor_put(
        p, PART_MISSING,
        "the plugin is built if nccl.h and the CUDA runtime are found; without it, GPUs communicate through host memory",
        "found version %d.%d.%d, but the plugin does not load: %.400s", v / 10000, v / 100 % 100, v % 100, words);
}

/* ---- a test product ------------------------------------------------------------------------------------------------- */

enum { MAX_R = 64, MAX_K = 128, MAX_N = 96, N_BUFFER = 5 };

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

static float from_half(ls_dtype dt, uint16_t h)
{
    return dt == LS_F16 ? ls_from_f16(h) : ls_from_bf16(h);
}

/* n normal numbers that the type can represent, to the host and to the device. */
static ls_status fill(const ls_compute *c, void *there, float *here, int n, uint64_t key)
{
    const ls_dtype dt = c->ops->dtype;
    const bool narrow = dt != LS_F32;
    uint16_t half[MAX_K * (MAX_R > MAX_N ? MAX_R : MAX_N)];
    for (int i = 0; i < n; i++) {
        const float v = (float)ls_rng_normal(key, (uint64_t)i);
        half[i] = dt == LS_F16 ? ls_to_f16(v) : ls_to_bf16(v);
        here[i] = narrow ? from_half(dt, half[i]) : v;
    }
    return ls_compute_write(c, there, narrow ? (const void *)half : here, (size_t)n * ls_dtype_nbytes(c->ops->dtype));
}

/* y = x w + b; buffer: scratch, x, w, b, y in the memory of the device. */
static ls_status multiply(ls_compute *c, void *buffer[N_BUFFER], double *worst)
{
    float x[MAX_R * MAX_K], w[MAX_K * MAX_N], b[MAX_N], y[MAX_R * MAX_N];
    uint16_t half[MAX_R * MAX_N];
    const int R = c->device ? MAX_R : 37, K = c->device ? MAX_K : 70, N = c->device ? MAX_N : 53; /* CPU: odd sizes */
    const bool narrow = c->ops->dtype != LS_F32;
    const size_t size = ls_dtype_nbytes(c->ops->dtype);
    const ls_compute_shapes shapes = {.B = 1, .T = R, .C = K, .H = 2, .V = N, .ffn = 4 * K};
    c->scratch_nbytes = ls_compute_scratch(c, &shapes);
    const size_t nbytes[N_BUFFER] = {c->scratch_nbytes, (size_t)(R * K) * size, (size_t)(K * N) * size,
                                     (size_t)N * size, (size_t)(R * N) * size};
    for (int i = 0; i < N_BUFFER; i++) LS_TRY(place(c, nbytes[i], &buffer[i]));
    c->scratch = buffer[0];
    LS_TRY(fill(c, buffer[1], x, R * K, 1));
    LS_TRY(fill(c, buffer[2], w, K * N, 2));
    LS_TRY(fill(c, buffer[3], b, N, 3));
    LS_TRY(c->ops->linear_fwd(c, buffer[4], buffer[1], buffer[2], buffer[3], R, K, N));
    LS_TRY(ls_compute_sync(c));
    LS_TRY(ls_compute_read(c, narrow ? (void *)half : y, buffer[4], nbytes[4]));
    *worst = 0;
    for (int r = 0; r < R; r++) {
        for (int j = 0; j < N; j++) {
            double sum = b[j], scale = 0;
            for (int k = 0; k < K; k++) {
                const double term = (double)x[r * K + k] * w[k * N + j];
                sum += term;
                scale += fabs(term);
            }
            const double d = fabs(sum - (narrow ? from_half(c->ops->dtype, half[r * N + j]) : y[r * N + j])) / scale;
            if (!(d <= *worst)) *worst = d; /* also if d is not a number */
        }
    }
    return LS_OK;
}

/* The product in one type. *worst: the largest difference, relative to the sum of the sizes of the terms. */
static ls_status try_type(const char *device, ls_dtype dtype, double *worst, char words[LS_COMPUTE_WORDS],
                          ls_device_info *info)
{
    ls_compute c = {0};
    void *buffer[N_BUFFER] = {0};
    const ls_compute_open_opts o = {.dtype = dtype, .device = -1, .deterministic = true};
    LS_TRY(ls_compute_open(&c, device, &o, 0));
    ls_status st = multiply(&c, buffer, worst);
    if (st == LS_OK && c.device) st = c.device->info(c.device->ctx, info);
    ls_compute_describe(&c, words);
    for (int i = 0; i < N_BUFFER; i++) unplace(&c, buffer[i]);
    ls_compute_close(&c);
    return st;
}

void doctor_try_device(part *p, const char *device)
{
    double full = 0, half = 0;
    char words[LS_COMPUTE_WORDS] = "", unused[LS_COMPUTE_WORDS], room[32];
    ls_device_info info = {0};
    const bool gpu = strcmp(device, "cpu") != 0;
    const double begin = ls_now();
    ls_status st = try_type(device, LS_F32, &full, words, &info);
    const char *gemm = getenv("LS_GEMM");
    const bool named = !gpu && gemm && *gemm; /* a kernel that was asked for has one type */
    const bool fp32 = st == LS_OK || !named, bf16 = !named || !fp32;
    if (!fp32) ls_err_clear(), st = LS_OK;
    const char *narrow = ls_precision_of_backend(gpu ? NULL : "bf16", device, ls_card_with(info.capability, info.code));
    if (st == LS_OK && bf16)
        st = try_type(device, ls_precision_dtype(narrow), &half, gpu || !fp32 ? words : unused, &info);
    if (st != LS_OK) {
        p->variable = (st == LS_E_ARG || st == LS_E_CONFIG) && !strncmp(ls_err_words(), "LS_", 3);
        doctor_put(p, PART_FAILED,
                   st == LS_E_NOMEM ? "other programs use the memory of the device; nvidia-smi lists them"
                   : p->variable    ? "no part is missing: only the value of this variable is wrong"
                                    : "see the rows above for the missing part",
                   "%s: %.500s", device, ls_err_words());
        ls_err_clear();
        return;
    }
    const bool right = full < 1e-6 && half < 4e-3; /* rounding: 1e-7 in fp32, 2^-9 of the result in bf16 */
    ls_str s = {0};
    ls_str_addf(&s, "%s: a product differs from sums in double by ", words);
    if (fp32) ls_str_addf(&s, "%.1e in fp32", full);
    if (bf16) ls_str_addf(&s, "%s%.1e in %s", fp32 ? " and " : "", half, narrow);
    if (bf16 && fp32 && !gpu)
        ls_str_addf(&s, " (%s%s)", ls_compute_cpu_bf16().kernel,
                    ls_compute_cpu_bf16().native ? "" : ": this CPU has no bf16 instructions, it is slow");
    ls_str_addf(&s, ", in %.2f s", ls_now() - begin);
    if (gpu)
        ls_str_addf(&s, "; %s, %s free; driver %s, API %s", info.name, ls_human_bytes(room, (double)info.free),
                    info.driver, info.api);
    doctor_put(p, right ? PART_OK : PART_FAILED,
               right ? NULL
               : gpu ? "the device computes wrongly: please report this line, with the rows above"
                     : "a kernel gives wrong results on this CPU; use LS_GEMM=plain and please report this line",
               "%s", s.data ? s.data : "");
    ls_str_fini(&s);
}
