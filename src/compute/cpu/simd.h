/* simd.h - the vector kernels of the fast CPU backend: one table for each instruction set, chosen at run time.
 *
 * Kernels work on one thread. A thread is given whole rows or a range of elements; what a kernel computes for an element
 * depends on the element (or its row) alone, so the way work is cut between threads does not change a bit. Different
 * tables may differ in the last bits. Accuracy of exp and of both GELUs: simd_math.inc. */
#ifndef LS_COMPUTE_CPU_SIMD_H
#define LS_COMPUTE_CPU_SIMD_H

#include "compute/compute.h"

#include <stdbool.h>
#include <stdint.h>

/* Dropout as the kernels see it. */
typedef struct simd_drop {
    bool on;
    uint32_t threshold, key_lo, key_hi;
    float scale;
} simd_drop;

simd_drop simd_drop_of(ls_drop d);

/* One head of one sequence. Rows of q, k, v (and their gradients) are ld apart, rows of y ldy apart. */
typedef struct simd_attn {
    const float *q, *k, *v;
    const float *y, *dy; /* backward only */
    float *dq, *dk, *dv; /* backward only */
    float *out;          /* forward: y */
    float *lse;          /* (T) written forward, read backward */
    int64_t ld, ldy, T, D;
    simd_drop drop;
    uint32_t row0; /* dropout's index of (i,j) is (row0+i)*T + j */
    float *work;   /* simd_attn_floats() of them, 64-byte aligned */
} simd_attn;

typedef struct simd_ops {
    const char *name;

    void (*exp)(float *y, const float *x, int64_t n); /* used by tests; the others call it inline */
    void (*gelu_fwd)(float *y, const float *x, int64_t n, ls_gelu kind);
    void (*gelu_bwd)(float *dx, const float *dy, const float *x, int64_t n, ls_gelu kind);

    void (*add)(float *y, const float *a, const float *b, int64_t n);
    /* y = x + drop(delta), y may be x; i0 is dropout's index of the first element */
    void (*add_drop)(float *y, const float *x, const float *delta, int64_t n, const simd_drop *d, uint32_t i0);
    void (*drop)(float *y, const float *x, int64_t n, const simd_drop *d, uint32_t i0);
    void (*add_then_drop)(float *y, const float *a, const float *b, int64_t n, const simd_drop *d, uint32_t i0);

    void (*norm_row)(float *y, float *mean, float *rstd, const float *x, const float *w, const float *b, int64_t C,
                     float eps);
    void (*norm_again)(float *y, const float *x, float mean, float rstd, const float *w, const float *b, int64_t C);
    /* dw and db are added to; dres may be NULL or dx */
    void (*norm_bwd_row)(float *dx, float *dw, float *db, const float *dy, const float *dres, const float *x,
                         const float *w, float mean, float rstd, int64_t C);

    /* x becomes exp(x - max); returns the sum (float lanes over 1024 elements, those in double) and the maximum */
    double (*exp_row)(float *x, int64_t n, float *top);
    void (*scale)(float *x, int64_t n, float by);

    /* y (R,N) columns n0..n1 = x (R,K) w (K,N) + b, for few rows (LS_FEW_ROWS); each row's bits are those of the row alone */
    void (*linear_few)(float *y, const float *x, const float *w, const float *b, int64_t R, int64_t K, int64_t N,
                       int64_t n0, int64_t n1);
    /* y[r*ldy + v] = x_r . w_v for v0 <= v < v1, for few rows; likewise */
    void (*dots_few)(float *y, int64_t ldy, const float *x, const float *w, int64_t R, int64_t C, int64_t v0,
                     int64_t v1);

    /* plain: without weight decay */
    void (*adamw)(float *p, const float *g, float *m, float *v, int64_t n, const ls_adamw *h, bool plain);
    void (*to_bf16)(uint16_t *y, const float *x, int64_t n); /* to the nearest */
    double (*sumsq)(const float *x, int64_t n);

    /* p = exp(p - lse), ds = p (ds - delta), both zero from n to `filled` (a multiple of 16, rows are that long) */
    void (*softmax_bwd_row)(float *p, float *ds, int64_t n, int64_t filled, float lse, float delta);
    void (*attn_fwd)(const simd_attn *a);
    void (*attn_bwd)(const simd_attn *a);
    /* y (D) = softmax(q k^T / sqrt(D)) v over n rows of k and v, D apart; p holds n floats */
    void (*attn_row)(float *y, const float *q, const float *k, const float *v, int64_t n, int64_t D, float *p);
} simd_ops;

/* The widest table this CPU runs, or the one named by the environment variable LS_SIMD if it runs here. */
const simd_ops *simd_pick(void);
/* i-th table compiled into this program, NULL past the end; usable tells whether this CPU runs it. */
const simd_ops *simd_list(int i, bool *usable);

/* Working space of attn_fwd / attn_bwd in floats. */
int64_t simd_attn_floats(int64_t T, int64_t D, bool backward);

#define SIMD_ATTN_BLOCK 64 /* rows and columns of one block of probabilities */
#define SIMD_MAX_HEAD   256

extern const simd_ops simd_generic;
#if defined(__aarch64__)
extern const simd_ops simd_neon;
#elif defined(__x86_64__)
extern const simd_ops simd_avx2, simd_avx512;
#endif

#endif
