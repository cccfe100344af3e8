/* bench_ops.c - times each operation of a compute backend with the shapes of GPT-2.
 *
 *   bench_ops [--threads N] [--batch 4] [--seq 512] [--repeat 7] [--precision fp32|bf16] [op ...]
 *
 * Best and median of the repetitions, and the least processor time of one (all threads; it shows when others use the machine); GFLOP/s for products, GB/s (bytes that must be read or written once) for the rest.
 * For attention only the products of the lower triangle are counted. */
#include "compute/compute.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { C = 768, H = 12, D = 64, V = 50257, FFN = 3072 };

typedef struct bench {
    ls_compute c;
    int64_t B, T, R, repeat;
    float *big[8]; /* (R, FFN) each */
    float *w[2];   /* (V, C) */
    float *lse, *cache[2];
    double *loss;
    int32_t *ids;
    char **only;
    int n_only;
} bench;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int wanted(const bench *b, const char *name)
{
    for (int i = 0; i < b->n_only; i++)
        if (strstr(name, b->only[i])) return 1;
    return b->n_only == 0;
}

static void report(const char *name, double *t, double cpu, int64_t n, double flop, double bytes)
{
    qsort(t, (size_t)n, sizeof *t, ascending);
    printf("%-18s best %8.3f ms  median %8.3f ms  cpu %8.3f ms", name, 1e3 * t[0], 1e3 * t[n / 2], 1e3 * cpu);
    if (flop > 0) printf("  %7.1f GFLOP/s", flop / t[0] * 1e-9);
    if (bytes > 0) printf("  %6.1f GB/s", bytes / t[0] * 1e-9);
    printf("\n");
}

#define TIME(name, flop, bytes, call)                                       \
    do {                                                                    \
        if (!wanted(b, name)) break;                                        \
        double t_[64], cpu_ = 1e30;                                         \
        for (int64_t i_ = -1; i_ < b->repeat; i_++) {                       \
            double used_ = ls_cpu_seconds(), from_ = ls_now();              \
            LS_TRY(call);                                                   \
            if (i_ < 0) continue;                                           \
            t_[i_] = ls_now() - from_;                                      \
            used_ = ls_cpu_seconds() - used_;                               \
            if (used_ < cpu_) cpu_ = used_;                                 \
        }                                                                   \
        report(name, t_, cpu_, b->repeat, (double)(flop), (double)(bytes)); \
    } while (0)

static ls_status run(bench *b)
{
    ls_compute *c = &b->c;
    const ls_compute_ops *o = c->ops;
    const ls_drop off = {0}, on = {.p = 0.1f, .key = 99};
    int64_t B = b->B, T = b->T, R = b->R, RC = R * C, RF = R * FFN;
    float **x = b->big, *w = b->w[0], *dw = b->w[1];
    double pairs = (double)(B * H) * (double)T * (double)(T + 1) / 2 * D;

    TIME("attention_fwd", 4 * pairs, 0, o->attention_fwd(c, x[0], b->lse, x[1], B, T, H, D, off));
    TIME("attention_bwd", 10 * pairs, 0, o->attention_bwd(c, x[2], x[3], x[0], b->lse, x[1], B, T, H, D, off));
    TIME("attention_fwd drop", 4 * pairs, 0, o->attention_fwd(c, x[0], b->lse, x[1], B, T, H, D, on));
    TIME("attention_bwd drop", 10 * pairs, 0, o->attention_bwd(c, x[2], x[3], x[0], b->lse, x[1], B, T, H, D, on));
    TIME("attention_cached", 0, 8 * (T - 1) * C,
         o->attention_cached(c, x[0], b->cache[0], b->cache[1], x[1], 1, 1, T - 1, NULL, T, H, D, false));
    TIME("layernorm_fwd", 0, 8 * RC, o->layernorm_fwd(c, x[0], x[4], x[5], x[1], w, w + C, R, C, 1e-5));
    TIME("add_layernorm_fwd", 0, 16 * RC,
         o->add_layernorm_fwd(c, x[2], x[0], x[4], x[5], x[1], x[3], w, w + C, R, C, 1e-5, off));
    TIME("add_layernorm drop", 0, 16 * RC,
         o->add_layernorm_fwd(c, x[2], x[0], x[4], x[5], x[1], x[3], w, w + C, R, C, 1e-5, on));
    TIME("layernorm_bwd", 0, 16 * RC,
         o->layernorm_bwd(c, x[0], dw, dw + C, x[2], x[3], x[1], w, x[4], x[5], R, C, false));
    TIME("gelu_fwd tanh", 0, 8 * RF, o->gelu_fwd(c, x[0], x[1], RF, LS_GELU_TANH));
    TIME("gelu_bwd tanh", 0, 12 * RF, o->gelu_bwd(c, x[0], x[2], x[1], RF, LS_GELU_TANH));
    TIME("gelu_fwd erf", 0, 8 * RF, o->gelu_fwd(c, x[0], x[1], RF, LS_GELU_ERF));
    TIME("gelu_bwd erf", 0, 12 * RF, o->gelu_bwd(c, x[0], x[2], x[1], RF, LS_GELU_ERF));
    TIME("linear_fwd qkv", 2 * RC * 3 * C, 0, o->linear_fwd(c, x[0], x[1], w, w, R, C, 3 * C));
    TIME("linear_bwd qkv", 4 * RC * 3 * C, 0,
         o->linear_bwd(c, x[2], dw, dw + 3 * C * C, x[0], x[1], w, R, C, 3 * C, false));
    TIME("linear_fwd up", 2 * RF * C, 0, o->linear_fwd(c, x[0], x[1], w, w, R, C, FFN));
    TIME("linear_bwd down", 4 * RF * C, 0, o->linear_bwd(c, x[2], dw, dw + FFN * C, x[0], x[1], w, R, FFN, C, false));
    TIME("linear_fwd 1 row", 0, 4 * FFN * C, o->linear_fwd(c, x[0], x[1], w, w, 1, C, FFN));
    TIME("logits 1 row", 0, 4 * (int64_t)V * C, o->logits(c, x[0], x[1], w, 1, C, V));
    ls_classifier a = {.row_loss = b->loss,
                       .dx = x[0],
                       .dw = dw,
                       .x = x[1],
                       .w = w,
                       .target = b->ids,
                       .dloss = 1.0 / (double)R,
                       .R = R,
                       .C = C,
                       .V = V};
    TIME("classifier", 6 * RC * V, 0, o->classifier(c, &a));
    a.dx = a.dw = NULL;
    TIME("classifier loss", 2 * RC * V, 0, o->classifier(c, &a));
    TIME("embed_fwd", 0, 12 * RC, o->embed_fwd(c, x[0], b->ids, 0, V, w, w, B, T, C, off));
    TIME("embed_bwd", 0, 4 * (int64_t)V * C + 20 * RC,
         o->embed_bwd(c, dw, x[1], x[0], b->ids, 0, B, T, C, V, T, off, false));
    ls_adamw h = {.lr = 1e-9,
                  .beta1 = 0.9,
                  .beta2 = 0.999,
                  .eps = 1e-8,
                  .weight_decay = 0.01,
                  .bias1 = 0.1,
                  .bias2 = 0.001,
                  .grad_scale = 1};
    TIME("adamw", 0, 28 * RF, o->adamw(c, x[0], x[0], x[1], x[2], x[7], RF, &h));
    double *sums = b->loss;
    TIME("sumsq", 0, 4 * RF, o->sumsq(c, sums, x[0], RF, 65536));
    TIME("add", 0, 12 * RF, o->add(c, x[0], x[1], x[2], RF));
    TIME("add_fwd drop", 0, 12 * RF, o->add_fwd(c, x[0], x[1], x[2], RF, on));
    TIME("zero", 0, 4 * RF, o->zero(c, x[0], (size_t)RF * 4));
    return LS_OK;
}

static ls_status setup(bench *b, int threads, ls_dtype precision)
{
    LS_TRY(ls_compute_open(&b->c, "cpu", &(ls_compute_open_opts){.dtype = precision}, threads));
    b->R = b->B * b->T;
    ls_compute_shapes s = {.B = b->B, .T = b->T, .C = C, .H = H, .V = V, .ffn = FFN, .backward = true};
    b->c.scratch_nbytes = ls_compute_scratch(&b->c, &s);
    b->c.scratch = ls_alloc(b->c.scratch_nbytes);
    int64_t n = b->R * FFN > 4 * V ? b->R * FFN : 4 * V, ok = b->c.scratch != NULL;
    for (int i = 0; i < 8; i++) ok &= (b->big[i] = ls_alloc((size_t)n * sizeof(float))) != NULL;
    for (int i = 0; i < 2; i++) ok &= (b->w[i] = ls_alloc((size_t)V * C * sizeof(float))) != NULL;
    for (int i = 0; i < 2; i++) ok &= (b->cache[i] = ls_alloc((size_t)(b->T * C) * sizeof(float))) != NULL;
    b->lse = ls_alloc((size_t)(b->R * H) * sizeof(float));
    b->loss = ls_alloc((size_t)(b->R + n / 65536 + 1) * sizeof(double));
    b->ids = ls_alloc((size_t)b->R * sizeof(int32_t));
    if (!ok || !b->lse || !b->loss || !b->ids) return ls_nomem((size_t)n * 32, "the benchmark");
    for (int i = 0; i < 7; i++) /* big[7] stays 0: second moments */
        for (int64_t j = 0; j < n; j++) b->big[i][j] = (float)(2 * ls_rng_uniform((uint64_t)i, (uint64_t)j) - 1);
    for (int64_t j = 0; j < (int64_t)V * C; j++) b->w[0][j] = (float)(0.04 * ls_rng_uniform(9, (uint64_t)j) - 0.02);
    for (int64_t j = 0; j < b->R; j++) b->ids[j] = (int32_t)(ls_rng_u64(5, (uint64_t)j) % V);
    char line[LS_COMPUTE_WORDS], human[32];
    printf("%s, B=%d T=%d, scratch %s\n", ls_compute_describe(&b->c, line), (int)b->B, (int)b->T,
           ls_human_bytes(human, (double)b->c.scratch_nbytes));
    return LS_OK;
}

static const char usage[] = "usage: bench_ops [options] [op ...]\n"
                            "Times each operation of the CPU backend with the shapes of GPT-2 124M, or those\n"
                            "whose name contains an op.\n"
                            "  --threads N            0 = all cores [0]\n"
                            "  --batch N, --seq N     sequences, and tokens of each [4, 512]\n"
                            "  --repeat N             measurements of each operation, 1 to 64 [7]\n"
                            "  --precision fp32|bf16  of products [fp32]\n";

int main(int argc, char **argv)
{
    bench b = {.B = 4, .T = 512, .repeat = 7};
    int64_t threads = 0;
    ls_dtype precision = LS_F32;
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--help")) return fputs(usage, stdout) < 0;
        if (!strcmp(argv[i], "--precision") && (!strcmp(value, "fp32") || !strcmp(value, "bf16"))) {
            precision = value[0] == 'b' ? LS_BF16 : LS_F32;
            continue;
        }
        int64_t *to = !strcmp(argv[i], "--threads")  ? &threads
                      : !strcmp(argv[i], "--batch")  ? &b.B
                      : !strcmp(argv[i], "--seq")    ? &b.T
                      : !strcmp(argv[i], "--repeat") ? &b.repeat
                                                     : NULL;
        if (!to || !ls_parse_i64(value, to) || *to < 0 || b.repeat < 1 || b.repeat > 64) {
            fprintf(stderr, "bench_ops: %s '%s': no such option, or a wrong value\n%s", argv[i], value, usage);
            return 2;
        }
    }
    b.only = argv + i;
    b.n_only = argc - i;
    ls_status st = setup(&b, (int)threads, precision);
    if (st == LS_OK) st = run(&b);
    if (st != LS_OK) fprintf(stderr, "bench_ops: %s\n%s", ls_err_words(), ls_err_trail());
    return ls_status_exit_code(st);
}
