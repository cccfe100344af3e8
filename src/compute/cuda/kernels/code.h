/* code.h - whether this build holds code for the current device. Returns a cudaError_t: 0, or why a kernel could not be loaded. */
#ifndef LS_CUDA_KERNELS_CODE_H
#define LS_CUDA_KERNELS_CODE_H

#ifdef __cplusplus
extern "C" {
#endif

int cu_has_code(void);

#ifdef __cplusplus
}
#endif
#endif
