/* compute.h - the operations GPT-2 is made of, as a table that a backend fills.
 *
 * Legend   B batch, T positions, C width, H heads, D = C/H, R = B*T rows, V vocabulary, K in, N out.
 *          Arrays are row-major and dense: (R,C) is R rows of C elements.
 *          Two element types (equal on the CPU): `dtype` for parameters, activations and activation gradients; `wide` (fp32
 *          on GPUs) for parameter gradients, Adam moments, master weights, and the statistics of norms and attention. An array
 *          has type `dtype` unless stated otherwise; dw, db, dwte, dwpe, mean, rstd, lse, m, v, g and master are `wide`.
 *          A gradient argument d<name> is overwritten when acc is false and added to when acc is true (see adds_alike).
 *
 * Memory   The operations of a device (c->device, core/device.h) are asynchronous: they are queued and run later, in call order.
 *          Their arrays are device memory, except those marked "host": pinned host memory (alloc_host), whose contents are valid
 *          after ls_compute_sync. On the CPU an operation is complete when it returns.
 *
 * Invariants
 *   1. results do not depend on the number of threads: the order of every sum depends on the shapes only;
 *   2. no operation allocates: the caller provides scratch memory, sized by ls_compute_scratch before step 1;
 *   3. the caller checks arguments when it plans memory; operations do not check them again;
 *   4. with up to LS_FEW_ROWS rows, linear_fwd, logits and attention_cached give each row the same bits as a call with that row
 *      only; linear_packed, norms, GELU and additions do so with any number of rows. So a draft can be verified in one pass.
 *
 * `cpu-ref` follows the equations, in float and in double (the reference of the tests); `cpu` is the optimized backend. */
#ifndef LS_COMPUTE_COMPUTE_H
#define LS_COMPUTE_COMPUTE_H

#include "core/buf.h"
#include "core/device.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ls_gelu { LS_GELU_TANH, LS_GELU_ERF } ls_gelu;

/* The number type of a packed matrix. Int8: 64 consecutive elements along K have one fp32 scale. NONE: no copy, the matrix in dtype. */
typedef enum ls_pack { LS_PACK_NONE, LS_PACK_BF16, LS_PACK_INT8 } ls_pack;

/* 8-bit formats of operands: e4m3 has 3 bits of mantissa and magnitudes up to 448, e5m2 has 2 bits and magnitudes up to 57344. */
typedef enum ls_fp8 { LS_E4M3, LS_E5M2 } ls_fp8;

/* An operand of a product in 8 bits: v * scale, rounded to nearest even and saturated. v (R,N) is x, gelu(pre) if x is NULL, or x * gelu'(pre). */
typedef struct ls_quantize {
    const void *x, *pre; /* (R,N) each, one of them may be NULL                                          */
    ls_gelu kind;        /* with pre                                                                     */
    void *q, *qt;        /* (R,N) and transposed (N,R), one byte per element; NULL: not wanted           */
    const float *scale;  /* one number, a power of two; may be NULL without q and qt                     */
    float *amax;         /* one number: becomes the maximum of itself and of all |v|; NaN if v has one   */
    float *sums;         /* (N) column sums of v, overwritten, or added to with acc; NULL: not wanted    */
    bool acc;
    int64_t R, N; /* multiples of 16; R = 1: a range of N elements of any array, without pre, qt and sums */
    ls_fp8 form;
    const struct ls_quantize_norm *norm; /* v is the layer norm of x; NULL: see above */
} ls_quantize;

/* y (M,N) = a b^T + bias + add, or y (+)= a b^T in `wide`; a (M,K), b (N,K) in 8 bits, each times its factor. Sums are fp32. */
typedef struct ls_product8 {
    void *y;
    const void *a, *b;
    ls_fp8 a_form, b_form;            /* not both LS_E5M2                                                  */
    const float *a_factor, *b_factor; /* one number each, 1/scale, at multiples of 16 bytes                */
    const void *bias, *add;           /* (N) or NULL; (M,N) or NULL, may be y; not with wide               */
    bool wide, acc;                   /* y is of type `wide`; it is added to                               */
    bool fast;                        /* partial sums may keep fewer bits than fp32 while K is summed      */
    int64_t M, N, K;                  /* multiples of 16 */
} ls_product8;

/* An id that may be chosen, and its logit. */
#define LS_BEST_MOST 64
typedef struct ls_best {
    float logit;
    int32_t id;
} ls_best;

/* Values that change between two replays of a recorded pass. Stored before a micro-batch's ids, in memory that operations read. */
typedef struct ls_pass_head {
    uint64_t drop_key;
    double dloss;
    int64_t pos; /* of the first column: of embed_fwd and attention_cached */
} ls_pass_head;

/* Inverted dropout: element i survives iff ls_rng_u32(key, i) >= p * 2^32, and is then divided by 1-p. p == 0 is off.
 * The mask is not stored: the backward pass recomputes it from the key. */
typedef struct ls_drop {
    float p;
    uint64_t key;
    /* Recorded operations (region_begin) are replayed with other keys: with `at`, the key is
     * ls_rng_key(at->drop_key, LS_RNG_DROPOUT, unit, site), read when the operation runs. If NULL, `key` is used. embed_fwd also reads
     * at->pos, with or without dropout: its positions are at->pos, at->pos + 1, … */
    const struct ls_pass_head *at;
    uint32_t unit, site;
    int64_t first;        /* add_fwd, drop_bwd, add_layernorm_fwd: global index of the first local element */
    int64_t head, n_head; /* attention: the first local head and the number of heads in all; 0: all heads are local */
} ls_drop;

/* For ls_quantize: v is the layer norm of x (R,N), or of res = x + drop(delta), rounded to bf16: what layernorm_fwd and add_layernorm_fwd
 * write. v itself is not stored. Then pre and sums are NULL, q and qt are not, and form is LS_E4M3. */
typedef struct ls_quantize_norm {
    void *mean, *rstd; /* (R), written                                         */
    const void *w, *b; /* (N)                                                  */
    double eps;
    const void *delta; /* (R,N), or NULL: no sum, and res and drop are not used */
    void *res;         /* (R,N), written; may be x or delta                    */
    ls_drop drop;
    void *y; /* (R,N) of dtype, for widths that are computed in two steps: may be written */
} ls_quantize_norm;

/* The elements of a range that are gains of norms: ranges [first, end), in order. In a 16-bit dtype a gain w is stored as w - 1 (adamw and
 * narrow write it, the norms add 1): gains are near 1, where bf16 has a spacing of 2^-8, so small updates would be lost by rounding. */
#define LS_MOST_GAINS 2
typedef struct ls_gains {
    int n;
    int64_t at[LS_MOST_GAINS][2];
} ls_gains;

/* Stochastic rounding (ls_compute_open_opts): the random bits of element i come from (key, first + i). */
typedef struct ls_rounding {
    uint64_t key;
    int64_t first;
} ls_rounding;

/* What the norm of the gradient decides about an update (compute/decide.h): decide writes it, adamw reads it. */
typedef struct ls_decision {
    double squares; /* the sum of squares of the gradient                              */
    double factor;  /* of the gradient: clipping, 1/loss scale                         */
    int64_t update; /* 0: the norm or another number is not finite: nothing is updated */
} ls_decision;

typedef struct ls_decide {
    ls_decision *out, *host; /* in memory of the operations; a copy (host)                                         */
    const double *block_sum; /* of sumsq, in memory of the operations: the blocks of unit 0, then those of unit 1 … */
    const int64_t *n_block;  /* blocks of each unit; read before the call returns                                  */
    int n_unit, n_loss, n_amax; /* numbers of elements                                                                */
    double clip, unscale;       /* largest norm, 0: any; 1/loss scale                                                 */
    const double *loss;         /* (host) pairs, of which the first number must be finite                             */
    const float *amax;          /* numbers that must be finite, too                                                   */
} ls_decide;

#define LS_ADAMW_PLAIN 12 /* the number of tensors of a unit */

typedef struct ls_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    double bias1, bias2; /* 1 - beta^t of the applied step t, or 1 without bias correction                           */
    double grad_scale;   /* factor of the gradients (1/loss scale, clipping)                                         */
    bool coupled;        /* L2 form: weight_decay*p is added to the gradient                                         */
    /* In memory of the operations, read when adamw runs: its factor is used instead of grad_scale, or nothing is updated. NULL: none. */
    const ls_decision *at;
    /* [first, end) of elements without weight decay, in order: `n_plain` pairs */
    int n_plain;
    int64_t plain[LS_ADAMW_PLAIN][2];
    ls_gains gains;
    ls_rounding round;
} ls_adamw;

/* One of the ranges of adamw_many: the arguments of adamw. */
typedef struct ls_adamw_job {
    void *p, *master;
    const void *g;
    void *m, *v;
    int64_t n;
    ls_adamw h;
} ls_adamw_job;

typedef struct ls_compute ls_compute;

#define LS_FEW_ROWS 9 /* up to this many rows, reading the weights limits a matrix product (invariant 4) */

/* One call of the classifier: logits = x w^T, softmax cross-entropy against target, and its gradient. Rows are processed
 * in chunks, so that only (chunk, V) logits exist. Rows with target < 0 are ignored.
 *
 * If the vocabulary is sharded over n_part workers, w holds V rows starting at id `first` (shard `part`). For each row a worker computes the
 * largest logit, the sum of exponentials relative to it, and the target's logit if it is local; gather collects these from all workers, and
 * each computes the same loss from them. dx is then a partial gradient; the sum over the workers is the whole. */
typedef struct ls_classifier {
    double *row_loss;      /* (R) out: -log p(target), 0 for ignored rows                                            */
    void *dx;              /* (R,C) out, or NULL: loss only                                                          */
    void *dw;              /* (V,C) out or added to (acc), NULL with dx                                              */
    const void *x, *w;     /* (R,C), (V,C)                                                                           */
    const int32_t *target; /* (R)                                                                                    */
    double dloss;          /* factor of every row's gradient, e.g. 1/R; with `at`, at->dloss is read instead         */
    const ls_pass_head *at;
    int64_t R, C, V;
    int64_t V_room; /* readable rows of w, >= V: the values after row V are finite, too. 0: V                        */
    bool acc;
    const void *packed; /* a packed copy of w (by_column) to use instead of it, or NULL; with dx and dw NULL only */
    ls_pack form;       /* of packed */
    int64_t first;      /* id of w's first row; targets are global ids */
    int part, n_part;
    /* All-gather of x (n_part * n), in place: part `part` is filled in by the caller. Not called if n_part <= 1. x is in scratch. */
    ls_status (*gather)(void *ctx, double *x, int64_t n);
    void *gather_ctx;
} ls_classifier;

/* Largest shapes that will be used; 0 for operations that are not used. */
typedef struct ls_compute_shapes {
    int64_t B, T, C, H, V, ffn; /* ffn = 4C */
    bool backward;
    int n_part;  /* shards of the vocabulary; V is the size of this one */
    bool packed; /* linear_packed or a packed classifier is used */
    bool fp8;    /* quantize is used                             */
} ls_compute_shapes;

typedef struct ls_compute_ops {
    const char *name; /* --compute NAME */
    ls_dtype dtype, wide;

    /* y = drop(wte[ids - first] + wpe[t]);  ids (R), wte (V,C), wpe (>=T,C) or NULL (no positions), y (R,C). Ids outside
     * first … first+V-1 (a sharded vocabulary) use a row of zeros instead of wte's. */
    ls_status (*embed_fwd)(ls_compute *c, void *y, const int32_t *ids, int64_t first, int64_t V, const void *wte,
                           const void *wpe, int64_t B, int64_t T, int64_t C, ls_drop drop);
    /* dwte (V,C) and dwpe (P,C): the whole arrays are written (unused rows become 0) unless acc; ids outside the shard add to dwpe only */
    ls_status (*embed_bwd)(ls_compute *c, void *dwte, void *dwpe, const void *dy, const int32_t *ids, int64_t first,
                           int64_t B, int64_t T, int64_t C, int64_t V, int64_t P, ls_drop drop, bool acc);

    /* y = (x - mean)*rstd*w + b;  mean, rstd (R); in 16-bit types w is stored as w - 1 (ls_gains), here and in the next three */
    ls_status (*layernorm_fwd)(ls_compute *c, void *y, void *mean, void *rstd, const void *x, const void *w,
                               const void *b, int64_t R, int64_t C, double eps);
    /* res = x + drop(delta), then layernorm of res; res may be x or delta */
    ls_status (*add_layernorm_fwd)(ls_compute *c, void *res, void *y, void *mean, void *rstd, const void *x,
                                   const void *delta, const void *w, const void *b, int64_t R, int64_t C, double eps,
                                   ls_drop drop);
    /* dx = d(layernorm)/dx + dres (dres may be NULL, or dx itself); dw, db (C) */
    ls_status (*layernorm_bwd)(ls_compute *c, void *dx, void *dw, void *db, const void *dy, const void *dres,
                               const void *x, const void *w, const void *mean, const void *rstd, int64_t R, int64_t C,
                               bool acc);
    /* recomputes y from x and the stored statistics (y is not kept for the backward pass) */
    ls_status (*layernorm_again)(ls_compute *c, void *y, const void *x, const void *mean, const void *rstd,
                                 const void *w, const void *b, int64_t R, int64_t C);

    /* y = x w + b;  x (R,K), w (K,N), b (N) or NULL, y (R,N) */
    ls_status (*linear_fwd)(ls_compute *c, void *y, const void *x, const void *w, const void *b, int64_t R, int64_t K,
                            int64_t N);
    /* dx = dy w^T, dw = x^T dy, db = column sums of dy; each may be NULL (not computed). dx is always overwritten. */
    ls_status (*linear_bwd)(ls_compute *c, void *dx, void *dw, void *db, const void *dy, const void *x, const void *w,
                            int64_t R, int64_t K, int64_t N, bool acc);

    /* (optional, all three) Fused operations. If NULL, the caller uses the separate operations.  y = gelu(pre), pre = x w + b */
    ls_status (*linear_gelu_fwd)(ls_compute *c, void *y, void *pre, const void *x, const void *w, const void *b,
                                 int64_t R, int64_t K, int64_t N, ls_gelu kind);
    /* y = res + x w + b; y may be res */
    ls_status (*linear_add_fwd)(ls_compute *c, void *y, const void *res, const void *x, const void *w, const void *b,
                                int64_t R, int64_t K, int64_t N);
    /* dpre (R,K) = (dy w^T) * gelu'(pre) */
    ls_status (*linear_gelu_bwd)(ls_compute *c, void *dpre, const void *dy, const void *w, const void *pre, int64_t R,
                                 int64_t K, int64_t N, ls_gelu kind);

    ls_status (*gelu_fwd)(ls_compute *c, void *y, const void *x, int64_t n, ls_gelu kind);
    ls_status (*gelu_bwd)(ls_compute *c, void *dx, const void *dy, const void *x, int64_t n,
                          ls_gelu kind); /* dx may be dy */

    /* y = x + drop(delta) (y may be x or delta);  dx = drop'(dy), dx may be dy */
    ls_status (*add_fwd)(ls_compute *c, void *y, const void *x, const void *delta, int64_t n, ls_drop drop);
    ls_status (*drop_bwd)(ls_compute *c, void *dx, const void *dy, int64_t n, ls_drop drop);

    /* Causal attention, softmax(q k^T / sqrt(D)) v, the T x T matrix is never stored. qkv (B,T,3C): q, k, v of all heads side by
     * side; y (B,T,C); lse (B,H,T) = log of the sum of exponentials of each row. Dropout applies to the probabilities; the
     * element index of (b,h,i,j) is ((b*H+h)*T+i)*T+j modulo 2^32, where h and H count the heads of all workers. */
    ls_status (*attention_fwd)(ls_compute *c, void *y, void *lse, const void *qkv, int64_t B, int64_t T, int64_t H,
                               int64_t D, ls_drop drop);
    ls_status (*attention_bwd)(ls_compute *c, void *dqkv, const void *dy, const void *y, const void *lse,
                               const void *qkv, int64_t B, int64_t T, int64_t H, int64_t D, ls_drop drop);
    /* The same for Tq new positions after those in a cache: qkv (B,Tq,3C) are positions pos..pos+Tq-1 of each sequence; their keys and
     * values are first written into kcache, vcache (B,H,Tmax,D); y (B,Tq,C). With `at`, at->pos is read when the operation runs,
     * instead of pos. alike: every position has the bits of a call with it alone, however many there are. */
    ls_status (*attention_cached)(ls_compute *c, void *y, void *kcache, void *vcache, const void *qkv, int64_t B,
                                  int64_t Tq, int64_t pos, const ls_pass_head *at, int64_t Tmax, int64_t H, int64_t D,
                                  bool alike);

    ls_status (*classifier)(ls_compute *c, const ls_classifier *a);
    /* logits (R,V) = x (R,C) w (V,C)^T, for generation */
    ls_status (*logits)(ls_compute *c, void *y, const void *x, const void *w, int64_t R, int64_t C, int64_t V);

    /* (optional) What a choice among the first n of V ids needs to know of R rows of logits (R,V): the k largest logits with their ids, in
     * any order, of equal ones those with the lower ids: best (R,k) (host), k <= n and k <= LS_BEST_MOST; log_sum (R) (host): the logarithm of
     * the sum of the exponentials of all V, NaN if a logit is not finite. If NULL, the caller reads the logits. */
    ls_status (*best)(ls_compute *c, ls_best *best, float *log_sum, const void *logits, int64_t R, int64_t V, int64_t n,
                      int64_t k);

    /* A packed copy of a matrix, for inference, in a layout private to the backend (ls_packed_nbytes bytes, 64-byte aligned).
     * w (K,N), or (N,K) by_column. unpack writes what the copy represents, in dtype. */
    ls_status (*pack)(ls_compute *c, ls_pack form, void *to, const void *w, int64_t K, int64_t N, bool by_column);
    ls_status (*unpack)(ls_compute *c, ls_pack form, void *w, const void *from, int64_t K, int64_t N, bool by_column);
    /* y (R,N) = x (R,K) w + b for a packed copy w; b may be NULL. Int8: x is rounded as the matrix is. */
    ls_status (*linear_packed)(ls_compute *c, ls_pack form, void *y, const void *x, const void *w, const void *b,
                               int64_t R, int64_t K, int64_t N);

    /* (optional, both) Fused with what follows, with the bits of separate operations: y = gelu(x w + b);  y = res + (x w + b), y may be res */
    ls_status (*linear_packed_gelu)(ls_compute *c, ls_pack form, void *y, const void *x, const void *w, const void *b,
                                    int64_t R, int64_t K, int64_t N, ls_gelu kind);
    ls_status (*linear_packed_add)(ls_compute *c, ls_pack form, void *y, const void *res, const void *x, const void *w,
                                   const void *b, int64_t R, int64_t K, int64_t N);

    /* (optional, all three) Products with operands in 8 bits (--precision fp8). NULL: not supported. dtype is LS_BF16. */
    ls_status (*quantize)(ls_compute *c, const ls_quantize *a);
    /* to (N,R) = from (R,N) transposed, one byte per element; sizes are multiples of 16 */
    ls_status (*turn8)(ls_compute *c, void *to, const void *from, int64_t R, int64_t N);
    ls_status (*product8)(ls_compute *c, const ls_product8 *a);

    /* Updates master, m and v from g in one pass; p = master rounded to dtype. If dtype == wide, p is master. */
    ls_status (*adamw)(ls_compute *c, void *p, void *master, const void *g, void *m, void *v, int64_t n,
                       const ls_adamw *h);
    /* p (dtype) = x (wide), rounded to the nearest; with `round` as adamw rounds */
    ls_status (*narrow)(ls_compute *c, void *p, const void *x, int64_t n, const ls_gains *gains,
                        const ls_rounding *round);
    /* block_sum[i] (host, or memory of the operations) = sum of squares of wide x[i*block .. (i+1)*block), ceil(n/block) of them, in double,
     * in a fixed order */
    ls_status (*sumsq)(ls_compute *c, double *block_sum, const void *x, int64_t n, int64_t block);
    /* (optional, both) The same for several ranges, with the same bits: a device is not idle between them. sumsq_many: x[i] has n[i] elements, a
     * multiple of `block` each; their sums are one after the other. */
    ls_status (*adamw_many)(ls_compute *c, const ls_adamw_job *job, int n_job);
    ls_status (*sumsq_many)(ls_compute *c, double *block_sum, const void *const *x, const int64_t *n, int n_range,
                            int64_t block);
    /* What the sums decide (compute/decide.h), in the order of units. */
    ls_status (*decide)(ls_compute *c, const ls_decide *a);
    /* *out (host) = the sum of x, in a fixed order */
    ls_status (*sum)(ls_compute *c, double *out, const double *x, int64_t n);
    ls_status (*add)(ls_compute *c, void *y, const void *a, const void *b,
                     int64_t n); /* wide y = a + b; y may be a or b */
    ls_status (*zero)(ls_compute *c, void *y, size_t nbytes);
    ls_status (*copy)(ls_compute *c, void *y, const void *x, size_t nbytes);
    /* *out (host) = a hash of nbytes at x; with `more`, a hash of its former value and of them. Backends have different hashes: callers
     * compare those of one. An error in a single word of 8 bytes always changes the hash of a device. ls_compute_hash takes any memory. */
    ls_status (*hash)(ls_compute *c, uint64_t *out, const void *x, size_t nbytes, bool more);

    /* (optional) Whether, for these shapes, accumulating into a gradient (acc) gives the same bits as computing the gradient and calling
     * `add`, in every operation above. If NULL, it does not. */
    bool (*adds_alike)(const ls_compute *c, const ls_compute_shapes *s);

    /* (optional) Marks a sequence of operations that is repeated with equal arguments (CUDA graphs). If *queued, the recorded sequence was
     * launched: do not issue the operations and do not call region_end. Otherwise issue them, then call region_end. Nested regions are
     * part of the outer one. */
    ls_status (*region_begin)(ls_compute *c, uint64_t name, bool *queued);
    ls_status (*region_end)(ls_compute *c);
} ls_compute_ops;

struct ls_compute {
    const ls_compute_ops *ops;
    int n_thread;      /* that compute now                                    */
    int n_own, n_most; /* its own; at most, with those on cores of other workers */
    /* (optional) Called before each long operation of a CPU; may call ls_compute_borrow. */
    void (*look)(void *ctx);
    void *look_ctx;
    void *scratch; /* workspace of ls_compute_scratch bytes, owned by the caller */
    size_t scratch_nbytes;
    const ls_device *device;                 /* NULL: host memory           */
    void *impl;                              /* the backend's               */
    const struct ls_compute_plugin *backend; /* what opened it (compute/plugin.h) */
};

typedef struct ls_compute_open_opts {
    /* "cpu" in LS_BF16: arrays stay LS_F32; the operands of matrix products and of attention's are rounded to bf16, their sums are fp32 */
    ls_dtype dtype; /* "cpu": LS_F32, LS_BF16; "cpu-ref": LS_F32, LS_F64; "cuda": LS_F32, LS_BF16, LS_F16 */
    /* the remaining fields apply to devices */
    int device;         /* index; -1: chosen by local rank, round robin                     */
    int local_rank;     /* of this worker on its host                                       */
    bool tf32;          /* fp32 matrix products use TF32                                    */
    bool stochastic;    /* master weights are rounded stochastically, keyed by (seed, step) and element */
    bool deterministic; /* every sum has a fixed order: equal runs give equal bits          */
} ls_compute_open_opts;

/* Products in bf16 on this CPU: the kernel, and whether the CPU has its instructions. Without them it is emulated: slow, same definition. */
typedef struct ls_cpu_bf16 {
    const char *kernel;
    bool native;
    /* It multiplies bf16 copies (pack), with x rounded to bf16 and the bits of products of the matrix. Other kernels: the products of copies are fp32. */
    bool copies;
} ls_cpu_bf16;
ls_cpu_bf16 ls_compute_cpu_bf16(void);
/* That of the backend "cpu" opened for bf16: the one that LS_GEMM names, else the same. kernel NULL: LS_GEMM names none for bf16. */
ls_cpu_bf16 ls_compute_cpu_bf16_used(void);
/* Whether LS_SIMD and LS_GEMM name kernels of the backend "cpu" for this type, without opening it. */
ls_status ls_compute_cpu_check(ls_dtype dtype);

/* name: "cpu", "cpu-ref", or a plugin (compute/plugin.h): "cuda". n_thread 0 = all cores this process may use. LS_E_UNSUPPORTED lists the
 * available backends, or the reason why a plugin does not work. */
ls_status ls_compute_open(ls_compute *c, const char *name, const ls_compute_open_opts *o, int n_thread);

/* The CUDA backend without a device: types and sizes but no operations, to plan memory for a GPU on a machine without one
 * (compute/sizes.c). It differs from the real backend if cuDNN needs the largest scratch. It owns nothing and need not be closed. */
ls_status ls_compute_open_sizes(ls_compute *c, ls_dtype dtype);
/* The backend "cpu" of a CPU with this matmul kernel (bfmmla, avx512-bf16, ...), which this one need not have: sizes, no operations. "", and a kernel
 * of which this program has no sizes: as ls_compute_open does, which takes the kernel of this CPU. */
ls_status ls_compute_open_cpu_sizes(ls_compute *c, ls_dtype dtype, const char *kernel, int n_thread);

/* Scratch bytes that the operations need for these shapes with this backend and thread count. */
size_t ls_compute_scratch(const ls_compute *c, const ls_compute_shapes *s);

#define LS_BORROW_MOST 16 /* threads on cores of other workers: each takes scratch memory */
/* A CPU backend may compute with up to `most` threads later, of which at most LS_BORROW_MOST are not its own. Call it before ls_compute_scratch. */
void ls_compute_may_grow(ls_compute *c, int most);
/* From the next operation on it computes with its own threads and one more on each of n other CPUs. Results do not depend on it. */
void ls_compute_borrow(ls_compute *c, int n, const int *cpu);

/* Bytes of a packed copy of a (K,N) matrix. */
int64_t ls_packed_nbytes(ls_pack form, int64_t K, int64_t N);

/* One line for doctor and logs: instruction set, matmul kernel, threads; device, libraries. */
#define LS_COMPUTE_WORDS 480
const char *ls_compute_describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS]);
/* The matmul kernel that a description names; "": none, as of devices. */
#define LS_KERNEL_NAME 32
const char *ls_compute_kernel(const char *described, char name[LS_KERNEL_NAME]);
/* What decides the bits of a result: the instruction set and the matmul kernel of a CPU; capability and cuDNN of a device. */
const char *ls_compute_family(const ls_compute *c, char buf[LS_COMPUTE_WORDS]);
/* Whether two families give the same bits: an emulated instruction gives those of the instruction. */
bool ls_compute_same_bits(const char *family, const char *other);
/* The family of "cpu" or "cpu-ref", which need not be open; "": it cannot be opened. */
const char *ls_compute_cpu_family(const char *name, ls_dtype dtype, char buf[LS_COMPUTE_WORDS]);

void ls_compute_close(ls_compute *c);

/* adamw of device c on the CPU, with the same bits, for master weights, gradients and moments in host memory. p: host memory for the
 * parameters in dtype (NULL: none; they are the master weights). round NULL: to the nearest. */
bool ls_compute_adamw_host_same(void); /* false: without FMA instructions the bits would differ */
ls_status ls_compute_adamw_host(const ls_compute *c, void *p, float *master, const float *g, float *m, float *v,
                                int64_t n, const ls_adamw *h, const ls_rounding *round);

/* Copies nbytes between host memory and the memory of the operations. Blocking. */
ls_status ls_compute_read(const ls_compute *c, void *host, const void *x, size_t nbytes);
ls_status ls_compute_write(const ls_compute *c, void *x, const void *host, size_t nbytes);
/* Waits for all queued operations. */
ls_status ls_compute_sync(const ls_compute *c);
/* ops->hash of device memory, or of host memory, which is complete when this returns; with n_thread threads. */
ls_status ls_compute_hash(ls_compute *c, uint64_t *out, const void *x, size_t nbytes, bool more);

/* Mixed precision: parameters are rounded copies of the master weights. */
static inline bool ls_compute_mixed(const ls_compute *c)
{
    return c->ops->dtype != c->ops->wide;
}

/* Address of element i of an array of type `wide`. */
static inline void *ls_at_wide(const ls_compute *c, const void *base, int64_t i)
{
    return (char *)(uintptr_t)base + (size_t)i * ls_dtype_nbytes(c->ops->wide);
}

/* Address of element i of an array of type `dtype`. */
static inline void *ls_at(const ls_compute *c, const void *base, int64_t i)
{
    return (char *)(uintptr_t)base + (size_t)i * ls_dtype_nbytes(c->ops->dtype);
}

#endif
