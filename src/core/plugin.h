/* plugin.h - parts that need optional libraries: shared objects lockstep_<name>.so, searched in LS_PLUGIN_DIR, next to the
 * program (and next to its parent folder's programs: build trees), and in <prefix>/lib/lockstep. */
#ifndef LS_CORE_PLUGIN_H
#define LS_CORE_PLUGIN_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct ls_plugin {
    char path[512];      /* the file, or the last one looked for */
    void (*entry)(void); /* its symbol                           */
} ls_plugin;

/* Whether the file exists, without loading it; if not, `words` receives a short list of the searched places. */
bool ls_plugin_there(const char *name, char *words, size_t room);

/* Loads it for good. LS_E_UNSUPPORTED with what was missing. */
ls_status ls_plugin_load(const char *name, const char *symbol, ls_plugin *p);

/* The first member of the table that an entry returns. */
typedef struct ls_plugin_head {
    int abi;
    const char *name;
    void (*version)(char *text, size_t room); /* of the library that it uses */
} ls_plugin_head;

/* Loads a plugin whose table begins with a head of interface `abi`. */
ls_status ls_plugin_table(const char *name, const char *symbol, int abi, ls_plugin *p, const ls_plugin_head **out);

#endif
