#include "comm/clock_sync.h"
#include "comm/comm_impl.h"

#include "core/hash.h"
#include "core/mem.h"

#include <stdio.h>
#include <unistd.h>

static int64_t monotonic(void *ctx)
{
    (void)ctx;
    return ls_trace_now();
}

ls_clock ls_clock_monotonic(void)
{
    char text[256], kernel[80], ns[64] = "";
    comm_kernel_id(kernel, sizeof kernel);
    const ssize_t k = readlink("/proc/self/ns/time", ns, sizeof ns - 1);
    const int len = snprintf(text, sizeof text, "%s %.*s", kernel, k > 0 ? (int)k : 0, ns);
    return (ls_clock){.id = (int64_t)ls_xxh64(text, (size_t)len), .now = monotonic};
}

enum { FIX = sizeof(ls_clock_fix) / sizeof(int64_t) };

/* Rank 0 asks worker r. */
static ls_status ask(ls_comm *c, const ls_clock *clock, int r, ls_clock_fix *out)
{
    int64_t best = INT64_MAX;
    for (int k = 0; k < LS_CLOCK_ROUNDS; k++) {
        int64_t t = 0, t0 = clock->now(clock->ctx);
        LS_TRY(ls_send(c, (ls_view){&t0, 1, LS_I64}, r, LS_SITE, NULL));
        LS_TRY(ls_recv(c, (ls_view){&t, 1, LS_I64}, r, LS_SITE, NULL));
        const int64_t t1 = clock->now(clock->ctx);
        if (t1 - t0 >= best) continue;
        best = t1 - t0;
        *out = (ls_clock_fix){.known = 1, .at = t, .offset = t - (t0 + best / 2), .error = (best + 1) / 2};
    }
    return LS_OK;
}

static ls_status answer(ls_comm *c, const ls_clock *clock)
{
    for (int k = 0; k < LS_CLOCK_ROUNDS; k++) {
        int64_t t = 0;
        LS_TRY(ls_recv(c, (ls_view){&t, 1, LS_I64}, 0, LS_SITE, NULL));
        t = clock->now(clock->ctx);
        LS_TRY(ls_send(c, (ls_view){&t, 1, LS_I64}, 0, LS_SITE, NULL));
    }
    return LS_OK;
}

/* The lowest rank with this clock. */
static int first_with(const int64_t *id, int r)
{
    int f = 0;
    while (id[f] != id[r]) f++;
    return f;
}

ls_status ls_comm_clock(ls_comm *c, const ls_clock *clock, ls_clock_fix *out)
{
    const int size = ls_comm_size(c), rank = ls_comm_rank(c);
    int64_t *id = NULL;
    ls_clock_fix *fix = ls_comm_alloc(c, (size_t)size * sizeof *fix);
    if (!fix) return ls_nomem((size_t)size * sizeof *fix, "the clocks of all workers");
    LS_TRY(ls_comm_gather(c, &clock->id, sizeof clock->id, LS_SITE, &id));
    for (int r = 1; r < size; r++) {
        if (first_with(id, r) != r) continue; /* rank 0's own, or asked already */
        if (rank == 0) LS_TRY(ask(c, clock, r, &fix[r]));
        if (rank == r) LS_TRY(answer(c, clock));
    }
    LS_TRY(ls_broadcast(c, (ls_view){fix, (int64_t)size * FIX, LS_I64}, 0, LS_SITE, NULL));
    *out = fix[first_with(id, rank)];
    return LS_OK;
}
