/* code.cu - a kernel that does nothing, to ask whether it could: code for one architecture (90a) runs on no other. */
#include "compute/cuda/gpu.cuh"
#include "compute/cuda/kernels/code.h"

static __global__ void nothing() {}

extern "C" int cu_has_code(void)
{
#ifdef LS_EMU
    (void)nothing;
    return cudaSuccess;
#else
    cudaFuncAttributes a;
    const cudaError_t e = cudaFuncGetAttributes(&a, nothing);
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e == cudaErrorInvalidDeviceFunction ? (int)cudaErrorNoKernelImageForDevice : (int)e;
#endif
}
