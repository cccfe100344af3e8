/* st_write.h - writes a safetensors file in one call, for tests that need one. */
#ifndef TESTS_SUPPORT_ST_WRITE_H
#define TESTS_SUPPORT_ST_WRITE_H

#include "ckpt/safetensors.h"
#include "core/mem.h"

/* Writes the tensors in the given order. Equal arguments give equal bytes. */
static inline ls_status test_st_write(const char *path, const ls_st_tensor *t, int64_t n)
{
    ls_str file = {0};
    int64_t nbytes = 0;
    ls_st_header(t, n, &file, &nbytes);
    for (int64_t i = 0; i < n; i++) ls_str_addn(&file, t[i].data, (size_t)ls_st_n(&t[i]) * ls_dtype_nbytes(t[i].dt));
    ls_status st = file.failed ? ls_nomem(nbytes, "a safetensors file") : ls_fs_write(path, file.data, file.len);
    ls_str_fini(&file);
    return st;
}

#endif
