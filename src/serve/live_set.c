#include "serve/live_set.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/minmax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATIENCE 0.05 /* seconds of reading before a first answer */

/* ---- the folders below the roots ---- */

typedef struct found { /* a run folder */
    char *dir, *id;
    struct stat is; /* zeros: not there yet */
    int64_t written;
    int order;
    bool known; /* to the set */
} found;

typedef struct search {
    found *at;
    int n, cap;
} search;

typedef struct trail { /* the folders above one */
    const struct trail *above;
    struct stat is;
} trail;

static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* When the files of a run were last written, nanoseconds; -1: dir is no run. */
static int64_t written_in(const char *dir)
{
    static const char *const name[] = {"metrics.jsonl", "events.jsonl"};
    int64_t last = -1;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        struct stat s;
        if (stat(ls_path_of(dir, name[i]).text, &s) || !S_ISREG(s.st_mode)) continue;
        last = LS_MAX(last, (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec);
    }
    return last;
}

static void drop(search *f, int from)
{
    for (int i = from; i < f->n; i++) {
        ls_free(f->at[i].dir);
        ls_free(f->at[i].id);
    }
    f->n = LS_MIN(f->n, from);
}

static ls_status note(search *f, const char *dir, const char *id, int64_t written, const struct stat *is)
{
    if (!ls_grow(&f->at, f->n, &f->cap, sizeof *f->at)) return ls_nomem(sizeof *f->at, "the folders of runs");
    f->at[f->n] = (found){ls_strdup(dir), ls_strdup(id), *is, written, f->n, false};
    const found *last = &f->at[f->n++];
    return last->dir && last->id ? LS_OK : ls_nomem(strlen(dir), "the folder of a run");
}

/* The runs in a folder. id: its name below the root, "" for the root itself. Folders that cannot be read are left out, and so is a link to a
 * folder above it. */
static ls_status find(search *f, const char *dir, const char *id, int depth, const trail *above)
{
    char **names = NULL;
    size_t n = 0;
    trail here = {.above = above};
    if (stat(dir, &here.is) || !S_ISDIR(here.is.st_mode)) return LS_OK;
    for (const trail *t = above; t; t = t->above)
        if (same(&t->is, &here.is)) return LS_OK;
    const int64_t written = *id ? written_in(dir) : -1;
    if (written >= 0) return note(f, dir, id, written, &here.is);
    ls_status st = depth ? ls_fs_list(dir, &names, &n) : LS_OK;
    if (st != LS_OK && st != LS_E_NOMEM) {
        ls_err_clear();
        return LS_OK;
    }
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        char below[PATH_MAX];
        if (names[i][0] == '.') continue;
        if ((size_t)snprintf(below, sizeof below, "%s%s%s", id, *id ? "/" : "", names[i]) < sizeof below)
            st = find(f, ls_path_of(dir, names[i]).text, below, depth - 1, &here);
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

static ls_status look_below(search *f, const char *root)
{
    char name[PATH_MAX];
    struct stat is;
    const int64_t written = written_in(root);
    if (written < 0 || stat(root, &is)) return find(f, root, "", LS_LIVE_DEPTH, NULL);
    name_of(root, name);
    return note(f, root, name, written, &is);
}

/* ---- which of them are shown ---- */

static int by_folder(const void *x, const void *y)
{
    const found *a = x, *b = y;
    if (a->is.st_dev != b->is.st_dev) return a->is.st_dev < b->is.st_dev ? -1 : 1;
    if (a->is.st_ino != b->is.st_ino) return a->is.st_ino < b->is.st_ino ? -1 : 1;
    return a->order - b->order;
}

static int by_age(const void *x, const void *y)
{
    const found *a = x, *b = y;
    return a->written != b->written ? (a->written < b->written) - (a->written > b->written) : a->order - b->order;
}

static int by_order(const void *x, const void *y)
{
    return ((const found *)x)->order - ((const found *)y)->order;
}

/* One of each folder, at most LS_LIVE_RUNS: those that were written last. Returns how many are left out. */
static int choose(search *f)
{
    if (!f->n) return 0;
    int n = 1;
    qsort(f->at, (size_t)f->n, sizeof *f->at, by_folder);
    for (int i = 1; i < f->n; i++) { /* the others go to the end */
        if (same(&f->at[i].is, &f->at[n - 1].is)) continue;
        const found kept = f->at[i];
        f->at[i] = f->at[n];
        f->at[n++] = kept;
    }
    drop(f, n);
    const int left_out = LS_MAX(0, n - LS_LIVE_RUNS);
    if (left_out) {
        qsort(f->at, (size_t)n, sizeof *f->at, by_age);
        drop(f, LS_LIVE_RUNS);
    }
    qsort(f->at, (size_t)f->n, sizeof *f->at, by_order);
    return left_out;
}

/* hint: where the search begins; the lists have nearly the same order. */
static found *found_in(const search *f, const char *dir, int *hint)
{
    for (int k = 0; k < f->n; k++) {
        const int i = (*hint + k) % f->n;
        if (strcmp(f->at[i].dir, dir) != 0) continue;
        *hint = i + 1;
        return &f->at[i];
    }
    return NULL;
}

static ls_live_run *run_called(const ls_live_set *s, const char *id)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->run[i]->id, id)) return s->run[i];
    return NULL;
}

static void free_run(ls_live_run *r)
{
    ls_live_run_fini(r);
    ls_free(r);
}

static ls_status add_run(ls_live_set *s, const char *dir, const char *id)
{
    if (!ls_grow(&s->run, s->n, &s->cap, sizeof(ls_live_run *)))
        return ls_nomem(sizeof(ls_live_run *), "the list of runs");
    ls_live_run *r = ls_alloc(sizeof *r);
    if (!r) return ls_nomem(sizeof *r, "a run");
    ls_status st = ls_live_run_init(r, dir, id);
    if (st == LS_OK && run_called(s, r->id)) { /* two folders of one name */
        ls_live_run_fini(r);
        st = ls_live_run_init(r, dir, dir);
    }
    if (st == LS_OK) s->run[s->n++] = r;
    else free_run(r);
    return st;
}

/* Forgets the runs whose folders were not found, adds those that are new. */
static ls_status take(ls_live_set *s, search *f)
{
    int n = 0, hint = 0;
    for (int i = 0; i < s->n; i++) {
        found *is = found_in(f, s->run[i]->dir, &hint);
        if (is) is->known = true;
        if (is) s->run[n++] = s->run[i];
        else free_run(s->run[i]);
    }
    s->n = n;
    for (int i = 0; i < f->n; i++)
        if (!f->at[i].known) LS_TRY(add_run(s, f->at[i].dir, f->at[i].id));
    return LS_OK;
}

/* The only place to look at has no run yet: it may be one that is about to start. */
static bool is_expected(const ls_live_set *s)
{
    return s->n_root == 1 && (!ls_fs_is_dir(s->root[0]) || (s->n == 1 && !strcmp(s->run[0]->dir, s->root[0])));
}

static ls_status look_for_runs(ls_live_set *s)
{
    search f = {0};
    ls_status st = LS_OK;
    for (int i = 0; i < s->n_root && st == LS_OK; i++) st = look_below(&f, s->root[i]);
    if (st == LS_OK && !f.n && is_expected(s)) {
        char name[PATH_MAX];
        name_of(s->root[0], name);
        st = note(&f, s->root[0], name, 0, &(struct stat){0});
    }
    if (st == LS_OK) {
        s->left_out = choose(&f);
        st = take(s, &f);
    }
    drop(&f, 0);
    ls_free(f.at);
    return st;
}

/* ---- the set ---- */

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
    if (s->looked == 0 || now - s->looked > 5) {
        LS_TRY(look_for_runs(s));
        s->looked = now;
    }
    if (s->peeked > 0 && now - s->peeked < 1) return LS_OK;
    for (int i = 0; i < s->n; i++) LS_TRY(ls_live_run_peek(s->run[i]));
    s->peeked = now;
    return LS_OK;
}

ls_status ls_live_set_ask(ls_live_set *s, const char *id, ls_live_run **out)
{
    bool more;
    *out = NULL;
    LS_TRY(ls_live_set_look(s));
    ls_live_run *r = run_called(s, id);
    if (!r) return LS_OK;
    const double now = r->asked = ls_now();
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
        if (!r->kept || ls_now() - r->asked < 60) continue;
        ls_curve_fini(&r->curve);
        r->kept = false;
        r->steps = (ls_follow){0};
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
        if (!s->run[i]->kept || ls_live_run_read(s->run[i]) > 0.999 || ls_now() - s->run[i]->asked > 10) continue;
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
    for (int i = 0; i < s->n; i++) free_run(s->run[i]);
    ls_free(s->run);
    *s = (ls_live_set){.n = 0};
}
