/* Communicators over NCCL without a GPU: the real plugin, linked with a fake libnccl (tests/fake_nccl) that runs between threads, on streams of a test
 * double of the device. The same bits as the local communicator on host memory for every kind, type and size; the sums of NCCL itself when the order
 * does not matter; splits, pairs, times on the clock of the device; errors, a late peer and a peer that ended: the message names the rank. */
/* ls-test: long */
#include "comm/nccl_impl.h"
#include "comm/start.h"
#include "core/stack.h"
#include "device_team.h"

#include <dlfcn.h>
#include <math.h>

static void hook(const char *name, int value)
{
    union {
        void *object;
        void (*call)(int);
    } f = {.object = dlsym(RTLD_DEFAULT, name)};
    if (f.object) f.call(value);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    ls_comm *boot = NULL;
    on_device o = {.w = &w->error, .d = double_open((uint64_t)w->rank + 5)};
    o.d->nap_us = 60;
    o.d->index = w->rank;
    CHECK(&w->error, worker_host(w, &boot) == LS_OK);
    CHECK(&w->error, ls_comm_local(w->ref, w->rank, &o.ref) == LS_OK);
    if (w->before) w->before(w, boot, o.d);
    else {
        CHECK(&w->error, ls_comm_for_device(boot, &o.d->table, "nccl", !w->any_order, &o.c, NULL) == LS_OK);
        if (o.c) w->body(w, &o);
        ls_comm_destroy(&o.c);
    }
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
    device_counts(o, false);
    device_close(o);
}

static void overlapping(worker *w, on_device *o)
{
    (void)w;
    device_overlap(o, o->c, 70001);
    device_splits(o, 3001);
}

/* Chunks have 8 to 16 MiB. Two workers: four chunks, of which the last uses the scratch of the first again; three: two chunks; four: three chunks in
 * two rounds. */
static void many_chunks(worker *w, on_device *o)
{
    static const int64_t length[] = {[2] = 13 << 20, [3] = 5 << 20, [4] = 9 << 20};
    const int64_t n = length[w->size];
    o->d->nap_us = 0;
    if (!device_open(o, (size_t)(n + 64) * 4)) return;
    device_kinds(o, LS_F32, n / w->size, w->size - 1, 3);
    device_close(o);
}

static const int sizes[] = {1, 2, 3, 4, 8}; /* numbers of workers; eight with LS_TEST_ALL */

static int n_sizes(void)
{
    return (int)N_OF(sizes) - !getenv("LS_TEST_ALL");
}

static void one_host_gives_the_bits_of_local(void **state)
{
    (void)state;
    run_world(1, (worker){.body = every_kind, .alone = true});
    for (int i = 0; i < n_sizes(); i++) run_world(sizes[i], (worker){.body = every_kind});
}

static void tickets_overlap_and_communicators_split(void **state)
{
    (void)state;
    for (int i = 0; i < n_sizes(); i++) run_world(sizes[i], (worker){.body = overlapping});
}

static void large_arrays_are_sent_in_chunks(void **state)
{
    (void)state;
#ifndef SLOW
    run_world(2, (worker){.body = many_chunks});
#endif
    run_world(3, (worker){.body = many_chunks});
    if (getenv("LS_TEST_ALL")) run_world(4, (worker){.body = many_chunks});
}

static void several_hosts_give_the_bits_of_local(void **state)
{
    (void)state;
    static const int layouts[][5] = {{1, 1}, {2, 2}, {2, 1}};
    for (size_t i = 0; i < N_OF(layouts); i++) {
        run_hosts(layouts[i], (worker){.body = every_kind});
        run_hosts(layouts[i], (worker){.body = overlapping});
    }
}

/* ---- sums of NCCL itself: close, not equal ---- */

static void near_sums(worker *w, on_device *o)
{
    enum { PART = 3000 };
    const int W = w->size;
    const int64_t n = PART * W, stride = PART + 7;
    if (!device_open(o, (size_t)1 << 20)) return;
    for (int what = 0; what < 4; what++) {
        const ls_view x = {o->x, n, LS_F32}, y = {o->y, PART, LS_F32};
        device_fill(o, o->x, (W - 1) * stride + PART, LS_F32);
        CHECK(&w->error, (what == 0   ? ls_all_reduce(o->c, x, LS_SITE, NULL)
                          : what == 1 ? ls_reduce(o->c, x, W - 1, LS_SITE, NULL)
                          : what == 2 ? ls_reduce_scatter(o->c, y, x, LS_SITE, NULL)
                                      : ls_reduce_scatter_apart(o->c, y, x, stride, LS_SITE, NULL)) == LS_OK);
        const int64_t k = what < 2 ? n : PART, at = what < 2 ? 0 : w->rank * (what == 2 ? PART : stride);
        device_fetch(o, o->got, what < 2 ? o->x : o->y, (size_t)k * 4);
        (void)double_sync(o->d);
        const bool sum = what != 1 || w->rank == W - 1;
        for (int64_t i = 0; i < k; i += 11) {
            const float got = ((float *)(void *)o->got)[i],
                        want = sum ? device_tree(0, W, at + i) : device_number(w->rank, i);
            CHECK(&w->error, fabsf(got - want) <= 1e-6f * 8e5f);
        }
    }
    device_close(o);
}

static void sums_in_any_order_are_close(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) {
        run_world(size, (worker){.body = near_sums, .any_order = true});
        run_world(size, (worker){.body = overlapping, .any_order = size == 2}); /* a sum of two has only one order */
    }
}

/* ---- time ---- */

static void nap(void *arg)
{
    usleep(*(const useconds_t *)arg);
}

/* The caller does not wait. The queue of the device waits, and only for communication that was not overlapped with its work. */
static void hidden(worker *w, on_device *o)
{
    static const useconds_t short_work = 20000, long_work = 400000;
    enum { N = 1 << 16 };
    void *x = NULL;
    o->d->nap_us = 0;
    (void)double_alloc(o->d, N * 4, &x);
    CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, N, LS_F32}, LS_SITE, NULL) == LS_OK); /* connects */
    (void)double_sync(o->d);
    /* in the second half the device of rank 1 is late: the queues of the others wait */
    double blocked[2] = {1, 1}, exposed = 1, waited = 0; /* the best of three rounds each: a busy machine may be late */
    for (int k = 0; k < 6; k++) {
        const bool late = k >= 3;
        ls_ticket t = 0;
        CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_OK);
        ls_comm_stats_reset(o->c);
        double_call(o->d, nap, (void *)(uintptr_t)(late && w->rank == 1 ? &long_work : &short_work));
        CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, N, LS_F32}, LS_SITE, &t) == LS_OK);
        if (!late) double_call(o->d, nap, (void *)(uintptr_t)&long_work);
        const double begin = ls_now();
        CHECK(&w->error, ls_wait(o->c, t) == LS_OK);
        blocked[late] = fmin(blocked[late], ls_now() - begin);
        (void)double_sync(o->d);
        const ls_comm_stat s = ls_comm_stats(o->c, LS_COLL_ALL_REDUCE);
        CHECK(&w->error, s.busy > 0 && s.calls == 1);
        if (late) waited = fmax(waited, fmin(s.exposed, s.busy));
        else exposed = fmin(exposed, s.exposed);
    }
    CHECK(&w->error, blocked[0] < 0.2 && blocked[1] < 0.2);
    CHECK(&w->error, exposed < 0.1);
    CHECK(&w->error, w->rank || waited > 0.25);
    double_release(o->d, x);
}

static void waiting_is_measured_on_the_device(void **state)
{
    (void)state;
    run_world(2, (worker){.body = hidden});
}

/* ---- trouble ---- */

static atomic_int n_waiting; /* workers that wait for the late one; set before a test */

static void wait_for_the_others(void)
{
    while (atomic_load(&n_waiting)) usleep(20000);
}

static void broken(worker *w, on_device *o)
{
    void *x = NULL;
    ls_status st = LS_OK;
    (void)double_alloc(o->d, (size_t)4 << 20, &x);
    CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, 1 << 20, LS_F32}, LS_SITE, NULL) == LS_OK);
    CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_OK);
    if (w->rank == 0) hook("fake_nccl_fail", 2);
    for (int k = 0; k < 2000 && st == LS_OK; k++) {
        st = ls_all_reduce(o->c, (ls_view){x, 1 << 20, LS_F32}, LS_SITE, NULL);
        (void)double_sync(o->d);
    }
    CHECK(&w->error, st == LS_E_COMM);
    CHECK(&w->error, strstr(ls_err_words(), "rank 2") && strstr(ls_err_words(), "remote process exited"));
    CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_E_COMM);
    double_release(o->d, x);
}

/* Rank 2 does not post the last of several collectives, of which one is on host memory: the number of each is the same in the whole message. The
 * watch sees none of them until all are queued. */
static void late(worker *w, on_device *o)
{
    enum { N = 3 * NCCL_RING };
    nccl_world *nccl = ((nccl_comm *)o->c->impl)->w;
    void *x = NULL;
    char hangs[40], waits[60], behind[60];
    snprintf(hangs, sizeof hangs, " in all_reduce #%d at ", N + 2);
    snprintf(waits, sizeof waits, " is waiting in it (its latest is #%d, ", N + 2);
    snprintf(behind, sizeof behind, " is late: it has not posted this (its latest is #%d, ", N);
    o->d->nap_us = 0;
    (void)double_alloc(o->d, 4096, &x);
    pthread_mutex_lock(&nccl->lock);
    for (int k = 0; k < N; k++)
        CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, 1024, LS_F32}, LS_SITE, NULL) == LS_OK);
    CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_OK);
    ls_comm_set_limit(o->c, 2); /* seconds; on a busy machine a worker may be late by a part of it */
    if (w->rank != 2)
        CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, 1024, LS_F32}, LS_SITE, NULL) == LS_OK); /* only queued */
    pthread_mutex_unlock(&nccl->lock);
    if (w->rank != 2) {
        (void)double_sync(o->d); /* returns although rank 2 does not take part */
        CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_E_COMM);
        CHECK(&w->error, strstr(ls_err_words(), "look at rank 2") && strstr(ls_err_words(), hangs));
        CHECK(&w->error, strstr(ls_err_words(), "rank 0 on ") && strstr(ls_err_words(), waits));
        CHECK(&w->error, strstr(ls_err_words(), behind));
        atomic_fetch_sub(&n_waiting, 1);
    }
    wait_for_the_others(); /* to answer their questions */
    double_release(o->d, x);
}

static void alone_in_a_pair(worker *w, on_device *o)
{
    void *x = NULL;
    ls_ticket t = 0;
    (void)double_alloc(o->d, 4096, &x);
    ls_comm_set_limit(o->c, 1);
    if (w->rank == 0) {
        CHECK(&w->error, ls_send(o->c, (ls_view){x, 1024, LS_F32}, 1, LS_SITE, &t) == LS_OK);
        CHECK(&w->error, ls_wait(o->c, t) == LS_E_COMM);
        CHECK(&w->error, strstr(ls_err_words(), "no progress"));
        atomic_fetch_sub(&n_waiting, 1);
    }
    wait_for_the_others();
    double_release(o->d, x);
}

static void gone(worker *w, on_device *o)
{
    void *x = NULL;
    ls_ticket t[3] = {0};
    (void)double_alloc(o->d, (size_t)4 << 20, &x);
    CHECK(&w->error, ls_all_reduce(o->c, (ls_view){x, 1 << 20, LS_F32}, LS_SITE, NULL) == LS_OK);
    (void)double_sync(o->d); /* it is complete on every rank before rank 1 ends */
    CHECK(&w->error, ls_barrier(o->c, LS_SITE) == LS_OK);
    if (w->rank == 1) {
        usleep(100000);
        ls_comm_abort(o->c, "rank 1 was killed by signal 9");
    } else {
        const ls_view v = {x, 1 << 20, LS_F32};
        (void)ls_recv(o->c, (ls_view){x, 1 << 10, LS_F32}, 1, LS_SITE, &t[0]);
        (void)ls_all_reduce(o->c, v, LS_SITE, &t[1]);
        CHECK(&w->error, ls_wait(o->c, t[0]) == LS_E_COMM && strstr(ls_err_words(), "rank 1 was killed by signal 9"));
        (void)ls_wait(o->c, t[1]);
        (void)double_sync(o->d); /* its kernels have ended */
        CHECK(&w->error, ls_all_reduce(o->c, v, LS_SITE, NULL) == LS_E_COMM && strstr(ls_err_words(), "signal 9"));
    }
    (void)double_sync(o->d);
    double_release(o->d, x);
}

static void a_failure_names_the_rank(void **state)
{
    (void)state;
    run_world(4, (worker){.body = broken});
    hook("fake_nccl_fail", -1);
    n_waiting = 2;
    run_world(3, (worker){.body = late});
    n_waiting = 2;
    run_hosts((const int[]){2, 1, 0}, (worker){.body = late});
    n_waiting = 2;
    run_hosts((const int[]){1, 1, 1, 0}, (worker){.body = late});
    n_waiting = 1;
    run_world(2, (worker){.body = alone_in_a_pair});
    run_world(3, (worker){.body = gone});
    run_world(3, (worker){.body = gone, .any_order = true});
    run_hosts((const int[]){2, 1, 0}, (worker){.body = gone});
}

/* ---- choosing the communicator ---- */

typedef struct choice {
    const char *asked, *name, *message;
    bool shared, refused;
    ls_status st;
} choice;

static const choice *chosen; /* of the test that runs */

static void choose(worker *w, ls_comm *boot, device_double *d)
{
    ls_comm *c = NULL;
    ls_str note = {0};
    if (chosen->shared) d->index = 0;
    const ls_status st = ls_comm_for_device(boot, &d->table, chosen->asked, true, &c, &note);
    CHECK(&w->error, st == chosen->st);
    if (st == LS_OK) CHECK(&w->error, !strcmp(ls_comm_name(c), chosen->name));
    const char *library = st == LS_OK ? ls_comm_library(c) : NULL;
    CHECK(&w->error, library ? !strcmp(library, "2.30.7") : st != LS_OK || strcmp(chosen->name, "nccl") != 0);
    if (st == LS_OK && w->rank == 0 && chosen->message)
        CHECK(&w->error, note.data && strstr(note.data, chosen->message));
    if (st == LS_OK && (w->rank || !chosen->message)) CHECK(&w->error, !note.len);
    if (st != LS_OK && chosen->message) CHECK(&w->error, strstr(ls_err_words(), chosen->message));
    if (st == LS_OK) CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    else CHECK(&w->error, ls_barrier(boot, LS_SITE) == LS_OK);
    if (st != LS_OK) ls_comm_destroy(&boot);
    ls_comm_destroy(&c);
    ls_str_fini(&note);
}

static void auto_takes_nccl_when_it_works(void **state)
{
    (void)state;
    static const choice all[] = {
        {"auto", "nccl", NULL, false, false, LS_OK},
        {"nccl", "nccl", NULL, false, false, LS_OK},
        {"local", "local, staged", NULL, false, false, LS_OK},
        {"mpi", NULL, "started with local", false, false, LS_E_CONFIG},
        {"auto", "local, staged", "ranks 0 and 1 share the GPU 0000:00:00.0", true, false, LS_OK},
        {"nccl", NULL, "share the GPU", true, false, LS_E_UNSUPPORTED},
        {"auto", "local, staged", "invalid usage", false, true, LS_OK},
        {"nccl", NULL, "invalid usage", false, true, LS_E_COMM},
    };
    char path[512], version[512];
    assert_true(ls_comm_look("nccl", path, sizeof path, version, sizeof version));
    assert_string_equal(version, "NCCL 2.30.7");
    for (size_t i = 0; i < N_OF(all); i++) {
        chosen = &all[i];
        hook("fake_nccl_refuse", all[i].refused);
        run_world(2, (worker){.before = choose});
        hook("fake_nccl_refuse", 0);
    }
}

int main(void)
{
    use_fake_nccl();
    ls_stack_install("the test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_takes_nccl_when_it_works),           cmocka_unit_test(one_host_gives_the_bits_of_local),
        cmocka_unit_test(tickets_overlap_and_communicators_split), cmocka_unit_test(large_arrays_are_sent_in_chunks),
        cmocka_unit_test(several_hosts_give_the_bits_of_local),    cmocka_unit_test(sums_in_any_order_are_close),
        cmocka_unit_test(waiting_is_measured_on_the_device),       cmocka_unit_test(a_failure_names_the_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
