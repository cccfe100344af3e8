#include "report/chart/chart.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

ls_chart ls_chart_bars(ls_chart_kind kind, const char *file, const char *title, const char *x, const char *unit,
                       double scale, int decimals)
{
    return (ls_chart){kind, file, title, x, .unit = unit, .scale = scale, .decimals = decimals};
}

/* A copy of a name; NULL when memory is out. */
static char *name_of(const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    char *name = n < 0 ? NULL : ls_alloc((size_t)n + 1);
    if (name) vsnprintf(name, (size_t)n + 1, fmt, ap);
    return name;
}

ls_series *ls_chart_series(ls_chart *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *name = name_of(fmt, ap);
    va_end(ap);
    if (!name || !ls_grow(&c->series, c->n_series, &c->cap_series, sizeof *c->series)) {
        ls_free(name);
        c->failed = true;
        return NULL;
    }
    ls_series *s = &c->series[c->n_series++];
    *s = (ls_series){.name = name, .hue = -1};
    return s;
}

/* What can be drawn: sums and differences of such numbers are finite, too. */
static bool drawable(double x)
{
    return fabs(x) < 1e30; /* false for not-a-number */
}

void ls_chart_point(ls_chart *c, ls_series *s, ls_point p)
{
    if (!s || !drawable(p.x) || !drawable(p.y)) return;
    if (!drawable(p.lo) || !drawable(p.hi)) p.lo = p.hi = NAN;
    if (!ls_grow(&s->point, s->n, &s->cap, sizeof p)) {
        c->failed = true;
        return;
    }
    s->point[s->n++] = p;
}

int ls_chart_category(ls_chart *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *name = name_of(fmt, ap);
    va_end(ap);
    if (!name || !ls_grow(&c->category, c->n_category, &c->cap_category, sizeof *c->category)) {
        ls_free(name);
        c->failed = true;
        return 0;
    }
    c->category[c->n_category] = name;
    return c->n_category++;
}

void ls_chart_leave_out(ls_chart *c, const char *name)
{
    size_t n = strlen(c->left_out);
    c->n_left_out++;
    if (c->n_named + 1 < c->n_left_out || n + strlen(name) + 3 > sizeof c->left_out) return;
    snprintf(c->left_out + n, sizeof c->left_out - n, "%s%s", n ? ", " : "", name);
    c->n_named++;
}

int ls_chart_hue(const ls_chart *c, int series)
{
    const int hue = c->series[series].hue;
    return (hue >= 0 ? hue : series) % 8;
}

int ls_chart_mark(int series)
{
    return (series + series / 8) % 4;
}

bool ls_chart_ticks(const ls_chart *c, double value[8], int *n)
{
    *n = 0;
    for (int i = 0; i < c->n_series; i++) {
        for (int k = 0; k < c->series[i].n; k++) {
            double x = c->series[i].point[k].x;
            int at = 0;
            while (at < *n && value[at] != x) at++;
            if (at < *n) continue;
            if (*n == 8 || x != floor(x)) return false;
            value[(*n)++] = x;
        }
    }
    return *n > 0;
}

/* Whether a series begins a panel. */
static bool leads(const ls_series *s)
{
    return s->n && !s->ideal && !s->dots && !s->beside;
}

int ls_chart_panels(const ls_chart *c)
{
    int n = 0;
    for (int i = 0; i < c->n_series && c->kind == LS_CHART_LINES; i++) n += leads(&c->series[i]);
    return n > LS_CHART_TOGETHER ? n : 0;
}

int ls_chart_panel_series(const ls_chart *c, int panel)
{
    for (int i = 0; i < c->n_series; i++)
        if (leads(&c->series[i]) && !panel--) return i;
    return 0;
}

bool ls_chart_in_panel(const ls_chart *c, int i, int first)
{
    const ls_series *s = &c->series[i];
    if (i == first) return true;
    if (i < first || !s->n || s->ideal) return false;
    for (int k = first + 1; k <= i; k++)
        if (!c->series[k].dots && !c->series[k].beside) return false;
    return true;
}

void ls_chart_value(const ls_chart *c, const ls_point *p, char *buf, size_t n)
{
    const double scale = c->scale != 0 ? c->scale : 1;
    char v[40], h[40];
    ls_number_text(v, scale * p->y, c->decimals);
    if (isnan(p->hi)) snprintf(buf, n, "%s", v);
    else snprintf(buf, n, "%s \xc2\xb1 %s", v, ls_number_text(h, scale * (p->hi - p->y), c->decimals));
}

void ls_chart_fini(ls_chart *c)
{
    for (int i = 0; i < c->n_series; i++) {
        ls_free(c->series[i].point);
        ls_free(c->series[i].name);
    }
    for (int i = 0; i < c->n_category; i++) ls_free(c->category[i]);
    ls_free(c->series);
    ls_free(c->category);
    ls_free(c->name);
    *c = (ls_chart){0};
}

bool ls_chart_empty(const ls_chart *c)
{
    for (int i = 0; i < c->n_series; i++)
        if (c->series[i].n && !c->series[i].ideal) return false;
    return true;
}

double ls_nice_step(double lo, double hi, int n)
{
    double span = hi - lo, raw = span / (n > 0 ? n : 1);
    if (!(raw > 0) || !isfinite(raw)) return 1;
    double power = pow(10, floor(log10(raw))), part = raw / power;
    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

int ls_char_shown(const char *p, char code[16], const char **shown)
{
    uint32_t c = 0;
    const int n = ls_utf8_decode((const unsigned char *)p, 4, &c);
    const bool control = (c < 0x20 && c != '\t' && c != '\n') || (c >= 0x7f && c < 0xa0) || c == 0xfffe || c == 0xffff;
    const bool turns = c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
                       (c >= 0x2066 && c <= 0x2069); /* lines, or the direction of the text */
    *shown = !n ? "\xef\xbf\xbd" : c == '\r' ? "" : control || turns ? code : NULL;
    snprintf(code, 16, "[U+%04X]", (unsigned)c);
    return n ? n : 1;
}

void ls_xml_text(ls_str *out, const char *text)
{
    char code[16];
    const char *shown;
    for (const char *p = text; *p;) {
        const int n = ls_char_shown(p, code, &shown);
        if (shown) ls_str_add(out, shown);
        else if (*p == '&') ls_str_add(out, "&amp;");
        else if (*p == '<') ls_str_add(out, "&lt;");
        else if (*p == '>') ls_str_add(out, "&gt;");
        else if (*p == '"') ls_str_add(out, "&quot;");
        else ls_str_addn(out, p, (size_t)n);
        p += n;
    }
}
