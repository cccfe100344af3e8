/* Limits of control groups: the smallest counts, pages of files are free. */
#include "core/memory_limit.h"
#include "test_folder.h"

static void put(const char *dir, const char *name, const char *text)
{
    assert_int_equal(ls_fs_write(test_path(dir, name, NULL), text, strlen(text)), LS_OK);
}

static void the_smallest_limit_of_all_groups_counts(void **state)
{
    (void)state;
    char *dir = test_dir();
    int64_t left = 0;
    assert_int_equal(ls_memory_limit_of(dir, "/job/step", &left), -1);
    assert_int_equal(left, -1);
    put(dir, "job/step/memory.max", "max\n");
    put(dir, "job/step/memory.current", "100\n");
    assert_int_equal(ls_memory_limit_of(dir, "/job/step", &left), -1);
    put(dir, "job/memory.max", "5000\n");
    put(dir, "job/memory.current", "3000\n");
    put(dir, "job/memory.stat", "anon 1000\ninactive_file 1500\n");
    assert_int_equal(ls_memory_limit_of(dir, "/job/step", &left), 5000);
    assert_int_equal(left, 3500);
    put(dir, "job/step/memory.max", "1000\n");
    assert_int_equal(ls_memory_limit_of(dir, "/job/step", &left), 1000);
    assert_int_equal(left, 900);
    put(dir, "job/step/memory.current", "1200\n");
    assert_int_equal(ls_memory_limit_of(dir, "/job/step", &left), 1000);
    assert_int_equal(left, 0);
    assert_int_equal(ls_memory_limit_of(dir, "", &left), -1);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_smallest_limit_of_all_groups_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
