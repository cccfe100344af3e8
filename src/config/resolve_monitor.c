/* resolve_monitor.c - what a run logs besides its own files: TensorBoard events, DeepSpeed's CSV files and its lines. */
#include "config/resolve_impl.h"
#include "config/run_options.h"
#include "core/fs.h"
#include "core/mem.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
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

bool train_is_outside(const ls_train_options *o, const char *dir)
{
    char run[PATH_MAX];
    const size_t n = dir && realpath(o->checkpoint_path, run) ? strlen(run) : 0;
    return dir && !(n && !strncmp(dir, run, n) && dir[n] == '/' && !strstr(dir + n, "/.."));
}

/* A run folder may come from a stranger: what it records sends no files out of it. A restart repeats what its first attempt was allowed.
 * `plan --check` takes the options without --resume, and writes nothing there. */
static ls_status check_inside(const ls_train_options *o, const char *option, const char *what, const char *dir)
{
    const char *attempt = getenv("LOCKSTEP_ATTEMPT");
    if (!o->resume || !train_by_run(o, option) || !train_is_outside(o, dir) || (attempt && strcmp(attempt, "1") != 0))
        return LS_OK;
    return ls_fail(LS_E_CONFIG, "%s records that %s go to %s, outside the run folder; repeat --%s to write there",
                   ls_path_of(o->checkpoint_path, LS_RUN_OPTIONS).text, what, dir, option);
}

ls_status train_resolve_monitor(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c)
{
    const train_origin none = {LS_FROM_DEFAULT, ""};
    if (o->tensorboard && !*o->tensorboard) return ls_fail(LS_E_CONFIG, "--tensorboard is empty");
    if (o->tensorboard) LS_TRY(train_copy(&c->tensorboard, o->tensorboard));
    else LS_TRY(folder_of(o, ds, "tensorboard", &c->tensorboard));
    LS_TRY(folder_of(o, ds, "csv_monitor", &c->csv_monitor));
    LS_TRY(check_inside(o, o->tensorboard ? "tensorboard" : "deepspeed_config", "TensorBoard files", c->tensorboard));
    LS_TRY(check_inside(o, "deepspeed_config", "the files of csv_monitor", c->csv_monitor));
    LS_TRY(check_inside(o, "workdir", "translations", o->workdir));
    c->ds_steps_per_print = ls_ds_int(ds, "steps_per_print", 0);
    train_put_text(c, "tensorboard", c->tensorboard,
                   c->tensorboard ? train_from(o, "--tensorboard", "tensorboard.output_path") : none);
    train_put_text(c, "csv_monitor", c->csv_monitor,
                   c->csv_monitor ? (train_origin){LS_FROM_JSON, "csv_monitor.output_path"} : none);
    return LS_OK;
}
