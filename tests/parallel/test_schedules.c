/* Small schedules: their lists, the clocks of the translation study (docs/REFERENCES.md), reading and writing text, and
 * each rule of the checker broken once. */
#include "parallel/schedule_check.h"
#include "parallel/schedule_text.h"
#include "parallel/simulate.h"

#include "comm/comm.h"
#include "core/mem.h"
#include "assert_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static ls_schedule *make(const char *name, int p, int m, int v)
{
    ls_schedule *s = NULL;
    const ls_status st = ls_schedule_create(&s, name, &(ls_pipe_opts){.n_stage = p, .n_micro = m, .n_chunk = v});
    if (st != LS_OK) fail_msg("%s: %s", name, ls_err_words());
    return s;
}

static ls_status read_text(ls_schedule **out, const char *text)
{
    return ls_schedule_read(out, text, strlen(text), "t");
}

/* Checks the schedule, and that it completes with mailboxes of so many slots. */
static ls_status check_with(const ls_schedule *s, int mailbox)
{
    ls_sim sim = {0};
    LS_TRY(ls_schedule_check(s));
    LS_TRY(ls_simulate(&sim, s, NULL, mailbox));
    ls_sim_fini(&sim);
    return LS_OK;
}

/* ---- the clocks of the translation study ---- */

/* gpipe's forward pass: micro-batch i runs on stage j at clock i + j, and each pair runs once. */
static void gpipe_runs_by_the_clock_of_r3(void **state)
{
    (void)state;
    for (int m = 1; m <= 7; m++)
        for (int n = 1; n <= 5; n++) {
            ls_schedule *s = make("gpipe", n, m, 1);
            ls_sim sim;
            assert_int_equal(ls_simulate(&sim, s, NULL, 0), LS_OK);
            int seen[7][5] = {{0}}, total = 0;
            for (int i = 0; i < sim.n_span; i++) {
                const int stage = sim.span[i].rank;
                const ls_action *a = &s->rank[stage].action[sim.span[i].action];
                if (a->kind != LS_PIPE_FWD) continue;
                assert_true(sim.span[i].begin == a->micro + stage);
                assert_int_equal(seen[a->micro][stage]++, 0);
                total++;
            }
            assert_int_equal(total, m * n);
            ls_sim_fini(&sim);
            ls_schedule_destroy(&s);
        }
}

/* ---- lists ---- */

static void schedules_give_the_expected_lists(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int p, m, v;
        const char *text;
    } table[] = {
        {"naive", 2, 2, 1,
         "rank 0\nF0 sa0@1 rg0@1 B0 F1 sa1@1 rg1@1 B1 R0 step\nrank 1\nra0@0 F0 B0 sg0@0 ra1@0 F1 B1 sg1@0 R0 step\n"},
        {"gpipe", 2, 2, 1,
         "rank 0\nF0 sa0@1 F1 sa1@1 rg0@1 B0 rg1@1 B1 R0 step\nrank 1\nra0@0 F0 ra1@0 F1 B0 sg0@0 B1 sg1@0 R0 step\n"},
        {"1f1b", 2, 3, 1,
         "rank 0\nF0 sa0@1 F1 sa1@1 rg0@1 B0 F2 sa2@1 rg1@1 B1 rg2@1 B2\nR0 step\n"
         "rank 1\nra0@0 F0 B0 sg0@0 ra1@0 F1 B1 sg1@0 ra2@0 F2 B2 sg2@0\nR0 step\n"},
        {"zb", 2, 2, 1,
         "rank 0\nF0 sa0@1 F1 sa1@1 rg0@1 I0 W0 rg1@1 I1 W1 R0 step\n"
         "rank 1\nra0@0 F0 I0 sg0@0 ra1@0 F1 I1 sg1@0 W0 W1 R0 step\n"},
        {"interleaved", 2, 2, 2,
         "rank 0\nF0.0 sa0.0@1 F1.0 sa1.0@1 ra0.1@1 F0.1 sa0.1@1 ra1.1@1 F1.1 sa1.1@1 rg0.1@1 B0.1\n"
         "sg0.1@1 rg1.1@1 B1.1 sg1.1@1 R1 rg0.0@1 B0.0 rg1.0@1 B1.0 R0 step\n"
         "rank 1\nra0.0@0 F0.0 sa0.0@0 ra1.0@0 F1.0 sa1.0@0 ra0.1@0 F0.1 B0.1 sg0.1@0 ra1.1@0 F1.1\n"
         "B1.1 sg1.1@0 R1 rg0.0@0 B0.0 sg0.0@0 rg1.0@0 B1.0 sg1.0@0 R0 step\n"},
    };
    for (size_t t = 0; t < N_OF(table); t++) {
        ls_schedule *s = make(table[t].name, table[t].p, table[t].m, table[t].v);
        ls_str text = {0};
        ls_schedule_write(s, &text);
        assert_string_equal(strstr(text.data, "rank 0\n"), table[t].text);
        assert_int_equal(check_with(s, 1), LS_OK);
        ls_str_fini(&text);
        ls_schedule_destroy(&s);
    }
}

static void peaks_of_slots_are_as_expected(void **state)
{
    (void)state;
    ls_schedule *s = make("1f1b", 4, 8, 1);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(s->rank[r].peak[0], 4 - r);
        assert_int_equal(s->rank[r].peak_all, 4 - r);
        assert_int_equal(s->rank[r].grad_peak[0], 1);
    }
    ls_schedule_destroy(&s);
    s = make("zb", 4, 8, 1);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(s->rank[r].peak[0], 4);                  /* all stages as the first one of 1f1b */
        assert_int_equal(s->rank[r].grad_peak[0], r ? r + 1 : 1); /* output gradients are kept until their W */
    }
    ls_schedule_destroy(&s);
    s = make("gpipe", 3, 5, 1);
    assert_int_equal(s->rank[1].peak[0], 5);
    ls_schedule_destroy(&s);
    s = make("interleaved", 4, 8, 2);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(s->rank[r].peak_all, 4 + 2 * (3 - r) + 1);
        assert_true(s->rank[r].peak[0] + s->rank[r].peak[1] >= s->rank[r].peak_all);
    }
    ls_schedule_destroy(&s);
}

static void impossible_schedules_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        ls_pipe_opts o;
        ls_status st;
        const char *words;
    } bad[] = {
        {"1f2b",
         {4, 8, 1, 0, NULL},
         LS_E_ARG,
         "--schedule 1f2b: neither a schedule (naive, gpipe, 1f1b, interleaved, zb) nor a file; did you mean 1f1b?"},
        {"1f1b", {4, 8, 2, 0, NULL}, LS_E_CONFIG, "1f1b supports one chunk per stage (got 2); use interleaved"},
        {"interleaved", {4, 8, 1, 0, NULL}, LS_E_CONFIG, "interleaved needs 2 or more chunks"},
        {"interleaved", {1, 8, 2, 0, NULL}, LS_E_CONFIG, "interleaving needs pp=2 or more"},
        {"1f1b", {0, 8, 1, 0, NULL}, LS_E_CONFIG, "0 stages x 1 chunks with 8 micro-batches"},
        {"1f1b", {4, 0, 1, 0, NULL}, LS_E_CONFIG, "1 or more micro-batches"},
        {"gpipe",
         {1024, 1 << 20, 1, 0, NULL},
         LS_E_CONFIG,
         "1024 stages x 1 chunks x 1048576 micro-batches = 1073741824"},
        {"1f1b", {4, 8, 1, 3, NULL}, LS_E_CONFIG, "only the schedule zb takes this limit"},
        {"zb", {4, 8, 1, -1, NULL}, LS_E_CONFIG, "it must be 1 or more"},
    };
    for (size_t i = 0; i < N_OF(bad); i++) {
        ls_schedule *s = NULL;
        assert_int_equal(ls_schedule_create(&s, bad[i].name, &bad[i].o), bad[i].st);
        assert_null(s);
        assert_words(bad[i].words);
    }
    assert_true(ls_schedule_is_builtin("zb"));
    assert_false(ls_schedule_is_builtin("zb.txt"));
}

/* ---- the simulator ---- */

static void simulated_times_match_a_calculation_by_hand(void **state)
{
    (void)state;
    const ls_part_cost part[] = {{2, 3, 5, 10}, {7, 11, 13, 20}};
    const ls_pipe_costs costs = {.part = part, .latency = 0.5, .transfer = 0.25};
    ls_schedule *s = make("naive", 2, 1, 1);
    ls_sim sim;
    assert_int_equal(ls_simulate(&sim, s, &costs, 0), LS_OK);
    assert_true(fabs(sim.makespan - (2 + 0.75 + 7 + 24 + 0.75 + 8)) < 1e-12);
    assert_true(fabs(sim.bubble - (1 - 41 / (2 * 42.5))) < 1e-12);
    assert_true(sim.rank[0].peak == 10 && sim.rank[1].peak == 20 && sim.rank[1].first == 2.75);
    ls_sim_fini(&sim);
    ls_schedule_destroy(&s);
    /* a link carries one message at a time: the third of three that are sent together arrives after three transfers */
    const ls_pipe_costs slow = {.each = {0, 0, 0, 1}, .latency = 1, .transfer = 10};
    s = make("gpipe", 2, 3, 1);
    assert_int_equal(ls_simulate(&sim, s, &slow, 0), LS_OK);
    assert_true(fabs(sim.makespan - (31 + 31)) < 1e-12);
    ls_sim_fini(&sim);
    /* with one slot, a send waits until the previous message was received: 11, 22, 33, and the same for the gradients */
    assert_int_equal(ls_simulate(&sim, s, &slow, 1), LS_OK);
    assert_true(fabs(sim.makespan - 66) < 1e-12);
    ls_sim_fini(&sim);
    ls_schedule_destroy(&s);
}

/* The share of the other ranks that wait while a rank computes. */
static void the_waiting_share_follows_the_bubble(void **state)
{
    (void)state;
    static const struct {
        const char *schedule;
        int stages, micro;
        double share;
    } all[] = {
        {"naive", 2, 3, 0.5},        /* one rank works at a time */
        {"naive", 4, 2, 0.75},       /*                       */
        {"gpipe", 1, 4, 0},          /* no other rank exists  */
        {"gpipe", 2, 3, 0.5 / 3},    /* bubble b = 1/4: half of b / (1 - b) */
        {"gpipe", 3, 1, 2.0 / 3},    /*                       */
        {"1f1b", 2, 3, 0.5 * 1 / 3}, /* the same bubble       */
    };
    for (size_t i = 0; i < N_OF(all); i++) {
        ls_schedule *s = make(all[i].schedule, all[i].stages, all[i].micro, 1);
        ls_sim sim;
        double share;
        assert_int_equal(ls_simulate(&sim, s, NULL, 0), LS_OK);
        assert_int_equal(ls_sim_waiting(&sim, s, &share), LS_OK);
        if (fabs(share - all[i].share) > 1e-12) fail_msg("%s: %g, not %g", all[i].schedule, share, all[i].share);
        ls_sim_fini(&sim);
        ls_schedule_destroy(&s);
    }
}

/* With unequal costs zb keeps its limit of live activations and, unless that is below the number of stages, is faster than 1f1b. */
static void zb_keeps_its_memory_limit(void **state)
{
    (void)state;
    static const ls_part_cost each[] = {{1, 1, 1, 1}, {2, 3, 2, 1}, {1, 1.2, 0.8, 1}, {3, 2, 2, 1}, {1, 2, 1, 1}};
    for (size_t k = 0; k < N_OF(each); k++)
        for (int live = 1; live <= 12; live++) {
            const ls_pipe_costs costs = {.each = each[k], .latency = 0.1};
            ls_schedule *s = NULL, *plain = make("1f1b", 5, 12, 1);
            ls_sim zb, one;
            const ls_pipe_opts o = {5, 12, 1, live, &costs};
            assert_int_equal(ls_schedule_create(&s, "zb", &o), LS_OK);
            assert_int_equal(check_with(s, 2), LS_OK);
            for (int r = 0; r < 5; r++) assert_true(s->rank[r].peak_all <= live);
            assert_int_equal(ls_simulate(&zb, s, &costs, 0), LS_OK);
            assert_int_equal(ls_simulate(&one, plain, &costs, 0), LS_OK);
            if (live >= 5) assert_true(zb.makespan < one.makespan);
            ls_sim_fini(&zb);
            ls_sim_fini(&one);
            ls_schedule_destroy(&s);
            ls_schedule_destroy(&plain);
        }
}

/* ---- text ---- */

#define HEAD "lockstep-schedule 1\nname x\nstages 2\nmicro 2\nchunks 1\nmessages "

static void messages_auto_adds_the_messages(void **state)
{
    (void)state;
    ls_schedule *s = NULL, *expect = make("1f1b", 2, 2, 1);
    assert_int_equal(read_text(&s,
                               "# by hand\nlockstep-schedule 1 name 1f1b stages 2\r\n micro 2 chunks 1\tmessages auto\n"
                               "rank 0 F0 F1 # warm\n B0 B1 rank 1\nF0 B0 F1 B1"),
                     LS_OK);
    ls_str a = {0}, b = {0};
    ls_schedule_write(s, &a);
    ls_schedule_write(expect, &b);
    assert_string_equal(a.data, b.data);
    assert_int_equal(check_with(s, 1), LS_OK);
    ls_str_fini(&a);
    ls_str_fini(&b);
    ls_schedule_destroy(&s);
    ls_schedule_destroy(&expect);
}

static void errors_name_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "t:1:1: a schedule must begin with 'lockstep-schedule 1'; found the end"},
        {"hello", "t:1:1: a schedule must begin with 'lockstep-schedule 1'; found 'hello'"},
        {"lockstep-schedule 2", "t:1:19: this version reads format 1"},
        {"lockstep-schedule 1\nnam x", "t:2:1: expected the line 'name WORD'"},
        {"lockstep-schedule 1\nname a/b", "t:2:6: a name has 1 to 31 letters"},
        {"lockstep-schedule 1\nname x\nstages 0", "t:3:8: stages needs a number from 1 to 1024; found '0'"},
        {"lockstep-schedule 1\nname x\nstages 2x", "t:3:8: stages needs a number"},
        {"lockstep-schedule 1\nname x\nstages 2\nchunks 1", "t:4:1: expected the line 'micro N'; found 'chunks'"},
        {HEAD "no", "t:6:10: messages must be listed or auto"},
        {HEAD "auto\nF0", "t:7:1: expected 'rank 0'; found 'F0'"},
        {HEAD "auto\nrank 1", "t:7:6: rank 0 is next (ranks 0 to 1 in order)"},
        {HEAD "auto\nrank 0\nF0 B0\nrank 0", "t:9:6: rank 1 is next"},
        {HEAD "auto\nrank 0\nF0 B0", "t:8:6: expected 'rank 1'; found the end"},
        {HEAD "auto\nrank 0\nrank 1\nrank 2", "t:9:1: with 2 stages, rank 1 is the last"},
        {HEAD "auto\nrank 0\nF0 Q1", "t:8:4: expected an action"},
        {HEAD "auto\nrank 0\nF", "t:8:1: expected an action"},
        {HEAD "auto\nrank 0\nF2", "t:8:1: micro-batches are 0 to 1; found 'F2'"},
        {HEAD "auto\nrank 0\nF01", "t:8:1: micro-batches are 0 to 1"},
        {HEAD "auto\nrank 0\nF99999999999999999999", "t:8:1: micro-batches are 0 to 1"},
        {HEAD "auto\nrank 0\nF0.0", "t:8:1: with one chunk, the chunk is not written"},
        {HEAD "auto\nrank 0\nF0@1", "t:8:1: unexpected text after the action"},
        {HEAD "auto\nrank 0\nF0 sa0@1", "t:8:4: with 'messages auto' only F, B, I and W are listed"},
        {HEAD "listed\nrank 0\nsa0", "t:8:1: the peer is missing or wrong: @0 to @1"},
        {HEAD "listed\nrank 0\nsa0@2", "t:8:1: the peer is missing or wrong: @0 to @1"},
        {HEAD "listed\nrank 0\nR1", "t:8:1: chunks are 0 to 0"},
        {HEAD "listed\nrank 0\nstep1", "t:8:1: expected an action"},
        {"lockstep-schedule 1\nname x\nstages 2\nmicro 2\nchunks 2\nmessages auto\nrank 0\nF0",
         "the chunk is missing or wrong: .0 to .1"},
        {"lockstep-schedule 1\nname x\nstages 2\nmicro 2\nchunks 2\nmessages auto\nrank 0\nF0.2",
         "the chunk is missing or wrong: .0 to .1"},
        {"lockstep-schedule 1\nname x\nstages 1024\nmicro 1048576\nchunks 64\nmessages auto\n",
         "= 68719476736 is too large; the limit is 1048576"},
    };
    for (size_t i = 0; i < N_OF(bad); i++) {
        ls_schedule *s = NULL;
        const ls_status st = read_text(&s, bad[i].text);
        assert_true(st == LS_E_FORMAT || st == LS_E_CONFIG);
        assert_null(s);
        assert_words(bad[i].words);
    }
    ls_schedule *s = NULL; /* a NUL byte does not end the text */
    assert_int_equal(ls_schedule_read(&s, "lockstep-schedule 1\n\0name", 25, "t"), LS_E_FORMAT);
    assert_words("t:2:1: expected the line 'name WORD'; found '?name'");
}

/* ---- the rules of the checker ---- */

typedef enum deed { DROP, TWICE, SWAP, MICRO, CHUNK, PEER, KIND } deed;

/* Changes action i of rank r (SWAP: exchanges it with action i + to). */
static void spoil(ls_schedule *s, int r, int i, deed d, int to)
{
    ls_rank_list *l = &s->rank[r];
    ls_action *a = &l->action[i], t = *a;
    switch (d) {
    case DROP:
        memmove(a, a + 1, (size_t)(l->n_action - i - 1) * sizeof *a);
        l->n_action--;
        break;
    case TWICE:
        ls_schedule_put(s, r, t); /* room for one more */
        a = &l->action[i];
        memmove(a + 1, a, (size_t)(l->n_action - i - 1) * sizeof *a);
        break;
    case SWAP:
        *a = a[to];
        l->action[i + to] = t;
        break;
    case MICRO: a->micro = to; break;
    case CHUNK: a->chunk = to; break;
    case PEER: a->peer = to; break;
    case KIND: a->kind = (ls_pipe_kind)to; break;
    }
}

/* 1f1b of 2 stages and 3 micro-batches:
 *   rank 0  0 F0 1 sa0 2 F1 3 sa1 4 rg0 5 B0 6 F2 7 sa2 8 rg1 9 B1 10 rg2 11 B2 12 R0 13 step
 *   rank 1  0 ra0 1 F0 2 B0 3 sg0 4 ra1 5 F1 6 B1 7 sg1 8 ra2 9 F2 10 B2 11 sg2 12 R0 13 step */
static void every_rule_of_the_checker_is_enforced(void **state)
{
    (void)state;
    static const struct {
        int rank, i;
        deed d;
        int to;
        const char *words;
    } table[] = {
        {0, 0, DROP, 0, "rank 0, action 0 (sa0@1): its forward is missing before this"},
        {1, 1, DROP, 0, "rank 1, action 1 (B0): its forward is missing before this"},
        {1, 0, DROP, 0, "rank 1, action 0 (F0): its receive activation is missing before this"},
        {0, 4, DROP, 0, "rank 0, action 4 (B0): its receive gradient is missing before this"},
        {0, 7, DROP, 0, "rank 0: the send activation of micro-batch 2, chunk 0 is missing"},
        {1, 11, DROP, 0, "rank 1: the send gradient of micro-batch 2, chunk 0 is missing"},
        {0, 11, DROP, 0, "rank 0, action 11 (R0): only 2 of 3 weight gradients are computed before it"},
        {0, 5, DROP, 0,
         "rank 0, action 8 (B1): weight gradients are summed in micro-batch order; micro-batch 0 is next"},
        {0, 12, DROP, 0, "rank 0: chunk 0 is never reduced"},
        {0, 13, DROP, 0, "rank 0: the step is missing"},
        {0, 0, TWICE, 0, "rank 0, action 1 (F0): it is a duplicate of rank 0, action 0 (F0)"},
        {0, 5, TWICE, 0, "rank 0, action 6 (B0): it is a duplicate of rank 0, action 5 (B0)"},
        {0, 1, TWICE, 0, "rank 0, action 2 (sa0@1): it is a duplicate of rank 0, action 1 (sa0@1)"},
        {0, 12, TWICE, 0, "rank 0, action 13 (R0): it is a duplicate"},
        {0, 13, TWICE, 0, "rank 0, action 13 (step): the step must be the last action, and appear once"},
        {0, 0, SWAP, 1, "rank 0, action 0 (sa0@1): its forward is missing before this"},
        {1, 2, SWAP, 1, "rank 1, action 2 (sg0@0): its backward is missing before this"},
        {1, 1, SWAP, 1, "rank 1, action 1 (B0): its forward is missing before this"},
        {0, 11, SWAP, 1, "rank 0, action 11 (R0): only 2 of 3 weight gradients are computed before it"},
        {0, 1, SWAP, 2, "rank 0, action 1 (sa1@1): its forward is missing before this"},
        {0, 6, MICRO, 7, "rank 0, action 6 (F7): micro-batches are 0 to 2"},
        {0, 6, MICRO, -1, "micro-batches are 0 to 2"},
        {0, 6, CHUNK, 1, "chunks are 0 to 0"},
        {0, 1, PEER, 0, "rank 0, action 1 (sa0@0): its peer must be rank 1"},
        {1, 0, PEER, 1, "rank 1, action 0 (ra0@1): its peer must be rank 0"},
        {0, 0, KIND, LS_PIPE_RECV_ACT, "this stage has no neighbor on that side"},
        {1, 1, KIND, LS_PIPE_SEND_ACT, "rank 1, action 1 (sa0): this stage has no neighbor on that side"},
        {0, 5, KIND, LS_PIPE_BWD_IN, "weight gradients are summed in micro-batch order; micro-batch 0 is next"},
        {0, 11, KIND, LS_PIPE_BWD_IN, "rank 0, action 12 (R0): only 2 of 3 weight gradients are computed before it"},
        {0, 5, KIND, LS_PIPE_BWD_W, "rank 0, action 5 (W0): its backward of the input is missing before this"},
        {0, 5, KIND, LS_N_PIPE, "unknown action"},
    };
    for (size_t t = 0; t < N_OF(table); t++) {
        ls_schedule *s = make("1f1b", 2, 3, 1);
        assert_int_equal(check_with(s, 1), LS_OK);
        spoil(s, table[t].rank, table[t].i, table[t].d, table[t].to);
        if (ls_schedule_check(s) != LS_E_CONFIG) fail_msg("the checker does not find: %s", table[t].words);
        assert_words(table[t].words);
        ls_schedule_destroy(&s);
    }
    ls_schedule *s = make("zb", 2, 3, 1); /* both kinds of backward of one micro-batch */
    for (int i = 0; i < s->rank[0].n_action; i++)
        if (s->rank[0].action[i].kind == LS_PIPE_BWD_W) s->rank[0].action[i].kind = LS_PIPE_BWD;
    assert_int_equal(ls_schedule_check(s), LS_E_CONFIG);
    assert_words("its backward pass was done before");
    ls_schedule_destroy(&s);
}

static void lists_that_do_not_match_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *lists, *words;
    } table[] = {
        /* the list of each rank alone is correct */
        {HEAD "auto rank 0 F1 F0 B0 B1 rank 1 F0 F1 B0 B1",
         "rank 1, line 6 (F0): messages arrive in the order in which they are sent, and the next one is that of rank 0, line 6 (F1)"},
        {HEAD
         "listed rank 0 F0 sa0@1 F1 sa1@1 rg1@1 rg0@1 B0 B1 R0 step rank 1 ra0@0 F0 ra1@0 F1 B0 sg0@0 B1 sg1@0 R0 step",
         "rank 0, line 6 (rg1@1): messages arrive in the order in which they are sent, and the next one is that of rank 1, line 6 (sg0@0)"},
        {HEAD "auto\nrank 0\nF0 B0\nF1 B1\nrank 1 F0\nF1 B0 B1",
         "deadlock: rank 0, line 8 (B0) waits for rank 1; rank 1, line 11 (F1) waits for rank 0"},
    };
    for (size_t t = 0; t < N_OF(table); t++) {
        ls_schedule *s = NULL;
        assert_int_equal(read_text(&s, table[t].lists), LS_OK);
        assert_int_equal(ls_schedule_check(s), LS_E_CONFIG);
        assert_words(table[t].words);
        ls_schedule_destroy(&s);
    }
    /* all of chunk 0 before chunk 1: each rank fills the mailbox of the other */
    ls_schedule *s = NULL;
    int least = 0;
    assert_int_equal(
        read_text(&s, "lockstep-schedule 1 name x stages 2 micro 4 chunks 2 messages auto\n"
                      "rank 0 F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 B0.1 B1.1 B2.1 B3.1 B0.0 B1.0 B2.0 B3.0\n"
                      "rank 1 F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 B0.1 B1.1 B2.1 B3.1 B0.0 B1.0 B2.0 B3.0"),
        LS_OK);
    assert_int_equal(ls_schedule_check(s), LS_OK);
    assert_int_equal(check_with(s, 1), LS_E_CONFIG);
    assert_words(
        "deadlock with mailboxes of 1: rank 0, line 2 (F3.0) waits for a free slot at rank 1; rank 1, line 3 (F");
    assert_int_equal(ls_schedule_mailbox(s, &least), LS_OK);
    assert_int_equal(least, 2);
    assert_int_equal(check_with(s, 2), LS_OK);
    ls_schedule_destroy(&s);
}

/* With one buffer for the gradients of its chunk 1, rank 1 could compute B2.1 only after rank 0 has received that of B1.1, which rank 0 can
 * do after its B0.1, which comes after F3.1, which needs F3.0 of rank 1: no order of messages alone shows this. */
static void lists_that_would_wait_for_their_own_buffers_get_more_of_them(void **state)
{
    (void)state;
    ls_schedule *s = NULL;
    ls_sim sim = {0};
    assert_int_equal(read_text(&s, "lockstep-schedule 1 name x stages 2 micro 4 chunks 2 messages auto\n"
                                   "rank 0 F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 F3.0\n"
                                   "F3.1\n"
                                   "B0.1 B1.1 B2.1 B3.1 B0.0 B1.0 B2.0 B3.0\n"
                                   "rank 1 F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 B0.1 B1.1\n"
                                   "B2.1 F3.0 F3.1 B3.1 B0.0 B1.0 B2.0 B3.0"),
                     LS_OK);
    assert_int_equal(ls_schedule_check(s), LS_OK);
    assert_int_equal(s->rank[1].grad_peak[1], 4);
    assert_int_equal(s->rank[0].grad_peak[0], 1); /* the first part sends no gradient */
    assert_int_equal(ls_schedule_slots(s, false), LS_OK);
    assert_int_equal(s->rank[1].grad_peak[1], 1);
    assert_int_equal(ls_simulate(&sim, s, NULL, 0), LS_OK);
    ls_sim_fini(&sim);
    assert_int_equal(ls_schedule_check(s), LS_E_CONFIG);
    assert_words(
        "deadlock: rank 0, line 3 (F3.1) waits for rank 1; rank 1, line 6 (B2.1) waits until rank 0 receives the "
        "gradient that was sent from the same buffer");
    ls_schedule_destroy(&s);
}

/* Rank 0 sends all activations before its first backward, and rank 1 its gradients before rank 0 receives the second one. */
static void more_sends_than_a_communicator_holds_are_refused(void **state)
{
    (void)state;
    for (int m = 2 * LS_COMM_PENDING; m <= 2 * LS_COMM_PENDING + 10; m += 10) {
        ls_str t = {0};
        ls_schedule *s = NULL;
        ls_str_addf(&t, "lockstep-schedule 1 name x stages 2 micro %d chunks 1 messages auto\nrank 0\n", m);
        for (int i = 0; i < m; i++) ls_str_addf(&t, "F%d\n", i);
        for (int i = 0; i < m; i++) ls_str_addf(&t, "B%d ", i);
        ls_str_add(&t, "\nrank 1\n");
        for (int i = 0; i < m; i++) ls_str_addf(&t, "F%d B%d\n", i, i);
        assert_int_equal(read_text(&s, t.data), LS_OK);
        assert_int_equal(ls_schedule_check(s), m == 2 * LS_COMM_PENDING ? LS_OK : LS_E_CONFIG);
        if (m > 2 * LS_COMM_PENDING)
            assert_words("deadlock: rank 0, line 515 (F512) waits for a free slot at rank 1; rank 1, line ");
        ls_schedule_destroy(&s);
        ls_str_fini(&t);
    }
}

/* ---- memory ---- */

static ls_status everything(const char *name, int v)
{
    ls_schedule *s = NULL, *again = NULL;
    ls_sim sim = {0};
    ls_str text = {0};
    LS_TRY(ls_schedule_create(&s, name, &(ls_pipe_opts){.n_stage = 3, .n_micro = 4, .n_chunk = v}));
    ls_status st = check_with(s, 1);
    double share;
    if (st == LS_OK) st = ls_simulate(&sim, s, NULL, 0);
    if (st == LS_OK) st = ls_sim_waiting(&sim, s, &share);
    ls_schedule_write(s, &text);
    if (st == LS_OK) st = text.failed ? LS_E_NOMEM : ls_schedule_read(&again, text.data, text.len, "t");
    ls_schedule_destroy(&s);
    ls_schedule_destroy(&again);
    ls_sim_fini(&sim);
    ls_str_fini(&text);
    return st;
}

static void a_failed_allocation_leaks_nothing(void **state)
{
    (void)state;
    const int64_t live = ls_mem_live();
    for (int which = 0; which < 2; which++) {
        int k = 0;
        for (;; k++) {
            ls_mem_fail_at(k);
            const ls_status st = everything(which ? "interleaved" : "zb", which ? 2 : 1);
            ls_mem_fail_at(-1);
            assert_int_equal(ls_mem_live(), live);
            if (st == LS_OK) break;
            assert_int_equal(st, LS_E_NOMEM);
        }
        assert_true(k > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpipe_runs_by_the_clock_of_r3),
                                       cmocka_unit_test(schedules_give_the_expected_lists),
                                       cmocka_unit_test(peaks_of_slots_are_as_expected),
                                       cmocka_unit_test(impossible_schedules_are_refused),
                                       cmocka_unit_test(simulated_times_match_a_calculation_by_hand),
                                       cmocka_unit_test(the_waiting_share_follows_the_bubble),
                                       cmocka_unit_test(zb_keeps_its_memory_limit),
                                       cmocka_unit_test(messages_auto_adds_the_messages),
                                       cmocka_unit_test(errors_name_line_and_column),
                                       cmocka_unit_test(every_rule_of_the_checker_is_enforced),
                                       cmocka_unit_test(lists_that_do_not_match_are_refused),
                                       cmocka_unit_test(lists_that_would_wait_for_their_own_buffers_get_more_of_them),
                                       cmocka_unit_test(more_sends_than_a_communicator_holds_are_refused),
                                       cmocka_unit_test(a_failed_allocation_leaks_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
