/* report_impl.h - files of a report. */
#ifndef LS_REPORT_REPORT_IMPL_H
#define LS_REPORT_REPORT_IMPL_H

#include "report/chart/chart.h"

/* The state of gnuplot: a chart that it cannot draw is written as SVG only, and the first failure is reported. */
typedef struct report_pen {
    bool there; /* asked for, and installed as far as is known */
    int n_png, n_failed;
    char words[400]; /* message of the first failure */
} report_pen;

ls_status report_write_text(const char *dir, const char *name, const ls_str *text);
/* <dir>/<file>.svg, and .png by way of a script that is removed again. A gnuplot that fails is no failure: the pen remembers it. */
ls_status report_write_chart(const ls_chart *c, const char *dir, report_pen *pen);
/* What gnuplot did not do, in one line without its end; nothing when all went well. */
void report_pen_words(const report_pen *pen, ls_str *out);

#endif
