/* Records of a run with NCCL: environment variables that are set before NCCL is loaded, logs and outputs of tools in the run folder, and the
 * summary. Variables of the user stay unchanged. A tool that is missing, fails or never ends is reported in the summary. The logs are those of
 * tests/data/nccl_logs, copied to where NCCL writes them.
 * ls-test: serial */
#include "cmocka_all.h"
#include "core/clock.h"
#include "core/mem.h"
#include "test_folder.h"
#include "train/nccl_proof.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[256], run_dir[300], bin[300];

static void put_tool(const char *name, const char *script)
{
    test_write(bin, name, script);
    assert_int_equal(chmod(test_path(bin, name, NULL), 0755), 0);
}

static bool has_file(const char *dir, const char *name)
{
    return ls_fs_exists(test_path(dir, name, NULL));
}

static char *text_of(const char *dir, const char *name)
{
    char *text = NULL;
    size_t n;
    assert_int_equal(ls_fs_read(test_path(dir, name, NULL), &text, &n), LS_OK);
    return text;
}

static json_t *load(const char *dir, const char *name)
{
    json_t *j = NULL;
    assert_int_equal(ls_json_load(test_path(dir, name, NULL), &j), LS_OK);
    return j;
}

static int before(void **state)
{
    static const char *const name[] = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE"};
    const char *tmp = getenv("TMPDIR");
    char path[700];
    (void)state;
    for (size_t i = 0; i < N_OF(name); i++) unsetenv(name[i]);
    snprintf(scratch, sizeof scratch, "%.200s/ls_proof_XXXXXX",
             tmp && *tmp ? tmp : "/tmp"); /* programs run here: not /dev/shm */
    if (!mkdtemp(scratch)) return -1;
    snprintf(run_dir, sizeof run_dir, "%s/a%%run", scratch); /* NCCL replaces %h and %p */
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

/* The path that NCCL writes to: its pattern with host and process id. */
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

/* Writes logs as NCCL does with this environment. */
static void nccl_logs(const char *folder)
{
    char dir[512], to[900], **names = NULL;
    size_t n = 0;
    snprintf(dir, sizeof dir, "%s/tests/data/nccl_logs/%s", LS_SOURCE_DIR, folder);
    assert_int_equal(ls_fs_list(dir, &names, &n), LS_OK);
    for (size_t i = 0; i < n; i++) {
        char *text = text_of(dir, names[i]);
        log_path("oak", (int)i + 1, to, sizeof to);
        FILE *f = fopen(to, "w"); /* NCCL does not create folders either */
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
        ls_free(text);
    }
    ls_fs_list_free(names, n);
}

/* The workers whose logs are in the folders ib and socket. */
static const ls_nccl_writer on_ib[] = {{"oak2", 4103}, {"oak1", 4100}, {"oak2", 4102}, {"oak1", 4101}};
static const ls_nccl_writer on_sockets[] = {{"elm-a", 700}, {"elm-a", 701}, {"elm-b", 702}};

static void join(ls_nccl_proof *p)
{
    ls_nccl_proof_joined(p, on_ib, (int)N_OF(on_ib), "2.30.7");
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

static void a_run_keeps_logs_and_a_summary(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p = NULL, *other = NULL;
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    test_write(nccl, "nccl_rank_old_1.log", "yew:1:1 [0] NCCL INFO NCCL version 2.1.0+cuda9.0\n");
    test_write(nccl, "summary.json", "{}");
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    assert_non_null(p);
    assert_true(has_file(nccl, "nccl_rank_old_1.log")); /* a file of an earlier run stays until this one has started */
    assert_true(has_file(nccl, "summary.json"));
    assert_string_equal(getenv("NCCL_DEBUG"), "INFO");
    assert_string_equal(getenv("NCCL_DEBUG_SUBSYS"), "INIT,GRAPH,ENV,NET");
    assert_non_null(strstr(getenv("NCCL_DEBUG_FILE"), "/a%%run/nccl/nccl_rank_%h_%p.log"));
    assert_null(getenv("NCCL_TOPO_DUMP_FILE"));
    nccl_logs("ib");
    ls_nccl_proof_begin(&other, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log", .rank = 1, .local_rank = 1});
    join(p);
    join(other);
    start(p, false);
    ls_nccl_proof_started(other);
    assert_true(has_file(nccl, "nccl_rank_oak_1.log"));
    assert_false(has_file(nccl, "nccl_rank_old_1.log"));
    assert_true(has_file(run_dir, "earlier-1/nccl/nccl_rank_old_1.log"));
    assert_true(has_file(run_dir, "earlier-1/nccl/summary.json"));
    ls_nccl_proof_end(other);
    assert_false(has_file(nccl, "summary.json"));
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
    ls_nccl_proof_write(other, &w); /* writes nothing */
    ls_nccl_proof_write(p, &w);
    ls_jsonw_close(&w);
    assert_int_equal(ls_json_parse(text.data, text.len, "nccl", &j), LS_OK);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "nccl"), "rings")), 2);
    json_decref(j);
    ls_str_fini(&text);
    ls_nccl_proof_destroy(&p);
    ls_nccl_proof_destroy(&other);
    assert_true(has_file(nccl, "nccl_rank_oak_1.log"));
}

static void a_run_without_nccl_leaves_nothing(void **state)
{
    (void)state;
    ls_nccl_proof *p = NULL;
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "off"});
    assert_null(p);
    join(p);
    start(p, false);
    ls_nccl_proof_end(p);
    ls_nccl_proof_destroy(&p);
    assert_null(getenv("NCCL_DEBUG"));
    setenv("NCCL_DEBUG_SUBSYS", "COLL", 1);
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "full"});
    assert_non_null(getenv("NCCL_DEBUG"));
    assert_string_equal(getenv("NCCL_DEBUG_SUBSYS"), "COLL");
    ls_nccl_proof_joined(p, NULL, 0, NULL); /* workers communicate through the host */
    assert_null(getenv("NCCL_DEBUG"));
    assert_null(getenv("NCCL_DEBUG_FILE"));
    assert_null(getenv("NCCL_TOPO_DUMP_FILE"));
    assert_string_equal(getenv("NCCL_DEBUG_SUBSYS"), "COLL"); /* set by the user */
    ls_nccl_proof_end(p);
    ls_nccl_proof_destroy(&p);
    assert_false(ls_fs_exists(run_dir)); /* no file remains */
}

static void variables_of_the_user_stay_unchanged(void **state)
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
    test_write(scratch, "yours_x_1.txt", "yew:1:1 [0] NCCL INFO NCCL version 2.1.0+cuda9.0\n");
    nccl_logs("socket");
    ls_nccl_proof_joined(p, on_sockets, (int)N_OF(on_sockets), NULL);
    start(p, false);
    ls_nccl_proof_end(p);
    json_t *s = load(nccl, "summary.json");
    assert_string_equal(json_string_value(json_object_get(s, "version")), "2.21.5");
    assert_int_equal(json_integer_value(json_object_get(s, "logs")), 3);
    assert_int_equal(json_array_size(json_object_get(s, "notes")), 2);
    json_decref(s);
    ls_nccl_proof_destroy(&p);

    unsetenv("NCCL_DEBUG_FILE"); /* NCCL logs to stdout: no file to read */
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    assert_null(getenv("NCCL_DEBUG_FILE"));
    join(p);
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

/* NCCL_DEBUG_FILE of a user may have logs of other runs, also of one that runs now. */
static void logs_of_other_processes_do_not_count(void **state)
{
    (void)state;
    static const char *const expected[] = {"the log is in NCCL_DEBUG_FILE", "1 log of other processes is not counted",
                                           "a communicator of 3 ranks, but this run has 4",
                                           "NCCL 2.21.5, but this program uses 2.30.7"};
    char path[700], nccl[400];
    ls_nccl_writer worker[4] = {{"elm-a", 701}, {"elm-b", 702}, {"elm-a", 700}, {"elm-b", 703}};
    ls_nccl_proof *p = NULL;
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    snprintf(path, sizeof path, "%s/mine_%%h_%%p.txt", scratch);
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_DEBUG_FILE", path, 1);
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    nccl_logs("socket");
    test_write(scratch, "mine_elm-b_700.txt", /* a process id of this run, on another host */
               "elm-b:700:700 [0] NCCL INFO NCCL version 2.30.7+cuda13.0\n"
               "elm-b:700:700 [0] NCCL INFO comm 0x1 rank 0 nranks 9 nNodes 9 - Init COMPLETE\n"
               "elm-b:700:700 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n");
    ls_nccl_proof_joined(p, worker, 4, "2.30.7");
    start(p, false);
    ls_nccl_proof_end(p);
    json_t *s = load(nccl, "summary.json"), *notes = json_object_get(s, "notes");
    assert_string_equal(json_string_value(json_object_get(s, "version")), "2.21.5");
    assert_int_equal(json_integer_value(json_object_get(s, "logs")), 3);
    assert_int_equal(json_integer_value(json_object_get(s, "n_ranks")), 3);
    assert_null(json_object_get(json_object_get(s, "transports"), "P2P/CUMEM"));
    assert_int_equal(json_array_size(notes), N_OF(expected));
    for (size_t i = 0; i < N_OF(expected); i++)
        assert_non_null(strstr(json_string_value(json_array_get(notes, i)), expected[i]));
    json_decref(s);
    ls_nccl_proof_destroy(&p);
}

static void the_first_communicators_topology_is_kept(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p[2] = {0};
    char *file[2];
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    for (int r = 0; r < 2; r++) {
        unsetenv("NCCL_TOPO_DUMP_FILE"); /* as in a separate process */
        ls_nccl_proof_begin(&p[r],
                            &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "full", .rank = r, .local_rank = r});
        assert_non_null(getenv("NCCL_TOPO_DUMP_FILE")); /* NCCL hangs if only some workers set it */
        file[r] = ls_strdup(getenv("NCCL_TOPO_DUMP_FILE"));
    }
    assert_string_not_equal(file[0], file[1]);
    test_write("/", file[0] + 1, "<system version=\"2\"/>");
    join(p[0]);
    join(p[1]);
    test_write("/", file[0] + 1, "<system of=\"a pair\"/>"); /* from a later communicator */
    test_write("/", file[1] + 1, "<system of=\"a pair\"/>");
    assert_false(has_file(run_dir, "nccl_topo.xml"));
    start(p[0], false);
    ls_nccl_proof_started(p[1]);
    char *text = text_of(run_dir, "nccl_topo.xml");
    assert_non_null(strstr(text, "<system"));
    assert_null(strstr(text, "pair"));
    ls_free(text);
    test_write("/", file[0] + 1, "<system of=\"a pair\"/>"); /* as during a step */
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

static void failing_tools_are_lines_of_the_summary(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p = NULL;
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    test_write(run_dir, "topo.txt", "of the launcher\n");
    put_tool("nvidia-smi", "#!/bin/sh\n[ \"$1\" = topo ] || { echo half; sleep 60; }\necho no; exit 9\n");
    snprintf(nccl, sizeof nccl, "%s/ibstat", bin);
    assert_int_equal(unlink(nccl), 0);
    setenv("PATH", bin, 1); /* no other tools are found */
    put_tool("sleep", "#!/bin/sh\nexec /bin/sleep 60\n");
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    const double begin = ls_now();
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log", .tool_seconds = 0.5});
    join(p);
    start(p, false);
    assert_true(ls_now() - begin < 0.4); /* tools run in the background */
    ls_nccl_proof_end(p);
    assert_true(ls_now() - begin < 5);
    json_t *s = load(nccl, "summary.json");
    assert_string_equal(result_of(s, "topo -m"), "exit code 9");
    assert_string_equal(result_of(s, "--query-gpu"), "no answer in 0.5 s");
    assert_non_null(strstr(result_of(s, "ibstat"), "not run: no time left"));
    json_decref(s);
    char *topo = text_of(run_dir, "topo.txt");
    assert_string_equal(topo, "of the launcher\n"); /* a failed tool replaces nothing */
    ls_free(topo);
    ls_nccl_proof_destroy(&p);
    assert_false(has_file(run_dir, "topo.txt.tmp"));
    assert_false(has_file(run_dir, "ibstat.txt"));

    put_tool("nvidia-smi", "#!/bin/sh\n");
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    join(p);
    start(p, false);
    ls_nccl_proof_end(p);
    s = load(nccl, "summary.json");
    assert_string_equal(result_of(s, "topo -m"), "printed nothing");
    assert_false(has_file(run_dir, "topo.txt")); /* nccl/ shows that it belongs to an earlier run */
    assert_true(has_file(run_dir, "earlier-1/topo.txt"));
    assert_string_equal(result_of(s, "ibstat"), "not installed");
    json_decref(s);
    ls_nccl_proof_destroy(&p);

    put_tool("nvidia-smi", "#!/bin/sh\nexec /bin/sleep 60\n"); /* a run that ends immediately does not wait for it */
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    join(p);
    start(p, false);
    const double end = ls_now();
    ls_nccl_proof_destroy(&p);
    assert_true(ls_now() - end < 3);
}

/* Writes all files of a finished run. */
static void finished_run(char *nccl, size_t room)
{
    snprintf(nccl, room, "%s/nccl", run_dir);
    test_write(nccl, "nccl_rank_old_1.log", "yew:1:1 [0] NCCL INFO NCCL version 2.1.0+cuda9.0\n");
    test_write(nccl, "summary.json", "{\"of\": \"old\"}");
    test_write(nccl, "gpus_old.csv", "old\n");
    test_write(run_dir, "topo.txt", "old\n");
    test_write(run_dir, "ibstat.txt", "old\n");
    test_write(run_dir, "nccl_topo.xml", "<old/>");
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

/* A start that is refused, before or after NCCL is loaded, leaves the folder unchanged. */
static void a_refused_start_changes_no_file(void **state)
{
    (void)state;
    char nccl[400], host[64] = "", name[200], path[790];
    ls_nccl_proof *p = NULL;
    finished_run(nccl, sizeof nccl);
    gethostname(host, sizeof host - 1);
    host[strcspn(host, "./")] = '\0';
    snprintf(name, sizeof name, "nccl_rank_%s_%d.log", host,
             (int)getpid()); /* an earlier process had this process id */
    test_write(nccl, name, "old\n");
    const int n = test_n_entries(nccl), n_run = test_n_entries(run_dir);
    for (int joined = 0; joined < 2; joined++) {
        ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "full"});
        log_path(host, (int)getpid(), path, sizeof path);
        assert_false(ls_fs_exists(path)); /* NCCL truncates an existing file */
        if (joined) {
            test_write("/", path + 1, "new\n");
            test_write("/", getenv("NCCL_TOPO_DUMP_FILE") + 1, "<new/>");
            join(p);
        }
        ls_nccl_proof_cut(p);
        ls_nccl_proof_destroy(&p);
        forget_environment();
        assert_int_equal(test_n_entries(nccl), n);
        assert_int_equal(test_n_entries(run_dir), n_run);
        is_old(nccl, "summary.json");
        is_old(nccl, name);
        is_old(nccl, "gpus_old.csv");
        is_old(run_dir, "topo.txt");
        is_old(run_dir, "ibstat.txt");
        is_old(run_dir, "nccl_topo.xml");
    }
}

/* A new run without NCCL moves the files of an earlier run away. */
static void a_new_run_moves_old_files_away(void **state)
{
    (void)state;
    char nccl[400], where[PATH_MAX] = "";
    test_write(run_dir, "topo.txt", "of the launcher\n");
    assert_int_equal(ls_nccl_proof_set_aside(NULL, run_dir, false, where), LS_OK);
    assert_int_equal(*where, 0);
    assert_true(has_file(run_dir, "topo.txt"));
    finished_run(nccl, sizeof nccl);
    assert_int_equal(ls_nccl_proof_set_aside(NULL, run_dir, false, where), LS_OK);
    assert_int_not_equal(*where, 0);
    assert_int_equal(test_n_entries(run_dir), 1); /* only earlier-1 */
    is_old(where, "nccl/summary.json");
    is_old(where, "nccl/gpus_old.csv");
    assert_true(has_file(where, "nccl/nccl_rank_old_1.log"));
    is_old(where, "topo.txt");
    is_old(where, "ibstat.txt");
    is_old(where, "nccl_topo.xml");
}

/* --resume: earlier logs stay but do not count for this session. Files that are written again are moved first, even if the tool fails now. */
static void a_resumed_run_keeps_earlier_logs(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p = NULL;
    finished_run(nccl, sizeof nccl);
    put_tool("nvidia-smi", "#!/bin/sh\nexit 9\n");
    put_tool("ibstat", "#!/bin/sh\nexit 9\n");
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log"});
    nccl_logs("ib");
    join(p);
    start(p, true);
    ls_nccl_proof_end(p);
    ls_nccl_proof_destroy(&p);
    assert_true(has_file(nccl, "nccl_rank_old_1.log"));
    assert_true(has_file(nccl, "nccl_rank_oak_1.log"));
    assert_false(has_file(run_dir, "topo.txt"));
    assert_false(has_file(run_dir, "ibstat.txt"));
    assert_false(has_file(run_dir, "nccl_topo.xml"));
    assert_false(has_file(run_dir, "earlier-1"));
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

/* A run that fails still writes its summary, without delay, and keeps its own error message. */
static void an_interrupted_run_has_a_summary(void **state)
{
    (void)state;
    char nccl[400];
    ls_nccl_proof *p = NULL;
    snprintf(nccl, sizeof nccl, "%s/nccl", run_dir);
    put_tool("nvidia-smi", "#!/bin/sh\nexec /bin/sleep 60\n");
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "log", .tool_seconds = 50});
    nccl_logs("ib");
    join(p);
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

static void an_unusable_run_folder_is_tolerated(void **state)
{
    (void)state;
    ls_nccl_proof *p = NULL;
    test_write(scratch, "file", "x");
    snprintf(run_dir, sizeof run_dir, "%s/file", scratch); /* a file, not a folder */
    ls_nccl_proof_begin(&p, &(ls_nccl_proof_opts){.run_dir = run_dir, .mode = "full"});
    assert_null(getenv("NCCL_DEBUG"));
    assert_non_null(getenv("NCCL_TOPO_DUMP_FILE")); /* the other workers set it too */
    join(p);
    start(p, false);
    ls_nccl_proof_end(p);
    ls_nccl_proof_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_keeps_logs_and_a_summary, before, after),
        cmocka_unit_test_setup_teardown(a_run_without_nccl_leaves_nothing, before, after),
        cmocka_unit_test_setup_teardown(variables_of_the_user_stay_unchanged, before, after),
        cmocka_unit_test_setup_teardown(logs_of_other_processes_do_not_count, before, after),
        cmocka_unit_test_setup_teardown(the_first_communicators_topology_is_kept, before, after),
        cmocka_unit_test_setup_teardown(failing_tools_are_lines_of_the_summary, before, after),
        cmocka_unit_test_setup_teardown(an_unusable_run_folder_is_tolerated, before, after),
        cmocka_unit_test_setup_teardown(a_refused_start_changes_no_file, before, after),
        cmocka_unit_test_setup_teardown(a_new_run_moves_old_files_away, before, after),
        cmocka_unit_test_setup_teardown(a_resumed_run_keeps_earlier_logs, before, after),
        cmocka_unit_test_setup_teardown(an_interrupted_run_has_a_summary, before, after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
