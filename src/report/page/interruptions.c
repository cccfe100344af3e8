/* interruptions.c - the section on runs that were interrupted: goodput, lost time by cause, attempts, audits (read/run_events.h). */
#include "core/minmax.h"
#include "report/page/content.h"

#include <math.h>
#include <stdio.h>

enum { SHOWN_ATTEMPTS = 40, SHOWN_AUDITS = 40, SHOWN_RUNS = 40 };

static double share(double part, double all)
{
    return all > 0 ? 100 * part / all : NAN;
}

static const char *count(char buf[96], int64_t n)
{
    return n < 0 ? NULL : ls_doc_text(buf, "%lld", (long long)n);
}
#define COUNT(n) count((char[96]){0}, (n))

static double other_time(const ls_interruptions *e)
{
    return isnan(e->goodput) ? NAN : fmax(0, e->wall - e->useful - e->repeated - e->waiting);
}

static void goodput_table(const ls_analysis *a, ls_doc *d)
{
    ls_block *b =
        ls_doc_table(d, NULL, "run", "failures", "restarts", "resizes", "goodput, %", "goodput by the formula, %",
                     "wall time, s", "useful, s", "repeated, s", "waiting, s", "other, s");
    for (int i = 0, n = 0; i < a->set->n && n < SHOWN_RUNS; i++) {
        const ls_interruptions *e = a->set->run[i].events;
        if (!e || !ls_has_lost_time(e)) continue;
        n++;
        ls_doc_cells(d, b, a->set->run[i].name, COUNT(e->seen.failures), COUNT(e->seen.restarts),
                     COUNT(e->seen.resizes), LS_NUM(100 * e->goodput, 1), LS_NUM(100 * e->predicted, 1),
                     LS_NUM(e->wall, 1), LS_NUM(e->useful, 1), LS_NUM(e->repeated, 2), LS_NUM(e->waiting, 2),
                     LS_NUM(other_time(e), 1));
    }
    ls_doc_add(
        d, LS_BLOCK_TEXT,
        "Goodput is useful time / wall time. Useful: the times of the steps, each step once. Repeated: the times of steps that a failure lost and that were computed again. Waiting: from the last finished step before a failure, so with the step in which it struck, to the first step of the next attempt, or to the failure if there was none. Other: start, checkpoints and validation. Time in which nobody had started the run does not count.");
}

static const char *seconds(char buf[32], double t)
{
    if (!(t < 10)) return ls_human_time(buf, t);
    snprintf(buf, 32, "%.3g s", t);
    return buf;
}

static void formula_words(const ls_run *r, ls_doc *d)
{
    const ls_interruptions *e = r->events;
    char mtbf[32], saved[32], restart[32];
    if (isnan(e->predicted)) return;
    ls_doc_add(
        d, LS_BLOCK_TEXT,
        "%s: goodput %.1f %% was measured. Daly's formula, which lockstep plan --mtbf uses, gives %.1f %% for what was measured: a failure after %s of training, a checkpoint every %lld steps that costs %s, a restart of %s. The best interval is %lld steps (%.1f %%).",
        r->name, 100 * e->goodput, 100 * e->predicted, seconds(mtbf, e->mtbf), (long long)e->interval,
        seconds(saved, e->checkpoint), seconds(restart, e->restart), (long long)e->best_interval, 100 * e->best);
}

static void cause_table(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = ls_doc_table(d, "Lost time by cause", "run", "cause", "count", "lost steps", "repeated, s",
                               "waiting, s", "lost, % of the wall time");
    for (int i = 0, n = 0; i < a->set->n && n < SHOWN_RUNS; i++) {
        const ls_interruptions *e = a->set->run[i].events;
        if (!e || !ls_has_lost_time(e)) continue;
        n++;
        for (int k = 0; k < LS_N_CAUSE; k++) {
            const ls_cause_loss *c = &e->cause[k];
            if (!c->count) continue;
            ls_doc_cells(d, b, a->set->run[i].name, ls_cause_name[k], COUNT(c->count), COUNT(c->lost_steps),
                         LS_NUM(c->repeated, 2), LS_NUM(c->waiting, 2),
                         LS_NUM(share(c->repeated + c->waiting, e->wall), 1));
        }
    }
}

static void attempt_rows(const ls_run *r, ls_doc *d, ls_block *b)
{
    const ls_interruptions *e = r->events;
    for (int k = 0; k < e->n_attempt && k < SHOWN_ATTEMPTS; k++) {
        const ls_attempt *t = &e->attempt[k];
        const bool last = k + 1 == e->n_attempt && !e->seen.waits;
        ls_doc_cells(d, b, r->name, t->label, COUNT(t->workers), COUNT(t->from), COUNT(t->to), LS_NUM(t->begin, 1),
                     LS_NUM(t->end >= t->begin ? t->end - t->begin : NAN, 1),
                     *t->how ? t->how
                     : last  ? "no end is recorded"
                             : NULL);
    }
}

static void attempts(const ls_analysis *a, ls_doc *d)
{
    content_draw(a, d, chart_attempts,
                 "One lane per run, one box per attempt with its number; gaps are time without training.");
    ls_block *b = ls_doc_table(d, "Attempts", "run", "attempt", "workers", "from step", "to step", "began, s",
                               "lasted, s", "ended");
    int left = 0, n = 0;
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        if (!r->events || !ls_has_lost_time(r->events)) continue;
        const int shown = n++ < SHOWN_RUNS ? LS_MIN(r->events->n_attempt, SHOWN_ATTEMPTS) : 0;
        if (shown) attempt_rows(r, d, b);
        left += r->events->n_attempt - shown;
    }
    if (left) ls_doc_add(d, LS_BLOCK_TEXT, "%d more attempts are not listed; --json has all of them.", left);
}

static void audit_words(const ls_run *r, ls_doc *d)
{
    const ls_interruptions *e = r->events;
    if (!e->seen.audits) return;
    ls_doc_add(d, e->n_audit ? LS_BLOCK_WARN : LS_BLOCK_TEXT, "%s: %lld of %lld audits passed.", r->name,
               (long long)(e->seen.audits - e->n_audit), (long long)e->seen.audits);
}

static void audit_table(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = NULL;
    int n = 0;
    for (int i = 0; i < a->set->n; i++) {
        const ls_interruptions *e = a->set->run[i].events;
        for (int k = 0; e && k < e->n_audit; k++) {
            const ls_audit_failure *f = &e->audit[k];
            if (n++ >= SHOWN_AUDITS) continue;
            if (!b) b = ls_doc_table(d, "Audits that failed", "run", "step", "what differs", "unit", "blamed");
            ls_doc_cells(d, b, a->set->run[i].name, COUNT(f->step), *f->what ? f->what : NULL,
                         *f->unit ? f->unit : NULL, f->rank >= 0 ? LS_TEXT("rank %lld", (long long)f->rank) : "nobody");
        }
    }
    if (n > SHOWN_AUDITS) ls_doc_add(d, LS_BLOCK_TEXT, "%d more are not listed.", n - SHOWN_AUDITS);
}

void content_interruptions(const ls_analysis *a, ls_doc *d)
{
    bool any = false;
    ls_doc_section(d, "Interruptions");
    for (int i = 0; i < a->set->n; i++) any = any || (a->set->run[i].events && ls_has_lost_time(a->set->run[i].events));
    if (any) {
        goodput_table(a, d);
        for (int i = 0, n = 0; i < a->set->n && n < SHOWN_RUNS; i++)
            if (a->set->run[i].events) formula_words(&a->set->run[i], d), n++;
        cause_table(a, d);
        attempts(a, d);
    }
    for (int i = 0, n = 0; i < a->set->n && n < SHOWN_RUNS; i++)
        if (a->set->run[i].events) audit_words(&a->set->run[i], d), n++;
    audit_table(a, d);
}

/* --- for a terminal --- */

static void percent_text(char out[16], double x)
{
    if (isnan(x)) snprintf(out, 16, "-");
    else snprintf(out, 16, "%.1f %%", 100 * x);
}

static void put_causes(const ls_interruptions *e, ls_str *out)
{
    for (int k = 0; k < LS_N_CAUSE; k++) {
        const ls_cause_loss *c = &e->cause[k];
        char repeated[32], waiting[32];
        if (!c->count) continue;
        ls_str_addf(out, "  %-26s %8lld, lost steps %lld, repeated %s, waiting %s\n", ls_cause_name[k],
                    (long long)c->count, (long long)c->lost_steps, seconds(repeated, c->repeated),
                    seconds(waiting, c->waiting));
    }
}

void content_interruptions_table(const ls_run_set *set, ls_str *out)
{
    int n = 0;
    for (int i = 0; i < set->n; i++) {
        const ls_run *r = &set->run[i];
        const ls_interruptions *e = r->events;
        char goodput[16], predicted[16], audits[48] = "-";
        if (!e || n++ >= SHOWN_RUNS) continue;
        if (n == 1)
            ls_str_addf(out, "\n%-28s %8s %8s %7s %8s %10s  %s\n", "interruptions", "failures", "restarts", "resizes",
                        "goodput", "by formula", "audits passed");
        percent_text(goodput, e->goodput);
        percent_text(predicted, e->predicted);
        if (e->seen.audits)
            snprintf(audits, sizeof audits, "%lld of %lld", (long long)(e->seen.audits - e->n_audit),
                     (long long)e->seen.audits);
        ls_str_addf(out, "%-28s %8lld %8lld %7lld %8s %10s  %s\n", r->name, (long long)e->seen.failures,
                    (long long)e->seen.restarts, (long long)e->seen.resizes, goodput, predicted, audits);
        put_causes(e, out);
        for (int k = 0; k < e->n_audit && k < 8; k++) {
            ls_str_addf(out, "  audit of step %lld failed: %s of %s", (long long)e->audit[k].step, e->audit[k].what,
                        e->audit[k].unit);
            if (e->audit[k].rank >= 0) ls_str_addf(out, ", blamed on rank %lld", (long long)e->audit[k].rank);
            ls_str_addc(out, '\n');
        }
    }
    if (n > SHOWN_RUNS) ls_str_addf(out, "and %d more runs\n", n - SHOWN_RUNS);
}

/* --- JSON --- */

static void causes_member(const ls_interruptions *e, ls_jsonw *w)
{
    ls_jsonw_put_open(w, "causes", '[');
    for (int k = 0; k < LS_N_CAUSE; k++) {
        const ls_cause_loss *c = &e->cause[k];
        if (!c->count) continue;
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("cause", ls_cause_name[k]), LS_KV("count", c->count),
                         LS_KV("lost_steps", c->lost_steps), LS_KV("repeated_seconds", c->repeated),
                         LS_KV("waiting_seconds", c->waiting));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void attempts_member(const ls_interruptions *e, ls_jsonw *w)
{
    ls_jsonw_put_open(w, "attempts", '[');
    for (int k = 0; k < e->n_attempt; k++) {
        const ls_attempt *t = &e->attempt[k];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV_COUNT("workers", t->workers), LS_KV_COUNT("from_step", t->from),
                         LS_KV_COUNT("to_step", t->to), LS_KV("begin_seconds", t->begin), LS_KV("end_seconds", t->end),
                         LS_KV("ended", (const char *)t->how));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void audits_member(const ls_interruptions *e, ls_jsonw *w)
{
    ls_jsonw_members(w, LS_KV("audits", e->seen.audits), LS_KV("audits_passed", e->seen.audits - e->n_audit));
    ls_jsonw_put_open(w, "audits_failed", '[');
    for (int k = 0; k < e->n_audit; k++) {
        ls_jsonw_open(w, '{');
        const ls_audit_failure *f = &e->audit[k];
        ls_jsonw_members(w, LS_KV_COUNT("step", f->step), LS_KV("what", (const char *)f->what),
                         LS_KV("unit", (const char *)f->unit), LS_KV_COUNT("rank", f->rank));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

void content_interruptions_json(const ls_run *r, ls_jsonw *w)
{
    const ls_interruptions *e = r->events;
    if (!e) {
        ls_jsonw_null(w);
        return;
    }
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("failures", e->seen.failures), LS_KV("restarts", e->seen.restarts),
                     LS_KV("resizes", e->seen.resizes), LS_KV("waits_for_restart", e->seen.waits),
                     LS_KV("goodput", e->goodput), LS_KV("wall_seconds", e->wall), LS_KV("useful_seconds", e->useful),
                     LS_KV("repeated_seconds", e->repeated), LS_KV("waiting_seconds", e->waiting));
    if (!isnan(e->predicted)) {
        ls_jsonw_put_open(w, "formula", '{');
        ls_jsonw_members(w, LS_KV("goodput", e->predicted), LS_KV("mtbf_seconds", e->mtbf),
                         LS_KV("checkpoint_seconds", e->checkpoint), LS_KV("restart_seconds", e->restart),
                         LS_KV("step_seconds", e->step), LS_KV("interval_steps", e->interval),
                         LS_KV("best_interval_steps", e->best_interval), LS_KV("best_goodput", e->best));
        ls_jsonw_close(w);
    }
    causes_member(e, w);
    attempts_member(e, w);
    audits_member(e, w);
    ls_jsonw_close(w);
}
