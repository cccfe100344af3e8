/* stop.h - SIGTERM (and SIGINT) as a flag that long work looks at. */
#ifndef LS_CORE_STOP_H
#define LS_CORE_STOP_H

#include <stdbool.h>

void ls_stop_install(void); /* from now on the signals set the flag; a second SIGINT ends the program at once */
bool ls_stop_requested(void);
int ls_stop_signal(void);       /* the signal that set it, 0 when none did */
void ls_stop_raise(int signal); /* sets the flag as the signal would; 0 clears it (tests) */

#endif
