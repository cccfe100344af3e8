/* busy_neighbour.c - two threads that compute matrix products of the size of training's, for busy_neighbour.py.
 *
 *   busy_neighbour sleep SECONDS   threads sleep at barriers (pthread_barrier); prints products per second
 *   busy_neighbour spin SECONDS    threads read in a loop at barriers, as many programs do: the neighbour
 *
 * cc -O3 -march=native -pthread busy_neighbour.c -o busy_neighbour */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { M = 64, K = 192, N = 192, THREADS = 2 };

static float A[M * K], B[K * N], C[M * N];
static pthread_barrier_t sleeping;
static atomic_int arrived, turn, ended;
static bool spins;
static double end;
static long done;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void meet(void)
{
    if (!spins) {
        pthread_barrier_wait(&sleeping);
        return;
    }
    const int mine = atomic_load(&turn);
    if (atomic_fetch_add(&arrived, 1) == THREADS - 1) {
        atomic_store(&arrived, 0);
        atomic_fetch_add(&turn, 1);
    }
    while (atomic_load(&turn) == mine) {}
}

static void rows(int first, int last)
{
    for (int i = first; i < last; i += 4)
        for (int k = 0; k < K; k++)
            for (int r = i; r < i + 4; r++) {
                const float a = A[r * K + k];
                for (int j = 0; j < N; j++) C[r * N + j] += a * B[k * N + j];
            }
}

static void *work(void *id)
{
    const int t = *(int *)id;
    while (!atomic_load(&ended)) {
        rows(M / THREADS * t, M / THREADS * (t + 1));
        meet();
        if (!t) done++;
        if (!t && now() > end) atomic_store(&ended, 1);
        meet();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static int id[THREADS] = {0, 1};
    pthread_t other;
    if (argc != 3 || (strcmp(argv[1], "spin") != 0 && strcmp(argv[1], "sleep") != 0)) {
        fprintf(stderr, "usage: busy_neighbour sleep|spin SECONDS\n");
        return 2;
    }
    spins = !strcmp(argv[1], "spin");
    const double begin = now();
    end = begin + strtod(argv[2], NULL);
    for (int i = 0; i < M * K; i++) A[i] = (float)(i % 7) * 1e-3f;
    for (int i = 0; i < K * N; i++) B[i] = (float)(i % 5) * 1e-3f;
    pthread_barrier_init(&sleeping, NULL, THREADS);
    if (pthread_create(&other, NULL, work, &id[1])) return 4;
    work(&id[0]);
    pthread_join(other, NULL);
    printf("%.2f\n", (double)done / (now() - begin));
    return C[0] < 0;
}
