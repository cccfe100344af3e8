/* Collectives on device memory staged through the host, with workers as threads, each with a test double of a device: the same bits as the local
 * communicator on host memory for every kind, type and size, on one host and on several; copies and sums that overlap; a lost device, a worker that
 * dies, an abort: each message names the rank. */
/* ls-test: long */
#include "comm/launch.h"
#include "core/stack.h"
#include "device_team.h"

#include <signal.h>

static void *worker_main(void *arg)
{
    worker *w = arg;
    ls_comm *inner = NULL;
    on_device o = {.w = &w->error, .d = double_open((uint64_t)w->rank + 5)};
    o.d->nap_us = 60;
    CHECK(&w->error, worker_host(w, &inner) == LS_OK && ls_comm_local(w->ref, w->rank, &o.ref) == LS_OK);
    CHECK(&w->error, ls_comm_staged(inner, &o.d->table, &o.c) == LS_OK);
    if (o.c) w->body(w, &o);
    ls_comm_destroy(&o.c);
    ls_comm_destroy(&o.ref);
    if (!w->error.words[0]) CHECK(&w->error, o.d->n_pinned == 0);
    double_close(o.d);
    return NULL;
}

static void every_kind(worker *w, on_device *o)
{
    static const int64_t sizes[] = {0, 1, 127, 1025, 60001};
    (void)w;
    if (!device_open(o, (size_t)4 << 20)) return;
    device_every_kind(o, sizes, (int)N_OF(sizes));
    device_host_memory(o);
    device_counts(o, true);
    device_close(o);
}

static void overlapping(worker *w, on_device *o)
{
    device_overlap(o, o->c, 70001);
    if (!w->alone) device_splits(o, 3000);
    if (!w->alone && w->size < 8) device_splits(o, 90001);
}

static void one_host_gives_the_bits_of_local(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 8};
    run_world(1, (worker){.body = every_kind, .alone = true});
    for (size_t i = 0; i < N_OF(sizes); i++) run_world(sizes[i], (worker){.body = every_kind});
}

static void tickets_overlap_and_communicators_split(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 8};
    run_world(1, (worker){.body = overlapping, .alone = true});
    for (size_t i = 0; i < N_OF(sizes); i++) run_world(sizes[i], (worker){.body = overlapping});
}

static void several_hosts_give_the_bits_of_local(void **state)
{
    (void)state;
    static const int layouts[][5] = {{1, 1}, {2, 2}, {2, 1}, {1, 1, 1}};
    for (size_t i = 0; i < N_OF(layouts); i++) {
        run_hosts(layouts[i], (worker){.body = every_kind});
        run_hosts(layouts[i], (worker){.body = overlapping});
    }
}

/* ---- overlap ---- */

static void in_parts(worker *w, on_device *o)
{
    enum { N = 6 << 20 }; /* floats: 24 MiB, in six chunks */
    void *x = NULL;
    o->d->nap_us = 0;
    (void)double_alloc(o->d, (size_t)N * 4, &x);
    o->d->ns_per_byte = 10;                   /* 0.25 s each way */
    double best = 1;                          /* the time of a round, in those of its copies */
    double apart = 1;                         /* exposed time compared with the time of a round */
    for (int again = 0; again < 4; again++) { /* the first touches the memory; others may be slow on a busy machine */
        ls_comm_stats_reset(o->c);
        CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_OK);
        const double begin = ls_now();
        CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, N, LS_F32}, LS_SITE, NULL) == LS_OK);
        const double took = ls_now() - begin;
        const ls_comm_stat s = ls_comm_stats(o->c, LS_COLL_ALL_REDUCE);
        CHECK(&w->error, s.staged == 2 * (int64_t)N * 4 && s.staged_seconds > 0.45);
        if (again && w->rank == 0) print_message("staged: %.3f s for copies of %.3f s\n", took, s.staged_seconds);
        if (again) best = fmin(best, took / s.staged_seconds);
        (void)double_sync(o->d);
        const double exposed = ls_comm_stats(o->c, LS_COLL_ALL_REDUCE).exposed; /* nothing else was queued */
        apart = fmin(apart, fabs(exposed / took - 1));
    }
    CHECK(&w->error, apart < 0.2);
    CHECK(&w->error, w->rank || best < 0.8);
    double_release(o->d, x);
}

static void nap(void *arg)
{
    usleep(*(const useconds_t *)arg);
}

/* While the device computes, waiting is not exposed. A request waits for the operations before it; that time does not count as busy. */
static void hidden_by_work(worker *w, on_device *o)
{
    static const useconds_t before = 300000, beside = 600000;
    void *x = NULL;
    o->d->nap_us = 0;
    (void)double_alloc(o->d, 4096, &x);
    double exposed = 1, busy = 1;
    for (int again = 0; again < 3; again++) { /* the best of them counts: a busy machine may be late */
        ls_ticket t = 0;
        CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_OK);
        ls_comm_stats_reset(o->c);
        double_call(o->d, nap, (void *)(uintptr_t)&before);
        CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, 1024, LS_F32}, LS_SITE, &t) == LS_OK);
        double_call(o->d, nap, (void *)(uintptr_t)&beside);
        CHECK(&w->error, ls_wait(o->c, t) == LS_OK);
        (void)double_sync(o->d);
        const ls_comm_stat s = ls_comm_stats(o->c, LS_COLL_ALL_REDUCE);
        exposed = fmin(exposed, s.exposed);
        busy = fmin(busy, s.busy);
    }
    CHECK(&w->error, exposed < 0.1);
    CHECK(&w->error, busy < 0.25);
    double_release(o->d, x);
}

static void copies_overlap_and_waiting_is_hidden(void **state)
{
    (void)state;
#ifdef SLOW
    print_message("skipped: it measures time, and a sanitizer slows the threads unevenly\n");
    skip();
#endif
    run_world(2, (worker){.body = in_parts});
    run_world(2, (worker){.body = hidden_by_work});
}

/* After the first use of a kind nothing is allocated. */
static void settled(worker *w, on_device *o)
{
    void *x = NULL;
    (void)double_alloc(o->d, 1 << 20, &x);
    for (int again = 0; again < 2; again++) {
        const int64_t before = ls_mem_count();
        for (int k = 0; k < 20; k++)
            CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, 1 << 18, LS_F32}, LS_SITE, NULL) == LS_OK);
        if (again) CHECK(&w->error, ls_mem_count() == before);
        CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_OK);
    }
    double_release(o->d, x);
}

static void nothing_is_allocated_after_the_first_use(void **state)
{
    (void)state;
    run_world(2, (worker){.body = settled});
}

/* ---- trouble ---- */

static void lost_device(worker *w, on_device *o)
{
    void *x = NULL;
    (void)double_alloc(o->d, (size_t)4 << 20, &x);
    if (w->rank == 2) o->d->fail_copy_at = 2;
    const ls_status st = ls_all_reduce(o->c, (ls_view){x, 1 << 20, LS_F32}, LS_SITE, NULL);
    CHECK(&w->error, st == (w->rank == 2 ? LS_E_DEVICE : LS_E_COMM));
    CHECK(&w->error, strstr(ls_err_words(), "rank 2") && strstr(ls_err_words(), "the device is lost"));
    CHECK(&w->error, ls_barrier(o->c, LS_SITE) != LS_OK); /* and it stays failed */
    double_release(o->d, x);
}

static void abandoned(worker *w, on_device *o)
{
    void *x = NULL, *y = NULL;
    (void)double_alloc(o->d, (size_t)4 << 20, &x);
    (void)double_alloc(o->d, (size_t)4 << 20, &y);
    if (w->rank == 1) {
        usleep(100000);
        ls_comm_abort(o->c, "rank 1 was killed by signal 9");
    } else {
        ls_ticket t[2] = {0};
        CHECK(&w->error, ls_recv(o->c, (ls_view){y, 1 << 20, LS_F32}, 1, LS_SITE, &t[0]) == LS_OK);
        CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, 1 << 20, LS_F32}, LS_SITE, &t[1]) == LS_OK);
        for (int k = 0; k < 2; k++) {
            CHECK(&w->error, ls_wait(o->c, t[k]) == LS_E_COMM);
            CHECK(&w->error, strstr(ls_err_words(), "rank 1 was killed by signal 9"));
        }
    }
    (void)double_sync(o->d);
    double_release(o->d, x);
    double_release(o->d, y);
}

static atomic_int n_waiting; /* workers that wait for the late one */

static void late(worker *w, on_device *o)
{
    void *x = NULL;
    (void)double_alloc(o->d, (size_t)4 << 20, &x);
    if (w->rank != 2) atomic_fetch_add(&n_waiting, 1);
    CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_OK);
    ls_comm_set_limit(o->c, 2); /* seconds; on a busy machine a worker may be late by a part of it */
    if (w->rank != 2) {
        CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, 1 << 20, LS_F32}, LS_SITE, NULL) == LS_E_COMM);
        CHECK(&w->error, strstr(ls_err_words(), "look at rank 2"));
        atomic_fetch_sub(&n_waiting, 1);
    }
    while (atomic_load(&n_waiting)) usleep(20000); /* to answer the questions of the others */
    double_release(o->d, x);
}

/* A process that is killed in the middle of requests on device memory. */
static ls_status victim_body(void *ctx, ls_comm *c, int n_core)
{
    (void)ctx, (void)n_core;
    ls_comm *s = NULL;
    device_double *d = double_open(3);
    void *x = NULL;
    (void)double_alloc(d, (size_t)4 << 20, &x);
    LS_TRY(ls_comm_staged(c, &d->table, &s));
    for (int k = 0;; k++) {
        if (k == 3 && ls_comm_rank(s) == 1) raise(SIGKILL);
        const ls_status st = ls_all_reduce(s, (ls_view){x, 1 << 20, LS_F32}, LS_SITE, NULL);
        if (st != LS_OK) return st;
    }
}

static void a_failure_names_the_rank(void **state)
{
    (void)state;
    run_world(4, (worker){.body = lost_device});
    run_world(3, (worker){.body = abandoned});
    run_world(3, (worker){.body = late});
    run_hosts((const int[]){2, 2, 0}, (worker){.body = lost_device});
    run_hosts((const int[]){2, 2, 0}, (worker){.body = abandoned});
}

static void a_killed_worker_is_named(void **state)
{
    (void)state;
    const double begin = ls_now();
    const ls_status st = ls_launch_local(&(ls_launch){.n = 3, .arena_nbytes = ARENA, .body = victim_body});
    assert_int_equal(st, LS_E_COMM);
    assert_non_null(strstr(ls_err_words(), "rank 1"));
    assert_true(ls_now() - begin < 60);
}

int main(void)
{
    ls_stack_install("the test");
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_killed_worker_is_named),
                                       cmocka_unit_test(one_host_gives_the_bits_of_local),
                                       cmocka_unit_test(tickets_overlap_and_communicators_split),
                                       cmocka_unit_test(several_hosts_give_the_bits_of_local),
                                       cmocka_unit_test(copies_overlap_and_waiting_is_hidden),
                                       cmocka_unit_test(nothing_is_allocated_after_the_first_use),
                                       cmocka_unit_test(a_failure_names_the_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
