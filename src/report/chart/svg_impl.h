/* svg_impl.h - what the SVG renderers of lines, bars (svg.c) and panels (svg_panels.c) share. Coordinates are user units, y down. */
#ifndef LS_REPORT_SVG_IMPL_H
#define LS_REPORT_SVG_IMPL_H

#include "report/chart/chart.h"

enum {
    SVG_NARROW = 480, /* below this width labels go above bars and legends below titles */
    SVG_LINE = 16     /* height of a line of text */
};

typedef struct svg_frame { /* where data lies on the page */
    double left, right, top, bottom, x0, x1, y0, y1;
} svg_frame;

double svg_x(const svg_frame *f, double x);
double svg_y(const svg_frame *f, double y);
double svg_text_width(const char *text);
void svg_text(ls_str *out, double x, double y, const char *anchor, const char *cls, const char *text);
void svg_line(ls_str *out, const char *cls, double x1, double y1, double x2, double y2);
/* A text in lines of at most `width`, the first at y; returns their number. A name is wrapped, never cut. out NULL: nothing is drawn. */
int svg_lines(ls_str *out, double x, double y, const char *anchor, const char *cls, const char *text, double width);
void svg_tick(char buf[40], double x, double step);
void svg_range(const ls_chart *c, svg_frame *f); /* of the data, for lines */
void svg_series(const ls_chart *c, const svg_frame *f, int i, int hue, int mark, ls_str *out);
void svg_panels(const ls_chart *c, int width, ls_str *out, int *height);

#endif
