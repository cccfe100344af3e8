/* session.h - a checkpoint opened for evaluation or generation.
 *
 * On a device the weights are in device memory in its compute type, or in int8; ids, losses and logits are copied. Where ids are chosen
 * greedily or among a few, the device finds these few (compute.h, best) and the logits stay there. A pass over one column is recorded and
 * replayed (a CUDA graph). Speculative drafts need the CPU. */
#ifndef LS_INFER_SESSION_H
#define LS_INFER_SESSION_H

#include "core/plan.h"
#include "data/tokenizer.h"
#include "model/input.h"
#include "model/model.h"
#include "config/device_choice.h"

#define LS_SPECULATE_MAX (LS_FEW_ROWS - 1)
/* 4 if the weights in use are fp32 and larger than 64 MiB, where reading them dominates the time per token; 0 for smaller models, which fit in
 * a cache, for bf16 weights, with which drafts gain nothing, for int8, with which a draft costs as much as a token, and for backends other than "cpu". */
#define LS_SPECULATE_AUTO (-1)

typedef struct ls_session_opts {
    const char *checkpoint; /* a checkpoint, a Hugging Face folder, or a run folder (its latest checkpoint) */
    const char *compute;    /* "cpu" | "cpu-ref" | "cuda" */
    int threads;
    /* of "cuda" */
    ls_dtype dtype; /* LS_F32, LS_BF16, LS_F16 */
    int device;     /* index, -1: the first    */
    bool tf32;
    /* Copies of the matrices that every pass reads; NONE: the matrices as they are. "cpu" with LS_BF16: BF16 where it multiplies
     * them. "cuda": INT8 with LS_BF16 or LS_F16, BF16 with LS_BF16, which passes over one column read by a kernel for few rows */
    ls_pack weights;
    const ls_compute *opened; /* an open backend to use instead of these options; the session closes it. May be NULL */
    /* of one pass; T is limited to the positions of the model and to cache_len; 0: chosen by the device */
    int64_t B, T;
    int64_t cache_len; /* > 0: for generation; limited likewise */
    int speculate; /* tokens drafted at a time (ls_session_extend), up to LS_SPECULATE_MAX; 0 = none, or LS_SPECULATE_AUTO */
    bool tokenizer; /* load the tokenizer; LS_E_IO if the folder has none */
    int64_t n_best; /* ids are chosen among the n_best best alone (ls_sampling_best); 0: s->logits is wanted */
} ls_session_opts;

typedef struct ls_session {
    char *path; /* the folder that was opened */
    ls_compute compute;
    ls_model *model;
    ls_plan plan;
    ls_acts *acts;
    ls_tokenizer *tokenizer; /* NULL if not requested */
    ls_input input;
    int32_t *ids, *target; /* (B,T), in host memory */
    double *loss;
    int32_t *columns; /* (B,T) if cache_len > 0: ids of one pass of ls_session_feed_rows */
    float *logits;    /* (B,V) if cache_len > 0; (speculate+1,V) after a draft; in host memory. Unused if n_best > 0 */
    int64_t n_best;   /* > 0, on a device that finds them: the best ids of each row, instead of logits */
    ls_best *best;    /* (B,n_best) */
    float *log_sum;   /* (B): compute.h, best */
    void *out, *out_host; /* logits in the type of the device, in device and host memory */
    ls_packed *packed;    /* weights in use; NULL: the model's */
    ls_packed *draft;     /* NULL if speculate is 0 */
    int speculate;        /* maximum tokens drafted at a time */
    int ahead, rest;      /* current draft length; tokens to generate without drafts after poor acceptance */
    int n_choice;         /* ids that ls_session_extend and ls_decode choose from: those that the tokenizer has, too */
    int64_t drafted, accepted;
    int64_t n_prompt; /* ls_decode: ids of prompts that were read, and the time of this */
    double prompt_seconds;
} ls_session;

/* Sets the options from the chosen device, --precision, --compute, --tf32 and --weights (precision NULL: fp32 on the CPU, bf16 on a GPU;
 * weights NULL: that of precision). On the CPU, weights in int8 need fp32. */
ls_status ls_session_where(ls_session_opts *o, const ls_device_choice *d, const char *precision, const char *compute,
                           bool tf32, const char *weights);
/* The type of the weights that the passes read (fp32, bf16, fp16, int8), and the bytes of their matrices. */
const char *ls_session_weights(const ls_session *s, int64_t *nbytes);

ls_status ls_session_open(ls_session *s, const ls_session_opts *o);
void ls_session_close(ls_session *s); /* accepts a zeroed session */

/* Loss of the B sequences of T tokens in s->ids and s->target: sum over the counted targets, and their number. */
ls_status ls_session_loss(ls_session *s, int64_t B, int64_t T, double *sum, int64_t *counted);

/* Runs the next n tokens of one sequence from position pos through the cache (at most T per pass), and stores the logits of the
 * last one in s->logits. pos + n must not exceed cache_len. */
ls_status ls_session_feed(ls_session *s, const int32_t *ids, int64_t n, int64_t pos);

/* Runs columns pos … pos+n-1 of the first B rows through the cache (at most T per pass); ids (B,n). Stores the logits of the last column
 * of each row in s->logits (B,V). */
ls_status ls_session_feed_rows(ls_session *s, const int32_t *ids, int64_t B, int64_t n, int64_t pos);

/* A text may be longer than the cache. When columns 0 … end-1 are to be read, the cache has those from this one on, at positions from 0
 * on: 0 up to cache_len columns; then the oldest half is dropped and the rest is computed again, each time the cache is full. It
 * depends on `end` and cache_len alone, so a text is the same alone and in a batch. */
int64_t ls_session_window(const ls_session *s, int64_t end);

typedef struct ls_sampling {
    double temperature; /* 0 = greedy                                    */
    int64_t top_k;      /* 0 = all                                       */
    double top_p;       /* 1 = all                                       */
    uint64_t seed;
    int64_t first; /* column of ids[0] of ls_session_extend: random numbers belong to columns of the whole text */
} ls_sampling;

/* How many of the best ids a choice needs; 0: all, or too many for ls_session_opts.n_best. */
int64_t ls_sampling_best(const ls_sampling *p);

/* Samples a token id from V logits for position pos. The result depends only on the arguments. work: V entries. */
typedef ls_best ls_sample_work;
int32_t ls_sample(const ls_sampling *p, const float *logits, int V, int64_t pos, ls_sample_work *work);

/* ls_sample for a row of the last pass, from its logits or from its best ids: the same id. logit: that of the id; may be NULL. */
int32_t ls_session_sample(const ls_session *s, const ls_sampling *how, int64_t row, int64_t pos, ls_sample_work *work,
                          float *logit);

/* Appends 1 to limit - *n token ids to ids[0..*n). All but the last existing id must have been fed. limit: at most cache_len + 1.
 *
 * With speculation, k tokens are drafted with int8 weights. Then ids *n-1 … *n+k-1 run in one pass with the weights in use, which
 * reads them once. Row j of the logits gives id *n+j by ls_sample; it is accepted if all drafts before it were
 * correct. The result is bit for bit the same as with one token at a time: each row is computed as a single row would be
 * (compute.h, invariant 4), that pass wrote the cache of the accepted positions, ls_sample has no state, and cache entries of
 * rejected drafts are overwritten before they are read. */
ls_status ls_session_extend(ls_session *s, const ls_sampling *how, int32_t *ids, int64_t *n, int64_t limit,
                            ls_sample_work *work);

#endif
