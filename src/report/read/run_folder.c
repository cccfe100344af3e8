/* run_folder.c - finding runs and loading their files; what is in them is read by run_read.c. */
#include "report/read/run_folder.h"
#include "core/fs.h"
#include "core/mem.h"
#include "report/read/benches.h"
#include "report/read/run_impl.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RUN = 2000, MAX_METRICS = 64 << 20 };

const char *const ls_run_file[LS_N_RUN_FILE] = {
    [LS_RUN_METRICS] = "training_metrics.json",
    [LS_RUN_STEPS] = "metrics.jsonl",
    [LS_RUN_LAUNCHER] = "launcher_metadata.json",
    [LS_RUN_COMPLETE] = "RUN_COMPLETE.txt",
    [LS_RUN_PIPELINE] = "pipeline.json",
    [LS_RUN_PROFILE] = "profiles/profile_summary.json",
    [LS_RUN_TOPO] = "topo.txt",
    [LS_RUN_IBSTAT] = "ibstat.txt",
    [LS_RUN_TOPOLOGY] = "nccl_topo.xml",
    [LS_RUN_NCCL] = "nccl/summary.json",
    [LS_RUN_EVENTS] = "events.jsonl",
};

/* The text of a file; none if it does not exist or cannot be read (noted). */
static ls_status text_of(const char *path, ls_notes *notes, ls_text *out)
{
    char *data = NULL;
    if (ls_fs_exists(path) && !ls_fs_is_file(path)) { /* reading a pipe waits for its writer */
        ls_notes_add(notes, "%s: not a regular file", path);
        return LS_OK;
    }
    ls_status st = ls_fs_exists(path) ? ls_notes_failure(notes, ls_fs_read(path, &data, &out->n)) : LS_OK;
    out->data = data;
    return st;
}

/* Room for one more run; NULL when there are too many (noted). */
static ls_status next_run(ls_run_set *s, const char *path, ls_run **out)
{
    *out = NULL;
    if (s->n >= MAX_RUN) {
        ls_notes_add(&s->notes, "%s: left out, there are more than %d runs", path, MAX_RUN);
        return LS_OK;
    }
    if (!ls_grow(&s->run, s->n, &s->cap, sizeof *s->run)) return ls_nomem(sizeof *s->run, "a list of runs");
    *out = &s->run[s->n];
    return LS_OK;
}

/* The one name of a run, however it was given; NULL when there is none. A folder's metrics file is the folder. */
static char *real_name(const char *path)
{
    static const char metrics[] = "/training_metrics.json";
    char real[PATH_MAX];
    if (!realpath(path, real)) return NULL;
    const size_t n = strlen(real), m = sizeof metrics - 1;
    return ls_strndup(real, n > m && !strcmp(real + n - m, metrics) ? n - m : n);
}

/* A run counts once, however often it is given: a repeat is another run. */
static bool is_there(ls_run_set *s, const char *real, const char *path)
{
    for (int i = 0; i < s->n && real; i++) {
        if (!s->run[i].real || strcmp(s->run[i].real, real)) continue;
        ls_notes_add(&s->notes, "%s: the same run as %s, which counts once", path, s->run[i].dir);
        s->n_again++;
        return true;
    }
    return false;
}

/* A copy of a run's folder is that run: two runs never have the same times. */
static bool is_copy(ls_run_set *s, const ls_run *r)
{
    for (int i = 0; i < s->n && r->metrics; i++) {
        if (!s->run[i].metrics || !json_equal(s->run[i].metrics, r->metrics)) continue;
        ls_notes_add(&s->notes, "%s: a copy of %s (all metrics and times are equal), which counts once", r->dir,
                     s->run[i].dir);
        s->n_again++;
        return true;
    }
    return false;
}

static ls_status take_run(ls_run_set *s, const ls_run_texts *t, const char *path)
{
    ls_run *r;
    LS_TRY(next_run(s, path, &r));
    char *real = real_name(path);
    const bool again = !r || is_there(s, real, path);
    ls_status st = again ? LS_OK : ls_run_read_texts(t, path, &s->notes, r);
    if (again || st != LS_OK) {
        ls_free(real);
        return st;
    }
    r->real = real;
    if (is_copy(s, r)) ls_run_fini(r);
    else s->n++;
    return LS_OK;
}

/* A profiler leaves files: nsys in profiles/, torch in profiler_logs/. Our trace in profiles/ may be of an earlier run in the folder. */
static ls_status has_profiles(const char *dir, bool *yes, bool *traced)
{
    static const char *const folder[] = {"profiles", "profiler_logs"};
    bool summary = ls_fs_exists(ls_path_of(dir, "profile_summary.json").text);
    for (int k = 0; k < 2; k++) {
        char **names = NULL;
        size_t n = 0;
        const ls_path path = ls_path_of(dir, folder[k]);
        if (!ls_fs_is_dir(path.text)) continue;
        const ls_status st = ls_fs_list(path.text, &names, &n);
        if (st == LS_E_NOMEM) return st;
        if (st != LS_OK) ls_err_clear(); /* what cannot be listed tells nothing */
        for (size_t i = 0; i < n; i++) {
            *yes = *yes || k || !strncmp(names[i], "nsys_", 5);
            *traced = *traced || !strncmp(names[i], "trace.", 6);
            summary = summary || !strcmp(names[i], "profile_summary.json");
        }
        ls_fs_list_free(names, n);
    }
    if (summary && !*traced)
        *yes = true; /* a copy of a run may have no other sign of it; with a trace it may be that trace's */
    return LS_OK;
}

static ls_status add_folder(ls_run_set *s, const char *dir)
{
    ls_run_texts t = {.warm = s->warm};
    ls_text *nccl = &t.file[LS_RUN_NCCL];
    ls_status st = ls_fs_no_links(dir);
    for (int i = 0; i < LS_N_RUN_FILE && st == LS_OK; i++)
        st = text_of(ls_path_of(dir, ls_run_file[i]).text, &s->notes, &t.file[i]);
    if (st == LS_OK && !t.file[LS_RUN_PROFILE].data) /* some keep it beside the metrics */
        st = text_of(ls_path_of(dir, "profile_summary.json").text, &s->notes, &t.file[LS_RUN_PROFILE]);
    if (st == LS_OK && !t.file[LS_RUN_PROFILE].data) st = run_sum_nsys(dir, &s->notes, &t.file[LS_RUN_PROFILE]);
    if (st == LS_OK) st = has_profiles(dir, &t.profiled, &t.traced);
    if (st == LS_OK && !nccl->data) { /* a run that has not finished, or the scaling study's */
        st = run_sum_logs(dir, nccl);
        t.nccl_of_logs = nccl->data != NULL;
    }
    const int before = s->n;
    if (st == LS_OK) st = take_run(s, &t, dir);
    if (st == LS_OK && s->n > before) st = run_add_results(dir, &s->notes, &s->run[before]);
    for (int i = 0; i < LS_N_RUN_FILE; i++) ls_free((void *)(uintptr_t)t.file[i].data);
    return st;
}

static ls_status add_file(ls_run_set *s, const char *path)
{
    ls_run_texts t = {.warm = s->warm};
    ls_text *metrics = &t.file[LS_RUN_METRICS];
    LS_TRY(text_of(path, &s->notes, metrics));
    ls_status st = metrics->data ? take_run(s, &t, path) : LS_OK;
    ls_free((void *)(uintptr_t)metrics->data);
    return st;
}

static bool has_file(const char *dir, const char *name)
{
    const ls_path path = ls_path_of(dir, name);
    return ls_fs_exists(path.text) && !ls_fs_is_dir(path.text);
}

static ls_status take_scaling(ls_run_set *s, const char *dir)
{
    json_t *root = NULL;
    LS_TRY(report_load(dir, "scaling_report.json", &s->notes, &root));
    if (!root) return LS_OK;
    const bool room = ls_grow(&s->scaling, s->n_scaling, &s->cap_scaling, sizeof *s->scaling);
    char *path = room ? ls_path_join(dir, "scaling_report.json") : NULL;
    if (!path) {
        json_decref(root);
        return ls_nomem(sizeof *s->scaling, "a scaling report");
    }
    s->scaling[s->n_scaling].path = path;
    s->scaling[s->n_scaling++].root = root;
    return LS_OK;
}

/* Whether a file is the metrics of a run under another name ("2gpu.json"): not every JSON file is. */
static bool is_metrics(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    int64_t nbytes = 0;
    if (!ls_ends_in(path, ".json") || ls_fs_is_dir(path)) return false;
    ls_status st = ls_fs_size(path, &nbytes);
    if (st == LS_OK && nbytes > 0 && nbytes <= MAX_METRICS) st = ls_fs_read(path, &text, &n);
    if (st != LS_OK) ls_err_clear();
    if (!text) return false;
    const bool yes =
        (strstr(text, "\"schema_version\"") && (strstr(text, "\"run_id\"") || strstr(text, "\"training_config\""))) ||
        strstr(text, "\"train_time_per_epoch\"");
    ls_free(text);
    return yes;
}

bool run_is_skipped(const char *name)
{
    return name[0] == '.' || !strncmp(name, "epoch-", 6) || !strncmp(name, "step-", 5);
}

bool ls_is_run(const char *dir)
{
    return has_file(dir, "training_metrics.json") || has_file(dir, "metrics.jsonl") ||
           has_file(dir, "RUN_COMPLETE.txt");
}

static ls_status take_workdir(ls_run_set *s, const char *dir, bool *found)
{
    ls_run *r;
    *found = false;
    LS_TRY(next_run(s, dir, &r));
    if (r) LS_TRY(run_read_workdir(dir, &s->notes, r, found));
    s->n += *found;
    return LS_OK;
}

/* Files of tools about a run without metrics: the run is shown by them. */
static bool has_evidence(const char *dir)
{
    static const int file[] = {LS_RUN_TOPO, LS_RUN_IBSTAT, LS_RUN_TOPOLOGY, LS_RUN_NCCL, LS_RUN_PROFILE};
    for (size_t i = 0; i < sizeof file / sizeof *file; i++)
        if (has_file(dir, ls_run_file[file[i]])) return true;
    return has_file(dir, "profile_summary.json") || run_has_logs(dir);
}

static ls_status search(ls_run_set *s, const char *dir, int depth)
{
    bool found, evidence = false;
    if (ls_is_run(dir)) return add_folder(s, dir);
    if (has_file(dir, "report.html") && has_file(dir, "report.md")) return LS_OK; /* an earlier report of ours */
    if (depth && s->apart && ls_is_bench(dir)) return LS_OK;
    LS_TRY(take_workdir(s, dir, &found));
    if (found) return LS_OK;
    LS_TRY(take_scaling(s, dir));
    if (has_evidence(dir)) {
        LS_TRY(add_folder(s, dir));
        evidence = true;
    }
    if (depth == RUN_MAX_DEPTH) return LS_OK;
    char **names = NULL;
    size_t n = 0;
    ls_status st = ls_notes_failure(&s->notes, ls_fs_list(dir, &names, &n));
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        const ls_path path = ls_path_of(dir, names[i]);
        if (evidence && (!strcmp(names[i], "profiles") || !strcmp(names[i], "nccl"))) continue; /* read with it */
        if (run_is_skipped(names[i])) continue;
        if (ls_fs_is_dir(path.text)) st = search(s, path.text, depth + 1);
        else if (!evidence && is_metrics(path.text)) st = add_file(s, path.text);
    }
    ls_fs_list_free(names, n);
    return st;
}

ls_status ls_run_set_add(ls_run_set *s, const char *path)
{
    int before = s->n, scaling = s->n_scaling, again = s->n_again;
    if (!ls_fs_exists(path)) {
        ls_notes_add(&s->notes, "%s: there is no such file or folder", path);
        return LS_OK;
    }
    if (!ls_fs_is_dir(path)) return add_file(s, path);
    LS_TRY(search(s, path, 0));
    if (s->n == before && s->n_scaling == scaling && s->n_again == again && !s->apart)
        ls_notes_add(
            &s->notes,
            "%s: no run found (searched %d levels for training_metrics.json, metrics.jsonl and other files of metrics)",
            path, RUN_MAX_DEPTH);
    return LS_OK;
}

void ls_run_set_sort(ls_run_set *s)
{
    for (int i = 1; i < s->n; i++) { /* stable, and short */
        ls_run r = s->run[i];
        int k = i;
        for (; k && s->run[k - 1].world > r.world; k--) s->run[k] = s->run[k - 1];
        s->run[k] = r;
    }
}

void ls_run_set_fini(ls_run_set *s)
{
    for (int i = 0; i < s->n; i++) ls_run_fini(&s->run[i]);
    for (int i = 0; i < s->n_scaling; i++) {
        ls_free(s->scaling[i].path);
        json_decref(s->scaling[i].root);
    }
    ls_free(s->run);
    ls_free(s->scaling);
    ls_notes_fini(&s->notes);
    *s = (ls_run_set){0};
}
