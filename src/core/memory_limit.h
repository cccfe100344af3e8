/* memory_limit.h - the memory that a container or a batch job leaves to this process. */
#ifndef LS_CORE_MEMORY_LIMIT_H
#define LS_CORE_MEMORY_LIMIT_H

#include <stdint.h>

/* The smallest memory.max of this process's control group and those above it (version 2), and what is left: the pages of files that can be
 * dropped count as left. -1: no limit. */
int64_t ls_memory_limit(int64_t *left);
/* The same for the group `path` ("/a/b") below the folder `root`. */
int64_t ls_memory_limit_of(const char *root, const char *path, int64_t *left);

#endif
