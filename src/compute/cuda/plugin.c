/* plugin.c - the one symbol of lockstep_cuda.so. */
#include "compute/cuda/cuda_impl.h"
#include "compute/cuda/host.h"

static ls_status open_here(const ls_plugin_host *host, const ls_compute_open_opts *o, ls_compute *c)
{
    cuda_host_is(host);
    return cuda_open(o, c);
}

static ls_status look_here(const ls_plugin_host *host, const ls_compute_open_opts *o, ls_device_info *out)
{
    cuda_host_is(host);
    return cu_device_look(o, out);
}

static const ls_compute_plugin plugin = {
    .abi = LS_COMPUTE_ABI,
    .name = "cuda",
    .probe = cuda_probe,
    .look = look_here,
    .open = open_here,
    .close = cuda_close,
    .scratch = cuda_scratch,
    .describe = cuda_describe,
};

/* The symbol is LS_COMPUTE_SYMBOL, which in C is the name of a type already. */
const ls_compute_plugin *cuda_plugin(void) __asm__(LS_COMPUTE_SYMBOL) __attribute__((visibility("default")));

const ls_compute_plugin *cuda_plugin(void)
{
    return &plugin;
}
