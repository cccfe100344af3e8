/* deadline.h - the last resort: a process that does not return from a call in time is ended, whatever its threads are doing.
 *
 * A thread of its own looks at what is armed. It blocks all signals, takes no lock of other modules and allocates nothing, so that a
 * main thread that is stuck in a driver or a library does not matter. When a limit is over it writes one line to stderr (who, what,
 * for how long), the stacks of the process's threads (core/stack.h) and calls _exit. The earliest limit wins. Time in which the
 * process was stopped (SIGSTOP) does not count. */
#ifndef LS_CORE_DEADLINE_H
#define LS_CORE_DEADLINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A prefix of every line: "rank 3". Default: nothing. */
void ls_deadline_name(const char *name);

/* From now on the process has `seconds` until ls_deadline_disarm; then it ends with `exit_code`. The message says what did not return:
 * "closing the communicators". It is formatted here and cut at 280 bytes. Returns an id for ls_deadline_disarm; -1: not armed
 * (32 are, or there is no thread). Limits that are armed stay as they are: an outer, shorter one fires first. */
int ls_deadline_arm(double seconds, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ls_deadline_disarm(int id); /* -1: nothing */

/* Ends the process with `exit_code` when *flag has been positive for `seconds`; `words` (may be NULL) are printed with it. Both may be
 * in shared memory; they are read until ls_deadline_unwatch. One flag per process and address. */
void ls_deadline_watch(const _Atomic int *flag, const char *words, double seconds, int exit_code);
void ls_deadline_unwatch(const _Atomic int *flag);

/* Ends the process with `exit_code` when `seconds` pass without an ls_deadline_tick. For signal handlers: nothing but atomic stores and
 * a futex call. The thread must run: ls_deadline_start. 0 seconds: no limit any more. */
void ls_deadline_stall(double seconds, int exit_code, const char *text); /* text: static */
double ls_deadline_stall_seconds(void);                                  /* 0: none */
void ls_deadline_start(void);

/* The process is getting on: a part of a file is written, a layer is computed, a message has come. */
extern _Atomic uint64_t ls_deadline_ticks;
static inline void ls_deadline_tick(void)
{
    atomic_fetch_add_explicit(&ls_deadline_ticks, 1, memory_order_relaxed);
}
/* While it is on (calls nest), a process without ticks is not reported as hanging: for calls without a time limit, such as a write to a slow disk. */
void ls_deadline_hold(bool on);

#endif
