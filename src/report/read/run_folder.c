/* run_folder.c - finding runs and loading their files; what is in them is read by run_read.c. */
#include "report/read/run_folder.h"
#include "core/fs.h"
#include "core/mem.h"
#include "report/read/run_impl.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 5, MAX_RUN = 2000 };

/* The text of dir/name, NULL if it does not exist or cannot be read (noted). */
static ls_status text_of(const char *dir, const char *name, ls_notes *notes, const char **text, size_t *n)
{
    char *path = ls_path_join(dir, name), *data = NULL;
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = ls_fs_exists(path) ? ls_fs_read(path, &data, n) : LS_OK;
    if (st == LS_E_IO) {
        ls_notes_add(notes, "%s", ls_err_words());
        ls_err_clear();
        st = LS_OK;
    }
    *text = data;
    ls_free(path);
    return st;
}

static void free_texts(ls_run_texts *t)
{
    const char *const all[] = {t->metrics, t->steps, t->launcher, t->complete, t->pipeline,
                               t->profile, t->nccl,  t->topo,     t->ibstat,   t->topology};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ls_free((void *)(uintptr_t)all[i]);
}

/* Room for one more run; NULL when there are too many (noted). */
static ls_status next_run(ls_run_set *s, const char *path, ls_run **out)
{
    *out = NULL;
    if (s->n >= MAX_RUN) {
        ls_notes_add(&s->notes, "%s: left out, there are more than %d runs", path, MAX_RUN);
        return LS_OK;
    }
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 8;
        ls_run *p = ls_realloc(s->run, (size_t)cap * sizeof *p);
        if (!p) return ls_nomem((size_t)cap * sizeof *p, "a list of runs");
        s->run = p;
        s->cap = cap;
    }
    *out = &s->run[s->n];
    return LS_OK;
}

/* The one name of a run, however it was given; NULL when there is none. A folder's metrics file is the folder. */
static char *real_name(const char *path)
{
    static const char metrics[] = "/training_metrics.json";
    char *real = realpath(path, NULL);
    const size_t n = real ? strlen(real) : 0, m = sizeof metrics - 1;
    char *name = !real ? NULL : n > m && !strcmp(real + n - m, metrics) ? ls_strndup(real, n - m) : ls_strdup(real);
    free(real);
    return name;
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

static ls_status take_run(ls_run_set *s, const ls_run_texts *t, const char *path)
{
    ls_run *r;
    LS_TRY(next_run(s, path, &r));
    if (!r) return LS_OK;
    ls_run_texts all = *t;
    all.warm = s->warm;
    char *real = real_name(path);
    const bool again = is_there(s, real, path);
    ls_status st = again ? LS_OK : ls_run_read_texts(&all, path, &s->notes, r);
    if (again || st != LS_OK) {
        ls_free(real);
        return st;
    }
    r->real = real;
    s->n++;
    return LS_OK;
}

static ls_status add_folder(ls_run_set *s, const char *dir)
{
    ls_run_texts t = {0};
    ls_status st;
    LS_TRY_GOTO(st, done, text_of(dir, "training_metrics.json", &s->notes, &t.metrics, &t.n_metrics));
    LS_TRY_GOTO(st, done, text_of(dir, "metrics.jsonl", &s->notes, &t.steps, &t.n_steps));
    LS_TRY_GOTO(st, done, text_of(dir, "launcher_metadata.json", &s->notes, &t.launcher, &t.n_launcher));
    LS_TRY_GOTO(st, done, text_of(dir, "RUN_COMPLETE.txt", &s->notes, &t.complete, &t.n_complete));
    LS_TRY_GOTO(st, done, text_of(dir, "pipeline.json", &s->notes, &t.pipeline, &t.n_pipeline));
    LS_TRY_GOTO(st, done, text_of(dir, "profiles/profile_summary.json", &s->notes, &t.profile, &t.n_profile));
    LS_TRY_GOTO(st, done, text_of(dir, "topo.txt", &s->notes, &t.topo, &t.n_topo));
    LS_TRY_GOTO(st, done, text_of(dir, "ibstat.txt", &s->notes, &t.ibstat, &t.n_ibstat));
    LS_TRY_GOTO(st, done, text_of(dir, "nccl_topo.xml", &s->notes, &t.topology, &t.n_topology));
    LS_TRY_GOTO(st, done, text_of(dir, "nccl/summary.json", &s->notes, &t.nccl, &t.n_nccl));
    if (!t.nccl) { /* a run that has not finished, or R1's */
        LS_TRY_GOTO(st, done, run_sum_logs(dir, &t.nccl, &t.n_nccl));
        t.nccl_of_logs = t.nccl != NULL;
    }
    st = take_run(s, &t, dir);
done:
    free_texts(&t);
    return st;
}

static ls_status add_file(ls_run_set *s, const char *path)
{
    char *data = NULL;
    ls_run_texts t = {0};
    ls_status st = ls_fs_read(path, &data, &t.n_metrics);
    if (st == LS_E_IO) {
        ls_notes_add(&s->notes, "%s", ls_err_words());
        ls_err_clear();
        return LS_OK;
    }
    t.metrics = data;
    if (st == LS_OK) st = take_run(s, &t, path);
    ls_free(data);
    return st;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = ls_path_join(dir, name);
    bool there = path && ls_fs_exists(path) && !ls_fs_is_dir(path);
    ls_free(path);
    return there;
}

static ls_status take_scaling(ls_run_set *s, const char *dir)
{
    json_t *root = NULL;
    LS_TRY(report_load(dir, "scaling_report.json", &s->notes, &root));
    if (!root) return LS_OK;
    struct ls_scaling_file *p = ls_realloc(s->scaling, (size_t)(s->n_scaling + 1) * sizeof *p);
    char *path = ls_path_join(dir, "scaling_report.json");
    if (p) s->scaling = p;
    if (!p || !path) {
        json_decref(root);
        ls_free(path);
        return ls_nomem(sizeof *p, "a scaling report");
    }
    s->scaling[s->n_scaling].path = path;
    s->scaling[s->n_scaling++].root = root;
    return LS_OK;
}

static bool is_checkpoint(const char *name)
{
    return !strncmp(name, "epoch-", 6) || !strncmp(name, "step-", 5);
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

static ls_status search(ls_run_set *s, const char *dir, int depth)
{
    bool found;
    if (has_file(dir, "training_metrics.json") || has_file(dir, "metrics.jsonl") || has_file(dir, "RUN_COMPLETE.txt"))
        return add_folder(s, dir);
    if (has_file(dir, "report.html") && has_file(dir, "report.md")) return LS_OK; /* an earlier report of ours */
    LS_TRY(take_workdir(s, dir, &found));
    if (found) return LS_OK;
    LS_TRY(take_scaling(s, dir));
    if (depth == MAX_DEPTH) return LS_OK;
    char **names = NULL;
    size_t n = 0;
    ls_status st = ls_fs_list(dir, &names, &n);
    if (st == LS_E_IO) {
        ls_notes_add(&s->notes, "%s", ls_err_words());
        ls_err_clear();
        return LS_OK;
    }
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        char *path = ls_path_join(dir, names[i]);
        if (!path) st = ls_nomem(strlen(dir), "a path");
        else if (names[i][0] != '.' && !is_checkpoint(names[i]) && ls_fs_is_dir(path)) st = search(s, path, depth + 1);
        ls_free(path);
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
    if (s->n == before && s->n_scaling == scaling && s->n_again == again)
        ls_notes_add(&s->notes, "%s: no run here: neither training_metrics.json nor metrics.jsonl, %d folders deep",
                     path, MAX_DEPTH);
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
