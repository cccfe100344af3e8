/* relay_impl.h - passes on what a child process prints, by whole lines, so that the lines of several do not mix. */
#ifndef LS_COMM_RELAY_IMPL_H
#define LS_COMM_RELAY_IMPL_H

#include "core/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct relay {
    int fd; /* read end of a pipe; -1: closed */
    FILE *to;
    char prefix[48]; /* in front of each line */
    char line[1024]; /* what has arrived of a line that has not ended */
    size_t n_line;
    bool midway;       /* a line longer than that is being passed on */
    bool closes;       /* a last line without an end gets one: lines of this program follow */
    const char *mark;  /* lines that begin with it are kept; NULL: none */
    bool shows_marked; /* ... and passed on, too */
    ls_str noted;      /* their text after the mark; ls_str_fini by who sets `mark` */
} relay;

void relay_end(relay *r); /* what is left of the last line; closes fd */
/* Reads once, without waiting for more: whether something came. At the end of the pipe: relay_end. */
bool relay_read(relay *r, char *buf, size_t room, size_t *got);

#endif
