/* Lock files: one holder, which is named; a dead holder's lock is free. */
#include "core/lock.h"
#include "test_folder.h"

#include "core/clock.h"
#include "core/fs.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static char *dir;

static int make(void **state)
{
    (void)state;
    dir = test_dir();
    return 0;
}

static int clean(void **state)
{
    (void)state;
    test_dir_close(dir);
    return 0;
}

/* A child that holds the lock until it is killed; `ready` is written when it does. */
static pid_t holder(const char *path)
{
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (!pid) {
        ls_lock l = {0};
        if (ls_lock_take(&l, path, 0, "") != LS_OK || write(ready[1], "x", 1) != 1) _exit(1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static void the_holder_is_named_and_its_end_frees_the_lock(void **state)
{
    (void)state;
    ls_lock l = {0};
    char words[64];
    const char *path = test_path(dir, "run.lock", NULL);
    const pid_t pid = holder(path);
    snprintf(words, sizeof words, "(pid %d on host ", (int)pid);
    assert_int_equal(ls_lock_take(&l, path, 0.1, "wait for it"), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), words));
    assert_non_null(strstr(ls_err_words(), "; wait for it"));
    ls_lock_release(&l); /* not held: nothing happens */
    assert_true(ls_fs_exists(path));
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(ls_fs_exists(path)); /* it had no time to remove it */
    assert_int_equal(ls_lock_take(&l, path, 0, ""), LS_OK);
    ls_lock_release(&l);
    assert_false(ls_fs_exists(path));
}

static void a_lock_that_is_released_in_time_is_taken(void **state)
{
    (void)state;
    ls_lock l = {0};
    const char *path = test_path(dir, "late.lock", NULL);
    const pid_t pid = holder(path);
    if (!fork()) {
        usleep(200000);
        kill(pid, SIGKILL);
        _exit(0);
    }
    const double begin = ls_now();
    assert_int_equal(ls_lock_take(&l, path, 20, ""), LS_OK);
    assert_true(ls_now() - begin > 0.1);
    ls_lock_release(&l);
    while (wait(NULL) > 0) continue;
}

static void a_link_is_not_followed(void **state)
{
    (void)state;
    ls_lock l = {0};
    const char *path = test_path(dir, "link.lock", NULL);
    assert_int_equal(symlink("elsewhere", path), 0);
    assert_int_equal(ls_lock_take(&l, path, 0, ""), LS_E_IO);
    assert_false(ls_fs_exists(test_path(dir, "elsewhere", NULL)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_holder_is_named_and_its_end_frees_the_lock),
        cmocka_unit_test(a_lock_that_is_released_in_time_is_taken),
        cmocka_unit_test(a_link_is_not_followed),
    };
    return cmocka_run_group_tests(tests, make, clean);
}
