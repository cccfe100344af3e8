/* flash_fwd.cu - attention forward for bf16 and f16; flash.h says what it computes, flash_fwd.cuh how. */
#include "flash_fwd.cuh"

int flash_fwd_bf16(const flash_job *j, void *stream)
{
    return fwd_for<bf16, 1>(j, stream);
}

int flash_fwd_f16(const flash_job *j, void *stream)
{
    return fwd_for<f16, 1>(j, stream);
}
