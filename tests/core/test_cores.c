/* test_cores.c - each computing thread of a worker is pinned to one core; its other threads may use all cores of the worker. A process without
 * cores of its own is not pinned. */
#include "compute/compute.h"
#include "core/cores.h"
#include "cmocka_all.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_process_without_own_cores_is_not_pinned),
                                       cmocka_unit_test(each_computing_thread_keeps_one_core),
                                       cmocka_unit_test(two_threads_share_the_only_core),
                                       cmocka_unit_test(a_worker_gets_its_part_of_the_cores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
