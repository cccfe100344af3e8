#include "core/cores.h"
#include "core/log.h"
#include "core/plan.h"
#include "core/mem.h"
#include "core/memory_limit.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *ls_part_word(ls_part part)
{
    static const char *const word[] = {
#define X(p, text) text,
        LS_PART_LIST(X)
#undef X
    };
    return (unsigned)part < LS_N_PART ? word[part] : "?";
}

int ls_plan_add_host(ls_plan *p, ls_part part, int64_t nbytes, const char *name)
{
    const int row = ls_plan_add(p, part, nbytes, LS_PLAN_ALWAYS, "%s", name);
    if (row >= 0) p->row[row].host = true;
    return row;
}

int ls_plan_add(ls_plan *p, ls_part part, int64_t nbytes, int first, int last, const char *name, ...)
{
    if (ls_reserve(&p->row, &p->cap, (size_t)p->n_row + 1, sizeof *p->row, "the memory plan") != LS_OK) {
        p->total = -1;
        return -1;
    }
    ls_plan_row *r = &p->row[p->n_row];
    *r = (ls_plan_row){.part = part, .nbytes = (nbytes + 63) & ~(int64_t)63, .first = first, .last = last};
    va_list ap;
    va_start(ap, name);
    vsnprintf(r->name, sizeof r->name, name, ap);
    va_end(ap);
    return p->n_row++;
}

/* It has a place in the host's own arena. */
static bool apart(const ls_plan *p, const ls_plan_row *r)
{
    return p->device && r->host;
}

static bool alive_together(const ls_plan_row *a, const ls_plan_row *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The moment at which most bytes are alive. Lives begin somewhere: only first moments need a look. */
static int fullest_moment(const ls_plan *p)
{
    int64_t most = -1;
    int at = 0;
    for (int i = 0; i < p->n_row; i++) {
        int64_t live = 0;
        for (int k = 0; k < p->n_row; k++)
            if (!apart(p, &p->row[k]) && p->row[k].first <= p->row[i].first && p->row[i].first <= p->row[k].last)
                live += p->row[k].nbytes;
        if (live > most) {
            most = live;
            at = p->row[i].first;
        }
    }
    return at;
}

/* Whether a goes before b: first what is alive when it is fullest, longest-lived at the bottom, so that there are no gaps at that
 * moment; then the rest, largest first, into the places that are free at their time. */
static bool goes_before(const ls_plan_row *a, const ls_plan_row *b, int fullest)
{
    const bool pa = a->first <= fullest && fullest <= a->last, pb = b->first <= fullest && fullest <= b->last;
    if (pa != pb) return pa;
    const int la = a->last - a->first, lb = b->last - b->first;
    if (pa && la != lb) return la > lb;
    return a->nbytes > b->nbytes;
}

ls_status ls_plan_layout(ls_plan *p)
{
    if (p->total < 0) return ls_nomem(sizeof *p->row * 128, "the memory plan");
    int *order = ls_alloc((size_t)(p->n_row + 1) * sizeof *order); /* rows placed so far, by offset */
    if (!order) return ls_nomem((size_t)p->n_row * sizeof *order, "the memory plan");
    const int fullest = fullest_moment(p);
    int n = 0;
    p->total = p->host_total = 0;
    for (int i = 0; i < p->n_row; i++) {
        ls_plan_row *r = &p->row[i];
        r->offset = apart(p, r) ? p->host_total : -1; /* -1: not placed yet */
        if (apart(p, r)) p->host_total += r->nbytes;
        else n++;
    }
    for (int k = 0; k < n; k++) {
        int next = -1;
        for (int i = 0; i < p->n_row; i++)
            if (p->row[i].offset < 0 && (next < 0 || goes_before(&p->row[i], &p->row[next], fullest))) next = i;
        ls_plan_row *r = &p->row[next];
        int64_t at = 0;
        for (int j = 0; j < k; j++) { /* by ascending offset: step over every living neighbour that is in the way */
            const ls_plan_row *o = &p->row[order[j]];
            if (alive_together(r, o) && o->offset < at + r->nbytes && at < o->offset + o->nbytes)
                at = o->offset + o->nbytes;
        }
        r->offset = at;
        ls_log(LS_LOG_TRACE, "memory", "%s: %lld bytes at offset %lld", r->name, (long long)r->nbytes, (long long)at);
        int j = k;
        for (; j && p->row[order[j - 1]].offset > at; j--) order[j] = order[j - 1];
        order[j] = next;
        if (at + r->nbytes > p->total) p->total = at + r->nbytes;
    }
    ls_free(order);
    return LS_OK;
}

int64_t ls_plan_part_bytes(const ls_plan *p, ls_part part)
{
    int64_t sum = 0;
    for (int i = 0; i < p->n_row; i++)
        if (p->row[i].part == part && !(p->device && p->row[i].host)) sum += p->row[i].nbytes;
    return sum;
}

int64_t ls_plan_part_at_most(const ls_plan *p, ls_part part)
{
    const int at = fullest_moment(p);
    int64_t sum = 0;
    for (int i = 0; i < p->n_row; i++)
        if (p->row[i].part == part && !apart(p, &p->row[i]) && p->row[i].first <= at && at <= p->row[i].last)
            sum += p->row[i].nbytes;
    return sum;
}

int64_t ls_plan_available(void)
{
    int64_t left;
    int64_t kib = -1;
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "MemAvailable:", 13)) kib = strtoll(line + 13, NULL, 10);
    if (f) fclose(f);
    if (kib < 0) kib = sysconf(_SC_PHYS_PAGES) * (sysconf(_SC_PAGESIZE) / 1024);
    (void)ls_memory_limit(&left);
    return left >= 0 && left < kib * 1024 ? left : kib * 1024;
}

/* Workers of the host whose arenas have that part. */
static int64_t n_with(const ls_plan *p, ls_part part)
{
    return part == LS_PART_PARAM && p->n_param ? p->n_param : p->n_copy > 1 ? p->n_copy : 1;
}

/* Bytes of a part in the device's memory, or in host memory, that all workers of the host take there. */
static int64_t bytes_on(const ls_plan *p, ls_part part, bool device)
{
    int64_t sum = 0;
    for (int i = 0; i < p->n_row; i++)
        if (p->row[i].part == part && (!p->device || p->row[i].host != device)) sum += p->row[i].nbytes;
    return device ? sum : sum * n_with(p, part);
}

/* Where the state alone does not fit: why a smaller batch does not help, and how many devices or hosts a sharded state needs. */
static void explain_state(const ls_plan *p, int64_t state, int64_t have, bool gpu, char why[128], char shards[128])
{
    char a[32], b[32];
    snprintf(why, 128, "; without activations it is %s, so a smaller batch does not help",
             ls_human_bytes(a, (double)state));
    if (!p->whole || have <= 0) return;
    const int64_t n = (p->whole + have - 1) / have;
    if (n < 2) return;
    snprintf(shards, 128, "; sharded, %s / %lld %s = %s on each", ls_human_bytes(a, (double)p->whole), (long long)n,
             gpu ? "GPUs" : "hosts", ls_human_bytes(b, (double)p->whole / (double)n));
}

/* gpu: the device whose memory is too small; NULL: the host's is. */
static ls_status too_much(const ls_plan *p, int64_t need, int64_t have, const ls_device_info *gpu)
{
    char need_s[32], have_s[32], act_s[32], par_s[32], grad_s[32], sum_s[32], sums[80] = "", why[128] = "",
                                                                              shards[128] = "";
    const int64_t grad = bytes_on(p, LS_PART_GRAD, gpu),
                  rest = bytes_on(p, LS_PART_PARAM, gpu) + bytes_on(p, LS_PART_OPT, gpu);
    const bool host = p->device && !gpu, state = !host && rest + grad > have;
    const char *advice = host ? p->less_host : state ? p->less_state : p->less_act;
    if (state) explain_state(p, rest + grad, have, gpu, why, shards);
    if (gpu && p->beside)
        snprintf(sums, sizeof sums, "; NCCL's sums in a fixed order: %s", ls_human_bytes(sum_s, (double)p->beside));
    return ls_fail(
        LS_E_NOMEM,
        "not enough memory: the run needs %s, but only %s are available on %s (parameters and optimizer: %s; gradients: %s; activations: %s%s)%s; use %s%s",
        ls_human_bytes(need_s, (double)need), ls_human_bytes(have_s, (double)have), gpu ? gpu->name : "this machine",
        ls_human_bytes(par_s, (double)rest), ls_human_bytes(grad_s, (double)grad),
        ls_human_bytes(act_s, (double)bytes_on(p, LS_PART_ACT, gpu)), sums, why, *advice ? advice : "a smaller model",
        shards);
}

static ls_status alloc_device(ls_plan *p)
{
    void *memory;
    LS_TRY(p->device->alloc(p->device->ctx, (size_t)p->total, &memory));
    p->arena = memory;
    return LS_OK;
}

/* Pinned memory for the host's rows. The driver clears and pins pages on one thread, 0.7 s per GB; for an optimizer's state it is faster to
 * touch them on all cores first. */
static ls_status alloc_host(ls_plan *p)
{
    const size_t n = (size_t)p->host_total, page = (size_t)2 << 20, much = (size_t)1 << 28;
    const ls_device *d = p->device;
    void *memory;
    if (n < much) {
        LS_TRY(d->alloc_host(d->ctx, n, &memory));
        p->host_arena = memory;
        return LS_OK;
    }
    memory = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return ls_nomem(p->host_total, "the host's part of the memory plan");
    (void)madvise(memory, n, MADV_HUGEPAGE);
    volatile char *at = memory;
#pragma omp parallel for num_threads(ls_cores_usable()) schedule(static)
    for (size_t i = 0; i < n; i += page)
        for (size_t k = i; k < n && k < i + page; k += 4096) at[k] = 0;
    const ls_status st = d->pin(d->ctx, memory, n);
    if (st != LS_OK) {
        (void)munmap(memory, n);
        return st;
    }
    p->host_arena = memory;
    p->host_mapped = true;
    return LS_OK;
}

ls_status ls_plan_alloc(ls_plan *p, int check_only)
{
    const int64_t have = ls_plan_available(), n = n_with(p, LS_PART_ACT);
    const int64_t spared = p->device ? 0 : ls_plan_part_bytes(p, LS_PART_PARAM) * (n - n_with(p, LS_PART_PARAM));
    const int64_t need = ls_plan_host_bytes(p) * n - spared;
    ls_info("memory",
            "the plan needs %.1f MiB per worker, %.1f MiB of host memory for all workers; %.1f MiB are available",
            (double)p->total / 1048576.0, (double)need / 1048576.0, (double)have / 1048576.0);
    if (need > have) return too_much(p, need, have, NULL);
    if (p->device) { /* workers of one host may share it or have their own: what is free now must do for this one */
        ls_device_info info;
        LS_TRY(p->device->info(p->device->ctx, &info));
        if (p->total + p->beside > info.free) return too_much(p, p->total + p->beside, info.free, &info);
    }
    if (check_only) return LS_OK;
    if (!p->device) {
        p->arena = ls_alloc((size_t)p->total);
        return p->arena ? LS_OK : ls_nomem(p->total, "the memory plan");
    }
    LS_TRY(alloc_device(p));
    return alloc_host(p);
}

int64_t ls_plan_host_bytes(const ls_plan *p)
{
    return p->device ? p->host_total : p->total;
}

ls_status ls_plan_take(ls_plan *p, void *memory)
{
    LS_ASSERT(!p->arena && memory);
    if (!p->device) {
        p->arena = memory;
        p->borrowed = true;
        return LS_OK;
    }
    LS_TRY(p->device->pin(p->device->ctx, memory, (size_t)p->host_total));
    p->host_arena = memory;
    p->host_borrowed = true;
    return alloc_device(p);
}

void *ls_plan_at(const ls_plan *p, int row)
{
    LS_ASSERT(row >= 0 && row < p->n_row);
    char *base = apart(p, &p->row[row]) ? p->host_arena : p->arena;
    LS_ASSERT(base);
    return base + p->row[row].offset;
}

static void free_device(ls_plan *p)
{
    const ls_device *d = p->device;
    if (p->arena) d->release(d->ctx, p->arena);
    if (p->host_arena && (p->host_borrowed || p->host_mapped)) d->unpin(d->ctx, p->host_arena);
    if (p->host_mapped) (void)munmap(p->host_arena, (size_t)p->host_total);
    else if (p->host_borrowed) return;
    else if (p->host_arena) d->release_host(d->ctx, p->host_arena);
}

void ls_plan_fini(ls_plan *p)
{
    ls_free(p->row);
    if (p->device) free_device(p);
    else if (!p->borrowed) ls_free(p->arena);
    *p = (ls_plan){0};
}

void ls_plan_print(const ls_plan *p, ls_str *out)
{
    int64_t sum = 0;
    ls_str_add(out, "memory plan          MiB   buffers\n");
    for (int part = 0; part < LS_N_PART; part++) {
        int n = 0;
        for (int i = 0; i < p->n_row; i++) n += p->row[i].part == (ls_part)part && !(p->device && p->row[i].host);
        int64_t b = ls_plan_part_bytes(p, (ls_part)part);
        sum += b;
        if (n) ls_str_addf(out, "  %-12s %10.1f   %7d\n", ls_part_word((ls_part)part), (double)b / 1048576.0, n);
    }
    if (sum - p->total >= 52429) /* 0.05 MiB: less is printed as 0 */
        ls_str_addf(out, "  %-12s %10.1f   (memory shared by buffers that are never in use together)\n", "shared",
                    -(double)(sum - p->total) / 1048576.0);
    ls_str_addf(out, "  %-12s %10.1f   one allocation of %lld bytes\n", "total", (double)p->total / 1048576.0,
                (long long)p->total);
    if (p->device) {
        int64_t opt = 0;
        for (int i = 0; i < p->n_row; i++)
            opt += p->row[i].part == LS_PART_OPT && p->row[i].host ? p->row[i].nbytes : 0;
        ls_str_addf(out, "  %-12s %10.1f   in host memory: ", "host", (double)p->host_total / 1048576.0);
        if (opt) ls_str_addf(out, "the optimizer (%.1f) and buffers for it, ", (double)opt / 1048576.0);
        ls_str_add(out, "inputs, losses, sums\n");
    }
}

void ls_plan_print_line(const ls_plan *p, int64_t sums, ls_str *out)
{
    const double mib = 1048576.0;
    char total[32];
    int n = 0;
    int64_t sum = 0;
    ls_str_addf(out, "memory %s:", ls_human_bytes(total, (double)(p->total + sums)));
    for (int part = 0; part < LS_N_PART; part++) {
        const int64_t b = ls_plan_part_bytes(p, (ls_part)part);
        sum += b;
        if ((double)b >= 0.05 * mib)
            ls_str_addf(out, "%s %s %.1f", n++ ? "," : "", ls_part_word((ls_part)part), (double)b / mib);
    }
    if (sums) ls_str_addf(out, ", NCCL's sums %.1f", (double)sums / mib);
    if ((double)(sum - p->total) >= 0.05 * mib)
        ls_str_addf(out, ", less %.1f that buffers share", (double)(sum - p->total) / mib);
    ls_str_add(out, " (MiB)\n");
}
