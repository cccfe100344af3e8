/* gemm_cache.h - which algorithm a product uses: a table by shape, and its file.
 *
 * The file is text, one line per shape: the numbers of the key, the fused operations, microseconds, and the eight
 * integers that describe an algorithm to the library. It is in the user's
 * cache folder ($LOCKSTEP_CACHE, or ${XDG_CACHE_HOME:-~/.cache}/lockstep) and is named after the GPU and the library's version, because
 * the integers are valid only for these. It is replaced as a whole while a lock file next to it is held; an invalid line is skipped.
 *
 * Rule: a choice is written only if the file, read again under the lock, has none for the shape; otherwise the file's choice is used. So
 * processes that share a folder share its choices: the first one written decides for all, and a later run decides as this one did. The
 * lock is held for reading and writing only, never while the GPU is waited for. Knows nothing of CUDA. */
#ifndef LS_CUDA_GEMM_CACHE_H
#define LS_CUDA_GEMM_CACHE_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct cu_gemm_key {
    int64_t M, N, K, lda, ldb, ldo;
    uint64_t flags; /* transposes, types, what is wanted, alignment: whatever else the choice may depend on */
} cu_gemm_key;

typedef struct cu_gemm_choice {
    uint64_t algo[8];   /* cublasLtMatmulAlgo_t                                       */
    uint64_t workspace; /* bytes                                                      */
    uint32_t fused;     /* what the library does itself                               */
    float usec;         /* measured; 0: taken as the library proposed it              */
    bool final;         /* no later call of this process chooses again (not in the file) */
} cu_gemm_choice;

typedef struct cu_gemm_cache cu_gemm_cache;

/* gpu: the device's name; version: the library's. kept false: no file, only the table. LS_E_NOMEM alone; a folder that cannot be written
 * is no failure: there is no file then (cu_gemm_cache_path is NULL). */
ls_status cu_gemm_cache_open(cu_gemm_cache **out, const char *gpu, uint64_t version, bool kept);
void cu_gemm_cache_close(cu_gemm_cache **c);
const char *cu_gemm_cache_path(const cu_gemm_cache *c);

/* Of this process; NULL: it has not met this shape. Good until the next put. */
const cu_gemm_choice *cu_gemm_cache_find(const cu_gemm_cache *c, const cu_gemm_key *key);
ls_status cu_gemm_cache_put(cu_gemm_cache *c, const cu_gemm_key *key, const cu_gemm_choice *choice);

/* Reads the file, and until unlock nobody else writes it. Without a file it does nothing. The lock is waited for up to `seconds`. */
ls_status cu_gemm_cache_lock(cu_gemm_cache *c, double seconds);
void cu_gemm_cache_unlock(cu_gemm_cache *c);
/* Of the file, between lock and unlock. */
const cu_gemm_choice *cu_gemm_cache_filed(const cu_gemm_cache *c, const cu_gemm_key *key);
/* Writes the file with this choice added or replaced; a file that cannot be written is given up. */
ls_status cu_gemm_cache_keep(cu_gemm_cache *c, const cu_gemm_key *key, const cu_gemm_choice *choice);

#endif
