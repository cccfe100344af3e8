/* run_events.c - events.jsonl: what interrupted a run (run_events.h). */
#include "core/fs.h"
#include "core/goodput.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/stat.h"
#include "report/read/run_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ATTEMPTS = 100000, MOST_PENDING = 64 };

const char *const ls_cause_name[LS_N_CAUSE] = {"killed",        "stopped",         "hang",  "host lost",
                                               "out of memory", "device",          "disk",  "corruption",
                                               "exited",        "connection lost", "other", "resize"};

typedef struct step_list { /* ascending */
    int64_t *at;
    int n, cap;
} step_list;

typedef struct reader {
    ls_interruptions *e;
    const ls_run *run;        /* its steps are read */
    double base;              /* time of the first line, milliseconds since 1970; the others are seconds after it */
    double zero, begun, last; /* of the first start, of the start of this session, of the newest line */
    double sessions;          /* seconds of the earlier ones */
    bool timed, open;         /* base is known; the last attempt runs */
    int64_t failed;           /* number of the attempt that failed last */
    int pending[MOST_PENDING], n_pending; /* causes of the failures since the last restart, and their times */
    double failed_at[MOST_PENDING];
    double trains; /* since when the attempt of pending[0] trains; the time before is charged */
    double waits;  /* from a failure to a first step, without another failure between them */
    int n_wait;
    int n_struck; /* failures of an attempt that had started */
    step_list saved, validated;
    bool copies;     /* a restart began from a copy in memory: failures lose less than the interval of checkpoints */
    int64_t resumed; /* step at which somebody resumed the run last; 0: nobody did */
    bool changed;    /* with other workers, layout, batch, precision or device than before */
    char like[192];  /* those of the last start; "": there was none */
} reader;

static void forget(ls_interruptions *e)
{
    ls_free(e->attempt);
    ls_free(e->audit);
    *e = (ls_interruptions){0};
}

void run_events_fini(ls_interruptions **e)
{
    if (*e) forget(*e);
    ls_free(*e);
    *e = NULL;
}

static double number(const json_t *j, const char *key)
{
    return report_num(&(report_doc){.root = j}, key);
}

static int64_t whole(const json_t *j, const char *key)
{
    return report_int(&(report_doc){.root = j}, key);
}

static const char *text(const json_t *j, const char *key)
{
    const char *s = report_str(&(report_doc){.root = j}, key);
    return s ? s : "";
}

/* Copies a text without control characters, which could move the cursor of a terminal. */
static void copy(char *out, size_t room, const char *words)
{
    size_t n = strlen(words);
    n = LS_MIN(n, room - 1);
    while (n && words[n] && (words[n] & 0xc0) == 0x80) n--; /* not inside a character */
    memcpy(out, words, n);
    out[n] = 0;
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = '?';
}

static double or_zero(double x)
{
    return x > 0 ? x : 0;
}

/* --- attempts --- */

static ls_attempt *add_attempt(ls_interruptions *e, double t)
{
    if (e->n_attempt >= MOST_ATTEMPTS || !ls_grow(&e->attempt, e->n_attempt, &e->cap_attempt, sizeof *e->attempt))
        return NULL;
    ls_attempt *a = &e->attempt[e->n_attempt++];
    *a = (ls_attempt){.workers = -1, .from = -1, .to = -1, .begin = t, .end = t};
    snprintf(a->label, sizeof a->label, "%d", e->n_attempt);
    return a;
}

static ls_attempt *running(const reader *r)
{
    return r->open && r->e->n_attempt ? &r->e->attempt[r->e->n_attempt - 1] : NULL;
}

static void close_attempt(reader *r, double t, int64_t step)
{
    ls_attempt *a = running(r);
    if (a) a->end = t - r->zero;
    if (a && step >= 0) a->to = step;
    r->open = false;
}

static void drop_after(step_list *l, int64_t step)
{
    while (l->n && l->at[l->n - 1] > step) l->n--;
}

static ls_status note_step(step_list *l, int64_t step)
{
    if (step < 0 || (l->n && l->at[l->n - 1] >= step)) return LS_OK;
    if (!ls_grow(&l->at, l->n, &l->cap, sizeof *l->at)) return ls_nomem(sizeof *l->at, "steps");
    l->at[l->n++] = step;
    return LS_OK;
}

/* Time between two failures is charged to the first. */
static void charge_failed_starts(reader *r)
{
    for (int i = 0; i + 1 < r->n_pending; i++)
        r->e->cause[r->pending[i]].waiting += or_zero(r->failed_at[i + 1] - r->failed_at[i]);
}

/* When the last step up to this one had ended; NaN: not known. */
static double end_of_step(const reader *r, int64_t step)
{
    int n = r->run->n_step;
    while (n && r->run->step[n - 1].step > step) n--;
    return n ? (r->run->step[n - 1].at_ms - r->base) / 1e3 : NAN;
}

/* Failures after which no attempt trained: the first one struck after the step that ended at `until`. */
static void charge_last_failures(reader *r, double until)
{
    if (r->n_pending && !isnan(until))
        r->e->cause[r->pending[0]].waiting += or_zero(r->failed_at[0] - fmax(until, r->trains));
    charge_failed_starts(r);
}

/* Somebody resumed the run, at time t. If it was killed together with its supervisor, no event says when; the steps that it had finished
 * after its checkpoint do. They are repeated. */
static void see_resumed(reader *r, const json_t *j, double t)
{
    ls_interruptions *e = r->e;
    const int64_t dropped = whole(j, "dropped_steps");
    const double until = (number(j, "dropped_until_unix_ms") - r->base) / 1e3;
    if (until > r->last && until < t) r->last = until; /* not if it is NaN */
    ls_attempt *a = running(r);
    if (a) {
        snprintf(a->how, sizeof a->how, "ended without a record");
        close_attempt(r, r->last, whole(j, "step") + LS_MAX(dropped, 0));
    }
    if (dropped > 0) { /* lost with the failure after which nothing was started any more, if there is one */
        ls_cause_loss *c = &e->cause[r->n_pending ? r->pending[0] : LS_CAUSE_OTHER];
        c->count += !r->n_pending;
        c->lost_steps += dropped;
        c->repeated += or_zero(number(j, "dropped_seconds"));
    }
    charge_last_failures(r, dropped > 0 ? until : end_of_step(r, whole(j, "step")));
    r->sessions += or_zero(r->last - r->begun);
    r->n_pending = 0;
    r->zero += t - r->last;
    r->begun = t;
}

static ls_status see_start(reader *r, const json_t *j, double t)
{
    ls_interruptions *e = r->e;
    const int64_t step = whole(j, "step");
    const bool again =
        e->waits && whole(j, "attempt") != 1; /* by the supervisor; older versions do not say the attempt */
    char like[sizeof r->like];
    snprintf(like, sizeof like, "%lld %lld %lld %lld %.30s %.30s %.30s", (long long)whole(j, "world_size"),
             (long long)whole(j, "pp"), (long long)whole(j, "tp"), (long long)whole(j, "tokens_per_step"),
             text(j, "strategy"), text(j, "precision"), text(j, "device"));
    if (!again && step > 0) r->resumed = step, r->changed = r->changed || (*r->like && strcmp(like, r->like) != 0);
    if (!again && step == 0) r->resumed = 0, r->changed = false;
    snprintf(r->like, sizeof r->like, "%s", like);
    if (!again && step == 0) {
        forget(e);
        r->sessions = 0;
        r->n_pending = r->n_struck = r->n_wait = 0;
        r->waits = 0;
        r->copies = false;
    }
    if (!e->n_attempt) r->zero = r->begun = t;
    else if (!again) see_resumed(r, j, t); /* the time between is not a part of the run */
    if (!r->n_pending) r->trains = t;
    if (again && !r->n_pending && e->n_attempt) { /* after a resize that no failure caused */
        e->cause[LS_CAUSE_RESIZE].count++;
        e->cause[LS_CAUSE_RESIZE].waiting += or_zero(t - r->zero - e->attempt[e->n_attempt - 1].end);
    }
    drop_after(&r->saved, step);
    drop_after(&r->validated, step);
    const int64_t saved = r->saved.n ? r->saved.at[r->saved.n - 1] : 0;
    const int64_t from = e->n_attempt ? e->attempt[0].from : -1; /* -1: it failed before it started */
    r->copies = r->copies || (again && from >= 0 && step > saved && step != from);
    ls_attempt *a = add_attempt(e, t - r->zero);
    if (!a) return e->n_attempt >= MOST_ATTEMPTS ? LS_OK : ls_nomem(sizeof *a, "attempts");
    a->workers = whole(j, "world_size");
    a->from = a->to = step;
    r->open = true;
    e->waits = false;
    return LS_OK;
}

/* --- failures --- */

static int cause_of(const char *words)
{
    for (int i = 0; i < LS_CAUSE_OTHER; i++)
        if (!strcmp(words, ls_cause_name[i])) return i;
    return LS_CAUSE_OTHER;
}

static void failure_words(const json_t *j, char *out, size_t room)
{
    const int64_t rank = whole(j, "rank");
    const char *host = text(j, "host"), *detail = text(j, "detail");
    char where[128] = "";
    if (!strncmp(detail, "rank ", 5)) where[0] = 0; /* it names the rank itself */
    else if (rank >= 0)
        snprintf(where, sizeof where, " (rank %lld%s%.80s)", (long long)rank, *host ? " on " : "", host);
    else if (*host) snprintf(where, sizeof where, " (%.80s)", host);
    char words[512];
    snprintf(words, sizeof words, "%.40s%s%s%.200s", *text(j, "cause") ? text(j, "cause") : "failed", where,
             *detail ? ": " : "", detail);
    copy(out, room, words);
}

static ls_status see_failure(reader *r, const json_t *j, double t)
{
    ls_interruptions *e = r->e;
    const int cause = cause_of(text(j, "cause"));
    const int64_t which = whole(j, "attempt");
    if (e->waits && which >= 0 && which == r->failed) return LS_OK; /* another rank of the same attempt */
    r->failed = which;
    const bool ended = e->n_attempt && !strcmp(e->attempt[e->n_attempt - 1].how, "failed"); /* as rank 0 recorded */
    r->n_struck += r->open || ended;
    if (!r->open && !ended && !add_attempt(e, t - r->zero) && e->n_attempt < MOST_ATTEMPTS) /* before its start */
        return ls_nomem(sizeof *e->attempt, "attempts");
    r->open = true;
    ls_attempt *a = running(r);
    if (a) failure_words(j, a->how, sizeof a->how);
    close_attempt(r, t, whole(j, "step"));
    e->failures++;
    e->cause[cause].count++;
    e->waits = true;
    if (r->n_pending == MOST_PENDING) return LS_OK;
    r->pending[r->n_pending] = cause;
    r->failed_at[r->n_pending++] = t;
    return LS_OK;
}

/* The steps were lost with the first of the failures, as is the time until it was noticed. */
static void see_restart(reader *r, const json_t *j, double t)
{
    ls_interruptions *e = r->e;
    const int n = r->n_pending;
    const int64_t lost = whole(j, "lost_steps");
    double left = number(j, "lost_seconds");
    e->restarts++;
    r->trains = t;
    if (n > 1) e->cause[r->pending[0]].waiting += or_zero(left - (t - r->failed_at[0]));
    if (n && isnan(left)) left = t - r->failed_at[n - 1];
    if (n > 1 && t - r->failed_at[n - 1] >= 0) left = fmin(left, t - r->failed_at[n - 1]);
    charge_failed_starts(r);
    if (!n) return;
    e->cause[r->pending[n - 1]].waiting += or_zero(left);
    r->waits += or_zero(left);
    r->n_wait++;
    ls_cause_loss *first = &e->cause[r->pending[0]];
    if (lost > 0) first->lost_steps += lost;
    first->repeated += or_zero(number(j, "repeated_seconds"));
    r->n_pending = 0;
}

static void see_resize(reader *r, const json_t *j, double t)
{
    ls_attempt *a = running(r);
    r->e->resizes++;
    if (a && a->workers == whole(j, "to")) return; /* written after the start of the next attempt */
    if (a) close_attempt(r, t, whole(j, "step"));
    else a = r->e->n_attempt ? &r->e->attempt[r->e->n_attempt - 1] : NULL;
    r->e->waits = true;
    if (!a || (*a->how && strcmp(a->how, "stopped") != 0)) return; /* a failure comes before its resize */
    char words[256];
    snprintf(words, sizeof words, "resized from %lld to %lld workers: %.100s", (long long)whole(j, "from"),
             (long long)whole(j, "to"), text(j, "why"));
    copy(a->how, sizeof a->how, words);
}

static void see_end(reader *r, const json_t *j, double t)
{
    ls_attempt *a = running(r);
    if (a) copy(a->how, sizeof a->how, text(j, "state"));
    close_attempt(r, t, whole(j, "step"));
    if (whole(j, "attempt") >= 0) r->e->waits = false; /* of the supervisor: it starts no other attempt */
}

static ls_status see_audit(ls_interruptions *e, const json_t *j)
{
    e->audits++;
    if (strcmp(text(j, "result"), "mismatch") != 0) return LS_OK;
    if (!ls_grow(&e->audit, e->n_audit, &e->cap_audit, sizeof *e->audit))
        return ls_nomem(sizeof *e->audit, "failed audits");
    ls_audit_failure *a = &e->audit[e->n_audit++];
    *a = (ls_audit_failure){.step = whole(j, "step"), .rank = whole(j, "rank")};
    copy(a->what, sizeof a->what, text(j, "what"));
    copy(a->unit, sizeof a->unit, text(j, "unit"));
    return LS_OK;
}

/* --- lines --- */

static ls_status see_line(reader *r, const json_t *j)
{
    const char *kind = text(j, "event");
    const double ms = number(j, "time_unix_ms");
    ls_status st = LS_OK;
    if (!r->timed && !isnan(ms)) r->timed = true, r->base = ms;
    const double t = isnan(ms) ? r->last : (ms - r->base) / 1e3;
    if (!strcmp(kind, "start")) st = see_start(r, j, t);
    if (!strcmp(kind, "failure")) st = see_failure(r, j, t);
    if (!strcmp(kind, "audit")) st = see_audit(r->e, j);
    if (!strcmp(kind, "checkpoint")) st = note_step(&r->saved, whole(j, "step"));
    if (!strcmp(kind, "validation")) st = note_step(&r->validated, whole(j, "step"));
    if (!strcmp(kind, "restart")) see_restart(r, j, t);
    if (!strcmp(kind, "resize")) see_resize(r, j, t);
    if (!strcmp(kind, "end")) see_end(r, j, t);
    r->last = t;
    return st;
}

static ls_status see_lines(reader *r, ls_text t, const char *dir, ls_notes *notes)
{
    int n_bad = 0;
    for (const char *p = t.data, *end = p + t.n, *stop; p < end; p = stop + 1) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        json_error_t error;
        stop = nl ? nl : end;
        json_t *j = json_loadb(p, (size_t)(stop - p), 0, &error);
        const ls_status st = json_is_object(j) ? see_line(r, j) : LS_OK;
        n_bad += nl && stop > p && !json_is_object(j); /* a killed run may leave an incomplete last line */
        json_decref(j);
        LS_TRY(st);
    }
    if (n_bad) ls_notes_add(notes, "%s/events.jsonl: %d lines are no JSON objects", dir, n_bad);
    return LS_OK;
}

/* --- sums --- */

static void sum_times(const reader *r, ls_run *run)
{
    ls_interruptions *e = run->events;
    double last = r->last;
    for (int i = 0; i < run->n_step; i++) {
        const ls_run_step *s = &run->step[i];
        if (s->step <= e->attempt[0].from) continue;                 /* of an earlier run in another folder */
        e->useful += s->time;                                        /* NaN: not known */
        if (r->timed) last = fmax(last, (s->at_ms - r->base) / 1e3); /* ignores NaN */
    }
    ls_attempt *a = running(r);
    if (a) a->end = last - r->zero;
    if (a && run->n_step) a->to = LS_MAX(a->to, run->step[run->n_step - 1].step);
    e->wall = r->sessions + last - r->begun;
    for (int i = 0; i < LS_N_CAUSE; i++) {
        e->repeated += e->cause[i].repeated;
        e->waiting += e->cause[i].waiting;
    }
    const bool sane = e->wall > 0 && e->useful >= 0 && e->useful + e->repeated + e->waiting <= e->wall * 1.01 + 0.01;
    e->goodput = sane ? fmin(1, e->useful / e->wall) : NAN;
}

static int by_step(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

static bool listed(const step_list *l, int64_t step)
{
    return l->n && bsearch(&step, l->at, (size_t)l->n, sizeof *l->at, by_step);
}

/* The steps after which attempts began. */
static ls_status begins_of(const ls_interruptions *e, step_list *out)
{
    for (int i = 0; i < e->n_attempt; i++) {
        if (!ls_grow(&out->at, out->n, &out->cap, sizeof *out->at)) return ls_nomem(sizeof *out->at, "steps");
        out->at[out->n++] = e->attempt[i].from;
    }
    if (out->n) qsort(out->at, (size_t)out->n, sizeof *out->at, by_step);
    return LS_OK;
}

/* Seconds that a checkpoint costs: from the end of the step before it to the end of the next, less the median of other steps. Steps before a
 * validation or another attempt do not count. NaN: not known. */
static ls_status checkpoint_time(const reader *r, const ls_run *run, double *out)
{
    double *plain = ls_alloc((size_t)(run->n_step + 1) * sizeof *plain), sum = 0;
    int n_plain = 0, n_saved = 0;
    step_list begins = {0};
    ls_status st = plain ? begins_of(run->events, &begins) : ls_nomem((size_t)run->n_step * sizeof *plain, "times");
    *out = NAN;
    for (int i = 0; i + 1 < run->n_step && st == LS_OK; i++) {
        const ls_run_step *s = &run->step[i];
        const double d = (s[1].at_ms - s->at_ms) / 1e3;
        if (!(d > 0) || s[1].step != s->step + 1 || listed(&begins, s->step)) continue;
        if (listed(&r->validated, s->step) || !isnan(s->val_loss)) continue;
        if (listed(&r->saved, s->step)) sum += d, n_saved++;
        else plain[n_plain++] = d;
    }
    if (n_plain) qsort(plain, (size_t)n_plain, sizeof *plain, ls_by_value);
    if (n_saved && n_plain >= 3) *out = or_zero(sum / n_saved - plain[n_plain / 2]);
    ls_free(plain);
    ls_free(begins.at);
    return st;
}

/* The usual number of steps between two checkpoints: the last one of a run comes earlier. */
static ls_status usual_interval(const reader *r, int64_t *out)
{
    int64_t *d = ls_alloc((size_t)(r->saved.n + 1) * sizeof *d), last = r->e->attempt[0].from;
    if (!d) return ls_nomem((size_t)r->saved.n * sizeof *d, "steps");
    for (int i = 0; i < r->saved.n; last = r->saved.at[i++]) d[i] = r->saved.at[i] - last;
    if (r->saved.n) qsort(d, (size_t)r->saved.n, sizeof *d, by_step);
    *out = r->saved.n ? LS_MAX(1, d[r->saved.n / 2]) : 0;
    ls_free(d);
    return LS_OK;
}

static ls_status predict(const reader *r, ls_run *run)
{
    ls_interruptions *e = run->events;
    e->predicted = e->best = NAN;
    if (r->n_struck < LS_ENOUGH_FAILURES || r->copies || isnan(e->goodput) || !run->n_step) return LS_OK;
    const int64_t steps = run->step[run->n_step - 1].step - e->attempt[0].from;
    LS_TRY(checkpoint_time(r, run, &e->checkpoint));
    e->mtbf = (e->wall - e->waiting) / r->n_struck;
    e->restart = r->waits / r->n_wait;
    e->step = steps > 0 ? e->useful / (double)steps : NAN;
    LS_TRY(usual_interval(r, &e->interval));
    if (isnan(e->checkpoint) || !(e->step > 0) || !e->interval || !r->n_wait) return LS_OK;
    const ls_failures f = {
        .mtbf = e->mtbf, .hosts = 1, .checkpoint = e->checkpoint, .restart = e->restart, .step = e->step};
    const ls_goodput best = ls_goodput_best(&f);
    e->predicted = ls_goodput_at(&f, e->interval);
    e->best = best.goodput;
    e->best_interval = best.steps;
    return LS_OK;
}

static ls_status add_line(ls_run *run, const char *line)
{
    char *s = ls_asprintf("%s%s\n", run->setting, line);
    if (!s) return ls_nomem(strlen(run->setting), "settings");
    ls_free(run->setting);
    run->setting = s;
    return LS_OK;
}

/* Speed is of the steps, which are valid. The wall time that a run records has neither repeated steps nor the time between attempts. */
static ls_status mark(ls_run *run)
{
    const bool resized = run->events->resizes > 0;
    if (!ls_was_interrupted(run->events)) return LS_OK;
    run->wall = NAN;
    return run->setting ? add_line(run, resized ? "resized on" : "interrupted on") : LS_OK;
}

ls_status run_mark_resumed(const report_doc *d, bool traced, ls_run *run)
{
    const int64_t recorded = report_int(d, "lockstep.resumed_from_step");
    char line[64];
    if (!run->started && recorded > 0) run->resumed = recorded; /* without events, the file is all there is */
    if (run->resumed <= 0 || !run->setting) return LS_OK;
    run->wall = NAN;
    while (run->n_before < run->n_step && run->step[run->n_before].step <= run->resumed) run->n_before++;
    snprintf(line, sizeof line, "resumed_from_step %lld", (long long)run->resumed);
    LS_TRY(add_line(run, line));
    if (run->profiled || (!traced && !run->profile)) return LS_OK;
    run->profiled = true; /* an earlier part of it was */
    return add_line(run, "profiled on");
}

ls_status run_read_events(ls_text t, const char *dir, ls_notes *notes, ls_run *run)
{
    ls_interruptions e = {0};
    reader r = {.e = &e, .run = run};
    ls_status st = see_lines(&r, t, dir, notes);
    run->started = *r.like;
    run->resumed = r.resumed;
    run->changed = r.changed;
    if (st == LS_OK && (ls_has_lost_time(&e) || e.audits)) {
        run->events = ls_alloc(sizeof *run->events);
        if (!run->events) st = ls_nomem(sizeof e, "the interruptions of a run");
    }
    if (st == LS_OK && run->events) {
        *run->events = e;
        r.e = run->events;
        e = (ls_interruptions){0};
        charge_last_failures(&r, end_of_step(&r, INT64_MAX));
        if (r.e->n_attempt) sum_times(&r, run);
        else r.e->goodput = r.e->wall = r.e->useful = NAN;
        st = predict(&r, run);
        if (st == LS_OK) st = mark(run);
    }
    forget(&e);
    ls_free(r.saved.at);
    ls_free(r.validated.at);
    return st;
}
