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

typedef struct files { /* of a version of control groups */
    const char *root, *max, *used, *stat, *droppable;
} files;

static const files version2 = {"", "memory.max", "memory.current", "memory.stat", "inactive_file "},
                   version1 = {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat",
                               "total_inactive_file "};

/* A group of version 1 without a limit has the largest number of pages. */
static bool is_limit(int64_t max)
{
    return max >= 0 && max < INT64_MAX / 2;
}

/* The group `path` ("/a/b") and those above it. In a container, path may be that of the host: only the root is then there, and it is ours. */
static void least_of(const files *f, const char *root, const char *path, int64_t *least, int64_t *left)
{
    char dir[PATH_MAX];
    if (snprintf(dir, sizeof dir, "%s%s%s", root, f->root, path) >= (int)sizeof dir) return;
    for (const size_t end = strlen(root) + strlen(f->root);;) {
        const int64_t max = number_in(dir, f->max, ""), used = number_in(dir, f->used, "");
        if (is_limit(max) && (*least < 0 || max < *least)) *least = max;
        if (is_limit(max) && used >= 0) {
            const int64_t dropped = number_in(dir, f->stat, f->droppable);
            const int64_t taken = dropped > 0 && dropped < used ? used - dropped : used;
            const int64_t rest = max > taken ? max - taken : 0;
            if (*left < 0 || rest < *left) *left = rest;
        }
        char *slash = strrchr(dir + end, '/');
        if (!slash) return;
        *slash = 0;
    }
}

/* The path in a line of /proc/self/cgroup, "4:cpu,memory:/a/b", if the list has this controller ("" is that of version 2); else NULL. */
static const char *path_in(const char *line, const char *controller)
{
    const char *list = strchr(line, ':'), *end = list ? strchr(list + 1, ':') : NULL;
    const size_t n = strlen(controller);
    if (!end || end[1] != '/') return NULL;
    for (const char *p = list + 1;; p++) {
        const size_t word = strcspn(p, ",:");
        if (word == n && !strncmp(p, controller, n)) return end + 1;
        p += word;
        if (p >= end) return NULL;
    }
}

int64_t ls_memory_limit_of(const char *root, const char *groups, int64_t *left)
{
    char line[PATH_MAX], two[PATH_MAX] = "", one[PATH_MAX] = "";
    int64_t least = -1;
    *left = -1;
    FILE *f = fopen(groups, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        const char *path2 = path_in(line, ""), *path1 = path_in(line, "memory");
        if (path2) snprintf(two, sizeof two, "%s", path2);
        if (path1) snprintf(one, sizeof one, "%s", path1);
    }
    if (f) fclose(f);
    least_of(&version2, root, two, &least, left);
    least_of(&version1, root, one, &least, left);
    return least;
}

int64_t ls_memory_limit(int64_t *left)
{
    return ls_memory_limit_of("/sys/fs/cgroup", "/proc/self/cgroup", left);
}
