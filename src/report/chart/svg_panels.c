/* svg_panels.c - many lines as small plots with equal axes, one per line.
 *
 *   name                 name
 *   last value           last value
 *   | __/                | _
 *   |/____ 1  2  4       |/ \\___ 1  2  4        each also has the other lines, in grey
 */
#include "report/chart/svg_impl.h"

#include <math.h>
#include <string.h>

enum { PLOT = 104, GAP = 18, AXIS = 24 };

/* The lines of the other panels, and the ideal one. */
static void context(const ls_chart *c, const svg_frame *f, int first, ls_str *out)
{
    for (int i = 0; i < c->n_series; i++) {
        const ls_series *s = &c->series[i];
        if (s->n < 2 || s->dots || s->beside || i == first) continue;
        ls_str_addf(out, "<path class=\"%s\" d=\"", s->ideal ? "ideal" : "context");
        for (int k = 0; k < s->n; k++)
            ls_str_addf(out, "%c%.1f %.1f", k ? 'L' : 'M', svg_x(f, s->point[k].x), svg_y(f, s->point[k].y));
        ls_str_add(out, "\"/>");
    }
}

/* Labels of the x axis: those of whole numbers if there are few, else both ends. */
static void x_labels(const ls_chart *c, const svg_frame *f, ls_str *out)
{
    double value[8];
    int n;
    char t[40];
    if (!ls_chart_ticks(c, value, &n) || n > 4) {
        const double step = ls_nice_step(f->x0, f->x1, 4);
        svg_tick(t, f->x0, step);
        svg_text(out, f->left, f->bottom + 16, "start", "soft", t);
        svg_tick(t, f->x1, step);
        svg_text(out, f->right, f->bottom + 16, "end", "soft", t);
        return;
    }
    for (int i = 0; i < n; i++)
        svg_text(out, svg_x(f, value[i]), f->bottom + 16, "middle", "soft", ls_number_text(t, value[i], 0));
}

static void y_labels(const svg_frame *f, bool text, ls_str *out)
{
    const double step = ls_nice_step(f->y0, f->y1, 4);
    const double from = ceil(f->y0 / step - 1e-9);
    for (int i = 0; i < 8 && (from + i) * step <= f->y1 + 1e-9 * step; i++) {
        char t[40];
        const double y = svg_y(f, (from + i) * step);
        svg_tick(t, (from + i) * step, step);
        svg_line(out, "grid", f->left, y, f->right, y);
        if (text) svg_text(out, f->left - 6, y + 4, "end", "soft", t);
    }
}

static void draw_panel(const ls_chart *c, const svg_frame *f, int first, bool labels, ls_str *out)
{
    y_labels(f, labels, out);
    x_labels(c, f, out);
    svg_line(out, "axis", f->left, f->bottom, f->right, f->bottom);
    context(c, f, first, out);
    for (int i = first; i < c->n_series; i++)
        if (ls_chart_in_panel(c, i, first)) svg_series(c, f, i, i == first ? 0 : 1, 0, out);
}

/* The name of a line and its last value, as the head of its panel; returns their height. out NULL: nothing is drawn. */
static double head(const ls_chart *c, const ls_series *s, double x, double y, double width, ls_str *out)
{
    char t[160];
    const int n = svg_lines(out, x, y + 12, "start", "ink", s->name, width);
    ls_str value = {0};
    ls_chart_value(c, &s->point[s->n - 1], t, sizeof t);
    ls_str_addf(&value, "%s%s%s", t, c->unit && strcmp(c->unit, "%") ? " " : "", c->unit ? c->unit : "");
    if (out) svg_text(out, x, y + 12 + SVG_LINE * n, "start", "soft", value.data ? value.data : "");
    ls_str_fini(&value);
    return SVG_LINE * (n + 1) + 6;
}

void svg_panels(const ls_chart *c, int width, ls_str *out, int *height)
{
    const int n = ls_chart_panels(c), cols = width < SVG_NARROW ? 2 : 4;
    const double left = 44, cell = (width - left - 8) / cols, wide = cell - GAP;
    svg_frame f = {0};
    double top = c->y_label ? 24 : 6;
    svg_range(c, &f);
    if (c->y_label) svg_text(out, 2, 14, "start", "soft", c->y_label);
    for (int row = 0; row * cols < n; row++) {
        double tallest = 0;
        for (int k = row * cols; k < n && k < (row + 1) * cols; k++)
            tallest = fmax(tallest, head(c, &c->series[ls_chart_panel_series(c, k)], 0, 0, wide, NULL));
        for (int k = row * cols; k < n && k < (row + 1) * cols; k++) {
            const int first = ls_chart_panel_series(c, k);
            f.left = left + (k - row * cols) * cell, f.right = f.left + wide;
            f.top = top + tallest, f.bottom = f.top + PLOT;
            head(c, &c->series[first], f.left, top, wide, out);
            draw_panel(c, &f, first, k == row * cols, out);
        }
        top += tallest + PLOT + AXIS + 10;
    }
    if (c->x_label) svg_text(out, left + (width - left) / 2, top + 10, "middle", "soft", c->x_label);
    *height = (int)top + 22;
}
