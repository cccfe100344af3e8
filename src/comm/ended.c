#include "comm/ended_impl.h"
#include "comm/launch.h"

#include <signal.h>
#include <stdio.h>

bool ended_no_start(const ended *e)
{
    return e->rank < 0 && (e->code == 126 || e->code == 127 || e->code == 255);
}

int ended_weight(const ended *e, bool asked)
{
    if (e->was_stopped) return 9;
    if (e->killed) return 1;
    if (e->signal) return e->signal == SIGKILL ? 5 : 6;
    if (e->silent) return 6;
    if (e->st == LS_OK) return 0;
    if (ended_no_start(e)) return 10; /* its workers never come */
    if (e->early) return 4;
    if (e->st == LS_E_STOPPED) return asked ? 3 : 2;
    if (e->st == LS_E_COMM) return asked ? 2 : 3;
    return e->aborted ? 8 : 7;
}

int ended_first(const ended *e, int n, bool asked, bool *sure)
{
    int at = -1, most = 0, equal = 0;
    for (int i = 0; i < n; i++) {
        const int w = ended_weight(&e[i], asked);
        const bool sooner =
            at >= 0 && (w >= ENDED_CAUSE && e[i].at != e[at].at ? e[i].at < e[at].at : e[i].rank < e[at].rank);
        equal = w > most ? 1 : equal + (w == most);
        if (w && (w > most || (w == most && sooner))) at = i, most = w;
    }
    if (sure) *sure = most >= ENDED_CAUSE && e[at].rank >= 0 && (e[at].signal || e[at].was_stopped || equal == 1);
    return at;
}

void ended_write(const ended *e, double now, ls_str *out)
{
    ls_str_addf(out, "worker %d %d %d %d %d %d %.6f\n", e->rank, e->pid, e->code, e->signal, (int)e->killed,
                (int)e->was_stopped, now - e->at);
}

bool ended_read(const char *line, double now, ended *out)
{
    int killed, stopped;
    double age;
    *out = (ended){0};
    if (sscanf(line, "worker %d %d %d %d %d %d %lf", &out->rank, &out->pid, &out->code, &out->signal, &killed, &stopped,
               &age) != 7)
        return false;
    out->st = ls_launch_status(out->code);
    out->killed = killed;
    out->was_stopped = stopped;
    out->at = now - age;
    return true;
}
