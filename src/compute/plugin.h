/* plugin.h - what a compute backend offers besides its operations: a shared object of its own (core/plugin.h finds it), or the CPU's, which
 * has scratch and describe alone. */
#ifndef LS_COMPUTE_PLUGIN_H
#define LS_COMPUTE_PLUGIN_H

#include "compute/compute.h"

#define LS_COMPUTE_ABI    11
#define LS_COMPUTE_SYMBOL "ls_compute_plugin"

/* The program's side of ls_fail and LS_TRY: messages and trails belong to its threads. */
typedef struct ls_plugin_host {
    ls_status (*fail)(ls_status code, const char *file, int line, const char *words);
    ls_status (*via)(ls_status st, const char *file, int line, const char *expr);
    const char *(*words)(void);
    void (*clear)(void);
} ls_plugin_host;

typedef struct ls_compute_plugin {
    int abi;
    const char *name; /* "cuda" */
    /* Which devices there are, or why there are none, in one line of text; the number of usable ones. For doctor. */
    int (*probe)(char *words, size_t room);
    /* What open would take: chooses the device and sees that this plugin's code runs there, no more. For compute/look.h. *out of a device
     * that cannot be used is filled, too. */
    ls_status (*look)(const ls_plugin_host *host, const ls_compute_open_opts *o, ls_device_info *out);
    ls_status (*open)(const ls_plugin_host *host, const ls_compute_open_opts *o, ls_compute *c); /* ops, device, impl */
    void (*close)(ls_compute *c);
    size_t (*scratch)(const ls_compute *c, const ls_compute_shapes *s);
    void (*describe)(const ls_compute *c, char buf[LS_COMPUTE_WORDS]);
} ls_compute_plugin;

typedef const ls_compute_plugin *(*ls_compute_plugin_fn)(void);

#endif
