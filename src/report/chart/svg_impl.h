/* svg_impl.h - shared by the files that draw SVG. Coordinates are user units, y down; fonts are 13 units. */
#ifndef LS_REPORT_SVG_IMPL_H
#define LS_REPORT_SVG_IMPL_H

#include "report/chart/chart.h"

enum { SVG_NARROW = 480 }; /* below this width labels go above bars and legends below titles */

typedef struct svg_frame { /* where data lies on the page */
    double left, right, top, bottom, x0, x1, y0, y1;
} svg_frame;

double svg_x(const svg_frame *f, double x);
double svg_text_width(const char *text); /* about */
/* anchor: "start", "middle", "end"; cls: "ink" or "soft" */
void svg_text(ls_str *out, double x, double y, const char *anchor, const char *cls, const char *text);
void svg_fit_text(ls_str *out, double x, double y, const char *cls, const char *text,
                  double width); /* cut with an ellipsis */
void svg_line(ls_str *out, const char *cls, double x1, double y1, double x2, double y2);
void svg_x_axis(const ls_chart *c, const svg_frame *f, int n_tick, ls_str *out);
/* One row of marks and names per line; returns its height. out NULL: nothing is drawn. */
double svg_legend(const ls_chart *c, double x, double y, double width, ls_str *out);
int svg_hue(const ls_chart *c, int series);
char *svg_value(char buf[64], const ls_chart *c, double v); /* scaled, with decimals, without unit */

void svg_bars(const ls_chart *c, int width, ls_str *out, int *height); /* BARS and STACK */
void svg_gantt(const ls_chart *c, int width, ls_str *out, int *height);

#endif
