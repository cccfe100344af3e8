#include "comm/ended_impl.h"
#include "comm/launch.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

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

/* The message in an error line, if the status has this exit code; NULL: none. */
static const char *message_in(const char *line, int code)
{
    for (int st = LS_OK + 1; st <= LS_E_INTERNAL; st++) {
        const char *status = ls_status_words((ls_status)st),
                   *at = ls_status_exit_code((ls_status)st) == code ? strstr(line, status) : NULL;
        if (at && !strncmp(at + strlen(status), ": ", 2)) return at + strlen(status) + 2;
    }
    return NULL;
}

void ended_find_message(ended *e, const char *lines)
{
    for (const char *end; lines && (end = strchr(lines, '\n')); lines = end + 1) {
        char line[1024];
        snprintf(line, sizeof line, "%.*s", (int)(end - lines), lines);
        const char *message = message_in(line, e->code);
        if (message) snprintf(e->message, sizeof e->message, "%.*s", (int)sizeof e->message - 1, message);
    }
}

void ended_write(const ended *e, double now, ls_str *out)
{
    ls_str_addf(out, "worker %d %d %d %d %d %d %.6f %s\n", e->rank, e->pid, e->code, e->signal, (int)e->killed,
                (int)e->was_stopped, now - e->at, e->message);
}

bool ended_read(const char *line, double now, ended *out)
{
    int killed, stopped, n = 0;
    double age;
    *out = (ended){0};
    if (sscanf(line, "worker %d %d %d %d %d %d %lf%n", &out->rank, &out->pid, &out->code, &out->signal, &killed,
               &stopped, &age, &n) != 7)
        return false;
    out->st = ls_launch_status(out->code);
    out->killed = killed;
    out->was_stopped = stopped;
    out->at = now - age;
    line += n + (line[n] == ' ');
    snprintf(out->message, sizeof out->message, "%.*s", (int)strcspn(line, "\n"), line);
    return true;
}
