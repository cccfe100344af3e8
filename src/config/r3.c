#include "config/r3.h"

#include <string.h>

typedef enum flag { WORLD, BATCH, EPOCHS, RATE, LENGTH, DATASET, MODE, CHUNKS, PYTEST, N_FLAG } flag;

static const char *const name[N_FLAG] = {"world_size",          "batch_size",       "n_epochs",
                                         "learning_rate",       "model_max_length", "dataset",
                                         "model_parallel_mode", "n_chunk",          "pytest"};

/* Whether the word is --name or --name=...; - and _ are equal. Returns what is after the name. */
static const char *after_name(const char *word, const char *flag_name)
{
    const size_t n = strlen(flag_name);
    if (word[0] != '-' || word[1] != '-') return NULL;
    for (size_t i = 0; i < n; i++)
        if (word[2 + i] != flag_name[i] && !(word[2 + i] == '-' && flag_name[i] == '_')) return NULL;
    return word[2 + n] == '\0' || word[2 + n] == '=' ? word + 2 + n : NULL;
}

/* Moves R3's flags from argv to value, the other words to rest. */
static ls_status take_flags(int argc, char **argv, const char *value[N_FLAG], ls_argv *rest)
{
    for (int i = 0; i < argc; i++) {
        int f = 0;
        const char *end = NULL;
        while (f < N_FLAG && !(end = after_name(argv[i], name[f]))) f++;
        if (f == N_FLAG) {
            LS_TRY(ls_argv_add(rest, argv[i]));
            continue;
        }
        if (f == PYTEST)
            return ls_fail(LS_E_ARG,
                           "--pytest: the test mode of the reference writes PyTorch files and is not supported; "
                           "`lockstep verify --task translate` compares gradients");
        if (*end == '\0' && ++i == argc) return ls_fail(LS_E_ARG, "--%s needs a value", name[f]);
        value[f] = *end ? end + 1 : argv[i];
    }
    return LS_OK;
}

static ls_status number(const char *text, flag f, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (!text || (ls_parse_i64(text, out) && *out >= 1 && *out <= 1 << 30)) return LS_OK;
    return ls_fail(LS_E_ARG, "--%s '%s': must be a number of at least 1", name[f], text);
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
    LS_TRY_GOTO(st, done, take_flags(argc, argv, value, &rest));
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
