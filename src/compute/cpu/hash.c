/* hash.c - the hash of host memory: XXH3 of pieces, which the threads share, then XXH3 of their hashes. An array of one piece has its own
 * XXH3. The size of a piece is fixed, so the hash does not depend on the number of threads. */
#include "compute/cpu/cpu_impl.h"
#include "core/hash.h"
#include "core/minmax.h"

#include <stdatomic.h>

enum { PIECE = 256 << 10, GROUP = 256 }; /* bytes; pieces whose hashes are kept at a time */

static uint64_t of_pieces(int n_thread, const char *x, int64_t nbytes)
{
    uint64_t hash[GROUP];
    ls_xxh all;
    ls_xxh_init(&all);
    for (int64_t at = 0; at < nbytes; at += (int64_t)GROUP * PIECE) {
        const int64_t end = LS_MIN(nbytes, at + (int64_t)GROUP * PIECE), n = (end - at + PIECE - 1) / PIECE;
        atomic_int_fast64_t next = 0;
#pragma omp parallel num_threads(n_thread)
        for (int64_t i; (i = atomic_fetch_add(&next, 1)) < n;) {
            const int64_t from = at + i * PIECE;
            hash[i] = ls_xxh64(x + from, (size_t)LS_MIN((int64_t)PIECE, end - from));
        }
        ls_xxh_add(&all, hash, (size_t)n * sizeof *hash);
    }
    return ls_xxh_value(&all);
}

ls_status cpu_hash(const ls_compute *c, uint64_t *out, const void *x, size_t nbytes, bool more)
{
    const uint64_t h = nbytes > PIECE ? of_pieces(c->n_thread, x, (int64_t)nbytes) : ls_xxh64(x, nbytes);
    *out = more ? ls_xxh64((uint64_t[]){*out, h}, 2 * sizeof h) : h;
    return LS_OK;
}
