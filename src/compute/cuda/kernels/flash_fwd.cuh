/* flash_fwd.cuh - y_i = sum_j drop(softmax_j(scale q_i.k_j)) v_j over j <= i, and lse_i; see flash.h.
 *
 *   a block   BM rows of queries of one head; tiles of BN keys and values pass through two places in shared memory, the next one in flight
 *             while this one is worked on (one place before 8.0, whose copies are plain loads: other blocks work meanwhile); the sum is held relative to the largest score so far, and rescaled when that grows
 *   moves     qkv once and y once from and to memory (keys and values come from the second-level cache): 4 x B x T x C elements
 *   makes     2 x B x H x T x T x D products and sums (half of the square is left out)
 *   spills    some registers of float heads wider than 64 (3xTF32: 244 bytes), which are rare, and on 7.5 of heads of 64 with dropout (16 bytes) */
#ifndef LS_CUDA_FLASH_FWD_CUH
#define LS_CUDA_FLASH_FWD_CUH

#include "flash_tile.cuh"

template <class MM, int DP, bool EXACT, bool DROP> struct fwd_shape {
    typedef typename MM::E E;
    static const int WIDE = sizeof(E) == 4, PLACES = MM::FAMILY >= 80 ? 2 : 1;
    static const int MT = !WIDE && !MM::QUADS && DP == 64 && EXACT ? 2 : 1, BM = 64 * MT, BN = WIDE ? 32 : 64;
    static const bool HELD = !((WIDE || MM::QUADS) && DP == 128) && !(DROP && MT == 2); /* queries stay in registers */
    static const int Q = 0, K = BM * DP * (int)sizeof(E), ONE = BN * DP * (int)sizeof(E), V = K + PLACES * ONE,
                     NBYTES = V + PLACES * ONE;
    static_assert(NBYTES <= (MM::FAMILY >= 80 ? 99 : 64) << 10, "as flash_tile.cuh says");
};

/* One tile of keys and values. first_row: of the warp; j0: the tile's first key. EDGE: some of them are ahead of some of the rows. */
template <class MM, int DP, bool EXACT, bool DROP, bool EDGE>
FLASH_PART void fwd_step(float (*o)[DP / 8][4], float (*top)[2], float (*sum)[2], uint32_t (*q)[DP / MM::K][MM::A],
                         saddr mem, saddr k, saddr v, int row0, int first_row, int j0, float scale2,
                         const flash_drop &drop)
{
    typedef fwd_shape<MM, DP, EXACT, DROP> sh;
    typedef flash_operands<MM, DP> op;
    const int MT = sh::MT, NT = sh::BN / 8, lane = (int)threadIdx.x & 31;
    const int last_row = first_row + MT * 16 - 1;
    const lane_at la = op::lane_a(lane), lb = op::lane_b(lane);
    float s[MT][NT][4];
    flash_zero(s);

#pragma unroll
    for (int n = 0; n < NT; n += 2) {
        if (EDGE && j0 + n * 8 > last_row) continue;
#pragma unroll
        for (int c = 0; c < DP / MM::K; c++) {
            uint32_t b[MM::B];
            op::load(b, k, lb, n * 8, c);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                if (!sh::HELD) op::load(q[m][c], mem + sh::Q, la, row0 + m * 16, c);
                MM::template products<false>(s[m] + n, q[m][c], b);
            }
        }
    }

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = first_row + m * 16 + h * MM::STEP + MM::row(lane);
            float high = top[m][h], below, less, added = 0;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if (EDGE && j0 + MM::tile(n) + MM::col(lane) + e > i) s[m][n][2 * h + e] = -INFINITY;
                    high = fmaxf(high, s[m][n][2 * h + e]);
                }
            high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, MM::MATE));
            high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, MM::MATE2));
            below = high * scale2; /* finite: key 0 is in the first tile, and no row is before it */
            less = ex2(top[m][h] * scale2 - below);
            top[m][h] = high;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float p = ex2(fmaf(s[m][n][2 * h + e], scale2, -below));
                    added += p;
                    if (DROP && !flash_kept(drop, i, j0 + MM::tile(n) + MM::col(lane) + e)) p = 0;
                    s[m][n][2 * h + e] = p;
                }
            sum[m][h] = sum[m][h] * less + added;
#pragma unroll
            for (int n = 0; n < DP / 8; n++) o[m][n][2 * h] *= less, o[m][n][2 * h + 1] *= less;
        }

#pragma unroll
    for (int c = 0; c < sh::BN / MM::K; c++) {
        if (EDGE && j0 + c * MM::K > last_row) continue;
        uint32_t a[MT][MM::A];
#pragma unroll
        for (int m = 0; m < MT; m++) MM::from_sums(a[m], &s[m][c * MM::K / 8]);
#pragma unroll
        for (int n = 0; n < DP / 8; n += 2) {
            uint32_t b[MM::B];
            op::load_bt(b, v, la, c * MM::K, n * 8, lane);
#pragma unroll
            for (int m = 0; m < MT; m++) MM::template products<true>(o[m] + n, a[m], b);
        }
    }
}

/* CACHED: keys and values are those of a cache, and row i of the queries is position pos + i; lse is not written. */
template <class MM, int DP, bool EXACT, bool DROP, bool CACHED> LS_DEVICE void fwd_block(const flash_job &j)
{
    typedef typename MM::E E;
    typedef fwd_shape<MM, DP, EXACT, DROP> sh;
    typedef flash_operands<MM, DP> op;
    char *mem = LS_SHARED_DYNAMIC(char);
    const int MT = sh::MT, T = j.T, D = EXACT ? DP : j.D;
    const flash_place p = flash_where(j, block_again(), (T + sh::BM - 1) / sh::BM, true);
    const int pos = !CACHED ? 0 : j.at ? (int)((const ls_pass_head *)j.at)->pos : j.pos;
    const int i0 = p.tile * sh::BM, row0 = (int)threadIdx.x / 32 * 16 * MT, first_row = pos + i0 + row0;
    const int C = j.H * D, ld = 3 * C, ldk = CACHED ? D : ld, n_key = pos + T;
    const E *q = (const E *)j.qkv + flash_before(p.b * T, ld) + p.h * D, *k = q + C, *v = k + C;
    if (CACHED) {
        const int64_t head = flash_before(p.b * j.H + p.h, j.Tmax) * D;
        k = (const E *)j.kcache + head, v = (const E *)j.vcache + head;
    }
    const int end = pos + i0 + sh::BM < n_key ? pos + i0 + sh::BM : n_key; /* keys of this block */
    const float scale2 = j.scale2;
    flash_drop drop = {0, 0, 0, 0, 0};
    if (DROP) drop = flash_drop_of(j, p);

    const auto load_keys = [&](int at, int first) {
        flash_load<E, DP, EXACT, sh::BN>(mem, sh::K + at * sh::ONE, k, ldk, first, n_key, D);
        flash_load<E, DP, EXACT, sh::BN>(mem, sh::V + at * sh::ONE, v, ldk, first, n_key, D);
        cp_async_commit();
    };
    flash_load<E, DP, EXACT, sh::BM>(mem, sh::Q, q, ld, i0, T, D);
    load_keys(0, 0);

    const saddr smem = shared_address(mem);
    float o[MT][DP / 8][4], top[MT][2], sum[MT][2];
    uint32_t held[MT][DP / MM::K][MM::A];
#pragma unroll
    for (int m = 0; m < MT; m++) top[m][0] = top[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0;
    flash_zero(o);
    for (int j0 = 0, at = 0; j0 < end; j0 += sh::BN, at ^= sh::PLACES - 1) {
        const bool more = j0 + sh::BN < end;
        cp_async_wait<0>();
        __syncthreads();
        if (j0 == 0 && sh::HELD) {
            const lane_at la = op::lane_a((int)threadIdx.x & 31);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int c = 0; c < DP / MM::K; c++) op::load(held[m][c], smem + sh::Q, la, row0 + m * 16, c);
        }
        if (sh::PLACES == 2 && more) load_keys(at ^ 1, j0 + sh::BN);
        const saddr kt = smem + (sh::K + at * sh::ONE), vt = smem + (sh::V + at * sh::ONE);
        if (j0 + sh::BN - 1 <= first_row)
            fwd_step<MM, DP, EXACT, DROP, false>(o, top, sum, held, smem, kt, vt, row0, first_row, j0, scale2, drop);
        else if (j0 < first_row + MT * 16)
            fwd_step<MM, DP, EXACT, DROP, true>(o, top, sum, held, smem, kt, vt, row0, first_row, j0, scale2, drop);
        if (sh::PLACES == 1 && more) {
            __syncthreads(); /* the tiles have been read */
            load_keys(0, j0 + sh::BN);
        }
    }

    const flash_place to = flash_where(j, block_again(), (T + sh::BM - 1) / sh::BM, true); /* p, which was not kept */
    float factor[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float all = sum[m][h];
            all += __shfl_xor_sync(0xffffffffu, all, MM::MATE);
            all += __shfl_xor_sync(0xffffffffu, all, MM::MATE2);
            factor[m][h] = (DROP ? j.keep : 1.0f) / all;
            const int lane = (int)threadIdx.x & 31, i = first_row + m * 16 + h * MM::STEP + MM::row(lane);
            if (!CACHED && (lane & (MM::MATE | MM::MATE2)) == 0 && i < T)
                j.lse[flash_row(j, to) + i] = (top[m][h] * scale2 + log2f(all)) * (1 / FLASH_LOG2E);
        }
    flash_store<MM, DP, EXACT, MT>(mem + sh::Q, o, factor, (E *)j.y + flash_before(to.b * T, C) + to.h * D, C,
                                   to.tile * sh::BM, T, D);
}

template <class MM, int DP, bool EXACT, bool DROP, bool CACHED>
__global__ void __launch_bounds__(32 * FLASH_WARPS, 2) flash_fwd(flash_job j)
{
    if constexpr (MM::COMPILED) fwd_block<MM, DP, EXACT, DROP, CACHED>(j);
}

template <class MM, int DP, bool EXACT, bool DROP> struct flash_forward {
    static int launch(const cu_attention_job *j, void *stream)
    {
        typedef fwd_shape<MM, DP, EXACT, DROP> sh;
        return flash_launch(flash_fwd<MM, DP, EXACT, DROP, false>, sh::BM, FLASH_WARPS, sh::NBYTES, stream, j);
    }
};

template <class MM, int DP, bool EXACT, bool> struct flash_cached { /* without dropout */
    static int launch(const cu_attention_job *j, void *stream)
    {
        typedef fwd_shape<MM, DP, EXACT, false> sh;
        return flash_launch(flash_fwd<MM, DP, EXACT, false, true>, sh::BM, FLASH_WARPS, sh::NBYTES, stream, j);
    }
};

#endif
