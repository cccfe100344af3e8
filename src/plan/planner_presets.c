/* planner_presets.c - data of GPUs, to plan for them without a measurement.
 *
 * Sources of the numbers (same table in docs/PLAN.md):
 *
 *   data sheet   peak FLOP/s of dense products in each precision, memory, its bandwidth, board power; NVLink and network at 77 to 90 % of
 *                one direction
 *   measured     h200: products, attention, memory and overheads in 16 bit, by `plan --measure --device cuda` (docs/results/plan_h200_2026-11-16.md)
 *   fitted       h200, fp32: on the row 16 x 1024 of docs/results/gpu_h200_2026-11-15.md
 *   assumed      a100, h100, b200: the fractions of the data sheet values that the H200 reaches: 73 % for products (69 % in fp32), 20 % for attention
 *                (in fp32 the rate of products), 70 % of the memory bandwidth; ramp by multiprocessors and rate
 *   fitted       v100: products on the row of 1 GPU and the link on the row of 2 of a published run (GPT-2 small with its own head, one node
 *                of V100-SXM2-16GB, 16 x 512 per step, fp16 with 16-bit gradients, ZeRO-1: 29600.05 and 57289.31 tokens/s); the row of 4
 *                (100791.44) is predicted, and compared by the same test
 *
 * ramp: a tile of 128 x 256 has 65536 operations for each element of the inner dimension, and a
 * multiprocessor does rate / multiprocessors of them per second; ramp is a quarter of that time, fitted on runs of 16 x 512 and 4 x 4 x 512 on an H200. */
#include "plan/cluster_file.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

const char ls_cluster_presets[] = "v100, a100, h100, h200, b200";

#define GB                    (1000.0 * 1000 * 1000)
#define TERA                  1e12
#define RAMP(processors, fma) (0.25 * 65536 * (processors) / (fma))
#define LIKE_H200(p32, p16)                                                         \
    {                                                                               \
        {0.69 * (p32), 0.69 * (p32), (p32)}, {0.728 * (p16), 0.202 * (p16), (p16)}, \
            {0.728 * (p16), 0.202 * (p16), (p16)},                                  \
    }

static const ls_cluster preset[] = {
    {.name = "v100",
     .source = "V100-SXM2-16GB, 4 per node, NVLink 2, InfiniBand 100 Gb/s, 300 W. Peaks, memory, power: data "
               "sheet; fp16 products and the link: fitted on a published GPT-2 run; attention: same as "
               "products; fp32 and memory: the fractions of their peaks that an H200 reaches",
     .hosts = 1,
     .devices = 4,
     .memory = 16LL << 30,
     .rates = {{10.8 * TERA, 10.8 * TERA, 15.7 * TERA}, {0}, {26.95 * TERA, 26.95 * TERA, 125 * TERA}},
     .bandwidth = 0.7 * 900 * GB,
     .ramp = RAMP(80, 91 * TERA),
     .power = 300,
     .inside = {15e-6, 33.4 * GB},
     .between = {25e-6, 10 * GB}},
    {.name = "a100",
     .source = "A100-SXM4-80GB, 8 per node, NVLink 3, InfiniBand 200 Gb/s per GPU, 400 W. Peaks, memory, "
               "power: data sheet; links: a fraction of it; rates: the fractions of the peaks that an H200 "
               "reaches",
     .hosts = 1,
     .devices = 8,
     .memory = 80LL << 30,
     .rates = LIKE_H200(19.5 * TERA, 312 * TERA),
     .bandwidth = 0.7 * 2039 * GB,
     .ramp = RAMP(108, 0.728 * 312 * TERA),
     .power = 400,
     .inside = {12e-6, 230 * GB},
     .between = {20e-6, 22 * GB}},
    {.name = "h100",
     .source = "H100-SXM5-80GB, 8 per node, NVLink 4, InfiniBand 400 Gb/s per GPU, 700 W. Peaks, memory, "
               "power: data sheet; links: a fraction of it; rates: the fractions of the peaks that an H200 "
               "reaches",
     .hosts = 1,
     .devices = 8,
     .memory = 80LL << 30,
     .rates = LIKE_H200(67 * TERA, 989.5 * TERA),
     .bandwidth = 0.7 * 3350 * GB,
     .ramp = RAMP(132, 0.728 * 989.5 * TERA),
     .power = 700,
     .inside = {10e-6, 360 * GB},
     .between = {18e-6, 45 * GB}},
    {.name = "h200",
     .source = "H200-SXM5-141GB, 8 per node, NVLink 4, InfiniBand 400 Gb/s per GPU, 700 W. Peaks, memory, "
               "power: data sheet; links: a fraction of it; 16-bit rates, memory, overheads: measured by plan "
               "--measure --device cuda on one H200 (docs/results/plan_h200_2026-11-16.md); fp32: fitted on "
               "docs/results/gpu_h200_2026-11-15.md",
     .hosts = 1,
     .devices = 8,
     .memory = 141LL * 1000 * 1000 * 1000,
     .rates = {{46 * TERA, 68 * TERA, 67 * TERA},
               {692.9 * TERA, 234.1 * TERA, 989.5 * TERA},
               {692.9 * TERA, 234.1 * TERA, 989.5 * TERA}},
     .bandwidth = 3.628 * TERA,
     .unit_overhead = 16.5e-6,
     .step_overhead = 62.2e-6,
     .ramp = RAMP(132, 692.9 * TERA),
     .power = 700,
     .inside = {10e-6, 360 * GB},
     .between = {18e-6, 45 * GB}},
    {.name = "b200",
     .source = "B200-SXM-180GB, 8 per node, NVLink 5, InfiniBand 400 Gb/s per GPU, 1000 W. Peaks, memory, "
               "power: data sheet; links: a fraction of it; rates: the fractions of the peaks that an H200 "
               "reaches",
     .hosts = 1,
     .devices = 8,
     .memory = 180LL * 1000 * 1000 * 1000,
     .rates = LIKE_H200(75 * TERA, 2250 * TERA),
     .bandwidth = 0.7 * 8000 * GB,
     .ramp = RAMP(148, 0.728 * 2250 * TERA),
     .power = 1000,
     .inside = {10e-6, 720 * GB},
     .between = {18e-6, 45 * GB}},
};
#define N_PRESET (sizeof preset / sizeof preset[0])

static void take(const ls_cluster *p, ls_cluster *out)
{
    *out = *p;
    out->wire_bytes = 4;        /* gradients travel in fp32 */
    out->update_bytes = 4 + 24; /* gradient; master weight and moments in and out */
    if (!(p->unit_overhead > 0)) out->unit_overhead = 5e-6;
    if (!(p->step_overhead > 0)) out->step_overhead = 0.9e-3;
    out->overlap = 0.9;
}

bool ls_cluster_preset(const char *name, ls_cluster *out)
{
    for (size_t i = 0; i < N_PRESET; i++) {
        if (strcasecmp(name, preset[i].name)) continue;
        take(&preset[i], out);
        return true;
    }
    return false;
}

bool ls_cluster_preset_of(const char *device, ls_cluster *out)
{
    for (size_t i = 0; i < N_PRESET; i++) {
        char word[16] = "";
        for (size_t k = 0; preset[i].name[k] && k + 1 < sizeof word; k++)
            word[k] = (char)(k ? preset[i].name[k] : preset[i].name[k] - 'a' + 'A');
        if (!strstr(device, word)) continue;
        take(&preset[i], out);
        return true;
    }
    return false;
}
