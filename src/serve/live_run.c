#include "serve/live_run.h"

#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/str.h"
#include "core/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A supervisor waits 30 s at most before a restart; where it cannot be seen, a run is expected back within RESTART_MS. */
enum { PEEK = 1 << 15, SILENT_MS = 60000, FRESH_MS = 15000, RESTART_MS = 45000 };

static const char METRICS[] = "metrics.jsonl", EVENTS[] = "events.jsonl";

const char *const ls_live_state_name[LS_N_LIVE_STATE] = {"waiting", "running", "finished",  "stopped",
                                                         "failed",  "silent",  "restarting"};

int64_t ls_live_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static double real_of(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int64_t int_of(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

static void text_of(const json_t *j, const char *key, char *out, size_t room)
{
    const char *v = json_string_value(json_object_get(j, key));
    snprintf(out, room, "%s", v ? v : "");
    size_t n = strlen(out);
    if (!v || !v[n]) return;
    while (n && (v[n] & 0xc0) == 0x80) n--; /* not inside a character */
    out[n] = 0;
}

static void forget_last(ls_live_last *l)
{
    *l = (ls_live_last){.step = -1,
                        .total_steps = -1,
                        .epoch = -1,
                        .tokens_per_step = -1,
                        .updated_ms = -1,
                        .started_ms = -1,
                        .val_loss = NAN,
                        .val_step = -1};
    for (int s = 0; s < LS_N_CURVE; s++) l->value[s] = NAN;
}

/* A name that JSON and an address can hold. NULL: out of memory. */
static char *name_in_utf8(const char *name)
{
    ls_str out = {0};
    ls_str_add(&out, "");
    for (const unsigned char *p = (const unsigned char *)name; *p;) {
        uint32_t code;
        const int n = ls_utf8_decode(p, 4, &code);
        if (n) ls_str_addn(&out, p, (size_t)n);
        else ls_str_addf(&out, "\\x%02x", *p);
        p += n ? n : 1;
    }
    if (!out.failed && out.data) return out.data;
    ls_str_fini(&out);
    return NULL;
}

ls_status ls_live_run_init(ls_live_run *r, const char *dir, const char *id)
{
    *r = (ls_live_run){.world = -1, .parameters = -1, .peeked = -1};
    if ((size_t)snprintf(r->dir, sizeof r->dir, "%s", dir) >= sizeof r->dir)
        return ls_fail(LS_E_IO, "%.60s...: the path is too long", dir);
    LS_TRY(ls_fs_no_links(dir));
    forget_last(&r->last);
    r->id = name_in_utf8(id);
    return r->id ? LS_OK : ls_nomem(strlen(id), "the name of a run");
}

void ls_live_run_fini(ls_live_run *r)
{
    ls_curve_fini(&r->curve);
    ls_free(r->val);
    ls_free(r->rank);
    ls_free(r->id);
    *r = (ls_live_run){.id = NULL};
}

/* ---- validations: of metrics.jsonl (--eval_every) and of events.jsonl (all); a step has one ---- */

static void drop_validations_from(ls_live_run *r, int64_t step)
{
    const int before = r->n_val;
    while (r->n_val && r->val[r->n_val - 1].step >= step) r->n_val--;
    if (r->n_val != before) r->val_generation++;
}

static ls_status add_validation(ls_live_run *r, int64_t step, double loss)
{
    int at = r->n_val;
    if (step < 0 || !isfinite(loss)) return LS_OK;
    while (at && r->val[at - 1].step > step) at--;
    if (at && r->val[at - 1].step == step) {
        r->val[at - 1].loss = loss;
        return LS_OK;
    }
    if (r->n_val == LS_LIVE_VALIDATIONS) { /* every second one is enough for a curve */
        for (int i = 0; i < r->n_val / 2; i++) r->val[i] = r->val[2 * i + 1];
        r->n_val /= 2;
        r->val_generation++;
        return add_validation(r, step, loss);
    }
    if (!ls_grow(&r->val, r->n_val, &r->cap_val, sizeof *r->val)) return ls_nomem(sizeof *r->val, "validations");
    memmove(r->val + at + 1, r->val + at, (size_t)(r->n_val - at) * sizeof *r->val);
    r->val[at] = (ls_live_validation){step, loss};
    r->n_val++;
    if (step >= r->last.val_step) {
        r->last.val_step = step;
        r->last.val_loss = loss;
    }
    return LS_OK;
}

/* ---- lines ---- */

static ls_status step_line(ls_live_run *r, const json_t *j)
{
    double value[LS_N_CURVE];
    const int64_t step = int_of(j, "step");
    if (step < 0) {
        r->n_bad++;
        return LS_OK;
    }
    for (int s = 0; s < LS_N_CURVE; s++) value[s] = real_of(j, ls_curve_key[s]);
    memcpy(r->last.value, value, sizeof value);
    r->last.step = step;
    r->last.epoch = int_of(j, "epoch");
    r->last.tokens_per_step = int_of(j, "tokens");
    r->last.updated_ms = int_of(j, "time_unix_ms");
    const double val = real_of(j, "val_loss");
    if (!r->kept) { /* a row of a table */
        if (isfinite(val) && step >= r->last.val_step) {
            r->last.val_loss = val;
            r->last.val_step = step;
        }
        return LS_OK;
    }
    LS_TRY(ls_curve_add(&r->curve, step, value));
    return add_validation(r, step, val);
}

static void forget_counts(ls_live_run *r)
{
    r->failures = r->restarts = r->resizes = r->audits = r->bad_audits = 0;
    r->between = false;
}

static void start_line(ls_live_run *r, const json_t *j)
{
    const int64_t step = int_of(j, "step");
    const bool again = r->between && int_of(j, "attempt") != 1; /* by the supervisor */
    if (step == 0 && !again) forget_counts(r);                  /* another run in the same folder */
    r->between = false;
    r->last.total_steps = int_of(j, "total_steps");
    r->last.started_ms = int_of(j, "time_unix_ms");
    r->world = int_of(j, "world_size");
    r->parameters = int_of(j, "parameters");
    r->ended[0] = r->reason[0] = 0;
    text_of(j, "strategy", r->strategy, sizeof r->strategy);
    text_of(j, "precision", r->precision, sizeof r->precision);
    text_of(j, "device", r->device, sizeof r->device);
    snprintf(r->layout, sizeof r->layout, "dp %lld, pp %lld, tp %lld", (long long)int_of(j, "dp"),
             (long long)int_of(j, "pp"), (long long)int_of(j, "tp"));
    drop_validations_from(r, step + 1);
    if (r->last.val_step > step) {
        r->last.val_step = r->n_val ? r->val[r->n_val - 1].step : -1;
        r->last.val_loss = r->n_val ? r->val[r->n_val - 1].loss : NAN;
    }
}

static void failure_line(ls_live_run *r, const json_t *j, ls_live_event *e)
{
    const int64_t rank = int_of(j, "rank");
    char cause[32], host[64], detail[160], where[96] = "";
    text_of(j, "cause", cause, sizeof cause);
    text_of(j, "host", host, sizeof host);
    text_of(j, "detail", detail, sizeof detail);
    if (rank >= 0 && strncmp(detail, "rank ", 5) != 0) /* else it names the rank itself */
        snprintf(where, sizeof where, " (rank %lld%s%s)", (long long)rank, *host ? " on " : "", host);
    snprintf(r->reason, sizeof r->reason, "%s%s%s%s", *cause ? cause : "failure", where, *detail ? ": " : "", detail);
    snprintf(e->words, sizeof e->words, "attempt %lld failed: %.160s", (long long)int_of(j, "attempt"), r->reason);
    r->failures++;
    r->between = true;
    r->since = e->time_ms;
}

static void restart_line(ls_live_run *r, const json_t *j, ls_live_event *e)
{
    const double lost = real_of(j, "lost_seconds");
    char seconds[48] = "";
    if (isfinite(lost)) snprintf(seconds, sizeof seconds, ", %.1f s without training", lost);
    snprintf(e->words, sizeof e->words, "attempt %lld with %lld workers from step %lld: %lld steps are repeated%s",
             (long long)int_of(j, "attempt"), (long long)int_of(j, "workers"), (long long)int_of(j, "from_step"),
             (long long)int_of(j, "lost_steps"), seconds);
    e->step = int_of(j, "from_step");
    r->restarts++;
}

static void resize_line(ls_live_run *r, const json_t *j, ls_live_event *e)
{
    char why[64];
    text_of(j, "why", why, sizeof why);
    snprintf(e->words, sizeof e->words, "from %lld to %lld workers%s%s", (long long)int_of(j, "from"),
             (long long)int_of(j, "to"), *why ? ": " : "", why);
    r->resizes++;
    if (!*r->ended && !r->between) return; /* the next attempt has started already */
    r->between = true;
    r->since = e->time_ms;
}

/* Of the audits that passed, only the newest is listed. */
static void audit_line(ls_live_run *r, const json_t *j, ls_live_event *e)
{
    char what[32], unit[64], blamed[48] = "";
    const int64_t rank = int_of(j, "rank");
    text_of(j, "result", e->name, sizeof e->name);
    text_of(j, "what", what, sizeof what);
    text_of(j, "unit", unit, sizeof unit);
    if (rank >= 0) snprintf(blamed, sizeof blamed, "; rank %lld computed it wrongly", (long long)rank);
    const bool bad = !strcmp(e->name, "mismatch");
    if (bad) snprintf(e->words, sizeof e->words, "failed: %s%s%s differ%s", what, *unit ? " of " : "", unit, blamed);
    else snprintf(e->words, sizeof e->words, "passed");
    r->audits++;
    r->bad_audits += bad;
    for (int i = 0; i < r->n_event && !bad; i++) {
        if (strcmp(r->event[i].kind, "audit") != 0 || !strcmp(r->event[i].name, "mismatch")) continue;
        memmove(&r->event[i], &r->event[i + 1], (size_t)(--r->n_event - i) * sizeof *r->event);
        i--;
    }
}

static ls_status event_line(ls_live_run *r, const json_t *j)
{
    ls_live_event e = {.step = int_of(j, "step"), .time_ms = int_of(j, "time_unix_ms"), .loss = real_of(j, "loss")};
    text_of(j, "event", e.kind, sizeof e.kind);
    const bool end = !strcmp(e.kind, "end");
    text_of(j, end ? "state" : "name", e.name, sizeof e.name);
    if (!strcmp(e.kind, "start")) start_line(r, j);
    if (!strcmp(e.kind, "failure")) failure_line(r, j, &e);
    if (!strcmp(e.kind, "restart")) restart_line(r, j, &e);
    if (!strcmp(e.kind, "resize")) resize_line(r, j, &e);
    if (!strcmp(e.kind, "audit")) audit_line(r, j, &e);
    if (end && r->between && json_object_get(j, "attempt")) r->between = false; /* the supervisor does not restart it */
    if (end && !r->between) {
        snprintf(r->ended, sizeof r->ended, "%.15s", e.name);
        text_of(j, "reason", r->reason, sizeof r->reason);
    }
    if (r->n_event == LS_LIVE_EVENTS) memmove(r->event, r->event + 1, (size_t)--r->n_event * sizeof *r->event);
    r->event[r->n_event++] = e;
    return strcmp(e.kind, "validation") != 0 ? LS_OK : add_validation(r, e.step, e.loss);
}

typedef ls_status line_reader(ls_live_run *r, const json_t *j);

/* Reads the whole lines of the text; *used: their bytes. */
static ls_status read_lines(ls_live_run *r, const char *text, size_t n, line_reader *read, size_t *used)
{
    *used = 0;
    while (*used < n) {
        const char *line = text + *used, *end = memchr(line, '\n', n - *used);
        if (!end) break;
        json_error_t e;
        json_t *j = json_loadb(line, (size_t)(end - line), 0, &e);
        ls_status st = LS_OK;
        if (json_is_object(j)) st = read(r, j);
        else if (end > line) r->n_bad++;
        json_decref(j);
        LS_TRY(st);
        *used += (size_t)(end - line) + 1;
    }
    return LS_OK;
}

/* Up to LS_LIVE_CHUNK bytes of a file from `from` on, or the last `tail`; *n 0: none. */
static ls_status read_part(ls_live_run *r, const char *name, ls_live_file *f, bool *restarted, char **data, size_t *n)
{
    struct stat s;
    *n = 0;
    *data = NULL;
    const int fd = ls_fs_open(ls_path_of(r->dir, name).text, O_RDONLY | O_NONBLOCK);
    if (fd >= 0 && r->link == name) r->link = NULL;
    if (fd < 0 && errno == ELOOP) r->link = name;
    if (fd < 0) return LS_OK; /* not written yet */
    if (fstat(fd, &s) || !S_ISREG(s.st_mode)) {
        close(fd);
        return LS_OK;
    }
    *restarted = f->inode != 0 && (s.st_ino != f->inode || s.st_size < f->at);
    if (*restarted) f->at = 0;
    f->inode = s.st_ino;
    f->size = s.st_size;
    const off_t left = s.st_size - f->at;
    const size_t want = left > LS_LIVE_CHUNK ? LS_LIVE_CHUNK : (size_t)(left > 0 ? left : 0);
    ls_status st = LS_OK;
    if (want) {
        *data = ls_alloc(want);
        if (!*data) st = ls_nomem(want, "a part of a metrics file");
        const ssize_t got = *data ? pread(fd, *data, want, f->at) : 0;
        *n = got > 0 ? (size_t)got : 0;
    }
    close(fd);
    return st;
}

static void forget_steps(ls_live_run *r)
{
    ls_curve_clear(&r->curve);
    r->n_val = 0;
    r->val_generation++;
    r->last.val_step = -1;
    r->last.val_loss = NAN;
    r->events = (ls_live_file){0}; /* the validations of epochs are in it */
    r->n_event = 0;
    forget_counts(r);
}

/* A line that is longer than a chunk cannot be one of ours: it is skipped, so that reading comes to an end. */
static void advance(ls_live_run *r, ls_live_file *f, size_t used, size_t n)
{
    if (!used && n == LS_LIVE_CHUNK) {
        used = n;
        r->n_bad++;
    }
    f->at += (off_t)used;
}

static ls_status read_new(ls_live_run *r, const char *name, ls_live_file *f, line_reader *read, bool *more)
{
    char *data = NULL;
    size_t n = 0, used = 0;
    bool restarted = false;
    LS_TRY(read_part(r, name, f, &restarted, &data, &n));
    if (restarted && f == &r->steps) forget_steps(r);
    const ls_status st = read_lines(r, data ? data : "", n, read, &used);
    ls_free(data);
    LS_TRY(st);
    f->seen = f->at + (off_t)n;
    advance(r, f, used, n);
    if (n == LS_LIVE_CHUNK) *more = true;
    return LS_OK;
}

/* ---- ranks.jsonl ---- */

static ls_status rank_line(ls_live_run *r, const json_t *j)
{
    ls_live_rank k = {.rank = (int)int_of(j, "rank"),
                      .step = int_of(j, "step"),
                      .updated_ms = int_of(j, "time_unix_ms"),
                      .pid = int_of(j, "pid"),
                      .pid_namespace = int_of(j, "pid_namespace"),
                      .rss_bytes = int_of(j, "rss_bytes"),
                      .memory_bytes = int_of(j, "memory_bytes"),
                      .on_device = json_is_true(json_object_get(j, "on_device")),
                      .step_time = real_of(j, "step_time_sec"),
                      .exposed = real_of(j, "comm_exposed_sec"),
                      .cpu = real_of(j, "cpu_utilisation"),
                      .gpu = real_of(j, "gpu_utilisation"),
                      .power = real_of(j, "gpu_power_w")};
    if (k.rank < 0 || r->n_rank >= LS_LIVE_RANKS) return LS_OK;
    text_of(j, "phase", k.phase, sizeof k.phase);
    text_of(j, "host", k.host, sizeof k.host);
    if (!ls_grow(&r->rank, r->n_rank, &r->cap_rank, sizeof *r->rank))
        return ls_nomem(sizeof *r->rank, "the ranks of a run");
    r->rank[r->n_rank++] = k;
    return LS_OK;
}

static ls_status read_ranks(ls_live_run *r)
{
    struct stat s;
    char *data = NULL;
    size_t n = 0, used;
    const ls_path path = ls_path_of(r->dir, "ranks.jsonl");
    r->n_rank = 0;
    if (stat(path.text, &s) || !S_ISREG(s.st_mode) || s.st_size > 512 * (off_t)LS_LIVE_RANKS) return LS_OK;
    const int64_t bad = r->n_bad; /* a line may be read while it is written, or not be written yet */
    ls_status st = ls_fs_read(path.text, &data, &n);
    if (st == LS_OK) st = read_lines(r, data, n, rank_line, &used);
    r->n_bad = bad;
    ls_free(data);
    if (st == LS_E_NOMEM) return st;
    ls_err_clear();
    return LS_OK;
}

/* ---- the state ---- */

/* Whether a process of this program runs on this host: 1, 0, or -1: not known. */
static int alive(int64_t pid, const char *its_host)
{
    char host[256] = "", path[64], name[32] = "", state = 0;
    if (gethostname(host, sizeof host - 1) || strcmp(host, its_host) != 0 || pid <= 0) return -1;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "r");
    const bool known = f && fscanf(f, "%*d (%31[^)]) %c", name, &state) == 2;
    if (f) fclose(f);
    return known && !strncmp(name, "lockstep", 8) && state != 'Z' && state != 'X';
}

/* Whether the processes of the run and this one are seen from the same container. */
static bool same_container(const ls_live_run *r)
{
    struct stat s;
    return r->n_rank && !stat("/proc/self/ns/pid", &s) && (int64_t)s.st_ino == r->rank[0].pid_namespace;
}

/* Whether another process than rank 0 holds the lock of the folder, and so waits to start the run again: 1, 0, or -1: not known. */
static int supervised(const ls_live_run *r)
{
    char text[400] = "", host[256] = "";
    long long pid = 0;
    const int fd = ls_fs_open(ls_path_of(r->dir, "run.lock").text, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0 || sscanf(text, "pid %lld on host %255[^,\n]", &pid, host) != 2) return -1;
    if (r->n_rank && pid == r->rank[0].pid) return 0;
    const int lives = alive(pid, host);
    return lives > 0 || same_container(r) ? lives : -1;
}

/* Between two attempts, or after the last of them. */
static ls_live_state between_state(const ls_live_run *r, int64_t now)
{
    const int waits = supervised(r);
    if (waits >= 0) return waits ? LS_LIVE_RESTARTING : LS_LIVE_FAILED;
    return now - r->since < RESTART_MS ? LS_LIVE_RESTARTING : LS_LIVE_FAILED;
}

/* The run is over, unless a supervisor has not recorded yet that it starts the next attempt. */
static ls_live_state over(const ls_live_run *r, ls_live_state state)
{
    return supervised(r) > 0 ? LS_LIVE_RESTARTING : state;
}

static ls_live_state state_of(const ls_live_run *r)
{
    struct stat s;
    const int64_t now = ls_live_now_ms();
    if (ls_fs_is_file(ls_path_of(r->dir, "RUN_COMPLETE.txt").text)) return LS_LIVE_FINISHED;
    if (!strcmp(r->ended, "complete")) return LS_LIVE_FINISHED;
    if (r->between) return between_state(r, now);
    if (!strcmp(r->ended, "stopped")) return over(r, LS_LIVE_STOPPED);
    if (*r->ended) return over(r, LS_LIVE_FAILED);
    const bool steps = !stat(ls_path_of(r->dir, METRICS).text, &s);
    int64_t seen = steps ? (int64_t)s.st_mtime * 1000 : -1;
    if (!steps && !r->n_rank) return LS_LIVE_WAITING;
    double slowest = r->last.value[LS_CURVE_TIME];
    const bool earlier = r->n_rank && r->rank[0].updated_ms < r->last.started_ms; /* of the attempt before */
    if (r->n_rank) {
        seen = earlier ? r->last.started_ms : r->rank[0].updated_ms;
        slowest = r->rank[0].step_time;
    }
    const int lives = r->n_rank && !earlier ? alive(r->rank[0].pid, r->rank[0].host) : -1;
    if (lives == 0 && same_container(r)) return over(r, LS_LIVE_FAILED);
    const int64_t patience = isfinite(slowest) ? (int64_t)(5e3 * slowest) : 0;
    if (now - seen < (r->n_rank ? LS_MAX(FRESH_MS, patience) : LS_MAX(SILENT_MS, patience))) return LS_LIVE_RUNNING;
    return lives > 0 ? LS_LIVE_RUNNING : lives == 0 ? LS_LIVE_FAILED : LS_LIVE_SILENT;
}

/* After everything else is read: what a process wrote before it was found to be gone is read once more. */
static ls_status find_state(ls_live_run *r, bool *more)
{
    r->state = r->link ? LS_LIVE_FAILED : state_of(r);
    if (r->link)
        snprintf(r->reason, sizeof r->reason,
                 "%s is a symbolic link, which is not followed inside a run folder; replace it with its target, or "
                 "remove it",
                 r->link);
    if (r->link || r->state != LS_LIVE_FAILED || *r->ended || r->between) return LS_OK;
    LS_TRY(read_new(r, EVENTS, &r->events, event_line, more));
    r->state = state_of(r);
    if (r->state == LS_LIVE_FAILED && !*r->ended && !r->between)
        snprintf(r->reason, sizeof r->reason, "the process of rank 0 (pid %lld) is gone and recorded no error",
                 (long long)r->rank[0].pid);
    return LS_OK;
}

ls_status ls_live_run_update(ls_live_run *r, bool *more)
{
    *more = false;
    r->kept = true;
    LS_TRY(read_new(r, METRICS, &r->steps, step_line, more));
    LS_TRY(read_new(r, EVENTS, &r->events, event_line, more));
    LS_TRY(read_ranks(r));
    return find_state(r, more);
}

/* The lines in the last bytes of metrics.jsonl. */
static ls_status read_tail(ls_live_run *r)
{
    struct stat s;
    char *data = NULL;
    size_t n = 0, used = 0;
    bool restarted = false;
    const ls_path path = ls_path_of(r->dir, METRICS);
    if (stat(path.text, &s)) return LS_OK;
    const int64_t at = (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec;
    if (s.st_size == r->peeked && at == r->peeked_at) return LS_OK;
    ls_live_file f = {.at = s.st_size > PEEK ? s.st_size - PEEK : 0};
    LS_TRY(read_part(r, METRICS, &f, &restarted, &data, &n));
    const char *from = data;
    if (data && s.st_size > PEEK) from = memchr(data, '\n', n); /* the first line is cut */
    const ls_status st = from ? read_lines(r, from, n - (size_t)(from - data), step_line, &used) : LS_OK;
    ls_free(data);
    if (st == LS_OK) {
        r->peeked = s.st_size;
        r->peeked_at = at;
    }
    return st;
}

ls_status ls_live_run_peek(ls_live_run *r)
{
    bool more;
    if (r->kept) return ls_live_run_update(r, &more);
    LS_TRY(read_tail(r));
    LS_TRY(read_new(r, EVENTS, &r->events, event_line, &more));
    LS_TRY(read_ranks(r));
    return find_state(r, &more);
}

double ls_live_run_read(const ls_live_run *r)
{
    return r->steps.size > 0 ? (double)r->steps.seen / (double)r->steps.size : 1;
}
