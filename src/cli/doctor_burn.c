/* doctor_burn.c - `lockstep doctor --burn MINUTES`: one worker per core or GPU repeats the arithmetic of training (train/burn.h). A worker
 * is wrong when its own rounds differ, when it differs from the majority of the workers, or when its losses are far from those of the
 * reference loops (cpu-ref), which one round of a small model computes. */
#include "cli/commands.h"
#include "cli/doctor_impl.h"
#include "comm/launch.h"
#include "compute/look.h"
#include "config/device_choice.h"
#include "core/cores.h"
#include "core/inject.h"
#include "core/minmax.h"
#include "core/progress.h"
#include "train/burn.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define FAR 0.02 /* of a loss, relative: bf16 products round to 8 bits */

typedef struct job {
    double seconds;
    bool cuda, json;
    int index; /* of the GPU; -1: by rank */
} job;

typedef struct row { /* of a worker */
    ls_burn_result r;
    double reference[LS_BURN_STEPS], small[LS_BURN_STEPS];
    char where[64];
} row;

typedef enum verdict { RIGHT, WRONG, UNDECIDED } verdict;

static void tick(void *ctx, int64_t n_round, double seconds)
{
    const job *j = ctx;
    ls_progress_line l = {0};
    if (!ls_progress_due(n_round)) return;
    ls_progress_add(&l, 0, "burn %.0f of %.0f s", fmin(seconds, j->seconds), j->seconds);
    ls_progress_add(&l, 1, "round %lld of worker 0", (long long)n_round);
    ls_progress_show(&l);
}

static void name_place(const job *j, int rank, char out[64])
{
    cpu_set_t set;
    int first = -1, n = 0;
    if (j->cuda) {
        snprintf(out, 64, "GPU %d", j->index < 0 ? rank : j->index);
        return;
    }
    if (sched_getaffinity(0, sizeof set, &set)) CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &set)) continue;
        if (first < 0) first = i;
        n++;
    }
    if (n == 1) snprintf(out, 64, "core %d", first);
    else snprintf(out, 64, "%d cores from %d", n, first);
}

/* The rounds of this worker. Worker 0 also computes the reference, and all a round of the same small model. */
static ls_status burn_one(const job *j, int rank, int n_core, row *out)
{
    const ls_compute_open_opts open = {
        .dtype = j->cuda ? LS_BF16 : LS_F32, .device = j->index, .local_rank = rank, .deterministic = true};
    ls_burn_opts o = {.compute = j->cuda ? "cuda" : "cpu", .open = open, .threads = n_core};
    ls_burn_result small;
    name_place(j, rank, out->where);
    LS_TRY(ls_burn(&o, &small));
    memcpy(out->small, small.loss, sizeof small.loss);
    if (!rank) {
        LS_TRY(ls_burn(&(ls_burn_opts){.compute = "cpu-ref", .open = {.dtype = LS_F32}, .threads = n_core}, &small));
        memcpy(out->reference, small.loss, sizeof small.loss);
    }
    o.seconds = j->seconds;
    o.large = j->cuda;
    if (!rank) o.tick = tick, o.ctx = (void *)j;
    return ls_burn(&o, &out->r);
}

static bool far(const row *x, const double *reference)
{
    for (int k = 0; k < LS_BURN_STEPS; k++)
        if (!(fabs(x->small[k] - reference[k]) <= FAR * fabs(reference[k]))) return true;
    return false;
}

static verdict judge(const row *all, int n, int i, char words[160])
{
    int same = 0;
    const row *x = &all[i];
    for (int k = 0; k < n; k++) same += all[k].r.hash == x->r.hash;
    if (x->r.n_wrong) {
        snprintf(words, 160, "WRONG: %lld of %lld rounds gave other bits, first round %lld", (long long)x->r.n_wrong,
                 (long long)x->r.n_round, (long long)x->r.first_wrong);
        return WRONG;
    }
    if (far(x, all[0].reference)) {
        snprintf(words, 160, "WRONG: loss %.6g, reference %.6g", x->small[LS_BURN_STEPS - 1],
                 all[0].reference[LS_BURN_STEPS - 1]);
        return WRONG;
    }
    if (same == n) {
        snprintf(words, 160, "ok");
        return RIGHT;
    }
    if (2 * same > n) {
        snprintf(words, 160, "ok, as the majority");
        return RIGHT;
    }
    bool others_agree = false;
    for (int k = 0; k < n && !others_agree; k++) {
        int agree = 0;
        for (int q = 0; q < n; q++) agree += all[q].r.hash == all[k].r.hash;
        others_agree = 2 * agree > n;
    }
    snprintf(words, 160,
             others_agree ? "WRONG: other bits than most workers" : "differs; no majority shows who is wrong");
    return others_agree ? WRONG : UNDECIDED;
}

static void print_text(const row *all, int n)
{
    char words[160];
    printf("%-8s %-16s %10s  %s\n", "worker", "on", "rounds", "result");
    for (int i = 0; i < n; i++) {
        (void)judge(all, n, i, words);
        printf("%-8d %-16s %10lld  %s\n", i, all[i].where, (long long)all[i].r.n_round, words);
    }
}

static ls_status print_json(const job *j, const row *all, int n, bool ok)
{
    static const char *const word[] = {"ok", "wrong", "undecided"};
    char words[160];
    cli_json out;
    ls_jsonw *w = cli_json_begin(&out);
    ls_jsonw_members(w, LS_KV("version", LS_VERSION), LS_KV("ok", ok), LS_KV("seconds", j->seconds));
    ls_jsonw_put_open(w, "workers", '[');
    for (int i = 0; i < n; i++) {
        const verdict v = judge(all, n, i, words);
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("worker", i), LS_KV("on", (const char *)all[i].where),
                         LS_KV("rounds", all[i].r.n_round), LS_KV("wrong_rounds", all[i].r.n_wrong),
                         LS_KV("result", word[v]), LS_KV("text", (const char *)words));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    return cli_json_end(&out);
}

/* Prints the table; LS_E_NUMERIC if a worker is wrong. */
static ls_status conclude(const job *j, const row *all, int n)
{
    int bad = -1, n_bad = 0;
    char words[160];
    for (int i = 0; i < n; i++) {
        if (judge(all, n, i, words) == RIGHT) continue;
        if (bad < 0) bad = i;
        n_bad++;
    }
    if (j->json) LS_TRY(print_json(j, all, n, !n_bad));
    else print_text(all, n);
    LS_TRY(cli_flush());
    if (!n_bad) return LS_OK;
    return ls_fail(LS_E_NUMERIC,
                   "%d of %d workers computed wrong numbers (first: worker %d on %s); do not train on this hardware",
                   n_bad, n, bad, all[bad].where);
}

static ls_status body(void *ctx, ls_comm *c, int n_core)
{
    const job *j = ctx;
    const int rank = ls_comm_rank(c), n = ls_comm_size(c);
    row mine = {0}, *all = NULL;
    LS_TRY(ls_inject_worker(rank));
    ls_comm_set_limit(c, 0); /* workers end their last round at different times */
    LS_TRY(ls_comm_agree(c, burn_one(j, rank, n_core, &mine), LS_SITE));
    LS_TRY(ls_comm_gather(c, &mine, sizeof mine, LS_SITE, &all));
    const ls_status st = rank ? LS_OK : conclude(j, all, n);
    return ls_comm_agree(c, st, LS_SITE);
}

static void report(void *ctx, int rank, ls_status st)
{
    (void)ctx;
    if (st != LS_OK && !ls_err_is_peers()) cli_print_error(st == LS_E_NUMERIC ? -1 : rank, NULL, st);
}

static int n_gpu(void)
{
    ls_look look;
    ls_gpu_look(0, &look);
    return look.there ? LS_MAX(look.info.count, 1) : 1; /* without one, the worker prints the reason */
}

ls_status doctor_burn(double minutes, int n, const char *device, bool json)
{
    ls_device_choice d;
    LS_TRY(ls_device_choose(device, NULL, n > 0 ? n : 1, 0, &d));
    job j = {.seconds = 60 * minutes, .cuda = d.cuda, .json = json, .index = d.index};
    if (!n) n = d.cuda ? (d.index >= 0 ? 1 : n_gpu()) : LS_MIN(ls_cores_usable(), LS_LAUNCH_MOST);
    ls_progress_open();
    const ls_status st = ls_launch_local(&(ls_launch){.n = n, .pin = true, .body = body, .report = report, .ctx = &j});
    ls_progress_end(false);
    return st;
}
