#include "ckpt/safetensors.h"

#include "core/half.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian and we copy memory as it is");

/* All types of the format with whole bytes per element; a file may have tensors of any of them. */
static const struct {
    const char *word;
    unsigned nbytes;
    int dt; /* ls_dtype, or -1 */
} types[] = {
    {"F32", 4, LS_F32}, {"F16", 2, LS_F16}, {"BF16", 2, LS_BF16}, {"F64", 8, LS_F64}, {"I64", 8, LS_I64},
    {"I32", 4, LS_I32}, {"U16", 2, LS_U16}, {"U8", 1, LS_U8},     {"BOOL", 1, -1},    {"I8", 1, -1},
    {"I16", 2, -1},     {"U32", 4, -1},     {"U64", 8, -1},       {"F8_E4M3", 1, -1}, {"F8_E5M2", 1, -1},
    {"F8_E8M0", 1, -1}, {"C64", 8, -1},
};

int64_t ls_st_n(const ls_st_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dim; i++) n *= t->dim[i];
    return n;
}

bool ls_st_is_float(const ls_st_tensor *t)
{
    return !t->other_dtype && (t->dt == LS_F32 || t->dt == LS_F16 || t->dt == LS_BF16 || t->dt == LS_F64);
}

char *ls_st_shape(const ls_st_tensor *t, char buf[96])
{
    size_t at = 0;
    buf[at++] = '(';
    for (int i = 0; i < t->n_dim && at < 90; i++) {
        int k = snprintf(buf + at, 94 - at, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
        at = k < 0 || at + (size_t)k > 93 ? 93 : at + (size_t)k;
    }
    buf[at++] = ')';
    buf[at] = '\0';
    return buf;
}

static ls_status read_shape(ls_st_tensor *t, const json_t *shape, const char *what, size_t elem)
{
    if (!json_is_array(shape)) return ls_fail(LS_E_FORMAT, "%s: tensor %s has no shape", what, t->name);
    if (json_array_size(shape) > LS_ST_MAX_DIM)
        return ls_fail(LS_E_FORMAT, "%s: tensor %s has %zu dimensions; the limit is %d", what, t->name,
                       json_array_size(shape), LS_ST_MAX_DIM);
    t->n_dim = (int)json_array_size(shape);
    size_t nbytes = elem;
    for (int i = 0; i < t->n_dim; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return ls_fail(LS_E_FORMAT, "%s: tensor %s: dimension %d is not a size", what, t->name, i);
        t->dim[i] = json_integer_value(d);
        /* bounded by INT64_MAX, so that ls_st_n cannot overflow either */
        if (__builtin_mul_overflow(nbytes, (size_t)t->dim[i], &nbytes) || nbytes > INT64_MAX)
            return ls_fail(LS_E_FORMAT, "%s: the shape of tensor %s overflows", what, t->name);
    }
    t->nbytes = nbytes;
    return LS_OK;
}

static ls_status read_entry(ls_st_tensor *t, const char *name, const json_t *e, const char *what, const char *data,
                            size_t ndata)
{
    *t = (ls_st_tensor){.name = name};
    if (!json_is_object(e)) return ls_fail(LS_E_FORMAT, "%s: the entry of tensor %s is not an object", what, name);
    const char *word = json_string_value(json_object_get(e, "dtype"));
    size_t k = 0, n_types = sizeof types / sizeof *types;
    while (word && k < n_types && strcmp(types[k].word, word)) k++;
    if (!word || k == n_types)
        return ls_fail(LS_E_FORMAT, "%s: tensor %s has the unknown dtype %s", what, name, word ? word : "(none)");
    t->dt_word = types[k].word;
    t->other_dtype = types[k].dt < 0;
    t->dt = t->other_dtype ? LS_U8 : (ls_dtype)types[k].dt;
    LS_TRY(read_shape(t, json_object_get(e, "shape"), what, types[k].nbytes));
    const json_t *off = json_object_get(e, "data_offsets");
    const json_t *a = json_array_get(off, 0), *b = json_array_get(off, 1);
    if (json_array_size(off) != 2 || !json_is_integer(a) || !json_is_integer(b))
        return ls_fail(LS_E_FORMAT, "%s: tensor %s has no pair of data_offsets", what, name);
    int64_t from = json_integer_value(a), to = json_integer_value(b);
    if (from < 0 || to < from)
        return ls_fail(LS_E_FORMAT, "%s: tensor %s has offsets %lld to %lld, which are no range; the file is damaged",
                       what, name, (long long)from, (long long)to);
    if ((uint64_t)to > ndata)
        return ls_fail(
            LS_E_FORMAT,
            "%s: tensor %s has offsets %lld to %lld, but the file has %zu bytes of data; it may be truncated", what,
            name, (long long)from, (long long)to, ndata);
    if ((uint64_t)(to - from) != t->nbytes) {
        char shape[96];
        return ls_fail(LS_E_FORMAT, "%s: tensor %s is %s %s, %zu bytes, but its offsets span %lld; the file is damaged",
                       what, name, t->dt_word, ls_st_shape(t, shape), t->nbytes, (long long)(to - from));
    }
    t->data = data + from;
    return LS_OK;
}

static int by_place(const void *x, const void *y)
{
    const ls_st_tensor *a = x, *b = y;
    if (a->data != b->data) return (const char *)a->data < (const char *)b->data ? -1 : 1;
    if (a->nbytes != b->nbytes) return a->nbytes < b->nbytes ? -1 : 1; /* empty ones first */
    return strcmp(a->name, b->name);
}

static ls_status read_header(ls_st_file *f, const unsigned char *p, size_t n, const char *what)
{
    uint64_t len = 0;
    if (n < 8) return ls_fail(LS_E_FORMAT, "%s: not a safetensors file: it has only %zu bytes", what, n);
    memcpy(&len, p, 8);
    if (len > LS_ST_MAX_HEADER || len > n - 8)
        return ls_fail(
            LS_E_FORMAT,
            "%s: the header length is %llu, but only %zu bytes follow; the file is truncated or not safetensors", what,
            (unsigned long long)len, n - 8);
    if (!len || p[8] != '{')
        return ls_fail(LS_E_FORMAT, "%s: the header does not begin with '{': not a safetensors file", what);
    f->data_at = 8 + (size_t)len;
    LS_TRY(ls_json_parse((const char *)p + 8, (size_t)len, what, &f->header));
    if (!json_is_object(f->header)) return ls_fail(LS_E_FORMAT, "%s: the header is not a JSON object", what);

    const char *data = (const char *)p + f->data_at;
    size_t ndata = n - f->data_at, cap = json_object_size(f->header);
    f->tensor = ls_alloc((cap ? cap : 1) * sizeof *f->tensor);
    if (!f->tensor) return ls_nomem(cap * sizeof *f->tensor, "the tensor table of a safetensors file");
    const char *name;
    json_t *e;
    json_object_foreach(f->header, name, e)
    {
        if (strcmp(name, "__metadata__")) {
            LS_TRY(read_entry(&f->tensor[f->n], name, e, what, data, ndata));
            f->n++;
            continue;
        }
        const char *key;
        json_t *value;
        if (!json_is_object(e)) return ls_fail(LS_E_FORMAT, "%s: __metadata__ is not an object", what);
        json_object_foreach(e, key, value)
        {
            if (!json_is_string(value))
                return ls_fail(LS_E_FORMAT, "%s: __metadata__ \"%s\" is not a string", what, key);
        }
    }
    qsort(f->tensor, (size_t)f->n, sizeof *f->tensor, by_place);

    size_t at = 0;
    for (int64_t i = 0; i < f->n; i++) {
        const ls_st_tensor *t = &f->tensor[i];
        size_t from = (size_t)((const char *)t->data - data);
        if (from != at)
            return ls_fail(LS_E_FORMAT, "%s: tensor %s begins at byte %zu of the data, %s (%s)", what, t->name, from,
                           from < at ? "inside another tensor" : "after bytes that belong to no tensor",
                           from < at ? "overlap" : "hole");
        at += t->nbytes;
    }
    if (at != ndata)
        return ls_fail(LS_E_FORMAT, "%s: the tensors end at byte %zu of %zu bytes of data", what, at, ndata);
    return LS_OK;
}

ls_status ls_st_open_bytes(ls_st_file *f, const void *data, size_t n, const char *what)
{
    *f = (ls_st_file){.map = {"", 0}};
    f->path = ls_strdup(what);
    if (!f->path) return ls_nomem(strlen(what), "a path");
    ls_status st = read_header(f, data, n, what);
    if (st != LS_OK) ls_st_close(f);
    return st;
}

ls_status ls_st_open(ls_st_file *f, const char *path)
{
    ls_fs_map map;
    *f = (ls_st_file){.map = {"", 0}};
    LS_TRY(ls_fs_map_open(&map, path));
    ls_status st = ls_st_open_bytes(f, map.data, map.n, path);
    if (st != LS_OK) ls_fs_map_close(&map);
    else f->map = map;
    return st;
}

void ls_st_close(ls_st_file *f)
{
    ls_fs_map_close(&f->map);
    json_decref(f->header);
    ls_free(f->tensor);
    ls_free(f->path);
    *f = (ls_st_file){.map = {"", 0}};
}

const ls_st_tensor *ls_st_find(const ls_st_file *f, const char *name)
{
    for (int64_t i = 0; i < f->n; i++)
        if (!strcmp(f->tensor[i].name, name)) return &f->tensor[i];
    return NULL;
}

/* ---- conversion ---- */

static double load(const ls_st_tensor *t, int64_t i)
{
    const char *p = t->data;
    uint16_t h;
    float x;
    double d;
    switch (t->dt) {
    case LS_F64: memcpy(&d, p + 8 * i, 8); return d;
    case LS_F32: memcpy(&x, p + 4 * i, 4); return (double)x;
    case LS_F16: memcpy(&h, p + 2 * i, 2); return (double)ls_from_f16(h);
    default: /* LS_BF16 */ memcpy(&h, p + 2 * i, 2); return (double)ls_from_bf16(h);
    }
}

void ls_st_copy_part(const ls_st_tensor *t, int64_t first, int64_t n, double less, void *dst, ls_dtype dt)
{
    const size_t e = ls_dtype_nbytes(dt);
    if (t->dt == dt && less == 0) memcpy(dst, (const char *)t->data + (size_t)first * e, (size_t)n * e);
    else if (dt == LS_F64)
        for (int64_t i = 0; i < n; i++) ((double *)dst)[i] = load(t, first + i) - less;
    else if (dt == LS_F32)
        for (int64_t i = 0; i < n; i++) ((float *)dst)[i] = (float)(load(t, first + i) - less);
    else
        for (int64_t i = 0; i < n; i++) {
            const float x = (float)(load(t, first + i) - less);
            ((uint16_t *)dst)[i] = dt == LS_F16 ? ls_to_f16(x) : ls_to_bf16(x);
        }
}

void ls_st_copy_transposed(const ls_st_tensor *t, int64_t first, int64_t n, void *dst, ls_dtype dt)
{
    enum { AT_ONCE = 16 }; /* columns: a cache line of t */
    const int64_t rows = t->dim[0], columns = t->dim[1];
    const size_t e = ls_dtype_nbytes(dt);
    for (int64_t j = 0; j < n; j += AT_ONCE) {
        const int64_t k = n - j < AT_ONCE ? n - j : AT_ONCE;
        for (int64_t i = 0; i < rows; i++) {
            char line[AT_ONCE * sizeof(double)];
            ls_st_copy_part(t, i * columns + first + j, k, 0, line, dt);
            for (int64_t c = 0; c < k; c++)
                memcpy((char *)dst + (size_t)((j + c) * rows + i) * e, line + (size_t)c * e, e);
        }
    }
}

/* ---- writing ---- */

void ls_st_header(const ls_st_tensor *t, int64_t n, ls_str *out, int64_t *nbytes)
{
    ls_jsonw w;
    int64_t at = 0;
    ls_str_addn(out, "\0\0\0\0\0\0\0", 8); /* the length comes last */
    ls_jsonw_init(&w, out, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_open(&w, "__metadata__", '{');
    ls_jsonw_put_str(&w, "format", "pt");
    ls_jsonw_close(&w);
    for (int64_t i = 0; i < n; i++) {
        int64_t k = ls_st_n(&t[i]) * (int64_t)ls_dtype_nbytes(t[i].dt);
        ls_jsonw_put_open(&w, t[i].name, '{');
        ls_jsonw_put_str(&w, "dtype", ls_dtype_word(t[i].dt));
        ls_jsonw_put_open(&w, "shape", '[');
        for (int d = 0; d < t[i].n_dim; d++) ls_jsonw_int(&w, t[i].dim[d]);
        ls_jsonw_close(&w);
        ls_jsonw_put_open(&w, "data_offsets", '[');
        ls_jsonw_int(&w, at);
        ls_jsonw_int(&w, at + k);
        ls_jsonw_close(&w);
        ls_jsonw_close(&w);
        at += k;
    }
    ls_jsonw_close(&w);
    while (!out->failed && out->len % 8) ls_str_addc(out, ' ');
    if (out->failed) return;
    const uint64_t len = out->len - 8;
    memcpy(out->data, &len, 8);
    *nbytes = (int64_t)out->len + at;
}
