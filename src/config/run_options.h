/* run_options.h - options.json: the options that a run was started with, in its folder, so that `train --resume RUN` needs no others.
 *
 *   {"version": 1, "options": {"data": "/home/me/data", "model": "tiny", "lr": 0.003, "global_batch_size": 8, ...},
 *    "computed": {"precision": "bf16", "device": "cuda"}}
 *
 * Every option that was typed, chosen (config/auto.h) or taken from a preset is a member with its name, except those of one process alone (--resume,
 * --json, --profile, --max_restarts ...). Batch sizes are the resolved ones, so that another number of workers continues with the same batch. Paths are absolute.
 * `computed` has what the machine decided where the options left it open: a run that is resumed on another machine keeps its precision.
 *
 * The DeepSpeed JSON of a run is beside it as a copy, which a resumed run reads: the original may change or disappear. */
#ifndef LS_CONFIG_RUN_OPTIONS_H
#define LS_CONFIG_RUN_OPTIONS_H

#include "config/resolve.h"
#include "core/argv.h"
#include "core/json.h"

#define LS_RUN_OPTIONS   "options.json"
#define LS_RUN_DEEPSPEED "options.deepspeed.json" /* a copy of --deepspeed_config */

void ls_run_options_write(const ls_train_options *o, const ls_train_config *c, ls_str *out);

/* The settings of fp8 by the names of their options; nothing for other precisions. */
void ls_train_fp8_write(const ls_fp8_opts *o, ls_jsonw *w);

/* The options of a run folder as words. Without -n if the workers are `launched`. A run that has a checkpoint takes the model of --init_from from
 * it. LS_E_IO if the folder or the file does not exist, LS_E_FORMAT. */
ls_status ls_run_options_read(const char *run_dir, bool launched, ls_argv *out);

/* LS_E_FORMAT, with the last message and what to do: the file is damaged, or has options that cannot be parsed. */
ls_status ls_run_options_damaged(const char *run_dir);

/* How the steps of a run folder were computed. Nothing is known of a run without steps, or of an earlier version. A damaged or deleted file is no
 * error here: out->lost has it for those whom it concerns. LS_E_FORMAT: the file has another version. */
ls_status ls_run_options_computed(const char *run_dir, ls_run_computed *out);

/* What a resumed run does not take over and the run had, as it is typed, after a blank: "restarts" (" --max_restarts 3"), or "again", output
 * outside its folder (" --tensorboard tb"). Appends nothing if it had none, or there is no such run. */
void ls_run_options_typed(const char *run_dir, const char *member, ls_str *out);

#endif
