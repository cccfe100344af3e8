/* live.c - the observer that writes events.jsonl and ranks.jsonl (live.h). */
#include "train/live.h"
#include "train/train_impl.h"

#include "core/clock.h"
#include "core/env.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Bytes of this process in memory; -1: not known. */
static int64_t resident(void)
{
    char text[64];
    long long size, pages;
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    return sscanf(text, "%lld %lld", &size, &pages) == 2 ? (int64_t)pages * sysconf(_SC_PAGESIZE) : -1;
}

/* A descriptor, or -1 after a warning: a run goes on without these files. */
static int open_file(const ls_trainer *t, const char *name, bool append)
{
    char path[PATH_MAX];
    if (ls_path_in(path, t->cfg->run_dir, "%s", name) != LS_OK) {
        ls_err_clear();
        return -1;
    }
    const int fd = append ? ls_fs_open_lines(path) : ls_fs_open(path, O_WRONLY | O_CREAT);
    if (fd < 0 && errno != ENOENT) /* ENOENT: a rank on a host without the run folder */
        ls_warn("train", "open %s: %s; serve and watch show less of this run", path, ls_fs_why(errno));
    return fd;
}

static void add_start(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    int attempt = 1; /* of the supervisor that started this process */
    bool given;
    if (ls_env_int("LOCKSTEP_ATTEMPT", 1, &attempt, &given) != LS_OK) ls_err_clear();
    ls_event_add(&t->live.events, LS_EV_START, LS_KV("attempt", attempt), LS_KV("step", t->state.step),
                 LS_KV("total_steps", c->total_steps), LS_KV("world_size", ls_comm_size(t->comm)),
                 LS_KV("strategy", c->strategy), LS_KV("dp", c->mesh.n[LS_AXIS_DP]), LS_KV("pp", c->mesh.n[LS_AXIS_PP]),
                 LS_KV("tp", c->mesh.n[LS_AXIS_TP]), LS_KV("precision", c->precision),
                 LS_KV("device", (const char *)(t->compute.device ? "cuda" : "cpu")),
                 LS_KV("tokens_per_step", c->global_batch * c->seq_len),
                 LS_KV("parameters", ls_model_n_param(&c->model)),
                 LS_KV_IF(t->log.dropped, LS_KV("dropped_steps", t->log.dropped),
                          LS_KV("dropped_seconds", t->log.dropped_seconds),
                          LS_KV("dropped_until_unix_ms", t->log.dropped_until)));
}

/* The line of an event of rank 0; others have none. */
static void add_event(ls_trainer *t, const ls_event *e)
{
    ls_event_log *const l = &t->live.events;
    const ls_audit_fault *const f = e->audit;
    switch (e->kind) {
    case LS_ON_VALIDATED:
        if (e->n_val) ls_event_add(l, LS_EV_VALIDATION, LS_KV("step", t->state.step), LS_KV("loss", e->val_loss));
        break;
    case LS_ON_SAVED: ls_event_add(l, LS_EV_CHECKPOINT, LS_KV("step", e->at_step), LS_KV("name", e->text)); break;
    case LS_ON_SAVE_FAILED:
        ls_event_add(l, LS_EV_SAVE_FAILED, LS_KV("step", e->at_step), LS_KV("name", e->text),
                     LS_KV("reason", e->reason));
        break;
    case LS_ON_AUDIT:
        ls_event_add(l, LS_EV_AUDIT, LS_KV("step", ls_audit_step(t->audit)),
                     LS_KV("result", (const char *)(f ? "mismatch" : "ok")),
                     LS_KV_IF(f, LS_KV("what", ls_audit_word(f->what)),
                              LS_KV("unit", ls_audit_unit(t->model, f->unit, (char[32]){0})),
                              LS_KV_COUNT("rank", f->rank)));
        break;
    case LS_ON_SAVE_EVERY:
        ls_event_add(l, LS_EV_SAVE_EVERY, LS_KV("step", t->state.step), LS_KV("steps", t->saving.every),
                     LS_KV("save_seconds", t->saving.cost), LS_KV("step_seconds", t->pace.seconds),
                     LS_KV("mtbf_hours", t->cfg->mtbf),
                     LS_KV_IF(t->cfg->save_async, LS_KV("write_seconds", t->saving.write)));
        break;
    default: break;
    }
}

/* Closes a file that does not take what is written: a full disk must not cost a system call per line. */
static void give_up_ranks(ls_live *l)
{
    ls_warn("train", "write ranks.jsonl: %s; serve and watch show less of this run", strerror(errno));
    close(l->ranks);
    l->ranks = -1;
}

/* The line of this rank; always: also if it was written a moment ago. */
static void put_rank(ls_trainer *t, bool always)
{
    ls_live *l = &t->live;
    const double now = ls_now();
    if (l->ranks < 0 || (!always && now - l->written < LS_RANK_PERIOD)) return;
    int local_rank;
    const int rank = ls_comm_rank(t->comm);
    const char *host = ls_comm_host(t->comm, rank, &local_rank);
    const int64_t rss = resident();
    struct stat space;
    l->written = now;
    ls_str *const line = &l->events.line;
    ls_jsonw w;
    line->len = 0;
    ls_jsonw_init(&w, line, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("rank", rank), LS_KV("step", t->state.step), LS_KV("phase", l->phase),
                     LS_KV("time_unix_ms", ls_unix_ms()), LS_KV("pid", (int64_t)getpid()),
                     LS_KV_IF(host && strlen(host) < 100, LS_KV("host", host)),
                     LS_KV_IF(!stat("/proc/self/ns/pid", &space), LS_KV("pid_namespace", (int64_t)space.st_ino)),
                     LS_KV("step_time_sec", l->step_time), LS_KV("comm_exposed_sec", l->exposed),
                     LS_KV("cpu_utilisation", l->cpu), LS_KV("memory_bytes", ls_trainer_held_bytes(t)),
                     LS_KV("on_device", (bool)(t->compute.device != NULL)),
                     LS_KV_IF(rss >= 0, LS_KV("rss_bytes", rss)));
    if (t->gpu.watch) {
        ls_gpu_now gpu;
        ls_gpu_watch_last(t->gpu.watch, &gpu);
        ls_jsonw_put_real(&w, "gpu_utilisation", gpu.busy);
        ls_jsonw_put_real(&w, "gpu_power_w", gpu.power);
    }
    ls_jsonw_close(&w);
    if (line->failed || line->len >= LS_RANK_LINE) return;
    while (line->len < LS_RANK_LINE - 1) ls_str_addc(line, ' ');
    ls_str_addc(line, '\n');
    if (pwrite(l->ranks, line->data, LS_RANK_LINE, (off_t)rank * LS_RANK_LINE) != LS_RANK_LINE) give_up_ranks(l);
}

static void open_files(ls_trainer *t)
{
    ls_live *l = &t->live;
    const int rank = ls_comm_rank(t->comm);
    l->events = (ls_event_log){.fd = rank ? -1 : open_file(t, "events.jsonl", true), .who = "train"};
    l->ranks = open_file(t, "ranks.jsonl", false);
    l->open = true;
    l->phase = "start";
    l->cpu = l->exposed = l->step_time = NAN;
    for (int i = 0; i < 2 * LS_RANK_LINE; i++) ls_str_addc(&l->events.line, ' '); /* so that no step allocates */
    if (rank == 0) {
        /* of an earlier run with more ranks */
        if (l->ranks >= 0 && ftruncate(l->ranks, (off_t)ls_comm_size(t->comm) * LS_RANK_LINE)) give_up_ranks(l);
        add_start(t);
    }
    put_rank(t, true);
}

static void close_files(ls_trainer *t)
{
    ls_live *l = &t->live;
    const char *how = l->complete ? "complete" : l->stopped ? "stopped" : "failed";
    l->phase = "ended";
    put_rank(t, true);
    ls_event_add(&l->events, LS_EV_END, LS_KV("step", t->state.step), LS_KV("state", how),
                 LS_KV_IF(!l->complete && !l->stopped && *ls_err_words(), LS_KV("reason", ls_err_words())));
    ls_event_log_close(&l->events);
    if (l->ranks >= 0) close(l->ranks);
    l->open = false;
}

/* "train/forward" -> "forward"; NULL: a phase that is part of another one. */
static const char *phase_words(ls_phase p)
{
    switch (p) {
    case LS_PHASE_INPUT:
    case LS_PHASE_STAGE_INPUT: return "input";
    case LS_PHASE_PASS:
    case LS_PHASE_FORWARD: return "forward";
    case LS_PHASE_BACKWARD: return "backward";
    case LS_PHASE_PIPELINE: return "pipeline";
    case LS_PHASE_REDUCE: return "reduce";
    case LS_PHASE_NORM:
    case LS_PHASE_NUMBERS: return "norm";
    case LS_PHASE_WAIT: return "wait";
    case LS_PHASE_AUDIT: return "audit";
    case LS_PHASE_UPDATE: return "update";
    case LS_PHASE_VAL_FORWARD: return "validation";
    default: return NULL;
    }
}

ls_status train_see_live(ls_trainer *t, const ls_event *e)
{
    ls_live *l = &t->live;
    if (e->kind == LS_ON_RUN_READY) open_files(t);
    if (!l->open) return LS_OK;
    switch (e->kind) {
    case LS_ON_PHASE_BEGIN:
        if (!phase_words(e->phase)) return LS_OK;
        l->phase = phase_words(e->phase);
        break;
    case LS_ON_STEP_END:
        l->step_time = e->step->t_total;
        l->exposed = e->step->split.comm_exposed;
        l->cpu = e->step->cpu;
        break;
    case LS_ON_CHECKPOINT_BEGIN:
        l->phase = "checkpoint";
        put_rank(t, true);
        return LS_OK;
    case LS_ON_RUN_END: l->complete = true; return LS_OK;
    case LS_ON_SHUTDOWN_BEGIN: close_files(t); return LS_OK;
    default:
        if (l->events.fd >= 0) add_event(t, e);
    }
    put_rank(t, false);
    return LS_OK;
}
