/* same_run.c - workers that were started separately compare what decides the weights, before the first step. */
#include "comm/compare.h"
#include "train/train_impl.h"

#include <inttypes.h>
#include <stdio.h>

static ls_status compare(const ls_trainer *t, ls_str *values, const char *advice, const char *site)
{
    const ls_status st = ls_comm_compare(t->comm, values, advice, site);
    ls_str_fini(values);
    return st;
}

ls_status train_compare_settings(const ls_trainer *t)
{
    ls_str s = {0};
    if (ls_comm_size(t->comm) == 1) return LS_OK;
    ls_compare_add(&s, "the version of lockstep", LS_VERSION);
    ls_train_config_common(t->cfg, &s);
    return compare(t, &s, "start every worker with the same program, options and files", LS_SITE);
}

ls_status train_compare_kernels(const ls_trainer *t)
{
    ls_str s = {0};
    char words[LS_COMPUTE_WORDS];
    if (ls_comm_size(t->comm) == 1) return LS_OK;
    ls_compare_add(&s, "the kernel family", ls_compute_family(&t->compute, words));
    return compare(t, &s,
                   t->compute.device ? "use GPUs of one kind with the same libraries"
                                     : "set LS_SIMD and LS_GEMM to kernels that the CPUs of all hosts have",
                   LS_SITE);
}

static void add_tokens(ls_str *s, const char *what, const ls_tokens *d)
{
    char text[120];
    snprintf(text, sizeof text, "%lld tokens in %lld sequences, blend %lld, hash %016" PRIx64, (long long)d->n_token,
             (long long)d->n_seq, (long long)ls_tokens_blend_id(d), ls_tokens_hash(d));
    ls_compare_add(s, what, d->n_source ? text : NULL);
}

ls_status train_compare_data(const ls_trainer *t)
{
    ls_str s = {0};
    if (ls_comm_size(t->comm) == 1) return LS_OK;
    add_tokens(&s, "the training data", &t->train);
    add_tokens(&s, "the validation data", &t->val);
    return compare(t, &s, "every worker needs the same token files; copy them to every host", LS_SITE);
}

ls_status train_compare_checkpoint(const ls_trainer *t, const char *name)
{
    ls_str s = {0};
    if (ls_comm_size(t->comm) == 1) return LS_OK;
    ls_compare_add(&s, "the newest checkpoint", name);
    return compare(t, &s, "--resume needs one --checkpoint_path that every host can read", LS_SITE);
}
