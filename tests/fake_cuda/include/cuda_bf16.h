/* Replaces CUDA's cuda_bf16.h where the emulated device is compiled. */
#include "fake_cuda/emu.h"
