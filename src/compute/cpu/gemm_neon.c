/* gemm_neon.c - fp32 micro-kernel for 128-bit NEON: 8 x 12 of C in 24 of the 32 registers, multiplied by lane.
 *
 * A step of K loads 2 + 3 vectors and does 24 multiply-adds; with four pipes (Neoverse-V1) that is 6 cycles, and 24 independent
 * sums hide the latency of 4. kc = 512: a panel of B (24 KiB) and one of A (16 KiB) share a first cache of 64 KiB. */
#include <arm_neon.h>

enum { GEMM_MR = 8, GEMM_NR = 12 };
#define GEMM_A_STAYS 0
#include "compute/cpu/gemm_pack.h"

#pragma GCC diagnostic ignored "-Woverlength-strings" /* the loop below is one string of more than 4095 characters */

/* The loop is assembly: gcc 12 spills part of the 24 sums (47 GFLOP/s a core instead of 74), and a step's operands must be
 * loaded one step ahead, because waiting multiply-adds fill the issue queues and hold back the loads after them. Beside the
 * sums there are 8 registers: two pairs for A in turn, and four for the three vectors of B, where each load takes the register
 * that the vector before has just left. After four steps every role is back where it began. A panel's last step loads what
 * is after the panel (at most 32 and 48 bytes, inside the scratch) and drops it. */
#define COLUMN(j, b, a0, a1)                                                                 \
    "fmla %[c0" j "].4s, " b ".4s, " a0 ".s[0]\nfmla %[c1" j "].4s, " b ".4s, " a0 ".s[1]\n" \
    "fmla %[c2" j "].4s, " b ".4s, " a0 ".s[2]\nfmla %[c3" j "].4s, " b ".4s, " a0 ".s[3]\n" \
    "fmla %[c4" j "].4s, " b ".4s, " a1 ".s[0]\nfmla %[c5" j "].4s, " b ".4s, " a1 ".s[1]\n" \
    "fmla %[c6" j "].4s, " b ".4s, " a1 ".s[2]\nfmla %[c7" j "].4s, " b ".4s, " a1 ".s[3]\n"
/* this step: A in a0, a1, B in 2 3 4 (numbers x0 x1 x2); the next one's A goes to n0, n1, its B to x3, x0, x1 */
#define STEP(a0, a1, n0, n1, x0, x1, x2, x3, a_at, b0_at, b1_at, b2_at)                    \
    "ldp q" n0 ", q" n1 ", [%[pa], #" a_at "]\n"                                           \
    "ldr q" x3 ", [%[pb], #" b0_at                                                         \
    "]\n" COLUMN("0", "v" x0, "v" a0, "v" a1) "ldr q" x0 ", [%[pb], #" b1_at "]\n" COLUMN( \
        "1", "v" x1, "v" a0, "v" a1) "ldr q" x1 ", [%[pb], #" b2_at "]\n" COLUMN("2", "v" x2, "v" a0, "v" a1)
#define LOAD_STEP           \
    "ldp q0, q1, [%[pa]]\n" \
    "ldp q2, q3, [%[pb]]\n" \
    "ldr q4, [%[pb], #32]\n"
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

static void micro(int64_t kb, const float *pa, const float *pb, float *c, int64_t ldc, const float *bias, bool add)
{
#define DECLARE(i) float32x4_t c##i##0, c##i##1, c##i##2;
#define ZERO(i)    "movi %[c" #i "0].4s, #0\nmovi %[c" #i "1].4s, #0\nmovi %[c" #i "2].4s, #0\n"
#define OUTPUT(i)  [c##i##0] "=w"(c##i##0), [c##i##1] "=w"(c##i##1), [c##i##2] "=w"(c##i##2)
    EACH_ROW(DECLARE)
    for (int i = 0; i < GEMM_MR; i++) {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + GEMM_NR - 1, 1);
    }
    __asm__ volatile(ZERO(0) ZERO(1) ZERO(2) ZERO(3) ZERO(4) ZERO(5) ZERO(6) ZERO(7) LOAD_STEP "subs %[k], %[k], #4\n"
                                                                                               "b.lt 2f\n"
                                                                                               ".p2align 5\n"
                                                                                               "1:\n" /* four steps */
                     STEP("0", "1", "5", "6", "2", "3", "4", "7", "32", "48", "64", "80")
                         STEP("5", "6", "0", "1", "7", "2", "3", "4", "64", "96", "112", "128")
                             STEP("0", "1", "5", "6", "4", "7", "2", "3", "96", "144", "160", "176")
                                 STEP("5", "6", "0", "1", "3", "4", "7", "2", "128", "192", "208",
                                      "224") "add %[pa], %[pa], #128\n"
                                             "add %[pb], %[pb], #192\n"
                                             "subs %[k], %[k], #4\n"
                                             "b.ge 1b\n"
                                             "2:\n"
                                             "adds %[k], %[k], #4\n"
                                             "b.eq 4f\n"
                                             "3:\n" /* the rest of K, one by one */
                     COLUMN("0", "v2", "v0", "v1") COLUMN("1", "v3", "v0", "v1")
                         COLUMN("2", "v4", "v0", "v1") "add %[pa], %[pa], #32\n"
                                                       "add %[pb], %[pb], #48\n" LOAD_STEP "subs %[k], %[k], #1\n"
                                                       "b.gt 3b\n"
                                                       "4:\n"
                     : OUTPUT(0), OUTPUT(1), OUTPUT(2), OUTPUT(3), OUTPUT(4), OUTPUT(5), OUTPUT(6),
                       OUTPUT(7), [pa] "+r"(pa), [pb] "+r"(pb), [k] "+r"(kb)
                     :
                     : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "cc", "memory");
    if (add) {
#define ADD(i)                                                \
    c##i##0 = vaddq_f32(vld1q_f32(c + (i)*ldc), c##i##0);     \
    c##i##1 = vaddq_f32(vld1q_f32(c + (i)*ldc + 4), c##i##1); \
    c##i##2 = vaddq_f32(vld1q_f32(c + (i)*ldc + 8), c##i##2);
        EACH_ROW(ADD)
    }
    if (bias) {
        float32x4_t b0 = vld1q_f32(bias), b1 = vld1q_f32(bias + 4), b2 = vld1q_f32(bias + 8);
#define BIAS(i)                       \
    c##i##0 = vaddq_f32(c##i##0, b0); \
    c##i##1 = vaddq_f32(c##i##1, b1); \
    c##i##2 = vaddq_f32(c##i##2, b2);
        EACH_ROW(BIAS)
    }
#define OUT(i)                           \
    vst1q_f32(c + (i)*ldc, c##i##0);     \
    vst1q_f32(c + (i)*ldc + 4, c##i##1); \
    vst1q_f32(c + (i)*ldc + 8, c##i##2);
    EACH_ROW(OUT)
}

/* Whole vectors: with one lane for all sums, as it would be here, the instruction takes twice as long on a Neoverse-V1. */
static double spin(int64_t n)
{
    const int64_t rounds = n;
#define FMLA(i)                           \
    "fmla %[c" #i "0].4s, v0.4s, v1.4s\n" \
    "fmla %[c" #i "1].4s, v0.4s, v1.4s\n" \
    "fmla %[c" #i "2].4s, v0.4s, v1.4s\n"
    EACH_ROW(DECLARE)
    __asm__ volatile(ZERO(0) ZERO(1) ZERO(2) ZERO(3) ZERO(4) ZERO(5) ZERO(6)
                         ZERO(7) "movi v0.4s, #0\nmovi v1.4s, #0\n"
                                 "1:\n.rept 8\n" EACH_ROW(FMLA) ".endr\nsubs %[k], %[k], #1\n"
                                                                "b.gt 1b\n"
                     : OUTPUT(0), OUTPUT(1), OUTPUT(2), OUTPUT(3), OUTPUT(4), OUTPUT(5), OUTPUT(6),
                       OUTPUT(7), [k] "+r"(n)
                     :
                     : "v0", "v1", "cc");
    return (double)rounds * 8 * 24 * 8;
}

const gemm_kernel gemm_kernel_neon = {
    .name = "neon",
    GEMM_TILE_KERNEL,
    .kc = 512,
    .mt = 256,
    .nt = 192,
    .tmp_nbytes = 512, /* 8 x 12 floats */
    .spin = spin,
};
