/* dsconfig.h - reads a DeepSpeed JSON: every key is used, refused or listed as without effect.
 *
 * JSON without duplicate keys, with comments (//, #, slash-star) and trailing commas as hjson has them; so are "comment" and keys that begin with _. A key that DeepSpeed does not know, at any depth,
 * is LS_E_CONFIG; the message has the nearest known key and its place. Of several problems the error has the first and their number. A known key that changes nothing here is collected in `no_effect`; an enabled feature that is not supported is
 * LS_E_UNSUPPORTED. "auto" is as if the key were missing, but in a block of a precision it means the default of the device; 5e8 is a whole number. The keys are those of DeepSpeed 0.18.3. */
#ifndef LS_CONFIG_DSCONFIG_H
#define LS_CONFIG_DSCONFIG_H

#include "core/err.h"
#include "core/json.h"
#include "core/str.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct ls_ds_config {
    char *path;       /* as given; NULL when read from text */
    ls_str text;      /* the file's bytes */
    char sha256[65];  /* of them */
    json_t *root;     /* all keys and values are valid */
    ls_str no_effect; /* "key, block.key": known keys that change nothing here, in file order */
} ls_ds_config;

/* The value of a key ("optimizer.params.lr"); NULL if it is missing, null or "auto", or ds is NULL. bfloat16 is read as bf16, a boolean
 * zero_optimization as a block with its stage, prefetch_bucket_size with its prefix stage3_, and fp8.fp8_format as fp8.format. */
const json_t *ls_ds_get(const ls_ds_config *ds, const char *key);
/* Values with a default. */
bool ls_ds_bool(const ls_ds_config *ds, const char *key, bool missing);
int64_t ls_ds_int(const ls_ds_config *ds, const char *key, int64_t missing);
double ls_ds_real(const ls_ds_config *ds, const char *key, double missing);
const char *ls_ds_text(const ls_ds_config *ds, const char *key, const char *missing);

/* Whether the value is the word "auto". */
bool ls_ds_auto(const ls_ds_config *ds, const char *key);

/* The precision whose block is enabled, of several the first of "fp8", "fp16" and "bf16"; NULL: none. */
const char *ls_ds_precision(const ls_ds_config *ds);

/* The key that leaves the precision open ("enabled": "auto"), of several the first of fp8, fp16 and bf16; NULL: none. */
const char *ls_ds_precision_open(const ls_ds_config *ds);

/* Whether the block of that precision has "enabled": false; "auto" disables nothing. */
bool ls_ds_disables(const ls_ds_config *ds, const char *precision);

/* Whether a run in this precision ("fp32", "bf16" ...) overrides what "enabled" of the block fp8, fp16 or bf16 says. */
bool ls_ds_overridden(const ls_ds_config *ds, const char *block, const char *precision);

/* Whether a run in bf16 or fp8 skips updates whose gradients are not finite: bf16.check_grad_overflow of a block that is enabled, or "auto". */
bool ls_ds_checks_overflow(const ls_ds_config *ds);
/* The name of a key, or its other name if the file has that. */
const char *ls_ds_name_given(const ls_ds_config *ds, const char *key);

enum { LS_DS_IDLE_MAX = 16 };
typedef struct ls_ds_idle {
    const char *key, *why; /* static */
} ls_ds_idle;
/* The keys of the blocks fp16, bf16 and fp8 that a run in this precision ("fp32", "bf16" ...) does not use; returns their number. */
int ls_ds_idle_keys(const ls_ds_config *ds, const char *precision, ls_ds_idle out[LS_DS_IDLE_MAX]);

/* LS_E_IO (no such file), LS_E_CONFIG (not JSON, duplicate key, bad value, unknown key), LS_E_UNSUPPORTED. On failure nothing is owed. */
ls_status ls_ds_config_load(const char *path, ls_ds_config *out);
ls_status ls_ds_config_parse(const char *text, size_t n, const char *what, ls_ds_config *out);
/* Lists every key of a file as honoured, ignored or refused, with the flag of `lockstep train` that does the same. precision: of the run;
 * NULL: as the file says. cpu: it computes on the CPU. later: why the
 * values were refused together with options, model and machine, which are checked elsewhere; NULL: they were not. LS_E_IO, LS_E_CONFIG
 * (not JSON). */
ls_status ls_ds_config_explain(const char *path, const char *precision, bool cpu, const char *later, ls_str *out);
void ls_ds_config_fini(ls_ds_config *c); /* takes a zeroed one */

#endif
