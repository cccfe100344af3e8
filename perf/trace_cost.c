/* trace_cost.c - cost of one span in nanoseconds, on an untraced and on a traced thread. Best of several rounds, in CPU time. */
#include "core/clock.h"
#include "core/trace.h"

#include <stdio.h>

enum { N = 1000000, ROUNDS = 9 };

static double round_ns(void)
{
    const double begin = ls_cpu_seconds();
    for (int i = 0; i < N; i++) {
        const int64_t t0 = ls_span_begin();
        __asm__ volatile("" ::: "memory"); /* the work that stands here */
        ls_span_end(t0, (ls_trace_span){.kind = LS_SPAN_FWD, .name = "h", .index = i});
    }
    return (ls_cpu_seconds() - begin) / N * 1e9;
}

static double best(void)
{
    double ns = round_ns();
    for (int k = 1; k < ROUNDS; k++) {
        const double again = round_ns();
        ns = again < ns ? again : ns;
    }
    return ns;
}

int main(void)
{
    ls_trace *t = NULL;
    ls_lane *lane = NULL;
    const double off = best();
    if (ls_trace_create(&t, 0) != LS_OK || ls_trace_lane(t, "main", 131072, &lane) != LS_OK) return 1;
    ls_trace_enter(lane);
    printf("a span costs %.2f ns off, %.1f ns on\n", off, best());
    ls_trace_enter(NULL);
    ls_trace_destroy(&t);
    return 0;
}
