/* st_write.h - writes a safetensors file in one call, for tests that need one. */
#ifndef TESTS_SUPPORT_ST_WRITE_H
#define TESTS_SUPPORT_ST_WRITE_H

#include "ckpt/safetensors.h"
#include "core/mem.h"

/* Writes the tensors in the given order. Equal arguments give equal bytes. */
static inline ls_status test_st_write(const char *path, const ls_st_tensor *t, int64_t n, ls_sum *sum)
{
    ls_str h = {0};
    ls_sum_out *o = NULL;
    int64_t nbytes = 0;
    ls_status st = LS_OK;
    ls_st_header(t, n, &h, &nbytes);
    if (h.failed) {
        st = ls_nomem((size_t)n * 128, "the header of a safetensors file");
        goto done;
    }
    LS_TRY_GOTO(st, done, ls_sum_open(&o, path, nbytes));
    LS_TRY_GOTO(st, done, ls_sum_add(o, h.data, h.len));
    for (int64_t i = 0; i < n; i++)
        LS_TRY_GOTO(st, done, ls_sum_add(o, t[i].data, (size_t)ls_st_n(&t[i]) * ls_dtype_nbytes(t[i].dt)));
    LS_TRY_GOTO(st, done, ls_sum_commit(&o, sum));
done:
    ls_sum_abort(&o);
    ls_str_fini(&h);
    return st;
}

#endif
