/* report_impl.h - files of a report. */
#ifndef LS_REPORT_REPORT_IMPL_H
#define LS_REPORT_REPORT_IMPL_H

#include "report/chart/chart.h"

/* gnuplot, as far as it goes: a chart that it does not draw is an SVG file alone, and is said once. */
typedef struct report_pen {
    bool there; /* asked for, and installed as far as is known */
    int n_png, n_failed;
    char words[400]; /* of the first that failed */
} report_pen;

ls_status report_write_text(const char *dir, const char *name, const ls_str *text);
/* <dir>/<file>.svg, and .png by way of a script that is removed again. A gnuplot that fails is no failure: the pen remembers it. */
ls_status report_write_chart(const ls_chart *c, const char *dir, report_pen *pen);
/* What gnuplot did not do, in one line without its end; nothing when all went well. */
void report_pen_words(const report_pen *pen, ls_str *out);

#endif
