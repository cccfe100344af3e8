/* Saving and loading with failures of memory, disk, permissions and processes. After each failure nothing leaks, the message
 * names what failed and where, and the earlier checkpoint still loads bit for bit. */
/* ls-test: long */
#include "ckpt/checkpoint.h"

#include "ckpt_team.h"
#include "core/clock.h"
#include "ckpt/hf.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

/* These functions replace those of libc: call number fail_call fails with EIO, and no_exchange makes renameat2 fail as on a file
 * system that cannot exchange two names. */
static atomic_long fail_call = -1;
static atomic_long n_calls;
static bool no_exchange;
static double nap; /* seconds that every positioned write takes longer: a slow worker */

static void sleep_for(double seconds)
{
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
}

static bool call_fails(void)
{
    if (atomic_fetch_add(&n_calls, 1) != fail_call) return false;
    errno = EIO;
    return true;
}

ssize_t write(int fd, const void *p, size_t n)
{
    if (fd > 2 && call_fails()) return -1; /* 0, 1, 2 are the test's own output */
    return syscall(SYS_write, fd, p, n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    if (nap > 0) sleep_for(nap);
    return call_fails() ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, p, n, at);
}

int fsync(int fd)
{
    return call_fails() ? -1 : (int)syscall(SYS_fsync, fd);
}

int mkdir(const char *path, mode_t mode)
{
    return call_fails() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int rename(const char *from, const char *to)
{
    return call_fails() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    if (no_exchange) {
        errno = EINVAL;
        return -1;
    }
    return call_fails() ? -1 : (int)syscall(SYS_renameat2, a, from, b, to, flags);
}

static test_model old_model, new_model, into;

static int open_models(void **state)
{
    (void)state;
    test_model_open(&old_model, test_config(LS_VARIANT_HF), LS_F32, 1);
    test_model_open(&new_model, test_config(LS_VARIANT_HF), LS_F32, 2);
    test_model_open(&into, test_config(LS_VARIANT_HF), LS_F32, 3);
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    test_model_close(&old_model);
    test_model_close(&new_model);
    test_model_close(&into);
    return 0;
}

static ls_ckpt_job job_of(const test_model *t, const char *dir, const char *name, int64_t step)
{
    return (ls_ckpt_job){.model = t->m,
                         .dir = dir,
                         .name = name,
                         .step = step,
                         .state_json = "{\"a\": [1, {}]}",
                         .optimizer = true,
                         .keep_last = 2};
}

static void save_old(const char *dir)
{
    ls_ckpt_job job = job_of(&old_model, dir, "step-1", 1);
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
}

/* The run folder has exactly one checkpoint, and it has the bits of `want`. */
static void assert_whole(const char *dir, const test_model *want)
{
    char *path = NULL;
    assert_int_equal(ls_ckpt_clean(dir), LS_OK);
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
    assert_non_null(path);
    assert_int_equal(ls_ckpt_load(into.m, path, true, NULL, 0, NULL, NULL, NULL), LS_OK);
    assert_true(test_same(want->m, into.m, 1));
    assert_int_equal(test_n_entries(dir), 1);
    ls_free(path);
}

/* The k-th allocation fails, for every k of a save with the same name and with another one. Either the save fails and the old
 * checkpoint remains, or only the clean-up was affected and the new checkpoint is complete. */
static void a_failed_allocation_keeps_a_whole_checkpoint(void **state)
{
    (void)state;
    for (int beside = 0; beside < 2; beside++) {
        char *dir = test_dir();
        ls_ckpt_job job = job_of(&new_model, dir, beside ? "step-2" : "step-1", beside ? 2 : 1);
        int refused = 0;
        save_old(dir);
        int64_t live = ls_mem_live(), count = ls_mem_count();
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        count = ls_mem_count() - count;
        for (int64_t k = 0; k < count; k++) {
            assert_int_equal(ls_fs_remove_tree(test_path(dir, job.name, NULL)), LS_OK);
            save_old(dir);
            ls_mem_fail_at(k);
            ls_status st = ls_ckpt_save(&job);
            ls_mem_fail_at(-1);
            assert_int_equal(ls_mem_live(), live);
            if (st != LS_OK) {
                refused++;
                assert_int_equal(st, LS_E_NOMEM);
                assert_true(ls_err_words()[0]);
                assert_whole(dir, &old_model);
                continue;
            }
            assert_int_equal(ls_ckpt_load(into.m, test_path(dir, job.name, NULL), true, NULL, 0, NULL, NULL, NULL),
                             LS_OK);
            assert_true(test_same(new_model.m, into.m, 1));
        }
        assert_true(refused > 20);
        test_dir_close(dir);
    }
}

/* The k-th write, sync, rename or mkdir fails, for every k: with another name than the old checkpoint, with the same name, and with
 * the same name on a file system that cannot exchange. */
static void a_failed_system_call_keeps_a_whole_checkpoint(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        char *dir = test_dir();
        ls_ckpt_job job = job_of(&new_model, dir, way ? "step-1" : "step-2", way ? 1 : 2);
        int refused = 0;
        no_exchange = way == 2;
        save_old(dir);
        n_calls = 0;
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        long count = n_calls;
        int64_t live = ls_mem_live();
        for (long k = 0; k < count; k++) {
            assert_int_equal(ls_fs_remove_tree(test_path(dir, job.name, NULL)), LS_OK);
            save_old(dir);
            n_calls = 0;
            fail_call = k;
            ls_status st = ls_ckpt_save(&job);
            fail_call = -1;
            assert_int_equal(ls_mem_live(), live);
            if (st != LS_OK) {
                refused++;
                assert_int_equal(st, LS_E_IO);
                assert_words("cannot ");
                assert_words("Input/output error");
            }
            /* only the sync after the rename may fail with the new checkpoint in place */
            char *path = NULL;
            assert_int_equal(ls_ckpt_clean(dir), LS_OK);
            assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
            assert_non_null(path);
            assert_int_equal(ls_ckpt_load(into.m, path, true, NULL, 0, NULL, NULL, NULL), LS_OK);
            bool is_new = test_same(new_model.m, into.m, 1);
            assert_true(is_new || (st != LS_OK && test_same(old_model.m, into.m, 1)));
            assert_true(!is_new || st == LS_OK || k >= count - 3);
            assert_int_equal(test_n_entries(dir), way || !is_new ? 1 : 2);
            ls_free(path);
        }
        assert_int_equal(refused, count); /* each is noticed */
        no_exchange = false;
        test_dir_close(dir);
    }
}

static void a_load_without_memory_leaves_the_model_unchanged(void **state)
{
    (void)state;
    char *dir = test_dir();
    save_old(dir);
    int64_t live = ls_mem_live();
    for (int what = 0; what < 3; what++)
        for (int64_t k = 0;; k++) {
            char *text = NULL;
            test_model_close(&into);
            test_model_open(&into, test_config(LS_VARIANT_HF), LS_F32, 3);
            ls_mem_fail_at(k);
            ls_status st = what == 0
                               ? ls_ckpt_load(into.m, test_path(dir, "step-1", NULL), true, NULL, 0, NULL, &text, NULL)
                           : what == 1 ? ls_hf_load(into.m, test_path(dir, "step-1", NULL), NULL, 0, NULL)
                                       : ls_ckpt_latest(dir, &text);
            ls_mem_fail_at(-1);
            if (st == LS_OK) {
                assert_true(k > 3);
                assert_int_equal(text != NULL, what != 1);
                ls_free(text);
                break;
            }
            assert_int_equal(st, LS_E_NOMEM);
            assert_null(text);
            assert_int_equal(ls_mem_live(), live);
            test_model fresh;
            test_model_open(&fresh, test_config(LS_VARIANT_HF), LS_F32, 3);
            assert_true(test_same(fresh.m, into.m, 1)); /* untouched */
            test_model_close(&fresh);
        }
    test_dir_close(dir);
}

static void a_post_without_memory_fails_and_leaks_nothing(void **state)
{
    (void)state;
    char *dir = test_dir();
    save_old(dir);
    ls_ckpt_job job = job_of(&new_model, dir, "step-1", 1);
    int64_t live = ls_mem_live();
    for (int64_t k = 0; k < 60; k++) {
        ls_ckpt_writer *w = NULL;
        ls_mem_fail_at(k);
        ls_status st = ls_ckpt_writer_create(&w, new_model.m, NULL);
        if (st == LS_OK) st = ls_ckpt_post(w, &job);
        if (st == LS_OK) st = ls_ckpt_wait(w);
        ls_mem_fail_at(-1);
        ls_ckpt_writer_destroy(&w);
        assert_int_equal(ls_mem_live(), live);
        assert_int_equal(ls_ckpt_clean(dir), LS_OK);
        if (st != LS_OK) {
            assert_int_equal(st, LS_E_NOMEM);
            assert_words("cannot allocate");
        }
    }
    test_dir_close(dir);
}

/* No file may grow beyond a limit. The limit rises from 0 until the save works, so that each file is cut once. */
static void a_file_size_limit_keeps_the_old_checkpoint(void **state)
{
    (void)state;
    char *dir = test_dir();
    save_old(dir);
    struct rlimit before, now;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    ls_ckpt_job job = job_of(&new_model, dir, "step-1", 1);
    int failed = 0;
    int64_t live = ls_mem_live();
    for (rlim_t limit = 0;; limit = limit * 9 / 8 + 150) {
        now = (struct rlimit){.rlim_cur = limit, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
        ls_status st = ls_ckpt_save(&job);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        failed++;
        assert_int_equal(st, LS_E_IO);
        assert_words("cannot write");
        assert_words("File too large");
        assert_whole(dir, &old_model);
    }
    signal(SIGXFSZ, SIG_DFL);
    assert_true(failed > 10);
    assert_whole(dir, &new_model);
    test_dir_close(dir);
}

static void an_unwritable_folder_is_reported_and_left_unchanged(void **state)
{
    (void)state;
    char *dir = test_dir();
    save_old(dir);
    bool root = geteuid() == 0;
    if (root) assert_int_equal(seteuid(65534), 0); /* root writes anywhere: try as nobody */
    else assert_int_equal(chmod(dir, 0555), 0);
    ls_ckpt_job job = job_of(&new_model, dir, "step-2", 2);
    ls_status st = ls_ckpt_save(&job);
    if (root) assert_int_equal(seteuid(0), 0);
    else assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(st, LS_E_IO);
    assert_words(dir);
    assert_words("Permission denied");
    assert_whole(dir, &old_model);

    assert_int_equal(ls_fs_write(test_path(dir, "file", NULL), "x", 1), LS_OK);
    job.dir = test_path(dir, "file", NULL);
    assert_int_equal(ls_ckpt_save(&job), LS_E_IO);
    job.dir = dir;
    job.tokenizer_path = test_path(dir, "no-such-tokenizer.json", NULL);
    assert_int_equal(ls_ckpt_save(&job), LS_E_IO);
    assert_words("no-such-tokenizer.json");
    assert_int_equal(test_n_entries(dir), 2);
    test_dir_close(dir);
}

/* A process that saves in an endless loop reports each completed save through a pipe. It is killed after `n_done` saves and a
 * random fraction of the time of one more: on a slow machine too, that many are done, and kills hit every phase of a save. */
typedef struct pace {
    int fd[2];
    double one; /* seconds that a save takes, as last measured */
} pace;

static void pace_open(pace *p)
{
    assert_int_equal(pipe(p->fd), 0);
}

static void pace_tell(const pace *p)
{
    if (write(p->fd[1], "x", 1) != 1) _exit(8);
}

static void pace_take(const pace *p, int n)
{
    char byte;
    for (int i = 0; i < n; i++)
        assert_int_equal(read(p->fd[0], &byte, 1), 1); /* 0: every process that writes is dead */
}

static void pace_wait(pace *p, int n_start, int n_done, double part)
{
    close(p->fd[1]);
    pace_take(p, n_start);
    const double begin = ls_now();
    pace_take(p, n_done);
    if (n_done) p->one = (ls_now() - begin) / n_done;
    sleep_for(p->one * part < 1 ? p->one * part : 1);
}

static void pace_close(pace *p)
{
    close(p->fd[0]);
}

/* SIGKILL at a random time of a process that saves in an endless loop: the run folder always has a complete checkpoint. */
static void a_killed_save_leaves_a_whole_checkpoint(void **state)
{
    (void)state;
    char *dir = test_dir();
    save_old(dir);
    int64_t last = 1;
    pace p = {.one = 0.001};
    for (int round = 0; round < 30; round++) {
        const int n_done = (round + 1) % 3;
        no_exchange = round >= 15; /* then a save takes two renames, and a crash between them needs a repair */
        pace_open(&p);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            char name[32];
            pace_tell(&p);
            for (int64_t step = last + 1;; step++) {
                snprintf(name, sizeof name, step % 3 ? "step-%lld" : "step-1",
                         (long long)step); /* every third one replaces step-1 */
                ls_ckpt_job job = job_of(step % 2 ? &new_model : &old_model, dir, name, step);
                job.keep_last = 1 + (int)(step % 2);
                if (ls_ckpt_save(&job) != LS_OK) _exit(9);
                pace_tell(&p);
            }
        }
        pace_wait(&p, 1, n_done, 0.2 + 2 * ls_rng_uniform(99, (uint64_t)round));
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        pace_close(&p);

        char *path = NULL;
        int64_t step;
        assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
        assert_non_null(path);
        assert_int_equal(ls_ckpt_load(into.m, path, true, NULL, 0, NULL, NULL, &step), LS_OK);
        assert_true(step >= last + n_done);
        if (step > 1) assert_true(test_same(step % 2 ? new_model.m : old_model.m, into.m, 1));
        last = step;
        ls_free(path);
        char **names;
        size_t n;
        assert_int_equal(ls_fs_list(dir, &names, &n), LS_OK);
        for (size_t i = 0; i < n; i++) /* every visible folder is complete */
            if (names[i][0] != '.') assert_int_equal(ls_ckpt_verify(test_path(dir, names[i], NULL), true), LS_OK);
        ls_fs_list_free(names, n);
    }
    no_exchange = false;
    assert_int_equal(ls_ckpt_clean(dir), LS_OK);
    char **names;
    size_t n;
    assert_int_equal(ls_fs_list(dir, &names, &n), LS_OK);
    for (size_t i = 0; i < n; i++) assert_true(names[i][0] != '.');
    ls_fs_list_free(names, n);
    test_dir_close(dir);
}

/* ---- several workers ---- */

typedef struct team_task {
    const char *dir;
    test_cut *cut; /* filled with the new model */
    bool load;
    ls_ckpt_job job;
    int64_t fail_alloc; /* the k-th allocation of all workers fails, or the k-th call; -1: none */
    long fail_call;
} team_task;

static void save_together(team_worker *w, ls_comm *c)
{
    team_task *t = w->arg;
    ls_ckpt_writer *writer = NULL;
    ls_ckpt_job job = t->job;
    ls_status st = ls_ckpt_writer_create(&writer, job.model, c);
    if (st == LS_OK) {
        job.piece = t->cut->piece + t->cut->begin[w->rank];
        job.n_piece = t->cut->begin[w->rank + 1] - t->cut->begin[w->rank];
        st = ls_ckpt_post(writer, &job);
    }
    if (st == LS_OK) st = ls_ckpt_wait(writer);
    team_note(w, st);
    ls_ckpt_writer_destroy(&writer);
}

static void load_together(team_worker *w, ls_comm *c)
{
    team_task *t = w->arg;
    char path[512], *json = NULL;
    snprintf(path, sizeof path, "%s/step-1", t->dir);
    team_note(w, ls_ckpt_load(t->job.model, path, true, t->cut->piece + t->cut->begin[w->rank],
                              t->cut->begin[w->rank + 1] - t->cut->begin[w->rank], c, &json, NULL));
    TEAM_CHECK(w, (json != NULL) == (w->st == LS_OK));
    ls_free(json);
}

/* Rank 0 sets and clears the faults between two barriers. */
static void with_fault(team_worker *w, ls_comm *c)
{
    team_task *t = w->arg;
    TEAM_CHECK(w, ls_barrier(c, LS_SITE) == LS_OK);
    if (w->rank == 0) {
        n_calls = 0;
        fail_call = t->fail_call;
        ls_mem_fail_at(t->fail_alloc);
    }
    TEAM_CHECK(w, ls_barrier(c, LS_SITE) == LS_OK);
    if (t->load) load_together(w, c);
    else save_together(w, c);
    TEAM_CHECK(w, ls_barrier(c, LS_SITE) == LS_OK);
    if (w->rank == 0) {
        fail_call = -1;
        ls_mem_fail_at(-1);
    }
    TEAM_CHECK(w, ls_barrier(c, LS_SITE) == LS_OK);
}

/* The k-th allocation, or the k-th write, sync, rename or mkdir of any worker fails. Either all workers fail with its message and
 * the old checkpoint remains, or only the clean-up was affected. */
static void a_fault_of_one_worker_fails_all(void **state)
{
    (void)state;
    enum { W = 3 };
    team_worker w[TEAM_MAX];
    for (int calls = 0; calls < 2; calls++) {
        char *dir = test_dir();
        team_task t = {.dir = dir, .cut = test_cut_make(new_model.m, W, 17), .fail_alloc = -1, .fail_call = -1};
        t.job = job_of(&new_model, dir, "step-1", 1);
        test_cut_fill(t.cut, new_model.m);
        save_old(dir);
        const int64_t before = ls_mem_count();
        team_run(W, with_fault, &t, w);
        const int64_t count = calls ? n_calls : ls_mem_count() - before, live = ls_mem_live();
        for (int r = 0; r < W; r++) assert_int_equal(w[r].st, LS_OK);
        assert_whole(dir, &new_model);
        int refused = 0, by[W] = {0};
        for (int64_t k = 0; k < count; k++) {
            assert_int_equal(ls_fs_remove_tree(test_path(dir, "step-1", NULL)), LS_OK);
            save_old(dir);
            if (calls) t.fail_call = (long)k;
            else t.fail_alloc = k;
            team_run(W, with_fault, &t, w);
            assert_int_equal(ls_mem_live(), live);
            if (w[0].st == LS_OK) { /* then no other worker may fail */
                for (int r = 0; r < W; r++) assert_int_equal(w[r].st, LS_OK);
                assert_whole(dir, &new_model);
                continue;
            }
            refused++;
            team_assert_failed(w, W, calls ? LS_E_IO : LS_E_NOMEM, calls ? "Input/output error" : "cannot allocate");
            for (int r = 0; r < W; r++) by[r] += strncmp(w[r].words, "worker ", 7) != 0;
            char *path = NULL;
            assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
            assert_int_equal(test_n_entries(dir), 1); /* the temporary one is gone */
            assert_int_equal(ls_ckpt_load(into.m, path, true, NULL, 0, NULL, NULL, NULL), LS_OK);
            /* new only if the sync after the rename failed: one of rank 0's last calls */
            const bool is_new = test_same(new_model.m, into.m, 1);
            assert_true(is_new ? calls && k >= count - 3 : test_same(old_model.m, into.m, 1));
            ls_free(path);
        }
        assert_true(refused > 20);
        for (int r = 0; r < W; r++) assert_true(by[r] > 0);
        test_cut_free(t.cut);
        test_dir_close(dir);
    }
}

/* A full disk: a small tmpfs, skipped where mounting one is not permitted. */
static void a_full_disk_keeps_the_old_checkpoint(void **state)
{
    (void)state;
    char *dir = test_dir(), option[64];
    int tried = 0;
    team_worker w[TEAM_MAX];
    test_cut *cut = test_cut_make(new_model.m, 3, 19);
    test_cut_fill(cut, new_model.m);
    for (int kib = 64; kib < 1024; kib += 36) {
        snprintf(option, sizeof option, "size=%dk", kib);
        if (mount("tmpfs", dir, "tmpfs", 0, option)) {
            print_message("skipped: cannot mount a tmpfs: %s\n", strerror(errno));
            test_dir_close(dir);
            test_cut_free(cut);
            skip();
        }
        ls_ckpt_job job = job_of(&old_model, dir, "step-1", 1);
        if (ls_ckpt_save(&job) == LS_OK) {
            tried++;
            job = job_of(&new_model, dir, "step-2", 2);
            ls_status st = ls_ckpt_save(&job);
            if (st != LS_OK) {
                assert_int_equal(st, LS_E_IO);
                assert_words("cannot write");
                assert_whole(dir, &old_model);
                tried |= 1 << 8;
                team_task t = {.dir = dir, .cut = cut, .fail_alloc = -1, .fail_call = -1, .job = job};
                team_run(3, with_fault, &t, w);
                team_assert_failed(w, 3, LS_E_IO, "cannot write");
                assert_whole(dir, &old_model);
            }
        } else {
            assert_words("cannot write");
            assert_int_equal(test_n_entries(dir), 0);
        }
        assert_int_equal(umount(dir), 0);
    }
    assert_true(tried > 1 << 8);
    test_cut_free(cut);
    test_dir_close(dir);
}

static void a_team_load_without_memory_writes_nothing(void **state)
{
    (void)state;
    enum { W = 3 };
    team_worker w[TEAM_MAX];
    char *dir = test_dir();
    save_old(dir);
    const int64_t live = ls_mem_live();
    for (int64_t k = 0;; k++) {
        team_task t = {
            .dir = dir, .cut = test_cut_make(new_model.m, W, 18), .fail_alloc = k, .fail_call = -1, .load = true};
        t.job.model = new_model.m;
        team_run(W, with_fault, &t, w);
        assert_int_equal(ls_mem_live(), live);
        const bool done = w[0].st == LS_OK;
        if (done) assert_true(test_cut_same(t.cut, old_model.m, 1));
        else {
            for (int r = 0; r < W; r++) {
                assert_int_equal(w[r].st, LS_E_NOMEM);
                assert_non_null(strstr(w[r].words, "cannot allocate"));
            }
            assert_true(test_cut_untouched(t.cut, old_model.m));
        }
        test_cut_free(t.cut);
        if (done) {
            assert_true(k > 20);
            break;
        }
    }
    test_dir_close(dir);
}

/* One worker process that saves in an endless loop; rank 0 reports each completed save. */
static void save_forever(ls_local_world *world, int rank, const char *dir, const test_cut *cut_old,
                         const test_cut *cut_new, int64_t step, const pace *p)
{
    ls_comm *c = NULL;
    ls_ckpt_writer *writer = NULL;
    char name[32];
    if (ls_comm_local(world, rank, &c) != LS_OK) _exit(8);
    ls_comm_set_limit(c, 100);
    if (ls_ckpt_writer_create(&writer, new_model.m, c) != LS_OK) _exit(8);
    pace_tell(p);
    ls_status st = LS_OK;
    for (; st == LS_OK; step++) {
        const test_cut *cut = step % 2 ? cut_new : cut_old;
        snprintf(name, sizeof name, step % 3 ? "step-%lld" : "step-1",
                 (long long)step); /* every third one replaces step-1 */
        ls_ckpt_job job = job_of(&new_model, dir, name, step);
        job.keep_last = 1 + (int)(step % 2);
        job.piece = cut->piece + cut->begin[rank];
        job.n_piece = cut->begin[rank + 1] - cut->begin[rank];
        st = ls_ckpt_post(writer, &job);
        if (st != LS_OK || step % 4 == 0) continue; /* the next post waits for this job */
        st = ls_ckpt_wait(writer);
        if (st == LS_OK && rank == 0) pace_tell(p);
    }
    if (st != LS_E_COMM) print_message("rank %d: %s\n", rank, ls_err_words());
    ls_ckpt_writer_destroy(&writer);
    ls_comm_destroy(&c);
    _exit(st == LS_E_COMM ? 4 : 9);
}

/* SIGKILL for one worker at a random time: the others fail with LS_E_COMM, and the run folder has a complete checkpoint. In half of
 * the rounds another worker is slow: it still writes when rank 0 already knows of the failure. */
static void a_killed_worker_leaves_a_whole_checkpoint(void **state)
{
    (void)state;
    enum { W = 3 };
    char *dir = test_dir();
    test_cut *cut_old = test_cut_make(old_model.m, W, 21), *cut_new = test_cut_make(new_model.m, W, 22);
    test_cut_fill(cut_old, old_model.m);
    test_cut_fill(cut_new, new_model.m);
    save_old(dir);
    int64_t last = 1;
    pace paces[2] = {{.one = 0.003}, {.one = 0.08}};
    for (int round = 0; round < 24; round++) {
        const int victim = round % W, slow = victim == 1 ? 2 : 1, n_done = round / W % 3;
        ls_local_world *world = NULL;
        pace *p = &paces[round % 2];
        pid_t pid[W];
        no_exchange = round >= 12;
        assert_int_equal(ls_local_world_create(W, (size_t)4 << 20, &world), LS_OK);
        pace_open(p);
        for (int r = 0; r < W; r++) {
            pid[r] = fork();
            assert_true(pid[r] >= 0);
            if (pid[r]) continue;
            nap = r == slow && round % 2 ? 0.004 : 0;
            save_forever(world, r, dir, cut_old, cut_new, last + 1, p);
        }
        pace_wait(p, W, n_done, 1.5 * ls_rng_uniform(98, (uint64_t)round));
        kill(pid[victim], SIGKILL);
        int status;
        assert_int_equal(waitpid(pid[victim], &status, 0), pid[victim]);
        assert_true(WIFSIGNALED(status));
        ls_local_world_abort(world, victim, "a worker is gone"); /* as the launcher does */
        for (int r = 0; r < W; r++) {
            if (r == victim) continue;
            assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), 4);
        }
        pace_close(p);
        ls_local_world_destroy(&world);

        char **names;
        size_t n;
        assert_int_equal(ls_fs_list(dir, &names, &n), LS_OK);
        for (size_t i = 0; i < n; i++) { /* visible folders are complete; hidden ones exist only if rank 0 was killed */
            if (names[i][0] != '.') assert_int_equal(ls_ckpt_verify(test_path(dir, names[i], NULL), true), LS_OK);
            else assert_int_equal(victim, 0);
        }
        ls_fs_list_free(names, n);
        char *path = NULL;
        int64_t step;
        assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
        assert_non_null(path);
        assert_int_equal(ls_ckpt_load(into.m, path, true, NULL, 0, NULL, NULL, &step), LS_OK);
        assert_true(step >= last + n_done);
        if (step > 1) assert_true(test_same(step % 2 ? new_model.m : old_model.m, into.m, 1));
        last = step;
        ls_free(path);
        assert_int_equal(ls_ckpt_clean(dir), LS_OK);
    }
    no_exchange = false;
    test_cut_free(cut_old);
    test_cut_free(cut_new);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_allocation_keeps_a_whole_checkpoint),
        cmocka_unit_test(a_failed_system_call_keeps_a_whole_checkpoint),
        cmocka_unit_test(a_load_without_memory_leaves_the_model_unchanged),
        cmocka_unit_test(a_post_without_memory_fails_and_leaks_nothing),
        cmocka_unit_test(a_file_size_limit_keeps_the_old_checkpoint),
        cmocka_unit_test(a_full_disk_keeps_the_old_checkpoint),
        cmocka_unit_test(an_unwritable_folder_is_reported_and_left_unchanged),
        cmocka_unit_test(a_killed_save_leaves_a_whole_checkpoint),
        cmocka_unit_test(a_killed_worker_leaves_a_whole_checkpoint),
        cmocka_unit_test(a_fault_of_one_worker_fails_all),
        cmocka_unit_test(a_team_load_without_memory_writes_nothing),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
