/* gemm_bf16_neon.c - micro-kernel for BFMMLA, which multiplies 2 x 4 by 4 x 2: 8 x 12 of C are 24 squares of 2 x 2 in 24 of the 32 registers.
 *
 * A panel holds groups of four steps of K: four bf16 numbers of each row (column), rows side by side; a register is a pair of them. A group is
 * 24 instructions of 16 multiply-adds (6 cycles on four pipes) and 5 loads of two registers. kc = 1024: a panel of B (24 KiB) and one of A (16 KiB) share a
 * first cache of 64 KiB.
 *
 * With GEMM_EMULATE (gemm_bf16_neon_emulated.c) the instruction is that of gemm_bf16_emulate.h. */
enum { GEMM_MR = 8, GEMM_NR = 12 };
#define GEMM_A_STAYS 0
#include "compute/cpu/gemm_tile.h"
#include "core/half.h"

#include <string.h>
#ifdef GEMM_EMULATE
#include "compute/cpu/gemm_bf16_emulate.h"
#else
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

enum { GROUP = 4, PAIRS_A = GEMM_MR / 2, PAIRS_B = GEMM_NR / 2 };

typedef float v4 __attribute__((vector_size(16), may_alias, aligned(4)));

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

static void pack_b(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb)
{
    if (k_contig) pack_panels(dst, panel, src, ld, true, w, kb, GEMM_NR);
    else pack_panels(dst, panel, src, ld, false, w, kb, GEMM_NR);
}

/* ---- the sums: s[p][q] is rows 2p, 2p+1 x columns 2q, 2q+1 ---- */

#ifdef GEMM_EMULATE
static void sums(v4 s[PAIRS_A][PAIRS_B], int64_t n_group, const uint16_t *pa, const uint16_t *pb)
{
    emu_v4 t[PAIRS_A][PAIRS_B] = {{{0}}};
    for (int64_t k = 0; k < n_group; k++, pa += GROUP * GEMM_MR, pb += GROUP * GEMM_NR)
        for (int p = 0; p < PAIRS_A; p++)
            for (int q = 0; q < PAIRS_B; q++) t[p][q] = emu_bfmmla(t[p][q], pa + 2 * GROUP * p, pb + 2 * GROUP * q);
    for (int p = 0; p < PAIRS_A; p++)
        for (int q = 0; q < PAIRS_B; q++) s[p][q] = (v4)t[p][q];
}
#else
#pragma GCC diagnostic ignored "-Woverlength-strings" /* the loop below is one string of more than 4095 characters */

/* Assembly, as in gemm_neon.c: compilers spill part of the 24 sums, and operands must be loaded well before their use. A is in v0 … v3; B goes
 * through v4 … v7: each load takes the register that the column before has just left, so two groups bring every role back where it
 * began. The last group loads what is after the panels (64 bytes each, inside the scratch) and drops it. */
/* four squares of two rows of them: two registers of A and two of B */
#define TWO_ROWS(p0, p1, q0, q1, x0, x1)                \
    "bfmmla %[c" p0 q0 "].4s, v" p0 ".8h, v" x0 ".8h\n" \
    "bfmmla %[c" p0 q1 "].4s, v" p0 ".8h, v" x1 ".8h\n" \
    "bfmmla %[c" p1 q0 "].4s, v" p1 ".8h, v" x0 ".8h\n" \
    "bfmmla %[c" p1 q1 "].4s, v" p1 ".8h, v" x1 ".8h\n"
#define LOAD_TWO(x, y, from, at) "ldp q" x ", q" y ", [%[" from "], #" at "]\n"
/* One group: columns 0 … 3 are in x0 … x3. b4, n0, n2: where columns 4, 5 of this group and 0 … 3 of the next are; a0, a2: A of the next. Two
 * registers are loaded at a time, at least four products (one cycle on four pipes) before they are used. */
/* clang-format off */
#define GROUP_OF(x0, x1, x2, x3, b4, n0, n2, a0, a2)                                    \
    TWO_ROWS("0", "1", "0", "1", x0, x1) TWO_ROWS("2", "3", "0", "1", x0, x1)           \
    LOAD_TWO(x0, x1, "pb", b4)                                                          \
    TWO_ROWS("0", "1", "2", "3", x2, x3) TWO_ROWS("2", "3", "2", "3", x2, x3)           \
    LOAD_TWO(x2, x3, "pb", n0)                                                          \
    TWO_ROWS("0", "1", "4", "5", x0, x1) LOAD_TWO("0", "1", "pa", a0)                   \
    TWO_ROWS("2", "3", "4", "5", x0, x1) LOAD_TWO("2", "3", "pa", a2)                   \
    LOAD_TWO(x0, x1, "pb", n2)
/* clang-format on */
#define FIRST_GROUP              GROUP_OF("4", "5", "6", "7", "64", "96", "128", "64", "96")
#define SECOND_GROUP             GROUP_OF("6", "7", "4", "5", "160", "192", "224", "128", "160")

#define EACH_PAIR(X) X(0) X(1) X(2) X(3)

GEMM_INLINE void sums(v4 s[PAIRS_A][PAIRS_B], int64_t n_group, const uint16_t *pa, const uint16_t *pb)
{
#define DECLARE(p)   float32x4_t c##p##0, c##p##1, c##p##2, c##p##3, c##p##4, c##p##5;
#define ZERO(p)                                                                   \
    "movi %[c" #p "0].4s, #0\nmovi %[c" #p "1].4s, #0\nmovi %[c" #p "2].4s, #0\n" \
    "movi %[c" #p "3].4s, #0\nmovi %[c" #p "4].4s, #0\nmovi %[c" #p "5].4s, #0\n"
#define OUTPUT(p)                                                                                           \
    [c##p##0] "=&w"(c##p##0), [c##p##1] "=&w"(c##p##1), [c##p##2] "=&w"(c##p##2), [c##p##3] "=&w"(c##p##3), \
        [c##p##4] "=&w"(c##p##4), [c##p##5] "=&w"(c##p##5)
#define KEEP(p)                                                                                                        \
    s[p][0] = (v4)c##p##0, s[p][1] = (v4)c##p##1, s[p][2] = (v4)c##p##2, s[p][3] = (v4)c##p##3, s[p][4] = (v4)c##p##4, \
    s[p][5] = (v4)c##p##5;
    EACH_PAIR(DECLARE)
    __asm__ volatile(ZERO(0) ZERO(1) ZERO(2) ZERO(3) "ldp q0, q1, [%[pa]]\n"
                                                     "ldp q2, q3, [%[pa], #32]\n"
                                                     "ldp q4, q5, [%[pb]]\n"
                                                     "ldp q6, q7, [%[pb], #32]\n"
                                                     "subs %[k], %[k], #2\n"
                                                     "b.lt 2f\n"
                                                     ".p2align 5\n"
                                                     "1:\n" /* two groups */
                     FIRST_GROUP SECOND_GROUP "add %[pa], %[pa], #128\n"
                                                     "add %[pb], %[pb], #192\n"
                                                     "subs %[k], %[k], #2\n"
                                                     "b.ge 1b\n"
                                                     "2:\n"
                                                     "adds %[k], %[k], #2\n"
                                                     "b.eq 3f\n" /* or one more */
                     FIRST_GROUP "3:\n"
                     : OUTPUT(0), OUTPUT(1), OUTPUT(2), OUTPUT(3), [pa] "+&r"(pa), [pb] "+&r"(pb), [k] "+&r"(n_group)
                     :
                     : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "cc", "memory");
    EACH_PAIR(KEEP)
}

static double spin(int64_t n)
{
    const int64_t rounds = n;
    EACH_PAIR(DECLARE)
    __asm__ volatile(ZERO(0) ZERO(1) ZERO(2)
                         ZERO(3) "movi v0.4s, #0\nmovi v1.4s, #0\nmovi v2.4s, #0\nmovi v3.4s, #0\nmovi v4.4s, #0\n"
                                 "1:\n.rept 8\n" TWO_ROWS("0", "1", "0", "1", "4", "4")
                                     TWO_ROWS("2", "3", "0", "1", "4", "4") TWO_ROWS("0", "1", "2", "3", "4", "4")
                                         TWO_ROWS("2", "3", "2", "3", "4", "4") TWO_ROWS("0", "1", "4", "5", "4", "4")
                                             TWO_ROWS("2", "3", "4", "5", "4", "4") ".endr\nsubs %[k], %[k], #1\n"
                                                                                    "b.gt 1b\n"
                     : OUTPUT(0), OUTPUT(1), OUTPUT(2), OUTPUT(3), [k] "+&r"(n)
                     :
                     : "v0", "v1", "v2", "v3", "v4", "cc");
    return (double)rounds * 8 * 24 * 32;
}

static bool usable(void)
{
    enum { HAS_BF16 = 1 << 14 }; /* HWCAP2_BF16 */
    return (getauxval(AT_HWCAP2) & HAS_BF16) != 0;
}
#endif

static void micro(int64_t kb, const float *pa, const float *pb, float *c, int64_t ldc, const float *bias, bool add)
{
    v4 s[PAIRS_A][PAIRS_B];
    for (int i = 0; i < GEMM_MR; i++) {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + GEMM_NR - 1, 1);
    }
    sums(s, gemm_ceil_div(kb, GROUP), (const uint16_t *)(const void *)pa, (const uint16_t *)(const void *)pb);
    for (int p = 0; p < PAIRS_A; p++)
        for (int q = 0; q < PAIRS_B; q += 2) {
            const v4 row[2] = {__builtin_shufflevector(s[p][q], s[p][q + 1], 0, 1, 4, 5),
                               __builtin_shufflevector(s[p][q], s[p][q + 1], 2, 3, 6, 7)};
            for (int e = 0; e < 2; e++) {
                v4 *out = (v4 *)(c + (2 * p + e) * ldc + 2 * q), v = row[e];
                if (add) v = *out + v;
                if (bias) v = v + *(const v4 *)(bias + 2 * q);
                *out = v;
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
    .nt = 384,
    .tmp_nbytes = 512, /* 8 x 12 floats, and what the last group loads beyond its panel */
    .pack_a = pack_a,
    .pack_b = pack_b,
    .block = gemm_tile_block,
};
