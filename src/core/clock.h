/* clock.h - time for measuring, time for people. */
#ifndef LS_CORE_CLOCK_H
#define LS_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

double ls_now(void);               /* seconds, monotonic                         */
double ls_cpu_seconds(void);       /* user + system time of this process         */
void ls_wall(struct timespec *t);  /* the system's clock, which may jump          */
void ls_wall_move(double seconds); /* makes it jump, for drills (core/inject.h) */
void ls_utc_stamp(char buf[24]);   /* 2026-01-28T01:23:44Z                       */
void ls_utc_compact(char buf[24]); /* 20260128T012344Z                           */

#endif
