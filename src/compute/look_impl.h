/* look_impl.h - for tests: how a child process answers, crashes or does not answer. */
#ifndef LS_COMPUTE_LOOK_IMPL_H
#define LS_COMPUTE_LOOK_IMPL_H

#include "compute/look.h"

typedef ls_look look_fn(int local_rank);

/* look(local_rank) of a child process, within so many seconds. */
ls_look look_in_child(look_fn *look, int local_rank, double limit);

#endif
