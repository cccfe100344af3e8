/* cmd_drill.c - `lockstep drill`: runs a small job again and again under faults of a random plan, and prints what each of them did. */
#include "cli/drill_impl.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/stat.h"
#include "core/stop.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

typedef struct options {
    int64_t faults, seed, n;
    const char *strategy, *launcher, *kinds, *data, *out;
    double minutes, timeout;
    bool json;
} options;

static const ls_opt table[] = {
    CLI_INT_IN(1, 1e6, "faults", faults, "N", "20", "number of faults", "Plan"),
    CLI_INT_IN(0, 9e18, "seed", seed, "S", "1", "seed of the plan: the same seed gives the same faults"),
    CLI_STR(
        "kinds", kinds, "LIST", NULL,
        "faults to choose from: kill, stop, abort, exit, slow, clock, oom, full_disk, io_error, fsync, kill_saving, "
        "flip (of a bit, found by --audit), host (with --launcher tcp) [all that are possible]"),
    CLI_REAL_IN(0, 1e6, "minutes", minutes, "M", "0", "start no further run after M minutes; 0 = no limit"),
    CLI_STR("strategy", strategy, "LIST", NULL,
            "layouts to choose from: dp, ddp, zero1, zero2, zero3, pipeline, pipeline_zero1, tensor [all that fit]",
            "Runs"),
    CLI_INT_IN(2, 64, "n", n, "N", "4", "workers of a run, a power of two (also -n N)"),
    CLI_CHOICE("launcher", launcher, "n|mpi|tcp", "n",
               "how workers start: train -n, mpirun, or lockstep launch with two hosts on this machine"),
    CLI_STR("data", data, "DIR", NULL, "token files for the runs, from `lockstep prepare` [made by the drill]"),
    CLI_REAL_IN(10, 1e6, "timeout", timeout, "SECONDS", "120", "a run that takes longer has failed"),
    CLI_STR("out", out, "DIR", NULL, "new folder for the runs, which are kept [a temporary folder]", "Output"),
    CLI_SWITCH("json", json, "print one JSON object instead of the table"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "drill [--faults N] [--seed S] [OPTIONS]",
    "Train a small model with --max_restarts while faults are injected into it, and check each run: it ends by itself, "
    "its model and its optimizer have the bits of an undisturbed run of one worker, and no process, port or shared "
    "memory is left. The plan is a function of the seed. Some runs have two faults, the second one after the "
    "restart. One row per fault: how long until it was detected, how long until training went on, and how many steps "
    "were repeated. The exit code is 1 if a run fails; its folder is kept. docs/DRILL.md describes the faults.\n\n"
    "  lockstep drill\n"
    "  lockstep drill --faults 100 --seed 7 --launcher mpi --kinds kill,stop\n"};

typedef struct results {
    const options *o;
    ls_jsonw *w;
    int64_t n_fault, n_run, n_failed;
    double *again; /* seconds of every restart */
    size_t n_again, cap_again;
} results;

static const char *seconds_or_dash(char buf[16], double x)
{
    if (isnan(x)) return "-";
    snprintf(buf, 16, "%.2f s", x);
    return buf;
}

static void print_row(const drill_run *r, const drill_fault *f)
{
    char a[16], b[16], lost[24] = "-";
    if (f->number == 1)
        printf("%6s  %-11s %4s %4s  %-17s %9s %14s %10s  %s\n", "fault", "kind", "rank", "step", "layout", "detected",
               "training again", "lost steps", "same bits");
    if (f->lost_steps >= 0) snprintf(lost, sizeof lost, "%lld", (long long)f->lost_steps);
    printf("%6lld  %-11s %4d %4d  %-17s %9s %14s %10s  %s\n", (long long)f->number, f->kind->name, f->rank, f->step,
           r->layout.shown, f->happened ? seconds_or_dash(a, f->detected) : "not done", seconds_or_dash(b, f->again),
           lost, r->same ? "yes" : "no");
}

static void json_row(ls_jsonw *w, const drill_run *r, const drill_fault *f)
{
    ls_jsonw_open(w, '{');
    ls_jsonw_members(
        w, LS_KV("fault", f->number), LS_KV("kind", f->kind->name), LS_KV("rank", f->rank), LS_KV("step", f->step),
        LS_KV("attempt", f->attempt), LS_KV("layout", (const char *)r->layout.shown),
        LS_KV("plan", (const char *)f->words), LS_KV("happened", f->happened), LS_KV("cause", (const char *)f->cause),
        LS_KV("detected_seconds", f->detected), LS_KV("again_seconds", f->again),
        LS_KV_COUNT("lost_steps", f->lost_steps), LS_KV("same_bits", r->same), LS_KV("run_seconds", r->seconds),
        LS_KV("exit_code", r->code), LS_KV_IF(*r->failed, LS_KV("failed", (const char *)r->failed)));
    ls_jsonw_close(w);
}

static ls_status take_run(results *x, const drill_site *s, const drill_run *r)
{
    for (int k = 0; k < r->n_fault; k++) {
        const drill_fault *f = &r->fault[k];
        if (x->o->json) json_row(x->w, r, f);
        else print_row(r, f);
        x->n_fault += f->happened;
        if (isnan(f->again)) continue;
        LS_TRY(ls_reserve(&x->again, &x->cap_again, x->n_again + 1, sizeof *x->again, "the results"));
        x->again[x->n_again++] = f->again;
    }
    x->n_run++;
    if (*r->failed) {
        x->n_failed++;
        fprintf(stderr, "lockstep: fault %lld: %s; its files: %s/run-%lld\n", (long long)r->fault[0].number, r->failed,
                s->dir, (long long)r->fault[0].number);
    }
    fflush(stdout);
    return LS_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarize(results *x, double seconds)
{
    if (x->n_again) qsort(x->again, x->n_again, sizeof *x->again, by_value);
    const double median = ls_median(x->again, (int)x->n_again), most = x->n_again ? x->again[x->n_again - 1] : NAN;
    if (x->o->json) {
        ls_jsonw_close(x->w);
        ls_jsonw_members(x->w, LS_KV("runs", x->n_run), LS_KV("faults", x->n_fault),
                         LS_KV("restarts", (int64_t)x->n_again), LS_KV("failed", x->n_failed),
                         LS_KV("seconds", seconds), LS_KV("median_again_seconds", median),
                         LS_KV("longest_again_seconds", most));
        return;
    }
    char a[16], b[16];
    printf(
        "%lld fault%s in %lld run%s, %zu restart%s; training again after %s (median), %s (longest); %lld run%s failed\n",
        (long long)x->n_fault, x->n_fault == 1 ? "" : "s", (long long)x->n_run, x->n_run == 1 ? "" : "s", x->n_again,
        x->n_again == 1 ? "" : "s", seconds_or_dash(a, median), seconds_or_dash(b, most), (long long)x->n_failed,
        x->n_failed == 1 ? "" : "s");
}

static ls_status run_all(const drill_plan *p, drill_site *s, results *x)
{
    const options *o = x->o;
    const double begin = ls_now();
    ls_status st = LS_OK;
    for (int64_t at = 1; at <= o->faults && st == LS_OK;) {
        drill_run r;
        if (o->minutes > 0 && ls_now() - begin > 60 * o->minutes) break;
        drill_plan_run(p, at, o->faults - at + 1, s->n_micro, &r);
        st = drill_run_once(s, &r);
        if (st == LS_OK) st = take_run(x, s, &r);
        at += r.n_fault;
    }
    if (st == LS_OK || st == LS_E_STOPPED) summarize(x, ls_now() - begin);
    return st;
}

static ls_status check_launcher(const options *o, drill_launcher *l)
{
    char path[4096];
    *l = !strcmp(o->launcher, "mpi") ? DRILL_MPI : !strcmp(o->launcher, "tcp") ? DRILL_TCP : DRILL_N;
    if (*l == DRILL_MPI && !cli_find_program("mpirun", path))
        return ls_fail(LS_E_UNSUPPORTED, "--launcher mpi: mpirun is not in PATH");
    return LS_OK;
}

static ls_status choose_folder(const options *o, char dir[PATH_MAX])
{
    const char *tmp = getenv("TMPDIR");
    if (o->out && ls_fs_exists(o->out)) return ls_fail(LS_E_ARG, "--out %s exists; choose another folder", o->out);
    snprintf(dir, PATH_MAX, "%s", o->out ? o->out : "");
    if (o->out) return LS_OK;
    snprintf(dir, PATH_MAX, "%s/lockstep-drill-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(dir) ? LS_OK : ls_fail(LS_E_IO, "cannot create a folder %s: %s", dir, strerror(errno));
}

ls_status cmd_drill(int argc, char **argv)
{
    options o = {0};
    char dir[PATH_MAX];
    cli_json j = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, NULL, NULL));
    drill_plan p = {.seed = (uint64_t)o.seed, .n = (int)o.n, .strategies = o.strategy, .only = o.kinds};
    drill_site s = {
        .data = o.data, .n = p.n, .n_micro = 2 * p.n, .limit = o.timeout, .keep = o.out != NULL, .own_data = !o.data};
    results x = {.o = &o};
    LS_TRY(check_launcher(&o, &p.launcher));
    s.launcher = p.launcher;
    LS_TRY(drill_plan_check(&p));
    ls_stop_install(); /* before the folder exists: a signal removes it */
    LS_TRY(choose_folder(&o, dir));
    if (o.json) {
        x.w = cli_json_begin(&j);
        ls_jsonw_members(x.w, LS_KV("seed", o.seed), LS_KV("launcher", o.launcher), LS_KV("workers", o.n));
        ls_jsonw_put_open(x.w, "rows", '[');
    }
    ls_status st = drill_site_open(&s, dir);
    if (st == LS_OK) st = run_all(&p, &s, &x);
    drill_site_close(&s, !o.out && !x.n_failed);
    ls_free(x.again);
    if (o.json && st == LS_OK) st = cli_json_end(&j);
    else ls_str_fini(&j.text);
    return st == LS_OK && x.n_failed ? cli_negative() : st;
}
