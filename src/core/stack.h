/* stack.h - where a process is: a signal makes a thread write its call stack to stderr; asked from outside, the main thread. */
#ifndef LS_CORE_STACK_H
#define LS_CORE_STACK_H

/* Answers SIGUSR2 from now on; `label` is printed before the stack trace ("rank 3"). Call it once, from the main thread. */
void ls_stack_install(const char *label);
/* Asks process `pid`, which must have installed it. At most one answer in ten seconds. */
void ls_stack_ask(int pid);
/* Of every thread of this process but the caller's (at most 16), one after the other; nothing when it is not installed. A thread that does
 * not answer in 0.2 s is left out. Allocates nothing and takes no lock: for a process that is about to end. */
void ls_stack_all(void);
/* Writes to stderr, for signal handlers and watchdogs. Gives up when nobody reads stderr for 0.5 s. */
void ls_stack_say(const char *text);

#endif
