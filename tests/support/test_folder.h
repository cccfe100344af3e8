/* test_folder.h - temporary folders and the files in them. */
#ifndef LS_TESTS_TEST_FOLDER_H
#define LS_TESTS_TEST_FOLDER_H

#include "cmocka_all.h"
#include "core/fs.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Creates a temporary folder, in /dev/shm if possible: some tests call fsync thousands of times. ls_mem_live does not count its name. */
static inline char *test_dir(void)
{
    const char *tmp = getenv("TMPDIR"), *name = "lockstep-test-XXXXXX";
    if (!tmp || !*tmp) tmp = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    const size_t room = strlen(tmp) + strlen(name) + 2;
    char *p = malloc(room);
    assert_non_null(p);
    snprintf(p, room, "%s/%s", tmp, name);
    assert_non_null(mkdtemp(p));
    return p;
}

static inline void test_dir_close(char *dir)
{
    assert_int_equal(ls_fs_remove_tree(dir), LS_OK);
    free(dir);
}

/* dir/a/b in a static buffer that stays valid for seven more calls. */
static inline const char *test_path(const char *dir, const char *a, const char *b)
{
    static char buf[8][1024];
    static int at;
    char *p = buf[at++ % 8];
    const int n = snprintf(p, sizeof buf[0], "%s%s%s%s%s", dir, a ? "/" : "", a ? a : "", b ? "/" : "", b ? b : "");
    assert_true(n > 0 && (size_t)n < sizeof buf[0]);
    return p;
}

/* Writes a text file dir/name; the folders of name are created. */
static inline void test_write(const char *dir, const char *name, const char *text)
{
    assert_int_equal(ls_fs_write(test_path(dir, name, NULL), text, strlen(text)), LS_OK);
}

static inline int test_n_entries(const char *dir)
{
    char **names;
    size_t n;
    assert_int_equal(ls_fs_list(dir, &names, &n), LS_OK);
    ls_fs_list_free(names, n);
    return (int)n;
}

static inline void assert_equal_files(const char *a, const char *b)
{
    char *x, *y;
    size_t nx, ny;
    assert_int_equal(ls_fs_read(a, &x, &nx), LS_OK);
    assert_int_equal(ls_fs_read(b, &y, &ny), LS_OK);
    if (nx != ny || memcmp(x, y, nx)) fail_msg("%s (%zu bytes) and %s (%zu bytes) differ", a, nx, b, ny);
    ls_free(x);
    ls_free(y);
}

#endif
