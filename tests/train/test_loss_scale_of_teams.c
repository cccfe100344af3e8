/* Overflows with every strategy: an initial loss scale that is far too high is lowered, and skipped steps and trained weights equal those
 * of one worker bit for bit. On the CPU in fp32, where a scale that is a power of two changes no bit. */
/* ls-test: long */
#include "ckpt_support.h"
#include "comm/launch.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 24 };

static const ls_loss_scale_config scale = {
    .rule = LS_SCALE_ZERO, .initial = 0x1p130, .min = 1, .window = 4, .hysteresis = 2};

typedef struct layout {
    const char *words;
    int n;
} layout;

typedef struct job {
    const char *dir, *words;
} job;

static ls_status steps(const job *j, ls_comm *comm)
{
    char text[1024], *argv[64];
    int argc = 0;
    ls_train_options o;
    ls_train_paths paths = {0};
    ls_train_config c = {0};
    ls_trainer *t = NULL;
    snprintf(
        text, sizeof text,
        "--data %s --checkpoint_path %s/run --model tiny --num_layers 3 --seq_length 16 --dropout 0.1 --micro_batch_size_per_gpu 1 --global_batch_size 4 --lr_schedule WarmupLR --warmup_steps 5 --threads 1 %s",
        j->dir, j->dir, j->words);
    for (char *p = text; *p;) {
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (*p) *p++ = '\0';
    }
    const ls_train_facts facts = {.world_size = comm ? ls_comm_size(comm) : 1, .data_eos_id = -1};
    LS_TRY(ls_train_options_parse(argc, argv, &o));
    LS_TRY(ls_train_find_paths(&o, &paths));
    LS_TRY(ls_train_resolve(&o, NULL, &paths, &facts, &c));
    c.loss_scale = scale;
    LS_TRY(ls_trainer_create(&t, &c, comm, &(ls_train_io){0}));
    for (int i = 0; i < STEPS; i++) {
        ls_step_result r;
        LS_TRY(ls_trainer_step(t, &r));
    }
    LS_TRY(ls_trainer_save(t, "step-1"));
    LS_TRY(ls_ckpt_wait(t->writer));
    ls_trainer_destroy(&t);
    ls_train_config_fini(&c);
    ls_train_paths_fini(&paths);
    return LS_OK;
}

static ls_status worker(void *ctx, ls_comm *comm, int n_core)
{
    (void)n_core;
    return steps(ctx, comm);
}

static void report(void *ctx, int rank, ls_status st)
{
    if (st != LS_OK) fprintf(stderr, "%s, rank %d: %s\n", ((job *)ctx)->words, rank, ls_err_words());
}

static void make_data(const char *dir)
{
    unsigned char bytes[2 * 4000] = {0};
    for (int i = 0; i < 4000; i++) bytes[2 * i] = (unsigned char)(ls_rng_u64(3, (uint64_t)(i / 2)) % 200);
    assert_int_equal(ls_fs_write(test_path(dir, "train.bin", NULL), bytes, sizeof bytes), LS_OK);
}

static void every_strategy_skips_as_one_worker(void **state)
{
    (void)state;
    static const layout all[] = {{"--strategy dp", 2},          {"--strategy ddp", 2},   {"--strategy zero1", 2},
                                 {"--strategy zero2", 2},       {"--strategy zero3", 2}, {"--pp 2", 2},
                                 {"--pp 2 --strategy zero1", 4}};
    char *dir = test_dir(), *json = NULL, *other = NULL;
    make_data(dir);
    if (steps(&(job){dir, ""}, NULL) != LS_OK) fail_msg("%s", ls_err_words());
    const char *file[] = {"model.safetensors", "optimizer.safetensors"};
    assert_int_equal(rename(test_path(dir, "run", NULL), test_path(dir, "one", NULL)), 0);
    assert_int_equal(ls_ckpt_state(test_path(dir, "one", "step-1"), &json, NULL), LS_OK);
    const char *part = strstr(json, "\"loss_scale\": {");
    assert_non_null(part);
    const size_t n = (size_t)(strchr(part, '}') - part);
    print_message("%.*s}\n", (int)n, part);
    assert_null(strstr(part, "\"skipped\": 0,"));
    for (size_t i = 0; i < N_OF(all); i++) {
        job j = {dir, all[i].words};
        const ls_launch l = {
            .n = all[i].n, .arena_nbytes = (size_t)1 << 30, .body = worker, .report = report, .ctx = &j};
        if (ls_launch_local(&l) != LS_OK) fail_msg("%s: %s", all[i].words, ls_err_words());
        for (size_t k = 0; k < N_OF(file); k++) {
            char *one = ls_path_join(test_path(dir, "one", "step-1"), file[k]),
                 *many = ls_path_join(test_path(dir, "run", "step-1"), file[k]);
            assert_equal_files(one, many);
            ls_free(one);
            ls_free(many);
        }
        assert_int_equal(ls_ckpt_state(test_path(dir, "run", "step-1"), &other, NULL), LS_OK);
        if (!strstr(other, "\"loss_scale\": {") || strncmp(strstr(other, "\"loss_scale\": {"), part, n))
            fail_msg("%s: %s", all[i].words, other);
        ls_free(other);
        assert_int_equal(ls_fs_remove_tree(test_path(dir, "run", NULL)), LS_OK);
    }
    ls_free(json);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_strategy_skips_as_one_worker)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
