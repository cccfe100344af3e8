/* cuda_runtime_api.h - the part of the CUDA runtime that the plugin `nccl` calls, on the test double of a device. */
#ifndef LS_TESTS_FAKE_CUDA_H
#define LS_TESTS_FAKE_CUDA_H

typedef enum cudaError { cudaSuccess = 0, cudaErrorInvalidDevice = 101 } cudaError_t;
typedef void *cudaStream_t; /* a fake_stream */

cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device);

#endif
