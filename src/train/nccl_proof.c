#include "train/nccl_proof.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/str.h"
#include "train/evidence.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOOL_SECONDS 8.0
#define FIRST_TOPO   "topo_first.xml"

enum { MAX_LOG = 4096, MAX_LOG_BYTES = 64 << 20 };

static const char *const variable[] = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE"};
enum { DEBUG, SUBSYS, FILE_NAME, TOPO, N_VARIABLE };

struct ls_nccl_proof {
    char run[PATH_MAX], dir[PATH_MAX]; /* the run folder, and nccl/ in it, by their one name */
    char host[64];
    int rank, local_rank;
    double tool_seconds;
    bool ours[N_VARIABLE];     /* set by us */
    bool made_run, full;       /* the run folder did not exist */
    bool in_use, begun, ended; /* NCCL carries the run; its first step is next; its summary is written */
    char log_file[PATH_MAX];   /* where NCCL writes this worker's log */
    char **before;             /* rank 0: what lay in nccl/ before this start */
    size_t n_before;
    ls_nccl_writer *worker; /* rank 0: of this run, in the order of ls_nccl_writer_order */
    int n_worker;
    char version[32]; /* of the NCCL that this program uses; "": not known */
    ls_evidence tools;
    ls_nccl_log log;
    json_t *notes; /* of strings */
};

static void note(ls_nccl_proof *p, const char *text)
{
    (void)json_array_append_new(p->notes, json_string(text));
}

static void note_error(ls_nccl_proof *p)
{
    note(p, ls_err_words());
    ls_err_clear();
}

/* ---- before NCCL ---- */

static void set(ls_nccl_proof *p, int which, const char *value)
{
    if (getenv(variable[which])) return;
    p->ours[which] = setenv(variable[which], value, 0) == 0;
}

/* % is NCCL's: twice in a path. NCCL empties the file that it finds under its name, and process numbers come again: a name that an earlier
 * run has used gets a number. */
static ls_status log_pattern(ls_nccl_proof *p, ls_str *out)
{
    char more[16] = "";
    LS_TRY(ls_path_in(p->log_file, p->dir, "nccl_rank_%s_%d.log", p->host, (int)getpid()));
    for (int k = 2; ls_fs_exists(p->log_file); k++) {
        snprintf(more, sizeof more, "-%d", k);
        LS_TRY(ls_path_in(p->log_file, p->dir, "nccl_rank_%s_%d%s.log", p->host, (int)getpid(), more));
    }
    (void)ls_fs_unlink(p->log_file, false); /* a link that leads nowhere: NCCL would follow it */
    for (const char *c = p->dir; *c; c++) ls_str_add(out, *c == '%' ? "%%" : (char[]){*c, '\0'});
    ls_str_addf(out, "/nccl_rank_%%h_%%p%s.log", more);
    return out->failed ? ls_nomem(out->cap, "a path") : LS_OK;
}

static void set_environment(ls_nccl_proof *p)
{
    char topo[PATH_MAX + 32];
    ls_str pattern = {0};
    if (p->full) { /* whatever else happens: on all workers */
        snprintf(topo, sizeof topo, "%s/topo_rank%d.xml", p->dir, p->rank);
        if (getenv(variable[TOPO])) note(p, "NCCL_TOPO_DUMP_FILE was set: nccl_topo.xml is not written");
        if (!getenv(variable[TOPO])) (void)ls_fs_unlink(topo, false); /* a link: NCCL would follow it */
        set(p, TOPO, topo);
    }
    if (getenv(variable[DEBUG])) {
        note(p, getenv(variable[FILE_NAME]) ? "NCCL_DEBUG was set: the log is in NCCL_DEBUG_FILE"
                                            : "NCCL_DEBUG was set without NCCL_DEBUG_FILE: NCCL's log is not kept");
        return;
    }
    if (log_pattern(p, &pattern) != LS_OK) note_error(p);
    else if (ls_fs_is_dir(p->dir)) {
        set(p, FILE_NAME, pattern.data);
        set(p, SUBSYS, "INIT,GRAPH,ENV,NET");
        set(p, DEBUG, "INFO");
    }
    ls_str_fini(&pattern);
}

/* false: there is no place for files. */
static bool make_folder(ls_nccl_proof *p, const char *run_dir)
{
    char path[PATH_MAX];
    p->made_run = !ls_fs_exists(run_dir);
    snprintf(path, sizeof path, "%s/nccl", run_dir);
    const bool made = ls_fs_mkdirs(path) == LS_OK;
    if (!made) ls_err_clear();
    if (made && realpath(path, p->dir) && realpath(run_dir, p->run)) return true;
    snprintf(p->run, sizeof p->run, "%s", run_dir);
    snprintf(p->dir, sizeof p->dir, "%s", path);
    return false;
}

void ls_nccl_proof_begin(ls_nccl_proof **out, const ls_nccl_proof_opts *o)
{
    *out = NULL;
    if (!strcmp(o->mode, "off") || strlen(o->run_dir) + 8 > PATH_MAX) return;
    ls_nccl_proof *p = ls_alloc(sizeof *p);
    if (!p) return;
    p->notes = json_array();
    p->rank = o->rank;
    p->local_rank = o->local_rank;
    p->tool_seconds = o->tool_seconds > 0 ? o->tool_seconds : TOOL_SECONDS;
    p->full = !strcmp(o->mode, "full");
    ls_nccl_writer self;
    ls_nccl_writer_self(&self);
    memcpy(p->host, self.host, sizeof p->host);
    if (!make_folder(p, o->run_dir))
        note(p, "the folder nccl in the run folder cannot be made: no logs, no files of tools");
    else if (!p->rank && ls_fs_list(p->dir, &p->before, &p->n_before) != LS_OK) ls_err_clear();
    set_environment(p);
    *out = p;
}

/* ---- with NCCL ---- */

static void start_tools(ls_nccl_proof *p)
{
    ls_evidence *e = &p->tools;
    const char *dir = p->rank ? p->dir : p->run, *mark = p->rank ? "_" : "", *host = p->rank ? p->host : "";
    e->row[0] = (ls_evidence_row){.word = {"nvidia-smi", "topo", "-m"}};
    e->row[1] = (ls_evidence_row){
        .word = {"nvidia-smi",
                 "--query-gpu=index,name,uuid,pci.bus_id,driver_version,memory.total,power.limit,clocks.max.sm",
                 "--format=csv"}};
    e->row[2] = (ls_evidence_row){.word = {"ibstat"}};
    e->n = 3;
    snprintf(e->row[0].path, sizeof e->row[0].path, "%.900s/topo%s%s.txt", dir, mark, host);
    snprintf(e->row[1].path, sizeof e->row[1].path, "%.900s/gpus_%s.csv", p->dir, p->host);
    snprintf(e->row[2].path, sizeof e->row[2].path, "%.900s/ibstat%s%s.txt", dir, mark, host);
    ls_evidence_begin(e, p->tool_seconds);
}

/* The first communicator is the one of all workers; later ones write their dump to the same name again. It gets its own name with the
 * first step. */
static void rename_topology(ls_nccl_proof *p, bool to_run)
{
    char dump[PATH_MAX + 32], first[PATH_MAX + 32], kept[PATH_MAX + 32];
    if (!p->ours[TOPO] || p->rank) return;
    snprintf(dump, sizeof dump, "%s/topo_rank0.xml", p->dir);
    snprintf(first, sizeof first, "%s/" FIRST_TOPO, p->dir);
    snprintf(kept, sizeof kept, "%s/nccl_topo.xml", p->run);
    if (!to_run) (void)ls_fs_unlink(first, false); /* of a start that was killed */
    if (ls_fs_move(to_run ? first : dump, to_run ? kept : first, 0) && to_run)
        note(p, "NCCL did not write its topology: nccl_topo.xml is missing");
}

/* Without memory the summary has no lines of logs. */
static void keep_workers(ls_nccl_proof *p, const ls_nccl_writer *worker, int n)
{
    p->worker = ls_alloc((size_t)n * sizeof *worker);
    if (!p->worker) return;
    memcpy(p->worker, worker, (size_t)n * sizeof *worker);
    qsort(p->worker, (size_t)n, sizeof *worker, ls_nccl_writer_order);
    p->n_worker = n;
}

void ls_nccl_proof_joined(ls_nccl_proof *p, const ls_nccl_writer *worker, int n, const char *version)
{
    if (!p) return;
    p->in_use = n > 0;
    if (p->in_use) {
        rename_topology(p, false);
        if (!p->rank) keep_workers(p, worker, n);
        snprintf(p->version, sizeof p->version, "%s", version ? version : "");
        return;
    }
    for (int i = 0; i < N_VARIABLE; i++)
        if (p->ours[i]) unsetenv(variable[i]);
}

/* ---- the run begins ---- */

/* Dumps that NCCL is writing now, not files of an earlier run. */
static bool is_dump(const char *name)
{
    return !strcmp(name, FIRST_TOPO) || (!strncmp(name, "topo_rank", 9) && strstr(name, ".xml"));
}

static const char *const beside[] = {"topo.txt", "ibstat.txt", "nccl_topo.xml"}; /* in the run folder */
enum { N_BESIDE = sizeof beside / sizeof *beside };

typedef struct aside {
    const char *run, *nccl;
    char *const *name; /* in nccl */
    size_t n;
    bool resume;
} aside;

/* Names in nccl/ that move: all, or, for a resumed run, those that the new session writes again: neither logs nor folders. */
static bool moves(const aside *a, const char *name)
{
    char path[PATH_MAX];
    const size_t n = strlen(name);
    if (is_dump(name)) return false;
    if (!a->resume) return true;
    if (n > 4 && !strcmp(name + n - 4, ".log")) return false;
    return ls_path_in(path, a->nccl, "%s", name) == LS_OK && !ls_fs_is_dir(path);
}

static ls_status move(const char *from_dir, const char *to_dir, const char *name)
{
    char from[PATH_MAX], to[PATH_MAX];
    LS_TRY(ls_path_in(from, from_dir, "%s", name));
    LS_TRY(ls_path_in(to, to_dir, "%s", name));
    return ls_fs_exists(from) ? ls_fs_rename(from, to) : LS_OK;
}

/* To nccl/session-<k> for what an earlier session of a resumed run has left, else to earlier-<k>. */
static ls_status move_all(const aside *a, char where[PATH_MAX])
{
    char session[PATH_MAX], nccl[PATH_MAX];
    const char *top = a->resume ? session : where;
    if (a->resume) LS_TRY(ls_fs_mkdir_next(a->nccl, "session-", session));
    else if (!*where) LS_TRY(ls_fs_mkdir_next(a->run, "earlier-", where));
    LS_TRY(ls_path_in(nccl, top, "%s", a->resume ? "" : "nccl"));
    LS_TRY(ls_fs_mkdirs(nccl));
    for (size_t i = 0; i < a->n; i++)
        if (moves(a, a->name[i])) LS_TRY(move(a->nccl, nccl, a->name[i]));
    for (size_t i = 0; i < N_BESIDE; i++) LS_TRY(move(a->run, top, beside[i]));
    return LS_OK;
}

static bool anything_moves(const aside *a)
{
    char path[PATH_MAX];
    bool old = false, any = false;
    for (size_t i = 0; i < a->n; i++) {
        old = old || !is_dump(a->name[i]);
        any = any || moves(a, a->name[i]);
    }
    for (size_t i = 0; i < N_BESIDE && old; i++)
        any = any || (ls_path_in(path, a->run, "%s", beside[i]) == LS_OK && ls_fs_exists(path));
    return any;
}

ls_status ls_nccl_proof_set_aside(const ls_nccl_proof *p, const char *run_dir, bool resume, char where[PATH_MAX])
{
    char nccl[PATH_MAX], **now = NULL;
    size_t n = 0;
    LS_TRY(ls_path_in(nccl, run_dir, "nccl"));
    if (!p && ls_fs_is_dir(nccl)) LS_TRY(ls_fs_list(nccl, &now, &n));
    const aside a = {run_dir, nccl, p ? p->before : now, p ? p->n_before : n, resume};
    const ls_status st = anything_moves(&a) ? move_all(&a, where) : LS_OK;
    if (!resume && !p) (void)ls_fs_unlink(nccl, true); /* if it exists and is empty now */
    ls_fs_list_free(now, n);
    return st;
}

void ls_nccl_proof_started(ls_nccl_proof *p)
{
    if (!p) return;
    p->begun = true;
    if (!p->in_use) return;
    rename_topology(p, true);
    if (!p->local_rank && ls_fs_is_dir(p->dir)) start_tools(p);
}

/* ---- the summary ---- */

/* A name by NCCL's pattern: %h and %p stand for anything, %% for itself. */
static bool fits(const char *name, const char *pattern)
{
    if (!*pattern) return !*name;
    if (pattern[0] == '%' && (pattern[1] == 'h' || pattern[1] == 'p')) {
        for (const char *p = name;; p++) {
            if (fits(p, pattern + 2)) return true;
            if (!*p) return false;
        }
    }
    if (pattern[0] == '%' && pattern[1] == '%') pattern++;
    return *name == *pattern && fits(name + 1, pattern + 1);
}

static void read_log(ls_nccl_proof *p, const char *path)
{
    struct stat s;
    char *text = NULL;
    size_t n = 0;
    if (stat(path, &s) || !S_ISREG(s.st_mode) || s.st_size > MAX_LOG_BYTES) return;
    if (ls_fs_read(path, &text, &n) != LS_OK) {
        note_error(p);
        return;
    }
    ls_nccl_log_add(&p->log, text, n);
    ls_free(text);
}

/* Of an earlier session of this run. */
static bool was_before(const ls_nccl_proof *p, const char *name)
{
    for (size_t i = 0; i < p->n_before; i++)
        if (!strcmp(p->before[i], name)) return true;
    return false;
}

/* Other workers' names may have a number that ours has not, and the other way round. */
static void read_logs(ls_nccl_proof *p)
{
    const char *pattern = getenv(variable[FILE_NAME]), *base = pattern ? strrchr(pattern, '/') : NULL;
    const char *form = p->ours[FILE_NAME] ? "nccl_rank_%h_%p.log" : base ? base + 1 : pattern;
    char dir[PATH_MAX] = ".", path[PATH_MAX + 300], **names = NULL;
    size_t n = 0;
    if (!pattern) return;
    if (p->ours[FILE_NAME]) snprintf(dir, sizeof dir, "%s", p->dir);
    else if (base) snprintf(dir, sizeof dir, "%.*s", base == pattern ? 1 : (int)(base - pattern), pattern);
    if (ls_fs_list(dir, &names, &n) != LS_OK) {
        note_error(p);
        return;
    }
    for (size_t i = 0; i < n && i < MAX_LOG; i++) {
        snprintf(path, sizeof path, "%s/%.255s", dir, names[i]);
        if (p->ours[FILE_NAME] && was_before(p, names[i])) continue;
        if (strlen(names[i]) < 256 && fits(names[i], form)) read_log(p, path);
    }
    ls_fs_list_free(names, n);
}

/* A path below the run folder, as it is called there. */
static const char *inside(const ls_nccl_proof *p, const char *path)
{
    const size_t n = strlen(p->run);
    return !strncmp(path, p->run, n) && path[n] == '/' ? path + n + 1 : path;
}

static void write_tools(ls_nccl_proof *p, ls_jsonw *w)
{
    const ls_evidence_row *row = p->tools.row;
    ls_evidence_end(&p->tools);
    ls_jsonw_put_open(w, "tools", '[');
    for (int i = 0; i < p->tools.n; i++) {
        char command[400] = "";
        for (int k = 0; k < LS_EVIDENCE_WORD && row[i].word[k]; k++) {
            const size_t at = strlen(command);
            snprintf(command + at, sizeof command - at, "%s%s", k ? " " : "", row[i].word[k]);
        }
        const bool ok = !strcmp(row[i].result, "ok");
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("command", command), LS_KV("result", row[i].result),
                         LS_KV("file", ok ? inside(p, row[i].path) : NULL));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void summary_text(ls_nccl_proof *p, ls_str *out)
{
    char now[24];
    ls_jsonw w;
    ls_utc_stamp(now);
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "generated_at_utc", now);
    ls_nccl_log_write(&p->log, &w);
    write_tools(p, &w);
    ls_jsonw_key(&w, "notes");
    ls_jsonw_value(&w, p->notes);
    ls_jsonw_close(&w);
    ls_str_addc(out, '\n');
}

/* Where the logs contradict this run. */
static void note_differences(ls_nccl_proof *p)
{
    const ls_nccl_log *l = &p->log;
    char text[160];
    if (!l->n_file) note(p, "no line of NCCL from this run was found in a log: nothing is stated about its transports");
    if (l->n_foreign) {
        snprintf(text, sizeof text, "%d log%s of other processes %s not counted", l->n_foreign,
                 l->n_foreign == 1 ? "" : "s", l->n_foreign == 1 ? "is" : "are");
        note(p, text);
    }
    if (l->n_rank >= 0 && l->n_rank != p->n_worker) {
        snprintf(text, sizeof text, "the logs state a communicator of %d ranks, but this run has %d", l->n_rank,
                 p->n_worker);
        note(p, text);
    }
    if (l->version[0] && p->version[0] && strcmp(l->version, p->version) != 0) {
        snprintf(text, sizeof text, "the logs state NCCL %s, but this program uses %s", l->version, p->version);
        note(p, text);
    }
}

static void sum_up(ls_nccl_proof *p)
{
    char path[PATH_MAX + 32];
    ls_str text = {0};
    ls_nccl_log_init(&p->log);
    p->log.only = p->worker;
    p->log.n_only = p->n_worker;
    if (p->worker) read_logs(p);
    p->log.only = NULL;
    note_differences(p);
    summary_text(p, &text);
    snprintf(path, sizeof path, "%s/summary.json", p->dir);
    if (text.failed || ls_fs_write(path, text.data, text.len) != LS_OK) ls_err_clear();
    p->ended = true;
    ls_str_fini(&text);
}

void ls_nccl_proof_end(ls_nccl_proof *p)
{
    if (p && p->in_use && p->begun && !p->rank) sum_up(p);
}

void ls_nccl_proof_cut(ls_nccl_proof *p)
{
    if (!p || !p->in_use || !p->begun || p->ended || p->rank) return;
    ls_err_kept error; /* of what ends the run */
    ls_err_keep(&error);
    ls_evidence_stop(&p->tools);
    note(p, "the run ended before it was complete");
    sum_up(p);
    ls_err_restore(&error);
}

void ls_nccl_proof_write(const ls_nccl_proof *p, ls_jsonw *w)
{
    if (!p || !p->ended) return;
    ls_jsonw_put_open(w, "nccl", '{');
    ls_nccl_log_write(&p->log, w);
    ls_jsonw_close(w);
}

void ls_nccl_proof_destroy(ls_nccl_proof **pp)
{
    ls_nccl_proof *p = *pp;
    char path[PATH_MAX + 32];
    if (!p) return;
    ls_evidence_stop(&p->tools);
    ls_evidence_end(&p->tools);
    snprintf(path, sizeof path, "%s/topo_rank%d.xml", p->dir, p->rank);
    if (p->ours[TOPO]) (void)ls_fs_unlink(path, false);
    snprintf(path, sizeof path, "%s/" FIRST_TOPO, p->dir);
    if (p->ours[TOPO] && !p->rank) (void)ls_fs_unlink(path, false);
    if (p->in_use && !p->begun && p->ours[FILE_NAME])
        (void)ls_fs_unlink(p->log_file, false); /* NCCL is not what stopped it */
    if (!p->in_use || !p->begun) {              /* empty ones: nothing was kept */
        (void)ls_fs_unlink(p->dir, true);
        if (p->made_run) (void)rmdir(p->run);
    }
    ls_fs_list_free(p->before, p->n_before);
    ls_free(p->worker);
    json_decref(p->notes);
    ls_free(p);
    *pp = NULL;
}
