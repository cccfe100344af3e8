/* test_cores.c - each computing thread of a worker is pinned to one core; its other threads may use all cores of the worker. A process without
 * cores of its own is not pinned. */
#include "compute/compute.h"
#include "core/cores.h"
#include "cmocka_all.h"
#include "test_folder.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static cpu_set_t mine(void)
{
    cpu_set_t s;
    CPU_ZERO(&s);
    assert_int_equal(sched_getaffinity(0, sizeof s, &s), 0);
    return s;
}

/* A process cannot give its cores back, so each test runs in a child process. The body returns what is wrong, or NULL. */
static void in_child(const char *(*body)(void))
{
    int pipe_fd[2], status;
    char text[200] = "";
    assert_int_equal(pipe(pipe_fd), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const char *wrong = body();
        if (wrong) (void)!write(pipe_fd[1], wrong, strlen(wrong));
        _exit(wrong ? 1 : 0);
    }
    close(pipe_fd[1]);
    const ssize_t n = read(pipe_fd[0], text, sizeof text - 1);
    close(pipe_fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (n > 0 || !WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("%s (status %d)", text, status);
}

static const char *nothing_owned(void)
{
    const cpu_set_t before = mine();
    ls_cores_keep(0);
    ls_cores_roam();
    const cpu_set_t after = mine();
    if (!CPU_EQUAL(&before, &after)) return "a process without cores of its own was pinned";
    if (ls_cores_owned()) return "it reports that it owns some";
    return ls_cores_usable() == CPU_COUNT(&before) ? NULL : "usable cores are miscounted";
}

static void *look(void *arg)
{
    ls_cores_roam();
    ls_cores_prompt();
    *(cpu_set_t *)arg = mine();
    return NULL;
}

static const char *one_each(void)
{
    const cpu_set_t all = mine();
    const int n = CPU_COUNT(&all);
    cpu_set_t at[64], lane, sum;
    pthread_t thread;
    ls_compute c;
    if (n > 64) return NULL;
    ls_cores_own(0, n);
    if (!ls_cores_owned() || ls_cores_usable() != n) return "the cores that it was given are not its own";
    if (ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 0) != LS_OK) return "no backend";
    if (c.n_thread != n) return "threads by default are not as many as its cores";
    CPU_ZERO(&sum);
#pragma omp parallel num_threads(n)
    at[omp_get_thread_num()] = mine();
    for (int i = 0; i < n; i++) {
        if (CPU_COUNT(&at[i]) != 1) return "a computing thread may use more than one core";
        CPU_OR(&sum, &sum, &at[i]);
    }
    if (!CPU_EQUAL(&sum, &all)) return "two computing threads share a core";
    if (ls_cores_usable() != n) return "a thread that keeps its core counts only that";
    if (pthread_create(&thread, NULL, look, &lane) || pthread_join(thread, NULL)) return "no thread";
    if (!CPU_EQUAL(&lane, &all))
        return "a thread that computes nothing is pinned to the core of the thread that created it";
    return NULL;
}

static const char *more_threads_than_cores(void)
{
    cpu_set_t at[2];
    ls_compute c;
    ls_cores_own(0, 1);
    if (ls_compute_open(&c, "cpu", &(ls_compute_open_opts){.dtype = LS_F32}, 2) != LS_OK) return "no backend";
#pragma omp parallel num_threads(2)
    at[omp_get_thread_num()] = mine();
    if (CPU_COUNT(&at[0]) != 1 || !CPU_EQUAL(&at[0], &at[1])) return "they do not share the one core";
    return NULL;
}

static const char *a_part(void)
{
    const cpu_set_t all = mine();
    const int n = CPU_COUNT(&all);
    if (n < 2) return NULL;
    ls_cores_own(1, n);
    const cpu_set_t part = mine();
    cpu_set_t first;
    if (CPU_COUNT(&part) != n - 1) return "the part has another size";
    CPU_XOR(&first, &all, &part);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) return CPU_ISSET(cpu, &first) ? NULL : "the first core belongs to another worker";
    return NULL;
}

static void a_process_without_own_cores_is_not_pinned(void **state)
{
    (void)state;
    in_child(nothing_owned);
}

static void each_computing_thread_keeps_one_core(void **state)
{
    (void)state;
    in_child(one_each);
}

static void two_threads_share_the_only_core(void **state)
{
    (void)state;
    in_child(more_threads_than_cores);
}

static void a_worker_gets_its_part_of_the_cores(void **state)
{
    (void)state;
    in_child(a_part);
}

/* ---- machines that are described in files ---- */

/* `cores` physical cores on `nodes` nodes with `threads` hardware threads each. adjacent: the threads of a core have adjacent numbers, else the
 * first threads of all cores come first. */
static void describe(const char *folder, int nodes, int cores, int threads, bool adjacent)
{
    char path[128], list[512] = "";
    for (int c = 0; c < cores; c++) {
        int n = 0;
        for (int t = 0; t < threads; t++)
            n += snprintf(list + n, sizeof list - (size_t)n, "%s%d", t ? "," : "",
                          adjacent ? c * threads + t : t * cores + c);
        snprintf(list + n, sizeof list - (size_t)n, "\n");
        for (int t = 0; t < threads; t++) {
            snprintf(path, sizeof path, "devices/system/cpu/cpu%d/topology/thread_siblings_list",
                     adjacent ? c * threads + t : t * cores + c);
            test_write(folder, path, list);
        }
    }
    snprintf(list, sizeof list, "0-%d\n", nodes - 1);
    test_write(folder, "devices/system/node/online", list);
    for (int k = 0; k < nodes; k++) {
        const int each = cores / nodes;
        snprintf(path, sizeof path, "devices/system/node/node%d/cpulist", k);
        if (adjacent) snprintf(list, sizeof list, "%d-%d\n", k * each * threads, (k + 1) * each * threads - 1);
        else if (threads == 1) snprintf(list, sizeof list, "%d-%d\n", k * each, (k + 1) * each - 1);
        else
            snprintf(list, sizeof list, "%d-%d,%d-%d\n", k * each, (k + 1) * each - 1, cores + k * each,
                     cores + (k + 1) * each - 1);
        test_write(folder, path, list);
    }
}

static void expect_order(const char *root, bool apart, int n, const int *in, const int *want)
{
    int cpu[32];
    memcpy(cpu, in, (size_t)n * sizeof *cpu);
    if (apart) ls_cores_apart(root, n, cpu);
    else ls_cores_order(root, n, cpu);
    for (int i = 0; i < n; i++)
        if (cpu[i] != want[i]) fail_msg("place %d has CPU %d, not %d", i, cpu[i], want[i]);
}

static void parts_of_the_cores_are_whole_physical_cores_of_one_node(void **state)
{
    (void)state;
    static const int all[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    char *folder = test_dir();
    describe(folder, 2, 8, 2, false); /* CPU i and i + 8 are one core; cores 0 to 3 are node 0 */
    expect_order(folder, false, 16, all, (int[]){0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15});
    /* two threads of a worker with two cores: one on each */
    expect_order(folder, true, 4, (int[]){0, 8, 1, 9}, (int[]){0, 1, 8, 9});
    /* a process that may use some CPUs only */
    expect_order(folder, false, 5, (int[]){1, 4, 6, 9, 12}, (int[]){1, 9, 4, 12, 6});
    test_dir_close(folder);

    folder = test_dir();
    describe(folder, 2, 8, 2, true); /* CPU 2i and 2i + 1 are one core */
    expect_order(folder, false, 16, all, all);
    expect_order(folder, true, 4, (int[]){4, 5, 6, 7}, (int[]){4, 6, 5, 7});
    test_dir_close(folder);

    folder = test_dir();
    describe(folder, 1, 16, 1, false);
    test_write(folder, "devices/system/node/online", "0-1,5\n");
    test_write(folder, "devices/system/node/node0/cpulist", "0,2,4,6,8,10,12,14\n"); /* nodes in turns */
    test_write(folder, "devices/system/node/node1/cpulist", "1,3,5,7,9,11,13,15\n");
    test_write(folder, "devices/system/node/node5/cpulist", "\n"); /* memory without CPUs */
    expect_order(folder, false, 16, all, (int[]){0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15});
    test_dir_close(folder);

    /* files that are missing, or that have something else: the numbers of the CPUs */
    expect_order("/nowhere", false, 16, all, all);
    expect_order("/nowhere", true, 16, all, all);
    folder = test_dir();
    test_write(folder, "devices/system/node/online", "all of them\n");
    test_write(folder, "devices/system/cpu/cpu3/topology/thread_siblings_list", "-1,99999999999999999999\n");
    expect_order(folder, true, 16, all, all);
    test_dir_close(folder);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *work_on_a_core(void *cpu)
{
    ls_cores_stay(*(int *)cpu);
    for (const double end = seconds() + 0.4; seconds() < end;) {}
    return NULL;
}

/* Two threads that share a core: one of them always waits. */
static const char *share_a_core(void)
{
    int cpu = sched_getcpu();
    pthread_t other;
    const double before = ls_cores_waited();
    if (before < 0) return NULL; /* not counted here */
    if (pthread_create(&other, NULL, work_on_a_core, &cpu)) return "no thread";
    (void)work_on_a_core(&cpu);
    const double waited = ls_cores_waited() - before; /* the other one may have ended, and is not counted then */
    (void)pthread_join(other, NULL);
    return waited > 0.05 ? NULL : "two threads on one core did not wait for it";
}

static void waiting_for_a_core_is_counted(void **state)
{
    (void)state;
    in_child(share_a_core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_of_the_cores_are_whole_physical_cores_of_one_node),
                                       cmocka_unit_test(a_process_without_own_cores_is_not_pinned),
                                       cmocka_unit_test(each_computing_thread_keeps_one_core),
                                       cmocka_unit_test(two_threads_share_the_only_core),
                                       cmocka_unit_test(a_worker_gets_its_part_of_the_cores),
                                       cmocka_unit_test(waiting_for_a_core_is_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
