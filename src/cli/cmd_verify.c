/* cmd_verify.c - `lockstep verify`: the table of layouts, each compared with one worker. */
#include "cli/commands.h"

#include "bench/jobs.h"
#include "bench/verify.h"
#include "comm/launch.h"
#include "core/stack.h"

#include <stdlib.h>

typedef struct options {
    ls_verify_opts v;
    const char *n, *device, *task;
    int64_t steps, seed, jobs;
    bool json;
} options;

static const ls_opt table[] = {
    CLI_STR("n", n, "LIST", NULL, "numbers of workers to test, powers of two [1,2,4; under mpirun: up to all]",
            "Layouts"),
    CLI_STR(
        "device", device, "auto|cpu|cuda[:N]", NULL,
        "compute device; auto: cuda if a GPU is available, else cpu; workers may share a GPU [LS_DEVICE, else auto]"),
    CLI_CHOICE("comm", v.comm_name, "auto|local|mpi|tcp|nccl", "auto", "communication backend; nccl: between GPUs"),
    CLI_CHOICE("precision", v.precision, "fp32|bf16|fp16|fp8|auto", NULL,
               "number format; fp16 and fp8 need a GPU [as in train]"),
    CLI_CHOICE("fp8_format", v.fp8_format, "e4m3|hybrid", NULL, "as in train, with --precision fp8 [e4m3]"),
    CLI_INT_IN(1, LS_FP8_HISTORY, "fp8_amax_history_len", v.fp8_history, "N", NULL,
               "as in train, with --precision fp8 [16]"),
    CLI_INT_IN(0, LS_FP8_MARGIN, "fp8_margin", v.fp8_margin, "N", NULL, "as in train, with --precision fp8 [0]"),
    CLI_CHOICE(
        "offload_optimizer", v.offload, "none|cpu", "none",
        "cpu: layouts with zero1 to zero3 keep the optimizer in host memory, also with --clip 0, where it is updated during the backward pass; needs a GPU"),
    CLI_INT_IN(1, LS_VERIFY_MAX_STEP, "steps", steps, "N", "3", "optimizer steps per layout"),
    CLI_INT_IN(0, 9e18, "seed", seed, "N", "1", "random seed of data, weights and dropout"),
    CLI_CHOICE("task", task, "lm|translate", "lm",
               "data: a stream of tokens, or pairs of sentences whose loss counts the target only"),
    CLI_SWITCH("only_tp", v.only_tp, "test only layouts with tensor parallelism"),
    CLI_INT_IN(
        0, LS_JOBS_MOST, "jobs", jobs, "N", NULL,
        "layouts to run at the same time, each in its own processes; 0 = start the workers once for all layouts [CPU: 1; GPU: 0]"),
    CLI_REAL_IN(0, 1e9, "timeout", v.limit, "SECONDS", "120", "time limit per layout; with --jobs 0, per collective"),
    CLI_SWITCH("json", json, "print one JSON object instead of the table"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "verify [-n LIST] [OPTIONS]",
    "Train a small model for a few steps under every strategy and number of workers, with and without dropout and with 1, 2 and 4 micro-batches, and compare losses, gradients and weights with a single worker, bit by bit.\n\nTensor parallelism (tp 2 and 4; 2s in column tp: tp 2 with --sequence_parallel) changes the order of sums: over 20 steps, losses must stay "
    "within 1e-5 and gradients within 1e-4; with bf16 or fp16, within 5e-3 and 5e-2; with fp8, within 5e-3 and 5e-1. On the CPU, each layout runs in its own processes."};

typedef struct printer {
    const options *o;
    ls_jsonw *w;
    int n, of, n_identical, n_within; /* n rows of the layouts of this command */
} printer;

static void json_row(ls_jsonw *w, const ls_verify_row *r, const char *verdict)
{
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("strategy", r->s.strategy), LS_KV("comm", r->comm), LS_KV("workers", r->s.world),
                     LS_KV("tp", r->s.tp), LS_KV("pp", r->s.pp));
    if (r->s.schedule) ls_jsonw_put_str(w, "schedule", r->s.schedule);
    ls_jsonw_members(w, LS_KV("sequence_parallel", r->s.by_rows), LS_KV("micro_batches", r->n_micro),
                     LS_KV("dropout", r->dropout), LS_KV("seconds", r->seconds), LS_KV("result", verdict));
    if (r->unclipped) ls_jsonw_members(w, LS_KV("clip", 0));
    if (r->words[0]) ls_jsonw_put_str(w, "words", r->words);
    ls_jsonw_close(w);
}

/* Before the first row: what all of them computed with. */
static void print_begin(printer *p, const ls_verify_how *how)
{
    if (!p->o->json) {
        printf("precision %s; %s\n", how->precision, how->compute);
        printf("strategy comm   workers  pp schedule    tp  micro-batches  dropout      time   against one worker\n");
        return;
    }
    ls_jsonw_members(p->w, LS_KV("precision", (const char *)how->precision), LS_KV("device", (const char *)how->device),
                     LS_KV("compute", (const char *)how->compute));
    ls_jsonw_put_open(p->w, "layouts", '[');
}

static void print_row(void *ctx, const ls_verify_row *r)
{
    printer *p = ctx;
    const bool close = !r->identical && r->s.tp > 1 && r->within;
    const char *verdict = r->identical ? "identical" : close ? "within" : r->ran ? "differs" : "failed";
    char bounds[64] = "";
    if (!p->n++) print_begin(p, r->how);
    p->of = r->of;
    p->n_identical += r->identical;
    p->n_within += close;
    if (p->o->json) {
        json_row(p->w, r, verdict);
        return;
    }
    if (close)
        snprintf(bounds, sizeof bounds, " loss %g, gradients %g", ls_verify_loss_limit(&p->o->v),
                 ls_verify_grad_limit(&p->o->v));
    printf("%-8s %-6s %7d  %2d %-11s %2d%s %12d %8.1f %7.2f s   %s%s%s%s%s\n", r->s.strategy, r->comm, r->s.world,
           r->s.pp, r->s.schedule ? r->s.schedule : "", r->s.tp, r->s.by_rows ? "s" : " ", r->n_micro, r->dropout,
           r->seconds, verdict, r->unclipped ? " (--clip 0)" : "", bounds, r->words[0] ? ": " : "", r->words);
    fflush(stdout);
}

static void print_end(const printer *p)
{
    char within[32] = "";
    if (p->n_within) snprintf(within, sizeof within, ", %d within", p->n_within);
    if (p->n < p->of) printf("stopped after %d of %d layouts: %d identical%s\n", p->n, p->of, p->n_identical, within);
    else printf("%d of %d layouts identical%s\n", p->n_identical, p->n, within);
}

/* Parses -n; without it: powers of two up to all workers of a launcher, else 1,2,4. *most is the largest. */
static ls_status parse_list(options *o, const ls_start_env *e, int *most)
{
    ls_verify_opts *v = &o->v;
    const int all = e->size > 1 ? e->size : 4;
    *most = 1;
    if (o->n) LS_TRY(cli_parse_workers("-n", o->n, 64, v->world, LS_VERIFY_MAX_WORLD, &v->n_world, most));
    else
        for (int w = 1; w <= all && w <= 64; w *= 2) v->world[v->n_world++] = *most = w;
    for (int i = 0; i < v->n_world; i++)
        if (v->world[i] & (v->world[i] - 1))
            return ls_fail(LS_E_ARG, "-n %s: %d is not a power of two; use powers of two, such as 1,2,4",
                           o->n ? o->n : "", v->world[i]);
    if (v->only_tp && *most < 2)
        return ls_fail(LS_E_ARG,
                       "-n %s --only_tp: no layout to test: tensor parallelism needs two workers or more; use -n 2, or "
                       "leave --only_tp out",
                       o->n);
    return LS_OK;
}

/* Under a launcher, every worker calls it. */
static ls_status join(const ls_start_env *e, int most, ls_comm **out)
{
    if (most > e->size) return ls_fail(LS_E_ARG, "-n has %d workers, but %s started %d", most, e->words, e->size);
    LS_TRY(cli_check_launcher(e));
    ls_stack_install("a worker of verify");
    return cli_join(e, -1, out);
}

/* Rejects options that no layout can use, before the first one runs. */
static ls_status check(const options *o, const ls_start_env *e)
{
    const bool launched = e->size > 1;
    if (!(o->v.limit > 0)) return ls_fail(LS_E_ARG, "--timeout %g: must be more than 0 seconds", o->v.limit);
    if (o->jobs > 1 && launched)
        return ls_fail(LS_E_ARG, "--jobs %lld: workers started by %s run one layout at a time; leave --jobs out",
                       (long long)o->jobs, e->words);
    return cli_check_comm(e, o->v.comm_name);
}

/* Chooses the device before workers are forked; the workers of a launcher join first and agree. */
static ls_status choose_device(options *o, const ls_start_env *e, int most, ls_device_choice *chosen)
{
    ls_verify_opts *v = &o->v;
    LS_TRY(ls_device_choose(o->device, NULL, most, e->local_rank, chosen));
    if (e->size > 1) {
        LS_TRY(join(e, most, &v->comm));
        ls_comm_set_limit(v->comm, o->v.limit);
        unsetenv("WORLD_SIZE"); /* train would compare it with the number of workers of a layout */
        LS_TRY(ls_device_agree(chosen, v->comm));
    }
    char no_gpu[LS_DEVICE_WORDS];
    if (!chosen->cuda && v->precision && ls_one_of("fp16|fp8", v->precision, false))
        return ls_fail(LS_E_UNSUPPORTED, "--precision %s needs a GPU; use --precision fp32 or bf16; %s", v->precision,
                       ls_device_no_gpu(chosen, no_gpu));
    if (chosen->cuda) { /* layouts open the device without looking at it */
        char who[40];
        v->precision = ls_precision_of_backend(v->precision, "cuda", chosen->card);
        snprintf(who, sizeof who, "--precision %.8s", v->precision);
        LS_TRY(ls_precision_check(who, v->precision, chosen));
    }
    v->device = !chosen->automatic ? chosen->asked : chosen->cuda ? "cuda" : "cpu";
    if (!strcmp(o->v.comm_name, "nccl") && !chosen->cuda)
        return ls_fail(LS_E_CONFIG,
                       "--comm nccl: needs GPUs, but the device is %s; use --device cuda, or --comm local or mpi",
                       chosen->words);
    if (strcmp(o->v.offload, "none") && !chosen->cuda)
        return ls_fail(LS_E_CONFIG, "--offload_optimizer cpu: needs a GPU, but the device is %s; use --device cuda",
                       chosen->words);
    return LS_OK;
}

/* Runs all layouts and, on rank 0, prints them. */
static ls_status verify_and_print(const options *o)
{
    const ls_verify_opts *v = &o->v;
    cli_json j;
    printer p = {.o = o, .w = cli_json_begin(&j)};
    if (v->comm && ls_comm_rank(v->comm)) {
        const ls_status other = ls_verify(v, NULL, NULL);
        ls_err_clear(); /* rank 0 prints it */
        ls_str_fini(&j.text);
        return other;
    }
    const ls_status st = ls_verify(v, print_row, &p);
    if (!p.n) {
    } /* nothing ran: the error is all there is to print */
    else if (o->json) {
        ls_jsonw_close(p.w);
        ls_jsonw_members(p.w, LS_KV("identical", p.n_identical), LS_KV("within", p.n_within), LS_KV("ran", p.n),
                         LS_KV("of", p.of));
        LS_TRY(cli_json_end(&j));
    } else print_end(&p);
    ls_str_fini(&j.text);
    fflush(stdout); /* closing has a limit */
    return st;
}

/* In a worker that is started once and runs one layout after the other. */
static ls_status together_worker(void *ctx, ls_comm *comm, int n_core)
{
    options o = *(const options *)ctx;
    (void)n_core;
    o.v.comm = comm;
    o.v.jobs = 1;
    ls_comm_set_limit(comm, o.v.limit);
    return verify_and_print(&o);
}

static void together_report(void *ctx, int rank, ls_status st)
{
    (void)ctx;
    if (st != LS_OK && *ls_err_words()) cli_print_error(rank, NULL, st);
}

ls_status cmd_verify(int argc, char **argv)
{
    options o = {0};
    unsigned char given[CLI_COUNT(table)] = {0};
    int most;
    LS_TRY(cli_parse(&page, &o, argc, argv, NULL, given));
    ls_start_env env = {0};
    ls_verify_opts *v = &o.v;
    if (!cli_given(&page, given, "fp8_margin")) v->fp8_margin = -1;
    v->steps = (int)o.steps;
    v->pairs = !strcmp(o.task, "translate");
    v->seed = (uint64_t)o.seed;
    v->jobs = o.jobs ? (int)o.jobs : 1;
    LS_TRY(ls_start_env_read(&env));
    LS_TRY(check(&o, &env));
    LS_TRY(parse_list(&o, &env, &most));
    ls_device_choice device;
    ls_status st = choose_device(&o, &env, most, &device);
    const bool once = cli_given(&page, given, "jobs") ? !o.jobs : st == LS_OK && device.cuda;
    if (st == LS_OK && !env.rank) cli_print_device(&device, false);
    if (st != LS_OK && env.rank) ls_err_clear(); /* rank 0 prints it */
    if (st == LS_OK && once && !v->comm)
        st = ls_launch_local(&(ls_launch){
            .n = most, .arena_nbytes = (size_t)1 << 34, .body = together_worker, .report = together_report, .ctx = &o});
    else if (st == LS_OK) st = verify_and_print(&o);
    ls_comm_close(&v->comm, st);
    return st;
}
