#include "report/read/benches.h"
#include "core/fs.h"
#include "core/mem.h"
#include "report/read/run_impl.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

const char *const ls_bench_file[LS_N_BENCH_KIND] = {
    [LS_BENCH_OF_SCALING] = "scaling_report.json",
    [LS_BENCH_OF_STRATEGIES] = "strategies_report.json",
    [LS_BENCH_OF_AB] = "ab_report.json",
    [LS_BENCH_OF_R3] = "r3_report.json",
};

/* --- what is a benchmark --- */

/* "2gpu_ddp", "2cpu_ddp", "run_3" */
static bool is_setting(const char *name)
{
    const size_t n = strspn(name, "0123456789");
    return n && (!strncmp(name + n, "gpu_", 4) || !strncmp(name + n, "cpu_", 4));
}

static bool is_repeat(const char *name)
{
    return !strncmp(name, "run_", 4) && name[4] && !name[4 + strspn(name + 4, "0123456789")];
}

/* Whether a folder of dir that passes the test exists; below: and that one has a folder that passes `below`. */
static bool has_folder(const char *dir, bool (*test)(const char *name), bool (*below)(const char *name))
{
    char **names = NULL;
    size_t n = 0;
    bool yes = false;
    if (ls_fs_list(dir, &names, &n) != LS_OK) ls_err_clear(); /* the search for runs reports it */
    for (size_t i = 0; i < n && !yes; i++) {
        const ls_path path = ls_path_of(dir, names[i]);
        yes = test(names[i]) && ls_fs_is_dir(path.text) && (!below || has_folder(path.text, below, NULL));
    }
    ls_fs_list_free(names, n);
    return yes;
}

static bool is_report(const char *dir)
{
    return ls_fs_is_file(ls_path_of(dir, "report.html").text) && ls_fs_is_file(ls_path_of(dir, "report.md").text);
}

static int results_in(const char *dir)
{
    int n = 0;
    for (int k = 0; k < LS_N_BENCH_KIND; k++) n += ls_fs_is_file(ls_path_of(dir, ls_bench_file[k]).text);
    return n;
}

bool ls_compares_precisions(const json_t *root)
{
    const json_t *list = json_object_get(root, "compared");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *word = json_string_value(json_array_get(list, i));
        if (word && !strcmp(word, "precision")) return true;
    }
    return false;
}

bool ls_is_bench(const char *dir)
{
    return !is_report(dir) && (results_in(dir) || has_folder(dir, is_setting, is_repeat));
}

/* --- finding --- */

static void bench_fini(ls_found_bench *b)
{
    ls_free(b->dir);
    ls_free(b->real);
    json_decref(b->root);
    ls_argv_fini(&b->path);
}

/* Its runs: the folders of its settings if another benchmark has the same folder, else all of the folder. */
static ls_status add_paths(ls_found_bench *b, bool shared)
{
    const json_t *commands = json_object_get(json_object_get(b->root, "protocol"), "commands");
    const char *name;
    json_t *v;
    if (!shared || !json_object_size(commands)) return ls_argv_add(&b->path, b->dir);
    json_object_foreach((json_t *)(uintptr_t)commands, name, v) LS_TRY(ls_argv_addf(&b->path, "%s/%s", b->dir, name));
    return LS_OK;
}

static ls_status add_bench(ls_found_benches *all, const char *dir, ls_bench_kind kind, bool shared)
{
    char real[PATH_MAX];
    ls_found_bench b = {.kind = kind};
    if (!realpath(dir, real)) return LS_OK; /* removed meanwhile */
    for (int i = 0; i < all->n; i++)
        if (all->bench[i].kind == kind && !strcmp(all->bench[i].real, real)) return LS_OK;
    b.dir = ls_strdup(dir);
    b.real = ls_strdup(real);
    ls_status st = b.dir && b.real && ls_grow(&all->bench, all->n, &all->cap, sizeof b)
                       ? LS_OK
                       : ls_nomem(sizeof b, "a list of benchmarks");
    if (st == LS_OK && kind < LS_N_BENCH_KIND) st = report_load(dir, ls_bench_file[kind], NULL, &b.root);
    if (st == LS_OK) st = add_paths(&b, shared);
    if (st == LS_OK) all->bench[all->n++] = b;
    else bench_fini(&b);
    return st;
}

static ls_status add_folder(ls_found_benches *all, const char *dir)
{
    const int n = results_in(dir);
    if (!n) return add_bench(all, dir, LS_N_BENCH_KIND, false);
    for (int k = 0; k < LS_N_BENCH_KIND; k++)
        if (ls_fs_is_file(ls_path_of(dir, ls_bench_file[k]).text)) LS_TRY(add_bench(all, dir, (ls_bench_kind)k, n > 1));
    return LS_OK;
}

static ls_status walk(ls_found_benches *all, const char *dir, int depth)
{
    char **names = NULL;
    size_t n = 0;
    if (ls_is_run(dir) || is_report(dir)) return LS_OK;
    if (ls_is_bench(dir)) LS_TRY(add_folder(all, dir));
    if (depth == RUN_MAX_DEPTH) return LS_OK;
    ls_status st = ls_fs_list(dir, &names, &n);
    if (st != LS_OK && st != LS_E_NOMEM) ls_err_clear(), st = LS_OK; /* the search for runs reports it */
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        const ls_path path = ls_path_of(dir, names[i]);
        if (!run_is_skipped(names[i]) && ls_fs_is_dir(path.text)) st = walk(all, path.text, depth + 1);
    }
    ls_fs_list_free(names, n);
    return st;
}

ls_status ls_benches_find(ls_found_benches *b, const char *path)
{
    return ls_fs_is_dir(path) ? walk(b, path, 0) : LS_OK;
}

void ls_benches_fini(ls_found_benches *b)
{
    for (int i = 0; i < b->n; i++) bench_fini(&b->bench[i]);
    ls_free(b->bench);
    *b = (ls_found_benches){0};
}
