/* Every schedule for 1-12 stages x 1-64 micro-batches (and 2-4 chunks): it passes the checker and an independent check, its text reads
 * back, and its bubble and peak are those of theory. The checker finds lists that were changed at random unless they still are a
 * correct training step. */
/* ls-test: long */
#include "parallel/schedule_check.h"
#include "parallel/schedule_text.h"
#include "parallel/simulate.h"

#include "core/mem.h"
#include "core/rng.h"
#include "cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_STAGE 12
#define MAX_MICRO 64

/* The independent check: runs the lists without their messages, by the dependencies between parts alone. True if every action was
 * done exactly once. */
static bool runs(const ls_schedule *s)
{
    const int n_part = s->n_stage * s->n_chunk;
    static unsigned char fwd[64][MAX_MICRO], in[64][MAX_MICRO], w[64][MAX_MICRO];
    int at[MAX_STAGE] = {0}, done = 0;
    memset(fwd, 0, sizeof fwd);
    memset(in, 0, sizeof in);
    memset(w, 0, sizeof w);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->n_stage; r++)
            for (; at[r] < s->rank[r].n_action; at[r]++, moved = true) {
                const ls_action *a = &s->rank[r].action[at[r]];
                if (!ls_pipe_computes(a->kind)) continue;
                const int g = ls_pipe_part(s, r, a->chunk), m = a->micro;
                const bool last = g == n_part - 1;
                if (a->kind == LS_PIPE_FWD) {
                    if (g > 0 && !fwd[g - 1][m]) break;
                    if (fwd[g][m]++) return false;
                } else if (a->kind == LS_PIPE_BWD_W) {
                    if (!in[g][m] || w[g][m]++) return false;
                    done++;
                } else {
                    if (!fwd[g][m]) return false;
                    if (!last && !in[g + 1][m]) break;
                    if (in[g][m]++) return false;
                    if (a->kind == LS_PIPE_BWD) {
                        w[g][m]++;
                        done++;
                    }
                }
            }
    }
    return done == n_part * s->n_micro;
}

static void read_back(const ls_schedule *s)
{
    ls_schedule *again = NULL;
    ls_str a = {0}, b = {0};
    ls_schedule_write(s, &a);
    assert_int_equal(ls_schedule_read(&again, a.data, a.len, "t"), LS_OK);
    for (int r = 0; r < s->n_stage; r++) { /* equal lists, slots and peaks */
        assert_int_equal(again->rank[r].n_action, s->rank[r].n_action);
        for (int i = 0; i < s->rank[r].n_action; i++) {
            const int line = again->rank[r].action[i].line;
            assert_true(line > 7);
            again->rank[r].action[i].line = 0; /* of this one, made by a function */
        }
        assert_memory_equal(again->rank[r].action, s->rank[r].action, (size_t)s->rank[r].n_action * sizeof(ls_action));
        assert_memory_equal(again->rank[r].peak, s->rank[r].peak, (size_t)s->n_chunk * sizeof(int));
    }
    ls_schedule_write(again, &b);
    assert_string_equal(a.data, b.data);
    ls_str_fini(&a);
    ls_str_fini(&b);
    ls_schedule_destroy(&again);
}

/* Slots of activations (or gradients) of a rank: a micro-batch has one from its first to its last use, does not share it, and its number
 * is below the peak. */
static void slots_are_exclusive(const ls_schedule *s, const ls_rank_list *l, bool grads)
{
    int holder[64][MAX_MICRO], last[64][MAX_MICRO];
    memset(holder, -1, sizeof holder);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < l->n_action; i++) {
            const ls_action *a = &l->action[i];
            const bool in_grads = a->kind == LS_PIPE_RECV_GRAD || a->kind == LS_PIPE_SEND_GRAD;
            const bool in_acts = a->kind == LS_PIPE_FWD || a->kind == LS_PIPE_RECV_ACT || a->kind == LS_PIPE_SEND_ACT;
            if (a->kind >= LS_PIPE_REDUCE || (grads ? in_acts : in_grads)) continue;
            if (pass == 0) {
                last[a->chunk][a->micro] = i;
                continue;
            }
            const int slot = grads ? a->grad_slot : a->slot, peak = grads ? l->grad_peak[a->chunk] : l->peak[a->chunk];
            assert_true(slot >= 0 && slot < peak && peak <= s->n_micro);
            int *h = &holder[a->chunk][slot];
            assert_true(*h < 0 || *h == a->micro);
            for (int k = 0; *h < 0 && k < peak; k++) assert_int_not_equal(holder[a->chunk][k], a->micro);
            *h = last[a->chunk][a->micro] == i ? -1 : a->micro;
        }
}

typedef struct facts {
    double makespan, bubble, inner, work;
    int peak, mailbox;
} facts;

/* Creates a schedule, runs all checks, and returns its time and memory. */
static facts examine(const char *name, int p, int m, int v, int live, const ls_pipe_costs *costs)
{
    ls_schedule *s = NULL;
    facts f = {0};
    const ls_pipe_opts o = {p, m, v, live, costs};
    if (ls_schedule_create(&s, name, &o) != LS_OK || ls_schedule_check(s) != LS_OK || !runs(s))
        fail_msg("%s p=%d m=%d v=%d live=%d: %s", name, p, m, v, live, ls_err_words());
    assert_int_equal(ls_schedule_mailbox(s, &f.mailbox), LS_OK);
    ls_sim sim;
    assert_int_equal(ls_simulate(&sim, s, costs, 0), LS_OK);
    f.makespan = sim.makespan;
    f.bubble = sim.bubble;
    f.inner = sim.inner;
    for (int r = 0; r < p; r++) f.peak = s->rank[r].peak_all > f.peak ? s->rank[r].peak_all : f.peak;
    for (int r = 0; r < p; r++) {
        slots_are_exclusive(s, &s->rank[r], false);
        slots_are_exclusive(s, &s->rank[r], true);
    }
    ls_sim_fini(&sim);
    if (m <= 12 || m % 16 == 0) read_back(s);
    ls_schedule_destroy(&s);
    return f;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * (1 + fabs(b));
}

/* backward takes as long as forward; in ls_pipe_equal twice as long */
static const ls_pipe_costs even = {.each = {1, 0.5, 0.5, 1}};

static void basic_schedules_have_the_theoretical_bubble(void **state)
{
    (void)state;
    for (int p = 1; p <= MAX_STAGE; p++)
        for (int m = 1; m <= MAX_MICRO; m++) {
            const bool k = (p + m) % 2;
            const ls_pipe_costs *costs = k ? &even : &ls_pipe_equal;
            const double each = k ? 2 : 3, theory = (p - 1) / (double)(m + p - 1);
            facts f = examine("naive", p, m, 1, 0, costs);
            assert_true(near(f.makespan, each * m * p) && near(f.bubble, (p - 1) / (double)p));
            assert_int_equal(f.peak, 1);
            f = examine("gpipe", p, m, 1, 0, costs);
            assert_true(near(f.makespan, each * (m + p - 1)) && near(f.bubble, theory));
            assert_int_equal(f.peak, m);
            f = examine("1f1b", p, m, 1, 0, costs);
            assert_true(near(f.makespan, each * (m + p - 1)) && near(f.bubble, theory));
            assert_int_equal(f.peak, m < p ? m : p);
            assert_int_equal(f.mailbox, 1);
        }
}

/* If p divides m, the idle time is that of 1f1b divided by v: (p-1)/(vm) of the time of work. */
static void interleaving_divides_the_bubble_by_chunks(void **state)
{
    (void)state;
    double worst = 0;
    for (int v = 2; v <= 4; v++)
        for (int p = 2; p <= MAX_STAGE; p++)
            for (int m = 1; m <= MAX_MICRO; m++) {
                const facts f = examine("interleaved", p, m, v, 0, &ls_pipe_equal);
                const int next = (m + p - 1) / p * p;
                const double full = 3.0 * (v * next + p - 1);
                if (m % p == 0) {
                    assert_true(near(f.makespan, 3.0 * (v * m + p - 1)));
                    assert_true(near(f.bubble, (p - 1) / (double)(v * m + p - 1)));
                }
                assert_true(f.makespan <=
                            full * (1 + 1e-12)); /* never slower than with m rounded up to a multiple of p */
                assert_true(f.peak <= (v - 1) * p + 2 * (p - 1) + 1);
                assert_int_equal(f.mailbox, 1);
                /* no slower than 1f1b of the same model, whose stages cost v chunks */
                const double plain = 3.0 * v * (m + p - 1);
                worst = f.makespan / plain > worst ? f.makespan / plain : worst;
            }
    print_message("interleaved: longest time relative to 1f1b: %.3f\n", worst);
}

static void zero_bubble_reaches_the_shortest_time(void **state)
{
    (void)state;
    for (int p = 1; p <= MAX_STAGE; p++)
        for (int m = 1; m <= MAX_MICRO; m++) {
            const facts f = examine("zb", p, m, 1, 0, &ls_pipe_equal);
            /* the last stage begins at p-1 and has 3m of work: no schedule is shorter */
            const double shortest = 3.0 * m + (p - 1);
            assert_true(f.peak <= (m < p ? m : p));
            assert_true(f.makespan >= shortest);
            assert_true(m < p || near(f.makespan, shortest));
            assert_true(f.makespan <= 3.0 * (m + p - 1)); /* never longer than 1f1b */
            if (m >= 17 * p) assert_true(f.bubble < 0.02);
            if (m >= 8 * p) assert_true(f.bubble < 0.04);
            const facts h = examine("zb", p, m, 1, 2 * p - 1, &ls_pipe_equal);
            assert_true(h.peak <= (m < 2 * p - 1 ? m : 2 * p - 1));
            assert_true(m < p || near(h.makespan, shortest));
            assert_true(m < 2 * p - 1 || near(h.inner, 0)); /* no rank is idle after its first action */
            assert_true(f.mailbox == 1 && h.mailbox == 1);
        }
}

/* ---- random changes ---- */

static void change(ls_schedule *s, uint64_t key)
{
    const int r = (int)(ls_rng_u64(key, 0) % (uint64_t)s->n_stage);
    ls_rank_list *l = &s->rank[r];
    const int i = (int)(ls_rng_u64(key, 1) % (uint64_t)l->n_action), how = (int)(ls_rng_u64(key, 2) % 7);
    const int j = (int)(ls_rng_u64(key, 3) % (uint64_t)l->n_action);
    ls_action *a = &l->action[i], t = *a;
    switch (how) {
    case 0: /* left out */
        memmove(a, a + 1, (size_t)(l->n_action - i - 1) * sizeof *a);
        l->n_action--;
        break;
    case 1: /* overwritten by another */ *a = l->action[j]; break;
    case 2: /* exchanged with its neighbour */
        if (i + 1 == l->n_action) return;
        *a = a[1];
        a[1] = t;
        break;
    case 3: /* exchanged with any */
        *a = l->action[j];
        l->action[j] = t;
        break;
    case 4: a->micro = (int)(ls_rng_u64(key, 4) % (uint64_t)s->n_micro); break;
    case 5: a->chunk = (int)(ls_rng_u64(key, 4) % (uint64_t)s->n_chunk); break;
    default: a->kind = (ls_pipe_kind)(ls_rng_u64(key, 4) % LS_N_PIPE); break;
    }
}

/* The independent check of a changed list: it runs, and no rank's list lacks a message. */
static bool still_a_step(const ls_schedule *s)
{
    for (int r = 0; r < s->n_stage; r++) {
        int n[LS_N_PIPE] = {0}, expect[2] = {0};
        for (int i = 0; i < s->rank[r].n_action; i++) n[s->rank[r].action[i].kind]++;
        for (int c = 0; c < s->n_chunk; c++) {
            expect[0] += ls_pipe_next(s, r, c) >= 0 ? s->n_micro : 0;
            expect[1] += ls_pipe_prev(s, r, c) >= 0 ? s->n_micro : 0;
        }
        if (n[LS_PIPE_SEND_ACT] != expect[0] || n[LS_PIPE_RECV_GRAD] != expect[0] ||
            n[LS_PIPE_SEND_GRAD] != expect[1] || n[LS_PIPE_RECV_ACT] != expect[1] || n[LS_PIPE_STEP] != 1 ||
            n[LS_PIPE_REDUCE] != s->n_chunk)
            return false;
    }
    return runs(s);
}

static void random_changes_are_found_or_harmless(void **state)
{
    (void)state;
    static const char *const name[] = {"naive", "gpipe", "1f1b", "interleaved", "zb"};
    int n = 0, unchanged = 0, caught = 0, harmless = 0;
    for (uint64_t key = 0; key < 6000; key++) {
        const int which = (int)(key % 5), p = 2 + (int)(ls_rng_u64(key, 10) % 4),
                  m = 1 + (int)(ls_rng_u64(key, 11) % 8);
        ls_schedule *s = NULL, *before = NULL;
        const ls_pipe_opts o = {p, m, which == 3 ? 2 : 1, 0, NULL};
        assert_int_equal(ls_schedule_create(&s, name[which], &o), LS_OK);
        assert_int_equal(ls_schedule_create(&before, name[which], &o), LS_OK);
        change(s, key);
        bool same = true;
        for (int r = 0; r < p; r++)
            same = same && s->rank[r].n_action == before->rank[r].n_action &&
                   !memcmp(s->rank[r].action, before->rank[r].action, (size_t)s->rank[r].n_action * sizeof(ls_action));
        n++;
        const ls_status st = ls_schedule_check(s);
        assert_true(st == LS_OK || st == LS_E_CONFIG);
        if (same) {
            unchanged++;
            assert_int_equal(st, LS_OK);
        } else if (st != LS_OK) {
            caught++;
            assert_non_null(strpbrk(ls_err_words(), "0123456789")); /* the message names a rank */
            assert_non_null(strstr(ls_err_words(), "rank "));
        } else {
            harmless++;
            if (!still_a_step(s))
                fail_msg("key %llu, %s: the checker accepts a broken list", (unsigned long long)key, name[which]);
        }
        ls_schedule_destroy(&s);
        ls_schedule_destroy(&before);
    }
    print_message("%d lists: %d refused, %d harmless, %d unchanged\n", n, caught, harmless, unchanged);
    assert_true(caught > n / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(basic_schedules_have_the_theoretical_bubble),
                                       cmocka_unit_test(interleaving_divides_the_bubble_by_chunks),
                                       cmocka_unit_test(zero_bubble_reaches_the_shortest_time),
                                       cmocka_unit_test(random_changes_are_found_or_harmless)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
