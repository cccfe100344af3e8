/* profile_run.c - `lockstep profile -- train …`: a traced run, and an nsys one around it when NSYS=1.
 *
 *   plain     train --profile                                          profiles/trace.json, profile_summary.json
 *   NSYS=1    nsys profile … lockstep train --profile --profile_mode   the same, and profiles/nsys_<job>_<host>.nsys-rep
 *             nsys stats … > profiles/nsys_stats_<host>.txt            and the summary made from it
 *
 * A missing nsys is reported once; the trace does not need it. */
#include "cli/profile_run.h"
#include "cli/commands.h"

#include "core/fs.h"
#include "core/log.h"
#include "core/mem.h"
#include "config/options.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

ls_status cli_profile_end(ls_profile **p, ls_comm *comm, const char *run_dir, ls_status run)
{
    int64_t dropped = 0;
    const bool ended = run == LS_OK || run == LS_E_STOPPED, speaks = !comm || ls_comm_rank(comm) == 0;
    char *words = run == LS_OK ? NULL : ls_strdup(ls_err_words());
    ls_status st = ls_profile_end(p, comm, run, &dropped);
    if (st == LS_OK && speaks) st = cli_profile_summarize(run_dir);
    if (st == LS_OK && speaks) {
        fprintf(stderr, "trace: %s/profiles/trace.json (open it with ui.perfetto.dev or chrome://tracing)\n", run_dir);
        if (dropped)
            fprintf(stderr, "trace: %lld older spans were dropped; increase --profile_spans to keep more\n",
                    (long long)dropped);
    } else if (!ended && speaks) {
        fprintf(stderr, "trace: the run failed; the traces of single workers are in %s/profiles/trace.rank<R>.json\n",
                run_dir);
    }
    if (ended && run != LS_OK && st == LS_OK) st = ls_fail(run, "%s", words ? words : "stopped");
    ls_free(words);
    return ended && st == LS_OK ? run : st;
}

/* ---- nsys ---- */

typedef struct words { /* an argv that grows */
    char *word[512];
    int n;
    bool failed;
} words;

static void add(words *w, const char *text)
{
    if (w->n == (int)(sizeof w->word / sizeof *w->word) - 1 || !(w->word[w->n] = ls_strdup(text))) w->failed = true;
    else w->n++;
}

static void fini(words *w)
{
    for (int i = 0; i < w->n; i++) ls_free(w->word[i]);
    w->n = 0;
}

static const char *env_or(const char *name, const char *other)
{
    const char *v = getenv(name);
    return v && *v ? v : other;
}

/* The program in PATH, or at the place that was named. */
static bool find_program(const char *name, char path[PATH_MAX])
{
    if (strchr(name, '/')) {
        snprintf(path, PATH_MAX, "%s", name);
        return access(path, X_OK) == 0;
    }
    const char *p = env_or("PATH", "/usr/bin:/bin");
    while (*p) {
        const size_t n = strcspn(p, ":");
        if (n && n + strlen(name) + 2 < PATH_MAX) {
            snprintf(path, PATH_MAX, "%.*s/%s", (int)n, p, name);
            if (access(path, X_OK) == 0) return true;
        }
        p += n + (p[n] == ':');
    }
    return false;
}

/* Runs the words; output (may be NULL): a file for stdout and stderr together. The exit code. */
static ls_status run_words(words *w, const char *output, int *code)
{
    if (w->failed) return ls_fail(LS_E_ARG, "the command has too many arguments");
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) return ls_fail(LS_E_IO, "cannot start %s: %s", w->word[0], strerror(errno));
    if (pid == 0) {
        const int fd = output ? open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
        if (fd >= 0) dup2(fd, STDOUT_FILENO), dup2(fd, STDERR_FILENO);
        w->word[w->n] = NULL;
        execv(w->word[0], w->word);
        _exit(127);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return ls_fail(LS_E_IO, "cannot wait for %s: %s", w->word[0], strerror(errno));
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return LS_OK;
}

static void add_option(words *w, const char *name, const char *value)
{
    char text[256];
    snprintf(text, sizeof text, "--%s=%s", name, value);
    add(w, text);
}

/* nsys stats into profiles/nsys_stats_<host>.txt: the four reports, else the default ones, else nothing. */
static ls_status export_stats(const char *nsys, const char *profiles, const char *report, const char *host)
{
    char *out = ls_asprintf("%s/nsys_stats_%s.txt", profiles, host), *rep = ls_asprintf("%s.nsys-rep", report);
    ls_status st = out && rep ? LS_OK : ls_nomem(strlen(profiles), "a path");
    int code = 1;
    for (int plain = 0; plain < 2 && st == LS_OK && code; plain++) {
        words w = {.n = 0};
        add(&w, nsys);
        add(&w, "stats");
        if (!plain) add_option(&w, "report", "nvtx_sum,osrt_sum,cuda_api_sum,cuda_gpu_kern_sum");
        add(&w, rep);
        st = run_words(&w, out, &code);
        fini(&w);
    }
    if (st == LS_OK && code) {
        fprintf(stderr, "nsys stats failed; nsys_stats_%s.txt was not written\n", host);
        unlink(out);
    }
    ls_free(out);
    ls_free(rep);
    return st;
}

static ls_status run_under_nsys(const char *nsys, const char *run_dir, int argc, char **argv, int *code)
{
    char host[64] = "localhost", self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    gethostname(host, sizeof host - 1);
    if (n <= 0) return ls_fail(LS_E_IO, "cannot find this program: %s", strerror(errno));
    self[n] = '\0';
    char *profiles = ls_path_join(run_dir, "profiles");
    char *report = profiles ? ls_asprintf("%s/nsys_%s_%s", profiles, env_or("SLURM_JOB_ID", "0"), host) : NULL;
    ls_status st = report ? ls_fs_mkdirs(profiles) : ls_nomem(strlen(run_dir), "a path");
    if (st == LS_OK) {
        words w = {.n = 0};
        add(&w, nsys);
        add(&w, "profile");
        add_option(&w, "trace", env_or("NSYS_TRACE", "cuda,nvtx,osrt"));
        add_option(&w, "sample", env_or("NSYS_SAMPLE", "none"));
        add_option(&w, "cpuctxsw", "none");
        add_option(&w, "cuda-event-trace", env_or("NSYS_CUDA_EVENT_TRACE", "false"));
        add_option(&w, "trace-fork-before-exec", "true");
        add_option(&w, "force-overwrite", env_or("NSYS_FORCE_OVERWRITE", "true"));
        add(&w, "--output");
        add(&w, report);
        add(&w, self);
        add(&w, "train");
        for (int i = 0; i < argc; i++) add(&w, argv[i]);
        add(&w, "--profile");
        add(&w, "--profile_mode");
        st = run_words(&w, NULL, code);
        fini(&w);
    }
    if (st == LS_OK) st = export_stats(nsys, profiles, report, host);
    if (st == LS_OK && *code == 0) st = cli_profile_summarize(run_dir); /* again, with what nsys saw */
    ls_free(report);
    ls_free(profiles);
    return st;
}

/* Where `train` with these words would write. */
static ls_status run_dir_of(int argc, char **argv, char **out, bool *help)
{
    ls_train_options o;
    char **copy = ls_alloc(((size_t)argc + 1) * sizeof *copy); /* parsing moves words */
    if (!copy) return ls_nomem((size_t)argc * sizeof *copy, "the command line");
    memcpy(copy, argv, (size_t)argc * sizeof *copy);
    ls_status st = ls_train_options_parse(argc, copy, &o);
    if (st == LS_OK) {
        *help = o.help || o.print_config;
        *out = ls_strdup(o.checkpoint_path);
        if (!*out) st = ls_nomem(strlen(o.checkpoint_path), "a path");
    }
    ls_free(copy);
    return st;
}

static ls_status status_of(int code)
{
    if (code == 0) return LS_OK;
    if (code != 143 && code > 5) return ls_fail(LS_E_COMM, "the profiled run ended with exit code %d", code);
    ls_err_clear(); /* it has spoken for itself */
    return code == 143 ? LS_E_STOPPED
           : code == 2 ? LS_E_CONFIG
           : code == 3 ? LS_E_FORMAT
           : code == 5 ? LS_E_NOMEM
           : code == 4 ? LS_E_COMM
                       : LS_E_NUMERIC;
}

static ls_status run_traced(int argc, char **argv)
{
    char **more = ls_alloc(((size_t)argc + 4) * sizeof *more); /* cmd_train looks at the two words before its own */
    if (!more) return ls_nomem((size_t)argc * sizeof *more, "the command line");
    static char flag[] = "--profile", program[] = "lockstep", command[] = "train";
    more[0] = program;
    more[1] = command;
    memcpy(more + 2, argv, (size_t)argc * sizeof *more);
    more[argc + 2] = flag;
    ls_status st = cmd_train(argc + 1, more + 2);
    ls_free(more);
    return st;
}

ls_status cli_profile_run(int argc, char **argv)
{
    if (argc && !strcmp(argv[0], "--")) argc--, argv++;
    if (!argc || strcmp(argv[0], "train"))
        return ls_fail(LS_E_ARG, "'%s' cannot be profiled; use lockstep profile -- train --data DIR ...",
                       argc ? argv[0] : "");
    argc--, argv++;
    char *run_dir = NULL, nsys[PATH_MAX];
    bool only_words = false;
    LS_TRY(run_dir_of(argc, argv, &run_dir, &only_words));
    ls_status st = LS_OK;
    if (only_words || strcmp(env_or("NSYS", "0"), "1")) {
        st = run_traced(argc, argv);
    } else if (!find_program(env_or("NSYS_BIN", "nsys"), nsys)) {
        fprintf(stderr, "NSYS=1: %s not found; writing the trace without it\n", env_or("NSYS_BIN", "nsys"));
        st = run_traced(argc, argv);
    } else {
        int code = 0;
        st = run_under_nsys(nsys, run_dir, argc, argv, &code);
        if (st == LS_OK) st = status_of(code);
    }
    ls_free(run_dir);
    return st;
}
