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

/* The same for tests in this process on the emulated device: its plugin is the one that is loaded, products are not timed, and the folder has the cache. */
static inline int token_files_make_emulated(char dir[256], const char *name)
{
    const char *build = getenv("LS_BUILD");
    char emu[512], cache[300];
    snprintf(emu, sizeof emu, "%s/emu", build ? build : "build");
    setenv("LS_PLUGIN_DIR", emu, 1);
    setenv("LS_GEMM_TUNE", "0", 1);
    if (token_files_make(dir, name)) return 1;
    snprintf(cache, sizeof cache, "%s/cache", dir);
    setenv("XDG_CACHE_HOME", cache, 1);
    return 0;
}

#endif
