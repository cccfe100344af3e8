/* Checkpoint folders: a load restores the saved bits, an error names the damaged file, and folders appear and disappear atomically. */
#include "st_write.h"
#include "ckpt/checkpoint.h"

#include "ckpt_support.h"
#include "core/hash.h"
#include "core/json.h"
#include "ckpt/export.h"
#include "ckpt/hf.h"
#include "ckpt/safetensors.h"

#include <sys/file.h>
#include <fcntl.h>
#include <sys/stat.h>

static ls_ckpt_job job_of(const test_model *t, const char *dir, const char *name, int64_t step)
{
    return (ls_ckpt_job){.model = t->m,
                         .dir = dir,
                         .name = name,
                         .step = step,
                         .state_json = "{\"lr\": 0.1, \"epoch\": [1, null]}",
                         .optimizer = true};
}

static void save(const test_model *t, const char *dir, const char *name, int64_t step, int keep)
{
    ls_ckpt_job job = job_of(t, dir, name, step);
    job.keep_last = keep;
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
}

static void a_loaded_model_has_the_saved_bits(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        char *dir = test_dir(), *json = NULL;
        int64_t step = 0;
        test_model a, b;
        ls_variant v = k & 1 ? LS_VARIANT_R1 : LS_VARIANT_HF;
        ls_dtype dt = k & 2 ? LS_F64 : LS_F32;
        test_model_open(&a, test_config(v), dt, 11);
        test_model_open(&b, test_config(v), dt, 22);
        assert_int_equal(ls_fs_write(test_path(dir, "tok.json", NULL), "{\"t\": 1}", 8), LS_OK);
        ls_ckpt_job job = job_of(&a, dir, "step-40", 40);
        job.tokenizer_path = test_path(dir, "tok.json", NULL);
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        assert_int_equal(test_n_entries(test_path(dir, "step-40", NULL)), 7);
        assert_int_equal(test_n_entries(dir), 2); /* no hidden temporary folders */
        assert_equal_files(test_path(dir, "tok.json", NULL), test_path(dir, "step-40", "tokenizer.json"));

        assert_false(test_same(a.m, b.m, 1));
        memset((char *)b.m->unit[0].param + (size_t)b.m->unit[0].n * ls_dtype_nbytes(dt), 0x7f, ls_dtype_nbytes(dt));
        assert_int_equal(ls_ckpt_load(b.m, test_path(dir, "step-40", NULL), true, NULL, 0, NULL, &json, &step), LS_OK);
        assert_true(test_same(a.m, b.m, 1));
        for (int64_t i = b.m->unit[0].n; i < b.m->unit[0].n_pad; i++) /* padding is zero, as in a fresh model */
            assert_true(dt == LS_F64 ? ((double *)b.m->unit[0].param)[i] == 0 : ((float *)b.m->unit[0].param)[i] == 0);
        assert_int_equal(step, 40);
        assert_string_equal(json, "{\"lr\": 0.1, \"epoch\": [1, null]}");
        ls_free(json);

        /* the file has the head's weights only if they are not tied to wte */
        ls_st_file f;
        assert_int_equal(ls_st_open(&f, test_path(dir, "step-40", "model.safetensors")), LS_OK);
        assert_int_equal(ls_st_find(&f, "lm_head.weight") != NULL, v == LS_VARIANT_R1);
        assert_int_equal(f.tensor[0].dt, dt);
        assert_int_equal(f.data_at % 8, 0);
        ls_st_close(&f);
        test_model_close(&a);
        test_model_close(&b);
        test_dir_close(dir);
    }
}

static void equal_states_give_equal_files(void **state)
{
    (void)state;
    static const char *const file[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                       "trainer_state.json", "checksums.json"};
    char *dir = test_dir();
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    save(&a, test_path(dir, "x", NULL), "epoch-1", 7, 0);
    save(&a, test_path(dir, "y", NULL), "epoch-1", 7, 0);
    for (size_t i = 0; i < N_OF(file); i++) {
        char *p = ls_path_join(dir, "x/epoch-1"), *q = ls_path_join(dir, "y/epoch-1");
        assert_equal_files(test_path(p, file[i], NULL), test_path(q, file[i], NULL));
        ls_free(p);
        ls_free(q);
    }
    test_model_close(&a);
    test_dir_close(dir);
}

/* A flipped bit in any file fails the load: the error names the file and the newest complete checkpoint, and the model stays
 * unchanged. */
static void a_flipped_bit_is_found_and_named(void **state)
{
    (void)state;
    static const char *const file[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                       "generation_config.json", "trainer_state.json"};
    char *dir = test_dir();
    test_model a, b;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 6);
    save(&b, dir, "step-1", 1, 0);
    save(&b, dir, "step-2", 2, 0);
    save(&b, dir, "step-4", 4, 0);
    save(&a, dir, "step-3", 3, 0);
    test_flip(test_path(dir, "step-2", "model.safetensors"), 999); /* the next older one is damaged too */
    for (size_t i = 0; i < N_OF(file); i++) {
        char *path = ls_strdup(test_path(dir, "step-3", file[i]));
        int64_t n;
        assert_int_equal(ls_fs_size(path, &n), LS_OK);
        for (int64_t at = 0; at < n; at += n / 23 + 1) {
            test_flip(path, (long)at);
            ls_status st = ls_ckpt_load(b.m, test_path(dir, "step-3", NULL), true, NULL, 0, NULL, NULL, NULL);
            assert_int_equal(st, LS_E_FORMAT);
            assert_words(file[i]);
            if (strcmp(file[i], "trainer_state.json")) assert_words("step-1");
            test_flip(path, (long)at);
        }
        ls_free(path);
    }
    assert_false(test_same(a.m, b.m, 0));
    const char *model = test_path(dir, "step-3", "model.safetensors");
    int64_t n;
    assert_int_equal(ls_fs_size(model, &n), LS_OK);
    test_flip(model, (long)n - 3);
    assert_int_equal(ls_ckpt_load(b.m, test_path(dir, "step-3", NULL), true, NULL, 0, NULL, NULL, NULL), LS_E_FORMAT);
    assert_words("transformer.wte.weight"); /* among the tensors of the damaged MiB */
    assert_int_equal(ls_hf_load(b.m, test_path(dir, "step-3", NULL), NULL, 0, NULL), LS_E_FORMAT);
    test_flip(model, (long)n - 3);
    test_flip(test_path(dir, "step-3", "optimizer.safetensors"), 5000);
    assert_int_equal(ls_ckpt_load(b.m, test_path(dir, "step-3", NULL), false, NULL, 0, NULL, NULL, NULL),
                     LS_OK); /* a file that is not read is not checked */
    assert_true(test_same(a.m, b.m, 0));
    test_model_close(&a);
    test_model_close(&b);
    test_dir_close(dir);
}

static void missing_or_truncated_files_are_named(void **state)
{
    (void)state;
    static const char *const file[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                       "trainer_state.json", "checksums.json"};
    char *dir = test_dir();
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_R1), LS_F32, 5);
    for (size_t i = 0; i < N_OF(file); i++)
        for (int cut = 0; cut < 2; cut++) {
            save(&a, dir, "step-9", 9, 0);
            const char *path = test_path(dir, "step-9", file[i]);
            if (cut) assert_int_equal(truncate(path, 100), 0);
            else assert_int_equal(unlink(path), 0);
            assert_int_equal(ls_ckpt_load(a.m, test_path(dir, "step-9", NULL), true, NULL, 0, NULL, NULL, NULL),
                             LS_E_FORMAT);
            assert_words(file[i]);
            assert_words("there is no older complete checkpoint: restore ");
        }
    assert_int_equal(ls_ckpt_load(a.m, test_path(dir, "none", NULL), true, NULL, 0, NULL, NULL, NULL), LS_E_IO);
    assert_int_equal(ls_ckpt_load(a.m, dir, true, NULL, 0, NULL, NULL, NULL), LS_E_FORMAT);
    assert_words("not a lockstep checkpoint");
    test_model_close(&a);
    test_dir_close(dir);
}

static void a_checkpoint_of_another_model_is_refused(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a, b;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    save(&a, dir, "step-9", 9, 0);
    for (int k = 0; k < 8; k++) {
        ls_model_config c = test_config(LS_VARIANT_HF);
        const char *words[] = {"2 layers; this model has 3",     "2 heads; this model has 3",
                               "12 channels; this model has 24", "10 positions; this model has 11",
                               "33 tokens in the vocabulary",    "a tied head",
                               "F32; this run uses F64",         "tanh GELU"};
        if (k == 0) c.n_layer = 3;
        if (k == 1) c.n_head = 3;
        if (k == 2) c.n_embd = 24;
        if (k == 3) c.n_ctx = 11;
        if (k == 4) c.vocab_size = 34;
        if (k == 5) c.tied = false;
        if (k == 7) c.gelu = LS_GELU_ERF;
        test_model_open(&b, c, k == 6 ? LS_F64 : LS_F32, 6);
        assert_int_equal(ls_ckpt_load(b.m, test_path(dir, "step-9", NULL), true, NULL, 0, NULL, NULL, NULL),
                         LS_E_CONFIG);
        assert_words(words[k]);
        if (k == 6)
            assert_int_equal(ls_ckpt_load(b.m, test_path(dir, "step-9", NULL), false, NULL, 0, NULL, NULL, NULL),
                             LS_OK); /* loading the weights alone converts them */
        test_model_close(&b);
    }
    ls_ckpt_job job = job_of(&a, dir, "step-10", 10);
    job.optimizer = false;
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    assert_int_equal(ls_ckpt_load(a.m, test_path(dir, "step-10", NULL), true, NULL, 0, NULL, NULL, NULL), LS_E_CONFIG);
    assert_words("has no optimizer state");
    assert_int_equal(ls_ckpt_load(a.m, test_path(dir, "step-10", NULL), false, NULL, 0, NULL, NULL, NULL), LS_OK);
    test_model_close(&a);
    test_dir_close(dir);
}

static void keep_last_prunes_steps_but_not_epochs(void **state)
{
    (void)state;
    char *dir = test_dir(), *path = NULL;
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    assert_int_equal(ls_ckpt_latest(test_path(dir, "none", NULL), &path), LS_OK);
    assert_null(path);
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
    assert_null(path);
    save(&a, dir, "epoch-1", 9, 2);
    save(&a, dir, "step-8", 8, 2);
    save(&a, dir, "step-10", 10, 2);
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK); /* by number, not by letters */
    assert_string_equal(path, test_path(dir, "step-10", NULL));
    ls_free(path);
    save(&a, dir, "step-12", 12, 2);
    assert_false(ls_fs_exists(test_path(dir, "step-8", NULL)));
    save(&a, dir, "step-100", 100, 2);
    assert_true(ls_fs_exists(test_path(dir, "step-12", NULL)));
    assert_false(ls_fs_exists(test_path(dir, "step-10", NULL)));
    save(&a, dir, "epoch-2", 200, 1);
    assert_false(ls_fs_exists(test_path(dir, "step-12", NULL)));
    assert_true(ls_fs_exists(test_path(dir, "step-100", NULL)));
    assert_true(ls_fs_exists(test_path(dir, "epoch-1", NULL)));
    assert_int_equal(test_n_entries(dir), 3);
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
    assert_string_equal(path, test_path(dir, "epoch-2", NULL));
    ls_free(path);

    assert_int_equal(mkdir(test_path(dir, "step-999", NULL), 0777), 0); /* an empty folder: not a checkpoint */
    assert_int_equal(mkdir(test_path(dir, "step-9x", NULL), 0777), 0);
    assert_int_equal(ls_ckpt_resolve("--checkpoint", dir, &path), LS_OK);
    assert_string_equal(path, test_path(dir, "epoch-2", NULL));
    ls_free(path);
    assert_int_equal(ls_ckpt_resolve("--checkpoint", test_path(dir, "epoch-1", NULL), &path), LS_OK);
    assert_string_equal(path, test_path(dir, "epoch-1", NULL));
    ls_free(path);
    assert_int_equal(ls_ckpt_resolve("--checkpoint", test_path(dir, "step-999", NULL), &path), LS_E_IO);
    assert_words("no checkpoint found");
    assert_int_equal(truncate(test_path(dir, "epoch-2", "trainer_state.json"), 20), 0);
    path = NULL;
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_E_FORMAT); /* an error, not silently the older one */
    assert_null(path);
    assert_words("epoch-2/trainer_state.json");
    assert_words("the newest complete checkpoint is ");
    assert_words("step-100: remove ");
    assert_words("epoch-2 to resume from it");
    test_model_close(&a);
    test_dir_close(dir);
}

static void assert_latest(const char *dir, const char *name)
{
    char *path = NULL;
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
    assert_string_equal(path, test_path(dir, name, NULL));
    ls_free(path);
}

/* A state that cannot be read matters only where it may be the newest: by the step in its name; an epoch has ended before a later one. */
static void an_older_checkpoint_that_cannot_be_read_is_passed_over(void **state)
{
    (void)state;
    char *dir = test_dir(), *path = NULL;
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    save(&a, dir, "step-5", 5, 0);
    save(&a, dir, "epoch-1", 8, 0);
    save(&a, dir, "step-10", 10, 0);
    assert_int_equal(truncate(test_path(dir, "step-5", "trainer_state.json"), 20), 0);
    assert_latest(dir, "step-10");
    assert_int_equal(truncate(test_path(dir, "epoch-1", "trainer_state.json"), 20), 0);
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_E_FORMAT); /* it may be newer than step-10 */
    assert_words("step-10: remove ");
    save(&a, dir, "epoch-2", 16, 0);
    assert_latest(dir, "epoch-2");
    assert_int_equal(unlink(test_path(dir, "step-10", "trainer_state.json")), 0);
    assert_latest(dir, "epoch-2");
    save(&a, dir, "step-20", 20, 0);
    assert_int_equal(unlink(test_path(dir, "step-20", "trainer_state.json")), 0);
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_E_FORMAT); /* an error, not silently the older one */
    assert_words("epoch-2: remove ");
    assert_words("step-20 to resume from it");
    assert_null(path);

    /* the model of the run is that of any checkpoint */
    assert_int_equal(ls_ckpt_any(dir, &path), LS_OK);
    assert_string_equal(path, test_path(dir, "epoch-2", NULL));
    ls_free(path);
    assert_int_equal(truncate(test_path(dir, "epoch-2", "config.json"), 20), 0);
    assert_int_equal(ls_ckpt_any(dir, &path), LS_OK);
    assert_string_equal(path, test_path(dir, "step-5", NULL));
    ls_free(path);
    assert_int_equal(ls_ckpt_any(test_path(dir, "none", NULL), &path), LS_OK);
    assert_null(path);
    test_model_close(&a);
    test_dir_close(dir);
}

static void a_restart_rejects_checkpoints_that_are_newer_than_the_whole_one(void **state)
{
    (void)state;
    char *dir = test_dir(), *path = NULL;
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    save(&a, dir, "step-9", 9, 0);
    save(&a, dir, "step-10", 10, 0);
    save(&a, dir, "epoch-1", 10, 0); /* as new as step-10, and before it by name */
    save(&a, dir, "step-20", 20, 0);
    save(&a, dir, "step-30", 30, 0);
    assert_int_equal(truncate(test_path(dir, "step-20", "trainer_state.json"), 20), 0);
    test_flip(test_path(dir, "step-30", "model.safetensors"), 4000);
    assert_int_equal(ls_ckpt_reject(dir, test_path(dir, "step-10", NULL)), LS_OK);
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
    assert_string_equal(path, test_path(dir, "step-10", NULL));
    ls_free(path);
    assert_true(ls_fs_is_dir(test_path(dir, "damaged-step-20", NULL)));
    assert_true(ls_fs_is_dir(test_path(dir, "damaged-step-30", NULL)));
    assert_true(ls_fs_is_dir(test_path(dir, "step-9", NULL)));
    assert_true(ls_fs_is_dir(test_path(dir, "epoch-1", NULL)));
    save(&a, dir, "step-30", 30, 0);
    assert_int_equal(ls_ckpt_reject(dir, NULL), LS_OK); /* none is whole */
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
    assert_null(path);
    assert_true(ls_fs_is_dir(test_path(dir, "damaged-step-30.1", NULL)));
    test_model_close(&a);
    test_dir_close(dir);
}

/* A run that starts from step 0 moves the existing checkpoints to earlier-1, earlier-2 and so on, a new number each time. */
static void newest_whole_passes_over_damaged_ones_with_a_line_each(void **state)
{
    (void)state;
    char *dir = test_dir(), *path = NULL;
    ls_str skipped = {0};
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    assert_int_equal(ls_ckpt_newest_whole(test_path(dir, "none", NULL), false, &path, &skipped), LS_OK);
    assert_null(path);
    assert_int_equal(ls_ckpt_newest_whole(dir, false, &path, NULL), LS_OK);
    assert_null(path);
    save(&a, dir, "step-9", 9, 0);
    save(&a, dir, "step-10", 10, 0);
    save(&a, dir, "epoch-1", 12, 0);
    save(&a, dir, "step-20", 20, 0);
    assert_int_equal(ls_ckpt_newest_whole(dir, false, &path, &skipped), LS_OK);
    assert_string_equal(path, test_path(dir, "step-20", NULL));
    assert_int_equal(skipped.len, 0);
    ls_free(path);
    test_flip(test_path(dir, "step-20", "optimizer.safetensors"), 4000);
    assert_int_equal(unlink(test_path(dir, "epoch-1", "checksums.json")), 0);
    assert_int_equal(ls_ckpt_newest_whole(dir, false, &path, &skipped), LS_OK);
    assert_string_equal(path, test_path(dir, "step-10", NULL));
    assert_non_null(strstr(skipped.data, "step-20/optimizer.safetensors is damaged: "));
    assert_non_null(strstr(skipped.data, "epoch-1/checksums.json is missing"));
    ls_free(path);
    assert_int_equal(truncate(test_path(dir, "step-10", "trainer_state.json"), 20), 0);
    test_flip(test_path(dir, "step-9", "config.json"), 3);
    skipped.len = 0;
    assert_int_equal(ls_ckpt_newest_whole(dir, false, &path, &skipped), LS_OK);
    assert_null(path);
    int n = 0;
    for (const char *p = skipped.data; (p = strchr(p, '\n')); p++) n++;
    assert_int_equal(n, 4);
    assert_non_null(strstr(skipped.data, "step-10/trainer_state.json"));
    ls_str_fini(&skipped);
    test_model_close(&a);
    test_dir_close(dir);
}

static void set_aside_moves_old_checkpoints_to_numbered_folders(void **state)
{
    (void)state;
    char *dir = test_dir(), *path = NULL, where[PATH_MAX];
    int64_t step = 0;
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    assert_int_equal(ls_ckpt_set_aside(test_path(dir, "none", NULL), where, &step), LS_OK);
    assert_int_equal(*where, 0);
    assert_int_equal(ls_ckpt_set_aside(dir, where, &step), LS_OK);
    assert_int_equal(*where, 0);
    assert_int_equal(test_n_entries(dir), 0);
    save(&a, dir, "step-3", 3, 0);
    save(&a, dir, "epoch-1", 6, 0);
    save(&a, dir, "step-9", 9, 0);
    assert_int_equal(truncate(test_path(dir, "step-9", "trainer_state.json"), 20), 0); /* damaged ones are moved too */
    assert_int_equal(ls_fs_rename(test_path(dir, "step-3", NULL), test_path(dir, ".old-step-3-77", NULL)), LS_OK);
    assert_int_equal(ls_fs_write(test_path(dir, "epoch-2", NULL), "old", 3),
                     LS_OK); /* a file that the scaling study writes (docs/REFERENCES.md) */
    assert_int_equal(ls_fs_write(test_path(dir, "metrics.jsonl", NULL), "", 0), LS_OK);
    assert_int_equal(ls_ckpt_set_aside(dir, where, &step), LS_OK);
    assert_string_equal(where, test_path(dir, "earlier-1", NULL));
    assert_int_equal(step, 6);
    assert_int_equal(test_n_entries(dir), 2);
    assert_int_equal(test_n_entries(test_path(dir, "earlier-1", NULL)), 4);
    assert_true(ls_ckpt_is(test_path(dir, "earlier-1/step-3", NULL)));
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
    assert_null(path);
    save(&a, dir, "step-3", 3, 0);
    assert_int_equal(ls_ckpt_set_aside(dir, where, &step), LS_OK);
    assert_string_equal(where, test_path(dir, "earlier-2", NULL));
    assert_int_equal(step, 3);
    test_model_close(&a);
    test_dir_close(dir);
}

/* checksums.json has one hash per block of a file and a hash of these hashes. */
static void every_block_of_a_file_is_hashed(void **state)
{
    (void)state;
    enum { BLOCK = 1 << 20, REST = 12345, N = 3 * BLOCK + REST };
    char *dir = test_dir(), want[20];
    test_model a;
    json_t *root = NULL;
    uint64_t hash[4];
    unsigned char *data = ls_alloc(N);
    for (size_t i = 0; i < N; i++) data[i] = (unsigned char)ls_rng_u32(7, (uint32_t)i);
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    assert_int_equal(ls_fs_write(test_path(dir, "t", NULL), data, N), LS_OK);
    ls_ckpt_job job = job_of(&a, dir, "step-1", 1);
    job.tokenizer_path = test_path(dir, "t", NULL);
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    assert_int_equal(ls_json_load(test_path(dir, "step-1", "checksums.json"), &root), LS_OK);
    const json_t *e = json_object_get(json_object_get(root, "files"), "tokenizer.json"),
                 *blocks = json_object_get(e, "blocks");
    assert_int_equal(json_integer_value(json_object_get(e, "bytes")), N);
    assert_int_equal(json_array_size(blocks), 4);
    for (size_t b = 0; b < 4; b++) {
        hash[b] = ls_xxh64(data + b * BLOCK, b < 3 ? BLOCK : REST);
        snprintf(want, sizeof want, "%016llx", (unsigned long long)hash[b]);
        assert_string_equal(json_string_value(json_array_get(blocks, b)), want);
    }
    snprintf(want, sizeof want, "%016llx", (unsigned long long)ls_xxh64(hash, sizeof hash));
    assert_string_equal(json_string_value(json_object_get(e, "root")), want);
    json_decref(root);
    ls_free(data);
    test_model_close(&a);
    test_dir_close(dir);
}

static void a_save_replaces_the_entry_it_names(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a, b, c;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 6);
    test_model_open(&c, test_config(LS_VARIANT_HF), LS_F32, 7);
    save(&a, dir, "step-3", 3, 0);
    save(&b, dir, "step-3", 3, 0);
    assert_int_equal(test_n_entries(dir), 1);
    assert_int_equal(ls_ckpt_load(c.m, test_path(dir, "step-3", NULL), true, NULL, 0, NULL, NULL, NULL), LS_OK);
    assert_true(test_same(b.m, c.m, 1));
    assert_int_equal(ls_fs_write(test_path(dir, "epoch-1", NULL), "old", 3),
                     LS_OK); /* a plain file, as the scaling study writes it */
    save(&a, dir, "epoch-1", 4, 0);
    assert_true(ls_fs_is_dir(test_path(dir, "epoch-1", NULL)));
    assert_int_equal(test_n_entries(dir), 2);
    test_model_close(&a);
    test_model_close(&b);
    test_model_close(&c);
    test_dir_close(dir);
}

static void clean_restores_or_removes_what_crashes_left(void **state)
{
    (void)state;
    char *dir = test_dir(), *path = NULL;
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    save(&a, dir, "step-3", 3, 0);
    assert_int_equal(ls_fs_rename(test_path(dir, "step-3", NULL), test_path(dir, ".old-step-3-77", NULL)), LS_OK);
    assert_int_equal(ls_fs_write(test_path(dir, ".tmp-step-4-77", "model.safetensors"), "half", 4), LS_OK);
    assert_int_equal(ls_fs_write(test_path(dir, ".del-step-1-77", "config.json"), "half", 4), LS_OK);
    assert_int_equal(ls_fs_write(test_path(dir, ".tmp-mine", "x"), "keep", 4), LS_OK);
    assert_int_equal(mkdir(test_path(dir, ".tmp-step-5-78", NULL), 0777), 0);
    int fd = open(test_path(dir, ".tmp-step-5-78", NULL), O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_EX), 0); /* as a running writer does */
    assert_int_equal(ls_ckpt_latest(dir, &path), LS_OK);
    assert_string_equal(path, test_path(dir, "step-3", NULL));
    ls_free(path);
    assert_int_equal(ls_ckpt_clean(dir), LS_OK);
    assert_true(ls_fs_exists(test_path(dir, "step-3", "checksums.json")));
    assert_true(ls_fs_exists(test_path(dir, ".tmp-step-5-78", NULL)));
    assert_true(ls_fs_exists(test_path(dir, ".tmp-mine", NULL)));
    assert_int_equal(test_n_entries(dir), 3);
    close(fd);
    assert_int_equal(ls_ckpt_clean(dir), LS_OK);
    assert_int_equal(test_n_entries(dir), 2);
    assert_int_equal(ls_ckpt_clean(test_path(dir, "none", NULL)), LS_OK);
    test_model_close(&a);
    test_dir_close(dir);
}

static void a_background_writer_reports_each_error_once(void **state)
{
    (void)state;
    char *dir = test_dir(), name[32];
    test_model a, b;
    ls_ckpt_writer *w = NULL;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 6);
    assert_int_equal(ls_ckpt_writer_create(&w, a.m, NULL), LS_OK);
    assert_int_equal(ls_ckpt_wait(w), LS_OK);
    for (int i = 1; i <= 20; i++) {
        snprintf(name, sizeof name, "step-%d", i);
        ls_ckpt_job job = job_of(&a, dir, name, i);
        job.keep_last = 3;
        assert_int_equal(ls_ckpt_post(w, &job), LS_OK);
        memset(name, 'x', sizeof name); /* the strings were copied */
        if (i % 2) {
            assert_int_equal(ls_ckpt_settle(w), LS_OK);
            int64_t count = ls_mem_count();
            assert_int_equal(ls_ckpt_wait(w), LS_OK);
            assert_int_equal(ls_mem_count(), count);
            ((float *)a.m->unit[1].param)[3] += 1; /* as an optimizer step does */
        }
    }
    assert_int_equal(ls_ckpt_settle(w), LS_OK);
    assert_int_equal(test_n_entries(dir), 3);
    assert_int_equal(ls_ckpt_load(b.m, test_path(dir, "step-20", NULL), true, NULL, 0, NULL, NULL, NULL), LS_OK);
    assert_true(test_same(a.m, b.m, 1));

    ls_ckpt_job job = job_of(&a, "/dev/null/run", "step-21", 21);
    assert_int_equal(ls_ckpt_post(w, &job), LS_OK);
    ls_err_clear();
    assert_int_equal(ls_ckpt_wait(w), LS_E_IO); /* the message reaches this thread */
    assert_words("/dev/null/run");
    assert_non_null(strstr(ls_err_trail(), "checkpoint"));
    assert_int_equal(ls_ckpt_wait(w), LS_OK); /* an error is reported once */
    assert_int_equal(ls_ckpt_post(w, &job), LS_OK);
    job.name = "step-22";
    job.dir = dir;
    assert_int_equal(ls_ckpt_post(w, &job), LS_E_IO); /* the next post reports the error and posts nothing */
    assert_words("/dev/null/run");
    job.name = "no/name";
    assert_int_equal(ls_ckpt_post(w, &job), LS_E_INTERNAL);
    assert_words("no/name");
    assert_int_equal(ls_ckpt_wait(w), LS_OK);
    job.name = "step-22";
    job.state_json = "[]";
    assert_int_equal(ls_ckpt_save(&job), LS_E_INTERNAL);
    job.state_json = "{\"a\"}";
    assert_int_equal(ls_ckpt_save(&job), LS_E_FORMAT);
    job.state_json = NULL;
    assert_int_equal(ls_ckpt_post(w, &job), LS_OK);
    ls_ckpt_writer_destroy(&w); /* finishes the pending job */
    assert_null(w);
    assert_true(ls_fs_exists(test_path(dir, "step-22", "checksums.json")));
    test_model_close(&a);
    test_model_close(&b);
    test_dir_close(dir);
}

/* Writes the model's tensors to a file without the tensor `without`, with a tensor `add` of the shape of wte, and without the
 * prefix "transformer." if `strip` is set. */
static void write_variation(const test_model *t, const char *path, const char *without, const char *add, int strip)
{
    ls_st_tensor e[64] = {{0}};
    static char names[64][72];
    int n = 0;
    for (int u = 0; u < t->m->n_unit; u++)
        for (int i = 0; i < t->m->unit[u].n_tensor; i++) {
            const ls_tensor *x = &t->m->unit[u].tensor[i];
            if (without && !strcmp(without, x->name)) continue;
            snprintf(names[n], sizeof names[n], "%s",
                     x->name + (strip && !strncmp(x->name, "transformer.", 12) ? 12 : 0));
            e[n] = (ls_st_tensor){.name = names[n],
                                  .dt = t->compute.ops->dtype,
                                  .n_dim = x->n_dim,
                                  .dim = {x->dim[0], x->dim[1]},
                                  .data = ls_at(&t->compute, t->m->unit[u].param, x->offset)};
            n++;
        }
    if (add)
        e[n++] = (ls_st_tensor){.name = add,
                                .dt = t->compute.ops->dtype,
                                .n_dim = 2,
                                .dim = {t->m->cfg.vocab_size, t->m->cfg.n_embd},
                                .data = t->m->unit[0].param};
    assert_int_equal(test_st_write(path, e, n), LS_OK);
}

static void hugging_face_weights_load_exactly_or_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *without, *add;
        int strip;
        ls_status st;
        const char *words;
    } row[] = {
        {NULL, NULL, 0, LS_OK, ""},
        {NULL, NULL, 1, LS_OK, ""},
        {NULL, "lm_head.weight", 1, LS_OK, ""}, /* equal to wte */
        {NULL, "h.0.attn.bias", 1, LS_OK, ""},
        {NULL, "transformer.h.1.attn.masked_bias", 0, LS_OK, ""},
        {"transformer.h.1.ln_2.bias", NULL, 0, LS_E_FORMAT, "tensor transformer.h.1.ln_2.bias is missing"},
        {"transformer.wte.weight", NULL, 1, LS_E_FORMAT, "tensor transformer.wte.weight is missing"},
        {NULL, "transformer.h.2.ln_1.weight", 0, LS_E_CONFIG, "transformer.h.2.ln_1.weight is not part of this model"},
        {NULL, "wte.weight", 0, LS_E_FORMAT, "is a duplicate of"},
        {"transformer.ln_f.weight", "transformer.ln_f.weight", 0, LS_E_CONFIG, "(33, 12); this model needs (12)"},
    };
    char *dir = test_dir();
    test_model a, b;
    for (size_t i = 0; i < N_OF(row); i++) {
        test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
        test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 6);
        write_variation(&a, test_path(dir, "model.safetensors", NULL), row[i].without, row[i].add, row[i].strip);
        assert_int_equal(ls_hf_load(b.m, dir, NULL, 0, NULL), row[i].st);
        if (row[i].st != LS_OK) assert_words(row[i].words);
        assert_int_equal(test_same(a.m, b.m, 0), row[i].st == LS_OK);
        test_model_close(&a);
        test_model_close(&b);
    }

    /* a tied model loads a file with a separate head; an untied model loads a file without a head */
    test_model_open(&a, test_config(LS_VARIANT_R1), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 6);
    write_variation(&a, test_path(dir, "model.safetensors", NULL), NULL, NULL, 0);
    assert_int_equal(ls_hf_load(b.m, dir, NULL, 0, NULL), LS_E_CONFIG);
    assert_words("lm_head.weight differs");
    write_variation(&b, test_path(dir, "model.safetensors", NULL), NULL, NULL, 0);
    assert_int_equal(ls_hf_load(a.m, dir, NULL, 0, NULL), LS_E_FORMAT);
    assert_words("the head is tied");
    test_model_close(&a);

    /* float weights in a double model are exact */
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F64, 0);
    assert_int_equal(ls_hf_load(a.m, dir, NULL, 0, NULL), LS_OK);
    for (int64_t i = 0; i < a.m->unit[1].n; i++)
        assert_true(((double *)a.m->unit[1].param)[i] == (double)((float *)b.m->unit[1].param)[i]);
    test_model_close(&a);

    assert_int_equal(unlink(test_path(dir, "model.safetensors", NULL)), 0);
    assert_int_equal(ls_hf_load(b.m, dir, NULL, 0, NULL), LS_E_IO);
    assert_words("neither model.safetensors");
    static const char *const index[] = {"{}", "{\"weight_map\": {\"wte.weight\": \"../x\"}}",
                                        "{\"weight_map\": {\"wte.weight\": 3}}",
                                        "{\"weight_map\": {\"wte.weight\": \"gone.safetensors\"}}"};
    static const char *const words[] = {"no weight_map", "not a plain file name", "not a plain file name",
                                        "gone.safetensors"};
    for (size_t i = 0; i < N_OF(index); i++) {
        assert_int_equal(ls_fs_write(test_path(dir, "model.safetensors.index.json", NULL), index[i], strlen(index[i])),
                         LS_OK);
        assert_int_equal(ls_hf_load(b.m, dir, NULL, 0, NULL), i < 3 ? LS_E_FORMAT : LS_E_IO);
        assert_words(words[i]);
    }
    test_model_close(&b);
    test_dir_close(dir);
}

static ls_status export_to(const char *from, const char *out, bool replace)
{
    return ls_export(&(ls_export_opts){.from = from, .out = out, .dtype = LS_F32, .replace = replace});
}

static void export_copies_undamaged_weights_only(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    save(&a, dir, "step-3", 3, 0);
    const char *from = test_path(dir, "step-3", NULL), *to = test_path(dir, "out", NULL);
    assert_int_equal(export_to(from, to, false), LS_OK);
    assert_int_equal(test_n_entries(to), 3);
    assert_equal_files(test_path(dir, "step-3", "model.safetensors"), test_path(dir, "out", "model.safetensors"));
    assert_int_equal(export_to(from, test_path(dir, "out/", NULL), false), LS_E_ARG);
    assert_int_equal(export_to(from, test_path(dir, "out/", NULL), true), LS_OK);
    test_flip(test_path(dir, "step-3", "model.safetensors"), 4000);
    assert_int_equal(export_to(from, test_path(dir, "out2", NULL), false), LS_E_FORMAT);
    assert_false(ls_fs_exists(test_path(dir, "out2", NULL)));
    test_model_close(&a);
    test_dir_close(dir);
}

/* Rewrites a folder as version 1 wrote it: one hash for every whole file in addition to those of its blocks. This format is frozen. */
static void make_version_1(const char *run, const char *name)
{
    static const char *const file[] = {"config.json", "generation_config.json", "trainer_state.json",
                                       "model.safetensors", "optimizer.safetensors"};
    char *text, *at, *dir = ls_path_join(run, name);
    size_t n;
    assert_int_equal(ls_fs_read(test_path(dir, "trainer_state.json", NULL), &text, &n), LS_OK);
    at = strstr(text, "\"version\": 2");
    assert_non_null(at);
    at[11] = '1';
    assert_int_equal(ls_fs_write(test_path(dir, "trainer_state.json", NULL), text, n), LS_OK);
    ls_free(text);
    FILE *f = fopen(test_path(dir, "checksums.json", NULL), "w");
    assert_non_null(f);
    fprintf(f, "{\n  \"format\": \"lockstep-checksums\",\n  \"version\": 1,\n  \"hash\": \"XXH3-64\",\n"
               "  \"block_bytes\": 1048576,\n  \"files\": {");
    for (size_t i = 0; i < N_OF(file); i++) {
        assert_int_equal(ls_fs_read(test_path(dir, file[i], NULL), &text, &n), LS_OK);
        fprintf(f, "%s\n    \"%s\": {\n      \"bytes\": %zu,\n      \"xxh3\": \"%016llx\",\n      \"blocks\": [",
                i ? "," : "", file[i], n, (unsigned long long)ls_xxh64(text, n));
        for (size_t b = 0; b < n; b += 1048576)
            fprintf(f, "%s\n        \"%016llx\"", b ? "," : "",
                    (unsigned long long)ls_xxh64(text + b, n - b < 1048576 ? n - b : 1048576));
        fprintf(f, "\n      ]\n    }");
        ls_free(text);
    }
    fprintf(f, "\n  }\n}\n");
    assert_int_equal(fclose(f), 0);
    ls_free(dir);
}

static void checkpoints_of_version_1_still_load(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a, b;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 6);
    save(&a, dir, "step-1", 1, 0);
    save(&a, dir, "step-2", 2, 0);
    make_version_1(dir, "step-1");
    make_version_1(dir, "step-2");
    assert_int_equal(ls_ckpt_load(b.m, test_path(dir, "step-2", NULL), true, NULL, 0, NULL, NULL, NULL), LS_OK);
    assert_true(test_same(a.m, b.m, 1));
    test_flip(test_path(dir, "step-2", "model.safetensors"), 5000);
    assert_int_equal(ls_ckpt_load(b.m, test_path(dir, "step-2", NULL), true, NULL, 0, NULL, NULL, NULL), LS_E_FORMAT);
    assert_words("model.safetensors is damaged: bytes 0 to ");
    assert_words("transformer.wte.weight");
    assert_words("step-1");
    test_model_close(&a);
    test_model_close(&b);
    test_dir_close(dir);
}

/* A flipped bit in any byte of checksums.json either fails the load with an error that names the file or changes nothing. */
static void damaged_checksums_are_refused_without_a_crash(void **state)
{
    (void)state;
    char *dir = test_dir();
    test_model a, b;
    test_model_open(&a, test_config(LS_VARIANT_HF), LS_F32, 5);
    test_model_open(&b, test_config(LS_VARIANT_HF), LS_F32, 6);
    save(&a, dir, "step-2", 2, 0);
    const char *path = test_path(dir, "step-2", "checksums.json");
    int64_t n;
    int refused = 0;
    assert_int_equal(ls_fs_size(path, &n), LS_OK);
    for (long at = 0; at < n; at++) {
        test_flip(path, at);
        ls_status st = ls_ckpt_load(b.m, test_path(dir, "step-2", NULL), true, NULL, 0, NULL, NULL, NULL);
        if (st != LS_OK) {
            refused++;
            assert_true(st == LS_E_FORMAT || st == LS_E_UNSUPPORTED);
            assert_words("checksums.json");
        }
        test_flip(path, at);
        path = test_path(dir, "step-2", "checksums.json");
    }
    assert_true(refused > n / 2);
    test_model_close(&a);
    test_model_close(&b);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loaded_model_has_the_saved_bits),
        cmocka_unit_test(equal_states_give_equal_files),
        cmocka_unit_test(a_flipped_bit_is_found_and_named),
        cmocka_unit_test(missing_or_truncated_files_are_named),
        cmocka_unit_test(a_checkpoint_of_another_model_is_refused),
        cmocka_unit_test(keep_last_prunes_steps_but_not_epochs),
        cmocka_unit_test(an_older_checkpoint_that_cannot_be_read_is_passed_over),
        cmocka_unit_test(newest_whole_passes_over_damaged_ones_with_a_line_each),
        cmocka_unit_test(a_restart_rejects_checkpoints_that_are_newer_than_the_whole_one),
        cmocka_unit_test(set_aside_moves_old_checkpoints_to_numbered_folders),
        cmocka_unit_test(every_block_of_a_file_is_hashed),
        cmocka_unit_test(a_save_replaces_the_entry_it_names),
        cmocka_unit_test(clean_restores_or_removes_what_crashes_left),
        cmocka_unit_test(a_background_writer_reports_each_error_once),
        cmocka_unit_test(hugging_face_weights_load_exactly_or_are_refused),
        cmocka_unit_test(export_copies_undamaged_weights_only),
        cmocka_unit_test(checkpoints_of_version_1_still_load),
        cmocka_unit_test(damaged_checksums_are_refused_without_a_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
