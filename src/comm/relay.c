#include "comm/relay_impl.h"

#include "core/progress.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define KEPT (64 << 10) /* bytes of lines that are also passed on, of which the last ones count */

/* A whole line, above the status line of this process or as its new content. */
static void put_line(relay *r, const char *data, size_t n)
{
    char line[sizeof r->line + 1];
    memcpy(line, r->line, r->n_line);
    memcpy(line + r->n_line, data, n);
    line[r->n_line + n] = '\0';
    if (!ls_progress_take(line, r->n_line + n)) ls_progress_print(r->to, LS_COLOUR_NONE, line);
    r->n_line = 0;
}

/* Whether the line that ends with `data` begins with the mark, and is kept. */
static bool note_marked(relay *r, const char *data, size_t n)
{
    char line[sizeof r->line];
    const size_t k = r->mark ? strlen(r->mark) : 0;
    if (!k || r->n_line + n < k || r->n_line + n > sizeof line) return false;
    memcpy(line, r->line, r->n_line);
    memcpy(line + r->n_line, data, n);
    if (memcmp(line, r->mark, k)) return false;
    if (r->shows_marked && r->noted.len > KEPT) ls_str_fini(&r->noted);
    ls_str_addn(&r->noted, line + k, r->n_line + n - k);
    return true;
}

/* Passes on what is kept of the line, and n bytes more. Between the first part of a long line and its end no status line is drawn. */
static void put(relay *r, const char *data, size_t n, bool ends)
{
    if (ends && !r->midway && note_marked(r, data, n) && !r->shows_marked) {
        r->n_line = 0;
        return;
    }
    if (ls_progress_live() && !r->prefix[0] && !r->midway && ends && r->n_line + n <= sizeof r->line) {
        put_line(r, data, n);
        return;
    }
    if (!r->midway) ls_progress_pause();
    if (!r->midway && (n || r->n_line || ends)) fputs(r->prefix, r->to);
    fwrite(r->line, 1, r->n_line, r->to);
    fwrite(data, 1, n, r->to);
    r->n_line = 0;
    r->midway = !ends;
    if (!ends) return;
    if (ls_progress_live()) fflush(r->to);
    ls_progress_resume();
}

static void pass_on(relay *r, const char *data, size_t n)
{
    while (n) {
        const char *end = memchr(data, '\n', n);
        const size_t k = end ? (size_t)(end - data) + 1 : n;
        if (end) put(r, data, k, true);
        else if (r->midway || r->n_line + k > sizeof r->line) put(r, data, k, false); /* longer than any line of ours */
        else {
            memcpy(r->line + r->n_line, data, k);
            r->n_line += k;
        }
        data += k;
        n -= k;
    }
    fflush(r->to);
}

void relay_end(relay *r)
{
    if (r->n_line) put(r, "", 0, false);
    if (r->midway) {
        if (r->prefix[0] || r->closes || ls_progress_live()) fputc('\n', r->to);
        fflush(r->to);
        ls_progress_resume();
    }
    r->midway = false;
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
}

bool relay_read(relay *r, char *buf, size_t room, size_t *got)
{
    const ssize_t k = read(r->fd, buf, room);
    *got = 0;
    if (k < 0 && (errno == EINTR || errno == EAGAIN)) return false;
    if (k <= 0) {
        relay_end(r);
        return false;
    }
    *got = (size_t)k;
    pass_on(r, buf, *got);
    return true;
}
