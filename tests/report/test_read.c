/* Reading run folders: our own keys, files of other tools, broken files, additional files of a run, and the parts of a step. */
#include "report_checks.h"

#include <stdlib.h>

/* Our own keys: step_split and metrics.jsonl, memory by part and rank, utilisation, communication. */
static void our_own_keys_are_read(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_str steps = {0};
    made_steps(12, 1, 1, 1, 1, &steps);
    add(&s, "r",
        (made_run){
            .world = 2,
            .tokens_per_sec = 5,
            .epoch_time = 1,
            .strategy = "zero2",
            .ours =
                ", \"step_split\": {\"input\": 0.1, \"forward\": 0.2, \"backward\": 0.3, \"exposed_comm\": "
                "0.4, \"optimizer\": 0.5, \"other\": 0.6}, \"memory\": {\"weights\": 100, \"optimizer\": 50, \"total\": 150, \"ranks\": [150, "
                "{\"rank\": 1, \"weights\": 100, \"optimizer\": 45, \"planned\": 145}]}"
                ", \"workers\": [{\"rank\": 0, \"exposed_comm_sec\": 8}, {\"rank\": 1, \"exposed_comm_sec\": 2}]"
                ", \"cpu_utilisation\": [0.5, 0.75], \"bucket\": 7, \"seed\": 3, \"planned_bytes\": 150, \"comm\": {\"backend\": \"local\", \"workers\": 2, \"all_reduce\": {\"calls\": 3, "
                "\"busy_sec\": 2.0, \"exposed_sec\": 0.5}}"},
        &steps);
    add(&s, "q",
        (made_run){
            .world = 2,
            .tokens_per_sec = 5,
            .epoch_time = 1,
            .strategy = "zero2",
            .ours = ", \"step_split\": {\"input\": 0.1, \"forward\": 0.2, \"other\": 0.6}"
                    ", \"gpu_watch\": {\"utilization_mean\": 0.875}, \"tensor_comm\": {\"workers\": 2, \"steps\": 5, "
                    "\"all_reduce\": {\"calls\": 4, \"busy_sec\": 1.0, \"exposed_sec\": 0.5}}, \"gradients_comm\": "
                    "{\"workers\": 2, \"steps\": 5, \"recv\": {\"calls\": 8, \"busy_sec\": 1.0}}"},
        NULL);
    const ls_run *r = &s.run[1];
    near(r->split[LS_SPLIT_OTHER], 0.6, 0); /* no steps: the recorded value */
    near(r->gpu_utilisation, 0.875, 0);
    near(r->n_comm_step, 5, 0); /* a resumed run counts from where it resumed */
    assert_int_equal(r->n_coll, 2);
    assert_string_equal(r->coll[0].kind, "tensor all_reduce");
    assert_string_equal(r->coll[1].kind, "gradients recv");
    r = &s.run[0];
    near(r->split[LS_SPLIT_EXPOSED], 0.25,
         1e-15); /* from the steps; the slowest worker waited a quarter of the time of rank 0 */
    near(r->split[LS_SPLIT_STRAGGLER], 0.75, 1e-15);
    near(r->split[LS_SPLIT_OTHER], 0, 0);
    near(r->step_time, 4, 1e-12);
    near(r->n_comm_step, r->n_update, 0);
    assert_int_equal(r->n_part, 2);
    assert_int_equal(r->n_rank, 2);
    near(r->rank_least, 145, 0);
    near(r->rank_most, 150, 0);
    near(r->cpu_utilisation, 0.625, 0);
    assert_int_equal(r->n_coll, 1);
    near(r->coll[0].busy, 2, 0);
    has(r->setting, "bucket 7\n");
    has(r->setting, "comm local\n");
    assert_null(strstr(r->setting, "seed"));
    assert_null(strstr(r->setting, "planned"));
    assert_int_equal(s.notes.n, 0);
    ls_str_fini(&steps);
    ls_run_set_fini(&s);
}

static void broken_files_are_noted_and_skipped(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    static const char *const bad[] = {
        "{\"schema_version\": \"2.0\"",                                                    /* truncated */
        "[1, 2]",                                                                          /* not an object */
        "{\"schema_version\": \"3.1\", \"hardware\": 5, \"epochs\": {}, \"summary\": []}", /* wrong kinds */
        "{\"schema_version\": \"2.0\", \"hardware\": {\"world_size\": -3}, \"epochs\": [7], \"summary\": "
        "{\"mean_tokens_per_sec_global\": \"fast\"}}",
        "{\"train_time_per_epoch\": [10.5, 9.5], \"train_throughput\": [100, 110], \"train_loss_per_epoch\": [3, 2], "
        "\"val_loss_per_epoch\": [3, 2.5]}",
    };
    for (int i = 0; i < 5; i++) {
        ls_str text = {0};
        char dir[8];
        snprintf(dir, sizeof dir, "bad%d", i);
        ls_str_add(&text, bad[i]);
        assert_int_equal(add_made(&s, dir, &text, NULL), LS_OK);
        ls_str_fini(&text);
    }
    has_note(&s.notes, "bad0/training_metrics.json: line 1");
    has_note(&s.notes, "bad1/training_metrics.json: an object was expected");
    has_note(&s.notes, "bad2/training_metrics.json: key hardware: an object was expected, not a number");
    has_note(&s.notes, "bad2/training_metrics.json: key epochs: a list was expected, not an object");
    has_note(&s.notes, "\"3.1\" is not known");
    has_note(&s.notes,
             "bad3/training_metrics.json: key hardware.world_size: a whole number from 0 was expected, not -3");
    has_note(&s.notes,
             "bad3/training_metrics.json: key summary.mean_tokens_per_sec_global: a number was expected, not text");
    has_note(&s.notes, "bad3/training_metrics.json: key epochs[0]: an object was expected");
    for (int i = 0; i < s.notes.n; i++) assert_null(strstr(s.notes.text[i], "key :")); /* each note names a key */
    assert_string_equal(s.run[4].strategy, "older schema");
    near(s.run[4].tokens_per_sec, 105, 0);
    near(s.run[4].val_loss, 2.5, 0);
    add(&s, "good", (made_run){.world = 1, .tokens_per_sec = 100, .epoch_time = 1},
        NULL); /* a good run is still reported */
    ls_analysis a;
    ls_str html = {0}, md = {0};
    ls_run_set_sort(&s);
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    assert_int_equal(a.n_group, 1);
    report_page(&a, &html, &md);
    has(html.data, "What could not be read");
    has(html.data, "baseline on 1 worker: 100 tokens per second");
    ls_str_fini(&html), ls_str_fini(&md);
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
}

static void contradictions_between_files_are_noted(void **state)
{
    (void)state;
    ls_run_set s = new_set();
    ls_str text = {0};
    made_metrics(&(made_run){.world = 2, .tokens_per_sec = 150.5, .epoch_time = 1}, &text);
    static const char steps[] =
        "{\"step\": 1, \"loss\": 3}\nnonsense\n{\"step\": 2, \"loss\": null}\n{\"step\": 3, \"lo";
    static const char complete[] =
        "[Rank 0] RUN_COMPLETE checkpoint_path=a world_size=9 b world_size=2 tokens_per_sec=150.5 total_wall_time_sec=3.0 timestamp_utc=2026-01-01T00:00:00Z\n";
    static const char pipe[] =
        "[{\"lane\": 0, \"begin\": 0, \"end\": 1, \"kind\": \"backward (weights) of a long name\"}, {\"lane\": \"x\"}]";
    static const char launcher[] = "{\"world_size\": 3}";
    ls_run_texts t = {.file[LS_RUN_METRICS] = {text.data, text.len},
                      .file[LS_RUN_STEPS] = {steps, sizeof steps - 1},
                      .file[LS_RUN_COMPLETE] = {complete, sizeof complete - 1},
                      .file[LS_RUN_PIPELINE] = {pipe, sizeof pipe - 1},
                      .file[LS_RUN_LAUNCHER] = {launcher, sizeof launcher - 1}};
    assert_int_equal(ls_run_read_texts(&t, "dir", &s.notes, &s.run[0]), LS_OK);
    s.n = 1;
    assert_int_equal(s.run[0].n_step, 2); /* an incomplete last line is ignored */
    assert_int_equal(s.run[0].n_span, 1);
    assert_string_equal(s.run[0].span[0].kind, "backward (weights) of a long name"); /* a legend is never cut */
    assert_string_equal(s.run[0].span[0].label, "");
    assert_true(s.run[0].complete);
    assert_int_equal(s.notes.n, 4);
    has_note(&s.notes, "dir/metrics.jsonl: line 2");
    has_note(&s.notes, "dir/RUN_COMPLETE.txt: total_wall_time_sec=3.0, but training_metrics.json has 2");
    has_note(&s.notes, "dir/pipeline.json: row 1");
    has_note(&s.notes, "dir/launcher_metadata.json: key world_size: 3, but training_metrics.json has 2");
    ls_str_fini(&text);
    ls_run_set_fini(&s);
}

/* A run counts once even if it is given by different paths. */
static void a_run_given_twice_counts_once(void **state)
{
    (void)state;
    char *root = test_dir();
    ls_str text = {0};
    made_metrics(&(made_run){.world = 1, .tokens_per_sec = 5, .epoch_time = 1, .strategy = "single"}, &text);
    test_write(root, "training_metrics.json", text.data);
    char *file = ls_path_join(root, "training_metrics.json"), *again = ls_path_join(root, "../");
    char *other = ls_asprintf("%s%s", again, strrchr(root, '/') + 1);
    const char *const all[] = {root, file, root, other};
    ls_run_set s = {0};
    for (size_t i = 0; i < N_OF(all); i++) assert_int_equal(ls_run_set_add(&s, all[i]), LS_OK);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.notes.n, 3);
    has_note(&s.notes, "training_metrics.json: the same run as");
    ls_run_set_fini(&s);
    ls_str_fini(&text);
    ls_free(file);
    ls_free(again);
    ls_free(other);
    test_dir_close(root);
}

/* The parts of memory add up to what was planned, with the parts of the fullest moment and, in older files, with sums over buffers that share memory. */
static void parts_of_memory_add_up_to_the_plan(void **state)
{
    (void)state;
    static const struct {
        const char *memory;
        int n;
        const char *last;
        double bytes; /* of the last part */
    } c[] = {
        {"\"parameters\": 10, \"gradients\": 60, \"optimizer\": 20, \"activations\": 50", 3,
         "all others, which share memory", 70},
        {"\"parameters\": 10, \"gradients\": 60, \"optimizer\": 20, \"activations\": 50, \"at_most\": {\"parameters\": 10, "
         "\"optimizer\": 20, \"gradients\": 50, \"activations\": 15}",
         5, "gaps at that moment", 5},
        {"\"parameters\": 40, \"activations\": 60", 2, "activations", 60},
    };
    for (size_t i = 0; i < N_OF(c); i++) {
        ls_run_set s = new_set();
        char *ours = ls_asprintf(", \"planned_bytes\": 100, \"memory\": {%s}", c[i].memory);
        add(&s, "r", (made_run){.world = 1, .tokens_per_sec = 1, .epoch_time = 1, .strategy = "single", .ours = ours},
            NULL);
        const ls_run *r = &s.run[0];
        double sum = 0;
        for (int k = 0; k < r->n_part; k++) sum += r->part[k].nbytes;
        near(sum, 100, 0);
        assert_int_equal(r->n_part, c[i].n);
        assert_string_equal(r->part[r->n_part - 1].name, c[i].last);
        near(r->part[r->n_part - 1].nbytes, c[i].bytes, 0);
        ls_free(ours);
        ls_run_set_fini(&s);
    }
}

/* A step of 25 ms: 12 ms are actions of rank 0, 1 ms is the optimizer, and 12 ms are waits and other time. For any pipeline report the
 * parts add up to the step. */
static void pipeline_parts_add_up_to_the_step(void **state)
{
    (void)state;
    static const struct {
        const char *pipeline;
        double compute, bubble, exposed, other, waits; /* ms */
    } c[] = {
        /* the schedule has 5 ms of bubble, 3 ms of which were waits for messages */
        {"\"bubble_predicted\": 0.25, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": [{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.003}, {\"busy_sec\": 0.012}]",
         12, 5, 0, 7, 0},
        /* 2 of the 3 ms exposed were not waits for neighbour stages: they are no bubble */
        {"\"bubble_predicted\": 0.25, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": [{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.001}, {\"busy_sec\": 0.012}]",
         12, 5, 2, 5, 0},
        /* waits longer than the bubble are communication */
        {"\"bubble_predicted\": 0.1, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": [{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.003}, {\"busy_sec\": 0.012}]",
         12, 2, 1, 9, 1},
        /* a bubble of 25 ms is limited to the 12 ms that remain */
        {"\"bubble_predicted\": 0.5, \"makespan_predicted_sec\": 0.050, \"makespan_sec\": 0.040, \"per_stage\": [{\"busy_sec\": 0.012}, {\"busy_sec\": 0.012}]",
         12, 12, 0, 0, 3},
        /* rank 0 computes 2 ms longer than the mean stage, which has 1 ms of bubble in that time */
        {"\"bubble_predicted\": 0.05, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": [{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.003}, {\"busy_sec\": 0.008}]",
         10, 1, 4, 9, 3},
        /* rank 0 computes 2 ms less than the mean stage: 2 ms of its waits are computation of others */
        {"\"bubble_predicted\": 0.1, \"makespan_predicted_sec\": 0.020, \"makespan_sec\": 0.024, \"per_stage\": [{\"busy_sec\": 0.012, \"exposed_sec_per_step\": 0.003}, {\"busy_sec\": 0.016}]",
         14, 2, 0, 8, 0},
    };
    ls_str steps = {0};
    for (int i = 1; i <= 10; i++)
        ls_str_addf(&steps,
                    "{\"step\": %d, \"step_time_sec\": 0.025, \"forward_sec\": 0.004, \"backward_sec\": 0.008, "
                    "\"comm_exposed_sec\": 0.003, \"optimizer_sec\": 0.001, \"data_sec\": 0, \"other_sec\": 0.009}\n",
                    i);
    for (size_t i = 0; i < N_OF(c); i++) {
        ls_run_set s = new_set();
        char *ours =
            ls_asprintf(", \"step_split\": {\"input\": 0, \"forward\": 0.004, \"backward\": 0.008, "
                        "\"exposed_comm\": 0.003, \"optimizer\": 0.001, \"other\": 0.009}, "
                        "\"gradients_comm\": {\"steps\": 10, \"recv\": {\"busy_sec\": 0.05, \"exposed_sec\": 0.03}}, "
                        "\"pipeline\": {%s}",
                        c[i].pipeline);
        const made_run made = {.world = 2, .tokens_per_sec = 1, .epoch_time = 1, .strategy = "single", .ours = ours};
        add(&s, "recorded", made, NULL);
        add(&s, "of steps", made, &steps);
        for (int k = 0; k < 2; k++) {
            const double *part = s.run[k].split;
            double sum = 0;
            for (int j = 0; j < LS_N_SPLIT; j++) sum += isnan(part[j]) ? 0 : part[j];
            near(sum, 0.025, 1e-12);
            near(1000 * (part[LS_SPLIT_FORWARD] + part[LS_SPLIT_BACKWARD]), c[i].compute, 1e-9);
            near(1000 * part[LS_SPLIT_BUBBLE], c[i].bubble, 1e-9);
            near(1000 * part[LS_SPLIT_EXPOSED], c[i].exposed, 1e-9);
            near(1000 * part[LS_SPLIT_OTHER], c[i].other, 1e-9);
            near(1000 * part[LS_SPLIT_OPTIMIZER], 1, 1e-9);
            ls_run_comm_time t; /* of the 3 ms of waits, the bubble is no exposed communication here, either */
            assert_true(ls_run_comm_time_of(&s.run[k], LS_RUN_COMM_GRADS, &t));
            near(1000 * t.exposed, c[i].waits, 1e-9);
            near(1000 * t.hidden, 2, 1e-9);
        }
        ls_free(ours);
        ls_run_set_fini(&s);
    }
    ls_str_fini(&steps);
}

/* Files of NCCL and other tools in a run folder. A part of a step that is null in some steps is the mean of the other steps. */
static void nccl_and_topology_files_are_read(void **state)
{
    (void)state;
    static const char nccl
        [] = "{\"version\": \"2.30.7\", \"transports\": {\"SHM\": 4}, \"nvlink\": false, \"infiniband\": null}",
    topo[] = "\t\033[4mGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\033[0m\nGPU0\t X \tNV4\tSYS\tSYS\t0\n"
             "GPU1\tNV4\t X \tSYS\tSYS\t0\nGPU2\tSYS\tSYS\t X \tNV4\t1\nGPU3\tSYS\tSYS\tNV4\t X \t1\n",
    ibstat[] =
        "CA 'mlx5_9'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 200\n\t\tLink layer: InfiniBand\n\tPort 2:\n",
    xml[] =
        "<system><nic><net name=\"a\" dev=\"0\" speed=\"25000\"/><net speed=\"9\"/><net name=\"b\" speed=\"7\"></nic>"
        "<net name=\"cut\" speed=\"1";
    ls_str metrics = {0}, steps = {0}, html = {0}, md = {0};
    made_metrics(&(made_run){.world = 2,
                             .tokens_per_sec = 10,
                             .epoch_time = 1,
                             .strategy = "ddp",
                             .ours =
                                 ", \"device\": \"cuda\", \"comm\": {\"backend\": \"nccl\"}, \"nccl\": {\"version\": "
                                 "\"of the metrics\"}"},
                 &metrics);
    for (int i = 1; i <= 10; i++)
        ls_str_addf(&steps, "{\"step\": %d, \"step_time_sec\": 1.0, \"forward_sec\": %s, \"backward_sec\": 0.5}\n", i,
                    i == 8 ? "null" : "0.25");
    ls_run_set s = new_set();
    ls_run_texts t = {
        .file[LS_RUN_METRICS] = {metrics.data, metrics.len}, .file[LS_RUN_STEPS] = {steps.data, steps.len}, .warm = 5};
    assert_int_equal(ls_run_read_texts(&t, "alone", &s.notes, &s.run[s.n++]), LS_OK);
    t.file[LS_RUN_NCCL] = (ls_text){nccl, sizeof nccl - 1};
    t.file[LS_RUN_TOPO] = (ls_text){topo, sizeof topo - 1};
    t.file[LS_RUN_IBSTAT] = (ls_text){ibstat, sizeof ibstat - 1};
    t.file[LS_RUN_TOPOLOGY] = (ls_text){xml, sizeof xml - 1};
    assert_int_equal(ls_run_read_texts(&t, "whole", &s.notes, &s.run[s.n++]), LS_OK);
    const ls_run_proof *p = &s.run[0].proof, *q = &s.run[1].proof;
    assert_string_equal(json_string_value(json_object_get(p->nccl, "version")), "of the metrics");
    assert_null(p->topo);
    assert_string_equal(json_string_value(json_object_get(q->nccl, "version")), "2.30.7");
    assert_string_equal(q->links, "NV4 x 2, SYS x 4");
    assert_string_equal(q->ports, "mlx5_9 port 1: Active, 200 Gb/s, InfiniBand, mlx5_9 port 2: state not stated");
    assert_string_equal(q->nets, "a 25000 Mb/s, b 7 Mb/s");
    assert_null(strchr(q->topo, 27));
    near(s.run[0].split[LS_SPLIT_FORWARD], 0.25, 1e-15);
    near(s.run[0].split[LS_SPLIT_BACKWARD], 0.5, 1e-15);
    ls_analysis a;
    assert_int_equal(ls_analyse(&s, NULL, &a), LS_OK);
    report_page(&a, &html, &md);
    has(md.data, "## Communication between GPUs");
    has(md.data, "SHM x 4");
    has(html.data, "NV4 x 2, SYS x 4");
    ls_analysis_fini(&a);
    ls_run_set_fini(&s);
    ls_str_fini(&metrics), ls_str_fini(&steps), ls_str_fini(&html), ls_str_fini(&md);

    const int64_t live = ls_mem_live(); /* each allocation fails once */
    for (int64_t k = 0;; k++) {
        ls_notes notes = {0};
        ls_run r;
        ls_mem_fail_at(k);
        t.file[LS_RUN_METRICS] = t.file[LS_RUN_STEPS] = (ls_text){0};
        const ls_status st = ls_run_read_texts(&t, "whole", &notes, &r);
        ls_mem_fail_at(-1);
        if (st == LS_OK) ls_run_fini(&r);
        ls_notes_fini(&notes);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
        assert_true(k < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_own_keys_are_read),
        cmocka_unit_test(broken_files_are_noted_and_skipped),
        cmocka_unit_test(contradictions_between_files_are_noted),
        cmocka_unit_test(a_run_given_twice_counts_once),
        cmocka_unit_test(pipeline_parts_add_up_to_the_step),
        cmocka_unit_test(parts_of_memory_add_up_to_the_plan),
        cmocka_unit_test(nccl_and_topology_files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
