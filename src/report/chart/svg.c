/* svg.c - the frame around every chart, its style, and line charts. */
#include "report/chart/svg_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Okabe and Ito's colours, which people with any colour vision can tell apart, made lighter for dark pages. */
const char *ls_svg_style(void)
{
    return ".chart{--h0:#0072b2;--h1:#d55e00;--h2:#009e73;--h3:#a84880;--h4:#56b4e9;--h5:#e69f00;--h6:#7b8794;"
           "--h7:#a89600;--ink:#1c2430;--soft:#5a6675;--grid:#e3e7ec;--axis:#9aa5b1;--paper:#fff;"
           "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:13px;"
           "display:block}\n"
           "@media (prefers-color-scheme:dark){.chart{--h0:#4da3e0;--h1:#ff8a4c;--h2:#2fc69a;--h3:#e6a0c8;"
           "--h4:#8acdf5;--h5:#f2b84b;--h6:#9aa3af;--h7:#dccb45;--ink:#e8ecf1;--soft:#a3adba;--grid:#2b333d;"
           "--axis:#66717e;--paper:#151a20}}\n"
           "@media print{.chart{--h0:#0072b2;--h1:#d55e00;--h2:#009e73;--h3:#a84880;--h4:#56b4e9;--h5:#e69f00;"
           "--h6:#7b8794;--h7:#a89600;--ink:#000;--soft:#444;--grid:#ddd;--axis:#888;--paper:#fff}}\n"
           ".chart .h0{color:var(--h0)}.chart .h1{color:var(--h1)}.chart .h2{color:var(--h2)}.chart "
           ".h3{color:var(--h3)}.chart .h4{color:var(--h4)}.chart .h5{color:var(--h5)}.chart .h6{color:var(--h6)}"
           ".chart .h7{color:var(--h7)}\n"
           ".chart .line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
           ".chart .fill{fill:currentColor}.chart .box{fill:currentColor;stroke:var(--paper);stroke-width:1}.chart "
           ".ideal{fill:none;stroke:var(--axis);stroke-width:1.5;stroke-dasharray:5 4}.chart .bar95{stroke:var(--ink);"
           "stroke-width:1.5;fill:none}.chart .band{fill:currentColor;opacity:.15}.chart .grid{stroke:var(--grid);"
           "stroke-width:1}.chart .axis{stroke:var(--axis);stroke-width:1}.chart .ink{fill:var(--ink)}.chart "
           ".soft{fill:var(--soft)}.chart .in{fill:#0d151d;font-size:11px}.chart .on0,.chart .on3{fill:var(--paper)}"
           ".chart text{font-variant-numeric:tabular-nums}\n";
}

double svg_x(const svg_frame *f, double x)
{
    double t = f->x1 > f->x0 ? (x - f->x0) / (f->x1 - f->x0) : 0.5;
    return f->left + t * (f->right - f->left);
}

static double svg_y(const svg_frame *f, double y)
{
    double t = f->y1 > f->y0 ? (y - f->y0) / (f->y1 - f->y0) : 0.5;
    return f->bottom - t * (f->bottom - f->top);
}

double svg_text_width(const char *text)
{
    double w = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if ((*p & 0xc0) != 0x80) w += strchr("il.,:;|' ", *p) ? 4.4 : strchr("mwMW%", *p) ? 12.2 : 7.9;
    return w;
}

void svg_text(ls_str *out, double x, double y, const char *anchor, const char *cls, const char *text)
{
    ls_str_addf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, cls);
    ls_xml_text(out, text);
    ls_str_add(out, "</text>");
}

void svg_line(ls_str *out, const char *cls, double x1, double y1, double x2, double y2)
{
    ls_str_addf(out, "<line class=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", cls, x1, x2, y1, y2);
}

void svg_fit_text(ls_str *out, double x, double y, const char *cls, const char *text, double width)
{
    char cut[100];
    snprintf(cut, sizeof cut, "%s", text);
    size_t n = strlen(cut);
    while (n && svg_text_width(cut) > width) {
        do n--;
        while (n && (cut[n] & 0xc0) == 0x80);
        snprintf(cut + n, sizeof cut - n, n + 4 < sizeof cut ? "\xe2\x80\xa6" : "");
        if (n < 2) break;
    }
    svg_text(out, x, y, "start", cls, cut);
}

int svg_hue(const ls_chart *c, int series)
{
    int hue = c->series[series].hue;
    return hue >= 0 ? hue % 8 : series % 8;
}

char *svg_value(char buf[64], const ls_chart *c, double v)
{
    char number[40];
    double x = v * (c->scale != 0 ? c->scale : 1);
    snprintf(buf, 64, "%s", ls_number_text(number, x, c->decimals));
    return buf;
}

static void tick_text(char buf[40], double x, double step)
{
    int decimals = step >= 1 ? 0 : step >= 0.1 ? 1 : step >= 0.01 ? 2 : step >= 0.001 ? 3 : 4;
    if (fabs(x) >= 1e15) snprintf(buf, 40, "%.2g", x);
    else ls_number_text(buf, fabs(x) < step / 1e6 ? 0 : x, decimals);
}

void svg_x_axis(const ls_chart *c, const svg_frame *f, int n_tick, ls_str *out)
{
    double k = c->scale != 0 && c->kind != LS_CHART_LINES ? c->scale : 1;
    double step = ls_nice_step(f->x0 * k, f->x1 * k, n_tick);
    double from = ceil(f->x0 * k / step - 1e-9);
    for (int i = 0; i < 40 && (from + i) * step <= f->x1 * k * (1 + 1e-12) + step * 1e-9; i++) {
        char t[40];
        double v = (from + i) * step, x = svg_x(f, v / k);
        tick_text(t, v, step);
        svg_line(out, "grid", x, f->top, x, f->bottom);
        svg_text(out, x, f->bottom + 17, "middle", "soft", t);
    }
    if (c->x_label) svg_text(out, (f->left + f->right) / 2, f->bottom + 36, "middle", "soft", c->x_label);
}

static void draw_mark(ls_str *out, int hue, int shape, double x, double y)
{
    switch (shape % 4) {
    case 0: ls_str_addf(out, "<circle class=\"box h%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"/>", hue, x, y); break;
    case 1:
        ls_str_addf(out, "<rect class=\"box h%d\" x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\"/>", hue, x - 4, y - 4);
        break;
    case 2: ls_str_addf(out, "<path class=\"box h%d\" d=\"M%.1f %.1fl5 9h-10z\"/>", hue, x, y - 5); break;
    default: ls_str_addf(out, "<path class=\"box h%d\" d=\"M%.1f %.1fl5 5l-5 5l-5 -5z\"/>", hue, x, y - 5);
    }
}

double svg_legend(const ls_chart *c, double x, double y, double width, ls_str *out)
{
    double at = x, row = y;
    for (int i = 0; i < c->n_series; i++) {
        const ls_series *s = &c->series[i];
        double w = 22 + svg_text_width(s->name) + 14;
        if (!s->n) continue;
        if (at > x && at + w > x + width) at = x, row += 19;
        if (out) {
            if (s->ideal) svg_line(out, "ideal", at, row - 4, at + 16, row - 4);
            else if (c->kind == LS_CHART_LINES) draw_mark(out, svg_hue(c, i), ls_chart_mark(i), at + 6, row - 4);
            else
                ls_str_addf(out, "<rect class=\"fill h%d\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\"/>",
                            svg_hue(c, i), at, row - 10);
            svg_fit_text(out, at + 20, row, "ink", s->name, width - 20);
        }
        at += w;
    }
    return row - y + 19;
}

/* --- lines --- */

static void range(const ls_chart *c, svg_frame *f)
{
    f->x0 = f->y0 = INFINITY;
    f->x1 = f->y1 = -INFINITY;
    for (int i = 0; i < c->n_series; i++) {
        for (int k = 0; k < c->series[i].n; k++) {
            const ls_point *p = &c->series[i].point[k];
            f->x0 = fmin(f->x0, p->x), f->x1 = fmax(f->x1, p->x);
            f->y0 = fmin(f->y0, p->y), f->y1 = fmax(f->y1, p->y);
        }
    }
    double room =
        f->y1 + 0.6 * fabs(f->y1); /* wider intervals run out of the picture, so that it still shows the means */
    for (int i = 0; i < c->n_series; i++)
        for (int k = 0; k < c->series[i].n; k++) {
            const ls_point *p = &c->series[i].point[k];
            if (!isnan(p->hi)) f->y1 = fmax(f->y1, fmin(p->hi, room)), f->y0 = fmin(f->y0, p->lo);
        }
    if (!(f->x1 >= f->x0)) f->x0 = f->y0 = 0, f->x1 = f->y1 = 1;
    if (c->zero && f->y0 > 0) f->y0 = 0;
    if (f->y1 - f->y0 < 1e-9 * fmax(1e-300, fabs(f->y1)))
        f->y0 -= fabs(f->y0) * 0.05 + 1e-9, f->y1 += fabs(f->y1) * 0.05 + 1e-9;
    if (f->x1 <= f->x0) f->x0 -= 0.5, f->x1 += 0.5;
    double step = ls_nice_step(f->y0, f->y1, 5);
    f->y0 = floor(f->y0 / step + 1e-9) * step;
    f->y1 = ceil(f->y1 / step - 1e-9) * step;
}

/* True when x takes few whole values (numbers of workers): those are the ticks. */
static bool few_values(const ls_chart *c, double value[8], int *n)
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

static void draw_series(const ls_chart *c, const svg_frame *f, int i, ls_str *out)
{
    static const char *const dash[] = {"", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"2 4\"",
                                       " stroke-dasharray=\"9 3 2 3\""};
    const ls_series *s = &c->series[i];
    int hue = svg_hue(c, i);
    if (s->n > 1 && !s->dots) {
        if (s->ideal) ls_str_add(out, "<path class=\"ideal\" d=\"");
        else ls_str_addf(out, "<path class=\"line h%d\"%s d=\"", hue, dash[ls_chart_mark(i)]);
        for (int k = 0; k < s->n; k++)
            ls_str_addf(out, "%c%.1f %.1f", k ? 'L' : 'M', svg_x(f, s->point[k].x), svg_y(f, s->point[k].y));
        ls_str_add(out, "\"/>");
    }
    if (s->ideal || (s->n > 40 && !s->dots)) return;
    for (int k = 0; k < s->n; k++) {
        const ls_point *p = &s->point[k];
        char t[64];
        double x = svg_x(f, p->x), y = svg_y(f, p->y);
        ls_str_add(out, "<g>");
        if (!isnan(p->lo) && !isnan(p->hi)) { /* an end outside has no cap */
            double low = svg_y(f, p->lo), high = fmax(svg_y(f, p->hi), f->top);
            ls_str_addf(out, "<path class=\"bar95\" d=\"M%.1f %.1fV%.1fM%.1f %.1fh8", x, low, high, x - 4, low);
            if (p->hi <= f->y1) ls_str_addf(out, "M%.1f %.1fh8", x - 4, high);
            ls_str_add(out, "\"/>");
        }
        draw_mark(out, hue, ls_chart_mark(i), x, y);
        ls_str_add(out, "<title>");
        ls_xml_text(out, s->name);
        ls_str_addf(out, ": %s %s</title></g>", svg_value(t, c, p->y), c->unit ? c->unit : "");
    }
}

typedef struct end_label {
    double y, at;
    int series;
} end_label;

static int by_y(const void *a, const void *b)
{
    const end_label *x = a, *y = b;
    return (x->y > y->y) - (x->y < y->y);
}

enum { GAP = 16 }; /* between end labels */

/* Names at the ends of their lines, pushed apart so that none covers another. */
static void end_labels(const ls_chart *c, const svg_frame *f, double width, ls_str *out)
{
    end_label l[LS_CHART_MAX_LINE];
    int n = 0;
    for (int i = 0; i < c->n_series && n < LS_CHART_MAX_LINE; i++) {
        const ls_series *s = &c->series[i];
        if (s->n) l[n++] = (end_label){svg_y(f, s->point[s->n - 1].y), 0, i};
    }
    if (!n) return;
    qsort(l, (size_t)n, sizeof *l, by_y);
    for (int i = 0; i < n; i++) l[i].at = i && l[i].y < l[i - 1].at + GAP ? l[i - 1].at + GAP : l[i].y;
    if (l[n - 1].at > f->bottom) {
        l[n - 1].at = f->bottom;
        for (int i = n - 2; i >= 0 && l[i].at > l[i + 1].at - GAP; i--) l[i].at = l[i + 1].at - GAP;
    }
    for (int i = 0; i < n; i++) {
        const ls_series *s = &c->series[l[i].series];
        if (s->ideal) svg_line(out, "ideal", f->right + 8, l[i].at, f->right + 20, l[i].at);
        else draw_mark(out, svg_hue(c, l[i].series), ls_chart_mark(l[i].series), f->right + 14, l[i].at);
        svg_fit_text(out, f->right + 24, l[i].at + 4, "ink", s->name, width - f->right - 26);
    }
}

static void svg_lines(const ls_chart *c, int width, ls_str *out, int *height)
{
    bool narrow = width < SVG_NARROW;
    double longest = 0, value[8];
    int n_value;
    for (int i = 0; i < c->n_series; i++) longest = fmax(longest, svg_text_width(c->series[i].name));
    double room = fmin(longest + 34, 0.36 * width), legend = narrow ? svg_legend(c, 0, 0, width - 8, NULL) : 0;
    svg_frame f = {.left = 56,
                   .right = narrow ? width - 16 : width - room,
                   .top = 32 + legend,
                   .bottom = 32 + legend + (narrow ? 200 : fmax(250, GAP * (c->n_series + 1)))}; /* room for names */
    range(c, &f);
    if (c->y_label) svg_text(out, 2, 14, "start", "soft", c->y_label);
    if (narrow) svg_legend(c, 4, 36, width - 8, out);
    double step = ls_nice_step(f.y0, f.y1, 5);
    for (int i = 0; i <= 12 && f.y0 + i * step <= f.y1 + step / 2; i++) {
        char t[40];
        double y = svg_y(&f, f.y0 + i * step);
        tick_text(t, f.y0 + i * step, step);
        svg_line(out, "grid", f.left, y, f.right, y);
        svg_text(out, f.left - 7, y + 4, "end", "soft", t);
    }
    if (few_values(c, value, &n_value)) {
        for (int i = 0; i < n_value; i++) {
            char t[40];
            svg_text(out, svg_x(&f, value[i]), f.bottom + 17, "middle", "soft", ls_number_text(t, value[i], 0));
        }
        if (c->x_label) svg_text(out, (f.left + f.right) / 2, f.bottom + 36, "middle", "soft", c->x_label);
    } else {
        svg_x_axis(c, &f, narrow ? 4 : 7, out);
    }
    svg_line(out, "axis", f.left, f.bottom, f.right, f.bottom);
    for (int i = 0; i < c->n_series; i++) draw_series(c, &f, i, out);
    if (!narrow) end_labels(c, &f, width, out);
    *height = (int)f.bottom + 44;
}

void ls_svg_draw(const ls_chart *c, int width, bool alone, ls_str *out)
{
    ls_str body = {0};
    int height = 100;
    if (c->kind == LS_CHART_LINES) svg_lines(c, width, &body, &height);
    else if (c->kind == LS_CHART_GANTT) svg_gantt(c, width, &body, &height);
    else svg_bars(c, width, &body, &height);
    ls_str_addf(out, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", width, height);
    ls_xml_text(out, c->title ? c->title : "chart");
    ls_str_add(out, "\"");
    if (alone)
        ls_str_addf(out,
                    " xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\"><style>%s</style>"
                    "<rect width=\"100%%\" height=\"100%%\" style=\"fill:var(--paper)\"/>",
                    width, height, ls_svg_style());
    else ls_str_add(out, ">");
    if (body.data) ls_str_addn(out, body.data, body.len);
    ls_str_add(out, "</svg>\n");
    if (body.failed) out->failed = true;
    ls_str_fini(&body);
}
