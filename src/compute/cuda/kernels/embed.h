/* embed.h - launchers of the embedding's kernels. Arguments as in compute.h; they return a cudaError_t (0: queued). */
#ifndef LS_CUDA_KERNELS_EMBED_H
#define LS_CUDA_KERNELS_EMBED_H

#include "compute/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

int cu_embed_fwd(void *stream, ls_dtype dt, void *y, const int32_t *ids, int64_t first, int64_t V, const void *wte,
                 const void *wpe, int64_t B, int64_t T, int64_t C, ls_drop drop);

/* scratch: cu_embed_bwd_scratch bytes, 16-byte aligned. */
size_t cu_embed_bwd_scratch(int64_t R, int64_t C);
int cu_embed_bwd(void *stream, ls_dtype dt, float *dwte, float *dwpe, const void *dy, const int32_t *ids, int64_t first,
                 int64_t B, int64_t T, int64_t C, int64_t V, int64_t P, ls_drop drop, bool acc, void *scratch);

/* key (R) = ids - first, those outside 0 … V-1 as V, in ascending order; pos (R) = where they stood, in ascending order
 * among equals. room: cu_sort_ids_room bytes. */
size_t cu_sort_ids_room(int64_t R);
int cu_sort_ids(void *stream, int32_t *key, int32_t *pos, const int32_t *ids, int64_t first, int64_t V, int64_t R,
                void *room);

#ifdef __cplusplus
}
#endif
#endif
