/* cores.h - the cores of a worker that has some to itself. A core is here what Linux calls a CPU: a hardware thread.
 *
 *   core     │ a │ b │ c │ d │
 *   threads    0   1   2   3     computing: one core each, for good
 *              ◄── lanes, … ──►  all others: wherever there is room
 *
 * Left to the scheduler, a thread that moves messages pushes a computing one onto its neighbour's core, where they take turns for half a
 * second beside an idle one. A process that was given nothing (one worker, the machine to share) keeps none of this. */
#ifndef LS_CORE_CORES_H
#define LS_CORE_CORES_H

#include <stdbool.h>

/* Orders n CPUs so that a part of the list is close together: by NUMA node, then by physical core. Then the hardware threads of a core are
 * neighbours, and workers that each take a part share a physical core only if a part ends inside it. root: "/sys", or a folder like it; what it does not
 * have counts as one node, or as one hardware thread per core. */
void ls_cores_order(const char *root, int n, int *cpu);
/* Orders n CPUs so that each is on another physical core than those before it, as far as possible: where computing threads go, in their order. */
void ls_cores_apart(const char *root, int n, int *cpu);

/* The cores that this process may use, whatever its first thread was tied to by OpenMP's variables. */
int ls_cores_usable(void);
/* Of those, in the order of ls_cores_order, [first, last) are this worker's from now on. Call it before threads are started. */
void ls_cores_own(int first, int last);
/* Whether this worker has cores that no other worker uses. */
bool ls_cores_owned(void);
/* Lists them (room for CPU_SETSIZE, 1024); returns their number. */
int ls_cores_list(int *cpu);
/* The calling thread: stays on the i-th of them in the order of ls_cores_apart, or may use all where there are not as many. Nothing when none are owned. */
void ls_cores_keep(int i);
/* The calling thread stays on this CPU, of whatever worker it is. */
void ls_cores_stay(int cpu);
/* Whether the system lets it. */
bool ls_cores_may_use(int cpu);
/* The calling thread may use all of them. A thread inherits its maker's cores, so whoever is not computing begins with this. */
void ls_cores_roam(void);
/* Seconds for which threads of this process, those that run now, were ready to run and had no core; -1: the system does not count them. */
double ls_cores_waited(void);
/* The calling thread works little and often, and others wait for it: it requests short scheduler time slices (Linux 6.12 lets a
 * thread with a short slice interrupt one with a long slice; before, waking up did). */
void ls_cores_prompt(void);

#endif
