/* cmd_verify.c - `lockstep verify`: the table of layouts, each compared with one worker. */
#include "cli/commands.h"

#include "bench/verify.h"
#include "comm/launch.h"
#include "comm/start.h"
#include "core/json.h"
#include "core/stack.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *n, *device, *precision, *comm;
    int64_t steps, seed, jobs;
    double timeout;
    bool json, only_tp;
} options;

static const ls_opt table[] = {
    {"n", LS_OPT_STR, offsetof(options, n), "LIST", NULL,
     "numbers of workers to test; each must divide the largest [1,2,4; under mpirun: up to all]", "Layouts"},
    {"device", LS_OPT_STR, offsetof(options, device), "auto|cpu|cuda[:N]", NULL,
     "compute device; auto: cuda if a GPU is available, else cpu; workers may share a GPU [LS_DEVICE, else auto]",
     NULL},
    {"comm", LS_OPT_CHOICE, offsetof(options, comm), "auto|local|mpi|nccl", "auto",
     "communication backend; nccl: between GPUs", NULL},
    {"precision", LS_OPT_CHOICE, offsetof(options, precision), "fp32|bf16|fp16", NULL,
     "number format; bf16 and fp16 need a GPU [as in train]", NULL},
    {"steps", LS_OPT_INT, offsetof(options, steps), "N", "3", "optimizer steps per layout", NULL},
    {"seed", LS_OPT_INT, offsetof(options, seed), "N", "1", "random seed of data, weights and dropout", NULL},
    {"only-tp", LS_OPT_SWITCH, offsetof(options, only_tp), NULL, NULL, "test only layouts with tensor parallelism",
     NULL},
    {"jobs", LS_OPT_INT, offsetof(options, jobs), "N", NULL,
     "layouts to run at the same time, each in its own processes; 0 = start the workers once for all layouts [CPU: 1; "
     "GPU: 0]",
     NULL},
    {"timeout", LS_OPT_REAL, offsetof(options, timeout), "SECONDS", "120",
     "time limit per layout; with --jobs 0, per collective", NULL},
    {"json", LS_OPT_SWITCH, offsetof(options, json), NULL, NULL, "print one JSON object instead of the table", NULL},
};
#define N_OPT (sizeof table / sizeof table[0])

typedef struct printer {
    bool json;
    const ls_verify_opts *opts;
    ls_jsonw w;
    int n, n_identical, n_within;
} printer;

static void print_row(void *ctx, const ls_verify_row *r)
{
    printer *p = ctx;
    p->n++;
    p->n_identical += r->identical;
    const bool close = !r->identical && r->s.tp > 1 && r->within;
    const char *verdict = r->identical ? "identical" : close ? "within" : r->ran ? "differs" : "failed";
    p->n_within += close;
    if (!p->json) {
        char bounds[64] = "";
        if (close)
            snprintf(bounds, sizeof bounds, " loss %g, gradients %g", ls_verify_loss_limit(p->opts),
                     ls_verify_grad_limit(p->opts));
        printf("%-8s %-6s %7d  %2d %-11s %2d%s %12d %8.1f %7.2f s   %s%s%s%s\n", r->s.strategy, r->comm, r->s.world,
               r->s.pp, r->s.schedule ? r->s.schedule : "", r->s.tp, r->s.by_rows ? "s" : " ", r->n_micro, r->dropout,
               r->seconds, verdict, bounds, r->words[0] ? ": " : "", r->words);
        fflush(stdout);
        return;
    }
    ls_jsonw *w = &p->w;
    ls_jsonw_open(w, '{');
    ls_jsonw_put_str(w, "strategy", r->s.strategy);
    ls_jsonw_put_str(w, "comm", r->comm);
    ls_jsonw_put_int(w, "workers", r->s.world);
    ls_jsonw_put_int(w, "tp", r->s.tp);
    ls_jsonw_put_int(w, "pp", r->s.pp);
    if (r->s.schedule) { ls_jsonw_put_str(w, "schedule", r->s.schedule); }
    ls_jsonw_put_bool(w, "sequence_parallel", r->s.by_rows);
    ls_jsonw_put_int(w, "micro_batches", r->n_micro);
    ls_jsonw_put_real(w, "dropout", r->dropout);
    ls_jsonw_put_real(w, "seconds", r->seconds);
    ls_jsonw_put_str(w, "result", verdict);
    if (r->words[0]) { ls_jsonw_put_str(w, "words", r->words); }
    ls_jsonw_close(w);
}

static ls_status parse_list(const char *text, ls_verify_opts *o)
{
    int most = 1;
    for (const char *p = text; *p;) {
        char word[16];
        size_t n = strcspn(p, ",");
        int64_t v;
        snprintf(word, sizeof word, "%.*s", (int)(n < 15 ? n : 15), p);
        if (!ls_parse_i64(word, &v) || v < 1 || v > 64 || o->n_world == LS_VERIFY_MAX_WORLD)
            return ls_fail(LS_E_ARG, "-n %s: must be a list of up to %d numbers from 1 to 64, such as 1,2,4", text,
                           LS_VERIFY_MAX_WORLD);
        o->world[o->n_world++] = (int)v;
        most = v > most ? (int)v : most;
        p += n + (p[n] == ',');
    }
    for (int i = 0; i < o->n_world; i++)
        if (most % o->world[i] || (o->world[i] & (o->world[i] - 1)))
            return ls_fail(LS_E_ARG,
                           "-n %s: the micro-batches of %d workers do not divide over those of %d; use powers of two",
                           text, o->world[i], most);
    return o->n_world ? LS_OK : ls_fail(LS_E_ARG, "-n needs at least one number of workers");
}

/* Under a launcher every worker comes here; rank 0 prints. */
static ls_status join(const ls_start_env *e, const ls_verify_opts *v, ls_comm **out)
{
    for (int i = 0; i < v->n_world; i++)
        if (v->world[i] > e->size)
            return ls_fail(LS_E_ARG, "-n has %d workers, but %s started %d", v->world[i], e->words, e->size);
    if (e->by == LS_STARTED_SRUN)
        return ls_fail(LS_E_CONFIG,
                       "srun started %d tasks without PMIx, which cannot connect to each other; use srun --mpi=pmix",
                       e->size);
    ls_stack_install("a worker of verify");
    return e->by == LS_STARTED_MPI ? ls_comm_mpi(out) : ls_comm_meet(e, out);
}

static bool has_launcher(const ls_start_env *e)
{
    return e->size > 1;
}

/* What no layout could honour is refused before the first. */
static ls_status check(const options *o, const ls_start_env *e)
{
    const bool mpi = has_launcher(e) && e->by == LS_STARTED_MPI;
    if (!(o->timeout > 0)) return ls_fail(LS_E_ARG, "--timeout %g: must be more than 0 seconds", o->timeout);
    if (o->jobs < 0 || o->jobs > 64) return ls_fail(LS_E_ARG, "--jobs %lld: must be 0 to 64", (long long)o->jobs);
    if (o->jobs > 1 && has_launcher(e))
        return ls_fail(LS_E_ARG, "--jobs %lld: workers started by %s run one layout at a time; leave --jobs out",
                       (long long)o->jobs, e->words);
    if (!strcmp(o->comm, "mpi") && !mpi)
        return ls_fail(LS_E_CONFIG, "--comm mpi: start the workers with mpirun or srun --mpi=pmix");
    if (!strcmp(o->comm, "local") && mpi)
        return ls_fail(LS_E_CONFIG, "--comm local: %s started these workers over MPI; leave --comm out", e->words);
    return LS_OK;
}

/* Before workers are forked; those of a launcher agree (v->comm). *chosen receives the choice. */
static ls_status choose_device(const options *o, const ls_start_env *e, ls_verify_opts *v, ls_device_choice *chosen)
{
    int most = 1;
    for (int i = 0; i < v->n_world; i++) most = v->world[i] > most ? v->world[i] : most;
    LS_TRY(ls_device_choose(o->device, NULL, most, e->local_rank, chosen));
    if (has_launcher(e)) {
        LS_TRY(join(e, v, &v->comm));
        ls_comm_set_limit(v->comm, o->timeout);
        unsetenv("WORLD_SIZE"); /* it is not the number of a layout's workers, which train would compare it with */
        LS_TRY(ls_device_agree(chosen, v->comm));
    }
    v->device = !chosen->automatic ? chosen->asked : chosen->cuda ? "cuda" : "cpu";
    if (!strcmp(o->comm, "nccl") && !chosen->cuda)
        return ls_fail(LS_E_CONFIG,
                       "--comm nccl: needs GPUs, but the device is %s; use --device cuda, or --comm local or mpi",
                       chosen->words);
    return LS_OK;
}

static ls_status verify_quietly(const ls_verify_opts *v)
{
    ls_status st = ls_verify(v, NULL, NULL);
    ls_err_clear(); /* rank 0 says it */
    return st;
}

static const char *default_list(int n, char text[64])
{
    size_t at = 0;
    text[0] = '\0';
    for (int w = 1; w <= n && w <= 64; w *= 2) at += (size_t)snprintf(text + at, 64 - at, "%s%d", at ? "," : "", w);
    return text;
}

static bool jobs_given(const unsigned char *given)
{
    for (size_t i = 0; i < N_OPT; i++)
        if (!strcmp(table[i].name, "jobs")) return given[i];
    return false;
}

/* Runs all layouts and prints them; among workers that already run, rank 0 prints. */
static ls_status verify_and_print(const options *o, const ls_verify_opts *v)
{
    ls_str out = {0};
    printer p = {.json = o->json, .opts = v};
    ls_jsonw_init(&p.w, &out, 2);
    ls_jsonw_open(&p.w, '{');
    ls_jsonw_put_open(&p.w, "layouts", '[');
    if (!o->json)
        printf("strategy comm   workers  pp schedule    tp  micro-batches  dropout      time   against one worker\n");
    const ls_status st = ls_verify(v, print_row, &p);
    ls_jsonw_close(&p.w);
    ls_jsonw_put_int(&p.w, "identical", p.n_identical);
    ls_jsonw_put_int(&p.w, "within", p.n_within);
    ls_jsonw_put_int(&p.w, "of", p.n);
    ls_jsonw_close(&p.w);
    if (o->json) puts(out.data ? out.data : "");
    else if (p.n_within) printf("%d of %d layouts identical, %d within\n", p.n_identical, p.n, p.n_within);
    else printf("%d of %d layouts identical\n", p.n_identical, p.n);
    ls_str_fini(&out);
    fflush(stdout); /* closing has a limit */
    return st;
}

typedef struct together {
    const options *o;
    const ls_verify_opts *v;
} together;

static ls_status together_worker(void *ctx, ls_comm *comm, int n_core)
{
    const together *t = ctx;
    ls_verify_opts v = *t->v;
    (void)n_core;
    v.comm = comm;
    v.jobs = 1;
    ls_comm_set_limit(comm, t->o->timeout);
    return ls_comm_rank(comm) ? verify_quietly(&v) : verify_and_print(t->o, &v);
}

static void together_report(void *ctx, int rank, ls_status st)
{
    (void)ctx;
    if (st != LS_OK && *ls_err_words()) cli_print_error(rank, st);
}

/* Workers are started once and run one layout after the other. */
static ls_status verify_together(const options *o, const ls_verify_opts *v)
{
    together t = {o, v};
    int most = 1;
    for (int i = 0; i < v->n_world; i++) most = v->world[i] > most ? v->world[i] : most;
    return ls_launch_local(&(ls_launch){.n = most,
                                        .arena_nbytes = (size_t)1 << 34,
                                        .pin = false,
                                        .body = together_worker,
                                        .report = together_report,
                                        .ctx = &t});
}

ls_status cmd_verify(int argc, char **argv)
{
    options o = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(table, N_OPT, &o));
    unsigned char given[N_OPT] = {0};
    LS_TRY(ls_opt_parse(table, N_OPT, &o, given, argc, argv, NULL, &help));
    if (help) {
        cli_help("verify [-n LIST] [OPTIONS]",
                 "Train a small model for a few steps under every strategy and number of workers, with and without "
                 "dropout and with 1, 2 and 4 micro-batches, and compare losses, gradients and weights with a single "
                 "worker, bit by bit.\n\nTensor parallelism (tp 2 and 4; 2s: with --sequence_parallel) changes the "
                 "order of sums: over 20 steps, losses must stay within 1e-5 and gradients within 1e-4; with bf16 or "
                 "fp16, within 5e-3 and 5e-2. On the CPU, each layout runs in its own processes.",
                 table, N_OPT);
        return LS_OK;
    }
    char list[64];
    ls_start_env env = {0};
    ls_verify_opts v = {.steps = (int)o.steps,
                        .seed = (uint64_t)o.seed,
                        .only_tp = o.only_tp,
                        .jobs = o.jobs ? (int)o.jobs : 1,
                        .limit = o.timeout,
                        .precision = o.precision,
                        .comm_name = o.comm};
    LS_TRY(ls_start_env_read(&env));
    LS_TRY(check(&o, &env));
    LS_TRY(parse_list(o.n ? o.n : default_list(env.size > 1 ? env.size : 4, list), &v));
    ls_device_choice device;
    ls_status st = choose_device(&o, &env, &v, &device);
    if (st != LS_OK) {
        if (env.rank) ls_err_clear(); /* rank 0 prints it */
        ls_comm_close(&v.comm, st);
        return st;
    }
    if (env.rank) {
        st = verify_quietly(&v);
        ls_comm_close(&v.comm, st);
        return st;
    }
    cli_say_device(&device);
    const bool once = jobs_given(given) ? !o.jobs : device.cuda;
    st = once && !v.comm ? verify_together(&o, &v) : verify_and_print(&o, &v);
    ls_comm_close(&v.comm, st);
    return st;
}
