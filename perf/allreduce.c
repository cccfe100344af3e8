/* allreduce.c - times an all-reduce of one large float buffer: lockstep over shared memory or, built with -DUSE_MPI, MPI_Allreduce.
 *
 *   allreduce [--workers N] [--mib M] [--rounds R]                      ours; M MiB of floats [476.84: 500 MB], R timed calls [5]
 *   mpicc -O2 -DUSE_MPI perf/allreduce.c -o allreduce_mpi && mpirun -n N ./allreduce_mpi --mib M --rounds R
 *
 * Both fill the buffer of worker r with its own values, call once untimed, then R times with a barrier before each call; the
 * time of a call is that of the slowest worker. After each call about 4096 elements are checked. Prints one JSON line: seconds
 * of each call and the bus bandwidth of the median call as in nccl-tests: 2(N-1)/N x bytes / seconds.
 * perf/allreduce_vs_mpi.py runs both alternately. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROUND 1000

typedef struct job {
    int workers, rounds;
    int64_t n; /* floats */
} job;

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int options(int argc, char **argv, job *j)
{
    double mib = 500e6 / 1048576;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) return 0;
        if (!strcmp(argv[i], "--workers")) j->workers = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--mib")) mib = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--rounds")) j->rounds = atoi(argv[i + 1]);
        else return 0;
    }
    j->n = (int64_t)(mib * 1048576 / sizeof(float));
    return j->workers > 0 && j->rounds > 0 && j->rounds <= MAX_ROUND && j->n > 0;
}

/* Small whole numbers: their sums are exact in any order. */
static float value(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 13) % 1021);
}

static void fill(float *x, int64_t n, int rank)
{
    for (int64_t i = 0; i < n; i++) x[i] = value(rank, i);
}

/* Elements that are not the sum over workers, of about 4096 looked at. */
static int wrong(const float *x, int64_t n, int workers)
{
    const int64_t step = n / 4096 ? n / 4096 : 1;
    int bad = 0;
    for (int64_t i = 0; i < n; i += step) {
        float sum = 0;
        for (int r = 0; r < workers; r++) sum += value(r, i);
        bad += x[i] != sum;
    }
    return bad;
}

static void report(const char *who, const job *j, double *took)
{
    printf("{\"who\": \"%s\", \"workers\": %d, \"bytes\": %lld, \"seconds\": [", who, j->workers, (long long)j->n * 4);
    for (int i = 0; i < j->rounds; i++) printf("%s%.6f", i ? ", " : "", took[i]);
    qsort(took, (size_t)j->rounds, sizeof *took, by_size);
    const double mid = took[j->rounds / 2], bus = 2.0 * (j->workers - 1) / j->workers * (double)j->n * 4 / mid;
    printf("], \"median\": %.6f, \"busbw_bytes_per_sec\": %.6g}\n", mid, bus);
}

#ifdef USE_MPI
#include <mpi.h>

int main(int argc, char **argv)
{
    job j = {.workers = 1, .rounds = 5};
    int rank = 0, bad = 0;
    static double took[MAX_ROUND], mine[MAX_ROUND];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &j.workers);
    const int size = j.workers;
    if (!options(argc, argv, &j)) return fprintf(stderr, "allreduce: see the head of perf/allreduce.c\n"), 2;
    j.workers = size;
    float *x = malloc((size_t)j.n * sizeof *x);
    if (!x) return fprintf(stderr, "allreduce: no memory\n"), 5;
    for (int k = -1; k < j.rounds; k++) {
        fill(x, j.n, rank);
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, x, (int)j.n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (k >= 0) mine[k] = MPI_Wtime() - begin;
        bad += wrong(x, j.n, size);
    }
    MPI_Reduce(mine, took, j.rounds, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!rank && !bad) report("MPI_Allreduce", &j, took);
    free(x);
    MPI_Finalize();
    return bad ? 1 : 0;
}
#else
#include "comm/launch.h"
#include "core/clock.h"

static ls_status work(void *ctx, ls_comm *c, int n_core)
{
    const job *j = ctx;
    const int rank = ls_comm_rank(c);
    static double mine[MAX_ROUND], all[64];
    (void)n_core;
    float *x = ls_comm_alloc(c, (size_t)j->n * sizeof *x);
    if (!x) return ls_fail(LS_E_NOMEM, "%lld floats of shared memory", (long long)j->n);
    const ls_view v = {x, j->n, LS_F32};
    int bad = 0, worst = 0;
    for (int k = -1; k < j->rounds; k++) {
        fill(x, j->n, rank);
        LS_TRY(ls_barrier(c, LS_SITE));
        const double begin = ls_now();
        LS_TRY(ls_all_reduce(c, v, LS_SITE, NULL));
        double took = ls_now() - begin;
        bad += wrong(x, j->n, j->workers);
        LS_TRY(ls_all_gather(c, (ls_view){all, j->workers, LS_F64}, (ls_view){&took, 1, LS_F64}, LS_SITE, NULL));
        for (int r = 0; r < j->workers && k >= 0; r++) mine[k] = mine[k] > all[r] ? mine[k] : all[r];
    }
    LS_TRY(ls_agree(c, bad, LS_SITE, &worst));
    if (worst) return ls_fail(LS_E_COMM, "%d wrong sums", worst);
    if (!rank) report("local", j, mine);
    return LS_OK;
}

static void speak(void *ctx, int rank, ls_status st)
{
    (void)ctx;
    if (st != LS_OK) fprintf(stderr, "allreduce: rank %d: %s\n%s", rank, ls_err_words(), ls_err_trail());
}

int main(int argc, char **argv)
{
    job j = {.workers = 2, .rounds = 5};
    if (!options(argc, argv, &j)) return fprintf(stderr, "allreduce: see the head of perf/allreduce.c\n"), 2;
    const ls_status st =
        ls_launch_local(&(ls_launch){.n = j.workers, .pin = true, .body = work, .report = speak, .ctx = &j});
    return ls_status_exit_code(st);
}
#endif
