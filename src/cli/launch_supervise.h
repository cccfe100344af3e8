/* launch_supervise.h - `lockstep launch --max_restarts`: starts a run on several hosts, or the command of another launcher, again (supervise.h).
 *
 * Hosts: after a failure every host is asked whether it answers. One that does not is lost: a spare host replaces it, else the run continues
 * with fewer workers (--elastic), else it is tried again. A lost host is asked every 15 s; when it answers, an elastic run grows again. */
#ifndef LS_CLI_LAUNCH_SUPERVISE_H
#define LS_CLI_LAUNCH_SUPERVISE_H

#include "comm/launch_hosts.h"

typedef struct launch_limits {
    int max_restarts;    /* -1: the default */
    const char *elastic; /* NULL: no */
} launch_limits;

/* all: every host, with its workers; its spares are not used at first. */
ls_status launch_supervise_hosts(ls_launch_plan *all, const launch_limits *m);
/* A command that has `lockstep train ...` in it. */
ls_status launch_supervise_command(const ls_argv *command, const launch_limits *m);

#endif
