/* compute.c - opens a backend by name, loads it where it is a plugin, and copies between host memory and that of its operations. */
#include "compute/compute_impl.h"

#include "compute/cpu/cpu_impl.h"
#include "compute/cpu/gemm.h"
#include "core/cores.h"
#include "core/minmax.h"
#include "core/log.h"
#include "core/plugin.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>

const char *compute_missing_op(const ls_compute_ops *ops)
{
    if (!ops->name) return "name";
#define X(op) \
    if (!ops->op) return #op;
    COMPUTE_OPS(X)
#undef X
    return NULL;
}

/* ---- plugins ---- */

static ls_status host_fail(ls_status code, const char *file, int line, const char *words)
{
    return ls_fail_at(code, file, line, "%s", words);
}

static const ls_plugin_host plugin_host = {
    .fail = host_fail, .via = ls_fail_via, .words = ls_err_words, .clear = ls_err_clear};

static ls_status load_plugin(const char *name, const ls_compute_plugin **out)
{
    ls_plugin file;
    LS_TRY(ls_plugin_load(name, LS_COMPUTE_SYMBOL, &file));
    const ls_compute_plugin *p = ((ls_compute_plugin_fn)file.entry)();
    if (p->abi != LS_COMPUTE_ABI)
        return ls_fail(LS_E_UNSUPPORTED,
                       "%s has interface version %d, this program %d; build both from the same source", file.path,
                       p->abi, LS_COMPUTE_ABI);
    if (strcmp(p->name, name) != 0) return ls_fail(LS_E_UNSUPPORTED, "%s is the plugin \"%s\"", file.path, p->name);
    *out = p;
    return LS_OK;
}

static ls_status open_plugin(const char *name, const ls_compute_open_opts *o, ls_compute *c)
{
    const ls_compute_plugin *p;
    LS_TRY(load_plugin(name, &p));
    LS_TRY(p->open(&plugin_host, o, c));
    c->backend = p;
    const char *missing = compute_missing_op(c->ops);
    if (!missing) return LS_OK;
    p->close(c);
    return ls_fail(LS_E_UNSUPPORTED, "compute backend \"%s\" has no %s", name, missing);
}

ls_status compute_look_plugin(const char *name, const ls_compute_open_opts *o, bool *is_loaded, ls_device_info *out)
{
    const ls_compute_plugin *p;
    *is_loaded = false;
    LS_TRY(load_plugin(name, &p));
    *is_loaded = true;
    return p->look(&plugin_host, o, out);
}

/* ---- the CPU ---- */

static void describe_ref(const ls_compute *c, char buf[LS_COMPUTE_WORDS])
{
    snprintf(buf, LS_COMPUTE_WORDS, "cpu-ref: plain loops in %s", c->ops->dtype == LS_F64 ? "double" : "float");
}

static const ls_compute_plugin fast = {.scratch = cpu_fast_scratch, .describe = cpu_fast_describe};
static const ls_compute_plugin ref = {.scratch = cpu_ref_scratch, .describe = describe_ref};

/* A worker with cores of its own: each thread of the team goes to its core, and stays. */
static void settle_team(int n_thread)
{
    if (!ls_cores_owned()) return;
    ls_debug("device", "threads pinned to the cores of this worker: %d", n_thread);
#pragma omp parallel num_threads(n_thread)
    ls_cores_keep(omp_get_thread_num());
}

ls_status ls_compute_cpu_check(ls_dtype dtype)
{
    return cpu_fast_check(dtype == LS_BF16);
}

static ls_status find_cpu(const char *name, ls_dtype dtype, ls_compute *c)
{
    static const ls_compute_ops *const table[] = {&ls_compute_cpu, &ls_compute_ref_f32, &ls_compute_ref_f64};
    const bool bf16 = dtype == LS_BF16 && !strcmp(name, ls_compute_cpu.name); /* stored as fp32 */
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i]->name, name) != 0 || table[i]->dtype != (bf16 ? LS_F32 : dtype)) continue;
        if (i == 0) LS_TRY(cpu_fast_check(bf16));
        *c = (ls_compute){.ops = table[i], .backend = i == 0 ? &fast : &ref};
        if (bf16) c->impl = (void *)(uintptr_t)cpu_fast_bf16();
        return LS_OK;
    }
    return ls_fail(
        LS_E_UNSUPPORTED,
        "no compute backend \"%s\" for %s; available are cpu (F32, BF16), cpu-ref (F32, F64) and plugins (cuda)", name,
        ls_dtype_word(dtype));
}

static ls_status open_cpu(const char *name, ls_dtype dtype, int n_thread, ls_compute *c)
{
    LS_TRY(find_cpu(name, dtype, c));
    omp_set_dynamic(0); /* the number of threads asked for is the number that works */
    settle_team(n_thread);
    return LS_OK;
}

/* ---- any backend ---- */

ls_status ls_compute_open(ls_compute *c, const char *name, const ls_compute_open_opts *o, int n_thread)
{
    if (n_thread < 0) return ls_fail(LS_E_ARG, "%d threads: use a positive number, or 0 for all cores", n_thread);
    if (!n_thread) n_thread = ls_cores_usable();
    gemm_blas_rest();
    if (strncmp(name, "cpu", 3) == 0) LS_TRY(open_cpu(name, o->dtype, n_thread, c));
    else LS_TRY(open_plugin(name, o, c));
    c->n_thread = c->n_own = c->n_most = n_thread; /* of a device: what the host does for it */
    ls_info("device", "kernels %s", ls_compute_describe(c, (char[LS_COMPUTE_WORDS]){0}));
    return LS_OK;
}

ls_status ls_compute_open_cpu_sizes(ls_compute *c, ls_dtype dtype, const char *kernel, int n_thread)
{
    const void *named = cpu_fast_named(dtype == LS_BF16, kernel);
    if (!named) return ls_compute_open(c, ls_compute_cpu.name, &(ls_compute_open_opts){.dtype = dtype}, n_thread);
    *c = (ls_compute){.ops = &ls_compute_cpu,
                      .n_thread = n_thread,
                      .n_own = n_thread,
                      .n_most = n_thread,
                      .impl = (void *)(uintptr_t)named,
                      .backend = &fast};
    return LS_OK;
}

void ls_compute_may_grow(ls_compute *c, int most)
{
    if (c->backend == &fast) c->n_most = LS_MAX(c->n_most, LS_MIN(most, c->n_own + LS_BORROW_MOST));
}

/* Threads that are no longer in the team end now, in the parallel region that does not have them: they would spin on cores that others need. A region
 * of one thread leaves them alone, so that they are ended otherwise. */
void ls_compute_borrow(ls_compute *c, int n, const int *cpu)
{
    const int own = c->n_own, more = LS_MIN(n, c->n_most - own);
    if (c->n_thread == own + more) return;
    c->n_thread = own + more;
    ls_debug("device", "computes with %d threads, %d of them on cores of other workers", c->n_thread, more);
#pragma omp parallel num_threads(c->n_thread)
    if (omp_get_thread_num() >= own) ls_cores_stay(cpu[omp_get_thread_num() - own]);
    if (c->n_thread == 1) (void)omp_pause_resource(omp_pause_soft, omp_get_initial_device());
}

size_t ls_compute_scratch(const ls_compute *c, const ls_compute_shapes *s)
{
    return c->backend->scratch(c, s);
}

const char *ls_compute_describe(const ls_compute *c, char buf[LS_COMPUTE_WORDS])
{
    c->backend->describe(c, buf);
    const int n = c->backend == &ref ? 1 : c->backend == &fast ? c->n_own : 0;
    const size_t at = strlen(buf);
    if (n) snprintf(buf + at, LS_COMPUTE_WORDS - at, ", %d thread%s", n, n == 1 ? "" : "s");
    return buf;
}

const char *ls_compute_family(const ls_compute *c, char buf[LS_COMPUTE_WORDS])
{
    ls_device_info info = {0};
    if (!c->device) {
        c->backend->describe(c, buf);
        char *remark = strstr(buf, " (slow");
        if (remark) *remark = '\0'; /* other words on other machines */
    } else if (c->device->info(c->device->ctx, &info) != LS_OK) snprintf(buf, LS_COMPUTE_WORDS, "%s", c->ops->name);
    else {
        char code[32] = ""; /* other kernels on the same card */
        if (info.code && info.code < info.capability)
            snprintf(code, sizeof code, ", code of %d.%d", info.code / 10, info.code % 10);
        snprintf(buf, LS_COMPUTE_WORDS, "%s: compute capability %d.%d%s%s%s", c->ops->name, info.capability / 10,
                 info.capability % 10, code, *info.cudnn ? ", cuDNN " : "", info.cudnn);
    }
    return buf;
}

bool ls_compute_same_bits(const char *family, const char *other)
{
    static const char emulated[] = "-emulated";
    const size_t n = sizeof emulated - 1;
    while (*family && *family == *other) family++, other++;
    if (!strncmp(family, emulated, n)) family += n;
    else if (!strncmp(other, emulated, n)) other += n;
    return !strcmp(family, other);
}

const char *ls_compute_cpu_family(const char *name, ls_dtype dtype, char buf[LS_COMPUTE_WORDS])
{
    ls_compute c;
    if (find_cpu(name, dtype, &c) == LS_OK) return ls_compute_family(&c, buf);
    ls_err_clear();
    *buf = '\0';
    return buf;
}

void ls_compute_close(ls_compute *c)
{
    if (c->backend && c->backend->close) c->backend->close(c);
    *c = (ls_compute){0};
}

/* On a device the copy comes after everything that is queued now, which may still use this memory. */
static ls_status copy_blocking(const ls_compute *c, void *to, const void *from, size_t nbytes)
{
    const ls_device *d = c->device;
    ls_mark now, there;
    if (!nbytes) return LS_OK;
    if (!d) {
        memcpy(to, from, nbytes);
        return LS_OK;
    }
    LS_TRY(d->mark(d->ctx, &now));
    LS_TRY(d->copy(d->ctx, 0, to, from, nbytes, now, &there));
    return d->wait(d->ctx, there);
}

ls_status ls_compute_read(const ls_compute *c, void *host, const void *x, size_t nbytes)
{
    return copy_blocking(c, host, x, nbytes);
}

ls_status ls_compute_write(const ls_compute *c, void *x, const void *host, size_t nbytes)
{
    return copy_blocking(c, x, host, nbytes);
}

ls_status ls_compute_sync(const ls_compute *c)
{
    return c->device ? c->device->sync(c->device->ctx) : LS_OK;
}

ls_status ls_compute_hash(ls_compute *c, uint64_t *out, const void *x, size_t nbytes, bool more)
{
    const ls_device *d = c->device;
    if (!d || d->owns(d->ctx, x)) return c->ops->hash(c, out, x, nbytes, more);
    if (more) LS_TRY(ls_compute_sync(c)); /* its former value may be queued */
    return cpu_hash(c, out, x, nbytes, more);
}
