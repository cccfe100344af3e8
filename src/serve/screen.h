/* screen.h - a run as lines of text, for `lockstep watch`. */
#ifndef LS_SERVE_SCREEN_H
#define LS_SERVE_SCREEN_H

#include "core/str.h"
#include "serve/live_run.h"

typedef struct ls_screen {
    int columns, rows; /* no line is wider; rows: 0: as many as there are */
    bool blocks;       /* characters of Unicode, else ASCII */
} ls_screen;

/* Whether the locale can show characters of Unicode. */
bool ls_screen_unicode(void);

/* The loss of the steps from first to last as n columns in `rows` lines, after a blank one; a validation covers it. What is not
 * finite is not drawn; without any number nothing is written. */
void ls_screen_curve(const ls_screen *s, const double *loss, const double *val, int n, int64_t first, int64_t last,
                     int rows, ls_str *out);

/* The state, the last values, the curve of the loss, the ranks. Every line ends with '\n'. */
void ls_screen_draw(const ls_live_run *r, const ls_screen *s, ls_str *out);

#endif
