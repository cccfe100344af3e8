/* cmd_eval.c - `lockstep eval`: mean loss and perplexity of a checkpoint on a token file. */
#include "cli/commands.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/loader.h"
#include "infer/session.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct options {
    const char *checkpoint, *data, *compute, *device, *precision;
    int64_t seq_length, micro_batch, max_steps, threads;
    bool json, tf32;
} options;

static const ls_opt table[] = {
    {"checkpoint", LS_OPT_STR, offsetof(options, checkpoint), "DIR", NULL,
     "checkpoint, Hugging Face folder, or run folder (uses its newest checkpoint)", "Input"},
    {"data", LS_OPT_STR, offsetof(options, data), "PATH", NULL,
     "token file, or a folder written by prepare (uses its val.bin)", NULL},
    {"seq_length", LS_OPT_INT, offsetof(options, seq_length), "N", "0",
     "tokens per sequence; 0 = the number of positions of the model", "Execution"},
    {"micro_batch_size", LS_OPT_INT, offsetof(options, micro_batch), "N", "4", "sequences per batch", NULL},
    {"max_steps", LS_OPT_INT, offsetof(options, max_steps), "N", "-1",
     "evaluate at most N batches; -1 = the whole file", NULL},
    {"threads", LS_OPT_INT, offsetof(options, threads), "N", "0", "CPU threads; 0 = all cores", NULL},
    {"device", LS_OPT_STR, offsetof(options, device), "auto|cpu|cuda[:N]", NULL,
     "compute device; auto: cuda if a GPU is available, else cpu [LS_DEVICE, else auto]", NULL},
    {"precision", LS_OPT_CHOICE, offsetof(options, precision), "fp32|bf16|fp16", NULL,
     "number format; bf16 and fp16 need a GPU [fp32 on the CPU, bf16 on a GPU]", NULL},
    {"tf32", LS_OPT_SWITCH, offsetof(options, tf32), NULL, NULL, "use TF32 for matrix products (fp32 on a GPU)", NULL},
    {"compute", LS_OPT_CHOICE, offsetof(options, compute), "cpu|cpu-ref", "cpu",
     "CPU kernels: optimized (cpu) or plain reference loops (cpu-ref)", NULL},
    {"json", LS_OPT_SWITCH, offsetof(options, json), NULL, NULL, "print one JSON object instead of lines", NULL},
};
#define N_OPT (sizeof table / sizeof table[0])

typedef struct result {
    double loss, seconds;
    int64_t tokens, sequences;
} result;

/* Sequences in file order; the last batch may be smaller, so that every sequence counts. */
static ls_status evaluate(ls_session *s, const ls_tokens *data, const options *o, result *r)
{
    const int64_t S = data->seq_len, B = o->micro_batch;
    int64_t n_seq = data->n_seq;
    if (o->max_steps >= 0 && n_seq > o->max_steps * B) n_seq = o->max_steps * B;
    const double begin = ls_now();
    double sum = 0, tick = begin;
    for (int64_t k = 0; k < n_seq; k += B) {
        const int64_t b = n_seq - k < B ? n_seq - k : B;
        for (int64_t i = 0; i < b; i++) LS_TRY(ls_tokens_sequence(data, k + i, s->ids + i * S, s->target + i * S));
        double loss;
        int64_t counted;
        LS_TRY(ls_session_loss(s, b, S, &loss, &counted));
        sum += loss;
        r->tokens += counted;
        r->sequences += b;
        if (isatty(STDERR_FILENO) && ls_now() - tick > 0.5) {
            tick = ls_now();
            fprintf(stderr, "\r\033[K%lld/%lld sequences  loss %.4f", (long long)r->sequences, (long long)n_seq,
                    sum / (double)r->tokens);
        }
    }
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
    r->loss = r->tokens ? sum / (double)r->tokens : NAN;
    r->seconds = ls_now() - begin;
    return LS_OK;
}

static void print(const options *o, const char *checkpoint, const char *data, const result *r)
{
    if (!o->json) {
        printf("loss %.6f\nperplexity %.4f\ntokens %lld\ntokens/s %.1f\n", r->loss, exp(r->loss), (long long)r->tokens,
               (double)r->tokens / r->seconds);
        return;
    }
    ls_str s = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "checkpoint", checkpoint);
    ls_jsonw_put_str(&w, "data", data);
    ls_jsonw_put_real(&w, "loss", r->loss);
    ls_jsonw_put_real(&w, "perplexity", exp(r->loss));
    ls_jsonw_put_int(&w, "tokens", r->tokens);
    ls_jsonw_put_int(&w, "sequences", r->sequences);
    ls_jsonw_put_real(&w, "seconds", r->seconds);
    ls_jsonw_put_real(&w, "tokens_per_sec", (double)r->tokens / r->seconds);
    ls_jsonw_close(&w);
    puts(s.data ? s.data : "");
    ls_str_fini(&s);
}

ls_status cmd_eval(int argc, char **argv)
{
    options o = {0};
    bool help = false;
    LS_TRY(ls_opt_defaults(table, N_OPT, &o));
    LS_TRY(ls_opt_parse(table, N_OPT, &o, NULL, argc, argv, NULL, &help));
    if (help) {
        cli_help("eval --checkpoint DIR --data PATH [OPTIONS]",
                 "Compute the mean cross-entropy per token and the perplexity over all complete sequences of the file.",
                 table, N_OPT);
        return LS_OK;
    }
    if (!o.checkpoint || !o.data) return ls_fail(LS_E_ARG, "eval needs --checkpoint DIR and --data PATH");
    if (o.micro_batch < 1 || o.seq_length < 0)
        return ls_fail(LS_E_ARG, "--micro_batch_size must be at least 1, --seq_length at least 0");

    ls_session_opts how = {.checkpoint = o.checkpoint,
                           .threads = (int)o.threads,
                           .B = o.micro_batch,
                           .T = o.seq_length ? o.seq_length : INT32_MAX};
    ls_device_choice device;
    LS_TRY(ls_device_choose(o.device, strcmp(o.compute, "cpu") ? "--compute" : NULL, 1, 0, &device));
    LS_TRY(ls_session_where(&how, &device, o.precision, o.compute, o.tf32));
    ls_session s = {0};
    ls_tokens data = {0};
    result r = {0};
    char *path = ls_fs_is_dir(o.data) ? ls_path_join(o.data, "val.bin") : ls_strdup(o.data);
    if (!path) return ls_nomem(256, "a path");
    ls_status st = LS_OK;
    cli_say_device(&device);
    LS_TRY_GOTO(st, done, ls_session_open(&s, &how));
    if (o.seq_length > s.model->cfg.n_ctx) {
        st = ls_fail(LS_E_CONFIG, "--seq_length %lld: the model has only %d positions", (long long)o.seq_length,
                     s.model->cfg.n_ctx);
        goto done;
    }
    const int S = o.seq_length ? (int)o.seq_length : s.model->cfg.n_ctx;
    LS_TRY_GOTO(st, done, ls_tokens_open(&data, path, S, s.model->cfg.vocab_size));
    LS_TRY_GOTO(st, done, evaluate(&s, &data, &o, &r));
    print(&o, s.path, path, &r);
done:
    ls_tokens_close(&data);
    ls_session_close(&s);
    ls_free(path);
    return st;
}
