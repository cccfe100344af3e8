#include "core/log.h"
#include "core/plugin.h"

#include "core/fs.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static void folder_of_program(char *dir, size_t room)
{
    const ssize_t n = readlink("/proc/self/exe", dir, room - 1);
    const char *started = (const char *)getauxval(AT_EXECFN); /* without /proc: as it was started */
    if (n > 0) dir[n] = '\0';
    else snprintf(dir, room, "%s", started ? started : "");
    char *slash = strrchr(dir, '/');
    if (slash) *slash = '\0';
    else snprintf(dir, room, ".");
}

static ls_status load(ls_plugin *p, const char *symbol)
{
    union { /* ISO C has no way from an object pointer to a function pointer */
        void *object;
        void (*entry)(void);
    } f;
    void *lib = dlopen(p->path, RTLD_NOW | RTLD_GLOBAL); /* global: MPI libraries load parts of themselves later */
    if (!lib) return ls_fail(LS_E_UNSUPPORTED, "cannot load the plugin %s: %s", p->path, dlerror());
    f.object = dlsym(lib, symbol);
    if (!f.object)
        return ls_fail(LS_E_UNSUPPORTED, "cannot load the plugin %s: the symbol %s is missing", p->path, symbol);
    p->entry = f.entry;
    ls_debug("plugin", "loaded %s", p->path);
    return LS_OK;
}

/* Beside the program, and where an installed one has it. */
static const char *const below[] = {"", "/../lib/lockstep", "/../lib64/lockstep", "/.."};
#define N_BELOW (sizeof below / sizeof below[0])

bool ls_plugin_there(const char *name, char *words, size_t room)
{
    const char *dir = getenv("LS_PLUGIN_DIR");
    char here[400], path[512];
    if (dir && *dir) {
        snprintf(path, sizeof path, "%.400s/lockstep_%s.so", dir, name);
        snprintf(words, room, "lockstep_%s.so not found in LS_PLUGIN_DIR (%.200s)", name, dir);
        return ls_fs_exists(path);
    }
    folder_of_program(here, sizeof here);
    for (size_t i = 0; i < N_BELOW; i++) {
        snprintf(path, sizeof path, "%s%s/lockstep_%s.so", here, below[i], name);
        if (ls_fs_exists(path)) return true;
    }
    snprintf(words, room, "lockstep_%s.so not found next to the program or in lib/lockstep", name);
    return false;
}

ls_status ls_plugin_load(const char *name, const char *symbol, ls_plugin *out)
{
    const char *dir = getenv("LS_PLUGIN_DIR");
    char here[400];
    ls_plugin p = {0};
    if (dir && *dir) {
        snprintf(p.path, sizeof p.path, "%.400s/lockstep_%s.so", dir, name);
        *out = p;
        if (!ls_fs_exists(p.path)) return ls_fail(LS_E_UNSUPPORTED, "%s does not exist; check LS_PLUGIN_DIR", p.path);
        LS_TRY(load(&p, symbol));
        *out = p;
        return LS_OK;
    }
    folder_of_program(here, sizeof here);
    for (size_t i = 0; i < N_BELOW; i++) {
        snprintf(p.path, sizeof p.path, "%s%s/lockstep_%s.so", here, below[i], name);
        *out = p;
        if (!ls_fs_exists(p.path)) continue;
        LS_TRY(load(&p, symbol));
        *out = p;
        return LS_OK;
    }
    return ls_fail(
        LS_E_UNSUPPORTED,
        "lockstep_%s.so not found next to the program or in lib/lockstep; install the library's headers and rebuild, "
        "or set LS_PLUGIN_DIR to the folder that has it",
        name);
}
