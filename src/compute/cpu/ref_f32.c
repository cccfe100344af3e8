/* ref_f32.c - the reference backend in float. */
#include <math.h>

#define real        float
#define REAL_DT     LS_F32
#define REAL_OPS    ls_compute_ref_f32
#define REAL_(name) name##f
#include "compute/cpu/ref.inc"
