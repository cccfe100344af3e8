/* planner_presets.c - machines that need not be measured to be planned for.
 *
 * Memory, bandwidths and link speeds are the makers' data sheets. `matmul` is what GPT-2 training in 16 bit reaches, not the data
 * sheet's peak (in brackets):
 *
 *            matmul TFLOP/s   memory GB/s   link GB/s            source
 *   v100     25.7  (125)       900           36.7 NVLink 2       fitted: below
 *   a100     140   (312)      2039          230   NVLink 3       45 % of peak, as published GPT-2 runs reach
 *   h100     400   (989)      3350          360   NVLink 4       40 % of peak, likewise
 *   h200     400   (989)      4800          360   NVLink 4       the h100's products, more and faster memory
 *
 * v100 is fitted on a published run of one node of V100-SXM2-16GB (GPT-2 small with its own head, sequences of 512, 16 a step, fp16,
 * ZeRO-1 on 2 and more): matmul so that the row of 1 GPU (29600.05 tokens/s) comes out, the link so that the row of 2 (57289.31) does.
 * The row of 4 (100791.44) is then predicted; tests/unit/test_planner.c holds it to 10 %.
 *
 * Bytes that are planned are this program's, in fp32: a GPU backend with 16-bit activations would need less. */
#include "bench/cluster_file.h"

#include <stdio.h>
#include <string.h>

const char ls_cluster_presets[] = "v100, a100, h100, h200";

#define GB (1000.0 * 1000 * 1000)

static const ls_cluster preset[] = {
    {.name = "v100",
     .source =
         "V100-SXM2-16GB, 4 a node, NVLink 2, InfiniBand 100 Gb/s; products and link fitted on a published GPT-2 run",
     .hosts = 1,
     .devices = 4,
     .memory = 16LL << 30,
     .matmul = 25.7e12,
     .bandwidth = 900 * GB,
     .inside = {15e-6, 36.7 * GB},
     .between = {25e-6, 10 * GB}},
    {.name = "a100",
     .source = "A100-SXM4-80GB, 8 a node, NVLink 3, InfiniBand 200 Gb/s a GPU; data sheet, products at 45 % of peak",
     .hosts = 1,
     .devices = 8,
     .memory = 80LL << 30,
     .matmul = 140e12,
     .bandwidth = 2039 * GB,
     .inside = {12e-6, 230 * GB},
     .between = {20e-6, 22 * GB}},
    {.name = "h100",
     .source = "H100-SXM5-80GB, 8 a node, NVLink 4, InfiniBand 400 Gb/s a GPU; data sheet, products at 40 % of peak",
     .hosts = 1,
     .devices = 8,
     .memory = 80LL << 30,
     .matmul = 400e12,
     .bandwidth = 3350 * GB,
     .inside = {10e-6, 360 * GB},
     .between = {18e-6, 45 * GB}},
    {.name = "h200",
     .source = "H200-SXM5-141GB, 8 a node, NVLink 4, InfiniBand 400 Gb/s a GPU; data sheet, products at 40 % of peak",
     .hosts = 1,
     .devices = 8,
     .memory = 141LL * 1000 * 1000 * 1000,
     .matmul = 400e12,
     .bandwidth = 4800 * GB,
     .inside = {10e-6, 360 * GB},
     .between = {18e-6, 45 * GB}},
};

bool ls_cluster_preset(const char *name, ls_cluster *out)
{
    for (size_t i = 0; i < sizeof preset / sizeof preset[0]; i++) {
        if (strcmp(name, preset[i].name)) continue;
        *out = preset[i];
        out->wire_bytes = 2;                /* 16-bit gradients and parameters travel */
        out->update_bytes = 2 + 2 + 2 * 12; /* gradient, new parameter, master copy and moments in and out */
        out->unit_overhead = 20e-6;
        out->overlap = 0.9;
        return true;
    }
    return false;
}
