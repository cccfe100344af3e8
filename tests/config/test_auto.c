/* The sizes that `train` chooses: they grow with text, time and steps, stay inside what the data has, and give way to what the user gave. */
#include "config/auto.h"
#include "core/mem.h"
#include "cmocka_all.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void parse(ls_train_options *o, const char *line)
{
    static ls_argv words; /* options point into it */
    ls_argv_fini(&words);
    assert_int_equal(ls_argv_split(&words, line), LS_OK);
    assert_int_equal(ls_train_options_parse(words.n, words.word, o), LS_OK);
}

static const ls_auto_facts book = {
    .train_tokens = 1000000, .val_tokens = 50000, .vocab = 2048, .dp = 1, .pp = 1, .seconds = 300};

static const char *value(const ls_auto_choice *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->row[i].name, name)) return c->row[i].value;
    return NULL;
}

static void more_speed_text_and_time_never_choose_a_smaller_model(void **state)
{
    (void)state;
    int before = 0;
    for (double flops = 1e8; flops < 1e16; flops *= 3) {
        const int size = ls_auto_size(&book, flops);
        assert_in_range(size, before, LS_AUTO_SIZES - 1);
        before = size;
    }
    assert_true(before > 2);
    before = 0;
    for (int64_t n = 1000; n < 1000000000000; n *= 7) {
        ls_auto_facts f = book;
        f.train_tokens = n;
        const int size = ls_auto_size(&f, 1e18);
        assert_in_range(size, before, LS_AUTO_SIZES - 1);
        before = size;
    }
    assert_int_equal(before, LS_AUTO_SIZES - 1);
    before = 0;
    for (double s = 1; s < 1e7; s *= 4) {
        ls_auto_facts f = book;
        f.seconds = s;
        const int size = ls_auto_size(&f, 1e11);
        assert_in_range(size, before, LS_AUTO_SIZES - 1);
        before = size;
    }
    assert_true(before > 2);
}

/* The machine's speed has no influence then: such a run is the same everywhere. */
static void steps_of_the_user_decide_the_size_without_a_measurement(void **state)
{
    (void)state;
    ls_auto_facts f = book;
    ls_auto_choice c;
    ls_train_options o;
    f.steps = 1200;
    assert_int_equal(ls_auto_size(&f, 1), ls_auto_size(&f, 1e18));
    parse(&o, "--max_steps 1200");
    ls_auto_choose(&f, &o, ls_auto_size(&f, 1), 0, &c);
    assert_true(c.layers == 4 && c.width == 192 && c.length == 128 && c.batch == 8 && c.micro == 4 && c.steps == 1200);
    assert_null(value(&c, "max_steps"));
    assert_string_equal(value(&c, "warmup_steps"), "60");
    assert_string_equal(value(&c, "lr"), "0.003");
    assert_string_equal(value(&c, "dropout"), "0");
    assert_string_equal(value(&c, "vocab_size"), "2048");
}

static void steps_fit_the_time_and_the_text(void **state)
{
    (void)state;
    ls_auto_choice c, slow;
    ls_train_options o;
    parse(&o, "");
    ls_auto_choose(&book, &o, 2, 0.1, &c);
    assert_true((double)c.steps * 0.1 <= book.seconds && (double)c.steps * 0.1 >= 0.8 * book.seconds);
    ls_auto_choose(&book, &o, 2, 0.2, &slow);
    assert_true(slow.steps < c.steps);
    ls_auto_choose(&book, &o, 2, 1e-4, &c); /* fast enough to read the text very often */
    assert_true(c.steps * c.batch * c.length <= LS_AUTO_EPOCHS * book.train_tokens);
    assert_string_equal(value(&c, "dropout"), "0.2");
    ls_auto_choose(&book, &o, 2, 1e9, &c); /* hopeless: still a run */
    assert_true(c.steps >= 1 && c.steps < 100);
}

/* Every length and batch has sequences to read, in training and validation. */
static void any_amount_of_text_gives_sizes_that_its_data_can_fill(void **state)
{
    (void)state;
    ls_train_options o;
    parse(&o, "");
    for (int64_t n = 300; n < 3000000; n += n / 3)
        for (int dp = 1; dp <= 4; dp *= 2)
            for (int size = 0; size < 4; size++) {
                const ls_auto_facts f = {
                    .train_tokens = n, .val_tokens = n / 20, .vocab = 320, .dp = dp, .pp = 1, .seconds = 60};
                ls_auto_choice c;
                ls_auto_choose(&f, &o, size, 0.01, &c);
                assert_true(c.micro >= 1 && c.batch % (c.micro * dp) == 0 && c.width % c.heads == 0);
                assert_true(n / c.length >= c.batch);
                if (f.val_tokens > 64) assert_true(f.val_tokens / c.length >= c.micro);
            }
}

static void options_of_the_user_are_kept_and_the_rest_follows_them(void **state)
{
    (void)state;
    ls_auto_choice c;
    ls_train_options o;
    ls_argv words = {0};
    ls_str table = {0};
    parse(&o, "--embedding_size 320 --seq_length 64 --global_batch_size 6 --lr 1e-3 --dropout 0.3");
    assert_int_equal(ls_auto_size_given(&o), 3); /* 256 is the nearest below */
    ls_auto_choose(&book, &o, 3, 0.1, &c);
    assert_true(c.width == 320 && c.width % c.heads == 0 && c.length == 64 && c.batch == 6 && c.batch % c.micro == 0);
    assert_int_equal(ls_auto_words(&c, &words), LS_OK);
    for (int i = 0; i < words.n; i++) {
        assert_null(strstr(words.word[i], "--embedding_size"));
        assert_null(strstr(words.word[i], "--lr="));
        assert_null(strstr(words.word[i], "--dropout"));
    }
    ls_auto_table(&c, 0, &table);
    assert_null(strstr(table.data, "--lr "));
    assert_non_null(strstr(table.data, "--max_steps"));
    ls_str_fini(&table);
    ls_argv_fini(&words);
    parse(&o, "--num_heads 5");
    assert_int_equal(ls_auto_size_given(&o), -1);
    ls_auto_choose(&book, &o, 2, 0.1, &c);
    assert_true(c.heads == 5 && c.width % 5 == 0);
    parse(&o, "--micro_batch_size_per_gpu 3 --grad_accum_steps 2");
    ls_auto_choose(&book, &o, 2, 0.1, &c);
    assert_true(c.micro == 3 && c.batch == 6);
    assert_null(value(&c, "global_batch_size"));
}

/* The same text with one blank between all words. */
static void add_words(const char *text, ls_str *out)
{
    for (const char *p = text + strspn(text, " \n"); *p; p += strspn(p, " \n")) {
        const size_t n = strcspn(p, " \n");
        ls_str_addf(out, "%.*s ", (int)n, p);
        p += n;
    }
}

static void reasons_are_wrapped_at_words(void **state)
{
    (void)state;
    ls_auto_choice c;
    ls_train_options o;
    ls_str plain = {0}, plain_words = {0};
    parse(&o, "");
    ls_auto_choose(&book, &o, 3, 0.1, &c);
    ls_auto_table(&c, 0, &plain);
    add_words(plain.data, &plain_words);
    for (int columns = 40; columns <= 100; columns += 10) {
        ls_str table = {0}, words = {0};
        ls_auto_table(&c, columns, &table);
        for (const char *p = table.data; *p; p += strcspn(p, "\n") + 1)
            assert_true(strcspn(p, "\n") <= (size_t)columns);
        add_words(table.data, &words);
        assert_string_equal(words.data, plain_words.data);
        ls_str_fini(&table);
        ls_str_fini(&words);
    }
    ls_str_fini(&plain);
    ls_str_fini(&plain_words);
}

static void the_vocabulary_grows_with_the_text_within_limits(void **state)
{
    (void)state;
    assert_int_equal(ls_auto_vocab(-1), 320);
    assert_int_equal(ls_auto_vocab(4100000), 6016);
    assert_int_equal(ls_auto_vocab(INT64_MAX), 32768);
    for (int64_t n = 1; n < 1000000000; n *= 5) assert_true(ls_auto_vocab(n) <= ls_auto_vocab(5 * n));
}

static void a_time_is_settled_when_two_measurements_agree(void **state)
{
    (void)state;
    double s = 0;
    const double calm[] = {0.100, 0.105}, one_disturbed[] = {0.9, 0.1, 0.11}, never[] = {0.1, 0.2, 0.9, 0.4, 1.8},
                 faster_later[] = {0.9, 0.4, 0.1, 0.11};
    assert_false(ls_auto_settled(calm, 1, &s));
    assert_true(s == 0.1);
    assert_true(ls_auto_settled(calm, 2, &s));
    assert_true(s == 0.105);
    assert_false(ls_auto_settled(one_disturbed, 2, &s));
    assert_true(ls_auto_settled(one_disturbed, 3, &s));
    assert_true(s == 0.11);
    assert_false(ls_auto_settled(faster_later, 3, &s));
    assert_true(s == 0.4);
    assert_true(ls_auto_settled(faster_later, 4, &s));
    assert_true(s == 0.11);
    assert_false(ls_auto_settled(never, 4, &s));
    assert_true(ls_auto_settled(never, LS_AUTO_TRIALS, &s));
    assert_true(s == 0.4);
}

/* The seconds per step that the steps of a run are chosen from again; 0: they stay. The second half of the steps takes `b` each. */
static double chosen_again_from(const ls_auto_facts *f, const ls_auto_choice *c, double expected, double a, double b)
{
    ls_auto_check k = ls_auto_check_of(f, c, expected, 300);
    ls_auto_watch(&k, 1, 100, 1); /* the first step does not count */
    for (int64_t step = 2; step <= k.step + 5; step++)
        ls_auto_watch(&k, step, step <= 1 + (k.step - 1) / 2 ? a : b, 10);
    return k.measured;
}

static void the_first_steps_correct_a_wrong_trial(void **state)
{
    (void)state;
    ls_auto_facts f = book;
    const ls_auto_choice c = {.steps = 1000, .most = 100000}, all_text = {.steps = 1000, .most = 1000},
                         least = {.steps = 20, .most = 100000};
    assert_true(fabs(chosen_again_from(&f, &c, 0.25, 0.4, 0.4) - 0.4) < 1e-9);
    assert_true(fabs(chosen_again_from(&f, &c, 0.25, 0.1, 0.1) - 0.1) < 1e-9);
    assert_true(chosen_again_from(&f, &c, 0.25, 0.36, 0.36) == 0);
    assert_true(chosen_again_from(&f, &c, 0.25, 0.18, 0.18) == 0);
    assert_true(chosen_again_from(&f, &c, 0.25, 0.25, 5) == 0); /* one half was disturbed */
    assert_true(chosen_again_from(&f, &all_text, 0.25, 0.1, 0.1) == 0);
    assert_true(chosen_again_from(&f, &all_text, 0.25, 0.5, 0.5) > 0);
    assert_int_equal(ls_auto_check_of(&f, &c, 0.25, 300).step, 10);
    assert_int_equal(ls_auto_check_of(&f, &c, 0.01, 300).step, 101); /* a second */
    assert_int_equal(ls_auto_check_of(&f, &least, 10, 300).step, 3);
    assert_int_equal(ls_auto_check_of(&f, &c, 0.004, 300).step, 0); /* a run of a few seconds */
    assert_true(chosen_again_from(&f, &least, 10, 1, 1) > 0);
    f.steps = 1000;
    assert_true(chosen_again_from(&f, &c, 0.25, 1, 1) == 0);
    f = book;
    f.epochs = 2;
    assert_true(chosen_again_from(&f, &c, 0.25, 1, 1) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_steps_correct_a_wrong_trial),
        cmocka_unit_test(more_speed_text_and_time_never_choose_a_smaller_model),
        cmocka_unit_test(steps_of_the_user_decide_the_size_without_a_measurement),
        cmocka_unit_test(steps_fit_the_time_and_the_text),
        cmocka_unit_test(any_amount_of_text_gives_sizes_that_its_data_can_fill),
        cmocka_unit_test(options_of_the_user_are_kept_and_the_rest_follows_them),
        cmocka_unit_test(a_time_is_settled_when_two_measurements_agree),
        cmocka_unit_test(reasons_are_wrapped_at_words),
        cmocka_unit_test(the_vocabulary_grows_with_the_text_within_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
