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

/* The file; false: it does not exist, and `path` is the last one looked for. */
static bool find(const char *name, char path[512])
{
    /* beside the program, and where an installed one has it */
    static const char *const below[] = {"", "/../lib/lockstep", "/../lib64/lockstep", "/.."};
    const char *dir = getenv("LS_PLUGIN_DIR");
    char here[400];
    if (dir && *dir) {
        snprintf(path, 512, "%.400s/lockstep_%s.so", dir, name);
        return ls_fs_exists(path);
    }
    folder_of_program(here, sizeof here);
    for (size_t i = 0; i < sizeof below / sizeof below[0]; i++) {
        snprintf(path, 512, "%s%s/lockstep_%s.so", here, below[i], name);
        if (ls_fs_exists(path)) return true;
    }
    return false;
}

bool ls_plugin_there(const char *name, char *words, size_t room)
{
    const char *dir = getenv("LS_PLUGIN_DIR");
    char path[512];
    if (find(name, path)) return true;
    if (dir && *dir) snprintf(words, room, "lockstep_%s.so not found in LS_PLUGIN_DIR (%.200s)", name, dir);
    else snprintf(words, room, "lockstep_%s.so not found next to the program or in lib/lockstep", name);
    return false;
}

static const char *remedy(const char *name)
{
    if (!strcmp(name, "cuda")) return "install the CUDA toolkit (nvcc)";
    if (!strcmp(name, "nccl")) return "install the CUDA toolkit (nvcc) and the headers of NCCL";
    if (!strcmp(name, "mpi")) return "install the headers of an MPI library (mpicc)";
    return "install its library with the headers";
}

ls_status ls_plugin_load(const char *name, const char *symbol, ls_plugin *p)
{
    const char *dir = getenv("LS_PLUGIN_DIR");
    union { /* ISO C has no way from an object pointer to a function pointer */
        void *object;
        void (*entry)(void);
    } f;
    *p = (ls_plugin){0};
    if (!find(name, p->path)) {
        if (dir && *dir) return ls_fail(LS_E_UNSUPPORTED, "%s does not exist; check LS_PLUGIN_DIR", p->path);
        return ls_fail(
            LS_E_UNSUPPORTED,
            "lockstep_%s.so not found next to the program or in lib/lockstep; %s and build again, or set LS_PLUGIN_DIR to the folder that contains the file",
            name, remedy(name));
    }
    void *lib = dlopen(p->path, RTLD_NOW | RTLD_GLOBAL); /* global: MPI libraries load parts of themselves later */
    if (!lib) return ls_fail(LS_E_UNSUPPORTED, "cannot load the plugin %s: %s", p->path, dlerror());
    f.object = dlsym(lib, symbol);
    if (!f.object)
        return ls_fail(LS_E_UNSUPPORTED, "cannot load the plugin %s: the symbol %s is missing", p->path, symbol);
    p->entry = f.entry;
    ls_debug("plugin", "loaded %s", p->path);
    return LS_OK;
}

ls_status ls_plugin_table(const char *name, const char *symbol, int abi, ls_plugin *p, const ls_plugin_head **out)
{
    LS_TRY(ls_plugin_load(name, symbol, p));
    const ls_plugin_head *h = ((const ls_plugin_head *(*)(void))p->entry)();
    if (h->abi != abi)
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s was built for another version of lockstep (interface %d, expected %d); rebuild it", p->path,
                       h->abi, abi);
    *out = h;
    return LS_OK;
}
