#include "bench/comm_bench.h"
#include "core/clock.h"

#include <math.h>
#include <string.h>

enum { MAX_ROUND = 1000, MAX_WORLD = 4096, PERIOD = 1021 };

/* Variants of a kind, and the memory in which it is measured by default. */
enum { OUT = 1 << LS_BENCH_OUT_OF_PLACE, IN = 1 << LS_BENCH_IN_PLACE, HOST = 4, DEVICE = 8 };
/* Kinds that add, that have a root, that distribute or collect parts, that send messages. */
enum { SUMS = 16, ROOTED = 32, PARTS = 64, MESSAGE = 128 };

static const struct {
    ls_coll kind;
    unsigned traits;
} benched[] = {{LS_COLL_ALL_REDUCE, IN | HOST | DEVICE | SUMS},
               {LS_COLL_REDUCE_SCATTER, OUT | IN | HOST | DEVICE | SUMS | PARTS},
               {LS_COLL_ALL_GATHER, OUT | IN | HOST | DEVICE | PARTS},
               {LS_COLL_BROADCAST, IN | HOST | DEVICE | ROOTED},
               {LS_COLL_REDUCE, IN | HOST | DEVICE | SUMS | ROOTED},
               {LS_BENCH_SENDRECV, OUT | DEVICE | MESSAGE},
               {LS_COLL_SEND, OUT | HOST | MESSAGE},
               {LS_COLL_BARRIER, IN | HOST}};
enum { N_BENCHED = sizeof benched / sizeof benched[0] };

const char *ls_comm_bench_word(ls_coll kind)
{
    return kind == LS_BENCH_SENDRECV ? "sendrecv" : ls_coll_word(kind);
}

ls_status ls_comm_bench_kinds(const char *list, unsigned *kinds)
{
    *kinds = 0;
    for (const char *p = list; *p;) {
        const size_t n = strcspn(p, ",");
        bool found = false;
        for (int i = 0; i < N_BENCHED; i++) {
            const char *w = ls_comm_bench_word(benched[i].kind);
            if (strlen(w) != n || memcmp(w, p, n) != 0) continue;
            *kinds |= 1u << benched[i].kind;
            found = true;
        }
        if (!found)
            return ls_fail(
                LS_E_ARG,
                "'%.*s' is not a collective; use all_reduce, reduce_scatter, all_gather, broadcast, reduce, sendrecv, send or barrier",
                (int)n, p);
        p += n + (p[n] == ',');
    }
    return LS_OK;
}

typedef struct work {
    ls_comm *c;
    const ls_device *dev;
    int rank, size;
    float *x, *y;   /* whole buffer, and a part or what is received */
    float *hx, *hy; /* copies in host memory; without a device x and y themselves */
    int64_t n;      /* elements of the whole */
} work;

static int64_t n_part(const work *w)
{
    return w->n / w->size;
}

static ls_view whole(const work *w)
{
    return (ls_view){w->x, w->n, LS_F32};
}

static ls_view part(const work *w, bool in_place)
{
    return (ls_view){in_place ? w->x + w->rank * n_part(w) : w->y, n_part(w), LS_F32};
}

static int next_rank(const work *w)
{
    return (w->rank + 1) % w->size;
}

static int rank_before(const work *w)
{
    return (w->rank + w->size - 1) % w->size;
}

/* ---- memory ---- */

static ls_status copy(const work *w, void *to, const void *from, int64_t n)
{
    const ls_device *d = w->dev;
    ls_mark ready = 0, done = 0;
    LS_TRY(d->mark(d->ctx, &ready));
    LS_TRY(d->copy(d->ctx, 0, to, from, (size_t)n * sizeof(float), ready, &done));
    LS_TRY(d->hold(d->ctx, done));
    return d->wait(d->ctx, done);
}

/* Copies the host buffers to the device, if there is one, or back. */
static ls_status copy_images(const work *w, bool back)
{
    if (!w->dev) return LS_OK;
    LS_TRY(back ? copy(w, w->hx, w->x, w->n) : copy(w, w->x, w->hx, w->n));
    return back ? copy(w, w->hy, w->y, w->n) : copy(w, w->y, w->hy, w->n);
}

/* Waits until the device has finished its queue. */
static ls_status settle(const work *w)
{
    return w->dev ? w->dev->sync(w->dev->ctx) : LS_OK;
}

static ls_status take_memory(work *w, int64_t nbytes)
{
    const size_t n = (size_t)nbytes;
    if (!w->dev) {
        w->x = w->hx = ls_comm_alloc(w->c, n);
        w->y = w->hy = ls_comm_alloc(w->c, n);
        return w->x && w->y ? LS_OK
                            : ls_fail(LS_E_NOMEM, "cannot allocate two buffers of %zu bytes of shared memory", n);
    }
    void **const at[] = {(void **)&w->x, (void **)&w->y, (void **)&w->hx, (void **)&w->hy};
    for (int i = 0; i < 4; i++)
        LS_TRY(i < 2 ? w->dev->alloc(w->dev->ctx, n, at[i]) : w->dev->alloc_host(w->dev->ctx, n, at[i]));
    return LS_OK;
}

static void give_memory(work *w)
{
    if (!w->dev) return; /* they belong to the communicator */
    if (w->x) w->dev->release(w->dev->ctx, w->x);
    if (w->y) w->dev->release(w->dev->ctx, w->y);
    if (w->hx) w->dev->release_host(w->dev->ctx, w->hx);
    if (w->hy) w->dev->release_host(w->dev->ctx, w->hy);
}

/* ---- calls ---- */

/* To the neighbour and back. With an odd number of workers the last one does nothing. */
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

static ls_status around(const work *w)
{
    ls_ticket out = 0, in = 0;
    LS_TRY(ls_send(w->c, whole(w), next_rank(w), LS_SITE, &out));
    LS_TRY(ls_recv(w->c, (ls_view){w->y, w->n, LS_F32}, rank_before(w), LS_SITE, &in));
    LS_TRY(ls_wait(w->c, out));
    return ls_wait(w->c, in);
}

static ls_status call(const work *w, ls_coll kind, bool in_place)
{
    if (kind == LS_BENCH_SENDRECV) return around(w);
    switch (kind) {
    case LS_COLL_ALL_REDUCE: return ls_all_reduce(w->c, whole(w), LS_SITE, NULL);
    case LS_COLL_REDUCE_SCATTER: return ls_reduce_scatter(w->c, part(w, in_place), whole(w), LS_SITE, NULL);
    case LS_COLL_ALL_GATHER: return ls_all_gather(w->c, whole(w), part(w, in_place), LS_SITE, NULL);
    case LS_COLL_BROADCAST: return ls_broadcast(w->c, whole(w), 0, LS_SITE, NULL);
    case LS_COLL_REDUCE: return ls_reduce(w->c, whole(w), 0, LS_SITE, NULL);
    case LS_COLL_SEND: return there_and_back(w);
    default: return ls_barrier(w->c, LS_SITE);
    }
}

/* ---- values: small whole numbers, whose sums are exact in any order; they come again after PERIOD elements ---- */

static float value(int rank, int64_t i)
{
    return (float)((i % PERIOD * 7 + rank % PERIOD * 13) % PERIOD);
}

/* Sums of the values of the ranks from `first` up to, but not, `end`. */
static void sums_of(int first, int end, float *table)
{
    for (int i = 0; i < PERIOD; i++) {
        table[i] = 0;
        for (int r = first; r < end; r++) table[i] += value(r, i);
    }
}

static void put(float *to, int64_t n, int64_t first, const float *table)
{
    for (int64_t i = 0, k = first % PERIOD; i < n; i++, k = k + 1 == PERIOD ? 0 : k + 1) to[i] = table[k];
}

static int64_t differ(const float *x, int64_t n, int64_t first, const float *table)
{
    int64_t bad = 0;
    for (int64_t i = 0, k = first % PERIOD; i < n; i++, k = k + 1 == PERIOD ? 0 : k + 1) bad += x[i] != table[k];
    return bad;
}

static ls_status fill(const work *w, ls_coll kind, bool in_place)
{
    float table[PERIOD];
    sums_of(w->rank, w->rank + 1, table);
    put(w->hx, w->n, 0, table);
    put(w->hy, w->n, 0, table);
    if (kind == LS_COLL_ALL_GATHER && in_place) put(w->hx + w->rank * n_part(w), n_part(w), 0, table);
    return copy_images(w, false);
}

/* Number of wrong elements of this worker after one call on filled buffers. */
static ls_status check(const work *w, ls_coll kind, bool in_place, int64_t *bad)
{
    const int64_t m = n_part(w);
    float table[PERIOD];
    LS_TRY(copy_images(w, true));
    *bad = 0;
    if (kind == LS_COLL_BARRIER) return LS_OK;
    if (kind == LS_COLL_ALL_GATHER) {
        for (int r = 0; r < w->size; r++) {
            sums_of(r, r + 1, table);
            *bad += differ(w->hx + r * m, m, 0, table);
        }
        return LS_OK;
    }
    const bool sum =
        kind == LS_COLL_ALL_REDUCE || kind == LS_COLL_REDUCE_SCATTER || (kind == LS_COLL_REDUCE && !w->rank);
    int from = w->rank; /* a reduce does not change other workers */
    if (sum || kind == LS_COLL_BROADCAST) from = 0;
    else if (kind == LS_BENCH_SENDRECV) from = rank_before(w);
    else if (kind == LS_COLL_SEND && (w->rank ^ 1) < w->size) from = w->rank & ~1; /* values of the even worker */
    sums_of(from, sum ? w->size : from + 1, table);
    if (kind == LS_COLL_REDUCE_SCATTER) *bad = differ(in_place ? w->hx + w->rank * m : w->hy, m, w->rank * m, table);
    else *bad = differ(kind == LS_BENCH_SENDRECV ? w->hy : w->hx, w->n, 0, table);
    return LS_OK;
}

/* ---- time ---- */

static ls_status of_all(const work *w, double mine, double *worst, double *sum)
{
    double all[MAX_WORLD] = {0};
    LS_TRY(ls_all_gather(w->c, (ls_view){all, w->size, LS_F64}, (ls_view){&mine, 1, LS_F64}, LS_SITE, NULL));
    *worst = *sum = 0;
    for (int r = 0; r < w->size; r++) {
        *worst = fmax(*worst, all[r]);
        *sum += all[r];
    }
    return LS_OK;
}

static int calls_of_round(const work *w, int64_t nbytes)
{
    if (w->dev) return nbytes <= (16 << 20) ? 20 : 5; /* so that launch and clock overhead are negligible */
    return nbytes < 65536 ? 20 : nbytes < 1048576 ? 4 : 1;
}

/* One round; buffers are refilled with small values, so that sums stay finite. */
static ls_status round_of(const work *w, ls_coll kind, bool in_place, int calls, double *seconds)
{
    double sum;
    if (!w->dev) memset(w->x, 0, (size_t)w->n * sizeof(float));
    else LS_TRY(copy_images(w, false));
    LS_TRY(settle(w));
    LS_TRY(ls_barrier(w->c, LS_SITE));
    const double begin = ls_now();
    for (int i = 0; i < calls; i++) LS_TRY(call(w, kind, in_place));
    LS_TRY(settle(w));
    return of_all(w, (ls_now() - begin) / calls / (kind == LS_COLL_SEND ? 2 : 1), seconds, &sum);
}

static ls_status measure(const work *w, ls_coll kind, bool in_place, int rounds, ls_comm_bench_side *s)
{
    const int64_t nbytes = w->n * (int64_t)sizeof(float);
    double time[MAX_ROUND], worst, bad = 0;
    int64_t mine = 0;
    LS_TRY(fill(w, kind, in_place));
    LS_TRY(ls_barrier(w->c, LS_SITE));
    LS_TRY(call(w, kind, in_place)); /* warm-up call, whose result is checked */
    LS_TRY(check(w, kind, in_place, &mine));
    LS_TRY(of_all(w, (double)mine, &worst, &bad));
    if (w->dev) LS_TRY(fill(w, kind, in_place));
    for (int k = 0; k < rounds; k++) LS_TRY(round_of(w, kind, in_place, calls_of_round(w, nbytes), &time[k]));
    *s = (ls_comm_bench_side){.measured = true, .time = ls_estimate_of(time, rounds), .wrong = (int64_t)bad};
    if (kind == LS_COLL_BARRIER || !(s->time.mean > 0)) return LS_OK;
    s->algbw = (double)nbytes / s->time.mean;
    s->busbw = kind == LS_BENCH_SENDRECV ? s->algbw : ls_comm_busbw(kind, w->size, (double)nbytes, s->time.mean);
    return LS_OK;
}

static ls_status one_size(const work *w, const ls_comm_bench *o, ls_coll kind, unsigned traits)
{
    int64_t wrong = 0;
    ls_comm_bench_row r = {.kind = kind, .root = traits & ROOTED ? 0 : -1, .sums = traits & SUMS};
    if (kind != LS_COLL_BARRIER) {
        r.nbytes = w->n * (int64_t)sizeof(float);
        r.count = traits & PARTS ? n_part(w) : w->n;
    }
    if (!w->dev && traits & OUT) traits &= ~(unsigned)IN;
    for (int s = 0; s < LS_BENCH_SIDES; s++) {
        if (traits & 1u << s) LS_TRY(measure(w, kind, s == LS_BENCH_IN_PLACE, o->rounds, &r.side[s]));
        wrong += r.side[s].wrong;
    }
    if (!w->rank && o->row) o->row(o->ctx, &r);
    if (!wrong) return LS_OK;
    return ls_fail(LS_E_COMM, "%s of %lld bytes: %lld elements are wrong", ls_comm_bench_word(kind),
                   (long long)r.nbytes, (long long)wrong);
}

static ls_status run(work *w, const ls_comm_bench *o)
{
    const int64_t unit = (int64_t)sizeof(float) * w->size, most = (o->max_bytes + unit - 1) / unit * unit;
    LS_TRY(ls_comm_agree(w->c, take_memory(w, most), LS_SITE));
    for (int i = 0; i < N_BENCHED; i++) {
        const ls_coll kind = benched[i].kind;
        const unsigned traits = benched[i].traits;
        if (!(o->kinds ? o->kinds & 1u << kind : traits & (w->dev ? DEVICE : HOST))) continue;
        if (traits & MESSAGE && w->size < 2) continue;
        for (int64_t b = o->min_bytes; b <= o->max_bytes; b *= o->factor) {
            w->n = (b + unit - 1) / unit * w->size;
            LS_TRY(one_size(w, o, kind, traits));
            if (kind == LS_COLL_BARRIER) break;
        }
    }
    return LS_OK;
}

ls_status ls_comm_bench_run(ls_comm *c, const ls_comm_bench *o)
{
    work w = {.c = c, .dev = o->dev, .rank = ls_comm_rank(c), .size = ls_comm_size(c)};
    if (w.size > MAX_WORLD || o->rounds < 1 || o->rounds > MAX_ROUND || o->min_bytes < 1 ||
        o->max_bytes < o->min_bytes || o->factor < 2)
        return ls_fail(LS_E_ARG,
                       "sizes must start at 1 byte or more and grow by a factor of 2 or more, with 1 to %d rounds",
                       MAX_ROUND);
    if (w.dev && o->kinds & 1u << LS_COLL_BARRIER)
        return ls_fail(LS_E_ARG, "barrier cannot be measured with --device: it moves no data; remove one of them");
    LS_TRY(run(&w, o)); /* after a failure the device may still use its buffers: they are freed with it */
    LS_TRY(settle(&w));
    give_memory(&w);
    return LS_OK;
}
