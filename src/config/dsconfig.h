/* dsconfig.h - reads a DeepSpeed JSON: every key is used, refused or listed as without effect.
 *
 * Strict JSON without duplicate keys. A key that DeepSpeed does not know, at any depth, is LS_E_CONFIG; the message has the nearest known
 * key and its place. A known key that changes nothing here is collected in `no_effect`; an enabled feature that is not supported is
 * LS_E_UNSUPPORTED. "auto" in the strict blocks means the default; 5e8 is a whole number. Missing keys have the defaults of DeepSpeed
 * 0.18.3; `given` flags record which keys were present. */
#ifndef LS_CONFIG_DSCONFIG_H
#define LS_CONFIG_DSCONFIG_H

#include "core/err.h"
#include "core/json.h"
#include "config/lr.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct ls_ds_optimizer {
    bool given;
    char type[16]; /* "Adam" or "AdamW" */
    bool lr_given;
    double lr;           /* 1e-3 */
    double beta1, beta2; /* 0.9, 0.999 */
    double eps;          /* 1e-8 */
    double weight_decay; /* 0.0 */
    bool betas_given, eps_given, weight_decay_given;
    bool bias_correction; /* true */
    bool adam_w_mode;     /* true */
    bool coupled;         /* Adam with adam_w_mode false: weight decay is added to the gradient */
} ls_ds_optimizer;

typedef struct ls_ds_fp16 {
    bool given, enabled, consecutive_hysteresis, master_weights_and_grads;
    double loss_scale; /* 0 = dynamic */
    int64_t initial_scale_power, loss_scale_window, hysteresis;
    double min_loss_scale;
} ls_ds_fp16;

typedef struct ls_ds_bf16 {
    bool enabled, check_grad_overflow, master_weights_and_grads, optimizer_states;
} ls_ds_bf16;

typedef struct ls_ds_zero {
    bool given;
    int64_t stage;                                                           /* 0..3 */
    int64_t reduce_bucket_size, allgather_bucket_size, prefetch_bucket_size; /* elements */
    bool reduce_bucket_given, allgather_bucket_given, prefetch_bucket_given;
} ls_ds_zero;

typedef struct ls_ds_config {
    char *path;      /* as given; NULL when read from text */
    char sha256[65]; /* of the file's bytes */

    /* docs/REFERENCES.md#deepspeed-json; 0 = not given */
    int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;

    ls_ds_optimizer optimizer;
    bool scheduler_given;
    bool scheduler_max_given; /* WarmupLR without warmup_max_lr takes the optimizer's rate */
    ls_lr_schedule scheduler; /* base is 0 here: resolve fills it */
    ls_ds_fp16 fp16;
    ls_ds_bf16 bf16;
    bool precision_auto; /* "enabled" of fp16 or bf16 is "auto": the default of the device */
    ls_ds_zero zero;

    bool gradient_clipping_given;
    double gradient_clipping;                             /* 0.0 = off */
    char grad_accum_dtype[8], communication_data_type[8]; /* "" = null */
    bool prescale_gradients;
    double gradient_predivide_factor;
    bool wall_clock_breakdown_given, wall_clock_breakdown;
    ls_str no_effect; /* "key, block.key": known keys that change nothing here, in file order */
} ls_ds_config;

/* LS_E_IO (no such file), LS_E_CONFIG (not JSON, duplicate key, bad value, unknown key), LS_E_UNSUPPORTED. On failure nothing is owed. */
ls_status ls_ds_config_load(const char *path, ls_ds_config *out);
ls_status ls_ds_config_parse(const char *text, size_t n, const char *what, ls_ds_config *out);
void ls_ds_config_fini(ls_ds_config *c); /* takes a zeroed one */

#endif
