/* resolve_checks.h - command lines and DeepSpeed JSONs that are resolved or refused, for unit tests of src/config/resolve. */
#ifndef LS_TESTS_RESOLVE_CHECKS_H
#define LS_TESTS_RESOLVE_CHECKS_H

#include "assert_text.h"
#include "config/resolve.h"
#include "core/mem.h"
#include "test_argv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ls_train_paths paths = {.train = (char *)(uintptr_t) "d/train_small.bin",
                                     .val = (char *)(uintptr_t) "d/val.bin"};

static const char r1_json[] =
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"steps_per_print\": 100,"
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.0001, \"betas\": [0.9, 0.999], \"eps\": 1e-8, "
    "\"weight_decay\": 0.01}},\"fp16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1}, \"gradient_clipping\": 1.0,"
    "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": 0.0001, "
    "\"warmup_num_steps\": 1000}},\"wall_clock_breakdown\": true}";

/* Resolves a DeepSpeed JSON (NULL: none) with a command line of blank-separated words. */
static inline ls_status resolve_with(const char *json, const char *line, const ls_train_facts *facts,
                                     ls_train_config *c)
{
    static char words[1024];
    static char *argv[TEST_ARGV_MAX];
    ls_train_options o;
    ls_ds_config ds;
    snprintf(words, sizeof words, "%s", line);
    const int argc = test_argv(words, argv);
    LS_TRY(ls_train_options_parse(argc, argv, &o));
    if (json && ls_ds_config_parse(json, strlen(json), "ds.json", &ds) != LS_OK)
        fail_msg("%s: %s", json, ls_err_words());
    ls_status st = ls_train_resolve(&o, json ? &ds : NULL, &paths, facts, c);
    if (json) ls_ds_config_fini(&ds);
    return st;
}

static inline void must(const char *json, const char *line, ls_train_config *c)
{
    if (resolve_with(json, line, NULL, c) != LS_OK)
        fail_msg("%s with %s: %s", line, json ? json : "no JSON", ls_err_words());
}

static inline void must_fail(const char *json, const char *line, ls_status st, const char *part)
{
    ls_train_config c;
    int64_t live = ls_mem_live();
    if (resolve_with(json, line, NULL, &c) != st) fail_msg("%s: '%s'", line, ls_err_words());
    if (!strstr(ls_err_words(), part)) fail_msg("%s: '%s' does not contain '%s'", line, ls_err_words(), part);
    assert_int_equal(ls_mem_live(), live);
}

static const ls_setting *setting(const ls_train_config *c, const char *name)
{
    for (int i = 0; i < c->n_setting; i++)
        if (!strcmp(c->setting[i].name, name)) return &c->setting[i];
    fail_msg("there is no setting %s", name);
    return NULL;
}

static inline void assert_source(const ls_train_config *c, const char *name, ls_source source, const char *detail)
{
    const ls_setting *s = setting(c, name);
    if (s->source != source || strcmp(s->detail, detail))
        fail_msg("%s is from source %d (%s)", name, (int)s->source, s->detail);
}

static inline bool noted(const ls_train_config *c, const char *part)
{
    return c->notes.data && strstr(c->notes.data, part);
}

static inline int clean_environment(void **state)
{
    (void)state;
    const char *const names[] = {"RANK",         "LOCAL_RANK",   "WORLD_SIZE",
                                 "PROFILE_MODE", "SLURM_JOB_ID", "SLURM_CLUSTER_NAME"};
    for (size_t i = 0; i < N_OF(names); i++) unsetenv(names[i]);
    return 0;
}

#endif
