/* doctor_burn.c - `lockstep doctor --burn MINUTES`: one worker per core or GPU repeats the arithmetic of training (train/burn.h), and computes
 * one round of a small model with the reference loops (cpu-ref). A worker is wrong when it contradicts itself (its rounds differ, or its
 * losses are far from those of its reference) or the majority of the workers. Without a majority nobody is. */
#include "cli/commands.h"
#include "cli/doctor_impl.h"
#include "comm/launch.h"
#include "compute/look.h"
#include "config/resolve.h"
#include "core/cores.h"
#include "core/inject.h"
#include "core/minmax.h"
#include "core/progress.h"
#include "core/stop.h"
#include "train/burn.h"

#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#define FAR 0.02 /* of a loss, relative: bf16 products round to 8 bits, fp16 to 11 */

typedef struct job {
    double seconds;
    bool cuda, json;
    ls_dtype dtype;
    int index; /* of the GPU; -1: by rank */
} job;

typedef enum result { ROUNDS, SMALL, REFERENCE, N_RESULT } result;

typedef enum verdict { RIGHT, WRONG, UNDECIDED } verdict;

typedef struct row { /* of a worker */
    ls_burn_result result[N_RESULT];
    char where[64];
    /* of judge() */
    verdict verdict;
    bool heard; /* its rounds count in the comparison with other workers */
    char words[160];
} row;

static void tick(void *ctx, int64_t n_round, double seconds)
{
    const job *j = ctx;
    ls_progress_line l = {0};
    if (!ls_progress_due(n_round)) return;
    ls_progress_add(&l, 0, "burn %.0f of %.3g s", fmin(seconds, j->seconds), j->seconds);
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

/* All results of this worker. The rounds of a core are of the small model, so it needs no other one. */
static ls_status burn_one(const job *j, int rank, int n_core, row *out)
{
    const ls_compute_open_opts open = {
        .dtype = j->dtype, .device = j->index, .local_rank = rank, .deterministic = true};
    const ls_burn_opts reference = {.compute = "cpu-ref", .open = {.dtype = LS_F32}, .threads = n_core};
    ls_burn_opts o = {.compute = j->cuda ? "cuda" : "cpu", .open = open, .threads = n_core};
    name_place(j, rank, out->where);
    if (j->cuda) LS_TRY(ls_burn(&o, &out->result[SMALL]));
    o.seconds = j->seconds;
    o.large = j->cuda;
    if (!rank) o.tick = tick, o.ctx = (void *)j;
    LS_TRY(ls_burn(&o, &out->result[ROUNDS]));
    return ls_burn(&reference, &out->result[REFERENCE]);
}

static bool far(const double *loss, const double *reference)
{
    for (int k = 0; k < LS_BURN_STEPS; k++)
        if (!(fabs(loss[k] - reference[k]) <= FAR * fabs(reference[k]))) return true;
    return false;
}

static void say(row *x, verdict v, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void say(row *x, verdict v, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x->words, sizeof x->words, fmt, ap);
    va_end(ap);
    x->verdict = v;
}

/* The sign of a not-a-number depends on the CPU's instructions, and means nothing. */
static double unsigned_nan(double x)
{
    return isnan(x) ? fabs(x) : x;
}

/* Whether a worker contradicts itself. */
static void judge_alone(row *x)
{
    const ls_burn_result *r = &x->result[ROUNDS], *small = x->result[SMALL].n_round ? &x->result[SMALL] : r;
    const double *loss = small->loss, *reference = x->result[REFERENCE].loss;
    say(x, RIGHT, "ok");
    x->heard = 2 * r->n_wrong < r->n_round;
    if (r->n_wrong) {
        say(x, WRONG, "WRONG: %lld of %lld rounds gave other bits, first round %lld", (long long)r->n_wrong,
            (long long)r->n_round, (long long)r->first_wrong);
    } else if (far(loss, reference)) {
        say(x, WRONG, "WRONG: loss %.6g, reference %.6g", unsigned_nan(loss[LS_BURN_STEPS - 1]),
            unsigned_nan(reference[LS_BURN_STEPS - 1]));
        x->heard = false;
    }
}

/* Most of many rounds count also if some were wrong; a single round does not. */
static bool votes(const row *x, result k)
{
    return k == ROUNDS ? x->heard : x->verdict != WRONG;
}

static int n_same(const row *all, int n, result k, uint64_t hash)
{
    int same = 0;
    for (int i = 0; i < n; i++) same += votes(&all[i], k) && all[i].result[k].hash == hash;
    return same;
}

/* Compares a result of all workers that have a vote. */
static void compare(row *all, int n, result k)
{
    int n_vote = 0, most = 0, best = 0;
    for (int i = 0; i < n; i++) {
        if (!votes(&all[i], k)) continue;
        const int same = n_same(all, n, k, all[i].result[k].hash);
        if (same > most) most = same, best = i;
        n_vote++;
    }
    if (most == n_vote) return;
    const uint64_t right = all[best].result[k].hash;
    for (int i = 0; i < n; i++) {
        row *x = &all[i];
        if (x->verdict == WRONG) continue;
        if (2 * most <= n_vote) say(x, UNDECIDED, "differs; no majority shows who is wrong");
        else if (x->result[k].hash != right)
            say(x, WRONG, "WRONG: other bits than most workers%s", k == REFERENCE ? " in the reference loops" : "");
        else if (x->verdict == RIGHT) say(x, RIGHT, "ok, as the majority");
        if (x->verdict == WRONG) x->heard = false;
    }
}

static void judge(row *all, int n)
{
    for (int i = 0; i < n; i++) judge_alone(&all[i]);
    compare(all, n, REFERENCE);
    compare(all, n, SMALL);
    compare(all, n, ROUNDS);
}

static void print_text(const row *all, int n)
{
    printf("%-8s %-16s %10s  %s\n", "worker", "on", "rounds", "result");
    for (int i = 0; i < n; i++)
        printf("%-8d %-16s %10lld  %s\n", i, all[i].where, (long long)all[i].result[ROUNDS].n_round, all[i].words);
}

static ls_status print_json(const job *j, const row *all, int n, bool ok)
{
    static const char *const word[] = {"ok", "wrong", "undecided"};
    cli_json out;
    ls_jsonw *w = cli_json_begin(&out);
    ls_jsonw_members(w, LS_KV("version", LS_VERSION), LS_KV("ok", ok), LS_KV("seconds", j->seconds));
    ls_jsonw_put_open(w, "workers", '[');
    for (int i = 0; i < n; i++) {
        const ls_burn_result *r = &all[i].result[ROUNDS];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("worker", i), LS_KV("on", (const char *)all[i].where), LS_KV("rounds", r->n_round),
                         LS_KV("wrong_rounds", r->n_wrong), LS_KV("result", word[all[i].verdict]),
                         LS_KV("text", (const char *)all[i].words));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    return cli_json_end(&out);
}

/* Prints the table; LS_E_NUMERIC if a worker is wrong, or may be. */
static ls_status conclude(const job *j, row *all, int n)
{
    int first = -1, n_wrong = 0, n_right = 0;
    judge(all, n);
    for (int i = 0; i < n; i++) {
        if (all[i].verdict == WRONG && !n_wrong++) first = i;
        n_right += all[i].verdict == RIGHT;
    }
    if (j->json) LS_TRY(print_json(j, all, n, n_right == n));
    else print_text(all, n);
    LS_TRY(cli_flush());
    if (n_right == n) return LS_OK;
    if (!n_wrong)
        return ls_fail(LS_E_NUMERIC,
                       "the %d workers computed different numbers, and no majority shows which of them "
                       "are wrong; do not train on this hardware",
                       n);
    return ls_fail(LS_E_NUMERIC,
                   "%d of %d workers computed wrong numbers (first: worker %d on %s); do not train on this hardware",
                   n_wrong, n, first, all[first].where);
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
    if (st != LS_OK && st != LS_E_STOPPED && !ls_err_is_peers())
        cli_print_error(st == LS_E_NUMERIC ? -1 : rank, NULL, st);
}

static int n_gpu(void)
{
    ls_look look;
    ls_gpu_look(-1, 0, &look);
    return look.there ? LS_MAX(look.info.count, 1) : 1; /* without one, the worker prints the reason */
}

ls_status doctor_burn(double minutes, int n, const char *device, bool json)
{
    ls_device_choice d;
    LS_TRY(ls_device_choose(device, NULL, n > 0 ? n : 1, 0, &d));
    const char *precision = ls_precision_of_backend(NULL, d.cuda ? "cuda" : "cpu", d.card);
    job j = {.seconds = 60 * minutes,
             .cuda = d.cuda,
             .dtype = ls_precision_dtype(precision),
             .json = json,
             .index = d.index};
    if (!n) n = d.cuda ? (d.index >= 0 ? 1 : n_gpu()) : LS_MIN(ls_cores_usable(), LS_LAUNCH_MOST);
    ls_progress_open();
    const ls_status st = ls_launch_local(&(ls_launch){.n = n, .pin = true, .body = body, .report = report, .ctx = &j});
    ls_progress_end(false);
    if (st == LS_E_STOPPED && !ls_stop_at_once())
        return ls_fail(st, "doctor --burn was stopped before its time was over; there is no result");
    return st;
}
