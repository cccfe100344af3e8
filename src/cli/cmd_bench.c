/* cmd_bench.c - `lockstep bench`: the benchmarks, one file each (bench_*.c). */
#include "cli/bench_impl.h"

static const cli_command benches[] = {
    {"scaling", "measure speed-up, efficiency and lost time on 1, 2, 4 ... workers", cli_bench_scaling},
    {"strategies", "compare all layouts on the same work by six metrics", cli_bench_strategies},
    {"ab", "compare two settings, run in turns, and explain the difference", cli_bench_ab},
    {"comm", "time collectives by size (algbw and busbw, as nccl-tests)", cli_bench_comm},
    {"gemm", "time the matrix products of a training step, own kernels and CBLAS", cli_bench_gemm},
    {"r3", "translation: data parallel, and pipeline versus model parallel", cli_bench_r3},
};

ls_status cmd_bench(int argc, char **argv)
{
    static const cli_group group = {.usage = "bench NAME [OPTIONS]",
                                    .what = "benchmark",
                                    .text = "Run a benchmark. Every benchmark has its own --help.",
                                    .table = benches,
                                    .n = CLI_COUNT(benches)};
    return cli_run_group(&group, argc, argv);
}
