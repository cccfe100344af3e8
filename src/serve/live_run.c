#include "serve/live_run.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/str.h"
#include "core/utf8.h"
#include "run/events.h"
#include "run/jsonl.h"
#include "run/metrics.h"

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

/* Copies a text, not cut inside a character. */
static void copy(char *out, size_t room, const char *text)
{
    size_t n = strlen(text);
    if (n >= room)
        for (n = room - 1; n && (text[n] & 0xc0) == 0x80;) n--;
    memcpy(out, text, n);
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

static ls_status add_step(ls_live_run *r, const ls_jsonl *l)
{
    ls_metrics_row row;
    if (!ls_metrics_read(l->row, &row)) {
        r->n_bad++;
        return LS_OK;
    }
    for (int s = 0; s < LS_N_CURVE; s++) r->last.value[s] = row.x[ls_curve_row[s]];
    r->last.step = row.step;
    r->last.epoch = ls_metrics_int(&row, LS_ROW_EPOCH);
    r->last.tokens_per_step = ls_metrics_int(&row, LS_ROW_TOKENS);
    r->last.updated_ms = ls_metrics_int(&row, LS_ROW_TIME);
    const double val = row.x[LS_ROW_VAL_LOSS];
    if (!r->kept) { /* a row of a table */
        if (isfinite(val) && row.step >= r->last.val_step) {
            r->last.val_loss = val;
            r->last.val_step = row.step;
        }
        return LS_OK;
    }
    LS_TRY(ls_curve_add(&r->curve, row.step, r->last.value));
    return add_validation(r, row.step, val);
}

static void see_start(ls_live_run *r, const ls_run_event *e)
{
    r->last.total_steps = e->total_steps;
    r->last.started_ms = e->time_unix_ms;
    r->parameters = e->parameters;
    r->ended[0] = r->reason[0] = 0;
    copy(r->strategy, sizeof r->strategy, e->strategy);
    copy(r->precision, sizeof r->precision, e->precision);
    copy(r->device, sizeof r->device, e->device);
    r->world = e->world_size;
    snprintf(r->layout, sizeof r->layout, "dp %lld, pp %lld, tp %lld", (long long)e->dp, (long long)e->pp,
             (long long)e->tp);
    const int before = r->n_val;
    while (r->n_val && r->val[r->n_val - 1].step > e->step) r->n_val--;
    if (r->n_val != before) r->val_generation++;
    if (r->last.val_step > e->step) {
        r->last.val_step = r->n_val ? r->val[r->n_val - 1].step : -1;
        r->last.val_loss = r->n_val ? r->val[r->n_val - 1].loss : NAN;
    }
}

static void see_failure(ls_live_run *r, const ls_run_event *e, ls_live_event *to)
{
    char cause[32], host[64], detail[160], where[96] = "";
    copy(cause, sizeof cause, e->cause);
    copy(host, sizeof host, e->host);
    copy(detail, sizeof detail, e->detail);
    if (e->rank >= 0 && strncmp(detail, "rank ", 5) != 0) /* else it names the rank itself */
        snprintf(where, sizeof where, " (rank %lld%s%s)", (long long)e->rank, *host ? " on " : "", host);
    snprintf(r->reason, sizeof r->reason, "%s%s%s%s", *cause ? cause : "failure", where, *detail ? ": " : "", detail);
    snprintf(to->words, sizeof to->words, "attempt %lld failed: %.160s", (long long)e->attempt, r->reason);
}

static void see_restart(const ls_run_event *e, ls_live_event *to)
{
    char seconds[48] = "";
    if (isfinite(e->lost_seconds)) snprintf(seconds, sizeof seconds, ", %.1f s without training", e->lost_seconds);
    snprintf(to->words, sizeof to->words, "attempt %lld with %lld workers from step %lld: %lld steps are repeated%s",
             (long long)e->attempt, (long long)e->workers, (long long)e->from_step, (long long)e->lost_steps, seconds);
    to->step = e->from_step;
}

/* Of the audits that passed, only the newest is listed. */
static void see_audit(ls_live_run *r, const ls_run_event *e, ls_live_event *to)
{
    char blamed[48] = "";
    copy(to->name, sizeof to->name, e->result);
    if (e->rank >= 0) snprintf(blamed, sizeof blamed, "; rank %lld computed it wrongly", (long long)e->rank);
    if (!strcmp(to->name, "mismatch")) {
        snprintf(to->words, sizeof to->words, "failed: %.31s%s%.63s differ%s", e->what, *e->unit ? " of " : "", e->unit,
                 blamed);
        return;
    }
    snprintf(to->words, sizeof to->words, "passed");
    for (int i = 0; i < r->n_event; i++) {
        if (strcmp(r->event[i].kind, "audit") != 0 || !strcmp(r->event[i].name, "mismatch")) continue;
        memmove(&r->event[i], &r->event[i + 1], (size_t)(--r->n_event - i) * sizeof *r->event);
        i--;
    }
}

static ls_status add_event(ls_live_run *r, const ls_jsonl *l)
{
    ls_run_event e;
    if (!ls_run_event_read(l->row, &e)) {
        r->n_bad++;
        return LS_OK;
    }
    ls_live_event to = {.step = e.step, .time_ms = e.time_unix_ms, .loss = e.loss};
    copy(to.kind, sizeof to.kind, e.event);
    copy(to.name, sizeof to.name, e.kind == LS_EV_END ? e.state : e.name);
    (void)ls_run_history_add(&r->seen, &e);
    if (e.kind == LS_EV_START) see_start(r, &e);
    if (e.kind == LS_EV_FAILURE) see_failure(r, &e, &to);
    if (e.kind == LS_EV_RESTART) see_restart(&e, &to);
    if (e.kind == LS_EV_RESIZE)
        snprintf(to.words, sizeof to.words, "from %lld to %lld workers%s%.63s", (long long)e.from, (long long)e.to,
                 *e.why ? ": " : "", e.why);
    if (e.kind == LS_EV_AUDIT) see_audit(r, &e, &to);
    if (e.kind == LS_EV_END && !r->seen.waits) {
        snprintf(r->ended, sizeof r->ended, "%.15s", to.name);
        copy(r->reason, sizeof r->reason, e.reason);
    }
    if (r->n_event == LS_LIVE_EVENTS) memmove(r->event, r->event + 1, (size_t)--r->n_event * sizeof *r->event);
    r->event[r->n_event++] = to;
    return e.kind == LS_EV_VALIDATION ? add_validation(r, e.step, e.loss) : LS_OK;
}

static void forget_steps(ls_live_run *r)
{
    ls_curve_clear(&r->curve);
    r->n_val = 0;
    r->val_generation++;
    r->last.val_step = -1;
    r->last.val_loss = NAN;
    r->events = (ls_follow){0}; /* the validations of epochs are in it */
    r->n_event = 0;
    r->seen = (ls_run_history){0};
}

static ls_status read_new(ls_live_run *r, const char *name, ls_follow *f,
                          ls_status (*read)(ls_live_run *r, const ls_jsonl *l), bool *more)
{
    ls_jsonl l;
    const int64_t n_long = f->n_long;
    LS_TRY(ls_follow_look(f, ls_path_of(r->dir, name).text, LS_LIVE_CHUNK, &l));
    if (f->again && f == &r->steps) forget_steps(r);
    ls_status st = LS_OK;
    while (st == LS_OK && ls_jsonl_next(&l)) st = read(r, &l);
    ls_follow_end(f, &l);
    r->n_bad += f->n_long - n_long;
    if (f->more) *more = true;
    return st;
}

/* ---- ranks.jsonl ---- */

static ls_status add_rank(ls_live_run *r, const json_t *j)
{
    ls_live_rank k = {.rank = (int)ls_json_int_at(j, "rank"),
                      .step = ls_json_int_at(j, "step"),
                      .updated_ms = ls_json_int_at(j, "time_unix_ms"),
                      .pid = ls_json_int_at(j, "pid"),
                      .pid_namespace = ls_json_int_at(j, "pid_namespace"),
                      .rss_bytes = ls_json_int_at(j, "rss_bytes"),
                      .memory_bytes = ls_json_int_at(j, "memory_bytes"),
                      .on_device = json_is_true(json_object_get(j, "on_device")),
                      .step_time = ls_json_real_at(j, "step_time_sec"),
                      .exposed = ls_json_real_at(j, "comm_exposed_sec"),
                      .cpu = ls_json_real_at(j, "cpu_utilisation"),
                      .gpu = ls_json_real_at(j, "gpu_utilisation"),
                      .power = ls_json_real_at(j, "gpu_power_w")};
    if (k.rank < 0 || r->n_rank >= LS_LIVE_RANKS) return LS_OK;
    copy(k.phase, sizeof k.phase, ls_json_text_at(j, "phase"));
    copy(k.host, sizeof k.host, ls_json_text_at(j, "host"));
    if (!ls_grow(&r->rank, r->n_rank, &r->cap_rank, sizeof *r->rank))
        return ls_nomem(sizeof *r->rank, "the ranks of a run");
    r->rank[r->n_rank++] = k;
    return LS_OK;
}

/* A line may be read while it is written, or not be written yet: it is left out. */
static ls_status read_ranks(ls_live_run *r)
{
    ls_follow whole = {0};
    ls_jsonl l;
    const size_t most = 512 * (size_t)LS_LIVE_RANKS;
    r->n_rank = 0;
    LS_TRY(ls_follow_look(&whole, ls_path_of(r->dir, "ranks.jsonl").text, most + 1, &l));
    ls_status st = LS_OK;
    while (l.n <= most && st == LS_OK && ls_jsonl_next(&l)) st = add_rank(r, l.row);
    ls_jsonl_fini(&l);
    return st;
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

/* The run is over, unless a supervisor has not recorded yet that it starts the next attempt. */
static ls_live_state over(const ls_live_run *r, ls_live_state state)
{
    return supervised(r) > 0 ? LS_LIVE_RESTARTING : state;
}

static ls_live_state state_of(const ls_live_run *r)
{
    struct stat s;
    const int64_t now = ls_unix_ms();
    if (ls_fs_is_file(ls_path_of(r->dir, "RUN_COMPLETE.txt").text)) return LS_LIVE_FINISHED;
    if (!strcmp(r->ended, "complete")) return LS_LIVE_FINISHED;
    if (r->seen.waits) { /* between two attempts, or after the last of them */
        const int waits = supervised(r);
        return waits > 0 || (waits < 0 && now - r->seen.since < RESTART_MS) ? LS_LIVE_RESTARTING : LS_LIVE_FAILED;
    }
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
    const char *link = r->steps.link ? METRICS : r->events.link ? EVENTS : NULL;
    r->state = link ? LS_LIVE_FAILED : state_of(r);
    if (link)
        snprintf(r->reason, sizeof r->reason,
                 "%s is a symbolic link, which is not followed inside a run folder; replace it with its target, or "
                 "remove it",
                 link);
    if (link || r->state != LS_LIVE_FAILED || *r->ended || r->seen.waits) return LS_OK;
    LS_TRY(read_new(r, EVENTS, &r->events, add_event, more));
    r->state = state_of(r);
    if (r->state == LS_LIVE_FAILED && !*r->ended && !r->seen.waits)
        snprintf(r->reason, sizeof r->reason, "the process of rank 0 (pid %lld) is gone and recorded no error",
                 (long long)r->rank[0].pid);
    return LS_OK;
}

ls_status ls_live_run_update(ls_live_run *r, bool *more)
{
    *more = false;
    r->kept = true;
    LS_TRY(read_new(r, METRICS, &r->steps, add_step, more));
    LS_TRY(read_new(r, EVENTS, &r->events, add_event, more));
    LS_TRY(read_ranks(r));
    return find_state(r, more);
}

/* The lines in the last bytes of metrics.jsonl. */
static ls_status read_tail(ls_live_run *r)
{
    struct stat s;
    ls_jsonl l;
    const ls_path path = ls_path_of(r->dir, METRICS);
    if (stat(path.text, &s)) return LS_OK;
    const int64_t at = (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec;
    if (s.st_size == r->peeked && at == r->peeked_at) return LS_OK;
    ls_follow f = {.at = s.st_size > PEEK ? s.st_size - PEEK : 0};
    const bool cut = f.at; /* the first line */
    LS_TRY(ls_follow_look(&f, path.text, LS_LIVE_CHUNK, &l));
    r->steps.link = f.link;
    ls_status st = LS_OK;
    while (st == LS_OK && ls_jsonl_next(&l))
        if (!cut || l.number > 1) st = add_step(r, &l);
    ls_jsonl_fini(&l);
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
    LS_TRY(read_new(r, EVENTS, &r->events, add_event, &more));
    LS_TRY(read_ranks(r));
    return find_state(r, &more);
}

double ls_live_run_read(const ls_live_run *r)
{
    return r->steps.size > 0 ? (double)r->steps.seen / (double)r->steps.size : 1;
}
