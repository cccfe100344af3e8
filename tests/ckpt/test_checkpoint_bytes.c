/* The bytes of weight files: parts of several workers with any boundaries give the same file and the same hashes, through the page cache, past
 * it, and where a file system refuses that. */
#include "ckpt/checkpoint_impl.h"

#include "core/hash.h"
#include "core/rng.h"
#include "test_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

enum { NBYTES = 3 * (1 << 20) + 70001, N_BLOCK = 4, MOST = 60 };

static char data[NBYTES];
static int n_direct, refuse; /* refuse: direct writes from this one on; -1: none */

/* Replaces that of libc. A direct write has whole pages. */
ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    if (fcntl(fd, F_GETFL) & O_DIRECT) {
        assert_int_equal((uintptr_t)p % 4096, 0);
        assert_int_equal(n % 4096, 0);
        assert_int_equal(at % 4096, 0);
        if (n_direct++ >= refuse && refuse >= 0) {
            errno = EINVAL;
            return -1;
        }
    }
    return syscall(SYS_pwrite64, fd, p, n, at);
}

static int below(int n)
{
    static uint64_t count;
    return (int)(ls_rng_mix(count++ + 12345) % (uint64_t)n);
}

/* Cuts the file at random places and deals the pieces to two workers; their memory has any address. */
static void deal(ckpt_part part[2], ckpt_span span[2][MOST], int n_cut, int turns)
{
    int at = 0;
    for (int w = 0; w < 2; w++) part[w] = (ckpt_part){.span = span[w]};
    for (int i = 0; at < NBYTES; i++) {
        const int left = NBYTES - at,
                  k = i == n_cut ? left : 1 + below(left < 2 * NBYTES / n_cut ? left : 2 * NBYTES / n_cut);
        ckpt_part *p = &part[turns ? i % 2 : below(2)];
        p->span[p->n++] = (ckpt_span){.at = at, .nbytes = (size_t)k, .data = data + at};
        at += k;
    }
}

static void check(const char *path, const int64_t *block)
{
    char *text;
    size_t n;
    assert_int_equal(ls_fs_read(path, &text, &n), LS_OK);
    assert_int_equal(n, NBYTES);
    assert_memory_equal(text, data, NBYTES);
    ls_free(text);
    for (int64_t b = 0; b < N_BLOCK; b++) {
        const size_t first = (size_t)b << 20, end = (size_t)(b + 1) << 20;
        int64_t hash = block[b];
        if (!hash) assert_int_equal(ckpt_block_read(path, NBYTES, b, &hash), LS_OK);
        assert_true((uint64_t)hash == ls_xxh64(data + first, (end < NBYTES ? end : NBYTES) - first));
    }
}

/* On a disk if there is one: folders of tests are in memory. */
static const char *file_on_disk(char dir[32])
{
    snprintf(dir, 32, "bytes-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return test_path(dir, "weights", NULL);
}

static bool can_direct(const char *path)
{
    const int fd = open(path, O_WRONLY | O_DIRECT);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static void any_cut_gives_the_same_file(void **state)
{
    (void)state;
    ckpt_stage stage = {0};
    ckpt_part part[2];
    ckpt_span span[2][MOST];
    char dir[32];
    const char *path = file_on_disk(dir);
    for (int i = 0; i < NBYTES; i++) data[i] = (char)below(256);
    for (int round = 0; round < 48; round++) {
        const bool direct = round % 4 > 0;
        int64_t block[N_BLOCK] = {0};
        int fd = -1;
        deal(part, span, 1 + below(MOST / 2), round % 3 == 0);
        refuse = round % 4 == 3 ? below(3) : -1;
        n_direct = 0;
        assert_int_equal(ckpt_file_create(path, NBYTES, &fd), LS_OK);
        close(fd);
        for (int w = 0; w < 2; w++)
            assert_int_equal(ckpt_part_write(&part[(w + round) % 2], &stage, path, NBYTES, direct, block), LS_OK);
        if (!direct) assert_int_equal(n_direct, 0);
        else if (can_direct(path)) assert_true(n_direct > 0);
        check(path, block);
    }
    refuse = -1;
    assert_int_equal(ls_fs_remove_tree(dir), LS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_cut_gives_the_same_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
