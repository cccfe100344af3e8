/* fiber.h - stacks that a host thread switches between; the emulator's CUDA threads run on them. */
#ifndef LS_EMU_FIBER_H
#define LS_EMU_FIBER_H

#include <stddef.h>

struct emu_fiber;

/* A fiber that runs entry(arg) when it is first switched to. entry never returns. */
emu_fiber *fiber_make(void (*entry)(void *), void *arg);
void fiber_go(emu_fiber *f);   /* from the host thread's stack, until it calls fiber_back */
void fiber_back(emu_fiber *f); /* from fiber f to the caller of fiber_go                */

#endif
