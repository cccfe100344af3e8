/* Checkpoints of several workers. For any model, number of workers and division into pieces, the folder has the bytes that one
 * worker writes, and a load with any other division gives the same bits. An error of one worker is reported by all. */
/* ls-test: long */
#include "ckpt/checkpoint.h"

#include "ckpt_team.h"
#include "ckpt/hf.h"

#include <fcntl.h>

typedef struct task {
    const ls_model *bare; /* tables only, as under zero3 */
    const char *dir, *name, *tokenizer;
    int64_t step;
    const test_cut *cut;
    bool optimizer;
    int mode; /* load_body: 0 loads a checkpoint, 1 a folder of weights */
} task;

static ls_ckpt_job job_of(const task *t, const team_worker *w)
{
    return (ls_ckpt_job){.model = t->bare,
                         .dir = t->dir,
                         .name = t->name,
                         .step = t->step,
                         .state_json = "{\"lr\": 0.1, \"epoch\": [1, null]}",
                         .tokenizer_path = t->tokenizer,
                         .optimizer = t->optimizer,
                         .keep_last = 2,
                         .piece = t->cut->piece + t->cut->begin[w->rank],
                         .n_piece = t->cut->begin[w->rank + 1] - t->cut->begin[w->rank]};
}

static void save_body(team_worker *w, ls_comm *c)
{
    const task *t = w->arg;
    ls_ckpt_writer *writer = NULL;
    ls_ckpt_job job = job_of(t, w);
    ls_status st = ls_ckpt_writer_create(&writer, t->bare, c);
    TEAM_CHECK(w, st == LS_OK);
    if (st == LS_OK) st = ls_ckpt_post(writer, &job);
    if (st == LS_OK) st = ls_ckpt_wait(writer);
    team_note(w, st);
    const int64_t before = ls_comm_stats(c, LS_COLL_AGREE).calls;
    TEAM_CHECK(w, ls_ckpt_wait(writer) == LS_OK); /* the error is reported once, and this wait sends no message */
    TEAM_CHECK(w, ls_comm_stats(c, LS_COLL_AGREE).calls == before);
    ls_ckpt_writer_destroy(&writer);
}

static void load_body(team_worker *w, ls_comm *c)
{
    const task *t = w->arg;
    const ls_ckpt_job job = job_of(t, w);
    char path[512], *json = NULL;
    int64_t step = -1;
    snprintf(path, sizeof path, "%s/%s", t->dir, t->name);
    ls_status st = t->mode ? ls_hf_load(t->bare, path, job.piece, job.n_piece, c)
                           : ls_ckpt_load(t->bare, path, t->optimizer, job.piece, job.n_piece, c, &json, &step);
    team_note(w, st);
    TEAM_CHECK(w, (json != NULL) == (st == LS_OK && !t->mode));
    TEAM_CHECK(w, !json || !strcmp(json, job.state_json));
    TEAM_CHECK(w, step == (json ? t->step : -1));
    ls_free(json);
}

static void all_ok(const team_worker *w, int size)
{
    for (int r = 0; r < size; r++)
        if (w[r].st != LS_OK) fail_msg("rank %d of %d: %s", r, size, w[r].words);
}

static ls_model_config random_config(uint64_t key)
{
    ls_model_config c = test_config(ls_rng_u64(key, 0) & 1 ? LS_VARIANT_R1 : LS_VARIANT_HF);
    c.n_layer = 1 + (int)(ls_rng_u64(key, 1) % 3);
    c.n_head = 1 + (int)(ls_rng_u64(key, 2) % 3);
    c.n_embd = c.n_head * (2 + (int)(ls_rng_u64(key, 3) % 9));
    c.n_ctx = 3 + (int)(ls_rng_u64(key, 4) % 20);
    c.vocab_size = 5 + (int)(ls_rng_u64(key, 5) % 60);
    if (ls_rng_u64(key, 6) % 3 == 0) { /* several blocks of 1 MiB */
        c.n_embd = c.n_head * 40;
        c.vocab_size = 9000 + (int)(ls_rng_u64(key, 7) % 3000);
    }
    c.eos_id = c.vocab_size - 1;
    return c;
}

static void any_cut_gives_one_workers_files(void **state)
{
    (void)state;
    static const char *const file[] = {"config.json",       "generation_config.json", "tokenizer.json",
                                       "model.safetensors", "optimizer.safetensors",  "trainer_state.json",
                                       "checksums.json"};
    team_worker w[TEAM_MAX];
    for (uint64_t trial = 0; trial < 24; trial++) {
        const uint64_t key = ls_rng_key(4711, LS_RNG_TEST, trial, 0);
        const int size = 2 + (int)(trial % 7), other = 1 + (int)(ls_rng_u64(key, 20) % 8);
        const ls_dtype dt = ls_rng_u64(key, 21) & 1 ? LS_F64 : LS_F32;
        const bool optimizer = ls_rng_u64(key, 22) % 4 != 0;
        char *dir = test_dir();
        test_model m;
        ls_model *bare = NULL;
        const ls_model_config cfg = random_config(key);
        test_model_open(&m, cfg, dt, trial + 1);
        assert_int_equal(ls_model_create(&bare, &cfg, &m.compute, 16), LS_OK);
        char *one = ls_path_join(dir, "one"), *many = ls_path_join(dir, "many"), *tok = ls_path_join(dir, "tok");
        assert_int_equal(ls_fs_write(tok, "{\"t\": 1}", 8), LS_OK);
        task t = {.bare = bare, .dir = one, .name = "step-3", .step = 3, .tokenizer = tok, .optimizer = optimizer};

        /* one worker with the whole model; one worker with pieces; several workers */
        test_cut *mine = test_cut_make(m.m, size, key ^ 1), *theirs = test_cut_make(m.m, other, key ^ 2);
        test_cut *alone = test_cut_make(m.m, 1, key ^ 3);
        test_cut_fill(mine, m.m);
        test_cut_fill(alone, m.m);
        t.cut = alone;
        ls_ckpt_job job = job_of(&t, &(team_worker){.rank = 0});
        job.name = "epoch-1";
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        job.name = "step-3";
        job.model = m.m;
        job.piece = NULL;
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        t.cut = mine;
        t.dir = many;
        team_run(size, save_body, &t, w);
        all_ok(w, size);
        assert_int_equal(test_n_entries(many), 1);
        for (size_t i = 0; i < N_OF(file); i++) {
            const char *p = test_path(one, "step-3", file[i]);
            if (!optimizer && !strcmp(file[i], "optimizer.safetensors")) continue;
            assert_equal_files(p, test_path(many, "step-3", file[i]));
            assert_equal_files(p, test_path(one, "epoch-1", file[i]));
        }
        assert_int_equal(test_n_entries(test_path(many, "step-3", NULL)), optimizer ? 7 : 6);
        assert_int_equal(ls_ckpt_verify(test_path(many, "step-3", NULL), true), LS_OK);

        /* load with another cut and number of workers; then only the weights, as a checkpoint and as a folder of weights */
        t.cut = theirs;
        team_run(other, load_body, &t, w);
        all_ok(w, other);
        assert_true(test_cut_same(theirs, m.m, optimizer));
        for (int mode = 0; mode < 2; mode++) {
            test_cut *again = test_cut_make(m.m, other, key ^ 4);
            t.cut = again;
            t.mode = mode;
            t.optimizer = false;
            team_run(other, load_body, &t, w);
            all_ok(w, other);
            assert_true(test_cut_same(again, m.m, 0));
            test_cut_free(again);
        }
        test_cut_free(mine);
        test_cut_free(theirs);
        test_cut_free(alone);
        ls_free(one);
        ls_free(many);
        ls_free(tok);
        ls_model_destroy(&bare);
        test_model_close(&m);
        test_dir_close(dir);
    }
}

/* ---- errors ---- */

typedef struct scene {
    char *dir;
    test_model m;
    ls_model *bare;
    test_cut *cut;
    task t;
} scene;

/* A model of several blocks, cut for `size` workers, saved as step-1 and step-2. */
static void open_scene(scene *s, int size)
{
    ls_model_config cfg = test_config(LS_VARIANT_HF);
    team_worker w[TEAM_MAX];
    cfg.n_embd = 60;
    cfg.vocab_size = 9000;
    cfg.eos_id = 8999;
    s->dir = test_dir();
    test_model_open(&s->m, cfg, LS_F32, 7);
    assert_int_equal(ls_model_create(&s->bare, &cfg, &s->m.compute, 16), LS_OK);
    s->cut = test_cut_make(s->m.m, size, 99);
    test_cut_fill(s->cut, s->m.m);
    s->t = (task){.bare = s->bare, .dir = s->dir, .name = "step-1", .step = 1, .cut = s->cut, .optimizer = true};
    team_run(size, save_body, &s->t, w);
    all_ok(w, size);
    s->t.name = "step-2";
    s->t.step = 2;
    team_run(size, save_body, &s->t, w);
    all_ok(w, size);
}

static void close_scene(scene *s)
{
    test_cut_free(s->cut);
    ls_model_destroy(&s->bare);
    test_model_close(&s->m);
    test_dir_close(s->dir);
}

/* Damage in the share of any worker: all workers report its place and the newest complete checkpoint, and no memory is written. */
static void damage_fails_every_worker_and_changes_nothing(void **state)
{
    (void)state;
    scene s;
    team_worker w[TEAM_MAX];
    open_scene(&s, 3);
    static const char *const file[] = {"model.safetensors", "optimizer.safetensors", "config.json"};
    for (size_t i = 0; i < N_OF(file); i++) {
        char *path = ls_strdup(test_path(s.dir, "step-2", file[i]));
        int64_t n;
        assert_int_equal(ls_fs_size(path, &n), LS_OK);
        for (int64_t at = 1; at < n; at += n / 7 + 1) {
            test_cut *into = test_cut_make(s.m.m, 3, (uint64_t)at);
            task t = s.t;
            t.cut = into;
            test_flip(path, (long)at);
            team_run(3, load_body, &t, w);
            for (int r = 0; r < 3; r++) {
                assert_int_equal(w[r].st, LS_E_FORMAT);
                assert_string_equal(w[r].words, w[0].words);
            }
            assert_non_null(strstr(w[0].words, file[i]));
            assert_non_null(strstr(w[0].words, "is damaged: bytes "));
            assert_non_null(strstr(w[0].words, "the newest complete checkpoint is "));
            if (i < 2 && at > n / 4) assert_non_null(strstr(w[0].words, ".weight"));
            assert_true(test_cut_untouched(into, s.m.m));
            test_flip(path, (long)at);
            test_cut_free(into);
        }
        ls_free(path);
    }
    /* a folder that does not exist; a damaged folder that is loaded for its weights only */
    test_cut *into = test_cut_make(s.m.m, 3, 5);
    task t = s.t;
    t.cut = into;
    t.name = "step-7";
    team_run(3, load_body, &t, w);
    for (int r = 0; r < 3; r++) assert_int_equal(w[r].st, LS_E_IO);
    t.name = "step-2";
    t.mode = 1;
    test_flip(test_path(s.dir, "step-2", "model.safetensors"), 2000000);
    team_run(3, load_body, &t, w);
    team_assert_failed(w, 3, LS_E_FORMAT, "model.safetensors is damaged: bytes 1048576 to 2097151");
    assert_true(test_cut_untouched(into, s.m.m));
    test_cut_free(into);
    close_scene(&s);
}

/* A piece of parameters that begins right after a piece of another worker. */
static ls_piece *bendable(test_cut *c, const ls_model *m)
{
    for (int r = 0; r < c->size; r++)
        for (int i = c->begin[r]; i < c->begin[r + 1] - 1; i++) {
            ls_piece *p = &c->piece[i];
            bool fits =
                p->n >= 20 && p->what == LS_FLAT_PARAM && p->first >= 3 && p->first + p->n <= m->unit[p->unit].n;
            for (int j = c->begin[r]; j < c->begin[r + 1]; j++) {
                const ls_piece *q = &c->piece[j];
                if (q->what == p->what && q->unit == p->unit && q->first < p->first && q->first + q->n > p->first - 3)
                    fits = false;
            }
            if (fits) return p;
        }
    fail_msg("no such piece");
    return NULL;
}

/* Pieces with a hole, an overlap or an unknown unit, and a bad name: all workers refuse, and the run folder stays unchanged. */
static void pieces_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    scene s;
    team_worker w[TEAM_MAX];
    open_scene(&s, 3);
    static const char *const words[] = {"all workers together write", "is outside this model",
                                        "has no parameters",          "overlap and leave holes in model.safetensors",
                                        "would be written twice",     "invalid checkpoint name"};
    for (size_t k = 0; k < N_OF(words); k++) {
        test_cut bent = *s.cut;
        task t = s.t;
        t.name = k == 5 ? "no/name" : "step-3";
        t.cut = &bent;
        ls_piece *p = bendable(&bent, s.bare);
        if (k == 0) p->n -= 3;
        if (k == 1) p->unit = 99;
        if (k == 2) p->data = NULL;
        if (k == 3) p->first -= 3;
        if (k == 4) p[1] = *p;
        team_run(3, save_body, &t, w);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(w[r].st, LS_E_INTERNAL);
            assert_non_null(strstr(w[r].words, words[k]));
        }
        assert_int_equal(test_n_entries(s.dir), 2);
        assert_int_equal(ls_ckpt_verify(test_path(s.dir, "step-2", NULL), true), LS_OK);
    }
    close_scene(&s);
}

/* Many jobs of one writer with other collectives between them, as in training. The writer is destroyed before the last job is done. */
static void stream_body(team_worker *w, ls_comm *c)
{
    const task *t = w->arg;
    ls_ckpt_writer *writer = NULL;
    char name[32];
    TEAM_CHECK(w, ls_ckpt_writer_create(&writer, t->bare, c) == LS_OK);
    for (int step = 3; step < 12; step++) {
        ls_ckpt_job job = job_of(t, w);
        snprintf(name, sizeof name, step == 8 ? "epoch-1" : "step-%d", step);
        job.name = name;
        job.step = step;
        job.optimizer = step % 3 != 0;
        TEAM_CHECK(w, ls_ckpt_post(writer, &job) == LS_OK); /* waits for the previous job */
        memset(name, 'x', sizeof name);
        for (int k = 0; k < 5; k++) {
            double x = w->rank;
            TEAM_CHECK(w, ls_all_reduce(c, (ls_view){&x, 1, LS_F64}, LS_SITE, NULL) == LS_OK);
            TEAM_CHECK(w, x == w->size * (w->size - 1) / 2);
        }
        if (step % 2) TEAM_CHECK(w, ls_ckpt_wait(writer) == LS_OK);
    }
    ls_ckpt_job job = job_of(t, w);
    job.name = "step-99";
    TEAM_CHECK(w, ls_ckpt_wait(writer) == LS_OK);
    TEAM_CHECK(w, ls_ckpt_post(writer, &job) == LS_OK);
    ls_ckpt_writer_destroy(&writer);
}

static void a_writer_saves_many_jobs_in_turn(void **state)
{
    (void)state;
    scene s;
    team_worker w[TEAM_MAX];
    open_scene(&s, 4);
    team_run(4, stream_body, &s.t, w);
    assert_int_equal(test_n_entries(s.dir), 3); /* step-10, step-11, epoch-1 */
    static const char *const name[] = {"step-10", "step-11", "epoch-1"};
    for (size_t i = 0; i < N_OF(name); i++)
        assert_int_equal(ls_ckpt_verify(test_path(s.dir, name[i], NULL), true), LS_OK);
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_gives_one_workers_files),
        cmocka_unit_test(damage_fails_every_worker_and_changes_nothing),
        cmocka_unit_test(pieces_that_do_not_fit_are_refused),
        cmocka_unit_test(a_writer_saves_many_jobs_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
