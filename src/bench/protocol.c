#include "bench/protocol.h"
#include "bench/child.h"
#include "bench/protocol_impl.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double grace = 20; /* seconds for a run to save and stop */

ls_bench_side *ls_bench_add(ls_bench *b, const char *name, int workers)
{
    if (b->n_side == b->cap_side) {
        const int cap = b->cap_side ? 2 * b->cap_side : 8;
        ls_bench_side *p = ls_realloc(b->side, (size_t)cap * sizeof *p);
        if (!p) return NULL;
        b->side = p;
        b->cap_side = cap;
    }
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
    }
    ls_free(b->side);
    b->side = NULL;
    b->n_side = b->cap_side = 0;
}

/* --- folders --- */

static char *run_dir(const ls_bench *b, const ls_bench_side *s, int turn)
{
    return ls_asprintf("%s/%s/run_%d", b->out, s->name, turn);
}

static bool has(const char *dir, const char *name)
{
    char *path = ls_path_join(dir, name);
    const bool there = path && ls_fs_exists(path);
    ls_free(path);
    return there;
}

/* The last lines of a file. */
void bench_tail(const char *dir, const char *name, int lines, ls_str *out)
{
    char *path = ls_path_join(dir, name), *text = NULL;
    size_t n = 0;
    if (path && ls_fs_exists(path) && ls_fs_read(path, &text, &n) == LS_OK) {
        while (n && text[n - 1] == '\n') text[--n] = '\0';
        size_t at = n;
        while (at && (text[at - 1] != '\n' || --lines)) at--;
        ls_str_add(out, text + at);
    }
    ls_free(text);
    ls_free(path);
}

/* "lockstep: [rank 2: ]configuration cannot work: MESSAGE\n  at …" -> MESSAGE; other text is unchanged. */
void bench_own_words(ls_str *text)
{
    char *from = text->data ? strstr(text->data, "lockstep: ") : NULL;
    if (!from) return;
    from += 10;
    char *colon = strstr(from, ": ");
    if (colon && !strncmp(from, "rank ", 5)) from = colon + 2, colon = strstr(from, ": ");
    if (colon) from = colon + 2;
    from[strcspn(from, "\n")] = '\0';
    text->len = strlen(from);
    memmove(text->data, from, text->len + 1);
}

/* The speed that a run recorded; NaN if none. */
static double recorded_rate(const char *dir)
{
    char *path = ls_path_join(dir, "RUN_COMPLETE.txt"), *text = NULL;
    size_t n = 0;
    double rate = NAN;
    if (path && ls_fs_exists(path) && ls_fs_read(path, &text, &n) == LS_OK) {
        const char *p = strstr(text, " tokens_per_sec=");
        if (p) rate = strtod(p + 16, NULL);
    }
    ls_err_clear();
    ls_free(text);
    ls_free(path);
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
        char *path = ls_path_join(dir, name[i]);
        st = path ? ls_fs_remove_tree(path) : ls_nomem(strlen(dir), "a path");
        ls_free(path);
    }
    ls_fs_list_free(name, n);
    return st;
}

/* --- commands --- */

ls_status bench_words(const ls_bench_side *s, const char *dir, ls_argv *out)
{
    LS_TRY(ls_argv_add(out, "train"));
    LS_TRY(ls_argv_add_all(out, &s->words));
    LS_TRY(ls_argv_add(out, "--checkpoint_path"));
    return ls_argv_add(out, dir);
}

ls_status ls_bench_command(const ls_bench *b, const ls_bench_side *s, int turn, ls_argv *out)
{
    char *dir = run_dir(b, s, turn);
    if (!dir) return ls_nomem(strlen(b->out), "a path");
    ls_status st = ls_argv_add(out, b->program);
    if (st == LS_OK) st = bench_words(s, dir, out);
    ls_free(dir);
    return st;
}

/* True if the error line of a run begins with the text of this status: "lockstep: [rank 2: ]reading or writing failed: …" */
static bool called_it(const char *said, ls_status st)
{
    const char *p = said ? strstr(said, "lockstep: ") : NULL;
    if (!p) return false;
    p += 10;
    if (!strncmp(p, "rank ", 5) && strstr(p, ": ")) p = strstr(p, ": ") + 2;
    return !strncmp(p, ls_status_words(st), strlen(ls_status_words(st)));
}

ls_status bench_status(int code, const char *said)
{
    if (code == ls_status_exit_code(LS_E_IO) && !called_it(said, LS_E_FORMAT)) return LS_E_IO; /* or has no message */
    if (code == ls_status_exit_code(LS_E_DEVICE) && called_it(said, LS_E_DEVICE)) return LS_E_DEVICE;
    return code == 2   ? LS_E_CONFIG
           : code == 3 ? LS_E_FORMAT
           : code == 5 ? LS_E_NOMEM
           : code == 1 ? LS_E_NUMERIC
                       : LS_E_COMM;
}

/* --- running --- */

/* *same is false if the finished folder is from another command. */
static ls_status same_command(const char *dir, const ls_argv *w, bool *same)
{
    char *path = ls_path_join(dir, "training_metrics.json");
    json_t *root = NULL;
    ls_str mine = {0};
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = ls_json_load(path, &root);
    ls_free(path);
    LS_TRY(st);
    for (int i = 0; i < w->n; i++)
        ls_str_addf(&mine, " %s", w->word[i]); /* as the metrics write it: joined by blanks */
    const char *line = json_string_value(json_object_get(root, "command_line"));
    const size_t n = line ? strlen(line) : 0;
    *same = line && mine.data && n >= mine.len && !strcmp(line + n - mine.len, mine.data);
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

static ls_status failed(const ls_bench_side *s, const char *dir, int turn, int code)
{
    ls_str last = {0};
    bench_tail(dir, "stderr.log", 40, &last);
    const ls_status why = bench_status(code, last.data);
    bench_own_words(&last);
    ls_status st = ls_fail(why, "%s run_%d ended with exit code %d (%s/stderr.log): %s", s->name, turn, code, dir,
                           last.data ? last.data : "(empty)");
    ls_str_fini(&last);
    return st;
}

static ls_status start(turn_ctx *t, ls_bench_side *s, const char *dir, const ls_argv *w)
{
    char *out = ls_path_join(dir, "train.log"), *err = ls_path_join(dir, "stderr.log");
    int code = 0;
    double took = 0;
    ls_status st = out && err ? LS_OK : ls_nomem(strlen(dir), "a path");
    if (st == LS_OK) st = ls_fs_remove_tree(dir); /* left over from an interrupted run */
    if (st == LS_OK) st = ls_fs_mkdirs(dir);
    if (st == LS_OK) {
        const double begin = ls_now();
        tell(t, LS_BENCH_BEGIN, 0, NAN);
        st = ls_child_run(&(ls_child){.program = t->b->program,
                                      .out_path = out,
                                      .err_path = err,
                                      .words = w,
                                      .grace = grace,
                                      .tick = on_tick,
                                      .ctx = t},
                          &code);
        took = ls_now() - begin;
    }
    ls_free(out);
    ls_free(err);
    LS_TRY(st);
    if (code) return failed(s, dir, t->p.turn, code);
    if (!has(dir, "training_metrics.json") || !has(dir, "RUN_COMPLETE.txt"))
        return ls_fail(LS_E_FORMAT, "%s: the run ended without an error but wrote no training_metrics.json", dir);
    s->seconds += took;
    s->n_timed++;
    return t->b->keep_checkpoints ? LS_OK : drop_checkpoints(dir);
}

static ls_status one_run(turn_ctx *t, ls_bench_side *s, const char *dir)
{
    ls_argv w = {0};
    ls_status st = bench_words(s, dir, &w);
    const bool finished = has(dir, "RUN_COMPLETE.txt") && has(dir, "training_metrics.json");
    bool same = true;
    if (st == LS_OK && finished) {
        st = same_command(dir, &w, &same);
        if (st == LS_OK && !same)
            st = ls_fail(
                LS_E_CONFIG,
                "%s is from another command (see command_line in its training_metrics.json); use another --out", dir);
        s->n_done += st == LS_OK;
        if (st == LS_OK) tell(t, LS_BENCH_REUSED, 0, recorded_rate(dir));
    } else if (st == LS_OK) {
        const double before = s->seconds;
        st = start(t, s, dir, &w);
        s->n_done += st == LS_OK;
        if (st == LS_OK) tell(t, LS_BENCH_DONE, s->seconds - before, recorded_rate(dir));
    }
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
                   done, all, b->out, b->out);
}

ls_status ls_bench_run(ls_bench *b)
{
    int n_run = 0;
    turn_ctx t = {.b = b};
    for (int i = 0; i < b->n_side; i++) n_run += b->side[i].left_out ? 0 : b->repeat;
    if (!b->resume)
        for (int i = 0; i < b->n_side; i++)
            for (int turn = 1; turn <= b->repeat; turn++) {
                char *dir = run_dir(b, &b->side[i], turn);
                if (!dir) return ls_nomem(64, "a path");
                const bool there = ls_fs_exists(dir);
                ls_status st = there
                                   ? ls_fail(LS_E_CONFIG,
                                             "%s exists; add --resume to keep finished runs, or use another --out", dir)
                                   : LS_OK;
                ls_free(dir);
                LS_TRY(st);
            }
    t.p.n_run = n_run;
    for (int turn = 1; turn <= b->repeat; turn++)
        for (int k = 0; k < b->n_side; k++) {
            ls_bench_side *s = &b->side[turn % 2 ? k : b->n_side - 1 - k];
            if (s->left_out) continue;
            t.p.run++;
            t.p.turn = turn;
            t.p.side = s;
            char *dir = run_dir(b, s, turn);
            if (!dir) return ls_nomem(64, "a path");
            ls_status st = one_run(&t, s, dir);
            ls_free(dir);
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
