/* SHA-256 compared with the vectors of FIPS 180-4, in one piece and in several; XXH3 compared with a known value. */
#include "core/hash.h"
#include "core/mem.h"
#include "core/rng.h"
#include "cmocka_all.h"

#include <string.h>
#include <xxhash.h>

static void sha(const void *data, size_t n, char hex[65])
{
    ls_sha256 s;
    ls_sha256_init(&s);
    ls_sha256_add(&s, data, n);
    ls_sha256_hex(&s, hex);
}

static void sha256_matches_the_published_vectors(void **state)
{
    (void)state;
    char hex[65];
    sha("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    sha(two, strlen(two), hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    ls_sha256 s; /* a million a's, in pieces of 997 */
    ls_sha256_init(&s);
    char a[997];
    memset(a, 'a', sizeof a);
    for (size_t left = 1000000; left;) {
        size_t k = left < sizeof a ? left : sizeof a;
        ls_sha256_add(&s, a, k);
        left -= k;
    }
    ls_sha256_hex(&s, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void sha256_does_not_depend_on_the_pieces(void **state)
{
    (void)state;
    unsigned char data[700];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)ls_rng_u64(1, i);
    for (size_t n = 0; n <= 200; n++) {
        char whole[65], parts[65];
        sha(data, n, whole);
        ls_sha256 s;
        ls_sha256_init(&s);
        for (size_t at = 0; at < n;) {
            size_t k = 1 + ls_rng_u64(n, at) % 70;
            if (k > n - at) k = n - at;
            ls_sha256_add(&s, data + at, k);
            at += k;
        }
        ls_sha256_hex(&s, parts);
        assert_string_equal(parts, whole);
    }
}

static void xxh3_matches_the_published_value(void **state)
{
    (void)state;
    assert_true(ls_xxh64("", 0) == 0x2d06800538d394c2u); /* XXH3_64bits of no bytes, from xxHash's documentation */
    assert_true(ls_xxh64("abc", 3) != ls_xxh64("abd", 3));
}

/* Whatever instructions are used, and however the bytes are divided. */
static void xxh3_is_that_of_the_library(void **state)
{
    (void)state;
    enum { MOST = 300000 };
    unsigned char *data = ls_alloc(MOST);
    for (size_t i = 0; i < MOST; i++) data[i] = (unsigned char)ls_rng_u64(1, i);
    for (uint64_t round = 0; round < 2000; round++) {
        const size_t n = ls_rng_u64(2, round) % (round % 2 ? 3000 : MOST / 2), at = ls_rng_u64(3, round) % 100;
        const uint64_t want = XXH3_64bits(data + at, n);
        ls_xxh x;
        ls_xxh_init(&x);
        for (size_t done = 0, k = 0; done < n; k++) {
            const size_t some = ls_rng_u64(round + 10, k) % (k % 2 ? 200 : 5000),
                         part = some < n - done ? some : n - done;
            ls_xxh_add(&x, data + at + done, part);
            done += part;
        }
        if (ls_xxh64(data + at, n) != want || ls_xxh_value(&x) != want) fail_msg("%zu bytes at %zu", n, at);
    }
    ls_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_matches_the_published_vectors), cmocka_unit_test(sha256_does_not_depend_on_the_pieces),
        cmocka_unit_test(xxh3_matches_the_published_value), cmocka_unit_test(xxh3_is_that_of_the_library)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
