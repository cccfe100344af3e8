/* flash_bwd.cu - attention backward for bf16 and f16; flash.h says what it computes, flash_bwd.cuh how. */
#include "flash_bwd.cuh"

int flash_bwd_16bit(const cu_attention_job *j, ls_dtype dt, void *stream)
{
    return dt == LS_BF16 ? flash_for<flash_backward, bf16, 1>(j, stream) : flash_for<flash_backward, f16, 1>(j, stream);
}
