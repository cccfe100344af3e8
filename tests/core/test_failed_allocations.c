/* Each allocation of core fails once: the status is LS_E_NOMEM, nothing leaks, no partial file remains, and the next attempt succeeds. */
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/plan.h"
#include "core/str.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include <stdio.h>
#include <stdlib.h>
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

/* Runs body with its k-th allocation failing, for k = 0, 1, ... until it succeeds; returns how many failed. */
static int sweep(ls_status (*body)(void))
{
    for (int k = 0; k < 10000; k++) {
        int64_t live = ls_mem_live();
        ls_err_clear();
        ls_mem_fail_at(k);
        ls_status st = body();
        ls_mem_fail_at(-1);
        if (ls_mem_live() != live)
            fail_msg("allocation %d failed: %lld blocks were not freed", k, (long long)(ls_mem_live() - live));
        if (st == LS_OK) return k;
        assert_int_equal(st, LS_E_NOMEM);
        assert_true(ls_err_words()[0] != '\0');
    }
    fail_msg("it never succeeds");
    return -1;
}

static char path[256];

static ls_status write_body(void)
{
    static char text[3000];
    memset(text, 'n', sizeof text);
    return ls_fs_write(path, text, sizeof text);
}

static void a_write_survives_each_failed_allocation(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "%s/sub/w", dir);
    assert_true(sweep(write_body) >= 4);
    snprintf(path, sizeof path, "%s/sub/w.tmp", dir);
    assert_false(ls_fs_exists(path));
}

static ls_status read_body(void)
{
    char *data = NULL;
    size_t n = 0;
    ls_status st = ls_fs_read(path, &data, &n);
    if (st != LS_OK) assert_null(data);
    ls_free(data);
    return st;
}

static void a_read_survives_each_failed_allocation(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "%s/sub/r", dir);
    assert_int_equal(ls_fs_write(path, "x", 1), LS_OK);
    assert_int_equal(sweep(read_body), 1);
    snprintf(path, sizeof path, "/proc/self/maps"); /* grows while it is read */
    assert_true(sweep(read_body) >= 2);
}

static ls_status list_body(void)
{
    char **names = NULL;
    size_t n = 0;
    LS_TRY(ls_fs_list(path, &names, &n));
    assert_int_equal(n, 40);
    ls_fs_list_free(names, n);
    return LS_OK;
}

static ls_status remove_body(void)
{
    return ls_fs_remove_tree(path);
}

static void listing_and_removing_survive_failed_allocations(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        snprintf(path, sizeof path, "%s/many/f%d", dir, i);
        assert_int_equal(ls_fs_write(path, "", 0), LS_OK);
    }
    snprintf(path, sizeof path, "%s/many", dir);
    assert_true(sweep(list_body) >= 42);
    assert_true(sweep(remove_body) >= 40);
    assert_false(ls_fs_exists(path));
}

static ls_status plan_body(void)
{
    ls_plan p = {0};
    for (int i = 0; i < 200; i++) (void)ls_plan_add(&p, LS_PART_ACT, 1000 + i, i, i + 3, "row %d", i);
    ls_status st = ls_plan_layout(&p);
    if (st == LS_OK) st = ls_plan_alloc(&p, 0);
    if (st == LS_OK) assert_non_null(ls_plan_at(&p, 199));
    ls_plan_fini(&p);
    return st;
}

static void a_memory_plan_survives_failed_allocations(void **state)
{
    (void)state;
    assert_true(sweep(plan_body) >= 6);
}

static ls_status text_body(void)
{
    ls_str s = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    for (int i = 0; i < 100; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        ls_jsonw_key(&w, key);
        ls_jsonw_real(&w, i / 7.0);
    }
    ls_jsonw_close(&w);
    ls_status st = s.failed ? ls_nomem(s.cap, "a text") : LS_OK;
    ls_str_fini(&s);
    return st;
}

static void a_growing_text_survives_failed_allocations(void **state)
{
    (void)state;
    assert_true(sweep(text_body) >= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_survives_each_failed_allocation),
        cmocka_unit_test(a_read_survives_each_failed_allocation),
        cmocka_unit_test(listing_and_removing_survive_failed_allocations),
        cmocka_unit_test(a_memory_plan_survives_failed_allocations),
        cmocka_unit_test(a_growing_text_survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
