#include "train/profile.h"

#include "comm/clock_sync.h"
#include "compute/kernel_times.h"

#include "core/fs.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/trace.h"
#include "train/train_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CKPT_SPANS   1024
#define KERNEL_SPANS 8 /* kernels that are kept for each span of the trainer's thread */

struct ls_profile {
    ls_trace *trace;
    char dir[PATH_MAX];
    ls_kernel_times *kernels; /* of a device's operations; NULL: the host's own, or over */
    int64_t kernels_dropped;
};

/* At the begin and at the end; times between them are interpolated. */
static ls_status compare_clocks(ls_profile *p, ls_comm *comm)
{
    const ls_clock clock = ls_clock_monotonic();
    ls_clock_fix fix = {0};
    if (!comm || ls_comm_size(comm) == 1) return LS_OK;
    LS_TRY(ls_comm_clock(comm, &clock, &fix));
    if (fix.known) ls_trace_clock(p->trace, fix.at, fix.offset, fix.error);
    return LS_OK;
}

/* Times count from the moment when rank 0 begins. No worker records before that: it gets the number later. */
static ls_status share_base(ls_profile *p, ls_comm *comm)
{
    int64_t base = ls_trace_now();
    if (ls_comm_size(comm) > 1) LS_TRY(ls_broadcast(comm, (ls_view){&base, 1, LS_I64}, 0, LS_SITE, NULL));
    ls_trace_set_base(p->trace, base);
    return LS_OK;
}

static ls_status add_lanes(ls_profile *p, ls_trainer *t, ls_lane **main_lane)
{
    const bool groups = t->dp != t->comm;
    ls_lane *writer = NULL;
    LS_TRY(ls_trace_lane(p->trace, "main", t->cfg->profile_spans, main_lane));
    if (ls_comm_size(t->comm) > 1) LS_TRY(ls_comm_trace(t->comm, p->trace, groups ? "world" : "dp"));
    if (groups && ls_comm_size(t->dp) > 1) LS_TRY(ls_comm_trace(t->dp, p->trace, "dp"));
    if (t->pp) {
        LS_TRY(ls_comm_trace(t->pp, p->trace, "pipeline"));
        LS_TRY(ls_comm_trace(t->pp_acts, p->trace, "activations"));
        LS_TRY(ls_comm_trace(t->pp_grads, p->trace, "gradients"));
    }
    if (t->tp) LS_TRY(ls_comm_trace(t->tp, p->trace, "tensor"));
    LS_TRY(ls_trace_lane(p->trace, "checkpoint", CKPT_SPANS, &writer));
    ls_ckpt_writer_trace(t->writer, writer);
    return LS_OK;
}

static void destroy(ls_profile **pp)
{
    ls_profile *p = *pp;
    if (!p) return;
    (void)ls_kernel_times_end(&p->kernels, NULL, NULL);
    ls_trace_destroy(&p->trace);
    ls_free(p);
    *pp = NULL;
}

static ls_status create(ls_profile **out, ls_trainer *t)
{
    ls_profile *p = ls_alloc(sizeof *p);
    if (!p) return ls_nomem(sizeof *p, "a trace");
    *out = p;
    LS_TRY(ls_path_in(p->dir, t->cfg->run_dir, "profiles"));
    return ls_trace_create(&p->trace, ls_comm_rank(t->comm));
}

static void detach(ls_trainer *t)
{
    for (int i = 0; i < t->n_each; i++) (void)ls_comm_trace(t->each[i], NULL, NULL);
    ls_ckpt_writer_trace(t->writer, NULL);
}

/* Kernel times, where the operations run on a device. */
static ls_status watch_device(ls_profile *p, ls_trainer *t)
{
    if (!t->compute.device) return LS_OK;
    if (getenv("NSYS_PROFILING_SESSION_ID")) return LS_OK; /* nsys has CUPTI, and sees the kernels itself */
    LS_TRY(ls_kernel_times_begin(&p->kernels, &t->compute, t->compute.ops->name,
                                 KERNEL_SPANS * (int64_t)t->cfg->profile_spans));
    train_tell(t, "profile: %s\n", ls_kernel_times_words(p->kernels));
    return LS_OK;
}

void ls_profile_device_end(ls_profile *p)
{
    ls_kernel_facts f = {0};
    ls_err_kept error; /* of a failed run: the one to report */
    if (!p || !p->kernels) return;
    ls_err_keep(&error);
    if (ls_kernel_times_end(&p->kernels, p->trace, &f) != LS_OK)
        ls_warn("profile", "the device's times are not in the trace: %s", ls_err_words());
    ls_err_restore(&error);
    p->kernels_dropped = f.dropped + f.lost;
}

ls_status ls_profile_begin(ls_profile **out, ls_trainer *t)
{
    ls_profile *p = NULL;
    ls_lane *main_lane = NULL;
    ls_status st = ls_comm_agree(t->comm, create(&p, t), LS_SITE);
    LS_ASSERT(p || st != LS_OK);
    if (st == LS_OK) st = compare_clocks(p, t->comm);
    if (st == LS_OK) st = share_base(p, t->comm);
    if (st == LS_OK) st = ls_comm_agree(t->comm, add_lanes(p, t, &main_lane), LS_SITE);
    if (st == LS_OK) st = ls_comm_agree(t->comm, watch_device(p, t), LS_SITE);
    if (st != LS_OK) {
        detach(t);
        destroy(&p);
        return st;
    }
    ls_info("profile", "tracing every worker; the last %lld spans are kept", (long long)t->cfg->profile_spans);
    ls_trace_enter(main_lane);
    *out = p;
    return LS_OK;
}

ls_status ls_profile_pause(ls_profile *p, ls_trainer *t, bool pause)
{
    ls_lane *main_lane = NULL;
    if (pause) detach(t);
    else LS_TRY(add_lanes(p, t, &main_lane)); /* the existing ones */
    ls_trace_enter(main_lane);
    return LS_OK;
}

void ls_profile_drop(ls_profile **p, ls_comm *comm)
{
    ls_trace_enter(NULL);
    if (comm) (void)ls_comm_trace(comm, NULL, NULL);
    destroy(p);
}

static ls_status write_part(const ls_profile *p)
{
    char host[64] = "?";
    gethostname(host, sizeof host - 1);
    return ls_trace_write(p->trace, p->dir, host);
}

/* The part of a run that failed. The error of the run is reported, even when the part cannot be written. */
static void write_quietly(const ls_profile *p)
{
    ls_err_kept error;
    ls_err_keep(&error);
    if (write_part(p) != LS_OK) ls_warn("profile", "no trace of this worker: %s", ls_err_words());
    ls_err_restore(&error);
}

/* The parts of all workers exist, or all workers fail. */
static ls_status merge(const ls_profile *p, ls_comm *comm, ls_status st, int64_t *dropped)
{
    const int rank = comm ? ls_comm_rank(comm) : 0, size = comm ? ls_comm_size(comm) : 1;
    if (comm) {
        LS_TRY(ls_comm_agree(comm, st, LS_SITE));
        LS_TRY(ls_reduce(comm, (ls_view){dropped, 1, LS_I64}, 0, LS_SITE, NULL));
    }
    LS_TRY(st);
    return rank ? LS_OK : ls_trace_merge(p->dir, size);
}

ls_status ls_profile_end(ls_profile **pp, ls_comm *comm, ls_status run, int64_t *dropped)
{
    ls_profile *p = *pp;
    if (!p) return LS_OK;
    ls_trace_enter(NULL);
    if (comm) (void)ls_comm_trace(comm, NULL, NULL);
    (void)ls_trace_spans(p->trace, dropped);
    *dropped += p->kernels_dropped;
    ls_status st = run;
    if (run == LS_OK || run == LS_E_STOPPED) {
        st = compare_clocks(p, comm);
        if (st == LS_OK) st = merge(p, comm, write_part(p), dropped);
    } else write_quietly(p);
    destroy(pp);
    return st;
}
