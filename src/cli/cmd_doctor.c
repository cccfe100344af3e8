/* cmd_doctor.c - `lockstep doctor`: what this machine can do, and why a part does not work.
 *
 * One row per part: its name, a state, a text, and what to do if something is missing. States:
 *   ok       present, and tested if a test is cheap
 *   missing  not found on this machine; the text names what was searched, the hint what to install
 *   failed   found or needed, and does not work
 * Only the parts that every run needs (`basic` in the table below), the device of --device, and a GPU that commands without --device would use and
 * cannot (row default) make the command fail. MPI, other facts about GPUs (doctor_gpu.c) and Slurm are only reported. */
#include "cli/commands.h"
#include "cli/doctor_impl.h"
#include "comm/launch.h"
#include "compute/look.h"
#include "core/cores.h"
#include "core/fs.h"
#include "core/memory_limit.h"
#include "core/rng.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char *const state_word[] = {"ok", "missing", "failed"};

void doctor_put(part *p, part_state state, const char *hint, const char *fmt, ...)
{
    va_list ap;
    p->state = state;
    va_start(ap, fmt);
    vsnprintf(p->text, sizeof p->text, fmt, ap);
    va_end(ap);
    snprintf(p->hint, sizeof p->hint, "%s", hint ? hint : "");
}

void doctor_put_error(part *p, part_state state, const char *hint)
{
    doctor_put(p, state, hint, "%s", ls_err_words());
    ls_err_clear();
}

/* ---- the machine ---------------------------------------------------------------------------------------------------- */

/* The value after "key<blanks>: " in the first such line of text, cut at the line's end; empty when there is none. */
static void field(const char *text, const char *key, char *out, size_t cap)
{
    size_t n = strlen(key);
    out[0] = '\0';
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        if (strncmp(line, key, n) != 0) continue;
        const char *p = line + n + strspn(line + n, " \t");
        if (*p != ':') continue;
        p += 1 + strspn(p + 1, " \t");
        snprintf(out, cap, "%.*s", (int)strcspn(p, "\n"), p);
        return;
    }
}

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; (p = strstr(p, word)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0')) return true;
    return false;
}

/* Arm's kernels state a part number, not a name. */
static const char *arm_name(const char *implementer, const char *number)
{
    static const struct {
        const char *implementer, *number, *name;
    } row[] = {{"0x41", "0xd0c", "Neoverse-N1"}, {"0x41", "0xd40", "Neoverse-V1"}, {"0x41", "0xd49", "Neoverse-N2"},
               {"0x41", "0xd4f", "Neoverse-V2"}, {"0x41", "0xd08", "Cortex-A72"},  {"0x41", "0xd0b", "Cortex-A76"},
               {"0x41", "0xd8e", "Neoverse-N3"}, {"0x41", "0xd84", "Neoverse-V3"}, {"0xc0", "0xac3", "Ampere-1"}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (!strcmp(row[i].implementer, implementer) && !strcmp(row[i].number, number)) return row[i].name;
    return NULL;
}

static void look_cpu(part *p)
{
    static const char *const wanted[] = {"avx2",     "fma",      "avx512f", "avx512bw", "avx512_bf16",
                                         "amx_tile", "amx_bf16", "asimd",   "asimdfhm", "asimddp",
                                         "fphp",     "bf16",     "i8mm",    "sve",      "sve2"};
    char *text = NULL, model[128], number[16], flags[4096];
    size_t n = 0;
    struct utsname u;
    const int usable = ls_cores_usable();
    if (uname(&u)) u = (struct utsname){.machine = "?"};
    if (ls_fs_read("/proc/cpuinfo", &text, &n) != LS_OK) {
        ls_err_clear();
        doctor_put(p, PART_OK, NULL, "%s, %d cores usable (/proc/cpuinfo is not readable)", u.machine, usable);
        return;
    }
    field(text, "model name", model, sizeof model);
    if (!model[0]) {
        char implementer[16];
        field(text, "CPU implementer", implementer, sizeof implementer);
        field(text, "CPU part", number, sizeof number);
        const char *name = arm_name(implementer, number);
        if (name) snprintf(model, sizeof model, "%s", name);
        else snprintf(model, sizeof model, "implementer %s part %s", implementer, number);
    }
    field(text, "flags", flags, sizeof flags);
    if (!flags[0]) field(text, "Features", flags, sizeof flags);
    ls_free(text);
    ls_str s = {0};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (has_word(flags, wanted[i])) ls_str_addf(&s, " %s", wanted[i]);
    doctor_put(p, PART_OK, NULL, "%s, %s, %d of %ld cores usable;%s", u.machine, model, usable,
               sysconf(_SC_NPROCESSORS_ONLN), s.data ? s.data : " no supported vector extension");
    ls_str_fini(&s);
}

static void look_memory(part *p)
{
    char *text = NULL, total[64], avail[64], limit[128] = "", a[32], b[32], c[32], d[32];
    size_t n = 0;
    if (ls_fs_read("/proc/meminfo", &text, &n) != LS_OK) {
        doctor_put_error(p, PART_FAILED, NULL);
        return;
    }
    field(text, "MemTotal", total, sizeof total);
    field(text, "MemAvailable", avail, sizeof avail);
    ls_free(text);
    const double total_b = strtod(total, NULL) * 1024, avail_b = strtod(avail, NULL) * 1024;
    int64_t left;
    const double max = (double)ls_memory_limit(&left); /* of a container */
    if (max > 0 && max < total_b) {
        const int at = snprintf(limit, sizeof limit, ", limited to %s", ls_human_bytes(c, max));
        if (left >= 0) snprintf(limit + at, sizeof limit - (size_t)at, " (%s left)", ls_human_bytes(d, (double)left));
    }
    const bool by_limit = left >= 0 && (double)left < avail_b,
               enough = (by_limit ? (double)left : avail_b) >= 256 * 1048576.0;
    doctor_put(p, enough ? PART_OK : PART_FAILED,
               enough     ? NULL
               : by_limit ? "a small model needs 256 MiB; raise the memory limit of this container or job"
                          : "a small model needs 256 MiB; stop other programs",
               "%s, %s available%s", ls_human_bytes(a, total_b), ls_human_bytes(b, avail_b), limit);
}

/* As many threads as a command without --threads has. */
static void look_openmp(part *p)
{
    const char *set = getenv("OMP_NUM_THREADS");
    int n = 0;
    omp_set_dynamic(0);
#pragma omp parallel num_threads(ls_cores_usable())
    {
#pragma omp atomic
        n++;
    }
    doctor_put(p, n > 0 ? PART_OK : PART_FAILED, NULL, "version %d, %d thread%s%s%.40s%s", _OPENMP, n,
               n == 1 ? "" : "s", set ? " (OMP_NUM_THREADS=" : "", set ? set : "",
               set ? " is not used; --threads sets the number)" : "");
}

/* ---- what the program computes with --------------------------------------------------------------------------------- */

static void look_compute(part *p)
{
    doctor_try_device(p, "cpu");
}

static void look_ref(part *p)
{
    ls_compute c;
    char words[LS_COMPUTE_WORDS];
    if (ls_compute_open(&c, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F64}, 1) == LS_OK)
        doctor_put(p, PART_OK, NULL, "%s; also in fp32", ls_compute_describe(&c, words));
    else doctor_put_error(p, PART_FAILED, NULL);
}

static void look_blas(part *p)
{
    union {
        void *p;
        const char *(*text)(void);
    } f;
    Dl_info where = {0};
    f.p = dlsym(RTLD_DEFAULT, "cblas_sgemm");
    if (!f.p) {
        doctor_put(p, PART_MISSING, NULL, "built without CBLAS; the own matmul kernels are used");
        return;
    }
    const char *path = dladdr(f.p, &where) && where.dli_fname ? where.dli_fname : "?";
    char *real = realpath(path, NULL);
    const char *version = "";
    if ((f.p = dlsym(RTLD_DEFAULT, "openblas_get_config"))) version = f.text();
    else if ((f.p = dlsym(RTLD_DEFAULT, "bli_info_get_version_str"))) version = f.text();
    doctor_put(p, PART_OK, NULL, "%s%s%s", real ? real : path, *version ? ", version " : "", version);
    free(real);
}

static void look_files(part *p)
{
    const char *dir = getenv("TMPDIR");
    if (!dir || !*dir) dir = "/tmp";
    unsigned char data[4096];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)ls_rng_u64(7, i);
    char *path = ls_asprintf("%s/lockstep-doctor-%d", dir, (int)getpid()), *back = NULL, room[32];
    size_t n = 0;
    ls_status st = path ? LS_OK : ls_nomem(64, "a path");
    if (st == LS_OK && !ls_fs_is_dir(dir))
        st = ls_fail(LS_E_IO, "folder %s does not exist", dir); /* not ours to make */
    if (st == LS_OK) st = ls_fs_write(path, data, sizeof data);
    if (st == LS_OK) st = ls_fs_read(path, &back, &n);
    if (st == LS_OK && (n != sizeof data || memcmp(back, data, n) != 0))
        st = ls_fail(LS_E_IO, "%s: the data read differs from the data written", path);
    struct statvfs v;
    if (st == LS_OK) {
        const double free_b = statvfs(dir, &v) == 0 ? (double)v.f_bavail * (double)v.f_frsize : 0;
        doctor_put(p, PART_OK, NULL, "wrote, synced, renamed and read a file in %s, %s free there", dir,
                   ls_human_bytes(room, free_b));
    } else {
        doctor_put_error(p, PART_FAILED, "set TMPDIR to a writable folder");
    }
    if (path) unlink(path);
    ls_free(back);
    ls_free(path);
}

/* ---- what only some machines have ------------------------------------------------------------------------------------- */

static void look_mpi(part *p)
{
    char run[4096], path[512], words[600];
    if (!ls_comm_look("mpi", path, sizeof path, words, sizeof words)) {
        doctor_put(p, PART_MISSING, "apt-get install openmpi-bin libopenmpi-dev, then build again", "%.500s", words);
        return;
    }
    const bool has_run = cli_find_program("mpirun", run);
    doctor_put(p, PART_OK, NULL, "%.100s from %.200s, %s%.200s", words, path,
               has_run ? "started by " : "no mpirun in PATH", has_run ? run : "");
}

static void look_slurm(part *p)
{
    char path[4096];
    const char *job = getenv("SLURM_JOB_ID");
    if (!cli_find_program("srun", path))
        doctor_put(p, PART_MISSING, "needed on Slurm clusters only; log in to a node of the cluster",
                   "no srun in PATH");
    else
        doctor_put(p, PART_OK, NULL, "found %.200s, %s%s", path, job ? "inside job " : "outside a job", job ? job : "");
}

/* The device that a command without --device uses. Only LS_DEVICE can be wrong. */
static void look_default(part *p)
{
    static const char *const hint = "unset LS_DEVICE, or set it to auto, cpu or cuda";
    ls_device_choice d;
    ls_look gpu = {.there = true};
    const ls_status st = ls_device_choose(NULL, NULL, 1, 0, &d);
    if (st == LS_OK && d.cuda && !d.automatic) ls_gpu_look(d.index, 0, &gpu);
    if (gpu.info.count && d.index >= gpu.info.count) { /* it looked, and found others */
        gpu.there = false;
        snprintf(gpu.why, sizeof gpu.why, "CUDA device %d does not exist: there %s %d, numbered from 0", d.index,
                 gpu.info.count == 1 ? "is" : "are", gpu.info.count);
    }
    p->variable = st != LS_OK || !gpu.there;
    if (st != LS_OK) doctor_put_error(p, PART_FAILED, hint);
    else if (!gpu.there)
        doctor_put(p, PART_FAILED, hint, "commands without --device fail: LS_DEVICE is %s, and %s", d.asked, gpu.why);
    else if (d.expected && !d.accepted)
        doctor_put(p, PART_FAILED, "or choose the CPU: --device cpu, LS_DEVICE=cpu",
                   "commands without --device do not use the GPU of this machine: %s", d.why);
    else doctor_put(p, PART_OK, NULL, "commands without --device compute on %s", d.words);
}

/* ---- the command ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    bool basic;
    doctor_look *look;
} parts[] = {
    {"default", true, look_default}, /* first: it forks, and the rows below start threads and CUDA */
    {"cpu", true, look_cpu},
    {"memory", true, look_memory},
    {"openmp", true, look_openmp},
    {"compute", true, look_compute},
    {"reference", true, look_ref},
    {"blas", false, look_blas},
    {"files", true, look_files},
    {"mpi", false, look_mpi},
    {"cuda", false, doctor_look_cuda},
    {"plugin", false, doctor_look_plugin},
    {"libraries", false, doctor_look_libraries},
    {"nvml", false, doctor_look_nvml},
    {"nccl", false, doctor_look_nccl},
    {"slurm", false, look_slurm},
};
enum { N_PART = CLI_COUNT(parts) };

static ls_status print_json(const part *p, size_t n, bool ok)
{
    cli_json j;
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("version", LS_VERSION), LS_KV("ok", ok));
    ls_jsonw_put_open(w, "parts", '[');
    for (size_t i = 0; i < n; i++) {
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("name", p[i].name), LS_KV("state", state_word[p[i].state]),
                         LS_KV("required", p[i].basic), LS_KV("text", p[i].text),
                         LS_KV("hint", p[i].hint[0] ? p[i].hint : NULL));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    return cli_json_end(&j);
}

static ls_status print_rows(const part *row, size_t n)
{
    printf("lockstep %s\n\n", LS_VERSION);
    for (size_t i = 0; i < n; i++) {
        printf("  %-10s %-8s %s\n", row[i].name, state_word[row[i].state], row[i].text);
        if (row[i].hint[0]) printf("  %-10s %-8s -> %s\n", "", "", row[i].hint);
    }
    return LS_OK;
}

typedef struct options {
    bool json;
    const char *device;
    double burn;
    int64_t n;
} options;

static const ls_opt table[] = {
    CLI_SWITCH("json", json, "print one JSON object", "Options"),
    CLI_CHOICE(
        "device", device, "auto|cpu|cuda", NULL,
        "run a small computation on the device and check the result; exit code 4 if it fails, 2 if only an environment variable is wrong"),
    CLI_REAL_IN(
        0, 1e6, "burn", burn, "MINUTES", "0",
        "look for cores and GPUs that compute wrong: one worker on each repeats the arithmetic of training for so many minutes, and all results must have the same bits; exit code 1 if one differs"),
    CLI_INT_IN(0, LS_LAUNCH_MOST, "n", n, "N", "0",
               "with --burn: number of workers; -n N is the same [one per core or GPU]"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "doctor [--json] [--device auto|cpu|cuda] [--burn MINUTES [-n N]]",
    "Check what this machine supports: CPU, memory, threads, compute backends, BLAS, files, MPI, GPUs (driver, plugin, libraries, NVML, NCCL) and Slurm. The command fails only if a part that every run needs, the device given with --device or LS_DEVICE, or a GPU that would be used without them, does not work."};

ls_status cmd_doctor(int argc, char **argv)
{
    options o = {0};
    unsigned char given[CLI_COUNT(table)] = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, NULL, given));
    if (cli_given(&page, given, "burn") && o.burn <= 0)
        return ls_fail(LS_E_ARG, "--burn %g: MINUTES must be above 0; give more, or leave --burn out", o.burn);
    if (o.burn > 0) return doctor_burn(o.burn, (int)o.n, o.device, o.json);
    if (o.n) return ls_fail(LS_E_ARG, "-n needs --burn MINUTES; add it, or leave -n out");
    part row[N_PART + 1];
    const size_t n = N_PART + (o.device != NULL);
    const part *broken = NULL;
    const char *device = o.device;
    ls_device_choice chosen;
    if (o.device && !strcmp(o.device, "auto")) {
        LS_TRY(ls_device_choose(o.device, NULL, 1, 0, &chosen));
        device = chosen.cuda ? "cuda" : "cpu";
    }
    for (size_t i = 0; i < n; i++) {
        const bool last = i == N_PART;
        row[i] = (part){.name = last ? "device" : parts[i].name, .basic = last || parts[i].basic};
        if (last) doctor_try_device(&row[i], device);
        else parts[i].look(&row[i]);
        if (!row[i].basic || row[i].state == PART_OK) continue;
        if (!broken || (broken->variable && !row[i].variable)) broken = &row[i]; /* what is missing comes first */
    }
    LS_TRY(o.json ? print_json(row, n, !broken) : print_rows(row, n));
    fflush(stdout); /* before the error, also in a file */
    if (!broken) return LS_OK;
    if (broken->variable)
        return ls_fail(LS_E_ARG, "%s: an environment variable has a wrong value; the line \"%s\" names it",
                       broken->name, broken->name);
    return ls_fail(LS_E_DEVICE, "%s does not work on this machine: %s", broken->name, broken->text);
}
