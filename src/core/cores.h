/* cores.h - the cores of a worker that has some to itself.
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

/* The cores that this process may use, whatever its first thread was tied to by OpenMP's variables. */
int ls_cores_usable(void);
/* Of those, [first, last) are this worker's from now on. Call it before threads are started. */
void ls_cores_own(int first, int last);
/* Whether this worker has cores that no other worker uses. */
bool ls_cores_owned(void);
/* The calling thread: stays on the i-th of them, or may use all where there are not as many. Nothing when none are owned. */
void ls_cores_keep(int i);
/* The calling thread may use all of them. A thread inherits its maker's cores, so whoever is not computing begins with this. */
void ls_cores_roam(void);
/* The calling thread works little and often, and others wait for it: it requests short scheduler time slices (Linux 6.12 lets a
 * thread with a short slice interrupt one with a long slice; before, waking up did). */
void ls_cores_prompt(void);

#endif
