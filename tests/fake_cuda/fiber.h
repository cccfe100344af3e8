/* fiber.h - stacks that a host thread switches between; the emulator's CUDA threads run on them. */
#ifndef LS_EMU_FIBER_H
#define LS_EMU_FIBER_H

#include <stddef.h>

struct emu_fiber;

/* A fiber that runs entry(arg) when it is first switched to. entry never returns. */
emu_fiber *fiber_make(void (*entry)(void *), void *arg);
/* Continues `to`, until something switches to `from` again. NULL: the stack of the host thread, on which one kernel runs at a time. */
void fiber_switch(emu_fiber *from, emu_fiber *to);

#endif
