/* compute.c - opens a backend by name, checks its table, sizes its working space. */
#include "compute/compute.h"

#include "compute/cpu/cpu_impl.h"
#include "compute/load.h"
#include "compute/sizes.h"
#include "core/cores.h"
#include "core/log.h"

#include <omp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Every slot is required. */
#define SLOT_LIST(X)     \
    X(embed_fwd)         \
    X(embed_bwd)         \
    X(layernorm_fwd)     \
    X(add_layernorm_fwd) \
    X(layernorm_bwd)     \
    X(layernorm_again)   \
    X(linear_fwd)        \
    X(linear_bwd)        \
    X(gelu_fwd)          \
    X(gelu_bwd)          \
    X(add_fwd)           \
    X(drop_bwd)          \
    X(attention_fwd)     \
    X(attention_bwd)     \
    X(attention_cached)  \
    X(classifier)        \
    X(logits)            \
    X(quantise)          \
    X(linear_q8)         \
    X(adamw)             \
    X(narrow)            \
    X(sumsq)             \
    X(sum)               \
    X(add)               \
    X(zero)              \
    X(copy)

const char *compute_missing_slot(const ls_compute_ops *ops)
{
    if (!ops->name) return "name";
#define X(slot) \
    if (!ops->slot) return #slot;
    SLOT_LIST(X)
#undef X
    return NULL;
}

typedef struct backend {
    const ls_compute_ops *ops;
    size_t (*scratch)(const ls_compute *c, const ls_compute_shapes *s);
    void (*describe)(const ls_compute *c, char buf[LS_COMPUTE_WORDS]);
} backend;

static void describe_ref(const ls_compute *c, char buf[LS_COMPUTE_WORDS])
{
    snprintf(buf, LS_COMPUTE_WORDS, "cpu-ref: plain loops in %s, 1 thread",
             c->ops->dtype == LS_F64 ? "double" : "float");
}

static const backend backends[] = {
    {&ls_compute_cpu, cpu_fast_scratch, cpu_fast_describe},
    {&ls_compute_ref_f32, cpu_ref_scratch, describe_ref},
    {&ls_compute_ref_f64, cpu_ref_scratch, describe_ref},
};
#define N_BACKEND ((int)(sizeof backends / sizeof backends[0]))

static const backend *backend_of(const ls_compute *c)
{
    static const backend none = {NULL, compute_sizes_scratch, compute_sizes_describe};
    if (compute_sizes_only(c)) return &none;
    for (int i = 0; i < N_BACKEND; i++)
        if (backends[i].ops == c->ops) return &backends[i];
    return NULL;
}

/* A worker with cores of its own: each thread of the team goes to its core, and stays. */
static void settle_team(int n_thread)
{
    if (!ls_cores_owned()) return;
    ls_debug("device", "threads pinned to the cores of this worker: %d", n_thread);
#pragma omp parallel num_threads(n_thread)
    ls_cores_keep(omp_get_thread_num());
}

ls_status ls_compute_open(ls_compute *c, const char *name, const ls_compute_open_opts *o, int n_thread)
{
    if (n_thread < 0) return ls_fail(LS_E_ARG, "%d threads: use a positive number, or 0 for all cores", n_thread);
    for (int i = 0; i < N_BACKEND; i++) {
        const ls_compute_ops *ops = backends[i].ops;
        const char *missing = compute_missing_slot(ops);
        if (missing) return ls_fail(LS_E_UNSUPPORTED, "compute backend %d has no %s", i, missing);
        if (strcmp(ops->name, name) != 0 || ops->dtype != o->dtype) continue;
        if (ops == &ls_compute_cpu) LS_TRY(cpu_fast_check());
        omp_set_dynamic(0); /* the number of threads asked for is the number that works */
        *c = (ls_compute){.ops = ops, .n_thread = n_thread > 0 ? n_thread : ls_cores_usable()};
        settle_team(c->n_thread);
        ls_info("device", "kernels %s", ls_compute_describe(c, (char[LS_COMPUTE_WORDS]){0}));
        return LS_OK;
    }
    if (strncmp(name, "cpu", 3) != 0) {
        LS_TRY(compute_load_plugin(name, o, c));
        c->n_thread = n_thread > 0 ? n_thread : ls_cores_usable(); /* of what the host does for it */
        ls_info("device", "kernels %s", ls_compute_describe(c, (char[LS_COMPUTE_WORDS]){0}));
        return LS_OK;
    }
    return ls_fail(LS_E_UNSUPPORTED,
                   "no compute backend \"%s\" for %s; available are cpu (F32), cpu-ref (F32, F64) and plugins (cuda)",
                   name, ls_dtype_word(o->dtype));
}

size_t ls_compute_scratch(const ls_compute *c, const ls_compute_shapes *s)
{
    const ls_compute_plugin *p = compute_plugin_of(c);
    return p ? p->scratch(c, s) : backend_of(c)->scratch(c, s);
}

const char *ls_compute_describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS])
{
    const ls_compute_plugin *p = compute_plugin_of(c);
    if (p) p->describe(c, buf);
    else backend_of(c)->describe(c, buf);
    return buf;
}

void ls_compute_close(ls_compute *c)
{
    const ls_compute_plugin *p = c->ops ? compute_plugin_of(c) : NULL;
    if (p) p->close(c);
    *c = (ls_compute){0};
}

ls_status ls_compute_read(const ls_compute *c, void *host, const void *x, size_t nbytes)
{
    const ls_device *d = c->device;
    ls_mark now, there;
    if (!nbytes) return LS_OK;
    if (!d) {
        memcpy(host, x, nbytes);
        return LS_OK;
    }
    LS_TRY(d->mark(d->ctx, &now));
    LS_TRY(d->copy(d->ctx, 0, host, x, nbytes, now, &there));
    return d->wait(d->ctx, there);
}

ls_status ls_compute_write(const ls_compute *c, void *x, const void *host, size_t nbytes)
{
    const ls_device *d = c->device;
    ls_mark now, there;
    if (!nbytes) return LS_OK;
    if (!d) {
        memcpy(x, host, nbytes);
        return LS_OK;
    }
    LS_TRY(d->mark(d->ctx, &now)); /* what is queued may still use x */
    LS_TRY(d->copy(d->ctx, 0, x, host, nbytes, now, &there));
    return d->wait(d->ctx, there);
}

ls_status ls_compute_sync(const ls_compute *c)
{
    return c->device ? c->device->sync(c->device->ctx) : LS_OK;
}
