/* memory_limit.c - reads control groups. */
#include "core/memory_limit.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number after `key` at the begin of a line of dir/name; -1: none. */
static int64_t number_in(const char *dir, const char *name, const char *key)
{
    char path[PATH_MAX], line[128];
    int64_t value = -1;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path) return -1;
    FILE *f = fopen(path, "r");
    while (f && value < 0 && fgets(line, sizeof line, f)) {
        const char *at = line + strlen(key);
        if (!strncmp(line, key, strlen(key)) && *at >= '0' && *at <= '9') value = strtoll(at, NULL, 10);
    }
    if (f) fclose(f);
    return value;
}

int64_t ls_memory_limit_of(const char *root, const char *path, int64_t *left)
{
    char dir[PATH_MAX];
    int64_t least = -1;
    *left = -1;
    if (snprintf(dir, sizeof dir, "%s%s", root, path) >= (int)sizeof dir) return -1;
    for (const size_t end = strlen(root);;) {
        const int64_t max = number_in(dir, "memory.max", ""), used = number_in(dir, "memory.current", "");
        if (max >= 0 && (least < 0 || max < least)) least = max;
        if (max >= 0 && used >= 0) {
            const int64_t files = number_in(dir, "memory.stat", "inactive_file ");
            const int64_t taken = files > 0 && files < used ? used - files : used;
            const int64_t rest = max > taken ? max - taken : 0;
            if (*left < 0 || rest < *left) *left = rest;
        }
        char *slash = strrchr(dir + end, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

int64_t ls_memory_limit(int64_t *left)
{
    char line[PATH_MAX] = "", *path = NULL;
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f && !path && fgets(line, sizeof line, f))
        if (!strncmp(line, "0::/", 4)) path = line + 3;
    if (f) fclose(f);
    if (path) path[strcspn(path, "\n")] = 0;
    return ls_memory_limit_of("/sys/fs/cgroup", path ? path : "", left);
}
