/* progress.h - the status line of long work, and what is printed above it.
 *
 *   terminal   one line, rewritten in place at most about 10 times per second. It is never wider than the terminal: the fields with the
 *              highest `drop` are left out first. What is printed through this file appears above it. In the background it is not drawn.
 *   worker     of `-n`: its stderr is a pipe to the parent, which draws. The status travels through the pipe, marked by its first byte.
 *   otherwise  plain lines with all fields, without carriage returns and colours: the first, those of steps 1, 2, 5, 10, 20, 50 ..., and
 *              one when 2 % of the time so far have passed since the last, but at least 10 s and at most 60 s.
 *
 * Without ls_progress_open everything is plain. One thread shows; any thread may print. */
#ifndef LS_CORE_PROGRESS_H
#define LS_CORE_PROGRESS_H

#include "core/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define LS_PROGRESS_FIELDS 12
#define LS_PROGRESS_MARK   '\036' /* first byte of a worker's status in its stderr */

typedef struct ls_progress_line { /* zeroed: empty */
    int n;
    struct {
        int drop; /* 0: never left out */
        char text[64];
    } field[LS_PROGRESS_FIELDS];
} ls_progress_line;

typedef enum ls_colour { LS_COLOUR_NONE, LS_COLOUR_EVENT, LS_COLOUR_WARNING, LS_COLOUR_ERROR } ls_colour;

/* Finds out whether stderr is a terminal that can show a status line (TERM is set and not "dumb"), and whether it gets colours (NO_COLOR
 * is not set). */
void ls_progress_open(void);
bool ls_progress_live(void); /* a status line is shown, here or by the parent */
/* In a forked worker whose stderr is now a pipe to its parent. */
void ls_progress_become_worker(void);
/* In the parent: the n bytes of a line that a worker wrote. Whether it was a status, which is shown. */
bool ls_progress_take(const char *line, size_t n);

void ls_progress_add(ls_progress_line *l, int drop, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Whether it is time to show; step 0: by time alone. Cheap, for every step. */
bool ls_progress_due(int64_t step);
void ls_progress_show(const ls_progress_line *l);
/* The end of the work: the line is erased, or kept as a line of its own. */
void ls_progress_end(bool keep);

/* Prints whole lines above the status line; on a terminal, stderr is wrapped at blanks. */
void ls_progress_print(FILE *to, ls_colour colour, const char *text);
void ls_progress_say(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* the same, on stderr */
/* Between the two, this thread may print by other means. They nest. */
void ls_progress_pause(void);
void ls_progress_resume(void);
/* Erases the line for good; for signal handlers and for a process that ends at once. */
void ls_progress_erase_now(void);

/* The fields that fit into `columns`, joined by two blanks; cut if even those that are never left out do not fit. Returns the length. */
size_t ls_progress_layout(const ls_progress_line *l, int columns, char *out, size_t room);
/* Columns of the terminal that the descriptor is; 0: it is none. */
int ls_terminal_columns(int fd);
/* Appends `text` with every line wrapped at `columns`; rows after the first of a line are indented. */
void ls_progress_wrap(const char *text, int columns, ls_str *out);

#endif
