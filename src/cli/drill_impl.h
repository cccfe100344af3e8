/* drill_impl.h - `lockstep drill`: a plan of faults (drill_plan.c), one run under some of them (drill_run.c), the table (cmd_drill.c).
 *
 * The plan is a function of the seed: fault k has a kind, a layout, a rank, a step and a phase. A run has one fault, or two: the second one
 * happens after the restart. */
#ifndef LS_CLI_DRILL_IMPL_H
#define LS_CLI_DRILL_IMPL_H

#include "cli/commands.h"

#include <limits.h>

#define DRILL_STEPS    12
#define DRILL_SAVE     3 /* steps between checkpoints */
#define DRILL_TIMEOUT  5 /* --comm_timeout of the runs: a stopped worker is found after this time */
#define DRILL_PER_RUN  2
#define DRILL_RESTARTS "4"

typedef enum drill_launcher { DRILL_N, DRILL_MPI, DRILL_TCP } drill_launcher;

/* What a run must do after a fault: fail and restart, or go on. */
typedef struct drill_kind {
    const char *name, *words; /* of LOCKSTEP_FAULT */
    bool fails, file;         /* file: happens at a write of rank 0 */
    const char *cause;        /* that the run must record; NULL: any */
    bool harmless;            /* it may have no effect: a bit of no influence, an allocation that can fail */
    bool flip;                /* of a bit, in a run with --audit */
    bool host;                /* all processes of host b are killed while the fault lasts; with --launcher tcp */
} drill_kind;
extern const drill_kind drill_kinds[];
extern const int drill_n_kind;

typedef struct drill_layout {
    const char *name; /* of --strategy */
    char words[160];  /* options of train */
    char shown[40];
    int tp;
} drill_layout;

typedef struct drill_plan {
    uint64_t seed;
    int n;                         /* workers of a run */
    const char *strategies, *only; /* of --strategy and --kinds; NULL: all */
    drill_launcher launcher;
} drill_plan;

typedef struct drill_fault {
    int64_t number; /* from 1 */
    const drill_kind *kind;
    int rank, step, attempt;
    char words[160];
    /* what happened */
    bool happened;
    double detected, again; /* seconds after the fault; NaN: not */
    int64_t lost_steps;     /* -1: no restart */
    char cause[32];
    int blamed; /* rank; -1: none */
} drill_fault;

typedef struct drill_run {
    drill_layout layout;
    int n_fault;
    drill_fault fault[DRILL_PER_RUN];
    int code; /* exit code of the run */
    double seconds;
    bool same;        /* bits of model and optimizer */
    char failed[512]; /* why the drill failed; "": it did not */
} drill_run;

typedef struct drill_site {
    char program[4096], dir[PATH_MAX], rsh[PATH_MAX];
    const char *data;
    drill_launcher launcher;
    int n, n_micro; /* micro-batches of a step on all workers */
    double limit;   /* seconds of a run */
    bool keep, own_data;
    char *judge[2]; /* checkpoints of undisturbed runs of one worker, by tp: 1, 2 */
} drill_site;

/* LS_E_ARG where a list has an unknown word, or the number of workers fits no layout. */
ls_status drill_plan_check(const drill_plan *p);
/* The run that begins with fault number `from`; at most `left` faults. */
void drill_plan_run(const drill_plan *p, int64_t from, int64_t left, int n_micro, drill_run *r);

ls_status drill_site_open(drill_site *s, const char *dir);
void drill_site_close(drill_site *s, bool remove);
/* Makes the run and checks it. LS_E_STOPPED; other failures are those of the drill itself. */
ls_status drill_run_once(drill_site *s, drill_run *r);

#endif
