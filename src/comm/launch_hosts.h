/* launch_hosts.h - `lockstep launch`: workers on several hosts, started over ssh, srun or another command that runs a command on a host. */
#ifndef LS_COMM_LAUNCH_HOSTS_H
#define LS_COMM_LAUNCH_HOSTS_H

#include "comm/launch.h"
#include "core/argv.h"
#include "core/err.h"

#include <stdbool.h>

#define LS_LAUNCH_HOSTS 256

typedef struct ls_launch_host {
    char name[256];
    int n; /* workers; 0: an equal part */
} ls_launch_host;

typedef struct ls_launch_plan {
    ls_launch_host host[LS_LAUNCH_HOSTS];
    int n_host, size;
    int n_spare;         /* the last hosts of the list, which are not counted in size */
    ls_argv rsh;         /* the command; the host, `shell` and one word for its shell are added */
    ls_argv shell;       /* "sh -c" where the command does not start a shell itself */
    const char *program; /* lockstep on the hosts */
    const char *address; /* MASTER_ADDR; NULL: the first host */
    int port;
    bool no_prefix;
    ls_argv env;  /* NAME=VALUE for the workers */
    ls_argv argv; /* of lockstep: train … */
    /* About 20 times per second; may be NULL. True: the workers are asked to stop, as by SIGTERM. */
    bool (*tick)(void *ctx);
    void *ctx;
    ls_launch_end end; /* out */
} ls_launch_plan;

/* Parses "a,b:4,user@c" and completes the plan: workers of each host, from the numbers or in equal parts of `size` (0: the sum). LS_E_ARG. */
ls_status ls_launch_hosts_parse(const char *text, int size, ls_launch_plan *out);

/* Runs until all workers on all hosts have ended and all agents have reported how (at most 30 s after a failure). The status is that of the
 * worker that failed first (ended_impl.h); the message is empty where a worker has printed it.
 *
 *   SIGTERM, SIGINT    passed on to all workers; a second one kills them
 *   a host fails       the others end by themselves, and are killed after 25 s
 *   this process dies  the agents notice the end of their stdin and end their workers */
ls_status ls_launch_hosts(ls_launch_plan *l);

/* Whether a host answers: runs `program --version` there. poll: 1 yes, 0 no or not within `limit` seconds, -1 not known yet; the probe
 * ends with the first answer. */
typedef struct ls_launch_probe ls_launch_probe;
ls_status ls_launch_probe_start(const ls_launch_plan *l, int host, ls_launch_probe **out);
int ls_launch_probe_poll(ls_launch_probe **q, double limit);

/* Runs a command of another launcher (mpirun, srun, torchrun) and passes its output and signals on. tick: as in the plan. The status is that of
 * its exit code; LS_E_ARG: it cannot be run. */
ls_status ls_launch_command(const ls_argv *argv, bool (*tick)(void *ctx), void *ctx, ls_launch_end *end);

/* `lockstep launch --agent`: runs the workers of one host, with the job from stdin. */
ls_status ls_launch_agent(void);

#endif
