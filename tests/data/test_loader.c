/* Token files as samples: their number, shifted targets, an order that depends on seed and epoch only, and error messages. */
#include "cmocka_all.h"
#include "core/fs.h"
#include "data/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/ls_loader_XXXXXX";

static void write_ids(int n, int big_at, bool odd)
{
    static unsigned char bytes[20001];
    for (int i = 0; i < n; i++) {
        int id = i == big_at ? 9999 : i % 5000;
        bytes[2 * i] = (unsigned char)(id & 255);
        bytes[2 * i + 1] = (unsigned char)(id >> 8);
    }
    assert_int_equal(ls_fs_write(path, bytes, (size_t)(2 * n + odd)), LS_OK);
}

static void targets_are_the_ids_shifted_by_one(void **state)
{
    (void)state;
    ls_tokens t;
    int32_t ids[10], target[10];
    static const struct {
        int n_token, n_seq;
    } cases[] = {{11, 1}, {20, 1}, {21, 2}, {30, 2}, {31, 3}, {5000, 499}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        write_ids(cases[i].n_token, -1, false);
        assert_int_equal(ls_tokens_open(&t, path, 10, 5000), LS_OK);
        assert_int_equal(t.n_seq, cases[i].n_seq);
        assert_int_equal(ls_tokens_sequence(&t, t.n_seq - 1, ids, target), LS_OK);
        for (int k = 0; k < 10; k++) {
            assert_int_equal(ids[k], (t.n_seq - 1) * 10 + k);
            assert_int_equal(target[k], (t.n_seq - 1) * 10 + k + 1);
        }
        ls_tokens_close(&t);
    }
}

static void an_epoch_is_a_permutation(void **state)
{
    (void)state;
    ls_tokens t;
    write_ids(5000, -1, false);
    assert_int_equal(ls_tokens_open(&t, path, 10, 5000), LS_OK);
    static int32_t ids[4990], target[4990], again[4990];
    int first[4];
    for (int epoch = 0; epoch < 4; epoch++) {
        char seen[499] = {0};
        assert_int_equal(ls_tokens_batch(&t, 42, epoch, 0, 499, ids, target), LS_OK);
        for (int k = 0; k < 499; k++) seen[ids[10 * k] / 10]++;
        for (int k = 0; k < 499; k++) assert_int_equal(seen[k], 1);
        first[epoch] = ids[0];
        /* any part can be read alone, as a resumed run or another worker does */
        assert_int_equal(ls_tokens_batch(&t, 42, epoch, 100, 50, again, target), LS_OK);
        assert_memory_equal(again, ids + 1000, 500 * sizeof *ids);
    }
    assert_false(first[0] == first[1] && first[1] == first[2] && first[2] == first[3]);
    assert_int_equal(ls_tokens_batch(&t, 43, 0, 0, 499, again, target), LS_OK);
    assert_int_equal(ls_tokens_batch(&t, 42, 0, 0, 499, ids, target), LS_OK);
    assert_memory_not_equal(again, ids, sizeof ids);
    ls_tokens_close(&t);
}

static void wrong_token_files_are_explained(void **state)
{
    (void)state;
    ls_tokens t;
    write_ids(100, -1, true);
    assert_int_equal(ls_tokens_open(&t, path, 10, 5000), LS_E_FORMAT);
    assert_non_null(strstr(ls_err_words(), "201 bytes"));
    write_ids(10, -1, false);
    assert_int_equal(ls_tokens_open(&t, path, 10, 5000), LS_E_FORMAT);
    assert_non_null(strstr(ls_err_words(), "needs 11"));
    write_ids(100, 77, false);
    assert_int_equal(ls_tokens_open(&t, path, 10, 5000), LS_E_FORMAT);
    assert_non_null(strstr(ls_err_words(), "id 9999 at position 77"));
    assert_int_equal(ls_tokens_open(&t, "/nonexistent/x.bin", 10, 5000), LS_E_IO);
}

static int set_up(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(targets_are_the_ids_shifted_by_one),
                                       cmocka_unit_test(an_epoch_is_a_permutation),
                                       cmocka_unit_test(wrong_token_files_are_explained)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
