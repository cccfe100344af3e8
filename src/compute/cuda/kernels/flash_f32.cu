/* flash_f32.cu - attention in float, forward, on the tensor cores: every product as three of TF32 (mma.cuh), which leaves a float's accuracy,
 * or as one where TF32 was asked for. Backward: flash_f32_bwd.cu, flash_tf32_bwd.cu, apart because they take the compiler long. */
#include "flash_fwd.cuh"

int flash_fwd_f32(const cu_attention_job *j, bool tf32, void *stream)
{
    return tf32 ? flash_for<flash_forward, float, 1>(j, stream) : flash_for<flash_forward, float, 3>(j, stream);
}
