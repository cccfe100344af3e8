/* settings.c - every resolved setting with its value and source: the list, and its two printed forms. */
#include "config/resolve_impl.h"
#include "comm/compare.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

static const char *const source_word[] = {
    [LS_FROM_DEFAULT] = "default",     [LS_FROM_CLI] = "command line",
    [LS_FROM_JSON] = "DeepSpeed JSON", [LS_FROM_MODEL] = "model",
    [LS_FROM_ENV] = "environment",     [LS_FROM_DATA] = "data",
    [LS_FROM_RULE] = "rule",           [LS_FROM_DEEPSPEED] = "DeepSpeed default",
    [LS_FROM_R2] = "preset r2",        [LS_FROM_R3] = "preset r3",
    [LS_FROM_AUTO] = "chosen",         [LS_FROM_RUN] = "run folder",
};

train_origin train_from(const ls_train_options *o, const char *flag, const char *key)
{
    if (ls_train_given(o, flag + 2)) return (train_origin){LS_FROM_CLI, flag};
    return key ? (train_origin){LS_FROM_JSON, key} : (train_origin){LS_FROM_DEFAULT, ""};
}

train_origin train_from_json(const ls_train_options *o, const char *flag, const ls_ds_config *ds, const char *key)
{
    return train_from(o, flag, ls_ds_get(ds, key) ? key : NULL);
}

train_origin train_or_deepspeed(train_origin from, const ls_ds_config *ds)
{
    return ds && from.source == LS_FROM_DEFAULT ? (train_origin){LS_FROM_DEEPSPEED, ""} : from;
}

train_origin train_rule(const char *detail)
{
    return (train_origin){LS_FROM_RULE, detail};
}

static void put(ls_train_config *c, const char *name, const char *text, bool quoted, train_origin from)
{
    int i = 0;
    while (i < c->n_setting && strcmp(c->setting[i].name, name)) i++;
    char *copy = text ? ls_strdup(text) : NULL;
    ls_setting *list = c->setting;
    if (i == c->n_setting) list = ls_realloc(list, (size_t)(i + 1) * sizeof *list);
    if (list) c->setting = list;
    if (!list || (text && !copy)) { /* a row that exists keeps its value */
        ls_free(copy);
        c->incomplete = true;
        return;
    }
    ls_setting *s = &list[i];
    ls_free(s->text);
    *s = (ls_setting){.name = name, .text = copy, .quoted = quoted, .source = from.source};
    snprintf(s->detail, sizeof s->detail, "%s", from.detail);
    if (i == c->n_setting) c->n_setting++;
}

void train_put_int(ls_train_config *c, const char *name, int64_t value, train_origin from)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    put(c, name, text, false, from);
}

void train_put_bool(ls_train_config *c, const char *name, bool value, train_origin from)
{
    put(c, name, value ? "true" : "false", false, from);
}

void train_put_real(ls_train_config *c, const char *name, double value, train_origin from)
{
    char text[32];
    put(c, name, ls_json_real(text, value), false, from);
}

void train_put_text(ls_train_config *c, const char *name, const char *value, train_origin from)
{
    put(c, name, value, true, from);
}

static ls_source source_of(const char *preset)
{
    return !strcmp(preset, "r2")     ? LS_FROM_R2
           : !strcmp(preset, "r3")   ? LS_FROM_R3
           : !strcmp(preset, "auto") ? LS_FROM_AUTO
                                     : LS_FROM_RUN;
}

void train_settings_preset(const ls_train_options *o, ls_train_config *c)
{
    for (int i = 0; o->preset && i < c->n_setting; i++) {
        ls_setting *s = &c->setting[i];
        char name[64];
        if (s->source != LS_FROM_CLI) continue;
        const char *flag = s->detail + strspn(s->detail, "-"); /* "-n", "--lr", "--model gpt2" */
        snprintf(name, sizeof name, "%.*s", (int)strcspn(flag, " "), flag);
        if (ls_train_by_preset(o, name)) s->source = source_of(o->preset);
    }
}

ls_status train_settings_check(ls_train_config *c)
{
    const bool ok = !c->incomplete && !c->notes.failed;
    c->incomplete = false; /* what could not be added is tried again by the next resolution */
    return ok ? LS_OK : ls_nomem(sizeof(ls_setting), "the list of settings");
}

ls_status train_copy(char **dst, const char *text)
{
    *dst = text ? ls_strdup(text) : NULL;
    return text && !*dst ? ls_nomem(strlen(text), "a path") : LS_OK;
}

void ls_train_config_table(const ls_train_config *c, ls_str *out)
{
    int wide = 7, deep = 5;
    for (int i = 0; i < c->n_setting; i++) {
        const int n = (int)strlen(c->setting[i].name), m = c->setting[i].text ? (int)strlen(c->setting[i].text) : 0;
        if (n > wide) wide = n;
        if (m > deep && m <= 48) deep = m; /* one long path does not widen the table */
    }
    ls_str_addf(out, "%-*s  %-*s  %s\n", wide, "setting", deep, "value", "source");
    for (int i = 0; i < c->n_setting; i++) {
        const ls_setting *s = &c->setting[i];
        ls_str_addf(out, "%-*s  %-*s  %s%s%s%s\n", wide, s->name, deep, s->text ? s->text : "none",
                    source_word[s->source], *s->detail ? " (" : "", s->detail, *s->detail ? ")" : "");
    }
}

void ls_train_config_json(const ls_train_config *c, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    for (int i = 0; i < c->n_setting; i++) {
        const ls_setting *s = &c->setting[i];
        ls_jsonw_put_open(&w, s->name, '{');
        ls_jsonw_key(&w, "value");
        if (s->quoted) ls_jsonw_str(&w, s->text);
        else ls_jsonw_raw(&w, s->text);
        ls_jsonw_members(&w, LS_KV("source", source_word[s->source]), LS_KV("from", *s->detail ? s->detail : NULL));
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
}

/* What may differ between the workers of a run. Everything else must be the same. */
static const char *const own_settings[] = {
    "device",
    "threads", /* of a host; the workers agree on the kind of device */
    /* names of files: what is in them is compared where it is read */
    "model",
    "train_data_path",
    "val_data_path",
    "tokenizer",
    "checkpoint_path",
    "deepspeed_config",
    "init_from",
    "tensorboard",
    "csv_monitor",
    /* what a worker prints and records */
    "json",
    "cluster",
    "profile_mode",
    "reference_output",
    "verbose",
    "dist_debug",
    "quiet_nccl_monitor",
};

static bool is_own(const char *name)
{
    for (size_t i = 0; i < sizeof own_settings / sizeof own_settings[0]; i++)
        if (!strcmp(own_settings[i], name)) return true;
    return false;
}

void ls_train_config_common(const ls_train_config *c, ls_str *out)
{
    char text[32];
    for (int i = 0; i < c->n_setting; i++)
        if (!is_own(c->setting[i].name)) ls_compare_add(out, c->setting[i].name, c->setting[i].text);
    ls_compare_add(out, "layer_norm_epsilon", ls_json_real(text, c->model.ln_eps));
    ls_compare_add(out, "initializer_range", ls_json_real(text, c->model.init_range));
}
