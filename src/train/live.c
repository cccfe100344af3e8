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

static int64_t unix_ms(void)
{
    struct timespec now;
    ls_wall(&now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

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

static ls_jsonw begin_line(ls_live *l)
{
    ls_jsonw w;
    l->line.len = 0;
    ls_jsonw_init(&w, &l->line, 0);
    ls_jsonw_open(&w, '{');
    return w;
}

/* Closes a file that does not take what is written: a full disk must not cost a system call per line. */
static void gave_up(int *fd, const char *name)
{
    ls_warn("train", "write %s: %s; serve and watch show less of this run", name, strerror(errno));
    close(*fd);
    *fd = -1;
}

static void add_event(ls_live *l, ls_jsonw *w)
{
    ls_jsonw_put_int(w, "time_unix_ms", unix_ms());
    ls_jsonw_close(w);
    ls_str_addc(&l->line, '\n');
    if (l->events < 0 || l->line.failed) return;
    if (write(l->events, l->line.data, l->line.len) != (ssize_t)l->line.len) gave_up(&l->events, "events.jsonl");
}

/* Of the supervisor that started this process; 1: there is none. */
static int attempt_number(void)
{
    int n = 1;
    bool given;
    if (ls_env_int("LOCKSTEP_ATTEMPT", 1, &n, &given) != LS_OK) ls_err_clear();
    return n;
}

static void add_start(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    ls_jsonw w = begin_line(&t->live);
    ls_jsonw_members(
        &w, LS_KV("event", (const char *)"start"), LS_KV("attempt", attempt_number()), LS_KV("step", t->state.step),
        LS_KV("total_steps", c->total_steps), LS_KV("world_size", ls_comm_size(t->comm)),
        LS_KV("strategy", c->strategy), LS_KV("dp", c->mesh.n[LS_AXIS_DP]), LS_KV("pp", c->mesh.n[LS_AXIS_PP]),
        LS_KV("tp", c->mesh.n[LS_AXIS_TP]), LS_KV("precision", c->precision),
        LS_KV("device", (const char *)(t->compute.device ? "cuda" : "cpu")),
        LS_KV("tokens_per_step", c->global_batch * c->seq_len), LS_KV("parameters", ls_model_n_param(&c->model)));
    if (t->log.dropped)
        ls_jsonw_members(&w, LS_KV("dropped_steps", t->log.dropped), LS_KV("dropped_seconds", t->log.dropped_seconds),
                         LS_KV("dropped_until_unix_ms", t->log.dropped_until));
    add_event(&t->live, &w);
}

static void add_validation(ls_trainer *t, const ls_event *e)
{
    ls_jsonw w = begin_line(&t->live);
    ls_jsonw_members(&w, LS_KV("event", (const char *)"validation"), LS_KV("step", t->state.step),
                     LS_KV("loss", e->val_loss));
    add_event(&t->live, &w);
}

static void add_checkpoint(ls_trainer *t, const ls_event *e)
{
    ls_jsonw w = begin_line(&t->live);
    ls_jsonw_members(&w, LS_KV("event", (const char *)"checkpoint"), LS_KV("step", e->at_step), LS_KV("name", e->text));
    add_event(&t->live, &w);
}

static void add_audit(ls_trainer *t, const ls_audit_fault *f)
{
    ls_jsonw w = begin_line(&t->live);
    ls_jsonw_members(&w, LS_KV("event", (const char *)"audit"), LS_KV("step", ls_audit_step(t->audit)),
                     LS_KV("result", (const char *)(f ? "mismatch" : "ok")));
    if (f) {
        ls_jsonw_members(&w, LS_KV("what", ls_audit_word(f->what)),
                         LS_KV("unit", ls_audit_unit(t->model, f->unit, (char[32]){0})));
        if (f->rank >= 0) ls_jsonw_put_int(&w, "rank", f->rank);
        else ls_jsonw_put_str(&w, "rank", NULL);
    }
    add_event(&t->live, &w);
}

static void add_lost(ls_trainer *t, const ls_event *e)
{
    ls_jsonw w = begin_line(&t->live);
    ls_jsonw_members(&w, LS_KV("event", (const char *)"checkpoint_failed"), LS_KV("step", e->at_step),
                     LS_KV("name", e->text), LS_KV("reason", e->reason));
    add_event(&t->live, &w);
}

static void add_interval(ls_trainer *t)
{
    ls_jsonw w = begin_line(&t->live);
    ls_jsonw_members(&w, LS_KV("event", (const char *)"save_every"), LS_KV("step", t->state.step),
                     LS_KV("steps", t->saving.every), LS_KV("save_seconds", t->saving.cost),
                     LS_KV("step_seconds", t->pace.seconds), LS_KV("mtbf_hours", t->cfg->mtbf));
    if (t->cfg->save_async) ls_jsonw_put_real(&w, "write_seconds", t->saving.write);
    add_event(&t->live, &w);
}

static void add_end(ls_trainer *t)
{
    const char *how = t->live.complete ? "complete" : t->live.stopped ? "stopped" : "failed";
    ls_jsonw w = begin_line(&t->live);
    ls_jsonw_members(&w, LS_KV("event", (const char *)"end"), LS_KV("step", t->state.step), LS_KV("state", how));
    if (!strcmp(how, "failed") && *ls_err_words()) ls_jsonw_put_str(&w, "reason", ls_err_words());
    add_event(&t->live, &w);
}

static void gpu_members(const ls_trainer *t, ls_jsonw *w)
{
    ls_gpu_now now;
    if (!t->gpu.watch) return;
    ls_gpu_watch_last(t->gpu.watch, &now);
    ls_jsonw_put_real(w, "gpu_utilisation", now.busy);
    ls_jsonw_put_real(w, "gpu_power_w", now.power);
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
    ls_jsonw w = begin_line(l);
    ls_jsonw_members(&w, LS_KV("rank", rank), LS_KV("step", t->state.step), LS_KV("phase", l->phase),
                     LS_KV("time_unix_ms", unix_ms()), LS_KV("pid", (int64_t)getpid()));
    if (host && strlen(host) < 100) ls_jsonw_put_str(&w, "host", host);
    if (!stat("/proc/self/ns/pid", &space)) ls_jsonw_put_int(&w, "pid_namespace", (int64_t)space.st_ino);
    ls_jsonw_put_real(&w, "step_time_sec", l->step_time);
    ls_jsonw_put_real(&w, "comm_exposed_sec", l->exposed);
    ls_jsonw_put_real(&w, "cpu_utilisation", l->cpu);
    ls_jsonw_members(&w, LS_KV("memory_bytes", ls_trainer_held_bytes(t)),
                     LS_KV("on_device", (bool)(t->compute.device != NULL)));
    if (rss >= 0) ls_jsonw_put_int(&w, "rss_bytes", rss);
    gpu_members(t, &w);
    ls_jsonw_close(&w);
    if (l->line.failed || l->line.len >= LS_RANK_LINE) return;
    while (l->line.len < LS_RANK_LINE - 1) ls_str_addc(&l->line, ' ');
    ls_str_addc(&l->line, '\n');
    if (pwrite(l->ranks, l->line.data, LS_RANK_LINE, (off_t)rank * LS_RANK_LINE) != LS_RANK_LINE)
        gave_up(&l->ranks, "ranks.jsonl");
}

static void open_files(ls_trainer *t)
{
    ls_live *l = &t->live;
    const int rank = ls_comm_rank(t->comm);
    l->events = rank ? -1 : open_file(t, "events.jsonl", true);
    l->ranks = open_file(t, "ranks.jsonl", false);
    l->open = true;
    l->phase = "start";
    l->cpu = l->exposed = l->step_time = NAN;
    for (int i = 0; i < 2 * LS_RANK_LINE; i++) ls_str_addc(&l->line, ' '); /* so that no step allocates */
    if (rank == 0) {
        /* of an earlier run with more ranks */
        if (l->ranks >= 0 && ftruncate(l->ranks, (off_t)ls_comm_size(t->comm) * LS_RANK_LINE))
            gave_up(&l->ranks, "ranks.jsonl");
        add_start(t);
    }
    put_rank(t, true);
}

static void close_files(ls_trainer *t)
{
    ls_live *l = &t->live;
    l->phase = "ended";
    put_rank(t, true);
    if (ls_comm_rank(t->comm) == 0) add_end(t);
    if (l->events >= 0) close(l->events);
    if (l->ranks >= 0) close(l->ranks);
    ls_str_fini(&l->line);
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

static void see_step(ls_live *l, const ls_step_result *r)
{
    l->step_time = r->t_total;
    l->exposed = r->split.comm_exposed;
    l->cpu = r->cpu;
}

ls_status train_see_live(ls_trainer *t, const ls_event *e)
{
    ls_live *l = &t->live;
    if (e->kind == LS_ON_RUN_READY) open_files(t);
    if (!l->open) return LS_OK;
    const bool first = ls_comm_rank(t->comm) == 0;
    switch (e->kind) {
    case LS_ON_PHASE_BEGIN:
        if (!phase_words(e->phase)) return LS_OK;
        l->phase = phase_words(e->phase);
        break;
    case LS_ON_STEP_END: see_step(l, e->step); break;
    case LS_ON_VALIDATED:
        if (first && e->n_val) add_validation(t, e);
        break;
    case LS_ON_CHECKPOINT_BEGIN:
        l->phase = "checkpoint";
        put_rank(t, true);
        return LS_OK;
    case LS_ON_SAVED:
        if (first) add_checkpoint(t, e);
        break;
    case LS_ON_AUDIT:
        if (first) add_audit(t, e->audit);
        break;
    case LS_ON_SAVE_FAILED:
        if (first) add_lost(t, e);
        break;
    case LS_ON_SAVE_EVERY:
        if (first) add_interval(t);
        break;
    case LS_ON_RUN_END: l->complete = true; return LS_OK;
    case LS_ON_SHUTDOWN_BEGIN: close_files(t); return LS_OK;
    default: break;
    }
    put_rank(t, false);
    return LS_OK;
}
