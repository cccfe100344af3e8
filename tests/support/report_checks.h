/* report_checks.h - sets of invented runs, and a check of notes, for unit tests of src/report. */
#ifndef LS_TESTS_REPORT_CHECKS_H
#define LS_TESTS_REPORT_CHECKS_H

#include "assert_near.h"
#include "assert_text.h"
#include "core/mem.h"
#include "report_fixture.h"
#include "test_folder.h"

#define near assert_near
#define has  assert_contains

enum { MOST_RUNS = 80 };

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

static inline void has_note(const ls_notes *n, const char *words)
{
    for (int i = 0; i < n->n; i++)
        if (strstr(n->text[i], words)) return;
    fail_msg("no note contains '%s'; the first of %d: %s", words, n->n, n->n ? n->text[0] : "none");
}

#endif
