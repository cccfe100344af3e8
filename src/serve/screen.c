#include "serve/screen.h"

#include "core/clock.h"
#include "core/minmax.h"
#include "core/progress.h"
#include "core/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CURVE_ROWS = 10, LABEL = 9, MAX_COLUMNS = 400 };

/* One line, cut at the width of the screen. */
__attribute__((format(printf, 3, 4))) static void line(ls_str *out, const ls_screen *s, const char *fmt, ...)
{
    char text[4 * MAX_COLUMNS];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const char *p = text;
    for (int used = 0; *p && used < s->columns; used++) {
        uint32_t code;
        const int n = ls_utf8_decode((const unsigned char *)p, 4, &code);
        if (n == 1 && (*p < ' ' || *p == 127)) ls_str_addc(out, '?'); /* a name must not move the cursor */
        else if (n > 1 && code < 0xa0) ls_str_addc(out, '?');
        else if (n) ls_str_addn(out, p, (size_t)n);
        else ls_str_addc(out, '?');
        p += n ? n : 1;
    }
    ls_str_addc(out, '\n');
}

static int width_of(const char *text)
{
    int n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

/* One line of the fields that fit into the screen as a whole, from the left. A value that is cut would be another value. */
static void row(ls_str *out, const ls_screen *s, const char *between, const char *const *field, int n)
{
    ls_str text = {0};
    int used = 0;
    for (int i = 0; i < n; i++) {
        if (!*field[i]) continue;
        const int more = width_of(field[i]) + (used ? width_of(between) : 0);
        if (used && used + more > s->columns) break;
        ls_str_addf(&text, "%s%s", used ? between : "", field[i]);
        used += more;
    }
    line(out, s, "%s", text.data ? text.data : "");
    ls_str_fini(&text);
}

static char *real(char buf[32], const char *fmt, double x)
{
    if (!isfinite(x)) snprintf(buf, 32, "-");
    else if (!strcmp(fmt, "%")) snprintf(buf, 32, "%.0f %%", 100 * x);
    else if (!strcmp(fmt, "s")) snprintf(buf, 32, x < 1 ? "%.0f ms" : "%.2f s", x < 1 ? 1e3 * x : x);
    else
        snprintf(buf, 32, x != 0 && (fabs(x) < 1e-3 || fabs(x) >= 1e6) ? "%.2e" : fabs(x) >= 1000 ? "%.0f" : "%.4g", x);
    return buf;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

/* Mean step time of the last buckets, for the time that is left. */
static double recent_time(const ls_curve *c)
{
    double sum = 0;
    int64_t n = 0;
    for (int i = LS_MAX(0, c->n - 20); i < c->n; i++) {
        sum += c->bucket[i][LS_CURVE_TIME].sum;
        n += c->bucket[i][LS_CURVE_TIME].n;
    }
    return n ? sum / (double)n : NAN;
}

/* "loss 3.21": a field of a line. */
static const char *named(char out[64], const char *before, const char *value, const char *after)
{
    snprintf(out, 64, "%s%s%s", before, value, after);
    return out;
}

static void state_line(const ls_live_run *r, const ls_screen *s, ls_str *out)
{
    char a[32], step[64] = "no step yet", left[64] = "";
    const ls_live_last *l = &r->last;
    const double dt = recent_time(&r->curve);
    if (l->step >= 0) snprintf(step, sizeof step, "step %lld", (long long)l->step);
    if (l->step >= 0 && l->total_steps > 0)
        snprintf(step, sizeof step, "step %lld of %lld (%.0f %%)", (long long)l->step, (long long)l->total_steps,
                 100.0 * (double)l->step / (double)l->total_steps);
    if (r->state == LS_LIVE_RUNNING && l->total_steps > l->step && isfinite(dt))
        named(left, "", ls_human_time(a, dt * (double)(l->total_steps - l->step)), " left");
    row(out, s, "  ", (const char *[]){r->id, ls_live_state_name[r->state], step, left}, 4);
}

static void values(const ls_live_run *r, const ls_screen *s, ls_str *out)
{
    char a[32], text[5][64], val[64] = "";
    const ls_live_last *l = &r->last;
    const double *v = l->value;
    state_line(r, s, out);
    if (l->val_step >= 0)
        snprintf(val, sizeof val, "validation %s at step %lld", real(a, "", l->val_loss), (long long)l->val_step);
    row(out, s, "  ",
        (const char *[]){named(text[0], "loss ", real(a, "", v[LS_CURVE_LOSS]), ""), val,
                         named(text[1], "norm ", real(a, "", v[LS_CURVE_NORM]), ""),
                         named(text[2], "lr ", real(a, "", v[LS_CURVE_LR]), "")},
        4);
    const char *exposed = r->world == 1 ? "-" : real(a, "%", ratio(v[LS_CURVE_EXPOSED], v[LS_CURVE_TIME]));
    named(text[3], "exposed comm. ", exposed, "");
    row(out, s, "  ",
        (const char *[]){named(text[0], "", real(a, "", v[LS_CURVE_RATE]), " tokens/s"),
                         named(text[1], "", real(a, "", v[LS_CURVE_TFLOPS]), " TFLOP/s"),
                         named(text[2], "", real(a, "s", v[LS_CURVE_TIME]), " per step"), text[3],
                         named(text[4], "CPU ", real(a, "%", v[LS_CURVE_CPU]), "")},
        5);
}

/* The mean loss of each column; returns their number. */
static int columns_of(const ls_curve *c, int width, double *loss, double *val)
{
    const int n = LS_MIN(width, c->n);
    for (int k = 0; k < n; k++) {
        double sum = 0;
        int64_t count = 0;
        for (int i = (int)((int64_t)k * c->n / n); i < (int)((int64_t)(k + 1) * c->n / n); i++) {
            sum += c->bucket[i][LS_CURVE_LOSS].sum;
            count += c->bucket[i][LS_CURVE_LOSS].n;
        }
        loss[k] = count ? sum / (double)count : NAN;
        val[k] = NAN;
    }
    return n;
}

/* A cell of the curve: a row has four heights, and `height` is that of the column above the bottom of this row. A line: the axis does not begin at 0. */
static void add_cell(ls_str *text, int height, bool mark, bool braille)
{
    static const char *const dots[4] = {"⣀", "⠤", "⠒", "⠉"};
    const bool here = height >= 0 && height < 4;
    ls_str_add(text, !here ? " " : mark ? "o" : braille ? dots[height] : height < 2 ? "." : "'");
}

void ls_screen_curve(const ls_screen *s, const double *loss, const double *val, int n, int64_t first, int64_t last,
                     int rows, ls_str *out)
{
    char label[32], name[32], steps[64];
    double lo = INFINITY, hi = -INFINITY;
    bool marks = false;
    for (int k = 0; k < 2 * n; k++) {
        const double v = k < n ? loss[k] : val[k - n];
        if (!isfinite(v)) continue;
        lo = fmin(lo, v), hi = fmax(hi, v);
        marks = k >= n;
    }
    if (!(hi >= lo)) return;
    const double floor = lo - 0.06 * (hi - lo), span = hi > floor ? hi - floor : 1; /* the lowest value is visible */
    line(out, s, "%s", "");
    for (int row = rows - 1; row >= 0; row--) {
        ls_str text = {0};
        const double at = row == rows - 1 ? hi : row == 0 ? lo : floor + span * (row + 0.5) / rows;
        ls_str_addf(&text, "%*s %s", LABEL - 1,
                    row == rows - 1 || row == 0 || (row == rows / 2 && hi > lo) ? real(label, "", at) : "",
                    s->blocks ? "│" : "|");
        for (int k = 0; k < n; k++) {
            const bool mark = isfinite(val[k]);
            const double v = (mark ? val[k] : loss[k]) - floor;
            add_cell(&text, isfinite(v) ? (int)fmin(v / span * 4 * rows, 4 * rows - 1) - 4 * row : -1, mark, s->blocks);
        }
        line(out, s, "%s", text.data ? text.data : "");
        ls_str_fini(&text);
    }
    snprintf(name, sizeof name, "%*s loss", LABEL, "");
    snprintf(steps, sizeof steps, "steps %lld to %lld", (long long)first, (long long)last);
    row(out, s, ", ", (const char *[]){name, marks ? "o validation" : "", steps}, 3);
}

bool ls_screen_unicode(void)
{
    static const char *const name[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    const char *locale = NULL;
    for (int i = 0; i < 3 && !(locale && *locale); i++) locale = getenv(name[i]);
    return locale && (strcasestr(locale, "utf-8") || strcasestr(locale, "utf8"));
}

enum { RANK_FIELDS = 10 };

/* A line of the table of ranks: the fields in columns; numbers to the right. */
static void rank_row(ls_str *out, const ls_screen *s, const char *const *value)
{
    static const int width[RANK_FIELDS] = {4, -9, 8, -10, 6, 8, 7, 5, 5, 9};
    char text[RANK_FIELDS][64];
    const char *field[RANK_FIELDS];
    for (int i = 0; i < RANK_FIELDS; i++) {
        snprintf(text[i], sizeof text[i], "%*.*s", width[i], width[i] < 0 ? -width[i] : 32, value[i]);
        field[i] = text[i];
    }
    row(out, s, " ", field, RANK_FIELDS);
}

static void ranks(const ls_live_run *r, const ls_screen *s, int room, ls_str *out)
{
    if (!r->n_rank || room < 3) return;
    const int n = r->n_rank <= room - 2 ? r->n_rank : room - 3;
    line(out, s, "%s", "");
    rank_row(out, s,
             (const char *[]){"rank", "host", "step", "last in", "ago", "time", "exposed", "CPU", "GPU", "memory"});
    for (int i = 0; i < n; i++) {
        char rank[32], step[32], a[32], b[32], c[32], d[32], e[32], f[32] = "-";
        const ls_live_rank *k = &r->rank[i];
        const double ago = k->updated_ms < 0 ? NAN : fmax(0, (double)(ls_unix_ms() - k->updated_ms) / 1e3);
        if (k->memory_bytes >= 0) ls_human_bytes(f, (double)k->memory_bytes);
        snprintf(rank, sizeof rank, "%d", k->rank);
        snprintf(step, sizeof step, "%lld", (long long)k->step);
        rank_row(out, s,
                 (const char *[]){rank, k->host, step, k->phase, isfinite(ago) ? ls_human_time(a, ago) : "-",
                                  real(b, "s", k->step_time),
                                  r->n_rank > 1 ? real(c, "%", ratio(k->exposed, k->step_time)) : "-",
                                  real(d, "%", k->cpu), real(e, "%", k->gpu), f});
    }
    if (n < r->n_rank) line(out, s, "      and %d more", r->n_rank - n);
}

/* Why the run failed or restarts, wrapped; returns the number of lines. */
static int reason(const ls_live_run *r, const ls_screen *s, ls_str *out)
{
    ls_str text = {0}, rows = {0};
    int n = 0;
    const bool again = r->state == LS_LIVE_RESTARTING;
    if ((r->state != LS_LIVE_FAILED && !again) || !*r->reason) return 0;
    ls_str_addf(&text, again ? "restarting after a failure: %s" : "failed: %s", r->reason);
    if (text.data) ls_progress_wrap(text.data, s->columns, &rows);
    for (const char *p = rows.data; p && *p; n++) {
        const size_t len = strcspn(p, "\n");
        line(out, s, "%.*s", (int)len, p);
        p += len + (p[len] == '\n');
    }
    ls_str_fini(&text);
    ls_str_fini(&rows);
    return n;
}

/* How often the run was interrupted, and the last of it; returns the number of lines. */
static int interruptions(const ls_live_run *r, const ls_screen *s, ls_str *out)
{
    static const char *const kind[] = {"failure", "restart", "resize", "audit"};
    char count[4][64] = {"", "", "", ""}, a[32], text[64];
    const ls_live_event *last = NULL;
    if (!r->seen.failures && !r->seen.restarts && !r->seen.resizes && !r->seen.audits) return 0;
    if (r->seen.failures) snprintf(count[0], sizeof count[0], "failures %lld", (long long)r->seen.failures);
    if (r->seen.restarts) snprintf(count[1], sizeof count[1], "restarts %lld", (long long)r->seen.restarts);
    if (r->seen.resizes) snprintf(count[2], sizeof count[2], "resizes %lld", (long long)r->seen.resizes);
    if (r->seen.audits)
        snprintf(count[3], sizeof count[3], "audits passed %lld of %lld",
                 (long long)(r->seen.audits - r->seen.bad_audits), (long long)r->seen.audits);
    row(out, s, "  ", (const char *[]){count[0], count[1], count[2], count[3]}, 4);
    for (int i = 0; i < r->n_event; i++)
        for (size_t k = 0; k < sizeof kind / sizeof *kind; k++)
            if (!strcmp(r->event[i].kind, kind[k]) && strcmp(r->event[i].name, "ok") != 0) last = &r->event[i];
    if (!last) return 1;
    const double ago = last->time_ms < 0 ? NAN : fmax(0, (double)(ls_unix_ms() - last->time_ms) / 1e3);
    line(out, s, "last %s%s%s: %s", last->kind, isfinite(ago) ? " " : "",
         isfinite(ago) ? named(text, "", ls_human_time(a, ago), " ago") : "", last->words);
    return 2;
}

void ls_screen_draw(const ls_live_run *r, const ls_screen *s, ls_str *out)
{
    const ls_curve *c = &r->curve;
    double loss[MAX_COLUMNS], val[MAX_COLUMNS];
    const bool small = s->rows && s->rows < 20;
    const int rows = !s->rows ? CURVE_ROWS : small ? LS_MAX(3, s->rows - 10) : CURVE_ROWS;
    values(r, s, out);
    const int said = reason(r, s, out) + interruptions(r, s, out);
    if (ls_live_run_read(r) < 0.999) line(out, s, "reading the metrics: %.0f %%", 100 * ls_live_run_read(r));
    const int n = columns_of(c, LS_MIN(s->columns - LABEL - 2, MAX_COLUMNS), loss, val);
    if (n > 1) ls_screen_curve(s, loss, val, n, c->base, c->last_step, rows, out);
    ranks(r, s, s->rows ? s->rows - rows - 7 - said : r->n_rank + 3, out);
}
