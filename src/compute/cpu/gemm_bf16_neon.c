/* gemm_bf16_neon.c - micro-kernel for BFMMLA, which multiplies 2 x 4 by 4 x 2: 8 x 12 of C are 24 squares of 2 x 2 in 24 of the 32 registers.
 *
 * A panel holds groups of four steps of K: four bf16 numbers of each row (column), rows side by side; a register is a pair of them. A group is
 * 24 instructions of 16 multiply-adds (6 cycles on four pipes) and 5 loads of two registers. kc = 1024: a panel of B (24 KiB) and one of A (16 KiB) share a
 * first cache of 64 KiB.
 *
 * Packing is not done between the products: bfcvtn takes about 0.8 cycles from them, as much as it takes alone
 * (docs/results/bf16_neoverse-v1-2core_2026-11-18.md). The classifier takes 2,048 rows at a time instead, so that its matrix is packed less often, and the
 * gradient of its logits comes as bf16.
 *
 * With GEMM_EMULATE (gemm_bf16_neon_emulated.c) the instruction is that of gemm_bf16_emulate.h. */
#include "compute/cpu/gemm_impl.h"
#include "core/half.h"

#include <string.h>
#ifdef GEMM_EMULATE
#include "compute/cpu/gemm_bf16_emulate.h"
#else
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

enum { GEMM_MR = 8, GEMM_NR = 12 };
enum { EIGHTHS = 8, LINE = 64 }; /* bytes of a cache line */
enum { GROUP = 4, PAIRS_A = GEMM_MR / 2, PAIRS_B = GEMM_NR / 2 };

/* ---- packing ---- */

/* Four steps of K of W rows (columns), of which w exist, and kb <= 4 of the steps. */
GEMM_INLINE void pack_group_edge(uint16_t *dst, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb,
                                 int W)
{
    for (int i = 0; i < W; i++)
        for (int k = 0; k < GROUP; k++)
            dst[GROUP * i + k] = i < w && k < kb ? ls_to_bf16(k_contig ? src[i * ld + k] : src[k * ld + i]) : 0;
}

GEMM_INLINE void pack_group(uint16_t *dst, const float *src, int64_t ld, bool k_contig, int W)
{
#ifdef GEMM_EMULATE
    pack_group_edge(dst, src, ld, k_contig, W, GROUP, W);
#else
    if (k_contig) {
        for (int i = 0; i < W; i += 2) {
            const bfloat16x8_t first = vcvtq_low_bf16_f32(vld1q_f32(src + i * ld));
            vst1q_u16(dst + GROUP * i,
                      vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(first, vld1q_f32(src + (i + 1) * ld))));
        }
    } else {
        for (int i = 0; i < W; i += 4) {
            uint16x4x4_t step;
            for (int k = 0; k < GROUP; k++)
                step.val[k] = vreinterpret_u16_bf16(vcvt_bf16_f32(vld1q_f32(src + k * ld + i)));
            vst4_u16(dst + GROUP * i, step);
        }
    }
#endif
}

GEMM_INLINE void pack_at(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb,
                         int W, int64_t i, int64_t k)
{
    uint16_t *out = (uint16_t *)(void *)((char *)dst + (size_t)(i / W) * panel) + k * W;
    const float *from = k_contig ? src + i * ld + k : src + k * ld + i;
    if (i + W <= w && k + GROUP <= kb) pack_group(out, from, ld, k_contig, W);
    else pack_group_edge(out, from, ld, k_contig, w - i, kb - k, W);
}

/* In the order of memory: a panel after the other where a row of memory is along K, else all panels of a group, which share cache lines and pages. */
GEMM_INLINE void pack_panels(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w,
                             int64_t kb, int W)
{
    if (k_contig)
        for (int64_t i = 0; i < w; i += W)
            for (int64_t k = 0; k < kb; k += GROUP) pack_at(dst, panel, src, ld, true, w, kb, W, i, k);
    else
        for (int64_t k = 0; k < kb; k += GROUP)
            for (int64_t i = 0; i < w; i += W) pack_at(dst, panel, src, ld, false, w, kb, W, i, k);
}

static void pack_a(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    if (k_contig) pack_panels(dst, panel, src, ld, true, w, kb, GEMM_MR);
    else pack_panels(dst, panel, src, ld, false, w, kb, GEMM_MR);
}

/* A of bf16 numbers: a group of four steps of K of eight rows. */
GEMM_INLINE void pack_half_group(uint16_t *dst, const uint16_t *src, int64_t ld, bool k_contig)
{
#ifdef GEMM_EMULATE
    for (int i = 0; i < GEMM_MR; i++)
        for (int k = 0; k < GROUP; k++) dst[GROUP * i + k] = k_contig ? src[i * ld + k] : src[k * ld + i];
#else
    if (k_contig) {
        for (int i = 0; i < GEMM_MR; i += 2)
            vst1q_u16(dst + GROUP * i, vcombine_u16(vld1_u16(src + i * ld), vld1_u16(src + (i + 1) * ld)));
    } else {
        const uint16x8x4_t step = {
            {vld1q_u16(src), vld1q_u16(src + ld), vld1q_u16(src + 2 * ld), vld1q_u16(src + 3 * ld)}};
        vst4q_u16(dst, step);
    }
#endif
}

static void pack_half_at(uint16_t *dst, const uint16_t *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    if (w >= GEMM_MR && kb >= GROUP) {
        pack_half_group(dst, src, ld, k_contig);
        return;
    }
    for (int i = 0; i < GEMM_MR; i++)
        for (int k = 0; k < GROUP; k++)
            dst[GROUP * i + k] = i < w && k < kb ? (k_contig ? src[i * ld + k] : src[k * ld + i]) : 0;
}

static void pack_a16(void *dst, size_t panel, const uint16_t *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    const int64_t n_panel = gemm_ceil_div(w, GEMM_MR), n_group = gemm_ceil_div(kb, GROUP);
    for (int64_t n = 0; n < n_panel * n_group; n++) { /* in the order of memory, as pack_panels */
        const int64_t i = (k_contig ? n / n_group : n % n_panel) * GEMM_MR;
        const int64_t k = (k_contig ? n % n_group : n / n_panel) * GROUP;
        uint16_t *out = (uint16_t *)(void *)((char *)dst + (size_t)(i / GEMM_MR) * panel) + k * GEMM_MR;
        pack_half_at(out, k_contig ? src + i * ld + k : src + k * ld + i, ld, k_contig, w - i, kb - k);
    }
}

/* From the left: y may be where x is. */
static void narrow(uint16_t *y, const float *x, int64_t n, float by)
{
    int64_t i = 0;
#ifndef GEMM_EMULATE
    for (; i + 8 <= n; i += 8) {
        const bfloat16x8_t first = vcvtq_low_bf16_f32(vmulq_n_f32(vld1q_f32(x + i), by));
        vst1q_u16(y + i, vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(first, vmulq_n_f32(vld1q_f32(x + i + 4), by))));
    }
#endif
    for (; i < n; i++) {
        float v;
        memcpy(&v, x + i, sizeof v);
        const uint16_t half = ls_to_bf16(v * by);
        memcpy(y + i, &half, sizeof half);
    }
}

static void pack_b(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    if (k_contig) pack_panels(dst, panel, src, ld, true, w, kb, GEMM_NR);
    else pack_panels(dst, panel, src, ld, false, w, kb, GEMM_NR);
}

/* ---- micro-tiles ---- */

/* What comes into the caches while a micro-tile is multiplied: where it is written into the first, and n_line lines of B with each eighth of the sum
 * into the second. */
typedef struct fetch {
    const char *c, *b;
    int64_t n_line;
} fetch;

#ifdef GEMM_EMULATE
static void micro(int64_t n_group, const char *pa, const char *pb, float *c, int64_t ldc, const float *bias, bool add,
                  const fetch *f)
{
    (void)f;
    const uint16_t *a = (const uint16_t *)(const void *)pa, *b = (const uint16_t *)(const void *)pb;
    emu_v4 t[PAIRS_A][PAIRS_B] = {{{0}}};
    for (int64_t k = 0; k < n_group; k++, a += GROUP * GEMM_MR, b += GROUP * GEMM_NR)
        for (int p = 0; p < PAIRS_A; p++)
            for (int q = 0; q < PAIRS_B; q++) t[p][q] = emu_bfmmla(t[p][q], a + 2 * GROUP * p, b + 2 * GROUP * q);
    for (int i = 0; i < GEMM_MR; i++)
        for (int j = 0; j < GEMM_NR; j++) {
            float v = t[i / 2][j / 2][i % 2 * 2 + j % 2];
            if (add) v = c[i * ldc + j] + v;
            if (bias) v = v + bias[j];
            c[i * ldc + j] = v;
        }
}
#else
#pragma GCC diagnostic ignored "-Woverlength-strings" /* the loop below is one string of more than 4095 characters */

/* Assembly, as in gemm_neon.c: compilers spill part of the 24 sums, and operands must be loaded well before their use. The sums of rows
 * 2p, 2p+1 and columns 2q, 2q+1 are in register 8 + 6p + q. */
#define C00 "8"
#define C01 "9"
#define C02 "10"
#define C03 "11"
#define C04 "12"
#define C05 "13"
#define C10 "14"
#define C11 "15"
#define C12 "16"
#define C13 "17"
#define C14 "18"
#define C15 "19"
#define C20 "20"
#define C21 "21"
#define C22 "22"
#define C23 "23"
#define C24 "24"
#define C25 "25"
#define C30 "26"
#define C31 "27"
#define C32 "28"
#define C33 "29"
#define C34 "30"
#define C35 "31"

/* A is in v0 … v3; B goes through v4 … v7: each load takes the register that the column before has just left, so two groups bring every role
 * back where it began. The last group loads what is after the panels (64 bytes each, inside the scratch) and drops it. */
/* four squares of two rows of them: two registers of A and two of B */
/* clang-format off */
#define TWO_ROWS(p0, p1, q0, q1, x0, x1)                                    \
    "bfmmla v" C##p0##q0 ".4s, v" #p0 ".8h, v" x0 ".8h\n"                   \
    "bfmmla v" C##p0##q1 ".4s, v" #p0 ".8h, v" x1 ".8h\n"                   \
    "bfmmla v" C##p1##q0 ".4s, v" #p1 ".8h, v" x0 ".8h\n"                   \
    "bfmmla v" C##p1##q1 ".4s, v" #p1 ".8h, v" x1 ".8h\n"
#define LOAD_TWO(x, y, from, at) "ldp q" x ", q" y ", [%[" from "], #" at "]\n"
/* One group: columns 0 … 3 are in x0 … x3. b4, n0, n2: where columns 4, 5 of this group and 0 … 3 of the next are; a0, a2: A of the next. Two
 * registers are loaded at a time, at least four products (one cycle on four pipes) before they are used. */
#define GROUP_OF(x0, x1, x2, x3, b4, n0, n2, a0, a2)                        \
    TWO_ROWS(0, 1, 0, 1, x0, x1) TWO_ROWS(2, 3, 0, 1, x0, x1)               \
    LOAD_TWO(x0, x1, "pb", b4)                                              \
    TWO_ROWS(0, 1, 2, 3, x2, x3) TWO_ROWS(2, 3, 2, 3, x2, x3)               \
    LOAD_TWO(x2, x3, "pb", n0)                                              \
    TWO_ROWS(0, 1, 4, 5, x0, x1) LOAD_TWO("0", "1", "pa", a0)               \
    TWO_ROWS(2, 3, 4, 5, x0, x1) LOAD_TWO("2", "3", "pa", a2)               \
    LOAD_TWO(x0, x1, "pb", n2)
#define FIRST_GROUP  GROUP_OF("4", "5", "6", "7", "64", "96", "128", "64", "96")
#define SECOND_GROUP GROUP_OF("6", "7", "4", "5", "160", "192", "224", "128", "160")
#define TWO_GROUPS   FIRST_GROUP SECOND_GROUP "add %[pa], %[pa], #128\nadd %[pb], %[pb], #192\n"

#define ZERO(r) "movi v" r ".4s, #0\n"
#define ZERO_ROWS(p) ZERO(C##p##0) ZERO(C##p##1) ZERO(C##p##2) ZERO(C##p##3) ZERO(C##p##4) ZERO(C##p##5)
#define ZERO_ALL ZERO_ROWS(0) ZERO_ROWS(1) ZERO_ROWS(2) ZERO_ROWS(3)

/* Two rows of the result: v0 … v2 and v3 … v5. */
#define ZIP(n, to, x, y) "zip" n " v" to ".2d, v" x ".2d, v" y ".2d\n"
/* C + sum, but sum + bias, as at the edges: the order decides which of two NaN is kept. */
#define ADD_C(x, y) "fadd v" x ".4s, v" y ".4s, v" x ".4s\n"
#define ADD_BIAS(x, y) "fadd v" x ".4s, v" x ".4s, v" y ".4s\n"
#define ADD_ROW(add, from, x, y, z)                                         \
    "ldp q6, q7, [%[" from "]]\n" add(x, "6") add(y, "7")                   \
    "ldr q6, [%[" from "], #32]\n" add(z, "6")
#define STORE_ROW(to, x, y, z) "stp q" x ", q" y ", [%[" to "]]\nstr q" z ", [%[" to "], #32]\n"
#define STORE_ROWS(p)                                                       \
    ZIP("1", "0", C##p##0, C##p##1) ZIP("1", "1", C##p##2, C##p##3) ZIP("1", "2", C##p##4, C##p##5) \
    ZIP("2", "3", C##p##0, C##p##1) ZIP("2", "4", C##p##2, C##p##3) ZIP("2", "5", C##p##4, C##p##5) \
    "add %[t], %[c], %[ldc]\n"                                              \
    "cbz %w[add], 1f\n" ADD_ROW(ADD_C, "c", "0", "1", "2") ADD_ROW(ADD_C, "t", "3", "4", "5") \
    "1:\n"                                                                  \
    "cbz %[bias], 1f\n" ADD_ROW(ADD_BIAS, "bias", "0", "1", "2") ADD_ROW(ADD_BIAS, "bias", "3", "4", "5") \
    "1:\n" STORE_ROW("c", "0", "1", "2") STORE_ROW("t", "3", "4", "5")      \
    "add %[c], %[t], %[ldc]\n"
/* clang-format on */
#define SUMS                                                                                                      \
    "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", \
        "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

#define FETCH_ROW "prfm pstl1keep, [%[fc]]\nprfum pstl1keep, [%[fc], #44]\nadd %[fc], %[fc], %[ldc]\n"

/* c = the sum over n_group groups, or c + the sum; then + bias where it is not NULL. What f names is fetched between eighths of the sum, C with the
 * first two: all lines at once, before the sum, cost more. */
static void micro(int64_t n_group, const char *pa, const char *pb, float *c, int64_t ldc, const float *bias, bool add,
                  const fetch *f)
{
    const char *fc = f->c, *fb = f->b;
    int64_t each = n_group / 16, rest = n_group - 16 * each, part = 8, t;
    __asm__ volatile(ZERO_ALL "ldp q0, q1, [%[pa]]\n"
                              "ldp q2, q3, [%[pa], #32]\n"
                              "ldp q4, q5, [%[pb]]\n"
                              "ldp q6, q7, [%[pb], #32]\n"
                              "cbz %[each], 5f\n"
                              "1:\n"
                              "cmp %[part], #6\n"
                              "b.le 2f\n" FETCH_ROW FETCH_ROW FETCH_ROW FETCH_ROW "2:\n"
                              "cbz %[n_line], 3f\n"
                              "mov %[t], %[n_line]\n"
                              "2:\n"
                              "prfm pldl2keep, [%[fb]]\n"
                              "add %[fb], %[fb], #64\n"
                              "subs %[t], %[t], #1\n"
                              "b.ne 2b\n"
                              "3:\n"
                              "mov %[t], %[each]\n"
                              ".p2align 5\n"
                              "4:\n" TWO_GROUPS "subs %[t], %[t], #1\n"
                              "b.ne 4b\n"
                              "subs %[part], %[part], #1\n"
                              "b.ne 1b\n"
                              "5:\n" /* what is left of sixteen groups */
                              "subs %[rest], %[rest], #2\n"
                              "b.lt 2f\n"
                              "1:\n" TWO_GROUPS "subs %[rest], %[rest], #2\n"
                              "b.ge 1b\n"
                              "2:\n"
                              "adds %[rest], %[rest], #2\n"
                              "b.eq 1f\n" /* or one more */
                     FIRST_GROUP "1:\n" STORE_ROWS(0) STORE_ROWS(1) STORE_ROWS(2) STORE_ROWS(3)
                     : [pa] "+&r"(pa), [pb] "+&r"(pb), [c] "+&r"(c), [rest] "+&r"(rest), [part] "+&r"(part),
                       [t] "=&r"(t), [fc] "+&r"(fc), [fb] "+&r"(fb)
                     : [each] "r"(each), [n_line] "r"(f->n_line), [ldc] "r"(ldc * (int64_t)sizeof *c), [bias] "r"(bias),
                       [add] "r"((int)add)
                     : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", SUMS, "cc", "memory");
}

static double spin(int64_t n)
{
    const int64_t rounds = n;
    __asm__ volatile(ZERO_ALL "movi v0.4s, #0\nmovi v1.4s, #0\nmovi v2.4s, #0\nmovi v3.4s, #0\nmovi v4.4s, #0\n"
                              "1:\n.rept 8\n" TWO_ROWS(0, 1, 0, 1, "4", "4") TWO_ROWS(2, 3, 0, 1, "4", "4")
                                  TWO_ROWS(0, 1, 2, 3, "4", "4") TWO_ROWS(2, 3, 2, 3, "4", "4")
                                      TWO_ROWS(0, 1, 4, 5, "4", "4")
                                          TWO_ROWS(2, 3, 4, 5, "4", "4") ".endr\nsubs %[k], %[k], #1\n"
                                                                         "b.gt 1b\n"
                     : [k] "+&r"(n)
                     :
                     : "v0", "v1", "v2", "v3", "v4", SUMS, "cc");
    return (double)rounds * 8 * 24 * 32;
}

static bool usable(void)
{
    enum { HAS_BF16 = 1 << 14 }; /* HWCAP2_BF16 */
    return (getauxval(AT_HWCAP2) & HAS_BF16) != 0;
}
#endif

static void micro_edge(const gemm_block *b, const char *pa, const char *pb, int64_t i, int64_t j, const fetch *f)
{
    micro(gemm_ceil_div(b->kb, GROUP), pa, pb, b->tmp, GEMM_NR, NULL, false, f);
    gemm_write_edge(b, i, j, GEMM_MR, GEMM_NR);
}

/* A panel of B stays in the first cache, panels of A stream from the second. The next panel of B comes into the second meanwhile, a piece with
 * every micro-tile. */
static void block(const gemm_block *b)
{
    const int64_t n_group = gemm_ceil_div(b->kb, GROUP), n_tile = gemm_ceil_div(b->m, GEMM_MR);
    const int64_t n_line = gemm_ceil_div((int64_t)b->b_panel, n_tile * EIGHTHS * LINE);
    for (int64_t j = 0; j < b->n; j += GEMM_NR) {
        const char *pa = b->pa, *pb = b->pb + (size_t)(j / GEMM_NR) * b->b_panel, *end = pb + 2 * b->b_panel;
        fetch f = {.b = pb + b->b_panel};
        for (int64_t i = 0; i < b->m; i += GEMM_MR, pa += b->a_panel, f.b += EIGHTHS * LINE * n_line) {
            float *c = b->c + i * b->ldc + j;
            const bool whole = i + GEMM_MR <= b->m && j + GEMM_NR <= b->n;
            f.c = (const char *)(whole ? c : b->tmp);
            f.n_line = f.b < end ? n_line : 0;
            if (whole) micro(n_group, pa, pb, c, b->ldc, b->bias ? b->bias + j : NULL, b->add, &f);
            else micro_edge(b, pa, pb, i, j, &f);
        }
    }
}

const gemm_kernel GEMM_BF16_KERNEL(neon) = {
    .name = "bfmmla" GEMM_BF16_SUFFIX,
    .bf16 = true,
#ifdef GEMM_EMULATE
    .emulated = true,
#else
    .usable = usable,
    .spin = spin,
#endif
    .mr = GEMM_MR,
    .nr = GEMM_NR,
    .kc = 1024,
    .k_round = GROUP,
    .elem_nbytes = 2,
    .mt = 128,
    .nt = 768,
    .tmp_nbytes = 512, /* 8 x 12 floats, and what the last group loads beyond its panel */
    .logit_rows = 2048,
    .pack_a = pack_a,
    .pack_a16 = pack_a16,
    .narrow = narrow,
    .pack_b = pack_b,
    .block = block,
};
