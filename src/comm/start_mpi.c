/* start_mpi.c - the plugin `mpi`, loaded when a run needs it. */
#include "comm/net_impl.h"
#include "comm/start.h"

#include "core/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static ls_status find(const ls_transport **out, ls_plugin *p)
{
    LS_TRY(ls_plugin_load("mpi", LS_TRANSPORT_SYMBOL, p));
    const ls_transport *t = ((ls_transport_fn)p->entry)();
    if (t->abi != LS_TRANSPORT_ABI)
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s was built for another version of lockstep (interface %d, expected %d); rebuild it", p->path,
                       t->abi, LS_TRANSPORT_ABI);
    *out = t;
    return LS_OK;
}

bool ls_comm_mpi_look(char *path, size_t n_path, char *words, size_t n_words)
{
    const ls_transport *t = NULL;
    ls_plugin p = {0};
    if (find(&t, &p) != LS_OK) {
        snprintf(path, n_path, "%s", p.path);
        snprintf(words, n_words, "%s", ls_err_words());
        ls_err_clear();
        return false;
    }
    snprintf(path, n_path, "%s", p.path);
    t->version(words, n_words);
    return true;
}

ls_status ls_comm_mpi(ls_comm **out)
{
    const ls_transport *t = NULL;
    ls_plugin p = {0};
    LS_TRY(find(&t, &p));
    /* ranks may outnumber cores: Open MPI should not spin where it waits by itself (at its start and end) */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    const size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return net_world_open(t, memory, out);
}
