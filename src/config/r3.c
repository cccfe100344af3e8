#include "config/r3.h"
#include "config/preset.h"

#include <string.h>

typedef enum flag { WORLD, BATCH, EPOCHS, RATE, LENGTH, DATASET, MODE, CHUNKS, PYTEST, N_FLAG } flag;

const preset_flag preset_r3_flags[] = {{"world_size", false},          {"batch_size", false},       {"n_epochs", false},
                                       {"learning_rate", false},       {"model_max_length", false}, {"dataset", false},
                                       {"model_parallel_mode", false}, {"n_chunk", false},          {"pytest", true}};
const int preset_r3_n_flag = N_FLAG;

static ls_status number(const char *text, flag f, int64_t otherwise, int64_t *out)
{
    return preset_number(preset_r3_flags[f].name, text, 1, otherwise, out);
}

/* Layout and batch: the translation study's defaults to *out, what follows from flags to *typed. */
static ls_status add_layout(const char *const value[N_FLAG], bool pipe, ls_argv *out, ls_argv *typed)
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
        LS_TRY(ls_argv_addf(value[WORLD] ? typed : out, "--n=%lld", (long long)world));
        LS_TRY(ls_argv_addf(value[BATCH] ? typed : out, "--micro_batch_size_per_gpu=%lld", (long long)(batch / world)));
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
    LS_TRY(ls_argv_addf(value[WORLD] ? typed : out, "--n=%lld", (long long)world));
    LS_TRY(ls_argv_addf(typed, "--pp=%lld", (long long)world));
    if (world > 1) LS_TRY(ls_argv_addf(typed, "--schedule=%s", chunked ? "gpipe" : "naive"));
    LS_TRY(ls_argv_addf(value[BATCH] ? typed : out, "--micro_batch_size_per_gpu=%lld", (long long)(batch / chunks)));
    return ls_argv_addf(value[CHUNKS] ? typed : out, "--grad_accum_steps=%lld", (long long)chunks);
}

ls_status ls_train_r3_words(int argc, char **argv, bool always, ls_argv *out, ls_train_preset *p)
{
    static const char *const optimizer[] = {"--lr_schedule=constant", "--betas=0.9,0.999", "--eps=1e-8",
                                            "--weight_decay=0.01", "--clip=0"};
    const char *value[N_FLAG] = {0};
    ls_argv typed = {0}, rest = {0};
    bool any = always;
    ls_status st;
    LS_TRY_GOTO(st, done, preset_take(argc, argv, preset_r3_flags, N_FLAG, value, &rest));
    if (value[PYTEST]) {
        st = ls_fail(LS_E_ARG, "--pytest: the test mode of the reference writes PyTorch files and is not supported; "
                               "`lockstep verify --task translate` compares gradients");
        goto done;
    }
    for (int f = 0; f < N_FLAG; f++) any = any || value[f];
    if (any) {
        const bool pipe = value[MODE] || value[CHUNKS];
        const struct {
            flag f;
            const char *ours, *missing;
        } same[] = {{EPOCHS, "epochs", pipe ? "2" : "10"},
                    {RATE, "lr", "1e-4"},
                    {LENGTH, "seq_length", "128"},
                    {DATASET, "data", NULL}};
        LS_TRY_GOTO(st, done, add_layout(value, pipe, out, &typed));
        for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
            const char *v = value[same[i].f];
            if (!v && !same[i].missing) continue;
            LS_TRY_GOTO(st, done, ls_argv_addf(v ? &typed : out, "--%s=%s", same[i].ours, v ? v : same[i].missing));
        }
        for (size_t i = 0; i < sizeof optimizer / sizeof *optimizer; i++)
            LS_TRY_GOTO(st, done, ls_argv_add(out, optimizer[i]));
    }
    st = preset_join(any ? "r3" : NULL, out, &typed, &rest, p);
done:
    ls_argv_fini(&typed);
    ls_argv_fini(&rest);
    return st;
}
