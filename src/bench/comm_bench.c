#include "bench/comm_bench.h"
#include "core/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROUND = 1000, MAX_WORLD = 4096, LOOK = 4096 };

static const ls_coll benched[] = {LS_COLL_ALL_REDUCE, LS_COLL_REDUCE_SCATTER, LS_COLL_ALL_GATHER, LS_COLL_BROADCAST,
                                  LS_COLL_REDUCE,     LS_COLL_SEND,           LS_COLL_BARRIER};
enum { N_BENCHED = sizeof benched / sizeof benched[0] };

ls_status ls_comm_bench_kinds(const char *list, unsigned *kinds)
{
    *kinds = 0;
    for (const char *p = list; *p;) {
        const size_t n = strcspn(p, ",");
        bool found = false;
        for (int i = 0; i < N_BENCHED; i++) {
            const char *w = ls_coll_word(benched[i]);
            if (strlen(w) != n || memcmp(w, p, n) != 0) continue;
            *kinds |= 1u << benched[i];
            found = true;
        }
        if (!found)
            return ls_fail(
                LS_E_ARG,
                "'%.*s' is no collective: all_reduce, reduce_scatter, all_gather, broadcast, reduce, send, barrier",
                (int)n, p);
        p += n + (p[n] == ',');
    }
    return LS_OK;
}

typedef struct work {
    ls_comm *c;
    int rank, size;
    float *x, *y; /* whole buffer, and a part */
    int64_t n;    /* elements of the whole */
} work;

/* Small whole numbers: their sums are exact in any order. */
static float value(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 13) % 1021);
}

static float sum_at(int size, int64_t i)
{
    float s = 0;
    for (int r = 0; r < size; r++) s += value(r, i);
    return s;
}

static ls_view whole(const work *w)
{
    return (ls_view){w->x, w->n, LS_F32};
}

static ls_view part(const work *w)
{
    return (ls_view){w->y, w->n / w->size, LS_F32};
}

/* To the neighbour and back. A worker without one (odd numbers) sits it out. */
static ls_status there_and_back(const work *w)
{
    const int to = w->rank ^ 1;
    if (to >= w->size) return LS_OK;
    for (int leg = 0; leg < 2; leg++) {
        if ((w->rank & 1) == leg) LS_TRY(ls_send(w->c, whole(w), to, LS_SITE, NULL));
        else LS_TRY(ls_recv(w->c, whole(w), to, LS_SITE, NULL));
    }
    return LS_OK;
}

static ls_status call(const work *w, ls_coll kind)
{
    switch (kind) {
    case LS_COLL_ALL_REDUCE: return ls_all_reduce(w->c, whole(w), LS_SITE, NULL);
    case LS_COLL_REDUCE_SCATTER: return ls_reduce_scatter(w->c, part(w), whole(w), LS_SITE, NULL);
    case LS_COLL_ALL_GATHER: return ls_all_gather(w->c, whole(w), part(w), LS_SITE, NULL);
    case LS_COLL_BROADCAST: return ls_broadcast(w->c, whole(w), 0, LS_SITE, NULL);
    case LS_COLL_REDUCE: return ls_reduce(w->c, whole(w), 0, LS_SITE, NULL);
    case LS_COLL_SEND: return there_and_back(w);
    default: return ls_barrier(w->c, LS_SITE);
    }
}

static void fill(const work *w)
{
    for (int64_t i = 0; i < w->n; i++) w->x[i] = value(w->rank, i);
    for (int64_t i = 0; i < w->n / w->size; i++) w->y[i] = value(w->rank, i);
}

/* Elements that are not what they must be after one call on filled buffers, of some 4096 looked at. */
static int64_t wrong(const work *w, ls_coll kind)
{
    const int64_t n_part = w->n / w->size, step = w->n / LOOK ? w->n / LOOK : 1;
    int64_t bad = 0;
    for (int64_t i = 0; i < w->n; i += step) {
        const int64_t p = i % n_part;
        switch (kind) {
        case LS_COLL_ALL_REDUCE: bad += w->x[i] != sum_at(w->size, i); break;
        case LS_COLL_REDUCE: bad += w->x[i] != (w->rank ? value(w->rank, i) : sum_at(w->size, i)); break;
        case LS_COLL_BROADCAST: bad += w->x[i] != value(0, i); break;
        case LS_COLL_ALL_GATHER: bad += w->x[i] != value((int)(i / n_part), p); break;
        case LS_COLL_REDUCE_SCATTER: bad += w->y[p] != sum_at(w->size, w->rank * n_part + p); break;
        case LS_COLL_SEND: /* the even one's values are with both */
            bad += w->x[i] != value((w->rank ^ 1) < w->size ? w->rank & ~1 : w->rank, i);
            break;
        default: break;
        }
    }
    return bad;
}

static ls_status slowest(const work *w, double mine, double *worst)
{
    double all[MAX_WORLD];
    LS_TRY(ls_all_gather(w->c, (ls_view){all, w->size, LS_F64}, (ls_view){&mine, 1, LS_F64}, LS_SITE, NULL));
    *worst = 0;
    for (int r = 0; r < w->size; r++) *worst = fmax(*worst, all[r]);
    return LS_OK;
}

static ls_status measure(const work *w, ls_coll kind, int rounds, ls_comm_bench_row *r)
{
    const int64_t nbytes = w->n * (int64_t)sizeof(float);
    const int calls = nbytes < 65536 ? 20 : nbytes < 1048576 ? 4 : 1;
    const double legs = kind == LS_COLL_SEND ? 2 : 1;
    double time[MAX_ROUND], bad = 0;
    fill(w);
    LS_TRY(ls_barrier(w->c, LS_SITE));
    LS_TRY(call(w, kind)); /* warm-up, and the one that is checked */
    LS_TRY(slowest(w, (double)wrong(w, kind), &bad));
    for (int k = 0; k < rounds; k++) {
        memset(w->x, 0, (size_t)nbytes); /* sums stay finite */
        LS_TRY(ls_barrier(w->c, LS_SITE));
        const double begin = ls_now();
        for (int i = 0; i < calls; i++) LS_TRY(call(w, kind));
        LS_TRY(slowest(w, (ls_now() - begin) / calls / legs, &time[k]));
    }
    *r = (ls_comm_bench_row){.kind = kind,
                             .nbytes = kind == LS_COLL_BARRIER ? 0 : nbytes,
                             .time = ls_estimate_of(time, rounds),
                             .wrong = (int64_t)bad};
    if (kind == LS_COLL_BARRIER || !(r->time.mean > 0)) return LS_OK;
    r->algbw = (double)nbytes / r->time.mean;
    r->busbw = ls_comm_busbw(kind, w->size, (double)nbytes, r->time.mean);
    return LS_OK;
}

ls_status ls_comm_bench_run(ls_comm *c, const ls_comm_bench *o)
{
    work w = {.c = c, .rank = ls_comm_rank(c), .size = ls_comm_size(c)};
    const int64_t unit = (int64_t)sizeof(float) * w.size;
    if (w.size > MAX_WORLD || o->rounds < 1 || o->rounds > MAX_ROUND || o->min_bytes < 1 ||
        o->max_bytes < o->min_bytes || o->factor < 2)
        return ls_fail(LS_E_ARG, "sizes go from at least 1 byte up by a factor of at least 2, with 1 to %d rounds",
                       MAX_ROUND);
    const int64_t most = (o->max_bytes + unit - 1) / unit * unit;
    w.x = ls_comm_alloc(c, (size_t)most);
    w.y = ls_comm_alloc(c, (size_t)(most / w.size + 64));
    if (!w.x || !w.y) return ls_fail(LS_E_NOMEM, "two buffers of %lld bytes of shared memory", (long long)most);
    for (int i = 0; i < N_BENCHED; i++) {
        if (o->kinds && !(o->kinds & 1u << benched[i])) continue;
        if (benched[i] == LS_COLL_SEND && w.size < 2) continue;
        for (int64_t b = o->min_bytes;; b *= o->factor) {
            if (b > o->max_bytes) break;
            w.n = (b + unit - 1) / unit * w.size;
            ls_comm_bench_row r;
            LS_TRY(measure(&w, benched[i], o->rounds, &r));
            if (!w.rank && o->row) o->row(o->ctx, &r);
            if (r.wrong)
                return ls_fail(LS_E_COMM, "%s of %lld bytes: %lld elements of a worker are wrong", ls_coll_word(r.kind),
                               (long long)r.nbytes, (long long)r.wrong);
            if (benched[i] == LS_COLL_BARRIER) break;
        }
    }
    return LS_OK;
}
