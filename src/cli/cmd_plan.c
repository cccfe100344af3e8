/* cmd_plan.c - `lockstep plan`: layouts ranked; --measure: a cluster file; --check: a run compared with its prediction; --schedule: a
 * pipeline schedule (plan_schedule.c). */
#include "cli/commands.h"

#include "plan/planner.h"
#include "plan/planner_check.h"
#include "plan/planner_measure.h"
#include "core/cores.h"
#include "core/fs.h"
#include "core/progress.h"
#include "data/loader.h"
#include "data/tokenizer.h"

#include <ctype.h>
#include <math.h>
#include <unistd.h>

#define GIB          (1024.0 * 1024 * 1024)
#define MOST_WORKERS LS_CLUSTER_MOST

typedef struct options {
    ls_planner_query q;
    const char *variant, *cluster, *out, *check, *precision, *device, *tokens, *offload;
    int64_t vocab_size, seq_length, workers, top, max_tp;
    double memory, seconds, dropout, mtbf, checkpoint_bandwidth, restart_time;
    int64_t train_seqs;
    ls_opt_list micro, measure_workers;
    bool measure, json, all, fastest;
} options;

static const ls_opt table[] = {
    CLI_STR("model", q.from, "NAME|PATH", NULL,
            "gpt2, gpt2-medium, gpt2-large, gpt2-xl, tiny, or a Hugging Face config.json", "Input"),
    CLI_CHOICE("variant", variant, "hf|r1", NULL, "model variant, as in train [hf]"),
    CLI_STR("data", q.data, "DIR", NULL, "data folder; its vocabulary size and its val.bin are used, as in train"),
    CLI_POSITIVE("vocab_size", vocab_size, "N", NULL,
                 "vocabulary size [from the model; tiny: from the tokenizer of the data]"),
    CLI_REAL_IN(0, 1, "dropout", dropout, "P", "-1", "dropout rate, the same everywhere [from the model]"),
    CLI_POSITIVE("global_batch", q.global_batch, "N", "0",
                 "sequences per optimizer step over all workers [one per worker, at least 512]"),
    CLI_POSITIVE("seq_length", seq_length, "N", "0",
                 "tokens per sequence [512, or the model's positions if these are fewer]"),
    CLI_STR("cluster", cluster, "NAME[:N]|this", "this",
            "cluster file or preset (" LS_CLUSTER_PRESETS
            "), N: number of devices, at most 16384; or this machine (measured now)"),
    CLI_CHOICE(
        "precision", precision, "fp32|bf16|fp16|auto", NULL,
        "number format of parameters and activations; auto: bf16 also on CPUs with bf16 instructions [as in train: bf16 on GPUs, fp32 on the CPU; fp16 where the card has no bf16: t4, v100]",
        CLI_REFUSES(
            "fp8",
            "cluster files have no times of fp8; plan with --precision bf16: fp8 takes more memory than that plan; train --device cuda --precision fp8 prints the memory of fp8 before it starts")),
    CLI_STR(
        "tokens", tokens, "N", NULL,
        "tokens of the whole training, also as 300B (K, M, B, T); prints its time and, if the power is known, its energy"),
    CLI_REAL_IN(0, 1e9, "price", q.price, "P", "0", "price of one device for one hour; prints the cost [not given]"),
    CLI_REAL_IN(
        0, 1e9, "mtbf", mtbf, "HOURS", "0",
        "mean time between failures of a node; prints goodput, the best checkpoint interval and lost hours [no failures]"),
    CLI_REAL_IN(0, 1e9, "checkpoint_bandwidth", checkpoint_bandwidth, "GB/s", "5",
                "with --mtbf: bandwidth of the storage, of all nodes together"),
    CLI_REAL_IN(0, 1e9, "restart_time", restart_time, "S", "300",
                "with --mtbf: seconds from a failure to the first step after it"),
    CLI_INT_IN(1, MOST_WORKERS, "workers", workers, "N", "0",
               "number of workers [all devices of the cluster; CPU: one worker per core]"),
    CLI_REAL_IN(0, 1e9, "memory", memory, "GiB", "0", "memory per device or, for the CPU, per host [from the cluster]"),
    CLI_CHOICE("strategy", q.strategy, "single|dp|ddp|zero1|zero2|zero3", NULL, "consider only this strategy"),
    CLI_POSITIVE("max_tp", max_tp, "T", "0", "use tensor parallelism over at most T workers [no limit]"),
    CLI_POSITIVE("bucket", q.bucket, "N", "0",
                 "gradient bucket size in elements, as in train [1048576; on GPUs 6553600]"),
    CLI_SWITCH("recompute", q.recompute, "recompute activations in the backward pass"),
    CLI_CHOICE("offload_optimizer", offload, "none|cpu", "none",
               "cpu: keep the optimizer in host memory, as in train (GPUs; not dp, ddp)"),
    CLI_SWITCH("no_deterministic", q.no_deterministic, "allow GPU kernels whose summation order varies, as in train"),
    CLI_POSITIVE("top", top, "N", "15", "number of layouts to print", "Output"),
    CLI_SWITCH("all", all, "print every layout, and the reason for those that do not fit"),
    CLI_SWITCH("json", json, "print one JSON object"),
    CLI_SWITCH("measure", measure, "measure this machine and write a cluster file (docs/PLAN.md)", "Cluster files"),
    CLI_STR("device", device, "cpu|cuda[:N]|auto", NULL,
            "device to measure; auto: cuda if a GPU is available, else cpu [LS_DEVICE, else auto]"),
    CLI_STR("out", out, "FILE", NULL, "output file [stdout]"),
    CLI_REAL_IN(0, 1e9, "seconds", seconds, "S", "20", "approximate duration of the measurement"),
    CLI_LIST("micro", micro, "B ...", "micro-batch sizes to measure, at most 4 [1 4]"),
    CLI_LIST("measure_workers", measure_workers, "W ...",
             "numbers of workers to measure, at most 8 [1 2 4 ... up to the number of cores or GPUs]"),
    CLI_SWITCH("fastest", fastest, "use the fastest 10 % of repetitions (for a shared machine)"),
    CLI_STR("check", check, "RUN_DIR", NULL, "compare the prediction with the measurements of a finished run", "Check"),
};

static const cli_page page = {
    table, CLI_COUNT(table),
    "plan --model NAME [--cluster NAME[:N]] [OPTIONS]\n"
    "       lockstep plan --measure [--device cpu|cuda] [--model NAME] [--out FILE]\n"
    "       lockstep plan --check RUN_DIR [--cluster FILE]\n"
    "       lockstep plan --schedule NAME|FILE --pp P --micro M [OPTIONS]",
    "Rank the layouts of a model on a cluster that fit in memory: strategy, replicas, stages, schedule and micro-batch size. Memory is exactly what the run allocates. Time is the sum of the measured times of the units, actions and collectives of a step. `lockstep plan --schedule 1f1b --help` explains pipeline schedules.\n\n"
    "  lockstep plan --measure --model gpt2 --seq_length 256 --out here.json\n"
    "  lockstep plan --model gpt2 --global_batch 64 --seq_length 256 \\\n      --cluster here.json --workers 8\n"
    "  lockstep plan --model gpt2-xl --global_batch 512 --seq_length 1024 \\\n      --cluster a100 --workers 8\n"
    "  lockstep plan --model gpt2 --global_batch 64 --seq_length 1024 \\\n      --cluster h200 --workers 1 --tokens 10e9\n"
    "  lockstep plan --model gpt2-xl --cluster h100:16384 --tokens 1T \\\n      --mtbf 6300 --price 2.5\n"
    "  lockstep plan --measure --device cuda --model gpt2 --seq_length 1024 \\\n      --micro 64 --out gpu.json\n"
    "  lockstep plan --check runs/zero2 --cluster here.json"};

enum { RANK = 1, MEASURE = 2, CHECK = 4, TIMES = 8 }; /* TIMES: this machine is measured for --cluster this */

#define NOT_FOR_CHECK "is not for --check (the run records it)"

/* Options that only some modes use: in another mode they are rejected. */
static const struct {
    const char *words;
    int modes;
    const char *name[14];
} only[] = {
    {"is only for --measure", MEASURE, {"out"}},
    {"is only for --measure and --cluster this", MEASURE | TIMES, {"micro", "measure_workers", "seconds"}},
    {"is not for --check (the run records its data)", RANK | MEASURE, {"data"}},
    {NOT_FOR_CHECK, RANK | MEASURE, {"vocab_size", "precision", "no_deterministic"}},
    {"is not for --measure, which writes a cluster file", RANK | CHECK, {"cluster"}},
    {"is only for --measure and --cluster this (a cluster file or preset defines it)", MEASURE | TIMES, {"device"}},
    {"is not for --measure and --check",
     RANK,
     {"global_batch", "tokens", "workers", "memory", "strategy", "max_tp", "top", "all", "price", "mtbf",
      "checkpoint_bandwidth", "restart_time", "offload_optimizer"}},
};

/* A number of tokens, with one of the suffixes that papers use. */
static ls_status parse_tokens(const char *text, double *out)
{
    static const char suffix[] = "KMBT";
    char number[64];
    const size_t n = strlen(text);
    const char *at = n ? strchr(suffix, toupper((unsigned char)text[n - 1])) : NULL;
    snprintf(number, sizeof number, "%.*s", (int)(at ? n - 1 : n), text);
    if (n >= sizeof number || !ls_parse_f64(number, out))
        return ls_fail(LS_E_ARG, "--tokens %s: not a number; write 300e9 or 300B (K, M, B, T: 1e3, 1e6, 1e9, 1e12)",
                       text);
    if (at) *out *= pow(1e3, (double)(at - suffix + 1));
    if (!(*out >= 1 && *out <= 1e18)) return ls_fail(LS_E_ARG, "--tokens %s: must be 1 to 1e18", text);
    return LS_OK;
}

static ls_status check_modes(const options *o, const unsigned char *given)
{
    const int mode = o->measure ? MEASURE : (o->check ? CHECK : RANK) | (strcmp(o->cluster, "this") ? 0 : TIMES);
    for (size_t i = 0; i < CLI_COUNT(only); i++)
        for (const char *const *name = only[i].name; *name && !(mode & only[i].modes); name++)
            if (cli_given(&page, given, *name)) return ls_fail(LS_E_ARG, "--%s %s; leave it out", *name, only[i].words);
    if (cli_given(&page, given, "memory") && !(o->memory * GIB >= 1 && o->memory * GIB < 4e18))
        return ls_fail(LS_E_ARG, "--memory %g: must be at least one byte and less than 4e9 GiB", o->memory);
    if (cli_given(&page, given, "dropout") && !(o->dropout >= 0 && o->dropout < 1))
        return ls_fail(LS_E_ARG, "--dropout %g: must be at least 0 and less than 1", o->dropout);
    if (cli_given(&page, given, "price") && !(o->q.price > 0 && o->q.price < 1e9))
        return ls_fail(LS_E_ARG, "--price %g: must be above 0 and below 1e9", o->q.price);
    if (cli_given(&page, given, "mtbf") && !(o->mtbf > 0 && o->mtbf < 1e9))
        return ls_fail(LS_E_ARG, "--mtbf %g: must be above 0 and below 1e9 hours", o->mtbf);
    if (o->mtbf <= 0 && (cli_given(&page, given, "checkpoint_bandwidth") || cli_given(&page, given, "restart_time")))
        return ls_fail(
            LS_E_ARG,
            "--checkpoint_bandwidth and --restart_time need --mtbf HOURS, the mean time between failures of a node");
    if (!(o->checkpoint_bandwidth > 0 && o->checkpoint_bandwidth < 1e9))
        return ls_fail(LS_E_ARG, "--checkpoint_bandwidth %g: must be above 0 and below 1e9 GB/s",
                       o->checkpoint_bandwidth);
    if (!(o->restart_time >= 0 && o->restart_time < 1e9))
        return ls_fail(LS_E_ARG, "--restart_time %g: must be at least 0 and below 1e9 seconds", o->restart_time);
    if (!(o->seconds > 0)) return ls_fail(LS_E_ARG, "--seconds %g: must be more than 0", o->seconds);
    return LS_OK;
}

static void say(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "%s\n", text);
}

/* As for train, tiny follows its data. */
static ls_status read_vocabulary(const options *o, const char *name, const ls_train_paths *paths, ls_model_config *m)
{
    ls_tokenizer *tok = NULL;
    if (o->vocab_size) m->vocab_size = (int)o->vocab_size;
    if (m->eos_id >= m->vocab_size) m->eos_id = -1;
    if (!paths->tokenizer) return LS_OK;
    LS_TRY(ls_tokenizer_load(paths->tokenizer, &tok));
    const int ids = ls_tokenizer_n_vocab(tok);
    ls_tokenizer_destroy(&tok);
    return ls_train_fit_vocabulary(m, ids, !o->vocab_size && !strcmp(name, "tiny"));
}

static ls_status count_sequences(const options *o, const char *path, const ls_model_config *m, int64_t *n)
{
    ls_tokens t = {0};
    LS_TRY(ls_tokens_open(&t, path, (int)o->seq_length, m->vocab_size));
    *n = t.n_seq;
    ls_tokens_close(&t);
    return LS_OK;
}

/* What a run will learn from --data. val_seqs: NULL, or its validation sequences. */
static ls_status read_data(options *o, const char *name, ls_model_config *m, int64_t *val_seqs)
{
    ls_train_paths paths = {0};
    const ls_train_options as_train = {.data = o->q.data};
    if (o->q.data) LS_TRY(ls_train_find_paths(&as_train, &paths));
    ls_status st = read_vocabulary(o, name, &paths, m);
    if (st == LS_OK && paths.train && val_seqs) st = count_sequences(o, paths.train, m, &o->train_seqs);
    if (st == LS_OK && paths.val && val_seqs) st = count_sequences(o, paths.val, m, val_seqs);
    ls_train_paths_fini(&paths);
    return st;
}

static ls_status read_model(options *o, const char *name, ls_model_config *m, int64_t *val_seqs)
{
    ls_variant v;
    LS_TRY(ls_model_config_named(name, m));
    if (o->variant) {
        LS_TRY(ls_variant_parse(o->variant, &v));
        ls_model_config_set_variant(m, v);
    }
    if (o->dropout >= 0) m->embd_pdrop = m->attn_pdrop = m->resid_pdrop = o->dropout;
    LS_TRY(ls_model_config_check(m));
    if (!o->seq_length) o->seq_length = m->n_ctx < 512 ? m->n_ctx : 512;
    if (o->seq_length > m->n_ctx)
        return ls_fail(LS_E_CONFIG, "--seq_length %lld: %s has only %d positions; use --seq_length %d",
                       (long long)o->seq_length, name, m->n_ctx, m->n_ctx);
    LS_TRY(read_data(o, name, m, val_seqs));
    return ls_model_config_check(m);
}

static ls_status numbers(const ls_opt_list *l, const char *name, int most, int *to, int *n)
{
    if (l->n > most) return ls_fail(LS_E_ARG, "--%s: takes at most %d numbers", name, most);
    for (*n = 0; *n < l->n; (*n)++) {
        int64_t v;
        if (!ls_parse_i64(l->word[*n], &v) || v < 1 || v > 4096)
            return ls_fail(LS_E_ARG, "--%s %s: must be a whole number of at least 1", name, l->word[*n]);
        to[*n] = (int)v;
    }
    return LS_OK;
}

/* cuda: the layouts are for GPUs. */
static ls_status check_offload(const options *o, bool cuda)
{
    const char *strategy = o->q.strategy;
    if (strcmp(o->offload, "cpu")) return LS_OK;
    if (!cuda)
        return ls_fail(
            LS_E_CONFIG,
            "--offload_optimizer cpu needs GPUs; on the CPU (--cluster %s) the optimizer is in host memory already",
            o->cluster);
    if (strategy && (!strcmp(strategy, "dp") || !strcmp(strategy, "ddp")))
        return ls_fail(LS_E_CONFIG, "--offload_optimizer cpu needs zero1, zero2, zero3 or single; got --strategy %s",
                       strategy);
    return LS_OK;
}

static ls_status measure_this(const options *o, ls_measure_opts *mo, ls_cluster *cl)
{
    mo->say = say;
    mo->seconds = o->seconds;
    mo->bucket = o->q.bucket;
    mo->fastest = o->fastest;
    if (!o->check) { /* else as the run */
        ls_device_choice d;
        LS_TRY(ls_device_choose(o->device, NULL, 1, 0, &d));
        LS_TRY(check_offload(o, d.cuda));
        cli_print_device(&d, false);
        mo->cuda = d.cuda;
        mo->device = d.index;
        const char *precision = ls_precision_of_backend(o->precision, d.cuda ? "cuda" : "cpu", d.card);
        LS_TRY(ls_precision_check("--precision bf16", precision, &d));
        mo->dtype = ls_precision_dtype(precision);
        mo->no_deterministic = o->q.no_deterministic;
    }
    if (o->micro.n) LS_TRY(numbers(&o->micro, "micro", LS_MEASURE_MICRO, mo->micro, &mo->n_micro));
    if (o->measure_workers.n) LS_TRY(numbers(&o->measure_workers, "measure_workers", 8, mo->workers, &mo->n_workers));
    return ls_planner_measure(mo, cl);
}

/* The cluster of --cluster; mo: what to measure if it is this machine. */
static ls_status open_cluster(const options *o, ls_measure_opts *mo, ls_cluster *cl)
{
    return strcmp(o->cluster, "this") ? ls_cluster_open(o->cluster, cl) : measure_this(o, mo, cl);
}

static ls_status measure(options *o)
{
    ls_measure_opts mo = {0};
    ls_cluster cl = {0};
    ls_str text = {0};
    LS_TRY(read_model(o, o->q.from ? o->q.from : "gpt2", &mo.model, NULL));
    mo.seq_len = (int)o->seq_length;
    LS_TRY(measure_this(o, &mo, &cl));
    ls_cluster_text(&cl, &text);
    ls_status st = LS_OK;
    if (!o->out || text.failed) st = cli_print(&text);
    else st = ls_fs_write(o->out, text.data, text.len);
    if (st == LS_OK && o->out) printf("%s: %s\n", o->out, cl.source);
    ls_str_fini(&text);
    ls_cluster_fini(&cl);
    return st;
}

static ls_status check_run(const options *o)
{
    ls_run_record r;
    ls_cluster cl = {0};
    ls_str text = {0};
    double worst = 0;
    LS_TRY(ls_run_record_load(o->check, o->fastest, &r));
    ls_measure_opts mo = {.model = r.cfg.model,
                          .seq_len = r.cfg.seq_len,
                          .micro = {r.cfg.micro_batch},
                          .n_micro = 1,
                          .workers = {r.cfg.world_size},
                          .n_workers = 1,
                          .cuda = !strcmp(r.cfg.device, "cuda"),
                          .device = r.cfg.device_index,
                          .dtype = r.cfg.dtype,
                          .no_deterministic = !r.cfg.deterministic};
    const int cores = ls_cores_usable(), asked = r.cfg.threads; /* cores per worker of the run */
    if (asked && cores / asked > r.cfg.world_size) mo.workers[mo.n_workers++] = cores / asked;
    ls_status st = ls_planner_check_times(&r.cfg); /* before this machine is measured */
    if (st == LS_OK) st = open_cluster(o, &mo, &cl);
    if (st == LS_OK && cl.cpu == mo.cuda)
        st = ls_fail(LS_E_CONFIG, "--cluster %s: %s ran on %s; give a cluster file of that machine (plan --measure)",
                     o->cluster, o->check, mo.cuda ? "GPUs" : "the CPU");
    if (st == LS_OK) st = ls_planner_check(&cl, &r, o->json, &text, &worst);
    if (st == LS_OK) st = cli_print(&text);
    ls_str_fini(&text);
    ls_cluster_fini(&cl);
    ls_run_record_fini(&r);
    return st;
}

/* A GPU of this machine that is of the cluster's kind: a preset of its name, or a file that was measured on such a one. */
static bool open_same_gpu(const ls_cluster *cl, const ls_planner_query *q, ls_compute *out)
{
    const ls_compute_open_opts o = {.dtype = q->dtype, .device = -1, .deterministic = !q->no_deterministic};
    ls_device_info info = {0};
    ls_cluster kind;
    if (cl->cpu || ls_compute_open(out, "cuda", &o, 1) != LS_OK) {
        ls_err_clear();
        return false;
    }
    const bool known = out->device->info(out->device->ctx, &info) == LS_OK && info.name[0];
    if (known &&
        (strstr(cl->source, info.name) || (ls_cluster_preset_of(info.name, &kind) && !strcmp(kind.name, cl->name))))
        return true;
    ls_err_clear();
    ls_compute_close(out);
    return false;
}

/* Workers: those requested, or all devices. Sequences per step: those requested, or one per worker and at least 512 (GPT-2's batch). */
static ls_status count_workers(const options *o, ls_cluster *cl, ls_planner_query *q)
{
    const int64_t places = cl->count ? cl->count : (int64_t)cl->hosts * cl->devices,
                  workers = o->workers ? o->workers : places;
    if (cl->count && workers > cl->count)
        return ls_fail(LS_E_ARG, "--workers %lld: --cluster %s has %d devices; leave one of the two out",
                       (long long)workers, o->cluster, cl->count);
    if (workers > MOST_WORKERS)
        return ls_fail(LS_E_ARG, "cluster %s has %lld devices, but at most %d workers can be planned; add --workers N",
                       cl->name, (long long)places, MOST_WORKERS);
    if (workers > places && !cl->cpu)
        cl->hosts = (int)((workers + cl->devices - 1) / cl->devices); /* more of the same kind */
    q->workers = (int)workers;
    q->batch_chosen = !q->global_batch;
    if (q->batch_chosen) q->global_batch = (512 + workers - 1) / workers * workers;
    if (q->data && o->train_seqs < q->global_batch)
        return ls_fail(LS_E_CONFIG, "a step needs %lld sequences, but %s has only %lld (of %lld tokens)%s",
                       (long long)q->global_batch, q->data, (long long)o->train_seqs, (long long)o->seq_length,
                       q->batch_chosen ? "; add --global_batch N" : "");
    return LS_OK;
}

/* The cluster file has what this plan needs. */
static ls_status check_cluster(const options *o, const ls_cluster *cl, ls_planner_query *q)
{
    LS_TRY(ls_cluster_check_precision(cl, q->dtype));
    LS_TRY(check_offload(o, !cl->cpu));
    LS_TRY(ls_planner_settle(cl, q));
    return !q->offload ? LS_OK : ls_cluster_check_offload(cl, ls_cluster_crowd(cl, 1).timed, q->dtype);
}

static ls_status rank(options *o)
{
    ls_planner_query q = o->q;
    if (!q.from)
        return ls_fail(
            LS_E_ARG,
            "plan needs one of: --model NAME (rank layouts), --schedule NAME|FILE (draw a pipeline), --measure, --check RUN_DIR");
    q.memory = (int64_t)(o->memory * GIB);
    q.max_tp = (int)o->max_tp;
    q.top = o->all ? 0 : (int)o->top;
    q.precision_given = o->precision != NULL;
    q.vocab_given = o->vocab_size > 0;
    q.dropout_given = o->dropout >= 0;
    LS_TRY(read_model(o, o->q.from, &q.model, &q.val_seqs));
    q.seq_len = (int)o->seq_length;
    snprintf(q.model.name, sizeof q.model.name, "%s", o->q.from);
    ls_cluster cl = {0};
    ls_measure_opts mo = {.model = q.model, .seq_len = q.seq_len};
    q.mtbf = 3600 * o->mtbf;
    q.checkpoint_bandwidth = 1e9 * o->checkpoint_bandwidth;
    q.restart = o->restart_time;
    if (o->workers) mo.workers[mo.n_workers++] = (int)o->workers;
    LS_TRY(open_cluster(o, &mo, &cl));
    q.cuda = !cl.cpu;
    const bool automatic = o->precision && !strcmp(o->precision, "auto");
    q.dtype = automatic ? ls_cluster_auto_precision(&cl) : ls_cluster_default_precision(&cl);
    if (o->precision) (void)ls_precision_parse(o->precision, &q.dtype); /* not auto */
    q.precision_auto = automatic;
    q.offload = !strcmp(o->offload, "cpu");
    const ls_status known = check_cluster(o, &cl, &q);
    if (known != LS_OK) {
        ls_cluster_fini(&cl);
        return known;
    }
    ls_planner_result r;
    ls_str text = {0};
    ls_status st = count_workers(o, &cl, &q);
    ls_compute gpu;
    if (st == LS_OK && open_same_gpu(&cl, &q, &gpu)) q.gpu = &gpu;
    if (st == LS_OK) st = ls_planner_search(&cl, &q, &r);
    const int columns = ls_terminal_columns(STDOUT_FILENO);
    if (st == LS_OK) {
        if (o->json) ls_planner_json(&cl, &q, &r, q.top, &text);
        else ls_planner_text(&cl, &q, &r, q.top, columns ? columns : 80, &text);
        st = cli_print(&text);
        if (st == LS_OK && !r.n_fit && r.n)
            st = ls_fail(LS_E_NOMEM, "no layout of %d worker%s fits in memory; the smallest: %s", q.workers,
                         q.workers == 1 ? "" : "s", r.layout[0].why);
        else if (st == LS_OK && !r.n)
            st = ls_fail(LS_E_CONFIG, "no layout of %d worker%s is possible: %s", q.workers, q.workers == 1 ? "" : "s",
                         r.bad[0]);
        ls_planner_result_fini(&r);
    }
    if (q.gpu) ls_compute_close(q.gpu);
    ls_str_fini(&text);
    ls_cluster_fini(&cl);
    return st;
}

static bool has(int argc, char **argv, const char *name)
{
    const size_t n = strlen(name);
    for (int i = 0; i < argc; i++)
        if (!strncmp(argv[i], name, n) && (!argv[i][n] || argv[i][n] == '=')) return true;
    return false;
}

ls_status cmd_plan(int argc, char **argv)
{
    options o = {0};
    unsigned char given[CLI_COUNT(table)] = {0};
    if (has(argc, argv, "--schedule")) return cli_plan_schedule(argc, argv);
    const ls_status parsed = cli_parse(&page, &o, argc, argv, NULL, given);
    if (parsed == LS_E_UNSUPPORTED && has(argc, argv, "--check")) { /* fp8 */
        ls_err_clear();
        return ls_fail(LS_E_ARG, "--precision " NOT_FOR_CHECK "; leave it out");
    }
    LS_TRY(parsed);
    if (o.measure && o.check) return ls_fail(LS_E_ARG, "--measure and --check cannot be combined; leave one out");
    LS_TRY(check_modes(&o, given));
    if (o.tokens) LS_TRY(parse_tokens(o.tokens, &o.q.tokens));
    return o.measure ? measure(&o) : o.check ? check_run(&o) : rank(&o);
}
