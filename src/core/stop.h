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
ls_stop_mode ls_stop_set_mode(ls_stop_mode mode);
bool ls_stop_requested(void);
bool ls_stop_at_once(void);     /* the second one has come: do not save */
int ls_stop_signal(void);       /* the signal that came last, 0 when none did */
void ls_stop_raise(int signal); /* sets the flag as the signal would; 0 clears it (tests) */

/* While this is on, a process that was asked to stop and makes no progress (ls_deadline_tick) ends without saving: exit code 4. The time
 * is LS_STOP_LIMIT until ls_stop_expect has been told how long work may take. */
#define LS_STOP_LIMIT 120.0 /* seconds */
#define LS_STOP_LEAST 30.0
#define LS_STOP_SAVE  600.0
void ls_stop_bound(bool on);
void ls_stop_expect(double seconds); /* at least LS_STOP_LEAST; 0: LS_STOP_LIMIT */
void ls_stop_saving(void); /* the checkpoint is being written: LS_STOP_SAVE, since a slow disk may sync for long */

#endif
