/* core/device.h as implemented by the CUDA backend, on the emulated device: order between queues, reuse of mark slots, regions as graphs and what
 * interrupts their recording, and a clear message for every failure of a device. */
/* ls-test: long */
#include "assert_text.h"
#include "compute/cuda/cuda_impl.h"
#include "compute/cuda/kernels/kernels.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) assert_int_equal((call), LS_OK)

static cu_device *opened(int device)
{
    cu_device *d = NULL;
    OK(cu_device_open(&d, &(ls_compute_open_opts){.dtype = LS_F32, .device = device}));
    return d;
}

/* x[i] = v on the queue of operations, by a kernel: y = a + b with a and b in pinned memory. */
typedef struct numbers {
    const ls_device *t;
    float *dev, *a, *b, *back;
} numbers;

#define N 64

static numbers make_numbers(cu_device *d)
{
    numbers n = {.t = &d->table};
    void *p[4];
    OK(n.t->alloc(d, N * sizeof(float), &p[0]));
    for (int i = 1; i < 4; i++) OK(n.t->alloc_host(d, N * sizeof(float), &p[i]));
    n.dev = p[0], n.a = p[1], n.b = p[2], n.back = p[3];
    return n;
}

static void drop_numbers(cu_device *d, numbers *n)
{
    n->t->release(d, n->dev);
    n->t->release_host(d, n->a);
    n->t->release_host(d, n->b);
    n->t->release_host(d, n->back);
}

static void queue_sum(cu_device *d, numbers *n)
{
    assert_int_equal(cu_add(d->stream, LS_F32, n->dev, n->a, n->b, N), 0);
}

static void copies_wait_for_their_marks(void **state)
{
    (void)state;
    cu_device *d = opened(-1);
    numbers n = make_numbers(d);
    ls_mark ready, there;
    assert_true(n.t->owns(d, n.dev) && n.t->owns(d, n.dev + N - 1) && !n.t->owns(d, n.dev + N) &&
                !n.t->owns(d, n.back));
    /* alloc gives zeros */
    OK(n.t->copy(d, 0, n.back, n.dev, N * sizeof(float), 0, &there));
    OK(n.t->wait(d, there));
    for (int i = 0; i < N; i++) assert_true(n.back[i] == 0);
    /* to the host, after the operations that are queued */
    for (int i = 0; i < N; i++) n.a[i] = (float)i, n.b[i] = 1;
    queue_sum(d, &n);
    OK(n.t->mark(d, &ready));
    OK(n.t->copy(d, 0, n.back, n.dev, N * sizeof(float), ready, &there));
    assert_false(n.t->test(d, there));
    OK(n.t->wait(d, there));
    assert_true(n.t->test(d, there) && n.t->test(d, ready) && n.t->test(d, 0));
    for (int i = 0; i < N; i++) assert_true(n.back[i] == (float)i + 1);
    /* to the device, before the operations that are queued next; in another lane, with an addition in that lane */
    int lane = 0;
    OK(n.t->lane_open(d, &lane));
    assert_int_equal(lane, 1);
    for (int i = 0; i < N; i++) n.back[i] = 100;
    OK(n.t->copy(d, lane, n.dev, n.back, N * sizeof(float), 0, NULL));
    OK(n.t->add(d, lane, n.dev, n.dev, n.a, N, LS_F32));
    OK(n.t->copy(d, lane, n.dev, n.dev, N * sizeof(float), 0, &there));
    OK(n.t->hold(d, there));
    assert_int_equal(cu_add(d->stream, LS_F32, n.dev, n.dev, n.b, N), 0);
    OK(n.t->mark(d, &ready));
    OK(n.t->copy(d, 0, n.back, n.dev, N * sizeof(float), ready, &there));
    OK(n.t->wait(d, there));
    for (int i = 0; i < N; i++) assert_true(n.back[i] == 101 + (float)i);
    n.t->lane_close(d, lane);
    for (int i = 1; i < LS_DEVICE_LANES; i++) OK(n.t->lane_open(d, &lane));
    assert_int_equal(n.t->lane_open(d, &lane), LS_E_UNSUPPORTED);
    drop_numbers(d, &n);
    cu_device_close(&d);
    const emu_counts c = emu_count();
    assert_int_equal(c.allocations + c.pinned + c.streams + c.events + c.graphs, 0);
}

/* More marks than the ring has slots, some waited for late: times are in order, and unknown for a mark whose slot was reused. */
static void reused_mark_slots_stay_correct(void **state)
{
    (void)state;
    cu_device *d = opened(0);
    const ls_device *t = &d->table;
    ls_mark first = 0, m = 0, old = 0;
    double at = -1, last = -1;
    for (int i = 0; i < 40000; i++) {
        old = m;
        OK(t->mark(d, &m));
        assert_true(m > old);
        if (!first) first = m;
        if (i % 1000 == 7) {
            OK(t->seconds(d, m, &at));
            assert_true(at >= last && at >= 0);
            last = at;
        }
    }
    OK(t->wait(d, first));
    assert_true(t->test(d, first));
    OK(t->hold(d, first));
    OK(t->seconds(d, first, &at)); /* the slot was reused: the time is unknown, which is no failure */
    assert_true(isnan(at));
    OK(t->seconds(d, old, &at));
    OK(t->sync(d));
    cu_device_close(&d);
}

static void add_one(cu_device *d, numbers *n)
{
    assert_int_equal(cu_add(d->stream, LS_F32, n->dev, n->dev, n->b, N), 0);
}

static float value(cu_device *d, numbers *n)
{
    ls_mark now, there;
    OK(n->t->mark(d, &now));
    OK(n->t->copy(d, 0, n->back, n->dev, N * sizeof(float), now, &there));
    OK(n->t->wait(d, there));
    return n->back[5];
}

static void a_repeated_region_runs_as_a_graph(void **state)
{
    (void)state;
    cu_device *d = opened(0);
    numbers n = make_numbers(d);
    for (int i = 0; i < N; i++) n.b[i] = 1;
    bool queued, inner;
    float want = 0;
    for (int time = 0; time < 5; time++) {
        OK(cu_region_begin(&d->regions, 11, &queued));
        assert_int_equal(queued, time >= 2);
        if (!queued) {
            add_one(d, &n);
            OK(cu_region_begin(&d->regions, 12, &inner)); /* a part of the outer region */
            assert_false(inner);
            add_one(d, &n);
            OK(cu_region_end(&d->regions));
            add_one(d, &n);
            OK(cu_region_end(&d->regions));
        }
        want += 3;
        assert_true(value(d, &n) == want);
    }
    assert_int_equal(emu_count().graph_launches, 4);
    /* a mark inside of a region: no operation is lost, and the region is not recorded again */
    for (int time = 0; time < 4; time++) {
        ls_mark m;
        OK(cu_region_begin(&d->regions, 21, &queued));
        assert_false(queued);
        add_one(d, &n);
        OK(n.t->mark(d, &m));
        add_one(d, &n);
        OK(cu_region_end(&d->regions));
        want += 2;
        OK(n.t->wait(d, m));
        assert_true(value(d, &n) == want);
    }
    assert_int_equal(d->regions.n_recorded, 2);
    assert_int_equal(d->regions.n_cut, 1);
    assert_int_equal(d->regions.n_launched, 3);
    /* more names than the table keeps */
    for (uint64_t name = 1000; name < 4000; name++) {
        OK(cu_region_begin(&d->regions, name, &queued));
        assert_false(queued);
        OK(cu_region_end(&d->regions));
    }
    OK(cu_region_begin(&d->regions, 11, &queued));
    assert_false(queued); /* forgotten */
    OK(cu_region_end(&d->regions));
    drop_numbers(d, &n);
    cu_device_close(&d);
    assert_int_equal(emu_count().graphs, 0);
}

static void an_environment_variable_disables_graphs(void **state)
{
    (void)state;
    setenv("LS_CUDA_GRAPHS", "0", 1);
    cu_device *d = opened(0);
    bool queued;
    for (int time = 0; time < 4; time++) {
        OK(cu_region_begin(&d->regions, 1, &queued));
        assert_false(queued);
        OK(cu_region_end(&d->regions));
    }
    assert_int_equal(emu_count().graphs, 0);
    cu_device_close(&d);
    unsetenv("LS_CUDA_GRAPHS");
}

typedef struct other {
    cu_device *d;
    int n;
} other;

static void *marks_of_another(void *arg)
{
    other *o = arg;
    for (int i = 0; i < o->n; i++) {
        ls_mark m;
        if (o->d->table.mark(o->d, &m) != LS_OK || o->d->table.hold(o->d, m) != LS_OK ||
            o->d->table.wait(o->d, m) != LS_OK)
            return "failed";
    }
    return NULL;
}

/* Another thread marks and holds the queue all the time; it waits while this thread records. */
static void other_threads_may_mark_during_recording(void **state)
{
    (void)state;
    cu_device *d = opened(0);
    numbers n = make_numbers(d);
    for (int i = 0; i < N; i++) n.b[i] = 1;
    other o = {d, 200};
    pthread_t thread;
    void *failure = NULL;
    pthread_create(&thread, NULL, marks_of_another, &o);
    for (int i = 0; i < 100; i++) {
        bool queued;
        OK(cu_region_begin(&d->regions, (uint64_t)(i % 30), &queued));
        if (!queued) {
            add_one(d, &n);
            add_one(d, &n);
            OK(cu_region_end(&d->regions));
        }
    }
    pthread_join(thread, &failure);
    assert_null(failure);
    if (value(d, &n) != 200) fail_msg("%g, expected 200", (double)n.back[5]);
    drop_numbers(d, &n);
    cu_device_close(&d);
}

/* ---- failures ---- */

static void check_failure(ls_status st, ls_status want, const char *part)
{
    assert_int_equal(st, want);
    assert_words(part);
}

static void every_failure_has_a_clear_message(void **state)
{
    (void)state;
    cu_device *d = NULL;
    ls_compute_open_opts o = {.dtype = LS_F32, .device = 3};
    char words[400];
    check_failure(cu_device_open(&d, &o), LS_E_UNSUPPORTED,
                  "CUDA device 3 does not exist: there is 1, numbered from 0");
    setenv("LS_EMU_DEVICES", "0", 1);
    o.device = -1;
    check_failure(cu_device_open(&d, &o), LS_E_UNSUPPORTED, "no CUDA device");
    assert_int_equal(cuda_probe(words, sizeof words), 0);
    assert_non_null(strstr(words, "no CUDA device"));
    setenv("LS_EMU_DEVICES", "-1", 1);
    check_failure(cu_device_open(&d, &o), LS_E_UNSUPPORTED, "the NVIDIA driver is too old: it supports CUDA 13.0");
    setenv("LS_EMU_DEVICES", "2", 1);
    assert_int_equal(cuda_probe(words, sizeof words), 2);
    assert_non_null(strstr(words, "devices 0 to 1: emulated device, 8 GiB"));
    o.local_rank = 3; /* four workers on two devices */
    OK(cu_device_open(&d, &o));
    ls_device_info info;
    OK(d->table.info(d, &info));
    assert_string_equal(info.bus, "0000:01:00.0");
    assert_int_equal(info.index, 1);
    unsetenv("LS_EMU_DEVICES");
    cu_device_close(&d);

    d = opened(0);
    void *p = NULL;
    setenv("LS_EMU_MEMORY", "4194304", 1);
    check_failure(d->table.alloc(d, 5 << 20, &p), LS_E_NOMEM,
                  "device 0: cannot allocate 5 MiB; 4 of its 4 MiB are free");
    unsetenv("LS_EMU_MEMORY");
    emu_fail("cudaHostAlloc", cudaErrorMemoryAllocation, 0);
    check_failure(d->table.alloc_host(d, 5 << 20, &p), LS_E_NOMEM,
                  "cannot allocate 5242880 bytes for pinned host memory");
    emu_fail("cudaMemsetAsync", cudaErrorInvalidValue, 0);
    check_failure(d->table.alloc(d, 100, &p), LS_E_DEVICE, "cudaMemsetAsync");
    assert_int_equal(emu_count().allocations, 0);

    numbers n = make_numbers(d);
    ls_mark m;
    queue_sum(d, &n);
    OK(d->table.mark(d, &m));
    emu_break(cudaErrorIllegalAddress);
    check_failure(d->table.wait(d, m), LS_E_DEVICE, "the device is no longer usable");
    check_failure(d->table.sync(d), LS_E_DEVICE, "the device is no longer usable");
    assert_true(d->table.test(d, m)); /* so that nobody waits forever */
    emu_break(cudaSuccess);
    /* a recording that fails */
    bool queued;
    for (int time = 0; time < 2; time++) {
        OK(cu_region_begin(&d->regions, 5, &queued));
        queue_sum(d, &n);
        if (time) emu_fail("cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated, 0);
        const ls_status st = cu_region_end(&d->regions);
        if (time) check_failure(st, LS_E_DEVICE, "LS_CUDA_GRAPHS=0 disables graphs");
        else OK(st);
    }
    drop_numbers(d, &n);
    cu_device_close(&d);
}

/* Each call and each allocation of opening may fail; nothing is leaked. */
static void a_failed_open_leaks_nothing(void **state)
{
    (void)state;
    static const char *const calls[] = {"cudaSetDevice",
                                        "cudaStreamCreateWithFlags",
                                        "cudaEventRecordWithFlags",
                                        "cudaEventCreateWithFlags",
                                        "cudaDeviceGetStreamPriorityRange",
                                        "cudaEventSynchronize"};
    const int64_t before = ls_mem_live();
    for (size_t i = 0; i < N_OF(calls); i++) {
        cu_device *d = NULL;
        emu_fail(calls[i], cudaErrorUnknown, 0);
        assert_int_equal(cu_device_open(&d, &(ls_compute_open_opts){.device = -1}), LS_E_DEVICE);
        assert_null(d);
    }
    for (int k = 0; k < 3; k++) {
        cu_device *d = NULL;
        ls_mem_fail_at(k);
        const ls_status st = cu_device_open(&d, &(ls_compute_open_opts){.device = -1});
        ls_mem_fail_at(-1);
        assert_int_equal(st, LS_E_NOMEM);
    }
    assert_int_equal(ls_mem_live(), before);
    const emu_counts c = emu_count();
    assert_int_equal(c.allocations + c.pinned + c.streams + c.events + c.graphs, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_wait_for_their_marks),
        cmocka_unit_test(reused_mark_slots_stay_correct),
        cmocka_unit_test(a_repeated_region_runs_as_a_graph),
        cmocka_unit_test(an_environment_variable_disables_graphs),
        cmocka_unit_test(other_threads_may_mark_during_recording),
        cmocka_unit_test(every_failure_has_a_clear_message),
        cmocka_unit_test(a_failed_open_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
