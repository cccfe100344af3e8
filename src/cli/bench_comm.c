/* bench_comm.c - `lockstep bench comm`: what collectives carry, by size. */
#include "cli/bench_impl.h"

#include "bench/comm_bench.h"
#include "comm/launch.h"
#include "comm/start.h"

#include <stdio.h>
#include <string.h>

typedef struct comm_options {
    int64_t n, rounds, factor;
    const char *min, *max, *kinds;
    bool json;
} comm_options;

static const ls_opt comm_table[] = {
    {"n", LS_OPT_INT, offsetof(comm_options, n), "N", "2", "workers on this machine; under mpirun: all that it started",
     "What"},
    {"collectives", LS_OPT_STR, offsetof(comm_options, kinds), "LIST", "",
     "all_reduce, reduce_scatter, all_gather, broadcast, reduce, send, barrier [all]", NULL},
    {"min", LS_OPT_STR, offsetof(comm_options, min), "BYTES", "1K", "smallest buffer (K, M, G: powers of 1024)", NULL},
    {"max", LS_OPT_STR, offsetof(comm_options, max), "BYTES", "64M", "largest buffer", NULL},
    {"factor", LS_OPT_INT, offsetof(comm_options, factor), "F", "4", "from one size to the next", NULL},
    {"rounds", LS_OPT_INT, offsetof(comm_options, rounds), "N", "10", "timed rounds of each size", NULL},
    {"json", LS_OPT_SWITCH, offsetof(comm_options, json), NULL, NULL, "one JSON object instead of the table", NULL},
};
enum { N_COMM = sizeof comm_table / sizeof comm_table[0] };

typedef struct comm_job {
    ls_comm_bench bench;
    bool json;
    ls_str out;
    ls_jsonw w;
} comm_job;

static void comm_row(void *ctx, const ls_comm_bench_row *r)
{
    comm_job *j = ctx;
    if (!j->json) {
        char half[24] = "-"; /* one round has no interval */
        if (r->time.half >= 0) snprintf(half, sizeof half, "%.1f", 1e6 * r->time.half);
        printf("%-15s %12lld %12.1f %8s %10.3f %10.3f %6lld\n", ls_coll_word(r->kind), (long long)r->nbytes,
               1e6 * r->time.mean, half, 1e-9 * r->algbw, 1e-9 * r->busbw, (long long)r->wrong);
        fflush(stdout);
        return;
    }
    ls_jsonw *w = &j->w;
    ls_jsonw_open(w, '{');
    ls_jsonw_put_str(w, "collective", ls_coll_word(r->kind));
    ls_jsonw_put_int(w, "bytes", r->nbytes);
    ls_jsonw_put_real(w, "time_sec", r->time.mean);
    ls_jsonw_put_real(w, "time_sec_half95", r->time.half);
    ls_jsonw_put_real(w, "algbw_bytes_per_sec", r->algbw);
    ls_jsonw_put_real(w, "busbw_bytes_per_sec", r->busbw);
    ls_jsonw_put_int(w, "wrong", r->wrong);
    ls_jsonw_close(w);
}

/* Rank 0 prints, wherever it runs. */
static ls_status comm_work(void *ctx, ls_comm *c, int n_core)
{
    comm_job *j = ctx;
    const bool first = !ls_comm_rank(c);
    (void)n_core;
    if (first && !j->json)
        printf("%d workers, %s; time of the slowest worker, %s%d round%s\n"
               "%-15s %12s %12s %8s %10s %10s %6s\n",
               ls_comm_size(c), ls_comm_name(c), j->bench.rounds > 1 ? "95 % interval over " : "", j->bench.rounds,
               j->bench.rounds == 1 ? "" : "s", "collective", "bytes", "time, us", "\xc2\xb1 us", "algbw GB/s",
               "busbw GB/s", "wrong");
    ls_jsonw_init(&j->w, &j->out, 2);
    ls_jsonw_open(&j->w, '{');
    ls_jsonw_put_str(&j->w, "backend", ls_comm_name(c));
    ls_jsonw_put_int(&j->w, "workers", ls_comm_size(c));
    ls_jsonw_put_int(&j->w, "rounds", j->bench.rounds);
    ls_jsonw_put_open(&j->w, "rows", '[');
    ls_status st = ls_comm_bench_run(c, &j->bench);
    ls_jsonw_close(&j->w);
    ls_jsonw_close(&j->w);
    if (first && j->json && st == LS_OK) puts(j->out.data ? j->out.data : "");
    ls_str_fini(&j->out);
    return st == LS_OK && first ? cli_flush() : st; /* here: a worker's stdout is not main's */
}

static void comm_speak(void *ctx, int rank, ls_status st)
{
    (void)ctx;
    if (st != LS_OK)
        fprintf(stderr, "lockstep: rank %d: %s: %s\n%s", rank, ls_status_words(st), ls_err_words(), ls_err_trail());
}

/* As a worker of mpirun, srun or torchrun. */
static ls_status comm_started(const ls_start_env *e, comm_job *j)
{
    ls_comm *c = NULL;
    if (e->by == LS_STARTED_SRUN)
        return ls_fail(LS_E_CONFIG, "srun started %d tasks that cannot find each other: use srun --mpi=pmix", e->size);
    LS_TRY(e->by == LS_STARTED_MPI ? ls_comm_mpi(&c) : ls_comm_meet(e, &c));
    ls_status st = comm_work(j, c, ls_comm_take_cores(c));
    if (st != LS_OK && st != LS_E_COMM) ls_comm_abort(c, "a worker failed");
    ls_comm_close(&c, st);
    return st;
}

/* "64M" to bytes. */
static ls_status parse_bytes(const char *name, const char *text, int64_t *out)
{
    static const char units[] = "KMG";
    char digits[32];
    const size_t n = strlen(text);
    const char *u = n ? strchr(units, text[n - 1]) : NULL;
    const size_t len = n - (u != NULL);
    snprintf(digits, sizeof digits, "%.*s", (int)(len < 31 ? len : 31), text);
    if (!ls_parse_i64(digits, out) || *out < 1 || *out > (int64_t)1 << 40)
        return ls_fail(LS_E_ARG, "--%s %s: a number of bytes, such as 4096, 64K or 16M", name, text);
    for (int i = 0; u && i <= (int)(u - units); i++) *out *= 1024;
    return *out <= (int64_t)1 << 36 ? LS_OK : ls_fail(LS_E_ARG, "--%s %s: at most 64G", name, text);
}

ls_status cli_bench_comm(int argc, char **argv)
{
    comm_options o = {0};
    comm_job j = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(comm_table, N_COMM, &o));
    LS_TRY(ls_opt_parse(comm_table, N_COMM, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("bench comm [-n N] [OPTIONS]",
                 "Times every collective over sizes, as nccl-tests does: algbw = bytes / time; busbw = algbw x "
                 "2(n-1)/n for all_reduce,\n"
                 "(n-1)/n for reduce_scatter and all_gather, 1 for the others. Results are checked. Under mpirun it is "
                 "MPI's workers that talk:\n"
                 "  mpirun -n 4 lockstep bench comm --max 16M",
                 comm_table, N_COMM);
        return LS_OK;
    }
    if (o.n < 1 || o.n > 1024) return ls_fail(LS_E_ARG, "-n %lld: 1 to 1024 workers", (long long)o.n);
    j.json = o.json;
    j.bench = (ls_comm_bench){.factor = o.factor, .rounds = (int)o.rounds, .row = comm_row, .ctx = &j};
    LS_TRY(parse_bytes("min", o.min, &j.bench.min_bytes));
    LS_TRY(parse_bytes("max", o.max, &j.bench.max_bytes));
    if (j.bench.min_bytes > j.bench.max_bytes) return ls_fail(LS_E_ARG, "--min %s is above --max %s", o.min, o.max);
    LS_TRY(ls_comm_bench_kinds(o.kinds, &j.bench.kinds));
    if (o.rounds < 1 || o.rounds > 1000 || o.factor < 2)
        return ls_fail(LS_E_ARG, "--rounds is 1 to 1000, --factor at least 2");
    ls_start_env env = {0};
    LS_TRY(ls_start_env_read(&env));
    if (env.size > 1) return comm_started(&env, &j);
    if (o.n > 1)
        return ls_launch_local(
            &(ls_launch){.n = (int)o.n, .pin = true, .body = comm_work, .report = comm_speak, .ctx = &j});
    ls_comm *self = NULL;
    LS_TRY(ls_comm_self(&self));
    ls_status st = comm_work(&j, self, 0);
    ls_comm_destroy(&self);
    return st;
}
