#include "comm/relay_impl.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static void put(relay *r, const char *data, size_t n, bool ends)
{
    if (!r->midway && (n || r->n_line || ends)) fputs(r->prefix, r->to);
    fwrite(r->line, 1, r->n_line, r->to);
    fwrite(data, 1, n, r->to);
    r->n_line = 0;
    r->midway = !ends;
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
    if (r->midway && r->prefix[0]) fputc('\n', r->to);
    r->midway = false;
    fflush(r->to);
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
