/* Any bytes as a DeepSpeed JSON and as config.json of a model: a result or an error message, never a crash or a leak. Accepted
 * configurations satisfy what the headers document. */
#include "fuzz.h"
#include "model/config.h"
#include "config/resolve.h"
#include "core/mem.h"

#include <string.h>

static void model(const char *text, size_t n)
{
    json_t *root = NULL;
    ls_model_config c, again;
    if (ls_json_parse(text, n, "fuzz", &root) != LS_OK) return;
    if (ls_model_config_from_json(root, "fuzz", &c) == LS_OK) {
        ls_str s = {0};
        must(ls_model_config_check(&c) == LS_OK && ls_model_n_param(&c) > 0);
        ls_model_config_write(&c, &s);
        json_t *back = NULL;
        must(ls_json_parse(s.data, s.len, "again", &back) == LS_OK);
        must(ls_model_config_from_json(back, "again", &again) == LS_OK);
        must(ls_model_n_param(&again) == ls_model_n_param(&c) && again.variant == c.variant && again.gelu == c.gelu);
        json_decref(back);
        ls_str_fini(&s);
    }
    json_decref(root);
}

static void deepspeed(const char *text, size_t n)
{
    ls_ds_config ds;
    ls_train_options o;
    ls_train_config c;
    char train[] = "t.bin", flag[] = "--precision", fp32[] = "fp32";
    char *argv[] = {flag, fp32};
    const ls_train_paths paths = {.train = train};
    if (ls_ds_config_parse(text, n, "fuzz", &ds) != LS_OK) return;
    const int64_t stage = ls_ds_int(&ds, "zero_optimization.stage", 0);
    must(stage >= 0 && stage <= 3);
    must(!ls_ds_bool(&ds, "fp16.enabled", false) || !ls_ds_bool(&ds, "bf16.enabled", false));
    must(ls_train_options_parse(2, argv, &o) == LS_OK);
    if (ls_train_resolve(&o, &ds, &paths, NULL, &c) == LS_OK) {
        must(c.micro_batch > 0 && c.grad_accum > 0 && c.global_batch == (int64_t)c.micro_batch * c.grad_accum);
        if (ls_train_config_fit(&c, 1000000, 10) == LS_OK) must(c.total_steps > 0);
        for (int64_t k = 1; k < 2000; k = 3 * k) must(ls_lr_at(&c.lr, k) == ls_lr_at(&c.lr, k)); /* not NaN */
        ls_train_config_fini(&c);
    }
    ls_ds_config_fini(&ds);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int64_t live = ls_mem_live();
    model((const char *)data, n);
    deepspeed((const char *)data, n);
    must(ls_mem_live() == live);
    return 0;
}
