/* stack.h - where a process is, asked for from outside: a signal makes its main thread write its call stack to stderr. */
#ifndef LS_CORE_STACK_H
#define LS_CORE_STACK_H

/* Answers SIGUSR2 from now on; `label` stands before the stack ("rank 3"). Call it once, from the main thread. */
void ls_stack_install(const char *label);
/* Asks process `pid`, which must have installed it. At most one answer in ten seconds. */
void ls_stack_ask(int pid);

#endif
