#include "bench/protocol.h"
#include "bench/child.h"
#include "core/argv.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double grace = 20; /* seconds for a run to save and stop */

ls_bench_side *ls_bench_add(ls_bench *b, const char *name, int workers)
{
    if (!ls_grow(&b->side, b->n_side, &b->cap_side, sizeof *b->side)) return NULL;
    ls_bench_side *s = &b->side[b->n_side++];
    *s = (ls_bench_side){.workers = workers};
    snprintf(s->name, sizeof s->name, "%s", name);
    for (char *p = s->name; *p; p++)
        if (*p == '/' || *p == ' ') *p = '_';
    return s;
}

void ls_bench_fini(ls_bench *b)
{
    for (int i = 0; i < b->n_side; i++) {
        ls_argv_fini(&b->side[i].words);
        ls_free(b->side[i].left_out);
        ls_free(b->side[i].data);
    }
    ls_free(b->side);
    b->side = NULL;
    b->n_side = b->cap_side = 0;
}

/* --- folders --- */

static ls_path dir_below(const char *root, const ls_bench_side *s, int turn)
{
    char name[128];
    snprintf(name, sizeof name, "%s/run_%d", s->name, turn);
    return ls_path_of(root, name);
}

static ls_path run_dir(const ls_bench *b, const ls_bench_side *s, int turn)
{
    return dir_below(b->out, s, turn);
}

/* Where a run is made. */
static ls_path work_dir(const ls_bench *b, const ls_bench_side *s, int turn)
{
    return dir_below(b->scratch ? b->scratch : b->out, s, turn);
}

static bool is_empty(const char *dir)
{
    char **name = NULL;
    size_t n = 1;
    if (!ls_fs_exists(dir)) return true;
    if (ls_fs_list(dir, &name, &n) != LS_OK) ls_err_clear(), n = 1;
    else ls_fs_list_free(name, n);
    return !n;
}

static bool finished(const char *dir)
{
    return ls_fs_exists(ls_path_of(dir, "RUN_COMPLETE.txt").text) &&
           ls_fs_exists(ls_path_of(dir, "training_metrics.json").text);
}

/* The speed that a run recorded; NaN if none. */
static double recorded_rate(const char *dir)
{
    char *text = NULL;
    size_t n = 0;
    double rate = NAN;
    if (ls_fs_read(ls_path_of(dir, "RUN_COMPLETE.txt").text, &text, &n) == LS_OK) {
        const char *p = strstr(text, " tokens_per_sec=");
        if (p) rate = strtod(p + 16, NULL);
    }
    ls_err_clear();
    ls_free(text);
    return rate > 0 ? rate : NAN;
}

static ls_status drop_checkpoints(const char *dir)
{
    char **name = NULL;
    size_t n = 0;
    LS_TRY(ls_fs_list(dir, &name, &n));
    ls_status st = LS_OK;
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        if (strncmp(name[i], "epoch-", 6) && strncmp(name[i], "step-", 5)) continue;
        st = ls_fs_remove_tree(ls_path_of(dir, name[i]).text);
    }
    ls_fs_list_free(name, n);
    return st;
}

/* --- commands --- */

/* train, the arguments of the side, --checkpoint_path dir */
static ls_status train_words(const ls_bench_side *s, const char *dir, ls_argv *out)
{
    LS_TRY(ls_argv_add(out, "train"));
    LS_TRY(ls_argv_add_all(out, &s->words));
    LS_TRY(ls_argv_add(out, "--checkpoint_path"));
    return ls_argv_add(out, dir);
}

ls_status ls_bench_command(const ls_bench *b, const ls_bench_side *s, int turn, ls_argv *out)
{
    LS_TRY(ls_argv_add(out, b->program));
    return train_words(s, work_dir(b, s, turn).text, out);
}

/* The words after "lockstep: [rank 2: ]" in what `train` printed; NULL: there are none. */
static char *after_name(char *said)
{
    char *p = said ? strstr(said, "lockstep: ") : NULL;
    if (!p) return NULL;
    p += 10;
    char *colon = strncmp(p, "rank ", 5) ? NULL : strstr(p, ": ");
    return colon ? colon + 2 : p;
}

/* The status for an exit code of `train`. Where two statuses share the code, its error line decides. */
static ls_status status_of(int code, char *said)
{
    static const struct {
        int code;
        ls_status usual, other;
    } known[] = {{1, LS_E_NUMERIC, LS_E_NUMERIC},
                 {2, LS_E_CONFIG, LS_E_CONFIG},
                 {3, LS_E_IO, LS_E_FORMAT},
                 {4, LS_E_COMM, LS_E_DEVICE},
                 {5, LS_E_NOMEM, LS_E_NOMEM}};
    const char *words = after_name(said);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *other = ls_status_words(known[i].other);
        if (code == known[i].code)
            return words && !strncmp(words, other, strlen(other)) ? known[i].other : known[i].usual;
    }
    return LS_E_COMM;
}

/* The failure of `train` with this exit code. Of its last lines in the file, the message counts:
 * "lockstep: [rank 2: ]invalid configuration: MESSAGE\n  at …". */
static ls_status child_failed(int code, const char *file, const char *what, const char *otherwise)
{
    char *text = NULL, *last = NULL;
    size_t n = 0;
    if (ls_fs_read(file, &text, &n) == LS_OK) {
        int lines = 40;
        while (n && text[n - 1] == '\n') text[--n] = '\0';
        while (n && (text[n - 1] != '\n' || --lines)) n--;
        last = text + n;
    }
    const ls_status why = status_of(code, last);
    char *words = after_name(last);
    if (words) {
        char *colon = strstr(words, ": ");
        if (colon) words = colon + 2;
        words[strcspn(words, "\n")] = '\0';
        last = words;
    }
    ls_status st = ls_fail(why, "%s: %s", what, last && *last ? last : otherwise);
    ls_free(text);
    return st;
}

/* --- checking the arguments of a side --- */

static int64_t whole(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(json_object_get(root, key), "value");
    return json_is_integer(v) ? json_integer_value(v) : 0;
}

static ls_status read_settings(const char *path, ls_bench_side *s)
{
    json_t *root = NULL;
    LS_TRY(ls_json_load(path, &root));
    s->micro_batch = whole(root, "micro_batch_size_per_gpu");
    s->grad_accum = whole(root, "grad_accum_steps");
    s->global_batch = whole(root, "global_batch_size");
    s->threads = (int)whole(root, "threads");
    const char *device = json_string_value(ls_json_at(root, "device.value"));
    s->on_cpu = device && !strcmp(device, "cpu");
    const char *precision = json_string_value(ls_json_at(root, "precision.value"));
    snprintf(s->precision, sizeof s->precision, "%s", precision ? precision : "");
    const char *data = json_string_value(ls_json_at(root, "train_data_path.value"));
    ls_free(s->data);
    s->data = ls_strdup(data ? data : "");
    s->seq_len = whole(root, "seq_length");
    s->n_layer = whole(root, "n_layer");
    s->n_head = whole(root, "n_head");
    s->n_embd = whole(root, "n_embd");
    s->epochs = whole(root, "epochs");
    s->steps = whole(root, "max_steps");
    if (!s->steps && s->grad_accum) s->steps = whole(root, "epochs") * (whole(root, "max_train_steps") / s->grad_accum);
    json_decref(root);
    if (!s->data) return ls_nomem(64, "the name of the data");
    if (!s->micro_batch || !s->grad_accum) return ls_fail(LS_E_FORMAT, "train --print_config printed no batch size");
    return LS_OK;
}

ls_status ls_bench_check(const ls_bench *b, ls_bench_side *s)
{
    const char *tmp = getenv("TMPDIR");
    char dir[4096];
    ls_argv w = {0};
    int code = 0;
    ls_status st = LS_OK;
    snprintf(dir, sizeof dir, "%.4000s/lockstep-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) return ls_fail(LS_E_IO, "mkdtemp %s: %s", dir, strerror(errno));
    const ls_path out = ls_path_of(dir, "out"), err = ls_path_of(dir, "err");
    const ls_child c = {.program = b->program, .out_path = out.text, .err_path = err.text, .words = &w, .grace = 1};
    LS_TRY_GOTO(st, done, train_words(s, "none", &w));
    LS_TRY_GOTO(st, done, ls_argv_split(&w, "--print_config --json"));
    LS_TRY_GOTO(st, done, ls_child_run(&c, &code));
    st = code ? child_failed(code, err.text, s->name, "train rejects the configuration") : read_settings(out.text, s);
done:
    ls_argv_fini(&w);
    (void)ls_fs_remove_tree(dir);
    return st;
}

/* --- running --- */

/* *same is false if the finished folder is from another command; the folder, the last argument, may be another: scratch space moves. */
static ls_status same_command(const char *dir, const ls_argv *w, bool *same)
{
    json_t *root = NULL;
    ls_str mine = {0};
    LS_TRY(ls_json_load(ls_path_of(dir, "training_metrics.json").text, &root));
    for (int i = 0; i < w->n - 1; i++)
        ls_str_addf(&mine, " %s", w->word[i]); /* as the metrics write it: joined by blanks */
    ls_str_addc(&mine, ' ');
    const char *line = json_string_value(json_object_get(root, "command_line"));
    *same = line && mine.data && strstr(line, mine.data);
    json_decref(root);
    ls_str_fini(&mine);
    return LS_OK;
}

/* Estimated seconds until the end: the mean of the side, else the mean of all timed runs. */
static double time_left(const ls_bench *b)
{
    double all = 0, left = 0;
    int n = 0;
    for (int i = 0; i < b->n_side; i++) all += b->side[i].seconds, n += b->side[i].n_timed;
    for (int i = 0; i < b->n_side; i++) {
        const ls_bench_side *s = &b->side[i];
        const double one = s->n_timed ? s->seconds / s->n_timed : n ? all / n : NAN;
        if (!s->left_out && s->n_done < b->repeat) left += one * (b->repeat - s->n_done);
    }
    return left;
}

typedef struct turn_ctx {
    ls_bench *b;
    ls_bench_progress p;
} turn_ctx;

static void tell(turn_ctx *t, ls_bench_event e, double seconds, double rate)
{
    t->p.event = e;
    t->p.seconds = seconds;
    t->p.left = time_left(t->b);
    t->p.tokens_per_sec = rate;
    if (t->b->progress) t->b->progress(t->b->ctx, &t->p);
}

static void on_tick(void *ctx, double seconds)
{
    tell(ctx, LS_BENCH_TICK, seconds, NAN);
}

/* Runs `train`. The devices of the scaling study's runner are set in the environment of the child alone: nothing else
 * runs in this process meanwhile. */
static ls_status run_child(const ls_bench *b, const ls_bench_side *s, const ls_child *c, int *code)
{
    static const char name[] = "CUDA_VISIBLE_DEVICES";
    const bool set = b->gpus_visible && !getenv(name);
    ls_str list = {0};
    for (int i = 0; i < s->workers && set; i++) ls_str_addf(&list, i ? ",%d" : "%d", i);
    if (set && list.data) setenv(name, list.data, 1);
    const ls_status st = ls_child_run(c, code);
    if (set) unsetenv(name);
    ls_str_fini(&list);
    return st;
}

static ls_status start(turn_ctx *t, ls_bench_side *s, const char *work, const char *dir, const ls_argv *w)
{
    const ls_path out = ls_path_of(work, "train.log"), err = ls_path_of(work, "stderr.log");
    const ls_child c = {.program = t->b->program,
                        .out_path = out.text,
                        .err_path = err.text,
                        .words = w,
                        .grace = grace,
                        .tick = on_tick,
                        .ctx = t};
    int code = 0;
    LS_TRY(ls_fs_remove_tree(work)); /* left over from an interrupted run */
    LS_TRY(ls_fs_mkdirs(work));
    tell(t, LS_BENCH_BEGIN, 0, NAN);
    const double begin = ls_now();
    LS_TRY(run_child(t->b, s, &c, &code));
    const double took = ls_now() - begin;
    if (strcmp(work, dir)) { /* also after a failure: the logs */
        LS_TRY(ls_fs_copy_tree(work, dir));
        LS_TRY(ls_fs_remove_tree(work));
    }
    if (code) {
        const ls_path log = ls_path_of(dir, "train.log"), said = ls_path_of(dir, "stderr.log");
        char what[8704];
        snprintf(what, sizeof what, "%s run_%d ended with exit code %d (%s, %s)", s->name, t->p.turn, code, log.text,
                 said.text);
        return child_failed(code, said.text, what, "(empty)");
    }
    if (!finished(dir))
        return ls_fail(LS_E_FORMAT, "%s: the run ended without an error but wrote no training_metrics.json", dir);
    if (!t->b->keep_checkpoints) LS_TRY(drop_checkpoints(dir));
    s->seconds += took;
    s->n_timed++;
    s->n_done++;
    tell(t, LS_BENCH_DONE, took, recorded_rate(dir));
    return LS_OK;
}

static ls_status reuse(turn_ctx *t, ls_bench_side *s, const char *dir, const ls_argv *w)
{
    bool same;
    LS_TRY(same_command(dir, w, &same));
    if (!same)
        return ls_fail(LS_E_CONFIG,
                       "%s is from another command (see command_line in its training_metrics.json); use another --out",
                       dir);
    s->n_done++;
    tell(t, LS_BENCH_REUSED, 0, recorded_rate(dir));
    return LS_OK;
}

static ls_status one_run(turn_ctx *t, ls_bench_side *s, int turn)
{
    const ls_path work = work_dir(t->b, s, turn), dir = run_dir(t->b, s, turn);
    ls_argv w = {0};
    ls_status st = train_words(s, work.text, &w);
    if (st == LS_OK) st = finished(dir.text) ? reuse(t, s, dir.text, &w) : start(t, s, work.text, dir.text, &w);
    ls_argv_fini(&w);
    return st;
}

static ls_status stopped(const ls_bench *b)
{
    int done = 0, all = 0;
    for (int i = 0; i < b->n_side; i++)
        if (!b->side[i].left_out) done += b->side[i].n_done, all += b->repeat;
    return ls_fail(LS_E_STOPPED,
                   "%d of %d runs are finished and kept in %s; repeat the command with --out %s --resume to continue",
                   done, all, b->out, ls_quoted(b->out).text);
}

/* Without --resume nothing may be there yet. */
static ls_status refuse_old(const ls_bench *b)
{
    for (int i = 0; i < b->n_side && !b->resume; i++)
        for (int turn = 1; turn <= b->repeat; turn++) {
            const ls_path dir = run_dir(b, &b->side[i], turn);
            if (!is_empty(dir.text))
                return ls_fail(LS_E_CONFIG, "%s exists; add --resume to keep finished runs, or use another --out",
                               dir.text);
        }
    return LS_OK;
}

ls_status ls_bench_run(ls_bench *b)
{
    turn_ctx t = {.b = b};
    LS_TRY(refuse_old(b));
    for (int i = 0; i < b->n_side; i++) t.p.n_run += b->side[i].left_out ? 0 : b->repeat;
    for (int turn = 1; turn <= b->repeat; turn++)
        for (int k = 0; k < b->n_side; k++) {
            ls_bench_side *s = &b->side[turn % 2 ? k : b->n_side - 1 - k];
            if (s->left_out) continue;
            t.p.run++;
            t.p.turn = turn;
            t.p.side = s;
            ls_status st = one_run(&t, s, turn);
            if (st == LS_E_STOPPED) return stopped(b);
            if (st != LS_OK && b->go_on && st != LS_E_NOMEM && !s->n_done) {
                s->failed = st;
                s->left_out = ls_strdup(ls_err_words());
                if (!s->left_out) return ls_nomem(64, "words");
                ls_err_clear();
                t.p.n_run -= b->repeat - turn;
                tell(&t, LS_BENCH_FAILED, 0, NAN);
                continue;
            }
            LS_TRY(st);
        }
    return LS_OK;
}
