/* resolve_impl.h - settings with their sources, shared by the files that resolve a configuration. */
#ifndef LS_CONFIG_RESOLVE_IMPL_H
#define LS_CONFIG_RESOLVE_IMPL_H

#include "config/resolve.h"

/* Where a value comes from; detail: the flag, key, variable or rule. */
typedef struct train_origin {
    ls_source source;
    const char *detail;
} train_origin;

/* The command line if it has `flag` ("--lr"), else the JSON if it has `key` (NULL: it has not), else the default. */
train_origin train_from(const ls_train_options *o, const char *flag, const char *key);
/* Same, if the JSON has the key. */
train_origin train_from_json(const ls_train_options *o, const char *flag, const ls_ds_config *ds, const char *key);
/* For a setting whose default is that of DeepSpeed where there is a JSON. */
train_origin train_or_deepspeed(train_origin from, const ls_ds_config *ds);
train_origin train_rule(const char *detail);

#define TRAIN_WARMUP_RULE "a tenth of the run, at most 1000 steps" /* the automatic warm-up */

/* Adds a row, or replaces the one of that name. Out of memory is reported by train_settings_check. */
void train_put_int(ls_train_config *c, const char *name, int64_t value, train_origin from);
void train_put_real(ls_train_config *c, const char *name, double value, train_origin from);
void train_put_bool(ls_train_config *c, const char *name, bool value, train_origin from);
void train_put_text(ls_train_config *c, const char *name, const char *value, train_origin from); /* NULL: null */
ls_status train_settings_check(ls_train_config *c);
/* Names the preset as the source of options that it set. */
void train_settings_preset(const ls_train_options *o, ls_train_config *c);

/* Whether an option is one of the run that is resumed, and was not typed. */
bool train_by_run(const ls_train_options *o, const char *name);
/* Whether the DeepSpeed JSON was typed, and is not that of the run that is resumed or of a preset. */
bool train_json_typed(const ls_train_options *o, const ls_ds_config *ds);
/* Who gave an option, in a note that begins with it: "", " of the earlier run" or " of the preset". */
const char *train_whose(const ls_train_options *o, const char *name);
/* An option that other options, or the device, exclude: it needs `needs`. One that nobody typed, because it is of the run that is resumed (or
 * of a preset), is forgotten with a note; nobody could leave it out by hand. False: it was typed, and the caller refuses it. */
bool train_leaves_out(ls_train_options *o, const char *name, const char *needs, ls_train_config *c);

/* The part of resolve that is about the model; settings included. */
ls_status train_resolve_model(const ls_train_options *o, const ls_train_facts *facts, ls_train_config *c);

/* Optimizer, schedule and clipping. */
ls_status train_resolve_optimizer(ls_train_options *o, const ls_ds_config *ds, ls_train_config *c);

/* Device, precision, loss scale and communication backend; the world is resolved before. */
ls_status train_resolve_device(ls_train_options *o, const ls_ds_config *ds, const ls_train_facts *facts,
                               ls_train_config *c);

/* TensorBoard, CSV and the lines of DeepSpeed. */
ls_status train_resolve_monitor(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c);

/* Copies text; NULL stays NULL. */
ls_status train_copy(char **dst, const char *text);

/* Of a run that is resumed with its copy of the DeepSpeed JSON: the folder in which it was started first; else NULL (run_options.c). */
const char *train_deepspeed_folder(const ls_train_options *o);
/* Whether a folder is not known to lie in that of the run; false for NULL. */
bool train_is_outside(const ls_train_options *o, const char *dir);

#endif
