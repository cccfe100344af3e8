/* Files are complete or do not exist; failures name the path; folders are created, listed and removed. */
#include "core/fs.h"
#include "core/mem.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
    const bool removed = ls_fs_remove_tree(dir) == LS_OK && !ls_fs_exists(dir);
    free(dir);
    return removed ? 0 : -1;
}

static const char *at(const char *name)
{
    return test_path(dir, name, NULL);
}

static void a_file_reads_back_as_written(void **state)
{
    (void)state;
    char *data = NULL;
    size_t n = 0;
    int64_t nbytes = 0;
    assert_int_equal(ls_fs_write(at("a/b/c.bin"), "x\0y", 3), LS_OK); /* makes the folders */
    assert_int_equal(ls_fs_read(at("a/b/c.bin"), &data, &n), LS_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(data, "x\0y", 4);
    ls_free(data);
    assert_false(ls_fs_exists(at("a/b/c.bin.tmp")));
    assert_int_equal(ls_fs_size(at("a/b/c.bin"), &nbytes), LS_OK);
    assert_int_equal(nbytes, 3);
    assert_int_equal(ls_fs_write(at("empty"), "", 0), LS_OK);
    assert_int_equal(ls_fs_read(at("empty"), &data, &n), LS_OK);
    assert_int_equal(n, 0);
    assert_string_equal(data, "");
    ls_free(data);
    assert_int_equal(ls_fs_read("/proc/self/stat", &data, &n), LS_OK); /* a file that states no size */
    assert_true(n > 10 && strlen(data) == n);
    ls_free(data);
}

static void add_line(const char *path, const char *line)
{
    const int fd = ls_fs_open_lines(path);
    assert_true(fd >= 0);
    assert_int_equal(ls_fs_append(fd, path, line, strlen(line)), LS_OK);
    close(fd);
}

static void a_cut_line_does_not_take_the_next_one(void **state)
{
    (void)state;
    char *data = NULL;
    size_t n = 0;
    add_line(at("lines"), "a\n"); /* makes the file */
    add_line(at("lines"), "b");
    add_line(at("lines"), "c\n");
    add_line(at("lines"), "d\n");
    assert_int_equal(ls_fs_read(at("lines"), &data, &n), LS_OK);
    assert_string_equal(data, "a\nb\nc\nd\n");
    ls_free(data);
    assert_int_equal(ls_fs_open_lines(at("missing/lines")), -1);
}

static void a_failed_read_names_the_path(void **state)
{
    (void)state;
    char *data = NULL;
    size_t n;
    int64_t nbytes;
    ls_fs_map m;
    assert_int_equal(ls_fs_read(at("none"), &data, &n), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), at("none")));
    assert_int_equal(ls_fs_read(dir, &data, &n), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "folder"));
    assert_null(data);
    assert_int_equal(ls_fs_size(at("none"), &nbytes), LS_E_IO);
    assert_int_equal(ls_fs_map_open(&m, at("none")), LS_E_IO);
    assert_int_equal(ls_fs_map_open(&m, dir), LS_E_IO);
}

static void a_file_changes_only_at_the_commit(void **state)
{
    (void)state;
    char *data;
    size_t n;
    ls_fs_out o;
    assert_int_equal(ls_fs_write(at("p"), "old", 3), LS_OK);
    assert_int_equal(ls_fs_out_open(&o, at("p")), LS_OK);
    assert_int_equal(ls_fs_out_append(&o, "ne", 2), LS_OK);
    assert_int_equal(ls_fs_read(at("p"), &data, &n), LS_OK); /* the old content until the commit */
    assert_string_equal(data, "old");
    ls_free(data);
    assert_int_equal(ls_fs_out_append(&o, "w!", 2), LS_OK);
    assert_int_equal(o.nbytes, 4);
    assert_int_equal(ls_fs_out_commit(&o), LS_OK);
    assert_int_equal(ls_fs_read(at("p"), &data, &n), LS_OK);
    assert_string_equal(data, "new!");
    ls_free(data);
    assert_int_equal(ls_fs_out_open(&o, at("p")), LS_OK);
    assert_int_equal(ls_fs_out_append(&o, "zzz", 3), LS_OK);
    ls_fs_out_abort(&o);
    ls_fs_out_abort(&o); /* accepts a closed file */
    assert_int_equal(ls_fs_read(at("p"), &data, &n), LS_OK);
    assert_string_equal(data, "new!");
    ls_free(data);
    assert_false(ls_fs_exists(at("p.tmp")));
}

/* A disk that is full (here: a limit on the size of files) leaves the old file and no temporary one. */
static void a_failed_write_changes_nothing(void **state)
{
    (void)state;
    char *data;
    size_t n;
    assert_int_equal(ls_fs_write(at("w"), "good", 4), LS_OK);
    pid_t pid = fork();
    if (!pid) {
        struct rlimit r = {1000, 1000};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &r);
        static char big[5000];
        ls_status st = ls_fs_write(at("w"), big, sizeof big);
        _exit(st == LS_E_IO && strstr(ls_err_words(), "at byte 1000") ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_false(ls_fs_exists(at("w.tmp")));
    assert_int_equal(ls_fs_read(at("w"), &data, &n), LS_OK);
    assert_string_equal(data, "good");
    ls_free(data);
}

/* A process that is killed while it rewrites a file again and again leaves a complete version of it. */
static void killed_writers_leave_whole_files(void **state)
{
    (void)state;
    enum { N = 50000 };
    for (int round = 0; round < 12; round++) {
        pid_t pid = fork();
        if (!pid) {
            char *text = malloc(N);
            for (int k = 0;; k++) {
                memset(text, 'a' + k % 26, N);
                if (!text || ls_fs_write(at("k"), text, N) != LS_OK) _exit(1);
            }
        }
        while (round == 0 && !ls_fs_exists(at("k"))) usleep(100);
        usleep((useconds_t)(500 + 1300 * round));
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        char *data;
        size_t n;
        assert_int_equal(ls_fs_read(at("k"), &data, &n), LS_OK);
        assert_int_equal(n, N);
        for (size_t i = 1; i < n; i++) assert_int_equal(data[i], data[0]);
        ls_free(data);
    }
}

static void only_regular_files_and_open_pipes_are_read(void **state)
{
    (void)state;
    char *data = NULL, path[32];
    size_t n = 0;
    int ends[2];
    ls_fs_map map;
    assert_int_equal(mkfifo(at("fifo"), 0666), 0); /* nobody writes to it: opening it would wait */
    assert_int_equal(ls_fs_read(at("fifo"), &data, &n), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "it is a named pipe; a regular file is needed"));
    assert_int_equal(ls_fs_map_open(&map, at("fifo")), LS_E_IO);
    assert_int_equal(ls_fs_read("/dev/zero", &data, &n), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "a device"));
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "abc", 3), 3);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    assert_int_equal(ls_fs_read(path, &data, &n), LS_OK);
    assert_string_equal(data, "abc");
    ls_free(data);
    close(ends[0]);
}

static void a_file_above_the_limit_is_not_read(void **state)
{
    (void)state;
    char *data = NULL;
    size_t n = 0;
    const int64_t before = ls_mem_count();
    assert_int_equal(ls_fs_write(at("huge.json"), "{}", 2), LS_OK);
    assert_int_equal(truncate(at("huge.json"), (off_t)5 << 30), 0); /* sparse */
    assert_int_equal(ls_fs_read_most(at("huge.json"), LS_FS_TEXT_MOST, &data, &n), LS_E_FORMAT);
    assert_non_null(strstr(ls_err_words(), "256.0 MiB"));
    assert_true(ls_mem_count() - before < 10);
    assert_int_equal(ls_fs_write(at("small"), "12345", 5), LS_OK);
    assert_int_equal(ls_fs_read_most(at("small"), 5, &data, &n), LS_OK);
    ls_free(data);
    assert_int_equal(ls_fs_read_most(at("small"), 4, &data, &n), LS_E_FORMAT);
    assert_int_equal(ls_fs_read_most("/proc/self/stat", 4, &data, &n), LS_E_FORMAT); /* states no size */
}

/* A rename would replace a pipe or a link by a file. */
static void pipes_links_and_folders_are_not_replaced(void **state)
{
    (void)state;
    char got[8] = "", *data = NULL;
    size_t n = 0;
    struct stat s;
    assert_int_equal(mkfifo(at("pipe"), 0666), 0);
    assert_int_equal(symlink("pipe", at("to-pipe")), 0);
    int fd = open(at("pipe"), O_RDWR | O_NONBLOCK | O_CLOEXEC); /* its reader */
    assert_true(fd >= 0);
    assert_int_equal(ls_fs_write(at("pipe"), "abc", 3), LS_OK);
    assert_int_equal(ls_fs_write(at("to-pipe"), "de", 2), LS_OK);
    assert_int_equal(read(fd, got, sizeof got), 5);
    assert_memory_equal(got, "abcde", 5);
    close(fd);
    assert_true(!lstat(at("pipe"), &s) && S_ISFIFO(s.st_mode));
    assert_true(!lstat(at("to-pipe"), &s) && S_ISLNK(s.st_mode));
    assert_false(ls_fs_exists(at("pipe.tmp")));

    assert_int_equal(ls_fs_write(at("elsewhere/file"), "old", 3), LS_OK); /* a link to a file stays a link */
    assert_int_equal(symlink("elsewhere/file", at("link")), 0);
    assert_int_equal(ls_fs_write(at("link"), "new", 3), LS_OK);
    assert_true(!lstat(at("link"), &s) && S_ISLNK(s.st_mode));
    assert_int_equal(ls_fs_read(at("elsewhere/file"), &data, &n), LS_OK);
    assert_string_equal(data, "new");
    ls_free(data);
    assert_false(ls_fs_exists(at("elsewhere/file.tmp")));

    assert_int_equal(ls_fs_write(at("victim"), "mine", 4),
                     LS_OK); /* a link with the temporary name is replaced, not followed */
    assert_int_equal(symlink("victim", at("target.tmp")), 0);
    assert_int_equal(ls_fs_write(at("target"), "new", 3), LS_OK);
    assert_int_equal(ls_fs_read(at("victim"), &data, &n), LS_OK);
    assert_string_equal(data, "mine");
    ls_free(data);
    assert_true(!lstat(at("target"), &s) && S_ISREG(s.st_mode));
    ls_fs_out first, second; /* of two writers of one file, the one whose temporary file is gone fails */
    assert_int_equal(ls_fs_out_open(&first, at("twice")), LS_OK);
    assert_int_equal(ls_fs_out_open(&second, at("twice")), LS_OK);
    assert_int_equal(ls_fs_out_append(&second, "2", 1), LS_OK);
    assert_int_equal(ls_fs_out_commit(&first), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "another process is writing this file"));
    assert_int_equal(ls_fs_out_commit(&second), LS_OK);

    assert_int_equal(symlink("nowhere", at("dangling")), 0);
    assert_int_equal(ls_fs_write(at("dangling"), "x", 1), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "dangling: the symbolic link is broken"));
    assert_true(!lstat(at("dangling"), &s) && S_ISLNK(s.st_mode));
    assert_int_equal(ls_fs_write(at("elsewhere"), "x", 1), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "elsewhere: it is a folder"));
    ls_err_clear();
}

static void a_map_shows_the_bytes_of_the_file(void **state)
{
    (void)state;
    ls_fs_map m;
    assert_int_equal(ls_fs_write(at("m"), "mapped", 6), LS_OK);
    assert_int_equal(ls_fs_map_open(&m, at("m")), LS_OK);
    assert_int_equal(m.n, 6);
    assert_memory_equal(m.data, "mapped", 6);
    ls_fs_map_close(&m);
    assert_int_equal(ls_fs_write(at("m"), "", 0), LS_OK);
    assert_int_equal(ls_fs_map_open(&m, at("m")), LS_OK);
    assert_int_equal(m.n, 0);
    assert_non_null(m.data);
    ls_fs_map_close(&m);
}

static void a_map_whose_file_shrinks_ends_the_process_with_its_name(void **state)
{
    (void)state;
    static char page[3 * 65536];
    int to[2], status = 0;
    char got[400] = "";
    assert_int_equal(ls_fs_write(at("shrinks"), page, sizeof page), LS_OK);
    assert_int_equal(pipe(to), 0);
    const pid_t pid = fork();
    if (!pid) {
        ls_fs_map m;
        dup2(to[1], STDERR_FILENO);
        signal(SIGBUS, SIG_DFL); /* not the one of cmocka */
        if (ls_fs_map_open(&m, at("shrinks")) != LS_OK || truncate(at("shrinks"), 10)) _exit(9);
        _exit(((const volatile char *)m.data)[2 * 65536 + 5]);
    }
    close(to[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(read(to[0], got, sizeof got - 1) > 0);
    close(to[0]);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    assert_non_null(strstr(got, "shrinks became shorter while it was read"));
}

static void folders_are_created_listed_and_removed(void **state)
{
    (void)state;
    assert_int_equal(ls_fs_mkdirs(at("x//y/z/")), LS_OK);
    assert_int_equal(ls_fs_mkdirs(at("x/y/z")), LS_OK);
    assert_true(ls_fs_is_dir(at("x/y/z")));
    assert_int_equal(ls_fs_mkdirs(""), LS_E_IO);
    assert_int_equal(ls_fs_mkdirs("/"), LS_OK);
    assert_int_equal(ls_fs_write(at("x/file"), "", 0), LS_OK);
    assert_int_equal(ls_fs_mkdirs(at("x/file")), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "a file of that name exists"));
    assert_int_equal(ls_fs_mkdirs(at("x/file/y")), LS_E_IO);
    static const char *const name[] = {"b", "a", "B", "10", "9", "\xc3\xa9"}, *const sorted[] = {"10", "9", "B",
                                                                                                 "a",  "b", "\xc3\xa9"};
    for (size_t i = 0; i < N_OF(name); i++) {
        char *p = ls_path_join(at("l"), name[i]);
        assert_int_equal(ls_fs_write(p, "", 0), LS_OK);
        ls_free(p);
    }
    char **list;
    size_t n;
    assert_int_equal(ls_fs_list(at("l"), &list, &n), LS_OK);
    assert_int_equal(n, N_OF(sorted));
    for (size_t i = 0; i < n; i++) assert_string_equal(list[i], sorted[i]);
    ls_fs_list_free(list, n);
    assert_int_equal(ls_fs_list(at("x/y/z"), &list, &n), LS_OK);
    assert_int_equal(n, 0);
    ls_fs_list_free(list, n);
    assert_int_equal(ls_fs_list(at("none"), &list, &n), LS_E_IO);
    assert_int_equal(ls_fs_rename(at("l"), at("l2")), LS_OK);
    assert_true(!ls_fs_exists(at("l")) && ls_fs_is_dir(at("l2")));
    assert_int_equal(symlink(at("x"), at("l2/link")), 0); /* a link is removed, not followed */
    assert_int_equal(ls_fs_remove_tree(at("l2")), LS_OK);
    assert_true(!ls_fs_exists(at("l2")) && ls_fs_exists(at("x/file")));
    assert_int_equal(ls_fs_remove_tree(at("none")), LS_OK);
}

/* Below a folder of ls_fs_no_links every call fails on a link, also of a folder, and leaves what it leads to; elsewhere links are followed. */
static void names_below_a_folder_without_links(void **state)
{
    (void)state;
    char *data = NULL, **names = NULL, root[PATH_MAX];
    size_t n = 0;
    struct stat s;
    ls_status st;
    ls_fs_out o;
    ls_fs_map m;
    assert_int_equal(ls_fs_write(at("outside/file"), "text", 4), LS_OK);
    assert_int_equal(ls_fs_mkdirs(at("real/sub")), LS_OK);
    assert_int_equal(ls_fs_write(at("real/sub/own"), "own", 3), LS_OK);
    assert_int_equal(symlink("real", at("root")), 0);
    assert_int_equal(symlink("../outside/file", at("real/file")), 0);
    assert_int_equal(symlink("../outside", at("real/folder")), 0);
    assert_int_equal(symlink("../outside/new", at("real/nowhere")), 0);
    assert_int_equal(ls_fs_read(at("root/file"), &data, &n), LS_OK); /* still followed */
    ls_free(data);
    snprintf(root, sizeof root, "%s/", at("root"));
    assert_int_equal(ls_fs_no_links(root), LS_OK);
    static const char *const link[] = {
        "root/file", "root/folder/file", "root//folder/./file", "root/nowhere", "root/sub/../../outside/file",
        "real/file"};
    for (size_t i = 0; i < sizeof link / sizeof *link; i++) {
        const char *path = at(link[i]);
        assert_int_equal(ls_fs_read(path, &data, &n), LS_E_IO);
        assert_non_null(strstr(ls_err_words(), strstr(link[i], "..") ? "leads out of" : "is a symbolic link"));
        assert_int_equal(ls_fs_write(path, "bad", 3), LS_E_IO);
        assert_int_equal(ls_fs_out_open(&o, path), LS_E_IO);
        assert_int_equal(ls_fs_map_open(&m, path), LS_E_IO);
        assert_int_equal(ls_fs_open_input(path, &s, &st), -1);
        assert_int_equal(ls_fs_open_lines(path), -1);
        assert_int_equal(errno, ELOOP);
    }
    assert_int_equal(ls_fs_mkdirs(at("root/folder")), LS_E_IO);
    assert_int_equal(ls_fs_mkdirs(at("root/folder/deep/er")), LS_E_IO);
    assert_int_equal(ls_fs_mkdir_next(at("root/folder"), "k-", root), LS_E_IO);
    assert_int_equal(ls_fs_list(at("root/folder"), &names, &n), LS_E_IO);
    assert_int_equal(ls_fs_sync_dir(at("root/folder")), LS_E_IO);
    assert_int_equal(ls_fs_rename(at("root/sub/own"), at("root/folder/file")), LS_E_IO);
    assert_int_equal(ls_fs_rename(at("root/folder/file"), at("root/sub/own")), LS_E_IO);
    assert_int_equal(ls_fs_remove_tree(at("root/folder/file")), LS_E_IO);
    assert_int_equal(ls_fs_copy_tree(at("root/sub"), at("root/folder/copy")), LS_E_IO);
    assert_int_equal(ls_fs_open_new(at("root/folder/file")), -1);
    assert_int_equal(ls_fs_list(at("outside"), &names, &n), LS_OK);
    assert_int_equal(n, 1);
    ls_fs_list_free(names, n);
    assert_int_equal(ls_fs_read(at("outside/file"), &data, &n), LS_OK);
    assert_string_equal(data, "text");
    ls_free(data);
    assert_int_equal(ls_fs_write(at("root/sub/own"), "mine", 4), LS_OK); /* the folder itself is a link */
    assert_int_equal(close(ls_fs_open_new(at("root/file"))), 0);         /* replaces the link */
    assert_int_equal(ls_fs_size(at("outside/file"), &(int64_t){0}), LS_OK);
}

static void a_copied_folder_replaces_the_old_copy(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(ls_fs_write(at("from/sub/f"), "abc", 3), LS_OK);
    assert_int_equal(symlink("sub/f", at("from/link")), 0);
    assert_int_equal(ls_fs_write(at("to/old"), "x", 1), LS_OK);
    assert_int_equal(ls_fs_copy_tree(at("from"), at("to")), LS_OK);
    assert_false(ls_fs_exists(at("to/old")));
    assert_false(ls_fs_exists(at("to.partial")));
    assert_int_equal(ls_fs_read(at("to/link"), &text, &n), LS_OK);
    assert_int_equal(n, 3);
    ls_free(text);
    assert_int_equal(ls_fs_copy_tree(at("none"), at("to")), LS_E_IO);
    assert_true(ls_fs_exists(at("to/sub/f"))); /* a copy that fails leaves the old one */
}

static void paths_are_joined_with_one_slash(void **state)
{
    (void)state;
    char *a = ls_path_join("d", "f"), *b = ls_path_join("d/", "f"), *c = ls_path_join("/", "f");
    assert_string_equal(a, "d/f");
    assert_string_equal(b, "d/f");
    assert_string_equal(c, "/f");
    ls_free(a);
    ls_free(b);
    ls_free(c);
    assert_string_equal(ls_path_base("/a/b.c"), "b.c");
    assert_string_equal(ls_path_base("b.c"), "b.c");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_reads_back_as_written),
        cmocka_unit_test(a_cut_line_does_not_take_the_next_one),
        cmocka_unit_test(a_failed_read_names_the_path),
        cmocka_unit_test(a_file_changes_only_at_the_commit),
        cmocka_unit_test(only_regular_files_and_open_pipes_are_read),
        cmocka_unit_test(a_file_above_the_limit_is_not_read),
        cmocka_unit_test(pipes_links_and_folders_are_not_replaced),
        cmocka_unit_test(a_map_shows_the_bytes_of_the_file),
        cmocka_unit_test(a_map_whose_file_shrinks_ends_the_process_with_its_name),
        cmocka_unit_test(a_failed_write_changes_nothing),
        cmocka_unit_test(killed_writers_leave_whole_files),
        cmocka_unit_test(folders_are_created_listed_and_removed),
        cmocka_unit_test(paths_are_joined_with_one_slash),
        cmocka_unit_test(names_below_a_folder_without_links),
        cmocka_unit_test(a_copied_folder_replaces_the_old_copy),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
