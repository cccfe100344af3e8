/* gemm_blas.c - the kernel `blas`: CBLAS on fixed tiles of C. The tiles depend on the shape alone and each is one call with
 * the whole of K, so the number of threads cannot change a bit. The library's own threads stay off: ours call it. */
#include "compute/cpu/gemm_impl.h"

#include <cblas.h>
#include <dlfcn.h>
#include <stdatomic.h>

enum { TILE_M = 256, TILE_N = 768 };

/* Whichever library is linked has one of these; neither's private header is needed. */
void gemm_blas_threads(int n_thread)
{
    union {
        void *p;
        void (*set_int)(int);
        void (*set_dim)(int64_t); /* BLIS's dim_t */
    } f;
    if ((f.p = dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) f.set_int(n_thread);
    if ((f.p = dlsym(RTLD_DEFAULT, "bli_thread_set_num_threads"))) f.set_dim(n_thread);
}

void gemm_blas_rest(void)
{
    union {
        void *p;
        int (*end)(void);
    } f;
    if ((f.p = dlsym(RTLD_DEFAULT, "blas_thread_shutdown_"))) (void)f.end(); /* OpenBLAS */
}

const char *gemm_blas_describe(void)
{
    union {
        void *p;
        const char *(*get)(void);
    } f;
    if ((f.p = dlsym(RTLD_DEFAULT, "openblas_get_config"))) return f.get();
    if ((f.p = dlsym(RTLD_DEFAULT, "bli_info_get_version_str")))
        return f.get(); /* a bare number: BLIS names itself nowhere */
    return "a CBLAS without a name";
}

static void tile(const gemm_args *a, int64_t t)
{
    int64_t tiles_m = gemm_ceil_div(a->M, TILE_M);
    int64_t i = t % tiles_m * TILE_M, j = t / tiles_m * TILE_N;
    int64_t m = LS_MIN(a->M - i, TILE_M), n = LS_MIN(a->N - j, TILE_N);
    const float *A = a->A + (a->ta ? i : i * a->lda), *B = a->B + (a->tb ? j * a->ldb : j);
    float *c = a->C + i * a->ldc + j;
    cblas_sgemm(CblasRowMajor, a->ta ? CblasTrans : CblasNoTrans, a->tb ? CblasTrans : CblasNoTrans, (int)m, (int)n,
                (int)a->K, 1.0f, A, (int)a->lda, B, (int)a->ldb, a->acc ? 1.0f : 0.0f, c, (int)a->ldc);
    for (int64_t r = 0; r < m && a->bias; r++)
        for (int64_t s = 0; s < n; s++) c[r * a->ldc + s] += a->bias[j + s];
}

static void run(const gemm_args *a, int n_thread)
{
    const int64_t n = gemm_ceil_div(a->M, TILE_M) * gemm_ceil_div(a->N, TILE_N);
    gemm_blas_threads(1);
    atomic_int_fast64_t next = 0;
#pragma omp parallel num_threads(n_thread)
    for (int64_t t; (t = atomic_fetch_add(&next, 1)) < n;) tile(a, t);
}

const gemm_kernel gemm_kernel_blas = {.name = "blas", .run = run};
