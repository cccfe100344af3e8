/* narrow.cu - parameters from master weights: p = x, rounded to the nearest or stochastically. 6n bytes. */
#include "compute/cuda/kernels/point.cuh"
#include "compute/cuda/kernels/round.cuh"

namespace {

template <class T, bool STOCHASTIC> struct cast {
    T *p;
    const float *x;
    cu_rounding round;
    ls_gains gains;
    __device__ void prepare() {}
    template <int N> struct in {
        vec<float, N> x;
    };
    template <int N> __device__ in<N> load(int64_t at) const { return {vec_load<N>(x + at)}; }
    template <int N> __device__ void make(int64_t at, const in<N> &v) const
    {
        float f[N];
        widen(f, v.x);
        vec_store<N>(p + at, round_all<T, STOCHASTIC>(f, round, gains, at));
    }
};

template <class T, bool STOCHASTIC>
int start(void *stream, void *p, const float *x, int64_t n, const cu_rounding &round, const ls_gains &gains)
{
    const cast<T, STOCHASTIC> op = {(T *)p, x, round, gains};
    return point_start<4>(stream, op, n, aligned16(p, x));
}

} // namespace

extern "C" int cu_narrow(void *stream, ls_dtype dt, void *p, const float *x, int64_t n, const ls_gains *gains,
                         const cu_rounding *round)
{
    const ls_gains none = {}, which = gains && dt != LS_F32 ? *gains : none;
    const cu_rounding nearest = {}, how = round ? *round : nearest;
    if (dt == LS_F32 && p == x) return 0;
    if (how.on && dt == LS_F16) return (int)cudaErrorNotSupported;
    if (how.on && dt == LS_BF16) return start<__nv_bfloat16, true>(stream, p, x, n, how, which);
    LS_DISPATCH(dt, T, return (start<T, false>(stream, p, x, n, how, which)));
    return (int)cudaErrorInvalidValue;
}
