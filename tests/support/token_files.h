/* token_files.h - a temporary folder with random token files for tests that train. */
#ifndef TESTS_SUPPORT_TOKEN_FILES_H
#define TESTS_SUPPORT_TOKEN_FILES_H

#include "core/fs.h"
#include "core/rng.h"

#include <stdio.h>
#include <stdlib.h>

/* Creates a folder `name`-XXXXXX with train.bin (6000 ids below 200) and val.bin (the first 700 of them). 0 on success. */
static inline int token_files_make(char dir[256], const char *name)
{
    enum { N = 6000, N_VAL = 700 };
    unsigned char bytes[2 * N];
    char path[300];
    snprintf(dir, 256, "%s/%s-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", name);
    if (!mkdtemp(dir)) return 1;
    for (int i = 0; i < N; i++) {
        bytes[2 * i] = (unsigned char)(ls_rng_u64(3, (uint64_t)i) % 200);
        bytes[2 * i + 1] = 0;
    }
    snprintf(path, sizeof path, "%s/train.bin", dir);
    if (ls_fs_write(path, bytes, sizeof bytes) != LS_OK) return 1;
    snprintf(path, sizeof path, "%s/val.bin", dir);
    return ls_fs_write(path, bytes, 2 * N_VAL) != LS_OK;
}

#endif
