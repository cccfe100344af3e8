/* Memory is aligned, zeroed and counted, and an allocation fails when a test requests it. */
#include "core/mem.h"
#include "core/err.h"
#include "cmocka_all.h"

#include <string.h>

static void blocks_are_aligned_and_zeroed(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 100003, ((size_t)2 << 20) - 1, (size_t)5 << 20};
    for (size_t i = 0; i < N_OF(sizes); i++) {
        for (int again = 0; again < 2;
             again++) { /* the second time the block may be the one that was just overwritten */
            unsigned char *p = ls_alloc(sizes[i]);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 64, 0);
            for (size_t k = 0; k < sizes[i]; k++)
                if (p[k]) fail_msg("byte %zu of %zu is %d", k, sizes[i], p[k]);
            memset(p, 0xff, sizes[i]);
            ls_free(p);
        }
    }
    ls_free(NULL);
    assert_null(ls_alloc(SIZE_MAX));
    assert_null(ls_alloc(SIZE_MAX - 64));
}

static void realloc_keeps_data_and_zeroes_the_rest(void **state)
{
    (void)state;
    unsigned char *p = ls_realloc(NULL, 10);
    assert_non_null(p);
    memset(p, 7, 10);
    p = ls_realloc(p, 1000);
    for (int i = 0; i < 10; i++) assert_int_equal(p[i], 7);
    for (int i = 10; i < 1000; i++) assert_int_equal(p[i], 0);
    p = ls_realloc(p, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(p[i], 7);
    p = ls_realloc(p, 8); /* what was cut off does not come back */
    for (int i = 4; i < 8; i++) assert_int_equal(p[i], 0);
    ls_mem_fail_at(0);
    assert_null(ls_realloc(p, 100));
    assert_int_equal(p[3], 7); /* the old block is kept */
    ls_free(p);
}

static void live_blocks_and_bytes_are_counted(void **state)
{
    (void)state;
    int64_t live = ls_mem_live(), bytes = ls_mem_live_bytes(), count = ls_mem_count();
    void *a = ls_alloc(100), *b = ls_alloc(28);
    assert_int_equal(ls_mem_live() - live, 2);
    assert_int_equal(ls_mem_live_bytes() - bytes, 128);
    a = ls_realloc(a, 200);
    assert_int_equal(ls_mem_live() - live, 2);
    assert_int_equal(ls_mem_live_bytes() - bytes, 228);
    assert_int_equal(ls_mem_count() - count, 3);
    ls_free(a);
    ls_free(b);
    assert_int_equal(ls_mem_live(), live);
    assert_int_equal(ls_mem_live_bytes(), bytes);
}

static void the_kth_allocation_fails_once(void **state)
{
    (void)state;
    for (int k = 0; k < 5; k++) {
        ls_mem_fail_at(k);
        for (int i = 0; i < 8; i++) {
            void *p = ls_alloc(8);
            assert_int_equal(p == NULL, i == k);
            ls_free(p);
        }
    }
    ls_mem_fail_at(0);
    ls_mem_fail_at(-1); /* cancels the request */
    void *p = ls_alloc(8);
    assert_non_null(p);
    ls_free(p);
}

static void copied_and_formatted_texts_are_right(void **state)
{
    (void)state;
    char *a = ls_strdup("text"), *b = ls_strndup("text", 2), *c = ls_strndup("ab", 9),
         *d = ls_asprintf("%s-%03d", "x", 7);
    assert_string_equal(a, "text");
    assert_string_equal(b, "te");
    assert_string_equal(c, "ab");
    assert_string_equal(d, "x-007");
    ls_free(a);
    ls_free(b);
    ls_free(c);
    ls_free(d);
    assert_int_equal(ls_nomem(3 << 20, "a thing"), LS_E_NOMEM);
    assert_string_equal(ls_err_words(), "cannot allocate 3145728 bytes for a thing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_zeroed),
        cmocka_unit_test(realloc_keeps_data_and_zeroes_the_rest),
        cmocka_unit_test(live_blocks_and_bytes_are_counted),
        cmocka_unit_test(the_kth_allocation_fails_once),
        cmocka_unit_test(copied_and_formatted_texts_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
