/* stop.h - SIGTERM and SIGINT: the first one asks for an orderly end, the second one ends the process at once.
 *
 * A signal that comes within half a second of the first one is the same request: launchers, `timeout` and terminals send it to a process
 * and to its group. */
#ifndef LS_CORE_STOP_H
#define LS_CORE_STOP_H

#include <stdbool.h>

typedef enum ls_stop_mode {
    LS_STOP_ASK, /* the first one sets the flag, the second one ends the process: exit code 143, or 130 for SIGINT */
    LS_STOP_NOW, /* nothing to save: the first one ends the process, with the same exit codes                   */
    LS_STOP_NOW_QUIET, /* without a line on stderr: another worker prints it */
    LS_STOP_PARENT     /* sets the flags only: this process ends its children first (ls_stop_at_once)              */
} ls_stop_mode;

void ls_stop_install(void); /* from now on the signals are handled here, in the mode LS_STOP_ASK */
/* LS_STOP_NOW (and _QUIET) ends the process here when a signal has come already. Returns the mode before. */
ls_stop_mode ls_stop_set_mode(ls_stop_mode to);
/* A process that LS_STOP_NOW (or _QUIET) ends leaves the signal there: memory that its parent sees. */
void ls_stop_note(_Atomic int *at);
bool ls_stop_requested(void);
bool ls_stop_at_once(void);     /* the second one has come: do not save */
int ls_stop_signal(void);       /* the signal that came last, 0 when none did */
void ls_stop_raise(int signal); /* sets the flag as the signal would; 0 clears it (tests) */

/* The exit code of LS_E_STOPPED: 143, or 130 when SIGINT ended the run without saving: the second one, or the workers of this process (which
 * have ended with `code`). */
int ls_stop_exit_code(void);
void ls_stop_ended_with(int code);

/* What ends a process that makes no progress (ls_deadline_tick), without saving and with exit code 4. */
typedef enum ls_stop_bound {
    LS_BOUND_OFF,
    LS_BOUND_STOP, /* after it was asked to stop: in the time that ls_stop_expect has said        */
    LS_BOUND_RUN   /* also before: in that time and 10 s more, so that a wait can report it first */
} ls_stop_bound;
void ls_stop_set_bound(ls_stop_bound b);

/* Seconds that a part of the work may take (the limit of a collective); LS_STOP_LEAST when it is less. 0: no limit but after a stop. Until
 * this is called it is LS_STOP_LIMIT after a stop and LS_RUN_LIMIT before one. */
#define LS_STOP_LIMIT 120.0
#define LS_RUN_LIMIT  600.0
#define LS_STOP_LEAST 30.0
#define LS_STOP_SAVE  600.0
void ls_stop_expect(double seconds);
/* The last checkpoint is being written: LS_STOP_SAVE, since others may sync slow disks for long. */
void ls_stop_saving(void);

#endif
