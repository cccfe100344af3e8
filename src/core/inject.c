#include "core/inject.h"

#include "core/clock.h"
#include "core/env.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/str.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_FAULTS 64

/* clang-format off */
typedef enum kind { KILL, STOP, EXIT, ABORT, TERM, SLOW, CLOCK, OOM, ENOSPC_, EIO_, FSYNC, READ, FLIP, N_KIND } kind;
/* clang-format on */
static const char *const kind_names[] = {"kill", "stop",   "exit", "abort", "term", "slow", "clock",
                                         "oom",  "enospc", "eio",  "fsync", "read", "flip", NULL};
static const char *const phase_names[] = {"forward", "backward", "update", "validate", "save", NULL};
static const char *const tensor_names[] = {"param", "grad", "moment", "act", "sum", NULL};

typedef struct fault {
    int64_t kind, phase, tensor, rank, step, attempt, unit, element, bit, code;
    double seconds;
    char path[64]; /* a part of the file's path; "": any file of a checkpoint */
    int64_t count;
    _Atomic int64_t left;
} fault;

bool ls_inject_on;
static fault faults[MOST_FAULTS];
static int n_fault, my_rank = -1, attempt = 1;
static _Atomic int64_t now_step;

static bool is_process(kind k)
{
    return k <= OOM;
}
static bool is_file(kind k)
{
    return k == ENOSPC_ || k == EIO_ || k == FSYNC || k == READ;
}

/* ---- the plan ---- */

typedef struct key {
    const char *name;
    size_t offset;
    const char *const *words; /* of a choice; else a whole number in lo … hi */
    int64_t lo, hi;
} key;

#define AT(member) offsetof(fault, member)
static const key keys[] = {{"kind", AT(kind), kind_names, 0, 0},
                           {"phase", AT(phase), phase_names, 0, 0},
                           {"tensor", AT(tensor), tensor_names, 0, 0},
                           {"rank", AT(rank), NULL, -1, INT32_MAX},
                           {"step", AT(step), NULL, 1, INT64_MAX},
                           {"attempt", AT(attempt), NULL, 0, INT32_MAX},
                           {"unit", AT(unit), NULL, 0, INT32_MAX},
                           {"element", AT(element), NULL, 0, INT64_MAX},
                           {"bit", AT(bit), NULL, 0, 63},
                           {"code", AT(code), NULL, 0, 255},
                           {"count", AT(count), NULL, 1, INT64_MAX}};
#define N_KEY       (sizeof keys / sizeof *keys)
#define PHASE_GIVEN ((uint64_t)1 << 1) /* bit of "phase" */

static ls_status bad(const char *item, const char *why)
{
    return ls_fail(LS_E_ARG, "LOCKSTEP_FAULT: '%.60s': %s", item, why);
}

static ls_status set_number(const key *k, fault *f, const char *item, const char *value)
{
    int64_t *to = (int64_t *)(void *)((char *)f + k->offset);
    char why[160];
    if (!k->words) {
        if (ls_parse_i64(value, to) && *to >= k->lo && *to <= k->hi) return LS_OK;
        snprintf(why, sizeof why, "%s must be a whole number from %lld to %lld", k->name, (long long)k->lo,
                 (long long)k->hi);
        return bad(item, why);
    }
    size_t len = (size_t)snprintf(why, sizeof why, "%s must be one of", k->name);
    for (int64_t i = 0; k->words[i]; i++) {
        if (!strcmp(k->words[i], value)) {
            *to = i;
            return LS_OK;
        }
        len += (size_t)snprintf(why + len, sizeof why - len, " %s", k->words[i]);
    }
    return bad(item, why);
}

/* One "key=value". */
static ls_status set(fault *f, char *item, uint64_t *given)
{
    char *value = strchr(item, '=');
    char name[16];
    if (!value || value - item >= (ptrdiff_t)sizeof name) return bad(item, "expected key=value");
    snprintf(name, sizeof name, "%.*s", (int)(value - item), item);
    value++;
    if (!strcmp(name, "path")) {
        if (!*value || strlen(value) >= sizeof f->path) return bad(item, "path must have 1 to 63 bytes");
        snprintf(f->path, sizeof f->path, "%s", value);
        return LS_OK;
    }
    if (!strcmp(name, "seconds")) {
        if (ls_parse_f64(value, &f->seconds) && f->seconds >= -1e9 && f->seconds <= 1e9) return LS_OK;
        return bad(item, "seconds must be a number from -1e9 to 1e9");
    }
    for (size_t i = 0; i < N_KEY; i++) {
        if (strcmp(keys[i].name, name)) continue;
        if (*given & (uint64_t)1 << i) return bad(item, "the key is given twice");
        *given |= (uint64_t)1 << i;
        return set_number(&keys[i], f, item, value);
    }
    return bad(item, "unknown key; keys are kind, rank, step, phase, attempt, count, seconds, path, tensor, unit, "
                     "element, bit and code");
}

static ls_status parse_fault(char *text, fault *f)
{
    uint64_t given = 0;
    char *rest = NULL;
    for (char *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) LS_TRY(set(f, item, &given));
    if (!(given & 1)) return ls_fail(LS_E_ARG, "LOCKSTEP_FAULT: fault %d has no kind", n_fault + 1);
    if ((f->kind == SLOW || f->kind == CLOCK) && f->seconds == 0)
        return bad(kind_names[f->kind], "needs seconds=NUMBER");
    if (f->kind == SLOW && f->seconds < 0) return bad("slow", "seconds must be positive");
    if (f->rank < 0 && !is_file((kind)f->kind)) return bad(kind_names[f->kind], "rank=-1 is for faults of files");
    if (!f->step && !is_file((kind)f->kind)) f->step = 1;
    if (f->kind == FLIP && f->tensor == LS_FLIP_SUM) { /* the last sum, unless a phase is given */
        if (given & PHASE_GIVEN && f->phase != LS_FAULT_BACKWARD && f->phase != LS_FAULT_UPDATE)
            return bad("tensor=sum", "phase must be backward or update");
        if (given & PHASE_GIVEN && f->phase == LS_FAULT_BACKWARD) f->tensor = LS_FLIP_TREE;
    }
    atomic_store(&f->left, f->count);
    return LS_OK;
}

static int file_fault(const char *path, ls_fs_access how);

ls_status ls_inject_open(const char *text)
{
    n_fault = 0;
    ls_inject_on = false;
    ls_fs_fault = NULL;
    if (!text || !*text) return LS_OK;
    char *copy = ls_strdup(text), *rest = NULL;
    if (!copy) return ls_nomem(strlen(text), "LOCKSTEP_FAULT");
    ls_status st = LS_OK;
    for (char *one = strtok_r(copy, ";", &rest); one && st == LS_OK; one = strtok_r(NULL, ";", &rest)) {
        if (n_fault == MOST_FAULTS) {
            st = ls_fail(LS_E_ARG, "LOCKSTEP_FAULT: more than %d faults", MOST_FAULTS);
            break;
        }
        fault *f = &faults[n_fault];
        *f = (fault){.attempt = 1, .unit = 1, .tensor = LS_FLIP_GRAD, .bit = 20, .code = 4, .count = 1};
        st = parse_fault(one, f);
        if (st == LS_OK) n_fault++;
    }
    ls_free(copy);
    if (st == LS_OK && !n_fault) st = ls_fail(LS_E_ARG, "LOCKSTEP_FAULT: '%.60s' has no fault", text);
    ls_inject_on = st == LS_OK;
    if (ls_inject_on) ls_fs_fault = file_fault;
    return st;
}

/* ---- faults ---- */

ls_status ls_inject_worker(int rank)
{
    bool given;
    my_rank = rank;
    attempt = 1;
    return ls_inject_on ? ls_env_int("LOCKSTEP_ATTEMPT", 1, &attempt, &given) : LS_OK;
}

void ls_inject_step(int64_t step)
{
    atomic_store(&now_step, step);
}

/* Whether the fault is one of this process and this attempt; takes one of its counts. */
static bool take(fault *f)
{
    if (f->rank != my_rank || (f->attempt && f->attempt != attempt)) return false;
    if (atomic_load(&f->left) <= 0 || atomic_fetch_sub(&f->left, 1) <= 0) return false;
    const char *path = getenv("LOCKSTEP_FAULT_LOG");
    const int fd = path && *path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd < 0) return true;
    char line[160];
    const int n = snprintf(line, sizeof line, "%.6f %d %s rank %d step %lld\n", ls_now(), (int)(f - faults),
                           kind_names[f->kind], my_rank, (long long)atomic_load(&now_step));
    if (write(fd, line, (size_t)n) != n) line[0] = '\0'; /* a drill reports a fault without a line */
    close(fd);
    return true;
}

static void sleep_for(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) && errno == EINTR) continue;
}

static void happen(const fault *f)
{
    switch ((kind)f->kind) {
    case KILL: (void)kill(getpid(), SIGKILL); break;
    case STOP: (void)kill(getpid(), SIGSTOP); break;
    case EXIT: _exit((int)f->code);
    case ABORT: (void)kill(getpid(), SIGABRT); break;
    case TERM: (void)raise(SIGTERM); break; /* in this thread: it is seen at the next look */
    case SLOW: sleep_for(f->seconds); break;
    case CLOCK: ls_wall_move(f->seconds); break;
    case OOM: ls_mem_fail_at(0); break;
    default: break;
    }
}

void ls_inject_phase(ls_fault_phase p)
{
    const int64_t step = atomic_load(&now_step);
    for (int i = 0; i < n_fault; i++) {
        fault *f = &faults[i];
        if (is_process((kind)f->kind) && f->phase == (int64_t)p && f->step == step && take(f)) happen(f);
    }
}

static bool names(const fault *f, const char *path)
{
    return strstr(path, *f->path ? f->path : "safetensors") != NULL;
}

static ls_fs_access access_of(kind k)
{
    return k == FSYNC ? LS_FS_SYNC : k == READ ? LS_FS_READ : LS_FS_WRITE;
}

/* The errno of the failure, or 0. Faults of files happen in the step of the fault or later, because checkpoints are written in the background. */
static int file_fault(const char *path, ls_fs_access how)
{
    const int64_t step = atomic_load(&now_step);
    for (int i = 0; i < n_fault; i++) {
        fault *f = &faults[i];
        if (step < f->step || !names(f, path)) continue;
        if (is_process((kind)f->kind) && f->phase == LS_FAULT_SAVE && how != LS_FS_READ && take(f)) happen(f);
        if (!is_file((kind)f->kind) || how != access_of((kind)f->kind) || !take(f)) continue;
        return f->kind == ENOSPC_ ? ENOSPC : EIO;
    }
    return 0;
}

bool ls_inject_flips(ls_flip_of what)
{
    for (int i = 0; i < n_fault; i++)
        if (faults[i].kind == FLIP && faults[i].tensor == (int64_t)what) return true;
    return false;
}

void ls_inject_flip(ls_flip_of what, int unit, void *data, int64_t n, size_t size)
{
    const int64_t step = atomic_load(&now_step);
    for (int i = 0; i < n_fault && n; i++) {
        fault *f = &faults[i];
        if (f->kind != FLIP || f->tensor != (int64_t)what || f->unit != unit || f->step != step || !take(f)) continue;
        const int64_t bit = f->bit % (int64_t)(8 * size);
        unsigned char *byte = (unsigned char *)data + (f->element % n) * (int64_t)size + bit / 8; /* little-endian */
        *byte = (unsigned char)(*byte ^ 1u << bit % 8);
    }
}
