/* run_read.c - one run out of the texts of its files.
 *
 * training_metrics.json has identity and speed; metrics.jsonl has the steps; the other files confirm them. Numbers that occur in two
 * files are compared, and a difference is a note. */
#include "report/read/run_folder.h"
#include "core/fs.h"
#include "core/mem.h"
#include "report/read/run_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WORLD = 1000000 };

const ls_split_part ls_split[LS_N_SPLIT] = {
    [LS_SPLIT_FORWARD] = {"forward", "forward", LS_ROW_FORWARD},
    [LS_SPLIT_BACKWARD] = {"backward", "backward", LS_ROW_BACKWARD},
    [LS_SPLIT_OPTIMIZER] = {"optimizer", "optimizer", LS_ROW_OPTIMIZER},
    [LS_SPLIT_EXPOSED] = {"exposed_comm", "exposed communication", LS_ROW_COMM_EXPOSED},
    [LS_SPLIT_BUBBLE] = {"bubble", "pipeline bubble", LS_ROW_BUBBLE},
    [LS_SPLIT_STRAGGLER] = {"straggler", "waiting for slower workers", LS_ROW_STRAGGLER},
    [LS_SPLIT_INPUT] = {"input", "input", LS_ROW_DATA},
    [LS_SPLIT_OTHER] = {"other", "other", LS_ROW_OTHER},
};

/* Mean over the epochs that have the value; NaN when none has. */
static double epoch_mean(const report_doc *d, const json_t *epochs, const char *key)
{
    double sum = 0;
    int n = 0;
    for (size_t i = 0; i < json_array_size(epochs); i++) {
        const json_t *epoch = json_array_get(epochs, i);
        double x = json_is_object(epoch) ? report_num(&(report_doc){epoch, d->file, d->notes}, key) : NAN;
        if (isnan(x)) continue;
        sum += x;
        n++;
    }
    return n ? sum / n : NAN;
}

static ls_status read_epochs(const report_doc *d, ls_run *r)
{
    const json_t *epochs = report_array(d, "epochs");
    size_t n = json_array_size(epochs);
    r->n_update = 0;
    if (!epochs) ls_notes_add(d->notes, "%s: key epochs is missing", d->file);
    if (n > 100000) n = 100000;
    if (n) {
        r->epoch_loss = ls_alloc(n * sizeof(double));
        r->epoch_val = ls_alloc(n * sizeof(double));
        if (!r->epoch_loss || !r->epoch_val) return ls_nomem(n * sizeof(double), "epochs");
    }
    for (size_t i = 0; i < n; i++) {
        report_doc e = {json_array_get(epochs, i), d->file, d->notes};
        if (!json_is_object(e.root)) {
            ls_notes_add(d->notes, "%s: key epochs[%zu]: an object was expected", d->file, i);
            e.root = NULL;
        }
        r->epoch_loss[i] = report_num(&e, "train_loss_avg_global");
        r->epoch_val[i] = report_num(&e, "val_loss_avg_global");
        if (r->epoch_val[i] == 0) r->epoch_val[i] = NAN; /* no validation batch ran, as below */
        double updates = report_num(&e, "optimizer_steps"), rss = report_num(&e, "peak_rss_bytes_rank0");
        double cuda = report_num(&e, "max_cuda_mem_allocated_bytes_rank0"),
               most = report_num(&e, "max_cuda_mem_allocated_bytes_global");
        if (updates > 0) r->n_update += updates;
        if (!(cuda > 0) && !(most > 0)) cuda = rss; /* a run without CUDA records 0 */
        if (cuda > 0 && !(r->peak_bytes >= cuda)) r->peak_bytes = cuda;
        if (most > 0 && !(r->peak_most >= most)) r->peak_most = most;
    }
    if (r->n_update > 0) r->n_update_json = json_integer((json_int_t)r->n_update);
    r->n_epoch = (int)n;
    r->train_loss = n ? r->epoch_loss[n - 1] : NAN;
    r->epoch_time = epoch_mean(d, epochs, "epoch_wall_time_sec");
    static const char *const sampled[] = {"step_time_mean_sec", "step_time_p50_sec", "step_time_p95_sec"};
    for (int k = 0; k < 3; k++) r->sampled[k] = epoch_mean(d, epochs, sampled[k]);
    if (isnan(r->tokens_per_sec)) r->tokens_per_sec = epoch_mean(d, epochs, "tokens_per_sec_global");
    return LS_OK;
}

/* Parallel arrays with one value per epoch, no schema_version. */
static double legacy_last(const report_doc *d, const char *key, bool mean)
{
    const json_t *a = report_get(d, key);
    double sum = 0, last = NAN;
    size_t n = json_array_size(a);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(a, i);
        if (!json_is_number(v)) {
            ls_notes_add(d->notes, "%s: key %s[%zu]: a number was expected", d->file, key, i);
            return NAN;
        }
        sum += last = json_number_value(v);
    }
    return n && mean ? sum / (double)n : last;
}

static void read_legacy(const report_doc *d, ls_run *r)
{
    r->epoch_time = legacy_last(d, "train_time_per_epoch", true);
    r->tokens_per_sec = legacy_last(d, "train_throughput", true);
    r->train_loss = legacy_last(d, "train_loss_per_epoch", false);
    r->val_loss = legacy_last(d, "val_loss_per_epoch", false);
    snprintf(r->strategy, sizeof r->strategy, "older schema");
    r->legacy = true;
    const int64_t stated = report_int(d, "gpus_tested");
    r->n_stated = stated > 0 && stated <= MAX_WORLD ? (int)stated : 0;
    ls_notes_add(d->notes, "%s: older schema without schema_version: %s, and the run is left out of comparisons",
                 d->file,
                 r->n_stated ? "it does not record whether tokens/s are of one rank or of all"
                             : "the number of workers is not recorded");
}

static ls_status read_metrics(const report_doc *d, ls_run *r)
{
    if (!report_get(d, "schema_version") && report_get(d, "train_time_per_epoch")) {
        read_legacy(d, r);
        return run_read_setting(d, r);
    }
    const char *schema = report_str(d, "schema_version");
    if (!schema) ls_notes_add(d->notes, "%s: key schema_version is missing", d->file);
    else if (strcmp(schema, "2.0"))
        ls_notes_add(d->notes, "%s: key schema_version: \"%.40s\" is not known; read like \"2.0\"", d->file, schema);
    int64_t world = report_int(d, "hardware.world_size");
    if (world < 1 || world > MAX_WORLD)
        ls_notes_add(d->notes,
                     "%s: key hardware.world_size: no number of workers, so the run is left out of comparisons",
                     d->file);
    else r->world = (int)world;
    r->tokens_per_sec = report_num(d, "summary.mean_tokens_per_sec_global");
    r->wall = report_num(d, "summary.total_wall_time_sec");
    r->val_loss = report_num(d, "summary.best_val_loss");
    if (r->val_loss == 0) r->val_loss = NAN; /* the scaling study writes 0.0 when no validation batch ran */
    LS_TRY(read_epochs(d, r));
    if (isnan(r->tokens_per_sec))
        ls_notes_add(d->notes, "%s: key summary.mean_tokens_per_sec_global is missing, and no epoch has it", d->file);
    else if (r->tokens_per_sec < 0) {
        ls_notes_add(d->notes, "%s: key summary.mean_tokens_per_sec_global: %g is below zero", d->file,
                     r->tokens_per_sec);
        r->tokens_per_sec = NAN;
    }
    double batch = report_num(d, "training_config.global_batch_size"), seq = report_num(d, "training_config.seq_len");
    r->tokens_per_update = batch > 0 && seq > 0 ? batch * seq : NAN;
    r->planned_bytes = report_num(d, "lockstep.planned_bytes");
    for (int i = 0; i < LS_N_SPLIT; i++) {
        char key[64];
        snprintf(key, sizeof key, "lockstep.step_split.%s", ls_split[i].key);
        r->split[i] = report_num(d, key);
    }
    run_read_resources(d, r);
    return run_read_setting(d, r);
}

/* The last two parts of a path, without a file's ending. */
static char *short_name(const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    if (n > 5 && !strncmp(dir + n - 5, ".json", 5)) n -= 5;
    size_t at = n;
    for (int slashes = 0; at; at--) {
        if (dir[at - 1] == '/' && ++slashes == 2) break;
    }
    return ls_strndup(dir + at, n - at);
}

static ls_status read_files(const ls_run_texts *t, ls_notes *notes, ls_run *r)
{
    json_t **const parsed[LS_N_RUN_FILE] = {[LS_RUN_METRICS] = &r->metrics,
                                            [LS_RUN_LAUNCHER] = &r->launcher,
                                            [LS_RUN_PROFILE] = &r->profile,
                                            [LS_RUN_NCCL] = &r->proof.nccl};
    const ls_text *file = t->file;
    const bool alone = ls_ends_in(r->dir, ".json"); /* a metrics file, not a folder */
    for (int i = 0; i < LS_N_RUN_FILE; i++) {
        const ls_path path = ls_path_of(r->dir, ls_run_file[i]);
        if (parsed[i] && file[i].data)
            report_parse(file[i].data, file[i].n, alone ? r->dir : path.text, notes, parsed[i]);
    }
    const ls_path metrics = ls_path_of(r->dir, ls_run_file[LS_RUN_METRICS]),
                  launcher = ls_path_of(r->dir, ls_run_file[LS_RUN_LAUNCHER]);
    const report_doc d = {r->metrics, alone ? r->dir : metrics.text, notes};
    if (r->metrics) LS_TRY(read_metrics(&d, r));
    else if (!file[LS_RUN_METRICS].data)
        ls_notes_add(notes, "%s: no training_metrics.json: the run has not finished; %s shown", r->dir,
                     file[LS_RUN_STEPS].data ? "its steps are" : "what tools recorded about it is");
    if (file[LS_RUN_STEPS].data) LS_TRY(run_read_steps(file[LS_RUN_STEPS], r->dir, notes, r));
    if (file[LS_RUN_EVENTS].data) LS_TRY(run_read_events(file[LS_RUN_EVENTS], r->dir, notes, r));
    LS_TRY(run_mark_resumed(&d, t->traced, r));
    if (r->n_before) {
        r->n_warm = t->warm;
        LS_TRY(run_measure_steps(r));
    }
    if (file[LS_RUN_PIPELINE].data) LS_TRY(run_read_pipeline(file[LS_RUN_PIPELINE], r->dir, notes, r));
    if (file[LS_RUN_COMPLETE].data) run_read_complete(file[LS_RUN_COMPLETE], r->dir, notes, r);
    run_tell_waits(&d, r);
    const int64_t world = report_int(&(report_doc){r->launcher, launcher.text, notes}, "world_size");
    if (r->world && world >= 0 && world != r->world)
        ls_notes_add(notes, "%s: key world_size: %lld, but training_metrics.json has %d", launcher.text,
                     (long long)world, r->world);
    return run_read_proof(t, notes, r);
}

ls_status ls_run_read_texts(const ls_run_texts *t, const char *dir, ls_notes *notes, ls_run *out)
{
    ls_run r = {.n_warm = t->warm, .seed = -1, .profiled = t->profiled, .dir = ls_strdup(dir), .name = short_name(dir)};
    r.tokens_per_sec = r.wall = r.epoch_time = r.train_loss = r.val_loss = r.tokens_per_update = NAN;
    r.peak_bytes = r.planned_bytes = r.peak_most = r.rank_least = r.rank_most = NAN;
    r.sampled[0] = r.sampled[1] = r.sampled[2] = r.step_p95 = NAN;
    r.bleu = NAN;
    r.train_time = r.rates = (ls_estimate){.mean = NAN, .stdev = NAN, .half = NAN};
    r.step_time = r.straggler_share = r.cpu_utilisation = r.gpu_utilisation = r.tflop_per_token = NAN;
    for (int i = 0; i < LS_N_SPLIT; i++) r.split[i] = NAN;
    ls_status st = r.dir && r.name ? read_files(t, notes, &r) : ls_nomem(strlen(dir), "a path");
    if (st == LS_OK && notes->failed) st = ls_nomem(1024, "notes");
    if (st == LS_OK) *out = r;
    else ls_run_fini(&r);
    return st;
}

void ls_run_fini(ls_run *r)
{
    ls_free(r->dir);
    ls_free(r->real);
    ls_free(r->name);
    ls_free(r->setting);
    ls_free(r->step);
    ls_free(r->epoch_loss);
    ls_free(r->epoch_val);
    ls_free(r->span);
    json_decref(r->pipeline);
    json_decref(r->metrics);
    json_decref(r->launcher);
    json_decref(r->profile);
    json_decref(r->n_update_json);
    run_proof_fini(&r->proof);
    run_events_fini(&r->events);
    *r = (ls_run){0};
}
