/* model.h - GPT-2 as a row of units: embed, block 0 … L-1, head.
 *
 * Each unit owns one flat parameter buffer, one flat gradient buffer, two flat moments and, where operations compute in fewer bits than
 * the optimizer keeps (ls_compute_mixed), one of master weights, described by one table of tensors (Hugging Face's names and layout: linear weights (in, out), fused qkv). Everything that distributes, saves or
 * updates a model works on these flat buffers; only the unit's own forward and backward know what is inside.
 *
 * The token embedding of a tied model is used by embed and by head. Its two gradients are kept apart (head's lies behind its
 * own tensors in its gradient buffer, laid out and padded like embed's) until ls_model_fold_tied adds them once, so that the
 * sum has one order wherever the two units sit and however they are cut.
 *
 * A model may be one shard of a whole (ls_shard): its tables then describe what is here, each tensor knows its place in the whole one,
 * and what the shards must add up goes through ls_seam. The model does not know who is behind it (parallel/tensor.h). */
#ifndef LS_MODEL_MODEL_H
#define LS_MODEL_MODEL_H

#include "compute/compute.h"
#include "core/plan.h"
#include "model/config.h"

#define LS_UNIT_MAX_TENSOR 12

typedef enum ls_unit_kind { LS_UNIT_EMBED, LS_UNIT_BLOCK, LS_UNIT_HEAD } ls_unit_kind;
typedef enum ls_init { LS_INIT_ZERO, LS_INIT_ONE, LS_INIT_NORMAL, LS_INIT_UNIFORM } ls_init;

/* Part `rank` of a model that is cut over `size` workers:
 *   by columns   c_attn (whole heads, of each of q, k and v), c_fc, with their biases
 *   by rows      attn.c_proj, mlp.c_proj; the token embedding and the classifier, V*rank/size … V*(rank+1)/size of V rows
 *   everywhere   norms, the biases behind a sum, positions
 * What lies between the sums (x, r, the norms) is on every shard; with `rows` each has R/size rows of it ("sequence parallel"). */
typedef struct ls_shard {
    int rank, size; /* size 0 or 1: whole */
    bool rows;
} ls_shard;

typedef struct ls_tensor {
    char name[64];     /* "transformer.h.0.attn.c_attn.weight"                       */
    int64_t offset, n; /* elements, in the unit's flat buffers                       */
    int n_dim;
    int64_t dim[2];
    /* its place in the whole tensor: runs of `run` elements, of each line `per_line` */
    int64_t whole_offset, whole_dim[2]; /* of the whole, in the whole unit                           */
    int64_t first, run, per_line, run_stride, line_stride;
    bool everywhere; /* every shard has all of it                                  */
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
    int64_t n_grad;     /* elements of the gradient buffer: n_pad, and behind it embed's n_pad for a tied head */
    int64_t n_whole;    /* elements of the tensors of the whole model; n without shards */
    void *param, *grad; /* NULL until planned                       */
    bool acc;           /* backward adds to grad what it makes      */
    void *m, *v;        /* optimizer moments, NULL for inference    */
    void *master;       /* wide; param itself where the two types are one */
} ls_unit;

/* The elements of t among first … first + n - 1 of its unit; none: to <= from. */
typedef struct ls_tensor_range {
    int64_t from, to;
} ls_tensor_range;
static inline ls_tensor_range ls_tensor_within(const ls_tensor *t, int64_t first, int64_t n)
{
    const int64_t end = first + n, last = t->offset + t->n;
    return (ls_tensor_range){t->offset > first ? t->offset : first, last < end ? last : end};
}

/* Whether it is a norm's weight (compute.h, ls_gains). */
static inline bool ls_tensor_gain(const ls_tensor *t)
{
    return t->init == LS_INIT_ONE;
}

/* The norms' weights among elements first … first + n - 1 of a unit, counted from first. */
ls_gains ls_unit_gains(const ls_unit *u, int64_t first, int64_t n);

/* Elements [first, first + n) of one of a unit's flat buffers of wide numbers (parameters: the master weights), wherever they lie: how
 * shards are saved and read back. */
typedef enum ls_flat { LS_FLAT_PARAM, LS_FLAT_M, LS_FLAT_V, LS_N_FLAT } ls_flat;

typedef struct ls_piece {
    ls_flat what;
    int unit;
    int64_t first, n;
    void *data;
} ls_piece;

/* What the shards of a model do together; every shard calls the same in the same order. ticket NULL: the call waits; else x belongs to
 * the call until wait (0: nothing to wait for). */
typedef struct ls_seam {
    void *ctx;
    /* x = the sum of all shards' x, the same bits everywhere */
    ls_status (*sum)(void *ctx, ls_view x, uint64_t *ticket);
    /* the same of this shard's part of x alone: part rank of size */
    ls_status (*sum_part)(void *ctx, ls_view x, uint64_t *ticket);
    /* every shard's part of x, this one's is filled in */
    ls_status (*share)(void *ctx, ls_view x, uint64_t *ticket);
    ls_status (*wait)(void *ctx, uint64_t ticket);
    /* x (size * n): every shard's n, this one's are filled in; waits */
    ls_status (*gather)(void *ctx, double *x, int64_t n);
} ls_seam;

typedef struct ls_model {
    ls_model_config cfg; /* of the whole */
    ls_compute *compute;
    ls_shard shard; /* size 1: whole                            */
    ls_seam seam;   /* to be filled before a pass, unless whole */
    int n_unit;     /* L + 2                                    */
    ls_unit *unit;
} ls_model;

/* Builds the tables; owns no tensor memory. pad_to: n_pad is a multiple of it (>= 1). */
ls_status ls_model_create(ls_model **out, const ls_model_config *cfg, ls_compute *compute, int64_t pad_to);
/* One shard of it. LS_E_CONFIG, with the arithmetic, for a size that heads or vocabulary do not allow (ls_shard_check alone). */
ls_status ls_model_create_shard(ls_model **out, const ls_model_config *cfg, ls_compute *compute, int64_t pad_to,
                                ls_shard shard);
ls_status ls_shard_check(const ls_model_config *cfg, int size);
void ls_model_destroy(ls_model **m);

/* Elements of x between two units, of a micro-batch with R rows: R*C, or a shard's rows of it. */
int64_t ls_model_stream(const ls_model *m, int64_t R);

/* How many elements from i on of a tensor lie side by side in the whole tensor, too; *whole: the index of the first there. */
int64_t ls_tensor_run(const ls_tensor *t, int64_t i, int64_t *whole);
/* The same of element i of a unit's flat buffers, in the whole unit's; 0: i lies behind the tensors. *everywhere: all shards have it. */
int64_t ls_unit_run(const ls_unit *u, int64_t i, int64_t *whole, bool *everywhere);

/* The tensor of this name ("transformer." may be missing), or NULL. */
const ls_tensor *ls_model_find(const ls_model *m, const char *name, int *unit);

/* Initial weights: element i of a (whole) tensor is a function of (seed, tensor name's place, i). Of a model in the host's memory; */
void ls_model_init(ls_model *m, uint64_t seed);
/* of a piece of parameters, wherever it lies; padding becomes 0. */
ls_status ls_model_init_piece(ls_model *m, uint64_t seed, const ls_piece *p);

/* ---- one micro-batch ---- */

struct ls_draft;

typedef struct ls_micro {
    const int32_t *ids;     /* (B,T), as the operations read it                         */
    const int32_t *target;  /* (B,T), -1 = not counted; NULL: no loss                   */
    const ls_pass_head *at; /* drop_key and dloss as the operations read them; NULL: those below */
    int64_t B, T;
    int64_t pos; /* of the first column; above 0 only behind a cache         */
    const struct ls_draft
        *draft;        /* int8 weights in place of the model's (draft.h), for one row behind a cache; or NULL */
    bool train;        /* dropout on, gradients wanted                             */
    uint64_t drop_key; /* of (seed, step, leaf): names every mask of this pass     */
    double dloss;      /* factor of each row's gradient                            */
    double *
        loss; /* out (host): sum of row losses, there after ls_compute_sync; NULL: loss_sum, on a backend of the host */
    double loss_sum;   /* out, see loss: rows in order                             */
    int64_t n_counted; /* rows that count: out on the host, in on a device (model/input.h) */
} ls_micro;

static inline int64_t ls_count_targets(const int32_t *target, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += target[i] >= 0;
    return count;
}

/* What a pass keeps between forward and backward. Slot u holds the input of unit u and what its backward needs. */
typedef struct ls_slot {
    void *x;             /* (R,C) input of the unit (head: of the final norm); x, r and statistics: of a shard's rows */
    void *mean1, *rstd1; /* (R)                                               */
    void *qkv, *lse, *atty;    /* (R,3C), (B,H,T), (R,C), of a shard's heads        */
    void *res, *mean2, *rstd2; /* (R,C), (R), (R)                                   */
    void *fc;                  /* (R,4C) before GELU                                */
    void *gelu;                /* (R,4C) behind it, when it is kept, else NULL      */
    /* between the two halves of a split backward, else NULL: what came in behind each product, and the norms' gradients */
    void *dout, *dfc, *dproj, *dqkv, *dnorm; /* (R,C), (R,4C), (R,C), (R,3C), (4C)      */
    void *kcache, *vcache;                   /* (B,H,cache_len,D) when generating, else NULL      */
} ls_slot;

#define LS_ACTS_SET 18

typedef struct ls_acts {
    int64_t B, T, cache_len;
    bool train, recompute;
    ls_slot *slot;           /* n_unit                                            */
    void *ln, *tmp;          /* (R,C)                                             */
    void *wide, *wide_again; /* (R,4C) GELU's output in forward; again in backward */
    void *dwide;             /* (R,4C)                                            */
    void *da, *db;           /* (R,C) gradients on their way down                 */
    double *row_loss;        /* (R)                                               */
    void *work, *head_work;  /* scratch of the operations: of the blocks, of the classifier */
    int *row;                /* plan rows, in the order of acts_rows              */
    int first, last;         /* units                                             */
    int set[LS_ACTS_SET];    /* plan rows that serve all blocks                   */
} ls_acts;

typedef struct ls_acts_opts {
    int64_t B, T;
    bool train;        /* false: one slot serves all units                  */
    bool recompute;    /* blocks keep their input only, and run forward again */
    bool keep_gelu;    /* blocks keep GELU's output, too: 4C more a token, one pass over it less */
    int64_t cache_len; /* > 0: keys and values of so many positions are kept, for generation */
    /* Part of a pipeline: units first … last-1 (last 0: all of them). Several micro-batches are on their way at once, so that moments mean
     * nothing: every row lives always. x of unit `last` is what goes to the next part; d x comes from outside (ls_acts.da). */
    bool pipe;
    int first, last;
    bool split;           /* backward comes in two halves                      */
    const ls_acts *share; /* another one, planned before, whose buffers of a single pass serve this one, too */
} ls_acts_opts;

/* Adds the rows to the plan (moments as in core/plan.h); bind takes the addresses once the plan is allocated. */
ls_status ls_acts_plan(ls_acts **out, const ls_model *m, const ls_acts_opts *given, ls_plan *plan);
void ls_acts_bind(ls_acts *a, const ls_model *m, const ls_plan *plan);
void ls_acts_destroy(ls_acts **a);

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

/* A backward pass may be split: d x first, the gradients of the weights later. */
typedef enum ls_pass { LS_FWD, LS_BWD, LS_BWD_IN, LS_BWD_W } ls_pass;

/* What a strategy does around the walk; every member may be NULL. */
typedef struct ls_hooks {
    void *ctx;
    ls_status (*acquire)(void *ctx, int u, ls_pass pass);
    ls_status (*release)(void *ctx, int u, ls_pass pass);
    ls_status (*grad_ready)(void *ctx, int u);
    ls_status (*unit)(void *ctx, int u,
                      ls_pass pass); /* in place of computing: no buffer is looked at (the planner's) */
} ls_hooks;

/* Units first … last-1 of one micro-batch. With target and train, head's forward also makes its loss and the gradient of its
 * classifier (fused, so that logits are never held whole). Backward writes (=) unit[u].grad whole. */
ls_status ls_walk_fwd(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int first, int last);
ls_status ls_walk_bwd(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int first, int last);
/* The two halves (acts with `split`): d x of all units and head's gradients, then the gradients of the others. Same bits. */
ls_status ls_walk_bwd_in(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int first, int last);
ls_status ls_walk_bwd_w(ls_model *m, ls_acts *a, ls_micro *mb, const ls_hooks *h, int first, int last);

/* logits (B*T rows of V, or of the last column only: B rows) of the pass that just ended with target NULL. */
ls_status ls_model_logits(ls_model *m, ls_acts *a, const ls_micro *mb, bool last_only, void *out);

/* embed's d wte += head's; once, after all micro-batches were summed. */
ls_status ls_model_fold_tied(ls_model *m);

#endif
