/* Times of a device in a trace: records of CUPTI (a fake library, tests/fake_cupti) joined with units and operations, also inside graphs, on the clock
 * of the host; and CUDA events where CUPTI is not available. */
#include "compute/kernel_times.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "report/read/trace_read.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *dir;

/* ---- a device that runs nothing ---- */

static struct {
    double seconds[4096]; /* of mark i */
    uint64_t n;
    double now;
    int regions;
} device;

static ls_status dev_mark(void *ctx, ls_mark *out)
{
    (void)ctx;
    device.seconds[device.n % 4096] = device.now;
    *out = ++device.n;
    return LS_OK;
}

static ls_status dev_wait(void *ctx, ls_mark m)
{
    (void)ctx;
    (void)m;
    return LS_OK;
}

static ls_status dev_seconds(void *ctx, ls_mark m, double *at)
{
    (void)ctx;
    if (m + 4096 <= device.n) return ls_fail(LS_E_DEVICE, "mark %llu is no longer known", (unsigned long long)m);
    *at = device.seconds[(m - 1) % 4096];
    return LS_OK;
}

static ls_status dev_sync(void *ctx)
{
    (void)ctx;
    return LS_OK;
}

static void (*launch)(const char *, uint32_t, int64_t, int64_t);
static void (*copy)(uint64_t, uint32_t, int64_t, int64_t);
static uint64_t (*new_node)(void);
static uint64_t (*clone_node)(uint64_t);
static void (*run_graph)(uint32_t, const uint64_t *, const char *const *, int, uint32_t, int64_t, int64_t);
static bool recording;
static uint64_t nodes[64];
static int n_node;
static int64_t at; /* the time on the device, ns */

static ls_status linear_fwd(ls_compute *c, void *y, const void *x, const void *w, const void *b, int64_t R, int64_t K,
                            int64_t N)
{
    (void)c, (void)y, (void)x, (void)w, (void)b, (void)R, (void)K, (void)N;
    device.now += 0.010;
    if (recording) {
        nodes[n_node++] = new_node();
    } else if (launch) {
        launch("_ZN7cutlass6KernelI10gemm_tn_64EEvPKfi", 7, at, at + 1000);
        at += 1000;
    }
    return LS_OK;
}

static ls_status adamw(ls_compute *c, void *p, void *master, const void *g, void *m, void *v, int64_t n,
                       const ls_adamw *h)
{
    (void)c, (void)p, (void)master, (void)g, (void)m, (void)v, (void)n, (void)h;
    device.now += 0.005;
    if (launch) {
        launch("adamw_kernel<float>(float*)", 7, at, at + 500);
        at += 500;
    }
    return LS_OK;
}

static ls_status region_begin(ls_compute *c, uint64_t name, bool *queued)
{
    (void)c, (void)name;
    device.regions++;
    *queued = false;
    return LS_OK;
}

static ls_status region_end(ls_compute *c)
{
    (void)c;
    return LS_OK;
}

static const ls_device table = {.mark = dev_mark, .wait = dev_wait, .seconds = dev_seconds, .sync = dev_sync};
static const ls_compute_ops ops = {
    .name = "fake", .linear_fwd = linear_fwd, .adamw = adamw, .region_begin = region_begin, .region_end = region_end};

static void unit_of(ls_compute *c, int u, ls_span_kind kind)
{
    const ls_trace_span s = {.kind = (uint8_t)kind, .name = u ? "h" : "embed", .index = u};
    bool queued;
    const int64_t t0 = ls_unit_begin(u, &s);
    if (c->ops->region_begin) assert_int_equal(c->ops->region_begin(c, 1, &queued), LS_OK);
    assert_int_equal(c->ops->linear_fwd(c, NULL, NULL, NULL, NULL, 1, 1, 1), LS_OK);
    if (c->ops->region_begin) assert_int_equal(c->ops->region_end(c), LS_OK);
    ls_unit_end(t0, &s);
    assert_int_equal(ls_trace_unit.id, 0);
}

static int fresh(void **state)
{
    (void)state;
    memset(&device, 0, sizeof device);
    launch = NULL;
    n_node = 0;
    unsetenv("LS_CUPTI");
    unsetenv("FAKE_CUPTI_REFUSE");
    dir = test_dir();
    return 0;
}

static int remove_all(void **state)
{
    (void)state;
    test_dir_close(dir);
    return 0;
}

/* Replaces CUPTI by the fake library; skips the test if the headers were not found. */
static void use_fake_cupti(void)
{
    const char *build = getenv("LS_BUILD") ? getenv("LS_BUILD") : "build";
    char path[512];
    snprintf(path, sizeof path, "%s/fake_cupti.so", build);
    SKIP_UNLESS(ls_fs_exists(path), "fake_cupti.so is built where cupti.h is installed");
    setenv("LS_CUPTI_LIBRARY", path, 1);
    setenv("LS_PLUGIN_DIR", build, 1);
    void *lib = dlopen(path, RTLD_NOW);
    assert_non_null(lib);
    *(void **)&launch = dlsym(lib, "fake_kernel");
    *(void **)&copy = dlsym(lib, "fake_copy");
    *(void **)&new_node = dlsym(lib, "fake_node");
    *(void **)&clone_node = dlsym(lib, "fake_clone");
    *(void **)&run_graph = dlsym(lib, "fake_graph");
    assert_true(launch && copy && new_node && clone_node && run_graph);
}

static json_t *written(ls_trace *t)
{
    json_t *root = NULL;
    char path[256];
    assert_int_equal(ls_trace_write(t, dir, "here"), LS_OK);
    snprintf(path, sizeof path, "%s/trace.rank0.json", dir);
    assert_int_equal(ls_json_load(path, &root), LS_OK);
    json_t *list = json_incref(json_object_get(root, "traceEvents"));
    json_decref(root);
    return list;
}

/* The number-th span of a category, or NULL. */
static const json_t *span(const json_t *list, const char *cat, int number)
{
    size_t i;
    json_t *e;
    json_array_foreach(list, i, e)
    {
        const char *c = json_string_value(json_object_get(e, "cat"));
        if (c && !strcmp(c, cat) && number-- == 0) return e;
    }
    return NULL;
}

static void assert_span(const json_t *e, const char *name, const char *what, double ts, double dur)
{
    const char *place = json_string_value(json_object_get(json_object_get(e, "args"), "for"));
    assert_non_null(e);
    assert_string_equal(json_string_value(json_object_get(e, "name")), name);
    if (what) assert_string_equal(place, what);
    else assert_null(place);
    if (ts >= 0 && fabs(json_number_value(json_object_get(e, "ts")) - ts) >
                       50) /* microseconds; the clock offset is far more exact */
        fail_msg("%s at %g, expected %g", name, json_number_value(json_object_get(e, "ts")), ts);
    assert_true(fabs(json_number_value(json_object_get(e, "dur")) - dur) < 0.01 + 1e-3 * dur);
}

static const char *lane_of(const json_t *list, const json_t *e)
{
    size_t i;
    json_t *m;
    json_array_foreach(list, i, m)
    {
        const char *n = json_string_value(json_object_get(m, "name"));
        if (n && !strcmp(n, "thread_name") &&
            json_integer_value(json_object_get(m, "tid")) == json_integer_value(json_object_get(e, "tid")))
            return json_string_value(json_object_get(json_object_get(m, "args"), "name"));
    }
    return "?";
}

static void cupti_records_are_joined_with_units(void **state)
{
    (void)state;
    ls_kernel_times *k = NULL;
    ls_kernel_facts f;
    ls_trace *t = NULL;
    ls_compute c = {.ops = &ops, .device = &table};
    use_fake_cupti();
    assert_int_equal(ls_trace_create(&t, 0), LS_OK);
    const int64_t base = ls_trace_now();
    ls_trace_set_base(t, base);
    at = base + 1000000;
    assert_int_equal(ls_kernel_times_begin(&k, &c, "cupti_test", 100000), LS_OK);
    assert_non_null(strstr(ls_kernel_times_words(k), "every kernel"));
    assert_true(c.ops != &ops);
    unit_of(&c, 0, LS_SPAN_FWD);
    unit_of(&c, 3, LS_SPAN_FWD);
    unit_of(&c, 3, LS_SPAN_BWD);
    assert_int_equal(c.ops->adamw(&c, NULL, NULL, NULL, NULL, NULL, 1, NULL), LS_OK);
    copy(4096, 13, base + 1000500, base + 1002500); /* at the same time as the kernels, outside of any unit */
    launch("lonely", 7, at - 200, at + 100);        /* overlaps the previous kernel */
    assert_int_equal(device.regions, 3);

    /* A graph: recorded with two units in it, instantiated, launched twice from outside any unit. */
    const char *const names[] = {"a", "b"};
    uint64_t exec[2];
    recording = true;
    unit_of(&c, 1, LS_SPAN_FWD);
    unit_of(&c, 2, LS_SPAN_BWD);
    recording = false;
    assert_int_equal(n_node, 2);
    for (int i = 0; i < 2; i++) exec[i] = clone_node(nodes[i]);
    run_graph(5, exec, names, 2, 9, base + 2000000, 3000);
    run_graph(5, exec, names, 2, 9, base + 2100000, 3000);
    assert_int_equal(ls_kernel_times_end(&k, t, &f), LS_OK);
    assert_null(k);
    assert_ptr_equal(c.ops, &ops);
    assert_int_equal(f.seen, 10);
    assert_int_equal(f.dropped, 0);
    assert_true(f.offset[0] < -999000000000 && f.error < 100000000);

    json_t *list = written(t);
    assert_span(span(list, "kernel", 0), "cutlass::Kernel<gemm_tn_64>", "forward embed linear_fwd", 1000, 1);
    assert_span(span(list, "kernel", 1), "cutlass::Kernel<gemm_tn_64>", "forward h.2 linear_fwd", 1001, 1);
    assert_span(span(list, "kernel", 2), "cutlass::Kernel<gemm_tn_64>", "backward h.2 linear_fwd", 1002, 1);
    assert_span(span(list, "kernel", 3), "adamw_kernel<float>", "adamw", 1003, 0.5);
    assert_string_equal(lane_of(list, span(list, "kernel", 3)), "device stream 7");
    assert_span(span(list, "kernel", 4), "lonely", NULL, 1003.3, 0.3);
    assert_string_equal(lane_of(list, span(list, "kernel", 4)), "device stream 7 (2)");
    assert_span(span(list, "kernel", 5), "a", "forward h.0 linear_fwd", 2000, 3);
    assert_span(span(list, "kernel", 6), "b", "backward h.1 linear_fwd", 2003, 3);
    assert_span(span(list, "kernel", 7), "a", "forward h.0 linear_fwd", 2100, 3);
    assert_span(span(list, "kernel", 8), "b", "backward h.1 linear_fwd", 2103, 3);
    assert_null(span(list, "kernel", 9));
    assert_span(span(list, "copy", 0), "copy host to device", NULL, 1000.5, 2);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(span(list, "copy", 0), "args"), "bytes")),
                     4096);
    json_decref(list);

    trace_facts sums = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/trace.rank0.json", dir);
    assert_int_equal(trace_read(path, &sums), LS_OK);
    assert_string_equal(sums.table[TRACE_DEVICE_OP].row[0].name, "linear_fwd");
    assert_int_equal(sums.table[TRACE_DEVICE_OP].row[0].calls, 7);
    assert_int_equal(sums.table[TRACE_KERNEL].n, 6);
    assert_true(fabs(sums.rank[0].us[TRACE_US_COPY] - 2) < 0.1);
    trace_facts_fini(&sums);
    ls_trace_destroy(&t);
}

static void only_the_newest_kernels_are_kept(void **state)
{
    (void)state;
    ls_kernel_times *k = NULL;
    ls_kernel_facts f;
    ls_trace *t = NULL;
    ls_compute c = {.ops = &ops, .device = &table};
    use_fake_cupti();
    assert_int_equal(ls_trace_create(&t, 0), LS_OK);
    at = ls_trace_now();
    assert_int_equal(ls_kernel_times_begin(&k, &c, "cupti_test", 2000), LS_OK);
    for (int i = 0; i < 5000; i++) unit_of(&c, 1 + i % 12, LS_SPAN_FWD);
    assert_int_equal(ls_kernel_times_end(&k, t, &f), LS_OK);
    assert_int_equal(f.seen, 5000);
    assert_int_equal(f.dropped, 3000);
    assert_int_equal(ls_trace_spans(t, NULL), 2000);
    ls_trace_destroy(&t);
}

static void a_graph_can_be_one_span(void **state)
{
    (void)state;
    ls_kernel_times *k = NULL;
    ls_kernel_facts f;
    ls_trace *t = NULL;
    ls_compute c = {.ops = &ops, .device = &table};
    use_fake_cupti();
    setenv("LS_CUPTI", "graph", 1);
    assert_int_equal(ls_trace_create(&t, 0), LS_OK);
    const int64_t base = ls_trace_now();
    ls_trace_set_base(t, base);
    assert_int_equal(ls_kernel_times_begin(&k, &c, "cupti_test", 2000), LS_OK);
    assert_non_null(strstr(ls_kernel_times_words(k), "graphs as a whole"));
    const char *const names[] = {"a", "b"};
    const uint64_t exec[2] = {1, 2};
    run_graph(5, exec, names, 2, 9, base + 1000000, 3000);
    assert_int_equal(ls_kernel_times_end(&k, t, &f), LS_OK);
    assert_true(f.whole_graphs && f.seen == 1);
    json_t *list = written(t);
    assert_span(span(list, "kernel", 0), "graph", NULL, 1000, 6);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(span(list, "kernel", 0), "args"), "seq")), 5);
    json_decref(list);
    ls_trace_destroy(&t);
}

/* Units one after the other on a device whose clock is known. */
static void run_marks(ls_kernel_times **k, ls_compute *c)
{
    for (int u = 0; u < 300; u++) unit_of(c, 1 + u % 3, LS_SPAN_FWD);
    assert_int_equal(c->ops->adamw(c, NULL, NULL, NULL, NULL, NULL, 1, NULL), LS_OK);
    assert_int_equal(device.regions, 0); /* no graph is recorded */
    (void)k;
}

static void check_marks(ls_kernel_times *k, ls_compute *c)
{
    ls_trace *t = NULL;
    ls_kernel_facts f;
    assert_int_equal(ls_trace_create(&t, 0), LS_OK);
    run_marks(&k, c);
    assert_int_equal(ls_kernel_times_end(&k, t, &f), LS_OK);
    assert_int_equal(f.seen, 301);
    assert_int_equal(f.lost, 0);
    json_t *list = written(t);
    assert_string_equal(lane_of(list, span(list, "kernel", 0)), "device units");
    assert_string_equal(json_string_value(json_object_get(span(list, "kernel", 0), "name")), "forward h.0");
    assert_string_equal(json_string_value(json_object_get(span(list, "kernel", 1), "name")), "forward h.1");
    assert_string_equal(json_string_value(json_object_get(span(list, "kernel", 300), "name")), "adamw");
    json_decref(list);
    ls_trace_destroy(&t);
}

static void without_cupti_units_are_timed_by_events(void **state)
{
    (void)state;
    ls_kernel_times *k = NULL;
    ls_compute c = {.ops = &ops, .device = &table};
    setenv("LS_PLUGIN_DIR", dir, 1); /* a folder without the plugin */
    assert_int_equal(ls_kernel_times_begin(&k, &c, "nothing", 10000), LS_OK);
    assert_non_null(strstr(ls_kernel_times_words(k), "per-unit times from CUDA events"));
    assert_non_null(strstr(ls_kernel_times_words(k), "does not exist"));
    check_marks(k, &c);
    unsetenv("LS_PLUGIN_DIR");
}

static void a_refusal_of_cupti_falls_back_to_events(void **state)
{
    (void)state;
    ls_kernel_times *k = NULL;
    ls_compute c = {.ops = &ops, .device = &table};
    use_fake_cupti();
    launch = NULL;
    setenv("FAKE_CUPTI_REFUSE", "kernel", 1);
    assert_int_equal(ls_kernel_times_begin(&k, &c, "cupti_test", 1000), LS_OK);
    assert_non_null(strstr(ls_kernel_times_words(k), "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"));
    check_marks(k, &c);
    k = NULL;
    setenv("LS_CUPTI", "off", 1);
    memset(&device, 0, sizeof device);
    assert_int_equal(ls_kernel_times_begin(&k, &c, "cupti_test", 1000), LS_OK);
    assert_non_null(strstr(ls_kernel_times_words(k), "LS_CUPTI=off"));
    assert_int_equal(ls_kernel_times_end(&k, NULL, NULL), LS_OK);
}

static void failed_allocations_leak_nothing(void **state)
{
    (void)state;
    const int64_t live = ls_mem_live();
    for (int64_t n = 0;; n++) {
        ls_kernel_times *k = NULL;
        ls_trace *t = NULL;
        ls_compute c = {.ops = &ops, .device = &table};
        assert_int_equal(ls_trace_create(&t, 0), LS_OK);
        ls_mem_fail_at(n);
        ls_status st = ls_kernel_times_begin(&k, &c, "nothing", 1000);
        if (st == LS_OK) {
            unit_of(&c, 1, LS_SPAN_FWD);
            unit_of(&c, 2, LS_SPAN_FWD);
            st = ls_kernel_times_end(&k, t, NULL);
        }
        ls_mem_fail_at(-1);
        assert_null(k);
        assert_ptr_equal(c.ops, &ops);
        ls_trace_destroy(&t);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK && n > 20) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cupti_records_are_joined_with_units, fresh, remove_all),
        cmocka_unit_test_setup_teardown(only_the_newest_kernels_are_kept, fresh, remove_all),
        cmocka_unit_test_setup_teardown(a_graph_can_be_one_span, fresh, remove_all),
        cmocka_unit_test_setup_teardown(without_cupti_units_are_timed_by_events, fresh, remove_all),
        cmocka_unit_test_setup_teardown(a_refusal_of_cupti_falls_back_to_events, fresh, remove_all),
        cmocka_unit_test_setup_teardown(failed_allocations_leak_nothing, fresh, remove_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
