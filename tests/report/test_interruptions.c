/* Runs that were interrupted: what events.jsonl gives of goodput, causes, attempts and audits, how such runs are marked, and the page. */
#include "core/rng.h"
#include "report_checks.h"

static void add_with_events(ls_run_set *s, const char *dir, const ls_str *metrics, const ls_str *steps,
                            const char *events)
{
    ls_run_texts t = {.warm = s->warm};
    if (metrics) t.file[LS_RUN_METRICS] = (ls_text){metrics->data, metrics->len};
    if (steps && steps->data) t.file[LS_RUN_STEPS] = (ls_text){steps->data, steps->len};
    t.file[LS_RUN_EVENTS] = (ls_text){events, strlen(events)};
    assert_true(s->n < s->cap);
    assert_int_equal(ls_run_read_texts(&t, dir, &s->notes, &s->run[s->n]), LS_OK);
    s->n++;
}

/* Steps from..to of 100 ms that end every 100 ms from `ms` on. */
static void put_steps(ls_str *out, int from, int to, int64_t ms)
{
    for (int i = from; i <= to; i++)
        ls_str_addf(out, "{\"step\": %d, \"loss\": 2.0, \"step_time_sec\": 0.1, \"time_unix_ms\": %lld}\n", i,
                    (long long)(ms + 100 * (i - from + 1)));
}

#define START(step, workers, ms) \
    "{\"event\": \"start\", \"step\": " #step ", \"world_size\": " #workers ", \"time_unix_ms\": " #ms "}\n"
#define SAVED(step, ms) "{\"event\": \"checkpoint\", \"step\": " #step ", \"time_unix_ms\": " #ms "}\n"
#define END(step, how, ms) \
    "{\"event\": \"end\", \"step\": " #step ", \"state\": \"" how "\", \"time_unix_ms\": " #ms "}\n"
#define FAILURE(attempt, cause, detail, step, ms)                                                           \
    "{\"event\": \"failure\", \"attempt\": " #attempt ", \"rank\": 2, \"host\": \"a\", \"cause\": \"" cause \
    "\", \"detail\": \"" detail "\", \"step\": " #step ", \"time_unix_ms\": " #ms "}\n"
#define RESTART(attempt, from, lost, seconds, repeated, ms)                                         \
    "{\"event\": \"restart\", \"attempt\": " #attempt ", \"workers\": 4, \"from_step\": " #from     \
    ", \"lost_steps\": " #lost ", \"lost_seconds\": " #seconds ", \"repeated_seconds\": " #repeated \
    ", \"backoff_seconds\": 0.5, \"time_unix_ms\": " #ms "}\n"

/* Ten steps are kept, two were computed twice; a restart failed once before its first step. */
static void goodput_counts_each_step_once(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_str steps = {0};
    put_steps(&steps, 1, 5, 1000);
    put_steps(&steps, 6, 10, 6000);
    add_with_events(&s, "r", NULL, &steps,
                    START(0, 4, 1000) SAVED(5, 1500) FAILURE(1, "killed", "killed by signal 9", 7, 2000)
                        FAILURE(2, "device", "no GPU", 5, 3000) START(5, 4, 5900) RESTART(3, 5, 2, 4.1, 0.2, 6000)
                            SAVED(10, 6500) END(10, "complete", 7000));
    const ls_interruptions *e = s.run[0].events;
    assert_non_null(e);
    assert_int_equal(e->seen.failures, 2);
    assert_int_equal(e->seen.restarts, 1);
    near(e->wall, 6, 1e-9);
    near(e->useful, 1, 1e-9);
    near(e->repeated, 0.2, 1e-9);
    near(e->waiting, 4.1, 1e-9); /* 0.1 s until the first failure, 1 s until the second, 3 s after it */
    near(e->goodput, 1.0 / 6, 1e-9);
    assert_int_equal(e->cause[0].count, 1); /* killed */
    assert_int_equal(e->cause[0].lost_steps, 2);
    near(e->cause[0].waiting, 1.1, 1e-9);
    assert_int_equal(e->cause[5].count, 1); /* device */
    assert_int_equal(e->cause[5].lost_steps, 0);
    near(e->cause[5].waiting, 3, 1e-9);
    assert_int_equal(e->n_attempt, 3);
    assert_int_equal(e->attempt[0].to, 7);
    assert_string_equal(e->attempt[0].how, "killed (rank 2 on a): killed by signal 9");
    assert_int_equal(e->attempt[1].workers, -1); /* it had not started */
    near(e->attempt[2].begin, 4.9, 1e-9);
    assert_string_equal(e->attempt[2].how, "complete");
    assert_true(isnan(e->predicted)); /* two failures are too few */
    ls_str_fini(&steps);
    ls_run_set_fini(&s);
}

/* Steps from..to that take `sec` each. */
static void put_slow_steps(ls_str *out, int from, int to, double sec)
{
    for (int i = from; i <= to; i++) ls_str_addf(out, "{\"step\": %d, \"loss\": 2.0, \"step_time_sec\": %g}\n", i, sec);
}

#define STARTED(step, workers, precision)                                                        \
    "{\"event\": \"start\", \"step\": " #step ", \"total_steps\": 40, \"world_size\": " #workers \
    ", \"strategy\": \"ddp\", \"precision\": \"" precision "\", \"device\": \"cpu\", \"time_unix_ms\": 1000}\n"
#define FAILED "{\"event\": \"failure\", \"attempt\": 1, \"cause\": \"killed\", \"step\": 21, \"time_unix_ms\": 2000}\n"

/* A run that somebody resumed: its speed is of the steps after that. It is no benchmark if a part of it was profiled, or had other workers
 * or another precision. One that its supervisor restarted is one run. */
static void speed_is_of_the_steps_after_a_resume(void **state)
{
    (void)state;
    static const struct {
        const char *events, *name;
        bool traced, benchmark, all;
    } cases[] = {
        {STARTED(0, 2, "fp32"), "ddp", false, true, true},
        {STARTED(0, 2, "fp32"), "ddp", true, true, true}, /* the trace is of an earlier run in the folder */
        {STARTED(0, 2, "fp32") STARTED(20, 2, "fp32"), "ddp (resumed_from_step 20)", false, true, false},
        {STARTED(0, 2, "fp32") STARTED(10, 2, "fp32") STARTED(20, 2, "fp32"), "ddp (resumed_from_step 20)", false, true,
         false},
        {STARTED(0, 2, "fp32") STARTED(20, 2, "fp32"), "ddp (resumed_from_step 20, profiled)", true, false, false},
        {STARTED(0, 2, "fp32") STARTED(20, 2, "bf16"), "ddp (resumed_from_step 20)", false, false, false},
        {"{\"event\": \"start\", \"step\": 0, \"tokens_per_step\": 64, \"time_unix_ms\": 1}\n"
         "{\"event\": \"start\", \"step\": 20, \"tokens_per_step\": 128, \"time_unix_ms\": 2}\n",
         "ddp (resumed_from_step 20)", false, false, false},
        {STARTED(0, 4, "fp32") STARTED(20, 2, "fp32"), "ddp (resumed_from_step 20)", false, false, false},
        {STARTED(0, 2, "fp32") FAILED STARTED(20, 2, "fp32"), "ddp (interrupted)", false, true, true},
        {STARTED(20, 4, "bf16") STARTED(0, 2, "fp32"), "ddp", false, true, true}, /* another run began in the folder */
        {"{}\n", "ddp (resumed_from_step 20)", false, true, false}, /* no start is recorded: as training_metrics.json */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_run_set s = new_set();
        ls_analysis a;
        ls_str metrics = {0}, steps = {0}, words = {0};
        put_slow_steps(&steps, 1, 20, 0.3);
        put_slow_steps(&steps, 21, 40, 0.1);
        made_metrics(&(made_run){.world = 2,
                                 .tokens_per_sec = 10,
                                 .epoch_time = 1,
                                 .strategy = "ddp",
                                 .ours = ", \"resumed_from_step\": 20"},
                     &metrics);
        ls_run_texts t = {.warm = 5, .traced = cases[i].traced};
        t.file[LS_RUN_METRICS] = (ls_text){metrics.data, metrics.len};
        t.file[LS_RUN_STEPS] = (ls_text){steps.data, steps.len};
        t.file[LS_RUN_EVENTS] = (ls_text){cases[i].events, strlen(cases[i].events)};
        assert_int_equal(ls_run_read_texts(&t, "r", &s.notes, &s.run[s.n++]), LS_OK);
        assert_int_equal(s.run[0].n_step, 40);
        near(s.run[0].step_time, cases[i].all ? (15 * 0.3 + 20 * 0.1) / 35 : 0.1, 1e-9);
        assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.steady = true}, &a), LS_OK);
        assert_string_equal(a.group[0].short_name, cases[i].name);
        assert_int_equal(a.group[0].no_benchmark, !cases[i].benchmark);
        ls_basis_words(&a, &words);
        assert_int_equal(strstr(words.data, "Of a run that was resumed") != NULL, !cases[i].all);
        ls_analysis_fini(&a);
        assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK); /* whole epochs have both parts */
        assert_int_equal(a.group[0].no_benchmark, !cases[i].all);
        ls_analysis_fini(&a);
        ls_run_set_fini(&s);
        ls_str_fini(&metrics), ls_str_fini(&steps), ls_str_fini(&words);
    }
}

static void time_before_a_resume_by_hand_does_not_count(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_str steps = {0};
    put_steps(&steps, 1, 5, 1000);
    put_steps(&steps, 6, 10, 900000);
    add_with_events(&s, "r", NULL, &steps,
                    START(0, 4, 1000) END(5, "stopped", 2000) START(5, 4, 900000) FAILURE(1, "hang", "", 5, 901000)
                        START(5, 4, 901500) RESTART(2, 5, 0, 0.5, 0.0, 901500) END(10, "complete", 903000));
    near(s.run[0].events->wall, 4, 1e-9);
    near(s.run[0].events->goodput, 0.25, 1e-9);
    ls_str_fini(&steps);
    ls_run_set_fini(&s);
}

static void another_run_in_the_folder_begins_without_failures(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    const char *earlier = START(0, 4, 1000) FAILURE(1, "hang", "", 5, 2000) START(0, 4, 3000)
        RESTART(2, 0, 5, 1.0, 0.5, 3000) END(10, "complete", 4000);
    ls_str both = {0};
    ls_str_add(&both, earlier);
    ls_str_add(&both, START(0, 2, 9000) SAVED(5, 9500));
    add_with_events(&s, "a", NULL, NULL, earlier);
    add_with_events(&s, "b", NULL, NULL, both.data);
    assert_int_equal(s.run[0].events->seen.failures, 1);
    assert_null(s.run[1].events);
    ls_str_fini(&both);
    ls_run_set_fini(&s);
}

#define FIRST(step, ms)                                                                                                \
    "{\"event\": \"start\", \"attempt\": 1, \"step\": " #step ", \"world_size\": 4, " DROPPED "\"time_unix_ms\": " #ms \
    "}\n"
#define DROPPED "\"dropped_steps\": 2, \"dropped_seconds\": 0.2, \"dropped_until_unix_ms\": 1900, "

/* The supervisor died after a failure, and somebody resumed the run: nothing ran in between. The supervisor of the resumed run begins at
 * attempt 1. */
static void a_dead_supervisor_does_not_restart_a_run(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_str steps = {0};
    put_steps(&steps, 1, 5, 1000);
    put_steps(&steps, 6, 15, 900000);
    const char *dead = START(0, 4, 1000) SAVED(5, 1500) FAILURE(1, "hang", "", 7, 2000);
    ls_str plain = {0}, twice = {0}, later = {0}, other = {0};
    ls_str_addf(&plain, "%s%s", dead, FIRST(5, 900000) END(15, "complete", 901000));
    ls_str_addf(&twice, "%s%s%s", dead, FAILURE(2, "device", "", 5, 2500),
                FIRST(5, 900000) END(15, "complete", 901000));
    ls_str_addf(&later, "%s%s", dead,
                FIRST(5, 900000) SAVED(10, 900500) FAILURE(1, "killed", "", 10, 900500) START(10, 4, 901000)
                    RESTART(2, 10, 0, 0.5, 0.0, 901000) END(15, "complete", 902000));
    ls_str_addf(&other, "%s%s", dead,
                "{\"event\": \"start\", \"attempt\": 1, \"step\": 0, \"time_unix_ms\": 900000}\n");
    add_with_events(&s, "plain", NULL, &steps, plain.data);
    add_with_events(&s, "twice", NULL, &steps, twice.data);
    add_with_events(&s, "later", NULL, &steps, later.data);
    add_with_events(&s, "other", NULL, NULL, other.data);
    for (int i = 0; i < 3; i++) {
        const ls_interruptions *e = s.run[i].events;
        near(e->wall, i == 0 ? 2 : i == 1 ? 2.5 : 3, 1e-9);
        near(e->useful, 1.5, 1e-9);
        near(e->repeated, 0.2, 1e-9);
        near(e->waiting, i == 0 ? 0.1 : 0.6, 1e-9); /* 0.1 s until the hang was noticed */
        near(e->cause[2].waiting, i == 1 ? 0.6 : 0.1, 1e-9);
        near(e->goodput, 1.5 / e->wall, 1e-9);
        assert_int_equal(e->seen.failures, i == 0 ? 1 : 2);
        assert_int_equal(e->seen.restarts, i == 2);
        assert_int_equal(e->cause[2].count, 1); /* hang */
        assert_int_equal(e->cause[2].lost_steps, 2);
        assert_int_equal(s.run[i].resumed, 5);
    }
    assert_null(s.run[3].events); /* a new run has no failure */
    ls_str_fini(&plain), ls_str_fini(&twice), ls_str_fini(&later), ls_str_fini(&other), ls_str_fini(&steps);
    ls_run_set_fini(&s);
}

/* The time until the last failure was noticed is waiting, too: after a restart, if nothing was lost, if no step was finished, and before somebody
 * resumes the run. */
static void a_last_failure_costs_time(void **state)
{
    (void)state;
#define HUNG                          \
    START(0, 4, 1000)                 \
    SAVED(5, 1500)                    \
    FAILURE(1, "killed", "", 5, 1600) \
    START(5, 4, 2000)                 \
    RESTART(2, 5, 0, 0.6, 0.0, 2100) SAVED(7, 2300) FAILURE(2, "hang", "", 7, 6300) END(7, "failed", 6300)
#define AGAIN(ms, rest) \
    "{\"event\": \"start\", \"attempt\": 1, \"step\": 7, \"world_size\": 4, \"time_unix_ms\": " #ms "}\n" rest
    static const struct {
        const char *events;
        int last; /* step */
        double wall, waiting, hang;
    } cases[] = {
        {HUNG, 7, 5.3, 4.6, 4},
        {HUNG AGAIN(900000, END(10, "complete", 901000)), 10, 6.3, 4.6, 4},
        {HUNG AGAIN(900000, FAILURE(1, "hang", "", 7, 902000) AGAIN(990000, END(10, "complete", 991000))), 10, 8.3, 6.6,
         6},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_run_set s = new_set();
        ls_str steps = {0};
        put_steps(&steps, 1, 5, 1000);
        put_steps(&steps, 6, 7, 2100);
        put_steps(&steps, 8, cases[i].last, i == 1 ? 900000 : 990000);
        add_with_events(&s, "r", NULL, &steps, cases[i].events);
        const ls_interruptions *e = s.run[0].events;
        near(e->wall, cases[i].wall, 1e-9);
        near(e->useful, 0.1 * cases[i].last, 1e-9);
        near(e->waiting, cases[i].waiting, 1e-9);
        near(e->cause[2].waiting, cases[i].hang, 1e-9);
        near(e->goodput, e->useful / e->wall, 1e-9);
        ls_str_fini(&steps);
        ls_run_set_fini(&s);
    }
}

/* Rank 0 records the end of its attempt before or after the supervisor records the failure; two ranks may fail. */
static void an_attempt_that_failed_is_counted_once(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    add_with_events(&s, "a", NULL, NULL,
                    START(0, 2, 1000) END(3, "failed", 1900) FAILURE(1, "killed", "", 3, 2000)
                        FAILURE(1, "other", "", 3, 2001) END(3, "failed", 2002) START(0, 2, 2500)
                            RESTART(2, 0, 3, 0.5, 0.3, 2500) END(9, "complete", 4000));
    const ls_interruptions *e = s.run[0].events;
    assert_int_equal(e->seen.failures, 1);
    assert_int_equal(e->n_attempt, 2);
    assert_string_equal(e->attempt[0].how, "killed (rank 2 on a)");
    near(e->attempt[1].begin, 1.5, 1e-9);
    ls_run_set_fini(&s);
}

static void causes_are_counted_by_name(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    add_with_events(&s, "a", NULL, NULL,
                    START(0, 2, 1000) FAILURE(1, "exited", "rank 1 (pid 7) exited with code 3", 3, 2000)
                        START(0, 2, 3000) RESTART(2, 0, 3, 1.0, 0.3, 3000) FAILURE(2, "of a later version", "", 3, 4000)
                            START(0, 2, 5000) RESTART(3, 0, 3, 1.0, 0.3, 5000) END(9, "complete", 6000));
    const ls_interruptions *e = s.run[0].events;
    int exited = 0;
    while (exited < LS_CAUSE_OTHER && strcmp(ls_cause_name[exited], "exited") != 0) exited++;
    assert_true(exited < LS_CAUSE_OTHER);
    assert_int_equal(e->cause[exited].count, 1);
    assert_int_equal(e->cause[exited].lost_steps, 3);
    assert_int_equal(e->cause[LS_CAUSE_OTHER].count, 1);
    assert_string_equal(ls_cause_name[LS_CAUSE_OTHER], "other");
    assert_string_equal(ls_cause_name[LS_CAUSE_RESIZE], "resize");
    assert_string_equal(e->attempt[0].how, "exited: rank 1 (pid 7) exited with code 3");
    ls_run_set_fini(&s);
}

static void a_resize_ends_an_attempt(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    add_with_events(
        &s, "a", NULL, NULL,
        START(0, 8, 1000)
            END(40, "stopped", 2000) "{\"event\": \"resize\", \"from\": 8, \"to\": 4, \"step\": 40, \"why\": \"asked\", \"time_unix_ms\": 2100}\n" START(
                40, 4, 3000) RESTART(2, 40, 0, 1.0, 0.0, 3100) END(80, "complete", 5000));
    const ls_interruptions *e = s.run[0].events;
    assert_int_equal(e->seen.resizes, 1);
    assert_int_equal(e->seen.failures, 0);
    assert_string_equal(e->attempt[0].how, "resized from 8 to 4 workers: asked");
    assert_int_equal(e->attempt[1].workers, 4);
    near(e->cause[LS_CAUSE_RESIZE].waiting, 1, 1e-9);
    near(e->wall, 4, 1e-9); /* it was not resumed by somebody */
    ls_run_set_fini(&s);
}

/* A long run with random failures, also while it waits for a restart. */
static void measured_goodput_agrees_with_the_formula(void **state)
{
    (void)state;
    enum { STEPS = 20000, EVERY = 10 };
    const double mtbf = 30, restart = 4, saving = 0.3, step = 0.1;
    const uint64_t key = ls_rng_key(7, LS_RNG_SAMPLE, 0, 0);
    ls_run_set s = new_set();
    ls_str steps = {0}, events = {0};
    uint64_t k = 0;
    double now = 0, next = -mtbf * log1p(-ls_rng_uniform(key, k++));
    int done = 0, attempt = 1;
    ls_str_add(&events, START(0, 4, 0));
    while (done < STEPS) {
        const double period = EVERY * step + saving;
        if (now + period <= next) {
            put_steps(&steps, done + 1, done + EVERY, (int64_t)(1000 * now));
            now += period;
            done += EVERY;
            ls_str_addf(&events, "{\"event\": \"checkpoint\", \"step\": %d, \"time_unix_ms\": %lld}\n", done,
                        (long long)(1000 * now));
            continue;
        }
        const int lost = (int)fmin(EVERY - 1, (next - now) / step);
        double failed;
        do {
            now = failed = next;
            next = now - mtbf * log1p(-ls_rng_uniform(key, k++));
            ls_str_addf(&events,
                        "{\"event\": \"failure\", \"attempt\": %d, \"cause\": \"killed\", \"step\": %d, "
                        "\"time_unix_ms\": %lld}\n",
                        attempt++, done, (long long)(1000 * now));
        } while (now + restart > next);
        now += restart;
        ls_str_addf(&events,
                    "{\"event\": \"start\", \"step\": %d, \"world_size\": 4, \"time_unix_ms\": %lld}\n{\"event\": "
                    "\"restart\", \"lost_steps\": %d, \"lost_seconds\": %.3f, \"repeated_seconds\": %.3f, "
                    "\"time_unix_ms\": %lld}\n",
                    done, (long long)(1000 * now), lost, now - failed, lost * step, (long long)(1000 * now));
    }
    add_with_events(&s, "a", NULL, &steps, events.data);
    const ls_interruptions *e = s.run[0].events;
    assert_true(e->seen.failures > 80);
    near(e->checkpoint, saving, 0.01);
    near(e->restart, restart, 0.01);
    assert_int_equal(e->interval, EVERY);
    near(e->mtbf, mtbf, 6);
    near(e->goodput, e->predicted, 0.02);
    assert_true(e->best >= e->predicted && e->best_interval > EVERY);
    ls_str_fini(&steps), ls_str_fini(&events);
    ls_run_set_fini(&s);
}

/* Restarts from steps that no checkpoint has: the interval of the checkpoints on the disk says nothing about what is lost. */
static void no_formula_for_copies_in_memory(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        ls_run_set s = new_set();
        ls_str steps = {0}, events = {0};
        put_steps(&steps, 1, 100, 0);
        ls_str_add(&events, START(0, 4, 0));
        for (int i = 1; i <= 4; i++) {
            const int saved = 20 * i, from = saved + 3 * copies;
            const long long t = 2000LL * i;
            for (int k = 10; k >= 0; k -= 10)
                ls_str_addf(&events, "{\"event\": \"checkpoint\", \"step\": %d, \"time_unix_ms\": %lld}\n", saved - k,
                            t);
            ls_str_addf(&events,
                        "{\"event\": \"failure\", \"attempt\": %d, \"cause\": \"killed\", \"step\": %d, "
                        "\"time_unix_ms\": %lld}\n{\"event\": \"start\", \"step\": %d, \"world_size\": 4, "
                        "\"time_unix_ms\": %lld}\n{\"event\": \"restart\", \"lost_steps\": 1, \"lost_seconds\": 0.1, "
                        "\"repeated_seconds\": 0.1, \"time_unix_ms\": %lld}\n",
                        i, from + 1, t + 400, from, t + 500, t + 500);
        }
        ls_str_add(&events, END(100, "complete", 20000));
        add_with_events(&s, "a", NULL, &steps, events.data);
        assert_int_equal(s.run[0].events->seen.failures, 4);
        assert_int_equal(isnan(s.run[0].events->predicted) != 0, copies);
        ls_str_fini(&steps), ls_str_fini(&events);
        ls_run_set_fini(&s);
    }
}

static const char interrupted[] =
    START(0, 4, 1000) FAILURE(1, "host lost", "<script>|\\u001b[2J", 7, 2000) START(5, 4, 5900) RESTART(
        2, 5, 2, 3.9, 0.2,
        6000) "{\"event\": \"audit\", \"step\": 8, \"result\": \"ok\", \"what\": \"parameters\", \"unit\": \"\", \"rank\": null}\n"
              "{\"event\": \"audit\", \"step\": 9, \"result\": \"mismatch\", \"what\": \"gradient\", \"unit\": \"block 3\", "
              "\"rank\": 2}\n" END(10, "complete", 7000);

static const char resized[] =
    START(0, 8, 1000) "{\"event\": \"resize\", \"from\": 8, \"to\": 4, \"step\": 40, \"why\": \"asked\", \"time_unix_ms\": 2100}\n" START(
        40, 4, 3000) END(80, "complete", 5000);

static void interrupted_runs_are_marked_and_never_silent_repeats(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str text = {0}, steps = {0}, html = {0}, md = {0}, scaling = {0};
    s.warm = 1;
    made_metrics(&(made_run){.world = 4, .tokens_per_sec = 5, .epoch_time = 1, .strategy = "ddp"}, &text);
    put_steps(&steps, 1, 10, 1000);
    add_with_events(&s, "interrupted", &text, &steps, interrupted);
    add_with_events(&s, "whole", &text, &steps, START(0, 4, 1000) END(10, "complete", 2000));
    add_with_events(&s, "resized", &text, &steps, resized);
    assert_int_equal(ls_analyse(&s, &(ls_compare_opts){.steady = true}, &a), LS_OK);
    assert_int_equal(a.n_group, 3);
    assert_string_equal(a.group[0].short_name, "ddp (interrupted)");
    assert_true(isnan(a.group[0].wall.mean));
    near(a.group[0].tokens.mean, 16 * 64 / 0.1, 1e-6); /* its steps are valid */
    assert_string_equal(a.group[1].short_name, "ddp");
    near(a.group[1].wall.mean, 2, 1e-9);
    assert_string_equal(a.group[2].short_name, "ddp (resized)");
    assert_true(a.group[2].no_benchmark && !a.group[0].no_benchmark);
    report_page(&a, &html, &md);
    has(md.data, "Interrupted and restarted: interrupted.");
    has(md.data, "Resized: resized.");
    ls_scaling_text(&a, NULL, NULL, NULL, &scaling); /* the whole run stands for four workers */
    has(scaling.data, "\"setting\": \"ddp (interrupted)\"");
    has(scaling.data, "its number of workers changed");
    ls_str_fini(&text), ls_str_fini(&steps), ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&scaling);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

static void the_page_shows_causes_attempts_and_audits(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str steps = {0}, html = {0}, md = {0}, json = {0}, table = {0};
    put_steps(&steps, 1, 5, 1000);
    put_steps(&steps, 6, 10, 6000);
    add_with_events(&s, "r", NULL, &steps, interrupted);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data, "## Interruptions");
    has(md.data, "| r | 1 | 1 | 0 | 16.7 | – | 6.0 | 1.0 | 0.20 | 3.90 | 0.9 |");
    has(md.data, "| r | host lost | 1 | 2 | 0.20 | 3.90 | 68.3 |");
    has(md.data, "| r | 2 | 4 | 5 | 10 | 4.9 | 1.1 | complete |");
    has(md.data, "host lost (rank 2 on a): &lt;script>\\|?\\[2J"); /* no escape sequence, no cell of its own */
    has(md.data, "r: 1 of 2 audits passed");
    has(md.data, "| r | 9 | gradient | block 3 | rank 2 |");
    assert_null(strstr(html.data, "<script"));
    content_interruptions_table(&s, &table);
    has(table.data, "16.7 %");
    has(table.data, "1 of 2");
    has(table.data, "audit of step 9 failed: gradient of block 3, blamed on rank 2");
    ls_jsonw w;
    ls_jsonw_init(&w, &json, 0);
    content_interruptions_json(&s.run[0], &w);
    json_error_t error;
    json_t *j = json_loads(json.data, 0, &error);
    assert_non_null(j);
    assert_int_equal(json_integer_value(json_object_get(j, "failures")), 1);
    near(json_real_value(json_object_get(j, "goodput")), 1.0 / 6, 1e-9);
    assert_int_equal(json_array_size(json_object_get(j, "attempts")), 2);
    json_decref(j);
    ls_str_fini(&steps), ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&json), ls_str_fini(&table);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

static void a_run_without_interruptions_shows_nothing_new(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_analysis a;
    ls_str steps = {0}, html = {0}, md = {0}, table = {0};
    put_steps(&steps, 1, 10, 1000);
    add_with_events(&s, "r", NULL, &steps,
                    START(0, 4, 1000) SAVED(5, 1500) START(5, 4, 9000) END(10, "complete", 9900) "torn");
    assert_null(s.run[0].events);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    assert_null(strstr(md.data, "Interruptions"));
    content_interruptions_table(&s, &table);
    assert_int_equal(table.len, 0);
    ls_str_fini(&steps), ls_str_fini(&html), ls_str_fini(&md), ls_str_fini(&table);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

/* A clock that was set back gives no share above 100 %. */
static void a_changed_clock_gives_no_goodput(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_str steps = {0};
    put_steps(&steps, 1, 10, 1000);
    add_with_events(&s, "r", NULL, &steps,
                    START(0, 4, 1000) FAILURE(1, "hang", "", 10, 500) START(10, 4, 600) RESTART(2, 10, 0, 9.5, 0.0, 700)
                        END(10, "complete", 1100));
    assert_true(isnan(s.run[0].events->goodput));
    near(s.run[0].events->waiting, 9.5, 1e-9);
    ls_str_fini(&steps);
    ls_run_set_fini(&s);
}

static void a_failed_allocation_leaks_nothing(void **state)
{
    (void)state;
    ls_str text = {0}, steps = {0};
    made_metrics(&(made_run){.world = 4, .tokens_per_sec = 5, .epoch_time = 1, .strategy = "ddp"}, &text);
    put_steps(&steps, 1, 10, 1000);
    const int64_t live = ls_mem_live();
    for (int64_t k = 0;; k++) {
        ls_run r = {0};
        ls_notes notes = {0};
        ls_run_texts t = {.file = {[LS_RUN_METRICS] = {text.data, text.len},
                                   [LS_RUN_STEPS] = {steps.data, steps.len},
                                   [LS_RUN_EVENTS] = {interrupted, sizeof interrupted - 1}}};
        ls_mem_fail_at(k);
        const ls_status st = ls_run_read_texts(&t, "r", &notes, &r);
        ls_mem_fail_at(-1);
        if (st == LS_OK) assert_int_equal(r.events->seen.failures, 1);
        else assert_int_equal(st, LS_E_NOMEM);
        if (st == LS_OK) ls_run_fini(&r);
        ls_notes_fini(&notes);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_true(k < 10000);
    }
    ls_str_fini(&text), ls_str_fini(&steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causes_are_counted_by_name),
        cmocka_unit_test(goodput_counts_each_step_once),
        cmocka_unit_test(speed_is_of_the_steps_after_a_resume),
        cmocka_unit_test(time_before_a_resume_by_hand_does_not_count),
        cmocka_unit_test(another_run_in_the_folder_begins_without_failures),
        cmocka_unit_test(a_dead_supervisor_does_not_restart_a_run),
        cmocka_unit_test(a_last_failure_costs_time),
        cmocka_unit_test(an_attempt_that_failed_is_counted_once),
        cmocka_unit_test(a_resize_ends_an_attempt),
        cmocka_unit_test(measured_goodput_agrees_with_the_formula),
        cmocka_unit_test(no_formula_for_copies_in_memory),
        cmocka_unit_test(interrupted_runs_are_marked_and_never_silent_repeats),
        cmocka_unit_test(the_page_shows_causes_attempts_and_audits),
        cmocka_unit_test(a_run_without_interruptions_shows_nothing_new),
        cmocka_unit_test(a_changed_clock_gives_no_goodput),
        cmocka_unit_test(a_failed_allocation_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
