/* Collectives with workers as threads of one process, on one host and on several (joined by a fake transport): every kind, worlds of 1 to 8, sums
 * bit for bit in the order of the documented tree, counted bytes equal to those of a dry communicator, tickets that overlap, splits; a mismatch, an
 * abort and a hang, whose messages name the rank. Memory in common, teams, lent cores and huge pages. */
/* ls-test: long */
#include "cmocka_all.h"
#include "comm/lend.h"
#include "comm/net_impl.h"
#include "comm_checks.h"
#include "core/clock.h"
#include "core/stack.h"
#include "fake_transport.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_W 8
#ifdef __SANITIZE_THREAD__
#define TEAM 1 /* ThreadSanitizer does not see that OpenMP's threads have ended their work */
#else
#define TEAM 3
#endif

typedef struct worker {
    ls_local_world *world;
    fake_world *net; /* set: hosts joined by a fake transport */
    int rank, size;
    void (*body)(struct worker *w, ls_comm *c);
    wrong error; /* cmocka's asserts work only in the main thread: workers record the first failed check */
    ls_status st;
} worker;

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

static void run_threads(int size, worker *w)
{
    pthread_t thread[MAX_W];
    for (int r = 0; r < size; r++) assert_int_equal(pthread_create(&thread[r], NULL, worker_main, &w[r]), 0);
    for (int r = 0; r < size; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < size; r++)
        if (w[r].error.words[0]) fail_msg("world %d rank %d: %s", size, r, w[r].error.words);
}

static void run_world(int size, void (*body)(worker *, ls_comm *), worker out[MAX_W])
{
    ls_local_world *world = NULL;
    assert_int_equal(ls_local_world_create(size, (size_t)64 << 20, &world), LS_OK);
    for (int r = 0; r < size; r++) out[r] = (worker){.world = world, .rank = r, .size = size, .body = body};
    run_threads(size, out);
    ls_local_world_destroy(&world);
}

/* The number of workers of each host; a 0 ends the list. */
static void run_hosts(const int *hosts, void (*body)(worker *, ls_comm *), worker out[MAX_W])
{
    fake_world net = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    for (int h = 0; hosts[h]; h++)
        for (int k = 0; k < hosts[h]; k++) net.host[net.size++] = h;
    for (int r = 0; r < net.size; r++) out[r] = (worker){.net = &net, .rank = r, .size = net.size, .body = body};
    run_threads(net.size, out);
}

static void every_kind(worker *w, ls_comm *c)
{
    checks_every_kind(&w->error, c, 8000);
    checks_halves(&w->error, c, 5001);
}

static void overlapping(worker *w, ls_comm *c)
{
    checks_overlap(&w->error, c, 3000);
    checks_splits(&w->error, c, 3000);
    for (int k = 0; k < 25; k++) checks_splits(&w->error, c, 10); /* more than there are control blocks */
}

static void every_collective_gives_the_documented_sums(void **state)
{
    (void)state;
    worker w[MAX_W];
    for (int size = 1; size <= MAX_W; size++) run_world(size, every_kind, w);
}

static void tickets_overlap_and_communicators_split(void **state)
{
    (void)state;
    worker w[MAX_W];
    for (int size = 1; size <= MAX_W; size++) run_world(size, overlapping, w);
}

static const int layouts[][5] = {{1, 1}, {2, 2}, {1, 1, 1}, {2, 1}, {4, 4}, {2, 2, 2}, {3, 3}, {1, 2, 1, 4}};

static void several_hosts_give_the_same_results(void **state)
{
    (void)state;
    worker w[MAX_W];
    for (size_t i = 0; i < N_OF(layouts); i++) {
        run_hosts(layouts[i], every_kind, w);
        run_hosts(layouts[i], overlapping, w);
    }
}

static void counted(worker *w, ls_comm *c)
{
    const int H = ls_comm_where(c).n_host;
    checks_counts(&w->error, c, H, w->size / H);
}

static void counted_bytes_match_the_formulas(void **state)
{
    (void)state;
    static const int equal[][5] = {{1, 1}, {2, 2}, {4, 4}, {2, 2, 2}, {2, 2, 2, 2}, {1, 1, 1, 1}};
    worker w[MAX_W];
    for (int size = 2; size <= MAX_W; size *= 2) run_world(size, counted, w);
    for (size_t i = 0; i < N_OF(equal); i++) run_hosts(equal[i], counted, w);
}

/* One buffer of rank 0 that all ranks write a part of, and may send from. A large block is at a multiple of the huge page; a small one before it
 * does not change that. */
static void shared(worker *w, ls_comm *c)
{
    const int64_t n = 3 << 20, W = ls_comm_size(c), r = ls_comm_rank(c), part = n / W;
    const bool small = ls_comm_alloc(c, 100) != NULL;
    float *mine = r ? NULL : ls_comm_alloc(c, (size_t)n * sizeof *mine), *x = ls_comm_alloc(c, (size_t)n * sizeof *x);
    void *all = NULL;
    CHECK(&w->error, small && x && (r || mine));
    CHECK(&w->error, ((uintptr_t)x | (uintptr_t)mine) % LOCAL_HUGE_PAGE == 0);
    CHECK(&w->error, ls_comm_common(c, mine, LS_SITE, &all) == LS_OK && all && (r || all == mine));
    if (w->error.words[0]) return;
    float *common = all;
    for (int64_t i = part * r; i < part * (r + 1); i++) common[i] = (float)i;
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    for (int64_t i = 0; i < part * W; i++) CHECK(&w->error, common[i] == (float)i);
    const ls_view v = {common, part * W, LS_F32}, got = {x, part * W, LS_F32};
    if (r == W - 1) CHECK(&w->error, ls_send(c, v, 0, LS_SITE, NULL) == LS_OK); /* not from its own arena */
    if (r == 0) CHECK(&w->error, ls_recv(c, got, (int)W - 1, LS_SITE, NULL) == LS_OK && x[part] == (float)part);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
}

static void workers_have_memory_in_common(void **state)
{
    (void)state;
    worker w[MAX_W];
    for (int size = 2; size <= 4; size++) run_world(size, shared, w);
}

static void far(worker *w, ls_comm *c)
{
    void *x = NULL;
    CHECK(&w->error, ls_comm_common(c, NULL, LS_SITE, &x) == LS_E_COMM);
    CHECK(&w->error, strstr(ls_err_words(), "workers of 2 hosts have no memory in common"));
}

static void workers_of_several_hosts_have_none(void **state)
{
    (void)state;
    worker w[MAX_W];
    run_hosts((const int[]){2, 1, 0}, far, w);
}

static bool any_cpu(int cpu)
{
    return cpu >= 0;
}

static bool not_the_first(int cpu)
{
    return cpu > 1;
}

static int take_after_a_while(ls_lend *l, int *cpu)
{
    usleep(5000); /* a worker that waits only for a moment keeps its cores */
    return ls_lend_take(l, cpu, 16);
}

/* Workers 0 and 1 of four wait, then 2; each has two CPUs. */
static void lending(worker *w, ls_comm *c)
{
    const int r = w->rank, own[2] = {2 * r, 2 * r + 1};
    int cpu[16] = {-1};
    ls_lend *l = NULL, *none = NULL;
    CHECK(&w->error, ls_lend_open(c, own, 0, any_cpu, LS_SITE, &none) == LS_OK && !none); /* nobody has CPUs */
    CHECK(&w->error, ls_lend_open(c, (const int[]){5}, 1, any_cpu, LS_SITE, &none) == LS_OK && !none); /* the same */
    CHECK(&w->error, ls_lend_open(c, own, 2, any_cpu, LS_SITE, &l) == LS_OK && l);
    if (!l) return;
    CHECK(&w->error, take_after_a_while(l, cpu) == 0);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    if (r < 2) ls_lend_give(l);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    if (r >= 2) { /* a half of what is free, whoever asks first and however often */
        CHECK(&w->error, take_after_a_while(l, cpu) == 2 && cpu[0] / 2 < 2 && cpu[1] == cpu[0] + 1);
        CHECK(&w->error, take_after_a_while(l, cpu) == 2);
    }
    const int first = cpu[0];
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    if (r == 2) ls_lend_give(l);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    if (r == 3) {
        bool seen[8] = {false};
        CHECK(&w->error, take_after_a_while(l, cpu) == 6 && cpu[0] == first); /* what it had comes first */
        for (int i = 0; i < 6; i++) seen[cpu[i]] = true;
        for (int k = 0; k < 6; k++) CHECK(&w->error, seen[k]);
        CHECK(&w->error, ls_lend_take(l, cpu, 3) == 3);
        ls_lend_give(l);
    }
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    ls_lend_back(l);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    CHECK(&w->error, take_after_a_while(l, cpu) == 0);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    ls_lend_close(&l);
    CHECK(&w->error, ls_lend_open(c, own, 2, not_the_first, LS_SITE, &l) == LS_OK && l);
    if (l && r < 3) ls_lend_give(l);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    if (l && r == 3) CHECK(&w->error, take_after_a_while(l, cpu) == 4 && cpu[0] / 2 && cpu[2] / 2);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    ls_lend_close(&l);
}

/* Three of five workers wait, each with two CPUs: a half is two of them, but worker 3 can use the CPUs of one only. */
static void taking_what_it_can_use(worker *w, ls_comm *c)
{
    const int r = w->rank, own[2] = {2 * r, 2 * r + 1};
    int cpu[16];
    ls_lend *l = NULL;
    CHECK(&w->error, ls_lend_open(c, own, 2, any_cpu, LS_SITE, &l) == LS_OK && l);
    if (!l) return;
    if (r < 3) ls_lend_give(l);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    usleep(5000);
    if (r == 3) {
        CHECK(&w->error, ls_lend_take(l, cpu, 0) == 0);
        CHECK(&w->error, ls_lend_take(l, cpu, 1) == 1);
        CHECK(&w->error, ls_lend_take(l, cpu, 2) == 2);
    }
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    if (r == 4) CHECK(&w->error, ls_lend_take(l, cpu, 16) == 4);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    ls_lend_close(&l);
}

static void lends_nothing(worker *w, ls_comm *c)
{
    const int own[1] = {w->rank};
    ls_lend *l = NULL;
    CHECK(&w->error, ls_lend_open(c, own, 1, any_cpu, LS_SITE, &l) == LS_OK && !l);
}

static void cores_of_workers_that_wait_are_shared(void **state)
{
    (void)state;
    worker w[MAX_W];
    run_world(4, lending, w);
    run_world(5, taking_what_it_can_use, w);
    run_world(1, lends_nothing, w);
    run_hosts((const int[]){2, 2, 0}, lends_nothing, w);
}

/* The caller's team has the bits of one thread; a request that was posted before is done before. */
static void team(worker *w, ls_comm *c)
{
    const int64_t part = 100000, W = ls_comm_size(c), n = part * W;
    float *x = ls_comm_alloc(c, (size_t)n * sizeof *x), *one = ls_comm_alloc(c, (size_t)part * sizeof *one),
          *two = ls_comm_alloc(c, (size_t)part * sizeof *two);
    CHECK(&w->error, x && one && two);
    if (w->error.words[0]) return;
    for (int64_t i = 0; i < n; i++) x[i] = 1.0F / (float)(1 + i % 1013 + 7 * w->rank);
    ls_ticket t = 0;
    const ls_view all = {x, n, LS_F32};
    CHECK(&w->error, ls_reduce_scatter(c, (ls_view){one, part, LS_F32}, all, LS_SITE, &t) == LS_OK);
    ls_comm_team(c, TEAM);
    CHECK(&w->error, ls_reduce_scatter(c, (ls_view){two, part, LS_F32}, all, LS_SITE, NULL) == LS_OK);
    CHECK(&w->error, ls_test(c, t) && ls_wait(c, t) == LS_OK);
    CHECK(&w->error, !memcmp(one, two, (size_t)part * sizeof *one) && two[part - 1] != 0);
    const ls_comm_stat s = ls_comm_stats(c, LS_COLL_REDUCE_SCATTER);
    CHECK(&w->error, s.calls == 2 && s.bytes == 2 * (W - 1) * part * 4 && s.exposed > 0);
    CHECK(&w->error, ls_comm_exposed(c) == s.exposed);
}

static void a_team_gives_the_bits_of_one_thread(void **state)
{
    (void)state;
    worker w[MAX_W];
    for (int size = 2; size <= 3; size++) run_world(size, team, w);
}

/* Huge pages of the mapping that `p` is in, in KiB: /proc/self/smaps. */
static long huge_pages_at(const void *p)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[256];
    unsigned long first, last, at = (unsigned long)(uintptr_t)p;
    long found = -1;
    for (bool here = false; f && fgets(line, sizeof line, f);) {
        if (sscanf(line, "%lx-%lx", &first, &last) == 2) here = first <= at && at < last;
        if (here) (void)sscanf(line, "ShmemPmdMapped: %ld", &found);
    }
    if (f) fclose(f);
    return found;
}

/* Where this kernel gives them for the asking (Linux 6.1), large blocks have huge pages. */
static void large_blocks_have_huge_pages(void **state)
{
    (void)state;
    const size_t huge = LOCAL_HUGE_PAGE;
    char *room = mmap(NULL, 2 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(room != MAP_FAILED);
    char *page = mmap(room + (huge - (uintptr_t)room % huge) % huge, huge, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    assert_true(page != MAP_FAILED);
    *page = 1;
    const bool given = madvise(page, huge, 25 /* MADV_COLLAPSE */) == 0;
    munmap(room, 2 * huge);
    ls_local_world *world = NULL;
    ls_comm *c = NULL;
    assert_int_equal(ls_local_world_create(2, (size_t)64 << 20, &world), LS_OK);
    assert_int_equal(ls_comm_local(world, 1, &c), LS_OK);
    const char *x = ls_comm_alloc(c, 5 * huge);
    assert_non_null(x);
    const long n = huge_pages_at(x);
    for (size_t i = 0; i < 5 * huge; i++) assert_int_equal(x[i], 0);
    ls_comm_destroy(&c);
    ls_local_world_destroy(&world);
    if (!given || n < 0) {
        print_message(
            "skipped: this kernel does not give huge pages of shared memory on request (MADV_COLLAPSE, Linux 6.1)\n");
        skip();
    }
    assert_int_equal(n, (long)(5 * huge / 1024));
}

static void mismatched(worker *w, ls_comm *c)
{
    float x[4] = {0};
    w->st = w->rank ? ls_all_reduce(c, (ls_view){x, 4, LS_F32}, LS_SITE, NULL)
                    : ls_all_reduce(c, (ls_view){x, 3, LS_F32}, LS_SITE, NULL);
    CHECK(&w->error, w->st == LS_E_COMM);
    CHECK(&w->error, strstr(ls_err_words(), "collective mismatch"));
}

static void mismatched_between(worker *w, ls_comm *c) /* the workers of a host agree with each other */
{
    float x[4] = {0};
    w->st = ls_all_reduce(c, (ls_view){x, w->rank < 2 ? 3 : 4, LS_F32}, LS_SITE, NULL);
    CHECK(&w->error, w->st == LS_E_COMM);
    CHECK(&w->error, strstr(ls_err_words(), "collective mismatch"));
}

static atomic_int n_waiting; /* workers that wait for the late one */

static void late(worker *w, ls_comm *c)
{
    if (w->rank != 2) atomic_fetch_add(&n_waiting, 1);
    CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    ls_comm_set_limit(c, 2); /* seconds; on a busy machine a worker may be late by a part of it */
    if (w->rank == 2) {      /* sleeps until the others have finished */
        while (atomic_load(&n_waiting)) usleep(20000);
        return;
    }
    const double begin = ls_now();
    w->st = ls_barrier(c, LS_SITE);
    CHECK(&w->error, w->st == LS_E_COMM);
    CHECK(&w->error, strstr(ls_err_words(), "look at rank 2"));
    CHECK(&w->error, ls_now() - begin < 60);
    atomic_fetch_sub(&n_waiting, 1);
    while (atomic_load(&n_waiting)) usleep(20000); /* to answer the questions of the others */
}

/* Rank 1 does not send the sixth message. Everyone has done three collectives: nobody is late in them. */
static void no_message(worker *w, ls_comm *c)
{
    float x = 0;
    const ls_view v = {&x, 1, LS_F32};
    if (w->rank != 1) atomic_fetch_add(&n_waiting, 1);
    for (int k = 0; k < 3; k++) CHECK(&w->error, ls_barrier(c, LS_SITE) == LS_OK);
    ls_comm_set_limit(c, 1);
    for (int k = 0; k < 5 && w->rank < 2; k++)
        CHECK(&w->error, (w->rank ? ls_send(c, v, 0, LS_SITE, NULL) : ls_recv(c, v, 1, LS_SITE, NULL)) == LS_OK);
    if (w->rank == 0) {
        CHECK(&w->error, ls_recv(c, v, 1, LS_SITE, NULL) == LS_E_COMM);
        CHECK(&w->error, strstr(ls_err_words(), "in recv #6") && strstr(ls_err_words(), "look at rank 1"));
        CHECK(&w->error, !strstr(ls_err_words(), "is late") && !strstr(ls_err_words(), "does not answer"));
    }
    if (w->rank != 1) atomic_fetch_sub(&n_waiting, 1);
    while (atomic_load(&n_waiting)) usleep(20000);
}

static void abandoned(worker *w, ls_comm *c)
{
    if (w->rank == 1) {
        usleep(100000);
        ls_comm_abort(c, "rank 1 was killed by signal 9");
        return;
    }
    w->st = ls_barrier(c, LS_SITE);
    CHECK(&w->error, w->st == LS_E_COMM);
    CHECK(&w->error, strstr(ls_err_words(), "rank 1 was killed by signal 9"));
}

static void a_failure_names_the_rank(void **state)
{
    (void)state;
    worker w[MAX_W];
    run_world(2, mismatched, w);
    run_world(3, late, w);
    run_world(4, abandoned, w);
    run_hosts((const int[]){1, 1, 0}, mismatched, w);
    run_hosts((const int[]){2, 2, 0}, mismatched_between, w);
    run_hosts((const int[]){2, 2, 0}, late, w);
    run_hosts((const int[]){2, 1, 0}, late, w);
    run_hosts((const int[]){2, 2, 0}, abandoned, w);
    run_hosts((const int[]){1, 2, 0}, no_message, w); /* from another host */
    run_hosts((const int[]){2, 1, 0}, no_message, w); /* from this one */
}

/* Predicted time: 1 s per request plus 1 s per element, on every rank. */
static double predicted(void *ctx, const ls_comm *c, ls_coll kind, int64_t n, ls_dtype dt)
{
    (void)ctx, (void)c, (void)kind, (void)dt;
    return 1 + (double)n;
}

static void a_dry_communicator_predicts_the_time(void **state)
{
    (void)state;
    ls_dry_clock k = {.seconds = predicted};
    ls_comm *c = NULL, *alone = NULL;
    ls_ticket a = 0, b = 0, last = 0;
    const ls_view x = {NULL, 4, LS_F32};
    assert_int_equal(ls_comm_dry_clocked(1, 3, &k, &c), LS_OK);
    assert_int_equal(ls_all_reduce(c, x, LS_SITE, &a), LS_OK); /* 0 to 5                                */
    k.now = 2;
    assert_int_equal(ls_all_reduce(c, x, LS_SITE, &b), LS_OK); /* 5 to 10: after the first               */
    assert_int_equal(ls_send(c, x, 0, LS_SITE, NULL), LS_OK);  /* 2 to 7: in another lane; the call waits */
    assert_true(k.now == 7 && k.waited == 5 && k.busy == 15);
    assert_true(ls_test(c, a) && !ls_test(c, b));
    assert_int_equal(ls_wait(c, a), LS_OK);
    assert_true(k.now == 7);
    k.now = 9;
    assert_int_equal(ls_wait(c, b), LS_OK);
    assert_true(k.now == 10 && k.waited == 6);
    k.now = 100;
    for (int i = 0; i < 400; i++) assert_int_equal(ls_all_reduce(c, x, LS_SITE, &last), LS_OK); /* 100 to 2100 */
    assert_true(k.now == 100 + 5 * (400 - 255)); /* at most 255 requests (the ring) are pending */
    assert_true(ls_test(c, a));
    assert_int_equal(ls_wait(c, last), LS_OK);
    assert_true(k.now == 2100);
    assert_int_equal(ls_comm_stats(c, LS_COLL_ALL_REDUCE).calls, 402);
    assert_int_equal(ls_comm_stats(c, LS_COLL_ALL_REDUCE).elements, 402 * 4);
    assert_int_equal(ls_comm_dry_clocked(0, 1, &k, &alone), LS_OK);
    assert_int_equal(ls_all_reduce(alone, x, LS_SITE, NULL), LS_OK);
    assert_true(k.now == 2100); /* one worker does not communicate */
    ls_comm_destroy(&alone);
    ls_comm_destroy(&c);
}

int main(void)
{
    ls_stack_install("the test"); /* needed for the message of a hang */
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_collective_gives_the_documented_sums),
                                       cmocka_unit_test(tickets_overlap_and_communicators_split),
                                       cmocka_unit_test(several_hosts_give_the_same_results),
                                       cmocka_unit_test(counted_bytes_match_the_formulas),
                                       cmocka_unit_test(workers_have_memory_in_common),
                                       cmocka_unit_test(workers_of_several_hosts_have_none),
                                       cmocka_unit_test(cores_of_workers_that_wait_are_shared),
                                       cmocka_unit_test(a_team_gives_the_bits_of_one_thread),
                                       cmocka_unit_test(large_blocks_have_huge_pages),
                                       cmocka_unit_test(a_failure_names_the_rank),
                                       cmocka_unit_test(a_dry_communicator_predicts_the_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
