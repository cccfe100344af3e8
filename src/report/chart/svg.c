/* svg.c - charts as SVG. Coordinates are user units, y down; fonts are 13 units. */
#include "report/chart/svg_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Okabe and Ito's colours, which people with any colour vision can tell apart, made lighter for dark pages. */
const char *ls_svg_style(void)
{
    return ".chart{--h0:#0072b2;--h1:#d55e00;--h2:#009e73;--h3:#a84880;--h4:#56b4e9;--h5:#e69f00;--h6:#7b8794;"
           "--h7:#a89600;--ink:#1c2430;--soft:#5a6675;--grid:#e3e7ec;--axis:#9aa5b1;--paper:#fff;font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:13px;display:block}\n"
           "@media (prefers-color-scheme:dark){.chart{--h0:#4da3e0;--h1:#ff8a4c;--h2:#2fc69a;--h3:#e6a0c8;"
           "--h4:#8acdf5;--h5:#f2b84b;--h6:#9aa3af;--h7:#dccb45;--ink:#e8ecf1;--soft:#a3adba;--grid:#2b333d;--axis:#66717e;--paper:#151a20}}\n"
           "@media print{.chart{--h0:#0072b2;--h1:#d55e00;--h2:#009e73;--h3:#a84880;--h4:#56b4e9;--h5:#e69f00;"
           "--h6:#7b8794;--h7:#a89600;--ink:#000;--soft:#444;--grid:#ddd;--axis:#888;--paper:#fff}}\n"
           ".chart .h0{color:var(--h0)}.chart .h1{color:var(--h1)}.chart .h2{color:var(--h2)}.chart "
           ".h3{color:var(--h3)}.chart .h4{color:var(--h4)}.chart .h5{color:var(--h5)}.chart .h6{color:var(--h6)}"
           ".chart .h7{color:var(--h7)}\n"
           ".chart .line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
           ".chart .fill{fill:currentColor}.chart .box{fill:currentColor;stroke:var(--paper);stroke-width:1}.chart "
           ".ideal{fill:none;stroke:var(--axis);stroke-width:1.5;stroke-dasharray:5 4}.chart .bar95{stroke:var(--ink);"
           "stroke-width:1.5;fill:none}.chart .context{fill:none;stroke:var(--axis);stroke-width:1;opacity:.45}.chart .grid{stroke:var(--grid);"
           "stroke-width:1}.chart .hatch{stroke:var(--axis);stroke-width:1.5}.chart .axis{stroke:var(--axis);stroke-width:1}.chart .ink{fill:var(--ink)}.chart "
           ".soft{fill:var(--soft)}.chart .in{fill:#0d151d;font-size:11px}.chart .on0,.chart .on3{fill:var(--paper)}"
           ".chart text{font-variant-numeric:tabular-nums}\n";
}

double svg_x(const svg_frame *f, double x)
{
    double t = f->x1 > f->x0 ? (x - f->x0) / (f->x1 - f->x0) : 0.5;
    return f->left + t * (f->right - f->left);
}

double svg_y(const svg_frame *f, double y)
{
    double t = f->y1 > f->y0 ? (y - f->y0) / (f->y1 - f->y0) : 0.5;
    return f->bottom - t * (f->bottom - f->top);
}

static double width_of(const char *text, size_t n)
{
    double w = 0;
    for (const unsigned char *p = (const unsigned char *)text, *end = p + n; p < end; p++)
        if ((*p & 0xc0) != 0x80) w += strchr("il.,:;|' ", *p) ? 4.4 : strchr("mwMW%", *p) ? 12.2 : 7.9;
    return w;
}

double svg_text_width(const char *text)
{
    return width_of(text, strlen(text));
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

/* A text in lines of at most `width`, the first at y; returns their number. A name is wrapped, never cut. out NULL: nothing is drawn. */
int svg_lines(ls_str *out, double x, double y, const char *anchor, const char *cls, const char *text, double width)
{
    int n = 0;
    do {
        const size_t k = ls_line_of(text, width, width_of);
        ls_str line = {0};
        ls_str_addn(&line, text, k);
        if (out) svg_text(out, x, y + SVG_LINE * n, anchor, cls, line.data ? line.data : "");
        ls_str_fini(&line);
        text += k;
        text += strspn(text, " ");
        n++;
    } while (*text);
    return n;
}

static char *value_of(char buf[40], const ls_chart *c, double v)
{
    return ls_number_text(buf, v * (c->scale != 0 ? c->scale : 1), c->decimals);
}

void svg_tick(char buf[40], double x, double step)
{
    int decimals = 0;
    for (double unit = 1 - 1e-9; step < unit && decimals < 9; unit /= 10) decimals++;
    if (fabs(x) >= 1e15) snprintf(buf, 40, "%.2g", x);
    else ls_number_text(buf, fabs(x) < step / 1e6 ? 0 : x, decimals);
}

static void x_axis(const ls_chart *c, const svg_frame *f, int n_tick, ls_str *out)
{
    double k = c->scale != 0 && c->kind != LS_CHART_LINES ? c->scale : 1;
    double step = ls_nice_step(f->x0 * k, f->x1 * k, n_tick);
    double from = ceil(f->x0 * k / step - 1e-9);
    for (int i = 0; i < n_tick + 2 && (from + i) * step <= f->x1 * k * (1 + 1e-12) + step * 1e-9; i++) {
        char t[40];
        double v = (from + i) * step, x = svg_x(f, v / k);
        svg_tick(t, v, step);
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

/* Rows of marks and names; returns their height. out NULL: nothing is drawn. */
static double add_legend(const ls_chart *c, double x, double y, double width, ls_str *out)
{
    double at = x, row = y;
    int lines = 1; /* of the row */
    for (int i = 0; i < c->n_series; i++) {
        const ls_series *s = &c->series[i];
        double w = 22 + svg_text_width(s->name) + 14;
        if (!s->n) continue;
        if (at > x && at + w > x + width) at = x, row += 3 + SVG_LINE * lines, lines = 1;
        if (out) {
            if (s->ideal) svg_line(out, "ideal", at, row - 4, at + 16, row - 4);
            else if (s->idle)
                ls_str_addf(out, "<rect fill=\"url(#%s-%d)\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\"/>",
                            c->file, (int)width, at, row - 10);
            else if (c->kind == LS_CHART_LINES) draw_mark(out, ls_chart_hue(c, i), ls_chart_mark(i), at + 6, row - 4);
            else
                ls_str_addf(out, "<rect class=\"fill h%d\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\"/>",
                            ls_chart_hue(c, i), at, row - 10);
        }
        const int n = svg_lines(out, at + 20, row, "start", "ink", s->name, width - 20);
        lines = n > lines ? n : lines;
        at += w;
    }
    return row - y + 3 + SVG_LINE * lines;
}

/* --- lines --- */

void svg_range(const ls_chart *c, svg_frame *f)
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

void svg_series(const ls_chart *c, const svg_frame *f, int i, int hue, int mark, ls_str *out)
{
    static const char *const dash[] = {"", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"2 4\"",
                                       " stroke-dasharray=\"9 3 2 3\""};
    const ls_series *s = &c->series[i];
    if (s->n > 1 && !s->dots) {
        if (s->ideal) ls_str_add(out, "<path class=\"ideal\" d=\"");
        else ls_str_addf(out, "<path class=\"line h%d\"%s d=\"", hue, dash[mark]);
        for (int k = 0; k < s->n; k++)
            ls_str_addf(out, "%c%.1f %.1f", k ? 'L' : 'M', svg_x(f, s->point[k].x), svg_y(f, s->point[k].y));
        ls_str_add(out, "\"/>");
    }
    if (s->ideal || (s->n > 40 && !s->dots)) return;
    for (int k = 0; k < s->n; k++) {
        const ls_point *p = &s->point[k];
        char t[40];
        double x = svg_x(f, p->x), y = svg_y(f, p->y);
        ls_str_add(out, "<g>");
        if (!isnan(p->lo) && !isnan(p->hi)) {
            double low = svg_y(f, p->lo), high = fmax(svg_y(f, p->hi), f->top);
            ls_str_addf(out, "<path class=\"bar95\" d=\"M%.1f %.1fV%.1fM%.1f %.1fh8", x, low, high, x - 4, low);
            if (p->hi <= f->y1) ls_str_addf(out, "M%.1f %.1fh8", x - 4, high);
            else ls_str_addf(out, "M%.1f %.1fl4 -5l4 5", x - 4, high + 5); /* an arrow: it goes on outside */
            ls_str_add(out, "\"/>");
        }
        draw_mark(out, hue, mark, x, y);
        ls_str_add(out, "<title>");
        ls_xml_text(out, s->name);
        ls_str_addf(out, ": %s %s</title></g>", value_of(t, c, p->y), c->unit ? c->unit : "");
    }
}

typedef struct end_label {
    double y, at; /* wanted, and used: of its first line */
    int series, lines;
} end_label;

static int by_y(const void *a, const void *b)
{
    const end_label *x = a, *y = b;
    return (x->y > y->y) - (x->y < y->y);
}

/* Width of the names next to the lines of a chart. */
static double label_room(double width, double right)
{
    return width - right - 26;
}

/* Lines of all names. */
static int label_lines(const ls_chart *c, double room)
{
    int n = 0;
    for (int i = 0; i < c->n_series; i++)
        if (c->series[i].n) n += svg_lines(NULL, 0, 0, "", "", c->series[i].name, room);
    return n;
}

/* Names at the ends of their lines, pushed apart so that none covers another. */
static void end_labels(const ls_chart *c, const svg_frame *f, double width, ls_str *out)
{
    end_label l[LS_CHART_MAX_LINE];
    int n = 0;
    for (int i = 0; i < c->n_series && n < LS_CHART_MAX_LINE; i++) {
        const ls_series *s = &c->series[i];
        if (s->n)
            l[n++] = (end_label){svg_y(f, s->point[s->n - 1].y), 0, i,
                                 svg_lines(NULL, 0, 0, "", "", s->name, label_room(width, f->right))};
    }
    if (!n) return;
    qsort(l, (size_t)n, sizeof *l, by_y);
    for (int i = 0; i < n; i++) l[i].at = i ? fmax(l[i].y, l[i - 1].at + SVG_LINE * l[i - 1].lines) : l[i].y;
    double end = f->bottom + SVG_LINE; /* the lowest line is at the axis */
    for (int i = n - 1; i >= 0 && l[i].at + SVG_LINE * l[i].lines > end; i--)
        end = l[i].at = end - SVG_LINE * l[i].lines;
    for (int i = 0; i < n; i++) {
        const ls_series *s = &c->series[l[i].series];
        if (s->ideal) svg_line(out, "ideal", f->right + 8, l[i].at, f->right + 20, l[i].at);
        else draw_mark(out, ls_chart_hue(c, l[i].series), ls_chart_mark(l[i].series), f->right + 14, l[i].at);
        svg_lines(out, f->right + 24, l[i].at + 4, "start", "ink", s->name, label_room(width, f->right));
    }
}

static void draw_lines(const ls_chart *c, int width, ls_str *out, int *height)
{
    bool narrow = width < SVG_NARROW;
    double longest = 0, value[8];
    int n_value;
    for (int i = 0; i < c->n_series; i++) longest = fmax(longest, svg_text_width(c->series[i].name));
    double room = fmin(longest + 34, 0.36 * width), legend = narrow ? add_legend(c, 0, 0, width - 8, NULL) : 0;
    const double right = narrow ? width - 16 : width - room;
    const int lines = narrow ? 0 : label_lines(c, label_room(width, right));
    svg_frame f = {.left = 56,
                   .right = right,
                   .top = 32 + legend,
                   .bottom = 32 + legend + (narrow ? 200 : fmax(250, SVG_LINE * (lines + 1)))}; /* room for names */
    svg_range(c, &f);
    if (c->y_label) svg_text(out, 2, 14, "start", "soft", c->y_label);
    if (narrow) add_legend(c, 4, 36, width - 8, out);
    double step = ls_nice_step(f.y0, f.y1, 5);
    for (int i = 0; i <= 12 && f.y0 + i * step <= f.y1 + step / 2; i++) {
        char t[40];
        double y = svg_y(&f, f.y0 + i * step);
        svg_tick(t, f.y0 + i * step, step);
        svg_line(out, "grid", f.left, y, f.right, y);
        svg_text(out, f.left - 7, y + 4, "end", "soft", t);
    }
    if (ls_chart_ticks(c, value, &n_value)) {
        for (int i = 0; i < n_value; i++) {
            char t[40];
            svg_text(out, svg_x(&f, value[i]), f.bottom + 17, "middle", "soft", ls_number_text(t, value[i], 0));
        }
        if (c->x_label) svg_text(out, (f.left + f.right) / 2, f.bottom + 36, "middle", "soft", c->x_label);
    } else {
        x_axis(c, &f, narrow ? 4 : 7, out);
    }
    svg_line(out, "axis", f.left, f.bottom, f.right, f.bottom);
    for (int i = 0; i < c->n_series; i++) svg_series(c, &f, i, ls_chart_hue(c, i), ls_chart_mark(i), out);
    if (!narrow) end_labels(c, &f, width, out);
    *height = (int)f.bottom + 44;
}

/* --- bars and boxes --- */

/* Classes of a text on each colour: white or black, whichever can be read. */
static const char *const inside[] = {"in on0", "in", "in", "in on3", "in", "in", "in", "in"};

/* Sums of the segments of a category to the right and to the left of zero. */
static void sums(const ls_chart *c, int category, double *plus, double *minus)
{
    *plus = *minus = 0;
    for (int i = 0; i < c->n_series; i++) {
        for (int k = 0; k < c->series[i].n; k++) {
            const ls_point *p = &c->series[i].point[k];
            if ((int)p->x != category) continue;
            *(p->y < 0 ? minus : plus) += p->y;
        }
    }
}

static void bar_range(const ls_chart *c, svg_frame *f)
{
    f->x0 = f->x1 = 0;
    for (int k = 0; k < c->n_category; k++) {
        double plus, minus;
        sums(c, k, &plus, &minus);
        f->x1 = fmax(f->x1, plus), f->x0 = fmin(f->x0, minus);
    }
    double room = 1.6 * f->x1; /* wider intervals run out of the picture */
    for (int i = 0; i < c->n_series && c->kind == LS_CHART_BARS; i++)
        for (int k = 0; k < c->series[i].n; k++)
            if (!isnan(c->series[i].point[k].hi)) f->x1 = fmax(f->x1, fmin(c->series[i].point[k].hi, room));
    if (f->x1 <= f->x0) f->x1 = f->x0 + 1;
}

/* A box of a series that begins with its tooltip, which is open until </title>. width: of the picture, for the hatch of an idle box. */
static void begin_box(const ls_chart *c, int i, double x, double y, double w, double h, int width, ls_str *out)
{
    if (c->series[i].idle) ls_str_addf(out, "<g><rect fill=\"url(#%s-%d)\"", c->file, width - 8);
    else ls_str_addf(out, "<g><rect class=\"box h%d\"", ls_chart_hue(c, i));
    ls_str_addf(out, " x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\"/><title>", x, y, w, h);
    ls_xml_text(out, c->series[i].name);
}

static void segment(const ls_chart *c, const svg_frame *f, int i, const ls_point *p, double from, double y, double h,
                    ls_str *out)
{
    char t[40];
    double a = svg_x(f, from), b = svg_x(f, from + p->y), left = fmin(a, b), w = fabs(b - a);
    begin_box(c, i, left, y, w, h, 0, out);
    ls_str_addf(out, ": %s %s</title>", value_of(t, c, p->y), c->unit ? c->unit : "");
    if (c->kind == LS_CHART_STACK && w > svg_text_width(t) + 4)
        svg_text(out, left + w / 2, y + h / 2 + 4, "middle", inside[ls_chart_hue(c, i)], t);
    ls_str_add(out, "</g>");
}

static void draw_bar(const ls_chart *c, const svg_frame *f, int k, double y, double h, ls_str *out)
{
    double plus = 0, minus = 0, end = svg_x(f, 0);
    char t[160] = "";
    for (int i = 0; i < c->n_series; i++) {
        for (int j = 0; j < c->series[i].n; j++) {
            const ls_point *p = &c->series[i].point[j];
            if ((int)p->x != k) continue;
            double *at = p->y < 0 ? &minus : &plus;
            segment(c, f, i, p, *at, y, h, out);
            *at += p->y;
            end = fmax(end, svg_x(f, plus));
            if (c->kind == LS_CHART_STACK) continue;
            ls_chart_value(c, p, t, sizeof t);
            if (isnan(p->lo) || isnan(p->hi)) continue;
            double a = svg_x(f, fmax(p->lo, f->x0)), b = svg_x(f, fmin(p->hi, f->x1)), m = y + h / 2;
            ls_str_addf(out, "<path class=\"bar95\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv8", a, m, b, a, m - 4);
            if (p->hi <= f->x1) ls_str_addf(out, "M%.1f %.1fv8", b, m - 4);
            else ls_str_addf(out, "M%.1f %.1fl5 4l-5 4", b - 5, m - 4); /* an arrow: it goes on outside */
            ls_str_add(out, "\"/>");
            end = fmax(end, b);
        }
    }
    if (c->kind == LS_CHART_STACK && c->unit && strcmp(c->unit, "%"))
        value_of(t, c, plus + minus); /* shares sum to 100 */
    if (*t) svg_text(out, end + 7, y + h / 2 + 4, "start", "ink", t);
}

/* Room for the values to the right of the bars. */
static double value_room(const ls_chart *c, bool stack, bool narrow)
{
    double longest = 0;
    for (int i = 0; i < c->n_series && !stack; i++)
        for (int k = 0; k < c->series[i].n; k++) {
            char t[160];
            ls_chart_value(c, &c->series[i].point[k], t, sizeof t);
            longest = fmax(longest, svg_text_width(t) + 14);
        }
    return fmax(longest, stack ? 70 : narrow ? 118 : 130);
}

static void draw_bars(const ls_chart *c, int width, ls_str *out, int *height)
{
    bool narrow = width < SVG_NARROW, stack = c->kind == LS_CHART_STACK;
    double longest = 0;
    for (int k = 0; k < c->n_category; k++) longest = fmax(longest, svg_text_width(c->category[k]));
    bool above = narrow || longest > 0.3 * width; /* names above their bars */
    double legend = stack ? add_legend(c, 0, 0, width - 8, NULL) + 6 : 0, row = above ? 30 : 34, h = 20;
    svg_frame f = {.left = above ? 4 : longest + 14, .right = width - value_room(c, stack, narrow), .top = 6 + legend};
    f.bottom = f.top + row * c->n_category;
    for (int k = 0; k < c->n_category && above; k++)
        f.bottom += SVG_LINE * svg_lines(NULL, 0, 0, "", "", c->category[k], width - 8);
    bar_range(c, &f);
    if (stack) add_legend(c, 4, 14, width - 8, out);
    if (c->kind == LS_CHART_STACK || !narrow) x_axis(c, &f, narrow ? 3 : 5, out);
    double top = f.top;
    for (int k = 0; k < c->n_category; k++, top += row) {
        if (above) top += SVG_LINE * svg_lines(out, 4, top + 15, "start", "ink", c->category[k], width - 8);
        double y = top + (above ? 4 : (row - h) / 2);
        if (!above) svg_text(out, f.left - 9, y + h / 2 + 4, "end", "ink", c->category[k]);
        draw_bar(c, &f, k, y, h, out);
    }
    double zero = svg_x(&f, 0);
    if (!above || f.x0 < 0) svg_line(out, "axis", zero, f.top, zero, f.bottom);
    *height = (int)f.bottom + (stack || !narrow ? 44 : 10);
}

static void draw_gantt(const ls_chart *c, int width, ls_str *out, int *height)
{
    bool narrow = width < SVG_NARROW;
    double longest = 0, note = 0, row = 30, h = 24, legend = add_legend(c, 0, 0, width - 8, NULL) + 6;
    for (int k = 0; k < c->n_category; k++) longest = fmax(longest, svg_text_width(c->category[k]));
    svg_frame f = {.left = fmin(longest + 14, 0.25 * width), .right = width - 12, .top = 6 + legend};
    f.bottom = f.top + row * c->n_category;
    f.x1 = c->end;
    for (int i = 0; i < c->n_series; i++) {
        for (int k = 0; k < c->series[i].n; k++) {
            const ls_point *p = &c->series[i].point[k];
            f.x1 = fmax(f.x1, p->y);
            if (c->series[i].idle && p->label) note = fmax(note, svg_text_width(p->label));
        }
        if (c->series[i].idle) /* an id of its own: a page has each chart in two widths, one of them not displayed */
            ls_str_addf(out,
                        "<defs><pattern id=\"%s-%d\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
                        "patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\"/>"
                        "</pattern></defs>",
                        c->file, width - 8);
    }
    if (!(f.x1 > 0)) f.x1 = 1;
    f.right -= note;
    add_legend(c, 4, 14, width - 8, out);
    x_axis(c, &f, narrow ? 3 : (int)fmax(6, width / 120.0), out);
    for (int k = 0; k < c->n_category; k++)
        svg_lines(out, 4, f.top + k * row + 19, "start", "ink", c->category[k], f.left - 8);
    for (int i = 0; i < c->n_series; i++) {
        for (int k = 0; k < c->series[i].n; k++) {
            const ls_point *p = &c->series[i].point[k];
            const char *label = p->label ? p->label : "";
            char a[40], b[40];
            double x = svg_x(&f, p->x), w = fmax(svg_x(&f, p->y) - x, 0.8), y = f.top + p->lane * row + (row - h) / 2;
            begin_box(c, i, x, y, w, h, width, out);
            ls_str_add(out, " ");
            ls_xml_text(out, c->series[i].idle ? "" : label);
            ls_str_addf(out, ": %s to %s %s</title>", value_of(a, c, p->x), value_of(b, c, p->y),
                        c->unit ? c->unit : "");
            if (p->shade)
                ls_str_addf(out,
                            "<rect fill-opacity=\"%.1f\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" "
                            "pointer-events=\"none\"/>",
                            0.1 * p->shade, x, y, w, h);
            if (*label && c->series[i].idle) svg_text(out, f.right + 6, y + h / 2 + 4, "start", "soft", label);
            else if (*label && w > svg_text_width(label) + 2)
                svg_text(out, x + w / 2, y + h / 2 + 4, "middle", inside[ls_chart_hue(c, i)], label);
            ls_str_add(out, "</g>");
        }
    }
    *height = (int)f.bottom + 44;
}

/* The style with the colours of a light page, which come first in it, in place of its variables. */
static void plain_style(ls_str *out)
{
    const char *p = ls_svg_style();
    for (const char *use; (use = strstr(p, "var(")); p = strchr(use, ')') + 1) {
        char name[16];
        snprintf(name, sizeof name, "%.*s:", (int)strcspn(use + 4, ")"), use + 4);
        const char *value = strstr(ls_svg_style(), name) + strlen(name);
        ls_str_addn(out, p, (size_t)(use - p));
        ls_str_addn(out, value, strcspn(value, ";}"));
    }
    ls_str_add(out, p);
}

/* The title above a chart; returns the room that it takes. */
static int draw_title(const ls_chart *c, int width, ls_str *out)
{
    ls_str_add(out, "<g font-weight=\"600\">");
    int n = svg_lines(out, 4, 14, "start", "ink", c->title ? c->title : "", width - 40);
    ls_str_add(out, "</g>");
    if (c->subtitle) n += svg_lines(out, 4, 14 + SVG_LINE * n, "start", "soft", c->subtitle, width - 8);
    return 10 + SVG_LINE * n;
}

void ls_svg_draw(const ls_chart *c, int width, ls_svg_place place, ls_str *out)
{
    ls_str body = {0}, head = {0};
    int height = 100;
    if (ls_chart_panels(c)) svg_panels(c, width, &body, &height);
    else if (c->kind == LS_CHART_LINES) draw_lines(c, width, &body, &height);
    else if (c->kind == LS_CHART_GANTT) draw_gantt(c, width, &body, &height);
    else draw_bars(c, width, &body, &height);
    const bool titled = place == LS_SVG_PRINT || (place == LS_SVG_FILE && c->subtitle);
    const int edge = titled ? 10 : 0, top = titled ? draw_title(c, width, &head) : 0;
    const int w = width + 2 * edge, h = height + top + 2 * edge;
    ls_str_addf(out, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", w, h);
    ls_xml_text(out, c->title ? c->title : "chart");
    if (place == LS_SVG_PAGE) ls_str_add(out, "\">");
    else {
        ls_str_addf(out, "\" xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\"><style>", w, h);
        if (place == LS_SVG_PRINT) plain_style(out);
        else ls_str_add(out, ls_svg_style());
        ls_str_addf(out, "</style><rect width=\"100%%\" height=\"100%%\" style=\"fill:%s\"/>",
                    place == LS_SVG_PRINT ? "#fff" : "var(--paper)");
    }
    if (head.data) ls_str_addf(out, "<g transform=\"translate(%d %d)\">%s", edge, edge, head.data);
    if (head.data) ls_str_addf(out, "<g transform=\"translate(0 %d)\">", top);
    if (body.data) ls_str_addn(out, body.data, body.len);
    ls_str_add(out, head.data ? "</g></g></svg>\n" : "</svg>\n");
    if (body.failed || head.failed) out->failed = true;
    ls_str_fini(&body);
    ls_str_fini(&head);
}
