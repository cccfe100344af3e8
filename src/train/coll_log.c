#include "train/coll_log.h"

#include "core/fs.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 2, TAG_ROOM = 64 };

ls_status ls_coll_log_open(ls_coll_log *l, const char *run_dir, ls_comm *comm, void (*line)(void *, const char *),
                           void *ctx)
{
    const size_t nbytes = (size_t)ls_comm_size(comm) * MOST * sizeof(double);
    ls_coll_log log = {
        .on = true, .fd = -1, .rank = ls_comm_rank(comm), .comm = comm, .line = line, .ctx = ctx, .room = NULL};
    log.room = ls_comm_alloc(comm, nbytes);
    if (!log.room) return ls_nomem(nbytes, "the log of collectives");
    char *dir = ls_path_join(run_dir, "rank_logs"), *path = ls_asprintf("%s/rank_logs/rank%d.log", run_dir, log.rank);
    ls_status st = dir && path ? ls_fs_mkdirs(dir) : ls_nomem(strlen(run_dir), "a path");
    if (st == LS_OK && (log.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) < 0)
        st = ls_fail(LS_E_IO, "cannot write %s: %s", path, strerror(errno));
    ls_free(dir);
    ls_free(path);
    LS_TRY(st);
    *l = log;
    return LS_OK;
}

void ls_coll_log_close(ls_coll_log *l)
{
    if (l->on && l->fd >= 0) close(l->fd);
    *l = (ls_coll_log){0};
}

static void put(ls_coll_log *l, const char *text)
{
    if (l->line) l->line(l->ctx, text);
    for (size_t at = 0, n = strlen(text); l->fd >= 0 && at < n;) {
        ssize_t k = write(l->fd, text + at, n - at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            ls_warn("train", "rank_logs/rank%d.log ends here: %s", l->rank, strerror(errno));
            close(l->fd);
            l->fd = -1;
            return;
        }
        at += (size_t)k;
    }
}

void ls_coll_log_say(ls_coll_log *l, const char *fmt, ...)
{
    char words[400], text[432];
    va_list ap;
    if (!l->on) return;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    snprintf(text, sizeof text, "[Rank %d] %s\n", l->rank, words);
    put(l, text);
}

static void tag_of(char tag[TAG_ROOM], int64_t epoch, const char *what)
{
    if (epoch) snprintf(tag, TAG_ROOM, "epoch_%lld_%s", (long long)epoch, what);
    else snprintf(tag, TAG_ROOM, "%s", what);
}

ls_status ls_coll_log_barrier(ls_coll_log *l, int64_t epoch, const char *what)
{
    char tag[TAG_ROOM];
    if (!l->on) return LS_OK;
    tag_of(tag, epoch, what);
    const long long seq = (long long)++l->seq;
    ls_coll_log_say(l, "COLL_ENTER seq=%lld op=barrier tag=%s", seq, tag);
    LS_TRY(ls_barrier(l->comm, LS_SITE));
    ls_coll_log_say(l, "COLL_EXIT  seq=%lld op=barrier tag=%s", seq, tag);
    return LS_OK;
}

ls_status ls_coll_log_reduce(ls_coll_log *l, int64_t epoch, const char *what, const double *value, int n)
{
    char tag[TAG_ROOM];
    double mine[MOST] = {0};
    if (!l->on) return LS_OK;
    LS_ASSERT(n > 0 && n <= MOST);
    memcpy(mine, value, (size_t)n * sizeof *mine);
    tag_of(tag, epoch, what);
    const long long seq = (long long)++l->seq;
    ls_coll_log_say(l, "COLL_ENTER seq=%lld op=all_reduce tag=%s dtype=float64 shape=(%d,)", seq, tag, n);
    /* a gather has what a sum and a largest need, and takes host memory under every communicator */
    const ls_view all = {l->room, (int64_t)ls_comm_size(l->comm) * n, LS_F64};
    LS_TRY(ls_all_gather(l->comm, all, (ls_view){mine, n, LS_F64}, LS_SITE, NULL));
    ls_coll_log_say(l, "COLL_EXIT  seq=%lld op=all_reduce tag=%s", seq, tag);
    return LS_OK;
}
