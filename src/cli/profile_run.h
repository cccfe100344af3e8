/* profile_run.h - a traced run from the command line: `train --profile`, and `profile -- train …` around it. */
#ifndef LS_CLI_PROFILE_RUN_H
#define LS_CLI_PROFILE_RUN_H

#include "train/profile.h"

/* Writes the trace of a run that ended with `run` and, on rank 0, its summary; says on stderr where they are. Returns `run`, or the
 * failure of writing when the run was fine. Collective where the run ended well. */
ls_status cli_profile_end(ls_profile **p, ls_comm *comm, const char *run_dir, ls_status run);

/* profiles/profile_summary.json from what there is: nsys text, a trace, or both. Neither: exit code 1, in words. */
ls_status cli_profile_summarize(const char *run_dir);

/* The arguments after `profile`: -- train …, or train …. The run is traced; with NSYS=1 also under nsys, where there is one. */
ls_status cli_profile_run(int argc, char **argv);

#endif
