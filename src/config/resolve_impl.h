/* resolve_impl.h - the list of settings with their sources, shared by the files that resolve a configuration. */
#ifndef LS_CONFIG_RESOLVE_IMPL_H
#define LS_CONFIG_RESOLVE_IMPL_H

#include "config/resolve.h"

/* Adds a row, or replaces the one of that name. Out of memory is remembered (cap_setting = -1) and reported by
 * train_settings_check. */
void train_put_int(ls_train_config *c, const char *name, int64_t value, ls_source source, const char *detail);
void train_put_real(ls_train_config *c, const char *name, double value, ls_source source, const char *detail);
void train_put_bool(ls_train_config *c, const char *name, bool value, ls_source source, const char *detail);
void train_put_text(ls_train_config *c, const char *name, const char *value, ls_source source,
                    const char *detail); /* NULL: null */
ls_status train_settings_check(const ls_train_config *c);

/* Something to say once at the start of the run. */
ls_status train_note(ls_train_config *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The part of resolve that is about the model; settings included. */
ls_status train_resolve_model(const ls_train_options *o, const ls_train_facts *facts, ls_train_config *c);

/* Optimizer, schedule and clipping. */
ls_status train_resolve_optimizer(const ls_train_options *o, const ls_ds_config *ds, ls_train_config *c);

/* Device, precision, loss scale and how workers talk; the world is resolved before it. chosen: facts' device, or NULL. */
ls_status train_resolve_device(const ls_train_options *o, const ls_ds_config *ds, const ls_device_choice *chosen,
                               ls_train_config *c);

/* Copies text; NULL stays NULL. */
ls_status train_copy(char **dst, const char *text);

#endif
