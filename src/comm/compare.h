/* compare.h - whether all workers have the same values: settings, data, programs that were started separately. */
#ifndef LS_COMM_COMPARE_H
#define LS_COMM_COMPARE_H

#include "comm/comm.h"
#include "core/str.h"

/* One value, as ls_comm_compare reads it. value NULL: none. */
void ls_compare_add(ls_str *out, const char *key, const char *value);

/* Compares the values of every worker with those of rank 0. LS_E_CONFIG names the first key that differs, with both
 * values, ranks and hosts, and ends with `advice`; the message is the same on every worker and a peer's on all but rank 0. Equal values
 * cost one small gather. Collective. */
ls_status ls_comm_compare(ls_comm *c, const ls_str *values, const char *advice, const char *site);

#endif
