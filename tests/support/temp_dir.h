/* temp_dir.h - a new temporary folder for a test, in $TMPDIR or in /tmp. */
#ifndef TESTS_SUPPORT_TEMP_DIR_H
#define TESTS_SUPPORT_TEMP_DIR_H

#include <stdio.h>
#include <stdlib.h>

/* Creates the folder and writes its path, which contains `name`, to `dir`. 0 on success: the result can be that of a cmocka setup function. */
static inline int temp_dir_make(char *dir, size_t cap, const char *name)
{
    const char *tmp = getenv("TMPDIR");
    const int n = snprintf(dir, cap, "%s/lockstep-%s-XXXXXX", tmp && *tmp ? tmp : "/tmp", name);
    return n < 0 || (size_t)n >= cap || !mkdtemp(dir) ? -1 : 0;
}

#endif
