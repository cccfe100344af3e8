#include "data/spill.h"
#include "core/fs.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef struct record {
    ls_text_block block; /* as it is in memory: the same process reads it */
    size_t n_token, n_doc, n_text;
    int64_t n_text_byte;
} record;

ls_status data_spill_open(data_spill *s, const char *dir)
{
    LS_TRY(ls_path_in(s->path, dir, DATA_SPILL_NAME));
    s->fd = ls_fs_open_new(s->path);
    if (s->fd < 0) return ls_fail(LS_E_IO, "cannot write %s: %s", s->path, strerror(errno));
    s->open = true;
    s->read_at = 0;
    unlink(s->path);
    return LS_OK;
}

void data_spill_close(data_spill *s)
{
    if (s->open) close(s->fd);
    s->open = false;
}

ls_status data_spill_add(const data_spill *s, const data_job *j, bool with_text)
{
    const record r = {j->block, j->n_token, j->n_doc, with_text ? j->block.n : 0, j->n_text_byte};
    LS_TRY(ls_fs_append(s->fd, s->path, &r, sizeof r));
    LS_TRY(ls_fs_append(s->fd, s->path, j->token, r.n_token * sizeof *j->token));
    LS_TRY(ls_fs_append(s->fd, s->path, j->doc, r.n_doc * sizeof *j->doc));
    return ls_fs_append(s->fd, s->path, j->block.text, r.n_text);
}

static ls_status get(data_spill *s, void *to, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t k = pread(s->fd, (char *)to + at, n - at, (off_t)s->read_at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return ls_fail(LS_E_IO, "cannot read %s: %s", s->path, k < 0 ? strerror(errno) : "it ends too early");
        at += (size_t)k;
        s->read_at += k;
    }
    return LS_OK;
}

ls_status data_spill_next(data_spill *s, data_job *j)
{
    record r;
    LS_TRY(get(s, &r, sizeof r));
    LS_TRY(ls_reserve(&j->token, &j->cap_token, r.n_token, sizeof *j->token, "the tokens of a block"));
    LS_TRY(ls_reserve(&j->doc, &j->cap_doc, r.n_doc, sizeof *j->doc, "the documents of a block"));
    LS_TRY(ls_reserve(&j->block.text, &j->block.cap, r.n_text, 1, "a block of text"));
    LS_TRY(get(s, j->token, r.n_token * sizeof *j->token));
    LS_TRY(get(s, j->doc, r.n_doc * sizeof *j->doc));
    LS_TRY(get(s, j->block.text, r.n_text));
    r.block.text = j->block.text;
    r.block.cap = j->block.cap;
    j->block = r.block;
    j->n_token = r.n_token;
    j->n_doc = r.n_doc;
    j->n_text_byte = r.n_text_byte;
    return LS_OK;
}
