/* flash_bwd.cu - attention backward for bf16 and f16; flash.h says what it computes, flash_bwd.cuh how. */
#include "flash_bwd.cuh"

int flash_bwd_bf16(const cu_attention_job *j, void *stream)
{
    return flash_for<flash_backward, bf16, 1>(j, stream);
}

int flash_bwd_f16(const cu_attention_job *j, void *stream)
{
    return flash_for<flash_backward, f16, 1>(j, stream);
}
