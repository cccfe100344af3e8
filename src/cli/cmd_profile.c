/* cmd_profile.c - `lockstep profile summarize`: nsys text of a run to profiles/profile_summary.json. */
#include "cli/commands.h"

#include "core/fs.h"
#include "core/mem.h"
#include "report/nsys.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct options {
    const char *run_dir;
} options;

static const ls_opt table[] = {
    {"run-dir", LS_OPT_STR, offsetof(options, run_dir), "DIR", NULL, "run folder with profiles/nsys_stats_*.txt",
     "What"},
};
#define N_OPT (sizeof table / sizeof table[0])

static ls_status summarize(const char *run_dir)
{
    ls_str text = {0};
    size_t n = 0;
    char *path = NULL;
    ls_status st = ls_nsys_summary_text(run_dir, &text, &n);
    if (st == LS_OK && !n) {
        fprintf(stderr, "No nsys_stats_*.txt files found under %s/profiles\n", run_dir);
        ls_err_clear();
        st = LS_E_NUMERIC; /* exit code 1, as the reference's parser */
    } else if (st == LS_OK) {
        path = ls_path_join(run_dir, "profiles/profile_summary.json");
        st = path ? ls_fs_write(path, text.data, text.len) : ls_nomem(strlen(run_dir), "a path");
        if (st == LS_OK) printf("Wrote %s\n", path);
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
    LS_TRY(ls_opt_parse(table, N_OPT, &o, NULL, argc, argv, &words, &help));
    if (help) {
        cli_help("profile summarize --run-dir DIR",
                 "Reads what `nsys stats` printed (profiles/nsys_stats_*.txt) and writes "
                 "profiles/profile_summary.json: the five largest NVTX\n"
                 "ranges and system calls, over all files and for each, and whether reducing gradients takes more than "
                 "a fifth.",
                 table, N_OPT);
        return LS_OK;
    }
    if (words.n != 1 || strcmp(words.word[0], "summarize"))
        return ls_fail(LS_E_ARG, "profile takes one word, summarize (lockstep profile summarize --run-dir DIR)");
    if (!o.run_dir) return ls_fail(LS_E_ARG, "profile summarize needs --run-dir, a run folder");
    return summarize(o.run_dir);
}
