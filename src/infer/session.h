/* session.h - a checkpoint opened for use: evaluation and generation.
 *
 * On a device the weights are its memory, in the type that it computes in, and ids, losses and logits travel; drafts are the CPU's. */
#ifndef LS_INFER_SESSION_H
#define LS_INFER_SESSION_H

#include "core/plan.h"
#include "data/tokenizer.h"
#include "model/draft.h"
#include "model/input.h"
#include "model/model.h"
#include "config/device_choice.h"

#define LS_SPECULATE_MAX (LS_FEW_ROWS - 1)
/* Four where the weights take more than 64 MiB, so that reading them is what a token costs; none for smaller models,
 * which live in a cache, and for backends other than "cpu". */
#define LS_SPECULATE_AUTO (-1)

typedef struct ls_session_opts {
    const char *checkpoint; /* a checkpoint, a Hugging Face folder, or a run folder (its latest checkpoint) */
    const char *compute;    /* "cpu" | "cpu-ref" | "cuda" */
    int threads;
    /* of "cuda" */
    ls_dtype dtype; /* LS_F32, LS_BF16, LS_F16 */
    int device;     /* index, -1: the first    */
    bool tf32;
    const ls_compute
        *opened;       /* in place of all of these: a backend that is open, and that the session closes; or NULL */
    int64_t B, T;      /* of one pass; T is cut to the model's positions */
    int64_t cache_len; /* > 0: for generation; cut likewise */
    int speculate; /* most ids drafted at a time (ls_session_extend), at most LS_SPECULATE_MAX; 0 = none, LS_SPECULATE_AUTO */
    bool tokenizer; /* wanted: LS_E_IO when the folder has none */
} ls_session_opts;

typedef struct ls_session {
    char *path; /* the folder that was opened */
    ls_compute compute;
    ls_model *model;
    ls_plan plan;
    ls_acts *acts;
    ls_tokenizer *tokenizer; /* NULL when not wanted */
    ls_input input;
    int32_t *ids, *target; /* (B,T), the host's */
    double *loss;
    float *logits;        /* (B,V) when cache_len > 0; (speculate+1,V) behind a draft; the host's */
    void *out, *out_host; /* the same as a device makes them, there and here */
    ls_draft *draft;      /* NULL: speculate is 0 */
    int speculate;        /* most ids drafted at a time */
    int ahead, rest;      /* drafted at a time now; ids to go without, where drafts do not pay */
    int64_t drafted, accepted;
} ls_session;

/* The device chosen, and what --precision, --compute and --tf32 of a command say (precision NULL: fp32 on the CPU, bf16 on a GPU). */
ls_status ls_session_where(ls_session_opts *o, const ls_device_choice *d, const char *precision, const char *compute,
                           bool tf32);

ls_status ls_session_open(ls_session *s, const ls_session_opts *o);
void ls_session_close(ls_session *s); /* takes a zeroed one */

/* The loss of B sequences of T ids in s->ids and s->target: its sum over the rows that count, and their number. */
ls_status ls_session_loss(ls_session *s, int64_t B, int64_t T, double *sum, int64_t *counted);

/* Runs n more ids of one sequence through the cache from position pos on (in pieces of at most T), and leaves the logits of
 * the last in s->logits. pos + n must not exceed cache_len. */
ls_status ls_session_feed(ls_session *s, const int32_t *ids, int64_t n, int64_t pos);

typedef struct ls_sampling {
    double temperature; /* 0 = greedy                                    */
    int64_t top_k;      /* 0 = all                                       */
    double top_p;       /* 1 = all                                       */
    uint64_t seed;
} ls_sampling;

/* The id chosen from V logits for position pos; a function of its arguments. work: V pairs. */
typedef struct ls_sample_work {
    float logit;
    int32_t id;
} ls_sample_work;
int32_t ls_sample(const ls_sampling *p, const float *logits, int V, int64_t pos, ls_sample_work *work);

/* Appends at least one id to ids[0..*n) and at most limit - *n; all but the last of them must have been fed.
 *
 * With speculation k ids are first drafted with int8 weights, then ids *n-1 … *n+k-1 are run in one pass of the model's own
 * weights, which reads them once. Row j of its logits chooses id *n+j by ls_sample; the choice stands as long as every
 * draft before it was the id chosen. What is appended is therefore what feeding one id at a time appends, bit for bit: rows
 * of such a pass are computed as one row alone (compute.h, invariant 4), the cache of accepted positions was written by that
 * pass, ls_sample is a function, and a rejected draft leaves cache entries that are overwritten before they are read. */
ls_status ls_session_extend(ls_session *s, const ls_sampling *how, int32_t *ids, int64_t *n, int64_t limit,
                            ls_sample_work *work);

#endif
