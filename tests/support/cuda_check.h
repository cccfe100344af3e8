/* cuda_check.h - for tests of kernels on the emulated device or a real one: device arrays with a copy in double, and
 * checks of results.
 *
 * A check is a function that makes inputs from fixed keys, queues kernels and states the expected outputs. judge_orders
 * runs it with the threads of a block in their normal order and in two shuffled orders: all outputs must agree byte for
 * byte, and the numbers of the first run must be within their tolerance. */
#ifndef LS_TESTS_CUDA_CHECK_H
#define LS_TESTS_CUDA_CHECK_H

#include "compute/cuda/gpu.cuh"
#include "compute/cuda/kernels/kernels.h"
extern "C" {
#include "cmocka_all.h"
#include "core/rng.h"
}

#include <functional>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

#define CU(call) assert_int_equal((int)(call), 0)

/* For main: true, and a line that the test is skipped, if there is no device; main then returns 77. */
static inline bool no_cuda_device()
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return false;
    printf("skipped: there is no CUDA device\n");
    return true;
}

/* The short form of a test for one more emulated card, which the environment names. */
static inline bool brief()
{
    return getenv("LS_EMU_GPU") && !getenv("LS_TEST_ALL");
}

static const ls_dtype TYPES[] = {LS_F32, LS_BF16, LS_F16};

/* Half the distance between 1 and the next number: the relative error of rounding. */
static inline double unit_of(ls_dtype dt)
{
    return dt == LS_BF16 ? 0x1p-8 : dt == LS_F16 ? 0x1p-11 : dt == LS_F32 ? 0x1p-24 : 0x1p-53;
}

static inline double narrowed(ls_dtype dt, double x)
{
    const float f = (float)x;
    return dt == LS_F64    ? x
           : dt == LS_BF16 ? (double)to_float(from_float<bf16>(f))
           : dt == LS_F16  ? (double)to_float(from_float<f16>(f))
                           : (double)f;
}

/* n elements on the device, `off` elements after an aligned address. */
struct array {
    ls_dtype dt = LS_F32;
    int64_t n = 0, off = 0;
    unsigned char *base = nullptr;
    std::vector<double> was; /* the exact values that were written */

    array(ls_dtype type, int64_t count, int64_t shift = 0) : dt(type), n(count), off(shift)
    {
        CU(cudaMalloc((void **)&base, (size_t)(n + off) * ls_dtype_nbytes(dt)));
        CU(cudaMemset(base, 0xff,
                      (size_t)(n + off) * ls_dtype_nbytes(dt))); /* NaN: a read before the first write is visible */
    }
    array(const array &) = delete;
    array &operator=(const array &) = delete;
    ~array() { cudaFree(base); }
    void *at() const { return base + (size_t)off * ls_dtype_nbytes(dt); }
    float *f() const { return (float *)at(); }
    double *d() const { return (double *)at(); }
    int32_t *i() const { return (int32_t *)at(); }

    array &put(const std::vector<double> &x)
    {
        std::vector<unsigned char> raw((size_t)n * ls_dtype_nbytes(dt));
        was.resize((size_t)n);
        for (size_t k = 0; k < (size_t)n; k++) {
            was[k] = dt == LS_I32 ? x[k] : narrowed(dt, x[k]);
            const float v = (float)was[k];
            if (dt == LS_F64) ((double *)raw.data())[k] = was[k];
            else if (dt == LS_F32) ((float *)raw.data())[k] = v;
            else if (dt == LS_BF16) ((bf16 *)raw.data())[k] = from_float<bf16>(v);
            else if (dt == LS_F16) ((f16 *)raw.data())[k] = from_float<f16>(v);
            else ((int32_t *)raw.data())[k] = (int32_t)was[k];
        }
        CU(cudaMemcpy(at(), raw.data(), raw.size(), cudaMemcpyHostToDevice));
        return *this;
    }
    array &random(int key, double scale = 1, double shift = 0)
    {
        std::vector<double> x((size_t)n);
        for (size_t k = 0; k < x.size(); k++)
            x[k] = ls_rng_normal(ls_rng_key(11, LS_RNG_TEST, (uint64_t)key, 0), k) * scale + shift;
        return put(x);
    }
    std::vector<unsigned char> bytes() const
    {
        std::vector<unsigned char> raw((size_t)n * ls_dtype_nbytes(dt));
        CU(cudaMemcpy(raw.data(), at(), raw.size(), cudaMemcpyDeviceToHost));
        return raw;
    }
    std::vector<double> get() const
    {
        const std::vector<unsigned char> raw = bytes();
        std::vector<double> x((size_t)n);
        for (size_t k = 0; k < (size_t)n; k++)
            x[k] = dt == LS_F64    ? ((const double *)raw.data())[k]
                   : dt == LS_F32  ? (double)((const float *)raw.data())[k]
                   : dt == LS_BF16 ? (double)to_float(((const bf16 *)raw.data())[k])
                   : dt == LS_F16  ? (double)to_float(((const f16 *)raw.data())[k])
                                   : (double)((const int32_t *)raw.data())[k];
        return x;
    }
};

/* The outputs of a check. */
struct verdict {
    std::string of;
    bool first = true;                            /* numbers are compared only in the first run */
    std::vector<std::vector<unsigned char>> bits; /* bytes of every output, in order */

    /* The tolerance is the rounding to the type of the array plus `slack` times the largest element (or `top`, the size
     * of its inputs) for the float arithmetic before it. */
    void near(const char *name, const array &a, const std::vector<double> &want, double slack, double top = 0)
    {
        bits.push_back(a.bytes());
        if (!first) return;
        const std::vector<double> got = a.get();
        double worst = 0;
        assert_int_equal(got.size(), want.size());
        for (double w : want) top = fabs(w) > top ? fabs(w) : top;
        for (size_t k = 0; k < got.size(); k++) {
            const double room = 1.01 * unit_of(a.dt) * fabs(want[k]) + slack * top + (a.dt == LS_F16 ? 0x1p-25 : 1e-37);
            const double miss = fabs(got[k] - want[k]) / room;
            if (miss > worst || !(miss == miss)) worst = miss == miss ? miss : 1e30;
            if (!(miss <= 1)) {
                printf("%s %s: element %zu is %.9g, expected %.9g (tolerance %.2e, largest %.3g)\n", of.c_str(), name,
                       k, got[k], want[k], room, top);
                fail();
            }
        }
        if (getenv("LS_TEST_VERBOSE"))
            printf("%-60s %-8s largest error %.2f of its tolerance\n", of.c_str(), name, worst);
    }
    void same(const char *name, const array &a, const std::vector<double> &want)
    {
        bits.push_back(a.bytes());
        const std::vector<double> got = a.get();
        for (size_t k = 0; k < want.size(); k++)
            if (got[k] != want[k]) {
                printf("%s %s: element %zu is %.17g, expected %.17g\n", of.c_str(), name, k, got[k], want[k]);
                fail();
            }
    }
};

template <class... A> static std::string words(const char *fmt, A... a)
{
    char line[200];
    snprintf(line, sizeof line, fmt, a...);
    return line;
}

static void judge_orders(const std::string &name, const std::function<void(verdict &, void *)> &check)
{
    std::vector<std::vector<unsigned char>> bits;
    static const char *const orders[] = {"", "1", "77"};
    cudaStream_t stream;
    CU(cudaStreamCreate(&stream));
    for (const char *order : orders) {
        verdict v;
        v.of = name + (*order ? std::string(" order ") + order : "");
        v.first = !*order;
        CU(setenv("LS_EMU_ORDER", order, 1));
        check(v, stream);
        if (v.first) bits = v.bits;
        else if (bits != v.bits) {
            printf("%s: the bits differ from those of the normal order of threads\n", v.of.c_str());
            fail();
        }
    }
    CU(setenv("LS_EMU_ORDER", "", 1));
    CU(cudaStreamDestroy(stream));
}

/* The factor of dropout for element i; keys as in compute.h. */
static inline double keeps(const ls_drop &d, int64_t i)
{
    if (d.p <= 0) return 1;
    return ls_rng_u32(d.key, (uint32_t)i) >= (uint32_t)ceil((double)d.p * 4294967296.0) ? 1.0 / (1.0 - (double)d.p) : 0;
}

#endif
