/* --device, LS_DEVICE and auto: their precedence, the reported reason, a child process that queries the GPU and may crash or hang,
 * and workers of one or several hosts that agree or refuse. */
#include "config/device_choice.h"
#include "assert_text.h"
#include "comm/net_impl.h"
#include "compute/look.h"
#include "core/fs.h"
#include "core/clock.h"
#include "fake_transport.h"
#include "test_folder.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void device_names_are_parsed_strictly(void **state)
{
    (void)state;
    ls_device_choice d;
    assert_int_equal(ls_device_parse("--device", "cuda:12", &d), LS_OK);
    assert_true(d.cuda && d.index == 12 && !d.automatic);
    assert_string_equal(d.words, "CUDA (--device cuda:12)");
    assert_int_equal(ls_device_parse("--device", "cpu", &d), LS_OK);
    assert_true(!d.cuda && d.index == -1 && !d.automatic && !*d.why);
    assert_int_equal(ls_device_parse("", "auto", &d), LS_OK);
    assert_true(!d.cuda && d.index == -1 && d.automatic && !*d.why);
    const char *const bad[] = {"",        "tpu",       "cuda1", "cuda:",  "cuda:x",
                               "cuda:-1", "cuda:1024", "cpu:0", "auto:1", "autos"};
    for (size_t i = 0; i < N_OF(bad); i++) {
        if (ls_device_parse("--device", bad[i], &d) != LS_E_ARG) fail_msg("'%s' is accepted", bad[i]);
        assert_contains(ls_err_words(), "must be auto, cpu, cuda, or cuda:N");
    }
}

static void the_flag_wins_over_the_environment(void **state)
{
    (void)state;
    ls_device_choice d;
    char *dir = test_dir(), words[LS_DEVICE_WORDS];
    setenv("LS_PLUGIN_DIR", dir, 1);
    unsetenv("LS_DEVICE");
    assert_int_equal(ls_device_choose(NULL, NULL, 1, -1, &d), LS_OK);
    assert_true(!d.cuda && d.automatic && !*d.from);
    assert_contains(d.words, "CPU (no CUDA plugin: lockstep_cuda.so not found in LS_PLUGIN_DIR (");
    assert_contains(ls_device_no_gpu(&d, words), "--device auto found no GPU: no CUDA plugin");

    setenv("LS_DEVICE", "cuda:1", 1);
    assert_int_equal(ls_device_choose(NULL, NULL, 1, 0, &d), LS_OK);
    assert_true(d.cuda && d.index == 1 && !d.automatic);
    assert_string_equal(d.words, "CUDA (LS_DEVICE cuda:1)");
    assert_int_equal(ls_device_choose("cpu", NULL, 1, 0, &d), LS_OK); /* the command line wins */
    assert_string_equal(d.words, "CPU (--device cpu)");
    assert_contains(ls_device_no_gpu(&d, words), "--device cuda chooses a GPU");
    assert_int_equal(ls_device_choose("auto", "--compute", 1, 0, &d), LS_OK); /* no GPU was queried */
    assert_true(!d.cuda && d.automatic && !*d.why);
    assert_string_equal(d.words, "CPU (for --compute)");
    setenv("LS_DEVICE", "moon", 1);
    assert_int_equal(ls_device_choose(NULL, NULL, 1, 0, &d), LS_E_ARG);
    assert_contains(ls_err_words(), "LS_DEVICE 'moon': must be");
    setenv("LS_DEVICE", "", 1);
    assert_int_equal(ls_device_choose(NULL, NULL, 1, 0, &d), LS_OK);
    assert_true(d.automatic);
    unsetenv("LS_DEVICE");

    test_write(dir, "lockstep_cuda.so", "no library\n"); /* a plugin that does not load: the reason is one line */
    assert_int_equal(ls_device_choose(NULL, NULL, 1, 0, &d), LS_OK);
    assert_true(!d.cuda && !strchr(d.words, '\n'));
    assert_contains(d.words, "CPU (no CUDA plugin: ");
    assert_contains(d.words, "cannot load the plugin");
    unsetenv("LS_PLUGIN_DIR");
    test_dir_close(dir);
}

/* Display and 3D controllers of NVIDIA are GPUs that users expect to be used; its bridges and other vendors are not. */
static void hardware_is_found_without_a_driver(void **state)
{
    (void)state;
    char *dir = test_dir();
    const struct {
        const char *name, *vendor, *class;
        bool gpu;
    } device[] = {{"0000:00:01.0", "0x8086\n", "0x030000\n", false},
                  {"0000:00:02.0", "0x10de\n", "0x068000\n", false},
                  {"0000:00:03.0", "0x10de\n", "0x030200\n", true}};
    assert_false(look_for_hardware(test_path(dir, "none", NULL)));
    for (size_t i = 0; i < N_OF(device); i++) {
        assert_int_equal(ls_fs_mkdirs(test_path(dir, device[i].name, NULL)), LS_OK);
        char file[64];
        snprintf(file, sizeof file, "%s/vendor", device[i].name);
        test_write(dir, file, device[i].vendor);
        snprintf(file, sizeof file, "%s/class", device[i].name);
        test_write(dir, file, device[i].class);
        assert_int_equal(look_for_hardware(dir), device[i].gpu);
    }
    test_dir_close(dir);
}

static ls_look answers(int device, int local_rank)
{
    (void)device;
    return (ls_look){.there = true, .info = {.name = "NVIDIA H200", .index = local_rank, .count = 8}};
}

static ls_look crashes(int device, int local_rank)
{
    (void)device;
    signal(SIGABRT, SIG_DFL);
    raise(SIGABRT);
    return answers(device, local_rank);
}

static ls_look leaves(int device, int local_rank)
{
    (void)device, (void)local_rank;
    _exit(0);
}

static ls_look hangs(int device, int local_rank)
{
    (void)device;
    sleep(100);
    return answers(device, local_rank);
}

static void a_crash_of_the_driver_is_survived(void **state)
{
    (void)state;
    ls_look r = look_in_child(answers, -1, 3, 20);
    assert_true(r.there && r.info.index == 3 && r.info.count == 8);
    assert_string_equal(r.info.name, "NVIDIA H200");
    r = look_in_child(crashes, -1, 0, 20);
    assert_false(r.there);
    assert_contains(r.why, "the CUDA driver crashed (Aborted");
    r = look_in_child(leaves, -1, 0, 20);
    assert_false(r.there);
    assert_contains(r.why, "ended the process");
    const double begin = ls_now();
    r = look_in_child(hangs, -1, 0, 0.2);
    assert_false(r.there);
    assert_contains(r.why, "did not answer");
    assert_true(ls_now() - begin < 20);
}

/* ---- agreement ---- */

#define MOST 8

typedef struct worker {
    ls_local_world *world;
    fake_world *net; /* not NULL: several hosts that a fake transport connects */
    int rank;
    ls_device_choice d;
    ls_status st;
    char error[512];
} worker;

static void *worker_main(void *arg)
{
    worker *w = arg;
    ls_comm *c = NULL;
    w->st = w->net ? fake_open(w->net, w->rank, (size_t)64 << 20, &c) : ls_comm_local(w->world, w->rank, &c);
    if (w->st == LS_OK) w->st = ls_device_agree(&w->d, c);
    snprintf(w->error, sizeof w->error, "%s", w->st == LS_OK ? "" : ls_err_words());
    ls_comm_destroy(&c);
    return NULL;
}

/* hosts: the number of workers on each host, ended by 0. The workers of a single host communicate through shared memory. */
static void agree(const int *hosts, worker *w)
{
    fake_world net = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    ls_local_world *world = NULL;
    pthread_t thread[MOST];
    for (int h = 0; hosts[h]; h++)
        for (int k = 0; k < hosts[h]; k++) net.host[net.size++] = h;
    if (!hosts[1]) assert_int_equal(ls_local_world_create(net.size, (size_t)64 << 20, &world), LS_OK);
    for (int r = 0; r < net.size; r++) {
        w[r].rank = r;
        w[r].world = world;
        w[r].net = world ? NULL : &net;
        assert_int_equal(pthread_create(&thread[r], NULL, worker_main, &w[r]), 0);
    }
    for (int r = 0; r < net.size; r++) pthread_join(thread[r], NULL);
    ls_local_world_destroy(&world);
}

static ls_device_choice with_gpu(int bus, int visible)
{
    ls_device_choice d = {.cuda = true, .automatic = true, .index = -1, .from = "", .visible = visible};
    snprintf(d.gpu, sizeof d.gpu, "NVIDIA H200");
    snprintf(d.bus, sizeof d.bus, "0000:%02d:00.0", bus);
    snprintf(d.words, sizeof d.words, "CUDA, NVIDIA H200 (1 of %d visible)", visible);
    return d;
}

static ls_device_choice without_gpu(void)
{
    ls_device_choice d = {.automatic = true, .index = -1, .from = "", .why = "no driver", .words = "CPU (no driver)"};
    return d;
}

static void workers_agree_on_one_device_kind(void **state)
{
    (void)state;
    worker w[MOST] = {0};
    for (int r = 0; r < 4; r++) w[r] = (worker){.d = with_gpu(r, 8)};
    agree((int[]){4, 0}, w);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(w[r].st, LS_OK);
        assert_string_equal(w[r].d.words, "CUDA, NVIDIA H200 (4 of 8 visible)");
    }
    for (int r = 0; r < 4; r++) w[r] = (worker){.d = with_gpu(r, 1)}; /* each worker sees only its own GPU */
    agree((int[]){4, 0}, w);
    assert_string_equal(w[0].d.words, "CUDA, NVIDIA H200 (4 of 4 visible)");
    for (int r = 0; r < 4; r++) w[r] = (worker){.d = with_gpu(0, 1)};
    agree((int[]){4, 0}, w);
    assert_string_equal(w[0].d.words, "CUDA, NVIDIA H200 (1 of 1 visible, shared by 4 workers)");
    for (int r = 0; r < 4; r++) w[r] = (worker){.d = with_gpu(r % 2, 2)}; /* equal bus ids on two hosts are two GPUs */
    agree((int[]){2, 2, 0}, w);
    assert_string_equal(w[3].d.words, "CUDA, NVIDIA H200 (4 GPUs on 2 hosts)");
    for (int r = 0; r < 3; r++) w[r] = (worker){.d = without_gpu()};
    agree((int[]){3, 0}, w);
    assert_int_equal(w[2].st, LS_OK);
    assert_string_equal(w[0].d.words, "CPU (no driver)");
}

static void workers_with_different_devices_are_refused(void **state)
{
    (void)state;
    worker w[MOST] = {0};
    for (int r = 0; r < 4; r++) w[r] = (worker){.d = r == 2 ? without_gpu() : with_gpu(r, 2)};
    agree((int[]){2, 2, 0}, w);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(w[r].st, LS_E_CONFIG);
        assert_contains(w[r].error, "rank 2 on ");
        assert_contains(w[r].error, "would use CPU (no driver), but 3 of 4 workers have a GPU");
    }
    for (int r = 0; r < 2; r++) /* LS_DEVICE is set for one worker only */
        assert_int_equal(ls_device_parse(r ? "LS_DEVICE" : "--device", r ? "cpu" : "cuda", &w[r].d), LS_OK);
    agree((int[]){2, 0}, w);
    assert_int_equal(w[0].st, LS_E_CONFIG);
    assert_contains(w[0].error, "rank 1 on ");
    assert_contains(w[0].error, "would use CPU (LS_DEVICE cpu)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_names_are_parsed_strictly),
        cmocka_unit_test(hardware_is_found_without_a_driver),
        cmocka_unit_test(the_flag_wins_over_the_environment),
        cmocka_unit_test(a_crash_of_the_driver_is_survived),
        cmocka_unit_test(workers_agree_on_one_device_kind),
        cmocka_unit_test(workers_with_different_devices_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
