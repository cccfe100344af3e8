/* Scales of fp8: the largest power of two that keeps the recorded magnitudes within the format, and the history that they come from. */
#include "model/fp8.h"
#include "cmocka_all.h"
#include "model_fixture.h"

#include <math.h>

static void a_scale_is_the_largest_power_of_two_that_fits(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        const ls_fp8 form = f ? LS_E5M2 : LS_E4M3;
        const float most = f ? 57344 : 448;
        for (float amax = 1e-9f; amax < 1e9f; amax *= 1.37f)
            for (int margin = 0; margin < 3; margin++) {
                const float s = ls_fp8_scale(amax, form, margin), top = amax * s * ldexpf(1, margin);
                int e;
                assert_true(frexpf(s, &e) == 0.5f);
                assert_true(top <= most && 2 * top > most);
            }
        assert_true(ls_fp8_scale(most, form, 0) == 1);
        assert_true(ls_fp8_scale(nextafterf(most, 1e30f), form, 0) == 0.5f);
        assert_true(ls_fp8_scale(0, form, 0) == 1);
        const float tiny = ls_fp8_scale(1e-45f, form, 0), huge = ls_fp8_scale(3e38f, form, 0);
        assert_true(isfinite(tiny) && isfinite(1 / tiny) && huge > 0 && isfinite(1 / huge));
    }
}

static void the_history_drops_its_oldest_step(void **state)
{
    (void)state;
    float room[3 * 2] = {0};
    ls_fp8_history h = {.n = 2, .length = 3, .amax = room};
    for (int s = 1; s <= 5; s++) {
        ls_fp8_push(&h, (float[]){(float)s, (float)(10 * s)});
        assert_int_equal(h.used, s < 3 ? s : 3);
        assert_true(room[0] == (float)s && room[1] == (float)(10 * s));
    }
    const float want[] = {5, 50, 4, 40, 3, 30};
    for (int i = 0; i < 6; i++) assert_true(room[i] == want[i]);
}

static void an_operand_that_was_always_0_has_no_scale(void **state)
{
    (void)state;
    float room[2 * 2] = {0};
    ls_fp8_history h = {.n = 2, .length = 2, .amax = room};
    assert_int_equal(ls_fp8_push(&h, (float[]){1, 0}), 1);
    assert_int_equal(h.used, 0); /* the next step records */
    assert_int_equal(ls_fp8_push(&h, (float[]){1, 2}), -1);
    assert_int_equal(ls_fp8_push(&h, (float[]){0, 2}), -1); /* the step before decides */
    assert_int_equal(h.used, 2);
    assert_int_equal(ls_fp8_push(&h, (float[]){0, 2}), 0);
    assert_int_equal(h.used, 0);
    char name[80];
    ls_fp8_name(2 * LS_FP8_LAYERS * LS_N_FP8_OPERAND + 5, name, sizeof name);
    assert_string_equal(name, "the gradient of the attention projection of block 2");
}

/* One block on the CPU, which computes nothing here: only its scales are set. */
typedef struct scaled {
    ls_compute compute;
    ls_model *model;
    ls_plan plan;
} scaled;

static void open_scaled(scaled *s, int history)
{
    ls_model_config cfg = small_config(LS_VARIANT_HF, 0);
    cfg.n_layer = 1;
    cfg.n_embd = 16;
    *s = (scaled){0};
    const ls_fp8_opts o = {.on = true, .history = history};
    assert_int_equal(ls_compute_open(&s->compute, "cpu", &(ls_compute_open_opts){.dtype = LS_BF16}, 1), LS_OK);
    assert_int_equal(ls_model_create(&s->model, &cfg, &s->compute, 16), LS_OK);
    assert_int_equal(ls_fp8_create(s->model, &o, 16, (ls_fp8_cut){0}, NULL, &s->plan), LS_OK);
    assert_int_equal(ls_plan_layout(&s->plan), LS_OK);
    assert_int_equal(ls_plan_alloc(&s->plan, false), LS_OK);
    ls_fp8_bind(s->model, &s->plan);
}

/* A step in which operand i has the magnitude amax + i. */
static void push_and_set(scaled *s, float amax)
{
    float step[LS_FP8_LAYERS * LS_N_FP8_OPERAND];
    ls_fp8_state *f = s->model->fp8;
    assert_int_equal(f->history.n, N_OF(step));
    for (int i = 0; i < f->history.n; i++) step[i] = amax + (float)i;
    ls_fp8_push(&f->history, step);
    assert_int_equal(ls_fp8_set(s->model), LS_OK);
}

static void assert_scales_of(const scaled *s, float amax)
{
    const ls_fp8_state *f = s->model->fp8;
    for (int i = 0; i < f->history.n; i++) {
        const ls_fp8 form = i % LS_N_FP8_OPERAND == LS_FP8_DY ? LS_E5M2 : LS_E4M3;
        const float want = ls_fp8_scale(amax + (float)i, form, 0);
        assert_true(f->scale[i] == want && f->factor[LS_FP8_APART * i] == 1 / want && f->amax[i] == 0);
    }
}

/* fp8.amax_compute_algo most_recent is a history of one step. */
static void a_scale_is_that_of_the_largest_magnitude_of_the_history(void **state)
{
    (void)state;
    for (int history = 1; history <= 4; history++) {
        scaled s;
        open_scaled(&s, history);
        push_and_set(&s, 1);
        assert_scales_of(&s, 1);
        push_and_set(&s, 3000);
        assert_scales_of(&s, 3000);
        for (int later = 1; later < history; later++) {
            push_and_set(&s, 1);
            assert_scales_of(&s, 3000);
        }
        push_and_set(&s, 1); /* as many steps later as the history has: it is forgotten */
        assert_scales_of(&s, 1);
        ls_model_destroy(&s.model);
        ls_plan_fini(&s.plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_scale_is_the_largest_power_of_two_that_fits),
                                       cmocka_unit_test(the_history_drops_its_oldest_step),
                                       cmocka_unit_test(an_operand_that_was_always_0_has_no_scale),
                                       cmocka_unit_test(a_scale_is_that_of_the_largest_magnitude_of_the_history)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
