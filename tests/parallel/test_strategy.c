/* The formulas at the top of the files in src/parallel: the memory of each strategy and the elements and bytes it sends, counted by the
 * `dry` backend for every rank. Also the window allocator and layouts that cannot work. */
#include "cmocka_all.h"
#include "model_fixture.h"
#include "parallel/strategy.h"

#include <stdlib.h>
#include <string.h>

typedef struct lab {
    ls_compute compute;
    ls_comm *comm;
    ls_model *model;
    ls_plan plan;
    ls_strategy *s;
    ls_acts *acts;
    void *param[8]; /* of the ranks of ddp with one state that have none */
    int32_t ids[8], target[8];
    int M;
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

#define ONE_STATE "ddp with one state"

static void lab_open(lab *l, const char *name, int rank, int W, int M, ls_variant variant, int64_t bucket)
{
    ls_model_config cfg = small_config(variant, 0);
    const bool one = !strcmp(name, ONE_STATE);
    if (one) name = "ddp";
    *l = (lab){.M = M};
    assert_int_equal(ls_compute_open(&l->compute, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 1), LS_OK);
    assert_int_equal(ls_comm_dry(rank, W, &l->comm), LS_OK);
    assert_int_equal(ls_model_create(&l->model, &cfg, &l->compute, ls_strategy_pad(name, one, W)), LS_OK);
    const ls_strategy_opts o = {.n_micro = M,
                                .bucket = bucket,
                                .gather_bucket = 1500,
                                .prefetch_bucket = 2000,
                                .deterministic = true,
                                .one_state = one};
    assert_int_equal(ls_strategy_create(&l->s, name, l->model, l->comm, &o, &l->plan), LS_OK);
    assert_int_equal(ls_acts_plan(&l->acts, l->model, &(ls_acts_opts){.B = 1, .T = 8, .train = true}, &l->plan), LS_OK);
    assert_int_equal(ls_plan_layout(&l->plan), LS_OK);
    assert_int_equal(ls_plan_alloc(&l->plan, false), LS_OK);
    assert_int_equal(ls_strategy_bind(l->s, &l->plan), LS_OK);
    ls_acts_bind(l->acts, l->model, &l->plan);
    for (int u = 0; one && rank && u < l->model->n_unit; u++) { /* nobody has rank 0's */
        l->model->unit[u].param = l->param[u] = calloc((size_t)l->model->unit[u].n_pad, sizeof(float));
        assert_non_null(l->param[u]);
    }
    ls_piece piece[64];
    const int n = ls_strategy_pieces(l->s, false, piece);
    for (int i = 0; i < n; i++)
        if (piece[i].what == LS_FLAT_PARAM) ls_model_init_piece(l->model, 3, &piece[i]);
    for (int i = 0; i < 8; i++) {
        l->ids[i] = i;
        l->target[i] = i + 1;
    }
}

static void lab_close(lab *l)
{
    for (int u = 0; u < l->model->n_unit; u++) free(l->param[u]);
    ls_strategy_destroy(&l->s);
    ls_acts_destroy(&l->acts);
    ls_model_destroy(&l->model);
    ls_plan_fini(&l->plan);
    ls_comm_destroy(&l->comm);
}

static void lab_step(lab *l)
{
    const ls_hooks h = {.ctx = l, .acquire = on_acquire, .release = on_release, .grad_ready = on_ready};
    for (int m = 0; m < l->M; m++) {
        ls_micro mb = {.ids = l->ids, .target = l->target, .B = 1, .T = 8, .train = true, .dloss = 0.1};
        ls_strategy_begin(l->s, m);
        assert_int_equal(ls_walk(l->model, l->acts, &mb, &h, LS_FWD, 0, l->model->n_unit), LS_OK);
        assert_int_equal(ls_walk(l->model, l->acts, &mb, &h, LS_BWD, 0, l->model->n_unit), LS_OK);
    }
    double squares;
    assert_int_equal(ls_strategy_step_due(l->s), LS_OK);
    assert_int_equal(ls_strategy_sum_squares(l->s, &squares), LS_OK);
    for (int u = 0; u < l->model->n_unit; u++) assert_int_equal(ls_strategy_unit_done(l->s, u), LS_OK);
    assert_int_equal(ls_strategy_step_done(l->s), LS_OK);
}

/* Collectives that belong to a bucket. */
static ls_comm_stat bucketed(const lab *l, ls_coll kind)
{
    const ls_comm_stat all = ls_comm_stats(l->comm, kind), rest = ls_comm_label_stats(l->comm, kind, 0);
    return (ls_comm_stat){
        .calls = all.calls - rest.calls, .elements = all.elements - rest.elements, .bytes = all.bytes - rest.bytes};
}

static int levels(int M)
{
    int n = 0;
    for (unsigned x = (unsigned)M - 1; x; x >>= 1) n++;
    return n ? n : 1;
}

static void check_laws(const char *name, int rank, int W, int M, ls_variant variant, int64_t bucket)
{
    lab l;
    lab_open(&l, name, rank, W, M, variant, bucket);
    const ls_model *m = l.model;
    int64_t P = 0, G = 0, B = 0, largest = 0;
    for (int u = 0; u < m->n_unit; u++) {
        P += m->unit[u].n_pad;
        G += m->unit[u].n_grad;
        if (m->unit[u].kind == LS_UNIT_BLOCK) B += m->unit[u].n_pad;
        if (m->unit[u].n_grad > largest) largest = m->unit[u].n_grad;
    }
    const int64_t E = m->unit[0].n_pad, tied = m->cfg.tied ? E : 0;
    assert_int_equal(G, P + tied);
    const int steps = 2;
    for (int k = 0; k < steps; k++) lab_step(&l);

    int64_t want[LS_N_COLL] = {0};
    const bool dp = !strcmp(name, "dp"), zero = !strncmp(name, "zero", 4);
    const bool common = !strcmp(name, ONE_STATE); /* sums and moments as zero1; one copy of the parameters, on rank 0 */
    const int stage = zero ? name[4] - '0' : common ? 1 : 0;
    if (dp) want[LS_COLL_REDUCE] = G, want[LS_COLL_BROADCAST] = P;
    if (!strcmp(name, "ddp")) want[LS_COLL_ALL_REDUCE] = G;
    if (stage) want[LS_COLL_REDUCE_SCATTER] = stage == 1 ? G : M * G;
    if ((stage == 1 && !common) || stage == 2) want[LS_COLL_ALL_GATHER] = P;
    if (stage == 3) want[LS_COLL_ALL_GATHER] = M * (P + B + tied);
    for (int k = 0; k < LS_N_COLL; k++) {
        const ls_comm_stat s = bucketed(&l, (ls_coll)k);
        assert_int_equal(s.elements, steps * want[k]);
        if (k == LS_COLL_REDUCE_SCATTER || k == LS_COLL_ALL_GATHER)
            assert_int_equal(s.bytes, 4 * steps * want[k] / W * (W - 1));
        if (k == LS_COLL_BROADCAST) assert_int_equal(s.bytes, rank ? 4 * steps * want[k] : 0);
    }

    const bool moments = !dp || rank == 0;
    const int64_t param = ls_plan_part_bytes(&l.plan, LS_PART_PARAM), grad = ls_plan_part_bytes(&l.plan, LS_PART_GRAD),
                  opt = ls_plan_part_bytes(&l.plan, LS_PART_OPT);
    assert_int_equal(param, common && rank ? 0 : 4 * (stage == 3 ? P / W : P));
    assert_int_equal(opt, moments ? 8 * (stage ? P / W : P) : 0);
    assert_int_equal(grad, 4 * (stage >= 2 ? levels(M) * G / W : levels(M) * G + (M > 1 ? largest : 0)));
    lab_close(&l);
}

static void each_strategy_sends_and_stores_as_documented(void **state)
{
    (void)state;
    const char *const name[] = {"single", "dp", "ddp", ONE_STATE, "zero1", "zero2", "zero3"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++)
        for (int W = 1; W <= 4; W *= 2)
            for (int r = 0; r < W; r++)
                for (int M = 1; M <= 4; M *= 2)
                    for (int v = 0; v < 2; v++)
                        for (int64_t bucket = 700; bucket <= 700000; bucket *= 1000)
                            if (W == 1 || i) check_laws(name[i], r, W, M, v ? LS_VARIANT_R1 : LS_VARIANT_HF, bucket);
}

/* The pieces that all workers save together cover every element of every buffer once. */
static void saved_pieces_cover_each_element_once(void **state)
{
    (void)state;
    const char *const name[] = {"dp", "ddp", ONE_STATE, "zero1", "zero2", "zero3"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        for (int W = 1; W <= 4; W++) {
            static unsigned char seen[LS_N_FLAT][4][100000];
            memset(seen, 0, sizeof seen);
            int64_t n_pad[4] = {0};
            for (int r = 0; r < W; r++) {
                lab l;
                lab_open(&l, name[i], r, W, 1, LS_VARIANT_HF, 1000);
                ls_piece p[64];
                const int n = ls_strategy_pieces(l.s, true, p);
                for (int k = 0; k < n; k++) {
                    assert_true(p[k].first >= 0 && p[k].first + p[k].n <= l.model->unit[p[k].unit].n_pad);
                    for (int64_t x = 0; x < p[k].n; x++) seen[p[k].what][p[k].unit][p[k].first + x]++;
                }
                for (int u = 0; u < 4; u++) n_pad[u] = l.model->unit[u].n_pad;
                lab_close(&l);
            }
            for (int w = 0; w < LS_N_FLAT; w++)
                for (int u = 0; u < 4; u++)
                    for (int64_t x = 0; x < n_pad[u]; x++) assert_int_equal(seen[w][u][x], 1);
        }
    }
}

static void layouts_that_cannot_work_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *name;
        int W, M;
        const char *word;
    } all[] = {{"single", 2, 1, "single"},
               {"ddp", 2, 3, "2 or 4"},
               {"zero1", 4, 6, "4 or 8"},
               {"zero2", 3, 2, "use 2 replicas"},
               {"zero3", 6, 4, "4 or 8"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        lab l = {0};
        ls_model_config cfg = small_config(LS_VARIANT_HF, 0);
        assert_int_equal(ls_compute_open(&l.compute, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 1), LS_OK);
        assert_int_equal(ls_comm_dry(0, all[i].W, &l.comm), LS_OK);
        assert_int_equal(ls_model_create(&l.model, &cfg, &l.compute, ls_strategy_pad(all[i].name, false, all[i].W)),
                         LS_OK);
        ls_strategy_opts o = {.n_micro = all[i].M, .bucket = 1, .gather_bucket = 1, .deterministic = true};
        assert_int_equal(ls_strategy_create(&l.s, all[i].name, l.model, l.comm, &o, &l.plan), LS_E_CONFIG);
        assert_non_null(strstr(ls_err_words(), all[i].word));
        if (i) {
            o.deterministic = false;
            assert_int_equal(ls_strategy_create(&l.s, all[i].name, l.model, l.comm, &o, &l.plan), LS_OK);
            ls_strategy_destroy(&l.s);
        }
        ls_plan_fini(&l.plan);
        ls_model_destroy(&l.model);
        ls_comm_destroy(&l.comm);
    }
}

static void window_ranges_never_overlap(void **state)
{
    (void)state;
    ls_window w = {.capacity = 100};
    int64_t held[LS_WINDOW_MAX][2];
    int n = 0, full = 0;
    for (int i = 0; i < 5000; i++) {
        const uint64_t x = ls_rng_u64(9, (uint64_t)i);
        const int64_t want = 1 + (int64_t)(x % 30);
        const int64_t at = x >> 40 & 1 && n ? -1 : ls_window_take(&w, want, x >> 20 & 1);
        if (at < 0) { /* release a range */
            full++;
            if (!n) continue;
            const int k = (int)((x >> 8) % (uint64_t)n);
            ls_window_give(&w, held[k][0]);
            memmove(held[k], held[n - 1], sizeof held[0]);
            n--;
            continue;
        }
        assert_true(at >= 0 && at + want <= 100);
        for (int k = 0; k < n; k++) assert_true(at + want <= held[k][0] || held[k][0] + held[k][1] <= at);
        held[n][0] = at;
        held[n++][1] = want;
    }
    assert_true(full > 100);
    while (n) ls_window_give(&w, held[--n][0]);
    assert_int_equal(ls_window_take(&w, 100, false), 0);
    assert_int_equal(ls_window_take(&w, 1, false), -1);
}

int main(void)
{
    const struct CMUnitTest t[] = {cmocka_unit_test(each_strategy_sends_and_stores_as_documented),
                                   cmocka_unit_test(saved_pieces_cover_each_element_once),
                                   cmocka_unit_test(layouts_that_cannot_work_are_refused),
                                   cmocka_unit_test(window_ranges_never_overlap)};
    return cmocka_run_group_tests(t, NULL, NULL);
}
