/* ref_f64.c - the reference backend in double: the judge of every other one. Also sizes the scratch of both. */
#include <math.h>

#define real        double
#define REAL_DT     LS_F64
#define REAL_OPS    ls_compute_ref_f64
#define REAL_(name) name
#include "compute/cpu/ref.inc"

/* attention: a row of probabilities and one of their gradients; classifier: a row of logits. */
size_t cpu_ref_scratch(const ls_compute *c, const ls_compute_shapes *s)
{
    int64_t n = 2 * s->T > s->V ? 2 * s->T : s->V;
    return (size_t)n * ls_dtype_nbytes(c->ops->dtype) + (size_t)cpu_n_part(s->n_part) * sizeof(cpu_row);
}
