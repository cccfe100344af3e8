/* cudnn.c - attention by cuDNN's backend interface: written down as a graph of small operations, which cuDNN's engines know as one kernel.
 *
 *   forward    s = q k^T;  scale;  where row >= column, else -inf;  m = max, e = exp(s - m), z = sum e;  stats = m + log z;  y = (e / z) v
 *   backward   delta = sum(dy * y);  s as above less stats, masked;  p = exp(s);  dv = p^T dy;  ds = (dy v^T - delta) * p * scale
 *              dk = ds^T q;  dq = ds k, added up in a float array of its own, or at once where every sum is to have one order
 *
 * The shapes of these graphs are what the engines look for, so their order and their types are not ours to choose. q, k and v are views of the
 * packed array by their strides. stats is compute.h's lse.
 *
 * The library is loaded when somebody opens it (LS_CUDNN names another file); nothing here is linked to it. Used is what 9.6 has. */
#include "compute/cuda/attention.h"

#include "core/mem.h"

#if defined(__has_include) && !defined(LS_EMU) /* an emulated device has no cuDNN */
#if __has_include(<cudnn.h>)
#define HAVE_CUDNN 1
#endif
#endif

#ifdef HAVE_CUDNN
#include <cudnn.h>
#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLDEST 90600 /* clears dq's float array itself from here on */

typedef cudnnBackendDescriptor_t desc;

/* ---- the library ------------------------------------------------------------------------------------------------ */

#define CALLS(X)                                   \
    X(version, cudnnGetVersion)                    \
    X(create, cudnnCreate)                         \
    X(destroy, cudnnDestroy)                       \
    X(set_stream, cudnnSetStream)                  \
    X(desc_create, cudnnBackendCreateDescriptor)   \
    X(desc_destroy, cudnnBackendDestroyDescriptor) \
    X(finalize, cudnnBackendFinalize)              \
    X(set, cudnnBackendSetAttribute)               \
    X(get, cudnnBackendGetAttribute)               \
    X(execute, cudnnBackendExecute)                \
    X(status_words, cudnnGetErrorString)           \
    X(last_words, cudnnGetLastErrorString)

typedef struct api {
    void *lib;
#define X(name, symbol) __typeof__(&symbol) name;
    CALLS(X)
#undef X
} api;

#define MAX_DESC 112

typedef struct plan {
    bool backward;
    int64_t B, T, H, D;
    ls_status st; /* of building it, with a message */
    char words[256];
    float scale, low, one; /* scalars of the graph, read when it runs */
    size_t sum_nbytes, acc_nbytes, work_nbytes;
    desc run, all[MAX_DESC]; /* in the order they were made */
    int n;
    struct plan *next;
} plan;

struct cu_sdpa {
    api f;
    cudnnHandle_t handle;
    ls_dtype dt;
    bool deterministic;
    plan *plans;
};

static ls_status load(api *f)
{
    const char *name = getenv("LS_CUDNN");
    f->lib = dlopen(name && *name ? name : "libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!f->lib) return ls_fail(LS_E_UNSUPPORTED, "%s", dlerror());
    const struct {
        const char *name;
        void *to;
    } calls[] = {
#define X(name, symbol) {#symbol, &f->name},
        CALLS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *p = dlsym(f->lib, calls[i].name);
        if (!p) return ls_fail(LS_E_UNSUPPORTED, "this cuDNN has no %s", calls[i].name);
        memcpy(calls[i].to, &p, sizeof p);
    }
    if (f->version() < OLDEST)
        return ls_fail(LS_E_UNSUPPORTED, "cuDNN %zu is too old; attention needs 9.6 or later", f->version());
    return LS_OK;
}

/* Nothing when st is success. */
static ls_status told(const api *f, cudnnStatus_t st, const char *what)
{
    char last[160] = "";
    if (st == CUDNN_STATUS_SUCCESS) return LS_OK;
    f->last_words(last, sizeof last);
    const ls_status code = st / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 ? LS_E_UNSUPPORTED : LS_E_DEVICE;
    return ls_fail(code, "cuDNN, %s: %s%s%s", what, f->status_words(st), *last ? ": " : "", last);
}

ls_status cu_sdpa_open(cu_sdpa **out, void *stream, ls_dtype dt, bool deterministic, int *version)
{
    if (dt != LS_BF16 && dt != LS_F16)
        return ls_fail(LS_E_UNSUPPORTED, "cuDNN attention does not support %s; it supports BF16 and F16",
                       ls_dtype_word(dt));
    cu_sdpa *s = ls_alloc(sizeof *s);
    if (!s) return ls_nomem(sizeof *s, "attention by cuDNN");
    s->dt = dt, s->deterministic = deterministic;
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, fail, load(&s->f));
    LS_TRY_GOTO(st, fail, told(&s->f, s->f.create(&s->handle), "a handle"));
    LS_TRY_GOTO(st, fail, told(&s->f, s->f.set_stream(s->handle, stream), "its stream"));
    *version = (int)s->f.version();
    *out = s;
    return LS_OK;
fail:
    cu_sdpa_close(s);
    return st;
}

static void clear(const api *f, plan *p)
{
    while (p->n > 0) f->desc_destroy(p->all[--p->n]);
}

void cu_sdpa_close(cu_sdpa *s)
{
    for (plan *p = s->plans, *next; p; p = next) {
        next = p->next;
        clear(&s->f, p);
        ls_free(p);
    }
    if (s->handle) s->f.destroy(s->handle);
    if (s->f.lib) dlclose(s->f.lib);
    ls_free(s);
}

/* ---- building: the first failure stays, and what follows it does nothing ------------------------------------------ */

typedef struct build {
    const api *f;
    plan *p;
    ls_status st;
    int64_t uid; /* of the next array that is not held */
    desc op[32];
    int n_op;
} build;

/* Arrays that exist, by their numbers. */
enum { Q = 1, K, V, Y, STATS, DY, DQ, DK, DV, SUM, ACC, SCALE, LOW, ONE, FIRST_VIRTUAL };

static desc make(build *b, cudnnBackendDescriptorType_t type, const char *what)
{
    desc d = NULL;
    if (b->st != LS_OK) return NULL;
    if (b->p->n == MAX_DESC)
        b->st = ls_fail(LS_E_UNSUPPORTED, "the attention graph needs more than %d descriptors", MAX_DESC);
    else b->st = told(b->f, b->f->desc_create(type, &d), what);
    if (b->st == LS_OK) b->p->all[b->p->n++] = d;
    return d;
}

typedef struct attr {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n; /* 0: not set */
    const void *x;
} attr;

#define DESC(name, d)                                          \
    (attr)                                                     \
    {                                                          \
        name, CUDNN_TYPE_BACKEND_DESCRIPTOR, (d) != NULL, &(d) \
    }

/* A descriptor with these attributes, up to {0}. */
static desc describe(build *b, cudnnBackendDescriptorType_t type, const char *what, const attr *a)
{
    desc d = make(b, type, what);
    for (; b->st == LS_OK && a->x; a++)
        if (a->n) b->st = told(b->f, b->f->set(d, a->name, a->type, a->n, a->x), what);
    if (b->st == LS_OK) b->st = told(b->f, b->f->finalize(d), what);
    return d;
}

/* An operation of the graph, which comes after those before it. */
static void operation(build *b, cudnnBackendDescriptorType_t type, const char *what, const attr *a)
{
    desc op = describe(b, type, what, a);
    if (b->st == LS_OK) b->op[b->n_op++] = op;
}

typedef struct shape {
    int64_t dim[4], stride[4];
} shape;

static desc array(build *b, int64_t uid, cudnnDataType_t dt, shape s)
{
    const int64_t align = 16;
    const bool by_value = uid == SCALE || uid == LOW || uid == ONE, is_virtual = uid >= FIRST_VIRTUAL;
    return describe(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "an array",
                    (attr[]){{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dt},
                             {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s.dim},
                             {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s.stride},
                             {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid},
                             {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align},
                             {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual},
                             {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value},
                             {0}});
}

static desc passing(build *b, cudnnDataType_t dt, shape s)
{
    return array(b, b->uid++, dt, s);
}

static desc scalar(build *b, int64_t uid)
{
    return array(b, uid, CUDNN_DATA_FLOAT, (shape){{1, 1, 1, 1}, {1, 1, 1, 1}});
}

/* y = mode(x, other, third); returns y. axis: of GEN_INDEX. */
static desc point(build *b, cudnnPointwiseMode_t mode, cudnnDataType_t prec, int64_t axis, desc x, desc other,
                  desc third, desc y)
{
    const char *what = "an operation on elements";
    desc how =
        describe(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what,
                 (attr[]){{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
                          {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &prec},
                          {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, mode == CUDNN_POINTWISE_GEN_INDEX, &axis},
                          {0}});
    operation(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what,
              (attr[]){DESC(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how),
                       DESC(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x),
                       DESC(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other),
                       DESC(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, third),
                       DESC(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y),
                       {0}});
    return y;
}

static desc point2(build *b, cudnnPointwiseMode_t mode, desc x, desc other, desc y)
{
    return point(b, mode, CUDNN_DATA_FLOAT, 0, x, other, NULL, y);
}

static desc product(build *b, desc x, desc other, desc y)
{
    const char *what = "a product";
    const cudnnDataType_t prec = CUDNN_DATA_FLOAT;
    desc how = describe(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what,
                        (attr[]){{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &prec}, {0}});
    operation(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what,
              (attr[]){DESC(CUDNN_ATTR_OPERATION_MATMUL_ADESC, x),
                       DESC(CUDNN_ATTR_OPERATION_MATMUL_BDESC, other),
                       DESC(CUDNN_ATTR_OPERATION_MATMUL_CDESC, y),
                       DESC(CUDNN_ATTR_OPERATION_MATMUL_DESC, how),
                       {0}});
    return y;
}

static desc reduce(build *b, cudnnReduceTensorOp_t mode, desc x, desc y)
{
    const char *what = "a sum or maximum";
    const cudnnDataType_t prec = CUDNN_DATA_FLOAT;
    desc how = describe(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what,
                        (attr[]){{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode},
                                 {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &prec},
                                 {0}});
    operation(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what,
              (attr[]){DESC(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x),
                       DESC(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y),
                       DESC(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how),
                       {0}});
    return y;
}

static desc reshape(build *b, desc x, desc y)
{
    operation(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "a transposition",
              (attr[]){DESC(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x), DESC(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y), {0}});
    return y;
}

/* ---- the two graphs ---------------------------------------------------------------------------------------------- */

typedef struct shapes {
    shape qkv, qkv_t, y;    /* (B,H,T,D) of the packed array; (B,H,D,T) of it; (B,H,T,D) of y */
    shape square, square_t; /* (B,H,T,T); transposed                                          */
    shape row, rows;        /* (B,H,T,1); (B,H,T,D) in floats                                 */
    cudnnDataType_t dt;
} shapes;

static shapes shapes_of(const plan *p, ls_dtype dt)
{
    const int64_t B = p->B, T = p->T, H = p->H, D = p->D, C = H * D;
    return (shapes){.qkv = {{B, H, T, D}, {T * 3 * C, D, 3 * C, 1}},
                    .qkv_t = {{B, H, D, T}, {T * 3 * C, D, 1, 3 * C}},
                    .y = {{B, H, T, D}, {T * C, D, C, 1}},
                    .square = {{B, H, T, T}, {H * T * T, T * T, T, 1}},
                    .square_t = {{B, H, T, T}, {H * T * T, T * T, 1, T}},
                    .row = {{B, H, T, 1}, {H * T, T, 1, 1}},
                    .rows = {{B, H, T, D}, {H * T * D, T * D, D, 1}},
                    .dt = dt == LS_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF};
}

/* s where row >= column, else -inf */
static desc causal(build *b, desc s, const shapes *z)
{
    desc row = point(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, s, NULL, NULL,
                     passing(b, CUDNN_DATA_INT32, z->square));
    desc col = point(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, s, NULL, NULL,
                     passing(b, CUDNN_DATA_INT32, z->square));
    desc seen = point(b, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0, row, col, NULL,
                      passing(b, CUDNN_DATA_BOOLEAN, z->square));
    return point(b, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, s, scalar(b, LOW), seen,
                 passing(b, CUDNN_DATA_FLOAT, z->square));
}

static void forward_graph(build *b, const shapes *z)
{
    const cudnnDataType_t F = CUDNN_DATA_FLOAT;
    desc s = product(b, array(b, Q, z->dt, z->qkv), array(b, K, z->dt, z->qkv_t), passing(b, F, z->square));
    s = point2(b, CUDNN_POINTWISE_MUL, s, scalar(b, SCALE), passing(b, F, z->square));
    s = causal(b, s, z);
    desc top = reduce(b, CUDNN_REDUCE_TENSOR_MAX, s, passing(b, F, z->row));
    s = point2(b, CUDNN_POINTWISE_SUB, s, top, passing(b, F, z->square));
    desc e = point2(b, CUDNN_POINTWISE_EXP, s, NULL, passing(b, F, z->square));
    desc sum = reduce(b, CUDNN_REDUCE_TENSOR_ADD, e, passing(b, F, z->row));
    desc log_sum = point2(b, CUDNN_POINTWISE_LOG, sum, NULL, passing(b, F, z->row));
    point2(b, CUDNN_POINTWISE_ADD, top, log_sum, array(b, STATS, F, z->row));
    desc p = point2(b, CUDNN_POINTWISE_DIV, e, sum, passing(b, z->dt, z->square));
    product(b, p, array(b, V, z->dt, z->qkv), array(b, Y, z->dt, z->y));
}

static void backward_graph(build *b, const shapes *z, bool one_order)
{
    const cudnnDataType_t F = CUDNN_DATA_FLOAT;
    const shape flat = {{z->y.dim[0], z->y.dim[1], z->y.dim[2], z->y.dim[3]},
                        {z->rows.stride[0], z->rows.stride[1], z->y.stride[2], 1}};
    desc q = array(b, Q, z->dt, z->qkv), k = array(b, K, z->dt, z->qkv_t), dy = array(b, DY, z->dt, z->y);
    desc scale = scalar(b, SCALE);

    desc delta = point2(b, CUDNN_POINTWISE_MUL, dy, array(b, Y, z->dt, z->y), passing(b, F, flat));
    delta = reduce(b, CUDNN_REDUCE_TENSOR_ADD, delta, passing(b, F, z->row));
    delta = point2(b, CUDNN_POINTWISE_MUL, delta, scalar(b, ONE), array(b, SUM, F, z->row));

    desc s = product(b, q, k, passing(b, F, z->square));
    s = point2(b, CUDNN_POINTWISE_MUL, s, scale, passing(b, F, z->square));
    s = point2(b, CUDNN_POINTWISE_SUB, s, array(b, STATS, F, z->row), passing(b, F, z->square));
    s = causal(b, s, z);
    desc p = point2(b, CUDNN_POINTWISE_EXP, s, NULL, passing(b, F, z->square));
    product(b, reshape(b, p, passing(b, z->dt, z->square_t)), dy, array(b, DV, z->dt, z->qkv));

    desc ds = product(b, dy, array(b, V, z->dt, z->qkv_t), passing(b, F, z->square));
    ds = point2(b, CUDNN_POINTWISE_SUB, ds, delta, passing(b, F, z->square));
    ds = point2(b, CUDNN_POINTWISE_MUL, ds, p, passing(b, F, z->square));
    ds = point2(b, CUDNN_POINTWISE_MUL, ds, scale, passing(b, F, z->square));
    product(b, reshape(b, ds, passing(b, z->dt, z->square_t)), q, array(b, DK, z->dt, z->qkv));

    desc k_rows = reshape(b, k, passing(b, z->dt, z->qkv)), dq = array(b, DQ, z->dt, z->qkv);
    if (one_order) product(b, ds, k_rows, dq);
    else point2(b, CUDNN_POINTWISE_IDENTITY, product(b, ds, k_rows, array(b, ACC, F, z->rows)), NULL, dq);
}

/* ---- a plan: the first engine of those that cuDNN proposes that takes the graph ------------------------------------ */

#define MAX_ENGINE 16

/* Whether an engine's sums may have any order. */
static bool any_order(build *b, desc cfg)
{
    desc engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine");
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    if (b->st != LS_OK) return true;
    if (b->f->get(cfg, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine) !=
            CUDNN_STATUS_SUCCESS ||
        b->f->get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                  &n, note) != CUDNN_STATUS_SUCCESS)
        return true;
    for (int64_t i = 0; i < n; i++)
        if (note[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return true;
    return false;
}

static void plan_with(build *b, const cu_sdpa *s, desc cfg)
{
    const char *what = "a plan";
    desc run = describe(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, what,
                        (attr[]){{CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &s->handle},
                                 DESC(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, cfg),
                                 {0}});
    int64_t n = 0, work = 0;
    if (b->st == LS_OK)
        b->st =
            told(b->f, b->f->get(run, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &work), what);
    b->p->run = run, b->p->work_nbytes = (size_t)work;
}

static void choose(build *b, const cu_sdpa *s, desc graph)
{
    const char *what = "engines for attention";
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    desc heur = describe(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what,
                         (attr[]){DESC(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph),
                                  {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
                                  {0}});
    desc cfg[MAX_ENGINE];
    int64_t n = 0;
    for (int i = 0; i < MAX_ENGINE; i++) cfg[i] = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    if (b->st == LS_OK)
        b->st = told(b->f,
                     b->f->get(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_ENGINE, &n, cfg),
                     what);
    if (b->st != LS_OK) return;
    const int kept = b->p->n;
    b->st = ls_fail(LS_E_UNSUPPORTED, "cuDNN has no engine for this attention");
    for (int64_t i = 0; i < n && b->st != LS_OK; i++) {
        while (b->p->n > kept) b->f->desc_destroy(b->p->all[--b->p->n]);
        b->st = LS_OK;
        if (s->deterministic && any_order(b, cfg[i]))
            b->st = ls_fail(LS_E_UNSUPPORTED, "cuDNN has no deterministic engine for this attention");
        else plan_with(b, s, cfg[i]);
    }
}

static void build_plan(cu_sdpa *s, plan *p)
{
    build b = {.f = &s->f, .p = p, .uid = FIRST_VIRTUAL};
    const shapes z = shapes_of(p, s->dt);
    p->scale = (float)(1.0 / sqrt((double)p->D)),
    p->low = s->f.version() < 91000 ? -FLT_MAX : -INFINITY; /* what its engines look for */
    p->one = 1;
    if (p->backward) {
        const size_t rows = (size_t)(p->B * p->H * p->T);
        p->sum_nbytes = (rows * sizeof(float) + 255) / 256 * 256;
        p->acc_nbytes = s->deterministic ? 0 : (rows * (size_t)p->D * sizeof(float) + 255) / 256 * 256;
        backward_graph(&b, &z, s->deterministic);
    } else {
        forward_graph(&b, &z);
    }
    desc graph = describe(&b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "attention's graph",
                          (attr[]){{CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b.n_op, b.op},
                                   {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &s->handle},
                                   {0}});
    if (b.st == LS_OK) choose(&b, s, graph);
    p->st = b.st;
    if (p->st == LS_OK) return;
    snprintf(p->words, sizeof p->words, "%s", ls_err_words());
    clear(&s->f, p);
}

static ls_status plan_of(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D, plan **out)
{
    plan *p = s->plans;
    while (p && !(p->backward == backward && p->B == B && p->T == T && p->H == H && p->D == D)) p = p->next;
    if (!p) {
        p = ls_alloc(sizeof *p);
        if (!p) return ls_nomem(sizeof *p, "a plan of attention");
        p->backward = backward, p->B = B, p->T = T, p->H = H, p->D = D;
        /* Building loads code, which may happen while this thread records; it is no part of the recording. */
        enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        cudaThreadExchangeStreamCaptureMode(&mode);
        build_plan(s, p);
        cudaThreadExchangeStreamCaptureMode(&mode);
        p->next = s->plans, s->plans = p;
    }
    *out = p;
    return p->st == LS_OK ? LS_OK : ls_fail(p->st, "%s", p->words);
}

ls_status cu_sdpa_plan(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D, size_t *nbytes)
{
    plan *p = NULL;
    LS_TRY(plan_of(s, backward, B, T, H, D, &p));
    *nbytes = p->sum_nbytes + p->acc_nbytes + p->work_nbytes;
    return LS_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct bound {
    int64_t uid[16];
    void *at[16];
    int64_t n;
} bound;

static void bind(bound *v, int64_t uid, const void *at)
{
    v->uid[v->n] = uid, v->at[v->n++] = (void *)(uintptr_t)at;
}

ls_status cu_sdpa_run(cu_sdpa *s, bool backward, const cu_attention_job *j)
{
    plan *p = NULL;
    LS_TRY(plan_of(s, backward, j->B, j->T, j->H, j->D, &p));
    const size_t C = (size_t)(j->H * j->D) * ls_dtype_nbytes(s->dt);
    const char *qkv = j->qkv;
    char *dqkv = j->dqkv, *room = j->scratch, *work = room + p->sum_nbytes + p->acc_nbytes;
    bound v = {.n = 0};
    bind(&v, Q, qkv), bind(&v, K, qkv + C), bind(&v, V, qkv + 2 * C);
    bind(&v, Y, j->y), bind(&v, STATS, j->lse);
    bind(&v, SCALE, &p->scale), bind(&v, LOW, &p->low);
    if (backward) {
        bind(&v, DY, j->dy), bind(&v, ONE, &p->one), bind(&v, SUM, room);
        bind(&v, DQ, dqkv), bind(&v, DK, dqkv + C), bind(&v, DV, dqkv + 2 * C);
        if (p->acc_nbytes) bind(&v, ACC, room + p->sum_nbytes);
    }
    desc pack = NULL;
    LS_TRY(told(&s->f, s->f.desc_create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), "arguments"));
    cudnnStatus_t st = s->f.set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, v.n, v.uid);
    if (!st) st = s->f.set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, v.n, v.at);
    if (!st) st = s->f.set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work);
    if (!st) st = s->f.finalize(pack);
    if (!st) st = s->f.execute(s->handle, p->run, pack);
    const ls_status out = told(&s->f, st, backward ? "attention backward" : "attention forward");
    s->f.desc_destroy(pack);
    return out;
}

#else /* it is never open */

ls_status cu_sdpa_open(cu_sdpa **out, void *stream, ls_dtype dt, bool deterministic, int *version)
{
    (void)out, (void)stream, (void)dt, (void)deterministic, (void)version;
    return ls_fail(LS_E_UNSUPPORTED, "built without cuDNN");
}

void cu_sdpa_close(cu_sdpa *s)
{
    (void)s;
}

ls_status cu_sdpa_plan(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D, size_t *nbytes)
{
    (void)s, (void)backward, (void)B, (void)T, (void)H, (void)D, (void)nbytes;
    return LS_E_UNSUPPORTED;
}

ls_status cu_sdpa_run(cu_sdpa *s, bool backward, const cu_attention_job *j)
{
    (void)s, (void)backward, (void)j;
    return LS_E_UNSUPPORTED;
}

#endif
