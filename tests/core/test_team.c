/* The threads of parallel regions (core/team.c): who computes what, however many there are, in threads that come and go, and after fork. */
#include "cmocka_all.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 5 };

/* Each thread of a region of n writes before a barrier what its neighbour reads after it. */
static void check_region(int n)
{
    int id[MOST] = {0}, seen[MOST] = {0};
    atomic_int in_order = 0;
#pragma omp parallel num_threads(n)
    {
        const int k = omp_get_thread_num();
        if (omp_get_num_threads() == n) atomic_fetch_add(&in_order, 1);
        id[k] = k + 1;
#pragma omp barrier
        seen[k] = id[(k + 1) % n];
#pragma omp barrier
        id[k] = 0;
    }
    assert_int_equal(in_order, n);
    for (int k = 0; k < n; k++) assert_int_equal(seen[k], (k + 1) % n + 1);
}

static void check_sizes(void)
{
    for (int i = 0; i < 400; i++) check_region(1 + i * 7 % MOST);
}

static void *of_a_thread(void *ok)
{
    check_sizes();
    *(bool *)ok = true;
    return NULL;
}

static int n_threads(void)
{
    int n = 0;
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) (void)sscanf(line, "Threads: %d", &n);
    fclose(f);
    return n;
}

static void regions_of_any_size(void **state)
{
    (void)state;
    check_sizes();
}

static void a_region_in_a_region_has_one_thread(void **state)
{
    (void)state;
    atomic_int outer = 0, inner = 0;
#pragma omp parallel num_threads(2)
    {
        atomic_fetch_add(&outer, 1);
#pragma omp parallel num_threads(2)
        if (omp_get_num_threads() == 1) atomic_fetch_add(&inner, 1);
    }
    assert_int_equal(outer, 2);
    assert_int_equal(inner, 2);
    check_region(2);
}

static void threads_have_teams_that_end_with_them(void **state)
{
    (void)state;
    check_sizes();
    const int before = n_threads();
    pthread_t t[3];
    bool ok[3] = {0};
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, of_a_thread, &ok[i]), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
    for (int i = 0; i < 3; i++) assert_true(ok[i]);
    for (int i = 0; i < 1000 && n_threads() > before; i++) usleep(1000); /* the last of them are ending */
    assert_int_equal(n_threads(), before);
}

static void a_child_has_a_team_of_its_own(void **state)
{
    (void)state;
    check_sizes();
    int status = -1;
    const pid_t pid = fork();
    if (!pid) {
        check_sizes();
        _exit(n_threads() == MOST ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    check_sizes();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_of_any_size),
        cmocka_unit_test(a_region_in_a_region_has_one_thread),
        cmocka_unit_test(threads_have_teams_that_end_with_them),
        cmocka_unit_test(a_child_has_a_team_of_its_own),
    };
    unsetenv("OMP_WAIT_POLICY"); /* else the library does it all */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
