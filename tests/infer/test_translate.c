/* Translations as text: what a search may generate that a string cannot hold. */
#include "cmocka_all.h"
#include "core/mem.h"
#include "infer/translate.h"

#include <string.h>

static void bytes_that_no_text_has_are_replaced_and_nothing_is_cut(void **state)
{
    (void)state;
    static const struct {
        const char *raw;
        size_t n;
        const char *text;
    } cases[] = {{"", 0, ""},
                 {"a house", 7, "a house"},
                 {"a\0house", 7, "a\xef\xbf\xbdhouse"},
                 {"\0", 1, "\xef\xbf\xbd"},
                 {"\0\0x\0", 4, "\xef\xbf\xbd\xef\xbf\xbdx\xef\xbf\xbd"},
                 {"\xc3\xbc\0\xc3", 4, "\xc3\xbc\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xe2\x82x", 3, "\xef\xbf\xbdx"}};
    ls_tokenizer *t = NULL;
    assert_int_equal(ls_tokenizer_bytes(&t), LS_OK);
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_ids ids = {0};
        char *text = NULL;
        assert_int_equal(ls_tokenizer_encode(t, cases[i].raw, cases[i].n, &ids), LS_OK);
        assert_int_equal(ls_translation_text(t, &ids, &text), LS_OK);
        assert_string_equal(text, cases[i].text);
        ls_free(text);
        ls_ids_fini(&ids);
    }
    ls_tokenizer_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_that_no_text_has_are_replaced_and_nothing_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
