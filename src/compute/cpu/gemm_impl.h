/* gemm_impl.h - what a matrix-product kernel tells the driver in gemm.c.
 *
 *   op(A) is cut into panels of mr rows, op(B) into panels of nr columns; a panel holds kb <= kc steps of K, side by side:
 *
 *        panel of A: k=0: mr values | k=1: mr values | ...        panel of B: k=0: nr values | k=1: nr values | ...
 *
 *   (AMX and the bf16 kernels have layouts of their own; the driver only knows the bytes.) Panels at the edge are padded with zeros, so
 *   every element of C goes through the same operations wherever it is. */
#ifndef LS_COMPUTE_CPU_GEMM_IMPL_H
#define LS_COMPUTE_CPU_GEMM_IMPL_H

#include "compute/cpu/gemm.h"
#include "core/minmax.h"

/* Rows of op(A) where they are stored: w of them, kb steps of K. Element (k, i) is at at[i*ld + k] when k_contig, else at at[k*ld + i]; a float,
 * or bf16 when half. */
typedef struct gemm_rows {
    const void *at; /* NULL: none */
    int64_t ld, w, kb;
    bool k_contig, half;
} gemm_rows;

/* What a thread has packed before it is needed. */
typedef struct gemm_ahead {
    bool ready; /* the first panel of the next block's rows */
    int half;   /* of the kernel's own space: where */
} gemm_ahead;

/* One block of C: C (m,n) = or += panels of A x panels of B over kb steps of K, then + bias where it is not NULL. */
typedef struct gemm_block {
    const char *pa, *pb;     /* first panel of A and of B; pa NULL: the kernel packs `rows` (packs_a) */
    size_t a_panel, b_panel; /* bytes from one panel to the next                                */
    /* takes_panels: bytes from 16 columns of B to the next 16, each with all of K; 0: panels of the kernel */
    size_t b_half;
    int64_t m, n, kb;
    float *c;
    int64_t ldc;
    const float *bias; /* (n) or NULL                                                     */
    bool add;
    float *tmp;           /* tmp_nbytes of the thread's own                                  */
    gemm_rows rows, next; /* next: the rows that the thread needs after these; their first panel is packed meanwhile */
    gemm_ahead *ahead;
} gemm_block;

/* Packs w rows of op(A) (columns of op(B)) and kb steps of K into consecutive panels. Element (k, i) is at src[i*ld + k]
 * when k_contig, else at src[k*ld + i]. panel: bytes from one panel to the next. */
typedef void gemm_pack_fn(void *dst, size_t panel, const float *src, int64_t ld, bool k_contig, int64_t w, int64_t kb);

struct gemm_kernel {
    const char *name;
    bool bf16;            /* operands are rounded to bf16 while they are packed; sums are fp32   */
    bool runs_on;         /* C is added to by the sums themselves (gemm_runs_on)                 */
    bool emulated;        /* an instruction that the CPU need not have                           */
    bool (*usable)(void); /* whether this CPU has the instructions; NULL: every CPU has          */
    int mr, nr;           /* micro-tile                                                          */
    int kc;               /* steps of K in one block; fixed, because it is part of the sum's order */
    int turn;             /* blocks of K that one turn packs at least, at full mc and nc; 0 = 1  */
    int k_round;          /* panels are padded to a multiple of so many steps                    */
    int elem_nbytes;      /* of one packed element                                               */
    int pack_group;       /* panels that a thread packs at a time; 0 = 4                        */
    int mt, nt;           /* largest block of C that one thread takes at a time                  */
    int cut_n;            /* so many columns of a block take as long as what comes with each block; 0 = 8 */
    size_t tmp_nbytes;    /* per thread, multiple of 64                                          */
    gemm_pack_fn *pack_a, *pack_b;
    bool packs_a;      /* block packs A itself, a panel while the one before it is multiplied         */
    bool takes_panels; /* with packs_a: B may be panels of packed.h (gemm_block.b_half)          */
    void (*pack_a16)(void *dst, size_t panel, const uint16_t *src, int64_t ld, bool k_contig, int64_t w, int64_t kb);
    /* gemm_narrow; only with packs_a or pack_a16, which packs bf16 numbers */
    void (*narrow)(uint16_t *y, const float *x, int64_t n, float by);
    int logit_rows; /* gemm_logit_rows; 0 = 512 */
    void (*block)(const gemm_block *b);
    void (*enter)(void); /* thread state around the work (AMX), or NULL */
    void (*leave)(void);
    double (*spin)(
        int64_t n); /* n rounds of the multiply instruction on registers alone, returns their flop; or NULL */
    void (*run)(const gemm_args *a, int n_thread); /* whole products in another way (blas): nothing above is used */
};

#define GEMM_INLINE static inline __attribute__((always_inline))

/* A bf16 kernel, or its emulation: the same file with GEMM_EMULATE. */
#ifdef GEMM_EMULATE
#ifdef __AVX2__
#define GEMM_BF16_KERNEL(isa) gemm_bf16_##isa##_emulated_avx2
#else
#define GEMM_BF16_KERNEL(isa) gemm_bf16_##isa##_emulated
#endif
#define GEMM_BF16_SUFFIX "-emulated"
#else
#define GEMM_BF16_KERNEL(isa) gemm_bf16_##isa
#define GEMM_BF16_SUFFIX      ""
#endif

extern const gemm_kernel gemm_kernel_plain, gemm_kernel_blas;
extern const gemm_kernel gemm_bf16_avx512_emulated, gemm_bf16_amx_emulated, gemm_bf16_neon_emulated;
#if defined(__aarch64__)
extern const gemm_kernel gemm_kernel_neon, gemm_bf16_neon;
#elif defined(__x86_64__)
extern const gemm_kernel gemm_kernel_avx2, gemm_kernel_avx512, gemm_kernel_amx, gemm_bf16_avx512, gemm_bf16_amx,
    gemm_bf16_avx512_emulated_avx2;
/* The instructions of AMX (with those of AVX-512 that its kernels use), the operating system's support for their registers, and its
 * permission to use them, which is asked for once. */
bool gemm_amx_usable(void);
/* Thread state around the work: the tile configuration is loaded and released. */
void gemm_amx_enter(void);
void gemm_amx_leave(void);
#endif

static inline int64_t gemm_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t gemm_round_up(int64_t a, int64_t b)
{
    return gemm_ceil_div(a, b) * b;
}

/* At the edges of C the whole micro-tile is computed into tmp, and the part that exists is added by element: the same operations on every
 * element as inside. */
static inline void gemm_write_edge(const gemm_block *b, int64_t i, int64_t j, int64_t mr, int64_t nr)
{
    const int64_t m = LS_MIN(b->m - i, mr), n = LS_MIN(b->n - j, nr);
    float *c = b->c + i * b->ldc + j;
    for (int64_t r = 0; r < m; r++)
        for (int64_t s = 0; s < n; s++) {
            float v = b->tmp[r * nr + s];
            if (b->add) v = c[r * b->ldc + s] + v;
            if (b->bias) v = v + b->bias[j + s];
            c[r * b->ldc + s] = v;
        }
}

/* Bytes of kb steps of K of w rows (columns), a multiple of mr (nr). */
static inline size_t gemm_packed_nbytes(const gemm_kernel *k, int64_t w, int64_t kb)
{
    return (size_t)(w * gemm_round_up(kb, k->k_round)) * (size_t)k->elem_nbytes;
}

#endif
