/* Ranks that share a GPU: NCCL 2.30 and later allow it with NCCL_MULTI_RANK_GPU_ENABLE=1. With both, --comm nccl and --comm auto
 * use NCCL, and every collective gives the same bits. If one of them is missing, nccl fails and auto stages through the host; the message names what is
 * missing. The plugin is the real one, linked with a fake libnccl (tests/fake_nccl) whose version is an environment variable. */
/* ls-test: long */
#include "comm/start.h"
#include "core/stack.h"
#include "device_team.h"

#include <string.h>

typedef struct choice {
    const char *version, *variable; /* NULL: not set */
    const char *asked, *name;       /* name NULL: refused */
    const char *parts[3];           /* of the error, or of the note of auto */
} choice;

static const choice *chosen; /* of the test that runs */

static void check_message(worker *w, const char *text)
{
    for (size_t i = 0; i < N_OF(chosen->parts); i++)
        if (chosen->parts[i]) CHECK(&w->error, text && strstr(text, chosen->parts[i]));
}

static void *worker_main(void *arg)
{
    static const int64_t sizes[] = {0, 1, 1025};
    worker *w = arg;
    ls_comm *boot = NULL;
    ls_str note = {0};
    on_device o = {.w = &w->error, .d = double_open((uint64_t)w->rank + 5)}; /* every rank has GPU 0 */
    CHECK(&w->error, worker_host(w, &boot) == LS_OK);
    CHECK(&w->error, ls_comm_local(w->ref, w->rank, &o.ref) == LS_OK);
    const ls_status st = ls_comm_for_device(boot, &o.d->table, chosen->asked, true, &o.c, &note);
    if (!chosen->name) {
        CHECK(&w->error, st == LS_E_UNSUPPORTED);
        check_message(w, ls_err_words());
        ls_comm_destroy(&boot);
    } else {
        CHECK(&w->error, st == LS_OK && !strcmp(ls_comm_name(o.c), chosen->name));
        if (chosen->parts[0] && w->rank == 0) check_message(w, note.data);
        else CHECK(&w->error, !note.len);
        if (st == LS_OK && device_open(&o, (size_t)1 << 20)) {
            device_every_kind(&o, sizes, (int)N_OF(sizes));
            device_close(&o);
        }
    }
    ls_comm_destroy(&o.c);
    ls_comm_destroy(&o.ref);
    ls_str_fini(&note);
    double_close(o.d);
    return NULL;
}

static void set(const char *name, const char *value)
{
    if (value) setenv(name, value, 1);
    else unsetenv(name);
}

static void sharing_needs_nccl_2_30_and_the_variable(void **state)
{
    (void)state;
    static const choice all[] = {
        {"23007", "1", "nccl", "nccl", {NULL}},
        {"23007", "1", "auto", "nccl", {NULL}},
        {"30000", "1", "auto", "nccl", {NULL}},
        {"23007", "1", "local", "local, staged", {NULL}},
        {"23007",
         NULL,
         "nccl",
         NULL,
         {"share the GPU", "NCCL_MULTI_RANK_GPU_ENABLE=1",
          "rank 0 loaded NCCL 2.30.7, and there the variable is not set); set it to 1, use --comm local"}},
        {"23007",
         "yes",
         "nccl",
         NULL,
         {"share the GPU", "and there the variable is 'yes', not 1); set it to 1, use --comm local"}},
        {"23007", "0", "auto", "local, staged", {"share the GPU", "NCCL_MULTI_RANK_GPU_ENABLE=1", "NCCL 2.30.7"}},
        {"22909",
         "1",
         "nccl",
         NULL,
         {"share the GPU", "NCCL 2.30 or later",
          "rank 0 loaded NCCL 2.29.9, and there the variable is 1); install a newer NCCL, use --comm local"}},
        {"22909", "1", "auto", "local, staged", {"share the GPU", "NCCL 2.30 or later", "NCCL 2.29.9"}},
        {"22803",
         NULL,
         "nccl",
         NULL,
         {"share the GPU", "rank 0 loaded NCCL 2.28.3", "install a newer NCCL and set the variable"}},
        {"21805", NULL, "nccl", NULL, {"rank 0 loaded NCCL 2.18.5, which is too old: 2.19 or later is needed"}},
        {"21805", NULL, "auto", "local, staged", {"NCCL 2.18.5, which is too old"}},
    };
    for (size_t i = 0; i < N_OF(all); i++) {
        chosen = &all[i];
        set("FAKE_NCCL_VERSION", chosen->version);
        set("NCCL_MULTI_RANK_GPU_ENABLE", chosen->variable);
        for (int size = 2; size <= 4; size += 2) run_world(size, (worker){0});
    }
    set("FAKE_NCCL_VERSION", NULL);
    set("NCCL_MULTI_RANK_GPU_ENABLE", NULL);
}

/* The same with workers on two hosts. */
static void sharing_works_across_hosts(void **state)
{
    (void)state;
    static const choice allowed = {"23007", "1", "auto", "nccl", {NULL}},
                        refused = {"23007", NULL, "nccl", NULL, {"ranks 0 and 1 share the GPU", NULL, NULL}};
    set("FAKE_NCCL_VERSION", "23007");
    for (int k = 0; k < 2; k++) {
        chosen = k ? &refused : &allowed;
        set("NCCL_MULTI_RANK_GPU_ENABLE", chosen->variable);
        run_hosts((const int[]){2, 1, 0}, (worker){0});
    }
    set("FAKE_NCCL_VERSION", NULL);
}

int main(void)
{
    use_fake_nccl();
    ls_stack_install("the test");
    const struct CMUnitTest tests[] = {cmocka_unit_test(sharing_needs_nccl_2_30_and_the_variable),
                                       cmocka_unit_test(sharing_works_across_hosts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
