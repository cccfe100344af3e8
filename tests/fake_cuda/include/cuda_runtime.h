/* Replaces CUDA's cuda_runtime.h where the emulated device is compiled. */
#include "fake_cuda/emu.h"
