/* Replaces CUDA's cublasLt.h where the emulated device is compiled. */
#include "fake_cuda/cublaslt.h"
