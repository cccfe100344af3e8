/* plugin.h - parts that need libraries which may not be there: shared objects lockstep_<name>.so, looked for in LS_PLUGIN_DIR, beside the
 * program (and beside its parent folder's programs: build trees), and in <prefix>/lib/lockstep. */
#ifndef LS_CORE_PLUGIN_H
#define LS_CORE_PLUGIN_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct ls_plugin {
    char path[512];      /* the file, or the last one looked for */
    void (*entry)(void); /* its symbol                           */
} ls_plugin;

/* Whether the file is there, without loading it; if not, `words` say where it was looked for, in short. */
bool ls_plugin_there(const char *name, char *words, size_t room);

/* Loads it for good. LS_E_UNSUPPORTED with what was missing. */
ls_status ls_plugin_load(const char *name, const char *symbol, ls_plugin *out);

#endif
