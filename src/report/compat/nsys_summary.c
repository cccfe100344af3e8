/* nsys_summary.c - profile_summary.json from the rows of all stats files. */
#include "core/fs.h"
#include "core/mem.h"
#include "report/compat/profile_summary.h"
#include "report/read/keys.h"

#include <string.h>

#define NVTX "NVTX Range Summary"
#define OSRT "OS Runtime Summary"

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n > m && !strcmp(name + n - m, end);
}

static bool is_report(const char *name)
{
    return !strncmp(name, "nsys_", 5) && (ends_in(name, ".nsys-rep") || ends_in(name, ".qdrep"));
}

static bool is_stats(const char *name)
{
    return !strncmp(name, "nsys_stats_", 11) && strlen(name) >= 15 && ends_in(name, ".txt");
}

/* nsys_<digits>_<host>.nsys-rep: adds the host to a sorted list. */
static void add_host(const char *name, json_t *list)
{
    char host[256];
    const char *p = name + 5 + strspn(name + 5, "0123456789"), *dot = strrchr(name, '.');
    size_t i = 0, n = json_array_size(list);
    if (p == name + 5 || *p != '_' || dot <= p + 1) return;
    snprintf(host, sizeof host, "%.*s", (int)(dot - p - 1), p + 1);
    while (i < n && strcmp(json_string_value(json_array_get(list, i)), host) < 0) i++;
    if (i == n || strcmp(json_string_value(json_array_get(list, i)), host))
        json_array_insert_new(list, i, json_string_nocheck(host));
}

/* As the launcher recorded them, one per line; else those that the names of the reports contain; else null. */
static json_t *hosts_of(const json_t *launcher, char **names, size_t n)
{
    const report_doc d = {.root = launcher};
    const char *text = report_str(&d, "slurm.hosts");
    json_t *list = json_array();
    if (!text) text = report_str(&d, "hosts");
    for (const char *p = text ? text : ""; *p;) {
        const size_t len = strcspn(p, "\n");
        if (strspn(p, " \t\r\v\f") < len) json_array_append_new(list, json_stringn_nocheck(p, len));
        p += len + (p[len] == '\n');
    }
    const bool recorded = json_array_size(list) > 0;
    for (size_t i = 0; i < n && !recorded; i++)
        if (is_report(names[i])) add_host(names[i], list);
    if (json_array_size(list)) return list;
    json_decref(list);
    return json_null();
}

static ls_status read_stats(const char *profiles, profile_file *f, ls_nsys_rows *nvtx, ls_nsys_rows *osrt)
{
    char *text = NULL;
    size_t n = 0;
    ls_status st = ls_fs_read(ls_path_in(profiles, f->name).text, &text, &n);
    if (st == LS_OK) st = ls_nsys_parse(text, n, NVTX, &f->nvtx);
    if (st == LS_OK) st = ls_nsys_parse(text, n, OSRT, &f->osrt);
    if (st == LS_OK) st = ls_nsys_parse(text, n, NVTX, nvtx);
    if (st == LS_OK) st = ls_nsys_parse(text, n, OSRT, osrt);
    ls_nsys_rank(&f->nvtx);
    ls_nsys_rank(&f->osrt);
    ls_free(text);
    return st;
}

static ls_status write_summary(profile_summary *p, const char *run_dir, char **names, size_t n, ls_str *out)
{
    ls_jsonw w;
    LS_TRY(profile_summary_begin(p, run_dir));
    p->hosts = hosts_of(p->launcher, names, n);
    for (size_t i = 0; i < n; i++)
        if (is_report(names[i])) json_array_append_new(p->reports, json_string_nocheck(names[i]));
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    profile_summary_put(p, &w);
    ls_jsonw_close(&w);
    return out->failed ? ls_nomem(out->cap, "a profile summary") : LS_OK;
}

ls_status ls_nsys_summary_text(const char *run_dir, ls_str *out, size_t *n_file)
{
    const ls_path profiles = ls_path_in(run_dir, "profiles");
    char **names = NULL;
    size_t n = 0;
    ls_nsys_rows nvtx = {0}, osrt = {0};
    profile_summary p = {.nvtx = &nvtx, .osrt = &osrt};
    ls_status st = LS_OK;
    if (ls_fs_is_dir(profiles.text)) LS_TRY(ls_fs_list(profiles.text, &names, &n));
    p.file = ls_alloc((n + 1) * sizeof *p.file);
    if (!p.file) st = ls_nomem(n * sizeof *p.file, "a list of files");
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        if (!is_stats(names[i])) continue;
        p.file[p.n_file].name = names[i];
        st = read_stats(profiles.text, &p.file[p.n_file++], &nvtx, &osrt);
    }
    ls_nsys_rank(&nvtx);
    ls_nsys_rank(&osrt);
    *n_file = (size_t)p.n_file;
    if (st == LS_OK && p.n_file) st = write_summary(&p, run_dir, names, n, out);
    for (int i = 0; i < p.n_file; i++) {
        ls_nsys_rows_fini(&p.file[i].nvtx);
        ls_nsys_rows_fini(&p.file[i].osrt);
    }
    ls_nsys_rows_fini(&nvtx);
    ls_nsys_rows_fini(&osrt);
    ls_free(p.file);
    ls_fs_list_free(names, n);
    profile_summary_fini(&p);
    return st;
}
