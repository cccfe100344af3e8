#include "cli/train_start.h"
#include "config/auto.h"
#include "config/r3.h"
#include "config/run_options.h"
#include "core/clock.h"
#include "core/cores.h"
#include "core/fs.h"
#include "core/minmax.h"
#include "core/progress.h"
#include "data/corpus.h"
#include "data/loader.h"
#include "data/pairs.h"
#include "data/sources.h"
#include "train/trainer.h"
#include "train/trial.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TRIAL_SECONDS 1.5
#define FIRST_SIZE    2   /* of the ladder: what a trial begins with, if the text supports it */
#define MOVES         4   /* along the ladder, at most */
#define FEWER         1.2 /* times as fast one thread fewer has to be */

/* ---- parse ---- */

/* "--resume RUN" and "--resume=RUN": a switch and a run folder. */
static ls_status take_words(train_start *s, int argc, char **argv)
{
    static const char flag[] = "--resume", with[] = "--resume=";
    for (int i = 0; i < argc; i++) {
        const char *value = !strncmp(argv[i], with, sizeof with - 1) ? argv[i] + sizeof with - 1 : NULL;
        const bool next = !strcmp(argv[i], flag) && i + 1 < argc && argv[i + 1][0] != '-',
                   joined = value && ls_opt_truth(value) < 0;
        if (!next && !joined) {
            LS_TRY(ls_argv_add(&s->typed, argv[i]));
            continue;
        }
        s->run = next ? argv[++i] : value;
        LS_TRY(ls_argv_add(&s->typed, flag));
        LS_TRY(ls_argv_addf(&s->typed, "--checkpoint_path=%s", s->run));
    }
    return LS_OK;
}

/* Parses added and typed words. Parsing reorders its arguments, so it gets a copy of the list. */
static ls_status parse_all(train_start *s)
{
    const ls_train_preset p = s->added.n ? (ls_train_preset){s->from_run ? "run" : "auto", s->added.n} : s->preset;
    ls_argv_fini(&s->all);
    ls_free(s->moved);
    s->moved = NULL;
    LS_TRY(ls_argv_add_all(&s->all, &s->added));
    LS_TRY(ls_argv_add_all(&s->all, &s->typed));
    const size_t nbytes = ((size_t)s->all.n + 1) * sizeof *s->moved;
    s->moved = ls_alloc(nbytes);
    if (!s->moved) return ls_nomem(nbytes, "the command line");
    if (s->all.n) memcpy(s->moved, s->all.word, (size_t)s->all.n * sizeof *s->moved);
    LS_TRY(ls_train_options_parse_preset(&p, s->all.n, s->moved, &s->o));
    if (s->o.workdir) LS_TRY(ls_fs_no_links(s->o.workdir));
    return ls_fs_no_links(s->o.checkpoint_path);
}

/* The translation study's flags belong to the translation task, those of a trainer to its preset. */
ls_status train_start_parse(train_start *s, int argc, char **argv)
{
    ls_argv words = {0};
    s->begin = ls_now();
    LS_TRY(take_words(s, argc, argv));
    ls_status st = cli_preset_words(s->typed.n, s->typed.word, false, &words, &s->preset);
    if (st == LS_OK && !words.n && cli_task_is(s->typed.n, s->typed.word, "translate"))
        st = ls_train_r3_words(s->typed.n, s->typed.word, false, &words, &s->preset);
    if (st != LS_OK || words.n) {
        ls_argv_fini(&s->typed);
        s->typed = words;
    }
    LS_TRY(st);
    LS_TRY(parse_all(s));
    if (s->run && strcmp(s->o.checkpoint_path, s->run) != 0)
        return ls_fail(LS_E_ARG, "--resume %s and --checkpoint_path %s are different folders; leave one out", s->run,
                       s->o.checkpoint_path);
    return LS_OK;
}

/* As DeepSpeed's launcher, which the scaling study used: one worker per visible GPU. */
ls_status train_start_workers(train_start *s, const ls_start_env *e, const ls_device_choice *d, bool *more)
{
    const bool cards = d->cuda && d->index < 0 && d->visible > 1;
    *more =
        cards && e->size == 1 && s->o.run_type && !strcmp(s->o.run_type, "optimized") && !ls_train_given(&s->o, "n");
    if (!*more) return LS_OK;
    ls_progress_say(
        "--run_type optimized: %d GPUs are visible, so %d workers start, one per GPU, as with the launcher of "
        "DeepSpeed; -n 1 starts one\n",
        d->visible, d->visible);
    LS_TRY(ls_argv_addf(&s->typed, "--n=%d", d->visible));
    return parse_all(s);
}

/* A run folder that this command has created, and in which no run began. */
static void remove_folder(const char *run_dir)
{
    ls_err_kept why;
    if (ls_fs_exists(ls_path_of(run_dir, LS_RUN_OPTIONS).text)) return;
    ls_err_keep(&why);
    (void)ls_fs_remove_tree(ls_path_of(run_dir, "data").text); /* of prepare */
    (void)rmdir(run_dir);
    ls_err_restore(&why);
}

void train_start_fini(train_start *s, bool failed)
{
    if (failed && s->made_folder) remove_folder(s->o.checkpoint_path);
    ls_argv_fini(&s->typed);
    ls_argv_fini(&s->added);
    ls_argv_fini(&s->all);
    ls_free(s->moved);
    s->moved = NULL;
    if (s->check) munmap(s->check, sizeof *s->check);
}

/* ---- source ---- */

/* What asks for the reference trainer's ways: its folder and its model stay the defaults. */
static bool is_reference(const train_start *s)
{
    return s->o.run_type || s->o.deepspeed_config || s->preset.name || strcmp(s->o.task, "lm") != 0;
}

/* runs/<date>-<name>, or with -2, -3 ... after it. It is created at once, so that two runs do not share it; with --print_config it is not. */
static ls_status make_folder(const char *name, bool create, char path[PATH_MAX])
{
    char date[16], safe[48];
    size_t n = 0;
    const time_t now = time(NULL);
    struct tm local;
    strftime(date, sizeof date, "%Y-%m-%d", localtime_r(&now, &local));
    for (; name[n] && name[n] != '.' && n + 1 < sizeof safe; n++)
        safe[n] = isalnum((unsigned char)name[n]) || name[n] == '_' ? name[n] : '-';
    safe[n] = '\0';
    if (create) LS_TRY(ls_fs_mkdirs("runs"));
    for (int k = 1; k < 10000; k++) {
        if (k == 1) snprintf(path, PATH_MAX, "runs/%s-%s", date, n ? safe : "run");
        else snprintf(path, PATH_MAX, "runs/%s-%s-%d", date, n ? safe : "run", k);
        if (!create && !ls_fs_exists(path)) return LS_OK;
        if (create && !mkdir(path, 0777)) return LS_OK;
        if (create && errno != EEXIST) return ls_fail(LS_E_IO, "cannot create %s: %s", path, strerror(errno));
    }
    return ls_fail(LS_E_IO, "%s: too many runs of this name; give --checkpoint_path", path);
}

/* The name of a run: the last part of the path of its data. */
static void name_of(const char *path, char name[64])
{
    char text[PATH_MAX];
    size_t n = (size_t)snprintf(text, sizeof text, "%s", path);
    if (n >= sizeof text) n = sizeof text - 1;
    while (n > 1 && text[n - 1] == '/') text[--n] = '\0';
    snprintf(name, 64, "%.60s", ls_path_base(text));
}

static ls_status choose_folder(train_start *s)
{
    const ls_train_options *o = &s->o;
    const char *from = o->inputs.n          ? o->inputs.word[0]
                       : o->data            ? o->data
                       : o->train_data_path ? o->train_data_path
                                            : "";
    char name[64], path[PATH_MAX];
    name_of(from, name);
    LS_TRY(make_folder(name, !o->print_config, path));
    s->made_folder = !o->print_config;
    LS_TRY(ls_argv_addf(&s->added, "--checkpoint_path=%s", path));
    return parse_all(s);
}

static bool is_prepared(const char *path)
{
    return ls_fs_is_dir(path) && (ls_fs_exists(ls_path_of(path, "train.bin").text) || ls_shards_exist(path, "train"));
}

static bool has_text(const ls_train_options *o)
{
    return o->inputs.n > 1 || (o->inputs.n && !is_prepared(o->inputs.word[0]));
}

/* The bytes of the texts; refuses what cannot be read as text. */
static ls_status measure_texts(const ls_train_options *o, int64_t *nbytes)
{
    ls_inputs list = {0};
    ls_status st = LS_OK;
    for (int i = 0; i < o->inputs.n && st == LS_OK; i++)
        st = ls_inputs_add(&list, o->inputs.word[i], o->lines ? LS_TEXT_LINES : LS_TEXT_AUTO);
    *nbytes = ls_inputs_nbytes(&list);
    ls_inputs_fini(&list);
    return st;
}

/* `prepare` with a vocabulary for this amount of text. */
static ls_status prepare_inputs(const ls_train_options *o, const char *out)
{
    ls_argv words = {0};
    int64_t nbytes = 0;
    ls_status st = measure_texts(o, &nbytes);
    for (int i = 0; i < o->inputs.n && st == LS_OK; i++) st = ls_argv_add(&words, o->inputs.word[i]);
    if (st == LS_OK) st = ls_argv_addf(&words, "--out=%s", out);
    if (st == LS_OK) st = ls_argv_add(&words, "--tokenizer=train");
    if (st == LS_OK) st = ls_argv_addf(&words, "--vocab_size=%d", ls_auto_vocab(nbytes));
    if (st == LS_OK && o->lines) st = ls_argv_add(&words, "--lines");
    if (st == LS_OK && o->limit_docs) st = ls_argv_addf(&words, "--limit_docs=%lld", (long long)o->limit_docs);
    if (st == LS_OK && o->dedup) st = ls_argv_add(&words, "--dedup");
    if (st == LS_OK) st = cmd_prepare(words.n, words.word);
    if (st == LS_OK) st = cli_flush(); /* before the lines of the run */
    ls_argv_fini(&words);
    return st;
}

/* Text becomes data in the run folder. */
static ls_status take_text(train_start *s, const ls_start_env *e)
{
    char data[PATH_MAX];
    if (e->size > 1)
        return ls_fail(LS_E_ARG, "'%s': with several hosts or a launcher, prepare the text first (lockstep prepare)",
                       s->o.inputs.word[0]);
    if (s->o.print_config)
        return ls_fail(LS_E_ARG, "--print_config needs data; prepare '%s' first (lockstep prepare), or leave it out",
                       s->o.inputs.word[0]);
    LS_TRY(ls_path_in(data, s->o.checkpoint_path, "data"));
    LS_TRY(prepare_inputs(&s->o, data));
    LS_TRY(ls_argv_addf(&s->added, "--data=%s", data));
    return parse_all(s);
}

static ls_status take_inputs(train_start *s, const ls_start_env *e)
{
    const ls_train_options *o = &s->o;
    if (o->data || o->train_data_path)
        return ls_fail(LS_E_ARG, "'%s' and --%s cannot be combined; leave one out", o->inputs.word[0],
                       o->data ? "data" : "train_data_path");
    if (has_text(o)) return take_text(s, e);
    LS_TRY(ls_argv_addf(&s->added, "--data=%s", o->inputs.word[0]));
    return parse_all(s);
}

/* The model that the options of the run name; NULL: none. */
static const char *model_of_run(const train_start *s)
{
    static const char option[] = "--model=";
    for (int i = 0; i < s->added.n; i++)
        if (!strncmp(s->added.word[i], option, sizeof option - 1)) return s->added.word[i] + sizeof option - 1;
    return NULL;
}

/* A model that is typed must be the run's, by whatever path: its config.json counts, with the options that change it. The name that the run has stays. */
static ls_status check_model(train_start *s)
{
    const char *name = model_of_run(s);
    ls_train_options of_run = s->o;
    ls_train_paths paths = {0};
    ls_train_facts facts = {.data_eos_id = -1};
    ls_str typed = {0}, had = {0};
    if (!name || !strcmp(name, s->o.model)) return LS_OK;
    const bool presets = ls_model_config_is_preset(name) && ls_model_config_is_preset(s->o.model);
    of_run.model = name;
    ls_status st = train_start_facts(&s->o, &paths, &facts);
    if (st == LS_OK) st = ls_train_model_json(&s->o, &facts, &typed);
    if (st == LS_OK) st = ls_train_model_json(&of_run, &facts, &had);
    if (st == LS_OK && (presets || strcmp(typed.data, had.data) != 0))
        st = ls_fail(
            LS_E_CONFIG, "--model %s: the run in %s has another model (%s); leave --model out, or start a new run",
            s->o.model, s->o.checkpoint_path, strcmp(name, s->o.checkpoint_path) ? name : "that of its checkpoints");
    if (st == LS_OK) s->o.model = name;
    ls_train_paths_fini(&paths);
    ls_str_fini(&typed);
    ls_str_fini(&had);
    return st;
}

static bool has_no_data(const ls_train_options *o)
{
    return !o->data && !o->train_data_path && !o->inputs.n;
}

/* "--bf16 on": the word is meant as the value of a switch that stands for a value of another option. */
static ls_status check_switch_values(const train_start *s)
{
    for (int i = 0; i + 1 < s->typed.n; i++) {
        const char *flag = s->typed.word[i], *word = s->typed.word[i + 1];
        const size_t k = ls_opt_row(ls_train_opts, ls_train_n_opts, strncmp(flag, "--", 2) ? "" : flag + 2);
        if (k == ls_train_n_opts || !ls_train_opts[k].value || *word == '-' || ls_opt_truth(word) >= 0 ||
            ls_fs_exists(word))
            continue;
        if (strpbrk(word, "./")) continue; /* a file that is missing */
        return ls_fail(LS_E_ARG, "%s %s: '%s' is neither a value (" LS_OPT_TRUTHS ") nor a file or folder that exists",
                       flag, word, word);
    }
    return LS_OK;
}

ls_status train_start_source(train_start *s, const ls_start_env *e)
{
    const ls_train_options *o = &s->o;
    LS_TRY(check_switch_values(s));
    if (o->resume && o->inputs.n)
        return ls_fail(LS_E_ARG, "'%s': --resume takes the data of the run; leave one of the two out",
                       o->inputs.word[0]);
    if (o->resume && ls_train_given(o, "minutes"))
        return ls_fail(LS_E_ARG,
                       "--minutes is for new runs: the steps of a run that is resumed are known; use --max_steps");
    if (s->run || (o->resume && has_no_data(o))) {
        if (!s->run && !ls_train_given(o, "checkpoint_path"))
            return ls_fail(LS_E_ARG, "--resume needs the folder of a run: --resume runs/NAME");
        s->from_run = true;
        char run[PATH_MAX];
        snprintf(run, sizeof run, "%.*s", PATH_MAX - 1, o->checkpoint_path);
        LS_TRY(ls_run_options_read(run, e->size > 1, &s->added));
        const ls_status st = s->added.n ? parse_all(s) : LS_OK;
        if (st == LS_E_NOMEM) return st;
        if (st != LS_OK) return ls_run_options_damaged(run); /* the typed ones were read before */
        return check_model(s);
    }
    for (int i = 0; i < o->inputs.n; i++)
        if (!ls_fs_exists(o->inputs.word[i]))
            return ls_fail(
                LS_E_IO,
                "%s: no such file or folder; give text files, a folder of them, or data of `lockstep prepare`; "
                "`lockstep data fetch shakespeare` writes a text",
                o->inputs.word[i]);
    return LS_OK;
}

/* Data and weights that cannot be used are refused before a folder is made for the run. */
static ls_status check_data(const ls_train_options *o)
{
    ls_train_paths paths = {0};
    char *weights = NULL;
    int64_t nbytes;
    if (o->init_from && !ls_fs_exists(o->init_from)) LS_TRY(ls_ckpt_resolve("--init_from", o->init_from, &weights));
    ls_free(weights);
    if (has_text(o)) return measure_texts(o, &nbytes);
    if (o->inputs.n || has_no_data(o)) return LS_OK;
    LS_TRY(ls_train_find_paths(o, &paths));
    ls_train_paths_fini(&paths);
    return LS_OK;
}

ls_status train_start_data(train_start *s, const ls_start_env *e)
{
    static const char *const of_texts[] = {"lines", "limit_docs", "dedup"};
    const ls_train_options *o = &s->o;
    for (size_t i = 0; i < CLI_COUNT(of_texts); i++)
        if (ls_train_given(o, of_texts[i]) && !has_text(o))
            return ls_fail(LS_E_ARG, "--%s is for texts (lockstep train book.txt); use it when the data are prepared",
                           of_texts[i]);
    if (s->from_run) return LS_OK;
    const bool names =
        !ls_train_given(o, "checkpoint_path") && !o->resume && !is_reference(s) && e->size == 1 && !has_no_data(o);
    if (names) LS_TRY(check_data(o));
    if (names) LS_TRY(choose_folder(s));
    if (s->o.inputs.n) LS_TRY(take_inputs(s, e));
    return LS_OK;
}

/* ---- choose ---- */

/* How the steps of the run were computed. A restart has the options of the first attempt, and goes on without a file that is damaged since. */
static ls_status find_before(const ls_train_options *o, ls_run_computed *before)
{
    LS_TRY(ls_run_options_computed(o->checkpoint_path, before));
    if (o->attempt > 1 && *before->lost) *before = (ls_run_computed){0};
    return LS_OK;
}

ls_status train_start_facts(const ls_train_options *o, ls_train_paths *paths, ls_train_facts *f)
{
    if (o->resume || o->attempt > 1) LS_TRY(find_before(o, &f->before));
    LS_TRY(ls_train_find_paths(o, paths));
    if (!paths->tokenizer) return LS_OK;
    ls_tokenizer *tok = NULL;
    LS_TRY(ls_tokenizer_load(paths->tokenizer, &tok));
    f->data_vocab_size = ls_tokenizer_n_vocab(tok);
    f->data_eos_id = ls_tokenizer_eot(tok);
    ls_langs langs;
    if (f->data_eos_id < 0 && ls_langs_of(&langs, tok, "") == LS_OK) f->data_eos_id = LS_EOS_TGT;
    ls_err_clear();
    ls_tokenizer_destroy(&tok);
    return LS_OK;
}

/* The same options with one worker: a trial measures what all cores, or one GPU, can do. */
static ls_train_options alone(const ls_train_options *o)
{
    static const char *const several[] = {"n",
                                          "pp",
                                          "tp",
                                          "strategy",
                                          "schedule",
                                          "stages",
                                          "interleave",
                                          "sequence_parallel",
                                          "comm",
                                          "offload_optimizer",
                                          "share_optimizer"};
    ls_train_options one = *o;
    for (size_t i = 0; i < CLI_COUNT(several); i++) ls_train_forget(&one, several[i]);
    return one;
}

/* Seconds of a step of these options, all workers together. */
static ls_status measure(const train_start *s, const ls_ds_config *ds, const ls_device_choice *d, double limit,
                         double *step_seconds)
{
    const int n = (int)s->o.n;
    const ls_train_options one = alone(&s->o);
    ls_train_paths paths = {0};
    ls_train_facts facts = {.world_size = 1, .data_eos_id = -1, .device = d};
    ls_train_config c = {0}, whole = {0};
    ls_status st = train_start_facts(&s->o, &paths, &facts);
    if (st == LS_OK) st = ls_train_resolve(&one, ds, &paths, &facts, &c);
    facts.world_size = n;
    if (st == LS_OK) st = ls_train_resolve(&s->o, ds, &paths, &facts, &whole);
    c.verify_data = false; /* the run does it */
    if (st == LS_OK) st = ls_train_trial(&c, limit, step_seconds);
    if (st == LS_OK) *step_seconds *= (double)whole.global_batch / (double)c.global_batch / (d->cuda ? n : 1);
    ls_train_config_fini(&c);
    ls_train_config_fini(&whole);
    ls_train_paths_fini(&paths);
    return st;
}

/* Leaves the first n added words. */
static void cut(train_start *s, int n)
{
    for (; s->added.n > n; s->added.word[s->added.n] = NULL) ls_free(s->added.word[--s->added.n]);
}

/* Measures with the size of the choice and moves along the ladder to the largest size that fits the time. */
static ls_status climb(train_start *s, const ls_ds_config *ds, const ls_device_choice *d, double limit,
                       double *step_seconds)
{
    const ls_auto_facts *f = &s->facts;
    const int fixed = ls_auto_size_given(&s->base);
    int *size = &s->size, most = *size;
    bool down = false;
    *size = fixed >= 0 ? fixed : LS_MIN(most, FIRST_SIZE);
    for (int move = 0;; move++) {
        ls_auto_choice c;
        ls_auto_choose(f, &s->base, *size, 0, &c);
        cut(s, s->n_added);
        LS_TRY(ls_auto_words(&c, &s->added));
        LS_TRY(parse_all(s));
        const ls_status st = measure(s, ds, d, limit, step_seconds);
        if (st == LS_E_NOMEM && *size && fixed < 0) {
            fprintf(stderr, "embedding size %lld does not fit: %s; the next smaller model is tried\n",
                    (long long)c.width, ls_err_words());
            ls_err_clear();
            most = --*size;
            continue;
        }
        LS_TRY(st);
        const double rate = (double)(c.batch * c.length) / *step_seconds;
        int next = ls_auto_size(f, rate * ls_auto_flops_per_token(f, *size));
        next = LS_MIN(next, most);
        if (fixed >= 0 || next == *size || down || move == MOVES) return LS_OK;
        down = next < *size;
        *size = next;
    }
}

/* Measures again with one thread fewer, and sets --threads where that is faster: another program may keep a core busy. To be called last: it appends. */
static ls_status try_fewer_threads(train_start *s, const ls_ds_config *ds, const ls_device_choice *d, double limit,
                                   double *step_seconds)
{
    const int n = ls_cores_usable(), n_added = s->added.n;
    double with_fewer = 0;
    if (d->cuda || s->o.n > 1 || n < 2 || ls_train_given(&s->o, "threads")) return LS_OK;
    LS_TRY(ls_argv_addf(&s->added, "--threads=%d", n - 1));
    LS_TRY(parse_all(s));
    LS_TRY(measure(s, ds, d, limit, &with_fewer));
    if (FEWER * with_fewer < *step_seconds) {
        fprintf(stderr,
                "--threads %d: other programs use the cores, and %d threads were slower (%.3g s per step, not %.3g)\n",
                n - 1, n, *step_seconds, with_fewer);
        *step_seconds = with_fewer;
        s->threads = n - 1;
        return LS_OK;
    }
    cut(s, n_added);
    return parse_all(s);
}

/* What is left of --minutes. */
static double seconds_left(const train_start *s)
{
    return fmax(60 * s->o.minutes - (ls_now() - s->begin), 1);
}

static void print_choice(const train_start *s, const ls_auto_facts *f, const ls_auto_choice *c, double step_seconds)
{
    const int columns = ls_terminal_columns(STDERR_FILENO);
    ls_str head = {0}, text = {0};
    ls_str_addf(&head, "chosen for %lld training tokens and ", (long long)f->train_tokens);
    if (step_seconds > 0)
        ls_str_addf(&head, "at most %g minute%s on %s (measured: %.0f tokens/s)", s->o.minutes,
                    s->o.minutes == 1 ? "" : "s", f->cuda ? "this GPU" : "this CPU",
                    (double)(c->batch * c->length) / step_seconds);
    else if (f->steps) ls_str_addf(&head, "%lld step%s", (long long)f->steps, f->steps == 1 ? "" : "s");
    else ls_str_addf(&head, "%lld epoch%s", (long long)f->epochs, f->epochs == 1 ? "" : "s");
    ls_str_add(&head, "; options override it:\n");
    ls_progress_wrap(head.data ? head.data : "", columns ? columns : 1000, &text);
    ls_auto_table(c, columns, &text);
    fputs(text.data ? text.data : "", stderr);
    ls_str_fini(&head);
    ls_str_fini(&text);
}

/* Facts of the data for the choice. Without a vocabulary, or with pairs, nothing can be chosen: f->vocab is 0. */
static ls_status learn(const train_start *s, const ls_device_choice *d, ls_auto_facts *f)
{
    const ls_train_options *o = &s->o;
    const int64_t each = o->pp * o->tp > 0 ? o->pp * o->tp : 1;
    ls_train_paths paths = {0};
    ls_train_facts facts = {0};
    ls_tokens train = {0}, val = {0};
    ls_status st = train_start_facts(o, &paths, &facts);
    if (st == LS_OK) st = ls_tokens_open(&train, paths.train, 1, 65536);
    if (st == LS_OK && paths.val && !(ls_train_given(o, "max_val_steps") && !o->max_val_steps))
        st = ls_tokens_open(&val, paths.val, 1, 65536);
    *f = (ls_auto_facts){.train_tokens = train.n_token,
                         .val_tokens = val.n_token,
                         .vocab = ls_train_given(o, "vocab_size") ? (int)o->vocab_size : facts.data_vocab_size,
                         .cuda = d->cuda,
                         .dp = o->n / each > 0 ? (int)(o->n / each) : 1,
                         .pp = o->pp > 0 ? (int)o->pp : 1,
                         .steps = ls_train_given(o, "max_steps") ? o->max_steps : 0,
                         .epochs = ls_train_given(o, "epochs") || ls_train_given(o, "max_train_steps") ? o->epochs : 0};
    if (st == LS_OK && ls_tokens_paired(&train)) f->vocab = 0;
    ls_tokens_close(&train);
    ls_tokens_close(&val);
    ls_train_paths_fini(&paths);
    return st;
}

/* The choice for this time of a step (0: not measured), and the check of it. */
static ls_status settle(train_start *s, double step_seconds)
{
    ls_auto_facts *f = &s->facts;
    ls_auto_choice c = {.most = INT64_MAX};
    f->seconds = seconds_left(s);
    cut(s, s->n_added);
    if (f->vocab) {
        ls_auto_choose(f, &s->base, s->size, step_seconds, &c);
        LS_TRY(ls_auto_words(&c, &s->added));
        print_choice(s, f, &c, step_seconds);
    } else { /* --minutes with a model of the user: the steps alone */
        c.steps = ls_auto_steps(f->seconds, step_seconds);
        LS_TRY(ls_argv_addf(&s->added, "--max_steps=%lld", (long long)c.steps));
        fprintf(stderr, "--max_steps %lld for %.4g minutes (measured: %.4g s per step)\n", (long long)c.steps,
                s->o.minutes, step_seconds);
    }
    if (s->threads) LS_TRY(ls_argv_addf(&s->added, "--threads=%d", s->threads));
    LS_TRY(parse_all(s));
    if (step_seconds > 0 && !s->check) {
        s->check = mmap(NULL, sizeof *s->check, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (s->check == MAP_FAILED) s->check = NULL; /* the run is not checked */
        else *s->check = ls_auto_check_of(f, &c, step_seconds, ls_now() + f->seconds);
    }
    return LS_OK;
}

ls_status train_start_again(train_start *s)
{
    ls_err_clear();
    ls_progress_say("note: the first %lld steps took %.3g s each, not %.3g s as measured before: chosen again\n",
                    (long long)s->check->step, s->check->measured, s->check->expected);
    LS_TRY(ls_trainer_discard(s->o.checkpoint_path));
    return settle(s, s->check->measured);
}

static ls_status check_minutes(const train_start *s, const ls_start_env *e)
{
    static const char *const other[] = {"max_steps", "epochs", "max_train_steps"};
    const ls_train_options *o = &s->o;
    if (!ls_train_given(o, "minutes")) return LS_OK;
    if (!(o->minutes > 0 && o->minutes <= 1e6))
        return ls_fail(LS_E_ARG, "--minutes %g: must be more than 0 and at most 1e6", o->minutes);
    if (e->size > 1) return ls_fail(LS_E_ARG, "--minutes: not supported under a launcher; give --max_steps");
    if (s->preset.name) return ls_fail(LS_E_ARG, "--minutes and --preset cannot be combined; give --max_steps");
    for (size_t i = 0; i < CLI_COUNT(other); i++)
        if (ls_train_given(o, other[i]))
            return ls_fail(LS_E_ARG, "--minutes and --%s cannot be combined; leave one out", other[i]);
    return LS_OK;
}

ls_status train_start_choose(train_start *s, const ls_start_env *e, const ls_ds_config *ds, const ls_device_choice *d)
{
    const ls_train_options *o = &s->o;
    ls_auto_facts *f = &s->facts;
    double step_seconds = 0;
    LS_TRY(check_minutes(s, e));
    const bool timed = ls_train_given(o, "minutes");
    const bool automatic = o->data && !o->model && !o->init_from && !o->resume && !is_reference(s) && e->size == 1;
    if (automatic) LS_TRY(learn(s, d, f));
    if (!f->train_tokens || f->vocab <= 0) *f = (ls_auto_facts){0};
    if (!f->vocab && !timed) return LS_OK;
    s->base = s->o;
    s->n_added = s->added.n;
    f->seconds = seconds_left(s);
    const double limit = fmin(TRIAL_SECONDS, f->seconds / 20);
    const int fixed = ls_auto_size_given(o);
    if (f->vocab) s->size = fixed >= 0 ? fixed : ls_auto_size(f, INFINITY);
    if (!f->steps && !f->epochs) {
        LS_TRY(f->vocab ? climb(s, ds, d, limit, &step_seconds) : measure(s, ds, d, limit, &step_seconds));
        LS_TRY(try_fewer_threads(s, ds, d, limit, &step_seconds));
    }
    return settle(s, step_seconds);
}
