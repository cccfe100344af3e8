/* The update of an optimizer in host memory, with a device that is this process and copies as late as it may: a copy that nobody waits for
 * does not happen. Parameters, moments and norms must be those of a run without offload, bit by bit. */
#include "cmocka_all.h"
#include "core/minmax.h"
#include "model_fixture.h"
#include "parallel/strategy.h"

#include <pthread.h>
#include <string.h>

/* ---- the device ---- */

enum { ROOM = 4096 };
typedef struct late { /* a copy */
    void *dst;
    const void *src;
    size_t n;
    int lane;
    bool done;
} late;
static struct {
    pthread_mutex_t lock;
    late copy[ROOM];
    int n, lanes;
} dev = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Marks: 1 + index of a copy; of the queue of operations, which is always done, ROOM + 1. */
static ls_status dev_mark(void *ctx, ls_mark *out)
{
    (void)ctx;
    *out = ROOM + 1;
    return LS_OK;
}

static ls_status dev_wait(void *ctx, ls_mark m)
{
    (void)ctx;
    pthread_mutex_lock(&dev.lock);
    for (int i = 0; m && m <= ROOM && i < (int)m; i++) { /* a lane is in order */
        late *c = &dev.copy[i];
        if (c->done || c->lane != dev.copy[m - 1].lane) continue;
        memcpy(c->dst, c->src, c->n);
        c->done = true;
    }
    pthread_mutex_unlock(&dev.lock);
    return LS_OK;
}

static bool dev_test(void *ctx, ls_mark m)
{
    (void)ctx;
    return !m || m > ROOM;
}

static ls_status dev_sync(void *ctx)
{
    (void)ctx;
    return LS_OK;
}

static ls_status dev_lane(void *ctx, int *lane)
{
    (void)ctx;
    *lane = ++dev.lanes;
    return LS_OK;
}

static void dev_close(void *ctx, int lane)
{
    (void)ctx, (void)lane;
}

static ls_status dev_copy(void *ctx, int lane, void *dst, const void *src, size_t nbytes, ls_mark after, ls_mark *done)
{
    (void)ctx;
    assert_true(after == 0 || after > ROOM);
    pthread_mutex_lock(&dev.lock);
    assert_true(dev.n < ROOM);
    dev.copy[dev.n++] = (late){dst, src, nbytes, lane, false};
    *done = (ls_mark)dev.n;
    pthread_mutex_unlock(&dev.lock);
    return LS_OK;
}

static const ls_device device = {.mark = dev_mark,
                                 .hold = dev_wait,
                                 .wait = dev_wait,
                                 .test = dev_test,
                                 .sync = dev_sync,
                                 .lane_open = dev_lane,
                                 .lane_close = dev_close,
                                 .copy = dev_copy};

static const ls_compute_ops *cpu_ops;
static ls_compute_ops ops; /* of the device */

/* The parameters are copied from the master weights afterwards. */
static ls_status dev_adamw(ls_compute *c, void *p, void *master, const void *g, void *m, void *v, int64_t n,
                           const ls_adamw *h)
{
    assert_true(p != master);
    return cpu_ops->adamw(c, master, master, g, m, v, n, h);
}

/* ---- runs ---- */

typedef struct lab {
    ls_compute compute;
    ls_comm *comm;
    ls_model *model;
    ls_plan plan;
    ls_strategy *s;
    ls_acts *acts;
    int32_t ids[8], target[8];
    int M, k;
    pthread_t caller;
    bool elsewhere; /* another thread asked for hyperparameters */
} lab;

static ls_status on_acquire(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_acquire(((lab *)ctx)->s, u, pass);
}

static ls_status on_release(void *ctx, int u, ls_pass pass)
{
    return ls_strategy_release(((lab *)ctx)->s, u, pass);
}

static ls_status on_ready(void *ctx, int u)
{
    return ls_strategy_grad_ready(((lab *)ctx)->s, u);
}

static void hyper(void *ctx, int u, const ls_own *o, ls_adamw *h)
{
    lab *l = ctx;
    (void)u, (void)o;
    if (!pthread_equal(pthread_self(), l->caller)) l->elsewhere = true; /* read after the update, which waits for it */
    *h = (ls_adamw){.lr = 1e-2 / l->k,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .eps = 1e-8,
                    .weight_decay = 0.1,
                    .bias1 = 1,
                    .bias2 = 1,
                    .grad_scale = 1};
}

static void lab_open(lab *l, const char *name, int M, ls_variant variant, bool offload, bool overlap)
{
    ls_model_config cfg = small_config(variant, 0);
    *l = (lab){.M = M, .caller = pthread_self()};
    dev.n = 0;
    assert_int_equal(ls_compute_open(&l->compute, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 1), LS_OK);
    assert_int_equal(ls_comm_self(&l->comm), LS_OK);
    assert_int_equal(ls_model_create(&l->model, &cfg, &l->compute, ls_strategy_pad(name, false, 1)), LS_OK);
    const ls_strategy_opts o = {.n_micro = M,
                                .bucket = 700,
                                .gather_bucket = 1500,
                                .prefetch_bucket = 2000,
                                .deterministic = true,
                                .offload = offload,
                                .overlap = overlap};
    assert_int_equal(ls_strategy_create(&l->s, name, l->model, l->comm, &o, &l->plan), LS_OK);
    assert_int_equal(ls_acts_plan(&l->acts, l->model, &(ls_acts_opts){.B = 1, .T = 8, .train = true}, &l->plan), LS_OK);
    assert_int_equal(ls_plan_layout(&l->plan), LS_OK);
    assert_int_equal(ls_plan_alloc(&l->plan, false), LS_OK);
    assert_int_equal(ls_strategy_bind(l->s, &l->plan), LS_OK);
    ls_acts_bind(l->acts, l->model, &l->plan);
    ls_piece piece[64];
    const int n = ls_strategy_pieces(l->s, false, piece);
    for (int i = 0; i < n; i++)
        if (piece[i].what == LS_FLAT_PARAM) ls_model_init_piece(l->model, 3, &piece[i]);
    assert_int_equal(ls_strategy_publish(l->s, 1, 0), LS_OK);
    for (int i = 0; i < 8; i++) {
        l->ids[i] = i;
        l->target[i] = i + 1;
    }
    if (!offload) return;
    l->compute.device = &device;
    cpu_ops = l->compute.ops;
    ops = *cpu_ops;
    ops.adamw = dev_adamw;
    l->compute.ops = &ops;
}

static void lab_close(lab *l)
{
    ls_strategy_destroy(&l->s);
    l->compute.device = NULL;
    ls_acts_destroy(&l->acts);
    ls_model_destroy(&l->model);
    ls_plan_fini(&l->plan);
    ls_comm_destroy(&l->comm);
}

/* A step; early: the optimizer may begin during the backward pass. Returns the sum of squares. */
static double lab_step(lab *l, bool early)
{
    const ls_hooks h = {.ctx = l, .acquire = on_acquire, .release = on_release, .grad_ready = on_ready};
    double squares, loss[2];
    l->k++;
    l->elsewhere = false;
    if (early) assert_int_equal(ls_strategy_step_begin(l->s, hyper, l), LS_OK);
    for (int m = 0; m < l->M; m++) {
        ls_micro mb = {
            .ids = l->ids, .target = l->target, .B = 1, .T = 8, .train = true, .dloss = 0.1 * (m + 1), .loss = loss};
        ls_strategy_begin(l->s, m);
        assert_int_equal(ls_walk(l->model, l->acts, &mb, &h, LS_FWD, 0, l->model->n_unit), LS_OK);
        assert_int_equal(ls_walk(l->model, l->acts, &mb, &h, LS_BWD, 0, l->model->n_unit), LS_OK);
    }
    assert_int_equal(ls_strategy_step_due(l->s), LS_OK);
    assert_int_equal(ls_strategy_sum_squares(l->s, &squares), LS_OK);
    assert_int_equal(ls_strategy_update(l->s, hyper, l), LS_OK);
    assert_int_equal(ls_strategy_step_done(l->s), LS_OK);
    return squares;
}

static void same_state(const lab *a, const lab *b)
{
    for (int u = 0; u < a->model->n_unit; u++) {
        const ls_own x = ls_strategy_own(a->s, u), y = ls_strategy_own(b->s, u);
        const size_t n = (size_t)LS_MIN(x.n, y.n) * sizeof(float); /* padded alike: one worker each */
        assert_true(x.n == y.n && n > 0);
        assert_memory_equal(x.param, y.param, n);
        assert_memory_equal(x.master, y.master, n);
        assert_memory_equal(x.m, y.m, n);
        assert_memory_equal(x.v, y.v, n);
    }
}

static void compare_with(const char *name, ls_variant variant, int M, bool overlap, bool early)
{
    lab a, b;
    lab_open(&a, "single", M, variant, false, false);
    lab_open(&b, name, M, variant, true, overlap);
    bool elsewhere = false;
    for (int k = 0; k < 4; k++) {
        assert_true(lab_step(&a, false) == lab_step(&b, early));
        elsewhere |= b.elsewhere;
        same_state(&a, &b);
    }
    if (!overlap || !early) assert_false(elsewhere);
    lab_close(&a);
    lab_close(&b);
}

static void offload_changes_no_bit_under_any_strategy(void **state)
{
    (void)state;
    static const char *const name[] = {"single", "zero1", "zero2", "zero3"};
    for (int s = 0; s < 4; s++)
        for (int M = 1; M <= 3; M++)
            for (int how = 0; how < 8; how++)
                compare_with(name[s], how & 1 ? LS_VARIANT_R1 : LS_VARIANT_HF, M, how & 2, how & 4);
}

static void a_step_that_was_given_up_leaves_nothing(void **state)
{
    (void)state;
    lab a, b;
    lab_open(&a, "zero1", 2, LS_VARIANT_HF, false, false);
    lab_open(&b, "zero1", 2, LS_VARIANT_HF, true, true);
    assert_true(lab_step(&a, false) == lab_step(&b, true));
    b.k++;
    assert_int_equal(ls_strategy_step_begin(b.s, hyper, &b), LS_OK); /* stopped before its last backward pass */
    same_state(&a, &b);
    b.k--;
    assert_true(lab_step(&a, false) == lab_step(&b, true));
    same_state(&a, &b);
    assert_int_equal(ls_strategy_step_begin(b.s, hyper, &b), LS_OK); /* and closed in the middle of one */
    lab_close(&a);
    lab_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offload_changes_no_bit_under_any_strategy),
        cmocka_unit_test(a_step_that_was_given_up_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
