#include "serve/live_set.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATIENCE 0.05 /* seconds of reading before a first answer */

static bool is_run(const char *dir)
{
    return ls_fs_is_file(ls_path_of(dir, "metrics.jsonl").text) || ls_fs_is_file(ls_path_of(dir, "events.jsonl").text);
}

static ls_live_run *run_in(const ls_live_set *s, const char *dir)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->run[i]->dir, dir)) return s->run[i];
    return NULL;
}

static ls_live_run *run_called(const ls_live_set *s, const char *id, int *at)
{
    for (*at = 0; *at < s->n; ++*at)
        if (!strcmp(s->run[*at]->id, id)) return s->run[*at];
    return NULL;
}

static ls_status add_run(ls_live_set *s, const char *dir, const char *id)
{
    int at;
    if (run_in(s, dir)) return LS_OK;
    if (s->n == LS_LIVE_RUNS) {
        s->full = true;
        return LS_OK;
    }
    if (!ls_grow(&s->run, s->n, &s->cap, sizeof(ls_live_run *)) ||
        !ls_grow(&s->asked, s->n, &s->cap_asked, sizeof *s->asked))
        return ls_nomem(sizeof(ls_live_run *), "the list of runs");
    ls_live_run *r = ls_alloc(sizeof *r);
    if (!r) return ls_nomem(sizeof *r, "a run");
    const ls_status st = ls_live_run_init(r, dir, run_called(s, id, &at) ? dir : id); /* two folders of one name */
    if (st != LS_OK) {
        ls_free(r);
        return st;
    }
    s->asked[s->n] = 0;
    s->run[s->n++] = r;
    return LS_OK;
}

/* The runs in a folder. id: its name below the root, "" for the root itself. Folders that cannot be read are left out. */
static ls_status find(ls_live_set *s, const char *dir, const char *id, int depth)
{
    char **names = NULL;
    size_t n = 0;
    if (*id && is_run(dir)) return add_run(s, dir, id);
    if (depth == 0 || ls_fs_list(dir, &names, &n) != LS_OK) {
        ls_err_clear();
        return LS_OK;
    }
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        char below[PATH_MAX];
        const ls_path path = ls_path_of(dir, names[i]);
        if (names[i][0] == '.' || !ls_fs_is_dir(path.text)) continue;
        if ((size_t)snprintf(below, sizeof below, "%s%s%s", id, *id ? "/" : "", names[i]) < sizeof below)
            st = find(s, path.text, below, depth - 1);
    }
    ls_fs_list_free(names, n);
    return st;
}

/* The name of a folder that was given: its last part, also of "." and "runs/". */
static void name_of(const char *root, char name[PATH_MAX])
{
    char real[PATH_MAX];
    snprintf(name, PATH_MAX, "%s", realpath(root, real) ? real : root);
    size_t n = strlen(name);
    while (n > 1 && name[n - 1] == '/') name[--n] = 0;
    const char *base = ls_path_base(name);
    memmove(name, base, strlen(base) + 1);
}

static ls_status look_below(ls_live_set *s, const char *root)
{
    char name[PATH_MAX];
    const int before = s->n;
    name_of(root, name);
    if (is_run(root)) return add_run(s, root, name);
    LS_TRY(find(s, root, "", LS_LIVE_DEPTH));
    /* nothing yet: a run that is about to start, if it is the only place to look at */
    return s->n == before && s->n_root == 1 && !ls_fs_is_dir(root) ? add_run(s, root, name) : LS_OK;
}

ls_status ls_live_set_add(ls_live_set *s, const char *root)
{
    if (s->n_root == LS_LIVE_ROOTS) return ls_fail(LS_E_ARG, "more than %d folders of runs", LS_LIVE_ROOTS);
    s->root[s->n_root++] = root;
    s->looked = s->peeked = 0;
    return LS_OK;
}

ls_status ls_live_set_look(ls_live_set *s)
{
    const double now = ls_now();
    if (!s->looked || now - s->looked > 5) {
        for (int i = 0; i < s->n_root; i++) LS_TRY(look_below(s, s->root[i]));
        s->looked = now;
    }
    if (s->peeked && now - s->peeked < 1) return LS_OK;
    for (int i = 0; i < s->n; i++) LS_TRY(ls_live_run_peek(s->run[i]));
    s->peeked = now;
    return LS_OK;
}

ls_status ls_live_set_ask(ls_live_set *s, const char *id, ls_live_run **out)
{
    int at;
    bool more;
    *out = NULL;
    LS_TRY(ls_live_set_look(s));
    ls_live_run *r = run_called(s, id, &at);
    if (!r) return LS_OK;
    const double now = s->asked[at] = ls_now();
    do LS_TRY(ls_live_run_update(r, &more));
    while (more && ls_now() - now < PATIENCE);
    *out = r;
    return LS_OK;
}

static void forget_unused(ls_live_set *s)
{
    int kept = 0;
    for (int i = 0; i < s->n; i++) kept += s->run[i]->kept;
    for (int i = 0; i < s->n && kept > LS_LIVE_KEPT; i++) {
        ls_live_run *r = s->run[i];
        if (!r->kept || ls_now() - s->asked[i] < 60) continue;
        ls_curve_fini(&r->curve);
        r->kept = false;
        r->steps = (ls_live_file){0};
        r->peeked = -1;
        kept--;
    }
}

ls_status ls_live_set_read(ls_live_set *s, bool *more)
{
    *more = false;
    forget_unused(s);
    for (int i = 0; i < s->n; i++) {
        bool left;
        if (!s->run[i]->kept || ls_live_run_read(s->run[i]) > 0.999 || ls_now() - s->asked[i] > 10) continue;
        LS_TRY(ls_live_run_update(s->run[i], &left));
        *more = *more || left;
    }
    return LS_OK;
}

ls_live_run *ls_live_set_newest(const ls_live_set *s)
{
    ls_live_run *best = NULL;
    int64_t when = -1;
    for (int i = 0; i < s->n; i++) {
        ls_live_run *r = s->run[i];
        int64_t t = r->last.updated_ms > r->last.started_ms ? r->last.updated_ms : r->last.started_ms;
        if (!best || t > when) {
            best = r;
            when = t;
        }
    }
    return best;
}

void ls_live_set_fini(ls_live_set *s)
{
    for (int i = 0; i < s->n; i++) {
        ls_live_run_fini(s->run[i]);
        ls_free(s->run[i]);
    }
    ls_free(s->run);
    ls_free(s->asked);
    *s = (ls_live_set){.n = 0};
}
