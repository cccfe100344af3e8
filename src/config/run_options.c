#include "config/run_options.h"
#include "config/resolve_impl.h"
#include "ckpt/checkpoint.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "data/sources.h"
#include "parallel/schedule.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 1
#define BYTES   ".bytes"

/* What a resumed run does not take over, also if the file has it: where and how this process runs. Then sizes that are written as resolved. */
static const char left_out[] = "checkpoint_path|resume|preset|minutes|lines|limit_docs|dedup|print_config|json|"
                               "profile|profile_mode|profile_spans|local_rank|num_workers|serve|serve_address|attempt";
static const char sizes[] =
    "grad_accum_steps|train_micro_batch_size_per_gpu|micro_batch_size_per_gpu|global_batch_size";
static const char restarts[] = "max_restarts|elastic|hot_spare"; /* left out, too, but recorded */
static const char sources[] = "data|train_data_path|val_data_path";
static const char paths[] = "deepspeed_config|model|init_from|schedule";
static const char made[] = "tensorboard|workdir"; /* folders that the run makes */

const char *train_deepspeed_folder(const ls_train_options *o)
{
    const bool own = o->deepspeed_config && !strcmp(ls_path_base(o->deepspeed_config), LS_RUN_DEEPSPEED);
    return own ? o->deepspeed_folder : NULL;
}

/* A name that the option knows, whatever files exist here. */
static bool is_known(const char *option, const char *text)
{
    return (!strcmp(option, "model") && ls_model_config_is_preset(text)) ||
           (!strcmp(option, "schedule") && ls_schedule_is_builtin(text));
}

/* Appends the absolute path of an option's text; appends nothing if it is no path, or has none. */
static ls_status add_absolute(const char *option, const char *text, ls_str *out)
{
    char path[PATH_MAX];
    if (ls_one_of(sources, option, false)) return ls_sources_absolute(text, out);
    if (ls_one_of(made, option, false) && *text != '/' && realpath(".", path)) ls_str_addf(out, "%s/%s", path, text);
    else if (ls_one_of(paths, option, false) && !is_known(option, text) && realpath(text, path)) ls_str_add(out, path);
    return out->failed ? ls_nomem(out->len, "a path") : LS_OK;
}

/* A path that is not UTF-8 also in hexadecimal digits, as <name>.bytes: JSON cannot have its bytes. */
static void put_text(ls_jsonw *w, const char *name, const char *text)
{
    ls_str whole = {0}, hex = {0};
    uint32_t code;
    int n = 1;
    const bool found = add_absolute(name, text, &whole) == LS_OK && whole.len;
    if (found) text = whole.data;
    ls_jsonw_put_str(w, name, text);
    for (const char *c = text; *c && n; c += n) n = ls_utf8_decode((const unsigned char *)c, 4, &code);
    for (const char *c = text; *c && !n; c++) ls_str_addf(&hex, "%02x", (unsigned char)*c);
    char key[64];
    snprintf(key, sizeof key, "%s" BYTES, name);
    if (hex.len && !hex.failed) ls_jsonw_put_str(w, key, hex.data);
    ls_str_fini(&hex);
    if (!found) ls_err_clear();
    ls_str_fini(&whole);
}

static void put(ls_jsonw *w, const ls_opt *row, const void *at)
{
    const ls_opt_list *l = at;
    switch (row->kind) {
    case LS_OPT_SWITCH: ls_jsonw_put_bool(w, row->name, *(const bool *)at); break;
    case LS_OPT_INT:
        if (row->word && *(const int64_t *)at == -1) ls_jsonw_put_str(w, row->name, row->word);
        else ls_jsonw_put_int(w, row->name, *(const int64_t *)at);
        break;
    case LS_OPT_REAL: ls_jsonw_put_real(w, row->name, *(const double *)at); break;
    case LS_OPT_WORDS: break; /* train has none */
    case LS_OPT_STR:
    case LS_OPT_MAYBE:
    case LS_OPT_CHOICE: put_text(w, row->name, *(const char *const *)at); break;
    case LS_OPT_LIST:
        ls_jsonw_put_open(w, row->name, '[');
        for (int i = 0; i < l->n; i++) ls_jsonw_str(w, l->word[i]);
        ls_jsonw_close(w);
        break;
    }
}

/* "--max_restarts 3 --elastic 2:4". A worker does not know the options of `lockstep launch`. */
static void put_restarts(ls_jsonw *w, const ls_train_options *o)
{
    ls_str s = {0};
    for (size_t i = 0; i < ls_train_n_opts; i++) {
        const ls_opt *row = &ls_train_opts[i];
        const void *at = (const char *)o + row->offset;
        if (!o->given[i] || !ls_one_of(restarts, row->name, false)) continue;
        if (row->kind == LS_OPT_STR) ls_str_addf(&s, " --%s %s", row->name, *(const char *const *)at);
        else if (*(const int64_t *)at) ls_str_addf(&s, " --%s %lld", row->name, (long long)*(const int64_t *)at);
    }
    if (!s.len && getenv("LOCKSTEP_ATTEMPT")) ls_str_add(&s, " lockstep launch --max_restarts");
    if (s.len && !s.failed) ls_jsonw_put_str(w, "restarts", s.data + 1);
    ls_str_fini(&s);
}

/* "--tensorboard tb": what --resume wants typed again, because files go outside the run folder (config/resolve_monitor.c). */
static void put_again(ls_jsonw *w, const ls_train_options *o, const ls_train_config *c)
{
    const bool json = train_is_outside(o, c->csv_monitor) || (!o->tensorboard && train_is_outside(o, c->tensorboard));
    ls_str s = {0};
    if (train_is_outside(o, o->tensorboard)) ls_str_addf(&s, " --tensorboard %s", ls_quoted(o->tensorboard).text);
    if (train_is_outside(o, o->workdir)) ls_str_addf(&s, " --workdir %s", ls_quoted(o->workdir).text);
    if (json && o->deepspeed_config) ls_str_addf(&s, " --deepspeed_config %s", ls_quoted(o->deepspeed_config).text);
    if (s.len && !s.failed) ls_jsonw_put_str(w, "again", s.data + 1);
    ls_str_fini(&s);
}

void ls_train_fp8_write(const ls_fp8_opts *o, ls_jsonw *w)
{
    if (!o->on) return;
    ls_jsonw_members(w, LS_KV("fp8_format", ls_fp8_format_word(o)), LS_KV("fp8_amax_history_len", o->history),
                     LS_KV("fp8_margin", o->margin));
}

static void put_computed(ls_jsonw *w, const ls_train_config *c)
{
    char kernels[LS_COMPUTE_WORDS] = "";
    if (!strcmp(c->device, "cpu")) ls_compute_cpu_family(c->compute, c->dtype, kernels);
    ls_jsonw_put_open(w, "computed", '{');
    ls_jsonw_members(w, LS_KV("precision", c->precision), LS_KV("device", c->device));
    if (*kernels) ls_jsonw_put_str(w, "kernels", kernels);
    ls_train_fp8_write(&c->fp8, w);
    ls_jsonw_close(w);
}

void ls_run_options_write(const ls_train_options *o, const ls_train_config *c, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_int(&w, "version", VERSION);
    ls_jsonw_put_open(&w, "options", '{');
    for (size_t i = 0; i < ls_train_n_opts; i++) {
        const ls_opt *row = &ls_train_opts[i];
        if (!o->given[i] || !row->help || ls_one_of(left_out, row->name, false) || ls_one_of(sizes, row->name, false) ||
            ls_one_of(restarts, row->name, false))
            continue;
        put(&w, row, (const char *)o + row->offset);
    }
    char here[PATH_MAX];
    const char *folder = train_deepspeed_folder(o);
    if (o->deepspeed_config && !folder) folder = realpath(".", here);
    if (folder) put_text(&w, "deepspeed_folder", folder);
    ls_jsonw_members(&w, LS_KV("micro_batch_size_per_gpu", c->micro_batch),
                     LS_KV("global_batch_size", c->global_batch));
    ls_jsonw_close(&w);
    put_computed(&w, c);
    put_restarts(&w, o);
    put_again(&w, o, c);
    ls_jsonw_close(&w);
}

/* ---- reading ---- */

/* One option as words. Numbers have the form of the writer, which reads back the same. */
static ls_status add(const char *name, const json_t *value, ls_argv *out)
{
    char text[32];
    const json_t *word;
    size_t i;
    switch (json_typeof(value)) {
    case JSON_TRUE: return ls_argv_addf(out, "--%s", name);
    case JSON_FALSE: return ls_argv_addf(out, "--%s=false", name);
    case JSON_INTEGER: return ls_argv_addf(out, "--%s=%lld", name, (long long)json_integer_value(value));
    case JSON_REAL: return ls_argv_addf(out, "--%s=%s", name, ls_json_real(text, json_real_value(value)));
    case JSON_STRING: return ls_argv_addf(out, "--%s=%s", name, json_string_value(value));
    case JSON_ARRAY:
        LS_TRY(ls_argv_addf(out, "--%s", name));
        json_array_foreach(value, i, word)
        {
            const char *w = json_string_value(word);
            if (!w || *w == '-') return ls_fail(LS_E_FORMAT, LS_RUN_OPTIONS ": a word of %s is no value", name);
            LS_TRY(ls_argv_add(out, w));
        }
        return LS_OK;
    default:
        return ls_fail(LS_E_FORMAT, LS_RUN_OPTIONS ": option %s is neither text, a number, a boolean nor a list", name);
    }
}

/* --data of a run that prepared its own, after the folder was moved. */
static ls_status add_data(const char *run_dir, const json_t *value, ls_argv *out)
{
    const ls_path own = ls_path_of(run_dir, "data");
    const char *text = json_string_value(value);
    const bool moved = text && !ls_fs_exists(text) && ls_fs_is_dir(own.text) && !strcmp(ls_path_base(text), "data");
    return moved ? ls_argv_addf(out, "--data=%s", own.text) : add("data", value, out);
}

/* The copy that the run made; runs of older versions have none. */
static ls_status add_deepspeed(const char *run_dir, const json_t *value, ls_argv *out)
{
    const ls_path own = ls_path_of(run_dir, LS_RUN_DEEPSPEED);
    return ls_fs_is_file(own.text) ? ls_argv_addf(out, "--deepspeed_config=%s", own.text)
                                   : add("deepspeed_config", value, out);
}

/* A recorded model that a run replaces by that of its checkpoints: it does not exist, or is a checkpoint or run folder, whose checkpoints come and go. */
static bool is_gone(const char *model)
{
    return !ls_fs_exists(model) || ls_ckpt_is(model) ||
           (ls_fs_is_dir(model) && !ls_fs_exists(ls_path_of(model, "config.json").text));
}

/* Puts the bytes of paths in place of their text. */
static ls_status take_bytes(json_t *options)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(options, next, key, value)
    {
        char name[64], path[PATH_MAX];
        const char *hex = json_string_value(value);
        size_t n = strlen(key), k = 0;
        unsigned byte;
        if (n <= strlen(BYTES) || n >= sizeof name || strcmp(key + n - strlen(BYTES), BYTES) != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)(n - strlen(BYTES)), key);
        while (hex && k + 1 < sizeof path && sscanf(hex + 2 * k, "%2x", &byte) == 1 && byte) path[k++] = (char)byte;
        if (!hex || strlen(hex) != 2 * k)
            return ls_fail(LS_E_FORMAT, LS_RUN_OPTIONS ": %s has no bytes of a path", key);
        if (json_object_set_new_nocheck(options, name, json_stringn_nocheck(path, k)))
            return ls_nomem(k, "an option of the run");
        json_object_del(options, key);
    }
    return LS_OK;
}

static ls_status add_all(const char *run_dir, const char *file, bool launched, bool has_checkpoint, json_t *options,
                         ls_argv *out)
{
    const char *name;
    json_t *value;
    if (!json_is_object(options)) return ls_fail(LS_E_FORMAT, "%s: there is no object \"options\"", file);
    LS_TRY(take_bytes(options));
    const char *model = json_string_value(json_object_get(options, "model"));
    const bool gone = model && !ls_model_config_is_preset(model) && is_gone(model);
    const bool weights = has_checkpoint && (gone || json_object_get(options, "init_from"));
    json_object_foreach(options, name, value)
    {
        const ls_opt *row = &ls_train_opts[ls_opt_row(ls_train_opts, ls_train_n_opts, name) % ls_train_n_opts];
        if (strcmp(row->name, name) != 0 || (json_is_array(value) && row->kind != LS_OPT_LIST))
            return ls_fail(LS_E_FORMAT, "%s: there is no option %s that has this value", file, name);
        const char *real = row->of ? row->of : name;
        if ((launched && !strcmp(real, "n")) || ls_one_of(left_out, real, false) || ls_one_of(restarts, real, false))
            continue;
        if (weights && (!strcmp(name, "init_from") || !strcmp(name, "model"))) continue;
        LS_TRY(!strcmp(name, "data")               ? add_data(run_dir, value, out)
               : !strcmp(name, "deepspeed_config") ? add_deepspeed(run_dir, value, out)
                                                   : add(name, value, out));
    }
    return weights ? ls_argv_addf(out, "--model=%s", run_dir) : LS_OK; /* which checkpoint it is may change */
}

static ls_status check_version(const char *file, const json_t *root)
{
    const json_t *version = json_object_get(root, "version");
    if (!json_is_integer(version)) return ls_fail(LS_E_FORMAT, "%s: there is no number \"version\"", file);
    if (json_integer_value(version) == VERSION) return LS_OK;
    return ls_fail(
        LS_E_FORMAT,
        "%s: version %lld is not supported (this program reads version %d); resume the run with the version of "
        "lockstep that wrote it",
        file, (long long)json_integer_value(version), VERSION);
}

/* The precision is needed where the file does not tell it (config/resolve_device.c). */
ls_status ls_run_options_damaged(const char *run_dir)
{
    char words[512];
    const ls_path file = ls_path_of(run_dir, LS_RUN_OPTIONS);
    snprintf(words, sizeof words, "%.500s", ls_err_words());
    const bool named = strstr(words, LS_RUN_OPTIONS);
    return ls_fail(LS_E_FORMAT,
                   "%s%s%s; the file is damaged: give train the options of the run and its --precision, with "
                   "--checkpoint_path %s --resume",
                   named ? "" : file.text, named ? "" : ": ", words, run_dir);
}

ls_status ls_run_options_read(const char *run_dir, bool launched, ls_argv *out)
{
    const ls_path file = ls_path_of(run_dir, LS_RUN_OPTIONS);
    char *checkpoint = NULL;
    json_t *root = NULL;
    if (!ls_fs_is_dir(run_dir)) return ls_fail(LS_E_IO, "--resume %s: no such run folder", run_dir);
    if (ls_ckpt_is(run_dir))
        return ls_fail(LS_E_CONFIG,
                       "--resume %s is a checkpoint, not a run folder; use --resume with the folder that contains it",
                       run_dir);
    if (!ls_fs_exists(file.text))
        return ls_fail(
            LS_E_IO,
            "--resume %s: the folder has no %s (it is not a run folder, or of an older version); give the options of "
            "the run, with --checkpoint_path %s --resume",
            run_dir, LS_RUN_OPTIONS, run_dir);
    LS_TRY(ls_ckpt_any(run_dir, &checkpoint));
    ls_status st = ls_json_load(file.text, &root);
    if (st == LS_OK) st = check_version(file.text, root);
    const bool other = st != LS_OK && json_is_integer(json_object_get(root, "version"));
    if (st == LS_OK)
        st = add_all(run_dir, file.text, launched, checkpoint != NULL, json_object_get(root, "options"), out);
    ls_free(checkpoint);
    json_decref(root);
    return st == LS_E_FORMAT && !other ? ls_run_options_damaged(run_dir) : st;
}

/* The word of the NULL-terminated list that a member is; NULL: none, or another one. */
static const char *get_word(const json_t *o, const char *key, const char *const *list)
{
    const char *text = json_string_value(json_object_get(o, key));
    while (text && *list && strcmp(*list, text)) list++;
    return text ? *list : NULL;
}

static bool get_number(const json_t *o, const char *key, int least, int most, int *out)
{
    const json_int_t v = json_integer_value(json_object_get(o, key));
    *out = (int)v;
    return json_is_integer(json_object_get(o, key)) && v >= least && v <= most;
}

/* Switches that change how a GPU computes in a precision. */
static void get_switches(const json_t *options, ls_run_computed *out)
{
    const bool cuda = !strcmp(out->device, "cuda"), fp32 = !strcmp(out->precision, "fp32"),
               fp16 = !strcmp(out->precision, "fp16");
    out->tf32 = cuda && fp32 && json_is_true(json_object_get(options, "tf32"));
    out->stochastic = cuda && !fp32 && !fp16 && json_is_true(json_object_get(options, "stochastic_rounding"));
}

/* Runs of earlier versions have no such member. */
static ls_status get_computed(const char *file, const json_t *root, ls_run_computed *out)
{
    static const char *const device[] = {"cpu", "cuda", NULL}, *const format[] = {"e4m3", "hybrid", NULL};
    const json_t *o = json_object_get(root, "computed");
    const char *wrong = NULL, *kernels = json_string_value(json_object_get(o, "kernels"));
    if (!o) return LS_OK;
    snprintf(out->kernels, sizeof out->kernels, "%s", kernels ? kernels : "");
    out->precision = ls_precision_named(json_string_value(json_object_get(o, "precision")));
    out->device = get_word(o, "device", device);
    if (!out->precision) wrong = "precision";
    else if (!out->device) wrong = "device";
    else if (!strcmp(out->precision, "fp8")) {
        out->fp8_format = get_word(o, "fp8_format", format);
        if (!out->fp8_format) wrong = "fp8_format";
        else if (!get_number(o, "fp8_amax_history_len", 1, LS_FP8_HISTORY, &out->fp8_history))
            wrong = "fp8_amax_history_len";
        else if (!get_number(o, "fp8_margin", 0, LS_FP8_MARGIN, &out->fp8_margin)) wrong = "fp8_margin";
    }
    if (!wrong) {
        get_switches(json_object_get(root, "options"), out);
        return LS_OK;
    }
    return ls_fail(LS_E_FORMAT, "%s: \"computed\" has no \"%s\", or one that this program does not know", file, wrong);
}

/* The file of a run that has steps was deleted. */
static ls_status check_missing(const char *run_dir, const char *file)
{
    char *checkpoint = NULL;
    LS_TRY(ls_ckpt_latest(run_dir, &checkpoint));
    const bool has_steps = checkpoint != NULL;
    ls_free(checkpoint);
    return has_steps ? ls_fail(LS_E_IO, "%s: no such file", file) : LS_OK;
}

ls_status ls_run_options_computed(const char *run_dir, ls_run_computed *out)
{
    const ls_path file = ls_path_of(run_dir, LS_RUN_OPTIONS);
    const bool exists = ls_fs_exists(file.text);
    json_t *root = NULL;
    *out = (ls_run_computed){0};
    ls_status st = exists ? ls_json_load(file.text, &root) : check_missing(run_dir, file.text);
    if (root) st = check_version(file.text, root);
    const bool other = st != LS_OK && json_is_integer(json_object_get(root, "version"));
    if (root && st == LS_OK) st = get_computed(file.text, root, out);
    json_decref(root);
    if (st == LS_OK || other) return st;
    *out = (ls_run_computed){.damaged = exists};
    snprintf(out->lost, sizeof out->lost, "%s", ls_err_words());
    ls_err_clear();
    return LS_OK;
}

void ls_run_options_typed(const char *run_dir, const char *member, ls_str *out)
{
    const ls_path file = ls_path_of(run_dir, LS_RUN_OPTIONS);
    json_t *root = NULL;
    if (!ls_fs_exists(file.text)) return;
    if (ls_json_load(file.text, &root) == LS_OK && json_is_string(json_object_get(root, member)))
        ls_str_addf(out, " %s", json_string_value(json_object_get(root, member)));
    ls_err_clear();
    json_decref(root);
}
