/* Traced communicators with workers as threads, and clocks with an offset: on one host and on several (a fake transport). */
#include "cmocka_all.h"
#include "comm/clock_sync.h"
#include "comm/net_impl.h"
#include "comm_checks.h"
#include "core/fs.h"
#include "core/json.h"
#include "fake_transport.h"
#include "report/read/trace_read.h"
#include "test_folder.h"

#include <pthread.h>
#include <stdlib.h>

#define W 4

typedef struct worker {
    ls_local_world *world;
    fake_world *net; /* set: hosts joined by a fake transport */
    int rank;
    void (*body)(struct worker *w, ls_comm *c);
    wrong error; /* cmocka's asserts work only in the main thread */
} worker;

static char *dir;

static void *worker_main(void *arg)
{
    worker *w = arg;
    ls_comm *c = NULL;
    const ls_status st =
        w->net ? fake_open(w->net, w->rank, (size_t)64 << 20, &c) : ls_comm_local(w->world, w->rank, &c);
    CHECK(&w->error, st == LS_OK);
    if (c) w->body(w, c);
    ls_comm_destroy(&c);
    return NULL;
}

static void run(bool hosts, void (*body)(worker *, ls_comm *))
{
    fake_world net = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .size = W, .host = {0, 0, 1, 1}};
    ls_local_world *world = NULL;
    worker w[W];
    pthread_t thread[W];
    if (!hosts) assert_int_equal(ls_local_world_create(W, (size_t)64 << 20, &world), LS_OK);
    for (int r = 0; r < W; r++) {
        w[r] = (worker){.world = world, .net = hosts ? &net : NULL, .rank = r, .body = body};
        assert_int_equal(pthread_create(&thread[r], NULL, worker_main, &w[r]), 0);
    }
    for (int r = 0; r < W; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < W; r++)
        if (w[r].error.words[0]) fail_msg("rank %d: %s", r, w[r].error.words);
    ls_local_world_destroy(&world);
}

/* ---- lanes ---- */

enum { ROUNDS = 40, N = 20000 };

static void traced(worker *w, ls_comm *c)
{
    ls_trace *t = NULL;
    ls_lane *lane = NULL;
    ls_comm *half = NULL;
    float *x = ls_comm_alloc(c, N * sizeof *x);
    CHECK(&w->error, x && ls_barrier(c, LS_SITE) == LS_OK); /* the thread of the lane exists before the trace */
    CHECK(&w->error, ls_comm_split(c, w->rank / 2, w->rank, &half) == LS_OK);
    CHECK(&w->error, ls_trace_create(&t, w->rank) == LS_OK && ls_trace_lane(t, "main", 1000, &lane) == LS_OK);
    CHECK(&w->error, ls_comm_trace(c, t, "all") == LS_OK && ls_comm_trace(half, t, "half") == LS_OK);
    if (w->error.words[0]) return;
    ls_trace_enter(lane);
    for (int k = 0; k < ROUNDS; k++) {
        ls_ticket a = 0, b = 0;
        const int64_t t0 = ls_span_begin();
        ls_comm_label(c, k % 3);
        CHECK(&w->error, ls_all_reduce(c, (ls_view){x, N, LS_F32}, LS_SITE, &a) == LS_OK);
        ls_comm_label(c, 0);
        CHECK(&w->error, (w->rank % 2 ? ls_recv(half, (ls_view){&b, 1, LS_I64}, 0, LS_SITE, NULL)
                                      : ls_send(half, (ls_view){&b, 1, LS_I64}, 1, LS_SITE, NULL)) == LS_OK);
        CHECK(&w->error, ls_wait(c, a) == LS_OK);
        ls_span_end(t0, (ls_trace_span){.kind = LS_SPAN_STEP, .name = "step", .index = k + 1});
    }
    ls_trace_enter(NULL);
    CHECK(&w->error, ls_comm_trace(c, NULL, NULL) == LS_OK && ls_comm_trace(half, NULL, NULL) == LS_OK);
    CHECK(&w->error, ls_trace_write(t, dir, "host") == LS_OK);
    ls_trace_destroy(&t);
    CHECK(&w->error, ls_barrier(half, LS_SITE) == LS_OK && ls_barrier(c, LS_SITE) == LS_OK); /* no longer traced */
    if (w->rank == 0) CHECK(&w->error, ls_trace_merge(dir, W) == LS_OK);
    ls_comm_destroy(&half);
}

static const trace_row *find(const trace_table *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->row[i].name, name)) return &t->row[i];
    return NULL;
}

static void every_collective_appears_in_the_trace(void **state)
{
    (void)state;
    for (int hosts = 0; hosts < 2; hosts++) {
        char path[256];
        trace_facts f = {0};
        dir = test_dir();
        run(hosts, traced);
        snprintf(path, sizeof path, "%s/trace.json", dir);
        assert_int_equal(trace_read(path, &f), LS_OK);
        assert_int_equal(f.n_rank, W);
        const trace_row *sum = find(&f.table[TRACE_COLL], "all_reduce"), *send = find(&f.table[TRACE_COLL], "send"),
                        *recv = find(&f.table[TRACE_COLL], "recv");
        assert_true(sum && sum->calls == W * ROUNDS && sum->bytes > 0);
        assert_true(send && send->calls == W / 2 * ROUNDS && recv && recv->calls == W / 2 * ROUNDS);
        assert_null(find(&f.table[TRACE_COLL], "barrier")); /* barriers were called only before and after tracing */
        for (int r = 0; r < W; r++) assert_int_equal(f.rank[r].steps, ROUNDS);
        trace_facts_fini(&f);
        test_dir_close(dir);
    }
}

/* ---- clocks ---- */

#define SECOND INT64_C(1000000000)

/* Ranks 2 and 3 have a clock that is 5 s ahead. */
static int64_t shifted(void *ctx)
{
    return ls_trace_now() + *(int64_t *)ctx;
}

static void two_clocks(worker *w, ls_comm *c)
{
    int64_t ahead = w->rank < 2 ? 0 : 5 * SECOND;
    const ls_clock clock = {.id = w->rank < 2 ? 7 : -8, .now = shifted, .ctx = &ahead};
    ls_clock_fix fix = {.known = 9};
    for (int k = 0; k < 2; k++) {
        CHECK(&w->error, ls_comm_clock(c, &clock, &fix) == LS_OK);
        CHECK(&w->error, fix.known == (w->rank >= 2));
        const int64_t off = fix.offset - ahead;
        CHECK(&w->error, off >= -fix.error && off <= fix.error); /* the reported error is a bound */
        CHECK(&w->error, w->rank < 2 ? fix.error == 0 : fix.error > 0 && fix.at > 5 * SECOND);
    }
}

static void one_clock(worker *w, ls_comm *c)
{
    const ls_clock clock = ls_clock_monotonic();
    ls_clock_fix fix = {.known = 9};
    const ls_comm_stat before = ls_comm_stats(c, LS_COLL_SEND);
    CHECK(&w->error, ls_comm_clock(c, &clock, &fix) == LS_OK);
    CHECK(&w->error, !fix.known && !fix.offset && !fix.error);
    CHECK(&w->error, ls_comm_stats(c, LS_COLL_SEND).calls == before.calls); /* no message is sent */
}

static void clock_offsets_are_within_their_error(void **state)
{
    (void)state;
    for (int hosts = 0; hosts < 2; hosts++) {
        run(hosts, two_clocks);
        run(hosts, one_clock);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_collective_appears_in_the_trace),
                                       cmocka_unit_test(clock_offsets_are_within_their_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
