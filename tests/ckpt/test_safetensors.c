/* The safetensors format: written files read back unchanged, and files with a wrong header are refused. */
#include "st_write.h"
#include "ckpt/safetensors.h"

#include "ckpt_support.h"

#include <math.h>

static void write_raw(const char *path, const char *header, size_t pad_data)
{
    uint64_t n = strlen(header);
    static const char zero[4096];
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, n, f);
    fwrite(zero, 1, pad_data, f);
    assert_int_equal(fclose(f), 0);
}

static void written_tensors_read_back_unchanged(void **state)
{
    (void)state;
    char *dir = test_dir();
    float a[6] = {1, -2, 3.5f, 0x1p-149f, INFINITY, -0.0f};
    double b[2] = {0.1, -7};
    int64_t ids[1] = {-5};
    ls_st_tensor t[] = {
        {.name = "a", .dt = LS_F32, .n_dim = 2, .dim = {2, 3}, .data = a},
        {.name = "quo\"te\\d", .dt = LS_F64, .n_dim = 1, .dim = {2}, .data = b},
        {.name = "empty", .dt = LS_F32, .n_dim = 2, .dim = {0, 7}, .data = a},
        {.name = "scalar", .dt = LS_I64, .n_dim = 0, .data = ids},
    };
    const char *path = test_path(dir, "x.safetensors", NULL), *again = test_path(dir, "y.safetensors", NULL);
    assert_int_equal(test_st_write(path, t, 4), LS_OK);
    assert_int_equal(test_st_write(again, t, 4), LS_OK);

    char *x, *y;
    size_t nx, ny;
    assert_int_equal(ls_fs_read(path, &x, &nx), LS_OK);
    assert_int_equal(ls_fs_read(again, &y, &ny), LS_OK);
    assert_int_equal(nx, ny);
    assert_memory_equal(x, y, nx); /* equal arguments, equal bytes */
    uint64_t len;
    memcpy(&len, x, 8);
    assert_int_equal(len % 8, 0);

    ls_st_file f;
    assert_int_equal(ls_st_open(&f, path), LS_OK);
    assert_int_equal(f.n, 4);
    for (int i = 0; i < 4; i++) {
        const ls_st_tensor *r = ls_st_find(&f, t[i].name);
        assert_non_null(r);
        assert_int_equal(r->dt, t[i].dt);
        assert_int_equal(r->n_dim, t[i].n_dim);
        for (int d = 0; d < r->n_dim; d++) assert_int_equal(r->dim[d], t[i].dim[d]);
        if (r->nbytes) assert_memory_equal(r->data, t[i].data, r->nbytes);
    }
    assert_null(ls_st_find(&f, "b"));
    assert_string_equal(json_string_value(json_object_get(json_object_get(f.header, "__metadata__"), "format")), "pt");
    ls_st_close(&f);
    ls_st_close(&f);
    ls_free(x);
    ls_free(y);
    test_dir_close(dir);
}

static void a_wrong_header_is_refused_and_explained(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t ndata;
        const char *words;
    } bad[] = {
        {"[1]", 0, "begin with '{'"},
        {"{\"a\":1", 0, "line 1"},
        {"{\"a\":{},\"a\":{}}", 0, "duplicate"},
        {"{\"a\":5}", 0, "tensor a is not an object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "no pair of data_offsets"},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "F31"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "(none)"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "not a size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "not a size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "9 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, "overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,12]}}", 12, "8 bytes, but its offsets span 12"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "has offsets 8 to 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "has offsets -8 to 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "the file has 4 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "end at byte 8 of 9"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "hole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[4,8]}}",
         8, "overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[0,4]}}",
         4, "overlap"},
        {"{\"__metadata__\":{\"format\":1}}", 0, "is not a string"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}", 8, "line 1"},
    };
    char *dir = test_dir();
    int64_t live = ls_mem_live();
    for (size_t i = 0; i < N_OF(bad); i++) {
        ls_st_file f;
        char *path = ls_path_join(dir, "bad.safetensors");
        write_raw(path, bad[i].header, bad[i].ndata);
        assert_int_equal(ls_st_open(&f, path), LS_E_FORMAT);
        assert_words("bad.safetensors");
        assert_words(bad[i].words);
        ls_free(path);
        assert_int_equal(ls_mem_live(), live);
    }
    ls_st_file f;
    const uint64_t len[] = {UINT64_MAX, UINT64_MAX - 7, (uint64_t)INT64_MAX, LS_ST_MAX_HEADER + 1, 3};
    for (size_t i = 0; i < N_OF(len); i++) {
        unsigned char bytes[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        memcpy(bytes, &len[i], 8);
        assert_int_equal(ls_st_open_bytes(&f, bytes, sizeof bytes, "lie"), LS_E_FORMAT);
        assert_words("header length is");
    }
    assert_int_equal(ls_st_open_bytes(&f, "1234567", 7, "short"), LS_E_FORMAT);
    assert_words("it has only");
    assert_int_equal(ls_st_open_bytes(&f, "\0\0\0\0\0\0\0\0", 8, "zero"), LS_E_FORMAT);
    assert_int_equal(ls_st_open(&f, test_path(dir, "none", NULL)), LS_E_IO);
    assert_int_equal(ls_st_open(&f, dir), LS_E_IO);
    assert_int_equal(ls_mem_live(), live);
    test_dir_close(dir);
}

/* Valid files that we do not write ourselves: any order of tensors, trailing blanks, other types, and no tensors at all. */
static void unusual_but_valid_files_are_read(void **state)
{
    (void)state;
    char *dir = test_dir();
    const char *path = test_path(dir, "odd", NULL);
    ls_st_file f;
    write_raw(path,
              "{\"b\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[4,7]},\"e\":{\"dtype\":\"F32\",\"shape\":[0],"
              "\"data_offsets\":[4,4]},\"a\":{\"data_offsets\":[0,4],\"shape\":[],\"dtype\":\"F32\"}}      ",
              7);
    assert_int_equal(ls_st_open(&f, path), LS_OK);
    assert_int_equal(f.n, 3);
    assert_string_equal(f.tensor[0].name, "a");
    assert_string_equal(f.tensor[1].name, "e");
    assert_true(f.tensor[2].other_dtype);
    assert_false(ls_st_is_float(&f.tensor[2]));
    ls_st_close(&f);
    write_raw(path, "{}", 0);
    assert_int_equal(ls_st_open(&f, path), LS_OK);
    assert_int_equal(f.n, 0);
    ls_st_close(&f);
    test_dir_close(dir);
}

static double value16(unsigned h, int exp_bits, int mant_bits) /* a 16-bit float as IEEE 754 defines it */
{
    int e = (int)(h >> mant_bits) & ((1 << exp_bits) - 1), bias = (1 << (exp_bits - 1)) - 1;
    double m = (double)(h & ((1u << mant_bits) - 1)), x;
    if (e == (1 << exp_bits) - 1) x = m != 0 ? NAN : INFINITY;
    else if (e) x = ldexp(m + ldexp(1, mant_bits), e - bias - mant_bits);
    else x = ldexp(m, 1 - bias - mant_bits);
    return h & 0x8000u ? -x : x;
}

static void sixteen_bit_floats_convert_exactly(void **state)
{
    (void)state;
    enum { N = 65536 };
    uint16_t *bits = ls_alloc(N * 2 + 1);
    char *shifted = ls_alloc(N * 2 + 1); /* the file's data is not aligned */
    float *f = ls_alloc(N * sizeof *f);
    double *d = ls_alloc(N * sizeof *d);
    for (int i = 0; i < N; i++) bits[i] = (uint16_t)i;
    memcpy(shifted + 1, bits, N * 2);
    for (int bf = 0; bf < 2; bf++) {
        ls_st_tensor t = {.dt = bf ? LS_BF16 : LS_F16, .n_dim = 1, .dim = {N}, .data = shifted + 1, .nbytes = N * 2};
        ls_st_copy_part(&t, 0, ls_st_n(&t), 0, f, LS_F32);
        ls_st_copy_part(&t, 0, ls_st_n(&t), 0, d, LS_F64);
        for (unsigned i = 0; i < N; i++) {
            double want = value16(i, bf ? 8 : 5, bf ? 7 : 10);
            if (isnan(want)) {
                assert_true(isnan(f[i]) && isnan(d[i]));
            } else {
                assert_true((double)f[i] == want && d[i] == want && !signbit(f[i]) == !signbit(want));
            }
        }
    }
    double third = 1.0 / 3;
    ls_st_tensor t = {.dt = LS_F64, .n_dim = 0, .data = &third, .nbytes = 8};
    ls_st_copy_part(&t, 0, ls_st_n(&t), 0, f, LS_F32);
    assert_true(f[0] == (float)third);
    ls_free(bits);
    ls_free(shifted);
    ls_free(f);
    ls_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(written_tensors_read_back_unchanged),
                                       cmocka_unit_test(a_wrong_header_is_refused_and_explained),
                                       cmocka_unit_test(unusual_but_valid_files_are_read),
                                       cmocka_unit_test(sixteen_bit_floats_convert_exactly)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
