/* Replaces CUDA's cuda_fp8.h where the emulated device is compiled. */
#include "fake_cuda/emu.h"
#include "fake_cuda/fp8.h"
