/* adamw.cu - one AdamW step over a flat range: moments and master weights in float, parameters in dtype; and parameters from master weights.
 *
 *   g' = g grad_scale (+ decay w, coupled);  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2
 *   w  = w - lr ( (m/bias1) / (sqrt(v/bias2) + eps) (+ decay w, decoupled) );  p = w, rounded
 * Ranges of h->plain have no decay; p of h->gains is w - 1 (compute.h). Parameters are rounded to the nearest, or stochastically.
 * With h->at the device has decided: the factor is read from there, and without an update nothing is written.
 *
 * Bytes   narrow 6n; AdamW 30n: 16 read, 14 written (28n in float, where p is w). Nothing is read again soon: accesses stream. */
#include "compute/cuda/kernels/point.cuh"

namespace {

/* Up with the probability of the bits that are dropped over 2^16: they carry into the rest when 16 random bits are
 * added. */
LS_DEVICE __nv_bfloat16 bf16_stochastic(float x, uint32_t random)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return __float2bfloat16_rn(x); /* infinities, NaNs */
    return bits_as<bf16>((unsigned short)((u + (random & 0xffffu)) >> 16));
}

/* Elements at … at+N-1 of the range; gains among them are changed. */
template <class T, bool STOCHASTIC, int N>
LS_DEVICE vec<T, N> round_all(float (&f)[N], const ls_rounding &round, const ls_gains &gains, int64_t at)
{
#pragma unroll
    for (int k = 0; k < LS_MOST_GAINS; k++)
#pragma unroll
        for (int i = 0; i < N; i++)
            if (k < gains.n && at + i >= gains.at[k][0] && at + i < gains.at[k][1]) f[i] -= 1.0f;
    if constexpr (STOCHASTIC) {
        bf16 x[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = bf16_stochastic(f[i], ls_rng_u32(round.key, (uint32_t)(round.first + at + i)));
        return bits_as<vec<T, N>>(x);
    } else {
        return vec_of<T>(f);
    }
}

struct rates {
    float lr, beta1, beta2, rest1, rest2, inv_bias1, inv_bias2, eps, decay;
    bool coupled;
    int n_plain;
    int32_t plain[LS_ADAMW_PLAIN]
                 [2]; /* of at most 2^31 - 1 elements: small, as several are the arguments of one launch */
    ls_gains gains;
};

template <class T, bool STOCHASTIC> struct step {
    T *p;
    float *w, *m, *v;
    const float *g;
    rates h;
    ls_rounding round;
    const ls_decision *at;
    double grad_scale;

    struct decided {
        double factor;
        int64_t update;
    };
    /* Used after the elements were loaded: nothing waits for it alone. */
    __device__ decided prepare() const { return at ? decided{at->factor, at->update} : decided{grad_scale, 1}; }
    template <int N> struct in {
        vec<float, N> w, g, m, v;
    };
    template <int N> __device__ in<N> load(int64_t at) const
    {
        return {vec_load<N, true>(w + at), vec_load<N, true>(g + at), vec_load<N, true>(m + at),
                vec_load<N, true>(v + at)};
    }
    template <int N> __device__ void make(int64_t at, const in<N> &x, const decided &d) const
    {
        if (!d.update) return;
        const float factor = (float)d.factor;
        float w1[N], g1[N], m1[N], v1[N],
            decay[N]; /* each rounding as in simd_kernels.inc: the CPU gives the same bits */
        widen(w1, x.w);
        widen(g1, x.g);
        widen(m1, x.m);
        widen(v1, x.v);
#pragma unroll
        for (int i = 0; i < N; i++) decay[i] = h.decay;
        for (int k = 0; k < h.n_plain; k++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (at + i >= h.plain[k][0] && at + i < h.plain[k][1]) decay[i] = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float coupled = h.coupled ? decay[i] : 0, decoupled = h.coupled ? 0 : decay[i];
            g1[i] = fmaf(coupled, w1[i], g1[i] * factor);
            m1[i] = fmaf(m1[i], h.beta1, g1[i] * h.rest1);
            v1[i] = fmaf(v1[i], h.beta2, g1[i] * g1[i] * h.rest2);
            const float u = m1[i] * h.inv_bias1 / (sqrtf(v1[i] * h.inv_bias2) + h.eps);
            w1[i] = fmaf(fmaf(decoupled, w1[i], u), -h.lr, w1[i]);
        }
        vec_store<N, true>(w + at, vec_of<float>(w1));
        vec_store<N, true>(m + at, vec_of<float>(m1));
        vec_store<N, true>(v + at, vec_of<float>(v1));
        if (sizeof(T) != sizeof(float)) vec_store<N>(p + at, round_all<T, STOCHASTIC>(w1, round, h.gains, at));
    }
};

template <class T, bool STOCHASTIC> step<T, STOCHASTIC> step_of(const ls_adamw_job &a)
{
    const ls_adamw &h = a.h;
    rates r = {};
    r.lr = (float)h.lr, r.eps = (float)h.eps, r.decay = (float)h.weight_decay;
    r.beta1 = (float)h.beta1, r.rest1 = (float)(1.0 - h.beta1), r.inv_bias1 = (float)(1.0 / h.bias1);
    r.beta2 = (float)h.beta2, r.rest2 = (float)(1.0 - h.beta2), r.inv_bias2 = (float)(1.0 / h.bias2);
    r.coupled = h.coupled, r.n_plain = h.n_plain, r.gains = h.gains;
    for (int k = 0; k < h.n_plain; k++) r.plain[k][0] = (int32_t)h.plain[k][0], r.plain[k][1] = (int32_t)h.plain[k][1];
    T *p = sizeof(T) == sizeof(float) ? nullptr : (T *)a.p; /* else it is master */
    return {p, (float *)a.master, (float *)a.m, (float *)a.v, (const float *)a.g, r, h.round, h.at, h.grad_scale};
}

bool packs(const ls_adamw_job &a)
{
    return aligned16(a.p, a.master, a.g, a.m, a.v);
}

/* Several ranges in one launch: without it the device drains and fills up again between them, 12 times in a step of GPT-2. */
#define MOST 15 /* whose arguments are 4 KiB */
template <class Op> struct several {
    int n;
    uint32_t first[MOST]; /* block where range i begins */
    int64_t count[MOST];
    Op op[MOST];
};

template <class Op>
__global__ void __launch_bounds__(POINT_THREADS) point_several(const __grid_constant__ several<Op> a)
{
    int i = 0;
    while (i + 1 < a.n && blockIdx.x >= a.first[i + 1]) i++;
    point_block<4>(a.op[i], a.count[i], blockIdx.x - a.first[i]);
}

template <class T, bool STOCHASTIC> int start(void *stream, const ls_adamw_job *job, int n_job)
{
    typedef step<T, STOCHASTIC> op;
    static_assert(sizeof(several<op>) <= 4096, "the arguments of a launch");
    several<op> now = {};
    uint32_t blocks = 0;
    for (int i = 0; i < n_job; i++) {
        if (job[i].n <= 0) continue;
        if (job[i].n > INT32_MAX) return (int)cudaErrorInvalidValue;
        if (n_job == 1 || !packs(job[i])) {
            const int code = point_start<4>(stream, step_of<T, STOCHASTIC>(job[i]), job[i].n, packs(job[i]));
            if (code) return code;
            continue;
        }
        now.first[now.n] = blocks;
        now.count[now.n] = job[i].n;
        now.op[now.n++] = step_of<T, STOCHASTIC>(job[i]);
        blocks += (uint32_t)point_blocks(job[i].n / 4);
        if (now.n < MOST) continue;
        const int code = LS_LAUNCH(point_several<op>, blocks, POINT_THREADS, 0, stream, now);
        if (code) return code;
        now.n = 0, blocks = 0;
    }
    return now.n ? LS_LAUNCH(point_several<op>, blocks, POINT_THREADS, 0, stream, now) : 0;
}

template <class T, bool STOCHASTIC> struct cast {
    T *p;
    const float *x;
    ls_gains gains;
    ls_rounding round;

    __device__ int prepare() const { return 0; }
    template <int N> struct in {
        vec<float, N> x;
    };
    template <int N> __device__ in<N> load(int64_t at) const { return {vec_load<N>(x + at)}; }
    template <int N> __device__ void make(int64_t at, const in<N> &v, int) const
    {
        float f[N];
        widen(f, v.x);
        vec_store<N>(p + at, round_all<T, STOCHASTIC>(f, round, gains, at));
    }
};

template <class T, bool STOCHASTIC>
int start_cast(void *stream, void *p, const float *x, int64_t n, const ls_gains &gains, const ls_rounding &round)
{
    const cast<T, STOCHASTIC> op = {(T *)p, x, gains, round};
    return point_start<4>(stream, op, n, aligned16(p, x));
}

} // namespace

extern "C" int cu_adamw_many(void *stream, ls_dtype dt, const ls_adamw_job *job, int n_job, bool stochastic)
{
    if (stochastic && dt == LS_F16) return (int)cudaErrorNotSupported;
    if (stochastic && dt == LS_BF16) return start<bf16, true>(stream, job, n_job);
    LS_DISPATCH(dt, T, return (start<T, false>(stream, job, n_job)));
}

extern "C" int cu_adamw(void *stream, ls_dtype dt, void *p, float *master, const float *g, float *m, float *v,
                        int64_t n, const ls_adamw *h, const ls_rounding *round)
{
    ls_adamw_job one = {p, master, g, m, v, n, *h};
    if (round) one.h.round = *round;
    return cu_adamw_many(stream, dt, &one, 1, round != nullptr);
}

extern "C" int cu_narrow(void *stream, ls_dtype dt, void *p, const float *x, int64_t n, const ls_gains *gains,
                         const ls_rounding *round)
{
    const ls_gains no_gains = {}, at = gains && dt != LS_F32 ? *gains : no_gains;
    const ls_rounding none = {}, how = round ? *round : none;
    if (dt == LS_F32 && p == x) return 0;
    if (round && dt == LS_F16) return (int)cudaErrorNotSupported;
    if (round && dt == LS_BF16) return start_cast<bf16, true>(stream, p, x, n, at, how);
    LS_DISPATCH(dt, T, return (start_cast<T, false>(stream, p, x, n, at, how)));
}
