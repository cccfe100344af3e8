/* flash_fwd.cu - attention forward; flash.h says what it computes, flash_fwd.cuh how. In float every product is three of TF32 (mma.cuh), which
 * leaves a float's accuracy, or one where TF32 was asked for. Backward is in three files because it takes the compiler long. */
#include "flash_fwd.cuh"

int flash_fwd_16bit(const cu_attention_job *j, ls_dtype dt, void *stream)
{
    return dt == LS_BF16 ? flash_for<flash_forward, bf16, 1>(j, stream) : flash_for<flash_forward, f16, 1>(j, stream);
}

int flash_fwd_cached(const cu_attention_job *j, ls_dtype dt, bool tf32, void *stream)
{
    if (dt == LS_BF16) return flash_for<flash_cached, bf16, 1>(j, stream);
    if (dt == LS_F16) return flash_for<flash_cached, f16, 1>(j, stream);
    return flash_tf32(tf32) ? flash_for<flash_cached, float, 1>(j, stream)
                            : flash_for<flash_cached, float, 3>(j, stream);
}

int flash_fwd_f32(const cu_attention_job *j, bool tf32, void *stream)
{
    return flash_tf32(tf32) ? flash_for<flash_forward, float, 1>(j, stream)
                            : flash_for<flash_forward, float, 3>(j, stream);
}
