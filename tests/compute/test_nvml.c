/* NVML through its entry points, with a fake library (tests/fake_nvml): selection of the GPU, values and refusals, the sampler.
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

static void a_gpu_is_found_by_index_bus_or_uuid(void **state)
{
    (void)state;
    ls_nvml *n = NULL;
    ASSERT_GPU(NULL, "GPU-aaaa");
    ASSERT_GPU("1", "GPU-bbbb");
    ASSERT_GPU("0000:3d:00.0", "GPU-bbbb");
    ASSERT_GPU("00000000:1B:00.0", "GPU-aaaa");
    ASSERT_GPU("GPU-bbbb0000-1111", "GPU-bbbb");
    setenv("CUDA_VISIBLE_DEVICES", "1", 1); /* GPU 0 of the program is GPU 1 of the machine */
    ASSERT_GPU(NULL, "GPU-bbbb");
    setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb, 0", 1);
    ASSERT_GPU("0", "GPU-bbbb");
    ASSERT_GPU("1", "GPU-aaaa");
    ASSERT_GPU("0000:1b:00.0", "GPU-aaaa"); /* a bus id does not depend on the list */
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(ls_nvml_open(&n, "7"), LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "GPU 7: Not Found"));
    assert_int_equal(ls_nvml_open(&n, "GPU-cccc"), LS_E_UNSUPPORTED);
    assert_non_null(strstr(ls_err_words(), "0 of the 2 GPUs"));
    assert_null(n);
}

static void values_are_read_in_the_right_units(void **state)
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

static void a_refused_value_is_unknown_with_its_reason(void **state)
{
    (void)state;
    ls_nvml *n = NULL;
    ls_gpu_now now;
    setenv("FAKE_NVML_REFUSE", "power,memory,slowed", 1);
    assert_int_equal(ls_nvml_open(&n, "0"), LS_OK);
    ls_nvml_read(n, &now);
    ls_nvml_read(n, &now); /* each reason is listed once */
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

static void a_window_averages_its_samples(void **state)
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
    assert_memory_equal(ls_gpu_watch_close(w), &first, sizeof first); /* a second close changes nothing */
    ls_gpu_watch_last(w, &now);
    assert_true(now.power == 500);
    ls_gpu_watch_end(&w);
    assert_null(w);
}

static void energy_falls_back_to_power(void **state)
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

static int n_message;
static void on_message(void *ctx, const char *text)
{
    (void)ctx;
    n_message++;
    assert_non_null(strstr(text, "no utilisation, power and energy of the GPU: cannot load NVML"));
}

static void telemetry_is_written_or_null(void **state)
{
    (void)state;
    const ls_device device = {.info = device_info};
    const ls_compute gpu = {.device = &device}, cpu = {0};
    ls_telemetry g = {0};
    ls_str s = {0};
    ls_jsonw j;
    ls_telemetry_begin(&g, &gpu, on_message, NULL);
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
    assert_int_equal(n_message, 0);
    ls_telemetry_begin(&g, &cpu, on_message, NULL);
    assert_null(g.watch);
    setenv("LS_NVML", "/nonexistent.so", 1);
    ls_telemetry_begin(&g, &gpu, on_message, NULL);
    assert_null(g.watch);
    assert_int_equal(n_message, 1);
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

/* A device is found by its bus id, or else by its index. */
static void a_device_is_found_by_bus_or_index(void **state)
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
        ls_telemetry_begin(&g, &gpu, on_message, NULL);
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

static void failed_allocations_leak_nothing(void **state)
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
        cmocka_unit_test_setup(a_gpu_is_found_by_index_bus_or_uuid, use_fake),
        cmocka_unit_test_setup(values_are_read_in_the_right_units, use_fake),
        cmocka_unit_test_setup(a_refused_value_is_unknown_with_its_reason, use_fake),
        cmocka_unit_test_setup(a_window_averages_its_samples, use_fake),
        cmocka_unit_test_setup(energy_falls_back_to_power, use_fake),
        cmocka_unit_test_setup(telemetry_is_written_or_null, use_fake),
        cmocka_unit_test_setup(a_device_is_found_by_bus_or_index, use_fake),
        cmocka_unit_test_setup(failed_allocations_leak_nothing, use_fake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
