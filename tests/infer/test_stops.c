/* Stop texts: found wherever tokens begin and end, held back while they may begin. */
#include "cmocka_all.h"
#include "infer/stops.h"

#include <string.h>

static const char *const word[] = {"\n\n", "User:", "abab"};
static const ls_stops stops = {word, 3};

static ls_substr sub(const char *s)
{
    return (ls_substr){s, strlen(s)};
}

static void the_first_stop_text_is_found(void **state)
{
    (void)state;
    assert_int_equal(ls_stops_find(&stops, sub("one User: two\n\n"), 0), 4);
    assert_int_equal(ls_stops_find(&stops, sub("one\n\nUser:"), 0), 3);
    assert_int_equal(ls_stops_find(&stops, sub("one user:\n"), 0), 10);
    assert_int_equal(ls_stops_find(&stops, sub(""), 0), 0);
    assert_int_equal(ls_stops_find(&stops, sub("aUser:b"), 5), 1); /* ends after byte 5 */
    assert_int_equal(ls_stops_find(&stops, sub("aUser:b"), 6), 7); /* ends before: it was looked at earlier */
    assert_int_equal(ls_stops_find(&(ls_stops){0}, sub("aUser:b"), 0), 7);
}

static void the_beginning_of_a_stop_text_is_pending(void **state)
{
    (void)state;
    assert_int_equal(ls_stops_pending(&stops, sub("one")), 0);
    assert_int_equal(ls_stops_pending(&stops, sub("one\n")), 1);
    assert_int_equal(ls_stops_pending(&stops, sub("one User")), 4);
    assert_int_equal(ls_stops_pending(&stops, sub("aba")), 3);
    assert_int_equal(ls_stops_pending(&stops, sub("U")), 1);
    assert_int_equal(ls_stops_pending(&stops, sub("")), 0);
    assert_int_equal(ls_stops_pending(&(ls_stops){0}, sub("one\n")), 0);
}

static void the_last_id_completes_a_stop_text_once(void **state)
{
    (void)state;
    ls_tokenizer *t = NULL;
    assert_int_equal(ls_tokenizer_bytes(&t), LS_OK);
    const char *text = "a User: b\n\nabab";
    ls_ids ids = {0};
    for (size_t i = 0; text[i]; i++) {
        bool end = true;
        assert_int_equal(ls_ids_push(&ids, (unsigned char)text[i]), LS_OK);
        assert_int_equal(ls_stops_ends(&stops, t, &ids, &end), LS_OK);
        assert_int_equal(end, i == 6 || i == 10 || i == 14);
    }
    ls_ids_fini(&ids);
    ls_tokenizer_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_stop_text_is_found),
        cmocka_unit_test(the_beginning_of_a_stop_text_is_pending),
        cmocka_unit_test(the_last_id_completes_a_stop_text_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
