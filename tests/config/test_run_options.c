/* options.json: what a run was started with reads back as the same options, without those of one process alone. */
#include "config/run_options.h"
#include "core/fs.h"
#include "core/mem.h"
#include "assert_text.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char *dir;

static int set_up(void **state)
{
    (void)state;
    dir = test_dir();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_dir_close(dir);
    return 0;
}

/* Options point into *words. */
static void parse(ls_argv *words, ls_train_options *o)
{
    assert_int_equal(ls_train_options_parse(words->n, words->word, o), LS_OK);
}

static void save(const char *line, int micro, int64_t batch)
{
    ls_argv words = {0};
    ls_train_options o;
    ls_str text = {0};
    assert_int_equal(ls_argv_split(&words, line), LS_OK);
    parse(&words, &o);
    ls_train_config c = {
        .micro_batch = micro, .global_batch = batch, .precision = "fp32", .device = "cpu", .compute = "cpu"};
    if (o.precision && !strcmp(o.precision, "fp8")) {
        c.precision = "fp8";
        c.fp8 = (ls_fp8_opts){.on = true, .history = 16, .margin = 1};
    }
    ls_run_options_write(&o, &c, &text);
    assert_int_equal(ls_fs_write(ls_path_of(dir, LS_RUN_OPTIONS).text, text.data, text.len), LS_OK);
    ls_str_fini(&text);
    ls_argv_fini(&words);
}

static void options_read_back_the_same(void **state)
{
    (void)state;
    ls_argv words = {0};
    ls_train_options o;
    save(
        "--data no-such-folder --model tiny --lr 0.1234567890123 --betas 0.8 0.9 --recompute --seed 7 --strategy zero2 --n 2 "
        "--grad_accum_steps 3 --json --checkpoint_path elsewhere",
        4, 24);
    assert_int_equal(ls_run_options_read(dir, false, &words), LS_OK);
    parse(&words, &o);
    assert_string_equal(o.data, "no-such-folder");
    assert_string_equal(o.model, "tiny");
    assert_string_equal(o.strategy, "zero2");
    assert_true(o.lr == 0.1234567890123 && o.seed == 7 && o.recompute && o.n == 2);
    assert_int_equal(o.betas.n, 2);
    assert_string_equal(o.betas.word[1], "0.9");
    assert_true(o.micro_batch_size_per_gpu == 4 && o.global_batch_size == 24); /* instead of the accumulation */
    assert_false(ls_train_given(&o, "grad_accum_steps") || ls_train_given(&o, "json") ||
                 ls_train_given(&o, "checkpoint_path"));
    ls_argv_fini(&words);
    assert_int_equal(ls_run_options_read(dir, true, &words), LS_OK); /* the launcher sets the workers */
    parse(&words, &o);
    assert_false(ls_train_given(&o, "n"));
    ls_argv_fini(&words);
}

static void write_options(const char *text)
{
    assert_int_equal(ls_fs_write(ls_path_of(dir, LS_RUN_OPTIONS).text, text, strlen(text)), LS_OK);
}

/* What the machine decided, beside the options as they were typed. */
static void the_precision_of_the_steps_reads_back(void **state)
{
    (void)state;
    ls_run_computed was;
    char kernels[LS_COMPUTE_WORDS];
#define FP8 "{\"precision\": \"fp8\", \"device\": \"cuda\""
    static const struct {
        const char *computed, *member;
    } wrong[] = {
        {"\"bf16\"", "precision"},
        {"null", "precision"},
        {"[1]", "precision"},
        {"{\"device\": \"cpu\"}", "precision"},
        {"{\"precision\": \"auto\", \"device\": \"cpu\"}", "precision"},
        {"{\"precision\": \"bf16\"}", "device"},
        {"{\"precision\": \"bf16\", \"device\": 1}", "device"},
        {FP8 "}", "fp8_format"},
        {FP8 ", \"fp8_format\": \"e4m3\"}", "fp8_amax_history_len"},
        {FP8 ", \"fp8_format\": \"e4m3\", \"fp8_amax_history_len\": 1025, \"fp8_margin\": 0}", "fp8_amax_history_len"},
        {FP8 ", \"fp8_format\": \"e4m3\", \"fp8_amax_history_len\": 16}", "fp8_margin"},
    };
    save("--precision auto", 1, 1);
    assert_int_equal(ls_run_options_computed(dir, &was), LS_OK);
    assert_string_equal(was.precision, "fp32");
    assert_string_equal(was.device, "cpu");
    assert_string_equal(was.kernels, ls_compute_cpu_family("cpu", LS_F32, kernels));
    assert_contains(was.kernels, " matmul");
    assert_null(was.fp8_format);
    save("--precision fp8", 1, 1);
    assert_int_equal(ls_run_options_computed(dir, &was), LS_OK);
    assert_string_equal(was.fp8_format, "hybrid");
    assert_true(was.fp8_history == 16 && was.fp8_margin == 1);
    static const struct {
        const char *options, *computed;
        bool tf32, stochastic;
    } gpu[] = {
        {"{\"tf32\": true}", "{\"precision\": \"fp32\", \"device\": \"cuda\"}", true, false},
        {"{\"tf32\": false}", "{\"precision\": \"fp32\", \"device\": \"cuda\"}", false, false},
        {"{\"tf32\": true}", "{\"precision\": \"fp32\", \"device\": \"cpu\"}", false, false}, /* left out */
        {"{\"tf32\": true}", "{\"precision\": \"bf16\", \"device\": \"cuda\"}", false, false},
        {"{\"stochastic_rounding\": true}", "{\"precision\": \"bf16\", \"device\": \"cuda\"}", false, true},
        {"{\"stochastic_rounding\": true}", "{\"precision\": \"fp16\", \"device\": \"cuda\"}", false, false},
    };
    for (size_t i = 0; i < N_OF(gpu); i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"version\": 1, \"options\": %s, \"computed\": %s}", gpu[i].options,
                 gpu[i].computed);
        write_options(text);
        assert_int_equal(ls_run_options_computed(dir, &was), LS_OK);
        assert_true(was.tf32 == gpu[i].tf32 && was.stochastic == gpu[i].stochastic);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"version\": 1, \"options\": {}, \"computed\": %s}", wrong[i].computed);
        write_options(text);
        assert_int_equal(ls_run_options_computed(dir, &was), LS_OK);
        assert_true(was.damaged && !was.precision && !was.fp8_format);
        snprintf(text, sizeof text, "\"computed\" has no \"%s\"", wrong[i].member);
        assert_contains(was.lost, text);
    }
    static const char *const damaged[] = {"{\"version\": 1, \"opt", "{}", "[]"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        write_options(damaged[i]);
        assert_int_equal(ls_run_options_computed(dir, &was), LS_OK);
        assert_true(was.damaged && *was.lost);
    }
    write_options("{\"version\": 99, \"options\": {}}");
    assert_int_equal(ls_run_options_computed(dir, &was), LS_E_FORMAT);
    assert_contains(ls_err_words(), "version 99 is not supported");
    write_options("{\"version\": 1, \"options\": {}}"); /* of an earlier version */
    assert_int_equal(ls_run_options_computed(dir, &was), LS_OK);
    assert_true(!was.precision && !*was.lost);
    assert_int_equal(ls_run_options_computed("/no/such/run", &was), LS_OK);
    assert_true(!was.precision && !*was.lost);
}

/* They are recorded, but no options of a resumed run. */
static void restarts_are_not_taken_over(void **state)
{
    (void)state;
    ls_argv words = {0};
    ls_train_options o;
    ls_str s = {0};
    save("--n 2 --max_restarts 3 --elastic 1:2", 1, 2);
    assert_int_equal(ls_run_options_read(dir, false, &words), LS_OK);
    parse(&words, &o);
    assert_false(ls_train_given(&o, "max_restarts") || ls_train_given(&o, "elastic"));
    ls_run_options_typed(dir, "restarts", &s);
    assert_string_equal(s.data, " --max_restarts 3 --elastic 1:2");
    ls_str_fini(&s);
    ls_argv_fini(&words);
    save("--n 2 --max_restarts 0", 1, 2);
    ls_run_options_typed(dir, "restarts", &s);
    assert_int_equal(s.len, 0);
    write_options("{\"version\": 1, \"options\": {\"max_restarts\": 3, \"hot_spare\": 1, \"serve\": \"\", \"lr\": 1}}");
    assert_int_equal(ls_run_options_read(dir, false, &words), LS_OK);
    assert_int_equal(words.n, 1);
    ls_argv_fini(&words);
    ls_run_options_typed("/no/such/run", "restarts", &s);
    assert_int_equal(s.len, 0);
}

static void paths_that_exist_become_absolute(void **state)
{
    (void)state;
    ls_argv words = {0};
    ls_train_options o;
    save("--data .", 1, 1);
    assert_int_equal(ls_run_options_read(dir, false, &words), LS_OK);
    parse(&words, &o);
    assert_int_equal(o.data[0], '/');
    ls_argv_fini(&words);
}

/* What reads back from "--name value" of a run that was started in `dir`. */
static void check_text(const char *name, const char *value, const char *expected)
{
    ls_argv words = {0};
    char line[256], word[1024];
    snprintf(line, sizeof line, "--%s %s", name, value);
    save(line, 1, 1);
    assert_int_equal(ls_run_options_read(dir, false, &words), LS_OK);
    snprintf(word, sizeof word, "--%s=%s", name, expected);
    bool found = false;
    for (int i = 0; i < words.n; i++) found = found || !strcmp(words.word[i], word);
    if (!found) fail_msg("%s is not %s", words.word[0], word);
    ls_argv_fini(&words);
}

static void every_kind_of_path_becomes_absolute(void **state)
{
    (void)state;
    char before[PATH_MAX], here[PATH_MAX], expected[3 * PATH_MAX];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(dir), 0);
    assert_non_null(getcwd(here, sizeof here));
    static const char *const folder[] = {"a", "b", "shards", "tiny", "1f1b"};
    for (size_t i = 0; i < N_OF(folder); i++) assert_int_equal(ls_fs_mkdirs(folder[i]), LS_OK);
    snprintf(expected, sizeof expected, "%s/a:0.7,%s/b:0.3", here, here);
    check_text("data", "a:0.7,b:0.3", expected);
    snprintf(expected, sizeof expected, "%s/shards/train_*.bin", here);
    check_text("train_data_path", "shards/train_*.bin", expected);
    snprintf(expected, sizeof expected, "%s/train_*.bin", here);
    check_text("train_data_path", "train_*.bin", expected);
    snprintf(expected, sizeof expected, "%s/not/yet", here); /* folders that the run will make */
    check_text("tensorboard", "not/yet", expected);
    check_text("workdir", "not/yet", expected);
    check_text("workdir", "/not/yet", "/not/yet");
    check_text("model", "tiny", "tiny"); /* a preset stays one, whatever folders exist */
    check_text("schedule", "1f1b", "1f1b");
    snprintf(expected, sizeof expected, "%s/tiny", here);
    check_text("model", "./tiny", expected);
    assert_int_equal(chdir(before), 0);
}

static void a_resumed_run_reads_its_copy_of_the_deepspeed_json(void **state)
{
    (void)state;
    static const char json[] = "{\"train_micro_batch_size_per_gpu\": 2}";
    char copy[PATH_MAX];
    ls_ds_config ds = {0};
    check_text("deepspeed_config", "/no/such/ds.json", "/no/such/ds.json"); /* a run of an older version has no copy */
    assert_int_equal(ls_path_in(copy, dir, LS_RUN_DEEPSPEED), LS_OK);
    assert_int_equal(ls_fs_write(copy, json, sizeof json - 1), LS_OK);
    check_text("deepspeed_config", "/no/such/ds.json", copy);
    assert_int_equal(ls_ds_config_load(copy, &ds), LS_OK);
    assert_string_equal(ds.text.data, json); /* what the next copy has */
    ls_ds_config_fini(&ds);
}

#define OPTION(name, value) "{\"version\": 1, \"options\": {\"" name "\": " value "}}"

static void a_damaged_file_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"{",
                                      "[]",
                                      "{\"version\": 1, \"options\": {\"lr\": null}}",
                                      "{\"version\": 99, \"options\": {\"lr\": 0.1}}",
                                      "{\"options\": {\"lr\": 0.1}}",
                                      OPTION("serve=8123", "true"),
                                      OPTION("serve-address", "\"0.0.0.0\""),
                                      OPTION("profile=true", "true"),
                                      OPTION("checkpoint-path", "\"x\""),
                                      OPTION("tf32", "[\"--serve\"]"),
                                      OPTION("betas", "[\"0.9\", \"--serve\"]"),
                                      OPTION("help", "true")};
    const size_t other = 3; /* its version */
    for (size_t i = 0; i < N_OF(bad); i++) {
        ls_argv words = {0};
        assert_int_equal(ls_fs_write(ls_path_of(dir, LS_RUN_OPTIONS).text, bad[i], strlen(bad[i])), LS_OK);
        assert_int_equal(ls_run_options_read(dir, false, &words), LS_E_FORMAT);
        assert_non_null(strstr(ls_err_words(), "options.json: "));
        assert_non_null(
            strstr(ls_err_words(), i == other ? "with the version of lockstep" : "damaged: give train the options"));
        ls_argv_fini(&words);
    }
    ls_argv words = {0};
    assert_int_equal(ls_run_options_read("/no/such/run", false, &words), LS_E_IO);
    ls_err_clear();
}

static void an_option_that_is_forgotten_has_its_default(void **state)
{
    (void)state;
    ls_argv words = {0};
    ls_train_options o;
    assert_int_equal(ls_argv_split(&words, "--n 4 --strategy zero3 --sequence_parallel"), LS_OK);
    parse(&words, &o);
    ls_train_forget(&o, "n");
    ls_train_forget(&o, "strategy");
    ls_train_forget(&o, "sequence_parallel");
    assert_true(o.n == 1 && !o.strategy && !o.sequence_parallel && !ls_train_given(&o, "n"));
    ls_argv_fini(&words);
}

/* Options of the run in `dir` with others that are typed; json: what --deepspeed_config has, NULL: there is none. */
static ls_status resume_with(const char *json, const char *typed, ls_train_config *c)
{
    ls_ds_config ds = {0};
    static const ls_train_paths data = {.train = (char *)(uintptr_t) "d/train.bin"};
    ls_argv words = {0};
    ls_train_options o;
    assert_int_equal(ls_run_options_read(dir, false, &words), LS_OK);
    const ls_train_preset run = {"run", words.n};
    assert_int_equal(ls_argv_split(&words, typed), LS_OK);
    assert_int_equal(ls_argv_add(&words, "--resume"), LS_OK);
    assert_int_equal(ls_train_options_parse_preset(&run, words.n, words.word, &o), LS_OK);
    if (json) assert_int_equal(ls_ds_config_parse(json, strlen(json), "ds.json", &ds), LS_OK);
    const ls_status st = ls_train_resolve(&o, json ? &ds : NULL, &data, NULL, c);
    ls_ds_config_fini(&ds);
    ls_argv_fini(&words);
    return st;
}

static ls_status resume(const char *typed, ls_train_config *c)
{
    return resume_with(NULL, typed, c);
}

#define TINY "--model tiny --seq_length 64 "

/* What the typed options or the device exclude is left out with a note and kept for a later resume; the same option is refused when it is typed. */
static void options_that_typed_ones_exclude_are_left_out(void **state)
{
    (void)state;
    static const struct {
        const char *had, *typed, *left_out, *needs, *again; /* again: typed, and refused */
    } row[] = {
        {"--save_every auto --mtbf 5", "--save_every 5", "mtbf", "--save_every auto", "--mtbf 6300"},
        {"--audit 3 --audit_depth step", "--audit 0", "audit_depth", "--audit K", "--audit_depth micro"},
        {"--save_every 2 --keep_last 2", "--save_every 0", "keep_last", "--save_every", "--keep_last 2"},
        {"--save_every 2 --keep_last 2 --keep_hours 1", "--keep_last 0", "keep_hours", "--keep_last", "--keep_hours 2"},
        {"--save_every 2 --keep_last 2 --keep_hours 1", "--save_every 0", "keep_hours", "--keep_last",
         "--keep_hours 2"}, /* with keep_last */
        {"-n 2 --pp 2 --schedule 1f1b", "--pp 1", "schedule", "a pipeline", "--schedule 1f1b"},
        {"-n 2 --pp 2 --interleave 2", "--pp 1", "interleave", "a pipeline", "--interleave 2"},
        {"-n 2 --pp 2 --interleave 2", "--schedule 1f1b", "interleave", "--schedule interleaved", "--interleave 2"},
        {"-n 2 --pp 2 --stages 0-1,2-5", "--pp 1", "stages", "a pipeline", "--stages 0-5"},
        {"-n 2 --pp 2 --schedule gpipe", "-n 1", "pp", "a multiple of 2 workers", "--pp 2"},
        {"-n 2 --pp 2 --schedule gpipe", "-n 1", "schedule", "a pipeline", "--schedule 1f1b"}, /* with pp */
        {"-n 3 --pp 3", "-n 4 --strategy zero2", "pp", "a multiple of 3 workers", "--pp 3"},
        {"-n 4 --pp 2 --tp 2", "-n 2", "pp", "a multiple of 4 workers", "--pp 2"},
        {"-n 3 --pp 3", "-n 2 --tp 2", "pp", "a multiple of 6 workers", "--pp 3"},
        {"-n 4 --pp 2 --stages 0-1,2-5", "--pp 4", "stages", "another number of stages", NULL},
        {"-n 2 --tp 2 --sequence_parallel", "--tp 1", "sequence_parallel", "tensor parallelism", "--sequence_parallel"},
        {"-n 2 --strategy zero1 --offload_optimizer cpu", "--strategy ddp", "offload_optimizer", "--strategy zero1",
         "--offload_optimizer cpu"},
        {"-n 2 --strategy ddp --share_optimizer", "--audit 2", "share_optimizer", "a run without --audit",
         "--share_optimizer"},
        {"-n 2 --no_deterministic", "--audit 2", "no_deterministic", "a run without --audit", "--no_deterministic"},
        {"-n 2 --device cuda --comm nccl", "--device cpu", "comm", "GPUs", "--comm nccl"},
        {"-n 2 --device cuda --comm nccl", "-n 1", "comm", "several workers", "--comm nccl"},
        {"-n 2 --comm local", "-n 1", "comm", "several workers", "--comm local"},
        {"-n 2 --device cuda --nccl_proof full", "--device cpu", "nccl_proof", "NCCL", "--nccl_proof full"},
        {"-n 2 --device cuda --nccl_proof full", "-n 1", "nccl_proof", "NCCL", "--nccl_proof full"},
        {"--compute cpu-ref", "--device cuda", "compute", "--device cpu", "--compute cpu-ref"},
        {"--device cuda --precision fp32 --tf32", "--device cpu", "tf32", "--device cuda", "--tf32"},
        {"--lr_schedule cosine --min_lr 1e-5", "--lr_schedule constant", "min_lr", "--lr_schedule cosine",
         "--min_lr 1e-5"},
        {"--lr_scheduler_type linear --warmup_steps 3", "--lr_scheduler_type constant", "warmup_steps",
         "a schedule with a warm-up", "--warmup_steps 3"},
    };
    for (size_t i = 0; i < N_OF(row); i++) {
        ls_train_config c;
        char line[256], note[128], member[64];
        snprintf(line, sizeof line, TINY "%s", row[i].had);
        save(line, 2, 8);
        if (resume(row[i].typed, &c) != LS_OK)
            fail_msg("%s, resumed with %s: %s", row[i].had, row[i].typed, ls_err_words());
        snprintf(note, sizeof note, "--%s of the earlier run needs %s", row[i].left_out, row[i].needs);
        if (!c.notes.data || !strstr(c.notes.data, note)) fail_msg("no note '%s': %s", note, c.notes.data);
        snprintf(member, sizeof member, "\"%s\":", row[i].left_out);
        if (!strstr(c.options.data, member)) fail_msg("%s is lost: %s", member, c.options.data);
        ls_train_config_fini(&c);
        snprintf(line, sizeof line, "%s %s", row[i].typed, row[i].again ? row[i].again : "");
        if (row[i].again && resume(line, &c) == LS_OK) fail_msg("%s, resumed with %s", row[i].had, line);
        ls_err_clear();
    }
}

/* With another --tp the bits would change: one that does not fit is refused, and is that of the run. With --elastic the supervisor chooses the
 * pipeline. */
static void a_layout_that_cannot_be_left_out_is_refused(void **state)
{
    (void)state;
    static const char *const row[][3] = {
        {"-n 2 --tp 2", "-n 1",
         "--tp 2 of the run that is resumed needs a multiple of 2 workers, but there is 1; use 2 workers"},
        {"-n 4 --pp 2 --tp 2", "-n 3",
         "--tp 2 of the run that is resumed needs a multiple of 2 workers, but there are 3; use 2 workers"},
        {"-n 4 --pp 2 --tp 2", "-n 1 --pp 1", "--tp 2 of the run that is resumed needs"},
        {"-n 2 --tp 2", "-n 3 --tp 2", "--pp 1 x --tp 2 needs a multiple of 2 workers"},
        {"-n 3 --pp 3", "-n 4 --elastic 2:4", "--pp 3 x --tp 1 needs a multiple of 3 workers"},
    };
    for (size_t i = 0; i < N_OF(row); i++) {
        ls_train_config c;
        char line[256];
        snprintf(line, sizeof line, TINY "%s", row[i][0]);
        save(line, 2, 8);
        assert_int_equal(resume(row[i][1], &c), LS_E_CONFIG);
        if (!strstr(ls_err_words(), row[i][2])) fail_msg("%s: %s", row[i][1], ls_err_words());
    }
}

/* Notes and refusals name the earlier run where an option of it is meant. */
static void options_of_the_run_are_not_taken_for_typed_ones(void **state)
{
    (void)state;
#define SCHEDULER "{\"scheduler\": {\"type\": \"WarmupLR\"}, \"bf16\": {\"enabled\": true}}"
    static const struct {
        const char *had, *json, *typed, *words;
        bool refused;
    } row[] = {
        {"-n 2 --strategy ddp --share_optimizer", NULL, "--strategy zero3",
         "--share_optimizer of the earlier run has no effect with strategy zero3\n", false},
        {"-n 2 --strategy ddp --share_optimizer", NULL, "-n 1",
         "--share_optimizer of the earlier run has no effect with one worker\n", false},
        {"-n 2 --comm_timeout 60", NULL, "-n 1", "--comm_timeout of the earlier run has no effect with one worker\n",
         false},
        {"--comm_timeout 60", NULL, "--comm_timeout 50", "--comm_timeout has no effect with one worker\n", false},
        {"--eval_every 2", NULL, "--max_val_steps 0",
         "--eval_every of the earlier run has no effect with --max_val_steps 0\n", false},
        {"--no_deterministic", NULL, "", "--no_deterministic of the earlier run has no effect: one worker", false},
        {"--lr_schedule cosine --deepspeed_config ds.json", SCHEDULER, "",
         "is overridden by --lr_schedule cosine of the earlier run\n", false},
        {"--precision fp32 --deepspeed_config ds.json", SCHEDULER, "",
         "is overridden by --precision fp32 of the earlier run\n", false},
        {"", NULL, "--max_position_embeddings 32",
         "(--seq_length is an option of the earlier run; a typed one overrides it)", true},
        {"--compute cpu-ref --precision fp32", NULL, "--precision bf16",
         "(--compute is an option of the earlier run; a typed one overrides it)", true},
    };
    for (size_t i = 0; i < N_OF(row); i++) {
        ls_train_config c = {0};
        char line[256];
        snprintf(line, sizeof line, TINY "%s", row[i].had);
        save(line, 2, 8);
        const ls_status st = resume_with(row[i].json, row[i].typed, &c);
        const char *words = row[i].refused ? ls_err_words() : c.notes.data ? c.notes.data : "";
        if (st != (row[i].refused ? LS_E_CONFIG : LS_OK) && !(row[i].refused && st == LS_E_UNSUPPORTED))
            fail_msg("%zu: %s", i, ls_err_words());
        if (!strstr(words, row[i].words)) fail_msg("%zu: no '%s' in: %s", i, row[i].words, words);
        if (st == LS_OK) ls_train_config_fini(&c);
        if (row[i].refused) { /* the same one, typed */
            snprintf(line, sizeof line, "%s --seq_length 64 --compute cpu-ref", row[i].typed);
            assert_int_equal(resume(line, &c), st);
            assert_null(strstr(ls_err_words(), "earlier run"));
        }
        ls_err_clear();
    }
}

/* An audit is turned off by its own option alone; the message names it. */
static void only_audit_0_turns_an_audit_off(void **state)
{
    (void)state;
    static const char *const excludes[] = {"--share_optimizer", "--no_deterministic"};
    for (size_t i = 0; i < N_OF(excludes); i++) {
        ls_train_config c;
        char line[64];
        save(TINY "-n 2 --strategy ddp --audit 3", 2, 8);
        assert_int_equal(resume(excludes[i], &c), LS_E_CONFIG);
        assert_non_null(strstr(ls_err_words(), "add --audit 0"));
        snprintf(line, sizeof line, "%s --audit 0", excludes[i]);
        assert_int_equal(resume(line, &c), LS_OK);
        assert_int_equal(c.audit, 0);
        ls_train_config_fini(&c);
    }
}

/* Two options of one setting: the one that is typed. */
static void a_typed_option_overrides_the_other_one_of_its_setting(void **state)
{
    (void)state;
    static const char *const row[][3] = {
        {"--no_deterministic", "--deterministic", "no_deterministic"},
        {"--deterministic", "--no_deterministic", "deterministic"},
        {"--lr_schedule linear", "--lr_scheduler_type constant", "lr_schedule"},
        {"--lr_scheduler_type linear", "--lr_schedule cosine", "lr_scheduler_type"},
        {"--min_lr 1e-5", "--min_lr_ratio 0.2", "min_lr"},
        {"--min_lr_ratio 0.2", "--min_lr 1e-5", "min_lr_ratio"},
        {"--adam_beta1 0.8 --adam_beta2 0.9", "--betas 0.7 0.8", "adam_beta1"},
    };
    for (size_t i = 0; i < N_OF(row); i++) {
        ls_train_config c;
        char line[128], member[64];
        snprintf(line, sizeof line, TINY "%s", row[i][0]);
        save(line, 2, 8);
        if (resume(row[i][1], &c) != LS_OK) fail_msg("%s with %s: %s", row[i][0], row[i][1], ls_err_words());
        snprintf(member, sizeof member, "\"%s\":", row[i][2]);
        assert_null(strstr(c.options.data, member));
        ls_train_config_fini(&c);
    }
}

/* It names what nobody typed: options of the run do not override it, and it stays when the run is resumed again. */
static void a_typed_json_overrides_the_precision_of_the_run(void **state)
{
    (void)state;
#define TYPED "--deepspeed_config ds.json "
#define BF16  "{\"bf16\": {\"enabled\": true}}"
    static const struct {
        const char *had, *json, *typed, *precision;
        bool kept; /* --precision is still an option of the run */
    } row[] = {
        {"--precision fp32", BF16, TYPED, "bf16", false},
        {"--precision bf16", "{\"bf16\": {\"enabled\": false}}", TYPED, "fp32", false},
        {"--precision auto", "{\"bf16\": {\"enabled\": false}}", TYPED, "fp32", false},
        {"--precision bf16", "{}", TYPED, "bf16", true}, /* names none */
        {"--precision bf16", "{\"fp16\": {\"loss_scale\": 128}}", TYPED, "bf16", true},
        {"--precision bf16", "{\"fp16\": {\"enabled\": false}}", TYPED, "bf16", true},
        {"--precision bf16", "{\"fp16\": {\"enabled\": \"auto\"}}", TYPED, "bf16", true},
        {"--precision fp32", BF16, TYPED "--precision fp32", "fp32", true}, /* typed, too */
        {"--precision fp32 --deepspeed_config ds.json", BF16, "", "fp32", true},
    };
    for (size_t i = 0; i < N_OF(row); i++) {
        ls_train_config c;
        char line[128];
        snprintf(line, sizeof line, TINY "%s", row[i].had);
        save(line, 2, 8);
        if (resume_with(row[i].json, row[i].typed, &c) != LS_OK) fail_msg("%zu: %s", i, ls_err_words());
        if (c.dtype != ls_precision_dtype(row[i].precision)) fail_msg("%zu: not %s", i, row[i].precision);
        const char *options = strstr(c.options.data, "\"options\""), *option = strstr(options, "\"precision\":"),
                   *computed = strstr(options, "\"computed\"");
        if ((option < computed) != row[i].kept) fail_msg("%zu: %s", i, c.options.data);
        const bool told = c.notes.data && strstr(c.notes.data, "bf16 of the DeepSpeed JSON is overridden");
        assert_int_equal(told, !strcmp(row[i].json, BF16) && row[i].kept);
        ls_train_config_fini(&c);
    }
    ls_train_config c;
    save(TINY "--device cuda --precision fp8 --fp8_format e4m3 --fp8_amax_history_len 3 --fp8_margin 1", 2, 8);
    assert_int_equal(resume_with("{\"fp8\": {\"enabled\": true, \"format\": \"HYBRID\", \"margin\": 2}}", TYPED, &c),
                     LS_OK);
    assert_true(c.fp8.on && !c.fp8.e4m3 && c.fp8.history == 3 && c.fp8.margin == 2);
    ls_train_config_fini(&c);
#undef TYPED
#undef BF16
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_precision_of_the_steps_reads_back),
        cmocka_unit_test(options_read_back_the_same),
        cmocka_unit_test(restarts_are_not_taken_over),
        cmocka_unit_test(paths_that_exist_become_absolute),
        cmocka_unit_test(every_kind_of_path_becomes_absolute),
        cmocka_unit_test(a_resumed_run_reads_its_copy_of_the_deepspeed_json),
        cmocka_unit_test(a_damaged_file_is_refused),
        cmocka_unit_test(an_option_that_is_forgotten_has_its_default),
        cmocka_unit_test(options_that_typed_ones_exclude_are_left_out),
        cmocka_unit_test(a_layout_that_cannot_be_left_out_is_refused),
        cmocka_unit_test(options_of_the_run_are_not_taken_for_typed_ones),
        cmocka_unit_test(only_audit_0_turns_an_audit_off),
        cmocka_unit_test(a_typed_option_overrides_the_other_one_of_its_setting),
        cmocka_unit_test(a_typed_json_overrides_the_precision_of_the_run),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
