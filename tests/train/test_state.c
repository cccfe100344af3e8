/* The trainer's state in a checkpoint: the loss scale and the number of skipped steps continue unchanged; runs without a loss scale do not
 * write one. */
#include "train/trainer.h"

#include "assert_text.h"

#include <string.h>

static const ls_loss_scale_config zero = {
    .rule = LS_SCALE_ZERO, .initial = 65536, .min = 1, .window = 1000, .hysteresis = 2};

typedef struct run {
    ls_train_config cfg;
    ls_trainer t;
    ls_epoch_metrics done[4];
} run;

static void run_open(run *r, const ls_loss_scale_config *scale)
{
    *r = (run){
        .cfg = {.seed = 3, .seq_len = 8, .global_batch = 4, .micro_batch = 2, .epochs = 3, .steps_per_epoch = 50}};
    r->cfg.loss_scale = *scale;
    r->cfg.precision = scale->rule > LS_SCALE_FIXED ? "fp16" : "bf16";
    r->cfg.device = "cuda";
    r->t.cfg = &r->cfg;
    r->t.train.n_token = 1000;
    r->t.state.done = r->done;
    r->t.state.scale = ls_loss_scale_init(scale);
}

static void write_into(const run *from, run *to)
{
    ls_str s = {0};
    ls_str times = {0};
    ls_run_state_write(&from->t, &s);
    ls_run_timings_write(&from->t, &times);
    assert_false(s.failed || times.failed);
    if (ls_run_state_read(&to->t, s.data, times.data, from->t.state.step, "there") != LS_OK)
        fail_msg("%s", ls_err_words());
    ls_str_fini(&s);
    ls_str_fini(&times);
}

static void a_resumed_loss_scale_continues_unchanged(void **state)
{
    (void)state;
    run a, b;
    run_open(&a, &zero);
    run_open(&b, &zero);
    for (int i = 0; i < 70; i++) {
        const bool overflow = i < 3 || i == 60;
        assert_int_equal(ls_loss_scale_update(&a.t.state.scale, overflow), LS_OK);
        a.t.state.step++;
        a.t.state.skipped += overflow;
    }
    a.t.state.epoch = 1;
    a.t.state.epoch_step = 20;
    a.t.state.epoch_skipped = 1;
    a.done[0] = (ls_epoch_metrics){
        .epoch_idx = 1, .updates_applied = 47, .updates_skipped = 3, .cuda_bytes = 5, .cuda_bytes_global = 7};
    assert_int_equal(ls_next_update(&a.t.state), 67);
    write_into(&a, &b);
    assert_memory_equal(&b.t.state.scale, &a.t.state.scale, sizeof a.t.state.scale);
    assert_true(b.t.state.skipped == 4 && b.t.state.epoch_skipped == 1 && ls_next_update(&b.t.state) == 67);
    assert_true(b.done[0].updates_skipped == 3 && b.done[0].cuda_bytes == 5 && b.done[0].cuda_bytes_global == 7);
    for (int i = 0; i < 3000; i++) { /* both continue equally */
        const bool overflow = i % 97 == 5;
        assert_int_equal(ls_loss_scale_update(&a.t.state.scale, overflow),
                         ls_loss_scale_update(&b.t.state.scale, overflow));
        assert_true(a.t.state.scale.scale == b.t.state.scale.scale);
        if (a.t.state.scale.scale == 1) break;
    }
}

static void a_resumed_run_may_change_precision(void **state)
{
    (void)state;
    const ls_loss_scale_config none = {0}, fixed = {.rule = LS_SCALE_FIXED, .initial = 128};
    ls_str s = {0};
    run a, b;
    run_open(&a, &none);
    a.t.state.step = 9;
    ls_run_state_write(&a.t, &s);
    assert_null(strstr(s.data, "loss_scale"));
    assert_non_null(strstr(s.data, "\"precision\": \"bf16\"")); /* if options.json is lost */
    ls_str_fini(&s);
    run_open(&b, &zero); /* fp32 or bf16, resumed in fp16: the initial scale */
    write_into(&a, &b);
    assert_true(b.t.state.scale.scale == 65536 && b.t.state.scale.it == 0 && b.t.state.skipped == 0);

    run_open(&a, &zero);
    a.t.state.step = 9;
    a.t.state.skipped = 2;
    a.t.state.scale.scale = 1024;
    run_open(&b, &none); /* fp16, resumed in bf16: no scale, but Adam's count of applied updates stays */
    write_into(&a, &b);
    assert_true(ls_loss_scale_now(&b.t.state.scale) == 1 && ls_next_update(&b.t.state) == 8);
    run_open(&a, &zero); /* and resumed in fp16 again */
    write_into(&b, &a);
    assert_true(ls_next_update(&a.t.state) == 8 && a.t.state.scale.scale == 65536);
    run_open(&b, &fixed); /* a fixed scale comes from the configuration, not from the checkpoint */
    a.t.state.scale.scale = 2;
    write_into(&a, &b);
    assert_true(ls_loss_scale_now(&b.t.state.scale) == 128);
    run_open(&a, &fixed); /* but its counts continue: a resumed run writes the state of one that was not interrupted */
    a.t.state.step = 9;
    a.t.state.scale.it = 9;
    a.t.state.scale.last = 4;
    a.t.state.scale.scale = 64;
    write_into(&a, &b);
    assert_true(ls_loss_scale_now(&b.t.state.scale) == 128 && b.t.state.scale.it == 9 && b.t.state.scale.last == 4);
}

/* Of a run whose options.json was deleted. */
static void a_precision_that_nobody_names_is_that_of_the_state(void **state)
{
    (void)state;
    const ls_loss_scale_config none = {0};
    static const struct {
        const char *then, *now, *before;
        bool fp16, named, complete, earlier, refused; /* earlier: a version that did not record it */
    } row[] = {
        {"bf16", "fp32", NULL, .refused = true},
        {"fp8", "bf16", NULL, .refused = true},
        {"bf16", "bf16", NULL, .refused = false},
        {"bf16", "fp32", NULL, .named = true},
        {"bf16", "fp32", "bf16", .refused = false}, /* options.json has it */
        {"bf16", "fp32", NULL, .complete = true},
        {"bf16", "fp32", NULL, .earlier = true},
        {"fp16", "bf16", NULL, .fp16 = true, .earlier = true, .refused = true}, /* by its loss scale */
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        run a, b;
        ls_str s = {0}, times = {0};
        run_open(&a, row[i].fp16 ? &zero : &none);
        run_open(&b, &none);
        a.cfg.precision = row[i].then;
        a.t.state.step = 9;
        b.cfg.precision = row[i].now;
        b.cfg.precision_open = !row[i].named;
        b.cfg.before.precision = row[i].before;
        b.cfg.before.device = row[i].before ? "cuda" : NULL;
        b.cfg.total_steps = row[i].complete ? 9 : 20;
        ls_run_state_write(&a.t, &s);
        ls_run_timings_write(&a.t, &times);
        char *key = strstr(s.data, "\"precision\"");
        assert_non_null(key);
        if (row[i].earlier) key[1] = 'x';
        const ls_status st = ls_run_state_read(&b.t, s.data, times.data, 9, "there");
        if (st != (row[i].refused ? LS_E_CONFIG : LS_OK)) fail_msg("%zu: %s", i, ls_err_words());
        if (st != LS_OK) assert_contains(ls_err_words(), "there: its steps were computed in ");
        if (st != LS_OK) assert_contains(ls_err_words(), row[i].then);
        ls_str_fini(&s);
        ls_str_fini(&times);
    }
}

/* A state that is read replaces the history of the trainer. */
static void an_fp8_history_is_replaced(void **state)
{
    (void)state;
    const ls_loss_scale_config none = {0};
    float then[8] = {1, 2, 3, 4}, now[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    ls_fp8_state f = {.history = {.n = 2, .length = 4, .used = 2, .amax = then}},
                 g = {.history = {.n = 2, .length = 4, .used = 3, .amax = now}};
    ls_model m = {.fp8 = &f}, other = {.fp8 = &g}, bf16 = {0};
    run a, b;
    run_open(&a, &none);
    run_open(&b, &none);
    a.t.model = &m;
    b.t.model = &other;
    for (int i = 0; i < 2; i++) {
        write_into(&a, &b);
        assert_int_equal(g.history.used, 2);
        assert_memory_equal(now, then, 4 * sizeof *now);
    }
    a.t.model = &bf16; /* the next step records one */
    write_into(&a, &b);
    assert_int_equal(g.history.used, 0);
}

static void contradictory_loss_scales_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"rule\": \"zero\", \"scale\": 0, \"hysteresis\": 1, \"boundaries\": 4, \"last_overflow\": 1}",
        "{\"rule\": \"zero\", \"scale\": 8, \"hysteresis\": 1, \"boundaries\": 4, \"last_overflow\": 4}",
        "{\"rule\": \"zero\", \"scale\": 8, \"hysteresis\": -1, \"boundaries\": 4, \"last_overflow\": 1}",
        "{\"rule\": \"zero\", \"scale\": 8, \"boundaries\": 4, \"last_overflow\": 1, \"skipped\": 8}",
        "{\"rule\": \"none\", \"skipped\": 1, \"epoch_skipped\": 4}",
    };
    for (size_t i = 0; i < N_OF(bad); i++) {
        run a;
        char text[640];
        run_open(&a, &zero);
        snprintf(text, sizeof text,
                 "{\"step\": 7, \"epoch_step\": 3, \"loss_scale\": %s, \"epochs_done\": [], \"run\": {\"seed\": 3, "
                 "\"seq_len\": 8, \"global_batch\": 4, \"micro_batch\": 2, \"train_tokens\": 1000}}",
                 bad[i]);
        assert_int_equal(ls_run_state_read(&a.t, text, NULL, -1, "there"), LS_E_FORMAT);
        assert_words("inconsistent");
    }
}

static void an_epoch_that_was_cut_continues_under_a_later_limit(void **state)
{
    (void)state;
    const ls_loss_scale_config none = {0};
    const ls_epoch_metrics epoch = {.epoch_idx = 1,
                                    .micro_steps = 14,
                                    .updates_applied = 7,
                                    .tokens = 56,
                                    .targets = 40,
                                    .wall_time = 2,
                                    .train_loss = 3,
                                    .loss_sum = 168.5,
                                    .grad_norm_max = 5,
                                    .cut = true};
    run a, b;
    run_open(&a, &none);
    a.t.state.step = 7;
    a.t.state.epoch = 1;
    a.done[0] = epoch;
    run_open(&b, &none);
    b.cfg.total_steps = 9;
    write_into(&a, &b);
    assert_true(b.t.state.epoch == 0 && b.t.state.epoch_step == 7 && b.t.state.tokens == 56 && b.t.state.targets == 40);
    assert_true(b.t.state.loss_sum == 168.5 && b.t.state.epoch_time == 2 && b.t.state.norm_max == 5);
    run_open(&b, &none);
    b.cfg.total_steps = 7; /* the same limit */
    write_into(&a, &b);
    assert_true(b.t.state.epoch == 1 && b.t.state.epoch_step == 0);
    a.done[0].cut = false; /* the end of its data, then shorter */
    b.cfg.total_steps = 9;
    write_into(&a, &b);
    assert_true(b.t.state.epoch == 1 && b.t.state.epoch_step == 0);

    run_open(&b, &none); /* as version 0.1.0 wrote it */
    b.cfg.total_steps = 9;
    assert_int_equal(ls_run_state_read(&b.t,
                                       "{\"step\": 7, \"epoch\": 1, \"epochs_done\": [{\"updates_applied\": 7, "
                                       "\"tokens\": 56, \"train_loss\": 3.0}], \"run\": {\"seed\": 3, \"seq_len\": 8, "
                                       "\"global_batch\": 4, \"micro_batch\": 2, \"train_tokens\": 1000}}",
                                       NULL, 7, "there"),
                     LS_OK);
    assert_true(b.t.state.epoch == 0 && b.t.state.epoch_step == 7 && b.t.state.loss_sum == 168);
}

static void other_training_data_of_the_same_size_is_refused(void **state)
{
    (void)state;
    const ls_loss_scale_config none = {0};
    ls_str s = {0};
    run a, b;
    run_open(&a, &none);
    run_open(&b, &none);
    a.t.train_hash = (uint64_t)4096 << 12;
    b.t.train_hash = (uint64_t)4097 << 12;
    ls_run_state_write(&a.t, &s);
    assert_int_equal(ls_run_state_read(&b.t, s.data, NULL, -1, "there"), LS_E_CONFIG);
    assert_words("training data whose hash is 4096, but this run has 4097");
    b.t.train_hash = a.t.train_hash;
    assert_int_equal(ls_run_state_read(&b.t, s.data, NULL, -1, "there"), LS_OK);
    ls_str_fini(&s);
}

/* The text without the number after the first occurrence of a key. */
static void change(char *text, const char *key, const char *by)
{
    char *at = strstr(text, key);
    assert_non_null(at);
    memcpy(at, by, strlen(by));
}

static void a_state_without_its_position_is_refused(void **state)
{
    (void)state;
    static const char *const key[][2] = {{"\"step\"", "\"stop\""},
                                         {"\"epoch\"", "\"apoch\""},
                                         {"\"epoch_step\"", "\"epoch_stop\""},
                                         {"\"loss_sum\"", "\"loss_sun\""}};
    const ls_loss_scale_config none = {0};
    for (size_t i = 0; i <= N_OF(key); i++) {
        ls_str s = {0};
        run a, b;
        run_open(&a, &none);
        run_open(&b, &none);
        a.t.state.step = 7;
        a.t.state.epoch_step = 7;
        ls_run_state_write(&a.t, &s);
        if (i < N_OF(key)) change(s.data, key[i][0], key[i][1]);
        assert_int_equal(ls_run_state_read(&b.t, s.data, NULL, i < N_OF(key) ? 7 : 8, "there"), LS_E_FORMAT);
        assert_words(i < N_OF(key) ? "there: the trainer's state has no " : "the checkpoint is of step 8");
        ls_str_fini(&s);
    }
}

static void measurements_are_apart_from_what_equal_runs_share(void **state)
{
    (void)state;
    const ls_loss_scale_config none = {0};
    ls_str one = {0}, two = {0}, times = {0};
    run a, b;
    run_open(&a, &none);
    a.t.state.step = 50;
    a.t.state.epoch = 1;
    a.t.state.total_time = 7;
    a.done[0] = (ls_epoch_metrics){.epoch_idx = 1,
                                   .updates_applied = 50,
                                   .train_loss = 3,
                                   .wall_time = 6,
                                   .micro_steps = 100,
                                   .n_update = 50,
                                   .update = {.mean = 0.25}};
    ls_run_state_write(&a.t, &one);
    ls_run_timings_write(&a.t, &times);
    run_open(&b, &none);
    b.t.state = a.t.state; /* an equal run on a faster machine, with more workers */
    b.t.state.done = b.done;
    b.t.state.total_time = 3;
    b.done[0] = a.done[0];
    b.done[0].wall_time = 2;
    b.done[0].micro_steps = 25;
    b.done[0].peak_rss_bytes = 99;
    ls_run_state_write(&b.t, &two);
    assert_string_equal(one.data, two.data);
    run_open(&b, &none);
    assert_int_equal(ls_run_state_read(&b.t, one.data, times.data, 50, "there"), LS_OK);
    assert_true(b.t.state.total_time == 7 && b.done[0].wall_time == 6 && b.done[0].micro_steps == 100);
    assert_true(b.done[0].update.mean == 0.25 && b.done[0].train_loss == 3);
    run_open(&b, &none); /* without them, and with those of another step */
    assert_int_equal(ls_run_state_read(&b.t, one.data, NULL, 50, "there"), LS_OK);
    assert_true(b.t.state.total_time == 0 && b.done[0].train_loss == 3);
    assert_int_equal(ls_run_state_read(&b.t, one.data, "{\"step\": 49, \"total_time\": 9.0}", 50, "there"), LS_OK);
    assert_true(b.t.state.total_time == 0);
    ls_str_fini(&one);
    ls_str_fini(&two);
    ls_str_fini(&times);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_resumed_loss_scale_continues_unchanged),
                                       cmocka_unit_test(a_resumed_run_may_change_precision),
                                       cmocka_unit_test(a_precision_that_nobody_names_is_that_of_the_state),
                                       cmocka_unit_test(an_fp8_history_is_replaced),
                                       cmocka_unit_test(a_state_without_its_position_is_refused),
                                       cmocka_unit_test(measurements_are_apart_from_what_equal_runs_share),
                                       cmocka_unit_test(contradictory_loss_scales_are_refused),
                                       cmocka_unit_test(an_epoch_that_was_cut_continues_under_a_later_limit),
                                       cmocka_unit_test(other_training_data_of_the_same_size_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
