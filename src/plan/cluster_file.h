/* cluster_file.h - a machine as the planner sees it: memory, how long units take, how long collectives take.
 *
 * One JSON object (docs/PLAN.md has every key). Two ways to say how fast it computes:
 *
 *   units    seconds of embed, block and head, forward and backward, measured with W workers at work at once ("plan --measure")
 *   rates    FLOP/s of matrix products and of attention for each precision, bytes/s of memory: presets, from data sheets and runs
 *
 * and two for links: curves of (bytes, seconds) for each collective and number of workers, or latency and bus bandwidth. A measured
 * entry wins over a rate.
 *
 *   seconds of a collective  =  (steps - 1) latency + factor(kind, n) bytes / bandwidth       without a curve
 *   factor                      nccl-tests': 2(n-1)/n all_reduce, (n-1)/n scatter and gather, 1 the others */
#ifndef LS_PLAN_CLUSTER_FILE_H
#define LS_PLAN_CLUSTER_FILE_H

#include "comm/comm.h"
#include "core/str.h"
#include "model/config.h"

#define LS_CLUSTER_FORMAT "lockstep-cluster 1"

/* clang-format off */
#define LS_UNIT_TIME_LIST(X)                                        \
    X(LS_TIME_EMBED_FWD, "embed_forward")                           \
    X(LS_TIME_EMBED_BWD, "embed_backward")                          \
    X(LS_TIME_BLOCK_FWD, "block_forward")                           \
    X(LS_TIME_BLOCK_BWD, "block_backward")                          \
    X(LS_TIME_BLOCK_IN,  "block_backward_input")                    \
    X(LS_TIME_BLOCK_W,   "block_backward_weights")                  \
    X(LS_TIME_HEAD_FWD,  "head_forward")                            \
    X(LS_TIME_HEAD_BWD,  "head_backward")
/* clang-format on */

typedef enum ls_unit_time {
#define X(name, word) name,
    LS_UNIT_TIME_LIST(X)
#undef X
        LS_N_UNIT_TIME
} ls_unit_time;

const char *ls_unit_time_word(ls_unit_time k);

/* Units of one shape, timed while `workers` workers of `threads` threads each did the same. */
typedef struct ls_cluster_units {
    int workers, threads;
    int tp; /* above 1: of a shard of so many, with the sums between them */
    int n_embd, n_head, vocab;
    bool dropout;
    ls_dtype dtype; /* the precision: LS_F32, LS_BF16, LS_F16 */
    int64_t B, T;
    double sec[LS_N_UNIT_TIME];
} ls_cluster_units;

/* What passes over memory costs, seconds an element, and what hiding costs, with `workers` at work. */
typedef struct ls_cluster_passes {
    int workers;
    ls_dtype dtype;
    double adamw, sumsq, add;
    double alone;   /* AdamW of one worker while the others wait (dp) */
    double overlap; /* share of a collective that is hidden behind computing, 1 - lost / its time; may be below 0 */
    double step;    /* seconds of a step that are none of the above */
    double apart;   /* 0 to 1: of units' times, what is left where workers never meet, so that the late catch up */
    double beside;  /* 0 to 1: of units' times, what is left while every second worker waits                     */
} ls_cluster_passes;

#define LS_CURVE_MAX 24
typedef struct ls_cluster_curve {
    ls_coll kind;
    int workers, n;
    double bytes[LS_CURVE_MAX], sec[LS_CURVE_MAX]; /* ascending bytes, of the whole buffer */
} ls_cluster_curve;

typedef struct ls_link {
    double latency, bandwidth; /* seconds a step of a ring; bytes/s */
} ls_link;

/* FLOP/s of one precision: 0 where it is not known. */
typedef struct ls_cluster_rates {
    double matmul;    /* of matrix products, as training reaches them                         */
    double attention; /* of attention; 0: the products'                                      */
    double peak;      /* the maker's figure for dense products: what MFU is a share of        */
} ls_cluster_rates;

#define LS_N_PRECISION 3 /* fp32, bf16, fp16 */
int ls_precision_index(ls_dtype dt);
const char *ls_precision_word(ls_dtype dt);
/* "fp32", "bf16" or "fp16"; false for anything else. */
bool ls_precision_parse(const char *word, ls_dtype *out);

typedef struct ls_cluster {
    char name[64], source[600];
    bool cpu;                 /* workers share the cores and the memory of a host */
    int hosts, devices;       /* a host: workers that it can take (cpu: cores)   */
    int64_t memory;           /* bytes: of a device, or (cpu) of a host          */
    int wire_bytes;           /* of an fp32 element that travels                 */
    int update_bytes;         /* read and written for one parameter's update in fp32; 16 bit: 2 more */
    double matmul, bandwidth; /* rates: FLOP/s of any precision that has none of its own, bytes/s; 0: there are units */
    ls_cluster_rates rates[LS_N_PRECISION]; /* by ls_precision_index */
    double unit_overhead;                   /* seconds a unit and pass, with rates */
    double ramp; /* seconds a product takes longer for each element of its inner dimension: tiles at its end do not fill
                             a device */
    double step_overhead; /* seconds a step takes longer: the host reads the norm and decides */
    double power;         /* watts of a device: its limit; 0: not known */
    double overlap;
    ls_link inside, between; /* between workers of a host, of two hosts         */
    ls_cluster_units *units;
    int n_units;
    ls_cluster_passes *passes;
    int n_passes;
    ls_cluster_curve *curve;
    int n_curve;
} ls_cluster;

/* A preset's name (v100, a100, h100, h200, b200) or a file. LS_E_ARG names the presets, LS_E_FORMAT the file and the key. */
ls_status ls_cluster_open(const char *name, ls_cluster *out);
bool ls_cluster_preset(const char *name, ls_cluster *out);
/* The preset of a device by the name that its driver gives it ("NVIDIA H200"). */
bool ls_cluster_preset_of(const char *device, ls_cluster *out);
extern const char ls_cluster_presets[]; /* "v100, a100, …" */
ls_status ls_cluster_load(const char *path, ls_cluster *out);
void ls_cluster_text(const ls_cluster *c, ls_str *out);
void ls_cluster_fini(ls_cluster *c);

ls_status ls_cluster_add_units(ls_cluster *c, const ls_cluster_units *u);
ls_status ls_cluster_add_passes(ls_cluster *c, const ls_cluster_passes *p);
ls_status ls_cluster_add_curve(ls_cluster *c, const ls_cluster_curve *v);

/* ---- what it says ---- */

/* How workers 0 … world - 1 lie: hosts are filled one after the other. A cpu host takes more workers than it has cores where there is no other
 * host left; they share cores then, and take so much longer. */
typedef struct ls_crowd {
    int on_host;   /* workers of a host                                    */
    int timed;     /* whose times count: as many as were measured at most  */
    double slower; /* than those: workers that do their work, 1 or above   */
} ls_crowd;
ls_crowd ls_cluster_crowd(const ls_cluster *c, int world);
/* What `world` workers need to talk is in the file; LS_E_FORMAT names the key that is missing. */
ls_status ls_cluster_check_links(const ls_cluster *c, int world);
/* Whether times of this precision are known: measured, or by a rate. */
bool ls_cluster_computes(const ls_cluster *c, ls_dtype dt);
/* LS_E_UNSUPPORTED names those that are known. */
ls_status ls_cluster_check_precision(const ls_cluster *c, ls_dtype dt);
/* What `train` uses there by default, or the first precision that is known: fp32 on cores; bf16, fp16, fp32 on GPUs. */
ls_dtype ls_cluster_default_precision(const ls_cluster *c);
/* The maker's FLOP/s of dense products; 0: not known. */
double ls_cluster_peak(const ls_cluster *c, ls_dtype dt);

/* Seconds of a unit's pass for B x T tokens, with `workers` workers at work on a host. */
double ls_cluster_unit(const ls_cluster *c, int workers, ls_dtype dt, const ls_model_config *m, int64_t B, int64_t T,
                       ls_unit_time kind);
/* Of a shard of `tp`, with the sums between shards; below 0 where none was measured. */
double ls_cluster_shard(const ls_cluster *c, int workers, int tp, ls_dtype dt, const ls_model_config *m, int64_t B,
                        int64_t T, ls_unit_time kind);
/* Of the number of workers nearest to this one, or made of the rates. */
ls_cluster_passes ls_cluster_pass(const ls_cluster *c, int workers, ls_dtype dt);
/* Seconds of a collective of n workers over a buffer of so many bytes (the whole one). between: they lie on several hosts. */
double ls_cluster_collective(const ls_cluster *c, ls_coll kind, int n, double bytes, bool between);

/* Floating-point operations of a pass, the bytes of embed: what measured times are scaled by between shapes. */
double ls_unit_work(const ls_model_config *m, int64_t B, int64_t T, ls_unit_time kind);

#endif
