/* Replaces CUDA's cuda_runtime_api.h where the emulated device is compiled. */
#include "fake_cuda/runtime.h"
