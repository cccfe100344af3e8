#include "train/nccl_proof.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/nccl_log.h"
#include "core/str.h"
#include "train/evidence.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOGS         "nccl_rank_%h_%p.log"
#define TOOL_SECONDS 8.0

enum { MAX_LOG = 4096, MAX_LOG_BYTES = 64 << 20 };

static const char *const variable[] = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE"};
enum { DEBUG, SUBSYS, FILE_NAME, TOPO, N_VARIABLE };

struct ls_nccl_proof {
    char run[PATH_MAX], dir[PATH_MAX]; /* the run folder, and nccl/ in it, by their one name */
    char host[64];
    int rank, local_rank;
    double tool_seconds;
    bool ours[N_VARIABLE];     /* set by us */
    bool made_run, made, full; /* folders that were not there */
    bool in_use, summed;
    time_t began;
    ls_evidence *tools;
    ls_nccl_log log;
    ls_str notes; /* JSON strings, with commas */
};

static void note(ls_nccl_proof *p, const char *text)
{
    ls_jsonw w;
    if (p->notes.len) ls_str_add(&p->notes, ", ");
    ls_jsonw_init(&w, &p->notes, 0);
    ls_jsonw_str(&w, text);
}

/* ---- before NCCL ---- */

static void set(ls_nccl_proof *p, int which, const char *value)
{
    if (getenv(variable[which])) return;
    p->ours[which] = setenv(variable[which], value, 0) == 0;
}

/* % is NCCL's: twice in a path. */
static void log_pattern(const ls_nccl_proof *p, ls_str *out)
{
    for (const char *c = p->dir; *c; c++) {
        if (*c == '%') ls_str_addc(out, '%');
        ls_str_addc(out, *c);
    }
    ls_str_add(out, "/" LOGS);
}

static void set_environment(ls_nccl_proof *p)
{
    char topo[PATH_MAX + 32];
    ls_str pattern = {0};
    if (p->full) { /* whatever else happens: on all workers */
        snprintf(topo, sizeof topo, "%s/topo_rank%d.xml", p->dir, p->rank);
        if (getenv(variable[TOPO])) note(p, "NCCL_TOPO_DUMP_FILE was set: nccl_topo.xml is not written");
        set(p, TOPO, topo);
    }
    if (getenv(variable[DEBUG])) {
        note(p, getenv(variable[FILE_NAME]) ? "NCCL_DEBUG was set: the log is in NCCL_DEBUG_FILE"
                                            : "NCCL_DEBUG was set without NCCL_DEBUG_FILE: NCCL's log is not kept");
        return;
    }
    log_pattern(p, &pattern);
    if (!pattern.failed && ls_fs_is_dir(p->dir)) {
        set(p, FILE_NAME, pattern.data);
        set(p, SUBSYS, "INIT,GRAPH,ENV,NET");
        set(p, DEBUG, "INFO");
    }
    ls_str_fini(&pattern);
}

static bool is_log(const char *name)
{
    const size_t n = strlen(name);
    return n > 14 && !strncmp(name, "nccl_rank_", 10) && !strcmp(name + n - 4, ".log");
}

/* What an earlier run left in nccl/: rank 0, before anybody can have started NCCL. */
static void remove_earlier(const ls_nccl_proof *p)
{
    char **names = NULL, path[PATH_MAX + 300];
    size_t n = 0;
    if (ls_fs_list(p->dir, &names, &n) != LS_OK) {
        ls_err_clear();
        return;
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%.255s", p->dir, names[i]);
        if (is_log(names[i]) || !strcmp(names[i], "summary.json")) (void)unlink(path);
    }
    ls_fs_list_free(names, n);
}

/* false: there is no place for files. */
static bool make_folder(ls_nccl_proof *p, const char *run_dir)
{
    char path[PATH_MAX];
    p->made_run = !ls_fs_exists(run_dir);
    snprintf(path, sizeof path, "%s/nccl", run_dir);
    p->made = !ls_fs_exists(path);
    if (ls_fs_mkdirs(path) != LS_OK) ls_err_clear();
    if (realpath(path, p->dir) && realpath(run_dir, p->run)) return true;
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
    p->rank = o->rank;
    p->local_rank = o->local_rank;
    p->tool_seconds = o->tool_seconds > 0 ? o->tool_seconds : TOOL_SECONDS;
    p->full = !strcmp(o->mode, "full");
    p->began = time(NULL);
    gethostname(p->host, sizeof p->host - 1);
    p->host[strcspn(p->host, "./")] = '\0';
    if (!make_folder(p, o->run_dir))
        note(p, "the folder nccl in the run folder cannot be made: no logs, no files of tools");
    else if (!p->rank) remove_earlier(p);
    set_environment(p);
    *out = p;
}

/* ---- with NCCL ---- */

static void file_of(const ls_nccl_proof *p, const char *name, char *path, size_t room)
{
    if (!p->rank) snprintf(path, room, "%.900s/%s.txt", p->run, name);
    else snprintf(path, room, "%.900s/%s_%s.txt", p->dir, name, p->host);
}

static void start_tools(ls_nccl_proof *p)
{
    ls_evidence_row row[] = {
        {.word = {"nvidia-smi", "topo", "-m"}},
        {.word = {"nvidia-smi",
                  "--query-gpu=index,name,uuid,pci.bus_id,driver_version,memory.total,power.limit,clocks.max.sm",
                  "--format=csv"}},
        {.word = {"ibstat"}},
    };
    file_of(p, "topo", row[0].path, sizeof row[0].path);
    snprintf(row[1].path, sizeof row[1].path, "%.900s/gpus_%s.csv", p->dir, p->host);
    file_of(p, "ibstat", row[2].path, sizeof row[2].path);
    ls_evidence_begin(&p->tools, row, (int)(sizeof row / sizeof *row), p->tool_seconds);
}

/* The first communicator is the one of all workers; later ones write their dump to the same name again. */
static void keep_topology(ls_nccl_proof *p)
{
    char from[PATH_MAX + 32], to[PATH_MAX + 32];
    if (!p->ours[TOPO] || p->rank) return;
    snprintf(from, sizeof from, "%s/topo_rank0.xml", p->dir);
    snprintf(to, sizeof to, "%s/nccl_topo.xml", p->run);
    if (rename(from, to)) note(p, "NCCL did not write its topology: nccl_topo.xml is missing");
}

void ls_nccl_proof_joined(ls_nccl_proof *p, bool in_use)
{
    if (!p) return;
    p->in_use = in_use;
    if (in_use) {
        keep_topology(p);
        if (!p->local_rank && ls_fs_is_dir(p->dir)) start_tools(p);
        return;
    }
    for (int i = 0; i < N_VARIABLE; i++)
        if (p->ours[i]) unsetenv(variable[i]);
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
    if (!p->ours[FILE_NAME] && s.st_mtime + 2 < p->began) return; /* of another run */
    if (ls_fs_read(path, &text, &n) != LS_OK) {
        note(p, ls_err_words());
        ls_err_clear();
        return;
    }
    ls_nccl_log_add(&p->log, text, n);
    ls_free(text);
}

static void read_logs(ls_nccl_proof *p)
{
    const char *pattern = getenv(variable[FILE_NAME]), *base = pattern ? strrchr(pattern, '/') : NULL;
    char dir[PATH_MAX] = ".", path[PATH_MAX + 300], **names = NULL;
    size_t n = 0;
    if (!pattern) return;
    if (p->ours[FILE_NAME]) snprintf(dir, sizeof dir, "%s", p->dir);
    else if (base) snprintf(dir, sizeof dir, "%.*s", base == pattern ? 1 : (int)(base - pattern), pattern);
    if (ls_fs_list(dir, &names, &n) != LS_OK) {
        note(p, ls_err_words());
        ls_err_clear();
        return;
    }
    for (size_t i = 0; i < n && i < MAX_LOG; i++) {
        snprintf(path, sizeof path, "%s/%.255s", dir, names[i]);
        if (strlen(names[i]) < 256 && fits(names[i], base ? base + 1 : pattern)) read_log(p, path);
    }
    ls_fs_list_free(names, n);
}

/* A path below the run folder, as it is called there. */
static const char *inside(const ls_nccl_proof *p, const char *path)
{
    const size_t n = strlen(p->run);
    return !strncmp(path, p->run, n) && path[n] == '/' ? path + n + 1 : path;
}

static void write_tools(const ls_nccl_proof *p, ls_jsonw *w)
{
    int n = 0;
    const ls_evidence_row *row = ls_evidence_end(p->tools, &n);
    ls_jsonw_put_open(w, "tools", '[');
    for (int i = 0; i < n; i++) {
        char command[400] = "";
        for (int k = 0; k < LS_EVIDENCE_WORD && row[i].word[k]; k++) {
            const size_t at = strlen(command);
            snprintf(command + at, sizeof command - at, "%s%s", k ? " " : "", row[i].word[k]);
        }
        const bool ok = !strcmp(row[i].result, "ok");
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "command", command);
        ls_jsonw_put_str(w, "result", row[i].result);
        ls_jsonw_put_str(w, "file", ok ? inside(p, row[i].path) : NULL);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void write_notes(const ls_nccl_proof *p, ls_jsonw *w)
{
    json_t *list = NULL;
    ls_str text = {0};
    ls_str_addf(&text, "[%s]", p->notes.data ? p->notes.data : "");
    if (!text.failed && ls_json_parse(text.data, text.len, "notes", &list) == LS_OK) {
        ls_jsonw_key(w, "notes");
        ls_jsonw_value(w, list);
    } else ls_err_clear();
    json_decref(list);
    ls_str_fini(&text);
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
    write_notes(p, &w);
    ls_jsonw_close(&w);
    ls_str_addc(out, '\n');
}

void ls_nccl_proof_end(ls_nccl_proof *p)
{
    char path[PATH_MAX + 32];
    ls_str text = {0};
    if (!p || !p->in_use || p->rank) return;
    ls_nccl_log_init(&p->log);
    read_logs(p);
    if (!p->log.n_file) note(p, "no line of NCCL was found in a log: nothing is stated about its transports");
    summary_text(p, &text);
    snprintf(path, sizeof path, "%s/summary.json", p->dir);
    if (text.failed || ls_fs_write(path, text.data, text.len) != LS_OK) ls_err_clear();
    p->summed = true;
    ls_str_fini(&text);
}

void ls_nccl_proof_write(const ls_nccl_proof *p, ls_jsonw *w)
{
    if (!p || !p->summed) return;
    ls_jsonw_put_open(w, "nccl", '{');
    ls_nccl_log_write(&p->log, w);
    ls_jsonw_close(w);
}

void ls_nccl_proof_destroy(ls_nccl_proof **pp)
{
    ls_nccl_proof *p = *pp;
    char path[PATH_MAX + 32];
    if (!p) return;
    ls_evidence_destroy(&p->tools);
    snprintf(path, sizeof path, "%s/topo_rank%d.xml", p->dir, p->rank);
    if (p->ours[TOPO]) (void)unlink(path);
    if (p->made && !p->in_use) (void)rmdir(p->dir); /* empty ones: nothing was kept */
    if (p->made_run && !p->in_use) (void)rmdir(p->run);
    ls_str_fini(&p->notes);
    ls_free(p);
    *pp = NULL;
}
