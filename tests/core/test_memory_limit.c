/* Limits of control groups: the smallest counts, pages of files are free. */
#include "core/memory_limit.h"
#include "test_folder.h"

static void put(const char *dir, const char *name, const char *text)
{
    assert_int_equal(ls_fs_write(test_path(dir, name, NULL), text, strlen(text)), LS_OK);
}

static int64_t limit(const char *dir, const char *groups, int64_t *left)
{
    put(dir, "groups", groups);
    return ls_memory_limit_of(dir, test_path(dir, "groups", NULL), left);
}

static void the_smallest_limit_of_all_groups_counts(void **state)
{
    (void)state;
    char *dir = test_dir();
    int64_t left = 0;
    assert_int_equal(limit(dir, "0::/job/step\n", &left), -1);
    assert_int_equal(left, -1);
    put(dir, "job/step/memory.max", "max\n");
    put(dir, "job/step/memory.current", "100\n");
    assert_int_equal(limit(dir, "0::/job/step\n", &left), -1);
    put(dir, "job/memory.max", "5000\n");
    put(dir, "job/memory.current", "3000\n");
    put(dir, "job/memory.stat", "anon 1000\ninactive_file 1500\n");
    assert_int_equal(limit(dir, "0::/job/step\n", &left), 5000);
    assert_int_equal(left, 3500);
    put(dir, "job/step/memory.max", "1000\n");
    assert_int_equal(limit(dir, "0::/job/step\n", &left), 1000);
    assert_int_equal(left, 900);
    put(dir, "job/step/memory.current", "1200\n");
    assert_int_equal(limit(dir, "0::/job/step\n", &left), 1000);
    assert_int_equal(left, 0);
    assert_int_equal(limit(dir, "", &left), -1);
    test_dir_close(dir);
}

static void a_limit_of_version_1_counts(void **state)
{
    (void)state;
    static const char groups[] = "12:cpuset:/wrong\n5:cpu,memory:/box/a\n1:name=systemd:/wrong\n0::/wrong\n";
    char *dir = test_dir();
    int64_t left = 0;
    put(dir, "memory/box/a/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put(dir, "memory/box/a/memory.usage_in_bytes", "100\n");
    put(dir, "memory/wrong/memory.limit_in_bytes", "1\n");
    assert_int_equal(limit(dir, groups, &left), -1);
    assert_int_equal(left, -1);
    put(dir, "memory/box/memory.limit_in_bytes", "5000\n");
    put(dir, "memory/box/memory.usage_in_bytes", "3000\n");
    put(dir, "memory/box/memory.stat", "inactive_file 1\ntotal_inactive_file 1500\n");
    assert_int_equal(limit(dir, groups, &left), 5000);
    assert_int_equal(left, 3500);
    /* in a container the path is that of the host, and its own group is at the root */
    put(dir, "memory/memory.limit_in_bytes", "2000\n");
    put(dir, "memory/memory.usage_in_bytes", "500\n");
    assert_int_equal(limit(dir, "5:memory:/docker/0123\n0::/\n", &left), 2000);
    assert_int_equal(left, 1500);
    /* both versions: the smaller one */
    put(dir, "memory.max", "900\n");
    put(dir, "memory.current", "100\n");
    assert_int_equal(limit(dir, "5:memory:/docker/0123\n0::/\n", &left), 900);
    assert_int_equal(left, 800);
    assert_int_equal(limit(dir, "no colon\n1:memory\n2:memory:x\n", &left), 900);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_smallest_limit_of_all_groups_counts),
                                       cmocka_unit_test(a_limit_of_version_1_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
