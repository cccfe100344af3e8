#include "cli/train_supervise.h"
#include "cli/commands.h"
#include "compute/look.h"
#include "config/run_options.h"
#include "core/fs.h"
#include "core/progress.h"
#include "core/stop.h"
#include "train/trainer.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef struct supervisor {
    supervise s; /* first: shared with the workers */
    const train_runner *r;
    train_layout layout; /* of the run */
    ls_train_options o;  /* of the next attempt */
    int least, most;     /* --elastic; 0: the number of workers is fixed */
    int spares;          /* left */
    ls_argv gpu;         /* GPUs for CUDA_VISIBLE_DEVICES, of which the first ones are used; empty: as they are */
} supervisor;

const char *train_restart_option(const ls_train_options *o)
{
    return o->max_restarts ? "max_restarts" : o->elastic ? "elastic" : o->hot_spare ? "hot_spare" : NULL;
}

bool train_is_supervised(const ls_train_options *o)
{
    return train_restart_option(o) != NULL;
}

bool train_is_resizing(const supervise *s)
{
    return s && s->wanted;
}

ls_status train_supervise_check(const ls_train_options *o, const ls_start_env *e)
{
    int least, most;
    const char *option = train_restart_option(o);
    if (!option) return LS_OK;
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
    LS_TRY(supervise_check_spares(o->hot_spare, ls_train_given(o, "max_restarts") ? o->max_restarts : -1));
    if (o->elastic && o->no_deterministic)
        return ls_fail(LS_E_ARG, "--elastic needs deterministic mode: leave --no_deterministic out");
    const bool of_run = o->resume && !ls_train_given(o, "n"); /* -n comes from the run folder, which is read later */
    return supervise_parse_elastic(o->elastic, of_run ? 0 : o->n, LS_LAUNCH_MOST, &least, &most);
}

static ls_status attempt(void *ctx, supervise *s, supervise_end *end)
{
    supervisor *v = ctx;
    ls_launch_end how = {.rank = -1};
    v->o.attempt = s->resume ? s->attempt : 1;
    ls_status st = v->r->attempt(v->r->ctx, &v->o, s, &how);
    if (how.silent && st != LS_E_STOPPED) st = ls_fail(LS_E_COMM, "%s", how.detail); /* its exit code has no meaning */
    end->rank = how.rank;
    end->lost = how.signal || how.stopped || how.silent || st == LS_E_DEVICE;
    end->outside = how.signal == SIGKILL || how.stopped;
    end->cause = how.stopped ? "stopped" : how.signal ? "killed" : NULL;
    snprintf(end->detail, sizeof end->detail, "%s", how.detail);
    return st;
}

/* The GPUs that the program sees, by the names that CUDA_VISIBLE_DEVICES has for them. */
static ls_status list_gpus(supervisor *v, const ls_device_choice *d)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const int64_t needed = v->o.n + v->spares;
    ls_look found = {0};
    if (!d->cuda || (!v->spares && !v->least)) return LS_OK;
    if (d->index >= 0 && v->spares)
        return ls_fail(LS_E_ARG, "--hot_spare: all workers share the GPU of --device %s; use --device cuda", d->asked);
    if (d->index >= 0) return LS_OK;
    ls_gpu_look(-1, 0, &found);
    for (int i = 0; visible && *visible && i < found.info.count; i++) {
        const size_t n = strcspn(visible, ",");
        LS_TRY(ls_argv_addf(&v->gpu, "%.*s", (int)n, visible));
        visible += n + (visible[n] == ',');
    }
    for (int i = 0; !visible && i < found.info.count; i++) LS_TRY(ls_argv_addf(&v->gpu, "%d", i));
    if (v->spares && v->gpu.n < needed)
        return ls_fail(LS_E_CONFIG, "--hot_spare %d: %lld workers and the spares need %lld GPUs; %d are visible",
                       v->spares, (long long)v->o.n, (long long)needed, v->gpu.n);
    return LS_OK;
}

static void show_gpus(const supervisor *v)
{
    ls_str s = {0};
    for (int i = 0; i < v->gpu.n; i++) ls_str_addf(&s, "%s%s", i ? "," : "", v->gpu.word[i]);
    if (s.data && !s.failed) setenv("CUDA_VISIBLE_DEVICES", s.data, 1);
    ls_str_fini(&s);
}

/* The GPU of a lost worker becomes the last one of the list: the others, spares first, are used instead. */
static void set_gpu_back(supervisor *v, int rank)
{
    if (rank < 0 || rank >= v->gpu.n) return;
    char *gpu = v->gpu.word[rank];
    for (int i = rank; i + 1 < v->gpu.n; i++) v->gpu.word[i] = v->gpu.word[i + 1];
    v->gpu.word[v->gpu.n - 1] = gpu;
    show_gpus(v);
    ls_progress_say("lockstep: GPU %s of rank %d is used last from now on\n", gpu, rank);
}

/* The nearest number of workers in the direction `by` that is possible; 0: none. */
static int nearest(const supervisor *v, int wanted, int by)
{
    ls_train_options o;
    for (int n = wanted + by; n >= v->least && n <= v->most; n += by)
        if (train_layout_fit(&v->layout, n, &o) == LS_OK) return n;
    return 0;
}

static ls_status allows(void *ctx, supervise *s, int wanted)
{
    supervisor *v = ctx;
    ls_train_options o;
    ls_err_kept why;
    char possible[64] = "";
    (void)s;
    if (wanted < v->least || wanted > v->most)
        return ls_fail(LS_E_CONFIG, "%d workers are outside of --elastic %d:%d", wanted, v->least, v->most);
    const ls_status st = train_layout_fit(&v->layout, wanted, &o);
    if (st != LS_E_CONFIG) return st;
    ls_err_keep(&why);
    const int below = nearest(v, wanted, -1), above = nearest(v, wanted, 1);
    ls_err_restore(&why);
    if (below && above) snprintf(possible, sizeof possible, "; ask for %d or %d workers", below, above);
    else if (below || above) snprintf(possible, sizeof possible, "; ask for %d", below ? below : above);
    char words[512];
    snprintf(words, sizeof words, "%.400s", ls_err_words());
    return ls_fail(st, "%s%s", words, possible);
}

/* A request is fulfilled. A lost worker is replaced by a spare, else the run continues without it if a layout allows it. Other failures
 * change nothing. */
static ls_status next(void *ctx, supervise *s, const supervise_end *e)
{
    supervisor *v = ctx;
    if (e && e->lost) set_gpu_back(v, e->rank);
    if (s->wanted) LS_TRY(train_layout_most(&v->layout, s->wanted, v->least, &v->o));
    else if (e && e->lost && v->spares) {
        v->spares--;
        ls_progress_say("lockstep: a spare replaces the lost worker (%d left)\n", v->spares);
    } else if (e && e->lost && v->least && s->workers > v->least && /* else it starts again with as many */
               train_layout_without(&v->layout, s->workers, s->workers - 1, v->least, &v->o))
        s->why = "a worker was lost";
    s->workers = (int)v->o.n;
    return LS_OK;
}

/* The lock of the run folder, for all attempts. */
static ls_status lock_folder(const char *run_dir, ls_lock *lock)
{
    char path[PATH_MAX];
    LS_TRY(ls_fs_mkdirs(run_dir));
    LS_TRY(ls_path_in(path, run_dir, LS_RUN_LOCK));
    return ls_lock_take(lock, path, LS_RUN_LOCK_TIME, LS_RUN_LOCK_ADVICE);
}

/* A resumed run may have another number of workers than its layout allows: with --elastic the layout changes, as it does while the run
 * trains. */
static ls_status open_layout(supervisor *v, const ls_train_options *o)
{
    v->o = *o;
    const ls_status st = train_layout_open(&v->layout, o, v->r->configure, v->r->ctx);
    if (st != LS_E_CONFIG || !v->least || !train_layout_resume(&v->layout, o)) return st;
    LS_TRY(train_layout_fit(&v->layout, (int)o->n, &v->o));
    ls_err_clear();
    return train_layout_open(&v->layout, &v->o, v->r->configure, v->r->ctx);
}

static ls_status set_up(supervisor *v, const ls_train_options *o)
{
    supervise *s = &v->s;
    LS_TRY(supervise_parse_elastic(o->elastic, o->n, LS_LAUNCH_MOST, &v->least, &v->most));
    LS_TRY(open_layout(v, o));
    if (snprintf(s->run_dir, sizeof s->run_dir, "%s", o->checkpoint_path) >= (int)sizeof s->run_dir)
        return ls_fail(LS_E_IO, "the path %.60s... is too long", o->checkpoint_path);
    v->spares = (int)o->hot_spare;
    s->max_restarts = ls_train_given(o, "max_restarts") ? (int)o->max_restarts : SUPERVISE_RESTARTS;
    s->workers = (int)o->n;
    s->resume = o->resume;
    s->ops = (supervise_ops){.ctx = v, .attempt = attempt, .next = next, .allows = v->least ? allows : NULL};
    return LS_OK;
}

/* After a signal of the user, or a disk that must be repaired; the worker has printed what it saved. */
static void tell_how_to_continue(const supervisor *v)
{
    ls_err_kept words;
    ls_str s = {0};
    ls_err_keep(&words);
    ls_run_options_typed(v->s.run_dir, "restarts", &s);
    ls_run_options_typed(v->s.run_dir, "again", &s);
    ls_progress_say("lockstep: to continue: lockstep train --resume %s%s\n", ls_quoted(v->s.run_dir).text,
                    s.data ? s.data : "");
    ls_str_fini(&s);
    ls_err_restore(&words);
}

ls_status train_supervise(const train_runner *r, const ls_train_options *o, const ls_device_choice *d)
{
    ls_lock lock = {0};
    int server = 0;
    supervisor *v = mmap(NULL, sizeof *v, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (v == MAP_FAILED) return ls_nomem(sizeof *v, "the supervisor");
    v->r = r;
    ls_stop_install();
    const ls_stop_mode before = ls_stop_set_mode(LS_STOP_PARENT);
    ls_status st = set_up(v, o);
    if (st == LS_OK) st = list_gpus(v, d);
    if (st == LS_OK) st = cli_serve_begin(o, v->s.run_dir, &server); /* before the lock, which it must not inherit */
    if (st == LS_OK) st = lock_folder(v->s.run_dir, &lock);
    if (st == LS_OK) st = supervise_run(&v->s);
    if (supervise_can_continue(&v->s, st)) tell_how_to_continue(v);
    ls_lock_release(&lock);
    cli_serve_end(server);
    ls_stop_set_mode(before);
    ls_argv_fini(&v->gpu);
    munmap(v, sizeof *v);
    return st;
}
