/* run_events.c - events.jsonl: what interrupted a run (run_events.h). */
#include "core/fs.h"
#include "core/goodput.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/stat.h"
#include "report/read/run_impl.h"
#include "run/jsonl.h"

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
    bool timed;               /* base is known                                 */
    bool open;                /* the last attempt ran before the line          */
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
    *e = (ls_interruptions){.seen = e->seen};
}

void run_events_fini(ls_interruptions **e)
{
    if (*e) forget(*e);
    ls_free(*e);
    *e = NULL;
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
static void see_resumed(reader *r, const ls_run_event *j, double t)
{
    ls_interruptions *e = r->e;
    const int64_t dropped = j->dropped_steps;
    const double until = (j->dropped_until_unix_ms - r->base) / 1e3;
    if (until > r->last && until < t) r->last = until; /* not if it is NaN */
    ls_attempt *a = running(r);
    if (a) {
        snprintf(a->how, sizeof a->how, "ended without a record");
        close_attempt(r, r->last, j->step + LS_MAX(dropped, 0));
    }
    if (dropped > 0) { /* lost with the failure after which nothing was started any more, if there is one */
        ls_cause_loss *c = &e->cause[r->n_pending ? r->pending[0] : LS_CAUSE_OTHER];
        c->count += !r->n_pending;
        c->lost_steps += dropped;
        c->repeated += or_zero(j->dropped_seconds);
    }
    charge_last_failures(r, dropped > 0 ? until : end_of_step(r, j->step));
    r->sessions += or_zero(r->last - r->begun);
    r->n_pending = 0;
    r->zero += t - r->last;
    r->begun = t;
}

static ls_status see_start(reader *r, const ls_run_event *j, ls_run_turn turn, double t)
{
    ls_interruptions *e = r->e;
    const int64_t step = j->step;
    const bool again = turn == LS_TURN_AGAIN;
    char like[sizeof r->like];
    snprintf(like, sizeof like, "%lld %lld %lld %lld %.30s %.30s %.30s", (long long)j->world_size, (long long)j->pp,
             (long long)j->tp, (long long)j->tokens_per_step, j->strategy, j->precision, j->device);
    if (!again && step > 0) r->resumed = step, r->changed = r->changed || (*r->like && strcmp(like, r->like) != 0);
    snprintf(r->like, sizeof r->like, "%s", like);
    if (turn == LS_TURN_NEW) {
        forget(e);
        r->resumed = 0;
        r->changed = r->copies = false;
        r->sessions = r->waits = 0;
        r->n_pending = r->n_struck = r->n_wait = 0;
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
    a->workers = j->world_size;
    a->from = a->to = step;
    return LS_OK;
}

/* --- failures --- */

static void failure_words(const ls_run_event *j, char *out, size_t room)
{
    const int64_t rank = j->rank;
    const char *host = j->host, *detail = j->detail;
    char where[128] = "";
    if (!strncmp(detail, "rank ", 5)) where[0] = 0; /* it names the rank itself */
    else if (rank >= 0)
        snprintf(where, sizeof where, " (rank %lld%s%.80s)", (long long)rank, *host ? " on " : "", host);
    else if (*host) snprintf(where, sizeof where, " (%.80s)", host);
    char words[512];
    snprintf(words, sizeof words, "%.40s%s%s%.200s", *j->cause ? j->cause : "failed", where, *detail ? ": " : "",
             detail);
    copy(out, room, words);
}

static ls_status see_failure(reader *r, const ls_run_event *j, double t)
{
    ls_interruptions *e = r->e;
    int cause = 0;
    while (cause < LS_CAUSE_OTHER && strcmp(j->cause, ls_cause_name[cause]) != 0) cause++;
    const bool ended = e->n_attempt && !strcmp(e->attempt[e->n_attempt - 1].how, "failed"); /* as rank 0 recorded */
    r->n_struck += r->open || ended;
    if (!r->open && !ended && !add_attempt(e, t - r->zero) && e->n_attempt < MOST_ATTEMPTS) /* before its start */
        return ls_nomem(sizeof *e->attempt, "attempts");
    r->open = true;
    failure_words(j, e->attempt[e->n_attempt - 1].how, sizeof e->attempt->how);
    close_attempt(r, t, j->step);
    e->cause[cause].count++;
    if (r->n_pending == MOST_PENDING) return LS_OK;
    r->pending[r->n_pending] = cause;
    r->failed_at[r->n_pending++] = t;
    return LS_OK;
}

/* The steps were lost with the first of the failures, as is the time until it was noticed. */
static void see_restart(reader *r, const ls_run_event *j, double t)
{
    ls_interruptions *e = r->e;
    const int n = r->n_pending;
    const int64_t lost = j->lost_steps;
    double left = j->lost_seconds;
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
    first->repeated += or_zero(j->repeated_seconds);
    r->n_pending = 0;
}

static void see_resize(reader *r, const ls_run_event *j, double t)
{
    ls_attempt *a = r->e->n_attempt ? &r->e->attempt[r->e->n_attempt - 1] : NULL;
    close_attempt(r, t, j->step);
    if (!a || (*a->how && strcmp(a->how, "stopped") != 0)) return; /* a failure comes before its resize */
    char words[256];
    snprintf(words, sizeof words, "resized from %lld to %lld workers: %.100s", (long long)j->from, (long long)j->to,
             j->why);
    copy(a->how, sizeof a->how, words);
}

static void see_end(reader *r, const ls_run_event *j, double t)
{
    ls_attempt *a = running(r);
    if (a) copy(a->how, sizeof a->how, j->state);
    close_attempt(r, t, j->step);
}

static ls_status see_audit(ls_interruptions *e, const ls_run_event *j)
{
    if (strcmp(j->result, "mismatch") != 0) return LS_OK;
    if (!ls_grow(&e->audit, e->n_audit, &e->cap_audit, sizeof *e->audit))
        return ls_nomem(sizeof *e->audit, "failed audits");
    ls_audit_failure *a = &e->audit[e->n_audit++];
    *a = (ls_audit_failure){.step = j->step, .rank = j->rank};
    copy(a->what, sizeof a->what, j->what);
    copy(a->unit, sizeof a->unit, j->unit);
    return LS_OK;
}

/* --- lines --- */

static ls_status see_line(reader *r, const ls_run_event *j)
{
    const double ms = j->time_unix_ms < 0 ? NAN : (double)j->time_unix_ms;
    const ls_run_turn turn = ls_run_history_add(&r->e->seen, j);
    ls_status st = LS_OK;
    if (!r->timed && !isnan(ms)) r->timed = true, r->base = ms;
    const double t = isnan(ms) ? r->last : (ms - r->base) / 1e3;
    switch (turn == LS_TURN_REPEATED ? LS_N_EV : j->kind) {
    case LS_EV_START: st = see_start(r, j, turn, t); break;
    case LS_EV_FAILURE: st = see_failure(r, j, t); break;
    case LS_EV_AUDIT: st = see_audit(r->e, j); break;
    case LS_EV_CHECKPOINT: st = note_step(&r->saved, j->step); break;
    case LS_EV_VALIDATION: st = note_step(&r->validated, j->step); break;
    case LS_EV_RESTART: see_restart(r, j, t); break;
    case LS_EV_RESIZE: see_resize(r, j, t); break;
    case LS_EV_END: see_end(r, j, t); break;
    default: break;
    }
    r->last = t;
    r->open = r->e->seen.open;
    return st;
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
    ls_status st = LS_OK;
    ls_run_event event;
    int n_bad = 0;
    ls_jsonl l = {.text = t.data, .n = t.n};
    while (st == LS_OK && ls_jsonl_next(&l)) {
        if (ls_run_event_read(l.row, &event)) st = see_line(&r, &event);
        else n_bad += l.whole; /* a killed run may leave an incomplete last line */
    }
    ls_jsonl_fini(&l);
    if (n_bad) ls_notes_add(notes, "%s/events.jsonl: %d lines are no JSON objects", dir, n_bad);
    run->started = *r.like;
    run->resumed = r.resumed;
    run->changed = r.changed;
    if (st == LS_OK && (ls_has_lost_time(&e) || e.seen.audits)) {
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
        if (ls_was_interrupted(run->events)) {
            /* Speed is of the steps, which are valid. The recorded wall time has neither repeated steps nor the time between attempts. */
            run->wall = NAN;
            if (st == LS_OK && run->setting) st = add_line(run, r.e->seen.resizes ? "resized on" : "interrupted on");
        }
    }
    forget(&e);
    ls_free(r.saved.at);
    ls_free(r.validated.at);
    return st;
}
