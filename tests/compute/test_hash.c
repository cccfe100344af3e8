/* The hash of host memory: the number of threads does not change it, every bit does. */
#include "cmocka_all.h"
#include "compute/compute.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/rng.h"

#include <string.h>

#define OK(call) assert_int_equal((call), LS_OK)

enum { PIECE = 256 << 10, LARGE = 70 << 20 }; /* of compute/cpu/hash.c; more than the pieces that it keeps at a time */

static ls_compute opened(const char *name, int n_thread)
{
    ls_compute c;
    OK(ls_compute_open(&c, name, &(ls_compute_open_opts){.dtype = LS_F32}, n_thread));
    return c;
}

static unsigned char *some(size_t n)
{
    unsigned char *x = ls_alloc(n);
    assert_non_null(x);
    for (size_t i = 0; i + 8 <= n; i += 8) memcpy(x + i, &(uint64_t){ls_rng_u64(3, i)}, 8);
    return x;
}

static uint64_t hash(ls_compute *c, const void *x, size_t n)
{
    uint64_t h = 1;
    OK(ls_compute_hash(c, &h, x, n, false));
    return h;
}

/* XXH3 of a piece, or of the hashes of the pieces. */
static uint64_t wanted(const unsigned char *x, size_t n)
{
    ls_xxh all;
    if (n <= PIECE) return ls_xxh64(x, n);
    ls_xxh_init(&all);
    for (size_t at = 0; at < n; at += PIECE)
        ls_xxh_add(&all, &(uint64_t){ls_xxh64(x + at, n - at < PIECE ? n - at : PIECE)}, 8);
    return ls_xxh_value(&all);
}

static void any_number_of_threads_gives_the_same(void **state)
{
    (void)state;
    static const size_t size[] = {0, 1, 4097, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 5 * PIECE + 77, LARGE + 5};
    unsigned char *x = some(LARGE + 5);
    for (int n_thread = 1; n_thread <= 5; n_thread += 2) {
        ls_compute c = opened("cpu", n_thread), ref = opened("cpu-ref", n_thread);
        for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
            assert_true(hash(&c, x, size[i]) == wanted(x, size[i]));
            if (size[i] < LARGE) assert_true(hash(&ref, x, size[i]) == wanted(x, size[i]));
        }
        ls_compute_close(&c);
        ls_compute_close(&ref);
    }
    ls_free(x);
}

static void a_bit_in_any_piece_changes_it(void **state)
{
    (void)state;
    const size_t n = 3 * PIECE + 11;
    unsigned char *x = some(n);
    ls_compute c = opened("cpu", 2);
    const uint64_t was = hash(&c, x, n);
    const size_t at[] = {0, PIECE - 1, PIECE, 2 * PIECE + 5, 3 * PIECE - 1, 3 * PIECE, n - 1};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
        for (int bit = 0; bit < 8; bit++) {
            x[at[i]] ^= (unsigned char)(1 << bit);
            assert_true(hash(&c, x, n) != was);
            x[at[i]] ^= (unsigned char)(1 << bit);
        }
    assert_true(hash(&c, x, n) == was);
    ls_compute_close(&c);
    ls_free(x);
}

static void more_hashes_the_former_value_too(void **state)
{
    (void)state;
    ls_compute c = opened("cpu", 1);
    const char *text[] = {"one", "two"};
    uint64_t h[2];
    for (int k = 0; k < 2; k++) {
        OK(ls_compute_hash(&c, &h[k], text[k], 3, false));
        OK(ls_compute_hash(&c, &h[k], text[1 - k], 3, true));
    }
    assert_true(h[0] != h[1]);
    assert_true(h[0] == ls_xxh64((uint64_t[]){ls_xxh64("one", 3), ls_xxh64("two", 3)}, 16));
    ls_compute_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads_gives_the_same),
        cmocka_unit_test(a_bit_in_any_piece_changes_it),
        cmocka_unit_test(more_hashes_the_former_value_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
