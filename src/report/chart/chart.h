/* chart.h - a chart as data, drawn as SVG (svg.c; on the page, light and dark, wide and narrow). PNG files are made of that SVG by
 * librsvg (draw.c). The content of a chart is decided once, in chart_sets.c.
 *
 *   LINES   x is a number, a series is a line; an ideal one is drawn dashed and unmarked. More lines than a reader can tell apart are drawn as
 *           panels: one small plot per line, with equal axes, with the other lines in grey
 *   BARS    one horizontal bar a category; lo and hi make an error bar
 *   STACK   a bar a category, a series a segment of each; negative segments are drawn to the left of zero
 *   GANTT   a lane a category, boxes from x to y on an axis that begins at 0; a series is a kind of box. Idle ones are hatched, and
 *           their labels are to the right of the lane
 */
#ifndef LS_REPORT_CHART_H
#define LS_REPORT_CHART_H

#include "core/err.h"
#include "core/str.h"

#include <stdbool.h>

typedef enum ls_chart_kind { LS_CHART_LINES, LS_CHART_BARS, LS_CHART_STACK, LS_CHART_GANTT } ls_chart_kind;

typedef struct ls_point {
    double x, y, lo,
        hi;   /* lo, hi: NaN when there is no interval. BARS, STACK: x is the category's index; GANTT: from x to y */
    int lane; /* GANTT */
    const char *label; /* GANTT; borrowed */
    int shade;         /* GANTT: 0 to 3, darker */
} ls_point;

typedef struct ls_series {
    char *name;
    ls_point *point;
    int n, cap;
    int hue;           /* 0 to 7, the colour; -1: by its place */
    bool ideal, dots;  /* dots: marks without a line (validation) */
    bool beside;       /* in the panel of the series before it; dots always are */
    bool idle;         /* GANTT: hatched, below the boxes of the series after it */
    const char *token; /* GANTT as text: before the labels of its boxes */
} ls_series;

typedef struct ls_chart {
    ls_chart_kind kind;
    const char *file, *title, *x_label, *y_label; /* file: name without ending */
    const char *unit;                             /* printed after values: "tokens/s", "%" */
    double scale;                                 /* values are multiplied by it when written, e.g. 1000 for ms */
    int decimals;
    bool zero;            /* the y axis of LINES begins at zero */
    double end;           /* GANTT: the axis ends here or later, so that charts with equal ends can be compared */
    const char *subtitle; /* is below the title, above the chart; NULL: only a PNG has its title above it */
    char *name;           /* owned: a title made of values; NULL: the title is a constant */
    ls_series *series;
    int n_series, cap_series;
    char **category;
    int n_category, cap_category;
    char left_out[400]; /* names of what is not drawn, as many as fit */
    int n_left_out, n_named;
    bool failed; /* memory ran out while it was filled */
} ls_chart;

/* Lines of a chart, and those of them that can share one plot. */
enum { LS_CHART_MAX_LINE = 24, LS_CHART_TOGETHER = 5 };

/* A chart of bars, segments or boxes without any yet. */
ls_chart ls_chart_bars(ls_chart_kind kind, const char *file, const char *title, const char *x, const char *unit,
                       double scale, int decimals);
/* NULL when memory is out (then failed is set). Names have any length: the renderers wrap them. */
ls_series *ls_chart_series(ls_chart *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ls_chart_point(ls_chart *c, ls_series *s, ls_point p); /* takes a NULL series; beyond 1e30 nothing is drawn */
int ls_chart_category(ls_chart *c, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* its index */
void ls_chart_leave_out(ls_chart *c, const char *name); /* listed below the chart */
int ls_chart_hue(const ls_chart *c, int series);        /* 0 to 7 */
int ls_chart_mark(int series);                          /* 0 to 3: with its colour no other line's */
/* True if x takes few whole values (numbers of workers): those are the ticks. */
bool ls_chart_ticks(const ls_chart *c, double value[8], int *n);
int ls_chart_panels(const ls_chart *c);                  /* their number; 0: all lines are in one plot */
int ls_chart_panel_series(const ls_chart *c, int panel); /* its first series */
bool ls_chart_in_panel(const ls_chart *c, int i,
                       int first); /* whether series i is in the panel that begins with `first` */
/* "1.49 ± 0.10", scaled */
void ls_chart_value(const ls_chart *c, const ls_point *p, char *buf, size_t n);
void ls_chart_fini(ls_chart *c);
bool ls_chart_empty(const ls_chart *c);

/* Where an SVG stands. PAGE: inside a page that has its style. FILE: alone, with its style, light and dark. PRINT: alone, with a
 * title and plain colours, for programs that know no variables of CSS. */
typedef enum ls_svg_place { LS_SVG_PAGE, LS_SVG_FILE, LS_SVG_PRINT } ls_svg_place;

/* Appends an <svg> of the given width in user units. Colours are classes (h0 .. h7, axis, grid, ink, soft). */
void ls_svg_draw(const ls_chart *c, int width, ls_svg_place place, ls_str *out);
/* Of a GANTT that gives its boxes room for their labels. */
int ls_gantt_width(const ls_chart *c);
/* A GANTT as text: one line per lane, one column per time unit (the shortest box, or a fraction of it): "F0 F1 .. B0 ==". Boxes without a
 * common unit are rounded to columns, and a line reports it. False, and nothing written, when a line would be longer than `width`, or
 * memory is out. */
bool ls_gantt_text(const ls_chart *c, int width, ls_str *out);
/* The rules those classes need, for a page. */
const char *ls_svg_style(void);
/* The character at p: its bytes, and NULL or the text to show in its place: "[U+202E]" for a control character and for those that reverse the text after
 * them, U+FFFD for a byte that is no UTF-8. */
int ls_char_shown(const char *p, char code[16], const char **shown);
void ls_xml_text(ls_str *out, const char *text); /* with &, <, > and " as entities */
/* Round steps that cover lo .. hi in about n parts. */
double ls_nice_step(double lo, double hi, int n);

/* The state of rsvg-convert: a chart that it cannot draw is written as SVG only, and the first failure is reported. */
typedef struct report_pen {
    bool there; /* asked for, and installed as far as is known */
    int n_png, n_failed;
    char words[400]; /* message of the first failure */
} report_pen;
ls_status report_write_text(const char *dir, const char *name, const ls_str *text);
/* <dir>/<file>.svg, and .png by way of a file that is removed again. An rsvg-convert that fails is no failure: the pen remembers it. */
ls_status report_write_chart(const ls_chart *c, const char *dir, report_pen *pen);
/* What rsvg-convert did not do, in one line without its end; nothing when all went well. */
void report_pen_words(const report_pen *pen, ls_str *out);

#endif
