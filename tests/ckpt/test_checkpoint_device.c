/* Checkpoints of device memory: the same files as from the CPU, in the order of the device's queue, and errors are reported. */
#include "ckpt/checkpoint.h"

#include "ckpt_support.h"
#include "core/half.h"
#include "fake_device.h"
#include "ckpt/hf.h"

static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "trainer_state.json",
                                    "checksums.json"};

/* A model on the CPU and an equal one on a device. */
typedef struct both {
    test_model cpu, gpu;
    fake_device f;
    ls_compute_ops ops;
    char *dir;
} both;

static ls_model_config config(bool large)
{
    ls_model_config c = test_config(LS_VARIANT_HF);
    if (large) c.vocab_size = 150000; /* 7 MB: more than one chunk */
    return c;
}

/* mixed: operations in bf16, with fp32 master weights. */
static void both_open(both *b, bool large, bool mixed, uint64_t seed)
{
    test_model_open(&b->cpu, config(large), LS_F32, seed);
    fake_open(&b->f, large ? 48 << 20 : 1 << 20, false);
    b->dir = test_dir();
    test_model *g = &b->gpu;
    const ls_model_config cfg = config(large);
    assert_int_equal(ls_compute_open(&g->compute, "cpu-ref", &(ls_compute_open_opts){.dtype = LS_F32}, 1), LS_OK);
    b->ops = *g->compute.ops;
    if (mixed) b->ops.dtype = LS_BF16;
    g->compute.ops = &b->ops;
    g->compute.device = &b->f.table;
    assert_int_equal(ls_model_create(&g->m, &cfg, &g->compute, 16), LS_OK);
    for (int u = 0; u < g->m->n_unit; u++) {
        ls_unit *x = &g->m->unit[u];
        const ls_unit *y = &b->cpu.m->unit[u];
        assert_int_equal(x->n_pad, y->n_pad);
        void **slot[3] = {mixed ? &x->master : &x->param, &x->m, &x->v};
        void *const from[3] = {y->param, y->m, y->v};
        for (int k = 0; k < 3; k++) {
            assert_int_equal(fake_alloc(&b->f, (size_t)x->n_pad * 4, slot[k]), LS_OK);
            memcpy(fake_real(&b->f, *slot[k]), from[k], (size_t)x->n_pad * 4);
        }
        if (mixed) assert_int_equal(fake_alloc(&b->f, (size_t)x->n_pad * 2, &x->param), LS_OK);
    }
}

static void both_close(both *b)
{
    test_model_close(&b->cpu);
    ls_model_destroy(&b->gpu.m);
    fake_close(&b->f);
    test_dir_close(b->dir);
}

static ls_ckpt_job job_of(const both *b, const ls_model *m, const char *name)
{
    return (ls_ckpt_job){.model = m, .dir = b->dir, .name = name, .step = 3, .optimizer = true};
}

static void same_folders(const both *b, const char *one, const char *two)
{
    for (size_t i = 0; i < N_OF(files); i++)
        assert_equal_files(test_path(b->dir, one, files[i]), test_path(b->dir, two, files[i]));
}

static const char *part_of(const both *b, int u, int k)
{
    const ls_unit *x = &b->gpu.m->unit[u];
    return fake_real(&b->f, k == 0 ? (x->master ? x->master : x->param) : k == 1 ? x->m : x->v);
}

static void device_checkpoints_equal_those_of_the_cpu(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        both b = {.dir = NULL};
        both_open(&b, k & 1, k & 2, 7);
        ls_ckpt_job job = job_of(&b, b.cpu.m, "epoch-1");
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        job = job_of(&b, b.gpu.m, "epoch-2");
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        same_folders(&b, "epoch-1", "epoch-2");
        assert_true(b.f.n_copy <= (k & 1 ? 16 : 12)); /* adjacent buffers are copied together */

        memset(b.f.here, 0x7f, b.f.nbytes);
        assert_int_equal(ls_ckpt_load(b.gpu.m, test_path(b.dir, "epoch-1", NULL), true, NULL, 0, NULL, NULL, NULL),
                         LS_OK);
        for (int u = 0; u < b.gpu.m->n_unit; u++) {
            const ls_unit *y = &b.cpu.m->unit[u];
            const void *want[3] = {y->param, y->m, y->v};
            for (int i = 0; i < 3; i++) assert_memory_equal(part_of(&b, u, i), want[i], (size_t)y->n_pad * 4);
        }
        memset(b.f.here, 0, b.f.nbytes);
        assert_int_equal(ls_hf_load(b.gpu.m, test_path(b.dir, "epoch-1", NULL), NULL, 0, NULL), LS_OK);
        assert_memory_equal(part_of(&b, 1, 0), b.cpu.m->unit[1].param, (size_t)b.cpu.m->unit[1].n_pad * 4);
        both_close(&b);
    }
}

/* Weights for inference: no master weights, parameters in the type of the operations. */
static void weights_load_in_the_type_of_computation(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        both b = {.dir = NULL};
        both_open(&b, true, true, 8);
        b.ops.dtype = k ? LS_F16 : LS_BF16;
        ls_ckpt_job job = job_of(&b, b.cpu.m, "epoch-1");
        assert_int_equal(ls_ckpt_save(&job), LS_OK);
        for (int u = 0; u < b.gpu.m->n_unit; u++) b.gpu.m->unit[u].master = NULL;
        memset(b.f.here, 0x7f, b.f.nbytes);
        assert_int_equal(ls_ckpt_load(b.gpu.m, test_path(b.dir, "epoch-1", NULL), false, NULL, 0, NULL, NULL, NULL),
                         LS_OK);
        for (int u = 0; u < b.gpu.m->n_unit; u++) {
            const ls_unit *x = &b.cpu.m->unit[u];
            const uint16_t *h = (const void *)fake_real(&b.f, b.gpu.m->unit[u].param);
            const ls_gains g = ls_unit_gains(x, 0, x->n_pad); /* gains are stored minus 1 */
            assert_int_equal(g.n, u == 0 ? 0 : u == b.cpu.m->n_unit - 1 ? 1 : 2);
            for (int64_t i = 0; i < x->n_pad; i++) {
                float want = ((const float *)x->param)[i];
                for (int j = 0; j < g.n; j++) want -= i >= g.at[j][0] && i < g.at[j][1];
                if (h[i] != (k ? ls_to_f16(want) : ls_to_bf16(want))) fail_msg("unit %d, element %ld", u, (long)i);
            }
        }
        job = job_of(&b, b.gpu.m, "epoch-2"); /* rounded parameters alone are not a checkpoint */
        assert_int_equal(ls_ckpt_save(&job), LS_E_INTERNAL);
        assert_words("no master weights");
        both_close(&b);
    }
}

typedef struct late {
    float *x;
    float value;
} late;

static void write_late(void *ctx)
{
    const late *l = ctx;
    *l->x = l->value;
}

/* The writer thread sees work that was queued before the job was posted, even if it had not run yet, and does not wait for later work. */
static void a_save_sees_only_work_queued_before(void **state)
{
    (void)state;
    both b = {.dir = NULL};
    ls_ckpt_writer *w = NULL;
    both_open(&b, false, false, 9);
    float *first = (float *)b.cpu.m->unit[0].param;
    *first = 42;
    ls_ckpt_job job = job_of(&b, b.cpu.m, "step-1");
    assert_int_equal(ls_ckpt_save(&job), LS_OK);

    late before = {(float *)(void *)fake_real(&b.f, b.gpu.m->unit[0].param), 42}, after = {before.x, 43};
    *before.x = 0;
    b.f.n_queued = b.f.n_run = 0;
    b.f.latest = 0;
    assert_int_equal(ls_ckpt_writer_create(&w, b.gpu.m, NULL), LS_OK);
    job = job_of(&b, b.gpu.m, "step-2");
    fake_queue(&b.f, write_late, &before);
    assert_int_equal(ls_ckpt_post(w, &job), LS_OK);
    fake_queue(&b.f, write_late, &after); /* in training: forward and backward of the next step */
    assert_int_equal(ls_ckpt_wait(w), LS_OK);
    assert_int_equal(b.f.n_run, 1);
    assert_int_equal(b.f.latest, 2);
    same_folders(&b, "step-1", "step-2");
    ls_ckpt_writer_destroy(&w);
    both_close(&b);
}

/* The pieces of a shard: many short ones, separate in the file and adjacent in memory. */
static void many_short_pieces_travel_in_few_copies(void **state)
{
    (void)state;
    both b = {.dir = NULL};
    both_open(&b, false, false, 10);
    enum { RUN = 8 };
    ls_piece *piece = NULL;
    int n = 0;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (int what = 0; what < LS_N_FLAT; what++)
            for (int u = 0; u < b.gpu.m->n_unit; u++) {
                const ls_unit *x = &b.gpu.m->unit[u];
                char *base[] = {x->param, x->m, x->v};
                for (int64_t i = 0; i < x->n_pad; i += RUN, n++)
                    if (pass) piece[n] = (ls_piece){(ls_flat)what, u, i, RUN, base[what] + i * 4};
            }
        if (!pass) piece = ls_alloc((size_t)n * sizeof *piece);
        assert_non_null(piece);
    }
    ls_ckpt_job job = job_of(&b, b.cpu.m, "epoch-1");
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    job = job_of(&b, b.gpu.m, "epoch-2");
    job.piece = piece;
    job.n_piece = n;
    assert_int_equal(ls_ckpt_save(&job), LS_OK);
    same_folders(&b, "epoch-1", "epoch-2");
    assert_true(n > 1000 && b.f.n_copy <= 12);
    b.f.n_copy = 0;
    memset(b.f.here, 0x7f, b.f.nbytes);
    assert_int_equal(ls_ckpt_load(b.gpu.m, test_path(b.dir, "epoch-1", NULL), true, piece, n, NULL, NULL, NULL), LS_OK);
    assert_true(b.f.n_copy <= 12);
    for (int u = 0; u < b.gpu.m->n_unit; u++)
        assert_memory_equal(part_of(&b, u, 2), b.cpu.m->unit[u].v, (size_t)b.cpu.m->unit[u].n_pad * 4);
    ls_free(piece);
    both_close(&b);
}

/* A device that is lost at any of the copies: the error is reported, and no file remains. */
static void a_lost_device_fails_save_and_load(void **state)
{
    (void)state;
    both b = {.dir = NULL};
    ls_ckpt_writer *w = NULL;
    both_open(&b, true, false, 11);
    ls_ckpt_job job = job_of(&b, b.gpu.m, "step-1");
    assert_int_equal(ls_ckpt_writer_create(&w, b.gpu.m, NULL), LS_OK);
    for (long k = 0;; k++) {
        b.f.n_copy = 0;
        b.f.fail_at = k;
        assert_int_equal(ls_ckpt_post(w, &job), LS_OK);
        const ls_status st = ls_ckpt_wait(w);
        if (st == LS_OK) {
            assert_true(k > 4);
            break;
        }
        assert_int_equal(st, LS_E_DEVICE);
        assert_words("lost at a copy");
        assert_int_equal(test_n_entries(b.dir), 0);
    }
    ls_ckpt_writer_destroy(&w);
    for (long k = 0;; k++) {
        b.f.n_copy = 0;
        b.f.fail_at = k;
        const ls_status st = ls_ckpt_load(b.gpu.m, test_path(b.dir, "step-1", NULL), true, NULL, 0, NULL, NULL, NULL);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_DEVICE);
        assert_words("lost at a copy");
    }
    both_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_checkpoints_equal_those_of_the_cpu),
        cmocka_unit_test(weights_load_in_the_type_of_computation),
        cmocka_unit_test(a_save_sees_only_work_queued_before),
        cmocka_unit_test(many_short_pieces_travel_in_few_copies),
        cmocka_unit_test(a_lost_device_fails_save_and_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
