/* cmd_bench.c - `lockstep bench`: the benchmarks, one file each (bench_*.c). */
#include "cli/bench_impl.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *help;
    ls_status (*run)(int argc, char **argv);
} benches[] = {
    {"scaling", "measure speed-up, efficiency and lost time on 1, 2, 4 ... workers", cli_bench_scaling},
    {"strategies", "compare all layouts on the same work by six metrics", cli_bench_strategies},
    {"ab", "compare two settings, run in turns, and explain the difference", cli_bench_ab},
    {"comm", "time collectives by size (algbw and busbw, as nccl-tests)", cli_bench_comm},
    {"gemm", "time the matrix products of a training step, own kernels and CBLAS", cli_bench_gemm},
};
enum { N_BENCH = sizeof benches / sizeof benches[0] };

ls_status cmd_bench(int argc, char **argv)
{
    const char *names[N_BENCH];
    for (int i = 0; i < N_BENCH; i++) {
        names[i] = benches[i].name;
        if (argc && !strcmp(argv[0], benches[i].name)) return benches[i].run(argc - 1, argv + 1);
    }
    if (argc && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
        printf("usage: lockstep bench NAME [OPTIONS]\n\nRun a benchmark. Every benchmark has its own --help.\n\n");
        for (int i = 0; i < N_BENCH; i++) printf("  %-11s %s\n", benches[i].name, benches[i].help);
        return LS_OK;
    }
    const char *near = argc ? ls_nearest_word(argv[0], names, N_BENCH) : NULL;
    if (!argc) return ls_fail(LS_E_ARG, "bench needs one of: scaling, strategies, ab, comm, gemm (each has --help)");
    return ls_fail(LS_E_ARG, "unknown benchmark '%s'%s%s%s (benchmarks: scaling, strategies, ab, comm, gemm)", argv[0],
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}
