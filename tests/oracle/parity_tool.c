/* parity_tool.c - the loss and all gradients of a model for the first sequences of a token file, for a comparison with PyTorch.
 *
 *   oracle_parity_tool FOLDER TOKENS BATCH LENGTH MICRO_BATCHES COMPUTE OUT.safetensors
 *
 * FOLDER is in the format of Hugging Face (config.json, model.safetensors). Micro-batch g takes BATCH sequences of the file from number
 * g * BATCH on; with a mask beside the file the sequences are its pairs (data/loader.h). Gradients are those of the mean loss over all micro-batches, summed as in a training step. The loss is printed as JSON.
 * The dropout rates of the folder are used: set them to 0 for a comparison. */
#include "model_fixture.h"

#include "core/str.h"
#include "data/loader.h"
#include "st_write.h"
#include "ckpt/hf.h"
#include "ckpt/safetensors.h"

#include <stdio.h>

static ls_status load(fixture *f, const ls_tokens *data, int micro)
{
    for (int64_t b = 0; b < f->B; b++)
        LS_TRY(ls_tokens_sequence(data, micro * f->B + b, f->ids + b * f->T, f->target + b * f->T));
    return LS_OK;
}

static ls_status run_micros(fixture *f, const ls_tokens *data, int n_micro, double *loss)
{
    const ls_hooks hooks = {.ctx = f->tree, .grad_ready = fixture_ready};
    double sum = 0;
    int64_t counted = 0, n_target = 0;
    for (int micro = 0; micro < n_micro; micro++) {
        LS_TRY(load(f, data, micro));
        n_target += ls_count_targets(f->target, f->B * f->T);
    }
    for (int micro = 0; micro < n_micro; micro++) {
        LS_TRY(load(f, data, micro));
        ls_micro mb = {
            .ids = f->ids, .target = f->target, .B = f->B, .T = f->T, .train = true, .dloss = 1.0 / (double)n_target};
        ls_gradtree_begin(f->tree, micro);
        LS_TRY(ls_walk(f->model, f->acts, &mb, &hooks, LS_FWD, 0, f->model->n_unit));
        LS_TRY(ls_walk(f->model, f->acts, &mb, &hooks, LS_BWD, 0, f->model->n_unit));
        sum += mb.loss_sum;
        counted += mb.n_counted;
    }
    *loss = sum / (double)counted;
    return fixture_fold_tied(f->model);
}

static ls_status write_gradients(const fixture *f, const char *path)
{
    const ls_model *m = f->model;
    const ls_dtype dt = f->compute.ops->dtype;
    int64_t n = 0;
    ls_st_tensor *t = ls_alloc((size_t)m->n_unit * LS_UNIT_MAX_TENSOR * sizeof *t);
    if (!t) return ls_nomem((size_t)m->n_unit * LS_UNIT_MAX_TENSOR * sizeof *t, "the table of gradients");
    for (int u = 0; u < m->n_unit; u++) {
        for (int k = 0; k < m->unit[u].n_tensor; k++) {
            const ls_tensor *x = &m->unit[u].tensor[k];
            t[n++] = (ls_st_tensor){.name = x->name,
                                    .dt = dt,
                                    .n_dim = x->n_dim,
                                    .dim = {x->dim[0], x->dim[1]},
                                    .data = ls_at(&f->compute, m->unit[u].grad, x->offset),
                                    .nbytes = (size_t)x->n * ls_dtype_nbytes(dt)};
        }
    }
    ls_status st = test_st_write(path, t, n);
    ls_free(t);
    return st;
}

static ls_status compare(char **argv)
{
    int64_t size[3];
    for (int i = 0; i < 3; i++)
        if (!ls_parse_i64(argv[3 + i], &size[i]) || size[i] < 1 || size[i] > 1 << 20)
            return ls_fail(LS_E_ARG, "'%s' is not a batch size, length or number of micro-batches", argv[3 + i]);
    const int64_t B = size[0], T = size[1], G = size[2];
    fixture f = {0};
    ls_tokens data = {0};
    ls_model_config cfg;
    double loss = 0;
    ls_status st = LS_OK;
    LS_TRY(ls_model_config_load(argv[1], &cfg));
    LS_TRY_GOTO(st, done, fixture_open(&f, &cfg, argv[6], LS_F32, 0, B, T, (int)G, false, 1));
    LS_TRY_GOTO(st, done, ls_hf_load(f.model, argv[1], NULL, 0, NULL));
    LS_TRY_GOTO(st, done, ls_tokens_open(&data, argv[2], (int)T, cfg.vocab_size));
    if (data.n_seq < B * G) {
        st = ls_fail(LS_E_FORMAT, "%s holds %lld sequences, %lld are asked for", argv[2], (long long)data.n_seq,
                     (long long)(B * G));
        goto done;
    }
    LS_TRY_GOTO(st, done, run_micros(&f, &data, (int)G, &loss));
    LS_TRY_GOTO(st, done, write_gradients(&f, argv[7]));
    printf("{\"loss\": %.17g}\n", loss);
done:
    ls_tokens_close(&data);
    fixture_close(&f);
    return st;
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: %s FOLDER TOKENS BATCH LENGTH MICRO_BATCHES COMPUTE OUT.safetensors\n", argv[0]);
        return 2;
    }
    ls_status st = compare(argv);
    if (st != LS_OK) fprintf(stderr, "%s: %s\n%s", ls_status_words(st), ls_err_words(), ls_err_trail());
    return ls_status_exit_code(st);
}
