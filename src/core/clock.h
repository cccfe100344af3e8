/* clock.h - time for measuring, time for people. */
#ifndef LS_CORE_CLOCK_H
#define LS_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

double ls_now(void);               /* seconds, monotonic                         */
double ls_cpu_seconds(void);       /* user + system time of this process         */
void ls_wall(struct timespec *t);  /* the system's clock, which may jump          */
int64_t ls_unix_ms(void);          /* the same clock, milliseconds since 1970     */
void ls_wall_move(double seconds); /* makes it jump, for drills (core/inject.h) */
void ls_utc_stamp(char buf[24]);   /* 2026-01-28T01:23:44Z                       */
void ls_utc_compact(char buf[24]); /* 20260128T012344Z                           */

/* How long a loop that looks often has waited (several looks per second). Time in which this process itself did not run does not count: a run that was
 * stopped as a whole (Ctrl-Z, a suspended job, a frozen container) has not lost a worker. Between two looks at most LS_WAIT_GAP counts. */
#define LS_WAIT_GAP 1.0
typedef struct ls_waiting {
    double seen, waited;
} ls_waiting;
ls_waiting ls_waiting_begin(void);
double ls_waiting_look(ls_waiting *w); /* seconds so far */

#endif
