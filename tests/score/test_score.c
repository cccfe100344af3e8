/* BLEU and chrF against values that sacrebleu 2.6.0 printed (tests/oracle/score.sh compares many more where it is installed). */
#include "assert_near.h"
#include "core/mem.h"
#include "score/score.h"

#include <string.h>

static ls_substr text(const char *s)
{
    return (ls_substr){s, strlen(s)};
}

static void assert_tokens(const char *line, const char *want)
{
    ls_str s = {0};
    ls_tokenize_13a(text(line), &s);
    assert_string_equal(s.data ? s.data : "", want);
    ls_str_fini(&s);
}

static void tokens_are_those_of_13a(void **state)
{
    (void)state;
    assert_tokens("Hello, world!", "Hello , world !");
    assert_tokens("It costs $1,000.50 (about 3.5%).", "It costs $ 1,000.50 ( about 3.5 % ) .");
    assert_tokens("a-b 10-20 5-", "a-b 10 - 20 5 -");
    assert_tokens("&quot;x&amp;lt;y&quot; <skipped>z", "\" x < y \" z");
    assert_tokens("well...  yes\u3000no.\n", "well . . . yes no .");
    assert_tokens("U.S. e.g., 3.14.", "U . S . e . g . , 3.14 .");
    assert_tokens("line-\nbreak", "linebreak");
    assert_tokens(" \t\u00a0", "");
}

typedef struct sentence {
    const char *hyp, *ref;
} sentence;

static const sentence three[] = {{"The cat sat on the mat.", "The cat is on the mat."},
                                 {"Ein Haus steht dort", "Ein altes Haus steht dort drüben"},
                                 {"кошка сидит на коврике", "кошка сидит на стуле"}};

static ls_status score(const sentence *s, size_t n, ls_bleu *b, ls_chrf *c)
{
    *b = (ls_bleu){0};
    *c = (ls_chrf){0};
    for (size_t i = 0; i < n; i++) {
        LS_TRY(ls_bleu_add(b, text(s[i].hyp), text(s[i].ref)));
        LS_TRY(ls_chrf_add(c, text(s[i].hyp), text(s[i].ref)));
    }
    return LS_OK;
}

static void a_corpus_has_the_scores_of_sacrebleu(void **state)
{
    (void)state;
    ls_bleu b;
    ls_chrf c;
    assert_int_equal(score(three, N_OF(three), &b, &c), LS_OK);
    const ls_bleu_result r = ls_bleu_of(&b);
    assert_near(r.score, 39.80621052093372, 1e-12);
    assert_near(r.brevity, 0.8751733190429475, 1e-15);
    assert_near(r.precision[2], 44.44444444444444, 1e-12);
    assert_int_equal(b.hyp_len, 15);
    assert_int_equal(b.ref_len, 17);
    assert_near(ls_chrf_of(&c), 59.36322183430399, 1e-12);
}

static void orders_without_a_match_are_smoothed_in_turn(void **state)
{
    (void)state;
    ls_bleu b;
    ls_chrf c;
    assert_int_equal(score(&(sentence){"a b c d e", "a x c y e"}, 1, &b, &c), LS_OK);
    const ls_bleu_result r = ls_bleu_of(&b);
    assert_near(r.precision[1], 12.5, 1e-12);
    assert_near(r.precision[2], 100.0 / 12, 1e-12);
    assert_near(r.precision[3], 6.25, 1e-12);
    assert_near(r.score, 14.058533129758727, 1e-12);
    assert_near(ls_chrf_of(&c), 12.0, 1e-12);
}

static void texts_without_words_score_zero(void **state)
{
    (void)state;
    static const sentence none[] = {{"", ""}, {"a b c d", ""}, {"", "a b c d"}, {"a b", "a b"}, {"x y z u", "a b c d"}};
    for (size_t i = 0; i < N_OF(none); i++) {
        ls_bleu b;
        ls_chrf c;
        assert_int_equal(score(&none[i], 1, &b, &c), LS_OK);
        assert_near(ls_bleu_of(&b).score, 0, 0); /* "a b" has no order 3 */
        if (i != 3) assert_near(ls_chrf_of(&c), 0, 0);
        else assert_near(ls_chrf_of(&c), 100, 1e-12);
    }
}

static void a_failed_allocation_is_reported_and_frees_everything(void **state)
{
    (void)state;
    const int64_t live = ls_mem_live();
    int n_failed = 0;
    for (int64_t k = 0;; k++) {
        ls_bleu b;
        ls_chrf c;
        ls_mem_fail_at(k);
        const ls_status st = score(three, N_OF(three), &b, &c);
        ls_mem_fail_at(-1);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
        n_failed++;
    }
    assert_true(n_failed > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_13a),
        cmocka_unit_test(a_corpus_has_the_scores_of_sacrebleu),
        cmocka_unit_test(orders_without_a_match_are_smoothed_in_turn),
        cmocka_unit_test(texts_without_words_score_zero),
        cmocka_unit_test(a_failed_allocation_is_reported_and_frees_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
