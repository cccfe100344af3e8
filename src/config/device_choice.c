#include "config/device_choice.h"

#include "compute/look.h"
#include "core/log.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "LS_DEVICE"

ls_status ls_device_parse(const char *from, const char *text, ls_device_choice *out)
{
    int64_t n = -1;
    ls_device_choice d = {.from = from, .automatic = !strcmp(text, "auto"), .cuda = !strncmp(text, "cuda", 4)};
    const char *rest = d.automatic || d.cuda ? text + 4 : text + 3;
    if (!d.automatic && !d.cuda && strncmp(text, "cpu", 3))
        return ls_fail(LS_E_ARG, "%s '%.40s': must be auto, cpu, cuda, or cuda:N (GPU number N)", from, text);
    if (*rest && (!d.cuda || *rest != ':' || !ls_parse_i64(rest + 1, &n) || n < 0 || n > 1023))
        return ls_fail(LS_E_ARG, "%s '%.40s': must be auto, cpu, cuda, or cuda:N (GPU number N, from 0)", from, text);
    d.index = (int)n;
    snprintf(d.asked, sizeof d.asked, "%.15s", text);
    if (d.automatic) snprintf(d.words, sizeof d.words, "CPU");
    else snprintf(d.words, sizeof d.words, "%s (%s %.15s)", d.cuda ? "CUDA" : "CPU", from, text);
    *out = d;
    return LS_OK;
}

/* `used` GPUs of those that are visible, for so many workers of `hosts` hosts. */
static void name_gpus(ls_device_choice *d, int used, int workers, int hosts)
{
    char where[64], shared[48] = "";
    const int visible = d->visible > used ? d->visible : used; /* a launcher may show each worker its own alone */
    if (hosts > 1) snprintf(where, sizeof where, "%d GPUs on %d hosts", used, hosts);
    else snprintf(where, sizeof where, "%d of %d visible", used, visible);
    if (workers > used) snprintf(shared, sizeof shared, ", shared by %d workers", workers);
    snprintf(d->words, sizeof d->words, "CUDA, %.95s (%s%s)%s", d->gpu, where, shared, d->older);
}

static void know_card(ls_device_choice *d, const ls_device_info *i)
{
    const ls_card *own = ls_card_of(i->capability);
    d->card = ls_card_with(i->capability, i->code);
    if (d->card && own && (d->card->mma < own->mma || d->card->fp8 < own->fp8 || d->card->wgmma < own->wgmma))
        snprintf(d->older, sizeof d->older, "; code of %d.%d: LS_CUDA_ARCH=%d%s ./run build makes its own",
                 i->code / 10, i->code % 10, i->capability, own->wgmma ? "a" : "");
    snprintf(d->gpu, sizeof d->gpu, "%s", i->name);
    if (i->code < i->capability)
        snprintf(d->lacks, sizeof d->lacks,
                 "lockstep_cuda.so has code of %d.%d for %s (%d.%d; LS_CUDA_ARCH=%d%s ./run build makes its own)",
                 i->code / 10, i->code % 10, i->name, i->capability / 10, i->capability % 10, i->capability,
                 ls_card_of(i->capability)->wgmma ? "a" : "");
    else snprintf(d->lacks, sizeof d->lacks, "%s has %d.%d", i->name, i->capability / 10, i->capability % 10);
}

static void look(ls_device_choice *d, const char *cpu_only, int workers, int local_rank)
{
    ls_look found;
    if (cpu_only) {
        snprintf(d->words, sizeof d->words, "CPU (for %.40s)", cpu_only);
        return;
    }
    ls_gpu_look(-1, local_rank, &found);
    ls_debug("device", "looked for a GPU: %s", found.there ? found.info.name : found.why);
    d->cuda = found.there;
    if (!d->cuda) {
        d->expected = found.expected;
        d->accepted = found.accepted;
        snprintf(d->why, sizeof d->why, "%s", found.why);
        snprintf(d->words, sizeof d->words, "CPU (%.303s)", found.why);
        return;
    }
    d->visible = found.info.count;
    know_card(d, &found.info);
    if (*found.info.bus) snprintf(d->bus, sizeof d->bus, "%s", found.info.bus);
    else snprintf(d->bus, sizeof d->bus, "GPU %d", found.info.index);
    name_gpus(d, workers < d->visible ? workers : d->visible, workers, 1);
}

/* The GPU that was asked for. */
static ls_status look_at(ls_device_choice *d, int local_rank)
{
    ls_look found;
    ls_gpu_look(d->index, local_rank, &found);
    if (found.there) know_card(d, &found.info);
    else if (found.info.capability) return ls_fail(LS_E_UNSUPPORTED, "%s %s: %s", d->from, d->asked, found.why);
    return LS_OK;
}

ls_status ls_device_choose(const char *asked, const char *cpu_only, int workers, int local_rank, ls_device_choice *out)
{
    const char *text = asked, *from = "--device", *variable = getenv(VARIABLE);
    if (!text && variable && *variable) text = variable, from = VARIABLE;
    else if (!text) text = "auto", from = "";
    LS_TRY(ls_device_parse(from, text, out));
    const int local = local_rank > 0 ? local_rank : 0;
    if (out->automatic) look(out, cpu_only, workers > 1 ? workers : 1, local);
    else if (out->cuda) LS_TRY(look_at(out, local));
    ls_info("device", "device '%s': %s", text, out->words);
    return LS_OK;
}

const char *ls_device_no_gpu(const ls_device_choice *d, char buf[LS_DEVICE_WORDS])
{
    if (*d->why) snprintf(buf, LS_DEVICE_WORDS, "--device auto found no GPU: %.300s", d->why);
    else snprintf(buf, LS_DEVICE_WORDS, "--device cuda chooses a GPU");
    return buf;
}

/* ---- agreement ---- */

/* What each worker tells the others. */
typedef struct entry {
    int64_t cuda;
    char bus[24], words[200];
} entry;

enum { ENTRY_WORDS = sizeof(entry) / sizeof(int64_t) };
_Static_assert(sizeof(entry) % sizeof(int64_t) == 0, "it is sent as 64-bit integers");

/* Two ranks have one GPU. Hosts may have equal names, but no two workers of a host one local rank. */
static bool one_gpu(const ls_comm *c, const entry *all, int p, int q)
{
    int a, b;
    const char *at = ls_comm_host(c, p, &a), *bt = ls_comm_host(c, q, &b);
    return a != b && !strcmp(at, bt) && !strcmp(all[p].bus, all[q].bus);
}

/* Nobody before r has its GPU. */
static bool is_first(const ls_comm *c, const entry *all, int r)
{
    int p = 0;
    while (p < r && !one_gpu(c, all, p, r)) p++;
    return p == r;
}

static ls_status judge(ls_device_choice *d, ls_comm *c, const entry *all)
{
    const int size = ls_comm_size(c);
    int on_gpu = 0, odd = 0, used = 0, local;
    for (int r = 0; r < size; r++) on_gpu += all[r].cuda != 0;
    while (odd < size && all[odd].cuda) odd++;
    if (on_gpu && on_gpu < size)
        return ls_fail(
            LS_E_CONFIG,
            "all workers must use the same kind of device: rank %d on %s would use %.199s, but %d of %d workers have a GPU; give every worker a GPU, or use --device cpu",
            odd, ls_comm_host(c, odd, &local), all[odd].words, on_gpu, size);
    if (!d->automatic || !d->cuda) return LS_OK;
    for (int r = 0; r < size; r++) used += is_first(c, all, r);
    name_gpus(d, used, size, ls_comm_where(c).n_host);
    return LS_OK;
}

ls_status ls_device_agree(ls_device_choice *d, ls_comm *c)
{
    const int size = ls_comm_size(c);
    entry mine = {.cuda = d->cuda}, *all = ls_comm_alloc(c, (size_t)size * sizeof *all);
    snprintf(mine.bus, sizeof mine.bus, "%s", d->bus);
    snprintf(mine.words, sizeof mine.words, "%.199s", d->words);
    LS_TRY(ls_comm_agree(c, all ? LS_OK : ls_nomem((size_t)size * sizeof *all, "the workers' devices"), LS_SITE));
    LS_TRY(ls_all_gather(c, (ls_view){all, (int64_t)ENTRY_WORDS * size, LS_I64}, (ls_view){&mine, ENTRY_WORDS, LS_I64},
                         LS_SITE, NULL));
    return judge(d, c, all);
}
