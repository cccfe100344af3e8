/* sdpa.h - attention's products by cuDNN's own fused operations, behind a plain C interface. The library is looked for when it is opened: a machine
 * without it, and the emulator, have attention all the same (kernels/flash.h). */
#ifndef LS_CUDA_SDPA_H
#define LS_CUDA_SDPA_H

#include "compute/cuda/attention.h"

typedef struct cu_sdpa cu_sdpa;

/* LS_E_UNSUPPORTED: there is no such library, it is too old, or it has none for this type. */
ls_status cu_sdpa_open(cu_sdpa **out, void *stream, ls_dtype dt, bool deterministic);
void cu_sdpa_close(cu_sdpa **s);

/* Builds the plan of this shape, once; plans stay. *nbytes: the scratch it works in, which every later run may use. A failure is kept, too,
 * and told again. */
ls_status cu_sdpa_plan(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D, size_t *nbytes);
/* The same before a run: LS_E_UNSUPPORTED also when it wants more scratch than was ever asked for. */
ls_status cu_sdpa_ready(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D);

/* Without dropout. */
ls_status cu_sdpa_run(cu_sdpa *s, bool backward, const cu_attention_job *j);

int cu_sdpa_version(const cu_sdpa *s); /* 91400: 9.14.0 */

#endif
