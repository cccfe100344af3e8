/* flash_tf32_bwd.cu - attention's gradient in float where TF32 was asked for: one product for each. */
#include "flash_bwd.cuh"

int flash_bwd_tf32(const cu_attention_job *j, void *stream)
{
    return flash_for<flash_backward, float, 1>(j, stream);
}
