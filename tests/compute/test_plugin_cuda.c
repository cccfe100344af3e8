/* The CUDA plugin on the emulated device, loaded as the program loads it: every operation of its table compared with cpu-ref in double, in every
 * type; operations that are replayed from a graph; the messages of the loader. Odd shapes and thread orders are tested in test_cuda_*. */
/* ls-test: long */
#include "cmocka_all.h"
#include "compute/compute.h"
#include "core/half.h"
#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) assert_int_equal((call), LS_OK)

typedef struct pair { /* one array on the device and on the host */
    void *x;          /* of the device, of type dt */
    double *ref;
    int64_t n;
    ls_dtype dt;
} pair;

typedef struct bench {
    ls_compute dev, ref;
    ls_dtype dt;
    pair all[64];
    int n_pair;
    uint64_t key;
} bench;

static double of(const void *p, ls_dtype dt, int64_t i)
{
    switch (dt) {
    case LS_F32: return (double)((const float *)p)[i];
    case LS_BF16: return (double)ls_from_bf16(((const uint16_t *)p)[i]);
    case LS_F16: return (double)ls_from_f16(((const uint16_t *)p)[i]);
    case LS_F64: return ((const double *)p)[i];
    default: return (double)((const int32_t *)p)[i];
    }
}

static void to(void *p, ls_dtype dt, int64_t i, double v)
{
    switch (dt) {
    case LS_F32: ((float *)p)[i] = (float)v; break;
    case LS_BF16: ((uint16_t *)p)[i] = ls_to_bf16((float)v); break;
    case LS_F16: ((uint16_t *)p)[i] = ls_to_f16((float)v); break;
    case LS_F64: ((double *)p)[i] = v; break;
    default: ((int32_t *)p)[i] = (int32_t)v; break;
    }
}

static pair make(bench *b, ls_dtype dt, int64_t n, double scale, double shift)
{
    pair p = {.n = n, .dt = dt, .ref = ls_alloc((size_t)n * sizeof(double))};
    const size_t nbytes = (size_t)n * ls_dtype_nbytes(dt);
    void *host = ls_alloc(nbytes);
    const uint64_t key = ls_rng_key(b->key++, LS_RNG_TEST, 0, 0);
    for (int64_t i = 0; i < n; i++) {
        to(host, dt, i, ls_rng_normal(key, (uint64_t)i) * scale + shift);
        p.ref[i] = of(host, dt, i);
    }
    OK(b->dev.device->alloc(b->dev.device->ctx, nbytes, &p.x));
    OK(ls_compute_write(&b->dev, p.x, host, nbytes));
    ls_free(host);
    return b->all[b->n_pair++] = p;
}

static pair some(bench *b, int64_t n)
{
    return make(b, b->dt, n, 1, 0);
}

static pair wide(bench *b, int64_t n)
{
    return make(b, LS_F32, n, 1, 0);
}

/* Within `units` roundings of the type of the arrays, of the largest number. */
static void near(bench *b, const char *what, pair p, double units)
{
    const size_t nbytes = (size_t)p.n * ls_dtype_nbytes(p.dt);
    void *host = ls_alloc(nbytes);
    const double eps = b->dt == LS_BF16 ? 0x1p-8 : b->dt == LS_F16 ? 0x1p-11 : 0x1p-22;
    double top = 1e-3;
    OK(ls_compute_read(&b->dev, host, p.x, nbytes));
    for (int64_t i = 0; i < p.n; i++) top = fabs(p.ref[i]) > top ? fabs(p.ref[i]) : top;
    for (int64_t i = 0; i < p.n; i++)
        if (!(fabs(of(host, p.dt, i) - p.ref[i]) <= units * eps * top))
            fail_msg("%s in %s: element %lld is %g, wanted %g (largest %g)", what, ls_dtype_word(b->dt), (long long)i,
                     of(host, p.dt, i), p.ref[i], top);
    ls_free(host);
}

static void opened(bench *b, ls_dtype dt, const ls_compute_shapes *s)
{
    *b = (bench){.dt = dt, .key = 1};
    OK(ls_compute_open(&b->dev, "cuda", &(ls_compute_open_opts){.dtype = dt, .device = -1, .deterministic = true}, 0));
    OK(ls_compute_open(&b->ref, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F64}, 1));
    b->ref.scratch_nbytes = ls_compute_scratch(&b->ref, s);
    b->ref.scratch = ls_alloc(b->ref.scratch_nbytes);
    b->dev.scratch_nbytes = ls_compute_scratch(&b->dev, s);
    OK(b->dev.device->alloc(b->dev.device->ctx, b->dev.scratch_nbytes, &b->dev.scratch));
}

static void closed(bench *b)
{
    const ls_device *d = b->dev.device;
    for (int i = 0; i < b->n_pair; i++) {
        d->release(d->ctx, b->all[i].x);
        ls_free(b->all[i].ref);
    }
    d->release(d->ctx, b->dev.scratch);
    ls_free(b->ref.scratch);
    ls_compute_close(&b->dev);
    ls_compute_close(&b->ref);
}

static void linear(bench *b)
{
    const int64_t R = 37, K = 24, N = 40;
    ls_compute *d = &b->dev, *r = &b->ref;
    pair x = some(b, R * K), w = some(b, K * N), bias = some(b, N), y = some(b, R * N), pre = some(b, R * N);
    pair dx = some(b, R * K), dw = wide(b, K * N), db = wide(b, N), res = some(b, R * N);
    OK(d->ops->linear_fwd(d, y.x, x.x, w.x, bias.x, R, K, N));
    OK(r->ops->linear_fwd(r, y.ref, x.ref, w.ref, bias.ref, R, K, N));
    near(b, "linear_fwd", y, 2);
    OK(d->ops->linear_fwd(d, y.x, x.x, w.x, NULL, R, K, N));
    OK(r->ops->linear_fwd(r, y.ref, x.ref, w.ref, NULL, R, K, N));
    near(b, "linear_fwd without bias", y, 2);
    for (int acc = 0; acc < 2; acc++) {
        OK(d->ops->linear_bwd(d, dx.x, dw.x, db.x, res.x, x.x, w.x, R, K, N, acc));
        OK(r->ops->linear_bwd(r, dx.ref, dw.ref, db.ref, res.ref, x.ref, w.ref, R, K, N, acc));
        near(b, "dx", dx, 2);
        near(b, "dw", dw, 2);
        near(b, "db", db, 2);
        OK(d->ops->linear_bwd(d, NULL, NULL, db.x, res.x, x.x, w.x, R, K, N, acc));
        OK(r->ops->linear_bwd(r, NULL, NULL, db.ref, res.ref, x.ref, w.ref, R, K, N, acc));
        near(b, "db alone", db, 2);
    }
    for (int kind = LS_GELU_TANH; kind <= LS_GELU_ERF; kind++) {
        OK(d->ops->linear_gelu_fwd(d, y.x, pre.x, x.x, w.x, bias.x, R, K, N, (ls_gelu)kind));
        OK(r->ops->linear_fwd(r, pre.ref, x.ref, w.ref, bias.ref, R, K, N));
        OK(r->ops->gelu_fwd(r, y.ref, pre.ref, R * N, (ls_gelu)kind));
        near(b, "linear_gelu_fwd, pre", pre, 2);
        near(b, "linear_gelu_fwd", y, 4);
        /* dpre (R,K') = (dy w^T) gelu'(pre), K' is the width before it */
        pair dy = some(b, R * N), front = some(b, R * K), dpre = some(b, R * K);
        OK(d->ops->linear_gelu_bwd(d, dpre.x, dy.x, w.x, front.x, R, K, N, (ls_gelu)kind));
        OK(r->ops->linear_bwd(r, dpre.ref, NULL, NULL, dy.ref, NULL, w.ref, R, K, N, false));
        OK(r->ops->gelu_bwd(r, dpre.ref, dpre.ref, front.ref, R * K, (ls_gelu)kind));
        near(b, "linear_gelu_bwd", dpre, 4);
    }
    OK(d->ops->linear_add_fwd(d, res.x, res.x, x.x, w.x, bias.x, R, K, N));
    OK(r->ops->linear_fwd(r, y.ref, x.ref, w.ref, bias.ref, R, K, N));
    OK(r->ops->add_fwd(r, res.ref, res.ref, y.ref, R * N, (ls_drop){0}));
    near(b, "linear_add_fwd", res, 3);
    pair table = some(b, N * K), logits = some(b, R * N);
    OK(d->ops->logits(d, logits.x, x.x, table.x, R, K, N));
    OK(r->ops->logits(r, logits.ref, x.ref, table.ref, R, K, N));
    near(b, "logits", logits, 2);
}

static void rows(bench *b)
{
    const int64_t B = 2, T = 9, C = 48, V = 31, P = 12, R = B * T;
    ls_compute *d = &b->dev, *r = &b->ref;
    const ls_drop drop = {.p = 0.2f, .key = 77};
    pair ids = make(b, LS_I32, R, 0, 0), wte = some(b, V * C), wpe = some(b, P * C), y = some(b, R * C);
    pair dwte = wide(b, V * C), dwpe = wide(b, P * C), res = some(b, R * C), delta = some(b, R * C);
    pair w = some(b, C), bias = some(b, C), mean = wide(b, R), rstd = wide(b, R), dx = some(b, R * C);
    pair dw = wide(b, C), db = wide(b, C), dy = some(b, R * C), y2 = some(b, R * C);
    int32_t host[64];
    if (b->dt != LS_F32) /* gains are stored less 1 */
        for (int64_t i = 0; i < C; i++) w.ref[i] += 1;
    for (int64_t i = 0; i < R; i++) host[i] = (int32_t)(i * 7 % V);
    OK(ls_compute_write(d, ids.x, host, (size_t)R * sizeof *host));
    OK(d->ops->embed_fwd(d, y.x, ids.x, 0, V, wte.x, wpe.x, B, T, C, drop));
    OK(r->ops->embed_fwd(r, y.ref, host, 0, V, wte.ref, wpe.ref, B, T, C, drop));
    near(b, "embed_fwd", y, 2);
    for (int acc = 0; acc < 2; acc++) {
        OK(d->ops->embed_bwd(d, dwte.x, dwpe.x, y.x, ids.x, 0, B, T, C, V, P, drop, acc));
        OK(r->ops->embed_bwd(r, dwte.ref, dwpe.ref, y.ref, host, 0, B, T, C, V, P, drop, acc));
        near(b, "dwte", dwte, 4);
        near(b, "dwpe", dwpe, 4);
    }
    OK(d->ops->add_layernorm_fwd(d, res.x, y.x, mean.x, rstd.x, res.x, delta.x, w.x, bias.x, R, C, 1e-5, drop));
    OK(r->ops->add_layernorm_fwd(r, res.ref, y.ref, mean.ref, rstd.ref, res.ref, delta.ref, w.ref, bias.ref, R, C, 1e-5,
                                 drop));
    near(b, "add_layernorm_fwd, sum", res, 2);
    near(b, "add_layernorm_fwd", y, 6);
    OK(d->ops->layernorm_fwd(d, y.x, mean.x, rstd.x, delta.x, w.x, bias.x, R, C, 1e-5));
    OK(r->ops->layernorm_fwd(r, y.ref, mean.ref, rstd.ref, delta.ref, w.ref, bias.ref, R, C, 1e-5));
    near(b, "layernorm_fwd", y, 4);
    near(b, "mean", mean, 4);
    near(b, "rstd", rstd, 4);
    OK(d->ops->layernorm_again(d, y2.x, delta.x, mean.x, rstd.x, w.x, bias.x, R, C));
    OK(r->ops->layernorm_again(r, y2.ref, delta.ref, mean.ref, rstd.ref, w.ref, bias.ref, R, C));
    near(b, "layernorm_again", y2, 4);
    for (int acc = 0; acc < 2; acc++) {
        OK(d->ops->layernorm_bwd(d, dx.x, dw.x, db.x, dy.x, acc ? dx.x : NULL, delta.x, w.x, mean.x, rstd.x, R, C,
                                 acc));
        OK(r->ops->layernorm_bwd(r, dx.ref, dw.ref, db.ref, dy.ref, acc ? dx.ref : NULL, delta.ref, w.ref, mean.ref,
                                 rstd.ref, R, C, acc));
        near(b, "layernorm_bwd, dx", dx, 6);
        near(b, "layernorm_bwd, dw", dw, 6);
        near(b, "layernorm_bwd, db", db, 6);
    }
    OK(d->ops->add_fwd(d, y.x, y.x, delta.x, R * C, drop));
    OK(r->ops->add_fwd(r, y.ref, y.ref, delta.ref, R * C, drop));
    near(b, "add_fwd", y, 6);
    OK(d->ops->drop_bwd(d, dy.x, dy.x, R * C, drop));
    OK(r->ops->drop_bwd(r, dy.ref, dy.ref, R * C, drop));
    near(b, "drop_bwd", dy, 2);
    OK(d->ops->gelu_fwd(d, y2.x, delta.x, R * C, LS_GELU_ERF));
    OK(r->ops->gelu_fwd(r, y2.ref, delta.ref, R * C, LS_GELU_ERF));
    near(b, "gelu_fwd", y2, 4);
}

static void attention(bench *b)
{
    const int64_t B = 2, T = 20, H = 2, D = 16, C = H * D, Tmax = 24;
    ls_compute *d = &b->dev, *r = &b->ref;
    pair qkv = some(b, B * T * 3 * C), y = some(b, B * T * C), lse = wide(b, B * H * T), dy = some(b, B * T * C);
    pair dqkv = some(b, B * T * 3 * C), kc = some(b, B * H * Tmax * D), vc = some(b, B * H * Tmax * D);
    for (int k = 0; k < 2; k++) {
        const ls_drop drop = {.p = k ? 0.25f : 0, .key = 5};
        OK(d->ops->attention_fwd(d, y.x, lse.x, qkv.x, B, T, H, D, drop));
        OK(r->ops->attention_fwd(r, y.ref, lse.ref, qkv.ref, B, T, H, D, drop));
        near(b, "attention_fwd", y, 4);
        near(b, "lse", lse, 4);
        OK(d->ops->attention_bwd(d, dqkv.x, dy.x, y.x, lse.x, qkv.x, B, T, H, D, drop));
        OK(r->ops->attention_bwd(r, dqkv.ref, dy.ref, y.ref, lse.ref, qkv.ref, B, T, H, D, drop));
        near(b, "attention_bwd", dqkv, 6);
    }
    /* the same with a cache: some positions at once, then one by one */
    const int64_t parts[] = {5, 1, 1, 4};
    for (int64_t k = 0, pos = 0; k < 4; pos += parts[k++]) {
        pair q = some(b, B * parts[k] * 3 * C), out = some(b, B * parts[k] * C);
        OK(d->ops->attention_cached(d, out.x, kc.x, vc.x, q.x, B, parts[k], pos, NULL, Tmax, H, D, false));
        OK(r->ops->attention_cached(r, out.ref, kc.ref, vc.ref, q.ref, B, parts[k], pos, NULL, Tmax, H, D, false));
        near(b, "attention_cached", out, 3);
    }
    near(b, "kcache", kc, 1);
    near(b, "vcache", vc, 1);
}

static void loss_and_step(bench *b)
{
    const int64_t R = 18, C = 24, V = 77, n = 1000;
    ls_compute *d = &b->dev, *r = &b->ref;
    pair x = some(b, R * C), w = make(b, b->dt, V * C, 0.2, 0), target = make(b, LS_I32, R, 0, 0);
    pair loss = make(b, LS_F64, R, 1, 0), dx = some(b, R * C), dw = wide(b, V * C);
    int32_t host[32];
    for (int64_t i = 0; i < R; i++) host[i] = i % 6 == 5 ? -1 : (int32_t)(i * 11 % V);
    OK(ls_compute_write(d, target.x, host, (size_t)R * sizeof *host));
    for (int acc = 0; acc < 2; acc++) {
        ls_classifier a = {.R = R, .C = C, .V = V, .dloss = 0.25, .acc = acc, .n_part = 1};
        a.row_loss = loss.x, a.dx = dx.x, a.dw = dw.x, a.x = x.x, a.w = w.x, a.target = target.x;
        OK(d->ops->classifier(d, &a));
        a.row_loss = loss.ref, a.dx = dx.ref, a.dw = dw.ref, a.x = x.ref, a.w = w.ref, a.target = host;
        OK(r->ops->classifier(r, &a));
        near(b, "row_loss", loss, 4);
        near(b, "classifier, dx", dx, 8);
        near(b, "classifier, dw", dw, 8);
    }
    /* sums are written to host memory */
    void *out = NULL;
    double want = 0;
    OK(d->device->alloc_host(d->device->ctx, 4 * sizeof(double), &out));
    double *const got = out;
    OK(d->ops->sum(d, got, loss.x, R));
    OK(ls_compute_sync(d));
    for (int64_t i = 0; i < R; i++) want += loss.ref[i];
    assert_true(fabs(*got - want) < 0.05 * fabs(want));
    pair p = some(b, n), master = wide(b, n), g = wide(b, n), m = make(b, LS_F32, n, 0.1, 0),
         v = make(b, LS_F32, n, 0, 0.01);
    OK(d->ops->sumsq(d, got, g.x, n, 300));
    OK(ls_compute_sync(d));
    for (int k = 0; k < 4; k++) {
        want = 0;
        for (int64_t i = 300 * k; i < n && i < 300 * (k + 1); i++) want += g.ref[i] * g.ref[i];
        assert_true(fabs(got[k] - want) < 1e-9 * want);
    }
    d->device->release_host(d->device->ctx, out);
    const ls_adamw h = {.lr = 0.01,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .bias1 = 0.1,
                        .bias2 = 0.05,
                        .grad_scale = 0.5,
                        .n_plain = 1,
                        .plain = {{100, 200}}};
    void *params = b->dt == LS_F32 ? master.x : p.x;
    OK(d->ops->adamw(d, params, master.x, g.x, m.x, v.x, n, &h));
    OK(r->ops->adamw(r, master.ref, master.ref, g.ref, m.ref, v.ref, n, &h));
    near(b, "adamw, master", master, 4);
    near(b, "adamw, m", m, 4);
    near(b, "adamw, v", v, 4);
    if (b->dt != LS_F32) {
        memcpy(p.ref, master.ref, (size_t)n * sizeof(double));
        near(b, "adamw, parameters", p, 2);
    }
    OK(d->ops->narrow(d, params, g.x, n, NULL, NULL));
    pair q = b->dt == LS_F32 ? master : p;
    memcpy(q.ref, g.ref, (size_t)n * sizeof(double));
    near(b, "narrow", q, 1);
    OK(d->ops->add(d, g.x, g.x, m.x, n));
    OK(r->ops->add(r, g.ref, g.ref, m.ref, n));
    near(b, "add", g, 2);
    OK(d->ops->copy(d, m.x, g.x, (size_t)n * sizeof(float)));
    OK(d->ops->zero(d, g.x, (size_t)n * sizeof(float)));
    memcpy(m.ref, g.ref, (size_t)n * sizeof(double));
    memset(g.ref, 0, (size_t)n * sizeof(double));
    near(b, "copy", m, 1);
    near(b, "zero", g, 1);
    assert_int_equal(d->ops->pack(d, LS_PACK_INT8, NULL, NULL, 1, 1, false), LS_E_UNSUPPORTED);
}

/* A hash is that of the array between the operations before and after it, and is known after a sync; host memory has its own. */
static void hashed(bench *b)
{
    ls_compute *d = &b->dev;
    const int64_t n = 5000;
    const size_t nbytes = (size_t)n * sizeof(float);
    pair x = wide(b, n), y = wide(b, n), sum = wide(b, n);
    void *room = NULL;
    float host[64] = {1};
    OK(d->device->alloc_host(d->device->ctx, 4 * sizeof(uint64_t), &room));
    volatile uint64_t *const got = room;
    uint64_t *const out = room;
    OK(d->ops->add(d, sum.x, x.x, y.x, n));
    OK(ls_compute_hash(d, &out[0], sum.x, nbytes, false));
    OK(d->ops->zero(d, sum.x, nbytes));
    OK(ls_compute_hash(d, &out[1], sum.x, nbytes, false));
    OK(d->ops->add(d, sum.x, x.x, y.x, n));
    OK(ls_compute_hash(d, &out[2], sum.x, nbytes, false));
    assert_true(got[0] == 0 && got[2] == 0); /* queued */
    OK(ls_compute_sync(d));
    assert_true(got[0] == got[2] && got[0] != got[1] && got[1] != 0);
    for (int k = 0; k < 2; k++) { /* of memory of both kinds in a row */
        OK(ls_compute_hash(d, &out[k], x.x, nbytes, false));
        OK(ls_compute_hash(d, &out[k], host, sizeof host, true));
        OK(ls_compute_hash(d, &out[k], y.x, nbytes - 2, true));
    }
    OK(ls_compute_sync(d));
    assert_true(got[0] == got[1]);
    OK(ls_compute_hash(d, &out[0], x.x, nbytes, false));
    host[63] = 2;
    OK(ls_compute_hash(d, &out[0], host, sizeof host, true));
    OK(ls_compute_hash(d, &out[0], y.x, nbytes - 2, true));
    OK(ls_compute_sync(d));
    assert_true(got[0] != got[1]);
    d->device->release_host(d->device->ctx, room);
}

/* The pass of a unit, repeated: from the third time on it is replayed from a graph, with the current key and inputs. */
static void recorded(bench *b)
{
    const int64_t R = 8, C = 32;
    ls_compute *d = &b->dev, *r = &b->ref;
    pair x = some(b, R * C), w = some(b, C * C), y = some(b, R * C), delta = some(b, R * C);
    void *at = NULL;
    bool queued;
    OK(d->device->alloc(d->device->ctx, sizeof(ls_pass_head), &at));
    for (uint64_t time = 0; time < 5; time++) {
        const ls_pass_head head = {.drop_key = 40 + time};
        ls_drop drop = {.p = 0.5f, .at = at, .unit = 3, .site = 1};
        OK(ls_compute_write(d, at, &head, sizeof head));
        OK(d->ops->region_begin(d, 99, &queued));
        assert_int_equal(queued, time > 1);
        if (!queued) {
            OK(d->ops->linear_fwd(d, delta.x, x.x, w.x, NULL, R, C, C));
            OK(d->ops->add_fwd(d, y.x, x.x, delta.x, R * C, drop));
            OK(d->ops->region_end(d));
        }
        drop = (ls_drop){.p = 0.5f, .key = ls_rng_key(head.drop_key, LS_RNG_DROPOUT, 3, 1)};
        OK(r->ops->linear_fwd(r, delta.ref, x.ref, w.ref, NULL, R, C, C));
        OK(r->ops->add_fwd(r, y.ref, x.ref, delta.ref, R * C, drop));
        near(b, "recorded", y, 6);
    }
    d->device->release(d->device->ctx, at);
}

static void every_operation_matches_cpu_ref(void **state)
{
    (void)state;
    const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
    const ls_compute_shapes s = {.B = 2, .T = 20, .C = 64, .H = 4, .V = 80, .ffn = 256, .backward = true, .n_part = 1};
    for (size_t i = 0; i < N_OF(types); i++) {
        bench b;
        void (*const parts[])(bench *) = {linear, rows, attention, loss_and_step, hashed, recorded};
        for (size_t k = 0; k < N_OF(parts); k++) {
            opened(&b, types[i], &s);
            parts[k](&b);
            closed(&b);
        }
    }
}

static void the_loader_reports_what_is_wrong(void **state)
{
    (void)state;
    char buf[LS_COMPUTE_WORDS];
    ls_compute c;
    assert_int_equal(ls_compute_open(&c, "abacus", &(ls_compute_open_opts){.dtype = LS_F32}, 0), LS_E_UNSUPPORTED);
    OK(ls_compute_open(&c, "cuda", &(ls_compute_open_opts){.dtype = LS_BF16, .device = 0}, 0));
    assert_string_equal(ls_compute_describe(&c, buf),
                        "cuda: emulated device (0), BF16, cuBLASLt 0.0.0, flash, backward with wgmma for heads of 64 "
                        "(no cuDNN: built without cuDNN)");
    ls_compute_close(&c);
    assert_null(c.ops);
    assert_int_equal(ls_compute_open(&c, "cuda", &(ls_compute_open_opts){.dtype = LS_F64}, 0), LS_E_UNSUPPORTED);
    assert_non_null(
        strstr(ls_err_words(), "does not support the type F64")); /* a message of the plugin reaches the program */
    assert_non_null(strstr(ls_err_trail(), "compute/cuda/cuda.c"));
    assert_non_null(strstr(ls_err_trail(), "via"));
    setenv("LS_EMU_DEVICES", "0", 1);
    assert_int_equal(ls_compute_open(&c, "cuda", &(ls_compute_open_opts){.dtype = LS_F32, .device = -1}, 0),
                     LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "no CUDA device"));
    unsetenv("LS_EMU_DEVICES");
}

int main(void)
{
    const char *build = getenv("LS_BUILD");
    char dir[500];
    snprintf(dir, sizeof dir, "%.480s/emu", build ? build : "build");
    setenv("LS_PLUGIN_DIR", dir, 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_operation_matches_cpu_ref),
                                       cmocka_unit_test(the_loader_reports_what_is_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
