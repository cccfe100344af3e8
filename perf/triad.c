/* triad.c - memory bandwidth: the STREAM triad a[i] = b[i] + s * c[i] over arrays larger than the caches.
 *
 *   triad [--threads K] [--seconds S] [--mib M]      three arrays of M MiB each [128]; prints one JSON line
 *
 * Counts three transfers per element, as STREAM does (without the read of a cache line before a store). The rate is that of the
 * median pass. perf/workers_vs_torch.py runs several at once to find the limit for workers that share a machine. */
#include "core/clock.h"
#include "core/mem.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PASS 4096

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int threads = omp_get_max_threads();
    double limit = 2;
    long mib = 128;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--threads")) threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seconds")) limit = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--mib")) mib = atol(argv[i + 1]);
        else return fprintf(stderr, "usage: triad [--threads K] [--seconds S] [--mib M]\n"), 2;
    }
    omp_set_num_threads(threads);
    const long n = mib * (1 << 20) / (long)sizeof(double);
    double *a = ls_alloc((size_t)n * sizeof *a), *b = ls_alloc((size_t)n * sizeof *b),
           *c = ls_alloc((size_t)n * sizeof *c);
    static double took[MAX_PASS];
    if (n < 1 || !a || !b || !c) return fprintf(stderr, "triad: no memory for 3 x %ld MiB\n", mib), 5;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) a[i] = 0, b[i] = 1, c[i] = 2; /* pages go where their threads are */
    int pass = 0;
    for (const double begin = ls_now(); pass < MAX_PASS && (pass < 3 || ls_now() - begin < limit); pass++) {
        const double t = ls_now(), s = 3 + pass;
#pragma omp parallel for schedule(static)
        for (long i = 0; i < n; i++) a[i] = b[i] + s * c[i];
        took[pass] = ls_now() - t;
    }
    const double last = a[n / 2];
    qsort(took, (size_t)pass, sizeof *took, by_size);
    printf("{\"threads\": %d, \"mib\": %ld, \"passes\": %d, \"bytes_per_s\": %.6g, \"best_bytes_per_s\": %.6g}\n",
           threads, mib, pass, 3.0 * (double)n * sizeof *a / took[pass / 2], 3.0 * (double)n * sizeof *a / took[0]);
    ls_free(a);
    ls_free(b);
    ls_free(c);
    return last == 1 + 2 * (3.0 + pass - 1) ? 0 : 1;
}
