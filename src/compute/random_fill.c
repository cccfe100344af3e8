#include "compute/random_fill.h"

#include "core/mem.h"
#include "core/rng.h"

ls_status ls_random_block(ls_compute *c, int64_t n, void **out)
{
    const size_t nbytes = (size_t)n * sizeof(float);
    float *host = ls_alloc(nbytes);
    if (!host) return ls_nomem(nbytes, "random numbers");
    for (int64_t i = 0; i < n; i++) host[i] = (float)ls_rng_normal(1, (uint64_t)i);
    ls_status st = c->device->alloc(c->device->ctx, nbytes, out);
    if (st == LS_OK) st = ls_compute_write(c, *out, host, nbytes);
    ls_free(host);
    return st;
}

ls_status ls_random_buffer(ls_compute *c, const void *block, int64_t n_block, int64_t n, void **out)
{
    LS_TRY(c->device->alloc(c->device->ctx, (size_t)n * ls_dtype_nbytes(c->ops->dtype), out));
    for (int64_t at = 0; at < n; at += n_block)
        LS_TRY(c->ops->narrow(c, ls_at(c, *out, at), block, n - at < n_block ? n - at : n_block, NULL, NULL));
    return LS_OK;
}
