/* plan.h - the two halves of `lockstep plan`: a pipeline schedule looked at, layouts ranked. */
#ifndef LS_CLI_PLAN_H
#define LS_CLI_PLAN_H

#include "core/err.h"

ls_status plan_schedule(int argc, char **argv); /* --schedule                                       */
ls_status plan_layouts(int argc, char **argv);  /* --model … --cluster …, --measure, --check RUN_DIR */

#endif
