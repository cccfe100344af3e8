/* planner_presets.c - data of GPUs, to plan for them without a measurement. docs/PLAN.md has the source of each number.
 *
 * memory: totalGlobalMem as drivers report it, which is less than the number in the name of a GPU (ECC and the driver take a part).
 *
 * ramp: a tile of 128 x 256 has 65536 operations for each element of the inner dimension, and a multiprocessor does rate / multiprocessors
 * of them per second; ramp is a quarter of that time, fitted on runs of 16 x 512 and 4 x 4 x 512 on an H200. */
#include "plan/cluster_file.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define GB                    1e9
#define GIB(x)                ((int64_t)((x) * (double)(1 << 30)))
#define TERA                  1e12
#define HOST_SHARE            (90 * GB) /* of one GPU of a host: what an update of CPU and GPU together reached */
#define RAMP(processors, fma) (0.25 * 65536 * (processors) / (fma))

/* clang-format off */
/* Attention's rate at r TFLOP/s without dropout and in any order of sums; with one order; with dropout. The factors are what an H200 reaches
 * with its own kernels (HOPPER), and with those for every card (LS_FLASH_WGMMA=0; docs/results/plan_h200_2026-11-16.md). */
#define ATTENTION(r, order, drop) .attention = (r) * TERA, .ordered = (order) * (r) * TERA, .dropout = (drop) * (r) * TERA
#define HOPPER(r)                 ATTENTION(r, 1, 0.66)
#define ANY_CARD(r)               ATTENTION(r, 0.87, 0.6)
#define IN_FP32(r)                ATTENTION(r, 1, 0.9)
#define RATE(products, peak_rate, attention) {.matmul = (products) * TERA, attention, .peak = (peak_rate) * TERA}
/* A GPU that reaches the fractions of the data sheet values that an H200 reaches; peaks in TFLOP/s of fp32, bf16 (0: it has none) and fp16, memory
 * bandwidth in GB/s. */
#define LIKE_H200(kernels, peak32, peak_bf16, peak_fp16, memory_rate, processors)                            \
    .rates = {RATE(0.69 * (peak32), peak32, IN_FP32(0.69 * (peak32))),                                       \
              RATE(0.728 * (peak_bf16), peak_bf16, kernels(0.202 * (peak_bf16))),                            \
              RATE(0.728 * (peak_fp16), peak_fp16, kernels(0.202 * (peak_fp16)))},                           \
    .bandwidth = 0.7 * (memory_rate) * GB, .ramp = RAMP(processors, 0.728 * (peak_fp16) * TERA)
/* Rates in fp16 at which a published run computed, products and attention alike, with dropout. */
#define AS_PUBLISHED(r, peak_rate) RATE(r, peak_rate, ATTENTION(r, 1, 1))
#define LIKE_V100                                                                                            \
    .capability = 70, .rates = {RATE(10.8, 15.7, IN_FP32(10.8)), {0}, AS_PUBLISHED(27.14, 125)},             \
    .bandwidth = 0.7 * 900 * GB, .ramp = RAMP(80, 91 * TERA), .bus = 10.5 * GB, .power = 300,                \
    .inside = {15e-6, 33.4 * GB}, .between = {25e-6, 10 * GB}
#define PCIE_4 .bus = 21 * GB, .inside = {20e-6, 12 * GB} /* no NVLink: through the memory of the host */
#define SOURCE_LIKE_H200 ". Not measured. Peaks, memory bandwidth and power: data sheet; memory size: as drivers report it; assumed: the fractions of the data sheet that an H200 reaches (a card of low power may reach less), links, host memory and bus"
#define SOURCE_PUBLISHED ". Peaks, power: data sheet; memory size: as drivers report it; fp16 products: fitted on a published GPT-2 run of a PyTorch program with dropout, which was slower than the card allows"
#define SOURCE_LIKE_V100 ", NVLink 2, InfiniBand 100 Gb/s, 300 W" SOURCE_PUBLISHED "; the link: fitted on that run; fp32 and memory bandwidth: the fractions of their peaks that an H200 reaches; host memory and bus: assumed" NOT_TRIED
#define NOT_TRIED ". Runs on this card were not tried"
/* clang-format on */

static const ls_cluster preset[] = {
    {.name = "t4",
     .source =
         "T4 16 GB, 4 per node (g4dn.12xlarge), PCIe 3, 50 Gb/s per node, 70 W" SOURCE_PUBLISHED
         "; fp32: what others measured; memory bandwidth: the fraction of its peak that an H200 reaches; links, host memory and bus: assumed" NOT_TRIED,
     .capability = 75,
     .devices = 4,
     .memory = GIB(14.56),
     .rates = {RATE(4.2, 8.1, IN_FP32(4.2)), {0}, AS_PUBLISHED(11.74, 65)},
     .bandwidth = 0.7 * 320 * GB,
     .ramp = RAMP(40, 47.3 * TERA),
     .bus = 10.5 * GB,
     .power = 70,
     .inside = {20e-6, 6 * GB},
     .between = {30e-6, 5 * GB}},
    {.name = "l4",
     .source = "L4 24 GB, 4 per node (g6.12xlarge), PCIe 4, 40 Gb/s per node, 72 W" SOURCE_LIKE_H200 NOT_TRIED,
     .capability = 89,
     .devices = 4,
     .memory = GIB(21.96),
     LIKE_H200(ANY_CARD, 30.3, 121, 121, 300, 58),
     .power = 72,
     PCIE_4,
     .between = {30e-6, 4 * GB}},
    {.name = "a10g",
     .source = "A10G 24 GB, 4 per node (g5.12xlarge), PCIe 4, 40 Gb/s per node, 300 W" SOURCE_LIKE_H200 NOT_TRIED,
     .capability = 86,
     .devices = 4,
     .memory = GIB(21.98),
     LIKE_H200(ANY_CARD, 35, 70, 70, 600, 80),
     .power = 300,
     PCIE_4,
     .between = {30e-6, 4 * GB}},
    {.name = "v100",
     .source = "V100-SXM2-16GB, 4 per node" SOURCE_LIKE_V100,
     .devices = 4,
     .memory = GIB(15.77),
     LIKE_V100},
    {.name = "v100-32",
     .source = "V100-SXM2-32GB, 8 per node (p3dn.24xlarge)" SOURCE_LIKE_V100,
     .devices = 8,
     .memory = GIB(31.74),
     LIKE_V100},
    {.name = "a100",
     .source = "A100-SXM4-80GB, 8 per node, NVLink 3, InfiniBand 200 Gb/s per GPU, 400 W" SOURCE_LIKE_H200 NOT_TRIED,
     .capability = 80,
     .memory = GIB(79.15),
     LIKE_H200(ANY_CARD, 19.5, 312, 312, 2039, 108),
     .bus = 21 * GB,
     .power = 400,
     .inside = {12e-6, 230 * GB},
     .between = {20e-6, 22 * GB}},
    {.name = "a100-40",
     .source = "A100-SXM4-40GB, 8 per node, NVLink 3, InfiniBand 200 Gb/s per GPU, 400 W" SOURCE_LIKE_H200 NOT_TRIED,
     .capability = 80,
     .memory = GIB(39.39),
     LIKE_H200(ANY_CARD, 19.5, 312, 312, 1555, 108),
     .bus = 21 * GB,
     .power = 400,
     .inside = {12e-6, 230 * GB},
     .between = {20e-6, 22 * GB}},
    {.name = "h100",
     .source = "H100-SXM5-80GB, 8 per node, NVLink 4, InfiniBand 400 Gb/s per GPU, 700 W" SOURCE_LIKE_H200 NOT_TRIED,
     .capability = 90,
     .memory = GIB(79.11),
     LIKE_H200(HOPPER, 67, 989.5, 989.5, 3350, 132),
     .bus = 42 * GB,
     .power = 700,
     .inside = {10e-6, 360 * GB}},
    {.name = "h200",
     .source =
         "H200-SXM5-141GB, 8 per node, NVLink 4, InfiniBand 400 Gb/s per GPU, 700 W. Peaks, power: data sheet; links: a fraction of it; memory size: as the driver reports it; 16-bit rates, memory bandwidth, overheads: measured by plan --measure --device cuda on one H200 (docs/results/plan_h200_2026-11-16.md); fp32: fitted on docs/results/fp8_attention_h200_2026-11-17.md, its peak: six bf16 products each; host memory and bus: docs/results/offload_h200_2026-11-16.md",
     .capability = 90,
     .memory = GIB(139.8),
     .rates = {RATE(87, 989.5 / 6, IN_FP32(68)), /* six bf16 products each (decision 24) */
               RATE(692.9, 989.5, HOPPER(234.1)), RATE(692.9, 989.5, HOPPER(234.1))},
     .bandwidth = 3.628 * TERA,
     .unit_overhead = 16.5e-6,
     .step_overhead = 62.2e-6,
     .ramp = RAMP(132, 692.9 * TERA),
     .bus = 42 * GB,
     .power = 700,
     .inside = {10e-6, 360 * GB}},
    {.name = "b200",
     .source = "B200-SXM-180GB, 8 per node, NVLink 5, InfiniBand 400 Gb/s per GPU, 1000 W" SOURCE_LIKE_H200 NOT_TRIED,
     .capability = 100,
     .memory = GIB(178.4),
     LIKE_H200(ANY_CARD, 75, 2250, 2250, 8000, 148),
     .bus = 42 * GB,
     .power = 1000,
     .inside = {10e-6, 720 * GB}},
    {.name = "rtx-3090",
     .source = "RTX 3090 24 GB, 4 per node, PCIe 4, 10 Gb/s per node, 350 W" SOURCE_LIKE_H200 NOT_TRIED,
     .capability = 86,
     .devices = 4,
     .memory = GIB(23.69),
     LIKE_H200(ANY_CARD, 35.6, 71, 71, 936, 82),
     .power = 350,
     PCIE_4,
     .between = {30e-6, 1 * GB}},
    {.name = "rtx-4090",
     .source = "RTX 4090 24 GB, 4 per node, PCIe 4, 10 Gb/s per node, 450 W" SOURCE_LIKE_H200 NOT_TRIED,
     .capability = 89,
     .devices = 4,
     .memory = GIB(23.64),
     LIKE_H200(ANY_CARD, 82.6, 165.2, 165.2, 1008, 128),
     .power = 450,
     PCIE_4,
     .between = {30e-6, 1 * GB}},
    {.name = "rtx-5090",
     .source = "RTX 5090 32 GB, 4 per node, PCIe 5, 10 Gb/s per node, 575 W" SOURCE_LIKE_H200 NOT_TRIED,
     .capability = 120,
     .devices = 4,
     .memory = GIB(31.37),
     LIKE_H200(ANY_CARD, 104.8, 209.5, 209.5, 1792, 170),
     .bus = 42 * GB,
     .power = 575,
     .inside = {20e-6, 24 * GB},
     .between = {30e-6, 1 * GB}},
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

/* Whether `part` of n bytes is a word of the name, or a word before "GB": 40 of A100-SXM4-40GB. */
static bool has_word(const char *name, const char *part, size_t n)
{
    for (const char *p = name; *p; p++) {
        if (strncasecmp(p, part, n) || (p > name && isalnum((unsigned char)p[-1]))) continue;
        if (!isalnum((unsigned char)p[n]) || !strncasecmp(p + n, "GB", 2)) return true;
    }
    return false;
}

bool ls_cluster_preset_of(const char *device, ls_cluster *out)
{
    int most = 0; /* a100-40 before a100 */
    for (size_t i = 0; i < sizeof preset / sizeof preset[0]; i++) {
        int n = 0;
        for (const char *part = preset[i].name; part; n++) {
            const size_t len = strcspn(part, "-");
            if (!has_word(device, part, len)) n = -100;
            part = part[len] ? part + len + 1 : NULL;
        }
        if (n > most && take(&preset[i], out)) most = n;
    }
    return most > 0;
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
