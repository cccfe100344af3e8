/* schedule_text.h - writes and reads schedules as text. The format is docs/SCHEDULES.md.
 *
 *   lockstep-schedule 1
 *   name 1f1b
 *   stages 2
 *   micro 2
 *   chunks 1
 *   messages listed
 *   rank 0
 *   F0 sa0@1 F1 sa1@1 rg0@1 B0 rg1@1 B1 R0 step
 *   rank 1
 *   ra0@0 F0 B0 sg0@0 ra1@0 F1 B1 sg1@0 R0 step
 *
 * With `messages auto` only F B I W are listed; messages, reduce and step are added. Reading what was written gives the same lists. */
#ifndef LS_PARALLEL_SCHEDULE_TEXT_H
#define LS_PARALLEL_SCHEDULE_TEXT_H

#include "core/err.h"
#include "core/str.h"
#include "parallel/schedule.h"

#define LS_TOKEN 64

/* Names action i of a rank: "rank 2, line 14 (B3)" for one from a file, by its line there (a message that was added, by the action it was
 * added to); else "rank 2, action 17 (rg3@1)". */
#define LS_WHERE (LS_TOKEN + 64)
char *ls_action_where(const ls_schedule *s, int rank, int i, char buf[LS_WHERE]);

void ls_schedule_write(const ls_schedule *s, ls_str *out);

/* Reads and numbers slots; does not check (schedule_check.h does). LS_E_FORMAT names `what`, line and column. */
ls_status ls_schedule_read(ls_schedule **out, const char *text, size_t n, const char *what);
/* Reads a file and checks it. LS_E_CONFIG when its shape is not the one asked for (0 = any). */
ls_status ls_schedule_load(ls_schedule **out, const char *path, int n_stage, int n_micro);

#endif
