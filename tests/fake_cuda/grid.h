/* grid.h - runs one kernel, now, on the calling thread. One at a time in a process (runtime.cpp holds the lock). */
#ifndef LS_EMU_GRID_H
#define LS_EMU_GRID_H

#include "fake_cuda/emu.h"

void emu_run_grid(const char *name, dim3 grid, dim3 block, size_t smem, const emu_body &body);

#endif
