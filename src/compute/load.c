#include "compute/load.h"

#include "compute/cpu/cpu_impl.h"
#include "core/plugin.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define MOST 4 /* plugins */

static ls_status told(ls_status code, const char *file, int line, const char *words)
{
    return ls_fail_at(code, file, line, "%s", words);
}

static const ls_plugin_host host = {.fail = told, .via = ls_fail_via, .words = ls_err_words, .clear = ls_err_clear};

/* What is loaded stays, so the tables found are kept: they never change. */
static struct {
    pthread_mutex_t lock;
    const ls_compute_plugin *found[MOST];
} loaded = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const ls_compute_plugin *find(const char *name)
{
    const ls_compute_plugin *p = NULL;
    pthread_mutex_lock(&loaded.lock);
    for (int i = 0; i < MOST && loaded.found[i] && !p; i++)
        if (!strcmp(loaded.found[i]->name, name)) p = loaded.found[i];
    pthread_mutex_unlock(&loaded.lock);
    return p;
}

static void keep(const ls_compute_plugin *p)
{
    int i = 0;
    pthread_mutex_lock(&loaded.lock);
    while (i < MOST && loaded.found[i] && loaded.found[i] != p) i++;
    LS_ASSERT(i < MOST);
    loaded.found[i] = p;
    pthread_mutex_unlock(&loaded.lock);
}

static ls_status load(const char *name, const ls_compute_plugin **out)
{
    ls_plugin file;
    *out = find(name);
    if (*out) return LS_OK;
    LS_TRY(ls_plugin_load(name, LS_COMPUTE_SYMBOL, &file));
    const ls_compute_plugin *p = ((ls_compute_plugin_fn)file.entry)();
    if (p->abi != LS_COMPUTE_ABI)
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s has interface version %d, this program %d; build both from the same source", file.path,
                       p->abi, LS_COMPUTE_ABI);
    if (strcmp(p->name, name) != 0) return ls_fail(LS_E_UNSUPPORTED, "%s is the plugin \"%s\"", file.path, p->name);
    keep(p);
    *out = p;
    return LS_OK;
}

ls_status compute_load_plugin(const char *name, const ls_compute_open_opts *o, ls_compute *c)
{
    const ls_compute_plugin *p;
    LS_TRY(load(name, &p));
    LS_TRY(p->open(&host, o, c));
    const char *missing = compute_missing_slot(c->ops);
    if (!missing) return LS_OK;
    p->close(c);
    return ls_fail(LS_E_UNSUPPORTED, "compute backend \"%s\" has no %s", name, missing);
}

ls_status compute_look_plugin(const char *name, const ls_compute_open_opts *o, bool *is_loaded, ls_device_info *out)
{
    const ls_compute_plugin *p;
    *is_loaded = false;
    LS_TRY(load(name, &p));
    *is_loaded = true;
    return p->look(&host, o, out);
}

const ls_compute_plugin *compute_plugin_of(const ls_compute *c)
{
    return c->ops && c->impl ? find(c->ops->name) : NULL;
}
