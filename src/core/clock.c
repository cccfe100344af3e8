#include "core/clock.h"

#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

static _Atomic double moved; /* seconds */

double ls_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

ls_waiting ls_waiting_begin(void)
{
    return (ls_waiting){.seen = ls_now()};
}

double ls_waiting_look(ls_waiting *w)
{
    const double now = ls_now(), gap = now - w->seen;
    w->seen = now;
    return w->waited += gap < LS_WAIT_GAP ? gap : LS_WAIT_GAP;
}

double ls_cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

void ls_wall(struct timespec *t)
{
    clock_gettime(CLOCK_REALTIME, t);
    t->tv_sec += (time_t)atomic_load(&moved);
}

int64_t ls_unix_ms(void)
{
    struct timespec now;
    ls_wall(&now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void ls_wall_move(double seconds)
{
    atomic_store(&moved, atomic_load(&moved) + seconds);
}

static void stamp(char buf[24], const char *fmt)
{
    struct timespec now;
    struct tm tm;
    ls_wall(&now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(buf, 24, fmt, &tm);
}

void ls_utc_stamp(char buf[24])
{
    stamp(buf, "%Y-%m-%dT%H:%M:%SZ");
}
void ls_utc_compact(char buf[24])
{
    stamp(buf, "%Y%m%dT%H%M%SZ");
}
