/* cmd_serve.c - `lockstep serve`: run folders on a web page; and the process that `train --serve` starts. */
#include "cli/commands.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/stop.h"
#include "serve/server.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_SOCKET = 3 };                    /* of a server that train starts */
#define TOKEN_VARIABLE "LOCKSTEP_SERVE_TOKEN" /* how it gets the token: arguments are visible to other users */
#define LAST_LOOK      2.5                    /* seconds in which an open page asks once more */

typedef struct options {
    int64_t port;
    const char *address;
    int64_t sockets, of_run; /* train --serve: how many are open, and the process of the run */
} options;

static const ls_opt opts[] = {
    CLI_INT_IN(1, 65535, "port", port, "PORT", NULL, "port to listen on [7007, or the next free one]"),
    CLI_STR(
        "address", address, "ADDRESS", NULL,
        "address to listen on; if other machines can reach it, they need the token that is printed [127.0.0.1 and ::1]"),
    CLI_INT_IN(0, INT32_MAX, "sockets", sockets, "N", NULL, NULL),
    CLI_INT_IN(0, INT32_MAX, "of_run", of_run, "PID", NULL, NULL),
};

static const cli_page page = {
    opts, CLI_COUNT(opts), "serve [FOLDER...] [OPTIONS]",
    "Show runs on a web page: loss, validation, gradient norm, learning rate, tokens/s, memory, utilisation, the state of every rank. "
    "A folder is a run folder, or a folder of run folders; runs that train now and runs that ended are shown alike, and their curves can be "
    "compared. The page updates itself and needs no network. Prometheus metrics are at /metrics. Nothing is written or changed. Without FOLDER: the folder runs.\n\n"
    "`train --serve` does this for one run while it trains. Ctrl-C ends it.\n\n"
    "Examples:\n"
    "  lockstep serve runs\n"
    "  lockstep serve runs/a runs/b --port 8080\n"
    "  ssh -L 7007:localhost:7007 HOST lockstep serve runs     from another machine\n\n"};

/* ---- the end ---- */

typedef struct ending {
    pid_t of_run; /* 0: until a signal comes */
    double at;    /* 0: not yet */
} ending;

static bool should_end(void *ctx, double idle)
{
    ending *e = ctx;
    const bool signaled = ls_stop_requested();
    if (!e->of_run) return signaled;
    if (getppid() != e->of_run) return true; /* the run is gone */
    if (signaled && e->at == 0) e->at = ls_now() + (idle < 10 ? LAST_LOOK : 0);
    return e->at > 0 && ls_now() >= e->at;
}

/* A server beside a run takes only what the run leaves: any core, but last in line. */
static ls_status stand_back(const options *o)
{
    cpu_set_t all;
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)signal(SIGINT, SIG_IGN); /* Ctrl-C is for the run, which takes time to save */
    if (getppid() != (pid_t)o->of_run) return ls_fail(LS_E_CONFIG, "--of_run is for `lockstep train --serve`");
    memset(&all, 0xff, sizeof all);
    (void)sched_setaffinity(0, sizeof all, &all); /* rank 0 may be bound to one core */
    (void)setpriority(PRIO_PROCESS, 0, 19);
    (void)sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
    (void)syscall(SYS_close_range, FIRST_SOCKET + (unsigned)o->sockets, ~0u, 0); /* files and sockets of the run */
    return LS_OK;
}

static ls_status open_sockets(const options *o, ls_listener *l)
{
    if (!o->of_run) return ls_listen(o->address, o->port, l);
    LS_TRY(stand_back(o));
    ls_listen_take(l, (int)o->sockets, FIRST_SOCKET, o->address, getenv(TOKEN_VARIABLE));
    (void)unsetenv(TOKEN_VARIABLE);
    return LS_OK;
}

static void print_address(const ls_listener *l, const char *what, FILE *to)
{
    ls_str s = {0};
    ls_listener_url(l, &s);
    if (s.data) fprintf(to, "%s%s\n", what, s.data);
    if (*l->token)
        fprintf(to, "  Other machines can reach this address. Whoever has the token can read the metrics.\n");
    fflush(to);
    ls_str_fini(&s);
}

/* Checks and adds the folders; without any: runs. */
static ls_status add_folders(const options *o, const ls_opt_list *paths, ls_live_set *set)
{
    if (!paths->n && !ls_fs_is_dir("runs"))
        return ls_fail(LS_E_IO, "no folder runs here; give a run folder, or a folder of run folders");
    if (!paths->n) return ls_live_set_add(set, "runs");
    for (int i = 0; i < paths->n; i++) {
        if (!o->of_run && !ls_fs_is_dir(paths->word[i])) return ls_fail(LS_E_IO, "%s: no such folder", paths->word[i]);
        LS_TRY(ls_live_set_add(set, paths->word[i]));
    }
    return LS_OK;
}

ls_status cmd_serve(int argc, char **argv)
{
    options o = {0};
    ls_opt_list paths;
    ls_live_set set = {0};
    ls_listener l = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, &paths, NULL));
    LS_TRY(ls_server_check());
    LS_TRY(add_folders(&o, &paths, &set));
    ls_stop_install();
    LS_TRY(open_sockets(&o, &l));
    ls_status st = ls_live_set_look(&set);
    if (st == LS_OK && !o.of_run) {
        printf("%d run%s. ", set.n, set.n == 1 ? "" : "s");
        if (set.left_out) printf("These are the newest; %d more are left out. ", set.left_out);
        print_address(&l, "Open ", stdout);
    }
    if (st == LS_OK) st = ls_server_run(&l, &set, should_end, &(ending){.of_run = (pid_t)o.of_run});
    ls_listener_close(&l);
    ls_live_set_fini(&set);
    return st;
}

/* ---- train --serve ---- */

extern char **environ;

/* Starts this program as a server of the run folder, with the sockets as its descriptors 3 and 4. */
static ls_status start_server(const ls_listener *l, const char *run_dir, int *pid)
{
    char program[PATH_MAX], count[24], parent[24], address[sizeof l->host + 16];
    int moved[2] = {-1, -1}, error = 0;
    posix_spawn_file_actions_t files;
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return ls_fail(LS_E_IO, "read /proc/self/exe: %s", strerror(errno));
    program[n] = 0;
    snprintf(count, sizeof count, "--sockets=%d", l->n);
    snprintf(parent, sizeof parent, "--of_run=%d", (int)getpid());
    snprintf(address, sizeof address, "--address=%s", l->host);
    char *argv[] = {program,
                    (char *)(uintptr_t) "serve",
                    count,
                    parent,
                    address,
                    (char *)(uintptr_t) "--",
                    (char *)(uintptr_t)run_dir,
                    NULL};
    posix_spawn_file_actions_init(&files);
    for (int fd = 0; fd < FIRST_SOCKET; fd++) posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
    for (int i = 0; i < l->n; i++) { /* first out of the way: one may be the place of the other */
        moved[i] = fcntl(l->fd[i], F_DUPFD_CLOEXEC, FIRST_SOCKET + 8);
        posix_spawn_file_actions_adddup2(&files, moved[i], FIRST_SOCKET + i);
    }
    if (*l->token) (void)setenv(TOKEN_VARIABLE, l->token, 1);
    error = posix_spawn(pid, program, &files, NULL, argv, environ);
    (void)unsetenv(TOKEN_VARIABLE);
    posix_spawn_file_actions_destroy(&files);
    for (int i = 0; i < l->n; i++) close(moved[i]);
    return error ? ls_fail(LS_E_IO, "start %s serve: %s", program, strerror(error)) : LS_OK;
}

ls_status cli_serve_begin(const ls_train_options *o, const char *run_dir, int *pid)
{
    int64_t port = 0;
    ls_listener l = {0};
    *pid = 0;
    if (!o->serve && o->serve_address) return ls_fail(LS_E_ARG, "--serve_address needs --serve");
    if (!o->serve) return LS_OK;
    if (*o->serve && (!ls_parse_i64(o->serve, &port) || port < 1 || port > 65535))
        return ls_fail(LS_E_ARG, "--serve %s: not a port (1 to 65535); other arguments go before --serve", o->serve);
    LS_TRY(ls_server_check());
    LS_TRY(ls_listen(o->serve_address, port, &l));
    const ls_status st = start_server(&l, run_dir, pid);
    if (st == LS_OK) print_address(&l, "live page: ", stderr);
    if (st == LS_OK) fprintf(stderr, "  It ends with the run. Afterwards: lockstep serve '%s'\n", run_dir);
    ls_listener_close(&l); /* the server has its own */
    return st;
}

void cli_serve_end(int pid)
{
    if (!pid) return;
    (void)kill(pid, SIGTERM);
    for (double until = ls_now() + 2 * LAST_LOOK; ls_now() < until;) {
        if (waitpid(pid, NULL, WNOHANG)) return;
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}
