/* A fault plan is read strictly; its faults happen on one rank, in one step and attempt, as often as asked, and never without a plan. */
#include "core/clock.h"
#include "core/fs.h"
#include "core/inject.h"
#include "core/mem.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int tear_down(void **state)
{
    (void)state;
    unsetenv("LOCKSTEP_ATTEMPT");
    unsetenv("LOCKSTEP_FAULT_LOG");
    return ls_inject_open(NULL) == LS_OK && ls_inject_worker(-1) == LS_OK ? 0 : -1;
}

static void begin(const char *plan, int rank, int64_t step)
{
    assert_int_equal(ls_inject_open(plan), LS_OK);
    assert_int_equal(ls_inject_worker(rank), LS_OK);
    ls_inject_step(step);
}

static void a_malformed_plan_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"kill",
                                      "rank=1",
                                      ";",
                                      "kind=burn",
                                      "kind=kill,rank=-1",
                                      "kind=read,rank=-2",
                                      "kind=kill,rank=x",
                                      "kind=kill,rank=",
                                      "kind=kill,step=0",
                                      "kind=kill,step=99999999999999999999",
                                      "kind=kill,phase=sleep",
                                      "kind=kill,kind=stop",
                                      "kind=kill,colour=red",
                                      "kind=slow",
                                      "kind=slow,seconds=-1",
                                      "kind=slow,seconds=nan",
                                      "kind=clock",
                                      "kind=flip,bit=64",
                                      "kind=flip,tensor=weights",
                                      "kind=flip,tensor=sum,phase=forward",
                                      "kind=enospc,path=",
                                      "kind=kill,count=0",
                                      "kind=kill;kind=",
                                      "kind=kill;rank=3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const ls_status st = ls_inject_open(bad[i]);
        if (st != LS_E_ARG) fail_msg("'%s' is accepted", bad[i]);
        assert_int_equal(ls_status_exit_code(st), 2);
        assert_non_null(strstr(ls_err_words(), "LOCKSTEP_FAULT"));
        assert_false(ls_inject_on);
    }
}

static void without_a_plan_nothing_is_on(void **state)
{
    (void)state;
    assert_int_equal(ls_inject_open(NULL), LS_OK);
    assert_false(ls_inject_on);
    assert_int_equal(ls_inject_open(""), LS_OK);
    assert_false(ls_inject_on);
}

/* The signal that ends a child which runs through three steps; 0: it ends by itself. */
static int fate(const char *plan, int rank)
{
    const pid_t child = fork();
    if (!child) {
        if (ls_inject_open(plan) != LS_OK || ls_inject_worker(rank) != LS_OK) _exit(9);
        for (int step = 1; step <= 3; step++) {
            ls_inject_step(step);
            ls_inject_phase(LS_FAULT_FORWARD);
            ls_inject_phase(LS_FAULT_BACKWARD);
            ls_inject_phase(LS_FAULT_UPDATE);
        }
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    if (WIFSTOPPED(status)) {
        const int s = WSTOPSIG(status);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return s;
    }
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void a_process_fault_ends_the_rank_that_it_names(void **state)
{
    (void)state;
    assert_int_equal(fate("kind=kill,rank=1,step=2", 1), SIGKILL);
    assert_int_equal(fate("kind=kill,rank=1,step=2", 0), 0);
    assert_int_equal(fate("kind=kill,rank=1,step=4", 1), 0);
    assert_int_equal(fate("kind=stop,rank=0,step=3,phase=update", 0), SIGSTOP);
    assert_int_equal(fate("kind=abort,rank=2,phase=backward", 2), SIGABRT);
    assert_int_equal(fate("kind=exit,rank=2;kind=kill,rank=1", 2), 4);
    assert_int_equal(fate("kind=exit,rank=2,code=7", 2), 7);
    assert_int_equal(fate("kind=term,rank=0,step=2", 0), SIGTERM);
    assert_int_equal(fate("kind=kill,rank=0,step=2,phase=validate", 0), 0);
}

static void a_fault_happens_in_its_attempt_alone(void **state)
{
    (void)state;
    setenv("LOCKSTEP_ATTEMPT", "2", 1);
    assert_int_equal(fate("kind=kill,rank=0,step=1", 0), 0);
    assert_int_equal(fate("kind=kill,rank=0,step=1,attempt=2", 0), SIGKILL);
    assert_int_equal(fate("kind=kill,rank=0,step=1,attempt=0", 0), SIGKILL);
    setenv("LOCKSTEP_ATTEMPT", "two", 1);
    assert_int_equal(ls_inject_open("kind=kill"), LS_OK);
    assert_int_equal(ls_inject_worker(0), LS_E_CONFIG);
}

static void writes_and_syncs_of_the_named_file_fail(void **state)
{
    (void)state;
    char *dir = test_dir();
    const char *file = test_path(dir, "model.safetensors", NULL), *other = test_path(dir, "other.json", NULL);
    begin("kind=enospc,rank=0,step=2;kind=fsync,rank=0,step=2,count=2,path=other", 0, 1);
    assert_int_equal(ls_fs_write(file, "x", 1), LS_OK); /* not yet */
    ls_inject_step(2);
    assert_int_equal(ls_fs_write(file, "yy", 2), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), strerror(ENOSPC)));
    assert_int_equal(ls_fs_write(file, "yy", 2), LS_OK); /* once */
    assert_int_equal(ls_fs_write(other, "z", 1), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), "cannot sync"));
    assert_int_equal(ls_fs_write(other, "z", 1), LS_E_IO);
    assert_int_equal(ls_fs_write(other, "z", 1), LS_OK); /* twice */
    test_dir_close(dir);
}

static void a_supervisor_cannot_read_the_named_file(void **state)
{
    (void)state;
    char *dir = test_dir(), *text = NULL;
    const char *file = test_path(dir, "model.safetensors", NULL);
    size_t n;
    ls_fs_map map;
    assert_int_equal(ls_fs_write(file, "x", 1), LS_OK);
    assert_int_equal(ls_inject_open("kind=read,rank=-1,count=2;kind=enospc,rank=0"), LS_OK); /* without a rank */
    assert_int_equal(ls_fs_read(file, &text, &n), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), strerror(EIO)));
    assert_int_equal(ls_fs_map_open(&map, file), LS_E_IO);
    assert_non_null(strstr(ls_err_words(), strerror(EIO)));
    assert_int_equal(ls_fs_read(file, &text, &n), LS_OK); /* twice */
    ls_free(text);
    begin("kind=read,rank=-1", 0, 1);
    assert_int_equal(ls_fs_read(file, &text, &n), LS_OK); /* a worker can */
    ls_free(text);
    test_dir_close(dir);
}

static void a_flip_changes_one_bit_of_one_element(void **state)
{
    (void)state;
    float x[4] = {1, 2, 3, 4}, want[4] = {1, 2, 3, 4};
    uint32_t word;
    begin("kind=flip,rank=3,step=7,tensor=grad,unit=2,element=5,bit=31", 3, 7);
    assert_true(ls_inject_flips(LS_FLIP_GRAD));
    assert_false(ls_inject_flips(LS_FLIP_ACT));
    ls_inject_flip(LS_FLIP_PARAM, 2, x, 4, sizeof *x);
    ls_inject_flip(LS_FLIP_GRAD, 1, x, 4, sizeof *x);
    assert_memory_equal(x, want, sizeof x);
    ls_inject_flip(LS_FLIP_GRAD, 2, x, 4, sizeof *x); /* element 5 of 4: number 1 */
    memcpy(&word, &want[1], sizeof word);
    word ^= (uint32_t)1 << 31;
    memcpy(&want[1], &word, sizeof word);
    assert_memory_equal(x, want, sizeof x);
    ls_inject_flip(LS_FLIP_GRAD, 2, x, 4, sizeof *x); /* once */
    assert_memory_equal(x, want, sizeof x);
}

static void a_sum_has_two_places(void **state)
{
    (void)state;
    static const struct {
        const char *plan;
        ls_flip_of of;
    } row[] = {{"kind=flip,tensor=sum", LS_FLIP_SUM},
               {"kind=flip,tensor=sum,phase=update", LS_FLIP_SUM},
               {"kind=flip,phase=backward,tensor=sum", LS_FLIP_TREE}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        begin(row[i].plan, 0, 1);
        assert_int_equal(ls_inject_flips(LS_FLIP_SUM), row[i].of == LS_FLIP_SUM);
        assert_int_equal(ls_inject_flips(LS_FLIP_TREE), row[i].of == LS_FLIP_TREE);
    }
}

static void allocations_fail_and_the_clock_jumps(void **state)
{
    (void)state;
    struct timespec before, after;
    const double start = ls_now();
    begin("kind=oom;kind=clock,seconds=-3600,phase=update", 0, 1);
    ls_inject_phase(LS_FAULT_FORWARD);
    assert_null(ls_alloc(8));
    void *p = ls_alloc(8);
    assert_non_null(p);
    ls_free(p);
    ls_wall(&before);
    ls_inject_phase(LS_FAULT_UPDATE);
    ls_wall(&after);
    assert_in_range(before.tv_sec - after.tv_sec, 3590, 3600);
    assert_true(ls_now() - start < 60); /* the monotonic clock does not jump */
}

static void the_log_has_one_line_per_fault(void **state)
{
    (void)state;
    char *dir = test_dir(), *text = NULL;
    size_t n = 0;
    const char *log = test_path(dir, "faults", NULL);
    setenv("LOCKSTEP_FAULT_LOG", log, 1);
    begin("kind=kill,rank=9;kind=slow,rank=1,step=4,seconds=0.001", 1, 4);
    ls_inject_phase(LS_FAULT_FORWARD);
    ls_inject_phase(LS_FAULT_FORWARD);
    assert_int_equal(ls_fs_read(log, &text, &n), LS_OK);
    assert_non_null(strstr(text, " 1 slow rank 1 step 4\n"));
    assert_ptr_equal(strchr(text, '\n') + 1, text + n);
    ls_free(text);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_malformed_plan_is_refused, tear_down),
        cmocka_unit_test_teardown(without_a_plan_nothing_is_on, tear_down),
        cmocka_unit_test_teardown(a_process_fault_ends_the_rank_that_it_names, tear_down),
        cmocka_unit_test_teardown(a_fault_happens_in_its_attempt_alone, tear_down),
        cmocka_unit_test_teardown(writes_and_syncs_of_the_named_file_fail, tear_down),
        cmocka_unit_test_teardown(a_supervisor_cannot_read_the_named_file, tear_down),
        cmocka_unit_test_teardown(a_flip_changes_one_bit_of_one_element, tear_down),
        cmocka_unit_test_teardown(a_sum_has_two_places, tear_down),
        cmocka_unit_test_teardown(allocations_fail_and_the_clock_jumps, tear_down),
        cmocka_unit_test_teardown(the_log_has_one_line_per_fault, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
