#include "core/stop.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* A signal handler can only reach process-wide state. */
static volatile sig_atomic_t stop_signal;

static void on_signal(int signal)
{
    if (signal == SIGINT && stop_signal == SIGINT) _Exit(130);
    stop_signal = signal;
}

void ls_stop_install(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    a.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
}

bool ls_stop_requested(void)
{
    return stop_signal != 0;
}
int ls_stop_signal(void)
{
    return stop_signal;
}
void ls_stop_raise(int signal)
{
    stop_signal = signal;
}
