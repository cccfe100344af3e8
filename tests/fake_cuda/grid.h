/* grid.h - runs one kernel, now, on the calling thread. One at a time in a process (runtime.cpp holds the lock). */
#ifndef LS_EMU_GRID_H
#define LS_EMU_GRID_H

#include "fake_cuda/emu.h"

/* room: bytes of shared memory that a block may have, smem of them dynamic. */
void emu_run_grid(const char *name, dim3 grid, dim3 block, size_t smem, size_t room, const emu_body &body);

/* For hopper.cpp: the running thread's number in its block; waiting until *word changes; and what it checks when a block ends. */
int emu_thread(void);
void emu_wait(const unsigned *word, const char *what);
void emu_yield(const char *what); /* until all other warps went as far as they can */
size_t emu_dynamic_nbytes(void);
void emu_hopper_end(void);

#endif
