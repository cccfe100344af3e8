/* The BPE trainer, compared with a naive one that recounts all pairs before each merge. */
#include "cmocka_all.h"
#include "core/mem.h"
#include "core/rng.h"
#include "data/bpe_train.h"
#include "data/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SYM 64

typedef struct naive_word {
    int32_t sym[MAX_SYM];
    size_t n;
    int64_t count;
} naive_word;

/* Returns the count of the most frequent pair, 0 if there is none. Of equally frequent pairs the one with the lowest ids wins. */
static int64_t best_pair(const naive_word *w, size_t n_word, int32_t *left, int32_t *right)
{
    static int64_t count[700][700];
    memset(count, 0, sizeof count);
    int64_t best = 0;
    for (size_t i = 0; i < n_word; i++)
        for (size_t k = 0; k + 1 < w[i].n; k++) count[w[i].sym[k]][w[i].sym[k + 1]] += w[i].count;
    for (int32_t a = 0; a < 700; a++)
        for (int32_t b = 0; b < 700; b++)
            if (count[a][b] > best) {
                best = count[a][b];
                *left = a;
                *right = b;
            }
    return best;
}

static void merge_all(naive_word *w, size_t n_word, int32_t left, int32_t right, int32_t id)
{
    for (size_t i = 0; i < n_word; i++) {
        size_t to = 0;
        for (size_t k = 0; k < w[i].n; to++) {
            bool hit = k + 1 < w[i].n && w[i].sym[k] == left && w[i].sym[k + 1] == right;
            w[i].sym[to] = hit ? id : w[i].sym[k];
            k += hit ? 2 : 1;
        }
        w[i].n = to;
    }
}

static void compare_with_naive(const ls_words *words, int n_vocab, int64_t min_count)
{
    ls_tokenizer *t = NULL;
    assert_int_equal(ls_bpe_train(words, n_vocab, min_count, &t), LS_OK);
    naive_word *w = calloc(words->n, sizeof *w);
    int32_t id_of[256];
    for (int i = 0; i < 256; i++) id_of[data_gpt2_byte(i)] = i;
    for (size_t i = 0; i < words->n; i++) {
        w[i].count = words->word[i].count;
        w[i].n = words->word[i].nbytes;
        for (size_t k = 0; k < w[i].n; k++) w[i].sym[k] = id_of[words->bytes[words->word[i].off + k]];
    }
    int n_token = 256, n_merge = 0;
    while (n_token + 1 < n_vocab) {
        int32_t left = 0, right = 0;
        if (best_pair(w, words->n, &left, &right) < min_count) break;
        assert_true(n_merge < ls_tokenizer_n_merge(t));
        data_merge m = t->merge[n_merge];
        assert_int_equal(m.left, left);
        assert_int_equal(m.right, right);
        if (m.id == n_token) n_token++;
        else assert_true(m.id < n_token); /* an earlier merge already made a token of these bytes */
        merge_all(w, words->n, left, right, m.id);
        n_merge++;
    }
    assert_int_equal(n_merge, ls_tokenizer_n_merge(t));
    assert_int_equal(ls_tokenizer_n_vocab(t), n_token + 1);
    assert_int_equal(ls_tokenizer_eot(t), n_token);
    free(w);
    ls_tokenizer_destroy(&t);
}

static void random_words(ls_words *words, uint64_t seed, int n, int letters)
{
    uint64_t key = ls_rng_key(seed, LS_RNG_TEST, 0, 0), at = 0;
    for (int i = 0; i < n; i++) {
        unsigned char s[16];
        size_t len = 1 + ls_rng_u64(key, at++) % 15;
        for (size_t k = 0; k < len; k++) s[k] = (unsigned char)('a' + ls_rng_u64(key, at++) % (uint64_t)letters);
        assert_int_equal(ls_words_add(words, s, len, 1 + (int64_t)(ls_rng_u64(key, at++) % 5)), LS_OK);
    }
}

static void merges_equal_those_of_recounting(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12;
         seed++) { /* one letter gives overlapping runs, few letters give tokens that two merges make */
        ls_words words = {.max_bytes = 1 << 20};
        random_words(&words, seed, 60, 1 + (int)(seed % 4));
        compare_with_naive(&words, 330, 2);
        ls_words_fini(&words);
    }
}

static void training_stops_at_size_and_count(void **state)
{
    (void)state;
    ls_words words = {.max_bytes = 1 << 20};
    const char text[] = "low low low lower lowest";
    assert_int_equal(ls_words_add_text(&words, (const unsigned char *)text, sizeof text - 1), LS_OK);
    ls_tokenizer *t = NULL;
    assert_int_equal(ls_bpe_train(&words, 256, 2, &t), LS_E_ARG);
    assert_int_equal(ls_bpe_train(&words, 257, 2, &t), LS_OK);
    assert_int_equal(ls_tokenizer_n_merge(t), 0);
    ls_tokenizer_destroy(&t);
    assert_int_equal(ls_bpe_train(&words, 5000, 2, &t), LS_OK);
    ls_ids ids = {0};
    assert_int_equal(ls_tokenizer_encode(t, text, sizeof text - 1, &ids), LS_OK);
    ls_str s = {0};
    assert_int_equal(ls_tokenizer_decode(t, ids.id, ids.n, &s), LS_OK);
    assert_string_equal(s.data, text);
    const int32_t second = ids.id[1]; /* "low", then " low" as one token */
    assert_int_equal(t->len[second], 4);
    assert_memory_equal(t->bytes + t->off[second], " low", 4);
    assert_int_equal(ids.id[1], ids.id[2]);
    for (int r = 0; r < ls_tokenizer_n_merge(t); r++) assert_true(t->merge[r].id < ls_tokenizer_eot(t));
    ls_ids_fini(&ids);
    ls_str_fini(&s);
    ls_tokenizer_destroy(&t);
    ls_words_fini(&words);
}

/* Words in reverse order give the same tokenizer. */
static void the_order_of_words_does_not_matter(void **state)
{
    (void)state;
    ls_words a = {.max_bytes = 1 << 20}, b = {.max_bytes = 1 << 20};
    random_words(&a, 7, 200, 3);
    for (size_t i = a.n; i-- > 0;)
        assert_int_equal(ls_words_add(&b, a.bytes + a.word[i].off, a.word[i].nbytes, a.word[i].count), LS_OK);
    ls_tokenizer *t = NULL, *u = NULL;
    ls_str s = {0}, r = {0};
    assert_int_equal(ls_bpe_train(&a, 400, 2, &t), LS_OK);
    assert_int_equal(ls_bpe_train(&b, 400, 2, &u), LS_OK);
    assert_int_equal(ls_tokenizer_to_json(t, &s), LS_OK);
    assert_int_equal(ls_tokenizer_to_json(u, &r), LS_OK);
    assert_string_equal(s.data, r.data);
    ls_str_fini(&s);
    ls_str_fini(&r);
    ls_tokenizer_destroy(&t);
    ls_tokenizer_destroy(&u);
    ls_words_fini(&a);
    ls_words_fini(&b);
}

static void words_beyond_the_limits_are_left_out(void **state)
{
    (void)state;
    ls_words w = {.max_bytes = 10};
    unsigned char longer[DATA_WORD_MAX + 1] = {0};
    assert_int_equal(ls_words_add_text(&w, (const unsigned char *)"aaaa bbb cc dddd aaaa", 21), LS_OK);
    assert_int_equal(w.n, 2); /* "aaaa" and " bbb"; the other words do not fit */
    assert_int_equal(ls_words_add(&w, longer, sizeof longer, 2), LS_OK);
    assert_int_equal(w.n, 2);
    assert_int_equal(w.word[0].count + w.word[1].count, 2);
    ls_words_fini(&w);
}

static void a_failed_allocation_leaks_nothing(void **state)
{
    (void)state;
    ls_words w = {.max_bytes = 1 << 20};
    random_words(&w, 3, 50, 3);
    int64_t live = ls_mem_live();
    long k = 0;
    for (;; k++) {
        ls_tokenizer *t = NULL;
        ls_mem_fail_at(k);
        ls_status st = ls_bpe_train(&w, 300, 2, &t);
        ls_mem_fail_at(-1);
        ls_tokenizer_destroy(&t);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
    }
    assert_true(k > 20);
    ls_words_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_equal_those_of_recounting),   cmocka_unit_test(training_stops_at_size_and_count),
        cmocka_unit_test(the_order_of_words_does_not_matter), cmocka_unit_test(words_beyond_the_limits_are_left_out),
        cmocka_unit_test(a_failed_allocation_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
