/* What is kept of a run over NCCL: the environment before NCCL is loaded, logs and files of tools in the run folder, the summary; what the
 * user has set stays; a tool that is missing, fails, or never ends is a line of the summary. The logs are those of tests/data/nccl_logs, put where
 * NCCL would write them.
 * ls-test: serial */
#include "cmocka_all.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "train/evidence.h"
#include "train/nccl_proof.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[256], run_dir[300], bin[300];

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(ls_fs_write(path, text, strlen(text)), LS_OK);
}

static void put_tool(const char *name, const char *script)
{
    char path[800];
    put_file(bin, name, script);
    snprintf(path, sizeof path, "%s/%s", bin, name);
    assert_int_equal(chmod(path, 0755), 0);
}

static bool is_there(const char *dir, const char *name)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return ls_fs_exists(path);
}

static char *text_of(const char *dir, const char *name)
{
    char path[800], *text = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(ls_fs_read(path, &text, &n), LS_OK);
    return text;
}

static json_t *load(const char *dir, const char *name)
{
    char path[800];
    json_t *j = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(ls_json_load(path, &j), LS_OK);
    return j;
}

static int before(void **state)
{
    static const char *const name[] = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE"};
    const char *tmp = getenv("TMPDIR");
    char path[700];
    (void)state;
    for (size_t i = 0; i < N_OF(name); i++) unsetenv(name[i]);
    snprintf(scratch, sizeof scratch, "%.200s/ls_proof_XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(scratch)) return -1;
    snprintf(run_dir, sizeof run_dir, "%s/a%%run", scratch); /* % is NCCL's */
    snprintf(bin, sizeof bin, "%s/bin", scratch);
    snprintf(path, sizeof path, "%s:/bin:/usr/bin", bin);
    setenv("PATH", path, 1);
    put_tool("nvidia-smi", "#!/bin/sh\necho \"tool: $*\"\n");
    put_tool("ibstat", "#!/bin/sh\necho 'State: Active'; echo 'Link layer: InfiniBand'\n");
    return 0;
}

static int after(void **state)
{
    (void)state;
    return ls_fs_remove_tree(scratch) == LS_OK ? 0 : -1;
}

/* Where NCCL writes: its pattern with host and process. */
static void log_path(const char *host, int pid, char *path, size_t room)
{
    const char *pattern = getenv("NCCL_DEBUG_FILE");
    assert_non_null(pattern);
    size_t n = 0;
    for (const char *p = pattern; *p; p++) {
        if (*p != '%') n += (size_t)snprintf(path + n, room - n, "%c", *p);
        else if (*++p == 'h') n += (size_t)snprintf(path + n, room - n, "%s", host);
        else if (*p == 'p') n += (size_t)snprintf(path + n, room - n, "%d", pid);
        else n += (size_t)snprintf(path + n, room - n, "%c", *p);
    }
}

/* As if NCCL had run with this environment. */
static void nccl_logs(const char *folder)
{
    char dir[512], to[900], **names = NULL;
    size_t n = 0;
    snprintf(dir, sizeof dir, "%s/tests/data/nccl_logs/%s", LS_SOURCE_DIR, folder);
    assert_int_equal(ls_fs_list(dir, &names, &n), LS_OK);
    for (size_t i = 0; i < n; i++) {
        char *text = text_of(dir, names[i]);
        log_path("oak", (int)i + 1, to, sizeof to);
        FILE *f = fopen(to, "w"); /* which does not make folders either */
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
        ls_free(text);
    }
    ls_fs_list_free(names, n);
}

/* As a run does before its first step. */
static void start(ls_nccl_proof *p, bool resume)
{
    char where[PATH_MAX] = "";
    assert_int_equal(ls_nccl_proof_set_aside(p, run_dir, resume, where), LS_OK);
    ls_nccl_proof_started(p);
}

static const char *result_of(const json_t *summary, const char *command)
{
    const json_t *tools = json_object_get(summary, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i);
        if (strstr(json_string_value(json_object_get(t, "command")), command))
            return json_string_value(json_object_get(t, "result"));
    }
    return "no such command";
}

static void first_run(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p = NULL, *other = NULL;
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    put_file(nccl, "nccl_rank_old_1.log", "yew:1:1 [0] NCCL INFO NCCL version 2.1.0+cuda9.0\n");
    put_file(nccl, "summary.json", "{}");
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    assert_non_null(p);
    assert_true(is_there(nccl, "nccl_rank_old_1.log")); /* an earlier run's, until this one has begun */
    assert_true(is_there(nccl, "summary.json"));
    assert_string_equal(getenv("NCCL_DEBUG"), "INFO");
    assert_string_equal(getenv("NCCL_DEBUG_SUBSYS"), "INIT,GRAPH,ENV,NET");
    assert_non_null(strstr(getenv("NCCL_DEBUG_FILE"), "/a%%run/nccl/nccl_rank_%h_%p.log"));
    assert_null(getenv("NCCL_TOPO_DUMP_FILE"));
    nccl_logs("ib");
    ls_nccl_proof_begin(&other, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log", .rank = 1, .local_rank = 1});
    ls_nccl_proof_joined(p, true);
    ls_nccl_proof_joined(other, true);
    start(p, false);
    ls_nccl_proof_started(other);
    assert_true(is_there(nccl, "nccl_rank_oak_1.log"));
    assert_false(is_there(nccl, "nccl_rank_old_1.log"));
    assert_true(is_there(run_dir, "earlier-1/nccl/nccl_rank_old_1.log"));
    assert_true(is_there(run_dir, "earlier-1/nccl/summary.json"));
    ls_nccl_proof_end(other);
    assert_false(is_there(nccl, "summary.json"));
    ls_nccl_proof_end(p);

    json_t *s = load(nccl, "summary.json");
    assert_string_equal(json_string_value(json_object_get(s, "version")), "2.30.7");
    assert_int_equal(json_integer_value(json_object_get(s, "n_ranks")), 4);
    assert_int_equal(json_integer_value(json_object_get(s, "logs")), 4);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(s, "transports"), "NET/IB/GDRDMA")), 4);
    assert_true(json_is_true(json_object_get(s, "nvlink")));
    assert_string_equal(result_of(s, "topo -m"), "ok");
    assert_string_equal(result_of(s, "--query-gpu"), "ok");
    assert_string_equal(result_of(s, "ibstat"), "ok");
    assert_int_equal(json_array_size(json_object_get(s, "notes")), 0);
    json_decref(s);
    char *topo = text_of(run_dir, "topo.txt"), *ib = text_of(run_dir, "ibstat.txt");
    assert_string_equal(topo, "tool: topo -m\n");
    assert_non_null(strstr(ib, "State: Active"));
    ls_free(topo);
    ls_free(ib);

    ls_str text = {0};
    ls_jsonw w;
    json_t *j = NULL;
    ls_jsonw_init(&w, &text, 0);
    ls_jsonw_open(&w, '{');
    ls_nccl_proof_write(other, &w); /* nothing */
    ls_nccl_proof_write(p, &w);
    ls_jsonw_close(&w);
    assert_int_equal(ls_json_parse(text.data, text.len, "nccl", &j), LS_OK);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "nccl"), "rings")), 2);
    json_decref(j);
    ls_str_fini(&text);
    ls_nccl_proof_destroy(&p);
    ls_nccl_proof_destroy(&other);
    assert_true(is_there(nccl, "nccl_rank_oak_1.log"));
}

static void not_in_use(void **state)
{
    (void)state;
    ls_nccl_proof *p = NULL;
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "off"});
    assert_null(p);
    ls_nccl_proof_joined(p, true);
    start(p, false);
    ls_nccl_proof_end(p);
    ls_nccl_proof_destroy(&p);
    assert_null(getenv("NCCL_DEBUG"));
    setenv("NCCL_DEBUG_SUBSYS", "COLL", 1);
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "full"});
    assert_non_null(getenv("NCCL_DEBUG"));
    assert_string_equal(getenv("NCCL_DEBUG_SUBSYS"), "COLL");
    ls_nccl_proof_joined(p, false); /* workers talk through the host */
    assert_null(getenv("NCCL_DEBUG"));
    assert_null(getenv("NCCL_DEBUG_FILE"));
    assert_null(getenv("NCCL_TOPO_DUMP_FILE"));
    assert_string_equal(getenv("NCCL_DEBUG_SUBSYS"), "COLL"); /* the user's */
    ls_nccl_proof_end(p);
    ls_nccl_proof_destroy(&p);
    assert_false(ls_fs_exists(run_dir)); /* nothing is left */
}

static void what_the_user_set(void **state)
{
    (void)state;
    char path[700], nccl[400];
    ls_nccl_proof *p = NULL;
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    snprintf(path, sizeof path, "%s/mine_%%h_%%p.txt", scratch);
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_DEBUG_FILE", path, 1);
    setenv("NCCL_TOPO_DUMP_FILE", "/nowhere/topo.xml", 1);
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "full"});
    assert_string_equal(getenv("NCCL_DEBUG_FILE"), path);
    assert_null(getenv("NCCL_DEBUG_SUBSYS"));
    assert_string_equal(getenv("NCCL_TOPO_DUMP_FILE"), "/nowhere/topo.xml");
    put_file(scratch, "yours_x_1.txt", "yew:1:1 [0] NCCL INFO NCCL version 2.1.0+cuda9.0\n");
    nccl_logs("socket");
    ls_nccl_proof_joined(p, true);
    start(p, false);
    ls_nccl_proof_end(p);
    json_t *s = load(nccl, "summary.json");
    assert_string_equal(json_string_value(json_object_get(s, "version")), "2.21.5");
    assert_int_equal(json_integer_value(json_object_get(s, "logs")), 3);
    assert_int_equal(json_array_size(json_object_get(s, "notes")), 2);
    json_decref(s);
    ls_nccl_proof_destroy(&p);

    unsetenv("NCCL_DEBUG_FILE"); /* on stdout: nothing to read */
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    assert_null(getenv("NCCL_DEBUG_FILE"));
    ls_nccl_proof_joined(p, true);
    start(p, false);
    ls_nccl_proof_end(p);
    s = load(nccl, "summary.json");
    assert_true(json_is_null(json_object_get(s, "version")));
    assert_true(json_is_null(json_object_get(s, "transports")));
    assert_true(json_is_null(json_object_get(s, "nvlink")));
    assert_non_null(
        strstr(json_string_value(json_array_get(json_object_get(s, "notes"), 0)), "without NCCL_DEBUG_FILE"));
    json_decref(s);
    ls_nccl_proof_destroy(&p);
}

static void topology(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p[2] = {0};
    char *file[2];
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    for (int r = 0; r < 2; r++) {
        unsetenv("NCCL_TOPO_DUMP_FILE"); /* as in a process of its own */
        ls_nccl_proof_begin(&p[r],
                            &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "full", .rank = r, .local_rank = r});
        assert_non_null(getenv("NCCL_TOPO_DUMP_FILE")); /* on every worker, or NCCL hangs */
        file[r] = ls_strdup(getenv("NCCL_TOPO_DUMP_FILE"));
    }
    assert_string_not_equal(file[0], file[1]);
    put_file("/", file[0] + 1, "<system version=\"2\"/>");
    ls_nccl_proof_joined(p[0], true);
    ls_nccl_proof_joined(p[1], true);
    put_file("/", file[0] + 1, "<system of=\"a pair\"/>"); /* a later communicator's */
    put_file("/", file[1] + 1, "<system of=\"a pair\"/>");
    assert_false(is_there(run_dir, "nccl_topo.xml"));
    start(p[0], false);
    ls_nccl_proof_started(p[1]);
    char *text = text_of(run_dir, "nccl_topo.xml");
    assert_non_null(strstr(text, "<system"));
    assert_null(strstr(text, "pair"));
    ls_free(text);
    put_file("/", file[0] + 1, "<system of=\"a pair\"/>"); /* as in a step */
    ls_nccl_proof_end(p[0]);
    for (int r = 0; r < 2; r++) {
        ls_nccl_proof_destroy(&p[r]);
        assert_false(ls_fs_exists(file[r]));
        ls_free(file[r]);
    }
    text = text_of(run_dir, "nccl_topo.xml");
    assert_null(strstr(text, "pair"));
    ls_free(text);
}

static void bad_tools(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p = NULL;
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    put_file(run_dir, "topo.txt", "of the launcher\n");
    put_tool("nvidia-smi", "#!/bin/sh\n[ \"$1\" = topo ] || { echo half; sleep 60; }\necho no; exit 9\n");
    snprintf(nccl, sizeof nccl, "%s/ibstat", bin);
    assert_int_equal(unlink(nccl), 0);
    setenv("PATH", bin, 1); /* where no other is */
    put_tool("sleep", "#!/bin/sh\nexec /bin/sleep 60\n");
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    const double begin = ls_now();
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log", .tool_seconds = 0.5});
    ls_nccl_proof_joined(p, true);
    start(p, false);
    assert_true(ls_now() - begin < 0.4); /* beside the run */
    ls_nccl_proof_end(p);
    assert_true(ls_now() - begin < 5);
    json_t *s = load(nccl, "summary.json");
    assert_string_equal(result_of(s, "topo -m"), "exit code 9");
    assert_string_equal(result_of(s, "--query-gpu"), "no answer in 0.5 s");
    assert_non_null(strstr(result_of(s, "ibstat"), "not run: no time left"));
    json_decref(s);
    char *topo = text_of(run_dir, "topo.txt");
    assert_string_equal(topo, "of the launcher\n"); /* a failed one replaces nothing */
    ls_free(topo);
    ls_nccl_proof_destroy(&p);
    assert_false(is_there(run_dir, "topo.txt.tmp"));
    assert_false(is_there(run_dir, "ibstat.txt"));

    put_tool("nvidia-smi", "#!/bin/sh\n");
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    ls_nccl_proof_joined(p, true);
    start(p, false);
    ls_nccl_proof_end(p);
    s = load(nccl, "summary.json");
    assert_string_equal(result_of(s, "topo -m"), "printed nothing");
    assert_false(is_there(run_dir, "topo.txt")); /* nccl/ says that it was a run's: not this one's */
    assert_true(is_there(run_dir, "earlier-1/topo.txt"));
    assert_string_equal(result_of(s, "ibstat"), "not installed");
    json_decref(s);
    ls_nccl_proof_destroy(&p);

    put_tool("nvidia-smi", "#!/bin/sh\nexec /bin/sleep 60\n"); /* a run that ends at once does not wait for it */
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    ls_nccl_proof_joined(p, true);
    start(p, false);
    const double end = ls_now();
    ls_nccl_proof_destroy(&p);
    assert_true(ls_now() - end < 3);
}

/* A finished run's folder: all that is there. */
static void finished_run(char *nccl, size_t room)
{
    snprintf(nccl, room, "%s/nccl", run_dir);
    put_file(nccl, "nccl_rank_old_1.log", "yew:1:1 [0] NCCL INFO NCCL version 2.1.0+cuda9.0\n");
    put_file(nccl, "summary.json", "{\"of\": \"old\"}");
    put_file(nccl, "gpus_old.csv", "old\n");
    put_file(run_dir, "topo.txt", "old\n");
    put_file(run_dir, "ibstat.txt", "old\n");
    put_file(run_dir, "nccl_topo.xml", "<old/>");
}

static void is_old(const char *dir, const char *name)
{
    char *text = text_of(dir, name);
    const bool is = strstr(text, "old") != NULL;
    ls_free(text);
    assert_true(is);
}

static void forget_environment(void)
{
    unsetenv("NCCL_DEBUG");
    unsetenv("NCCL_DEBUG_SUBSYS");
    unsetenv("NCCL_DEBUG_FILE");
    unsetenv("NCCL_TOPO_DUMP_FILE");
}

static size_t names_in(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(ls_fs_list(dir, &names, &n), LS_OK);
    ls_fs_list_free(names, n);
    return n;
}

/* A start that is refused, before or after NCCL is there, leaves the folder as it was. */
static void refused(void **state)
{
    (void)state;
    char nccl[400], host[64] = "", name[200], path[790];
    ls_nccl_proof *p = NULL;
    finished_run(nccl, sizeof nccl);
    gethostname(host, sizeof host - 1);
    host[strcspn(host, "./")] = '\0';
    snprintf(name, sizeof name, "nccl_rank_%s_%d.log", host, (int)getpid()); /* this process's number had been in use */
    put_file(nccl, name, "old\n");
    const size_t n = names_in(nccl), n_run = names_in(run_dir);
    for (int joined = 0; joined < 2; joined++) {
        ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "full"});
        log_path(host, (int)getpid(), path, sizeof path);
        assert_false(ls_fs_exists(path)); /* NCCL empties what is there */
        if (joined) {
            put_file("/", path + 1, "new\n");
            put_file("/", getenv("NCCL_TOPO_DUMP_FILE") + 1, "<new/>");
            ls_nccl_proof_joined(p, true);
        }
        ls_nccl_proof_cut(p);
        ls_nccl_proof_destroy(&p);
        forget_environment();
        assert_int_equal(names_in(nccl), n);
        assert_int_equal(names_in(run_dir), n_run);
        is_old(nccl, "summary.json");
        is_old(nccl, name);
        is_old(nccl, "gpus_old.csv");
        is_old(run_dir, "topo.txt");
        is_old(run_dir, "ibstat.txt");
        is_old(run_dir, "nccl_topo.xml");
    }
}

/* A run without NCCL takes nothing of an earlier one for its own. */
static void afresh_without_nccl(void **state)
{
    (void)state;
    char nccl[400], where[PATH_MAX] = "";
    put_file(run_dir, "topo.txt", "of the launcher\n");
    assert_int_equal(ls_nccl_proof_set_aside(NULL, run_dir, false, where), LS_OK);
    assert_int_equal(*where, 0);
    assert_true(is_there(run_dir, "topo.txt"));
    finished_run(nccl, sizeof nccl);
    assert_int_equal(ls_nccl_proof_set_aside(NULL, run_dir, false, where), LS_OK);
    assert_int_not_equal(*where, 0);
    assert_int_equal(names_in(run_dir), 1); /* earlier-1 alone */
    is_old(where, "nccl/summary.json");
    is_old(where, "nccl/gpus_old.csv");
    assert_true(is_there(where, "nccl/nccl_rank_old_1.log"));
    is_old(where, "topo.txt");
    is_old(where, "ibstat.txt");
    is_old(where, "nccl_topo.xml");
}

/* --resume: earlier logs stay, and are not counted as this session's; what is written again is kept apart, also where a tool fails now. */
static void resumed(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p = NULL;
    finished_run(nccl, sizeof nccl);
    put_tool("nvidia-smi", "#!/bin/sh\nexit 9\n");
    put_tool("ibstat", "#!/bin/sh\nexit 9\n");
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    nccl_logs("ib");
    ls_nccl_proof_joined(p, true);
    start(p, true);
    ls_nccl_proof_end(p);
    ls_nccl_proof_destroy(&p);
    assert_true(is_there(nccl, "nccl_rank_old_1.log"));
    assert_true(is_there(nccl, "nccl_rank_oak_1.log"));
    assert_false(is_there(run_dir, "topo.txt"));
    assert_false(is_there(run_dir, "ibstat.txt"));
    assert_false(is_there(run_dir, "nccl_topo.xml"));
    assert_false(is_there(run_dir, "earlier-1"));
    is_old(nccl, "session-1/summary.json");
    is_old(nccl, "session-1/topo.txt");
    is_old(nccl, "session-1/ibstat.txt");
    is_old(nccl, "session-1/nccl_topo.xml");
    json_t *s = load(nccl, "summary.json");
    assert_string_equal(json_string_value(json_object_get(s, "version")), "2.30.7");
    assert_int_equal(json_integer_value(json_object_get(s, "logs")), 4);
    assert_string_equal(result_of(s, "topo -m"), "exit code 9");
    json_decref(s);
}

/* A run that ends before it is complete has its summary, at once, and its own words of failure. */
static void cut_short(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p = NULL;
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    put_tool("nvidia-smi", "#!/bin/sh\nexec /bin/sleep 60\n");
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log", .tool_seconds = 50});
    nccl_logs("ib");
    ls_nccl_proof_joined(p, true);
    start(p, false);
    usleep(200000); /* the first tool runs */
    (void)ls_fail(LS_E_COMM, "rank 1 is gone");
    const double begin = ls_now();
    ls_nccl_proof_cut(p);
    assert_true(ls_now() - begin < 2);
    assert_string_equal(ls_err_words(), "rank 1 is gone");
    json_t *s = load(nccl, "summary.json");
    assert_int_equal(json_integer_value(json_object_get(s, "logs")), 4);
    assert_string_equal(result_of(s, "topo -m"), "no answer before the run ended");
    assert_string_equal(result_of(s, "ibstat"), "not run: the run ended");
    assert_non_null(
        strstr(json_string_value(json_array_get(json_object_get(s, "notes"), 0)), "before it was complete"));
    json_decref(s);
    ls_nccl_proof_destroy(&p);
    ls_err_clear();
}

static void no_place(void **state)
{
    (void)state;
    ls_nccl_proof *p = NULL;
    put_file(scratch, "file", "x");
    snprintf(run_dir, sizeof run_dir, "%s/file", scratch); /* no folder */
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "full"});
    assert_null(getenv("NCCL_DEBUG"));
    assert_non_null(getenv("NCCL_TOPO_DUMP_FILE")); /* the other workers set it, too */
    ls_nccl_proof_joined(p, true);
    start(p, false);
    ls_nccl_proof_end(p);
    ls_nccl_proof_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(first_run, before, after),
        cmocka_unit_test_setup_teardown(not_in_use, before, after),
        cmocka_unit_test_setup_teardown(what_the_user_set, before, after),
        cmocka_unit_test_setup_teardown(topology, before, after),
        cmocka_unit_test_setup_teardown(bad_tools, before, after),
        cmocka_unit_test_setup_teardown(no_place, before, after),
        cmocka_unit_test_setup_teardown(refused, before, after),
        cmocka_unit_test_setup_teardown(afresh_without_nccl, before, after),
        cmocka_unit_test_setup_teardown(resumed, before, after),
        cmocka_unit_test_setup_teardown(cut_short, before, after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
