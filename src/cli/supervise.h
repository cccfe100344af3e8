/* supervise.h - a run that restarts after failures: attempts, one after the other, until one is complete.
 *
 *   attempt ─┬─ complete ──────────────────────────────────────────────────────────► 0
 *            ├─ stopped by the user, or a failure that a restart would repeat ───────► its status
 *            ├─ failed ── newest whole checkpoint ── number of workers ── wait ── next attempt
 *            └─ stopped to change the number of workers ───────────────────────── next attempt
 *
 * What the supervisor knows of an attempt it reads from the run folder: events.jsonl shows when training begins, metrics.jsonl the last step. So the
 * same code supervises forked workers (train), agents on hosts and any other launcher (launch).
 *
 * Rules
 *   1. Restarted are failures of workers, communication, devices and this program, and, once training has begun, of writing files and of
 *      memory. Not restarted: bad usage, configuration and data, a loss that is not a number, SIGTERM and SIGINT.
 *   2. A restart that does not begin from a newer checkpoint than the attempt before it is one without progress. After max_restarts of
 *      them in a row the failure is final. So it is if the same failure of the program comes SUPERVISE_SAME times in a row after the same
 *      step; SIGKILL is none. Failures of the disk are the same at any step, and final after max_restarts of them.
 *   3. The wait before a restart is 0.5 s, doubled for each further one without progress, at most 30 s.
 *   4. No attempt starts from a damaged checkpoint: it is renamed to damaged-<name>. */
#ifndef LS_CLI_SUPERVISE_H
#define LS_CLI_SUPERVISE_H

#include "run/events.h"
#include "run/jsonl.h"

#include <limits.h>

#define SUPERVISE_SAME     3
#define SUPERVISE_RESTARTS 3 /* with --elastic or --hot_spare alone */

typedef struct supervise_end {
    int rank;          /* the worker that failed first; -1: not known */
    char host[256];    /* its host; "": this one                      */
    const char *cause; /* NULL: from the status (docs/FORMATS.md)     */
    bool lost;         /* a worker, a device or a host is gone        */
    bool sure;         /* several hosts: the rank is known from the reports of all hosts */
    bool vague;        /* cause and detail are only what the exit code of a launcher tells */
    bool code;         /* the status is the exit code of another launcher */
    bool outside;      /* by something that is not this program: SIGKILL, SIGSTOP, a host that is gone */
    char detail[400];  /* one line; may be empty                      */
} supervise_end;

typedef struct supervise supervise;

typedef struct supervise_ops {
    void *ctx;
    /* Runs s->attempt with s->workers. While it runs, supervise_tick is called; true: the workers stop and save. */
    ls_status (*attempt)(void *ctx, supervise *s, supervise_end *end);
    /* After a failure (end) or a request (NULL, s->wanted workers): sets s->workers and, for people, s->why if the number changes; may be
     * NULL. LS_E_COMM: too few are left. */
    ls_status (*next)(void *ctx, supervise *s, const supervise_end *end);
    /* Whether s->wanted workers are possible, before anything is stopped; NULL: requests are not served. The message is the answer. */
    ls_status (*allows)(void *ctx, supervise *s, int wanted);
    /* The host of a worker of the attempt; NULL: this one, or the one in `end`. */
    void (*host_of)(void *ctx, int rank, char host[256]);
    /* About once per second: the number of workers that the run should continue with, 0: as it is; may be NULL. */
    int (*wants)(void *ctx, supervise *s);
} supervise_ops;

struct supervise {
    supervise_ops ops;
    char run_dir[PATH_MAX];
    int max_restarts;
    bool hosts;      /* workers are on hosts whose memory this process does not see */
    int attempt;     /* from 1 */
    int workers;     /* of the attempt; 0: not known */
    bool resume;     /* the attempt continues what an earlier one, or an earlier command, has begun */
    int wanted;      /* workers that were asked for while the attempt runs; 0: none */
    const char *why; /* of the next change of workers: "a worker was lost", "workers returned", "asked" */

    /* of the attempt */
    ls_follow events; /* what of events.jsonl was read */
    bool began;       /* its first step has begun             */
    double began_at;
    int64_t from;     /* the step it continues from; -1: not known */
    char reason[300]; /* why it ended, as rank 0 wrote it; "": not known */
    bool corrupt;     /* its audit has found a wrong number   */
    bool saved;       /* it has left a checkpoint on the disk */
    int corrupt_rank;
    int64_t oom_kills; /* of this machine, before it; -1: not known */
    double looked_at;

    /* of failures */
    int count;        /* restarts without progress */
    int64_t step;     /* the last finished step that was seen */
    double failed_at; /* since then nothing was done: the end of the last finished step */
    double waited, repeated;
    int64_t lost_steps;
    int64_t reached;  /* the newest checkpoint that an attempt began from or left, 0: none */
    int64_t expected; /* the step that the next attempt continues from, if the hosts still have it in their memory */
    double repeated_found; /* as `repeated`, from the newest checkpoint that this host can read */
    bool restarting;       /* the line "restart" is due when training begins again */
    int same;              /* equal failures in a row */
    ls_status last;
    int last_rank;
    int64_t last_step; /* the last finished one */
    bool disk;         /* the last one was of the disk */
    bool disk_final;   /* ... and is not followed by a restart */
};

ls_status supervise_run(supervise *s);
/* After supervise_run: whether a line must show the command that continues the run. */
bool supervise_can_continue(const supervise *s, ls_status st);

/* MIN:MAX of --elastic for n workers (0: not known yet), at most `limit`; text NULL: both are 0. LS_E_ARG. */
ls_status supervise_parse_elastic(const char *text, int64_t n, int limit, int *least, int *most);
/* LS_E_ARG: spares (--hot_spare) without a restart that could use them; max_restarts -1: not given. */
ls_status supervise_check_spares(int64_t spares, int64_t max_restarts);
/* Called by an attempt several times per second. True: the workers must stop and save, because their number changes. */
bool supervise_tick(void *s);

/* The files by which `lockstep resize` asks, and the answer: "ok", that the run has this number already, or why not. */
#define SUPERVISE_ASK         "resize"
#define SUPERVISE_ANSWER      "resize.answer"
#define SUPERVISE_SAME_NUMBER "unchanged"

#endif
