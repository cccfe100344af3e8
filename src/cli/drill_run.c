/* drill_run.c - one run of a drill: starts it under its faults, reads what happened from the files of the run, compares the result with an
 * undisturbed run of one worker, and looks for what is left behind.
 *
 * All processes of a run have LOCKSTEP_DRILL=<id> in their environment, which is how they are found on this machine. A port or anonymous
 * shared memory lives as long as a process that holds it; named shared memory is looked for in /dev/shm. */
#include "cli/drill_impl.h"

#include "bench/child.h"
#include "ckpt/checkpoint.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/rng.h"
#include "core/stop.h"
#include "run/events.h"
#include "run/jsonl.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define N_TOKEN     20000
#define LAST_SEC    5.0 /* for processes to end after their run */
#define JUDGE_LIMIT 600.0

/* ---- processes ---- */

static bool has_marks(pid_t pid, const char *mark, const char *other)
{
    char path[64], buf[65536];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t n = 0;
    for (ssize_t k; n < sizeof buf && (k = read(fd, buf + n, sizeof buf - n)) > 0;) n += (size_t)k;
    close(fd);
    return n && memmem(buf, n, mark, strlen(mark)) && (!other || memmem(buf, n, other, strlen(other)));
}

/* Processes with the mark (and the other one, if it is not NULL), each of which gets the signal, unless it is 0. */
static int marked(const char *mark, const char *other, int signal)
{
    DIR *d = opendir("/proc");
    int n = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        const pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        if (pid <= 0 || pid == getpid() || !has_marks(pid, mark, other)) continue;
        n++;
        if (signal) (void)kill(pid, signal);
    }
    closedir(d);
    return n;
}

static bool is_mapped(const char *path)
{
    DIR *d = opendir("/proc");
    bool found = false;
    if (!d) return true; /* not known */
    for (struct dirent *e; !found && (e = readdir(d));) {
        char maps[64], line[PATH_MAX + 128];
        const long pid = strtol(e->d_name, NULL, 10);
        snprintf(maps, sizeof maps, "/proc/%ld/maps", pid);
        FILE *f = pid > 0 ? fopen(maps, "r") : NULL;
        while (f && !found && fgets(line, sizeof line, f)) found = strstr(line, path) != NULL;
        if (f) fclose(f);
    }
    closedir(d);
    return found;
}

/* Whether a file in /dev/shm is as new as the run, and no process of this machine maps it. ours: with a name of this program; MPI has others. */
static bool leaves_shared_memory(time_t since, bool ours, char name[NAME_MAX + 1])
{
    char **names;
    size_t n = 0;
    bool found = false;
    if (ls_fs_list("/dev/shm", &names, &n) != LS_OK) {
        ls_err_clear();
        return false;
    }
    for (size_t i = 0; i < n && !found; i++) {
        struct stat s;
        const ls_path path = ls_path_of("/dev/shm", names[i]);
        if (ours && strncmp(names[i], "lockstep", 8) != 0) continue;
        if (stat(path.text, &s) || !S_ISREG(s.st_mode) || s.st_uid != geteuid() || s.st_ctime < since) continue;
        found = !is_mapped(path.text) && ls_fs_exists(path.text);
        snprintf(name, NAME_MAX + 1, "%s", names[i]);
    }
    ls_fs_list_free(names, n);
    return found;
}

/* ---- the command ---- */

static ls_status train_words(const drill_site *s, const char *layout, const char *run_dir, ls_argv *w)
{
    char text[512];
    snprintf(text, sizeof text,
             "train --model tiny --num_layers 2 --num_heads 2 --seq_length 32 --micro_batch_size_per_gpu 1 --lr 1e-3 "
             "--threads 1 --device cpu --max_steps %d --save_every %d --keep_last 2 --seed 1 %s",
             DRILL_STEPS, DRILL_SAVE, layout);
    LS_TRY(ls_argv_split(w, text));
    LS_TRY(ls_argv_add(w, "--data"));
    LS_TRY(ls_argv_add(w, s->data));
    LS_TRY(ls_argv_add(w, "--checkpoint_path"));
    return ls_argv_add(w, run_dir);
}

static ls_status run_words(const drill_site *s, const drill_run *r, const char *run_dir, ls_argv *w)
{
    char text[512];
    const int port = 20000 + (int)(ls_rng_u64((uint64_t)getpid(), (uint64_t)r->fault[0].number) % 20000);
    if (s->launcher == DRILL_MPI) {
        snprintf(text, sizeof text, "launch --max_restarts " DRILL_RESTARTS " -- mpirun -n %d", s->n);
        LS_TRY(ls_argv_split(w, text));
        LS_TRY(ls_argv_add(w, s->program));
    } else if (s->launcher == DRILL_TCP) {
        snprintf(text, sizeof text,
                 "launch --hosts a,b -n %d --master_addr 127.0.0.1 --master_port %d --max_restarts " DRILL_RESTARTS
                 " --rsh",
                 s->n, port);
        LS_TRY(ls_argv_split(w, text));
        LS_TRY(ls_argv_add(w, s->rsh));
        LS_TRY(ls_argv_add(w, "--"));
    }
    LS_TRY(train_words(s, r->layout.words, run_dir, w));
    snprintf(text, sizeof text, "--comm_timeout %d%s", DRILL_TIMEOUT,
             r->fault[0].kind->flip ? " --audit 1 --audit_depth step" : "");
    LS_TRY(ls_argv_split(w, text));
    if (s->launcher != DRILL_N) return LS_OK;
    snprintf(text, sizeof text, "-n %d --max_restarts " DRILL_RESTARTS, s->n);
    return ls_argv_split(w, text);
}

/* mpirun on one machine, with more workers than cores, also as root. Values that are set stay. */
static void set_mpi_environment(void)
{
    static const char *const set[][2] = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                         {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                         {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                         {"OMPI_MCA_mpi_yield_when_idle", "1"},
                                         {"OMPI_MCA_hwloc_base_binding_policy", "none"}};
    for (size_t i = 0; i < CLI_COUNT(set); i++) setenv(set[i][0], set[i][1], 0);
}

/* ---- a child ---- */

typedef struct attempt {
    const drill_site *site;
    drill_run *run;
    const char *mark, *log;
    bool acted, late;
    double acted_at; /* when a host was lost */
} attempt;

static void tick(void *ctx, double seconds)
{
    attempt *a = ctx;
    if (seconds > a->site->limit) {
        a->late = true;
        (void)marked(a->mark, NULL, SIGKILL);
    }
    if (!a->run || a->acted || !a->run->fault[0].kind->host || !ls_fs_exists(a->log)) return;
    a->acted = true; /* the run waits in its slow step: now a host is lost */
    a->acted_at = ls_now();
    (void)marked(a->mark, "LOCKSTEP_HOST_ID=b", SIGKILL);
}

static ls_status child(const drill_site *s, const ls_argv *w, const char *dir, attempt *a, int *code)
{
    const ls_path out = ls_path_of(dir, "drill.out"), err = ls_path_of(dir, "drill.err");
    LS_TRY(ls_fs_mkdirs(dir));
    return ls_child_run(&(ls_child){.program = s->program,
                                    .out_path = out.text,
                                    .err_path = err.text,
                                    .words = w,
                                    .grace = 10,
                                    .tick = tick,
                                    .ctx = a},
                        code);
}

static bool has_letter(const char *line)
{
    while (*line && !isalpha((unsigned char)*line)) line++;
    return *line;
}

/* What the run printed last, for a message: the last line of this program, else one with words; launchers draw frames around theirs. */
static void last_words(const char *dir, char *out, size_t room)
{
    char *text = NULL;
    size_t n = 0;
    *out = '\0';
    if (ls_fs_read(ls_path_of(dir, "drill.err").text, &text, &n) != LS_OK) {
        ls_err_clear();
        return;
    }
    bool own = false;
    while (n && !own) { /* backwards */
        while (n && text[n - 1] == '\n') n--;
        text[n] = '\0';
        while (n && text[n - 1] != '\n') n--;
        own = !strncmp(text + n, "lockstep: ", 10);
        if (own || (!*out && has_letter(text + n))) snprintf(out, room, "%s", text + n);
    }
    ls_free(text);
}

/* ---- the undisturbed run ---- */

static ls_status make_judge(drill_site *s, int tp)
{
    char layout[64], dir[PATH_MAX], why[256];
    ls_argv w = {0};
    int code = 0;
    attempt a = {.site = s, .mark = "LOCKSTEP_DRILL=judge"};
    LS_TRY(ls_path_in(dir, s->dir, "undisturbed-tp%d", tp));
    snprintf(layout, sizeof layout, "--grad_accum_steps %d", s->n_micro);
    ls_status st = train_words(s, layout, dir, &w);
    if (st == LS_OK && tp > 1) st = ls_argv_split(&w, "--tp 2 -n 2");
    if (st == LS_OK) st = child(s, &w, dir, &a, &code);
    ls_argv_fini(&w);
    LS_TRY(st);
    last_words(dir, why, sizeof why);
    if (code) return ls_fail(LS_E_CONFIG, "the undisturbed run failed with exit code %d: %s", code, why);
    return ls_ckpt_resolve("--checkpoint", dir, &s->judge[tp - 1]);
}

static bool same_file(const char *a, const char *b, const char *name)
{
    ls_fs_map x = {0}, y = {0};
    bool same = ls_fs_map_open(&x, ls_path_of(a, name).text) == LS_OK;
    if (same)
        same = ls_fs_map_open(&y, ls_path_of(b, name).text) == LS_OK && x.n == y.n && !memcmp(x.data, y.data, x.n);
    ls_fs_map_close(&x);
    ls_fs_map_close(&y);
    ls_err_clear();
    return same;
}

static bool same_result(const drill_site *s, const drill_run *r, const char *dir)
{
    char *mine = NULL;
    const char *judge = s->judge[r->layout.tp - 1];
    if (ls_ckpt_resolve("--checkpoint", dir, &mine) != LS_OK) {
        ls_err_clear();
        return false;
    }
    const bool same = same_file(mine, judge, "model.safetensors") && same_file(mine, judge, "optimizer.safetensors");
    ls_free(mine);
    return same;
}

/* ---- what happened ---- */

/* The time of fault k on the monotonic clock; NaN: it did not happen. */
static double time_of(const char *log, int k)
{
    double at = NAN;
    FILE *f = fopen(log, "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *end;
        const double t = strtod(line, &end);
        if (*end == ' ' && strtol(end, NULL, 10) == k && isnan(at)) at = t;
    }
    if (f) fclose(f);
    return at;
}

/* What events.jsonl says of a fault at time `at` on the monotonic clock. */
static void read_events(const char *dir, drill_fault *f, double at)
{
    ls_follow whole = {0};
    ls_jsonl l;
    ls_run_event e;
    struct timespec now;
    ls_wall(&now);
    const double wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - ls_now() + at; /* of the fault */
    if (ls_follow_look(&whole, ls_path_of(dir, "events.jsonl").text, LS_JSONL_ALL, &l) != LS_OK) ls_err_clear();
    while (ls_jsonl_next(&l)) {
        if (!ls_run_event_read(l.row, &e)) continue;
        const double after = 1e-3 * (double)e.time_unix_ms - wall;
        if (e.kind == LS_EV_FAILURE && e.attempt == f->attempt) {
            f->detected = fmax(after, 0);
            snprintf(f->cause, sizeof f->cause, "%s", e.cause);
            f->blamed = (int)e.rank;
        } else if (e.kind == LS_EV_SAVE_FAILED && f->kind->file && after >= -0.01 && isnan(f->detected)) {
            f->detected = fmax(after, 0); /* --save_failures warn: the run goes on without this checkpoint */
            snprintf(f->cause, sizeof f->cause, "disk");
        } else if (e.kind == LS_EV_RESTART && e.attempt == f->attempt + 1) {
            f->again = fmax(after, 0);
            f->lost_steps = e.lost_steps;
        }
    }
    ls_follow_end(&whole, &l);
}

static void fail(drill_run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(drill_run *r, const char *fmt, ...)
{
    va_list ap;
    if (*r->failed) return; /* the first reason */
    va_start(ap, fmt);
    vsnprintf(r->failed, sizeof r->failed, fmt, ap);
    va_end(ap);
}

static void judge_fault(drill_run *r, drill_fault *f, const char *dir, const attempt *a)
{
    const double at = f->kind->host ? (a->acted ? a->acted_at : NAN) : time_of(a->log, f->attempt - 1);
    f->happened = !isnan(at);
    f->detected = f->again = NAN;
    f->blamed = -1;
    f->lost_steps = -1;
    if (!f->happened) {
        /* a second fault needs the restart after the first */
        if (f->attempt == 1 || !isnan(r->fault[0].again))
            fail(r, "fault %lld (%s) did not happen", (long long)f->number, f->words);
        return;
    }
    read_events(dir, f, at);
    const long long k = (long long)f->number;
    if (isnan(f->detected)) {
        if (f->kind->fails && !f->kind->harmless) fail(r, "fault %lld (%s) was not detected", k, f->words);
        return;
    }
    if (!f->kind->fails) fail(r, "fault %lld (%s): the run failed (%s), but should go on", k, f->words, f->cause);
    /* other launchers than -n see exit codes only */
    if (f->kind->cause && a->site->launcher == DRILL_N && strcmp(f->cause, f->kind->cause) != 0)
        fail(r, "fault %lld (%s): the recorded cause is '%s', not '%s'", k, f->words, f->cause, f->kind->cause);
    if (f->kind->flip && f->blamed >= 0 && f->blamed != f->rank)
        fail(r, "fault %lld (%s): rank %d is blamed", k, f->words, f->blamed);
}

static void nap(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* Waits for the processes of a run that has ended, and kills those that stay; their number. */
static int end_processes(const char *mark)
{
    int left = 0;
    for (const double until = ls_now() + LAST_SEC; (left = marked(mark, NULL, 0)) && ls_now() < until;) nap();
    if (!left) return 0;
    (void)marked(mark, NULL, SIGKILL);
    for (const double until = ls_now() + LAST_SEC; marked(mark, NULL, 0) && ls_now() < until;) nap();
    return left;
}

static void set_plan(const drill_run *r)
{
    char plan[DRILL_PER_RUN * 200] = "";
    for (int k = 0; k < r->n_fault; k++) {
        const size_t at = strlen(plan);
        snprintf(plan + at, sizeof plan - at, "%s%s", k ? ";" : "", r->fault[k].words);
    }
    setenv("LOCKSTEP_FAULT", plan, 1);
}

ls_status drill_run_once(drill_site *s, drill_run *r)
{
    char dir[PATH_MAX], mark[64], why[256], name[NAME_MAX + 1];
    ls_argv w = {0};
    if (!s->judge[r->layout.tp - 1]) LS_TRY(make_judge(s, r->layout.tp));
    LS_TRY(ls_path_in(dir, s->dir, "run-%lld", (long long)r->fault[0].number));
    const ls_path log = ls_path_of(dir, "drill.faults");
    snprintf(mark, sizeof mark, "LOCKSTEP_DRILL=%d-%lld.", (int)getpid(), (long long)r->fault[0].number);
    attempt a = {.site = s, .run = r, .mark = mark, .log = log.text};
    const time_t since = time(NULL);
    const double begin = ls_now();
    setenv("LOCKSTEP_DRILL", strchr(mark, '=') + 1, 1);
    setenv("LOCKSTEP_FAULT_LOG", log.text, 1);
    set_plan(r);
    ls_status st = run_words(s, r, dir, &w);
    if (st == LS_OK) st = child(s, &w, dir, &a, &r->code);
    ls_argv_fini(&w);
    unsetenv("LOCKSTEP_FAULT");
    unsetenv("LOCKSTEP_FAULT_LOG");
    unsetenv("LOCKSTEP_DRILL");
    const int left = end_processes(mark); /* also after a stop: they write to the folder */
    LS_TRY(st);
    r->seconds = ls_now() - begin;
    if (left) fail(r, "%d process%s left behind", left, left == 1 ? " is" : "es are");
    if (leaves_shared_memory(since, s->launcher != DRILL_MPI, name)) fail(r, "/dev/shm/%s is left behind", name);
    last_words(dir, why, sizeof why);
    if (a.late) fail(r, "the run did not end within %g s and was killed", s->limit);
    if (r->code) fail(r, "the run ended with exit code %d: %s", r->code, why);
    for (int k = 0; k < r->n_fault; k++) judge_fault(r, &r->fault[k], dir, &a);
    r->same = !r->code && same_result(s, r, dir);
    if (!r->code && !r->same) fail(r, "the result differs from the undisturbed run");
    return *r->failed || s->keep ? LS_OK : ls_fs_remove_tree(dir);
}

/* ---- the folder ---- */

static ls_status make_data(const char *dir)
{
    unsigned char *ids = ls_alloc(2 * N_TOKEN); /* 16 bits each, little-endian; the upper byte is 0 */
    if (!ids) return ls_nomem(2 * N_TOKEN, "training data");
    const uint64_t key = ls_rng_key(1, LS_RNG_TEST, 4, 0);
    for (int64_t i = 0; i < N_TOKEN; i++)
        ids[2 * i] = (unsigned char)(ls_rng_u64(key, (uint64_t)(i / 3)) % 200 + (uint64_t)(i % 3));
    const ls_status st = ls_fs_write(ls_path_of(dir, "data/train.bin").text, ids, 2 * N_TOKEN);
    ls_free(ids);
    return st;
}

ls_status drill_site_open(drill_site *s, const char *dir)
{
    static const char shell[] = "#!/bin/sh\nexport LOCKSTEP_HOST_ID=$1\nshift\nexec sh -c \"$*\"\n";
    LS_TRY(ls_fs_mkdirs(dir));
    if (!realpath(dir, s->dir)) return ls_fail(LS_E_IO, "%s: %s", dir, strerror(errno));
    LS_TRY(ls_program_path(s->program));
    LS_TRY(ls_path_in(s->rsh, s->dir, "rsh"));
    if (s->launcher == DRILL_TCP) {
        LS_TRY(ls_fs_write(s->rsh, shell, sizeof shell - 1));
        if (chmod(s->rsh, 0755)) return ls_fail(LS_E_IO, "chmod %s: %s", s->rsh, strerror(errno));
    }
    if (s->launcher == DRILL_MPI) set_mpi_environment();
    if (s->data) return LS_OK;
    LS_TRY(make_data(s->dir));
    s->data = ls_path_join(s->dir, "data");
    return s->data ? LS_OK : ls_nomem(strlen(s->dir), "a path");
}

void drill_site_close(drill_site *s, bool remove)
{
    for (int i = 0; i < 2; i++) ls_free(s->judge[i]);
    if (s->own_data) ls_free((char *)(uintptr_t)s->data);
    if (remove && ls_fs_remove_tree(s->dir) != LS_OK) ls_err_clear();
}
