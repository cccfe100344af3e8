/* Detection of the emulated device: what it reports, the reason when there is no device, and that the calling process does not load the plugin. */
/* ls-test: long */
#include "cmocka_all.h"
#include "compute/look.h"
#include "config/device_choice.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[500];

static bool is_loaded(void)
{
    char path[600];
    snprintf(path, sizeof path, "%s/lockstep_cuda.so", dir);
    return dlopen(path, RTLD_LAZY | RTLD_NOLOAD) != NULL;
}

static void a_look_reports_the_devices_or_why_not(void **state)
{
    (void)state;
    ls_look r;
    setenv("LS_EMU_DEVICES", "2", 1);
    ls_gpu_look(-1, 3, &r);
    assert_true(r.there);
    assert_string_equal(r.info.name, "emulated device");
    assert_true(r.info.count == 2 && r.info.index == 1);
    assert_string_equal(r.info.bus, "0000:01:00.0");
    setenv("LS_EMU_DEVICES", "0", 1);
    ls_gpu_look(-1, 0, &r);
    assert_false(r.there);
    assert_non_null(strstr(r.why, "no CUDA device"));
    setenv("LS_EMU_DEVICES", "-1", 1);
    ls_gpu_look(-1, 0, &r);
    assert_non_null(strstr(r.why, "the NVIDIA driver is too old"));
    unsetenv("LS_EMU_DEVICES");
    assert_false(is_loaded()); /* no context in this process: it may fork workers */
}

static void auto_takes_a_gpu_that_is_usable(void **state)
{
    (void)state;
    ls_device_choice d;
    unsetenv("LS_DEVICE");
    assert_int_equal(ls_device_choose(NULL, NULL, 1, 0, &d), LS_OK);
    assert_true(d.cuda && d.automatic && d.index == -1 && d.visible == 1);
    assert_string_equal(d.words, "CUDA, emulated device (1 of 1 visible)");
    assert_int_equal(ls_device_choose("auto", NULL, 3, 0, &d), LS_OK);
    assert_string_equal(d.words, "CUDA, emulated device (1 of 1 visible, shared by 3 workers)");
    setenv("LS_EMU_DEVICES", "4", 1);
    assert_int_equal(ls_device_choose(NULL, NULL, 3, 0, &d), LS_OK);
    assert_string_equal(d.words, "CUDA, emulated device (3 of 4 visible)");
    setenv("LS_EMU_DEVICES", "0", 1);
    assert_int_equal(ls_device_choose(NULL, NULL, 1, 0, &d), LS_OK);
    assert_true(!d.cuda && d.automatic && strstr(d.why, "no CUDA device") == d.why);
    assert_true(strstr(d.words, "CPU (no CUDA device") == d.words);
    unsetenv("LS_EMU_DEVICES");
    assert_false(is_loaded());
}

int main(void)
{
    const char *build = getenv("LS_BUILD");
    snprintf(dir, sizeof dir, "%.480s/emu", build ? build : "build");
    setenv("LS_PLUGIN_DIR", dir, 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_look_reports_the_devices_or_why_not),
                                       cmocka_unit_test(auto_takes_a_gpu_that_is_usable)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
