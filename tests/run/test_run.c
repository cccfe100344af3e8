/* The files of a run: lines of a text and of a file that grows, rows of metrics.jsonl, events and what they say of attempts. */
#include "assert_text.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include "run/events.h"
#include "run/jsonl.h"
#include "run/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void append(const char *path, const char *text)
{
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int64_t step_of(const ls_jsonl *l)
{
    return ls_json_int_at(l->row, "step");
}

static void lines_are_read_forwards_and_backwards(void **state)
{
    (void)state;
    static const char text[] = "{\"step\": 1}\n\n\r\n{\"step\": 2}\r\nno JSON\n[3]\n{\"step\": 4}";
    ls_jsonl l = {.text = text, .n = sizeof text - 1};
    static const int64_t step[] = {1, 2, -1, -1, 4}, number[] = {1, 4, 5, 6, 7};
    for (int i = 0; i < 5; i++) {
        assert_true(ls_jsonl_next(&l));
        assert_int_equal(step_of(&l), step[i]);
        assert_int_equal(l.number, number[i]);
        assert_int_equal(l.row == NULL, step[i] < 0);
        assert_int_equal(l.whole, i < 4);
    }
    assert_false(ls_jsonl_next(&l));
    assert_null(l.row);
    for (int i = 4; i >= 0; i--) {
        assert_true(ls_jsonl_back(&l));
        assert_int_equal(step_of(&l), step[i]);
        assert_int_equal(l.whole, i < 4);
    }
    assert_false(ls_jsonl_back(&l));
    ls_jsonl_fini(&l);
}

/* The steps that a look finds, added up. */
static int64_t look(ls_follow *f, const char *path, size_t most)
{
    ls_jsonl l;
    int64_t sum = 0;
    assert_int_equal(ls_follow_look(f, path, most, &l), LS_OK);
    while (ls_jsonl_next(&l)) sum += step_of(&l);
    ls_follow_end(f, &l);
    return sum;
}

static void a_file_is_followed(void **state)
{
    (void)state;
    char *dir = test_dir();
    const char *path = test_path(dir, "a.jsonl", NULL);
    ls_follow f = {0};
    assert_int_equal(look(&f, path, 1000), 0); /* not there yet */
    append(path, "{\"step\": 1}\n{\"step\": 2}\n{\"st");
    assert_int_equal(look(&f, path, 1000), 3);
    assert_true(f.seen > f.at && !f.more);
    append(path, "ep\": 4}\n");
    assert_int_equal(look(&f, path, 1000), 4); /* each line once */
    assert_int_equal(look(&f, path, 1000), 0);
    append(path, "{\"step\": 8}\n{\"step\": 16}\n");
    assert_int_equal(look(&f, path, 15), 8); /* a part at a time */
    assert_true(f.more);
    assert_int_equal(look(&f, path, 15), 16);
    append(path, "{\"step\": 1, \"more\": \"than 15 bytes\"}\n{\"step\": 32}\n");
    int64_t sum = 0;
    for (int i = 0; i < 6; i++) sum += look(&f, path, 15) > 0 ? 1 : 0;
    assert_true(sum == 1 && f.n_long > 0);          /* it comes to an end */
    test_write(dir, "a.jsonl", "{\"step\": 64}\n"); /* shorter */
    assert_int_equal(look(&f, path, 1000), 64);
    assert_true(f.again);
    test_write(dir, "b.jsonl", "{\"step\": 1}\n{\"step\": 1}\n{\"step\": 1}\n");
    assert_int_equal(rename(test_path(dir, "b.jsonl", NULL), path), 0); /* another file */
    assert_int_equal(look(&f, path, 1000), 3);
    assert_true(f.again);
    test_dir_close(dir);
}

static void a_row_is_read_as_it_is_written(void **state)
{
    (void)state;
    ls_metrics_row row = {0}, again;
    ls_str out = {0};
    ls_metrics_set(&row, LS_ROW_STEP, 7);
    ls_metrics_set(&row, LS_ROW_LOSS, 2.5);
    ls_metrics_set(&row, LS_ROW_GRAD_NORM, (double)NAN);
    ls_metrics_set(&row, LS_ROW_SKIPPED, 1);
    ls_metrics_write(&row, &out);
    assert_string_equal(out.data, "{\"step\": 7, \"loss\": 2.5, \"grad_norm\": null, \"skipped\": true}\n");
    ls_jsonl l = {.text = out.data, .n = out.len};
    assert_true(ls_jsonl_next(&l));
    assert_true(ls_metrics_read(l.row, &again));
    assert_int_equal(again.step, 7);
    assert_true(again.x[LS_ROW_LOSS] == 2.5 && isnan(again.x[LS_ROW_GRAD_NORM]) && isnan(again.x[LS_ROW_LR]));
    assert_true(ls_metrics_has(&again, LS_ROW_GRAD_NORM) && !ls_metrics_has(&again, LS_ROW_LR));
    ls_jsonl_fini(&l);
    assert_false(ls_metrics_read(NULL, &again));
    ls_str_fini(&out);
}

static void events_tell_the_attempts_of_a_run(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        ls_run_turn turn;
        bool open, waits;
        int64_t failures;
    } cases[] = {
        {"{\"event\": \"start\", \"step\": 0, \"attempt\": 1, \"world_size\": 4}", LS_TURN_NEW, true, false, 0},
        {"{\"event\": \"failure\", \"attempt\": 1, \"time_unix_ms\": 5}", LS_TURN_NONE, false, true, 1},
        {"{\"event\": \"failure\", \"attempt\": 1}", LS_TURN_REPEATED, false, true, 1},
        {"{\"event\": \"start\", \"step\": 0, \"attempt\": 2, \"world_size\": 4}", LS_TURN_AGAIN, true, false, 1},
        {"{\"event\": \"resize\", \"to\": 4}", LS_TURN_REPEATED, true, false, 1},
        {"{\"event\": \"resize\", \"to\": 2}", LS_TURN_NONE, false, true, 1},
        {"{\"event\": \"end\", \"state\": \"stopped\"}", LS_TURN_NONE, false, true, 1},
        {"{\"event\": \"end\", \"attempt\": 2}", LS_TURN_NONE, false, false, 1},
        {"{\"event\": \"start\", \"step\": 9, \"attempt\": 1}", LS_TURN_RESUMED, true, false, 1},
        {"{\"event\": \"of a newer version\"}", LS_TURN_NONE, true, false, 1},
        {"{\"event\": \"start\", \"step\": 0}", LS_TURN_NEW, true, false, 0},
    };
    ls_run_history h = {0};
    ls_run_event e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_jsonl l = {.text = cases[i].line, .n = strlen(cases[i].line)};
        assert_true(ls_jsonl_next(&l) && ls_run_event_read(l.row, &e));
        assert_int_equal(ls_run_history_add(&h, &e), cases[i].turn);
        assert_int_equal(h.open, cases[i].open);
        assert_int_equal(h.waits, cases[i].waits);
        assert_int_equal(h.failures, cases[i].failures);
        if (i == 1) assert_int_equal(h.since, 5);
        ls_jsonl_fini(&l);
    }
    assert_false(ls_run_event_read(NULL, &e));
}

static void an_event_is_one_line(void **state)
{
    (void)state;
    char *dir = test_dir();
    const char *path = test_path(dir, "events.jsonl", NULL);
    append(path, "{\"event\": \"sta"); /* cut by a crash */
    ls_event_log log = ls_event_log_open(dir);
    ls_event_add(&log, LS_EV_FAILURE, LS_KV_COUNT("rank", -1), LS_KV("step", 3), LS_KV_IF(false, LS_KV("step", 4)));
    ls_event_log_close(&log);
    ls_jsonl l;
    ls_run_event e;
    assert_int_equal(ls_jsonl_open(&l, path, LS_JSONL_ALL), LS_OK);
    assert_contains(strchr(l.text, '\n') + 1,
                    "{\"event\": \"failure\", \"rank\": null, \"step\": 3, \"time_unix_ms\": ");
    assert_true(ls_jsonl_next(&l) && !l.row && ls_jsonl_next(&l) && ls_run_event_read(l.row, &e));
    assert_true(e.kind == LS_EV_FAILURE && e.rank == -1 && e.step == 3 && e.time_unix_ms > 0 && isnan(e.loss));
    ls_jsonl_fini(&l);
    log = ls_event_log_open("/proc/nowhere"); /* the run goes on */
    ls_event_add(&log, LS_EV_END, LS_KV("step", 3));
    ls_event_log_close(&log);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_read_forwards_and_backwards),
        cmocka_unit_test(a_file_is_followed),
        cmocka_unit_test(a_row_is_read_as_it_is_written),
        cmocka_unit_test(events_tell_the_attempts_of_a_run),
        cmocka_unit_test(an_event_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
