/* plan_layouts.c - `lockstep plan --model … --cluster …`: layouts ranked; --measure: a cluster file; --check: a run beside its plan. */
#include "cli/plan.h"

#include "plan/planner.h"
#include "plan/planner_check.h"
#include "plan/planner_measure.h"
#include "cli/commands.h"
#include "core/cores.h"
#include "core/fs.h"
#include "core/mem.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "config/device_choice.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct options {
    const char *model, *variant, *data, *cluster, *strategy, *out, *check, *precision, *device;
    int64_t vocab_size, global_batch, seq_length, workers, bucket, top, max_tp;
    double memory, seconds, dropout, tokens;
    ls_opt_list micro, measure_workers;
    bool recompute, measure, json, all, fastest, no_deterministic;
} options;

static const ls_opt table[] = {
    {"model", LS_OPT_STR, offsetof(options, model), "NAME|PATH", NULL,
     "gpt2, gpt2-medium, gpt2-large, gpt2-xl, tiny, or a Hugging Face config.json", "Input"},
    {"variant", LS_OPT_CHOICE, offsetof(options, variant), "hf|r1", NULL, "model variant, as in train [hf]", NULL},
    {"data", LS_OPT_STR, offsetof(options, data), "DIR", NULL,
     "data folder; its vocabulary size and its val.bin are used, as in train", NULL},
    {"vocab_size", LS_OPT_INT, offsetof(options, vocab_size), "N", NULL,
     "vocabulary size [from the model; tiny: from the tokenizer of the data]", NULL},
    {"dropout", LS_OPT_REAL, offsetof(options, dropout), "P", "-1",
     "dropout rate, the same everywhere [from the model]", NULL},
    {"global_batch", LS_OPT_INT, offsetof(options, global_batch), "N", "0",
     "sequences per optimizer step over all workers", NULL},
    {"seq_length", LS_OPT_INT, offsetof(options, seq_length), "N", "512", "tokens per sequence", NULL},
    {"cluster", LS_OPT_STR, offsetof(options, cluster), "FILE|PRESET|this", "this",
     "cluster file, preset (v100, a100, h100, h200, b200), or this machine (measured now)", NULL},
    {"precision", LS_OPT_CHOICE, offsetof(options, precision), "fp32|bf16|fp16", NULL,
     "number format of parameters and activations [as in train: bf16 on GPUs, fp32 on the CPU; v100: fp16]", NULL},
    {"tokens", LS_OPT_REAL, offsetof(options, tokens), "N", NULL,
     "tokens of the whole training; prints its time and, if the power is known, its energy", NULL},
    {"workers", LS_OPT_INT, offsetof(options, workers), "N", "0",
     "number of workers [all devices of the cluster; CPU: one worker per core]", NULL},
    {"memory", LS_OPT_REAL, offsetof(options, memory), "GiB", "0",
     "memory per device or, for the CPU, per host [from the cluster]", NULL},
    {"strategy", LS_OPT_CHOICE, offsetof(options, strategy), "single|dp|ddp|zero1|zero2|zero3", NULL,
     "consider only this strategy", NULL},
    {"max_tp", LS_OPT_INT, offsetof(options, max_tp), "T", "0",
     "use tensor parallelism over at most T workers [no limit]", NULL},
    {"bucket", LS_OPT_INT, offsetof(options, bucket), "N", "0",
     "gradient bucket size in elements, as in train [1048576; on GPUs 6553600]", NULL},
    {"recompute", LS_OPT_SWITCH, offsetof(options, recompute), NULL, NULL, "recompute activations in the backward pass",
     NULL},
    {"no_deterministic", LS_OPT_SWITCH, offsetof(options, no_deterministic), NULL, NULL,
     "allow GPU kernels whose summation order varies, as in train", NULL},
    {"top", LS_OPT_INT, offsetof(options, top), "N", "15", "number of layouts to print", "Output"},
    {"all", LS_OPT_SWITCH, offsetof(options, all), NULL, NULL,
     "print every layout, and the reason for those that do not fit", NULL},
    {"json", LS_OPT_SWITCH, offsetof(options, json), NULL, NULL, "print one JSON object", NULL},
    {"measure", LS_OPT_SWITCH, offsetof(options, measure), NULL, NULL,
     "measure this machine and write a cluster file (docs/PLAN.md)", "Cluster files"},
    {"device", LS_OPT_STR, offsetof(options, device), "cpu|cuda[:N]|auto", NULL,
     "device to measure; auto: cuda if a GPU is available, else cpu [LS_DEVICE, else auto]", NULL},
    {"out", LS_OPT_STR, offsetof(options, out), "FILE", NULL, "output file [stdout]", NULL},
    {"seconds", LS_OPT_REAL, offsetof(options, seconds), "S", "20", "approximate duration of the measurement", NULL},
    {"micro", LS_OPT_LIST, offsetof(options, micro), "B ...", NULL, "micro-batch sizes to measure, at most 4 [1 4]",
     NULL},
    {"measure_workers", LS_OPT_LIST, offsetof(options, measure_workers), "W ...", NULL,
     "numbers of workers to measure, at most 8 [1 2 4 ... up to the number of cores or GPUs]", NULL},
    {"fastest", LS_OPT_SWITCH, offsetof(options, fastest), NULL, NULL,
     "use the fastest 10 % of repetitions (for a shared machine)", NULL},
    {"check", LS_OPT_STR, offsetof(options, check), "RUN_DIR", NULL,
     "compare the prediction with the measurements of a finished run", "Check"},
};
#define GIB          (1024.0 * 1024 * 1024)
#define MOST_WORKERS 1024
#define N_OPT        (sizeof table / sizeof table[0])

enum { RANK = 1, MEASURE = 2, CHECK = 4, TIMES = 8 }; /* TIMES: this machine is measured for --cluster this */

/* What is asked for in vain is refused: options of some modes alone, with the words that say which. */
static const struct {
    const char *name, *words;
    int modes;
} only[] = {
    {"out", "is only for --measure", MEASURE},
    {"micro", "is only for --measure and --cluster this", MEASURE | TIMES},
    {"measure_workers", "is only for --measure and --cluster this", MEASURE | TIMES},
    {"seconds", "is only for --measure and --cluster this", MEASURE | TIMES},
    {"data", "is not for --check (the run records its data)", RANK | MEASURE},
    {"vocab_size", "is not for --check (the run records it)", RANK | MEASURE},
    {"cluster", "is not for --measure, which writes a cluster file", RANK | CHECK},
    {"global_batch", "is not for --measure and --check", RANK},
    {"tokens", "is not for --measure and --check", RANK},
    {"device", "is only for --measure and --cluster this (a cluster file or preset defines it)", MEASURE | TIMES},
    {"precision", "is not for --check (the run records it)", RANK | MEASURE},
    {"no_deterministic", "is not for --check (the run records it)", RANK | MEASURE},
    {"workers", "is not for --measure and --check", RANK},
    {"memory", "is not for --measure and --check", RANK},
    {"strategy", "is not for --measure and --check", RANK},
    {"max_tp", "is not for --measure and --check", RANK},
    {"top", "is not for --measure and --check", RANK},
    {"all", "is not for --measure and --check", RANK},
};

static bool is_given(const unsigned char *given, const char *name)
{
    for (size_t i = 0; i < N_OPT; i++)
        if (!strcmp(table[i].name, name)) return given[i];
    return false;
}

static ls_status check_modes(const options *o, const unsigned char *given)
{
    const int mode = o->measure ? MEASURE : (o->check ? CHECK : RANK) | (strcmp(o->cluster, "this") ? 0 : TIMES);
    for (size_t i = 0; i < sizeof only / sizeof only[0]; i++)
        if (is_given(given, only[i].name) && !(mode & only[i].modes))
            return ls_fail(LS_E_ARG, "--%s %s; leave it out", only[i].name, only[i].words);
    if (is_given(given, "memory") && !(o->memory * GIB >= 1 && o->memory * GIB < 4e18))
        return ls_fail(LS_E_ARG, "--memory %g: must be at least one byte and less than 4e9 GiB", o->memory);
    if (is_given(given, "tokens") && !(o->tokens >= 1 && o->tokens <= 1e18))
        return ls_fail(LS_E_ARG, "--tokens %g: must be 1 to 1e18", o->tokens);
    if (is_given(given, "dropout") && !(o->dropout >= 0 && o->dropout < 1))
        return ls_fail(LS_E_ARG, "--dropout %g: must be at least 0 and less than 1", o->dropout);
    if (is_given(given, "vocab_size") && (o->vocab_size < 1 || o->vocab_size > INT_MAX))
        return ls_fail(LS_E_ARG, "--vocab_size %lld: must be at least 1", (long long)o->vocab_size);
    return LS_OK;
}

static void say(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "%s\n", text);
}

static ls_status put(const ls_str *s)
{
    if (s->failed) return ls_nomem(s->len, "the plan's text");
    fputs(s->data ? s->data : "", stdout);
    return LS_OK;
}

static ls_status check_numbers(const options *o)
{
    const struct {
        const char *name;
        int64_t v, lo;
    } all[] = {{"global_batch", o->global_batch, 0},
               {"seq_length", o->seq_length, 1},
               {"workers", o->workers, 0},
               {"bucket", o->bucket, 0},
               {"max_tp", o->max_tp, 0},
               {"top", o->top, 1}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].v < all[i].lo || all[i].v > INT_MAX)
            return ls_fail(LS_E_ARG, "--%s %lld: must be at least %lld", all[i].name, (long long)all[i].v,
                           (long long)(all[i].lo ? all[i].lo : 1));
    if (o->workers > MOST_WORKERS)
        return ls_fail(LS_E_ARG, "--workers %lld: must be at most %d", (long long)o->workers, MOST_WORKERS);
    if (!(o->seconds > 0)) return ls_fail(LS_E_ARG, "--seconds %g: must be more than 0", o->seconds);
    return LS_OK;
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
static ls_status read_data(const options *o, const char *name, ls_model_config *m, int64_t *val_seqs)
{
    ls_train_paths paths = {0};
    const ls_train_options as_train = {.data = o->data};
    int64_t train_seqs = 0;
    if (o->data) LS_TRY(ls_train_find_paths(&as_train, &paths));
    ls_status st = read_vocabulary(o, name, &paths, m);
    if (st == LS_OK && paths.train && val_seqs) st = count_sequences(o, paths.train, m, &train_seqs);
    if (st == LS_OK && paths.val && val_seqs) st = count_sequences(o, paths.val, m, val_seqs);
    if (st == LS_OK && paths.train && val_seqs && train_seqs < o->global_batch)
        st = ls_fail(LS_E_CONFIG, "a step needs %lld sequences, but %s has only %lld (of %lld tokens)",
                     (long long)o->global_batch, paths.train, (long long)train_seqs, (long long)o->seq_length);
    ls_train_paths_fini(&paths);
    return st;
}

static ls_status read_model(const options *o, const char *name, ls_model_config *m, int64_t *val_seqs)
{
    ls_variant v;
    LS_TRY(ls_model_config_named(name, m));
    if (o->variant) {
        LS_TRY(ls_variant_parse(o->variant, &v));
        ls_model_config_set_variant(m, v);
    }
    if (o->dropout >= 0) m->embd_pdrop = m->attn_pdrop = m->resid_pdrop = o->dropout;
    LS_TRY(ls_model_config_check(m));
    if (o->seq_length > m->n_ctx)
        return ls_fail(LS_E_CONFIG, "--seq_length %lld: %s has only %d positions", (long long)o->seq_length, name,
                       m->n_ctx);
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

static ls_status read_device(const char *asked, ls_measure_opts *mo)
{
    ls_device_choice d;
    LS_TRY(ls_device_choose(asked, NULL, 1, 0, &d));
    cli_say_device(&d);
    mo->cuda = d.cuda;
    mo->device = d.index;
    return LS_OK;
}

static ls_status measure_this(const options *o, ls_measure_opts *mo, ls_cluster *cl)
{
    mo->say = say;
    mo->seconds = o->seconds;
    mo->bucket = o->bucket;
    mo->fastest = o->fastest;
    if (!o->check) LS_TRY(read_device(o->device, mo));
    if (o->precision) (void)ls_precision_parse(o->precision, &mo->dtype);
    else if (!o->check) mo->dtype = mo->cuda ? LS_BF16 : LS_F32; /* as train */
    if (!o->check) mo->no_deterministic = o->no_deterministic;
    if (o->micro.n) LS_TRY(numbers(&o->micro, "micro", LS_MEASURE_MICRO, mo->micro, &mo->n_micro));
    if (o->measure_workers.n) LS_TRY(numbers(&o->measure_workers, "measure_workers", 8, mo->workers, &mo->n_workers));
    return ls_planner_measure(mo, cl);
}

static ls_status measure(const options *o)
{
    ls_measure_opts mo = {.seq_len = (int)o->seq_length};
    ls_cluster cl = {0};
    ls_str text = {0};
    LS_TRY(read_model(o, o->model ? o->model : "gpt2", &mo.model, NULL));
    LS_TRY(measure_this(o, &mo, &cl));
    ls_cluster_text(&cl, &text);
    ls_status st = LS_OK;
    if (text.failed) st = ls_nomem(text.len, "a cluster file");
    else if (o->out) st = ls_fs_write(o->out, text.data, text.len);
    else st = put(&text);
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
    ls_status st = LS_OK;
    if (!strcmp(o->cluster, "this")) {
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
        const int cores = ls_cores_usable(), asked = r.cfg.threads; /* the run's cores per worker */
        if (asked && cores / asked > r.cfg.world_size) mo.workers[mo.n_workers++] = cores / asked;
        st = measure_this(o, &mo, &cl);
    } else {
        st = ls_cluster_open(o->cluster, &cl);
    }
    if (st == LS_OK) st = ls_planner_check(&cl, &r, o->json, &text, &worst);
    if (st == LS_OK) st = put(&text);
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

static ls_status rank(const options *o)
{
    ls_planner_query q = {.global_batch = o->global_batch,
                          .seq_len = (int)o->seq_length,
                          .memory = (int64_t)(o->memory * GIB),
                          .bucket = o->bucket,
                          .max_tp = (int)o->max_tp,
                          .strategy = o->strategy,
                          .recompute = o->recompute,
                          .no_deterministic = o->no_deterministic,
                          .tokens = o->tokens,
                          .precision_given = o->precision != NULL,
                          .data = o->data,
                          .from = o->model,
                          .vocab_given = o->vocab_size > 0,
                          .dropout_given = o->dropout >= 0};
    if (!o->model || !o->global_batch)
        return ls_fail(LS_E_ARG, "plan needs one of: --model NAME with --global_batch N (rank layouts), --schedule "
                                 "NAME|FILE (draw a pipeline), --measure, --check RUN_DIR");
    LS_TRY(read_model(o, o->model, &q.model, &q.val_seqs));
    snprintf(q.model.name, sizeof q.model.name, "%s", o->model);
    ls_cluster cl = {0};
    if (!strcmp(o->cluster, "this")) {
        ls_measure_opts mo = {.model = q.model, .seq_len = q.seq_len};
        if (o->workers) mo.workers[mo.n_workers++] = (int)o->workers;
        LS_TRY(measure_this(o, &mo, &cl));
    } else {
        LS_TRY(ls_cluster_open(o->cluster, &cl));
    }
    q.cuda = !cl.cpu;
    q.dtype = ls_cluster_default_precision(&cl);
    if (o->precision) (void)ls_precision_parse(o->precision, &q.dtype);
    if (ls_cluster_check_precision(&cl, q.dtype) != LS_OK) {
        ls_cluster_fini(&cl);
        return LS_E_UNSUPPORTED;
    }
    const int64_t places = (int64_t)cl.hosts * cl.devices, workers = o->workers ? o->workers : places;
    if (workers > places && !cl.cpu)
        cl.hosts = (int)((workers + cl.devices - 1) / cl.devices); /* more of the same kind */
    ls_planner_result r;
    ls_str text = {0};
    ls_status st = LS_OK;
    q.workers = (int)workers;
    if (workers > MOST_WORKERS) {
        q.workers = 0;
        st = ls_fail(LS_E_ARG, "cluster %s has %lld devices, but at most %d workers can be planned; add --workers N",
                     cl.name, (long long)places, MOST_WORKERS);
    }
    ls_compute gpu;
    if (st == LS_OK && open_same_gpu(&cl, &q, &gpu)) q.gpu = &gpu;
    if (st == LS_OK) st = ls_planner_search(&cl, &q, &r);
    if (st == LS_OK) {
        const int top = o->all ? 0 : (int)o->top;
        if (o->json) ls_planner_json(&cl, &q, &r, top, &text);
        else ls_planner_text(&cl, &q, &r, top, &text);
        st = put(&text);
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

ls_status plan_layouts(int argc, char **argv)
{
    options o = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(table, N_OPT, &o));
    unsigned char given[N_OPT] = {0};
    LS_TRY(ls_opt_parse(table, N_OPT, &o, given, argc, argv, NULL, &help));
    if (help) {
        cli_help("plan --model NAME --global-batch N [--cluster NAME] [OPTIONS]\n"
                 "       lockstep plan --measure [--device cpu|cuda] [--model NAME] [--out FILE]\n"
                 "       lockstep plan --check RUN_DIR [--cluster FILE]\n"
                 "       lockstep plan --schedule NAME|FILE --pp P --micro M [OPTIONS]",
                 "Rank the layouts of a model on a cluster that fit in memory: strategy, replicas, stages, schedule "
                 "and micro-batch size. Memory is exactly what the run allocates. Time is the sum of the measured "
                 "times of the units, actions and collectives of a step. `lockstep plan --schedule 1f1b --help` "
                 "explains pipeline schedules.\n\n"
                 "  lockstep plan --measure --model gpt2 --seq-length 256 --out here.json\n  lockstep plan --model "
                 "gpt2 --global-batch 64 --seq-length 256 \\\n      --cluster here.json --workers 8\n  lockstep plan "
                 "--model gpt2-xl --global-batch 512 --seq-length 1024 \\\n      --cluster a100 --workers 8\n  "
                 "lockstep plan --model gpt2 --global-batch 64 --seq-length 1024 \\\n      --cluster h200 --workers 1 "
                 "--tokens 10e9\n  lockstep plan --measure --device cuda --model gpt2 --seq-length 1024 \\\n      "
                 "--micro 64 --out gpu.json\n  lockstep plan --check runs/zero2 --cluster here.json",
                 table, N_OPT);
        return LS_OK;
    }
    LS_TRY(check_numbers(&o));
    if (o.measure && o.check) return ls_fail(LS_E_ARG, "--measure and --check cannot be combined; leave one out");
    LS_TRY(check_modes(&o, given));
    return o.measure ? measure(&o) : o.check ? check_run(&o) : rank(&o);
}
