/* ckpt_support.h - a small model with random weights and a function that damages files, for the checkpoint tests. */
#ifndef LS_TESTS_CKPT_SUPPORT_H
#define LS_TESTS_CKPT_SUPPORT_H

#include "core/mem.h"
#include "core/rng.h"
#include "model/model.h"

#include "assert_text.h"
#include "test_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct test_model {
    ls_compute compute;
    ls_model *m;
} test_model;

static inline ls_model_config test_config(ls_variant variant)
{
    ls_model_config c;
    assert_int_equal(ls_model_config_preset("tiny", &c), LS_OK);
    ls_model_config_set_variant(&c, variant);
    c.n_layer = 2;
    c.n_head = 2;
    c.n_embd = 12;
    c.n_ctx = 10;
    c.vocab_size = 33;
    c.eos_id = 32;
    return c;
}

static inline void test_fill(const ls_model *m, void *base, int64_t n, uint64_t key)
{
    for (int64_t i = 0; i < n; i++) {
        double x = ls_rng_normal(key, (uint64_t)i);
        if (m->compute->ops->dtype == LS_F64) ((double *)base)[i] = x;
        else ((float *)base)[i] = (float)x;
    }
}

/* Buffers are padded to 16 elements, so that padding exists. Parameters and moments depend on seed; 0 leaves them zero. */
static inline void test_model_open(test_model *t, ls_model_config cfg, ls_dtype dt, uint64_t seed)
{
    assert_int_equal(ls_compute_open(&t->compute, "cpu-ref", &(ls_compute_open_opts){.dtype = dt}, 1), LS_OK);
    assert_int_equal(ls_model_create(&t->m, &cfg, &t->compute, 16), LS_OK);
    for (int u = 0; u < t->m->n_unit; u++) {
        ls_unit *x = &t->m->unit[u];
        void **slot[3] = {&x->param, &x->m, &x->v};
        for (int k = 0; k < 3; k++) {
            *slot[k] = ls_alloc((size_t)x->n_pad * ls_dtype_nbytes(dt));
            assert_non_null(*slot[k]);
            if (seed) test_fill(t->m, *slot[k], x->n, ls_rng_key(seed, LS_RNG_TEST, (uint64_t)u, (uint64_t)k));
        }
    }
}

static inline void test_model_close(test_model *t)
{
    for (int u = 0; t->m && u < t->m->n_unit; u++) {
        ls_free(t->m->unit[u].param);
        ls_free(t->m->unit[u].m);
        ls_free(t->m->unit[u].v);
    }
    ls_model_destroy(&t->m);
}

/* Byte-equal parameters (and moments). */
static inline int test_same(const ls_model *a, const ls_model *b, int moments)
{
    size_t e = ls_dtype_nbytes(a->compute->ops->dtype);
    for (int u = 0; u < a->n_unit; u++) {
        const ls_unit *x = &a->unit[u], *y = &b->unit[u];
        if (x->n != y->n || memcmp(x->param, y->param, (size_t)x->n * e)) return 0;
        if (moments && (memcmp(x->m, y->m, (size_t)x->n * e) || memcmp(x->v, y->v, (size_t)x->n * e))) return 0;
    }
    return 1;
}

static inline void test_flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_true(c >= 0);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(c ^ 0x10, f), c ^ 0x10);
    assert_int_equal(fclose(f), 0);
}

#endif
