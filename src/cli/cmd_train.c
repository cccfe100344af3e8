/* cmd_train.c - `lockstep train`: options, configuration, run. */
#include "cli/commands.h"
#include "cli/train_start.h"
#include "cli/train_supervise.h"
#include "cli/translation.h"
#include "comm/launch.h"
#include "config/run_options.h"
#include "core/cores.h"
#include "core/deadline.h"
#include "core/fs.h"
#include "core/inject.h"
#include "core/log.h"
#include "core/nvtx.h"
#include "core/progress.h"
#include "core/stack.h"
#include "core/stop.h"
#include "data/loader.h"
#include "train/profile.h"
#include "train/trainer.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

static void to_stdout(void *ctx, const char *text)
{
    (void)ctx;
    cli_say(stdout, LS_COLOUR_NONE, text); /* flushed: users follow train.log */
}

static void to_stderr(void *ctx, const char *text)
{
    (void)ctx;
    cli_say(stderr, LS_COLOUR_NONE, text);
}

static void event(void *ctx, const char *text)
{
    (void)ctx;
    cli_say(stderr, LS_COLOUR_EVENT, text);
}

static void progress(void *ctx, const ls_progress_line *status)
{
    (void)ctx;
    ls_progress_show(status);
}

/* --json: stdout has one JSON object, so everything else that this process and its workers print there goes to stderr. */
static ls_status divert_stdout(int *saved)
{
    *saved = dup(STDOUT_FILENO);
    if (*saved >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0) return LS_OK;
    return ls_fail(LS_E_IO, "--json: cannot redirect stdout: %s", strerror(errno));
}

/* Prints training_metrics.json of a run that is complete; path: its folder, NULL: prints nothing. */
static ls_status restore_stdout(int saved, const char *run_dir)
{
    char path[PATH_MAX];
    ls_str s = {0};
    char *text = NULL;
    size_t n = 0;
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    if (!run_dir) return LS_OK;
    LS_TRY(ls_path_in(path, run_dir, "training_metrics.json"));
    LS_TRY(ls_fs_read(path, &text, &n));
    ls_str_addn(&s, text, n);
    ls_free(text);
    return cli_print(&s);
}

static void print_notes(const ls_train_options *o, const ls_train_config *c)
{
    ls_str s = {0};
    ls_train_options_warnings(o, &s);
    if (c->notes.data) ls_str_add(&s, c->notes.data);
    if (s.data) ls_progress_print(stderr, LS_COLOUR_NONE, s.data);
    ls_str_fini(&s);
}

/* More threads than this worker has CPUs: --threads was typed, for this run or an earlier one. n_core: as for work(). */
static void note_threads(const ls_train_options *o, const ls_train_config *c, int n_core)
{
    const int cpus = n_core ? n_core : ls_cores_usable();
    char text[256], each[48] = "this process";
    if (c->threads <= cpus) return;
    if (c->world_size > 1) snprintf(each, sizeof each, "each of the %d workers", c->world_size);
    snprintf(text, sizeof text,
             "--threads %d%s: %s can use only %d CPU%s; steps may be slower than with --threads %d\n", c->threads,
             ls_train_by_preset(o, "threads") ? " of the earlier run" : "", each, cpus, cpus == 1 ? "" : "s", cpus);
    ls_progress_print(stderr, LS_COLOUR_NONE, text);
}

typedef struct job {
    const ls_train_options *o;
    const ls_ds_config *ds;
    const ls_run_identity *id;
    int stage_thread[LS_MAX_STAGE_THREAD]; /* the same for every worker */
    const char *host;                      /* of a worker that a launcher started; NULL: -n started it */
    bool several;                          /* hosts, whose output may be in several places */
    bool reported;                         /* the failure of this worker is printed */
    bool tells_folder;                     /* this command has created the run folder */
    ls_device_choice device;               /* the same for every worker */
    bool device_printed;
    ls_auto_check *check;  /* NULL: the steps are not chosen again */
    supervise *supervisor; /* NULL: a failure ends the run */
    ls_launch_end *end;
} job;

static void print_device(job *j)
{
    if (!j->device_printed) cli_print_device(&j->device, true);
    j->device_printed = true;
}

#define MAX_SHARE  256
#define WRITE_TIME 120.0 /* seconds that the other workers wait for rank 0's last files, at least */
#define TELL_TIME  10.0  /* seconds in which a worker that cannot start meets the others to tell them */

static void startup_line(void *ctx, const ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    const char *devices = getenv("CUDA_VISIBLE_DEVICES");
    char current[16] = "none";
    (void)ctx;
    if (t->compute.device) snprintf(current, sizeof current, "%d", t->device.index);
    /* the keys of the scaling study's line, which users search in its log (docs/FORMATS.md) */
    printf("Startup: pid=%d rank=%d local_rank=%d world_size=%d CUDA_VISIBLE_DEVICES=%s torch.cuda.current_device=%s\n",
           (int)getpid(), c->rank, c->local_rank, ls_comm_size(t->comm), devices ? devices : "", current);
    fflush(stdout);
}

static void exit_line(int rank)
{
    ls_str s = {0};
    ls_exit_marker(rank, &s);
    (void)cli_print(&s);
    fflush(stdout);
}

static ls_status configure(const job *j, int world, ls_train_config *c)
{
    ls_train_paths paths = {0};
    ls_train_facts facts = {.world_size = world, .data_eos_id = -1, .several_hosts = j->several, .device = &j->device};
    ls_status st = train_start_facts(j->o, &paths, &facts);
    if (st == LS_OK) st = ls_train_resolve(j->o, j->ds, &paths, &facts, c);
    ls_train_paths_fini(&paths);
    return st;
}

/* Prints the failure of this worker once. A worker that only learned of the failure of another one prints nothing, except for rank 0 of
 * several hosts: its output may be the only one that is looked at. */
static void worker_report(void *ctx, int rank, ls_status st)
{
    job *j = ctx;
    const bool again = j->check && j->check->measured > 0;
    if (j->reported || st == LS_OK || (st == LS_E_STOPPED && (rank || again || train_is_resizing(j->supervisor))))
        return;
    j->reported = true;
    if (!ls_err_is_peers()) cli_print_error(j->supervisor && j->o->n == 1 ? -1 : rank, j->host, st);
    else if (j->several && !rank) fprintf(stderr, "lockstep: %s; its output has the reason\n", ls_err_words());
}

/* Prints and announces a failure before anything is closed: closing may wait for a device or for peers that do not know of it yet. */
static void announce(job *j, ls_comm *comm, ls_status st)
{
    char text[400];
    if (!comm || st == LS_OK || st == LS_E_STOPPED) return;
    const bool prints = ls_comm_should_tell(comm) || st != LS_E_COMM;
    snprintf(text, sizeof text, "rank %d failed: %.300s", ls_comm_rank(comm), ls_err_words());
    if (!ls_err_is_peers()) ls_comm_abort(comm, text); /* else the worker whose failure it is does, with its reason */
    if (prints) worker_report(j, ls_comm_rank(comm), st);
}

/* Waits until rank 0 has written everything: closing has a time limit, writing to a slow disk has none. */
static ls_status everyone_is_done(ls_comm *comm, double timeout, ls_status st)
{
    if (!comm || (st != LS_OK && st != LS_E_STOPPED)) return st;
    if (timeout != 0) ls_comm_set_limit(comm, timeout > WRITE_TIME ? timeout : WRITE_TIME);
    const ls_status all = ls_comm_agree(comm, LS_OK, LS_SITE);
    return all != LS_OK ? all : st;
}

/* Closes the trainer within a time limit: a driver or a peer that hangs must not keep a run whose files are complete. */
static void close_trainer(ls_trainer **t, ls_status st)
{
    const int d =
        ls_deadline_arm(LS_COMM_CLOSE_TIME, ls_status_exit_code(st), "%s, but closing the device and its communicators",
                        st == LS_OK          ? "the run is complete and its files are written"
                        : st == LS_E_STOPPED ? "the run is stopped and its checkpoint is written"
                                             : "the run has failed");
    ls_trainer_destroy(t);
    ls_deadline_disarm(d);
}

/* From the first collective on: a worker may be stopped before it has begun. */
static void limit_start(const job *j, ls_comm *c)
{
    if (ls_train_given(j->o, "comm_timeout") && j->o->comm_timeout >= 0) ls_comm_set_limit(c, j->o->comm_timeout);
    else ls_comm_start_limit(c, LS_START_LIMIT);
}

/* One worker, from configuration to artifacts; rank 0 prints. n_core 0: as many threads as there are cores. */
static ls_status work(job *j, ls_comm *comm, int n_core)
{
    const int rank = comm ? ls_comm_rank(comm) : 0, size = comm ? ls_comm_size(comm) : 1;
    ls_train_config c = {0};
    ls_trainer *t = NULL;
    ls_train_io io = {.line = to_stdout, .progress = progress, .event = event, .note = to_stderr};
    if (rank) io = (ls_train_io){0};
    io.debug = to_stdout;
    if (!comm && !j->supervisor)
        ls_progress_open(); /* workers that a launcher started may share the terminal: they print lines */
    ls_stop_set_mode(rank ? LS_STOP_NOW_QUIET : LS_STOP_NOW); /* until the first step there is nothing to save */
    if (comm) limit_start(j, comm);
    ls_status st = configure(j, size, &c);
    if (st == LS_OK) st = ls_inject_worker(rank);
    int server = 0;
    if (st == LS_OK && !rank && !j->supervisor) st = cli_serve_begin(j->o, c.run_dir, &server);
    if (comm) st = ls_comm_agree(comm, st, LS_SITE);
    if (comm) ls_comm_start_limit(comm, 0); /* all have come */
    if (st == LS_OK) {
        memcpy(c.stage_thread, j->stage_thread, sizeof c.stage_thread);
        c.rank = c.local_rank = rank;
        c.lock_held = j->supervisor;
        /* files outside of the run folder, and lines of a log, would be those of two runs */
        if (!c.tensorboard && !c.csv_monitor && !c.profile && !c.dist_debug && !c.reference_output) c.check = j->check;
        if (comm) c.local_rank = ls_comm_where(comm).local_rank;
        if (comm && c.comm_timeout >= 0) ls_comm_set_limit(comm, c.comm_timeout);
        if (!c.threads) c.threads = n_core;
        if (c.reference_output) io.opened = startup_line;
        if (c.profile_mode) (void)ls_nvtx_open();
        if (!rank) print_device(j);
        if (!rank) print_notes(j->o, &c);
        if (!rank) note_threads(j->o, &c, n_core);
        ls_info("config",
                "strategy %s, dp %d x pp %d x tp %d, %s; batch %lld = %d per micro-batch x %d accumulated x dp",
                c.strategy, c.mesh.n[LS_AXIS_DP], c.mesh.n[LS_AXIS_PP], c.mesh.n[LS_AXIS_TP], c.precision,
                (long long)c.global_batch, c.micro_batch, c.grad_accum);
        st = ls_trainer_create(&t, &c, comm, &io);
    }
    if (comm) st = ls_comm_agree(comm, st, LS_SITE); /* all workers fail together */
    LS_ASSERT(t || st != LS_OK);
    if (st == LS_OK && !rank && j->tells_folder && j->o->attempt == 1)
        ls_progress_say("run folder: %s\n", j->o->checkpoint_path); /* it would be removed after a failure above */
    ls_profile *profile = NULL;
    if (st == LS_OK && c.profile && !t->complete) st = ls_profile_begin(&profile, t);
    ls_stop_set_mode(LS_STOP_ASK);
    ls_stop_set_bound(comm || j->supervisor ? LS_BOUND_RUN : LS_BOUND_STOP);
    if (st == LS_OK) st = ls_trainer_run(t, j->id);
    ls_stop_set_bound(LS_BOUND_OFF);
    st = everyone_is_done(comm, c.comm_timeout, st);
    announce(j, comm, st);
    ls_profile_device_end(profile);
    close_trainer(&t, st);
    ls_progress_end(true);
    if (profile) st = cli_profile_end(&profile, comm, c.run_dir, st);
    /* a stopped run has saved its state */
    if (c.reference_output && (st == LS_OK || st == LS_E_STOPPED)) exit_line(rank);
    ls_train_config_fini(&c);
    cli_serve_end(server);
    return st;
}

static ls_status worker_body(void *ctx, ls_comm *comm, int n_core)
{
    ls_status st = work(ctx, comm, n_core);
    /* here: main flushes only its own stdout */
    return st == LS_OK && (!comm || !ls_comm_rank(comm)) ? cli_flush() : st;
}

static bool launch_tick(void *ctx)
{
    return supervise_tick(((job *)ctx)->supervisor);
}

/* Checks that the options work on so many workers, with the chosen device. */
static ls_status check_configuration(const job *j, int world)
{
    ls_train_config c = {0};
    LS_TRY(configure(j, world, &c));
    ls_train_config_fini(&c);
    return LS_OK;
}

/* Checks what a launcher has started: without it the workers cannot meet. */
static ls_status check_start(const job *j, const ls_start_env *e)
{
    if (ls_train_given(j->o, "n") && j->o->n != e->size)
        return ls_fail(LS_E_CONFIG, "-n %lld: %s started %d workers; leave -n out", (long long)j->o->n, e->words,
                       e->size);
    LS_TRY(cli_check_launcher(e));
    return cli_check_comm(e, j->o->comm);
}

/* Workers on several hosts may have found different devices: all use one kind. */
static ls_status check_device(job *j, ls_comm *c)
{
    LS_TRY(ls_device_agree(&j->device, c));
    return j->device.automatic ? check_configuration(j, ls_comm_size(c)) : LS_OK;
}

/* Before the workers have joined, nobody knows what the others find: each prints its own failure. */
static ls_status report_alone(job *j, const ls_start_env *e, ls_status st)
{
    if (e->size == 1) return st;
    worker_report(j, e->rank, st);
    ls_err_clear();
    return st;
}

/* Meets the other workers, also with a configuration that does not work here: they need not wait for this one, and what all of them find is
 * printed once. Rank 0 prints it before. */
static ls_status join(job *j, const ls_start_env *e, double limit, ls_comm **c)
{
    ls_err_kept why;
    const bool known = !j->device.automatic; /* the workers first agree on the device of auto */
    const ls_status mine = known ? check_configuration(j, e->size) : LS_OK;
    if (mine == LS_OK) {
        LS_TRY(cli_join(e, limit, c));
        return LS_OK;
    }
    ls_err_keep(&why);
    if (!e->rank) worker_report(j, 0, mine);
    const ls_status met = cli_join(e, limit > 0 && limit < TELL_TIME ? limit : TELL_TIME, c);
    ls_err_restore(&why);
    return met == LS_OK ? mine : report_alone(j, e, mine);
}

/* Runs this process as one worker of a run that a launcher started. */
static ls_status run_started(job *j, const ls_start_env *e)
{
    char label[32];
    ls_comm *c = NULL;
    ls_stop_install(); /* launchers stop all ranks at the first failure: rank 0 must finish printing its error */
    ls_status st = check_start(j, e);
    if (st != LS_OK) return report_alone(j, e, st);
    snprintf(label, sizeof label, "rank %d", e->rank);
    ls_stack_install(label);
    ls_deadline_name(label);
    ls_stop_set_mode(e->rank ? LS_STOP_NOW_QUIET : LS_STOP_NOW);
    const double limit = ls_train_given(j->o, "comm_timeout") ? j->o->comm_timeout : -1;
    st = join(j, e, limit, &c);
    if (!c) return st;
    j->several = ls_comm_where(c).n_host > 1;
    limit_start(j, c);
    st = ls_comm_agree(c, st, LS_SITE);
    if (st == LS_OK) st = ls_comm_agree(c, check_device(j, c), LS_SITE);
    if (st == LS_OK) st = work(j, c, ls_comm_take_cores(c));
    announce(j, c, st);
    if (st == LS_E_STOPPED) worker_report(j, ls_comm_rank(c), st);
    ls_err_clear(); /* it has been printed */
    ls_comm_close(&c, st);
    return st;
}

/* The steps of the run and what depends on their number; opens the data, as the run will. */
static ls_status fit_settings(ls_train_config *c)
{
    ls_tokens train = {0}, val = {0};
    ls_status st = ls_tokens_open(&train, c->train_path, c->seq_len, c->model.vocab_size);
    if (st == LS_OK && c->val_path) st = ls_tokens_open(&val, c->val_path, c->seq_len, c->model.vocab_size);
    if (st == LS_OK) st = ls_train_config_fit(c, train.n_seq, val.n_seq);
    ls_tokens_close(&train);
    ls_tokens_close(&val);
    return st;
}

/* Prints what becomes of every key, in this precision (NULL: not known). st: of reading the file, or of all checks that follow. */
static void explain_json(const ls_train_options *o, const char *precision, bool cpu, ls_status st, bool read)
{
    const char *rank = getenv("RANK");
    ls_err_kept error;
    ls_str s = {0};
    if (st == LS_E_NOMEM || (rank && strcmp(rank, "0"))) return;
    if (st != LS_OK) ls_err_keep(&error);
    if (ls_ds_config_explain(o->deepspeed_config, precision, cpu, read && st != LS_OK ? error.words : NULL, &s) ==
            LS_OK &&
        s.data)
        fputs(s.data, stderr);
    if (st != LS_OK) ls_err_restore(&error);
    ls_str_fini(&s);
}

static ls_status print_settings(const job *j, int world)
{
    ls_train_config c = {0};
    ls_str s = {0};
    LS_TRY(configure(j, ls_train_given(j->o, "n") ? (int)j->o->n : world, &c));
    const ls_status st = fit_settings(&c);
    if (st != LS_OK) {
        ls_train_config_fini(&c);
        return st;
    }
    if (j->ds) explain_json(j->o, c.precision, !strcmp(c.device, "cpu"), LS_OK, true);
    print_notes(j->o, &c);
    if (c.json) ls_train_config_json(&c, &s);
    else ls_train_config_table(&c, &s);
    ls_str_addc(&s, '\n');
    ls_train_config_fini(&c);
    return cli_print(&s);
}

/* -n N, and one worker with a supervisor: an impossible configuration is reported once, before workers start. */
static ls_status launch(job *j)
{
    ls_train_config c = {0};
    int share[MAX_SHARE] = {0};
    LS_TRY(cli_check_comm(&(ls_start_env){.by = LS_STARTED_ALONE, .size = 1}, j->o->comm));
    LS_TRY(configure(j, (int)j->o->n, &c));
    ls_status st = ls_train_check_layout(&c);
    const bool shared = st == LS_OK && c.mesh.world <= MAX_SHARE && ls_train_share_cores(&c, ls_cores_usable(), share);
    memcpy(j->stage_thread, c.stage_thread, sizeof j->stage_thread);
    ls_train_config_fini(&c);
    LS_TRY(st);
    ls_progress_open();
    st = ls_launch_local(&(ls_launch){.n = (int)j->o->n,
                                      .pin = true,
                                      .share = shared ? share : NULL,
                                      .alone = j->o->n == 1,
                                      .end_stopped = j->supervisor != NULL,
                                      .body = worker_body,
                                      .report = worker_report,
                                      .tick = j->supervisor ? launch_tick : NULL,
                                      .end = j->end,
                                      .ctx = j});
    ls_progress_end(st == LS_OK); /* after a failure its message is the last line */
    return st;
}

static ls_status supervised_attempt(void *ctx, const ls_train_options *o, supervise *s, ls_launch_end *end)
{
    job *j = ctx, attempt = *j;
    attempt.o = o;
    attempt.supervisor = s;
    attempt.end = end;
    return launch(&attempt);
}

static ls_status supervised_configure(void *ctx, const ls_train_options *o, ls_train_config *c)
{
    job probe = *(const job *)ctx;
    probe.o = o;
    LS_TRY(configure(&probe, (int)o->n, c));
    const ls_status st = ls_train_check_layout(c);
    if (st != LS_OK) ls_train_config_fini(c);
    return st;
}

/* Before workers are forked: a separate process looks for GPUs, and workers inherit the result. */
static ls_status choose_device(job *j, const ls_start_env *e)
{
    const ls_train_options *o = j->o;
    return ls_device_choose(ls_train_given(o, "device") ? o->device : NULL,
                            ls_train_given(o, "compute") ? "--compute" : NULL, e->size > 1 ? 1 : (int)o->n,
                            e->local_rank, &j->device);
}

/* What no data can change is refused before a text is prepared, which may take long, and before a run folder is made. */
static ls_status refuse_early(const job *j, const ls_start_env *e)
{
    const ls_train_facts facts = {.data_eos_id = -1, .device = &j->device};
    const bool known = j->o->inputs.n || !j->o->resume; /* else the run folder can decide the precision */
    return known && e->size == 1 ? ls_train_check_device(j->o, j->ds, &facts) : LS_OK;
}

/* Under a supervisor on another host --attempt stands for its environment. */
static void know_supervisor(const ls_train_options *o)
{
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)o->attempt);
    if (ls_train_given(o, "attempt")) (void)setenv("LOCKSTEP_ATTEMPT", number, 0);
}

/* A resumed run is not restarted unless its command has the option, also if the run was. */
static void tell_restarts(const ls_train_options *o, const ls_start_env *e)
{
    ls_str s = {0};
    if (!o->resume || o->print_config || e->rank || train_is_supervised(o) || getenv("LOCKSTEP_ATTEMPT")) return;
    ls_run_options_typed(o->checkpoint_path, "restarts", &s);
    if (s.len && !s.failed)
        ls_progress_say("lockstep: the run was started with%s; --resume does not take this over: this command does "
                        "not restart it after a failure\n",
                        s.data);
    ls_str_fini(&s);
}

/* With one worker on the CPU the bits do not vary, but the option asks for what an audit cannot compare. */
static ls_status check_audit(const ls_train_options *o)
{
    if (!o->audit || !o->no_deterministic) return LS_OK;
    return ls_fail(LS_E_CONFIG, "--audit compares bits, which vary with --no_deterministic; leave one of them out");
}

/* --comm of the run that is resumed, for workers that were started in another way: nobody typed it. */
static void leave_comm(ls_train_options *o, const ls_start_env *e)
{
    if (!ls_train_by_preset(o, "comm") || cli_check_comm(e, o->comm) == LS_OK) return;
    ls_err_clear();
    if (!e->rank)
        ls_progress_say("--comm %s of the earlier run needs workers that are started as before: left out\n", o->comm);
    ls_train_forget(o, "comm");
}

/* Runs with the options that are complete. */
static ls_status run(job *j, const ls_start_env *env)
{
    if (j->o->print_config) return print_settings(j, env->size);
    if (env->size > 1) return run_started(j, env);
    if (train_is_supervised(j->o))
        return train_supervise(
            &(train_runner){.ctx = j, .configure = supervised_configure, .attempt = supervised_attempt}, j->o,
            &j->device);
    if (j->o->n > 1) return launch(j);
    ls_stop_install();
    ls_stack_install("the run");
    return work(j, NULL, 0);
}

static ls_status print_help(ls_opt_page page)
{
    ls_str s = {0};
    if (page == LS_OPT_JSON) {
        LS_TRY(cli_print_options(ls_train_opts, ls_train_n_opts, LS_TRAIN_USAGE));
        return LS_E_HELP;
    }
    ls_train_options_help(page, &s);
    LS_TRY(cli_print(&s));
    return LS_E_HELP;
}

ls_status cmd_train(int argc, char **argv)
{
    train_start start = {0};
    const ls_train_options *o = &start.o;
    ls_ds_config ds = {0};
    ls_run_identity id = {0};
    ls_start_env env = {0};
    ls_status st = LS_OK;
    int saved = -1; /* stdout, with --json */
    char program[PATH_MAX], host[256] = "";
    snprintf(program, sizeof program, "%s train", program_invocation_name);
    LS_TRY(ls_run_identity_capture(&id, program, argc, argv,
                                   cli_built_commit)); /* before parsing, which moves arguments */
    LS_TRY_GOTO(st, done, train_start_parse(&start, argc, argv));
    if (o->help != LS_OPT_NO_PAGE) {
        st = print_help(o->help);
        goto done;
    }
    LS_TRY_GOTO(st, done, ls_start_env_read(&env));
    LS_TRY_GOTO(st, done, train_supervise_check(o, &env));
    LS_TRY_GOTO(st, done, check_audit(o));
    if (o->json && !o->print_config) LS_TRY_GOTO(st, done, divert_stdout(&saved));
    know_supervisor(o);
    LS_TRY_GOTO(st, done, train_start_source(&start, &env));
    tell_restarts(o, &env);
    if (o->deepspeed_config && (st = ls_ds_config_load(o->deepspeed_config, &ds)) != LS_OK) {
        explain_json(o, o->precision, false, st, false);
        goto done;
    }
    job j = {.o = o, .ds = o->deepspeed_config ? &ds : NULL, .id = &id};
    if (env.size > 1 && !gethostname(host, sizeof host - 1)) j.host = host;
    LS_TRY_GOTO(st, done, report_alone(&j, &env, choose_device(&j, &env)));
    bool more = false;
    LS_TRY_GOTO(st, done, train_start_workers(&start, &env, &j.device, &more));
    if (more) LS_TRY_GOTO(st, done, choose_device(&j, &env));
    if (env.size == 1 && !o->print_config) print_device(&j); /* else after the workers agree */
    LS_TRY_GOTO(st, done, refuse_early(&j, &env));
    LS_TRY_GOTO(st, done, train_start_data(&start, &env));
    j.tells_folder = start.made_folder;
    LS_TRY_GOTO(st, done, cli_translate_check(o, !env.rank));
    LS_TRY_GOTO(st, done, train_start_choose(&start, &env, j.ds, &j.device));
    leave_comm(&start.o, &env);
    if (!train_is_supervised(o)) j.check = start.check;
    st = run(&j, &env);
    if (st == LS_E_STOPPED && j.check && j.check->measured > 0 && !ls_stop_requested()) {
        j.check = NULL; /* once */
        LS_TRY_GOTO(st, done, train_start_again(&start));
        st = run(&j, &env);
    }
    if (st == LS_OK && !o->print_config && !env.rank) st = cli_translate_epochs(o, &j.device);
    if (st == LS_OK && o->summary && !o->print_config && !env.rank) st = train_end_summary(o, &j.device);
done:
    if (st != LS_OK && o->print_config && ds.root) explain_json(o, o->precision, false, st, true);
    if (saved >= 0) {
        const ls_status printed = restore_stdout(saved, st == LS_OK && !env.rank ? o->checkpoint_path : NULL);
        if (st == LS_OK) st = printed;
    }
    train_start_fini(&start, st != LS_OK);
    ls_ds_config_fini(&ds);
    ls_run_identity_fini(&id);
    return st;
}
