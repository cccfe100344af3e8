/* analysis.h - runs to groups of repeats, intervals, speed-ups, and the causes of lost time.
 *
 *   group      runs with the same setting and number of workers: repeats, which may differ in their seed alone. A profiled run, or one whose
 *              number of workers changed, is in a group of its own kind, which is shown but never compared. A run that was interrupted and restarted is in
 *              a group of its own, too, which is marked: its steps are compared, its wall time is not. A run without steps after the warm-up is
 *              not compared either, if others have such steps
 *   interval   95 %, Student's t over repeats; of a single run, over ten blocks of its steps (does not include the variation between runs)
 *   mean       of tokens/s: geometric, so that ratios of means are means of ratios, and step times are tokens / mean
 *   turn       runs of two groups with one name (run_3) are a pair, if by their start no other run of the two groups was made between them
 *   speed-up   the ratio to the one-worker group of the same work (core/stat.h): by turn, else of independent runs; efficiency = speed-up / workers
 *   waterfall  a step of T seconds against the ideal T1/W (weak scaling: T1): shares of T that are useful, and lost to each part;
 *              they sum to 1
 *
 *   leading    the fastest group and those that are not shown to be slower; a group that leads alone is the winner
 *
 * Only comparable runs are compared: seven fields of training_config and the number of optimizer steps must be equal
 * (docs/FORMATS.md#comparable-runs). Runs that differ are listed. Pipelines can be compared apart from all others, as
 * in the translation study's protocol: each kind has a baseline and a winner of its own. */
#ifndef LS_REPORT_ANALYSIS_H
#define LS_REPORT_ANALYSIS_H

#include "core/stat.h"
#include "report/read/run_folder.h"

/* What a step of a group was spent on, as shares of its time. */
typedef struct ls_waterfall {
    bool known;    /* there is a one-worker group to compare with         */
    bool split;    /* the run recorded the parts of a step                */
    double useful; /* = efficiency                                        */
    double
        lost[LS_N_SPLIT]; /* FORWARD: compute slowdown (forward and backward); BACKWARD is 0. May be negative: a gain */
} ls_waterfall;

/* Kinds of runs that are compared apart (ls_compare_opts.apart); else all are of the first. */
enum { LS_KIND_ALL, LS_KIND_PIPELINE, LS_N_KIND };

typedef struct ls_group {
    char *label;      /* "ddp x 2", with what differs from its neighbours */
    char *short_name; /* strategy and differences, without workers        */
    int world, kind;
    bool no_benchmark;   /* profiled, resized, or resumed in another way */
    bool interrupted;    /* restarted, resized or resumed */
    const ls_run *first; /* of the repeats */
    int *run;            /* indices into the set */
    int n_run;
    ls_estimate tokens, epoch_time, wall;
    ls_estimate recorded;                /* the scaling study's tokens/s: of whole epochs, warm-up included */
    ls_ratio over_base;                  /* this group over its base; of the base itself: n is 0 */
    ls_ratio of_best;                    /* the fastest group of the kind over this one; of the fastest: n is 0 */
    ls_estimate speedup, efficiency;     /* of over_base; NaN: no one-worker group            */
    double speedup_r1;                   /* the scaling study's: over the first one-worker repeat */
    int base;                            /* the one-worker group, or -1                       */
    double split[LS_N_SPLIT], step_time; /* parts of a step, seconds, and their sum (or mean step); NaN: none */
    bool split_of_steps;                 /* of the steps after the warm-up; else of all, as the run recorded them */
    int split_warm_lo, split_warm_hi;    /* steps of warm-up, the fewest and the most of its runs     */
    ls_waterfall waterfall;
} ls_group;

typedef struct ls_mismatch {
    const char *field;
    const json_t *baseline, *other; /* NULL: absent */
    int run, base;                  /* the run, and the one that it is compared with */
} ls_mismatch;

/* Groups of one kind by tokens/s; -1: none. */
typedef struct ls_ranking {
    int best, second;
    int winner;   /* the best, if all others are shown to be slower */
    int n_behind; /* shown to be slower than the best               */
    int n_repeated,
        n_tested; /* settings with several runs, all pairs of which are the family; comparisons made, with p */
} ls_ranking;
#define LS_NO_RANKING ((ls_ranking){.best = -1, .second = -1, .winner = -1})

typedef struct ls_analysis {
    const ls_run_set *set;
    ls_group *group; /* ascending by workers, then the fastest first */
    int n_group;
    ls_mismatch *mismatch;
    int n_mismatch;
    int baseline;    /* run that the others are compared with, or -1; of the first kind if there are several */
    bool comparable; /* at least two groups, and no mismatch unless allowed       */
    bool allowed;    /* mismatches were allowed, or are of engines                */
    bool
        engines; /* plain PyTorch on one worker and DeepSpeed on several name their precision differently, and nothing else differs */
    bool precisions, other_precision; /* precisions may differ, as asked; they do */
    int n_kind;                       /* 1, or LS_N_KIND: pipelines are compared apart             */
    ls_ranking top[LS_N_KIND];
    bool same_loss;       /* every run with steps has the same losses, bit for bit     */
    int n_loss;           /* runs with steps                                           */
    bool several_commits; /* the runs come from more than one commit                   */
    bool weak, steady;    /* as asked; steady: tokens/s are those after the warm-up   */
    int warm_lo, warm_hi; /* steps of warm-up, the fewest and the most of a run        */
    int short_of;         /* as in ls_compare_opts                                     */
} ls_analysis;

typedef struct ls_compare_opts {
    bool allow_mismatch;
    bool
        weak; /* the global batch grows with the workers: it must be equal by worker. Epochs, or the steps of equal data, may differ */
    bool precisions; /* they may differ: they are what is compared (bench ab) */
    bool apart;      /* the translation study's protocol: pipelines are compared with one another alone */
    bool steady;     /* tokens/s from the steps after the warm-up, where every run has steps; else as recorded     */
    int short_of;    /* not steady because a run has no more steps than this warm-up; 0: another reason */
} ls_compare_opts;

/* set must be sorted and outlive the analysis. Fails only with LS_E_NOMEM. */
ls_status ls_analyse(const ls_run_set *set, const ls_compare_opts *o, ls_analysis *out); /* o NULL: all off */
void ls_analysis_fini(ls_analysis *a);
void ls_waterfall_put(ls_jsonw *w, const ls_waterfall *f); /* member `waterfall`; none when it is not known */
/* What mismatches that were allowed mean, as a sentence. */
void ls_allowed_words(const ls_analysis *a, ls_str *out);
/* What the tokens/s are of: "steps after the warm-up", "whole epochs" or "epochs after the first"; and as a sentence. */
const char *ls_basis_of(const ls_analysis *a);
void ls_basis_words(const ls_analysis *a, ls_str *out);
/* The loss of a group (validation: the best one): of all runs if they are equal, else by seed (by_seed, and a seed has one loss), or the range. */
void ls_loss_words(const ls_analysis *a, const ls_group *g, bool validation, bool by_seed, ls_str *out);
/* Whether two intervals overlap; true also if one is not known, since no difference is shown then. */
bool ls_overlap(const ls_estimate *a, const ls_estimate *b);
/* Which settings of each kind lead, as sentences; nothing with fewer than two groups to compare. */
void ls_winner_words(const ls_analysis *a, ls_str *out);
void ls_ranking_words(const ls_analysis *a, int kind, ls_str *out);              /* of one kind */
void ls_correction_words(const ls_analysis *a, const char *before, ls_str *out); /* when a difference is shown */
/* Efficiencies above 105 %, negative shares of compute and disturbed baselines, as sentences after `before`; nothing if there are none. */
void ls_beyond_words(const ls_analysis *a, const char *before, ls_str *out);
/* It is the fastest of its kind or not shown to be slower, and is shown to be faster than others are, or than one worker. */
bool ls_leads(const ls_analysis *a, int group);
/* partner[i]: the run of b with the name of run i of a ("run_3"); if no two have one name, by their order; -1: none. */
void ls_pair_up(const ls_run *const *a, int na, const ls_run *const *b, int nb, int *partner);
/* Whether no other of these runs began between the two of a pair a[i], b[i]. */
bool ls_in_turns(const ls_run *const *a, const ls_run *const *b, int n);
/* g over base. LS_E_NOMEM alone. */
ls_status ls_group_ratio(const ls_analysis *a, const ls_group *base, const ls_group *g, ls_ratio *out);
/* Members `over_one_worker` and `fastest_over_this` of a group; null: there is no such comparison. */
void ls_ratios_put(ls_jsonw *w, const ls_group *g);
void ls_leading_put(ls_jsonw *w, const ls_analysis *a);    /* member `leading`: labels of the groups */
ls_status ls_rank(ls_analysis *a, int kind);               /* sets of_best and top[kind] */
const char *ls_result_words(const ls_ratio *r);            /* "faster", "slower", "no difference shown" */
const char *ls_kind_words(const ls_analysis *a, int kind); /* "Pipelines: ", before a sentence; "": there is one kind */
double ls_run_rate(const ls_analysis *a, const ls_run *r); /* tokens/s, of the kind that the groups have */
bool ls_same_losses(const ls_run *a, const ls_run *b);     /* at every step, bit for bit; false without steps */

/* scaling_report.json (docs/FORMATS.md, our keys after the scaling study's) over the groups of one strategy and its
 * one-worker group; every group when strategy is NULL. Without comparable runs: status and mismatches alone. more (may
 * be NULL) adds members to `protocol`, after the scaling study's: how the runs were made. */
void ls_scaling_text(const ls_analysis *a, const char *strategy, void (*more)(const void *ctx, ls_jsonw *w),
                     const void *ctx, ls_str *out);

/* Settings side by side by the six metrics of a framework comparison, each with its interval over repeats.
 *
 *   communication   share of a step that was waited for other workers' data (and, apart, for the pipeline's bubble)
 *   throughput      tokens/s
 *   time            wall seconds of the fixed work
 *   utilisation     CPU seconds / (wall seconds x threads), mean over workers
 *   memory          peak resident bytes, of the worker that had most
 *   scalability     speed-up over one worker, and efficiency
 */
enum {
    LS_METRIC_COMMUNICATION,
    LS_METRIC_BUBBLE,
    LS_METRIC_TOKENS,
    LS_METRIC_WALL,
    LS_METRIC_UTILISATION,
    LS_METRIC_MEMORY,
    LS_METRIC_SPEEDUP,
    LS_METRIC_EFFICIENCY,
    LS_N_METRIC
};

/* The metrics of a group. LS_E_NOMEM alone. */
ls_status ls_metrics_of(const ls_analysis *a, const ls_group *g, ls_estimate out[LS_N_METRIC]);
/* For a terminal. */
ls_status ls_strategies_table(const ls_analysis *a, ls_str *out);
/* strategies_report.json; more adds members to `protocol`, left_out to the list of what was not run. */
ls_status ls_strategies_text(const ls_analysis *a, void (*more)(const void *ctx, ls_jsonw *w),
                             void (*left_out)(const void *ctx, ls_jsonw *w), const void *ctx, ls_str *out);

#endif
