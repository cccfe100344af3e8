/* cmd_profile.c - `lockstep profile -- train …`: a traced run (profile_run.h). `lockstep profile summarize`: nsys text or the trace of a
 * run to profiles/profile_summary.json. */
#include "cli/commands.h"
#include "cli/profile_run.h"

#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "report/compat/profile_summary.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct options {
    const char *run_dir;
} options;

static const ls_opt table[] = {
    {"run-dir", LS_OPT_STR, offsetof(options, run_dir), "DIR", NULL,
     "run folder with profiles/nsys_stats_*.txt or profiles/trace.json", "Input"},
};
#define N_OPT (sizeof table / sizeof table[0])

/* The nsys summary with what the trace of the same run says, under "lockstep". */
static ls_status join(const ls_str *nsys, const ls_str *trace, ls_str *out)
{
    json_t *a = NULL, *b = NULL, *value;
    const char *key;
    ls_jsonw w;
    ls_status st = ls_json_parse(nsys->data, nsys->len, "the summary of nsys", &a);
    if (st == LS_OK) st = ls_json_parse(trace->data, trace->len, "the summary of the trace", &b);
    if (st == LS_OK) {
        ls_jsonw_init(&w, out, 2);
        ls_jsonw_open(&w, '{');
        json_object_foreach(a, key, value)
        {
            ls_jsonw_key(&w, key);
            ls_jsonw_value(&w, value);
        }
        ls_jsonw_key(&w, "lockstep");
        ls_jsonw_value(&w, json_object_get(b, "lockstep"));
        ls_jsonw_close(&w);
        if (out->failed) st = ls_nomem(out->cap, "a profile summary");
    }
    json_decref(a);
    json_decref(b);
    return st;
}

static ls_status summary_text(const char *run_dir, ls_str *out, size_t *n)
{
    ls_str nsys = {0}, trace = {0};
    char *path = ls_path_join(run_dir, "profiles/trace.json");
    if (!path) return ls_nomem(strlen(run_dir), "a path");
    const bool traced = ls_fs_exists(path);
    ls_free(path);
    ls_status st = ls_nsys_summary_text(run_dir, &nsys, n);
    const bool both = traced && *n;
    if (st == LS_OK && traced) st = ls_trace_summary_text(run_dir, both ? &trace : out);
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

ls_status cli_profile_summarize(const char *run_dir)
{
    ls_str text = {0};
    size_t n = 0;
    char *path = NULL;
    ls_status st = summary_text(run_dir, &text, &n);
    if (st == LS_OK && !n) {
        fprintf(stderr, "No nsys_stats_*.txt files and no trace.json found under %s/profiles\n", run_dir);
        ls_err_clear();
        st = LS_E_NUMERIC; /* exit code 1, as R1's parser */
    } else if (st == LS_OK) {
        path = ls_path_join(run_dir, "profiles/profile_summary.json");
        st = path ? ls_fs_write(path, text.data, text.len) : ls_nomem(strlen(run_dir), "a path");
        if (st == LS_OK) printf("Wrote %s\n", path);
        fflush(stdout);
    }
    ls_free(path);
    ls_str_fini(&text);
    return st;
}

ls_status cmd_profile(int argc, char **argv)
{
    options o = {0};
    bool help = false;
    ls_opt_list words = {0};
    if (argc && (!strcmp(argv[0], "--") || !strcmp(argv[0], "train"))) return cli_profile_run(argc, argv);
    LS_TRY(ls_opt_parse(table, N_OPT, &o, NULL, argc, argv, &words, &help));
    if (help) {
        cli_help("profile -- train ...\n       lockstep profile summarize --run-dir DIR",
                 "The first form trains and writes a trace of every worker to profiles/trace.json in the run folder "
                 "(open it with ui.perfetto.dev) and a summary to profiles/profile_summary.json. With NSYS=1 the run "
                 "is also profiled with nsys, if it is installed (NSYS_BIN, NSYS_TRACE, ...).\n\nThe second form reads "
                 "the output of `nsys stats` (profiles/nsys_stats_*.txt) and writes profiles/profile_summary.json: the "
                 "five largest NVTX ranges and system calls, for all files and for each file, and whether gradient "
                 "reduction takes more than 20 %.",
                 table, N_OPT);
        return LS_OK;
    }
    if (words.n != 1 || strcmp(words.word[0], "summarize"))
        return ls_fail(
            LS_E_ARG,
            "profile needs a command; use lockstep profile -- train ... or lockstep profile summarize --run-dir DIR");
    if (!o.run_dir) return ls_fail(LS_E_ARG, "profile summarize needs --run-dir DIR");
    return cli_profile_summarize(o.run_dir);
}
