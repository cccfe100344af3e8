/* options.json: what a run was started with reads back as the same options, without those of one process alone. */
#include "config/run_options.h"
#include "core/fs.h"
#include "core/mem.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include <string.h>

static char *dir;

static int set_up(void **state)
{
    (void)state;
    dir = test_dir();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_dir_close(dir);
    return 0;
}

/* Options point into *words. */
static void parse(ls_argv *words, ls_train_options *o)
{
    assert_int_equal(ls_train_options_parse(words->n, words->word, o), LS_OK);
}

static void save(const char *line, int micro, int64_t batch)
{
    ls_argv words = {0};
    ls_train_options o;
    ls_str text = {0};
    assert_int_equal(ls_argv_split(&words, line), LS_OK);
    parse(&words, &o);
    ls_run_options_write(&o, &(ls_train_config){.micro_batch = micro, .global_batch = batch}, &text);
    assert_int_equal(ls_fs_write(ls_path_of(dir, LS_RUN_OPTIONS).text, text.data, text.len), LS_OK);
    ls_str_fini(&text);
    ls_argv_fini(&words);
}

static void options_read_back_the_same(void **state)
{
    (void)state;
    ls_argv words = {0};
    ls_train_options o;
    save(
        "--data no-such-folder --model tiny --lr 0.1234567890123 --betas 0.8 0.9 --recompute --seed 7 --strategy zero2 --n 2 "
        "--grad_accum_steps 3 --json --checkpoint_path elsewhere",
        4, 24);
    assert_int_equal(ls_run_options_read(dir, false, &words), LS_OK);
    parse(&words, &o);
    assert_string_equal(o.data, "no-such-folder");
    assert_string_equal(o.model, "tiny");
    assert_string_equal(o.strategy, "zero2");
    assert_true(o.lr == 0.1234567890123 && o.seed == 7 && o.recompute && o.n == 2);
    assert_int_equal(o.betas.n, 2);
    assert_string_equal(o.betas.word[1], "0.9");
    assert_true(o.micro_batch_size_per_gpu == 4 && o.global_batch_size == 24); /* instead of the accumulation */
    assert_false(ls_train_given(&o, "grad_accum_steps") || ls_train_given(&o, "json") ||
                 ls_train_given(&o, "checkpoint_path"));
    ls_argv_fini(&words);
    assert_int_equal(ls_run_options_read(dir, true, &words), LS_OK); /* the launcher sets the workers */
    parse(&words, &o);
    assert_false(ls_train_given(&o, "n"));
    ls_argv_fini(&words);
}

static void paths_that_exist_become_absolute(void **state)
{
    (void)state;
    ls_argv words = {0};
    ls_train_options o;
    save("--data .", 1, 1);
    assert_int_equal(ls_run_options_read(dir, false, &words), LS_OK);
    parse(&words, &o);
    assert_int_equal(o.data[0], '/');
    ls_argv_fini(&words);
}

static void a_damaged_file_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"{", "[]", "{\"options\": {\"lr\": null}}"};
    for (size_t i = 0; i < N_OF(bad); i++) {
        ls_argv words = {0};
        assert_int_equal(ls_fs_write(ls_path_of(dir, LS_RUN_OPTIONS).text, bad[i], strlen(bad[i])), LS_OK);
        assert_int_equal(ls_run_options_read(dir, false, &words), LS_E_FORMAT);
        ls_argv_fini(&words);
    }
    ls_argv words = {0};
    assert_int_equal(ls_run_options_read("/no/such/run", false, &words), LS_E_IO);
    ls_err_clear();
}

static void an_option_that_is_forgotten_has_its_default(void **state)
{
    (void)state;
    ls_argv words = {0};
    ls_train_options o;
    assert_int_equal(ls_argv_split(&words, "--n 4 --strategy zero3 --sequence_parallel"), LS_OK);
    parse(&words, &o);
    ls_train_forget(&o, "n");
    ls_train_forget(&o, "strategy");
    ls_train_forget(&o, "sequence_parallel");
    assert_true(o.n == 1 && !o.strategy && !o.sequence_parallel && !ls_train_given(&o, "n"));
    ls_argv_fini(&words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_read_back_the_same),
        cmocka_unit_test(paths_that_exist_become_absolute),
        cmocka_unit_test(a_damaged_file_is_refused),
        cmocka_unit_test(an_option_that_is_forgotten_has_its_default),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
