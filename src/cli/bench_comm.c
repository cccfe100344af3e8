/* bench_comm.c - `lockstep bench comm` and `lockstep bench gemm`: the ceilings of messages and of matrix products. */
#include "cli/bench_impl.h"

#include "bench/comm_bench.h"
#include "bench/gemm_bench.h"
#include "comm/launch.h"
#include "comm/start.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- comm --- */

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
        printf("%-15s %12lld %12.1f %8.1f %10.3f %10.3f %6lld\n", ls_coll_word(r->kind), (long long)r->nbytes,
               1e6 * r->time.mean, 1e6 * (r->time.half >= 0 ? r->time.half : 0), 1e-9 * r->algbw, 1e-9 * r->busbw,
               (long long)r->wrong);
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
        printf("%d workers, %s; time of the slowest worker, 95 %% interval over %d rounds\n"
               "%-15s %12s %12s %8s %10s %10s %6s\n",
               ls_comm_size(c), ls_comm_name(c), j->bench.rounds, "collective", "bytes", "time, us", "\xc2\xb1 us",
               "algbw GB/s", "busbw GB/s", "wrong");
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
    fflush(stdout);
    ls_str_fini(&j->out);
    return st;
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
    ls_comm_destroy(&c);
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

ls_status bench_comm(int argc, char **argv)
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

/* --- gemm --- */

typedef struct gemm_options {
    int64_t threads, turns, batch, seq, chunk, width, layers, vocab;
    ls_opt_list kernels;
    bool cpu_time, json;
} gemm_options;

#define GEMM_AT(field) offsetof(gemm_options, field)
static const ls_opt gemm_table[] = {
    {"threads", LS_OPT_INT, GEMM_AT(threads), "N", "0", "threads; 0 = all cores", "Options"},
    {"turns", LS_OPT_INT, GEMM_AT(turns), "N", "5", "times each side runs each shape", NULL},
    {"batch", LS_OPT_INT, GEMM_AT(batch), "B", "4", "sequences", NULL},
    {"seq", LS_OPT_INT, GEMM_AT(seq), "T", "512", "tokens of a sequence", NULL},
    {"chunk", LS_OPT_INT, GEMM_AT(chunk), "R", "512", "rows of the classifier at a time", NULL},
    {"width", LS_OPT_INT, GEMM_AT(width), "C", "768", "of the model", NULL},
    {"layers", LS_OPT_INT, GEMM_AT(layers), "L", "12", "of the model", NULL},
    {"vocab", LS_OPT_INT, GEMM_AT(vocab), "V", "50257", "of the model", NULL},
    {"cpu-time", LS_OPT_SWITCH, GEMM_AT(cpu_time), "", NULL,
     "count this process's processor time, not the clock's (with one thread, on a busy machine)", NULL},
    {"kernels", LS_OPT_LIST, GEMM_AT(kernels), "NAME...", NULL, "kernels to compare; default: the best, and blas-own",
     NULL},
    {"json", LS_OPT_SWITCH, GEMM_AT(json), NULL, NULL, "one JSON object instead of the table", NULL},
};
enum { N_GEMM = sizeof gemm_table / sizeof gemm_table[0] };

typedef struct gemm_job {
    const gemm_options *o;
    bool json, head;
    ls_jsonw w;
} gemm_job;

static void gemm_sum(const ls_gemm_row *r)
{
    printf("\nall products of a step, %.3f TFLOP\n", r->flop * 1e-12);
    for (int s = 0; s < r->n_side; s++) {
        printf("  %-10s best %.3f s (%.1f GFLOP/s), median %.3f s (%.1f GFLOP/s)", r->side[s], r->best[s],
               r->flop / r->best[s] * 1e-9, r->median[s], r->flop / r->median[s] * 1e-9);
        if (s) printf(", %.2f x the time of %s", r->median[s] / r->median[0], r->side[0]);
        printf("\n");
    }
}

static void gemm_row(void *ctx, const ls_gemm_row *r)
{
    gemm_job *j = ctx;
    const bool sum = !strcmp(r->what, "step");
    if (j->json) {
        ls_jsonw *w = &j->w;
        ls_jsonw_open(w, '{');
        ls_jsonw_put_str(w, "product", r->what);
        if (!sum) {
            ls_jsonw_put_int(w, "m", r->M);
            ls_jsonw_put_int(w, "n", r->N);
            ls_jsonw_put_int(w, "k", r->K);
            ls_jsonw_put_str(w, "op", r->op);
        }
        ls_jsonw_put_int(w, "calls", r->count);
        ls_jsonw_put_real(w, "flop", r->flop);
        for (int s = 0; s < r->n_side; s++) {
            ls_jsonw_put_open(w, r->side[s], '{');
            ls_jsonw_put_real(w, "best_sec", r->best[s]);
            ls_jsonw_put_real(w, "median_sec", r->median[s]);
            ls_jsonw_put_real(w, "gflops", r->flop / r->median[s] * 1e-9);
            ls_jsonw_close(w);
        }
        ls_jsonw_close(w);
        return;
    }
    if (!j->head) {
        const gemm_options *o = j->o;
        printf("threads %lld, B %lld, T %lld, turns %lld, CBLAS: %s\n",
               (long long)(o->threads ? o->threads : ls_gemm_bench_cores()), (long long)o->batch, (long long)o->seq,
               (long long)o->turns, ls_gemm_bench_blas());
        printf("%-10s %6s %6s %6s  op %4s", "GFLOP/s", "M", "N", "K", "n");
        for (int s = 0; s < r->n_side; s++) printf("  %8s %8s", r->side[s], "median");
        printf("\n");
        j->head = true;
    }
    if (sum) {
        gemm_sum(r);
        return;
    }
    printf("%-10s %6lld %6lld %6lld  %s %4lld", r->what, (long long)r->M, (long long)r->N, (long long)r->K, r->op,
           (long long)r->count);
    for (int s = 0; s < r->n_side; s++)
        printf("  %8.1f %8.1f", r->flop / r->best[s] * 1e-9, r->flop / r->median[s] * 1e-9);
    printf("\n");
    fflush(stdout);
}

ls_status bench_gemm(int argc, char **argv)
{
    gemm_options o = {0};
    gemm_job j = {0};
    ls_str out = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(gemm_table, N_GEMM, &o));
    LS_TRY(ls_opt_parse(gemm_table, N_GEMM, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("bench gemm [OPTIONS]",
                 "Times the matrix products of a GPT-2 training step (124M unless told) in our kernels and in the "
                 "linked CBLAS, in turns:\n"
                 "GFLOP/s of the best turn and of the median one, then the time of all products of a step. blas-own is "
                 "CBLAS with its\n"
                 "own threads.",
                 gemm_table, N_GEMM);
        return LS_OK;
    }
    j.json = o.json;
    j.o = &o;
    ls_jsonw_init(&j.w, &out, 2);
    ls_jsonw_open(&j.w, '{');
    ls_jsonw_put_int(&j.w, "threads", o.threads ? o.threads : ls_gemm_bench_cores());
    ls_jsonw_put_str(&j.w, "cblas", ls_gemm_bench_blas());
    ls_jsonw_put_int(&j.w, "turns", o.turns);
    ls_jsonw_put_open(&j.w, "rows", '[');
    ls_status st = ls_gemm_bench_run(&(ls_gemm_bench){.threads = (int)o.threads,
                                                      .turns = (int)o.turns,
                                                      .rows = o.batch * o.seq,
                                                      .width = o.width,
                                                      .layers = o.layers,
                                                      .vocab = o.vocab,
                                                      .chunk = o.chunk,
                                                      .kernel = o.kernels.word,
                                                      .n_kernel = o.kernels.n,
                                                      .cpu_time = o.cpu_time,
                                                      .row = gemm_row,
                                                      .ctx = &j});
    ls_jsonw_close(&j.w);
    ls_jsonw_close(&j.w);
    if (o.json && st == LS_OK) puts(out.data ? out.data : "");
    ls_str_fini(&out);
    return st;
}
