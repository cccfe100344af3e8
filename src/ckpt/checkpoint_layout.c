/* checkpoint_layout.c - computes the position of every element in the two weight files, equally on all workers.
 *
 *   model.safetensors       header | unit 0 | unit 1 | …
 *   optimizer.safetensors   header | m of unit 0 | m of unit 1 | … | v of unit 0 | v of unit 1 | …
 *
 * The tensors of a unit are contiguous in its flat buffer and in the file, so a range of the buffer is a range of the file, and the
 * worker that owns it writes it (checkpoint_bytes.c). */
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
