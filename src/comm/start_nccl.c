/* start_nccl.c - the plugin `nccl`, loaded when a run needs it, and the rule by which workers with a GPU choose the
 * communication backend. */
#include "comm/nccl_impl.h"
#include "comm/start.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER(major, minor) (1000 * (major) + (minor))

/* The first NCCL that has every function that is used; the first whose ranks may share a GPU, and the variable of NCCL's own that allows it. */
#define LEAST          NUMBER(2, 19)
#define SHARE          NUMBER(2, 30)
#define SHARE_VARIABLE "NCCL_MULTI_RANK_GPU_ENABLE"

/* What each rank sends to the others before groups are created. */
typedef struct gpu_of {
    char host[56], gpu[56];
    char version[48];        /* of the NCCL that it has loaded */
    char variable[24];       /* "not set", "1", "'yes', not 1" */
    int64_t number, allowed; /* number 0: the version is not known */
    int64_t machine;
} gpu_of;

static void describe_nccl(const ls_nccl *t, gpu_of *mine)
{
    const char *value = getenv(SHARE_VARIABLE);
    int major = 0, minor = 0;
    t->head.version(mine->version, sizeof mine->version);
    if (sscanf(mine->version, "NCCL %d.%d", &major, &minor) == 2) mine->number = NUMBER(major, minor);
    mine->allowed = value && !strcmp(value, "1");
    if (!value || mine->allowed) snprintf(mine->variable, sizeof mine->variable, "%s", value ? value : "not set");
    else snprintf(mine->variable, sizeof mine->variable, "'%.12s', not 1", value);
}

static bool may_share(const gpu_of *g)
{
    return g->number >= SHARE && g->allowed;
}

/* Ranks p and q have the same GPU: LS_OK if both allow it. through: the communicator without NCCL. */
static ls_status check_pair(const gpu_of *all, int q, int p, const char *through)
{
    const int why = may_share(&all[q]) ? p : q;
    if (may_share(&all[why])) return LS_OK;
    return ls_fail(
        LS_E_UNSUPPORTED,
        "ranks %d and %d share the GPU %s on %s, which needs NCCL %d.%d or later and %s=1 (rank %d loaded %s, and there the variable is %s); %s, use --comm %.*s (through host memory), or use one GPU per rank",
        q, p, all[p].gpu, all[p].host, SHARE / 1000, SHARE % 1000, SHARE_VARIABLE, why, all[why].version,
        all[why].variable,
        all[why].number >= SHARE ? "set it to 1"
        : all[why].allowed       ? "install a newer NCCL"
                                 : "install a newer NCCL and set the variable to 1",
        (int)strcspn(through, ","), through);
}

static ls_status check_version(const gpu_of *all, int n)
{
    for (int p = 0; p < n; p++)
        if (all[p].number && all[p].number < LEAST)
            return ls_fail(LS_E_UNSUPPORTED, "rank %d loaded %s, which is too old: %d.%d or later is needed", p,
                           all[p].version, LEAST / 1000, LEAST % 1000);
    return LS_OK;
}

/* Every rank has a GPU of its own, or NCCL lets them share; *sharing: the most ranks on one GPU. Collective; the same answer for all. */
static ls_status check_gpus(ls_comm *c, const ls_nccl *t, const ls_device *dev, int *sharing)
{
    ls_device_info info = {0};
    gpu_of mine = {0}, *all = NULL;
    ls_status st = dev->info(dev->ctx, &info);
    if (st == LS_OK && t->gpu(info.index, mine.gpu, sizeof mine.gpu))
        st = ls_fail(LS_E_UNSUPPORTED, "cannot read the bus address of GPU %d of rank %d", info.index, c->rank);
    LS_TRY(ls_comm_agree(c, st, LS_SITE));
    snprintf(mine.host, sizeof mine.host, "%.*s", (int)sizeof mine.host - 1, c->hostname);
    mine.machine = ls_comm_machine();
    describe_nccl(t, &mine);
    LS_TRY(ls_comm_gather(c, &mine, sizeof mine, LS_SITE, &all));
    LS_TRY(check_version(all, c->size));
    *sharing = 1;
    for (int p = 0; p < c->size; p++) {
        int ranks = 1;
        for (int q = 0; q < p; q++) {
            if (all[p].machine != all[q].machine || strcmp(all[p].gpu, all[q].gpu) != 0) continue;
            LS_TRY(check_pair(all, q, p, ls_comm_name(c)));
            ranks++;
        }
        if (ranks > *sharing) *sharing = ranks;
    }
    return LS_OK;
}

/* Over a staged communicator, which it takes when it succeeds. */
static ls_status start(ls_comm *staged, const ls_device *dev, bool deterministic, ls_comm **out)
{
    const ls_plugin_head *h = NULL;
    ls_plugin p = {0};
    LS_TRY(ls_comm_agree(staged, ls_plugin_table("nccl", LS_NCCL_SYMBOL, LS_NCCL_ABI, &p, &h), LS_SITE));
    const ls_nccl *t = (const ls_nccl *)(const void *)h;
    int sharing = 1;
    const ls_status st = check_gpus(staged, t, dev, &sharing);
    if (st != LS_OK && staged->rank) ls_err_set_peers(); /* the same for all: rank 0 reports it */
    LS_TRY(st);
    return nccl_over(staged, dev, t, sharing, deterministic, out);
}

/* Stages `boot` on every rank; if one rank fails, all ranks fail. */
static ls_status stage(ls_comm *boot, const ls_device *dev, ls_comm **out)
{
    const ls_status mine = ls_comm_staged(boot, dev, out), st = ls_comm_agree(boot, mine, LS_SITE);
    if (st != LS_OK && mine == LS_OK) comm_unstage(out);
    return st;
}

static ls_status check_asked(const ls_comm *boot, const ls_device *dev, const char *asked)
{
    const char *name = ls_comm_name(boot);
    if (!strcmp(asked, "nccl") && !dev)
        return ls_fail(LS_E_CONFIG,
                       "--comm nccl needs GPUs, but this run uses the CPU; remove --comm nccl or use --device cuda");
    if (strcmp(asked, "auto") && strcmp(asked, "nccl") && boot->size > 1 && strcmp(asked, name) != 0)
        return ls_fail(LS_E_CONFIG, "--comm %s does not match the launcher: these workers were started with %s", asked,
                       name);
    return LS_OK;
}

ls_status ls_comm_for_device(ls_comm *boot, const ls_device *dev, const char *asked, bool deterministic, ls_comm **out,
                             ls_str *said)
{
    LS_TRY(check_asked(boot, dev, asked));
    if (!dev) {
        *out = boot;
        return LS_OK;
    }
    const bool must = !strcmp(asked, "nccl"), may = must || (!strcmp(asked, "auto") && boot->size > 1);
    ls_comm *staged = NULL;
    LS_TRY(stage(boot, dev, &staged));
    const ls_status st = may ? start(staged, dev, deterministic, out) : LS_OK;
    ls_info("comm", "%d workers with GPUs communicate over %s", boot->size,
            may && st == LS_OK ? "NCCL" : ls_comm_name(staged));
    if (may && st == LS_OK) return LS_OK;
    if (st != LS_OK && (must || comm_aborted(staged, (char[8]){0}, 8))) {
        comm_unstage(&staged);
        return st;
    }
    if (st != LS_OK) {
        if (boot->rank == 0)
            ls_str_addf(said, "GPUs communicate through host memory (%s): %s", ls_comm_name(staged), ls_err_words());
        ls_err_clear();
    }
    *out = staged;
    return LS_OK;
}
