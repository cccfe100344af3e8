/* report_checks.h - for unit tests of src/report: sets of made-up runs, and checks that print both sides. */
#ifndef LS_TESTS_REPORT_CHECKS_H
#define LS_TESTS_REPORT_CHECKS_H

#include "cmocka_all.h"
#include "core/fs.h"
#include "core/mem.h"
#include "report_fixture.h"

#include <math.h>

enum { MOST_RUNS = 40 };

static inline void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.17g, wanted %.17g within %g", got, want, tolerance);
}

static inline ls_run_set new_set(void)
{
    ls_run_set s = {.run = ls_alloc(MOST_RUNS * sizeof(ls_run)), .cap = MOST_RUNS};
    assert_non_null(s.run);
    return s;
}

static inline void add(ls_run_set *s, const char *dir, made_run r, const ls_str *steps)
{
    ls_str text = {0};
    made_metrics(&r, &text);
    assert_true(s->n < s->cap);
    assert_int_equal(add_made(s, dir, &text, steps), LS_OK);
    ls_str_fini(&text);
}

static inline void has(const char *text, const char *words)
{
    if (!text || !strstr(text, words)) fail_msg("'%s' is not in: %.600s", words, text ? text : "nothing");
}

static inline void has_note(const ls_notes *n, const char *words)
{
    for (int i = 0; i < n->n; i++)
        if (strstr(n->text[i], words)) return;
    fail_msg("no note has '%s'; the first of %d: %s", words, n->n, n->n ? n->text[0] : "none");
}

static inline void make(const char *root, const char *path, const char *text)
{
    char *p = ls_asprintf("%s/%s", root, path);
    assert_int_equal(ls_fs_write(p, text, strlen(text)), LS_OK);
    ls_free(p);
}

#endif
