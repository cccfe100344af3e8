/* cuda_api.h - CUDA's run-time interface for host code in C: the real one, or the emulator's. */
#ifndef LS_CUDA_API_H
#define LS_CUDA_API_H

#ifdef LS_EMU
#include "compute/cuda/emu/runtime.h"
#else
#include <cuda_runtime_api.h>
#endif

#endif
