/* resolve_monitor.c - what a run logs besides its own files: TensorBoard events, DeepSpeed's CSV files and its lines. */
#include "config/resolve_impl.h"
#include "core/fs.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

/* <output_path>/<job_name> of an enabled block, as DeepSpeed joins them, relative to the folder in which the run was started first; NULL: not
 * enabled. */
static ls_status folder_of(const ls_train_options *o, const ls_ds_config *ds, const char *block, char **out)
{
    char enabled[64], path[64], name[64];
    snprintf(enabled, sizeof enabled, "%s.enabled", block);
    snprintf(path, sizeof path, "%s.output_path", block);
    snprintf(name, sizeof name, "%s.job_name", block);
    if (!ls_ds_bool(ds, enabled, false)) return LS_OK;
    const char *dir = ls_ds_text(ds, path, ""), *job = ls_ds_text(ds, name, "DeepSpeedJobName");
    if (!*dir && !*job) return ls_fail(LS_E_CONFIG, "'%s' and '%s' are both empty; give one of them", path, name);
    const char *first = train_deepspeed_folder(o);
    char *made = !*dir ? ls_strdup(job) : !*job ? ls_strdup(dir) : ls_path_join(dir, job);
    *out = made && first && *made != '/' ? ls_path_join(first, made) : made;
    if (*out != made) ls_free(made);
    return *out ? LS_OK : ls_nomem(strlen(dir) + strlen(job), "a path");
}

ls_status train_resolve_monitor(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    const train_origin none = {LS_FROM_DEFAULT, ""};
    if (o->tensorboard && !*o->tensorboard) return ls_fail(LS_E_CONFIG, "--tensorboard is empty");
    if (o->tensorboard) LS_TRY(train_copy(&c->tensorboard, o->tensorboard));
    else LS_TRY(folder_of(o, ds, "tensorboard", &c->tensorboard));
    LS_TRY(folder_of(o, ds, "csv_monitor", &c->csv_monitor));
    c->ds_steps_per_print = ls_ds_int(ds, "steps_per_print", 0);
    train_put_text(c, "tensorboard", c->tensorboard,
                   c->tensorboard ? train_from(o, "--tensorboard", "tensorboard.output_path") : none);
    train_put_text(c, "csv_monitor", c->csv_monitor,
                   c->csv_monitor ? (train_origin){LS_FROM_JSON, "csv_monitor.output_path"} : none);
    return LS_OK;
}
