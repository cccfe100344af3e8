#include "cli/launch_supervise.h"
#include "cli/supervise.h"
#include "cli/train_layout.h"
#include "cli/train_start.h"
#include "cli/train_supervise.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/lock.h"
#include "core/progress.h"
#include "core/stop.h"
#include "train/trainer.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_TIME  10.0 /* seconds for a host to answer */
#define PROBE_PERIOD 15.0 /* seconds between two questions to a lost host */
#define MOST_WORKERS 4096

typedef struct launched {
    supervise s;
    train_start start; /* the options of `train` */
    ls_ds_config ds;
    ls_device_choice device;
    const ls_argv *command;    /* of another launcher, or the arguments of lockstep */
    ls_launch_plan *all, *use; /* NULL: another launcher */
    int n_use;                 /* hosts of the whole run; the others are spares */
    int host[LS_LAUNCH_HOSTS]; /* of `use`: numbers in `all` */
    bool lost[LS_LAUNCH_HOSTS];
    bool bad[LS_LAUNCH_HOSTS]; /* its numbers were wrong */
    ls_launch_probe *probe[LS_LAUNCH_HOSTS];
    double probed_at;
    int least, most;
    train_layout layout;
    ls_train_options now; /* of the next attempt, if resized */
    bool resized;
} launched;

/* ---- the command ---- */

/* The position of `train` in a command of another launcher; -1: there is none. */
static int find_train(const ls_argv *command)
{
    for (int i = 0; i + 1 < command->n; i++)
        if (!strcmp(ls_path_base(command->word[i]), "lockstep") && !strcmp(command->word[i + 1], "train")) return i + 1;
    return -1;
}

/* The options of `train` at position `at`, and the run folder. */
static ls_status read_train(launched *v, int at)
{
    supervise *s = &v->s;
    LS_TRY(train_start_parse(&v->start, v->command->n - at - 1, v->command->word + at + 1));
    const char *run = v->start.o.checkpoint_path, *twice = train_restart_option(&v->start.o);
    if (twice)
        return ls_fail(LS_E_ARG,
                       "remove --%s from the train command: lockstep launch restarts the run, with the options "
                       "before --",
                       twice);
    if (snprintf(s->run_dir, sizeof s->run_dir, "%s", run) >= (int)sizeof s->run_dir)
        return ls_fail(LS_E_IO, "the path %.60s... is too long", run);
    s->resume = v->start.o.resume;
    return LS_OK;
}

/* Options of the command that the run folder does not keep. */
static ls_status add_own(const ls_train_options *o, ls_argv *out)
{
    static const char *const name[] = {"json", "profile", "profile_mode"}; /* switches */
    for (size_t i = 0; i < CLI_COUNT(name); i++)
        if (ls_train_given(o, name[i])) LS_TRY(ls_argv_addf(out, "--%s", name[i]));
    return ls_train_given(o, "profile_spans") ? ls_argv_addf(out, "--profile_spans=%lld", (long long)o->profile_spans)
                                              : LS_OK;
}

/* The command line of an attempt. A run on another number of workers takes its batch from the run folder. */
static ls_status compose(const launched *v, ls_argv *out)
{
    const supervise *s = &v->s;
    const ls_train_options *o = &v->now;
    if (v->resized && s->resume) {
        LS_TRY(ls_argv_add(out, "train"));
        LS_TRY(ls_argv_addf(out, "--resume=%s", s->run_dir));
    } else LS_TRY(ls_argv_add_all(out, v->command));
    LS_TRY(ls_argv_addf(out, "--attempt=%d", s->resume ? s->attempt : 1));
    if (!v->resized) return LS_OK;
    if (s->resume) LS_TRY(add_own(&v->start.o, out));
    LS_TRY(ls_argv_addf(out, "--pp=%lld", (long long)o->pp));
    LS_TRY(ls_argv_addf(out, "--micro_batch_size_per_gpu=%lld", (long long)o->micro_batch_size_per_gpu));
    return ls_argv_addf(out, "--global_batch_size=%lld", (long long)o->global_batch_size);
}

/* torchrun exits with 1 whatever the exit code of its workers is. */
static bool hides_codes(const char *program)
{
    const char *base = ls_path_base(program);
    return !strcmp(base, "torchrun") || !strncmp(base, "python", 6);
}

static ls_status command_attempt(void *ctx, supervise *s, supervise_end *end)
{
    launched *v = ctx;
    ls_argv words = {0};
    ls_launch_end how = {.rank = -1};
    ls_status st = compose(v, &words);
    if (st == LS_OK) st = ls_launch_command(&words, supervise_tick, s, &how);
    ls_argv_fini(&words);
    if (st == LS_E_NUMERIC && hides_codes(v->command->word[0])) st = LS_E_COMM;
    if (how.signal) end->cause = "killed";
    end->vague = how.status;
    end->code = true;
    end->outside = how.signal == SIGKILL;
    snprintf(end->detail, sizeof end->detail, "%s", how.detail);
    return st;
}

/* ---- hosts ---- */

/* Asks the hosts of the attempt whether they answer; the first that does not, -1: all do. */
static int find_lost(launched *v)
{
    int pending = 0, first = -1;
    for (int i = 0; i < v->use->n_host; i++)
        if (ls_launch_probe_start(v->all, v->host[i], &v->probe[v->host[i]]) == LS_OK) pending++;
        else ls_err_clear();
    while (pending && !ls_stop_requested()) {
        for (int i = 0; i < v->use->n_host; i++) {
            ls_launch_probe **p = &v->probe[v->host[i]];
            const int answers = *p ? ls_launch_probe_poll(p, ANSWER_TIME) : -1;
            if (answers < 0) continue;
            pending--;
            v->lost[v->host[i]] = !answers;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    for (int i = v->use->n_host - 1; i >= 0; i--)
        if (v->lost[v->host[i]]) first = v->host[i];
    return first;
}

static ls_status hosts_attempt(void *ctx, supervise *s, supervise_end *end)
{
    launched *v = ctx;
    ls_argv words = {0}, env = {0};
    ls_status st = compose(v, &words);
    if (st == LS_OK) st = ls_argv_add_all(&env, &v->all->env);
    if (st == LS_OK) st = ls_argv_addf(&env, "LOCKSTEP_ATTEMPT=%d", s->attempt);
    v->use->argv = words;
    v->use->env = env;
    v->use->tick = supervise_tick;
    v->use->ctx = s;
    if (st == LS_OK) st = ls_launch_hosts(v->use);
    ls_argv_fini(&words);
    ls_argv_fini(&env);
    v->use->env = v->all->env;
    if (st == LS_OK || st == LS_E_STOPPED || ls_stop_requested()) return st;
    ls_err_kept why;
    ls_err_keep(&why);
    const int lost = find_lost(v);
    ls_err_restore(&why);
    const ls_launch_end *how = &v->use->end;
    if (how->host >= 0) snprintf(end->host, sizeof end->host, "%s", v->use->host[how->host].name);
    end->sure = how->sure;
    end->rank = how->sure ? how->rank : -1;
    end->cause = how->stopped ? "stopped" : how->signal ? "killed" : NULL;
    end->outside = how->signal == SIGKILL || how->stopped;
    snprintf(end->detail, sizeof end->detail, "%s", how->detail);
    if (lost < 0) return st;
    end->rank = -1;
    end->lost = end->outside = true;
    end->sure = false;
    end->cause = "host lost";
    snprintf(end->host, sizeof end->host, "%s", v->all->host[lost].name);
    snprintf(end->detail, sizeof end->detail, "host %.250s does not answer", v->all->host[lost].name);
    return st;
}

/* The place in `use` of the host of a worker; -1: none. */
static int place_of(const launched *v, int rank)
{
    for (int i = 0; i < v->use->n_host; i++) {
        if (rank < v->use->host[i].n) return i;
        rank -= v->use->host[i].n;
    }
    return -1;
}

static void host_of(void *ctx, int rank, char host[256])
{
    const launched *v = ctx;
    const int i = place_of(v, rank);
    if (i >= 0) snprintf(host, 256, "%s", v->use->host[i].name);
}

/* The hosts of the next attempt: those that answer and compute well, in the order of the list. If they are too few and the run is not elastic,
 * others fill up the number. The number of workers. */
static int choose_hosts(const launched *v, int host[LS_LAUNCH_HOSTS], int *n)
{
    bool used[LS_LAUNCH_HOSTS] = {false};
    int sum = 0, k = 0;
    for (int worst = 0; worst <= (v->least ? 0 : 2);
         worst++) /* good ones, then lost ones, then those with wrong numbers */
        for (int i = 0; i < v->all->n_host && k < v->n_use; i++)
            if (!used[i] && (v->bad[i] ? 2 : v->lost[i]) == worst) used[i] = true, k++;
    *n = 0;
    for (int i = 0; i < v->all->n_host; i++)
        if (used[i]) host[(*n)++] = i;
    for (int i = 0; i < *n; i++) sum += v->all->host[host[i]].n;
    return sum < v->most || !v->most ? sum : v->most;
}

/* Makes them the hosts of the plan, with `size` workers in proportion. */
static void use_hosts(launched *v, const int host[LS_LAUNCH_HOSTS], int n, int size)
{
    int sum = 0, before = 0, given = 0, k = 0;
    for (int i = 0; i < n; i++) sum += v->all->host[host[i]].n;
    for (int i = 0; i < n; i++) {
        before += v->all->host[host[i]].n;
        const int upto = (int)((int64_t)size * before / sum);
        if (upto == given) continue; /* fewer workers than hosts */
        v->host[k] = host[i];
        v->use->host[k] = v->all->host[host[i]];
        v->use->host[k++].n = upto - given;
        given = upto;
    }
    v->use->n_host = k;
    v->use->size = size;
    v->use->address = v->host[0] ? NULL : v->all->address; /* --master_addr is that of the first host of the list */
}

static bool is_in(const int *host, int n, int one)
{
    for (int i = 0; i < n; i++)
        if (host[i] == one) return true;
    return false;
}

/* For people: the host that is avoided, and each one that the attempt before did not use. Hosts that were avoided or lost come back where no
 * others are left. */
static void tell_hosts(const launched *v, const int *before, int n_before, int avoid)
{
    const int n = v->use->n_host;
    if (avoid >= 0 && !is_in(v->host, n, avoid))
        ls_progress_say("lockstep: host %s is avoided from now on: its numbers were wrong\n", v->all->host[avoid].name);
    for (int i = 0; i < n; i++) {
        const int k = v->host[i];
        const char *name = v->all->host[k].name;
        if (k != avoid && is_in(before, n_before, k)) continue;
        if (v->bad[k] || v->lost[k])
            ls_progress_say("lockstep: host %s is used again, although it %s: no other host is left\n", name,
                            v->bad[k] ? "computed wrong numbers" : "did not answer");
        else if (k >= v->n_use) ls_progress_say("lockstep: spare host %s is used\n", name);
    }
}

static ls_status hosts_next(void *ctx, supervise *s, const supervise_end *e)
{
    launched *v = ctx;
    const bool wrong = e && !strcmp(e->cause, "corruption") && e->rank >= 0;
    const int place = wrong ? place_of(v, e->rank) : -1;
    const int avoid = place >= 0 && (v->least || v->all->n_spare) ? v->host[place] : -1;
    if (avoid >= 0) v->bad[avoid] = true;
    int host[LS_LAUNCH_HOSTS], n = 0, size = choose_hosts(v, host, &n);
    if (!v->least) size = s->workers;
    else if (s->wanted) size = s->wanted;
    else if (e) s->why = "a worker was lost";
    if (v->least && size != s->workers) {
        if (!e) LS_TRY(train_layout_most(&v->layout, size, v->least, &v->now));
        else if (!train_layout_without(&v->layout, s->workers, size, v->least, &v->now)) {
            if (avoid >= 0) v->bad[avoid] = false;
            return LS_OK; /* the same hosts */
        }
        size = (int)v->now.n;
        v->resized = true;
    }
    int before[LS_LAUNCH_HOSTS];
    const int n_before = v->use->n_host;
    memcpy(before, v->host, sizeof before);
    use_hosts(v, host, n, size);
    tell_hosts(v, before, n_before, avoid);
    s->workers = size;
    return LS_OK;
}

/* The number of workers on all hosts that answer, if it is larger than now. */
static int hosts_want(void *ctx, supervise *s)
{
    launched *v = ctx;
    const bool again = ls_now() - v->probed_at > PROBE_PERIOD;
    int host[LS_LAUNCH_HOSTS], n = 0;
    ls_train_options o;
    ls_err_kept before;
    ls_err_keep(&before);
    if (again) v->probed_at = ls_now();
    for (int i = 0; i < v->all->n_host; i++) {
        ls_launch_probe **p = &v->probe[i];
        if (v->lost[i] && !*p && again && ls_launch_probe_start(v->all, i, p) != LS_OK) *p = NULL;
        if (*p && ls_launch_probe_poll(p, ANSWER_TIME) == 1) v->lost[i] = false;
    }
    const int size = choose_hosts(v, host, &n);
    const bool grows = size > s->workers && train_layout_most(&v->layout, size, s->workers + 1, &o) == LS_OK;
    ls_err_restore(&before);
    return grows ? (int)o.n : 0;
}

static ls_status configure(void *ctx, const ls_train_options *o, ls_train_config *c)
{
    const launched *v = ctx;
    ls_train_paths paths = {0};
    ls_train_facts facts = {.world_size = (int)o->n, .data_eos_id = -1, .device = &v->device};
    ls_status st = train_start_facts(o, &paths, &facts);
    if (st == LS_OK) st = ls_train_resolve(o, o->deepspeed_config ? &v->ds : NULL, &paths, &facts, c);
    ls_train_paths_fini(&paths);
    LS_TRY(st);
    st = ls_train_check_layout(c);
    if (st != LS_OK) ls_train_config_fini(c);
    return st;
}

/* What must stay as it is when the number of workers changes. */
static ls_status open_layout(launched *v)
{
    const ls_train_options *o = &v->start.o;
    LS_TRY(supervise_parse_elastic(o->elastic, v->use->size, MOST_WORKERS, &v->least, &v->most));
    if (!v->least) return LS_OK;
    if (o->no_deterministic)
        return ls_fail(LS_E_ARG, "--elastic needs deterministic mode: leave --no_deterministic out");
    if (o->resume && !o->data && !o->train_data_path)
        return ls_fail(LS_E_ARG, "--elastic needs the options of the run: give --data with --resume");
    if (o->deepspeed_config) LS_TRY(ls_ds_config_load(o->deepspeed_config, &v->ds));
    LS_TRY(ls_device_choose(ls_train_given(o, "device") ? o->device : NULL,
                            ls_train_given(o, "compute") ? "--compute" : NULL, 1, 0, &v->device));
    ls_train_options sized = *o;
    ls_train_put(&sized, "n", v->use->size);
    return train_layout_open(&v->layout, &sized, configure, v);
}

static ls_status set_up_hosts(launched *v, const launch_limits *m)
{
    int host[LS_LAUNCH_HOSTS], n;
    v->n_use = v->all->n_host - v->all->n_spare;
    *v->use = *v->all;
    const int size = choose_hosts(v, host, &n);
    use_hosts(v, host, n, size);
    v->s.workers = size;
    v->s.hosts = true;
    v->s.ops = (supervise_ops){.ctx = v, .attempt = hosts_attempt, .next = hosts_next, .host_of = host_of};
    v->start.o.elastic = m->elastic;
    LS_TRY(open_layout(v));
    if (v->least) v->s.ops.wants = hosts_want;
    return LS_OK;
}

/* ---- both ---- */

/* The lock of the supervisor, for all attempts: run.lock is that of the workers, and free between attempts. Held now, the folder is that of
 * a run without this supervisor, and nothing in it may change. */
static ls_status lock_folder(const char *run_dir, ls_lock *lock)
{
    char path[PATH_MAX];
    ls_lock workers = {0};
    LS_TRY(ls_fs_mkdirs(run_dir));
    LS_TRY(ls_path_in(path, run_dir, LS_SUPERVISE_LOCK));
    LS_TRY(ls_lock_take(lock, path, LS_RUN_LOCK_TIME, LS_RUN_LOCK_ADVICE));
    LS_TRY(ls_path_in(path, run_dir, LS_RUN_LOCK));
    LS_TRY(ls_lock_take(&workers, path, LS_RUN_LOCK_TIME, LS_RUN_LOCK_ADVICE));
    ls_lock_release(&workers);
    return LS_OK;
}

static ls_status run(launched *v, const launch_limits *m)
{
    ls_lock lock = {0};
    const bool had_folder = ls_fs_exists(v->s.run_dir);
    v->s.max_restarts = m->max_restarts >= 0 ? m->max_restarts : SUPERVISE_RESTARTS;
    ls_stop_install();
    const ls_stop_mode before = ls_stop_set_mode(LS_STOP_PARENT);
    ls_status st = lock_folder(v->s.run_dir, &lock);
    if (st == LS_OK) st = supervise_run(&v->s);
    ls_lock_release(&lock);
    if (supervise_can_continue(&v->s, st))
        ls_progress_say("lockstep: to continue, start the command again with --resume %s\n",
                        ls_quoted(v->s.run_dir).text);
    if (!had_folder) (void)rmdir(v->s.run_dir); /* empty: refused before the run began */
    ls_stop_set_mode(before);
    return st;
}

static void finish(launched **v)
{
    for (int i = 0; (*v)->all && i < (*v)->all->n_host; i++)
        if ((*v)->probe[i]) (void)ls_launch_probe_poll(&(*v)->probe[i], 0);
    train_start_fini(&(*v)->start, false);
    ls_ds_config_fini(&(*v)->ds);
    ls_free((*v)->use);
    ls_free(*v);
}

ls_status launch_supervise_hosts(ls_launch_plan *all, const launch_limits *m)
{
    launched *v = ls_alloc(sizeof *v);
    if (!v) return ls_nomem(sizeof *v, "the supervisor");
    v->all = all;
    v->command = &all->argv;
    v->use = ls_alloc(sizeof *v->use);
    ls_status st = v->use ? LS_OK : ls_nomem(sizeof *v->use, "the hosts");
    if (st == LS_OK && strcmp(all->argv.word[0], "train"))
        st =
            ls_fail(LS_E_ARG, "--max_restarts, --elastic and --hot_spare are for train, not for %s", all->argv.word[0]);
    if (st == LS_OK) st = read_train(v, 0);
    if (st == LS_OK) st = set_up_hosts(v, m);
    if (st == LS_OK) st = run(v, m);
    finish(&v);
    return st;
}

ls_status launch_supervise_command(const ls_argv *command, const launch_limits *m)
{
    const int at = find_train(command);
    if (at < 0)
        return ls_fail(LS_E_ARG,
                       "the command has no words `lockstep train`, such as: lockstep launch --max_restarts 3 -- "
                       "mpirun -n 4 lockstep train --data data");
    launched *v = ls_alloc(sizeof *v);
    if (!v) return ls_nomem(sizeof *v, "the supervisor");
    v->command = command;
    v->s.ops = (supervise_ops){.ctx = v, .attempt = command_attempt};
    ls_status st = read_train(v, at);
    if (st == LS_OK) st = run(v, m);
    finish(&v);
    return st;
}
