/* gantt.h - a timeline: bars in lanes, over one axis of time, independent of what the bars mean.
 *
 * The SVG stands alone: styles inside, light and dark by the viewer's preference, a tooltip a bar, no scripts. Idle
 * time is hatched. */
#ifndef LS_REPORT_GANTT_H
#define LS_REPORT_GANTT_H

#include "core/str.h"

#include <stdbool.h>

#define LS_GANTT_MAX_KIND 4

typedef struct ls_gantt_row {
    int lane, kind, shade; /* shade 0, 1, 2 …: darker, in turns of four */
    double begin, end;
    char label[16]; /* inside the bar where there is room */
} ls_gantt_row;

typedef struct ls_gantt_kind {
    const char *token, *words; /* "F", "forward" */
} ls_gantt_kind;

typedef struct ls_gantt {
    const char *title, *subtitle;
    const char *axis; /* what time is counted in */
    double end;
    int n_lane, n_kind, n_row;
    const char *const *lane; /* names; NULL: numbers */
    const char *const *note; /* at the end of each lane; NULL: none */
    ls_gantt_kind kind[LS_GANTT_MAX_KIND];
    const ls_gantt_row *row; /* any order; bars of a lane do not overlap */
} ls_gantt;

void ls_gantt_svg(const ls_gantt *g, ls_str *out);

/* One line per lane, one column per time unit (the shortest bar, or a fraction of it): "F0 F1 .. B0 ==". Bars without a
 * common unit are rounded to columns, and a line reports it. False, and nothing written, when a line would be longer
 * than `width`, or memory is out. */
bool ls_gantt_text(const ls_gantt *g, int width, ls_str *out);

#endif
