/* model.h - GPT-2 as a list of units: embed, block 0 … L-1, head.
 *
 * Each unit owns flat buffers: parameters, gradients, two optimizer moments and, in mixed precision
 * (ls_compute_mixed), master weights. One table of tensors describes them all, with the names and the layout of
 * Hugging Face: linear weights (in, out), fused qkv. Everything that distributes, saves or updates a model works
 * on these flat buffers; only the unit's own forward and backward know what is inside.
 *
 * The token embedding of a tied model is used by embed and by head. Its two gradients are stored separately
 * (head's follows head's own tensors in its gradient buffer, laid out and padded like embed's) until the
 * strategy adds them once (parallel/strategy.c). So the order of the sum does not depend on where the two units are or how
 * they are sharded.
 *
 * A model can be one tensor-parallel shard of a whole model (ls_shard): its tables then describe this shard, and
 * each tensor knows its position in the whole tensor. The shards add and gather activations through callbacks
 * (ls_tp_ops), so the model does not depend on communicators (parallel/tensor.h). */
#ifndef LS_MODEL_MODEL_H
#define LS_MODEL_MODEL_H

#include "compute/compute.h"
#include "core/plan.h"
#include "model/config.h"
#include "model/fp8.h"

#define LS_UNIT_MAX_TENSOR 12

typedef enum ls_unit_kind { LS_UNIT_EMBED, LS_UNIT_BLOCK, LS_UNIT_HEAD } ls_unit_kind;
typedef enum ls_init { LS_INIT_ZERO, LS_INIT_ONE, LS_INIT_NORMAL, LS_INIT_UNIFORM } ls_init;

/* Shard `rank` of a model that is split over `size` workers:
 *   by columns   c_attn (whole heads, of each of q, k and v), c_fc, with their biases
 *   by rows      attn.c_proj, mlp.c_proj; of the V rows of the token embedding and the classifier, V*rank/size …
 *                V*(rank+1)/size - 1
 *   everywhere   norms, the biases that are added after an all-reduce, positions
 * Activations outside the products (x, r, the norms) are on every shard; with `rows` each shard has R/size rows of
 * them (sequence parallelism). */
typedef struct ls_shard {
    int rank, size; /* size 0 or 1: whole */
    bool rows;
} ls_shard;

typedef struct ls_tensor {
    char name[64];     /* "transformer.h.0.attn.c_attn.weight"                       */
    int64_t offset, n; /* elements, in the unit's flat buffers                       */
    int n_dim;
    int64_t dim[2];
    /* its position in the whole tensor: runs of `run` elements, `per_line` of them in each line */
    int64_t whole_offset, whole_dim[2]; /* of the whole tensor, in the whole unit */
    int64_t first, run, per_line, run_stride, line_stride;
    bool everywhere; /* every shard has the whole tensor                           */
    bool matrix;     /* two-dimensional: decayed under --decay matrices            */
    ls_init init;
    double init_scale; /* deviation of a normal, half-width of a uniform             */
} ls_tensor;

typedef struct ls_unit {
    ls_unit_kind kind;
    int layer; /* of a block, else -1                      */
    int n_tensor;
    ls_tensor tensor[LS_UNIT_MAX_TENSOR];
    int64_t n;          /* elements of the tensors                  */
    int64_t n_pad;      /* elements of the flat buffers             */
    int64_t n_grad;     /* elements of the gradient buffer: n_pad, plus embed's n_pad for a tied head */
    int64_t n_whole;    /* elements of the unit in the whole model; n without shards */
    void *param, *grad; /* NULL until planned                       */
    void *vector;       /* param has codes in 8 bits (fp8.h): its tensors of one dimension, side by side; else NULL */
    bool acc;           /* backward adds to grad instead of writing it */
    void *m, *v;        /* optimizer moments, NULL for inference    */
    void *master;       /* master weights; param itself where both types are equal */
} ls_unit;

/* The elements of t among first … first + n - 1 of its unit; empty if to <= from. */
typedef struct ls_tensor_range {
    int64_t from, to;
} ls_tensor_range;
static inline ls_tensor_range ls_tensor_within(const ls_tensor *t, int64_t first, int64_t n)
{
    const int64_t end = first + n, last = t->offset + t->n;
    return (ls_tensor_range){t->offset > first ? t->offset : first, last < end ? last : end};
}

/* Whether t is a norm's weight (compute.h, ls_gains). */
static inline bool ls_tensor_gain(const ls_tensor *t)
{
    return t->init == LS_INIT_ONE;
}

/* The norms' weights among elements first … first + n - 1 of a unit, counted from first. */
ls_gains ls_unit_gains(const ls_unit *u, int64_t first, int64_t n);

/* Elements [first, first + n) of one of a unit's flat buffers in the optimizer's type (parameters: the master
 * weights), at any address. Shards are saved and loaded in this form. */
typedef enum ls_flat { LS_FLAT_PARAM, LS_FLAT_M, LS_FLAT_V, LS_N_FLAT } ls_flat;

typedef struct ls_piece {
    ls_flat what;
    int unit;
    int64_t first, n;
    void *data;
} ls_piece;

/* The collectives of tensor parallelism. Every shard makes the same calls in the same order. With ticket NULL a
 * call returns when it is complete; otherwise x must not be used until wait(*ticket), and a ticket of 0 needs no
 * wait. */
typedef struct ls_tp_ops {
    void *ctx;
    /* x = sum of x over the shards, with the same bits on each */
    ls_status (*all_reduce)(void *ctx, ls_view x, uint64_t *ticket);
    /* the same, but only part `rank` of `size` of x is valid afterwards */
    ls_status (*reduce_scatter)(void *ctx, ls_view x, uint64_t *ticket);
    /* x gets the part of every shard; this shard's part is filled in */
    ls_status (*all_gather)(void *ctx, ls_view x, uint64_t *ticket);
    ls_status (*wait)(void *ctx, uint64_t ticket);
    /* x (size * n): the n numbers of every shard; this shard's are filled in. Returns when complete. */
    ls_status (*gather)(void *ctx, double *x, int64_t n);
} ls_tp_ops;

typedef struct ls_model {
    ls_model_config cfg; /* of the whole model */
    ls_compute *compute;
    ls_shard shard;    /* size 1: the whole model                  */
    ls_tp_ops tp;      /* must be set before a pass if size > 1    */
    ls_fp8_state *fp8; /* products in fp8 (fp8.h), or NULL      */
    int n_unit;        /* L + 2                                    */
    ls_unit *unit;
} ls_model;

/* Builds the tables; allocates no tensors. n_pad is a multiple of pad_to (>= 1). */
ls_status ls_model_create(ls_model **out, const ls_model_config *cfg, ls_compute *compute, int64_t pad_to);
/* The same for one shard. LS_E_CONFIG, with the arithmetic, if heads or vocabulary do not divide by its size;
 * ls_shard_check does this check alone. */
ls_status ls_model_create_shard(ls_model **out, const ls_model_config *cfg, ls_compute *compute, int64_t pad_to,
                                ls_shard shard);
ls_status ls_shard_check(const ls_model_config *cfg, int size);
void ls_model_destroy(ls_model **m);

/* Elements of x between two units, for a micro-batch with R rows: R*C, or this shard's rows of it. */
int64_t ls_model_stream(const ls_model *m, int64_t R);

/* The number of elements from i on that are contiguous in the whole tensor, too; *whole: the index of element i
 * there. */
int64_t ls_tensor_run(const ls_tensor *t, int64_t i, int64_t *whole);
/* The same for element i of a unit's flat buffers, in those of the whole unit; 0 if i is in the padding.
 * *everywhere: all shards have the element. */
int64_t ls_unit_run(const ls_unit *u, int64_t i, int64_t *whole, bool *everywhere);

/* The tensor of this name ("transformer." may be missing), or NULL. */
const ls_tensor *ls_model_find(const ls_model *m, const char *name, int *unit);

/* Sets initial weights. Element i of a (whole) tensor is a function of (seed, unit, tensor, i). For a model in
 * host memory: */
void ls_model_init(ls_model *m, uint64_t seed);
/* For a range of parameters in host or device memory; padding becomes 0: */
ls_status ls_model_init_piece(ls_model *m, uint64_t seed, const ls_piece *p);

/* ---- one micro-batch ---- */

struct ls_packed;

typedef struct ls_micro {
    const int32_t *ids;    /* (B,T), as the operations read it                   */
    const int32_t *target; /* (B,T), -1 = not counted; NULL: no loss             */
    /* drop_key and dloss as the operations read them; NULL: the members below */
    const ls_pass_head *at;
    int64_t B, T;
    int64_t pos;                    /* of the first column; above 0 only with a cache    */
    const struct ls_packed *packed; /* weights to use instead of the model's, not for training; or NULL */
    bool train;                     /* dropout is on and gradients are computed           */
    uint64_t drop_key;              /* of (seed, step, micro-batch): selects every mask   */
    double dloss;                   /* factor of each row's gradient                      */
    /* out (host): sum of the row losses, valid after ls_compute_sync; NULL: use loss_sum, on a host backend */
    double *loss;
    double loss_sum; /* out, see loss: rows added in order                 */
    /* counted rows: computed by the pass on the host, given by the caller on a device (model/input.h) */
    int64_t n_counted;
} ls_micro;

static inline int64_t ls_count_targets(const int32_t *target, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += target[i] >= 0;
    return count;
}

/* What a pass keeps between forward and backward. Slot u has the input of unit u and what its backward needs. */
typedef struct ls_slot {
    /* (R,C) input of the unit (head: of the final norm); x, res and statistics have this shard's rows */
    void *x;
    void *mean1, *rstd1;       /* (R)                                            */
    void *qkv, *lse, *atty;    /* (R,3C), (B,H,T), (R,C), of this shard's heads  */
    void *res, *mean2, *rstd2; /* (R,C), (R), (R)                                */
    void *fc;                  /* (R,4C) input of GELU                           */
    void *gelu;                /* (R,4C) output of GELU if it is kept, else NULL */
    /* fp8, else NULL: the inputs of the linear layers in 8 bits, transposed: (C,R), (C,R), (C,R), (4C,R) */
    void *ln1_t, *atty_t, *ln2_t, *gelu_t;
    /* kept between the two halves of a split backward, else NULL: gradients of each product's output, and of the
     * norms */
    void *dout, *dfc, *dproj, *dqkv, *dnorm; /* (R,C), (R,4C), (R,C), (R,3C), (4C)      */
    void *kcache, *vcache;                   /* (B,H,cache_len,D) when generating, else NULL */
} ls_slot;

typedef struct ls_acts {
    int64_t B, T, cache_len;
    bool recompute;
    ls_slot *slot;          /* n_unit                                            */
    void *ln, *tmp;         /* (R,C) output of a norm; of a row-parallel product */
    void *ffn, *ffn_again;  /* (R,4C) GELU's output in forward; in backward      */
    void *dffn;             /* (R,4C) gradient of fc, then of qkv                */
    void *da, *db;          /* (R,C) gradients of x and of the residual          */
    void *x8, *dy8, *dy8_t; /* (R,4C) fp8: the operands of a product, in 8 bits; else NULL */
    double *row_loss;       /* (R)                                               */
    void *work, *head_work; /* scratch of the operations: of blocks, of the classifier */
    int *row;               /* plan rows: of each slot, then the shared ones      */
} ls_acts;

typedef struct ls_acts_opts {
    int64_t B, T;
    bool train;        /* false: one slot serves all units                    */
    bool recompute;    /* blocks keep only their input, and run forward again */
    bool keep_gelu;    /* blocks keep GELU's output, too: 4C more per token, one pass over it less */
    int64_t cache_len; /* > 0: keys and values of that many positions are cached, for generation */
    bool packed;       /* passes with ls_micro.packed                          */
    /* A stage of a pipeline: units first … last-1 (last 0: all). Several micro-batches are in flight at once, so
     * every row of the plan has an unlimited life. x of unit `last` is sent to the next stage; dx comes from
     * outside (ls_acts.da). */
    bool pipe;
    int first, last;
    bool split; /* backward comes in two halves */
    /* other activations, planned before, whose buffers of a single pass are used here, too; or NULL */
    const ls_acts *share;
} ls_acts_opts;

/* Adds the rows to the plan (time points as in core/plan.h); bind sets the addresses once the plan is allocated. */
ls_status ls_acts_plan(ls_acts **out, const ls_model *m, const ls_acts_opts *o, ls_plan *plan);
void ls_acts_bind(ls_acts *a, const ls_model *m, const ls_plan *plan);
void ls_acts_destroy(ls_acts **a);

/* Copies the cached keys and values of positions 0 … n_pos-1 from one row of the batch to another. */
ls_status ls_acts_copy_cache(const ls_model *m, const ls_acts *a, int64_t from, int64_t to, int64_t n_pos);

static inline int ls_moment_fwd(const ls_model *m, int u)
{
    (void)m;
    return u;
}
static inline int ls_moment_bwd(const ls_model *m, int u)
{
    return 2 * m->n_unit - 1 - u;
}
static inline int ls_moment_step(const ls_model *m)
{
    return 2 * m->n_unit;
}

/* ---- the walk ---- */

/* A backward pass can be split: dx first (LS_BWD_IN), the gradients of the weights later (LS_BWD_W). */
typedef enum ls_pass { LS_FWD, LS_BWD, LS_BWD_IN, LS_BWD_W } ls_pass;

/* What a strategy does before and after each unit; every member may be NULL. */
typedef struct ls_hooks {
    void *ctx;
    ls_status (*acquire)(void *ctx, int u, ls_pass pass);
    ls_status (*release)(void *ctx, int u, ls_pass pass);
    ls_status (*grad_ready)(void *ctx, int u);
    /* unit u was computed (queued, on a device); a: the activations of the pass */
    ls_status (*computed)(void *ctx, int u, ls_pass pass, const ls_acts *a);
    /* of a pipeline: what unit u reads, slot[u].x or in backward da, has come from another worker */
    ls_status (*received)(void *ctx, int u, ls_pass pass, const ls_acts *a);
    bool
        repeats; /* the pass is compared with another one and not used: no faults are injected into it (core/inject.h) */
    /* called instead of computing the unit; no buffer is accessed (used by the planner) */
    ls_status (*unit)(void *ctx, int u, ls_pass pass);
} ls_hooks;

/* One pass over units first … last-1 of one micro-batch, backward in descending order. With target and train, head's forward also computes the
 * loss and the gradient of the classifier (fused, so that the logits are never in memory as a whole). Backward writes all of unit[u].grad.
 * LS_BWD_IN and LS_BWD_W are its two halves (activations with `split`): dx of all units and head's gradients, then the gradients of the
 * other units. The bits are those of LS_BWD. */
ls_status ls_walk(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, ls_pass pass, int first, int last);

/* Logits (B*T rows of V; last_only: B rows, those of the last column) of the preceding pass, which had target NULL. */
ls_status ls_model_logits(ls_model *m, ls_acts *a, const ls_micro *mb, bool last_only, void *out);

/* ---- packed weights ---- */

/* Copies of the model's matrices in a form for inference (compute.h, ls_pack). A pass with ls_micro.packed set reads these instead of the
 * matrices; norms, biases and the rows of the embedding stay as they are. */
typedef struct ls_packed {
    ls_pack form;
    int64_t nbytes; /* of all copies                                */
    int n;          /* matrices: four per block, then the classifier's */
    int row;        /* plan row of the first; the others follow     */
    void *q[];      /* the copies                                   */
} ls_packed;

/* Elements of the matrices of which there are copies: those that a pass over one token reads, the classifier's included. */
int64_t ls_model_matrix_elements(const ls_model *m);
/* Adds the rows to the plan; bind sets the addresses once the plan is allocated. */
ls_status ls_packed_plan(ls_packed **out, const ls_model *m, ls_pack form, ls_plan *plan);
void ls_packed_bind(ls_packed *d, const ls_plan *plan);
/* Packs the current weights. */
ls_status ls_packed_fill(ls_packed *d, const ls_model *m);
/* The same for copies in the memory of `to`, a device: m is the model in host memory, whose backend packs. */
ls_status ls_packed_send(ls_packed *d, const ls_compute *to, const ls_model *m);
void ls_packed_destroy(ls_packed **d);

#endif
