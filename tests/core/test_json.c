/* The writer's text equals that of Python's json module; parse errors name the file and the line. */
#include "core/json.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/rng.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void reals_have_the_shortest_exact_digits(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *text;
    } row[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-2.5, "-2.5"},
        {0.1, "0.1"},
        {1e-4, "0.0001"},
        {9.999e-5, "9.999e-05"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {123456789012345680.0, "1.2345678901234568e+17"},
        {1.0 / 3.0, "0.3333333333333333"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {0x1p-44, "5.684341886080802e-14"}, /* a power of two: the nearest 16 digits read back as its neighbour */
        {9007199254740993.0, "9007199254740992.0"}};
    char buf[32];
    for (size_t i = 0; i < N_OF(row); i++) assert_string_equal(ls_json_real(buf, row[i].v), row[i].text);
    assert_string_equal(ls_json_real(buf, NAN), "null");
    assert_string_equal(ls_json_real(buf, INFINITY), "null");
}

static double double_of(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/* 40,000 doubles of every kind, compared with python3's repr. */
static void reals_are_written_as_python_does(void **state)
{
    (void)state;
    if (system("python3 -c pass >/dev/null 2>&1")) {
        print_message("skipped: python3 is not installed\n");
        skip();
    }
    char *dir = test_dir(), path[160], cmd[600];
    snprintf(path, sizeof path, "%s/reals", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    int n = 0;
    for (uint64_t i = 0; n < 40000; i++) {
        double v;
        if (i < 2100) v = ldexp(1.0, (int)i - 1074);                       /* every power of two     */
        else if (i % 4 == 0) v = double_of(ls_rng_u64(1, i));              /* any bits               */
        else if (i % 4 == 1) v = ls_rng_normal(2, i);                      /* losses and norms       */
        else if (i % 4 == 2) v = floor(ls_rng_uniform(3, i) * 1e6) / 1000; /* short decimals         */
        else v = (double)(float)exp(40 * ls_rng_normal(4, i));             /* floats of any size     */
        if (!isfinite(v)) continue;
        char buf[32];
        fprintf(f, "%a %s\n", v, ls_json_real(buf, v));
        n++;
    }
    fclose(f);
    snprintf(cmd, sizeof cmd,
             "python3 -c \"import sys\n"
             "bad = 0\n"
             "for line in open('%s'):\n"
             "    a, b = line.split()\n"
             "    if repr(float.fromhex(a)) != b: bad += 1; print(a, repr(float.fromhex(a)), b)\n"
             "sys.exit(bad > 0)\"",
             path);
    int rc = system(cmd);
    test_dir_close(dir);
    assert_int_equal(rc, 0);
}

static void objects_and_lists_match_json_dumps(void **state)
{
    (void)state;
    ls_str s = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_key(&w, "a");
    ls_jsonw_int(&w, -3);
    ls_jsonw_key(&w, "empty");
    ls_jsonw_open(&w, '{');
    ls_jsonw_close(&w);
    ls_jsonw_key(&w, "list");
    ls_jsonw_open(&w, '[');
    ls_jsonw_real(&w, 0.5);
    ls_jsonw_null(&w);
    ls_jsonw_bool(&w, 1);
    ls_jsonw_open(&w, '[');
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    ls_jsonw_key(&w, "none");
    ls_jsonw_str(&w, NULL);
    ls_jsonw_close(&w);
    /* as json.dumps(..., indent=2) writes it */
    assert_string_equal(
        s.data, "{\n  \"a\": -3,\n  \"empty\": {},\n  \"list\": [\n    0.5,\n    null,\n    true,\n    []\n  ],\n"
                "  \"none\": null\n}");
    ls_str_fini(&s);
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_key(&w, "x");
    ls_jsonw_int(&w, 1);
    ls_jsonw_key(&w, "y");
    ls_jsonw_open(&w, '[');
    ls_jsonw_int(&w, 1);
    ls_jsonw_int(&w, 2);
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    assert_string_equal(s.data, "{\"x\": 1, \"y\": [1, 2]}");
    ls_str_fini(&s);
}

static void members_are_written_by_their_type(void **state)
{
    (void)state;
    ls_str s = {0};
    ls_jsonw w;
    const char name[] = "x";
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("text", name), LS_KV("yes", (bool)true), LS_KV("int", -3),
                     LS_KV("wide", INT64_C(1) << 40), LS_KV("whole", 2.0), LS_KV("float", 0.5f));
    ls_jsonw_close(&w);
    assert_string_equal(s.data, "{\"text\": \"x\", \"yes\": true, \"int\": -3, \"wide\": 1099511627776, "
                                "\"whole\": 2.0, \"float\": 0.5}");
    ls_str_fini(&s);
}

static void strings_are_escaped_to_ascii(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } row[] = {{"plain", "\"plain\""},
               {"q\"b\\", "\"q\\\"b\\\\\""},
               {"\n\r\t\b\f\x01\x7f", "\"\\n\\r\\t\\b\\f\\u0001\\u007f\""},
               {"\xc3\xa9\xe2\x82\xac", "\"\\u00e9\\u20ac\""},
               {"\xf0\x9f\x98\x80", "\"\\ud83d\\ude00\""},
               {"\xff.", "\"\\ufffd.\""},                     /* no such byte                */
               {"\xc0\xaf", "\"\\ufffd\\ufffd\""},            /* overlong                    */
               {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""}, /* half of a surrogate pair */
               {"\xe2\x82", "\"\\ufffd\\ufffd\""},            /* cut at the end              */
               {"\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""}};
    for (size_t i = 0; i < N_OF(row); i++) {
        ls_str s = {0};
        ls_jsonw w;
        ls_jsonw_init(&w, &s, 0);
        ls_jsonw_str(&w, row[i].in);
        assert_string_equal(s.data, row[i].out);
        ls_str_fini(&s);
    }
}

static void a_zero_byte_does_not_end_a_text(void **state)
{
    (void)state;
    static const char bytes[] = {'a', '\0', 'b', '\xe2', '\0', '\xe2', '\x82'}; /* and sequences that are cut */
    ls_str s = {0}, again = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("text", ((ls_substr){bytes, sizeof bytes})), LS_KV("none", ((ls_substr){bytes, 0})));
    ls_jsonw_close(&w);
    assert_string_equal(s.data, "{\"text\": \"a\\u0000b\\ufffd\\u0000\\ufffd\\ufffd\", \"none\": \"\"}");
    json_t *j = json_loads(s.data, JSON_ALLOW_NUL, NULL);
    assert_non_null(j);
    ls_jsonw_init(&w, &again, 0);
    ls_jsonw_value(&w, j);
    assert_string_equal(again.data, s.data);
    json_decref(j);
    ls_str_fini(&s);
    ls_str_fini(&again);
}

static void parse_errors_name_file_and_line(void **state)
{
    (void)state;
    json_t *j = NULL;
    static const char text[] = "{\n  \"a\": 1,\n  oops\n}";
    assert_int_equal(ls_json_parse(text, strlen(text), "my.json", &j), LS_E_FORMAT);
    assert_null(j);
    assert_non_null(strstr(ls_err_words(), "my.json: line 3"));
    static const char twice[] = "{\"a\": 1, \"a\": 2}";
    assert_int_equal(ls_json_parse(twice, strlen(twice), "t", &j), LS_E_FORMAT);
    static const char rest[] = "{} x";
    assert_int_equal(ls_json_parse(rest, strlen(rest), "t", &j), LS_E_FORMAT);
    assert_int_equal(ls_json_parse("", 0, "t", &j), LS_E_FORMAT);
    assert_int_equal(ls_json_load("/nonexistent/x.json", &j), LS_E_IO);
    assert_null(j);
}

static void a_parsed_value_is_written_back_unchanged(void **state)
{
    (void)state;
    static const char text[] = "{\"b\": [1, 2.5, \"x\", true, false, null, {\"k\": -7}], \"a\": 1e-05}";
    json_t *j = NULL;
    assert_int_equal(ls_json_parse(text, strlen(text), "t", &j), LS_OK);
    ls_str s = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_value(&w, j);
    assert_string_equal(s.data, text); /* order kept */
    ls_str_fini(&s);
    json_decref(j);

    char deep[4001]; /* the depth limit of jansson: an input file must not trigger an assertion */
    memset(deep, '[', 2000);
    memset(deep + 2000, ']', 2000);
    deep[4000] = '\0';
    assert_int_equal(ls_json_parse(deep, 4000, "t", &j), LS_OK);
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_value(&w, j);
    assert_string_equal(s.data, deep);
    ls_str_fini(&s);
    json_decref(j);
}

static void a_path_finds_the_nested_value(void **state)
{
    (void)state;
    json_t *j = NULL;
    const char *text = "{\"a\": {\"b\": {\"c\": 7}, \"n\": null}, \"l\": [1]}";
    assert_int_equal(ls_json_parse(text, strlen(text), "text", &j), LS_OK);
    assert_int_equal(json_integer_value(ls_json_at(j, "a.b.c")), 7);
    assert_true(json_is_null(ls_json_at(j, "a.n")));
    assert_null(ls_json_at(j, "a.x"));
    assert_null(ls_json_at(j, "a.b.c.d"));
    assert_null(ls_json_at(j, "l.a"));
    assert_null(ls_json_at(NULL, "a"));
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_finds_the_nested_value),
        cmocka_unit_test(members_are_written_by_their_type),
        cmocka_unit_test(reals_have_the_shortest_exact_digits),
        cmocka_unit_test(reals_are_written_as_python_does),
        cmocka_unit_test(objects_and_lists_match_json_dumps),
        cmocka_unit_test(strings_are_escaped_to_ascii),
        cmocka_unit_test(a_zero_byte_does_not_end_a_text),
        cmocka_unit_test(parse_errors_name_file_and_line),
        cmocka_unit_test(a_parsed_value_is_written_back_unchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
