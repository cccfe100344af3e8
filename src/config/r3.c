#include "config/r3.h"
#include "config/preset.h"

#include <string.h>

typedef enum flag { WORLD, BATCH, EPOCHS, RATE, LENGTH, DATASET, MODE, CHUNKS, PYTEST, N_FLAG } flag;

static const preset_flag flags[N_FLAG] = {
    {"world_size", false},          {"batch_size", false},       {"n_epochs", false},
    {"learning_rate", false},       {"model_max_length", false}, {"dataset", false},
    {"model_parallel_mode", false}, {"n_chunk", false},          {"pytest", true}};

static ls_status number(const char *text, flag f, int64_t otherwise, int64_t *out)
{
    return preset_number(flags[f].name, text, 1, otherwise, out);
}

/* Layout and batch. */
static ls_status add_layout(const char *const value[N_FLAG], bool pipe, ls_argv *out)
{
    int64_t world, batch, chunks;
    const char *mode = value[MODE];
    LS_TRY(number(value[WORLD], WORLD, 2, &world));
    LS_TRY(number(value[BATCH], BATCH, pipe ? 32 : 128, &batch));
    LS_TRY(number(value[CHUNKS], CHUNKS, 4, &chunks));
    if (!pipe) {
        if (batch < world)
            return ls_fail(LS_E_CONFIG, "--batch_size %lld leaves no sequence for each of %lld workers",
                           (long long)batch, (long long)world);
        LS_TRY(ls_argv_addf(out, "--n=%lld", (long long)world));
        LS_TRY(ls_argv_addf(out, "--micro_batch_size_per_gpu=%lld", (long long)(batch / world)));
        return ls_argv_add(out, "--grad_accum_steps=1");
    }
    if (!mode || (strcmp(mode, "model_parallel") != 0 && strcmp(mode, "pipeline_parallel") != 0))
        return ls_fail(LS_E_ARG, "--model_parallel_mode '%s': must be model_parallel or pipeline_parallel",
                       mode ? mode : "");
    const bool chunked = !strcmp(mode, "pipeline_parallel");
    if (!chunked) chunks = 1;
    if (batch % chunks)
        return ls_fail(LS_E_CONFIG, "--batch_size %lld: does not divide by --n_chunk %lld", (long long)batch,
                       (long long)chunks);
    LS_TRY(ls_argv_addf(out, "--n=%lld", (long long)world));
    LS_TRY(ls_argv_addf(out, "--pp=%lld", (long long)world));
    if (world > 1) LS_TRY(ls_argv_addf(out, "--schedule=%s", chunked ? "gpipe" : "naive"));
    LS_TRY(ls_argv_addf(out, "--micro_batch_size_per_gpu=%lld", (long long)(batch / chunks)));
    return ls_argv_addf(out, "--grad_accum_steps=%lld", (long long)chunks);
}

ls_status ls_train_r3_words(int argc, char **argv, ls_argv *out)
{
    static const char *const optimizer[] = {"--lr_schedule=constant", "--betas=0.9,0.999", "--eps=1e-8",
                                            "--weight_decay=0.01", "--clip=0"};
    const char *value[N_FLAG] = {0};
    ls_argv rest = {0};
    bool any = false;
    ls_status st;
    LS_TRY_GOTO(st, done, preset_take(argc, argv, flags, N_FLAG, value, &rest));
    if (value[PYTEST]) {
        st = ls_fail(LS_E_ARG, "--pytest: the test mode of the reference writes PyTorch files and is not supported; "
                               "`lockstep verify --task translate` compares gradients");
        goto done;
    }
    for (int f = 0; f < N_FLAG; f++) any = any || value[f];
    if (any) {
        const bool pipe = value[MODE] || value[CHUNKS];
        LS_TRY_GOTO(st, done, add_layout(value, pipe, out));
        LS_TRY_GOTO(st, done, ls_argv_addf(out, "--epochs=%s", value[EPOCHS] ? value[EPOCHS] : pipe ? "2" : "10"));
        LS_TRY_GOTO(st, done, ls_argv_addf(out, "--lr=%s", value[RATE] ? value[RATE] : "1e-4"));
        LS_TRY_GOTO(st, done, ls_argv_addf(out, "--seq_length=%s", value[LENGTH] ? value[LENGTH] : "128"));
        for (size_t i = 0; i < sizeof optimizer / sizeof *optimizer; i++)
            LS_TRY_GOTO(st, done, ls_argv_add(out, optimizer[i]));
        if (value[DATASET]) LS_TRY_GOTO(st, done, ls_argv_addf(out, "--data=%s", value[DATASET]));
    }
    st = ls_argv_add_all(out, &rest);
done:
    ls_argv_fini(&rest);
    return st;
}
