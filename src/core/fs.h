/* fs.h - files: whole reads, atomic writes, folders.
 *
 * Nothing half-written is left looking whole: a file is written under a temporary name in the same folder, synced and
 * renamed. A link is followed first, and stays; a pipe or a device takes the bytes itself, and is never replaced. Every failure
 * names the path and the reason. */
#ifndef LS_CORE_FS_H
#define LS_CORE_FS_H

#include "core/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- names inside folders that a stranger may have made (core/fs_open.c) ----
 * From now on no name below this folder is reached through a link, by none of the functions of this header but those that only look
 * (exists, is_dir, is_file, size). The folder itself may be a link. LS_E_NOMEM. */
ls_status ls_fs_no_links(const char *path);
/* open(2) with O_CLOEXEC and mode 0666, mkdir, unlink or rmdir, and renameat2 that respect it. -1 with errno; ELOOP for a link. */
int ls_fs_open(const char *path, int flags);
int ls_fs_mkdir(const char *path);
int ls_fs_unlink(const char *path, bool folder);
int ls_fs_move(const char *from, const char *to, unsigned flags);
const char *ls_fs_why(
    int error); /* strerror, or which name of the path that this thread tried last is a link, and what to do */

bool ls_fs_exists(const char *path);
bool ls_fs_is_dir(const char *path);
bool ls_fs_is_file(const char *path); /* a regular file: not a folder, a pipe or a device */
ls_status ls_fs_size(const char *path, int64_t *nbytes);
ls_status ls_fs_mkdirs(const char *path); /* like mkdir -p */
/* Creates the first unused <dir>/<prefix><k>, k = 1, 2, ... */
ls_status ls_fs_mkdir_next(const char *dir, const char *prefix, char path[PATH_MAX]);

/* The whole file, NUL-terminated (the NUL is not counted); the caller frees with ls_free. A named pipe, a socket or a device is refused;
 * pipes that are open already (/dev/fd/N) are read. LS_E_IO, LS_E_NOMEM. */
ls_status ls_fs_read(const char *path, char **data, size_t *n);
/* The same; LS_E_FORMAT for more than `most` bytes. */
ls_status ls_fs_read_most(const char *path, size_t most, char **data, size_t *n);
#define LS_FS_TEXT_MOST ((size_t)256 << 20) /* JSON and other files of settings */
/* Opens a file for reading, refuses as ls_fs_read does; -1 with *st. */
struct stat;
int ls_fs_open_input(const char *path, struct stat *s, ls_status *st);

/* Atomic write of a whole file: <path>.tmp, fsync, rename, fsync of the folder. Makes the parent folder. */
ls_status ls_fs_write(const char *path, const void *data, size_t n);

/* A new empty file for reading and writing in place of what has this name; a link is replaced, never followed. -1 with errno. */
int ls_fs_open_new(const char *path);
/* A file of lines to append to, made if it is missing. Where a crash or a full disk cut its last line, that line is ended, so that it does not
 * take the next one with it. -1 with errno. */
int ls_fs_open_lines(const char *path);

/* The same in pieces. Open, append, then commit or abort; abort takes a closed file and removes the temporary one. */
typedef struct ls_fs_out {
    int fd;
    char *path;     /* as given                                              */
    char *file;     /* what is written, links resolved                      */
    char *tmp;      /* what is renamed to file; NULL: file takes the bytes itself */
    int64_t nbytes; /* appended so far */
} ls_fs_out;
ls_status ls_fs_out_open(ls_fs_out *o, const char *path);
ls_status ls_fs_out_append(ls_fs_out *o, const void *data, size_t n);
ls_status ls_fs_out_commit(ls_fs_out *o);
void ls_fs_out_abort(ls_fs_out *o);

/* Read-only map of a whole file. An empty file maps to data == "" and n == 0. */
typedef struct ls_fs_map {
    const void *data;
    size_t n;
} ls_fs_map;
ls_status ls_fs_map_open(ls_fs_map *m, const char *path);
void ls_fs_map_close(ls_fs_map *m);

/* Writes all bytes at the position of an open file; the path is for the message. */
ls_status ls_fs_append(int fd, const char *path, const void *data, size_t n);
int ls_fs_fsync(int fd, const char *path); /* fsync(2); the path is for faults that are injected */
/* Set by core/inject, else NULL: called before a file is written, synced, or opened to be read as a whole; the errno with which it fails, or 0. */
typedef enum ls_fs_access { LS_FS_WRITE, LS_FS_SYNC, LS_FS_READ } ls_fs_access;
extern int (*ls_fs_fault)(const char *path, ls_fs_access how);
ls_status ls_fs_sync_dir(const char *path);
ls_status ls_fs_rename(const char *from, const char *to); /* then syncs the folder of `to` */
ls_status ls_fs_remove_tree(const char *path);            /* a missing one is fine */
/* Copies a file or a folder with everything in it (links as links) to `to`, which is replaced when the copy is complete. */
ls_status ls_fs_copy_tree(const char *from, const char *to);

/* Names in a folder, sorted bytewise, without . and ..; free with ls_fs_list_free. */
ls_status ls_fs_list(const char *path, char ***names, size_t *n);
void ls_fs_list_free(char **names, size_t n);

/* dir/<name>, where the name is formatted. LS_E_IO when the path is longer than the system allows. */
ls_status ls_path_in(char path[PATH_MAX], const char *dir, const char *name, ...) __attribute__((format(printf, 3, 4)));
/* dir/name as a value, for one call: ls_fs_exists(ls_path_of(dir, name).text). A path that is longer than the system allows is "", which no
 * call can open. */
typedef struct ls_path {
    char text[4096];
} ls_path;
ls_path ls_path_of(const char *dir, const char *name);
char *ls_path_join(const char *dir, const char *name); /* ls_free; NULL when out of memory */
const char *ls_path_base(const char *path);            /* points into path */

#endif
