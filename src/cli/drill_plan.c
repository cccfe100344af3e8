/* drill_plan.c - which faults a drill has: a function of its seed. */
#include "cli/drill_impl.h"

#include "core/rng.h"

#include <stdlib.h>

const drill_kind drill_kinds[] = {
    {.name = "kill", .words = "kind=kill", .fails = true},
    {.name = "stop", .words = "kind=stop", .fails = true},
    {.name = "abort", .words = "kind=abort", .fails = true},
    {.name = "exit", .words = "kind=exit", .fails = true},
    {.name = "slow", .words = "kind=slow,seconds=1.5"},
    {.name = "clock", .words = "kind=clock,seconds=-86400"},
    {.name = "oom", .words = "kind=oom", .fails = true, .harmless = true, .cause = "out of memory"},
    {.name = "full_disk", .words = "kind=enospc", .fails = true, .file = true, .cause = "disk"},
    {.name = "io_error", .words = "kind=eio", .fails = true, .file = true, .cause = "disk"},
    {.name = "fsync", .words = "kind=fsync", .fails = true, .file = true, .cause = "disk"},
    {.name = "kill_saving", .words = "kind=kill,phase=save", .fails = true, .file = true},
    {.name = "flip", .words = "kind=flip", .fails = true, .harmless = true, .flip = true, .cause = "corruption"},
    {.name = "host", .words = "kind=slow,seconds=2", .fails = true, .host = true},
};
const int drill_n_kind = CLI_COUNT(drill_kinds);

#define N_REPLICA      5 /* layouts of replicas come first */
#define ALL_STRATEGIES "dp|ddp|zero1|zero2|zero3|pipeline|pipeline_zero1|tensor"

static bool in_list(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, word, n) && (p[n] == ',' || !p[n])) return true;
    return !list;
}

/* Checks the words of a comma-separated list. */
static ls_status check_list(const char *option, const char *list, const char *choices)
{
    char word[32];
    for (const char *p = list; p && *p;) {
        const size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        if (n >= sizeof word || !n || !ls_one_of(choices, word, false))
            return ls_fail(LS_E_ARG, "--%s %s: '%s' is not one of %s", option, list, word, choices);
        p += n + (p[n] == ',');
    }
    return list && !*list ? ls_fail(LS_E_ARG, "--%s: the list is empty", option) : LS_OK;
}

/* Layout number k of n workers; false: there are no more. A layout without words does not fit n. */
static bool layout_at(int k, int n, int n_micro, drill_layout *l)
{
    static const char *const replicas[] = {"dp", "ddp", "zero1", "zero2", "zero3"};
    static const char *const schedule[] = {"gpipe", "1f1b", "zb"};
    *l = (drill_layout){.tp = 1};
    if (k < N_REPLICA) {
        l->name = replicas[k];
        snprintf(l->words, sizeof l->words, "--strategy %s --grad_accum_steps %d", l->name, n_micro / n);
        snprintf(l->shown, sizeof l->shown, "%s x %d", l->name, n);
    } else if (k < 8) {
        l->name = "pipeline";
        const int stages = n < 4 ? n : 4; /* the model has 4 units */
        if (stages < n) return true;
        snprintf(l->words, sizeof l->words, "--pp %d --schedule %s --grad_accum_steps %d", stages, schedule[k - 5],
                 n_micro);
        snprintf(l->shown, sizeof l->shown, "%s pp %d", schedule[k - 5], stages);
    } else if (k == 8) {
        l->name = "pipeline_zero1";
        if (n < 4) return true;
        snprintf(l->words, sizeof l->words, "--pp 2 --strategy zero1 --grad_accum_steps %d", 2 * n_micro / n);
        snprintf(l->shown, sizeof l->shown, "pp 2 x zero1 x %d", n / 2);
    } else if (k == 9) {
        l->name = "tensor";
        l->tp = 2;
        snprintf(l->words, sizeof l->words, "--tp 2 %s --grad_accum_steps %d", n > 2 ? "--strategy ddp" : "",
                 2 * n_micro / n);
        snprintf(l->shown, sizeof l->shown, n > 2 ? "tp 2 x ddp x %d" : "tp 2", n / 2);
    } else return false;
    return true;
}

/* The r-th of the layouts that fit and were asked for; their number. flip: those with one replica per worker, which audits compare. */
static int choose_layout(const drill_plan *p, int n_micro, bool flip, int r, drill_layout *out)
{
    drill_layout l;
    int n = 0;
    for (int k = 0; layout_at(k, p->n, n_micro, &l) && !(flip && k == N_REPLICA); k++)
        if (*l.words && in_list(p->strategies, l.name) && n++ == r) *out = l;
    return n;
}

static bool possible(const drill_plan *p, const drill_kind *k)
{
    drill_layout none;
    if (!in_list(p->only, k->name) || (k->host && p->launcher != DRILL_TCP)) return false;
    return !k->flip || (p->n >= 4 && choose_layout(p, 2 * p->n, true, -1, &none)); /* two against one */
}

static int choose_kind(const drill_plan *p, int r, const drill_kind **out)
{
    int n = 0;
    for (int k = 0; k < drill_n_kind; k++)
        if (possible(p, &drill_kinds[k]) && n++ == r) *out = &drill_kinds[k];
    return n;
}

ls_status drill_plan_check(const drill_plan *p)
{
    drill_layout none;
    const drill_kind *kind;
    ls_str names = {0};
    for (int k = 0; k < drill_n_kind; k++) ls_str_addf(&names, "%s%s", k ? "|" : "", drill_kinds[k].name);
    ls_status st = names.failed ? ls_nomem(names.cap, "a list") : check_list("kinds", p->only, names.data);
    ls_str_fini(&names);
    LS_TRY(st);
    LS_TRY(check_list("strategy", p->strategies, ALL_STRATEGIES));
    if (p->n & (p->n - 1))
        return ls_fail(LS_E_ARG, "-n %d: use a power of two, so that every layout computes the same step", p->n);
    if (!choose_layout(p, 2 * p->n, false, -1, &none))
        return ls_fail(LS_E_ARG,
                       "--strategy %s: no such layout has %d workers; pipeline_zero1 needs 4, pipeline 2 or 4",
                       p->strategies, p->n);
    if (!choose_kind(p, -1, &kind))
        return ls_fail(
            LS_E_ARG,
            "--kinds %s: not possible here: host needs --launcher tcp, flip at least 4 workers and dp, ddp or zero",
            p->only);
    return LS_OK;
}

/* Bits of the mantissa: others may end the run by a number that is not finite. Hidden units count from 1; every worker has them. */
static void add_flip(uint64_t key, ls_str *out)
{
    static const char *const tensors[] = {"param", "grad", "act"};
    ls_str_addf(out, ",tensor=%s,unit=%d,element=%d,bit=%d", tensors[ls_rng_u64(key, 3) % 3],
                1 + (int)(ls_rng_u64(key, 4) % 2), (int)(ls_rng_u64(key, 5) % 1000),
                8 + (int)(ls_rng_u64(key, 6) % 14));
}

static void plan_fault(const drill_plan *p, int64_t number, int attempt, int least, drill_fault *f)
{
    static const char *const phases[] = {"forward", "backward", "update"};
    const uint64_t key = ls_rng_key(p->seed, LS_RNG_TEST, 2, (uint64_t)number);
    ls_str words = {0};
    *f = (drill_fault){.number = number, .attempt = attempt};
    const int n_kind = choose_kind(p, -1, &f->kind);
    (void)choose_kind(p, (int)(ls_rng_u64(key, 0) % (uint64_t)n_kind), &f->kind);
    /* a file is written after its step: the last checkpoint must come after it */
    const int last = f->kind->file ? DRILL_STEPS - DRILL_SAVE : DRILL_STEPS - 1;
    f->step = last <= least ? least : least + (int)(ls_rng_u64(key, 1) % (uint64_t)(last - least + 1));
    f->rank = f->kind->file || f->kind->host ? 0 : (int)(ls_rng_u64(key, 2) % (uint64_t)p->n);
    ls_str_addf(&words, "%s,rank=%d,step=%d,attempt=%d", f->kind->words, f->rank, f->step, attempt);
    if (f->kind->flip) add_flip(key, &words);
    else if (!f->kind->file) ls_str_addf(&words, ",phase=%s", phases[ls_rng_u64(key, 3) % 3]);
    snprintf(f->words, sizeof f->words, "%s", words.data && !words.failed ? words.data : "kind=none");
    ls_str_fini(&words);
}

void drill_plan_run(const drill_plan *p, int64_t from, int64_t left, int n_micro, drill_run *r)
{
    const uint64_t key = ls_rng_key(p->seed, LS_RNG_TEST, 3, (uint64_t)from);
    *r = (drill_run){.n_fault = 1};
    plan_fault(p, from, 1, 2, &r->fault[0]);
    const bool flip = r->fault[0].kind->flip;
    const int n = choose_layout(p, n_micro, flip, -1, &r->layout);
    (void)choose_layout(p, n_micro, flip, (int)(ls_rng_u64(key, 0) % (uint64_t)n), &r->layout);
    if (left < 2 || !r->fault[0].kind->fails || r->fault[0].kind->host || flip || ls_rng_u64(key, 1) % 3) return;
    plan_fault(p, from + 1, 2, r->fault[0].step, &r->fault[1]);
    const drill_kind *second = r->fault[1].kind; /* a host is lost in the first attempt; flips have runs of their own */
    r->n_fault = second->host || second->flip ? 1 : 2;
}
