/* cluster_file.h - what the planner knows about a machine: memory, times of model units, times of collectives.
 *
 * One JSON object (docs/PLAN.md lists all keys). Compute speed is given in one of two ways:
 *
 *   units    seconds of embed, block and head, forward and backward, measured while W workers compute ("plan --measure")
 *   rates    FLOP/s of matrix products and of attention for each precision, bytes/s of memory: presets, from data sheets and runs
 *
 * Links have curves of (bytes, seconds) per collective and number of workers, or latency and bus bandwidth. Measured entries
 * override rates.
 *
 *   seconds of a collective  =  steps x latency + factor(kind, n) bytes / bandwidth       without a curve
 *   factor                      as in nccl-tests: 2(n-1)/n all_reduce, (n-1)/n scatter and gather, 1 the others
 *   steps, on several hosts     those of the algorithm that a run uses (planner_rates.c) */
#ifndef LS_PLAN_CLUSTER_FILE_H
#define LS_PLAN_CLUSTER_FILE_H

#include "comm/comm.h"
#include "compute/card.h"
#include "compute/compute.h"
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

/* Times of units of one shape, measured while `workers` workers with `threads` threads each ran the same work. */
typedef struct ls_cluster_units {
    int workers, threads;
    int tp; /* above 1: times of one of `tp` shards, including the all-reduces between them */
    int n_embd, n_head, vocab;
    bool dropout;
    ls_dtype dtype;              /* the precision: LS_F32, LS_BF16, LS_F16 */
    char kernel[LS_KERNEL_NAME]; /* matmul kernel of the CPU; "": unknown, or a GPU */
    int64_t B, T;
    double sec[LS_N_UNIT_TIME];
} ls_cluster_units;

/* Seconds per element of passes over memory, and the cost of overlap, with `workers` workers. */
typedef struct ls_cluster_passes {
    int workers;
    ls_dtype dtype;
    double adamw, sumsq, add;
    double alone;   /* AdamW of one worker while the others wait (dp) */
    double offload; /* AdamW of a state in host memory, by CPU and GPU together (parallel/offload.c); 0: unknown */
    double on_host; /* the same by the CPU alone, while the GPU computes; 0: it updates nothing */
    double overlap; /* fraction of a collective hidden by compute: 1 - lost time / its time; may be negative */
    double step;    /* other seconds per step */
    double apart;   /* 0 to 1: factor on unit times if workers do not synchronize and late ones catch up */
    double beside;  /* 0 to 1: factor on unit times while every second worker waits*/
} ls_cluster_passes;

#define LS_CURVE_MAX 24
typedef struct ls_cluster_curve {
    ls_coll kind;
    int workers, n;
    double bytes[LS_CURVE_MAX], sec[LS_CURVE_MAX]; /* ascending bytes, of the whole buffer */
} ls_cluster_curve;

typedef struct ls_link {
    double latency, bandwidth; /* seconds per ring step; bytes/s */
} ls_link;

/* FLOP/s of one precision; 0 if unknown. */
typedef struct ls_cluster_rates {
    double matmul;    /* of matrix products, as training reaches them                         */
    double attention; /* of attention without dropout, in any order of sums; 0: same as matmul */
    double ordered;   /* of attention with one order of sums, the default of train; 0: unknown */
    double dropout;   /* of attention with dropout, which always has one order; 0: unknown */
    double peak;      /* the data sheet value for dense products; MFU is relative to it*/
} ls_cluster_rates;

#define LS_N_PRECISION 3 /* fp32, bf16, fp16 */
int ls_precision_index(ls_dtype dt);
const char *ls_precision_word(ls_dtype dt);
/* "fp32", "bf16" or "fp16"; false for anything else. */
bool ls_precision_parse(const char *word, ls_dtype *out);

typedef struct ls_cluster {
    char name[64], source[600];
    int capability;           /* of the GPU, 75: 7.5 (compute/card.h); 0: unknown */
    bool cpu;                 /* workers share the cores and the memory of a host */
    int hosts, devices;       /* devices: workers per host (cpu: cores)          */
    int count;                /* devices in all, if requested (NAME:COUNT); 0: hosts x devices */
    int64_t memory;           /* bytes: of a device, or (cpu) of a host          */
    int wire_bytes;           /* per transferred fp32 element                 */
    int update_bytes;         /* read and written per parameter update in fp32; 2 more with 16-bit weights */
    double matmul, bandwidth; /* FLOP/s of precisions without a rate of their own; bytes/s; 0: use units */
    ls_cluster_rates rates[LS_N_PRECISION]; /* by ls_precision_index */
    double unit_overhead;                   /* seconds per unit and pass, with rates */
    double ramp; /* seconds a product takes longer for each element of its inner dimension: tiles at its end do not fill
                             a device */
    double step_overhead; /* extra seconds per step: the host reads the gradient norm */
    double power;         /* power limit of a device in watts; 0: unknown */
    double host_memory;   /* bytes/s of host memory for one device; 0: unknown */
    double bus;           /* bytes/s between a device and host memory, in each direction at the same time; 0: unknown */
    double overlap;
    ls_link inside, between; /* within a host; between hosts, of one network card */
    int cards;               /* network cards of a host that a collective uses at the same time; 0: one */
    ls_cluster_units *units;
    int n_units;
    ls_cluster_passes *passes;
    int n_passes;
    ls_cluster_curve *curve;
    int n_curve;
} ls_cluster;

#define LS_CLUSTER_MOST 16384 /* workers that can be planned */

#define LS_CLUSTER_PRESETS "t4, l4, a10g, v100, v100-32, a100, a100-40, h100, h200, b200, rtx-3090, rtx-4090, rtx-5090"

/* name: one of LS_CLUSTER_PRESETS or a file; with ":COUNT" so many devices, on hosts of the same kind. LS_E_ARG lists the presets and the
 * keys that a file needs; LS_E_FORMAT names the file and the key. */
ls_status ls_cluster_open(const char *name, ls_cluster *out);
bool ls_cluster_preset(const char *name, ls_cluster *out);
/* The preset for a device name as reported by its driver ("NVIDIA H200"): every part of the preset's name is a word of it. */
bool ls_cluster_preset_of(const char *device, ls_cluster *out);
/* One host whose workers compute on so many cores. Its rates are rough: they rank layouts, and are no prediction of times. */
void ls_cluster_cpu(int cores, ls_cluster *out);
ls_status ls_cluster_load(const char *path, ls_cluster *out);
void ls_cluster_text(const ls_cluster *c, ls_str *out);
void ls_cluster_fini(ls_cluster *c);

ls_status ls_cluster_add_units(ls_cluster *c, const ls_cluster_units *u);
ls_status ls_cluster_add_passes(ls_cluster *c, const ls_cluster_passes *p);
ls_status ls_cluster_add_curve(ls_cluster *c, const ls_cluster_curve *v);

/* ---- predictions ---- */

/* Placement of workers 0 … world - 1: hosts are filled in order. If no host is left, a cpu host takes more workers than it has cores;
 * they share cores and are slower in proportion. */
typedef struct ls_crowd {
    int on_host;   /* workers per host                                     */
    int timed;     /* worker count whose times are used: at most the measured maximum */
    double slower; /* factor on those times, 1 or above */
} ls_crowd;
ls_crowd ls_cluster_crowd(const ls_cluster *c, int world);
/* Checks that the file has link data for `world` workers; LS_E_FORMAT names the missing key. */
ls_status ls_cluster_check_links(const ls_cluster *c, int world);
/* Bytes of a parameter or an activation: on CPUs fp32 in every precision. */
double ls_cluster_element(const ls_cluster *c, ls_dtype dt);
/* The card of the cluster, if it has no products of this type; else, or if the card is not known, NULL. */
const ls_card *ls_cluster_lacks(const ls_cluster *c, ls_dtype dt);
/* LS_E_UNSUPPORTED if the card lacks this precision, or the file has no times for it; the message lists those it has. */
ls_status ls_cluster_check_precision(const ls_cluster *c, ls_dtype dt);
/* The default of `train`, or the first known precision: fp32 on CPUs; bf16, fp16, fp32 on GPUs. */
ls_dtype ls_cluster_default_precision(const ls_cluster *c);
/* The same for `--precision auto`: on CPUs bf16, if it was measured with bf16 instructions. */
ls_dtype ls_cluster_auto_precision(const ls_cluster *c);
/* Whether these are CPUs whose times in bf16 were measured with bf16 instructions. */
bool ls_cluster_has_bf16(const ls_cluster *c);
/* The matmul kernel of the CPUs in this precision, on which sizes in memory depend; "": unknown. */
const char *ls_cluster_kernel(const ls_cluster *c, ls_dtype dt);
/* Data sheet FLOP/s of dense products; 0: unknown. */
double ls_cluster_peak(const ls_cluster *c, ls_dtype dt);

/* Seconds of one pass of a unit over B x T tokens, with `workers` busy workers per host. tp above 1: of one of `tp` shards, including
 * their all-reduces; negative if not measured. ordered: with one order of sums. */
double ls_cluster_unit(const ls_cluster *c, int workers, int tp, ls_dtype dt, const ls_model_config *m, bool ordered,
                       int64_t B, int64_t T, ls_unit_time kind);
/* Whether the times are those of runs with dropout (or without it), and of one order of sums (the default of train): measured, or rates of both. */
bool ls_cluster_knows_dropout(const ls_cluster *c, ls_dtype dt, bool dropout);
bool ls_cluster_knows_order(const ls_cluster *c, ls_dtype dt);
/* For the nearest measured number of workers, or computed from the rates. */
ls_cluster_passes ls_cluster_pass(const ls_cluster *c, int workers, ls_dtype dt);
/* LS_E_UNSUPPORTED if the time of an update of a state in host memory is not known for this precision; names the keys. */
ls_status ls_cluster_check_offload(const ls_cluster *c, int workers, ls_dtype dt);
/* Where the workers of a collective are. */
typedef struct ls_coll_group {
    int n, hosts; /* workers, and the hosts on which they are */
    bool ordered; /* sums in a fixed order over NCCL (comm/nccl_tree.c) */
} ls_coll_group;
/* Seconds of a collective; bytes is the size of the whole buffer. */
double ls_cluster_collective(const ls_cluster *c, ls_coll kind, ls_coll_group group, double bytes);

#endif
