/* checkpoint_hosts.c - the same checkpoint in the memory of every host.
 *
 *   save      each worker's parts  ── sum ──►  the folder of rank 0  ── broadcast ──►  a folder on every other host, verified
 *   publish   every host renames its folder ── agree ── every host removes the one before
 *   resume    the newest whole one of any host  ── broadcast ──►  hosts that do not have it
 *
 * Both directions move the files in pieces of 4 MiB, two at a time. The sum costs no table of who has what: every byte belongs to one worker, and
 * the others add 0. All decisions are made by communication: what one host finds in its memory says nothing about another one.
 *
 * Memory of a host: two checkpoints, 12 bytes per parameter each, and 8 MiB per worker. Between hosts a save moves the checkpoint twice. */
#include "ckpt/checkpoint_impl.h"

#include "core/deadline.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK ((int64_t)4 << 20) /* a multiple of CKPT_BLOCK */

enum { FILES = 16 }; /* of a checkpoint folder, at most */

/* ---- one pass over files ---- */

typedef struct pass pass;
struct pass {
    ls_comm *comm;
    char **buf; /* two */
    int root;
    bool sum; /* the pieces of all workers are added at the root; else that of the root goes to all */
    ls_status (*fill)(pass *p, int file, int64_t at, char *buf, int64_t n); /* NULL: with 0; called before each piece */
    ls_status (*store)(pass *p, int file, int64_t at, const char *buf, int64_t n); /* NULL: nothing is kept */
    void *ctx;
    ls_status st; /* the first failure of this worker: it goes on, because the others wait for it */
    ls_err_kept error;
};

static void note(pass *p, ls_status st)
{
    if (st == LS_OK || p->st != LS_OK) return;
    p->st = st;
    ls_err_keep(&p->error);
}

static ls_status move_piece(pass *p, char *buf, int64_t n, ls_ticket *t)
{
    const ls_view x = {buf, (n + 7) / 8, LS_I64};
    return p->sum ? ls_reduce(p->comm, x, p->root, LS_SITE, t) : ls_broadcast(p->comm, x, p->root, LS_SITE, t);
}

static ls_status move_file(pass *p, int file, int64_t nbytes)
{
    const int64_t n = (nbytes + CHUNK - 1) / CHUNK;
    ls_ticket ticket[2] = {0};
    for (int64_t k = 0; k <= n; k++) {
        const int64_t at = k * CHUNK, before = at - CHUNK;
        char *buf = p->buf[k % 2], *last = p->buf[(k + 1) % 2];
        if (k < n) {
            const int64_t len = nbytes - at < CHUNK ? nbytes - at : CHUNK;
            memset(buf, 0, (size_t)CHUNK);
            if (p->fill && p->st == LS_OK) note(p, p->fill(p, file, at, buf, len));
            LS_TRY(move_piece(p, buf, len, &ticket[k % 2]));
        }
        if (!k) continue;
        LS_TRY(ls_wait(p->comm, ticket[(k + 1) % 2]));
        if (p->store && p->st == LS_OK)
            note(p, p->store(p, file, before, last, nbytes - before < CHUNK ? nbytes - before : CHUNK));
        ls_deadline_tick();
    }
    return LS_OK;
}

/* The status of all workers. */
static ls_status end_pass(pass *p)
{
    if (p->st != LS_OK) ls_err_restore(&p->error);
    return ckpt_agree(p->comm, p->st, LS_SITE);
}

static ls_status take_buffers(ls_comm *comm, char *buf[2])
{
    buf[0] = ls_comm_alloc(comm, 2 * (size_t)CHUNK);
    if (!buf[0]) return ls_nomem(2 * (size_t)CHUNK, "pieces of a checkpoint");
    buf[1] = buf[0] + CHUNK;
    return LS_OK;
}

/* ---- from all workers to rank 0 ---- */

typedef struct collect {
    ckpt_save *save;
    int64_t *block; /* of the current file */
    ckpt_part piece;
    int next; /* the first span that may reach into the next piece */
    char *to;
    int64_t at;
} collect;

static ls_status room_in_piece(void *ctx, int64_t at, size_t *n, char **to)
{
    const collect *c = ctx;
    (void)n;
    *to = c->to + (at - c->at);
    return LS_OK;
}

/* The bytes of this worker in [at, at + n). */
static ls_status fill_part(pass *p, int file, int64_t at, char *buf, int64_t n)
{
    collect *c = p->ctx;
    const ckpt_part *part = &c->save->part[file];
    c->to = buf;
    c->at = at;
    c->piece.n = 0;
    for (int i = c->next; i < part->n && part->span[i].at < at + n; i++) {
        const ckpt_span *x = &part->span[i];
        const int64_t end = x->at + (int64_t)x->nbytes, from = x->at > at ? x->at : at,
                      to = end < at + n ? end : at + n;
        if (end <= at + n) c->next = i + 1;
        if (to <= from) continue;
        c->piece.span[c->piece.n++] = (ckpt_span){.at = from,
                                                  .nbytes = (size_t)(to - from),
                                                  .data = (const char *)x->data + (from - x->at),
                                                  .device = x->device};
    }
    return ckpt_stage_put(c->save->stage, &c->piece, room_in_piece, c);
}

static ls_status store_sum(pass *p, int file, int64_t at, const char *buf, int64_t n)
{
    const collect *c = p->ctx;
    const ckpt_file *f = &c->save->layout->file[file];
    ckpt_span whole = {.at = at, .nbytes = (size_t)n, .data = buf};
    ckpt_part part = {.span = &whole, .n = 1, .nbytes = n};
    return ckpt_part_write(&part, c->save->stage, ls_path_of(c->save->tmp, f->name).text, f->nbytes, false, c->block);
}

/* Rank 0's folder becomes complete. */
static ls_status collect_files(ckpt_hosts *h, ckpt_save *s)
{
    const bool first = ckpt_rank(s->comm) == 0;
    const int n_file = s->job.optimizer ? CKPT_N_FILE : 1;
    collect c = {.save = s, .block = s->block};
    pass p = {.comm = s->comm, .buf = h->buf, .sum = true, .fill = fill_part, .ctx = &c};
    if (first) p.store = store_sum;
    size_t most = 0;
    for (int f = 0; f < n_file; f++) most = (size_t)s->part[f].n > most ? (size_t)s->part[f].n : most;
    c.piece.span = ls_alloc((most + 1) * sizeof *c.piece.span);
    note(&p, c.piece.span ? LS_OK : ls_nomem(most * sizeof *c.piece.span, "the pieces of a checkpoint"));
    if (first && p.st == LS_OK) note(&p, ckpt_save_small(s));
    ls_status st = LS_OK;
    for (int f = 0; f < n_file && st == LS_OK; f++) {
        c.next = 0;
        st = move_file(&p, f, s->layout->file[f].nbytes);
        c.block += s->layout->file[f].n_block;
    }
    ls_free(c.piece.span);
    LS_TRY(st);
    if (first && p.st == LS_OK) note(&p, ckpt_save_sums(s));
    return end_pass(&p);
}

/* ---- from one worker to other hosts ---- */

typedef struct shared {
    struct {
        char name[56];
        int64_t nbytes;
    } file[FILES]; /* a small message */
    int64_t n;
} shared;

typedef struct share {
    shared table;
    const char *dir; /* the root reads from it, others write to it; NULL: this worker does neither */
    int fd[FILES];
} share;

static ls_status list_files(share *s)
{
    char **names;
    size_t n;
    LS_TRY(ls_fs_list(s->dir, &names, &n));
    ls_status st = n <= FILES ? LS_OK : ls_fail(LS_E_INTERNAL, "%s has %zu files", s->dir, n);
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        const ls_path path = ls_path_of(s->dir, names[i]);
        if (strlen(names[i]) >= sizeof s->table.file[i].name)
            st = ls_fail(LS_E_INTERNAL, "the name %s is too long", path.text);
        if (st == LS_OK) st = ls_fs_size(path.text, &s->table.file[i].nbytes);
        if (st != LS_OK) break;
        snprintf(s->table.file[i].name, sizeof s->table.file[i].name, "%s", names[i]);
        s->fd[i] = ls_fs_open(path.text, O_RDONLY | O_NOFOLLOW);
        s->table.n = (int64_t)i + 1;
        if (s->fd[i] < 0) st = ls_fail(LS_E_IO, "cannot read %s: %s", path.text, ls_fs_why(errno));
    }
    ls_fs_list_free(names, n);
    return st;
}

static ls_status create_files(share *s)
{
    for (int i = 0; i < s->table.n; i++) {
        const char *name = s->table.file[i].name;
        if (!ckpt_name_ok(name)) return ls_fail(LS_E_INTERNAL, "a file of a checkpoint is named %.50s", name);
        LS_TRY(ckpt_file_create(ls_path_of(s->dir, name).text, s->table.file[i].nbytes, &s->fd[i]));
    }
    return LS_OK;
}

static ls_status fill_file(pass *p, int file, int64_t at, char *buf, int64_t n)
{
    const share *s = p->ctx;
    for (int64_t done = 0; done < n;) {
        const ssize_t k = pread(s->fd[file], buf + done, (size_t)(n - done), (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return ls_fail(LS_E_IO, "cannot read %s/%s at byte %" PRId64 ": %s", s->dir, s->table.file[file].name,
                           at + done, k ? strerror(errno) : "it was truncated");
        done += k;
    }
    return LS_OK;
}

static ls_status store_file(pass *p, int file, int64_t at, const char *buf, int64_t n)
{
    const share *s = p->ctx;
    return ckpt_write_at(s->fd[file], ls_path_of(s->dir, s->table.file[file].name).text, buf, (size_t)n, at);
}

/* Copies the files of the folder `dir` of worker `root` to the folder `dir` of every other worker that gives one; they match their checksums.
 * Collective. */
static ls_status share_folder(ls_comm *comm, int root, const char *dir, char *buf[2])
{
    const bool reads = ckpt_rank(comm) == root, writes = dir && !reads;
    share s = {.dir = dir};
    pass p = {.comm = comm, .buf = buf, .root = root, .ctx = &s};
    for (int i = 0; i < FILES; i++) s.fd[i] = -1;
    if (reads) note(&p, list_files(&s));
    if (reads) p.fill = fill_file;
    if (writes) p.store = store_file;
    ls_status st = ls_broadcast(comm, (ls_view){&s.table, sizeof s.table, LS_U8}, root, LS_SITE, NULL);
    if (st == LS_OK && writes) note(&p, create_files(&s));
    if (st == LS_OK) st = end_pass(&p); /* all have room, or nothing is sent */
    for (int i = 0; st == LS_OK && i < s.table.n; i++) st = move_file(&p, i, s.table.file[i].nbytes);
    for (int i = 0; i < FILES; i++)
        if (s.fd[i] >= 0) close(s.fd[i]);
    LS_TRY(st);
    if (writes && p.st == LS_OK) note(&p, ckpt_sums_verify(dir, true, 0, 1));
    return end_pass(&p);
}

/* ---- save ---- */

static bool leads(const ls_comm *comm)
{
    return !comm || ls_comm_where(comm).local_rank == 0;
}

static ls_status prepare(ckpt_hosts *h, const ckpt_layout *l, ls_comm *comm, const ls_model *m)
{
    if (h->block) return LS_OK;
    const size_t nbytes = (size_t)ckpt_n_block(l, true) * sizeof *h->block;
    LS_TRY(take_buffers(comm, h->buf));
    LS_TRY(ckpt_stage_open(&h->stage, m->compute));
    h->block = ls_alloc(nbytes);
    return h->block ? LS_OK : ls_nomem(nbytes, "the checksums of checkpoints");
}

/* Removes what is left under the temporary name. */
static void drop(ckpt_hosts *h)
{
    if (!h->written) return;
    ckpt_save_drop(&h->save);
    if (*h->tmp) ckpt_remove_quietly(h->tmp);
    if (h->lock >= 0) close(h->lock);
    h->written = false;
}

void ckpt_hosts_fini(ckpt_hosts *h)
{
    drop(h);
    ckpt_stage_close(&h->stage);
    ls_free(h->block);
    *h = (ckpt_hosts){0};
}

/* Rank 0's folder is complete: the others get it. */
static ls_status spread(ckpt_hosts *h)
{
    const ckpt_save *s = &h->save;
    const bool here = leads(s->comm);
    ls_status st = LS_OK;
    if (ckpt_rank(s->comm) == 0) memcpy(h->tmp, s->tmp, PATH_MAX);
    else if (here) st = ckpt_tmp_open(s->job.dir, s->job.name, h->tmp, &h->lock);
    LS_TRY(ckpt_agree(s->comm, st, LS_SITE));
    return share_folder(s->comm, 0, here ? h->tmp : NULL, h->buf);
}

/* Drops what was not published, and keeps the message of a failure. */
static ls_status end(ckpt_hosts *h, ls_status st)
{
    const ls_ckpt_job *j = &h->save.job;
    ls_err_kept why;
    drop(h);
    ls_err_keep(&why);
    if (leads(h->save.comm) && ls_ckpt_clean(j->dir) != LS_OK)
        ls_warn("checkpoint", "cannot remove old files: %s", ls_err_words());
    ls_err_restore(&why);
    return st;
}

ls_status ckpt_hosts_write(ckpt_hosts *h, const ckpt_layout *l, ls_comm *comm, const ls_ckpt_job *job)
{
    LS_TRY(ckpt_agree(comm, prepare(h, l, comm, job->model), LS_SITE));
    h->save = (ckpt_save){.job = *job, .layout = l, .comm = comm, .block = h->block, .stage = &h->stage};
    h->tmp[0] = '\0';
    h->lock = -1;
    snprintf(h->name, sizeof h->name, "%s", job->name);
    h->save.job.name = h->name;
    if (!job->state_json) h->save.job.state_json = "{}";
    LS_TRY(ckpt_save_begin(&h->save, ckpt_stage_mark(&h->stage), true));
    h->written = true;
    ls_status st = collect_files(h, &h->save);
    if (st == LS_OK) st = spread(h);
    return st == LS_OK ? LS_OK : end(h, st);
}

ls_status ckpt_hosts_publish(ckpt_hosts *h)
{
    const ckpt_save *s = &h->save;
    const ls_ckpt_job *j = &s->job;
    const bool here = leads(s->comm);
    const ls_status st = ckpt_agree(s->comm, here ? ckpt_publish(j->dir, h->tmp, j->name) : LS_OK, LS_SITE);
    if (st == LS_OK && here) ckpt_prune(j->dir, j->name, j->step, j->keep_last, j->keep_hours);
    return end(h, st);
}

/* ---- resume ---- */

/* The step of the newest whole copy of this host, -1 without. One that cannot be read is none. */
static int64_t step_here(const ls_ckpt_memory *m)
{
    char *path = NULL;
    int64_t step = -1;
    ls_str skipped = {0};
    if (!m->leads || !m->here) return -1;
    ls_status st = ckpt_newest(m->dir, -1, true, &path, &skipped);
    if (st == LS_OK && path) st = ls_ckpt_state(path, NULL, &step);
    if (st != LS_OK) {
        ls_warn("checkpoint", "the copy in memory is not used: %s", ls_err_words());
        step = -1;
    }
    ckpt_warn_skipped("the copy in memory is not used", &skipped);
    ls_err_clear();
    ls_str_fini(&skipped);
    ls_free(path);
    return step;
}

/* The newest copy of any host: its step, -1 without, and the first worker that has it. */
static ls_status newest_copy(ls_comm *team, int64_t mine, int64_t *step, int *owner)
{
    const int64_t *all = &mine;
    *step = mine;
    *owner = 0;
    if (!team) return LS_OK;
    LS_TRY(ls_comm_gather(team, &mine, sizeof mine, LS_SITE, &all));
    *step = -1;
    for (int r = 0; r < ckpt_size(team); r++)
        if (all[r] > *step) *step = all[r], *owner = r;
    return LS_OK;
}

/* Hosts whose newest copy (mine) is not that of `step` get it. */
static ls_status complete_hosts(ls_comm *team, const char *run_dir, ls_ckpt_memory *m, int64_t mine, int64_t step,
                                int owner)
{
    char tmp[PATH_MAX] = "", name[32], *buf[2];
    int lock = -1, any = m->leads && mine != step;
    const bool lacks = any;
    snprintf(name, sizeof name, "step-%" PRId64, step);
    if (!team) return LS_OK;
    LS_TRY(ls_agree(team, any, LS_SITE, &any));
    if (!any) return LS_OK;
    const ls_path from = ls_path_of(m->dir, name);
    ls_status st = take_buffers(team, buf);
    if (st == LS_OK && lacks && !m->here) st = ckpt_memory_make(m, run_dir);
    if (st == LS_OK && lacks) st = ckpt_tmp_open(m->dir, name, tmp, &lock);
    st = ckpt_agree(team, st, LS_SITE);
    if (st == LS_OK) st = share_folder(team, owner, ckpt_rank(team) == owner ? from.text : lacks ? tmp : NULL, buf);
    if (st == LS_OK) st = ckpt_agree(team, lacks ? ckpt_publish(m->dir, tmp, name) : LS_OK, LS_SITE);
    if (st == LS_OK && lacks)
        ls_info("checkpoint", "%s was copied from the memory of the host of rank %d", from.text, owner);
    if (*tmp) ckpt_remove_quietly(tmp);
    if (lock >= 0) close(lock);
    m->here = m->here || st == LS_OK;
    return st;
}

/* Whether all workers can use the copy of `step`; what was wrong is a warning of rank 0. */
static ls_status use_copy(ls_comm *team, const char *run_dir, ls_ckpt_memory *m, int64_t mine, int64_t step, int owner,
                          char **path)
{
    char at[PATH_MAX];
    LS_TRY(ls_path_in(at, m->dir, "step-%" PRId64, step));
    const ls_status st = complete_hosts(team, run_dir, m, mine, step, owner);
    if (st == LS_E_IO || st == LS_E_NOMEM || st == LS_E_FORMAT) {
        if (!ckpt_rank(team))
            ls_warn("checkpoint", "the copy of step %" PRId64 " in memory is not used: %s", step, ls_err_words());
        ls_err_clear();
        return LS_OK;
    }
    LS_TRY(st);
    *path = ls_strdup(at);
    return *path ? LS_OK : ls_nomem(strlen(at), "a path");
}

/* The newest one on the disk with a step above `above`; rank 0 warns of older ones that cannot be read. */
static ls_status newest_on_disk(ls_comm *team, const char *run_dir, int64_t above, char **path)
{
    ls_str skipped = {0};
    const ls_status st = ckpt_agree(team, ckpt_newest(run_dir, above, false, path, &skipped), LS_SITE);
    if (st == LS_OK && !ckpt_rank(team)) ckpt_warn_skipped(CKPT_NOT_NEEDED, &skipped);
    ls_str_fini(&skipped);
    return st;
}

/* The run had copies in memory, and resumes from `path` (NULL: from the start). */
static void tell_missing(const char *run_dir, const ls_ckpt_memory *m, const char *path)
{
    static const char why[] =
        "its host is not used or was restarted, the run folder was copied or moved, another run has removed it, or it is damaged";
    const int64_t noted = ls_ckpt_memory_noted(run_dir);
    int64_t step = -1;
    if (path && ls_ckpt_state(path, NULL, &step) != LS_OK) { /* reading it will fail, with the reason */
        ls_err_clear();
        return;
    }
    if (noted > step && noted > m->step)
        ls_warn("checkpoint", "the copy of step %" PRId64 " in memory was not found: %s", noted, why);
    else if (noted < 0 && *m->id && !m->any) ls_warn("checkpoint", "the copy in memory was not found: %s", why);
}

ls_status ls_ckpt_latest_any(ls_comm *comm, const char *run_dir, ls_ckpt_memory *m, char **path)
{
    ls_comm *team = ckpt_team(comm);
    int64_t step = -1;
    int owner = 0, on_disk = 0;
    *path = NULL;
    LS_TRY(ls_ckpt_memory_look(m, run_dir, team));
    const int64_t mine = step_here(m);
    LS_TRY(newest_copy(team, mine, &step, &owner));
    m->step = step;
    LS_TRY(newest_on_disk(team, run_dir, step, path));
    on_disk = *path != NULL;
    if (team) LS_TRY(ls_agree(team, on_disk, LS_SITE, &on_disk));
    ls_status st = on_disk || step < 0 ? LS_OK : use_copy(team, run_dir, m, mine, step, owner, path);
    st = ckpt_agree(team, st, LS_SITE);
    if (st == LS_OK && !on_disk && step >= 0 && !*path) st = newest_on_disk(team, run_dir, -1, path);
    if (st == LS_OK && m->first) tell_missing(run_dir, m, *path);
    if (st == LS_OK) ls_info("checkpoint", "newest checkpoint in %s: %s", run_dir, *path ? *path : "none");
    return st;
}
