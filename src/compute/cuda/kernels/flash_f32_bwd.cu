/* flash_f32_bwd.cu - attention's gradient in float: three products of TF32 for each of float. */
#include "flash_bwd.cuh"

int flash_bwd_f32(const cu_attention_job *j, bool tf32, void *stream)
{
    return flash_tf32(tf32) ? flash_bwd_tf32(j, stream) : flash_for<flash_backward, float, 3>(j, stream);
}
