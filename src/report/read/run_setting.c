/* run_setting.c - the setting of a run: everything that was asked of it except its seed. Runs with equal settings and numbers of workers are
 * repeats of one another.
 *
 * A setting is a list of "key value" lines: the strategy, every value of training_config, what `lockstep` records, steps, host, device, threads,
 * versions, and the options of the command line that no file records (dropout, limits of steps, warm-up of the learning rate ...). */
#include "core/argv.h"
#include "core/mem.h"
#include "report/read/run_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_strategy(const report_doc *d, ls_run *r)
{
    const char *ours = report_str(d, "lockstep.strategy"), *schedule = report_str(d, "lockstep.schedule");
    const json_t *engine = report_get(d, "training_config.deepspeed_enabled");
    int64_t stage = report_int(d, "training_config.zero_stage"), pp = report_int(d, "lockstep.pp"),
            tp = report_int(d, "lockstep.tp");
    size_t cap = sizeof r->strategy;
    if (pp < 0) {
        pp = report_int(d, "lockstep.pipeline.stages");
        schedule = report_str(d, "lockstep.pipeline.schedule");
    }
    if (ours && (pp > 1 || tp > 1) && !strcmp(ours, "single")) r->strategy[0] = '\0'; /* the mesh is the whole name */
    else if (ours) snprintf(r->strategy, cap, "%.40s", ours);
    else if (json_is_false(engine)) snprintf(r->strategy, cap, "baseline");
    else if (stage > 0 && stage < 4) snprintf(r->strategy, cap, "zero%d", (int)stage);
    else if (json_is_true(engine) || r->world > 1) snprintf(r->strategy, cap, "engine");
    else snprintf(r->strategy, cap, "baseline");
    size_t n = strlen(r->strategy);
    if (pp > 1)
        snprintf(r->strategy + n, cap - n, "%spp%d%s%.60s", n ? " " : "", (int)(pp < 9999 ? pp : 9999),
                 schedule ? " " : "", schedule ? schedule : "");
    n = strlen(r->strategy);
    if (tp > 1) snprintf(r->strategy + n, cap - n, "%stp%d", n ? " " : "", (int)(tp < 9999 ? tp : 9999));
}

static bool one_of(const char *word, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(word, list[i])) return true;
    return false;
}
#define ONE_OF(word, list) one_of((word), (list), sizeof(list) / sizeof *(list))

/* --- the command line --- */

/* Options that are no settings: where a run writes, what it prints or keeps, how it was started, how long it waits for a lost worker; and
 * those whose values the metrics record. */
static const char *const not_settings[] = {"checkpoint_path",
                                           "seed",
                                           "resume",
                                           "local_rank",
                                           "n",
                                           "run_type",
                                           "reference_output",
                                           "verbose",
                                           "steps_per_print",
                                           "quiet_nccl_monitor",
                                           "json",
                                           "keep_last",
                                           "keep_hours",
                                           "mtbf",
                                           "save_failures",
                                           "print_config",
                                           "profile",
                                           "profile_spans",
                                           "nccl_proof",
                                           "comm_timeout",
                                           "max_restarts",
                                           "elastic",
                                           "hot_spare",
                                           "deepspeed",
                                           "deepspeed_config",
                                           "lr",
                                           "learning_rate",
                                           "lr_schedule",
                                           "micro_batch_size_per_gpu",
                                           "train_micro_batch_size_per_gpu",
                                           "grad_accum_steps",
                                           "gradient_accumulation_steps",
                                           "global_batch_size",
                                           "enforce_global_batch_size",
                                           "seq_length",
                                           "epochs",
                                           "max_steps",
                                           "max_train_steps",
                                           "num_layers",
                                           "num_heads",
                                           "embedding_size",
                                           "model",
                                           "variant",
                                           "device",
                                           "compute",
                                           "precision",
                                           "strategy",
                                           "bucket",
                                           "gather_bucket",
                                           "prefetch_bucket",
                                           "comm",
                                           "pp",
                                           "tp",
                                           "schedule",
                                           "interleave",
                                           "stages",
                                           "sequence_parallel",
                                           "recompute",
                                           "offload_optimizer",
                                           "share_optimizer",
                                           "deterministic",
                                           "no_deterministic",
                                           "threads"};

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] && !strchr("0123456789.", word[1]);
}

/* "--max-val-steps=5" -> name "max_val_steps"; *value: what follows '=', or NULL. */
static void option_name(const char *word, char name[64], const char **value)
{
    const char *p = word + strspn(word, "-"), *equals = strchr(p, '=');
    const size_t n = equals ? (size_t)(equals - p) : strlen(p);
    snprintf(name, 64, "%.*s", (int)(n < 63 ? n : 63), p);
    for (char *c = name; *c; c++)
        if (*c == '-') *c = '_';
    *value = equals ? equals + 1 : NULL;
}

/* `lockstep train DIR` is `lockstep train --data DIR`: the words between the command and the first option. Returns the first option. */
static int add_data(const ls_argv *w, json_t *all)
{
    ls_str s = {0};
    int i = 0;
    while (i < w->n && i < 2 && strcmp(w->word[i], "train")) i++;
    if (i == w->n || strcmp(w->word[i], "train")) return 0;
    for (i++; i < w->n && !is_option(w->word[i]); i++) ls_str_addf(&s, "%s%s", s.len ? " " : "", w->word[i]);
    if (s.len) json_object_set_new(all, "data", json_string(s.data));
    ls_str_fini(&s);
    return i;
}

/* The options of a command line by name, the last one of each; the value of a switch is "on". command_line joins words by blanks. */
static json_t *options_of(const ls_argv *w)
{
    json_t *all = json_object();
    for (int i = add_data(w, all); i < w->n;) {
        char name[64];
        const char *value;
        ls_str s = {0};
        if (!is_option(w->word[i])) {
            i++;
            continue;
        }
        option_name(w->word[i++], name, &value);
        if (value) ls_str_add(&s, value);
        for (; !value && i < w->n && !is_option(w->word[i]); i++) ls_str_addf(&s, "%s%s", s.len ? " " : "", w->word[i]);
        json_object_set_new(all, name, json_string(s.data ? s.data : "on"));
        ls_str_fini(&s);
    }
    return all;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool has_line(const ls_str *s, const char *key, const char *value)
{
    const size_t n = strlen(key), m = strlen(value);
    for (const char *p = s->data; p && *p; p = strchr(p, '\n') + 1)
        if (!strncmp(p, key, n) && p[n] == ' ' && !strncmp(p + n + 1, value, m) && p[n + 1 + m] == '\n') return true;
    return false;
}

/* In the order of their names, so that the order of the command line does not matter; what is recorded already is not repeated. */
static ls_status add_options(const json_t *all, ls_str *out)
{
    const size_t n = json_object_size(all);
    if (!n) return LS_OK;
    const char **name = ls_alloc(n * sizeof *name), *key;
    const json_t *v;
    size_t k = 0;
    if (!name) return ls_nomem(n * sizeof *name, "the options of a command line");
    json_object_foreach((json_t *)(uintptr_t)all, key, v) if (!ONE_OF(key, not_settings)) name[k++] = key;
    if (k) qsort(name, k, sizeof *name, by_text);
    for (size_t i = 0; i < k; i++) {
        const char *value = json_string_value(json_object_get(all, name[i]));
        if (!has_line(out, name[i], value)) ls_str_addf(out, "%s %s\n", name[i], value);
    }
    ls_free(name);
    return LS_OK;
}

/* --- what the files record --- */

static void add_value(ls_str *s, const char *key, const json_t *v)
{
    char number[32];
    if (json_is_string(v)) ls_str_addf(s, "%s %s\n", key, json_string_value(v));
    else if (json_is_integer(v)) ls_str_addf(s, "%s %lld\n", key, (long long)json_integer_value(v));
    else if (json_is_real(v)) ls_str_addf(s, "%s %s\n", key, ls_json_real(number, json_real_value(v)));
    else if (json_is_boolean(v)) ls_str_addf(s, "%s %s\n", key, json_is_true(v) ? "on" : "off");
}

static void add_text(ls_str *s, const char *key, const char *value)
{
    if (value && *value && strcmp(value, "none") && strcmp(value, "unknown")) ls_str_addf(s, "%s %s\n", key, value);
}

/* training_config: all of it but what the strategy's name has. */
static void add_config(const report_doc *d, ls_str *s)
{
    static const char *const in_strategy[] = {"model_name", "deepspeed_enabled", "zero_stage"};
    const json_t *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)report_object(d, "training_config"), key, v)
    {
        if (ONE_OF(key, in_strategy)) continue;
        if (strcmp(key, "dataset_subset_sizes")) add_value(s, strcmp(key, "dataset_name") ? key : "dataset", v);
        else
            ls_str_addf(s, "sequences %.0f and %.0f\n", json_number_value(json_object_get(v, "train")),
                        json_number_value(json_object_get(v, "val")));
    }
}

/* Facts and results under `lockstep`, by name; every other string, boolean or integer there is a setting. */
static void add_ours(const report_doc *d, const ls_run *r, ls_str *s)
{
    static const char *const facts[] = {"version",    "compute",   "seed",    "resumed_from_step",
                                        "parameters", "hosts",     "cpus",    "device_choice",
                                        "strategy",   "precision", "threads", "commit"};
    const json_t *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)report_object(d, "lockstep"), key, v)
    {
        const bool scalar = json_is_string(v) || json_is_integer(v) || json_is_boolean(v);
        if (!scalar || ls_ends_in(key, "_bytes") || ONE_OF(key, facts)) continue;
        if (!strcmp(key, "total_steps") && (double)json_integer_value(v) == r->n_update) continue; /* as `steps` */
        add_value(s, key, v);
    }
}

/* "cpu: neon vectors, 4 threads" -> 4; -1: not stated. */
static int64_t threads_of(const report_doc *d)
{
    const char *compute = report_str(d, "lockstep.compute"), *end = compute ? strstr(compute, " thread") : NULL;
    while (end && end > compute && strchr("0123456789", end[-1])) end--;
    return end && *end != ' ' ? strtoll(end, NULL, 10) : -1;
}

static void add_machine(const report_doc *d, const ls_run *r, ls_str *s)
{
    const int64_t asked = report_int(d, "lockstep.threads");
    const int64_t threads = threads_of(d) > 0 ? threads_of(d) : asked;
    const char *comm = ls_run_backend(r);
    if (comm) add_text(s, "comm", comm);
    add_text(s, "gpu", report_str(d, "hardware.gpu_name"));
    add_text(s, "host", report_str(d, "host.hostname"));
    add_text(s, "nodes", report_str(d, "scheduler.nodelist"));
    if (threads > 0) ls_str_addf(s, "threads %lld\n", (long long)threads);
    const char *compute = report_str(d, "lockstep.compute");
    if (compute && strstr(compute, "no bf16 instructions")) add_text(s, "emulated", "bf16");
    add_text(s, "torch", report_str(d, "env.torch_version"));
    add_text(s, "deepspeed", report_str(d, "env.deepspeed_version"));
    add_text(s, "cuda", report_str(d, "env.cuda_version"));
}

/* A profiler slows a run down. Ours is switched on by --profile; of nsys and torch there are files (t->profiled) or a summary. */
static void read_profiled(const json_t *options, ls_run *r)
{
    const report_doc p = {.root = r->profile};
    const double rate = report_num(&p, "tokens_per_sec");
    const bool stale = !isnan(rate) && !isnan(r->tokens_per_sec) && rate != r->tokens_per_sec; /* of an earlier run */
    r->profiled = r->profiled || (r->profile && !stale) || json_object_get(options, "profile");
}

const char *ls_setting_value(const char *setting, const char *key, size_t n_key, size_t *n)
{
    for (const char *p = setting; *p;) {
        const size_t k = strcspn(p, "\n");
        if (k > n_key && !strncmp(p, key, n_key) && p[n_key] == ' ') {
            *n = k - n_key - 1;
            return p + n_key + 1;
        }
        p += k + (p[k] == '\n');
    }
    *n = 0;
    return NULL;
}

void ls_run_commit(const json_t *metrics, char commit[24])
{
    const char *c = json_string_value(ls_json_at(metrics, "lockstep.commit"));
    if (!c || !strcmp(c, "unknown")) c = json_string_value(json_object_get(metrics, "git_commit"));
    snprintf(commit, 24, "%.12s%s", c ? c : "", c && strlen(c) > 12 && ls_ends_in(c, "-dirty") ? "-dirty" : "");
}

ls_status run_read_setting(const report_doc *d, ls_run *r)
{
    const char *line = report_str(d, "command_line"), *sha = report_str(d, "deepspeed_config.sha256");
    char commit[24];
    ls_argv words = {0};
    ls_str s = {0};
    if (line && ls_argv_split(&words, line) != LS_OK)
        ls_err_clear(); /* a quote that is not closed: the words before it */
    json_t *options = options_of(&words);
    ls_argv_fini(&words);
    if (!r->strategy[0]) read_strategy(d, r);
    read_profiled(options, r);
    r->seed = report_int(d, "lockstep.seed");
    if (r->seed < 0) (void)ls_parse_i64(json_string_value(json_object_get(options, "seed")), &r->seed);
    ls_str_addf(&s, "strategy %s\n", r->strategy);
    add_config(d, &s);
    if (r->n_update > 0) ls_str_addf(&s, "steps %.0f\n", r->n_update);
    if (r->profiled) ls_str_add(&s, "profiled on\n");
    if (sha && strcmp(sha, "unknown")) ls_str_addf(&s, "config %.8s\n", sha);
    add_ours(d, r, &s);
    add_machine(d, r, &s);
    ls_run_commit(d->root, commit);
    add_text(&s, "commit", commit);
    ls_status st = add_options(options, &s);
    json_decref(options);
    if (st == LS_OK && s.failed) st = ls_nomem(256, "settings");
    if (st == LS_OK) r->setting = s.data;
    else ls_str_fini(&s);
    return st;
}
