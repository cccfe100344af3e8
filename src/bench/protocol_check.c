/* protocol_check.c - checks the arguments of each side with `train --print_config` before anything runs. */
#include "bench/protocol_impl.h"

#include "bench/child.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t whole(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(json_object_get(root, key), "value");
    return json_is_integer(v) ? json_integer_value(v) : 0;
}

static ls_status read_settings(const char *dir, ls_bench_side *s)
{
    char *path = ls_path_join(dir, "out");
    json_t *root = NULL;
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = ls_json_load(path, &root);
    ls_free(path);
    LS_TRY(st);
    s->micro_batch = whole(root, "micro_batch_size_per_gpu");
    s->grad_accum = whole(root, "grad_accum_steps");
    s->global_batch = whole(root, "global_batch_size");
    s->threads = (int)whole(root, "threads");
    s->steps = whole(root, "max_steps");
    if (!s->steps && s->grad_accum) s->steps = whole(root, "epochs") * (whole(root, "max_train_steps") / s->grad_accum);
    json_decref(root);
    if (!s->micro_batch || !s->grad_accum) return ls_fail(LS_E_FORMAT, "train --print_config printed no batch size");
    return LS_OK;
}

ls_status ls_bench_check(const ls_bench *b, ls_bench_side *s)
{
    const char *tmp = getenv("TMPDIR");
    char dir[4096];
    ls_argv w = {0};
    ls_str words = {0};
    char *out = NULL, *err = NULL;
    int code = 0;
    ls_status st = LS_OK;
    snprintf(dir, sizeof dir, "%.4000s/lockstep-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) return ls_fail(LS_E_IO, "mkdtemp %s: %s", dir, strerror(errno));
    out = ls_path_join(dir, "out");
    err = ls_path_join(dir, "err");
    if (!out || !err) {
        st = ls_nomem(64, "a path");
        goto done;
    }
    LS_TRY_GOTO(st, done, bench_words(s, "none", &w));
    LS_TRY_GOTO(st, done, ls_argv_add(&w, "--print_config"));
    LS_TRY_GOTO(st, done, ls_argv_add(&w, "--json"));
    LS_TRY_GOTO(
        st, done,
        ls_child_run(&(ls_child){.program = b->program, .out_path = out, .err_path = err, .words = &w, .grace = 1},
                     &code));
    if (code) {
        bench_tail(dir, "err", 40, &words);
        const ls_status why = bench_status(code, words.data);
        bench_own_words(&words);
        st = ls_fail(why, "%s: %s", s->name, words.data ? words.data : "train rejects the configuration");
    } else {
        st = read_settings(dir, s);
    }
done:
    ls_str_fini(&words);
    ls_argv_fini(&w);
    ls_free(out);
    ls_free(err);
    (void)ls_fs_remove_tree(dir);
    return st;
}
