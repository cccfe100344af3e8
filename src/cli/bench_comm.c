/* bench_comm.c - `lockstep bench comm`: time of collectives by size. In device memory, the table is that of nccl-tests. */
#include "cli/bench_impl.h"

#include "bench/comm_bench.h"
#include "comm/launch.h"
#include "compute/compute.h"

typedef struct options {
    int64_t n, rounds, factor;
    const char *min, *max, *kinds, *device, *comm;
    bool deterministic, json;
} options;

static const ls_opt table[] = {
    CLI_INT_IN(1, 1024, "n", n, "N", "2", "number of workers on this machine; under mpirun: all ranks", "Settings"),
    CLI_STR("device", device, "cpu|cuda[:N]", "cpu",
            "memory to use: cpu (host memory); cuda (one GPU per worker); cuda:N (GPU N for all)"),
    CLI_CHOICE("comm", comm, "auto|local|mpi|tcp|nccl", "auto",
               "communication backend; with --device cuda, local, mpi and tcp go through host memory"),
    CLI_SWITCH("deterministic", deterministic,
               "with NCCL: use the fixed summation order of training instead of the reductions of NCCL"),
    CLI_STR(
        "collectives", kinds, "LIST", NULL,
        "collectives to measure: all_reduce, reduce_scatter, all_gather, broadcast, reduce, sendrecv, send, barrier [all except sendrecv; with --device cuda all except send and barrier]"),
    CLI_STR("min", min, "BYTES", "1K", "smallest buffer size (K, M, G: powers of 1024)"),
    CLI_STR("max", max, "BYTES", "64M", "largest buffer size"),
    CLI_INT_IN(2, INT32_MAX, "factor", factor, "F", "4", "ratio between successive sizes"),
    CLI_INT_IN(1, 1000, "rounds", rounds, "N", "10", "timed rounds per size"),
    CLI_SWITCH("json", json, "print one JSON object instead of the table"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "bench comm [-n N] [OPTIONS]",
    "Time collectives over a range of sizes, as nccl-tests does, and check their results. algbw = bytes / time; busbw = algbw x 2(n-1)/n for all_reduce, x (n-1)/n for reduce_scatter and all_gather, x 1 for the others. Under mpirun, the ranks of MPI are the workers. On GPUs, the table has the columns of nccl-tests.\n\n"
    "  mpirun -n 4 lockstep bench comm --max 16M\n"
    "  lockstep bench comm -n 8 --device cuda --comm nccl --min 8 --max 256M"};

typedef struct comm_job {
    const options *o;
    ls_comm_bench bench;
    bool cuda;
    int device;    /* index, or -1: by the local rank */
    bool in_table; /* of nccl-tests, for the collective `kind` */
    ls_coll kind;
    int n_bus; /* measurements of this table, the sum of their bus bandwidth, and wrong elements */
    double bus;
    int64_t wrong;
    cli_json j;
    ls_jsonw *w;
} comm_job;

/* The side that the flat keys are of: on host memory the only one. */
static const ls_comm_bench_side *main_side(const ls_comm_bench_row *r)
{
    return &r->side[r->side[LS_BENCH_OUT_OF_PLACE].measured ? LS_BENCH_OUT_OF_PLACE : LS_BENCH_IN_PLACE];
}

/* ---- JSON ---- */

static void json_numbers(ls_jsonw *w, const ls_comm_bench_side *s)
{
    ls_jsonw_members(w, LS_KV("time_sec", s->time.mean), LS_KV("time_sec_half95", s->time.half),
                     LS_KV("algbw_bytes_per_sec", s->algbw), LS_KV("busbw_bytes_per_sec", s->busbw),
                     LS_KV("wrong", s->wrong));
}

static void json_side(ls_jsonw *w, const char *key, const ls_comm_bench_side *s)
{
    ls_jsonw_key(w, key);
    if (!s->measured) {
        ls_jsonw_null(w);
        return;
    }
    ls_jsonw_open(w, '{');
    json_numbers(w, s);
    ls_jsonw_close(w);
}

static void json_row(comm_job *j, const ls_comm_bench_row *r)
{
    ls_jsonw *w = j->w;
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("collective", ls_comm_bench_word(r->kind)), LS_KV("bytes", r->nbytes));
    json_numbers(w, main_side(r));
    if (j->cuda) {
        ls_jsonw_members(w, LS_KV("count", r->count), LS_KV("type", "float"), LS_KV("redop", r->sums ? "sum" : "none"),
                         LS_KV("root", r->root));
        json_side(w, "out_of_place", &r->side[LS_BENCH_OUT_OF_PLACE]);
        json_side(w, "in_place", &r->side[LS_BENCH_IN_PLACE]);
    }
    ls_jsonw_close(w);
}

/* ---- the table of host memory ---- */

static void host_head(const comm_job *j, const ls_comm *c)
{
    const int rounds = j->bench.rounds;
    printf("%d workers, %s; time of the slowest worker, %s%d round%s\n"
           "%-15s %12s %12s %8s %10s %10s %6s\n",
           ls_comm_size(c), ls_comm_name(c), rounds > 1 ? "95 % interval over " : "", rounds, rounds == 1 ? "" : "s",
           "collective", "bytes", "time, us", "\xc2\xb1 us", "algbw GB/s", "busbw GB/s", "wrong");
}

static void host_row(const ls_comm_bench_row *r)
{
    const ls_comm_bench_side *s = main_side(r);
    char half[24] = "-"; /* one round has no interval */
    if (s->time.half >= 0) snprintf(half, sizeof half, "%.1f", 1e6 * s->time.half);
    printf("%-15s %12lld %12.1f %8s %10.3f %10.3f %6lld\n", ls_comm_bench_word(r->kind), (long long)r->nbytes,
           1e6 * s->time.mean, half, 1e-9 * s->algbw, 1e-9 * s->busbw, (long long)s->wrong);
}

/* ---- nccl-tests' tables, one for each collective ---- */

static void table_end(comm_job *j)
{
    if (!j->in_table) return;
    printf("# Out of bounds values : %lld %s\n", (long long)j->wrong, j->wrong ? "FAILED" : "OK");
    if (j->n_bus) printf("# Avg bus bandwidth    : %g\n", 1e-9 * j->bus / j->n_bus);
    else printf("# Avg bus bandwidth    : not measured\n");
    printf("#\n");
    j->in_table = false;
}

static void table_begin(comm_job *j, ls_coll kind)
{
    table_end(j);
    j->in_table = true;
    j->kind = kind;
    j->bus = 0;
    j->n_bus = 0;
    j->wrong = 0;
    printf(
        "# %s\n#\n"
        "#                                                  out-of-place                           in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n",
        ls_comm_bench_word(kind));
}

static void table_side(comm_job *j, const ls_comm_bench_side *s)
{
    const double us = 1e6 * s->time.mean;
    if (!s->measured) {
        printf(" %8s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    printf(" %8.*f %7.2f %7.2f %6lld",
           us >= 10000 ? 0
           : us >= 100 ? 1
                       : 2,
           us, 1e-9 * s->algbw, 1e-9 * s->busbw, (long long)s->wrong);
    j->bus += s->busbw;
    j->n_bus++;
    j->wrong += s->wrong;
}

static void table_row(comm_job *j, const ls_comm_bench_row *r)
{
    if (!j->in_table || j->kind != r->kind) table_begin(j, r->kind);
    printf("  %10lld %13lld %9s %7s %7d", (long long)r->nbytes, (long long)r->count, "float", r->sums ? "sum" : "none",
           r->root);
    for (int s = 0; s < LS_BENCH_SIDES; s++) table_side(j, &r->side[s]);
    printf("\n");
}

static void comm_row(void *ctx, const ls_comm_bench_row *r)
{
    comm_job *j = ctx;
    if (j->o->json) json_row(j, r);
    else if (j->cuda) table_row(j, r);
    else host_row(r);
    if (!j->o->json) fflush(stdout);
}

/* ---- one worker ---- */

enum { GPU_WORDS = 20 };
typedef struct gpu_line {
    char text[GPU_WORDS * 8];
} gpu_line;

/* Everyone's GPU, one line each, at rank 0. Collective. */
static ls_status say_devices(comm_job *j, ls_comm *c, const ls_device *dev)
{
    const int W = ls_comm_size(c), r = ls_comm_rank(c);
    ls_device_info info = {0};
    gpu_line mine = {{0}}, *all = ls_comm_alloc(c, (size_t)W * sizeof *all);
    ls_status st = all ? dev->info(dev->ctx, &info) : ls_nomem((size_t)W * sizeof *all, "names of GPUs");
    int local = 0;
    snprintf(mine.text, sizeof mine.text, "%.48s device %d [%.20s] %.60s", ls_comm_host(c, r, &local), info.index,
             *info.bus ? info.bus : "?", info.name);
    LS_TRY(ls_comm_agree(c, st, LS_SITE));
    LS_TRY(ls_all_gather(c, (ls_view){all, (int64_t)GPU_WORDS * W, LS_I64}, (ls_view){&mine, GPU_WORDS, LS_I64},
                         LS_SITE, NULL));
    if (r) return LS_OK;
    ls_jsonw_put_open(j->w, "devices", '[');
    for (int k = 0; k < W; k++) ls_jsonw_str(j->w, all[k].text);
    ls_jsonw_close(j->w);
    if (j->o->json) return LS_OK;
    printf("# Using devices\n");
    for (int k = 0; k < W; k++) printf("#  Rank %2d on %s\n", k, all[k].text);
    printf("#\n");
    return LS_OK;
}

static void device_head(const comm_job *j, const ls_comm *c)
{
    const char *library = ls_comm_library(c);
    const bool nccl = !strcmp(ls_comm_name(c), "nccl");
    printf(
        "# lockstep %s bench comm: %d workers, %s%s%s, minBytes %lld maxBytes %lld step: %lld(factor) rounds: %d validation: 1\n",
        LS_VERSION, ls_comm_size(c), ls_comm_name(c), library ? " " : "", library ? library : "",
        (long long)j->bench.min_bytes, (long long)j->bench.max_bytes, (long long)j->bench.factor, j->bench.rounds);
    if (nccl) printf("# sums: %s\n", j->o->deterministic ? "in the order of --deterministic" : "NCCL's own");
}

static void json_head(const comm_job *j, const ls_comm *c)
{
    ls_jsonw_members(j->w, LS_KV("backend", ls_comm_name(c)), LS_KV("workers", ls_comm_size(c)),
                     LS_KV("rounds", j->bench.rounds));
    if (!j->cuda) return;
    ls_jsonw_members(j->w, LS_KV("device", "cuda"), LS_KV("library", ls_comm_library(c)),
                     LS_KV("deterministic", j->o->deterministic));
}

/* Rank 0 prints. dev NULL: host memory. */
static ls_status comm_measure(comm_job *j, ls_comm *c, const ls_device *dev)
{
    const bool json = !ls_comm_rank(c) && j->o->json, text = !ls_comm_rank(c) && !j->o->json;
    j->bench.dev = dev;
    j->w = cli_json_begin(&j->j);
    json_head(j, c);
    if (text && dev) device_head(j, c);
    else if (text) host_head(j, c);
    ls_status st = dev ? say_devices(j, c, dev) : LS_OK;
    ls_jsonw_put_open(j->w, "rows", '[');
    if (st == LS_OK) st = ls_comm_bench_run(c, &j->bench);
    ls_jsonw_close(j->w);
    if (text) table_end(j);
    if (json && st == LS_OK) st = cli_json_end(&j->j);
    ls_str_fini(&j->j.text);
    return st;
}

/* Measures over a communicator for the memory of the device, made from boot, which is destroyed. */
static ls_status comm_on_device(comm_job *j, ls_comm *boot, const ls_device *dev)
{
    ls_comm *c = NULL;
    ls_str why = {0}; /* why --comm auto is not NCCL */
    ls_status st = ls_comm_for_device(boot, dev, j->o->comm, j->o->deterministic, &c, &why);
    if (why.len && j->o->json) fprintf(stderr, "%s\n", why.data);
    else if (why.len) printf("# %s\n", why.data);
    ls_str_fini(&why);
    if (st != LS_OK) {
        ls_comm_destroy(&boot);
        return st;
    }
    st = comm_measure(j, c, dev);
    if (st != LS_OK && st != LS_E_COMM) ls_comm_abort(c, "a worker failed");
    ls_comm_destroy(&c);
    return st;
}

static ls_status comm_with_device(comm_job *j, ls_comm *world)
{
    const ls_compute_open_opts how = {
        .dtype = LS_F32, .device = j->device, .local_rank = ls_comm_where(world).local_rank, .deterministic = true};
    ls_compute compute = {0};
    ls_comm *boot = NULL;
    const ls_status mine = ls_compute_open(&compute, "cuda", &how, 1);
    ls_status st = ls_comm_agree(world, mine, LS_SITE);
    if (st == LS_OK) st = ls_comm_split(world, 0, ls_comm_rank(world), &boot);
    if (st == LS_OK) st = comm_on_device(j, boot, compute.device);
    if (mine == LS_OK) ls_compute_close(&compute);
    return st;
}

static ls_status comm_on_host(comm_job *j, ls_comm *c)
{
    ls_comm *same = NULL; /* c itself, if --comm is possible */
    ls_str why = {0};
    const ls_status st = ls_comm_for_device(c, NULL, j->o->comm, true, &same, &why);
    ls_str_fini(&why);
    return st == LS_OK ? comm_measure(j, c, NULL) : st;
}

static ls_status comm_work(void *ctx, ls_comm *c, int n_core)
{
    comm_job *j = ctx;
    (void)n_core;
    const ls_status st = j->cuda ? comm_with_device(j, c) : comm_on_host(j, c);
    return st == LS_OK && !ls_comm_rank(c) ? cli_flush() : st; /* here: main flushes only its own stdout */
}

static void comm_speak(void *ctx, int rank, ls_status st)
{
    (void)ctx;
    if (st != LS_OK && !ls_err_is_peers()) cli_print_error(rank, NULL, st);
}

/* As a worker of mpirun, srun or torchrun. */
static ls_status comm_started(const ls_start_env *e, comm_job *j)
{
    ls_comm *c = NULL;
    LS_TRY(cli_join(e, -1, &c));
    const ls_status st = comm_work(j, c, ls_comm_take_cores(c));
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
        return ls_fail(LS_E_ARG, "--%s %s: must be a number of bytes, such as 4096, 64K or 16M", name, text);
    for (int i = 0; u && i <= (int)(u - units); i++) *out *= 1024;
    return *out <= (int64_t)1 << 36 ? LS_OK : ls_fail(LS_E_ARG, "--%s %s: must be at most 64G", name, text);
}

static ls_status comm_settle(const options *o, comm_job *j)
{
    j->o = o;
    j->bench = (ls_comm_bench){.factor = o->factor, .rounds = (int)o->rounds, .row = comm_row, .ctx = j};
    ls_device_choice d;
    LS_TRY(ls_device_parse("--device", o->device, &d));
    if (d.automatic)
        return ls_fail(LS_E_ARG, "--device auto: not supported here; choose cpu (host memory) or cuda (GPU memory)");
    j->cuda = d.cuda;
    j->device = d.index;
    LS_TRY(parse_bytes("min", o->min, &j->bench.min_bytes));
    LS_TRY(parse_bytes("max", o->max, &j->bench.max_bytes));
    if (j->bench.min_bytes > j->bench.max_bytes)
        return ls_fail(LS_E_ARG, "--min %s is larger than --max %s", o->min, o->max);
    LS_TRY(ls_comm_bench_kinds(o->kinds ? o->kinds : "", &j->bench.kinds));
    if (o->deterministic && !j->cuda)
        return ls_fail(
            LS_E_ARG,
            "--deterministic is only for NCCL (--device cuda); on the CPU, sums are always deterministic; leave it out");
    if (o->deterministic && strcmp(o->comm, "auto") && strcmp(o->comm, "nccl"))
        return ls_fail(LS_E_ARG,
                       "--deterministic is only for NCCL; with --comm %s, sums are always deterministic; leave it out",
                       o->comm);
    if (!strcmp(o->comm, "nccl") && !j->cuda) return ls_fail(LS_E_ARG, "--comm nccl needs GPUs; add --device cuda");
    return LS_OK;
}

ls_status cli_bench_comm(int argc, char **argv)
{
    options o = {0};
    comm_job j = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, NULL, NULL));
    LS_TRY(comm_settle(&o, &j));
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
