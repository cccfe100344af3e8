/* The measurements of `bench comm`: rows of every collective on host memory, on device memory staged through the host, and over NCCL (the plugin with
 * the fake library of tests/fake_nccl): sizes, counts, in place and out of place, bandwidths. Results are checked element by element: a communicator
 * that moves no data is detected.
 * ls-test: serial */
/* ls-test: long */
#include "bench/comm_bench.h"
#include "comm/start.h"
#include "core/stack.h"
#include "device_team.h"

#include <math.h>

static enum { HOST, STAGED, NCCL, NCCL_TREE } how;

typedef struct rows {
    ls_comm_bench_row row[64];
    int n;
} rows;

static rows seen; /* by rank 0 */

static void note(void *ctx, const ls_comm_bench_row *r)
{
    rows *all = ctx;
    if (all->n < 64) all->row[all->n++] = *r;
}

static void bench(worker *w, ls_comm *c, const ls_device *dev)
{
    ls_comm_bench b = {
        .dev = dev, .min_bytes = 20, .max_bytes = 40000, .factor = 50, .rounds = 2, .row = note, .ctx = &seen};
    CHECK(&w->error, ls_comm_bench_kinds(dev ? "" : "all_reduce,reduce_scatter,all_gather,broadcast,reduce,sendrecv",
                                         &b.kinds) == LS_OK);
    CHECK(&w->error, ls_comm_bench_run(c, &b) == LS_OK);
    const ls_comm_stat s =
        ls_comm_stats(c, LS_COLL_ALL_REDUCE); /* of floats; the bandwidth counts only requests that were timed */
    CHECK(&w->error, s.payload == 4 * s.elements && s.elements > 0);
    CHECK(&w->error, s.timed > 0 && s.timed <= s.payload && s.busy > 0 && (dev || s.timed == s.payload));
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    ls_comm *boot = NULL, *c = NULL;
    device_double *d = double_open((uint64_t)w->rank + 5);
    d->index = w->rank;
    CHECK(&w->error, worker_host(w, &boot) == LS_OK);
    if (how == STAGED) CHECK(&w->error, ls_comm_staged(boot, &d->table, &c) == LS_OK);
    else if (how != HOST)
        CHECK(&w->error, ls_comm_for_device(boot, &d->table, "nccl", how == NCCL_TREE, &c, NULL) == LS_OK);
    if (how == HOST) bench(w, boot, NULL);
    else if (c) bench(w, c, &d->table);
    if (c) ls_comm_destroy(&c);
    else ls_comm_destroy(&boot);
    if (!w->error.words[0]) CHECK(&w->error, d->n_pinned == 0);
    for (int i = 0; i < DOUBLE_BLOCKS && !w->error.words[0]; i++)
        CHECK(&w->error, !d->block[i].p); /* all memory is released */
    double_close(d);
    return NULL;
}

static const ls_comm_bench_row *find(ls_coll kind, int nth)
{
    for (int i = 0; i < seen.n; i++)
        if (seen.row[i].kind == kind && nth-- == 0) return &seen.row[i];
    fail_msg("no row of %s", ls_comm_bench_word(kind));
    return NULL;
}

static void check_side(const ls_comm_bench_row *r, int side, double factor)
{
    const ls_comm_bench_side *s = &r->side[side];
    assert_true(s->measured);
    assert_true(s->time.mean > 0);
    assert_int_equal(s->wrong, 0);
    assert_true(fabs(s->algbw * s->time.mean - (double)r->nbytes) < 1e-6 * (double)r->nbytes);
    assert_true(fabs(s->busbw - factor * s->algbw) <= 1e-9 * s->algbw);
}

/* Two sizes of six kinds; the smallest is rounded up to one element per worker. */
static void check_rows(int W)
{
    static const struct {
        ls_coll kind;
        bool out, in, cut, sums;
        int root;
    } want[] = {
        {LS_COLL_ALL_REDUCE, false, true, false, true, -1}, {LS_COLL_REDUCE_SCATTER, true, true, true, true, -1},
        {LS_COLL_ALL_GATHER, true, true, true, false, -1},  {LS_COLL_BROADCAST, false, true, false, false, 0},
        {LS_COLL_REDUCE, false, true, false, true, 0},      {LS_BENCH_SENDRECV, true, false, false, false, -1},
    };
    assert_int_equal(seen.n, 6 * 2);
    for (size_t i = 0; i < N_OF(want); i++) {
        for (int size = 0; size < 2; size++) {
            const ls_comm_bench_row *r = find(want[i].kind, size);
            const int64_t unit = 4 * W, least = size ? 1000 : 20, n = (least + unit - 1) / unit * W;
            const double factor = r->kind == LS_COLL_ALL_REDUCE ? 2.0 * (W - 1) / W : want[i].cut ? (W - 1.0) / W : 1;
            assert_int_equal(r->nbytes, 4 * n);
            assert_int_equal(r->count, want[i].cut ? n / W : n);
            assert_int_equal(r->root, want[i].root);
            assert_int_equal(r->sums, want[i].sums);
            if (want[i].out) check_side(r, LS_BENCH_OUT_OF_PLACE, factor);
            else assert_false(r->side[LS_BENCH_OUT_OF_PLACE].measured);
            const bool in = want[i].in && (how != HOST || !want[i].out);
            if (in) check_side(r, LS_BENCH_IN_PLACE, factor);
            else assert_false(r->side[LS_BENCH_IN_PLACE].measured);
        }
    }
}

static void every_communicator_gives_all_rows(void **state)
{
    static const int sizes[] = {2, 3, 4};
    (void)state;
    for (how = HOST; how <= NCCL_TREE; how++)
        for (size_t i = 0; i < N_OF(sizes); i++) {
            seen.n = 0;
            run_world(sizes[i], (worker){0});
            check_rows(sizes[i]);
        }
    static const int hosts[] = {2, 1, 0};
    for (how = HOST; how <= NCCL_TREE; how++) {
        seen.n = 0;
        run_hosts(hosts, (worker){0});
        check_rows(3);
    }
}

/* A dry communicator moves no data, but counts as if it did. */
static void wrong_results_are_found(void **state)
{
    (void)state;
    static const char *const kind[] = {"all_reduce", "reduce_scatter", "all_gather", "reduce", "sendrecv"};
    for (size_t i = 0; i < N_OF(kind); i++) {
        ls_comm *c = NULL;
        ls_comm_bench b = {.min_bytes = 4000, .max_bytes = 4000, .factor = 2, .rounds = 1, .row = note, .ctx = &seen};
        seen.n = 0;
        assert_int_equal(ls_comm_dry(0, 2, &c), LS_OK);
        assert_int_equal(ls_comm_bench_kinds(kind[i], &b.kinds), LS_OK);
        assert_int_equal(ls_comm_bench_run(c, &b), LS_E_COMM);
        assert_non_null(strstr(ls_err_words(), "elements are wrong"));
        assert_int_equal(seen.n, 1); /* the row is reported nevertheless */
        ls_err_clear();
        ls_comm_destroy(&c);
    }
    unsigned bits;
    assert_int_equal(ls_comm_bench_kinds("all_reduce,alltoall", &bits), LS_E_ARG);
    ls_err_clear();
}

static void a_barrier_on_a_device_is_refused(void **state)
{
    (void)state;
    ls_comm *c = NULL;
    device_double *d = double_open(1);
    assert_int_equal(ls_comm_self(&c), LS_OK);
    const ls_comm_bench b = {
        .dev = &d->table, .min_bytes = 8, .max_bytes = 8, .factor = 2, .rounds = 1, .kinds = 1u << LS_COLL_BARRIER};
    assert_int_equal(ls_comm_bench_run(c, &b), LS_E_ARG);
    ls_err_clear();
    ls_comm_destroy(&c);
    double_close(d);
}

int main(void)
{
    use_fake_nccl();
    ls_stack_install("the test");
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_communicator_gives_all_rows),
                                       cmocka_unit_test(wrong_results_are_found),
                                       cmocka_unit_test(a_barrier_on_a_device_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
