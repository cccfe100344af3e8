/* load.h - compute backends in shared objects (compute/plugin.h, core/plugin.h). */
#ifndef LS_COMPUTE_LOAD_H
#define LS_COMPUTE_LOAD_H

#include "compute/plugin.h"

/* Loads lockstep_<name>.so, for good, and opens it. LS_E_UNSUPPORTED says why that does not work here. */
ls_status compute_load_plugin(const char *name, const ls_compute_open_opts *o, ls_compute *c);

/* The plugin that opened c; NULL: none did. */
const ls_compute_plugin *compute_plugin_of(const ls_compute *c);

/* The same without opening it: which device it would take. *is_loaded says how far it came when it fails. */
ls_status compute_look_plugin(const char *name, const ls_compute_open_opts *o, bool *is_loaded, ls_device_info *out);

#endif
