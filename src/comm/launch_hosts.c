/* launch_hosts.c - `lockstep launch`: one remote shell per host, its output, its end. */
#include "comm/launch.h"
#include "comm/launch_impl.h"
#include "comm/meet_impl.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/stop.h"
#include "core/str.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE     25.0 /* seconds for the other hosts after one has failed: workers and agents end earlier */
#define KILL_TIME 5.0  /* seconds for an agent to obey "kill" */
#define SAVE_TIME (LS_STOP_SAVE + GRACE) /* seconds for workers to save after a stop */

/* ---- hosts ---- */

/* "name" or "name:n"; an address with several colons needs brackets: "[fe80::1]:4". */
static ls_status parse_host(const char *text, size_t n, ls_launch_host *out)
{
    const char *colon = memrchr(text, ':', n);
    const bool brackets = n && text[0] == '[';
    const char *close = brackets ? memchr(text, ']', n) : NULL;
    size_t name = n;
    int64_t v = 0;
    char number[16] = "";
    if (colon && (brackets ? close && colon == close + 1 : memchr(text, ':', n) == colon)) {
        name = (size_t)(colon - text);
        snprintf(number, sizeof number, "%.*s", (int)(n - name - 1 < 15 ? n - name - 1 : 15), colon + 1);
        if (!ls_parse_i64(number, &v) || v < 1 || v > LS_LAUNCH_MOST)
            return ls_fail(LS_E_ARG, "--hosts: '%.*s' must be a host, or host:N with N from 1 to %d workers", (int)n,
                           text, LS_LAUNCH_MOST);
    }
    if (brackets && close == text + name - 1) text++, name -= 2;
    if (!name || name >= sizeof out->name || text[0] == '-' || memchr(text, ' ', name))
        return ls_fail(LS_E_ARG, "--hosts: '%.*s' is not the name of a host", (int)(n < 200 ? n : 200), text);
    snprintf(out->name, sizeof out->name, "%.*s", (int)name, text);
    out->n = (int)v;
    return LS_OK;
}

static ls_status share_out(int size, ls_launch_plan *l)
{
    const int n = l->n_host - l->n_spare;
    int given = 0, sum = 0;
    if (n < 1)
        return ls_fail(LS_E_ARG, "--hot_spare %d: the list has %d host%s; at least one must be used", l->n_spare,
                       l->n_host, l->n_host == 1 ? "" : "s");
    for (int i = 0; i < l->n_host; i++) given += l->host[i].n > 0, sum += i < n ? l->host[i].n : 0;
    if (given && given < l->n_host)
        return ls_fail(LS_E_ARG, "--hosts: give the number of workers for every host (host:N) or for none");
    if (given && size && size != sum)
        return ls_fail(LS_E_ARG, "-n %d: the hosts have %d workers by --hosts; leave one of them out", size, sum);
    if (!given && !size)
        return ls_fail(LS_E_ARG, "-n N is missing: the number of workers on all hosts together (or --hosts a:4,b:4)");
    l->size = given ? sum : size;
    if (l->size < n) return ls_fail(LS_E_ARG, "-n %d: fewer workers than hosts (%d)", size, n);
    for (int i = 0; i < l->n_host && !given; i++) {
        l->host[i].n = i < n ? size * (i + 1) / n - size * i / n : l->host[n - 1].n; /* the largest part is the last */
        if (l->host[i].n > LS_LAUNCH_MOST)
            return ls_fail(LS_E_ARG, "-n %d: %d workers on host %s; one host runs at most %d", size, l->host[i].n,
                           l->host[i].name, LS_LAUNCH_MOST);
    }
    return LS_OK;
}

ls_status ls_launch_hosts_parse(const char *text, int size, ls_launch_plan *out)
{
    out->n_host = 0;
    for (const char *p = text; *p;) {
        const size_t n = strcspn(p, ",");
        if (out->n_host == LS_LAUNCH_HOSTS) return ls_fail(LS_E_ARG, "--hosts: at most %d hosts", LS_LAUNCH_HOSTS);
        ls_launch_host *h = &out->host[out->n_host++];
        LS_TRY(parse_host(p, n, h));
        for (int i = 0; i < out->n_host - 1; i++)
            if (!strcmp(out->host[i].name, h->name))
                return ls_fail(LS_E_ARG, "--hosts: %s is listed twice; %s:2 starts two workers on it", h->name,
                               h->name);
        p += n + (p[n] == ',');
    }
    if (!out->n_host) return ls_fail(LS_E_ARG, "--hosts is missing: the hosts of the run, such as --hosts a,b");
    return share_out(size, out);
}

/* ---- starting ---- */

typedef struct team {
    ls_launch_plan *l;
    proc *p;
    int *in; /* stdin of each remote shell; -1: closed */
    int left;
    ended *end; /* how workers ended, and hosts whose agents reported nothing */
    int n_end;
    double trouble_at, asked_at, ended_at, kill_at; /* 0: not yet; ended_at: the last host that ended */
} team;

static bool is_here(const char *name)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return !strcmp(name, "localhost") || !strcmp(name, host);
}

ls_status launch_compose(const ls_launch_plan *l, int i, const char *words, ls_argv *out)
{
    ls_argv agent = {0};
    ls_str text = {0};
    LS_TRY(ls_argv_add(&agent, l->program));
    ls_status st = ls_argv_split(&agent, words);
    if (st == LS_OK && is_here(l->host[i].name)) st = ls_argv_add_all(out, &agent);
    else if (st == LS_OK) {
        ls_argv_show(&agent, &text);
        st = ls_argv_add_all(out, &l->rsh);
        if (st == LS_OK) st = ls_argv_add(out, l->host[i].name);
        if (st == LS_OK) st = ls_argv_add_all(out, &l->shell);
        if (st == LS_OK) st = ls_argv_addf(out, "exec %s", text.data ? text.data : "");
    }
    ls_str_fini(&text);
    ls_argv_fini(&agent);
    return st;
}

static ls_status start_host(team *t, int i, int first, const char *folder, const char *token)
{
    const ls_launch_plan *l = t->l;
    const char *at = strchr(l->host[0].name, '@');
    launch_job job = {.first = first,
                      .n = l->host[i].n,
                      .size = l->size,
                      .prefix = !l->no_prefix,
                      .folder = folder,
                      .address = l->address ? l->address
                                 : at       ? at + 1
                                            : l->host[0].name,
                      .token = token,
                      .port = l->port,
                      .env = l->env,
                      .argv = {0}};
    ls_argv words = {0};
    ls_str text = {0};
    ls_status st = ls_argv_add(&job.argv, l->program);
    if (st == LS_OK) st = ls_argv_add_all(&job.argv, &l->argv);
    if (st == LS_OK) st = launch_job_write(&job, &text);
    if (st == LS_OK) st = launch_compose(l, i, "launch --agent", &words);
    if (st == LS_OK) st = proc_start(&t->p[i], &words, &(ls_argv){0}, &t->in[i]);
    if (st == LS_OK) {
        t->left++;
        t->p[i].out.mark = AGENT_MARK;
        (void)!write(t->in[i], text.data, text.len); /* a shell that has ended already is noticed below */
        ls_debug("comm", "host %s: ranks %d to %d, pid %d", l->host[i].name, first, first + job.n - 1,
                 (int)t->p[i].pid);
    }
    ls_argv_fini(&job.argv);
    ls_argv_fini(&words);
    ls_str_fini(&text);
    return st;
}

/* ---- watching ---- */

static void order(team *t, const char *word)
{
    for (int i = 0; i < t->l->n_host; i++)
        if (t->p[i].pid && !t->p[i].gone && t->in[i] >= 0) (void)!write(t->in[i], word, strlen(word));
}

static void kill_hosts(team *t)
{
    if (t->kill_at > 0) return;
    t->kill_at = ls_now();
    order(t, "kill\n");
}

/* What the agent of host i has reported; without a report its exit code, or that the connection has ended. The exit code. */
static int take_reports(team *t, int i)
{
    proc *p = &t->p[i];
    const bool stopped = p->killed && t->asked_at > 0; /* by us, after a stop */
    const int code = stopped ? 128 + (ls_stop_signal() ? ls_stop_signal() : SIGTERM) : proc_code(p);
    const int before = t->n_end;
    bool done = false;
    proc_finish(p, 1);
    for (const char *line = p->out.noted.data; line && *line; line = strchr(line, '\n') + 1) {
        ended *e = &t->end[t->n_end];
        if (!strncmp(line, AGENT_DONE, strlen(AGENT_DONE))) done = true;
        else if (t->n_end - before < t->l->host[i].n && ended_read(line, p->ended_at, e)) e->host = i, t->n_end++;
    }
    ls_str_fini(&p->out.noted);
    if (t->n_end > before) return code ? code : 4; /* srun may end with 0 */
    if (done && !code) return 0;
    if (!code)
        fprintf(stderr, "lockstep: the connection to host %s ended before its workers did\n", t->l->host[i].name);
    const int seen = code ? code : 4;
    t->end[t->n_end++] = (ended){.rank = -1,
                                 .host = i,
                                 .code = seen,
                                 .st = ls_launch_status(seen),
                                 .killed = p->killed && !stopped,
                                 .at = p->ended_at};
    return seen;
}

static void reap(team *t)
{
    for (int i = 0; i < t->l->n_host; i++) {
        if (!proc_ended(&t->p[i])) continue;
        const int code = take_reports(t, i);
        t->left--;
        t->ended_at = ls_now();
        if (t->in[i] >= 0) close(t->in[i]);
        t->in[i] = -1;
        if (!code) continue;
        if (t->trouble_at == 0) {
            t->trouble_at = ls_now();
            order(t, "failed\n");
        }
        if (ended_no_start(&t->end[t->n_end - 1])) kill_hosts(t); /* its workers never come */
    }
}

static void ask(team *t)
{
    t->asked_at = ls_now();
    if (ls_stop_requested())
        fprintf(stderr, ls_stop_signal() == SIGINT ? "lockstep: stopping; press Ctrl-C again to kill the workers\n"
                                                   : "lockstep: stopping; a second signal kills the workers\n");
    order(t, ls_stop_signal() == SIGINT ? "int\n" : "term\n");
}

/* A host of which nothing was heard: its remote shell may still try to connect. */
static bool one_is_silent(const team *t)
{
    for (int i = 0; i < t->l->n_host; i++)
        if (t->p[i].pid && !t->p[i].gone && !t->p[i].heard) return true;
    return false;
}

/* When the hosts that are left are killed. Workers save together, so their hosts end together; while a shell has not connected, there is
 * nothing to save. */
static double last_moment(const team *t)
{
    if (t->trouble_at > 0 && (t->asked_at <= 0 || t->trouble_at < t->asked_at)) return t->trouble_at + GRACE;
    if (t->asked_at <= 0) return 0;
    if (one_is_silent(t)) return t->asked_at + KILL_TIME;
    return t->ended_at > t->asked_at ? t->ended_at + GRACE : t->asked_at + SAVE_TIME;
}

static void enforce(team *t)
{
    const double now = ls_now();
    if (ls_stop_at_once()) kill_hosts(t);
    else if (t->asked_at <= 0 && (ls_stop_requested() || (t->l->tick && t->l->tick(t->l->ctx)))) ask(t);
    if (last_moment(t) > 0 && now > last_moment(t)) kill_hosts(t);
    for (int i = 0; i < t->l->n_host && t->kill_at > 0 && now - t->kill_at > KILL_TIME; i++) {
        proc *p = &t->p[i];
        if (!p->pid || p->gone || p->killed) continue;
        p->killed = true;
        fprintf(stderr, "lockstep: host %s does not answer; %s\n", t->l->host[i].name,
                p->heard ? "its workers end when they notice the lost connection" : "its remote shell is killed");
        proc_signal(p, SIGKILL);
    }
}

/* Where it is not sure: the messages of the chosen worker and of another one that ended in the same way. Rank 0, which waits for
 * the others, may know only that they did not come. */
static void quote(const team *t, const ended *first, ls_launch_end *out)
{
    const ended *other = NULL;
    for (int i = 0; i < t->n_end; i++) {
        const ended *e = &t->end[i];
        const bool alike = e != first && ended_weight(e, false) == ended_weight(first, false);
        if (alike && e->message[0] && (!other || e->rank < other->rank)) other = e;
    }
    for (int k = 0; k < 2; k++) {
        const ended *e = k ? other : first;
        const size_t n = strlen(out->detail);
        if (e && e->message[0])
            snprintf(out->detail + n, sizeof out->detail - n, "%srank %d on %s: %s", n ? "; " : "", e->rank,
                     t->l->host[e->host].name, e->message);
    }
}

/* When all hosts have ended: who failed first. */
static void describe(const team *t, const ended *e, bool sure, ls_launch_end *out)
{
    *out = (ls_launch_end){.rank = e->rank, .sure = sure, .host = e->host, .stopped = e->was_stopped};
    if (!sure) {
        quote(t, e, out);
        return;
    }
    out->signal = e->signal;
    const char *host = t->l->host[e->host].name;
    if (e->was_stopped)
        snprintf(out->detail, sizeof out->detail, "rank %d on %s (pid %d) is stopped (SIGSTOP)", e->rank, host, e->pid);
    else if (e->signal)
        snprintf(out->detail, sizeof out->detail, "rank %d on %s (pid %d) was killed by signal %d (%s)", e->rank, host,
                 e->pid, e->signal, strsignal(e->signal));
    else
        snprintf(out->detail, sizeof out->detail, "rank %d on %s (pid %d) exited with code %d%s%s", e->rank, host,
                 e->pid, e->code, e->message[0] ? ": " : "", e->message);
}

static ls_status outcome(const team *t)
{
    bool sure = false;
    const int at = ended_first(t->end, t->n_end, false, &sure);
    const ended *e = &t->end[at < 0 ? 0 : at];
    if (at >= 0) describe(t, e, sure, &t->l->end);
    if (ls_stop_at_once())
        return ls_fail(LS_E_STOPPED, "stopped by a second signal: the workers were killed and no checkpoint was saved");
    if (at < 0) return LS_OK;
    if (ended_no_start(e))
        return ls_fail(LS_E_COMM, "cannot start workers on host %s: '%s' ended with exit code %d",
                       t->l->host[e->host].name, is_here(t->l->host[e->host].name) ? t->l->program : t->l->rsh.word[0],
                       e->code);
    ls_err_clear(); /* a worker has printed it */
    ls_stop_ended_with(e->code);
    return e->st;
}

ls_status ls_launch_hosts(ls_launch_plan *l)
{
    team t = {.l = l};
    uint8_t secret[16];
    char token[2 * sizeof secret + 1], *folder = getcwd(NULL, 0);
    const char *given = getenv("LOCKSTEP_TOKEN");
    l->end = (ls_launch_end){.rank = -1, .host = -1};
    meet_random(secret, sizeof secret);
    for (size_t i = 0; i < sizeof secret; i++) snprintf(token + 2 * i, 3, "%02x", secret[i]);
    t.p = ls_alloc((size_t)l->n_host * sizeof *t.p);
    t.in = ls_alloc((size_t)l->n_host * sizeof *t.in);
    t.end = ls_alloc((size_t)(l->size + l->n_host) * sizeof *t.end);
    ls_status st = t.p && t.in && t.end && folder ? LS_OK : ls_nomem((size_t)l->n_host * sizeof *t.p, "hosts");
    ls_stop_install();
    const ls_stop_mode before = ls_stop_set_mode(LS_STOP_PARENT);
    for (int i = 0, first = 0; i < l->n_host && st == LS_OK; first += l->host[i++].n)
        st = start_host(&t, i, first, folder, given && *given ? given : token);
    if (st != LS_OK && t.left) kill_hosts(&t);
    while (t.left) {
        (void)proc_relay(t.p, l->n_host, -1, 50);
        reap(&t);
        enforce(&t);
    }
    if (t.p) proc_finish(t.p, l->n_host);
    if (st == LS_OK) st = outcome(&t);
    (void)ls_stop_set_mode(before);
    free(folder);
    ls_free(t.p);
    ls_free(t.in);
    ls_free(t.end);
    return st;
}
