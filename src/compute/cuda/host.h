/* host.h - who hears of failures in this shared object. */
#ifndef LS_CUDA_HOST_H
#define LS_CUDA_HOST_H

#include "compute/plugin.h"

void cuda_host_is(const ls_plugin_host *host);

#endif
