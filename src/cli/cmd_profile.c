/* cmd_profile.c - `lockstep profile -- train ...`: a traced run, with NSYS=1 also under nsys. `lockstep profile summarize`: nsys
 * text or the trace of a run to profiles/profile_summary.json.
 *
 *   plain     train --profile                                          profiles/trace.json, profile_summary.json
 *   NSYS=1    nsys profile ... lockstep train --profile --profile_mode   the same, and profiles/nsys_<job>_<host>.nsys-rep
 *             nsys stats ... > profiles/nsys_stats_<host>.txt            and the summary made from it
 *
 * If nsys is not installed, this is reported once and the run is traced without it. */
#include "cli/commands.h"

#include "bench/child.h"
#include "core/fs.h"
#include "core/stop.h"
#include "config/options.h"
#include "report/compat/profile_summary.h"
#include "train/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the summary ---- */

/* The summary of nsys with the member "lockstep" of the summary of the trace. */
static ls_status join(const ls_str *nsys, const ls_str *trace, ls_str *out)
{
    json_t *a = NULL, *b = NULL;
    ls_jsonw w;
    ls_status st = ls_json_parse(nsys->data, nsys->len, "the summary of nsys", &a);
    if (st == LS_OK) st = ls_json_parse(trace->data, trace->len, "the summary of the trace", &b);
    if (st == LS_OK && json_object_set(a, "lockstep", json_object_get(b, "lockstep"))) st = ls_nomem(0, "a summary");
    if (st == LS_OK) {
        ls_jsonw_init(&w, out, 2);
        ls_jsonw_value(&w, a);
        if (out->failed) st = ls_nomem(out->cap, "a profile summary");
    }
    json_decref(a);
    json_decref(b);
    return st;
}

static ls_status summary_text(const char *run_dir, ls_str *out, ls_str *table, size_t *n)
{
    ls_str nsys = {0}, trace = {0};
    char *path = ls_path_join(run_dir, "profiles/trace.json");
    if (!path) return ls_nomem(strlen(run_dir), "a path");
    const bool traced = ls_fs_exists(path);
    ls_free(path);
    ls_status st = ls_nsys_summary_text(run_dir, &nsys, n);
    const bool both = traced && *n;
    if (st == LS_OK && traced) st = ls_trace_summary_text(run_dir, both ? &trace : out, table);
    if (st == LS_OK && both) st = join(&nsys, &trace, out);
    else if (st == LS_OK && *n) {
        *out = nsys;
        nsys = (ls_str){0};
    }
    *n += traced;
    ls_str_fini(&nsys);
    ls_str_fini(&trace);
    return st;
}

static ls_status summarize(const char *run_dir)
{
    ls_str text = {0}, table = {0};
    size_t n = 0;
    char *path = NULL;
    ls_status st = summary_text(run_dir, &text, &table, &n);
    if (st == LS_OK && !n) {
        st = ls_fail(LS_E_IO,
                     "%s/profiles has no nsys_stats_*.txt and no trace.json; use `lockstep profile -- train ...` first",
                     run_dir);
    } else if (st == LS_OK) {
        path = ls_path_join(run_dir, "profiles/profile_summary.json");
        st = path ? ls_fs_write(path, text.data, text.len) : ls_nomem(strlen(run_dir), "a path");
        if (st == LS_OK) printf("%s%sWrote %s\n", table.data ? table.data : "", table.data ? "\n" : "", path);
        if (st == LS_OK && strstr(text.data, "\"rows_counted_once\""))
            printf(
                "note: files of one host in profiles/ have equal rows, which are counted once (rows_counted_once)\n");
        fflush(stdout);
    }
    ls_free(path);
    ls_str_fini(&text);
    ls_str_fini(&table);
    return st;
}

ls_status cli_profile_end(ls_profile **p, ls_comm *comm, const char *run_dir, ls_status run)
{
    int64_t dropped = 0;
    const bool ended = run == LS_OK || run == LS_E_STOPPED, prints = !comm || ls_comm_rank(comm) == 0;
    char *words = run == LS_OK ? NULL : ls_strdup(ls_err_words());
    ls_status st = ls_profile_end(p, comm, run, &dropped);
    if (st == LS_OK && prints) st = summarize(run_dir);
    if (st == LS_OK && prints) {
        fprintf(stderr, "trace: %s/profiles/trace.json (open it with ui.perfetto.dev or chrome://tracing)\n", run_dir);
        if (dropped)
            fprintf(stderr, "trace: %lld older spans were dropped; increase --profile_spans to keep more\n",
                    (long long)dropped);
    } else if (!ended && prints) {
        fprintf(stderr, "trace: the run failed; the traces of single workers are in %s/profiles/trace.rank<R>.json\n",
                run_dir);
    }
    if (ended && run != LS_OK && st == LS_OK) st = ls_fail(run, "%s", words ? words : "stopped");
    ls_free(words);
    return ended && st == LS_OK ? run : st;
}

/* ---- nsys ---- */

static const char *env_or(const char *name, const char *other)
{
    const char *v = getenv(name);
    return v && *v ? v : other;
}

/* Runs a command; output (may be NULL): a file for its stdout and stderr. *code is its exit code. */
static ls_status run_command(const ls_argv *w, const char *output, int *code)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) return ls_fail(LS_E_IO, "cannot start %s: %s", w->word[0], strerror(errno));
    if (pid == 0) {
        const int fd = output ? ls_fs_open(output, O_WRONLY | O_CREAT | O_TRUNC) : -1;
        if (fd >= 0) dup2(fd, STDOUT_FILENO), dup2(fd, STDERR_FILENO);
        execv(w->word[0], w->word);
        _exit(127);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return ls_fail(LS_E_IO, "cannot wait for %s: %s", w->word[0], strerror(errno));
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return LS_OK;
}

static ls_status stats_command(ls_argv *w, const char *nsys, const char *report, bool plain)
{
    LS_TRY(ls_argv_add(w, nsys));
    LS_TRY(ls_argv_add(w, "stats"));
    if (!plain) LS_TRY(ls_argv_add(w, "--report=nvtx_sum,osrt_sum,cuda_api_sum,cuda_gpu_kern_sum"));
    return ls_argv_add(w, report);
}

/* nsys stats to profiles/nsys_stats_<host>.txt: the four reports, else the default ones, else nothing. */
static ls_status export_stats(const char *nsys, const char *profiles, const char *report, const char *host)
{
    char *out = ls_asprintf("%s/nsys_stats_%s.txt", profiles, host), *rep = ls_asprintf("%s.nsys-rep", report);
    ls_status st = out && rep ? LS_OK : ls_nomem(strlen(profiles), "a path");
    int code = 1;
    for (int plain = 0; plain < 2 && st == LS_OK && code; plain++) {
        ls_argv w = {0};
        st = stats_command(&w, nsys, rep, plain);
        if (st == LS_OK) st = run_command(&w, out, &code);
        ls_argv_fini(&w);
    }
    if (st == LS_OK && code) {
        fprintf(stderr, "nsys stats failed; nsys_stats_%s.txt was not written\n", host);
        (void)ls_fs_unlink(out, false);
    }
    ls_free(out);
    ls_free(rep);
    return st;
}

/* run_dir: the run folder of the train options, or its default. */
static ls_status profile_command(ls_argv *w, const char *nsys, const char *report, const char *run_dir,
                                 const ls_argv *train)
{
    char self[4096];
    LS_TRY(ls_program_path(self));
    LS_TRY(ls_argv_add(w, nsys));
    LS_TRY(ls_argv_add(w, "profile"));
    LS_TRY(ls_argv_addf(w, "--trace=%.400s", env_or("NSYS_TRACE", "cuda,nvtx,osrt")));
    LS_TRY(ls_argv_addf(w, "--sample=%.400s", env_or("NSYS_SAMPLE", "none")));
    LS_TRY(ls_argv_add(w, "--cpuctxsw=none"));
    LS_TRY(ls_argv_addf(w, "--cuda-event-trace=%.400s", env_or("NSYS_CUDA_EVENT_TRACE", "false")));
    LS_TRY(ls_argv_add(w, "--trace-fork-before-exec=true"));
    LS_TRY(ls_argv_addf(w, "--force-overwrite=%.400s", env_or("NSYS_FORCE_OVERWRITE", "true")));
    LS_TRY(ls_argv_add(w, "--output"));
    LS_TRY(ls_argv_add(w, report));
    LS_TRY(ls_argv_add(w, self));
    LS_TRY(ls_argv_add(w, "train"));
    LS_TRY(ls_argv_addf(w, "--checkpoint_path=%s", run_dir));
    LS_TRY(ls_argv_add_all(w, train));
    LS_TRY(ls_argv_add(w, "--profile"));
    return ls_argv_add(w, "--profile_mode");
}

static ls_status run_under_nsys(const char *nsys, const char *run_dir, const ls_argv *train, int *code)
{
    char host[64] = "localhost";
    ls_argv w = {0};
    gethostname(host, sizeof host - 1);
    char *profiles = ls_path_join(run_dir, "profiles");
    char *report = profiles ? ls_asprintf("%s/nsys_%s_%s", profiles, env_or("SLURM_JOB_ID", "0"), host) : NULL;
    ls_status st = report ? ls_fs_mkdirs(profiles) : ls_nomem(strlen(run_dir), "a path");
    if (st == LS_OK) st = profile_command(&w, nsys, report, run_dir, train);
    if (st == LS_OK) st = run_command(&w, NULL, code);
    if (st == LS_OK) st = export_stats(nsys, profiles, report, host);
    if (st == LS_OK && *code == 0) st = summarize(run_dir); /* again, with the data of nsys */
    ls_argv_fini(&w);
    ls_free(report);
    ls_free(profiles);
    return st;
}

/* The status of a run that has printed its own errors. */
static ls_status status_of(int code)
{
    static const ls_status by_code[] = {LS_OK, LS_E_NUMERIC, LS_E_CONFIG, LS_E_FORMAT, LS_E_COMM, LS_E_NOMEM};
    const bool stopped = code == 143 || code == 130;
    if (!stopped && code >= (int)CLI_COUNT(by_code))
        return ls_fail(LS_E_COMM, "the profiled run ended with exit code %d", code);
    ls_err_clear();
    ls_stop_ended_with(code);
    return stopped ? LS_E_STOPPED : by_code[code];
}

/* ---- the command ---- */

static ls_status run_traced(int argc, char **argv)
{
    char **more = ls_alloc(((size_t)argc + 4) * sizeof *more); /* cmd_train reads the two arguments before its own */
    if (!more) return ls_nomem((size_t)argc * sizeof *more, "the command line");
    static char flag[] = "--profile", program[] = "lockstep", command[] = "train";
    more[0] = program;
    more[1] = command;
    memcpy(more + 2, argv, (size_t)argc * sizeof *more);
    more[argc + 2] = flag;
    const ls_status st = cmd_train(argc + 1, more + 2);
    ls_free(more);
    return st;
}

static ls_status profile_train(int argc, char **argv)
{
    ls_train_options o;
    ls_argv preset = {0};
    LS_TRY(cli_preset_words(argc, argv, false, &preset, NULL));
    const ls_argv train = preset.n ? preset : (ls_argv){.word = argv, .n = argc};
    char nsys[4096];
    const char *name = env_or("NSYS_BIN", "nsys");
    char **moved = ls_alloc(((size_t)train.n + 1) * sizeof *moved); /* a copy of the list: parsing changes it */
    if (moved && train.n) memcpy(moved, train.word, (size_t)train.n * sizeof *moved);
    ls_status st = moved ? ls_train_options_parse(train.n, moved, &o) : ls_nomem((size_t)train.n, "the command line");
    const bool wanted = st == LS_OK && !o.help && !o.print_config && !strcmp(env_or("NSYS", "0"), "1");
    const bool found = wanted && cli_find_program(name, nsys);
    if (wanted && !found) fprintf(stderr, "NSYS=1: %s not found; writing the trace without it\n", name);
    if (st == LS_OK && found) {
        int code = 0;
        st = run_under_nsys(nsys, o.checkpoint_path, &train, &code);
        if (st == LS_OK) st = status_of(code);
    } else if (st == LS_OK) {
        st = run_traced(train.n, train.word);
    }
    ls_free(moved);
    ls_argv_fini(&preset);
    return st;
}

typedef struct options {
    const char *run_dir;
} options;

static const ls_opt table[] = {
    CLI_STR("run_dir", run_dir, "DIR", NULL, "run folder with profiles/nsys_stats_*.txt or profiles/trace.json",
            "Input"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "profile -- train ...\n       lockstep profile summarize --run_dir DIR",
    "The first form trains and writes a trace of every worker to profiles/trace.json in the run folder (open it with ui.perfetto.dev) and a summary to profiles/profile_summary.json. With NSYS=1 the run is also profiled with nsys, if it is installed. NSYS_BIN names the program; NSYS_TRACE, NSYS_SAMPLE, NSYS_CUDA_EVENT_TRACE and NSYS_FORCE_OVERWRITE set the options --trace, --sample, --cuda-event-trace and --force-overwrite of nsys.\n\nThe second form reads the output of `nsys stats` "
    "(profiles/nsys_stats_*.txt) and writes profiles/profile_summary.json: the five largest NVTX ranges and system calls, for all files and for each file, and whether gradient reduction takes more than 20 % of the time of all NVTX ranges."};

ls_status cmd_profile(int argc, char **argv)
{
    options o = {0};
    ls_opt_list words = {0};
    const bool dashes = argc && !strcmp(argv[0], "--");
    if (argc > dashes && !strcmp(argv[dashes], "train")) return profile_train(argc - dashes - 1, argv + dashes + 1);
    if (dashes)
        return ls_fail(LS_E_ARG, "'%s' cannot be profiled; use lockstep profile -- train --data DIR ...",
                       argc > 1 ? argv[1] : "");
    LS_TRY(cli_parse(&page, &o, argc, argv, &words, NULL));
    if (words.n != 1 || strcmp(words.word[0], "summarize"))
        return ls_fail(
            LS_E_ARG,
            "profile needs a command; use lockstep profile -- train ... or lockstep profile summarize --run_dir DIR");
    if (!o.run_dir) return ls_fail(LS_E_ARG, "profile summarize needs --run_dir DIR");
    LS_TRY(ls_fs_no_links(o.run_dir));
    return summarize(o.run_dir);
}
