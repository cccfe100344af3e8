/* The benchmark protocol with a fake trainer: order of runs, folders, resuming, other commands, failures, stops; splitting of arguments, layouts. */
#include "bench/protocol.h"
#include "cmocka_all.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/stop.h"
#include "test_folder.h"
#include "assert_text.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void check(ls_status st)
{
    if (st != LS_OK) fail_msg("%s", ls_err_words());
}

/* --- arguments --- */

static void arguments_are_split_as_a_shell_does(void **state)
{
    (void)state;
    ls_argv w = {0};
    ls_str s = {0};
    check(ls_argv_split(&w, "  --a 'two words' \"it's\" '' x\\y --c=\"d e\"f "));
    const char *const want[] = {"--a", "two words", "it's", "", "x\\y", "--c=d ef"};
    assert_int_equal(w.n, N_OF(want));
    for (int i = 0; i < w.n; i++) assert_string_equal(w.word[i], want[i]);
    assert_null(w.word[w.n]);
    ls_argv_show(&w, &s);
    assert_string_equal(s.data, "--a 'two words' 'it'\\''s' '' 'x\\y' '--c=d ef'");
    ls_argv_fini(&w);
    check(ls_argv_split(&w, "   "));
    assert_int_equal(w.n, 0);
    assert_int_equal(ls_argv_split(&w, "a 'b"), LS_E_ARG);
    assert_words("unclosed quote");
    ls_argv_fini(&w);
    ls_str_fini(&s);
}

static void layouts_become_the_flags_of_train(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        int workers;
        const char *flags; /* NULL: does not fit */
    } t[] = {{"ddp", 2, "-n 2 --strategy ddp"},
             {"single", 1, "-n 1 --strategy single"},
             {"single", 2, NULL},
             {"zero3", 1, NULL},
             {"pp-1f1b", 4, "-n 4 --pp 4 --schedule 1f1b"},
             {"pp", 2, "-n 2 --pp 2"},
             {"pp2-interleaved", 2, "-n 2 --pp 2 --schedule interleaved --interleave 2"},
             {"pp2-zb", 4, "-n 4 --strategy ddp --pp 2 --schedule zb"},
             {"zero1+pp2-gpipe", 8, "-n 8 --strategy zero1 --pp 2 --schedule gpipe"},
             {"ddp+pp2-1f1b", 2, NULL},
             {"pp3", 4, NULL},
             {"tp", 4, "-n 4 --tp 4"},
             {"tp2+pp", 8, "-n 8 --pp 4 --tp 2"},
             {"tp+pp", 8, NULL}};
    for (size_t i = 0; i < N_OF(t); i++) {
        ls_layout l;
        ls_argv w = {0};
        ls_str s = {0};
        char why[160];
        check(ls_layout_parse(t[i].word, &l));
        const bool fits = ls_layout_fit(&l, t[i].workers, why, sizeof why);
        if (fits != (t[i].flags != NULL)) fail_msg("%s on %d: fits %d (%s)", t[i].word, t[i].workers, fits, why);
        if (!fits) {
            assert_true(why[0]);
            continue;
        }
        check(ls_layout_words(&l, t[i].workers, &w));
        ls_argv_show(&w, &s);
        assert_string_equal(s.data, t[i].flags);
        ls_argv_fini(&w);
        ls_str_fini(&s);
    }
    static const char *const bad[] = {"",    "x",   "ddp+", "+ddp",     "ddp++pp2",  "pp1",
                                      "pp0", "ppx", "pp2-", "tp2-1f1b", "ddp+zero1", "pp2+pp2"};
    for (size_t i = 0; i < N_OF(bad); i++) {
        ls_layout l;
        if (ls_layout_parse(bad[i], &l) != LS_E_ARG) fail_msg("'%s' is accepted", bad[i]);
    }
}

/* --- runs --- */

/* Writes the files of a finished run, and one line per run to `order`. With FAIL in the arguments it fails as the trainer does; with SLEEP it waits. */
static const char stand_in[] =
    "#!/bin/sh\n"
    "case \" $* \" in\n"
    "  *--print_config*BAD*|*BAD*--print_config*) echo 'lockstep: invalid configuration: 5 is no multiple of 4' >&2; echo '  at x.c:1' >&2; exit 2;;\n"
    "  *--print_config*) echo '{\"micro_batch_size_per_gpu\": {\"value\": 2}, \"grad_accum_steps\": {\"value\": 3}, "
    "\"global_batch_size\": {\"value\": 6}, \"threads\": {\"value\": 4}, \"max_steps\": {\"value\": null}, "
    "\"epochs\": {\"value\": 2}, \"max_train_steps\": {\"value\": 10}}'; exit 0;;\n"
    "esac\n"
    "for w in \"$@\"; do dir=$w; done\n" /* the last argument is the folder of the run */
    "echo \"$dir\" >> \"${dir%/*/*}/order\"\n"
    "case \" $* \" in *FAIL*) echo 'lockstep: rank 1: a worker or a collective failed: it broke' >&2; exit 4;; *FULL*) echo 'lockstep: rank 0: I/O error: write x: No space left on device' >&2; exit 3;; *MUTE*) exit 3;; *CUT*) echo 'lockstep: bad input data: train.bin ends early' >&2; exit 3;; *SLEEP*) exec sleep 30;; esac\n"
    "mkdir -p \"$dir/epoch-1\"\n"
    "echo \"{\\\"command_line\\\": \\\"$0 $*\\\"}\" > \"$dir/training_metrics.json\"\n"
    "echo '[Rank 0] RUN_COMPLETE checkpoint_path=x world_size=1 tokens_per_sec=12.5 total_wall_time_sec=1.0' > \"$dir/RUN_COMPLETE.txt\"\n";

typedef struct place {
    char *dir, program[160], out[160];
    int n[5]; /* events */
    double last_left;
    bool stop;
} place;

static void on_event(void *ctx, const ls_bench_progress *p)
{
    place *x = ctx;
    x->n[p->event]++;
    x->last_left = p->left;
    assert_true(p->run >= 1 && p->run <= p->n_run && p->side);
    if (p->event == LS_BENCH_DONE || p->event == LS_BENCH_REUSED) assert_true(p->tokens_per_sec == 12.5);
    if (x->stop) ls_stop_raise(SIGINT);
}

static place new_place(void)
{
    place p = {.dir = test_dir()};
    snprintf(p.program, sizeof p.program, "%s/program", p.dir);
    snprintf(p.out, sizeof p.out, "%s/out", p.dir);
    check(ls_fs_write(p.program, stand_in, sizeof stand_in - 1));
    assert_int_equal(chmod(p.program, 0700), 0);
    return p;
}

static ls_bench new_bench(place *p, int repeat, const char *a, const char *b)
{
    ls_bench x = {.program = p->program, .out = p->out, .repeat = repeat, .progress = on_event, .ctx = p};
    ls_bench_side *s = ls_bench_add(&x, "1gpu_a", 1);
    check(ls_argv_split(&s->words, a));
    s = ls_bench_add(&x, "2gpu_b", 2);
    check(ls_argv_split(&s->words, b));
    return x;
}

static void order_is(const place *p, const char *want)
{
    char path[200], *text = NULL, got[512] = "";
    size_t n;
    snprintf(path, sizeof path, "%s/order", p->out);
    check(ls_fs_read(path, &text, &n));
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        *end = '\0';
        const size_t skip = strlen(p->out) + 1, at = strlen(got);
        snprintf(got + at, sizeof got - at, "%s%s", at ? " " : "", line + skip);
    }
    assert_string_equal(got, want);
    ls_free(text);
}

static bool exists(const place *p, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", p->out, name);
    return ls_fs_exists(path);
}

static void sides_run_in_alternating_turns(void **state)
{
    (void)state;
    place p = new_place();
    ls_bench b = new_bench(&p, 3, "--x 1", "--x 2");
    check(ls_bench_check(&b, &b.side[0]));
    assert_int_equal(b.side[0].micro_batch, 2);
    assert_int_equal(b.side[0].global_batch, 6);
    assert_int_equal(b.side[0].threads, 4);
    assert_int_equal(b.side[0].steps, 6); /* 2 epochs of 10 micro-batches, 3 per step */
    check(ls_bench_run(&b));
    order_is(&p, "1gpu_a/run_1 2gpu_b/run_1 2gpu_b/run_2 1gpu_a/run_2 1gpu_a/run_3 2gpu_b/run_3");
    assert_int_equal(p.n[LS_BENCH_DONE], 6);
    assert_true(p.last_left == 0);
    assert_true(exists(&p, "1gpu_a/run_1/train.log") && exists(&p, "2gpu_b/run_3/stderr.log"));
    assert_false(exists(&p, "1gpu_a/run_1/epoch-1")); /* checkpoints are dropped */
    ls_argv w = {0};
    ls_str s = {0};
    check(ls_bench_command(&b, &b.side[1], 2, &w));
    ls_argv_show(&w, &s);
    assert_non_null(strstr(s.data, "/program train --x 2 --checkpoint_path "));
    assert_non_null(strstr(s.data, "2gpu_b/run_2"));
    ls_argv_fini(&w);
    ls_str_fini(&s);
    ls_bench_fini(&b);
    test_dir_close(p.dir);
}

static void resuming_keeps_finished_runs(void **state)
{
    (void)state;
    place p = new_place();
    ls_bench b = new_bench(&p, 1, "--x 1", "--x 2");
    b.keep_checkpoints = true;
    check(ls_bench_run(&b));
    assert_true(exists(&p, "1gpu_a/run_1/epoch-1"));
    assert_int_equal(ls_bench_run(&b), LS_E_CONFIG); /* nothing is overwritten without --resume */
    assert_words("--resume");
    ls_bench_fini(&b);
    char path[256];
    snprintf(path, sizeof path, "%s/2gpu_b/run_1/RUN_COMPLETE.txt", p.out); /* as if the run had been stopped */
    unlink(path);
    b = new_bench(&p, 2, "--x 1", "--x 2");
    b.resume = true;
    memset(p.n, 0, sizeof p.n);
    check(ls_bench_run(&b));
    assert_int_equal(p.n[LS_BENCH_REUSED], 1);
    assert_int_equal(p.n[LS_BENCH_DONE], 3);
    order_is(&p, "1gpu_a/run_1 2gpu_b/run_1 2gpu_b/run_1 2gpu_b/run_2 1gpu_a/run_2");
    ls_bench_fini(&b);
    b = new_bench(&p, 1, "--x 7", "--x 2"); /* the folder belongs to another command */
    b.resume = true;
    assert_int_equal(ls_bench_run(&b), LS_E_CONFIG);
    assert_words("another command");
    ls_bench_fini(&b);
    test_dir_close(p.dir);
}

static void a_failed_run_is_named_with_its_cause(void **state)
{
    (void)state;
    place p = new_place();
    ls_bench b = new_bench(&p, 2, "--x 1", "--x FAIL");
    assert_int_equal(ls_bench_run(&b), LS_E_COMM);
    assert_words("2gpu_b run_1 ended with exit code 4");
    assert_words("stderr.log): it broke");
    ls_bench_fini(&b);
    ls_fs_remove_tree(p.out);
    b = new_bench(&p, 1, "--x FULL", "--x 2"); /* exit code 3 means bad data or a full disk */
    assert_int_equal(ls_bench_run(&b), LS_E_IO);
    assert_words("No space left on device");
    ls_bench_fini(&b);
    ls_fs_remove_tree(p.out);
    b = new_bench(&p, 1, "--x MUTE", "--x 2"); /* so full that no message could be written */
    assert_int_equal(ls_bench_run(&b), LS_E_IO);
    ls_bench_fini(&b);
    ls_fs_remove_tree(p.out);
    b = new_bench(&p, 1, "--x CUT", "--x 2");
    assert_int_equal(ls_bench_run(&b), LS_E_FORMAT);
    ls_bench_fini(&b);
    b = new_bench(&p, 2, "--x BAD", "--x 2");
    assert_int_equal(ls_bench_check(&b, &b.side[0]), LS_E_CONFIG);
    assert_string_equal(ls_err_words(), "1gpu_a: 5 is no multiple of 4");
    ls_bench_fini(&b);
    ls_fs_remove_tree(p.out);
    memset(p.n, 0, sizeof p.n);
    b = new_bench(&p, 2, "--x 1", "--x FAIL"); /* the other side continues with go_on */
    b.go_on = true;
    check(ls_bench_run(&b));
    assert_int_equal(p.n[LS_BENCH_DONE], 2);
    assert_int_equal(p.n[LS_BENCH_FAILED], 1);
    assert_int_equal(b.side[1].failed, LS_E_COMM);
    assert_non_null(strstr(b.side[1].left_out, "it broke"));
    ls_bench_fini(&b);
    b = new_bench(&p, 1, "--x 1", "--x 2");
    b.program = "/nowhere/at/all";
    b.resume = true;
    ls_fs_remove_tree(p.out);
    assert_int_equal(ls_bench_run(&b), LS_E_COMM);
    assert_words("exit code 127");
    ls_bench_fini(&b);
    test_dir_close(p.dir);
}

static void a_stopped_benchmark_keeps_finished_runs(void **state)
{
    (void)state;
    place p = new_place();
    ls_bench b = new_bench(&p, 2, "--x 1", "--x SLEEP");
    check(ls_fs_mkdirs(p.out));
    ls_bench_fini(&b);
    b = new_bench(&p, 1, "--x 1", "--x 2");
    check(ls_bench_run(&b));
    ls_bench_fini(&b);
    b = new_bench(&p, 2, "--x 1", "--x 2");
    b.resume = true;
    ls_argv_fini(&b.side[1].words);
    check(ls_argv_split(&b.side[1].words, "--x SLEEP"));
    snprintf(b.side[1].name, sizeof b.side[1].name, "2gpu_c");
    p.stop = true; /* from the next event on: the sleeping run is stopped */
    const ls_status st = ls_bench_run(&b);
    ls_stop_raise(0);
    assert_int_equal(st, LS_E_STOPPED);
    assert_words("1 of 4 runs are finished");
    assert_words("--resume");
    assert_true(exists(&p, "1gpu_a/run_1/RUN_COMPLETE.txt"));
    ls_bench_fini(&b);
    test_dir_close(p.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(arguments_are_split_as_a_shell_does),
                                       cmocka_unit_test(layouts_become_the_flags_of_train),
                                       cmocka_unit_test(sides_run_in_alternating_turns),
                                       cmocka_unit_test(resuming_keeps_finished_runs),
                                       cmocka_unit_test(a_failed_run_is_named_with_its_cause),
                                       cmocka_unit_test(a_stopped_benchmark_keeps_finished_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
