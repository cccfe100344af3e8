/* Spans are recorded by several threads at once, written, merged and summed; a full lane drops its oldest spans and counts them. */
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/trace.h"
#include "report/read/trace_read.h"
#include "report/compat/profile_summary.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *dir, profiles[160];

static int fresh(void **state)
{
    (void)state;
    dir = test_dir();
    snprintf(profiles, sizeof profiles, "%s/profiles", dir);
    return 0;
}

static int remove_all(void **state)
{
    (void)state;
    ls_trace_enter(NULL);
    test_dir_close(dir);
    return 0;
}

static void record(const char *name, int index, int inner)
{
    const int64_t t0 = ls_span_begin();
    for (int i = 0; i < inner; i++) {
        const int64_t t1 = ls_span_begin();
        ls_span_end(t1, (ls_trace_span){.kind = LS_SPAN_FWD, .name = "h", .index = i + 1});
    }
    ls_span_end(
        t0, (ls_trace_span){.kind = LS_SPAN_PHASE, .name = name, .index = index, .bytes = 7, .site = "x/src/a.c:1"});
}

static json_t *events(const char *name)
{
    json_t *root = NULL;
    char path[256];
    snprintf(path, sizeof path, "%s/%s", profiles, name);
    assert_int_equal(ls_json_load(path, &root), LS_OK);
    json_t *list = json_incref(json_object_get(root, "traceEvents"));
    assert_true(json_is_array(list));
    json_decref(root);
    return list;
}

/* Spans of one thread in a file, checked for order and nesting. */
static int check_lane(const json_t *list, int pid, int tid)
{
    double stack[64], last = 0;
    int n = 0, depth = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X")) continue;
        if (json_integer_value(json_object_get(e, "pid")) != pid ||
            json_integer_value(json_object_get(e, "tid")) != tid)
            continue;
        const double ts = json_real_value(json_object_get(e, "ts")),
                     end = ts + json_real_value(json_object_get(e, "dur"));
        assert_true(ts >= last);
        last = ts;
        while (depth && stack[depth - 1] <= ts + 5e-4) depth--; /* half a nanosecond: the rounding of decimal sums */
        if (depth) assert_true(end <= stack[depth - 1] + 5e-4);
        stack[depth++] = end;
        n++;
    }
    return n;
}

static void recording_without_a_trace_does_nothing(void **state)
{
    (void)state;
    const int64_t before = ls_mem_count();
    assert_int_equal(ls_span_begin(), 0);
    record("nothing", 0, 3);
    ls_trace_count("loss", 1);
    assert_int_equal(ls_mem_count(), before);
}

static void recorded_spans_are_written(void **state)
{
    (void)state;
    ls_trace *t = NULL;
    ls_lane *lane = NULL, *unused = NULL;
    assert_int_equal(ls_trace_create(&t, 0), LS_OK);
    assert_int_equal(ls_trace_lane(t, "main \"x\"", 100, &lane), LS_OK);
    assert_int_equal(ls_trace_lane(t, "unused", 100, &unused), LS_OK);
    ls_trace_enter(lane);
    const int64_t before = ls_mem_count();
    record("train/forward", 0, 4);
    record("train/backward", 3, 2);
    ls_trace_count("loss", 2.5);
    assert_int_equal(ls_mem_count(), before); /* recording allocates nothing */
    ls_trace_enter(NULL);
    assert_int_equal(ls_span_begin(), 0);
    int64_t dropped = -1;
    assert_int_equal(ls_trace_spans(t, &dropped), 9);
    assert_int_equal(dropped, 0);
    assert_int_equal(ls_trace_write(t, profiles, "here"), LS_OK);
    json_t *list = events("trace.rank0.json");
    assert_int_equal(check_lane(list, 0, 1), 8);
    assert_int_equal(check_lane(list, 0, 2), 0);
    bool named = false, counted = false, site = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i), *args = json_object_get(e, "args");
        const char *name = json_string_value(json_object_get(args, "name"));
        named = named || (name && !strcmp(name, "main \"x\""));
        assert_false(name && !strcmp(name, "unused"));
        counted = counted || json_real_value(json_object_get(args, "loss")) == 2.5;
        const char *s = json_string_value(json_object_get(args, "site"));
        site = site || (s && !strcmp(s, "a.c:1") && json_integer_value(json_object_get(args, "bytes")) == 7);
    }
    assert_true(named && counted && site);
    json_decref(list);
    ls_trace_destroy(&t);
    assert_null(t);
}

static void a_full_lane_drops_the_oldest_spans(void **state)
{
    (void)state;
    ls_trace *t = NULL;
    ls_lane *lane = NULL;
    assert_int_equal(ls_trace_create(&t, 0), LS_OK);
    assert_int_equal(ls_trace_lane(t, "main", 100, &lane), LS_OK); /* 128 */
    ls_trace_enter(lane);
    for (int i = 0; i < 1000; i++) record("p", i + 1, 3);
    ls_trace_enter(NULL);
    int64_t dropped = 0;
    const int64_t kept = ls_trace_spans(t, &dropped);
    assert_int_equal(kept + dropped, 4000);
    assert_in_range(kept, 100, 128);
    assert_int_equal(ls_trace_write(t, profiles, "here"), LS_OK);
    json_t *list = events("trace.rank0.json");
    assert_int_equal(check_lane(list, 0, 1), (int)kept); /* still nested; the newest span is kept */
    const json_t *first = NULL;
    bool newest = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(e, "name"));
        if (!strcmp(name, "lockstep_rank")) first = json_object_get(e, "args");
        newest = newest || !strcmp(name, "p.999");
    }
    assert_true(newest);
    assert_int_equal(json_integer_value(json_object_get(first, "dropped")), dropped);
    json_decref(list);
    ls_trace_destroy(&t);
}

enum { RANKS = 4, THREADS = 3 };

typedef struct worker {
    int rank;
    ls_trace *trace;
} worker;

static void *in_lane(void *arg)
{
    ls_trace_enter(arg);
    for (int i = 0; i < 200; i++) record("train/backward", 0, 2);
    return NULL;
}

static void *one_rank(void *arg)
{
    worker *w = arg;
    pthread_t thread[THREADS];
    assert_int_equal(ls_trace_create(&w->trace, w->rank), LS_OK);
    ls_trace_set_base(w->trace, 0);
    for (int k = 0; k < THREADS; k++) {
        ls_lane *lane = NULL;
        char name[16];
        snprintf(name, sizeof name, "lane %d", k);
        assert_int_equal(ls_trace_lane(w->trace, name, 1000, &lane), LS_OK);
        assert_int_equal(pthread_create(&thread[k], NULL, in_lane, lane), 0);
    }
    for (int k = 0; k < THREADS; k++) pthread_join(thread[k], NULL);
    assert_int_equal(ls_trace_write(w->trace, profiles, w->rank % 2 ? "odd" : "even"), LS_OK);
    ls_trace_destroy(&w->trace);
    return NULL;
}

/* Ranks as threads of one process, three recording threads each. */
static void ranks_are_merged_into_one_file(void **state)
{
    (void)state;
    pthread_t thread[RANKS];
    worker w[RANKS];
    for (int r = 0; r < RANKS; r++) {
        w[r] = (worker){.rank = r};
        assert_int_equal(pthread_create(&thread[r], NULL, one_rank, &w[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
    assert_int_equal(ls_trace_merge(profiles, RANKS + 1),
                     LS_E_IO); /* there is no rank 4; the files of the others are kept */
    assert_non_null(strstr(ls_err_words(), "trace.rank4.json"));
    assert_int_equal(ls_trace_merge(profiles, RANKS), LS_OK);
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(ls_fs_list(profiles, &names, &n), LS_OK);
    assert_int_equal(n, 1);
    assert_string_equal(names[0], "trace.json");
    ls_fs_list_free(names, n);
    json_t *list = events("trace.json");
    for (int r = 0; r < RANKS; r++)
        for (int k = 1; k <= THREADS; k++) assert_int_equal(check_lane(list, r, k), 600);
    json_decref(list);

    ls_str text = {0};
    json_t *sum = NULL;
    assert_int_equal(ls_trace_summary_text(dir, &text, NULL), LS_OK);
    assert_int_equal(ls_json_parse(text.data, text.len, "summary", &sum), LS_OK);
    const json_t *ours = json_object_get(sum, "lockstep");
    assert_int_equal(json_integer_value(json_object_get(ours, "ranks")), RANKS);
    assert_int_equal(json_integer_value(json_object_get(ours, "spans")), RANKS * THREADS * 600);
    assert_int_equal(json_array_size(json_object_get(sum, "hosts")), 2);
    const json_t *top = json_array_get(json_object_get(sum, "nvtx_top5"), 0);
    assert_string_equal(json_string_value(json_object_get(top, "name")), ":train/backward");
    assert_true(json_real_value(json_object_get(top, "time_percent")) == 100.0);
    json_decref(sum);
    ls_str_fini(&text);
}

/* The clock of another host: ahead by 1 s at its time 10 s, by 1.002 s at 20 s. */
static void timestamps_are_corrected_by_the_clock_offset(void **state)
{
    (void)state;
    const int64_t s = 1000000000;
    ls_trace *t = NULL;
    ls_lane *lane = NULL;
    assert_int_equal(ls_trace_create(&t, 0), LS_OK);
    assert_int_equal(ls_trace_lane(t, "main", 10, &lane), LS_OK);
    ls_trace_set_base(t, 5 * s);
    ls_trace_clock(t, 10 * s, s, 20);
    ls_trace_clock(t, 12 * s, 7 * s, 20); /* only the first and the last offset count */
    ls_trace_clock(t, 20 * s, s + 2000000, 30);
    ls_trace_push_(lane, &(ls_trace_span){.kind = LS_SPAN_PHASE, .name = "p", .begin = 10 * s, .end = 15 * s});
    ls_trace_push_(lane, &(ls_trace_span){.kind = LS_SPAN_PHASE, .name = "q", .begin = 20 * s, .end = 20 * s + 1});
    ls_trace_push_(lane, &(ls_trace_span){.kind = LS_SPAN_PHASE, .name = "early", .begin = s, .end = s + 5});
    assert_int_equal(ls_trace_write(t, profiles, "far"), LS_OK);
    json_t *list = events("trace.rank0.json");
    double at[3] = {-1, -1, -1};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(e, "name"));
        if (!strcmp(name, "p")) at[0] = json_real_value(json_object_get(e, "ts"));
        if (!strcmp(name, "p")) assert_true(json_real_value(json_object_get(e, "dur")) == 4999000.0);
        if (!strcmp(name, "q")) at[1] = json_real_value(json_object_get(e, "ts"));
        if (!strcmp(name, "early")) at[2] = json_real_value(json_object_get(e, "ts"));
    }
    assert_true(at[0] == 4e6);
    assert_true(at[1] == 13.998e6);
    assert_true(at[2] == 0);
    json_decref(list);
    ls_trace_destroy(&t);
}

static void a_bad_trace_file_is_named(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/trace.rank0.json", profiles);
    assert_int_equal(ls_fs_write(path, "{}", 2), LS_OK);
    assert_int_equal(ls_trace_merge(profiles, 1), LS_E_FORMAT);
    assert_non_null(strstr(ls_err_words(), "trace.rank0.json"));

    static const char *const bad[] = {"",
                                      "{}",
                                      "{\"name\": \"a\", \"ph\": \"X\", \"pid\": -1}",
                                      "{\"name\": 1}",
                                      "{\"name\": \"a\", \"cat\": \"unit\", \"ph\": \"X\", \"pid\": 0, \"dur\": \"x\"}",
                                      "{\"name\": }"};
    for (size_t i = 0; i < N_OF(bad); i++) {
        trace_facts f = {0};
        assert_int_equal(trace_read_text(bad[i], strlen(bad[i]), "t.json", &f), LS_E_FORMAT);
        assert_non_null(strstr(ls_err_words(), "t.json"));
        trace_facts_fini(&f);
    }
}

#define SPAN(name, cat, ts, dur, tid)                                                               \
    "{\"name\": \"" name "\", \"cat\": \"" cat "\", \"ph\": \"X\", \"ts\": " #ts ", \"dur\": " #dur \
    ", \"pid\": 0, \"tid\": " #tid ", \"args\": {}},\n"

/* The innermost span counts, so the parts of the steps add up; spans between steps, such as validation, are not in them. */
static void the_parts_of_steps_add_up(void **state)
{
    (void)state;
    static const char text[] = SPAN("wait agree", "wait", 0, 50, 1) SPAN("step.1", "step", 1000, 1000, 1)
        SPAN("train/forward", "phase", 1100, 300, 1) SPAN("forward h.0", "unit", 1150, 200, 1)
            SPAN("wait all_gather", "wait", 1200, 50, 1) SPAN("train/backward", "phase", 1400, 400, 1)
                SPAN("backward h.0", "unit", 1400, 300, 1) SPAN("train/allreduce_gradients", "phase", 1800, 100, 1)
                    SPAN("wait all_reduce", "wait", 1810, 80, 1) SPAN("train/optimizer_step", "phase", 1900, 60, 1)
                        SPAN("forward h.0", "unit", 2100, 700, 1) SPAN("step.2", "step", 3000, 500, 1)
                            SPAN("all_gather", "collective", 1180, 70, 2) SPAN("all_reduce", "collective", 1500, 390, 2)
                                SPAN("agree", "collective", 1990, 1030, 2);
    trace_facts f = {0};
    ls_str table = {0};
    assert_int_equal(trace_read_text(text, sizeof text - 1, "t.json", &f), LS_OK);
    const trace_rank *r = &f.rank[0];
    static const double want[TRACE_N_PART] = {[TRACE_PART_FORWARD] = 250,
                                              [TRACE_PART_BACKWARD] = 400,
                                              [TRACE_PART_OPTIMIZER] = 60,
                                              [TRACE_PART_WAIT] = 130,
                                              [TRACE_PART_REST] = 1500 - 840};
    for (int i = 0; i < TRACE_N_PART; i++)
        if (fabs(r->part[i] - want[i]) > 1e-6) fail_msg("part %d: %g us, expected %g", i, r->part[i], want[i]);
    assert_true(fabs(r->coll_in_steps - (70 + 390 + 10 + 20)) < 1e-6);
    profile_table(&f, &table);
    assert_non_null(strstr(table.data, "Time of a step by rank, ms (mean of 2 steps)"));
    assert_non_null(
        strstr(table.data, "\n0            0.75         0.12         0.20         0.03         0.00         0.07"));
    assert_non_null(strstr(table.data, "forward h.0"));
    ls_str_fini(&table);
    trace_facts_fini(&f);
}

static ls_status write_and_sum(void)
{
    ls_trace *t = NULL;
    ls_lane *lane = NULL;
    ls_str text = {0};
    ls_status st = ls_trace_create(&t, 0);
    if (st == LS_OK) st = ls_trace_lane(t, "main", 10, &lane);
    if (st == LS_OK) {
        ls_trace_enter(lane);
        record("train/forward", 0, 2);
        ls_trace_enter(NULL);
        st = ls_trace_write(t, profiles, "here");
    }
    if (st == LS_OK) st = ls_trace_merge(profiles, 1);
    if (st == LS_OK) st = ls_trace_summary_text(dir, &text, NULL);
    ls_str_fini(&text);
    ls_trace_destroy(&t);
    return st;
}

/* Each allocation fails in turn: nothing leaks, and the status is LS_E_NOMEM. */
static void a_trace_survives_each_failed_allocation(void **state)
{
    (void)state;
    const int64_t live = ls_mem_live();
    for (int64_t k = 0;; k++) {
        ls_mem_fail_at(k);
        const ls_status st = write_and_sum();
        ls_mem_fail_at(-1);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
        assert_true(k < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(recording_without_a_trace_does_nothing, fresh, remove_all),
        cmocka_unit_test_setup_teardown(recorded_spans_are_written, fresh, remove_all),
        cmocka_unit_test_setup_teardown(a_full_lane_drops_the_oldest_spans, fresh, remove_all),
        cmocka_unit_test_setup_teardown(ranks_are_merged_into_one_file, fresh, remove_all),
        cmocka_unit_test_setup_teardown(timestamps_are_corrected_by_the_clock_offset, fresh, remove_all),
        cmocka_unit_test(the_parts_of_steps_add_up),
        cmocka_unit_test_setup_teardown(a_bad_trace_file_is_named, fresh, remove_all),
        cmocka_unit_test_setup_teardown(a_trace_survives_each_failed_allocation, fresh, remove_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
