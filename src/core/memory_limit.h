/* memory_limit.h - the memory that a container or a batch job leaves to this process. */
#ifndef LS_CORE_MEMORY_LIMIT_H
#define LS_CORE_MEMORY_LIMIT_H

#include <stdint.h>

/* The smallest limit of this process's control group and those above it, of versions 1 and 2, and what is left: the pages of files that can be
 * dropped count as left. -1: no limit. */
int64_t ls_memory_limit(int64_t *left);
/* The same for the groups in the file `groups` (as /proc/self/cgroup) below the folder `root` (as /sys/fs/cgroup). */
int64_t ls_memory_limit_of(const char *root, const char *groups, int64_t *left);

#endif
