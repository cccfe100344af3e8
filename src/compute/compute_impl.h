/* compute_impl.h - inside src/compute: the operations that a backend must have, and its plugins. */
#ifndef LS_COMPUTE_COMPUTE_IMPL_H
#define LS_COMPUTE_COMPUTE_IMPL_H

#include "compute/plugin.h"

/* Every operation that is not optional. */
/* clang-format off */
#define COMPUTE_OPS(X)                                                                                                 \
    X(embed_fwd) X(embed_bwd) X(layernorm_fwd) X(add_layernorm_fwd) X(layernorm_bwd) X(layernorm_again)                \
    X(linear_fwd) X(linear_bwd) X(gelu_fwd) X(gelu_bwd) X(add_fwd) X(drop_bwd)                                         \
    X(attention_fwd) X(attention_bwd) X(attention_cached) X(classifier) X(logits) X(pack) X(unpack) X(linear_packed)   \
    X(adamw) X(narrow) X(sumsq) X(decide) X(sum) X(add) X(zero) X(copy) X(hash)
/* clang-format on */

/* NULL if the table is complete, else the name of the first missing operation. */
const char *compute_missing_op(const ls_compute_ops *ops);

/* The device that the plugin would open. *is_loaded: whether the plugin itself was loaded, also if the call fails. */
ls_status compute_look_plugin(const char *name, const ls_compute_open_opts *o, bool *is_loaded, ls_device_info *out);

#endif
