/* env.h - numbers in environment variables. */
#ifndef LS_CORE_ENV_H
#define LS_CORE_ENV_H

#include "core/err.h"

#include <stdbool.h>

/* A whole number of at least lo. *set: the variable is set and not empty; else *out stays as it is. name NULL: not set. LS_E_CONFIG. */
ls_status ls_env_int(const char *name, int lo, int *out, bool *set);

#endif
