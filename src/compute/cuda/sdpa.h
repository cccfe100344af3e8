/* sdpa.h - attention by cuDNN's own fused operations. The library is looked for when it is opened: a machine without it, and the emulator, use
 * our kernels (kernels/flash.h). */
#ifndef LS_CUDA_SDPA_H
#define LS_CUDA_SDPA_H

#include "compute/cuda/attention.h"

typedef struct cu_sdpa cu_sdpa;

/* LS_E_UNSUPPORTED: there is no such library, it is too old, or it has none for this type. *version: 91400 is 9.14.0. */
ls_status cu_sdpa_open(cu_sdpa **out, void *stream, ls_dtype dt, bool deterministic, int *version);
void cu_sdpa_close(cu_sdpa *s);

/* Builds the plan of this shape, once; plans stay. *nbytes: the scratch it works in. A failure is kept, too, and reported again. */
ls_status cu_sdpa_plan(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D, size_t *nbytes);
/* Without dropout; the plan exists. */
ls_status cu_sdpa_run(cu_sdpa *s, bool backward, const cu_attention_job *j);

#endif
