/* embed_fwd.cu - y[r] = drop(wte[ids[r] - first] + wpe[pos + r mod T]); a row that is not here counts as 0.
 *
 * Bytes   6RC at most (16-bit types): rows of tables that come again are found in L2. A warp makes a row. */
#include "compute/cuda/kernels/vec.cuh"

namespace {

#define WARPS 8

template <class T> struct job {
    T *y;
    const int32_t *ids;
    int64_t first, V;
    const T *wte, *wpe;
    int64_t R, T_;
    int C;
    drop_arg drop;
    const ls_pass_head *at; /* pos of it; NULL: 0 */
};

template <class T, int N> __global__ void __launch_bounds__(32 * WARPS) embed(const job<T> a)
{
    const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (r >= a.R) return;
    const uint64_t key = drop_key(a.drop);
    const int64_t id = a.ids[r] - a.first;
    const T *token = id >= 0 && id < a.V ? a.wte + id * a.C : nullptr;
    const T *place = a.wpe ? a.wpe + ((a.at ? a.at->pos : 0) + r % a.T_) * a.C : nullptr;
#pragma unroll 4
    for (int j = threadIdx.x % 32 * N; j < a.C; j += 32 * N) {
        float y[N], p[N];
        widen(y, token ? vec_load<N>(token + j) : vec_zero<T, N>());
        widen(p, place ? vec_load<N>(place + j) : vec_zero<T, N>());
#pragma unroll
        for (int i = 0; i < N; i++) y[i] += p[i];
        drop_all(y, a.drop, key, r * a.C + j);
        vec_store<N>(a.y + r * a.C + j, vec_of<T>(y));
    }
}

} // namespace

extern "C" int cu_embed_fwd(void *stream, ls_dtype dt, void *y, const int32_t *ids, int64_t first, int64_t V,
                            const void *wte, const void *wpe, int64_t B, int64_t T, int64_t C, ls_drop drop)
{
    if (B * T <= 0 || C <= 0) return 0;
    const unsigned blocks = (unsigned)ceil_div<int64_t>(B * T, WARPS);
    LS_DISPATCH(dt, E, {
        const job<E> a = {(E *)y, ids,    first,         V,      (const E *)wte, (const E *)wpe, B * T,
                          T,      (int)C, drop_of(drop), drop.at};
        const bool packs = C % whole<E> == 0 && aligned16(y, wte, wpe);
        return LS_LAUNCH((packs ? embed<E, whole<E>> : embed<E, 1>), blocks, 32 * WARPS, 0, stream, a);
    });
}
