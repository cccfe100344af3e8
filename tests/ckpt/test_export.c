/* Files for other programs: what is written can be read again bit for bit, and damaged files of llm.c are refused. */
#include "ckpt/export.h"

#include "ckpt_support.h"
#include "core/fs.h"
#include "ckpt/checkpoint.h"
#include "ckpt/hf.h"
#include "ckpt/llmc.h"

#include <math.h>
#include <stdlib.h>

/* dir/name; valid until 16 more calls */
static const char *in(const char *dir, const char *name)
{
    static ls_path ring[16];
    static int k;
    ls_path *p = &ring[k++ % 16];
    *p = ls_path_of(dir, name);
    return p->text;
}

static void save(const test_model *t, const char *dir)
{
    const ls_ckpt_job job = {.model = t->m, .dir = dir, .name = "step-1", .state_json = "{}"};
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
}

static ls_status export_as(ls_export_kind kind, const char *from, const char *out, ls_dtype dt, int64_t shard)
{
    return ls_export(&(ls_export_opts){.kind = kind, .from = from, .out = out, .dtype = dt, .shard_nbytes = shard});
}

/* Loads `path` into a model of this configuration and compares it with a. */
static void assert_has(const char *path, const test_model *a)
{
    test_model b;
    test_model_open(&b, a->m->cfg, LS_F32, 0);
    assert_int_equal(ls_hf_load(b.m, path, NULL, 0, NULL), LS_OK);
    assert_true(test_same(a->m, b.m, 0));
    test_model_close(&b);
}

static void shards_and_files_of_llmc_have_the_same_weights(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a;
    ls_model_config cfg;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    save(&a, dir);
    const char *from = in(dir, "step-1"), *out = in(dir, "shards");
    assert_int_equal(export_as(LS_EXPORT_HF, from, out, LS_F32, 3000), LS_OK);
    assert_true(ls_fs_exists(in(dir, "shards/model.safetensors.index.json")));
    assert_false(ls_fs_exists(in(dir, "shards/model.safetensors")));
    assert_has(out, &a);
    assert_int_equal(export_as(LS_EXPORT_HF, from, in(dir, "one"), LS_F32, 1 << 20), LS_OK);
    assert_true(ls_fs_exists(in(dir, "one/model.safetensors"))); /* everything fits: no index */
    assert_false(ls_fs_exists(in(dir, "one/model.safetensors.index.json")));

    out = in(dir, "m.bin");
    assert_int_equal(export_as(LS_EXPORT_LLMC, from, out, LS_F32, 0), LS_OK);
    assert_int_equal(ls_ckpt_config(out, &cfg), LS_OK);
    assert_int_equal(cfg.n_layer, 2);
    assert_int_equal(cfg.vocab_size, 33);
    assert_has(out, &a);
    int64_t nbytes;
    assert_int_equal(ls_fs_size(out, &nbytes), LS_OK);
    assert_int_equal(nbytes, 1024 + 4 * (ls_model_n_param(&cfg) + (128 - 33) * 12));
    assert_int_equal(export_as(LS_EXPORT_LLMC, from, out, LS_F32, 0), LS_E_ARG); /* exists */
    assert_int_equal(export_as(LS_EXPORT_LLMC, from, in(dir, "h.bin"), LS_F16, 0), LS_E_ARG);
    test_model_close(&a);
    test_dir_close(dir);
}

static void sixteen_bits_are_the_nearest_and_stay_the_same(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a, b, c;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 6);
    save(&a, dir);
    const char *from = in(dir, "step-1");
    static const ls_dtype type[] = {LS_BF16, LS_F16};
    for (int i = 0; i < 2; i++) {
        const char *first = in(dir, i ? "h1" : "b1"), *again = in(dir, i ? "h2" : "b2");
        assert_int_equal(export_as(LS_EXPORT_HF, from, first, type[i], 2000), LS_OK);
        assert_int_equal(export_as(LS_EXPORT_HF, first, again, type[i], 0), LS_OK);
        test_model_open(&b, a.m->cfg, LS_F32, 0);
        test_model_open(&c, a.m->cfg, LS_F32, 0);
        assert_int_equal(ls_hf_load(b.m, first, NULL, 0, NULL), LS_OK);
        assert_int_equal(ls_hf_load(c.m, again, NULL, 0, NULL), LS_OK);
        assert_true(test_same(b.m, c.m, 0));
        for (int u = 0; u < a.m->n_unit; u++)
            for (int64_t k = 0; k < a.m->unit[u].n; k++) {
                const double x = (double)((float *)a.m->unit[u].param)[k], y = (double)((float *)b.m->unit[u].param)[k];
                assert_true(x - y <= (i ? 0x1p-11 : 0x1p-8) * fabs(x) + 0x1p-25 &&
                            y - x <= (i ? 0x1p-11 : 0x1p-8) * fabs(x) + 0x1p-25);
            }
        test_model_close(&b);
        test_model_close(&c);
    }
    test_model_close(&a);
    test_dir_close(dir);
}

static void numbers_too_large_for_fp16_are_refused(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    ((float *)a.m->unit[1].param)[3] = 70000;
    save(&a, dir);
    const char *from = in(dir, "step-1"), *out = in(dir, "m");
    assert_int_equal(export_as(LS_EXPORT_HF, from, out, LS_F16, 0), LS_E_CONFIG);
    assert_non_null(strstr(ls_err_words(), "ln_1.weight has numbers beyond 65504"));
    assert_false(ls_fs_exists(out));
    assert_int_equal(export_as(LS_EXPORT_HF, from, out, LS_BF16, 0), LS_OK);
    test_model_close(&a);
    test_dir_close(dir);
}

static void other_programs_get_only_models_that_they_compute(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_R1), LS_F32, 5);
    save(&a, dir);
    const char *from = in(dir, "step-1"), *out = in(dir, "m");
    assert_int_equal(export_as(LS_EXPORT_LLMC, from, out, LS_F32, 0), LS_E_CONFIG);
    assert_int_equal(export_as(LS_EXPORT_GGUF, from, out, LS_F32, 0), LS_E_CONFIG);
    assert_false(ls_fs_exists(out));
    test_model_close(&a);
    test_dir_close(dir);
}

/* Writes the file with one number of its header changed, or cut to n bytes. */
static void write_changed(const char *path, const char *data, size_t n, int at, int32_t value)
{
    char *copy = ls_alloc(n);
    assert_non_null(copy);
    memcpy(copy, data, n);
    if (at >= 0) memcpy(copy + 4 * at, &value, 4);
    assert_int_equal(ls_fs_write(path, copy, n), LS_OK);
    ls_free(copy);
}

static void damaged_files_of_llmc_are_refused(void **state)
{
    (void)state;
    char *dir = test_dir(), *data = NULL;
    size_t n;
    test_model a, b;
    ls_model_config cfg;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 0);
    save(&a, dir);
    const char *good = in(dir, "good.bin"), *bad = in(dir, "bad.bin");
    assert_int_equal(export_as(LS_EXPORT_LLMC, in(dir, "step-1"), good, LS_F32, 0), LS_OK);
    assert_int_equal(ls_fs_read(good, &data, &n), LS_OK);
    static const struct {
        int at;
        int32_t value;
        ls_status st;
        const char *words;
    } row[] = {
        {1, 4, LS_E_UNSUPPORTED, "version 4"},
        {1, 5, LS_E_FORMAT, "its header describes"}, /* bf16 would be half as long */
        {2, -1, LS_E_FORMAT, "n_positions"},
        {3, INT32_MAX, LS_E_FORMAT, "padded vocabulary"},
        {4, 1000000000, LS_E_FORMAT, "its header describes"},
        {5, 5, LS_E_FORMAT, "n_head"},
        {6, INT32_MAX, LS_E_FORMAT, ""},
        {7, 32, LS_E_FORMAT, "padded vocabulary is 32"},
        {7, INT32_MIN, LS_E_FORMAT, "padded vocabulary"},
    };
    const int64_t live = ls_mem_live();
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        write_changed(bad, data, n, row[i].at, row[i].value);
        assert_int_equal(ls_ckpt_config(bad, &cfg), row[i].st);
        assert_non_null(strstr(ls_err_words(), row[i].words));
        assert_int_equal(ls_hf_load(b.m, bad, NULL, 0, NULL), row[i].st);
        assert_int_equal(ls_mem_live(), live);
    }
    for (size_t cut = 4; cut < n; cut += cut < 1100 ? 257 : n / 3) {
        write_changed(bad, data, cut, -1, 0);
        assert_int_equal(ls_ckpt_config(bad, &cfg), LS_E_FORMAT);
    }
    write_changed(bad, data, 3, -1, 0);
    assert_false(ls_llmc_is(bad));
    test_model_close(&b);
    cfg = test_config(LS_VARIANT_HF);
    cfg.n_ctx = 11;
    test_model_open(&b, cfg, LS_F32, 0);
    assert_int_equal(ls_hf_load(b.m, good, NULL, 0, NULL), LS_E_CONFIG);
    ls_free(data);
    test_model_close(&a);
    test_model_close(&b);
    test_dir_close(dir);
}

static void a_model_is_found_in_the_cache_by_name(void **state)
{
    (void)state;
    char *dir = test_dir(), *path = NULL;
    setenv("HF_HUB_CACHE", dir, 1);
    assert_int_equal(ls_ckpt_resolve("--init_from", "gpt2", &path), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "hf download openai-community/gpt2"));
    assert_int_equal(ls_ckpt_resolve("--init_from", "some/folder", &path), LS_E_IO);
    assert_null(strstr(ls_err_words(), "download"));

    const char *model = in(dir, "models--openai-community--gpt2");
    const char *one = in(model, "snapshots/0123abcd"), *two = in(model, "snapshots/4567");
    assert_int_equal(ls_fs_write(in(one, "config.json"), "{}", 2), LS_OK);
    assert_int_equal(ls_ckpt_resolve("--init_from", "gpt2", &path), LS_OK); /* the only snapshot */
    assert_string_equal(path, one);
    ls_free(path);
    assert_int_equal(ls_fs_write(in(two, "config.json"), "{}", 2), LS_OK);
    assert_int_equal(ls_ckpt_resolve("--init_from", "gpt2", &path), LS_E_IO); /* which of two is not known */
    assert_int_equal(ls_fs_write(in(model, "refs/main"), "4567\n", 5), LS_OK);
    static const char *const name[] = {"gpt2", "openai-community/gpt2"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ls_ckpt_resolve("--init_from", name[i], &path), LS_OK);
        assert_string_equal(path, two);
        ls_free(path);
    }
    assert_int_equal(ls_ckpt_resolve("--init_from", "someone/gpt2", &path), LS_E_IO);
    assert_int_equal(ls_fs_write(in(model, "refs/main"), "../../..", 8), LS_OK);
    assert_int_equal(ls_ckpt_resolve("--init_from", "gpt2", &path), LS_E_IO);
    unsetenv("HF_HUB_CACHE");
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_and_files_of_llmc_have_the_same_weights),
        cmocka_unit_test(sixteen_bits_are_the_nearest_and_stay_the_same),
        cmocka_unit_test(numbers_too_large_for_fp16_are_refused),
        cmocka_unit_test(other_programs_get_only_models_that_they_compute),
        cmocka_unit_test(damaged_files_of_llmc_are_refused),
        cmocka_unit_test(a_model_is_found_in_the_cache_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
