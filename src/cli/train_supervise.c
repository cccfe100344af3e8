#include "cli/train_supervise.h"
#include "cli/commands.h"
#include "core/fs.h"
#include "core/stop.h"
#include "train/trainer.h"

#include <stdlib.h>
#include <sys/mman.h>

#define DEFAULT_RESTARTS 3 /* with --elastic or --hot_spare */

typedef struct supervisor {
    supervise s; /* first: shared with the workers */
    const train_runner *r;
    ls_train_options o; /* of the next attempt */
    int least, most;    /* --elastic; 0: the number of workers is fixed */
    int spares;         /* left */
} supervisor;

bool train_is_supervised(const ls_train_options *o)
{
    return o->max_restarts || o->elastic || o->hot_spare;
}

bool train_is_resizing(const supervise *s)
{
    return s && s->wanted;
}

static ls_status parse_elastic(const ls_train_options *o, int *least, int *most)
{
    int64_t a = 0, b = 0;
    char text[64] = "";
    *least = *most = 0;
    if (!o->elastic) return LS_OK;
    if (strlen(o->elastic) < sizeof text) snprintf(text, sizeof text, "%s", o->elastic);
    char *colon = strchr(text, ':');
    if (colon) *colon = '\0';
    if (!colon || !ls_parse_i64(text, &a) || !ls_parse_i64(colon + 1, &b) || a < 1 || b < a || b > LS_LAUNCH_MOST)
        return ls_fail(LS_E_ARG, "--elastic %s: must be MIN:MAX with 1 <= MIN <= MAX <= %d, such as 2:8", o->elastic,
                       LS_LAUNCH_MOST);
    if (o->n < a || o->n > b)
        return ls_fail(LS_E_ARG, "--elastic %s: -n %lld is outside; the run starts with -n workers", o->elastic,
                       (long long)o->n);
    *least = (int)a;
    *most = (int)b;
    return LS_OK;
}

ls_status train_supervise_check(const ls_train_options *o, const ls_start_env *e)
{
    int least, most;
    if (!train_is_supervised(o)) return LS_OK;
    const char *option = o->max_restarts ? "max_restarts" : o->elastic ? "elastic" : "hot_spare";
    if (e->size > 1 && getenv("LOCKSTEP_LAUNCH"))
        return ls_fail(LS_E_ARG,
                       "--%s: a worker cannot restart the run; use lockstep launch --hosts ... --%s ... -- train ...",
                       option, option);
    const char *by = e->by == LS_STARTED_MPI ? "mpirun" : e->by == LS_STARTED_SRUN ? "srun" : "torchrun";
    if (e->size > 1)
        return ls_fail(LS_E_ARG,
                       "--%s: a worker of %s cannot restart the run; use lockstep launch --max_restarts 3 -- %s ... "
                       "lockstep train ...",
                       option, by, by);
    if (o->elastic && o->no_deterministic)
        return ls_fail(LS_E_ARG, "--elastic needs deterministic mode: leave --no_deterministic out");
    return parse_elastic(o, &least, &most);
}

static ls_status attempt(void *ctx, supervise *s, supervise_end *end)
{
    supervisor *v = ctx;
    ls_launch_end how = {.rank = -1};
    v->o.attempt = s->resume ? s->attempt : 1;
    const ls_status st = v->r->attempt(v->r->ctx, &v->o, s, &how);
    end->rank = how.rank;
    end->lost = how.signal || how.stopped;
    end->cause = how.stopped ? "stopped" : how.signal ? "killed" : NULL;
    snprintf(end->detail, sizeof end->detail, "%s", how.detail);
    return st;
}

/* The lock of the run folder, for all attempts. */
static ls_status lock_folder(const char *run_dir, ls_lock *lock)
{
    char path[PATH_MAX];
    LS_TRY(ls_fs_mkdirs(run_dir));
    LS_TRY(ls_path_in(path, run_dir, LS_RUN_LOCK));
    return ls_lock_take(lock, path, LS_RUN_LOCK_TIME, LS_RUN_LOCK_ADVICE);
}

static ls_status set_up(supervisor *v, const ls_train_options *o)
{
    ls_train_config c = {0};
    LS_TRY(parse_elastic(o, &v->least, &v->most));
    LS_TRY(v->r->configure(v->r->ctx, o, &c));
    supervise *s = &v->s;
    ls_status st = LS_OK;
    if (snprintf(s->run_dir, sizeof s->run_dir, "%s", c.run_dir) >= (int)sizeof s->run_dir)
        st = ls_fail(LS_E_IO, "the path %.60s... is too long", c.run_dir);
    ls_train_config_fini(&c);
    LS_TRY(st);
    v->o = *o;
    v->spares = (int)o->hot_spare;
    s->max_restarts = ls_train_given(o, "max_restarts") ? (int)o->max_restarts : DEFAULT_RESTARTS;
    s->workers = (int)o->n;
    s->resume = o->resume;
    s->ops = (supervise_ops){.ctx = v, .attempt = attempt};
    return LS_OK;
}

ls_status train_supervise(const train_runner *r, const ls_train_options *o, const ls_device_choice *d)
{
    ls_lock lock = {0};
    int server = 0;
    (void)d;
    supervisor *v = mmap(NULL, sizeof *v, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (v == MAP_FAILED) return ls_nomem(sizeof *v, "the supervisor");
    v->r = r;
    ls_stop_install();
    const ls_stop_mode before = ls_stop_set_mode(LS_STOP_PARENT);
    ls_status st = set_up(v, o);
    if (st == LS_OK) st = cli_serve_begin(o, v->s.run_dir, &server); /* before the lock, which it must not inherit */
    if (st == LS_OK) st = lock_folder(v->s.run_dir, &lock);
    if (st == LS_OK) st = supervise_run(&v->s);
    ls_lock_release(&lock);
    cli_serve_end(server);
    ls_stop_set_mode(before);
    munmap(v, sizeof *v);
    return st;
}
