/* clock_sync.h - how far the clocks of several hosts are apart, so that a trace of all workers has one.
 *
 *   rank 0           t0 ──────►            ──────► t1          the first worker of every other clock, one after the other,
 *   worker r              t = now, back                        LS_CLOCK_ROUNDS times; the round with the shortest way counts
 *
 *   offset = t - (t0 + t1) / 2        error = (t1 - t0) / 2    The true offset is within offset +- error, whatever the network did: t
 *                                                              was read between t0 and t1. Ways of equal length make it exact.
 *
 * Workers of one kernel have one CLOCK_MONOTONIC, and workers with the same clock are not asked twice. */
#ifndef LS_COMM_CLOCK_SYNC_H
#define LS_COMM_CLOCK_SYNC_H

#include "comm/comm.h"

#define LS_CLOCK_ROUNDS 16

typedef struct ls_clock {
    int64_t id;                /* equal where the clocks are one                 */
    int64_t (*now)(void *ctx); /* nanoseconds                                    */
    void *ctx;
} ls_clock;

typedef struct ls_clock_fix { /* nanoseconds */
    int64_t known;            /* 0: this clock is rank 0's, and the rest is 0    */
    int64_t at;               /* moment of this clock                            */
    int64_t offset, error;    /* ahead of rank 0's by, give or take              */
} ls_clock_fix;

/* The monotonic clock. Identifier of this host's clock: boot id and time namespace. */
ls_clock ls_clock_monotonic(void);

/* Collective over c. LS_E_COMM, LS_E_NOMEM. */
ls_status ls_comm_clock(ls_comm *c, const ls_clock *clock, ls_clock_fix *out);

#endif
