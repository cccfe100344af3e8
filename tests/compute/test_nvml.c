/* NVML by its entry points, over a library of our own (tests/fake_nvml): which GPU, values and refusals, what the sampler saw.
 * ls-test: serial */
#include "compute/gpu_watch.h"
#include "core/mem.h"
#include "train/telemetry.h"
#include "cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int use_fake(void **state)
{
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s/fake_nvml.so", getenv("LS_BUILD") ? getenv("LS_BUILD") : "build");
    setenv("LS_NVML", path, 1);
    unsetenv("FAKE_NVML_REFUSE");
    unsetenv("CUDA_VISIBLE_DEVICES");
    return 0;
}

static void uuid_of(const char *which, char out[96])
{
    ls_nvml *n = NULL;
    ls_gpu_facts f;
    assert_int_equal(ls_nvml_open(&n, which), LS_OK);
    ls_nvml_facts(n, &f);
    snprintf(out, 96, "%s", f.uuid);
    ls_nvml_close(&n);
    assert_null(n);
}

#define ASSERT_GPU(which, start)                       \
    do {                                               \
        char u_[96];                                   \
        uuid_of(which, u_);                            \
        assert_memory_equal(u_, start, strlen(start)); \
    } while (0)

static void test_which(void **state)
{
    (void)state;
    ls_nvml *n = NULL;
    ASSERT_GPU(NULL, "GPU-aaaa");
    ASSERT_GPU("1", "GPU-bbbb");
    ASSERT_GPU("0000:3d:00.0", "GPU-bbbb");
    ASSERT_GPU("00000000:1B:00.0", "GPU-aaaa");
    ASSERT_GPU("GPU-bbbb0000-1111", "GPU-bbbb");
    setenv("CUDA_VISIBLE_DEVICES", "1", 1); /* the program's GPU 0 is the machine's GPU 1 */
    ASSERT_GPU(NULL, "GPU-bbbb");
    setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb, 0", 1);
    ASSERT_GPU("0", "GPU-bbbb");
    ASSERT_GPU("1", "GPU-aaaa");
    ASSERT_GPU("0000:1b:00.0", "GPU-aaaa"); /* a bus id is nobody's index */
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(ls_nvml_open(&n, "7"), LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "GPU 7: Not Found"));
    assert_int_equal(ls_nvml_open(&n, "GPU-cccc"), LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "0 of the 2 GPUs"));
    assert_null(n);
}

static void test_values(void **state)
{
    (void)state;
    ls_nvml *n = NULL;
    ls_gpu_facts f;
    ls_gpu_now now;
    char words[160];
    assert_int_equal(ls_nvml_open(&n, "0"), LS_OK);
    ls_nvml_facts(n, &f);
    assert_string_equal(f.name, "Fake H200");
    assert_string_equal(f.bus, "00000000:1B:00.0");
    assert_string_equal(f.driver, "580.65.06");
    assert_true(f.total == 141.0 * 1073741824.0 && f.power_limit == 700 && f.sm_mhz_max == 1980);
    ls_nvml_read(n, &now);
    assert_true(now.busy == 0.87 && now.power == 300 && now.sm_mhz == 1755 && now.mem_mhz == 3201 && now.celsius == 61);
    assert_true(now.energy >= 0 && now.used >= 10.0 * 1073741824.0);
    assert_string_equal(ls_gpu_slowed_words(now.slowed, words), "power cap, heat");
    assert_string_equal(ls_gpu_slowed_words(0, words), "none");
    assert_string_equal(ls_nvml_refused(n), "");
    ls_nvml_close(&n);
}

static void test_refusals(void **state)
{
    (void)state;
    ls_nvml *n = NULL;
    ls_gpu_now now;
    setenv("FAKE_NVML_REFUSE", "power,memory,slowed", 1);
    assert_int_equal(ls_nvml_open(&n, "0"), LS_OK);
    ls_nvml_read(n, &now);
    ls_nvml_read(n, &now); /* each reason stands there once */
    assert_true(isnan(now.power) && isnan(now.used) && now.slowed == 0 && now.busy == 0.87);
    assert_string_equal(ls_nvml_refused(n),
                        "power: Not Supported, memory: Insufficient Permissions, clock's reasons: Not Supported");
    ls_nvml_close(&n);
    setenv("FAKE_NVML_REFUSE", "init", 1);
    assert_int_equal(ls_nvml_open(&n, "0"), LS_E_UNSUPPORTED);
    assert_string_equal(ls_err_words(), "cannot initialize NVML: Driver Not Loaded (9)");
    unsetenv("FAKE_NVML_REFUSE");
    setenv("LS_NVML", "/nonexistent/libnvidia-ml.so.1", 1);
    assert_int_equal(ls_nvml_open(&n, "0"), LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "cannot load NVML: /nonexistent"));
    ls_gpu_watch *w = NULL;
    assert_int_equal(ls_gpu_watch_begin(&w, NULL, 0), LS_E_UNSUPPORTED);
    assert_null(w);
}

static void rest(double seconds)
{
    const struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void test_window(void **state)
{
    (void)state;
    ls_gpu_watch *w = NULL;
    ls_gpu_now now;
    assert_int_equal(ls_gpu_watch_begin(&w, "1", 100), LS_OK);
    rest(0.5);
    const ls_gpu_window *x = ls_gpu_watch_close(w);
    assert_true(x->seconds > 0.49 && x->seconds < 5 && x->n_sample >= 5);
    assert_true(x->energy_counted && fabs(x->energy - 500 * x->seconds) < 0.02 * 500 * x->seconds + 1);
    assert_true(fabs(x->busy - 0.40) < 1e-9 && fabs(x->power - 500) < 1e-9 && fabs(x->sm_mhz - 1755) < 1e-9);
    assert_true(x->used_max > 10.0 * 1073741824.0);
    assert_true(x->slowed == 0x24);
    const ls_gpu_window first = *x;
    rest(0.05);
    assert_memory_equal(ls_gpu_watch_close(w), &first, sizeof first); /* closed once */
    ls_gpu_watch_last(w, &now);
    assert_true(now.power == 500);
    ls_gpu_watch_end(&w);
    assert_null(w);
}

static void test_power_for_energy(void **state)
{
    (void)state;
    ls_gpu_watch *w = NULL;
    setenv("FAKE_NVML_REFUSE", "energy", 1);
    assert_int_equal(ls_gpu_watch_begin(&w, "0", 50), LS_OK);
    rest(0.1);
    const ls_gpu_window *x = ls_gpu_watch_close(w);
    assert_true(!x->energy_counted && fabs(x->energy - 300 * x->seconds) < 1e-6);
    ls_gpu_watch_end(&w);
    setenv("FAKE_NVML_REFUSE", "energy,power,busy,clock,heat,memory,slowed", 1);
    assert_int_equal(ls_gpu_watch_begin(&w, "0", 50), LS_OK);
    rest(0.05);
    x = ls_gpu_watch_close(w);
    assert_true(isnan(x->energy) && isnan(x->busy) && isnan(x->sm_mhz) && isnan(x->used_max) && x->n_sample >= 2);
    ls_str s = {0};
    ls_jsonw j;
    ls_jsonw_init(&j, &s, 0);
    ls_jsonw_open(&j, '{');
    ls_gpu_window_write(x, 1000, &j);
    ls_jsonw_close(&j);
    assert_non_null(strstr(s.data, "\"power_mean_w\": null"));
    assert_non_null(strstr(s.data, "\"energy_j\": null, \"energy_from\": null, \"energy_per_token_j\": null"));
    ls_str_fini(&s);
    ls_gpu_watch_end(&w);
}

static ls_status device_info(void *ctx, ls_device_info *out)
{
    *out = (ls_device_info){.index = 1};
    if (ctx) snprintf(out->bus, sizeof out->bus, "%s", (const char *)ctx);
    return LS_OK;
}

static int n_said;
static void said(void *ctx, const char *text)
{
    (void)ctx;
    n_said++;
    assert_non_null(strstr(text, "no utilisation, power and energy of the GPU: cannot load NVML"));
}

static void test_telemetry(void **state)
{
    (void)state;
    const ls_device device = {.info = device_info};
    const ls_compute gpu = {.device = &device}, cpu = {0};
    ls_telemetry g = {0};
    ls_str s = {0};
    ls_jsonw j;
    ls_telemetry_begin(&g, &gpu, said, NULL);
    assert_non_null(g.watch);
    ls_telemetry_step(&g);
    rest(0.15);
    ls_jsonw_init(&j, &s, 0);
    ls_jsonw_open(&j, '{');
    ls_telemetry_write(&g, 100, &j);
    ls_jsonw_close(&j);
    assert_non_null(strstr(s.data, "{\"gpu_watch\": {\"name\": \"Fake H200 NVL\", \"uuid\": \"GPU-bbbb"));
    assert_non_null(strstr(s.data, "\"power_mean_w\": 500"));
    assert_non_null(strstr(s.data, "\"energy_from\": \"counter\""));
    ls_telemetry_end(&g);
    assert_int_equal(n_said, 0);
    ls_telemetry_begin(&g, &cpu, said, NULL);
    assert_null(g.watch);
    setenv("LS_NVML", "/nonexistent.so", 1);
    ls_telemetry_begin(&g, &gpu, said, NULL);
    assert_null(g.watch);
    assert_int_equal(n_said, 1);
    s.len = 0;
    ls_jsonw_init(&j, &s, 0);
    ls_jsonw_open(&j, '{');
    ls_telemetry_write(&g, 100, &j);
    ls_jsonw_close(&j);
    assert_string_equal(s.data, "{\"gpu_watch\": null}");
    ls_telemetry_step(&g);
    ls_telemetry_end(&g);
    ls_str_fini(&s);
}

/* A device is found by where it is plugged in, or else by its index. */
static void test_telemetry_bus(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"0000:1b:00.0", "GPU-aaaa"}, {"0000:77:00.0", "GPU-bbbb"}};
    for (size_t i = 0; i < 2; i++) {
        char bus[24];
        snprintf(bus, sizeof bus, "%s", rows[i][0]);
        const ls_device device = {.ctx = bus, .info = device_info};
        const ls_compute gpu = {.device = &device};
        ls_telemetry g = {0};
        ls_str s = {0};
        ls_jsonw j;
        ls_telemetry_begin(&g, &gpu, said, NULL);
        assert_non_null(g.watch);
        ls_jsonw_init(&j, &s, 0);
        ls_jsonw_open(&j, '{');
        ls_telemetry_write(&g, 100, &j);
        ls_jsonw_close(&j);
        assert_non_null(strstr(s.data, rows[i][1]));
        ls_str_fini(&s);
        ls_telemetry_end(&g);
    }
}

static void test_no_leak(void **state)
{
    (void)state;
    const int64_t live = ls_mem_live();
    for (int64_t k = 0;; k++) {
        ls_gpu_watch *w = NULL;
        ls_mem_fail_at(k);
        const ls_status st = ls_gpu_watch_begin(&w, "0", 10);
        ls_mem_fail_at(-1);
        ls_gpu_watch_end(&w);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_which, use_fake),
        cmocka_unit_test_setup(test_values, use_fake),
        cmocka_unit_test_setup(test_refusals, use_fake),
        cmocka_unit_test_setup(test_window, use_fake),
        cmocka_unit_test_setup(test_power_for_energy, use_fake),
        cmocka_unit_test_setup(test_telemetry, use_fake),
        cmocka_unit_test_setup(test_telemetry_bus, use_fake),
        cmocka_unit_test_setup(test_no_leak, use_fake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
