/* flash_fwd.cu - attention forward for bf16 and f16; flash.h says what it computes, flash_fwd.cuh how. */
#include "flash_fwd.cuh"

int flash_fwd_bf16(const cu_attention_job *j, void *stream)
{
    return flash_for<flash_forward, bf16, 1>(j, stream);
}

int flash_fwd_f16(const cu_attention_job *j, void *stream)
{
    return flash_for<flash_forward, f16, 1>(j, stream);
}
