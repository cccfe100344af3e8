/* The status line: what fits into a terminal, and which lines a file gets. How it looks on a terminal is tested in tests/cli/terminal.sh. */
#include "core/clock.h"
#include "core/progress.h"
#include "support/cmocka_all.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ls_progress_line sample(void)
{
    ls_progress_line l = {0};
    ls_progress_add(&l, 0, "step %d/%d", 12, 200);
    ls_progress_add(&l, 1, "loss %.4f", 4.25);
    ls_progress_add(&l, 3, "%d tokens/s", 12345);
    ls_progress_add(&l, 2, "eta 3m12s");
    return l;
}

static void assert_layout(const ls_progress_line *l, int columns, const char *expected)
{
    char text[200];
    const size_t n = ls_progress_layout(l, columns, text, sizeof text);
    assert_string_equal(text, expected);
    assert_int_equal(n, strlen(expected));
    assert_true(n <= (size_t)columns);
}

static void fields_are_left_out_by_their_number_until_the_line_fits(void **state)
{
    (void)state;
    const ls_progress_line l = sample();
    assert_layout(&l, 100, "step 12/200  loss 4.2500  12345 tokens/s  eta 3m12s");
    assert_layout(&l, 51, "step 12/200  loss 4.2500  12345 tokens/s  eta 3m12s");
    assert_layout(&l, 50, "step 12/200  loss 4.2500  eta 3m12s");
    assert_layout(&l, 34, "step 12/200  loss 4.2500");
    assert_layout(&l, 23, "step 12/200");
    assert_layout(&l, 6, "step 1");
    assert_layout(&(ls_progress_line){0}, 20, "");
}

static void a_character_is_not_cut_in_half(void **state)
{
    (void)state;
    ls_progress_line l = {0};
    ls_progress_add(&l, 0, "caf\xc3\xa9.txt");
    assert_layout(&l, 4, "caf");
    assert_layout(&l, 5, "caf\xc3\xa9");
}

static void every_field_that_is_added_has_room_and_further_ones_are_ignored(void **state)
{
    (void)state;
    ls_progress_line l = {0};
    char text[4000], longest[100];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    for (int i = 0; i < LS_PROGRESS_FIELDS + 3; i++) ls_progress_add(&l, i, "%s", longest);
    assert_int_equal(l.n, LS_PROGRESS_FIELDS);
    const size_t n = ls_progress_layout(&l, 4000, text, sizeof text);
    assert_int_equal(n, (size_t)LS_PROGRESS_FIELDS * (sizeof l.field[0].text - 1) + 2 * (LS_PROGRESS_FIELDS - 1));
    assert_int_equal(ls_progress_layout(&l, 4000, text, 10), 9); /* room, not columns */
}

static void assert_wrapped(const char *text, int columns, const char *expected)
{
    ls_str s = {0};
    ls_progress_wrap(text, columns, &s);
    assert_string_equal(s.data ? s.data : "", expected);
    ls_str_fini(&s);
}

static void lines_are_wrapped_at_blanks_and_colours_have_no_width(void **state)
{
    (void)state;
    assert_wrapped("one two three\n", 13, "one two three\n");
    assert_wrapped("one two three\nfour\n\n", 9, "one two\n  three\nfour\n\n");
    assert_wrapped("aaaaaaaaaaaa b", 8, "aaaaaaaa\n  aaaa b");
    assert_wrapped("\033[33mone two three\033[0m\n", 13, "\033[33mone two three\033[0m\n");
}

/* What `steps` calls print on a stderr that is no terminal. */
static size_t printed_lines(int first, int steps, char *text, size_t room)
{
    char path[] = "/tmp/lockstep-progress.XXXXXX";
    const int fd = mkstemp(path), saved = dup(STDERR_FILENO);
    assert_true(fd >= 0 && saved >= 0);
    unlink(path);
    dup2(fd, STDERR_FILENO);
    ls_progress_open();
    for (int i = first; i < first + steps; i++) {
        ls_progress_line l = {0};
        ls_progress_add(&l, 0, "step %d", i);
        if (ls_progress_due(i)) ls_progress_show(&l);
    }
    ls_progress_end(true);
    dup2(saved, STDERR_FILENO);
    close(saved);
    const ssize_t n = pread(fd, text, room - 1, 0);
    close(fd);
    assert_true(n >= 0);
    text[n] = '\0';
    size_t lines = 0;
    for (const char *p = text; *p; p++) lines += *p == '\n';
    return lines;
}

static void a_file_gets_plain_lines_for_1_2_5_10_and_so_on(void **state)
{
    (void)state;
    char text[4000];
    assert_int_equal(printed_lines(1, 12, text, sizeof text), 4);
    assert_string_equal(text, "step 1\nstep 2\nstep 5\nstep 10\n");
    assert_false(ls_progress_live());
    assert_int_equal(printed_lines(1, 10000, text, sizeof text), 13); /* not one for each */
    assert_null(strpbrk(text, "\r\033"));
    /* a resumed run begins with a line */
    assert_int_equal(printed_lines(7431, 3, text, sizeof text), 1);
    assert_string_equal(text, "step 7431\n");
}

static void work_without_steps_prints_nothing_in_its_first_seconds(void **state)
{
    (void)state;
    ls_progress_end(false);
    for (int i = 0; i < 1000; i++) assert_false(ls_progress_due(0));
}

static void a_worker_s_status_travels_as_a_line_that_the_parent_recognises(void **state)
{
    (void)state;
    assert_false(ls_progress_take("step 1\n", 7));
    assert_false(ls_progress_take("", 0));
    assert_true(ls_progress_take("\036astep 1/2\037bloss 3\n", 20));
    assert_true(ls_progress_take("\036", 1)); /* torn: shows nothing and reads nothing beyond its end */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_left_out_by_their_number_until_the_line_fits),
        cmocka_unit_test(a_character_is_not_cut_in_half),
        cmocka_unit_test(every_field_that_is_added_has_room_and_further_ones_are_ignored),
        cmocka_unit_test(lines_are_wrapped_at_blanks_and_colours_have_no_width),
        cmocka_unit_test(a_file_gets_plain_lines_for_1_2_5_10_and_so_on),
        cmocka_unit_test(work_without_steps_prints_nothing_in_its_first_seconds),
        cmocka_unit_test(a_worker_s_status_travels_as_a_line_that_the_parent_recognises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
