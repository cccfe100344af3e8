/* cublaslt.cpp - products of the emulated library: plain loops, sums in float over ascending k, rounded once; queued on the stream as kernels
 * of one thread. It refuses what the library refuses (epilogues that need other types or strides), and more when a test requests it. */
#include "fake_cuda/cublaslt.h"
#include "compute/cuda/gpu.cuh"
#include "fake_cuda/fp8.h"

#include <vector>

namespace {

struct desc {
    int32_t compute, opa, opb;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
    const float *a_scale, *b_scale; /* factors of 8-bit operands */
    int8_t fast;
};
struct layout {
    int32_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct preference {
    uint64_t room;
    uint32_t schemes, align[4];
};
struct algorithm {
    uint64_t id;
};

template <class T, class O> T *in(O *o)
{
    static_assert(sizeof(T) <= sizeof(O), "too large");
    return reinterpret_cast<T *>(o);
}
template <class T, class O> const T *in(const O *o)
{
    return reinterpret_cast<const T *>(o);
}

emu_lt state;

uint32_t scheme_of(uint64_t id)
{
    return id == EMU_LT_SPLIT     ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
           : id == EMU_LT_INPLACE ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                                  : CUBLASLT_REDUCTION_SCHEME_NONE;
}

/* ---- elements ---- */

bool narrow(int type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

/* The numbers of all 8-bit codes: e4m3, e5m2. */
const struct codes {
    float of[2][256];
    codes()
    {
        for (int i = 0; i < 512; i++) of[i / 256][i % 256] = emu_of_fp8((uint8_t)(i % 256), i >= 256);
    }
} values;

float get(const void *x, int type, int64_t i)
{
    if (type == CUDA_R_16BF) return to_float(static_cast<const bf16 *>(x)[i]);
    if (type == CUDA_R_16F) return to_float(static_cast<const f16 *>(x)[i]);
    if (narrow(type)) return values.of[type == CUDA_R_8F_E5M2][static_cast<const uint8_t *>(x)[i]];
    return static_cast<const float *>(x)[i];
}

void put(void *x, int type, int64_t i, float v)
{
    if (type == CUDA_R_16BF) static_cast<bf16 *>(x)[i] = from_float<bf16>(v);
    else if (type == CUDA_R_16F) static_cast<f16 *>(x)[i] = from_float<f16>(v);
    else static_cast<float *>(x)[i] = v;
}

/* 10 bits of mantissa, rounded to the nearest. */
float tf32(float x)
{
    return emu_bits<float>((emu_bits<uint32_t>(x) + 0x1000u) & ~0x1fffu);
}

float gate(float x)
{
    return tanhf(0.79788456f * (x + 0.044715f * x * x * x));
}
float gelu(float x)
{
    return 0.5f * x * (1 + gate(x));
}
float slope(float x)
{
    const float t = gate(x);
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * x * x);
}

/* ---- the product ---- */

struct job {
    desc d;
    layout a, b, out;
    const void *A, *B, *C;
    void *D;
    float beta;
    uint64_t id;
};

/* op(x) as floats: element (i,j) at i*cols + j. */
std::vector<float> read(const void *x, const layout &l, bool transposed, bool as_tf32)
{
    std::vector<float> f(l.rows * l.cols);
    const uint64_t cols = transposed ? l.rows : l.cols;
    for (uint64_t c = 0; c < l.cols; c++)
        for (uint64_t r = 0; r < l.rows; r++) {
            const float v = get(x, l.type, (int64_t)c * l.ld + (int64_t)r);
            f[transposed ? c * cols + r : r * cols + c] = as_tf32 ? tf32(v) : v;
        }
    return f;
}

float finish(const job &j, float v, uint64_t row, uint64_t col)
{
    const uint32_t e = j.d.epilogue;
    if (e & CUBLASLT_EPILOGUE_BIAS) v += get(j.d.bias, j.out.type, (int64_t)row);
    const int64_t at = (int64_t)col * j.d.aux_ld + (int64_t)row;
    if (e & 32) {
        put(j.d.aux, j.out.type, at, v);
        return gelu(v);
    }
    return e & 64 ? v * slope(get(j.d.aux, j.out.type, at)) : v;
}

void product(job j)
{
    const bool as_tf32 = j.d.compute == CUBLAS_COMPUTE_32F_FAST_TF32, ta = j.d.opa == CUBLAS_OP_T;
    const uint64_t m = j.out.rows, n = j.out.cols, k = ta ? j.a.rows : j.a.cols;
    const bool in_place = j.id == EMU_LT_INPLACE || j.id == EMU_LT_UNLAWFUL;
    const uint64_t cut = j.id == EMU_LT_SPLIT || in_place ? (k + 1) / 2 : k;
    const std::vector<float> a =
        read(j.A, j.a, !ta, as_tf32); /* (k,m): neighbours of a row of the result are neighbours */
    const std::vector<float> b = read(j.B, j.b, j.d.opb != CUBLAS_OP_T, as_tf32); /* (n,k) */
    const float factor = (j.d.a_scale ? *j.d.a_scale : 1) * (j.d.b_scale ? *j.d.b_scale : 1);
    std::vector<float> sum(2 * m);
    for (uint64_t col = 0; col < n; col++) {
        for (float &s : sum) s = 0;
        for (uint64_t i = 0; i < k; i++) {
            float *to = &sum[i < cut ? 0 : m];
            const float *from = &a[i * m], by = b[col * k + i];
            for (uint64_t row = 0; row < m; row++) to[row] += by * from[row];
        }
        for (uint64_t row = 0; row < m; row++) {
            const int64_t at = (int64_t)col * j.out.ld + (int64_t)row;
            float v = j.beta != 0 && in_place ? get(j.C, j.out.type, at) : 0;
            if (in_place) v = (v + factor * sum[row]) + factor * sum[m + row];
            else v = factor * (sum[row] + sum[m + row]) + (j.beta != 0 ? get(j.C, j.out.type, at) : 0);
            if (j.id == EMU_LT_UNSTEADY) v *= 1 + 1e-6f * (float)(state.n_run % 7);
            put(j.D, j.out.type, at, finish(j, v, row, col));
        }
    }
    if (j.d.epilogue == CUBLASLT_EPILOGUE_BGRADA)
        for (uint64_t row = 0; row < m; row++) {
            float s = 0;
            for (uint64_t i = 0; i < k; i++) s += a[i * m + row];
            put(j.d.bias, j.out.type, (int64_t)row, s);
        }
    state.n_run++;
}

bool supported(const desc &d)
{
    const bool bias = d.epilogue & CUBLASLT_EPILOGUE_BIAS || d.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    static const char *const plain = getenv("LS_EMU_EPILOGUES");
    if (plain && !strcmp(plain, "0") && d.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return false;
    if (d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && emu_capability() < 80) return false;
    return !(d.epilogue & state.refuse) && !(d.epilogue & 128 && (d.aux_ld % 8 || !d.aux)) && !(bias && !d.bias);
}

/* 8-bit operands as on Hopper: both along K, every size a multiple of 16, not two of e5m2, and both scaled. */
bool supported_types(const desc &d, const layout &a, const layout &b)
{
    const int needs = narrow(a.type) || narrow(b.type) ? 89 : a.type == CUDA_R_16BF ? 80 : 0; /* of the card */
    if (emu_capability() < needs) return false;
    if (!narrow(a.type) && !narrow(b.type)) return a.type == b.type && !d.a_scale && !d.b_scale;
    if (!narrow(a.type) || !narrow(b.type) || (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2)) return false;
    if (d.opa != CUBLAS_OP_T || d.opb != CUBLAS_OP_N || !d.a_scale || !d.b_scale) return false;
    return !((a.rows | a.cols | b.cols | (uint64_t)a.ld | (uint64_t)b.ld) % 16) && !(d.epilogue & ~5u);
}

/* Only the start of a product finds it (cuBLASLt 13.1 on an H200). */
bool scales_aligned(const desc &d)
{
    return !((reinterpret_cast<uintptr_t>(d.a_scale) | reinterpret_cast<uintptr_t>(d.b_scale)) % 16);
}

/* Whether an algorithm supports this number of columns; starts: the check is made when it is started. */
bool takes(uint64_t id, uint64_t cols, bool starts)
{
    for (int i = 0; i < 8 && state.first[i]; i++) {
        const auto &c = state.cols[i];
        if ((uint64_t)state.first[i] != id || !c.to || (c.late && !starts)) continue;
        if (cols < (uint64_t)c.from || cols > (uint64_t)c.to) return false;
    }
    return true;
}

} // namespace

extern "C" {

emu_lt *emu_lt_state(void)
{
    return &state;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = reinterpret_cast<cublasLtHandle_t>(&state);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t e)
{
    return e == CUBLAS_STATUS_NOT_SUPPORTED   ? "not supported"
           : e == CUBLAS_STATUS_INVALID_VALUE ? "invalid value"
                                              : "the emulated library failed";
}

size_t cublasLtGetVersion(void)
{
    return 0;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t d, cublasComputeType_t compute, cudaDataType_t scale)
{
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(d, 0, sizeof *d);
    desc *t = in<desc>(d);
    t->compute = compute;
    t->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                              const void *x, size_t nbytes)
{
    desc *t = in<desc>(d);
    void *to = nullptr;
    size_t want = 4;
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA: to = &t->opa; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: to = &t->opb; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: to = &t->epilogue; break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: to = &t->bias, want = 8; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: to = &t->aux, want = 8; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: to = &t->aux_ld, want = 8; break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: to = &t->a_scale, want = 8; break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: to = &t->b_scale, want = 8; break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: to = &t->fast, want = 1; break;
    }
    if (!to || nbytes != want) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, x, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t l, cudaDataType_t type, uint64_t rows, uint64_t cols,
                                        int64_t ld)
{
    if (ld < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    *in<layout>(l) = {type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t p)
{
    *in<preference>(p) = {0, 7, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void *x,
                                                    size_t nbytes)
{
    preference *t = in<preference>(p);
    if (nbytes != (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8u : 4u)) return CUBLAS_STATUS_INVALID_VALUE;
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) memcpy(&t->room, x, nbytes);
    else if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) memcpy(&t->schemes, x, nbytes);
    else memcpy(&t->align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], x, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t pref, int want,
                                              cublasLtMatmulHeuristicResult_t *r, int *n)
{
    static const int usual[8] = {EMU_LT_PLAIN, EMU_LT_SPLIT, EMU_LT_INPLACE};
    const int *ids = state.first[0] ? state.first : usual;
    const desc &t = *in<desc>(d);
    const layout &la = *in<layout>(a), &lb = *in<layout>(b), &lo = *in<layout>(out);
    const uint64_t m = t.opa == CUBLAS_OP_T ? la.cols : la.rows, ka = t.opa == CUBLAS_OP_T ? la.rows : la.cols;
    const uint64_t cols = t.opb == CUBLAS_OP_T ? lb.rows : lb.cols, kb = t.opb == CUBLAS_OP_T ? lb.cols : lb.rows;
    state.n_asked++;
    *n = 0;
    if (m != lo.rows || cols != lo.cols || ka != kb) return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(t) || !supported_types(t, la, lb)) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 8 && ids[i] && *n < want; i++) {
        const uint32_t scheme = scheme_of((uint64_t)ids[i]);
        if (scheme & ~in<preference>(pref)->schemes || !takes((uint64_t)ids[i], cols, false)) continue;
        r[*n] = {};
        in<algorithm>(&r[*n].algo)->id = (uint64_t)ids[i];
        r[*n].workspaceSize = scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? 2 * m * cols * 4 : 0;
        if (r[*n].workspaceSize <= in<preference>(pref)->room) ++*n;
    }
    return *n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t out,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *r)
{
    const uint64_t id = in<algorithm>(algo)->id;
    const bool known = id >= EMU_LT_PLAIN && id <= EMU_LT_BROKEN && supported(*in<desc>(d));
    *r = {};
    return known && takes(id, in<layout>(out)->cols, false) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t what, void *x, size_t nbytes,
                                                    size_t *written)
{
    const uint64_t id = in<algorithm>(algo)->id;
    const uint32_t v = what == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? scheme_of(id)
                       : what == CUBLASLT_ALGO_CONFIG_SPLITK_NUM     ? (scheme_of(id) ? 2u : 1u)
                                                                     : (uint32_t)id;
    if (nbytes != sizeof v) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(x, &v, sizeof v);
    *written = sizeof v;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoCapAttributes_t,
                                                 void *x, size_t nbytes, size_t *written)
{
    const int32_t yes = 1;
    if (nbytes != sizeof yes) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(x, &yes, sizeof yes);
    *written = sizeof yes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t, void *D, cublasLtMatrixLayout_t out,
                              const cublasLtMatmulAlgo_t *algo, void *, size_t, cudaStream_t s)
{
    job j = {*in<desc>(d), *in<layout>(a), *in<layout>(b), *in<layout>(out), A, B, C, D, 0, in<algorithm>(algo)->id};
    float one;
    memcpy(&one, alpha, sizeof one);
    memcpy(&j.beta, beta, sizeof j.beta);
    if (one != 1 || (j.beta != 0 && j.beta != 1) || !supported(j.d) || !supported_types(j.d, j.a, j.b))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (j.id == EMU_LT_BROKEN || !takes(j.id, j.out.cols, true) || !scales_aligned(j.d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return LS_LAUNCH(product, dim3(1), dim3(1), 0, s, j) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
