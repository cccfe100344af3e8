/* test_ops.c - every operation of the fast CPU backend, and of the reference in float, compared with the reference in double.
 *
 * A case is a list of arrays and a call. The arrays are filled with the same numbers in float and in double, the call is made
 * with 1, 2 and 5 threads (LS_TEST_ALL: and 3; bits must agree) with every SIMD table that this CPU supports, and its outputs are compared with the
 * double reference: the largest difference over the largest value of the array (both printed). Outputs start as NaN, scratch
 * is exactly ls_compute_scratch bytes followed by a guard, and no operation may allocate.
 *
 * Bounds: about four times the largest error measured on arm64 (neon, generic) and x86_64 (avx2, avx512), which is
 * stated next to each bound. Operations with products are also run in bf16, with every kernel that this CPU supports (the emulated ones on all);
 * their bound follows from bf16's 8 bits. */
/* ls-test: long */
#include "compute/compute.h"
#include "compute/compute_impl.h"
#include "compute/cpu/cpu_impl.h"
#include "compute/cpu/gemm.h"
#include "compute/cpu/simd.h"
#include "core/mem.h"
#include "core/rng.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { IN = 1, OUT, BOTH, OUT_F64 }; /* read; written; filled, then compared; written, always double */

typedef struct shape {
    int64_t B, T, C, H, D, V, P, R, K, N, n, Tq, pos;
    ls_drop drop;
    ls_gelu kind;
    bool acc, no_grad, no_bias, packed;
    ls_pack form;
    ls_adamw adam;
    int32_t *ids;
} shape;

typedef struct spec {
    int use;
    int64_t n;
    double scale, shift;
} spec;

#define MAX_ARG 10
typedef struct op_case {
    const char *name;
    ls_status (*call)(ls_compute *c, void **a, const shape *s);
    shape s;
    spec arg[MAX_ARG];
    double bound;
} op_case;

static const ls_drop DROP = {.p = 0.3f, .key = 0x1234567890abcdefu};

/* Normal random numbers for argument `at`. They are the same in all cases, so they are drawn once. */
static const double *normals(int at, int64_t n)
{
    static double *made[MAX_ARG];
    static int64_t n_made[MAX_ARG];
    if (n > n_made[at]) {
        ls_free(made[at]);
        made[at] = ls_alloc((size_t)n * sizeof *made[at]);
        assert_non_null(made[at]);
        n_made[at] = n;
        const uint64_t key = ls_rng_key(7, LS_RNG_TEST, (uint64_t)at, 0);
        for (int64_t i = 0; i < n; i++) made[at][i] = ls_rng_normal(key, (uint64_t)i);
    }
    return made[at];
}

static void fill(void *p, ls_dtype dt, spec a, int at)
{
    const double *normal = a.use == IN || a.use == BOTH ? normals(at, a.n) : NULL;
    for (int64_t i = 0; i < a.n; i++) {
        float x = normal ? (float)(normal[i] * a.scale + a.shift) : NAN;
        if (dt == LS_F64) ((double *)p)[i] = (double)x;
        else ((float *)p)[i] = x;
    }
}

static ls_dtype arg_dt(const ls_compute *c, spec a)
{
    return a.use == OUT_F64 ? LS_F64 : c->ops->dtype;
}

#define GUARD 256

/* Memory for scratch and a guard after it, filled: NaNs reveal a read of scratch before it is written. All runs share one block, because clearing
 * new pages for each would take longer than the operations. */
static unsigned char *fresh_scratch(size_t nbytes)
{
    static unsigned char *block;
    static size_t held;
    if (nbytes + GUARD > held) {
        ls_free(block);
        held = nbytes + GUARD;
        block = ls_alloc(held);
        assert_non_null(block);
    }
    memset(block, 0xff, nbytes);
    memset(block + nbytes, 0x5a, GUARD);
    return block;
}

/* Runs the case on a backend; out[i] are fresh arrays that the caller frees. */
static void run_case(const op_case *k, const char *backend, ls_dtype dt, int n_thread, void **out)
{
    ls_compute c;
    assert_int_equal(ls_compute_open(&c, backend, &(ls_compute_open_opts){.dtype = dt}, n_thread), LS_OK);
    const shape *s = &k->s;
    int64_t C = s->C > s->K ? s->C : s->K;
    ls_compute_shapes shapes = {.B = s->B > 0 ? s->B : s->R,
                                .T = s->T > 0 ? s->T : 1,
                                .C = C,
                                .H = s->H,
                                .V = s->V,
                                .ffn = s->N,
                                .backward = !s->packed,
                                .packed = s->packed};
    c.scratch_nbytes = ls_compute_scratch(&c, &shapes);
    const unsigned char *scratch = c.scratch = fresh_scratch(c.scratch_nbytes);
    for (int i = 0; i < MAX_ARG; i++) {
        out[i] = NULL;
        if (!k->arg[i].use) continue;
        out[i] = ls_alloc((size_t)k->arg[i].n * ls_dtype_nbytes(arg_dt(&c, k->arg[i])));
        assert_non_null(out[i]);
        fill(out[i], arg_dt(&c, k->arg[i]), k->arg[i], i);
    }
    int64_t before = ls_mem_count();
    assert_int_equal(k->call(&c, out, s), LS_OK);
    assert_int_equal(ls_mem_count(), before);
    for (int i = 0; i < GUARD; i++) assert_int_equal(scratch[c.scratch_nbytes + (size_t)i], 0x5a);
}

static void free_args(void **a)
{
    for (int i = 0; i < MAX_ARG; i++) ls_free(a[i]);
}

static double worst_error(const void *got, ls_dtype dt, const double *want, int64_t n)
{
    double top = 1e-30, err = 0;
    for (int64_t i = 0; i < n; i++) {
        double g = dt == LS_F64 ? ((const double *)got)[i] : (double)((const float *)got)[i];
        if (!isfinite(g) || !isfinite(want[i])) return INFINITY;
        if (fabs(want[i]) > top) top = fabs(want[i]);
        if (fabs(g - want[i]) > err) err = fabs(g - want[i]);
    }
    return err / top;
}

static void judge(const op_case *k, const char *who, void **got, void **want, double bound)
{
    for (int i = 0; i < MAX_ARG; i++) {
        if (!k->arg[i].use || k->arg[i].use == IN) continue;
        double e = worst_error(got[i], k->arg[i].use == OUT_F64 ? LS_F64 : LS_F32, want[i], k->arg[i].n);
        if (getenv("LS_TEST_VERBOSE") || !(e <= bound))
            printf("%-24s %-16s array %d: error %.2e, bound %.0e\n", k->name, who, i, e, bound);
        assert_true(e <= bound);
    }
}

static void check_same(const op_case *k, void **one, void **many, int n_thread, const char *who)
{
    for (int j = 0; j < MAX_ARG; j++) {
        if (!k->arg[j].use) continue;
        size_t nbytes = (size_t)k->arg[j].n * (k->arg[j].use == OUT_F64 ? 8 : 4);
        if (memcmp(one[j], many[j], nbytes) != 0)
            fail_msg("%s: array %d differs between 1 and %d threads (%s)", k->name, j, n_thread, who);
    }
}

/* An operation with products, which `cpu` may also be opened for in bf16. */
static void check_bf16(const op_case *k, double bound)
{
    void *want[MAX_ARG];
    bool usable;
    const gemm_kernel *g;
    run_case(k, "cpu-ref", LS_F64, 1, want);
    for (int i = 0; (g = gemm_list(i, &usable)); i++) {
        if (!usable || !gemm_is_bf16(g) || gemm_pick(true, gemm_name(g)) != g) continue; /* each name once */
        void *one[MAX_ARG], *many[MAX_ARG];
        setenv("LS_GEMM", gemm_name(g), 1);
        run_case(k, "cpu", LS_BF16, 1, one);
        run_case(k, "cpu", LS_BF16, 3, many);
        judge(k, gemm_name(g), one, want, bound);
        check_same(k, one, many, 3, gemm_name(g));
        free_args(one);
        free_args(many);
    }
    free_args(want);
    unsetenv("LS_GEMM");
}

static void check(const op_case *k)
{
    static const int threads[] = {2, 5, 3};
    const int n_threads = getenv("LS_TEST_ALL") ? 3 : 2;
    void *want[MAX_ARG], *ref[MAX_ARG];
    run_case(k, "cpu-ref", LS_F64, 1, want);
    run_case(k, "cpu-ref", LS_F32, 1, ref);
    judge(k, "cpu-ref", ref, want, 4 * k->bound); /* plain float sums and libm are less exact than the SIMD code */
    free_args(ref);
    bool usable;
    for (int t = 0; simd_list(t, &usable); t++) {
        const simd_ops *table = simd_list(t, &usable);
        if (!usable) continue;
        setenv("LS_SIMD", table->name, 1);
        void *one[MAX_ARG];
        run_case(k, "cpu", LS_F32, 1, one);
        judge(k, table->name, one, want, k->bound);
        for (int i = 0; i < n_threads; i++) {
            void *many[MAX_ARG];
            run_case(k, "cpu", LS_F32, threads[i], many);
            check_same(k, one, many, threads[i], table->name);
            free_args(many);
        }
        free_args(one);
    }
    unsetenv("LS_SIMD");
    free_args(want);
}

static void check_both(const op_case *k, double bf16_bound)
{
    check(k);
    check_bf16(k, bf16_bound);
}

/* ---- the calls -------------------------------------------------------------------------------------------------- */

static ls_status c_embed_fwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->embed_fwd(c, a[0], s->ids, 0, s->V, a[1], a[2], s->B, s->T, s->C, s->drop);
}

static ls_status c_embed_bwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->embed_bwd(c, a[0], a[1], a[2], s->ids, 0, s->B, s->T, s->C, s->V, s->P, s->drop, s->acc);
}

static ls_status c_norm_fwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->layernorm_fwd(c, a[0], a[1], a[2], a[3], a[4], a[5], s->R, s->C, 1e-5);
}

static ls_status c_norm_again(ls_compute *c, void **a, const shape *s)
{
    LS_TRY(c->ops->layernorm_fwd(c, a[0], a[1], a[2], a[3], a[4], a[5], s->R, s->C, 1e-5));
    LS_TRY(c->ops->zero(c, a[0], (size_t)(s->R * s->C) * ls_dtype_nbytes(c->ops->dtype)));
    return c->ops->layernorm_again(c, a[0], a[3], a[1], a[2], a[4], a[5], s->R, s->C);
}

static ls_status c_add_norm(ls_compute *c, void **a, const shape *s) /* res apart */
{
    return c->ops->add_layernorm_fwd(c, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], s->R, s->C, 1e-5, s->drop);
}

static ls_status c_add_norm_on_x(ls_compute *c, void **a, const shape *s)
{
    return c->ops->add_layernorm_fwd(c, a[4], a[1], a[2], a[3], a[4], a[5], a[6], a[7], s->R, s->C, 1e-5, s->drop);
}

static ls_status c_add_norm_on_delta(ls_compute *c, void **a, const shape *s)
{
    return c->ops->add_layernorm_fwd(c, a[5], a[1], a[2], a[3], a[4], a[5], a[6], a[7], s->R, s->C, 1e-5, s->drop);
}

/* dx dw db dy dres x w b | y mean,rstd */
static ls_status norm_bwd(ls_compute *c, void **a, const shape *s, void *dx, void *dres)
{
    void *mean = a[9], *rstd = ls_at(c, a[9], s->R);
    LS_TRY(c->ops->layernorm_fwd(c, a[8], mean, rstd, a[5], a[6], a[7], s->R, s->C, 1e-5));
    return c->ops->layernorm_bwd(c, dx, a[1], a[2], a[3], dres, a[5], a[6], mean, rstd, s->R, s->C, s->acc);
}

static ls_status c_norm_bwd(ls_compute *c, void **a, const shape *s)
{
    return norm_bwd(c, a, s, a[0], a[4]);
}

static ls_status c_norm_bwd_alone(ls_compute *c, void **a, const shape *s)
{
    return norm_bwd(c, a, s, a[0], NULL);
}

static ls_status c_norm_bwd_on_dres(ls_compute *c, void **a, const shape *s)
{
    return norm_bwd(c, a, s, a[4], a[4]);
}

static ls_status c_linear_fwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->linear_fwd(c, a[0], a[1], a[2], s->no_bias ? NULL : a[3], s->R, s->K, s->N);
}

static ls_status c_linear_bwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->linear_bwd(c, s->no_grad ? NULL : a[0], a[1], s->no_bias ? NULL : a[2], a[3], a[4], a[5], s->R, s->K,
                              s->N, s->acc);
}

static ls_status c_gelu_fwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->gelu_fwd(c, a[0], a[1], s->n, s->kind);
}

static ls_status c_gelu_bwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->gelu_bwd(c, a[0], a[1], a[2], s->n, s->kind);
}

static ls_status c_gelu_bwd_on_dy(ls_compute *c, void **a, const shape *s)
{
    return c->ops->gelu_bwd(c, a[1], a[1], a[2], s->n, s->kind);
}

static ls_status c_add_fwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->add_fwd(c, a[0], a[1], a[2], s->n, s->drop);
}

static ls_status c_add_fwd_on_x(ls_compute *c, void **a, const shape *s)
{
    return c->ops->add_fwd(c, a[1], a[1], a[2], s->n, s->drop);
}

static ls_status c_add_fwd_on_delta(ls_compute *c, void **a, const shape *s)
{
    return c->ops->add_fwd(c, a[2], a[1], a[2], s->n, s->drop);
}

static ls_status c_drop_bwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->drop_bwd(c, a[0], a[1], s->n, s->drop);
}

static ls_status c_drop_bwd_on_dy(ls_compute *c, void **a, const shape *s)
{
    return c->ops->drop_bwd(c, a[1], a[1], s->n, s->drop);
}

static ls_status c_add(ls_compute *c, void **a, const shape *s)
{
    LS_TRY(c->ops->add(c, a[0], a[1], a[2], s->n));
    LS_TRY(c->ops->add(c, a[1], a[1], a[2], s->n));
    return c->ops->add(c, a[2], a[0], a[2], s->n);
}

static ls_status c_copy(ls_compute *c, void **a, const shape *s)
{
    return c->ops->copy(c, a[0], a[1], (size_t)s->n * ls_dtype_nbytes(c->ops->dtype));
}

static ls_status c_zero(ls_compute *c, void **a, const shape *s)
{
    return c->ops->zero(c, a[0], (size_t)s->n * ls_dtype_nbytes(c->ops->dtype));
}

static ls_status c_attn_fwd(ls_compute *c, void **a, const shape *s)
{
    return c->ops->attention_fwd(c, a[0], a[1], a[2], s->B, s->T, s->H, s->D, s->drop);
}

static ls_status c_attn_bwd(ls_compute *c, void **a, const shape *s)
{
    LS_TRY(c->ops->attention_fwd(c, a[0], a[1], a[2], s->B, s->T, s->H, s->D, s->drop));
    return c->ops->attention_bwd(c, a[3], a[4], a[0], a[1], a[2], s->B, s->T, s->H, s->D, s->drop);
}

static ls_status c_attn_cached(ls_compute *c, void **a, const shape *s)
{
    return c->ops->attention_cached(c, a[0], a[1], a[2], a[3], s->B, s->Tq, s->pos, NULL, s->T, s->H, s->D, true);
}

/* row_loss dx dw x w */
static ls_status c_classifier(ls_compute *c, void **a, const shape *s)
{
    ls_classifier k = {.row_loss = a[0],
                       .dx = s->no_grad ? NULL : a[1],
                       .dw = s->no_grad ? NULL : a[2],
                       .x = a[3],
                       .w = a[4],
                       .target = s->ids,
                       .dloss = 0.125,
                       .R = s->R,
                       .C = s->C,
                       .V = s->V,
                       .acc = s->acc};
    return c->ops->classifier(c, &k);
}

static ls_status c_logits(ls_compute *c, void **a, const shape *s)
{
    return c->ops->logits(c, a[0], a[1], a[2], s->R, s->C, s->V);
}

static ls_status c_adamw(ls_compute *c, void **a, const shape *s)
{
    for (int64_t i = 0; i < s->n; i++) { /* second moments are not negative */
        if (c->ops->dtype == LS_F64) ((double *)a[3])[i] = fabs(((double *)a[3])[i]);
        else ((float *)a[3])[i] = fabsf(((float *)a[3])[i]);
    }
    return c->ops->adamw(c, a[0], a[0], a[1], a[2], a[3], s->n, &s->adam);
}

static ls_status c_sumsq(ls_compute *c, void **a, const shape *s)
{
    return c->ops->sumsq(c, a[0], a[1], s->n, s->N);
}

/* ---- the cases -------------------------------------------------------------------------------------------------- */

static spec in_at(int64_t n, double scale, double shift)
{
    return (spec){.use = IN, .n = n, .scale = scale, .shift = shift};
}

static spec both_at(int64_t n, double scale, double shift)
{
    return (spec){.use = BOTH, .n = n, .scale = scale, .shift = shift};
}

static spec in(int64_t n)
{
    return in_at(n, 1, 0);
}

static spec both(int64_t n)
{
    return both_at(n, 1, 0);
}

static spec out(int64_t n)
{
    return (spec){.use = OUT, .n = n};
}

static spec out64(int64_t n)
{
    return (spec){.use = OUT_F64, .n = n};
}

static spec grad(bool acc, int64_t n)
{
    return acc ? both(n) : out(n);
}

static int32_t *some_ids(int64_t n, int64_t V, bool ignored)
{
    int32_t *ids = ls_alloc((size_t)n * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(ls_rng_u64(3, (uint64_t)i) % (uint64_t)V);
        if (i % 4 == 0) ids[i] = 1; /* one frequent id */
        if (ignored && i % 5 == 2) ids[i] = -1;
    }
    return ids;
}

static void embedding_matches_the_reference(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 2}, {2, 7, 6}, {3, 33, 50}, {2, 40, 768}};
    for (size_t i = 0; i < 4; i++)
        for (int d = 0; d < 2; d++) {
            int64_t B = sizes[i][0], T = sizes[i][1], C = sizes[i][2], V = 11, P = T + 2;
            shape s = {.B = B, .T = T, .C = C, .V = V, .P = P, .drop = d ? DROP : (ls_drop){0}};
            s.ids = some_ids(B * T, V, false);
            check(&(op_case){"embed_fwd", c_embed_fwd, s, {out(B * T * C), in(V * C), in(P * C)}, 4e-7});  /* 9e-8 */
            check(&(op_case){"embed_bwd", c_embed_bwd, s, {out(V * C), out(P * C), in(B * T * C)}, 1e-6}); /* 1.7e-7 */
            s.acc = true;
            check(&(op_case){"embed_bwd +=", c_embed_bwd, s, {both(V * C), both(P * C), in(B * T * C)}, 1e-6});
            ls_free(s.ids);
        }
}

static void layer_norm_matches_the_reference(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {3, 2}, {5, 17}, {33, 100}, {70, 768}, {2100, 10}};
    for (size_t i = 0; i < 6; i++)
        for (int d = 0; d < 2; d++) {
            int64_t R = sizes[i][0], C = sizes[i][1], n = R * C;
            shape s = {.R = R, .C = C, .drop = d ? DROP : (ls_drop){0}};
            double b = C < 10 ? 1e-5 : 2e-6; /* few columns: rstd of nearly equal numbers; measured 7e-7 and 2e-7 */
            check(&(op_case){"add_layernorm",
                             c_add_norm,
                             s,
                             {out(n), out(n), out(R), out(R), in_at(n, 2, 1), in(n), in(C), in(C)},
                             b});
            check(&(op_case){"add_layernorm res=x",
                             c_add_norm_on_x,
                             s,
                             {{0}, out(n), out(R), out(R), both_at(n, 2, 1), in(n), in(C), in(C)},
                             b});
            check(&(op_case){"add_layernorm res=delta",
                             c_add_norm_on_delta,
                             s,
                             {{0}, out(n), out(R), out(R), in_at(n, 2, 1), both(n), in(C), in(C)},
                             b});
            if (d) continue;
            check(
                &(op_case){"layernorm_fwd", c_norm_fwd, s, {out(n), out(R), out(R), in_at(n, 2, 1), in(C), in(C)}, b});
            check(&(op_case){
                "layernorm_again", c_norm_again, s, {out(n), out(R), out(R), in_at(n, 2, 1), in(C), in(C)}, b});
            if (C < 2) continue;             /* one column: dx is 0 in theory and a rounding error in practice */
            double g = C < 10 ? 4e-4 : 2e-6; /* two columns: dx is nearly 0 and cancels; measured 1.2e-4 and 4e-7 */
            for (int acc = 0; acc < 2; acc++) {
                s.acc = acc;
                spec dx = out(n), dw = grad(s.acc, C), i_n = in(n), x = in_at(n, 2, 1), w = in(C), y = out(n),
                     stat = out(2 * R);
                check(&(op_case){"layernorm_bwd", c_norm_bwd, s, {dx, dw, dw, i_n, i_n, x, w, w, y, stat}, g});
                check(&(op_case){
                    "layernorm_bwd no dres", c_norm_bwd_alone, s, {dx, dw, dw, i_n, {0}, x, w, w, y, stat}, g});
                check(&(op_case){
                    "layernorm_bwd dx=dres", c_norm_bwd_on_dres, s, {{0}, dw, dw, i_n, both(n), x, w, w, y, stat}, g});
            }
        }
}

static void linear_layers_match_the_reference(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1}, {1, 70, 33},  {3, 9, 200},   {4, 257, 128},
                                       {5, 6, 7}, {67, 31, 45}, {130, 96, 288}};
    for (size_t i = 0; i < 7; i++)
        for (int v = 0; v < 4; v++) {
            int64_t R = sizes[i][0], K = sizes[i][1], N = sizes[i][2];
            shape s = {.R = R, .K = K, .N = N, .acc = v & 1, .no_bias = v & 2, .no_grad = v == 3};
            check_both(&(op_case){"linear_fwd", c_linear_fwd, s, {out(R * N), in(R * K), in(K * N), in(N)}, 3e-6},
                       0.02); /* 6e-7 */
            spec none = {0}, dx = out(R * K), db = grad(s.acc, N);
            check_both(&(op_case){"linear_bwd",
                                  c_linear_bwd,
                                  s,
                                  {s.no_grad ? none : dx, grad(s.acc, K * N), s.no_bias ? none : db, in(R * N),
                                   in(R * K), in(K * N)},
                                  3e-6},
                       0.02); /* 7e-7 */
        }
}

/* y = x w + b over a packed copy of w, which must not be written beyond ls_packed_nbytes. */
static _Alignas(64) unsigned char packed_copy[1 << 20];

static ls_status c_linear_packed(ls_compute *c, void **a, const shape *s)
{
    const size_t nbytes = (size_t)ls_packed_nbytes(s->form, s->K, s->N);
    assert_true(nbytes + GUARD <= sizeof packed_copy);
    memset(packed_copy, 0xff, nbytes);
    memset(packed_copy + nbytes, 0x5a, GUARD);
    LS_TRY(c->ops->pack(c, s->form, packed_copy, a[2], s->K, s->N, s->acc));
    LS_TRY(c->ops->linear_packed(c, s->form, a[0], a[1], packed_copy, s->no_bias ? NULL : a[3], s->R, s->K, s->N));
    for (size_t i = 0; i < GUARD; i++) assert_int_equal(packed_copy[nbytes + i], 0x5a);
    return LS_OK;
}

static ls_status c_unpack(ls_compute *c, void **a, const shape *s)
{
    LS_TRY(c->ops->pack(c, s->form, packed_copy, a[1], s->K, s->N, s->acc));
    return c->ops->unpack(c, s->form, a[0], packed_copy, s->K, s->N, s->acc);
}

static void packed_products_match_the_reference(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 1},   {3, 5},     {64, 16},   {65, 17},
                                       {70, 33}, {129, 200}, {192, 640}, {771, 301}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int v = 0; v < 8; v++) {
            static const int64_t rows[] = {1, 2, 5, 8, 13, 129};
            const int64_t K = sizes[i][0], N = sizes[i][1], R = i < 5 ? rows[(i + (size_t)v) % 6] : 1 + v % 3;
            /* acc: by column */
            shape s = {.R = R, .K = K, .N = N, .acc = v & 1, .no_bias = v & 2, .packed = true};
            s.form = v & 4 ? LS_PACK_BF16 : LS_PACK_INT8;
            /* the rounded values are equal everywhere; only sums are rounded */
            check(&(op_case){
                "linear_packed", c_linear_packed, s, {out(R * N), in(R * K), in(K * N), in(N)}, 3e-6}); /* 1.1e-6 */
            op_case zero = {"linear_packed of zero",
                            c_linear_packed,
                            s,
                            {out(R * N), in_at(R * K, 0, 0), in_at(K * N, 0, 0), in(N)},
                            1e-6};
            check(&zero);
            check(&(op_case){"unpack", c_unpack, s, {out(K * N), in(K * N)}, 1e-7});
        }
}

/* The error of a product with one row, relative to its size. */
static double packed_error(ls_pack form)
{
    shape s = {.R = 1, .K = 768, .N = 500, .form = form, .packed = true};
    const op_case q = {"packed", c_linear_packed, s, {out(500), in(768), in(768 * 500), in(500)}, 0};
    const op_case f = {"f", c_linear_fwd, s, {out(500), in(768), in(768 * 500), in(500)}, 0};
    void *a[MAX_ARG], *b[MAX_ARG];
    run_case(&q, "cpu", LS_F32, 2, a);
    run_case(&f, "cpu", LS_F32, 2, b);
    double err = 0, sum = 0;
    for (int i = 0; i < 500; i++) {
        const double x = (double)((float *)a[0])[i], y = (double)((float *)b[0])[i];
        err += (x - y) * (x - y);
        sum += y * y;
    }
    free_args(a);
    free_args(b);
    return sqrt(err / sum);
}

static void packed_products_are_close_to_the_product(void **state)
{
    (void)state;
    /* int8: a deviation of 1/127/sqrt(12) of the largest of 64 is expected, in both factors: 0.9 %; bf16: 2^-9/sqrt(3) in one: 0.1 % */
    const double int8 = packed_error(LS_PACK_INT8), bf16 = packed_error(LS_PACK_BF16);
    print_message("error of a product: int8 %.5f, bf16 %.5f of its size\n", int8, bf16);
    assert_true(int8 > 0.001 && int8 < 0.015);
    assert_true(bf16 > 0.0001 && bf16 < 0.002);
}

static ls_status c_packed_classifier(ls_compute *c, void **a, const shape *s)
{
    LS_TRY(c->ops->pack(c, s->form, packed_copy, a[2], s->C, s->V, true));
    ls_classifier cl = {.row_loss = a[0],
                        .x = a[1],
                        .w = NULL, /* not read */
                        .packed = packed_copy,
                        .form = s->form,
                        .target = s->ids,
                        .R = s->R,
                        .C = s->C,
                        .V = s->V};
    return c->ops->classifier(c, &cl);
}

static void a_packed_classifier_matches_the_reference(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++) {
        int32_t ids[600];
        shape s = {.R = 600, .C = 70, .V = 133, .ids = ids, .packed = true, .form = v ? LS_PACK_BF16 : LS_PACK_INT8};
        for (int i = 0; i < 600; i++) ids[i] = i % 7 == 3 ? -1 : i * 5 % 133;
        spec loss = {.use = OUT_F64, .n = 600};
        check(&(op_case){"packed classifier", c_packed_classifier, s, {loss, in(600 * 70), in(133 * 70)}, 2e-6});
    }
}

static void pointwise_operations_match_the_reference(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 3, 17, 100, 40003};
    for (size_t i = 0; i < 6; i++)
        for (int v = 0; v < 2; v++) {
            int64_t n = sizes[i];
            shape s = {.n = n, .drop = v ? DROP : (ls_drop){0}, .kind = v ? LS_GELU_ERF : LS_GELU_TANH};
            spec i_n = in(n), o_n = out(n), b_n = both(n);
            check(&(op_case){"gelu_fwd", c_gelu_fwd, s, {o_n, in_at(n, 3, 0)}, 3e-7});      /* 7e-8 */
            check(&(op_case){"gelu_bwd", c_gelu_bwd, s, {o_n, i_n, in_at(n, 3, 0)}, 6e-7}); /* 1.5e-7 */
            check(&(op_case){"gelu_bwd dx=dy", c_gelu_bwd_on_dy, s, {{0}, b_n, in_at(n, 3, 0)}, 1e-6});
            check(&(op_case){"add_fwd", c_add_fwd, s, {o_n, i_n, i_n}, 3e-7}); /* 9e-8 */
            check(&(op_case){"add_fwd y=x", c_add_fwd_on_x, s, {{0}, b_n, i_n}, 3e-7});
            check(&(op_case){"add_fwd y=delta", c_add_fwd_on_delta, s, {{0}, i_n, b_n}, 3e-7});
            check(&(op_case){"drop_bwd", c_drop_bwd, s, {o_n, i_n}, 3e-7}); /* 4e-8 */
            check(&(op_case){"drop_bwd dx=dy", c_drop_bwd_on_dy, s, {{0}, b_n}, 3e-7});
            check(&(op_case){"add", c_add, s, {o_n, b_n, b_n}, 3e-7}); /* 7e-8 */
            check(&(op_case){"zero", c_zero, s, {o_n}, 0});
            check(&(op_case){"copy", c_copy, s, {o_n, i_n}, 0});
            s.N = v ? 7 : 5000;
            check(&(op_case){"sumsq",
                             c_sumsq,
                             s,
                             {out64((n + s.N - 1) / s.N), i_n},
                             1e-13}); /* 2e-14: the reference adds 5000 squares in a row */
            s.adam = (ls_adamw){.lr = 1e-2,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .bias1 = 0.4,
                                .bias2 = 0.2,
                                .grad_scale = 0.5,
                                .coupled = v,
                                .n_plain = n > 3 ? 2 : 0,
                                .plain = {{1, 2}, {n / 2, n - 1}}};
            check(&(op_case){"adamw", c_adamw, s, {b_n, i_n, b_n, b_n}, 4e-7}); /* 9e-8 */
        }
}

static void attention_matches_the_reference(void **state)
{
    (void)state;
    static const int64_t sizes[][4] = {{1, 1, 1, 2},   {2, 5, 3, 6},    {1, 63, 2, 16},  {1, 64, 1, 64},
                                       {2, 65, 2, 64}, {1, 130, 3, 34}, {1, 200, 2, 96}, {1, 70, 1, 256}};
    for (size_t i = 0; i < 8; i++)
        for (int d = 0; d < 2; d++) {
            int64_t B = sizes[i][0], T = sizes[i][1], H = sizes[i][2], D = sizes[i][3], C = H * D, n = B * T * C;
            shape s = {.B = B, .T = T, .H = H, .D = D, .C = C, .drop = d ? DROP : (ls_drop){0}};
            check_both(&(op_case){"attention_fwd", c_attn_fwd, s, {out(n), out(B * H * T), in_at(3 * n, 1.5, 0)}, 4e-6},
                       0.04); /* 1.1e-6 */
            check_both(&(op_case){"attention_bwd",
                                  c_attn_bwd,
                                  s,
                                  {out(n), out(B * H * T), in_at(3 * n, 1.5, 0), out(3 * n), in(n)},
                                  5e-6},
                       0.04); /* 1.4e-6 */
            if (d) continue;
            for (int v = 0; v < 3; v++) {
                s.Tq = v == 0 ? 1 : v == 1 ? (T + 1) / 2 : T;
                s.pos = v == 0 ? T - 1 : v == 1 ? T / 2 : 0;
                spec cache = both(n);
                check(&(op_case){"attention_cached",
                                 c_attn_cached,
                                 s,
                                 {out(B * s.Tq * C), cache, cache, in_at(B * s.Tq * 3 * C, 1.5, 0)},
                                 2e-6}); /* 5.5e-7 */
            }
        }
}

static void the_classifier_matches_the_reference(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 2}, {3, 6, 5}, {7, 33, 1100}, {530, 8, 13}};
    for (size_t i = 0; i < 4; i++)
        for (int v = 0; v < 3; v++) {
            int64_t R = sizes[i][0], C = sizes[i][1], V = sizes[i][2];
            shape s = {.R = R, .C = C, .V = V, .acc = v == 1, .no_grad = v == 2};
            s.ids = some_ids(R, V, true);
            spec none = {0}, dx = out(R * C), dw = grad(s.acc, V * C);
            check_both(
                &(op_case){"classifier",
                           c_classifier,
                           s,
                           {out64(R), s.no_grad ? none : dx, s.no_grad ? none : dw, in_at(R * C, 2, 0), in(V * C)},
                           8e-6},
                0.03); /* 7e-7; 2e-6 with plain matmul */
            check_both(&(op_case){"logits", c_logits, s, {out(R * V), in(R * C), in(V * C)}, 1e-6},
                       0.02); /* 1.3e-7; 3e-7 with plain matmul */
            ls_free(s.ids);
        }
}

/* Ignored rows contribute neither loss nor gradient; a NaN in x reaches its loss. */
static void ignored_rows_leave_no_loss_or_gradient(void **state)
{
    (void)state;
    enum { R = 3, C = 4, V = 6 };
    float x[R * C] = {0}, w[V * C] = {0}, dx[R * C], dw[V * C];
    double loss[R];
    int32_t target[R] = {2, -1, 5};
    x[8] = NAN;
    ls_compute c;
    assert_int_equal(ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 2), LS_OK);
    c.scratch =
        ls_alloc(ls_compute_scratch(&c, &(ls_compute_shapes){.B = 1, .T = R, .C = C, .V = V, .backward = true}));
    ls_classifier a = {
        .row_loss = loss, .dx = dx, .dw = dw, .x = x, .w = w, .target = target, .dloss = 1, .R = R, .C = C, .V = V};
    assert_int_equal(c.ops->classifier(&c, &a), LS_OK);
    assert_true(fabs(loss[0] - log(6.0)) < 1e-7);
    assert_true(loss[1] == 0);
    assert_true(isnan(loss[2]));
    for (int j = C; j < 2 * C; j++) assert_true(dx[j] == 0);
    ls_free(c.scratch);
}

/* With a kernel whose sums run on, the classifier takes more rows at a time; calls of 512 rows that add to each other have the same bits. */
static void the_rows_of_a_chunk_change_no_bit(void **state)
{
    (void)state;
    enum { R = 2100, C = 16, V = 40, GUARD_BYTES = 64 };
    static float x[R * C], w[V * C], dx[2][R * C], dw[2][V * C];
    static double loss[2][R];
    static int32_t target[R];
    for (int i = 0; i < R * C; i++) x[i] = (float)ls_rng_normal(11, (uint64_t)i);
    for (int i = 0; i < V * C; i++) w[i] = (float)ls_rng_normal(12, (uint64_t)i);
    for (int i = 0; i < R; i++) target[i] = i % 7 ? i % V : -1;
    setenv("LS_GEMM", "amx-bf16-emulated", 1);
    for (int t = 0; t < 2; t++) {
        const int rows = t ? 512 : R;
        ls_compute c;
        assert_int_equal(ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_BF16}, t ? 1 : 3), LS_OK);
        const ls_compute_shapes s = {.B = 1, .T = rows, .C = C, .V = V, .backward = true};
        c.scratch_nbytes = ls_compute_scratch(&c, &s);
        unsigned char *scratch = ls_alloc(c.scratch_nbytes + GUARD_BYTES);
        assert_non_null(scratch);
        memset(scratch, 0xff, c.scratch_nbytes);
        memset(scratch + c.scratch_nbytes, 0x5a, GUARD_BYTES);
        c.scratch = scratch;
        for (int r = 0; r < R; r += rows) {
            const ls_classifier a = {.row_loss = loss[t] + r,
                                     .dx = dx[t] + r * C,
                                     .dw = dw[t],
                                     .x = x + r * C,
                                     .w = w,
                                     .target = target + r,
                                     .dloss = 0.5,
                                     .R = R - r < rows ? R - r : rows,
                                     .C = C,
                                     .V = V,
                                     .acc = r > 0};
            assert_int_equal(c.ops->classifier(&c, &a), LS_OK);
        }
        for (int i = 0; i < GUARD_BYTES; i++) assert_int_equal(scratch[c.scratch_nbytes + (size_t)i], 0x5a);
        ls_free(scratch);
    }
    unsetenv("LS_GEMM");
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
    assert_memory_equal(dw[0], dw[1], sizeof dw[0]);
}

static void a_backend_opens_or_states_why_not(void **state)
{
    (void)state;
    ls_compute c;
    char buf[LS_COMPUTE_WORDS];
    assert_int_equal(ls_compute_open(&c, "cpu-none", &(ls_compute_open_opts){.dtype = LS_F32}, 1), LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "cpu-ref"));
    assert_int_equal(ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_F64}, 1), LS_E_UNSUPPORTED);
    assert_int_equal(ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, -1), LS_E_ARG);
    assert_int_equal(ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 0), LS_OK);
    assert_true(c.n_thread >= 1);
    printf("%s\n", ls_compute_describe(&c, buf));
    ls_compute_ops broken = *c.ops;
    assert_null(compute_missing_op(&broken));
    broken.attention_bwd = NULL;
    assert_string_equal(compute_missing_op(&broken), "attention_bwd");
}

/* OpenBLAS's own threads spin when the program has begun; their CPU time would count as the run's. */
static void no_thread_of_the_blas_library_is_left(void **state)
{
    (void)state;
    const int *there = dlsym(RTLD_DEFAULT, "blas_server_avail"); /* another library: it makes none by itself */
    ls_compute c;
    assert_int_equal(ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 1), LS_OK);
    if (there) assert_int_equal(*there, 0);
    ls_compute_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_thread_of_the_blas_library_is_left),
        cmocka_unit_test(a_backend_opens_or_states_why_not),
        cmocka_unit_test(pointwise_operations_match_the_reference),
        cmocka_unit_test(embedding_matches_the_reference),
        cmocka_unit_test(layer_norm_matches_the_reference),
        cmocka_unit_test(linear_layers_match_the_reference),
        cmocka_unit_test(packed_products_match_the_reference),
        cmocka_unit_test(packed_products_are_close_to_the_product),
        cmocka_unit_test(a_packed_classifier_matches_the_reference),
        cmocka_unit_test(attention_matches_the_reference),
        cmocka_unit_test(the_classifier_matches_the_reference),
        cmocka_unit_test(ignored_rows_leave_no_loss_or_gradient),
        cmocka_unit_test(the_rows_of_a_chunk_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
