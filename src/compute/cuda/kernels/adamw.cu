/* adamw.cu - one AdamW step over a flat range: moments and master weights in float, parameters in dtype.
 *
 *   g' = g grad_scale (+ decay w, coupled);  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2
 *   w  = w - lr ( (m/bias1) / (sqrt(v/bias2) + eps) (+ decay w, decoupled) );  p = w, rounded
 * Ranges of h->plain have no decay; p of h->gains is w - 1 (compute.h).
 *
 * Bytes   30n: 16 read, 14 written (28n in float, where p is w). Nothing is read again soon: accesses stream. */
#include "compute/cuda/kernels/point.cuh"
#include "compute/cuda/kernels/round.cuh"

namespace {

struct rates {
    float lr, beta1, beta2, rest1, rest2, inv_bias1, inv_bias2, eps, decay, grad_scale;
    bool coupled;
    int n_plain;
    int64_t plain[LS_ADAMW_PLAIN][2];
    ls_gains gains;
};

template <class T, bool STOCHASTIC> struct step {
    T *p;
    float *w, *m, *v;
    const float *g;
    rates h;
    cu_rounding round;

    __device__ void prepare() {}
    template <int N> struct in {
        vec<float, N> w, g, m, v;
    };
    template <int N> __device__ in<N> load(int64_t at) const
    {
        return {vec_load<N, true>(w + at), vec_load<N, true>(g + at), vec_load<N, true>(m + at),
                vec_load<N, true>(v + at)};
    }
    template <int N> __device__ void make(int64_t at, const in<N> &x) const
    {
        float w1[N], g1[N], m1[N], v1[N], decay[N];
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
            g1[i] *= h.grad_scale;
            if (h.coupled) g1[i] += decay[i] * w1[i];
            m1[i] = h.beta1 * m1[i] + h.rest1 * g1[i];
            v1[i] = h.beta2 * v1[i] + h.rest2 * g1[i] * g1[i];
            float u = m1[i] * h.inv_bias1 / (sqrtf(v1[i] * h.inv_bias2) + h.eps);
            if (!h.coupled) u += decay[i] * w1[i];
            w1[i] -= h.lr * u;
        }
        vec_store<N, true>(w + at, vec_of<float>(w1));
        vec_store<N, true>(m + at, vec_of<float>(m1));
        vec_store<N, true>(v + at, vec_of<float>(v1));
        if (sizeof(T) != sizeof(float)) vec_store<N>(p + at, round_all<T, STOCHASTIC>(w1, round, h.gains, at));
    }
};

template <class T, bool STOCHASTIC>
int start(void *stream, void *p, float *master, const float *g, float *m, float *v, int64_t n, const rates &h,
          const cu_rounding &round)
{
    const step<T, STOCHASTIC> op = {(T *)p, master, m, v, g, h, round};
    return point_start<4>(stream, op, n, aligned16(p, master, g, m, v));
}

} // namespace

extern "C" int cu_adamw(void *stream, ls_dtype dt, void *p, float *master, const float *g, float *m, float *v,
                        int64_t n, const ls_adamw *h, const cu_rounding *round)
{
    rates r = {};
    r.lr = (float)h->lr, r.eps = (float)h->eps, r.decay = (float)h->weight_decay, r.grad_scale = (float)h->grad_scale;
    r.beta1 = (float)h->beta1, r.rest1 = (float)(1.0 - h->beta1), r.inv_bias1 = (float)(1.0 / h->bias1);
    r.beta2 = (float)h->beta2, r.rest2 = (float)(1.0 - h->beta2), r.inv_bias2 = (float)(1.0 / h->bias2);
    r.coupled = h->coupled, r.n_plain = h->n_plain, r.gains = h->gains;
    for (int k = 0; k < h->n_plain; k++) r.plain[k][0] = h->plain[k][0], r.plain[k][1] = h->plain[k][1];
    const cu_rounding nearest = {}, how = round ? *round : nearest;
    if (how.on && dt == LS_F16) return (int)cudaErrorNotSupported;
    if (how.on && dt == LS_BF16) return start<__nv_bfloat16, true>(stream, p, master, g, m, v, n, r, how);
    if (dt == LS_F32) p = nullptr; /* it is master */
    LS_DISPATCH(dt, T, return (start<T, false>(stream, p, master, g, m, v, n, r, how)));
    return (int)cudaErrorInvalidValue;
}
