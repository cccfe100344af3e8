/* TensorBoard event files: framing, checksums and fields. tests/oracle/tensorboard.sh reads them with TensorBoard itself. */
#include "train/event_file.h"

#include "test_folder.h"

static uint32_t u32(const char *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static uint32_t masked(const void *data, size_t n)
{
    const uint32_t crc = ls_crc32c(data, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void the_checksum_is_castagnolis(void **state)
{
    (void)state;
    const unsigned char zeros[32] = {0};
    assert_int_equal(ls_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(ls_crc32c(zeros, sizeof zeros), 0x8a9136aau); /* RFC 3720, B.4 */
    assert_int_equal(ls_crc32c("", 0), 0);
}

static void records_have_length_checksums_and_fields(void **state)
{
    (void)state;
    /* Event: wall_time (9 bytes), step 300, summary {value {tag "a/b", simple_value 1.5}, value {tag "c", simple_value -2}} */
    static const unsigned char tail[] = {0x10, 0xac, 0x02, 0x2a, 22, 0x0a, 10, 0x0a, 3,    'a', '/', 'b', 0x15, 0,
                                         0,    0xc0, 0x3f, 0x0a, 8,  0x0a, 1,  'c',  0x15, 0,   0,   0,   0xc0};
    char *dir = test_dir(), *data, **names;
    size_t n, n_name;
    char sub[PATH_MAX], path[PATH_MAX];
    ls_event_file f = {0};
    assert_int_equal(ls_path_in(sub, dir, "a/b"), LS_OK);
    ls_event_file_close(&f); /* a zeroed one */
    assert_int_equal(ls_event_file_open(&f, sub, 7), LS_OK);
    assert_int_equal(ls_event_file_add(&f, 300, (ls_scalar[]){{"a/b", 1.5}, {"c", -2}}, 2), LS_OK);
    ls_event_file_close(&f);
    assert_int_equal(ls_fs_list(sub, &names, &n_name), LS_OK);
    assert_true(n_name == 1 && !strncmp(names[0], "events.out.tfevents.", 20));
    assert_int_equal(ls_path_in(path, sub, "%s", names[0]), LS_OK);
    assert_int_equal(ls_fs_read(path, &data, &n), LS_OK);
    size_t at = 0, record = 0;
    for (; at < n; record++) {
        const size_t length = u32(data + at);
        const char *event = data + at + 12;
        assert_int_equal(u32(data + at + 4), 0);
        assert_int_equal(u32(data + at + 8), masked(data + at, 8));
        assert_int_equal(u32(event + length), masked(event, length));
        assert_int_equal(event[0], 0x09);
        if (record == 0) assert_non_null(memmem(event, length, "brain.Event:2", 13));
        if (record == 1)
            assert_memory_equal(event + 9, "\x10\x08\x3a\x02\x08\x01", 6); /* step 8: what follows 7 is hidden */
        if (record == 2) assert_int_equal(length, 9 + sizeof tail);
        if (record == 2) assert_memory_equal(event + 9, tail, sizeof tail);
        at += 16 + length;
    }
    assert_true(record == 3 && at == n);
    ls_free(data);
    ls_fs_list_free(names, n_name);
    assert_int_equal(ls_event_file_open(&f, "/proc/none", -1), LS_E_IO);
    test_dir_close(dir);
}

/* TensorBoard reads files in the order of their names: attempts within one second must not be mixed up. */
static void a_later_file_has_a_later_name(void **state)
{
    (void)state;
    char *dir = test_dir(), **names, last[PATH_MAX] = "";
    size_t n;
    test_write(dir, "events.out.tfevents.none", "");
    for (int i = 0; i < 3; i++) {
        ls_event_file f = {0};
        assert_int_equal(ls_event_file_open(&f, dir, -1), LS_OK);
        assert_true(strcmp(f.path, last) > 0);
        snprintf(last, sizeof last, "%s", f.path);
        ls_event_file_close(&f);
    }
    assert_int_equal(ls_fs_list(dir, &names, &n), LS_OK);
    assert_int_equal(n, 4);
    ls_fs_list_free(names, n);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_checksum_is_castagnolis),
                                       cmocka_unit_test(records_have_length_checksums_and_fields),
                                       cmocka_unit_test(a_later_file_has_a_later_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
