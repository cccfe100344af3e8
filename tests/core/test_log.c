/* Which messages are printed, and the format of a line. */
#include "core/log.h"
#include "cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void levels_come_from_ls_log_and_the_rank(void **state)
{
    (void)state;
    unsetenv("LS_LOG");
    ls_log_init(0);
    assert_true(ls_log_on(LS_LOG_WARN, "comm"));
    assert_false(ls_log_on(LS_LOG_INFO, "comm"));
    setenv("LS_LOG", "info", 1);
    ls_log_init(0);
    assert_true(ls_log_on(LS_LOG_INFO, "comm"));
    assert_false(ls_log_on(LS_LOG_DEBUG, "comm"));
    setenv("LS_LOG", "warn,comm=trace,data=error", 1);
    ls_log_init(0);
    assert_false(ls_log_on(LS_LOG_INFO, "train"));
    assert_true(ls_log_on(LS_LOG_WARN, "train"));
    assert_true(ls_log_on(LS_LOG_TRACE, "comm"));
    assert_false(ls_log_on(LS_LOG_WARN, "data"));
    assert_true(ls_log_on(LS_LOG_ERROR, "data"));
    setenv("LS_LOG", "debug", 1);
    ls_log_init(3);
    assert_true(ls_log_on(LS_LOG_DEBUG, "train"));
    assert_false(ls_log_on(LS_LOG_INFO, "train")); /* info from rank 0 alone, warnings from all */
    assert_true(ls_log_on(LS_LOG_WARN, "train"));
}

/* What `body` writes to stderr. */
static void capture(void (*body)(void), char *out, size_t cap)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(stderr);
    int saved = dup(2);
    dup2(fileno(f), 2);
    body();
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(f);
    size_t n = fread(out, 1, cap - 1, f);
    out[n] = '\0';
    fclose(f);
}

static void short_line(void)
{
    ls_warn("data", "row %d", 7);
}

static void long_line(void)
{
    char big[4000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    ls_warn("data", "%s", big);
}

static void bad_spec(void)
{
    setenv("LS_LOG", "loud,comms=debug,info", 1);
    ls_log_init(0);
    unsetenv("LS_LOG");
}

static void a_message_is_one_line_with_its_prefix(void **state)
{
    (void)state;
    char text[8192];
    unsetenv("LS_LOG");
    ls_log_init(2);
    capture(short_line, text, sizeof text);
    assert_int_equal(text[2], ':');
    assert_non_null(strstr(text, " r2 data       warn  row 7\n"));
    capture(long_line, text, sizeof text); /* cut, still one line */
    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_true(strchr(text, '\n') == text + strlen(text) - 1);
    assert_true(strlen(text) <= 1024);
    capture(bad_spec, text, sizeof text);
    assert_non_null(strstr(text, "'loud' is not a level"));
    assert_non_null(strstr(text, "unknown subsystem 'comms'"));
    assert_true(ls_log_on(LS_LOG_INFO, "comm")); /* the valid part applies */
    assert_false(ls_log_on(LS_LOG_DEBUG, "comm"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels_come_from_ls_log_and_the_rank),
                                       cmocka_unit_test(a_message_is_one_line_with_its_prefix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
