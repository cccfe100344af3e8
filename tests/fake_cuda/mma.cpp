/* mma.cpp - products of small matrices by a warp; here, and not in the header, because kernels are compiled with little optimization. */
#include "fake_cuda/emu.h"

/* Products are exact; their sum is computed in double and rounded once. */
template <int N> void emu_mma(float d[4], const emu_operands<N> &mine, const char *what)
{
    const emu_operands<N> *all = (const emu_operands<N> *)emu_warp_exchange(&mine, sizeof mine, 0xffffffffu, what);
    const unsigned lane = emu_lane(), g = lane / 4, t = lane % 4;
    double sum[4] = {d[0], d[1], d[2], d[3]};
    for (unsigned w = 0; w < 2; w++)
        for (unsigned k = 0; k < 4; k++) {
            const emu_operands<N> &x = all[4 * g + k], &y = all[8 * t + k], &z = all[8 * t + 4 + k];
            for (unsigned i = 0; i < N; i++) {
                const double upper = x.a[2 * w][i], lower = x.a[2 * w + 1][i], left = y.b[w][i], right = z.b[w][i];
                sum[0] += upper * left;
                sum[1] += upper * right;
                sum[2] += lower * left;
                sum[3] += lower * right;
            }
        }
    for (unsigned i = 0; i < 4; i++) d[i] = (float)sum[i];
}

template void emu_mma(float d[4], const emu_operands<1> &mine, const char *what);
template void emu_mma(float d[4], const emu_operands<2> &mine, const char *what);

/* The groups and parts of kernels/mma.cuh ("Quads"): element i of d is row r + (i & 2), column c + (i & 4) + (i & 1). */
void emu_mma_quads(float d[8], const emu_quads &mine, bool rows)
{
    const emu_quads *all = (const emu_quads *)emu_warp_exchange(&mine, sizeof mine, 0xffffffffu, "mma.m8n8k4");
    const unsigned lane = emu_lane(), group = lane / 4 % 4;
    for (unsigned i = 0; i < 8; i++) {
        const unsigned r = (lane & 1) + lane / 16 * 4 + (i & 2), c = (lane & 2) + (i & 4) + (i & 1);
        double sum = d[i];
        for (unsigned k = 0; k < 4; k++) {
            const float a = all[r / 4 * 16 + group * 4 + r % 4].a[k];
            const float b = rows ? all[c / 4 * 16 + group * 4 + k].b[c % 4] : all[c / 4 * 16 + group * 4 + c % 4].b[k];
            sum += (double)a * b;
        }
        d[i] = (float)sum;
    }
}
