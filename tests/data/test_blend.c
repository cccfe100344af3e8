/* Shards and blends: which files a text names, shards as one stream, and the order of samples from several sources. */
#include "cmocka_all.h"
#include "core/fs.h"
#include "core/mem.h"
#include "data/loader.h"
#include "data/sources.h"
#include "own_folder.h"

#include <stdlib.h>
#include <string.h>

/* n ids: first, first + 1, ... */
static void write_ids(const char *name, int first, int n)
{
    uint16_t *id = ls_alloc((size_t)n * sizeof *id);
    for (int i = 0; i < n; i++) id[i] = (uint16_t)(first + i);
    assert_int_equal(ls_fs_write(in_dir(name), id, (size_t)n * sizeof *id), LS_OK);
    ls_free(id);
}

static void a_text_names_sources_with_weights(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        ls_status st;
        const char *last;
        double weight;
    } cases[] = {{"a", 1, LS_OK, "a", 0},
                 {"a:0.7,b:0.3", 2, LS_OK, "b", 0.3},
                 {"a,b,c", 3, LS_OK, "c", 0},
                 {"x/train_*.bin:2", 1, LS_OK, "x/train_*.bin", 2},
                 {"a:word", 1, LS_OK, "a:word", 0},
                 {"a:0.7,b", 0, LS_E_ARG, NULL, 0},
                 {"a:0,b:1", 0, LS_E_ARG, NULL, 0},
                 {"a:inf,b:1", 0, LS_E_ARG, NULL, 0},
                 {"a:nan,b:nan", 0, LS_E_ARG, NULL, 0},
                 {"a:1,:2", 0, LS_E_ARG, NULL, 0},
                 {"a:1,", 0, LS_E_ARG, NULL, 0}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_data_sources s = {0};
        assert_int_equal(ls_sources_parse(cases[i].text, &s), cases[i].st);
        assert_int_equal(s.n, cases[i].n);
        if (s.n) {
            assert_string_equal(s.item[s.n - 1].path, cases[i].last);
            assert_true(s.item[s.n - 1].weight == cases[i].weight);
            ls_str text = {0};
            ls_data_sources again = {0};
            assert_int_equal(ls_sources_text(&s, &text), LS_OK);
            assert_int_equal(ls_sources_parse(text.data, &again), LS_OK);
            assert_int_equal(again.n, s.n);
            ls_str_fini(&text);
            ls_sources_fini(&again);
        }
        ls_sources_fini(&s);
    }
    char odd[4096]; /* an existing name is that file, whatever is in it */
    snprintf(odd, sizeof odd, "%s", in_dir("odd,name:0.5"));
    assert_int_equal(ls_fs_write(odd, "", 0), LS_OK);
    ls_data_sources s = {0};
    assert_int_equal(ls_sources_parse(odd, &s), LS_OK);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.item[0].path, odd);
    ls_sources_fini(&s);
}

static void wrong_weights_and_keys_are_refused_by_their_name(void **state)
{
    (void)state;
    static const char *const weights[] = {"a:nan,b:1", "a:1,b:-inf", "a:-1,b:2"};
    static const char *const files[][2] = {
        {"{\"blend\": [{\"data\": \"a\", \"wieght\": 3}]}",
         "blend[0]: unknown key \"wieght\"; expected \"data\" and \"weight\""},
        {"{\"blend\": [{\"data\": \"a\"}], \"seed\": 1}", "unknown key \"seed\"; expected \"blend\""},
        {"{\"blend\": [{\"data\": \"a\", \"weight\": 0}]}", "blend[0].weight must be a positive number"}};
    ls_data_sources s = {0};
    for (size_t i = 0; i < N_OF(weights); i++) {
        assert_int_equal(ls_sources_parse(weights[i], &s), LS_E_ARG);
        if (!strstr(ls_err_words(), "must be a positive number")) fail_msg("%s", ls_err_words());
    }
    for (size_t i = 0; i < N_OF(files); i++) {
        assert_int_equal(ls_fs_write(in_dir("blend.json"), files[i][0], strlen(files[i][0])), LS_OK);
        assert_int_equal(ls_sources_load(in_dir("blend.json"), &s), LS_E_FORMAT);
        if (!strstr(ls_err_words(), files[i][1])) fail_msg("%s, expected %s", ls_err_words(), files[i][1]);
    }
}

static void a_name_is_that_of_the_files_or_folders(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"data/train_small.bin", "train_small"},
                                           {"train.bin", "train"},
                                           {"data/train_*.bin", "train"},
                                           {"x/wiki/train.bin:0.7,books/train_*.bin:0.3", "wiki+books"},
                                           {"a.bin,b.bin", "a+b"}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        char name[64];
        ls_sources_name(cases[i][0], name, sizeof name);
        assert_string_equal(name, cases[i][1]);
    }
}

static void shards_are_one_stream(void **state)
{
    (void)state;
    static const int sizes[] = {7, 1, 13, 40, 2};
    char name[64], pattern[4096];
    int first = 0;
    for (int k = 0; k < 5; k++) {
        ls_shard_name(name, "train", k);
        write_ids(name, first, sizes[k]);
        first += sizes[k];
    }
    write_ids("train_000.bin.bak", 0, 3);
    write_ids("whole.bin", 0, first);
    snprintf(pattern, sizeof pattern, "%s", in_dir("train_*.bin"));
    ls_tokens a, b;
    assert_int_equal(ls_tokens_open(&a, pattern, 5, 5000), LS_OK);
    assert_int_equal(ls_tokens_open(&b, in_dir("whole.bin"), 5, 5000), LS_OK);
    assert_int_equal(a.n_token, 63);
    assert_int_equal(a.n_seq, b.n_seq);
    for (int64_t k = 0; k < a.n_seq; k++) {
        int32_t x[4][5];
        assert_int_equal(ls_tokens_sequence(&a, k, x[0], x[1]), LS_OK);
        assert_int_equal(ls_tokens_sequence(&b, k, x[2], x[3]), LS_OK);
        assert_memory_equal(x[0], x[2], sizeof x[0]);
        assert_memory_equal(x[1], x[3], sizeof x[1]);
    }
    assert_true(ls_tokens_hash(&a) == ls_tokens_hash(&b));
    ls_tokens_close(&b);
    write_ids("whole.bin", 1, first);
    assert_int_equal(ls_tokens_open(&b, in_dir("whole.bin"), 5, 5000), LS_OK);
    assert_true(ls_tokens_hash(&a) != ls_tokens_hash(&b));
    ls_tokens_close(&a);
    ls_tokens_close(&b);
    assert_int_equal(ls_fs_remove_tree(in_dir("train_002.bin")), LS_OK);
    assert_int_equal(ls_tokens_open(&a, pattern, 5, 5000), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "train_004.bin"));
}

#define SEQ 4
#define N_A 30
#define N_B 100

/* Opens a (ids from 0) and b (ids from 1000) with weights. */
static void open_blend(ls_tokens *t, const char *weight_a, const char *weight_b)
{
    char text[9000], a[4096];
    write_ids("a.bin", 0, N_A * SEQ + 1);
    write_ids("b.bin", 1000, N_B * SEQ + 1);
    snprintf(a, sizeof a, "%s", in_dir("a.bin"));
    snprintf(text, sizeof text, "%s%s,%s%s", a, weight_a, in_dir("b.bin"), weight_b);
    assert_int_equal(ls_tokens_open(t, text, SEQ, 5000), LS_OK);
}

static void a_blend_has_the_weights_at_every_point_and_repeats_passes(void **state)
{
    (void)state;
    ls_tokens t;
    open_blend(&t, ":0.7", ":0.3");
    assert_int_equal(t.n_seq, N_A + N_B);
    int64_t taken[2] = {0, 0};
    int seen_a[N_A] = {0}, seen_b[N_B] = {0};
    for (int64_t p = 0; p < 20 * t.n_seq; p++) {
        int32_t ids[SEQ], target[SEQ];
        assert_int_equal(ls_tokens_batch(&t, 5, p / t.n_seq, p % t.n_seq, 1, ids, target), LS_OK);
        const int source = ids[0] >= 1000;
        int *seen = source ? &seen_b[(ids[0] - 1000) / SEQ] : &seen_a[ids[0] / SEQ];
        taken[source]++;
        /* within one sample of the exact share, and each sequence once per pass of its source */
        assert_true(llabs(taken[0] * 10 - (p + 1) * 7) <= 10);
        assert_int_equal((*seen)++, (taken[source] - 1) / (source ? N_B : N_A));
    }
    ls_tokens_close(&t);
}

static void parts_of_a_blend_can_be_read_alone(void **state)
{
    (void)state;
    ls_tokens t;
    open_blend(&t, ":1", ":3");
    int32_t all[(N_A + N_B) * SEQ], part[10 * SEQ], target[(N_A + N_B) * SEQ];
    assert_int_equal(ls_tokens_batch(&t, 9, 3, 0, N_A + N_B, all, target), LS_OK);
    assert_int_equal(ls_tokens_batch(&t, 9, 3, 77, 10, part, target), LS_OK);
    assert_memory_equal(part, all + 77 * SEQ, sizeof part);
    const int64_t id = ls_tokens_blend_id(&t);
    ls_tokens_close(&t);
    open_blend(&t, ":1", ":2");
    assert_true(id > 0 && ls_tokens_blend_id(&t) != id);
    ls_tokens_close(&t);
}

/* Without weights a source is taken as often as it has sequences; the sequences in order are those of the sources one after the other. */
static void without_weights_sizes_count(void **state)
{
    (void)state;
    ls_tokens t;
    int32_t ids[SEQ], target[SEQ];
    int n_a = 0;
    open_blend(&t, "", "");
    for (int64_t p = 0; p < t.n_seq; p++) {
        assert_int_equal(ls_tokens_batch(&t, 1, 0, p, 1, ids, target), LS_OK);
        n_a += ids[0] < 1000;
    }
    assert_true(abs(n_a - N_A) <= 1);
    assert_int_equal(ls_tokens_sequence(&t, N_A - 1, ids, target), LS_OK);
    assert_int_equal(ids[0], (N_A - 1) * SEQ);
    assert_int_equal(ls_tokens_sequence(&t, N_A, ids, target), LS_OK);
    assert_int_equal(ids[0], 1000);
    ls_tokens_close(&t);
}

static void a_blend_of_one_has_the_order_of_its_file(void **state)
{
    (void)state;
    ls_tokens a, b;
    char text[4200];
    int32_t x[N_B * SEQ], y[N_B * SEQ], target[N_B * SEQ];
    write_ids("b.bin", 1000, N_B * SEQ + 1);
    snprintf(text, sizeof text, "%s:2.5", in_dir("b.bin"));
    assert_int_equal(ls_tokens_open(&a, in_dir("b.bin"), SEQ, 5000), LS_OK);
    assert_int_equal(ls_tokens_open(&b, text, SEQ, 5000), LS_OK);
    for (int epoch = 0; epoch < 3; epoch++) {
        assert_int_equal(ls_tokens_batch(&a, 4, epoch, 0, N_B, x, target), LS_OK);
        assert_int_equal(ls_tokens_batch(&b, 4, epoch, 0, N_B, y, target), LS_OK);
        assert_memory_equal(x, y, sizeof x);
    }
    ls_tokens_close(&a);
    ls_tokens_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_text_names_sources_with_weights),
                                       cmocka_unit_test(wrong_weights_and_keys_are_refused_by_their_name),
                                       cmocka_unit_test(a_name_is_that_of_the_files_or_folders),
                                       cmocka_unit_test(shards_are_one_stream),
                                       cmocka_unit_test(a_blend_has_the_weights_at_every_point_and_repeats_passes),
                                       cmocka_unit_test(parts_of_a_blend_can_be_read_alone),
                                       cmocka_unit_test(without_weights_sizes_count),
                                       cmocka_unit_test(a_blend_of_one_has_the_order_of_its_file)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
