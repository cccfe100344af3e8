/* planner_measure_offload.c - measures the update of a state in host memory: by the CPU, and by CPU and GPU together.
 *
 * The GPU updates one half of an array over the bus, and the CPU slices of the other half until the GPU is done, as in
 * parallel/offload.c. All workers measure at the same time, because they share the memory of the host. The array grows until a repetition is
 * long enough to time, or to the largest size, which no cache holds. */
#include "plan/planner_measure_impl.h"

#include "core/clock.h"
#include "core/minmax.h"

#define ENOUGH 20e-3 /* seconds of a repetition */
enum { LEAST = 1 << 17, MOST = 1 << 25, SLICE = 1 << 16 };

typedef struct offload_job {
    ls_compute *c;
    int64_t n; /* elements */
    float *master, *m, *v, *grad;
    void *p;                /* where the CPU puts parameters */
    void *gpu_grad, *gpu_p; /* in device memory */
} offload_job;

static ls_status take(offload_job *j)
{
    const ls_device *d = j->c->device;
    const size_t wide = (size_t)j->n * sizeof(float), narrow = (size_t)j->n * ls_dtype_nbytes(j->c->ops->dtype);
    void **host[] = {(void **)&j->master, (void **)&j->m, (void **)&j->v, (void **)&j->grad};
    for (size_t i = 0; i < sizeof host / sizeof host[0]; i++) LS_TRY(d->alloc_host(d->ctx, wide, host[i]));
    LS_TRY(d->alloc_host(d->ctx, narrow, &j->p));
    LS_TRY(d->alloc(d->ctx, wide, &j->gpu_grad));
    return d->alloc(d->ctx, narrow, &j->gpu_p);
}

static void give(offload_job *j)
{
    const ls_device *d = j->c->device;
    void *host[] = {j->master, j->m, j->v, j->grad, j->p}, *there[] = {j->gpu_grad, j->gpu_p};
    (void)d->sync(d->ctx);
    for (size_t i = 0; i < sizeof host / sizeof host[0]; i++)
        if (host[i]) d->release_host(d->ctx, host[i]);
    for (size_t i = 0; i < sizeof there / sizeof there[0]; i++)
        if (there[i]) d->release(d->ctx, there[i]);
}

static const ls_adamw some = {
    .lr = 1e-9, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .bias1 = 1, .bias2 = 1, .grad_scale = 1};

static ls_status on_cpu(offload_job *j, int64_t at, int64_t n)
{
    char *p = ls_compute_mixed(j->c) ? (char *)ls_at(j->c, j->p, at) : NULL;
    return ls_compute_adamw_host(j->c, p, j->master + at, j->grad + at, j->m + at, j->v + at, n, &some, NULL);
}

/* Seconds per element of the CPU alone. */
static ls_status time_cpu(offload_job *j, double *sec)
{
    const int64_t half = j->n / 2;
    const double begin = ls_now();
    for (int64_t at = 0; at < half; at += SLICE) LS_TRY(on_cpu(j, at, LS_MIN(SLICE, half - at)));
    *sec = (ls_now() - begin) / (double)half;
    return LS_OK;
}

/* And of both; cpu: it takes part. */
static ls_status time_both(offload_job *j, bool cpu, double *sec)
{
    const ls_compute *c = j->c;
    const ls_device *d = c->device;
    const int64_t half = j->n / 2;
    int64_t n = half;
    ls_mark done;
    const double begin = ls_now();
    LS_TRY(c->ops->adamw(j->c, ls_at(c, j->gpu_p, half), j->master + half, (float *)j->gpu_grad + half, j->m + half,
                         j->v + half, half, &some));
    LS_TRY(d->mark(d->ctx, &done));
    for (int64_t at = 0; cpu && !d->test(d->ctx, done); at = (at + SLICE) % half) {
        LS_TRY(on_cpu(j, at, LS_MIN(SLICE, half - at)));
        n += LS_MIN(SLICE, half - at);
    }
    LS_TRY(d->wait(d->ctx, done));
    *sec = (ls_now() - begin) / (double)n;
    return LS_OK;
}

static ls_status time_once(offload_job *j, ls_comm *comm, double sec[2])
{
    const bool cpu = ls_compute_adamw_host_same();
    sec[1] = 0;
    LS_TRY(ls_barrier(comm, LS_SITE));
    LS_TRY(time_both(j, cpu, &sec[0]));
    LS_TRY(ls_barrier(comm, LS_SITE));
    return cpu ? time_cpu(j, &sec[1]) : LS_OK;
}

/* The mean of the repetitions in about `seconds`, after one that does not count. */
static ls_status time_size(offload_job *j, ls_comm *comm, double seconds, double sec[2])
{
    double one[2], sum[2] = {0, 0};
    int n = 0;
    LS_TRY(time_once(j, comm, one));
    bool enough = false;
    for (const double begin = ls_now(); !enough; n++) {
        LS_TRY(time_once(j, comm, one));
        sum[0] += one[0];
        sum[1] += one[1];
        LS_TRY(planner_enough(comm, ls_now() - begin >= seconds || n + 1 >= PLANNER_REPS, &enough));
    }
    sec[0] = sum[0] / n;
    sec[1] = sum[1] / n;
    return planner_over_workers(comm, sec, 2);
}

ls_status planner_time_offload(ls_compute *compute, ls_comm *comm, double seconds, ls_cluster_passes *out)
{
    double sec[2] = {0, 0};
    for (int64_t n = LEAST; n <= MOST; n *= 4) {
        offload_job j = {.c = compute, .n = n};
        ls_status st = ls_comm_agree(comm, take(&j), LS_SITE);
        if (st == LS_OK) st = time_size(&j, comm, 0, sec);
        const bool last = sec[0] * (double)n >= ENOUGH || 4 * n > MOST; /* the same on all workers */
        if (st == LS_OK && last) st = time_size(&j, comm, seconds, sec);
        give(&j);
        LS_TRY(st);
        if (last) break;
    }
    out->offload = sec[0];
    out->on_host = sec[1];
    return LS_OK;
}
