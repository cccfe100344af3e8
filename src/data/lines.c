#include "data/lines.h"
#include "data/unicode.h"
#include "core/fs.h"
#include "core/mem.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_BYTES ((size_t)64 << 10)

ls_status ls_lines_open(ls_lines *l, const char *path)
{
    const bool standard = !strcmp(path, "-");
    struct stat s;
    ls_status st = LS_OK;
    *l = (ls_lines){.path = standard ? "standard input" : path};
    const int fd = standard || !strncmp(path, "/dev/fd/", 8) ? -1 : ls_fs_open_input(path, &s, &st);
    LS_TRY(st); /* a named pipe or a device */
    if (fd >= 0) close(fd);
    return ls_byte_stream_open(path, -1, &l->source);
}

void ls_lines_close(ls_lines *l)
{
    ls_byte_stream_close(&l->source);
    ls_free(l->buf);
    *l = (ls_lines){0};
}

/* Reads more bytes after buf[at, n), which moves to the start of the buffer. */
static ls_status read_more(ls_lines *l)
{
    const size_t kept = l->n - l->at;
    size_t k = 0;
    if (kept >= LS_LINE_MAX)
        return ls_fail(LS_E_FORMAT, "%s: line %lld is longer than %zu MiB", l->path, (long long)l->line + 1,
                       LS_LINE_MAX >> 20);
    if (l->at) memmove(l->buf, l->buf + l->at, kept);
    l->at = 0;
    l->n = kept;
    LS_TRY(ls_reserve(&l->buf, &l->cap, kept < FIRST_BYTES ? 2 * FIRST_BYTES : 2 * kept, 1, "a line of text"));
    LS_TRY(ls_byte_stream_read(l->source, l->buf + l->n, l->cap - l->n, &k));
    l->n += k;
    l->eof = k == 0;
    return LS_OK;
}

ls_status ls_lines_next(ls_lines *l, ls_substr *line, bool *end)
{
    size_t from = 0; /* bytes that were searched */
    const unsigned char *nl = NULL;
    for (;;) {
        if (l->n > l->at + from) nl = memchr(l->buf + l->at + from, '\n', l->n - l->at - from);
        if (nl || l->eof) break;
        from = l->n - l->at;
        LS_TRY(read_more(l));
    }
    *end = !nl && l->at == l->n;
    if (*end) return LS_OK;
    const unsigned char *p = l->buf + l->at;
    size_t n = nl ? (size_t)(nl - p) : l->n - l->at;
    l->at += n + (nl != NULL);
    if (n && p[n - 1] == '\r') n--;
    if (!l->line++ && !l->keep_mark && n >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) p += 3, n -= 3;
    const size_t bad = data_utf8_check(p, n);
    if (bad < n)
        return ls_fail(LS_E_FORMAT, "%s: line %lld: byte %zu (0x%02x) is not UTF-8", l->path, (long long)l->line,
                       bad + 1, p[bad]);
    *line = (ls_substr){(const char *)p, n};
    return LS_OK;
}
