/* lend.h - cores of workers that wait, used by workers that still compute.
 *
 *   worker 0   ███████████████ waits: lends its cores ░░░░░░│ sums, update
 *   worker 1   ██████████████████████████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│               ▓ with the cores of worker 0, too
 *
 * Workers of one host that have cores of their own do equal work, but cores are not equally fast (other programs, other virtual machines, heat), and
 * a step ends with the slowest worker. Results do not depend on the number of threads (compute.h), so a worker may compute with more of them at any
 * time.
 *
 *   the cores of a worker are   at work  → ls_lend_give → free  → ls_lend_take of another → held  → its ls_lend_give → free
 *                               free     → ls_lend_back → at work
 *
 * Between ls_lend_give and ls_lend_back there is a barrier of all workers of the communicator, and one more before the next ls_lend_take. So all borrowed
 * cores are given back before their worker needs them: nothing is ever called back. */
#ifndef LS_COMM_LEND_H
#define LS_COMM_LEND_H

#include "comm/comm.h"

#define LS_LEND_ROOM 1024 /* CPUs of a host: CPU_SETSIZE */

typedef struct ls_lend ls_lend;

/* own: the n_own CPUs that no other worker uses; may_use: whether this process can run threads on a CPU. *out = NULL where nothing can be borrowed: one
 * worker, several hosts, no others with CPUs of their own that may be used. Collective over c. */
ls_status ls_lend_open(ls_comm *c, const int *own, int n_own, bool (*may_use)(int cpu), const char *site,
                       ls_lend **out);
void ls_lend_close(ls_lend **l);

/* Takes free cores, those of a waiting worker together, until this worker has `most`: what it cannot use stays free for others. The workers that wait are
 * shared equally by those that do not. cpu = at most `most` CPUs that are borrowed now, those of earlier calls first; returns their number. */
int ls_lend_take(ls_lend *l, int *cpu, int most);
/* This worker has nothing to compute until the next barrier: its cores, and those that it has borrowed, are free. */
void ls_lend_give(ls_lend *l);
/* After that barrier. */
void ls_lend_back(ls_lend *l);

#endif
