/* What happens to a checkpoint after its bytes were handed over: it is read back from the disk, a damaged one never is the newest and costs
 * no older one; with room for a copy the model may
 * change while it is written, by one worker and by several; and what is kept, on the disk and in memory. */
#include "ckpt/checkpoint.h"

#include "ckpt_team.h"
#include "core/clock.h"
#include "core/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

/* These functions replace those of libc: what is read back is damaged, or cannot be read, from call number `damage_from` on; and
 * whether the pages of a file were dropped before its first read. */
static atomic_long n_read, damage_from = -1, n_drop;
static atomic_int damage_errno, delay_ms;

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    const long call = atomic_fetch_add(&n_read, 1);
    if (delay_ms) (void)usleep((useconds_t)delay_ms * 1000);
    const ssize_t k = syscall(SYS_pread64, fd, p, n, at);
    if (damage_from < 0 || call < damage_from || k <= 0) return k;
    if (damage_errno) {
        errno = damage_errno;
        return -1;
    }
    ((char *)p)[k / 2] ^= 0x10;
    return k;
}

static atomic_int open_delay_ms;

int fallocate(int fd, int mode, off_t at, off_t n)
{
    if (open_delay_ms) (void)usleep((useconds_t)open_delay_ms * 1000);
    return (int)syscall(SYS_fallocate, fd, mode, at, n);
}

int posix_fadvise(int fd, off_t at, off_t n, int advice)
{
    n_drop += advice == POSIX_FADV_DONTNEED;
    return (int)syscall(SYS_fadvise64, fd, at, n, advice);
}

static ls_ckpt_job job_of(const test_model *t, const char *dir, const char *name, int64_t step)
{
    return (ls_ckpt_job){
        .model = t->m, .dir = dir, .name = name, .step = step, .optimizer = true, .verify = true, .keep_last = 1};
}

/* Damage in read number `from` of those that a save makes; -1: none. */
static ls_status save(const test_model *t, const char *dir, const char *name, int64_t step, long from, int error)
{
    const ls_ckpt_job job = job_of(t, dir, name, step);
    n_read = 0;
    n_drop = 0;
    damage_from = from;
    damage_errno = error;
    const ls_status st = ls_ckpt_save(&job);
    damage_from = -1;
    return st;
}

static void assert_newest(const char *dir, const char *name)
{
    char *path = NULL;
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
    assert_string_equal(path, test_path(dir, name, NULL));
    ls_free(path);
    assert_int_equal(ls_ckpt_newest_whole(dir, false, &path, NULL), LS_OK);
    assert_string_equal(path, test_path(dir, name, NULL));
    ls_free(path);
}

static void a_damaged_checkpoint_is_never_the_newest(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a, b, c;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 6);
    test_model_open(&c, test_config(LS_VARIANT_HF), LS_F32, 7);
    assert_int_equal(save(&a, dir, "step-1", 1, -1, 0), LS_OK);
    const long n = n_read;       /* of all files, with the read that finds the end of each */
    assert_int_equal(n_drop, 6); /* config, generation_config, model, optimizer, trainer_state; checksums */
    assert_true(n >= 10);
    for (long from = 0; from < n; from++) {
        const ls_status st = save(&b, dir, "step-2", 2, from, from % 3 == 2 ? EIO : 0);
        if (st == LS_OK) { /* the end of a file cannot be damaged */
            assert_true(from >= n - 2);
            break;
        }
        assert_int_equal(st, LS_E_IO);
        assert_words("step-2 was damaged while it was written: ");
        assert_words(from % 3 == 2 ? "cannot read" : "differ from checksums.json");
        assert_newest(dir, "step-1"); /* keep_last 1 would have removed it */
        assert_true(ls_fs_exists(test_path(dir, "damaged-step-2", "checksums.json")));
        assert_int_equal(test_n_entries(dir), 2); /* of the damaged ones, the last */
    }
    assert_int_equal(save(&b, dir, "step-3", 3, 1, 0), LS_E_IO);
    assert_true(ls_fs_exists(test_path(dir, "damaged-step-3", NULL)));
    assert_false(ls_fs_exists(test_path(dir, "damaged-step-2", NULL)));
    assert_int_equal(save(&b, dir, "step-4", 4, -1, 0), LS_OK);
    assert_newest(dir, "step-4");
    assert_int_equal(test_n_entries(dir), 2); /* and damaged-step-3 */

    assert_int_equal(save(&a, dir, "step-4", 4, 2, 0), LS_E_IO); /* the one that it replaced returns */
    assert_newest(dir, "step-4");
    assert_int_equal(ls_ckpt_load(c.m, test_path(dir, "step-4", NULL), true, NULL, 0, NULL, NULL, NULL), LS_OK);
    assert_true(test_same(b.m, c.m, 1));
    test_model_close(&a);
    test_model_close(&b);
    test_model_close(&c);
    test_dir_close(dir);
}

static void a_damaged_checkpoint_is_told_once_and_does_not_stop_the_writer(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a;
    ls_ckpt_writer *w = NULL;
    ls_ckpt_bad bad;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    assert_int_equal(ls_ckpt_writer_create(&w, a.m, NULL), LS_OK);
    assert_false(ls_ckpt_take_bad(w, &bad));
    damage_from = n_read = 0;
    ls_ckpt_job job = job_of(&a, dir, "step-7", 7);
    assert_int_equal(ls_ckpt_post(w, &job), LS_OK);
    assert_int_equal(ls_ckpt_wait(w), LS_OK); /* it was written */
    assert_int_equal(ls_ckpt_settle(w), LS_E_IO);
    damage_from = -1;
    assert_true(ls_ckpt_take_bad(w, &bad));
    assert_string_equal(bad.name, "step-7");
    assert_int_equal(bad.step, 7);
    assert_non_null(strstr(bad.reason, "step-7/config.json is damaged: "));
    assert_false(ls_ckpt_take_bad(w, &bad));
    job = job_of(&a, dir, "step-8", 8);
    assert_int_equal(ls_ckpt_post(w, &job), LS_OK);
    assert_int_equal(ls_ckpt_settle(w), LS_OK);
    assert_false(ls_ckpt_take_bad(w, &bad));
    ls_ckpt_writer_destroy(&w);
    assert_newest(dir, "step-8");
    test_model_close(&a);
    test_dir_close(dir);
}

static const char *const files[] = {"config.json",           "generation_config.json", "model.safetensors",
                                    "optimizer.safetensors", "trainer_state.json",     "checksums.json"};

static int64_t room_of(const ls_model *m)
{
    int64_t n = 0;
    for (int u = 0; u < m->n_unit; u++) n += 3 * m->unit[u].n_pad * (int64_t)sizeof(float);
    return n;
}

static void a_copy_is_written_while_the_model_changes(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a, b;
    ls_ckpt_writer *w = NULL;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 5);
    void *room = ls_alloc((size_t)room_of(a.m));
    assert_int_equal(ls_ckpt_writer_create(&w, a.m, NULL), LS_OK);
    ls_ckpt_writer_room(w, room, room_of(a.m));
    for (int step = 1; step <= 20; step++) {
        char name[32], copied[32];
        snprintf(name, sizeof name, "step-%d", step);
        snprintf(copied, sizeof copied, "epoch-%d", step);
        ls_ckpt_job job = job_of(&b, dir, name, step);
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        job = job_of(&a, dir, copied, step);
        assert_int_equal(ls_ckpt_post(w, &job), LS_OK);
        assert_true(ls_ckpt_in_flight(w));
        assert_int_equal(ls_ckpt_wait_buffers(w), LS_OK);
        for (int u = 0; u < a.m->n_unit; u++) {
            ((float *)a.m->unit[u].param)[u] += 1;
            ((float *)b.m->unit[u].param)[u] += 1;
        }
        while (ls_ckpt_in_flight(w)) assert_int_equal(ls_ckpt_advance(w), LS_OK);
        assert_int_equal(ls_ckpt_settle(w), LS_OK);
        for (size_t i = 0; i < N_OF(files); i++)
            assert_equal_files(test_path(dir, name, files[i]), test_path(dir, copied, files[i]));
    }
    ls_ckpt_writer_destroy(&w);
    ls_free(room);
    test_model_close(&a);
    test_model_close(&b);
    test_dir_close(dir);
}

static ls_model_config larger_config(void) /* weight files of several blocks */
{
    ls_model_config cfg = test_config(LS_VARIANT_HF);
    cfg.n_embd = 60;
    cfg.vocab_size = 9000;
    cfg.eos_id = 8999;
    return cfg;
}

#define SLOW 3.0 /* seconds */
static _Atomic int slow_writes;
static int slow_write(const char *path, ls_fs_access how)
{
    if (how == LS_FS_WRITE && strstr(path, ".safetensors") && atomic_fetch_add(&slow_writes, 1) == 0)
        nanosleep(&(struct timespec){.tv_sec = (time_t)SLOW}, NULL);
    return 0;
}

/* Posts a job, and wants the buffers while the first block is being written. */
static ls_status post_to_slow_disk(ls_ckpt_writer *w, const ls_ckpt_job *job)
{
    slow_writes = 0;
    ls_fs_fault = slow_write;
    assert_int_equal(ls_ckpt_post(w, job), LS_OK);
    while (!slow_writes) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    const double from = ls_now();
    const ls_status st = ls_ckpt_wait_buffers(w);
    assert_true(ls_now() - from < SLOW / 2); /* it does not wait for the disk */
    return st;
}

/* Buffers are written directly until the trainer wants them, then the rest is copied. */
static void what_a_slow_disk_has_not_taken_is_copied(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a;
    ls_ckpt_writer *w = NULL;
    test_model_open(&a, larger_config(), LS_F32, 5);
    const int64_t nbytes = room_of(a.m);
    char *room = ls_alloc((size_t)nbytes);
    int64_t used = 0;
    ls_ckpt_job job = job_of(&a, dir, "step-1", 1);
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    assert_int_equal(ls_ckpt_writer_create(&w, a.m, NULL), LS_OK);
    ls_ckpt_writer_room(w, room, nbytes);
    job = job_of(&a, dir, "epoch-1", 1);
    assert_int_equal(post_to_slow_disk(w, &job), LS_OK);
    for (int u = 0; u < a.m->n_unit; u++) {
        memset(a.m->unit[u].param, 0x55, (size_t)a.m->unit[u].n * sizeof(float));
        memset(a.m->unit[u].m, 0x55, (size_t)a.m->unit[u].n * sizeof(float));
    }
    assert_int_equal(ls_ckpt_settle(w), LS_OK);
    for (size_t i = 0; i < N_OF(files); i++)
        assert_equal_files(test_path(dir, "step-1", files[i]), test_path(dir, "epoch-1", files[i]));
    for (int64_t i = 0; i < nbytes; i++) used += room[i] != 0;
    assert_true(used > nbytes / 4);     /* the rest was copied */
    assert_true(used < nbytes - 40000); /* not what was written before */

    ls_ckpt_writer_room(w, room, nbytes / 4);
    job = job_of(&a, dir, "step-99", 99);
    assert_int_equal(post_to_slow_disk(w, &job), LS_E_INTERNAL);
    assert_words("too small");
    assert_int_equal(ls_ckpt_settle(w), LS_OK);
    ls_fs_fault = NULL;
    ls_ckpt_writer_destroy(&w);
    ls_free(room);
    test_model_close(&a);
    test_dir_close(dir);
}

typedef struct task {
    const ls_model *bare;
    const char *dir;
    const test_cut *cut;
    int64_t n_room;
} task;

/* The checkpoint of step 5, with the pieces of this worker. */
static ls_ckpt_job team_job(const task *t, int rank)
{
    const int first = t->cut->begin[rank];
    return (ls_ckpt_job){.model = t->bare,
                         .piece = t->cut->piece + first,
                         .n_piece = t->cut->begin[rank + 1] - first,
                         .dir = t->dir,
                         .name = "step-5",
                         .step = 5,
                         .optimizer = true,
                         .verify = true};
}

/* As a trainer does: at each of its steps the workers agree whether one is busy, and advance if none is. */
static void copy_body(team_worker *w, ls_comm *c)
{
    const task *t = w->arg;
    ls_ckpt_writer *writer = NULL;
    void *room = ls_alloc((size_t)t->n_room);
    TEAM_CHECK(w, room && ls_ckpt_writer_create(&writer, t->bare, c) == LS_OK);
    ls_ckpt_writer_room(writer, room, t->n_room);
    const ls_ckpt_job job = team_job(t, w->rank);
    const double from = ls_now();
    TEAM_CHECK(w, ls_ckpt_post(writer, &job) == LS_OK);
    TEAM_CHECK(w, ls_ckpt_wait_buffers(writer) == LS_OK);
    TEAM_CHECK(w, !open_delay_ms || ls_now() - from < (double)open_delay_ms / 2000); /* not for the disk */
    ls_status st = LS_OK;
    for (int i = 0; i < job.n_piece; i++) memset(job.piece[i].data, 0x55, (size_t)job.piece[i].n * sizeof(float));
    int met = 0;
    while (ls_ckpt_in_flight(writer) && st == LS_OK) {
        int busy = 1;
        TEAM_CHECK(w, ls_agree(c, ls_ckpt_busy(writer), LS_SITE, &busy) == LS_OK);
        if (busy) continue;
        met++;
        st = ls_ckpt_advance(writer);
    }
    TEAM_CHECK(w, st != LS_OK || met == 4); /* folder, writes, hashes, rename */
    if (st == LS_OK) st = ls_ckpt_settle(writer);
    team_note(w, st);
    ls_ckpt_writer_destroy(&writer);
    ls_free(room);
}

static void workers_write_a_copy_without_waiting_for_each_other(void **state)
{
    (void)state;
    const ls_model_config cfg = larger_config();
    test_model a;
    ls_model *bare = NULL;
    team_worker w[TEAM_MAX];
    test_model_open(&a, cfg, LS_F32, 5);
    assert_int_equal(ls_model_create(&bare, &cfg, &a.compute, 16), LS_OK);
    for (int size = 2; size <= 4; size++) {
        char *dir = test_dir(), *one = test_dir();
        test_cut *cut = test_cut_make(a.m, size, 99);
        task t = {.bare = bare, .dir = dir, .cut = cut, .n_room = room_of(a.m)};
        const ls_ckpt_job job = job_of(&a, one, "step-5", 5);
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        test_cut_fill(cut, a.m);
        open_delay_ms = size == 3 ? 2000 : 0;
        team_run(size, copy_body, &t, w);
        for (int r = 0; r < size; r++)
            if (w[r].st != LS_OK) fail_msg("rank %d of %d: %s", r, size, w[r].words);
        open_delay_ms = 0;
        assert_int_equal(test_n_entries(dir), 1);
        for (size_t i = 0; i < N_OF(files); i++)
            assert_equal_files(test_path(one, "step-5", files[i]), test_path(dir, "step-5", files[i]));
        t.dir = "/dev/null/run"; /* all workers report what rank 0's thread found */
        team_run(size, copy_body, &t, w);
        team_assert_failed(w, size, LS_E_IO, "/dev/null/run");
        test_cut_free(cut);
        test_dir_close(dir);
        test_dir_close(one);
    }
    ls_model_destroy(&bare);
    test_model_close(&a);
}

/* Two checkpoints, one after the other, with a limit of collectives that is shorter than a read-back. */
static void slow_body(team_worker *w, ls_comm *c)
{
    const task *t = w->arg;
    ls_ckpt_writer *writer = NULL;
    ls_comm_set_limit(c, 1);
    TEAM_CHECK(w, ls_ckpt_writer_create(&writer, t->bare, c) == LS_OK);
    ls_ckpt_job job = team_job(t, w->rank);
    ls_status st = ls_ckpt_post(writer, &job);
    if (st == LS_OK) st = ls_ckpt_wait(writer);
    job.name = "step-6";
    job.step = 6;
    if (st == LS_OK) st = ls_ckpt_post(writer, &job);
    if (st == LS_OK) st = ls_ckpt_settle(writer);
    team_note(w, st);
    ls_ckpt_writer_destroy(&writer);
}

static void workers_wait_for_a_slow_disk(void **state)
{
    (void)state;
    const ls_model_config cfg = test_config(LS_VARIANT_HF);
    test_model a;
    ls_model *bare = NULL;
    team_worker w[TEAM_MAX];
    char *dir = test_dir();
    test_model_open(&a, cfg, LS_F32, 5);
    assert_int_equal(ls_model_create(&bare, &cfg, &a.compute, 16), LS_OK);
    test_cut *cut = test_cut_make(a.m, 2, 99);
    task t = {.bare = bare, .dir = dir, .cut = cut};
    test_cut_fill(cut, a.m);
    delay_ms = 180; /* a read-back has at least ten reads */
    team_run(2, slow_body, &t, w);
    delay_ms = 0;
    for (int r = 0; r < 2; r++)
        if (w[r].st != LS_OK) fail_msg("rank %d: %s", r, w[r].words);
    assert_int_equal(test_n_entries(dir), 2);
    test_cut_free(cut);
    test_dir_close(dir);
    ls_model_destroy(&bare);
    test_model_close(&a);
}

/* How a held checkpoint ends. EARLY: it is confirmed when its buffers may change; LATE: when only the rename is left. BESIDE: one that is written
 * beside a held one. */
typedef enum ending { EARLY, LATE, NEVER, BESIDE } ending;

typedef struct held_task {
    task t;
    ending how;
    bool copies;
} held_task;

static void held_body(team_worker *w, ls_comm *c)
{
    const held_task *h = w->arg;
    ls_ckpt_writer *writer = NULL;
    void *room = h->copies ? ls_alloc((size_t)h->t.n_room) : NULL;
    TEAM_CHECK(w, ls_ckpt_writer_create(&writer, h->t.bare, c) == LS_OK);
    if (room) ls_ckpt_writer_room(writer, room, h->t.n_room);
    ls_ckpt_job job = team_job(&h->t, w->rank);
    const ls_path path = ls_path_of(h->t.dir, "step-5"), other = ls_path_of(h->t.dir, "step-6");
    int all;
    job.hold = true;
    ls_status st = ls_ckpt_post(writer, &job);
    if (st == LS_OK) st = ls_ckpt_wait_buffers(writer);
    if (h->how == EARLY) ls_ckpt_confirm(writer);
    if (st == LS_OK) st = ls_ckpt_wait(writer);
    TEAM_CHECK(w, ls_ckpt_in_flight(writer) == (h->how != EARLY));
    TEAM_CHECK(w, h->how == EARLY || !ls_fs_exists(path.text));
    TEAM_CHECK(w, h->how == EARLY ||
                      (!ls_ckpt_busy(writer) && ls_ckpt_advance(writer) == LS_OK && !ls_fs_exists(path.text)));
    if (h->how == BESIDE) {
        job.name = "step-6";
        if (st == LS_OK) st = ls_ckpt_write_beside(writer, &job);
        TEAM_CHECK(w, st == LS_OK && !ls_fs_exists(other.text));
        TEAM_CHECK(w, ls_agree(c, 0, LS_SITE, &all) == LS_OK); /* all have looked */
        if (st == LS_OK) st = ls_ckpt_publish_beside(writer);
        TEAM_CHECK(w, st == LS_OK && ls_fs_exists(other.text) && !ls_fs_exists(path.text));
    }
    if (h->how == NEVER) TEAM_CHECK(w, ls_ckpt_post(writer, &job) == LS_E_INTERNAL);
    TEAM_CHECK(w, ls_agree(c, 0, LS_SITE, &all) == LS_OK);
    if (h->how == LATE) ls_ckpt_confirm(writer);
    if (st == LS_OK && h->how < NEVER) st = ls_ckpt_settle(writer);
    team_note(w, st);
    ls_ckpt_writer_destroy(&writer);
    ls_free(room);
}

static void a_held_checkpoint_is_published_when_it_is_confirmed(void **state)
{
    (void)state;
    const ls_model_config cfg = test_config(LS_VARIANT_HF);
    test_model a;
    ls_model *bare = NULL;
    team_worker w[TEAM_MAX];
    test_model_open(&a, cfg, LS_F32, 5);
    assert_int_equal(ls_model_create(&bare, &cfg, &a.compute, 16), LS_OK);
    for (int k = 0; k < 24; k++) {
        const int size = 1 + k / 8;
        char *dir = test_dir();
        test_cut *cut = test_cut_make(a.m, size, 99);
        held_task h = {{.bare = bare, .dir = dir, .cut = cut, .n_room = room_of(a.m)}, (ending)(k % 4), k / 4 % 2};
        test_cut_fill(cut, a.m);
        team_run(size, held_body, &h, w);
        for (int r = 0; r < size; r++)
            if (w[r].st != LS_OK) fail_msg("case %d: rank %d of %d: %s", k, r, size, w[r].words);
        assert_int_equal(ls_fs_exists(test_path(dir, "step-5", NULL)), h.how < NEVER);
        assert_int_equal(test_n_entries(dir), h.how != NEVER); /* nothing is left of one that was dropped */
        test_cut_free(cut);
        test_dir_close(dir);
    }
    ls_model_destroy(&bare);
    test_model_close(&a);
}

static void age(const char *path, int hours)
{
    struct timespec now, both[2];
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec -= hours * 3600;
    both[0] = both[1] = now;
    assert_int_equal(utimensat(AT_FDCWD, path, both, 0), 0);
}

static void young_checkpoints_are_kept_beside_the_last_ones(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    for (int step = 1; step <= 6; step++) {
        char name[32];
        snprintf(name, sizeof name, "step-%d", step);
        ls_ckpt_job job = job_of(&a, dir, name, step);
        job.keep_hours = 5;
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        if (step == 1 || step == 3 || step == 6) age(test_path(dir, name, NULL), 6);
    }
    assert_int_equal(test_n_entries(dir), 4); /* 2, 4, 5: young; 6: the last */
    assert_false(ls_fs_exists(test_path(dir, "step-1", NULL)) || ls_fs_exists(test_path(dir, "step-3", NULL)));
    test_model_close(&a);
    test_dir_close(dir);
}

static void assert_latest_any(const char *run, const char *dir, const char *name)
{
    ls_ckpt_memory m;
    char *path = NULL;
    assert_int_equal(ls_ckpt_latest_any(NULL, run, &m, &path), LS_OK);
    assert_string_equal(path, test_path(dir, name, NULL));
    ls_free(path);
    ls_ckpt_memory_close(&m);
}

static void assert_newest_whole(const char *run, const char *dir, const char *name)
{
    char *path = NULL;
    assert_int_equal(ls_ckpt_newest_whole(run, false, &path, NULL), LS_OK);
    assert_string_equal(path, test_path(dir, name, NULL));
    assert_int_equal(ls_ckpt_reject(run, path), LS_OK);
    ls_free(path);
}

/* A checkpoint on the disk that cannot be read does not matter beside a copy in memory of the same step or a later one; a restart renames it, also
 * under the name of the copy. */
static void a_copy_in_memory_outlives_damage_on_the_disk(void **state)
{
    (void)state;
    char *dir = test_dir(), *run = ls_path_join(dir, "run"), *path = NULL;
    ls_ckpt_memory m, again;
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    assert_int_equal(ls_fs_mkdirs(run), LS_OK);
    assert_int_equal(ls_ckpt_memory_look(&m, run, NULL), LS_OK);
    assert_int_equal(ls_ckpt_memory_open(&m, run, 1000, NULL), LS_OK);
    for (int step = 5; step <= 15; step += 5) {
        char name[32];
        snprintf(name, sizeof name, "step-%d", step);
        ls_ckpt_job job = job_of(&a, run, name, step);
        job.keep_last = 0;
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
    }
    ls_ckpt_job job = job_of(&a, m.dir, "step-15", 15);
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    assert_newest_whole(run, m.dir, "step-15");
    assert_true(ls_fs_is_dir(test_path(run, "step-15", NULL))); /* whole */
    assert_int_equal(truncate(test_path(run, "step-5", "trainer_state.json"), 20), 0);
    assert_int_equal(truncate(test_path(run, "step-15", "trainer_state.json"), 20), 0);
    assert_latest_any(run, m.dir, "step-15");
    assert_newest_whole(run, m.dir, "step-15");
    assert_true(ls_fs_is_dir(test_path(run, "damaged-step-15", NULL)));
    assert_false(ls_fs_exists(test_path(run, "step-15", NULL)));
    job = job_of(&a, m.dir, "step-16", 16);
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    assert_int_equal(unlink(test_path(run, "step-10", "trainer_state.json")), 0);
    assert_latest_any(run, m.dir, "step-16");
    job = job_of(&a, run, "step-20", 20); /* the newest, and no copy is as new */
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    assert_int_equal(truncate(test_path(run, "step-20", "trainer_state.json"), 20), 0);
    assert_int_equal(ls_ckpt_latest_any(NULL, run, &again, &path), LS_E_FORMAT);
    assert_words(test_path(m.dir, "step-16: remove ", NULL));
    assert_words("step-20 to resume from it");
    ls_ckpt_memory_close(&again);
    ls_ckpt_memory_drop(&m, run);
    ls_ckpt_memory_close(&m);
    test_model_close(&a);
    ls_free(run);
    test_dir_close(dir);
}

static void a_copy_in_memory_belongs_to_one_run_folder(void **state)
{
    (void)state;
    char *dir = test_dir(), *run = ls_path_join(dir, "run"), *other = ls_path_join(dir, "other"), *path = NULL;
    char found[PATH_MAX], *token = NULL;
    size_t n_token;
    ls_ckpt_memory m, again, second;
    test_model a, b;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 6);
    assert_int_equal(ls_fs_mkdirs(run), LS_OK);
    assert_int_equal(ls_fs_mkdirs(other), LS_OK);
    assert_false(ls_ckpt_memory_find(run, found));
    assert_int_equal(ls_ckpt_memory_look(&m, run, NULL), LS_OK);
    assert_false(*m.id || m.here);
    assert_int_equal(ls_ckpt_memory_open(&m, run, INT64_MAX / 4, NULL), LS_E_NOMEM);
    assert_words("/dev/shm has");
    assert_false(ls_ckpt_memory_find(run, found));
    assert_int_equal(ls_ckpt_memory_open(&m, run, 1000, NULL), LS_OK);
    assert_int_equal(ls_ckpt_memory_look(&again, run, NULL), LS_OK); /* a restart */
    assert_int_equal(ls_ckpt_memory_open(&again, run, 1000, NULL), LS_OK);
    assert_string_equal(m.dir, again.dir);
    ls_ckpt_memory_close(&again);

    ls_ckpt_job job = job_of(&a, run, "step-4", 4);
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    assert_latest_any(run, run, "step-4");
    job = job_of(&b, m.dir, "step-6", 6);
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    assert_latest_any(run, m.dir, "step-6"); /* the newer one */
    assert_int_equal(ls_ckpt_newest_whole(run, false, &path, NULL), LS_OK);
    assert_string_equal(path, test_path(m.dir, "step-6", NULL));
    ls_free(path);
    assert_int_equal(ls_ckpt_latest(run, &path), LS_OK); /* other commands use the run folder alone */
    assert_string_equal(path, test_path(run, "step-4", NULL));
    ls_free(path);
    test_flip(test_path(m.dir, "step-6", "model.safetensors"), 900); /* damaged: that of the disk */
    assert_latest_any(run, run, "step-4");

    /* the step of the newest copy, for a supervisor */
    assert_int_equal(ls_ckpt_memory_noted(run), -1);
    ls_ckpt_memory_note(&m, run, 123456);
    ls_ckpt_memory_note(&m, run, 7);
    assert_int_equal(ls_ckpt_memory_noted(run), 7);
    assert_int_equal(ls_ckpt_memory_noted(other), -1);

    /* a copy of the run folder does not own the memory; a folder that somebody else may enter is not used */
    assert_int_equal(ls_fs_read(test_path(run, "memory_copy", NULL), &token, &n_token), LS_OK);
    assert_int_equal(ls_fs_write(test_path(other, "memory_copy", NULL), token, n_token), LS_OK);
    ls_free(token);
    assert_false(ls_ckpt_memory_find(other, found));
    assert_int_equal(ls_ckpt_memory_look(&second, other, NULL), LS_OK);
    assert_false(second.here || second.any);
    assert_int_equal(ls_ckpt_memory_open(&second, other, 1000, NULL), LS_OK); /* gets memory of its own */
    assert_true(strcmp(m.dir, second.dir));
    assert_true(ls_ckpt_memory_find(other, found) && !strcmp(found, second.dir));
    snprintf(found, sizeof found, "%.*s/new-%s", (int)(strlen(second.dir) - strlen(ls_path_base(second.dir)) - 1),
             second.dir, ls_path_base(second.dir)); /* of a worker that was killed while it made the folder */
    assert_int_equal(ls_fs_mkdirs(found), LS_OK);
    assert_int_equal(ls_fs_read(test_path(second.dir, "owner", NULL), &token, &n_token), LS_OK);
    assert_int_equal(ls_fs_write(test_path(found, "owner", NULL), token, n_token), LS_OK);
    ls_free(token);
    ls_ckpt_memory_drop(&second, other);
    assert_false(ls_fs_exists(found));
    assert_true(ls_ckpt_memory_find(run, found) && !strcmp(found, m.dir));
    assert_int_equal(chmod(m.dir, 0755), 0);
    assert_false(ls_ckpt_memory_find(run, found));
    assert_int_equal(chmod(m.dir, 0700), 0);
    assert_true(ls_ckpt_memory_find(run, found));
    assert_int_equal(unlink(test_path(run, "memory_copy", NULL)), 0); /* a run folder that was made again */
    assert_false(ls_ckpt_memory_find(run, found));
    assert_int_equal(ls_ckpt_memory_look(&second, other, NULL), LS_OK);
    ls_ckpt_memory_close(&m);
    ls_ckpt_memory_sweep(&second);
    assert_false(ls_fs_exists(m.dir)); /* nobody's: removed */
    assert_int_equal(ls_ckpt_memory_open(&second, other, 1000, NULL), LS_OK);
    assert_true(strcmp(m.dir, second.dir));
    ls_ckpt_memory_drop(&second, other);
    assert_false(ls_fs_exists(second.dir) || ls_fs_exists(test_path(other, "memory_copy", NULL)));
    ls_free(run);
    ls_free(other);
    test_model_close(&a);
    test_model_close(&b);
    test_dir_close(dir);
}

/* The file that a link names is not of the run. */
static void a_link_in_place_of_memory_copy_is_replaced(void **state)
{
    (void)state;
    char *dir = test_dir(), *run = ls_path_join(dir, "run"), *text = NULL;
    size_t n;
    struct stat s;
    ls_ckpt_memory m;
    assert_int_equal(ls_fs_mkdirs(run), LS_OK);
    assert_int_equal(ls_fs_write(test_path(dir, "target", NULL), "kept", 4), LS_OK);
    assert_int_equal(symlink("../target", test_path(run, "memory_copy", NULL)), 0);
    assert_int_equal(ls_ckpt_memory_look(&m, run, NULL), LS_OK);
    assert_int_equal(ls_ckpt_memory_open(&m, run, 1000, NULL), LS_OK);
    assert_true(!lstat(test_path(run, "memory_copy", NULL), &s) && S_ISREG(s.st_mode));
    assert_int_equal(ls_fs_read(test_path(dir, "target", NULL), &text, &n), LS_OK);
    assert_string_equal(text, "kept");
    ls_free(text);
    ls_ckpt_memory_drop(&m, run);
    ls_free(run);
    test_dir_close(dir);
}

static void a_host_without_room_costs_no_copy_of_other_hosts(void **state)
{
    (void)state;
    char *dir = test_dir(), *run = ls_path_join(dir, "run"), found[PATH_MAX];
    ls_ckpt_memory m, again;
    assert_int_equal(ls_fs_mkdirs(run), LS_OK);
    assert_int_equal(ls_ckpt_memory_look(&m, run, NULL), LS_OK);
    assert_int_equal(ls_ckpt_memory_open(&m, run, 1000, NULL), LS_OK);
    /* a host that has no folder yet, under another name: this machine has that of the first host */
    ls_ckpt_memory other = {.id = "0123456789abcdef", .any = true, .step = -1, .first = true, .leads = true};
    assert_int_equal(ls_ckpt_memory_open(&other, run, INT64_MAX / 4, NULL), LS_E_NOMEM);
    assert_true(!ls_fs_exists(other.dir) && !other.here && !other.lock);
    assert_true(ls_ckpt_memory_find(run, found) && !strcmp(found, m.dir));
    assert_int_equal(ls_ckpt_memory_look(&again, run, NULL), LS_OK); /* a restart */
    assert_true(again.here && again.any);
    ls_ckpt_memory_close(&again);
    ls_ckpt_memory_drop(&m, run);
    assert_false(ls_ckpt_memory_find(run, found));
    ls_free(run);
    test_dir_close(dir);
}

static void copies_in_memory_are_removed_when_no_process_works_for_their_run(void **state)
{
    (void)state;
    char *dir = test_dir(), *run = ls_path_join(dir, "run"), *other = ls_path_join(dir, "other");
    ls_ckpt_memory m, next;
    assert_int_equal(ls_fs_mkdirs(run), LS_OK);
    assert_int_equal(ls_fs_mkdirs(other), LS_OK);
    assert_int_equal(ls_ckpt_memory_look(&m, run, NULL), LS_OK);
    assert_int_equal(ls_ckpt_memory_open(&m, run, 1000, NULL), LS_OK);
    assert_int_equal(ls_ckpt_memory_look(&next, other, NULL), LS_OK);
    ls_ckpt_memory_sweep(&next); /* held by a worker */
    assert_true(ls_fs_exists(m.dir));
    ls_ckpt_memory_close(&m);
    static const char *const lock[] = {LS_RUN_LOCK, LS_SUPERVISE_LOCK};
    for (int i = 0; i < 2; i++) { /* between two attempts: the supervisor holds the run folder */
        ls_lock held = {0};
        assert_int_equal(ls_lock_take(&held, test_path(run, lock[i], NULL), 0, ""), LS_OK);
        ls_ckpt_memory_sweep(&next);
        assert_true(ls_fs_exists(m.dir));
        ls_lock_release(&held);
    }
    ls_ckpt_memory worker = next;
    worker.leads = false; /* only the first worker of a host looks */
    ls_ckpt_memory_sweep(&worker);
    assert_true(ls_fs_exists(m.dir));
    ls_ckpt_memory_sweep(&m); /* a run keeps its own */
    assert_true(ls_fs_exists(m.dir));
    ls_ckpt_memory_sweep(&next);
    assert_false(ls_fs_exists(m.dir));
    ls_free(run);
    ls_free(other);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_damaged_checkpoint_is_never_the_newest),
        cmocka_unit_test(a_damaged_checkpoint_is_told_once_and_does_not_stop_the_writer),
        cmocka_unit_test(a_copy_is_written_while_the_model_changes),
        cmocka_unit_test(what_a_slow_disk_has_not_taken_is_copied),
        cmocka_unit_test(young_checkpoints_are_kept_beside_the_last_ones),
        cmocka_unit_test(a_copy_in_memory_outlives_damage_on_the_disk),
        cmocka_unit_test(a_copy_in_memory_belongs_to_one_run_folder),
        cmocka_unit_test(a_link_in_place_of_memory_copy_is_replaced),
        cmocka_unit_test(a_host_without_room_costs_no_copy_of_other_hosts),
        cmocka_unit_test(copies_in_memory_are_removed_when_no_process_works_for_their_run),
        cmocka_unit_test(workers_wait_for_a_slow_disk),
        cmocka_unit_test(a_held_checkpoint_is_published_when_it_is_confirmed),
        cmocka_unit_test(workers_write_a_copy_without_waiting_for_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
