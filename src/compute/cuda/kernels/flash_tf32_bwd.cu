/* flash_tf32_bwd.cu - attention's gradient in float where TF32 was asked for: one product for each. */
#include "flash_bwd.cuh"

int flash_bwd_tf32(const flash_job *j, void *stream)
{
    return bwd_for<float, 1>(j, stream);
}
