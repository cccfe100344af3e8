/* flash_bwd.cuh - the gradient of flash_fwd.cuh, as two kernels that each own what they write; see flash.h.
 *
 *   flash_dq    a block has rows of queries: delta_i = dy_i.y_i first (kept for the other kernel), then dq over the keys before them
 *   flash_dkv   a block has rows of keys: dk and dv over the queries after them. Rows of its matrices are keys: p and ds are made transposed, which
 *               is how the sums over queries want them
 *   both        take tiles of the other side through two places in shared memory, and make p a few columns at a time: lse is known, so no
 *               column waits for another
 *   moves       qkv, dy, y and dqkv once each (8 x B x T x C elements), and qkv and dy a second time
 *   makes       7 x B x H x T x T x D / 2 products and sums
 *   spills      on 7.5, D 64: 16 bytes in flash_dkv, 8 in flash_dq with dropout */
#ifndef LS_CUDA_FLASH_BWD_CUH
#define LS_CUDA_FLASH_BWD_CUH

#include "flash_tile.cuh"

template <class MM, int DP, bool EXACT> struct bwd_shape {
    typedef typename MM::E E;
    static const int WIDE = sizeof(E) == 4, SMALL = MM::FAMILY < 80, PLACES = SMALL ? 1 : 2;
    static const int MT = !WIDE && !MM::QUADS && DP == 64 && EXACT ? 2 : 1, WARPS = SMALL && WIDE && DP == 128 ? 2 : 4;
    static const int OWN = 16 * WARPS * MT;                                             /* rows of the block */
    static const int PASS = DP == 128 ? (WIDE ? 16 : SMALL ? 32 : 64) : WIDE ? 32 : 64; /* of tiles that pass */
    static const int PART = MT == 2 || DP == 128 ? 16 : 32; /* columns at a time of flash_dq */
    static const bool HELD_DQ =
        !MM::QUADS && (WIDE ? DP == 64 && EXACT : DP == 64 || EXACT); /* q and dy stay in registers */
    static const bool HELD_K = DP == 64;                              /* k does, in flash_dkv */
    static const int ROW = DP * (int)sizeof(E), ONE = PASS * ROW;
    /* flash_dq: q, dy | k, k | v, v | delta;    flash_dkv: k, v | q, q | dy, dy | lse, lse | delta, delta */
    static const int A = 0, B = OWN * ROW, X = 2 * OWN * ROW, Y = X + PLACES * ONE, S = Y + PLACES * ONE;
    static const int DQ_NBYTES = S + OWN * 4, DKV_NBYTES = S + 4 * PASS * 4;
    static_assert((DQ_NBYTES > DKV_NBYTES ? DQ_NBYTES : DKV_NBYTES) <= (SMALL ? 64 : 99) << 10,
                  "as flash_tile.cuh says");
};

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* delta of the warp's rows, into shared and into device memory: CHUNKS lanes a row, each a chunk of it. */
template <class MM, int DP, bool EXACT>
FLASH_PART void dq_delta(char *mem, const typename MM::E *y, int ld, float *delta, int i0, int row0, int T, int D)
{
    typedef typename MM::E E;
    typedef bwd_shape<MM, DP, EXACT> sh;
    typedef flash_tile<E, DP> tl;
    const int lane = (int)threadIdx.x & 31, c = lane % tl::CHUNKS;
#pragma unroll
    for (int n = 0; n < sh::MT * 16 * tl::CHUNKS / 32; n++) {
        const int r = row0 + n * (32 / tl::CHUNKS) + lane / tl::CHUNKS, i = i0 + r;
        const E *dy = (const E *)(mem + sh::B + tl::chunk(r, c)), *from = y + flash_before(i, ld) + c * tl::EACH;
        float sum = 0;
        if (EXACT || D % tl::EACH == 0) {
            if (i < T && (EXACT || c * tl::EACH < D)) {
                float a[tl::EACH], b[tl::EACH];
                widen(a, vec_load<tl::EACH>(dy));
                widen(b, vec_load<tl::EACH>(from));
#pragma unroll
                for (int e = 0; e < tl::EACH; e++) sum = fmaf(a[e], b[e], sum);
            }
        } else {
#pragma unroll 1
            for (int e = 0; e < tl::EACH; e++)
                if (i < T && c * tl::EACH + e < D) sum = fmaf(to_float(dy[e]), to_float(from[e]), sum);
        }
#pragma unroll
        for (int d = tl::CHUNKS / 2; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (c == 0) {
            ((float *)(mem + sh::S))[r] = sum;
            if (i < T) delta[i] = sum;
        }
    }
    __syncwarp();
}

/* PART columns from key j1 on, which is row c1 of the tiles. EDGE: some are ahead of some of the warp's rows. */
template <class MM, int DP, bool EXACT, bool DROP, bool EDGE>
FLASH_PART void dq_part(float (*dq)[DP / 8][4], uint32_t (*q)[DP / MM::K][MM::A], uint32_t (*dy)[DP / MM::K][MM::A],
                        const float (*lse2)[2], const float (*delta)[2], saddr mem, saddr k, saddr v, int row0,
                        int first_row, int j1, int c1, const flash_job &j, const flash_drop &drop)
{
    typedef bwd_shape<MM, DP, EXACT> sh;
    typedef flash_operands<MM, DP> op;
    const int MT = sh::MT, NT = sh::PART / 8, lane = (int)threadIdx.x & 31;
    const lane_at la = op::lane_a(lane), lb = op::lane_b(lane);
    float s[MT][NT][4], dp[MT][NT][4];
    flash_zero(s);
    flash_zero(dp);
#pragma unroll
    for (int c = 0; c < DP / MM::K; c++) {
        if (!sh::HELD_DQ)
#pragma unroll
            for (int m = 0; m < MT; m++) {
                op::load(q[m][c], mem + sh::A, la, row0 + m * 16, c);
                op::load(dy[m][c], mem + sh::B, la, row0 + m * 16, c);
            }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t bk[MM::B], bv[MM::B];
            op::load(bk, k, lb, c1 + n * 8, c);
            op::load(bv, v, lb, c1 + n * 8, c);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                MM::template products<false>(s[m] + n, q[m][c], bk);
                MM::template products<false>(dp[m] + n, dy[m][c], bv);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int h = e >> 1, i = first_row + m * 16 + h * MM::STEP + MM::row(lane),
                          col = j1 + MM::tile(n) + MM::col(lane) + (e & 1);
                float p = ex2(fmaf(s[m][n][e], j.scale2, -lse2[m][h])), d = dp[m][n][e];
                if (DROP) d = flash_kept(drop, i, col) ? d * j.keep : 0;
                if (EDGE && col > i) p = 0;
                s[m][n][e] = p * (d - delta[m][h]);
            }
#pragma unroll
    for (int c = 0; c < sh::PART / MM::K; c++) {
        uint32_t a[MT][MM::A];
#pragma unroll
        for (int m = 0; m < MT; m++) MM::from_sums(a[m], &s[m][c * MM::K / 8]);
#pragma unroll
        for (int n = 0; n < DP / 8; n += 2) {
            uint32_t b[MM::B];
            op::load_bt(b, k, la, c1 + c * MM::K, n * 8, lane);
#pragma unroll
            for (int m = 0; m < MT; m++) MM::template products<true>(dq[m] + n, a[m], b);
        }
    }
}

template <class MM, int DP, bool EXACT, bool DROP> LS_DEVICE void dq_block(const flash_job &j)
{
    typedef typename MM::E E;
    typedef bwd_shape<MM, DP, EXACT> sh;
    typedef flash_operands<MM, DP> op;
    char *mem = LS_SHARED_DYNAMIC(char);
    const int MT = sh::MT, T = j.T, D = EXACT ? DP : j.D;
    const flash_place p = flash_where(j, block_again(), (T + sh::OWN - 1) / sh::OWN, true);
    const int i0 = p.tile * sh::OWN, row0 = (int)threadIdx.x / 32 * 16 * MT, first_row = i0 + row0;
    const int last_row = first_row + MT * 16 - 1, lane = (int)threadIdx.x & 31;
    const int C = j.H * D, ld = 3 * C, head = p.h * D;
    const int64_t in_qkv = flash_before(p.b * T, ld) + head, in_y = flash_before(p.b * T, C) + head;
    const E *q = (const E *)j.qkv + in_qkv, *k = q + C;
    const int end = i0 + sh::OWN < T ? i0 + sh::OWN : T;
    flash_drop drop = {0, 0, 0, 0, 0};
    if (DROP) drop = flash_drop_of(j, p);

    const auto load_keys = [&](int at, int first) {
        flash_load<E, DP, EXACT, sh::PASS, sh::WARPS>(mem, sh::X + at * sh::ONE, k, ld, first, T, D);
        flash_load<E, DP, EXACT, sh::PASS, sh::WARPS>(mem, sh::Y + at * sh::ONE, k + C, ld, first, T, D);
        cp_async_commit();
    };
    flash_load<E, DP, EXACT, sh::OWN, sh::WARPS>(mem, sh::A, q, ld, i0, T, D);
    flash_load<E, DP, EXACT, sh::OWN, sh::WARPS>(mem, sh::B, (const E *)j.dy + in_y, C, i0, T, D);
    load_keys(0, 0);

    const saddr smem = shared_address(mem);
    float dq[MT][DP / 8][4], lse2[MT][2], delta[MT][2];
    uint32_t hq[MT][DP / MM::K][MM::A], hdy[MT][DP / MM::K][MM::A];
    flash_zero(dq);
    for (int j0 = 0, at = 0; j0 < end; j0 += sh::PASS, at ^= sh::PLACES - 1) {
        const bool more = j0 + sh::PASS < end;
        cp_async_wait<0>();
        __syncthreads();
        if (sh::PLACES == 2 && more) load_keys(at ^ 1, j0 + sh::PASS);
        if (j0 == 0) {
            const lane_at la = op::lane_a(lane);
            dq_delta<MM, DP, EXACT>(mem, (const E *)j.y + in_y, C, j.delta + flash_row(j, p), i0, row0, T, D);
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int h = 0; h < 2; h++) { /* rows from T on: finite, and not stored */
                    const int r = row0 + m * 16 + h * MM::STEP + MM::row(lane), i = i0 + r;
                    lse2[m][h] = (i < T ? j.lse[flash_row(j, p) + i] : 0) * FLASH_LOG2E;
                    delta[m][h] = ((const float *)(mem + sh::S))[r];
                }
                if (sh::HELD_DQ)
#pragma unroll
                    for (int c = 0; c < DP / MM::K; c++) {
                        op::load(hq[m][c], smem + sh::A, la, row0 + m * 16, c);
                        op::load(hdy[m][c], smem + sh::B, la, row0 + m * 16, c);
                    }
            }
        }
        const saddr kt = smem + (sh::X + at * sh::ONE), vt = smem + (sh::Y + at * sh::ONE);
        if (j0 + sh::PASS - 1 <= first_row) {
#pragma unroll 1
            for (int c1 = 0; c1 < sh::PASS; c1 += sh::PART)
                dq_part<MM, DP, EXACT, DROP, false>(dq, hq, hdy, lse2, delta, smem, kt, vt, row0, first_row, j0 + c1,
                                                    c1, j, drop);
        } else {
#pragma unroll 1
            for (int c1 = 0; c1 < sh::PASS && j0 + c1 <= last_row; c1 += sh::PART)
                dq_part<MM, DP, EXACT, DROP, true>(dq, hq, hdy, lse2, delta, smem, kt, vt, row0, first_row, j0 + c1, c1,
                                                   j, drop);
        }
        if (sh::PLACES == 1 && more) {
            __syncthreads(); /* the tiles have been read */
            load_keys(0, j0 + sh::PASS);
        }
    }
    const flash_place at = flash_where(j, block_again(), (T + sh::OWN - 1) / sh::OWN, true); /* p, which was not kept */
    float factor[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) factor[m][0] = factor[m][1] = j.scale;
    flash_store<MM, DP, EXACT, MT>(mem + sh::A, dq, factor, (E *)j.dqkv + flash_before(at.b * T, ld) + at.h * D, ld,
                                   at.tile * sh::OWN, T, D);
}

/* ---- keys and values --------------------------------------------------------------------------------------------- */

/* 16 columns, which are queries: from i1 on, row c1 of the tiles. EDGE: some of the warp's keys are ahead of some of them. */
template <class MM, int DP, bool EXACT, bool DROP, bool EDGE>
FLASH_PART void dkv_part(float (*dk)[DP / 8][4], float (*dv)[DP / 8][4], uint32_t (*held)[DP / MM::K][MM::A],
                         const float *stat, saddr mem, saddr q, saddr dy, int row0, int first_row, int i1, int c1,
                         const flash_job &j, const flash_drop &drop)
{
    typedef bwd_shape<MM, DP, EXACT> sh;
    typedef flash_operands<MM, DP> op;
    const int MT = sh::MT, lane = (int)threadIdx.x & 31;
    const lane_at la = op::lane_a(lane), lb = op::lane_b(lane);
    float s[MT][2][4], dp[MT][2][4];
    flash_zero(s);
    flash_zero(dp);
#pragma unroll
    for (int c = 0; c < DP / MM::K; c++) {
        uint32_t bq[MM::B], bdy[MM::B], a[MM::A];
        op::load(bq, q, lb, c1, c);
        op::load(bdy, dy, lb, c1, c);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if (!sh::HELD_K) op::load(held[m][c], mem + sh::A, la, row0 + m * 16, c);
            MM::template products<false>(s[m], held[m][c], bq);
            op::load(a, mem + sh::B, la, row0 + m * 16, c);
            MM::template products<false>(dp[m], a, bdy);
        }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float2 l = *(const float2 *)(stat + c1 + MM::tile(n) + MM::col(lane));
        const float2 dl = *(const float2 *)(stat + 2 * sh::PASS + c1 + MM::tile(n) + MM::col(lane));
        const float lse2[2] = {l.x * FLASH_LOG2E, l.y * FLASH_LOG2E}, less[2] = {dl.x, dl.y};
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = first_row + m * 16 + (e >> 1) * MM::STEP + MM::row(lane),
                          i = i1 + MM::tile(n) + MM::col(lane) + (e & 1);
                float p = ex2(fmaf(s[m][n][e], j.scale2, -lse2[e & 1])), d = dp[m][n][e];
                if (EDGE && row > i) p = 0;
                const bool kept = !DROP || flash_kept(drop, i, row);
                if (DROP) d = kept ? d * j.keep : 0;
                dp[m][n][e] = p * (d - less[e & 1]);
                s[m][n][e] = kept ? p : 0; /* times `keep` at the end */
            }
    }
#pragma unroll
    for (int c = 0; c < 16 / MM::K; c++) {
        uint32_t ap[MT][MM::A], as[MT][MM::A];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            MM::from_sums(ap[m], &s[m][c * MM::K / 8]);
            MM::from_sums(as[m], &dp[m][c * MM::K / 8]);
        }
#pragma unroll
        for (int n = 0; n < DP / 8; n += 2) {
            uint32_t b[MM::B];
            op::load_bt(b, dy, la, c1 + c * MM::K, n * 8, lane);
#pragma unroll
            for (int m = 0; m < MT; m++) MM::template products<true>(dv[m] + n, ap[m], b);
            op::load_bt(b, q, la, c1 + c * MM::K, n * 8, lane);
#pragma unroll
            for (int m = 0; m < MT; m++) MM::template products<true>(dk[m] + n, as[m], b);
        }
    }
}

/* One tile of queries: q, dy, lse and delta of its rows; what is not there is 0, and adds nothing. */
template <class MM, int DP, bool EXACT>
FLASH_PART void dkv_load(char *mem, int at, const typename MM::E *q, const typename MM::E *dy, const flash_job &j,
                         int row, int ldq, int ldy, int i0, int T, int D)
{
    typedef typename MM::E E;
    typedef bwd_shape<MM, DP, EXACT> sh;
    const int HALF = 16 * sh::WARPS;
    flash_load<E, DP, EXACT, sh::PASS, sh::WARPS>(mem, sh::X + at * sh::ONE, q, ldq, i0, T, D);
    flash_load<E, DP, EXACT, sh::PASS, sh::WARPS>(mem, sh::Y + at * sh::ONE, dy, ldy, i0, T, D);
    const int n = (int)threadIdx.x % HALF, i = i0 + n;
    const bool second = threadIdx.x >= HALF, there = i < T;
    const float *from = (second ? j.delta : j.lse) + row;
    if (n < sh::PASS)
        cp_async4(shared_address(mem) + (sh::S + ((second ? 2 : 0) + at) * sh::PASS * 4 + n * 4),
                  there ? from + i : from, there);
    cp_async_commit();
}

template <class MM, int DP, bool EXACT, bool DROP> LS_DEVICE void dkv_block(const flash_job &j)
{
    typedef typename MM::E E;
    typedef bwd_shape<MM, DP, EXACT> sh;
    typedef flash_operands<MM, DP> op;
    char *mem = LS_SHARED_DYNAMIC(char);
    const int MT = sh::MT, T = j.T, D = EXACT ? DP : j.D;
    const flash_place p = flash_where(j, block_again(), (T + sh::OWN - 1) / sh::OWN, false);
    const int j0 = p.tile * sh::OWN, row0 = (int)threadIdx.x / 32 * 16 * MT, first_row = j0 + row0;
    const int C = j.H * D, ld = 3 * C, head = p.h * D;
    const int64_t in_qkv = flash_before(p.b * T, ld) + head, in_y = flash_before(p.b * T, C) + head;
    const E *q = (const E *)j.qkv + in_qkv, *dy = (const E *)j.dy + in_y;
    const int row = (int)flash_row(j, p);
    flash_drop drop = {0, 0, 0, 0, 0};
    if (DROP) drop = flash_drop_of(j, p);

    flash_load<E, DP, EXACT, sh::OWN, sh::WARPS>(mem, sh::A, q + C, ld, j0, T, D);
    flash_load<E, DP, EXACT, sh::OWN, sh::WARPS>(mem, sh::B, q + 2 * C, ld, j0, T, D);
    dkv_load<MM, DP, EXACT>(mem, 0, q, dy, j, row, ld, C, j0, T, D);

    const saddr smem = shared_address(mem);
    float dk[MT][DP / 8][4], dv[MT][DP / 8][4];
    uint32_t held[MT][DP / MM::K][MM::A];
    flash_zero(dk);
    flash_zero(dv);
    for (int i0 = j0, at = 0; i0 < T; i0 += sh::PASS, at ^= sh::PLACES - 1) {
        const bool more = i0 + sh::PASS < T;
        cp_async_wait<0>();
        __syncthreads();
        if (sh::PLACES == 2 && more) dkv_load<MM, DP, EXACT>(mem, at ^ 1, q, dy, j, row, ld, C, i0 + sh::PASS, T, D);
        if (i0 == j0 && sh::HELD_K) {
            const lane_at la = op::lane_a((int)threadIdx.x & 31);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int c = 0; c < DP / MM::K; c++) op::load(held[m][c], smem + sh::A, la, row0 + m * 16, c);
        }
        const saddr qt = smem + (sh::X + at * sh::ONE), dyt = smem + (sh::Y + at * sh::ONE);
        const float *stat = (const float *)(mem + sh::S) + at * sh::PASS; /* lse, and delta 2 PASS after */
        if (i0 >= first_row + MT * 16 - 1) {
#pragma unroll 1
            for (int c1 = 0; c1 < sh::PASS; c1 += 16)
                dkv_part<MM, DP, EXACT, DROP, false>(dk, dv, held, stat, smem, qt, dyt, row0, first_row, i0 + c1, c1, j,
                                                     drop);
        } else {
#pragma unroll 1
            for (int c1 = 0; c1 < sh::PASS; c1 += 16)
                if (i0 + c1 + 15 >= first_row)
                    dkv_part<MM, DP, EXACT, DROP, true>(dk, dv, held, stat, smem, qt, dyt, row0, first_row, i0 + c1, c1,
                                                        j, drop);
        }
        if (sh::PLACES == 1 && more) {
            __syncthreads(); /* the tiles have been read */
            dkv_load<MM, DP, EXACT>(mem, 0, q, dy, j, row, ld, C, i0 + sh::PASS, T, D);
        }
    }
    const flash_place at =
        flash_where(j, block_again(), (T + sh::OWN - 1) / sh::OWN, false); /* p, which was not kept */
    float factor[MT][2];
    E *to = (E *)j.dqkv + flash_before(at.b * T, ld) + at.h * D;
#pragma unroll
    for (int m = 0; m < MT; m++) factor[m][0] = factor[m][1] = j.scale;
    flash_store<MM, DP, EXACT, MT>(mem + sh::A, dk, factor, to + C, ld, at.tile * sh::OWN, T, D);
#pragma unroll
    for (int m = 0; m < MT; m++) factor[m][0] = factor[m][1] = DROP ? j.keep : 1.0f;
    flash_store<MM, DP, EXACT, MT>(mem + sh::B, dv, factor, to + 2 * C, ld, at.tile * sh::OWN, T, D);
}

template <class MM, int DP, bool EXACT, bool DROP>
__global__ void __launch_bounds__(32 * bwd_shape<MM, DP, EXACT>::WARPS, 2) flash_dq(flash_job j)
{
    if constexpr (MM::COMPILED) dq_block<MM, DP, EXACT, DROP>(j);
}

template <class MM, int DP, bool EXACT, bool DROP>
__global__ void __launch_bounds__(32 * bwd_shape<MM, DP, EXACT>::WARPS, 2) flash_dkv(flash_job j)
{
    if constexpr (MM::COMPILED) dkv_block<MM, DP, EXACT, DROP>(j);
}

template <class MM, int DP, bool EXACT, bool DROP> struct flash_backward {
    static int launch(const cu_attention_job *j, void *stream)
    {
        typedef bwd_shape<MM, DP, EXACT> sh;
        const int e = flash_launch(flash_dq<MM, DP, EXACT, DROP>, sh::OWN, sh::WARPS, sh::DQ_NBYTES, stream, j);
        return e ? e : flash_launch(flash_dkv<MM, DP, EXACT, DROP>, sh::OWN, sh::WARPS, sh::DKV_NBYTES, stream, j);
    }
};

#endif
