/* bench_gemm.c - `lockstep bench gemm`: the ceiling of matrix products. */
#include "cli/bench_impl.h"

#include "bench/gemm_bench.h"
#include "core/minmax.h"

typedef struct options {
    ls_gemm_bench b;
    int64_t turns, batch, seq;
    ls_opt_list kernels;
    cli_device on;
    bool json;
} options;

static const ls_opt table[] = {
    CLI_INT_IN(0, 4096, "threads", on.threads, "N", "0", "CPU threads; 0 = all cores", "Options"),
    CLI_DEVICE_ROWS,
    CLI_INT_IN(1, LS_GEMM_MAX_TURN, "turns", turns, "N", "5", "runs of each kernel per shape"),
    CLI_POSITIVE("batch", batch, "B", "4", "sequences per batch"),
    CLI_POSITIVE("seq", seq, "T", "512", "tokens per sequence"),
    CLI_INT_IN(
        0, INT32_MAX, "chunk", b.chunk, "R", "0",
        "rows of the output layer per product; 0 = those of a step: 512 on the CPU (2048 in bf16 with AMX or BFMMLA), 16384 on a GPU"),
    CLI_POSITIVE("width", b.width, "C", "768", "model width"),
    CLI_POSITIVE("layers", b.layers, "L", "12", "number of layers"),
    CLI_POSITIVE("vocab", b.vocab, "V", "50257", "vocabulary size"),
    CLI_SWITCH("cpu_time", b.cpu_time, "measure CPU time instead of wall time (one thread, on a busy machine)"),
    CLI_LIST(
        "kernels", kernels, "NAME...",
        "kernels to compare, whatever LS_GEMM names; each name once [that of LS_GEMM, else the fastest; with bf16, also the fastest of fp32; and blas-own]"),
    CLI_SWITCH("json", json, "print one JSON object instead of the table"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "bench gemm [OPTIONS]",
    "Time the matrix products of a GPT-2 training step (default: 124M parameters) with the kernels of Lockstep and with CBLAS, in turns. Print GFLOP/s of the best and of the median run, then the time of all products of a step and, for the kernels neon, bfmmla, amx-bf16 and avx512-bf16, their share of the peak of the CPU's multiply instruction on registers alone (median, measured in turns with the products). The type after a name is that of the operands; --precision selects the first kernel. blas-own is CBLAS with its own threads, in fp32; those of OpenBLAS still spin when the next kernel begins and slow it down: --kernels NAME measures a kernel without them.\n\nOn a GPU the times come from the clock of the device, in TFLOP/s; \"alone\" is "
    "the bare product, \"step\" includes what a training step fuses with it: bias, GELU, residual and bias gradient."};

typedef struct gemm_job {
    const options *o;
    bool head, rows;              /* rows: their list is open */
    char where[LS_COMPUTE_WORDS]; /* the device; "": the CPU */
    double unit;                  /* flop/s of a printed one: 1e9, on a device 1e12 */
    cli_json j;
    ls_jsonw *w;
} gemm_job;

static const char *unit_word(const gemm_job *j)
{
    return j->unit > 1e10 ? "TFLOP/s" : "GFLOP/s";
}

typedef char label[LS_KERNEL_NAME + 16];

static const char *label_of(const ls_gemm_row *r, int s, label out)
{
    snprintf(out, sizeof(label), "%s (%s)", r->side[s], r->type[s]);
    return out;
}

static void gemm_sum(const gemm_job *j, const ls_gemm_row *r)
{
    int width = 0;
    label l;
    for (int s = 0; s < r->n_side; s++) width = LS_MAX(width, (int)strlen(label_of(r, s, l)));
    printf("\nall products of a step, %.3f TFLOP\n", r->flop * 1e-12);
    for (int s = 0; s < r->n_side; s++) {
        printf("  %-*s best %.4f s (%.1f %s), median %.4f s (%.1f %s)", width, label_of(r, s, l), r->best[s],
               r->flop / r->best[s] / j->unit, unit_word(j), r->median[s], r->flop / r->median[s] / j->unit,
               unit_word(j));
        const double of_peak = r->peak[s] > 0 ? r->flop / r->median[s] / r->peak[s] : 0;
        const double peak = r->peak[s] / j->unit;
        if (of_peak > 1) printf(", more than the instruction alone (%.1f %s): the machine is busy", peak, unit_word(j));
        else if (of_peak > 0) printf(", %.2f of the instruction's peak (%.1f %s)", of_peak, peak, unit_word(j));
        if (s) printf(", %.2f x the time of %s", r->median[s] / r->median[0], r->side[0]);
        printf("\n");
    }
}

static void begin_rows(gemm_job *j)
{
    if (!j->rows) ls_jsonw_put_open(j->w, "rows", '[');
    j->rows = true;
}

static void gemm_where(void *ctx, const char *words)
{
    gemm_job *j = ctx;
    snprintf(j->where, sizeof j->where, "%s", words);
    ls_jsonw_put_str(j->w, "device", words);
    begin_rows(j);
}

static void gemm_head(const gemm_job *j, const ls_gemm_row *r)
{
    const options *o = j->o;
    if (j->where[0])
        printf("B %lld, T %lld, turns %lld, %s\n", (long long)o->batch, (long long)o->seq, (long long)o->turns,
               j->where);
    else
        printf("threads %lld, B %lld, T %lld, turns %lld, CBLAS: %s\n",
               (long long)(o->on.threads ? o->on.threads : ls_gemm_bench_cores()), (long long)o->batch,
               (long long)o->seq, (long long)o->turns, ls_gemm_bench_blas());
    printf("%-10s %6s %6s %6s  op %4s", unit_word(j), "M", "N", "K", "n");
    label l;
    for (int s = 0; s < r->n_side; s++) printf("  %8s %8s", label_of(r, s, l), "median");
    printf("\n");
}

static void json_row(ls_jsonw *w, const ls_gemm_row *r, bool sum)
{
    ls_jsonw_open(w, '{');
    ls_jsonw_put_str(w, "product", r->what);
    if (!sum) { ls_jsonw_members(w, LS_KV("m", r->M), LS_KV("n", r->N), LS_KV("k", r->K), LS_KV("op", r->op)); }
    ls_jsonw_members(w, LS_KV("calls", r->count), LS_KV("flop", r->flop));
    for (int s = 0; s < r->n_side; s++) {
        ls_jsonw_put_open(w, r->side[s], '{');
        ls_jsonw_members(w, LS_KV("precision", r->type[s]), LS_KV("best_sec", r->best[s]),
                         LS_KV("median_sec", r->median[s]), LS_KV("gflops", r->flop / r->median[s] * 1e-9));
        if (r->peak[s] > 0) ls_jsonw_put_real(w, "peak_gflops", r->peak[s] * 1e-9);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

static void gemm_row(void *ctx, const ls_gemm_row *r)
{
    gemm_job *j = ctx;
    const bool sum = !strcmp(r->what, "step");
    if (j->o->json) {
        json_row(j->w, r, sum);
        return;
    }
    if (!j->head) gemm_head(j, r);
    j->head = true;
    if (sum) {
        gemm_sum(j, r);
        return;
    }
    printf("%-10s %6lld %6lld %6lld  %s %4lld", r->what, (long long)r->M, (long long)r->N, (long long)r->K, r->op,
           (long long)r->count);
    label l;
    for (int s = 0; s < r->n_side; s++)
        printf("  %*.1f %8.1f", LS_MAX(8, (int)strlen(label_of(r, s, l))), r->flop / r->best[s] / j->unit,
               r->flop / r->median[s] / j->unit);
    printf("\n");
    fflush(stdout);
}

ls_status cli_bench_gemm(int argc, char **argv)
{
    options o = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, NULL, NULL));
    ls_session_opts where = {0};
    ls_device_choice chosen;
    const char *cpu_only = o.kernels.n ? "--kernels" : o.b.cpu_time ? "--cpu_time" : o.on.threads ? "--threads" : NULL;
    LS_TRY(cli_choose_device(&o.on, cpu_only, &where, &chosen));
    const bool device = strcmp(where.compute, "cpu") != 0;
    if (device && cpu_only)
        return ls_fail(LS_E_ARG,
                       "--kernels, --threads and --cpu_time are only for the CPU, but --device is %s; leave them out",
                       chosen.asked);
    cli_print_device(&chosen, false);
    gemm_job j = {.o = &o, .unit = device ? 1e12 : 1e9};
    j.w = cli_json_begin(&j.j);
    if (!device) {
        ls_jsonw_members(j.w, LS_KV("threads", o.on.threads ? o.on.threads : ls_gemm_bench_cores()),
                         LS_KV("cblas", ls_gemm_bench_blas()));
    }
    ls_jsonw_put_int(j.w, "turns", o.turns);
    if (!device) begin_rows(&j); /* with a device, its name is printed first */
    ls_gemm_bench *b = &o.b;
    b->threads = (int)o.on.threads;
    b->turns = (int)o.turns;
    b->rows = o.batch * o.seq;
    b->kernel = o.kernels.word;
    b->n_kernel = o.kernels.n;
    b->device = device ? where.compute : NULL;
    b->index = where.device;
    b->dtype = where.dtype;
    b->typed = o.on.precision != NULL;
    b->tf32 = o.on.tf32;
    b->where = gemm_where;
    b->row = gemm_row;
    b->ctx = &j;
    if (!device && !b->cpu_time)
        cli_bench_note_busy(cli_bench_load(), ls_gemm_bench_cores(),
                            "expect lower speeds; --cpu_time --threads 1 counts processor time");
    ls_status st = ls_gemm_bench_run(b);
    begin_rows(&j);
    ls_jsonw_close(j.w);
    if (o.json && st == LS_OK) st = cli_json_end(&j.j);
    ls_str_fini(&j.j.text);
    return st;
}
