/* checkpoint_layout.c - computes the position of every element in the two weight files, equally on all workers.
 *
 *   model.safetensors       header | unit 0 | unit 1 | …
 *   optimizer.safetensors   header | m of unit 0 | m of unit 1 | … | v of unit 0 | v of unit 1 | …
 *
 * The tensors of a unit are contiguous in its flat buffer and in the file, so a range of the buffer is a range of the file, and the
 * worker that owns it writes it. Blocks of 1 MiB that one worker writes completely are hashed while writing; blocks of several
 * workers are read back after all writes. */
#include "ckpt/checkpoint_impl.h"

#include "core/deadline.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BLOCK ((int64_t)CKPT_BLOCK)

/* Pieces have the fp32 master type, whatever the compute type. */
static size_t elem_of(const ls_model *m)
{
    return ls_dtype_nbytes(m->compute->ops->wide);
}

/* Header, and positions of the buffers from `first` to `last`. */
static ls_status lay_out(ckpt_layout *l, int file, const char *name, const ls_model *m, int first, int last)
{
    const int n = hf_n_tensor(m) * (last - first + 1);
    const size_t nbytes = (size_t)n * (sizeof(ls_st_tensor) + CKPT_MOMENT_NAME);
    ckpt_file *f = &l->file[file];
    ls_st_tensor *e = ls_alloc(nbytes);
    if (!e) return ls_nomem(nbytes, "the tensor table of a checkpoint");
    char(*moment)[CKPT_MOMENT_NAME] = (char(*)[CKPT_MOMENT_NAME])(void *)(e + n);
    int64_t at = 0;
    int k = 0;
    for (int what = first; what <= last; what++)
        for (int u = 0; u < m->n_unit; u++) {
            const ls_unit *x = &m->unit[u];
            l->at[what][u] = at;
            at += x->n * (int64_t)elem_of(m);
            for (int i = 0; i < x->n_tensor; i++, k++) {
                const ls_tensor *t = &x->tensor[i];
                LS_ASSERT(t->offset == (i ? t[-1].offset + t[-1].n : 0));
                e[k] = (ls_st_tensor){.name = t->name, .dt = m->compute->ops->wide, .n_dim = t->n_dim};
                for (int d = 0; d < t->n_dim; d++) e[k].dim[d] = t->dim[d];
                if (what == LS_FLAT_PARAM) continue;
                snprintf(moment[k], sizeof moment[k], "%c/%s", what == LS_FLAT_M ? 'm' : 'v', t->name);
                e[k].name = moment[k];
            }
        }
    f->name = name;
    ls_st_header(e, n, &f->head, &f->nbytes);
    ls_free(e);
    if (f->head.failed) return ls_nomem(f->head.cap, "the header of a safetensors file");
    f->n_block = (f->nbytes + BLOCK - 1) / BLOCK;
    for (int what = first; what <= last; what++)
        for (int u = 0; u < m->n_unit; u++) l->at[what][u] += (int64_t)f->head.len;
    return LS_OK;
}

ls_status ckpt_layout_init(ckpt_layout *l, const ls_model *m)
{
    const size_t nbytes = (size_t)m->n_unit * LS_N_FLAT * sizeof **l->at;
    *l = (ckpt_layout){.at = {ls_alloc(nbytes)}};
    if (!l->at[0]) return ls_nomem(nbytes, "the layout of a checkpoint");
    for (int what = 1; what < LS_N_FLAT; what++) l->at[what] = l->at[0] + what * m->n_unit;
    ls_status st = lay_out(l, CKPT_FILE_MODEL, CKPT_MODEL, m, LS_FLAT_PARAM, LS_FLAT_PARAM);
    if (st == LS_OK) st = lay_out(l, CKPT_FILE_OPTIMIZER, CKPT_OPTIMIZER, m, LS_FLAT_M, LS_FLAT_V);
    if (st != LS_OK) ckpt_layout_fini(l);
    return st;
}

void ckpt_layout_fini(ckpt_layout *l)
{
    for (int i = 0; i < CKPT_N_FILE; i++) ls_str_fini(&l->file[i].head);
    ls_free(l->at[0]);
    *l = (ckpt_layout){.at = {NULL}};
}

/* ---- pieces ---- */

int ckpt_n_piece(const ls_model *m, const ls_piece *piece, int n_piece)
{
    return piece ? n_piece : m->n_unit * LS_N_FLAT;
}

ls_piece ckpt_piece(const ls_model *m, const ls_piece *piece, int i)
{
    if (piece) return piece[i];
    const int u = i % m->n_unit, what = i / m->n_unit;
    const ls_unit *x = &m->unit[u];
    /* master weights if there are any; a 16-bit model without them can be loaded but not saved */
    void *const param = x->master ? x->master : x->param;
    return (ls_piece){.what = (ls_flat)what,
                      .unit = u,
                      .n = x->n_pad,
                      .data = what == LS_FLAT_PARAM ? param
                              : what == LS_FLAT_M   ? x->m
                                                    : x->v};
}

ls_status ckpt_check_pieces(const ls_model *m, const ls_piece *piece, int n_piece, bool optimizer)
{
    static const char *const word[] = {"parameters", "moments", "moments"};
    const int n = ckpt_n_piece(m, piece, n_piece);
    for (int i = 0; i < n; i++) {
        const ls_piece p = ckpt_piece(m, piece, i);
        if ((int)p.what < 0 || p.what >= LS_N_FLAT || p.unit < 0 || p.unit >= m->n_unit || p.first < 0 || p.n < 0 ||
            p.n > INT64_MAX / 16 - p.first)
            return ls_fail(LS_E_INTERNAL,
                           "piece %d (elements %lld to %lld of unit %d) is outside this model with %d units", i,
                           (long long)p.first, (long long)(p.first + p.n - 1), p.unit, m->n_unit);
        if (p.n && !p.data && (optimizer || p.what == LS_FLAT_PARAM))
            return ls_fail(LS_E_INTERNAL, "unit %d of the model has no %s", p.unit, word[p.what]);
    }
    return LS_OK;
}

int64_t ckpt_edge(int64_t at)
{
    return (int64_t)(ls_xxh64(&at, sizeof at) >> 24);
}

static int by_place(const void *x, const void *y)
{
    const ckpt_span *a = x, *b = y;
    return a->at < b->at ? -1 : a->at > b->at;
}

ls_status ckpt_part_make(ckpt_part *p, const ckpt_layout *l, int file, const ls_model *m, const ls_piece *piece,
                         int n_piece, bool head)
{
    const int n = ckpt_n_piece(m, piece, n_piece);
    const int64_t e = (int64_t)elem_of(m);
    *p = (ckpt_part){.span = ls_alloc((size_t)(n + 1) * sizeof *p->span)};
    if (!p->span) return ls_nomem((size_t)(n + 1) * sizeof *p->span, "the pieces of a checkpoint");
    const ckpt_file *f = &l->file[file];
    if (head) p->span[p->n++] = (ckpt_span){.at = 0, .nbytes = f->head.len, .data = f->head.data};
    for (int i = 0; i < n; i++) {
        const ls_piece x = ckpt_piece(m, piece, i);
        const int64_t end = x.first + x.n < m->unit[x.unit].n ? x.first + x.n : m->unit[x.unit].n;
        if ((x.what == LS_FLAT_PARAM) != (file == CKPT_FILE_MODEL) || end <= x.first) continue;
        p->span[p->n++] = (ckpt_span){.at = l->at[x.what][x.unit] + x.first * e,
                                      .nbytes = (size_t)((end - x.first) * e),
                                      .data = x.data,
                                      .device = ckpt_on_device(m->compute, x.data)};
    }
    qsort(p->span, (size_t)p->n, sizeof *p->span, by_place);
    for (int i = 0; i < p->n; i++) {
        p->nbytes += (int64_t)p->span[i].nbytes;
        p->edges += ckpt_edge(p->span[i].at + (int64_t)p->span[i].nbytes) - ckpt_edge(p->span[i].at);
        if (i && p->span[i].at < p->span[i - 1].at + (int64_t)p->span[i - 1].nbytes)
            return ls_fail(LS_E_INTERNAL, "byte %lld of %s would be written twice by this worker",
                           (long long)p->span[i].at, f->name);
    }
    return LS_OK;
}

/* ---- bytes ---- */

ls_status ckpt_file_create(const char *path, int64_t nbytes, int *out)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot write %s: %s", path, strerror(errno));
    /* KEEP_SIZE: if the process dies, a short file is not mistaken for a complete one. If the file system cannot
     * reserve space, the writes report a full disk. */
    if (nbytes && fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, nbytes) && errno == ENOSPC) {
        struct statvfs v;
        double avail = fstatvfs(fd, &v) ? 0 : (double)v.f_bavail * (double)v.f_frsize;
        close(fd);
        return ls_fail(LS_E_IO, "cannot write %s: it needs %.1f MiB and the disk has %.1f MiB free", path,
                       (double)nbytes / 1048576.0, avail / 1048576.0);
    }
    *out = fd;
    return LS_OK;
}

ls_status ckpt_write_at(int fd, const char *path, const char *data, size_t n, int64_t at)
{
    while (n) {
        ssize_t k = -1;
        if (!ls_fs_fault || !(errno = ls_fs_fault(path, LS_FS_WRITE))) k = pwrite(fd, data, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return ls_fail(LS_E_IO, "cannot write %s at byte %lld: %s", path, (long long)at,
                           k ? strerror(errno) : "no byte was written");
        data += k;
        n -= (size_t)k;
        at += k;
        ls_deadline_tick();
    }
    return LS_OK;
}

/* st: the status of the writes. */
static ls_status sync_and_close(int fd, const char *path, ls_status st)
{
    ls_deadline_hold(true);
    if (st == LS_OK && ls_fs_fsync(fd, path) && errno != EINVAL)
        st = ls_fail(LS_E_IO, "cannot sync %s: %s", path, strerror(errno));
    if (close(fd) && st == LS_OK) st = ls_fail(LS_E_IO, "cannot close %s: %s", path, strerror(errno));
    ls_deadline_hold(false);
    return st;
}

/* Copies up to n bytes of a file without reading them; returns how many. */
static size_t clone_bytes(int fd, const char *from, size_t n)
{
    const int in = open(from, O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    while (in >= 0 && done < n) {
        const ssize_t k = copy_file_range(in, NULL, fd, NULL, n - done, 0);
        if (k <= 0) break; /* other file systems, or none that can: the rest is written */
        done += (size_t)k;
    }
    if (in >= 0) close(in);
    return done;
}

ls_status ckpt_file_put(const char *path, const void *data, size_t n, const char *from)
{
    int fd = -1;
    LS_TRY(ckpt_file_create(path, from ? 0 : (int64_t)n, &fd));
    const size_t done = from ? clone_bytes(fd, from, n) : 0;
    return sync_and_close(fd, path, ckpt_write_at(fd, path, (const char *)data + done, n - done, (int64_t)done));
}

/* A weight file being written. */
typedef struct out {
    int fd;
    const char *path;
    int64_t nbytes, *block;
    ls_xxh hash;
    int64_t next; /* position where the hash of the current block continues */
} out;

/* Writes in steps that end at block boundaries; each is hashed and then written while it is in the cache. */
static ls_status put_bytes(void *ctx, int64_t at, const char *data, size_t n)
{
    out *o = ctx;
    for (int64_t left = (int64_t)n; left;) {
        const int64_t b = at / BLOCK, end = (b + 1) * BLOCK < o->nbytes ? (b + 1) * BLOCK : o->nbytes;
        const int64_t k = left < end - at ? left : end - at;
        if (at % BLOCK == 0) {
            ls_xxh_init(&o->hash);
            o->next = at;
        }
        if (at == o->next) {
            ls_xxh_add(&o->hash, data, (size_t)k);
            o->next += k;
            if (o->next == end) o->block[b] = (int64_t)ls_xxh_value(&o->hash);
        }
        LS_TRY(ckpt_write_at(o->fd, o->path, data, (size_t)k, at));
        data += k;
        at += k;
        left -= k;
    }
    return LS_OK;
}

ls_status ckpt_part_write(const ckpt_part *p, ckpt_stage *stage, const char *path, int64_t file_nbytes, int64_t *block)
{
    if (!p->n) return LS_OK;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot write %s: %s", path, strerror(errno));
    out o = {.fd = fd, .path = path, .nbytes = file_nbytes, .block = block, .next = -1};
    return sync_and_close(fd, path, ckpt_stage_put(stage, p, put_bytes, &o));
}

ls_status ckpt_block_read(const char *path, int64_t file_nbytes, int64_t b, int64_t *hash)
{
    const int64_t at = b * BLOCK, n = file_nbytes - at < BLOCK ? file_nbytes - at : BLOCK;
    char buf[16384];
    ls_xxh x;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot read %s: %s", path, strerror(errno));
    ls_status st = LS_OK;
    ls_xxh_init(&x);
    for (int64_t done = 0; done < n && st == LS_OK;) {
        ssize_t k =
            pread(fd, buf, n - done < (int64_t)sizeof buf ? (size_t)(n - done) : sizeof buf, (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            st = ls_fail(LS_E_IO, "cannot read %s at byte %lld: %s", path, (long long)(at + done),
                         k ? strerror(errno) : "the file was truncated");
        else {
            ls_xxh_add(&x, buf, (size_t)k);
            done += k;
        }
    }
    close(fd);
    *hash = (int64_t)ls_xxh_value(&x);
    return st;
}
