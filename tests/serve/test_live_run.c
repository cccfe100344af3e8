/* Reading a run folder while it is written: increments, replaced files, decimation, states, and what is answered. */
#include "assert_text.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include "core/clock.h"
#include "core/json.h"
#include "core/utf8.h"
#include "serve/answers.h"
#include "serve/listen.h"
#include "serve/screen.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static void append(const char *dir, const char *name, const char *text)
{
    FILE *f = fopen(test_path(dir, name, NULL), "a");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void append_steps(const char *dir, int64_t first, int64_t last, double loss)
{
    FILE *f = fopen(test_path(dir, "metrics.jsonl", NULL), "a");
    assert_non_null(f);
    for (int64_t s = first; s <= last; s++)
        fprintf(
            f,
            "{\"step\": %lld, \"epoch\": 1, \"loss\": %.3f, \"lr\": 0.001, \"grad_norm\": null, \"tokens\": 64, \"step_time_sec\": 0.1}\n",
            (long long)s, loss);
    assert_int_equal(fclose(f), 0);
}

static void update(ls_live_run *r)
{
    bool more = true;
    while (more) assert_int_equal(ls_live_run_update(r, &more), LS_OK);
}

static ls_live_run *open_run(const char *dir, const char *id)
{
    static ls_live_run r;
    assert_int_equal(ls_live_run_init(&r, dir, id), LS_OK);
    return &r;
}

/* ---- curves ---- */

static void a_long_series_keeps_its_mean_and_its_extremes(void **state)
{
    (void)state;
    ls_curve c = {0};
    enum { N = 100000 };
    double sum = 0;
    for (int64_t s = 1; s <= N; s++) {
        double v[LS_N_CURVE];
        for (int k = 0; k < LS_N_CURVE; k++) v[k] = NAN;
        v[LS_CURVE_LOSS] = s == 70001 ? 99 : s == 31 ? -5 : (double)(s % 7);
        sum += v[LS_CURVE_LOSS];
        assert_int_equal(ls_curve_add(&c, s, v), LS_OK);
    }
    double total = 0, hi = 0, lo = 0;
    int64_t n = 0;
    assert_in_range(c.n, LS_CURVE_BUCKETS / 2, LS_CURVE_BUCKETS);
    for (int i = 0; i < c.n; i++) {
        const ls_bucket *b = &c.bucket[i][LS_CURVE_LOSS];
        total += b->sum;
        n += b->n;
        hi = fmax(hi, b->hi);
        lo = fmin(lo, b->lo);
        assert_int_equal(c.bucket[i][LS_CURVE_NORM].n, 0); /* not measured stays empty */
        assert_true(c.last[i] == c.base + (i + 1) * c.width - 1 || i == c.n - 1);
    }
    assert_int_equal(n, N);
    assert_true(total == sum && hi == 99 && lo == -5);
    assert_int_equal(c.last[c.n - 1], N);
    ls_curve_fini(&c);
}

static void a_step_that_comes_again_replaces_what_followed(void **state)
{
    (void)state;
    ls_curve c = {0};
    double v[LS_N_CURVE] = {1};
    for (int64_t s = 1; s <= 10; s++) assert_int_equal(ls_curve_add(&c, s, v), LS_OK);
    const int64_t before = c.generation;
    v[LS_CURVE_LOSS] = 2;
    assert_int_equal(ls_curve_add(&c, 6, v), LS_OK);
    assert_true(c.generation != before);
    assert_int_equal(c.n, 6);
    assert_true(c.bucket[4][LS_CURVE_LOSS].sum == 1 && c.bucket[5][LS_CURVE_LOSS].sum == 2);
    assert_int_equal(ls_curve_add(&c, 1, v), LS_OK); /* from the beginning */
    assert_int_equal(c.n, 1);
    ls_curve_fini(&c);
}

/* ---- reading ---- */

static void only_new_whole_lines_are_read(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "run");
    update(r);
    assert_int_equal(r->state, LS_LIVE_WAITING);
    append_steps(dir, 1, 3, 5);
    append(dir, "metrics.jsonl", "{\"step\": 4, \"loss\": 4.5");
    update(r);
    assert_int_equal(r->last.step, 3);
    assert_true(isnan(r->last.value[LS_CURVE_NORM])); /* null */
    assert_true(ls_live_run_read(r) == 1);            /* nothing is left to read until the line has its end */
    const off_t at = r->steps.at;
    append(dir, "metrics.jsonl", "}\nno JSON\n[1]\n");
    update(r);
    assert_int_equal(r->last.step, 4);
    assert_true(r->last.value[LS_CURVE_LOSS] == 4.5 && r->steps.at > at);
    assert_int_equal(r->n_bad, 2);
    assert_int_equal(r->curve.n, 4);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

static void a_file_of_many_chunks_is_read_in_turns(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "run");
    bool more;
    int turns = 0;
    append_steps(dir, 1, 20000, 3);
    do {
        assert_int_equal(ls_live_run_update(r, &more), LS_OK);
        assert_true(r->steps.at <= (off_t)++turns * LS_LIVE_CHUNK);
    } while (more);
    assert_true(turns > 1);
    assert_int_equal(r->last.step, 20000);
    assert_true(ls_live_run_read(r) == 1);
    ls_live_run_fini(r);
    /* a row of a table needs the end only */
    r = open_run(dir, "run");
    assert_int_equal(ls_live_run_peek(r), LS_OK);
    assert_int_equal(r->last.step, 20000);
    assert_int_equal(r->curve.n, 0);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

static void a_line_without_an_end_does_not_stop_the_reader(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "run");
    FILE *f = fopen(test_path(dir, "metrics.jsonl", NULL), "w");
    assert_non_null(f);
    for (int i = 0; i < 2 * LS_LIVE_CHUNK; i++) putc('x', f);
    fputc('\n', f);
    assert_int_equal(fclose(f), 0);
    append_steps(dir, 1, 1, 2);
    update(r);
    assert_int_equal(r->last.step, 1);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

static void a_resumed_run_replaces_its_file(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "run");
    append(
        dir, "events.jsonl",
        "{\"event\": \"start\", \"step\": 0, \"total_steps\": 50, \"world_size\": 2}\n"
        "{\"event\": \"validation\", \"step\": 10, \"loss\": 4.0}\n{\"event\": \"validation\", \"step\": 30, \"loss\": 3.0}\n");
    append_steps(dir, 1, 30, 5);
    update(r);
    assert_int_equal(r->n_val, 2);
    assert_int_equal(r->last.val_step, 30);
    /* metrics.jsonl is cut at the checkpoint and replaced; events.jsonl goes on */
    test_write(dir, "metrics.jsonl", "");
    append_steps(dir, 1, 21, 5);
    append(dir, "events.jsonl", "{\"event\": \"start\", \"step\": 20, \"total_steps\": 60, \"world_size\": 4}\n");
    update(r);
    update(r);
    assert_int_equal(r->last.step, 21);
    assert_int_equal(r->curve.n, 21);
    assert_int_equal(r->n_val, 1);
    assert_int_equal(r->last.val_step, 10);
    assert_int_equal(r->last.total_steps, 60);
    assert_int_equal(r->world, 4);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

/* ---- the state ---- */

static void the_state_follows_the_files(void **state)
{
    (void)state;
    char *dir = test_dir(), host[256] = "", line[512];
    ls_live_run *r = open_run(dir, "run");
    append(dir, "events.jsonl", "{\"event\": \"start\", \"step\": 0}\n");
    append_steps(dir, 1, 2, 5);
    update(r);
    assert_int_equal(r->state, LS_LIVE_RUNNING); /* written just now */
    gethostname(host, sizeof host - 1);
    const struct {
        const char *host;
        ls_live_state is;
    } old[] = {{host, LS_LIVE_FAILED}, {"another-host", LS_LIVE_SILENT}}; /* its process is gone, or cannot be seen */
    for (size_t i = 0; i < N_OF(old); i++) {
        snprintf(line, sizeof line,
                 "{\"rank\": 0, \"step\": 2, \"time_unix_ms\": 1000, \"pid\": 2147483646, \"host\": \"%s\"}\n",
                 old[i].host);
        test_write(dir, "ranks.jsonl", line);
        update(r);
        assert_int_equal(r->state, old[i].is);
    }
    const struct { /* written just now: a process of the same namespace is known to be gone */
        int64_t more;
        ls_live_state is;
    } now[] = {{0, LS_LIVE_FAILED}, {1, LS_LIVE_RUNNING}};
    struct stat space;
    assert_int_equal(stat("/proc/self/ns/pid", &space), 0);
    for (size_t i = 0; i < N_OF(now); i++) {
        snprintf(line, sizeof line,
                 "{\"rank\": 0, \"step\": 2, \"time_unix_ms\": %lld, \"pid\": 2147483646, \"host\": \"%s\", "
                 "\"pid_namespace\": %lld}\n",
                 (long long)ls_unix_ms(), host, (long long)space.st_ino + (long long)now[i].more);
        test_write(dir, "ranks.jsonl", line);
        update(r);
        assert_int_equal(r->state, now[i].is);
        if (!i) assert_non_null(strstr(r->reason, "pid 2147483646"));
    }
    append(dir, "events.jsonl", "{\"event\": \"end\", \"step\": 2, \"state\": \"stopped\"}\n");
    update(r);
    assert_int_equal(r->state, LS_LIVE_STOPPED);
    append(dir, "events.jsonl",
           "{\"event\": \"start\", \"step\": 2}\n{\"event\": \"end\", \"step\": 2, \"state\": \"failed\"}\n");
    update(r);
    assert_int_equal(r->state, LS_LIVE_FAILED);
    test_write(dir, "RUN_COMPLETE.txt", "x");
    update(r);
    assert_int_equal(r->state, LS_LIVE_FINISHED);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

static void append_failure(const char *dir, int attempt, int64_t ms)
{
    char line[512];
    snprintf(line, sizeof line,
             "{\"event\": \"failure\", \"attempt\": %d, \"rank\": 2, \"host\": \"a\", \"cause\": \"killed\", "
             "\"detail\": \"killed by signal 9\", \"step\": 2, \"time_unix_ms\": %lld}\n",
             attempt, (long long)ms);
    append(dir, "events.jsonl", line);
}

/* The lock is held by a supervisor on this host, by one that is gone, by one on another host, or by nobody. */
static void between_two_attempts_a_run_is_restarting(void **state)
{
    (void)state;
    char *dir = test_dir(), host[256] = "", lock[400], line[512];
    struct stat space;
    ls_live_run *r = open_run(dir, "run");
    assert_int_equal(prctl(PR_SET_NAME, "lockstep-test"), 0);
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    assert_int_equal(stat("/proc/self/ns/pid", &space), 0);
    append(dir, "events.jsonl", "{\"event\": \"start\", \"step\": 0, \"world_size\": 4}\n");
    append_steps(dir, 1, 2, 5);
    snprintf(line, sizeof line,
             "{\"rank\": 0, \"step\": 2, \"time_unix_ms\": %lld, \"pid\": 2147483646, \"host\": \"%s\", "
             "\"pid_namespace\": %lld}\n",
             (long long)ls_unix_ms(), host, (long long)space.st_ino);
    test_write(dir, "ranks.jsonl", line);
    snprintf(lock, sizeof lock, "pid %d on host %s, since 2026-01-01T00:00:00Z\n", (int)getpid(), host);
    test_write(dir, "run.lock", lock);
    update(r);
    assert_int_equal(r->state, LS_LIVE_RESTARTING); /* rank 0 is gone, its supervisor has not recorded it yet */
    append_failure(dir, 1, ls_unix_ms() - 3600000);
    append(dir, "events.jsonl",
           "{\"event\": \"end\", \"step\": 2, \"state\": \"failed\"}\n"); /* of a rank 0 that was late */
    update(r);
    assert_int_equal(r->state, LS_LIVE_RESTARTING);
    const struct {
        const char *holder;
        int64_t ago;
        ls_live_state is;
    } is[] = {{"pid 2147483646 on host %s, since x\n", 0, LS_LIVE_FAILED}, /* rank 0: there is no supervisor */
              {"pid 2147483645 on host %s, since x\n", 0, LS_LIVE_FAILED},
              {"pid 7 on host elsewhere, since x\n", 0, LS_LIVE_RESTARTING},
              {"pid 7 on host elsewhere, since x\n", 3600000, LS_LIVE_FAILED},
              {"", 0, LS_LIVE_RESTARTING},
              {"", 3600000, LS_LIVE_FAILED}};
    for (size_t i = 0; i < N_OF(is); i++) {
        const char *name = strstr(is[i].holder, "%s");
        snprintf(lock, sizeof lock, "%.*s%s%s", name ? (int)(name - is[i].holder) : 400, is[i].holder, name ? host : "",
                 name ? name + 2 : "");
        test_write(dir, "run.lock", lock);
        append_failure(dir, (int)i + 2, ls_unix_ms() - is[i].ago);
        update(r);
        assert_int_equal(r->state, is[i].is);
        assert_contains(r->reason, "killed (rank 2 on a): killed by signal 9");
    }
    snprintf(line, sizeof line,
             "{\"event\": \"start\", \"step\": 2, \"world_size\": 4, \"time_unix_ms\": %lld}\n"
             "{\"event\": \"restart\", \"attempt\": 9, \"workers\": 4, \"from_step\": 2, \"lost_steps\": 0}\n",
             (long long)ls_unix_ms() + 1);
    append(dir, "events.jsonl", line);
    update(r);
    assert_int_equal(r->state, LS_LIVE_RUNNING); /* ranks.jsonl still has the process of the attempt before */
    assert_int_equal(r->seen.failures, 7);
    assert_int_equal(r->seen.restarts, 1);
    append_failure(dir, 9, ls_unix_ms());
    append(dir, "events.jsonl",
           "{\"event\": \"end\", \"step\": 2, \"state\": \"failed\", \"reason\": \"too many\", \"attempt\": 9}\n");
    update(r);
    assert_int_equal(r->state, LS_LIVE_FAILED); /* the supervisor has given up */
    assert_string_equal(r->reason, "too many");
    append(dir, "events.jsonl", "{\"event\": \"start\", \"step\": 0}\n"); /* another run */
    update(r);
    assert_int_equal(r->seen.failures, 0);
    assert_int_equal(prctl(PR_SET_NAME, "test"), 0);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

static void interruptions_are_events_of_the_page_and_the_screen(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "run");
    ls_str s = {0};
    append_steps(dir, 1, 5, 2);
    append(dir, "events.jsonl", "{\"event\": \"start\", \"step\": 0, \"world_size\": 8}\n");
    append_failure(dir, 1, ls_unix_ms());
    append(dir, "events.jsonl",
           "{\"event\": \"resize\", \"from\": 8, \"to\": 4, \"step\": 2, \"why\": \"a worker was lost\"}\n"
           "{\"event\": \"start\", \"step\": 2, \"world_size\": 4}\n"
           "{\"event\": \"restart\", \"attempt\": 2, \"workers\": 4, \"from_step\": 2, \"lost_steps\": 3, "
           "\"lost_seconds\": 1.75}\n");
    for (int i = 0; i < 40; i++)
        append(dir, "events.jsonl", "{\"event\": \"audit\", \"step\": 3, \"result\": \"ok\"}\n");
    update(r);
    assert_int_equal(r->n_event, 6); /* one of the audits */
    append(dir, "events.jsonl",
           "{\"event\": \"audit\", \"step\": 4, \"result\": \"mismatch\", \"what\": \"parameters\", \"unit\": "
           "\"block 3\", \"rank\": 2}\n");
    update(r);
    ls_screen_draw(r, &(ls_screen){.columns = 120}, &s);
    assert_contains(s.data, "failures 1  restarts 1  resizes 1  audits passed 40 of 41\n");
    assert_contains(s.data, "last audit: failed: parameters of block 3 differ; rank 2 computed it wrongly\n");
    s.len = 0;
    ls_answer_run(r, -1, -1, &s);
    assert_contains(s.data, "\"failures\": 1, \"restarts\": 1, \"resizes\": 1, \"audits\": 41, \"audits_failed\": 1");
    assert_contains(s.data, "\"words\": \"attempt 1 failed: killed (rank 2 on a): killed by signal 9\"");
    assert_contains(s.data, "\"words\": \"from 8 to 4 workers: a worker was lost\"");
    assert_contains(s.data, "attempt 2 with 4 workers from step 2: 3 steps are repeated, 1.8 s without training");
    ls_str_fini(&s);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

/* metrics.jsonl is replaced at a restart, and everything is read again. */
static void a_restart_is_counted_once(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "run");
    append_steps(dir, 1, 5, 2);
    append(dir, "events.jsonl", "{\"event\": \"start\", \"step\": 0}\n");
    append_failure(dir, 1, ls_unix_ms());
    update(r);
    test_write(dir, "metrics.jsonl", "");
    append_steps(dir, 1, 2, 2);
    append(dir, "events.jsonl", "{\"event\": \"start\", \"step\": 2}\n{\"event\": \"restart\", \"attempt\": 2}\n");
    update(r);
    assert_int_equal(r->seen.failures, 1);
    assert_int_equal(r->seen.restarts, 1);
    assert_int_equal(r->last.step, 2);
    append_failure(dir, 2, ls_unix_ms()); /* its supervisor died; a new run begins */
    append(dir, "events.jsonl", "{\"event\": \"start\", \"attempt\": 1, \"step\": 0}\n");
    update(r);
    assert_int_equal(r->seen.failures, 0);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

/* ---- sets ---- */

static void runs_are_found_while_they_appear(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_set s = {0};
    ls_live_run *r;
    test_write(dir, "a/metrics.jsonl", "{\"step\": 1, \"loss\": 2.0, \"time_unix_ms\": 5}\n");
    test_write(dir, "group/b/metrics.jsonl", "{\"step\": 2, \"loss\": 2.0, \"time_unix_ms\": 9}\n");
    test_write(dir, ".hidden/metrics.jsonl", "{\"step\": 2}\n");
    test_write(dir, "data/train.bin", "x");
    assert_int_equal(ls_live_set_add(&s, dir), LS_OK);
    assert_int_equal(ls_live_set_look(&s), LS_OK);
    assert_int_equal(s.n, 2);
    assert_string_equal(ls_live_set_newest(&s)->id, "group/b");
    test_write(dir, "c/events.jsonl", "{\"event\": \"start\", \"step\": 0, \"time_unix_ms\": 20}\n");
    s.looked = s.peeked = 0; /* 5 seconds later */
    assert_int_equal(ls_live_set_look(&s), LS_OK);
    assert_int_equal(s.n, 3);
    assert_string_equal(ls_live_set_newest(&s)->id, "c");
    /* a name is looked up, not used as a path */
    const char *none[] = {"../a", "group/../a", "group", "", "/etc", "data", "a/"};
    for (size_t i = 0; i < N_OF(none); i++) {
        assert_int_equal(ls_live_set_ask(&s, none[i], &r), LS_OK);
        assert_null(r);
    }
    assert_int_equal(ls_live_set_ask(&s, "group/b", &r), LS_OK);
    assert_int_equal(r->curve.n, 1);
    ls_live_set_fini(&s);
    test_dir_close(dir);
}

static void look_again(ls_live_set *s)
{
    s->looked = s->peeked = 0; /* 5 seconds later */
    assert_int_equal(ls_live_set_look(s), LS_OK);
}

static void a_run_that_was_removed_leaves_the_list(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_set s = {0};
    ls_live_run *r;
    static const char *const name[] = {"a", "b", "c"};
    for (size_t i = 0; i < N_OF(name); i++) {
        char file[32];
        snprintf(file, sizeof file, "%s/metrics.jsonl", name[i]);
        test_write(dir, file, "{\"step\": 1, \"loss\": 2.0}\n");
    }
    assert_int_equal(ls_live_set_add(&s, dir), LS_OK);
    look_again(&s);
    assert_int_equal(s.n, 3);
    assert_int_equal(ls_live_set_ask(&s, "c", &r), LS_OK);
    assert_int_equal(ls_fs_remove_tree(test_path(dir, "b", NULL)), LS_OK);
    look_again(&s);
    assert_int_equal(s.n, 2);
    assert_string_equal(s.run[0]->id, "a");
    assert_true(s.run[1] == r && r->curve.n == 1); /* the others keep what was read */
    ls_live_set_fini(&s);
    test_dir_close(dir);
}

static void of_too_many_runs_the_newest_are_kept(void **state)
{
    (void)state;
    char *dir = test_dir(), id[32];
    ls_live_set s = {0};
    ls_live_run *r;
    ls_str answer = {0};
    json_t *j = NULL;
    enum { OLD = 3 };
    for (int i = 0; i < LS_LIVE_RUNS + OLD; i++) { /* the first by name are the oldest */
        snprintf(id, sizeof id, "%05d", i);
        assert_int_equal(mkdir(test_path(dir, id, NULL), 0777), 0);
        append(test_path(dir, id, NULL), "metrics.jsonl", "{\"step\": 1, \"loss\": 2.0}\n");
        const struct timespec at[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        assert_int_equal(utimensat(AT_FDCWD, test_path(dir, id, "/metrics.jsonl"), at, 0), 0);
    }
    assert_int_equal(ls_live_set_add(&s, dir), LS_OK);
    look_again(&s);
    assert_int_equal(s.n, LS_LIVE_RUNS);
    assert_int_equal(s.left_out, OLD);
    assert_string_equal(s.run[0]->id, "00003");
    assert_int_equal(ls_live_set_ask(&s, "02002", &r), LS_OK);
    assert_non_null(r);
    ls_answer_runs(&s, &answer);
    assert_int_equal(ls_json_parse(answer.data, answer.len, "answer", &j), LS_OK);
    assert_true(json_is_true(json_object_get(j, "more")));
    assert_int_equal(json_integer_value(json_object_get(j, "left_out")), OLD);
    json_decref(j);
    ls_str_fini(&answer);
    append(test_path(dir, "00000", NULL), "metrics.jsonl", "{\"step\": 2, \"loss\": 2.0}\n"); /* resumed */
    look_again(&s);
    assert_int_equal(ls_live_set_ask(&s, "00000", &r), LS_OK);
    assert_non_null(r);
    assert_int_equal(ls_live_set_ask(&s, "00003", &r), LS_OK);
    assert_null(r);
    ls_live_set_fini(&s);
    test_dir_close(dir);
}

static void a_folder_behind_links_is_listed_once(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_set s = {0};
    test_write(dir, "group/a/metrics.jsonl", "{\"step\": 1}\n");
    assert_int_equal(symlink(dir, test_path(dir, "group/up", NULL)), 0);
    assert_int_equal(symlink("group", test_path(dir, "twice", NULL)), 0);
    assert_int_equal(ls_live_set_add(&s, dir), LS_OK);
    assert_int_equal(ls_live_set_add(&s, test_path(dir, "group/a", NULL)), LS_OK);
    look_again(&s);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.run[0]->id, "group/a");
    ls_live_set_fini(&s);
    test_dir_close(dir);
}

static void a_name_that_is_not_utf8_can_be_asked_for(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_set s = {0};
    ls_live_run *r;
    test_write(dir, "caf\xe9/metrics.jsonl", "{\"step\": 1}\n");
    test_write(dir, "caf\xe8/metrics.jsonl", "{\"step\": 2}\n");
    assert_int_equal(ls_live_set_add(&s, dir), LS_OK);
    assert_int_equal(ls_live_set_ask(&s, "caf\\xe9", &r), LS_OK);
    assert_non_null(r);
    assert_int_equal(r->last.step, 1);
    ls_live_set_fini(&s);
    test_dir_close(dir);
}

static void no_allocation_leaks_when_memory_is_out(void **state)
{
    (void)state;
    char *dir = test_dir();
    append_steps(dir, 1, 5, 2);
    append(dir, "events.jsonl",
           "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"validation\", \"step\": 2, \"loss\": 1.5}\n");
    append(dir, "ranks.jsonl", "{\"rank\": 0, \"step\": 2}\n");
    const int64_t live = ls_mem_live();
    for (int64_t k = 0;; k++) {
        ls_live_set s = {0};
        ls_live_run *r = NULL;
        assert_int_equal(ls_live_set_add(&s, dir), LS_OK);
        ls_mem_fail_at(k);
        const ls_status st = ls_live_set_ask(&s, ls_path_base(dir), &r);
        ls_mem_fail_at(-1);
        const bool whole = st == LS_OK && r && r->curve.n == 5 && r->n_rank == 1;
        if (st != LS_OK) assert_int_equal(st, LS_E_NOMEM);
        ls_live_set_fini(&s);
        assert_int_equal(ls_mem_live(), live);
        if (whole) break;
        assert_true(k < 1000);
    }
    test_dir_close(dir);
}

/* ---- answers ---- */

static void an_increment_continues_where_the_last_answer_ended(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "run \"x\" <b>");
    ls_str s = {0};
    json_t *j = NULL;
    append_steps(dir, 1, 5, 2);
    update(r);
    ls_answer_run(r, -1, -1, &s);
    assert_int_equal(ls_json_parse(s.data, s.len, "answer", &j), LS_OK);
    assert_string_equal(json_string_value(json_object_get(j, "id")), "run \"x\" <b>");
    const int64_t generation = json_integer_value(json_object_get(j, "generation")),
                  next = json_integer_value(json_object_get(j, "next"));
    assert_int_equal(json_array_size(json_object_get(j, "x")), 5);
    json_decref(j);
    append_steps(dir, 6, 7, 1);
    update(r);
    s.len = 0;
    ls_answer_run(r, generation, next, &s);
    assert_int_equal(ls_json_parse(s.data, s.len, "answer", &j), LS_OK);
    assert_int_equal(json_integer_value(json_object_get(j, "from")), next);
    assert_int_equal(json_array_size(json_object_get(j, "x")), 3); /* the last bucket again: it may have grown */
    const json_t *y = ls_json_at(j, "series.loss.y");
    assert_int_equal(json_array_size(y), 3);
    assert_true(json_number_value(json_array_get(y, 2)) == 1);
    assert_true(json_is_null(json_array_get(ls_json_at(j, "series.grad_norm.y"), 0)));
    json_decref(j);
    s.len = 0;
    ls_answer_run(r, generation + 1, next, &s); /* of another generation: everything */
    assert_int_equal(ls_json_parse(s.data, s.len, "answer", &j), LS_OK);
    assert_int_equal(json_array_size(json_object_get(j, "x")), 7);
    json_decref(j);
    ls_str_fini(&s);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

static void labels_of_prometheus_are_escaped(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_set set = {0};
    ls_str s = {0};
    test_write(dir, "a\"b\\c\nd\xff/metrics.jsonl", "{\"step\": 3, \"loss\": 2.5}\n");
    assert_int_equal(ls_live_set_add(&set, dir), LS_OK);
    assert_int_equal(ls_live_set_look(&set), LS_OK);
    ls_answer_prometheus(&set, &s);
    assert_contains(s.data, "# TYPE lockstep_loss gauge\nlockstep_loss{run=\"a\\\"b\\\\c\\nd\\\\xff\"} 2.5\n");
    assert_null(strstr(s.data, "lockstep_gradient_norm{")); /* not measured: no sample */
    assert_null(strstr(s.data, "nan"));
    ls_str_fini(&s);
    ls_live_set_fini(&set);
    test_dir_close(dir);
}

static void no_line_of_the_screen_is_too_wide(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "a name with \x1b[2J and a \xc3\xa4");
    append_steps(dir, 1, 500, 2);
    append_steps(dir, 501, 600, 1);
    append(dir, "ranks.jsonl",
           "{\"rank\": 0, \"step\": 2, \"host\": \"h\", \"phase\": \"forward\", \"memory_bytes\": 1000}\n");
    update(r);
    for (int columns = 20; columns <= 200; columns += 20) {
        ls_str s = {0};
        ls_screen_draw(r, &(ls_screen){.columns = columns, .rows = 24, .blocks = columns % 40 == 0}, &s);
        int wide = 0, lines = 0;
        for (const char *p = s.data; *p;) {
            uint32_t code;
            const int n = ls_utf8_decode((const unsigned char *)p, 4, &code);
            assert_true(n > 0 && (code >= ' ' || code == '\n'));
            wide = code == '\n' ? 0 : wide + 1;
            lines += code == '\n';
            assert_true(wide <= columns);
            p += n;
        }
        assert_true(lines <= 24);
        ls_str_fini(&s);
    }
    ls_live_run_fini(r);
    test_dir_close(dir);
}

static void a_narrow_screen_leaves_out_whole_values(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "run");
    append(dir, "events.jsonl", "{\"event\": \"start\", \"step\": 0, \"total_steps\": 4000, \"world_size\": 1}\n");
    append(
        dir, "metrics.jsonl",
        "{\"step\": 1, \"loss\": 6.2875, \"val_loss\": 6.1275, \"grad_norm\": 1.795, \"lr\": 4e-4, \"step_time_sec\": 1.25, "
        "\"tokens_per_sec\": 12345.0, \"tflops\": 0.125, \"cpu_utilisation\": 1.0}\n");
    append(
        dir, "ranks.jsonl",
        "{\"rank\": 0, \"step\": 1, \"host\": \"h\", \"phase\": \"forward\", \"step_time_sec\": 1.25, \"cpu_utilisation\": 1.0, "
        "\"memory_bytes\": 1000}\n");
    update(r);
    ls_str whole = {0};
    ls_screen_draw(r, &(ls_screen){.columns = 200}, &whole);
    assert_non_null(strstr(whole.data, "norm 1.795  lr 4.00e-04\n"));
    for (int columns = 20; columns <= 90;
         columns++) { /* every line is a beginning of the whole one, up to the end of a field */
        ls_str s = {0};
        ls_screen_draw(r, &(ls_screen){.columns = columns}, &s);
        const char *p = s.data, *q = whole.data;
        while (*p && *q) {
            const size_t n = strcspn(p, "\n");
            assert_int_equal(strncmp(p, q, n), 0);
            assert_true(q[n] == '\n' || q[n] == ' ');
            assert_true(n == 0 || q[n] == '\n' || q[n + 1] == ' ' || strstr(whole.data, "rank host") <= q);
            p += n + 1;
            q += strcspn(q, "\n") + 1;
        }
        assert_true(!*p && !*q);
        ls_str_fini(&s);
    }
    ls_str_fini(&whole);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

static void the_reason_of_a_failure_is_shown(void **state)
{
    (void)state;
    char *dir = test_dir();
    ls_live_run *r = open_run(dir, "run");
    ls_str s = {0};
    append_steps(dir, 1, 5, 2);
    append(dir, "events.jsonl",
           "{\"event\": \"start\", \"step\": 0}\n{\"event\": \"end\", \"step\": 5, \"state\": \"failed\", "
           "\"reason\": \"step 6: the loss is NaN \\u001b[2J\"}\n");
    update(r);
    ls_screen_draw(r, &(ls_screen){.columns = 20}, &s);
    assert_non_null(strstr(s.data, "failed: step 6: the\n  loss is NaN ?[2J\n"));
    s.len = 0;
    ls_answer_run(r, -1, -1, &s);
    assert_non_null(strstr(s.data, "\"reason\": \"step 6: the loss is NaN"));
    append(dir, "events.jsonl", "{\"event\": \"start\", \"step\": 4}\n"); /* resumed */
    update(r);
    s.len = 0;
    ls_answer_run(r, -1, -1, &s);
    assert_null(strstr(s.data, "reason"));
    ls_str_fini(&s);
    ls_live_run_fini(r);
    test_dir_close(dir);
}

/* ---- access ---- */

static void a_token_is_compared_as_a_whole(void **state)
{
    (void)state;
    char token[] = "0123456789abcdef0123456789abcdef", other[] = "0123456789abcdef0123456789abcdee";
    assert_true(ls_token_equal(token, "0123456789abcdef0123456789abcdef"));
    assert_false(ls_token_equal(token, other));
    assert_false(ls_token_equal(token, "0123456789abcdef0123456789abcde"));
    assert_false(ls_token_equal(token, "0123456789abcdef0123456789abcdef0"));
    assert_false(ls_token_equal(token, ""));
    assert_false(ls_token_equal(token, NULL));
}

static void loopback_needs_no_token_and_other_addresses_do(void **state)
{
    (void)state;
    ls_listener a = {0}, b = {0}, c = {0};
    assert_int_equal(ls_listen(NULL, 0, &a), LS_OK);
    assert_true(a.loopback && !*a.token);
    assert_int_equal(ls_listen(NULL, 0, &b), LS_OK); /* the next free port */
    assert_true(b.port > a.port);
    assert_int_equal(ls_listen(NULL, a.port, &c), LS_E_CONFIG);
    assert_words("is in use");
    ls_listener_close(&b);
    assert_int_equal(ls_listen("0.0.0.0", 0, &b), LS_OK);
    assert_true(!b.loopback && strlen(b.token) == LS_TOKEN_CHARS);
    assert_int_equal(ls_listen("192.0.2.1", 0, &c), LS_E_CONFIG); /* not of this machine */
    ls_listener_close(&a);
    ls_listener_close(&b);
}

static void only_names_of_this_machine_are_answered(void **state)
{
    (void)state;
    const ls_listener l = {.host = "Node7", .loopback = true};
    static const char *const ours[] = {"localhost", "LOCALHOST:7007", "127.0.0.1:1", "127.0.0.2",
                                       "[::1]",     "[::1]:7007",     "node7:80"},
                             *const others[] = {"",
                                                "evil.example",
                                                "127.0.0.1.evil.example",
                                                "[::1].evil.example",
                                                "[::1",
                                                "::1",
                                                "[localhost]",
                                                "localhost:x",
                                                "localhost.evil.example",
                                                "128.0.0.1",
                                                "[::2]",
                                                "node70"};
    for (size_t i = 0; i < N_OF(ours); i++)
        if (!ls_listener_is_host(&l, ours[i])) fail_msg("%s is refused", ours[i]);
    for (size_t i = 0; i < N_OF(others); i++)
        if (ls_listener_is_host(&l, others[i])) fail_msg("%s is answered", others[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_series_keeps_its_mean_and_its_extremes),
        cmocka_unit_test(a_step_that_comes_again_replaces_what_followed),
        cmocka_unit_test(only_new_whole_lines_are_read),
        cmocka_unit_test(a_file_of_many_chunks_is_read_in_turns),
        cmocka_unit_test(a_line_without_an_end_does_not_stop_the_reader),
        cmocka_unit_test(a_resumed_run_replaces_its_file),
        cmocka_unit_test(the_state_follows_the_files),
        cmocka_unit_test(between_two_attempts_a_run_is_restarting),
        cmocka_unit_test(interruptions_are_events_of_the_page_and_the_screen),
        cmocka_unit_test(a_restart_is_counted_once),
        cmocka_unit_test(runs_are_found_while_they_appear),
        cmocka_unit_test(a_run_that_was_removed_leaves_the_list),
        cmocka_unit_test(of_too_many_runs_the_newest_are_kept),
        cmocka_unit_test(a_folder_behind_links_is_listed_once),
        cmocka_unit_test(a_name_that_is_not_utf8_can_be_asked_for),
        cmocka_unit_test(no_allocation_leaks_when_memory_is_out),
        cmocka_unit_test(an_increment_continues_where_the_last_answer_ended),
        cmocka_unit_test(labels_of_prometheus_are_escaped),
        cmocka_unit_test(no_line_of_the_screen_is_too_wide),
        cmocka_unit_test(a_narrow_screen_leaves_out_whole_values),
        cmocka_unit_test(the_reason_of_a_failure_is_shown),
        cmocka_unit_test(a_token_is_compared_as_a_whole),
        cmocka_unit_test(loopback_needs_no_token_and_other_addresses_do),
        cmocka_unit_test(only_names_of_this_machine_are_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
