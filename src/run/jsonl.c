#include "run/jsonl.h"

#include "core/fs.h"
#include "core/mem.h"
#include "core/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void forget_row(ls_jsonl *l)
{
    json_decref(l->row);
    l->row = NULL;
}

/* The line in [begin, end), whose row was forgotten; false: it is empty. */
static bool read_line(ls_jsonl *l, size_t begin, size_t end)
{
    l->begin = begin;
    if (begin == end || (end - begin == 1 && l->text[begin] == '\r')) return false;
    l->row = json_loadb(l->text + begin, end - begin, 0, NULL);
    if (!json_is_object(l->row)) forget_row(l);
    return true;
}

ls_status ls_jsonl_open(ls_jsonl *l, const char *path, size_t most)
{
    *l = (ls_jsonl){0};
    LS_TRY(ls_fs_read_most(path, most, &l->own, &l->n));
    l->text = l->own;
    return LS_OK;
}

bool ls_jsonl_next(ls_jsonl *l)
{
    forget_row(l);
    while (l->at < l->n) {
        const size_t begin = l->at;
        const char *end = memchr(l->text + begin, '\n', l->n - begin);
        l->whole = end;
        if (!end && l->grows) return false;
        l->at = end ? (size_t)(end - l->text) + 1 : l->n;
        l->number++;
        if (read_line(l, begin, l->at - l->whole)) return true;
    }
    return false;
}

bool ls_jsonl_back(ls_jsonl *l)
{
    forget_row(l);
    while (l->at) {
        l->whole = l->text[l->at - 1] == '\n';
        const size_t end = l->at - l->whole;
        const char *before = memrchr(l->text, '\n', end);
        l->at = before ? (size_t)(before - l->text) + 1 : 0;
        if (read_line(l, l->at, end)) return true;
    }
    return false;
}

void ls_jsonl_fini(ls_jsonl *l)
{
    forget_row(l);
    ls_free(l->own);
    *l = (ls_jsonl){0};
}

ls_status ls_follow_look(ls_follow *f, const char *path, size_t most, ls_jsonl *l)
{
    struct stat s;
    *l = (ls_jsonl){.grows = true};
    const int fd = ls_fs_open(path, O_RDONLY | O_NONBLOCK);
    f->link = fd < 0 && errno == ELOOP;
    f->again = f->more = false;
    if (fd < 0) return LS_OK; /* not written yet */
    ls_status st = LS_OK;
    if (!fstat(fd, &s) && S_ISREG(s.st_mode)) {
        f->again = (f->inode && s.st_ino != f->inode) || s.st_size < f->at;
        if (f->again) f->at = 0;
        f->inode = s.st_ino;
        f->size = s.st_size;
        const size_t want = LS_MIN(most, (size_t)(s.st_size - f->at));
        l->text = l->own = want ? ls_alloc(want) : NULL;
        if (want && !l->own) st = ls_nomem(want, "a part of a file of lines");
        const ssize_t got = l->own ? pread(fd, l->own, want, f->at) : 0;
        l->n = got > 0 ? (size_t)got : 0;
        f->more = l->n == most;
        f->seen = f->at + (off_t)l->n;
    }
    close(fd);
    return st;
}

void ls_follow_end(ls_follow *f, ls_jsonl *l)
{
    if (f->more &&
        !l->at) { /* no end in `most` bytes: none of ours; it is passed over, so that reading comes to an end */
        l->at = l->n;
        f->n_long++;
    }
    f->at += (off_t)l->at;
    ls_jsonl_fini(l);
}
