/* svg_bars.c - horizontal bars (one a category, or stacked segments) and the boxes of a pipeline step. */
#include "report/chart/svg_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

static void segment(const ls_chart *c, const svg_frame *f, int i, const ls_point *p, double from, double y, double h,
                    ls_str *out)
{
    char t[64];
    double a = svg_x(f, from), b = svg_x(f, from + p->y), left = fmin(a, b), w = fabs(b - a);
    ls_str_addf(out,
                "<g><rect class=\"box h%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\"/><title>",
                svg_hue(c, i), left, y, w, h);
    ls_xml_text(out, c->series[i].name);
    ls_str_addf(out, ": %s %s</title>", svg_value(t, c, p->y), c->unit ? c->unit : "");
    if (c->kind == LS_CHART_STACK && w > svg_text_width(t) + 4)
        svg_text(out, left + w / 2, y + h / 2 + 4, "middle", inside[svg_hue(c, i)], t);
    ls_str_add(out, "</g>");
}

static void value_text(const ls_chart *c, const ls_point *p, char *buf, size_t n)
{
    char v[64], h[64];
    if (isnan(p->hi)) snprintf(buf, n, "%s", svg_value(v, c, p->y));
    else snprintf(buf, n, "%s \xc2\xb1 %s", svg_value(v, c, p->y), svg_value(h, c, p->hi - p->y));
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
            value_text(c, p, t, sizeof t);
            if (isnan(p->lo) || isnan(p->hi)) continue;
            double a = svg_x(f, fmax(p->lo, f->x0)), b = svg_x(f, fmin(p->hi, f->x1)), m = y + h / 2;
            ls_str_addf(out, "<path class=\"bar95\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv8", a, m, b, a, m - 4);
            if (p->hi <= f->x1) ls_str_addf(out, "M%.1f %.1fv8", b, m - 4); /* an end outside has no cap */
            ls_str_add(out, "\"/>");
            end = fmax(end, b);
        }
    }
    if (c->kind == LS_CHART_STACK && c->unit && strcmp(c->unit, "%"))
        svg_value(t, c, plus + minus); /* shares sum to 100 */
    if (*t) svg_text(out, end + 7, y + h / 2 + 4, "start", "ink", t);
}

void svg_bars(const ls_chart *c, int width, ls_str *out, int *height)
{
    bool narrow = width < SVG_NARROW, stack = c->kind == LS_CHART_STACK;
    double longest = 0;
    for (int k = 0; k < c->n_category; k++) longest = fmax(longest, svg_text_width(c->category[k]));
    bool above = narrow || longest > 0.3 * width; /* names above their bars */
    double legend = stack ? svg_legend(c, 0, 0, width - 8, NULL) + 6 : 0, row = above ? 46 : 34, h = 20;
    svg_frame f = {.left = above ? 4 : longest + 14,
                   .right = width - (stack    ? 70
                                     : narrow ? 118
                                              : 130),
                   .top = 6 + legend};
    f.bottom = f.top + row * c->n_category;
    bar_range(c, &f);
    if (stack) svg_legend(c, 4, 14, width - 8, out);
    if (c->kind == LS_CHART_STACK || !narrow) svg_x_axis(c, &f, narrow ? 3 : 5, out);
    for (int k = 0; k < c->n_category; k++) {
        double y = f.top + k * row + (above ? 20 : (row - h) / 2);
        if (above) svg_fit_text(out, 4, y - 5, "ink", c->category[k], width - 8);
        else svg_text(out, f.left - 9, y + h / 2 + 4, "end", "ink", c->category[k]);
        draw_bar(c, &f, k, y, h, out);
    }
    double zero = svg_x(&f, 0);
    if (!above || f.x0 < 0) svg_line(out, "axis", zero, f.top, zero, f.bottom);
    *height = (int)f.bottom + (stack || !narrow ? 44 : 10);
}

void svg_gantt(const ls_chart *c, int width, ls_str *out, int *height)
{
    bool narrow = width < SVG_NARROW;
    double longest = 0, row = 30, h = 24, legend = svg_legend(c, 0, 0, width - 8, NULL) + 6;
    for (int k = 0; k < c->n_category; k++) longest = fmax(longest, svg_text_width(c->category[k]));
    svg_frame f = {.left = fmin(longest + 14, 0.25 * width), .right = width - 12, .top = 6 + legend};
    f.bottom = f.top + row * c->n_category;
    f.x0 = INFINITY, f.x1 = -INFINITY;
    for (int i = 0; i < c->n_series; i++)
        for (int k = 0; k < c->series[i].n; k++)
            f.x0 = fmin(f.x0, c->series[i].point[k].x), f.x1 = fmax(f.x1, c->series[i].point[k].y);
    if (!(f.x1 > f.x0)) f.x0 = isfinite(f.x0) ? f.x0 : 0, f.x1 = f.x0 + 1;
    svg_legend(c, 4, 14, width - 8, out);
    svg_x_axis(c, &f, narrow ? 3 : 6, out);
    for (int k = 0; k < c->n_category; k++)
        svg_fit_text(out, 4, f.top + k * row + 19, "ink", c->category[k], f.left - 8);
    for (int i = 0; i < c->n_series; i++) {
        for (int k = 0; k < c->series[i].n; k++) {
            const ls_point *p = &c->series[i].point[k];
            char a[64], b[64];
            double x = svg_x(&f, p->x), w = fmax(svg_x(&f, p->y) - x, 0.8), y = f.top + p->lane * row + (row - h) / 2;
            ls_str_addf(
                out,
                "<g><rect class=\"box h%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\"/><title>",
                svg_hue(c, i), x, y, w, h);
            ls_xml_text(out, c->series[i].name);
            ls_str_add(out, " ");
            ls_xml_text(out, p->label ? p->label : "");
            ls_str_addf(out, ": %s to %s %s</title>", svg_value(a, c, p->x), svg_value(b, c, p->y),
                        c->unit ? c->unit : "");
            if (p->label && *p->label && w > svg_text_width(p->label) + 2)
                svg_text(out, x + w / 2, y + h / 2 + 4, "middle", inside[svg_hue(c, i)], p->label);
            ls_str_add(out, "</g>");
        }
    }
    *height = (int)f.bottom + 44;
}
