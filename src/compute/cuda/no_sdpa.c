/* no_sdpa.c - sdpa.h where this build has no cuDNN. */
#include "compute/cuda/sdpa.h"

ls_status cu_sdpa_open(cu_sdpa **out, void *stream, ls_dtype dt, bool deterministic)
{
    (void)out, (void)stream, (void)dt, (void)deterministic;
    return ls_fail(LS_E_UNSUPPORTED, "built without cuDNN");
}

void cu_sdpa_close(cu_sdpa **s)
{
    *s = NULL;
}

ls_status cu_sdpa_plan(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D, size_t *nbytes)
{
    (void)s, (void)backward, (void)B, (void)T, (void)H, (void)D, (void)nbytes;
    return ls_fail(LS_E_UNSUPPORTED, "built without cuDNN");
}

ls_status cu_sdpa_ready(cu_sdpa *s, bool backward, int64_t B, int64_t T, int64_t H, int64_t D)
{
    (void)s, (void)backward, (void)B, (void)T, (void)H, (void)D;
    return ls_fail(LS_E_UNSUPPORTED, "built without cuDNN");
}

ls_status cu_sdpa_run(cu_sdpa *s, bool backward, const cu_attention_job *j)
{
    (void)s, (void)backward, (void)j;
    return ls_fail(LS_E_UNSUPPORTED, "built without cuDNN");
}

int cu_sdpa_version(const cu_sdpa *s)
{
    (void)s;
    return 0;
}
