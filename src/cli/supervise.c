#include "cli/supervise.h"

#include "ckpt/checkpoint.h"
#include "core/argv.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/progress.h"
#include "core/stop.h"

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

static int64_t unix_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Appends one line with one write. A run whose folder cannot be written goes on. */
static void put_event(const supervise *s, ls_str *line, ls_jsonw *w)
{
    ls_jsonw_put_int(w, "time_unix_ms", unix_ms());
    ls_jsonw_close(w);
    ls_str_addc(line, '\n');
    const int fd = ls_fs_open_lines(ls_path_of(s->run_dir, "events.jsonl").text);
    if (fd >= 0 && !line->failed) (void)!write(fd, line->data, line->len);
    if (fd >= 0) close(fd);
    ls_str_fini(line);
}

static ls_jsonw begin_event(ls_str *line, const char *name)
{
    ls_jsonw w;
    ls_jsonw_init(&w, line, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "event", name);
    return w;
}

static void put_failure(const supervise *s, const supervise_end *e)
{
    ls_str line = {0};
    ls_jsonw w = begin_event(&line, "failure");
    ls_jsonw_put_int(&w, "attempt", s->attempt);
    if (e->rank >= 0) ls_jsonw_put_int(&w, "rank", e->rank);
    else ls_jsonw_put_value(&w, "rank", json_null());
    ls_jsonw_members(&w, LS_KV("host", (const char *)e->host), LS_KV("cause", e->cause),
                     LS_KV("detail", (const char *)e->detail), LS_KV("step", s->step));
    put_event(s, &line, &w);
}

/* When training has begun again. */
static void put_restart(supervise *s)
{
    ls_str line = {0};
    ls_jsonw w = begin_event(&line, "restart");
    s->restarting = false;
    ls_jsonw_members(&w, LS_KV("attempt", s->attempt), LS_KV("workers", s->workers), LS_KV("from_step", s->from),
                     LS_KV("lost_steps", s->lost_steps), LS_KV("lost_seconds", ls_now() - s->failed_at),
                     LS_KV("repeated_seconds", s->repeated), LS_KV("backoff_seconds", s->waited));
    put_event(s, &line, &w);
}

static void put_resize(const supervise *s, int from)
{
    ls_str line = {0};
    ls_jsonw w = begin_event(&line, "resize");
    ls_jsonw_members(&w, LS_KV("from", from), LS_KV("to", s->workers), LS_KV("step", s->step), LS_KV("why", s->why));
    put_event(s, &line, &w);
}

/* After the last failure: nothing is started any more. As put_failure, only if an attempt has begun to train. */
static void put_end(const supervise *s, ls_status st, const supervise_end *e)
{
    ls_str line = {0};
    if (s->from < 0) return;
    ls_jsonw w = begin_event(&line, "end");
    ls_jsonw_members(
        &w, LS_KV("step", s->step), LS_KV("state", (const char *)(st == LS_E_STOPPED ? "stopped" : "failed")),
        LS_KV("reason", *ls_err_words() ? ls_err_words() : (const char *)e->detail), LS_KV("attempt", s->attempt));
    put_event(s, &line, &w);
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

static void take_event(supervise *s, const json_t *o)
{
    const char *name = json_string_value(json_object_get(o, "event"));
    const json_t *step = json_object_get(o, "step"), *rank = json_object_get(o, "rank");
    if (!name) return;
    if (!strcmp(name, "start") && json_is_integer(step)) {
        s->began = true;
        s->began_at = ls_now();
        if (s->restarting) count_lost(s, json_integer_value(step));
        s->from = s->step = json_integer_value(step);
        const json_t *size = json_object_get(o, "world_size");
        if (!s->workers && json_is_integer(size)) s->workers = (int)json_integer_value(size);
        if (s->restarting) put_restart(s);
    } else if (!strcmp(name, "end")) {
        const char *reason = json_string_value(json_object_get(o, "reason"));
        snprintf(s->reason, sizeof s->reason, "%s", reason ? reason : "");
    } else if (!strcmp(name, "checkpoint")) {
        s->saved = true;
    } else if (!strcmp(name, "audit")) {
        const char *result = json_string_value(json_object_get(o, "result"));
        s->corrupt = result && !strcmp(result, "mismatch");
        s->corrupt_rank = json_is_integer(rank) ? (int)json_integer_value(rank) : -1;
    }
}

/* Reads the whole lines that were appended since the last call. */
static void read_events(supervise *s)
{
    ls_fs_map m;
    int64_t nbytes = 0;
    ls_err_kept before;
    const ls_path path = ls_path_of(s->run_dir, "events.jsonl");
    ls_err_keep(&before);
    if (ls_fs_exists(path.text) && ls_fs_size(path.text, &nbytes) == LS_OK && nbytes > s->events_at &&
        ls_fs_map_open(&m, path.text) == LS_OK) {
        const char *data = m.data, *end;
        size_t at = (size_t)s->events_at;
        while (at < m.n && (end = memchr(data + at, '\n', m.n - at))) {
            json_t *o = json_loadb(data + at, (size_t)(end - data) - at, 0, NULL);
            at = (size_t)(end - data) + 1;
            s->events_at = (int64_t)at;
            if (o) take_event(s, o);
            json_decref(o);
        }
        ls_fs_map_close(&m);
    }
    ls_err_restore(&before);
}

/* ---- metrics.jsonl ---- */

/* The step and the seconds of the last whole line before `end`; where that line begins. False: there is none. */
static bool line_before(const char *data, size_t *end, int64_t *step, double *seconds)
{
    while (*end) {
        const char *nl = *end > 1 ? memrchr(data, '\n', *end - 1) : NULL;
        const size_t at = nl ? (size_t)(nl - data) + 1 : 0;
        json_t *o = data[*end - 1] == '\n' ? json_loadb(data + at, *end - at, 0, NULL) : NULL;
        const json_t *v = json_object_get(o, "step");
        const bool found = json_is_integer(v);
        if (found) *step = json_integer_value(v), *seconds = json_number_value(json_object_get(o, "step_time_sec"));
        json_decref(o);
        *end = at;
        if (found) return true;
    }
    return false;
}

/* The last finished step, and the time of the steps after `from`, which are repeated. */
static void read_steps(supervise *s, int64_t from, double *repeated)
{
    ls_fs_map m;
    ls_err_kept before;
    int64_t step = 0;
    double seconds = 0;
    bool last = true;
    const ls_path path = ls_path_of(s->run_dir, "metrics.jsonl");
    *repeated = 0;
    ls_err_keep(&before);
    if (s->resume && ls_fs_is_file(path.text) && ls_fs_map_open(&m, path.text) == LS_OK) {
        for (size_t end = m.n; line_before(m.data, &end, &step, &seconds) && (last || step > from); last = false) {
            if (last && step > s->step) s->step = step;
            if (step > from) *repeated += seconds;
        }
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
    clock_gettime(CLOCK_REALTIME, &now);
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

/* The wait before a restart. */
static ls_status pause_before(supervise *s)
{
    s->waited = fmin(FIRST_WAIT * exp2(s->count - 1), MOST_WAIT);
    return pause_for(s->waited);
}

static ls_status choose_workers(supervise *s, const supervise_end *e)
{
    const int before = s->workers;
    if (!s->ops.next) return LS_OK;
    LS_TRY(s->ops.next(s->ops.ctx, s, e));
    if (s->workers == before) return LS_OK;
    ls_progress_say("lockstep: continuing with %d worker%s instead of %d (%s)\n", s->workers,
                    s->workers == 1 ? "" : "s", before, s->why);
    put_resize(s, before);
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
    if (s->from >= 0 || restartable(s, st)) put_failure(s, e);
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
    char memory[80];
    snprintf(memory, sizeof memory, "step %lld in the memory of the hosts", (long long)noted);
    if (chosen == LS_OK)
        ls_progress_say("lockstep: restarting from %s in %.3g s (restart %d of %d without a new checkpoint)\n",
                        noted > from ? memory
                        : path       ? path
                                     : "step 0",
                        fmin(FIRST_WAIT * exp2(s->count - 1), MOST_WAIT), s->count, s->max_restarts);
    ls_free(path);
    LS_TRY(chosen);
    s->restarting = true;
    return pause_before(s);
}

/* A signal came, but the run failed instead of saving. */
static ls_status stop_failed(supervise *s, ls_status st, supervise_end *e)
{
    read_steps(s, INT64_MAX, &s->repeated);
    complete_end(s, st, e);
    if (s->from >= 0) put_failure(s, e);
    put_end(s, st, e);
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
    ls_err_kept before;
    s->began = s->corrupt = s->saved = false;
    s->reason[0] = '\0';
    s->wanted = 0;
    s->oom_kills = oom_kills();
    s->events_at = 0;
    ls_err_keep(&before);
    const ls_path events = ls_path_of(s->run_dir, "events.jsonl");
    if (ls_fs_exists(events.text) && ls_fs_size(events.text, &s->events_at) != LS_OK) ls_err_restore(&before);
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

/* Before the first attempt of a run that is resumed: it does not start from a damaged checkpoint either. */
static ls_status check_resumed(const supervise *s)
{
    char *path = NULL;
    int64_t from;
    const ls_status st = find_checkpoint(s, &path, &from);
    ls_free(path);
    return st;
}

ls_status supervise_run(supervise *s)
{
    supervise_end e;
    s->from = -1;
    const ls_path events = ls_path_of(s->run_dir, "events.jsonl");
    if (ls_fs_exists(events.text) && !ls_fs_is_file(events.text))
        return ls_fail(LS_E_IO, "%s is not a regular file, and restarts write to it; remove it", events.text);
    (void)ls_fs_unlink(ls_path_of(s->run_dir, SUPERVISE_ASK).text, false); /* of an earlier run */
    LS_TRY(check_resumed(s));
    for (s->attempt = 1;; s->attempt++) {
        const ls_status st = one_attempt(s, &e);
        if (st == LS_OK || (st == LS_E_STOPPED && (!s->wanted || ls_stop_requested()))) return st;
        if (ls_stop_requested()) return stop_failed(s, st, &e);
        const ls_status next = st == LS_E_STOPPED ? change_workers(s) : recover(s, st, &e);
        if (next != LS_OK) put_end(s, next, &e);
        LS_TRY(next);
    }
}
