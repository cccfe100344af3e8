#include "cli/supervise.h"

#include "ckpt/checkpoint.h"
#include "core/argv.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/progress.h"
#include "core/stop.h"
#include "run/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FIRST_WAIT 0.5 /* seconds */
#define MOST_WAIT  30.0
#define LOOK       0.5 /* seconds between two looks for a request */

/* ---- events.jsonl ---- */

/* Appends one line, as ls_event_add does. */
#define ADD_EVENT(s, kind, ...)                              \
    do {                                                     \
        ls_event_log log_ = ls_event_log_open((s)->run_dir); \
        ls_event_add(&log_, kind, __VA_ARGS__);              \
        ls_event_log_close(&log_);                           \
    } while (0)

static void add_failure(const supervise *s, const supervise_end *e)
{
    ADD_EVENT(s, LS_EV_FAILURE, LS_KV("attempt", s->attempt), LS_KV_COUNT("rank", e->rank),
              LS_KV("host", (const char *)e->host), LS_KV("cause", e->cause), LS_KV("detail", (const char *)e->detail),
              LS_KV("step", s->step));
}

/* After the last failure: nothing is started any more. As add_failure, only if an attempt has begun to train. */
static void add_end(const supervise *s, ls_status st, const supervise_end *e)
{
    if (s->from < 0) return;
    ADD_EVENT(
        s, LS_EV_END, LS_KV("step", s->step), LS_KV("state", (const char *)(st == LS_E_STOPPED ? "stopped" : "failed")),
        LS_KV("reason", *ls_err_words() ? ls_err_words() : (const char *)e->detail), LS_KV("attempt", s->attempt));
}

/* Training has begun again after a failure: what the attempts before had done beyond this step is lost. */
static void count_lost(supervise *s, int64_t from)
{
    s->lost_steps = s->resume && s->step > from ? s->step - from : 0;
    if (from < s->expected) { /* the copy in memory is gone: checkpoints above this step are new ones */
        s->repeated = s->repeated_found;
        s->reached = from;
    }
    if (from <= s->reached) return;
    s->reached = from; /* from a copy in memory that this host does not have */
    s->count = 1;
}

/* A `start`. */
static void see_start(supervise *s, const ls_run_event *e)
{
    s->began = true;
    s->began_at = ls_now();
    if (s->restarting) count_lost(s, e->step);
    s->from = s->step = e->step;
    if (!s->workers && e->world_size >= 0) s->workers = (int)e->world_size;
    if (s->restarting)
        ADD_EVENT(s, LS_EV_RESTART, LS_KV("attempt", s->attempt), LS_KV("workers", s->workers),
                  LS_KV("from_step", s->from), LS_KV("lost_steps", s->lost_steps),
                  LS_KV("lost_seconds", ls_now() - s->failed_at), LS_KV("repeated_seconds", s->repeated),
                  LS_KV("backoff_seconds", s->waited));
    s->restarting = false;
}

/* Reads the whole lines that were appended since the last call. */
static void read_events(supervise *s)
{
    ls_jsonl l;
    ls_run_event e;
    ls_err_kept before;
    ls_err_keep(&before);
    if (ls_follow_look(&s->events, ls_path_of(s->run_dir, "events.jsonl").text, LS_JSONL_ALL, &l) == LS_OK) {
        while (ls_jsonl_next(&l)) {
            if (!ls_run_event_read(l.row, &e)) continue;
            if (e.kind == LS_EV_START && e.step >= 0) see_start(s, &e);
            if (e.kind == LS_EV_END) snprintf(s->reason, sizeof s->reason, "%s", e.reason);
            if (e.kind == LS_EV_CHECKPOINT) s->saved = true;
            if (e.kind == LS_EV_AUDIT) {
                s->corrupt = !strcmp(e.result, "mismatch");
                s->corrupt_rank = (int)e.rank;
            }
        }
        ls_follow_end(&s->events, &l);
    }
    ls_err_restore(&before);
}

/* ---- metrics.jsonl ---- */

/* The last finished step, and the time of the steps after `from`, which are repeated. */
static void read_steps(supervise *s, int64_t from, double *repeated)
{
    ls_fs_map m;
    ls_err_kept before;
    ls_metrics_row row;
    bool last = true;
    const ls_path path = ls_path_of(s->run_dir, "metrics.jsonl");
    *repeated = 0;
    ls_err_keep(&before);
    if (s->resume && ls_fs_is_file(path.text) && ls_fs_map_open(&m, path.text) == LS_OK) {
        ls_jsonl l = {.text = m.data, .n = m.n, .at = m.n};
        while ((last || row.step > from) && ls_jsonl_back(&l)) {
            if (!l.whole || !ls_metrics_read(l.row, &row)) continue;
            if (last && row.step > s->step) s->step = row.step;
            if (row.step > from) *repeated += fmax(row.x[LS_ROW_STEP_TIME], 0); /* NaN is left out */
            last = false;
        }
        ls_jsonl_fini(&l);
        ls_fs_map_close(&m);
    }
    ls_err_restore(&before);
}

/* When the last finished step ended, or the first one of the attempt began: the last line of metrics.jsonl was written then. */
static double last_progress(const supervise *s)
{
    struct stat file;
    struct timespec now;
    const double at = ls_now();
    if (!s->began || stat(ls_path_of(s->run_dir, "metrics.jsonl").text, &file)) return at;
    ls_wall(&now);
    const double age = difftime(now.tv_sec, file.st_mtim.tv_sec) + (double)(now.tv_nsec - file.st_mtim.tv_nsec) * 1e-9;
    return fmin(at, fmax(s->began_at, at - age));
}

/* ---- requests ---- */

static void answer(const supervise *s, const char *text)
{
    if (ls_fs_write(ls_path_of(s->run_dir, SUPERVISE_ANSWER).text, text, strlen(text)) != LS_OK) ls_err_clear();
}

/* A file of `lockstep resize`. */
static void look_for_request(supervise *s)
{
    char *text = NULL;
    size_t n;
    int64_t wanted = 0;
    ls_err_kept before;
    const ls_path path = ls_path_of(s->run_dir, SUPERVISE_ASK);
    if (!s->ops.allows || !ls_fs_is_file(path.text)) return;
    ls_err_keep(&before);
    if (ls_fs_read(path.text, &text, &n) == LS_OK) {
        text[strcspn(text, "\n")] = '\0';
        const bool ok = ls_parse_i64(text, &wanted) && wanted > 0 && wanted < INT_MAX;
        ls_err_clear();
        if (!ok) answer(s, "the request is no number of workers");
        else if (s->ops.allows(s->ops.ctx, s, (int)wanted) != LS_OK) answer(s, ls_err_words());
        else {
            s->wanted = wanted == s->workers ? 0 : (int)wanted;
            s->why = "asked";
            answer(s, s->wanted ? "ok" : SUPERVISE_SAME_NUMBER);
        }
        (void)ls_fs_unlink(path.text, false);
        ls_free(text);
    }
    ls_err_restore(&before);
}

bool supervise_tick(void *ctx)
{
    supervise *s = ctx;
    const double now = ls_now();
    if (!s->began) read_events(s); /* the time of the first step is recorded exactly */
    if (now - s->looked_at < LOOK || s->wanted) return s->wanted && s->began; /* until then there is nothing to save */
    s->looked_at = now;
    look_for_request(s);
    if (!s->wanted && s->ops.wants && s->began) {
        s->wanted = s->ops.wants(s->ops.ctx, s);
        s->why = "workers returned";
    }
    if (s->wanted)
        ls_progress_say("lockstep: stopping to continue with %d worker%s (%s)\n", s->wanted, s->wanted == 1 ? "" : "s",
                        s->why);
    return s->wanted && s->began;
}

/* ---- failures ---- */

/* Processes that the kernel has killed because memory was short; -1: not known. */
static int64_t oom_kills(void)
{
    static const char key[] = "\noom_kill ";
    char text[16384];
    const int fd = open("/proc/vmstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t n = 0;
    for (ssize_t k; n < sizeof text - 1 && (k = read(fd, text + n, sizeof text - 1 - n)) > 0;) n += (size_t)k;
    close(fd);
    text[n] = '\0';
    const char *at = strstr(text, key);
    return at ? strtoll(at + sizeof key - 1, NULL, 10) : -1;
}

static bool restartable(const supervise *s, ls_status st)
{
    switch (st) {
    case LS_E_COMM:
    case LS_E_DEVICE:
    case LS_E_CORRUPT:
    case LS_E_INTERNAL: return true;
    case LS_E_IO:     /* once an attempt has begun to train, everything could be read and written */
    case LS_E_FORMAT: /* a launcher gives an exit code, which is the same as that of LS_E_IO */
    case LS_E_NOMEM: return s->from >= 0;
    default: return false;
    }
}

/* The cause by the message of a failure; NULL: not known. */
static const char *cause_of(const char *words)
{
    static const char *const known[][2] = {{"killed by signal", "killed"},
                                           {"SIGSTOP", "stopped"},
                                           {"no progress", "hang"},
                                           {" was lost", "connection lost"},
                                           {" exited", "exited"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(words, known[i][0])) return known[i][1];
    return NULL;
}

/* A cause that says that a worker is gone, not how it ended. */
static bool says_little(const char *cause)
{
    return !strcmp(cause, "exited") || !strcmp(cause, "connection lost");
}

/* "rank N ..." of the worker that a message blames; NULL: none. A worker that waited in vain names itself before it, or no other. */
static const char *blamed(const char *words)
{
    const char *at = strstr(words, "; rank "), *look = strstr(words, "; look at rank ");
    if (at) return at + 2;
    if (look) return look + 10;
    return strstr(words, "no progress") ? NULL : strstr(words, "rank ");
}

/* Rank 0 knows more than the exit code of a launcher, unless it heard first of a worker that failed because of another one. */
static void take_reason(const supervise *s, supervise_end *e)
{
    int rank = -1;
    char host[256];
    const char *at = blamed(s->reason), *cause = cause_of(s->reason);
    if (at && sscanf(at, "rank %d", &rank) == 1 && e->sure && rank != e->rank) return;
    if (e->rank < 0) e->rank = rank;
    if (at && !e->lost && sscanf(at, "rank %*d on %255[^ :,;]", host) == 1) memcpy(e->host, host, sizeof host);
    if (e->cause && cause && !says_little(cause)) e->cause = cause; /* the code of a launcher may tell how */
    snprintf(e->detail, sizeof e->detail, "%.*s", (int)strcspn(s->reason, "\n"), s->reason);
}

/* A file that could not be written is that of one worker, but all workers fail. Rank 0, whose words they are, does not name itself. */
static void take_writer(const supervise *s, supervise_end *e)
{
    int rank = 0;
    const char *at = strstr(e->detail, "worker ");
    if (at ? sscanf(at, "worker %d:", &rank) == 1 : s->reason[0] && !strstr(s->reason, "rank ")) e->rank = rank;
}

/* Whether the kernel may have killed the worker: of one that others only miss, nobody knows how it ended. */
static bool may_be_killed(const supervise_end *e)
{
    if (!e->cause) return false;
    return !strcmp(e->cause, "killed") || (says_little(e->cause) && !strstr(e->detail, " exited with code"));
}

static void complete_end(const supervise *s, ls_status st, supervise_end *e)
{
    const int64_t oom = oom_kills();
    if (s->reason[0] && (!e->cause || e->vague)) take_reason(s, e);
    if (s->corrupt) e->cause = "corruption", e->rank = s->corrupt_rank, e->lost = e->rank >= 0;
    if (!e->cause && (st == LS_E_IO || st == LS_E_NOMEM || st == LS_E_FORMAT)) take_writer(s, e);
    if (e->rank >= 0 && s->ops.host_of) s->ops.host_of(s->ops.ctx, e->rank, e->host);
    if (!e->host[0]) (void)gethostname(e->host, sizeof e->host - 1);
    if (!e->detail[0])
        snprintf(e->detail, sizeof e->detail, "%.380s", *ls_err_words() ? ls_err_words() : ls_status_words(st));
    e->detail[strcspn(e->detail, "\n")] = '\0';
    if (!e->cause && st == LS_E_COMM) e->cause = cause_of(e->detail);
    if (may_be_killed(e) && oom > s->oom_kills && s->oom_kills >= 0) e->cause = "out of memory";
    if (e->cause) return;
    e->cause = st == LS_E_CORRUPT                   ? "corruption"
               : st == LS_E_NOMEM                   ? "out of memory"
               : st == LS_E_DEVICE                  ? "device"
               : st == LS_E_IO || st == LS_E_FORMAT ? "disk"
                                                    : "other";
}

/* LS_E_STOPPED: a signal came. */
static ls_status pause_for(double seconds)
{
    for (const double until = ls_now() + seconds; ls_now() < until;) {
        if (ls_stop_requested()) return ls_fail(LS_E_STOPPED, "stopped before the restart");
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return LS_OK;
}

/* The newest whole checkpoint (*path: ls_free, NULL: none). One that cannot be read is tried again for half a minute, then passed over if an
 * older one is whole. */
static ls_status read_newest(const supervise *s, char **path, ls_str *skipped)
{
    ls_err_kept why;
    ls_status st = ls_ckpt_newest_whole(s->run_dir, false, path, skipped);
    for (double wait = FIRST_WAIT; st == LS_E_IO && wait < MOST_WAIT; wait *= 2) {
        ls_progress_say("lockstep: %s; the checkpoints are read again in %g s\n", ls_err_words(), wait);
        ls_err_clear();
        ls_str_fini(skipped);
        LS_TRY(pause_for(wait));
        st = ls_ckpt_newest_whole(s->run_dir, false, path, skipped);
    }
    if (st != LS_E_IO) return st;
    ls_err_keep(&why);
    ls_str_fini(skipped);
    if (ls_ckpt_newest_whole(s->run_dir, true, path, skipped) == LS_OK && *path) return LS_OK;
    ls_err_restore(&why);
    return st;
}

/* The step of the newest whole checkpoint, 0 without; damaged ones that are newer are renamed. A run that is resumed does not begin again because
 * all of them are damaged: it is refused, or, where hosts may have copies in their memory, its workers decide. *path: ls_free. */
static ls_status find_checkpoint(const supervise *s, char **path, int64_t *step)
{
    ls_str skipped = {0};
    *path = NULL;
    *step = 0;
    if (!s->resume) return LS_OK;
    const ls_status st = read_newest(s, path, &skipped);
    for (char *line = skipped.data, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        ls_progress_say("lockstep: damaged checkpoint is not used: %s\n", line);
    }
    const bool none = s->from < 0 && st == LS_OK && !*path && skipped.len;
    ls_str_fini(&skipped);
    LS_TRY(st);
    if (none && s->hosts && ls_ckpt_memory_noted(s->run_dir) >= 0) return LS_OK;
    if (none)
        return ls_fail(LS_E_FORMAT,
                       "--resume %s: every checkpoint is damaged; restore one from a copy, or train in another folder",
                       s->run_dir);
    LS_TRY(ls_ckpt_reject(s->run_dir, *path));
    return *path ? ls_ckpt_state(*path, NULL, step) : LS_OK;
}

/* Whether the failure has come several times after the same step, and is one of the program; of the disk: at any step, on any worker, without a new
 * checkpoint on the disk since. An attempt that has not begun to train, of which no worker is known to have failed, may be one of the network. */
static bool repeats(supervise *s, ls_status st, const supervise_end *e)
{
    const bool disk = !strcmp(e->cause, "disk"), outside = e->outside || (e->rank < 0 && !s->began);
    const bool equal =
        disk ? s->disk && !s->saved : st == s->last && e->rank == s->last_rank && s->step == s->last_step;
    s->same = !disk && outside ? 0 : equal ? s->same + 1 : 1;
    s->last = st;
    s->last_rank = e->rank;
    s->last_step = s->step;
    s->disk = disk;
    return s->same >= SUPERVISE_SAME && (!disk || s->same > s->max_restarts);
}

static bool is_full(const char *words)
{
    return strstr(words, strerror(ENOSPC)) || strstr(words, strerror(EDQUOT)) || strstr(words, "MiB free");
}

/* Whether the attempt after this failure may start; prints why not. */
static bool may_restart(supervise *s, ls_status st, const supervise_end *e, int64_t from)
{
    const bool again = repeats(s, st, e);
    if (s->began && from > s->from && from > s->reached) {
        s->count = 0;
        s->reached = from;
    }
    s->count++;
    const bool over = s->count > s->max_restarts;
    s->disk_final = s->disk && (again || over);
    if (s->disk && again)
        ls_progress_say("lockstep: not restarted: the disk failed %d times in a row without a new checkpoint (%s)%s\n",
                        s->same, e->detail, is_full(e->detail) ? "; make room before the run is continued" : "");
    else if (again)
        ls_progress_say("lockstep: not restarted: the same failure %d times in a row after step %lld\n", s->same,
                        (long long)s->step);
    else if (over)
        ls_progress_say(
            "lockstep: not restarted: --max_restarts %d allows no more restarts without a new checkpoint%s\n",
            s->max_restarts,
            !s->disk             ? "; when the cause is removed, --resume continues the run"
            : is_full(e->detail) ? "; make room before the run is continued"
                                 : "");
    return !again && !over;
}

static ls_status choose_workers(supervise *s, const supervise_end *e)
{
    const int before = s->workers;
    if (!s->ops.next) return LS_OK;
    LS_TRY(s->ops.next(s->ops.ctx, s, e));
    if (s->workers == before) return LS_OK;
    ls_progress_say("lockstep: continuing with %d worker%s instead of %d (%s)\n", s->workers,
                    s->workers == 1 ? "" : "s", before, s->why);
    ADD_EVENT(s, LS_EV_RESIZE, LS_KV("from", before), LS_KV("to", s->workers), LS_KV("step", s->step),
              LS_KV("why", s->why));
    return LS_OK;
}

/* A worker that ends in mid-run without a word, with any exit code, which another launcher hands on: rank 0 has lost it, or is it. */
static bool lost_silently(const supervise *s, ls_status st, const supervise_end *e)
{
    if (!e->code || !s->began || s->corrupt) return false;
    return s->reason[0] ? strstr(s->reason, " exited") != NULL : !restartable(s, st);
}

/* After a failure: LS_OK if the next attempt may start, else the failure. */
static ls_status recover(supervise *s, ls_status st, supervise_end *e)
{
    char *path = NULL;
    int64_t from = 0;
    if (!s->restarting) s->failed_at = last_progress(s);
    if (s->began) s->resume = true;
    read_steps(s, INT64_MAX, &s->repeated);
    if (lost_silently(s, st, e)) st = LS_E_COMM;
    complete_end(s, st, e);
    /* one that is final before an attempt has begun to train is no event of the run in this folder */
    if (s->from >= 0 || restartable(s, st)) add_failure(s, e);
    if (!restartable(s, st)) {
        if (s->attempt > 1 || s->began)
            ls_progress_say("lockstep: not restarted: a restart would repeat this failure\n");
        return st;
    }
    char when[48] = "before its first step";
    if (s->began) snprintf(when, sizeof when, "after step %lld", (long long)s->step);
    ls_progress_say("lockstep: attempt %d failed %s: %s: %s\n", s->attempt, when, e->cause, e->detail);
    ls_err_kept why;
    ls_err_keep(&why);
    const ls_status found = find_checkpoint(s, &path, &from);
    if (found != LS_OK) {
        ls_free(path);
        return found;
    }
    const int64_t noted = s->resume ? ls_ckpt_memory_noted(s->run_dir) : -1;
    s->expected = noted > from ? noted : from;
    read_steps(s, from, &s->repeated_found);
    read_steps(s, s->expected, &s->repeated);
    if (!may_restart(s, st, e, s->expected)) {
        ls_free(path);
        ls_err_restore(&why);
        return st;
    }
    const ls_status chosen = choose_workers(s, e);
    s->waited = fmin(FIRST_WAIT * exp2(s->count - 1), MOST_WAIT);
    char memory[80];
    snprintf(memory, sizeof memory, "step %lld in the memory of the hosts", (long long)noted);
    if (chosen == LS_OK)
        ls_progress_say("lockstep: restarting from %s in %.3g s (restart %d of %d without a new checkpoint)\n",
                        noted > from ? memory
                        : path       ? path
                                     : "step 0",
                        s->waited, s->count, s->max_restarts);
    ls_free(path);
    LS_TRY(chosen);
    s->restarting = true;
    return pause_for(s->waited);
}

/* A signal came, but the run failed instead of saving. */
static ls_status stop_failed(supervise *s, ls_status st, supervise_end *e)
{
    read_steps(s, INT64_MAX, &s->repeated);
    complete_end(s, st, e);
    if (s->from >= 0) add_failure(s, e);
    add_end(s, st, e);
    return st;
}

/* After the workers have stopped because their number changes. */
static ls_status change_workers(supervise *s)
{
    ls_err_clear();
    if (s->began) s->resume = true;
    read_steps(s, INT64_MAX, &s->repeated);
    LS_TRY(choose_workers(s, NULL));
    s->wanted = 0;
    return LS_OK;
}

static ls_status one_attempt(supervise *s, supervise_end *e)
{
    char number[16];
    struct stat events;
    ls_err_kept before;
    s->began = s->corrupt = s->saved = false;
    s->reason[0] = '\0';
    s->wanted = 0;
    s->oom_kills = oom_kills();
    s->events = (ls_follow){0};
    if (!stat(ls_path_of(s->run_dir, "events.jsonl").text, &events)) s->events.at = events.st_size;
    snprintf(number, sizeof number, "%d", s->attempt);
    setenv("LOCKSTEP_ATTEMPT", number, 1);
    *e = (supervise_end){.rank = -1};
    const ls_status st = s->ops.attempt(s->ops.ctx, s, e);
    ls_err_keep(&before);
    read_events(s);
    ls_err_restore(&before);
    return st;
}

ls_status supervise_parse_elastic(const char *text, int64_t n, int limit, int *least, int *most)
{
    int64_t a = 0, b = 0;
    char copy[64] = "";
    *least = *most = 0;
    if (!text) return LS_OK;
    if (strlen(text) < sizeof copy) snprintf(copy, sizeof copy, "%s", text);
    char *colon = strchr(copy, ':');
    if (colon) *colon = '\0';
    if (!colon || !ls_parse_i64(copy, &a) || !ls_parse_i64(colon + 1, &b) || a < 1 || b < a || b > limit)
        return ls_fail(LS_E_ARG, "--elastic %.60s: must be MIN:MAX with 1 <= MIN <= MAX <= %d, such as 2:8", text,
                       limit);
    if (n && (n < a || n > b))
        return ls_fail(LS_E_ARG, "--elastic %s: -n %lld is outside; the run starts with -n workers", text,
                       (long long)n);
    *least = (int)a;
    *most = (int)b;
    return LS_OK;
}

ls_status supervise_check_spares(int64_t spares, int64_t max_restarts)
{
    if (!spares || max_restarts) return LS_OK;
    return ls_fail(LS_E_ARG, "--hot_spare %lld does nothing with --max_restarts 0: leave one of them out",
                   (long long)spares);
}

bool supervise_can_continue(const supervise *s, ls_status st)
{
    return st != LS_OK && s->from >= 0 && (st == LS_E_STOPPED || s->disk_final || ls_stop_requested());
}

ls_status supervise_run(supervise *s)
{
    supervise_end e;
    char *path = NULL;
    int64_t from;
    s->from = -1;
    const ls_path events = ls_path_of(s->run_dir, "events.jsonl");
    if (ls_fs_exists(events.text) && !ls_fs_is_file(events.text))
        return ls_fail(LS_E_IO, "%s is not a regular file, and restarts write to it; remove it", events.text);
    (void)ls_fs_unlink(ls_path_of(s->run_dir, SUPERVISE_ASK).text, false); /* of an earlier run */
    const ls_status found =
        find_checkpoint(s, &path, &from); /* a run that is resumed does not start from a damaged one */
    ls_free(path);
    LS_TRY(found);
    for (s->attempt = 1;; s->attempt++) {
        const ls_status st = one_attempt(s, &e);
        if (st == LS_OK || (st == LS_E_STOPPED && (!s->wanted || ls_stop_requested()))) return st;
        if (ls_stop_requested()) return stop_failed(s, st, &e);
        const ls_status next = st == LS_E_STOPPED ? change_workers(s) : recover(s, st, &e);
        if (next != LS_OK) add_end(s, next, &e);
        LS_TRY(next);
    }
}
