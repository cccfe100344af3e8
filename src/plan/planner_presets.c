/* planner_presets.c - data of GPUs, to plan for them without a measurement. docs/PLAN.md has the source of each number.
 *
 * memory: totalGlobalMem as drivers report it, which is less than the number in the name of a GPU (ECC and the driver take a part).
 *
 * ramp: a tile of 128 x 256 has 65536 operations for each element of the inner dimension, and a multiprocessor does rate / multiprocessors
 * of them per second; ramp is a quarter of that time, fitted on runs of 16 x 512 and 4 x 4 x 512 on an H200. */
#include "plan/cluster_file.h"

#include <string.h>
#include <strings.h>

const char ls_cluster_presets[] = "v100, a100, h100, h200, b200";

#define GB                    1e9
#define GIB(x)                ((int64_t)((x) * (double)(1 << 30)))
#define TERA                  1e12
#define HOST_SHARE            (90 * GB) /* of one GPU of a host: what an update of CPU and GPU together reached */
#define RAMP(processors, fma) (0.25 * 65536 * (processors) / (fma))

/* clang-format off */
/* A GPU that reaches the fractions of the data sheet values that an H200 reaches; peaks in TFLOP/s of fp32 and of 16 bit, memory bandwidth in GB/s. */
#define LIKE_H200(peak32, peak16, memory_rate, processors)                                                                      \
    .rates = {{0.69 * ((peak32) * TERA), 0.69 * ((peak32) * TERA), (peak32) * TERA},                                                \
              {0.728 * ((peak16) * TERA), 0.202 * ((peak16) * TERA), (peak16) * TERA},                                              \
              {0.728 * ((peak16) * TERA), 0.202 * ((peak16) * TERA), (peak16) * TERA}},                                             \
    .bandwidth = 0.7 * (memory_rate) * GB, .ramp = RAMP(processors, 0.728 * (peak16) * TERA)
#define SOURCE_LIKE_H200 ". Peaks and power are those of the data sheet, the memory size is what drivers report; links, rates and memory bandwidth are estimates: the fractions of the data sheet that an H200 reaches; so are host memory and bus"
/* clang-format on */

static const ls_cluster preset[] = {
    {.name = "v100",
     .source =
         "V100-SXM2-16GB, 4 per node, NVLink 2, InfiniBand 100 Gb/s, 300 W. Peaks, power: data sheet; memory size: as drivers report it; fp16 products and the link: fitted on a published GPT-2 run; attention: same as products; fp32 and memory bandwidth: the fractions of their peaks that an H200 reaches; host memory and bus: assumed",
     .devices = 4,
     .memory = GIB(15.77),
     .rates = {{10.8 * TERA, 10.8 * TERA, 15.7 * TERA}, {0}, {26.95 * TERA, 26.95 * TERA, 125 * TERA}},
     .bandwidth = 0.7 * 900 * GB,
     .ramp = RAMP(80, 91 * TERA),
     .bus = 10.5 * GB,
     .power = 300,
     .inside = {15e-6, 33.4 * GB},
     .between = {25e-6, 10 * GB}},
    {.name = "a100",
     .source = "A100-SXM4-80GB, 8 per node, NVLink 3, InfiniBand 200 Gb/s per GPU, 400 W" SOURCE_LIKE_H200,
     .memory = GIB(79.15),
     LIKE_H200(19.5, 312, 2039, 108),
     .bus = 21 * GB,
     .power = 400,
     .inside = {12e-6, 230 * GB},
     .between = {20e-6, 22 * GB}},
    {.name = "h100",
     .source = "H100-SXM5-80GB, 8 per node, NVLink 4, InfiniBand 400 Gb/s per GPU, 700 W" SOURCE_LIKE_H200,
     .memory = GIB(79.11),
     LIKE_H200(67, 989.5, 3350, 132),
     .bus = 42 * GB,
     .power = 700,
     .inside = {10e-6, 360 * GB}},
    {.name = "h200",
     .source =
         "H200-SXM5-141GB, 8 per node, NVLink 4, InfiniBand 400 Gb/s per GPU, 700 W. Peaks, power: data sheet; links: a fraction of it; memory size: as the driver reports it; 16-bit rates, memory bandwidth, overheads: measured by plan --measure --device cuda on one H200 (docs/results/plan_h200_2026-11-16.md); fp32: fitted on docs/results/fp8_attention_h200_2026-11-17.md, its peak: six bf16 products each; host memory and bus: docs/results/offload_h200_2026-11-16.md",
     .memory = GIB(139.8),
     .rates = {{87 * TERA, 68 * TERA, 989.5 / 6 * TERA}, /* six bf16 products each (decision 24) */
               {692.9 * TERA, 234.1 * TERA, 989.5 * TERA},
               {692.9 * TERA, 234.1 * TERA, 989.5 * TERA}},
     .bandwidth = 3.628 * TERA,
     .unit_overhead = 16.5e-6,
     .step_overhead = 62.2e-6,
     .ramp = RAMP(132, 692.9 * TERA),
     .bus = 42 * GB,
     .power = 700,
     .inside = {10e-6, 360 * GB}},
    {.name = "b200",
     .source = "B200-SXM-180GB, 8 per node, NVLink 5, InfiniBand 400 Gb/s per GPU, 1000 W" SOURCE_LIKE_H200,
     .memory = GIB(178.4),
     LIKE_H200(75, 2250, 8000, 148),
     .bus = 42 * GB,
     .power = 1000,
     .inside = {10e-6, 720 * GB}},
};

/* The preset, with what most of them share. */
static bool take(const ls_cluster *p, ls_cluster *out)
{
    *out = *p;
    out->hosts = 1;
    out->wire_bytes = 4;        /* gradients are sent in fp32 */
    out->update_bytes = 4 + 24; /* gradient; master weight and moments in and out */
    out->overlap = 0.9;
    out->host_memory = HOST_SHARE;                  /* of the machine with an H200, for all */
    if (!p->devices) out->devices = out->cards = 8; /* one card per GPU */
    if (!(p->between.bandwidth > 0)) out->between = (ls_link){18e-6, 45 * GB};
    if (!(p->unit_overhead > 0)) out->unit_overhead = 5e-6;
    if (!(p->step_overhead > 0)) out->step_overhead = 0.9e-3;
    return true;
}

bool ls_cluster_preset(const char *name, ls_cluster *out)
{
    for (size_t i = 0; i < sizeof preset / sizeof preset[0]; i++)
        if (!strcasecmp(name, preset[i].name)) return take(&preset[i], out);
    return false;
}

bool ls_cluster_preset_of(const char *device, ls_cluster *out)
{
    for (size_t i = 0; i < sizeof preset / sizeof preset[0]; i++)
        if (strcasestr(device, preset[i].name)) return take(&preset[i], out);
    return false;
}

void ls_cluster_cpu(int cores, ls_cluster *out)
{
    *out = (ls_cluster){.name = "cpu",
                        .source = "a host with CPUs; rough",
                        .cpu = true,
                        .hosts = 1,
                        .devices = cores,
                        .memory = GIB(1 << 20), /* a layout that trains already has its memory */
                        .rates = {{25 * GB, 25 * GB, 0}},
                        .bandwidth = 8 * GB,
                        .wire_bytes = 4,
                        .update_bytes = 4 + 24,
                        .overlap = 0.5,
                        .inside = {5e-6, 4 * GB},
                        .between = {50e-6, 1 * GB}};
}
