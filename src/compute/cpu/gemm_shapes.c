/* gemm_shapes.c - the matrix products of a training step, for benchmarks and for the floor that a step is compared with. */
#include "compute/cpu/gemm.h"

int gemm_step_shapes(gemm_shape out[GEMM_STEP_SHAPES], int64_t R, int64_t C, int64_t L, int64_t V, int64_t chunk)
{
    /* y (R,N) = x (R,K) w (K,N) */
    const struct {
        const char *what[3];
        int64_t K, N;
    } layer[] = {
        {{"qkv fwd", "qkv dx", "qkv dw"}, C, 3 * C},
        {{"proj fwd", "proj dx", "proj dw"}, C, C},
        {{"fc fwd", "fc dx", "fc dw"}, C, 4 * C},
        {{"fc2 fwd", "fc2 dx", "fc2 dw"}, 4 * C, C},
    };
    int n = 0;
    for (int i = 0; i < 4; i++) {
        int64_t K = layer[i].K, N = layer[i].N;
        out[n++] = (gemm_shape){.what = layer[i].what[0], .M = R, .N = N, .K = K, .count = L};
        out[n++] = (gemm_shape){.what = layer[i].what[1], .tb = true, .M = R, .N = K, .K = N, .count = L};
        out[n++] = (gemm_shape){.what = layer[i].what[2], .ta = true, .M = K, .N = N, .K = R, .count = L};
    }
    if (chunk > R) chunk = R;
    for (int64_t rows = chunk, count = R / chunk; rows; rows = rows == chunk ? R % chunk : 0, count = 1) {
        out[n++] = (gemm_shape){.what = "logits", .tb = true, .M = rows, .N = V, .K = C, .count = count};
        out[n++] = (gemm_shape){.what = "logits dx", .M = rows, .N = C, .K = V, .count = count};
        out[n++] =
            (gemm_shape){.what = "logits dw", .ta = true, .acc = true, .M = V, .N = C, .K = rows, .count = count};
    }
    return n;
}
