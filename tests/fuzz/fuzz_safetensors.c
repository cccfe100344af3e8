/* Any bytes as a safetensors file: refused with a message, or every tensor is inside the data and can be read. */
#include "fuzz.h"
#include "core/mem.h"
#include "ckpt/safetensors.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ls_st_file f;
    int64_t live = ls_mem_live();
    if (ls_st_open_bytes(&f, data, n, "input") == LS_OK) {
        size_t covered = 0;
        for (int64_t i = 0; i < f.n; i++) {
            const ls_st_tensor *t = &f.tensor[i];
            const uint8_t *p = t->data;
            must(p >= data + f.data_at && p <= data + n && t->nbytes <= (size_t)(data + n - p));
            covered += t->nbytes;
            must(ls_st_n(t) >= 0 && (t->other_dtype || (size_t)ls_st_n(t) * ls_dtype_nbytes(t->dt) == t->nbytes));
            must(ls_st_find(&f, t->name) == t);
            char shape[96];
            must(strlen(ls_st_shape(t, shape)) < sizeof shape);
            double *copy = ls_alloc((size_t)(t->nbytes ? t->nbytes : 1) * sizeof *copy);
            if (copy && ls_st_is_float(t)) {
                ls_st_copy_part(t, 0, ls_st_n(t), 0, copy, LS_F64);
                ls_st_copy_part(t, 0, ls_st_n(t), 0, copy, LS_F32);
            }
            ls_free(copy);
        }
        must(covered == n - f.data_at);
        ls_st_close(&f);
    } else {
        must(ls_err_words()[0] != '\0');
    }
    must(ls_mem_live() == live);
    return 0;
}
