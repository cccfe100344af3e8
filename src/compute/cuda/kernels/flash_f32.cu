/* flash_f32.cu - attention in float, on the tensor cores: every product as three of TF32 (mma.cuh), which leaves a float's accuracy, or as
 * one where TF32 was asked for. */
#include "flash_bwd.cuh"
#include "flash_fwd.cuh"

int flash_fwd_f32(const flash_job *j, int tf32, void *stream)
{
    return tf32 ? fwd_for<float, 1>(j, stream) : fwd_for<float, 3>(j, stream);
}

int flash_bwd_f32(const flash_job *j, int tf32, void *stream)
{
    return tf32 ? bwd_for<float, 1>(j, stream) : bwd_for<float, 3>(j, stream);
}
