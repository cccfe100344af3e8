/* nvtx.c - the two ends of NVTX's injection protocol, version 3: who asks for which table, and the slots.
 *
 *   we        dlopen($NVTX_INJECTION64_PATH), InitializeInjectionNvtx2(export_table)
 *   profiler  export_table(CALLBACKS) → function_table(module) → slots, of which it writes
 *   we        call slot[CORE][RANGE_PUSH_A](name), slot[CORE][RANGE_POP]()
 *
 * A profiler can only reach process-wide state: the slots are written once, before ls_nvtx_open returns. */
#include "core/nvtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MODULE_CORE = 1, N_MODULE = 7, N_SLOT = 16 };
enum { RANGE_PUSH_A = 9, RANGE_POP = 11 };
enum { TABLE_CALLBACKS = 1, TABLE_VERSION = 3 };

typedef void (*slot)(void);

static slot slots[N_MODULE][N_SLOT];      /* what the profiler wrote                                      */
static slot *table[N_MODULE][N_SLOT + 1]; /* pointers to them, entry 0 empty, an empty one after the last */
static int (*push)(const char *name);
static int (*pop)(void);

/* Entries of each module's table (entry 0 counts): none, core, CUDA, OpenCL, CUDA runtime, core 2, synchronisation. */
static const unsigned n_entry[N_MODULE] = {0, 16, 9, 15, 7, 16, 7};

static int function_table(int module, slot ***out, unsigned *n)
{
    if (module < MODULE_CORE || module >= N_MODULE) return 0;
    for (unsigned i = 1; i < n_entry[module]; i++) table[module][i] = &slots[module][i];
    if (out) *out = table[module];
    if (n) *n = n_entry[module];
    return 1;
}

static void profiler_version(uint32_t version)
{
    (void)version;
}

static const void *export_table(uint32_t id)
{
    static const struct {
        size_t nbytes;
        int (*function_table)(int module, slot ***out, unsigned *n);
    } callbacks = {sizeof callbacks, function_table};
    static const struct {
        size_t nbytes;
        uint32_t version, reserved;
        void (*told)(uint32_t version);
    } version = {sizeof version, 3, 0, profiler_version};
    return id == TABLE_CALLBACKS ? (const void *)&callbacks : id == TABLE_VERSION ? (const void *)&version : NULL;
}

static void open_once(void)
{
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library = path && *path ? dlopen(path, RTLD_LAZY) : NULL, *symbol = NULL;
    int (*start)(const void *(*)(uint32_t)) = NULL;
    if (library) symbol = dlsym(library, "InitializeInjectionNvtx2");
    if (symbol) memcpy(&start, &symbol, sizeof start); /* ISO C has no cast between the two */
    if (!start || !start(export_table)) {
        if (library) dlclose(library);
        return;
    }
    memcpy(&push, &slots[MODULE_CORE][RANGE_PUSH_A], sizeof push);
    memcpy(&pop, &slots[MODULE_CORE][RANGE_POP], sizeof pop);
    if (!push || !pop) push = NULL, pop = NULL; /* brackets come in pairs */
}

bool ls_nvtx_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
    return push != NULL;
}

bool ls_nvtx_on(void)
{
    return push != NULL;
}

void ls_nvtx_push(const char *name)
{
    if (push) push(name);
}

void ls_nvtx_pop(void)
{
    if (pop) pop();
}
