/* screen.h - a run as lines of text, for `lockstep watch`. */
#ifndef LS_SERVE_SCREEN_H
#define LS_SERVE_SCREEN_H

#include "core/str.h"
#include "serve/live_run.h"

typedef struct ls_screen {
    int columns, rows; /* no line is wider; rows: 0: as many as there are */
    bool blocks;       /* characters of Unicode, else ASCII */
} ls_screen;

/* The state, the last values, the curve of the loss, the ranks. Every line ends with '\n'. */
void ls_screen_draw(const ls_live_run *r, const ls_screen *s, ls_str *out);

#endif
