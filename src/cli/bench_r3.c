/* bench_r3.c - `lockstep bench r3`: the two comparisons of the translation study's scripts
 * (docs/REFERENCES.md#the-translation-study), with their charts.
 *
 *   data parallel    1, 2, … workers with the same batch each           submit_figures/ddp_vs_rn
 *   pipeline         the stages one after the other (model_parallel) and with micro-batches (pipeline_parallel)      pp_vs_mp
 *
 * As in the translation study, epoch 0 is warm-up, and training time and tokens/s are means over the other epochs with
 * their standard deviation. */
#include "cli/bench_impl.h"
#include "config/preset.h"
#include "core/fs.h"
#include "report/chart/chart.h"

#include <math.h>

typedef struct options {
    bench_session s;
    int64_t epochs, batch, stages, pipe_batch, chunks, world;
    char n[32]; /* of --world_size */
} options;

static const ls_opt table[] = {
    CLI_STR("n", s.o.n, "LIST", "1,2", "numbers of workers of the data-parallel comparison", "Settings"),
    CLI_INT_IN(1, 1024, "world_size", world, "N", NULL, "same as -n 1,N"),
    CLI_INT_IN(1, 65536, "batch_size", batch, "N", "64", "pairs per worker and step of the data-parallel comparison"),
    CLI_INT_IN(2, 1024, "pipe_stages", stages, "P", "2", "workers of the pipeline comparison"),
    CLI_INT_IN(1, 65536, "pipe_batch_size", pipe_batch, "N", "32", "pairs per step of the pipeline comparison"),
    CLI_INT_IN(1, 65536, "n_chunk", chunks, "N", "4", "micro-batches per step of pipeline_parallel"),
    CLI_INT_IN(2, 100000, "n_epochs", epochs, "N", "10", "epochs per run; the first is not measured"),
    CLI_INT_IN(1, 1000, "repeat", s.o.repeat, "N", "1", "runs per setting; the settings run in turns"),
    CLI_STR("out", s.o.out, "DIR", NULL, "output folder for runs, charts and r3_report.json [runs/<time>]", "Runs"),
    CLI_SWITCH("resume", s.o.resume, "keep the finished runs of --out and run the rest"),
    CLI_SWITCH("dry_run", s.o.dry_run, "print the commands without running them"),
    CLI_SWITCH("keep_checkpoints", s.o.keep_checkpoints, "keep the checkpoints of finished runs"),
    CLI_SWITCH("json", s.o.json, "print the result as JSON on stdout instead of the table"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "bench r3 [OPTIONS] -- TRAIN OPTIONS",
    "Train the translation task on 1, 2, ... workers with the same batch per worker, and on a pipeline whose stages run "
    "one after the other (model_parallel) or with micro-batches (pipeline_parallel). The optimizer is that of the translation study, unless "
    "the train options have another: AdamW, constant learning rate 1e-4. The translation study's --dataset and --model_max_length are train "
    "options, too; they and --preset r3 set its length of 128 tokens.\n\n"
    "  lockstep bench r3 --out runs/r3 -- --data data --seq_length 128\n"
    "  lockstep bench r3 --world_size 2 -- --preset r3 --dataset data"};

/* The translation study's flags among the train options: those of the data are replaced by ours, the others are options
 * of the benchmark. */
static ls_status replace_flags(ls_argv *given)
{
    enum { PRESET, DATASET, LENGTH, MODE, WORLD, BATCH, EPOCHS, CHUNKS, N_FLAG };
    static const preset_flag r3[N_FLAG] = {
        [PRESET] = {"preset", false},           [DATASET] = {"dataset", false},
        [LENGTH] = {"model_max_length", false}, [MODE] = {"model_parallel_mode", false},
        [WORLD] = {"world_size", false},        [BATCH] = {"batch_size", false},
        [EPOCHS] = {"n_epochs", false},         [CHUNKS] = {"n_chunk", false}};
    const char *value[N_FLAG] = {0};
    ls_argv all = {0}, rest = {0};
    ls_status st = preset_take(given->n, given->word, r3, N_FLAG, value, &rest);
    for (int f = MODE; f < N_FLAG && st == LS_OK; f++)
        if (value[f])
            st = ls_fail(LS_E_ARG, "--%s is not allowed in the train options of bench r3; %s", r3[f].name,
                         f == MODE ? "both modes are compared" : "give it to bench instead, before --");
    if (st == LS_OK && value[PRESET] && strcmp(value[PRESET], "r3"))
        st = ls_fail(LS_E_ARG, "--preset '%.40s': must be r3 in bench r3", value[PRESET]);
    if (st == LS_OK && (value[PRESET] || value[DATASET] || value[LENGTH]))
        st = ls_argv_addf(&all, "--seq_length=%s", value[LENGTH] ? value[LENGTH] : "128"); /* the translation study's */
    if (st == LS_OK && value[DATASET]) st = ls_argv_addf(&all, "--data=%s", value[DATASET]);
    if (st == LS_OK) st = ls_argv_add_all(&all, &rest);
    ls_argv_fini(&rest);
    ls_argv_fini(given); /* after the last use of value, which points into it */
    *given = all;
    return st;
}

/* Refuses train options that the comparison sets, or with which its settings would not do the same work. */
static ls_status check_options(const ls_argv *given)
{
    static const struct {
        const char *name, *why;
    } ours[] = {
        {"task", "it is always translate"},
        {"epochs", "use --n_epochs of bench"},
        {"max_steps", "a step has other batches in each setting; use --n_epochs of bench"},
        {"max_train_steps", "it counts micro-batches, so the settings would do unequal work; prepare fewer pairs"},
        {"micro_batch_size_per_gpu", "use --batch_size and --pipe_batch_size of bench"},
        {"grad_accum_steps", "use --n_chunk of bench"},
        {"global_batch_size", "use --batch_size and --pipe_batch_size of bench"},
        {"pp", "use --pipe_stages of bench"},
        {"schedule", "the comparison sets it"},
        {"workdir", "every run has its own"}};
    ls_train_options o = {0};
    LS_TRY(cli_bench_train_options(given, false, &o));
    for (size_t i = 0; i < CLI_COUNT(ours); i++)
        if (ls_train_given(&o, ours[i].name))
            return ls_fail(LS_E_ARG, "--%s is not allowed in the train options of bench r3; %s", ours[i].name,
                           ours[i].why);
    return LS_OK;
}

/* The translation study's settings before the train options of the user, which override them. */
static ls_status put_defaults(options *x)
{
    static const char *const r3[] = {
        "--task=translate",    "--lr=1e-4", "--lr_schedule=constant",    "--betas=0.9,0.999", "--eps=1e-8",
        "--weight_decay=0.01", "--clip=0",  "--max_val_steps=1000000000"};
    ls_argv all = {0};
    ls_status st = LS_OK;
    for (size_t i = 0; i < CLI_COUNT(r3) && st == LS_OK; i++) st = ls_argv_add(&all, r3[i]);
    if (st == LS_OK) st = ls_argv_addf(&all, "--epochs=%lld", (long long)x->epochs);
    if (st == LS_OK) st = ls_argv_add_all(&all, &x->s.given);
    ls_argv_fini(&x->s.given);
    x->s.given = all;
    return st;
}

static ls_status add_side(options *x, const char *name, int workers, int64_t micro, int64_t accumulate,
                          const char *schedule)
{
    ls_argv more = {0};
    ls_status st = cli_bench_flag(&more, "micro_batch_size_per_gpu", micro);
    if (st == LS_OK) st = cli_bench_flag(&more, "grad_accum_steps", accumulate);
    if (st == LS_OK && schedule) st = cli_bench_flag(&more, "pp", workers);
    if (st == LS_OK && schedule) st = ls_argv_addf(&more, "--schedule=%s", schedule);
    if (st == LS_OK) st = cli_bench_side(&x->s, name, workers, NULL, &more, 0, false);
    ls_argv_fini(&more);
    return st;
}

static ls_status add_sides(options *x)
{
    const int P = (int)x->stages;
    if (x->pipe_batch % x->chunks)
        return ls_fail(LS_E_CONFIG, "--pipe_batch_size %lld: does not divide by --n_chunk %lld",
                       (long long)x->pipe_batch, (long long)x->chunks);
    for (int i = 0; i < x->s.n_worker; i++) LS_TRY(add_side(x, "data_parallel", x->s.worker[i], x->batch, 1, NULL));
    LS_TRY(add_side(x, "model_parallel", P, x->pipe_batch, 1, "naive"));
    return add_side(x, "pipeline_parallel", P, x->pipe_batch / x->chunks, x->chunks, "gpipe");
}

/* ---- results ---- */

typedef struct series {
    double sum, squares;
    int n;
} series;

static void add(series *s, double x)
{
    if (isnan(x)) return;
    s->sum += x;
    s->squares += x * x;
    s->n++;
}

static double mean_of(const series *s)
{
    return s->n ? s->sum / s->n : NAN;
}

static double deviation_of(const series *s) /* of the population; NaN: one value has none */
{
    const double mean = mean_of(s);
    return s->n > 1 ? sqrt(fmax(0, s->squares / s->n - mean * mean)) : NAN;
}

/* One setting over all its runs. */
typedef struct result {
    const ls_bench_side *side;
    series time, rate;
    double bleu, val_loss; /* of the last epoch of the last run */
} result;

static ls_status read_bleu(const char *run, bool pipe, size_t epoch, result *r)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    LS_TRY(ls_path_in(path, run, pipe ? "workdir/eval_results_epoch%zu.json" : "workdir/rank0_results_epoch%zu.json",
                      epoch));
    LS_TRY(ls_json_load(path, &root));
    r->bleu = ls_json_real_at(root, "bleu");
    r->val_loss = ls_json_real_at(root, "validation_loss");
    json_decref(root);
    return LS_OK;
}

static ls_status read_side(const bench_session *s, bool pipe, result *r)
{
    for (int turn = 1; turn <= s->bench.repeat; turn++) {
        char run[PATH_MAX], path[PATH_MAX];
        json_t *root = NULL;
        LS_TRY(ls_path_in(run, s->out, "%s/run_%d", r->side->name, turn));
        LS_TRY(ls_path_in(path, run, "training_metrics.json"));
        LS_TRY(ls_json_load(path, &root));
        const json_t *epochs = json_object_get(root, "epochs");
        const size_t n = json_array_size(epochs);
        for (size_t e = 1; e < n; e++) { /* epoch 0 is warm-up */
            add(&r->time, ls_json_real_at(json_array_get(epochs, e), "epoch_wall_time_sec"));
            add(&r->rate, ls_json_real_at(json_array_get(epochs, e), "tokens_per_sec_global"));
        }
        json_decref(root);
        if (!r->time.n) return ls_fail(LS_E_FORMAT, "%s has no epoch after the first", path);
        LS_TRY(read_bleu(run, pipe, n - 1, r));
    }
    return LS_OK;
}

static void put_json(const options *x, const result *r, int n, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_open(&w, "protocol", '{');
    ls_jsonw_members(&w, LS_KV("epochs", x->epochs), LS_KV("warmup_epochs", 1), LS_KV("repeats", x->s.o.repeat));
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "settings", '[');
    for (int i = 0; i < n; i++) {
        const ls_bench_side *side = r[i].side;
        ls_jsonw_open(&w, '{');
        ls_jsonw_members(&w, LS_KV("setting", (const char *)side->name), LS_KV("workers", side->workers),
                         LS_KV("global_batch_size", side->global_batch), LS_KV("measured_epochs", r[i].time.n),
                         LS_KV("training_time_mean_sec", mean_of(&r[i].time)),
                         LS_KV("training_time_std_sec", deviation_of(&r[i].time)),
                         LS_KV("tokens_per_sec_mean", mean_of(&r[i].rate)),
                         LS_KV("tokens_per_sec_std", deviation_of(&r[i].rate)), LS_KV("bleu", r[i].bleu),
                         LS_KV("validation_loss", r[i].val_loss));
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
}

static void put_mean(char *out, size_t room, const series *s, int decimals)
{
    if (s->n > 1) snprintf(out, room, "%.*f +- %.*f", decimals, mean_of(s), decimals, deviation_of(s));
    else snprintf(out, room, "%.*f", decimals, mean_of(s));
}

static void put_table(const result *r, int n, ls_str *out)
{
    ls_str_addf(out, "%-24s %7s %6s %7s %24s %26s %7s\n", "setting", "workers", "batch", "epochs", "training time (s)",
                "tokens/s", "BLEU");
    for (int i = 0; i < n; i++) {
        char time[64], rate[64];
        put_mean(time, sizeof time, &r[i].time, 3);
        put_mean(rate, sizeof rate, &r[i].rate, 1);
        ls_str_addf(out, "%-24s %7d %6lld %7d %24s %26s %7.2f\n", r[i].side->name, r[i].side->workers,
                    (long long)r[i].side->global_batch, r[i].time.n, time, rate, r[i].bleu);
    }
    ls_str_add(out,
               "(means and standard deviations over epochs, without the first of each run; BLEU after the last)\n");
}

/* Bars with error bars: training time, or tokens/s. */
static ls_status draw(const char *dir, const char *file, const char *title, const result *r, int n, bool rate,
                      report_pen *pen)
{
    ls_chart c = ls_chart_bars(LS_CHART_BARS, file, title,
                               rate ? "tokens per second; \xc2\xb1 and line: standard deviation over epochs"
                                    : "seconds per epoch; \xc2\xb1 and line: standard deviation over epochs",
                               rate ? "tokens/s" : "s", 1, rate ? 0 : 2);
    ls_series *s = ls_chart_series(&c, "mean over epochs");
    for (int i = 0; i < n; i++) {
        const series *x = rate ? &r[i].rate : &r[i].time;
        const double mean = mean_of(x), half = deviation_of(x);
        ls_chart_point(&c, s,
                       (ls_point){.x = ls_chart_category(&c, "%s", r[i].side->name),
                                  .y = mean,
                                  .lo = x->n > 1 ? mean - half : NAN,
                                  .hi = x->n > 1 ? mean + half : NAN});
    }
    const ls_status st = report_write_chart(&c, dir, pen);
    ls_chart_fini(&c);
    return st;
}

static ls_status draw_all(const options *x, const result *r, int n)
{
    const int dp = x->s.n_worker;
    char dir[PATH_MAX];
    report_pen pen = {.there = true};
    ls_str words = {0};
    LS_TRY(ls_path_in(dir, x->s.out, "submit_figures"));
    LS_TRY(ls_fs_mkdirs(dir));
    LS_TRY(draw(dir, "ddp_vs_rn", "Data parallel: training time", r, dp, false, &pen));
    LS_TRY(draw(dir, "ddp_vs_rn_throughput", "Data parallel: throughput", r, dp, true, &pen));
    LS_TRY(draw(dir, "pp_vs_mp", "Pipeline and model parallel: training time", r + dp, n - dp, false, &pen));
    LS_TRY(draw(dir, "pp_vs_mp_throughput", "Pipeline and model parallel: throughput", r + dp, n - dp, true, &pen));
    report_pen_words(&pen, &words);
    fprintf(stderr, "charts: %s (%s)%s%s\n", dir,
            pen.n_png ? "SVG and PNG" : "SVG; PNG needs rsvg-convert, package librsvg2-bin", words.len ? ": " : "",
            words.len ? words.data : "");
    ls_str_fini(&words);
    return LS_OK;
}

static ls_status finish(const options *x)
{
    const bench_session *s = &x->s;
    const int n = s->bench.n_side;
    char path[PATH_MAX];
    ls_str json = {0}, text = {0};
    result *r = ls_alloc((size_t)n * sizeof *r);
    ls_status st = r ? LS_OK : ls_nomem((size_t)n * sizeof *r, "the results");
    for (int i = 0; i < n && st == LS_OK; i++) {
        r[i] = (result){.side = &s->bench.side[i], .bleu = NAN, .val_loss = NAN};
        st = read_side(s, i >= s->n_worker, &r[i]);
    }
    if (st == LS_OK) st = draw_all(x, r, n);
    if (st == LS_OK) {
        put_json(x, r, n, &json);
        put_table(r, n, &text);
        st =
            json.failed || text.failed ? ls_nomem(json.len, "the results") : ls_path_in(path, s->out, "r3_report.json");
    }
    if (st == LS_OK) st = ls_fs_write(path, json.data, json.len);
    if (st == LS_OK && s->o.json) ls_str_addc(&json, '\n');
    if (st == LS_OK) st = cli_print(s->o.json ? &json : &text);
    if (st == LS_OK) cli_bench_next(s);
    ls_str_fini(&json);
    ls_str_fini(&text);
    ls_free(r);
    return st;
}

static ls_status run(options *x, int argc, char **argv)
{
    bool cut;
    unsigned char given[CLI_COUNT(table)] = {0};
    LS_TRY(cli_bench_parse(&page, x, &x->s, argc, argv, NULL, &cut, given));
    if (x->world && cli_given(&page, given, "n"))
        return ls_fail(LS_E_ARG, "-n %s and --world_size %lld contradict each other; leave one out", x->s.o.n,
                       (long long)x->world);
    snprintf(x->n, sizeof x->n, x->world > 1 ? "1,%lld" : "%lld", (long long)x->world);
    if (x->world) x->s.o.n = x->n;
    if (!cut)
        return ls_fail(LS_E_ARG, "train options are missing; add them after --, such as: -- --data data --model tiny");
    LS_TRY(replace_flags(&x->s.given));
    LS_TRY(check_options(&x->s.given));
    LS_TRY(put_defaults(x));
    x->s.most = (int)x->stages; /* for the number of threads */
    LS_TRY(cli_bench_begin(&x->s));
    LS_TRY(add_sides(x));
    LS_TRY(cli_bench_go(&x->s));
    return x->s.o.dry_run ? LS_OK : finish(x);
}

ls_status cli_bench_r3(int argc, char **argv)
{
    options x = {0};
    const ls_status st = run(&x, argc, argv);
    cli_bench_end(&x.s);
    return st;
}
